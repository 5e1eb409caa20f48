"""Documents go to the disk a window of transactions at a time; until then history alone stands for them.

A commit is durable once its record in history is. The documents it changed are written and put in their places,
but whoever waits for the disk waits for history only: what a power cut takes of a document, or tears, is
made again from history by whoever opens the user next (see `recovery`). So that nobody has to look further back
than one window for what may be missing, the first record of a window is only written once every document that the
window before changed is on the disk, whichever process changed it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from tomldiary.errors import Conflict, InvalidTOML
from tomldiary.history.record import is_snapshot, next_sequence, result_kinds
from tomldiary.runtime.capabilities import PRIVATE, sync_file
from tomldiary.storage.files import read_file, write_new
from tomldiary.storage.local.exchange import put_in_place
from tomldiary.storage.local.log_reader import read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tomldiary.storage.local.durable_names import Synced

__all__ = ["WINDOW", "opens_window", "settle", "window", "window_of"]

_FLAGS = os.O_RDONLY | PRIVATE
WINDOW = 256
"""Transactions of a user."""


def opens_window(before: int, seq: int) -> bool:
    """Tell whether a commit up to transaction `seq` is the first of its window; `before` is the last one."""
    return before > 0 and window_of(before) != window_of(seq)


def window_of(seq: int) -> int:
    """Return which window a transaction belongs to."""
    return (seq - 1) // WINDOW


def window(folder: Path) -> Iterator[str]:
    """Yield the records, newest first, whose documents need not be on the disk."""
    last = 0
    for text in read_records(folder / "history"):
        try:
            seq = next_sequence(text) - 1
        except InvalidTOML:
            continue  # damaged: whoever needs it says so
        last = last or seq
        if opens_window(seq, last):
            return
        yield text
        if is_snapshot(text):
            return


def settle(folder: Path, synced: Synced, staged_as: Callable[[str, bytes], str]) -> None:
    """Put all documents that the last window changed on the disk; the caller holds the user's lock.

    Args:
        folder: The user's.
        synced: What is known of the user's names.
        staged_as: Returns a new path to stage a document at.

    Raises:
        OSError, BackendError: Some are not.
    """
    present: set[str] = set()
    kinds = list(dict.fromkeys(kind for text in window(folder) for kind in result_kinds(text)))
    paths = {kind: folder / f"{kind}.toml" for kind in kinds}
    for kind, path in paths.items():
        if path.is_symlink():
            continue  # nothing of ours
        with suppress(FileNotFoundError, NotADirectoryError):  # somebody has removed it
            try:
                if kind not in synced.doubtful:
                    _sync(path)
                else:
                    _write_again(path, staged_as, kind)
            except OSError as error:
                if not isinstance(error, FileNotFoundError | NotADirectoryError):
                    # The system tells of what it could not write once, and takes it for written then.
                    synced.doubtful.add(kind)
                raise
            present.add(kind)
    synced.sync(present)
    synced.doubtful.clear()


def _sync(path: Path) -> None:
    descriptor = os.open(path, _FLAGS)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def _write_again(path: Path, staged_as: Callable[[str, bytes], str], kind: str) -> None:
    found = read_file(path)
    if found is None:
        raise FileNotFoundError(path)
    temp = staged_as(kind, found[0])
    write_new(temp, found[0], sync=True)
    if put_in_place(temp, str(path), found[1]) is None and os.path.exists(temp):  # noqa: PTH110 - see above
        raise Conflict(f"{path} was saved by somebody just now.")
