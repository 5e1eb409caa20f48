"""Working off the queue: who is next, what happens when it fails, and what is said about it."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import CancelledError as FutureCancelled
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tomldiary.errors import (
    BackendError,
    DiaryError,
    ExtractionError,
    ExtractorUnusable,
    Forgotten,
    LockTimeout,
    MissingExtra,
    SchemaError,
)
from tomldiary.logging import get_logger, show
from tomldiary.runtime.async_bridge import in_thread
from tomldiary.writer.apply_turn import apply
from tomldiary.writer.lanes import Lines
from tomldiary.writer.loop_thread import LoopThread
from tomldiary.writer.retry import is_of_the_model, is_transient

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context
    from threading import Condition

    from tomldiary.extraction.apply import Applied
    from tomldiary.writer.dead_letters import DeadLetters
    from tomldiary.writer.intake import Intake
    from tomldiary.writer.job import Job
    from tomldiary.writer.metrics import Figures
    from tomldiary.writer.options import Options
    from tomldiary.writer.retry import Breaker
    from tomldiary.writer.telemetry import Telemetry

__all__ = ["Workers"]

_LEFT = "the writer was closed before this turn was finished"
_KEPT = f"{_LEFT}; it is kept in the journal, and the next writer of this diary applies it"

_PARKED = "It is kept in the dead letters; `tomldiary writer list` shows why, `tomldiary writer retry --all` tries again."
_LOST = "It is lost, as this diary keeps no journal."

_logger = get_logger(__name__)


class Workers:
    """Applies queued turns, each user's one after the other, several users' at the same time.

    All of it runs in one event loop; `state` guards what other threads look at.
    """

    def __init__(
        self,
        diary: Any,
        options: Options,
        state: Condition,
        figures: Figures,
        context: Context,
        breaker: Breaker,
        telemetry: Telemetry,
    ) -> None:
        self.lines = Lines()
        self.working: dict[Job, asyncio.Task[None]] = {}
        self.kept = 0
        """Turns that were left in a journal when the writer was closed."""
        self.breaker = breaker
        self.intake: Intake | None = None
        self.letters: DeadLetters | None = None
        self.made_room = _nothing
        """Called with the state held when a turn left the queue."""
        self.applied: Callable[[Job], None] = _nothing_about
        """Called when a turn was applied."""
        self.settled: Callable[[Job], None] = _nothing_about
        """Called with the state held when a turn was applied, parked or left."""
        self._diary = diary
        self._options = options
        self._state = state
        self._figures = figures
        self._context = context
        self._telemetry = telemetry
        self.thread: LoopThread | None = None
        self._timer: asyncio.TimerHandle | None = None  # until the model may be asked again
        self._is_ending = False
        self._is_called = False  # whether a look for work is on its way to the loop

    def start(self) -> LoopThread:
        """Return the thread that everything runs in; the caller holds the state.

        Raises:
            RuntimeError: The system gives no thread.
        """
        if self.thread is None:
            self.thread = LoopThread(max(32, self._options.workers))
        return self.thread

    def add(self, jobs: list[Job]) -> None:
        """Queue turns; the caller holds the state."""
        for job in jobs:
            self.lines.push(job)
        if (
            not self._is_called
            and self.lines.is_ready()
            and len(self.working) < self._options.workers
        ):
            self.start().loop.call_soon_threadsafe(self._dispatch)
            self._is_called = True

    @property
    def active(self) -> int:
        """How many turns are in work."""
        return sum(1 + len(job.group) for job in self.working)

    def _dispatch(self) -> None:
        with self._state:
            self._is_called = False
            while self.lines.is_ready() and len(self.working) < self._options.workers:
                if self._is_ending:
                    return
                wait = self.breaker.wait()
                if wait > 0:
                    if self._timer is not None:
                        self._timer.cancel()
                    self._timer = asyncio.get_running_loop().call_later(wait, self._dispatch)
                    return
                job = self.lines.pop(self._options.coalesce)
                if job is None:
                    return
                self.breaker.begin()
                self.working[job] = asyncio.get_running_loop().create_task(
                    self._process(job), context=self._context.copy()
                )
                self.made_room()

    async def _process(self, job: Job) -> None:
        begin = time.monotonic()
        result: Applied | None = None
        error: BaseException | None = None
        try:
            with self._telemetry.turn(job):
                result = await apply(self._diary, job, timeout=self._options.timeout)
        except BaseException as caught:
            if isinstance(caught, GeneratorExit) and self._is_ending:
                raise  # the event loop is gone and this is thrown away; `close` has answered
            error = caught  # whatever it is, it is told
        job.cost = time.monotonic() - begin
        job.attempts += 1
        try:
            if error is None:
                self._complete(job, result)
            else:
                await self._fail(job, error)
        except BaseException as failure:  # noqa: BLE001 - a turn is never left without an answer
            self._give_up(job, failure)
        self._dispatch()

    # What becomes of a turn

    def _complete(self, job: Job, result: Applied | None) -> None:
        self.breaker.succeed()
        jobs = [job, *job.group]
        self.applied(job)  # first: who waits for the writer to be idle waits for a clean-up too
        with self._state:
            if self.working.pop(job, None) is None:
                return  # `close` has given it up
            self._figures.complete(time.monotonic() - job.queued_at, len(jobs))
            if result is not None and result.is_repeated:
                self._figures.repeated += 1
            self._settle(jobs, result, None)
            self.lines.release(job.turn.user_id)
            self._let_go(job)
            if not self.working and not len(self.lines):
                self._state.notify_all()  # nobody waits for anything but the end of all work

    async def _fail(self, job: Job, error: BaseException) -> None:
        cancelled = isinstance(error, asyncio.CancelledError | FutureCancelled)
        transient = not cancelled and is_transient(error)
        if transient and is_of_the_model(error):
            if self.breaker.is_open:
                job.attempts -= 1  # the model is down for everybody; this turn is not to blame
            if self.breaker.fail():
                _logger.error("the model does not answer; turns wait until it does")
        elif cancelled or (
            isinstance(error, DiaryError) and not isinstance(error, ExtractionError)
        ):
            self.breaker.end()  # it never came to asking the model, or came past it
        else:
            self.breaker.succeed()
        if cancelled and self._is_ending:
            return  # `close` answers
        # What went wrong may quote the conversation: details are for who asks for them.
        kind = type(error.__cause__ or error).__name__
        _logger.debug("why a turn could not be applied", exc_info=error)
        if isinstance(error, Forgotten) and job.journal is not None:
            await self._after_forgetting(job, error)
        elif transient and job.attempts < self._options.retry.attempts:
            pause = self._options.retry.pause(max(1, job.attempts), error)
            _logger.warning("a turn could not be applied: %s; again in %.1f s", kind, pause)
            self._again(job, pause)
        elif job.group and isinstance(error, ExtractionError):
            _logger.warning("turns could not be read together: %s; they are read one by one", kind)
            self._part(job)
        else:
            await self._park(job, error, kind)

    async def _after_forgetting(self, job: Job, error: Forgotten) -> None:
        """Read again, in today's memory, the turns that were not forgotten; those read together, one by one."""
        jobs = [job, *job.group]
        try:
            wanted = await in_thread(self._still_wanted, jobs)
        except (BackendError, LockTimeout):  # nobody knows yet; what may be forgotten is not parked
            job.attempts -= 1
            self._again(job, self._options.retry.pause(1, error))
            return
        gone = [each for each in jobs if each not in wanted]
        if gone and job.journal is not None:
            await in_thread(job.journal.finish, gone, now=True)
            _logger.error("%d turns could not be applied: Forgotten", len(gone))
        if wanted:
            _logger.info("something else of the user was forgotten; a turn is read again")
        with self._state:
            if self.working.pop(job, None) is None:
                return
            job.group = []
            for each in reversed(wanted):
                self.lines.put_back(each)
            self._figures.retries += bool(wanted)
            self._figures.failed += len(gone)
            self._settle(gone, None, error)
            self.lines.release(job.turn.user_id)
            self._let_go(job)
            self._state.notify_all()

    def _still_wanted(self, jobs: list[Job]) -> list[Job]:
        """Return the turns that are still in the journal; from now on they are of today's epoch."""
        backend, user = self._diary.engine.backend, jobs[0].turn.user_id
        # The epoch is the first thing that a forgetting changes, and the journals are not the last: whoever
        # forgets holds the user's lock all the time.
        with backend.lock(user, self._diary.engine.lock_timeout):
            epoch = backend.epoch(user)
            wanted = [job for job in jobs if job.journal is not None and job.journal.holds(job)]
        for job in wanted:
            job.epoch, job.operations = epoch, None
            job.turn = replace(job.turn, earlier=())  # it may quote what was forgotten
        return wanted

    def _again(self, job: Job, pause: float) -> None:
        with self._state:
            if self.working.pop(job, None) is None:
                return
            self._figures.retries += 1
            self.lines.put_back(job)
            if self._is_ending:
                return
        asyncio.get_running_loop().call_later(pause, self._resume, job.turn.user_id)

    def _part(self, job: Job) -> None:
        """Put turns back that were read together: the first is read alone, and so on with the others."""
        with self._state:
            if self.working.pop(job, None) is None:
                return
            jobs, job.group = [job, *job.group], []
            for each in reversed(jobs):
                self.lines.put_back(each)
            self._figures.retries += 1
            self.lines.release(job.turn.user_id)

    def _resume(self, user: str) -> None:
        with self._state:
            self.lines.release(user)
        self._dispatch()

    async def _park(self, job: Job, error: BaseException, kind: str) -> None:
        jobs = [job, *job.group]
        if isinstance(error, asyncio.CancelledError | FutureCancelled):
            # As it is, it would look as if who awaits the receipt was cancelled.
            error = RuntimeError("this turn was cancelled")
        parked = 0
        if job.journal is not None:
            if self.letters is not None:
                epoch_of = self._diary.engine.backend.epoch
                text = f"{type(error).__name__}: {error}"
                for each in jobs:
                    each.attempts = job.attempts
                    try:
                        await in_thread(self.letters.add, each, text, epoch_of)
                    except Forgotten as forgotten:
                        await self._after_forgetting(job, forgotten)
                        return
                parked = len(jobs)
            await in_thread(job.journal.finish, jobs, now=True)
        _logger.error(
            "a turn could not be applied: %s%s", kind, "; it is in the dead letters" if parked else ""
        )  # fmt: skip
        reason = _reason(error, kind)
        with self._state:
            if self.working.pop(job, None) is None:
                return
            if reason != self._figures.last_failure:
                show(f"a turn could not be applied: {reason} {_PARKED if parked else _LOST}")
            self._figures.last_failure = reason
            self._figures.failed += len(jobs)
            self._figures.dead_letters += parked
            self._settle(jobs, None, error)
            self.lines.release(job.turn.user_id)
            self._let_go(job)
            self._state.notify_all()

    def _give_up(self, job: Job, failure: BaseException) -> None:
        """Answer for a turn that could not even be parked; it stays in the journal."""
        if isinstance(failure, asyncio.CancelledError) and self._is_ending:
            return
        with self._state:
            if self.working.pop(job, None) is None:
                return  # `close` has answered
            _logger.error("a turn could neither be applied nor parked: %s", type(failure).__name__)
            self._figures.failed += 1 + len(job.group)
            self._settle([job, *job.group], None, failure)
            self.lines.release(job.turn.user_id)
            self._state.notify_all()

    def _settle(self, jobs: list[Job], result: Applied | None, error: BaseException | None) -> None:
        for each in jobs:
            each.receipt.settle(result, error)
            self.settled(each)

    def _let_go(self, job: Job) -> None:
        if self.intake is not None and job.journal is not None:
            self.intake.let_go(job.journal)

    # Ending

    def abandon(self, grace: float) -> int:
        """Cancel what is in work, answer for what is left, and return how many turns that is."""
        with self._state:
            self._is_ending = True
            queued = self.lines.drain()
            tasks = list(self.working.values())
        loop = self.thread.loop if self.thread is not None else None
        if loop is not None:
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        if tasks:
            done = asyncio.run_coroutine_threadsafe(_ended(tasks, grace), loop) if loop else None
            if done is not None:
                done.result()
        with self._state:
            left = [*queued, *self.lines.drain(), *self.working]
            self.working.clear()
            count = 0
            for job in left:
                jobs = [job, *job.group]
                count += len(jobs)
                if job.journal is None:
                    self._figures.failed += len(jobs)
                else:
                    self.kept += len(jobs)
                self._settle(jobs, None, RuntimeError(_KEPT if job.journal is not None else _LEFT))
            self._state.notify_all()
        return count


def _reason(error: BaseException, kind: str) -> str:
    """Return why a turn failed, without a word of the conversation: other errors may quote it."""
    if isinstance(error, MissingExtra | SchemaError | ExtractorUnusable):
        return str(error)
    return f"{kind}."


async def _ended(tasks: list[asyncio.Task[None]], grace: float) -> None:
    await asyncio.wait(tasks, timeout=grace)


def _nothing() -> None: ...


def _nothing_about(_job: Job) -> None: ...
