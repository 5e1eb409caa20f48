"""`MemoryWriter`: background updates. A turn is in the journal when `submit` returns and is applied later.

A killed process loses no stored turn: the next writer of the same diary takes its journal over. Turns of one user
are applied in the order of their submission, each exactly once. Users are served round robin and concurrently, so
a busy or failing user delays no other. Workers run in a thread and event loop of the writer, so it works with sync
code, `asyncio.run` and notebooks.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from tomldiary.diary import Diary
from tomldiary.errors import InvalidValue, wrong_type
from tomldiary.extraction.context import Turn, TurnStatus
from tomldiary.extraction.extractor import setup_problem
from tomldiary.identifiers.user_ids import checked_user
from tomldiary.logging import get_logger, tell
from tomldiary.runtime.async_bridge import needs_threads, running_loop
from tomldiary.runtime.callables import refuse_misfit
from tomldiary.runtime.views import Viewed, counted, drawn, pretty
from tomldiary.storage.locks import InterruptibleCondition
from tomldiary.storage.protocol import Backend, KeepsHidden, KeepsJournal
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.toml.values import check_instance, check_timeout, checked_flag
from tomldiary.writer.attempts import Metrics, Options, RetryPolicy, Telemetry
from tomldiary.writer.dead_letters import DeadLetters
from tomldiary.writer.jobs import CompactionJobs, ConsolidationJobs
from tomldiary.writer.journal_queue import JournalQueue
from tomldiary.writer.metrics import Health, WriterStats, health_of, prometheus_text, stats_of
from tomldiary.writer.queue import Admission
from tomldiary.writer.receipts import Receipt, is_overridden, refuse_own_work
from tomldiary.writer.shared.queue import SharedQueue
from tomldiary.writer.shutdown import close_at_exit, end_open_runs
from tomldiary.writer.worker import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from datetime import datetime

    from tomldiary.extraction.consolidation import Consolidated
    from tomldiary.runtime.async_bridge import LoopThread


WORKERS = max(8, 2 * (os.cpu_count() or 1))
QUEUE_MAXSIZE = 1000
SHUTDOWN_TIMEOUT = 30
"""The default time limit of `close` for queued turns, in seconds."""
_GRACE = 1.0  # the time in seconds for a cancelled turn to end

_logger = get_logger(__name__)


class MemoryWriter(Viewed):
    """Queues turns and applies them to a diary in the background.

    A turn runs with the context variables of the writer's creation, never with those of a request. The queue is
    stored in one of three places:

    - A journal, if the diary is a folder and its durability is not "none".
    - The shared database, if the diary is on one. Writers on all machines share this queue.
    - The memory of the process, for any other diary.

    Args:
        diary: The diary that applies the turns.
        workers: The maximum number of turns in work at the same time, each of a different user; at most 10,000. With 0,
            the writer only stores turns in a shared database, and other writers apply them. Closing does not wait for
            them.
        qsize: The maximum number of waiting turns; at this limit `submit` waits and `submit_nowait` raises.
        timeout: The extractor's time limit for one turn in seconds; None is no limit.
        retry: The number of attempts after transient errors, and the pauses between them.
        coalesce: The maximum number of waiting turns of one session that are read in one call of the model. What is found
            in them has all of them as its source. The offline rules read each turn alone.
        breaker: The number of consecutive transient errors, of any users, after which the model is considered down.
        breaker_pause: The time in seconds until the model is called again; doubles while it stays down.
        takeover_interval: The maximum time in seconds until the journal of a dead writer is found.
        lease: The time in seconds without a heartbeat after which other writers on a shared database take over. Give all
            writers of one database the same value: a writer with a shorter one takes a slower one for dead.
        consolidate_every: The number of transactions of a user after which the user's unread episodes are consolidated.
        consolidate_after: The time in seconds without a transaction of a user after which they are consolidated. With
            either option, the writer begins with the episodes that earlier processes left unread. Set these options
            in only one process of a diary.

    Raises:
        InvalidValue: An option has the wrong type, is out of its range, or is not supported by `diary`.
        RuntimeError: The threads of this process are greenlets.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class with a `_process`, which TOMLDiary 0.9 called for each turn, as no turn calls it here.

        Raises:
            TypeError: The class has this method.
        """
        super().__init_subclass__(**options)
        if hasattr(cls, "_process"):
            raise TypeError(
                f"{cls.__name__} overrides _process, but no turn calls it, so its effect would be missing."
                " Override update_memory of Diary."
            )

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
        takeover_interval: float = 10.0,
        lease: float = 15.0,
        consolidate_every: int | None = None,
        consolidate_after: float | None = None,
    ) -> None:
        retry = RetryPolicy() if retry is None else retry
        self._options = Options(
            workers, qsize, timeout, retry, coalesce, breaker, breaker_pause, takeover_interval, lease,
            consolidate_every, consolidate_after,
        )  # fmt: skip
        check_instance(diary, "diary")
        if not callable(getattr(diary, "update_memory", None)):
            raise wrong_type(diary, "a Diary", "diary", "Give Diary(folder).")
        named = "user_id, session_id, user_msg, assistant_msg, context_now=…"
        refuse_misfit(diary.update_memory, named, "update_memory", "", "", "", "", context_now=None)
        self.diary = diary
        # Any object with `update_memory` can be a diary, but only a `Diary` has an engine with a backend.
        full = diary if isinstance(diary, Diary) else None  # pyright: ignore[reportUnnecessaryIsInstance] - see above
        self._full_diary = full
        self._backend: Backend | None = full.engine.backend if full is not None else None
        if workers == 0 and not isinstance(self._backend, SharedBackend):
            raise InvalidValue(
                "workers=0 needs a diary on PostgreSQL, Redis or Firestore, where other writers apply the turns."
            )
        if self._options.consolidates and (full is None or not workers):
            raise InvalidValue(
                "consolidate_every and consolidate_after need a Diary and at least one worker."
            )
        needs_threads()  # now, as a queue in memory starts its threads with the first turn
        self._context = contextvars.copy_context()
        problem = self._setup_problem()
        if problem:
            tell(_logger, f"no turn can be extracted: {problem}", logging.ERROR)
        elif self._full_diary is not None and workers and not is_overridden(diary):
            # Its modules are imported now. If a worker imported them during a fork, the child would wait forever for
            # the end of this import.
            with suppress(Exception):  # the first turn fails with the error
                _ = self._full_diary.turns.extractor
        self._reset(is_closed=False)
        close_at_exit(self)
        with self._state:
            if self._journal_queue is not None:
                self._journal_queue.work_soon()
            if self._journal_queue is not None or self._options.consolidates:
                self._start()

    def _setup_problem(self) -> str:
        """Return why no turn can be extracted now, or ""; see `setup_problem`."""
        if not self._options.workers:
            return ""
        # A diary that overrides `update_memory` may have no extractor at all.
        return "" if is_overridden(self.diary) else setup_problem(self.diary.agent)

    def _reset(self, *, is_closed: bool) -> None:
        self._reported = 0  # failed turns that `flush` and `close` have reported
        self._state = InterruptibleCondition()
        # Reentrant, because a signal handler may close the writer while `close_sync` runs.
        self._ending = threading.RLock()
        self.has_ended = is_closed
        """Whether a call of `close` has ended the writer; a forked child has nothing to end."""
        self._metrics = Metrics()
        store = type(self.diary).__name__ if self._backend is None else repr(self._backend)
        telemetry = Telemetry(store)
        self._workers = Workers(
            self.diary, self._options, self._state, self._metrics, self._context, telemetry
        )
        self._admission = Admission(
            self._full_diary, self._options.qsize, self._state, self._metrics, self._workers,
            self._start,
        )  # fmt: skip
        self._admission.is_closed = is_closed
        self._compactions = CompactionJobs(self.diary, self._options, self._state, self._metrics)
        self._workers.admission, self._workers.compactions = self._admission, self._compactions
        self._consolidations = ConsolidationJobs(self.diary, self._options, self._state)
        self._journal_queue = self._new_journal_queue()
        telemetry.report(self)

    def _new_journal_queue(self) -> JournalQueue | SharedQueue | None:
        backend, admission = self._backend, self._admission
        if isinstance(backend, SharedBackend):
            queue = SharedQueue(
                backend, admission, self._workers.settle_elsewhere,
                lease=self._options.lease, works=self._options.workers > 0,
            )  # fmt: skip
        elif isinstance(backend, KeepsJournal) and isinstance(backend, KeepsHidden):
            root = backend.journal_folder
            if root is None:
                return None
            interval = self._options.takeover_interval
            queue = JournalQueue(root, backend, admission, interval=interval)
        else:
            return None
        admission.journal_queue = queue
        redact = None if self._full_diary is None else self._full_diary.redactor
        self._workers.dead_letters = DeadLetters(backend, redact)
        return queue

    def after_fork(self) -> None:
        """Reset the writer in a forked child: the threads, turns and journals belong to the parent."""
        if self._journal_queue is not None:
            self._journal_queue.drop()
        self._consolidations.unwatch()
        self._reset(is_closed=not self.is_running)

    def __repr__(self) -> str:
        return f"<MemoryWriter {self._admission.queued} queued, {self._workers.active} in work>"

    _repr_pretty_ = pretty

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self)} - {"after_fork", "look_for_dead_writers"})

    # Submitting turns

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
        earlier: Sequence[tuple[str, str]] | None = None,
        epoch: int | None = None,
        user_message: str | None = None,
        assistant_response: str | None = None,
    ) -> Receipt:
        """Store a turn in the journal and return its receipt; wait while the queue is full.

        Cancelling a waiting `submit` withdraws the turn, unless the turn is in work or another caller has submitted
        it under the same operation id. In a shared database, a turn with an `operation_id` stays once its storing has
        begun, because another process may have submitted it. `user_message` and `assistant_response` are aliases of
        the two messages. For the other arguments see `Turn`.

        Raises:
            RuntimeError: The writer is closed.
            InvalidValue: A text cannot be stored in a file, or the session id is too long.
            Conflict: A turn with this operation id and different content was already submitted.
            BackendError: The journal could not be written. The turn was not stored, unless the error says that this is unknown.
            Forgotten: The whole user was erased since `epoch`, or any data of the user while the call waited. The turn
                was not stored.
        """
        turn = Turn(
            user_id,
            session_id,
            _one_of("user_msg", user_msg, user_message),
            _one_of("assistant_msg", assistant_msg, assistant_response),
            context_now,
            status,
            operation_id,
            earlier,
            epoch=epoch,
        )
        return await self._admission.submit(self._accepted(turn))

    async def submit_turn(self, turn: Turn) -> Receipt:
        """Submit a `Turn` like `submit`."""
        return await self._admission.submit(self._accepted(turn))

    def submit_nowait(self, turn: Turn) -> Receipt:
        """Queue a turn from sync code and return its receipt at once; another thread stores it.

        `receipt.wait_stored()` returns once the turn is in the journal.

        Raises:
            WriterBusy: The queue is full.
            RuntimeError: The writer is closed.
            InvalidValue: `turn` is no `Turn`, a text cannot be stored in a file, or the session id is too long.
            Conflict: A turn with this operation id and different content was already submitted.
            BackendError: The storage failed, and the queue is in memory. The turn was not queued.
        """
        return self._admission.submit_nowait(self._accepted(turn))

    def submit_later(self, turn: Turn) -> Receipt:
        """Queue a turn like `submit_nowait`; if the queue is full, it waits in memory for space, also while the writer closes.

        For the turn of a run that has ended and cannot wait. Not limited by `qsize`. The turn is refused if data of the
        user is erased or the storage fails while it waits; see the receipt.

        Raises:
            Exception: The errors of `submit_nowait`, except WriterBusy.
        """
        return self._admission.submit_nowait(self._accepted(turn), may_wait=True)

    def _accepted(self, turn: Turn) -> Turn:
        """Return a turn with its texts redacted by the diary, so that no queue or journal contains the originals.

        Raises:
            InvalidValue: `turn` is no `Turn`.
        """
        if not isinstance(turn, Turn):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            hint = "Give Turn(user_id, session_id, user_msg, assistant_msg)."
            raise wrong_type(turn, "a Turn", "turn", hint)
        return turn if self._full_diary is None else self._full_diary.redacted_turn(turn)

    def _start(self) -> LoopThread:
        thread = self._workers.thread
        if thread is None:
            thread = self._workers.start()
            # Stops the thread of a writer that is collected without being closed.
            weakref.finalize(self, thread.stop).atexit = False
            if self._options.consolidates:
                self._consolidations.begin(thread.loop)
                weakref.finalize(self, self._consolidations.unwatch).atexit = False
        return thread

    def look_for_dead_writers(self) -> None:
        """Schedule a search for turns of dead writers, in addition to the periodic search; `flush` waits for it."""
        with self._state:
            if self._journal_queue is not None and self.is_running:
                self._journal_queue.search_soon()

    # Observing, waiting, closing

    @property
    def is_running(self) -> bool:
        """Whether turns are accepted."""
        return not self._admission.is_closed

    def stats(self) -> WriterStats:
        """Return a consistent snapshot of the counters: submitted = completed + failed + pending.

        `oldest_age` and the latencies are in seconds. `loss_window` is the number of turns that a killed process
        would lose now. `durability` is the durability of the other turns.
        """
        with self._state:
            stats = stats_of(self._metrics, self._options, self._workers, self._admission)
        counted = self._full_diary.turns.stats() if self._full_diary is not None else {}
        return WriterStats({**stats, **counted, "setup_problem": self._setup_problem()})

    def health(self, *, longest_wait: float = 300.0, most_errors: float = 0.05) -> Health:
        """Return the writer's health, for a health endpoint.

        Args:
            longest_wait: The maximum age of the oldest turn in seconds.
            most_errors: The maximum share of failed turns among those that ended in the last five minutes.

        Raises:
            InvalidValue: An argument is not a number, or out of its range.
        """
        return health_of(self.stats(), longest_wait=longest_wait, most_errors=most_errors)

    def plot_queue(self, ax: Any = None) -> Any:
        """Plot the number of turns waiting or in work over time, from the last 1,024 applied turns; return the Axes.

        Args:
            ax: The matplotlib Axes to draw on; None creates a figure.

        Raises:
            MissingExtra: matplotlib is not installed.
        """
        with self._state:
            recent = list(self._metrics.recent)
        return drawn("plots:queue", recent, self.stats(), ax)

    def prometheus(self) -> str:
        """Return the counters in the text format that Prometheus reads."""
        return prometheus_text(self.stats())

    def consolidate(self, user_id: str) -> Future[Consolidated]:
        """Start `alice.consolidate()` in the background, and return its future; `flush` waits for it.

        Closing the writer waits for the consolidation as for turns, and then cancels it. The results of episodes that
        were already read are stored. The next consolidation reads the others.

        Raises:
            RuntimeError: The writer is closed.
        """
        user_id = checked_user(user_id)
        with self._state:
            self._admission.check_open()
            # The lock is held, so a concurrent `close` waits for this consolidation.
            return self._consolidations.start(user_id, self._start().loop)

    def flush(self, timeout: float | None = None) -> bool:
        """Block until no turn is queued or in work; return False after `timeout` seconds.

        It also waits for adopted turns, compactions and consolidations. Turns that failed since the last call
        are reported in a warning, on stderr if no logging is configured.

        Raises:
            InvalidValue: `timeout` is not a number.
            RuntimeError: An extractor of this writer called it.
        """
        return self._flush(timeout, lambda: False)

    def _flush(self, timeout: float | None, is_cancelled: Callable[[], bool]) -> bool:
        check_timeout(timeout)
        refuse_own_work(self._state)
        with self._state:
            self._state.wait_for(lambda: self._is_idle() or is_cancelled(), timeout)
            is_done = self._is_idle()
        self._report_failures()
        return is_done

    def _report_failures(self) -> None:
        with self._state:
            failed, parked = self._metrics.failed - self._reported, self._metrics.dead_letters
            self._reported = self._metrics.failed
            reason = self._metrics.last_failure
        if failed:
            last = f" The last one: {reason}" if reason else ""
            text = f"turns that failed: {failed}; in the dead letters of this writer: {parked}."
            tell(_logger, text + last)

    def _is_idle(self) -> bool:
        return (
            not self._admission.queued
            and not self._workers.working
            and not self._compactions.running
            and not self._consolidations.running
            and not self._consolidations.is_busy
            and (self._journal_queue is None or not self._journal_queue.is_due)
        )

    async def aflush(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the twin of flush
        """Wait like `flush` without blocking the event loop."""
        running_loop()
        cancelled = threading.Event()
        try:
            return await asyncio.to_thread(self._flush, timeout, cancelled.is_set)
        except asyncio.CancelledError:
            # Otherwise the thread would wait on, and the end of `asyncio.run` for the thread.
            cancelled.set()
            with self._state:
                self._state.notify_all()
            raise

    def close_sync(self, timeout: float | None = None, *, drain: bool = True) -> WriterStats:
        """Refuse further turns, finish the waiting turns, and return the final counters.

        Failed turns are reported as by `flush`.

        Args:
            timeout: The time limit in seconds; None uses `SHUTDOWN_TIMEOUT`. Turns that are not done by then are
                cancelled, and their receipts raise a RuntimeError. Turns in a journal stay there and count as
                pending. Turns of a queue in memory are lost and count as failed.
            drain: Whether to finish the waiting turns; False leaves them.

        Raises:
            InvalidValue: `timeout` is not a number, or `drain` is not True or False. The writer stays open.
            RuntimeError: An extractor of this writer called it. The writer stays open.
        """
        return self._close(timeout, None, drain=drain)

    def _close(
        self, timeout: float | None, loop: asyncio.AbstractEventLoop | None, *, drain: bool
    ) -> WriterStats:
        check_timeout(timeout)
        checked_flag(drain, "drain")
        refuse_own_work(self._state)
        wait = SHUTDOWN_TIMEOUT if timeout is None else timeout
        deadline = time.monotonic() + wait
        end_open_runs(self, loop, wait)
        self._admission.close()
        left = max(0.0, deadline - time.monotonic())
        try:
            self.flush(left if drain and self._options.workers else 0)
        finally:  # also after Ctrl-C, so that the turns that are left are reported
            with self._ending:  # several threads may close the writer, and each more than once
                if not self.has_ended:
                    self._end()
                    self.has_ended = True
        self._report_failures()
        return self.stats()

    def _end(self) -> None:
        if self._journal_queue is not None:
            self._journal_queue.stop()
        self._compactions.stop()
        self._consolidations.stop()
        if not self.flush(0):
            left = self._workers.abandon(_GRACE)
            text = f"the writer was closed with {counted(left, 'turn')} not applied; {'it is' if left == 1 else 'they are'}"
            if self._journal_queue is None:
                tell(_logger, f"{text} lost.", logging.ERROR)
            elif self._options.workers:
                tell(_logger, f"{text} kept in {self._journal_queue.root}")
            else:
                _logger.info("%s kept in %s", text, self._journal_queue.root)
        self._stop()

    async def close(self, timeout: float | None = None, *, drain: bool = True) -> WriterStats:  # noqa: ASYNC109 - the twin of close_sync
        """Close like `close_sync` without blocking the event loop; open runs of agents get up to a second of `timeout` to end."""
        return await asyncio.to_thread(self._close, timeout, running_loop(), drain=drain)

    def _stop(self) -> None:
        with self._state:
            thread, self._workers.thread = self._workers.thread, None
        if thread is not None:
            thread.stop()
            thread.join(_GRACE)
        if self._journal_queue is None:
            return
        if thread is None or not thread.thread.is_alive():
            self._journal_queue.close()
        else:
            # A turn that ignores its cancellation may still write to the journal, so the journal stays locked until it
            # has ended.
            queue, ending = self._journal_queue, thread.thread

            def close_after() -> None:
                ending.join()
                queue.close()

            threading.Thread(target=close_after, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the writer once the queued turns are applied."""
        self.close_sync()

    async def __aenter__(self) -> Self:
        running_loop()  # because the end of the block needs it
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the writer once the queued turns are applied."""
        await self.close()


def _one_of(name: str, first: str | None, second: str | None) -> str:
    chosen = first if first is not None else second
    if chosen is None:
        raise TypeError(f"submit() needs {name}.")
    return chosen
