"""One turn on its way through the writer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tomldiary.engine.transaction import fingerprint
from tomldiary.writer.receipts import Receipt

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from concurrent.futures import Future as ReadEpoch

    from tomldiary.extraction.operations import Operation
    from tomldiary.writer.journal import Journal
    from tomldiary.writer.receipts import Turn

__all__ = ["Job"]


class Job:
    """A turn, its receipt, and how far it has come."""

    __slots__ = (
        "asked", "attempts", "began", "cost", "epoch", "error", "group", "is_new", "journal", "number", "operation",
        "operations", "queued_at", "receipt", "rendered", "segment", "time", "turn", "waiter", "wanted",
    )  # fmt: skip

    def __init__(self, turn: Turn, operation: str, *, is_new: bool) -> None:
        self.turn = turn
        self.receipt = Receipt(turn)
        self.operation = operation
        """The id under which it is in history once it is applied."""
        self.is_new = is_new
        """Whether the id was made up for this turn and nobody can have applied it yet."""
        self.journal: Journal | None = None
        self.number = 0
        """Its number in the journal."""
        self.segment = 0
        self.rendered = ""
        """Its record, up to what only the journal knows."""
        self.epoch: int | None = None
        self.asked: ReadEpoch[int] | None = None
        """The epoch, where it is on a disk and no journal knows it."""
        self.time = ""
        """When it was taken in, for people."""
        self.began = ""
        """When the session's last turn was taken in; "" is not known."""
        self.operations: list[Operation] | None = None
        """What the extractor wants, once it was asked."""
        self.group: list[Job] = []
        """Turns that are read together with this one."""
        self.attempts = 0
        self.error: BaseException | None = None
        self.queued_at = time.monotonic()
        self.cost = 0.0
        """Seconds that the last attempt took."""
        self.waiter: tuple[AbstractEventLoop, Future[None]] | None = None
        """A `submit` that returns once the turn is stored."""
        self.wanted = 1
        """How many have submitted it, by the same id, and were not cancelled meanwhile."""

    @property
    def content(self) -> str:
        """Fingerprint of what was said."""
        turn = self.turn
        return fingerprint(turn.session_id, turn.user_msg, turn.assistant_msg, turn.status)
