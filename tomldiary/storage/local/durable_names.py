"""Names that outlive a power cut, and whose folder it is where its name cannot tell.

A file's name is on the disk once its folder was synced. Another process may have been killed between making a
file and syncing its name, so a file that is there proves nothing: each process syncs the names it relies on
once itself, before it acknowledges anything.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tomldiary.errors import DiaryError
from tomldiary.identifiers import decode_folder
from tomldiary.storage.files import make_folder, read_file, sync_folder, write_new
from tomldiary.storage.local.boots import boot_of
from tomldiary.storage.local.layout import OWNER_NAME
from tomldiary.toml.parse import decode_utf8, parse_toml
from tomldiary.toml.values import render_value

__all__ = ["DurableNames", "Synced", "user_of"]

_MOST_USERS = 10_000  # remembered at once; a bound on memory, nothing depends on it


@dataclass(slots=True)
class Synced:
    """What of one user's names this process has seen synced."""

    folder: str
    inode: int
    """Of the folder: another one of the same name is another one."""
    boot: str = ""
    """What records say of the boot that writes them."""
    segment: str = ""
    kinds: set[str] = field(default_factory=set[str])
    doubtful: set[str] = field(default_factory=set[str])
    """Documents that could not be synced."""

    def sync(self, kinds: set[str]) -> None:
        """Put the names of documents on the disk, and those of the folders that lead to them."""
        for place in {place for kind in kinds for place in _folders_of(self.folder, kind)}:
            sync_folder(place)
        self.kinds |= kinds


class DurableNames:
    """The names of all users below `root`; `sync` says whether they are to survive a power cut."""

    def __init__(self, root: Path, *, sync: bool) -> None:
        self._root = root
        self._sync = sync
        self._synced: dict[str, Synced] = {}
        self._is_root_synced = False

    def of(self, user: str, folder: str) -> Synced:
        """See that a user's folder is there, and at the first commit of this process that it stays.

        Raises:
            OSError: It cannot be made, or cannot be synced.
        """
        try:
            inode = os.stat(folder).st_ino  # noqa: PTH116 - once for each write
        except FileNotFoundError:
            make_folder(folder, sync=self._sync)
            inode = os.stat(folder).st_ino  # noqa: PTH116 - once for each write
        known = self._synced.get(user)
        if known is not None and known.inode == inode:
            return known
        _name_owner(user, Path(folder), sync=self._sync)
        if self._sync:
            sync_folder(folder)
            sync_folder(self._root)
            if not self._is_root_synced:
                with suppress(PermissionError):  # not ours: whoever made it has to keep it
                    sync_folder(self._root.absolute().parent)
                self._is_root_synced = True
        if len(self._synced) > _MOST_USERS:
            self._synced.clear()
        known = self._synced[user] = Synced(folder, inode, boot_of(folder))
        return known

    def drop(self, user: str) -> None:
        """Take nothing of a user's for granted any more."""
        self._synced.pop(user, None)


def user_of(folder: Path) -> str | None:
    """Return whose folder it is, or None if it is nobody's.

    Raises:
        DiaryError: The file that says so cannot be read.
    """
    decoded = decode_folder(folder.name)
    if decoded is not None:
        return decoded
    path = folder / OWNER_NAME
    owner = read_file(path)
    if owner is None:
        return None
    encoded = parse_toml(decode_utf8(owner[0], path=str(path)), path=str(path)).get("user_id")
    return str(encoded).encode("ascii", "replace").decode("unicode_escape") if encoded else None


def _name_owner(user: str, folder: Path, *, sync: bool) -> None:
    """Say whose folder it is, where its name cannot."""
    if not folder.name.startswith("~"):
        return
    with suppress(DiaryError):  # torn by a crash
        if user_of(folder) == user:
            return
    encoded = user.encode("unicode_escape").decode("ascii")
    text = f"# The id of this folder's owner is too long to be its name.\nuser_id = {render_value(encoded)}\n"
    (folder / OWNER_NAME).unlink(missing_ok=True)
    write_new(str(folder / OWNER_NAME), text.encode(), sync=sync)


def _folders_of(folder: str, kind: str) -> list[str]:
    """Return the folders whose names lead to a document, from its own to the user's."""
    parts = kind.split("/")[:-1]
    return ["/".join([folder, *parts[:length]]) for length in range(len(parts) + 1)]
