"""Measure listings in a folder with very many users, each with a preference and a short history.

    python benchmarks/many_users.py [--users 100000] [--path DIR] [--doctor]

The users are copies of one user, created before the measurements. Each row is measured twice in a new `Diary`. Before
the first measurement, the system may already have parts of the folder in its cache. `users()` and a page of namespaces
scan names; the target is two seconds for 100,000 users. The rows "all namespaces" and `doctor` read every user.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tomldiary import Diary
from tomldiary.doctor.doctor import check
from tomldiary.store.operations import List
from tomldiary.store.store import ItemStore

if TYPE_CHECKING:
    from collections.abc import Callable

AIM = 2.0  # seconds for 100,000 users
WHOLE = 1000  # the maximum number of users for which everything is read without --doctor


def filled(root: Path, number: int) -> None:
    """Create users as copies of one user that is written by the library."""
    alice = Diary(root, agent="rules").user("user000000")
    alice.upsert_preference("likes", "tea")
    model = root / "user000000"
    files = {
        path.relative_to(model): path.read_bytes() for path in model.rglob("*") if path.is_file()
    }
    for each in range(1, number):
        folder = root / f"user{each:06d}"
        (folder / "history").mkdir(parents=True)
        for name, data in files.items():
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(descriptor, data)
            os.close(descriptor)


def page(limit: int) -> Callable[[Diary], int]:
    """Return a function that lists the first namespaces."""

    def listed(diary: Diary) -> int:
        (found,) = ItemStore(diary).run([List(limit=limit)])
        return len(found) if isinstance(found, list) else 0

    return listed


def main() -> None:
    """Measure and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument(
        "--path", help="the parent of the folder; by default the system's temporary folder"
    )
    parser.add_argument(
        "--doctor", action="store_true", help="also measure the rows that read every user"
    )
    asked = parser.parse_args()
    rows: dict[str, Callable[[Diary], int]] = {
        "users()": lambda diary: len(diary.users()),
        "first page of namespaces": page(100),
    }
    if asked.doctor or asked.users <= WHOLE:
        rows["all namespaces"] = page(10**9)
        rows["doctor"] = lambda diary: len(check(diary))
    with tempfile.TemporaryDirectory(dir=asked.path) as folder:
        filled(Path(folder), asked.users)
        print(f"{asked.users} users; the target of the first two rows is {AIM:g} s for 100,000")
        for name, row in rows.items():
            times: list[float] = []
            for _ in range(2):
                diary = Diary(folder, agent="rules")
                started = time.perf_counter()
                found = row(diary)
                times.append(time.perf_counter() - started)
            first, again = times
            print(f"{name:26} {found:8} found   first {first:8.2f} s   again {again:8.2f} s")


if __name__ == "__main__":
    main()
