"""Reads: few requests, one state of a user in each call, and never an older one than was acknowledged."""

from __future__ import annotations

import time

import pytest

from counted_requests import Counting
from tomldiary import Diary
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore


@pytest.fixture
def counted(opened):
    backend = opened()
    backend.transactions.database = Counting(backend.database)
    return backend


def test_a_read_of_known_documents_is_one_request(counted):
    diary = Diary(counted, agent="rules")
    alice, store = diary.user("alice"), ItemStore(diary)
    store.run([Put(("alice", "notes"), f"k{number}", {"text": "tea"}) for number in range(5)])
    alice.upsert_preference("likes", "green tea")
    alice.blocks.set("persona", "kind")
    alice.episodes.add("Is tea green?", "Yes.", session_id="s")
    reads = {
        "preferences": lambda: alice.preferences("likes"),
        "recall": lambda: alice.recall("tea"),
        "render": alice.render,
        "search": lambda: store.run([Search(("alice",), query="tea")]),
        "get": lambda: store.cached_item(("alice", "notes"), "k1"),
        "items": alice.items,
        "one item": lambda: alice.items.get("notes/k1"),
        "episodes": alice.episodes.list,
        "messages": lambda: alice.episodes.messages("s"),
        "profile": alice.profile,
    }
    for read in reads.values():
        read()  # reads the documents
    for name, read in reads.items():
        counted.database.requests.clear()
        assert read()
        assert counted.database.requests == ["head"], name
    more = {"export": (alice.export, 1), "diff": (alice.diff, 1), "card": (alice._repr_html_, 4)}
    for name, (read, most) in more.items():
        read()
        counted.database.requests.clear()
        assert read()
        assert counted.database.requests.count("head") <= most, name


def test_a_first_read_asks_once_for_the_newest_record(counted, opened):
    puts = [Put(("alice", f"notes{number}"), "k", {"text": "tea"}) for number in range(60)]
    ItemStore(Diary(opened(), agent="rules")).run(puts)
    assert len(Diary(counted, agent="rules").user("alice").items()) == 60
    head, *reads = counted.database.requests
    assert head == "head"
    assert {*reads} == {"read"}
    assert len(reads) < 20  # after a few documents, each request reads further ones in advance


def test_a_document_that_is_read_in_advance_is_the_current_one(counted, opened):
    """Another process changes the document that a block of `reading` has read in advance."""
    names = [f"items/n{number}" for number in range(9)]
    writer = ItemStore(Diary(opened(), agent="rules"))
    writer.run([Put(("alice", name[6:]), "k", {"n": 0}) for name in names])
    for _ in range(2):
        with counted.reading():
            for name in names:
                if name == names[5]:  # 4 were read one by one, and 2 at once
                    writer.run([Put(("alice", name[6:]), "k", {"n": 1})])
                stored, token = counted.read("alice", name), counted.token("alice", name)
                assert stored.token in (token, counted.token("alice", name))
    assert "n = 1" in counted.read("alice", names[5]).text


@pytest.mark.parametrize("seconds", [0, 60], ids=["", "watched"])
def test_a_text_that_is_newer_than_the_read_state_is_no_hand_edit(opened, seconds):
    backend = opened()
    backend.transactions.heads.trust(time.monotonic() + seconds)  # no notice arrives
    diary = Diary(backend, agent="rules")
    alice, other = diary.user("alice"), Diary(opened(), agent="rules").user("alice")
    with other.transaction() as tx:
        tx.upsert_preference("likes", "tea")
        tx.blocks.set("persona", "kind")
    with diary.engine.reading():
        assert len(alice.preferences("likes")) == 1
        other.blocks.set("persona", "polite")
        assert not diary.engine.load("alice", "blocks").is_edited
        assert alice.blocks["persona"].text == "polite"


def test_a_block_of_reads_sees_one_state_and_the_thread_s_own_writes(counted, opened):
    diary = Diary(counted, agent="rules")
    alice, other = diary.user("alice"), Diary(opened(), agent="rules").user("alice")
    with diary.engine.reading():
        assert not alice.preferences("likes")
        other.upsert_preference("likes", "tea")
        assert not alice.preferences("likes")
        with diary.engine.reading():
            assert not alice.preferences("likes")
        alice.upsert_preference("likes", "coffee")
        assert len(alice.preferences("likes")) == 2
        with pytest.raises(ZeroDivisionError), diary.engine.reading():
            raise ZeroDivisionError
    other.upsert_preference("likes", "milk")
    assert len(alice.preferences("likes")) == 3


def test_documents_of_a_database_are_small_unless_0_9_reads_them(engine, opened):
    size = Diary(opened(), agent="rules").engine.part_size
    assert size == (128 * 1024 if engine.name == "firestore" else 32 * 1024)
