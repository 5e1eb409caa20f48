"""Finalizers for file work, which never run in the thread of an event loop.

The garbage collector can run a finalizer at any time, also in such a thread.
"""

from __future__ import annotations

import _thread
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["finalize"]


def finalize(
    owner: object, function: Callable[..., object], *arguments: Any, at_exit: bool = True
) -> None:
    """Call a function after its owner is collected; in a new thread if the current one runs an event loop.

    Args:
        owner: The object.
        function: The function to call; it must not refer to the owner.
        arguments: Its arguments; they must not refer to the owner.
        at_exit: Whether to call it when the interpreter exits, if it was not called before.
    """
    weakref.finalize(owner, _off_the_loop, function, *arguments).atexit = at_exit


def _off_the_loop(function: Callable[..., object], *arguments: Any) -> None:
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public function raises
        with suppress(RuntimeError):  # the interpreter is shutting down and starts no threads
            # Not a `Thread`: its start acquires locks that the current thread may already hold.
            _thread.start_new_thread(function, arguments)
            return
    function(*arguments)
