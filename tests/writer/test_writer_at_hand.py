"""Where a turn is committed: in the writer's loop if no disk is involved, and never so that others wait."""

from __future__ import annotations

import threading

import pytest
from pydantic import BaseModel

from tomldiary import Diary, MemoryWriter, PreferenceItem
from tomldiary.engine.transaction import Source
from tomldiary.errors import Conflict, LockTimeout
from tomldiary.writer.writer import Turn

LONG = 120  # seconds; nothing waits that long unless it is broken


class Table(BaseModel):
    """likes : what the person enjoys"""

    likes: dict[str, PreferenceItem] = {}


class Remembering:
    """An extractor that stores what the user said, and notes the thread it was asked in."""

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


def commit_threads(diary, monkeypatch):
    """Return the set that gets the thread of each commit."""
    threads = set()
    commit = diary.engine.backend.commit

    def noting(user, work):
        threads.add(threading.get_ident())
        return commit(user, work)

    monkeypatch.setattr(diary.engine.backend, "commit", noting)
    return threads


def apply_ten(diary):
    with MemoryWriter(diary, workers=4) as writer:
        for number in range(10):
            writer.submit_nowait(Turn(f"user{number % 5}", "s", f"thing {number}", "ok"))
        assert writer.flush(LONG)
        assert writer.stats()["completed"] == 10


def test_a_turn_without_a_disk_is_committed_where_it_was_read(monkeypatch):
    diary = diary_at("memory:")
    threads = commit_threads(diary, monkeypatch)
    apply_ten(diary)
    assert threads == diary.agent.threads
    assert len(threads) == 1
    assert texts(diary, "user3") == ["thing 3", "thing 8"]


@pytest.mark.parametrize("durability", ["full", "process", "none"])
def test_a_turn_that_needs_a_disk_is_committed_in_another_thread(tmp_path, monkeypatch, durability):
    diary = diary_at(tmp_path, durability)
    threads = commit_threads(diary, monkeypatch)
    apply_ten(diary)
    assert not threads & diary.agent.threads


def test_a_turn_of_a_large_memory_is_committed_in_another_thread(monkeypatch):
    diary = diary_at("memory:")
    for user in range(5):
        mine = diary.user(f"user{user}")
        for number in range(20):
            mine.upsert_preference("likes", f"{number} {'x' * 9000}")
    threads = commit_threads(diary, monkeypatch)
    apply_ten(diary)
    assert not threads & diary.agent.threads


@pytest.mark.parametrize("is_known", [True, False])
def test_a_user_whom_somebody_else_has_locked_holds_nobody_up(tmp_path, is_known):
    diary = diary_at(tmp_path)
    if is_known:
        diary.user("locked").upsert_preference("likes", "tea")
    other = diary_at(tmp_path)  # as another process: with locks of its own
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


def test_whoever_has_no_patience_is_told_at_once_that_somebody_is_at_it(tmp_path):
    diary = diary_at(tmp_path)
    mine = diary.user("alice")
    for text in ("tea", "walks"):
        mine.upsert_preference("likes", text)

    def change(tx):
        edit = tx.edit("preferences")
        edit.delete(("preferences", "likes", "pref001"))

    source = Source("test")
    with diary_at(tmp_path).engine.backend.lock("alice", LONG), pytest.raises(LockTimeout):
        diary.engine.write("alice", change, source, patience=0.0)
    path = tmp_path / "alice" / "preferences.toml"
    path.write_text(path.read_text().split("[preferences.likes.pref002]")[0])  # half saved
    with pytest.raises(Conflict):
        diary.engine.write("alice", change, source, patience=0.0)
