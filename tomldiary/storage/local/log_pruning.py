"""Dropping old history: a snapshot takes the place of the records in front of it, then old segments go.

The oldest segment that is kept is replaced by one that begins with the snapshot: from then on nobody reads
further back. Only after that is on the disk the segments before it are removed, the oldest first. A process
that is killed in between leaves segments that nobody reads; whoever opens the user next removes them.
All of it is synced, whatever the durability.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.errors import BackendError
from tomldiary.history.record import is_snapshot, next_sequence
from tomldiary.storage.files import read_file, sync_folder, write_new
from tomldiary.storage.local.log_reader import split_records
from tomldiary.storage.local.log_segments import segments

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["drop_superseded", "prune"]

_TEMP = ".pruned.tmp"
_HEAD = 400  # bytes; a record says what it is first


def prune(folder: Path, seq: int, snapshot: str) -> None:
    """Let `snapshot` stand for all records up to transaction `seq`; the caller holds the user's lock.

    Raises:
        OSError: History is as before, or begins with the snapshot.
    """
    drop_superseded(folder)
    for path in reversed(segments(folder)):
        found = read_file(path)
        texts = split_records(found[0]) if found is not None else []
        if texts and next_sequence(texts[0]) - 1 <= seq + 1:
            kept = [text for text in texts if next_sequence(text) - 1 > seq]
            temp = folder / _TEMP
            write_new(str(temp), "".join([snapshot, *kept]).encode(), sync=True)
            temp.replace(path)
            sync_folder(folder)
            break
    drop_superseded(folder)


def drop_superseded(folder: Path) -> None:
    """Remove segments that a snapshot stands for; the caller holds the user's lock.

    Raises:
        BackendError: Some may be left. Nobody reads them.
    """
    try:
        if (folder / _TEMP).exists():
            (folder / _TEMP).unlink()
        paths = segments(folder)
        begins = [
            number for number, path in enumerate(paths) if number and _begins_with_snapshot(path)
        ]
        if begins:
            for path in paths[: begins[-1]]:
                path.unlink()
            sync_folder(folder)
    except OSError as error:
        raise BackendError(
            f"{error.filename or folder}: old history cannot be removed ({error.strerror}). Nobody reads it;"
            " the next open tries again. Check permissions."
        ) from error


def _begins_with_snapshot(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(_HEAD).decode("utf-8", "replace")
    return is_snapshot(head)
