"""What transactions did to entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tomldiary.entries.kinds import entry_key, entry_kind
from tomldiary.errors import NestedTransaction
from tomldiary.history.record import SNAPSHOT
from tomldiary.history.timeline import Timeline
from tomldiary.toml.document import Document
from tomldiary.toml.values import render_path, same_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.engine.engine import Engine
    from tomldiary.history.record import Record
    from tomldiary.storage.protocol import Backend
    from tomldiary.toml.document import Path

__all__ = ["HistoryEntry", "change_made", "entries_in", "entry_changes", "refuse_within"]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """What one transaction did to one entry."""

    seq: int
    time: str
    type: str
    session: str
    actor: str
    reason: str
    key: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    is_conflict: bool = False
    """Whether a person's change displaced ours here; `before` is what we had written."""


def entry_changes(record: Record) -> Iterator[HistoryEntry]:
    """Yield what a record did to each entry."""
    if record.type == SNAPSHOT:
        return
    for kind in dict.fromkeys(change.doc for change in record.changes):
        old: dict[Path, dict[str, Any]] = {}
        new: dict[Path, dict[str, Any]] = {}
        for change in record.changes:
            if change.doc == kind:  # a moved table is taken out by one change and put in by another
                for text, found in ((change.old, old), (change.new, new)):
                    for path, entry in entries_in(Document.parse(text), kind).items():
                        found[path] = {**found.get(path, {}), **entry}
        for path in dict.fromkeys([*old, *new]):
            if not same_value(old.get(path), new.get(path)):
                yield HistoryEntry(
                    record.seq,
                    record.time,
                    record.type,
                    record.session,
                    record.actor,
                    record.reason,
                    entry_key(path, kind),
                    old.get(path),
                    new.get(path),
                    render_path(path) in record.conflicts,
                )


def change_made(backend: Backend, user: str, seq: int) -> HistoryEntry:
    """Return what a transaction that changes one entry did, for the answer to its repetition."""
    records = Timeline(backend, user).records()
    record = next(record for record in records if record.seq == seq)
    return next(entry_changes(record))


def refuse_within(engine: Engine, user: str, operation_id: str) -> None:
    """Refuse an operation id of a part of a transaction: only the whole is repeated or not.

    Raises:
        NestedTransaction: A transaction of the user is open here.
    """
    if operation_id and engine.is_joined(user):
        raise NestedTransaction(
            "a transaction is open here, and is repeated as a whole or not at all. Give the operation id to"
            " transaction(operation_id=…)."
        )


def entries_in(document: Document, kind: str) -> dict[Path, dict[str, Any]]:
    """Return the entries of a document, or of a part of one, by path; both layouts count."""
    return entry_kind(kind).tables(document)
