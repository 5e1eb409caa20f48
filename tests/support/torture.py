"""Crashes and crowds on a real disk: does every write that was acknowledged stay, exactly once?

Two workloads, each with real processes on one user in a folder of its own:

`crowd`   processes that read a number, add one and write it back, all released at once
`kill`    writers that are killed (`SIGKILL`) at any point; what they acknowledged came through a pipe

Afterwards the files show what is missing; what a worker reports of its own work does not count.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tomldiary.errors import DiaryError
from tomldiary.history.verify import verify
from tomldiary.storage.local.backend import LocalBackend
from torture_workers import ENDLESS, USER, Failure, Figures, Workers, first_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from tomldiary.storage.protocol import Backend
    from tomldiary.user.user import UserDiary

__all__ = ["Figures", "Size", "open_folder", "torture", "without_syncs"]

_CYCLES = 25  # kills in one memory


@dataclass(frozen=True, slots=True)
class Size:
    """How much of each workload, 0 for none."""

    processes: int = 0
    updates: int = 0
    """Updates of each process of the crowd."""
    cycles: int = 0
    """Times that two writers are started and killed."""


def open_folder(folder: str) -> Backend:
    """Return the backend that is tortured, in a worker of its own process: full durability."""
    return LocalBackend(folder)


def without_syncs(folder: str) -> Backend:
    """Return a backend that is enough where processes are killed and the machine runs on."""
    return LocalBackend(folder, durability="process")


def torture(
    path: str | os.PathLike[str],
    size: Size,
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
    total = Figures()
    folder = Path(tempfile.mkdtemp(prefix="tomldiary-torture-", dir=path))
    for name, workload, part in _plan(size):
        with Workers(str(folder / name), opener) as workers:
            try:
                choose = random.Random(f"{seed} {name}")
                workload(workers, part, choose)
            except (DiaryError, OSError) as error:
                workers.figures.unreadable += 1
                workers.figures.tell(error)
            damage = verify(LocalBackend(folder / name), USER)
            if damage is not None:
                workers.figures.unreadable += 1
                workers.figures.tell(f"{damage.place}: {damage.message}")
        total.add(workers.figures)
    if total.is_clean:
        shutil.rmtree(folder)
    else:
        total.kept = str(folder)
    return total


def _plan(
    size: Size,
) -> Iterator[tuple[str, Callable[[Workers, Size, random.Random], None], Size]]:
    """Yield the folder, the workload and the size of each part."""
    if size.processes * size.updates:
        yield "crowd", _crowd, size
    for done in range(0, size.cycles, _CYCLES):
        # A memory that only grows would be looked at longer than it is written.
        yield f"kill-{done}", _kill, replace(size, cycles=min(_CYCLES, size.cycles - done))


# What the parent does


def _crowd(workers: Workers, size: Size, _: random.Random) -> None:
    """Many processes add one to the same number: a lost update is one that is missing in the sum."""
    crowd = [workers.start(_add, name, size.updates) for name in range(size.processes)]
    workers.release(*crowd)
    said = [word for worker in crowd for word in worker.finish()]
    workers.figures.acknowledged += len(said)
    numbers = [int(text) for text in workers.texts("likes")]
    total = sum(numbers)
    workers.figures.lost += max(0, len(said) - total)
    workers.figures.duplicated += max(0, total - len(said)) + max(0, len(numbers) - 1)


def _kill(workers: Workers, size: Size, choose: random.Random) -> None:
    """Two writers at a time are killed at any point: what they acknowledged has to be there."""
    acknowledged: set[str] = set()
    for cycle in range(size.cycles):
        pair = [workers.start(_store, f"cycle {cycle} {name}", ENDLESS) for name in "ab"]
        workers.release(*pair)
        said = [first_of(*pair).next() for _ in range(choose.randint(0, 8))]
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


# What the workers do


def _add(pipe: Connection, user: UserDiary, name: int, count: int) -> None:
    for number in range(count):
        try:
            with user.transaction(session_id=f"process {name}"):
                known = user.preferences("likes")
                text = str(int(known["sum"].text) + 1 if "sum" in known else 1)
                user.upsert_preference("likes", text, id="sum", count_up=False)
        except DiaryError as error:
            pipe.send(Failure(f"{type(error).__name__}: {error}"))
            continue
        pipe.send((name, number))


def _store(pipe: Connection, user: UserDiary, name: str, count: int) -> None:
    for number in range(count):
        text = f"{name} number {number}"
        user.upsert_preference("likes", text)
        pipe.send(text)
