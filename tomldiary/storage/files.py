"""The file operations of storage as one interface, so that tests can record, refuse or interrupt them.

Writes are complete, new files are private, no link is followed, and a sync reaches the disk.

Two capabilities beyond Python's portable functions are used where the system has them. The environment variable
`TOMLDIARY_WITHOUT`, a list such as `exchange,leases`, disables them:

exchange   exchange two files atomically (Linux `renameat2`, macOS `renamex_np`)
leases     detect whether another program has a file open for writing (Linux)
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import sys
from functools import cached_property, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tomldiary.errors import BackendError
from tomldiary.toml.parse import too_large

if sys.platform == "linux":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import FileIO
    from pathlib import Path

OURS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
"""Flags of `os.open` for binary mode and a descriptor that child processes do not inherit."""
PRIVATE = OURS | getattr(os, "O_NOFOLLOW", 0)
"""The flags of `OURS`, and one that refuses symbolic links."""
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # else to open a pipe waits for a program that writes to it
READING = os.O_RDONLY | PRIVATE | _AT_ONCE
"""The flags of `PRIVATE` for reading, and one that does not wait for a pipe or a lease."""
_MODE = 0o600
_WHERE = {"exchange": ("linux", "darwin"), "leases": ("linux",)}
_PERMISSIONS = "Check the permissions."
_SPACE = "Free some space on the disk."
_OPEN_FILES = "Close some files, or raise the limit of open files."
_REMEDIES = {
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.EROFS: "Make the file system writable, or use another folder.",
    errno.ENAMETOOLONG: "Use a shorter name, or a folder with a shorter path.",
    errno.EIO: "Check the disk.",
    errno.ENOLCK: "Move the memory to a local disk: network file systems may have no locks.",
}
"""The next step after an error of the system, by its number."""
_NOT_HERE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOTTY}
_IGNORED = int(getattr(signal, "SIGURG", 0))

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


def unfinished(path: Path) -> Path:
    """Return the temporary file in which `FileSystem.write_over` writes the new version of a file."""
    return path.with_name(f".{path.name}.tmp")


def file_on_the_way(path: str | Path) -> BackendError:
    """Return the error for a path with a file in place of a parent folder."""
    return BackendError(
        f"{path}: a parent folder is a file. Move that file away, or give another folder."
    )


def system_remedy(error: OSError) -> str:
    """Return the next step after an error of the system; "" if the error does not suggest one."""
    return _REMEDIES.get(error.errno or 0, "")


def failed_path(error: BaseException, place: str | Path) -> str | Path:
    """Return the file that a failed operation names, of a rename the one to replace; else `place`."""
    if not isinstance(error, OSError):
        return place
    return error.filename2 or error.filename or place


def file_error(
    place: str | Path, what: str, error: OSError, remedy: str | None = None
) -> BackendError:
    """Return the error for a failed file operation.

    Args:
        place: The file, if the error does not name it.
        what: What failed.
        error: The error of the system.
        remedy: The next step; None takes that of the system's error.
    """
    remedy = system_remedy(error) if remedy is None else remedy
    message = f"{failed_path(error, place)}: {what} ({error.strerror}). {remedy}"
    return BackendError(message.rstrip())


def _unreadable(path: str | Path, error: OSError) -> BackendError:
    if error.errno == errno.ELOOP:  # the flags refuse links
        return BackendError(
            f"{path}: cannot be read (it is a link). Replace it with a regular file, or remove it."
        )
    return file_error(path, "cannot be read", error)


def _scandir(path: str | Path) -> Iterator[os.DirEntry[str]]:
    return os.scandir(os.fspath(path))


def _not_a_file(path: str | Path) -> BackendError:
    return BackendError(
        f"{path}: is not a regular file. Replace it with a regular file, or remove it."
    )


def _open_to_read(path: str | Path) -> FileIO:
    try:
        descriptor = os.open(path, READING)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_file(path)
    return os.fdopen(descriptor, "rb", buffering=0)


def offers(capability: str) -> bool:
    """Return whether this system has a capability that is not disabled; see the module for the names."""
    without = os.environ.get("TOMLDIARY_WITHOUT", "")
    return sys.platform in _WHERE[capability] and capability not in without.split(",")


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # as RENAME_SWAP of macOS
_CALL = {"linux": "renameat2", "darwin": "renamex_np"}
_CANNOT_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


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
    utime = staticmethod(os.utime)
    write = staticmethod(os.write)
    open_to_read = staticmethod(_open_to_read)

    @staticmethod
    def set_mode(descriptor: int, mode: int) -> None:
        """Set the permissions of an open file, on systems with file modes; this also updates its change time.

        Raises:
            OSError: The mode could not be changed.
        """
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, mode)

    @staticmethod
    def sync_file(descriptor: int) -> None:
        """Sync a file or folder to disk; on macOS, also flush the cache of the disk.

        Raises:
            OSError: The sync failed, and the file or folder may not be on disk.
        """
        if not _full_sync(descriptor):
            os.fsync(descriptor)

    @staticmethod
    def sync_data(descriptor: int) -> None:
        """Sync the content of a file so that it survives a power cut; see `sync_file`."""
        if not _full_sync(descriptor):
            getattr(os, "fdatasync", os.fsync)(descriptor)

    @staticmethod
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

    @staticmethod
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

    @staticmethod
    def keeps_lease(descriptor: int) -> bool:
        """Return whether the lease is intact: no program waits to write the file, and the system has not ended it."""
        return sys.platform != "linux" or fcntl.fcntl(descriptor, fcntl.F_GETLEASE) == fcntl.F_RDLCK

    @staticmethod
    def drop_lease(descriptor: int) -> None:
        """Release a lease; closing the file is not enough, because a child forked meanwhile would keep the lease."""
        if sys.platform == "linux":
            try:  # noqa: SIM105 - the hot path of every write
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            except OSError:
                pass  # the system has ended the lease, which happens if a process is stopped for long

    @cached_property
    def has_exchange(self) -> bool:
        """Whether `exchange` may succeed; without it, a hand edit at the instant of a write can be lost."""
        return offers("exchange")

    @cached_property
    def has_leases(self) -> bool:
        """Whether `take_lease` may succeed; without it, no writer is detected."""
        return offers("leases")

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
        """Return whether a path is a link.

        Raises:
            BackendError: The path cannot be inspected.
        """
        try:
            return stat.S_ISLNK(self.mode(path))
        except OSError as error:
            raise file_error(path, "cannot be inspected", error) from error

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
            raise file_error(path, "cannot be inspected", error) from error
        # Inlined from `token_of`: this function is called very often.
        return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns)

    def folder_time(self, path: str) -> int:
        """Return when a name was last added or removed, in nanoseconds; 0 without a folder, -1 if unknown."""
        try:
            # Some archives and file systems give every folder the time 0, which shows no change.
            return self.stat(path).st_mtime_ns or -1
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

    def read_file(
        self, path: str | Path, *, most: int | None = None
    ) -> tuple[bytes, FileToken] | None:
        """Return the content of a regular file and the token of the version read; None if there is no file.

        Raises:
            BackendError: The file cannot be read, or is not a regular file (links are not followed).
            UnsafeDocument: The file has more than `most` bytes; none of them was read.
        """
        try:
            descriptor = self.open(path, READING)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
        try:
            while True:
                before = self.fstat(descriptor)
                if not stat.S_ISREG(before.st_mode):
                    raise _not_a_file(path)
                if most is not None and before.st_size > most:
                    raise too_large(str(path))
                data = self.read_all(descriptor)
                after = self.fstat(descriptor)
                # An editor that saves in place may have changed the file during the read, so read it again.
                if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                    return data, token_of(after)
        except OSError as error:
            raise _unreadable(path, error) from error
        finally:
            self.close(descriptor)

    def content(self, path: str | Path, *, most: int | None = None) -> bytes:
        """Return the content of a regular file; b"" if there is none.

        Raises:
            BackendError, UnsafeDocument: See `read_file`.
        """
        found = self.read_file(path, most=most)
        return found[0] if found is not None else b""

    def read_all(self, descriptor: int) -> bytes:
        """Return the whole content of an open file."""
        self.lseek(descriptor, 0, os.SEEK_SET)
        parts: list[bytes] = []
        while part := self.read(descriptor, 1 << 20):
            parts.append(part)
        return b"".join(parts)

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
        try:
            descriptor = self.open(path, flags, 0o600)
        except KeyboardInterrupt:
            # Perhaps of the call that has opened it: recovery would take an open file for the one of an editor.
            self.discard(path)
            raise
        try:
            self.write_all(descriptor, data)
            found = self.fstat(descriptor)
            if found.st_mode & 0o777 != _MODE:  # an unusual umask
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
        temp = unfinished(path)
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
        self.set_mode(descriptor, _MODE)

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
        try:
            self.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            # A read-only file system also refuses to remove a file that does not exist.
            if error.errno != errno.EROFS or self.exists(path):
                raise
