"""Health checks of a store's disk, folders and files, and of their permissions."""

from __future__ import annotations

import os
import re
import shlex
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tomldiary.runtime.views import ListView, Viewed
from tomldiary.storage.local.layout import JOB_NAME, SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.storage.files import FileSystem

FREE_BYTES = 100 * 1024 * 1024
"""The free space in bytes below which a disk is reported."""
_FREE_INODES = 1000
_STAGED = re.compile(r"\.staged-.*\.tmp")
_STAGED_SECONDS = 60  # much longer than a commit
_BACKUP = re.compile(r"(?!\.staged-|\.forgetting).+\.toml.+(?<!\.toml)", re.DOTALL)
"""The names of files that editors leave, such as `preferences.toml~` and `.preferences.toml.swp`."""
_SYNCED = re.compile(
    r"dropbox|onedrive( - .*)?|google ?drive|my drive|icloud ?drive|mobile documents|cloudstorage"
    r"|com~apple~clouddocs|nextcloud|pclouddrive",
    re.IGNORECASE,
)
_REMOTE = re.compile(
    r"nfs4?|cifs|smb.*|9p|afs|ceph|glusterfs|lustre|beegfs|virtiofs|vboxsf|fuse\..*"
)


@dataclass(frozen=True, slots=True, repr=False)
class Finding(Viewed):
    """One result of a health check: its level, place, message and remedy."""

    level: Literal["note", "warning", "problem"]
    """`note`: for information. `warning`: works, but needs attention. `problem`: does not work."""
    place: str
    message: str
    remedy: str = ""


class Findings(ListView[Finding]):
    """The findings about a store, worst first."""


def check_place(files: FileSystem, base: Path, mounts: Path) -> Iterator[Finding]:
    """Check the file system of a folder."""
    place = str(base)
    real = Path(os.path.realpath(base))
    synced = next((part for part in real.parts if _SYNCED.fullmatch(part)), None)
    if synced is not None:
        message = f"the folder is below {synced!r}, which another program synchronises with other machines."
        remedy = "Store memory elsewhere, and copy it there with export, because such programs ignore locks."
        yield Finding("warning", place, message, remedy)
    kind = _file_system(real, mounts)
    if kind is not None and _REMOTE.fullmatch(kind):
        message = f"the folder is on a network file system ({kind}), where locks and syncs may have no effect."
        remedy = "Store memory on a local disk, or write from one machine only."
        yield Finding("warning", place, message, remedy)
    if not base.is_dir():
        yield Finding("problem", place, "there is no such folder.", "Use another folder.")
        return
    free = files.free_bytes(base)
    message = f"{free / 1024**2:,.0f} MB are free on this disk."
    if free < FREE_BYTES:
        yield Finding("warning", place, message, "Free some space: writes fail on a full disk.")
    else:
        yield Finding("note", place, message)
    inodes = files.free_inodes(base)
    if inodes is not None and inodes < _FREE_INODES:
        message = f"{inodes:,} inodes are free on this disk."
        remedy = "Remove files: writes fail on a disk without free inodes, whatever space is free."
        yield Finding("warning", place, message, remedy)


def _file_system(path: Path, mounts: Path) -> str | None:
    """Return the type of the file system that contains a folder, or None if it is unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return None
    best, kind = -1, None
    for line in lines:
        fields = line.split(" ")
        if len(fields) > 2:  # noqa: PLR2004 - device, mount point, type
            # The kernel writes special characters, such as spaces, as octal escapes.
            point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[1]))
            if path.is_relative_to(point) and len(point.parts) >= best:
                best, kind = len(point.parts), fields[2]
    return kind


def check_files(top: Path) -> Iterator[Finding]:
    """Find files and folders with wrong owners or permissions, and traces of crashes."""
    denied: dict[tuple[Literal["warning", "problem"], str, str], list[str]] = {}
    owner: int | None = None
    for path, status in _below(top):
        owner = status.st_uid if owner is None else owner  # `_below` yields the top folder first
        for found in _access(path, status, owner, shlex.quote(str(top))):
            denied.setdefault(found, []).append(path)
        name = os.path.basename(path)  # noqa: PTH119 - paths are strings here
        is_old = time.time() - status.st_mtime > _STAGED_SECONDS
        is_file = stat.S_ISREG(status.st_mode)
        if is_old and _STAGED.fullmatch(name):
            message = "this temporary file remained after a crash."
            remedy = "No action is required: it is removed when the user is next opened."
            yield Finding("warning", path, message, remedy)
        if is_old and is_file and _BACKUP.fullmatch(name) and f"/{SYSTEM}/" not in path:
            message = "this may be an editor's copy of a document, which only forget(everything=True) erases."
            remedy = "Close the editor, and remove the file."
            yield Finding("warning", path, message, remedy)
        if is_file and name.lower().endswith(".toml") and not name.endswith(".toml"):
            message = (
                "this file is not read, because its name does not end in .toml in small letters."
            )
            remedy = "If it is a document, rename it; otherwise remove it."
            yield Finding("warning", path, message, remedy)
        if is_old and name == JOB_NAME:
            message = "a forget operation was interrupted by a crash."
            remedy = "Open the user to finish it, for example with tomldiary show."
            yield Finding("warning", path, message, remedy)
        if name.endswith(".damaged"):
            message = "these queued turns failed the checksum and were not applied."
            remedy = "Add what is missing to the memory, and remove the file."
            yield Finding("problem", path, message, remedy)
    for (level, message, remedy), paths in denied.items():
        more = f", like {len(paths) - 1} more" if len(paths) > 1 else ""
        yield Finding(level, paths[0], f"{message}{more}.", remedy)


def broken_links(top: Path) -> Iterator[Finding]:
    """Find links in place of users' folders or of `.tomldiary` that no call lists, because their targets do not exist."""
    with suppress(OSError):
        for entry in sorted(os.scandir(top), key=lambda entry: entry.name):
            # Other names with a dot are no users, and an editor's lock is such a link.
            is_checked = entry.name == SYSTEM or not entry.name.startswith(".")
            if is_checked and entry.is_symlink() and _has_no_target(entry):
                message = "this is a link, and its target does not exist."
                remedy = "Mount the disk of the target, or remove the link."
                yield Finding("problem", entry.path, message, remedy)


def _has_no_target(link: os.DirEntry[str]) -> bool:
    """Return whether a link names nothing; False for a link to itself, which is a finding about its user."""
    try:
        link.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def _access(
    path: str, status: os.stat_result, owner: int, top: str
) -> Iterator[tuple[Literal["warning", "problem"], str, str]]:
    """Yield the level, the message and the remedy of a wrong owner and wrong permissions."""
    is_folder = stat.S_ISDIR(status.st_mode)
    if not os.access(path, os.R_OK | (os.X_OK if is_folder else 0)):
        yield "problem", "cannot be read", "Change its permissions."
    elif not os.access(path, os.W_OK):
        if _is_read_only(path):
            remedy = "Make the file system writable, or use another folder."
            yield "problem", "cannot be written, because the file system is read-only", remedy
        else:
            yield "problem", "cannot be written", "Change its permissions."
    if status.st_uid != owner:
        message = "belongs to another account than the folder, whose programs cannot read it"
        yield "problem", message, f"Run: chown -R {owner} {top}"
    if os.name == "posix" and status.st_mode & 0o077:
        others = "can be entered by others (not 0700)", "can be read by others (not 0600)"
        yield "warning", others[0 if is_folder else 1], f"Run: chmod -R go= {top}"


def _is_read_only(path: str) -> bool:
    """Return whether the file system of a file is mounted read-only, which no permission changes."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _below(top: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield `top` and all folders and regular files below it. Links are not followed."""
    paths = [str(top)]
    while paths:
        path = paths.pop()
        try:
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
                yield path, status
            if stat.S_ISDIR(status.st_mode):
                paths += sorted((entry.path for entry in os.scandir(path)), reverse=True)
        except OSError:
            continue  # deleted in the meantime, or already reported
