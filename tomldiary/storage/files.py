"""File operations that keep their word: whole writes, private modes, no links followed, syncs that count."""

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
_READ = os.O_RDONLY | PRIVATE | NO_WAITING  # waits for no pipe

FileToken = tuple[int, int, int, int]
"""What tells one version of a file from the next: when it was written, its size, its inode, and when anything of it was changed."""


def token_of(found: os.stat_result) -> FileToken:
    """Return the token for what `stat` found."""
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns)


def is_same(one: FileToken | None, two: FileToken | None) -> bool:
    """Tell whether two tokens are of one version, which may have been renamed: that only changes the change time."""
    if one is None or two is None:
        return one is two
    return one[:3] == two[:3]


def file_on_the_way(path: str | Path) -> BackendError:
    """Return the error for a path on which a file stands where a folder should be."""
    return BackendError(
        f"{path}: a folder on the way is a file. Move that file away, or give another folder."
    )


def file_token(path: str | Path) -> FileToken | None:
    """Return the token of what is there now; None if nothing is."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise file_on_the_way(path) from error
    except OSError as error:
        raise BackendError(
            f"{path}: cannot be looked at ({error.strerror}). Check the permissions."
        ) from error
    # As `token_of`, which would be one more call for each of very many looks.
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns)


def folder_time(path: str) -> int:
    """Return when a name was last added to a folder or taken away: 0 if there is none, -1 if nobody can tell."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - the hot path of every write
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError:
        return -1


def read_file(path: str | Path) -> tuple[bytes, FileToken] | None:
    """Read a regular file and the token of the version that was read; None if there is none.

    Raises:
        BackendError: Not readable, or not a regular file (links are not followed).
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
            # An editor that saves in place may have been at it meanwhile: read again.
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                return b"".join(parts), token_of(after)
    except OSError as error:
        raise BackendError(f"{path}: cannot be read ({error.strerror}).") from error
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`; a short write is continued, never taken for a whole one."""
    done = os.write(descriptor, data)
    while done < len(data):
        done += os.write(descriptor, memoryview(data)[done:])


def write_new(path: str, data: bytes, *, sync: bool) -> FileToken:
    """Create a private file that did not exist and fill it; removed again if that fails.

    Returns the token, which also holds once the file was renamed on the same file system, but for
    the change time.
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
    """Return all of an open file."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    parts: list[bytes] = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def make_folder(path: str | Path, *, sync: bool) -> None:
    """Create a private folder and its parents, each synced into the one above."""
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
