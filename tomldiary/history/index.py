"""Indexes over history records; each history is read once, then only its new records."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tomldiary.errors import InvalidTOML
from tomldiary.history.record import is_snapshot, next_sequence, result_kinds
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.lru import Recent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tomldiary.storage.protocol import Backend

__all__ = ["HistoryIndex", "Indexed", "LoggedKinds"]

V = TypeVar("V")
_CACHED_USERS = 256


@dataclass(slots=True)
class Indexed(Generic[V]):
    """The index of one user; it may hold keys of records dropped since."""

    start: int = 0
    """The transaction after which it is complete."""
    last: int = 0
    """The newest transaction."""
    record: int = 0
    """The hash of its record, which holds no text; another one shows that the indexed history was not stored, or was replaced."""
    epoch: int = 0
    found: dict[str, V] = field(default_factory=dict[str, Any])


class HistoryIndex(Generic[V]):
    """Maps keys to the newest value that history records have for them. Thread-safe.

    Args:
        backend: Provides the histories.
        read: Returns the keys and values of a record, given its number and its text.
        is_whole: Whether it covers the whole history; False covers only records after a user's first look-up.
    """

    def __init__(
        self,
        backend: Backend,
        read: Callable[[int, str], Mapping[str, V]],
        *,
        is_whole: bool = True,
    ) -> None:
        self._backend = backend
        self._read = read
        self._is_whole = is_whole
        self._users: Recent[str, Indexed[V]] = Recent(_CACHED_USERS)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock."""
        self._guard = threading.Lock()

    def drop(self, user: str) -> None:
        """Drop a user's index; the next look-up reads the history again."""
        with self._guard:
            self._users.pop(user, None)

    def note(self, user: str, seq: int, record: str | None, found: Mapping[str, V]) -> None:
        """Add the keys of the latest transaction, whose record is given as stored; the caller holds the user's lock."""
        with self._guard:
            known = self._users.get(user)
        if known is not None and known.last == seq - 1:
            known.found.update(found)
            known.last, known.record = seq, hash(record)

    def of(self, user: str) -> Indexed[V]:
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
            known = Indexed[V](start, start, epoch=epoch)
            self._extend(user, known, last, record)
        with self._guard:
            self._users.keep(user, known)
        return known

    def _extend(self, user: str, known: Indexed[V], last: int, record: str | None) -> bool:
        """Add the records up to the newest one; return False if history does not continue what is indexed.

        That is so if the user was removed, if history was rewritten, or if a transaction was not stored after all.
        """
        continues = not known.record or (last == known.last and hash(record) == known.record)
        fresh: dict[str, V] = {}
        for text in self._backend.records(user) if last > known.last else ():
            seq = next_sequence(text) - 1
            if seq <= known.last:
                continues = continues or hash(text) == known.record
                break
            for key, value in self._read(seq, text).items():
                fresh.setdefault(key, value)
            if is_snapshot(text):
                break
        if continues:
            known.found.update(fresh)  # safe: the user's lock is held
            known.last, known.record = last, hash(record)
        return continues


class LoggedKinds:
    """Indexes the documents that a history names, and the last transaction that changed each.

    The index shows whether a document is new and whether a cached one is current, without another read of history.
    """

    def __init__(self, backend: Backend) -> None:
        self._index = HistoryIndex(backend, lambda _, text: dict.fromkeys(result_kinds(text)))
        self._changes = HistoryIndex(
            backend, lambda seq, text: dict.fromkeys(result_kinds(text), seq), is_whole=False
        )

    def note(self, user: str, seq: int, record: str | None, kinds: Iterable[str]) -> None:
        """Add the documents that the latest transaction changed; see `HistoryIndex.note`."""
        found = list(kinds)
        self._index.note(user, seq, record, dict.fromkeys(found))
        self._changes.note(user, seq, record, dict.fromkeys(found, seq))

    def changes(self, user: str) -> Indexed[int]:
        """Return the last transaction that changed each document; the caller holds the user's lock.

        Raises:
            InvalidTOML: A record is damaged.
        """
        return self._changes.of(user)

    def may_hold(self, user: str, kind: str) -> bool:
        """Return whether history may name a document; the caller holds the user's lock."""
        try:
            return kind in self._index.of(user).found
        except InvalidTOML:
            return True  # damaged: reading the record raises the error
