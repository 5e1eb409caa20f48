"""The workers: choose the next turn, apply it, and handle its success or failure."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import CancelledError as FutureCancelled
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tomldiary.errors import (
    BackendError,
    DiaryError,
    ExtractionError,
    ExtractorUnusable,
    Forgotten,
    InvalidValue,
    LockTimeout,
    MissingExtra,
    RevisionConflict,
    SchemaError,
    TurnTaken,
)
from tomldiary.extraction.operations import TurnOperation
from tomldiary.logging import get_logger, show
from tomldiary.runtime.async_bridge import LoopThread, in_thread
from tomldiary.runtime.views import counted
from tomldiary.storage.locks import repeated
from tomldiary.writer.attempts import (
    Breaker,
    Options,
    cause_name,
    is_of_the_model,
    is_transient,
    lost_database,
)
from tomldiary.writer.queue import UserQueues
from tomldiary.writer.receipts import apply_turn, calling_writer, is_overridden
from tomldiary.writer.shared.queue import SharedQueue

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextvars import Context
    from threading import Condition

    from tomldiary.extraction.operations import Applied
    from tomldiary.writer.attempts import Metrics, Telemetry
    from tomldiary.writer.dead_letters import DeadLetters
    from tomldiary.writer.jobs import CompactionJobs
    from tomldiary.writer.queue import Admission
    from tomldiary.writer.receipts import Job

_LEFT = "the writer was closed before this turn was finished"
_KEPT = f"{_LEFT}; it is kept in the journal, and the next writer of this diary applies it"

_PARKED = "It is in the dead letters: `tomldiary writer list` shows the error, and `tomldiary writer retry --all` retries it."
_LOST = "It is lost, because this diary has no journal."
_STUCK = "a turn could neither be applied nor moved to the dead letters"

THREADS = 32
"""The least number of threads for commits; asyncio's default number depends on the CPU count."""

_logger = get_logger(__name__)


class Workers:
    """Applies queued turns: turns of one user in sequence, turns of several users concurrently.

    Turns are applied in one event loop. The lock `state` guards the fields that other threads read.
    """

    def __init__(
        self,
        diary: Any,
        options: Options,
        state: Condition,
        metrics: Metrics,
        context: Context,
        telemetry: Telemetry,
    ) -> None:
        self.queues = UserQueues()
        self.working: dict[Job, asyncio.Task[None]] = {}
        self.kept = 0
        """The number of turns that stayed in a journal when the writer was closed."""
        self.breaker = Breaker(options.breaker, options.breaker_pause)
        self.admission: Admission
        self.compactions: CompactionJobs
        self.dead_letters: DeadLetters | None = None
        """None if turns are queued in memory."""
        self._diary = diary
        self._options = options
        self._state = state
        self._metrics = metrics
        self._context = context
        self._telemetry = telemetry
        self.thread: LoopThread | None = None
        self._timer: asyncio.TimerHandle | None = None
        """The timer that calls `_dispatch` when the model may be called again."""
        self._is_ending = False
        self._is_scheduled = False  # whether `_dispatch` is scheduled

    def start(self) -> LoopThread:
        """Return the thread of the event loop, started if needed; the caller holds the lock.

        Raises:
            RuntimeError: The system has no thread left.
        """
        if self.thread is None:
            self.thread = LoopThread("tomldiary-writer", max(THREADS, self._options.workers))
        return self.thread

    def add(self, jobs: list[Job]) -> None:
        """Queue turns; the caller holds the lock."""
        for job in jobs:
            self.queues.push(job)
        if (
            not self._is_scheduled
            and self.queues.is_ready()
            and len(self.working) < self._options.workers
        ):
            self.start().loop.call_soon_threadsafe(self._dispatch)
            self._is_scheduled = True

    @property
    def active(self) -> int:
        """The number of turns in work."""
        return sum(1 + len(job.group) for job in self.working)

    @property
    def _most_together(self) -> int:
        """The maximum number of turns that are read together: 1 unless the diary's extractor may be a model.

        The rules need no call of a model, and read each turn in its own language. An overridden `update_memory` takes
        one turn.
        """
        is_alone = is_overridden(self._diary) or self._diary.turns.origin == "rule"
        return 1 if is_alone else self._options.coalesce

    def _dispatch(self) -> None:
        with self._state:
            self._is_scheduled = False
            while self.queues.is_ready() and len(self.working) < self._options.workers:
                if self._is_ending:
                    return
                wait = self.breaker.wait()
                if wait > 0:
                    if self._timer is not None:
                        self._timer.cancel()
                    self._timer = asyncio.get_running_loop().call_later(wait, self._dispatch)
                    return
                job = self.queues.pop(self._most_together)
                self.breaker.begin()
                self.working[job] = asyncio.get_running_loop().create_task(
                    self._process(job), context=self._context.copy()
                )
                self.admission.admit_waiting()

    async def _process(self, job: Job) -> None:
        calling_writer.set(self._state)
        result: Applied | None = None
        error: BaseException | None = None
        try:
            with self._telemetry.turn(job):
                result = await apply_turn(self._diary, job, timeout=self._options.timeout)
        except BaseException as caught:
            if isinstance(caught, GeneratorExit) and self._is_ending:
                raise  # the event loop is closed; `close` has set the outcome
            error = caught  # an error of any type is set on the receipt
        job.attempts += 1
        try:
            if error is None:
                self._complete(job, result)
            else:
                await self._fail(job, error)
        except TurnTaken as taken:
            self._hand_over(job, taken)
        except BaseException as failure:  # noqa: BLE001 - every turn needs an outcome
            self._after_failed_parking(job, failure)
        self._dispatch()

    # Outcomes

    def _complete(self, job: Job, result: Applied | None) -> None:
        self.breaker.succeed()
        if getattr(self._diary, "compaction_config", None) is not None:
            # Before the turn ends, so that `flush` also waits for its compaction.
            self.compactions.after_turn(job)
        with self._state:
            self._end(job, [job, *job.group], result)

    def _hand_over(self, job: Job, reason: TurnTaken) -> None:
        """Stop working on a user's turns: another writer has taken them over, or all must be claimed again."""
        with self._state:
            if self.working.pop(job, None) is None:
                return  # see `_end`
            user = job.turn.user_id
            jobs = [one for each in (job, *self.queues.drop(user)) for one in (each, *each.group)]
            queue = self.admission.journal_queue
            if isinstance(queue, SharedQueue):
                queue.lost(jobs)
            self.queues.release(user)
            self._state.notify_all()
        _logger.warning("%s of a user released: %s", counted(len(jobs), "turn"), reason)

    def settle_elsewhere(self, job: Job) -> None:
        """Resolve the receipt of a turn that another writer has finished.

        Raises:
            BackendError, LockTimeout: Its result cannot be read now.
        """
        result, error, reason = None, None, ""
        try:
            operation = TurnOperation(job.operation, job.turn.content)
            # Without waiting for the lock, because the calling thread also stores the turns of other users.
            result = self._diary.turns.find(job.turn.user_id, operation, timeout=0)
        except (BackendError, LockTimeout):
            raise
        except DiaryError as caught:
            error, reason = caught, f"{cause_name(caught)}."
        if result is None and error is None:
            reason = (
                "history does not have the turn: another writer could not apply it, or it was forgotten, or its"
                " history was dropped. See `tomldiary writer list`."
            )
            error = ExtractionError(reason)
        with self._state:
            queue = self.admission.journal_queue
            if isinstance(queue, SharedQueue):
                # Only now, because `flush` waits for the turns that the queue watches.
                queue.resolved(job)
            if error is None:
                self._metrics.complete(time.monotonic() - job.queued_at)
            else:
                self._metrics.fail(1)
                self._metrics.last_failure = reason
            self._settle([job], result, error)
            self.admission.admit_waiting()
            self._state.notify_all()

    async def _fail(self, job: Job, error: BaseException) -> None:
        cancelled = isinstance(error, asyncio.CancelledError | FutureCancelled)
        transient = not cancelled and is_transient(error)
        if transient and is_of_the_model(error):
            self._note_no_answer(job)
        elif cancelled or _is_of_the_diary(error):
            self.breaker.end()  # it failed before or after the model was called
        else:
            self.breaker.succeed()
        if isinstance(error, TurnTaken):
            raise error
        if cancelled and self._is_ending:
            return  # `close` sets the outcome
        # The error may quote the conversation, so details are logged at debug level only.
        cause = cause_name(error)
        _logger.debug("traceback of a turn that could not be applied", exc_info=error)
        if lost_database(error) is not None:
            job.attempts -= 1  # it is away for all users, so the attempt does not count
        if isinstance(error, Forgotten) and job.journal is not None:
            await self._after_forgetting(job, error)
        elif transient and job.attempts < self._options.retry.attempts:
            pause = self._options.retry.pause(max(1, job.attempts), error)
            _logger.warning("a turn could not be applied: %s; retrying in %.1f s", cause, pause)
            with self._state:
                self._end(job, again=[job], pause=pause)
        elif job.group and isinstance(error, ExtractionError | InvalidValue):
            _logger.warning("turns could not be read together: %s; reading them one by one", cause)
            self._ungroup(job)
        else:
            await self._park(job, error, cause)

    def _note_no_answer(self, job: Job) -> None:
        """Report to the circuit breaker that the model did not answer."""
        if self.breaker.is_open:
            job.attempts -= 1  # the model is down for all users, so the attempt does not count
        if self.breaker.fail():
            _logger.error("the model does not answer; turns wait until it answers again")

    async def _after_forgetting(self, job: Job, error: Forgotten) -> None:
        """Requeue the turns that were not forgotten; they are read one by one with the current memory.

        Raises:
            BackendError, LockTimeout, RevisionConflict: It is unknown whether a turn was forgotten. A forgotten turn
                must not be parked.
        """
        jobs = [job, *job.group]
        timeout = self._diary.engine.lock_timeout
        wanted = await in_thread(repeated, partial(self._still_wanted, jobs), timeout)
        gone = [each for each in jobs if each not in wanted]
        if gone and job.journal is not None:
            await in_thread(job.journal.finish, gone)
            _logger.error("%s could not be applied: Forgotten", counted(len(gone), "turn"))
        if wanted:
            _logger.info("other data of the user was forgotten; a turn is read again")
        with self._state:
            job.group = []
            self._end(job, gone, error=error, again=wanted)

    def _still_wanted(self, jobs: list[Job]) -> list[Job]:
        """Return the turns that are still in the journal, with the user's current fencing token."""
        backend, user = self._diary.engine.backend, jobs[0].turn.user_id
        # An erasure changes the token first and the journals next, and holds the user's lock for both.
        with backend.lock(user, self._diary.engine.lock_timeout):
            epoch = backend.epoch(user)
            wanted = [job for job in jobs if job.journal is not None and job.journal.holds(job)]
        for job in wanted:
            job.epoch, job.operations = epoch, None
            job.turn = replace(job.turn, earlier=())  # earlier exchanges may quote forgotten text
        return wanted

    def _ungroup(self, job: Job) -> None:
        """Requeue turns that were read together, so that they are read one by one."""
        with self._state:
            jobs, job.group = [job, *job.group], []
            for each in jobs:
                each.attempts = 1  # so `UserQueues` groups none of them again
            self._end(job, again=jobs)

    def _resume(self, user: str) -> None:
        with self._state:
            self.queues.release(user)
        self._dispatch()

    async def _park(self, job: Job, error: BaseException, cause: str) -> None:
        jobs = [job, *job.group]
        if isinstance(error, asyncio.CancelledError | FutureCancelled):
            # A CancelledError would look like a cancellation of the task that awaits the receipt.
            error = RuntimeError("this turn was cancelled")
        parked = 0
        if job.journal is not None and self.dead_letters is not None:
            text = f"{type(error).__name__}: {error}"
            for each in jobs:
                each.attempts = job.attempts
                try:
                    await in_thread(self.dead_letters.add, each, text)
                except Forgotten as forgotten:
                    await self._after_forgetting(job, forgotten)
                    return
            job.is_parked, parked = True, len(jobs)
            await in_thread(job.journal.finish, jobs)
        reason = _reason(error, cause)
        text = f"a turn could not be applied: {reason} {_PARKED if parked else _LOST}"
        _logger.error("%s", text)
        with self._state:
            if job not in self.working:
                return  # see `_end`
            if reason != self._metrics.last_failure:
                show(text)
            self._metrics.last_failure = reason
            self._metrics.dead_letters += parked
            self._end(job, jobs, error=error)

    def _after_failed_parking(self, job: Job, failure: BaseException) -> None:
        """Fail a turn that could not be parked, or retry it later if the storage did not accept it; it stays queued."""
        if isinstance(failure, asyncio.CancelledError) and self._is_ending:
            return
        if isinstance(failure, BackendError | LockTimeout | RevisionConflict):
            cause = cause_name(failure)
            pause = self._options.retry.longest_pause
            _report(f"{_STUCK}: {cause}; retrying in {pause:.1f} s")
            self._metrics.last_failure = f"{cause}."
            job.attempts -= 1
            with self._state:
                self._end(job, again=[job], pause=pause)
            return
        with self._state:
            if job not in self.working:
                return  # see `_end`
            _report(f"{_STUCK}: {type(failure).__name__}")
            self._end(job, [job, *job.group], error=failure)

    def _end(
        self,
        job: Job,
        done: Sequence[Job] = (),
        result: Applied | None = None,
        error: BaseException | None = None,
        again: Sequence[Job] = (),
        pause: float = 0.0,
    ) -> None:
        """Set outcomes and requeue turns after an attempt, and release the user after a pause.

        Called with the lock held.
        """
        if self.working.pop(job, None) is None:
            return  # `close` has set the outcome
        for each in reversed(again):
            self.queues.requeue(each)
        self._metrics.retries += bool(again)
        if error is not None:
            self._metrics.fail(len(done), error)
        elif done:
            self._metrics.complete(time.monotonic() - job.queued_at, len(done))
            if result is not None:
                self._metrics.repeated += result.is_repeated
                self._metrics.skipped += len(result.skipped)
        self._settle(done, result, error)
        if pause:
            asyncio.get_running_loop().call_later(pause, self._resume, job.turn.user_id)
        else:
            self.queues.release(job.turn.user_id)
        if not self.working and not len(self.queues):
            self._state.notify_all()  # only now, because waiters wait for the end of all work

    def _settle(
        self, jobs: Sequence[Job], result: Applied | None, error: BaseException | None
    ) -> None:
        for each in jobs:
            each.receipt.settle(result, error)
            self.admission.forget_operation(each)

    # Ending

    def abandon(self, grace: float) -> int:
        """Cancel the turns in work, fail all unfinished turns, and return their number."""
        with self._state:
            self._is_ending = True
            count = self._leave(self.queues.drain())
            tasks = list(self.working.values())
        if tasks and self.thread is not None:
            work = _cancel_all(tasks, grace)
            ended = asyncio.run_coroutine_threadsafe(work, self.thread.loop)
            with suppress(TimeoutError):  # an extractor blocks the event loop
                ended.result(2 * grace)
        with self._state:
            left = [*self.queues.drain(), *self.working]
            queue = self.admission.journal_queue
            if isinstance(queue, SharedQueue):
                left += queue.drain()
            self.working.clear()
            count += self._leave(left)
            self._state.notify_all()
        return count

    def _leave(self, left: Sequence[Job]) -> int:
        """Fail unfinished turns, and return their number; called with the lock held."""
        count = 0
        for job in left:
            jobs = [job, *job.group]
            count += len(jobs)
            if job.journal is None:
                self._metrics.fail(len(jobs))
            else:
                self.kept += len(jobs)
            self._settle(jobs, None, RuntimeError(_KEPT if job.journal is not None else _LEFT))
        return count


def _report(text: str) -> None:
    """Log an error. A log handler of the host may raise one, but every turn needs an outcome."""
    with suppress(Exception):
        _logger.error("%s", text)


def _is_of_the_diary(error: BaseException) -> bool:
    """Return whether an error comes from the diary, not from its extractor."""
    return isinstance(error, DiaryError) and not isinstance(error, ExtractionError)


def _reason(error: BaseException, cause: str) -> str:
    """Return the reason of a failure, but only the type of an error that may quote the conversation."""
    if isinstance(error, MissingExtra | SchemaError | ExtractorUnusable):
        return str(error)
    return f"{cause}."


async def _cancel_all(tasks: list[asyncio.Task[None]], grace: float) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=grace)
