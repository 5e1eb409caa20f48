"""Background updates: turns go into a queue at once, and into memory a little later.

Workers run in a thread and event loop of the writer's own, so it serves sync code, `asyncio.run` and
a notebook alike. Turns of one user are applied one after the other in the order they came; different
users are worked on at the same time, and take turns, so that none waits behind a busy one.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections import deque
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.errors import WriterBusy
from tomldiary.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from tomldiary.diary import Diary
    from tomldiary.turns import Applied

__all__ = [
    "MemoryWriter",
    "Receipt",
    "Turn",
    "background_tasks",
    "fire_and_forget",
    "shutdown_all_background_tasks",
]

T = TypeVar("T")

WORKERS = max(8, 2 * (os.cpu_count() or 1))
QUEUE_MAXSIZE = 1000
SHUTDOWN_TIMEOUT = 30
"""Seconds that `close` waits for queued turns."""

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange between a user and an assistant."""

    user_id: str
    session_id: str
    user_msg: str
    assistant_msg: str
    context_now: datetime | None = None
    """When it happened; None is now."""


class Receipt:
    """Tells what became of one submitted turn: `await receipt`, or `receipt.wait(timeout)`."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._future: Future[Applied | None] = Future()

    def __repr__(self) -> str:
        state = "done" if self.is_done else "pending"
        return f"<Receipt {state}>"

    def __await__(self) -> Generator[Any, None, Applied | None]:
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()

    @property
    def is_done(self) -> bool:
        """Whether the turn was applied, or failed for good."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> Applied | None:
        """Block until the turn was applied and return what it did.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Raises:
            TimeoutError: It was not applied in time; it still may be.
            Exception: What the extractor or the storage raised. Nothing was changed.
        """
        return self._future.result(timeout)

    def settle(self, result: Applied | None, error: BaseException | None = None) -> None:
        """Tell everybody who waits; the writer calls this."""
        if self._future.done():
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)


class MemoryWriter:
    """A queue of turns in front of a diary.

    Args:
        diary: Applies the turns.
        workers: Turns worked on at the same time, each of another user.
        qsize: Turns that may wait; then `submit` waits and `submit_nowait` raises.
    """

    def __init__(self, diary: Diary, *, workers: int = WORKERS, qsize: int = QUEUE_MAXSIZE) -> None:
        if workers < 1 or qsize < 1:
            raise ValueError("workers and qsize are at least 1.")
        self.diary = diary
        self._workers = workers
        self._qsize = qsize
        self._state = threading.Condition()
        self._pid = os.getpid()
        self._reset()
        _writers.add(self)
        _install_exit_hook()

    def _reset(self) -> None:
        self._queues: dict[str, deque[Receipt]] = {}
        self._ready: deque[str] = deque()  # users with waiting turns and none in work
        self._room: deque[Future[None]] = deque()  # submitters that wait for room
        self._queued = self._active = 0
        self._submitted = self._completed = self._failed = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<MemoryWriter {self._queued} queued, {self._active} in work>"

    # Taking turns in

    async def submit(
        self,
        user_id: str,
        session_id: str,
        user_msg: str | None = None,
        assistant_msg: str | None = None,
        *,
        context_now: datetime | None = None,
        user_message: str | None = None,
        assistant_response: str | None = None,
    ) -> Receipt:
        """Queue a turn and return its receipt; waits while the queue is full.

        `user_message` and `assistant_response` are other names for the two messages.

        Raises:
            RuntimeError: The writer is closed.
        """
        turn = Turn(
            user_id,
            session_id,
            _one_of("user_msg", user_msg, user_message),
            _one_of("assistant_msg", assistant_msg, assistant_response),
            context_now,
        )
        while True:
            with self._state:
                if self._closed or self._queued < self._qsize:
                    return self._enqueue(turn)
                room: Future[None] = Future()
                self._room.append(room)
            try:
                await asyncio.wrap_future(room)
            except asyncio.CancelledError:
                with self._state:
                    if room in self._room:
                        self._room.remove(room)
                    else:
                        self._make_room()  # pass the place on
                raise

    def submit_nowait(self, turn: Turn) -> Receipt:
        """Queue a turn from sync code and return its receipt at once.

        Raises:
            WriterBusy: The queue is full.
            RuntimeError: The writer is closed.
        """
        with self._state:
            if not self._closed and self._queued >= self._qsize:
                raise WriterBusy(
                    f"{self._queued} turns are waiting already. Try again, or use submit, which waits."
                )
            return self._enqueue(turn)

    def _enqueue(self, turn: Turn) -> Receipt:
        """Queue a turn; the caller holds the state."""
        if self._pid != os.getpid():
            # A forked child has its parent's counters but not its threads or its turns.
            self._pid = os.getpid()
            self._reset()
        if self._closed:
            raise RuntimeError("MemoryWriter is closed")
        receipt = Receipt(turn)
        queue = self._queues.get(turn.user_id)
        if queue is None:
            self._queues[turn.user_id] = deque([receipt])
            self._ready.append(turn.user_id)
        else:
            queue.append(receipt)
        self._queued += 1
        self._submitted += 1
        self._start().call_soon_threadsafe(self._dispatch)
        return receipt

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_run_loop, args=(self._loop,), name="tomldiary-writer", daemon=True
            )
            self._thread.start()
        return self._loop

    def _make_room(self) -> None:
        while self._room and self._queued < self._qsize:
            waiting = self._room.popleft()
            if waiting.set_running_or_notify_cancel():
                waiting.set_result(None)
                return

    # Working them off, in the writer's own loop

    def _dispatch(self) -> None:
        with self._state:
            while self._ready and self._active < self._workers:
                user = self._ready.popleft()
                receipt = self._queues[user].popleft()
                self._queued -= 1
                self._active += 1
                self._make_room()
                task = asyncio.get_running_loop().create_task(self._process(user, receipt))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _process(self, user: str, receipt: Receipt) -> None:
        result: Applied | None = None
        error: BaseException | None = None
        try:
            result = await self._apply(receipt.turn)
        except BaseException as caught:
            error = caught
            _logger.exception("a turn could not be applied: %s", type(caught).__name__)
            _logger.debug("why a turn could not be applied", exc_info=caught)
        with self._state:
            self._active -= 1
            if error is None:
                self._completed += 1
            else:
                self._failed += 1
            if self._queues[user]:
                self._ready.append(user)  # behind the others: nobody waits for a busy user
            else:
                del self._queues[user]
            self._state.notify_all()
        if isinstance(error, asyncio.CancelledError):
            error = FutureCancelled("the writer was closed before this turn was applied")
        receipt.settle(result, error)
        self._dispatch()

    async def _apply(self, turn: Turn) -> Applied | None:
        from tomldiary.diary import Diary  # noqa: PLC0415 - the diary module is not needed to import this one

        if isinstance(self.diary, Diary) and type(self.diary).update_memory is Diary.update_memory:  # pyright: ignore[reportUnnecessaryIsInstance]
            return await self.diary.process_turn(
                turn.user_id, turn.session_id, turn.user_msg, turn.assistant_msg,
                now=turn.context_now,
            )  # fmt: skip
        await self.diary.update_memory(
            turn.user_id, turn.session_id, turn.user_msg, turn.assistant_msg,
            context_now=turn.context_now,
        )  # fmt: skip
        return None

    # Looking, waiting, closing

    @property
    def is_running(self) -> bool:
        """Whether turns are accepted."""
        return not self._closed

    def stats(self) -> dict[str, int | float | bool]:
        """Return counters taken at one moment: submitted = completed + failed + pending."""
        with self._state:
            finished = self._completed + self._failed
            return {
                "queue_size": self._queued,
                "queue_capacity": self._qsize,
                "queue_utilization": self._queued / self._qsize,
                "total_workers": self._workers,
                "active_workers": self._active,
                "idle_workers": self._workers - self._active,
                "submitted": self._submitted,
                "completed": self._completed,
                "failed": self._failed,
                "pending": self._queued + self._active,
                "error_rate": self._failed / finished if finished else 0.0,
                "is_running": not self._closed,
            }

    def flush(self, timeout: float | None = None) -> bool:
        """Block until no turn is queued or in work; False if `timeout` seconds were not enough."""
        with self._state:
            return self._state.wait_for(lambda: self._queued + self._active == 0, timeout)

    async def aflush(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the twin of flush
        """Wait like `flush` without holding the event loop."""
        return await asyncio.to_thread(self.flush, timeout)

    def close_sync(self, timeout: float | None = None) -> dict[str, int | float | bool]:
        """Take no more turns, finish those that wait, and return the final counters.

        Args:
            timeout: Seconds to wait; None is `SHUTDOWN_TIMEOUT`. What is not done by then is
                cancelled, counted as failed, and its receipt says so.
        """
        with self._state:
            self._closed = True
            while self._room:
                waiting = self._room.popleft()
                if waiting.set_running_or_notify_cancel():
                    waiting.set_result(None)  # it finds the writer closed
        deadline = time.monotonic() + (SHUTDOWN_TIMEOUT if timeout is None else timeout)
        if not self.flush(max(0.0, deadline - time.monotonic())):
            self._abandon()
        self._stop()
        return self.stats()

    async def close(self, timeout: float | None = None) -> dict[str, int | float | bool]:  # noqa: ASYNC109 - the twin of close_sync
        """Close like `close_sync` without holding the event loop."""
        return await asyncio.to_thread(self.close_sync, timeout)

    def _abandon(self) -> None:
        with self._state:
            left = [receipt for queue in self._queues.values() for receipt in queue]
            for queue in self._queues.values():
                queue.clear()
            self._ready.clear()
            self._queued = 0
            self._failed += len(left)
            loop = self._loop
        if left:
            _logger.error("the writer was closed with %d turns not applied", len(left))
        for receipt in left:
            receipt.settle(
                None, FutureCancelled("the writer was closed before this turn was applied")
            )
        if loop is not None:
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])
        self.flush(1.0)

    def _stop(self) -> None:
        with self._state:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None and thread is not threading.current_thread():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, and wait for what is queued."""
        self.close_sync()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, and wait for what is queued."""
        await self.close()


def _one_of(name: str, first: str | None, second: str | None) -> str:
    chosen = first if first is not None else second
    if chosen is None:
        raise TypeError(f"submit() needs {name}.")
    return chosen


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


# What is still going on when the program ends

background_tasks: set[asyncio.Task[Any]] = set()
_writers: weakref.WeakSet[MemoryWriter] = weakref.WeakSet()
_exit_hook = threading.Lock()


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
        if writer.is_running and writer.stats()["pending"]:
            writer.close_sync()


def _install_exit_hook() -> None:
    """Finish queued turns when the interpreter ends: before it takes worker threads away."""
    if not _exit_hook.acquire(blocking=False):
        return
    # The public atexit comes too late: no thread pool accepts work any more by then.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(_close_writers)
