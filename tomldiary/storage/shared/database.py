"""The protocol of a shared database: it reads a user's state, and applies one step atomically.

`answer` repeats requests to an unreachable database. `outcome` determines whether a step without an answer was applied.
"""

from __future__ import annotations

import random
import re
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol, Self, TypeVar
from urllib.parse import quote, unquote

from tomldiary.errors import BackendError
from tomldiary.history.record import is_snapshot, next_sequence
from tomldiary.toml.values import check_unicode, checked_number, checked_text

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence

    from tomldiary.storage.protocol import Token

R = TypeVar("R")
_FIRST_PAUSE = 0.005  # seconds
_LONGEST_PAUSE = 0.5  # seconds
LONGEST_TIMEOUT = 86_400  # seconds; the client libraries accept no much longer ones
WHOLE_HISTORY = sys.maxsize
"""A sequence number that no transaction reaches."""
_ESCAPED = re.compile("\1(.)", re.DOTALL)
_SCHEME = re.compile(r"[\s'\"]*[a-zA-Z][\w+.-]*(?::/{0,2}|//)(?=.*[@?])|.*?://", re.DOTALL)
_UNKNOWN_OPTION = re.compile(r"(?:query parameter: |keyword argument )[\"'](\w+)[\"']")
_INVALID_OPTION = re.compile(r'invalid "?(\w+)"? value: ')
# A lost connection is none of them, such as "SSL SYSCALL error: EOF detected".
_TLS = re.compile(
    r"certificate|private key|X509|support SSL|(?:SSL error|\[SSL)(?!: unexpected.eof)",
    re.IGNORECASE,
)
# Messages of libpq for a server that answered, but is not the one that the address asks for.
_OTHER_SERVER = re.compile(r"session is (?:not )?read-only|in hot standby mode")
_FULL = re.compile(
    "max number of clients|too many (?:clients|connections)|connection slots are reserved"
)
ERASED = ".erased"
"""The hidden document with the fencing token that the last complete erasure set; it outlives the user's data."""
RESERVED = ".reserved"
"""The hidden document with which a long transaction makes other writers of the user wait. Its text has no meaning."""


def is_hidden(kind: str) -> bool:
    """Return whether a document is hidden: listings and history do not contain it."""
    return kind.startswith(".")


def stored_id(user: str) -> str:
    """Return a user id without NUL characters, which a text column cannot store; the id of the shared owner has one."""
    return user.replace("\1", "\1\1").replace("\0", "\1\2")


def user_of(stored: str) -> str:
    """Return the user id from a result of `stored_id`."""
    return _ESCAPED.sub(lambda found: "\0" if found[1] == "\2" else "\1", stored)


def _growth() -> int:
    # Redis keeps integers up to 2**53 exactly, so this lasts for 2**33 steps of a user.
    return random.getrandbits(20) + 1


@dataclass(slots=True)
class Head:
    """The state of one user at one moment."""

    revision: int = 0
    """A number that each step raises; it outlives the user's data."""
    epoch: int = 0
    """How often data of the user was erased; it outlives the user's data."""
    versions: dict[str, Token] = field(default_factory=dict[str, "Token"])
    """The version of each document, by name."""
    record: str | None = None
    """The newest history record."""

    def shown(self, hidden: Container[str]) -> tuple[object, ...]:
        """Return what is comparable of the state without the hidden documents, other than the given ones."""
        seen = {
            kind: each
            for kind, each in self.versions.items()
            if kind in hidden or not is_hidden(kind)
        }
        return self.epoch, self.record, seen

    def after(self, step: Step, versions: Mapping[str, Token]) -> Self:
        """Return the state after a step; `versions` are those of its documents."""
        left = {**self.versions, **versions}
        for kind in step.removed:
            left.pop(kind, None)
        revision, epoch = self.revision + step.growth, self.epoch + step.erasures
        return type(self)(revision, epoch, left, step.newest(self.record))


@dataclass(slots=True)  # not frozen: frozen ones are slower to create
class Step:
    """Changes of one user that are applied together or not at all. Treat it as immutable."""

    contents: Mapping[str, str] = field(default_factory=dict[str, str])
    """New texts of documents, by name."""
    removed: Sequence[str] = ()
    """Names of documents to remove."""
    records: Sequence[tuple[int, str]] = ()
    """History records to add, with their sequence numbers, oldest first."""
    dropped: int = 0
    """History records up to this sequence number are removed first."""
    erasures: int = 0
    """The increment of the epoch; 0 if nothing is erased."""
    growth: int = field(default_factory=_growth, compare=False)
    """The increment of the revision; it is random, so that a server that lost steps does not reuse a lost revision."""

    def newest(self, record: str | None) -> str | None:
        """Return the newest history record after the step; `record` is the newest one before it."""
        if not self.records:
            return None if self.dropped == WHOLE_HISTORY else record
        seq, newest = self.records[-1]
        # A snapshot replaces old records, and is seldom the newest one.
        is_older = 0 < self.dropped < WHOLE_HISTORY and seq < next_sequence(record) - 1
        return record if is_older else newest


def check_options(timeout: object, **texts: object) -> None:
    """Raise InvalidValue unless `timeout` is a number of seconds from 0 to a day and the others are texts in UTF-8."""
    for name, text in texts.items():
        check_unicode(checked_text(text, name), name)
    expected = f"more than 0 and at most {LONGEST_TIMEOUT:,} seconds"
    checked_number(timeout, "timeout", expected, lambda each: 0 < each <= LONGEST_TIMEOUT)


def without_secrets(url: str) -> str:
    """Return an address without user, password and parameters, for messages; a path is returned unchanged."""
    scheme = _SCHEME.match(url)  # also with a missing character, before "@" or "?"
    if scheme is None:
        return url
    place, _, query = url[scheme.end() :].partition("?")
    if "@" in unquote(query) and ":" in place:
        return f"{scheme[0]}…"  # perhaps a password with a question mark
    return f"{scheme[0]}{place.rpartition('@')[2]}"


def address(url: str, option: str, part: str, default: str = "tomldiary") -> str:
    """Return an address without secrets; it has the option that names a part of the database, unless that is the default."""
    place = without_secrets(url)
    return place if part == default else f"{place}?{option}={quote(part)}"


def not_an_address(
    url: str, server: str, example: str, library: str, options: Iterable[str], error: Exception
) -> BackendError:
    """Return the error for an address that a client library refuses.

    The library's error is read for the name of an option only, as it may quote a part of the password.
    """
    place = without_secrets(url)
    if not place.endswith("…"):
        found = _UNKNOWN_OPTION.search(str(error))
        if found is not None:
            return BackendError(
                f"{place}: there is no option {found[1]!r}. The options are {', '.join(options)}, and those of {library}."
            )
        found = _INVALID_OPTION.search(str(error))
        if found is not None:
            return BackendError(
                f"{place}: the value of the option {found[1]!r} is unknown to {library}. Correct it."
            )
    return BackendError(
        f"{place}: is not an address of {server}. Write {example}; percent-encode special characters, and use"
        f" only options of {library}."
    )


class DatabaseLost(Exception):
    """The connection broke or timed out; the effect of the call is unknown. The message contains no secret."""


class DatabaseAway(DatabaseLost):
    """The database could not be reached before the request was sent."""


class Database(Protocol):
    """The state of all users in one database. Thread-safe; all methods block. A forked child opens its own connections.

    A user id may be any text that UTF-8 can encode, also with NUL characters, which `stored_id` replaces.
    Every method raises `DatabaseLost` if the connection breaks, and `BackendError` for an error that a
    retry cannot resolve, such as a missing permission.
    """

    def risk(self) -> str:
        """Return how the server may lose an applied step, with the remedy: words that follow its name in a sentence.

        "" if steps survive a power cut.
        """
        ...

    def __str__(self) -> str:
        """Return the address, without a password."""
        ...

    def head(self, user: str, known: Head | None = None) -> Head:
        """Return the state of a user in one request; an empty state for an unknown user.

        With `known`, an earlier state, the database may read only what shows that no step was applied since, and what
        programs without revisions write.
        """
        ...

    def read(self, user: str, kinds: Sequence[str]) -> dict[str, tuple[str, Token]]:
        """Return the texts and versions of those documents that exist."""
        ...

    def records(self, user: str, below: int, limit: int) -> list[tuple[int, str]]:
        """Return at most `limit` history records with lower sequence numbers, newest first."""
        ...

    def users(self) -> Iterable[str]:
        """Yield the ids of all users with documents that are not hidden, in any order, read in pages."""
        ...

    def erased(self) -> Iterable[str]:
        """Yield the ids of all users with erased data and without visible documents, in any order."""
        ...

    def holders(self, kind: str) -> Iterable[str]:
        """Yield the ids of all users with a hidden document, in any order, read in pages."""
        ...

    def apply(self, user: str, head: Head, step: Step) -> Head | None:
        """Apply a step if the user's revision is still that of `head`; the revision then grows by `step.growth`.

        Each document of the step gets a version that no other text of it had, even if it was removed since; the new
        revision is such a version.

        Returns:
            The state after the step; None if the revision has changed and nothing was applied.
        """
        ...

    def touch(self, user: str) -> None:
        """Add 1 to the revision of a user, whatever its value, so that no step on an older state is applied."""
        ...

    def check_writes(self) -> None:
        """Send writes that change nothing.

        Raises:
            BackendError: The server takes no writes, for example because it is a replica, or a permission is missing.
        """
        ...

    def close(self) -> None:
        """Close all connections; a later call opens new ones."""
        ...


@contextmanager
def parsing(database: Database, user: str) -> Generator[None]:
    """Parse what the database returned of a user; its errors mean that another program has changed it.

    Raises:
        BackendError: The stored state of the user is damaged.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise BackendError(
            f"{database}: the stored state of the user {user!r} is damaged. Restore it from a backup."
        ) from error


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
        BackendError: It was not applied, or its outcome is unknown, also because history was erased or dropped since.
    """
    try:
        ask = partial(_outcome, database, timeout, user, head, step, error)
        return answer(database, timeout, ask)
    except BackendError as refusal:
        # Callers distinguish a lost database by this cause; another refusal tells the remedy.
        lost = refusal.__cause__
        cause = lost if isinstance(lost, DatabaseLost) else refusal
        raise unknown_outcome(database, error) from cause


def _outcome(
    database: Database, timeout: float, user: str, head: Head, step: Step, error: DatabaseLost
) -> dict[str, Token] | None:
    """Return the result of `outcome` if one attempt can tell; else raise DatabaseLost or BackendError."""
    now = answer(database, timeout, lambda: database.head(user))
    if now.revision == head.revision:
        if now.versions != head.versions:
            # A program that does not update the revision has changed a document.
            return None
        after = database.apply(user, now, step)
        if after is not None:
            return {kind: after.versions[kind] for kind in step.contents}
        raise error  # the first attempt was only slow: check again
    is_newest = now.revision == head.revision + step.growth
    if not step.records:
        stored = answer(database, timeout, partial(database.read, user, [*step.contents]))
        # A step of another process may have the same growth, as it is random, but not the same texts.
        is_ours = is_newest and {each: stored[each][0] for each in stored} == step.contents
        confirm(database, timeout, user)
        return {kind: stored[kind][1] for kind in stored} if is_ours else None
    seq, text = step.records[-1]
    found = answer(database, timeout, partial(database.records, user, seq + 1, 1))
    if found == [(seq, text)]:
        confirm(database, timeout, user)
        # After a later step of another process, the stored versions may not be those of our texts.
        return {kind: now.versions.get(kind) for kind in step.contents} if is_newest else {}
    if not step.dropped and (now.epoch > head.epoch or _is_cut(now, seq, found)):
        raise unknown_outcome(database, error) from error
    return None


def confirm(database: Database, timeout: float, user: str) -> None:
    """Return once the server has answered a write that follows what is stored now.

    A server that waits for its replicas shows a step before they have it, once the wait is cancelled. It answers a later
    write only when they have both.
    """
    answer(database, timeout, partial(database.touch, user))


def _is_cut(now: Head, seq: int, found: Sequence[tuple[int, str]]) -> bool:
    """Return whether history was dropped, perhaps with the record `seq`; `found` is the newest record up to it."""
    if not found:
        return now.record is not None
    return found[0][0] == seq and is_snapshot(found[0][1])


def unreachable(database: Database, error: DatabaseLost) -> BackendError:
    """Return the error for a request that had no effect, because the database could not be reached."""
    what = "the address and that the server runs"
    if _TLS.search(str(error)):
        what = "the certificates and the options of TLS"
    elif _OTHER_SERVER.search(str(error)):
        what = "target_session_attrs of the address, and that it names the right server"
    elif _FULL.search(str(error)):
        what = "how many connections all programs hold, or raise max_connections or maxclients of the server"
    return BackendError(f"{database}: cannot be reached ({error}). Check {what}.")


def unknown_outcome(database: Database, error: BaseException) -> BackendError:
    """Return the error for a step that may or may not be stored."""
    return BackendError(
        f"{database}: the connection broke during a write ({error}). It is unknown whether the change is"
        " stored; check before you repeat it."
    )
