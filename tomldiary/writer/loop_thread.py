"""An event loop in a thread of its own, for as long as its writer is used."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

from tomldiary.runtime.async_bridge import close_private_loop, note_private_loop

__all__ = ["LoopThread"]


class LoopThread:
    """Runs an event loop until `stop`.

    Args:
        threads: How many blocking calls may run at once.

    Raises:
        RuntimeError: The system gives no thread.
    """

    def __init__(self, threads: int) -> None:
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
        """End the loop soon; callable from any thread."""
        with contextlib.suppress(RuntimeError):  # closed already
            self.loop.call_soon_threadsafe(self.loop.stop)

    def join(self, timeout: float) -> None:
        """Wait for the thread to end."""
        if self.thread is not threading.current_thread():
            self.thread.join(timeout)


def _run(loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor) -> None:
    asyncio.set_event_loop(loop)
    note_private_loop()
    # Plain functions and commits run in these threads; asyncio's own number depends on the machine.
    loop.set_default_executor(pool)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(close_private_loop())
        loop.run_until_complete(loop.shutdown_asyncgens())
        try:
            loop.run_until_complete(loop.shutdown_default_executor())
        except RuntimeError:  # it starts a thread, and the interpreter is ending
            pool.shutdown()
        loop.close()


def _started_pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool whose threads run already: from Python 3.12 on, none starts while the interpreter ends."""
    pool = ThreadPoolExecutor(threads, "tomldiary-writer")
    gate = threading.Barrier(threads)
    try:
        for _ in range(threads):
            pool.submit(gate.wait)
    except RuntimeError:  # the system gives no more; those that run are the pool
        gate.abort()
    return pool
