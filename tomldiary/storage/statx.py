"""Looks at files that ask for none of their times.

Since Linux 6.13 a file whose times somebody has seen gets a finer one with its next change, and so does whatever is
written right behind it (multigrain timestamps). A sync that had only a record to write has to write the new time of
its file as well then. So whoever changes a file in a moment does not ask for its times.
"""

from __future__ import annotations

import errno
import os
import struct
from functools import lru_cache
from typing import Any

from tomldiary.runtime.capabilities import offers

__all__ = ["look"]

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_WHAT = 0x303  # type, mode, inode and size
_BYTES = 256
_FOUND = struct.Struct("=28xHxxQQ")  # of `struct statx`, alike on all machines
_NOT_HERE = {errno.ENOSYS, errno.EPERM}  # an old system, or a sandbox that does not know the call


def look(path: str, *, follow: bool = False) -> tuple[int, int, int]:
    """Return the mode, the inode and the size of a file; that of a link, unless it is to be followed.

    Raises:
        OSError: It is not there, or cannot be looked at.
    """
    statx = _statx()
    if statx is not None:
        call, make, error = statx
        found = make()
        flags = 0 if follow else _AT_SYMLINK_NOFOLLOW
        if call(_AT_FDCWD, os.fsencode(path), flags, _WHAT, found) == 0:
            return _FOUND.unpack_from(found)
        code = error()
        if code not in _NOT_HERE:
            raise OSError(code, os.strerror(code), path)
    status = os.stat(path, follow_symlinks=follow)  # noqa: PTH116 - paths are strings here
    return status.st_mode, status.st_ino, status.st_size


@lru_cache(maxsize=1)
def _statx() -> tuple[Any, Any, Any] | None:
    """Return the system's call, what makes room for its answer, and what tells its errors; None if there is none."""
    if not offers("statx"):
        return None
    import ctypes  # noqa: PLC0415 - only writers need it

    call = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if call is None:
        return None
    call.argtypes = [
        ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p,
    ]  # fmt: skip
    return call, ctypes.c_char * _BYTES, ctypes.get_errno
