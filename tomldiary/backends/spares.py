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

A spare is nobody's document: whoever finds one may remove it at any time. They are kept beside the locks, out of the
sight of those who read a memory, and go with what is forgotten and at the end of the process.
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
    is_plain,
    is_same,
    make_folder,
    sync_folder,
    token_of,
    write_all,
)
from tomldiary.backends.saving import lease, let_go_of_lease

if TYPE_CHECKING:
    from pathlib import Path

    from tomldiary.backends.files import FileToken

__all__ = ["Spares"]

_FLAGS = os.O_RDWR | sum(
    {getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK")}
)
_MOST = 128  # documents; those that were written longest ago lose theirs
_OLD = 3600.0  # seconds
_BLOCK = 4096  # bytes; what most file systems give a file at a time
_ROOM = 64 * 1024 * 1024  # bytes; a disk that has less of it left is nearly full
_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}-\d+")


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
        # Two processes may have one number, in two containers.
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._owner = [os.getpid()]
        self._is_first = self._is_possible = True
        weakref.finalize(self, _remove_all, self._turns, self._owner)

    def has(self, folder: str, kind: str, window: int, expected: FileToken, length: int) -> bool:
        """Tell whether there is a spare for a version of a document, unless somebody comes to have that as well.

        Args:
            folder: The user's.
            kind: The document.
            window: In which the version is put in place.
            expected: The file that stands there.
            length: How many bytes the version has.
        """
        if self._owner[0] != os.getpid():
            self._turns.clear()  # they are its parent's
            self._name, self._owner[0] = secrets.token_hex(4), os.getpid()
        turn = self._turns.get((folder, kind))
        if turn is None or turn.spare is None or turn.window != window:
            return False
        if not is_same(turn.standing, expected):
            return False  # it may be of a document that somebody has removed
        if _blocks(length) > _blocks(turn.spare[2]):
            # What is in history has to find room.
            try:
                disk = os.statvfs(self._root)
            except OSError:  # somebody has removed the folder
                return False
            return disk.f_bavail * disk.f_frsize > _ROOM + length
        return True

    def fill(self, folder: str, kind: str, data: bytes, staged: str) -> FileToken:
        """Write a version over a document's spare, move it to where it is staged, and return its token.

        Raises:
            OSError: It is not there; somebody else has the spare, for instance.
        """
        turn = self._turns.get((folder, kind))
        if turn is None:
            raise _busy()
        descriptor = os.open(turn.path, _FLAGS)
        try:
            refusal = lease(descriptor, for_writing=True)
            if refusal not in {0, errno.EAGAIN}:
                self._is_possible = False  # this file system has no leases
            found = os.fstat(descriptor)  # behind the lease: what somebody has written before shows
            if refusal or not is_same(token_of(found), turn.spare) or not is_plain(found):
                raise _busy()
            write_all(descriptor, data)
            if len(data) < found.st_size:
                os.ftruncate(descriptor, len(data))
            token = token_of(os.fstat(descriptor))
        finally:
            let_go_of_lease(descriptor)
            os.close(descriptor)
        os.rename(turn.path, staged)  # noqa: PTH104 - paths are strings here
        return token

    def keep(
        self,
        folder: str,
        kind: str,
        window: int,
        expected: FileToken,
        displaced: str,
        token: FileToken,
        *,
        is_plain: bool,
    ) -> None:
        """Keep the file that gave way to a new version, or remove it.

        Args:
            folder: The user's.
            kind: The document.
            window: In which it gave way.
            expected: Which file it was.
            displaced: Where it is now.
            token: Of the new version.
            is_plain: Whether it has the rights that we gave it, and no second name.

        Raises:
            OSError: It is still there.
        """
        turn = self._turns.pop((folder, kind), None)
        path = self._new_path(folder) if turn is None else turn.path
        spare = None
        is_ours = is_plain and turn is not None and is_same(turn.standing, expected)
        if is_ours and self._moved(displaced, path):
            spare = expected
        else:
            os.unlink(displaced)  # noqa: PTH108 - paths are strings here
        self._turns[folder, kind] = _Turn(token, path, spare, window)
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

    def _new_path(self, folder: str) -> str:
        return f"{self._root}/{_mark(folder)}-{self._name}-{next(self._numbers)}"

    def _moved(self, displaced: str, path: str) -> bool:
        if not self._is_possible:
            return False
        try:
            if self._is_first:
                self._is_first = False
                make_folder(self._root, sync=False)
                self._is_possible = stat.S_ISDIR(os.lstat(self._root).st_mode)  # no link
                if not self._is_possible:
                    return False
                _remove_old(self._root)
            os.rename(displaced, path)  # noqa: PTH104 - paths are strings here
        except OSError:
            self._is_first = True  # somebody may have removed the folder
            return False
        return True


def _blocks(length: int) -> int:
    return -(-length // _BLOCK)


def _busy() -> OSError:
    return OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _mark(folder: str) -> str:
    """Return what the names of a user's spares begin with."""
    return sha256(os.fsencode(folder.rpartition("/")[2])).hexdigest()[:16]


def _remove(path: str) -> None:
    with suppress(OSError):  # there is none
        os.unlink(path)  # noqa: PTH108 - paths are strings here


def _remove_old(folder: str) -> None:
    """Remove what killed processes have left; one who still works does without."""
    oldest = time.time() - _OLD
    for entry in list(os.scandir(folder)):
        if _NAME.fullmatch(entry.name):
            with suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    _remove(entry.path)


def _remove_all(turns: OrderedDict[tuple[str, str], _Turn], owner: list[int]) -> None:
    if owner[0] == os.getpid():  # a forked child's are its parent's
        while turns:
            _remove(turns.popitem()[1].path)
