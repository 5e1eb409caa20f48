"""Count the lost updates of processes that change one document at the same time.

    python benchmarks/lost_updates.py [--processes 4] [--updates 100]

Each process appends numbered marks to one item. With `DiaryStore`, it calls `update`, which repeats the change on fresh
state. With LangGraph's `SqliteStore`, it uses `BaseStore`: get, change, put. Every write is acknowledged.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph.store.sqlite import SqliteStore

from tomldiary_langgraph import DiaryStore

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

PLACE = ("alice", "notes")


def with_diary(path: str, marks: list[str], start: Barrier) -> None:
    """Append the marks with `DiaryStore.update`."""
    with DiaryStore(path) as store:
        start.wait()
        for mark in marks:

            def appended(value: Any, mark: str = mark) -> dict[str, Any]:
                return {"marks": [*(value or {"marks": []})["marks"], mark]}

            store.update(PLACE, "profile", appended)


def with_sqlite(path: str, marks: list[str], start: Barrier) -> None:
    """Append the marks with `get` and `put` of `SqliteStore`."""
    with SqliteStore.from_conn_string(f"{path}/store.db") as store:
        store.setup()  # its first call would do this, and may fail while another process writes
        start.wait()
        for mark in marks:
            item = store.get(PLACE, "profile")
            kept = item.value["marks"] if item else []
            store.put(PLACE, "profile", {"marks": [*kept, mark]})


def kept(store: Any) -> int:
    """Return the number of marks in the item."""
    item = store.get(PLACE, "profile")
    return len(item.value["marks"]) if item else 0


def main() -> None:
    """Run both stores and print the number of updates that each kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--updates", type=int, default=100)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for work in (with_diary, with_sqlite):
        with tempfile.TemporaryDirectory() as folder:
            if work is with_sqlite:
                with SqliteStore.from_conn_string(f"{folder}/store.db") as store:
                    store.setup()
            start = context.Barrier(given.processes)
            running = [
                context.Process(
                    target=work,
                    args=(folder, [f"{each}-{mark}" for mark in range(given.updates)], start),
                )
                for each in range(given.processes)
            ]
            for process in running:
                process.start()
            for process in running:
                process.join()
            if any(process.exitcode for process in running):
                raise SystemExit(f"{work.__name__}: a process failed")
            if work is with_diary:
                name = "tomldiary, DiaryStore.update"
                with DiaryStore(Path(folder)) as store:
                    found = kept(store)
            else:
                name = "LangGraph, SqliteStore get and put"
                with SqliteStore.from_conn_string(f"{folder}/store.db") as store:
                    found = kept(store)
            total = given.processes * given.updates
            print(f"{name}: {found} of {total} kept, {total - found} lost")


if __name__ == "__main__":
    main()
