"""A registry of the queues of this process, whose turns an erasure waits for until they are stored."""

from __future__ import annotations

import threading
import time
from typing import Protocol
from weakref import WeakSet

from tomldiary.runtime.fork_safety import renew_after_fork


class Storing(Protocol):
    """A queue that stores turns after their submission has returned."""

    def stores_in(self, backend: object) -> bool:
        """Return whether a backend has the turns of this queue."""
        ...

    def await_stored(self, user: str, timeout: float) -> bool:
        """Wait until the turns that a user has now are stored; return False after `timeout` seconds."""
        ...


class _Queues:
    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drop the queues of a parent process, whose threads store their turns there."""
        self.guard = threading.Lock()
        self.open: WeakSet[Storing] = WeakSet()


_queues = _Queues()


def awaited_by_erasures(queue: Storing) -> None:
    """Register a queue until it is garbage-collected."""
    with _queues.guard:
        _queues.open.add(queue)


def await_stored(backend: object, user: str, timeout: float) -> bool:
    """Wait until the queues of a backend have stored the turns of a user, so that an erasure finds their texts.

    Return False if a turn is not stored after `timeout` seconds.
    """
    with _queues.guard:
        queues = [each for each in _queues.open if each.stores_in(backend)]
    deadline = time.monotonic() + timeout
    return all(queue.await_stored(user, max(0.0, deadline - time.monotonic())) for queue in queues)
