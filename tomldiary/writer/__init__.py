"""Background updates: `submit` stores a turn in the journal, and workers apply it to the memory later.

May import `diary` and the layers below it; `storage.log` stores the journal's records.
Begin reading with `writer`, then follow a turn: `queue` (admission), `journal_queue`, `journal`, `worker`, `jobs`.
Failures: `retry`, `dead_letters`. Observation: `metrics`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tomldiary.writer.writer import (
        SHUTDOWN_TIMEOUT,
        Health,
        MemoryWriter,
        Receipt,
        RetryPolicy,
        Turn,
        background_tasks,
        fire_and_forget,
        shutdown_all_background_tasks,
    )

__all__ = [
    "SHUTDOWN_TIMEOUT",
    "Health",
    "MemoryWriter",
    "Receipt",
    "RetryPolicy",
    "Turn",
    "background_tasks",
    "fire_and_forget",
    "shutdown_all_background_tasks",
]

# Loaded on first access: modules inside the package import each other without loading the whole package.
_HOMES = {
    "Health": "tomldiary.writer.writer",
    "MemoryWriter": "tomldiary.writer.writer",
    "Receipt": "tomldiary.writer.writer",
    "RetryPolicy": "tomldiary.writer.writer",
    "SHUTDOWN_TIMEOUT": "tomldiary.writer.writer",
    "Turn": "tomldiary.writer.writer",
    "background_tasks": "tomldiary.writer.writer",
    "fire_and_forget": "tomldiary.writer.writer",
    "shutdown_all_background_tasks": "tomldiary.writer.writer",
}


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
