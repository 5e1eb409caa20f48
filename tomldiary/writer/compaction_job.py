"""Clean-ups as jobs of the writer: after turns, never in their way, one part at a time.

A user's clean-up is divided into parts (a category of preferences, the conversations); each is read by the
compactor and committed by itself. A part that fails is tried once more after a pause and then left until
the next time a clean-up is due: the others are stored all the same.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tomldiary.logging import get_logger

if TYPE_CHECKING:
    from threading import Condition

    from tomldiary.diary import Diary
    from tomldiary.writer.job import Job
    from tomldiary.writer.metrics import Figures
    from tomldiary.writer.options import Options

__all__ = ["Cleaner"]

_TRIES = 2
_GRACE = 1.0  # seconds

_logger = get_logger(__name__)


class Cleaner:
    """Runs the diary's clean-ups in the writer's loop, one at a time.

    Args:
        diary: Knows what is due, and the compactor.
        options: How long a part may take, and how long the pause before the second try is.
        state: The writer's lock.
        figures: Counts parts.
    """

    def __init__(self, diary: Any, options: Options, state: Condition, figures: Figures) -> None:
        self.running: dict[str, asyncio.Task[None]] = {}
        self.parked: dict[tuple[str, str, str], str] = {}
        """Parts that failed twice, by user, document and category, with the error's type."""
        self._diary = diary
        self._options = options
        self._state = state
        self._figures = figures
        self._one_at_a_time = asyncio.Semaphore(1)

    def after_turn(self, job: Job) -> None:
        """Have the user's memory cleaned up if it is due and nobody is at it; called in the loop."""
        config = getattr(self._diary, "compaction_config", None)
        user = job.turn.user_id
        if config is None or not config.enabled or user in self.running:
            return
        now = job.turn.context_now or datetime.now(UTC)
        work = self._clean(self._diary, user, job.turn.session_id, now)
        with self._state:
            self.running[user] = asyncio.get_running_loop().create_task(work)

    def stop(self) -> None:
        """Cancel what is under way; what is done is stored, and the rest is due again."""
        with self._state:
            for task in self.running.values():
                task.get_loop().call_soon_threadsafe(task.cancel)
            self._state.wait_for(lambda: not self.running, _GRACE)

    async def _clean(self, diary: Diary, user: str, session: str, now: datetime) -> None:
        try:
            async with self._one_at_a_time:
                due = await diary.compaction.due(user, now)
                if due:
                    for part in await diary.compaction.parts(user, due):
                        await self._clean_part(diary, user, session, part, now)
                    await diary.compaction.note_done(user, session, due, now)
        except Exception as error:
            _logger.error("a clean-up failed: %s; it comes later", type(error).__name__)  # noqa: TRY400 - see below
            _logger.debug("why a clean-up failed", exc_info=error)
            with self._state:
                self._figures.compactions_failed += 1
        finally:
            with self._state:
                self.running.pop(user, None)
                self._state.notify_all()

    async def _clean_part(
        self, diary: Diary, user: str, session: str, part: tuple[str, str], now: datetime
    ) -> None:
        for attempt in range(1, _TRIES + 1):
            try:
                async with asyncio.timeout(self._options.timeout):
                    await diary.compaction.run_part(user, session, part, now)
            except Exception as error:
                # What went wrong may quote the memory: details are for who asks for them.
                _logger.debug("why a part of a clean-up failed", exc_info=error)
                if attempt < _TRIES:
                    await asyncio.sleep(self._options.retry.pause(attempt, error))
                    continue
                _logger.error(  # noqa: TRY400 - the same
                    "a part of a clean-up failed %d times and is parked: %s",
                    _TRIES, type(error).__name__,
                )  # fmt: skip
                with self._state:
                    self._figures.compactions_failed += 1
                    self.parked[user, *part] = type(error).__name__
                return
            with self._state:
                self._figures.compactions += 1
                self.parked.pop((user, *part), None)
            return
