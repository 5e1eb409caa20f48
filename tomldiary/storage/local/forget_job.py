"""Forget jobs: redaction of a user's files, which any process can finish.

    .forgetting.toml        the job: the selection to forget, and the progress
    .forgetting-0, -1, …    the staged new versions of files

The job file is written first and removed last. Before `is_staged` is set, no file was changed, and a resumed job
computes all files again. After that, only the staged files must be published. The next process that opens or locks
the user finishes the job of a killed process. All writes are synced, whatever the durability.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tomldiary.errors import BackendError, DiaryError, InvalidTOML
from tomldiary.forgetting.redact import Plan, is_bare, plan
from tomldiary.forgetting.selection import ForgetReceipt, Selection
from tomldiary.history.record import parse_record, render_record, stamped
from tomldiary.storage.files import file_token, make_folder, read_file, sync_folder, write_new
from tomldiary.storage.local.checkpoint import drop_superseded
from tomldiary.storage.local.layout import JOB_NAME, JOB_PREFIX, OWNER_NAME, strays_in
from tomldiary.storage.local.log import damaged, new_segment, segments, split_records
from tomldiary.storage.local.user_dirs import boot_of
from tomldiary.storage.protocol import Stored
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit
from tomldiary.toml.parse import decode_utf8, parse_toml
from tomldiary.toml.values import render_block

if TYPE_CHECKING:
    from tomldiary.history.record import Record
    from tomldiary.storage.local.backend import LocalBackend

__all__ = [
    "STAGED",
    "Job",
    "finish",
    "forget",
    "read_job",
    "sweep_staged",
    "take_back",
    "write_job",
]

STAGED = f"{JOB_PREFIX}-"
"""The prefix of the names of files that the job has staged."""
_HEAD = "# Something is being forgotten here. The next process that opens this user finishes it; leave this file alone.\n"


@dataclass(slots=True)
class Job:
    """The content of the job file."""

    selection: Selection
    epoch: int
    is_staged: bool = False
    files: list[list[str]] = field(default_factory=list[list[str]])
    """Each staged file and its target name."""
    documents: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Each changed document: its staged file, its base version, its changed entries, and whether it is removed."""


def write_job(folder: Path, job: Job) -> None:
    """Write the job file atomically."""
    table = {
        "selection": job.selection.to_table(),
        "epoch": job.epoch,
        "is_staged": job.is_staged,
        "files": job.files,
        "documents": job.documents,
    }
    temp = folder / f"{STAGED}job"
    temp.unlink(missing_ok=True)
    write_new(str(temp), f"{_HEAD}{render_block((), table)}".encode(), sync=True)
    temp.replace(folder / JOB_NAME)
    sync_folder(folder)


def read_job(folder: Path) -> Job | None:
    """Return the job in a user's folder, or None."""
    found = read_file(folder / JOB_NAME)
    if found is None:
        return None
    table = parse_toml(decode_utf8(found[0]), path=str(folder / JOB_NAME))
    selection = Selection.from_table(table["selection"])
    return Job(
        selection, table["epoch"], table["is_staged"], table["files"], table["documents"]
    )  # fmt: skip


def sweep_staged(folder: Path) -> None:
    """Remove the staged files of a job, which can be computed again."""
    for child in list(os.scandir(folder)):
        if child.name.startswith(STAGED):
            Path(child.path).unlink()


def take_back(folder: Path) -> bool:
    """Remove a job that has changed nothing yet; return whether this succeeded."""
    try:
        (folder / JOB_NAME).unlink(missing_ok=True)
        sync_folder(folder)
        sweep_staged(folder)
    except OSError:
        return False
    return True


def forget(backend: LocalBackend, user: str, selection: Selection) -> ForgetReceipt:
    """Forget a selection; the caller holds the user's lock.

    Raises:
        DocumentError: A document cannot be read now. Nothing was changed.
        BackendError: The storage failed; the message states whether something was changed.
    """
    try:
        return _forget(backend, user, selection)
    except OSError as error:
        # This error comes from the steps before the job begins; later steps raise their own errors.
        raise BackendError(
            f"{error.filename or backend.folder(user)}: cannot be read ({error.strerror}). Nothing was"
            " forgotten."
        ) from error


def _forget(backend: LocalBackend, user: str, selection: Selection) -> ForgetReceipt:
    folder = backend.folder(user)
    epoch = backend.epoch(user) + 1
    _check_folder(folder)
    if not folder.is_dir():
        backend.epochs.write(user, epoch)  # the user's first turn may be in a writer's queue
        _forget_turns(backend, user, selection, epoch)
        return ForgetReceipt(epoch=epoch)
    if not selection.everything:
        backend.settle(user)  # recovery cannot restore documents from records that are redacted
    job = Job(selection, epoch)
    try:
        work = _Work(backend, user, folder, selection)
    except DiaryError:
        if not selection.everything:
            raise
        work = None  # an unreadable file can still be removed
    if work is not None and work.is_empty and not selection.everything:
        backend.epochs.write(user, epoch)
        _forget_turns(backend, user, selection, epoch)
        return ForgetReceipt(epoch=epoch, files=_digests(folder))
    try:
        write_job(folder, job)
        backend.epochs.write(user, epoch)
        if work is not None and not selection.everything:
            work.stage(job)
    except (OSError, DiaryError) as error:
        if not take_back(folder):
            backend.reopen(user)  # the next open finishes the job
            raise _unfinished(folder, error) from error
        if isinstance(error, DiaryError):
            raise
        raise BackendError(
            f"{error.filename or folder}: cannot be written ({error.strerror}). Nothing was forgotten."
        ) from error
    _run(backend, user, folder, job)
    receipt = work.plan.receipt if work is not None else ForgetReceipt()
    return replace(receipt, epoch=epoch, files=_digests(folder))


def finish(backend: LocalBackend, user: str) -> None:
    """Finish a job that a killed process left, if there is one; the caller holds the user's lock.

    Raises:
        DocumentError: A document no longer parses. It must be corrected first.
        BackendError: The storage failed; the job remains unfinished.
    """
    folder = backend.folder(user)
    _check_folder(folder)
    try:
        job = read_job(folder)
        if job is None:
            take_back(folder)  # the process was killed before it wrote the job file
            return
        backend.epochs.write(user, job.epoch)
        if not job.is_staged and not job.selection.everything:
            sweep_staged(folder)
            _Work(backend, user, folder, job.selection).stage(job)
    except OSError as error:
        raise _unfinished(folder, error) from error
    _run(backend, user, folder, job)


def _run(backend: LocalBackend, user: str, folder: Path, job: Job) -> None:
    try:
        _forget_turns(backend, user, job.selection, job.epoch)
        _forget_index(backend.index_folder(user), everything=job.selection.everything)
        if job.selection.everything:
            _remove(folder)
        else:
            _publish(folder, job)
    except (OSError, BackendError) as error:
        raise _unfinished(folder, error) from error
    finally:
        backend.reopen(user)


def _forget_turns(backend: LocalBackend, user: str, selection: Selection, epoch: int) -> None:
    """Remove selected turns from the journals of background writers, including running ones."""
    root = backend.journal_root
    if root.is_dir():
        from tomldiary.writer.journal_record import forget_turns  # noqa: PLC0415 - a journal is rare

        forget_turns(root, user, selection, epoch)


def _forget_index(folder: Path, *, everything: bool) -> None:
    """Remove data derived from the user's texts; data still needed is computed again.

    The expiry times of items, stored under keyed hashes, are removed only with all data of the user.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    if everything:
        shutil.rmtree(folder)
        return
    for path in folder.glob("vectors-*"):
        path.unlink()


def _unfinished(folder: Path, error: OSError | DiaryError) -> BackendError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return BackendError(
        f"{getattr(error, 'filename', None) or folder}: cannot be written ({reason}). Some of what was to be"
        " forgotten is still there; the rest is forgotten when the user is opened next."
    )


def _check_folder(path: Path) -> None:
    if path.is_symlink():
        raise BackendError(
            f"{path}: is a link. Nothing was forgotten; its target is not touched. Put a folder"
            " there."
        )


# Everything


def _remove(folder: Path) -> None:
    """Remove the folder; the owner file and then the job file are removed last."""
    for child in sorted(os.scandir(folder), key=lambda child: child.name == OWNER_NAME):
        if child.name == JOB_NAME:
            continue
        if child.is_dir(follow_symlinks=False):
            shutil.rmtree(child.path)
        else:
            Path(child.path).unlink()  # a link is removed, not its target
    sync_folder(folder)
    (folder / JOB_NAME).unlink()
    folder.rmdir()
    sync_folder(folder.parent)


# A part


class _Work:
    """Computes the redaction of a user's files; writes no document until `stage` is called."""

    def __init__(
        self, backend: LocalBackend, user: str, folder: Path, selection: Selection
    ) -> None:
        self._folder = folder
        self._segments: dict[str, bytes] = {}
        self._texts: list[list[str]] = []
        for name in strays_in(folder):
            raise BackendError(
                f"{folder / name}: may hold what is to be forgotten, and no document can have this name."
                " Nothing was forgotten. Remove the file, or move it out of the folder."
            )
        self._records: list[Record] = []
        _check_folder(folder / "history")
        drop_superseded(folder / "history")
        for path in segments(folder / "history"):
            self._read_segment(path)

        def read() -> dict[str, Stored]:
            found: dict[str, Stored] = {}
            for kind in backend.kinds(user):
                path = folder / f"{kind}.toml"
                stored = read_file(path)
                if stored is not None:
                    found[kind] = Stored(decode_utf8(stored[0], path=str(path)), stored[1])
            return found

        known = [text for texts in self._texts for text in texts]
        self.plan: Plan = plan(
            user, known, self._records, read, selection, backend.place, backend.is_being_saved
        )

    def _read_segment(self, path: Path) -> None:
        found = read_file(path)
        self._segments[path.name] = found[0] if found is not None else b""
        texts: list[str] = []
        for text in split_records(self._segments[path.name]):
            # A damaged record cannot be searched, so it is removed.
            with contextlib.suppress(InvalidTOML):
                self._records.append(parse_record(text))
                texts.append(text)
        self._texts.append(texts)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to forget; a damaged record may hold anything, so it counts."""
        return self.plan.is_empty and not damaged(self._folder / "history")

    def stage(self, job: Job) -> None:
        """Stage the new versions of all files, then record this in the job file."""
        if not self.plan.is_empty:
            for name, data in self._new_segments():
                if data != self._segments.get(name):
                    self._put(job, f"history/{name}", data)
        for kind, text in self.plan.texts.items():
            self._put(job, f"{kind}.toml", text.encode())
            job.documents[kind] = {
                "staged": job.files.pop()[0],
                "token": list(self.plan.tokens[kind]),
                "entries": [list(path) for path in self.plan.changed.get(kind, [])],
                "is_removed": kind in self.plan.removed,
            }
        sync_folder(self._folder)
        job.is_staged = True
        write_job(self._folder, job)

    def _new_segments(self) -> list[tuple[str, bytes]]:
        old, new = iter(self._records), iter(self.plan.records)
        made: list[list[str]] = [
            [text if (fresh := next(new)) is next(old) else render_record(fresh) for text in texts]
            for texts in self._texts
        ]
        names = list(self._segments)
        if not names:
            names.append(new_segment(self._folder / "history", None).name)
            made.append([])
            make_folder(self._folder / "history", sync=True)
        boot = boot_of(self._folder)
        made[-1] += [stamped(render_record(record), boot) for record in self.plan.added]
        return [(name, "".join(texts).encode()) for name, texts in zip(names, made, strict=True)]

    def _put(self, job: Job, target: str, data: bytes) -> None:
        name = f"{STAGED}{len(job.files) + len(job.documents)}"
        write_new(str(self._folder / name), data, sync=True)
        job.files.append([name, target])


def _publish(folder: Path, job: Job) -> None:
    """Publish the staged files; skip files that are already published."""
    for name, target in job.files:
        with contextlib.suppress(FileNotFoundError):
            (folder / name).replace(folder / target)
    for kind, document in job.documents.items():
        _publish_document(folder, kind, document)
    for aside in damaged(folder / "history"):
        aside.unlink()
    for place in {
        (folder / "history"),
        *((folder / f"{kind}.toml").parent for kind in job.documents),
    }:
        if place.is_dir():
            sync_folder(place)
    sweep_staged(folder)  # a power cut may have restored the name of a published file
    sync_folder(folder)
    (folder / JOB_NAME).unlink()
    sync_folder(folder)


def _publish_document(folder: Path, kind: str, document: dict[str, Any]) -> None:
    staged, target = folder / document["staged"], folder / f"{kind}.toml"
    if not staged.exists():
        return
    token = file_token(target)
    if token is None:
        # The document was removed, by another program or by a process that was killed here.
        if document.get("is_removed"):
            _remove_empty_folders(target.parent, folder)
        staged.unlink()
        return
    if list(token) != document["token"]:
        # A concurrent hand edit: redact its entries here; the next access merges the rest as usual.
        made, saved = _document(staged), _document(target)
        edit = Edit(saved)
        for path in map(tuple[str, ...], document["entries"]):
            block = made.index.get(path)
            edit.delete(path)
            if block is not None:
                edit.restore(path, block.text, made.own_values(path) or {})
        # The staged file is replaced atomically: without it the document would count as published.
        merged = staged.with_name(f"{staged.name}-merged")
        merged.unlink(missing_ok=True)
        write_new(str(merged), edit.done().text.encode(), sync=True)
        merged.replace(staged)
    if document.get("is_removed") and is_bare(_document(staged).text):
        target.unlink()
        _remove_empty_folders(target.parent, folder)
        staged.unlink()
        return
    staged.replace(target)


def _remove_empty_folders(place: Path, top: Path) -> None:
    """Remove the empty folders of a removed document, as their names are labels of its namespace."""
    while place != top:
        try:
            place.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            break  # the folder is not empty
        place = place.parent
    sync_folder(place)


def _document(path: Path) -> Document:
    return Document.parse(decode_utf8(_content(path), path=str(path)), path=str(path))


def _content(path: Path) -> bytes:
    found = read_file(path)
    return found[0] if found is not None else b""


def _digests(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            # A file that cannot be read now has no hash; its content was still redacted.
            with contextlib.suppress(OSError, BackendError):
                if not path.is_symlink():
                    relative = path.relative_to(folder).as_posix()
                    found[relative] = sha256(_content(path)).hexdigest()
    return dict(sorted(found.items()))
