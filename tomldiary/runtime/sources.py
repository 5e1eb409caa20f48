"""The user texts that are stored outside the users' folders, and the functions that redact them.

A function is imported only when something is forgotten and its texts may exist. Therefore any process can finish a
forget job, even if it has never used the package of the function.
"""

from __future__ import annotations

from pkgutil import resolve_name
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

HIDDEN = {
    DEAD_LETTERS: "tomldiary.writer.shared.turns:redacted",
    HOOKS: "tomldiary.hooks.delivery:redacted",
    QUEUE: "tomldiary.writer.shared.turns:redacted",
}
"""The hidden documents with texts of their user, and the functions that redact them.

A function is called with the text, the user, the selection as a table, and the user's new fencing token. It returns the
redacted text.
"""
_FOLDERS = {
    "journal": "tomldiary.writer.journals:forget_turns",
    **{kind.removeprefix("."): "tomldiary.storage.local.hidden:redact" for kind in HIDDEN},
}
"""The subfolders of a storage's own folder with texts of users, and the functions that redact them.

A function is called with the subfolder's path, the user, the selection as a table, the user's new fencing token, and the
`FileSystem` to use. It must be safe to call again after a crash.
"""


def redact_sources(  # noqa: D417 - see `epoch` in its text
    place: Path, user: str, selection: Mapping[str, Any], epoch: int, files: object
) -> None:
    """Redact a selection of one user in all subfolders of `place` with texts of users.

    `epoch` is the user's new fencing token; texts that were stored with this token stay.

    Args:
        place: The storage's own folder.
        user: The user whose texts are redacted.
        selection: The selection to forget; see `Rewrite.selection`.
        files: The `FileSystem` of the storage.

    Raises:
        OSError: A file could not be written. Call this again.
    """
    for folder, function in _FOLDERS.items():
        if (place / folder).is_dir():
            resolve_name(function)(place / folder, user, selection, epoch, files)


def redact_hidden(kind: str, user: str, selection: Mapping[str, Any], text: str, epoch: int) -> str:
    """Return a hidden document without a selection; "" if `HIDDEN` does not have it, or no text remains."""
    return resolve_name(HIDDEN[kind])(text, user, selection, epoch) if kind in HIDDEN else ""
