"""Count the files of the package that one operation uses: a put, a turn from `submit` to disk, a recall.

    python benchmarks/hops.py [--files]

Each operation runs on a new folder, and its second call is traced in every thread. A file counts if one of
its functions is called in each of three runs, because a periodic job may run beside the operation in some of them.
`--files` prints the names. tests/project/test_hops.py checks the limits.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import tomldiary
from tomldiary import Diary, MemoryWriter
from tomldiary.runtime.forgettable_cache import clear_caches
from tomldiary.store.operations import Put
from tomldiary.store.store import ItemStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

PACKAGE = Path(tomldiary.__file__).parent


class Trace:
    """Collects the called functions of the package while `is_on`, also in threads that start later."""

    def __init__(self) -> None:
        self.is_on = False
        self.called: set[CodeType] = set()

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            self.called.add(frame.f_code)

    def __enter__(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def __exit__(self, *_: object) -> None:
        self.is_on = False
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType] - None stops the tracing

    @property
    def files(self) -> list[str]:
        """The paths of the files, relative to the package."""
        names = {Path(code.co_filename).relative_to(PACKAGE) for code in self.called}
        return sorted(map(Path.as_posix, names))


def put(folder: Path, trace: Trace) -> None:
    """Trace the second put to a namespace."""
    store = ItemStore(Diary(folder))
    store.run([Put(("alice", "notes"), "one", {"text": "tea"})])
    trace.is_on = True
    store.run([Put(("alice", "notes"), "two", {"text": "coffee"})])


def turn(folder: Path, trace: Trace) -> None:
    """Trace the second turn of a user, from `submit` until it is applied."""

    async def run() -> None:
        async with MemoryWriter(Diary(folder, agent="rules")) as writer:
            for text in ("I love tea.", "I love coffee."):
                await writer.submit("alice", "s1", text, "Noted.")
                await asyncio.to_thread(writer.flush, 30)
                trace.is_on = not trace.is_on

    asyncio.run(run())


def recall(folder: Path, trace: Trace) -> None:
    """Trace a recall whose documents and index are up to date."""
    alice = Diary(folder).user("alice")
    alice.upsert_preference("likes", "green tea")
    alice.recall("tea")
    time.sleep(0.05)  # a folder that was changed within the last 10 ms is listed again
    alice.recall("tea")
    trace.is_on = True
    alice.recall("tea")


OPERATIONS: dict[str, Callable[[Path, Trace], None]] = {"put": put, "turn": turn, "recall": recall}


def measured(name: str) -> Trace:
    """Trace one operation on three new folders, and keep the functions that all runs called."""
    traces = Trace(), Trace(), Trace()
    for trace in traces:
        clear_caches()  # the runs use the same texts
        with tempfile.TemporaryDirectory() as folder, trace:
            OPERATIONS[name](Path(folder), trace)
    common = Trace()
    common.called = set.intersection(*(trace.called for trace in traces))
    return common


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", action="store_true")
    options = parser.parse_args()
    for name in OPERATIONS:
        trace = measured(name)
        print(f"{name:8}{len(trace.files):4} files {len(trace.called):5} functions")
        for file in trace.files if options.files else ():
            print(f"          {file}")


if __name__ == "__main__":
    main()
