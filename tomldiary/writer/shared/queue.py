"""The queue of a writer on a shared database: stores turns, claims users, and hands their turns to the workers.

A writer claims a user by writing its id into the user's document of waiting turns. It does so when it stores a turn of
a user without an owner, or of an owner that is dead. A writer with claims changes its own document every few seconds.
A writer is dead if its document is gone, or did not change for the time of the lease, measured by the observer's clock.

A claim changes the user's revision. A writer that was taken for dead checks its claim in the transaction that applies
a turn, so it cannot apply one that another writer has taken over.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, Conflict, Forgotten, TurnTaken
from tomldiary.logging import get_logger
from tomldiary.storage.shared.database import QUEUE
from tomldiary.writer.journal_queue import wake
from tomldiary.writer.journal_record import render_turn
from tomldiary.writer.shared.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from threading import Condition

    from tomldiary.extraction.operations import Operation
    from tomldiary.storage.shared.backend import SharedBackend
    from tomldiary.writer.receipts import Job

__all__ = ["SharedQueue"]

_logger = get_logger(__name__)
_FORGET_AFTER = 20  # leases without a sign of life until a writer's document is removed
_WRITERS = ".writers"
"""No user has this id. Its hidden documents show which writers are alive."""


class SharedQueue:
    """The turns of one writer in the database of its diary. It has the methods of `JournalQueue` and of `Journal`.

    Args:
        backend: The database.
        state: The writer's lock.
        deliver: Called with stored turns of claimed users and the lock held.
        refuse: Called with turns that could not be stored, the reason, and the lock held.
        resolve: Called with turns that another writer has finished, without the lock.
        poll: Seconds between two searches for users without an owner.
        lease: Seconds without a sign of life after which another writer is dead.
        works: Whether this writer claims users; without it, it only stores turns for others.
    """

    def __init__(
        self,
        backend: SharedBackend,
        state: Condition,
        deliver: Callable[[list[Job]], None],
        refuse: Callable[[list[Job], BaseException], None],
        resolve: Callable[[Job], None],
        *,
        poll: float = 1.0,
        lease: float = 15.0,
        works: bool = True,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.root = str(backend.database)
        self._backend = backend
        self._state = state
        self._deliver = deliver
        self._refuse = refuse
        self._resolve = resolve
        self._works = works
        self._poll, self._lease, self._forget = poll, lease, _FORGET_AFTER * lease
        self._pending: list[Job] = []
        self._batch: list[Job] = []
        self._withdrawn: list[Job] = []
        self._held: dict[str, set[str]] = {}
        """The users whose turns this writer works on, with the operation ids that the workers have."""
        self._remote: dict[str, dict[str, Job]] = {}
        """Turns that were submitted here and that another writer works on, by user and operation id."""
        self._seen: dict[str, tuple[object, float]] = {}
        """The version of each other writer's document, and when it was first seen."""
        self._beaten = -lease
        self._looked = -poll
        self._beats = 0
        self._is_stopping = False
        self._is_looking = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tomldiary-queue", daemon=True)

    @property
    def durability(self) -> str:
        """What a stored turn survives."""
        return self._backend.durability

    def __len__(self) -> int:
        """The number of turns that are not stored yet, or that another writer works on."""
        return len(self._pending) + len(self._batch) + sum(map(len, self._remote.values()))

    def oldest(self) -> float | None:
        """Return when the oldest of these turns was submitted (monotonic clock), or None."""
        others = (job for jobs in self._remote.values() for job in jobs.values())
        return min((job.queued_at for job in (*self._pending, *self._batch, *others)), default=None)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being stored or claimed."""
        return not (self._batch or self._withdrawn or self._is_looking)

    # Queueing; the caller holds the writer's lock

    @staticmethod
    def prepare(job: Job) -> None:
        """Render a turn's record.

        Raises:
            InvalidValue: A text cannot be stored.
        """
        job.rendered = render_turn(job.turn, job.operation, job.time)

    def put(self, job: Job) -> None:
        """Queue a turn for storing."""
        self._pending.append(job)
        self._start()

    def remove(self, job: Job) -> bool:
        """Remove a turn that is not being stored yet."""
        if job not in self._pending:
            return False
        self._pending.remove(job)
        return True

    def withdraw(self, job: Job) -> None:
        """Schedule the removal of a cancelled turn."""
        if job.journal is self:
            self._withdrawn.append(job)
            self._start()

    def adopt_soon(self) -> None:
        """Schedule a search for users without an owner."""
        self._looked = -self._poll
        self._is_looking = not self._is_stopping
        self._start()

    def lost(self, jobs: list[Job]) -> None:
        """Watch turns that another writer has taken over, until they are finished."""
        for job in jobs:
            self._held.pop(job.turn.user_id, None)
            self._remote.setdefault(job.turn.user_id, {})[job.operation] = job

    def drain(self) -> list[Job]:
        """Remove and return the turns that were submitted here and that another writer will finish."""
        left = [job for jobs in self._remote.values() for job in jobs.values()]
        self._remote.clear()
        return left

    def _start(self) -> None:
        if not self._thread.ident:
            self._thread.start()
        self._woken.set()

    # In the thread of the queue

    def _run(self) -> None:
        while not self._is_stopping or self._pending or self._withdrawn:
            self._woken.wait(self._poll)
            self._woken.clear()
            with self._state:
                self._batch, self._pending = self._pending, []
                withdrawn, self._withdrawn = self._withdrawn, []
            try:
                self._work(withdrawn)
            except Exception as error:  # noqa: BLE001 - the next round tries again
                _logger.warning("%s: turns cannot be claimed now (%s)", self.root, error)
            with self._state:
                self._is_looking = False
                self._state.notify_all()

    def _work(self, withdrawn: list[Job]) -> None:
        if self._batch:
            self._store_all(self._batch)
        for job in withdrawn:
            self.finish([job])
        now = time.monotonic()
        if self._held:
            self._beat()
        if now - self._looked >= self._poll and not self._is_stopping:
            self._looked = now
            self._look()

    def _store_all(self, jobs: list[Job]) -> None:
        by_user: dict[str, list[Job]] = {}
        for job in jobs:
            by_user.setdefault(job.turn.user_id, []).append(job)
        for user, mine in by_user.items():
            try:
                self._store(user, mine)
                error = None
            except Exception as caught:  # noqa: BLE001 - each receipt gets it
                error = caught
                _logger.error("%d turns could not be stored: %s", len(mine), error)  # noqa: TRY400 - each receipt has the traceback
            with self._state:
                self._batch = [job for job in self._batch if job not in mine]
                if error is not None:
                    self._refuse(mine, error)
            wake(mine, error)

    def _store(self, user: str, jobs: list[Job]) -> None:
        """Store turns of one user and claim the user if possible; then deliver what is claimed."""
        with self._state:
            for job in jobs:
                # First: a worker that finishes a turn of this user may find the new ones before this returns.
                job.journal = self
                self._remote.setdefault(user, {})[job.operation] = job
        try:
            claim = self._claimed(user, jobs)
        except BaseException:
            with self._state:
                for job in jobs:
                    self._remote[user].pop(job.operation, None)
            raise
        with self._state:
            for job in jobs:
                job.rendered = ""
                job.receipt.settle_stored(True)  # noqa: FBT003 - the result itself
            if claim is not None:
                # A turn that the workers had may have ended since the step.
                is_held = user in self._held
                self._take(user, claim, {job.operation for job in jobs} if is_held else None)

    def _claimed(self, user: str, jobs: list[Job]) -> Turns | None:
        """Store turns and claim the user in one step; return None if another writer has the claim."""
        if self._works:
            self._beat()  # a claim of a writer that shows no life would be taken over
        found: list[Turns | None] = []

        def change(text: str, epoch: int) -> str:
            turns = Turns.parse(text)
            is_free = self._may_claim(turns.owner)
            if is_free:
                turns.owner = self.id
            for job in jobs:
                job.epoch = epoch
            turns.add(jobs, epoch)
            found.append(turns if is_free else None)
            return turns.render()

        self._backend.change_hidden(user, QUEUE, change)
        return found[-1]

    def _take(self, user: str, turns: Turns, only: set[str] | None = None) -> None:
        """Deliver the turns of a claimed user that the workers do not have; the caller holds the lock.

        `only` are the operation ids of the turns to deliver; None is all.
        """
        mine = self._remote.get(user, {})
        held = self._held.setdefault(user, set())
        jobs: list[Job] = []
        for job in turns.jobs():
            if job.operation in held or (only is not None and job.operation not in only):
                continue
            held.update(each.operation for each in (job, *job.group))
            known = mine.get(job.operation)
            if known is not None and not job.group:
                del mine[job.operation]
                known.epoch, known.operations = job.epoch, job.operations
                jobs.append(known)
                continue
            for each in (job, *job.group):
                each.journal = self
                if each.operation in mine:
                    each.receipt = mine.pop(each.operation).receipt
            jobs.append(job)
        if not mine:
            self._remote.pop(user, None)
        self._deliver(jobs)

    def _beat(self) -> None:
        """Show that this writer is alive, unless it did so a moment ago."""
        if time.monotonic() - self._beaten < self._lease / 5:
            return
        self._beats += 1
        self._backend.change_hidden(_WRITERS, f".{self.id}", lambda _text, _epoch: f"{self._beats}")
        self._beaten = time.monotonic()

    def _look(self) -> None:
        """Claim users without a living owner, and resolve the receipts of turns that other writers finished."""
        if not self._works and not self._remote:
            return
        queued = self._backend.holders(QUEUE)
        waiting = [user for user in queued if not self._held.get(user)]
        with self._state:
            gone = [user for user in self._remote if user not in queued]
        if waiting and self._works:
            self._observe()
        for user in waiting:
            turns = Turns.parse(self._backend.hidden(user, QUEUE)[0])
            if self._may_claim(turns.owner):
                claim = self._claimed(user, [])
                if claim is not None and claim.numbers():
                    with self._state:
                        self._take(user, claim)
            elif user in self._remote:
                self._resolve_finished(user, turns.numbers())
        for user in gone:
            self._resolve_finished(user, ())
        now = time.monotonic()
        for name in [each for each, (_, since) in self._seen.items() if now - since > self._forget]:
            self._backend.change_hidden(_WRITERS, name, lambda _text, _epoch: "")

    def _resolve_finished(self, user: str, waiting: Iterable[str]) -> None:
        with self._state:
            jobs = self._remote.get(user, {})
            done = [jobs.pop(each) for each in set(jobs).difference(waiting)]
            if not jobs:
                self._remote.pop(user, None)
        for job in done:
            self._resolve(job)

    def _observe(self) -> None:
        """Note which writers have shown life since the last time."""
        now = time.monotonic()
        versions = self._backend.versions(_WRITERS)
        known, self._seen = self._seen, {}
        for name, version in versions.items():
            before = known.get(name)
            is_same = before is not None and before[0] == version
            self._seen[name] = before if before is not None and is_same else (version, now)

    def _may_claim(self, owner: str) -> bool:
        return self._works and (owner in {"", self.id} or self._is_dead(owner))

    def _is_dead(self, writer: str) -> bool:
        if self._seems_dead(writer):
            self._observe()  # it may have shown life since the last time
        return self._seems_dead(writer)

    def _seems_dead(self, writer: str) -> bool:
        seen = self._seen.get(f".{writer}")
        return seen is None or time.monotonic() - seen[1] > self._lease

    # What the workers call

    def check(self, job: Job) -> None:
        """Raise `TurnTaken` unless this writer still has the claim; in a transaction the commit fences it."""
        turns = Turns.parse(self._backend.hidden(job.turn.user_id, QUEUE)[0])
        if turns.owner != self.id or job.operation not in turns.numbers():
            raise TurnTaken("another writer has taken this turn over.")

    def append_operations(
        self,
        jobs: Sequence[Job],
        operations: Iterable[Operation],
        epoch_of: Callable[[str], int],  # noqa: ARG002 - the step has the token
        *,
        sync: bool = False,  # noqa: ARG002 - every step has the durability of the database
    ) -> None:
        """Store what the model returned for a turn, so that another writer does not ask it again.

        Raises:
            Forgotten: Something of the user was forgotten since the turn was submitted.
            TurnTaken: Another writer has taken the turn over.
        """
        first = jobs[0]
        stored = list(operations)

        def change(text: str, epoch: int) -> str:
            if epoch != first.epoch:
                raise Forgotten(
                    "something of this user was forgotten while a turn was read. Nothing was written."
                )
            self.check(first)
            turns = Turns.parse(text)
            turns.add_operations([job.operation for job in jobs], stored)
            return turns.render()

        self._backend.change_hidden(first.turn.user_id, QUEUE, change)

    def finish(self, jobs: Sequence[Job], *, now: bool = False) -> None:  # noqa: ARG002 - always at once
        """Remove turns that were applied, parked or cancelled; leave those that another writer took over."""
        user = jobs[0].turn.user_id
        ids = [job.operation for job in jobs]
        left: list[Turns] = []

        def change(text: str, _epoch: int) -> str:
            turns = Turns.parse(text)
            if turns.owner != self.id:
                return text
            turns.remove(ids)
            left[:] = [turns]
            return turns.render()

        try:
            self._backend.change_hidden(user, QUEUE, change)
        except (BackendError, Conflict) as error:
            # History shows that the turn was applied; its next attempt has no effect.
            _logger.warning("%s: a finished turn stays in the queue (%s)", self.root, error)
            left.clear()
        with self._state:
            self._held.get(user, set[str]()).difference_update(ids)
            if left and left[0].numbers():
                self._take(user, left[0])  # another writer may have stored turns of this user
            elif left and not self._held.get(user):  # else a turn was stored meanwhile
                self._held.pop(user, None)

    def holds(self, job: Job) -> bool:
        """Return whether the turn still waits here; an erasure removes it."""
        turns = Turns.parse(self._backend.hidden(job.turn.user_id, QUEUE)[0])
        return turns.owner == self.id and job.operation in turns.numbers()

    # Ending

    def stop(self) -> None:
        """Store the waiting turns, then stop the thread."""
        self._is_stopping = True
        if self._thread.ident:
            self._woken.set()
            self._thread.join()

    def close(self) -> int:
        """Release all claims, and return how many turns are left to other writers."""
        left = 0
        for user in sorted(self._held):
            counts: list[int] = []

            def change(text: str, _epoch: int, counts: list[int] = counts) -> str:
                turns = Turns.parse(text)
                if turns.owner != self.id:
                    return text
                turns.owner = ""
                counts.append(len(turns.numbers()))
                return turns.render()

            try:
                self._backend.change_hidden(user, QUEUE, change)
                left += sum(counts[-1:])
            except (BackendError, Conflict):
                continue  # the lease ends
        self._held.clear()
        if self._beats:
            try:
                self._backend.change_hidden(_WRITERS, f".{self.id}", lambda _text, _epoch: "")
            except (BackendError, Conflict) as error:
                _logger.warning("%s: the writer cannot be signed off (%s)", self.root, error)
        return left

    def drop(self) -> None:
        """Drop all claims in a forked child: they belong to the parent."""
        self._held.clear()
        self._remote.clear()
        self._is_stopping = True
