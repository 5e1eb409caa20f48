"""Which operations history says were done already, so that none is done twice."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tomldiary.errors import Conflict
from tomldiary.forks import renew_after_fork
from tomldiary.history import next_sequence, operation_of
from tomldiary.recent import Recent

if TYPE_CHECKING:
    from tomldiary.backends.base import Backend
    from tomldiary.transaction import Source

__all__ = ["DoneOperations"]

_CACHED_USERS = 256  # whose operation ids are known


@dataclass(slots=True)
class _Operations:
    """The operation ids in a user's history up to transaction `seq`."""

    seq: int = 0
    epoch: int = 0
    done: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """The transaction's number and its content, by operation id."""


class DoneOperations:
    """The operation ids in the histories of all users; each history is read once, then what is new in it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._users: Recent[str, _Operations] = Recent(_CACHED_USERS)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock."""
        self._guard = threading.Lock()

    def drop(self, user: str) -> None:
        """Read a user's history anew when it is asked for next."""
        with self._guard:
            self._users.pop(user, None)

    def repetition(self, user: str, source: Source) -> int | None:
        """Return the number of the transaction that did this operation before; the caller holds the lock.

        Raises:
            Conflict: The operation id is in history for other content.
        """
        if not source.operation or source.is_new:
            return None
        before = self.of(user).get(source.operation)
        if before is not None and before[1] != source.fingerprint():
            raise Conflict(
                f"operation {source.operation!r} was done already, with other content. Use a new id.",
                keys=[source.operation],
            )
        return before[0] if before is not None else None

    def of(self, user: str) -> dict[str, tuple[int, str]]:
        """Return the transaction's number and the content, by operation id; the caller holds the user's lock."""
        epoch = self._backend.epoch(user)
        with self._guard:
            known = self._users.get(user)
            if known is None or known.epoch != epoch:
                known = _Operations(epoch=epoch)
        last = next_sequence(self._backend.last_record(user)) - 1  # cuts off a torn end
        newest = 0
        fresh: dict[str, tuple[int, str]] = {}
        for text in self._backend.records(user) if last > known.seq else ():
            seq = next_sequence(text) - 1
            newest = max(newest, seq)
            if seq <= known.seq:
                break
            operation, content = operation_of(text)
            if operation:
                fresh.setdefault(operation, (seq, content))
        known.seq = max(known.seq, newest)
        known.done.update(fresh)  # the user's lock is held: nobody else is at it
        with self._guard:
            self._users.keep(user, known)
        return known.done
