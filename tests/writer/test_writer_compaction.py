"""Clean-ups run as jobs of the writer: part by part, and a bad part costs the others nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest
from pydantic import BaseModel

from tomldiary import CompactionConfig, Diary, MemoryWriter, PreferenceItem, Turn
from tomldiary.errors import BackendError
from tomldiary.writer.attempts import RetryPolicy

LONG = 120
NAMES = ("books", "drinks", "food", "music", "places")
CONFIG = CompactionConfig(
    enabled=True, total_char_threshold=1, cooldown_seconds=3600, compact_conversations=False
)


class Table(BaseModel):
    """books, drinks, food, music, places : what the user likes"""

    books: dict[str, PreferenceItem] = {}
    drinks: dict[str, PreferenceItem] = {}
    food: dict[str, PreferenceItem] = {}
    music: dict[str, PreferenceItem] = {}
    places: dict[str, PreferenceItem] = {}


def remember(message, *, deps):
    for name in NAMES:
        deps.upsert(name, None, f"likes {name}", ())


class Shouting:
    """A compactor that rewrites every text in capitals, and fails at one category."""

    def __init__(self, bad=(), failures=1000, error=ValueError):
        self.bad, self.failures, self.error, self.seen = bad, failures, error, []

    def run(self, task, *, deps):
        blocks = deps.preference_blocks()
        categories = sorted({key.split("/")[0] for key, _ in blocks})
        self.seen.append(categories)
        if set(categories) & set(self.bad) and self.failures:
            self.failures -= 1
            raise self.error("the secret of this block")
        for key, entry in blocks:
            deps.rewrite_preference_block(key, text=entry["text"].upper())


def texts(diary):
    found = diary.user("alice").preferences()
    return {name: [item.text for item in items.values()] for name, items in found.items()}


def run(folder, compactor):
    diary = Diary(
        folder, Table, agent=remember, compactor=compactor, compaction_config=CONFIG, similarity=101
    )
    with MemoryWriter(diary, retry=RetryPolicy(5, 0.001, 0.001)) as writer:
        assert writer.submit_nowait(Turn("alice", "s", "hello", "hi")).wait(LONG).applied == 5
        assert writer.flush(LONG)
        writer.submit_nowait(Turn("alice", "s", "thanks", "hi")).wait(LONG)  # not due again
        assert writer.flush(LONG)
        return diary, writer.stats()


def test_a_compaction_runs_in_parts_and_is_not_due_again_at_once(tmp_path):
    compactor = Shouting()
    diary, stats = run(tmp_path, compactor)
    assert texts(diary) == {name: [f"LIKES {name.upper()}"] for name in NAMES}
    assert compactor.seen == [[name] for name in NAMES]
    assert (stats["compactions"], stats["compactions_failed"]) == (5, 0)
    assert "last_run" in asyncio.run(diary.preferences("alice"))


def test_a_failing_part_is_retried_then_parked_and_the_others_are_stored(tmp_path, caplog):
    compactor = Shouting(bad=["food"])
    with caplog.at_level(logging.INFO, "tomldiary"):
        diary, stats = run(tmp_path, compactor)
    expected = {name: [f"LIKES {name.upper()}"] for name in NAMES} | {"food": ["likes food"]}
    assert texts(diary) == expected
    assert compactor.seen.count(["food"]) == 2
    assert (stats["compactions"], stats["compactions_failed"]) == (4, 1)
    assert (stats["completed"], stats["failed"]) == (2, 0)
    assert "failed 2 times and is left until the next compaction: ValueError" in caplog.text
    assert "secret" not in caplog.text


def test_a_part_that_fails_once_is_stored_by_the_retry(tmp_path):
    diary, stats = run(tmp_path, Shouting(bad=["food"], failures=1))
    assert texts(diary) == {name: [f"LIKES {name.upper()}"] for name in NAMES}
    assert (stats["compactions"], stats["compactions_failed"]) == (5, 0)


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
def test_a_compactor_that_raises_base_exceptions_fails_like_any_other(tmp_path, caplog, error):
    diary, stats = run(tmp_path, Shouting(bad=["food"], error=error))
    assert texts(diary)["food"] == ["likes food"]
    assert (stats["compactions"], stats["compactions_failed"]) == (4, 1)
    assert f"left until the next compaction: {error.__name__}" in caplog.text


def test_a_compaction_that_cannot_begin_is_counted_and_tried_again(tmp_path, caplog):
    diary = Diary(
        tmp_path,
        Table,
        agent=remember,
        compactor=Shouting(),
        compaction_config=CONFIG,
        similarity=101,
    )
    due, failures = diary.compaction.due, [BackendError("quotes a secret")]

    async def fail_once(*arguments):
        if failures:
            raise failures.pop()
        return await due(*arguments)

    diary.compaction.due = fail_once
    with MemoryWriter(diary) as writer:
        for words in ("hello", "thanks"):
            writer.submit_nowait(Turn("alice", "s", words, "hi")).wait(LONG)
            assert writer.flush(LONG)
        stats = writer.stats()
    assert (stats["compactions"], stats["compactions_failed"]) == (5, 1)
    assert "a compaction failed: BackendError; it is tried again later" in caplog.text
    assert "secret" not in caplog.text


def test_turns_do_not_wait_for_a_compaction(tmp_path):
    gate, began = threading.Event(), threading.Event()

    class Slow:
        async def run(self, task, *, deps):
            began.set()
            while not gate.is_set():  # noqa: ASYNC110 - the event is of another thread
                await asyncio.sleep(0.002)

    diary = Diary(
        tmp_path, Table, agent=remember, compactor=Slow(), compaction_config=CONFIG, similarity=101
    )
    with MemoryWriter(diary, workers=1) as writer:
        writer.submit_nowait(Turn("alice", "s", "hello", "hi")).wait(LONG)
        assert began.wait(LONG)
        for _ in range(5):
            writer.submit_nowait(Turn("alice", "s", "thanks", "hi")).wait(LONG)
        assert not writer.flush(0)
        gate.set()
        assert writer.flush(LONG)


@pytest.mark.parametrize("drain", [True, False])
def test_close_waits_no_longer_than_its_timeout(tmp_path, drain):
    class Endless:
        async def run(self, task, *, deps):
            await asyncio.Event().wait()

    diary = Diary(tmp_path, Table, agent=remember, compactor=Endless(), compaction_config=CONFIG)
    writer = MemoryWriter(diary)
    writer.submit_nowait(Turn("alice", "s", "hello", "hi")).wait(LONG)
    start = time.monotonic()
    stats = writer.close_sync(0.1, drain=drain)
    assert time.monotonic() - start < LONG / 3
    assert (stats["completed"], stats["pending"]) == (1, 0)


def test_a_compactor_that_flushes_its_own_writer_gets_an_error(tmp_path):
    errors = []

    class Flushing(Shouting):
        def run(self, task, *, deps):
            try:
                writer.flush(LONG)
            except RuntimeError as error:
                errors.append(str(error))

    diary = Diary(tmp_path, Table, agent=remember, compactor=Flushing(), compaction_config=CONFIG)
    with MemoryWriter(diary) as writer:
        writer.submit_nowait(Turn("alice", "s", "hello", "hi")).wait(LONG)
        assert writer.flush(LONG)
    assert errors
    assert all("cannot flush or close its own writer" in error for error in errors)
