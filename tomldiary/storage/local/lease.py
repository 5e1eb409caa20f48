"""Read leases: detect that another program is saving a file, and delay new writers.

The text alone cannot show this, as half a document may also parse. An editor that pauses during a save has the file
open for writing. Linux refuses a read lease on such a file. A program that opens a leased file for writing waits
until the lease is released (fcntl(2), "Leases"). On other systems no writer is detected, and no program waits.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from tomldiary.runtime.capabilities import NO_WAITING, OURS, PRIVATE, offers
from tomldiary.runtime.fork_safety import close_hidden, hide_from_children
from tomldiary.storage.files import folder_time, token_of

if sys.platform == "linux":
    import fcntl

_HAS_LEASES = offers("leases")

if TYPE_CHECKING:
    from tomldiary.storage.files import FileToken

__all__ = ["Held", "is_being_saved"]

_LONGEST = 60.0  # seconds; a program may keep a file open for writing without saving it
_AWAY = 1.0  # seconds; some editors remove the old file before they write the new one
_IGNORED = int(getattr(signal, "SIGURG", 0))
_FLAGS = os.O_RDONLY | PRIVATE | NO_WAITING


def is_being_saved(path: str) -> bool:
    """Return whether a program has a file open for writing that was changed less than a minute ago.

    A missing file counts as being saved if its folder changed less than a second ago.
    """
    try:
        held = Held(path)
    except FileNotFoundError:
        folder = os.path.dirname(path)  # noqa: PTH120 - paths are strings here
        return 0 <= time.time() - folder_time(folder) / 1e9 < _AWAY
    except OSError:
        return False
    held.let_go()
    return held.has_writer and 0 <= time.time() - held.token[0] / 1e9 < _LONGEST


class Held:
    """A file under a read lease: programs that open it for writing wait until `let_go`.

    Raises:
        OSError: The file cannot be opened.
    """

    __slots__ = ("_descriptor", "has_writer", "is_leased", "status", "token")

    token: FileToken
    """The version of the file."""
    has_writer: bool
    """Whether another program already had the file open for writing."""
    is_leased: bool
    """Whether the lease was granted. The system breaks a lease if a writer has waited too long."""
    status: os.stat_result
    """The file status, read under the lease."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, _FLAGS)
        hide_from_children(self._descriptor)
        try:
            refusal = _lease(self._descriptor)
            self.is_leased = refusal == 0
            # After the lease: an earlier writer has changed the time, or the lease was refused.
            self.status = os.fstat(self._descriptor)
            self.token = token_of(self.status)
            self.has_writer = refusal == errno.EAGAIN and _means_something(path)
        except BaseException:
            close_hidden(self._descriptor)
            raise

    def is_wanted(self) -> bool:
        """Return whether another process is breaking our lease."""
        return self.is_leased and _is_lease_broken(self._descriptor)

    def let_go(self) -> None:
        """Release the lease and close the file."""
        if self.is_leased:
            _let_go_of_lease(self._descriptor)
        close_hidden(self._descriptor)


def _is_lease_broken(descriptor: int) -> bool:
    """Return whether a writer waits for our lease to end, or was admitted after the system's time limit."""
    if not _HAS_LEASES:
        return False
    return fcntl.fcntl(descriptor, fcntl.F_GETLEASE) != fcntl.F_RDLCK


def _let_go_of_lease(descriptor: int) -> None:
    """Release a lease; closing the file is not enough, as a child forked meanwhile would keep it."""
    if _HAS_LEASES:
        try:  # noqa: SIM105 - the hot path of every write
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            pass  # the system has broken the lease, as it does when a process is stopped for long


def _lease(descriptor: int) -> int:
    """Take a read lease; return 0, or an error number: EAGAIN if a program has the file open for writing.

    Under the lease, a program that opens the file for writing waits.
    """
    if not _HAS_LEASES:
        return errno.ENOSYS
    try:
        # A program that opens the file makes the system send a signal: choose one that is ignored.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, _IGNORED)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


def _means_something(path: str) -> bool:
    """Return whether the file system grants leases at all: network file systems may refuse each one."""
    import tempfile  # noqa: PLC0415 - slow to import, and hardly ever needed

    try:
        folder = os.path.dirname(path)  # noqa: PTH120 - paths are strings here
        with tempfile.TemporaryFile(dir=folder) as nobodys:
            descriptor = os.open(f"/proc/self/fd/{nobodys.fileno()}", os.O_RDONLY | OURS)
        try:
            return _lease(descriptor) == 0
        finally:
            os.close(descriptor)
    except OSError:
        return False
