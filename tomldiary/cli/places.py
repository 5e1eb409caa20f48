"""Opens the storage at `--path`, and writes files for the commands."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tomldiary.errors import DiaryError, InvalidValue
from tomldiary.storage.files import FileSystem
from tomldiary.storage.local.layout import SYSTEM
from tomldiary.storage.local.publish import put_in_place, take_back
from tomldiary.storage.open import open_backend
from tomldiary.storage.protocol import LocalFolder
from tomldiary.storage.shared.database import without_secrets
from tomldiary.storage.shared.urls import is_shared_url

if TYPE_CHECKING:
    from collections.abc import Collection

    from tomldiary.storage.files import FileToken
    from tomldiary.storage.protocol import Backend

_SAVE_AGE = 2.0  # seconds; longer than the engine waits for a save to be complete
_PARTS = ("schema", "prefix", "database")
"""The options of an address that name a part of the database."""


def folder_at(path: str) -> Path:
    """Return the folder that a backend uses for `path`; a shell leaves a quoted "~" as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path fails where there is no home


def open_storage(path: str, remedy: str = "name another one with --path") -> Backend:
    """Open a database, or a folder that exists.

    Args:
        path: The folder, or the URL of the database.
        remedy: What to do if the folder is missing.

    Raises:
        InvalidValue: The folder does not exist; reading must not create it.
    """
    backend = open_backend(writable(path), None)  # refuses an unknown scheme
    if not is_shared_url(path) and not folder_at(path).is_dir():
        raise InvalidValue(f"there is no such folder; {remedy}", where=path)
    return backend


def unread_users(backend: Backend, listed: Collection[str]) -> list[str]:
    """Return the users that a folder has and its list lacks, because their folders cannot be read."""
    found: list[str] = []
    known = backend.known_users() if isinstance(backend, LocalFolder) else ()
    for user in sorted({*known} - {*listed}):
        try:
            backend.kinds(user)
        except DiaryError:
            found.append(user)
    return found


def writable(path: str) -> str:
    """Return `path` if it is a database, or a folder where a memory can be; the folder may be new.

    Raises:
        InvalidValue: The folder is inside a memory, where each folder is one user.
    """
    if _is_of_one_user(folder_at(path)):
        raise InvalidValue(
            "each folder inside a memory is one user. Name the parent folder, and the user with --user",
            where=path,
        )
    return path


def _is_of_one_user(folder: Path) -> bool:
    """Return whether a folder is inside a memory and is not a memory itself."""
    try:
        return not (folder / SYSTEM).is_dir() and (folder.resolve().parent / SYSTEM).is_dir()
    except FileNotFoundError:  # the current folder was removed, which the backend explains
        return False


def write_new(file: Path, text: str) -> None:
    """Create a file that only its owner can read; if writing fails, no file remains.

    Raises:
        OSError: The file exists or cannot be written; `filename` is its path.
    """
    try:
        FileSystem().write_new(str(file), text.encode(), sync=False)
    except OSError as error:  # a failed write does not name the file
        raise OSError(error.errno, error.strerror, str(file)) from None


def staged(file: Path) -> Path:
    """Return the path of the new text of a file until it replaces the file."""
    return file.with_name(f".{file.name}.new")


def replace_version(file: Path, text: str, fresh: Path, expected: FileToken | None) -> bool:
    """Replace a file atomically; return False if another program has saved it or has it open for writing.

    The new file has a modification time at which the engine considers the save complete.

    Args:
        file: The file.
        text: The new text.
        fresh: The path of the new text until then.
        expected: The version to replace; None replaces any.
    """
    files = FileSystem()
    try:
        fresh.unlink(missing_ok=True)
        write_new(fresh, text)
        # The engine waits before it merges a recent save with fewer entries, because it may be incomplete.
        modified = time.time() - _SAVE_AGE
        os.utime(fresh, (modified, modified))
        ours = files.token(fresh)
        if put_in_place(files, str(fresh), str(file), expected, ours) is not None:
            return True
        if files.exists(fresh):  # the other program saved during the exchange
            take_back(files, str(fresh), str(file), ours)
    except OSError as error:  # name the document, not its staged copy
        raise OSError(error.errno, error.strerror, str(file)) from None
    return False


def replace_file(file: Path, text: str) -> None:
    """Replace a file atomically, whatever its version."""
    replace_version(file, text, staged(file), None)


def shown(path: str) -> str:
    """Return a path for messages: a folder unchanged, a URL with its part of the database and without its password."""
    place, query = without_secrets(path), path.partition("?")[2]
    if place.endswith("…") or "@" in unquote(query) or not is_shared_url(path):
        return place
    parts = [each for each in query.split("&") if each.partition("=")[0] in _PARTS]
    return f"{place}?{'&'.join(parts)}" if parts else place
