"""Dead letters: turns that could not be applied, in a hidden document of their user.

A turn is written to this document before it is removed from the queue. A requeued turn is removed from the document
after it is in the queue again. Therefore a crash at any moment leaves the turn in at least one of the two. A turn in
both is applied once, since both copies have the same operation id.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tomldiary.errors import Forgotten, InvalidValue
from tomldiary.runtime.sources import DEAD_LETTERS, QUEUE
from tomldiary.storage.local.backend import LocalBackend
from tomldiary.storage.log import render_record, scan_log
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.toml.values import render_value, timestamp
from tomldiary.writer.journal import Journal, render_turn
from tomldiary.writer.journals import ERROR, turn_of
from tomldiary.writer.receipts import Job
from tomldiary.writer.shared.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from tomldiary.extraction.context import Turn
    from tomldiary.storage.protocol import KeepsHidden

_TIMEOUT = 30.0  # the time limit in seconds for a user's lock


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A turn that could not be applied."""

    id: str
    """The turn's operation id."""
    turn: Turn
    error: str
    attempts: int
    queued: str
    """When the turn was submitted (ISO 8601)."""
    parked: str
    """When the turn was parked (ISO 8601)."""
    epoch: int
    """The user's fencing token when the turn was submitted; only later erasures can select the turn."""


class DeadLetters:
    """The dead letters of one diary; any number of processes may use them at once."""

    def __init__(self, backend: KeepsHidden, redact: Callable[[str], str] | None = None) -> None:
        self._backend = backend
        self._redact = redact

    def add(self, job: Job, error: str) -> None:
        """Park a turn as a dead letter.

        Raises:
            Forgotten: Something of the user was forgotten since the turn was submitted. Nothing was parked.
            TurnTaken: Another writer has taken the turn over.
            BackendError: The document could not be written.
        """
        text = _render(job, self._redacted(error))
        turn = replace(job.turn, operation_id=job.operation)
        operation = render_value(job.operation)

        def change(old: str, epoch: int) -> str:
            if epoch != job.epoch:
                raise Forgotten.meanwhile()
            if job.journal is not None:
                job.journal.check(job)
            # Searched first, because parsing thousands of dead letters for each new one is slow.
            if operation in old:
                # The turn was parked just before a crash, or it is being retried: `requeue` removes the old record.
                old = "".join(
                    each.text
                    for each in scan_log(old.encode())
                    if each.data is None or _letter(each.data).turn != turn
                )
            return f"{old}\n{text}" if old and not old.endswith("\n") else old + text

        self._backend.change_hidden(job.turn.user_id, DEAD_LETTERS, change)

    def _redacted(self, error: str) -> str:
        """Return an error, which may quote a model's answer, redacted; only its type if that fails."""
        if self._redact is None:
            return error
        try:
            return self._redact(error)
        except Exception:  # noqa: BLE001 - of any function of the host; the turn must be parked
            return error.partition(":")[0]

    def list(self) -> list[DeadLetter]:
        """Return all dead letters, oldest first."""
        found = [each for user in self._backend.holders(DEAD_LETTERS) for each in self._of(user)]
        return sorted(found, key=lambda letter: letter.parked)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return how many turns of each user are listed, and how many are not because they were altered.

        An altered turn does not match its checksum.
        """
        found: dict[str, tuple[int, int]] = {}
        for user in self._backend.holders(DEAD_LETTERS):
            text = self._backend.hidden(user, DEAD_LETTERS)
            altered = [each.data is None for each in scan_log(text.encode())]
            found[user] = len(altered) - sum(altered), sum(altered)
        return found

    def _of(self, user: str) -> list[DeadLetter]:
        records = scan_log(self._backend.hidden(user, DEAD_LETTERS).encode())
        return [_letter(each.data) for each in records if each.data is not None]

    def chosen(self, ids: Collection[str] | None, user: str | None = None) -> list[DeadLetter]:
        """Return some dead letters, oldest first.

        Args:
            ids: The operation ids of the turns; None is all.
            user: The user of the turns; None is any user.

        Raises:
            InvalidValue: One of the ids belongs to no turn, or to turns of several users; give `user` in this case.
        """
        found = [
            each
            for each in self.list()
            if (ids is None or each.id in ids) and user in (None, each.turn.user_id)
        ]
        for each in ids or ():
            owners = {letter.turn.user_id: None for letter in found if letter.id == each}
            if not owners:
                raise InvalidValue(
                    f"no turn in the dead letters has the id {each!r}. `tomldiary writer list` shows the ids."
                )
            if len(owners) > 1:  # callers choose the ids
                one, other, *_ = owners
                raise InvalidValue(
                    f"several users have a turn with the id {each!r}, including {one!r} and {other!r}."
                    " Name the user with --user NAME."
                )
        return found

    def drop(self, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
        """Remove dead letters, and return those that were still there."""
        return [
            gone for user, mine in _by_user(letters).items() for gone in self._remove(user, mine)
        ]

    def _remove(
        self, user: str, letters: list[DeadLetter], *, is_locked: bool = False
    ) -> list[DeadLetter]:
        gone: list[DeadLetter] = []

        def change(text: str, _epoch: int) -> str:
            gone.clear()  # a database may call this again
            kept: list[str] = []
            for each in scan_log(text.encode()):
                letter = None if each.data is None else _letter(each.data)
                if letter in letters:
                    gone.append(letter)
                else:
                    kept.append(each.text)
            return "".join(kept)

        self._backend.change_hidden(user, DEAD_LETTERS, change, is_locked=is_locked)
        return gone

    def requeue(self, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
        """Queue turns again, for any writer, and return those that were queued.

        Turns that were removed meanwhile or are still in the queue are left out. The turns keep their operation ids, so no turn
        is applied twice. In a folder they are written to a new journal, which the next writer takes over.

        Raises:
            Forgotten: Something of a user was forgotten meanwhile.
            BackendError: The turns could not be queued.
        """
        backend, again = self._backend, list[DeadLetter]()
        assert isinstance(backend, LocalBackend | SharedBackend)  # noqa: S101 - others have no journal
        with ExitStack() as stack:
            journal: Journal | None = None
            for user, wanted in _by_user(letters).items():
                if isinstance(backend, SharedBackend):
                    epoch = backend.epoch(user)  # read first, so that a later erasure is detected
                    mine = [each for each in self._of(user) if each in wanted]
                    queued = _queue(backend, user, mine, epoch)
                    self._remove(user, queued)
                    again += queued
                    continue
                # An erasure takes the same lock, so it finds each turn here or in the journal.
                with backend.lock(user, _TIMEOUT):
                    mine = [each for each in self._of(user) if each in wanted]
                    if journal is None:
                        root, files = backend.journal_root, backend.files
                        journal = Journal.create(root, sync=True, files=files)
                        stack.callback(journal.close)
                    for each in mine:
                        journal.append_turns([_job(each)], lambda _, token=each.epoch: token)
                    journal.sync()
                    self._remove(user, mine, is_locked=True)
                again += mine
        return again


def _queue(
    backend: SharedBackend, user: str, letters: list[DeadLetter], epoch: int
) -> list[DeadLetter]:
    """Add turns to the queue in a database, unless something was forgotten since `epoch`, and return them.

    A turn that is still in the queue is left out, because the worker that has just parked it will remove it. One that
    an earlier attempt added is not: its answer may have been lost.
    """
    added: list[DeadLetter] = []

    def change(parts: Mapping[str, str], now: int) -> Mapping[str, str]:
        if now != epoch:
            raise Forgotten.meanwhile()
        turns = Turns.parse(parts, backend.queue_part)
        added[:] = [each for each in letters if each in added or not turns.has(each.id)]
        for each in added:
            turns.add([_job(each)], each.epoch)
        return turns.render()

    backend.change_parts(user, QUEUE, change)
    return added


def _job(letter: DeadLetter) -> Job:
    """Return a job for a letter; the caller queues it with the letter's token, so that an erasure finds the turn."""
    job = Job(letter.turn, letter.id, is_new=False)
    job.rendered = render_turn(letter.turn, letter.id, letter.queued)
    return job


def _by_user(letters: Iterable[DeadLetter]) -> dict[str, list[DeadLetter]]:
    found: dict[str, list[DeadLetter]] = {}
    for each in letters:
        found.setdefault(each.turn.user_id, []).append(each)
    return found


def _letter(data: dict[str, Any]) -> DeadLetter:
    return DeadLetter(
        data["operation"],
        turn_of(data),
        data["error"],
        data["attempts"],
        data["time"],
        data["parked"],
        data["epoch"],
    )


def _render(job: Job, error: str) -> str:
    """Return the record of a dead letter: a turn that could not be applied, and the error."""
    # An error message may quote text that no file can store.
    storable = error.encode("utf-8", "backslashreplace").decode()
    body = (
        f"{ERROR}{render_value(storable)}\nattempts = {job.attempts}\nepoch = {job.epoch or 0}\n"
        f'parked = "{timestamp()}"\n{render_turn(job.turn, job.operation, job.time)}'
    )
    return render_record("dead", body)
