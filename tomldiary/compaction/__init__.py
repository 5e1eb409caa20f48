"""Cleaning up a memory that has grown: when it is due, the draft, the tools, the runs.

Begin with `draft`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tomldiary.compaction.draft import (
        CompactionConfig,
        CompactionDeps,
        CompactionStats,
        load_compactor,
    )
    from tomldiary.extraction.factory import compactor_agent

__all__ = [
    "CompactionConfig",
    "CompactionDeps",
    "CompactionStats",
    "compactor_agent",
    "load_compactor",
]

# Loaded when named: modules inside the package import each other without loading all of it.
_HOMES = {
    "CompactionConfig": "tomldiary.compaction.draft",
    "CompactionDeps": "tomldiary.compaction.draft",
    "CompactionStats": "tomldiary.compaction.draft",
    "compactor_agent": "tomldiary.extraction.factory",
    "load_compactor": "tomldiary.compaction.draft",
}


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
