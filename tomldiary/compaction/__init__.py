"""Compaction of a memory that has grown: triggers, draft, tools and runs.

Begin with `draft`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from tomldiary.compaction.draft import CompactionConfig as CompactionConfig
    from tomldiary.compaction.draft import CompactionDeps as CompactionDeps
    from tomldiary.compaction.draft import CompactionStats as CompactionStats
    from tomldiary.extraction.extractor import compactor_agent as compactor_agent

lazy_names(
    __name__,
    {
        "compaction.draft": "CompactionConfig CompactionDeps CompactionStats",
        "extraction.extractor": "compactor_agent",
    },
)
