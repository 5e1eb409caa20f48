"""Blocks: named texts of an agent, such as its persona or its notes on the user.

    [blocks.persona]
    text = \"\"\"
    Answers briefly.
    Never guesses.\"\"\"

The verbs are those of loomflow's working blocks and of pydantic-deep's MEMORY document.
"""

# ruff: noqa: ARG002, D102 - overrides: `EntryKind` documents them

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.fields import (
    author,
    check_key,
    check_length,
    entry_data,
    entry_text,
    replaced,
    said_by,
    signed,
    tables_at,
    updated_at,
    with_value,
)
from tomldiary.entries.kind import EntryKind, EntryLine
from tomldiary.errors import InvalidValue, UnknownEntry
from tomldiary.runtime.views import DictView, Viewed
from tomldiary.toml.values import checked_flag, checked_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from tomldiary.entries.kind import Collected, Group, Rank, Rules, Tables, Writing
    from tomldiary.toml.document import Document
    from tomldiary.toml.edit import Edit

MAX_BLOCK = 100_000
"""The maximum number of characters of a block."""
_ROOT = "blocks"


@dataclass(frozen=True, slots=True, repr=False)
class TextBlock(Viewed):
    """A copy of one block at the time of reading."""

    text: str
    is_pinned: bool
    """Whether it comes before everything else when memory is rendered."""
    created: str
    updated: str
    created_by: str
    updated_by: str


class TextBlocks(DictView[str, TextBlock]):
    """The blocks of a user by name."""


class Blocks:
    """Reads the blocks document; with an edit of it, also changes it."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def entries(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the blocks by name, in the order of the file."""
        return tables_at(self._tables, _ROOT)

    def find(self, name: str) -> Mapping[str, Any] | None:
        """Return a block's fields, or None."""
        return self._tables.table((_ROOT, checked_text(name, "name")))

    # Writing

    def put(
        self,
        name: str,
        text: str,
        *,
        now: str,
        session: str = "",
        pinned: bool | None = None,
        is_part: bool = False,
    ) -> None:
        """Set the text of a block.

        Args:
            name: The block, which is created if it does not exist.
            text: The new text.
            now: The time of the change.
            session: The session that writes the text.
            pinned: Whether the block is shown before all other memory; None keeps the setting.
            is_part: Whether the text contains a part of the old one.

        Raises:
            InvalidValue: The name is empty or too long, or the text is too long. Nothing was changed.
        """
        name = checked_text(name, "name")
        check_key(name, "a block's name", _ROOT)
        where = f"{_ROOT}.{name}"
        text = checked_text(text, where)
        _check_length(text, where)
        old = self.find(name)
        entry: dict[str, Any] = dict(old or {"text": "", "_created": now})
        if text != entry.get("text"):  # a hand edit may have removed it
            entry = {**replaced(entry, is_part=is_part), "text": text}
        if pinned is not None:
            checked_flag(pinned, "pinned")
            entry.pop("pinned", None)
            if not pinned:  # the default is True
                entry["pinned"] = False
        is_known = not session or (author(entry) == session and not said_by(entry))
        if entry == old and (is_part or is_known):
            return
        entry["_updated"] = updated_at(entry, now)
        if session and old is None:
            entry["_created_by"] = session
        self._edit.put((_ROOT, name), signed(entry, old, session, is_part=is_part))

    def append(self, name: str, text: str, *, now: str, session: str = "") -> None:
        """Append `text` to a block on a new line; a missing block is created.

        Raises:
            InvalidValue: The name is empty or too long, or the text would be too long.
        """
        old = self.find(name)
        before = entry_text(old) if old is not None else ""
        gap = "\n" if before and not before.endswith("\n") else ""
        whole = f"{before}{gap}{checked_text(text, f'{_ROOT}.{name}')}"
        self.put(name, whole, now=now, session=session, is_part=bool(before.strip()))

    def replace(self, name: str, old: str, new: str, *, now: str, session: str = "") -> None:
        """Replace the only occurrence of `old`.

        Raises:
            UnknownEntry: There is no such block.
            InvalidValue: `old` is empty, is not in the text, or occurs more than once.
        """
        found = self.find(name)
        where = f"{_ROOT}.{name}"
        if found is None:
            raise unknown_block(name)
        text = entry_text(found)
        if not checked_text(old, where):
            raise InvalidValue(
                "the text to replace is empty. Give a part of the block.", where=where
            )
        at = text.find(old)
        if at < 0:
            raise InvalidValue(
                "the block does not contain the text to replace. Read the block first.", where=where
            )
        if text.find(old, at + 1) >= 0:  # also finds an overlapping occurrence
            raise InvalidValue(
                "the text to replace occurs more than once. Include more of the text around it.",
                where=where,
            )
        before, after = text[:at], text[at + len(old) :]
        whole = f"{before}{checked_text(new, where)}{after}"
        is_part = bool(before.strip() or after.strip())
        self.put(name, whole, now=now, session=session, is_part=is_part)

    def delete(self, name: str) -> Mapping[str, Any]:
        """Remove a block and return its fields.

        Raises:
            UnknownEntry: There is no such block.
        """
        found = self.find(name)
        if found is None:
            raise unknown_block(name)
        self._edit.delete((_ROOT, name))
        return found

    @property
    def _edit(self) -> Edit:
        return cast("Edit", self._tables)


def _check_length(text: str, where: str) -> None:
    hint = "Shorten it, or begin another block."
    check_length(len(text), MAX_BLOCK, where, "the text would have", hint)


def is_pinned(entry: Mapping[str, Any]) -> bool:
    """Return whether a block is shown before all other memory, which is the default."""
    return entry.get("pinned", True) is not False


def to_block(entry: Mapping[str, Any]) -> TextBlock:
    """Return an entry as a block, with defaults for missing and malformed fields."""
    managed = ("_created", "_updated", "_created_by", "_updated_by")
    return TextBlock(
        entry_text(entry), is_pinned(entry), *(str(entry.get(name, "")) for name in managed)
    )


def unknown_block(name: str) -> UnknownEntry:
    """Return the error for a name without a block."""
    return UnknownEntry(
        f"{_ROOT}/{name}", "blocks.all() returns all blocks; blocks.set(…) adds one."
    )


class BlockKind(EntryKind):
    """`[blocks.name]`: named texts of an agent."""

    flags = ("pinned",)
    needed = ("text",)
    is_long = True
    leads = True
    shape = "blocks/name"

    def line(self, name: str, entry: Mapping[str, Any], group: Group) -> EntryLine:
        return EntryLine(name, entry_text(entry), is_long=True)

    def rank(self, entry: Mapping[str, Any]) -> Rank:
        return (is_pinned(entry), 0, "")

    def check_import(self, before: Document, after: Document, rules: Rules) -> None:
        old = dict(self.entries(before, rules))
        for name, entry in self.entries(after, rules):
            text = entry_text(entry)
            if name not in old or entry_text(old[name]) != text:
                _check_length(text, f"{_ROOT}.{name}")

    def profile(self, documents: Mapping[str, Document], rules: Rules, at: datetime) -> Any:
        blocks = Blocks(documents[self.name]).entries()
        return {name: len(entry_text(entry)) for name, entry in blocks}

    def put(
        self, writing: Writing, collection: Collected, key: str, value: Mapping[str, Any]
    ) -> None:
        edit = writing.edit(self.name)
        book = Blocks(edit)
        book.put(key, value["text"], now=writing.now, session=writing.session)
        entry = cast("Mapping[str, Any]", book.find(key))
        fresh = with_value(dict(value), entry, writing.now)
        if entry_data(fresh) != entry_data(entry):
            edit.put((*collection, key), fresh)
