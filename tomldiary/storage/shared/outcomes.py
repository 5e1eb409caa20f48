"""Repeats requests to an unreachable database, and determines whether a step without an answer was applied."""

from __future__ import annotations

import random
import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from tomldiary.errors import BackendError
from tomldiary.storage.shared.database import DatabaseLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.storage.protocol import Token
    from tomldiary.storage.shared.database import Database, Head, Step

__all__ = ["answer", "outcome", "pause", "unknown_outcome", "unreachable"]

R = TypeVar("R")
_FIRST_PAUSE = 0.005  # seconds
_LONGEST_PAUSE = 0.5  # seconds


def pause(number: int) -> None:
    """Wait for a random time whose upper limit doubles with each number."""
    time.sleep(random.uniform(0.0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**number)))  # noqa: S311 - no secret


def answer(
    database: Database,
    timeout: float,
    ask: Callable[[], R],
    repeated: type[DatabaseLost] = DatabaseLost,
) -> R:
    """Return the answer to a request, which is repeated while the database cannot be reached.

    Args:
        database: The database.
        timeout: The time limit for repetitions, in seconds.
        ask: Sends the request.
        repeated: The error after which the request is repeated; for a write, only `DatabaseAway`.

    Raises:
        BackendError: The database could not be reached for `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    for number in count():
        try:
            return ask()
        except repeated as error:
            if time.monotonic() >= deadline:
                raise unreachable(database, error) from error
            pause(number)
    raise AssertionError


def outcome(
    database: Database, timeout: float, user: str, head: Head, step: Step, error: DatabaseLost
) -> dict[str, Token] | None:
    """Determine whether a step without an answer was applied, and apply it if not.

    Returns:
        The versions of its documents, empty if they are unknown; None if another process was faster.

    Raises:
        BackendError: It was not applied, or its outcome is unknown.
    """
    deadline = time.monotonic() + timeout
    for number in count():
        try:
            now = answer(database, timeout, lambda: database.head(user))
            if now.revision == head.revision:
                if now.versions != head.versions:
                    # A program that does not update the revision has changed a document.
                    return None
                versions = database.apply(user, now, step)
                if versions is not None:
                    return versions
                raise error  # the first attempt was only slow: check again
            if not step.records:
                return None
            seq, text = step.records[-1]
            found = answer(database, timeout, partial(database.records, user, seq + 1, 1))
        except DatabaseLost as lost:
            if time.monotonic() >= deadline:
                raise unknown_outcome(database, error) from lost
            pause(number)
            continue
        except BackendError as lost:
            raise unknown_outcome(database, error) from lost
        if found != [(seq, text)]:
            return None
        # After a later step of another process, the stored versions may not be those of our texts.
        is_newest = now.revision == head.revision + step.growth
        return {kind: now.versions.get(kind) for kind in step.contents} if is_newest else {}
    raise AssertionError


def unreachable(database: Database, error: DatabaseLost) -> BackendError:
    """Return the error for a request that had no effect, because the database could not be reached."""
    return BackendError(
        f"{database}: cannot be reached ({error}). Check the address and that the server runs."
    )


def unknown_outcome(database: Database, error: BaseException) -> BackendError:
    """Return the error for a step that may or may not be stored."""
    return BackendError(
        f"{database}: the connection broke during a write ({error}). It is unknown whether the change is"
        " stored; check before you repeat it."
    )
