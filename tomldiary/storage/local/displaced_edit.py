"""Displaced edits: hand edits that an exchange has moved to the staged file of a write.

A program may save a document between a writer's last check and the exchange. Then our version is published, and
the edit is in the staged file. The exchange is not undone: another program may have read our version meanwhile, and
would overwrite the edit. The engine merges the edit with history, and the result is logged and published. The
process that exchanged the files does this. After a crash, the next process that holds the user's lock does it.

An edit that cannot be merged is restored as the document: it is half saved, or does not parse.
"""

from __future__ import annotations

import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, Conflict, DocumentError
from tomldiary.history.record import HistoryIndex
from tomldiary.history.timeline import Timeline
from tomldiary.storage.local.log import read_records
from tomldiary.storage.local.publish import is_being_saved, take_back, target_of
from tomldiary.storage.protocol import Commit, DisplacedEdit, Merge, Stored
from tomldiary.toml.document import Document, digest
from tomldiary.toml.parse import MAX_BYTES, decode_utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tomldiary.storage.environment import Environment
    from tomldiary.storage.files import FileSystem

_ATTEMPTS = 20
_IN_A_ROW = 20


def history_of(files: FileSystem, folder: Path) -> Timeline:
    """Return a user's history without opening the user; the caller holds the user's lock."""
    return Timeline(_Folder(files, folder), "")


class _Folder:
    """The history of one user, read without opening the user: the open would wait for the held lock."""

    def __init__(self, files: FileSystem, folder: Path) -> None:
        self._files = files
        self._folder = folder

    def records(self, _user: str) -> Iterator[str]:
        """Yield the texts of all history records, newest first."""
        return read_records(self._files, self._folder / "history")

    def place(self, _user: str, kind: str) -> str:
        """Return the path of a document's file."""
        return str(self._folder / f"{kind}.toml")


def merge_displaced_edits(
    env: Environment,
    folder: Path,
    names: Sequence[str],
    merge: Merge,
    store: Callable[[Commit], tuple[object, Sequence[str]]],
) -> None:
    """Merge and log displaced edits; the caller holds the user's lock.

    A half-saved edit stays for the next open if a newer hand edit prevents its restoration. So does an edit after
    twenty further displaced edits.

    Args:
        env: The file system and the clock.
        folder: The user's folder.
        names: The names of the staged files, in the order of staging.
        merge: Returns the transaction that logs an edit.
        store: Stores a transaction; the second item of its result names the files of further displaced edits.

    Raises:
        OSError, BackendError: Some edits are still in their staged files.
    """
    waiting = list(names)
    for _ in range(len(waiting) + _IN_A_ROW):
        if waiting:
            _merge_one(
                env, folder, waiting.pop(0), merge, lambda commit: waiting.extend(store(commit)[1])
            )


def _merge_one(
    env: Environment, folder: Path, name: str, merge: Merge, log: Callable[[Commit], None]
) -> None:
    files = env.files
    path, kind = str(folder / name), target_of(name).removesuffix(".toml")
    for _ in range(_ATTEMPTS):
        standing = _standing(files, folder, kind)
        try:
            commit = merge(_read(env, folder, kind, path, standing))
            if commit is not None:
                log(commit)
        except Conflict:
            continue  # another program has saved the document again
        except DocumentError:
            if standing is not None:
                take_back(files, path, str(folder / f"{kind}.toml"), standing.token)
                continue  # the staged file may hold a newer edit now
            if is_being_saved(env, path):
                return
        except FileNotFoundError:
            return
        files.unlink(path)
        return


def _standing(files: FileSystem, folder: Path, kind: str) -> Stored | None:
    """Return the published document if it is the version that history ends at."""
    with suppress(BackendError, DocumentError):  # the document is a hand edit that cannot be read
        found = files.read_file(folder / f"{kind}.toml", most=MAX_BYTES)
        last = HistoryIndex(_Folder(files, folder), "").of(kind)
        if found is not None and last is not None:
            text = decode_utf8(found[0])
            if digest(text) == last.result:
                Document.parse(text)
                return Stored(text, found[1])
    return None


def _read(
    env: Environment, folder: Path, kind: str, path: str, standing: Stored | None
) -> DisplacedEdit:
    """Return a displaced edit.

    Raises:
        FileNotFoundError: The staged file does not exist.
        DocumentError: The edit is half saved, or cannot be read.
    """
    files = env.files
    history = _Folder(files, folder)
    place = history.place("", kind)
    if not stat.S_ISREG(files.lstat(path).st_mode) or is_being_saved(env, path):
        raise DocumentError("is not a file that another program has finished writing", path=place)
    found = files.read_file(path, most=MAX_BYTES)
    if found is None:
        raise FileNotFoundError(path)
    # The age of the file is irrelevant: the check above ensures that it is complete.
    saved = Stored(decode_utf8(found[0], path=place), None)
    # A later hand edit names the version that its editor read, so history suffices to merge it.
    token = standing.token if standing is not None else files.token(place)
    return DisplacedEdit(kind, saved, standing, token, history)
