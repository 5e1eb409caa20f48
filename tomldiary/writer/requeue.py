"""Dead letters on their way back: into a journal that any writer takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.writer.job import Job
from tomldiary.writer.journal import Journal
from tomldiary.writer.journal_record import render_turn

if TYPE_CHECKING:
    from tomldiary.storage.local.backend import LocalBackend
    from tomldiary.writer.dead_letters import DeadLetter

__all__ = ["put_back"]


def put_back(backend: LocalBackend, letters: list[DeadLetter]) -> None:
    """Write turns to a journal and let go of it; they keep their ids, so none is applied twice.

    Raises:
        BackendError: The journal could not be written.
    """
    journal = Journal.create(backend.journal_root, sync=True)
    try:
        for letter in letters:
            job = Job(letter.turn, letter.id, is_new=False)
            job.rendered = render_turn(letter.turn, letter.id, letter.queued)
            # Their own epoch, not today's: a forgetting that is under way has to know them.
            journal.append_turns([job], lambda _user, epoch=letter.epoch: epoch)
        journal.sync()
    finally:
        journal.close()
