"""Metrics of a writer: statistics, health, Prometheus text and OpenTelemetry signals.

OpenTelemetry is used if `opentelemetry-api` is installed. Span and attribute names follow the GenAI conventions for
memory (open-telemetry/semantic-conventions-genai). Texts of conversations are never sent. A user id is sent as a
hash with a salt of this process.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from tomldiary.runtime.views import DictView, Viewed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from weakref import WeakMethod

    from tomldiary.writer.queue import Admission
    from tomldiary.writer.receipts import Job
    from tomldiary.writer.retry import Options
    from tomldiary.writer.worker import Workers

    Stats = WeakMethod[Callable[[], Mapping[str, Any]]]

__all__ = [
    "Health",
    "Metrics",
    "Telemetry",
    "WriterStats",
    "health_of",
    "prometheus_text",
    "stats_of",
]

_REMEMBERED = 1024  # turns
_PERCENTILES = (50, 95, 99)
_OBSERVED = (
    ("tomldiary.queue.depth", "{turn}", "queue_size"),
    ("tomldiary.queue.oldest_age", "s", "oldest_age"),
    ("tomldiary.dead_letters", "{turn}", "dead_letters"),
    ("tomldiary.last_success_unixtime", "s", "last_success"),
)


@dataclass(slots=True)
class Metrics:
    """Counters and recent durations of one writer, guarded by the writer's lock."""

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    retries: int = 0
    """Attempts after the first."""
    dead_letters: int = 0
    """Failed turns that were parked."""
    last_failure: str | None = None
    """The reason of the last failure, without text of the conversation; None after a turn was applied."""
    recovered: int = 0
    """Turns taken over from dead writers, which `submitted` includes."""
    repeated: int = 0
    """Completed turns that were already applied before."""
    compactions: int = 0
    compactions_failed: int = 0
    last_success: float | None = None
    """When a turn was last applied, in seconds since 1970."""
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """The time in seconds since 1970 and the latency in seconds of each of the turns applied last."""

    def complete(self, seconds: float, count: int = 1) -> None:
        """Count applied turns; `seconds` is the time from submitting to applying them."""
        self.completed += count
        self.last_failure = None
        self.last_success = time.time()
        self.recent.append((self.last_success, seconds))

    def counters(self) -> dict[str, Any]:
        """Return all fields except the durations, by name."""
        return {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "recent"
        }

    def latencies(self) -> dict[str, float]:
        """Return percentiles of the latency in seconds, of the last 1,024 applied turns, by name."""
        ordered = sorted(seconds for _, seconds in self.recent) or [0.0]
        return {
            f"latency_p{percent}": ordered[math.ceil(percent / 100 * len(ordered)) - 1]
            for percent in _PERCENTILES
        }


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
            "oldest_age": time.monotonic() - oldest if oldest is not None else 0.0,
            "breaker_is_open": workers.breaker.is_open,
            **metrics.latencies(),
            "loss_window": pending if journal_queue is None else len(journal_queue),
            "durability": "none" if journal_queue is None else journal_queue.durability,
        }
    )


class WriterStats(DictView[str, Any]):
    """The counters of a writer."""

    __slots__ = ()


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
    """Return the health of a writer, derived from its `stats()`.

    Args:
        stats: The result of `MemoryWriter.stats`.
        longest_wait: The maximum age of the oldest turn in seconds.
        most_errors: The maximum share of failed turns.
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


_PREFIX = "tomldiary_writer"
_COUNTERS = {
    "submitted": "Turns submitted.",
    "completed": "Turns applied.",
    "failed": "Turns that failed for good.",
    "retries": "Attempts after the first.",
    "dead_letters": "Turns moved to the dead letters.",
    "recovered": "Turns taken over from dead writers.",
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
        for percent in _PERCENTILES
    ]
    lines.append(f"{metric}_count {stats['completed']}")
    return "\n".join(lines) + "\n"


# OpenTelemetry


@cache
def _salt() -> bytes:
    # Not created at import time: a workflow sandbox that imports this module forbids randomness.
    return secrets.token_bytes(16)


class Telemetry:
    """Reports turns to OpenTelemetry, if it is installed.

    Args:
        store: The diary's name, sent as `gen_ai.memory.store.id`.
        stats: A weak reference to the method that returns the writer's statistics.
    """

    def __init__(self, store: str, stats: Stats) -> None:
        self._store = store
        self._tracer: Any = None
        self._duration: Any = None
        self._turns: Any = None
        try:
            from opentelemetry import metrics, trace  # noqa: PLC0415 - optional dependency
        except ImportError:
            return
        self._tracer = trace.get_tracer("tomldiary")
        self._failed = trace.Status(trace.StatusCode.ERROR)
        meter = metrics.get_meter("tomldiary")
        self._duration = meter.create_histogram(
            "tomldiary.write.duration", "s", "One attempt at applying a turn."
        )
        self._turns = meter.create_counter(
            "tomldiary.turns", "{turn}", "Attempts at applying a turn."
        )

        for name, unit, field_name in _OBSERVED:
            meter.create_observable_gauge(
                name, [self._observer(stats, field_name, metrics.Observation)], unit
            )

    def _observer(self, stats: Stats, field_name: str, observation: Any) -> Any:
        def observe(_options: object) -> Iterator[Any]:
            current = stats()
            found = current() if current is not None else None
            if found is not None and found[field_name] is not None:
                yield observation(found[field_name], {"gen_ai.memory.store.id": self._store})

        return observe

    @contextmanager
    def turn(self, job: Job) -> Generator[None]:
        """Record one attempt at a turn as a span."""
        if self._tracer is None:
            yield
            return
        begin = time.perf_counter()
        measured = {"gen_ai.operation.name": "update_memory"}
        attributes = {
            **measured,
            "gen_ai.memory.store.id": self._store,
            "tomldiary.user.hash": _hashed(job.turn.user_id),
            "tomldiary.attempt": job.attempts + 1,
            "tomldiary.turns": 1 + len(job.group),
        }
        with self._tracer.start_as_current_span(
            "update_memory", attributes=attributes, record_exception=False,
            set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                yield
            except BaseException as error:
                # The type only, because the message may quote the conversation.
                measured["error.type"] = type(error.__cause__ or error).__name__
                span.set_attribute("error.type", measured["error.type"])
                span.set_status(self._failed)
                raise
            finally:
                self._duration.record(time.perf_counter() - begin, measured)
                self._turns.add(1 + len(job.group), measured)


def _hashed(user: str) -> str:
    return hashlib.blake2b(
        user.encode("utf-8", "surrogatepass"), key=_salt(), digest_size=8
    ).hexdigest()
