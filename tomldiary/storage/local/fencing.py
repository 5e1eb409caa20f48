"""Fencing tokens: how often something of a user was forgotten, a number that outlives the user's folder.

The file is named by a hash of the user id under a random key (HMAC-SHA256, RFC 2104), so that without the key it
does not tell whose it is.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import time
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError
from tomldiary.storage.files import make_folder, read_file, sync_folder, write_new

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Epochs"]

_KEY_BYTES = 32
_STAGED = ".staged-"
_LONG = 3600.0  # seconds
_SETTLED = 2_000_000_000  # nanoseconds; some file systems keep times by the second
_KNOWN = 10_000  # users


class Epochs:
    """The epochs of all users; `folder` is where the storage keeps what belongs to no user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "epochs"
        self._key_file = folder / "epochs.key"
        self._place = str(self._folder)
        self._known: dict[str, tuple[int, int]] = {}

    def read(self, user: str) -> int:
        """Return a user's epoch; 0 if nothing was ever forgotten.

        Raises:
            BackendError: It cannot be read.
        """
        try:
            # Whoever writes an epoch renames a file into this folder, which changes its time.
            changed = os.stat(self._place).st_mtime_ns  # noqa: PTH116 - the hot path of every turn
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise BackendError(
                f"{self._folder}: cannot be looked at ({error.strerror})."
            ) from error
        known = self._known.get(user)
        if known is not None and known[0] == changed:
            return known[1]
        is_settled = time.time_ns() - changed > _SETTLED
        epoch = self._read(user)
        if is_settled:  # a change within the clock's resolution would not be seen
            if len(self._known) > _KNOWN:
                self._known.clear()
            self._known[user] = (changed, epoch)
        return epoch

    def _read(self, user: str) -> int:
        key = self._key()
        found = read_file(self._file(key, user)) if key is not None else None
        if found is None:
            return 0
        try:
            return int(found[0])
        except ValueError:
            # Whatever it was: no work that is under way began in this epoch.
            return secrets.randbits(48)

    def write(self, user: str, epoch: int) -> None:
        """Set a user's epoch; it is on the disk when this returns. The caller holds the user's lock."""
        try:
            path = self._file(self._key() or self._new_key(), user)
            make_folder(self._folder, sync=True)
            _sweep(self._key_file.parent)
            _sweep(self._folder)
            sync_folder(
                self._key_file.parent
            )  # whoever made the key may have been killed before this
            _replace(path, f"{epoch}\n".encode())
        except OSError as error:
            raise BackendError(
                f"{self._folder}: cannot be written ({error.strerror}). Nothing was forgotten."
            ) from error

    def _key(self) -> bytes | None:
        found = read_file(self._key_file)
        return found[0] if found is not None and len(found[0]) >= _KEY_BYTES else None

    def _new_key(self) -> bytes:
        folder = self._key_file.parent
        make_folder(folder, sync=True)
        temp = folder / f"{_STAGED}{os.getpid()}-{secrets.token_hex(4)}.tmp"
        write_new(str(temp), secrets.token_bytes(_KEY_BYTES), sync=True)
        try:
            # Whoever comes second uses the key of the first; both users' locks are held, but not by one.
            with contextlib.suppress(FileExistsError):
                os.link(temp, self._key_file)
        finally:
            temp.unlink()
        sync_folder(folder)
        key = self._key()
        if key is None:
            raise BackendError(f"{self._key_file}: holds no key. Remove it.")
        return key

    def _file(self, key: bytes, user: str) -> Path:
        name = hmac.digest(key, user.encode("utf-8", "surrogatepass"), "sha256").hex()
        return self._folder / name


def _sweep(folder: Path) -> None:
    """Remove what somebody staged who was killed long ago; whoever is at it now is soon done."""
    for entry in os.scandir(folder):
        if entry.name.startswith(_STAGED) and time.time() - entry.stat().st_mtime > _LONG:
            os.unlink(entry.path)  # noqa: PTH108 - an entry, not a path


def _replace(path: Path, data: bytes) -> None:
    temp = path.with_name(f"{_STAGED}{os.getpid()}-{path.name}.tmp")
    temp.unlink(missing_ok=True)  # of a process of the same number that was killed
    write_new(str(temp), data, sync=True)
    temp.replace(path)
    sync_folder(path.parent)
