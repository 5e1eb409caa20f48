"""Opening users: the first access of a process recovers the user's folder and finds the end of history."""

from __future__ import annotations

import itertools
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tomldiary.errors import BackendError, LockTimeout
from tomldiary.history.record import next_sequence, parse_record
from tomldiary.storage.local.checkpoint import drop_superseded
from tomldiary.storage.local.displaced_edit import merge_displaced_edits
from tomldiary.storage.local.fencing import Epochs
from tomldiary.storage.local.forget_job import finish
from tomldiary.storage.local.layout import JOB_PREFIX, staged_name
from tomldiary.storage.local.log import (
    End,
    cut_off,
    end_behind,
    last_record,
    newest_segment,
    read_records,
)
from tomldiary.storage.local.recovery import (
    is_left_over,
    roll_forward,
    staged_files,
    window_records,
)
from tomldiary.storage.local.user_dirs import SYSTEM, DurableNames, UserFolders, may_lack_writes
from tomldiary.storage.locks import UserLocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from tomldiary.storage.environment import Environment
    from tomldiary.storage.files import FileSystem, FileToken
    from tomldiary.storage.protocol import Commit, Merge

__all__ = ["HistoryTails", "OpenedUsers"]


class _Tail(NamedTuple):
    """The end of a user's history as last read."""

    end: End
    folder_time: int
    record: str
    seq: int
    """The transaction number of the record."""


class HistoryTails:
    """The ends of all users' histories; the caller holds the user's lock."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._tails: dict[str, _Tail] = {}

    def keep(self, user: str, place: str, end: End, record: str, seq: int) -> None:
        """Cache the end of a history after an append; `place` is its folder."""
        known = self._tails.get(user)
        # An append to an existing segment does not change the folder time; the old time reveals other changes.
        is_known = known is not None and known.end.segment == end.segment
        changed = (
            known.folder_time if known is not None and is_known else self._files.folder_time(place)
        )
        self._tails[user] = _Tail(end, changed, record, seq)

    def drop(self, user: str) -> None:
        """Drop the cached end of a user's history."""
        self._tails.pop(user, None)

    def drop_changed(self, user: str) -> None:
        """Drop the cached end of a history that another process has changed since; needs no lock."""
        tail = self._tails.get(user)
        if (
            tail is not None
            and not tail.end.is_there(self._files)
            and self._tails.get(user) is tail
        ):
            self._tails.pop(user, None)

    def numbered(self, user: str, place: str, seq: int) -> End | None:
        """Return the end of history for an append of transaction `seq`; None if there is no history.

        The caller has determined `seq` under the lock that it holds.
        """
        tail = self._tails.get(user)
        if tail is None or tail.seq != seq - 1:
            tail = self._found(user, place)
        return tail.end if tail is not None else None

    def of(self, user: str, place: str) -> str | None:
        """Return the last complete record, or None; a torn tail is cut off."""
        tail = self._found(user, place)
        return tail.record if tail is not None else None

    def _found(self, user: str, place: str) -> _Tail | None:
        # Read the cache once: another thread may drop the entry at any time.
        cached = self._tails.get(user)
        changed = self._files.folder_time(place)
        if not changed:
            self.drop(user)
            return None
        if (
            cached is not None
            and cached.folder_time == changed  # no segment was added since
            and cached.end.is_there(self._files)
        ):
            return cached
        newest = newest_segment(self._files, Path(place))
        if newest is None:
            self.drop(user)
            return None
        record, at = last_record(self._files, newest)
        cut_off(self._files, newest, at)
        if record is None:
            # The only record of a new segment was torn: the last record is in the previous segment.
            self._files.unlink(newest)
            return self._found(user, place)
        seq = next_sequence(record) - 1
        found = self._tails[user] = _Tail(end_behind(newest, at, record), changed, record, seq)
        return found


class OpenedUsers(UserFolders):
    """The part of `LocalBackend` that locks users, opens them, and reads their history.

    Args:
        base_path: The folder of all users.
        environment: What storage works with.
        sync: Whether writes are synced to disk.
    """

    def __init__(self, base_path: Path, environment: Environment, *, sync: bool) -> None:
        super().__init__(base_path, environment)
        self._sync = sync
        self.merge_displaced: Merge | None = None
        """Merges displaced edits; an engine sets it."""
        self._locks = UserLocks(base_path / SYSTEM / "locks", environment.files)
        self.epochs = Epochs(environment, base_path / SYSTEM)
        self._tails = HistoryTails(environment.files)
        self._recovered: set[str] = set()
        self._swept: dict[str, int] = {}
        """By user: the tenure of the lock in which the folder was found without staged files, if it still is."""
        self._synced = DurableNames(environment, base_path, sync=sync)
        # Process ids repeat, in a container after each restart: a random start avoids names that a crash left.
        self._names = itertools.count(secrets.randbits(16))

    def lock(self, user: str, timeout: float) -> AbstractContextManager[None]:
        """Exclude other writers, in this process and in others, and recover the user after a crash."""
        return self._locks.hold(user, timeout, self._recover)

    def last_record(self, user: str) -> str | None:
        """Return the newest history record."""
        try:
            return self._tail(user)
        except OSError as error:
            raise _unread(error, self.folder(user)) from error

    def records(self, user: str) -> Iterator[str]:
        """Yield the texts of all history records, newest first."""
        self._open(user)
        folder = self.folder(user)
        try:
            yield from read_records(self.files, folder / "history")
        except OSError as error:
            raise _unread(error, folder) from error

    def _tail(self, user: str) -> str | None:
        return self._tails.of(user, f"{self.folder(user)}/history")

    # After a crash

    def _open(self, user: str) -> bool:
        """Recover a user at the first read; return whether the user is recovered.

        The result is False if a writer holds the lock, as readers do not wait, or if recovery failed.
        """
        if user in self._recovered:
            return True
        try:
            if not self.files.is_folder(self.folder(user)):
                return True
        except OSError:
            return True  # an inaccessible folder counts as missing
        try:
            with self.lock(user, 0.0):
                return True
        except (BackendError, LockTimeout):
            return False

    def _recover(self, user: str) -> None:
        """Publish committed documents and remove staged files; the caller holds the lock."""
        tenure = self._locks.tenure(user)
        if self._swept.get(user) == tenure:
            return  # no other process held the lock since, so none can have been killed with it
        folder = self.folder(user)
        try:
            self._repair(user, folder, tenure)
        except FileNotFoundError:
            return  # a person has just removed the folder
        except OSError as error:
            raise BackendError(
                f"{error.filename or folder}: recovery after a crash failed ({error.strerror})."
                " Check free space and permissions."
            ) from error

    def _repair(self, user: str, folder: Path, tenure: int) -> None:
        try:
            names = self.files.listdir(folder)
        except FileNotFoundError:  # there is no such user yet
            self._swept[user] = tenure
            return
        if any(name.startswith(JOB_PREFIX) for name in names):
            finish(self, user)
            names = self.files.listdir(folder)
        if not names and self.epoch(user):
            self.files.rmdir(folder)  # left by a process that was killed while it forgot the user
            return
        staged = staged_files(self.files, folder, names)
        text = self._tail(user)
        if not staged and user in self._recovered:
            self._swept[user] = tenure
            return
        was_cut = False
        if text is not None:
            record = parse_record(text)
            was_cut = may_lack_writes(self.environment, folder, record)
            if staged or was_cut:
                records = window_records(self.environment, folder) if was_cut else [record]
                staged_as = partial(self._temp_name, str(folder))
                roll_forward(
                    self.environment, folder, records, staged_as, staged, may_be_torn=was_cut
                )
                names = self.files.listdir(folder)
                staged = staged_files(self.files, folder, names)
        drop_superseded(self.files, folder / "history")
        newest = next_sequence(text) - 1
        displaced = [
            name for name in staged
            if not is_left_over(self.environment, folder, name, newest, may_be_torn=was_cut)
        ]  # fmt: skip
        for name in staged:
            if name not in displaced:
                self.files.discard(folder / name)
        self._merge_displaced(user, displaced)
        self._recovered.add(user)
        if not displaced:  # an edit that cannot be merged may stay, and the next lock must check it
            self._swept[user] = tenure

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
        self._synced.drop(user)
        self._recovered.discard(user)
        self._swept.pop(user, None)

    def epoch(self, user: str) -> int:
        """Return how often data of the user was forgotten."""
        self.folder(user)  # raises if the user id is invalid
        self._tails.drop_changed(user)  # another process may have forgotten the cached record
        return self.epochs.read(user)

    def _temp_name(
        self, folder: str, kind: str, data: bytes, seq: int, fingerprint: str = ""
    ) -> str:
        return f"{folder}/{staged_name(kind, data, seq, next(self._names), fingerprint)}"

    def _stored(self, user: str, commit: Commit) -> tuple[dict[str, FileToken], list[str]]:
        """Store a transaction; return the tokens of its files, and the names of files with displaced edits."""
        raise NotImplementedError


def _unread(error: OSError, folder: Path) -> BackendError:
    return BackendError(
        f"{error.filename or folder}: history cannot be read ({error.strerror}). Check the permissions."
    )
