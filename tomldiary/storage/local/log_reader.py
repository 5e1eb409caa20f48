"""Reading one user's history out of its segments, also while somebody writes to it or was killed at it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tomldiary.errors import InvalidTOML
from tomldiary.history.record import END, HEADER, parse_record
from tomldiary.storage.files import read_file
from tomldiary.storage.local.log_segments import segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["last_record", "read_records", "read_segment", "split_records"]

_END = END.encode()
_TAIL = 64 * 1024  # bytes read at a time when looking for the last record


def last_record(path: Path) -> tuple[str | None, int]:
    """Return the last whole record of a segment, and the size the segment has up to its end.

    What follows the last whole record is the torn end of an append that was never acknowledged.
    """
    with path.open("rb") as file:
        begin, data = file.seek(0, os.SEEK_END), b""
        while begin > 0:
            step = _step(data, begin)
            begin -= step
            file.seek(begin)
            data = file.read(step) + data
            while (at := _last_header(data)) >= 0:
                # The next append may have been cut off within its header, or be no text at all.
                whole = _without_rest(data[at:])
                text = whole.decode("utf-8", "replace")
                try:
                    parse_record(text)
                except InvalidTOML:
                    # Torn or damaged: the record before it is the last one.
                    data = data[:at]
                    continue
                return text, begin + at + len(whole)
    return None, 0


def read_segment(path: Path) -> bytes:
    """Return a segment's content; b"" if there is none. Needs no lock.

    Raises:
        BackendError: It cannot be read.
    """
    found = read_file(path)
    return found[0] if found is not None else b""


def read_records(folder: Path) -> Iterator[str]:
    """Yield all records, newest first, reading no more of the files than is asked for."""
    is_newest = True
    for path in reversed(segments(folder)):
        with path.open("rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            begin = size - _step(b"", size)
            file.seek(begin)
            data = file.read(size - begin)
            while True:
                while (at := _last_header(data)) > 0 or (at == 0 and begin == 0):
                    record, data = data[at:], data[:at]
                    if is_newest:
                        record = _without_rest(record)
                        if not record.endswith(_END):
                            continue  # a writer is at it, or was killed
                        is_newest = False
                    yield record.decode("utf-8", "replace")
                if begin == 0:
                    break
                step = _step(data, begin)
                begin -= step
                file.seek(begin)
                data = file.read(step) + data


def _step(data: bytes, begin: int) -> int:
    """Return how much to read in front of what was read: more and more, so that a long record is searched twice at most."""
    return min(max(_TAIL, len(data)), begin)


def _without_rest(data: bytes) -> bytes:
    """Return a record without what follows its end; all of it if it has none."""
    at = data.find(_END)
    return data if at < 0 else data[: at + len(_END)]


def split_records(data: bytes) -> list[str]:
    """Return the texts of a segment's records, oldest first."""
    found: list[str] = []
    while (at := _last_header(data)) >= 0:
        # Only behind the newest record can there be the rest of an append that was cut off.
        record = data[at:] if found else _without_rest(data[at:])
        found.append(record.decode("utf-8", "replace"))
        data = data[:at]
    return found[::-1]


def _last_header(data: bytes, end: int | None = None) -> int:
    header = HEADER.encode()
    at = data.rfind(b"\n" + header, 0, end)
    if at >= 0:
        return at + 1
    return 0 if end != 0 and data.startswith(header) else -1
