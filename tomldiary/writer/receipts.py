"""A turn that was handed in, and the receipt that tells what became of it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from tomldiary.extraction.dialogue import MAX_EARLIER, checked_exchanges, storable

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from datetime import datetime

    from tomldiary.extraction.apply import Applied

__all__ = ["Receipt", "Turn", "TurnStatus"]

T = TypeVar("T")

TurnStatus = Literal["completed", "cancelled", "failed", "aborted"]
"""How the run ended that produced a turn. Unless it was completed, the answer may be empty or cut short."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange between a user and an assistant.

    A lone surrogate in a message, which no file can store, is replaced by U+FFFD.
    """

    user_id: str
    session_id: str
    user_msg: str
    assistant_msg: str
    context_now: datetime | None = None
    """When it happened; None is now."""
    status: TurnStatus = "completed"
    """How the host's run ended; what the user said counts in any case."""
    operation_id: str = ""
    """The same id twice has one effect; "" gives the turn a new one, so that a second "thanks" counts."""
    earlier: Sequence[tuple[str, str]] | None = None
    """The exchanges before this one, oldest first: pairs of what the user said and what was answered.

    They are shown to the extractor, so that it understands short answers: the last `Diary.context_turns` of
    them, each message cut to 1,000 characters. None takes those that this process saw in the session.
    """

    def __post_init__(self) -> None:
        for name in ("user_msg", "assistant_msg"):
            text = getattr(self, name)
            if isinstance(text, str) and not text.isascii():
                object.__setattr__(self, name, storable(text))
        if self.earlier is not None:
            object.__setattr__(self, "earlier", checked_exchanges(self.earlier, MAX_EARLIER))


class Receipt:
    """Tells what became of one submitted turn: `await receipt`, or `receipt.wait(timeout)`."""

    __slots__ = ("__weakref__", "_done", "_stored", "turn")

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._done: _Later[Applied | None] = _Later()
        self._stored: _Later[bool] = _Later()

    def __repr__(self) -> str:
        if self.is_done:
            return "<Receipt done>"
        return f"<Receipt {'stored' if self.is_stored else 'pending'}>"

    def __await__(self) -> Generator[Any, None, Applied | None]:
        return asyncio.shield(asyncio.wrap_future(self._done.future())).__await__()

    @property
    def is_done(self) -> bool:
        """Whether the turn was applied, or failed for good."""
        return self._done.is_there

    @property
    def is_stored(self) -> bool:
        """Whether the turn survives what the diary's durability says; never so for a queue in memory."""
        return self._stored.answer is True

    def wait(self, timeout: float | None = None) -> Applied | None:
        """Block until the turn was applied and return what it did.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Raises:
            TimeoutError: It was not applied in time; it still may be.
            RuntimeError: The writer was closed before the turn was finished. The message says whether it
                is kept in the journal; one that is not kept and was just being applied may have been.
            Exception: What the extractor or the storage raised. Nothing was changed.
        """
        return self._done.future().result(timeout)

    def wait_stored(self, timeout: float | None = None) -> bool:
        """Block until the turn is in the journal; False if the writer keeps its queue in memory.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Raises:
            TimeoutError: It was not stored in time; it still may be.
            BackendError: The journal could not be written. The turn will not be applied.
        """
        return self._stored.future().result(timeout)

    async def astored(self) -> bool:
        """Wait like `wait_stored` without holding the event loop."""
        if self._stored.is_there:
            return self._stored.get()
        return await asyncio.shield(asyncio.wrap_future(self._stored.future()))

    def settle_stored(self, answer: bool | BaseException) -> None:  # noqa: FBT001 - the answer itself
        """Tell whether the turn is in the journal, or why not; the writer calls this."""
        self._stored.set(answer)

    def settle(self, result: Applied | None, error: BaseException | None = None) -> None:
        """Tell everybody who waits; the writer calls this."""
        self._done.set(error if error is not None else result)
        self._stored.set(False)


_NOT_YET: Any = object()


class _Later(Generic[T]):
    """An answer that comes later; its future is made when somebody waits, which hardly anybody does."""

    __slots__ = ("_future", "_guard", "answer")

    def __init__(self) -> None:
        self.answer: T | BaseException = _NOT_YET
        self._future: Future[T] | None = None
        self._guard = threading.Lock()

    @property
    def is_there(self) -> bool:
        return self.answer is not _NOT_YET

    def get(self) -> T:
        """Return or raise the answer that is there."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def set(self, answer: T | BaseException) -> None:
        """Give the answer; a second one is not heard."""
        with self._guard:
            if self.answer is not _NOT_YET:
                return
            self.answer = answer
            future = self._future
        if future is not None:
            _resolve(future, answer)

    def future(self) -> Future[T]:
        with self._guard:
            future = self._future
            if future is not None:
                return future
            future = self._future = Future()
            answer = self.answer
        if answer is not _NOT_YET:
            _resolve(future, answer)
        return future


def _resolve(future: Future[Any], answer: object) -> None:
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
