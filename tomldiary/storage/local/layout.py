"""Where in a user's folder a document is.

The document `episodes/2026-11` is the file `episodes/2026-11.toml`. While it is being written it is staged at
the top of the folder, so that whoever cleans up after a crash has one place to look.
"""

from __future__ import annotations

import os
import re
import stat
from functools import lru_cache
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, IdentifierError
from tomldiary.runtime.forgettable_cache import let_go_on_forget
from tomldiary.storage.files import make_folder
from tomldiary.toml.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = [
    "JOB_NAME",
    "JOB_PREFIX",
    "OWNER_NAME",
    "STAGED",
    "check_parent",
    "checked_kind",
    "is_as_staged",
    "kinds_in",
    "make_parent",
    "staged_for",
    "staged_in",
    "staged_name",
    "strays_in",
    "target_of",
]

STAGED = ".staged-"
"""What the name of a file that is being written begins with."""
JOB_PREFIX = ".forgetting"
"""What the names of all files begin with that belong to something being forgotten."""
JOB_NAME = f"{JOB_PREFIX}.toml"
"""The file that says what is being forgotten."""
OWNER_NAME = "owner.toml"
"""The file that says whose folder it is, where the folder's name cannot."""
_SUFFIX = ".toml"
_MARK = 8  # digits of a fingerprint that a staged file's name shows
_HISTORY = "history"
_KIND = re.compile(r"[a-z0-9_][a-z0-9_.%=~-]*(/[a-z0-9_%~-][a-z0-9_.%=~-]*)*")
_STAGED = re.compile(re.escape(STAGED) + r"\d+-(\d+)\.([0-9a-f]{8})\.(\d+)-")
_LONGEST = 180
"""Most characters in a document's name: staged, it has to fit into one file name of 255 bytes."""


@let_go_on_forget
@lru_cache(maxsize=4096)
def checked_kind(kind: str) -> str:
    """Return the name of a document if it is one.

    Raises:
        IdentifierError: It is not, or is a name that the folder needs itself.
    """
    if not _can_be_kind(kind):
        raise IdentifierError(
            f"{kind!r} cannot name a document. Use lower-case letters, digits, '-', '_' and '/', at most"
            f" {_LONGEST} characters."
        )
    if f"{kind}{_SUFFIX}" == OWNER_NAME or kind.split("/", 1)[0] == _HISTORY:
        raise IdentifierError(f"{kind!r} cannot name a document: the folder needs it itself.")
    return kind


def staged_name(kind: str, data: bytes, seq: int, number: int, digest: str = "") -> str:
    """Return the name under which a document is staged.

    Args:
        kind: The document's name.
        data: Its content.
        seq: The transaction that it belongs to.
        number: Makes the name this process's only one.
        digest: The content's fingerprint, if it is known.
    """
    mark = (digest or fingerprint(data))[:_MARK]
    return f"{STAGED}{os.getpid()}-{seq}.{mark}.{number}-{_escaped(kind)}.tmp"


def _escaped(kind: str) -> str:
    return kind.replace("%", "%25").replace("/", "%2f")


def staged_in(names: Iterable[str]) -> list[str]:
    """Return the names of staged files among these, in the order of the transactions they belong to."""
    staged = [name for name in names if name.startswith(STAGED) and _is_for_document(name)]
    return sorted(staged, key=_order)


def staged_for(name: str) -> int:
    """Return the number of the transaction that a file was staged for."""
    return _order(name)[0]


def _order(name: str) -> tuple[int, int]:
    found = _STAGED.match(name)
    return (int(found[1]), int(found[3])) if found is not None else (0, 0)


def is_as_staged(name: str, data: bytes, newest: int) -> bool:
    """Tell whether a staged file is still, or not even, what was staged; it is not once it was exchanged.

    Args:
        name: The file's.
        data: Its content.
        newest: The last transaction in history: what belongs to a later one was never exchanged.
    """
    found = _STAGED.match(name)
    if found is None:
        return True
    return int(found[1]) > newest or fingerprint(data)[:_MARK] == found[2]


def target_of(staged: str) -> str:
    """Return the file a staged one is for, relative to the folder."""
    name = staged.removesuffix(".tmp").split("-", 3)[-1]
    return f"{name.replace('%2f', '/').replace('%25', '%')}{_SUFFIX}"


def _is_for_document(staged: str) -> bool:
    try:
        checked_kind(target_of(staged).removesuffix(_SUFFIX))
    except IdentifierError:
        return False  # somebody else's
    return True


@let_go_on_forget
@lru_cache(maxsize=4096)
def _can_be_kind(name: str) -> bool:
    return _KIND.fullmatch(name) is not None and len(name) <= _LONGEST


def kinds_in(folder: Path, below: str = "") -> list[str]:
    """Return the names of all documents in a folder, sorted; links are not followed.

    Args:
        folder: The user's.
        below: A part of it, such as `items/`, and nothing else of it is looked at.

    Raises:
        BackendError: It cannot be listed.
    """
    return [name for name in _names_in(folder, below) if _can_be_kind(name)]


def strays_in(folder: Path) -> list[str]:
    """Return the other TOML files in a folder: copies that people keep there, under names no document can have.

    Raises:
        BackendError: It cannot be listed.
    """
    return [f"{name}{_SUFFIX}" for name in _names_in(folder) if not _can_be_kind(name)]


def _names_in(folder: Path, below: str = "") -> list[str]:
    found: list[str] = []
    top = f"{folder}/{below}".rstrip("/")
    if below and os.path.islink(top):  # noqa: PTH114 - many times
        return found
    waiting = [(below, top)]
    while waiting:
        prefix, place = waiting.pop()
        try:
            entries = list(os.scandir(place))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise BackendError(f"{place}: cannot be listed ({error.strerror}).") from error
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = f"{prefix}{entry.name}"
            if name.endswith(_SUFFIX) and entry.is_file():
                if name != OWNER_NAME:
                    found.append(name.removesuffix(_SUFFIX))
            elif entry.is_dir(follow_symlinks=False) and name != _HISTORY:
                waiting.append((f"{name}/", entry.path))
    return sorted(found)


def make_parent(folder: str, kind: str, *, sync: bool) -> None:
    """Create the folders a document is in.

    Raises:
        BackendError: One of them is a link.
    """
    if not check_parent(folder, kind):
        make_folder(f"{folder}/{kind}".rpartition("/")[0], sync=sync)


def check_parent(folder: str, kind: str) -> bool:
    """See that none of the folders a document is in leads elsewhere; False if one is missing.

    Raises:
        BackendError: One of them is a link.
    """
    place = folder
    for part in kind.split("/")[:-1]:
        place = f"{place}/{part}"
        try:
            mode = os.lstat(place).st_mode
        except FileNotFoundError:
            return False
        if stat.S_ISLNK(mode):
            raise BackendError(f"{place}: is a link. Nothing was changed. Put a folder there.")
    return True
