"""Measure what memory adds to a pydantic-ai run, in time and in characters sent, compared with other memories.

    python benchmarks/pydantic_ai.py [--runs 60] [--harness PYTHON] [--deep PYTHON]

The first table shows the time that memory adds to a run whose model only answers, and to a run whose model
first stores something. Each run is followed by the same run without memory and by an append of 200 bytes with
fdatasync, so that the load of the machine affects all three equally. The values are medians in milliseconds.
"less sync" subtracts one such append, which every durable store requires. "CPU" is processor time, which is more
meaningful on a busy machine, and includes the work of a writer after the run.

The second table shows the characters that 20 turns of one conversation send if memory gains a fact before each
turn. Memory has 40 facts of 51 characters at first; prompts and answers have 190. A unit is one character sent.
A character in an unchanged prefix of the previous request counts a tenth, as prompt caches bill it.

The other memories run in separate environments, because pydantic-ai-harness pins the framework. Set them here or in
$TOMLDIARY_HARNESS_PYTHON and $TOMLDIARY_DEEP_PYTHON; without an environment, its rows are omitted.
"""

# ruff: noqa: PLC0415 - each side imports packages of its own environment
from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Otherwise this file would be imported in place of the framework.
sys.path[:] = [place for place in sys.path if Path(place).resolve() != HERE]

OURS = ("ours", "ours, writer", "ours, toolset", "ours, AgentMemoryToolset")
HARNESS = ("harness, FileStore", "harness, SQLite", "harness, TomlMemoryStore")
DEEP = ("deep, AgentMemoryToolset",)
TURNS = 20


def fact(number: int) -> str:
    return f"fact {number:04} is something the user once told the agent"


def read_nothing(_message: str, *, deps: Any) -> None:
    """Extract nothing."""


class Side:
    """A memory with some facts, and the agent that uses it."""

    def __init__(self, name: str, folder: str, facts: int) -> None:
        self.name, self.folder = name, folder
        self.texts = [fact(number) for number in range(facts)]
        self.options: dict[str, Any] = {}
        self.writer: Any = None
        self.note = ("write_memory", {"content": "- noted"})
        self.add: Any = None
        kind = name.partition(", ")[2]
        if name in OURS and kind != "AgentMemoryToolset":
            self._ours(kind)
        elif kind == "AgentMemoryToolset" and name in OURS:
            self._notes_of_ours()
        elif name in DEEP:
            self._deep()
        else:
            self._harness(kind)

    def _ours(self, kind: str) -> None:
        from tomldiary import Diary, MemoryWriter
        from tomldiary_pydantic_ai import DiaryCapability, DiaryToolset

        diary = Diary(self.folder, agent=read_nothing, max_prefs_per_category=5000)
        alice = diary.user("alice")
        with alice.transaction():
            for text in self.texts:
                alice.upsert_preference("likes", text)
        self.add = lambda text: alice.upsert_preference("likes", text)
        self.note = ("remember", {"text": "", "category": "likes"})
        if kind == "toolset":
            self.options = {"toolsets": [DiaryToolset(diary, "alice")]}
            return
        self.writer = MemoryWriter(diary) if kind == "writer" else None
        records = self.writer is not None
        memory = DiaryCapability(diary, "alice", writer=self.writer, record=records)
        self.options = {"capabilities": [memory]}

    def _notes_of_ours(self) -> None:
        from tomldiary_pydantic_ai import AgentMemoryToolset
        from tomldiary_pydantic_ai.memory_document import SHARED_OWNER

        toolset = AgentMemoryToolset(memory_dir=self.folder)
        owner = toolset.diary.user(SHARED_OWNER)
        owner.blocks.set("main", "\n".join(f"- {text}" for text in self.texts))
        self.add = lambda text: owner.blocks.append("main", f"- {text}")
        self.options = {"toolsets": [toolset]}

    def _deep(self) -> None:
        from pydantic_ai.capabilities import LocalWorkspace
        from pydantic_deep.features.memory.toolset import AgentMemoryToolset

        file = Path(self.folder) / ".deep" / "memory" / "main" / "MEMORY.md"
        file.parent.mkdir(parents=True)
        file.write_text("\n".join(f"- {text}" for text in self.texts), "utf-8")
        self.add = lambda text: file.write_text(f"{file.read_text('utf-8')}\n- {text}", "utf-8")
        self.options = {
            "toolsets": [AgentMemoryToolset(memory_dir=".deep/memory")],
            "capabilities": [LocalWorkspace(self.folder)],
        }

    def _harness(self, kind: str) -> None:
        from pydantic_ai.capabilities import LocalWorkspace
        from pydantic_ai_harness import Memory
        from pydantic_ai_harness.memory import FileStore, SqliteMemoryStore

        path = "main/MEMORY.md"
        if kind == "FileStore":
            file = Path(self.folder) / ".memory" / "main" / "MEMORY.md"
            file.parent.mkdir(parents=True)
            file.write_text("\n".join(f"- {text}" for text in self.texts), "utf-8")
            self.add = lambda text: file.write_text(f"{file.read_text('utf-8')}\n- {text}", "utf-8")
            self.options = {
                "capabilities": [LocalWorkspace(self.folder), Memory(FileStore(".memory"))]
            }
            return
        if kind == "SQLite":
            store: Any = SqliteMemoryStore(database=f"{self.folder}/memory.db")
        else:
            from tomldiary_pydantic_ai import TomlMemoryStore

            store = TomlMemoryStore(self.folder)

        async def write(text: str, old: Any) -> None:
            version = old.version if old is not None else None
            before = f"{old.content}\n" if old is not None else ""
            await store.write(path, before + text, expected_version=version)

        async def add(text: str) -> None:
            await write(f"- {text}", await store.read(path, max_chars=10**7))

        asyncio.run(write("\n".join(f"- {text}" for text in self.texts), None))
        self.add = add
        self.options = {"capabilities": [Memory(store)]}


async def overhead(side: Side, runs: int) -> dict[str, float]:
    """Return the time that memory adds to a run: the median difference of adjacent runs in milliseconds."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel

    count = 0

    def answer(_messages: Any, _info: Any) -> ModelResponse:
        return ModelResponse(parts=[TextPart("done")])

    def noting(messages: Any, info: Any) -> ModelResponse:
        nonlocal count
        if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
            return answer(messages, info)
        count += 1
        name, arguments = side.note if info.function_tools[0].name != "nothing" else ("nothing", {})
        said = {key: f"noted {count:05} now" if key in {"text", "content"} else value for key, value in arguments.items()}  # fmt: skip
        return ModelResponse(parts=[ToolCallPart(name, said)])

    def nothing() -> str:
        return "done"

    found: dict[str, float] = {}
    descriptor = os.open(f"{side.folder}/raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for job, respond in (("answers", answer), ("notes", noting)):
        bare = Agent(FunctionModel(respond), tools=[nothing])
        full = Agent(FunctionModel(respond), **side.options)
        times: dict[str, list[float]] = {"with": [], "without": [], "raw": [], "CPU": []}
        for number in range(runs + 5):
            cpu: list[float] = []
            for name, agent in (("with", full), ("without", bare)):
                start, used = time.perf_counter(), time.process_time()
                await agent.run("hello")
                times[name].append(time.perf_counter() - start)
                if side.writer is not None and name == "with":
                    # Otherwise the writer would work while the next run is measured.
                    await side.writer.aflush()
                cpu.append(time.process_time() - used)
            times["CPU"].append(cpu[0] - cpu[1])
            start = time.perf_counter()
            os.write(descriptor, b"x" * 200)
            os.fdatasync(descriptor)
            times["raw"].append(time.perf_counter() - start)
            if number == 4:  # loads imports and caches
                times = {name: [] for name in times}
        pairs = zip(times["with"], times["without"], strict=True)
        added = statistics.median(one - other for one, other in pairs)
        found[job] = 1000 * added
        found[f"{job}, less sync"] = 1000 * (added - statistics.median(times["raw"]))
        found[f"{job}, CPU"] = 1000 * statistics.median(times["CPU"])
    os.close(descriptor)
    return found


async def characters(side: Side) -> dict[str, float]:
    """Return the characters that a conversation of 20 turns sends if memory gains a fact before each turn."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    sent: list[str] = []

    def respond(messages: Any, info: Any) -> ModelResponse:
        sent.append((info.instructions or "") + "\n" + "\n".join(map(_text, messages)))
        return ModelResponse(parts=[TextPart(f"answer {len(sent)} ".ljust(190, "a"))])

    agent = Agent(FunctionModel(respond), **side.options)
    history: list[Any] = []
    for turn in range(TURNS):
        added = side.add(fact(len(side.texts) + turn))
        if asyncio.iscoroutine(added):
            await added
        result = await agent.run(f"prompt {turn} ".ljust(190, "p"), message_history=history)
        history = result.all_messages()
    units, before = 0.0, ""
    for text in sent:
        pairs = enumerate(zip(before, text, strict=False))
        same = next((at for at, (old, new) in pairs if old != new), min(len(before), len(text)))
        units += len(text) - same + 0.1 * same
        before = text
    return {"total": sum(map(len, sent)), "units": units, "last request": len(sent[-1])}


def _text(message: Any) -> str:
    texts: list[str] = []
    for part in message.parts:
        content = getattr(part, "content", "")
        items = [content] if isinstance(content, str) else content
        texts += [item if isinstance(item, str) else str(getattr(item, "content", "")) for item in items]  # fmt: skip
    return "\n".join(texts)


def work(name: str, facts: int, runs: int) -> None:
    """Measure one side, and print the results as JSON."""
    from pydantic_ai import models

    models.ALLOW_MODEL_REQUESTS = False
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        side = Side(name, folder, facts)
        found = asyncio.run(overhead(side, runs) if runs else characters(side))
        if side.writer is not None:
            side.writer.close_sync()
    print(json.dumps(found))


def measured(python: str, name: str, facts: int, runs: int) -> dict[str, float]:
    code = [python, str(HERE / "pydantic_ai.py"), "--side", name, "--facts", str(facts), "--runs", str(runs)]  # fmt: skip
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--harness", default=os.environ.get("TOMLDIARY_HARNESS_PYTHON"))
    parser.add_argument("--deep", default=os.environ.get("TOMLDIARY_DEEP_PYTHON"))
    parser.add_argument("--side")
    parser.add_argument("--facts", type=int, default=1000)
    given = parser.parse_args()
    if given.side:
        work(given.side, given.facts, given.runs)
        return
    pythons = {sys.executable: OURS, given.harness: HARNESS, given.deep: DEEP}
    sides = [(python, name) for python, names in pythons.items() if python for name in names]
    columns = [
        f"{job}{kind}" for job in ("answers", "notes") for kind in ("", ", less sync", ", CPU")
    ]
    print(f"{'ms added to a run':28} {'facts':>5} " + " ".join(f"{name:>18}" for name in columns))
    for facts in (10, 1000):
        for python, name in sides:
            found = measured(python, name, facts, given.runs)
            figures = " ".join(f"{found[column]:18.2f}" for column in columns)
            print(f"{name:28} {facts:5} {figures}")
    print(
        f"\n{'20 turns, 1 new fact each':28} {'characters':>10} {'units':>8} {'last request':>12}"
    )
    for python, name in sides:
        found = measured(python, name, 40, 0)
        print(f"{name:28} {found['total']:10.0f} {found['units']:8.0f} {found['last request']:12.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
