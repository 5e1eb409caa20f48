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
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from tomldiary.errors import InvalidValue
from tomldiary.extraction.resolve import setup_problem
from tomldiary.logging import get_logger, show
from tomldiary.runtime.finalizers import finalize
from tomldiary.writer.compaction_job import Cleaner
from tomldiary.writer.metrics import Figures, Health, health_of, prometheus_text
from tomldiary.writer.options import Options
from tomldiary.writer.queue import Reception
from tomldiary.writer.receipts import Receipt, Turn
from tomldiary.writer.retry import Breaker, RetryPolicy
from tomldiary.writer.shutdown import (
    background_tasks,
    fire_and_forget,
    remember,
    shutdown_all_background_tasks,
)
from tomldiary.writer.stats import stats_of
from tomldiary.writer.telemetry import Telemetry
from tomldiary.writer.worker import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path
    from typing import Self

    from tomldiary.diary import Diary
    from tomldiary.storage.protocol import Backend
    from tomldiary.writer.intake import Intake
    from tomldiary.writer.loop_thread import LoopThread
    from tomldiary.writer.receipts import TurnStatus

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
        if not callable(getattr(diary, "update_memory", None)):
            raise InvalidValue(
                f"expected a Diary, found {type(diary).__name__}. Give Diary(folder).",
                where="diary",
            )
        self.diary = diary
        # Anything with `update_memory` will do for a diary; only a real one has a backend that we know.
        self._backend: Backend | None = getattr(getattr(diary, "engine", None), "backend", None)
        self._options = Options(workers, qsize, timeout, coalesce, retry or RetryPolicy())
        self._breaker = (breaker, breaker_pause)
        self._context = contextvars.copy_context()
        self._closed = False
        problem = self._setup_problem()
        if problem:
            _logger.error("no turn can be extracted: %s", problem)
            show(f"no turn can be extracted: {problem}")
        self._reset()
        remember(self)
        if self._intake is not None:
            with self._state:
                self._intake.adopt_soon()
                self._watch()

    def _setup_problem(self) -> str:
        """Return why no turn can be extracted now, or ""; see `setup_problem`."""
        from tomldiary.diary import Diary  # noqa: PLC0415 - not needed to import this module

        # A diary that overrides `update_memory` need not have an extractor at all.
        own = getattr(self.diary.update_memory, "__func__", None)
        return setup_problem(self.diary.agent) if own is Diary.update_memory else ""

    def _reset(self) -> None:
        self._told = 0  # failed turns that `flush` and `close` have told of
        self._state = threading.Condition()
        self._ending, self._has_ended = threading.RLock(), False  # a signal handler may close too
        self._figures = Figures()
        self._workers = Workers(
            self.diary, self._options, self._state, self._figures, self._context,
            Breaker(*self._breaker), Telemetry(_store_of(self.diary), _figures_of(_weak(self))),
        )  # fmt: skip
        self._reception = Reception(
            self._options.qsize,
            self._backend,
            self._state,
            self._figures,
            self._workers,
            self._watch,
            getattr(self.diary, "sessions", None),
        )
        self._reception.is_closed = self._closed
        self._workers.made_room = self._reception.make_room
        self._workers.settled = self._reception.forget_operation
        self._cleaner = Cleaner(self.diary, self._options, self._state, self._figures)
        self._workers.applied = self._cleaner.after_turn
        self._intake = self._new_intake()

    def _new_intake(self) -> Intake | None:
        backend = self._backend
        root: Path | None = getattr(backend, "journal_folder", None)
        if backend is None or root is None:
            return None
        from tomldiary.writer.dead_letters import DeadLetters  # noqa: PLC0415 - not for queues in memory
        from tomldiary.writer.intake import Intake, close_journals  # noqa: PLC0415 - the same

        here = self._reception
        intake = here.intake = Intake(root, backend, self._state, here.take_in, here.refuse)
        self._workers.intake = intake
        self._workers.letters = DeadLetters(root)
        finalize(self, close_journals, intake.journals, at_exit=False)
        return intake

    def after_fork(self) -> None:
        """Start afresh in a forked child: it has its parent's counters, but not its threads or turns."""
        if self._intake is not None:
            self._intake.drop()
        self._reset()

    def __repr__(self) -> str:
        return f"<MemoryWriter {self._reception.queued} queued, {self._workers.active} in work>"

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
        earlier: Sequence[tuple[str, str]] | None = None,
        user_message: str | None = None,
        assistant_response: str | None = None,
    ) -> Receipt:
        """Store a turn in the journal and return its receipt; waits in line while the queue is full.

        Cancelling a `submit` that waits takes the turn back, unless it is being applied already or somebody
        else has submitted it too, under the same id.
        `user_message` and `assistant_response` are other names for the two messages; for the other
        arguments see `Turn`.

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
            earlier,
        )
        return await self._reception.submit(turn)

    async def submit_turn(self, turn: Turn) -> Receipt:
        """Do what `submit` does with a turn that is made already."""
        return await self._reception.submit(turn)

    def submit_nowait(self, turn: Turn) -> Receipt:
        """Queue a turn from sync code and return its receipt at once; it is stored in another thread.

        `receipt.wait_stored()` tells when it is in the journal.

        Raises:
            WriterBusy: The queue is full.
            RuntimeError: The writer is closed.
            InvalidValue: A text that no file can store.
            Conflict: A turn with this operation id, and other content, is on its way already.
        """
        return self._reception.submit_nowait(turn)

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
            stats = stats_of(self._figures, self._options, self._workers, self._reception)
        return {**stats, "setup_problem": self._setup_problem()}

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

        Turns that a dead writer left are waited for too, and clean-ups. Turns that failed since the last
        call are told in a warning, which goes to stderr where no logging is configured.
        """
        with self._state:
            is_done = self._state.wait_for(self._is_idle, timeout)
        self._tell_failures()
        return is_done

    def _tell_failures(self) -> None:
        with self._state:
            failed, parked = self._figures.failed - self._told, self._figures.dead_letters
            self._told = self._figures.failed
            reason = self._figures.last_failure
        if failed:
            text = f"turns that failed: {failed}; in the dead letters of this writer: {parked}"
            _logger.warning(text)
            show(f"{text}. The last one: {reason}" if reason else f"{text}.")

    def _is_idle(self) -> bool:
        return (
            not self._reception.queued
            and not self._workers.working
            and not self._cleaner.running
            and (self._intake is None or self._intake.is_idle)
        )

    async def aflush(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the twin of flush
        """Wait like `flush` without holding the event loop."""
        return await asyncio.to_thread(self.flush, timeout)

    def close_sync(self, timeout: float | None = None, *, drain: bool = True) -> dict[str, Any]:
        """Take no more turns, finish those that wait, and return the final counters.

        Turns that failed are told as by `flush`.

        Args:
            timeout: Seconds to wait; None is `SHUTDOWN_TIMEOUT`. What is not done by then is cancelled, and
                its receipt raises a RuntimeError. Turns in a journal stay there and are counted as
                pending; those of a queue in memory are lost and counted as failed.
            drain: Whether to finish what waits; False leaves it.
        """
        self._closed = True
        self._reception.close()
        wait = SHUTDOWN_TIMEOUT if timeout is None else timeout
        self.flush(max(0.0, wait) if drain else 0)
        with self._ending:  # several threads may close, and each may do so again
            if not self._has_ended:
                self._end()
                self._has_ended = True
        self._tell_failures()
        return self.stats()

    def _end(self) -> None:
        if self._intake is not None:
            self._intake.stop()
        self._cleaner.stop()
        if not self.flush(0):
            left = self._workers.abandon(_GRACE)
            if self._intake is None:
                _logger.error("the writer was closed with %d turns not applied", left)
            else:
                _logger.warning(
                    "the writer was closed with %d turns not applied; they are kept in %s",
                    left, self._intake.root,
                )  # fmt: skip
        self._stop()

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

    def __exit__(self, *_: object) -> None:
        """Close, and wait for what is queued."""
        self.close_sync()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
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


def _weak(writer: MemoryWriter) -> weakref.ref[MemoryWriter]:
    return weakref.ref(writer)


def _store_of(diary: Any) -> str:
    backend = getattr(getattr(diary, "engine", None), "backend", None)
    return repr(backend) if backend is not None else type(diary).__name__


def _figures_of(ref: weakref.ref[MemoryWriter]) -> Callable[[], dict[str, Any] | None]:
    def figures() -> dict[str, Any] | None:
        writer = ref()
        return writer.stats() if writer is not None else None

    return figures


def _look_again(writer: weakref.ref[MemoryWriter], thread: LoopThread) -> None:
    """Look for journals of dead writers from time to time, for as long as the writer is there."""
    thread.loop.call_later(_TAKEOVER, _look_for_dead, writer, thread)


def _look_for_dead(ref: weakref.ref[MemoryWriter], thread: LoopThread) -> None:
    writer = ref()
    if writer is not None and writer.is_running:
        writer.look_for_dead_writers()
        _look_again(ref, thread)
