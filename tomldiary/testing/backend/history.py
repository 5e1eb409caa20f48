"""Tests of history, earlier states, rollback, retention and erasure."""

from __future__ import annotations

from typing import Any

import pytest

from tomldiary.engine.engine import Source
from tomldiary.errors import Forgotten
from tomldiary.history.verify import verify
from tomldiary.storage.open import open_backend
from tomldiary.store.operations import Put
from tomldiary.store.store import ItemStore
from tomldiary.testing.backend.fixtures import BackendFixtures

__all__ = ["History"]

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
