"""What a crash leaves in a user's folder, and how it is put right; the caller holds the user's lock.

A commit is in history before its documents are in their places. So a staged file is one of four things: a
document that is in history (published now, if it was not), the version it took the place of (removed), a
document that never came to be in history (removed), or a save of somebody's that an exchange has displaced
(put back, and merged by the next look).
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from tomldiary.backends.base import digest
from tomldiary.backends.exchange import put_in_place, swap
from tomldiary.backends.files import read_file, sync_folder, write_new
from tomldiary.backends.layout import is_as_staged, make_parent, target_of
from tomldiary.backends.segments import read_records
from tomldiary.errors import InvalidTOML
from tomldiary.history import SNAPSHOT, parse_record, redo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tomldiary.history import Record

__all__ = ["is_older_than_the_system", "roll_forward", "sweep"]


def is_older_than_the_system(record: Record) -> bool:
    """Tell whether the machine was restarted after a record was written: renames may be lost."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is None:
        return True
    booted = time.time() - time.clock_gettime(clock)
    return datetime.fromisoformat(record.time).timestamp() < booted


def roll_forward(folder: Path, record: Record, staged_as: Callable[[str, bytes, int], str]) -> None:
    """Publish the documents of the transactions stored last where that did not happen any more.

    Args:
        folder: The user's.
        record: The last one of history.
        staged_as: Returns a new path to stage a document at, by kind, content and transaction.

    Raises:
        OSError, BackendError: It did not happen now either.
    """
    group = _stored_together(folder, record)
    for kind in dict.fromkeys(kind for each in group for kind in each.results):
        target = folder / f"{kind}.toml"
        found = read_file(target)
        current = found[0].decode("utf-8", "replace") if found is not None else ""
        missing = _missing([each for each in group if kind in each.results], kind, digest(current))
        if not missing:
            continue  # published, or a person has changed it since
        make_parent(str(folder), kind, sync=True)
        for each in missing:
            current = redo(current, each, kind)
        data = current.encode("utf-8")
        # Until it is whole it must not look like something that an exchange has displaced.
        unfinished = staged_as(kind, data, record.seq + 1)
        write_new(unfinished, data, sync=True)
        temp = staged_as(kind, data, record.seq)
        os.replace(unfinished, temp)  # noqa: PTH105 - paths are strings here
        put_in_place(temp, str(target), found[1] if found is not None else None)
        # A later commit exchanges the file, and does not sync a name that was there before.
        sync_folder(target.parent)


def _stored_together(folder: Path, last: Record) -> list[Record]:
    """Return the transactions that were stored with one commit, the last of history among them, oldest first."""
    found = [last]
    if last.group:
        for text in islice(read_records(folder / "history"), 1, None):
            try:
                record = parse_record(text)
            except InvalidTOML:
                break  # see `_logged`
            if record.seq < last.group or record.type == SNAPSHOT:
                break
            found.append(record)
    return found[::-1]


def _missing(records: list[Record], kind: str, current: str) -> list[Record]:
    """Return those of a document's transactions that a text with this fingerprint does not hold yet."""
    if current == records[-1].results[kind]:
        return []
    bases = [record.bases[kind] for record in records]
    return records[bases.index(current) :] if current in bases else []


def sweep(folder: Path, name: str, newest: int) -> None:
    """Remove a staged file, unless it is a person's save that an exchange put there.

    Args:
        folder: The user's.
        name: The staged file's.
        newest: Number of the last transaction in history.

    Raises:
        OSError, BackendError: The file may still be there.
    """
    found, target = read_file(folder / name), read_file(folder / target_of(name))
    if found is not None and target is not None and not is_as_staged(name, found[0], newest):
        # Exchanges come behind the commit point: what stands here was displaced by one.
        logged = _logged(folder)
        is_theirs = _digest(found[0]) not in logged
        if is_theirs and _digest(target[0]) in logged:  # else they have saved again since
            swap(str(folder / name), str(folder / target_of(name)))
            sync_folder((folder / target_of(name)).parent)
    (folder / name).unlink(missing_ok=True)


def _digest(data: bytes) -> str:
    return digest(data.decode("utf-8", "replace"))


def _logged(folder: Path) -> set[str]:
    """Return the fingerprints of all texts that history leads to."""
    found: set[str] = set()
    for text in read_records(folder / "history"):
        try:
            found.update(parse_record(text).results.values())
        except InvalidTOML:
            continue  # one damaged record must not keep the user from being opened
    return found
