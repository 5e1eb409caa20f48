"""Reliable file operations: complete writes, private modes, no links followed, full syncs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tomldiary.errors import BackendError
from tomldiary.runtime.capabilities import (
    NO_WAITING,
    OURS,
    PRIVATE,
    make_private,
    sync_file,
)

__all__ = [
    "file_on_the_way",
    "file_token",
    "folder_time",
    "is_same",
    "make_folder",
    "read_all",
    "read_file",
    "sync_folder",
    "token_of",
    "write_all",
    "write_new",
]

_PRIVATE = 0o600
_READ = os.O_RDONLY | PRIVATE | NO_WAITING  # does not block on a pipe

FileToken = tuple[int, int, int, int]
"""Identifies a version of a file: modification time, size, inode, change time (times in nanoseconds)."""


def token_of(found: os.stat_result) -> FileToken:
    """Return the token for a result of `stat`."""
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns)


def is_same(one: FileToken | None, two: FileToken | None) -> bool:
    """Return whether two tokens are of one version; the change time is ignored, as a rename changes it."""
    if one is None or two is None:
        return one is two
    return one[:3] == two[:3]


def file_on_the_way(path: str | Path) -> BackendError:
    """Return the error for a path on which a file is in place of a folder."""
    return BackendError(
        f"{path}: a folder on the way is a file. Move that file away, or give another folder."
    )


def file_token(path: str | Path) -> FileToken | None:
    """Return the token of the file at a path; None if there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise file_on_the_way(path) from error
    except OSError as error:
        raise BackendError(
            f"{path}: cannot be inspected ({error.strerror}). Check the permissions."
        ) from error
    # Inlined from `token_of`: this function is called very often.
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns)


def folder_time(path: str) -> int:
    """Return when a name was last added or removed, in nanoseconds: 0 without a folder, -1 if unknown."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - the hot path of every write
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError:
        return -1


def read_file(path: str | Path) -> tuple[bytes, FileToken] | None:
    """Return the content of a regular file and the token of the version read; None if there is no file.

    Raises:
        BackendError: The file cannot be read, or is not a regular file (links are not followed).
    """
    try:
        descriptor = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        hint = (
            "it is a link; put a regular file there"
            if os.path.islink(path)  # noqa: PTH114 - paths are strings in this module
            else error.strerror
        )
        raise BackendError(f"{path}: cannot be read ({hint}).") from error
    try:
        while True:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise BackendError(f"{path}: is not a regular file. Remove it.")
            os.lseek(descriptor, 0, os.SEEK_SET)
            parts: list[bytes] = []
            while part := os.read(descriptor, 1 << 20):
                parts.append(part)
            after = os.fstat(descriptor)
            # An editor that saves in place may have written it meanwhile: read again.
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                return b"".join(parts), token_of(after)
    except OSError as error:
        raise BackendError(f"{path}: cannot be read ({error.strerror}).") from error
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`; short writes are continued."""
    done = os.write(descriptor, data)
    while done < len(data):
        done += os.write(descriptor, memoryview(data)[done:])


def write_new(path: str, data: bytes, *, sync: bool) -> FileToken:
    """Create a new private file with `data`; remove it if that fails.

    Returns:
        The token. After a rename on the same file system, only its change time differs.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | PRIVATE
    descriptor = os.open(path, flags, 0o600)
    try:
        write_all(descriptor, data)
        found = os.fstat(descriptor)
        if found.st_mode & 0o777 != _PRIVATE:  # an unusual umask
            make_private(descriptor)
        if sync:
            sync_file(descriptor)
    except BaseException:
        os.close(descriptor)
        Path(path).unlink(missing_ok=True)
        raise
    os.close(descriptor)
    return token_of(found)


def read_all(descriptor: int) -> bytes:
    """Return the whole content of an open file."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    parts: list[bytes] = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def make_folder(path: str | Path, *, sync: bool) -> None:
    """Create a private folder and its parents; with `sync`, the parent of each new folder is synced."""
    place = os.fspath(path)
    if os.path.isdir(place):  # noqa: PTH112 - paths are strings here, at the first write of each user
        return
    parent = os.path.dirname(place) or "."  # noqa: PTH120 - see above
    make_folder(parent, sync=sync)
    try:
        os.mkdir(place, 0o700)  # noqa: PTH102 - see above
    except FileExistsError:
        return
    os.chmod(place, 0o700)  # noqa: PTH101 - see above
    if sync:
        sync_folder(parent)


def sync_folder(path: str | Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | OURS)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)
