"""An event loop in a thread of its own, for as long as its writer is used."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

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
        self.thread = threading.Thread(
            target=_run, args=(self.loop, threads), name="tomldiary-writer", daemon=True
        )
        try:
            self.thread.start()
        except RuntimeError:
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


def _run(loop: asyncio.AbstractEventLoop, threads: int) -> None:
    asyncio.set_event_loop(loop)
    # Plain functions and commits run in these threads; asyncio's own number depends on the machine.
    loop.set_default_executor(ThreadPoolExecutor(threads, "tomldiary-writer"))
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
