"""A diary behind LangGraph's store interface: the same entries, the same rules, no leaks."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import math
import re
import sys
import threading
import time
from collections import OrderedDict, UserDict
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import pytest
from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
)
from pydantic import BaseModel

from tomldiary import Diary, PreferenceItem
from tomldiary.errors import InvalidValue, LimitReached, MissingExtra
from tomldiary_langgraph import DiaryStore, NotSupported


class Diet(PreferenceItem):
    calories: int = 0


class Table(BaseModel):
    """Likes : what the user enjoys."""

    likes: dict[str, PreferenceItem] = {}
    dislikes: dict[str, PreferenceItem] = {}
    diet: dict[str, Diet] = {}


LIKES = ("alice", "diary", "preferences", "likes")
DISLIKES = ("alice", "diary", "preferences", "dislikes")
TALKS = ("alice", "diary", "conversations")


@pytest.fixture(params=["memory:", "folder"])
def diary(request, tmp_path):
    place = tmp_path / "memories" if request.param == "folder" else request.param
    return Diary(place, Table, agent="rules")


@pytest.fixture
def store(diary):
    return DiaryStore(diary)


def everything(diary):
    return {
        (user, kind): diary.user(user).document(kind)
        for user in diary.users()
        for kind in ("preferences", "conversations")
    }


def keys(items):
    return [item.key for item in items]


# One memory


def test_entries_of_the_core_are_read_by_the_store(diary, store):
    alice = diary.user("alice")
    key, item = alice.upsert_preference("likes", "dark roast", contexts=["morning"])
    alice.add_turn("I'm allergic to walnuts.", "Noted.", session_id="s1")
    found = store.get(LIKES, key)
    assert found.value == {"text": "dark roast", "contexts": ["morning"]}
    assert found.namespace == LIKES
    assert found.created_at == datetime.fromisoformat(item.created)
    assert found.updated_at.tzinfo is not None
    assert store.get(TALKS, "s1").value == {"summary": "", "keywords": []}
    assert any("walnuts" in hit.value["text"] for hit in store.search(("alice",), query="walnuts"))


def test_entries_of_the_store_are_read_by_the_core(diary, store):
    store.put(LIKES, "coffee", {"text": " dark roast ", "contexts": ["a"], "rating": 5})
    store.put(TALKS, "s1", {"summary": "About coffee.", "keywords": ["coffee"], "mood": "calm"})
    alice = diary.user("alice")
    item = alice.preferences("likes")["coffee"]
    assert (item.text, item.contexts, item.count) == ("dark roast", ["a"], 1)
    assert alice.entry("preferences", "likes/coffee")["rating"] == 5
    assert alice.conversations()["s1"].summary == "About coffee."
    assert alice.entry("conversations", "s1")["mood"] == "calm"
    assert alice.recall("coffee")[0].key == "s1"


def test_a_diary_is_opened_from_its_path_and_the_file_survives_the_store(tmp_path):
    with DiaryStore(tmp_path / "m") as first:
        first.put(("bo", "diary", "preferences", "likes"), "k", {"text": "tea"})
    second = DiaryStore(str(tmp_path / "m"))
    assert second.get(("bo", "diary", "preferences", "likes"), "k").value["text"] == "tea"
    assert 'text = "tea"' in (tmp_path / "m" / "bo" / "preferences.toml").read_text()


def test_a_put_replaces_the_value_and_keeps_count_and_creation(diary, store):
    alice = diary.user("alice")
    key, _ = alice.upsert_preference("likes", "tea", contexts=["a", "b"])
    alice.upsert_preference("likes", id=key)
    before = store.get(LIKES, key)
    store.put(LIKES, key, {"text": "green tea", "contexts": ["b"], "more": {"x": [1, 2.5, None]}})
    between = store.get(LIKES, key)
    store.put(LIKES, key, {"text": "green tea", "contexts": ["b"], "more": {"x": [1, None]}})
    after = store.get(LIKES, key)
    assert after.value == {"text": "green tea", "contexts": ["b"], "more": {"x": [1, None]}}
    assert after.created_at == before.created_at
    assert after.updated_at > between.updated_at > before.updated_at
    assert alice.preferences("likes")[key].count == 2
    store.put(LIKES, key, {"text": "green tea"})
    assert store.get(LIKES, key).value == {"text": "green tea", "contexts": []}


def test_an_item_that_was_read_can_be_put_again(diary, store):
    diary.user("alice").add_turn("I love tea.", "Nice.", session_id="s1")
    for item in store.search(("alice",)):
        store.put(item.namespace, item.key, item.value)
        assert store.get(item.namespace, item.key).value == item.value


def test_null_and_text_and_number_subclasses_survive_a_restart(tmp_path):
    class Mood(StrEnum):
        CALM = "calm"

    value = {
        "text": "tea",
        "mood": Mood.CALM,
        "none": None,
        "list": ("a", None, ""),
        "inner": UserDict({"n": None, "flag": True}),
    }
    store = DiaryStore(Diary(tmp_path, Table))
    store.put(LIKES, "k", value)
    expected = {
        "text": "tea",
        "contexts": [],
        "mood": "calm",
        "none": None,
        "list": ["a", None, ""],
        "inner": {"n": None, "flag": True},
    }
    assert store.get(LIKES, "k").value == expected
    assert DiaryStore(Diary(tmp_path, Table)).get(LIKES, "k").value == expected


def test_values_are_copies_in_both_directions(store):
    value = {"text": "tea", "tags": {"list": ["a"]}}
    store.put(LIKES, "k", value)
    value["tags"]["list"].append("b")
    first, second = store.batch([GetOp(LIKES, "k"), GetOp(LIKES, "k")])
    first.value["tags"]["list"].append("c")
    first.value["contexts"].append("c")
    assert second.value["tags"] == {"list": ["a"]}
    assert store.search(LIKES)[0].value == {"text": "tea", "contexts": [], "tags": {"list": ["a"]}}


def test_hand_written_entries_without_times_are_shown(tmp_path):
    folder = tmp_path / "alice"
    folder.mkdir()
    (folder / "preferences.toml").write_text(
        "[likes.coffee]\ntext = 7\n[likes.tea]\ntext = 'green'\n_updated = 2026-01-02T03:04:05\n"
    )
    store = DiaryStore(Diary(tmp_path, Table))
    assert store.get(LIKES, "coffee").created_at == datetime(1970, 1, 1, tzinfo=UTC)
    assert store.get(LIKES, "tea").updated_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert keys(store.search(LIKES)) == ["tea", "coffee"]
    store.put(LIKES, "coffee", {"text": "dark roast"})
    assert store.get(LIKES, "coffee").value["text"] == "dark roast"


# The schema


_LOOP: list[object] = []
_LOOP.append(_LOOP)

BROKEN = [
    ({}, "likes.k.text: expected text, found nothing."),
    ({"text": 7}, "likes.k.text: expected text, found number."),
    ({"text": True}, "likes.k.text: expected text, found true or false."),
    ({"text": ["a"]}, "likes.k.text: expected text, found a list."),
    ({"text": {}}, "likes.k.text: expected text, found a table."),
    ({"text": "  "}, "the text is blank"),
    ({"text": "x" * 10_001}, "10,000 are allowed"),
    ({"text": "a", "contexts": "b"}, "likes.k.contexts: expected a list of text, found text."),
    ({"text": "a", "contexts": ["b", 3]}, "likes.k.contexts.1: expected text, found number."),
    ({"text": "a", "_count": 9}, "likes.k._count: fields that begin with an underscore"),
    ({"text": "a", "x": {1, 2}}, "expected text, a number, true or false, a list or a table"),
    ({"text": "a", "x": object()}, "found object"),
    ({"text": "a", "x": b"bytes"}, "found bytes"),
    ({"text": "a", 5: 1}, "expected text as a key"),
    ({"text": "a", "x": {5: 1}}, "expected text as a key"),
    ({"text": "a\ud800"}, "half of a surrogate pair"),
    ({"text": "a", "x": _LOOP}, "nested deeper than"),
    ("text", "likes.k: expected a table, found text."),
    ([], "likes.k: expected a table, found a list."),
]


@pytest.mark.parametrize(("value", "message"), BROKEN)
def test_an_invalid_value_is_named_in_toml_words_and_not_written(diary, store, value, message):
    store.put(LIKES, "kept", {"text": "kept"})
    before = everything(diary)
    earlier = [PutOp(TALKS, "s", {"summary": "x"}), PutOp(LIKES, "other", {"text": "other"})]
    for ops in ([PutOp(LIKES, "k", value)], [*earlier, PutOp(LIKES, "k", value)]):
        with pytest.raises(ValueError, match=re.escape(message)):
            store.batch(ops)
        assert everything(diary) == before


def test_fields_of_a_custom_item_type_are_checked(store):
    diet = ("alice", "diary", "preferences", "diet")
    store.put(diet, "k", {"text": "light", "calories": 500})
    with pytest.raises(InvalidValue, match=r"diet\.k\.calories: "):
        store.put(diet, "k", {"text": "light", "calories": "many"})
    assert store.get(diet, "k").value["calories"] == 500


def test_conversations_are_checked_against_a_schema(store):
    with pytest.raises(
        InvalidValue, match=r"conversations\.s\.summary: expected text, found nothing"
    ):
        store.put(TALKS, "s", {"keywords": []})
    with pytest.raises(InvalidValue, match=r"keywords\.0: expected text, found number"):
        store.put(TALKS, "s", {"summary": "x", "keywords": [1]})
    with pytest.raises(InvalidValue, match="session id is empty"):
        store.put(TALKS, "", {"summary": "x"})
    assert store.search(TALKS) == []


def test_the_rules_of_the_diary_hold_for_puts(tmp_path):
    diary = Diary(tmp_path, Table, max_prefs_per_category=2)
    store = DiaryStore(diary)
    store.put(LIKES, "a", {"text": "tea"})
    with pytest.raises(InvalidValue, match="likes/a holds the same text"):
        store.put(LIKES, "b", {"text": "Tea!"})
    store.put(LIKES, "b", {"text": "coffee"})
    with pytest.raises(LimitReached):
        store.put(LIKES, "c", {"text": "milk"})
    store.batch([PutOp(LIKES, "c", {"text": "coffee"}), PutOp(LIKES, "b", None)])
    assert sorted(keys(store.search(LIKES))) == ["a", "c"]
    store.batch([PutOp(LIKES, "a", {"text": "coffee"}), PutOp(LIKES, "c", {"text": "tea"})])
    assert store.get(LIKES, "a").value["text"] == "coffee"


def test_an_id_used_before_cannot_be_put(diary, store):
    key, _ = diary.user("alice").upsert_preference("likes", "tea")
    store.delete(LIKES, key)
    with pytest.raises(InvalidValue, match="the diary gives out ids"):
        store.put(LIKES, key, {"text": "coffee"})
    assert store.search(LIKES) == []


# Batches


def test_a_batch_keeps_its_order_and_reads_the_state_before_it(store):
    store.put(LIKES, "a", {"text": "old"})
    results = store.batch(
        [
            PutOp(LIKES, "a", {"text": "new"}),
            GetOp(LIKES, "a"),
            PutOp(LIKES, "b", {"text": "b"}),
            SearchOp(LIKES),
            GetOp(LIKES, "b"),
            ListNamespacesOp(),
            PutOp(LIKES, "a", {"text": "newest"}),
            PutOp(LIKES, "c", {"text": "c"}),
            PutOp(LIKES, "c", None),
            PutOp(DISLIKES, "missing", None),
        ]
    )
    assert [type(result) for result in results] == [
        type(None), Item, type(None), list, type(None), list, type(None), type(None), type(None), type(None),
    ]  # fmt: skip
    assert results[1].value["text"] == "old"
    assert keys(results[3]) == ["a"]
    assert isinstance(results[3][0], SearchItem)
    assert results[5] == [LIKES]
    assert store.get(LIKES, "a").value["text"] == "newest"
    assert store.get(LIKES, "c") is None


def test_a_batch_of_one_user_is_one_transaction(tmp_path):
    diary = Diary(tmp_path, Table)
    DiaryStore(diary).batch([PutOp(LIKES, str(n), {"text": f"t{n}"}) for n in range(20)])
    assert sum(1 for _ in diary.engine.backend.records("alice")) == 1


def test_a_batch_writes_nothing_if_one_user_breaks_a_rule(diary, store):
    bob = ("bob", *LIKES[1:])
    store.put(bob, "a", {"text": "tea"})
    before = everything(diary)
    with pytest.raises(InvalidValue, match="same text"):
        store.batch([PutOp(LIKES, "k", {"text": "x"}), PutOp(bob, "b", {"text": "tea"})])
    with pytest.raises(InvalidNamespaceError):
        store.batch([PutOp(LIKES, "k", {"text": "x"}), GetOp(("foo.bar",), "k")])
    with pytest.raises(InvalidValue, match="ops: expected a GetOp"):
        store.batch([PutOp(LIKES, "k", {"text": "x"}), "drop"])
    assert everything(diary) == before


def test_deleting_removes_the_entry_and_deleting_nothing_is_no_error(diary, store):
    store.put(LIKES, "a", {"text": "tea"})
    store.put(TALKS, "s", {"summary": "x"})
    for namespace, key in ((LIKES, "a"), (TALKS, "s"), (LIKES, "a"), (TALKS, "s")):
        store.delete(namespace, key)
        assert store.get(namespace, key) is None
    assert store.list_namespaces() == []
    assert diary.user("alice").preferences("likes") == {}


# Searching


def filled(store, count=7):
    for number in range(count):
        store.put(LIKES, f"k{number}", {"text": f"thing {number}", "n": number})
    return [f"k{number}" for number in reversed(range(count))]


def test_without_a_query_pages_are_disjoint_and_newest_first(store):
    order = filled(store)
    assert keys(store.search(LIKES)) == order
    pages = [store.search(LIKES, limit=3, offset=offset) for offset in range(0, 9, 3)]
    assert [key for page in pages for key in keys(page)] == order
    assert store.search(LIKES, limit=0) == []
    assert store.search(LIKES, offset=100) == []
    assert {item.score for item in store.search(LIKES)} == {None}


def test_entries_of_one_moment_are_ordered_by_key(store):
    store.batch([PutOp(LIKES, key, {"text": key}) for key in ("c", "a", "b")])
    assert keys(store.search(LIKES)) == ["a", "b", "c"]


def test_a_query_ranks_within_prefix_and_filter(store):
    store.put(LIKES, "roast", {"text": "dark roast coffee", "n": 1})
    store.put(LIKES, "latte", {"text": "coffee with milk and sugar in the morning", "n": 2})
    store.put(LIKES, "hike", {"text": "hiking", "n": 3})
    store.put(DISLIKES, "decaf", {"text": "decaf coffee", "n": 1})
    store.put(TALKS, "s", {"summary": "We spoke about coffee."})
    *found, other = store.search(LIKES, query="which coffee?")
    assert sorted(keys(found)) == ["latte", "roast"]
    assert [item.score for item in found] == sorted((i.score for i in found), reverse=True)
    assert (other.key, other.score) == ("hike", None)
    assert keys(store.search(("alice",), query="coffee", filter={"n": 1}, limit=9)) != []
    assert sorted(keys(store.search(("alice",), query="coffee", filter={"n": 1}))) == [
        "decaf",
        "roast",
    ]
    *found, other = store.search(("alice", "diary"), query="coffee")
    assert sorted(keys(found)) == ["decaf", "latte", "roast", "s"]
    assert (other.key, other.score) == ("hike", None)
    assert keys(store.search(TALKS, query="coffee")) == ["s"]
    assert len(store.search(LIKES, query="  ")) == 3
    for odd in ("NEAR(", "coffee*", "body:coffee", "' OR 1=1 --"):
        matches = [item for item in store.search(LIKES, query=odd) if item.score is not None]
        assert set(keys(matches)) <= {"roast", "latte"}
    for without_words in ('"', "\0", "?!"):
        assert keys(store.search(LIKES, query=without_words)) == ["hike", "latte", "roast"]
    everything = store.search(("alice",), query="coffee", limit=10)
    paged = [store.search(("alice",), query="coffee", limit=1, offset=n)[0] for n in range(5)]
    assert keys(paged) == keys(everything)


VALUES = {
    "int": {"v": 5},
    "float": {"v": 5.0},
    "one": {"v": 1},
    "true": {"v": True},
    "false": {"v": False},
    "zero": {"v": 0},
    "text": {"v": "5"},
    "empty": {"v": ""},
    "quote": {"v": "' OR 1=1 --"},
    "null": {"v": None},
    "missing": {},
    "list": {"v": ["a", 1, True]},
    "nolist": {"v": []},
    "table": {"v": {"x": 1, "y": None}},
    "notable": {"v": {}},
    "inf": {"v": math.inf},
    "big": {"v": 10**100},
    "minus": {"v": -3.5},
    "dotted": {"a.b": 1, "$eq": 2, "": 3, "v'": 4},
}

_DEEP: object = 1
for _ in range(40):
    _DEEP = [_DEEP]

ANSWERED = [
    *({"v": value["v"]} for value in VALUES.values() if "v" in value),
    *({"v": {op: 5}} for op in ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")),
    *({"v": {op: "5"}} for op in ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")),
    *({"v": {op: math.nan}} for op in ("$eq", "$ne", "$gt", "$lte")),
    {"v": {"$gt": -math.inf, "$lt": math.inf}},
    {"v": {"$gte": 10**100}},
    {"v": {"$lt": -(10**400)}},
    {"v": {"$gt": 1, "$ne": 5}},
    {"v": {"$ne": None}},
    {"v": {"$eq": None}},
    {"v": {"$eq": ["a", 1, True]}},
    {"v": ["a", 1, 1]},
    {"v": ["a", 1]},
    {"v": {"$eq": {"x": 1, "y": None}}},
    {"v": {"x": 1}},
    {"v": {"x": True, "y": None}},
    {"v": {"$ne": True}},
    {"a.b": 1},
    {"a": {"b": 1}},
    {"": 3},
    {"v'": 4},
    {"v\0": None},
    {"v": "\0"},
    {"v": "\ud800"},
    {"v": "%"},
    {"v": "*"},
    {"v; DROP TABLE entries": 1},
    {"__class__": None},
    {"_count": 1},
    {"_created": None},
    {"v": _DEEP},
    {"v": 5, "text": "int"},
    {"v": 5, "text": "nothing such"},
    {"v": {"$gt": ""}},
    {"v": {"$gt": datetime(2026, 1, 1, tzinfo=UTC)}},
    {"text": {"$gte": "int", "$lt": "j"}},
    {},
]


def _tagged(value):
    if value is None or isinstance(value, bool):
        return ["constant", value]
    if isinstance(value, int | float):
        return ["nan", object()] if value != value else ["number", value]  # noqa: PLR0124
    if isinstance(value, list):
        return ["list", [_tagged(item) for item in value]]
    if isinstance(value, dict):
        return ["table", {key: _tagged(item) for key, item in value.items()}]
    return [type(value).__name__, value]


def _meets(have, operator, wanted):
    if operator in ("$eq", "$ne"):
        return (_tagged(have) == _tagged(wanted)) is (operator == "$eq")
    (one, left), (two, right) = _tagged(have), _tagged(wanted)
    if one != two or one not in ("number", "str"):
        return False
    return {
        "$gt": left > right, "$gte": left >= right, "$lt": left < right, "$lte": left <= right,
    }[operator]  # fmt: skip


def naive(value, condition):
    for key, wanted in condition.items():
        if key not in value:
            return False
        have = value[key]
        if isinstance(wanted, dict) and not any(name.startswith("$") for name in wanted):
            if not (isinstance(have, dict) and naive(have, wanted)):
                return False
            continue
        if not isinstance(wanted, dict):
            wanted = {"$eq": wanted}  # noqa: PLW2901
        if not all(_meets(have, operator, item) for operator, item in wanted.items()):
            return False
    return True


@pytest.fixture(scope="module")
def varied():
    store = DiaryStore(Diary("memory:", Table))
    for key, value in VALUES.items():
        store.put(LIKES, key, {"text": key, **value})
    return store


def test_hostile_filters_answer_like_a_naive_reference(varied):
    for condition in ANSWERED:
        expected = {
            key
            for key, value in VALUES.items()
            if naive({"text": key, "contexts": [], **value}, condition)
        }
        for prefix in (LIKES, ("alice",)):
            found = varied.search(prefix, filter=condition, limit=100)
            assert (condition, set(keys(found))) == (condition, expected)


@pytest.mark.parametrize(
    "condition",
    [
        {"v": {"$in": 1}},
        {"v": {"$exists": 1}},
        {"v": {"$not": 1, "x": 2}},
        {"$eq": 2},
        {"$and": []},
        {"$or": {"v": 1}},
        {"$and": [{"v": {"$zz": 1}}]},
        {"v": {"$where": "1"}},
        {"v": {"$gt": 1, "x": 1}},
        {"v": {"$": 1}},
        {"v": {"$GT": 1}},
        {"v": {"$gt": None}},
        {"v": {"$gt": True}},
        {"v": {"$lt": [1]}},
        {"v": {"$lte": {}}},
        {"v": {1, 2}},
        {"v": ...},
        {"v": b"5"},
        {"v": timedelta(1)},
        {"v": {"$eq": {1: 2}}},
        {"v": {1: 2}},
        {5: 1},
        {None: 1},
        {("v",): 1},
        {"v": _LOOP},
        {"v": {"$eq": _LOOP}},
        [("v", 1)],
        "v",
        7,
    ],
    ids=lambda c: ascii(c)[:40],
)
def test_invalid_filters_are_refused_before_any_write(varied, condition):
    with pytest.raises(InvalidValue, match="filter"):
        varied.search(LIKES, filter=condition)
    with pytest.raises(InvalidValue, match="filter"):
        varied.batch([PutOp(LIKES, "new", {"text": "new"}), SearchOp(LIKES, filter=condition)])
    assert varied.get(LIKES, "new") is None


@pytest.mark.parametrize(
    "namespace",
    [
        ("alice", "diary"),
        ("alice", "diary", "preferences"),
        ("alice", "diary", "preferences", "nope"),
        ("alice", "diary", "preferences", "likes", "x"),
        ("alice", "diary", "conversations", "x"),
        ("alice", "diary", "preferences", "likes "),
        ("alice", "diary", "preferences", "Likes"),
        ("alice", "diary", "preferences", "*"),
        ("alice", "diary", "nothing"),
        ("..", "diary", "preferences", "likes"),
        ("a.b", "diary", "preferences", "likes"),
        ("a\0", "diary", "preferences", "likes"),
        ("", "diary", "preferences", "likes"),
        (5, "diary", "preferences", "likes"),
        (None, "diary", "preferences", "likes"),
        ("alice", "diary", "preferences", ""),
        ("alice", "diary", "preferences", ["likes"]),
        (),
        "alice",
    ],
)
def test_an_unknown_typed_namespace_is_refused_in_sync_and_async(diary, store, namespace):
    for op in (
        GetOp(namespace, "k"),
        PutOp(namespace, "k", {"text": "x"}),
        PutOp(namespace, "k", None),
    ):
        with pytest.raises(ValueError, match=r"(?i)namespace"):
            store.batch([PutOp(LIKES, "new", {"text": "new"}), op])
    with pytest.raises(ValueError, match=r"(?i)namespace"):
        asyncio.run(store.abatch([PutOp(LIKES, "new", {"text": "new"}), op]))
    assert everything(diary) == {}


def test_the_error_names_the_namespaces_that_exist(store):
    for call in (
        lambda: store.get(("alice", "diary"), "k"),
        lambda: store.put(("alice", "diary", "likes"), "k", {"text": "x"}),
        lambda: store.search(("alice", "diary", "preferences", "nope")),
    ):
        with pytest.raises(InvalidValue) as caught:
            call()
        assert '(user, "diary", "preferences", "diet")' in str(caught.value)
        assert '(user, "diary", "conversations")' in str(caught.value)


@pytest.mark.parametrize("user", ["/", "\\", "~", "%2e%2e", "*", "langgraphs", "Ålice", "a b", "CON"])  # fmt: skip
def test_unusual_user_ids_are_accepted(diary, store, user):
    namespace = (user, *LIKES[1:])
    store.put(namespace, "k/../é\0", {"text": user})
    store.put(LIKES, "k", {"text": "alice"})
    assert store.get(namespace, "k/../é\0").value["text"] == user
    assert [item.value["text"] for item in store.search((user,))] == [user]
    assert diary.user(user).preferences("likes")["k/../é\0"].text == user
    assert namespace in store.list_namespaces(prefix=(user,))


def test_two_users_never_share_items(store):
    names = ["alice", "alic", "alice2", "ALICE", "*", "diary"]
    for name in names:
        store.put((name, *LIKES[1:]), "k", {"text": f"coffee of {name}"})
        store.put((name, "diary", "conversations"), "s", {"summary": f"coffee talk of {name}"})
    for name in names:
        for more in ({}, {"query": "coffee"}, {"filter": {"text": {"$gte": ""}}}):
            for prefix in ((name,), (name, "diary"), (name, "diary", "preferences")):
                found = store.search(prefix, limit=100, **more)
                assert found
                assert {item.namespace[0] for item in found} == {name}
                texts = " ".join(str(item.value) for item in found)
                assert not any(f"of {other}'" in texts for other in names if other != name)
    store.delete(("alice", *LIKES[1:]), "k")
    assert all(store.get((name, *LIKES[1:]), "k") for name in names[1:])
    assert len(store.search((), limit=100)) == 2 * len(names) - 1
    assert len(store.search((), query="coffee", limit=100)) == 2 * len(names) - 1


def test_a_user_whose_id_is_no_label_is_not_shown(diary, store):
    diary.user("alice@example.com").upsert_preference("likes", "tea")
    store.put(LIKES, "k", {"text": "tea"})
    assert store.list_namespaces() == [LIKES]
    assert [item.namespace for item in store.search(())] == [LIKES]


@pytest.mark.parametrize("name", ["limit", "offset"])
@pytest.mark.parametrize("value", [-1, 1.5, "3", None, True])
def test_limits_are_whole_numbers(store, name, value):
    for op in (SearchOp(LIKES, **{name: value}), ListNamespacesOp(**{name: value})):
        with pytest.raises(InvalidValue, match=name):
            store.batch([op])


def test_invalid_keys_and_queries_are_refused(store):
    for op in (GetOp(LIKES, 5), PutOp(LIKES, None, {"text": "x"}), SearchOp(LIKES, query=5)):
        with pytest.raises(InvalidValue):
            store.batch([op])
    store.put(LIKES, 5, {"text": "x"})  # the interface turns keys into text
    assert store.get(LIKES, 5).key == "5"
    with pytest.raises(InvalidValue, match="id has 1 to 200 characters"):
        store.put(LIKES, "", {"text": "y"})
    assert store.get(LIKES, "") is None
    assert store.get(LIKES, "\ud800") is None
    with pytest.raises(InvalidValue, match="surrogate"):
        store.put(LIKES, "\ud800", {"text": "y"})


# Namespaces


def test_only_namespaces_with_entries_are_listed_in_order(store):
    bob = ("bob", *LIKES[1:])
    store.put(bob, "k", {"text": "x"})
    store.put(TALKS, "s", {"summary": "x"})
    store.put(LIKES, "k", {"text": "x"})
    assert store.get(DISLIKES, "k") is None
    assert store.list_namespaces() == [TALKS, LIKES, bob]
    assert store.list_namespaces(prefix=("alice",)) == [TALKS, LIKES]
    assert store.list_namespaces(prefix=["*", "diary", "preferences"]) == [LIKES, bob]
    assert store.list_namespaces(suffix=("likes",)) == [LIKES, bob]
    assert store.list_namespaces(suffix=("preferences", "*")) == [LIKES, bob]
    assert store.list_namespaces(prefix=("alice",), suffix=("likes",)) == [LIKES]
    assert store.list_namespaces(suffix=("ikes",)) == []
    assert store.list_namespaces(prefix=("nobody",)) == []
    assert store.list_namespaces(prefix=("*",) * 5) == []
    assert store.list_namespaces(max_depth=1) == [("alice",), ("bob",)]
    assert store.list_namespaces(max_depth=3) == [TALKS, LIKES[:3], bob[:3]]
    assert store.list_namespaces(limit=1, offset=1) == [LIKES]
    with pytest.raises(InvalidValue, match="max_depth"):
        store.list_namespaces(max_depth=0)
    with pytest.raises(InvalidValue, match="match type"):
        store.batch([ListNamespacesOp((MatchCondition("infix", ("a",)),))])
    with pytest.raises(InvalidNamespaceError):
        store.batch([ListNamespacesOp((MatchCondition("prefix", ("a.b",)),))])
    for labels in ("abc", {"a"}, None):
        with pytest.raises(ValueError, match="a tuple of labels"):
            store.update(labels, "k", lambda _: {})
    for labels in ((), ("langgraph", "x")):
        with pytest.raises(InvalidNamespaceError):
            store.update(labels, "k", lambda _: {})
    with pytest.raises(ValueError, match="a tuple of labels"):
        store.get("abc", "k")
    with pytest.raises(ValueError, match="a tuple of labels"):
        store.batch([ListNamespacesOp((MatchCondition("prefix", "abc"),))])


def test_a_namespace_may_be_a_list(diary):
    store = DiaryStore(diary)
    store.put(["alice", "m"], "k", {"text": "tea"})
    for _ in range(2):
        assert store.get(["alice", "m"], "k").value == {"text": "tea"}


# Use


def test_the_store_works_unentered_entered_and_entered_twice(diary):
    store = DiaryStore(diary)
    with store as one, store as two:
        one.put(LIKES, "k", {"text": "tea"})
        assert two.get(LIKES, "k").value["text"] == "tea"
    assert store.get(LIKES, "k").value["text"] == "tea"

    async def entered():
        async with store as again:
            return await again.aget(LIKES, "k")

    assert asyncio.run(entered()).value["text"] == "tea"


def test_sync_and_async_give_the_same(store):
    async def use():
        await store.aput(LIKES, "k", {"text": "tea", "n": 1})
        await store.aput(LIKES, "l", {"text": "coffee", "n": 2})
        await store.adelete(LIKES, "l")
        with pytest.raises(InvalidValue):
            await store.aput(LIKES, "m", {"text": 1})
        return (
            await store.aget(LIKES, "k"),
            await store.asearch(LIKES, filter={"n": {"$lt": 3}}),
            await store.asearch(("alice",), query="tea"),
            await store.alist_namespaces(),
        )

    got = asyncio.run(use())
    assert got == (
        store.get(LIKES, "k"),
        store.search(LIKES, filter={"n": {"$lt": 3}}),
        store.search(("alice",), query="tea"),
        store.list_namespaces(),
    )


def test_sync_methods_work_inside_a_running_loop(tmp_path):
    async def put_and_get():
        store = DiaryStore(tmp_path)
        store.put(("alice",), "k", {"n": 1})
        return store.get(("alice",), "k"), store.search(("alice",))

    item, found = asyncio.run(put_and_get())
    assert item is not None
    assert (item.value, [each.key for each in found]) == ({"n": 1}, ["k"])


def test_the_event_loop_is_not_blocked_while_a_put_waits(tmp_path):
    store = DiaryStore(Diary(tmp_path, Table, lock_timeout=5))

    async def use():
        with Diary(tmp_path).engine.backend.lock("alice", 1):  # which the loop itself lets go of
            put = asyncio.create_task(store.aput(LIKES, "k", {"text": "tea"}))
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not put.done()
        await put

    asyncio.run(use())
    assert store.get(LIKES, "k").value["text"] == "tea"


def test_threads_and_tasks_lose_no_put(diary, store):
    def work(number):
        for turn in range(5):
            store.put(LIKES, f"{number}-{turn}", {"text": f"thing {number} {turn}"})
            store.search(LIKES, query="thing")
            store.list_namespaces()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()

    async def tasks():
        await asyncio.gather(
            *(store.aput(LIKES, f"t{n}", {"text": f"task {n}"}) for n in range(10))
        )

    asyncio.run(tasks())
    for thread in threads:
        thread.join()
    assert len(store.search(LIKES, limit=100)) == 40
    assert len(diary.user("alice").preferences("likes")) == 40


def test_an_unsupported_call_names_the_supported_one(diary, store):
    with pytest.raises(NotSupported, match="Omit the ttl"):
        store.put(LIKES, "k", {"text": "x"}, ttl=5)
    with pytest.raises(NotSupported, match="Omit the ttl"):
        store.batch([PutOp(LIKES, "k", {"text": "x"}, None, 5.0)])
    for label in (-1, 1.5, True, "0"):
        with pytest.raises(InvalidValue, match="user_label"):
            DiaryStore(diary, user_label=label)
    store.put(LIKES, "k", {"text": "x"}, index=["text"])
    store.put(LIKES, "k", {"text": "x"}, index=False, ttl=None)
    assert store.get(LIKES, "k") is not None


def test_a_missing_langgraph_names_the_install_command(monkeypatch):
    monkeypatch.delitem(sys.modules, "tomldiary_langgraph")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install .tomldiary-kit\[langgraph\]"):
        importlib.import_module("tomldiary_langgraph")


# Time to live, as sync and async stores have it


def test_sweeper_methods_work_in_sync_code_and_can_be_awaited(store):
    store.setup()
    store.put(("alice", "n"), "k", {"text": "tea"}, ttl=0.0001)
    time.sleep(0.01)
    assert store.sweep_ttl() == 1
    running = store.start_ttl_sweeper(1)
    assert not running.done()
    assert store.stop_ttl_sweeper(timeout=10)
    running.result(10)

    async def use():
        await store.setup()
        await store.aput(("alice", "n"), "k", {"text": "tea"}, ttl=0.0001)
        await asyncio.sleep(0.01)
        assert await store.sweep_ttl() == 1
        assert store.sweep_ttl() == 0
        assert store.sweep_ttl() < 1
        assert not store.sweep_ttl()
        task = await store.start_ttl_sweeper(1)
        assert not task.done()
        assert await store.stop_ttl_sweeper(timeout=10)
        await asyncio.wait_for(task, 10)
        again = store.start_ttl_sweeper(1)
        assert store.stop_ttl_sweeper()
        again.result(10)

    asyncio.run(use())


def test_cancelling_its_future_stops_the_sweeper(store):
    assert store.start_ttl_sweeper(1).cancel()
    assert store.start_ttl_sweeper(1).cancel()  # started again

    async def use():
        task = await store.start_ttl_sweeper(1)
        task.cancel()
        await asyncio.wait([task])

    sweeper = vars(store)["_items"].sweeper
    for start in (lambda: None, lambda: asyncio.run(use())):
        start()
        vars(sweeper)["_thread"].join(10)
        assert not sweeper.is_running


def test_sweeping_does_not_hold_the_event_loop(tmp_path):
    store = DiaryStore(tmp_path / "m")
    store.put(("alice", "n"), "k", {"text": "tea"}, ttl=0.0001)
    time.sleep(0.01)

    async def use():
        with Diary(tmp_path / "m").engine.backend.lock(
            "alice", 1
        ):  # which the loop itself lets go of
            swept = asyncio.ensure_future(store.sweep_ttl())
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not swept.done()
        return await swept

    assert asyncio.run(use()) == 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"ttl": 60}, 'found 60. For example: {"default_ttl": 60}'),
        ({"ttl": {"default_tll": 5}}, "'default_tll' is unknown. Use one of: default_ttl,"),
        ({"ttl": {"default_ttl": "5"}}, "ttl.default_ttl: expected minutes above 0 "),
        ({"ttl": {"default_ttl": -1}}, "ttl.default_ttl: expected minutes above 0"),
        ({"ttl": {"refresh_on_read": 1}}, "ttl.refresh_on_read: expected True or False"),
        ({"index": {"dims": 1, "embed": len, "field": ["text"]}}, "'field' is unknown"),
        ({"index": {"dims": 1, "embed": lambda: [[1]]}}, "index.embed: a call with (texts) fails"),
    ],
)
def test_configurations_are_checked_when_they_are_given(given, sentence):
    with pytest.raises(InvalidValue, match=re.escape(sentence)):
        DiaryStore("memory:", **given)


@pytest.mark.parametrize("number", [math.nan])
def test_nan_is_refused(store, number):
    for value in ({"n": number}, {"n": [1.5, number]}):
        with pytest.raises(InvalidValue, match="is not a number"):
            store.put(("alice", "n"), "k", value)
    assert store.search(("alice",)) == []


@pytest.mark.parametrize("fields", ["text", ["text"]])
def test_text_fields_of_sqlite_name_the_embedded_fields(tmp_path, fields):
    embedded = []

    def embed(texts):
        embedded.extend(texts)
        return [[1.0, 0.0] for _ in texts]

    index = {"dims": 2, "embed": embed, "text_fields": fields}
    DiaryStore(tmp_path, index=index).put(("alice", "m"), "k", {"text": "tea", "secret": "x"})
    assert embedded == ["tea"]


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("text", ["tea"]),
        ("hot", ["True"]),
        ("{text.deep,text}", ["tea"]),
        ("$", ['{"hot": true, "text": "tea"}']),
    ],
)
def test_a_path_selects_the_texts_to_embed(path, texts):
    embedded = []

    def embed(texts):
        embedded.extend(texts)
        return [[1.0, 0.0] for _ in texts]

    store = DiaryStore("memory:", index={"dims": 2, "embed": embed, "fields": [path]})
    store.put(("alice", "m"), "k", {"text": "tea", "hot": True})
    assert embedded == texts


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        [[1.0, 0.0]] * 9,
        OrderedDict(a=1),
        {(1.0, 0.0)},
        [[1.0]],
        [[1.0, 0.0, 0.0]],
        ["tea"],
        [None],
        [[1.0, 10**400]],
    ],
    ids=repr,
)
def test_a_wrong_answer_of_the_embedder_is_an_error_that_names_it(answer):
    answers = []

    def embed_words(texts):
        return answers[0] if answers else [[1.0, 0.0] for _ in texts]

    store = DiaryStore("memory:", index={"dims": 2, "embed": embed_words})
    store.put(("alice", "m"), "first", {"text": "tea"})
    answers.append(answer)
    for call in (
        lambda: store.put(("alice", "m"), "k", {"text": "jazz"}),
        lambda: asyncio.run(store.aput(("alice", "m"), "k", {"text": "jazz"})),
        lambda: store.search(("alice",), query="chess"),
        lambda: asyncio.run(store.asearch(("alice",), query="chess")),
    ):
        with pytest.raises(InvalidValue, match=r"vector.*embed_words\b") as error:
            call()
        assert not hasattr(error.value, "__notes__")  # the message has the name
    answers.clear()
    assert [item.key for item in store.search(("alice",))] == ["first"]


def test_a_query_is_embedded_as_a_query_by_embeddings():
    class Mirrored(Embeddings):
        def embed_documents(self, texts):
            return [[1.0, 0.0] if text == "tea" else [0.0, 1.0] for text in texts]

        def embed_query(self, text):
            return [*reversed(self.embed_documents([text])[0])]

    store = DiaryStore(
        "memory:", index={"dims": 2, "embed": Mirrored(), "fields": ["text"], "ranking": "cosine"}
    )
    for text in ("tea", "jazz"):
        store.put(("alice",), text, {"text": text})
    assert store.search(("alice",), query="tea")[0].key == "jazz"
    assert asyncio.run(store.asearch(("alice",), query="tea"))[0].key == "jazz"


def test_an_error_of_the_embedder_has_its_type_and_its_name():
    def embed_words(texts):
        raise TimeoutError

    store = DiaryStore("memory:", index={"dims": 2, "embed": embed_words})
    for call in (store.put, lambda *args: asyncio.run(store.aput(*args))):
        with pytest.raises(TimeoutError) as error:
            call(("alice", "m"), "k", {"text": "jazz"})
        assert "embed_words" in error.value.__notes__[0]
    assert store.search(("alice",)) == []


def test_two_different_lists_of_fields_are_refused(tmp_path):
    index = {"dims": 2, "embed": len, "fields": ["a"], "text_fields": ["b"]}
    with pytest.raises(InvalidValue, match=r"index\.text_fields.*fields"):
        DiaryStore(tmp_path, index=index)


def test_a_store_exposes_its_index_as_other_stores_do(tmp_path):
    assert DiaryStore(tmp_path).index_config is DiaryStore(tmp_path).embeddings is None
    index = {"dims": 2, "embed": lambda texts: [[float(len(text)), 1.0] for text in texts]}
    store = DiaryStore(tmp_path, index=index)
    assert store.index_config == index
    assert store.embeddings.embed_documents(["tea"]) == [[3.0, 1.0]]
    index["dims"] = 9
    assert store.index_config["dims"] == 2


def test_an_update_returns_what_it_stored_and_not_what_came_after(diary, store, monkeypatch):
    written = diary.engine.write

    def and_then_another(user, *arguments, **options):
        done = written(user, *arguments, **options)
        monkeypatch.setattr(diary.engine, "write", written)
        store.put(("alice", "stats"), "turns", {"n": 9})
        return done

    monkeypatch.setattr(diary.engine, "write", and_then_another)
    item = store.update(("alice", "stats"), "turns", lambda _: {"n": 1})
    assert item.value == {"n": 1}
    assert store.get(("alice", "stats"), "turns").value == {"n": 9}


def test_a_subclass_sees_each_call_once(diary):
    calls = []

    class Counting(DiaryStore):
        def batch(self, ops):
            calls.append("batch")
            return super().batch(ops)

        async def abatch(self, ops):
            calls.append("abatch")
            return await super().abatch(ops)

        def update(self, *args, **options):
            calls.append("update")
            return super().update(*args, **options)

        async def aupdate(self, *args, **options):
            calls.append("aupdate")
            return await super().aupdate(*args, **options)

    async def use(store):
        await store.asearch(("alice",))
        await store.aupdate(("alice", "stats"), "turns", lambda _: {"n": 1})

    asyncio.run(use(Counting(diary)))
    assert calls == ["abatch", "aupdate"]
