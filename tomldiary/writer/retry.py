"""What to do when a turn fails: wait and try again, give up, or leave the model alone for a while.

The pause grows exponentially with jitter ("full jitter", AWS Architecture Blog 2015, "Exponential Backoff
And Jitter"), at least half of it. A library would do this as well, but the core's dependencies are counted,
and all that is needed is one line.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

from tomldiary.errors import BackendError, Conflict, LockTimeout
from tomldiary.extraction.failures import causes, status_of
from tomldiary.runtime.async_bridge import is_of_another_loop

__all__ = [
    "Breaker",
    "RetryPolicy",
    "is_of_the_model",
    "is_transient",
    "retry_after",
]

_DOUBLINGS = 64  # of a pause; more have no meaning, and a thousand no number
_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_NAMES = (
    "timeout",
    "ratelimit",
    "connect",
    "overloaded",
    "unavailable",
    "throttl",
    "servererror",
    "apierror",
)


def is_transient(error: BaseException) -> bool:
    """Tell whether trying again may help: time-outs, lost connections, rate limits, a busy server.

    Frameworks are told by what their errors look like, so that none has to be imported: a status code
    decides where there is one, then the type's name, on the error or on what it was raised from.
    """
    for each in causes(error):
        if isinstance(each, TimeoutError | ConnectionError | BackendError):
            return True
        if is_of_another_loop(each):
            return True  # the next attempt opens connections of its own
        if isinstance(each, Conflict) and not each.keys:
            return True  # somebody kept saving the file
        status = status_of(each)
        if status is not None:
            return status in _STATUSES
        if _asked_pause(each) is not None:
            return True
        names = [kind.__name__.lower() for kind in type(each).__mro__]
        if any(part in name for name in names for part in _NAMES):
            return True
    return False


def is_of_the_model(error: BaseException) -> bool:
    """Tell whether a transient error says something about the model, not about our own storage."""
    return not any(
        isinstance(each, LockTimeout | BackendError | Conflict) for each in causes(error)
    )


def retry_after(error: BaseException) -> float | None:
    """Return the seconds that a server asked to wait, if it did."""
    return next(filter(None, map(_asked_pause, causes(error))), None)


def _asked_pause(error: BaseException) -> float | None:
    value: Any = getattr(error, "retry_after", None)
    if value is None:
        headers: Any = getattr(getattr(error, "response", None), "headers", None)
        value = headers.get("retry-after") if hasattr(headers, "get") else None
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a turn is tried, and how long the pauses are.

    Args:
        attempts: Tries in all, for errors that may pass.
        first_pause: Seconds before the second try; doubles with each further one.
        longest_pause: Seconds that a pause is cut to, also one that a server asks for.
    """

    attempts: int = 5
    first_pause: float = 0.5
    longest_pause: float = 60.0

    def pause(self, attempts: int, error: BaseException) -> float:
        """Return the seconds to wait after so many tries."""
        grown = self.first_pause * 2.0 ** min(attempts - 1, _DOUBLINGS)
        jittered = grown * (0.5 + random.random() / 2)  # noqa: S311 - not for secrets
        return min(self.longest_pause, max(jittered, retry_after(error) or 0.0))


class Breaker:
    """Stops asking a model that is down: opens after failures in a row, then lets single tries through.

    Not thread-safe: the writer's loop uses it alone.

    Args:
        failures: Transient failures in a row, of whichever users, that open it.
        pause: Seconds until a try is let through; doubles each time that fails, up to 32 times.
    """

    def __init__(self, failures: int, pause: float) -> None:
        self._failures = failures
        self._first = self._pause = pause
        self._row = 0
        self._until = 0.0
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """Whether the model is taken to be down."""
        return self._row >= self._failures

    def wait(self) -> float:
        """Return the seconds until the next try may be made; 0 is now."""
        if not self.is_open:
            return 0.0
        if self._is_trying:
            return self._first
        return max(0.0, self._until - time.monotonic())

    def begin(self) -> None:
        """Note that a try begins."""
        self._is_trying = self.is_open

    def end(self) -> None:
        """Note that a try ended without a word about the model."""
        self._is_trying = False

    def succeed(self) -> None:
        """Note that the model answered, if only to refuse."""
        self._row = 0
        self._is_trying = False
        self._pause = self._first

    def fail(self) -> bool:
        """Note that the model did not answer; return whether it is taken to be down from now on."""
        was_open, self._is_trying = self.is_open, False
        self._row += 1
        if not self.is_open:
            return False
        if was_open:
            self._pause = min(self._pause * 2, self._first * 32)
        self._until = time.monotonic() + self._pause
        return not was_open
