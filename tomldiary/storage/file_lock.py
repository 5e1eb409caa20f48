"""Locks on open files (`flock`), which the system releases when the process dies.

filelock is imported when a lock is taken: a Temporal workflow may import this package, but not filelock.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tomldiary.runtime.capabilities import PRIVATE
from tomldiary.runtime.fork_safety import close_hidden, hide_from_children

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tomldiary.storage.files import FileSystem

__all__ = ["lock_file", "remove_locked", "try_lock", "unlock"]

_FIRST_WAIT, _LONGEST_WAIT = 0.0002, 0.01  # seconds
_FLAGS = os.O_RDWR | os.O_APPEND | PRIVATE


def try_lock(descriptor: int, *, wait: bool = False) -> bool:
    """Lock an open file; without `wait`, return False at once if another owner holds the lock."""
    from filelock import lock_descriptor  # noqa: PLC0415 - Temporal's sandbox cannot import it

    pause = _FIRST_WAIT
    while not lock_descriptor(descriptor, blocking=False):
        if not wait:
            return False
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_WAIT)
    return True


def unlock(descriptor: int) -> None:
    """Unlock an open file."""
    from filelock import unlock_descriptor  # noqa: PLC0415 - Temporal's sandbox cannot import it

    unlock_descriptor(descriptor)


@contextmanager
def lock_file(files: FileSystem, path: Path, *, create: bool = False) -> Generator[int]:
    """Open and lock the file at `path`, even if another process replaces it at the same time.

    Raises:
        FileNotFoundError: The file does not exist, and `create` is False.
    """
    while True:
        descriptor = files.open(path, _FLAGS | (os.O_CREAT if create else 0), 0o600)
        try:
            hide_from_children(descriptor)
            try_lock(descriptor, wait=True)
            try:
                is_there = files.fstat(descriptor).st_ino == files.stat(path).st_ino
            except FileNotFoundError:
                is_there = False
            if is_there:
                yield descriptor
                return
        finally:
            unlock(descriptor)  # closing alone would not unlock it if a child inherited it
            close_hidden(descriptor, files.close)


def remove_locked(files: FileSystem, path: Path) -> None:
    """Remove a file if it exists, under its lock: a concurrent replacement would restore it."""
    with suppress(FileNotFoundError), lock_file(files, path):
        files.unlink(path)
