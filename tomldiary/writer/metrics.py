"""What a writer counts, and what the counts say about its health."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Figures", "Health", "health_of", "prometheus_text"]

_REMEMBERED = 1024  # turns


@dataclass(slots=True)
class Figures:
    """Counters and recent durations of one writer; whoever changes them holds the writer's state."""

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    retries: int = 0
    """Attempts after the first."""
    dead_letters: int = 0
    """Failed turns that were parked."""
    last_failure: str | None = None
    """Why the last turn failed, as far as it may be logged; None since a turn was applied."""
    recovered: int = 0
    """Turns taken over from dead writers, in `submitted` too."""
    repeated: int = 0
    """Completed turns that had been applied before."""
    compactions: int = 0
    compactions_failed: int = 0
    last_success: float | None = None
    """When a turn was last applied, in seconds since 1970."""
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def complete(self, seconds: float, count: int = 1) -> None:
        """Count applied turns; `seconds` from taking them in to having them applied."""
        self.completed += count
        self.last_failure = None
        self.last_success = time.time()
        self._durations.append(seconds)

    def latencies(self, *shares: float) -> list[float]:
        """Return the seconds within which these shares of the last 1,024 turns were applied."""
        ordered = sorted(self._durations) or [0.0]
        return [ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in shares]


@dataclass(frozen=True, slots=True)
class Health:
    """A verdict for a health endpoint."""

    status: str
    """ "healthy", "degraded" (turns wait longer than they should) or "unhealthy" (none gets through)."""
    reasons: list[str]
    stats: Mapping[str, Any]

    @property
    def http_status(self) -> int:
        """The status code of an answer: 200 unless unhealthy, then 503."""
        return 503 if self.status == "unhealthy" else 200

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"status": self.status, "reasons": self.reasons, "stats": dict(self.stats)}


def health_of(
    stats: Mapping[str, Any], *, longest_wait: float = 300.0, most_errors: float = 0.05
) -> Health:
    """Judge a writer by its `stats()`.

    Args:
        stats: The figures.
        longest_wait: Seconds that the oldest turn may wait.
        most_errors: Share of turns that may fail.
    """
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
    if stats["error_rate"] > most_errors:
        worries.append(f"{stats['error_rate']:.0%} of the turns failed")
    if stats["oldest_age"] > longest_wait:
        worries.append(f"a turn has been waiting for {stats['oldest_age']:.0f} s")
        last = stats.get("last_success")
        if last is None or time.time() - last > longest_wait:
            fatal.append(f"no turn was applied for {longest_wait:.0f} s")
    status = "unhealthy" if fatal else "degraded" if worries else "healthy"
    return Health(status, fatal + worries, stats)


_COUNTERS = {
    "submitted": "Turns taken in.",
    "completed": "Turns applied.",
    "failed": "Turns given up.",
    "retries": "Attempts after the first.",
    "dead_letters": "Turns parked in the dead letters.",
    "recovered": "Turns taken over from dead writers.",
    "compactions": "Clean-ups done.",
    "compactions_failed": "Clean-ups given up.",
}
_GAUGES = {
    "pending": "Turns waiting or in work.",
    "queue_size": "Turns waiting.",
    "queue_capacity": "Turns that may wait.",
    "active_workers": "Turns in work.",
    "oldest_age": "Seconds that the oldest turn has been waiting.",
    "loss_window": "Turns that a killed process would lose now.",
    "breaker_is_open": "1 while the model is taken to be down.",
    "last_success": "When a turn was last applied, in seconds since 1970.",
}


def prometheus_text(stats: Mapping[str, Any], *, prefix: str = "tomldiary_writer") -> str:
    """Return a writer's `stats()` in the text format that Prometheus reads, version 0.0.4."""
    lines: list[str] = []
    for names, kind, ending in ((_COUNTERS, "counter", "_total"), (_GAUGES, "gauge", "")):
        for name, meaning in names.items():
            value = stats.get(name)
            if value is None:
                continue
            metric = f"{prefix}_{name}{ending}"
            lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} {kind}"]
            lines.append(
                f"{metric} {value!r}"  # all digits: seconds since 1970 have ten before the point
                if isinstance(value, float)
                else f"{metric} {int(value)}"
            )
    metric = f"{prefix}_latency_seconds"
    lines += [
        f"# HELP {metric} From taking a turn in to having it applied.",
        f"# TYPE {metric} summary",
    ]
    lines += [
        f'{metric}{{quantile="{share}"}} {stats[name]:g}'
        for share, name in (
            ("0.5", "latency_p50"),
            ("0.95", "latency_p95"),
            ("0.99", "latency_p99"),
        )
    ]
    lines.append(f"{metric}_count {stats['completed']}")
    return "\n".join(lines) + "\n"
