"""Background updates: `submit` stores a turn in the journal, and workers apply it to the memory later.

May import `diary` and the layers below it; `storage.log` stores the journal's records.
Begin reading with `writer`, then follow a turn: `queue` (admission), `journal_queue`, `journal`, `worker`, `receipts`.
Attempts and their counters: `attempts`. Failures: `dead_letters`. Observation: `metrics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from tomldiary.extraction.context import Turn as Turn
    from tomldiary.writer.attempts import RetryPolicy as RetryPolicy
    from tomldiary.writer.metrics import Health as Health
    from tomldiary.writer.receipts import Receipt as Receipt
    from tomldiary.writer.shutdown import background_tasks as background_tasks
    from tomldiary.writer.shutdown import fire_and_forget as fire_and_forget
    from tomldiary.writer.shutdown import (
        shutdown_all_background_tasks as shutdown_all_background_tasks,
    )
    from tomldiary.writer.writer import SHUTDOWN_TIMEOUT as SHUTDOWN_TIMEOUT
    from tomldiary.writer.writer import MemoryWriter as MemoryWriter

lazy_names(
    __name__,
    {
        "extraction.context": "Turn",
        "writer.attempts": "RetryPolicy",
        "writer.metrics": "Health",
        "writer.receipts": "Receipt",
        "writer.shutdown": "background_tasks fire_and_forget shutdown_all_background_tasks",
        "writer.writer": "MemoryWriter SHUTDOWN_TIMEOUT",
    },
)
