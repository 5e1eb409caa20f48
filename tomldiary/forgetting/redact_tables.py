"""Redacts one document: selects the states of its entries, and rebuilds every version without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.fields import author, sessions
from tomldiary.entries.kinds import entry_kind, entry_path
from tomldiary.errors import InvalidValue
from tomldiary.forgetting.selection import Selection, content
from tomldiary.forgetting.versions import State, Version, Versions, joined, values_at
from tomldiary.toml.block_edit import edit_block, split_tail
from tomldiary.toml.lexer import Block
from tomldiary.toml.parse import parse_toml
from tomldiary.toml.values import render_block, render_path, same_value

if TYPE_CHECKING:
    from datetime import datetime

    from tomldiary.toml.document import Path


class Tables:
    """The entries of one document in all its versions, and the states to redact.

    Args:
        kind: The document.
        selection: The data to redact.
        part: Another part of the same kind; its statements are shared, because they count in all parts.
    """

    def __init__(self, kind: str, selection: Selection, part: Tables | None = None) -> None:
        self.kind = kind
        self.affected: set[Path] = set()
        self._selection = selection
        self._versions = Versions(kind)
        self.kept: dict[Path, dict[str, str]] = {} if part is None else part.kept
        """The content that stays, with a session that stated it."""
        self.selected: dict[Path, set[str]] = {} if part is None else part.selected
        self._seen: dict[int, tuple[Path, State]] = {}
        self._changed: dict[tuple[str, str], Block] = {}
        self._last: dict[Path, str | None] = {}  # the text of the latest state that stays
        self._remembered: dict[Path, State] = {}
        # By id of a redacted state: its replacement at its first occurrence.
        self._instead: dict[int, str | None] = {}

    # First pass: collect the states

    def study(self, text: str, when: datetime) -> None:
        """Collect the states of a version, and whether the selection covers each."""
        for path, state in self._versions.cut(text).states.items():
            if id(state) in self._seen:
                continue
            self._seen[id(state)] = (path, state)
            if self._selection.covers(self.kind, path, state.values, when):
                self.selected.setdefault(path, set()).add(state.content)
            else:
                known = self.kept.setdefault(path, {})
                if not known.get(state.content):
                    known[state.content] = author(state.values)

    def decide(self) -> None:
        """Choose the entries to redact: those with content that only the selection stated."""
        self.affected = {
            path for path, said in self.selected.items() if said - self.kept.get(path, {}).keys()
        }

    def gone(self) -> list[Path]:
        """Return the entries of the document that are erased completely."""
        mine = {path for path, _ in self._seen.values()}
        return [path for path in self.selected if path in mine and not self.kept.get(path)]

    def is_all_gone(self) -> bool:
        """Return whether the selection covered an entry, and no version keeps any entry."""
        return bool(self.selected) and not any(self.kept.values())

    def sessions(self) -> set[str]:
        """Return the sessions of the redacted states."""
        chosen = self._selection.session_id or self._selection.source
        found: set[str] = set()
        for path, state in self._seen.values():
            if self._is_redacted(path, state):
                found |= sessions(entry_kind(self.kind), path, state.values)
        if not chosen:
            return found
        return {name for name in (chosen, chosen.rpartition("#")[0]) if name}

    def is_touched(self, before: str, after: str) -> bool:
        """Return whether a redacted state was created, changed or removed between two versions."""
        old, new = self._versions.cut(before).states, self._versions.cut(after).states
        for path in self.affected:
            was, became = old.get(path), new.get(path)
            if was is became or not (
                self._is_redacted(path, was) or self._is_redacted(path, became)
            ):
                continue
            if was is None or became is None or not same_value(was.values, became.values):
                return True
        return False

    def _is_redacted(self, path: Path, state: State | None) -> bool:
        return (
            state is not None
            and path in self.affected
            and state.content not in self.kept.get(path, {})
        )

    # Second pass: redact the versions, oldest first

    def blocks(self, text: str) -> list[Block]:
        """Return the blocks of a redacted version; it must be called for the versions in order, oldest first."""
        version = self._versions.cut(text)
        if not self.affected and not self._selection.session_id:
            return version.blocks
        self._return_to_restored(version)
        made: list[Block] = []
        back: set[Path] = set()
        for block in version.blocks:
            self._add(made, version, block, back)
        self._remember(version)
        return made

    def _add(self, made: list[Block], version: Version, block: Block, back: set[Path]) -> None:
        """Add a redacted block; `back` holds the entries already restored to an earlier state."""
        path = self._versions.path(block)
        if path is None:
            made.append(self._without_inline(block))
            return
        state = version.states[path]
        if not self._is_redacted(path, state):
            made.append(self._without_name(block, path, state))
            return
        last = self._last.get(path)
        if last is not None and path not in back:
            back.add(path)
            made.append(self._versions.same(Block(path, last + split_tail(block.text)[1])))
        else:
            self._leave_out(made, block)

    def prove(self, text: str, made: str) -> list[Path]:
        """Return the entries that differ between a version and its redacted text.

        Raises:
            InvalidValue: A selected state is still present, or another state changed.
        """
        parse_toml(made)
        old, new = self._versions.cut(text).states, self._versions.cut(made).states
        changed: list[Path] = []
        for path, state in old.items():
            found = new.get(path)
            if self._is_redacted(path, state) == (
                found is not None and found.content == state.content
            ):
                raise _cannot_redact(path)
            if found is None or not same_value(found.values, state.values):
                changed.append(path)
        return changed

    def _return_to_restored(self, version: Version) -> None:
        """Give a redacted state that a rollback restored the same replacement as at its first occurrence.

        Otherwise the rolled-back text would be the latest one that stays, and would be current again.
        """
        for path in self.affected:
            state = version.states.get(path)
            if state is None or not self._is_redacted(path, state):
                continue
            self._last[path] = self._instead.setdefault(id(state), self._last.get(path))
            self._remembered.pop(path, None)

    def _remember(self, version: Version) -> None:
        for path in self.affected:
            state = version.states.get(path)
            if state is None:
                self._last.pop(path, None)
                self._remembered.pop(path, None)
            elif state is self._remembered.get(path):
                continue
            elif not self._is_redacted(path, state):
                self._remembered[path] = state
                if path in version.groups:
                    blocks = version.groups[path]
                    whole = joined([self._without_name(block, path, state) for block in blocks])
                else:
                    whole = render_block(path, self._unnamed(path, state.values, state.content))
                body = split_tail(whole)[0]
                self._last[path] = body if body.endswith("\n") else f"{body}\n"

    def _leave_out(self, made: list[Block], block: Block) -> None:
        """Leave out a block, but keep the comments that a blank line separates from it."""
        tail = split_tail(block.text)[1]
        before = made[-1]
        kept, gap = split_tail(before.text)
        if gap.strip():
            tail = gap + tail.lstrip("\r\n") if tail.strip() else gap
        made[-1] = self._versions.same(Block(before.path, kept + tail, before.is_array))

    def _without_name(self, block: Block, path: Path, state: State) -> Block:
        session = self._selection.session_id
        if not session or block.is_array or block.path != path:
            return block
        witness = self.kept.get(path, {}).get(state.content, "")
        key = (block.text, witness)
        if key not in self._changed:
            own = values_at(block.text, path)
            self._changed[key] = self._edited(
                block, own, self._selection.without_name(own, witness)
            )
        return self._changed[key]

    def _without_inline(self, block: Block) -> Block:
        """Redact entries that are written as inline values of a parent table."""
        if not self._versions.inline(block):
            return block
        own = values_at(block.text, block.path)
        return self._edited(block, own, self._walked(own, block.path))

    def _walked(self, table: dict[str, Any], path: Path) -> dict[str, Any]:
        want: dict[str, Any] = {}
        for key, value in table.items():
            inner = (*path, key)
            entry = entry_path(self.kind, inner)
            if not isinstance(value, dict) or inner[0] == "_meta":
                want[key] = value
            elif entry is None:
                want[key] = self._walked(cast("dict[str, Any]", value), inner)
            else:
                values = cast("dict[str, Any]", value)
                said = content(values)
                if inner not in self.affected or said in self.kept.get(inner, {}):
                    want[key] = self._unnamed(inner, values, said)
                elif (last := self._last.get(inner)) is not None:
                    want[key] = values_at(last, inner)
        return want

    def _unnamed(self, path: Path, values: dict[str, Any], said: str) -> dict[str, Any]:
        """Return the values of an entry without the name of a selected session."""
        if not self._selection.session_id:
            return values
        return self._selection.without_name(values, self.kept.get(path, {}).get(said, ""))

    def _edited(self, block: Block, own: dict[str, Any], want: dict[str, Any]) -> Block:
        if same_value(own, want):
            return block
        try:
            changed = edit_block(block, own, want)
        except InvalidValue:
            tail = split_tail(block.text)[1]
            changed = Block(block.path, render_block(block.path, want) + tail)
        return self._versions.same(Block(changed.path, changed.text))


def _cannot_redact(path: Path) -> InvalidValue:
    return InvalidValue(
        "this entry cannot be removed because of its TOML form. Write it as one table with its own"
        " header. Nothing was forgotten.",
        where=render_path(path),
    )
