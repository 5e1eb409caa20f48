"""Facts, blocks and episodes through LangGraph's store: the same entries, the same rules."""

from __future__ import annotations

import asyncio

import pytest
from langgraph.store.base import PutOp
from pydantic import BaseModel

from tomldiary import Constraint, Diary
from tomldiary.errors import ImmutableEntry, InvalidValue, NestedTransaction, NotSupported
from tomldiary_langgraph import DiaryStore


class Diet(BaseModel):
    role: str
    food: str


class Birth(BaseModel):
    who: str
    year: int


DIET = ("alice", "diary", "facts", "diet")
BIRTH = ("alice", "diary", "facts", "birth")
BLOCKS = ("alice", "diary", "blocks")
EPISODES = ("alice", "diary", "episodes")


@pytest.fixture
def diary(tmp_path):
    diary = Diary(tmp_path, agent="rules", durability="process")
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    diary.register_schema("birth", Birth, Constraint(singleton_key="who", immutable=True))
    return diary


def test_core_and_store_read_the_writes_of_each_other_at_once(diary):
    store, alice = DiaryStore(diary), diary.user("alice")
    store.put(DIET, "user", {"role": "user", "food": "lentils"})
    store.put(BLOCKS, "persona", {"text": "Brief."})
    asyncio.run(store.aput(EPISODES, "first", {"input": "hi", "output": "hello"}))
    assert alice.facts.get("diet/user").data == Diet(role="user", food="lentils")
    assert alice.blocks["persona"].text == "Brief."
    assert alice.episodes()[0].output == "hello"
    alice.facts.update("diet/user", {"food": "beans"})
    alice.blocks.append("persona", "Kind.")
    second = alice.episodes.add("lentils?", "No, beans.")
    assert store.get(DIET, "user").value == {"role": "user", "food": "beans"}
    assert store.get(BLOCKS, "persona").value == {"text": "Brief.\nKind."}
    assert {item.key for item in store.search(EPISODES)} == {"first", second}
    assert [item.key for item in store.search(("alice", "diary", "facts"), query="beans")] == [
        "user"
    ]
    assert [item.key for item in store.search(DIET, filter={"food": "beans"})] == ["user"]
    assert store.list_namespaces(prefix=("alice",)) == [BLOCKS, EPISODES, DIET]
    store.delete(BLOCKS, "persona")
    assert alice.blocks() == {}


@pytest.mark.parametrize(
    ("namespace", "key", "value", "error", "message"),
    [
        (DIET, "bob", {"role": "user", "food": "x"}, InvalidValue, "diet.bob: its fields say"),
        (DIET, "user", {"role": "user", "food": 7}, InvalidValue, "diet.food: expected text"),
        (BIRTH, "user", {"who": "user", "year": 1999}, ImmutableEntry, "never changed"),
        (BIRTH, "user", None, ImmutableEntry, "never changed"),
        (EPISODES, "first", {"input": "a", "output": "b"}, InvalidValue, "never changed"),
        (BLOCKS, "persona", {"text": "x" * 100_001}, InvalidValue, "100,000 are allowed"),
        (("alice", "diary", "facts", "nope"), "x", {"a": 1}, InvalidValue, "there is no namespace"),
    ],
)
def test_a_batch_that_breaks_a_rule_writes_nothing(diary, namespace, key, value, error, message):
    store, alice = DiaryStore(diary), diary.user("alice")
    store.put(BIRTH, "user", {"who": "user", "year": 1980})
    store.put(EPISODES, "first", {"input": "hi", "output": "hello"})
    before = alice.export()["documents"]
    with pytest.raises(error, match=message):
        store.put(namespace, key, value) if value is not None else store.delete(namespace, key)
    assert alice.export()["documents"] == before


def test_a_default_ttl_applies_to_items_and_not_to_entries(diary):
    store = DiaryStore(diary, ttl={"default_ttl": 60})
    store.put(BLOCKS, "persona", {"text": "Brief."})
    asyncio.run(store.aput(BLOCKS, "tone", {"text": "Warm."}))
    store.update(BLOCKS, "persona", lambda old: {"text": f"{old['text']} Kind."})
    assert {item.value["text"] for item in store.search(BLOCKS)} == {"Brief. Kind.", "Warm."}
    for namespace in (("alice", "notes"), ["alice", "notes"]):
        store.put(namespace, "k", {"n": 1})
        assert "_ttl = 60.0" in diary.user("alice").document("items/notes")
    with pytest.raises(NotSupported, match="do not expire"):
        store.put(BLOCKS, "persona", {"text": "Short."}, ttl=5)


def test_a_failed_put_leaves_nothing_in_its_transaction(diary):
    store, alice, notes = DiaryStore(diary), diary.user("alice"), ("alice", "notes")
    store.put(notes, "k", {"n": 1})
    with alice.transaction(session_id="s1"):
        store.put(notes, "first", {"n": 1})
        store.put(BIRTH, "user", {"who": "user", "year": 1980})
        inside = alice.export()["documents"]
        bad = PutOp(BIRTH, "user", {"who": "user", "year": 1981})
        for ops, error in (
            ([PutOp(notes, "k", {"n": 2}), PutOp(BLOCKS, "b", {"text": "x"}), bad], ImmutableEntry),
            ([PutOp(notes, "k", {"n": 2}), PutOp(("bo", "notes"), "k", {"n": 2})], NestedTransaction),
        ):  # fmt: skip
            with pytest.raises(error):
                store.batch(ops)
            assert alice.export()["documents"] == inside
        with pytest.raises(ImmutableEntry):
            store.update(BIRTH, "user", lambda _: {"who": "user", "year": 1981})
        store.batch([PutOp(notes, "last", {"n": 3}), PutOp(BLOCKS, "b", {"text": "x"})])
    assert {item.key for item in store.search(notes)} == {"k", "first", "last"}
    assert [item.value for item in store.search(BLOCKS)] == [{"text": "x"}]
    assert store.search(("bo",)) == []
