"""Forgetting in journals and dead letters, also in those that a writer is just using."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tomldiary.storage.file_lock import lock_file
from tomldiary.storage.files import read_all, sync_folder, write_new
from tomldiary.writer.journal_record import split_entries, turn_of, without_earlier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tomldiary.forgetting.selection import Selection
    from tomldiary.writer.journal_record import Entry
    from tomldiary.writer.receipts import Turn

__all__ = ["forget_turns"]


def forget_turns(root: Path, user: str, selection: Selection, epoch: int) -> int:
    """Take a user's selected turns out of all journals and dead letters, and return how many there were.

    What a model made of any other turn of the user goes too: it had the memory before it.

    Args:
        root: The folder of the journals.
        user: Whose turns.
        selection: Which of them.
        epoch: The user's epoch from now on; turns of this epoch came later and stay.

    Raises:
        OSError: A file could not be written. Do it again.
    """
    count = 0
    others: dict[Path, set[int]] = {}
    for path in _files(root):
        known = others.setdefault(path.parent, set())
        count += _forget_in(path, user, selection, epoch, known)
    return count


def _files(root: Path) -> Iterator[Path]:
    # Dead letters first: those that are put back meanwhile are in a journal before they are gone from there.
    # A journal's files oldest first: what was made of a turn is in the turn's file or in a later one.
    yield from sorted(root.glob("*.toml"))
    yield from sorted(root.glob("*/*.toml"))
    yield from sorted(root.glob("*/*.damaged"))


def _forget_in(path: Path, user: str, selection: Selection, epoch: int, others: set[int]) -> int:
    try:
        with lock_file(path) as descriptor:
            data = read_all(descriptor)
            entries = split_entries(data)
            kept, count = _kept(entries, user, selection, epoch, others)
            fresh = "".join(entry.text for entry in kept).encode()
            temp = path.with_name(f".{path.name}.tmp")
            temp.unlink(missing_ok=True)  # of somebody who was killed; the lock keeps others away
            if fresh == data:
                return 0
            write_new(str(temp), fresh, sync=True)
            # A writer that has the old file open sees another inode at its path before its next append.
            os.replace(temp, path)  # noqa: PTH105 - next to the descriptor's calls
            sync_folder(path.parent)
            return count
    except FileNotFoundError:
        return 0  # all its turns are done


def _kept(
    entries: list[Entry], user: str, selection: Selection, epoch: int, others: set[int]
) -> tuple[list[Entry], int]:
    """Return what stays of a file, and add to `others` the numbers of turns that are not the user's."""
    kept: list[Entry] = []
    count = 0
    for entry in entries:
        data = entry.data
        if data is None:
            continue  # what cannot be read cannot be looked through, so it does not stay
        if entry.kind == "operations":
            # Of a turn that is in no file any more nobody needs it, and nobody knows whose it was.
            if others.issuperset(data["numbers"]):
                kept.append(entry)
        elif entry.kind == "done":
            kept.append(entry)
        else:
            turn = turn_of(data)
            if turn.user_id == user and data["epoch"] < epoch:
                if _is_selected(turn, data, selection):
                    count += 1
                    continue
                if turn.earlier:
                    # What was said before this turn may be what is forgotten.
                    kept.append(replace(entry, text=without_earlier(entry)))
                    continue
            else:
                others.add(data.get("number", 0))
            kept.append(entry)
    return kept, count


def _is_selected(turn: Turn, data: dict[str, Any], selection: Selection) -> bool:
    if selection.everything:
        return True
    if selection.session_id:
        return turn.session_id == selection.session_id
    if selection.source:
        source = f"{turn.session_id}#{data['operation']}"
        return selection.names(source, selection.source) or data["operation"] == selection.source
    said = turn.context_now or datetime.fromisoformat(data["time"])
    said = said if said.tzinfo is not None else said.replace(tzinfo=UTC)
    return selection.before is not None and said < selection.before
