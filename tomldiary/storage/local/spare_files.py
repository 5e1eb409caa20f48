"""Two files take turns as one document: the one that gave way is written over for the next version but one.

On some file systems the dearest part of a small write is to make a file and to remove one, the more so the more were
removed lately; and each change of a name has its price. What makes it safe to do without:

- A file is written over only once the record of the new version is on the disk. A power cut may leave any mixture of the
  versions that were in a file, under any name that it has had; so all of them have to be versions that history can
  make again, see `recovery`. They are of the last window of transactions (see `settling`): no spare is used in another
  window than the one in which it gave way.
- Only a file that this process has put in place itself is kept, never one that a person has saved.
- Only a file that nobody else has is written over. A write lease is refused on one that anybody has open, and whoever
  opens it under the lease waits; one with a second name, other rights or another owner is left alone.
- The spare lies in the user's folder and changes places with its document there, so that what was in the document's place
  may be a person's save under the spare's name when a writer is killed. What else is found there tells itself: a
  spare that is being written over begins as no text does, one at rest has a time that no save has, and what history
  leads to is nobody's save.

A spare at rest is nobody's document: whoever finds one may remove it at any time. They go with what is forgotten and at
the end of the process.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import stat
import time
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tomldiary.runtime.capabilities import NO_WAITING, PRIVATE, write_at
from tomldiary.runtime.finalizers import finalize
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.storage.files import is_plain, is_same, sync_folder, token_of, write_all
from tomldiary.storage.local.layout import AT_REST, UNFINISHED, is_spare, spare_name
from tomldiary.storage.local.lease import is_lease_broken, lease, let_go_of_lease
from tomldiary.storage.statx import look

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tomldiary.storage.files import FileToken
    from tomldiary.storage.local.lease import Held

__all__ = ["Spares", "left_behind", "write_over"]

_FLAGS = os.O_RDWR | PRIVATE | NO_WAITING
_MOST = 128  # documents; those that were written longest ago lose theirs
_OLD = 3600.0  # seconds
_BLOCK = 4096  # bytes; what most file systems give a file at a time
_ROOM = 64 * 1024 * 1024  # bytes; a disk that has less of it left is nearly full


class _Turn(NamedTuple):
    """Of a document that this process has put in place."""

    standing: FileToken
    """The file that was put there last."""
    path: str
    """Where the one before that is, if it was kept, or is to be."""
    spare: FileToken | None = None
    """Which file that is."""
    window: int = 0
    """In which it gave way."""


class _Opened(NamedTuple):
    """A spare that nobody else has, or opens before it is let go of."""

    descriptor: int
    status: os.stat_result

    def is_wanted(self) -> bool:
        """Tell whether somebody waits to open it, or has after a long time been let in."""
        return is_lease_broken(self.descriptor, for_writing=True)

    def let_go(self) -> None:
        """Let everybody have it."""
        let_go_of_lease(self.descriptor)
        os.close(self.descriptor)


class Spares:
    """The spares of one process; whoever calls holds the lock of the user whose folder is `folder`."""

    def __init__(self) -> None:
        self._turns: OrderedDict[tuple[str, str], _Turn] = OrderedDict()
        # Two processes may have one number, in two containers.
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._owner = [os.getpid()]
        self._is_possible = True
        self._are_exact: dict[int, bool] = {}
        """By device: whether files there have exactly the time that they were given."""
        self._can_rest: set[int] = set()
        """Devices where they can have the time of a spare."""
        self._opened: dict[tuple[str, str], _Opened] = {}
        finalize(self, _remove_all, self._turns, self._owner)
        renew_after_fork(self)

    def renew(self) -> None:
        """Begin anew in a forked child: what is known are its parent's."""
        self._turns.clear()
        for opened in self._opened.values():
            os.close(opened.descriptor)  # the lease is its parent's
        self._opened.clear()
        self._name, self._owner[0] = secrets.token_hex(4), os.getpid()

    def has(self, folder: str, kind: str, window: int, expected: FileToken, length: int) -> bool:
        """Tell whether there is a spare for a version of a document, unless somebody comes to have that as well.

        Args:
            folder: The user's.
            kind: The document.
            window: In which the version is put in place.
            expected: The file that stands there.
            length: How many bytes the version has.
        """
        turn = self._turns.get((folder, kind))
        if turn is None or turn.spare is None or turn.window != window:
            return False
        if not is_same(turn.standing, expected):
            return False  # it may be of a document that somebody has removed
        if _blocks(length) > _blocks(turn.spare[1]):
            # What is in history has to find room.
            try:
                disk = os.statvfs(folder)
            except OSError:  # somebody has removed the folder
                return False
            return disk.f_bavail * disk.f_frsize > _ROOM + length
        return True

    def note(self, folder: str, kind: str, window: int, token: FileToken) -> None:
        """Take note of a document that was put where there was none; its next version may keep it."""
        turn = self._turns.pop((folder, kind), None)
        if turn is not None:
            _drop(turn)
        self._remember((folder, kind), _Turn(token, "", None, window))

    def _remember(self, key: tuple[str, str], turn: _Turn) -> None:
        self._turns[key] = turn
        if len(self._turns) > _MOST:
            _drop(self._turns.popitem(last=False)[1])

    def reach(self, folder: str, kind: str) -> None:
        """Open a document's spare, if it has one, so that `fill` need not; until `leave`."""
        key = folder, kind
        turn = self._turns.get(key)
        if turn is None or turn.spare is None:
            return
        try:
            self._opened[key] = self._open(turn)
        except OSError:
            self._turns[key] = turn._replace(path="", spare=None)

    def leave(self, folder: str, kind: str) -> None:
        """Let go of a spare that was reached for and not filled."""
        opened = self._opened.pop((folder, kind), None)
        if opened is not None:
            opened.let_go()

    def fill(self, folder: str, kind: str, data: bytes) -> tuple[str, FileToken]:
        """Write a version over a document's spare; return where that is, and its token.

        Raises:
            OSError: It is not there; somebody else has the spare, for instance.
        """
        key = folder, kind
        turn, opened = self._turns.get(key), self._opened.pop(key, None)
        try:
            if turn is None or turn.spare is None:
                raise _busy()
            # While it changes places it is nobody's to remove: what comes out may be a save.
            self._turns[key] = turn._replace(spare=None)
            opened = opened or self._open(turn)
            return turn.path, self._filled(turn, opened, data)
        except OSError:
            if turn is not None:
                self._turns[key] = turn._replace(path="", spare=None)
            raise
        finally:
            if opened is not None:
                opened.let_go()

    def _open(self, turn: _Turn) -> _Opened:
        """Open a spare; one that somebody else has is removed."""
        descriptor = os.open(turn.path, _FLAGS)
        try:
            refusal = lease(descriptor, for_writing=True)
            found = os.fstat(descriptor)  # behind the lease: what somebody has written before shows
            if refusal or not is_same(token_of(found), turn.spare) or not is_plain(found):
                if refusal not in {0, errno.EAGAIN} and is_plain(found):
                    self._is_possible = False  # this file system has no leases
                raise _busy()
        except OSError:
            let_go_of_lease(descriptor)
            os.close(descriptor)
            _remove(turn.path)
            raise
        return _Opened(descriptor, found)

    def _filled(self, turn: _Turn, opened: _Opened, data: bytes) -> FileToken:
        if opened.is_wanted():
            raise _busy()  # it is theirs
        try:
            write_over(opened.descriptor, data, opened.status.st_size)
        except OSError:
            os.unlink(turn.path)  # noqa: PTH108 - paths are strings here
            raise
        return self._dated(opened.descriptor, opened.status, len(data))

    def _dated(self, descriptor: int, before: os.stat_result, size: int) -> FileToken:
        """Give a file that was just written the time of now, so that nobody has to ask for it: see `looks`."""
        now = time.time_ns()
        is_exact = self._are_exact.get(before.st_dev)
        if is_exact is not False:
            os.utime(descriptor, ns=(now, now))
        if is_exact:
            return now, size, before.st_ino, now
        written = os.fstat(descriptor)
        self._are_exact[before.st_dev] = written.st_mtime_ns == now
        return token_of(written)

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
            held: It.

        Raises:
            OSError: It is still there.
        """
        turn = self._turns.pop((folder, kind), None)
        path, spare = turn.path if turn is not None else "", None
        if path != displaced:
            _remove(path)
            path = ""
        if turn is not None and is_same(turn.standing, expected) and is_plain(held.status):
            path = path or f"{folder}/{spare_name(kind, window, self._name, next(self._numbers))}"
            spare = self._put_to_rest(displaced, path, held)
        if spare is None:
            os.unlink(displaced)  # noqa: PTH108 - paths are strings here
        self._remember((folder, kind), _Turn(token, path, spare, window))

    def _put_to_rest(self, displaced: str, path: str, held: Held) -> FileToken | None:
        if not self._is_possible:
            return None
        try:
            held.set_time(AT_REST)
            if displaced != path:
                if not self._is_at_rest(displaced, held) or _is_in_link(path):
                    return None
                os.rename(displaced, path)  # noqa: PTH104 - paths are strings here
        except OSError:
            return None
        return (AT_REST, *held.token[1:])

    def _is_at_rest(self, path: str, held: Held) -> bool:
        """Tell whether a file was given the time of a spare; it is asked for its time once for each device."""
        device = held.status.st_dev
        if device not in self._can_rest:
            if os.lstat(path).st_mtime_ns != AT_REST:
                return False
            self._can_rest.add(device)
        return True

    def drop(self, folder: str) -> None:
        """Remove all spares of a user for good, also those of other processes.

        Raises:
            OSError: There still are some.
        """
        for key in [key for key in self._turns.copy() if key[0] == folder]:
            turn = self._turns.pop(key, None)
            if turn is not None:
                _drop(turn)
        if os.path.islink(folder):  # noqa: PTH114 - paths are strings here
            return
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in list(os.scandir(folder)):
                if is_spare(entry.name) and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)  # noqa: PTH108 - paths are strings here
            sync_folder(folder)  # also what was removed before


def write_over(descriptor: int, data: bytes, size: int) -> None:
    """Write a version over a file of `size` bytes, which begins as no text does until it is whole."""
    head = len(UNFINISHED)
    rest = memoryview(data)[head:]
    done = os.writev(descriptor, (UNFINISHED, rest)) - head
    if done < 0:
        raise _busy()  # not even that
    if done < len(rest):
        write_all(descriptor, rest[done:])
    if len(data) < max(size, head):
        os.ftruncate(descriptor, len(data))
    write_at(descriptor, data[:head], 0)


def left_behind(folder: str, names: Iterable[str], *, are_all_dead: bool = False) -> list[str]:
    """Return those of these names that are of spares which killed processes left, or may have left.

    Args:
        folder: The user's; whoever calls holds its lock.
        names: What is in it.
        are_all_dead: Whether the machine was restarted since.
    """
    found: list[str] = []
    for name in names:
        if is_spare(name):
            with suppress(FileNotFoundError):
                status = os.lstat(f"{folder}/{name}")
                if not stat.S_ISREG(status.st_mode):
                    continue  # somebody else's
                is_old = are_all_dead or status.st_ctime < time.time() - _OLD
                if is_old or status.st_mtime_ns != AT_REST:
                    found.append(name)
    return found


def _is_in_link(path: str) -> bool:
    """Tell whether a file's folder is a link to somebody's: no spare is left there, see `drop`."""
    return stat.S_ISLNK(look(os.path.dirname(path))[0])  # noqa: PTH120 - paths are strings here


def _blocks(length: int) -> int:
    return -(-length // _BLOCK)


def _busy() -> OSError:
    return OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _drop(turn: _Turn) -> None:
    if turn.spare is not None:
        _remove(turn.path)


def _remove(path: str) -> None:
    """Remove a spare if it is at rest; what somebody wrote to it is for whoever opens the user next."""
    with suppress(OSError):  # there is none
        if os.lstat(path).st_mtime_ns == AT_REST:
            os.unlink(path)  # noqa: PTH108 - paths are strings here


def _remove_all(turns: OrderedDict[tuple[str, str], _Turn], owner: list[int]) -> None:
    if owner[0] == os.getpid():  # a forked child's are its parent's
        while turns:
            _drop(turns.popitem()[1])
