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
        self._future: Future[Applied | None] = Future()

    def __repr__(self) -> str:
        state = "done" if self.is_done else "pending"
        return f"<Receipt {state}>"

    def __await__(self) -> Generator[Any, None, Applied | None]:
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()

    @property
    def is_done(self) -> bool:
        """Whether the turn was applied, or failed for good."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> Applied | None:
        """Block until the turn was applied and return what it did.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Raises:
            TimeoutError: It was not applied in time; it still may be.
            RuntimeError: The writer was closed before the turn was finished. One that was queued was not
                applied; one that was being applied may have been.
            Exception: What the extractor or the storage raised. Nothing was changed.
        """
        return self._future.result(timeout)

    def settle(self, result: Applied | None, error: BaseException | None = None) -> None:
        """Tell everybody who waits; the writer calls this."""
        if self._future.done():
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)
