"""The file operations of storage as one interface, so that tests can record, refuse or interrupt them.

Writes are complete, new files are private, no link is followed, and a sync reaches the disk.
"""

from __future__ import annotations

import os
import shutil
import stat
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tomldiary.errors import BackendError
from tomldiary.runtime import capabilities
from tomldiary.runtime.capabilities import OURS, PRIVATE, READING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FileSystem", "FileToken", "file_on_the_way", "is_same", "token_of"]

_PRIVATE = 0o600

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
    """Return the error for a path with a file in place of a parent folder."""
    return BackendError(
        f"{path}: a parent folder is a file. Move that file away, or give another folder."
    )


def _scandir(path: str | Path) -> Iterator[os.DirEntry[str]]:
    return os.scandir(os.fspath(path))


def _open_to_read(path: str | Path) -> IO[bytes]:
    return Path(path).open("rb", buffering=0)


class FileSystem:
    """The file operations of storage: calls of the system, and operations composed of them.

    A subclass may override any call. It then sees each change that storage makes to a file.
    """

    # Calls of the system; those with a name of `os` are its functions.

    chmod = staticmethod(os.chmod)
    close = staticmethod(os.close)
    dup = staticmethod(os.dup)
    fstat = staticmethod(os.fstat)
    ftruncate = staticmethod(os.ftruncate)
    link = staticmethod(os.link)
    listdir = staticmethod(os.listdir)
    lseek = staticmethod(os.lseek)
    lstat = staticmethod(os.lstat)
    mkdir = staticmethod(os.mkdir)
    open = staticmethod(os.open)
    read = staticmethod(os.read)
    replace = staticmethod(os.replace)
    rmdir = staticmethod(os.rmdir)
    scandir = staticmethod(_scandir)
    stat = staticmethod(os.stat)
    truncate = staticmethod(os.truncate)
    unlink = staticmethod(os.unlink)
    write = staticmethod(os.write)
    open_to_read = staticmethod(_open_to_read)
    drop_lease = staticmethod(capabilities.drop_lease)
    exchange = staticmethod(capabilities.exchange)
    keeps_lease = staticmethod(capabilities.keeps_lease)
    set_mode = staticmethod(capabilities.set_mode)
    sync_data = staticmethod(capabilities.sync_data)
    sync_file = staticmethod(capabilities.sync_file)
    take_lease = staticmethod(capabilities.take_lease)

    @cached_property
    def has_exchange(self) -> bool:
        """Whether `exchange` may succeed; without it, a hand edit at the instant of a write can be lost."""
        return capabilities.offers("exchange")

    @cached_property
    def has_leases(self) -> bool:
        """Whether `take_lease` may succeed; without it, no writer is detected."""
        return capabilities.offers("leases")

    def identity(self, folder: str | Path) -> str:
        """Return an identifier of a folder; a copy, or a disk that is mounted elsewhere, has a different one.

        Raises:
            OSError: The folder does not exist.
        """
        found = self.stat(folder)
        return f"{found.st_dev} {found.st_ino}"

    def remove_tree(self, folder: str | Path) -> None:
        """Remove a folder and everything in it; links in it are removed, not their targets."""
        shutil.rmtree(folder)  # a Temporal workflow refuses a reference to the function itself

    # Inspecting

    def free_bytes(self, folder: str | Path) -> int:
        """Return the free space of a folder's disk, in bytes."""
        return shutil.disk_usage(folder).free

    def free_inodes(self, folder: str | Path) -> int | None:
        """Return how many more files the folder's file system can hold, or None if it has no limit."""
        found = os.statvfs(folder)
        return found.f_favail if found.f_files else None

    def mode(self, path: str | Path) -> int:
        """Return the type and the permissions of a file, or 0 if there is none; links are not followed."""
        try:
            return self.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def exists(self, path: str | Path) -> bool:
        """Return whether a path is a file, a folder or a link."""
        return bool(self.mode(path))

    def is_link(self, path: str | Path) -> bool:
        """Return whether a path is a link."""
        return stat.S_ISLNK(self.mode(path))

    def is_folder(self, path: str | Path) -> bool:
        """Return whether a path is a folder, or a link to one."""
        try:
            return stat.S_ISDIR(self.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def token(self, path: str | Path) -> FileToken | None:
        """Return the token of the file at a path; None if there is none."""
        try:
            found = self.lstat(path)
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

    def folder_time(self, path: str) -> int:
        """Return when a name was last added or removed, in nanoseconds; 0 without a folder, -1 if unknown."""
        try:
            return self.stat(path).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except OSError:
            return -1

    def paths_in(self, folder: Path) -> list[Path]:
        """Return the paths of all files in a folder; none if there is no folder."""
        try:
            return [folder / name for name in self.listdir(folder)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    # Reading

    def read_file(self, path: str | Path) -> tuple[bytes, FileToken] | None:
        """Return the content of a regular file and the token of the version read; None if there is no file.

        Raises:
            BackendError: The file cannot be read, or is not a regular file (links are not followed).
        """
        try:
            descriptor = self.open(path, READING)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            hint = (
                "it is a link; put a regular file there" if self.is_link(path) else error.strerror
            )
            raise BackendError(f"{path}: cannot be read ({hint}).") from error
        try:
            while True:
                before = self.fstat(descriptor)
                if not stat.S_ISREG(before.st_mode):
                    raise BackendError(f"{path}: is not a regular file. Remove it.")
                data = self.read_all(descriptor)
                after = self.fstat(descriptor)
                # An editor that saves in place may have changed the file during the read, so read it again.
                if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                    return data, token_of(after)
        except OSError as error:
            raise BackendError(
                f"{path}: cannot be read ({error.strerror}). Check the permissions."
            ) from error
        finally:
            self.close(descriptor)

    def content(self, path: str | Path) -> bytes:
        """Return the content of a regular file; b"" if there is none.

        Raises:
            BackendError: See `read_file`.
        """
        found = self.read_file(path)
        return found[0] if found is not None else b""

    def read_all(self, descriptor: int) -> bytes:
        """Return the whole content of an open file."""
        self.lseek(descriptor, 0, os.SEEK_SET)
        parts: list[bytes] = []
        while part := self.read(descriptor, 1 << 20):
            parts.append(part)
        return b"".join(parts)

    def read_at(self, descriptor: int, length: int, offset: int) -> bytes:
        """Return up to `length` bytes at an offset of an open file; its position moves."""
        self.lseek(descriptor, offset, os.SEEK_SET)
        return self.read(descriptor, length)

    # Writing

    def write_all(self, descriptor: int, data: bytes | memoryview) -> None:
        """Write all of `data`; short writes are continued."""
        done = self.write(descriptor, data)
        while done < len(data):
            done += self.write(descriptor, memoryview(data)[done:])

    def write_new(self, path: str, data: bytes, *, sync: bool) -> FileToken:
        """Create a new private file with `data`; remove it if that fails.

        Returns:
            The token. After a rename on the same file system, only its change time differs.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | PRIVATE
        descriptor = self.open(path, flags, 0o600)
        try:
            self.write_all(descriptor, data)
            found = self.fstat(descriptor)
            if found.st_mode & 0o777 != _PRIVATE:  # an unusual umask
                self.make_private(descriptor)
            if sync:
                self.sync_file(descriptor)
        except BaseException:
            self.close(descriptor)
            self.discard(path)
            raise
        self.close(descriptor)
        return token_of(found)

    def write_over(self, path: Path, data: bytes | None, *, sync: bool) -> None:
        """Create or replace a file atomically; None removes it. The caller holds a lock that excludes other writers.

        With `sync`, the change is on disk when this returns, and a power cut cannot restore older content.
        """
        temp = path.with_name(f".{path.name}.tmp")
        self.discard(temp)  # left by a killed process
        if data is None:
            self.discard(path)
        else:
            self.write_new(str(temp), data, sync=sync)
            self.replace(temp, path)
        if sync:
            self.sync_folder(path.parent)

    def append(self, path: Path, data: bytes) -> os.stat_result:
        """Append to an existing file, and return its status afterwards."""
        descriptor = self.open(path, os.O_WRONLY | os.O_APPEND | PRIVATE)
        try:
            self.write_all(descriptor, data)
            return self.fstat(descriptor)
        finally:
            self.close(descriptor)

    def make_private(self, descriptor: int) -> None:
        """Restrict an open file to its owner, on systems with file modes."""
        self.set_mode(descriptor, _PRIVATE)

    def make_folder(self, path: str | Path, *, sync: bool) -> None:
        """Create a private folder and its parents; with `sync`, the parent of each new folder is synced."""
        place = os.fspath(path)
        if self.is_folder(place):
            return
        parent = os.path.dirname(place) or "."  # noqa: PTH120 - paths are strings here, at the first write of each user
        self.make_folder(parent, sync=sync)
        try:
            self.mkdir(place, 0o700)
        except FileExistsError:
            return
        self.chmod(place, 0o700)
        if sync:
            self.sync_folder(parent)

    def sync_folder(self, path: str | Path) -> None:
        """Make the names in a folder durable."""
        self.sync_path(path)

    def sync_path(self, path: str | Path, flags: int = OURS) -> None:
        """Make a file or the names in a folder durable; with the flags `PRIVATE`, a link is refused."""
        descriptor = self.open(path, os.O_RDONLY | flags)
        try:
            self.sync_file(descriptor)
        finally:
            self.close(descriptor)

    def discard(self, path: str | Path) -> None:
        """Remove a file if it exists."""
        try:  # noqa: SIM105 - the hot path of every write
            self.unlink(path)
        except FileNotFoundError:
            pass
