"""Read leases: detect that another program is saving a file, and delay new writers.

The text alone cannot show this, as half a document may also parse. An editor that pauses during a save has the file
open for writing. Linux refuses a read lease on such a file. A program that opens a leased file for writing waits
until the lease is released (fcntl(2), "Leases"). On other systems no writer is detected, and no program waits.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from tomldiary.runtime.capabilities import NO_WAITING, OURS, PRIVATE
from tomldiary.runtime.fork_safety import close_hidden, hide_from_children
from tomldiary.storage.files import FileSystem, FileToken, token_of

if TYPE_CHECKING:
    from tomldiary.storage.environment import Environment

__all__ = ["Held", "is_being_saved"]

_LONGEST = 60.0  # seconds; a program may keep a file open for writing without saving it
_AWAY = 1.0  # seconds; some editors remove the old file before they write the new one
_FLAGS = os.O_RDONLY | PRIVATE | NO_WAITING


def is_being_saved(env: Environment, path: str) -> bool:
    """Return whether a program has a file open for writing that was changed less than a minute ago.

    A missing file counts as being saved if its folder changed less than a second ago.
    """
    try:
        held = Held(env.files, path)
    except FileNotFoundError:
        folder = os.path.dirname(path)  # noqa: PTH120 - paths are strings here
        return 0 <= env.clock.time() - env.files.folder_time(folder) / 1e9 < _AWAY
    except OSError:
        return False
    held.let_go()
    return held.has_writer and 0 <= env.clock.time() - held.token[0] / 1e9 < _LONGEST


class Held:
    """A file under a read lease: programs that open it for writing wait until `let_go`.

    Raises:
        OSError: The file cannot be opened.
    """

    __slots__ = ("_descriptor", "_files", "has_writer", "is_leased", "status", "token")

    token: FileToken
    """The version of the file."""
    has_writer: bool
    """Whether another program already had the file open for writing."""
    is_leased: bool
    """Whether the lease was granted. The system breaks a lease if a writer has waited too long."""
    status: os.stat_result
    """The file status, read under the lease."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._descriptor = files.open(path, _FLAGS)
        hide_from_children(self._descriptor)
        try:
            refusal = files.take_lease(self._descriptor) if files.has_leases else errno.ENOSYS
            self.is_leased = refusal == 0
            # After the lease: an earlier writer has changed the time, or the lease was refused.
            self.status = files.fstat(self._descriptor)
            self.token = token_of(self.status)
            self.has_writer = refusal == errno.EAGAIN and _means_something(files, path)
        except BaseException:
            close_hidden(self._descriptor, files.close)
            raise

    def is_wanted(self) -> bool:
        """Return whether another process is breaking our lease."""
        return self.is_leased and not self._files.keeps_lease(self._descriptor)

    def let_go(self) -> None:
        """Release the lease and close the file."""
        if self.is_leased:
            self._files.drop_lease(self._descriptor)
        close_hidden(self._descriptor, self._files.close)


def _means_something(files: FileSystem, path: str) -> bool:
    """Return whether the file system grants leases at all: network file systems may refuse each one."""
    import tempfile  # noqa: PLC0415 - slow to import, and hardly ever needed

    try:
        folder = os.path.dirname(path)  # noqa: PTH120 - paths are strings here
        with tempfile.TemporaryFile(dir=folder) as nobodys:
            descriptor = os.open(f"/proc/self/fd/{nobodys.fileno()}", os.O_RDONLY | OURS)
        try:
            return files.take_lease(descriptor) == 0
        finally:
            os.close(descriptor)
    except OSError:
        return False
