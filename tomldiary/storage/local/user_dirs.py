"""The folders of users: their owners, and the file names in them that survive a power cut.

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

from tomldiary.errors import BackendError, DiaryError
from tomldiary.identifiers.user_ids import MAX_FOLDER, decode_folder, encode_folder, is_canonical
from tomldiary.logging import get_logger
from tomldiary.storage.local.layout import OWNER_NAME
from tomldiary.toml.parse import decode_utf8, parse_toml
from tomldiary.toml.values import render_value

if TYPE_CHECKING:
    from tomldiary.history.record import Record
    from tomldiary.storage.environment import Environment
    from tomldiary.storage.files import FileSystem

__all__ = [
    "SYSTEM",
    "YOUNG",
    "DurableNames",
    "Synced",
    "UserFolders",
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


_MOST_USERS = 10_000  # a bound on memory; correctness does not depend on it


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
        if len(self._synced) > _MOST_USERS:
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
_logger = get_logger(__name__)


class UserFolders:
    """The part of `LocalBackend` that maps users to folders."""

    def __init__(self, base_path: Path, environment: Environment) -> None:
        self.environment = environment
        self.files = environment.files
        self.base_path = base_path
        self._folders: dict[str, Path] = {}
        self._everybody: tuple[int, list[str]] | None = None

    def folder(self, user: str) -> Path:
        """Return the folder of a user, even if it does not exist."""
        known = self._folders.get(user)
        if known is not None:
            return known
        name = encode_folder(user)
        folder = self.base_path / name
        if self.files.token(folder) is None and name != user and self._is_plain_folder(user):
            folder = self.base_path / user  # created by TOMLDiary 0.9, which used the plain id
        if len(self._folders) > _MOST_USERS:
            self._folders.clear()
        self._folders[user] = folder
        return folder

    def index_folder(self, user: str) -> Path:
        """Return the folder for data derived from a user's documents; it may be deleted at any time."""
        return self.base_path / SYSTEM / "index" / encode_folder(user)

    def _is_plain_folder(self, user: str) -> bool:
        """Return whether a folder has exactly the id as its name, and so belongs to this user only."""
        if len(user) > MAX_FOLDER or is_canonical(user) or user.startswith((".", "~")):
            return False
        try:
            return user in self.files.listdir(self.base_path)
        except OSError:
            return False

    def known_users(self) -> list[str]:
        """Return the ids of all users with a folder, sorted; one `stat` if no folder was added or removed."""
        before = self._everybody
        when = self.files.folder_time(str(self.base_path))
        if before is not None and before[0] == when:
            return before[1]
        found: list[str] = []
        is_whole = when < self.environment.clock.time_ns() - YOUNG
        for name in self._folder_names():
            try:
                user = decode_folder(name) or user_of(self.files, self.base_path / name)
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
            found = [entry.name for entry in self.files.scandir(self.base_path) if entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise BackendError(f"{self.base_path}: cannot be listed ({error.strerror}).") from error
        return [name for name in found if name != SYSTEM]
