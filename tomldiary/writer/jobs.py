"""The jobs of a writer: applying a turn, consolidating episodes, and compacting a user's memory after turns.

Applying a turn has three steps: extract, record the extracted operations in the journal, commit.

A compaction is divided into parts (a category of preferences, the conversations). The compactor reads each part,
and each part is a transaction of its own. A part that fails is tried once more after a pause, then left until the
next compaction.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from tomldiary.diary import Diary
from tomldiary.entries.episodes import KeptTurn
from tomldiary.errors import Forgotten, InvalidValue
from tomldiary.extraction.consolidation import consolidate
from tomldiary.extraction.extractor import is_retried_as_a_whole
from tomldiary.extraction.operations import Applied, Operation, TurnOperation, current_operation
from tomldiary.logging import get_logger
from tomldiary.runtime.async_bridge import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from threading import Condition

    from tomldiary.extraction.consolidation import Consolidated
    from tomldiary.writer.metrics import Metrics
    from tomldiary.writer.receipts import Job
    from tomldiary.writer.retry import Options

__all__ = ["CompactionJobs", "apply_turn", "is_overridden"]

_COMPACTION_ATTEMPTS = 2
_GRACE = 1.0  # seconds that a cancelled compaction has to end

_logger = get_logger(__name__)


# Turns


def is_overridden(diary: Any) -> bool:
    """Return whether `update_memory` is not the method of `Diary`; any object with this method can be a diary."""
    return getattr(diary.update_memory, "__func__", None) is not Diary.update_memory


async def apply_turn(diary: Any, job: Job, *, timeout: float | None) -> Applied | None:  # noqa: ASYNC109 - of the model call alone
    """Apply a turn, and the turns that are grouped with it, exactly once.

    An overridden `update_memory` is called again after a crash. Only the effect of `Diary.update_memory` inside it is
    not repeated.

    Args:
        diary: The diary to update.
        job: The turn.
        timeout: Seconds that the extractor may take.

    Raises:
        TimeoutError: The extractor took longer. Nothing was changed.
        Forgotten: Something of the user was forgotten since the turn was submitted. Nothing was changed.
    """
    is_retried_as_a_whole.set(True)
    turn = job.turn
    if job.asked is not None:
        job.epoch, job.asked = await asyncio.wrap_future(job.asked), None
    last = job.group[-1] if job.group else job
    earlier = None if turn.earlier is None else tuple(turn.earlier)
    operation = TurnOperation(
        job.operation, job.content, job.epoch, job.is_new and not job.attempts, 1 + len(job.group),
        earlier, job.began, last.time,
        partial(job.journal.check, job) if job.journal is not None else None,
    )  # fmt: skip
    if is_overridden(diary):
        current_operation.set(operation if isinstance(diary, Diary) else None)
        async with asyncio.timeout(timeout):
            await diary.update_memory(
                turn.user_id, turn.session_id, turn.user_msg, turn.assistant_msg,
                context_now=turn.context_now,
            )  # fmt: skip
        await in_thread(_finish, job)
        return None
    return await _extract_and_commit(diary, job, operation, timeout)


async def _extract_and_commit(
    diary: Diary, job: Job, operation: TurnOperation, seconds: float | None
) -> Applied:
    turn = job.turn
    operations = job.operations
    if operations is None:
        if not operation.is_new:
            done = await in_thread(diary.find_turn, turn.user_id, operation)
            if done is not None:
                await in_thread(_finish, job)
                return done
        if await diary.current_epoch(turn.user_id) != job.epoch:
            # The model must not read an erased turn.
            raise Forgotten("something of this user was forgotten since this turn was submitted.")
        user_msg, assistant_msg = _messages([job, *job.group])
        async with asyncio.timeout(seconds):
            operations = await diary.extract_turn(
                turn.user_id, turn.session_id, user_msg, assistant_msg, now=turn.context_now,
                operation=operation,
            )  # fmt: skip
    return await in_thread(_commit, diary, job, operations, operation)


def _commit(
    diary: Diary, job: Job, operations: Sequence[Operation], operation: TurnOperation
) -> Applied:
    jobs = [job, *job.group]
    if job.operations is None:
        if job.journal is not None:
            # A group has one id in history: without this record, a recovery would read its turns one by one again.
            is_durable = len(jobs) > 1
            try:
                job.journal.append_operations(
                    jobs, operations, diary.engine.backend.epoch, sync=is_durable
                )
            except InvalidValue:  # the commit skips values that cannot be stored, and reports them
                if is_durable:
                    raise
        job.operations = list(operations)
    done = diary.commit_turn(
        job.turn.user_id, job.turn.session_id, operations,
        now=job.turn.context_now, operation=operation,
        said=[kept for each in jobs if (kept := _kept(diary, each)) is not None],
    )  # fmt: skip
    _finish(job)
    return done


def _kept(diary: Diary, job: Job) -> KeptTurn | None:
    """Return a turn as the diary keeps it word for word; None if it does not."""
    turn = job.turn
    if not diary.keeps_turn(turn.episode):
        return None
    when = turn.context_now or (datetime.fromisoformat(job.time) if job.time else datetime.now(UTC))
    return KeptTurn(turn.user_msg, turn.assistant_msg, when, turn.steps)


def _finish(job: Job) -> None:
    """Record in the journal that a turn and its group were applied."""
    jobs = [job, *job.group]
    if job.journal is not None:
        job.journal.finish(jobs, now=len(jobs) > 1)


def _messages(jobs: Sequence[Job]) -> tuple[str, str]:
    """Return the messages of both sides; an answer of an unfinished run is marked."""
    answers: list[str] = []
    for job in jobs:
        answer = job.turn.assistant_msg
        if job.turn.status != "completed":
            answer = f"{answer}\n[not finished: the run was {job.turn.status}]".lstrip()
        answers.append(answer)
    return "\n\n".join(job.turn.user_msg for job in jobs), "\n\n".join(answers)


# Compactions


class CompactionJobs:
    """Runs the diary's compactions in the writer's event loop, one at a time.

    Args:
        diary: Provides the due compactions and the compactor.
        options: The time limit of a part, and the pause before the second attempt.
        state: The writer's lock.
        metrics: Counts parts.
    """

    def __init__(self, diary: Any, options: Options, state: Condition, metrics: Metrics) -> None:
        self.running: dict[str, asyncio.Task[None]] = {}
        self.parked: dict[tuple[str, str, str], str] = {}
        """Parts that failed twice, by user, document and category, with the error's type."""
        self.consolidating: set[Future[Consolidated]] = set()
        self._diary = diary
        self._options = options
        self._state = state
        self._metrics = metrics
        self._one_at_a_time = asyncio.Semaphore(1)

    def after_turn(self, job: Job) -> None:
        """Start a compaction of the user's memory unless one is running; called in the event loop."""
        diary = self._diary
        config = diary.compaction_config if isinstance(diary, Diary) else None
        user = job.turn.user_id
        if config is None or not config.enabled or user in self.running:
            return
        now = job.turn.context_now or datetime.now(UTC)
        work = self._compact(self._diary, user, job.turn.session_id, now)
        with self._state:
            self.running[user] = asyncio.get_running_loop().create_task(work)

    def consolidate(self, user: str, loop: asyncio.AbstractEventLoop) -> Future[Consolidated]:
        """Start a consolidation of a user's episodes in the event loop of the writer."""
        with self._state:
            future = asyncio.run_coroutine_threadsafe(self._consolidate(user), loop)
            self.consolidating.add(future)
        future.add_done_callback(self._has_consolidated)
        return future

    async def _consolidate(self, user: str) -> Consolidated:
        async with self._one_at_a_time:
            return await consolidate(self._diary, user)

    def _has_consolidated(self, future: Future[Consolidated]) -> None:
        with self._state:
            self.consolidating.discard(future)
            self._state.notify_all()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is running; hold the lock."""
        return not self.running and not self.consolidating

    def stop(self) -> None:
        """Cancel what is running; finished parts are stored, and the others stay due."""
        with self._state:
            for task in self.running.values():
                task.get_loop().call_soon_threadsafe(task.cancel)
            running = list(self.consolidating)
        for future in running:
            future.cancel()
        with self._state:
            self._state.wait_for(lambda: self.is_idle, _GRACE)

    async def _compact(self, diary: Diary, user: str, session: str, now: datetime) -> None:
        try:
            async with self._one_at_a_time:
                due = await diary.compaction.due(user, now)
                if due:
                    for part in await diary.compaction.parts(user, due):
                        await self._compact_part(diary, user, session, part, now)
                    await diary.compaction.note_done(user, session, due, now)
        except Exception as error:
            _logger.error("a compaction failed: %s; it stays due", type(error).__name__)  # noqa: TRY400 - see below
            _logger.debug("why a compaction failed", exc_info=error)
            with self._state:
                self._metrics.compactions_failed += 1
        finally:
            with self._state:
                self.running.pop(user, None)
                self._state.notify_all()

    async def _compact_part(
        self, diary: Diary, user: str, session: str, part: tuple[str, str], now: datetime
    ) -> None:
        for attempt in range(1, _COMPACTION_ATTEMPTS + 1):
            try:
                async with asyncio.timeout(self._options.timeout):
                    await diary.compaction.run_part(user, session, part, now)
            except Exception as error:
                # The error may quote the memory, so details are logged at debug level only.
                _logger.debug("why a part of a compaction failed", exc_info=error)
                if attempt < _COMPACTION_ATTEMPTS:
                    await asyncio.sleep(self._options.retry.pause(attempt, error))
                    continue
                _logger.error(  # noqa: TRY400 - see above
                    "a part of a compaction failed %d times and is parked: %s",
                    _COMPACTION_ATTEMPTS, type(error).__name__,
                )  # fmt: skip
                with self._state:
                    self._metrics.compactions_failed += 1
                    self.parked[user, *part] = type(error).__name__
                return
            with self._state:
                self._metrics.compactions += 1
                self.parked.pop((user, *part), None)
            return
