"""Which documents a user's history tells of, so that a new one is known for new without looking through it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tomldiary.errors import InvalidTOML
from tomldiary.forks import renew_after_fork
from tomldiary.history import is_snapshot, next_sequence, result_kinds
from tomldiary.recent import Recent

if TYPE_CHECKING:
    from tomldiary.backends.base import Backend

__all__ = ["LoggedKinds"]

_CACHED_USERS = 256


@dataclass(slots=True)
class _Kinds:
    """The documents in a user's history up to transaction `seq`, and perhaps some that are not in it any more."""

    seq: int = 0
    epoch: int = 0
    found: set[str] = field(default_factory=set[str])


class LoggedKinds:
    """The names in the histories of all users; each history is read once, then what is new in it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._users: Recent[str, _Kinds] = Recent(_CACHED_USERS)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock."""
        self._guard = threading.Lock()

    def may_hold(self, user: str, kind: str) -> bool:
        """Tell whether history may tell of a document; the caller holds the user's lock."""
        epoch = self._backend.epoch(user)
        with self._guard:
            known = self._users.get(user)
        if known is None or known.epoch != epoch:
            known = _Kinds(epoch=epoch)
        newest = 0
        for text in self._backend.records(user):
            try:
                seq = next_sequence(text) - 1
            except InvalidTOML:
                return True  # damaged: whoever looks at it says so
            if not newest and seq < known.seq:
                known = _Kinds(epoch=epoch)  # another history, since the user was removed
            newest = newest or seq
            if seq <= known.seq:
                break
            known.found.update(result_kinds(text))
            if is_snapshot(text):
                break
        known.seq = newest
        with self._guard:
            self._users.keep(user, known)
        return kind in known.found
