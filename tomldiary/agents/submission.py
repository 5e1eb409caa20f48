"""Submits the turn of an agent's run to a writer, and waits until the turn is stored.

If the whole user was forgotten during the run, the turn is refused. The writer logs it, and the run does not fail.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from tomldiary.errors import Forgotten, WriterBusy

if TYPE_CHECKING:
    from tomldiary.writer.receipts import Turn
    from tomldiary.writer.writer import MemoryWriter

__all__ = ["store_turn", "submit_turn"]


async def submit_turn(writer: MemoryWriter, turn: Turn) -> None:
    """Submit a turn; on return it is in the writer's journal, unless its run was cancelled.

    While the queue is full, this waits. For a cancelled run, a thread waits instead.

    Raises:
        RuntimeError: The writer is closed.
        DiaryError: The turn cannot be stored.
    """
    if not turn.operation_id:
        turn = replace(turn, operation_id=uuid4().hex)
    if turn.status == "cancelled":
        _submit_without_waiting(writer, turn)
        return
    try:
        with suppress(Forgotten):
            await writer.submit_turn(turn)
    except asyncio.CancelledError:
        # The cancellation withdrew the turn, or came too late; then the operation id makes both submits one turn.
        _submit_without_waiting(writer, turn)
        raise


def store_turn(writer: MemoryWriter, turn: Turn) -> None:
    """Submit a turn from sync code; on return it is in the writer's journal.

    Raises:
        WriterBusy: The queue is full.
        RuntimeError: The writer is closed.
        DiaryError: The turn cannot be stored.
    """
    with suppress(Forgotten):
        writer.submit_nowait(turn).wait_stored()


def _submit_without_waiting(writer: MemoryWriter, turn: Turn) -> None:
    try:
        writer.submit_nowait(turn)
    except WriterBusy:
        # In a thread of the loop's executor: the loop waits for it when it closes.
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, lambda: asyncio.run(writer.submit_turn(turn)))
