"""Attempts at turns: the settings, retries, the circuit breaker of the model, counters and OpenTelemetry signals.

The pause grows exponentially with jitter (AWS Architecture Blog 2015, "Exponential Backoff And Jitter"). Half of
the pause is fixed and half is random. Errors of frameworks are recognised by their attributes and type names, so
no framework is imported.

OpenTelemetry is used if `opentelemetry-api` is installed. Span and attribute names follow the GenAI conventions for
memory (open-telemetry/semantic-conventions-genai). Texts of conversations are never sent. A user id is sent as a
hash with a salt of this process.
"""

from __future__ import annotations

import hashlib
import math
import random
import secrets
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tomldiary.errors import BackendError, Conflict, Forgotten, LockTimeout, wrong_value
from tomldiary.extraction.failures import NoCompletion, attribute, causes, status_of
from tomldiary.runtime.async_bridge import is_of_another_loop
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.storage.shared.database import DatabaseLost
from tomldiary.toml.values import (
    checked_count,
    checked_limit,
    checked_number,
    checked_pause,
    checked_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from tomldiary.writer.receipts import Job
    from tomldiary.writer.writer import MemoryWriter

_REMEMBERED = 1024  # turns
_RECENTLY = 300.0  # seconds
_MOST_WORKERS = 10_000  # each has a thread
PERCENTILES = (50, 95, 99)
"""The percentiles of the latency that are reported."""
_OBSERVED = (
    ("tomldiary.queue.depth", "{turn}", "queue_size"),
    ("tomldiary.queue.oldest_age", "s", "oldest_age"),
    ("tomldiary.dead_letters", "{turn}", "dead_letters"),
    ("tomldiary.last_success_unixtime", "s", "last_success"),
)
_DOUBLINGS = 64  # the maximum number of times that a pause doubles; more would overflow
_TRANSIENT_STATUSES = {408, 409, 425, 429}
_SERVER_ERROR = 500
_TRANSIENT_NAMES = (
    "timeout",
    "ratelimit",
    "connect",
    "networkerror",
    "protocolerror",
    "incompleteread",
    "overloaded",
    "unavailable",
    "throttl",
    "servererror",
    "apierror",
    "jsondecodeerror",
)


def is_transient(error: BaseException) -> bool:
    """Return whether another attempt may help: time-outs, lost connections, rate limits, 5xx, broken JSON.

    A status code decides if there is one, otherwise the name of the error's type. The causes of the error are also
    checked.
    """
    for each in causes(error):
        if isinstance(each, TimeoutError | ConnectionError | BackendError | NoCompletion):
            return True
        if is_of_another_loop(each):
            return True  # the next attempt opens new connections
        if isinstance(each, Conflict) and not each.keys:
            return True  # another program kept saving the file
        status = status_of(each)
        if status is not None:
            return status in _TRANSIENT_STATUSES or status >= _SERVER_ERROR
        if _asked_pause(each) is not None:
            return True
        names = [kind.__name__.lower() for kind in type(each).__mro__]
        if any(part in name for name in names for part in _TRANSIENT_NAMES):
            return True
    return False


def is_of_the_model(error: BaseException) -> bool:
    """Return whether a transient error comes from the model, not from the storage."""
    return not any(
        isinstance(each, LockTimeout | BackendError | Conflict) for each in causes(error)
    )


def lost_database(error: BaseException) -> DatabaseLost | None:
    """Return why a shared database could not be reached; None if the error has another cause."""
    return next((each for each in causes(error) if isinstance(each, DatabaseLost)), None)


def cause_name(error: BaseException) -> str:
    """Return the type name of the error's cause, with the system's message but no path for an OSError.

    For a database that does not answer, return the type name of the error, with the reason.
    """
    lost = lost_database(error)
    if lost is not None:
        return f"{type(error).__name__} ({lost})"
    # The cause of a TimeoutError of asyncio is only the cancellation.
    cause = error if isinstance(error, TimeoutError) else error.__cause__ or error
    said = f" ({cause.strerror})" if isinstance(cause, OSError) and cause.strerror else ""
    return f"{type(cause).__name__}{said}"


def _asked_pause(error: BaseException) -> float | None:
    """Return the pause in seconds that a server asked for, or None; it may also be a duration or a date."""
    value: Any = attribute(error, "retry_after")
    if value is None:
        headers: Any = attribute(attribute(error, "response"), "headers")
        try:
            value = headers.get("retry-after")
        except Exception:  # noqa: BLE001 - of any class, or none
            return None
    for seconds in (float, timedelta.total_seconds, _until):
        with suppress(Exception):  # any object, such as a method
            return max(0.0, seconds(value))
    return None


def _until(date: str) -> float:
    return parsedate_to_datetime(date).timestamp() - time.time()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of attempts at a turn, and the pauses between them.

    Args:
        attempts: The total number of attempts after transient errors.
        first_pause: The pause in seconds before the second attempt; doubles with each further attempt.
        longest_pause: The maximum pause in seconds, even if a server asks for a longer one.

    Raises:
        InvalidValue: An argument is not a number or out of its range.
    """

    attempts: int = 5
    first_pause: float = 0.5
    longest_pause: float = 60.0

    def __post_init__(self) -> None:
        checked_count(self.attempts, "attempts", least=1)
        for name in ("first_pause", "longest_pause"):
            pause = getattr(self, name)
            checked_number(pause, name, "0 or more seconds", lambda each: each >= 0)

    def pause(self, attempts: int, error: BaseException) -> float:
        """Return the pause in seconds after this number of attempts."""
        grown = self.first_pause * 2.0 ** min(attempts - 1, _DOUBLINGS)
        jittered = grown * (0.5 + random.random() / 2)  # noqa: S311 - not for secrets
        return min(self.longest_pause, max(jittered, self._asked(error)))

    def is_exceeded(self, error: BaseException) -> bool:
        """Return whether a server asks for a longer pause than the longest one."""
        return self._asked(error) > self.longest_pause

    @staticmethod
    def _asked(error: BaseException) -> float:
        return next(filter(None, map(_asked_pause, causes(error))), 0.0)


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of one writer, checked; see `MemoryWriter`.

    Raises:
        InvalidValue: A setting has the wrong type or is out of its range.
    """

    workers: int
    qsize: int
    timeout: float | None
    retry: RetryPolicy
    coalesce: int
    breaker: int
    breaker_pause: float
    takeover_interval: float
    lease: float
    consolidate_every: int | None
    consolidate_after: float | None

    def __post_init__(self) -> None:
        if checked_count(self.workers, "workers") > _MOST_WORKERS:
            raise wrong_value(self.workers, f"at most {_MOST_WORKERS:,} workers", "workers")
        for name in ("qsize", "coalesce", "breaker"):
            checked_count(getattr(self, name), name, least=1)
        checked_limit(self.consolidate_every, "consolidate_every", least=1)
        for name in ("timeout", "consolidate_after"):
            checked_seconds(getattr(self, name), name)
        for name in ("breaker_pause", "takeover_interval", "lease"):
            checked_pause(getattr(self, name), name)
        if not isinstance(self.retry, RetryPolicy):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise wrong_value(self.retry, "a RetryPolicy(…)", "retry")

    @property
    def consolidates(self) -> bool:
        """Whether consolidations start automatically."""
        return self.consolidate_every is not None or self.consolidate_after is not None


class Breaker:
    """A circuit breaker: stops calling a model that is down, then lets single attempts through.

    Not thread-safe: only the writer's event loop uses it.

    Args:
        failures: The number of consecutive transient failures, of any users, that opens it.
        pause: The time in seconds until an attempt is let through. It doubles with each failed attempt, up to 32 times
            `pause`.
        clock: Returns seconds that only grow.
    """

    def __init__(
        self, failures: int, pause: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures = failures
        self._clock = clock
        self._first = self._pause = pause
        self._consecutive = 0
        self._until = 0.0
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """Whether the model is considered down."""
        return self._consecutive >= self._failures

    def wait(self) -> float:
        """Return the seconds until the next attempt is allowed; 0 is now."""
        if not self.is_open:
            return 0.0
        if self._is_trying:
            return self._first
        return max(0.0, self._until - self._clock())

    def begin(self) -> None:
        """Record that an attempt begins."""
        self._is_trying = self.is_open

    def end(self) -> None:
        """Record that an attempt failed outside the call of the model."""
        self._is_trying = False

    def succeed(self) -> None:
        """Record that the model answered, even if it refused."""
        self._consecutive = 0
        self._is_trying = False
        self._pause = self._first

    def fail(self) -> bool:
        """Record that the model did not answer; return whether this opened the breaker."""
        was_open, self._is_trying = self.is_open, False
        self._consecutive += 1
        if not self.is_open:
            return False
        if was_open:
            self._pause = min(self._pause * 2, self._first * 32)
        self._until = self._clock() + self._pause
        return not was_open


# Counters


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
    skipped: int = 0
    """Operations of completed turns that were skipped; see `Applied.skipped`."""
    compactions: int = 0
    compactions_failed: int = 0
    last_success: float | None = None
    """When a turn was last applied, in seconds since 1970."""
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """The time in seconds since 1970 and the latency in seconds of each of the turns applied last."""
    ended: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """When each of the last turns ended (monotonic clock), and whether it failed; without erased turns."""

    def fail(self, count: int, error: BaseException | None = None) -> None:
        """Count turns that failed for good."""
        self.failed += count
        if not isinstance(error, Forgotten):
            self.ended.extend([(time.monotonic(), True)] * count)

    def complete(self, seconds: float, count: int = 1) -> None:
        """Count applied turns; `seconds` is the time from submitting to applying them."""
        self.completed += count
        self.last_failure = None
        self.last_success = time.time()
        self.recent.append((self.last_success, seconds))
        self.ended.extend([(time.monotonic(), False)] * count)

    def recent_error_rate(self) -> float:
        """Return the share of failed turns among the last 1,024 that ended in the last five minutes; 0 without any.

        Turns that a `forget` erased are not counted.
        """
        since = time.monotonic() - _RECENTLY
        failed = [has_failed for when, has_failed in self.ended if when >= since]
        return sum(failed) / len(failed) if failed else 0.0

    def counters(self) -> dict[str, Any]:
        """Return the fields of single values, by name."""
        names = (each.name for each in fields(self) if each.name not in {"recent", "ended"})
        return {name: getattr(self, name) for name in names}

    def latencies(self) -> dict[str, float]:
        """Return percentiles of the latency in seconds, of the last 1,024 applied turns, by name."""
        ordered = sorted(seconds for _, seconds in self.recent) or [0.0]
        return {
            f"latency_p{percent}": ordered[math.ceil(percent / 100 * len(ordered)) - 1]
            for percent in PERCENTILES
        }


# OpenTelemetry


@cache
def _salt() -> bytes:
    # Not created at import time: a workflow sandbox that imports this module forbids randomness.
    return secrets.token_bytes(16)


class _Instruments:
    """The instruments of one meter: OpenTelemetry ignores the callbacks of a second gauge, and never drops a gauge."""

    def __init__(self, get_meter: Callable[[str], Any], observation: Any) -> None:
        self._observation = observation
        self._writers: WeakKeyDictionary[MemoryWriter, str] = WeakKeyDictionary()
        self._guard = fork_safe(threading.Lock())
        meter = get_meter("tomldiary")
        self.duration = meter.create_histogram(
            "tomldiary.write.duration", "s", "One attempt at applying a turn."
        )
        self.turns = meter.create_counter(
            "tomldiary.turns", "{turn}", "Attempts at applying a turn."
        )
        for name, unit, field_name in _OBSERVED:
            meter.create_observable_gauge(name, [partial(self._observe, field_name)], unit)

    def add(self, writer: MemoryWriter, store: str) -> None:
        """Report a writer in the gauges as long as it exists."""
        with self._guard:
            self._writers[writer] = store

    def _observe(self, field_name: str, _options: object) -> Iterator[Any]:
        with self._guard:
            writers = list(self._writers.items())
        for writer, store in writers:
            found = writer.stats()[field_name]
            if found is not None:
                yield self._observation(found, {"gen_ai.memory.store.id": store})


_instruments = cache(_Instruments)


class Telemetry:
    """Reports turns to OpenTelemetry, if it is installed.

    Args:
        store: The diary's name, sent as `gen_ai.memory.store.id`.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._tracer: Any = None
        try:
            from opentelemetry import metrics, trace  # noqa: PLC0415 - optional dependency
        except ImportError:
            return
        self._tracer = trace.get_tracer("tomldiary")
        self._failed = trace.Status(trace.StatusCode.ERROR)
        self._instruments = _instruments(metrics.get_meter, metrics.Observation)

    def report(self, writer: MemoryWriter) -> None:
        """Report a writer's statistics as long as it exists; another thread may read them from now on."""
        if self._tracer is not None:
            self._instruments.add(writer, self._store)

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
                self._instruments.duration.record(time.perf_counter() - begin, measured)
                self._instruments.turns.add(1 + len(job.group), measured)


def _hashed(user: str) -> str:
    return hashlib.blake2b(
        user.encode("utf-8", "surrogatepass"), key=_salt(), digest_size=8
    ).hexdigest()
