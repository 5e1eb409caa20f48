"""The queue of turns to be stored in the journal: turns submitted during a sync share the next sync (group commit).

Turns are stored in the order of their submission, and then passed to the workers. A turn that could not be stored is
never applied.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from os.path import realpath
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from tomldiary.errors import Forgotten, cause_of
from tomldiary.logging import get_logger, tell
from tomldiary.runtime.unstored_turns import awaited_by_erasures
from tomldiary.runtime.views import counted
from tomldiary.storage.files import FileSystem
from tomldiary.storage.locks import import_for_writes
from tomldiary.storage.protocol import Backend, LocalFolder
from tomldiary.writer.journal import Journal
from tomldiary.writer.receipts import is_refused

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from tomldiary.writer.queue import Admission
    from tomldiary.writer.receipts import Job

_logger = get_logger(__name__)


class StoringQueue:
    """Stores turns in a thread, which starts with the first turn and ends when this object is garbage-collected.

    Args:
        name: The name of the thread.
        root: The place where the turns are stored, for messages.
        admission: Gets the turns that were stored, and those that could not be stored.
        poll: The time in seconds between two searches for turns of dead writers.
        last: Called in the thread when this object is garbage-collected; it must not refer to this object.
    """

    def __init__(
        self,
        name: str,
        root: object,
        admission: Admission,
        *,
        poll: float,
        last: Callable[[], None] | None = None,
    ) -> None:
        self.root = root
        self._admission = admission
        self._state = admission.state
        self._poll = poll
        self._pending: list[Job] = []
        self._batch: list[Job] = []
        self._stored: list[Job] = []
        """The turns whose callers are woken at the end of the round."""
        self._withdrawn: list[Job] = []
        self._searched_at = float("-inf")
        self.is_due = False
        """Whether turns are being stored or taken over, or will be soon."""
        self._is_woken = False
        self._is_stopped = False
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        calls = (self._calls, weakref.WeakMethod(self._work_once), poll)
        self._thread = threading.Thread(target=_call_all, args=calls, name=name, daemon=True)
        weakref.finalize(self, _end, self._calls, last).atexit = False

    def __len__(self) -> int:
        """The number of turns that are not stored yet."""
        return len(self._pending) + len(self._batch)

    def unstored(self) -> int:
        """Return the number of turns that a killed process would lose."""
        return len(self)

    def oldest(self) -> float | None:
        """Return when the oldest waiting turn was submitted (monotonic clock), or None."""
        return min((job.queued_at for job in (*self._batch, *self._pending)), default=None)

    def stores_in(self, backend: object) -> bool:
        """Return whether a backend has the turns of this queue."""
        raise NotImplementedError

    def await_stored(self, user: str, timeout: float) -> bool:
        """Wait until the turns that a user has now are stored; return False after `timeout` seconds.

        A turn that waits for space is not waited for if its fencing token is known: it is refused after an erasure.
        """
        with self._state:
            now = self._unstored(user)  # a busy user always has further ones
            return self._state.wait_for(lambda: now.isdisjoint(self._unstored(user)), timeout)

    def _unstored(self, user: str) -> set[Job]:
        """Return the turns of a user that wait to be stored; the caller holds the lock."""
        unread = (job for job in self._admission.waiting if job.wait_epoch is None)
        return {job for job in (*self._batch, *self._pending, *unread) if job.turn.user_id == user}

    # The caller holds the lock

    def put(self, job: Job) -> None:
        """Queue a turn for storing."""
        self.work_soon()
        self._pending.append(job)

    def remove(self, job: Job) -> bool:
        """Remove a turn that is not being stored yet."""
        if job not in self._pending:
            return False
        self._pending.remove(job)
        return True

    def withdraw(self, job: Job) -> None:
        """Schedule the record that a cancelled turn is done."""
        with suppress(RuntimeError):  # the writer is being closed
            self.work_soon()
            self._withdrawn.append(job)

    def search_soon(self) -> None:
        """Schedule a search for turns of dead writers."""
        self._searched_at = float("-inf")
        self.work_soon()

    def work_soon(self) -> None:
        """Wake the thread.

        Raises:
            RuntimeError: The thread is stopped, or the system has no thread left.
        """
        if self._is_stopped:
            raise RuntimeError("the thread is stopped.")
        if self._is_woken:
            return
        if self._thread.ident is None:
            self._thread.start()
        self._calls.put(self._work_once)
        self._is_woken = self.is_due = True

    # In the thread

    def _work_once(self) -> None:
        with self._state:
            self._is_woken = False
            self._batch, self._pending = self._pending, []
            withdrawn, self._withdrawn = self._withdrawn, []
        try:
            for job in withdrawn:
                if job.journal is not None:  # it was stored
                    job.journal.finish([job])
            self._work()
        except Exception as error:  # noqa: BLE001 - the next round tries again
            _logger.warning("%s: the queue failed (%s)", self.root, cause_of(error))
            if self._batch:
                self.fail(self._batch, error)
        with self._state:
            self.is_due = self._is_woken
            self._state.notify_all()
        # Last, because the woken callers compete with this thread for the interpreter.
        stored, self._stored = self._stored, []
        wake(stored, None)

    def _work(self) -> None:
        """Store the batch, and search for turns of dead writers if that is due."""
        raise NotImplementedError

    def _is_search_due(self) -> bool:
        now = time.monotonic()
        if self._is_stopped or now - self._searched_at < self._poll:
            return False
        self._searched_at = now
        return True

    def fail(self, jobs: list[Job], error: Exception) -> None:
        """Refuse turns that could not be stored; they stay refused even if a later sync succeeds."""
        _logger.error("%s could not be stored: %s", counted(len(jobs), "turn"), error)
        with self._state:
            self._leave_batch(jobs)
            self._admission.refuse(jobs, error)
        wake(jobs, error)

    def _leave_batch(self, jobs: list[Job]) -> None:
        gone = set(jobs)
        self._batch = [job for job in self._batch if job not in gone]

    # Ending

    def stop(self) -> None:
        """Store the waiting turns, then stop the thread."""
        with self._state:
            self._is_stopped = True
            self._calls.put(None)
        if self._thread.ident is not None:
            self._thread.join()


def _call_all(
    calls: SimpleQueue[Callable[[], None] | None],
    idle: weakref.WeakMethod[Callable[[], None]],
    poll: float,
) -> None:
    while True:
        try:
            work = calls.get(timeout=poll)
        except Empty:
            work = idle()
        if work is None:
            return
        work()
        del work  # a bound method would keep the queue object alive


def _end(calls: SimpleQueue[Callable[[], None] | None], last: Callable[[], None] | None) -> None:
    calls.put(last)
    calls.put(None)


class JournalQueue(StoringQueue):
    """Stores turns in the writer's journal, and takes over the journals of dead writers.

    Args:
        root: The folder of the journals.
        backend: Provides fencing tokens and the durability.
        admission: Gets the turns that were stored, and those that could not be stored.
        interval: The maximum time in seconds until a journal of a dead writer is found.
    """

    def __init__(
        self, root: Path, backend: Backend, admission: Admission, *, interval: float
    ) -> None:
        # Half the interval, because storing a turn just before a search is due restarts the poll.
        poll = min(interval / 2, threading.TIMEOUT_MAX)
        self.journals: list[Journal] = []
        """The journals that this writer owns; new turns are appended only to `_journal`."""
        last = partial(_close_journals, self.journals)
        super().__init__("tomldiary-journal", root, admission, poll=poll, last=last)
        self.files = backend.files if isinstance(backend, LocalFolder) else FileSystem()
        self.durability = backend.durability
        self._folder = root
        self._backend = backend
        self._sync = backend.durability == "full"
        self._journal: Journal | None = None
        self._left: set[Path] = set()
        """Journals of other writers that could not be read."""
        import_for_writes()
        awaited_by_erasures(self)

    def stores_in(self, backend: object) -> bool:
        """Return whether a backend has the turns of this queue; several may name one folder."""
        own = self._backend
        if (
            backend is own
            or not isinstance(backend, LocalFolder)
            or not isinstance(own, LocalFolder)
        ):
            return backend is own
        # Not the folders of the journals, because the storage's own folder may be a link to another disk.
        return realpath(backend.base_path) == realpath(own.base_path)

    def _work(self) -> None:
        if self._is_search_due():
            # First, because turns submitted before a crash precede the turns of the batch.
            self._adopt()
        if self._batch:
            self._store(self._batch)
        for journal in [each for each in self.journals if not each.pending]:
            if journal is not self._journal:  # an adopted one, or one that could not be written
                self.journals.remove(journal)
                journal.close()

    def _store(self, jobs: list[Job]) -> None:
        try:
            if self._journal is not None and self._journal.problem is not None:
                self._journal = None
            if self._journal is None:
                self._journal = Journal.create(self._folder, sync=self._sync, files=self.files)
                self.journals.append(self._journal)
            stored = self._journal.append_turns(jobs, self._epoch_of)
            try:
                self._journal.sync()
            except BaseException:
                self._journal.finish(stored)
                raise
        except Exception as error:  # noqa: BLE001 - each receipt gets it
            is_unusable = self._journal is not None and self._journal.problem is not None
            if is_unusable and isinstance(error.__cause__, FileNotFoundError):
                self._store(jobs)  # to another journal, because the folder of this one was removed
            else:
                self.fail(jobs, error)
            return
        for job in jobs:
            job.rendered = ""
        erased = [job for job in jobs if job.epoch is None]
        with self._state:
            self._batch, self._stored = [], stored
            self._admission.deliver(stored)
            if erased:
                self.fail(erased, Forgotten.meanwhile())

    def _epoch_of(self, job: Job) -> int | None:
        """Return the fencing token of the turn's user; None if an erasure refuses the turn."""
        epoch = self._backend.epoch(job.turn.user_id)
        return None if is_refused(self._backend, job, epoch) else epoch

    def _adopt(self) -> None:
        try:
            folders = sorted(path for path in self._folder.iterdir() if path.name[0] != ".")
        except OSError:
            return
        mine = {journal.folder for journal in self.journals}
        for folder in folders:
            if folder in mine:
                continue
            try:
                found = Journal.adopt(folder, sync=self._sync, files=self.files)
            except Exception as error:  # noqa: BLE001 - a damaged journal must not stop the others
                if folder not in self._left:  # this search repeats every few seconds
                    self._left.add(folder)
                    why = (
                        f"this journal cannot be taken over ({cause_of(error)}), so its turns wait"
                    )
                    remedy = "Repair its files, or delete the folder if the turns are not wanted."
                    tell(_logger, f"{folder}: {why}. {remedy}", logging.ERROR)
                continue
            if found is None or not found[1]:
                continue
            journal, jobs = found
            count = sum(1 + len(job.group) for job in jobs)
            _logger.info("%s: %s taken over", folder, counted(count, "turn"))
            with self._state:
                self.journals.append(journal)
                self._admission.deliver(jobs)

    # Ending

    def close(self) -> None:
        """Close all journals."""
        _close_journals(self.journals)

    def drop(self) -> None:
        """Drop all journals in a forked child: they belong to the parent."""
        while self.journals:
            self.journals.pop().drop()


def _close_journals(journals: list[Journal]) -> None:
    """Close journals and remove them from the list, to which another thread may add journals meanwhile."""
    while journals:
        journals.pop().close()


def wake(jobs: list[Job], error: BaseException | None) -> None:
    """Wake the submits that wait for these turns, with one call for each event loop."""
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
