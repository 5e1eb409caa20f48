"""Checkpoints, which sync documents to disk, and retention, which removes old history.

A commit is durable when its record is durable. Documents are published at once but synced later, at a checkpoint
every 256 transactions. The transactions between two checkpoints are a window. If a power cut damages a document,
recovery restores it from history (see `recovery`). The first record after a checkpoint is written only when all
documents changed before it are on disk.

Retention replaces the oldest kept segment by one that begins with a snapshot. When that segment is on disk, the
segments before it are removed, the oldest first. A killed process may leave segments that no reader uses. The next
open removes them. Retention syncs all its writes, whatever the durability.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, HandEditConflict, InvalidTOML
from tomldiary.history.record import is_snapshot, next_sequence, results_of
from tomldiary.storage.files import PRIVATE, FileSystem
from tomldiary.storage.local.log import opens_window, read_records, segments, split_records
from tomldiary.storage.local.publish import put_in_place, staged_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tomldiary.storage.environment import Environment
    from tomldiary.storage.local.session import Synced

__all__ = ["drop_superseded", "prune", "settle", "window"]


def window(env: Environment, folder: Path) -> Iterator[str]:
    """Yield the records of the last window, newest first; their documents may not be on disk."""
    last = 0
    for text in read_records(env.files, folder / "history"):
        try:
            seq = next_sequence(text) - 1
        except InvalidTOML:
            continue  # damaged: the callers that need this record report it
        last = last or seq
        if opens_window(seq, last, env.checkpoint_interval):
            return
        yield text
        if is_snapshot(text):
            return


def settle(env: Environment, folder: Path, synced: Synced) -> None:
    """Sync all documents that the last window changed; the caller holds the user's lock.

    Args:
        env: The file system, and the interval of checkpoints.
        folder: The user's folder.
        synced: The synced names of the user; updated.

    Raises:
        OSError, BackendError: Some documents are not on disk.
    """
    files = env.files
    present: set[str] = set()
    kinds = list(dict.fromkeys(kind for text in window(env, folder) for kind in results_of(text)))
    paths = {kind: folder / f"{kind}.toml" for kind in kinds}
    for kind, path in paths.items():
        if files.is_link(path):
            continue  # not a file of this package
        with suppress(FileNotFoundError, NotADirectoryError):  # another program has removed it
            try:
                if kind not in synced.doubtful:
                    files.sync_path(path, PRIVATE)
                else:
                    _write_again(files, folder, kind)
            except OSError as error:
                if not isinstance(error, FileNotFoundError | NotADirectoryError):
                    # The system reports a failed write once, and then treats the data as written.
                    synced.doubtful.add(kind)
                raise
            present.add(kind)
    synced.sync(present)
    synced.doubtful.clear()


def _write_again(files: FileSystem, folder: Path, kind: str) -> None:
    path = folder / f"{kind}.toml"
    found = files.read_file(path)
    if found is None:
        raise FileNotFoundError(path)
    temp = staged_path(folder, kind, found[0], 0)
    files.write_new(temp, found[0], sync=True)
    if put_in_place(files, temp, str(path), found[1]) is None and files.exists(temp):
        raise HandEditConflict.changed(str(path))


_TEMP = ".pruned.tmp"
_HEAD = 400  # bytes; enough for the first values of a record, which state its type


def prune(files: FileSystem, folder: Path, seq: int, snapshot: str) -> None:
    """Replace all records up to transaction `seq` by `snapshot`; the caller holds the user's lock.

    Raises:
        OSError: History is unchanged, or begins with the snapshot.
    """
    drop_superseded(files, folder)
    for path in reversed(segments(files, folder)):
        texts = split_records(files.content(path))
        if texts and next_sequence(texts[0]) - 1 <= seq + 1:
            kept = [text for text in texts if next_sequence(text) - 1 > seq]
            temp = folder / _TEMP
            files.write_new(str(temp), "".join([snapshot, *kept]).encode(), sync=True)
            files.replace(temp, path)
            files.sync_folder(folder)
            break
    drop_superseded(files, folder)


def drop_superseded(files: FileSystem, folder: Path) -> None:
    """Remove segments that a snapshot replaces; the caller holds the user's lock.

    Raises:
        BackendError: Some superseded segments may remain. No reader uses them.
    """
    try:
        if files.exists(folder / _TEMP):
            files.unlink(folder / _TEMP)
        paths = segments(files, folder)
        begins = [
            number
            for number, path in enumerate(paths)
            if number and _begins_with_snapshot(files, path)
        ]
        if begins:
            for path in paths[: begins[-1]]:
                files.unlink(path)
            files.sync_folder(folder)
    except OSError as error:
        raise BackendError(
            f"{error.filename or folder}: old history cannot be removed ({error.strerror}). No reader uses it."
            " The next open tries again; check the permissions."
        ) from error


def _begins_with_snapshot(files: FileSystem, path: Path) -> bool:
    with files.open_to_read(path) as file:
        head = file.read(_HEAD).decode("utf-8", "replace")
    return is_snapshot(head)
