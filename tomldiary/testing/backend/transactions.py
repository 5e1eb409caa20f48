"""Tests of transactions in one process, of history, and of erasure."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from tomldiary.entries.constraints import Constraint
from tomldiary.errors import Forgotten, OperationConflict
from tomldiary.history.record import Source
from tomldiary.history.verify import verify
from tomldiary.ingest.runner import ingest
from tomldiary.storage.open import open_backend
from tomldiary.store.operations import Get, Put
from tomldiary.store.store import ItemStore
from tomldiary.testing.backend.fixtures import BackendFixtures

if TYPE_CHECKING:
    from pathlib import Path

_HOSTILE = (
    "..", "../../etc/passwd", "/", "a/b", "a", "a ", "C:\\users", "\x01\n\t\x1b[2J", "'; DROP TABLE users; --",
    "%", "_", "{a}*?[", "__x__", ".queue", "\u202ealice", "x" * 500, "é" * 500, f"{'x' * 499}y", f"{'x' * 500}y",
    " a", "a b", "a+b", "a//b", "a/./b", "a\0b", "a\u200b", "0", "00", "ss", "ß", "K", "\u212a", "ｋ", "k",
)  # fmt: skip
_LARGE = 3_000_000  # bytes; some databases store at most 1 MiB in one place
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
        values = [getattr(each, "value", None) for each in found]
        assert values == [None, {"text": "milk"}, {"text": "x"}]

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
        text = f"the zebra on the roof {'𐍈' * (_LARGE // 4)}"
        content = f'[preferences.likes.pref001]\ntext = "{text}"\n'
        for each in (content, '[preferences.likes.pref001]\ntext = "short"\n', content):
            self.run(backend.save("alice", "preferences", each))
            assert self.run(backend.load("alice", "preferences")) == each
        alice.upsert_preference("likes", "tea")
        assert self.likes(alice) == [text, "tea"]
        assert alice.recall("zebra")[0].key == "likes/pref001"
        alice.forget(everything=True)
        assert "zebra" not in self.stored_text(backend)
        assert "𐍈𐍈" not in self.stored_text(backend)

    def test_hostile_user_ids_are_kept_apart(self, backend: Any) -> None:
        diary = self.diary(backend)
        for number, user in enumerate(self.hostile):
            diary.user(user).upsert_preference("likes", f"drink {number}")
        assert sorted(diary.users()) == sorted(self.hostile)
        erased = ("/", "%", "_")
        for user in erased:
            diary.user(user).forget(everything=True)
        again = self.diary(backend)
        for number, user in enumerate(self.hostile):
            expected = [] if user in erased else [f"drink {number}"]
            assert self.likes(again.user(user)) == expected, user


_CANARY = "the zebra on the roof"


class History(BackendFixtures):
    """History explains every state, and an erasure leaves no trace of the erased content."""

    def test_history_is_newest_first_and_knows_earlier_states(self, backend: Any) -> None:
        alice = self.diary(backend).user("alice")
        key, _ = alice.upsert_preference("likes", "tea", session_id="s1")
        alice.blocks.set("persona", "A gardener.")
        alice.upsert_preference("likes", "strong tea", id=key, session_id="s2")
        alice.episodes.add("hello", "hi", session_id="s2")
        listed = [(entry.seq, entry.session) for entry in alice.history()]
        assert listed == [(4, "s2"), (3, "s2"), (2, ""), (1, "s1")]
        assert [entry.seq for entry in alice.history(key=f"likes/{key}")] == [3, 1]
        assert self.likes(alice) == ["strong tea"]
        past = alice.as_of(2)
        assert [item.text for item in past.preferences("likes").values()] == ["tea"]
        assert past.blocks.get("persona") is not None
        assert alice.as_of(1).blocks.get("persona") is None
        assert verify(open_backend(backend, None), "alice") is None

    def test_a_rollback_is_undone_by_a_rollback(self, backend: Any) -> None:
        alice = self.diary(backend).user("alice")
        alice.upsert_preference("likes", "tea")
        alice.blocks.set("persona", "A gardener.")
        texts = {kind: alice.document(kind) for kind in alice.documents()}
        assert alice.rollback(steps=2).undone == [2, 1]
        assert self.likes(alice) == []
        assert alice.blocks.get("persona") is None
        alice.rollback(steps=1)
        assert self.likes(alice) == ["tea"]
        assert {entry.seq for entry in alice.history()} == {1, 2, 3, 4}
        assert {*alice.documents()} == {*texts}
        assert verify(open_backend(backend, None), "alice") is None

    def test_retention_keeps_a_snapshot_and_the_newest_transactions(self, backend: Any) -> None:
        alice = self.diary(backend).user("alice")
        for number in range(12):
            alice.upsert_preference("likes", f"drink number {number}")
        alice.prune_history(keep=5)
        assert [entry.seq for entry in alice.history(limit=100)] == [12, 11, 10, 9, 8]
        alice.upsert_preference("likes", "one more drink")
        again = self.diary(backend).user("alice")
        assert [entry.seq for entry in again.history(limit=100)] == [13, 12, 11, 10, 9, 8]
        assert len(again.as_of(9).preferences("likes")) == 9  # noqa: PLR2004 - the number at that time
        assert verify(open_backend(backend, None), "alice") is None

    def test_a_forgotten_session_is_nowhere_in_the_storage(self, backend: Any) -> None:
        diary = self.diary(backend)
        alice = diary.user("alice")
        store = ItemStore(diary)
        for session, text in (("gone", _CANARY), ("kept", "a green lamp")):
            alice.upsert_preference("likes", text, session_id=session)
            alice.add_turn(f"I love {text} at night.", f"So {text} it is.", session_id=session)
            alice.episodes.add(f"Is {text} big?", f"Yes, {text} is.", session_id=session)
            with alice.transaction(session_id=session) as transaction:
                transaction.blocks.set(session, f"Likes {text}.")
            store.run([Put(("alice", "notes"), session, {"text": text})], session=session)
        with alice.transaction(session_id="gone") as transaction:
            key, _ = transaction.upsert_preference("dislikes", f"no sight of {_CANARY}")
        alice.remove_preference("dislikes", key)  # now only history contains it
        assert _CANARY in self.stored_text(backend)
        assert alice.forget(session_id="gone").epoch == 1
        assert "zebra" not in self.stored_text(backend)
        assert not alice.recall("zebra")
        kept = self.diary(backend).user("alice")
        assert "a green lamp" in self.likes(kept)
        assert kept.blocks.get("kept") is not None
        assert kept.blocks.get("gone") is None
        assert len(kept.episodes.messages("kept")) > 0
        assert verify(open_backend(backend, None), "alice") is None

    def test_a_namespace_of_forgotten_items_leaves_no_name(self, backend: Any) -> None:
        diary = self.diary(backend)
        alice = diary.user("alice")
        ItemStore(diary).run([Put(("alice", "zebra"), "first", {"text": "tea"})])
        alice.upsert_preference("likes", "tea")
        alice.forget(key="items/zebra/first")
        assert "zebra" not in self.stored_text(backend)
        assert self.diary(backend).user("alice").documents() == ["preferences"]

    def test_a_forgotten_user_is_gone_and_may_come_back(self, backend: Any) -> None:
        diary = self.diary(backend)
        alice, bob = diary.user("alice"), diary.user("bob")
        for user in (alice, bob):
            user.upsert_preference("likes", f"{_CANARY} of {user.user_id}")
        alice.forget(everything=True)
        assert f"{_CANARY} of alice" not in self.stored_text(backend)
        assert diary.users() == ["bob"]
        alice.upsert_preference("likes", "coffee")
        assert diary.users() == ["alice", "bob"]
        assert [entry.seq for entry in alice.history()] == [1]
        assert alice.forget(everything=True).epoch == 2  # noqa: PLR2004 - the second time
        assert self.likes(bob) == [f"{_CANARY} of bob"]

    def test_work_that_began_before_an_erasure_is_refused(self, backend: Any) -> None:
        diary = self.diary(backend)
        diary.user("alice").upsert_preference("likes", _CANARY)
        epoch = diary.engine.backend.epoch("alice")
        diary.user("alice").forget(everything=True)
        with pytest.raises(Forgotten):
            diary.engine.write(
                "alice",
                lambda transaction: transaction.edit("preferences"),
                Source("test"),
                epoch=epoch,
            )
        assert diary.users() == []
