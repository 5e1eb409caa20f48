"""Dead letters in a shared database: a hidden document for each user."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tomldiary.errors import Forgotten
from tomldiary.storage.log import scan_log
from tomldiary.storage.shared.database import QUEUE
from tomldiary.writer.dead_letters import check_owners, letters_of
from tomldiary.writer.journal_record import render_dead, render_turn
from tomldiary.writer.receipts import Job
from tomldiary.writer.shared.turns import LETTERS, Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tomldiary.storage.shared.backend import SharedBackend
    from tomldiary.writer.dead_letters import DeadLetter

__all__ = ["SharedLetters"]


class SharedLetters:
    """The dead letters of a diary on a shared database; it has the methods of `DeadLetters`."""

    def __init__(self, backend: SharedBackend) -> None:
        self._backend = backend

    def add(self, job: Job, error: str, epoch_of: Callable[[str], int]) -> None:  # noqa: ARG002 - the step has the token
        """Park a turn as a dead letter.

        Raises:
            Forgotten: Something of the user was forgotten since the turn was submitted. Nothing was parked.
            TurnTaken: Another writer has taken the turn over.
        """
        text = render_dead(
            job.turn, job.operation, error=error, attempts=job.attempts, queued=job.time,
            epoch=job.epoch or 0,
        )  # fmt: skip
        turn = replace(job.turn, operation_id=job.operation)

        def change(old: str, epoch: int) -> str:
            if epoch != job.epoch:
                raise Forgotten("something of this user was forgotten before a turn was parked.")
            if job.journal is not None:
                job.journal.check(job)
            is_known = any(each.turn == turn for each in letters_of(scan_log(old.encode())))
            return old if is_known else old + text

        self._backend.change_hidden(job.turn.user_id, LETTERS, change)

    def list(self) -> list[DeadLetter]:
        """Return all dead letters, oldest first."""
        found = [
            letter
            for user in self._backend.holders(LETTERS)
            for letter in letters_of(scan_log(self._backend.hidden(user, LETTERS)[0].encode()))
        ]
        return sorted(found, key=lambda letter: letter.parked)

    def take(
        self,
        ids: Collection[str] | None,
        then: Callable[[list[DeadLetter]], None],
        *,
        user: str | None = None,
    ) -> list[DeadLetter]:
        """Call `then` with dead letters, then remove and return them; see `DeadLetters.take`.

        Raises:
            InvalidValue: `user` is required, as several users have a turn with one of the ids. All stay.
        """
        taken = [
            each
            for each in self.list()
            if (ids is None or each.id in ids) and user in (None, each.turn.user_id)
        ]
        if ids is not None:
            check_owners(taken)
        if taken:
            then(taken)
        for owner in sorted({each.turn.user_id for each in taken}):
            gone = {each.id for each in taken if each.turn.user_id == owner}

            def change(text: str, _epoch: int, gone: set[str] = gone) -> str:
                records = scan_log(text.encode())
                return "".join(
                    each.text
                    for each in records
                    if not gone & {one.id for one in letters_of([each])}
                )

            self._backend.change_hidden(owner, LETTERS, change)
        return taken

    def requeue(self, letters: Iterable[DeadLetter]) -> None:
        """Queue turns again, for any writer; they keep their operation ids, so none is applied twice."""
        for letter in letters:
            job = Job(letter.turn, letter.id, is_new=False)
            job.rendered = render_turn(letter.turn, letter.id, letter.queued)

            def change(text: str, _epoch: int, job: Job = job, token: int = letter.epoch) -> str:
                turns = Turns.parse(text)
                # The token of the letter, not the current one: a concurrent erasure must find the turn.
                turns.add([job], token)
                return turns.render()

            self._backend.change_hidden(letter.turn.user_id, QUEUE, change)
