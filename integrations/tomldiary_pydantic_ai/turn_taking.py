"""Turns for tasks that keep overtaking each other: read, compare and write, from the start again if beaten.

A host that tries a limited number of times gives up on tasks that were only unlucky. Who has been beaten
once waits in line before reading again, and has the file to itself until its write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

__all__ = ["TurnTaking"]

_LONGEST_TURN = 2.0  # seconds; a task that lost may never retry


class TurnTaking:
    """Queues of tasks, one for each path. For tasks of asyncio; other callers do not wait."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Any, str], deque[_Place]] = {}

    def lost(self, path: str) -> None:
        """Put the running task in line: its write came too late."""
        task = _task()
        if task is None or self._place(path) is not None:
            return
        place = _Place(task)
        line = self._lines.setdefault((task.get_loop(), path), deque())
        line.append(place)
        task.add_done_callback(lambda _: self._leave(place, path))
        if len(line) == 1:
            self._begin(place, path)

    async def wait(self, path: str) -> None:
        """Wait until it is the running task's turn; who is not in line need not wait."""
        place = self._place(path)
        if place is not None:
            await place.begins.wait()

    def done(self, path: str) -> None:
        """Give the turn on: the running task has written."""
        place = self._place(path)
        if place is not None:
            self._leave(place, path)

    def _place(self, path: str) -> _Place | None:
        task = _task()
        line = self._lines.get((task.get_loop(), path), ()) if task is not None else ()
        return next((place for place in line if place.task is task), None)

    def _begin(self, place: _Place, path: str) -> None:
        place.begins.set()
        place.task.get_loop().call_later(_LONGEST_TURN, self._leave, place, path)

    def _leave(self, place: _Place, path: str) -> None:
        key = (place.task.get_loop(), path)
        line = self._lines.get(key, deque[_Place]())
        if place not in line:
            return
        is_first = line[0] is place
        line.remove(place)
        place.begins.set()
        if not line:
            del self._lines[key]
        elif is_first:
            self._begin(line[0], path)


class _Place:
    """A task in line."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.begins = asyncio.Event()


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
