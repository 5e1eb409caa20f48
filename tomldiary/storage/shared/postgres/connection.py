"""Connections that time out if a server accepts a statement and does not answer, and their pool."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import psycopg
from psycopg_pool import ConnectionPool

if TYPE_CHECKING:
    from collections.abc import Generator

R = TypeVar("R")
# Seconds to cancel a statement, which would otherwise occupy a connection of the server, and the part of the time limit.
_CANCELLING, _PART = 2.0, 0.2


class Bounded(psycopg.Connection[Any]):
    """A connection that raises `psycopg.OperationalError` if the server does not answer in time."""

    seconds: ClassVar[float]
    failure: ClassVar[psycopg.Error | None] = None
    """Why the last attempt to connect failed, which a pool hides; None if it succeeded."""

    @classmethod
    def connect(cls, *args: Any, **options: Any) -> Self:
        """Connect; disable prepared statements if there is a pooler between the client and the server.

        With a pooler, the next statement may run on another connection of the server. There, a prepared name is
        unknown, or names a statement of another client. A pooler is detected by its invented process ids.
        """
        try:
            made = super().connect(*args, **options)
            found = made.execute("SELECT pg_backend_pid()").fetchone()
        except psycopg.Error as error:
            cls.failure = error.with_traceback(None)
            raise
        cls.failure = None
        # Under another default, what a statement sees after a lock is older than the lock.
        made.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        if found != (made.info.backend_pid,):
            made.prepare_threshold = None
        return made

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """Wait like psycopg, but only as long as something arrives or is sent in time."""
        try:
            return super().wait(_bounded(gen, self.seconds), *args, **options)
        except TimeoutError:
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=min(_CANCELLING, _PART * self.seconds))
            self.close()
            raise psycopg.OperationalError(
                f"no answer within {self.seconds:g} seconds; is a table locked, a replica away, or a pooler full?"
            ) from None


class Pool(ConnectionPool[psycopg.Connection[Any]]):
    """A pool that does not delay the end of the process if nothing has closed it."""

    _is_ending = staticmethod(sys.is_finalizing)  # module names may be gone by then

    def __del__(self) -> None:
        """Stop the threads, unless the interpreter ends: since Python 3.13 that would take 5 seconds for each."""
        if not self._is_ending():
            super().__del__()


def connection_class(seconds: float) -> type[Bounded]:
    """Return a class of connections with a time limit of `seconds`, for one pool."""
    return type("Bounded", (Bounded,), {"seconds": seconds})


def _bounded(waiting: Generator[Any, Any, R], seconds: float) -> Generator[Any, Any, R]:
    """Wait for a connection as psycopg does, which reports every 0.1 seconds whether data has arrived.

    Raises:
        TimeoutError: Nothing was received or sent for `seconds`.
    """
    deadline = time.monotonic() + seconds
    ready = None  # starts the generator
    while True:
        try:
            wanted = waiting.send(ready)
        except StopIteration as end:
            return end.value
        ready = yield wanted
        if ready:
            deadline = time.monotonic() + seconds
        elif time.monotonic() > deadline:
            raise TimeoutError
