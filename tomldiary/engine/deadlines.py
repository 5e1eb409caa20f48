"""Expiry times of items that were refreshed by reads.

`_expires` in a document is the expiry time set by the last put. A read that refreshes an item stores the later time
in `.tomldiary/index/<user>/expiry` (in memory for other backends), not in the document or in history. A line names its
item by a keyed hash. It is written only if it extends the item's life by at least a tenth of the time to live, and it
is valid only until the next put of the item. If the file is lost, the refreshes are lost, but `_expires` still applies.
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
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.storage.files import FileSystem, token_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)
_MINUTE = 60_000_000  # microseconds
_REFRESH_STEPS = 10
"""A refresh that adds less than the time to live divided by this number is not stored."""
_LARGEST = 1 << 20  # the size in bytes above which the file is compacted
_FEWEST = 1024  # refreshes in memory from which on expired ones are dropped
_HEAD = b"tomldiary expiry 1 "
_logger = get_logger(__name__)


class Expiring(Protocol):
    """An item that may have a time to live; its times are in microseconds since 1970."""

    key: str
    updated: int
    expires: int | None

    @property
    def ttl(self) -> float | None:
        """The time to live in minutes, from the last put or read."""
        ...


class Deadlines:
    """The expiry times of one user's items that were refreshed by reads. Thread-safe.

    Args:
        folder: The folder of the file; None keeps the times in memory.
        files: The file operations.
    """

    def __init__(self, folder: Path | None, files: FileSystem | None = None) -> None:
        self._files = files or FileSystem()
        self._path = folder / "expiry" if folder is not None else None
        self._salt = secrets.token_bytes(16)
        self._known: dict[str, tuple[int, int]] = {}
        self._most = _FEWEST
        self._token: object = None
        self._read_to = 0
        self._guard = fork_safe(threading.Lock())

    def until(self, base: str, key: str, updated: int) -> int:
        """Return the expiry time to which reads refreshed an item; 0 if none did since its last put.

        Args:
            base: The first document of the item's namespace.
            key: The key of the item in the namespace.
            updated: The time of the item's last put.
        """
        with self._guard:
            self._load()
            noted = self._known.get(self._name(base, key))
        return noted[1] if noted is not None and noted[0] == updated else 0

    def until_moment(self, base: str, key: str, put: datetime) -> datetime:
        """Return the same time as `until` as a datetime; the start of 1970 instead of 0."""
        micros = self.until(base, key, (put - _EPOCH) // _MICROSECOND)
        return _EPOCH + micros * _MICROSECOND

    def is_over(self, base: str, entry: Expiring, now: int) -> bool:
        """Return whether an item has expired."""
        if entry.expires is None or entry.expires > now:
            return False
        return self.until(base, entry.key, entry.updated) <= now

    def refresh(self, items: Iterable[tuple[str, Expiring]], now: int) -> None:
        """Restart the time to live of items that were read; each comes with the first document of its namespace."""
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
                if fresh - until < ttl * _MINUTE / _REFRESH_STEPS:
                    continue
                self._known[name] = (entry.updated, fresh)
                lines.append(f"{name} {entry.updated} {fresh}\n")
            if self._path is not None:
                if lines:
                    self._append(self._path, "".join(lines).encode())
            elif len(self._known) > self._most:
                self._drop_expired(now)
                self._most = max(_FEWEST, 2 * len(self._known))

    def has_refreshes(self, now: int) -> bool:
        """Drop the refreshes that have expired, and return whether any are left that no file has."""
        with self._guard:
            self._drop_expired(now)
            return self._path is None and bool(self._known)

    def _name(self, base: str, key: str) -> str:
        text = f"{base}\0{key}"  # unambiguous, because the name of a document contains no NUL
        return blake2b(text.encode(), key=self._salt, digest_size=16).hexdigest()

    def _load(self) -> None:
        """Read the refreshes that other processes have stored."""
        if self._path is None:
            return
        try:
            token = self._files.token(self._path)
        except BackendError as error:
            if isinstance(error.__cause__, NotADirectoryError):
                return  # the folder cannot exist, so the refreshes stay in memory
            raise
        if token == self._token:
            return
        self._token = token
        found = self._files.read_file(self._path)
        self._read_to = 0 if found is None else len(found[0])
        if found is None:
            self._known = {}  # the file was removed, for example by forgetting; do not write its items again
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
        """Append lines to the file; if this fails, they stay in memory and reads continue."""
        try:
            if self._token is None and not self._files.exists(path):
                self._files.make_folder(path.parent, sync=False)
                self._write(path)
                return
            found = self._files.append(path, lines)
            if found.st_size != self._read_to + len(lines):
                return  # another process appended since; the next read finds it
            self._read_to, self._token = found.st_size, token_of(found)
            if found.st_size > _LARGEST:
                self._drop_expired(time.time_ns() // 1000)
                self._write(path)
        except OSError as error:
            _logger.warning("%s: a refresh was not stored (%s)", path, error.strerror)

    def _drop_expired(self, now: int) -> None:
        self._known = {name: noted for name, noted in self._known.items() if noted[1] > now}

    def _write(self, path: Path) -> None:
        """Write the file anew with all known refreshes; the next read reads it."""
        lines = [f"{name} {at} {until}\n" for name, (at, until) in self._known.items()]
        data = _HEAD + self._salt.hex().encode() + b"\n" + "".join(lines).encode()
        temp = f"{path}.{os.getpid()}.{threading.get_ident()}"
        self._files.write_new(temp, data, sync=False)
        self._files.replace(temp, path)
        self._token = None
