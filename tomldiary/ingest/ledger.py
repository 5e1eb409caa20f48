"""Which turns of chat logs a user was given already, so that none is applied twice.

The ledger is the file `.ingested.toml` in the user's folder: who forgets the user forgets it too. It is
TOML that is only ever appended to, and it holds no text and no name, only marks under a random key:

    salt = "5e6f…"
    begun-1 = { after = 41, session = "9f2c…", turns = ["a07d…", "11b9…"] }
    done-1 = 2

A group of turns is begun before its first turn is applied. If "done" is missing, the process was stopped;
how many of the group's turns were applied is then read from history, which is the commit point.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, Conflict, InvalidTOML, LockTimeout
from tomldiary.runtime.capabilities import PRIVATE, sync_file
from tomldiary.runtime.fork_safety import close_hidden, hide_from_children
from tomldiary.storage.files import file_token, read_all, sync_folder, write_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import Self

__all__ = ["LEDGER_NAME", "Group", "Ledger", "without_sessions"]

LEDGER_NAME = ".ingested.toml"
_HEAD = "# Turns that were read from chat logs; what is listed here is not applied again.\n"
_SALT = re.compile(r'salt = "([0-9a-f]{32})"')
_BEGUN = re.compile(
    r'begun-([0-9]+) = \{ after = ([0-9]+), session = "([0-9a-f]+)", turns = \["([0-9a-f", ]+)"\] \}'
)
_DONE = re.compile(r"done-([0-9]+) = ([0-9]+)")
_WAIT = 0.02  # seconds between two attempts to lock
_MARK_BYTES = 16


@dataclass(frozen=True, slots=True)
class Group:
    """Turns of one session that are applied one after the other."""

    number: int
    after: int
    """Sequence number of the user's history when the group was begun."""
    session: str
    """The session's mark."""
    turns: list[str]
    """The turns' marks, in the order of the log."""


class Ledger:
    """The ledger of one user, held by one ingest at a time.

    Args:
        path: The file, created when missing; its folder has to exist. None keeps it in this object.
        sync: Whether what is begun is on the disk before `begin` returns.
        timeout: Seconds to wait while another ingest of the same user holds the ledger.

    Raises:
        LockTimeout: It was held all that time.
        InvalidTOML: A line in it is none that this class writes.
    """

    def __init__(self, path: Path | None, *, sync: bool = True, timeout: float = 30.0) -> None:
        self.path = path
        self.pending: Group | None = None
        """A group whose outcome is not noted: the ingest was stopped in the middle of it."""
        self._sync = sync
        self._groups = 0
        self._done: set[str] = set()
        self._salt = secrets.token_hex(16)
        self._descriptor: int | None = None
        if path is not None:
            self._descriptor = _open_locked(path, timeout)
            try:
                self._read(path, self._descriptor)
            except BaseException:
                self._release()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Sync the file and let the next ingest have it."""
        if self._descriptor is not None and self._sync:
            sync_file(self._descriptor)
        self._release()

    def mark(self, *parts: str) -> str:
        """Return the mark that stands for these texts in this ledger and in no other."""
        return _mark(self._salt, *parts)

    def __contains__(self, mark: str) -> bool:
        return mark in self._done

    def begin(self, turns: Sequence[str], *, session: str, after: int) -> None:
        """Note that these turns are going to be applied; no other group may be pending."""
        if self.pending is not None:
            raise AssertionError("the group before was not finished")
        group = Group(self._groups + 1, after, session, list(turns))
        listed = ", ".join(f'"{turn}"' for turn in turns)
        self._append(
            f'begun-{group.number} = {{ after = {after}, session = "{session}", turns = [{listed}] }}\n'
        )
        if self._descriptor is not None and self._sync:
            # A commit that is on the disk must never be without its beginning.
            sync_file(self._descriptor)
        self._groups = group.number
        self.pending = group

    def finish(self, applied: int) -> None:
        """Note that the first `applied` turns of the pending group are in memory, and no others."""
        group = self.pending
        if group is None:
            raise AssertionError("no group was begun")
        # Need not be synced: without it, history says the same.
        self._append(f"done-{group.number} = {applied}\n")
        self._done.update(group.turns[:applied])
        self.pending = None

    def check_place(self) -> None:
        """Make sure the user was not forgotten since the ledger was opened.

        Raises:
            Conflict: The file is gone or is another one.
        """
        if self._descriptor is None or self.path is None:
            return
        token = file_token(self.path)
        if token is None or token[2] != os.fstat(self._descriptor).st_ino:
            raise Conflict(
                f"{self.path}: the user was forgotten while a chat log was read; the rest was not applied."
            )

    def _append(self, line: str) -> None:
        if self._descriptor is None:
            return
        size = os.fstat(self._descriptor).st_size
        try:
            write_all(self._descriptor, line.encode("ascii"))
        except OSError as error:
            os.ftruncate(self._descriptor, size)
            raise BackendError(
                f"{self.path}: cannot be written ({error.strerror}). Check free space and permissions,"
                " then read the log again."
            ) from error

    def _release(self) -> None:
        if self._descriptor is not None:
            close_hidden(self._descriptor)
            self._descriptor = None

    def _read(self, path: Path, descriptor: int) -> None:
        data = read_all(descriptor)
        # The end of an append that a crash tore, or that a power cut left as zeros.
        kept = data.partition(b"\0")[0]
        kept = kept[: kept.rfind(b"\n") + 1]
        if len(kept) < len(data):
            os.ftruncate(descriptor, len(kept))
        if kept in (b"", _HEAD.encode()):
            os.ftruncate(descriptor, 0)
            self._append(f'{_HEAD}salt = "{self._salt}"\n')
            if self._sync:
                sync_file(descriptor)
                sync_folder(path.parent)
            return
        lines = kept.decode("utf-8", "replace").splitlines()
        if not any(map(_SALT.fullmatch, lines)):
            raise InvalidTOML(
                "the line with the salt is missing. Put it back; without it, logs that were read before"
                " would be counted twice.",
                path=str(path),
            )
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.startswith("#") and not self._understands(line):
                raise InvalidTOML(
                    "this line is none that ingest writes. Take it out; without the whole file, logs that"
                    " were read before would be counted twice.",
                    path=str(path),
                    line=number,
                )

    def _understands(self, line: str) -> bool:
        if found := _SALT.fullmatch(line):
            self._salt = found[1]
        elif found := _BEGUN.fullmatch(line):
            number, after, session, turns = found.groups()
            self.pending = Group(int(number), int(after), session, turns.split('", "'))
            self._groups = max(self._groups, int(number))
        elif found := _DONE.fullmatch(line):
            if self.pending is not None and self.pending.number == int(found[1]):
                self._done.update(self.pending.turns[: int(found[2])])
                self.pending = None
        else:
            return False
        return True


def _mark(salt: str, *parts: str) -> str:
    hashed = blake2b(key=bytes.fromhex(salt), digest_size=_MARK_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()


def without_sessions(data: bytes, sessions: Iterable[str]) -> bytes:
    """Return the content of a ledger without the marks of these sessions' turns.

    The salt stands in the same file, so a mark can be guessed from the text it stands for. A log that
    is read in again after this applies the turns of these sessions anew. A ledger that has lost its
    salt cannot tell sessions apart and is emptied.
    """
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    salt = next((found[1] for line in lines if (found := _SALT.fullmatch(line.rstrip("\n")))), None)
    if salt is None:
        return b""
    marks = {_mark(salt, session) for session in sessions}
    kept: list[str] = []
    left_out: set[str] = set()
    for line in lines:
        begun, done = _BEGUN.fullmatch(line.rstrip("\n")), _DONE.fullmatch(line.rstrip("\n"))
        if begun is not None and begun[3] in marks:
            left_out.add(begun[1])
        elif done is None or done[1] not in left_out:
            kept.append(line)
    return "".join(kept).encode()


def _open_locked(path: Path, timeout: float) -> int:
    deadline = time.monotonic() + timeout
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | PRIVATE
    while True:
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise BackendError(
                f"{path}: cannot be opened ({error.strerror}). Put a regular file there, or remove it."
            ) from error
        hide_from_children(descriptor)
        try:
            _lock(descriptor, deadline)
            token = file_token(path)
            if token is not None and token[2] == os.fstat(descriptor).st_ino:
                return descriptor
        except TimeoutError:
            close_hidden(descriptor)
            raise LockTimeout(
                f"{path}: another ingest of this user was at work for {timeout:g} s. Wait for it to end."
            ) from None
        except BaseException:
            close_hidden(descriptor)
            raise
        close_hidden(
            descriptor
        )  # removed while it was waited for: what was locked is no ledger any more


def _lock(descriptor: int, deadline: float) -> None:
    from filelock import lock_descriptor  # noqa: PLC0415 - slow to import, only writers need it

    while not lock_descriptor(descriptor, blocking=False):
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(_WAIT)
