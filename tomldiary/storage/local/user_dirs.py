"""Whose folder is where, and who has one."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, DiaryError
from tomldiary.identifiers import MAX_FOLDER, decode_folder, encode_folder, is_canonical
from tomldiary.logging import get_logger
from tomldiary.storage.files import file_token, folder_time
from tomldiary.storage.local.durable_names import user_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SYSTEM", "YOUNG", "UserFolders"]

SYSTEM = ".tomldiary"
"""The folder beside those of users, for locks, journals and what can be made anew."""
YOUNG = 10_000_000
"""Nanoseconds; a folder this fresh may change again without showing it."""
_MOST_USERS = 10_000  # remembered at once; a bound on memory, nothing depends on it
_logger = get_logger(__name__)


class UserFolders:
    """The part of `LocalBackend` that knows the folders of its users."""

    def __init__(self, base_path: Path) -> None:
        self.base_path = base_path
        self._folders: dict[str, Path] = {}
        self._everybody: tuple[int, list[str]] | None = None

    def folder(self, user: str) -> Path:
        """Return the folder of a user, whether it exists or not."""
        known = self._folders.get(user)
        if known is not None:
            return known
        name = encode_folder(user)
        folder = self.base_path / name
        if file_token(folder) is None and name != user and self._is_plain_folder(user):
            folder = self.base_path / user  # made by the ancestor, which used the id as it was
        if len(self._folders) > _MOST_USERS:
            self._folders.clear()
        self._folders[user] = folder
        return folder

    def _is_plain_folder(self, user: str) -> bool:
        """Tell whether a folder is named exactly like the id, and so can belong to nobody else."""
        if len(user) > MAX_FOLDER or is_canonical(user) or user.startswith((".", "~")):
            return False
        try:
            return user in os.listdir(self.base_path)  # noqa: PTH208 - names, not paths
        except OSError:
            return False

    def known_users(self) -> list[str]:
        """Return the ids of all who have a folder, sorted: one `stat` if nobody came or left."""
        before = self._everybody
        when = folder_time(str(self.base_path))
        if before is not None and before[0] == when:
            return before[1]
        found: list[str] = []
        is_whole = when < time.time_ns() - YOUNG
        for name in self._folder_names():
            try:
                user = decode_folder(name) or user_of(self.base_path / name)
            except DiaryError as error:
                _logger.warning("a user is left out: %s", error)
                user = None
            is_whole = is_whole and user is not None
            found += [user] if user is not None else []
        if is_whole:
            self._everybody = (when, sorted(found))
        return sorted(found)

    def _folder_names(self) -> list[str]:
        try:
            found = [entry.name for entry in os.scandir(self.base_path) if entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise BackendError(f"{self.base_path}: cannot be listed ({error.strerror}).") from error
        return [name for name in found if name != SYSTEM]
