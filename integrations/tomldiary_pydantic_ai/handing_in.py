"""Handing a turn to the writer, also while the run that said it is being cancelled."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tomldiary.errors import WriterBusy

if TYPE_CHECKING:
    from tomldiary.writer.receipts import Turn
    from tomldiary.writer.writer import MemoryWriter

__all__ = ["hand_in"]

_PATIENCE = 0.02  # seconds between two tries while the writer's queue is full


async def hand_in(writer: MemoryWriter, turn: Turn) -> None:
    """Hand a turn in; unless its run was cancelled, it is in the writer's journal on return.

    While the queue is full, a run waits, and a thread waits in the place of one that was cancelled.

    Raises:
        RuntimeError: The writer is closed.
        DiaryError: The turn cannot be stored.
    """
    if turn.status == "cancelled":
        _hand_in_at_once(writer, turn)
        return
    try:
        await writer.submit_turn(turn)
    except asyncio.CancelledError:
        # Taken back, if it was waiting; the same operation id makes it one turn if it was not.
        _hand_in_at_once(writer, turn)
        raise


def _hand_in_at_once(writer: MemoryWriter, turn: Turn) -> None:
    try:
        writer.submit_nowait(turn)
    except WriterBusy:
        # The loop's own threads: it waits for them when it is closed.
        asyncio.get_running_loop().run_in_executor(None, _insist, writer, turn)


def _insist(writer: MemoryWriter, turn: Turn) -> None:
    while True:
        try:
            writer.submit_nowait(turn)
        except WriterBusy:
            time.sleep(_PATIENCE)
        else:
            return
