"""The jobs of a writer besides turns: compacting a user's memory after turns, and consolidating episodes.

A compaction is divided into parts: each category of preferences, and the conversations. The compactor reads each part
separately, and each part is a separate transaction. A part that fails is tried once more after a pause, then left until
the next compaction.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tomldiary.diary import Diary
from tomldiary.errors import cause_of
from tomldiary.extraction.consolidation import Consolidated, consolidate
from tomldiary.history.record import next_sequence
from tomldiary.logging import get_logger, tell
from tomldiary.runtime.async_bridge import in_thread, is_stopped
from tomldiary.writer.attempts import is_transient
from tomldiary.writer.receipts import calling_writer

if TYPE_CHECKING:
    from concurrent.futures import Future
    from threading import Condition

    from tomldiary.writer.attempts import Metrics, Options
    from tomldiary.writer.receipts import Job

_COMPACTION_ATTEMPTS = 2
_CONSOLIDATION_ATTEMPTS = 5  # for one episode; after these, only an explicit `consolidate` reads it
_GRACE = 1.0  # the time in seconds for a cancelled compaction to end
_LONGEST_CHECK = 60.0  # the maximum time in seconds between two checks for due users
_LONGEST_PAUSE = 3600.0  # the maximum time in seconds until a failed consolidation is tried again
_DOUBLINGS = 16

_logger = get_logger(__name__)


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
        self._diary = diary
        self._options = options
        self._state = state
        self._metrics = metrics
        self._one_at_a_time = asyncio.Semaphore(1)

    def after_turn(self, job: Job) -> None:
        """Start a compaction of the user's memory unless one is running; called in the event loop."""
        diary, user = self._diary, job.turn.user_id
        config = diary.compaction_config if isinstance(diary, Diary) else None
        if config is None or not config.enabled or user in self.running:
            return
        now = job.turn.context_now or datetime.now(UTC)
        work = self._compact(diary, user, job.turn.session_id, now)
        with self._state:
            self.running[user] = asyncio.get_running_loop().create_task(work)

    def stop(self) -> None:
        """Cancel the running compactions; finished parts are stored, and the others stay due."""
        with self._state:
            for task in self.running.values():
                task.get_loop().call_soon_threadsafe(task.cancel)
            self._state.wait_for(lambda: not self.running, _GRACE)

    async def _compact(self, diary: Diary, user: str, session: str, now: datetime) -> None:
        try:
            async with self._one_at_a_time:
                due = await diary.compaction.due(user, now)
                if due:
                    for part in await diary.compaction.parts(user, due):
                        await self._compact_part(diary, user, session, part, now)
                    await diary.compaction.note_done(user, session, due, now)
        except Exception as error:
            failed = f"a compaction failed: {type(error).__name__}; it is tried again later"
            tell(_logger, failed, logging.ERROR)
            _logger.debug("traceback of a compaction that failed", exc_info=error)
            with self._state:
                self._metrics.compactions_failed += 1
        finally:
            with self._state:
                self.running.pop(user, None)
                self._state.notify_all()

    async def _compact_part(
        self, diary: Diary, user: str, session: str, part: tuple[str, str], now: datetime
    ) -> None:
        kind, category = part
        for attempt in range(1, _COMPACTION_ATTEMPTS + 1):
            try:
                async with asyncio.timeout(self._options.timeout):
                    await diary.compaction.compact(user, session, [kind], now, category=category)
            except BaseException as error:
                if is_stopped():
                    raise
                # The error may quote the memory, so details are logged at debug level only.
                _logger.debug("traceback of a part of a compaction that failed", exc_info=error)
                if attempt < _COMPACTION_ATTEMPTS:
                    await asyncio.sleep(self._options.retry.pause(attempt, error))
                    continue
                tell(
                    _logger,
                    f"a part of a compaction failed {_COMPACTION_ATTEMPTS} times and is left until the next"
                    f" compaction: {cause_of(error)}",
                    logging.ERROR,
                )
                with self._state:
                    self._metrics.compactions_failed += 1
                return
            with self._state:
                self._metrics.compactions += 1
            return


# Consolidations


class ConsolidationJobs:
    """Consolidates episodes in the writer's event loop, one user at a time, on request or when they are due.

    Unread episodes are found by their marks in the diary, and a new writer checks all users first. Therefore a killed
    process loses nothing.

    Args:
        diary: Provides the episodes and the extractor.
        options: The settings that determine when the episodes of a user are due.
        state: The writer's lock.
    """

    def __init__(self, diary: Any, options: Options, state: Condition) -> None:
        self._diary = diary
        self._state = state
        self._every = options.consolidate_every
        self._after = options.consolidate_after
        self._loop: asyncio.AbstractEventLoop | None = None
        self.running: set[Future[Consolidated]] = set()
        """The consolidations on request."""
        self.is_busy = False
        """Whether users are being checked, or due consolidations run."""
        self._known: dict[str, int] = {}
        """The sequence number from which `consolidate_every` counts each user's transactions."""
        self._due: dict[str, float] = {}
        """When the episodes of each user are due (monotonic clock)."""
        self._failures: dict[str, int] = {}
        """The number of consecutive failed consolidations of each user."""
        self._woken = asyncio.Event()
        self._watcher: Future[None]
        self._one_at_a_time = asyncio.Semaphore(1)

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to watch the users, beginning with the episodes that earlier processes left unread."""
        self._loop, engine, self.is_busy = loop, self._diary.engine, True
        engine.after_change.append(self.note)
        self._watcher = asyncio.run_coroutine_threadsafe(self._watch(), loop)

    def stop(self) -> None:
        """Stop watching, and cancel the running consolidations; unread episodes stay due."""
        self.unwatch()
        with self._state:
            running, self.is_busy = list(self.running), False
        for future in running:
            future.cancel()
        with self._state:
            self._state.wait_for(lambda: not self.running, _GRACE)

    def unwatch(self) -> None:
        """Stop watching the users."""
        if self._loop is not None:
            engine, loop, self._loop = self._diary.engine, self._loop, None
            engine.after_change.remove(self.note)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._watcher.cancel)

    def note(self, user: str) -> None:
        """Count the transactions of a user; called in any thread, and twice for some transactions."""
        backend, seq = self._diary.engine.backend, 0
        if self._every is not None:
            with suppress(Exception):  # of any backend; the change is stored
                seq = next_sequence(backend.last_record(user)) - 1
        with self._state:
            # After an erasure of the whole user, the numbers begin at 1 again.
            self._known[user] = min(seq, self._known.get(user, seq - 1))
            if self._after is not None:
                later = time.monotonic() + self._after
                # A consolidation that failed waits longer.
                self._due[user] = max(later, self._due.get(user, 0.0))
            is_due = self._every is not None and seq - self._known[user] >= self._every
            if not is_due or self._loop is None:
                return
            self._known[user], self._due[user], self.is_busy = seq, 0.0, True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    def start(self, user: str, loop: asyncio.AbstractEventLoop) -> Future[Consolidated]:
        """Start a consolidation of all unread episodes of a user."""
        with self._state:
            future = asyncio.run_coroutine_threadsafe(self._consolidate(user), loop)
            self.running.add(future)
        future.add_done_callback(self._has_ended)
        return future

    def _has_ended(self, future: Future[Consolidated]) -> None:
        with self._state:
            self.running.discard(future)
            self._state.notify_all()

    # In the event loop

    async def _consolidate(self, user: str, **options: Any) -> Consolidated:
        calling_writer.set(self._state)
        async with self._one_at_a_time:
            return await consolidate(self._diary, user, **options)

    async def _watch(self) -> None:
        """Consolidate the episodes of due users until this task is cancelled."""
        pause = min(_LONGEST_CHECK, (self._after or _LONGEST_CHECK) / 2)
        has_begun = False
        while True:
            self._woken.clear()
            has_begun = has_begun or await self._note_all_users()
            while (user := self._next_due()) is not None:
                await self._read(user)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._woken.wait()

    async def _note_all_users(self) -> bool:
        """Mark all users as due, since they may have unread episodes; return False if they cannot be listed."""
        try:
            users = await in_thread(self._diary.engine.backend.users)
        except Exception as error:  # noqa: BLE001 - of any backend; the next check tries again
            _logger.error("the users cannot be listed: %s", type(error).__name__)  # noqa: TRY400 - it may quote names
            return False
        with self._state:
            for user in users:
                self._due.setdefault(user, 0.0)
        return True

    def _next_due(self) -> str | None:
        now = time.monotonic()
        with self._state:
            user = next((user for user, when in self._due.items() if when <= now), None)
            if user is not None:
                del self._due[user]
            self.is_busy = user is not None and self._loop is not None
            self._state.notify_all()
        return user

    async def _read(self, user: str) -> None:
        is_failed = True
        try:
            done = await self._consolidate(
                user, attempts=_CONSOLIDATION_ATTEMPTS, ends_at=is_transient
            )
            is_failed = bool(done.failed)
        except BaseException as error:
            if is_stopped():
                raise
            # The error may quote the memory, so details are logged at debug level only.
            _logger.error("a consolidation failed: %s; it will be retried", type(error).__name__)  # noqa: TRY400 - see above
            _logger.debug("traceback of a consolidation that failed", exc_info=error)
        failures = self._failures.pop(user, 0) + 1
        if is_failed:
            pause = (self._after or _LONGEST_CHECK) * 2.0 ** min(failures, _DOUBLINGS)
            with self._state:
                self._failures[user] = failures
                self._due[user] = time.monotonic() + min(pause, _LONGEST_PAUSE)
