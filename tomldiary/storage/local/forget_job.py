"""Forget jobs: redaction of a user's files, which any process can finish.

    .forgetting-0, -1, …    the staged new versions of files
    .forgetting.toml        the job: the staged files, their targets, and the selection

The job file is written when all files are staged, and removed last. Before it exists, nothing has changed. After that,
the staged files must be published, and the texts outside the user's folder must be redacted (see `runtime.sources`).
The next process that opens or locks the user finishes the job of a killed process. All writes are synced, whatever
the durability.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tomldiary.errors import (
    BackendError,
    DiaryError,
    DocumentError,
    HandEditConflict,
    RevisionConflict,
)
from tomldiary.history.record import stamped
from tomldiary.runtime.sources import redact_sources
from tomldiary.storage.files import failed_path, file_error, is_same, system_remedy
from tomldiary.storage.local.layout import (
    HISTORY,
    JOB_NAME,
    JOB_PREFIX,
    OWNER_NAME,
    SUFFIX,
    SYSTEM,
    strays_in,
)
from tomldiary.storage.local.log import damaged, new_segment, segments
from tomldiary.storage.local.publish import has_writer, put_in_place, take_back
from tomldiary.storage.local.recovery import drop_superseded
from tomldiary.storage.locks import wait_for_save
from tomldiary.storage.log import scan_log
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit
from tomldiary.toml.parse import decode_utf8, parse_toml
from tomldiary.toml.values import render_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tomldiary.storage.environment import Environment
    from tomldiary.storage.files import FileSystem
    from tomldiary.storage.local.backend import LocalBackend
    from tomldiary.storage.local.session import OpenedUsers
    from tomldiary.storage.protocol import Rewrite

    _Pause = Callable[[str], None]

_STAGED = f"{JOB_PREFIX}-"
"""The prefix of the names of files that the job has staged."""
_NAMES = {"preferences", "conversations", "blocks", "facts", "episodes", "items", HISTORY}
"""The names of the files and folders of a user that a person may have written, without `[_meta]`, and of the history."""
_LONGEST = 3.0  # seconds; how long the process that finishes a job waits for other programs
_HEAD = "# Something is being forgotten here. The next process that opens this user finishes it; leave this file alone.\n"


@dataclass(slots=True)
class _Job:
    """The content of the job file."""

    selection: Mapping[str, Any]
    epoch: int
    files: list[list[str]] = field(default_factory=list[list[str]])
    """Each staged file and its target name."""
    documents: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Each changed document: its staged file, its base version, its changed entries, and whether it is removed."""

    @property
    def removes_user(self) -> bool:
        """Whether the whole folder is removed."""
        return bool(self.selection.get("everything"))


def _write_job(files: FileSystem, folder: Path, job: _Job) -> None:
    """Write the job file atomically."""
    temp = folder / f"{_STAGED}job"
    files.write_new(str(temp), f"{_HEAD}{render_block((), asdict(job))}".encode(), sync=True)
    files.replace(temp, folder / JOB_NAME)
    files.sync_folder(folder)


def _read_job(files: FileSystem, folder: Path) -> _Job | None:
    """Return the job in a user's folder, or None.

    Raises:
        DocumentError: The file of the job is damaged.
    """
    path = str(folder / JOB_NAME)
    found = files.read_file(path)
    if found is None:
        return None
    values = parse_toml(decode_utf8(found[0], path=path), path=path)
    try:
        return _Job(**values)
    except TypeError:
        raise DocumentError(
            "the file was altered. Remove it, and repeat the forgetting.", path=path
        ) from None


def _sweep_staged(files: FileSystem, folder: Path) -> None:
    """Remove the staged files of a job."""
    for child in list(files.scandir(folder)):
        if child.name.startswith(_STAGED):
            files.unlink(child.path)


def _take_back(files: FileSystem, folder: Path) -> bool:
    """Remove a job that has changed nothing yet; return whether this succeeded."""
    try:
        files.discard(folder / JOB_NAME)
        files.sync_folder(folder)
        _sweep_staged(files, folder)
    except OSError:
        return False
    return True


def forget(backend: LocalBackend, user: str, rewrite: Rewrite) -> dict[str, str]:
    """Store a redaction; the caller holds the user's lock.

    Returns:
        The SHA-256 of each file of the user afterwards, by its name in the user's folder.

    Raises:
        BackendError: The storage failed; the message states whether something was changed.
    """
    try:
        return _forget(backend, user, backend.folder(user), rewrite)
    except OSError as error:
        # This error comes from the steps before the job begins; later steps raise their own errors.
        remedy = f"Nothing was forgotten. {system_remedy(error)}".rstrip()
        raise file_error(backend.folder(user), "cannot be read", error, remedy) from error


def _forget(backend: LocalBackend, user: str, folder: Path, rewrite: Rewrite) -> dict[str, str]:
    files = backend.files
    _check_folder(files, folder)
    unread = backend.unread_folder(user)
    if unread is not None:  # it would be read once the other folder is removed
        raise BackendError(
            f"{unread}: is a second folder of this user, and may contain data to forget. Nothing was forgotten. Move"
            f" its entries to the documents in {folder.name}, and remove it."
        )
    job, is_begun = _Job(rewrite.selection, rewrite.epoch), False
    if not files.is_folder(folder):
        # The user's first turn may be in a writer's queue.
        _redact_outside(backend, user, job, rewrite.erased)
        return {}
    if job.removes_user:
        _check_has_documents(folder)
    try:
        if not job.removes_user:
            backend.settle(user)  # recovery cannot restore documents from records that are redacted
            _stage(backend.environment, user, folder, rewrite, job)
        is_begun = True
        _write_job(files, folder, job)
        backend.epochs.write(user, job.epoch, erased=rewrite.erased)
    except (OSError, DiaryError) as error:
        if not _take_back(files, folder):
            backend.reopen(user)  # the next open finishes the job, or removes the staged files
            with contextlib.suppress(OSError):
                is_begun = files.exists(folder / JOB_NAME)
            if is_begun:
                raise _unfinished(folder, error) from error
        if isinstance(error, DiaryError):
            raise
        remedy = "Nothing was forgotten. Check free space and permissions."
        raise file_error(folder, "cannot be written", error, remedy) from error
    _run(backend, user, folder, job, rewrite.patience)
    return _digests(files, folder)


def finish(backend: OpenedUsers, user: str, patience: float) -> None:
    """Finish a job that a killed process left, if there is one; the caller holds the user's lock.

    It waits for other programs for `patience` seconds at most, because readers cannot wait.

    Raises:
        DocumentError: A document no longer parses. It must be corrected first.
        BackendError: The storage failed; the job remains unfinished.
    """
    files, folder = backend.files, backend.folder(user)
    _check_folder(files, folder)
    job = _read_job(files, folder)
    if job is None:
        _take_back(files, folder)  # the process was killed before it wrote the job file
        return
    try:
        backend.epochs.write(user, job.epoch, erased=job.epoch if job.removes_user else 0)
    except OSError as error:
        raise _unfinished(folder, error) from error
    _run(backend, user, folder, job, min(patience, _LONGEST))


def _run(backend: OpenedUsers, user: str, folder: Path, job: _Job, patience: float) -> None:
    files = backend.files
    try:
        _redact_system(backend, user, job)
        if job.removes_user:
            _remove(files, folder, job)
        else:
            _publish(files, folder, job, _pauses(patience))
    except (OSError, BackendError, HandEditConflict) as error:
        raise _unfinished(folder, error) from error
    finally:
        backend.reopen(user)


def _redact_outside(backend: OpenedUsers, user: str, job: _Job, erased: int) -> None:
    """Redact the texts of a user who has no folder, and so no job that another process could finish."""
    try:
        backend.epochs.write(user, job.epoch, erased=erased)
        _redact_system(backend, user, job)
    except OSError as error:
        remedy = "Some queued turns may remain. Check free space and permissions, and try again."
        raise file_error(backend.base_path, "cannot be written", error, remedy) from error


def _redact_system(backend: OpenedUsers, user: str, job: _Job) -> None:
    """Redact what is kept of the user outside of the user's folder.

    Vectors are removed even if no document has the texts, because texts may be embedded and then not stored. Only a
    selection by date, which may run each night, has to find something.
    """
    redact_sources(backend.base_path / SYSTEM, user, job.selection, job.epoch, backend.files)
    if "before" not in job.selection or job.files or job.documents:
        _forget_index(backend.files, backend.index_folder(user), everything=job.removes_user)


def _forget_index(files: FileSystem, folder: Path, *, everything: bool) -> None:
    """Remove data derived from the user's texts; data that is still needed is computed again.

    The expiry times of items, stored under keyed hashes, are removed only with all data of the user.
    """
    if files.is_link(folder) or not files.is_folder(folder):
        return
    if everything:
        files.remove_tree(folder)
        return
    for path in folder.glob("*vectors-*"):  # also that of a killed process, ".vectors-….tmp"
        files.unlink(path)


def _unfinished(folder: Path, error: OSError | DiaryError) -> BackendError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return BackendError(
        f"{failed_path(error, folder)}: cannot be written ({reason}). Some of the data to forget"
        " remains; it is removed when the user is opened next."
    )


def _check_folder(files: FileSystem, path: Path) -> None:
    if files.is_link(path):
        raise BackendError(
            f"{path}: is a link. Nothing was forgotten; its target is not touched. Put a folder"
            " there."
        )


# Everything


def _check_has_documents(folder: Path) -> None:
    """Refuse a folder of other files, such as a folder of sources beside which a memory was opened by mistake."""
    if any(_is_ours(folder, path) for path in folder.rglob("*.toml")):
        return
    found = [path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir()]
    others = [path for path in found if len(path.parts) > 1 or not path.name.startswith(".")]
    if others:
        raise BackendError(
            f"{folder}: has files, such as {others[0]}, and no document. Nothing was forgotten. Check the path of the"
            " memory and the user; if the folder is to go, remove it yourself."
        )


def _is_ours(folder: Path, path: Path) -> bool:
    """Return whether a TOML file is of a memory, by its name or by `[_meta]`; other programs have TOML files too."""
    name = path.relative_to(folder).parts[0].removesuffix(SUFFIX)
    is_named = name in _NAMES or path.name == OWNER_NAME
    return is_named or (path.is_file() and b"[_meta]" in path.read_bytes())


def _remove(files: FileSystem, folder: Path, job: _Job) -> None:
    """Remove the folder; the owner file and then the job file are removed last."""
    for child in sorted(files.scandir(folder), key=lambda child: child.name == OWNER_NAME):
        if child.name == JOB_NAME:
            continue
        if child.is_dir(follow_symlinks=False):
            files.remove_tree(child.path)
        else:
            files.unlink(child.path)  # a link is removed, not its target
    files.sync_folder(folder)
    files.unlink(folder / JOB_NAME)
    try:
        files.rmdir(folder)
    except OSError:
        # Another program has just saved a file, which may contain the erased text.
        _write_job(files, folder, job)
        raise
    files.sync_folder(folder.parent)


# A part


def _stage(env: Environment, user: str, folder: Path, rewrite: Rewrite, job: _Job) -> None:
    """Stage the new versions of all files and list them in the job.

    Raises:
        RevisionConflict: Another program has saved a document since the redaction was computed.
    """
    files, history = env.files, folder / "history"
    for name in strays_in(files, folder):
        raise BackendError(
            f"{folder / name}: may contain data to forget, but it is no file of the diary."
            " Nothing was forgotten. Remove the file, or move it out of the folder."
        )
    drop_superseded(files, history)
    if rewrite.history is None:
        return
    for path, old, fresh in _new_segments(env, folder, rewrite.history, rewrite.added):
        if fresh != old:
            job.files.append([_put(files, folder, job, fresh), f"history/{path.name}"])
    pause = _pauses(rewrite.patience)
    for kind, document in rewrite.documents.items():
        path = folder / f"{kind}.toml"
        _wait_for_writer(files, path, pause)
        if not is_same(files.token(path), document.token):
            raise RevisionConflict.of(user)
        job.documents[kind] = {
            "staged": _put(files, folder, job, document.text.encode()),
            "token": list(document.token),
            "entries": [list(path) for path in document.tables],
            "is_removed": document.is_removed,
        }
    files.sync_folder(folder)


def _new_segments(
    env: Environment, folder: Path, fresh: Mapping[str, str], added: list[str]
) -> Iterator[tuple[Path, bytes, bytes]]:
    """Yield each segment with its old and its new content; records that are not in `fresh` are removed."""
    files, history = env.files, folder / "history"
    paths = segments(files, history)
    if not paths:
        files.make_folder(history, sync=True)
        paths = [new_segment(history, None, env.clock.month())]
    boot = env.boot_of(folder)
    for path in paths:
        old = files.content(path)
        kept = [fresh[each.text] for each in scan_log(old) if each.text in fresh]
        if path is paths[-1]:
            kept += [stamped(text, boot) for text in added]
        yield path, old, "".join(kept).encode()


def _put(files: FileSystem, folder: Path, job: _Job, data: bytes) -> str:
    """Stage a file and return its name."""
    name = f"{_STAGED}{len(job.files) + len(job.documents)}"
    files.write_new(str(folder / name), data, sync=True)
    return name


def _publish(files: FileSystem, folder: Path, job: _Job, pause: _Pause) -> None:
    """Publish the staged files; skip files that are already published."""
    for name, target in job.files:
        with contextlib.suppress(FileNotFoundError):
            files.replace(folder / name, folder / target)
    for kind, document in job.documents.items():
        _publish_document(files, folder, kind, document, pause)
    for aside in damaged(files, folder / "history"):
        files.unlink(aside)
    parents = ((folder / f"{kind}.toml").parent for kind in job.documents)
    for place in filter(files.is_folder, {folder / "history", *parents}):
        files.sync_folder(place)
    _sweep_staged(files, folder)  # a power cut may have restored the name of a published file
    files.unlink(folder / JOB_NAME)
    files.sync_folder(folder)


def _publish_document(
    files: FileSystem, folder: Path, kind: str, document: dict[str, Any], pause: _Pause
) -> None:
    """Publish a staged document, and remove it if nothing is left in it.

    The staged file stays until the new names are synced.

    Raises:
        DocumentError: The document no longer parses.
        HandEditConflict: Another program kept the document open for writing.
    """
    staged, target = folder / document["staged"], folder / f"{kind}.toml"
    if not files.exists(staged):
        return  # published by a process that was killed later
    is_there = _replace(files, staged, target, document, pause)
    if document["is_removed"]:
        if is_there and _document(files, staged).is_bare:
            files.unlink(target)
        _remove_empty_folders(files, target.parent, folder)


def _replace(
    files: FileSystem, staged: Path, target: Path, document: dict[str, Any], pause: _Pause
) -> bool:
    """Replace a document once no other program has it open for writing; return False if it was removed."""
    # A copy is exchanged, so that the staged file never holds the text to forget.
    copy = str(staged.with_name(f"{staged.name}-copy"))
    while True:
        _wait_for_writer(files, target, pause)
        token = files.token(target)
        if token is None:
            return False  # removed by another program, or by a process that was killed here
        if files.content(target) == files.content(staged):
            if not files.exists(copy):
                return True  # published by a process that was killed later
            take_back(files, copy, str(target), token)  # displaced, maybe a hand edit
            continue
        if not is_same(token, tuple(document["token"])):
            _stage_save(files, staged, target, document["entries"])
        files.discard(copy)
        written = files.write_new(copy, files.content(staged), sync=True)
        if put_in_place(files, copy, str(target), token, written) is not None:
            return True
        if not files.exists(copy):
            pause(str(target))


def _stage_save(files: FileSystem, staged: Path, target: Path, entries: list[list[str]]) -> None:
    """Stage a concurrent hand edit with the redacted entries; the next access merges the rest as usual."""
    made, saved = _document(files, staged), _document(files, target)
    edit = Edit(saved)
    for path in map(tuple[str, ...], entries):
        block = made.whole_block(path)
        edit.delete(path)
        if block is not None:
            edit.restore(path, block.text, made.own_values(path) or {})
        elif (table := made.table(path)) is not None:
            edit.put(path, table)
    # The staged file is replaced atomically: without it the document would count as published.
    merged = staged.with_name(f"{staged.name}-merged")
    files.discard(merged)
    files.write_new(str(merged), edit.done().text.encode(), sync=True)
    files.replace(merged, staged)


def _pauses(seconds: float) -> _Pause:
    """Return a function that waits a moment for another program, `seconds` in all; see `wait_for_save`."""
    return partial(wait_for_save, deadline=time.monotonic() + seconds, timeout=seconds)


def _wait_for_writer(files: FileSystem, path: Path, pause: _Pause) -> None:
    """Wait while another program has a file open for writing: its save would be lost with the old file.

    Raises:
        HandEditConflict: The program kept the file open.
    """
    while has_writer(files, str(path)):
        pause(str(path))


def _remove_empty_folders(files: FileSystem, place: Path, top: Path) -> None:
    """Remove the empty folders of a removed document, as their names are labels of its namespace."""
    while place != top:
        try:
            files.rmdir(place)
        except FileNotFoundError:
            pass
        except OSError:
            break  # the folder is not empty
        place = place.parent
    files.sync_folder(place)


def _document(files: FileSystem, path: Path) -> Document:
    return Document.parse(decode_utf8(files.content(path), path=str(path)), path=str(path))


def _digests(files: FileSystem, folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    # Not `rglob`, which fails if a folder disappears meanwhile.
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            # A link has no hash, nor a file that cannot be read now; its content was still redacted.
            with contextlib.suppress(OSError, BackendError), files.open_to_read(path) as file:
                found[path.relative_to(folder).as_posix()] = file_digest(file, "sha256").hexdigest()
    return dict(sorted(found.items()))
