"""Turns are committed in worker threads, so neither a locked user nor a function that hangs holds the others up."""

from __future__ import annotations

import threading

import pytest
from pydantic import BaseModel

from tomldiary import Diary, MemoryWriter, PreferenceItem, RetryPolicy
from tomldiary.errors import ExtractionError
from tomldiary.runtime.async_bridge import SCOPE
from tomldiary.writer.worker import THREADS
from tomldiary.writer.writer import Turn
from waiting import until

LONG = 120  # seconds; only a broken writer takes that long


class Table(BaseModel):
    """likes : what the person enjoys"""

    likes: dict[str, PreferenceItem] = {}


class Remembering:
    """An extractor that stores what the user said and records the thread it runs in."""

    def __init__(self):
        self.threads = set()

    async def run(self, message, *, deps):
        self.threads.add(threading.get_ident())
        deps.upsert("likes", None, deps.user_msg, ())


def diary_at(folder, durability="process"):
    return Diary(folder, Table, agent=Remembering(), durability=durability)


def texts(diary, user):
    found = diary.user(user).preferences().values()
    return [item.text for items in found for item in items.values()]


@pytest.mark.parametrize("durability", ["full", "process", "none", "memory"])
def test_a_turn_is_committed_outside_the_event_loop(tmp_path, monkeypatch, durability):
    is_in_memory = durability == "memory"
    diary = diary_at("memory:") if is_in_memory else diary_at(tmp_path, durability)
    threads = set()
    commit = diary.engine.backend.commit

    def recorded(user, work):
        threads.add(threading.get_ident())
        return commit(user, work)

    monkeypatch.setattr(diary.engine.backend, "commit", recorded)
    with MemoryWriter(diary, workers=4) as writer:
        for number in range(10):
            writer.submit_nowait(Turn(f"user{number % 5}", "s", f"thing {number}", "ok"))
        assert writer.flush(LONG)
        assert writer.stats()["completed"] == 10
    assert threads
    assert not threads & diary.agent.threads
    assert texts(diary, "user3") == ["thing 3", "thing 8"]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_lock_of_another_process_delays_no_other_user(tmp_path, is_known):
    diary = diary_at(tmp_path)
    if is_known:
        diary.user("locked").upsert_preference("likes", "tea")
    other = diary_at(tmp_path)  # has locks of its own, as another process does
    with MemoryWriter(diary, workers=2) as writer:
        with other.engine.backend.lock("locked", LONG):
            waiting = writer.submit_nowait(Turn("locked", "s", "coffee", "ok"))
            for user in ("anna", "bert", "carl"):
                writer.submit_nowait(Turn(user, "s", "walks", "ok")).wait(LONG / 3)
            assert not waiting.is_done
        assert waiting.wait(LONG).applied == 1
    assert texts(diary, "locked")[-1] == "coffee"
    assert diary.user("locked").preferences()["likes"].keys() == (
        {"pref001", "pref002"} if is_known else {"pref001"}
    )


@pytest.fixture
def _closed_scope(tmp_path):
    """A transaction that an interrupt has closed without a reset of its context variable."""
    with Diary(tmp_path / "other", Table).user("alice").transaction():
        scope = SCOPE.get()
    token = SCOPE.set(scope)
    yield
    SCOPE.reset(token)


@pytest.mark.usefixtures("_closed_scope")
def test_functions_that_hang_keep_no_turn_of_another_user_waiting(tmp_path):
    gate, threads, hung, refused = threading.Event(), [], [], []

    def ask(message, *, deps):
        threads.append(threading.current_thread())
        if deps.user_msg == "hang":
            hung.append(threading.current_thread())
            gate.wait(LONG)
            try:
                diary.user("alice").upsert_preference("likes", "too late")
            except RuntimeError as error:
                refused.append(error)
        else:
            deps.upsert("likes", None, deps.user_msg, ())

    diary = Diary(tmp_path, Table, agent=ask)
    policy = RetryPolicy(attempts=THREADS + 1, first_pause=0)
    with MemoryWriter(diary, workers=1, timeout=0.02, retry=policy, breaker=LONG) as writer:
        try:
            hanging = writer.submit_nowait(Turn("alice", "s", "hang", "ok"))
            with pytest.raises(ExtractionError, match="took longer than"):
                hanging.wait(LONG / 4)
            other = writer.submit_nowait(Turn("bert", "s", "tea", "ok"))
            assert other.wait(LONG / 4).applied == 1
        finally:
            gate.set()
    assert all(thread.daemon for thread in threads)  # so the process can end
    assert hung
    until(
        lambda: len(refused) == len(hung)
    )  # the time of an attempt can end before its thread begins
    assert texts(diary, "alice") == []


def test_consecutive_functions_share_threads(tmp_path):
    # Otherwise each turn would open the connections anew that a function keeps for each thread.
    kept, opened = threading.local(), []

    def ask(message, *, deps):
        if not hasattr(kept, "connection"):
            kept.connection = object()
            opened.append(kept.connection)

    with MemoryWriter(Diary(tmp_path, Table, agent=ask), workers=1) as writer:
        for number in range(20):
            writer.submit_nowait(Turn("alice", "s", f"tea {number}", "ok")).wait(LONG)
    assert len(opened) <= 2  # a turn may begin before the thread of the last one is free
