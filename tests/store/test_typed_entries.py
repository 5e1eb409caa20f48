"""Typed entries as plain values for stores of other frameworks."""

from __future__ import annotations

from decimal import Decimal
from math import nan

import pytest
from pydantic import BaseModel

from tomldiary import Constraint, Diary
from tomldiary.engine.engine import Source
from tomldiary.entries.fields import entry_data
from tomldiary.entries.kinds.collections import checked_value, collections
from tomldiary.errors import ImmutableEntry, InvalidValue, LimitReached
from tomldiary.store.typed_entries import TypedEntries
from tomldiary.toml.values import decode_nulls, moment

LIKES = ("preferences", "likes")
TALKS = ("conversations",)
DIET, HOME, BIRTH = ("facts", "diet"), ("facts", "home"), ("facts", "birth")
BLOCKS, EPISODES = ("blocks",), ("episodes",)
NOW = "2026-01-02T03:04:05Z"
KEY, LATER = "2026-01-02T03:04:05.000000Z", "2026-01-02T03:04:06.000000Z"


class Diet(BaseModel):
    role: str
    food: str = "anything"


class Home(BaseModel):
    who: str
    city: str


class Birth(BaseModel):
    who: str
    year: int


@pytest.fixture
def diary():
    diary = Diary("memory:", max_prefs_per_category=2)
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    diary.register_schema("birth", Birth, Constraint(singleton_key="who", immutable=True))
    return diary


def apply(diary, *changes, now=NOW):
    def write(tx):
        TypedEntries(diary, tx.user, tx).apply(
            [
                (place, key, value and checked_value(place, key, value))
                for place, key, value in changes
            ],
            now,
        )

    diary.engine.write("alice", write, Source("put"))


def values(diary, collection):
    stored = TypedEntries(diary, "alice")
    return {key: decode_nulls(entry_data(entry)) for key, entry in stored.entries(collection)}


def test_stores_and_users_share_preferences_and_conversations(diary):
    apply(diary, (LIKES, "a", {"text": " tea "}), (TALKS, "s1", {"summary": "About tea."}))
    alice = diary.user("alice")
    assert alice.preferences("likes")["a"].text == "tea"
    assert alice.conversations()["s1"].summary == "About tea."
    alice.upsert_preference("likes", "cake", id="b", contexts=["noon"])
    assert values(diary, LIKES) == {
        "a": {"text": "tea", "contexts": []},
        "b": {"text": "cake", "contexts": ["noon"]},
    }
    assert values(diary, TALKS) == {"s1": {"summary": "About tea.", "keywords": []}}


@pytest.mark.parametrize(
    ("place", "value", "more"),
    [
        (BLOCKS, {"text": "Brief."}, {"pinned": False}),
        (LIKES, {"text": "tea"}, {"contexts": ["noon"]}),
        (TALKS, {"summary": "About tea."}, {"keywords": ["tea"]}),
    ],
)
def test_a_put_that_only_adds_a_field_sets_the_time_of_the_change(diary, place, value, more):
    later = "2026-12-01T00:00:00+00:00"
    apply(diary, (place, "a", value))
    apply(diary, (place, "a", {**value, **more}), now=later)
    stored = diary.engine.document("alice", place[0]).table((*place, "a"))
    assert moment(stored["_updated"]) == moment(later)


def test_removals_apply_before_additions_in_any_order(diary):
    apply(diary, (LIKES, "a", {"text": "one"}), (LIKES, "b", {"text": "two"}))
    apply(diary, (LIKES, "c", {"text": "three"}), (LIKES, "a", None), (LIKES, "gone", None))
    assert list(values(diary, LIKES)) == ["b", "c"]
    apply(diary, (LIKES, "d", {"text": "two"}), (LIKES, "b", {"text": "2"}), (LIKES, "c", None))
    assert values(diary, LIKES)["d"]["text"] == "two"
    with pytest.raises(LimitReached):
        apply(diary, (LIKES, "b", {"text": "new"}), (LIKES, "e", {"text": "four"}))
    assert values(diary, LIKES)["b"]["text"] == "2"


def test_a_reader_keeps_the_document_it_read_first(diary):
    apply(diary, (LIKES, "a", {"text": "tea"}))
    reader = TypedEntries(diary, "alice")
    assert reader.get(LIKES, "a") is not None
    apply(diary, (LIKES, "a", None))
    assert reader.get(LIKES, "a") is not None
    assert TypedEntries(diary, "alice").get(LIKES, "a") is None
    assert reader.get(TALKS, "s1") is None


@pytest.mark.parametrize(
    ("collection", "value", "message"),
    [
        (LIKES, "tea", "likes.k: expected a table, found text."),
        (LIKES, {}, "likes.k.text: expected text, found nothing."),
        (LIKES, {"text": 7}, "likes.k.text: expected text, found number."),
        (LIKES, {"text": "a", "contexts": "b"}, "likes.k.contexts: expected a list of text, found text."),
        (LIKES, {"text": "a", "contexts": ["b", True]}, "likes.k.contexts.1: expected text, found true or false."),
        (LIKES, {"text": "a", "_count": 9}, "likes.k._count: fields that begin with an underscore"),
        (LIKES, {"text": "a", 7: 1}, "likes.k: expected text as a key, found int."),
        (TALKS, {"summary": ["a"]}, "conversations.k.summary: expected text, found a list."),
        (BLOCKS, {}, "blocks.k.text: expected text, found nothing."),
        (BLOCKS, {"text": "a", "pinned": "no"}, "blocks.k.pinned: expected true or false, found text."),
        (EPISODES, {"input": "a"}, "episodes.k.output: expected text, found nothing."),
        (DIET, [1], "diet.k: expected a table, found a list."),
        (DIET, {"role": "u", "at": Decimal(1)}, "diet.k.at: expected text, a number,"),
        (DIET, {"role": "u", "at": [nan]}, "diet.k.at.0: nan is not a number."),
    ],
)  # fmt: skip
def test_an_invalid_value_is_named_in_the_words_of_the_file(collection, value, message):
    with pytest.raises(InvalidValue) as caught:
        checked_value(collection, "k", value)
    assert str(caught.value).startswith(message)


def test_a_checked_value_is_a_copy_without_cycles():
    value = {"text": "a", "contexts": ["b"]}
    copied = checked_value(LIKES, "k", value)
    copied["contexts"].append("c")
    assert value["contexts"] == ["b"]
    value["more"] = value
    with pytest.raises(InvalidValue, match="nested deeper"):
        checked_value(LIKES, "k", value)


def test_a_diary_has_a_collection_for_each_category_and_each_type(diary):
    found = collections(diary)
    assert found[0] == ("preferences", diary.allowed[0])
    assert found[-6:] == [TALKS, DIET, HOME, BIRTH, BLOCKS, EPISODES]


def test_stores_and_users_share_facts_blocks_and_episodes(
    diary,
):
    alice = diary.user("alice")
    apply(
        diary,
        (DIET, "user", {"role": "user", "food": "vegan"}),
        (BLOCKS, "persona", {"text": "Brief.", "pinned": False, "tone": "dry"}),
        (EPISODES, "first", {"input": "hi", "output": "hello", "tools": ["clock"]}),
        (LIKES, "a", {"text": "tea"}),
    )
    assert alice.get("diet/user").data == Diet(role="user", food="vegan")
    assert (alice.block("persona").text, alice.block("persona").is_pinned) == ("Brief.", False)
    assert [(e.id, e.input) for e in alice.episodes()] == [("first", "hi")]
    assert alice.last_transaction() == 1
    alice.update("diet/user", {"food": "fish"})
    alice.append_block("persona", "Kind.")
    second = alice.add_episode("and you?", "fine")
    assert values(diary, DIET) == {"user": {"role": "user", "food": "fish"}}
    assert values(diary, BLOCKS) == {
        "persona": {"text": "Brief.\nKind.", "pinned": False, "tone": "dry"}
    }
    assert values(diary, EPISODES) == {
        "first": {"input": "hi", "output": "hello", "tools": ["clock"]},
        second: {"input": "and you?", "output": "fine"},
    }
    stored = TypedEntries(diary, "alice")
    assert stored.get(EPISODES, second)["output"] == "fine"
    assert [stored.get(place, "nope") for place in (DIET, BLOCKS, EPISODES)] == [None] * 3
    apply(diary, (DIET, "user", None), (BLOCKS, "persona", None), (EPISODES, second, None))
    assert list(values(diary, EPISODES)) == ["first"]
    assert (values(diary, DIET), values(diary, BLOCKS)) == ({}, {})


def test_an_episode_may_have_only_a_field_of_the_caller(diary):
    apply(diary, (EPISODES, "photo", {"input": "", "output": "", "image": "a.png"}))
    assert values(diary, EPISODES)["photo"]["image"] == "a.png"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ((DIET, "bob", {"role": "user"}), InvalidValue, "diet.bob: its fields say that its key is 'user'"),
        ((DIET, "user", {"role": "user", "size": 1}), InvalidValue, "diet.size: Diet has no such field"),
        ((DIET, "user", {"role": "user", "food": 7}), InvalidValue, "diet.food: expected text, found number"),
        ((BIRTH, "user", {"who": "user", "year": 1999}), ImmutableEntry, "facts/birth/user is never changed"),
        ((BIRTH, "user", None), ImmutableEntry, "facts/birth/user is never changed"),
        ((EPISODES, "first", {"input": "a", "output": "b"}), InvalidValue, "episodes.first: an episode with this id exists"),
        ((HOME, "user@2020-01-01", {"who": "user", "city": "Oslo"}), InvalidValue, "home.user@2020-01-01: a temporal fact"),
    ],
)  # fmt: skip
def test_puts_obey_schema_and_constraints(diary, change, error, message):
    apply(
        diary,
        (BIRTH, "user", {"who": "user", "year": 1980}),
        (EPISODES, "first", {"input": "hi", "output": "hello"}),
    )
    with pytest.raises(error) as caught:
        apply(diary, (BLOCKS, "other", {"text": "not without the rest"}), change)
    assert str(caught.value).startswith(message)
    assert values(diary, BLOCKS) == {}
    assert diary.user("alice").last_transaction() == 1


def test_a_temporal_fact_is_put_and_got_by_its_singleton_key(diary):
    apply(diary, (HOME, "user", {"who": "user", "city": "Paris"}))
    apply(diary, (HOME, "user", {"who": "user", "city": "Paris"}))
    diary.user("alice").commit(Home(who="user", city="Rome"))
    stored = TypedEntries(diary, "alice")
    assert stored.get(HOME, "user")["city"] == "Rome"
    assert [value["city"] for value in values(diary, HOME).values()] == ["Rome"]
    assert len(diary.user("alice").query("home", include_ended=True)) == 2


@pytest.mark.parametrize("key", ["٢٠٢٦-١١-٢٠", "9999-99-99", "../x", "2026-11-20", "日", "a/b"])
def test_any_new_key_names_an_episode(tmp_path, key):
    diary = Diary(tmp_path, durability="process")
    value = {"input": "hi", "output": "hello"}
    apply(diary, (EPISODES, key, value))
    assert values(diary, EPISODES) == {key: value}
    assert diary.user("alice").forget_episode(key).input == "hi"
    assert values(diary, EPISODES) == {}


def test_temporal_facts_without_a_singleton_key_need_new_keys(diary):
    class Like(BaseModel):
        what: str

    diary.register_schema("like", Like, Constraint(temporal=True))
    place = ("facts", "like")
    apply(diary, (place, "a", {"what": "tea"}), (place, "b", {"what": "jam"}))
    apply(diary, (place, "a", {"what": "tea"}))
    with pytest.raises(InvalidValue, match=r"like\.a: a temporal fact is not overwritten"):
        apply(diary, (place, "a", {"what": "coffee"}))
    assert values(diary, place) == {"a": {"what": "tea"}, "b": {"what": "jam"}}


def test_an_episode_put_in_a_transaction_is_read_in_it(diary):
    value = {"input": "hello", "output": "hi"}
    apply(diary, (EPISODES, KEY, value))

    def write(tx):
        entries = TypedEntries(diary, tx.user, tx)
        assert entries.get(EPISODES, LATER) is None
        entries.apply([(EPISODES, LATER, value)], NOW)
        return entries.get(EPISODES, LATER) is not None

    assert diary.engine.write("alice", write, Source("put"))


def test_entries_in_fixed_documents_need_no_list_of_the_documents(diary, monkeypatch):
    apply(diary, (LIKES, "a", {"text": "tea"}), (BLOCKS, "persona", {"text": "kind"}))

    def kinds(user):
        pytest.fail("a remote storage would be asked once more")

    monkeypatch.setattr(diary.engine, "kinds", kinds)
    stored = TypedEntries(diary, "alice")
    assert stored.get(LIKES, "a") is not None
    assert stored.get(BLOCKS, "persona") is not None
    assert [key for key, _ in stored.entries(LIKES)] == ["a"]
