"""The journals of all writers of a folder: who owns them, recovery after a crash, and the erasure of turns.

The format is described in `journal`.
"""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from tomldiary.entries.kinds.episodes import ToolStep
from tomldiary.errors import InvalidValue
from tomldiary.extraction.context import Turn
from tomldiary.extraction.operations import from_dict
from tomldiary.forgetting.selection import Selection
from tomldiary.logging import get_logger, tell
from tomldiary.runtime.fork_safety import close_lockable, open_lockable
from tomldiary.runtime.views import counted
from tomldiary.storage.files import PRIVATE, FileSystem
from tomldiary.storage.locks import found_at, lock_file, try_lock
from tomldiary.storage.log import LogRecord, cut_torn_tail, render_record, rewrite_log, scan_log
from tomldiary.toml.values import render_value
from tomldiary.writer.receipts import Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


EARLIER = "earlier = "
ERROR = "error = "
_OWNER = "owner.lock"
_OWNER_FLAGS = os.O_RDWR | PRIVATE
_DAMAGED_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | PRIVATE

_logger = get_logger(__name__)


# Reading


def turn_of(data: dict[str, Any]) -> Turn:
    """Return the turn of a record."""
    now = data.get("context_now")
    user = data.get("user")
    if user is None:
        user = str(data["user_escaped"]).encode("ascii").decode("unicode_escape")
    return Turn(
        user,
        data["session"],
        data["user_msg"],
        data["assistant_msg"],
        datetime.fromisoformat(now) if now else None,
        data.get("status", "completed"),
        data["operation"],
        tuple((str(said), str(answer)) for said, answer in data["earlier"])
        if "earlier" in data
        else None,
        tuple(ToolStep(*map(str, step)) for step in data.get("steps", ())),
        data.get("episode"),
    )


def segment_files(folder: Path) -> list[Path]:
    """Return a journal's files, oldest first."""
    return sorted(path for path in folder.glob("*.toml") if path.stem.isdecimal())


def read_segments(files: FileSystem, folder: Path) -> dict[int, list[LogRecord]]:
    """Return the records of a dead writer's journal by the numbers of its files.

    Each torn log tail is cut off, and damaged records are copied to another file.
    """
    return {int(path.stem): _records(files, path) for path in segment_files(folder)}


def waiting_jobs(root: Path) -> list[Job]:
    """Return the unfinished turns in the journals below a folder; this changes nothing."""
    return [job for folder in root.glob("*") for job in jobs_of(_records_now(folder))]


def _records_now(folder: Path) -> list[LogRecord]:
    """Return the records of a journal, whose writer may add others meanwhile."""
    records: list[LogRecord] = []
    for path in segment_files(folder):
        with suppress(FileNotFoundError):  # all its turns are done
            records += scan_log(path.read_bytes())
    return records


def _records(files: FileSystem, path: Path) -> list[LogRecord]:
    with lock_file(files, path) as descriptor:
        records = cut_torn_tail(files, descriptor)
        damaged = [each.text for each in records if each.body is None]
        if damaged:
            aside = path.with_suffix(".damaged")
            text = f"{path}: {counted(len(damaged), 'record')} failed the checksum; not applied, and copied to {aside.name}"
            tell(_logger, text, logging.ERROR)
            copy = files.open(aside, _DAMAGED_FLAGS, 0o600)
            try:
                files.write_all(copy, "".join(damaged).encode())
            finally:
                files.close(copy)
    return records


def jobs_of(records: Iterable[LogRecord]) -> list[Job]:
    """Return the unfinished turns in their order.

    Turns that were read together are one job with a group: their operations are applied once.
    """
    jobs: dict[int, Job] = {}
    groups: dict[int, list[int]] = {}
    for record in records:
        data = record.data
        if data is None:
            continue
        if record.kind == "turn":
            job = jobs[data["number"]] = Job(turn_of(data), data["operation"], is_new=False)
            job.number, job.epoch, job.time = data["number"], data["epoch"], data["time"]
            job.receipt.settle_stored(True)  # noqa: FBT003 - the result itself
        elif record.kind != "operations":
            for number in data["numbers"]:
                jobs.pop(number, None)
        elif numbers := [number for number in data["numbers"] if number in jobs]:
            first = jobs[numbers[0]]
            with suppress(InvalidValue):  # a later version wrote them, so the turn is read again
                first.operations = [from_dict(each) for each in data["operations"]]
            first.operation = data["operation"]
            groups[numbers[0]] = numbers[1:]
    inside: set[int] = set()
    for number, others in groups.items():
        if number in jobs:
            jobs[number].group = [jobs[each] for each in others if each in jobs]
            inside.update(others)
    return [job for number, job in sorted(jobs.items()) if number not in inside]


# Owners


def claim_new(files: FileSystem, root: Path, *, sync: bool) -> tuple[Path, int]:
    """Create a journal folder; return it with the descriptor of its locked owner file.

    Raises:
        OSError: The folder cannot be created.
    """
    files.make_folder(root, sync=sync)
    # Journals are taken over in the order of their names, and a process may create several in one second.
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{secrets.token_hex(4)}"
    hidden = root / f".{name}"
    files.mkdir(hidden, 0o700)
    files.chmod(hidden, 0o700)
    owner = -1
    try:
        owner = open_lockable(lambda: files.open(hidden / _OWNER, _OWNER_FLAGS | os.O_CREAT, 0o600))
        files.make_private(owner)
        try_lock(owner)
        # Other writers skip hidden folders, so no writer takes it over before it is locked.
        files.replace(hidden, root / name)
        if sync:
            files.sync_folder(root)
    except BaseException:
        for folder in (hidden, root / name):
            with suppress(OSError):
                remove_folder(files, folder)
        if owner >= 0:
            close_owner(files, owner)
        raise
    return root / name, owner


def claim_dead(files: FileSystem, folder: Path) -> int | None:
    """Lock the owner file of a journal and return its descriptor; return None if its writer is alive.

    The system releases a lock when its process dies, so no age or process id is compared.
    """
    try:
        owner = open_lockable(lambda: files.open(folder / _OWNER, _OWNER_FLAGS))
    except FileNotFoundError:
        with suppress(OSError):  # not empty, or another writer has removed it
            files.rmdir(folder)  # its writer was killed while it removed the journal
        return None
    except OSError:
        return None
    if try_lock(owner) and found_at(files, owner, folder / _OWNER):
        return owner
    close_owner(files, owner)
    return None


def close_owner(files: FileSystem, owner: int) -> None:
    """Close the descriptor of an owner file, which unlocks it."""
    close_lockable(owner, files.close)


def remove_folder(files: FileSystem, folder: Path) -> None:
    """Remove the folder of an empty journal while its owner file is locked."""
    files.discard(folder / _OWNER)
    with suppress(OSError):  # damaged records are kept for inspection
        files.rmdir(folder)


# Forgetting


def forget_turns(  # noqa: D417 - see `epoch` in its text
    root: Path, user: str, selection: Mapping[str, Any], epoch: int, files: FileSystem
) -> None:
    """Remove a user's selected turns from all journals.

    The operations extracted from the user's other turns are removed too, because the model had read the memory for
    them. `epoch` is the user's new fencing token: turns with this token were submitted later and stay.

    Args:
        root: The folder of the journals.
        user: The user.
        selection: The table of the `Selection` to remove.
        files: Performs the file operations.

    Raises:
        OSError: A file could not be written. Call this again.
    """
    chosen = Selection.from_table(selection)
    for folder in sorted(root.glob("*")):
        wanted = with_groups(chosen, _records_now(folder)) if chosen.operations else chosen
        foreign: set[int] = set()
        # Oldest first: operations are in the file of their turn or in a later one.
        for path in (*sorted(folder.glob("*.toml")), *sorted(folder.glob("*.damaged"))):
            keep = partial(kept_records, user=user, selection=wanted, epoch=epoch, foreign=foreign)
            with suppress(FileNotFoundError):  # all its turns are done
                rewrite_log(files, path, keep)


def with_groups(selection: Selection, records: list[LogRecord]) -> Selection:
    """Return a selection with all turns that were read together with a selected one: history has only one id."""
    found = [(each.kind, each.data) for each in records if each.data is not None]
    numbers = {
        number
        for kind, data in found
        if kind == "operations" and data["operation"] in selection.operations
        for number in data["numbers"]
    }
    ids = [
        data["operation"] for kind, data in found if kind == "turn" and data["number"] in numbers
    ]
    return replace(selection, operations=[*selection.operations, *ids])


def kept_records(
    records: list[LogRecord], user: str, selection: Selection, epoch: int, foreign: set[int]
) -> list[str]:
    """Return the records to keep; `foreign` collects the numbers of other users' turns and of turns submitted later."""
    kept: list[str] = []
    for record in records:
        data = record.data
        if data is None:
            continue  # dropped, because an unreadable record may contain a selected turn
        if record.kind == "operations":
            # The user of a turn whose record was removed is unknown, so operations are kept only for `foreign` turns.
            if foreign.issuperset(data["numbers"]):
                kept.append(record.text)
        elif record.kind in {"done", "owner"}:
            kept.append(record.text)
        elif (turn := turn_of(data)).user_id != user or data["epoch"] >= epoch:
            foreign.add(data.get("number", 0))
            kept.append(record.text)
        elif not _is_selected(turn, data, selection):
            is_quoting = turn.earlier or "error" in data
            kept.append(_without_quotations(record, data) if is_quoting else record.text)
    return kept


def _without_quotations(record: LogRecord, data: dict[str, Any]) -> str:
    """Return a turn's record without the earlier exchanges and the error's message, which may quote forgotten text."""
    kept: list[str] = []
    for each in (record.body or "").splitlines(keepends=True):
        if each.startswith(ERROR):
            kind = str(data["error"]).partition(":")[0]
            kept.append(f"{ERROR}{render_value(kind)}\n")
        elif not each.startswith(EARLIER):
            kept.append(each)
    return render_record(record.kind, "".join(kept))


def _is_selected(turn: Turn, data: dict[str, Any], selection: Selection) -> bool:
    if selection.everything or turn.operation_id in selection.operations:
        return True
    if selection.session_id:
        return turn.session_id == selection.session_id
    if selection.source:
        # Only the session can be compared, because the turn has no number yet.
        return turn.session_id == selection.source
    if selection.matching:
        steps = (text for step in turn.steps for text in step)
        return selection.mentions([turn.user_msg, turn.assistant_msg, *steps])
    said = turn.context_now or datetime.fromisoformat(data["time"])
    said = said if said.tzinfo is not None else said.replace(tzinfo=UTC)
    # A selection by key selects no waiting turn, because the keys of a turn are unknown before its extraction.
    return selection.before is not None and said < selection.before
