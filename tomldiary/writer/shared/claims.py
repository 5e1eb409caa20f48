"""The claims of one writer, in the documents of waiting turns: each method is one step of the database.

A writer claims a user by writing its id into the user's document. It does so when it stores a turn of a user without an
owner, or of an owner that is dead.

A writer with claims changes its own hidden document several times during its lease. Another writer takes it for dead if
this document is gone, or did not change for the time of the lease, measured by the observer's clock. The documents are
those of sixteen users of this package: `.writers-0` to `.writers-f`, by the first digit of the writer's id. So few
writers change one user, and none reads the signs of all.

A claim changes the user's revision. A writer that was taken for dead checks its claim in the transaction that applies
a turn, so it cannot apply one that another writer has taken over.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from tomldiary.engine.engine import is_erased
from tomldiary.errors import BackendError, Conflict, Forgotten, TurnTaken
from tomldiary.logging import get_logger
from tomldiary.runtime.sources import QUEUE
from tomldiary.writer.shared.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tomldiary.extraction.operations import Operation
    from tomldiary.storage.shared.backend import SharedBackend
    from tomldiary.writer.receipts import Job

__all__ = ["Claims", "Heartbeats"]

_logger = get_logger(__name__)
_BEATS = 5  # signs of life in a lease
_FORGET_AFTER = 20  # leases without a sign of life until a writer's document is removed


class Claims:
    """What a writer does to the waiting turns of users.

    Args:
        backend: The database.
        lease: Seconds without a sign of life after which another writer is dead.
        works: Whether this writer claims users; without it, it only stores turns for others.
    """

    def __init__(self, backend: SharedBackend, lease: float, *, works: bool) -> None:
        self.heartbeats = Heartbeats(backend, lease)
        self.writer = self.heartbeats.id
        self._backend = backend
        self._works = works
        self._owners: dict[str, tuple[str, float]] = {}
        """The owners of users whom others serve, and when each was read."""

    def store(self, user: str, jobs: Sequence[Job] = ()) -> Turns | None:
        """Store turns and claim the user in one step; return None if another writer has the claim.

        A turn of a run that began before everything was erased is left out, and its `epoch` stays None.
        """
        if self._works:
            self.heartbeats.beat()  # a claim of a writer that shows no life would be taken over

        def change(turns: Turns, epoch: int) -> bool:
            is_mine = self._may_claim(turns.owner)
            if is_mine:
                turns.owner = self.writer
            for job in jobs:
                is_old = is_erased(self._backend, user, job.turn.epoch, epoch)
                job.epoch = None if is_old else epoch
            turns.add([job for job in jobs if job.epoch is not None], epoch)
            return is_mine

        claim = self._change(user, change)
        if claim is not None:
            # The writer that had the claim last looks at once when turns without an owner follow.
            self._owners.pop(user, None)
        return claim

    def read(self, user: str) -> tuple[Turns, bool]:
        """Return the waiting turns of a user, and whether this writer may claim them."""
        turns = Turns.parse(self._backend.hidden(user, QUEUE)[0])
        if self._works:
            self._owners[user] = turns.owner, time.monotonic()
        return turns, self._may_claim(turns.owner)

    def without_owner(self, users: Iterable[str]) -> list[str]:
        """Return those of some users with turns who may have no living owner.

        The owner of a user is read once during a lease, and how the owners are several times.
        """
        if not self._works:
            return []
        self._owners = {user: self._owners[user] for user in users if user in self._owners}
        self.heartbeats.observe({owner for owner, _ in self._owners.values()})
        return [user for user in users if not self._is_served(user)]

    def _is_served(self, user: str) -> bool:
        owner, since = self._owners.get(user, ("", 0.0))
        is_recent = time.monotonic() - since < self.heartbeats.lease
        return owner != "" and is_recent and not self.heartbeats.is_dead(owner)

    def check(self, job: Job) -> None:
        """Raise `TurnTaken` unless this writer still has the claim; in a transaction the commit fences it."""
        if not self.holds(job):
            raise TurnTaken("another writer has taken this turn over.")

    def holds(self, job: Job) -> bool:
        """Return whether the turn still waits here; an erasure removes it."""
        turns = Turns.parse(self._backend.hidden(job.turn.user_id, QUEUE)[0])
        return turns.owner == self.writer and job.operation in turns.numbers()

    def append_operations(
        self,
        jobs: Sequence[Job],
        operations: Iterable[Operation],
        epoch_of: Callable[[str], int],  # noqa: ARG002 - the step has the token
    ) -> None:
        """Store what the model returned for a turn, so that another writer does not ask it again.

        Raises:
            Forgotten: Something of the user was forgotten since the turn was submitted.
            TurnTaken: Another writer has taken the turn over.
        """
        first, stored = jobs[0], list(operations)

        def change(turns: Turns, epoch: int) -> bool:
            if epoch != first.epoch:
                raise Forgotten.meanwhile()
            self.check(first)
            turns.add_operations([job.operation for job in jobs], stored)
            return True

        self._change(first.turn.user_id, change)

    def remove(self, user: str, ids: Sequence[str]) -> Turns | None:
        """Remove turns; return what is left, or None if another writer has taken the user over."""
        return self._change_claimed(user, lambda turns: turns.remove(ids))

    def release(self, user: str) -> None:
        """Give a claim up."""

        def change(turns: Turns) -> None:
            turns.owner = ""

        self._change_claimed(user, change)

    def _change_claimed(self, user: str, change: Callable[[Turns], None]) -> Turns | None:
        """Change the turns of a user whom this writer has claimed; return None if it has not."""

        def change_mine(turns: Turns, _epoch: int) -> bool | None:
            if turns.owner != self.writer:
                return None
            change(turns)
            return True

        return self._change(user, change_mine)

    def _change(self, user: str, change: Callable[[Turns, int], bool | None]) -> Turns | None:
        """Change the waiting turns of a user in one step; return them, or None if another writer has the claim.

        `change` returns whether this one has it; None leaves all as it is. It is called again if another process was faster.
        """
        claims: list[Turns | None] = []

        def changed(text: str, epoch: int) -> str:
            turns = Turns.parse(text)
            is_mine = change(turns, epoch)
            claims.append(turns if is_mine else None)
            return text if is_mine is None else turns.render()

        self._backend.change_hidden(user, QUEUE, changed)
        return claims[-1]

    def _may_claim(self, owner: str) -> bool:
        return self._works and (owner in {"", self.writer} or self.heartbeats.is_dead(owner))


# Signs of life


def _place(writer: str) -> str:
    """Return the user whose document shows that a writer lives."""
    return f".writers-{writer[:1]}"


class Heartbeats:
    """Shows that this writer is alive, and tells which others are.

    Args:
        backend: The database.
        lease: Seconds without a sign of life after which a writer is dead.
    """

    def __init__(self, backend: SharedBackend, lease: float) -> None:
        self.id = secrets.token_hex(8)
        """The id of this writer."""
        self.lease = lease
        self._backend = backend
        self._interval = lease / _BEATS
        self._seen: dict[str, tuple[object, float]] = {}
        """The version of each other writer's document, and when it was first seen."""
        self._beaten = self._observed = -lease
        self._beats = 0

    def beat(self) -> None:
        """Show that this writer is alive, unless it did so a moment ago."""
        if time.monotonic() - self._beaten < self._interval:
            return
        self._beats += 1
        self._change(self.id, f"{self._beats}")
        self._beaten = time.monotonic()

    def observe(self, writers: Iterable[str]) -> None:
        """Note which writers have shown life, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._observed < self._interval:
            return
        self._observed = now
        for each in {writer[:1]: writer for writer in writers if writer}.values():
            self._read_signs(each)

    def is_dead(self, writer: str) -> bool:
        """Return whether a writer has shown no life for the time of the lease, as the database says now."""
        if self._seems_dead(writer):
            self._read_signs(writer)
        return self._seems_dead(writer)

    def unregister(self) -> None:
        """Remove the document of this writer, which has no claims any more."""
        if self._beats:
            try:
                self._change(self.id, "")
            except (BackendError, Conflict) as error:
                _logger.warning("the writer %s cannot be signed off (%s)", self.id, error)

    def _seems_dead(self, writer: str) -> bool:
        seen = self._seen.get(writer)
        return seen is None or time.monotonic() - seen[1] > self.lease

    def _read_signs(self, writer: str) -> None:
        """Read the signs of a writer, and of those with documents beside it; remove those that ended long ago."""
        now = time.monotonic()
        known = {name: sign for name, sign in self._seen.items() if name[:1] == writer[:1]}
        self._seen = {name: sign for name, sign in self._seen.items() if name not in known}
        for kind, version in self._backend.versions(_place(writer)).items():
            name = kind.removeprefix(".")
            before = known.get(name)
            is_same = before is not None and before[0] == version
            self._seen[name] = before if before is not None and is_same else (version, now)
            if now - self._seen[name][1] > _FORGET_AFTER * self.lease:
                self._change(name, "")

    def _change(self, writer: str, text: str) -> None:
        self._backend.change_hidden(_place(writer), f".{writer}", lambda _text, _epoch: text)
