"""The queue in front of the journal: turns submitted during a sync share the next one (group commit).

Turns are stored in the order of their submission, and passed to the workers once they are stored. A turn that could
not be stored is never applied.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from tomldiary.engine.engine import is_erased
from tomldiary.errors import Forgotten
from tomldiary.logging import get_logger
from tomldiary.storage.files import FileSystem
from tomldiary.storage.protocol import Backend, LocalFolder
from tomldiary.writer.journal import Journal

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path
    from threading import Condition

    from tomldiary.writer.receipts import Job, Turn

__all__ = ["CallThread", "JournalQueue", "close_journals", "refuse_erased", "wake"]

_logger = get_logger(__name__)


class JournalQueue:
    """Stores turns in the writer's journal, and takes over the journals of dead writers.

    Args:
        root: The folder of the journals.
        backend: Provides fencing tokens and the durability.
        state: The writer's lock.
        deliver: Called with stored turns and the lock held.
        refuse: Called with turns that could not be stored, the reason, and the lock held.
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
        """The journals that this writer owns; new turns are appended only to `_journal`."""
        self._backend = backend
        self.files = backend.files if isinstance(backend, LocalFolder) else FileSystem()
        self.durability = backend.durability
        self._sync = backend.durability == "full"
        self._state = state
        self._deliver = deliver
        self._refuse = refuse
        self._journal: Journal | None = None
        self._pending: list[Job] = []
        self._batch: list[Job] = []
        self._is_storing = False
        self._has_looked = False
        self._thread = CallThread("tomldiary-journal")
        self._closing = 0  # journals about to be closed

    def __len__(self) -> int:
        """The number of turns that are not stored yet."""
        return len(self._pending) + len(self._batch)

    def oldest(self) -> float | None:
        """Return when the oldest waiting turn was submitted (monotonic clock), or None."""
        return min(
            (jobs[0].queued_at for jobs in (self._batch, self._pending) if jobs), default=None
        )

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being stored or taken over."""
        return not self._is_storing and not self._closing

    # Queueing

    def put(self, job: Job) -> None:
        """Queue a turn for storing; the caller holds the lock."""
        self._pending.append(job)
        self._flush_soon()

    def remove(self, job: Job) -> bool:
        """Remove a turn that is not being stored yet; the caller holds the lock."""
        if job not in self._pending:
            return False
        self._pending.remove(job)
        return True

    def adopt_soon(self) -> None:
        """Schedule a search for journals of dead writers; the caller holds the lock."""
        self._has_looked = False
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_storing:
            self._thread.call(self._flush)
            self._is_storing = True

    # In the journal's thread

    def _flush(self) -> None:
        goes_on = True
        while goes_on:
            if not self._has_looked:
                # This comes first: turns submitted before a crash precede turns submitted now.
                self._has_looked = True
                self._adopt()
            with self._state:
                batch, self._pending = self._pending, []
                self._batch = batch
                if not batch:
                    goes_on = self._ends_batch()
            if batch:
                goes_on = self._store(batch)

    def _store(self, jobs: list[Job]) -> bool:
        """Store turns; return whether more are waiting.

        Turns that cannot be stored are refused, even if a later sync succeeds.
        """
        try:
            if self._journal is None:
                self._journal = Journal.create(self.root, sync=self._sync, files=self.files)
                self.journals.append(self._journal)
            stored = self._journal.append_turns(jobs, self._backend.epoch, self._is_erased)
            try:
                self._journal.sync()
            except BaseException:
                self._journal.finish(stored)
                raise
        except Exception as error:  # noqa: BLE001 - each receipt gets it
            _logger.error("%d turns could not be stored: %s", len(jobs), error)  # noqa: TRY400 - each receipt has the traceback
            with self._state:
                self._batch = []
                journal = self._journal
                if journal is not None and journal.problem is not None:
                    self._journal = None  # the next turn creates another one
                    self.close_if_done(journal)
                self._refuse(jobs, error)
                goes_on = self._ends_batch()
            wake(jobs, error)
            return goes_on
        for job in jobs:
            job.rendered = ""
        erased = [job for job in jobs if job.epoch is None]
        with self._state:
            self._batch = []
            self._deliver(stored)
            if erased:
                refuse_erased(erased, self._refuse)
            goes_on = self._ends_batch()
        wake(stored, None)  # without the lock, which the next submit of a woken caller needs
        if erased:
            wake(erased, Forgotten.since_run())
        return goes_on

    def _is_erased(self, turn: Turn, epoch: int) -> bool:
        return is_erased(self._backend, turn.user_id, turn.epoch, epoch)

    def _ends_batch(self) -> bool:
        """Return whether turns were queued meanwhile; the caller holds the lock.

        The submits of this batch are woken afterwards, so a single caller finds the queue idle.
        """
        self._is_storing = bool(self._pending) or not self._has_looked
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
                found = Journal.adopt(folder, sync=self._sync, files=self.files)
            except Exception as error:  # noqa: BLE001 - a damaged journal must not stop the others
                _logger.error("%s: cannot be taken over (%r)", folder, error)  # noqa: TRY400 - one line is enough
                continue
            if found is None or not found[1]:
                continue
            journal, jobs = found
            count = sum(1 + len(job.group) for job in jobs)
            _logger.info("%s: %d turns are taken over", folder, count)
            with self._state:
                self.journals.append(journal)
                self._deliver(jobs)

    # Ending

    def close_if_done(self, journal: Journal) -> None:
        """Schedule closing an adopted journal if all its turns are done; the caller holds the lock."""
        if journal is self._journal or journal not in self.journals or journal.pending:
            return
        with suppress(RuntimeError):  # the writer is closing, and closes all journals
            self._thread.call(partial(self._close, journal))
            self.journals.remove(journal)
            self._closing += 1

    def _close(self, journal: Journal) -> None:
        try:
            journal.close()
        finally:
            with self._state:
                self._closing -= 1
                self._state.notify_all()

    def withdraw(self, job: Job) -> None:
        """Schedule the record that a cancelled turn is done; the caller holds the lock."""
        if job.journal is not None:
            with suppress(RuntimeError):  # the writer is being closed
                self._thread.call(partial(job.journal.finish, [job]))

    def stop(self) -> None:
        """Store the waiting turns, then stop the thread."""
        self._thread.stop(self._state)

    def close(self) -> None:
        """Close all journals."""
        close_journals(self.journals)

    def drop(self) -> None:
        """Drop all journals in a forked child: they belong to the parent."""
        for journal in self.journals:
            journal.drop()
        self.journals.clear()


class CallThread:
    """Calls functions one after the other in a thread, which starts with the first one and ends with this object.

    Args:
        name: The name of the thread.
        idle: Called after `poll` seconds without a function; the thread does not keep its object.
        poll: Seconds; None calls nothing.
    """

    def __init__(
        self,
        name: str,
        idle: weakref.WeakMethod[Callable[[], None]] | None = None,
        poll: float | None = None,
    ) -> None:
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        calls = (self._calls, idle, poll)
        self._thread = threading.Thread(target=_call_all, args=calls, name=name, daemon=True)
        self._is_stopped = False
        weakref.finalize(self, self._calls.put, None).atexit = False

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the thread; the caller holds the writer's lock.

        Raises:
            RuntimeError: The thread is stopped, or the system has no thread left.
        """
        if self._is_stopped:
            raise RuntimeError("the thread is stopped.")
        if self._thread.ident is None:
            self._thread.start()
        self._calls.put(function)

    def stop(self, state: Condition) -> None:
        """Wait for the calls that are due, and end the thread; `state` is the writer's lock."""
        with state:
            self._is_stopped = True
            self._calls.put(None)
        if self._thread.ident is not None:
            self._thread.join()


def _call_all(
    calls: SimpleQueue[Callable[[], object] | None],
    idle: weakref.WeakMethod[Callable[[], None]] | None,
    poll: float | None,
) -> None:
    while True:
        try:
            function = calls.get(timeout=poll)
        except Empty:
            function = idle() if idle is not None else None
        if function is None:
            return
        try:
            function()
        except Exception as error:  # noqa: BLE001 - the next calls have to be made
            _logger.error("the queue failed: %s", type(error).__name__)  # noqa: TRY400 - it may quote a text
        del function  # which may keep the queue


def close_journals(journals: list[Journal]) -> None:
    """Close journals, and let go of them."""
    for journal in journals:
        journal.close()
    journals.clear()


def refuse_erased(jobs: list[Job], refuse: Callable[[list[Job], BaseException], None]) -> None:
    """Refuse turns of runs that began before an erasure; the caller holds the lock."""
    _logger.error("%d turns were not stored: Forgotten", len(jobs))
    refuse(jobs, Forgotten.since_run())


def wake(jobs: list[Job], error: BaseException | None) -> None:
    """Wake the submits that wait for their turns to be stored, with one call for each event loop."""
    waiting: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for job in jobs:
        if job.waiter is not None:
            waiting.setdefault(job.waiter[0], []).append(job.waiter[1])
    for loop, futures in waiting.items():
        try:
            loop.call_soon_threadsafe(_resolve, futures, error)
        except RuntimeError:  # the loop is closed
            continue


def _resolve(futures: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)
