"""Locks on open files: `flock`, released by the system when the process dies."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from filelock import lock_descriptor, unlock_descriptor

from tomldiary.runtime.capabilities import PRIVATE
from tomldiary.runtime.fork_safety import close_hidden, hide_from_children

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ["lock_file", "remove_locked", "try_lock", "unlock"]

_FIRST_WAIT, _LONGEST_WAIT = 0.0002, 0.01  # seconds
_FLAGS = os.O_RDWR | os.O_APPEND | PRIVATE


def try_lock(descriptor: int, *, wait: bool = False) -> bool:
    """Lock an open file; without `wait`, return False at once if somebody else has it."""
    pause = _FIRST_WAIT
    while not lock_descriptor(descriptor, blocking=False):
        if not wait:
            return False
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_WAIT)
    return True


def unlock(descriptor: int) -> None:
    """Let go of an open file."""
    unlock_descriptor(descriptor)


@contextmanager
def lock_file(path: Path, *, create: bool = False) -> Generator[int]:
    """Open and lock the file that is at `path`, also if somebody replaces it just now.

    Raises:
        FileNotFoundError: There is none, and `create` is False.
    """
    while True:
        descriptor = os.open(path, _FLAGS | (os.O_CREAT if create else 0), 0o600)
        try:
            hide_from_children(descriptor)
            try_lock(descriptor, wait=True)
            try:
                is_there = os.fstat(descriptor).st_ino == path.stat().st_ino
            except FileNotFoundError:
                is_there = False
            if is_there:
                yield descriptor
                return
        finally:
            unlock(descriptor)  # closing it would not be enough, should a child have it
            close_hidden(descriptor)


def remove_locked(path: Path) -> None:
    """Remove a file, if it is there, and not while somebody replaces it, who would bring it back."""
    with suppress(FileNotFoundError), lock_file(path):
        path.unlink()
