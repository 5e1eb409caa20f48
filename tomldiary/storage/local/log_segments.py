"""The files of one user's history: segments of 4 MB that are appended to; only forgetting rewrites them."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from tomldiary.errors import BackendError
from tomldiary.history.record import END
from tomldiary.logging import get_logger
from tomldiary.runtime.capabilities import (
    NO_WAITING,
    OURS,
    PRIVATE,
    make_private,
    read_at,
    sync_data,
    sync_file,
)
from tomldiary.storage.files import make_folder, sync_folder, write_all, write_new
from tomldiary.storage.write_out import start_writing

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DAMAGED",
    "End",
    "append_records",
    "cut_off",
    "cut_room",
    "damaged",
    "end_behind",
    "new_segment",
    "newest_segment",
    "segments",
]

_logger = get_logger(__name__)
_FLAGS = os.O_WRONLY | os.O_CREAT | PRIVATE
_LOOK = os.O_RDONLY | PRIVATE | NO_WAITING
SEGMENT_BYTES = 4 * 1024 * 1024
DAMAGED = ".damaged-"
"""In the name of a file that holds a damaged record; not a segment, as it does not end in ".toml"."""
_LEAST_ROOM, _MOST_ROOM = 4096, 32 * 1024  # bytes laid out at once
_SEEN = 1024  # bytes in front of the end by which it is known again


class End(NamedTuple):
    """Where a user's history ends: behind the last record of the newest segment."""

    segment: str
    at: int
    seen: bytes
    """What stands in front of it."""

    def is_there(self) -> bool:
        """Tell whether nobody has added to the history, nor replaced the segment."""
        try:
            descriptor = os.open(self.segment, _LOOK)
        except OSError:
            return False
        try:
            return self.is_in(descriptor)
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def is_in(self, descriptor: int) -> bool:
        """Tell whether an open file ends there.

        Neither its length nor its time would tell: that does not grow while there is room, and see `looks`.
        """
        length = len(self.seen)
        found = read_at(descriptor, length + 1, self.at - length)
        return found[:length] == self.seen and found[length:] in {b"", b"\n"}


def segments(folder: Path) -> list[Path]:
    """Return the segments, oldest first."""
    try:
        return sorted((path for path in folder.iterdir() if path.suffix == ".toml"), key=_place)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _place(path: Path) -> tuple[str, int, str]:
    """Return what orders segments: the month, then the number, of which a month may have more than 999."""
    month, _, number = path.stem.rpartition("-")
    return month, int(number) if number.isdecimal() else 0, path.name


def newest_segment(folder: Path) -> Path | None:
    """Return the segment that is appended to, or None if there is no history yet."""
    found = segments(folder)
    return found[-1] if found else None


def new_segment(folder: Path, newest: Path | None) -> Path:
    """Return the path of the segment that comes behind `newest`."""
    month = f"{datetime.now(UTC):%Y-%m}"
    if newest is not None and newest.stem[:7] >= month:  # a clock set back never reorders segments
        prefix, number = newest.stem.rsplit("-", 1)
        return folder / f"{prefix}-{int(number) + 1:03d}.toml"
    return folder / f"{month}-001.toml"


def append_records(
    folder: str,
    newest: End | None,
    records: list[str],
    *,
    sync: bool,
    known: str = "",
    meanwhile: Callable[[], None] | None = None,
) -> End:
    """Append records; on failure the segment ends as before.

    A segment that is appended to again and again is laid out ahead with empty lines, which records are written over:
    a sync has only the record to write then, and no new length of the file.

    Args:
        folder: The history's.
        newest: Where history ends; None: there is none.
        records: The texts, oldest first.
        sync: Whether they are to be on the disk when this returns.
        known: The segment whose name is known to be on the disk.
        meanwhile: Something else to do while the disk is at work.

    Returns:
        Where history ends now.

    Raises:
        FileExistsError: Somebody else has begun a new segment just now. Nothing was appended.
        OSError: Nothing was appended.
        BackendError: Whether something was appended is not known.
    """
    data = "".join(records).encode()
    if newest is not None and newest.at + len(data) <= SEGMENT_BYTES:
        path, at = newest.segment, newest.at
    else:
        if newest is not None:
            cut_room(newest)
            if sync:
                # Its last record may be of a process that was killed before it could.
                _sync_file(newest.segment)
        make_folder(folder, sync=sync)
        path = str(new_segment(Path(folder), Path(newest.segment) if newest else None))
        at = 0
    # Nobody has looked at what is in the way of a new one.
    descriptor = os.open(path, _FLAGS if at else _FLAGS | os.O_EXCL, 0o600)
    try:
        length = os.lseek(descriptor, 0, os.SEEK_END)
        if length == 0:
            make_private(descriptor)
        at = min(at, length)  # no gap, should somebody have cut it off just now
        end = at + len(data)
        try:
            os.lseek(descriptor, at, os.SEEK_SET)
            write_all(descriptor, data)
            if sync:
                if end > length and path == known:
                    _lay_out(descriptor, end)
                if meanwhile is not None:
                    start_writing(descriptor, at, end)
                    meanwhile()
                _sync_data(descriptor)
                if path != known:
                    sync_folder(folder)
            return End(path, end, data[-_SEEN:])
        except BaseException as error:
            _take_back(descriptor, at, path, error, sync=sync)
            raise
    finally:
        os.close(descriptor)


def _lay_out(descriptor: int, end: int) -> None:
    """Write empty lines behind the records, as many bytes as there are already, within bounds."""
    with suppress(OSError):  # a full disk: the records are written
        os.write(descriptor, b"\n" * min(max(end, _LEAST_ROOM), _MOST_ROOM))


def end_behind(segment: Path, at: int, record: str) -> End:
    """Return the end of a history whose last record ends at `at`."""
    return End(str(segment), at, record.encode()[-_SEEN:])


def cut_room(end: End) -> None:
    """Take away the empty lines behind the last record, if there is nothing else; the caller holds the user's lock.

    Nothing else of the file changes, nor its time: that tells whether documents are behind, see `recovery`.

    Raises:
        OSError: They are still there.
    """
    descriptor = os.open(end.segment, os.O_RDWR | PRIVATE)
    try:
        found = os.fstat(descriptor)
        rest = read_at(descriptor, found.st_size, end.at)
        if rest and not rest.strip(b"\n") and end.is_in(descriptor):
            os.ftruncate(descriptor, end.at)
            os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))
    finally:
        os.close(descriptor)


def _take_back(descriptor: int, size: int, path: str, cause: BaseException, *, sync: bool) -> None:
    """Cut the segment back to `size`, so that what failed is not found later."""
    try:
        os.ftruncate(descriptor, size)
        if sync:
            sync_file(descriptor)
    except OSError as error:
        raise BackendError(
            f"{path}: a record was appended that could neither be finished ({_reason(cause)}) nor"
            f" taken back ({error.strerror}). Whether the change is stored is not known; reopen the"
            " diary and look before you repeat it."
        ) from error


def _reason(error: BaseException) -> str:
    return str(error.strerror if isinstance(error, OSError) else type(error).__name__)


def cut_off(path: Path, end: int) -> None:
    """Shorten a segment to `end`; a record that looks whole but is damaged is set aside first.

    An append that was cut off was never acknowledged. What ends like a whole record may have been, and
    have been damaged since. Empty lines stay: there is room for records.
    """
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read()
    if not rest.strip(b"\n"):
        return
    if rest.endswith(b"\n"):
        rest = rest.rstrip(b"\n") + b"\n"
    if f"\n{rest.decode('latin-1')}".endswith(END):
        aside = path.with_name(f"{path.stem}{DAMAGED}{crc32(rest):08x}")
        aside.unlink(missing_ok=True)  # the same, or what is there of it
        write_new(str(aside), rest, sync=True)
        sync_folder(path.parent)
        _logger.warning("%s: the last record is damaged; it was set aside as %s", path, aside.name)
    os.truncate(path, end)


def damaged(folder: Path) -> list[Path]:
    """Return the records of a history that were set aside."""
    try:
        return sorted(path for path in folder.iterdir() if DAMAGED in path.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | OURS)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def _sync_data(descriptor: int) -> None:
    """Make a file's content durable."""
    sync_data(descriptor)
