"""Processes that work on one memory at once, watched from outside, and what came of it."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections import Counter
from dataclasses import dataclass, field, fields
from multiprocessing import connection, forkserver
from typing import TYPE_CHECKING, Any
from unittest import mock

from tomldiary.diary import Diary

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from typing import Self

    from tomldiary.storage.protocol import Backend
    from tomldiary.user.user import UserDiary

__all__ = ["ENDLESS", "USER", "Failure", "Figures", "Worker", "Workers", "first_of"]

USER = "torture"
ENDLESS = 10**9
_IMPORTED = ["__main__", "torture", "warmed"]  # by the process that all workers are forked from
_PATIENCE = 120.0  # seconds without a word from any worker until it counts as hanging


@dataclass(slots=True)
class Figures:
    """What happened; everything but the first two should be zero."""

    acknowledged: int = 0
    """Updates that a writer was told are stored."""
    cycles: int = 0
    """Times that writers were killed."""
    lost: int = 0
    """Acknowledged updates that are not in memory."""
    duplicated: int = 0
    """Updates that are in memory more than once, or were never made."""
    unreadable: int = 0
    """Looks at the memory that failed, and histories that are damaged."""
    failed: int = 0
    """Updates that raised, and workers that ended or hung without having been killed."""
    messages: list[str] = field(default_factory=list[str])
    """What was said about the failures, each once."""
    kept: str = ""
    """The folder, kept for a look if anything was wrong."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, and nothing else went wrong either."""
        return not (self.lost or self.duplicated or self.unreadable or self.failed)

    def add(self, other: Figures) -> None:
        """Add another run's figures to these."""
        for each in fields(self):
            if each.name == "messages":
                self.messages = list(dict.fromkeys([*self.messages, *other.messages]))[:20]
            else:
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def tell(self, error: BaseException | str) -> None:
        """Keep a message."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        if text not in self.messages:
            self.messages.append(text)


class Workers:
    """The processes of one workload, and what is known about them."""

    def __init__(self, folder: str, opener: Callable[[str], Backend]) -> None:
        self.folder = folder
        self.opener = opener
        self.figures = Figures()
        self._context = _context()
        self._running: list[BaseProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.join()

    def start(self, task: Callable[..., None], *arguments: Any) -> Worker:
        """Start a process; it waits for `release`."""
        ours, theirs = self._context.Pipe(duplex=True)
        process = self._context.Process(
            target=_work, args=(theirs, self.folder, self.opener, task, arguments), daemon=True
        )
        process.start()
        theirs.close()
        self._running.append(process)
        return Worker(process, ours, self.figures)

    def release(self, *workers: Worker) -> None:
        """Wait until all are ready, then let them begin together."""
        for worker in workers:
            worker.next()
        for worker in workers:
            worker.tell()

    def user(self) -> UserDiary:
        """Return the memory as a process sees it that opens it now."""
        return _open(self.opener(self.folder)).user(USER)

    def texts(self, category: str) -> list[str]:
        """Return the texts that are in memory now."""
        return [item.text for item in self.user().preferences(category).values()]

    def compare(self, acknowledged: set[str], found: list[str], *, in_flight: int = 0) -> None:
        """Count what is missing, and what is there too often."""
        self.figures.lost += len(acknowledged - set(found))
        twice = sum(count - 1 for count in Counter(found).values())
        unasked = len(set(found) - acknowledged) - in_flight
        self.figures.duplicated += twice + max(0, unasked)


@functools.cache
def _context() -> Any:
    """Return how processes are started: from one that has imported everything, where the system forks."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    with mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(sys.path)}):
        forkserver.ensure_running()  # Pythons before 3.13 do not hand their path on
    return context


class Worker:
    """One process, seen from outside."""

    def __init__(self, process: BaseProcess, pipe: Connection, figures: Figures) -> None:
        self.process = process
        self.pipe = pipe
        self._figures = figures

    def tell(self) -> None:
        """Let it begin."""
        self.pipe.send(None)

    def next(self) -> Any:
        """Return the next thing it says, or None if it has ended; failures are counted."""
        while True:
            try:
                if not self.pipe.poll(_PATIENCE):
                    self._figures.failed += 1
                    self._figures.tell("a worker hung.")
                    self.process.kill()
                    return None
                said = self.pipe.recv()
            except (EOFError, OSError):
                return None
            if isinstance(said, Failure):
                self._figures.failed += 1
                self._figures.tell(said.message)
                continue
            return said

    def rest(self) -> list[Any]:
        """Return all that it still says, until it ends."""
        said: list[Any] = []
        while (one := self.next()) is not None:
            said.append(one)
        self.process.join()
        return said

    def finish(self) -> list[Any]:
        """Return the rest; ending in any other way than by itself is a failure."""
        said = self.rest()
        if self.process.exitcode:
            self._figures.failed += 1
            self._figures.tell(f"a worker ended with exit code {self.process.exitcode}.")
        return said

    def kill(self) -> list[Any]:
        """Kill it where it is, and return what it had said before."""
        self.process.kill()
        return self.rest()


def first_of(*workers: Worker) -> Worker:
    """Return the first worker that says something."""
    ready = connection.wait([worker.pipe for worker in workers], _PATIENCE)
    return next((worker for worker in workers if worker.pipe in ready), workers[0])


@dataclass(frozen=True, slots=True)
class Failure:
    """What a worker says when something raised."""

    message: str


def _work(
    pipe: Connection,
    folder: str,
    opener: Callable[[str], Backend],
    task: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    user = _open(opener(folder)).user(USER)
    pipe.send("ready")
    pipe.recv()
    try:
        task(pipe, user, *arguments)
    except (BrokenPipeError, EOFError):
        return  # the parent has ended
    except Exception as error:  # noqa: BLE001 - told to the parent, which counts it
        pipe.send(Failure(f"{type(error).__name__}: {error}"))


def _open(backend: Backend) -> Diary:
    return Diary(backend, agent="rules", max_prefs_per_category=ENDLESS)
