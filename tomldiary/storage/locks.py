"""Locks on open files (`flock`), and writer locks: one writer for each user, among threads and among processes.

A writer lock belongs to a transaction, not to a thread. So two tasks on one event loop exclude each other, too.
Processes share 256 lock files ("stripes") instead of one for each user.

The system releases the lock of an open file when the process dies. filelock is imported when a lock is taken: a
Temporal workflow may import this package, but not filelock.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from math import inf
from operator import attrgetter
from os.path import samestat
from typing import TYPE_CHECKING, TypeVar
from zlib import crc32

from tomldiary.errors import HandEditConflict, LockTimeout, RevisionConflict
from tomldiary.runtime.fork_safety import close_lockable, lockable, open_lockable, renew_after_fork
from tomldiary.storage.files import PRIVATE, FileSystem, file_error, file_on_the_way

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

R = TypeVar("R")
LOCK_TIMEOUT = 30.0
"""The time limit for a user's lock outside of an engine, in seconds."""
_STRIPES = 256
_MOST_OPEN = 300
"""The number of lock files of this process above which a released one is closed: a process may have several diaries and
hooks, and a system often allows 1,024 open files. If it allows fewer, as macOS does, it is a third of them."""
_FIRST_WAIT, _LONGEST_WAIT = 0.0002, 0.01  # seconds
_PAUSE = 0.05  # seconds between two reads of a file that is being saved
_FLAGS = os.O_RDWR | os.O_APPEND | PRIVATE
_DANGLING = "If the memory is a link, create the folder that it names, or mount its disk."
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP}
_LONG = 0.1  # seconds; after a longer hold, a process waits so that polling processes get the lock
_YIELD_TIME = 3 * _LONGEST_WAIT
_Caller = tuple[str, object]
"""A user id, and an object that no other caller has."""


class UserLocks:
    """Exclusive locks by user; `folder` has the stripe files (None: locks in this process only)."""

    def __init__(self, folder: Path | None, files: FileSystem | None = None) -> None:
        self.folder = folder
        self.files = files or FileSystem()
        self._descriptors: dict[int, int] = {}
        # A host that opens a diary for each request would run out of descriptors; at exit the system closes them.
        weakref.finalize(self, _close_all, self._descriptors).atexit = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start without open lock files, also in a forked child."""
        _close_all(self._descriptors)
        self.pid = os.getpid()
        allowed = -1 if self.folder is None else os.sysconf("SC_OPEN_MAX")  # -1: no limit
        self._most_open = _MOST_OPEN if allowed < 0 else min(_MOST_OPEN, allowed // 3)
        self._stripes: dict[int, _Queue] = {}
        self.busy_until: dict[int, float] = {}
        """For stripes with a long hold: the time at which this process may lock them again."""

    def close(self) -> None:
        """Close the lock files that no thread holds; the next lock opens them again."""
        for number in list(self._descriptors):
            stripe, caller = self.stripe(number), ("", object())
            try:
                if stripe.acquire(caller, 0) and number in self._descriptors:
                    close_lockable(self._descriptors.pop(number), os.close)
            finally:
                stripe.release(caller)

    @contextmanager
    def hold(
        self, user: str, timeout: float, then: Callable[[str], None] | None = None
    ) -> Generator[None]:
        """Hold the user's lock for a `with` block, which need not end in the same thread.

        Args:
            user: The user id.
            timeout: The maximum time to wait, in seconds.
            then: Called with the user id once the lock is held, before the block.

        Raises:
            LockTimeout: Another writer held the lock for the whole time.
            BackendError: The lock file cannot be opened, or its file system has no locks.
        """
        number, pid, start = _number_of(user), self.pid, time.monotonic()
        stripe, caller = self.stripe(number), (user, object())
        locked, since = -1, inf
        try:
            if not stripe.acquire(caller, timeout):
                raise _timed_out(timeout)
            if self.folder is not None:
                if number in self.busy_until:
                    # Other processes poll the lock. They would time out if this process locked it again
                    # immediately, and for long each time.
                    time.sleep(max(0.0, self.busy_until.pop(number) - time.monotonic()))
                while (descriptor := self.descriptor(number)) >= 0:
                    locked = descriptor  # before the call: the caller may be interrupted after it
                    try:
                        is_locked = try_lock(descriptor, start + timeout - time.monotonic())
                    except OSError as error:
                        locked = -1  # unlocking would fail, too
                        raise file_error(self._path(number), "cannot be locked", error) from error
                    if not is_locked:
                        raise _timed_out(timeout)
                    since = time.monotonic()
                    if found_at(self.files, descriptor, self._path(number)):
                        break
                    # The file or a folder above was removed or replaced, as by `git clean`: others lock another file.
                    locked = -1
                    unlock(descriptor)
                    close_lockable(self._descriptors.pop(number), os.close)
            if then is not None:
                then(user)
            yield
        finally:
            try:
                self._release(number, pid, stripe, caller, locked, since)
            finally:  # an interrupt, such as Ctrl-C, may have ended the first call
                self._release(number, pid, stripe, caller, locked, since)

    def waiting(self, user: str) -> int:
        """Return how many callers of this process wait for a user's lock."""
        return self.stripe(_number_of(user)).waiting().count(user)

    def _release(
        self, number: int, pid: int, stripe: _Queue, caller: _Caller, locked: int, since: float
    ) -> None:
        """Release what `hold` has locked; a repeated call has no effect."""
        if pid != os.getpid():  # in a child forked inside the block, the parent holds the lock
            return
        try:
            # A repeated call must not unlock a file that another thread has opened with this descriptor since.
            is_open = self._descriptors.get(number) == locked
            if locked >= 0 and is_open and stripe.holder is caller:
                unlock(locked)
                now = time.monotonic()
                if now - since > _LONG:
                    self.busy_until[number] = now + _YIELD_TIME
                if len(lockable) > self._most_open:
                    close_lockable(self._descriptors.pop(number), os.close)
        finally:
            stripe.release(caller)

    def stripe(self, number: int) -> _Queue:
        """Return the lock of a stripe among the threads of this process."""
        return self._stripes.setdefault(number, _Queue())  # one step, also for other threads

    def descriptor(self, number: int) -> int:
        """Return the descriptor of a stripe's lock file, or -1 if a read-only file system has none.

        The caller holds the lock of the stripe.
        """
        descriptor = self._descriptors.get(number, -1)
        if descriptor < 0:
            path = self._path(number)
            try:
                descriptor = self._opened(path)
            except NotADirectoryError as error:
                raise file_on_the_way(path) from error
            except OSError as error:
                what = "the lock file cannot be opened for writing"
                # Its folder was just created, so a parent folder is a dangling link.
                remedy = _DANGLING if isinstance(error, FileNotFoundError) else None
                raise file_error(path, what, error, remedy) from error
            if descriptor >= 0:
                self._descriptors[number] = descriptor
        return descriptor

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:02x}"

    def _opened(self, path: str) -> int:
        """Open a lock file; return -1 if a read-only file system has none, because no writer can exist there."""
        try:
            # This may also create the folder of all users.
            self.files.make_folder(path.rpartition("/")[0], sync=True)
            return open_lockable(
                lambda: self.files.open(path, os.O_RDWR | os.O_CREAT | PRIVATE, 0o600)
            )
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        try:
            # Another machine may be able to write there, and hold the lock.
            return open_lockable(lambda: self.files.open(path, os.O_RDONLY | PRIVATE))
        except FileNotFoundError:
            return -1


def _close_all(descriptors: dict[int, int]) -> None:
    while descriptors:
        close_lockable(descriptors.popitem()[1], os.close)


class _Queue:
    """A fair lock: the thread that has waited longest gets it next.

    An ordinary lock goes to the first thread that requests it after its release. A thread that writes in a loop
    would then make the others wait until they time out.
    """

    __slots__ = ("_guard", "_waiting", "holder")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.holder: _Caller | None = None
        """The caller that holds the lock, or None."""
        self._waiting: dict[_Caller | None, threading.Lock] = {}

    def waiting(self) -> list[str]:
        """Return the user ids of the callers that wait."""
        with self._guard:
            return [
                each[0] for each in self._waiting if each is not None and each is not self.holder
            ]

    def acquire(self, caller: _Caller, timeout: float = -1) -> bool:
        """Acquire the lock within `timeout` seconds (-1: no limit); return whether it was acquired.

        In any case the caller must call `release`, also after an interrupt.
        """
        with self._guard:
            if self.holder is None:
                self.holder = caller
                return True
            turn = self._waiting[caller] = threading.Lock()
            turn.acquire()  # `release` of the holder releases `turn`
        turn.acquire(timeout=timeout)
        return self.holder is caller

    def release(self, caller: _Caller) -> None:
        """Pass the lock to the next waiting caller, or free it; stop waiting. A repeated call has no effect."""
        with self._guard:
            self._waiting.pop(caller, None)
            if self.holder is caller:
                self.holder = next(iter(self._waiting), None)
            turn = self._waiting.get(self.holder)
            if turn is not None and turn.locked():
                turn.release()


class InterruptibleCondition(threading.Condition):
    """A condition for methods that the main thread calls, in which Ctrl-C raises an error between any two steps.

    `Condition` enters and leaves a `with` block by functions in Python. An error raised at the end of the first or at
    the start of the second one leaves the lock locked, and all other threads wait for ever. Here the `with` statement
    calls the lock itself, which no error interrupts.
    """

    def __init__(self) -> None:
        self._inner = threading.RLock()
        super().__init__(self._inner)

    if not TYPE_CHECKING:  # for a type checker these are the methods of `Condition`
        __enter__ = property(attrgetter("_inner.__enter__"))
        __exit__ = property(attrgetter("_inner.__exit__"))


def _number_of(user: str) -> int:
    """Return the number of a user's stripe."""
    return crc32(user.encode("utf-8", "surrogatepass")) % _STRIPES


def _timed_out(timeout: float) -> LockTimeout:
    return LockTimeout(
        f"the user's memory was locked by another writer for {timeout:g} s. Try again, or raise"
        " lock_timeout. A task or thread started inside a transaction waits until the transaction ends. Do not"
        " wait for it inside the transaction, for example with asyncio.gather. In coroutines write"
        " `async with user.atransaction()`: a plain `with` stops the event loop while it waits."
    )


def repeated(work: Callable[[], R], timeout: float) -> R:
    """Run `work`, again after each `RevisionConflict`, and return its result.

    Raises:
        RevisionConflict: The user was changed at each attempt, and for `timeout` seconds after the first one.
    """
    deadline = inf
    while True:
        try:
            return work()
        except RevisionConflict:
            now = time.monotonic()
            if now > deadline:
                raise
            # The time limit begins after the first attempt, so there is always a second one.
            deadline = min(deadline, now + timeout)


def wait_for_save(place: str, deadline: float, timeout: float) -> None:
    """Wait for a moment, because another program is saving the document at `place`.

    Raises:
        HandEditConflict: The deadline has passed, `timeout` seconds after the first check.
    """
    if time.monotonic() >= deadline:
        raise HandEditConflict.busy(place, timeout)
    time.sleep(_PAUSE)


# Locks on open files, which the system releases when the process dies


@lru_cache(maxsize=1)
def _system_lock() -> tuple[Callable[..., bool], Callable[[int], None]]:
    """Return the functions that lock and unlock a file; kept, because an ending interpreter imports nothing."""
    from filelock import (  # noqa: PLC0415 - Temporal's sandbox cannot import it, and it is slow to import
        lock_descriptor,
        unlock_descriptor,
    )

    return lock_descriptor, unlock_descriptor


def import_for_writes() -> None:
    """Import what writes to a folder import at first use.

    Call it before a thread that writes is started: if a process is forked while a thread imports a module, the module
    stays locked in the child for ever.
    """
    import_module("ctypes")  # `FileSystem.exchange` needs it
    _system_lock()


def try_lock(descriptor: int, wait: float = 0.0) -> bool:
    """Lock an open file; return False if another owner held the lock for all of `wait` seconds.

    Raises:
        OSError: The file cannot be locked; with ENOLCK if its file system has no locks.
    """
    lock = _system_lock()[0]
    deadline, pause = time.monotonic() + wait, _FIRST_WAIT
    try:
        while not lock(descriptor, blocking=False):
            if time.monotonic() >= deadline:
                return False
            # Jitter spreads the attempts of processes that started together.
            time.sleep(pause * (0.5 + random.random()))  # noqa: S311 - not for secrets
            pause = min(pause * 2, _LONGEST_WAIT)
    except OSError as error:
        if error.errno in _NO_LOCKS:  # these numbers have other causes in other calls
            raise OSError(errno.ENOLCK, error.strerror) from error
        raise
    return True


def unlock(descriptor: int) -> None:
    """Unlock an open file."""
    _system_lock()[1](descriptor)


@contextmanager
def lock_file(files: FileSystem, path: Path) -> Generator[int]:
    """Open and lock the file at `path`, even if another process replaces it at the same time.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    while True:
        descriptor = open_lockable(lambda: files.open(path, _FLAGS))
        try:
            try_lock(descriptor, inf)
            if found_at(files, descriptor, path):
                yield descriptor
                return
        finally:
            unlock(descriptor)  # closing alone would not unlock it if a child inherited it
            close_lockable(descriptor, files.close)


def found_at(files: FileSystem, descriptor: int, path: str | Path) -> os.stat_result | None:
    """Return the status of an open file; None if another process has replaced or removed it at its path."""
    try:
        found = files.fstat(descriptor)
        return found if samestat(found, files.stat(path)) else None
    except OSError:
        return None


def remove_locked(files: FileSystem, path: Path) -> None:
    """Remove a file if it exists, under its lock, because a concurrent rewrite could restore it."""
    with suppress(FileNotFoundError), lock_file(files, path):
        files.write_over(path, None, sync=False)
