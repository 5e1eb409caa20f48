"""A submitted turn: the receipt that reports its outcome, and the job that applies it exactly once.

Applying a turn has three steps: extract, record the extracted operations in the journal, commit.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from inspect import isawaitable
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from tomldiary.diary import Diary
from tomldiary.engine.engine import is_erased
from tomldiary.errors import ExtractorUnusable, Forgotten, InvalidValue
from tomldiary.extraction.extractor import is_retried_as_a_whole
from tomldiary.extraction.operations import Applied, Operation, TurnOperation, current_operation
from tomldiary.logging import get_logger
from tomldiary.runtime.async_bridge import in_thread, is_private_loop, running_loop
from tomldiary.runtime.views import Viewed
from tomldiary.storage.locks import InterruptibleCondition
from tomldiary.toml.values import check_timeout

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from tomldiary.extraction.context import Turn
    from tomldiary.storage.protocol import Backend
    from tomldiary.writer.journal import Journal
    from tomldiary.writer.shared.queue import SharedQueue

T = TypeVar("T")
_logger = get_logger(__name__)

calling_writer: ContextVar[object] = ContextVar("tomldiary_calling_writer", default=None)
"""In code that a writer calls, such as an extractor: the lock of this writer."""


class _Awaited(Future[T]):
    """A future that is not cancelled together with a task that awaits it, or blocked by an interrupted caller."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = InterruptibleCondition()

    def cancel(self) -> bool:
        """Return False, as for a running call."""
        return False


class _Outcome(Generic[T]):
    """The outcome of one step of a turn, which the writer sets once, with its lock held.

    The first caller that waits makes the future. Most turns have no such caller, and a future takes over a kilobyte.
    """

    __slots__ = ("_futures", "answer", "is_set")

    def __init__(self) -> None:
        self.answer: Any = None
        self.is_set = False
        self._futures: list[Future[T]] = []  # several, if threads make them at the same time

    def set(self, answer: T | BaseException) -> None:
        """Set the outcome; later calls are ignored."""
        if not self.is_set:
            self.answer, self.is_set = answer, True
        self._pass_on()

    def future(self) -> Future[T]:
        """Return a future with the outcome."""
        if not self._futures:
            self._futures.append(_Awaited())
        if self.is_set:  # `set` may have found no future
            self._pass_on()
        return self._futures[0]

    def _pass_on(self) -> None:
        for future in self._futures:
            with suppress(InvalidStateError):  # it has its result
                if isinstance(self.answer, BaseException):
                    future.set_exception(self.answer)
                else:
                    future.set_result(self.answer)


class Receipt(Viewed):
    """Reports the outcome of one submitted turn: `await receipt`, or `receipt.wait(timeout)`."""

    __slots__ = ("__weakref__", "_done", "_process", "_stored", "turn")

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._done: _Outcome[Applied | None] = _Outcome()
        self._stored: _Outcome[bool] = _Outcome()
        self._process = os.getpid()

    def __reduce__(self) -> NoReturn:
        """Refuse copies and pickles.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "a Receipt belongs to a writer of this process, so it cannot be copied or pickled. Pass receipt.turn or"
            " receipt.result."
        )

    @property
    def result(self) -> Applied | BaseException | None:
        """The effect of the turn, or its error, without waiting; None while the turn is not done."""
        return self._done.answer

    def __await__(self) -> Generator[Any, None, Applied | None]:
        running_loop()
        return asyncio.wrap_future(self._reachable(self._done)).__await__()

    @property
    def is_done(self) -> bool:
        """Whether the turn was applied, or failed for good."""
        return self._done.is_set

    @property
    def is_stored(self) -> bool:
        """Whether the turn is in the journal, with the durability of the diary; always False for a queue in memory."""
        return self._stored.answer is True

    def wait(self, timeout: float | None = None) -> Applied | None:
        """Block until the turn was applied and return its effect; None if the diary overrides `update_memory`.

        Args:
            timeout: The time limit in seconds; None is no limit.

        Raises:
            InvalidValue: `timeout` is not a number.
            TimeoutError: The turn was not applied in time; it may be applied later.
            RuntimeError: The writer was closed before the turn was finished. The message states whether the
                journal keeps the turn. If it does not, a turn in work may have been applied. Or an extractor called
                this in the writer's event loop, or a forked child has the receipt of its parent.
            Exception: The error of the extractor or the storage. Nothing was changed.
        """
        if calling_writer.get() is not None and is_private_loop() and not self.is_done:
            raise RuntimeError(
                "wait() was called in the event loop of a writer, which could apply no turn meanwhile. Await the receipt."
            )
        return _answer(self._reachable(self._done), timeout, "applied")

    def wait_stored(self, timeout: float | None = None) -> bool:
        """Block until the turn is in the journal; return False if the writer keeps its queue in memory.

        Args:
            timeout: The time limit in seconds; None is no limit.

        Raises:
            InvalidValue: `timeout` is not a number.
            TimeoutError: The turn was not stored in time; it may be stored later.
            BackendError: The journal could not be written. The turn will not be applied.
        """
        return _answer(self._reachable(self._stored), timeout, "stored")

    async def astored(self) -> bool:
        """Wait like `wait_stored` without blocking the event loop."""
        running_loop()
        return await asyncio.wrap_future(self._reachable(self._stored))

    def _reachable(self, outcome: _Outcome[T]) -> Future[T]:
        """Return the future of an outcome.

        Raises:
            RuntimeError: A forked child would wait for it forever.
        """
        if self._process != os.getpid() and not outcome.is_set:
            raise RuntimeError(
                "the turn was submitted before this process was forked, and only the parent gets its outcome. Wait in"
                " the parent, or submit another turn in the child."
            )
        return outcome.future()

    def settle_stored(self, answer: bool | BaseException) -> None:  # noqa: FBT001 - the result itself
        """Set whether the turn is in the journal, or the error that prevented it; the writer calls this."""
        self._stored.set(answer)

    def settle(self, result: Applied | None, error: BaseException | None = None) -> None:
        """Set the outcome; the writer calls this."""
        self._done.set(error if error is not None else result)
        self._stored.set(False)


@dataclass(slots=True, eq=False, repr=False)
class Job:
    """A turn in the writer, from its admission to its outcome."""

    turn: Turn
    operation: str
    """The idempotency key of the turn in history."""
    _: KW_ONLY
    is_new: bool
    """Whether the writer generated the id and no other writer had the turn, so that it was never applied."""
    is_counted: bool = False
    """Whether the metrics count the turn as submitted."""
    journal: Journal | SharedQueue | None = None
    number: int = 0
    """The turn's number in the journal."""
    segment: int = 0
    rendered: str = ""
    """The turn's record without the fields that the journal adds."""
    epoch: int | None = None
    wait_epoch: int | None = None
    """The user's fencing token when the turn began to wait for space; None if it did not wait."""
    time: str = ""
    """When the turn was submitted (ISO 8601)."""
    began: str = ""
    """When the session's previous turn was submitted (ISO 8601); "" if unknown."""
    transaction: int = 0
    """The number of the transaction that applied the turn; 0 before it, or if it is unknown."""
    is_parked: bool = False
    """Whether the dead letters have the turn and its group."""
    operations: list[Operation] | None = None
    """The extracted operations; None before the extraction."""
    group: list[Job] = field(default_factory=list["Job"])
    """The turns that are read together with this one in a single call of the model."""
    attempts: int = 0
    queued_at: float = field(default_factory=monotonic)
    waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
    """The event loop and future of a `submit` that waits until the turn is stored, or admitted if there is no journal."""
    is_conflict: bool = False
    """Whether the queue in the database has another turn with the same operation id."""
    wanted: int = 1
    """The number of callers that submitted the turn under the same id and were not cancelled."""
    receipt: Receipt = field(init=False)

    def __post_init__(self) -> None:
        self.receipt = Receipt(self.turn)


# Applying


def is_refused(backend: Backend, job: Job, epoch: int) -> bool:
    """Return whether a turn is not stored or applied with this fencing token, because of an erasure.

    An erasure finds the texts of stored turns. Of a turn that waits for space, it can refuse only the whole.
    """
    turn = job.turn
    is_late = job.wait_epoch not in {None, epoch}
    return is_late or is_erased(backend, turn.user_id, turn.epoch, epoch)


def refuse_own_work(lock: object) -> None:
    """Refuse a call from code that the writer with this lock runs: the writer would wait for itself.

    Raises:
        RuntimeError: The caller is an extractor or a compactor of the writer.
    """
    if calling_writer.get() is lock:
        raise RuntimeError(
            "an extractor or a compactor cannot flush or close its own writer, because the writer waits for it."
            " Do this in the code that submits turns."
        )


def is_overridden(diary: Any) -> bool:
    """Return whether `update_memory` is not the method of `Diary`; any object with this method can be a diary."""
    return getattr(diary.update_memory, "__func__", None) is not Diary.update_memory


async def apply_turn(diary: Any, job: Job, *, timeout: float | None) -> Applied | None:  # noqa: ASYNC109 - of the model call alone
    """Apply a turn, and the turns that are grouped with it, exactly once.

    An overridden `update_memory` is called again after a crash. A call of `Diary.update_memory` inside it still takes
    effect only once.

    Args:
        diary: The diary to update.
        job: The turn.
        timeout: The extractor's time limit in seconds; None is no limit.

    Raises:
        TimeoutError: The extractor exceeded its time limit. Nothing was changed.
        Forgotten: Something of the user was forgotten since the turn was submitted. Nothing was changed.
    """
    is_retried_as_a_whole.set(True)
    turn = job.turn
    if (
        job.journal is None  # a journal refuses the turn before it is stored
        and job.epoch is not None
        and is_refused(diary.engine.backend, job, job.epoch)
    ):
        raise Forgotten.since_run()
    last = job.group[-1] if job.group else job
    earlier = None if turn.earlier is None else tuple(turn.earlier)
    operation = TurnOperation(
        job.operation, turn.content, job.epoch, job.is_new and not job.attempts, 1 + len(job.group),
        earlier, job.began, last.time,
        partial(job.journal.check, job) if job.journal is not None else None,
    )  # fmt: skip
    if is_overridden(diary):
        current_operation.set(operation if isinstance(diary, Diary) else None)
        async with asyncio.timeout(timeout):
            called = diary.update_memory(
                turn.user_id, turn.session_id, turn.user_msg, turn.assistant_msg,
                context_now=turn.context_now,
            )  # fmt: skip
            if not isawaitable(called):
                raise ExtractorUnusable(
                    "update_memory returned no coroutine. Define it with async def."
                )
            await called
        await in_thread(_finish, job)
        return None
    return await _extract_and_commit(diary, job, operation, timeout)


async def _extract_and_commit(
    diary: Diary, job: Job, operation: TurnOperation, seconds: float | None
) -> Applied:
    turn = job.turn
    # Operations of an earlier attempt are those of this schema.
    if job.operations is not None and not job.attempts and not diary.turns.fits(job.operations):
        _logger.warning("what was read from a turn does not fit the schema; it is read again")
        job.operations = None
    operations = job.operations
    if operations is None:
        if not operation.is_new:
            done = await in_thread(diary.turns.find, turn.user_id, operation)
            if done is not None:
                await in_thread(_finish, job, done)
                return done
        operations, _ = await diary.turns.extract(_together([job, *job.group]), operation, seconds)
    return await in_thread(_commit, diary, job, operations, operation)


def _commit(
    diary: Diary, job: Job, operations: Sequence[Operation], operation: TurnOperation
) -> Applied:
    jobs = [job, *job.group]
    if job.operations is None:
        if job.journal is not None:
            try:
                job.journal.append_operations(jobs, operations, diary.engine.backend.epoch)
            except InvalidValue:  # the commit skips values that cannot be stored, and reports them
                if job.group:
                    raise  # the turns are then read one by one
        job.operations = list(operations)
    said = [(each.turn, each.time) for each in jobs]
    done = diary.turns.commit(job.turn, operations, operation, said)
    _finish(job, done)
    return done


def _finish(job: Job, done: Applied | None = None) -> None:
    """Record in the journal that a turn and its group were applied."""
    if done is not None and done.transaction is not None:
        job.transaction = done.transaction
    if job.journal is not None:
        job.journal.finish([job, *job.group])


def _together(jobs: Sequence[Job]) -> Turn:
    """Return the first turn with the messages of all; the answer of an unfinished run is marked."""
    answers: list[str] = []
    for job in jobs:
        answer = job.turn.assistant_msg
        if job.turn.status != "completed":
            answer = f"{answer}\n[not finished: run {job.turn.status}]".lstrip()
        answers.append(answer)
    said = "\n\n".join(job.turn.user_msg for job in jobs)
    return replace(jobs[0].turn, user_msg=said, assistant_msg="\n\n".join(answers))


# Results


def _answer(future: Future[T], timeout: float | None, step: str) -> T:
    """Return the result of a future.

    Raises:
        InvalidValue: `timeout` is not a number.
        TimeoutError: There is none in time.
    """
    check_timeout(timeout)
    try:
        return future.result(timeout)
    except TimeoutError:
        if future.done():  # the turn itself failed with a TimeoutError, or ended just now
            return future.result()
        raise TimeoutError(
            f"the turn was not {step} within {timeout} s. It may still be {step}: wait again for the result."
        ) from None
