"""Capabilities of the operating system beyond Python's portable calls, detected at run time.

The package can be imported, and `"memory:"` used, without any of them. The environment variable
`TOMLDIARY_WITHOUT`, a list such as `exchange,leases`, disables capabilities:

exchange   two files are exchanged atomically (Linux `renameat2`, macOS `renamex_np`)
leases     the system reports whether another program has a file open for writing (Linux)
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import Any

__all__ = [
    "NO_WAITING",
    "OTHER_OWNER_REMEDY",
    "OURS",
    "PRIVATE",
    "full_sync",
    "make_private",
    "offers",
    "other_owner",
    "read_at",
    "sync_data",
    "sync_file",
    "write_at",
]

_WHERE = {
    "exchange": ("linux", "darwin"),
    "leases": ("linux",),
}
OURS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
"""Flags of `os.open`: binary mode, and no child inherits the descriptor."""
PRIVATE = OURS | getattr(os, "O_NOFOLLOW", 0)
"""The flags of `OURS`, and a link is not followed."""
NO_WAITING = getattr(os, "O_NONBLOCK", 0)
"""A flag of `os.open`: the call does not wait for a pipe or a lease."""


_NOT_HERE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOTTY}


def offers(capability: str) -> bool:
    """Return whether this system has a capability and it is not disabled; the module lists the names."""
    without = os.environ.get("TOMLDIARY_WITHOUT", "")
    return sys.platform in _WHERE[capability] and capability not in without.split(",")


def make_private(descriptor: int) -> None:
    """Restrict a file to its owner, on systems with file modes.

    Raises:
        OSError: The mode could not be changed.
    """
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, 0o600)


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Read up to `length` bytes at an offset; without `pread`, the file position moves."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, length)


def write_at(descriptor: int, data: bytes, offset: int) -> int:
    """Write at an offset and return the number of bytes; without `pwrite`, the file position moves."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


def sync_file(descriptor: int) -> None:
    """Sync a file or folder to disk; on macOS also flush the cache of the disk.

    Raises:
        OSError: The file or folder may not be on disk.
    """
    if not full_sync(descriptor):
        os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """Sync the content of a file so that it survives a power cut; see `sync_file`."""
    if not full_sync(descriptor):
        getattr(os, "fdatasync", os.fsync)(descriptor)


def full_sync(descriptor: int) -> bool:
    """Flush a file and the disk cache on macOS (`F_FULLFSYNC`), where `fsync` does not; return whether this was done.

    A file system without this command, such as a network file system, needs `fsync`.

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


OTHER_OWNER_REMEDY = (
    "Keep one of them: python -m pip uninstall tomldiary, and then reinstall tomldiary-kit with"
    " --force-reinstall, as the two share files."
)


def other_owner() -> str | None:
    """Return another installed distribution with the package `tomldiary`, such as "tomldiary 0.9.0", or None.

    The function lists the names beside the package, which is much faster than `importlib.metadata`.
    """
    try:
        names = os.listdir(__file__.rsplit(os.sep, 3)[0])  # noqa: PTH208 - at each import
    except OSError:  # in a zip file, for instance
        return None
    for name in names:
        # The folder of tomldiary-kit is "tomldiary_kit-….dist-info".
        if name.startswith("tomldiary-") and name.endswith((".dist-info", ".egg-info")):
            return name.rpartition(".")[0].replace("-", " ", 1)
    return None
