"""Traces and metrics through OpenTelemetry, if `opentelemetry-api` is installed; nothing otherwise.

Span and attribute names follow the GenAI conventions for memory (open-telemetry/semantic-conventions-genai).
No text of a conversation is ever sent, and a user id only as a hash under a salt of this process.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from tomldiary.writing.job import Job

__all__ = ["Telemetry"]

_GAUGES = (
    ("tomldiary.queue.depth", "{turn}", "queue_size"),
    ("tomldiary.queue.oldest_age", "s", "oldest_age"),
    ("tomldiary.dead_letters", "{turn}", "dead_letters"),
    ("tomldiary.last_success_unixtime", "s", "last_success"),
)
_SALT = secrets.token_bytes(16)


class Telemetry:
    """Tells OpenTelemetry about turns.

    Args:
        store: Names the diary, as `gen_ai.memory.store.id`.
        stats: Returns the writer's figures, or None once the writer is gone.
    """

    def __init__(self, store: str, stats: Callable[[], Mapping[str, Any] | None]) -> None:
        self._store = store
        self._tracer: Any = None
        self._duration: Any = None
        self._turns: Any = None
        try:
            from opentelemetry import metrics, trace  # noqa: PLC0415 - optional
        except ImportError:
            return
        self._tracer = trace.get_tracer("tomldiary")
        meter = metrics.get_meter("tomldiary")
        self._duration = meter.create_histogram(
            "tomldiary.write.duration", "s", "One attempt at applying a turn."
        )
        self._turns = meter.create_counter(
            "tomldiary.turns", "{turn}", "Attempts at applying a turn."
        )

        for name, unit, figure in _GAUGES:
            meter.create_observable_gauge(
                name, [self._observer(stats, figure, metrics.Observation)], unit
            )

    def _observer(
        self, stats: Callable[[], Mapping[str, Any] | None], figure: str, observation: Any
    ) -> Any:
        def observe(_options: object) -> Iterator[Any]:
            figures = stats()
            if figures is not None and figures[figure] is not None:
                yield observation(figures[figure], {"gen_ai.memory.store.id": self._store})

        return observe

    @contextmanager
    def turn(self, job: Job) -> Generator[None]:
        """Make a span around one attempt at a turn."""
        if self._tracer is None:
            yield
            return
        begin = time.perf_counter()
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "update_memory",
            "gen_ai.memory.store.id": self._store,
        }
        outcome: dict[str, Any] = {}
        with self._tracer.start_as_current_span(
            "update_memory",
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            span.set_attribute("tomldiary.user.hash", _hashed(job.turn.user_id))
            span.set_attribute("tomldiary.attempt", job.attempts + 1)
            span.set_attribute("tomldiary.turns", 1 + len(job.group))
            try:
                yield
            except BaseException as error:
                # Its message may quote the conversation; its type does not.
                outcome = {"error.type": type(error.__cause__ or error).__name__}
                span.set_attribute("error.type", outcome["error.type"])
                from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - optional

                span.set_status(Status(StatusCode.ERROR))
                raise
            finally:
                measured = {"gen_ai.operation.name": "update_memory", **outcome}
                self._duration.record(time.perf_counter() - begin, measured)
                self._turns.add(1 + len(job.group), measured)


def _hashed(user: str) -> str:
    return hashlib.blake2b(
        user.encode("utf-8", "surrogatepass"), key=_SALT, digest_size=8
    ).hexdigest()
