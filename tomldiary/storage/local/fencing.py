"""Fencing tokens: how often data of each user was forgotten. They outlive the user's folder.

A file has the token and, behind a space, the one that the last erasure of everything set. The file name is a keyed hash
of the user id (HMAC-SHA256, RFC 2104, with a random key). Without the key, the name does not reveal the user.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from typing import TYPE_CHECKING
from zlib import crc32

from tomldiary.errors import BackendError

if TYPE_CHECKING:
    from pathlib import Path

    from tomldiary.storage.files import FileSystem

__all__ = ["Epochs"]

_KEY_BYTES = 32


class Epochs:
    """The fencing tokens of all users; `folder` is the storage folder that belongs to no user."""

    def __init__(self, files: FileSystem, folder: Path) -> None:
        self._files = files
        self._folder = folder / "epochs"
        self._key_file = folder / "epochs.key"

    def read(self, user: str) -> tuple[int, int]:
        """Return a user's fencing token and that of the last erasure of everything; 0 for what never happened.

        Raises:
            BackendError: The token cannot be read.
        """
        key = self._key()
        found = self._files.read_file(self._file(key, user)) if key is not None else None
        if found is None:
            return 0, 0
        try:
            epoch, erased = map(int, (*found[0].split(), 0)[:2])
        except ValueError:
            # The content is damaged: a token that nothing has refuses all pending work.
            epoch = erased = 1 << 32 | crc32(found[0])
        return epoch, erased

    def write(self, user: str, epoch: int, *, everything: bool) -> None:
        """Set a user's fencing token durably. The caller holds the user's lock."""
        try:
            erased = epoch if everything else self.read(user)[1]
            path = self._file(self._key() or self._new_key(), user)
            self._files.make_folder(self._folder, sync=True)
            # The process that created the key may have been killed before this.
            self._files.sync_folder(self._key_file.parent)
            self._files.write_over(path, f"{epoch} {erased}\n".encode(), sync=True)
        except OSError as error:
            raise BackendError(
                f"{self._folder}: cannot be written ({error.strerror}). Nothing was forgotten."
            ) from error

    def _key(self) -> bytes | None:
        found = self._files.read_file(self._key_file)
        return found[0] if found is not None and len(found[0]) >= _KEY_BYTES else None

    def _new_key(self) -> bytes:
        folder = self._key_file.parent
        self._files.make_folder(folder, sync=True)
        temp = folder / f"{self._key_file.name}.{secrets.token_hex(4)}.tmp"
        self._files.write_new(str(temp), secrets.token_bytes(_KEY_BYTES), sync=True)
        try:
            # Two processes with locks of different users may race: the second uses the key of the first.
            with contextlib.suppress(FileExistsError):
                self._files.link(temp, self._key_file)
        finally:
            self._files.unlink(temp)
        self._files.sync_folder(folder)
        key = self._key()
        if key is None:
            raise BackendError(f"{self._key_file}: holds no key. Remove it.")
        return key

    def _file(self, key: bytes, user: str) -> Path:
        name = hmac.digest(key, user.encode("utf-8", "surrogatepass"), "sha256").hex()
        return self._folder / name
