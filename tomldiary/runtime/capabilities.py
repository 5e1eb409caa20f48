"""What the operating system offers beyond Python's portable calls: looked up, never assumed.

Nothing here is needed to import the package or to use `"memory:"`. `TOMLDIARY_WITHOUT`, a list such as
`exchange,leases`, switches capabilities off, as they are on a system that has none of them:

exchange   two files change places in one step (Linux `renameat2`, macOS `renamex_np`)
leases     the system says whether another program has a file open for writing (Linux)
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
"""Flags of `os.open`: bytes as they are, and no child inherits the descriptor."""
PRIVATE = OURS | getattr(os, "O_NOFOLLOW", 0)
"""The same, and a link is not followed."""
NO_WAITING = getattr(os, "O_NONBLOCK", 0)
"""A flag of `os.open`: neither a pipe nor a lease is waited for."""


_NOT_HERE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOTTY}


def offers(capability: str) -> bool:
    """Return whether this system has a capability that is not switched off; see the module's list."""
    without = os.environ.get("TOMLDIARY_WITHOUT", "")
    return sys.platform in _WHERE[capability] and capability not in without.split(",")


def make_private(descriptor: int) -> None:
    """Let only the file's owner read or write it, where files have modes.

    Raises:
        OSError: They have, and the mode was not changed.
    """
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, 0o600)


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Read up to `length` bytes at an offset; where there is no `pread`, the position is moved."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, length)


def write_at(descriptor: int, data: bytes, offset: int) -> int:
    """Write at an offset and return how much; where there is no `pwrite`, the position is moved."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


def sync_file(descriptor: int) -> None:
    """Return when a file or folder is on the disk; on macOS also out of the disk's own cache.

    Raises:
        OSError: It may not be.
    """
    if not full_sync(descriptor):
        os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """Return when a file's content can be read after a power cut; see `sync_file`."""
    if not full_sync(descriptor):
        getattr(os, "fdatasync", os.fsync)(descriptor)


def full_sync(descriptor: int) -> bool:
    """Empty the disk's cache as well, where `fsync` does not (macOS, `F_FULLFSYNC`); return whether that was done.

    A file system without it, such as one on a network, is left to `fsync`.

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
    """Return the other distribution that owns the package `tomldiary` here, such as "tomldiary 0.9.0", or None.

    It lists the names beside the package, which is much cheaper than `importlib.metadata`.
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
