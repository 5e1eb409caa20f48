"""Ids of preferences as callers give them: "new", and ids in the form in which they are listed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from pydantic import BaseModel

from hand_edits import age
from tomldiary import Diary, PreferenceItem
from tomldiary.agents.verbs import MemoryVerbs
from tomldiary.engine.engine import Source
from tomldiary.errors import InvalidValue, UnknownEntry
from tomldiary.extraction import tools


@pytest.fixture
def alice():
    return Diary("memory:", agent="rules").user("alice")


def texts(alice):
    return {key: item.text for key, item in alice.preferences("likes").items()}


def test_id_new_from_code_always_creates(alice):
    first, _ = alice.upsert_preference("likes", "tea", id="new")
    second, _ = asyncio.run(alice.aupsert_preference("likes", "coffee", id="new"))
    with alice.transaction() as tx:
        third, _ = tx.upsert_preference("likes", "cocoa", id="new")
    assert texts(alice) == {first: "tea", second: "coffee", third: "cocoa"}
    assert (first, second, third) == ("pref001", "pref002", "pref003")


def test_id_new_from_an_extractor_always_creates():
    async def extract(message, deps):
        deps.upsert("likes", "new", "tea", ())
        deps.upsert("likes", "new", "coffee", ())
        context = SimpleNamespace(deps=deps)
        await tools.upsert_preference(context, "likes", id="new", text="cocoa")

    diary = Diary("memory:", agent=extract)
    asyncio.run(diary.update_memory("alice", "s", "Hello.", "Hello."))
    assert sorted(texts(diary.user("alice")).values()) == ["cocoa", "coffee", "tea"]


def test_an_entry_with_the_id_new_stays_reachable(alice):
    with alice.diary.engine.transaction("alice", Source("test")) as tx:
        tx.edit("preferences").put(("preferences", "likes", "new"), {"text": "tea"})
    alice.upsert_preference("likes", "coffee", id="new")
    assert texts(alice) == {"new": "tea", "pref001": "coffee"}
    alice.upsert_preference("likes", "green tea", id="likes/new")
    assert texts(alice)["new"] == "green tea"
    assert not MemoryVerbs(alice, "s").update("likes/new", "black tea").is_error
    assert texts(alice) == {"new": "black tea", "pref001": "coffee"}
    alice.forget_preference("likes", "new")
    assert texts(alice) == {"pref001": "coffee"}


def test_a_listed_id_names_the_entry_it_is_listed_for(alice):
    alice.upsert_preference("likes", "tea")
    assert alice.upsert_preference("likes", "green tea", id="likes/pref001")[0] == "pref001"
    assert texts(alice) == {"pref001": "green tea"}
    with pytest.raises(UnknownEntry):
        alice.upsert_preference("likes", "x", id="dislikes/pref001", create=False)
    with pytest.raises(InvalidValue, match="'likes/pref001' is an entry of the category 'likes'"):
        alice.upsert_preference("dislikes", "green tea", id="likes/pref001")
    assert alice.preferences("dislikes") == {}
    assert alice.forget_preference("likes", "likes/pref001").text == "green tea"
    assert texts(alice) == {}


def test_an_id_that_looks_like_a_listed_one_names_its_own_entry(alice):
    alice.upsert_preference("likes", "tea")
    with alice.diary.engine.transaction("alice", Source("test")) as tx:
        tx.edit("preferences").put(("preferences", "dislikes", "likes/pref001"), {"text": "noise"})
    alice.upsert_preference("dislikes", "loud noise", id="likes/pref001")
    assert [each.text for each in alice.preferences("dislikes").values()] == ["loud noise"]


def test_a_listed_id_in_an_extraction_tool_names_the_entry():
    async def extract(message, deps):
        context = SimpleNamespace(deps=deps)
        if deps.user_msg == "first":
            await tools.upsert_preference(context, "likes", text="tea")
            return
        told = await tools.upsert_preference(context, "likes", id="likes/pref001", text="green tea")
        assert told.startswith("✅ Updated likes/pref001"), told
        told = await tools.upsert_preference(context, "likes", id="likes/pref001")
        assert told == "✅ Boosted likes/pref001 (count: 2)."
        told = await tools.upsert_preference(context, "dislikes", id="likes/pref001", text="tea")
        assert told.startswith("❌ dislikes.id: 'likes/pref001' is an entry of the category"), told

    diary = Diary("memory:", agent=extract)
    asyncio.run(diary.update_memory("alice", "s", "first", ""))
    asyncio.run(diary.update_memory("alice", "s", "then", ""))
    assert texts(diary.user("alice")) == {"pref001": "green tea"}

    async def forget(message, deps):
        told = await tools.forget_preference(SimpleNamespace(deps=deps), "likes", "likes/pref001")
        assert told.startswith("🗑️ Deleted likes/pref001"), told

    asyncio.run(diary.with_agent(forget).update_memory("alice", "s", "third", ""))
    assert texts(diary.user("alice")) == {}


@pytest.mark.parametrize(
    "value", ['pref002 = "coffee"', "pref002 = [{ text = 'coffee' }]", "pref002.text = 'coffee'"]
)
def test_a_new_entry_leaves_a_value_alone_that_a_person_wrote_as_an_entry(tmp_path, value):
    file = tmp_path / "alice/preferences.toml"
    file.parent.mkdir()
    file.write_text(f"[preferences.likes]\npref001.text = 'tea'\n{value}\n")
    age(file)
    alice = Diary(tmp_path, agent="rules").user("alice")
    assert alice.upsert_preference("likes", "cocoa")[0] == "pref003"
    assert not alice.add_turn("I love jazz.", "Noted.", session_id="s").skipped
    assert value in file.read_text()


def test_an_id_above_the_numbers_that_are_counted_is_given_once(alice):
    alice.upsert_preference("likes", "tea", id="pref999999999")
    given = {
        alice.upsert_preference("likes", each)[0]: each for each in ("coffee", "cocoa", "juice")
    }
    assert texts(alice) == {"pref999999999": "tea", **given}
    assert len(given) == 3


def test_an_entry_does_not_get_the_text_of_another_one(alice):
    tea, _ = alice.upsert_preference("likes", "tea")
    coffee, _ = alice.upsert_preference("likes", "coffee")
    with pytest.raises(InvalidValue, match=f"likes/{coffee} has the same text. Remove likes/{tea}"):
        alice.upsert_preference("likes", "Coffee.", id=tea)
    answer = MemoryVerbs(alice, "s1").update(f"likes/{tea}", "coffee")
    assert answer.startswith(f"❌ likes/{tea}: likes/{coffee} has the same text.")
    assert texts(alice) == {tea: "tea", coffee: "coffee"}
    alice.upsert_preference("likes", "Tea!", id=tea)
    alice.remove_preference("likes", coffee)
    alice.upsert_preference("likes", "coffee", id=tea)
    assert texts(alice) == {tea: "coffee"}


def test_an_extractor_that_corrects_an_entry_to_the_text_of_another_one_leaves_that_one():
    def extract(message, deps):
        deps.upsert("likes", "pref001", "Coffee.", count_up=False)
        alice.upsert_preference("likes", "cocoa")  # by another writer, while the model works
        deps.upsert("likes", "pref003", "cocoa")
        deps.upsert("likes", "pref003", None, ["noon"])

    alice = Diary("memory:", agent=SimpleNamespace(run=extract)).user("alice")
    for text in ("tea", "coffee", "milk"):
        alice.upsert_preference("likes", text, contexts=[f"with {text}"])
    assert alice.add_turn("Coffee instead of tea.", "Noted.", session_id="s1").skipped == []
    found = alice.preferences("likes")
    assert [(each, item.text, item.contexts, item.count) for each, item in found.items()] == [
        ("pref002", "coffee", ["with coffee", "with tea"], 1),
        ("pref004", "cocoa", ["with milk", "noon"], 2),
    ]
    assert alice.history("likes/pref001")[0].before["text"] == "tea"


@pytest.mark.parametrize(
    "changes",
    [
        lambda deps: (
            deps.upsert("likes", None, "coffee"),
            deps.upsert("likes", "pref001", "coffee"),
        ),
        lambda deps: [deps.upsert("likes", each, "coffee") for each in ("pref001", "pref002")],
        lambda deps: [deps.upsert("likes", f"pref00{n}", "cocoa") for n in (1, 2)],
        lambda deps: (
            deps.upsert("likes", "pref001", "coffee", count_up=False),
            deps.upsert("likes", None, "coffee"),
        ),
    ],
    ids=["confirmed-before", "both", "to-one-new-text", "confirmed-after"],
)
def test_a_turn_counts_an_entry_once_that_it_confirms_and_corrects_to(changes):
    diary = Diary("memory:", agent=SimpleNamespace(run=lambda message, deps: changes(deps)))
    alice = diary.user("alice")
    for text in ("tea", "coffee"):
        alice.upsert_preference("likes", text)
    alice.add_turn("Rather this.", "Noted.", session_id="s1")
    [(key, item)] = alice.preferences("likes").items()
    assert (key, item.count) == ("pref002", 2)


def test_a_correction_to_a_stored_text_keeps_the_fields_of_both_entries():
    class Rated(PreferenceItem):
        stars: int = 0
        place: str = ""

    class Table(BaseModel):
        likes: dict[str, Rated] = {}

    def extract(message, deps):
        deps.upsert("likes", "pref001", "coffee", fields={"place": "bar"})

    diary = Diary("memory:", agent=SimpleNamespace(run=extract), pref_table_cls=Table)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", fields={"pinned": True, "stars": 1, "place": "home"})
    alice.upsert_preference("likes", "coffee", fields={"stars": 5, "place": "home"})
    alice.add_turn("Rather coffee.", "Noted.", session_id="s1")
    [item] = alice.preferences("likes").values()
    assert (item.text, item.stars, item.place) == ("coffee", 5, "bar")
    assert "pinned = true" in alice.document("preferences")


def test_a_direct_change_of_a_draft_stores_no_text_twice():
    def extract(message, deps):
        entries = deps.prefs["preferences"]["likes"]
        entries["pref001"]["text"] = "Coffee"
        entries["mine"] = {"text": "milk", "contexts": ["noon"], "_count": 1}

    alice = Diary("memory:", agent=SimpleNamespace(run=extract)).user("alice")
    for text in ("tea", "coffee", "milk"):
        alice.upsert_preference("likes", text)
    alice.add_turn("Rather coffee.", "Noted.", session_id="s1")
    found = alice.preferences("likes").items()
    assert [(key, item.text, item.contexts, item.count) for key, item in found] == [
        ("pref002", "coffee", [], 1),
        ("pref003", "milk", ["noon"], 2),
    ]


def test_an_extractor_may_exchange_the_texts_of_entries():
    def extract(message, deps):
        for number, text in enumerate(("coffee", "milk", "tea"), 1):
            deps.upsert("likes", f"pref00{number}", text)

    alice = Diary("memory:", agent=SimpleNamespace(run=extract)).user("alice")
    for text in ("tea", "coffee", "milk"):
        alice.upsert_preference("likes", text)
    alice.add_turn("In this order.", "Noted.", session_id="s1")
    assert texts(alice) == {"pref001": "coffee", "pref002": "milk", "pref003": "tea"}
