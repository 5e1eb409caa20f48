"""The files of one user's history: segments of 4 MB that are appended to; only forgetting rewrites them."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
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

__all__ = [
    "DAMAGED",
    "End",
    "append_records",
    "cut_off",
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
_SEEN = 1024  # bytes before the end that identify it


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
        """Return whether an open file ends here; its length alone would not tell, as history may be rewritten."""
        length = len(self.seen)
        return read_at(descriptor, length + 1, self.at - length) == self.seen


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
) -> End:
    """Append records; on failure the segment ends as before.

    Args:
        folder: The history's.
        newest: Where history ends; None: there is none.
        records: The texts, oldest first.
        sync: Whether they are to be on the disk when this returns.
        known: The segment whose name is known to be on the disk.

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
        if newest is not None and sync:
            _sync_file(
                newest.segment
            )  # the process that appended its last record may have been killed
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
                _sync_data(descriptor)
                if path != known:
                    sync_folder(folder)
            return End(path, end, data[-_SEEN:])
        except BaseException as error:
            _take_back(descriptor, at, path, error, sync=sync)
            raise
    finally:
        os.close(descriptor)


def end_behind(segment: Path, at: int, record: str) -> End:
    """Return the end of a history whose last record ends at `at`."""
    return End(str(segment), at, record.encode()[-_SEEN:])


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
    have been damaged since.
    """
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read()
    if not rest:
        return
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
