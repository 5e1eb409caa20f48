"""Finds the version that a hand edit is based on, so that its changes are known exactly.

`_meta.seq` names this version, because an editor keeps the number in the text it opened. An editor may also continue
from its own save, without reading the merged result.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tomldiary.entries.kinds import entry_path, own_tables, own_values
from tomldiary.errors import DocumentError
from tomldiary.hand_edits.three_way_merge import changed_tables, closest
from tomldiary.history.record import Record, redo
from tomldiary.history.timeline import EMPTY, Timeline
from tomldiary.toml.document import Document, Path, Table
from tomldiary.toml.edit import Edit
from tomldiary.toml.values import same_value

if TYPE_CHECKING:
    from tomldiary.history.timeline import Latest
    from tomldiary.toml.lexer import Block

__all__ = ["NOTHING", "base_of_save", "before_saves"]

NOTHING = Document.parse("")


def base_of_save(
    timeline: Timeline, kind: str, saved: Document, ours: Document, last: Latest
) -> Document:
    """Return the version that a hand edit is based on.

    Args:
        timeline: The user's history.
        kind: The document.
        saved: The hand edit.
        ours: The document at the end of history.
        last: The record of that version.
    """
    seq = _number_of(saved)
    if type(seq) is not int or not 0 < seq <= last.seq:
        return ours
    if seq == _number_of(ours) and last.type != "hand":
        return ours
    try:
        later = _later(timeline, kind, seq)
        if any(record.results[kind] == EMPTY for record in later):
            # The file was removed since, so all text of the save counts as new.
            return NOTHING
        base = closest(kind, _versions(timeline, kind, seq, later, ours.text), saved)
        return _with_earlier_saves(base, kind, saved, later)
    except DocumentError:
        # History does not have the base version. With an empty base, neither side deletes anything.
        return NOTHING


def _number_of(document: Document) -> object:
    """Return the transaction number in the `_meta` of a document."""
    return (document.table(("_meta",)) or {}).get("seq")


def before_saves(timeline: Timeline, kind: str) -> Document:
    """Return a document before the hand edits at the end of history.

    Raises:
        DocumentError: History is damaged, or does not reach back that far.
    """
    for record in timeline.records():
        if kind in record.results and record.type != "hand":
            return Document.parse(timeline.text(kind, record.seq))
    return NOTHING


def _later(timeline: Timeline, kind: str, seq: int) -> list[Record]:
    """Return the records after transaction `seq` that changed a document, oldest first."""
    found: list[Record] = []
    for record in timeline.records():
        if record.seq <= seq:
            break
        if kind in record.results:
            found.append(record)
    return found[::-1]


def _versions(
    timeline: Timeline, kind: str, seq: int, later: list[Record], now: str
) -> list[Document]:
    """Return the versions of a document with the number `seq`, oldest first; `now` is its current text.

    A hand edit keeps the number of its base version, and an editor may continue from such an edit.
    """
    text = timeline.texts([kind], seq, {kind: now})[kind]
    versions = [Document.parse(text)]
    for record in later:
        if record.type != "hand":
            break
        text = redo("" if record.bases[kind] == EMPTY else text, record, kind)
        version = Document.parse(text)
        if _number_of(version) != seq:
            break  # the edit was merged, so it has a new number
        versions.append(version)
    return versions


def _with_earlier_saves(
    base: Document, kind: str, saved: Document, later: list[Record]
) -> Document:
    """Return a base version with those tables of a hand edit that an earlier hand edit had already added to history.

    An editor that continues from its own save repeats these tables, and other writers may have changed them since.
    """
    saves = [_Save(record, kind) for record in reversed(later) if record.type == "hand"]
    edit = Edit(base)
    for path in changed_tables(kind, base, saved) if saves else ():
        values = own_values(kind, saved, path)
        save = next((save for save in saves if save.made(path, values)), None)
        if save is None or path[0] == "_meta":
            continue
        block = save.block(path)
        if values is None and entry_path(kind, path) is not None:
            edit.delete(path)
        elif values and block is not None and same_value(values, saved.own_values(path)):
            edit.restore(path, block.text, values)
        else:
            edit.replace_values(path, own_values(kind, base, path), values or {})
    return edit.done() if edit.is_changed else base


class _Save:
    """The changes of one logged hand edit, by table."""

    def __init__(self, record: Record, kind: str) -> None:
        self._kind = kind
        self._changes = [change for change in record.changes if change.doc == kind]

    @cached_property
    def _before(self) -> list[dict[Path, Table]]:
        return [own_tables(self._kind, Document.parse(change.old)) for change in self._changes]

    @cached_property
    def _made(self) -> list[dict[Path, Table]]:
        return [own_tables(self._kind, part) for part in self._after]

    @cached_property
    def _after(self) -> list[Document]:
        return [Document.parse(change.new) for change in self._changes]

    def made(self, path: Path, values: Table | None) -> bool:
        """Return whether the edit set these values of a table; None means that it removed the table."""
        if not any(
            path[-1] in text for change in self._changes for text in (change.old, change.new)
        ):
            return False
        before, after = _values_in(self._before, path), _values_in(self._made, path)
        return not same_value(before, after) and same_value(after, values)

    def block(self, path: Path) -> Block | None:
        """Return the block of a table after the edit, or None if it was removed or has no header."""
        return next((part.index[path] for part in self._after if path in part.index), None)


def _values_in(parts: list[dict[Path, Table]], path: Path) -> Table | None:
    return next((part[path] for part in parts if path in part), None)
