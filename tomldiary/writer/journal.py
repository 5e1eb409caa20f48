"""The journal of a writer: it stores turns before `submit` returns, and a later writer recovers them after a crash.

Each writer has its own folder below the folder of the journals:

    .tomldiary/journal/
      20261120-034512-320748-9f0c2a71/
        owner.lock                        locked by the writer while its process runs
        000001.toml                       a record log; the oldest is removed when all its turns are done

A folder whose owner file is not locked belongs to a dead writer; any other writer may take it over. A record log (see
`storage.log`) is valid TOML:

    [[turn]]
    check = "1f6c0d9a"                # CRC-32 of the rest of the record, in hex
    number = 7
    user = "alice"
    session = "s1"
    operation = "9f0c…-7"
    time = "2026-11-20T03:37:54.320748+00:00"
    user_msg = "I moved to Lyon."
    assistant_msg = "Noted."

    [[operations]]                    # the model's result, so that a recovery does not call the model again
    check = "…"
    numbers = [7]
    operation = "9f0c…-7"
    operations = [{ op = "UpsertPreference", category = "likes", … }]

    [[done]]                          # turns that were applied, parked or withdrawn
    check = "…"
    numbers = [5, 7]

Turns and dead letters also have the field `epoch`: the fencing token of the user when the turn was submitted.
Turns are numbered per journal, so a later file can record that a turn of an earlier file is done. Dead letters are
records of the kind `[[dead]]` in a hidden document of the user.
"""

from __future__ import annotations

import contextlib
import threading
from itertools import chain
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, Forgotten, InvalidValue
from tomldiary.extraction.operations import Operation, to_table
from tomldiary.logging import get_logger
from tomldiary.storage.files import FileSystem, file_error, system_remedy
from tomldiary.storage.locks import remove_locked
from tomldiary.storage.log import LogFile, render_record, scan_log
from tomldiary.toml.values import render_text, render_value
from tomldiary.writer.journals import (
    EARLIER,
    claim_dead,
    claim_new,
    close_owner,
    jobs_of,
    read_segments,
    remove_folder,
    segment_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tomldiary.extraction.context import Turn
    from tomldiary.writer.receipts import Job

_SEGMENT_BYTES = 64 * 1024

_logger = get_logger(__name__)


class Journal:
    """One journal folder, which this process owns until `close`. Thread-safe.

    Args:
        folder: The journal's folder.
        owner: The descriptor of the locked owner file.
        sync: Whether appended records are synced.
        files: Performs the file operations.
        segment_bytes: The size of a segment at which the next one is created.
    """

    def __init__(
        self,
        folder: Path,
        owner: int,
        *,
        sync: bool,
        files: FileSystem,
        segment_bytes: int = _SEGMENT_BYTES,
    ) -> None:
        self.folder = folder
        self._files = files
        self._segment_bytes = segment_bytes
        self.is_synced = sync
        self._owner = owner
        self._mutex = threading.Lock()
        self._file = LogFile(files)
        self._segment = 0
        self._next = 1
        self._open: dict[int, set[int]] = {}
        """The numbers of unfinished turns by segment; the oldest segments are removed once they have none."""
        self._unwritten: list[int] = []
        """The numbers of finished turns that no "done" record has yet."""

    # Beginning

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        sync: bool,
        files: FileSystem | None = None,
        segment_bytes: int = _SEGMENT_BYTES,
    ) -> Journal:
        """Create a journal and lock its owner file; `files` performs the file operations.

        Raises:
            BackendError: The folder cannot be written.
        """
        files = files or FileSystem()
        try:
            folder, owner = claim_new(files, root, sync=sync)
            journal = cls(folder, owner, sync=sync, files=files, segment_bytes=segment_bytes)
            try:
                journal._new_segment()
            except BaseException:
                journal.close()
                raise
        except OSError as error:
            raise _cannot(root, error) from error
        return journal

    @classmethod
    def adopt(
        cls, folder: Path, *, sync: bool, files: FileSystem | None = None
    ) -> tuple[Journal, list[Job]] | None:
        """Take over the journal of a dead writer, with its unfinished turns in their order.

        Return None if the writer is alive, or if another writer has taken the journal over.
        """
        files = files or FileSystem()
        owner = claim_dead(files, folder)
        if owner is None:
            return None
        journal = cls(folder, owner, sync=sync, files=files)
        try:
            jobs = journal._continue()
            if not jobs:
                journal.close()
        except BaseException:
            journal.drop()
            raise
        return journal, jobs

    def _continue(self) -> list[Job]:
        """Return the unfinished turns in their order, and append further records to the last file."""
        records = read_segments(self._files, self.folder)
        segments = {
            each.data["number"]: segment
            for segment, found in records.items()
            for each in found
            if each.kind == "turn" and each.data is not None
        }
        self._next = max(segments, default=0) + 1
        self._open = {segment: set() for segment in records}
        jobs = jobs_of(chain.from_iterable(records.values()))
        for job in jobs:
            for each in (job, *job.group):
                each.journal, each.segment = self, segments[each.number]
                self._open[each.segment].add(each.number)
        if records:
            self._segment = max(records)
            self._file.open(str(self._path(self._segment)))
        return jobs

    def _path(self, segment: int) -> Path:
        return self.folder / f"{segment:06d}.toml"

    # Appending

    @property
    def problem(self) -> str | None:
        """Why nothing can be appended any more; None if appending is possible."""
        return self._file.problem

    @property
    def pending(self) -> int:
        """The number of unfinished turns."""
        return sum(map(len, [*self._open.values()]))  # a copy: other threads finish turns

    def append_turns(self, jobs: Sequence[Job], epoch_of: Callable[[Job], int | None]) -> list[Job]:
        """Append turns in this order and return them; they are durable once `sync` returned.

        Args:
            jobs: The turns, already rendered.
            epoch_of: Returns the fencing token of a turn's user, or None to leave the turn out. It is called while
                the file is locked. Therefore either a concurrent erasure finds the turn, or the turn has the newer
                token.

        Raises:
            BackendError: Nothing was appended.
        """

        def rendered() -> str:
            texts: list[str] = []
            for job in jobs:
                job.epoch = epoch_of(job)
                if job.epoch is not None:
                    job.journal, job.segment = self, self._segment
                    job.number, self._next = self._next, self._next + 1
                    texts.append(render_turn_record(job.number, job.epoch, job.rendered))
            return "".join(texts)

        with self._mutex:
            if self.problem is not None:
                raise BackendError(f"{self.problem} The turn was not stored. Submit it again.")
            try:
                if self._file.end > self._segment_bytes:
                    if self.is_synced:
                        self._file.sync()  # a later call of `sync` includes the next segment only
                    self._new_segment()
                self._append(rendered)
            except OSError as error:
                if isinstance(error, FileNotFoundError):  # the folder was removed
                    self._refuse_appends(error)
                raise _cannot(self._path(self._segment), error) from error
            stored = [job for job in jobs if job.epoch is not None]
            self._open[self._segment].update([job.number for job in stored])
            return stored

    def append_operations(
        self, jobs: Sequence[Job], operations: Iterable[Operation], epoch_of: Callable[[str], int]
    ) -> None:
        """Append the operations extracted from a turn, or from a group of turns; those of a group are synced.

        Raises:
            Forgotten: Something of the user was forgotten since the turn was submitted.
            BackendError: Nothing was appended.
        """
        first = jobs[0]
        text = render_operations([job.number for job in jobs], first.operation, operations)

        def rendered() -> str:
            if epoch_of(first.turn.user_id) != first.epoch:
                raise Forgotten.meanwhile()
            return text

        with self._mutex:
            try:
                self._append(rendered)
            except OSError as error:
                raise _cannot(self._path(self._segment), error) from error
        if len(jobs) > 1:
            # A group has one id in history. Without this record, a recovery would read its turns again separately.
            self.sync()

    def finish(self, jobs: Sequence[Job]) -> None:
        """Record that these turns are done, and remove the oldest files without unfinished turns."""
        with self._mutex:
            for job in jobs:
                self._open.get(job.segment, set[int]()).discard(job.number)
                self._unwritten.append(job.number)
            try:
                self._clean()
            except OSError as error:
                # No turn is applied twice, because history has the applied ones. The next append tries again.
                _logger.warning("%s: cannot be written (%s)", self.folder, error)

    def _clean(self) -> None:
        """Record the finished turns and remove files as `finish` does; the caller holds the mutex."""
        if self._unwritten:
            self._append(lambda: "")
        # The oldest file goes first, because a file may say that turns of older ones are done.
        while (oldest := min(self._open)) != self._segment and not self._open[oldest]:
            remove_locked(self._files, self._path(oldest))
            del self._open[oldest]

    def _append(self, render: Callable[[], str]) -> None:
        """Append records, with a "done" record for turns finished since the last append."""
        done = ""
        if self._unwritten:
            done = render_record("done", f"numbers = {render_value(self._unwritten)}\n")
        self._file.append(lambda: render() + done)
        self._unwritten.clear()

    def _new_segment(self) -> None:
        """Create the next file."""
        segment = self._segment + 1
        self._file.create(str(self._path(segment)))
        # Set only now, so that turns are still appended to the old file if the new one cannot be created.
        self._segment = segment
        self._open.setdefault(segment, set())
        try:
            if self.is_synced:
                self._files.sync_folder(self.folder)
        except OSError as error:
            self._refuse_appends(error)
            raise

    def _refuse_appends(self, error: OSError) -> None:
        self._file.problem = f"{self.folder}: cannot be written any more ({error.strerror})."

    def sync(self) -> None:
        """Make the appended records durable.

        Raises:
            BackendError: It is unknown which records are durable. A later sync cannot repair this.
        """
        if not self.is_synced:
            return
        try:
            with self._mutex:
                descriptor = self._file.duplicate()
            try:
                self._files.sync_data(descriptor)
            finally:
                self._files.close(descriptor)
        except OSError as error:
            with self._mutex:
                try:
                    self._new_segment()
                except OSError as another:
                    self._refuse_appends(another)
            raise _cannot(self._path(self._segment), error) from error

    # Ending

    def check(self, job: Job) -> None:
        """Do nothing, because the lock of the owner file excludes other writers."""

    def holds(self, job: Job) -> bool:
        """Return whether the turn's record is still in the journal; an erasure removes it."""
        return any(
            each.kind == "turn" and each.data is not None and each.data["number"] == job.number
            for each in scan_log(self._files.content(self._path(job.segment)))
        )

    def close(self) -> None:
        """Close the journal, and remove it if all its turns are done; otherwise the next writer takes it over."""
        with self._mutex:
            with contextlib.suppress(OSError):
                if self.pending:
                    self._clean()
                else:
                    self._remove()
            self.drop()

    def _remove(self) -> None:
        for path in segment_files(self.folder):
            remove_locked(self._files, path)
        for path in self.folder.glob(".*.tmp"):
            self._files.discard(path)
        remove_folder(self._files, self.folder)

    def drop(self) -> None:
        """Close the descriptors without writing: after a fork, or if a takeover failed."""
        self._file.close()
        with contextlib.suppress(OSError):
            close_owner(self._files, self._owner)
        self._owner = -1
        self._file.problem = f"{self.folder}: the journal is closed."


def _cannot(path: Path, error: OSError) -> BackendError:
    remedy = system_remedy(error) or "Check free space and permissions."
    return file_error(path, "cannot be written", error, f"The turn was not stored. {remedy}")


# Rendering


def render_turn(turn: Turn, operation: str, time: str) -> str:
    """Return the lines of a turn's record that are known before the journal numbers it.

    Raises:
        InvalidValue: A text cannot be stored in a file.
    """
    lines = [
        _user_line(turn.user_id),
        f"session = {render_text(turn.session_id, where='session_id')}",
        f"operation = {render_text(operation, where='operation_id')}",
        f'time = "{time}"',
    ]
    if turn.status != "completed":
        lines.append(f"status = {render_value(turn.status, where='status')}")
    if turn.context_now is not None:
        lines.append(f'context_now = "{turn.context_now.isoformat()}"')
    if turn.earlier:
        exchanges = [list(each) for each in turn.earlier]
        lines.append(f"{EARLIER}{render_value(exchanges, where='earlier')}")
    if turn.steps:
        steps = [list(each) for each in turn.steps]
        lines.append(f"steps = {render_value(steps, where='steps')}")
    if turn.episode is not None:
        lines.append(f"episode = {render_value(turn.episode)}")
    lines.append(f"user_msg = {render_text(turn.user_msg, where='user_msg')}")
    lines.append(f"assistant_msg = {render_text(turn.assistant_msg, where='assistant_msg')}\n")
    return "\n".join(lines)


def _user_line(user: str) -> str:
    try:
        return f"user = {render_text(user)}"
    except InvalidValue:  # a user id may be any string, even one with lone surrogates
        return f"user_escaped = {render_text(user.encode('unicode_escape').decode('ascii'))}"


def render_turn_record(number: int, epoch: int, rendered: str) -> str:
    """Return the whole record of a turn."""
    return render_record("turn", f"number = {number}\nepoch = {epoch}\n{rendered}")


def render_operations(
    numbers: Sequence[int], operation: str, operations: Iterable[Operation]
) -> str:
    """Return the record of the operations extracted from one turn, or from several read together.

    Raises:
        InvalidValue: The extractor returned a value that TOML cannot express.
    """
    tables = [to_table(each) for each in operations]
    body = (
        f"numbers = {render_value([*numbers])}\noperation = {render_value(operation)}\n"
        f"operations = {render_value(tables)}\n"
    )
    return render_record("operations", body)
