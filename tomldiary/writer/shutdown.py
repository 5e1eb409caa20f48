"""What is still going on when the program ends: writers to close, tasks to wait for."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["background_tasks", "fire_and_forget", "remember", "shutdown_all_background_tasks"]

T = TypeVar("T")


class _Writer(Protocol):
    @property
    def is_running(self) -> bool: ...
    def close_sync(self, timeout: float | None = None) -> Any: ...
    async def close(self, timeout: float | None = None) -> Any: ...  # noqa: ASYNC109 - see MemoryWriter
    def after_fork(self) -> None: ...


background_tasks: set[asyncio.Task[Any]] = set()
_writers: weakref.WeakSet[_Writer] = weakref.WeakSet()
_hooks = threading.Lock()


def remember(writer: _Writer) -> None:
    """Close the writer when the interpreter ends, and keep a forked child's apart."""
    _writers.add(writer)
    if not _hooks.acquire(blocking=False):
        return
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_reset_writers)
    # The public atexit comes too late: no thread pool accepts work any more by then. The last one
    # registered is called first, and importing ThreadPoolExecutor has registered its own before.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(_close_writers)


def fire_and_forget(coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
    """Start a task in the running loop and keep it from being garbage collected."""
    task = asyncio.get_running_loop().create_task(coro, name=name)
    background_tasks.add(task)
    task.add_done_callback(background_tasks.discard)
    return task


async def shutdown_all_background_tasks(timeout: float = 30) -> None:  # noqa: ASYNC109 - the ancestor's signature
    """Close all writers and wait for tasks of `fire_and_forget`, at most `timeout` seconds."""
    deadline = time.monotonic() + timeout
    writers = [writer for writer in list(_writers) if writer.is_running]
    await asyncio.gather(*(writer.close(timeout) for writer in writers))
    mine = [task for task in background_tasks if task.get_loop() is asyncio.get_running_loop()]
    if mine:
        _, late = await asyncio.wait(mine, timeout=max(0.0, deadline - time.monotonic()))
        for task in late:
            task.cancel()


def _close_writers() -> None:
    for writer in list(_writers):
        if writer.is_running:
            writer.close_sync()


def _reset_writers() -> None:
    for writer in list(_writers):
        writer.after_fork()
