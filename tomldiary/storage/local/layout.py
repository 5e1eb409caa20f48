"""The folders of users: who owns them, and which documents and other files are in them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from tomldiary.errors import DiaryError, DocumentError
from tomldiary.identifiers.user_ids import decode_folder
from tomldiary.storage.files import file_error
from tomldiary.toml.parse import decode_utf8, parse_toml
from tomldiary.toml.values import render_value

if TYPE_CHECKING:
    import os
    from collections.abc import Collection
    from pathlib import Path

    from tomldiary.storage.files import FileSystem

SYSTEM = ".tomldiary"
"""The folder next to the users' folders, for locks, journals, fencing tokens and derived data."""
KEY_NAME = "epochs.key"
"""The file of the system folder with the random key of fencing tokens."""
JOB_PREFIX = ".forgetting"
"""The prefix of the names of all files of a forget job."""
JOB_NAME = f"{JOB_PREFIX}.toml"
"""The file that describes a forget job."""
OWNER_NAME = "owner.toml"
"""The file with the user id, for folders whose name cannot contain it."""
HISTORY = "history"
"""The folder of the history in a user's folder."""
SUFFIX = ".toml"
LONGEST_KIND = 180
"""The maximum number of characters of a document's name, because its staged name must fit into 255 bytes."""
KIND = re.compile(
    rf"(?=.{{1,{LONGEST_KIND}}}\Z)[a-z0-9_][a-z0-9_.%=~-]*(/[a-z0-9_%~-][a-z0-9_.%=~-]*)*"
)
"""The names that documents may have, except those that are reserved."""
SEGMENT = re.compile(r"\d{4}-\d{2}-\d{3,}\.toml", re.ASCII)
"""The names of segments in `history/`, such as "2026-11-001.toml"."""


def kinds_in(files: FileSystem, folder: Path) -> list[str]:
    """Return the names of all documents of a user's folder, sorted; links are not followed.

    Raises:
        BackendError: The folder cannot be listed.
    """
    return listing_of(files, folder, "")[0]


def listing_of(files: FileSystem, folder: Path, below: str) -> tuple[list[str], list[str]]:
    """Return the documents and the folders below a subfolder of a user's folder, sorted; links are not followed.

    Args:
        files: Makes the file operations.
        folder: The user's folder.
        below: The subfolder, such as `items/`; "" is the whole folder.

    Raises:
        BackendError: The folder cannot be listed.
    """
    names, folders = _names_in(files, folder, below)
    return [name for name in names if KIND.fullmatch(name)], folders


def has_users_only(names: Collection[str]) -> bool:
    """Return whether a folder with these names, one of which is `SYSTEM`, is a memory instead of the folder of a user."""
    return HISTORY not in names and not any(name.endswith(SUFFIX) for name in names)


def strays_in(files: FileSystem, folder: Path) -> list[str]:
    """Return the TOML files whose names no document and no segment can have, such as copies that a person made.

    Hidden ones count, because JupyterLab's editor copies what it saves into `.ipynb_checkpoints/`.

    Raises:
        BackendError: The folder cannot be listed.
    """
    skipped = (JOB_PREFIX, "._")  # macOS keeps attributes in `._preferences.toml`, and no text
    names, _ = _names_in(files, folder, skipped=skipped)
    documents = [f"{name}{SUFFIX}" for name in names if KIND.fullmatch(name) is None]
    names, _ = _names_in(files, folder, f"{HISTORY}/", skipped=skipped)
    history = [f"{name}{SUFFIX}" for name in names]
    return documents + [
        path for path in history if not SEGMENT.fullmatch(path.removeprefix(f"{HISTORY}/"))
    ]


def _names_in(
    files: FileSystem, folder: Path, below: str = "", *, skipped: str | tuple[str, ...] = "."
) -> tuple[list[str], list[str]]:
    """Return the names of the TOML files without their suffix, and the folders; names with a prefix are skipped."""
    found: list[str] = []
    folders: list[str] = []
    top = f"{folder}/{below}".rstrip("/")
    waiting = [(below, top)]
    while waiting:
        prefix, place = waiting.pop()
        folders.append(prefix[:-1])
        try:
            is_link = bool(below) and place == top and files.is_link(top)
            entries = [] if is_link else list(files.scandir(place))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise file_error(place, "cannot be listed", error) from error
        if not prefix:
            names = {entry.name for entry in entries}
            if SYSTEM in names and has_users_only(names):
                return [], [""]
        for entry in entries:
            if entry.name.startswith(skipped):
                continue
            name = f"{prefix}{entry.name}"
            if name.endswith(SUFFIX) and _is_file(entry):
                if name != OWNER_NAME:
                    found.append(name.removesuffix(SUFFIX))
            elif entry.is_dir(follow_symlinks=False) and name != HISTORY:
                waiting.append((f"{name}/", entry.path))
    return sorted(found), sorted(folders)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError as error:
        if entry.is_symlink():
            return False  # its target cannot be inspected
        raise file_error(entry.path, "cannot be inspected", error) from error


# Owners


def user_of(files: FileSystem, folder: Path) -> str | None:
    """Return the user id of a folder, or None if the folder belongs to no user.

    Raises:
        DiaryError: The file with the owner's id cannot be read, or has no valid id.
    """
    decoded = decode_folder(folder.name)
    if decoded is not None:
        return decoded
    path = folder / OWNER_NAME
    owner = files.read_file(path)
    if owner is None:
        return None
    encoded = parse_toml(decode_utf8(owner[0], path=str(path)), path=str(path)).get("user_id")
    try:
        return str(encoded).encode("ascii", "replace").decode("unicode_escape") if encoded else None
    except UnicodeDecodeError as error:
        reason = f"user_id is not valid ({error.reason}). Restore the file from a backup."
        raise DocumentError(reason, path=str(path)) from None


def name_owner(files: FileSystem, user: str, folder: Path, *, sync: bool) -> None:
    """Write the owner file of a folder whose name cannot contain the user id."""
    with suppress(DiaryError):  # torn by a crash
        if user_of(files, folder) == user:
            return
    encoded = user.encode("unicode_escape").decode("ascii")
    text = f"# The id of this folder's owner is too long to be its name.\nuser_id = {render_value(encoded)}\n"
    files.discard(folder / OWNER_NAME)
    files.write_new(str(folder / OWNER_NAME), text.encode(), sync=sync)
