"""Checkpoints, recovery of a user's folder after a crash, and retention; the caller holds the user's lock.

A commit is durable when its record is durable. Documents are published at once but synced later, at a checkpoint
every 256 transactions. The transactions between two checkpoints are a window. The first record after a checkpoint is
written only when all documents changed before it are on disk.

A commit is in history before its documents are published. A power cut may undo or tear every document changed in the
last window. So recovery classifies documents and staged files:

| found                                           | action                                |
|-------------------------------------------------|---------------------------------------|
| document: the version that history ends at      | none                                  |
| document: an older version, or a torn one       | rolled forward from history           |
| document: a hand edit                           | left for the next access              |
| staged file: a version in history               | removed                               |
| staged file: the version that it replaced       | removed                               |
| staged file: a version that history never had   | removed                               |
| staged file: a displaced edit                   | merged, see `displaced_edit`          |

A torn staged file of the first three kinds is removed, too.

Retention removes old history. It replaces the oldest kept segment by one that begins with a snapshot. When that segment
is on disk, the segments before it are removed, the oldest first. A killed process may leave segments that no reader
uses. The next open removes them. Retention syncs all its writes, whatever the durability.
"""

from __future__ import annotations

import re
import stat
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from tomldiary.errors import DocumentError, HandEditConflict, InvalidTOML, UnsafeDocument
from tomldiary.history.record import (
    Record,
    is_snapshot,
    next_sequence,
    parse_record,
    results_of,
    sequence_of,
)
from tomldiary.history.timeline import EMPTY, redo
from tomldiary.logging import get_logger
from tomldiary.storage.files import PRIVATE, file_error
from tomldiary.storage.local.displaced_edit import history_of
from tomldiary.storage.local.log import opens_window, read_records, segments
from tomldiary.storage.local.publish import (
    is_as_staged,
    is_being_saved,
    make_parent,
    put_in_place,
    staged_path,
    target_of,
    transaction_of,
)
from tomldiary.storage.log import own_line_ends, scan_log
from tomldiary.toml.document import digest
from tomldiary.toml.parse import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from tomldiary.storage.environment import Environment
    from tomldiary.storage.files import FileSystem, FileToken
    from tomldiary.storage.local.session import Synced

_logger = get_logger(__name__)
_WRITTEN = re.compile(rb"[^\0]+")
_LONG_AFTER = 60.0  # seconds; a document is written immediately after its record
_TEMP = ".pruned.tmp"
_HEAD = 400  # bytes; enough for the first values of a record, which state its type


# Checkpoints


def window(env: Environment, folder: Path) -> Iterator[str]:
    """Yield the records of the last window, newest first; their documents may not be on disk."""
    last = 0
    for text in read_records(env.files, folder / "history"):
        seq = sequence_of(text)
        last = last or seq
        if opens_window(seq, last, env.checkpoint_interval):
            return
        yield text
        if is_snapshot(text):
            return


def settle(env: Environment, folder: Path, synced: Synced) -> None:
    """Sync all documents that the last window changed; the caller holds the user's lock.

    Args:
        env: The file system, and the interval of checkpoints.
        folder: The user's folder.
        synced: The synced names of the user; updated.

    Raises:
        OSError, BackendError: Some documents are not on disk.
    """
    files = env.files
    present: set[str] = set()
    for kind in dict.fromkeys(kind for text in window(env, folder) for kind in results_of(text)):
        path = folder / f"{kind}.toml"
        if not stat.S_ISREG(files.mode(path)):
            continue  # removed, or no file of this package: a sync of a pipe would wait forever
        try:
            if kind not in synced.doubtful:
                files.sync_path(path, PRIVATE)
            else:
                _write_again(files, folder, kind)
        except (FileNotFoundError, NotADirectoryError):
            continue  # another program has removed it
        except OSError:
            # The system reports a failed write once, and then treats the data as written.
            synced.doubtful.add(kind)
            raise
        present.add(kind)
    synced.sync(present)
    synced.doubtful.clear()


def _write_again(files: FileSystem, folder: Path, kind: str) -> None:
    path = folder / f"{kind}.toml"
    found = files.read_file(path)
    if found is None:
        raise FileNotFoundError(path)
    temp = staged_path(folder, kind, found[0], 0)
    files.write_new(temp, found[0], sync=True)
    if put_in_place(files, temp, str(path), found[1]) is None and files.exists(temp):
        raise HandEditConflict.changed(str(path))


# Retention


def prune(files: FileSystem, folder: Path, seq: int, snapshot: str) -> None:
    """Replace all records up to transaction `seq` by `snapshot`; the caller holds the user's lock.

    Raises:
        OSError: History is unchanged, or begins with the snapshot.
    """
    drop_superseded(files, folder)
    for path in reversed(segments(files, folder)):
        texts = [each.text for each in scan_log(files.content(path))]
        if texts and next_sequence(texts[0]) - 1 <= seq + 1:
            kept = [text for text in texts if next_sequence(text) - 1 > seq]
            temp = folder / _TEMP
            modified = files.stat(path).st_mtime_ns
            files.write_new(str(temp), "".join([snapshot, *kept]).encode(), sync=True)
            # A later time would count as that of a copy, and recovery would revert hand edits made before it.
            with suppress(OSError):
                files.utime(temp, ns=(modified, modified))
            files.replace(temp, path)
            files.sync_folder(folder)
            break
    drop_superseded(files, folder)


def drop_superseded(files: FileSystem, folder: Path) -> None:
    """Remove segments that a snapshot replaces; the caller holds the user's lock.

    Raises:
        BackendError: Some superseded segments may remain. No reader uses them.
    """
    try:
        if files.exists(folder / _TEMP):
            files.unlink(folder / _TEMP)
        paths = segments(files, folder)
        begins = [
            number
            for number, path in enumerate(paths)
            if number and _begins_with_snapshot(files, path)
        ]
        if begins:
            for path in paths[: begins[-1]]:
                files.unlink(path)
            files.sync_folder(folder)
    except OSError as error:
        remedy = "No reader uses it. The next open tries again; check the permissions."
        raise file_error(folder, "old history cannot be removed", error, remedy) from error


def _begins_with_snapshot(files: FileSystem, path: Path) -> bool:
    with files.open_to_read(path) as file:
        head = own_line_ends(file.read(_HEAD))
    return is_snapshot(head.decode("utf-8", "replace"))


# Recovery


class Recovery:
    """The last records of a user's history, with which documents and staged files are compared.

    The documents of these records may lack changes. On a running system every process sees all data written to a file,
    synced or not. So data can be missing only if another boot wrote it, or if the disk was moved, restored or copied.
    All documents of the last window are then compared, and otherwise those of the last record.

    Args:
        env: The file system, the clock, and the interval of checkpoints.
        folder: The user's folder.
        last: The last record of history; None if there is no history.
    """

    def __init__(self, env: Environment, folder: Path, last: Record | None) -> None:
        self._env = env
        self._files = env.files
        self._folder = folder
        self._last = last
        self._newest = last.seq if last is not None else 0
        self.may_be_torn = last is not None and (not last.boot or last.boot != env.boot_of(folder))
        """Whether a power cut is possible. Otherwise the beginning of a version is a hand edit."""

    @cached_property
    def _records(self) -> list[Record]:
        """The records, newest first; in a window, the first one that does not parse ends the list."""
        if not self.may_be_torn:
            return [self._last] if self._last is not None else []
        found: list[Record] = []
        for text in window(self._env, self._folder):
            try:
                found.append(parse_record(text))
            except InvalidTOML:
                break  # changes before the damaged record do not lead to versions after it
        return found

    @cached_property
    def _copied(self) -> float:
        """When history was copied here by a program that does not keep file times; 0.0 if it was not."""
        paths = segments(self._files, self._folder / "history")
        token = self._files.token(paths[-1]) if paths else None
        if token is None or not _is_written_later(token, self._records[0], 0.0):
            return 0.0
        return token[0] / 1e9

    def roll_forward(self, staged: Collection[str]) -> None:
        """Bring documents to the version that history ends at, if a crash prevented it.

        Args:
            staged: The names of the staged files found.

        Raises:
            OSError, BackendError: Some documents are not up to date.
        """
        files, folder = self._files, self._folder
        awaited = {target_of(name) for name in staged if transaction_of(name) <= self._newest}
        for kind in dict.fromkeys(kind for record in self._records for kind in record.results):
            target = folder / f"{kind}.toml"
            try:
                found = files.read_file(target, most=MAX_BYTES)
            except UnsafeDocument:
                continue  # a hand edit
            if found is not None:
                text = self.brought_forward(kind, *found)
            else:
                text = self._created(kind, is_awaited=f"{kind}.toml" in awaited)
            if text is None:
                continue
            make_parent(files, str(folder), kind, sync=True)
            temp = _stage(files, folder, kind, text.encode("utf-8"), self._records[0].seq)
            put_in_place(files, temp, str(target), found[1] if found is not None else None)
            # A later commit exchanges the file, and does not sync an existing name.
            files.sync_folder(target.parent)

    def brought_forward(self, kind: str, data: bytes, token: FileToken) -> str | None:
        """Return the text that a document must have, or None if its file is left unchanged.

        Args:
            kind: The document.
            data: The content of its file.
            token: The token of that version of the file.
        """
        steps = self._steps(kind)
        text = data.decode("utf-8", "replace")
        now = digest(text)
        for number, record in enumerate(steps):
            if record.results[kind] == now:
                return _redone(text, kind, steps[:number]) if number else None
        if not steps:
            return None
        if steps[-1].bases[kind] == now:
            return _redone(text, kind, steps)
        if not self.may_be_torn or _is_written_later(token, steps[0], self._copied):
            return None
        versions = self._versions(kind)
        return versions[-1] if is_torn(data, versions) else None

    def _created(self, kind: str, *, is_awaited: bool) -> str | None:
        """Return the text of a missing document that the last transaction created; None if it was removed since."""
        newest = self._records[0]
        if newest.bases.get(kind) != EMPTY:
            return None  # its name was on disk: another program has removed the file since
        if not self.may_be_torn and not is_awaited:
            return None  # a new document is staged until it is published
        return redo("", newest, kind)

    def is_left_over(self, name: str) -> bool:
        """Return whether a staged file can be removed because it is not a displaced edit.

        Raises:
            BackendError: The file cannot be read.
        """
        files, path = self._files, self._folder / name
        if is_being_saved(self._env, str(path)) or not stat.S_ISREG(files.mode(path)):
            return False
        try:
            found = files.read_file(path, most=MAX_BYTES)
        except UnsafeDocument:
            return False
        if found is None or is_as_staged(name, found[0], self._newest):
            return True
        # An exchange follows the commit point: this content was displaced by one, or is torn.
        version = digest(found[0].decode("utf-8", "replace"))
        history = read_records(files, self._folder / "history")
        if any(version in results_of(record).values() for record in history):
            return True
        kind = target_of(name).removesuffix(".toml")
        return self.may_be_torn and is_torn(found[0], self._versions(kind))

    def _steps(self, kind: str) -> list[Record]:
        """Return the records that changed a document, newest first."""
        return [record for record in self._records if kind in record.results]

    def _versions(self, kind: str) -> list[str]:
        """Return the versions of a document before and after each of its records, oldest first.

        The result is empty if history cannot be read.
        """
        steps = self._steps(kind)[::-1]
        if not steps:
            return []
        try:
            text = ""
            if steps[0].bases[kind] != EMPTY:
                text = history_of(self._files, self._folder).text(kind, steps[0].seq - 1)
            found = [text]
            for record in steps:
                text = redo("" if record.bases[kind] == EMPTY else text, record, kind)
                found.append(text)
        except DocumentError as error:
            _logger.warning("history of %s cannot be read: %s", kind, type(error).__name__)
            return []
        return found


def repaired(env: Environment, folder: Path, kind: str, data: bytes, token: FileToken) -> bytes:
    """Return the recovered content of a document that a power cut tore, else `data`; needs no lock.

    Args:
        env: The file system, the clock, and the interval of checkpoints.
        folder: The user's folder.
        kind: The document.
        data: The content of its file.
        token: The token of that version of the file.
    """
    try:
        last = next(window(env, folder), None)
        recovery = Recovery(env, folder, parse_record(last) if last is not None else None)
        text = recovery.brought_forward(kind, data, token) if recovery.may_be_torn else None
    except (OSError, DocumentError):
        return data  # history is damaged, or is being replaced
    return data if text is None else text.encode("utf-8")


def _is_written_later(token: FileToken, record: Record, copied: float) -> bool:
    """Return whether another program wrote a file: over 60 s after its record and after any copy of history."""
    written = max(datetime.fromisoformat(record.time).timestamp(), copied)
    return token[0] / 1e9 > written + _LONG_AFTER


def _redone(text: str, kind: str, steps: list[Record]) -> str:
    for record in reversed(steps):
        text = redo(text, record, kind)
    return text


def is_torn(data: bytes, versions: list[str]) -> bool:
    """Return whether `data` can be a torn copy of one of the versions: its beginning, with zeros in some parts."""
    return any(
        len(data) <= len(whole)
        and all(whole.startswith(run[0], run.start()) for run in _WRITTEN.finditer(data))
        for whole in map(str.encode, versions)
    )


def _stage(files: FileSystem, folder: Path, kind: str, data: bytes, seq: int) -> str:
    """Stage a document of a transaction that is already in history."""
    # Until the file is complete, its name must not be that of a displaced edit.
    unfinished = staged_path(folder, kind, data, seq + 1)
    files.write_new(unfinished, data, sync=True)
    temp = staged_path(folder, kind, data, seq)
    files.replace(unfinished, temp)
    return temp
