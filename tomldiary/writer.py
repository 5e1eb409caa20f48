"""Background updates: turns go to disk at once, and into memory a little later.

A turn is in the writer's journal when `submit` returns, so a killed process loses none: the next writer
of the same diary takes the journal over. Turns of one user are applied one after the other in the order they
came, each exactly once; different users are worked on at the same time, and take turns, so that none
waits behind a busy or failing one. Workers run in a thread and event loop of the writer's own, so it
serves sync code, `asyncio.run` and a notebook alike.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import os
import secrets
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from tomldiary.errors import Conflict, WriterBusy
from tomldiary.logging import get_logger
from tomldiary.models import timestamp
from tomldiary.receipts import Receipt, Turn
from tomldiary.writing.exit import (
    background_tasks,
    fire_and_forget,
    remember,
    shutdown_all_background_tasks,
)
from tomldiary.writing.figures import Figures, Health, health_of, prometheus_text
from tomldiary.writing.job import Job
from tomldiary.writing.options import Options
from tomldiary.writing.retrying import Breaker, RetryPolicy
from tomldiary.writing.telemetry import Telemetry
from tomldiary.writing.workers import Workers

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from tomldiary.backends.base import Backend
    from tomldiary.diary import Diary
    from tomldiary.receipts import TurnStatus
    from tomldiary.writing.intake import Intake
    from tomldiary.writing.loop_thread import LoopThread

__all__ = [
    "Health",
    "MemoryWriter",
    "Receipt",
    "RetryPolicy",
    "Turn",
    "background_tasks",
    "fire_and_forget",
    "shutdown_all_background_tasks",
]

WORKERS = max(8, 2 * (os.cpu_count() or 1))
QUEUE_MAXSIZE = 1000
SHUTDOWN_TIMEOUT = 30
"""Seconds that `close` waits for queued turns."""
_GRACE = 1.0  # seconds that a cancelled turn has to end
_TAKEOVER = 10.0  # seconds between two looks for journals of dead writers
_CLOSED = "MemoryWriter is closed"

_logger = get_logger(__name__)


class MemoryWriter:
    """A queue of turns in front of a diary.

    A turn runs in the context variables that the writer was made in, never in those of a request. Where the
    diary is a folder (and its durability not "none"), turns are kept in a journal until they are applied;
    in front of any other diary they are kept in memory.

    Args:
        diary: Applies the turns.
        workers: Turns worked on at the same time, each of another user.
        qsize: Turns that may wait; then `submit` waits and `submit_nowait` raises.
        timeout: Seconds that the extractor may take for one turn; None is as long as it likes.
        retry: How often a turn is tried again after errors that may pass, and when.
        coalesce: Waiting turns of one session that may be read together, by one call of the model.
        breaker: Such errors in a row, of whichever users, after which the model is taken to be down.
        breaker_pause: Seconds until it is asked again; doubles while it stays down.
    """

    def __init__(
        self,
        diary: Diary,
        *,
        workers: int = WORKERS,
        qsize: int = QUEUE_MAXSIZE,
        timeout: float | None = 120.0,
        retry: RetryPolicy | None = None,
        coalesce: int = 1,
        breaker: int = 10,
        breaker_pause: float = 5.0,
    ) -> None:
        if workers < 1 or qsize < 1 or coalesce < 1 or breaker < 1:
            raise ValueError("workers, qsize, coalesce and breaker are at least 1.")
        self.diary = diary
        # Anything with `update_memory` will do for a diary; only a real one has a backend that we know.
        self._backend: Backend | None = getattr(getattr(diary, "engine", None), "backend", None)
        self._options = Options(workers, qsize, timeout, coalesce, retry or RetryPolicy())
        self._breaker = (breaker, breaker_pause)
        self._context = contextvars.copy_context()
        self._closed = False
        self._reset()
        remember(self)
        if self._intake is not None:
            with self._state:
                self._intake.adopt_soon()
                self._watch()

    def _reset(self) -> None:
        self._state = threading.Condition()
        self._figures = Figures()
        # Submitters that wait for room; there are none unless the queue is full.
        self._line: deque[tuple[Job, Future[None]]] = deque()
        self._by_operation: dict[tuple[str, str], Job] = {}
        self._prefix, self._numbers = secrets.token_hex(16), itertools.count(1)
        self._kept = 0
        self._workers = Workers(
            self.diary, self._options, self._state, self._figures, self._context,
            Breaker(*self._breaker), Telemetry(repr(getattr(self.diary, "backend", self.diary))),
        )  # fmt: skip
        self._workers.made_room = self._make_room
        self._workers.settled = self._forget_operation
        self._intake = self._new_intake()

    def _new_intake(self) -> Intake | None:
        backend = self._backend
        root: Path | None = getattr(backend, "journal_folder", None)
        if backend is None or root is None:
            return None
        from tomldiary.writing.dead_letters import DeadLetters  # noqa: PLC0415 - not for queues in memory
        from tomldiary.writing.intake import Intake, close_journals  # noqa: PLC0415 - the same

        intake = Intake(root, backend, self._state, self._take_in, self._refuse)
        self._workers.intake = intake
        self._workers.letters = DeadLetters(root)
        weakref.finalize(self, close_journals, intake.journals).atexit = False
        return intake

    def after_fork(self) -> None:
        """Start afresh in a forked child: it has its parent's counters, but not its threads or turns."""
        if self._intake is not None:
            self._intake.drop()
        self._reset()

    def __repr__(self) -> str:
        return f"<MemoryWriter {self._queued} queued, {self._workers.active} in work>"

    @property
    def _queued(self) -> int:
        unstored = len(self._intake) if self._intake is not None else 0
        return len(self._workers.lines) + unstored

    @property
    def _thread(self) -> threading.Thread | None:
        return self._workers.thread.thread if self._workers.thread is not None else None

    # Taking turns in

    async def submit(
        self,
        user_id: str,
        session_id: str,
        user_msg: str | None = None,
        assistant_msg: str | None = None,
        *,
        context_now: datetime | None = None,
        status: TurnStatus = "completed",
        operation_id: str = "",
        user_message: str | None = None,
        assistant_response: str | None = None,
    ) -> Receipt:
        """Store a turn in the journal and return its receipt; waits in line while the queue is full.

        Cancelling a `submit` that waits takes the turn back, unless it is being applied already.
        `user_message` and `assistant_response` are other names for the two messages.

        Raises:
            RuntimeError: The writer is closed.
            InvalidValue: A text that no file can store.
            Conflict: A turn with this operation id, and other content, is on its way already.
            BackendError: The journal could not be written. The turn was not taken in.
        """
        turn = Turn(
            user_id,
            session_id,
            _one_of("user_msg", user_msg, user_message),
            _one_of("assistant_msg", assistant_msg, assistant_response),
            context_now,
            status,
            operation_id,
        )
        return await self.submit_turn(turn)

    async def submit_turn(self, turn: Turn) -> Receipt:
        """Do what `submit` does with a turn that is made already."""
        job = self._new_job(turn)
        intake, loop = self._intake, asyncio.get_running_loop()
        room: Future[None] | None = None
        is_here = False
        with self._state:
            same = self._same(job)
            if same is None:
                self._check_open()
                if self._queued >= self._options.qsize:
                    room = Future()
                    self._line.append((job, room))
                elif intake is not None:
                    is_here = intake.begin_here(loop)
                if intake is not None and not is_here:
                    job.waiter = (loop, loop.create_future())
                if room is None:
                    self._accept(job, is_here=is_here)
        if same is not None:
            await same.receipt.astored()
            return same.receipt
        try:
            if room is not None:
                # Whoever makes room queues the turn as well: woken first and asked to queue it himself,
                # its submitter could be overtaken.
                await asyncio.wrap_future(room)
            if is_here and intake is not None and not intake.store_here(job):
                await job.receipt.astored()
            elif job.waiter is not None:
                await job.waiter[1]
        except asyncio.CancelledError:
            self._take_back(job, room)
            raise
        if is_here:
            job.receipt.check_stored()
        return job.receipt

    def submit_nowait(self, turn: Turn) -> Receipt:
        """Queue a turn from sync code and return its receipt at once; it is stored in another thread.

        `receipt.wait_stored()` tells when it is in the journal.

        Raises:
            WriterBusy: The queue is full.
            RuntimeError: The writer is closed.
            InvalidValue: A text that no file can store.
            Conflict: A turn with this operation id, and other content, is on its way already.
        """
        job = self._new_job(turn)
        with self._state:
            same = self._same(job)
            if same is not None:
                return same.receipt
            self._check_open()
            if self._queued >= self._options.qsize:
                raise WriterBusy(
                    f"{self._queued} turns are waiting already. Try again, or use submit, which waits."
                )
            self._accept(job)
        return job.receipt

    def _new_job(self, turn: Turn) -> Job:
        operation = turn.operation_id or f"{self._prefix}-{next(self._numbers)}"
        job = Job(turn, operation, is_new=not turn.operation_id)
        if self._intake is not None:
            from tomldiary.writing.entries import render_turn  # noqa: PLC0415 - not for queues in memory

            job.time = timestamp()
            job.rendered = render_turn(turn, operation, job.time)
        elif self._backend is not None:
            job.epoch = self._backend.epoch(turn.user_id)
        return job

    def _same(self, job: Job) -> Job | None:
        """Return the turn with this operation id that is on its way already, if any."""
        if job.is_new:
            return None
        before = self._by_operation.get((job.turn.user_id, job.operation))
        if before is not None and before.content != job.content:
            raise Conflict(
                f"operation {job.operation!r} is on its way already, with other content. Use a new id.",
                keys=[job.operation],
            )
        return before

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(_CLOSED)

    def _accept(self, job: Job, *, is_here: bool = False) -> None:
        """Count a turn and pass it on; the caller holds the state."""
        self._watch()  # first: without a thread, nothing may be counted as queued
        self._figures.submitted += 1
        if not job.is_new:
            self._by_operation[job.turn.user_id, job.operation] = job
        if self._intake is None:
            job.receipt.settle_stored(False)  # noqa: FBT003 - the answer itself
            self._workers.add([job])
        elif not is_here:
            self._intake.put(job)

    def _watch(self) -> None:
        if self._workers.thread is None:
            thread = self._workers.start()
            # A writer that is dropped without being closed leaves no thread behind.
            weakref.finalize(self, thread.stop).atexit = False
            if self._intake is not None:
                thread.loop.call_soon_threadsafe(_look_again, _weak(self), thread)

    def look_for_dead_writers(self) -> None:
        """Take over journals of writers that died, soon; done every ten seconds anyway."""
        with self._state:
            if self._intake is not None and not self._closed:
                self._intake.adopt_soon()

    def _take_in(self, jobs: list[Job]) -> None:
        """Queue turns that are in a journal; called with the state held."""
        for job in jobs:
            if job.receipt.is_stored:  # taken over
                self._figures.submitted += 1 + len(job.group)
                self._figures.recovered += 1 + len(job.group)
            else:
                job.receipt.settle_stored(True)  # noqa: FBT003 - the answer itself
        self._workers.add(jobs)
        _wake(jobs, None)

    def _refuse(self, jobs: list[Job], error: BaseException) -> None:
        """Answer for turns that could not be stored; called with the state held."""
        self._figures.failed += len(jobs)
        for job in jobs:
            job.receipt.settle_stored(error)
            job.receipt.settle(None, error)
            self._forget_operation(job)
        _wake(jobs, error)
        self._state.notify_all()

    def _make_room(self) -> None:
        """Queue the turns of those who wait in line; called with the state held."""
        while self._line and self._queued < self._options.qsize:
            job, room = self._line.popleft()
            if room.set_running_or_notify_cancel():
                self._accept(job)
                room.set_result(None)

    def _take_back(self, job: Job, room: Future[None] | None) -> None:
        with self._state:
            if room is not None and (job, room) in self._line:
                self._line.remove((job, room))
                return
            is_unstored = self._intake is not None and self._intake.take_back(job)
            if not is_unstored and not self._workers.lines.remove(job):
                return
            if job.journal is not None:
                job.journal.finish([job], now=True)
            self._figures.submitted -= 1
            self._forget_operation(job)
            self._make_room()
            self._state.notify_all()

    def _forget_operation(self, job: Job) -> None:
        if not job.is_new and self._by_operation.get((job.turn.user_id, job.operation)) is job:
            del self._by_operation[job.turn.user_id, job.operation]

    # Looking, waiting, closing

    @property
    def is_running(self) -> bool:
        """Whether turns are accepted."""
        return not self._closed

    def stats(self) -> dict[str, Any]:
        """Return counters taken at one moment: submitted = completed + failed + pending.

        `oldest_age` and the latencies are in seconds; `loss_window` is how many turns a killed process would
        lose now, and `durability` what the others survive.
        """
        with self._state:
            figures, workers, intake = self._figures, self._workers, self._intake
            finished = figures.completed + figures.failed
            active, queued = workers.active, self._queued
            oldest = min(
                filter(None, (workers.lines.oldest(), *(job.queued_at for job in workers.working))),
                default=None,
            )
            pending = queued + active + self._kept
            p50, p95, p99 = figures.latencies(0.5, 0.95, 0.99)
            return {
                "queue_size": queued,
                "queue_capacity": self._options.qsize,
                "queue_utilization": queued / self._options.qsize,
                "total_workers": self._options.workers,
                "active_workers": len(workers.working),
                "idle_workers": self._options.workers - len(workers.working),
                "submitted": figures.submitted,
                "completed": figures.completed,
                "failed": figures.failed,
                "pending": pending,
                "error_rate": figures.failed / finished if finished else 0.0,
                "is_running": not self._closed,
                "oldest_age": time.monotonic() - oldest if oldest is not None else 0.0,
                "retries": figures.retries,
                "dead_letters": figures.dead_letters,
                "recovered": figures.recovered,
                "repeated": figures.repeated,
                "compactions": figures.compactions,
                "compactions_failed": figures.compactions_failed,
                "breaker_is_open": workers.breaker.is_open,
                "last_success": figures.last_success,
                "latency_p50": p50,
                "latency_p95": p95,
                "latency_p99": p99,
                "loss_window": pending if intake is None else len(intake),
                "durability": "none" if intake is None else intake.durability,
            }

    def health(self, *, longest_wait: float = 300.0, most_errors: float = 0.05) -> Health:
        """Return a verdict for a health endpoint.

        Args:
            longest_wait: Seconds that the oldest turn may wait.
            most_errors: Share of turns that may fail.
        """
        return health_of(self.stats(), longest_wait=longest_wait, most_errors=most_errors)

    def prometheus(self) -> str:
        """Return the counters in the text format that Prometheus reads."""
        return prometheus_text(self.stats())

    def flush(self, timeout: float | None = None) -> bool:
        """Block until no turn is queued or in work; False if `timeout` seconds were not enough.

        Turns that a dead writer left are waited for too.
        """
        with self._state:
            return self._state.wait_for(self._is_idle, timeout)

    def _is_idle(self) -> bool:
        return (
            not self._queued
            and not self._workers.working
            and (self._intake is None or self._intake.is_idle)
        )

    async def aflush(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the twin of flush
        """Wait like `flush` without holding the event loop."""
        return await asyncio.to_thread(self.flush, timeout)

    def close_sync(self, timeout: float | None = None, *, drain: bool = True) -> dict[str, Any]:
        """Take no more turns, finish those that wait, and return the final counters.

        Args:
            timeout: Seconds to wait; None is `SHUTDOWN_TIMEOUT`. What is not done by then is cancelled, and
                its receipt raises a RuntimeError. Turns in a journal stay there and are counted as
                pending; those of a queue in memory are lost and counted as failed.
            drain: Whether to finish what waits; False leaves it.
        """
        with self._state:
            self._closed = True
            while self._line:
                _, room = self._line.popleft()
                if room.set_running_or_notify_cancel():
                    room.set_exception(RuntimeError(_CLOSED))
        wait = SHUTDOWN_TIMEOUT if timeout is None else timeout
        is_done = self.flush(max(0.0, wait)) if drain else self.flush(0)
        if self._intake is not None:
            self._intake.stop()
        if not is_done or not self.flush(0):
            left = self._workers.abandon(_GRACE)
            self._kept = left if self._intake is not None else 0
            if self._intake is None:
                _logger.error("the writer was closed with %d turns not applied", left)
            else:
                _logger.warning(
                    "the writer was closed with %d turns not applied; they are kept in %s",
                    left, self._intake.root,
                )  # fmt: skip
        self._stop()
        return self.stats()

    async def close(self, timeout: float | None = None, *, drain: bool = True) -> dict[str, Any]:  # noqa: ASYNC109 - the twin of close_sync
        """Close like `close_sync` without holding the event loop."""
        return await asyncio.to_thread(self.close_sync, timeout, drain=drain)

    def _stop(self) -> None:
        with self._state:
            thread, self._workers.thread = self._workers.thread, None
        if thread is not None:
            thread.stop()
            thread.join(_GRACE)
        if self._intake is None:
            return
        if thread is None or not thread.thread.is_alive():
            self._intake.close()
        else:
            # What does not let itself be ended may still write to the journal: it stays locked so long.
            threading.Thread(
                target=_close_behind, args=(thread.thread, self._intake), daemon=True
            ).start()

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


def _close_behind(thread: threading.Thread, intake: Intake) -> None:
    thread.join()
    intake.close()


def _one_of(name: str, first: str | None, second: str | None) -> str:
    chosen = first if first is not None else second
    if chosen is None:
        raise TypeError(f"submit() needs {name}.")
    return chosen


def _wake(jobs: list[Job], error: BaseException | None) -> None:
    """Let those go on who wait for their turn to be stored: one call for each event loop."""
    waiting: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for job in jobs:
        if job.waiter is not None:
            waiting.setdefault(job.waiter[0], []).append(job.waiter[1])
    for loop, futures in waiting.items():
        try:
            loop.call_soon_threadsafe(_resolve, futures, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            continue


def _resolve(futures: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)


def _weak(writer: MemoryWriter) -> weakref.ref[MemoryWriter]:
    return weakref.ref(writer)


def _look_again(writer: weakref.ref[MemoryWriter], thread: LoopThread) -> None:
    """Look for journals of dead writers from time to time, for as long as the writer is there."""
    thread.loop.call_later(_TAKEOVER, _look_for_dead, writer, thread)


def _look_for_dead(ref: weakref.ref[MemoryWriter], thread: LoopThread) -> None:
    writer = ref()
    if writer is not None and writer.is_running:
        writer.look_for_dead_writers()
        _look_again(ref, thread)
