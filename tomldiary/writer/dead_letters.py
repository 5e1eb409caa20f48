"""Dead letters: turns that could not be applied, in one readable file, `dead-letters.toml`.

A turn is written to this file before its journal records it as done. A requeued turn is removed from this file
after it is in a journal again. So a crash at any moment leaves a turn in at least one of the two files. A turn in
both files is applied once, since both copies have the same operation id.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, Forgotten, InvalidValue
from tomldiary.storage.files import FileSystem
from tomldiary.storage.locks import lock_file
from tomldiary.storage.log import LogRecord, rewrite_log, scan_log
from tomldiary.writer.journal import Journal
from tomldiary.writer.journal_record import render_dead, render_turn, turn_of
from tomldiary.writer.receipts import Job, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from tomldiary.storage.local.backend import LocalBackend

__all__ = ["DeadLetter", "DeadLetters", "check_owners", "letters_of", "requeue"]

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
    """When it was submitted (ISO 8601)."""
    parked: str
    """When it was parked (ISO 8601)."""
    epoch: int
    """The user's fencing token when it was submitted: a later erasure may cover the turn."""


class DeadLetters:
    """The dead letters of one diary; any number of processes may use them at once.

    Args:
        root: The folder of the journals.
    """

    def __init__(self, root: Path, files: FileSystem | None = None) -> None:
        self._files = files or FileSystem()
        self._root = root
        self._path = root / _NAME

    def __repr__(self) -> str:
        return f"DeadLetters({str(self._path)!r})"

    def add(self, job: Job, error: str, epoch_of: Callable[[str], int]) -> None:
        """Park a turn as a dead letter; it is durable when this returns.

        Args:
            job: The turn.
            error: Why it could not be applied.
            epoch_of: Returns a user's fencing token. It is called while the file is locked. So a concurrent
                erasure finds the turn, or the turn is not parked.

        Raises:
            Forgotten: Something of the user was forgotten since the turn was submitted. Nothing was parked.
            BackendError: The file could not be written.
        """
        text = render_dead(
            job.turn, job.operation, error=error, attempts=job.attempts, queued=job.time,
            epoch=job.epoch or 0,
        )  # fmt: skip
        try:
            files = self._files
            files.make_folder(self._root, sync=True)
            is_new = not files.exists(self._path)
            with lock_file(files, self._path, create=True) as descriptor:
                files.make_private(descriptor)
                if epoch_of(job.turn.user_id) != job.epoch:
                    raise Forgotten(
                        "something of this user was forgotten before a turn was parked."
                    )
                data = files.read_all(descriptor)
                turn = replace(job.turn, operation_id=job.operation)
                if any(each.turn == turn for each in _letters(data)):
                    return  # parked just before a crash; another user may have the same id, so turns are compared
                if data and not data.endswith(b"\n"):
                    text = f"\n{text}"  # behind a torn record or a hand edit
                try:
                    files.write_all(descriptor, text.encode())
                    files.sync_file(descriptor)
                except OSError:
                    files.ftruncate(descriptor, len(data))
                    raise
            if is_new:
                files.sync_folder(self._root)
        except OSError as failure:
            raise BackendError(
                f"{self._path}: cannot be written ({failure.strerror}). Check free space and permissions."
            ) from failure

    def list(self) -> list[DeadLetter]:
        """Return all dead letters, oldest first."""
        try:
            with lock_file(self._files, self._path) as descriptor:
                return _letters(self._files.read_all(descriptor))
        except FileNotFoundError:
            return []

    def take(
        self,
        ids: Collection[str] | None,
        then: Callable[[list[DeadLetter]], None],
        *,
        user: str | None = None,
    ) -> list[DeadLetter]:
        """Call `then` with dead letters, then remove and return them.

        Args:
            ids: The operation ids of the turns; None selects all.
            then: Called before they are removed. If it raises, all stay.
            user: Select only turns of this user. None selects turns of any user, unless several have one of the ids.

        Raises:
            InvalidValue: `user` is required, as several users have a turn with one of the ids. All stay.
        """
        taken: list[DeadLetter] = []

        def keep(records: list[LogRecord]) -> list[str] | None:
            kept: list[str] = []
            for record in records:
                chosen = [
                    letter
                    for letter in letters_of([record])
                    if (ids is None or letter.id in ids) and user in (None, letter.turn.user_id)
                ]
                taken.extend(chosen)
                if not chosen:
                    kept.append(record.text)
            if not taken:
                return None
            if ids is not None:
                check_owners(taken)
            then(taken)
            return kept

        with suppress(FileNotFoundError):
            rewrite_log(self._files, self._path, keep)
        return taken


def requeue(backend: LocalBackend, letters: list[DeadLetter]) -> None:
    """Requeue turns: write them to a new journal, which the next writer takes over.

    The turns keep their operation ids, so none is applied twice.

    Raises:
        BackendError: The journal could not be written.
    """
    journal = Journal.create(backend.journal_root, sync=True, files=backend.files)
    try:
        for letter in letters:
            job = Job(letter.turn, letter.id, is_new=False)
            job.rendered = render_turn(letter.turn, letter.id, letter.queued)
            # The token of each letter, not the current one: a concurrent erasure must find the turn.
            journal.append_turns([job], lambda _user, epoch=letter.epoch: epoch)
        journal.sync()
    finally:
        journal.close()


def check_owners(letters: list[DeadLetter]) -> None:
    """Refuse an id that turns of several users have: callers choose the ids."""
    owners: dict[str, str] = {}
    for letter in letters:
        user = letter.turn.user_id
        if owners.setdefault(letter.id, user) != user:
            raise InvalidValue(
                f"several users have a turn with the id {letter.id!r}, {owners[letter.id]!r} and {user!r} among"
                " them. Name the user with --user NAME."
            )


def _letters(data: bytes) -> list[DeadLetter]:
    return letters_of(scan_log(data))


def letters_of(records: list[LogRecord]) -> list[DeadLetter]:
    """Return the dead letters among the records of a log."""
    return [
        DeadLetter(
            each.data["operation"],
            turn_of(each.data),
            each.data["error"],
            each.data["attempts"],
            each.data["time"],
            each.data["parked"],
            each.data["epoch"],
        )
        for each in records
        if each.kind == "dead" and each.data is not None
    ]
