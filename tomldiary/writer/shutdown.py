"""Shutdown of writers and background tasks, and the event loop threads of the writers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.runtime.async_bridge import close_private_loop, needs_threads, note_private_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tomldiary.writer.writer import MemoryWriter

__all__ = [
    "LoopThread",
    "background_tasks",
    "before_writers_close",
    "close_at_exit",
    "fire_and_forget",
    "shutdown_all_background_tasks",
]

T = TypeVar("T")


background_tasks: set[asyncio.Task[Any]] = set()
_writers: weakref.WeakSet[MemoryWriter] = weakref.WeakSet()
_first: list[Callable[[], None]] = []
_hooks = threading.Lock()


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
        register(_close_writers)


def before_writers_close(hook: Callable[[], None]) -> None:
    """Call a function when the interpreter ends, before the writers are closed."""
    _first.append(hook)


def fire_and_forget(coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
    """Start a task in the running loop, and keep a reference until it is done."""
    task = asyncio.get_running_loop().create_task(coro, name=name)
    background_tasks.add(task)
    task.add_done_callback(background_tasks.discard)
    return task


async def shutdown_all_background_tasks(timeout: float = 30) -> None:  # noqa: ASYNC109 - the ancestor's signature
    """Close all writers and wait for the tasks of `fire_and_forget`, at most `timeout` seconds."""
    deadline = time.monotonic() + timeout
    writers = [writer for writer in list(_writers) if writer.is_running]
    await asyncio.gather(*(writer.close(timeout) for writer in writers))
    loop = asyncio.get_running_loop()
    # A copy, because other threads may start tasks in their loops.
    mine = [task for task in list(background_tasks) if task.get_loop() is loop]
    if mine:
        _, late = await asyncio.wait(mine, timeout=max(0.0, deadline - time.monotonic()))
        for task in late:
            task.cancel()


def _close_writers() -> None:
    for hook in _first:
        hook()
    for writer in list(_writers):
        if writer.is_running:
            writer.close_sync()


def _reset_writers() -> None:
    for writer in list(_writers):
        writer.after_fork()


# Event loop threads


class LoopThread:
    """An event loop in its own thread; it runs until `stop`.

    Args:
        threads: The maximum number of concurrent blocking calls.

    Raises:
        RuntimeError: The system has no thread left, or threads are greenlets.
    """

    def __init__(self, threads: int) -> None:
        needs_threads()
        self.loop = asyncio.new_event_loop()
        pool = _started_pool(threads)
        self.thread = threading.Thread(
            target=_run, args=(self.loop, pool), name="tomldiary-writer", daemon=True
        )
        try:
            self.thread.start()
        except RuntimeError:
            pool.shutdown(wait=False)
            self.loop.close()
            raise

    def stop(self) -> None:
        """Schedule the loop to stop; callable from any thread."""
        with contextlib.suppress(RuntimeError):  # closed already
            self.loop.call_soon_threadsafe(self.loop.stop)

    def join(self, timeout: float) -> None:
        """Wait for the thread to end."""
        if self.thread is not threading.current_thread():
            self.thread.join(timeout)


def _run(loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor) -> None:
    asyncio.set_event_loop(loop)
    note_private_loop()
    # Plain functions and commits run in these threads; asyncio's default number depends on the CPU count.
    loop.set_default_executor(pool)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(close_private_loop())
        loop.run_until_complete(loop.shutdown_asyncgens())
        try:
            loop.run_until_complete(loop.shutdown_default_executor())
        except RuntimeError:  # the call would start a thread while the interpreter ends
            pool.shutdown()
        loop.close()


def _started_pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool with running threads, because since Python 3.12 none can start while the interpreter ends."""
    pool = ThreadPoolExecutor(threads, "tomldiary-writer")
    gate = threading.Barrier(threads)
    try:
        for _ in range(threads):
            pool.submit(gate.wait)
    except RuntimeError:  # the system has no thread left; the pool keeps the running ones
        gate.abort()
    return pool
