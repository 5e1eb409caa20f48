"""Statistics and health of a writer, and its counters in the text format of Prometheus."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from tomldiary.runtime.views import DictView, Viewed
from tomldiary.toml.values import checked_number
from tomldiary.writer.attempts import PERCENTILES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tomldiary.writer.attempts import Metrics, Options
    from tomldiary.writer.queue import Admission
    from tomldiary.writer.worker import Workers


def stats_of(
    metrics: Metrics, options: Options, workers: Workers, admission: Admission
) -> WriterStats:
    """Return the statistics of a writer; the caller holds the writer's lock."""
    journal_queue = admission.journal_queue
    finished = metrics.completed + metrics.failed
    active, queued = workers.active, admission.queued
    waiting = (
        workers.queues.oldest(),
        journal_queue.oldest() if journal_queue is not None else None,
    )
    oldest = min(
        filter(None, (*waiting, *(job.queued_at for job in workers.working))), default=None
    )
    pending = queued + active + workers.kept
    return WriterStats(
        {
            "queue_size": queued,
            "queue_capacity": options.qsize,
            "queue_utilization": queued / options.qsize,
            "total_workers": options.workers,
            "active_workers": len(workers.working),
            "idle_workers": options.workers - len(workers.working),
            "submitted": metrics.submitted,
            "completed": metrics.completed,
            "failed": metrics.failed,
            "pending": pending,
            "error_rate": metrics.failed / finished if finished else 0.0,
            "is_running": not admission.is_closed,
            # The keys so far are those of TOMLDiary 0.9, in its order.
            **metrics.counters(),
            "recent_error_rate": metrics.recent_error_rate(),
            "oldest_age": time.monotonic() - oldest if oldest is not None else 0.0,
            "breaker_is_open": workers.breaker.is_open,
            **metrics.latencies(),
            "loss_window": pending
            if journal_queue is None
            else journal_queue.unstored() + admission.in_memory,
            "durability": "none" if journal_queue is None else journal_queue.durability,
        }
    )


class WriterStats(DictView[str, Any]):
    """The counters of a writer."""


@dataclass(frozen=True, slots=True, repr=False)
class Health(Viewed):
    """The health of a writer, for a health endpoint."""

    status: str
    """ "healthy", "degraded" (turns fail or wait too long) or "unhealthy" (no turn is applied)."""
    reasons: list[str]
    stats: Mapping[str, Any]

    @property
    def http_status(self) -> int:
        """The HTTP status code: 503 if unhealthy, otherwise 200."""
        return 503 if self.status == "unhealthy" else 200

    def to_dict(self) -> dict[str, Any]:
        """Return the health as JSON values."""
        return {"status": self.status, "reasons": self.reasons, "stats": dict(self.stats)}


def health_of(
    stats: Mapping[str, Any], *, longest_wait: float = 300.0, most_errors: float = 0.05
) -> Health:
    """Return the health of a writer, derived from its `stats()`; see `MemoryWriter.health`."""
    if longest_wait != inf:
        checked_number(longest_wait, "longest_wait", "0 or more seconds", lambda each: each >= 0)
    checked_number(most_errors, "most_errors", "a share from 0 to 1", lambda each: 0 <= each <= 1)
    fatal: list[str] = []
    worries: list[str] = []
    if not stats["is_running"]:
        fatal.append("the writer is closed")
    if stats.get("breaker_is_open"):
        worries.append("the model does not answer; turns wait")
    if stats.get("setup_problem"):
        fatal.append(stats["setup_problem"])
    if stats.get("last_failure"):
        worries.append(f"the last turn failed: {stats['last_failure']}")
    if stats["queue_utilization"] >= 0.9:  # noqa: PLR2004 - nearly full
        worries.append(f"the queue is {stats['queue_utilization']:.0%} full")
    errors = stats["recent_error_rate"]
    if errors > most_errors:
        worries.append(f"{errors:.0%} of the turns of the last five minutes failed")
    if stats["oldest_age"] > longest_wait:
        worries.append(f"a turn has been waiting for {stats['oldest_age']:.0f} s")
        last = stats.get("last_success")
        if last is None or time.time() - last > longest_wait:
            fatal.append(f"no turn was applied for {longest_wait:.0f} s")
    status = "unhealthy" if fatal else "degraded" if worries else "healthy"
    return Health(status, fatal + worries, stats)


_PREFIX = "tomldiary_writer"
_COUNTERS = {
    "submitted": "Turns submitted.",
    "completed": "Turns applied.",
    "failed": "Turns that failed for good.",
    "retries": "Attempts after the first.",
    "dead_letters": "Turns moved to the dead letters.",
    "recovered": "Turns taken over from dead writers.",
    "skipped": "Operations of applied turns that were skipped.",
    "compactions": "Parts of compactions applied.",
    "compactions_failed": "Compactions, or parts of them, that failed.",
}
_GAUGES = {
    "pending": "Turns waiting or in work.",
    "queue_size": "Turns waiting.",
    "queue_capacity": "The maximum number of waiting turns.",
    "active_workers": "Turns in work.",
    "oldest_age": "Age of the oldest unfinished turn in seconds.",
    "loss_window": "Turns that a killed process would lose now.",
    "breaker_is_open": "1 while the model is considered down.",
    "last_success": "When a turn was last applied, in seconds since 1970.",
}


def prometheus_text(stats: Mapping[str, Any]) -> str:
    """Return a writer's `stats()` in the Prometheus text format, version 0.0.4."""
    lines: list[str] = []
    for names, kind, ending in ((_COUNTERS, "counter", "_total"), (_GAUGES, "gauge", "")):
        for name, meaning in names.items():
            value = stats.get(name)
            if value is None:
                continue
            metric = f"{_PREFIX}_{name}{ending}"
            lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} {kind}"]
            lines.append(
                f"{metric} {value!r}"  # `repr` keeps all digits of seconds since 1970
                if isinstance(value, float)
                else f"{metric} {int(value)}"
            )
    metric = f"{_PREFIX}_latency_seconds"
    lines += [
        f"# HELP {metric} Time from submitting a turn to applying it.",
        f"# TYPE {metric} summary",
    ]
    lines += [
        f'{metric}{{quantile="{percent / 100}"}} {stats[f"latency_p{percent}"]:g}'
        for percent in PERCENTILES
    ]
    lines.append(f"{metric}_count {stats['completed']}")
    return "\n".join(lines) + "\n"
