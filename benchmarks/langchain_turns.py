"""Measure the time that `DiaryMiddleware` adds to an agent's turn, for a user with 1,000 preferences.

    python benchmarks/langchain_turns.py [--turns 100] [--preferences 1000]

Runs a real agent with a scripted model, once with `invoke` and once with `ainvoke`, and measures the hooks
of each turn. Between the turns, a record of the same length as the turn is appended to a file and synced with
fdatasync, which is the current cost of a durable write on this machine. The cost of the middleware is the time
of `after_agent` minus this cost. It must be at most 2 ms; otherwise the exit code is 1. Extraction runs in the
background. The benchmark waits for it after each turn, outside of the measured times.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langgraph.checkpoint.memory import InMemorySaver

from tomldiary import Diary
from tomldiary_langchain import DiaryMiddleware

PROMISED = 2.0  # milliseconds
ANSWER = "Here is what I found for you. " * 20
Times = defaultdict[str, list[float]]


class Timed(DiaryMiddleware):
    """Records the times of its hooks in milliseconds."""

    def __init__(self, diary: Diary) -> None:
        super().__init__(diary, user_id="alice")
        self.times: Times = defaultdict(list)

    def _took(self, what: str, start: float) -> None:
        self.times[what].append((time.perf_counter() - start) * 1000)

    def before_agent(self, state: Any, runtime: Any) -> Any:
        """Time the reading."""
        start = time.perf_counter()
        result = super().before_agent(state, runtime)
        self._took("before_agent", start)
        return result

    def after_agent(self, state: Any, runtime: Any) -> None:
        """Time the submission."""
        start = time.perf_counter()
        result = super().after_agent(state, runtime)
        self._took("after_agent", start)
        return result

    async def abefore_agent(self, state: Any, runtime: Any) -> Any:
        """Time the reading."""
        start = time.perf_counter()
        result = await super().abefore_agent(state, runtime)
        self._took("before_agent", start)
        return result

    async def aafter_agent(self, state: Any, runtime: Any) -> Any:
        """Time the submission."""
        start = time.perf_counter()
        result = await super().aafter_agent(state, runtime)
        self._took("after_agent", start)
        return result


def measure(folder: Path, mode: str, turns: int, preferences: int) -> Times:
    """Run the turns; return the times of the hooks and of the raw append."""
    diary = Diary(folder / "memories", agent="rules", max_prefs_per_category=10_000)
    alice = diary.user("alice")
    with alice.transaction() as transaction:
        for number in range(preferences):
            transaction.upsert_preference("likes", f"thing number {number} of a long list")
    middleware = Timed(diary)
    agent = create_agent(
        FakeListChatModel(responses=[ANSWER]), middleware=[middleware], checkpointer=InMemorySaver()
    )
    thread: Any = {"configurable": {"thread_id": "t1"}}
    loop = asyncio.new_event_loop()
    raw = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for number in range(turns):
            question = f"What about number {number}? I like it."
            record = f"{question}{ANSWER}\n".encode()
            start = time.perf_counter()
            os.write(raw, record)
            os.fdatasync(raw)
            middleware.times["append + fdatasync"].append((time.perf_counter() - start) * 1000)
            given: Any = {"messages": [{"role": "user", "content": question}]}
            if mode == "invoke":
                agent.invoke(given, thread)
            else:
                loop.run_until_complete(agent.ainvoke(given, thread))
            middleware.writer.flush()
    finally:
        os.close(raw)
        loop.close()
        middleware.writer.close_sync()
    stats = middleware.writer.stats()
    if (stats["completed"], stats["failed"]) != (turns, 0):
        sys.exit(f"{turns} turns were run, and the writer reports {stats}")
    return middleware.times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--preferences", type=int, default=1000)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores")
    print(f"{options.turns} turns, {options.preferences} preferences; ms")
    worst = 0.0
    for mode in ("invoke", "ainvoke"):
        with tempfile.TemporaryDirectory() as folder:
            times = measure(Path(folder), mode, options.turns, options.preferences)
        print(f"\n{mode:<22} {'median':>8} {'p95':>8}")
        for what, took in sorted(times.items()):
            print(f"{what:<22} {statistics.median(took):>8.3f} {statistics.quantiles(took, n=20)[-1]:>8.3f}")  # fmt: skip
        added = statistics.median(times["after_agent"])
        less = added - statistics.median(times["append + fdatasync"])
        print(f"after_agent minus the append: {less:.3f}")
        worst = max(worst, less)
    if worst > PROMISED:
        sys.exit(f"after_agent adds {worst:.3f} ms; the limit is {PROMISED} ms")


if __name__ == "__main__":
    main()
