"""Watches a database for changes, so that reads can use the cached states of unchanged users.

A thread receives change notices on a separate connection. It also sends a request there at regular intervals; the
answer arrives after all earlier notices. If the last answer is too old, or the connection breaks, reads query the
database again.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tomldiary.errors import BackendError
from tomldiary.logging import get_logger
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.storage.shared.database import DatabaseLost
from tomldiary.toml.values import checked_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tomldiary.storage.shared.heads import Heads

__all__ = ["EVERYTHING", "Listener", "Notice", "Notifies", "Watch"]

_logger = get_logger(__name__)
_LEAST = 0.2  # seconds
_BEATS = 4  # checks of the connection within `silence`
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0  # seconds between two attempts to connect

Notice = tuple[str, "int | None"]
"""The key of a changed user (see `heads.notice_key`), and the new revision if it is known."""
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
        InvalidValue: `silence` is too short.
    """

    def __init__(self, database: Notifies, heads: Heads, silence: float) -> None:
        expected = f"at least {_LEAST} seconds, or 0 for no watch"
        checked_number(silence, "watch", expected, lambda each: each >= _LEAST)
        self._database = database
        self._heads = heads
        self._silence = silence
        self._listener: Listener | None = None
        self._inherited: list[Listener] = []
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Reset the watch in a forked child, which must not use the connection of its parent."""
        if self._listener is not None:
            # It is not closed, because this would end the connection of the parent.
            self._inherited.append(self._listener)
        self._listener = None
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the thread unless it is running."""
        if self._thread is not None:
            return
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
        pause, is_reported = _FIRST_PAUSE, False
        while not closed.is_set():
            listener = None
            try:
                listener = self._listener = self._database.listen()
                self._heads.distrust()  # changes before the connection were not noticed
                while not closed.is_set():
                    self._check(listener, closed)
                    pause, is_reported = _FIRST_PAUSE, False
            except (DatabaseLost, BackendError) as error:
                if not (is_reported or closed.is_set()):
                    _logger.warning(
                        "%s: changes cannot be watched (%s); each read queries the version.",
                        self._database,
                        error,
                    )
                is_reported = True
            finally:
                self._heads.distrust()
                if listener is not None:
                    listener.close()
                    self._listener = None
            closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _check(self, listener: Listener, closed: threading.Event) -> None:
        """Confirm the cached states, then process notices until the next check."""
        begin = time.monotonic()
        self._note(listener.check())
        if not closed.is_set():
            self._heads.trust(begin + self._silence)
        until = begin + self._silence / _BEATS
        while not closed.is_set() and (left := until - time.monotonic()) > 0:
            self._note(listener.wait(left))

    def _note(self, notices: Sequence[Notice]) -> None:
        for key, revision in notices:
            if key == EVERYTHING:
                self._heads.forget_all()
            else:
                self._heads.notice(key, revision)
