"""Hidden documents of users, as files outside the users' folders.

    .tomldiary/hooks/alice.toml     the hidden document `.hooks` of alice

The first line names the user, because the name of a file may be a hash of a long id. If a person has damaged the line,
it is part of the text, so that nothing is lost or missed by an erasure. A file is replaced atomically.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tomldiary.identifiers.user_ids import decode_folder, encode_folder
from tomldiary.runtime.sources import redact_hidden
from tomldiary.storage.files import unfinished
from tomldiary.storage.local.layout import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tomldiary.storage.files import FileSystem

_OWNER = "# user: "


class HiddenFiles:
    """The hidden documents of all users; the caller of `write` holds the user's lock.

    Args:
        files: Makes the file operations.
        root: The folder with one subfolder for each kind of hidden document.
    """

    def __init__(self, files: FileSystem, root: Path) -> None:
        self._files = files
        self._root = root

    def _path(self, user: str, kind: str) -> Path:
        return self._root / kind.removeprefix(".") / f"{encode_folder(user)}{SUFFIX}"

    def unfinished(self, user: str, kind: str) -> Path:
        """Return the temporary file of an unfinished write."""
        return unfinished(self._path(user, kind))

    def read(self, user: str, kind: str) -> str:
        """Return the text; "" if there is no file, or one with another user's name in it."""
        path = self._path(user, kind)
        found = self._files.read_file(path)
        owner, text = _parsed(found[0], path) if found is not None else (None, "")
        return text if owner in {user, None} else ""

    def write(self, user: str, kind: str, text: str, *, sync: bool) -> None:
        """Replace a file atomically; "" removes it. With `sync`, a power cut cannot restore an older text.

        Raises:
            OSError: The file could not be replaced, or the change could not be synced.
        """
        path = self._path(user, kind)
        self._files.make_folder(path.parent, sync=sync)
        data = f"{_OWNER}{json.dumps(user)}\n{text}".encode() if text else None
        self._files.write_over(path, data, sync=sync)

    def users(self, kind: str) -> list[str]:
        """Return the ids of the users with a file, sorted."""
        folder = self._root / kind.removeprefix(".")
        found: set[str] = set()
        for path in self._files.paths_in(folder):
            if path.name.endswith(SUFFIX) and not path.name.startswith("."):
                content = self._files.read_file(path)
                owner = _parsed(content[0], path)[0] if content is not None else None
                found |= {owner} if owner is not None else set()
        return sorted(found)


def _parsed(data: bytes, path: Path) -> tuple[str | None, str]:
    """Return the user and the text of a file; None if its first line is damaged, and its name is a hash."""
    text = data.decode("utf-8", "replace")
    head, _, rest = text.partition("\n")
    with suppress(ValueError):
        owner: object = json.loads(head.removeprefix(_OWNER)) if head.startswith(_OWNER) else None
        if isinstance(owner, str):
            return owner, rest
    return decode_folder(path.name.removesuffix(SUFFIX)), text


def redact(
    folder: Path, user: str, selection: Mapping[str, Any], epoch: int, files: FileSystem
) -> None:
    """Redact a selection in a user's hidden document; `runtime.sources` calls it with the folder of a kind.

    Raises:
        OSError: The file could not be written. Call this again.
    """
    kind = f".{folder.name}"
    hidden = HiddenFiles(files, folder.parent)
    text = hidden.read(user, kind)
    fresh = redact_hidden(kind, user, selection, text, epoch)
    # A process that was killed during a write may have left a later text beside the file.
    if fresh != text or files.exists(hidden.unfinished(user, kind)):
        hidden.write(user, kind, fresh, sync=True)
