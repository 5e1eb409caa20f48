"""Compare the cost of the storage engine with that of the raw file operations, measured in the same run.

    python benchmarks/engine.py [--rounds 7] [--path DIR] [--profile ROW]

The floor of a row is the minimum: the file operations that it cannot avoid. Every round measures all rows, each
directly followed by its floor, so that a busy disk slows both. The median ratio of the rounds is printed. Rows in
microseconds are processor time, which depends less on the load of the machine. A put that is not synced is compared
with both ways to replace a file: the common rename over the old file, which ext4 writes to the disk at once, and the
exchange of both files. `--path` selects the disk, and `--profile` prints a profile of one row. The last table compares
the targets of the design with the measured values.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import os
import pstats
import statistics
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tomldiary import Diary
from tomldiary.storage.files import FileSystem
from tomldiary.store.operations import Put
from tomldiary.store.store import ItemStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.user.user import UserDiary

DOCUMENT = 10 * 1024  # bytes
BATCH = 500
NUMBERS = itertools.count()


@dataclass
class Row:
    """One row to measure: `ours` and `floor` perform one operation each."""

    name: str
    ours: Callable[[], object]
    floor: Callable[[], object]
    floor_name: str
    times: int
    """The number of operations in one round."""
    floor_times: int = 0
    """The number of operations of the floor in one round; 0 is the same number."""
    shown: str = "rate"
    """`rate`: the ratio of the rates, ours to the floor. `time`: the ratio of the times. `µs`: our time."""
    target: str = ""
    met: Callable[[float], bool] = lambda _: True


def filled(folder: Path, size: int, durability: str, *, entries: int = 0) -> UserDiary:
    """Return a user with a document of about `size` bytes, or of `entries` entries."""
    diary = Diary(folder, agent="rules", durability=durability, max_prefs_per_category=10**9)
    user = diary.user("alice")
    with user.transaction():
        for number in itertools.count():
            if entries and number >= entries:
                break
            user.upsert_preference(
                "likes", f"this is the thing with number {number}", id=f"e{number}"
            )
            if not entries and number % 10 == 9 and len(user.document("preferences")) > size:
                break
    return user


def put(user: UserDiary) -> Callable[[], object]:
    """Return an operation that changes one entry in the middle of the document."""
    middle = f"e{len(user.preferences('likes')) // 2}"
    return lambda: user.upsert_preference(
        "likes", f"changed {next(NUMBERS)}", id=middle, count_up=False
    )


def put_item(folder: Path, entries: int) -> Callable[[], object]:
    """Return an operation that changes one item of a namespace that is split over several files."""
    memory = ItemStore(Diary(folder, agent="rules", durability="process"))
    names = ("memories", "alice")
    memory.run([Put(names, f"e{number}", {"text": f"thing {number}"}) for number in range(entries)])
    middle = f"e{entries // 2}"
    return lambda: memory.run([Put(names, middle, {"text": f"changed {next(NUMBERS)}"})])


def batch(user: UserDiary, *, new: bool) -> None:
    """Change or store many different entries in one call."""
    with user.transaction():
        for number in range(BATCH):
            key = None if new else f"e{number}"
            user.upsert_preference("likes", f"thing {next(NUMBERS)}", id=key, count_up=False)


def raw_replace(
    folder: Path, size: int, *, sync: bool, exchanging: bool = False
) -> Callable[[], object]:
    """Return the minimal publishing of a document: temporary file, sync, rename, sync of the folder."""
    folder.mkdir(parents=True)
    data, temp, target = os.urandom(size), f"{folder}/temp", f"{folder}/target"

    def replace() -> None:
        stage()
        os.replace(temp, target)  # noqa: PTH105 - the floor
        if sync:
            parent = os.open(folder, os.O_RDONLY)
            os.fsync(parent)
            os.close(parent)

    def exchange() -> None:
        stage()
        FileSystem().exchange(temp, target)
        os.unlink(temp)  # noqa: PTH108 - the floor

    def stage() -> None:
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, data)
        if sync:
            os.fsync(descriptor)
        os.close(descriptor)

    replace()
    return exchange if exchanging else replace


def rows(root: Path) -> list[Row]:
    """Prepare all rows."""
    full = filled(root / "full", DOCUMENT, "full")
    loose = filled(root / "loose", DOCUMENT, "process")
    sizes = {
        entries: filled(root / f"{entries}", 0, "process", entries=entries)
        for entries in (10, 100, 1_000, 10_000)
    }
    durable = {
        entries: filled(root / f"full-{entries}", 0, "full", entries=entries)
        for entries in (100, 1_000, 10_000)
    }
    growing = filled(root / "growing", 0, "full", entries=1_000)
    for past in sizes.values():
        change = put(past)
        for _ in range(100):
            change()
    size = len(full.document("preferences").encode())
    engine, file = full.diary.engine, full.diary.engine.backend.place("alice", "preferences")
    raw_full = raw_replace(root / "raw", size, sync=True)
    raw_loose = raw_replace(root / "raw-loose", size, sync=False)
    raw_swap = raw_replace(root / "raw-swap", size, sync=False, exchanging=True)
    items = {entries: put_item(root / f"items-{entries}", entries) for entries in (100, 10_000)}
    backend = loose.diary.engine.backend

    def lock() -> None:
        with backend.lock("alice", 1):
            pass

    def stripe() -> None:
        with backend._locks.hold("alice", 1):  # noqa: SLF001 - only the lock, without the search for left-over files
            pass

    def looking_back(entries: int) -> list[Row]:
        """Return the rows of one size, with the parsing of the document or a put as the floor."""
        past, change = sizes[entries], put(sizes[entries])
        place = Path(past.diary.engine.backend.place("alice", "preferences"))
        last = past.last_transaction()

        def cold() -> None:
            Diary(root / f"{entries}", agent="rules").user("alice").document("preferences")

        def parse() -> None:
            with place.open("rb") as opened:
                tomllib.load(opened)

        def undo() -> None:
            change()
            past.rollback()

        times = {10: 20, 1_000: 3}.get(entries, 1)
        floor = "open and tomllib"
        return [
            Row(f"cold open and read, {entries:,} entries", cold, parse, floor, times, shown="time"),
            Row(f"as_of, 1 transaction ago, {entries:,}", lambda: past.as_of(last - 1), parse, floor,
                times, shown="time"),
            Row(f"as_of, 100 transactions ago, {entries:,}", lambda: past.as_of(last - 100), parse, floor,
                times, shown="time"),
            Row(f"put and rollback, {entries:,}", undo, change, "put", times, shown="time"),
        ]  # fmt: skip

    return [
        Row("durable put, 10 KB", put(full), raw_full, "replace, fsync file and folder", 60,
            target=">= 0.6", met=lambda value: value >= 0.6),
        Row("put without sync, 10 KB", put(loose), raw_loose, "replace", 150,
            target=">= 0.25", met=lambda value: value >= 0.25),
        Row("the same", put(loose), raw_swap, "exchange and unlink", 150),
        Row(f"{BATCH} durable puts in one, 1,000 entries", lambda: batch(durable[1_000], new=False),
            put(durable[1_000]), "one durable put", 3, floor_times=20, shown="time", target="<= 30",
            met=lambda value: value <= 30),
        Row(f"{BATCH} new entries in one, 1,000 and more", lambda: batch(growing, new=True),
            put(durable[1_000]), "one durable put", 3, floor_times=20, shown="time", target="<= 30",
            met=lambda value: value <= 30),
        Row("look-up, cached", lambda: engine.document("alice", "preferences"),
            lambda: os.stat(file), "os.stat", 20_000,  # noqa: PTH116 - the floor
            target=">= 0.5", met=lambda value: value >= 0.5),
        Row("lock, acquire and release", stripe, lambda: None, "", 20_000,
            shown="µs", target="<= 5 µs", met=lambda value: value <= 5),
        Row("backend.lock, with the search for left-over files", lock, lambda: None, "", 5_000, shown="µs"),
        Row("durable put into 10,000 entries", put(durable[10_000]), put(durable[100]),
            "durable put into 100", 20, shown="time", target="<= 4", met=lambda value: value <= 4),
        Row("put without sync into 10,000 items", items[10_000], items[100], "put into 100 items", 60,
            shown="time", target="<= 4", met=lambda value: value <= 4),
        *(
            Row(f"put without sync into {entries:,} entries", put(sizes[entries]), put(sizes[100]),
                "put into 100", 60, shown="time")
            for entries in (10, 1_000, 10_000)
        ),
        *(row for entries in (10, 1_000, 10_000) for row in looking_back(entries)),
    ]  # fmt: skip


def seconds(
    operation: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the time of one operation, as the mean of `times` calls."""
    start = clock()
    for _ in range(times):
        operation()
    return (clock() - start) / times


def profile(row: Row) -> None:
    profiler = cProfile.Profile()
    row.ours()
    profiler.enable()
    for _ in range(max(3, row.times)):
        row.ours()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--path", help="a folder on the disk to measure")
    parser.add_argument("--profile", metavar="ROW", help="part of a row's name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.path) as folder:
        table = rows(Path(folder))
        if options.profile:
            profile(next(row for row in table if options.profile in row.name))
            return
        found: dict[str, list[tuple[float, float]]] = {row.name: [] for row in table}
        for _ in range(options.rounds):
            for row in table:
                floor = seconds(row.floor, row.floor_times or row.times)
                clock = time.thread_time if row.shown == "µs" else time.perf_counter
                ours = seconds(row.ours, row.times, clock)
                found[row.name].append((ours, floor))
    print(
        f"load average {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores; medians of {options.rounds}"
    )
    targets: list[str] = []
    print(f"{'':<44} {'ours':>10} {'floor':>10}  {'ratio':>7} {'target':>8}")
    for row in table:
        ours = statistics.median(pair[0] for pair in found[row.name]) * 1e6
        floor = statistics.median(pair[1] for pair in found[row.name]) * 1e6
        value = ours
        if row.shown != "µs":
            value = statistics.median(
                floor / ours if row.shown == "rate" else ours / floor
                for ours, floor in found[row.name]
            )
        verdict = "" if not row.target else "met" if row.met(value) else "MISSED"
        if row.target:
            targets.append(f"{row.name:<44} {row.target:>8} {value:>9.2f}  {verdict}")
        floor_text = f"{floor:>7.1f} µs" if row.floor_name else f"{'':>10}"
        print(
            f"{row.name:<44} {ours:>7.1f} µs {floor_text}  {value:>7.2f} {row.target:>8}  {verdict:<6}"
            f"  {row.floor_name}",
            flush=True,
        )
    print(f"\n{'':<44} {'target':>8} {'measured':>9}", *targets, sep="\n")


if __name__ == "__main__":
    main()
