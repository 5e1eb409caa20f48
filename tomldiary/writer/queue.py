"""Admission of turns (back-pressure, repeated ids, cancelled submits) and one queue for each user."""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from tomldiary.errors import Forgotten, OperationConflict, WriterBusy
from tomldiary.extraction.context import last_exchanges
from tomldiary.runtime.async_bridge import running_loop
from tomldiary.runtime.views import counted
from tomldiary.toml.values import timestamp
from tomldiary.writer.attempts import cause_name
from tomldiary.writer.journal import render_turn
from tomldiary.writer.journal_queue import wake
from tomldiary.writer.receipts import Job, Receipt

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Condition

    from tomldiary.diary import Diary
    from tomldiary.extraction.context import Turn
    from tomldiary.storage.protocol import Backend
    from tomldiary.writer.attempts import Metrics
    from tomldiary.writer.journal_queue import JournalQueue
    from tomldiary.writer.shared.queue import SharedQueue
    from tomldiary.writer.worker import Workers

_CLOSED = "MemoryWriter is closed. Create another one."


class Admission:
    """Admits turns and passes them to the journal, or to the workers if there is no journal.

    Args:
        diary: Provides fencing tokens, and the time of a session's previous turn; None for another object.
        qsize: The maximum number of waiting turns.
        state: The writer's lock.
        metrics: Counts turns.
        workers: Apply turns.
        start: Starts the writer's thread; called with the lock held before a turn is counted.
    """

    def __init__(
        self,
        diary: Diary | None,
        qsize: int,
        state: Condition,
        metrics: Metrics,
        workers: Workers,
        start: Callable[[], object],
    ) -> None:
        self.journal_queue: JournalQueue | SharedQueue | None = None
        self.is_closed = False
        self.state = state
        self.waiting: deque[Job] = deque()
        """The turns that wait for space in the queue, in their order; those of `submit_later` are counted."""
        self._qsize = qsize
        self._backend = None if diary is None else diary.engine.backend
        self._sessions = None if diary is None else diary.sessions
        self._metrics = metrics
        self._workers = workers
        self._start = start
        self._epoch_reader = ThreadPoolExecutor(1, "tomldiary-epoch")
        self._by_operation: dict[tuple[str, str], Job] = {}
        self._prefix, self._numbers = secrets.token_hex(16), itertools.count(1)

    @property
    def queued(self) -> int:
        """The number of turns that wait, whether stored or not, also for space; without those of waiting submits."""
        return self._admitted + self.in_memory

    @property
    def in_memory(self) -> int:
        """The number of turns that wait for space without a `submit` that waits for it."""
        return sum(job.is_counted for job in self.waiting)

    @property
    def _admitted(self) -> int:
        unstored = len(self.journal_queue) if self.journal_queue is not None else 0
        return len(self._workers.queues) + unstored

    @property
    def _is_full(self) -> bool:
        """Whether a new turn must wait; it must not overtake waiting ones."""
        return bool(self.waiting) or self._admitted >= self._qsize

    async def submit(self, turn: Turn) -> Receipt:
        """See `MemoryWriter.submit`."""
        loop, epoch, backend = running_loop(), None, self._backend
        if self.journal_queue is None and backend is not None:
            if backend.is_quick:
                epoch = backend.epoch(turn.user_id)
            else:  # in one thread for all submits, so that no turn overtakes another
                epoch = await loop.run_in_executor(self._epoch_reader, backend.epoch, turn.user_id)
        job = self._new_job(turn, epoch)
        with self.state:
            same = self._same(job)
            if same is None:
                must_wait = self._is_full
                if must_wait or self.journal_queue is not None:
                    job.waiter = (loop, loop.create_future())
                if must_wait:
                    self._wait(job)
                else:
                    self._admit(job)
        try:
            if same is not None:
                await same.receipt.astored()
            elif job.waiter is not None:
                await job.waiter[1]
        except BaseException:
            self._cancel(same or job)
            raise
        return (same or job).receipt

    def submit_nowait(self, turn: Turn, *, may_wait: bool = False) -> Receipt:
        """See `MemoryWriter.submit_nowait`, and `submit_later` for `may_wait`."""
        epoch = None
        if self.journal_queue is None and self._backend is not None:
            # Not in another thread, because an erasure after this call must refuse the turn.
            epoch = self._backend.epoch(turn.user_id)
        job = self._new_job(turn, epoch)
        with self.state:
            same = self._same(job)
            if same is not None:
                self._count(same)
                return same.receipt
            if not self._is_full:
                self._admit(job)
            elif may_wait:
                self._count(job)
                self._wait(job)
            else:
                self._give_back(job)
                raise WriterBusy(
                    f"the queue is full: {counted(self.queued, 'turn')} waiting. Try again later, or use submit, which waits."
                )
        return job.receipt

    def _new_job(self, turn: Turn, epoch: int | None) -> Job:
        """Return a turn that is admitted or given back next."""
        began = now = ""
        if self._sessions is not None:
            began, now = self._sessions.take(turn.user_id, turn.session_id)
            if turn.earlier:
                turn = replace(turn, earlier=last_exchanges(turn.earlier, self._sessions.most))
        operation = turn.operation_id or f"{self._prefix}-{next(self._numbers)}"
        job = Job(turn, operation, is_new=not turn.operation_id)
        job.epoch, job.began, job.time = epoch, began, now or timestamp()
        if self.journal_queue is not None:
            job.rendered = render_turn(job.turn, job.operation, job.time)
        return job

    def _wait(self, job: Job) -> None:
        """Let a turn wait for space; the caller holds the lock."""
        queue, backend = self.journal_queue, self._backend
        if queue is not None and backend is not None:  # in memory, the token is known already
            # In another thread, because a database that is down would hold this one.
            self._epoch_reader.submit(self._note_epoch, job, queue, backend)
        self._register(job)
        self.waiting.append(job)

    def _note_epoch(self, job: Job, queue: JournalQueue | SharedQueue, backend: Backend) -> None:
        """Record the fencing token of a waiting turn, so that a later erasure refuses it; refuse it if that fails."""
        with self.state:
            if job not in self.waiting:
                self.state.notify_all()  # an erasure may wait for this turn
                return  # each read of a database that is down would delay the end of the program
        try:
            job.wait_epoch = backend.epoch(job.turn.user_id)
        except Exception as error:  # noqa: BLE001 - the caller or the receipt gets it
            with self.state:
                if job in self.waiting:
                    self.waiting.remove(job)
                    self._count(job)
                    queue.fail([job], error)
        with self.state:
            self.admit_waiting()
            self.state.notify_all()  # an erasure may wait for this token

    def _same(self, job: Job) -> Job | None:
        """Return the unfinished turn with the same operation id; None if the turn is new and the writer is open."""
        before = self._by_operation.get((job.turn.user_id, job.operation))
        if before is None and not self.is_closed:
            return None
        self._give_back(job)
        if before is None:
            raise RuntimeError(_CLOSED)
        if before.turn.content != job.turn.content:
            raise OperationConflict.of(job.operation)
        # Cancelling one of several submits of a turn does not cancel the turn.
        before.wanted += 1
        return before

    def check_open(self) -> None:
        """Raise RuntimeError if the writer is closed."""
        if self.is_closed:
            raise RuntimeError(_CLOSED)

    def _admit(self, job: Job) -> None:
        """Count a turn and pass it to the journal or the workers; the caller holds the lock."""
        self._count(job)
        self._register(job)
        if self.journal_queue is None:
            job.receipt.settle_stored(False)  # noqa: FBT003 - the result itself
            self._workers.add([job])
            wake([job], None)
        else:
            self.journal_queue.put(job)

    def _register(self, job: Job) -> None:
        if not job.is_new:
            self._by_operation[job.turn.user_id, job.operation] = job

    def _count(self, job: Job) -> None:
        if not job.is_counted:
            self._start()  # first, because no turn may be queued if the thread cannot start
            self._metrics.submitted += 1
            job.is_counted = True

    def deliver(self, jobs: list[Job]) -> None:
        """Queue turns that are in a journal; called with the lock held."""
        for job in jobs:
            if not job.wanted:  # it was cancelled while it was being stored
                self._withdraw(job)
        jobs = [job for job in jobs if job.wanted]
        for job in jobs:
            for each in (job, *job.group):
                if not each.is_counted:  # taken over from a dead writer
                    self._metrics.submitted += 1
                    self._metrics.recovered += 1
                    each.is_counted = True
            job.receipt.settle_stored(True)  # noqa: FBT003 - the result itself
        self._workers.add(jobs)
        self.admit_waiting()

    def refuse(self, jobs: list[Job], error: BaseException) -> None:
        """Fail turns that could not be stored; called with the lock held."""
        self._metrics.fail(len(jobs), error)
        if not isinstance(error, Forgotten):
            self._metrics.last_failure = f"{cause_name(error)}."
        self._give_back(*jobs)
        for job in jobs:
            job.receipt.settle_stored(error)
            job.receipt.settle(None, error)
            self.forget_operation(job)
        self.admit_waiting()
        self.state.notify_all()

    def admit_waiting(self) -> None:
        """Admit waiting turns while the queue has space; called with the lock held."""
        while self.waiting and self._admitted < self._qsize:
            if self.journal_queue is not None and self.waiting[0].wait_epoch is None:
                return  # `_note_epoch` calls this again when the token is known
            self._admit(self.waiting.popleft())

    def _cancel(self, job: Job) -> None:
        with self.state:
            job.wanted -= 1
            if job.wanted:
                return
            if job in self.waiting:
                self.waiting.remove(job)
            else:
                is_unstored = self.journal_queue is not None and self.journal_queue.remove(job)
                if not is_unstored and not self._workers.queues.remove(job):
                    return
            self._withdraw(job)
            self.admit_waiting()
            self.state.notify_all()

    def _withdraw(self, job: Job) -> None:
        """Undo the admission of a turn; called with the lock held."""
        if self.journal_queue is not None:
            self.journal_queue.withdraw(job)
        self._metrics.submitted -= job.is_counted  # a turn may be withdrawn again
        self._give_back(job)
        self.forget_operation(job)

    def _give_back(self, *jobs: Job) -> None:
        """Let the session's next turn begin where the first of these began, which may be the same turn again."""
        if self._sessions is not None:
            for job in reversed(jobs):
                turn = job.turn
                self._sessions.give_back(turn.user_id, turn.session_id, (job.began, job.time))

    def forget_operation(self, job: Job) -> None:
        """Drop the operation id of a finished turn; called with the lock held.

        History has the ids of applied turns.
        """
        if self._by_operation.get((job.turn.user_id, job.operation)) is job:
            del self._by_operation[job.turn.user_id, job.operation]

    def close(self) -> None:
        """Refuse further turns, fail the submits that wait for space, and admit the other waiting turns."""
        with self.state:
            self.is_closed = True
            waiting, error = [*self.waiting], RuntimeError(_CLOSED)
            self.waiting.clear()
            refused = [job for job in waiting if not job.is_counted]
            wake(refused, error)
            for job in reversed(refused):  # another caller may wait for the receipt
                job.receipt.settle_stored(error)
                job.receipt.settle(None, error)
                self._withdraw(job)
            for job in waiting:
                if job.is_counted:
                    self._admit(job)


class UserQueues:
    """One queue of turns for each user, served round robin. Not thread-safe: callers hold the writer's lock.

    A user is held while one of its turns is in work or waits for another attempt. The other turns of a held user wait.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[Job]] = {}
        self._ready: deque[str] = deque()
        self._held: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def is_ready(self) -> bool:
        """Return whether a turn can be started."""
        return bool(self._ready)

    def oldest(self) -> float | None:
        """Return when the oldest waiting turn was submitted (monotonic clock), or None."""
        return min((queue[0].queued_at for queue in self._queues.values() if queue), default=None)

    def push(self, job: Job) -> None:
        """Add a turn at the end of its user's queue."""
        user = job.turn.user_id
        if user not in self._queues and user not in self._held:
            self._ready.append(user)
        self._queues.setdefault(user, deque()).append(job)
        self._count += 1 + len(job.group)

    def requeue(self, job: Job) -> None:
        """Put a turn at the head of its user's queue; the user stays held until `release`."""
        self._queues.setdefault(job.turn.user_id, deque()).appendleft(job)
        self._count += 1 + len(job.group)

    def pop(self, together: int = 1) -> Job:
        """Return the next turn, grouped with up to `together - 1` later turns, and hold its user.

        Call it only if `is_ready`.
        """
        user = self._ready.popleft()
        queue = self._queues[user]
        job = queue.popleft()
        self._held.add(user)
        self._count -= 1 + len(job.group)
        while queue and len(job.group) + 1 < together and _can_be_grouped(job, queue[0]):
            job.group.append(queue.popleft())
            self._count -= 1
        if not queue:
            del self._queues[user]
        return job

    def release(self, user: str) -> None:
        """Release a user and place it after the users that are ready, so that a busy user delays no other."""
        self._held.discard(user)
        if user in self._queues:
            self._ready.append(user)

    def remove(self, job: Job) -> bool:
        """Remove a waiting turn; return False if it is not waiting or is part of a group."""
        user = job.turn.user_id
        queue = self._queues.get(user)
        if queue is None or job not in queue or job.group:
            return False
        queue.remove(job)
        self._count -= 1
        if not queue:
            del self._queues[user]
            if user in self._ready:
                self._ready.remove(user)
        return True

    def drop(self, user: str) -> list[Job]:
        """Remove and return the waiting turns of a user who is held."""
        jobs = [*self._queues.pop(user, ())]
        self._count -= sum(1 + len(job.group) for job in jobs)
        return jobs

    def drain(self) -> list[Job]:
        """Remove and return all waiting turns."""
        jobs = [job for queue in self._queues.values() for job in queue]
        self._queues.clear()
        self._ready.clear()
        self._count = 0
        return jobs


def _can_be_grouped(first: Job, other: Job) -> bool:
    """Return whether two turns may be read in one call of the model.

    A turn with an operation id of the caller is read alone, since history must contain this id. A turn that was
    attempted before is also read alone.
    """
    return (
        first.turn.session_id == other.turn.session_id
        and first.epoch == other.epoch
        and first.journal is other.journal  # a group's records go to one journal
        and all(
            job.is_new and job.operations is None and not job.attempts and job.turn.context_now is None
            and job.turn.epoch in {None, job.epoch}  # otherwise it may be refused
            for job in (first, other)
        )
    )  # fmt: skip
