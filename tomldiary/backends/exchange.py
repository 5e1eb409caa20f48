"""Putting a new version in place without losing a save that arrives at the same instant.

A plain rename destroys whatever stands in its way. Where the system can exchange two names at once
(Linux, `renameat2`), what was displaced can be looked at: if it is not the version the write was based
on, somebody saved in between, and their file goes back. It is also quicker than a rename on ext4,
which writes a renamed file to the disk at once.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tomldiary.backends.files import file_token, read_file, write_new
from tomldiary.backends.saving import Held
from tomldiary.errors import BackendError

if TYPE_CHECKING:
    from tomldiary.backends.files import FileToken

__all__ = ["put_in_place"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_TAKEN = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EAGAIN}
"""Why a file cannot be opened that was taken away just now, made a link, or is another program's alone."""
_NOT_HERE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


def put_in_place(
    temp: str, target: str, expected: FileToken | None, written: FileToken | None = None
) -> FileToken | None:
    """Give `target` the file `temp`, and return its token; None if somebody's save was kept instead.

    Args:
        temp: The new version; gone afterwards, or a save that `sweep` merges into one behind it.
        target: The file.
        expected: The version that is to be replaced; None if there was no file.
        written: What `write_new` said of the new version, if that is known.

    Raises:
        OSError: Nothing was put in place.
    """
    ours = _identity(written or file_token(temp))
    if expected is None or _renameat2() is None:
        os.replace(temp, target)  # noqa: PTH105 - the hot path of every write
        return _token_of(target, ours)
    try:
        held = Held(target)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        held = None
    try:
        if held is None or held.has_writer or _identity(held.token) != _identity(expected):
            os.unlink(temp)  # noqa: PTH108 - see above
            return None
        return _exchanged(temp, target, ours, held)
    finally:
        if held is not None:
            held.let_go()


def _exchanged(
    temp: str, target: str, ours: tuple[int, int, int] | None, held: Held
) -> FileToken | None:
    """Exchange the two, unless somebody saves just now; nobody opens the old file for writing meanwhile."""
    try:
        is_exchanged = swap(temp, target)
    except FileNotFoundError:
        os.unlink(temp)  # noqa: PTH108 - see above
        return None  # taken away just now: to be removed, or to make way for what is saved
    if not is_exchanged:
        os.replace(temp, target)  # noqa: PTH105 - see above
        return _token_of(target, ours)
    is_old = _identity(file_token(temp)) == _identity(held.token)
    if is_old and not held.is_wanted():
        os.unlink(temp)  # noqa: PTH108 - see above
        return _token_of(target, ours)
    # A save came in between, or whoever begins one waits for the old file: it goes back.
    _take_back(temp, target, ours, None if is_old else _content(temp))
    return None


def _take_back(
    temp: str, target: str, ours: tuple[int, int, int] | None, saved: bytes | None
) -> None:
    """Give `target` the file again that stands at `temp` now, unless somebody is saving over ours already.

    Then both are kept, and whoever has the lock next joins them.
    """
    try:
        held = Held(target)
    except OSError:
        return
    try:
        if held.has_writer or _identity(held.token) != ours:
            return
        swap(temp, target)
        if _identity(file_token(temp)) == ours and not held.is_wanted():
            os.unlink(temp)  # noqa: PTH108 - paths are strings here
            if saved is not None:
                _keep(temp, saved)
        else:
            swap(temp, target)
    finally:
        held.let_go()


def _content(path: str) -> bytes | None:
    with suppress(BackendError):  # a link, for instance
        found = read_file(path)
        return found[0] if found is not None else None
    return None


def _keep(temp: str, saved: bytes) -> None:
    """Keep a copy of a save: whoever has read ours meanwhile may put what lacks the save over it."""
    with suppress(OSError):  # the save itself is in its place
        write_new(f"{temp}.tmp", saved, sync=False)
        os.replace(f"{temp}.tmp", temp)  # noqa: PTH105 - paths are strings here


def _token_of(target: str, ours: tuple[int, int, int] | None) -> FileToken | None:
    """Return the token of our file; None if somebody has saved right behind us, whose token it is."""
    token = file_token(target)
    return token if _identity(token) == ours else None


def swap(one: str, two: str) -> bool:
    """Exchange two files in one step; False where the system cannot.

    Raises:
        OSError: It can, but did not.
    """
    rename = _renameat2()
    if rename is None:
        return False
    done = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(two), _RENAME_EXCHANGE)
    if done == 0:
        return True
    import ctypes  # noqa: PLC0415 - see _renameat2

    code = ctypes.get_errno()
    if code in _NOT_HERE:
        return False
    raise OSError(code, os.strerror(code), two)


@lru_cache(maxsize=1)
def _renameat2() -> Any:
    """Return the system's call, or None."""
    if sys.platform != "linux":
        return None
    import ctypes  # noqa: PLC0415 - only writers need it

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is not None:
        call.argtypes = [
            ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint,
        ]  # fmt: skip
    return call


def _identity(token: FileToken | None) -> tuple[int, int, int] | None:
    """Return what of a token a rename does not change: all but the change time."""
    return None if token is None else (token[0], token[2], token[3])
