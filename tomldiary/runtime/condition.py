"""A condition variable whose lock an interrupt cannot leave locked."""

from __future__ import annotations

import threading
from operator import attrgetter
from typing import TYPE_CHECKING


class InterruptibleCondition(threading.Condition):
    """A condition for methods that the main thread calls, in which Ctrl-C raises an error between any two steps.

    `Condition` enters and leaves a `with` block by functions in Python. An error raised at the end of the first or at
    the start of the second one leaves the lock locked, and all other threads wait for ever. Here the `with` statement
    calls the lock itself, which no error interrupts.
    """

    def __init__(self) -> None:
        self._inner = threading.RLock()
        super().__init__(self._inner)

    if not TYPE_CHECKING:  # for a type checker these are the methods of `Condition`
        __enter__ = property(attrgetter("_inner.__enter__"))
        __exit__ = property(attrgetter("_inner.__exit__"))
