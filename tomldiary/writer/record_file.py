"""The file that a journal appends to, locked for each append.

Forgetting replaces journal files that are in use. An append therefore locks the file first, then compares its
inode with the one at its path, and opens the file again if they differ.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from tomldiary.runtime.capabilities import PRIVATE, make_private, read_at
from tomldiary.storage.file_lock import try_lock, unlock
from tomldiary.storage.files import write_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["RecordFile"]

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | PRIVATE


class RecordFile:
    """One open file at a time in a journal's folder. Not thread-safe: the journal has a mutex.

    Args:
        folder: The journal's folder, for messages.
    """

    def __init__(self, folder: Path) -> None:
        self.end = 0
        """Where the records end, in bytes."""
        self.problem: str | None = None
        """Why nothing can be appended any more."""
        self._folder = str(folder)
        self._place = ""
        self._descriptor = -1
        self._inode = 0
        self._retired: list[int] = []
        self._syncing = 0

    def open(self, place: str) -> None:
        """Open or create another file, or the file that is at the same path now.

        Raises:
            OSError: It cannot be opened. The previous file stays open.
        """
        # If this fails, the previous descriptor stays valid and is not closed twice.
        descriptor = os.open(place, _FLAGS, 0o600)
        if self._descriptor >= 0:
            self._retired.append(self._descriptor)
        self._close_retired()
        self._place, self._descriptor = place, descriptor
        found = os.fstat(descriptor)
        self._inode, self.end = found.st_ino, found.st_size

    def create(self, place: str) -> None:
        """Open a new file with private permissions, whatever the umask."""
        self.open(place)
        make_private(self._descriptor)

    def append(self, render: Callable[[], str]) -> None:
        """Append records.

        Args:
            render: Returns the records; called while the file is locked.

        Raises:
            OSError: Nothing was appended, or `problem` says that the file may be damaged.
        """
        self._lock()
        try:
            begin = os.lseek(self._descriptor, 0, os.SEEK_END)
            data = render().encode()
            if begin and begin != self.end and read_at(self._descriptor, 1, begin - 1) != b"\n":
                data = b"\n" + data  # cut off within a record: start on a line of its own
            try:
                write_all(self._descriptor, data)
            except BaseException:
                self._cut_back(begin)
                raise
            self.end = begin + len(data)
        finally:
            unlock(self._descriptor)

    def _lock(self) -> None:
        """Lock the file that is at the path now."""
        while True:
            try_lock(self._descriptor, wait=True)
            try:
                is_in_place = os.stat(self._place).st_ino == self._inode  # noqa: PTH116 - a string, for `os.open`
            except FileNotFoundError:
                is_in_place = False
            if is_in_place:
                return
            unlock(self._descriptor)
            self.open(self._place)

    def _cut_back(self, begin: int) -> None:
        """Remove what a failed append wrote."""
        try:
            os.ftruncate(self._descriptor, begin)
            self.end = begin
        except OSError as error:
            self.problem = (
                f"{self._folder}: a failed append could not be removed ({error.strerror})."
            )

    def clear(self) -> None:
        """Remove all records."""
        self._lock()
        try:
            os.ftruncate(self._descriptor, 0)
            self.end = 0
        finally:
            unlock(self._descriptor)

    # Syncs, without the journal's mutex

    def hold(self) -> int:
        """Return the descriptor, which stays open until `release`."""
        self._syncing += 1
        return self._descriptor

    def release(self) -> None:
        """Release a descriptor that `hold` returned."""
        self._syncing -= 1
        self._close_retired()

    def _close_retired(self) -> None:
        """Close files that were replaced, unless one of them is being synced."""
        while self._retired and not self._syncing:
            os.close(self._retired.pop())

    def close(self) -> None:
        """Close the descriptors; errors are ignored."""
        for descriptor in (*self._retired, self._descriptor):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._retired, self._descriptor = [], -1
