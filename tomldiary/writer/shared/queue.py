"""The queue of a writer on a shared database: stores turns, claims users, and passes their turns to the workers.

A separate thread stores turns, and periodically searches for users without an owner. The changes of the documents are
in `claims`.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from tomldiary.errors import (
    BackendError,
    Conflict,
    Forgotten,
    LockTimeout,
    OperationConflict,
    TurnTaken,
)
from tomldiary.logging import get_logger, tell
from tomldiary.runtime.sources import QUEUE
from tomldiary.runtime.unstored_turns import awaited_by_erasures
from tomldiary.storage.shared.database import unreachable
from tomldiary.writer.attempts import lost_database
from tomldiary.writer.journal_queue import StoringQueue, wake
from tomldiary.writer.receipts import Job
from tomldiary.writer.shared.claims import Claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tomldiary.storage.protocol import Durability
    from tomldiary.storage.shared.backend import SharedBackend
    from tomldiary.writer.queue import Admission
    from tomldiary.writer.shared.turns import Turns

_logger = get_logger(__name__)
_POLL = 1.0  # the time in seconds between two searches for users without an owner


class SharedQueue(StoringQueue):
    """The turns of one writer in the database of its diary. The workers use it like a `Journal`.

    Args:
        backend: The database.
        admission: Gets the stored turns of claimed users, and the turns that could not be stored.
        resolve: Called with turns that another writer has finished, without the lock.
        lease: The time in seconds without a heartbeat after which another writer is considered dead.
        works: Whether this writer claims users; if not, it only stores turns for other writers.
    """

    def __init__(
        self,
        backend: SharedBackend,
        admission: Admission,
        resolve: Callable[[Job], None],
        *,
        lease: float,
        works: bool,
    ) -> None:
        super().__init__("tomldiary-queue", str(backend.database), admission, poll=_POLL)
        claims = self.claims = Claims(backend, lease, works=works)
        self.holds, self.append_operations = claims.holds, claims.append_operations
        self.durability: Durability = "process"  # the thread asks the database
        self._backend = backend
        self._resolve = resolve
        self._works = works
        self._held: dict[str, set[str]] = {}
        """The operation ids of the turns that the workers have, by claimed user."""
        self._remote: dict[str, set[Job]] = {}
        """Turns that were submitted or lost here and that another writer applies, by user; two may have one operation id."""
        self._ended: dict[str, set[str]] = {}
        """The operation ids of the turns that ended while turns of the same user are being stored, by this user."""
        self._cancelled: set[tuple[str, str]] = set()
        """The users and operation ids of cancelled turns that could not be removed, or may be stored."""
        self._unreadable: set[str] = set()
        """The users whose turns could not be read or claimed at the last attempt, which was logged."""
        awaited_by_erasures(self)

    def __len__(self) -> int:
        """The number of turns that are not stored yet, or that another writer applies."""
        return super().__len__() + sum(map(len, self._remote.values()))

    def unstored(self) -> int:
        """Return the number of turns that a killed process would lose."""
        others = chain.from_iterable(self._remote.values())
        return super().__len__() + sum(not job.receipt.is_stored for job in others)

    def oldest(self) -> float | None:
        """Return when the oldest of these turns was submitted (monotonic clock), or None."""
        others = (job.queued_at for jobs in self._remote.values() for job in jobs)
        return min(filter(None, (super().oldest(), *others)), default=None)

    # The caller holds the lock

    def lost(self, jobs: list[Job]) -> None:
        """Watch turns that another writer has taken over, until they are finished."""
        for job in jobs:
            job.is_new, job.group = False, []  # the other writer may apply it, and alone
            self._held.pop(job.turn.user_id, None)
            self._remote.setdefault(job.turn.user_id, set()).add(job)

    def resolved(self, job: Job) -> None:
        """Stop watching a turn that another writer has finished."""
        self._remote[job.turn.user_id].remove(job)

    def drain(self) -> list[Job]:
        """Remove and return the turns that were submitted here and that another writer will apply."""
        left = [*chain.from_iterable(self._remote.values())]
        self._remote.clear()
        return left

    # In the thread

    def _work(self) -> None:
        by_user: dict[str, list[Job]] = {}
        for job in self._batch:
            by_user.setdefault(job.turn.user_id, []).append(job)
        for user, mine in by_user.items():
            try:
                self.store(user, mine)
            except Exception as error:  # noqa: BLE001 - each receipt gets it
                if left := [job for job in mine if job in self._batch]:
                    self.fail(left, error)
                lost = lost_database(error)
                if lost is not None:
                    # Each other user would wait for the database as long as this one.
                    if self._batch:
                        others = unreachable(self._backend.database, lost)
                        others.__cause__ = lost  # callers distinguish this failure by its cause
                        self.fail(self._batch, others)
                    return
        if self._held:
            self.claims.heartbeats.beat()
        if self._is_search_due():
            self.claim_users()
            self.durability = self._backend.durability

    def stores_in(self, backend: object) -> bool:
        """Return whether a backend may have the turns of this queue: two addresses may name one database."""
        mine = self._backend
        return isinstance(backend, type(mine)) or isinstance(mine, type(backend))

    def _unstored(self, user: str) -> set[Job]:
        remote = self._remote.get(user, ())
        return super()._unstored(user).union(job for job in remote if not job.receipt.is_stored)

    def store(self, user: str, jobs: list[Job]) -> None:
        """Store turns of one user and claim the user if possible; then deliver the claimed turns."""
        with self._state:
            self._leave_batch(jobs)
            self._admission.deliver([job for job in jobs if not job.wanted])  # withdraws them
            jobs = [job for job in jobs if job.wanted]
            if not jobs:
                return
            self._ended = {user: set()}
            for job in jobs:
                # Before the turns are stored, because a worker that finishes a turn of this user may find the new
                # turns at once.
                job.journal = self
                # Another writer may store the same turn and have its receipt, so no cancellation removes the turn.
                job.wanted += bool(job.turn.operation_id)
            self._remote.setdefault(user, set()).update(jobs)
        try:
            claim = self.claims.store(user, jobs)
        except BaseException:
            with self._state:
                self._ended = {}
                watched = self._remote.get(user, set[Job]())
                left = [job for job in jobs if job in watched]
                watched.difference_update(left)
                self._batch += left
                for job in left:
                    if self._works and not job.wanted:  # it may be stored, if the answer was lost
                        self._cancelled.add((user, job.operation))
            wake([job for job in jobs if job not in left], None)  # the workers got them meanwhile
            raise
        conflicts = [job for job in jobs if job.is_conflict]
        erased = [job for job in jobs if job.epoch is None and not job.is_conflict]
        stored = [job for job in jobs if job.epoch is not None]
        with self._state:
            for job in jobs:
                job.rendered = ""
                if job.epoch is None:  # it is refused
                    self._remote.get(user, set[Job]()).discard(job)
                else:
                    job.receipt.settle_stored(True)  # noqa: FBT003 - the result itself
                    # Another writer with the claim may apply it and die before it removes it.
                    job.is_new = job.is_new and claim is not None
            if erased:
                self.fail(erased, Forgotten.meanwhile())
            for job in conflicts:
                self.fail([job], OperationConflict.of(job.operation))
            if claim is not None and stored:
                self._take(user, claim)  # with the turns that other processes stored before
            self._ended = {}
        wake(stored, None)

    def _take(self, user: str, turns: Turns) -> None:
        """Deliver the turns of a claimed user that the workers do not have; the caller holds the lock."""
        watched = self._remote.get(user, set[Job]())
        held = self._held.setdefault(user, set())
        jobs: list[Job] = []
        ids = [*turns.numbers()]
        # Only turns after those that the workers have: if an earlier one waits again, `check` refuses theirs.
        after = max((place for place, each in enumerate(ids, 1) if each in held), default=0)
        # `turns` may have been read before some of them ended.
        wanted = set(ids[after:]) - self._ended.get(user, set())
        mine = {job.operation: job for job in watched} if wanted else {}
        for job in turns.jobs(wanted) if wanted else ():
            held.update(each.operation for each in (job, *job.group))
            known = mine.get(job.operation)
            if known is not None and known.turn.content != job.turn.content:
                del mine[job.operation]  # another turn has the id now
            elif known is not None and not job.group:
                watched.remove(known)
                known.epoch, known.operations = job.epoch, job.operations
                jobs.append(known)
                continue
            if (user, job.operation) in self._cancelled:
                job.wanted = 0  # so that it is removed instead
            for each in (job, *job.group):
                each.journal = self
                if each.operation in mine:
                    before = mine[each.operation]
                    watched.remove(before)
                    each.receipt, each.is_counted = before.receipt, before.is_counted
            jobs.append(job)
        if not watched:
            self._remote.pop(user, None)
        self._admission.deliver(jobs)

    def claim_users(self) -> None:
        """Claim users without a living owner, and resolve the receipts of turns that other writers finished."""
        if not self._works and not self._remote:
            return
        queued = self._backend.holders(QUEUE)
        waiting = {user for user in queued if not self._held.get(user)}
        with self._state:
            mine = [*self._remote]
            self._cancelled = {each for each in self._cancelled if each[0] in queued}
        for user in {*self.claims.without_owner(waiting), *waiting.intersection(mine)}:
            try:
                turns, may_claim = self.claims.read(user)
                claim = self.claims.store(user) if may_claim else None
            except BackendError as error:
                if lost_database(error) is not None:
                    raise
                # The state of this user may be damaged, so the other users are served.
                if user not in self._unreadable:
                    self._unreadable.add(user)
                    tell(_logger, f"the turns of a user cannot be read or claimed. {error}")
                continue
            self._unreadable.discard(user)
            if claim is not None and claim.numbers():
                with self._state:
                    self._take(user, claim)
            else:
                self._resolve_finished(user, turns.numbers())
        for user in set(mine).difference(queued):
            self._resolve_finished(user, ())

    def _resolve_finished(self, user: str, waiting: Iterable[str]) -> None:
        with self._state:
            jobs, still = self._remote.get(user, set[Job]()), {*waiting}
            done = [job for job in jobs if job.operation not in still]
            if not jobs:
                self._remote.pop(user, None)
        for job in done:
            try:
                self._resolve(job)
            except (BackendError, LockTimeout) as error:  # the next search tries again
                _logger.debug("%s: the result of a turn cannot be read (%s)", self.root, error)

    # Called by the workers, like the methods of `claims`

    def check(self, job: Job) -> None:
        """Raise `TurnTaken` unless this writer still has the turn, and each earlier one that waits.

        An earlier turn waits again if the server lost its last steps, or if the turn could not be removed. The search then
        claims all in their order.
        """
        if not self.claims.check(job) <= self._held.get(job.turn.user_id, set()):
            raise TurnTaken("an earlier turn of the user waits again.")

    def finish(self, jobs: Sequence[Job]) -> None:
        """Remove turns that were applied, parked or cancelled; leave those that another writer took over."""
        user = jobs[0].turn.user_id
        ids = [job.operation for job in jobs]
        cancelled: set[tuple[str, str]] = set()
        try:
            first = jobs[0]
            left = self.claims.remove(user, ids, first.transaction, is_parked=first.is_parked)
        except (BackendError, Conflict, LockTimeout) as error:
            # Another attempt at an applied turn has no effect, because history has its operation id.
            cancelled = {(user, job.operation) for job in jobs if not job.wanted}
            _logger.warning("%s: a finished turn stays in the queue (%s)", self.root, error)
            left = None
        with self._state:
            self._cancelled.difference_update((user, each) for each in ids)
            self._cancelled |= cancelled
            self._held.get(user, set[str]()).difference_update(ids)
            self._ended.get(user, set[str]()).update(ids)
            if left is not None and not self._is_stopped:
                self._take(user, left)  # another writer may have stored turns of this user
                if not self._held[user]:
                    del self._held[user]

    # Ending

    def close(self) -> None:
        """Release all claims; if the database fails, the other claims end with the lease."""
        with suppress(BackendError):
            for user in sorted(self._held):
                with suppress(Conflict, LockTimeout):
                    self.claims.release(user)
        self._held.clear()
        self.claims.heartbeats.unregister()

    def drop(self) -> None:
        """Drop all claims in a forked child: they belong to the parent."""
        self._held.clear()
        self._remote.clear()
