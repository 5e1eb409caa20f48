"""Sync and async forms of one method, written once.

The core is synchronous: an async twin runs the sync method in a worker thread, so an event loop is
never held. The other way round, a coroutine called from sync code runs on one private event loop
thread, which also works where a loop is running already, as in a notebook.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["async_twin", "run_coroutine"]

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def async_twin(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Return the coroutine form of a blocking method; it takes the same arguments."""

    @functools.wraps(method)
    async def twin(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    twin.__name__ = f"a{method.__name__}"
    twin.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.a{method.__name__}"
    first_line = (method.__doc__ or "").partition("\n")[0]
    twin.__doc__ = f"{first_line}\n\nThe coroutine form of `{method.__name__}`."
    return twin


class _PrivateLoop:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(
            target=self.loop.run_forever, name="tomldiary-sync", daemon=True
        )
        self.thread.start()


_guard = threading.Lock()
_private: dict[int, _PrivateLoop] = {}


def run_coroutine(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end from sync code, whether or not a loop runs in this thread."""
    import os  # noqa: PLC0415 - only here

    with _guard:
        private = _private.get(os.getpid())
        if private is None:
            _private.clear()  # a forked child has no use for its parent's threads
            private = _private.setdefault(os.getpid(), _PrivateLoop())
    if threading.current_thread() is private.thread:
        work.close()
        raise RuntimeError(
            "a blocking call was made from an extractor. Use the coroutine form (with an a in front)."
        )
    return asyncio.run_coroutine_threadsafe(work, private.loop).result()
