"""Applying one turn: extract, note in the journal what was extracted, commit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tomldiary.errors import Forgotten, InvalidValue
from tomldiary.extraction.apply import TurnOperation, current_operation
from tomldiary.extraction.protocol import is_retried_as_a_whole
from tomldiary.runtime.async_bridge import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tomldiary.diary import Diary
    from tomldiary.extraction.apply import Applied
    from tomldiary.extraction.operations import Operation
    from tomldiary.writer.job import Job

__all__ = ["apply"]


async def apply(diary: Any, job: Job, *, timeout: float | None) -> Applied | None:  # noqa: ASYNC109 - of the model call alone
    """Apply a turn, and those that are read with it, exactly once.

    Any object with `update_memory` will do for a diary, and one that was overridden is honoured; what it
    does is called again after a crash, and only `Diary`'s own part of it is known to be done already.

    Args:
        diary: Whose memory changes.
        job: The turn.
        timeout: Seconds that the extractor may take.

    Raises:
        TimeoutError: The extractor took longer. Nothing was changed.
    """
    from tomldiary.diary import Diary  # noqa: PLC0415 - the diary module is not needed to import this one

    is_retried_as_a_whole.set(True)
    turn = job.turn
    if job.asked is not None:
        job.epoch, job.asked = await asyncio.wrap_future(job.asked), None
    last = job.group[-1] if job.group else job
    earlier = None if turn.earlier is None else tuple(turn.earlier)
    operation = TurnOperation(
        job.operation, job.content, job.epoch, job.is_new and not job.attempts, 1 + len(job.group),
        earlier, job.began, last.time,
    )  # fmt: skip
    if getattr(diary.update_memory, "__func__", None) is not Diary.update_memory:
        current_operation.set(operation if isinstance(diary, Diary) else None)
        async with asyncio.timeout(timeout):
            await diary.update_memory(
                turn.user_id, turn.session_id, turn.user_msg, turn.assistant_msg,
                context_now=turn.context_now,
            )  # fmt: skip
        await in_thread(_finish, job)
        return None
    return await _apply(diary, job, operation, timeout)


async def _apply(
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
            # What is forgotten is not even shown to the model again.
            raise Forgotten("something of this user was forgotten since this turn was taken in.")
        user_msg, assistant_msg = _messages([job, *job.group])
        async with asyncio.timeout(seconds):
            operations = await diary.extract_turn(
                turn.user_id, turn.session_id, user_msg, assistant_msg, now=turn.context_now,
                operation=operation,
            )  # fmt: skip
    return await in_thread(_commit, diary, job, operations, operation)


def _commit(
    diary: Diary,
    job: Job,
    operations: Sequence[Operation],
    operation: TurnOperation,
) -> Applied:
    jobs = [job, *job.group]
    if job.operations is None:
        if job.journal is not None:
            # A group has one id in history: without this note, its turns would be read one by one again.
            is_durable = len(jobs) > 1
            try:
                job.journal.append_operations(
                    jobs, operations, diary.engine.backend.epoch, sync=is_durable
                )
            except InvalidValue:  # the commit skips what cannot be stored, and says so
                if is_durable:
                    raise
        job.operations = list(operations)
    done = diary.commit_turn(
        job.turn.user_id, job.turn.session_id, operations,
        now=job.turn.context_now, operation=operation,
    )  # fmt: skip
    _finish(job)
    return done


def _finish(job: Job) -> None:
    """Note in the journal that a turn was applied, with those that were read with it."""
    jobs = [job, *job.group]
    if job.journal is not None:
        job.journal.finish(jobs, now=len(jobs) > 1)


def _messages(jobs: Sequence[Job]) -> tuple[str, str]:
    """Return what was said on both sides; an answer that was cut short says so."""
    answers: list[str] = []
    for job in jobs:
        answer = job.turn.assistant_msg
        if job.turn.status != "completed":
            answer = f"{answer}\n[not finished: the run was {job.turn.status}]".lstrip()
        answers.append(answer)
    return "\n\n".join(job.turn.user_msg for job in jobs), "\n\n".join(answers)
