"""What the histories of all users say, by key; each history is read once, then what is new in it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from tomldiary.history.record import is_snapshot, next_sequence
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.lru import Recent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tomldiary.storage.protocol import Backend

__all__ = ["HistoryIndex", "Since"]

V = TypeVar("V")
_CACHED_USERS = 256


@dataclass(slots=True)
class _Known(Generic[V]):
    """What a user's history says up to transaction `seq`, and perhaps some that was dropped since."""

    seq: int = 0
    epoch: int = 0
    start: int = 0
    """The transaction behind which it says all."""
    found: dict[str, V] = field(default_factory=dict[str, Any])


class Since(NamedTuple, Generic[V]):
    """What a user's history says from one transaction to its end."""

    start: int
    """The transaction behind which `found` says all."""
    last: int
    """The newest transaction."""
    found: Mapping[str, V]


class HistoryIndex(Generic[V]):
    """An index over history records; of several values for a key the newest counts. Thread-safe.

    Args:
        backend: Whose histories.
        read: Returns what a record's text says, given its number and its text.
        is_whole: Whether it begins with a history's first record, not with the first question about a user.
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
        self._users: Recent[str, _Known[V]] = Recent(_CACHED_USERS)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock."""
        self._guard = threading.Lock()

    def drop(self, user: str) -> None:
        """Read a user's history anew when it is asked for next."""
        with self._guard:
            self._users.pop(user, None)

    def note(self, user: str, seq: int, found: Mapping[str, V]) -> None:
        """Add what the transaction just stored says; the caller holds the user's lock."""
        with self._guard:
            known = self._users.get(user)
        if known is not None and known.seq == seq - 1:
            known.found.update(found)
            known.seq = seq

    def of(self, user: str) -> Mapping[str, V]:
        """Return what a user's history says; the caller holds the user's lock.

        Raises:
            InvalidTOML: A record is damaged.
        """
        return self._looked_through(user).found

    def since(self, user: str) -> Since[V]:
        """Return what a user's history says behind a transaction; the caller holds the user's lock.

        Raises:
            InvalidTOML: A record is damaged.
        """
        known = self._looked_through(user)
        return Since(known.start, known.seq, known.found)

    def _looked_through(self, user: str) -> _Known[V]:
        epoch = self._backend.epoch(user) if self._is_whole else 0
        last = next_sequence(self._backend.last_record(user)) - 1  # cuts off a torn end
        with self._guard:
            known = self._users.get(user)
        if known is None or known.epoch != epoch or last < known.seq:
            # Or it is another history: the user was removed.
            start = 0 if self._is_whole else last
            known = _Known[V](seq=start, epoch=epoch, start=start)
        fresh: dict[str, V] = {}
        for text in self._backend.records(user) if last > known.seq else ():
            seq = next_sequence(text) - 1
            if seq <= known.seq:
                break
            for key, value in self._read(seq, text).items():
                fresh.setdefault(key, value)
            if is_snapshot(text):
                break
        known.found.update(fresh)  # the user's lock is held: nobody else is at it
        known.seq = last
        with self._guard:
            self._users.keep(user, known)
        return known
