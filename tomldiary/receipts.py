"""A turn that was handed in, and the receipt that tells what became of it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Generator
    from datetime import datetime

    from tomldiary.turns import Applied

__all__ = ["Receipt", "Turn", "TurnStatus"]

TurnStatus = Literal["completed", "cancelled", "failed", "aborted"]
"""How the run ended that produced a turn. Unless it was completed, the answer may be empty or cut short."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange between a user and an assistant."""

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


class Receipt:
    """Tells what became of one submitted turn: `await receipt`, or `receipt.wait(timeout)`."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._done: Future[Applied | None] = Future()
        self._stored: Future[bool] = Future()

    def __repr__(self) -> str:
        if self.is_done:
            return "<Receipt done>"
        return f"<Receipt {'stored' if self.is_stored else 'pending'}>"

    def __await__(self) -> Generator[Any, None, Applied | None]:
        return asyncio.shield(asyncio.wrap_future(self._done)).__await__()

    @property
    def is_done(self) -> bool:
        """Whether the turn was applied, or failed for good."""
        return self._done.done()

    @property
    def is_stored(self) -> bool:
        """Whether the turn survives what the diary's durability says; never so for a queue in memory."""
        return self._stored.done() and self._stored.exception() is None and self._stored.result()

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
        return self._done.result(timeout)

    def wait_stored(self, timeout: float | None = None) -> bool:
        """Block until the turn is in the journal; False if the writer keeps its queue in memory.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Raises:
            TimeoutError: It was not stored in time; it still may be.
            BackendError: The journal could not be written. The turn will not be applied.
        """
        return self._stored.result(timeout)

    async def astored(self) -> bool:
        """Wait like `wait_stored` without holding the event loop."""
        return await asyncio.shield(asyncio.wrap_future(self._stored))

    def settle_stored(self, *, is_stored: bool, error: BaseException | None = None) -> None:
        """Tell whether the turn is in the journal; the writer calls this."""
        _resolve(self._stored, is_stored, error)

    def settle(self, result: Applied | None, error: BaseException | None = None) -> None:
        """Tell everybody who waits; the writer calls this."""
        _resolve(self._done, result, error)
        _resolve(self._stored, result=False)


def _resolve(future: Future[Any], result: object, error: BaseException | None = None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
