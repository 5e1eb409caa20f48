"""Typed entries as plain values, for stores of other frameworks, without any of them."""

from __future__ import annotations

import pytest

from tomldiary import Diary
from tomldiary.engine import Source
from tomldiary.errors import InvalidValue, LimitReached
from tomldiary.typed_entries import TypedEntries, checked_value, entry_value

LIKES = ("preferences", "likes")
TALKS = ("conversations",)
NOW = "2026-01-02T03:04:05Z"


@pytest.fixture
def diary():
    return Diary("memory:", max_prefs_per_category=2)


def apply(diary, *changes):
    def write(tx):
        TypedEntries.within(diary, tx).apply(
            [
                (place, key, value and checked_value(place, key, value))
                for place, key, value in changes
            ],
            NOW,
        )

    diary.engine.write("alice", write, Source("put"))


def values(diary, collection):
    stored = TypedEntries.stored(diary, "alice")
    return {key: entry_value(entry) for key, entry in stored.entries(collection)}


def test_what_is_put_is_what_the_diary_reads_and_the_other_way_round(diary):
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


def test_what_leaves_makes_room_for_what_comes_in_whatever_the_order(diary):
    apply(diary, (LIKES, "a", {"text": "one"}), (LIKES, "b", {"text": "two"}))
    apply(diary, (LIKES, "c", {"text": "three"}), (LIKES, "a", None), (LIKES, "gone", None))
    assert list(values(diary, LIKES)) == ["b", "c"]
    apply(diary, (LIKES, "d", {"text": "two"}), (LIKES, "b", {"text": "2"}), (LIKES, "c", None))
    assert values(diary, LIKES)["d"]["text"] == "two"
    with pytest.raises(LimitReached):
        apply(diary, (LIKES, "b", {"text": "new"}), (LIKES, "e", {"text": "four"}))
    assert values(diary, LIKES)["b"]["text"] == "2"


def test_a_reader_keeps_the_document_it_first_saw(diary):
    apply(diary, (LIKES, "a", {"text": "tea"}))
    reader = TypedEntries.stored(diary, "alice")
    assert reader.get(LIKES, "a") is not None
    apply(diary, (LIKES, "a", None))
    assert reader.get(LIKES, "a") is not None
    assert TypedEntries.stored(diary, "alice").get(LIKES, "a") is None
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
        (LIKES, {"text": "a", 7: 1}, "likes.k: expected text as a key, found number."),
        (TALKS, {"summary": ["a"]}, "conversations.k.summary: expected text, found a list."),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_named_in_the_words_of_the_file(collection, value, message):
    with pytest.raises(InvalidValue) as caught:
        checked_value(collection, "k", value)
    assert str(caught.value).startswith(message)


def test_a_checked_value_is_a_copy_and_ends_where_it_contains_itself():
    value = {"text": "a", "contexts": ["b"]}
    copied = checked_value(LIKES, "k", value)
    copied["contexts"].append("c")
    assert value["contexts"] == ["b"]
    value["more"] = value
    with pytest.raises(InvalidValue, match="nested deeper"):
        checked_value(LIKES, "k", value)
