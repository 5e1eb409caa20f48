"""Crashes and crowds on a real disk: does every write that was acknowledged stay, exactly once?

Three workloads, each with real processes on one user in a folder of its own:

`crowd`   processes that read a number, add one and write it back, all released at once
`kill`    writers that are killed (`SIGKILL`) at any point; what they acknowledged came through a pipe
`editor`  an editor that saves in place and by rename while agents write

A look at the files tells afterwards what is missing; nothing that a worker says about itself counts.
"""

from __future__ import annotations

import functools
import multiprocessing
import random
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tomldiary.backends.local import LocalBackend
from tomldiary.diary import Diary
from tomldiary.errors import DiaryError
from tomldiary.verification import verify

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from typing import Self

    from tomldiary.backends.base import Backend
    from tomldiary.user import UserDiary

__all__ = ["Figures", "Size", "open_folder", "torture", "torture_for"]

_USER = "torture"
_WORKERS_IMPORT = ["ctypes", "filelock", "importlib.metadata", "tomldiary.toml.edit", "tomllib"]
_ENDLESS = 10**9
_CYCLES = 25  # kills in one memory
_PATIENCE = 120.0  # seconds without a word from any worker until it counts as hanging
_EDITORS_PATIENCE = 2.0  # seconds the editor waits for an agent to write before it saves again


@dataclass(frozen=True, slots=True)
class Size:
    """How much of each workload, 0 for none; the defaults are those of one round of the command."""

    processes: int = 4
    updates: int = 50
    """Updates of each process of the crowd."""
    cycles: int = 5
    """Times that two writers are started and killed."""
    saves: int = 30
    """Saves of the editor, half of them in place."""


@dataclass(slots=True)
class Figures:
    """What happened; everything but the first five should be zero."""

    rounds: int = 0
    acknowledged: int = 0
    """Updates that a writer was told are stored."""
    cycles: int = 0
    """Times that writers were killed."""
    saves: int = 0
    """Saves of the editor."""
    seconds: float = 0.0
    lost: int = 0
    """Acknowledged updates that are not in memory."""
    duplicated: int = 0
    """Updates that are in memory more than once, or were never made."""
    saves_lost: int = 0
    """Saves of the editor that are not in memory."""
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
        return not (
            self.lost or self.duplicated or self.saves_lost or self.unreadable or self.failed
        )

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


def open_folder(folder: str) -> Backend:
    """Return the backend that is tortured, in a worker of its own process: full durability."""
    return LocalBackend(folder)


def torture_for(minutes: float, path: str | os.PathLike[str]) -> Figures:
    """Run rounds of all workloads until the time is up, at least one."""
    total = Figures()
    start = time.monotonic()
    while total.is_clean and (not total.rounds or time.monotonic() - start < minutes * 60):
        total.add(torture(path, seed=total.rounds))
    return total


def torture(
    path: str | os.PathLike[str],
    size: Size | None = None,
    *,
    seed: int = 0,
    opener: Callable[[str], Backend] = open_folder,
) -> Figures:
    """Run each workload once, in a new folder below `path` that is removed if nothing was wrong.

    Args:
        path: A folder on the disk that matters.
        size: How much.
        seed: Of the moments at which writers are killed.
        opener: Returns a backend for a folder; a function of a module, because workers import it.
    """
    size = size or Size()
    total = Figures(rounds=1)
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="tomldiary-torture-", dir=path))
    for name, workload, part in _plan(size):
        with _Workers(str(folder / name), opener) as workers:
            try:
                choose = random.Random(f"{seed} {name}")  # noqa: S311 - moments, not secrets
                workload(workers, part, choose)
            except (DiaryError, OSError) as error:
                workers.figures.unreadable += 1
                workers.figures.tell(error)
            damage = verify(LocalBackend(folder / name), _USER)
            if damage is not None:
                workers.figures.unreadable += 1
                workers.figures.tell(f"{damage.place}: {damage.message}")
        total.add(workers.figures)
    total.seconds = time.monotonic() - start
    if total.is_clean:
        shutil.rmtree(folder)
    else:
        total.kept = str(folder)
    return total


def _plan(
    size: Size,
) -> Iterator[tuple[str, Callable[[_Workers, Size, random.Random], None], Size]]:
    """Yield the folder, the workload and the size of each part."""
    if size.processes * size.updates:
        yield "crowd", _crowd, size
    for done in range(0, size.cycles, _CYCLES):
        # A memory that only grows would be looked at longer than it is written.
        yield f"kill-{done}", _kill, replace(size, cycles=min(_CYCLES, size.cycles - done))
    if size.saves:
        yield "editor", _edit, size


class _Workers:
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

    def start(self, task: Callable[..., None], *arguments: Any) -> _Worker:
        """Start a process; it waits for `release`."""
        ours, theirs = self._context.Pipe(duplex=True)
        process = self._context.Process(
            target=_work, args=(theirs, self.folder, self.opener, task, arguments), daemon=True
        )
        process.start()
        theirs.close()
        self._running.append(process)
        return _Worker(process, ours, self.figures)

    def release(self, *workers: _Worker) -> None:
        """Wait until all are ready, then let them begin together."""
        for worker in workers:
            worker.next()
        for worker in workers:
            worker.tell()

    def user(self) -> UserDiary:
        """Return the memory as a process sees it that opens it now."""
        return _diary(self.opener(self.folder)).user(_USER)

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
    context.set_forkserver_preload(["__main__", __name__, *_WORKERS_IMPORT])
    return context


class _Worker:
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
            if isinstance(said, _Failure):
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


def _first_of(*workers: _Worker) -> _Worker:
    """Return the first worker that says something."""
    ready = connection.wait([worker.pipe for worker in workers], _PATIENCE)
    return next((worker for worker in workers if worker.pipe in ready), workers[0])


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str


# What the parent does


def _crowd(workers: _Workers, size: Size, _: random.Random) -> None:
    """Many processes add one to the same number: a lost update is one that is missing in the sum."""
    crowd = [workers.start(_add, name, size.updates) for name in range(size.processes)]
    workers.release(*crowd)
    said = [word for worker in crowd for word in worker.finish()]
    workers.figures.acknowledged += len(said)
    numbers = [int(text) for text in workers.texts("likes")]
    total = sum(numbers)
    workers.figures.lost += max(0, len(said) - total)
    workers.figures.duplicated += max(0, total - len(said)) + max(0, len(numbers) - 1)


def _kill(workers: _Workers, size: Size, choose: random.Random) -> None:
    """Two writers at a time are killed at any point: what they acknowledged has to be there."""
    acknowledged: set[str] = set()
    for cycle in range(size.cycles):
        pair = [workers.start(_store, f"cycle {cycle} {name}", _ENDLESS) for name in "ab"]
        workers.release(*pair)
        said = [_first_of(*pair).next() for _ in range(choose.randint(0, 8))]
        for worker in pair:
            time.sleep(choose.random() * 0.01)
            said += worker.kill()
        acknowledged.update(word for word in said if word is not None)
        workers.figures.cycles += 1
        try:
            workers.texts("likes")
        except DiaryError as error:
            workers.figures.unreadable += 1
            workers.figures.tell(error)
    workers.figures.acknowledged += len(acknowledged)
    # A writer that was killed may have stored one more than it could say.
    workers.compare(acknowledged, workers.texts("likes"), in_flight=2 * size.cycles)


def _edit(workers: _Workers, size: Size, choose: random.Random) -> None:
    """An editor saves while agents write: neither may take away what the other wrote."""
    workers.user().upsert_preference("likes", "there from the beginning")
    agents = [workers.start(_store, name, _ENDLESS) for name in "ab"]
    editor = workers.start(_save, size.saves, choose.randrange(_ENDLESS))
    workers.release(*agents, editor)
    saved = set(editor.finish())
    acknowledged = {word for agent in agents for word in agent.kill() if word is not None}
    workers.figures.saves += len(saved)
    workers.figures.acknowledged += len(acknowledged)
    time.sleep(1.1)  # seconds: a file this fresh may be taken for half saved
    workers.user().upsert_preference("likes", "the last word")
    by_hand = workers.texts("goals")
    workers.figures.saves_lost += len(saved - set(by_hand))
    beyond = {"there from the beginning", "the last word"}
    workers.compare(acknowledged | beyond, workers.texts("likes"), in_flight=len(agents))


# What the workers do


def _work(
    pipe: Connection,
    folder: str,
    opener: Callable[[str], Backend],
    task: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    user = _diary(opener(folder)).user(_USER)
    pipe.send("ready")
    pipe.recv()
    try:
        task(pipe, user, *arguments)
    except (BrokenPipeError, EOFError):
        return  # nobody listens any more
    except Exception as error:  # noqa: BLE001 - told to the parent, which counts it
        pipe.send(_Failure(f"{type(error).__name__}: {error}"))


def _diary(backend: Backend) -> Diary:
    return Diary(backend, agent="rules", max_prefs_per_category=_ENDLESS)


def _add(pipe: Connection, user: UserDiary, name: int, count: int) -> None:
    for number in range(count):
        try:
            with user.transaction(session_id=f"process {name}"):
                known = user.preferences("likes")
                text = str(int(known["sum"].text) + 1 if "sum" in known else 1)
                user.upsert_preference("likes", text, id="sum", count_up=False)
        except DiaryError as error:
            pipe.send(_Failure(f"{type(error).__name__}: {error}"))
            continue
        pipe.send((name, number))


def _store(pipe: Connection, user: UserDiary, name: str, count: int) -> None:
    for number in range(count):
        text = f"{name} number {number}"
        user.upsert_preference("likes", text)
        pipe.send(text)


def _save(pipe: Connection, user: UserDiary, count: int, seed: int) -> None:
    """Save like editors do: read all, change it, write all; each time agents have written since."""
    choose = random.Random(seed)  # noqa: S311 - moments, not secrets
    path = Path(user.diary.engine.backend.place(_USER, "preferences"))
    for number in range(count):
        text = path.read_text(encoding="utf-8")
        entry = f'[preferences.goals.hand{number}]\ntext = "save {number}"\n'
        edited = f"{text.rstrip()}\n\n{entry}"
        if number % 2:
            path.write_text(edited, encoding="utf-8")
        else:
            beside = path.with_name("edited.tmp")
            beside.write_text(edited, encoding="utf-8")
            beside.replace(path)
        pipe.send(f"save {number}")
        patience = time.monotonic() + _EDITORS_PATIENCE
        while entry in (now := path.read_text(encoding="utf-8")) and now == edited:
            if time.monotonic() > patience:
                break
            time.sleep(0.001)
        time.sleep(choose.random() * 0.004)
