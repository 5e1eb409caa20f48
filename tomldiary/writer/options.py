"""How a writer behaves."""

from __future__ import annotations

from dataclasses import dataclass, field

from tomldiary.writer.retry import RetryPolicy

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of one writer; see `MemoryWriter`."""

    workers: int
    qsize: int
    timeout: float | None = 120.0
    coalesce: int = 1
    retry: RetryPolicy = field(default_factory=RetryPolicy)
