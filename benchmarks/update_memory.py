"""Compare the turns per second of `update_memory` with TOMLDiary 0.9 in a separate venv.

    python benchmarks/update_memory.py [--rounds 3] [--peer PYTHON]

Both sides run the same scripted extractor, which calls `tomldiary.tools.upsert_preference` once for each turn
with the id of an existing entry. The user has 10, 100 and 1,000 preferences in a category, which each side has
stored itself. TOMLDiary 0.9 does not sync, so it is compared with `durability="process"`; "full" is also printed.
A second table runs both sides with a pydantic-ai agent and a scripted model, and prints the rate of the agent
without memory, which no memory can exceed. Rounds alternate, and medians are printed.
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

WORKER = r'''
import asyncio, json, os, sys, tempfile, time
os.environ.setdefault("OPENAI_API_KEY", "none")
side, driver, size, seconds, folder = sys.argv[1:6]
size, seconds = int(size), float(seconds)
from pydantic import BaseModel
from tomldiary import Diary, PreferenceItem
from tomldiary.backends import LocalBackend
import tomldiary.tools as tools

class Table(BaseModel):
    """likes : what the user enjoys"""
    likes: dict[str, PreferenceItem] = {}

class Context:
    def __init__(self, deps): self.deps = deps

class Scripted:
    async def run(self, message, *, deps):
        await tools.upsert_preference(Context(deps), "likes", id="pref005")

class Seeding:
    def __init__(self, size): self.size = size
    async def run(self, message, *, deps):
        for number in range(self.size):
            text = f"likes thing number {number} of a long list of things that people like"
            await tools.upsert_preference(Context(deps), "likes", id="new", text=text)

def framework_agent(with_tool):
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel
    def answer(messages, info):
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart(with_tool, {"category": "likes", "id": "pref005"})])
        return ModelResponse(parts=[TextPart("done")])
    if with_tool == "upsert_preference":
        from tomldiary import extractor_agent
        return extractor_agent(Table, FunctionModel(answer))
    agent = Agent(FunctionModel(answer))
    @agent.tool_plain
    async def nothing(category: str, id: str) -> str:
        return "ok"
    return agent

async def stall(gaps, stop):
    while not stop.is_set():
        start = time.perf_counter()
        await asyncio.sleep(0.001)
        gaps.append(time.perf_counter() - start - 0.001)

async def main():
    if driver == "floor":
        agent = framework_agent("nothing")
        async def turn(): await agent.run("turn")
    else:
        agent = Scripted() if driver == "scripted" else framework_agent("upsert_preference")
        if side.startswith("ours-"):
            backend = LocalBackend(folder, durability=side[5:])
        else:
            from pathlib import Path
            backend = LocalBackend(Path(folder))
        diary = Diary(backend, Table, agent=agent, max_prefs_per_category=100_000)
        diary.agent = Seeding(size)
        await diary.update_memory("u", "seed", "A long list.", "Noted.")
        diary.agent = agent
        async def turn(): await diary.update_memory("u", "s", "I still like it.", "Good.")
    for _ in range(3):
        await turn()
    gaps, stop = [], asyncio.Event()
    watch = asyncio.create_task(stall(gaps, stop))
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        await turn(); count += 1
    rate = count / (time.perf_counter() - start)
    stop.set(); await watch
    print(json.dumps({"rate": rate, "stall": max(gaps) * 1000}))
asyncio.run(main())
'''


def measure(python: str, side: str, driver: str, size: int, seconds: float) -> dict[str, float]:
    """Run one side in a new process; return turns per second and the longest stall (ms)."""
    # The Python of TOMLDiary 0.9 must not import modules of this project.
    paths = os.environ.get("PYTHONPATH", "") if python == sys.executable else ""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, "-c", WORKER, side, driver, str(size), str(seconds), folder],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths},
        )
    if done.returncode:
        sys.exit(f"{side}/{driver}/{size} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def peer_python(given: str | None) -> str:
    """Return a Python with TOMLDiary 0.9; install it into a new venv if none is given."""
    if given:
        return given
    folder = Path(tempfile.gettempdir()) / "tomldiary-0.9-venv"
    python = folder / "bin" / "python"
    if not python.exists():
        print("installing TOMLDiary 0.9.0 into a new venv …", flush=True)
        venv.create(folder, with_pip=True)
        # TOMLDiary 0.9 does not declare its dependency httpx.
        command = [str(python), "-m", "pip", "install", "-q", "tomldiary==0.9.0", "httpx"]
        subprocess.run(command, check=True)
    return str(python)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--drivers", nargs="+", default=["scripted", "pydantic-ai"])
    parser.add_argument("--peer", help="a Python that has TOMLDiary 0.9 installed")
    options = parser.parse_args()
    peer = peer_python(options.peer)
    sides = [(peer, "peer"), (sys.executable, "ours-process"), (sys.executable, "ours-full")]
    print(
        f"load average {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores; medians of {options.rounds}"
    )
    for driver in options.drivers:
        print(f"\n{driver} extractor      turns/s (longest stall of the event loop, ms)")
        print(
            f"{'entries':>8} {'TOMLDiary 0.9':>18} {'process':>18} {'full':>18}   ratio  ratio full"
        )
        for size in (10, 100, 1000):
            found: dict[str, list[dict[str, float]]] = {}
            for _ in range(options.rounds):
                for python, side in sides:
                    result = measure(python, side, driver, size, options.seconds)
                    found.setdefault(side, []).append(result)
            rate = {s: statistics.median(r["rate"] for r in rows) for s, rows in found.items()}
            stall = {s: max(r["stall"] for r in rows) for s, rows in found.items()}
            cells = " ".join(f"{rate[s]:>9.0f} ({stall[s]:>5.1f})" for _, s in sides)
            print(
                f"{size:>8} {cells}  {rate['ours-process'] / rate['peer']:>5.1f}x"
                f" {rate['ours-full'] / rate['peer']:>8.1f}x",
                flush=True,
            )
    for name, python in (("TOMLDiary 0.9's pydantic-ai", peer), ("ours", sys.executable)):
        floor = measure(python, "none", "floor", 0, options.seconds)
        print(
            f"floor: a pydantic-ai agent alone, two requests ({name}): {floor['rate']:.0f} turns/s"
        )


if __name__ == "__main__":
    main()
