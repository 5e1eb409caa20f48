"""A registry of user texts that are stored outside the users' folders, and of the functions that redact them.

A package announces a subfolder of the storage's own folder and the name of a function. The function is imported only
when something is forgotten and the subfolder exists. Therefore any process can finish a forget job, even if it has
never used the package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEAD_LETTERS = ".dead-letters"
"""The name of the hidden document with the turns of a user that could not be applied."""
HOOKS = ".hooks"
"""The name of the hidden document with the hooks' cursors in a user's history."""
QUEUE = ".queue"
"""The name of the hidden document with the turns of a user that wait for a writer; only in shared databases."""
_IN_FOLDERS = "tomldiary.storage.local.hidden:redact"

_functions: dict[str, str] = {}
_hidden: dict[str, str] = {}


def announce_source(folder: str, function: str) -> None:
    """Announce that `folder` contains texts of users.

    Args:
        folder: The name of the subfolder.
        function: `module:function`. It is called with the subfolder's path, the user, the selection as a table, the
            user's new fencing token, and the `FileSystem` to use. It must be safe to call again after a crash.
    """
    _functions[folder] = function


def redact_sources(  # noqa: D417 - see `epoch` in its text
    place: Path, user: str, selection: Mapping[str, Any], epoch: int, files: object
) -> None:
    """Redact a selection of one user in all announced subfolders of `place`.

    `epoch` is the user's new fencing token; texts that were stored with this token stay.

    Args:
        place: The storage's own folder.
        user: The user whose texts are redacted.
        selection: The selection to forget; see `Rewrite.selection`.
        files: The `FileSystem` of the storage.

    Raises:
        OSError: A file could not be written. Call this again.
    """
    for folder, function in _functions.items():
        if (place / folder).is_dir():
            module, _, name = function.partition(":")
            getattr(import_module(module), name)(place / folder, user, selection, epoch, files)


def announce_hidden(kind: str, function: str) -> None:
    """Announce that a hidden document contains texts of its user.

    Args:
        kind: The name of the document.
        function: `module:function`. It is called with the text, the user, the selection as a table, and the user's new
            fencing token. It returns the redacted text.
    """
    _hidden[kind] = function
    announce_source(kind.removeprefix("."), _IN_FOLDERS)


def hidden_kinds() -> list[str]:
    """Return the names of the announced hidden documents, sorted."""
    return sorted(_hidden)


def redact_hidden(kind: str, text: str, user: str, selection: Mapping[str, Any], epoch: int) -> str:
    """Return a hidden document without a selection; "" if the document was not announced, or no text remains."""
    function = _hidden.get(kind)
    if function is None:
        return ""
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)(text, user, selection, epoch)
