"""Whose a journal is: its writer holds a lock on the folder's owner file for as long as it lives."""

from __future__ import annotations

import contextlib
import os
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tomldiary.runtime.capabilities import PRIVATE, make_private
from tomldiary.storage.file_lock import try_lock
from tomldiary.storage.files import make_folder, sync_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["claim_dead", "claim_new", "give_up"]

_OWNER = "owner.lock"
_FLAGS = os.O_RDWR | PRIVATE


def claim_new(root: Path, *, sync: bool) -> tuple[Path, int]:
    """Make a folder for a journal, and return it with the descriptor of its locked owner file.

    Raises:
        OSError: It cannot be made.
    """
    make_folder(root, sync=sync)
    # To the microsecond: journals are taken over by name, and one process may leave several in a second.
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{secrets.token_hex(4)}"
    hidden = root / f".{name}"
    hidden.mkdir(mode=0o700)
    hidden.chmod(0o700)
    owner = -1
    try:
        owner = os.open(hidden / _OWNER, _FLAGS | os.O_CREAT, 0o600)
        make_private(owner)
        try_lock(owner)
        # Nobody looks at a hidden folder, so nobody takes it for a dead writer's before it is locked.
        hidden.rename(root / name)
        if sync:
            sync_folder(root)
    except BaseException:
        for folder in (hidden, root / name):
            with contextlib.suppress(OSError):
                give_up(folder)
        if owner >= 0:
            os.close(owner)
        raise
    return root / name, owner


def claim_dead(folder: Path) -> int | None:
    """Return the descriptor of a journal's owner file, now locked by us; None if its writer lives.

    Locks end with their process, so there is no age or number of a process to be judged by.
    """
    try:
        owner = os.open(folder / _OWNER, _FLAGS)
    except OSError:
        return None
    if try_lock(owner) and _is_at(owner, folder / _OWNER):
        return owner
    os.close(owner)
    return None


def give_up(folder: Path) -> None:
    """Remove an empty journal; its owner file is still locked."""
    (folder / _OWNER).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # damaged records stay for people to look at
        folder.rmdir()


def _is_at(descriptor: int, path: Path) -> bool:
    """Tell whether the open file still stands at its place: its owner may just have removed it."""
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
