"""The documents and idempotency keys of history records; each record is read once."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tomldiary.history.record import (
    OWN_LINES,
    is_snapshot,
    next_sequence,
    operation_of,
    result_kinds,
)
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.runtime.lru import Recent

if TYPE_CHECKING:
    from tomldiary.history.record import Record
    from tomldiary.storage.protocol import Backend

__all__ = ["HistoryIndex", "Indexed"]

_CACHED_USERS = 256


@dataclass(slots=True)
class Indexed:
    """The index of one user; it may hold keys of records dropped since."""

    start: int = 0
    """The transaction after which it is complete."""
    last: int = 0
    """The newest transaction."""
    record: int = 0
    """The `_identity` of its record; another one shows that the indexed history was not stored, or was replaced."""
    epoch: int | None = None
    """The user's fencing token if the index covers the whole history."""
    documents: dict[str, int] = field(default_factory=dict[str, int])
    """The last transaction that changed each document."""
    operations: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """The transaction and the content of each idempotency key."""


class HistoryIndex:
    """Indexes the records after a user's first look-up, or the whole history once that is asked for. Thread-safe.

    Args:
        backend: Provides the histories.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._users: Recent[str, Indexed] = Recent(_CACHED_USERS)
        self._guard = fork_safe(threading.Lock())

    def drop(self, user: str) -> None:
        """Drop a user's index; the next look-up reads the history again."""
        with self._guard:
            self._users.pop(user, None)

    def note(self, user: str, made: Record, text: str) -> None:
        """Add the latest transaction, whose record was stored as `text`; the caller holds the user's lock."""
        with self._guard:
            known = self._users.get(user)
        if known is not None and known.last == made.seq - 1:
            known.documents.update(dict.fromkeys(made.results, made.seq))
            if made.operation:
                known.operations[made.operation] = (made.seq, made.content)
            known.last, known.record = made.seq, _identity(text)

    def of(self, user: str, *, is_whole: bool = False) -> Indexed:
        """Return a user's index, of the whole history if `is_whole`; the caller holds the user's lock.

        Raises:
            InvalidTOML: A record is damaged.
        """
        epoch = self._backend.epoch(user) if is_whole else None
        record = self._backend.last_record(user)  # repairs a torn log tail
        last = next_sequence(record) - 1
        with self._guard:
            known = self._users.get(user)
        if known is not None and is_whole and known.epoch != epoch:
            known = None
        if known is None or not self._extend(user, known, last, record):
            known = Indexed(epoch=epoch) if is_whole else Indexed(last, last)
            self._extend(user, known, last, record)
        with self._guard:
            self._users.keep(user, known)
        return known

    def _extend(self, user: str, known: Indexed, last: int, record: str | None) -> bool:
        """Add the records up to the newest one; return False if history does not continue what is indexed.

        That is so if the user was removed, if history was rewritten, or if a transaction was not stored after all.
        """
        continues = not known.record or (last == known.last and _identity(record) == known.record)
        documents: dict[str, int] = {}
        operations: dict[str, tuple[int, str]] = {}
        for text in self._backend.records(user) if last > known.last else ():
            seq = next_sequence(text) - 1
            if seq <= known.last:
                continues = continues or _identity(text) == known.record
                break
            for kind in result_kinds(text):
                documents.setdefault(kind, seq)
            operation, content = operation_of(text)
            if operation:
                operations.setdefault(operation, (seq, content))
            if is_snapshot(text):
                break
        if continues:
            known.documents.update(documents)  # safe: the user's lock is held
            known.operations.update(operations)
            known.last, known.record = last, _identity(record)
        return continues


def _identity(record: str | None) -> int:
    """Return the hash of a record without the lines that a storage adds to it."""
    head, _, rest = (record or "").partition("\nbase = ")
    return hash((OWN_LINES.sub("", head).rstrip("\n"), rest))
