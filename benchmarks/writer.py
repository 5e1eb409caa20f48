"""Compare `MemoryWriter` with raw appends, LangGraph's SqliteStore and TOMLDiary 0.9.

    python benchmarks/writer.py [--rounds 5] [--peer PYTHON] [--sqlite PYTHON] [--path DIR]

`submit` is the time until a turn is durable, with one caller and with eight callers on one event loop. Blocks of 20
submits alternate in one process with blocks of 20 appends of the same size with `fdatasync`. The medians are compared.
Their difference is the work of the writer. It includes two thread switches, because no sync may block the event loop.
It does not depend on the disk, so the ratio for one caller is lower on a faster disk. `SqliteStore.put`
(langgraph-checkpoint-sqlite) uses the same disk. The model never answers, so that only submitting is measured.

Throughput is the number of turns per second from the first `submit` to the end of `close`. The extractor waits as long
as a model would (0 or 20 ms) and stores one preference with `tomldiary.tools.upsert_preference`. There is one turn of
each of 500 new users, and there are ten turns of each of 50 users. TOMLDiary 0.9 neither syncs nor has a journal, so it
is compared with `durability="process"`; "full" is also printed. "CPU" is the processor time of a turn in microseconds,
including all threads and the system, which is reliable on a busy machine. The last table counts how many of 100 turns
of one user are in memory afterwards, with 8 workers.

Every run has a separate process and folder. Rounds alternate, every second one in reverse order, and medians are
printed. `--path` selects the disk. When ext4 creates a file, it skips the inodes of files that were removed in the last
five minutes, which costs a new user up to a millisecond. Therefore folders are kept until the end (up to 1 GB for three
rounds), and no program should have removed many files from that disk just before. A folder in memory has no such cost.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from update_memory import peer_python

SUBMIT = r"""
import asyncio, json, os, statistics, sys, time
from tomldiary import Diary, MemoryWriter
folder, count, callers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BLOCK = 20  # operations of one side before the other side's turn
SAID = "I am going to visit Paris next month with Anna, and I do not eat meat."
ANSWER = "Noted! Paris in spring is lovely; I will look for vegetarian places near the station."

async def never(message, *, deps):
    await asyncio.Event().wait()

async def main():
    raw = os.open(f"{folder}/raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    data = b"x" * 400
    writer = MemoryWriter(Diary(folder, agent=never), workers=8, qsize=100_000)
    for number in range(20):
        await writer.submit(f"warm-up {number}", "s", "hello", "hi")
    appends, submits = [], []

    async def caller(number):
        for _ in range(BLOCK):
            start = time.perf_counter()
            await writer.submit(f"user{number}", "s", SAID, ANSWER)
            if callers == 1:
                submits.append(time.perf_counter() - start)

    for _ in range(count // BLOCK):
        for _ in range(BLOCK):
            start = time.perf_counter()
            os.write(raw, data)
            os.fdatasync(raw)
            appends.append(time.perf_counter() - start)
        start = time.perf_counter()
        await asyncio.gather(*map(caller, range(callers)))
        if callers > 1:
            submits.append((time.perf_counter() - start) / (BLOCK * callers))
    await writer.close(drain=False)
    print(json.dumps({"raw": statistics.median(appends), "seconds": statistics.median(submits)}))
asyncio.run(main())
"""

SQLITE = r"""
import json, sys, time
from langgraph.store.sqlite import SqliteStore
folder, count = sys.argv[1], int(sys.argv[2])
with SqliteStore.from_conn_string(f"{folder}/store.db") as store:
    store.setup()
    value = {"user_msg": "x" * 70, "assistant_msg": "y" * 90}
    for number in range(5):
        store.put(("turns", "warm-up"), str(number), value)
    start = time.perf_counter()
    for number in range(count):
        store.put(("turns", "user"), str(number), value)
    print(json.dumps({"seconds": (time.perf_counter() - start) / count}))
"""

TURNS = r'''
import asyncio, json, os, sys, time, tomllib
from pathlib import Path
os.environ.setdefault("OPENAI_API_KEY", "none")
folder, side = sys.argv[1:3]
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
    options = {"durability": side} if side != "peer" else {}
    diary = Diary(LocalBackend(Path(folder), **options), Table, agent=Scripted(), max_prefs_per_category=10_000)
    await diary.update_memory("warm-up", "s", "hello", "hi")
    writer = MemoryWriter(diary, workers=workers)
    start, busy = time.perf_counter(), time.process_time()
    for turn in range(turns):
        for user in range(users):
            await writer.submit(f"user{user}", "s", "hello", "hi")
    await writer.close()
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    kept = 0
    for user in range(users):
        found = tomllib.loads(await diary.preferences(f"user{user}"))
        kept += len(found.get("preferences", {}).get("likes", {}))
    count = users * turns
    print(json.dumps({"rate": count / seconds, "kept": kept, "cpu": busy / count * 1e6}))
asyncio.run(main())
'''


def measure(python: str, code: str, *arguments: object) -> dict[str, float]:
    """Run one script in a new process and folder, and return its output."""
    folder = tempfile.mkdtemp()
    command = [python, "-c", code, folder, *map(str, arguments)]
    # The other Pythons must not import modules of this project.
    paths = os.environ.get("PYTHONPATH", "") if python == sys.executable else ""
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    if done.returncode:
        sys.exit(f"{command[3:]} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def sqlite_python(given: str | None) -> str:
    """Return a Python with LangGraph's SqliteStore, installed into a venv if none is given; "" for "none"."""
    if given:
        return "" if given == "none" else given
    folder = Path(tempfile.gettempdir()) / "sqlite-store-venv"
    python = folder / "bin" / "python"
    if not python.exists():
        print("installing langgraph-checkpoint-sqlite into a new venv …", flush=True)
        venv.create(folder, with_pip=True)
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "langgraph-checkpoint-sqlite",
            "langgraph",
        ]
        subprocess.run(command, check=True)
    return str(python)


def submits(rounds: int, count: int, sqlite: str) -> None:
    """Print the time until a turn is durable."""
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        found.setdefault("one", []).append(measure(sys.executable, SUBMIT, count, 1))
        found.setdefault("eight", []).append(measure(sys.executable, SUBMIT, count, 8))
        if sqlite:
            puts = max(20, count // 10)
            found.setdefault("sqlite", []).append(measure(sqlite, SQLITE, puts))

    def median(name: str, field: str = "seconds") -> float:
        return statistics.median(each[field] for each in found[name])

    print("until a turn is durable, microseconds        append + fdatasync      submit     ratio")
    for name in ("one", "eight"):
        raw, took = median(name, "raw"), median(name)
        print(
            f"  {name + ' caller' + 's' * (name != 'one'):<40} {raw * 1e6:>18.0f} {took * 1e6:>11.0f}"
            f" {raw / took:>7.2f} x",
            flush=True,
        )
    if not sqlite:
        return
    print(
        f"  SqliteStore.put {median('sqlite') * 1e6:>42.0f}   submit takes"
        f" {median('one') / median('sqlite'):.2f} of that",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--count", type=int, default=400, help="turns that are submitted in a round"
    )
    parser.add_argument("--users", type=int, default=500)
    parser.add_argument("--peer", help="a Python that has TOMLDiary 0.9 installed")
    parser.add_argument(
        "--sqlite",
        help="a Python that has langgraph-checkpoint-sqlite installed; none: leave SqliteStore out",
    )
    parser.add_argument("--only", choices=["submit", "turns"])
    parser.add_argument("--path", help="a folder on the disk to measure")
    options = parser.parse_args()
    peer = peer_python(options.peer) if options.only != "submit" else ""
    sqlite = sqlite_python(options.sqlite) if options.only != "turns" else ""
    with tempfile.TemporaryDirectory(dir=options.path) as place:
        tempfile.tempdir = place
        run(options, peer, sqlite)


def run(options: argparse.Namespace, peer: str, sqlite: str) -> None:
    """Run the selected measurements, in folders that are kept until the end."""
    print(
        f"load average {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores; medians of {options.rounds}"
    )
    if options.only != "turns":
        submits(options.rounds, options.count, sqlite)
    if options.only == "submit":
        return
    sides = [(peer, "peer"), (sys.executable, "process"), (sys.executable, "full")]

    def medians(*numbers: int) -> dict[str, list[float]]:
        found: dict[str, dict[str, list[float]]] = {}
        for number in range(options.rounds):
            for python, side in sides if number % 2 == 0 else reversed(sides):
                for field, value in measure(python, TURNS, side, *numbers).items():
                    found.setdefault(field, {}).setdefault(side, []).append(value)
        return {
            field: [statistics.median(values[side]) for _, side in sides]
            for field, values in found.items()
        }

    print(
        "\nturns per second        workers  latency  TOMLDiary 0.9   process      full   ratios"
        "      CPU: 0.9  process  ratio"
    )
    for users, turns in ((options.users, 1), (options.users // 10, 10)):
        for latency in (0, 20):
            for workers in (1, 8, 32):
                found = medians(workers, users, turns, latency)
                theirs, process, full = found["rate"]
                their_cpu, cpu, _ = found["cpu"]
                print(
                    f"{users:>4} users x {turns:>2} turns {workers:>9} {latency:>5} ms {theirs:>14.0f}"
                    f" {process:>9.0f} {full:>9.0f}   {process / theirs:.1f}x {full / theirs:.1f}x"
                    f" {their_cpu:>12.0f} {cpu:>8.0f} {their_cpu / cpu:>5.1f}x",
                    flush=True,
                )
    print("\none user, 100 turns, 8 workers: turns that are in memory afterwards")
    for latency in (0, 20):
        theirs, process, full = medians(8, 1, 100, latency)["kept"]
        print(f"{latency:>31} ms {theirs:>14.0f} {process:>9.0f} {full:>9.0f}", flush=True)


if __name__ == "__main__":
    main()
