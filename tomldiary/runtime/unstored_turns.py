"""A registry of the queues of this process, whose turns an erasure waits for until they are stored."""

from __future__ import annotations

import threading
import time
from typing import Protocol
from weakref import WeakSet

from tomldiary.runtime.fork_safety import emptied_in_child, fork_safe


class Storing(Protocol):
    """A queue that stores turns after their submission has returned."""

    def stores_in(self, backend: object) -> bool:
        """Return whether a backend has the turns of this queue."""
        ...

    def await_stored(self, user: str, timeout: float) -> bool:
        """Wait until the turns that a user has now are stored; return False after `timeout` seconds."""
        ...


_queues: WeakSet[Storing] = emptied_in_child(WeakSet())  # the parent stores the turns of its queues
_guard = fork_safe(threading.Lock())


def awaited_by_erasures(queue: Storing) -> None:
    """Register a queue until it is garbage-collected."""
    with _guard:
        _queues.add(queue)


def await_stored(backend: object, user: str, timeout: float) -> bool:
    """Wait until the queues of a backend have stored the turns of a user, so that an erasure finds their texts.

    Return False if a turn is not stored after `timeout` seconds.
    """
    with _guard:
        queues = [each for each in _queues if each.stores_in(backend)]
    deadline = time.monotonic() + timeout
    return all(queue.await_stored(user, max(0.0, deadline - time.monotonic())) for queue in queues)
