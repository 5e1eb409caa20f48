"""The record log of one user: segments of `Environment.segment_bytes`, appended to by writers and read without a lock.

Only forgetting and retention rewrite segments.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple
from zlib import crc32

from tomldiary.errors import BackendError, DocumentError, UnsafeDocument
from tomldiary.history.record import (
    END,
    HEADER,
    LOST,
    Record,
    envelope_of,
    is_whole,
    next_sequence,
    render_record,
)
from tomldiary.logging import get_logger
from tomldiary.storage.files import PRIVATE, FileSystem, FileToken, token_of
from tomldiary.storage.local.layout import SEGMENT, kinds_in
from tomldiary.storage.log import own_line_ends
from tomldiary.toml.document import Document
from tomldiary.toml.parse import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tomldiary.storage.environment import Environment

_logger = get_logger(__name__)
_FLAGS = os.O_WRONLY | os.O_CREAT | PRIVATE
DAMAGED = ".damaged-"
"""Part of the name of a file with a damaged record. It does not end in ".toml", so it is no segment."""
_NAMED = re.compile(r"^seq *= *(\d{1,18})", re.MULTILINE)
_COARSE = 2.0  # seconds by which the time of a file may lag behind the clock
_MOST_TAILS = 4096  # users whose last record is cached; correctness does not depend on it


class Tail(NamedTuple):
    """The end of a user's history, as last read or appended to."""

    segment: str
    """The newest segment with a whole record."""
    at: int
    """The offset after the last record of the segment."""
    token: FileToken | None
    """The version of the segment."""
    folder_time: int
    record: str
    lost: str | None = None
    """A record without changes, in place of records that another program has removed and documents still name."""

    @property
    def last(self) -> str:
        """The record that the next transaction follows."""
        return self.lost or self.record

    def is_there(self, files: FileSystem) -> bool:
        """Return whether the segment still ends here: it was not changed or replaced, and nothing torn follows."""
        token = files.token(self.segment)
        return token is not None and token == self.token and token[1] == self.at


def segments(files: FileSystem, folder: Path) -> list[Path]:
    """Return the segments, oldest first.

    Raises:
        BackendError: The folder is a link. Text outside of the memory could not be forgotten.
    """
    if files.is_link(folder):
        raise BackendError(f"{folder}: is a link. Nothing was changed. Put a folder there.")
    return sorted(
        (path for path in files.paths_in(folder) if SEGMENT.fullmatch(path.name)), key=_place
    )


def _place(path: Path) -> tuple[str, int]:
    """Return the sort key of a segment: the month, then the number, which may exceed 999."""
    month, _, number = path.stem.rpartition("-")
    return month, int(number)


def new_segment(folder: Path, newest: Path | None, month: str) -> Path:
    """Return the path of the segment after `newest`, in a month such as "2026-11"."""
    # The order of segments must not change if the clock is set back.
    if newest is not None and newest.stem[:7] >= month:
        prefix, number = newest.stem.rsplit("-", 1)
        return folder / f"{prefix}-{int(number) + 1:03d}.toml"
    return folder / f"{month}-001.toml"


def append_records(
    env: Environment,
    folder: str,
    tail: Tail | None,
    records: list[str],
    *,
    sync: bool,
    known: str = "",
) -> Tail:
    """Append records; if that fails, the segment is cut back to its previous end.

    Args:
        env: The file system, the clock, and the size of a segment.
        folder: The folder of the history.
        tail: The end of history; None if there is no history.
        records: The texts, oldest first.
        sync: Whether the records must be on disk when this returns.
        known: The segment whose name is on disk already.

    Returns:
        The new end of history.

    Raises:
        FileExistsError: Another process has just created the new segment. Nothing was appended.
        OSError: Nothing was appended.
        BackendError: It is unknown whether something was appended.
    """
    files = env.files
    data = "".join(records).encode()
    if tail is not None and tail.at + len(data) <= env.segment_bytes:
        path, at = tail.segment, tail.at
    else:
        if tail is not None and sync:
            # The process that appended its last record may have been killed.
            files.sync_path(tail.segment)
        files.make_folder(folder, sync=sync)
        before = Path(tail.segment) if tail else None
        path = str(new_segment(Path(folder), before, env.clock.month()))
        at = 0
    # `O_EXCL` refuses an existing file at the path of a new segment, because its content was not checked.
    descriptor = files.open(path, _FLAGS if at else _FLAGS | os.O_EXCL, 0o600)
    try:
        length = files.lseek(descriptor, 0, os.SEEK_END)
        if length == 0:
            files.make_private(descriptor)
        at = min(at, length)  # no gap if another process has just truncated it
        end = at + len(data)
        try:
            files.lseek(descriptor, at, os.SEEK_SET)
            files.write_all(descriptor, data)
            if sync:
                files.sync_data(descriptor)
                if path != known:
                    files.sync_folder(folder)
            # An append to an existing segment does not change the folder time; the old time reveals other changes.
            known_time = tail is not None and tail.segment == path and tail.folder_time
            changed = known_time or files.folder_time(folder)
            return Tail(path, end, token_of(files.fstat(descriptor)), changed, records[-1])
        except BaseException as error:
            _take_back(files, descriptor, at, path, error, sync=sync)
            raise
    finally:
        files.close(descriptor)


def opens_window(before: int, seq: int, interval: int) -> bool:
    """Return whether transaction `seq` begins a new window of `interval`; `before` is the last one before it."""
    return before > 0 and (before - 1) // interval != (seq - 1) // interval


def _take_back(
    files: FileSystem, descriptor: int, size: int, path: str, cause: BaseException, *, sync: bool
) -> None:
    """Truncate the segment to `size`, so that a failed record is not read later."""
    try:
        files.ftruncate(descriptor, size)
        if sync:
            files.sync_file(descriptor)
    except OSError as error:
        raise BackendError(
            f"{path}: a record was appended that could neither be finished ({_reason(cause)}) nor"
            f" removed ({error.strerror}). It is unknown whether the change is stored; reopen the"
            " diary and check before you repeat it."
        ) from error


def _reason(error: BaseException) -> str:
    return str(error.strerror if isinstance(error, OSError) else type(error).__name__)


def cut_off(files: FileSystem, path: Path, end: int) -> None:
    """Truncate a segment to `end`; records that look whole but are damaged are set aside first.

    A torn record was never acknowledged. A record with a whole ending may have been acknowledged, and damaged
    later.
    """
    with files.open_to_read(path) as file:
        file.seek(end)
        rest = file.read()
    if not rest:
        return
    if (b"\n" + own_line_ends(rest)).endswith(_END):
        aside = path.with_name(f"{path.stem}{DAMAGED}{crc32(rest):08x}")
        files.discard(aside)  # the same bytes, or a part of them
        files.write_new(str(aside), rest, sync=True)
        files.sync_folder(path.parent)
        _logger.warning("%s: the last record is damaged; it was set aside as %s", path, aside.name)
    files.truncate(path, end)


def damaged(files: FileSystem, folder: Path) -> list[Path]:
    """Return the files with damaged records that were set aside."""
    return sorted(path for path in files.paths_in(folder) if DAMAGED in path.name)


_END = END.encode()
# Another program, such as git, may have written CRLF as line ends.
_START = f"\n{HEADER.rstrip()}".encode()
_STORED_END = re.compile(rb"\n\]\r?\n")
_TAIL = 8 * 1024  # bytes read at a time when looking for the last record


def last_record(files: FileSystem, path: Path) -> tuple[str | None, int]:
    """Return the last whole record of a segment, and the offset of its end.

    The bytes after the last whole record are a torn append that was never acknowledged.
    """
    with files.open_to_read(path) as file:
        for at, data in _backwards(file):
            # The next append may be torn within its header, or may not be text.
            whole = _without_rest(data)
            text = own_line_ends(whole).decode("utf-8", "replace")
            if is_whole(text):  # otherwise torn or damaged: try the record before it
                return text, at + len(whole)
    return None, 0


def read_records(files: FileSystem, folder: Path) -> Iterator[str]:
    """Yield all records, newest first; the files are read only as far as needed."""
    is_newest = True
    for path in reversed(segments(files, folder)):
        try:
            opened = files.open_to_read(path)
        except FileNotFoundError:
            return  # retention or a complete erasure has just removed this segment and all older ones
        with opened as file:
            for _, data in _backwards(file):
                record = own_line_ends(_without_rest(data) if is_newest else data)
                if is_newest and not record.endswith(_END):
                    continue  # a writer is appending it, or was killed
                is_newest = False
                yield record.decode("utf-8", "replace")


def _backwards(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the bytes of each record of a segment, newest first; the file is read as far as needed."""
    begin, data = file.seek(0, os.SEEK_END), b""
    while begin > 0:
        step = min(max(_TAIL, len(data)), begin)  # doubles: a long record is searched at most twice
        begin -= step
        file.seek(begin)
        data = file.read(step) + data
        while (at := (b"\n" + data).rfind(_START)) > 0 or (at == 0 and begin == 0):
            yield begin + at, data[at:]
            data = data[:at]


def _without_rest(data: bytes) -> bytes:
    """Return a record without the bytes after its end marker; without a marker, all bytes."""
    found = _STORED_END.search(data)
    return data if found is None else data[: found.end()]


def named_transaction(text: str) -> int:
    """Return the number of the transaction that a document names as its last one; 0 if it names none."""
    # The first table usually suffices. If a text in it contains "[", the cut one does not parse.
    head = text.partition("\n[")[0] if text.startswith("[_meta]\n") else text
    for each in (head, text):
        with suppress(DocumentError):
            named = Document.parse(each).meta.get("seq")
            return named if isinstance(named, int) else 0
    line = _NAMED.search(text)
    return int(line[1]) if line is not None else 0


def _lost(files: FileSystem, place: str, last: str) -> str | None:
    """Return a record with the next number after all transactions that documents name; None if history has them.

    A transaction is in history before a document names it. Documents older than the last record are not read.
    """
    folder, (seq, moment) = Path(place).parent, envelope_of(last)
    since, named = datetime.fromisoformat(moment).timestamp() - _COARSE, seq
    for kind in kinds_in(files, folder):
        with suppress(BackendError, UnsafeDocument):  # an unreadable document names no transaction
            token = files.token(path := folder / f"{kind}.toml")
            if token is not None and token[0] / 1e9 >= since:
                text = files.content(path, most=MAX_BYTES).decode("utf-8", "replace")
                if any(int(number) > named for number in _NAMED.findall(text)):
                    named = max(named, named_transaction(text))
    # The next number is free even if a document in memory is from the last transaction.
    return render_record(Record(named + 1, LOST, [], {}, {}, moment)) if named > seq else None


class HistoryTails:
    """The ends of all users' histories; the caller holds the user's lock, unless it only reads the last record.

    Args:
        files: Makes the file operations.
        folder_of: Returns the folder of a user.
    """

    def __init__(self, files: FileSystem, folder_of: Callable[[str], Path]) -> None:
        self._files = files
        self._folder_of = folder_of
        self._tails: dict[str, Tail] = {}

    def _place(self, user: str) -> str:
        return f"{self._folder_of(user)}/history"

    def keep(self, user: str, tail: Tail) -> Tail:
        """Cache the end of a user's history, and return it."""
        if len(self._tails) >= _MOST_TAILS:
            self._tails.clear()
        self._tails[user] = tail
        return tail

    def drop(self, user: str) -> None:
        """Drop the cached end of a user's history."""
        self._tails.pop(user, None)

    def check(self, user: str) -> None:
        """Detect records that another program has removed from the end; see `Tail.lost`."""
        tail = self.of(user)
        if tail is not None:
            lost = _lost(self._files, self._place(user), tail.record)
            self.keep(user, tail._replace(lost=lost))

    def last(self, user: str) -> str | None:
        """Return the last complete record, or `Tail.lost` if later ones were removed; needs no lock."""
        tail = self._found(user, cuts=False)
        return tail and tail.last

    def of(self, user: str) -> Tail | None:
        """Return the end of a user's history, or None without history; a torn tail is cut off."""
        return self._found(user, cuts=True)

    def _found(self, user: str, *, cuts: bool) -> Tail | None:
        # Without the lock a torn tail must stay: another process may be appending it.
        # Read the cache once: another thread may drop the entry at any time.
        cached, place = self._tails.get(user), self._place(user)
        changed = self._files.folder_time(place)
        if (
            cached is not None
            and 0 < cached.folder_time == changed  # no segment was added since
            and cached.is_there(self._files)
        ):
            return cached
        paths = segments(self._files, Path(place)) if changed else []
        for newest in reversed(paths):
            try:
                # First, because another process may append during the read.
                token = self._files.token(newest)
                record, at = last_record(self._files, newest)
            except FileNotFoundError:
                continue  # just removed by a complete erasure
            if cuts:
                cut_off(self._files, newest, at)
            if record is not None:
                is_replaced = cached is not None and (
                    cached.lost is not None or next_sequence(record) < next_sequence(cached.record)
                )
                lost = _lost(self._files, place, record) if is_replaced else None
                tail = Tail(str(newest), at, token, changed, record, lost)
                # A newer segment without a whole record is removed by the next writer.
                return self.keep(user, tail) if newest == paths[-1] else tail
            # The only record of a new segment was torn: the last record is in the previous segment.
            if cuts:
                self._files.unlink(newest)
                return self._found(user, cuts=True)
        self.drop(user)
        return None
