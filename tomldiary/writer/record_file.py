"""The file that a journal appends to: locked for each append, and laid out ahead of its records.

Whoever appends locks the file for that moment, and opens it anew if somebody replaced it meanwhile: forgetting
takes turns out of journals that are in use.

A file that is synced ends in empty lines, which records are written over: a sync has only the record to write
then, and no new length of the file. The disk begins while the writer still looks whether what it relied on holds:
if it does not, the records are written again.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from tomldiary.runtime.capabilities import PRIVATE, make_private, read_at, write_at
from tomldiary.storage.file_lock import try_lock, unlock
from tomldiary.storage.files import folder_time, read_all, write_all
from tomldiary.storage.write_out import start_writing
from tomldiary.writer.journal_record import end_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["RecordFile"]

_ROOM = b"\n" * (64 * 1024)  # laid out at once
_FLAGS = os.O_RDWR | os.O_CREAT | PRIVATE


class RecordFile:
    """One open file at a time in a journal's folder. Not thread-safe: the journal has a mutex.

    Args:
        folder: The journal's folder.
        is_synced: Whether what is appended is synced, so that room for it is worth its while.
    """

    def __init__(self, folder: Path, *, is_synced: bool) -> None:
        self.end = 0
        """Where the records end."""
        self.problem: str | None = None
        """Why nothing can be appended any more."""
        self._folder = str(folder)
        self._is_synced = is_synced
        self._place = ""
        self._descriptor = -1
        self._inode = 0
        self._length = 0
        self._changed = 0  # the folder's time
        self._retired: list[int] = []
        self._syncing = 0

    def open(self, place: str) -> None:
        """Open or create another file, or the one that is at the same place now.

        Raises:
            OSError: It cannot be opened. The file of before stays open.
        """
        self._changed = folder_time(self._folder)  # first: what changes from now on is looked at
        # Should this fail, the old one is still ours, and must not be closed a second time later.
        descriptor = os.open(place, _FLAGS, 0o600)
        if self._descriptor >= 0:
            self._retired.append(self._descriptor)
        self._close_retired()
        self._place, self._descriptor = place, descriptor
        found = os.fstat(descriptor)
        self._inode, self._length = found.st_ino, found.st_size
        self.end = end_of(read_all(descriptor)) if self._length else 0

    def create(self, place: str) -> None:
        """Open a new file that nobody else may read, whatever the umask."""
        self.open(place)
        make_private(self._descriptor)

    def append(
        self,
        render: Callable[[], str],
        *,
        holds: Callable[[], bool] = lambda: True,
        is_synced_next: bool = False,
        wait: bool = True,
    ) -> bool:
        """Write behind the records; without `wait`, return False if somebody else has the file.

        Args:
            render: Returns the records. Called with the file locked, and again if they have to be written again.
            holds: Tells whether what they were rendered from holds as long as the file is locked. Asked once they
                are written and the disk is at work; what is rendered after that is not asked about.
            is_synced_next: Whether the caller is going to sync them.
            wait: Whether to wait.

        Raises:
            OSError: The file is as it was; or it is not, and `problem` says so.
        """
        while self._lock(wait=wait):
            begin = self.end
            try:
                self._write(render().encode(), starts=is_synced_next)
                is_there = self._is_in_place()
                if is_there and holds():
                    return True
                self._take_back(begin)
                if is_there:
                    self._write(render().encode(), starts=is_synced_next)
                    return True
            except BaseException:
                self._mend(begin)
                raise
            finally:
                unlock(self._descriptor)
            self.open(self._place)
        return False

    def _lock(self, *, wait: bool) -> bool:
        """Lock the file; whoever replaces it, by their own lock, makes the old one longer first.

        The file's own times are not looked at: once somebody saw them, a file system may give the next write new
        ones, which the sync has to write as well.
        """
        while True:
            if not try_lock(self._descriptor, wait=wait):
                return False
            length = os.lseek(self._descriptor, 0, os.SEEK_END)
            if length == self._length:
                return True
            if self._inode_there() == self._inode:
                if length < self.end:
                    self._end_at(length)
                self._length = max(length, self.end)
                return True
            unlock(self._descriptor)
            self.open(self._place)

    def _end_at(self, length: int) -> None:
        """Go on where somebody has cut the file off: without a gap, and on a line of its own."""
        self.end = length
        if length and read_at(self._descriptor, 1, length - 1) != b"\n":
            write_at(self._descriptor, b"\n", length)
            self.end += 1

    def _is_in_place(self) -> bool:
        """Tell whether nobody has removed the file, which the folder tells."""
        changed = folder_time(self._folder)
        if 0 < changed == self._changed:
            return True
        if self._inode_there() != self._inode:
            return False
        self._changed = changed
        return True

    def _inode_there(self) -> int:
        try:
            return os.stat(self._place).st_ino  # noqa: PTH116 - a string, for `os.open`
        except FileNotFoundError:
            return 0

    def _write(self, data: bytes, *, starts: bool) -> None:
        end = self.end + len(data)
        if end > self._length and self._is_synced:
            data += _ROOM
        os.lseek(self._descriptor, self.end, os.SEEK_SET)
        write_all(self._descriptor, data)
        if starts and self._is_synced:
            start_writing(self._descriptor, self.end, end)
        self._length = max(self._length, self.end + len(data))
        self.end = end

    def _take_back(self, begin: int) -> None:
        os.ftruncate(self._descriptor, begin)
        self.end = self._length = begin

    def _mend(self, begin: int) -> None:
        try:
            self._take_back(begin)
        except OSError as error:
            self.problem = f"{self._folder}: cannot be written or mended ({error.strerror})."

    def trim(self) -> None:
        """Cut off the empty lines behind the records."""
        os.ftruncate(self._descriptor, self.end)

    def clear(self) -> None:
        """Remove all records."""
        self._lock(wait=True)
        try:
            os.ftruncate(self._descriptor, 0)
            self.end = self._length = 0
        finally:
            unlock(self._descriptor)

    # Syncs, without the journal's mutex

    def hold(self) -> int:
        """Return the descriptor, which stays open until `release`."""
        self._syncing += 1
        return self._descriptor

    def release(self) -> None:
        """Let go of a descriptor that was held."""
        self._syncing -= 1
        self._close_retired()

    def _close_retired(self) -> None:
        """Close files that were replaced, unless one of them is being synced."""
        while self._retired and not self._syncing:
            os.close(self._retired.pop())

    def close(self) -> None:
        """Close the descriptors without a word."""
        for descriptor in (*self._retired, self._descriptor):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._retired, self._descriptor = [], -1
