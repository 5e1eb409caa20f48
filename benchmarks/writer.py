"""Turns per second through `MemoryWriter`, and turns that survive it, beside TOMLDiary 0.9.

    python benchmarks/writer.py [--rounds 3] [--peer PYTHON]

Both sides run the same scripted extractor, which waits as long as a model would (0 or 20 ms) and then
stores one preference with `tomldiary.tools.upsert_preference`. The first table is one turn of each of
200 users, from the first `submit` to the end of `close`; the second counts which of 100 turns of one
user are in memory afterwards, with 8 workers. The peer does not sync, so the comparison is with
`durability="process"`; "full" is shown beside it. Every run has a process and a folder of its own;
rounds alternate, medians are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from update_memory import peer_python

WORKER = r'''
import asyncio, json, os, sys, time, tomllib
from pathlib import Path
os.environ.setdefault("OPENAI_API_KEY", "none")
side, folder = sys.argv[1:3]
workers, users, turns, latency = map(int, sys.argv[3:7])
from pydantic import BaseModel
from tomldiary import Diary, MemoryWriter, PreferenceItem
from tomldiary.backends import LocalBackend
import tomldiary.tools as tools

class Table(BaseModel):
    """likes : what the user enjoys"""
    likes: dict[str, PreferenceItem] = {}

class Context:
    def __init__(self, deps): self.deps = deps

numbers = iter(range(10**9))

class Scripted:
    async def run(self, message, *, deps):
        if latency:
            await asyncio.sleep(latency / 1000)
        text = f"thing number {next(numbers)}"
        await tools.upsert_preference(Context(deps), "likes", id="new", text=text)

async def main():
    options = {"durability": side[5:]} if side.startswith("ours-") else {}
    diary = Diary(LocalBackend(Path(folder), **options), Table, agent=Scripted(), max_prefs_per_category=10_000)
    await diary.update_memory("warm-up", "s", "hello", "hi")
    writer = MemoryWriter(diary, workers=workers)
    start = time.perf_counter()
    for turn in range(turns):
        for user in range(users):
            await writer.submit(f"user{user}", "s", "hello", "hi")
    await writer.close()
    seconds = time.perf_counter() - start
    kept = 0
    for user in range(users):
        found = tomllib.loads(await diary.preferences(f"user{user}"))
        kept += len(found.get("preferences", {}).get("likes", {}))
    print(json.dumps({"rate": users * turns / seconds, "kept": kept, "failed": writer.stats()["failed"]}))
asyncio.run(main())
'''


def measure(python: str, side: str, *numbers: int) -> dict[str, float]:
    """Run one side in a process of its own; `numbers` are workers, users, turns and latency in ms."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-c", WORKER, side, folder, *map(str, numbers)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        sys.exit(f"{side} {numbers} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help="a Python that has TOMLDiary 0.9 installed")
    options = parser.parse_args()
    peer = peer_python(options.peer)
    sides = [(peer, "peer"), (sys.executable, "ours-process"), (sys.executable, "ours-full")]
    print(
        f"load average {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores; medians of {options.rounds}"
    )

    def medians(field: str, *numbers: int) -> list[float]:
        found: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for python, side in sides:
                found.setdefault(side, []).append(measure(python, side, *numbers)[field])
        return [statistics.median(found[side]) for _, side in sides]

    print("\n200 users, one turn each: turns/s")
    print(
        f"{'workers':>8} {'latency':>8} {'TOMLDiary 0.9':>14} {'process':>9} {'full':>9}   ratios"
    )
    for latency in (0, 20):
        for workers in (1, 2, 8):
            theirs, process, full = medians("rate", workers, 200, 1, latency)
            print(
                f"{workers:>8} {latency:>5} ms {theirs:>14.0f} {process:>9.0f} {full:>9.0f}"
                f"   {process / theirs:.1f}x {full / theirs:.1f}x",
                flush=True,
            )
    print("\none user, 100 turns, 8 workers: turns that are in memory afterwards")
    for latency in (0, 20):
        theirs, process, full = medians("kept", 8, 1, 100, latency)
        print(f"{latency:>14} ms {theirs:>14.0f} {process:>9.0f} {full:>9.0f}", flush=True)


if __name__ == "__main__":
    main()
