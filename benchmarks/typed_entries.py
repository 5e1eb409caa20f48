"""Measure writes of preferences and facts in a memory of 100, 1,000 and 10,000 entries.

    python benchmarks/typed_entries.py [--sizes 100,1000,10000] [--rounds 40]

Each memory is a new folder with durability "process". A round upserts a new preference, confirms a stored one,
commits a fact under a new singleton key, and replaces a fact. The median of the rounds is printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import TYPE_CHECKING

from pydantic import BaseModel

from tomldiary import Constraint, Diary

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.user.user import UserDiary

_BATCH = 250


class Visit(BaseModel):
    """A fact with a singleton key."""

    place: str
    note: str


class Remark(BaseModel):
    """A fact without a singleton key; equal facts are stored once."""

    note: str


def memory(folder: str, size: int) -> Diary:
    """Fill a folder with `size` preferences and facts of each type."""
    diary = Diary(folder, agent="rules", durability="process", max_prefs_per_category=10**6)
    diary.register_schema("visit", Visit, Constraint(singleton_key="place"))
    diary.register_schema("remark", Remark)
    alice = diary.user("alice")
    for start in range(0, size, _BATCH):
        with alice.transaction() as tx:
            for number in range(start, min(size, start + _BATCH)):
                tx.upsert_preference("likes", f"thing number {number} on a list of things")
                tx.facts.commit(Visit(place=f"place {number}", note=f"visited in week {number}"))
                tx.facts.commit(Remark(note=f"a remark about thing number {number}"))
    return diary


def calls(alice: UserDiary, half: int) -> list[Callable[[int], object]]:
    """Return the measured operations, each on a new entry or on one in the middle."""
    known = f"thing number {half} on a list of things"
    commit = alice.facts.commit
    return [
        lambda number: alice.upsert_preference("likes", f"new thing {number}"),
        lambda _: alice.upsert_preference("likes", known),
        lambda number: commit(Visit(place=f"new place {number}", note="new")),
        lambda number: commit(Visit(place=f"place {half}", note=f"visit {number}")),
        lambda number: commit(Remark(note=f"a new remark {number}")),
    ]


def median(rounds: int, call: Callable[[int], object]) -> float:
    """Return the median time of a call in milliseconds."""
    call(-1)
    times: list[float] = []
    for number in range(rounds):
        start = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="100,1000,10000")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    print(
        f"{'entries':>8} {'upsert':>9} {'confirm':>9} {'commit':>9} {'replace':>9} {'keyless':>9}  ms"
    )
    for size in map(int, options.sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            alice = memory(folder, size).user("alice")
            costs = [median(options.rounds, call) for call in calls(alice, size // 2)]
            print(f"{size:8}" + "".join(f" {cost:9.2f}" for cost in costs), flush=True)


if __name__ == "__main__":
    main()
