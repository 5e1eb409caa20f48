"""Forgetting in files: a job that anybody can finish.

    .forgetting.toml        the job: what to forget, and how far it is
    .forgetting-0, -1, …    files as they are going to be

The job file is written first and removed last. While it says "begun", nothing was changed and all is worked
out again; from "staged" on, the staged files only have to be put in their places. Whoever opens or
locks the user next finishes what a killed process left. All of it is synced, whatever the durability.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tomldiary.backends.base import Stored
from tomldiary.backends.files import file_token, make_folder, read_file, sync_folder, write_new
from tomldiary.backends.segments import new_segment, segments, split_records
from tomldiary.erasure import plan
from tomldiary.errors import BackendError, DiaryError, InvalidTOML
from tomldiary.forgetting import ForgetReceipt, Selection
from tomldiary.history import parse_record, render_record
from tomldiary.ingest.ledger import LEDGER_NAME, without_sessions
from tomldiary.toml.blockedit import render_block
from tomldiary.toml.document import Document
from tomldiary.toml.parse import decode_utf8, parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tomldiary.backends.files import FileToken
    from tomldiary.backends.local import LocalBackend
    from tomldiary.erasure import Plan
    from tomldiary.history import Record

__all__ = ["JOB_NAME", "JOB_PREFIX", "finish", "forget"]

JOB_PREFIX = ".forgetting"
"""All names that begin with this belong to a job."""
JOB_NAME = f"{JOB_PREFIX}.toml"
_STAGED = f"{JOB_PREFIX}-"
_HEAD = (
    "# Something is being forgotten here. Whoever opens this user next finishes it; leave the file alone.\n"
)


@dataclass(slots=True)
class _Job:
    """What the job file says."""

    selection: Selection
    epoch: int
    is_staged: bool = False
    files: list[list[str]] = field(default_factory=list[list[str]])
    """Each staged file, and the name it is going to have."""
    documents: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Each document that changes: its staged file, the version it was made from, and the entries."""


def forget(backend: LocalBackend, user: str, selection: Selection) -> ForgetReceipt:
    """Forget a selection; the caller holds the user's lock.

    Raises:
        DocumentError: A document cannot be read just now. Nothing was changed.
        BackendError: The storage failed; the message says whether something was changed.
    """
    folder = backend.folder(user)
    epoch = backend.epoch(user) + 1
    _check_folder(folder)
    if not folder.is_dir():
        backend.epochs.write(user, epoch)  # a first turn may be under way
        return ForgetReceipt(epoch=epoch)
    job = _Job(selection, epoch)
    history, records, worked_out = _work_out(backend, user, folder, selection)
    if worked_out.is_empty and not selection.everything and not _marks(folder, worked_out, selection):
        backend.epochs.write(user, epoch)
        return ForgetReceipt(epoch=epoch, files=_digests(folder))
    try:
        _write_job(folder, job)
        backend.epochs.write(user, epoch)
        if not selection.everything:
            _stage(folder, job, history, records, worked_out)
    except (OSError, DiaryError) as error:
        _take_back(folder)
        if isinstance(error, DiaryError):
            raise
        raise BackendError(
            f"{error.filename or folder}: cannot be written ({error.strerror}). Nothing was forgotten."
        ) from error
    _run(backend, user, folder, job)
    return replace(worked_out.receipt, epoch=epoch, files=_digests(folder))


def finish(backend: LocalBackend, user: str) -> None:
    """Finish a job that a killed process left, if there is one; the caller holds the user's lock."""
    folder = backend.folder(user)
    _check_folder(folder)
    try:
        job = _read_job(folder)
        if job is None:
            _take_back(folder)
            return
        backend.epochs.write(user, job.epoch)
        if not job.is_staged and not job.selection.everything:
            _sweep(folder)
            history, records, worked_out = _work_out(backend, user, folder, job.selection)
            _stage(folder, job, history, records, worked_out)
    except OSError as error:
        raise _unfinished(folder, error) from error
    _run(backend, user, folder, job)


def _run(backend: LocalBackend, user: str, folder: Path, job: _Job) -> None:
    try:
        if job.selection.everything:
            _remove(folder)
        else:
            _publish(folder, job)
    except OSError as error:
        raise _unfinished(folder, error) from error
    finally:
        backend.reopen(user)


def _unfinished(folder: Path, error: OSError) -> BackendError:
    return BackendError(
        f"{error.filename or folder}: cannot be written ({error.strerror}). What was to be forgotten is"
        " forgotten when the user is opened next; until then some of it is still there."
    )


# Everything


def _remove(folder: Path) -> None:
    """Remove the folder: the job file last, documents before it, so that the user is listed until then."""
    children = sorted(os.scandir(folder), key=lambda entry: entry.name.endswith(".toml"))
    for child in children:
        if child.name == JOB_NAME:
            continue
        if child.is_dir(follow_symlinks=False):
            shutil.rmtree(child.path)
        else:
            os.unlink(child.path)  # noqa: PTH108 - of a link, the link
    sync_folder(folder)
    (folder / JOB_NAME).unlink()
    folder.rmdir()
    sync_folder(folder.parent)


# A part


def _work_out(
    backend: LocalBackend, user: str, folder: Path, selection: Selection
) -> tuple[dict[str, list[str]], list[Record], Plan]:
    """Return the texts of all records by segment, the records, and what is to be done. Reads only."""
    from tomldiary.erasure import Plan  # noqa: PLC0415 - a type elsewhere in this module

    history: dict[str, list[str]] = {}
    records: list[Record] = []
    for path in segments(folder / "history"):
        texts: list[str] = []
        for text in split_records(_content(path)):
            try:
                records.append(parse_record(text))
            except InvalidTOML:
                continue  # torn or damaged: nobody can tell what it holds, so it does not stay
            texts.append(text)
        history[path.name] = texts
    if selection.everything:
        return history, records, _counted(folder, len(records))

    def read() -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        for kind in backend.kinds(user):
            path = folder / f"{kind}.toml"
            stored = read_file(path)
            if stored is not None:
                found[kind] = Stored(decode_utf8(stored[0], path=str(path)), stored[1])
        return found

    known = [text for texts in history.values() for text in texts]
    made: Plan = plan(user, known, records, read, selection, backend.place)
    return history, records, made
