"""Work on a large memory does not hold the event loop."""

from __future__ import annotations

import asyncio
import time

import pytest
from pydantic import BaseModel

from tomldiary import CompactionConfig, Diary, PreferenceItem
from tomldiary.extraction import tools


class Table(BaseModel):
    """likes : what the person enjoys"""

    likes: dict[str, PreferenceItem] = {}


def vectors(texts):
    return [[float(len(text)), float(text.count("1")), 1.0] for text in texts]


@pytest.mark.parametrize("embedder", [None, vectors])
def test_reading_and_compacting_a_large_memory_do_not_hold_the_event_loop(embedder):
    compacted = []

    async def nothing(message, *, deps):
        assert "more are stored" in message

    diary = Diary(
        "memory:",
        Table,
        agent=nothing,
        max_prefs_per_category=5000,
        compaction_config=CompactionConfig(enabled=True, user_turn_interval=1),
        compactor=lambda message, *, deps: compacted.append(len(deps.preference_blocks())),
        embedder=embedder,
    )
    entries = (
        f'[preferences.likes.p{n}]\ntext = "thing number {n} with tea in city {n % 97}"\n'
        for n in range(1500)
    )
    exported = {"format": "tomldiary", "version": 1, "documents": {"preferences": "".join(entries)}}
    diary.user("alice").import_(exported)

    async def longest(call):
        """The CPU time of the longest step of the loop during a call."""
        steps = []
        turn = asyncio.create_task(call)
        while not turn.done():
            used = time.thread_time()
            await asyncio.sleep(0)
            steps.append(time.thread_time() - used)
        await turn
        return max(steps)

    turn = diary.update_memory("alice", "s", "Tea in city 5?", "Yes.")
    assert asyncio.run(longest(turn)) < 0.02
    assert compacted == [1500]
    for show in (
        lambda: diary.pretty_preferences("alice"),
        lambda: diary.preferences("alice", skip_metadata=True),
    ):
        # The garbage collector does not come at the same call each time.
        assert any(asyncio.run(longest(show())) < 0.02 for _ in range(3))


def test_the_event_loop_is_not_held_at_500_preferences(tmp_path):
    diary = Diary(tmp_path, Table, agent="rules", max_prefs_per_category=2000, durability="process")

    class Seeding:
        def run(self, message, *, deps):
            for number in range(500):
                deps.upsert("likes", None, f"likes thing number {number}", ())

    diary.agent = Seeding()
    diary.user("alice").add_turn("x", "y", "s")

    class Scripted:
        async def run(self, message, *, deps):
            ctx = type("Ctx", (), {"deps": deps})()
            await tools.upsert_preference(ctx, "likes", id="pref005")

    def fresh():
        return Diary(
            tmp_path, Table, agent=Scripted(), max_prefs_per_category=2000, durability="process"
        )

    async def held():
        """The CPU time of the longest step of the loop during each turn."""
        diary, steps, longest, done = fresh(), [], [], asyncio.Event()

        async def watch():
            while not done.is_set():
                used = time.thread_time()
                await asyncio.sleep(0)
                steps.append(time.thread_time() - used)

        watcher = asyncio.create_task(watch())
        for _ in range(2):  # with an empty cache, and with a filled one
            await diary.update_memory("alice", "s", "I still like it.", "Good.")
            await asyncio.sleep(0)
            longest.append(max(steps))
            steps.clear()
        done.set()
        await watcher
        return longest

    def whole():
        """The CPU time of a turn in all threads."""
        diary, used = fresh(), time.process_time()
        asyncio.run(diary.update_memory("alice", "s", "I still like it.", "Good."))
        return time.process_time() - used

    cost = min(whole() for _ in range(3))
    rounds = [asyncio.run(held()) for _ in range(3)]
    # The garbage collector does not come at the same turn of every round.
    for turn in zip(*rounds, strict=True):
        assert min(turn) <= cost / 50
