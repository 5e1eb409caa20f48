"""The claims of one writer on users with waiting turns: each method is one atomic step of the database.

A writer claims a user by writing its id into the document of the user's waiting turns. It does so when it stores a turn
and the user has no owner, or a dead one.

A writer with claims sends heartbeats: it changes its own hidden document several times per lease. Another writer
considers it dead if this document is missing, or did not change for the time of the lease by the observer's clock. The
documents belong to sixteen internal users, `.writers-0` to `.writers-f`, by the first digit of the writer's id. This
limits the number of writers that change one user, and the number of documents that a writer reads.

A claim changes the user's revision. A writer that was considered dead checks its claim in the transaction that applies
a turn. Therefore it cannot apply a turn that another writer has taken over.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, Conflict, Forgotten, TurnTaken
from tomldiary.history.record import next_sequence
from tomldiary.logging import get_logger
from tomldiary.runtime.sources import DEAD_LETTERS, QUEUE
from tomldiary.toml.values import render_value
from tomldiary.writer.receipts import Job, is_refused
from tomldiary.writer.shared.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tomldiary.extraction.operations import Operation
    from tomldiary.storage.shared.backend import SharedBackend

_logger = get_logger(__name__)
_BEATS = 5  # heartbeats per lease
_FORGET_AFTER = 20  # leases without a heartbeat until a writer's document is removed
_HEARTBEAT = re.compile(r"\.[0-9a-f]{16}")


class Claims:
    """Reads and changes the documents of waiting turns for one writer.

    Args:
        backend: The database.
        lease: The time in seconds without a heartbeat after which another writer is considered dead.
        works: Whether this writer claims users; if not, it only stores turns for other writers.
    """

    def __init__(self, backend: SharedBackend, lease: float, *, works: bool) -> None:
        self.heartbeats = Heartbeats(backend, lease)
        self.writer = self.heartbeats.id
        self._backend = backend
        self._works = works
        self._owners: dict[str, tuple[str, float]] = {}
        """The owner of each user that another writer serves, and when it was read (monotonic clock)."""

    def store(self, user: str, jobs: Sequence[Job] = ()) -> Turns | None:
        """Store turns and claim the user in one step; return None if another writer has the claim.

        A turn that an erasure refuses is left out; its `epoch` stays None. So is a turn with `is_conflict`.
        """
        if self._works:
            self.heartbeats.beat()  # first, because a claim without heartbeats would be taken over

        def change(turns: Turns, epoch: int) -> bool:
            is_mine = self._may_claim(turns.owner)
            if is_mine:
                turns.owner = self.writer
            for job in jobs:
                job.is_conflict = turns.has_other(job)
                is_left_out = job.is_conflict or is_refused(self._backend, job, epoch)
                job.epoch = None if is_left_out else epoch
            turns.add([job for job in jobs if job.epoch is not None], epoch)
            return is_mine

        claim = self._change(user, change)
        if claim is not None:
            # Drop the cached owner, so that later turns of this user without an owner are found at once.
            self._owners.pop(user, None)
        return claim

    def read(self, user: str) -> tuple[Turns, bool]:
        """Return the waiting turns of a user, and whether this writer may claim them."""
        turns = self._turns(self._backend.hidden_parts(user, QUEUE))
        if self._works:
            self._owners[user] = turns.owner, time.monotonic()
        return turns, self._may_claim(turns.owner)

    def without_owner(self, users: Iterable[str]) -> list[str]:
        """Return those of the given users whose owner is missing, unknown or dead.

        A user's owner is read once per lease. Whether the owners are alive is checked several times per lease.
        """
        if not self._works:
            return []
        self._owners = {user: self._owners[user] for user in users if user in self._owners}
        self.heartbeats.observe({owner for owner, _ in self._owners.values()})
        return [user for user in users if not self._is_served(user)]

    def _is_served(self, user: str) -> bool:
        owner, since = self._owners.get(user, ("", 0.0))
        is_recent = time.monotonic() - since < self.heartbeats.lease
        return owner not in {"", self.writer} and is_recent and not self.heartbeats.is_dead(owner)

    def check(self, job: Job) -> set[str]:
        """Raise `TurnTaken` unless this writer still has the claim on the turn's user.

        Inside a transaction, the commit fails if the claim changes after this check.

        Returns:
            The operation ids of the turns that were stored before this one and still wait.
        """
        turns = self._claimed(job)
        if turns is None:
            raise TurnTaken("another writer has taken this turn over.")
        ids = [*turns.numbers()]
        return {*ids[: ids.index(job.operation)]}

    def holds(self, job: Job) -> bool:
        """Return whether the turn still waits and this writer has its claim; an erasure removes the turn."""
        return self._claimed(job) is not None

    def _claimed(self, job: Job) -> Turns | None:
        turns = self._turns(self._backend.hidden_parts(job.turn.user_id, QUEUE))
        return turns if turns.owner == self.writer and turns.has(job.operation) else None

    def append_operations(
        self,
        jobs: Sequence[Job],
        operations: Iterable[Operation],
        epoch_of: Callable[[str], int],  # noqa: ARG002 - the step has the token
    ) -> None:
        """Store the model's result for a turn, so that another writer does not call the model again.

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

    def remove(
        self, user: str, ids: Sequence[str], transaction: int = 0, *, is_parked: bool = False
    ) -> Turns | None:
        """Remove turns; return the remaining turns, or None if another writer has taken the user over.

        Raises:
            BackendError: The turns wait, but the database lost the transaction that applied them, or their dead letters.
        """

        def change(turns: Turns) -> None:
            letters = self._backend.hidden(user, DEAD_LETTERS) if is_parked else ""
            is_lost = next_sequence(self._backend.last_record(user)) <= transaction or (
                is_parked and any(render_value(each) not in letters for each in ids)
            )
            if is_lost and any(map(turns.has, ids)):
                raise BackendError(
                    "the database lost the transaction or the dead letter of the turn."
                )
            turns.remove(ids)

        return self._change_claimed(user, change)

    def release(self, user: str) -> None:
        """Release the claim on a user."""

        def change(turns: Turns) -> None:
            turns.owner = ""

        self._change_claimed(user, change)

    def _change_claimed(self, user: str, change: Callable[[Turns], None]) -> Turns | None:
        """Change the turns of a user; do nothing and return None if this writer does not have the claim."""

        def change_mine(turns: Turns, _epoch: int) -> bool | None:
            if turns.owner != self.writer:
                return None
            change(turns)
            return True

        return self._change(user, change_mine)

    def _change(self, user: str, change: Callable[[Turns, int], bool | None]) -> Turns | None:
        """Change the waiting turns of a user in one step; return them, or None if another writer has the claim.

        `change` returns whether this writer has the claim, or None to leave the document unchanged. It is called again
        if another process changed the document meanwhile.
        """
        claims: list[Turns | None] = []

        def changed(parts: Mapping[str, str], epoch: int) -> Mapping[str, str]:
            turns = self._turns(parts)
            is_mine = change(turns, epoch)
            claims.append(turns if is_mine else None)
            return parts if is_mine is None else turns.render()

        self._backend.change_parts(user, QUEUE, changed)
        return claims[-1]

    def _turns(self, parts: Mapping[str, str]) -> Turns:
        return Turns.parse(parts, self._backend.queue_part)

    def _may_claim(self, owner: str) -> bool:
        return self._works and (owner in {"", self.writer} or self.heartbeats.is_dead(owner))


# Heartbeats


def _place(writer: str) -> str:
    """Return the internal user that has the heartbeat document of a writer."""
    return f".writers-{writer[:1]}"


class Heartbeats:
    """Sends the heartbeats of this writer, and detects dead writers.

    Args:
        backend: The database.
        lease: The time in seconds without a heartbeat after which a writer is considered dead.
    """

    def __init__(self, backend: SharedBackend, lease: float) -> None:
        self.id = secrets.token_hex(8)
        """The id of this writer."""
        self.lease = lease
        self._backend = backend
        self._interval = lease / _BEATS
        self._seen: dict[str, tuple[object, float]] = {}
        """The version of each other writer's document, and when it was first seen (monotonic clock)."""
        self._sent_at = self._observed = -lease
        self._beats = 0

    def beat(self) -> None:
        """Send a heartbeat, unless the last one is recent."""
        if time.monotonic() - self._sent_at < self._interval:
            return
        self._beats += 1
        self._change(self.id, f"{self._beats}")
        self._sent_at = time.monotonic()

    def observe(self, writers: Iterable[str]) -> None:
        """Read the heartbeats of writers, unless the last reading is recent."""
        now = time.monotonic()
        if now - self._observed < self._interval:
            return
        self._observed = now
        for each in {writer[:1]: writer for writer in writers if writer}.values():
            self._read_heartbeats(each)

    def is_dead(self, writer: str) -> bool:
        """Return whether a writer sent no heartbeat during the lease; True only after a read of the database."""
        if self._seems_dead(writer):
            self._read_heartbeats(writer)
        return self._seems_dead(writer)

    def unregister(self) -> None:
        """Remove the heartbeat document of this writer, which has no claims any more."""
        if self._beats:
            try:
                self._change(self.id, "")
            except (BackendError, Conflict) as error:
                _logger.warning("the heartbeat of writer %s cannot be removed (%s)", self.id, error)

    def _seems_dead(self, writer: str) -> bool:
        seen = self._seen.get(writer)
        return seen is None or time.monotonic() - seen[1] > self.lease

    def _read_heartbeats(self, writer: str) -> None:
        """Read the heartbeats of all writers with the same internal user; remove those of writers dead for long."""
        now = time.monotonic()
        known = {name: seen for name, seen in self._seen.items() if name[:1] == writer[:1]}
        self._seen = {name: seen for name, seen in self._seen.items() if name not in known}
        for kind, version in self._backend.versions(_place(writer)).items():
            if not _HEARTBEAT.fullmatch(kind):
                continue  # of a real user with the id of the internal one
            name = kind.removeprefix(".")
            before = known.get(name, (version, now))
            self._seen[name] = before if before[0] == version else (version, now)
            if now - self._seen[name][1] > _FORGET_AFTER * self.lease:
                self._change(name, "")

    def _change(self, writer: str, text: str) -> None:
        self._backend.change_hidden(_place(writer), f".{writer}", lambda _text, _epoch: text)
