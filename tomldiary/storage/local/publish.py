"""Publishing documents without losing a hand edit that is saved at the same moment.

A plain rename destroys the file it replaces. Where the system can exchange two names atomically (Linux
`renameat2`, macOS `renamex_np`), the displaced file can be checked. If it is not the version that the write was
based on, it is a hand edit and is kept, see `displaced_edit`. Nor does ext4 flush an exchanged file at once, as it
does by default for a file that is renamed over another.

Documents are staged as temporary files before their record is appended, and published after it.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from tomldiary.runtime.capabilities import offers
from tomldiary.storage.files import file_token, is_same, write_new
from tomldiary.storage.local.layout import make_parent
from tomldiary.storage.local.lease import Held

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.storage.files import FileToken
    from tomldiary.storage.protocol import Commit

__all__ = ["Staging", "put_in_place", "swap", "take_back"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # as RENAME_SWAP of macOS
_CALL = {"linux": "renameat2", "darwin": "renamex_np"}
_TAKEN = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EAGAIN}
"""Why a file cannot be opened that was taken away just now, made a link, or is another program's alone."""
_NOT_HERE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


def put_in_place(
    temp: str,
    target: str,
    expected: FileToken | None,
    written: FileToken | None = None,
) -> FileToken | None:
    """Give `target` the file `temp`, and return its token; None if somebody's save came in between.

    Args:
        temp: The new version; gone afterwards, or a save that it has displaced: see `displaced_edit`.
        target: The file.
        expected: The version that is to be replaced; None if there was no file.
        written: What `write_new` said of the new version, if that is known.

    Raises:
        FileNotFoundError: There is no new version any more.
        OSError: Nothing was put in place.
    """
    ours = written or file_token(temp)
    if expected is None or _exchange() is None:
        os.replace(temp, target)  # noqa: PTH105 - the hot path of every write
        return _token_of(target, ours)
    try:
        held = Held(target)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        held = None
    try:
        if held is None or held.has_writer or not is_same(held.token, expected):
            os.unlink(temp)  # noqa: PTH108 - see above
            return None
        return _exchanged(temp, target, ours, held)
    finally:
        if held is not None:
            held.let_go()


def _exchanged(temp: str, target: str, ours: FileToken | None, held: Held) -> FileToken | None:
    """Exchange the two, unless somebody saves just now; nobody opens the old file for writing meanwhile."""
    try:
        is_exchanged = swap(temp, target)
    except FileNotFoundError:
        os.unlink(temp)  # noqa: PTH108 - see above
        return None  # taken away just now: to be removed, or to make way for what is saved
    if not is_exchanged:
        os.replace(temp, target)  # noqa: PTH105 - see above
        return _token_of(target, ours)
    if not _is_held(temp, held):
        return None  # a save came in between
    if not held.is_wanted():
        os.unlink(temp)  # noqa: PTH108 - see above
        return _token_of(target, ours)
    # Whoever begins a save waits for the old file, and must not be left with one that has no name.
    take_back(temp, target, ours)
    return None


def _is_held(path: str, held: Held) -> bool:
    """Return whether a file is the version that is held."""
    if not held.is_leased:
        return is_same(file_token(path), held.token)
    # Whoever has begun to write to it waits for the lease, or took it from us: see `Held.is_wanted`.
    try:
        return os.lstat(path).st_ino == held.status.st_ino
    except FileNotFoundError:
        return False


def take_back(temp: str, target: str, ours: FileToken | None) -> None:
    """Give `target` the file again that stands at `temp`; ours is removed, what was saved over it stays at `temp`.

    Raises:
        OSError: Nothing was changed.
    """
    try:
        swap(temp, target)
        held = Held(temp)  # under this name nobody else finds it any more
    except FileNotFoundError:
        return  # taken away just now, see above
    try:
        if is_same(held.token, ours) and not held.has_writer and not held.is_wanted():
            os.unlink(temp)  # noqa: PTH108 - paths are strings here
    finally:
        held.let_go()


def _token_of(target: str, ours: FileToken | None) -> FileToken | None:
    """Return the token of our file; None if somebody has saved right behind us, whose token it is."""
    token = file_token(target)
    return token if is_same(token, ours) else None


def swap(one: str, two: str) -> bool:
    """Exchange two files in one step; False where the system cannot.

    Raises:
        OSError: It can, but did not.
    """
    exchange = _exchange()
    if exchange is None:
        return False
    if exchange(os.fsencode(one), os.fsencode(two)) == 0:
        return True
    import ctypes  # noqa: PLC0415 - see _exchange

    code = ctypes.get_errno()
    if code in _NOT_HERE:
        return False
    raise OSError(code, os.strerror(code), two)


@lru_cache(maxsize=1)
def _exchange() -> Callable[[bytes, bytes], int] | None:
    """Return what exchanges two names, 0 if it did, else `errno` says why not; None if there is nothing."""
    if not offers("exchange"):
        return None
    import ctypes  # noqa: PLC0415 - only writers need it

    name, is_mac = _CALL.get(sys.platform, ""), sys.platform == "darwin"
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if call is None:
        return None
    here = [] if is_mac else [ctypes.c_int]
    call.argtypes = [*here, ctypes.c_char_p, *here, ctypes.c_char_p, ctypes.c_uint]
    if is_mac:
        return lambda one, two: call(one, two, _RENAME_EXCHANGE)
    return lambda one, two: call(_AT_FDCWD, one, _AT_FDCWD, two, _RENAME_EXCHANGE)


class Staging:
    """The staged documents of one transaction; the caller holds the user's lock.

    Args:
        folder: The user's folder.
        commit: The transaction.
        seq: Its number; of several transactions, the last number.
        staged_as: Returns a new path for a staged document, by kind, content, transaction and digest.
    """

    def __init__(
        self,
        folder: str,
        commit: Commit,
        seq: int,
        staged_as: Callable[[str, bytes, int, str], str],
    ) -> None:
        self._folder = folder
        self._commit = commit
        self._seq = seq
        self._staged_as = staged_as
        self._paths = {kind: self._path(kind, seq) for kind in commit.contents}
        self._written: dict[str, FileToken] = {}
        self._tokens: dict[str, FileToken] = {}

    def _path(self, kind: str, seq: int) -> str:
        digest = self._commit.fingerprints.get(kind, "")
        return self._staged_as(kind, self._commit.contents[kind], seq, digest)

    def stage(self, *, sync: bool) -> None:
        """Write the documents to temporary files; with `sync`, new folders are synced.

        Raises:
            OSError, BackendError: A document could not be written.
        """
        for kind, path in self._paths.items():
            if "/" in kind:
                make_parent(self._folder, kind, sync=sync)
            self._written[kind] = write_new(path, self._commit.contents[kind], sync=False)

    def drop(self) -> None:
        """Remove the staged files."""
        for path in self._paths.values():
            with suppress(OSError):  # the next recovery removes it
                os.unlink(path)  # noqa: PTH108 - paths are strings here

    def publish(self) -> dict[str, FileToken]:
        """Publish all documents and return their tokens; a document saved meanwhile by hand has none.

        Raises:
            OSError: Some documents are not published.
        """
        for kind in self._paths:
            try:
                token = self._put(kind, self._written[kind])
            except FileNotFoundError:  # another program removed the staged file
                token = self._put(kind, self._staged_again(kind))
            if token is not None:
                self._tokens[kind] = token
        return self._tokens

    def _put(self, kind: str, written: FileToken) -> FileToken | None:
        expected = self._commit.expected.get(kind)
        return put_in_place(self._paths[kind], f"{self._folder}/{kind}.toml", expected, written)

    def _staged_again(self, kind: str) -> FileToken:
        # Until it is complete, its name must not be that of a displaced edit.
        unfinished, path = self._path(kind, self._seq + 1), self._path(kind, self._seq)
        token = write_new(unfinished, self._commit.contents[kind], sync=False)
        os.rename(unfinished, path)  # noqa: PTH104 - paths are strings here
        self._paths[kind] = path
        return token

    def displaced(self) -> list[str]:
        """Return the names of the files that hold displaced edits."""
        return [
            path[len(self._folder) + 1 :]
            for kind, path in self._paths.items()
            if kind not in self._tokens and os.path.lexists(path)
        ]
