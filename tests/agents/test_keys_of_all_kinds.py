"""An agent's tools write typed facts, and change and remove entries of every kind by key."""

from __future__ import annotations

import asyncio
from datetime import date  # noqa: TC003 - pydantic reads the annotation
from decimal import Decimal  # noqa: TC003 - the same
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model

from tomldiary import Constraint, Diary, PreferenceItem
from tomldiary.agents.verbs import MemoryVerbs, naming_categories
from tomldiary.errors import InvalidValue
from tomldiary.store.operations import Get, Put
from tomldiary.store.store import ItemStore


class Diet(BaseModel):
    """What a person eats."""

    role: str = Field(description="Who it is about.")
    food: Literal["vegan", "omnivore"]
    since: int | None = None


class Note(BaseModel):
    text: str


NAMESPACE = ("alice", "memories", "work")


@pytest.fixture
def diary():
    diary = Diary("memory:", agent="rules")
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    diary.register_schema("note", Note, Constraint(limit=1, immutable=True))
    return diary


@pytest.fixture
def alice(diary):
    return diary.user("alice")


@pytest.fixture
def verbs(alice):
    return MemoryVerbs(alice, "s1", operation_id="")


def test_a_model_is_told_types_of_facts_with_their_fields(diary):
    said = naming_categories(diary)
    assert "diet (What a person eats.): role (string, Who it is about.)" in said
    assert "food (one of vegan, omnivore)" in said
    assert "optional" in said
    assert "fact" not in naming_categories(Diary("memory:"))


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class Place(BaseModel):
    city: str
    near: Place | None = None


class Nothing(BaseModel):
    pass


class Train(BaseModel):
    kind: Literal["train"]


class Bus(BaseModel):
    kind: Literal["bus"]
    stops: Nothing


class Trip(BaseModel):
    start: date | None = None
    budget: Decimal | None = None
    mood: Mood | None = None
    people: list[str] = []
    goal: Place
    by: Annotated[Train | Bus, Field(discriminator="kind")]
    note: Any = None


def test_a_model_is_told_the_type_of_each_field():
    diary = Diary("memory:")
    diary.register_schema("trip", Trip)
    said = naming_categories(diary)
    for field in (
        "start (date, optional)",
        "budget (number or string, optional)",
        "mood (one of good, bad, optional)",
        "people (array of string, optional)",
        "goal (object of city (string), near (value))",
        "by (object of kind (one of train) or object of kind (one of bus), stops (object))",
        "note (value, optional)",
    ):
        assert field in said


def test_types_that_contain_themselves_or_each_other_are_described_in_short():
    diary, numbers = Diary("memory:"), range(9)
    diary.register_schema("place", Place)
    assert "place: city (string); near (object of city (string)" in naming_categories(diary)
    fields = {f"to{number}": (f"Stop{number} | None", None) for number in numbers}
    stops = {f"Stop{n}": create_model(f"Stop{n}", n=(int, ...), **fields) for n in numbers}
    for stop in stops.values():
        stop.model_rebuild(_types_namespace=stops)
    diary.register_schema("stop", stops["Stop0"])
    assert len(naming_categories(diary)) < 20_000


def test_fields_of_an_unknown_type_are_answered_with_the_known_types(alice, verbs):
    told = "❌ the fact type 'hats' is not registered. Use one of: diet"
    for answer in (
        verbs.remember("", "hats", fields={"size": 7}),
        verbs.update("hats/user", fields={"size": 7}),
        verbs.update("facts/hats/user", fields={"size": 7}),
        verbs.forget("facts/hats/user"),
    ):
        assert answer.startswith(told)
    assert not alice.history()


def test_a_typed_fact_is_remembered_with_its_fields(alice, verbs):
    answer = verbs.remember("", "diet", fields={"role": "user", "food": "vegan"})
    assert answer == "✅ Noted as facts/diet/user: role = user, food = vegan"
    assert alice.facts.get("diet/user").data == Diet(role="user", food="vegan")
    assert alice.history("facts/diet/user")[0].session == "s1"
    note = verbs.remember("The gate is green.", "note")
    assert note.startswith("✅ Noted as facts/note/")
    assert note.data["text"] == "The gate is green."


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"role": "user", "food": "rocks"}, "diet.food: expected 'vegan' or 'omnivore'"),
        ({"role": "user"}, "diet.food: expected a value, found nothing"),
        ({"role": "user", "hat": 1}, "diet.hat: Diet has no such field"),
        (None, "expected a value, found nothing"),
    ],
)
def test_a_wrong_fact_is_answered_with_a_sentence(alice, verbs, fields, hint):
    answer = verbs.remember("x", "diet", fields=fields)
    assert answer.is_error
    assert hint in answer
    assert alice.facts.count() == 0


def test_constraints_answer_as_sentences(verbs):
    first = verbs.remember("The gate is green.", "note")
    assert "note is full (1/1)" in verbs.remember("The gate is red.", "note")
    key = f"facts/{first.data['id']}"
    assert "is never changed" in verbs.update(key, "The gate is red.")
    assert "is never changed" in verbs.forget(key)


def test_history_names_the_agent_of_every_removal(alice, verbs):
    alice.add_turn("I like tea.", "Noted.", session_id="s0")
    alice.blocks.set("plan", "a trip")
    for key in ("likes/pref001", "blocks/plan", "conversations/s0"):
        assert not verbs.forget(key).is_error
        assert alice.history(key)[0].actor == "agent"


def test_fields_of_facts_and_items_are_updated(alice, verbs, diary):
    store = ItemStore(diary)
    store.run([Put(NAMESPACE, "a/b", {"text": "a red bicycle", "_n": 1}, ttl=60)])
    verbs.remember("", "diet", fields={"role": "user", "food": "vegan"})
    assert verbs.update("facts/diet/user", fields={"since": 2020}) == "✅ Changed facts/diet/user."
    assert alice.facts.get("diet/user").data.since == 2020
    (hit,) = alice.recall("bicycle")
    assert verbs.update(hit.full_key, "a blue bicycle") == f"✅ Changed {hit.full_key}."
    assert verbs.update(hit.full_key, fields={"n": 2}).startswith("✅")
    (item,) = store.run([Get(NAMESPACE, "a/b")])
    assert item.value == {"text": "a blue bicycle", "_n": 1, "n": 2}
    assert item.updated_at > item.created_at
    (change, *_) = alice.history(hit.full_key)
    assert (change.session, change.actor, change.type) == ("s1", "agent", "update_item")
    assert "say which fields change" in verbs.update("facts/diet/user", "rice")
    assert "does not exist" in verbs.update("items/memories/work/none", "x")
    assert "does not exist" in verbs.update("items/none/x", fields={"a": 1})


def test_a_fact_beside_a_category_called_facts_is_changed_by_its_key():
    class Table(BaseModel):
        facts: dict[str, PreferenceItem] = {}

    diary = Diary("memory:", Table, agent="rules")
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    verbs = MemoryVerbs(diary.user("alice"), "s1")
    verbs.remember("", "diet", fields={"role": "user", "food": "vegan"})
    (hit,) = diary.user("alice").recall("vegan")
    assert verbs.update(hit.full_key, fields={"since": 2020}) == "✅ Changed facts/diet/user."
    assert verbs.forget(hit.full_key).startswith("🗑️ Removed facts/diet/user: ")


def test_a_pending_change_is_refused_with_its_reason(verbs):
    for answer in (verbs.update("quarantine/12", "x"), verbs.forget("quarantine/12")):
        assert answer.startswith("❌ quarantine/12: it waits for a decision of a person")
    for answer in (verbs.update("drafts/12", "x"), verbs.forget("drafts/12")):
        assert answer.startswith("❌ drafts/12: it is a draft of a session, which the application")


def test_items_and_conversations_are_forgotten_by_key(alice, verbs, diary):
    store = ItemStore(diary)
    store.run([Put(NAMESPACE, "a/b", {"text": "a red bicycle"})])
    answer = verbs.forget("items/memories/work/a%2fb")
    assert answer == "🗑️ Removed items/memories/work/a%2fb: text = a red bicycle"
    assert store.run([Get(NAMESPACE, "a/b")]) == [None]
    assert alice.recall("bicycle") == []
    assert verbs.forget("items/memories/work/a%2fb").is_error
    alice.rollback()
    assert alice.items.get("memories/work/a%2fb") == {"text": "a red bicycle"}
    assert alice.items.get("memories/work/none") is None


def test_an_item_in_a_namespace_named_items_is_the_one_that_is_changed_and_forgotten(alice, verbs):
    store, key = ItemStore(alice.diary), "items/items/trips/porto"
    for namespace in (("alice", "items", "trips"), ("alice", "trips")):
        store.run([Put(namespace, "porto", {"text": "a flat"})])
    verbs.update(key, "a house")
    assert (alice.items[key], alice.items["trips/porto"]) == (
        {"text": "a house"},
        {"text": "a flat"},
    )
    verbs.forget(key)
    assert list(alice.items) == ["trips/porto"]


def test_items_have_coroutine_twins(alice, diary):
    ItemStore(diary).run([Put(NAMESPACE, "k", {"text": "x"})])

    async def use():
        await alice.items.aupdate("items/memories/work/k", {"text": "y"})
        return await alice.items.aget("memories/work/k"), await alice.items.adelete(
            "memories/work/k"
        )

    assert asyncio.run(use()) == ({"text": "y"}, {"text": "y"})


def test_a_category_named_like_a_kind_hides_no_entry_of_the_kind():
    class Table(BaseModel):
        """A table."""

        blocks: dict[str, PreferenceItem] = {}
        conversations: dict[str, PreferenceItem] = {}

    alice = Diary("memory:", pref_table_cls=Table, agent="rules").user("alice")
    verbs = MemoryVerbs(alice, "s1")
    alice.blocks.set("persona", "calm")
    alice.upsert_preference("blocks", "wooden")
    assert {hit.full_key for hit in alice.recall("calm wooden")} == {
        "blocks/persona",
        "blocks/pref001",
    }
    alice.confirm("blocks/persona")
    assert verbs.update("blocks/persona", "brief") == "✅ Changed blocks/persona."
    assert verbs.update("blocks/pref001", "oaken") == "✅ Changed blocks/pref001."
    assert verbs.forget("blocks/persona") == "🗑️ Removed blocks/persona: brief"
    assert verbs.forget("blocks/pref001") == "🗑️ Removed blocks/pref001: oaken"
    alice.add_turn("I love tea.", "Noted.", session_id="s2")
    alice.upsert_preference("conversations", "at noon")
    alice.confirm("conversations/pref001")
    removed = verbs.forget("conversations: at noon")
    assert removed == "🗑️ Removed conversations/pref001: at noon"
    assert "Removed conversations/s2" in verbs.forget("conversations/s2")


def test_a_key_or_a_line_of_two_kinds_removes_neither_entry():
    class Table(BaseModel):
        """A table."""

        blocks: dict[str, PreferenceItem] = {}

    alice = Diary("memory:", pref_table_cls=Table, agent="rules").user("alice")
    verbs = MemoryVerbs(alice, "s1")
    alice.blocks.set("pref001", "calm")
    alice.upsert_preference("blocks", "wooden")
    for named in ("blocks/pref001", "pref001: calm", "blocks: wooden"):
        assert "❌ blocks/pref001: two entries have this key." in verbs.forget(named)
    with pytest.raises(InvalidValue, match="two entries have this key"):
        alice.confirm("blocks/pref001")
    removed = verbs.forget("preferences/blocks/pref001")
    assert removed == "🗑️ Removed preferences/blocks/pref001: wooden"
    assert verbs.forget("pref001: calm") == "🗑️ Removed blocks/pref001: calm"
