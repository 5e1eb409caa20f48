"""Publishing documents without losing a hand edit that is saved at the same moment.

A plain rename destroys the file it replaces. Where the system can exchange two names atomically (Linux
`renameat2`, macOS `renamex_np`), the displaced file can be checked. If it is not the version that the write
expects, it is a hand edit and is kept, see `displaced_edit`. An exchange is also cheaper on ext4, which by default
flushes a file when it is renamed over another.

Documents are staged as temporary files before their record is appended, and published after it. The document
`episodes/2026-11` is the file `episodes/2026-11.toml`. Its staged file is at the top of the user's folder, where recovery
finds all staged files.

A read lease detects that another program is saving a file, and delays new writers. The text alone cannot show this,
as half a document may also parse. An editor that pauses during a save has the file open for writing. Linux refuses a
read lease on such a file. A program that opens a leased file for writing waits until the lease is released (fcntl(2),
"Leases"). On other systems no writer is detected, and no program waits.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
import stat
from contextlib import closing, suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, IdentifierError
from tomldiary.storage.files import (
    OURS,
    READING,
    FileSystem,
    FileToken,
    file_error,
    is_same,
    token_of,
)
from tomldiary.storage.local.layout import HISTORY, KIND, LONGEST_KIND, OWNER_NAME, SUFFIX
from tomldiary.toml.document import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tomldiary.storage.environment import Environment
    from tomldiary.storage.protocol import Commit

STAGED = ".staged-"
"""The prefix of the names of staged files."""
_MARK = 8  # digits of the fingerprint in the name of a staged file
_STAGED = re.compile(re.escape(STAGED) + r"\d+-(\d+)\.([0-9a-f]{8})\.(\d+)-")
_UNAVAILABLE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EAGAIN}
"""Errors of opening a file that was just removed, became a link, or is leased by another program."""
_LONGEST = 60.0  # seconds; a program may keep a file open for writing without saving it
_REPLACING = 1.0  # seconds; some editors remove the old file before they write the new one


# Names


def checked_kind(kind: str) -> str:
    """Return `kind` if it is a valid document name.

    Raises:
        IdentifierError: The name is invalid, or is reserved in the user's folder.
    """
    if KIND.fullmatch(kind) is None:
        raise IdentifierError(
            f"{kind!r} cannot name a document. Use lower-case letters, digits, '-', '_' and '/', at most"
            f" {LONGEST_KIND} characters."
        )
    if f"{kind}{SUFFIX}" == OWNER_NAME or kind.split("/", 1)[0] == HISTORY:
        raise IdentifierError(
            f"{kind!r} cannot name a document: the name is reserved. Use another name."
        )
    return kind


def staged_path(folder: str | Path, kind: str, data: bytes, seq: int, digest: str = "") -> str:
    """Return a new path in a user's folder for a staged document.

    Args:
        folder: The user's folder.
        kind: The document's name.
        data: The content.
        seq: The number of its transaction.
        digest: The fingerprint of the content, if known.
    """
    mark = (digest or fingerprint(data))[:_MARK]
    name = kind.replace("%", "%25").replace("/", "%2f")
    return f"{folder}/{STAGED}{os.getpid()}-{seq}.{mark}.{next(_numbers())}-{name}.tmp"


@lru_cache(maxsize=1)
def _numbers() -> itertools.count[int]:
    # Process ids repeat, in a container after each restart: a random start avoids names that a crash left.
    return itertools.count(secrets.randbits(16))


def staged_files(files: FileSystem, folder: Path, names: Iterable[str]) -> list[str]:
    """Return the names of staged files among the names in a user's folder, in the order of their transactions."""
    found = [
        name
        for name in names
        if name.startswith(STAGED)
        and _is_for_document(name)
        # A folder or a pipe is neither a staged document nor a displaced edit.
        and stat.S_IFMT(files.mode(folder / name)) in {stat.S_IFREG, stat.S_IFLNK}
    ]
    return sorted(found, key=_order)


def transaction_of(name: str) -> int:
    """Return the transaction number of a staged file."""
    return _order(name)[0]


def _order(name: str) -> tuple[int, int]:
    found = _STAGED.match(name)
    return (int(found[1]), int(found[3])) if found is not None else (0, 0)


def is_as_staged(name: str, data: bytes, newest: int) -> bool:
    """Return whether a staged file cannot hold a displaced edit: its content is as staged, or was never exchanged.

    Args:
        name: The name of the file.
        data: The content of the file.
        newest: The last transaction in history; files of a later transaction were never exchanged.
    """
    found = _STAGED.match(name)
    if found is None:
        return True
    return int(found[1]) > newest or fingerprint(data)[:_MARK] == found[2]


def target_of(staged: str) -> str:
    """Return the target path of a staged file, relative to the user's folder."""
    name = staged.removesuffix(".tmp").split("-", 3)[-1]
    return f"{name.replace('%2f', '/').replace('%25', '%')}{SUFFIX}"


def _is_for_document(staged: str) -> bool:
    try:
        checked_kind(target_of(staged).removesuffix(SUFFIX))
    except IdentifierError:
        return False  # a file of another program
    return True


def make_parent(files: FileSystem, folder: str, kind: str, *, sync: bool) -> None:
    """Create the parent folders of a document.

    Raises:
        BackendError: One of them is a link.
    """
    if not check_parent(files, folder, kind):
        files.make_folder(f"{folder}/{kind}".rpartition("/")[0], sync=sync)


def check_parent(files: FileSystem, folder: str, kind: str) -> bool:
    """Check that no parent folder of a document is a link; return False if one is missing.

    Raises:
        BackendError: One of them is a link, or cannot be read.
    """
    place = folder
    for part in kind.split("/")[:-1]:
        place = f"{place}/{part}"
        try:
            mode = files.lstat(place).st_mode
        except FileNotFoundError:
            return False
        except OSError as error:
            raise file_error(place, "cannot be read", error) from error
        if stat.S_ISLNK(mode):
            raise BackendError(f"{place}: is a link. Nothing was changed. Put a folder there.")
    return True


# Exchanging


def put_in_place(
    files: FileSystem,
    temp: str,
    target: str,
    expected: FileToken | None,
    written: FileToken | None = None,
) -> FileToken | None:
    """Publish the file `temp` as `target` and return its token; None if a concurrent hand edit was found.

    Args:
        files: Makes the file operations.
        temp: The new version. Afterwards the file does not exist, or is a displaced edit: see `displaced_edit`.
        target: The file.
        expected: The version to replace; None if there was no file.
        written: The token that `write_new` returned for the new version, if known.

    Raises:
        FileNotFoundError: The new version no longer exists.
        OSError: Nothing was published.
    """
    ours = written or files.token(temp)
    if expected is None or not files.has_exchange:
        if expected is not None and not is_same(files.token(target), expected):
            files.unlink(temp)
            return None
        files.replace(temp, target)
        return _token_of(files, target, ours)
    try:
        lease = Lease(files, target)
    except OSError as error:
        if error.errno not in _UNAVAILABLE:
            raise
        files.unlink(temp)
        return None
    with closing(lease):
        if lease.has_writer or not is_same(lease.token, expected):
            files.unlink(temp)
            return None
        if lease.is_read_only:  # for editors; a folder's owner may replace such a file
            with suppress(OSError):
                files.chmod(temp, 0o400)
        return _exchanged(files, temp, target, ours, lease)


def _exchanged(
    files: FileSystem, temp: str, target: str, ours: FileToken | None, lease: Lease
) -> FileToken | None:
    """Exchange the two files, unless another program is saving; the lease delays new writers meanwhile."""
    try:
        is_exchanged = files.exchange(temp, target)
    except FileNotFoundError:
        files.unlink(temp)
        return None  # the target was just removed, by a deletion or by an editor that writes a new file
    if not is_exchanged:
        files.replace(temp, target)
        return _token_of(files, target, ours)
    if not is_same(files.token(temp), lease.token):
        return None  # there was a concurrent hand edit
    if not lease.is_wanted():
        files.unlink(temp)
        return _token_of(files, target, ours)
    # A program that begins a save waits for the old file: restore its name, or the save would be lost.
    take_back(files, temp, target, ours)
    return None


def take_back(files: FileSystem, temp: str, target: str, ours: FileToken | None) -> None:
    """Restore the file at `temp` as `target`; our version is then removed, unless it has a hand edit.

    Raises:
        OSError: Nothing was changed.
    """
    try:
        files.exchange(temp, target)
        lease = Lease(files, temp)  # other programs do not know this name
    except FileNotFoundError:
        return  # the target was just removed: see `_exchanged`
    with closing(lease):
        if is_same(lease.token, ours) and not lease.has_writer and not lease.is_wanted():
            files.unlink(temp)


def _token_of(files: FileSystem, target: str, ours: FileToken | None) -> FileToken | None:
    """Return the token of our file; None if another program has already saved over it."""
    token = files.token(target)
    return token if is_same(token, ours) else None


class Staging:
    """The staged documents of one transaction; the caller holds the user's lock.

    Args:
        files: Makes the file operations.
        folder: The user's folder.
        commit: The transaction.
        seq: The sequence number of its last record.
    """

    def __init__(self, files: FileSystem, folder: str, commit: Commit, seq: int) -> None:
        self._files = files
        self._folder = folder
        self._commit = commit
        self._paths = {
            kind: staged_path(folder, kind, content, seq, commit.fingerprints.get(kind, ""))
            for kind, content in commit.contents.items()
        }
        self._written: dict[str, FileToken] = {}

    def stage(self, *, sync: bool) -> None:
        """Write the documents to temporary files.

        With `sync`, new folders are synced. The documents are synced only if the commit has no history record.

        Raises:
            OSError, BackendError: A document could not be written.
        """
        is_only_copy = not self._commit.records  # no history could restore it
        for kind, path in self._paths.items():
            if "/" in kind:
                make_parent(self._files, self._folder, kind, sync=sync)
            self._written[kind] = self._files.write_new(
                path, self._commit.contents[kind], sync=sync and is_only_copy
            )

    def drop(self) -> None:
        """Remove the staged files."""
        for path in self._paths.values():
            with suppress(OSError):  # the next recovery removes it
                self._files.unlink(path)

    def publish(self) -> dict[str, FileToken]:
        """Publish all documents and return their tokens; a document with a concurrent hand edit has none.

        Raises:
            OSError: Some documents are not published.
        """
        tokens: dict[str, FileToken] = {}
        for kind in self._paths:
            token = put_in_place(
                self._files, self._paths[kind], f"{self._folder}/{kind}.toml",
                self._commit.expected.get(kind), self._written[kind],
            )  # fmt: skip
            if token is not None:
                tokens[kind] = token
        return tokens

    def displaced(self, tokens: Mapping[str, FileToken]) -> list[str]:
        """Return the names of the files that hold displaced edits; `tokens` is the result of `publish`."""
        found: list[str] = []
        for kind, path in self._paths.items():
            with suppress(OSError):  # the next recovery finds it
                if kind not in tokens and self._files.exists(path):
                    found.append(path[len(self._folder) + 1 :])
        return found


# Read leases


def is_being_saved(env: Environment, path: str) -> bool:
    """Return whether a program has a file open for writing that was changed less than a minute ago.

    A missing file counts as being saved if its folder changed less than a second ago.
    """
    try:
        lease = Lease(env.files, path)
    except FileNotFoundError:
        folder = os.path.dirname(path)  # noqa: PTH120 - paths are strings here
        return 0 <= env.clock.time() - env.files.folder_time(folder) / 1e9 < _REPLACING
    except OSError:
        return False
    lease.close()
    return lease.has_writer and 0 <= env.clock.time() - lease.token[0] / 1e9 < _LONGEST


def has_writer(files: FileSystem, path: str) -> bool:
    """Return whether a program has a file open for writing; False if the system cannot tell."""
    with suppress(OSError), closing(Lease(files, path)) as lease:
        return lease.has_writer
    return False


class Lease:
    """A file under a read lease: programs that open it for writing wait until `close`.

    Raises:
        OSError: The file cannot be opened.
    """

    __slots__ = ("_descriptor", "_files", "has_writer", "is_leased", "is_read_only", "token")

    token: FileToken
    """The version of the file."""
    is_read_only: bool
    """Whether its owner may not write to it."""
    has_writer: bool
    """Whether another program already had the file open for writing."""
    is_leased: bool
    """Whether the lease was granted. The system breaks a lease if a writer has waited too long."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self.is_leased, self._descriptor = False, files.open(path, READING)
        try:
            refusal = files.take_lease(self._descriptor) if files.has_leases else errno.ENOSYS
            self.is_leased = refusal == 0
            # Read after the lease: an earlier writer has changed the time by now, or prevents the lease.
            found = files.fstat(self._descriptor)
            self.token, self.is_read_only = token_of(found), not found.st_mode & stat.S_IWUSR
            self.has_writer = refusal == errno.EAGAIN and _grants_leases(files, path)
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        """Close the file if the caller was interrupted before it could; programs would wait for the lease."""
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()

    def is_wanted(self) -> bool:
        """Return whether another process is breaking our lease."""
        return self.is_leased and not self._files.keeps_lease(self._descriptor)

    def close(self) -> None:
        """Release the lease and close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if self.is_leased:
                self._files.drop_lease(descriptor)
        finally:
            self._files.close(descriptor)


def _grants_leases(files: FileSystem, path: str) -> bool:
    """Return whether the file system grants leases, as network file systems may refuse all of them."""
    import tempfile  # noqa: PLC0415 - slow to import, and hardly ever needed

    try:
        folder = os.path.dirname(path)  # noqa: PTH120 - paths are strings here
        with tempfile.TemporaryFile(dir=folder) as unused:
            descriptor = os.open(f"/proc/self/fd/{unused.fileno()}", os.O_RDONLY | OURS)
        try:
            return files.take_lease(descriptor) == 0
        finally:
            os.close(descriptor)
    except OSError:
        return False
