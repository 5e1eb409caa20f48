"""A writer's figures as one dictionary, taken at one moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tomldiary.writer.metrics import Figures
    from tomldiary.writer.options import Options
    from tomldiary.writer.queue import Reception
    from tomldiary.writer.worker import Workers

__all__ = ["stats_of"]


def stats_of(
    figures: Figures, options: Options, workers: Workers, reception: Reception
) -> dict[str, Any]:
    """Return what `MemoryWriter.stats` returns; the caller holds the writer's state."""
    intake = reception.intake
    finished = figures.completed + figures.failed
    active, queued = workers.active, reception.queued
    waiting = (workers.lines.oldest(), intake.oldest() if intake is not None else None)
    oldest = min(
        filter(None, (*waiting, *(job.queued_at for job in workers.working))), default=None
    )
    pending = queued + active + workers.kept
    p50, p95, p99 = figures.latencies(0.5, 0.95, 0.99)
    return {
        "queue_size": queued,
        "queue_capacity": options.qsize,
        "queue_utilization": queued / options.qsize,
        "total_workers": options.workers,
        "active_workers": len(workers.working),
        "idle_workers": options.workers - len(workers.working),
        "submitted": figures.submitted,
        "completed": figures.completed,
        "failed": figures.failed,
        "pending": pending,
        "error_rate": figures.failed / finished if finished else 0.0,
        "is_running": not reception.is_closed,
        "oldest_age": time.monotonic() - oldest if oldest is not None else 0.0,
        "retries": figures.retries,
        "dead_letters": figures.dead_letters,
        "last_failure": figures.last_failure,
        "recovered": figures.recovered,
        "repeated": figures.repeated,
        "compactions": figures.compactions,
        "compactions_failed": figures.compactions_failed,
        "breaker_is_open": workers.breaker.is_open,
        "last_success": figures.last_success,
        "latency_p50": p50,
        "latency_p95": p95,
        "latency_p99": p99,
        "loss_window": pending if intake is None else len(intake),
        "durability": "none" if intake is None else intake.durability,
    }
