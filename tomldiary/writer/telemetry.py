"""Traces and metrics through OpenTelemetry, if `opentelemetry-api` is installed; nothing otherwise.

Span and attribute names follow the GenAI conventions for memory (open-telemetry/semantic-conventions-genai).
No text of a conversation is ever sent, and a user id only as a hash under a salt of this process.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from contextlib import AbstractContextManager

    from tomldiary.writer.job import Job

__all__ = ["Telemetry"]

_GAUGES = (
    ("tomldiary.queue.depth", "{turn}", "queue_size"),
    ("tomldiary.queue.oldest_age", "s", "oldest_age"),
    ("tomldiary.dead_letters", "{turn}", "dead_letters"),
    ("tomldiary.last_success_unixtime", "s", "last_success"),
)


@cache
def _salt() -> bytes:
    # Not at import time: a sandbox that imports this for a workflow allows no randomness.
    return secrets.token_bytes(16)


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
        outcome: dict[str, Any] = {}
        try:
            with self._span(job):
                yield
        except BaseException as error:
            outcome = {"error.type": _type_of(error)}
            raise
        finally:
            measured = {"gen_ai.operation.name": "update_memory", **outcome}
            self._duration.record(time.perf_counter() - begin, measured)
            self._turns.add(1 + len(job.group), measured)

    def _span(self, job: Job) -> AbstractContextManager[None]:
        from opentelemetry import trace  # noqa: PLC0415 - optional

        span = self._tracer.start_span(
            "update_memory", record_exception=False, set_status_on_exception=False,
            attributes={
                "gen_ai.operation.name": "update_memory",
                "gen_ai.memory.store.id": self._store,
            },
        )  # fmt: skip
        # Without an SDK nobody listens, and there is nothing to be made current.
        return nullcontext() if span is trace.INVALID_SPAN else _current(span, job)


@contextmanager
def _current(span: Any, job: Job) -> Generator[None]:
    """Let what is done for a turn be part of its span."""
    from opentelemetry.trace import Status, StatusCode, use_span  # noqa: PLC0415 - optional

    span.set_attribute("tomldiary.user.hash", _hashed(job.turn.user_id))
    span.set_attribute("tomldiary.attempt", job.attempts + 1)
    span.set_attribute("tomldiary.turns", 1 + len(job.group))
    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            span.set_attribute("error.type", _type_of(error))
            span.set_status(Status(StatusCode.ERROR))
            raise


def _type_of(error: BaseException) -> str:
    """Return what may be told of an error: its message may quote the conversation."""
    return type(error.__cause__ or error).__name__


def _hashed(user: str) -> str:
    return hashlib.blake2b(
        user.encode("utf-8", "surrogatepass"), key=_salt(), digest_size=8
    ).hexdigest()
