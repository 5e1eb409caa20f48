"""A save that an exchange has displaced: logged at once, as a transaction of the person's.

Somebody may save in the instant between a writer's last look at a document and the exchange. Then ours is in its
place, and their save stands where ours was staged. It does not go back there: whoever has read ours
meanwhile would save over it what lacks it. It is merged with all that history has, logged, and what comes of that is put
in place, by whoever did the exchange, or after a crash by whoever holds the user's lock next.

What cannot be merged does go back: a save that is not finished, or is no TOML.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tomldiary.errors import BackendError, Conflict, DocumentError
from tomldiary.history.timeline import Timeline
from tomldiary.storage.files import file_token, read_file
from tomldiary.storage.local.layout import target_of
from tomldiary.storage.local.lease import is_being_saved
from tomldiary.storage.local.log import read_records
from tomldiary.storage.local.publish import take_back
from tomldiary.storage.protocol import Stored
from tomldiary.toml.document import Document
from tomldiary.toml.fingerprint import digest
from tomldiary.toml.parse import decode_utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tomldiary.hand_edits.detect import Known
    from tomldiary.storage.protocol import Commit

__all__ = ["history_of", "take_in"]

_ATTEMPTS = 20
_IN_A_ROW = 20


def history_of(folder: Path) -> Timeline:
    """Return a user's history, for those who hold the lock that opening the user takes."""
    return Timeline(_Folder(folder), "")  # pyright: ignore[reportArgumentType] - all it asks for


class _Folder:
    """What of a backend tells of one user's history, without opening the user: that takes the lock which is held."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def records(self, _user: str) -> Iterator[str]:
        """Yield the texts of all history records, newest first."""
        return read_records(self._folder / "history")

    def last_record(self, user: str) -> str | None:
        """Return the newest history record."""
        return next(self.records(user), None)

    def place(self, _user: str, kind: str) -> str:
        """Return the path of a document's file."""
        return str(self._folder / f"{kind}.toml")


def take_in(
    folder: Path, names: Sequence[str], store: Callable[[Commit], tuple[object, Sequence[str]]]
) -> None:
    """Make saves part of history that exchanges left where ours were staged; the caller holds the user's lock.

    One that is not finished and cannot go back, as there is a newer one, is left to whoever comes next, and so is one
    behind twenty that each displaced the one before.

    Args:
        folder: The user's.
        names: The staged files' names, in the order in which they were staged.
        store: Stores a transaction; the last it returns is what that has displaced.

    Raises:
        OSError, BackendError: They are still there.
    """
    waiting = list(names)
    for _ in range(len(waiting) + _IN_A_ROW):
        if waiting:
            _take_in(folder, waiting.pop(0), lambda commit: waiting.extend(store(commit)[1]))


def _take_in(folder: Path, name: str, log: Callable[[Commit], None]) -> None:
    path, kind = str(folder / name), target_of(name).removesuffix(".toml")
    for _ in range(_ATTEMPTS):
        standing = _standing(folder, kind)
        try:
            saved = _transaction(folder, kind, path, standing)
            if saved is not None:
                log(saved)
        except Conflict:
            continue  # saved once more
        except DocumentError:
            if standing is not None:
                take_back(path, str(folder / f"{kind}.toml"), standing.token)
                continue  # one who saved over ours meanwhile has put theirs here
            if is_being_saved(path):
                return
        except FileNotFoundError:
            return
        os.unlink(path)  # noqa: PTH108 - paths are strings here
        return


def _standing(folder: Path, kind: str) -> Known | None:
    """Return the document that stands in its place, if it is what history ends at."""
    from tomldiary.hand_edits.detect import Known  # noqa: PLC0415 - it needs us

    with suppress(BackendError, DocumentError):  # somebody's, and not to be read
        found, last = read_file(folder / f"{kind}.toml"), history_of(folder).last(kind)
        if found is not None and last is not None:
            text = decode_utf8(found[0])
            if digest(text) == last.results[kind]:
                document = Document.parse(text)
                return Known(found[1], document, last.results[kind], is_logged=True)
    return None


def _transaction(folder: Path, kind: str, path: str, standing: Known | None) -> Commit | None:
    """Return what makes a save part of history; None if it is already.

    Raises:
        FileNotFoundError: There is no save.
        DocumentError: It is not finished, or cannot be read.
    """
    from tomldiary.engine.commit import prepare_displaced  # noqa: PLC0415 - see above
    from tomldiary.hand_edits.detect import look  # noqa: PLC0415 - see above

    history: Any = _Folder(folder)
    place = history.place("", kind)
    if not stat.S_ISREG(os.lstat(path).st_mode) or is_being_saved(path):
        raise DocumentError("is not a file that somebody has finished", path=place)
    found = read_file(path)
    if found is None:
        raise FileNotFoundError(path)
    # Its age says nothing: whether it is finished was asked for.
    known = look(history, "", kind, Stored(decode_utf8(found[0], path=place), None), standing)
    if known.problem is not None:
        raise known.problem
    if known.is_logged:
        return None
    # One who has saved since finds the number of what they have read there, and history does the rest.
    token = standing.token if standing is not None else file_token(place)
    return prepare_displaced(
        history, kind, replace(known, token=token), is_published=standing is not None
    )
