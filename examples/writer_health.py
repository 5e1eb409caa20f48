"""Background writing under load, and a check whether the writer keeps up.

Shows back-pressure (with a full queue, `submit` waits and `submit_nowait` raises), receipts, a failed turn,
and a health status from the counters. Runs offline. Run: python examples/writer_health.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.errors import WriterBusy

if TYPE_CHECKING:
    from tomldiary import MemoryDeps

WORKERS = 2
started = threading.Semaphore(0)
kitchen_open = threading.Event()


def slow_model(_message: str, *, deps: MemoryDeps) -> None:
    """Stand in for a model that answers after `kitchen_open` is set, and fails for the message "???"."""
    started.release()
    kitchen_open.wait()
    if deps.user_msg == "???":
        raise ValueError("the model could not read this")
    deps.upsert("likes", None, deps.user_msg, ())


def verdict(writer: MemoryWriter) -> str:
    """Return the result of a health check."""
    stats = writer.stats()
    full, errors = stats["queue_utilization"], stats["error_rate"]
    state = "degraded" if full >= 0.9 or errors > 0.05 else "healthy"  # noqa: PLR2004 - thresholds
    return f"{state}: queue {full:.0%} full, errors {errors:.0%}, {stats['pending']} turns pending"


async def serve(writer: MemoryWriter) -> None:
    """Fill the queue until it blocks, drain it, and let one turn fail."""
    print(verdict(writer))
    receipts = []
    try:
        for n in range(100):
            receipts.append(writer.submit_nowait(Turn(f"guest-{n}", "lunch", f"soup {n}", "Soon.")))
            if n < WORKERS:
                started.acquire()  # only in this example, so that each run prints the same numbers
    except WriterBusy as busy:
        print(f"submit_nowait: {busy}\n{verdict(writer)}")

    patient = asyncio.create_task(writer.submit("guest-100", "lunch", "salad", "Gladly."))
    await asyncio.sleep(0)
    print(f"submit is waiting: {not patient.done()}")
    kitchen_open.set()
    done = await asyncio.gather(*receipts, await patient)
    print(f"{sum(each.applied for each in done)} of {len(done)} accepted turns are stored")

    receipt = await writer.submit("guest-1", "lunch", "???", "Pardon?")
    [error] = await asyncio.gather(receipt, return_exceptions=True)
    print(f"receipt: {error}")
    print(verdict(writer))


def main(folder: Path) -> None:
    """Run the lunch service on a diary in `folder`."""
    diary = Diary(folder, agent=slow_model)
    with MemoryWriter(diary, workers=WORKERS, qsize=8) as writer:
        asyncio.run(serve(writer))
    print(f"closed: {writer.stats()['completed']} completed, {writer.stats()['failed']} failed")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
