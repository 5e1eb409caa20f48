"""A record log: an append-only TOML file of checksummed records.

Each record is one table of an array of tables. Its first value is the checksum of all later lines:

    [[turn]]
    check = "1f6c0d9a"      # CRC-32 of the rest of the record, in hex
    number = 7
    user_msg = "I moved to Lyon."

No line after the first is empty, begins with "[" or contains a NUL byte, and values escape line breaks. So no value
can look like the first line of a record, and a record ends where its lines end. Another program, such as an archiver,
may have written CRLF as line ends: the records are read all the same. A crash can leave a torn tail after
the last whole record: a part of a record, or zeros. A torn tail was never acknowledged and is cut off.

Two kinds of process use a file at once: one appends, another rewrites it without forgotten records. Both lock it.
`rewrite_log` replaces the file. So an append checks under the lock that its file is still there, and opens the new one.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any
from zlib import crc32

from tomldiary.storage.files import PRIVATE, FileSystem, unfinished
from tomldiary.storage.locks import found_at, lock_file, try_lock, unlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | PRIVATE
_HEADER = re.compile(rb"^\[\[([a-z]+)\]\]\n", re.MULTILINE)
_LINES = re.compile(rb"\[\[[a-z]+\]\]\n(?:[^\[\n\0][^\n\0]*\n)*")
_CRLF = re.compile(rb"\r\n")
_CHECK = re.compile(r'check = "([0-9a-f]{8})"\n')


# Records


def render_record(kind: str, body: str) -> str:
    """Return a record of `kind`; `body` is its TOML lines, each with a line break."""
    return f'[[{kind}]]\ncheck = "{crc32(body.encode()):08x}"\n{body}'


@dataclass(frozen=True)
class LogRecord:
    """One record, as stored in the file."""

    kind: str
    text: str
    """The exact text; for a damaged record, all bytes up to the next record."""
    at: int
    """The offset of the record, in bytes."""
    body: str | None
    """The lines below the checksum; None if the record is torn or damaged."""

    @property
    def end(self) -> int:
        """The offset of the record's end, in bytes, if the record is whole."""
        return self.at + len(self.text.encode())

    @cached_property
    def data(self) -> dict[str, Any] | None:
        """The values, which must not be changed; None if the record is torn or damaged."""
        import tomllib  # noqa: PLC0415 - start-up time: needed after a crash and for forgetting only

        return None if self.body is None else tomllib.loads(self.body)


def scan_log(data: bytes) -> list[LogRecord]:
    """Return the records of a file, oldest first, damaged ones included."""
    data = own_line_ends(data)
    starts = [*_HEADER.finditer(data)]
    if not starts:
        return []
    ends = [*(found.start() for found in starts[1:]), len(data)]
    return [
        _record(found.group(1).decode(), data[found.start() : end], found.start())
        for found, end in zip(starts, ends, strict=True)
    ]


def own_line_ends(data: bytes) -> bytes:
    """Return a log with LF as line ends, which another program may have replaced by CRLF; values have none."""
    # The search for one byte is four times as fast.
    return data.replace(b"\r\n", b"\n") if b"\r" in data else data


def _record(kind: str, data: bytes, at: int) -> LogRecord:
    lines = _LINES.match(data)
    text = lines.group().decode("utf-8", "replace") if lines is not None else ""
    body = text[len(kind) + 5 :]
    check = _CHECK.match(body)
    if check is not None and f"{crc32(body[check.end() :].encode()):08x}" == check.group(1):
        return LogRecord(kind, text, at, body[check.end() :])
    return LogRecord(kind, data.decode("utf-8", "replace"), at, None)


def cut_torn_tail(files: FileSystem, descriptor: int) -> list[LogRecord]:
    """Truncate a locked file after its last whole record; return the remaining records.

    Damaged records before a whole one stay in the file: they were acknowledged.

    Raises:
        OSError: The file could not be read or cut.
    """
    data = files.read_all(descriptor)
    records = scan_log(data)
    while records and records[-1].body is None:
        records.pop()
    end = records[-1].end if records else 0
    for found in _CRLF.finditer(data):  # the offsets of records count LF only
        end += found.start() < end
    if end < len(data):
        files.ftruncate(descriptor, end)
    return records


# Forgetting


def rewrite_log(
    files: FileSystem, path: Path, keep: Callable[[list[LogRecord]], Iterable[str]]
) -> None:
    """Rewrite a file with the records to keep, durably and atomically, unless nothing changes.

    Args:
        files: Makes the file operations.
        path: The file.
        keep: Called with all records while the file is locked; returns the texts to keep.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: The file is unchanged, or already replaced. Call this function again.
    """
    with lock_file(files, path) as descriptor:
        data = files.read_all(descriptor)
        fresh = "".join(keep(scan_log(data))).encode()
        if fresh != data or files.exists(unfinished(path)):
            files.write_over(path, fresh, sync=True)


# Appending


class LogFile:
    """Appends records to a file; one file is open at a time.

    Not thread-safe: the owner holds a mutex. Another thread can sync a `duplicate` without that mutex.
    """

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self.end = 0
        """The length of the file after the last append, in bytes."""
        self.problem: str | None = None
        """The reason why further records should go to another file."""
        self._path = ""
        self._descriptor = -1

    def open(self, path: str) -> None:
        """Open or create another file, or the file that replaced this one.

        Raises:
            OSError: The file cannot be opened. The previous file stays open.
        """
        descriptor = self._files.open(path, _FLAGS, 0o600)
        self.close()
        self._path, self._descriptor = path, descriptor
        self.end = self._files.fstat(descriptor).st_size

    def create(self, path: str) -> None:
        """Open a new file with private permissions, regardless of the umask."""
        self.open(path)
        self._files.make_private(self._descriptor)

    def append(self, render: Callable[[], str]) -> None:
        """Append records; they are durable after the descriptor is synced.

        Args:
            render: Returns the records; called while the file is locked.

        Raises:
            OSError: Nothing was appended, or a part could not be removed; `problem` then describes it.
        """
        begin = self._lock()
        try:
            # The line break ends a part of a record that could not be removed.
            data = (render() if self.problem is None else "\n" + render()).encode()
            try:
                self._files.write_all(self._descriptor, data)
            except BaseException:
                self._cut_back(begin)
                raise
            self.end = begin + len(data)
        finally:
            unlock(self._descriptor)

    def _lock(self) -> int:
        """Lock the file that is currently at the path, and return its length in bytes."""
        while True:
            try_lock(self._descriptor, inf)
            if (found := found_at(self._files, self._descriptor, self._path)) is not None:
                return found.st_size
            unlock(self._descriptor)
            self.open(self._path)

    def _cut_back(self, begin: int) -> None:
        """Remove what a failed append wrote."""
        try:
            self._files.ftruncate(self._descriptor, begin)
            self.end = begin
        except OSError as error:
            self.problem = f"{self._path}: a failed append cannot be removed ({error.strerror})."

    def sync(self) -> None:
        """Make the appended records durable, while the owner holds the mutex."""
        self._files.sync_data(self._descriptor)

    def duplicate(self) -> int:
        """Return a second descriptor of the file; the caller closes it."""
        return self._files.dup(self._descriptor)

    def close(self) -> None:
        """Close the file; errors are ignored."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                self._files.close(descriptor)
