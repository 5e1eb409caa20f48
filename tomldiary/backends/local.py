"""Documents and history as files in a folder.

    memories/
      alice/
        preferences.toml  conversations.toml
        history/2026-11-001.toml
      .tomldiary/locks/

A commit stages every changed document in a temporary file, appends to history (the commit point),
and renames the temporary files into place.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import time
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tomldiary.backends.async_verbs import AsyncVerbs
from tomldiary.backends.base import Stored, digest
from tomldiary.backends.epochs import Epochs
from tomldiary.backends.exchange import put_in_place, swap
from tomldiary.backends.files import (
    FileToken,
    file_token,
    make_folder,
    read_file,
    sync_folder,
    write_new,
)
from tomldiary.backends.layout import (
    STAGED,
    check_parent,
    checked_kind,
    kinds_in,
    make_parent,
    staged_name,
    target_of,
)
from tomldiary.backends.segments import append_records, last_record, newest_segment, read_records
from tomldiary.errors import (
    BackendError,
    CommittedUnpublished,
    Conflict,
    LockTimeout,
)
from tomldiary.history import parse_record, redo
from tomldiary.identifiers import MAX_FOLDER, decode_folder, encode_folder, is_canonical
from tomldiary.locks import UserLocks
from tomldiary.toml.parse import decode_utf8, parse_toml
from tomldiary.toml.values import render_value

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from tomldiary.backends.base import Commit, Durability
    from tomldiary.forgetting import ForgetReceipt, Selection
    from tomldiary.history import Record

__all__ = ["LocalBackend"]

_SYSTEM = ".tomldiary"
_OWNER = "owner.toml"
_JOB_PREFIX = ".forgetting"
_SEQ = re.compile(r"^seq = (\d+)\s*$", re.MULTILINE)
_ENTRY = re.compile(r"^\s*\[(?!\s*_meta\b)", re.MULTILINE)


class _Tail(NamedTuple):
    """The end of a user's history as last seen."""

    segment: str
    token: FileToken
    folder_time: int
    record: str


class LocalBackend(AsyncVerbs):
    """Keeps everything below one folder, for any number of threads and processes at once.

    Args:
        base_path: The folder; created at the first write. `path` is another name for it.
        durability: What a returned write survives; see `Durability`.
    """

    is_atomic = True
    is_quick = True
    is_shared = True

    def __init__(
        self,
        base_path: str | os.PathLike[str] | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        durability: Durability = "full",
    ) -> None:
        chosen = base_path if base_path is not None else path
        if chosen is None or (base_path is not None and path is not None):
            raise TypeError("LocalBackend takes one folder: LocalBackend('./memories').")
        if durability not in {"full", "process", "none"}:
            raise ValueError(f"durability is 'full', 'process' or 'none', found {durability!r}.")
        self.base_path = Path(chosen)
        self.durability: Durability = durability
        self._sync = durability == "full"
        self._locks = UserLocks(self.base_path / _SYSTEM / "locks")
        self.epochs = Epochs(self.base_path / _SYSTEM)
        self._folders: dict[str, Path] = {}
        self._tails: dict[str, _Tail] = {}
        self._recovered: set[str] = set()
        self._names = itertools.count()

    def __repr__(self) -> str:
        return f"LocalBackend({str(self.base_path)!r})"

    # Reading

    def folder(self, user: str) -> Path:
        """Return the folder of a user, whether it exists or not."""
        known = self._folders.get(user)
        if known is not None:
            return known
        name = encode_folder(user)
        folder = self.base_path / name
        if not folder.exists() and name != user and self._is_plain_folder(user):
            folder = self.base_path / user  # made by the ancestor, which used the id as it was
        if len(self._folders) > 10_000:  # noqa: PLR2004 - a bound on memory, nothing depends on it
            self._folders.clear()
        self._folders[user] = folder
        return folder

    def _is_plain_folder(self, user: str) -> bool:
        """Tell whether a folder is named exactly like the id, and so can belong to nobody else."""
        if len(user) > MAX_FOLDER or is_canonical(user) or user.startswith((".", "~")):
            return False
        try:
            return user in os.listdir(self.base_path)  # noqa: PTH208 - names, not paths
        except OSError:
            return False

    def _file(self, user: str, kind: str) -> Path:
        return self.folder(user) / f"{checked_kind(kind)}.toml"

    def place(self, user: str, kind: str) -> str:
        """Return the path of a document's file."""
        return str(self._file(user, kind))

    def token(self, user: str, kind: str) -> FileToken | None:
        """Return the version of the file: one `stat`."""
        self._open(user)
        return file_token(f"{self.folder(user)}/{kind}.toml")

    def read(self, user: str, kind: str) -> Stored | None:
        """Return the document's text, or None."""
        self._open(user)
        path = self._file(user, kind)
        found = read_file(path)
        if found is None:
            return None
        data, token = found
        return Stored(decode_utf8(data, path=str(path)), token)

    def kinds(self, user: str) -> list[str]:
        """Return the names of the user's documents."""
        return kinds_in(self.folder(user))

    def users(self) -> list[str]:
        """Return all user ids that have a document."""
        try:
            folders = [entry.name for entry in os.scandir(self.base_path) if entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [self._user_of(name) for name in folders if name != _SYSTEM]
        for user in found:
            # Somebody who is being forgotten may never be opened again.
            if (
                user is not None
                and file_token(f"{self.folder(user)}/{_JOB_PREFIX}.toml") is not None
            ):
                self.reopen(user)
                self._open(user)
        return sorted(user for user in found if user is not None and self.kinds(user))

    def _user_of(self, name: str) -> str | None:
        decoded = decode_folder(name)
        if decoded is not None:
            return decoded
        owner = read_file(self.base_path / name / _OWNER)
        if owner is None:
            return None
        encoded = parse_toml(decode_utf8(owner[0]))["user_id"]
        return str(encoded).encode("ascii").decode("unicode_escape")

    # Writing

    @contextmanager
    def lock(self, user: str, timeout: float) -> Generator[None]:
        """Exclude other writers, in this process and in others, after finishing what a crash left."""
        with self._locks.hold(user, timeout):
            self._recover(user)
            yield

    def commit(self, user: str, commit: Commit) -> dict[str, FileToken]:
        """Store a transaction; the caller holds the user's lock."""
        folder = str(self.folder(user))
        for kind in commit.texts:
            if file_token(f"{folder}/{checked_kind(kind)}.toml") != commit.expected.get(kind):
                raise Conflict(f"{self.place(user, kind)} changed while it was being written.")
        staged: dict[str, str] = {}
        try:
            if not os.path.isdir(folder):  # noqa: PTH112 - this is the hot path of every write
                self._create(user, self.folder(user))
            for kind, text in commit.texts.items():
                if "/" in kind:
                    make_parent(folder, kind, sync=self._sync)
                temp = self._temp_name(folder, kind)
                write_new(temp, text.encode("utf-8"), sync=self._sync)
                staged[kind] = temp
            newest = self._tail(user)[0]
            appended = append_records(f"{folder}/history", newest, commit.records, sync=self._sync)
        except OSError as error:
            self._drop(staged)
            raise BackendError(
                f"{error.filename or folder}: cannot be written ({error.strerror}). Nothing was"
                " changed. Check free space and permissions."
            ) from error
        except BaseException:
            self._drop(staged)
            raise
        self._tails[user] = _Tail(*appended, _folder_time(f"{folder}/history"), commit.records[-1])
        return self._publish(user, folder, staged, commit.expected)

    def _temp_name(self, folder: str, kind: str) -> str:
        return f"{folder}/{staged_name(kind, next(self._names))}"

    @staticmethod
    def _drop(staged: dict[str, str]) -> None:
        for temp in staged.values():
            Path(temp).unlink(missing_ok=True)

    def _publish(
        self,
        user: str,
        folder: str,
        staged: dict[str, str],
        expected: Mapping[str, FileToken | None],
    ) -> dict[str, FileToken]:
        tokens: dict[str, FileToken] = {}
        try:
            for kind, temp in staged.items():
                target = f"{folder}/{kind}.toml"
                token = put_in_place(temp, target, expected.get(kind))
                if token is not None:
                    tokens[kind] = token
        except OSError as error:
            self._recovered.discard(user)
            raise CommittedUnpublished(
                f"{error.filename}: the change is stored in history, but the file could not be"
                f" replaced ({error.strerror}). It is replaced when the user is opened next."
            ) from error
        return tokens

    def _create(self, user: str, folder: Path) -> None:
        make_folder(folder, sync=self._sync)
        if folder.name.startswith("~"):
            encoded = user.encode("unicode_escape").decode("ascii")
            text = f"# The id of this folder's owner is too long to be its name.\nuser_id = {render_value(encoded)}\n"
            write_new(str(folder / _OWNER), text.encode(), sync=self._sync)
        if self._sync:
            sync_folder(folder)

    def last_record(self, user: str) -> str | None:
        """Return the newest history record."""
        return self._tail(user)[1]

    def records(self, user: str) -> Iterator[str]:
        """Yield the texts of all history records, newest first."""
        self._open(user)
        return read_records(self.folder(user) / "history")

    def _tail(self, user: str) -> tuple[str | None, str | None]:
        """Return the newest segment and its last whole record; a torn end is cut off for good."""
        cached = self._tails.get(user)
        place = f"{self.folder(user)}/history"
        changed = _folder_time(place)
        if (
            cached is not None
            and cached.folder_time == changed  # no segment was added since
            and file_token(cached.segment) == cached.token
        ):
            return cached.segment, cached.record
        newest = newest_segment(Path(place))
        if newest is None:
            return None, None
        record, end = last_record(newest)
        if end < newest.stat().st_size:
            with newest.open("r+b") as file:
                file.truncate(end)
        if record is None:
            # The only record of a fresh segment was torn: the one before it is in the segment before.
            newest.unlink()
            return self._tail(user)
        token = file_token(newest)
        assert token is not None  # noqa: S101 - it was just read, and the lock is held
        self._tails[user] = _Tail(str(newest), token, changed, record)
        return str(newest), record

    # After a crash

    def _open(self, user: str) -> None:
        """Let the first reader of a user finish what a crash left half done."""
        if user in self._recovered:
            return
        if not self.folder(user).is_dir():
            return
        try:
            with self.lock(user, 5.0):
                pass
        except (BackendError, LockTimeout):
            return  # a reader without the right or the time to repair reads what is there

    def _recover(self, user: str) -> None:
        """Publish what was committed and sweep what was only staged; the caller holds the lock."""
        folder = self.folder(user)
        try:
            names = [entry.name for entry in os.scandir(folder)]
            if any(name.startswith(_JOB_PREFIX) for name in names):
                from tomldiary.backends.forget_job import finish  # noqa: PLC0415 - hardly ever needed

                finish(self, user)
                names = [entry.name for entry in os.scandir(folder)]
        except FileNotFoundError:
            return
        if not names and self.epoch(user):
            folder.rmdir()  # all that a process left that was killed while it forgot the user
            return
        staged = [name for name in names if name.startswith(STAGED)]
        if not staged and user in self._recovered:
            return
        text = self._tail(user)[1]
        if text is not None:
            record = parse_record(text)
            if staged or _restarted_since(record):
                self._roll_forward(folder, record)
        newest = int(found.group(1)) if text and (found := _SEQ.search(text)) else 0
        for name in staged:
            self._sweep(folder, name, newest)
        self._recovered.add(user)

    @staticmethod
    def _sweep(folder: Path, name: str, newest: int) -> None:
        """Remove what a crash left staged, unless it is a person's save that an exchange put there."""
        found = read_file(folder / name)
        target = folder / target_of(name)
        if found is not None and target.exists():
            text = found[0].decode("utf-8", "replace")
            grown_from = _SEQ.search(text)
            logged = {
                fingerprint
                for record in read_records(folder / "history")
                for fingerprint in parse_record(record).results.values()
            }
            # What we had staged ourselves carries the number of a transaction that never happened, or
            # was cut off before it came to that: `_meta` stands at the head of what we write.
            is_ours = (
                int(grown_from.group(1)) > newest
                if grown_from is not None
                else _ENTRY.search(text) is None
            )
            if not is_ours and digest(text) not in logged:
                swap(str(folder / name), str(target))
        (folder / name).unlink(missing_ok=True)

    def _roll_forward(self, folder: Path, record: Record) -> None:
        """Publish the last transaction's documents where that did not happen any more."""
        for kind, wanted in record.results.items():
            target = folder / f"{kind}.toml"
            found = read_file(target)
            current = found[0].decode("utf-8", "replace") if found is not None else ""
            if digest(current) == wanted or digest(current) != record.bases[kind]:
                continue  # published, or a person has changed it since
            text = redo(current, record, kind)
            make_parent(str(folder), kind, sync=self._sync)
            temp = self._temp_name(str(folder), kind)
            write_new(temp, text.encode("utf-8"), sync=self._sync)
            os.replace(temp, target)  # noqa: PTH105

    def reopen(self, user: str) -> None:
        """Have whoever comes next look at the user's files as if for the first time."""
        self._tails.pop(user, None)
        self._folders.pop(user, None)
        self._recovered.discard(user)

    # Forgetting

    def epoch(self, user: str) -> int:
        """Return how often something of the user was forgotten."""
        self.folder(user)  # says so if this is no user id
        return self.epochs.read(user)

    def forget(self, user: str, selection: Selection) -> ForgetReceipt:
        """Remove a selection from all files; the caller holds the user's lock."""
        from tomldiary.backends.forget_job import forget  # noqa: PLC0415 - hardly ever needed

        return forget(self, user, selection)

    def erase(self, user: str, kind: str | None = None) -> bool:
        """Remove a document, or everything of the user; links are removed, never followed."""
        folder = self.folder(user)
        try:
            if kind is not None:
                path = self._file(user, kind)
                check_parent(str(folder), kind)
                existed = path.exists()
                path.unlink(missing_ok=True)
                return existed
            if not folder.exists() or folder.is_symlink():
                return False
            shutil.rmtree(folder)
        except OSError as error:
            raise BackendError(f"{folder}: cannot be removed ({error.strerror}).") from error
        self._tails.pop(user, None)
        self._recovered.discard(user)
        return True


def _folder_time(path: str) -> int:
    """Return when a name was last added to a folder or taken away, or 0 if there is none."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - the hot path of every write
    except OSError:
        return 0


def _restarted_since(record: Record) -> bool:
    """Tell whether the machine was restarted after the record was written: renames may be lost."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is None:
        return True
    booted = time.time() - time.clock_gettime(clock)
    return datetime.fromisoformat(record.time).timestamp() < booted
