"""Turns that could not be applied, in one readable file beside the journals: `dead-letters.toml`.

Written before the journal says that the turn is done, and emptied after a turn is in a journal again, so
that a crash at any moment leaves a turn in one of the two or in both, where its operation id tells that
they are one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, Forgotten, InvalidValue
from tomldiary.runtime.capabilities import make_private, sync_file
from tomldiary.storage.file_lock import lock_file
from tomldiary.storage.files import make_folder, read_all, sync_folder, write_all, write_new
from tomldiary.writer.journal_record import render_dead, split_entries, turn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from tomldiary.writer.job import Job
    from tomldiary.writer.receipts import Turn

__all__ = ["DeadLetter", "DeadLetters"]

_NAME = "dead-letters.toml"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A turn that could not be applied."""

    id: str
    """Its operation id."""
    turn: Turn
    error: str
    attempts: int
    queued: str
    """When it was taken in."""
    parked: str
    """When it was given up."""
    epoch: int
    """The user's epoch that it is of: what is forgotten later may be it."""


class DeadLetters:
    """The dead letters of one diary; any number of processes may use them at once.

    Args:
        root: The folder of the journals.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / _NAME

    def __repr__(self) -> str:
        return f"DeadLetters({str(self._path)!r})"

    def add(self, job: Job, error: str, epoch_of: Callable[[str], int]) -> None:
        """Park a turn; it is on the disk when this returns.

        Args:
            job: The turn.
            error: Why it could not be applied.
            epoch_of: Tells a user's epoch; it is asked while the file is locked, so that a turn is either
                found by a forgetting or not parked.

        Raises:
            Forgotten: Something of the user was forgotten since the turn was taken in. Nothing was parked.
            BackendError: It could not be written.
        """
        text = render_dead(
            job.turn, job.operation, error=error, attempts=job.attempts, queued=job.time,
            epoch=job.epoch or 0,
        )  # fmt: skip
        try:
            make_folder(self._root, sync=True)
            is_new = not self._path.exists()
            with lock_file(self._path, create=True) as descriptor:
                make_private(descriptor)
                if epoch_of(job.turn.user_id) != job.epoch:
                    raise Forgotten(
                        "something of this user was forgotten before a turn was parked."
                    )
                data = read_all(descriptor)
                turn = replace(job.turn, operation_id=job.operation)
                if any(each.turn == turn for each in _letters(data)):
                    return  # written just before a crash; another user's may have the same id
                if data and not data.endswith(b"\n"):
                    text = f"\n{text}"  # behind what is torn, or was saved like that
                try:
                    write_all(descriptor, text.encode())
                    sync_file(descriptor)
                except OSError:
                    os.ftruncate(descriptor, len(data))
                    raise
            if is_new:
                sync_folder(self._root)
        except OSError as failure:
            raise BackendError(
                f"{self._path}: cannot be written ({failure.strerror}). Check free space and permissions."
            ) from failure

    def list(self) -> list[DeadLetter]:
        """Return all of them, oldest first."""
        try:
            with lock_file(self._path) as descriptor:
                return _letters(read_all(descriptor))
        except FileNotFoundError:
            return []

    def take(
        self,
        ids: Collection[str] | None,
        then: Callable[[list[DeadLetter]], None],
        *,
        user: str | None = None,
    ) -> list[DeadLetter]:
        """Remove dead letters once `then` has seen them, and return them. If `then` raises, all stay.

        Args:
            ids: Their operation ids; None is all.
            then: Called with them.
            user: Whose; None is everybody's, unless several users have turns of one of the ids.

        Raises:
            InvalidValue: `user` is needed to tell whose turn an id is. All stay.
        """
        try:
            with lock_file(self._path) as descriptor:
                entries = split_entries(read_all(descriptor))
                chosen = [
                    entry.data is not None
                    and (ids is None or entry.data["operation"] in ids)
                    and user in (None, entry.data["user"])
                    for entry in entries
                ]
                taken = _letters(
                    "".join(entry.text for entry, is_mine in zip(entries, chosen, strict=True) if is_mine).encode()
                )  # fmt: skip
                if not taken:
                    return []
                if ids is not None:
                    _check_owners(taken)
                then(taken)
                rest = "".join(
                    entry.text for entry, is_mine in zip(entries, chosen, strict=True) if not is_mine
                )  # fmt: skip
                temp = self._path.with_name(f".{_NAME}.tmp")
                temp.unlink(missing_ok=True)  # of somebody who was killed
                write_new(str(temp), rest.encode(), sync=True)
                os.replace(temp, self._path)  # noqa: PTH105 - next to the descriptor's calls
                sync_folder(self._root)
        except FileNotFoundError:
            return []
        return taken


def _check_owners(letters: list[DeadLetter]) -> None:
    """Refuse an id that turns of several users have: callers choose the ids."""
    owners: dict[str, str] = {}
    for letter in letters:
        user = letter.turn.user_id
        if owners.setdefault(letter.id, user) != user:
            raise InvalidValue(
                f"several users have a turn with the id {letter.id!r}, {owners[letter.id]!r} and {user!r} among"
                " them. Say whose it is: --user NAME."
            )


def _letters(data: bytes) -> list[DeadLetter]:
    return [
        DeadLetter(
            entry.data["operation"],
            turn_of(entry.data),
            entry.data["error"],
            entry.data["attempts"],
            entry.data["time"],
            entry.data["parked"],
            entry.data["epoch"],
        )
        for entry in split_entries(data)
        if entry.kind == "dead" and entry.data is not None
    ]
