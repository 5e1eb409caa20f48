"""Runs transactions on one state of a user, and applies their steps.

An attempt is a transaction that its caller can run again. It begins with the cached state of the user. At its end, it
verifies that this state is the stored one.

Concurrent attempts of one user share a step. An attempt that ends while other calls for the user wait adds its changes
to a group. The next attempt begins with them, and the last one applies the group as one step. A transaction that is no
attempt applies the group before it begins. No call returns before the step is applied. If it is refused, all attempts
of the group run again.
"""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from tomldiary.errors import (
    BackendError,
    IdentifierError,
    LockTimeout,
    NotSupported,
    RevisionConflict,
)
from tomldiary.identifiers.user_ids import checked_user
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.in_order import in_order
from tomldiary.storage.locks import UserLocks
from tomldiary.storage.shared.database import (
    RESERVED,
    DatabaseAway,
    DatabaseLost,
    Head,
    Step,
    answer,
    confirm,
    is_hidden,
    outcome,
    pause,
    unknown_outcome,
)
from tomldiary.storage.shared.heads import Heads, Notifies, Remembered, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from tomldiary.storage.protocol import Token
    from tomldiary.storage.shared.database import Database

R = TypeVar("R")
_TURN = 0.05  # seconds that an attempt waits for the lock before it checks its group again
_LONG = 1.0  # seconds after which a refused transaction reserves the user
_RESERVATION = 20.0  # seconds; others wait no longer, as the process that reserved may be dead
_TRIES = 25  # attempts to begin or end a reservation
_QUIET = 60.0  # seconds after an unchanged state for which a request may assume that no other process writes
# Conflicts after which a process raises the revision, as one that assumes the state may otherwise always be faster.
_TOUCH_AFTER = (3, 6, 12, 24)
_MOST_RECORDS = 64  # of a group
_MOST_AHEAD = 32  # documents that one request reads in advance
_LARGEST = 1 << 20  # characters of a group


class PendingVersion:
    """The version of a document in a pending step; once the step is applied, it equals the stored version."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version: Token | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether both are one version; before the step is applied, it equals only itself."""
        return other is self or (self.version is not None and bool(self.version == other))

    __hash__ = object.__hash__


class Group:
    """The pending changes of one user, which the next step applies; the user's lock guards them.

    Args:
        base: The state in the database that the first transaction began with.
    """

    def __init__(self, base: Head) -> None:
        self.base = base
        self.head = Head(base.revision, base.epoch, dict(base.versions), base.record)
        """The state that the next transaction begins with."""
        self.texts: dict[str, str] = {}
        """The new texts of documents, by name."""
        self.records: list[tuple[int, str]] = []
        self.is_done = False
        """Whether the step was applied or refused."""
        self.error: Exception | None = None
        """The reason why the step was not applied."""

    @property
    def step(self) -> Step:
        """All changes as one step."""
        return Step(self.texts, records=self.records)

    @property
    def is_full(self) -> bool:
        """Whether no further transaction should join."""
        size = sum(map(len, self.texts.values()))
        return len(self.records) >= _MOST_RECORDS or size >= _LARGEST

    def add(self, step: Step) -> dict[str, Token]:
        """Add the changes of a transaction, and return the versions of its documents."""
        versions: dict[str, Token] = {kind: PendingVersion() for kind in step.contents}
        self.texts.update(step.contents)
        self.head.versions.update(versions)
        self.head.record = step.newest(self.head.record)
        self.records += step.records
        return versions

    def settle(self, versions: dict[str, Token]) -> None:
        """Mark the step as applied; `versions` are the known new versions."""
        for kind, version in versions.items():
            self.head.versions[kind].version = version
        self.is_done = True

    def fail(self, error: Exception) -> None:
        """Mark the step as not applied."""
        self.error = error
        self.is_done = True


@dataclass(slots=True)
class Hold:
    """A user's lock that a thread of this process holds."""

    thread: int
    known: Remembered
    """The cached state of the user."""
    begin: float = field(default_factory=time.monotonic)
    """When the lock was taken, on the monotonic clock."""
    is_attempt: bool = False
    may_assume: bool = False
    """Whether the transaction may begin with the cached state, which its end verifies."""
    head: Head | None = None
    """The state that the transaction began with; None before the first access and after a conflict."""
    is_assumed: bool = False
    """Whether `head` was cached, and the database has not confirmed it."""
    group: Group | None = None
    hidden: set[str] = field(default_factory=set[str])
    """The hidden documents that the transaction has read."""
    has_reserved: bool = False
    """Whether this transaction has reserved the user, so that other writers wait for its end."""
    lost: DatabaseLost | None = None
    """Why a step got no answer, of which no history record tells whether it was applied."""


class _Reading(threading.local):
    """The states that a thread has read in the block of `Transactions.reading`."""

    heads: dict[str, Head] | None = None

    def __init__(self) -> None:
        self.ahead: dict[tuple[str, str], tuple[str, Token]] = {}
        """The documents that the last request of `Transactions.text` read in advance, by user and name."""
        self.count = 0
        """The number of documents that the block has read; 0 again if those in advance were not needed."""


class Transactions:
    """The transactions of one process on a database. Thread-safe.

    Args:
        database: The database.
        timeout: The time in seconds after which a call fails if the database cannot be reached.
        watch: The time in seconds after the last answer during which reads may use cached states; 0 disables this.

    Raises:
        NotSupported: The database does not send change notices, and `watch` is not 0.
        InvalidValue: `watch` is too short or too long.
    """

    def __init__(self, database: Database, timeout: float, watch: float = 0.0) -> None:
        self.database = database
        self.timeout = timeout
        self.quiet = _QUIET
        self.heads = Heads()
        self.watch: Watch | None = None
        if watch != 0:
            if not isinstance(database, Notifies):
                raise NotSupported(
                    f"{database}: watch is supported on PostgreSQL and Redis only. Remove it;"
                    " each read then queries the version."
                )
            self.watch = Watch(database, self.heads, watch)
            # Stops the thread if a host drops its diary without closing it.
            weakref.finalize(self, self.watch.stop).atexit = False
        self._locks = UserLocks(None)
        self._uncertain: set[str] = set()
        """The users whose last step may be stored although the server's replicas lack it."""
        self._holds: dict[str, Hold] = {}
        self._reading = _Reading()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drop the state of other threads: a forked child has none of them, and new threads may reuse their ids."""
        thread = threading.get_ident()
        self._holds = {user: hold for user, hold in self._holds.items() if hold.thread == thread}
        self._groups: dict[str, Group] = {}
        self._reservation = f"{secrets.token_hex(8)}\n"  # unique, to recognise an own one

    def waiting(self, user: str) -> int:
        """Return how many calls of this process wait for a user's lock."""
        return self._locks.waiting(user)

    def _known(self, user: str) -> Remembered:
        """Return the cached state of a user."""
        check_user(user)
        return self.heads.of(user)

    # Locks

    @contextmanager
    def lock(self, user: str, timeout: float) -> Generator[None]:
        """Hold a user's lock for a transaction that reads the stored state and applies its steps immediately."""
        hold = Hold(threading.get_ident(), self._known(user))
        with self._held(user, timeout, hold):
            group = self._groups.get(user)
            if group is not None:
                self._apply_group(user, group)
            try:
                yield
            finally:
                if hold.has_reserved:
                    self._set_reservation(user, hold, is_reserved=False)

    @contextmanager
    def attempt(self, user: str, timeout: float) -> Generator[None]:
        """Hold a user's lock for a transaction that the caller runs again if it is refused.

        Raises:
            RevisionConflict: It did not begin with the stored state. Nothing was stored.
        """
        known = self._known(user)
        hold = Hold(threading.get_ident(), known, is_attempt=True, may_assume=True)
        failure: BaseException | None = None
        with self._held(user, timeout, hold):
            hold.group = self._groups.get(user)
            try:
                yield
            except BaseException as error:  # noqa: BLE001 - raised below
                failure = error
            group = hold.group
            if group is not None:
                if not self.waiting(user) or group.is_full:
                    self._apply_group(user, group)
            elif hold.is_assumed and (
                failure is None
                # After an error of the storage, a request would only wait for it again.
                or (isinstance(failure, Exception) and not isinstance(failure, BackendError))
            ):
                self.verify(user)
        if group is not None:
            self._await(user, group)
        if failure is not None:
            raise failure

    @contextmanager
    def _held(self, user: str, timeout: float, hold: Hold) -> Generator[None]:
        with self._locks.hold(user, timeout):
            self._holds[user] = hold
            try:
                yield
            finally:
                del self._holds[user]

    def hold_of_caller(self, user: str) -> Hold | None:
        """Return the hold of the calling thread on the user's lock, or None."""
        hold = self._holds.get(user)
        return hold if hold is not None and hold.thread == threading.get_ident() else None

    # States

    def head(self, user: str) -> Head:
        """Return the state that the caller's transaction began with, or the current state without a transaction."""
        hold = self.hold_of_caller(user)
        if hold is None:
            return self.seen(user) or self._current(user)
        if hold.head is not None:
            return hold.head
        known = hold.known
        if user in self._uncertain:
            # Otherwise a call that changes nothing, such as a repeated one, would acknowledge what no replica has.
            confirm(self.database, self.timeout, user)
            self._uncertain.discard(user)
            known.calm = 0
        if hold.group is not None:
            hold.head = hold.group.head
        elif hold.may_assume and known.is_alone and known.head is not None:
            hold.head, hold.is_assumed = known.head, True
        else:
            before = known.head
            hold.head, hold.is_assumed = self._ask_in_turn(user, hold), False
            known.compare(before, hold.head)
        return hold.head

    def _current(self, user: str) -> Head:
        """Return the current state, and keep it for the caller's block of `reading`."""
        known = self._known(user)
        if self.watch is not None:
            self.watch.start()
        head = self.heads.valid(known) or self._ask(user, known)
        if self._reading.heads is not None:
            self._reading.heads[user] = head
        return head

    def _ask_in_turn(self, user: str, hold: Hold) -> Head:
        """Return the stored state for a transaction, after reservations of other processes have ended."""
        deadline = time.monotonic() + _RESERVATION
        for number in count():
            head = self._ask(user, hold.known)
            if hold.has_reserved or RESERVED not in head.versions:
                return head
            if number == 0 and self._has_reserved(user):
                deadline = 0.0  # an earlier call lost the database before it ended its reservation
            if time.monotonic() >= deadline:
                self._is_applied(user, head, Step(removed=[RESERVED]))
            pause(number)
        raise AssertionError

    def _set_reservation(self, user: str, hold: Hold, *, is_reserved: bool) -> bool:
        """Begin or end a reservation, which makes other writers wait; return whether the stored state has it.

        It serves only fairness, for a transaction that takes longer than the pauses of the others: a step on an older
        state is refused in any case. A reservation that does not end is removed by the others, but later.
        """
        step = Step({RESERVED: self._reservation}) if is_reserved else Step(removed=[RESERVED])
        with suppress(BackendError):  # a copy may have no permission to write to its source
            for _ in range(_TRIES):
                self._touch(user)
                head = self._ask_in_turn(user, hold)
                if (RESERVED in head.versions) == is_reserved or self._is_applied(user, head, step):
                    return True
        return False

    def _is_applied(self, user: str, head: Head, step: Step) -> bool:
        """Apply a step that begins or ends a reservation; return whether an answer said that it was applied."""
        return self.asked(partial(self.database.apply, user, head, step)) is not None

    def _has_reserved(self, user: str) -> bool:
        """Return whether the stored reservation is one of this process."""
        found = self.asked(partial(self.database.read, user, [RESERVED])).get(RESERVED)
        return found is not None and found[0] == self._reservation

    def _ask(self, user: str, known: Remembered) -> Head:
        """Return the stored state of a user, and cache it."""
        stamp, now, before = self.heads.stamp(known), time.monotonic(), known.head
        is_quiet = known.is_alone and now < known.quiet_until
        head = self.asked(lambda: self.database.head(user, before if is_quiet else None))
        if before is None or head.revision != before.revision:
            known.quiet_until = 0.0
        elif not is_quiet:
            known.quiet_until = now + self.quiet
        self.heads.keep(known, head, stamp)
        return head

    def asked(self, read: Callable[[], R]) -> R:
        """Return the result of a request, which is repeated while the database cannot be reached."""
        return answer(self.database, self.timeout, read)

    def verify(self, user: str) -> None:
        """Check that the state of the caller's transaction is still the stored one; the caller holds the lock.

        Raises:
            RevisionConflict: The stored state is a different one.
        """
        hold = self._holds[user]
        begun = hold.head
        if begun is not None and self._ask(user, hold.known).revision != begun.revision:
            raise self.conflict(user)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Give this thread one state of each user for the block: the state at the user's first read."""
        outer = self._reading.heads
        if outer is None:
            self._reading.heads, self._reading.count = {}, 0
        try:
            yield
        finally:
            self._reading.heads = outer
            if outer is None:
                self._reading.ahead = {}

    def of_each(self, users: Sequence[str], work: Callable[[str], R]) -> Iterator[R]:
        """Yield the result of `work` for each user, in order, computed in threads; they read the caller's states."""
        heads = self._reading.heads

        def in_block(user: str) -> R:
            here = self._reading  # of the caller's thread if no other can be started
            outer, here.heads = here.heads, heads
            try:
                return work(user)
            finally:
                here.heads = outer

        return in_order(in_block, users, "tomldiary-users")

    def seen(self, user: str) -> Head | None:
        """Return the state that the caller's block of `reading` has read, or None."""
        return (self._reading.heads or {}).get(user)

    def text(self, user: str, kind: str, seen: Head | None) -> tuple[str, Token] | None:
        """Return a document and its version, or None.

        Args:
            user: The user.
            kind: The document.
            seen: The state that the caller's block of `reading` has read. In a block that reads one document after
                the other, each request reads a quarter as many in advance as were read before.
        """
        here, names = self._reading, [kind]
        known = here.ahead.pop((user, kind), None)
        if seen is not None:
            if known is not None and known[1] == seen.versions.get(kind):
                return known
            if here.ahead:  # others were needed
                here.count = 0
            later = (each for each in seen.versions if each > kind and not is_hidden(each))
            names += sorted(later)[: min(here.count // 4, _MOST_AHEAD)]
            here.count += len(names)
        found = self.asked(lambda: self.database.read(user, names))
        mine = found.pop(kind, None)
        here.ahead = {(user, name): each for name, each in found.items()}
        return mine

    def refresh(self, user: str) -> None:
        """Let the next call read the state of a user again, also in a block of `reading` and with a watch."""
        known = self.heads.of(user)
        known.confirmed, known.quiet_until = None, 0.0
        (self._reading.heads or {}).pop(user, None)

    # Steps

    def commit(self, user: str, head: Head, step: Step) -> dict[str, Token]:
        """Apply a step, or add it to the group of an attempt; return the versions of its documents.

        Raises:
            RevisionConflict: The stored state is no longer `head`.
        """
        hold = self.hold_of_caller(user)
        if hold is None or not hold.is_attempt:
            return self.apply(user, head, step)
        group = hold.group
        if group is None:
            group = hold.group = self._groups[user] = Group(head)
        versions = group.add(step)
        hold.head = group.head
        return versions

    def apply(self, user: str, head: Head, step: Step) -> dict[str, Token]:
        """Apply a step, and cache the state after it.

        Raises:
            RevisionConflict: The stored state is no longer `head`.
        """
        hold = self.hold_of_caller(user)
        known = self.heads.of(user) if hold is None else hold.known
        (self._reading.heads or {}).pop(user, None)
        stamp, begin = self.heads.stamp(known), time.monotonic()
        after: Head | None = None
        versions: dict[str, Token] | None = None
        try:
            send = partial(self.database.apply, user, head, step)
            after = answer(self.database, self.timeout, send, DatabaseAway)
        except DatabaseLost as error:
            self._uncertain.add(user)
            versions = outcome(self.database, self.timeout, user, head, step, error)
            self._uncertain.discard(user)
            if hold is not None and versions is None and not step.records:
                hold.lost = error
        known.duration = time.monotonic() - begin
        if after is not None:
            versions = {kind: after.versions[kind] for kind in step.contents}
            self.heads.keep(known, after, stamp)
        if versions is None:
            raise self.conflict(user)
        known.conflicts = 0
        if after is None:  # another step may have followed, so the state must be read again
            known.calm, known.confirmed = 0, None
        if hold is not None:
            hold.head, hold.is_assumed = after, False
        return versions

    def conflict(self, user: str) -> RevisionConflict:
        """Return the error for a user whom another process changed; the holder of a lock waits for a short time first."""
        hold = self.hold_of_caller(user)
        known = self.heads.of(user) if hold is None else hold.known
        known.calm, known.confirmed = 0, None
        known.conflicts += 1
        error = RevisionConflict.of(user)
        if known.conflicts in _TOUCH_AFTER:
            self._touch(user)
        if hold is not None:
            hold.head, group = None, hold.group
            hold.group = None
            if group is not None and self._groups.get(user) is group:
                del self._groups[user]
                group.fail(error)
            if not hold.is_attempt:
                known.back_off()
                if not hold.has_reserved and time.monotonic() - hold.begin > _LONG:
                    hold.has_reserved = self._set_reservation(user, hold, is_reserved=True)
        return error

    def _touch(self, user: str) -> None:
        """Raise the revision, so that every process must read the state before its next step."""
        with suppress(DatabaseLost, BackendError):
            self.database.touch(user)

    def _apply_group(self, user: str, group: Group) -> None:
        """Apply the step of a group, and set the outcome for each of its attempts."""
        del self._groups[user]
        try:
            group.settle(self.apply(user, group.base, group.step))
        except BaseException as error:
            if isinstance(error, Exception):
                group.fail(error)
                return
            group.fail(unknown_outcome(self.database, error))
            raise

    def _await(self, user: str, group: Group) -> None:
        """Wait until a group is applied, by the first of its attempts that gets the lock.

        Raises:
            RevisionConflict: The step was refused.
            BackendError: The storage failed.
        """
        while not group.is_done:
            with suppress(LockTimeout), self._locks.hold(user, _TURN):
                if self._groups.get(user) is group:
                    self._apply_group(user, group)
        if group.error is not None:
            if isinstance(group.error, RevisionConflict):
                self.heads.of(user).back_off()
            raise copy(group.error)


def check_user(user: str) -> None:
    """Refuse a user id that a database cannot store."""
    checked_user(user)
    if not user.isascii() and any("\ud800" <= each <= "\udfff" for each in user):
        raise IdentifierError(
            f"the user id {user!r} contains a lone surrogate, which a database cannot store. Use another id."
        )
