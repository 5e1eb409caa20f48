"""The folders of users, and opening users: the first access of a process recovers the user's folder.

A name in a folder survives a power cut once the folder was synced. Another process may have been killed between
creating a file and syncing its name. So each process itself syncs the names that it relies on once, before it
acknowledges a write.
"""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from tomldiary.errors import BackendError, DiaryError, InvalidValue, LockTimeout
from tomldiary.history.record import parse_record
from tomldiary.identifiers.user_ids import decode_folder, encode_folder, is_canonical, is_hashed
from tomldiary.logging import get_logger
from tomldiary.runtime.forgettable_cache import cleared_on_forget
from tomldiary.storage.files import file_error, file_on_the_way
from tomldiary.storage.local.displaced_edit import merge_displaced_edits
from tomldiary.storage.local.forget_job import finish
from tomldiary.storage.local.layout import (
    HISTORY,
    JOB_NAME,
    JOB_PREFIX,
    KEY_NAME,
    SEGMENT,
    SYSTEM,
    has_users_only,
    name_owner,
    user_of,
)
from tomldiary.storage.local.log import HistoryTails, read_records
from tomldiary.storage.local.publish import STAGED, staged_files
from tomldiary.storage.local.recovery import Recovery, drop_superseded
from tomldiary.storage.locks import UserLocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from os import DirEntry

    from tomldiary.storage.environment import Environment
    from tomldiary.storage.files import FileSystem, FileToken
    from tomldiary.storage.protocol import Commit, Merge

_logger = get_logger(__name__)
_KEY_BYTES = 32
_NO_USERS = frozenset({SYSTEM, "lost+found"})  # the second one is that of file system checks
_MOST_USERS = 1 << 15  # a bound on memory; correctness does not depend on it
_YOUNG = 10_000_000  # nanoseconds; a folder changed so recently may change again with the same modification time
_YOUNG_COARSE = 2_010_000_000  # the same on file systems with times in whole or even seconds


def is_settled(when: int, now: int) -> bool:
    """Return whether every later change of a folder changes its modification time; both times in nanoseconds."""
    return 0 <= when < now - (_YOUNG if when % 1_000_000_000 else _YOUNG_COARSE)


def _is_folder(entry: DirEntry[str]) -> bool:
    """Return whether an entry is a folder; True for a link that cannot be followed, so that an error names it."""
    try:
        return entry.is_dir()
    except OSError:
        return True


def _real(path: Path) -> Path:
    """Return a path without links; unlike `Path.resolve`, also for a link to itself."""
    return Path(os.path.realpath(path))


class OpenedUsers:
    """The base class of `LocalBackend`: finds the folders of users, locks and recovers them, and reads their history.

    Args:
        base_path: The folder of all users.
        environment: The file system, the clock and the limits.
        sync: Whether writes are synced to disk.
    """

    def __init__(self, base_path: Path, environment: Environment, *, sync: bool) -> None:
        self.environment = environment
        self.files = environment.files
        self.base_path = base_path
        self._folders: dict[str, Path] = {}
        self._known_users: tuple[int, list[str]] | None = None
        self._sync = sync
        self.merge_displaced: Merge | None = None
        """Merges displaced edits; an engine sets it."""
        self._locks = UserLocks(base_path / SYSTEM / "locks", environment.files)
        self.epochs = Epochs(environment.files, base_path / SYSTEM)
        self._seen_epochs: dict[str, int] = {}
        self._tails = HistoryTails(environment.files, self.folder)
        self._recovered: dict[str, str] = {}
        """The folder of each recovered user, with a slash at the end."""
        self._listings: dict[
            str, dict[str, tuple[list[str], list[str], tuple[int, ...] | None]]
        ] = {}
        """By user and folder: the documents and the folders at the last listing, and the folders' times before it."""
        self._synced: dict[str, Synced] = {}
        self._is_root_synced = False
        self._is_root_checked = False

    # Folders

    def check_root(self) -> None:
        """Refuse the folder of a user as the folder of all users, once.

        Raises:
            InvalidValue: The folder has segments of history, which only the folder of a user has.
        """
        if self._is_root_checked:
            return
        root, is_of_user = self.base_path, False
        with suppress(OSError):  # there is no history, or the folder cannot be read
            is_of_user = not self.files.exists(root / SYSTEM) and any(
                map(SEGMENT.fullmatch, self.files.listdir(root / HISTORY))
            )
        if is_of_user:
            user = user_of(self.files, root) or root.name
            raise InvalidValue(
                f"this is the folder of one user. Open the folder above: Diary({str(root.parent)!r}).user({user!r}).",
                where=str(root),
            )
        self._is_root_checked = True

    def folder(self, user: str) -> Path:
        """Return the folder of a user, even if it does not exist.

        Raises:
            BackendError: It is a link into the memory, so that two users would have one folder.
        """
        known = self._folders.get(user)
        if known is not None:
            return known
        self.check_root()
        name = encode_folder(user)
        folder = self.base_path / name
        if self.files.token(folder) is None and name != user and self._is_plain_folder(user):
            folder = self.base_path / user  # created by TOMLDiary 0.9, which used the plain id
        if self.files.is_link(folder) and _real(folder).is_relative_to(_real(self.base_path)):
            raise BackendError(
                f"{folder}: is a link to a folder of this memory, which may be that of another user. Remove the link."
            )
        if len(self._folders) > _MOST_USERS:
            self._folders.clear()
            self._recovered.clear()
            self._listings.clear()
        self._folders[user] = folder
        return folder

    def unread_folder(self, user: str) -> Path | None:
        """Return the folder with the plain id as its name if the user has another one, so that nothing reads it."""
        plain = self.base_path / user
        return plain if self.folder(user) != plain and self._is_plain_folder(user) else None

    def index_folder(self, user: str) -> Path:
        """Return the folder for data derived from a user's documents; it may be deleted at any time."""
        return self.base_path / SYSTEM / "index" / encode_folder(user)

    def _is_plain_folder(self, user: str) -> bool:
        """Return whether a folder has exactly the id as its name, and so belongs to this user only."""
        if is_canonical(user) or is_hashed(user) or user.startswith("."):
            return False
        if user in _NO_USERS:
            return False
        try:
            return user in self.files.listdir(self.base_path)
        except OSError:
            return False

    def known_users(self) -> list[str]:
        """Return the ids of all users with a folder, sorted; one `stat` if no folder was added or removed."""
        before = self._known_users
        when = self.files.folder_time(str(self.base_path))
        if before is not None and before[0] == when:
            return before[1]
        found: set[str] = set()  # a user may have a second folder
        is_whole = is_settled(when, self.environment.clock.time_ns())
        for entry in self.folders():
            try:
                user = decode_folder(entry.name) or user_of(self.files, Path(entry.path))
            except DiaryError as error:
                _logger.warning("a user is skipped: %s", error)
                user = None
            is_whole = is_whole and user is not None
            found |= {user} if user is not None else set()
        if is_whole:
            self._known_users = (when, sorted(found))
        return sorted(found)

    def folders(self) -> list[DirEntry[str]]:
        """Return the folders in the root, without the system folder and that of file system checks."""
        self.check_root()
        try:
            found = [entry for entry in self.files.scandir(self.base_path) if _is_folder(entry)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise file_error(self.base_path, "cannot be listed", error) from error
        return [entry for entry in found if entry.name not in _NO_USERS]

    # Opening

    def lock(self, user: str, timeout: float) -> AbstractContextManager[None]:
        """Exclude other writers, in this process and in others, and recover the user after a crash."""
        self.check_root()
        return self._locks.hold(user, timeout, partial(self._recover, patience=timeout))

    def last_record(self, user: str) -> str | None:
        """Return the newest history record; needs no lock."""
        try:
            return self._tails.last(user)
        except OSError as error:
            raise _read_error(error, self.folder(user)) from error

    def records(self, user: str) -> Iterator[str]:
        """Yield the texts of all history records, newest first."""
        self._open(user)
        folder = self.folder(user)
        try:
            yield from read_records(self.files, folder / "history")
        except OSError as error:
            raise _read_error(error, folder) from error

    # After a crash

    def _open(self, user: str) -> bool:
        """Recover a user at the first read; return whether the user is recovered.

        The result is False if a writer holds the lock, as readers do not wait, or if recovery failed.
        """
        if user in self._recovered:
            return True
        folder = self.folder(user)
        try:
            if not self.files.is_folder(folder):
                return True
        except OSError:
            return True  # an inaccessible folder counts as missing
        if self._has_only_documents(folder):
            # A lock would create `.tomldiary`, although the path may be that of other files.
            self._recovered[user] = f"{folder}/"
            return True
        try:
            with self.lock(user, 0.0):
                return True
        except (BackendError, LockTimeout):
            return False

    def is_forgetting(self, user: str) -> bool:
        """Return whether a forget job of the user is not finished; that of a killed process is finished here."""
        try:
            return self.files.exists(self.folder(user) / JOB_NAME) and not self._open(user)
        except OSError:
            return False  # an inaccessible folder counts as missing

    def _has_only_documents(self, folder: Path) -> bool:
        """Return whether a folder has no history and nothing of an interrupted write, so nothing can be recovered."""
        try:
            names = self.files.listdir(folder)
        except OSError:
            return False
        return bool(names) and HISTORY not in names and _is_clean(names)

    def _recover(self, user: str, patience: float) -> None:
        """Publish committed documents and remove staged files; the caller holds the lock.

        `patience` is how long it may wait for the editor of a document that an erasure changes, in seconds.
        """
        folder = self.folder(user)
        # An erasure must not miss a document, even if the times of folders are not reliable.
        self._listings.pop(user, None)
        try:
            names = self.files.listdir(folder)
            if SYSTEM in names and has_users_only(names):
                raise InvalidValue(
                    f"this folder is a memory with users of its own. Open it: Diary({str(folder)!r}).",
                    where=str(folder),
                )
            # Such a name was left by a process that was killed while it held the lock.
            if not names or not _is_clean(names) or user not in self._recovered:
                self._repair(user, folder, names, patience)
        except FileNotFoundError:
            # The user does not exist yet, or another process has removed the folder. The next one may have another name.
            self.reopen(user)
            return
        except NotADirectoryError as error:
            raise file_on_the_way(folder / HISTORY) from error
        except PermissionError as error:
            raise file_error(folder, "cannot be opened", error) from error
        except OSError as error:
            what, remedy = "recovery after a crash failed", "Check free space and permissions."
            raise file_error(folder, what, error, remedy) from error

    def _repair(self, user: str, folder: Path, names: list[str], patience: float) -> None:
        if any(name.startswith(JOB_PREFIX) for name in names):
            finish(self, user, patience)
            names = self.files.listdir(folder)
        if not names and self.epoch(user):
            self.files.rmdir(folder)  # left by a process that was killed while it forgot the user
            return
        staged = staged_files(self.files, folder, names)
        tail = self._tails.of(user)
        last = parse_record(tail.record) if tail is not None else None
        recovery = Recovery(self.environment, folder, last)
        if staged or recovery.may_be_torn:
            recovery.roll_forward(staged)
            staged = staged_files(self.files, folder, self.files.listdir(folder))
        drop_superseded(self.files, folder / "history")
        self.epoch(user)  # read before the check, so that a later erasure invalidates its result
        self._tails.check(user)
        displaced = [name for name in staged if not recovery.is_left_over(name)]
        for name in staged:
            if name not in displaced:
                self.files.discard(folder / name)
        self._merge_displaced(user, displaced)
        self._recovered[user] = f"{folder}/"

    def _merge_displaced(self, user: str, names: list[str]) -> None:
        """Merge displaced edits; without an engine they stay in their staged files for the next open."""
        if self.merge_displaced is not None:
            store = partial(self._stored, user)
            folder = self.folder(user)
            merge_displaced_edits(self.environment, folder, names, self.merge_displaced, store)

    def reopen(self, user: str) -> None:
        """Drop all cached state of a user, so that the next access recovers the user again."""
        self._tails.drop(user)
        self._folders.pop(user, None)
        self._synced.pop(user, None)
        self._recovered.pop(user, None)
        self._listings.pop(user, None)

    def _names(self, user: str) -> Synced:
        """Create a user's folder if needed; at the first commit of this process, sync its name.

        Raises:
            OSError: The folder cannot be created or synced.
        """
        files, folder = self.files, str(self.folder(user))
        try:
            inode = files.stat(folder).st_ino
        except FileNotFoundError:
            files.make_folder(folder, sync=self._sync)
            inode = files.stat(folder).st_ino
        known = self._synced.get(user)
        if known is not None and known.inode == inode:
            return known
        name_owner(files, user, Path(folder), sync=self._sync)
        if self._sync:
            files.sync_folder(folder)
            files.sync_folder(self.base_path)
            if not self._is_root_synced:
                with suppress(PermissionError):  # another owner's folder: its creator must sync it
                    files.sync_folder(self.base_path.parent)
                self._is_root_synced = True
        if len(self._synced) > _MOST_USERS:
            self._synced.clear()
        known = self._synced[user] = Synced(files, folder, inode, self.environment.boot_of(folder))
        return known

    def epoch(self, user: str) -> int:
        """Return the fencing token: the number of erasures of the user's data."""
        self.folder(user)  # raises if the user id is invalid
        epoch, _ = self.epochs.read(user)
        if self._seen_epochs.get(user, 0) != epoch:
            self._seen_epochs[user] = epoch
            self.reopen(user)  # another process has forgotten something since
        return epoch

    def erased(self, user: str) -> int:
        """Return the fencing token that the last complete erasure set; 0 if there was none."""
        return self.epochs.read(user)[1]

    def _stored(self, user: str, commit: Commit) -> tuple[dict[str, FileToken], list[str]]:
        """Store a transaction; return the tokens of its files, and the names of files with displaced edits."""
        raise NotImplementedError


def _is_clean(names: list[str]) -> bool:
    """Return whether no name in a user's folder was left by a write or a forget job that was interrupted."""
    return not any(name.startswith((STAGED, JOB_PREFIX)) for name in names)


def _read_error(error: OSError, folder: Path) -> BackendError:
    return file_error(folder, "history cannot be read", error)


# Names


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
        for place in {Path(self.folder, each) for kind in kinds for each in Path(kind).parents}:
            self.files.sync_folder(place)
        self.kinds |= kinds


# Fencing tokens


class Epochs:
    """Fencing tokens: how often data of each user was forgotten. They outlive the user's folder.

    A file contains the token, a space, and the token that the last complete erasure set. The file name is a keyed
    hash of the user id (HMAC-SHA256, RFC 2104, with a random key). Without the key, the name does not reveal the user.
    `folder` is the system folder, which belongs to no user.
    """

    def __init__(self, files: FileSystem, folder: Path) -> None:
        self._files = files
        self._folder = folder / "epochs"
        self._key_file = folder / KEY_NAME

    def read(self, user: str) -> tuple[int, int]:
        """Return a user's fencing token and that of the last complete erasure; each is 0 if there was none.

        Raises:
            BackendError: The token cannot be read.
        """
        key = self._key()
        found = None if key is None else self._files.read_file(_file(self._folder, key, user))
        if found is None:
            return 0, 0
        try:
            epoch, erased = map(int, found[0].split())
        except ValueError:
            # The content is damaged: return a token that no pending work has, so that all of it is refused.
            epoch = erased = 1 << 32 | crc32(found[0])
        return epoch, erased

    def write(self, user: str, epoch: int, *, erased: int = 0) -> None:
        """Set a user's fencing token durably, and that of the last complete erasure unless it is 0.

        The caller holds the user's lock.

        Raises:
            OSError, BackendError: The token could not be written.
        """
        erased = erased or self.read(user)[1]
        path = _file(self._folder, self._key() or self._new_key(), user)
        self._files.make_folder(self._folder, sync=True)
        # For the name of the key: the process that created it may have been killed since.
        self._files.sync_folder(self._key_file.parent)
        self._files.write_over(path, f"{epoch} {erased}\n".encode(), sync=True)

    def check_key(self) -> None:
        """Raise BackendError if the file of the key contains no valid key."""
        if self._files.read_file(self._key_file) is not None and self._key() is None:
            raise self._no_key()

    def _no_key(self) -> BackendError:
        return BackendError(
            f"{self._key_file}: contains no valid key, so nothing can be forgotten. Restore or remove it."
        )

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
            with suppress(FileExistsError):
                self._files.link(temp, self._key_file)
        finally:
            self._files.unlink(temp)
        key = self._key()
        if key is None:
            raise self._no_key()
        return key


@cleared_on_forget
@lru_cache(maxsize=_MOST_USERS)
def _file(folder: Path, key: bytes, user: str) -> Path:
    """Return the file of a user's token; cached, because each turn reads the token several times."""
    return folder / hmac.digest(key, user.encode("utf-8", "surrogatepass"), "sha256").hex()
