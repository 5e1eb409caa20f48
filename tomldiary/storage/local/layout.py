"""The folders of users, who owns them, and the paths of documents and staged files in them.

The document `episodes/2026-11` is the file `episodes/2026-11.toml`. Documents are staged at the top of the user's
folder, where recovery finds all staged files.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import stat
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, DiaryError, IdentifierError
from tomldiary.identifiers.user_ids import decode_folder
from tomldiary.storage.protocol import Listing
from tomldiary.toml.document import fingerprint
from tomldiary.toml.parse import decode_utf8, parse_toml
from tomldiary.toml.values import render_value

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tomldiary.storage.files import FileSystem

__all__ = [
    "JOB_NAME",
    "JOB_PREFIX",
    "OWNER_NAME",
    "STAGED",
    "SYSTEM",
    "check_parent",
    "checked_kind",
    "is_as_staged",
    "is_segment",
    "kinds_in",
    "make_parent",
    "name_owner",
    "staged_for",
    "staged_in",
    "staged_name",
    "staged_path",
    "strays_in",
    "target_of",
    "user_of",
]

SYSTEM = ".tomldiary"
"""The folder next to the users' folders, for locks, journals, fencing tokens and derived data."""
STAGED = ".staged-"
"""The prefix of the names of staged files."""
JOB_PREFIX = ".forgetting"
"""The prefix of the names of all files of a forget job."""
JOB_NAME = f"{JOB_PREFIX}.toml"
"""The file that describes a forget job."""
OWNER_NAME = "owner.toml"
"""The file with the user id, for folders whose name cannot contain it."""
_SUFFIX = ".toml"
_MARK = 8  # digits of the fingerprint in the name of a staged file
_HISTORY = "history"
_SEGMENT = re.compile(r"\d{4}-\d{2}-\d{3,}\.toml", re.ASCII)
_KIND = re.compile(r"[a-z0-9_][a-z0-9_.%=~-]*(/[a-z0-9_%~-][a-z0-9_.%=~-]*)*")
_STAGED = re.compile(re.escape(STAGED) + r"\d+-(\d+)\.([0-9a-f]{8})\.(\d+)-")
_LONGEST = 180
"""The maximum number of characters of a document's name, because its staged name must fit into 255 bytes."""


def checked_kind(kind: str) -> str:
    """Return `kind` if it is a valid document name.

    Raises:
        IdentifierError: The name is invalid, or is reserved in the user's folder.
    """
    if not _can_be_kind(kind):
        raise IdentifierError(
            f"{kind!r} cannot name a document. Use lower-case letters, digits, '-', '_' and '/', at most"
            f" {_LONGEST} characters."
        )
    if f"{kind}{_SUFFIX}" == OWNER_NAME or kind.split("/", 1)[0] == _HISTORY:
        raise IdentifierError(
            f"{kind!r} cannot name a document: the name is reserved. Use another name."
        )
    return kind


def staged_name(kind: str, data: bytes, seq: int, number: int, digest: str = "") -> str:
    """Return the name of the staged file for a document.

    Args:
        kind: The document's name.
        data: The content.
        seq: The number of its transaction.
        number: Makes the name unique in this process.
        digest: The fingerprint of the content, if known.
    """
    mark = (digest or fingerprint(data))[:_MARK]
    return f"{STAGED}{os.getpid()}-{seq}.{mark}.{number}-{_escaped(kind)}.tmp"


def staged_path(folder: str | Path, kind: str, data: bytes, seq: int, digest: str = "") -> str:
    """Return a new path in a user's folder for a staged document; see `staged_name`."""
    return f"{folder}/{staged_name(kind, data, seq, next(_numbers()), digest)}"


@lru_cache(maxsize=1)
def _numbers() -> itertools.count[int]:
    # Process ids repeat, in a container after each restart: a random start avoids names that a crash left.
    return itertools.count(secrets.randbits(16))


def _escaped(kind: str) -> str:
    return kind.replace("%", "%25").replace("/", "%2f")


def staged_in(names: Iterable[str]) -> list[str]:
    """Return the names of staged files among `names`, in the order of their transactions."""
    staged = [name for name in names if name.startswith(STAGED) and _is_for_document(name)]
    return sorted(staged, key=_order)


def staged_for(name: str) -> int:
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
    return f"{name.replace('%2f', '/').replace('%25', '%')}{_SUFFIX}"


def _is_for_document(staged: str) -> bool:
    try:
        checked_kind(target_of(staged).removesuffix(_SUFFIX))
    except IdentifierError:
        return False  # a file of another program
    return True


def _can_be_kind(name: str) -> bool:
    return _KIND.fullmatch(name) is not None and len(name) <= _LONGEST


def kinds_in(files: FileSystem, folder: Path) -> list[str]:
    """Return the names of all documents of a user's folder, sorted; links are not followed.

    Raises:
        BackendError: The folder cannot be listed.
    """
    return listing_of(files, folder, "").kinds


def listing_of(files: FileSystem, folder: Path, below: str) -> Listing:
    """Return the documents and folders below a subfolder of a user's folder; links are not followed.

    Args:
        files: Makes the file operations.
        folder: The user's folder.
        below: The subfolder, such as `items/`; "" is the whole folder.

    Raises:
        BackendError: The folder cannot be listed.
    """
    names, folders = _names_in(files, folder, below)
    return Listing([name for name in names if _can_be_kind(name)], folders)


def strays_in(files: FileSystem, folder: Path) -> list[str]:
    """Return the TOML files whose names no document and no segment can have, such as copies that a person made.

    Raises:
        BackendError: The folder cannot be listed.
    """
    documents = [
        f"{name}{_SUFFIX}" for name in _names_in(files, folder)[0] if not _can_be_kind(name)
    ]
    history = [f"{name}{_SUFFIX}" for name in _names_in(files, folder, f"{_HISTORY}/")[0]]
    return documents + [
        path for path in history if not is_segment(path.removeprefix(f"{_HISTORY}/"))
    ]


def is_segment(name: str) -> bool:
    """Return whether a file of this name in `history/` is a segment, such as "2026-11-001.toml"."""
    return _SEGMENT.fullmatch(name) is not None


def _names_in(files: FileSystem, folder: Path, below: str = "") -> tuple[list[str], list[str]]:
    """Return the names of the TOML files without their suffix, and the folders."""
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
            raise BackendError(
                f"{place}: cannot be listed ({error.strerror}). Check the permissions."
            ) from error
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = f"{prefix}{entry.name}"
            if name.endswith(_SUFFIX) and entry.is_file():
                if name != OWNER_NAME:
                    found.append(name.removesuffix(_SUFFIX))
            elif entry.is_dir(follow_symlinks=False) and name != _HISTORY:
                waiting.append((f"{name}/", entry.path))
    return sorted(found), sorted(folders)


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
        BackendError: One of them is a link.
    """
    place = folder
    for part in kind.split("/")[:-1]:
        place = f"{place}/{part}"
        try:
            mode = files.lstat(place).st_mode
        except FileNotFoundError:
            return False
        if stat.S_ISLNK(mode):
            raise BackendError(f"{place}: is a link. Nothing was changed. Put a folder there.")
    return True


# Owners


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


def name_owner(files: FileSystem, user: str, folder: Path, *, sync: bool) -> None:
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
