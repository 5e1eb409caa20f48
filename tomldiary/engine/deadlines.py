"""Until when items live that were read since they were put.

`_expires` in the file is the time as of the last put. A read that refreshes an item notes the later time
in `.tomldiary/index/<user>/expiry` (in memory for other backends), not in the file and not in history. It
writes one line, under a keyed hash, if the time moved by at least a tenth of the time to live. The line
counts for exactly the put it was made for. Losing the file loses refreshes, never an item's own time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from tomldiary.errors import BackendError
from tomldiary.logging import get_logger
from tomldiary.runtime.capabilities import PRIVATE
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.storage.files import FileSystem, token_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Deadlines", "Expiring"]

_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)
_MINUTE = 60_000_000  # microseconds
_SHARE = 10  # a refresh that moves the time by less than this part of the time to live is not noted
_LARGEST = 1 << 20  # bytes of the file, above which it is written anew
_HEAD = b"tomldiary expiry 1 "
_logger = get_logger(__name__)


class Expiring(Protocol):
    """An item that may have a time to live; its times are in microseconds since 1970."""

    key: str
    updated: int
    expires: int | None

    @property
    def ttl(self) -> float | None:
        """Minutes it lives from the last time it was put or read."""
        ...


class Deadlines:
    """Until when the items of one user live that were read since they were put. Thread-safe.

    Args:
        folder: Where the file is; None keeps it in memory.
        files: Makes the file operations.
    """

    def __init__(self, folder: Path | None, files: FileSystem | None = None) -> None:
        self._files = files or FileSystem()
        self._path = folder / "expiry" if folder is not None else None
        self._salt = secrets.token_bytes(16)
        self._known: dict[str, tuple[int, int]] = {}
        self._token: object = None
        self._read_to = 0
        self._guard = fork_safe(threading.Lock())

    def until(self, base: str, key: str, updated: int) -> int:
        """Return until when an item lives that was read since its put; 0 if nothing says so.

        Args:
            base: The first document of its namespace.
            key: Its key there.
            updated: When it was put.
        """
        with self._guard:
            self._load()
            noted = self._known.get(self._name(base, key))
        return noted[1] if noted is not None and noted[0] == updated else 0

    def until_moment(self, base: str, key: str, put: datetime) -> datetime:
        """Return until when an item lives that was read since it was put; 1970 if nothing says so."""
        micros = self.until(base, key, (put - _EPOCH) // _MICROSECOND)
        return _EPOCH + micros * _MICROSECOND

    def of(self, base: str, entry: Expiring) -> int | None:
        """Return when an item expires, in microseconds since 1970; None if never."""
        if entry.expires is None:
            return None
        return max(entry.expires, self.until(base, entry.key, entry.updated))

    def is_over(self, base: str, entry: Expiring, now: int) -> bool:
        """Tell whether an item has expired."""
        if entry.expires is None or entry.expires > now:
            return False
        return self.until(base, entry.key, entry.updated) <= now

    def refresh(self, items: Iterable[tuple[str, Expiring]], now: int) -> None:
        """Give items their time to live again, as they are read; each with the first document of its namespace."""
        lines: list[str] = []
        with self._guard:
            self._load()
            for base, entry in items:
                ttl = entry.ttl
                if entry.expires is None or ttl is None:
                    continue
                name = self._name(base, entry.key)
                noted = self._known.get(name)
                until = entry.expires
                if noted is not None and noted[0] == entry.updated:
                    until = max(until, noted[1])
                fresh = now + round(ttl * _MINUTE)
                if fresh - until < ttl * _MINUTE / _SHARE:
                    continue
                self._known[name] = (entry.updated, fresh)
                lines.append(f"{name} {entry.updated} {fresh}\n")
            if lines and self._path is not None:
                self._append(self._path, "".join(lines).encode())

    def _name(self, base: str, key: str) -> str:
        text = f"{base}\0{key}"  # a name of a document holds no NUL
        return blake2b(text.encode(), key=self._salt, digest_size=16).hexdigest()

    def _load(self) -> None:
        """Read what other processes noted."""
        if self._path is None:
            return
        try:
            token = self._files.token(self._path)
        except BackendError as error:
            if isinstance(error.__cause__, NotADirectoryError):
                return  # no place to note anything: what is in memory counts
            raise
        if token == self._token:
            return
        self._token = token
        found = self._files.read_file(self._path)
        self._read_to = 0 if found is None else len(found[0])
        if found is None:
            self._known = {}  # it was removed: forgotten items are not written again
            return
        head, _, rest = found[0].partition(b"\n")
        with contextlib.suppress(ValueError):  # a torn line, or a file of another program
            salt = bytes.fromhex(head.removeprefix(_HEAD).decode("ascii", "replace"))
            if salt != self._salt:
                self._salt, self._known = salt, {}
        for line in rest.decode("ascii", "replace").split("\n"):
            with contextlib.suppress(ValueError):
                name, updated, until = line.split(" ")
                self._known[name] = (int(updated), int(until))

    def _append(self, path: Path, lines: bytes) -> None:
        """Add lines to the file; what cannot be noted stays in memory, and reads go on."""
        try:
            self._create(path)
            flags = os.O_WRONLY | os.O_APPEND | PRIVATE
            descriptor = self._files.open(path, flags)
            try:
                self._files.write_all(descriptor, lines)
                found = self._files.fstat(descriptor)
            finally:
                self._files.close(descriptor)
            if found.st_size != self._read_to + len(lines):
                return  # another process appended since; the next read finds it
            self._read_to, self._token = found.st_size, token_of(found)
            if found.st_size > _LARGEST:
                self._compact(path)
        except OSError as error:
            _logger.warning("%s: a refresh was not noted (%s)", path, error.strerror)

    def _create(self, path: Path) -> None:
        if self._token is not None or self._files.exists(path):
            return
        self._files.make_folder(path.parent, sync=False)
        self._write(path)

    def _compact(self, path: Path) -> None:
        now = time.time_ns() // 1000
        self._known = {name: noted for name, noted in self._known.items() if noted[1] > now}
        self._write(path)
        self._token = None

    def _write(self, path: Path) -> None:
        lines = [f"{name} {at} {until}\n" for name, (at, until) in self._known.items()]
        data = _HEAD + self._salt.hex().encode() + b"\n" + "".join(lines).encode()
        temp = f"{path}.{os.getpid()}.{threading.get_ident()}"
        self._files.write_new(temp, data, sync=False)
        self._files.replace(temp, path)
        self._read_to = len(data)
