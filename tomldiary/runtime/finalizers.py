"""Finalizers that touch files: never in an event loop, which may collect an object at any moment."""

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
    """Call a function once its owner is collected: in that thread, or in another if a loop runs there.

    Args:
        owner: The object.
        function: What to call; it must not refer to the owner.
        arguments: What to call it with, likewise.
        at_exit: Whether to call it when the interpreter ends, if it was not called before.
    """
    weakref.finalize(owner, _off_the_loop, function, *arguments).atexit = at_exit


def _off_the_loop(function: Callable[..., object], *arguments: Any) -> None:
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:  # noqa: SLF001 - the other one raises
        with suppress(RuntimeError):  # the interpreter is ending and starts no threads
            # Not a `Thread`: to start one takes locks, which this very thread may be holding.
            _thread.start_new_thread(function, arguments)
            return
    function(*arguments)
