"""Between `submit` and the queue: turns are written to the journal, many with one sync.

Whoever comes while a sync is under way is written and synced together with all others who came, in the
order they came. Turns go on to the workers once they are stored, so a turn that could not be stored is
never applied.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tomldiary.logging import get_logger
from tomldiary.models import timestamp
from tomldiary.writing.entries import render_turn
from tomldiary.writing.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from threading import Condition

    from tomldiary.backends.base import Backend
    from tomldiary.writing.job import Job

__all__ = ["Intake", "close_journals"]

_QUICK = (
    0.002  # seconds; a disk whose last syncs took no longer may be waited for on an idle event loop
)
_REMEMBERED = 16  # syncs
_BUSY = 64  # turns; for so many, a loop that had other tasks is taken to have some still
_GRACE = 1.0  # seconds that whoever stores a turn himself has to end, when the writer is closed
_ALONE = 4  # turns; for so many, a task that was alone is taken to be alone still

_logger = get_logger(__name__)


class Intake:
    """Stores turns in a journal of its own, and adopts those of dead writers.

    Args:
        root: The folder of the journals.
        backend: Tells epochs and durability.
        state: The writer's lock; `deliver` and `refuse` are called with it held.
        deliver: Takes turns that are stored.
        refuse: Takes turns that could not be stored, with the reason.
    """

    def __init__(
        self,
        root: Path,
        backend: Backend,
        state: Condition,
        deliver: Callable[[list[Job]], None],
        refuse: Callable[[list[Job], BaseException], None],
    ) -> None:
        self.root = root
        self.journals: list[Journal] = []
        """The journals that are ours; turns are appended to `_journal` alone."""
        self.recovered = 0
        """Turns taken over from dead writers."""
        self._backend = backend
        self.durability = backend.durability
        self._sync = backend.durability == "full"
        self._state = state
        self._deliver = deliver
        self._refuse = refuse
        self._journal: Journal | None = None
        self._pending: list[Job] = []
        self._batch: list[Job] = []
        self._is_storing = False
        self._has_adopted = False
        self._flusher = ThreadPoolExecutor(1, "tomldiary-journal")
        self._took: deque[float] = deque(maxlen=_REMEMBERED)
        self._busy = 0
        self._alone: tuple[int, int] = 0, 0  # the loop, and turns to go

    def __len__(self) -> int:
        """How many turns are not stored yet."""
        return len(self._pending) + len(self._batch)

    def oldest(self) -> float | None:
        """Return when the turn came that waits longest to be stored (monotonic clock), or None."""
        return min(
            (jobs[0].queued_at for jobs in (self._batch, self._pending) if jobs), default=None
        )

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being stored or taken over."""
        return not self._is_storing

    # Taking turns in

    @staticmethod
    def prepare(job: Job) -> None:
        """Render a turn.

        Raises:
            InvalidValue: A text that no file can store.
        """
        job.time = timestamp()
        job.rendered = render_turn(job.turn, job.operation, job.time)

    def put(self, job: Job) -> None:
        """Have a turn stored soon; the caller holds the state."""
        self._pending.append(job)
        if not self._is_storing:
            self._is_storing = True
            self._flusher.submit(self._flush)

    def begin_here(self, job: Job, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether a turn may be stored in this thread, on this event loop; `store_here` has to follow.

        It may if that holds nobody up: the calling task is the only one of its loop, and the disk has been
        quick. Waking another thread and being woken by it would take as long again as the sync.
        The caller holds the state.
        """
        if self._is_storing or self._pending or self._journal is None or not self._took:
            return False
        if self._sync and (max(self._took) > _QUICK or not self._is_alone(loop)):
            return False
        self._is_storing, self._batch = True, [job]
        return True

    def _is_alone(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether the calling task is the only one of its loop, as far as was seen just now.

        A look goes through all tasks of the process, and a server has thousands: not for every turn.
        """
        if self._busy:
            self._busy -= 1
            return False
        seen, left = self._alone
        if left and seen == id(loop):
            self._alone = seen, left - 1
            return True
        is_alone = len(asyncio.all_tasks(loop)) == 1
        self._busy = 0 if is_alone else _BUSY
        self._alone = id(loop), _ALONE if is_alone else 0
        return is_alone

    def store_here(self, job: Job) -> None:
        """Store one turn in this thread; in the journal's, if somebody forgets something in it just now."""
        goes_on = True
        try:
            goes_on = self._store([job], wait=False)
        finally:
            if goes_on:
                with self._state:
                    if self._batch:
                        self._pending.insert(0, job)
                        self._batch = []
                self._flusher.submit(self._flush)

    def take_back(self, job: Job) -> bool:
        """Forget a turn that is not being stored yet; the caller holds the state."""
        if job not in self._pending:
            return False
        self._pending.remove(job)
        return True

    def adopt_soon(self) -> None:
        """Look for journals of dead writers; the caller holds the state."""
        self._has_adopted = False
        if not self._is_storing:
            self._is_storing = True
            self._flusher.submit(self._flush)

    # In the journal's own thread

    def _flush(self) -> None:
        goes_on = True
        while goes_on:
            if not self._has_adopted:
                # First: what was submitted before a crash comes before what is submitted now.
                self._has_adopted = True
                self._adopt()
            with self._state:
                batch, self._pending = self._pending, []
                self._batch = batch
                if not batch:
                    goes_on = self._ends_batch()
            if batch:
                goes_on = self._store(batch)

    def _store(self, jobs: list[Job], *, wait: bool = True) -> bool:
        """Store turns, and tell whether there is more to be done; without `wait` these may be.

        Those that cannot be stored are refused, and a later sync never counts for them.
        """
        try:
            if self._journal is None:
                self._journal = Journal.create(self.root, sync=self._sync)
                self.journals.append(self._journal)
            begin = time.perf_counter()
            if not self._journal.append_turns(jobs, self._backend.epoch, wait=wait):
                return True
            try:
                self._journal.sync()
            except BaseException:
                self._journal.finish(jobs, now=True)
                raise
        except Exception as error:  # noqa: BLE001 - it is told to each of them
            _logger.error("%d turns could not be stored: %s", len(jobs), error)  # noqa: TRY400 - the same
            with self._state:
                self._batch = []
                journal = self._journal
                if journal is not None and journal.problem is not None:
                    self._journal = None  # the next turn begins another one
                    self.let_go(journal)
                self._refuse(jobs, error)
                return self._ends_batch()
        self._took.append(time.perf_counter() - begin)
        for job in jobs:
            job.rendered = ""
        with self._state:
            self._batch = []
            self._deliver(jobs)
            return self._ends_batch()

    def _ends_batch(self) -> bool:
        """Tell whether somebody came meanwhile; the caller holds the state, and goes on if so.

        Who waited for this batch is woken by now: a caller that is alone finds nobody storing.
        """
        self._is_storing = bool(self._pending) or not self._has_adopted
        if not self._is_storing:
            self._state.notify_all()
        return self._is_storing

    def _adopt(self) -> None:
        try:
            folders = sorted(
                path for path in self.root.iterdir()
                if path.is_dir() and not path.name.startswith(".")
            )  # fmt: skip
        except OSError:
            return
        mine = {journal.folder for journal in self.journals}
        for folder in folders:
            if folder in mine:
                continue
            try:
                found = Journal.adopt(folder, sync=self._sync)
            except Exception as error:  # noqa: BLE001 - it may say anything, and turns wait behind it
                _logger.error("%s: cannot be taken over (%r)", folder, error)  # noqa: TRY400 - one line is enough
                continue
            if found is None or not found[1]:
                continue
            journal, jobs = found
            count = sum(1 + len(job.group) for job in jobs)
            _logger.info("%s: %d turns are taken over", folder, count)
            with self._state:
                self.journals.append(journal)
                self.recovered += count
                self._deliver(jobs)

    # Ending

    def let_go(self, journal: Journal) -> None:
        """Close the journal of a dead writer once all its turns are done."""
        if journal is not self._journal and journal in self.journals and not journal.pending:
            self.journals.remove(journal)
            journal.close()

    def stop(self) -> None:
        """Store what is pending, and nothing more after that."""
        with self._state:  # also what is just being stored in a thread of somebody else's
            self._state.wait_for(lambda: not self._is_storing, _GRACE)
        self._flusher.shutdown(wait=True)

    def close(self) -> int:
        """Let go of all journals, and return how many turns they keep."""
        return close_journals(self.journals)

    def drop(self) -> None:
        """In a forked child: the journals are the parent's."""
        for journal in self.journals:
            journal.drop()
        self.journals.clear()


def close_journals(journals: list[Journal]) -> int:
    """Let go of journals, and return how many turns they keep."""
    left = sum(journal.close() for journal in journals)
    journals.clear()
    return left
