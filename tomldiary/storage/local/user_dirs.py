"""The folders of users: whose they are, and which of their names survive a power cut.

A name is on the disk once its folder was synced. Another process may have been killed between creating a
file and syncing its name. So each process syncs the names that it relies on once itself, before it acknowledges a
write.

A boot identifier in each record tells after which power cut it was written, without trusting a clock. A running
system shows every process what was written to a file, synced or not. Only what was written in another boot, or
on a disk that was moved, restored or copied, can lack unsynced data.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, DiaryError
from tomldiary.identifiers import MAX_FOLDER, decode_folder, encode_folder, is_canonical
from tomldiary.logging import get_logger
from tomldiary.storage.files import (
    file_token,
    folder_time,
    make_folder,
    read_file,
    sync_folder,
    write_new,
)
from tomldiary.storage.local.layout import OWNER_NAME
from tomldiary.toml.parse import decode_utf8, parse_toml
from tomldiary.toml.values import render_value

if TYPE_CHECKING:
    from tomldiary.history.record import Record

__all__ = [
    "SYSTEM",
    "YOUNG",
    "DurableNames",
    "Synced",
    "UserFolders",
    "boot_of",
    "may_lack_writes",
    "user_of",
]

_LINUX = Path("/proc/sys/kernel/random/boot_id")
_MACOS = b"kern.bootsessionuuid"
_BYTES = 6


def boot_of(folder: str | Path) -> str:
    """Return a fingerprint of this boot and of the folder's identity; "" where the system does not tell its boot.

    The identity is the device and the inode: a copy, or a disk mounted again elsewhere, has another one.

    Raises:
        OSError: There is no such folder.
    """
    boot = _boot_id()
    if not boot:
        return ""
    found = os.stat(folder)  # noqa: PTH116 - once for each user and process
    identity = f"{boot} {found.st_dev} {found.st_ino}"
    return blake2b(identity.encode(), digest_size=_BYTES).hexdigest()


def may_lack_writes(folder: Path, record: Record) -> bool:
    """Return whether documents may lack what was written up to a record, as another boot wrote it.

    Args:
        folder: The user's.
        record: The last one of history.
    """
    return not record.boot or record.boot != boot_of(folder)


@lru_cache(maxsize=1)
def _boot_id() -> str:
    try:
        return _LINUX.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return _macos_session() if sys.platform == "darwin" else ""


def _macos_session() -> str:
    import ctypes  # noqa: PLC0415 - only needed there

    call = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    found, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    if call is None or call(_MACOS, found, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return ""
    return found.value.decode("ascii", "replace")


_MOST_USERS = 10_000  # remembered at once; a bound on memory, nothing depends on it


@dataclass(slots=True)
class Synced:
    """What of one user's names this process has seen synced."""

    folder: str
    inode: int
    """Of the folder: another one of the same name is another one."""
    boot: str = ""
    """What records say of the boot that writes them."""
    segment: str = ""
    kinds: set[str] = field(default_factory=set[str])
    doubtful: set[str] = field(default_factory=set[str])
    """Documents that could not be synced."""

    def sync(self, kinds: set[str]) -> None:
        """Put the names of documents on the disk, and those of the folders that lead to them."""
        for place in {place for kind in kinds for place in _folders_of(self.folder, kind)}:
            sync_folder(place)
        self.kinds |= kinds


class DurableNames:
    """The names of all users below `root`; `sync` says whether they are to survive a power cut."""

    def __init__(self, root: Path, *, sync: bool) -> None:
        self._root = root
        self._sync = sync
        self._synced: dict[str, Synced] = {}
        self._is_root_synced = False

    def of(self, user: str, folder: str) -> Synced:
        """See that a user's folder is there, and at the first commit of this process that it stays.

        Raises:
            OSError: It cannot be made, or cannot be synced.
        """
        try:
            inode = os.stat(folder).st_ino  # noqa: PTH116 - once for each write
        except FileNotFoundError:
            make_folder(folder, sync=self._sync)
            inode = os.stat(folder).st_ino  # noqa: PTH116 - once for each write
        known = self._synced.get(user)
        if known is not None and known.inode == inode:
            return known
        _name_owner(user, Path(folder), sync=self._sync)
        if self._sync:
            sync_folder(folder)
            sync_folder(self._root)
            if not self._is_root_synced:
                with suppress(PermissionError):  # not ours: whoever made it has to keep it
                    sync_folder(self._root.absolute().parent)
                self._is_root_synced = True
        if len(self._synced) > _MOST_USERS:
            self._synced.clear()
        known = self._synced[user] = Synced(folder, inode, boot_of(folder))
        return known

    def drop(self, user: str) -> None:
        """Take nothing of a user's for granted any more."""
        self._synced.pop(user, None)


def user_of(folder: Path) -> str | None:
    """Return whose folder it is, or None if it is nobody's.

    Raises:
        DiaryError: The file that says so cannot be read.
    """
    decoded = decode_folder(folder.name)
    if decoded is not None:
        return decoded
    path = folder / OWNER_NAME
    owner = read_file(path)
    if owner is None:
        return None
    encoded = parse_toml(decode_utf8(owner[0], path=str(path)), path=str(path)).get("user_id")
    return str(encoded).encode("ascii", "replace").decode("unicode_escape") if encoded else None


def _name_owner(user: str, folder: Path, *, sync: bool) -> None:
    """Say whose folder it is, where its name cannot."""
    if not folder.name.startswith("~"):
        return
    with suppress(DiaryError):  # torn by a crash
        if user_of(folder) == user:
            return
    encoded = user.encode("unicode_escape").decode("ascii")
    text = f"# The id of this folder's owner is too long to be its name.\nuser_id = {render_value(encoded)}\n"
    (folder / OWNER_NAME).unlink(missing_ok=True)
    write_new(str(folder / OWNER_NAME), text.encode(), sync=sync)


def _folders_of(folder: str, kind: str) -> list[str]:
    """Return the folders whose names lead to a document, from its own to the user's."""
    parts = kind.split("/")[:-1]
    return ["/".join([folder, *parts[:length]]) for length in range(len(parts) + 1)]


SYSTEM = ".tomldiary"
"""The folder beside those of users, for locks, journals and what can be made anew."""
YOUNG = 10_000_000
"""Nanoseconds; a folder this fresh may change again without showing it."""
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
