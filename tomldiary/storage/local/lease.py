"""Whether somebody is just saving a file, which its text cannot tell: half a document is one, too.

An editor that stands still between opening a file, emptying it and writing it has it open for writing. Linux
tells: a read lease is refused on such a file, and whoever opens it under a lease waits until that is given back
(fcntl(2), "Leases"). Elsewhere nothing is known, and nobody waits.
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

_LONGEST = 60.0  # seconds; a program that keeps a file open for ever is not saving it all the time
_AWAY = 1.0  # seconds; some editors take the old file away before they write the new one
_IGNORED = int(getattr(signal, "SIGURG", 0))
_FLAGS = os.O_RDONLY | PRIVATE | NO_WAITING


def is_being_saved(path: str) -> bool:
    """Tell whether a program has a file open for writing that was last changed less than a minute ago.

    A file that is not there is being saved if it was taken away less than a second ago.
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
    """A file that nobody opens for writing until `let_go`: whoever tries waits until then.

    Raises:
        OSError: It cannot be opened.
    """

    __slots__ = ("_descriptor", "has_writer", "is_leased", "status", "token")

    token: FileToken
    """Which version of the file it is."""
    has_writer: bool
    """Whether somebody had it open for writing already."""
    is_leased: bool
    """Whether nobody can write to it meanwhile, but for one whom the system let in who had waited too long."""
    status: os.stat_result
    """All that the system says of it."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, _FLAGS)
        hide_from_children(self._descriptor)
        try:
            refusal = _lease(self._descriptor)
            self.is_leased = refusal == 0
            # Behind the lease: a writer who was quicker has left a new time, or is seen.
            self.status = os.fstat(self._descriptor)
            self.token = token_of(self.status)
            self.has_writer = refusal == errno.EAGAIN and _means_something(path)
        except BaseException:
            close_hidden(self._descriptor)
            raise

    def is_wanted(self) -> bool:
        """Tell whether somebody waits to open the file for writing."""
        return self.is_leased and _is_lease_broken(self._descriptor)

    def let_go(self) -> None:
        """Let everybody have the file."""
        if self.is_leased:
            _let_go_of_lease(self._descriptor)
        close_hidden(self._descriptor)


def _is_lease_broken(descriptor: int) -> bool:
    """Tell whether somebody waits for a lease that was taken, or was let in after a long time."""
    if not _HAS_LEASES:
        return False
    return fcntl.fcntl(descriptor, fcntl.F_GETLEASE) != fcntl.F_RDLCK


def _let_go_of_lease(descriptor: int) -> None:
    """Give a lease back, which is not left to closing the file: a process forked meanwhile would keep it."""
    if _HAS_LEASES:
        try:  # noqa: SIM105 - the hot path of every write
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            pass  # a process that is stopped loses it after a while


def _lease(descriptor: int) -> int:
    """Take a read lease and return 0, or the error number: EAGAIN if a program has the file open for writing.

    Under the lease, a program that opens the file for writing waits.
    """
    if not _HAS_LEASES:
        return errno.ENOSYS
    try:
        # Whoever opens the file meanwhile makes the system send a signal: one that is ignored.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, _IGNORED)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


def _means_something(path: str) -> bool:
    """Tell whether a refusal says anything: network file systems may refuse every lease."""
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
