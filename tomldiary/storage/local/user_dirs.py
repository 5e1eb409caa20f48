"""The folders of users: who owns them, and the file names in them that survive a power cut.

A name is on disk after its folder was synced. Another process may have been killed between creating a file and
syncing its name. So each process itself syncs the names that it relies on once, before it acknowledges a write.

Each record has a boot identifier, which shows the boot that wrote it without relying on a clock. On a running
system every process sees all data written to a file, synced or not. Data can be missing only if another boot
wrote it, or if the disk was moved, restored or copied.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tomldiary.errors import DiaryError
from tomldiary.identifiers.user_ids import decode_folder
from tomldiary.storage.local.layout import OWNER_NAME
from tomldiary.toml.parse import decode_utf8, parse_toml
from tomldiary.toml.values import render_value

if TYPE_CHECKING:
    from tomldiary.history.record import Record
    from tomldiary.storage.environment import Environment
    from tomldiary.storage.files import FileSystem

__all__ = [
    "MOST_USERS",
    "SYSTEM",
    "YOUNG",
    "DurableNames",
    "Synced",
    "may_lack_writes",
    "user_of",
]


def may_lack_writes(env: Environment, folder: Path, record: Record) -> bool:
    """Return whether documents may lack changes up to a record, because another boot wrote the record.

    Args:
        env: The file system, and the clock that identifies this boot.
        folder: The user's folder.
        record: The last record of history.
    """
    return not record.boot or record.boot != env.boot_of(folder)


MOST_USERS = 10_000  # a bound on memory; correctness does not depend on it


@dataclass(slots=True)
class Synced:
    """The names of one user that this process has synced."""

    files: FileSystem
    folder: str
    inode: int
    """The inode of the folder, which detects a new folder with the same name."""
    boot: str = ""
    """The boot fingerprint for new records."""
    segment: str = ""
    kinds: set[str] = field(default_factory=set[str])
    doubtful: set[str] = field(default_factory=set[str])
    """Documents that could not be synced."""

    def sync(self, kinds: set[str]) -> None:
        """Sync the names of documents, and the names of their parent folders."""
        for place in {place for kind in kinds for place in _folders_of(self.folder, kind)}:
            self.files.sync_folder(place)
        self.kinds |= kinds


class DurableNames:
    """The names of all users below `root`; `sync` states whether they must survive a power cut."""

    def __init__(self, env: Environment, root: Path, *, sync: bool) -> None:
        self._env = env
        self._root = root
        self._sync = sync
        self._synced: dict[str, Synced] = {}
        self._is_root_synced = False

    def of(self, user: str, folder: str) -> Synced:
        """Create a user's folder if needed; at the first commit of this process, sync its name.

        Raises:
            OSError: The folder cannot be created or synced.
        """
        files = self._env.files
        try:
            inode = files.stat(folder).st_ino
        except FileNotFoundError:
            files.make_folder(folder, sync=self._sync)
            inode = files.stat(folder).st_ino
        known = self._synced.get(user)
        if known is not None and known.inode == inode:
            return known
        _name_owner(files, user, Path(folder), sync=self._sync)
        if self._sync:
            files.sync_folder(folder)
            files.sync_folder(self._root)
            if not self._is_root_synced:
                with suppress(PermissionError):  # another owner's folder: its creator must sync it
                    files.sync_folder(self._root.absolute().parent)
                self._is_root_synced = True
        if len(self._synced) > MOST_USERS:
            self._synced.clear()
        known = self._synced[user] = Synced(files, folder, inode, self._env.boot_of(folder))
        return known

    def drop(self, user: str) -> None:
        """Drop the cached state of a user."""
        self._synced.pop(user, None)


def user_of(files: FileSystem, folder: Path) -> str | None:
    """Return the user id of a folder, or None if the folder belongs to no user.

    Raises:
        DiaryError: The file with the owner's id cannot be read.
    """
    decoded = decode_folder(folder.name)
    if decoded is not None:
        return decoded
    path = folder / OWNER_NAME
    owner = files.read_file(path)
    if owner is None:
        return None
    encoded = parse_toml(decode_utf8(owner[0], path=str(path)), path=str(path)).get("user_id")
    return str(encoded).encode("ascii", "replace").decode("unicode_escape") if encoded else None


def _name_owner(files: FileSystem, user: str, folder: Path, *, sync: bool) -> None:
    """Write the owner file of a folder whose name cannot contain the user id."""
    if not folder.name.startswith("~"):
        return
    with suppress(DiaryError):  # torn by a crash
        if user_of(files, folder) == user:
            return
    encoded = user.encode("unicode_escape").decode("ascii")
    text = f"# The id of this folder's owner is too long to be its name.\nuser_id = {render_value(encoded)}\n"
    files.discard(folder / OWNER_NAME)
    files.write_new(str(folder / OWNER_NAME), text.encode(), sync=sync)


def _folders_of(folder: str, kind: str) -> list[str]:
    """Return the folders on the path of a document, from the user's folder to its own."""
    parts = kind.split("/")[:-1]
    return ["/".join([folder, *parts[:length]]) for length in range(len(parts) + 1)]


SYSTEM = ".tomldiary"
"""The folder beside the users' folders, for locks, journals, fencing tokens and derived data."""
YOUNG = 10_000_000
"""Nanoseconds; a folder changed so recently may change again with the same modification time."""
