"""What a crash leaves in a user's folder, and how it is put right; the caller holds the user's lock.

A commit is in history before its documents are in their places, and a power cut may take back or tear every
document of the last window (see `settling`). So a document is one of four things: as history says, an older
version or a torn one (brought forward), or a person's (left for the next look). And a staged file is one of
four: a document that is in history, the version it took the place of, a document that never came to be in
history (all three are removed, torn or not), or a save of somebody's that an exchange has displaced (see `displaced`).
"""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import TYPE_CHECKING

from tomldiary.errors import DocumentError, InvalidTOML
from tomldiary.history.record import parse_record, redo, result_kinds
from tomldiary.history.timeline import EMPTY
from tomldiary.logging import get_logger
from tomldiary.storage.files import file_token, read_file, sync_folder, write_new
from tomldiary.storage.local.boots import may_lack_writes
from tomldiary.storage.local.checkpoint import window, window_of
from tomldiary.storage.local.displaced_edit import history_of
from tomldiary.storage.local.exchange import put_in_place
from tomldiary.storage.local.layout import (
    AT_REST,
    UNFINISHED,
    is_as_staged,
    is_spare,
    make_parent,
    spare_window,
    staged_for,
    staged_in,
    target_of,
)
from tomldiary.storage.local.lease import is_being_saved
from tomldiary.storage.local.log_reader import read_records
from tomldiary.storage.local.log_segments import newest_segment
from tomldiary.storage.local.spare_files import left_behind
from tomldiary.storage.protocol import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from tomldiary.history.record import Record
    from tomldiary.storage.files import FileToken

__all__ = [
    "half_done",
    "is_left_over",
    "may_be_behind",
    "roll_forward",
    "set_aside",
    "window_records",
]

_logger = get_logger(__name__)
_WRITTEN = re.compile(rb"[^\0]+")
_SECTOR = 512  # bytes; a disk writes no less at a time, and begins files with a new one
_LONG_AFTER = 60.0  # seconds; a document is written at once behind its record


def may_be_behind(folder: Path, text: str | None, segment: str | None) -> bool:
    """Tell whether documents may not be where the last record led, as whoever wrote that was killed.

    Args:
        folder: The user's.
        text: The record; None if there is none.
        segment: The file that it is in.
    """
    written = file_token(segment) if text is not None and segment is not None else None
    if text is None or written is None:
        return False
    found = [file_token(folder / f"{kind}.toml") for kind in result_kinds(text)]
    # What was put in its place behind a record was changed behind it, if only its name.
    return any(token is not None and token[3] <= written[0] for token in found)


def window_records(folder: Path) -> list[Record]:
    """Return the records, newest first, whose documents a power cut may have taken; damaged ones are left out."""
    found: list[Record] = []
    for text in window(folder):
        try:
            found.append(parse_record(text))
        except InvalidTOML:
            break  # what is in front of it does not lead to what is behind it
    return found


def roll_forward(
    folder: Path,
    records: list[Record],
    staged_as: Callable[[str, bytes, int], str],
    staged: Collection[str],
    *,
    may_be_torn: bool,
) -> None:
    """Bring documents to where history ends, if a crash kept them from it.

    Args:
        folder: The user's.
        records: The last ones of history, newest first: those whose documents are looked at.
        staged_as: Returns a new path to stage a document at, by kind, content and transaction.
        staged: The names of the files that were found staged.
        may_be_torn: Whether the power may have failed: otherwise the beginning of a version is a person's save.

    Raises:
        OSError, BackendError: It did not happen now either.
    """
    last = records[0].seq if records else 0
    copied = _copied_at(folder, records)
    awaited = {
        target_of(name) for name in staged if not is_spare(name) and staged_for(name) <= last
    }
    for kind in dict.fromkeys(kind for record in records for kind in record.results):
        steps = [record for record in records if kind in record.results]
        target = folder / f"{kind}.toml"
        found = read_file(target)
        if found is not None:
            is_ours = may_be_torn and not _is_written_later(found[1], steps[0], copied)
            text = _brought_forward(folder, kind, steps, found[0], may_be_torn=is_ours)
        else:
            newest = records[0]
            steps = [record for record in steps if record.seq == newest.seq]
            if not steps or steps[-1].bases[kind] != EMPTY:
                continue  # its name was on the disk: somebody has removed it since
            if not may_be_torn and f"{kind}.toml" not in awaited:
                continue  # a new one is staged until it is in its place: see above
            text = _redone("", kind, steps)
        if text is None:
            continue
        make_parent(str(folder), kind, sync=True)
        temp = _stage(kind, text.encode("utf-8"), records[0].seq, staged_as)
        put_in_place(temp, str(target), found[1] if found is not None else None)
        # A later commit exchanges the file, and does not sync a name that was there before.
        sync_folder(target.parent)


def repaired(folder: Path, kind: str, data: bytes, token: FileToken) -> bytes:
    """Return what a document has to be if a power cut tore it, else what stands there; needs no lock.

    Args:
        folder: The user's.
        kind: The document.
        data: What stands in its file.
        token: Which version of the file that is.
    """
    try:
        records = window_records(folder)
        if not records or not may_lack_writes(folder, records[0]):
            return data
        steps = [record for record in records if kind in record.results]
        if not steps:
            return data
        is_ours = not _is_written_later(token, steps[0], _copied_at(folder, records))
        text = _brought_forward(folder, kind, steps, data, may_be_torn=is_ours)
    except (OSError, DocumentError):
        return data  # history is damaged, or is replaced just now
    return data if text is None else text.encode("utf-8")


def _copied_at(folder: Path, records: list[Record]) -> float:
    """Return when history was copied here by a program that keeps no times; 0.0 if it was not."""
    newest = newest_segment(folder / "history")
    token = file_token(newest) if newest is not None else None
    if token is None or not records or not _is_written_later(token, records[0], 0.0):
        return 0.0
    return token[0] / 1e9


def _is_written_later(token: FileToken, record: Record, copied: float) -> bool:
    """Return whether a file was written so long after a record, or after its copying, that another program did it."""
    written = max(datetime.fromisoformat(record.time).timestamp(), copied)
    return token[0] / 1e9 > written + _LONG_AFTER


def _brought_forward(
    folder: Path, kind: str, steps: list[Record], data: bytes, *, may_be_torn: bool
) -> str | None:
    """Return what a document has to be, or None if it is to stay.

    Args:
        folder: The user's.
        kind: The document.
        steps: The last records that changed it, newest first.
        data: What stands in its file.
        may_be_torn: As in `roll_forward`.
    """
    text = data.decode("utf-8", "replace")
    now = digest(text)
    for number, record in enumerate(steps):
        if record.results[kind] == now:
            return _redone(text, kind, steps[:number]) if number else None
    if steps[-1].bases[kind] == now:
        return _redone(text, kind, steps)
    if not may_be_torn:
        return None
    versions = _versions(folder, kind, steps)
    return versions[-1] if is_torn(data, versions) else None


def _redone(text: str, kind: str, steps: list[Record]) -> str:
    for record in reversed(steps):
        text = redo(text, record, kind)
    return text


def _versions(folder: Path, kind: str, steps: list[Record]) -> list[str]:
    """Return what a document was before these records, newest first, and after each; none if nobody knows."""
    try:
        first = steps[-1]
        text = ""
        if first.bases[kind] != EMPTY:
            text = history_of(folder).text(kind, first.seq - 1)
        found = [text]
        for record in reversed(steps):
            text = redo("" if record.bases[kind] == EMPTY else text, record, kind)
            found.append(text)
    except DocumentError as error:
        _logger.warning("history of %s cannot be read: %s", kind, type(error).__name__)
        return []
    return found


def is_torn(data: bytes, versions: list[str]) -> bool:
    """Tell whether this is what a power cut left of a file that held these texts, one written over the other.

    Each of its sectors is that of one of them, or zeros, or was just being written over.
    """
    wholes = [version.encode("utf-8") for version in versions]
    if len(data) > max(map(len, wholes), default=-1):
        return False
    return all(
        _is_mixed(data[at : at + _SECTOR], [whole[at : at + _SECTOR] for whole in wholes])
        for at in range(0, len(data), _SECTOR)
    )


def _is_mixed(part: bytes, found: Collection[bytes]) -> bool:
    """Tell whether a sector was one of these, or begins like one and ends like another; behind them are zeros."""
    if any(part == each[: len(part)] for each in found):
        return True
    zeros = bytes(len(part))
    wholes = {zeros, *(each[: len(part)].ljust(len(part), b"\0") for each in found)}
    if any(_is_part(part, whole) for whole in wholes):
        return True
    begin = max(_common(part, whole) for whole in wholes)
    end = max(_common(part[::-1], whole[::-1]) for whole in wholes)
    return begin + end >= len(part)


def _common(one: bytes, two: bytes) -> int:
    """Return how many bytes two sectors begin with alike."""
    pairs = enumerate(zip(one, two, strict=True))
    return next((at for at, (left, right) in pairs if left != right), len(one))


def _is_part(data: bytes, whole: bytes) -> bool:
    """Tell whether the one is the other with zeros in place of some of its bytes."""
    return all(whole.startswith(run[0], run.start()) for run in _WRITTEN.finditer(data))


def half_done(folder: Path, names: list[str], *, are_all_dead: bool = False) -> list[str]:
    """Return the names under which killed processes may have left something, in the order of their transactions.

    Args:
        folder: The user's.
        names: What is in it.
        are_all_dead: Whether the machine was restarted since the user's last transaction.
    """
    found = [*staged_in(names), *left_behind(str(folder), names, are_all_dead=are_all_dead)]
    # What is neither a file nor a link is nothing of ours, nor a save.
    return [name for name in found if (folder / name).is_file() or (folder / name).is_symlink()]


def is_left_over(folder: Path, name: str, newest: int, *, may_be_torn: bool) -> bool:
    """Tell whether a staged file is to be removed, and no save that an exchange put there.

    Args:
        folder: The user's.
        name: The staged file's.
        newest: Number of the last transaction in history, before anything was put right.
        may_be_torn: As in `roll_forward`.

    Raises:
        BackendError: It cannot be read.
    """
    path = folder / name
    if is_being_saved(str(path)) or not path.is_file() or path.is_symlink():
        return False
    found = read_file(path)
    if found is None:
        return True
    if is_spare(name):
        data, token = found
        if token[0] == AT_REST or not data or data.startswith(UNFINISHED):
            return True
        if spare_window(name) != window_of(newest):
            return True  # it was not exchanged in this one
    elif is_as_staged(name, found[0], newest):
        return True
    # Exchanges come behind the commit point: what stands here was displaced by one, or is torn.
    kind = target_of(name).removesuffix(".toml")
    now = digest(found[0].decode("utf-8", "replace"))
    return now in _logged(folder) or (may_be_torn and _is_torn_of_ours(folder, kind, found[0]))


def set_aside(path: str, staged: str) -> str:
    """Give a save that was displaced the path `staged` if it has that of a spare; return the name that it has then."""
    folder, _, name = path.rpartition("/")
    if is_spare(name):
        try:
            os.rename(path, staged)  # noqa: PTH104 - paths are strings here
        except OSError:
            return name
        name = staged[len(folder) + 1 :]
    return name


def _stage(kind: str, data: bytes, seq: int, staged_as: Callable[[str, bytes, int], str]) -> str:
    """Stage a document of a transaction that is in history already."""
    # Until it is whole it must not look like something that an exchange has displaced.
    unfinished = staged_as(kind, data, seq + 1)
    write_new(unfinished, data, sync=True)
    temp = staged_as(kind, data, seq)
    os.replace(unfinished, temp)  # noqa: PTH105 - paths are strings here
    return temp


def _is_torn_of_ours(folder: Path, kind: str, data: bytes) -> bool:
    steps = [record for record in window_records(folder) if kind in record.results]
    return bool(steps) and is_torn(data, _versions(folder, kind, steps))


def _logged(folder: Path) -> set[str]:
    """Return the fingerprints of all texts that history leads to."""
    found: set[str] = set()
    for text in read_records(folder / "history"):
        try:
            found.update(parse_record(text).results.values())
        except InvalidTOML:
            continue  # one damaged record must not keep the user from being opened
    return found
