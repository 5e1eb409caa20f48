"""Capabilities of the operating system beyond Python's portable functions, detected at run time.

Importing the package and using `"memory:"` requires none of them. The environment variable `TOMLDIARY_WITHOUT`, a list
such as `exchange,leases`, disables capabilities:

exchange   exchange two files atomically (Linux `renameat2`, macOS `renamex_np`)
leases     detect whether another program has a file open for writing (Linux)
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.platform == "linux":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "OTHER_OWNER_REMEDY",
    "OURS",
    "PRIVATE",
    "READING",
    "drop_lease",
    "exchange",
    "keeps_lease",
    "offers",
    "other_owner",
    "set_mode",
    "sync_data",
    "sync_file",
    "take_lease",
]

_WHERE = {
    "exchange": ("linux", "darwin"),
    "leases": ("linux",),
}
OURS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
"""Flags of `os.open` for binary mode and a descriptor that child processes do not inherit."""
PRIVATE = OURS | getattr(os, "O_NOFOLLOW", 0)
"""The flags of `OURS`, and one that refuses symbolic links."""
READING = os.O_RDONLY | PRIVATE | getattr(os, "O_NONBLOCK", 0)
"""The flags of `PRIVATE` for reading, and one that does not wait for a pipe or a lease."""


_NOT_HERE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOTTY}


def offers(capability: str) -> bool:
    """Return whether this system has a capability that is not disabled; see the module for the names."""
    without = os.environ.get("TOMLDIARY_WITHOUT", "")
    return sys.platform in _WHERE[capability] and capability not in without.split(",")


def set_mode(descriptor: int, mode: int) -> None:
    """Set the permissions of an open file, on systems with file modes; this also updates its change time.

    Raises:
        OSError: The mode could not be changed.
    """
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, mode)


def sync_file(descriptor: int) -> None:
    """Sync a file or folder to disk; on macOS, also flush the cache of the disk.

    Raises:
        OSError: The sync failed, and the file or folder may not be on disk.
    """
    if not _full_sync(descriptor):
        os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """Sync the content of a file so that it survives a power cut; see `sync_file`."""
    if not _full_sync(descriptor):
        getattr(os, "fdatasync", os.fsync)(descriptor)


def _full_sync(descriptor: int) -> bool:
    """Flush a file and the disk cache on macOS with `F_FULLFSYNC`; return False where this is not supported.

    On macOS, `fsync` does not flush the disk cache. A file system without `F_FULLFSYNC`, such as a network file system,
    needs `fsync`.

    Raises:
        OSError: The disk failed.
    """
    if sys.platform != "darwin":
        return False
    fcntl: Any = import_module("fcntl")
    command = getattr(fcntl, "F_FULLFSYNC", None)
    if command is None:
        return False
    try:
        fcntl.fcntl(descriptor, command)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return False
        raise
    return True


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # as RENAME_SWAP of macOS
_CALL = {"linux": "renameat2", "darwin": "renamex_np"}
_CANNOT_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


def exchange(one: str, two: str) -> bool:
    """Exchange two files atomically; return False if the file system does not support this.

    Raises:
        OSError: The exchange failed.
    """
    call = _exchange_call()
    if call is None:
        return False
    if call(os.fsencode(one), os.fsencode(two)) == 0:
        return True
    import ctypes  # noqa: PLC0415 - see _exchange_call

    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), two)


@lru_cache(maxsize=1)
def _exchange_call() -> Callable[[bytes, bytes], int] | None:
    """Return the system's exchange call, or None; the call returns 0 on success, and otherwise sets `errno`."""
    import ctypes  # noqa: PLC0415 - slow to import, and only writers need it

    name, is_mac = _CALL.get(sys.platform, ""), sys.platform == "darwin"
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None) if name else None
    if call is None:
        return None
    here = [] if is_mac else [ctypes.c_int]
    call.argtypes = [*here, ctypes.c_char_p, *here, ctypes.c_char_p, ctypes.c_uint]
    if is_mac:
        return lambda one, two: call(one, two, _RENAME_EXCHANGE)
    return lambda one, two: call(_AT_FDCWD, one, _AT_FDCWD, two, _RENAME_EXCHANGE)


_IGNORED = int(getattr(signal, "SIGURG", 0))


def take_lease(descriptor: int) -> int:
    """Take a read lease; return 0, or an error number: EAGAIN if a program has the file open for writing.

    While the lease is held, a program that opens the file for writing waits.
    """
    if sys.platform != "linux":
        return errno.ENOSYS
    try:
        # If a program opens the file, the system sends a signal to this process. Choose a signal that is ignored.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, _IGNORED)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


def keeps_lease(descriptor: int) -> bool:
    """Return whether the lease is intact: no program waits to write the file, and the system has not ended it."""
    return sys.platform != "linux" or fcntl.fcntl(descriptor, fcntl.F_GETLEASE) == fcntl.F_RDLCK


def drop_lease(descriptor: int) -> None:
    """Release a lease; closing the file is not enough, because a child forked meanwhile would keep the lease."""
    if sys.platform == "linux":
        try:  # noqa: SIM105 - the hot path of every write
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            pass  # the system has ended the lease, which happens if a process is stopped for long


OTHER_OWNER_REMEDY = (
    "Keep only one of them: run python -m pip uninstall tomldiary, and then reinstall tomldiary-kit with"
    " --force-reinstall, because the two share files."
)


def other_owner() -> str | None:
    """Return another installed distribution with the package `tomldiary`, such as "tomldiary 0.9.0", or None.

    The function lists the folder that contains the package, which is much faster than `importlib.metadata`.
    """
    try:
        names = os.listdir(__file__.rsplit(os.sep, 3)[0])  # noqa: PTH208 - at each import
    except OSError:  # the package is in a zip file, for instance
        return None
    for name in names:
        # The folder of tomldiary-kit is "tomldiary_kit-….dist-info".
        if name.startswith("tomldiary-") and name.endswith((".dist-info", ".egg-info")):
            return name.rpartition(".")[0].replace("-", " ", 1)
    return None
