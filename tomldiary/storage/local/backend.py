"""Documents and history as files in a folder.

    memories/
      alice/
        preferences.toml  conversations.toml
        history/2026-11-001.toml
      .tomldiary/locks/

A commit stages each changed document in a temporary file, appends to history (the commit point), and publishes
the files. A commit waits for history only; documents are synced at a checkpoint, see `recovery`.
"""

from __future__ import annotations

import os
import stat
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tomldiary.errors import (
    BackendError,
    CommittedUnpublished,
    DiaryError,
    HandEditConflict,
    InvalidTOML,
    UnsafeDocument,
    wrong_type,
    wrong_value,
)
from tomldiary.history.record import next_sequence, sequence_of, stamped
from tomldiary.identifiers.user_ids import decode_folder, is_canonical
from tomldiary.logging import get_logger, tell
from tomldiary.storage.async_methods import AsyncVerbs
from tomldiary.storage.environment import CHECKPOINT_INTERVAL, SEGMENT_BYTES, Clock, Environment
from tomldiary.storage.files import (
    READING,
    FileSystem,
    FileToken,
    failed_path,
    file_error,
    system_remedy,
)
from tomldiary.storage.local.forget_job import forget
from tomldiary.storage.local.hidden import HiddenFiles
from tomldiary.storage.local.layout import JOB_NAME, SYSTEM, kinds_in, listing_of, user_of
from tomldiary.storage.local.log import append_records, opens_window
from tomldiary.storage.local.publish import Staging, check_parent, checked_kind, is_being_saved
from tomldiary.storage.local.recovery import prune, repaired, settle
from tomldiary.storage.local.session import OpenedUsers, is_settled
from tomldiary.storage.locks import LOCK_TIMEOUT
from tomldiary.storage.protocol import Commit, Durability, Rewrite, Stored
from tomldiary.toml.parse import MAX_BYTES, decode_utf8, too_large
from tomldiary.toml.values import checked_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tomldiary.storage.local.log import Tail


__all__ = ["LocalBackend", "check_durability"]

_logger = get_logger(__name__)
_USUAL = "preferences.toml"
"""The document that almost all users have."""


def check_durability(given: object) -> None:
    """Raise InvalidValue if `given` is not a level of durability."""
    if given not in get_args(Durability):
        raise wrong_value(given, "'full', 'process' or 'none'", "durability")


def _check_folder(files: FileSystem, place: Path) -> None:
    """Refuse a file as the folder of a memory, which would look like an empty one; a missing folder is created later."""
    with suppress(OSError):  # it is missing, or cannot be inspected, as its first use says
        if not stat.S_ISDIR(files.stat(place).st_mode):
            raise BackendError(f"{place}: is a file. Give a folder, in which each user gets one.")


class LocalBackend(OpenedUsers, AsyncVerbs):
    """Stores all users in one folder, for any number of concurrent threads and processes.

    Args:
        base_path: The folder, created at the first write; `~` is the home. `path` is an alias.
        durability: The failures that a returned write survives; see `Durability`.
        files: Makes all file operations. Tests pass a replacement.
        clock: Returns the time and the boot identifier. Tests pass a replacement.
        segment_bytes: The size of a history segment at which the next one begins.
        checkpoint_interval: The number of transactions of a user between two checkpoints. All processes that
            share the folder must use the same.
    """

    is_atomic = True
    is_quick = False
    is_shared = True

    def __init__(
        self,
        base_path: str | os.PathLike[str] | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        durability: Durability = "full",
        files: FileSystem | None = None,
        clock: Clock | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        checkpoint_interval: int = CHECKPOINT_INTERVAL,
    ) -> None:
        chosen = base_path if base_path is not None else path
        if chosen is None or (base_path is not None and path is not None):
            raise TypeError("LocalBackend requires one folder: LocalBackend('./memories').")
        if not isinstance(chosen, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise wrong_type(chosen, "a folder", "path")
        folder: str = os.path.expanduser(os.fspath(chosen))  # noqa: PTH111 - Path fails where there is no home
        if not folder.strip():
            raise BackendError('the name of the folder is blank. Write "." for the current folder.')
        try:
            is_possible = b"\0" not in os.fsencode(folder)
        except UnicodeEncodeError:  # a lone surrogate
            is_possible = False
        if not is_possible:
            raise BackendError(f"{folder!r} has a character that no name of a folder can have.")
        check_durability(durability)
        checked_count(segment_bytes, "segment_bytes", least=1)
        checked_count(checkpoint_interval, "checkpoint_interval", least=1)
        environment = Environment(
            files or FileSystem(), clock or Clock(), segment_bytes, checkpoint_interval
        )
        # An absolute path, so that a later change of the working directory has no effect.
        try:
            place = Path(folder).absolute()
        except FileNotFoundError:
            raise BackendError(
                f"{folder}: the current folder was removed. Give an absolute path, or start in another folder."
            ) from None
        _check_folder(environment.files, place)
        super().__init__(place, environment, sync=durability == "full")
        self._shown = Path(folder)
        self.durability: Durability = durability
        self.journal_root = self.base_path / SYSTEM / "journal"
        """The folder of all journals, including those of writers with a different durability."""
        self._hidden = HiddenFiles(environment.files, self.base_path / SYSTEM)
        self._skipped = set[str]()
        """The problems of the users that the last listing skipped."""

    def __repr__(self) -> str:
        return f"LocalBackend({str(self._shown)!r})"

    @property
    def journal_folder(self) -> Path | None:
        """The folder where a background writer stores turns until they are applied; None for memory only."""
        self.check_root()
        return self.journal_root if self.durability != "none" else None

    def close(self) -> None:
        """Close the lock files; the next write opens them again."""
        self._locks.close()

    # Reading

    def _file(self, user: str, kind: str) -> Path:
        return self.folder(user) / f"{checked_kind(kind)}.toml"

    def place(self, user: str, kind: str) -> str:
        """Return the path of a document's file, beginning with the folder as it was given."""
        return str(self._shown / self.folder(user).name / f"{checked_kind(kind)}.toml")

    def token(self, user: str, kind: str) -> FileToken | None:
        """Return the version of the file: one `stat`."""
        folder = self._recovered.get(user) or self._opened(user)
        return self.files.token(f"{folder}{kind}.toml")

    def tokens(self, user: str, kinds: Iterable[str]) -> list[FileToken | None]:
        """Return the versions of several files: one `stat` each."""
        folder, token = self._recovered.get(user) or self._opened(user), self.files.token
        return [token(f"{folder}{kind}.toml") for kind in kinds]

    def _opened(self, user: str) -> str:
        """Recover a user if possible, and return the folder with a slash at the end."""
        self._open(user)
        return f"{self.folder(user)}/"

    def read(self, user: str, kind: str) -> Stored | None:
        """Return the document, or None; while a writer holds the lock, a torn document is repaired in memory."""
        is_open = self._open(user)
        path = self._file(user, kind)
        try:
            found = self.files.read_file(path, most=MAX_BYTES)
        except UnsafeDocument:
            large = self.files.token(path)
            if large is None or large[1] <= MAX_BYTES:
                return self.read(user, kind)  # another program has just replaced the file
            return Stored("", large, too_large(self.place(user, kind)))
        if found is None:
            return None
        check_parent(self.files, str(self.folder(user)), kind)
        data, token = found
        if not is_open:
            data = repaired(self.environment, self.folder(user), kind, data, token)
        try:
            return Stored(decode_utf8(data, path=self.place(user, kind)), token)
        except InvalidTOML as error:
            return Stored(data.decode("utf-8", "replace"), token, error)

    def is_being_saved(self, user: str, kind: str) -> bool:
        """Return whether another program is saving the document's file."""
        return is_being_saved(self.environment, self.place(user, kind))

    def kinds(self, user: str) -> list[str]:
        """Return the names of the user's documents; the caller must not change the list."""
        return self.listing(user, "")

    def listing(self, user: str, folder: str) -> list[str]:
        """Return the names of the user's documents below a folder such as `items/`; other folders are not read.

        The result is the same object until a file is added, removed or replaced; the caller must not change it.
        """
        known = self._listings.setdefault(user, {})
        # Until its first listing, a folder counts as missing.
        before, folders, times = known.setdefault(folder, ([], [folder[:-1]], (0,)))
        fresh = self._times(user, folders)
        if times == fresh:
            return before
        now = self.environment.clock.time_ns()
        found, below = listing_of(self.files, self.folder(user), folder)
        # The times of new folders are unknown, and one that changed just now may change again with the same time.
        is_known = below == folders and all(is_settled(when, now) for when in fresh)
        known[folder] = found, below, fresh if is_known else None
        return found

    def _times(self, user: str, folders: Sequence[str]) -> tuple[int, ...]:
        # Recovery may bring back a document.
        place, time_of = self._recovered.get(user) or self._opened(user), self.files.folder_time
        return tuple([time_of(f"{place}{folder}") for folder in folders])

    def users(self) -> list[str]:
        """Return all user ids that have a document, sorted, by listing names.

        Only a user with an unfinished forget job, or with a history and no document, is opened. An unreadable folder
        is skipped with a warning, which the next call does not repeat.
        """
        base = str(self.base_path)
        found: set[str] = set()
        problems: set[str] = set()
        for entry in self.folders():
            name = entry.name
            try:
                user = decode_folder(name) or user_of(self.files, self.base_path / name)
                if user is None:
                    continue
                place = f"{base}/{name}"
                if self.files.exists(f"{place}/{JOB_NAME}"):
                    # Finish the forget job here: the user may never be opened again.
                    self.reopen(user)
                    self._open(user)
                # If the folder has any other name, the user may have a second folder; `folder` refuses some links.
                is_only = (user != name or is_canonical(name)) and not entry.is_symlink()
                if (
                    (is_only and self.files.exists(f"{place}/{_USUAL}"))
                    or kinds_in(self.files, self.folder(user))
                    # A killed process may have logged the first document, and not published it.
                    or (self.files.exists(f"{place}/history") and self.kinds(user))
                ):
                    found.add(user)
            except DiaryError as error:
                problems.add(str(error))
            except OSError as error:
                reason = f"cannot be read ({error.strerror}). {system_remedy(error)}".rstrip()
                problems.add(f"{base}/{name}: {reason}")  # not the file, which is an internal one
        for each in sorted(problems - self._skipped):
            tell(_logger, f"a user is skipped: {each}")
        self._skipped = problems
        return sorted(found)

    # Writing

    def commit(self, user: str, commit: Commit) -> dict[str, FileToken]:
        """Store a transaction, then merge the edits that it displaced; the caller holds the user's lock."""
        tokens, displaced = self._stored(user, commit)
        if displaced:
            try:
                self._merge_displaced(user, displaced)
            except (OSError, DiaryError) as error:
                _logger.warning(
                    "a hand edit could not be merged yet; the next write merges it: %s", error
                )
        return tokens

    def _stored(self, user: str, commit: Commit) -> tuple[dict[str, FileToken], list[str]]:
        """Store a transaction; return the tokens of its files, and the names of files with displaced edits."""
        folder, records = str(self.folder(user)), commit.records
        seq = next_sequence(records[-1] if records else None) - 1
        interval = self.environment.checkpoint_interval

        staging = Staging(self.files, folder, commit, seq)
        try:
            synced = self._names(user)
            tail = self._tails.of(user)
            # The stored record, because `Tail.lost` may be in another window.
            if records and opens_window(next_sequence(tail and tail.record) - 1, seq, interval):
                self.settle(user)
            _check_expected(self.files, folder, commit, tail)
            staging.stage(sync=self._sync)
        except BaseException as error:
            staging.drop()
            if isinstance(error, OSError):
                raise _write_error(error, folder) from error
            raise
        if records:
            records = [stamped(text, synced.boot) for text in records]
            history, known = f"{folder}/history", synced.segment
            try:
                tail = append_records(
                    self.environment, history, tail, records, sync=self._sync, known=known
                )
            except OSError as error:
                staging.drop()
                if not isinstance(error, FileExistsError):
                    raise _write_error(error, folder) from error
                self._tails.drop(user)
                raise HandEditConflict.changed(str(error.filename)) from error
            except BackendError:
                # The next open determines whether history has the records, and needs the staged files.
                self.reopen(user)
                raise
            if self._sync:
                synced.segment = tail.segment
            self._tails.keep(user, tail)
        new = {
            kind
            for kind in commit.contents
            if commit.replaces_save or kind not in synced.kinds or commit.expected.get(kind) is None
        }
        tokens = self._publish(user, folder, staging, new)
        # Readers of a new user need no lock: there is nothing to recover.
        self._recovered[user] = f"{folder}/"
        for kind in commit.fingerprints.keys() - tokens.keys():
            _show_new_version(self.files, f"{folder}/{kind}.toml")
        return tokens, staging.displaced(tokens)

    def _publish(
        self, user: str, folder: str, staging: Staging, new: set[str]
    ) -> dict[str, FileToken]:
        """Publish the staged files; sync the names of the `new` documents."""
        try:
            tokens = staging.publish()
            if self._sync and new:
                self._names(user).sync(new)
        except (OSError, BackendError) as error:
            self._recovered.pop(user, None)
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise CommittedUnpublished(
                f"{failed_path(error, folder)}: the change is stored in history, but the file"
                f" could not be replaced ({reason}). It is replaced when the user is opened next."
            ) from error
        return tokens

    # Hidden documents

    def hidden(self, user: str, kind: str) -> str:
        """Return the text of a hidden document; "" if there is none."""
        return self._hidden.read(user, kind)

    def change_hidden(
        self, user: str, kind: str, change: Callable[[str, int], str], *, is_locked: bool = False
    ) -> None:
        """Replace a hidden document atomically; "" removes it."""
        with nullcontext() if is_locked else self._locks.hold(user, LOCK_TIMEOUT):
            before = self._hidden.read(user, kind)
            fresh = change(before, self.epoch(user))
            if fresh != before:
                try:
                    self._hidden.write(user, kind, fresh, sync=self._sync)
                except OSError as error:
                    remedy = "Check free space and permissions."
                    raise file_error(self.base_path, "cannot be written", error, remedy) from error

    def holders(self, kind: str) -> list[str]:
        """Return the ids of the users with a hidden document, sorted."""
        return self._hidden.users(kind)

    # Removal

    def rewrite(self, user: str, rewrite: Rewrite) -> dict[str, str]:
        """Store a redaction of all files, including those of background writers; the caller holds the user's lock."""
        return forget(self, user, rewrite)

    def settle(self, user: str) -> None:
        """Write a checkpoint: sync all documents changed since the last one; the caller holds the user's lock.

        Raises:
            OSError, BackendError: Some documents are not on disk.
        """
        if self._sync:
            settle(self.environment, self.folder(user), self._names(user))

    def prune(self, user: str, seq: int, snapshot: str) -> None:
        """Replace all history up to transaction `seq` by a snapshot; the caller holds the user's lock."""
        self._tails.of(user)  # truncates a torn tail
        # Without a checkpoint, recovery could need the dropped records to restore documents.
        self.settle(user)
        try:
            prune(self.files, self.folder(user) / "history", seq, snapshot)
        except OSError as error:
            remedy = "The remaining history is consistent. Check free space and permissions."
            raise file_error(self.folder(user), "cannot be written", error, remedy) from error
        finally:
            self._synced.pop(user, None)

    def erase(self, user: str, kind: str) -> None:
        """Remove a document if it exists; a link is removed, never followed. The caller holds the user's lock."""
        path = self._file(user, kind)
        try:
            if check_parent(self.files, str(self.folder(user)), kind):
                self.files.discard(path)
                if self._sync and self.files.is_folder(path.parent):
                    self.files.sync_folder(path.parent)
        except OSError as error:
            raise file_error(path, "cannot be removed", error) from error


def _check_expected(files: FileSystem, folder: str, commit: Commit, tail: Tail | None) -> None:
    continues = not commit.records or (
        sequence_of(commit.records[0]) == next_sequence(tail and tail.last)
    )
    # A copied history may begin with any number, but its user has no documents yet.
    if not continues and (tail or kinds_in(files, Path(folder))):
        raise HandEditConflict.changed(f"{folder}/history")
    for kind, expected in commit.expected.items():
        place = f"{folder}/{checked_kind(kind)}.toml"
        if files.token(place) != expected:
            raise HandEditConflict.changed(place)


def _show_new_version(files: FileSystem, path: str) -> None:
    """Update the change time of a hand-edited file after a commit, because readers use the file status as its version.

    The other times stay unchanged, because programs use them to detect a save.
    """
    with suppress(OSError):  # just removed, a link, or another owner's file
        descriptor = files.open(path, READING)
        try:
            files.set_mode(descriptor, stat.S_IMODE(files.fstat(descriptor).st_mode))
        finally:
            files.close(descriptor)


def _write_error(error: OSError, folder: str) -> BackendError:
    check = "Check free space and permissions."
    if isinstance(error, FileNotFoundError):
        check = "If the folder is a link, create the folder that it names, or mount its disk."
    return file_error(folder, "cannot be written", error, f"Nothing was changed. {check}")
