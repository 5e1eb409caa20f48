"""Indexes over history records; each history is read once, then only its new records."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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
    from collections.abc import Callable, Mapping

    from tomldiary.storage.protocol import Backend

__all__ = ["DOCUMENT", "OPERATION", "HistoryIndex", "Indexed", "changes_in", "facts_in"]

K = TypeVar("K")
V = TypeVar("V")
DOCUMENT, OPERATION = "document", "operation"
"""What a key of `facts_in` names."""
_CACHED_USERS = 256


@dataclass(slots=True)
class Indexed(Generic[K, V]):
    """The index of one user; it may hold keys of records dropped since."""

    start: int = 0
    """The transaction after which it is complete."""
    last: int = 0
    """The newest transaction."""
    record: int = 0
    """The `_identity` of its record; another one shows that the indexed history was not stored, or was replaced."""
    epoch: int = 0
    found: dict[K, V] = field(default_factory=dict[Any, Any])


class HistoryIndex(Generic[K, V]):
    """Maps keys to the newest value that history records have for them. Thread-safe.

    Args:
        backend: Provides the histories.
        read: Returns the keys and values of a record, given its number and its text.
        is_whole: Whether it covers the whole history; False covers only records after a user's first look-up.
    """

    def __init__(
        self,
        backend: Backend,
        read: Callable[[int, str], Mapping[K, V]],
        *,
        is_whole: bool = True,
    ) -> None:
        self._backend = backend
        self._read = read
        self._is_whole = is_whole
        self._users: Recent[str, Indexed[K, V]] = Recent(_CACHED_USERS)
        self._guard = fork_safe(threading.Lock())

    def drop(self, user: str) -> None:
        """Drop a user's index; the next look-up reads the history again."""
        with self._guard:
            self._users.pop(user, None)

    def note(self, user: str, seq: int, record: str, found: Mapping[K, V]) -> None:
        """Add the keys of the latest transaction and its record; the caller holds the user's lock."""
        with self._guard:
            known = self._users.get(user)
        if known is not None and known.last == seq - 1:
            known.found.update(found)
            known.last, known.record = seq, _identity(record)

    def of(self, user: str) -> Indexed[K, V]:
        """Return the values by key and the range they cover; the caller holds the user's lock.

        Raises:
            InvalidTOML: A record is damaged.
        """
        epoch = self._backend.epoch(user) if self._is_whole else 0
        record = self._backend.last_record(user)  # repairs a torn log tail
        last = next_sequence(record) - 1
        with self._guard:
            known = self._users.get(user)
        if known is None or known.epoch != epoch or not self._extend(user, known, last, record):
            start = 0 if self._is_whole else last
            known = Indexed[K, V](start, start, epoch=epoch)
            self._extend(user, known, last, record)
        with self._guard:
            self._users.keep(user, known)
        return known

    def _extend(self, user: str, known: Indexed[K, V], last: int, record: str | None) -> bool:
        """Add the records up to the newest one; return False if history does not continue what is indexed.

        That is so if the user was removed, if history was rewritten, or if a transaction was not stored after all.
        """
        continues = not known.record or (last == known.last and _identity(record) == known.record)
        fresh: dict[K, V] = {}
        for text in self._backend.records(user) if last > known.last else ():
            seq = next_sequence(text) - 1
            if seq <= known.last:
                continues = continues or _identity(text) == known.record
                break
            for key, value in self._read(seq, text).items():
                fresh.setdefault(key, value)
            if is_snapshot(text):
                break
        if continues:
            known.found.update(fresh)  # safe: the user's lock is held
            known.last, known.record = last, _identity(record)
        return continues


def _identity(record: str | None) -> int:
    """Return the hash of a record without the lines that a storage adds to it."""
    head, _, rest = (record or "").partition("\nbase = ")
    return hash((OWN_LINES.sub("", head).rstrip("\n"), rest))


def facts_in(seq: int, text: str) -> dict[tuple[str, str], Any]:
    """Return the documents that a record names, and its idempotency key with its number and its content."""
    found: dict[tuple[str, str], Any] = {(DOCUMENT, kind): None for kind in result_kinds(text)}
    operation, content = operation_of(text)
    if operation:
        found[OPERATION, operation] = (seq, content)
    return found


def changes_in(seq: int, text: str) -> dict[str, int]:
    """Return the documents that a record changed, each with its number."""
    return dict.fromkeys(result_kinds(text), seq)
