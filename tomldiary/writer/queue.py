"""Where turns come in: back-pressure, ids that were seen already, and who waits for what."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from tomldiary.errors import Conflict, WriterBusy
from tomldiary.extraction.dialogue import checked_exchanges
from tomldiary.writer.job import Job

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Condition

    from tomldiary.extraction.dialogue import Sessions
    from tomldiary.storage.protocol import Backend
    from tomldiary.writer.intake import Intake
    from tomldiary.writer.metrics import Figures
    from tomldiary.writer.receipts import Receipt, Turn
    from tomldiary.writer.worker import Workers

__all__ = ["CLOSED", "Reception"]

CLOSED = "MemoryWriter is closed"


class Reception:
    """Takes turns in and passes them on: to the journal if there is one, else to the workers.

    Args:
        qsize: Turns that may wait.
        backend: Tells epochs; None if the diary has none that we know.
        state: The writer's lock.
        figures: Counts turns.
        workers: Apply turns.
        watch: Called with the state held before a turn is counted: starts what has to run.
        sessions: Knows when the last turn of a session came; None if the diary is of a third party.
    """

    def __init__(
        self,
        qsize: int,
        backend: Backend | None,
        state: Condition,
        figures: Figures,
        workers: Workers,
        watch: Callable[[], None],
        sessions: Sessions | None = None,
    ) -> None:
        self.intake: Intake | None = None
        self.is_closed = False
        self.line: deque[tuple[Job, Future[None]]] = deque()
        """Submitters that wait for room; there are none unless the queue is full."""
        self._qsize = qsize
        self._backend = backend
        self._state = state
        self._figures = figures
        self._workers = workers
        self._watch = watch
        self._sessions = sessions
        self._asking: ThreadPoolExecutor | None = None
        self._by_operation: dict[tuple[str, str], Job] = {}
        self._prefix, self._numbers = secrets.token_hex(16), itertools.count(1)

    @property
    def queued(self) -> int:
        """How many turns wait, stored or not."""
        unstored = len(self.intake) if self.intake is not None else 0
        return len(self._workers.lines) + unstored

    async def submit(self, turn: Turn) -> Receipt:
        """See `MemoryWriter.submit`."""
        job = self._new_job(turn)
        loop = asyncio.get_running_loop()
        room: Future[None] | None = None
        with self._state:
            same = self._same(job)
            if same is None:
                self._check_open()
                if self.queued >= self._qsize:
                    room = Future()
                    self.line.append((job, room))
                if self.intake is not None:
                    job.waiter = (loop, loop.create_future())
                if room is None:
                    self._accept(job)
        if same is not None:
            try:
                await same.receipt.astored()
            except asyncio.CancelledError:
                self._take_back(same, None)
                raise
            return same.receipt
        try:
            if room is not None:
                # Whoever makes room queues the turn as well: woken first and asked to queue it himself,
                # its submitter could be overtaken.
                await asyncio.wrap_future(room)
            if job.waiter is not None:
                await job.waiter[1]
        except asyncio.CancelledError:
            self._take_back(job, room)
            raise
        return job.receipt

    def submit_nowait(self, turn: Turn) -> Receipt:
        """See `MemoryWriter.submit_nowait`."""
        job = self._new_job(turn)
        with self._state:
            same = self._same(job)
            if same is not None:
                return same.receipt
            self._check_open()
            if self.queued >= self._qsize:
                raise WriterBusy(
                    f"{self.queued} turns are waiting already. Try again, or use submit, which waits."
                )
            self._accept(job)
        return job.receipt

    def _new_job(self, turn: Turn) -> Job:
        began = now = ""
        if self._sessions is not None:
            began, now = self._sessions.take(turn.user_id, turn.session_id)
            if turn.earlier:
                turn = replace(turn, earlier=checked_exchanges(turn.earlier, self._sessions.most))
        operation = turn.operation_id or f"{self._prefix}-{next(self._numbers)}"
        job = Job(turn, operation, is_new=not turn.operation_id)
        job.began, job.time = began, now
        if self.intake is not None:
            self.intake.prepare(job)
        elif self._backend is not None and self._backend.is_quick:
            job.epoch = self._backend.epoch(turn.user_id)
        elif self._backend is not None:
            # On a disk, and the caller may be an event loop: asked now, as what is forgotten later may be in it.
            if self._asking is None:
                self._asking = ThreadPoolExecutor(1, "tomldiary-epoch")
            job.asked = self._asking.submit(self._backend.epoch, turn.user_id)
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
        if before is not None:
            # From now on, a submitter that is cancelled does not take it from this one.
            before.wanted += 1
        return before

    def _check_open(self) -> None:
        if self.is_closed:
            raise RuntimeError(CLOSED)

    def _accept(self, job: Job) -> None:
        """Count a turn and pass it on; the caller holds the state."""
        self._watch()  # first: without a thread, nothing may be counted as queued
        self._figures.submitted += 1
        if not job.is_new:
            self._by_operation[job.turn.user_id, job.operation] = job
        if self.intake is None:
            job.receipt.settle_stored(False)  # noqa: FBT003 - the answer itself
            self._workers.add([job])
        else:
            self.intake.put(job)

    def take_in(self, jobs: list[Job]) -> None:
        """Queue turns that are in a journal; called with the state held."""
        unwanted = [job for job in jobs if not job.wanted]
        if unwanted:  # cancelled while they were being stored
            jobs = [job for job in jobs if job.wanted]
            for job in unwanted:
                self._withdraw(job)
        for job in jobs:
            if job.receipt.is_stored:  # taken over
                self._figures.submitted += 1 + len(job.group)
                self._figures.recovered += 1 + len(job.group)
            else:
                job.receipt.settle_stored(True)  # noqa: FBT003 - the answer itself
        self._workers.add(jobs)
        _wake(jobs, None)
        if unwanted:
            self.make_room()

    def refuse(self, jobs: list[Job], error: BaseException) -> None:
        """Answer for turns that could not be stored; called with the state held."""
        self._figures.failed += len(jobs)
        for job in jobs:
            job.receipt.settle_stored(error)
            job.receipt.settle(None, error)
            self.forget_operation(job)
        _wake(jobs, error)
        self.make_room()
        self._state.notify_all()

    def make_room(self) -> None:
        """Queue the turns of those who wait in line; called with the state held."""
        while self.line and self.queued < self._qsize:
            job, room = self.line.popleft()
            if room.set_running_or_notify_cancel():
                self._accept(job)
                room.set_result(None)

    def _take_back(self, job: Job, room: Future[None] | None) -> None:
        with self._state:
            if room is not None and (job, room) in self.line:
                self.line.remove((job, room))
                return
            job.wanted -= 1
            if job.wanted:
                return
            is_unstored = self.intake is not None and self.intake.take_back(job)
            if is_unstored or self._workers.lines.remove(job):
                self._withdraw(job)
                self.make_room()
                self._state.notify_all()

    def _withdraw(self, job: Job) -> None:
        """Have it as if a turn had never come; called with the state held."""
        if self.intake is not None:
            self.intake.withdraw(job)
        self._figures.submitted -= 1
        self.forget_operation(job)

    def forget_operation(self, job: Job) -> None:
        """Let the turn's id go: history knows it now, if it was applied; called with the state held."""
        if not job.is_new and self._by_operation.get((job.turn.user_id, job.operation)) is job:
            del self._by_operation[job.turn.user_id, job.operation]

    def close(self) -> None:
        """Take no more turns, and send those away who wait for room."""
        with self._state:
            self.is_closed = True
            while self.line:
                _, room = self.line.popleft()
                if room.set_running_or_notify_cancel():
                    room.set_exception(RuntimeError(CLOSED))


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
