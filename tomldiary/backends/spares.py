"""Two files take turns as one document: the one that gave way is written over for the next version but one.

On some file systems the dearest part of a small write is to make a file and to remove one, the more so the more were
removed lately. What makes it safe to do without:

- A file is written over only once the record of the new version is on the disk. A power cut may leave any mixture of the
  versions that were in a file, under any name that it has had; so all of them have to be versions that history can
  make again, see `recovery`. They are of the last window of transactions (see `settling`): no spare is used in another
  window than the one in which it gave way.
- Only a file that this process has put in place itself is kept, never one that a person has saved.
- Only a file that nobody else has is written over. A write lease is refused on one that anybody has open, and whoever
  opens it under the lease waits; one with a second name, other rights or another owner is left alone.

A spare changes places with its document where it lies. At rest it has a mode that no document has: one with another
mode is a version whose writer was killed before the exchange, or a save that the exchange has displaced (see
`displaced`), and whoever opens the user next looks which. At rest it is nobody's document, and may be removed at any time.
Spares are kept beside the locks, out of the sight of those who read a memory, and go with what is forgotten and at the
end of the process.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
import stat
import time
import weakref
from collections import OrderedDict
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from tomldiary.backends.files import (
    is_same,
    make_folder,
    sync_folder,
    token_of,
    write_all,
)
from tomldiary.backends.layout import kind_of_name, name_of_kind
from tomldiary.backends.saving import lease, let_go_of_lease

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tomldiary.backends.files import FileToken
    from tomldiary.backends.saving import Held

__all__ = ["Spares"]

_FLAGS = os.O_RDWR | sum(
    {getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK")}
)
_MOST = 128  # documents; those that were written longest ago lose theirs
_OLD = 3600.0  # seconds
_BLOCK = 4096  # bytes; what most file systems give a file at a time
_AT_REST = 0o600 | stat.S_ISVTX
"""The mode of a spare; on a file that last bit means nothing to the system."""
_ROOM = 64 * 1024 * 1024  # bytes; a disk that has less of it left is nearly full
_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}-\d+-(?P<at>[0-9a-f]+)-(?P<kind>.+)")


class _Turn(NamedTuple):
    """Of a document that this process has put in place."""

    standing: FileToken
    """The file that was put there last."""
    path: str
    """Where the one before that is, if it was kept."""
    spare: FileToken | None = None
    """Which file that is."""
    window: int = 0
    """In which it gave way."""


class Spares:
    """The spares of one process in the folder `root`; whoever calls holds the lock of the user whose folder is `folder`."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._turns: OrderedDict[tuple[str, str], _Turn] = OrderedDict()
        self._taken: dict[tuple[str, str], _Turn] = {}
        """Those whose spares are being written over: nobody removes them meanwhile."""
        # Two processes may have one number, in two containers.
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._owner = [os.getpid()]
        self._is_first = self._is_possible = True
        self._inode = ""
        weakref.finalize(self, _remove_all, self._turns, self._owner)

    def has(self, folder: str, kind: str, window: int, length: int) -> bool:
        """Tell whether a document has a spare for a version of `length` bytes, unless somebody comes to have that as well."""
        if self._owner[0] != os.getpid():
            self._turns.clear()  # they are its parent's
            self._taken.clear()
            self._name, self._owner[0] = secrets.token_hex(4), os.getpid()
        turn = self._turns.get((folder, kind))
        if turn is None or turn.spare is None or turn.window != window:
            return False
        if _blocks(length) > _blocks(turn.spare[2]):
            # What is in history has to find room.
            try:
                disk = os.statvfs(self._root)
            except OSError:  # somebody has removed the folder
                return False
            return disk.f_bavail * disk.f_frsize > _ROOM + length
        return True

    def fill(self, folder: str, kind: str, data: bytes) -> tuple[str, FileToken]:
        """Write a version over a document's spare, and return where it is, and its token.

        Raises:
            OSError: It is not there; somebody else has the spare, for instance.
        """
        turn = self._turns.pop((folder, kind), None)
        if turn is None:
            raise _busy()
        self._taken[folder, kind] = turn
        descriptor = os.open(turn.path, _FLAGS)
        try:
            refusal = lease(descriptor, for_writing=True)
            if refusal not in {0, errno.EAGAIN}:
                self._is_possible = False  # this file system has no leases
            found = os.fstat(descriptor)  # behind the lease: what somebody has written before shows
            if refusal or not is_same(token_of(found), turn.spare) or not _is_at_rest(found):
                raise _busy()
            write_all(descriptor, data)
            if len(data) < found.st_size:
                os.ftruncate(descriptor, len(data))
            # Not before it is whole: what is not at rest counts.
            os.fchmod(descriptor, 0o600)
            token = token_of(os.fstat(descriptor))
        finally:
            let_go_of_lease(descriptor)
            os.close(descriptor)
        return turn.path, token

    def keep(
        self,
        folder: str,
        kind: str,
        window: int,
        expected: FileToken,
        displaced: str,
        token: FileToken,
        held: Held,
    ) -> None:
        """Keep the file that gave way to a new version, or remove it.

        Args:
            folder: The user's.
            kind: The document.
            window: In which it gave way.
            expected: Which file it was.
            displaced: Where it is now.
            token: Of the new version.
            held: The file that gave way.

        Raises:
            OSError: It is still there.
        """
        key = folder, kind
        turn = self._taken.pop(key, None) or self._turns.pop(key, None)
        path, spare = "" if turn is None else turn.path, None
        if turn is not None and is_same(turn.standing, expected) and held.is_plain:
            moved = path if displaced == path else self._moved(displaced, path, folder, kind)
            if moved:
                displaced = path = moved
                spare = expected if _is_put_to_rest(held) else None
        if spare is None:
            os.unlink(displaced)  # noqa: PTH108 - paths are strings here
        self._turns[key] = _Turn(token, path, spare, window)
        while len(self._turns) > _MOST:
            _remove(self._turns.popitem(last=False)[1].path)

    def drop(self, folder: str, *, sync: bool = False) -> None:
        """Remove all spares of a user, also those of other processes; `sync` has the disk know it.

        Raises:
            OSError: There still are some.
        """
        for key in [key for key in self._turns.copy() if key[0] == folder]:
            turn = self._turns.get(key)
            if turn is not None:
                self._turns[key] = _Turn(turn.standing, turn.path)
        mark = _mark(folder)
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in list(os.scandir(self._root)):
                if entry.name.startswith(mark):
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)  # noqa: PTH108 - paths are strings here
            if sync:  # also what was removed before
                sync_folder(self._root)

    def unfinished(self, folder: str, kinds: Iterable[str] | None) -> list[tuple[str, str]]:
        """Return the paths of files that are not at rest, with their documents: their writers were killed.

        Args:
            folder: The user's.
            kinds: The documents that are looked at; None: all.
        """
        found: list[tuple[str, str]] = []
        mark = _mark(folder)
        try:
            inode = _inode_of(self._root)
            names = os.listdir(self._root)  # noqa: PTH208 - names, not paths
        except OSError:  # there are none, or they are of somebody whose rights we do not have
            return found
        ends = None if kinds is None else tuple([f"-{name_of_kind(kind)}" for kind in kinds])
        mine = [each for each in names if each.startswith(mark)]
        for each in mine if ends is None else [each for each in mine if each.endswith(ends)]:
            name, path = _NAME.fullmatch(each), f"{self._root}/{each}"
            if name is not None and name["at"] == inode:
                with suppress(FileNotFoundError):
                    if not _is_resting(os.lstat(path)):
                        found.append((path, kind_of_name(name["kind"])))
        return found

    def _moved(self, displaced: str, path: str, folder: str, kind: str) -> str:
        """Move a file to where its document's spare was, or to a new place; return where it is now, "" if nowhere else."""
        if not self._is_possible:
            return ""
        try:
            if self._is_first:
                self._is_first = False
                make_folder(self._root, sync=False)
                self._inode = _inode_of(self._root)
                _remove_old(self._root, self._inode)
            if not path:
                numbered = f"{self._name}-{next(self._numbers)}"
                name = f"{_mark(folder)}-{numbered}-{self._inode}-{name_of_kind(kind)}"
                path = f"{self._root}/{name}"
            os.rename(displaced, path)  # noqa: PTH104 - paths are strings here
        except OSError:
            self._is_first = True  # somebody may have removed the folder
            return ""
        return path


def _blocks(length: int) -> int:
    return -(-length // _BLOCK)


def _busy() -> OSError:
    return OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _inode_of(folder: str) -> str:
    """Return the number of the folder that spares lie in: in a copy, which may have lost their modes, it is another one.

    Raises:
        OSError: There is no such folder.
    """
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(folder)  # a link
    return f"{found.st_ino:x}"


def _is_put_to_rest(held: Held) -> bool:
    try:
        held.change_mode(_AT_REST)
    except OSError:
        return False
    return True


def _is_resting(found: os.stat_result) -> bool:
    return found.st_mode == stat.S_IFREG | _AT_REST


def _is_at_rest(found: os.stat_result) -> bool:
    """Tell whether this is a spare, and nobody but us has or had to do with it."""
    return _is_resting(found) and found.st_nlink == 1 and found.st_uid == os.geteuid()


def _mark(folder: str) -> str:
    """Return what the names of a user's spares begin with."""
    return sha256(os.fsencode(folder.rpartition("/")[2])).hexdigest()[:16]


def _remove(path: str) -> None:
    with suppress(OSError):  # there is none
        os.unlink(path)  # noqa: PTH108 - paths are strings here


def _remove_old(folder: str, inode: str) -> None:
    """Remove what killed processes have left, or came with a copy; one who still works does without."""
    oldest = time.time() - _OLD
    for entry in list(os.scandir(folder)):
        name = _NAME.fullmatch(entry.name)
        if name is not None:
            with suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                is_nobodys = _is_resting(found) or name["at"] != inode
                if found.st_mtime < oldest and is_nobodys:
                    _remove(entry.path)


def _remove_all(turns: OrderedDict[tuple[str, str], _Turn], owner: list[int]) -> None:
    if owner[0] == os.getpid():  # a forked child's are its parent's
        while turns:
            _remove(turns.popitem()[1].path)
