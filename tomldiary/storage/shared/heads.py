"""Caches the newest known state of each user.

A write may begin with a cached state, because its step is applied only if the stored state is still the same.
A read may use a cached state only while a watch confirms it; see `watch`.
"""

from __future__ import annotations

import random
import threading
import time
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.lru import Recent
from tomldiary.storage.shared.database import stored_id

if TYPE_CHECKING:
    from tomldiary.storage.shared.database import Head

__all__ = ["CALM", "Heads", "Remembered", "notice_key"]

_CACHED_USERS = 1024
CALM = 8
_PAUSES = 6
_LONGEST_PAUSE = 0.25  # seconds
_TOUCH_AFTER = (3, 6, 12, 24)  # conflicts after which a process raises the revision


def notice_key(user: str) -> str:
    """Return the name of a user in notices: a SHA-256 in hexadecimal digits, which does not reveal the user id."""
    return sha256(stored_id(user).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(slots=True)
class Remembered:
    """The cached state of one user, and counters of its transactions."""

    head: Head | None = None
    """The newest state seen. It is replaced, and never changed."""
    calm: int = CALM
    """The number of consecutive transactions that found the state unchanged since the previous one."""
    duration: float = 0.0
    """The duration of the last step, in seconds."""
    conflicts: int = 0
    """The number of steps refused since the last applied one."""
    wanted: tuple[str, ...] = ()
    """The documents of the refused step, which are read together with the state next time."""
    notices: int = 0
    """The number of notices without a revision."""
    noticed: int = 0
    """The highest revision in a notice."""
    confirmed: tuple[int, int] | None = None
    """The stamp of the request that returned the state; see `Heads.stamp`."""

    @property
    def is_alone(self) -> bool:
        """Whether probably only this process writes, so that the next step will find the state unchanged."""
        return self.calm >= CALM

    @property
    def is_outpaced(self) -> bool:
        """Whether to raise the revision, because a process that assumes the state may otherwise always be faster."""
        return self.conflicts in _TOUCH_AFTER

    def compare(self, before: Head | None, now: Head) -> None:
        """Record whether another process has written since the last step of this process."""
        is_same = before is None or before.revision == now.revision
        self.calm = self.calm + 1 if is_same else 0

    def back_off(self) -> None:
        """Wait for a random time after a refused step; the upper limit doubles with each conflict.

        The limit is reset after six conflicts, because a process that waits longer loses to the others.
        """
        longest = min(_LONGEST_PAUSE, self.duration * 2.0 ** (self.conflicts % _PAUSES))
        time.sleep(random.uniform(0.0, longest))  # noqa: S311 - no secret


class Heads:
    """The newest known state of each user. Thread-safe."""

    def __init__(self) -> None:
        self._users: Recent[str, Remembered] = Recent(_CACHED_USERS)
        self._connection = 0
        self._trusted_until = 0.0
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock and trust no state in a forked child, because the watch runs in the parent only."""
        self._guard = threading.Lock()
        self._trusted_until = 0.0

    def of(self, user: str) -> Remembered:
        """Return the cached state of a user."""
        key = notice_key(user)
        with self._guard:
            found = self._users.get(key)
            return self._users.keep(key, Remembered() if found is None else found)

    # Reads without a request

    def valid(self, known: Remembered) -> Head | None:
        """Return the state if the database has reported no change since it was read; else None."""
        if time.monotonic() >= self._trusted_until or known.confirmed != self.stamp(known):
            return None
        head = known.head
        return head if head is not None and head.revision >= known.noticed else None

    def stamp(self, known: Remembered) -> tuple[int, int]:
        """Return a stamp to take before a request; a later notice changes it, which makes the answer invalid."""
        return self._connection, known.notices

    def keep(self, known: Remembered, head: Head, stamp: tuple[int, int]) -> None:
        """Cache the state that a request returned, unless a newer one is cached."""
        with self._guard:
            if known.head is None or head.revision >= known.head.revision:
                if head.texts:
                    head = copy(head)
                    head.texts = {}
                known.head, known.confirmed = head, stamp

    # Called by the watch

    def notice(self, key: str, revision: int | None) -> None:
        """Record a change of a user; `revision` is the new revision if it is known."""
        with self._guard:
            known = self._users.get(key)
            if known is None:
                return
            if revision is None:
                known.notices += 1
            else:
                known.noticed = max(known.noticed, revision)

    def trust(self, until: float) -> None:
        """Allow reads to use cached states until a time of the monotonic clock."""
        self._trusted_until = until

    def forget_all(self) -> None:
        """Make all cached states invalid for reads, because any user may have changed."""
        self._connection += 1

    def distrust(self) -> None:
        """Make all cached states invalid for reads, because notices may have been missed."""
        self._trusted_until = 0.0
        self._connection += 1
