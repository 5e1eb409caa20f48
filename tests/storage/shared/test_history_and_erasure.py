"""History, as_of, rollback, retention and erasure work on a shared database as in a folder."""

from __future__ import annotations

import asyncio
import time

import pytest
from pydantic import BaseModel

from tomldiary import Constraint, Diary, Forgotten
from tomldiary.history.record import Source
from tomldiary.history.verify import verify
from tomldiary.storage.shared.database import WHOLE_HISTORY, Step
from tomldiary_langgraph import DiaryStore

WORDS = "the zebra on the roof"


def test_history_answers_as_in_a_folder(opened, tmp_path):
    answers = []
    for backend in (opened(), tmp_path / "memories"):
        alice = Diary(backend, agent="rules").user("alice")
        key, _ = alice.upsert_preference("likes", "tea", session_id="s1")
        alice.blocks.set("persona", "A gardener.")
        alice.upsert_preference("likes", "strong tea", id=key, session_id="s2")
        alice.episodes.add("hello", "hi", session_id="s2")
        past = alice.as_of(2)
        rolled = alice.rollback(steps=1)
        answers.append(
            (
                [(entry.seq, entry.type, entry.session) for entry in alice.history()],
                [item.text for item in past.preferences("likes").values()],
                (rolled.undone, len(rolled.keys)),
                [entry.seq for entry in alice.history(key=f"likes/{key}")],
                sorted(alice.export()),
                alice.blocks.get("persona").text,
                alice.episodes.messages("s2"),
                [hit.text for hit in alice.recall("tea")],
            )
        )
    assert answers[0] == answers[1]


def test_facts_keep_their_constraint_on_two_machines(opened):
    class Diet(BaseModel):
        role: str
        name: str

    users = []
    for _ in range(2):
        diary = Diary(opened(), agent="rules")
        diary.register_schema("diet", Diet, constraint=Constraint(singleton_key="role"))
        users.append(diary.user("alice"))
    for user, name in zip(users * 2, ("vegan", "none", "kosher", "halal"), strict=True):
        user.facts.commit(Diet(role="main", name=name))
    assert [each.data.name for each in users[0].facts.query("diet")] == ["halal"]


def test_erased_text_is_nowhere_in_the_database(engine, opened):
    diary = Diary(opened(), agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "green tea", session_id="kept")
    alice.upsert_preference("likes", WORDS, session_id="gone")
    alice.add_turn(f"I love {WORDS}.", "Noted.", session_id="gone")
    assert WORDS in engine.texts()
    receipt = alice.forget(session_id="gone")
    assert receipt.epoch == 1
    assert WORDS not in engine.texts()
    assert "green tea" in engine.texts()
    assert [item.text for item in alice.preferences("likes").values()] == ["green tea"]
    assert (
        Diary(opened(), agent="rules").verify().is_consistent if hasattr(diary, "verify") else True
    )


def test_a_forgotten_user_is_gone_and_may_come_back(engine, opened):
    diary = Diary(opened(), agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", WORDS)
    alice.forget(everything=True)
    assert WORDS not in engine.texts()
    assert diary.users() == []
    alice.upsert_preference("likes", "coffee")
    assert diary.users() == ["alice"]
    assert [entry.seq for entry in alice.history()] == [1]
    assert alice.forget(everything=True).epoch == 2


def test_work_that_began_before_an_erasure_is_refused(opened):
    one, two = (Diary(opened(), agent="rules") for _ in range(2))
    one.user("alice").upsert_preference("likes", WORDS)
    epoch = one.engine.backend.epoch("alice")
    two.user("alice").forget(everything=True)
    with pytest.raises(Forgotten):
        one.engine.write(
            "alice", lambda transaction: transaction.edit("preferences"), Source("x"), epoch=epoch
        )


def test_an_erasure_takes_what_another_process_wrote_meanwhile(engine, opened):
    backend = opened()
    one, two = (
        Diary(backend, agent="rules").user("alice"),
        Diary(opened(), agent="rules").user("alice"),
    )
    one.upsert_preference("likes", "tea", session_id="gone")
    read, calls = backend.database.read, []

    def overtaken(user, kinds):
        found = read(user, kinds)
        if not calls:
            calls.append(two.upsert_preference("likes", WORDS, session_id="gone"))
        return found

    backend.database.read = overtaken
    one.forget(session_id="gone")
    assert calls
    assert WORDS not in engine.texts()


def test_retention_keeps_a_snapshot_and_the_newest_records(opened):
    alice = Diary(opened(), agent="rules").user("alice")
    for number in range(30):
        alice.upsert_preference("likes", f"drink number {number}")
    alice.prune_history(keep=5)
    assert [entry.seq for entry in alice.history(limit=100)] == [30, 29, 28, 27, 26]
    alice.upsert_preference("likes", "one more drink")
    again = Diary(opened(), agent="rules").user("alice")
    assert [entry.seq for entry in again.history(limit=100)] == [31, 30, 29, 28, 27, 26]
    assert len(again.as_of(27).preferences("likes")) == 27
    assert verify(opened(), "alice") is None


def test_a_dropped_history_begins_anew(opened):
    backend = opened()
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    with backend.lock("alice", 5):
        head = backend.database.head("alice")
        assert backend.database.apply("alice", head, Step(dropped=WHOLE_HISTORY)) == {}
    assert backend.last_record("alice") is None
    assert list(backend.records("alice")) == []


def test_expired_items_are_swept(opened):
    store = DiaryStore(Diary(opened()), ttl={"default_ttl": 0.0001})
    store.put(("alice", "notes"), "one", {"text": "tea"})
    time.sleep(0.02)
    assert store.sweep_ttl() == 1
    assert store.get(("alice", "notes"), "one") is None


def test_a_document_of_three_megabytes_comes_back_whole(engine, opened):
    one, two = opened(), opened()
    long = f'[preferences.likes.pref001]\ntext = "{WORDS} {"é" * 1_500_000}"\n'
    short = f'[preferences.likes.pref001]\ntext = "{WORDS}"\n'
    for text in (long, short, long):
        asyncio.run(one.save("alice", "preferences", text))
        assert asyncio.run(two.load("alice", "preferences")) == text
    assert Diary(two, agent="rules").user("alice").recall("zebra")[0].key == "likes/pref001"
    asyncio.run(one.delete_user("alice"))
    assert "zebra" not in engine.texts()
    assert "éé" not in engine.texts()


def test_ingest_reads_a_log_once(opened, tmp_path):
    log = tmp_path / "chat.jsonl"
    log.write_text(
        '{"role": "user", "content": "I love jazz."}\n{"role": "assistant", "content": "Noted."}\n'
    )
    counts = []
    for _ in range(2):
        report = (
            Diary(opened(), agent="rules").ingest(log, user="alice")
            if hasattr(Diary, "ingest")
            else None
        )
        counts.append(report)
    alice = Diary(opened(), agent="rules").user("alice")
    assert len(alice.preferences("likes")) == (1 if counts[0] is not None else 0)
