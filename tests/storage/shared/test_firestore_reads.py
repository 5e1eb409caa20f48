"""Firestore: a read of an unchanged user reads three documents, and still sees what TOMLDiary 0.9 and others write."""

from __future__ import annotations

import time

import pytest

import engines
from requests_counted import counted
from tomldiary import Diary
from tomldiary.storage.shared.database import Step

SAVED_BY_0_9 = """
[_meta]
version = "0.3"
schema_name = "MyPrefTable"

[preferences.likes.pref001]
text = "cake"
_count = 1
"""


@pytest.fixture
def engine():
    return engines.space("firestore")


@pytest.fixture
def backend(engine):
    made = engine.backend()
    yield made
    made.close()


@pytest.fixture
def alice(backend, engine):
    """A user with eight documents, of whom this process has seen that no other one writes."""
    user = Diary(backend, agent="rules").user("alice")
    user.add_turn("I love tea.", "Noted.", session_id="s")
    user.blocks.set("persona", "kind")
    engine.backend().change_hidden("alice", ".list", lambda *_: "a")
    texts = {f"items/notes{number}": "x = 1\n" for number in range(4)}
    backend.database.apply("alice", backend.database.head("alice"), Step(texts))
    for _ in range(3):
        backend.versions("alice")
    return user


def place(backend, name):
    return backend.database.connection.document("alice", name)


def save(backend, name, text):
    """Write a document as TOMLDiary 0.9 does."""
    fields = {"updated_at": "2025-10-10T12:00:00Z", "version": "0.3"}
    place(backend, name).set({"content": text, **fields})


def likes(user):
    return [each.text for each in user.preferences("likes").values()]


def test_a_read_of_an_unchanged_user_reads_three_documents(alice, backend, engine, monkeypatch):
    counts = counted("firestore", monkeypatch)
    assert likes(alice)
    assert (counts["requests"], counts["reads"]) == (1, 3)
    other = Diary(engine.backend(), agent="rules").user("alice")
    for _ in range(3):  # two processes that write in turn: each reads the state by one query
        other.blocks.set("human", f"{time.monotonic()}")
        counts.clear()
        backend.versions("alice")
    assert counts["requests"] == 1


@pytest.mark.parametrize("name", ["preferences", "conversations"])
def test_what_0_9_writes_and_removes_is_seen_at_once(alice, backend, name):
    before = backend.versions("alice")
    save(backend, name, SAVED_BY_0_9)
    assert backend.token("alice", name) not in (None, before[name])
    place(backend, name).delete()
    assert backend.versions("alice").keys() == before.keys() - {name}
    save(backend, name, SAVED_BY_0_9)
    assert backend.versions("alice").keys() == before.keys()


def test_a_user_of_0_9_alone_is_seen_at_once(backend):
    alice = Diary(backend, agent="rules").user("alice")
    for _ in range(3):
        assert likes(alice) == []
    save(backend, "preferences", SAVED_BY_0_9)
    assert likes(alice) == ["cake"]
    place(backend, "preferences").delete()
    assert likes(alice) == []


def test_a_user_whom_0_9_deletes_is_empty_at_once(alice, backend):
    for document in backend.database.connection.user("alice").stream():
        document.reference.delete()  # as its `delete_user` does
    assert backend.versions("alice") == {}
    assert likes(alice) == []


def test_a_step_of_another_process_is_seen_at_once(alice, backend, engine):
    Diary(engine.backend(), agent="rules").user("alice").blocks.set("persona", "polite")
    assert alice.blocks["persona"].text == "polite"


def test_a_long_text_that_0_9_replaces_leaves_no_part_in_the_state(alice, backend):
    database = backend.database
    long = f'x = "{"y" * 2_000_000}"\n'
    database.apply("alice", database.head("alice"), Step({"preferences": long}))
    known = database.head("alice")
    save(backend, "preferences", SAVED_BY_0_9)
    head = database.head("alice", known=known)
    assert head.parts["preferences.toml"] == []
    assert head.versions == database.head("alice").versions


# Other documents, which only this package writes


def test_an_edit_of_another_document_is_not_overwritten(alice, backend):
    text = alice.document("blocks")
    save(backend, "blocks", text.replace("kind", "frank"))
    alice.blocks.set("human", "a pilot")
    assert {name: each.text for name, each in alice.blocks.items()} == {
        "persona": "frank",
        "human": "a pilot",
    }


def test_an_edit_of_another_document_is_seen_after_a_while(alice, backend):
    backend.transactions.quiet = 0.2
    backend.transactions.refresh("alice")
    text = alice.document("blocks")  # by a query, so others are cheaper for a while
    save(backend, "blocks", text.replace("kind", "frank"))
    time.sleep(0.2)
    assert alice.blocks["persona"].text == "frank"


def test_a_hidden_document_that_another_program_removed_is_not_awaited(alice, backend):
    place(backend, ".list").delete()  # a `delete_user` of TOMLDiary 0.9 that was killed
    begin = time.monotonic()
    assert backend.hidden("alice", ".list") == ""
    assert time.monotonic() - begin < backend.transactions.timeout / 2


@pytest.mark.parametrize("selection", [{"everything": True}, {"matching": "zebra"}])
def test_an_erasure_finds_documents_of_other_programs(alice, backend, engine, selection):
    save(backend, "items/foreign", '[items.zebra]\ntext = "zebra"\n')
    alice.forget(**selection)
    assert "zebra" not in engine.texts()


def test_a_read_of_no_document_sends_no_request(backend, monkeypatch):
    counts = counted("firestore", monkeypatch)
    assert backend.database.read("alice", []) == {}
    assert counts["requests"] == 0
