"""Background updates: turns go into a queue at once, and into memory a little later.

Workers run in a thread and event loop of the writer's own, so it serves sync code, `asyncio.run` and
a notebook alike. Turns of one user are applied one after the other in the order they came; different
users are worked on at the same time, and take turns, so that none waits behind a busy one.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
import time
import weakref
from collections import deque
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.errors import WriterBusy
from tomldiary.logging import get_logger
from tomldiary.receipts import Receipt, Turn

if TYPE_CHECKING:
    from collections.abc import Coroutine
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
_GRACE = 1.0  # seconds that a cancelled turn has to end

_logger = get_logger(__name__)


class MemoryWriter:
    """A queue of turns in front of a diary.

    A turn runs in the context variables that the writer was made in, never in those of a request.

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
        self._context = contextvars.copy_context()
        self._closed = False
        self._reset()
        _writers.add(self)
        _install_hooks()

    def _reset(self) -> None:
        self._state = threading.Condition()
        self._queues: dict[str, deque[Receipt]] = {}
        self._ready: deque[str] = deque()  # users with waiting turns and none in work
        self._working: dict[Receipt, asyncio.Task[None]] = {}
        # Submitters that wait for room; there are none unless the queue is full.
        self._line: deque[tuple[Receipt, Future[None]]] = deque()
        self._queued = 0
        self._submitted = self._completed = self._failed = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def after_fork(self) -> None:
        """Start afresh in a forked child: it has its parent's counters, but not its threads or turns."""
        self._reset()

    def __repr__(self) -> str:
        return f"<MemoryWriter {self._queued} queued, {len(self._working)} in work>"

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
        """Queue a turn and return its receipt; waits in line while the queue is full.

        Cancelling a `submit` that waits takes the turn back, unless it is being applied already.
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
        receipt = Receipt(turn)
        with self._state:
            if self._closed or self._queued < self._qsize:
                return self._enqueue(receipt)
            room: Future[None] = Future()
            self._line.append((receipt, room))
        try:
            # Whoever makes room queues the turn as well: woken first and asked to queue it himself,
            # its submitter could be overtaken.
            await asyncio.wrap_future(room)
        except asyncio.CancelledError:
            self._take_back(receipt, room)
            raise
        return receipt

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
            return self._enqueue(Receipt(turn))

    def _enqueue(self, receipt: Receipt) -> Receipt:
        """Queue a turn; the caller holds the state."""
        if self._closed:
            raise RuntimeError(_CLOSED)
        loop = self._start()  # first: without a thread, nothing may be counted as queued
        user = receipt.turn.user_id
        queue = self._queues.get(user)
        if queue is None:
            self._queues[user] = deque([receipt])
            self._ready.append(user)
        else:
            queue.append(receipt)
        self._queued += 1
        self._submitted += 1
        loop.call_soon_threadsafe(self._dispatch)
        return receipt

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=_run_loop, args=(loop, self._workers), name="tomldiary-writer", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                loop.close()
                raise
            self._loop, self._thread = loop, thread
            # A writer that is dropped without being closed leaves no thread behind.
            weakref.finalize(self, _stop_loop, loop).atexit = False
        return self._loop

    def _make_room(self) -> None:
        """Queue the turns of those who wait in line; the caller holds the state."""
        while self._line and self._queued < self._qsize:
            receipt, room = self._line.popleft()
            if room.set_running_or_notify_cancel():
                self._enqueue(receipt)
                room.set_result(None)

    def _take_back(self, receipt: Receipt, room: Future[None]) -> None:
        user = receipt.turn.user_id
        with self._state:
            if (receipt, room) in self._line:
                self._line.remove((receipt, room))
                return
            queue = self._queues.get(user)
            if queue is None or receipt not in queue:
                return
            queue.remove(receipt)
            if not queue and user in self._ready:
                self._ready.remove(user)
                del self._queues[user]
            self._queued -= 1
            self._submitted -= 1
            self._make_room()
            self._state.notify_all()

    # Working them off, in the writer's own loop

    def _dispatch(self) -> None:
        with self._state:
            while self._ready and len(self._working) < self._workers:
                user = self._ready.popleft()
                receipt = self._queues[user].popleft()
                self._queued -= 1
                self._working[receipt] = asyncio.get_running_loop().create_task(
                    self._process(user, receipt), context=self._context.copy()
                )
                self._make_room()

    async def _process(self, user: str, receipt: Receipt) -> None:
        result: Applied | None = None
        error: BaseException | None = None
        try:
            result = await self._apply(receipt.turn)
        except BaseException as caught:
            error = caught
            # What went wrong may quote the conversation: details are for who asks for them.
            _logger.error("a turn could not be applied: %s", type(caught).__name__)  # noqa: TRY400
            _logger.debug("why a turn could not be applied", exc_info=caught)
        if isinstance(error, asyncio.CancelledError | FutureCancelled):
            # As it is, it would look as if who awaits the receipt was cancelled.
            error = RuntimeError(_LEFT if self._closed else "this turn was cancelled")
        with self._state:
            if self._working.pop(receipt, None) is None:
                return  # `close` has given it up
            if error is None:
                self._completed += 1
            else:
                self._failed += 1
            if self._queues[user]:
                self._ready.append(user)  # behind the others: nobody waits for a busy user
            else:
                del self._queues[user]
            receipt.settle(result, error)
            self._state.notify_all()
        self._dispatch()

    async def _apply(self, turn: Turn) -> Applied | None:
        from tomldiary.diary import Diary  # noqa: PLC0415 - the diary module is not needed to import this one

        # Anything with `update_memory` will do, and one that was overridden is honoured.
        if getattr(self.diary.update_memory, "__func__", None) is Diary.update_memory:
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
            active = len(self._working)
            return {
                "queue_size": self._queued,
                "queue_capacity": self._qsize,
                "queue_utilization": self._queued / self._qsize,
                "total_workers": self._workers,
                "active_workers": active,
                "idle_workers": self._workers - active,
                "submitted": self._submitted,
                "completed": self._completed,
                "failed": self._failed,
                "pending": self._queued + active,
                "error_rate": self._failed / finished if finished else 0.0,
                "is_running": not self._closed,
            }

    def flush(self, timeout: float | None = None) -> bool:
        """Block until no turn is queued or in work; False if `timeout` seconds were not enough."""
        with self._state:
            return self._state.wait_for(lambda: not self._queued and not self._working, timeout)

    async def aflush(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the twin of flush
        """Wait like `flush` without holding the event loop."""
        return await asyncio.to_thread(self.flush, timeout)

    def close_sync(self, timeout: float | None = None) -> dict[str, int | float | bool]:
        """Take no more turns, finish those that wait, and return the final counters.

        Args:
            timeout: Seconds to wait; None is `SHUTDOWN_TIMEOUT`. What is not done by then is
                cancelled and counted as failed, and its receipt raises a RuntimeError.
        """
        with self._state:
            self._closed = True
            while self._line:
                _, room = self._line.popleft()
                if room.set_running_or_notify_cancel():
                    room.set_exception(RuntimeError(_CLOSED))
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
            queued = [receipt for queue in self._queues.values() for receipt in queue]
            for queue in self._queues.values():
                queue.clear()
            self._ready.clear()
            self._queued = 0
            loop, tasks = self._loop, list(self._working.values())
            self._give_up(queued)
        _logger.error("the writer was closed with %d turns not applied", len(queued) + len(tasks))
        if loop is not None:
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        self.flush(_GRACE)
        with self._state:
            stubborn = list(self._working)  # these do not let themselves be cancelled
            self._working.clear()
            self._give_up(stubborn)

    def _give_up(self, receipts: list[Receipt]) -> None:
        self._failed += len(receipts)
        for receipt in receipts:
            receipt.settle(None, RuntimeError(_LEFT))
        self._state.notify_all()

    def _stop(self) -> None:
        with self._state:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None and thread is not threading.current_thread():
            _stop_loop(loop)
            thread.join(_GRACE)

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


_CLOSED = "MemoryWriter is closed"
_LEFT = "the writer was closed before this turn was finished"


def _run_loop(loop: asyncio.AbstractEventLoop, workers: int) -> None:
    asyncio.set_event_loop(loop)
    # Plain functions and commits run in these threads; asyncio's own number depends on the machine.
    loop.set_default_executor(ThreadPoolExecutor(max(32, workers), "tomldiary-writer"))
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _stop_loop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # closed already
        loop.call_soon_threadsafe(loop.stop)


# What is still going on when the program ends

background_tasks: set[asyncio.Task[Any]] = set()
_writers: weakref.WeakSet[MemoryWriter] = weakref.WeakSet()
_hooks = threading.Lock()


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


def _reset_writers() -> None:
    for writer in list(_writers):
        writer.after_fork()


def _install_hooks() -> None:
    """Finish queued turns when the interpreter ends, and keep forked children apart."""
    if not _hooks.acquire(blocking=False):
        return
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_reset_writers)
    # The public atexit comes too late: no thread pool accepts work any more by then. The last one
    # registered is called first, and importing ThreadPoolExecutor has registered its own before.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(_close_writers)
