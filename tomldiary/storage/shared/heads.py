"""Remembers the newest state of each user that this process has seen.

A write may begin with it instead of asking the database: the step is applied only if the state is still the stored one.
A read may use it only while the database watches the user for this process; see `watch`.
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
_PATIENT = (3, 6, 12, 24)  # conflicts after which a process makes itself noticed


def notice_key(user: str) -> str:
    """Return the name of a user in notices: a SHA-256 in hexadecimal digits, which discloses no user id."""
    return sha256(stored_id(user).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(slots=True)
class Remembered:
    """What is known of one user."""

    head: Head | None = None
    """The newest state seen. It is replaced, and never changed."""
    calm: int = CALM
    """Transactions in a row that found the state as the one before left it."""
    duration: float = 0.0
    """Seconds that the last step took."""
    conflicts: int = 0
    """Steps that were refused since the last one that was applied."""
    wanted: tuple[str, ...] = ()
    """The documents of the refused step: they are read together with the state."""
    notices: int = 0
    """Notices without a revision."""
    noticed: int = 0
    """The highest revision that a notice named."""
    confirmed: tuple[int, int] | None = None
    """The stamp of the request that returned the state; see `Heads.stamp`."""

    @property
    def is_alone(self) -> bool:
        """Whether this process alone seems to write, so that the next step will find the state unchanged."""
        return self.calm >= CALM

    @property
    def is_outpaced(self) -> bool:
        """Whether another process may assume the state each time, and so be faster for ever."""
        return self.conflicts in _PATIENT

    def compare(self, before: Head | None, now: Head) -> None:
        """Note whether another process has written since the last step of this one."""
        is_same = before is None or before.revision == now.revision
        self.calm = self.calm + 1 if is_same else 0

    def back_off(self) -> None:
        """Wait for a random time after a refused step: up to as long as one takes, then up to twice as long, and so on.

        The limit begins anew after six times: a process that waits long only misses its turns.
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
        """Make a new lock, and trust no state: the watch stays with the parent."""
        self._guard = threading.Lock()
        self._trusted_until = 0.0

    def of(self, user: str) -> Remembered:
        """Return what is known of a user."""
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
        """Return what a request must remember from before it is sent: a later notice makes its answer invalid."""
        return self._connection, known.notices

    def keep(self, known: Remembered, head: Head, stamp: tuple[int, int]) -> None:
        """Remember the answer of a request, unless a newer state is known."""
        with self._guard:
            if known.head is None or head.revision >= known.head.revision:
                if head.texts:
                    head = copy(head)
                    head.texts = {}
                known.head, known.confirmed = head, stamp

    # Called by the watch

    def notice(self, key: str, revision: int | None) -> None:
        """Note that a user was changed, to a revision if it is known."""
        with self._guard:
            known = self._users.get(key)
            if known is None:
                return
            if revision is None:
                known.notices += 1
            else:
                known.noticed = max(known.noticed, revision)

    def trust(self, until: float) -> None:
        """Let reads use known states until a time of the monotonic clock."""
        self._trusted_until = until

    def forget_all(self) -> None:
        """Note that any user may have been changed."""
        self._connection += 1

    def distrust(self) -> None:
        """Let no read use a state that is known now: notices may have been missed."""
        self._trusted_until = 0.0
        self._connection += 1
