"""Whether somebody is just saving a file, which its text cannot tell: half a document is one, too.

An editor that stands still between emptying a file and writing it still has it open for writing. Linux tells:
a read lease is refused on such a file (fcntl(2), "Leases").
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from tomldiary.backends.files import folder_time, token_of

if sys.platform == "linux":
    import fcntl

if TYPE_CHECKING:
    from tomldiary.backends.files import FileToken

__all__ = ["is_being_saved", "quiet_token"]

_LONGEST = 60.0  # seconds; a program that keeps a file open for ever is not saving it all the time
_AWAY = 1.0  # seconds; some editors take the old file away before they write the new one
_FLAGS = sum({getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK")})


def is_being_saved(path: str) -> bool:
    """Tell whether a program has a file open for writing that was last changed less than a minute ago.

    A file that is not there is being saved if it was taken away less than a second ago. False where the
    system cannot tell, which only Linux can.
    """
    folder = os.path.dirname(path)  # noqa: PTH120 - paths are strings here
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        return 0 <= time.time() - folder_time(folder) / 1e9 < _AWAY
    except OSError:
        return False
    try:
        age = time.time() - os.fstat(descriptor).st_mtime
        return 0 <= age < _LONGEST and _has_writer(descriptor) and _is_told(folder)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def quiet_token(path: str) -> FileToken | None:
    """Return the token of a file; None if somebody has it open for writing, or nobody can tell."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        # In this order: whoever had written and closed it before has left a new time.
        if _has_writer(descriptor) and _is_told(os.path.dirname(path)):  # noqa: PTH120 - the hot path of every write
            return None
        return token_of(os.fstat(descriptor))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _has_writer(descriptor: int) -> bool:
    """Tell whether somebody has a file open for writing; False where that cannot be told."""
    if sys.platform != "linux":
        return False
    try:
        # Who opens the file while we have the lease makes the system send a signal: one that is ignored.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN  # else it is not our file, or of a kind without leases
    # Not left to closing it: a process forked meanwhile would keep the lease.
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def _is_told(folder: str) -> bool:
    """Tell whether the answer means anything: network file systems may refuse every lease."""
    import tempfile  # noqa: PLC0415 - slow to import, and hardly ever needed

    try:
        with tempfile.TemporaryFile(dir=folder) as nobodys:
            descriptor = os.open(f"/proc/self/fd/{nobodys.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return not _has_writer(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return False
