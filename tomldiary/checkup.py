"""A look at the health of a store: what is wrong, where, and what to do about it.

Nothing is changed: no lock is taken, and what a crash left half done is told, not finished.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import ValidationError

from tomldiary.backends.base import digest
from tomldiary.backends.local import LocalBackend
from tomldiary.conversations import Conversations
from tomldiary.errors import BackendError, DocumentError, NewerVersion
from tomldiary.facts import Facts
from tomldiary.identifiers import decode_folder
from tomldiary.outside import check_version
from tomldiary.preferences import entry_to_item
from tomldiary.schema import item_type
from tomldiary.timeline import EMPTY
from tomldiary.toml.document import Document
from tomldiary.toml.parse import parse_toml
from tomldiary.verification import Damage, stored_text, verify, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from tomldiary.backends.base import Backend
    from tomldiary.diary import Diary
    from tomldiary.verification import Walked

__all__ = ["Damage", "Finding", "check", "verify"]

FREE_BYTES = 100 * 1024 * 1024
"""Free space below which a disk is called nearly full."""
_STAGED = re.compile(r"\.staged-(\d+)-.*\.tmp")
_JOB = f"{os.sep}.forgetting.toml"
_STAGED_SECONDS = 60  # a commit takes milliseconds
_SYNCED = re.compile(
    r"dropbox|onedrive( - .*)?|google ?drive|my drive|icloud ?drive|mobile documents|cloudstorage"
    r"|com~apple~clouddocs|nextcloud|pclouddrive",
    re.IGNORECASE,
)
_REMOTE = re.compile(
    r"nfs4?|cifs|smb.*|9p|afs|ceph|glusterfs|lustre|beegfs|virtiofs|vboxsf|fuse\..*"
)
_AGAIN = 0.05  # seconds; what a writer is just doing is gone when one looks again


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing about a store."""

    level: Literal["note", "warning", "problem"]
    """`note`: for information. `warning`: works, but is not as it should be. `problem`: does not work."""
    place: str
    message: str
    remedy: str = ""


def check(
    diary: Diary,
    users: Collection[str] | None = None,
    *,
    mounts: str | os.PathLike[str] = "/proc/mounts",
) -> list[Finding]:
    """Return what is worth knowing about a store, worst first; nothing is changed.

    Args:
        diary: Its preference table says which fields entries may have.
        users: Whose memory to look at; None is everybody's.
        mounts: The kernel's list of file systems; without it (not on Linux) that check is left out.
    """
    backend = diary.engine.backend
    found: list[Finding] = []
    if isinstance(backend, LocalBackend):
        found += _check_place(backend.base_path, Path(mounts))
        if users is None:
            found += _check_files(backend.base_path)
        else:
            for user in users:
                found += _check_files(backend.folder(user))
    for user in _users(backend) if users is None else sorted(users):
        try:
            found += _check_user(diary, user)
        except (BackendError, OSError) as error:
            found.append(Finding("problem", user, str(error), "Check the permissions."))
    order = ("problem", "warning", "note")
    return sorted(found, key=lambda finding: order.index(finding.level))


def _users(backend: Backend) -> list[str]:
    """Return all users; unlike the usual list, this finishes nothing, and one bad folder hides no other."""
    if not isinstance(backend, LocalBackend):
        return backend.users()
    try:
        folders = [entry for entry in os.scandir(backend.base_path) if entry.is_dir()]
    except OSError:
        return []  # which is told as unreadable
    names = [_user_of(Path(entry.path)) for entry in folders if not entry.name.startswith(".")]
    return sorted(name for name in names if name is not None)


def _user_of(folder: Path) -> str | None:
    name = decode_folder(folder.name)
    if name is not None:
        return name
    try:
        owner = parse_toml((folder / "owner.toml").read_text(encoding="utf-8"))
        return str(owner["user_id"]).encode("ascii").decode("unicode_escape")
    except (OSError, KeyError, ValueError):
        return None


# The place


def _check_place(base: Path, mounts: Path) -> Iterator[Finding]:
    place = str(base)
    real = Path(os.path.realpath(base))
    synced = next((part for part in real.parts if _SYNCED.fullmatch(part)), None)
    if synced is not None:
        yield Finding(
            "warning",
            place,
            f"the folder is below {synced!r}, which another program keeps in step with other machines.",
            "Keep memory outside, and copy it there with export: such programs know no locks.",
        )
    kind = _file_system(real, mounts)
    if kind is not None and _REMOTE.fullmatch(kind):
        yield Finding(
            "warning",
            place,
            f"the folder is on a network file system ({kind}), where locks and syncs may not count.",
            "Keep memory on a local disk, or let one machine alone write.",
        )
    if not base.is_dir():
        yield Finding("problem", place, "there is no such folder.", "Name another one.")
        return
    free = shutil.disk_usage(base).free
    told = f"{free / 1024**2:,.0f} MB are free on this disk."
    if free < FREE_BYTES:
        yield Finding("warning", place, told, "Make room: a write that finds none fails.")
    else:
        yield Finding("note", place, told)


def _file_system(path: Path, mounts: Path) -> str | None:
    """Return the type of the file system a folder is on, or None if that cannot be told."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return None
    best, kind = -1, None
    for line in lines:
        fields = line.split(" ")
        if len(fields) > 2:  # noqa: PLR2004 - device, mount point, type
            # Spaces and the like are written as octal escapes.
            point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[1]))
            if path.is_relative_to(point) and len(point.parts) >= best:
                best, kind = len(point.parts), fields[2]
    return kind


# Files and folders


def _check_files(top: Path) -> Iterator[Finding]:
    unreadable: list[str] = []
    unwritable: list[str] = []
    open_folders: list[str] = []
    open_files: list[str] = []
    for path, status in _below(top):
        is_folder = stat.S_ISDIR(status.st_mode)
        if not os.access(path, os.R_OK | (os.X_OK if is_folder else 0)):
            unreadable.append(path)
        elif not os.access(path, os.W_OK):
            unwritable.append(path)
        if os.name == "posix" and status.st_mode & 0o077:
            (open_folders if is_folder else open_files).append(path)
        staged = _STAGED.fullmatch(os.path.basename(path))  # noqa: PTH119 - paths are strings here
        if staged is not None and _is_left_over(int(staged.group(1)), status):
            yield Finding(
                "warning",
                path,
                "a crash left this behind.",
                "Nothing is needed: it is swept when the user is opened next.",
            )
        if path.endswith(_JOB) and time.time() - status.st_mtime > _STAGED_SECONDS:
            yield Finding(
                "warning",
                path,
                "something is being forgotten here, and a crash has stopped it.",
                "Open the user, for instance with tomldiary show: whoever does finishes it.",
            )
    yield from _counted("problem", unreadable, "cannot be read", "Give yourself the right to.")
    yield from _counted("problem", unwritable, "cannot be written", "Give yourself the right to.")
    remedy = f"Run: chmod -R go= {shlex.quote(str(top))}"
    yield from _counted("warning", open_folders, "can be entered by others (not 0700)", remedy)
    yield from _counted("warning", open_files, "can be read by others (not 0600)", remedy)


def _below(top: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield all folders and regular files from `top` on; links are not followed."""
    paths = [str(top)]
    while paths:
        path = paths.pop()
        try:
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
                yield path, status
            if stat.S_ISDIR(status.st_mode):
                paths += sorted((entry.path for entry in os.scandir(path)), reverse=True)
        except OSError:
            continue  # gone meanwhile, or told as unreadable already


def _is_left_over(pid: int, status: os.stat_result) -> bool:
    if time.time() - status.st_mtime > _STAGED_SECONDS:
        return True
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _counted(
    level: Literal["warning", "problem"], paths: list[str], message: str, remedy: str
) -> Iterator[Finding]:
    if paths:
        more = f", like {len(paths) - 1} more" if len(paths) > 1 else ""
        yield Finding(level, paths[0], f"{message}{more}.", remedy)


# One user


def _check_user(diary: Diary, user: str) -> Iterator[Finding]:
    backend = diary.engine.backend
    documents: dict[str, Document | None] = {}
    for kind in backend.kinds(user):
        document, problems = _read(backend, user, kind)
        documents[kind] = document
        yield from problems
        if document is not None:
            yield from _check_entries(diary, backend.place(user, kind), kind, document)
    walked = walk(backend, user)
    if walked.damage is not None:
        time.sleep(_AGAIN)
        walked = walk(backend, user)
    if walked.damage is not None:
        yield _told(walked.damage)
    else:
        yield from _check_lag(backend, user, documents, walked)
    if walked.newest is not None:
        yield Finding(
            "note",
            user,
            f"the last write is transaction {walked.newest.seq}, {walked.newest.time[:19]} UTC.",
        )


def _told(damage: Damage) -> Finding:
    if damage.is_torn:
        remedy = "Nothing is needed: the next write cuts it off."
        return Finding("warning", damage.place, damage.message, remedy)
    if damage.is_set_aside:
        remedy = "Look whether the documents have what it says, and remove the file."
        return Finding("problem", damage.place, damage.message, remedy)
    return Finding(
        "problem",
        damage.place,
        damage.message,
        "Copy the folder before anything is written, and restore this file from a backup; documents are"
        " complete without it.",
    )


def _read(backend: Backend, user: str, kind: str) -> tuple[Document | None, list[Finding]]:
    place = backend.place(user, kind)
    try:
        text = stored_text(backend, user, kind)
        if text is None:
            return None, []
        document = Document.parse(text, path=place)
        check_version(document, place)
    except NewerVersion as error:
        return None, [Finding("problem", place, _without(place, error), "Upgrade tomldiary-kit.")]
    except DocumentError as error:
        where = ":".join(
            str(part) for part in (place, error.line, error.column) if part is not None
        )
        remedy = (
            "The file is left as it is; if history has a good version, reads serve that one, and"
            " writes join it once the file can be read."
        )
        return None, [Finding("problem", where, _without(where, error), remedy)]
    except BackendError as error:
        if isinstance(backend, LocalBackend) and not os.access(place, os.R_OK):
            return None, []  # told with the permissions
        return None, [Finding("problem", place, _without(place, error), "Put a usual file there.")]
    return document, []


def _without(place: str, error: Exception) -> str:
    return str(error).removeprefix(f"{place}: ")


def _check_lag(
    backend: Backend, user: str, documents: Mapping[str, Document | None], walked: Walked
) -> Iterator[Finding]:
    """Find documents that lack what history has; what only a person has changed is no finding."""
    for kind, record in walked.last.items():
        document = documents.get(kind)
        is_gone = kind not in documents
        if record.results[kind] == EMPTY or (document is None and not is_gone):
            continue  # removed for good; or it cannot be read, which is told
        text = document.text if document is not None else ""
        # Saved by somebody, a text has a fingerprint that history does not know yet.
        is_known = is_gone or digest(text) in walked.versions[kind]
        is_newest = digest(text) == record.results[kind]
        if is_newest or not is_known or (stored_text(backend, user, kind) or "") != text:
            continue  # as it should be, or being written just now
        place = backend.place(user, kind)
        if is_gone and record.bases[kind] != EMPTY:
            yield Finding(
                "warning",
                place,
                f"the file is gone; history has it up to transaction {record.seq}.",
                f"If nobody removed it on purpose: show --at {record.seq} --raw prints it.",
            )
        else:
            yield Finding(
                "warning",
                place,
                f"the file is behind history: transaction {record.seq} is not in it.",
                "Nothing is needed: it catches up when the user is opened or written next.",
            )


# Entries


def _check_entries(diary: Diary, place: str, kind: str, document: Document) -> Iterator[Finding]:
    if kind == "conversations":
        wrong = (
            problem
            for key, entry in Conversations(document).entries()
            for problem in _wrong_fields(
                f"conversations.{key}", entry, ("summary",), ("keywords",), ("_turns",)
            )
        )
    elif kind == "preferences":
        wrong = _wrong_preferences(diary, document)
    elif kind == "facts":
        for problem in Facts(document, diary.fact_schemas).problems():
            yield Finding("warning", place, str(problem), "Correct it; until then it is not read.")
        return
    else:
        return
    for where, message in wrong:
        yield Finding(
            "warning", place, f"{where}: {message}", "Correct it; reads do what they can."
        )


def _wrong_preferences(diary: Diary, document: Document) -> Iterator[tuple[str, str]]:
    everything = document.table(()) or {}
    short = {key: value for key, value in everything.items() if key not in {"_meta", "preferences"}}
    is_own = (document.table(("_meta",)) or {}).get("schema_name") == diary.schema_name
    for head, tables in (("preferences.", document.table(("preferences",)) or {}), ("", short)):
        for category, entries in tables.items():
            where = f"{head}{category}"
            if not isinstance(entries, Mapping):
                yield where, f"expected a category, found {_word(entries)}"
                continue
            if is_own and category not in diary.allowed:
                yield where, f"{diary.schema_name} has no such category, so nothing reads it"
            for key, entry in cast("Mapping[str, Any]", entries).items():
                if not isinstance(entry, Mapping):
                    yield (
                        f"{where}.{key}",
                        f"expected an entry, found {_word(entry)}; it is left out",
                    )
                    continue
                yield from _wrong_entry(
                    diary, category, f"{where}.{key}", cast("Mapping[str, Any]", entry)
                )


def _wrong_entry(
    diary: Diary, category: str, where: str, entry: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    yield from _wrong_fields(where, entry, ("text",), ("contexts",), ("_count",))
    if "text" not in entry:
        yield f"{where}.text", "expected text, found nothing"
    if category in diary.allowed:
        try:
            entry_to_item(entry, item_type(diary.pref_table_cls, category))
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_input=False):
                field = ".".join(map(str, (where, *problem["loc"])))
                yield field, f"{problem['msg']}; the entry is left out"


def _wrong_fields(
    where: str,
    entry: Mapping[str, Any],
    texts: Iterable[str],
    lists: Iterable[str],
    numbers: Iterable[str],
) -> Iterator[tuple[str, str]]:
    wanted: list[tuple[Iterable[str], str, Callable[[Any], bool]]] = [
        (texts, "text", lambda value: isinstance(value, str)),
        (lists, "a list of text", _is_text_list),
        (numbers, "a number", lambda value: type(value) is int),
        (("_created", "_updated"), "a time", _is_time),
    ]
    for names, word, fits in wanted:
        for name in names:
            if name in entry and not fits(entry[name]):
                yield f"{where}.{name}", f"expected {word}, found {_word(entry[name])}"


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, str) for item in cast("list[object]", value)
    )


def _is_time(value: Any) -> bool:
    try:
        datetime.fromisoformat(str(value))
    except ValueError:
        return value == ""
    return True


def _word(value: Any) -> str:
    """Return what TOML calls a value of this type."""
    words = {bool: "true or false", str: "text", int: "number", float: "number", list: "a list"}
    if isinstance(value, Mapping):
        return "a table"
    return next((word for kind, word in words.items() if isinstance(value, kind)), "a date or time")
