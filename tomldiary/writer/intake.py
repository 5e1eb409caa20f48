"""Between `submit` and the queue: turns are written to the journal, many with one sync.

Whoever comes while a sync is under way is written and synced together with all others who came, in the
order they came. Turns go on to the workers once they are stored, so a turn that could not be stored is
never applied.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from tomldiary.entries.models import timestamp
from tomldiary.logging import get_logger
from tomldiary.writer.journal import Journal
from tomldiary.writer.journal_record import render_turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from threading import Condition

    from tomldiary.storage.protocol import Backend
    from tomldiary.writer.job import Job

__all__ = ["Intake", "close_journals"]

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
        self._leaving = 0  # journals that are about to be closed

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
        return not self._is_storing and not self._leaving

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

    def _store(self, jobs: list[Job]) -> bool:
        """Store turns, and tell whether there is more to be done.

        Those that cannot be stored are refused, and a later sync never counts for them.
        """
        try:
            if self._journal is None:
                self._journal = Journal.create(self.root, sync=self._sync)
                self.journals.append(self._journal)
            self._journal.append_turns(jobs, self._backend.epoch)
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
        """Close the journal of a dead writer, soon, once all its turns are done; the caller holds the state."""
        if journal is self._journal or journal not in self.journals or journal.pending:
            return
        with suppress(RuntimeError):  # the writer is being closed, and closes all journals
            self._flusher.submit(self._close, journal)
            self.journals.remove(journal)
            self._leaving += 1

    def _close(self, journal: Journal) -> None:
        try:
            journal.close()
        finally:
            with self._state:
                self._leaving -= 1
                self._state.notify_all()

    def withdraw(self, job: Job) -> None:
        """Note, soon, that a stored turn is not wanted any more."""
        if job.journal is not None:
            with suppress(RuntimeError):  # the writer is being closed
                self._flusher.submit(job.journal.finish, [job], now=True)

    def stop(self) -> None:
        """Store what is pending, and nothing more after that."""
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
