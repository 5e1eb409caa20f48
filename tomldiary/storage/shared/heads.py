"""Caches the newest known state of each user, and watches the database for changes.

A write may begin with a cached state, because its step is applied only if the stored state is still the same.
A read may use a cached state only while a watch confirms it. The thread of a watch receives change notices on a separate
connection. It also sends a request there at regular intervals; the answer arrives after all earlier notices. If the last
answer is too old, or the connection breaks, reads query the database again.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tomldiary.errors import BackendError
from tomldiary.logging import get_logger
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.lru import Recent
from tomldiary.storage.shared.database import LONGEST_TIMEOUT, DatabaseLost, stored_id
from tomldiary.toml.values import checked_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tomldiary.storage.shared.database import Head

_logger = get_logger(__name__)
_CACHED_USERS = 1024
CALM = 8
_PAUSES = 6
_LONGEST_PAUSE = 0.25  # seconds
_LEAST_SILENCE = 0.2  # seconds
_BEATS = 4  # checks of the connection within `silence`
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 30.0  # seconds between two attempts to connect
Stamp = tuple[int, int, int]
"""The number of the watch's connection, and how many notices without a revision and how many states came before."""


@lru_cache(_CACHED_USERS)
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
    quiet_until: float = 0.0
    """The time until which a request may assume that no other process writes; it is in the past after a change."""
    notices: int = 0
    """The number of notices without a revision."""
    noticed: tuple[int, int] = 0, 0
    """The number of the connection that received the newest notice, and the highest revision in its notices."""
    kept: int = 0
    """The number of states that were cached so far."""
    confirmed: Stamp | None = None
    """The stamp of the request that returned the state; see `Heads.stamp`."""

    @property
    def is_alone(self) -> bool:
        """Whether probably only this process writes, so that the next step will find the state unchanged."""
        return self.calm >= CALM

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
        is_noticed = head is not None and (self._connection, head.revision) < known.noticed
        return None if is_noticed else head

    def stamp(self, known: Remembered) -> Stamp:
        """Return a stamp to take before a request; a later notice changes it, which makes the answer invalid."""
        return self._connection, known.notices, known.kept

    def keep(self, known: Remembered, head: Head, stamp: Stamp) -> None:
        """Cache the state that a request returned, unless a newer one is cached.

        A state with a lower revision is the newer one if no other was cached since its request began: the database has
        lost steps, as after a restore.
        """
        with self._guard:
            is_latest = known.head is None or head.revision >= known.head.revision
            if is_latest or stamp[-1] == known.kept:
                known.kept += 1
                known.head, known.confirmed = head, (*stamp[:-1], known.kept)

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
                known.noticed = max(known.noticed, (self._connection, revision))

    def trust(self, until: float) -> None:
        """Allow reads to use cached states until a time of the monotonic clock."""
        self._trusted_until = until

    def distrust(self) -> None:
        """Make all cached states invalid for reads, because notices may have been missed, or any user changed."""
        self._trusted_until = 0.0
        self._connection += 1


Notice = tuple[str, "int | None"]
"""The key of a changed user (see `notice_key`), and the new revision if it is known."""
EVERYTHING = ""
"""The key of a notice that any user may have changed."""


class Listener(Protocol):
    """A connection on which a database sends change notices. Its methods raise `DatabaseLost` if it breaks."""

    def wait(self, seconds: float) -> Sequence[Notice]:
        """Return the next notices, or nothing after `seconds`."""
        ...

    def check(self) -> Sequence[Notice]:
        """Return all notices that were sent before this call, once the database has answered on this connection."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


@runtime_checkable
class Notifies(Protocol):
    """A database that sends change notices."""

    def listen(self) -> Listener:
        """Return a new connection that receives a notice of every step applied from now on, by any process.

        Raises:
            DatabaseLost: The database cannot be reached.
            BackendError: The database does not send notices to this account.
        """
        ...


class Watch:
    """Keeps cached states valid for reads while nothing changes. Thread-safe.

    Args:
        database: Sends the change notices.
        heads: The cached states.
        silence: The time in seconds without an answer after which reads query the database again.

    Raises:
        InvalidValue: `silence` is too short or too long.
    """

    def __init__(self, database: Notifies, heads: Heads, silence: float) -> None:
        expected = f"{_LEAST_SILENCE} to {LONGEST_TIMEOUT:,} seconds, or 0 for no watch"
        checked_number(
            silence, "watch", expected, lambda each: _LEAST_SILENCE <= each <= LONGEST_TIMEOUT
        )
        self._database = database
        self._heads = heads
        self._silence = silence
        self._listener: Listener | None = None
        self._inherited: list[Listener | None] = []
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Reset the watch in a forked child, which must not use the connection of its parent."""
        # It is not closed, because this would end the connection of the parent.
        self._inherited.append(self._listener)
        self._listener = None
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the thread unless it is running."""
        with self._guard:
            if self._thread is None:
                self._closed = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._closed,), name="tomldiary-watch", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Signal the thread to end."""
        self._closed.set()

    def close(self) -> None:
        """End the thread and close its connection; `start` begins a new one."""
        with self._guard:
            self.stop()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(self._silence)
        self._heads.distrust()

    # In the thread

    def _run(self, closed: threading.Event) -> None:
        pause, is_reported = _FIRST_WAIT, False
        while not closed.is_set():
            listener = None
            try:
                listener = self._listener = self._database.listen()
                self._heads.distrust()  # changes before the connection were not noticed
                while not closed.is_set():
                    self._check(listener, closed)
                    pause, is_reported = _FIRST_WAIT, False
            except Exception as error:  # noqa: BLE001 - such as a key of another program that is not UTF-8
                if not (is_reported or closed.is_set()):
                    is_ours = isinstance(error, DatabaseLost | BackendError)
                    _logger.warning(
                        "%s: changes cannot be watched (%s); each read queries the version.",
                        self._database,
                        error if is_ours else type(error).__name__,
                    )
                is_reported = True
            finally:
                self._heads.distrust()
                if listener is not None:
                    listener.close()
            closed.wait(pause)
            pause = min(2 * pause, _LONGEST_WAIT)

    def _check(self, listener: Listener, closed: threading.Event) -> None:
        """Confirm the cached states, then process notices until the next check."""
        begin = time.monotonic()
        self._note(listener.check())
        self._heads.trust(begin + self._silence)
        until = begin + self._silence / _BEATS
        while not closed.is_set() and (left := until - time.monotonic()) > 0:
            self._note(listener.wait(left))

    def _note(self, notices: Sequence[Notice]) -> None:
        for key, revision in notices:
            if key == EVERYTHING:
                self._heads.distrust()
            else:
                self._heads.notice(key, revision)
