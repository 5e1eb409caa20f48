"""One writer for each user: a lock among threads, then one among processes.

The lock belongs to whoever holds the transaction, not to a thread: two tasks on one event loop
exclude each other as well. Processes share 256 lock files ("stripes"), so there is none per user.
"""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from zlib import crc32

from tomldiary.backends.files import make_folder
from tomldiary.errors import BackendError, LockTimeout

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ["UserLocks"]

_STRIPES = 256
_FIRST_WAIT, _LONGEST_WAIT = 0.0002, 0.01  # seconds


class UserLocks:
    """Exclusive locks by user; `folder` holds the stripe files (None: this process only)."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._stripes: dict[int, threading.Lock] = {}
        self._descriptors: dict[int, int] = {}

    @contextmanager
    def hold(self, user: str, timeout: float) -> Generator[None]:
        """Hold the user's lock for the `with` block.

        Args:
            user: The user id.
            timeout: Seconds to wait at most.

        Raises:
            LockTimeout: Somebody else kept the lock all that time.
        """
        if self._pid != os.getpid():
            # A forked child must not lock through its parent's descriptors: both would hold the lock.
            for inherited in self._descriptors.values():
                os.close(inherited)
            self._reset()
        number = crc32(user.encode("utf-8", "surrogatepass")) % _STRIPES
        deadline = time.monotonic() + timeout
        with self._guard:
            stripe = self._stripes.setdefault(number, threading.Lock())
        if not stripe.acquire(timeout=timeout):
            raise _timed_out(timeout)
        try:
            if self._folder is None:
                yield
                return
            descriptor = self._descriptor(number)
            self._lock_descriptor(descriptor, deadline, timeout)
            try:
                yield
            finally:
                self._unlock(descriptor)
        finally:
            stripe.release()

    def _descriptor(self, number: int) -> int:
        assert self._folder is not None  # noqa: S101 - the caller looked
        descriptor = self._descriptors.get(number)
        if descriptor is None:
            path = self._folder / f"{number:02x}"
            try:
                make_folder(self._folder, sync=True)  # the memories' folder may be made here
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
                descriptor = os.open(path, flags, 0o600)
            except OSError as error:
                raise BackendError(
                    f"{path}: the lock file cannot be opened ({error.strerror}). Check the folder's"
                    " permissions."
                ) from error
            self._descriptors[number] = descriptor
        return descriptor

    @staticmethod
    def _lock_descriptor(descriptor: int, deadline: float, timeout: float) -> None:
        from filelock import lock_descriptor  # noqa: PLC0415 - slow to import, only writers need it

        wait = _FIRST_WAIT
        while not lock_descriptor(descriptor, blocking=False):
            if time.monotonic() >= deadline:
                raise _timed_out(timeout)
            # Jitter keeps processes that started together from meeting again and again.
            time.sleep(wait * (0.5 + random.random()))  # noqa: S311 - not for secrets
            wait = min(wait * 2, _LONGEST_WAIT)

    @staticmethod
    def _unlock(descriptor: int) -> None:
        from filelock import unlock_descriptor  # noqa: PLC0415 - see above

        unlock_descriptor(descriptor)


def _timed_out(timeout: float) -> LockTimeout:
    return LockTimeout(
        f"the user's memory was locked by another writer for {timeout:g} s. Try again, or raise"
        " lock_timeout."
    )
