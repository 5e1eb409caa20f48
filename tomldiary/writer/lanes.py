"""Waiting turns: one line for each user, and users take turns."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tomldiary.writer.job import Job

__all__ = ["Lines"]


class Lines:
    """The turns that wait to be worked on. Not thread-safe: whoever uses it holds the writer's state.

    A user whose turn is worked on, or pauses before another try, is held: nobody behind it is next.
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[Job]] = {}
        self._ready: deque[str] = deque()
        self._held: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def is_ready(self) -> bool:
        """Whether a turn could be worked on now."""
        return bool(self._ready)

    def oldest(self) -> float | None:
        """Return when the turn that waits longest was taken in (monotonic clock), or None."""
        return min((line[0].queued_at for line in self._lines.values() if line), default=None)

    def push(self, job: Job) -> None:
        """Put a turn at the end of its user's line."""
        user = job.turn.user_id
        line = self._lines.get(user)
        if line is None:
            self._lines[user] = deque([job])
            if user not in self._held:
                self._ready.append(user)
        else:
            line.append(job)
        self._count += 1 + len(job.group)

    def put_back(self, job: Job) -> None:
        """Put a turn back to the head of its line; its user stays held until `release`."""
        self._lines.setdefault(job.turn.user_id, deque()).appendleft(job)
        self._count += 1 + len(job.group)

    def pop(self, together: int = 1) -> Job | None:
        """Return the next turn, with up to `together` - 1 that may be read with it, and hold its user."""
        if not self._ready:
            return None
        user = self._ready.popleft()
        line = self._lines[user]
        job = line.popleft()
        self._held.add(user)
        self._count -= 1 + len(job.group)
        while line and len(job.group) + 1 < together and _fit(job, line[0]):
            job.group.append(line.popleft())
            self._count -= 1
        if not line:
            del self._lines[user]
        return job

    def release(self, user: str) -> None:
        """Let the next turn of a user be worked on; behind the others, so that nobody waits for a busy user."""
        self._held.discard(user)
        if user in self._lines:
            self._ready.append(user)

    def remove(self, job: Job) -> bool:
        """Take a waiting turn out; False if it does not wait here, or others are read with it."""
        user = job.turn.user_id
        line = self._lines.get(user)
        if line is None or job not in line or job.group:
            return False
        line.remove(job)
        self._count -= 1
        if not line:
            del self._lines[user]
            if user in self._ready:
                self._ready.remove(user)
        return True

    def drain(self) -> list[Job]:
        """Take all waiting turns out."""
        jobs = [job for line in self._lines.values() for job in line]
        self._lines.clear()
        self._ready.clear()
        self._count = 0
        return jobs


def _fit(first: Job, other: Job) -> bool:
    """Tell whether two turns may be read as one.

    They may not if the caller gave an id, which has to be found in history by itself, or if something was
    tried or extracted already.
    """
    return (
        first.turn.session_id == other.turn.session_id
        and first.epoch == other.epoch
        and first.journal is other.journal  # what is noted of all of them is noted in one
        and all(
            job.is_new and job.operations is None and not job.attempts and job.turn.context_now is None
            for job in (first, other)
        )
    )  # fmt: skip
