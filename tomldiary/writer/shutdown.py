"""Shutdown of writers and background tasks."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tomldiary.writer.writer import MemoryWriter

T = TypeVar("T")


background_tasks: set[asyncio.Task[Any]] = set()
_writers: weakref.WeakSet[MemoryWriter] = weakref.WeakSet()
_first: list[Callable[[], None]] = []
_open_runs: list[Callable[[MemoryWriter], bool]] = []
_closing: set[asyncio.Task[Any] | None] = set()
"""The tasks in which `shutdown_all_background_tasks` runs."""
_hooks = threading.Lock()
_ENDING = 1.0  # seconds in which cancelled tasks may end
_PAUSE, _PAUSES = 0.01, 100  # seconds between two looks at open runs, and their number


def close_at_exit(writer: MemoryWriter) -> None:
    """Close the writer when the interpreter ends; after a fork, reset the child's copy."""
    _writers.add(writer)
    if not _hooks.acquire(blocking=False):
        return
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_reset_writers)
    # `atexit` runs too late, because thread pools accept no work by then. These hooks run in reverse order, so this
    # one runs before the hook that the import of ThreadPoolExecutor registered.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(close_writers)


def before_writers_close(hook: Callable[[], None]) -> None:
    """Call a function when the interpreter ends, before the writers are closed."""
    _first.append(hook)


def await_open_runs(has_open_runs: Callable[[MemoryWriter], bool]) -> None:
    """Before a writer closes, end its open runs of an adapter, while `has_open_runs` returns True for the writer."""
    _open_runs.append(has_open_runs)


def end_open_runs(
    writer: MemoryWriter, loop: asyncio.AbstractEventLoop | None, timeout: float
) -> None:
    """End the runs of a closing writer whose stream is garbage, and wait for the other ones.

    Web frameworks leave a stream in a reference cycle, which lasts until a collection. Web servers cancel requests and
    close the writer at the same time.

    Args:
        writer: The writer.
        loop: The event loop that closes the writer; None waits for no run.
        timeout: The maximum time in seconds. A second is enough, unless a sync stream that ends blocks the loop.
    """
    deadline = time.monotonic() + timeout
    if _are_runs_open(writer):
        gc.collect()  # before the pauses, in which async streams end
    if loop is None:
        return
    for _ in range(_PAUSES):
        left = deadline - time.monotonic()
        if left <= 0 or not _are_runs_open(writer) or not loop.is_running():
            return
        has_run = threading.Event()
        with suppress(RuntimeError):  # the loop was closed just now
            loop.call_soon_threadsafe(has_run.set)
            has_run.wait(left)
        time.sleep(_PAUSE)
    gc.collect()  # sync streams that were left meanwhile


def _are_runs_open(writer: MemoryWriter) -> bool:
    """Return whether a run is open whose turn the writer can still get."""
    return writer.is_running and any(has_open_runs(writer) for has_open_runs in _open_runs)


def fire_and_forget(coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
    """Start a task in the running loop, and keep a reference until it is done."""
    task = asyncio.get_running_loop().create_task(coro, name=name)
    background_tasks.add(task)
    task.add_done_callback(background_tasks.discard)
    return task


async def shutdown_all_background_tasks(timeout: float = 30) -> None:  # noqa: ASYNC109 - the ancestor's signature
    """Close all writers and wait for the tasks of `fire_and_forget`, at most `timeout` seconds.

    Tasks that are late are cancelled, and get a second to end.
    """
    deadline = time.monotonic() + timeout
    loop, current = asyncio.get_running_loop(), asyncio.current_task()
    # Handlers of signals may run this in such tasks, which must not wait for themselves or each other.
    _closing.add(current)
    try:
        writers = [writer for writer in list(_writers) if writer.is_running]
        await asyncio.gather(*(writer.close(timeout) for writer in writers))
        # A copy, because other threads may start tasks in their loops.
        mine = [task for task in list(background_tasks) if task.get_loop() is loop]
        mine = [task for task in mine if task not in _closing]
        if mine:
            _, late = await asyncio.wait(mine, timeout=max(0.0, deadline - time.monotonic()))
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=_ENDING)
    finally:
        _closing.discard(current)


def close_writers() -> None:
    """Close all writers, as at the end of the program; a writer that another thread closes is waited for.

    Raises:
        Exception: The last error of a writer, such as that of a log handler. The other writers are closed.
    """
    for hook in _first:
        hook()
    failed: Exception | None = None
    for writer in list(_writers):
        try:
            if not writer.has_ended:
                writer.close_sync()
        except Exception as error:  # noqa: BLE001 - raised below
            failed = error
    if failed is not None:
        raise failed


def _reset_writers() -> None:
    for writer in list(_writers):
        writer.after_fork()
