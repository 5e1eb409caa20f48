"""Tests of transactions in one process: races, operation ids, constraints, items, search, and odd sizes and user ids."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from tomldiary.entries.constraints import Constraint
from tomldiary.errors import OperationConflict
from tomldiary.ingest.runner import ingest
from tomldiary.store.operations import Get, Put
from tomldiary.store.store import ItemStore
from tomldiary.testing.backend.fixtures import BackendFixtures

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Diet", "Transactions"]

_HOSTILE = (
    "..",
    "../../etc/passwd",
    "/",
    "a/b",
    "a",
    "C:\\users",
    "\x01\n\t\x1b[2J",
    "'; DROP TABLE users; --",
    "{a}*?[",
    "__x__",
    ".queue",
    "\u202ealice",
    "x" * 500,
    "é" * 500,
)
_LARGE = 3_000_000  # bytes
_MINUTE = 60.0  # seconds
_THREADS = 4
_LOG = '{"role": "user", "content": "I love jazz."}\n{"role": "assistant", "content": "Noted."}\n'


class Diet(BaseModel):
    """A fact that exists once for each role."""

    role: str
    name: str


class Transactions(BackendFixtures):
    """A transaction is applied completely, once, and to the current state."""

    hostile: tuple[str, ...] = _HOSTILE
    """User ids that look like paths, patterns, SQL statements or internal names of the storage."""

    def test_threads_lose_no_update(self, backend: Any) -> None:
        alice = self.diary(backend).user("alice")
        alice.blocks.set("log", "")
        barrier = threading.Barrier(_THREADS)

        def work(thread: int) -> None:
            barrier.wait()
            for number in range(5):
                alice.blocks.append("log", f"{thread}-{number}")
                alice.upsert_preference("likes", f"thing {thread}-{number}")

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(work, range(_THREADS)))
        expected = [f"{thread}-{number}" for thread in range(_THREADS) for number in range(5)]
        block = alice.blocks.get("log")
        assert block is not None
        lines = block.text.split()
        assert sorted(lines) == expected
        assert sorted(lines, key=lambda line: line[0]) == expected  # each thread's order is kept
        assert sorted(self.likes(alice)) == [f"thing {each}" for each in expected]
        assert [entry.seq for entry in alice.history(limit=100)] == list(range(41, 0, -1))

    def test_a_failed_transaction_changes_nothing(self, backend: Any) -> None:
        alice = self.diary(backend).user("alice")
        alice.upsert_preference("likes", "tea")
        before = self.stored_text(backend)

        def fail() -> None:
            with alice.transaction() as transaction:
                transaction.upsert_preference("likes", "coffee")
                transaction.blocks.set("persona", "A gardener.")
                raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            fail()
        assert self.likes(alice) == ["tea"]
        assert self.stored_text(backend) == before

    def test_an_operation_id_has_one_effect(self, backend: Any) -> None:
        alice = self.diary(backend).user("alice")
        for user in (alice, alice, self.diary(backend).user("alice")):
            user.upsert_preference("likes", "tea", operation_id="op-1")
        assert len(alice.history()) == 1
        with pytest.raises(OperationConflict):
            alice.upsert_preference("likes", "coffee", operation_id="op-1")
        assert self.likes(alice) == ["tea"]

    def test_facts_keep_their_constraint(self, backend: Any) -> None:
        diary = self.diary(backend)
        diary.register_schema("diet", Diet, constraint=Constraint(singleton_key="role"))
        facts = diary.user("alice").facts
        for role, name in (("main", "vegan"), ("guest", "none"), ("main", "halal")):
            facts.commit(Diet(role=role, name=name))
        names = sorted(each.data.name for each in facts.query("diet"))
        assert names == ["halal", "none"]

    def test_items_are_kept_until_their_time_is_over(self, backend: Any) -> None:
        store = ItemStore(self.diary(backend))
        place = ("alice", "notes", "../x")
        store.run([Put(place, "short", {"text": "tea"}, ttl=0.01 / _MINUTE)])
        store.run([Put(place, "long", {"text": "milk"}, ttl=60.0), Put(place, "/", {"text": "x"})])
        time.sleep(0.02)
        assert store.sweep() == 1
        found = store.run([Get(place, "short"), Get(place, "long"), Get(place, "/")])
        assert [getattr(each, "value", None) for each in found] == [
            None,
            {"text": "milk"},
            {"text": "x"},
        ]

    def test_a_search_finds_what_was_written_last(self, backend: Any) -> None:
        alice = self.diary(backend).user("alice")
        for number in range(5):
            alice.upsert_preference("likes", f"the drink named zebra{number}")
            assert alice.recall(f"zebra{number}", limit=1)[0].text.endswith(f"zebra{number}")
        alice.remove_preference("likes", "pref001")
        assert all("zebra0" not in hit.text for hit in alice.recall("zebra0"))

    def test_a_chat_log_is_read_once(self, backend: Any, tmp_path: Path) -> None:
        log = tmp_path / "chat.jsonl"
        log.write_text(_LOG, "utf-8")
        reports = [ingest(self.diary(backend), log, "alice") for _ in range(2)]
        assert [(each.applied, each.skipped) for each in reports] == [(1, 0), (0, 1)]
        alice = self.diary(backend).user("alice")
        assert self.likes(alice) == ["I love jazz."]
        assert alice.conversations().popitem()[1].turns == 1

    def test_a_document_of_three_megabytes_is_read_changed_and_erased(self, backend: Any) -> None:
        alice = self.diary(backend).user("alice")
        text = f"the zebra on the roof {'😀' * (_LARGE // 4)}"
        content = f'[preferences.likes.pref001]\ntext = "{text}"\n'
        for each in (content, '[preferences.likes.pref001]\ntext = "short"\n', content):
            self.run(backend.save("alice", "preferences", each))
            assert self.run(backend.load("alice", "preferences")) == each
        alice.upsert_preference("likes", "tea")
        assert self.likes(alice) == [text, "tea"]
        assert alice.recall("zebra")[0].key == "likes/pref001"
        alice.forget(everything=True)
        assert "zebra" not in self.stored_text(backend)
        assert "😀😀" not in self.stored_text(backend)

    def test_hostile_user_ids_are_kept_apart(self, backend: Any) -> None:
        diary = self.diary(backend)
        for number, user in enumerate(self.hostile):
            diary.user(user).upsert_preference("likes", f"drink {number}")
        assert sorted(diary.users()) == sorted(self.hostile)
        diary.user("/").forget(everything=True)
        again = self.diary(backend)
        for number, user in enumerate(self.hostile):
            expected = [] if user == "/" else [f"drink {number}"]
            assert self.likes(again.user(user)) == expected, user
