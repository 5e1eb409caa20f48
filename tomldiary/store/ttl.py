"""Time to live: when items expire, how a read extends that, and the sweeper that removes expired items.

`_expires` in the file is the time as of the last put. A read that refreshes an item notes the later time
in `.tomldiary/index/<user>/expiry` (in memory for other backends), not in the file and not in history. It
writes one line, under a keyed hash, if the time moved by at least a tenth of the time to live. The line
counts for exactly the put it was made for. Losing the file loses refreshes, never an item"s own time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from tomldiary.engine.engine import Engine, Source, Transaction
from tomldiary.errors import BackendError, InvalidValue
from tomldiary.logging import get_logger
from tomldiary.runtime.capabilities import PRIVATE
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.storage.files import FileSystem, token_of
from tomldiary.store.writes import remove_items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future
    from pathlib import Path

    from tomldiary.identifiers.namespaces import Namespace
    from tomldiary.store.catalog import Catalog
    from tomldiary.store.item import Entry

__all__ = ["Deadlines", "Expiry", "Sweeper", "sweep"]

_MINUTE = 60_000_000  # microseconds
_SHARE = 10  # a refresh that moves the time by less than this part of the time to live is not noted
_LARGEST = 1 << 20  # bytes of the file, above which it is written anew
_HEAD = b"tomldiary expiry 1 "
_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Expiry:
    """What a store does with items that expire.

    Args:
        omit_expired: Whether reads leave out what has expired and was not removed yet.
        sweep_interval: Minutes between two rounds of the sweeper.
    """

    omit_expired: bool = False
    sweep_interval: float = 5.0


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
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock."""
        self._guard = threading.Lock()

    def of(self, namespace: Namespace, entry: Entry) -> int | None:
        """Return when an item expires, in microseconds since 1970; None if never."""
        if entry.expires is None:
            return None
        with self._guard:
            self._load()
            noted = self._known.get(self._name(namespace, entry.key))
        if noted is None or noted[0] != entry.updated:
            return entry.expires
        return max(entry.expires, noted[1])

    def is_over(self, namespace: Namespace, entry: Entry, now: int) -> bool:
        """Tell whether an item has expired."""
        if entry.expires is None or entry.expires > now:
            return False
        until = self.of(namespace, entry)
        return until is not None and until <= now

    def refresh(self, items: Iterable[tuple[Namespace, Entry]], now: int) -> None:
        """Give items their time to live again, as they are read."""
        lines: list[str] = []
        with self._guard:
            self._load()
            for namespace, entry in items:
                ttl = entry.ttl
                if entry.expires is None or ttl is None:
                    continue
                name = self._name(namespace, entry.key)
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

    def _name(self, namespace: Namespace, key: str) -> str:
        # Labels hold no NUL; what stands behind the last one is the key, whatever it is.
        text = "\0".join((*namespace, "", key))
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
        known = [f"{name} {at} {until}\n" for name, (at, until) in self._known.items()]
        head = _HEAD + self._salt.hex().encode() + b"\n"
        self._write(path, head + "".join(known).encode())

    def _compact(self, path: Path) -> None:
        now = time.time_ns() // 1000
        self._known = {name: noted for name, noted in self._known.items() if noted[1] > now}
        known = [f"{name} {at} {until}\n" for name, (at, until) in self._known.items()]
        self._write(path, _HEAD + self._salt.hex().encode() + b"\n" + "".join(known).encode())
        self._token = None

    def _write(self, path: Path, data: bytes) -> None:
        temp = f"{path}.{os.getpid()}.{threading.get_ident()}"
        self._files.write_new(temp, data, sync=False)
        self._files.replace(temp, path)
        self._read_to = len(data)


class Sweeper:
    """Removes what expired, again and again, in a thread of its own.

    Args:
        sweep: Removes what expired now and returns how many items that were.
    """

    def __init__(self, sweep: Callable[[], int]) -> None:
        self._sweep = sweep
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._done: Future[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, minutes: float) -> Future[None]:
        """Start sweeping every so many minutes, unless it runs already; the future ends with the sweeper.

        Raises:
            InvalidValue: `minutes` is not above 0.
        """
        from concurrent.futures import Future  # noqa: PLC0415 - only a sweeper needs it

        if isinstance(minutes, bool) or not minutes > 0:
            raise InvalidValue(f"expected minutes above 0, found {minutes!r}.", where="interval")
        if self.is_running and self._done is not None and not self._stop.is_set():
            return self._done
        self._stop = threading.Event()
        done: Future[None] = Future()
        self._done = done
        self._thread = threading.Thread(
            target=self._run,
            args=(min(minutes * 60, threading.TIMEOUT_MAX), self._stop, done),
            name="tomldiary-sweeper",
            daemon=True,
        )
        self._thread.start()
        return done

    def stop(self, timeout: float | None = None) -> bool:
        """Ask the thread to end and wait for it; False if it did not within `timeout` seconds."""
        self._stop.set()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self, seconds: float, stop: threading.Event, done: Future[None]) -> None:
        while not stop.wait(seconds):
            try:
                self._sweep()
            except Exception:  # whatever it was, expired items are not to pile up from now on
                _logger.exception("a sweep failed; the next one tries again")
        done.set_result(None)


def sweep(engine: Engine, catalog: Catalog, deadlines: Deadlines, clock: Callable[[], int]) -> int:
    """Remove the items of a user whose time is over and return how many that were."""

    def over() -> dict[Namespace, list[str]]:
        now = clock()
        found: dict[Namespace, list[str]] = {}
        for snapshot in catalog.snapshots():
            keys = [
                entry.key
                for entry in snapshot.entries.values()
                if deadlines.is_over(snapshot.namespace, entry, now)
            ]
            if keys:
                found[snapshot.namespace] = keys
        return found

    if not over():
        return 0

    def write(tx: Transaction) -> int:
        # Checked again under the lock: another writer may have put or read an item.
        found = over()
        for namespace, keys in found.items():
            remove_items(tx, catalog, namespace, keys)
        return sum(map(len, found.values()))

    return engine.write(catalog.user, write, Source("expire", actor="store"))
