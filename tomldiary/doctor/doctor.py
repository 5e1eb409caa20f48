"""Health checks of a store. Each finding states the problem, its place and a remedy.

The checks only read. They take no lock, and report interrupted writes without completing them.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tomldiary.diary import diary_of
from tomldiary.doctor.files import Finding, Findings, broken_links, check_files, check_place
from tomldiary.entries.kinds import KINDS, problems_of
from tomldiary.errors import BackendError, DiaryError, DocumentError, NewerVersion
from tomldiary.hand_edits.detect import check_version, emptied, is_blank
from tomldiary.history.timeline import EMPTY
from tomldiary.history.verify import Damage, Walked, stored_kinds, stored_text, verify, walk
from tomldiary.identifiers.namespaces import ROOT as ITEMS
from tomldiary.identifiers.namespaces import namespace_of
from tomldiary.runtime.installation import OTHER_OWNER_REMEDY, other_owner
from tomldiary.runtime.sources import QUEUE
from tomldiary.runtime.views import counted, to_second
from tomldiary.storage.files import system_remedy
from tomldiary.storage.local.backend import LocalBackend
from tomldiary.storage.local.layout import SYSTEM, strays_in
from tomldiary.storage.local.log import segments
from tomldiary.storage.protocol import KeepsHidden
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.toml.document import Document, digest
from tomldiary.toml.values import checked_names, timestamp
from tomldiary.writer.dead_letters import DeadLetters
from tomldiary.writer.journals import waiting_jobs
from tomldiary.writer.shared.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from tomldiary.diary import Diary
    from tomldiary.storage.protocol import Backend
    from tomldiary.writer.receipts import Job

__all__ = ["Damage", "Finding", "check", "findings", "verify"]

_LEVELS = ("problem", "warning", "note")

_NO_USERS = {
    "docs", "facts", "files", "filesystem", "history", "memories", "memory", "notes", "preferences", "profile",
    "profiles", "semantic", "store", "user", "users",
}  # fmt: skip
"""First namespace labels in the documentation of LangGraph and langmem, which has the user as the second label."""
_RETRY_SECONDS = 0.05  # a concurrent write has finished by the second read
_LONGEST_WRITE = 60  # seconds; an older record is not that of a concurrent write
_LONGEST_WAIT = 300  # seconds; the default of the writer's `health`
_PATH = re.compile(r"(?:/|[A-Za-z]:\\).*?: ")
"""The path at the beginning of an error, which may contain the end of a sentence, such as `/home/Dr. B`."""


def check(
    diary: Diary | str | os.PathLike[str],
    users: Collection[str] | None = None,
    *,
    mounts: str | os.PathLike[str] = "/proc/mounts",
    progress: Callable[[int, int], object] | None = None,
) -> Findings:
    """Return the findings about a store, worst first. Nothing is changed.

    Args:
        diary: The diary, or a folder or an address. Its preference table defines the allowed fields of entries.
        users: The users to check; None checks all.
        mounts: The kernel's list of file systems. If it does not exist (not on Linux), its check is skipped.
        progress: Called after each user with the number of checked and of all users.
    """
    found = findings(diary, users, mounts=mounts, progress=progress)
    return Findings(sorted(found, key=lambda finding: _LEVELS.index(finding.level)))


def findings(
    diary: Diary | str | os.PathLike[str],
    users: Collection[str] | None = None,
    *,
    mounts: str | os.PathLike[str] = "/proc/mounts",
    progress: Callable[[int, int], object] | None = None,
) -> Iterator[Finding]:
    """Yield the findings of `check` as they occur: the storage and its files, then each user, worst first."""
    diary = diary_of(diary)
    users = None if users is None else checked_names(users, "users")
    backend = diary.engine.backend
    other = other_owner()
    if other is not None:
        message = f"{other} and tomldiary-kit are both installed, and both provide this package."
        yield Finding("problem", "the package tomldiary", message, OTHER_OWNER_REMEDY)
    if isinstance(backend, LocalBackend):
        yield from check_place(backend.files, backend.base_path, Path(mounts))
        yield from _check_key(backend)
        if users is None and backend.base_path.is_dir() and not _is_memory(backend):
            # No finding about its files: a remedy such as `chmod -R` would be wrong for another program's folder.
            message = "nothing in this folder is from tomldiary."
            yield Finding("warning", str(backend.base_path), message, "Check the path.")
            return
        if users is None:
            yield from broken_links(backend.base_path)
            yield from check_files(backend.base_path)
        else:
            for user in users:
                with suppress(BackendError):  # the folder is a link, which is a finding below
                    yield from check_files(backend.folder(user))
    if isinstance(backend, SharedBackend):
        yield from _connected(backend)
    if isinstance(backend, KeepsHidden):
        yield from _dead_letters(backend, users)
    yield from _waiting_turns(backend, users)
    names = _users(backend) if users is None else sorted(users)
    found_of = partial(_findings_of, diary)
    for number, found in enumerate(diary.engine.of_each(names, found_of), 1):
        yield from found
        if progress is not None:
            progress(number, len(names))


def _check_key(backend: LocalBackend) -> Iterator[Finding]:
    try:
        backend.epochs.check_key()
    except BackendError as error:
        place, _, message = str(error).rpartition(": ")
        if os.access(place, os.R_OK):  # otherwise `check_files` reports the permissions
            yield Finding("problem", place, message)


def _connected(backend: SharedBackend) -> Iterator[Finding]:
    """Yield a note with the database's response times, and findings if it may lose writes or takes none.

    Raises:
        BackendError: The database does not respond.
    """
    begin = time.perf_counter()
    backend.kinds("tomldiary doctor")
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    backend.kinds("tomldiary doctor")
    again = time.perf_counter() - begin
    place, risk = str(backend.database), backend.risk
    times = f"connected in {first * 1000:.0f} ms, a request takes {again * 1000:.1f} ms"
    safe = "; a write survives a power cut" if risk == "" else ""
    yield Finding("note", place, f"{times}{safe}", "")
    if risk:
        yield Finding("warning", place, f"the server {risk}")
    try:
        backend.transactions.asked(backend.database.check_writes)
    except BackendError as error:
        yield _problem(place, error)


def _dead_letters(backend: KeepsHidden, users: Collection[str] | None) -> Iterator[Finding]:
    try:
        counts = DeadLetters(backend).counts()
    except (BackendError, OSError) as error:
        yield _problem("the dead letters", error)
        return
    for user, (listed, altered) in counts.items():
        if users is not None and user not in users:
            continue
        if altered:
            message = f"the text of {counted(altered, 'dead letter')} was altered."
            yield Finding("problem", user, message, "Undo the edit.")
        if listed:
            message = f"{counted(listed, 'turn')} could not be applied."
            at = _path_option(backend)
            remedy = f"Run: tomldiary writer list{at}. When the cause is gone, run: tomldiary writer retry --all{at}"
            yield Finding("warning", user, message, remedy)


def waiting_turns(backend: Backend) -> dict[str, list[str]]:
    """Return the times of the turns that wait in a queue or a journal, by user.

    Raises:
        BackendError: The storage cannot be read.
        OSError: A journal cannot be read.
    """
    jobs: list[Job] = []
    if isinstance(backend, LocalBackend):
        jobs = waiting_jobs(backend.journal_root)
    elif isinstance(backend, SharedBackend):
        for user in backend.holders(QUEUE):
            jobs += Turns.parse(backend.hidden_parts(user, QUEUE), backend.queue_part).jobs()
    turns: dict[str, list[str]] = {}
    for job in jobs:
        turns.setdefault(job.turn.user_id, []).extend(
            [job.time, *(each.time for each in job.group)]
        )
    return turns


def _waiting_turns(backend: Backend, users: Collection[str] | None) -> Iterator[Finding]:
    """Yield a warning for each user with a turn that has waited longer than a healthy writer lets it wait."""
    try:
        turns = waiting_turns(backend)
    except (BackendError, OSError) as error:
        yield _problem("the waiting turns", error)
        return
    latest = timestamp(datetime.now(UTC) - timedelta(seconds=_LONGEST_WAIT))
    for user, times in sorted(turns.items()):
        if (users is None or user in users) and (first := min(times)) < latest:
            waits = counted(len(times), "turn waits", "turns wait")
            message = f"{waits} to be applied. The oldest was submitted at {to_second(first)} UTC."
            remedy = "Start a writer, or see the log of the running one."
            yield Finding("warning", user, message, remedy)


def _is_memory(backend: LocalBackend) -> bool:
    """Return whether a folder has the library's own folder, or a user with a document or history of it."""
    is_readable = os.access(backend.base_path, os.R_OK | os.X_OK)
    if not is_readable or (backend.base_path / SYSTEM).is_dir():
        return True  # `check_files` names an unreadable folder
    for user in _users(backend):
        with suppress(DiaryError):
            if any(name.partition("/")[0] in KINDS for name in stored_kinds(backend, user)):
                return True
            if segments(backend.files, backend.folder(user) / "history"):
                return True
    return False


def _users(backend: Backend) -> list[str]:
    """Return all users. Unlike `Backend.users`, this completes no writes."""
    if not isinstance(backend, LocalBackend):
        return backend.users()
    try:
        return backend.known_users()
    except BackendError:
        return []  # `check_place` reports the unreadable folder


# One user


def _findings_of(diary: Diary, user: str) -> list[Finding]:
    """Return the findings about a user, worst first."""
    found: list[Finding] = []
    try:
        with diary.engine.reading():  # a database is asked for the versions once
            found += _check_user(diary, user)
    except (BackendError, OSError) as error:
        found.append(_problem(user, error))
    return sorted(found, key=lambda finding: _LEVELS.index(finding.level))


def _check_user(diary: Diary, user: str) -> Iterator[Finding]:
    backend = diary.engine.backend
    documents: dict[str, Document | None] = {}
    listed = stored_kinds(backend, user)
    # Only files are listed, not what replaced one.
    others = KINDS if isinstance(backend, LocalBackend) else ()
    for kind in dict.fromkeys([*listed, *others]):
        document, problems = _read(backend, user, kind)
        if not problems and kind not in listed:
            continue
        documents[kind] = document
        yield from problems
    readable = {kind: each for kind, each in documents.items() if each is not None}
    for kind, (where, message, remedy) in problems_of(readable, diary):
        place = readable[kind].place_of(where, backend.place(user, kind))
        yield Finding("warning", place, f"{where}: {message}", remedy)
    yield from _check_owner(user, documents)
    if isinstance(backend, LocalBackend):
        yield from _check_folder(backend, user)
    walked = walk(backend, user)
    if walked.damage is not None:
        time.sleep(_RETRY_SECONDS)
        walked = walk(backend, user)
    if walked.damage is not None:
        yield _damaged(walked.damage, backend, user)
    else:
        yield from _check_lag(backend, user, documents, walked)
        if walked.newest is not None:
            when = f"{to_second(walked.newest.time)} UTC"
            yield Finding(
                "note", user, f"the last write is transaction {walked.newest.seq}, {when}."
            )


def _check_owner(user: str, kinds: Collection[str]) -> Iterator[Finding]:
    """Report a user id that is a common namespace label, such as "memories", with users as second labels."""
    if user.lower() not in _NO_USERS:
        return
    items = [namespace_of(user, kind) for kind in kinds if kind.startswith(ITEMS)]
    below = sorted({names[1] for names in items if names is not None and len(names) > 1})
    if below:
        message = (
            f"namespaces such as ({user!r}, {below[0]!r}) have {user!r} as their user: forgetting {below[0]!r}"
            " does not find them."
        )
        remedy = "If the second label is the user, open the store with user_label=1 and put the items again."
        yield Finding("warning", user, message, remedy)


def _check_folder(backend: LocalBackend, user: str) -> Iterator[Finding]:
    """Report other files in the folder of a user, and a second folder."""
    folder, unread = backend.folder(user), backend.unread_folder(user)
    if folder.is_symlink():
        message = "this is a link. The folder that it names is used, but forget refuses to run."
        remedy = "Put the folder in place of the link."
        yield Finding("warning", str(folder), message, remedy)
    for name in strays_in(backend.files, folder):
        message = "this is no file of the diary. The file is never read, and forget cannot finish while it exists."
        remedy = "Remove the file, or move it out of the folder."
        yield Finding("warning", str(folder / name), message, remedy)
    if unread is not None:
        message = f"this is a second folder of {user!r}. It is not read, and forget cannot finish while it exists."
        remedy = f"Move its entries to the documents in {folder.name!r}, and remove it."
        yield Finding("warning", str(unread), message, remedy)


def _damaged(damage: Damage, backend: Backend, user: str) -> Finding:
    if damage.is_torn:
        remedy = "No action is required: the next write removes the incomplete record."
        return Finding("warning", damage.place, damage.message, remedy)
    if damage.remedy:
        return Finding("problem", damage.place, damage.message, damage.remedy)
    if damage.is_set_aside:
        remedy = "Check that the documents contain its changes, and remove the file."
        return Finding("problem", damage.place, damage.message, remedy)
    without_backup = ""
    if isinstance(backend, LocalBackend):
        history = backend.folder(user) / "history"
        first = f"move {history} away, and " if history.exists() else ""
        begin_anew = (
            f"{first}begin a new history with tomldiary export, forget --everything and import."
        )
        if damage.is_gap:
            begin_anew = (
                "drop the history before the gap with tomldiary history --user NAME --keep 1 --yes. If that is refused,"
                f" {begin_anew}"
            )
        without_backup = f" Without a backup, {begin_anew}"
    remedy = (
        "Copy the folder before the next write, and restore history from a backup. The documents are"
        f" complete without it.{without_backup}"
    )
    return Finding("problem", damage.place, damage.message, remedy)


def _read(backend: Backend, user: str, kind: str) -> tuple[Document | None, list[Finding]]:
    place = backend.place(user, kind)
    try:
        text = stored_text(backend, user, kind)
        if text is None:
            return None, []
        document = Document.parse(text, path=place)
        check_version(document, place)
    except NewerVersion as error:
        return None, [_problem(place, error)]
    except DocumentError as error:
        where = ":".join(
            str(part) for part in (place, error.line, error.column) if part is not None
        )
        remedy = (
            "Until then, the file is left unchanged, reads use a valid version in history, if any, and writes are"
            " merged into the file once it is valid."
        )
        return None, [Finding("problem", where, _without(where, error), remedy)]
    except BackendError as error:
        is_local = isinstance(backend, LocalBackend)
        if is_local and not Path(place).is_symlink() and not os.access(place, os.R_OK):
            return None, []  # `check_files` reports the permissions
        return None, [_problem(place, error)]
    return document, []


def _problem(place: str, error: Exception) -> Finding:
    """Return the finding for an error; the sentences after its first one are the remedy."""
    if isinstance(error, OSError):
        said = error.strerror or str(error)
        message = f"{said[:1].lower()}{said[1:]}."
        return Finding("problem", str(error.filename or place), message, system_remedy(error))
    text = _without(place, error)
    path = _PATH.match(text)
    begin = 0 if path is None else path.end()
    message, end, remedy = text[begin:].partition(". ")
    return Finding("problem", place, f"{text[:begin]}{message}{end.rstrip()}", remedy)


def _without(place: str, error: Exception) -> str:
    return str(error).removeprefix(f"{place}: ")


def _shown_at(backend: Backend, user: str, seq: int) -> str:
    """Return the command that prints the documents of a user after a transaction."""
    return f"tomldiary show --user {shlex.quote(user)} --at {seq} --raw{_path_option(backend)}"


def _path_option(backend: object) -> str:
    """Return the option of a command that names the memory, without the address of a database: it may contain a password."""
    if not isinstance(backend, LocalBackend):
        return " --path URL"
    return f" --path {shlex.quote(str(backend.base_path))}"


def _check_lag(
    backend: Backend, user: str, documents: Mapping[str, Document | None], walked: Walked
) -> Iterator[Finding]:
    """Find documents that are older than history. A hand edit is not a finding."""
    lagging: list[tuple[str, str]] = []
    for kind, record in walked.last.items():
        document = documents.get(kind)
        is_gone = kind not in documents
        if is_gone and (unreadable := _read(backend, user, kind)[1]):
            yield from unreadable  # what is not a regular file is not listed among the documents
            continue
        if document is None and not is_gone:
            continue  # it is reported as unreadable
        text = document.text if document is not None else ""
        place = backend.place(user, kind)
        if document is not None and is_blank(text):
            found = _without(place, emptied(place))
            yield Finding("problem", place, found, f"Run: {_shown_at(backend, user, record.seq)}")
            continue
        # A fingerprint that is not in history is that of a hand edit.
        now = digest(text)
        is_known = is_gone or now in walked.versions[kind]
        is_newest = now == record.results[kind]
        if is_known and not is_newest:
            lagging.append((kind, text))
    recent = timestamp(datetime.now(UTC) - timedelta(seconds=_LONGEST_WRITE))
    if any(walked.last[kind].time > recent for kind, _ in lagging):
        time.sleep(_RETRY_SECONDS)  # once, because many files may have been deleted
    for kind, text in lagging:
        if (stored_text(backend, user, kind) or "") != text:
            continue  # it was being written
        record, place, is_gone = walked.last[kind], backend.place(user, kind), kind not in documents
        if is_gone and record.bases[kind] != EMPTY:
            message = f"the file was deleted. History contains it up to transaction {record.seq}."
            remedy = f"If this was a mistake, run: {_shown_at(backend, user, record.seq)}"
            yield Finding("warning", place, message, remedy)
        else:
            message = f"the file is older than history: it lacks transaction {record.seq}."
            remedy = "No action is required: the file is updated when the user is next opened or written."
            yield Finding("warning", place, message, remedy)
