"""An operation id makes a second call of a verb harmless, in this process and in the next."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from tomldiary import Conflict, Constraint, Diary
from tomldiary.errors import NestedTransaction
from tomldiary_langgraph import DiaryStore


class Home(BaseModel):
    who: str
    city: str


class Tag(BaseModel):
    text: str


def opened(place):
    diary = Diary(place, agent="rules", durability=None if place == "memory:" else "process")
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    diary.register_schema("tag", Tag)
    return diary.user("alice")


@pytest.fixture(params=["files", "memory"])
def place(request, tmp_path):
    return "memory:" if request.param == "memory" else tmp_path


VERBS = {
    "upsert_preference": ("likes", "tea"),
    "append_block": ("notes", "one line"),
    "add_episode": ("hi", "hello"),
    "commit tag": (Tag(text="a"),),
    "commit home": (Home(who="user", city="Rome"),),
}
OTHERS = {
    "upsert_preference": ("likes", "milk"),
    "append_block": ("notes", "another"),
    "add_episode": ("hi", "bye"),
    "commit tag": (Tag(text="b"),),
    "commit home": (Home(who="user", city="Oslo"),),
}


@pytest.mark.parametrize("name", VERBS)
def test_a_repeated_operation_has_one_effect_and_the_same_answer(place, name):
    alice = opened(place)
    verb = name.partition(" ")[0]
    first = getattr(alice, verb)(*VERBS[name], operation_id="op", session_id="s")
    documents = alice.export()["documents"]
    alice.upsert_preference("goals", "in between")
    again = alice if place == "memory:" else opened(place)
    assert getattr(again, verb)(*VERBS[name], operation_id="op") == first
    twin = getattr(again, f"a{verb}")
    assert asyncio.run(twin(*VERBS[name], operation_id="op")) == first
    assert again.last_transaction() == 2
    for kind, text in again.export()["documents"].items():
        assert kind == "preferences" or text == documents[kind]
    with pytest.raises(Conflict, match="used for different content"):
        getattr(again, verb)(*OTHERS[name], operation_id="op")
    getattr(again, verb)(*OTHERS[name], operation_id="another")
    assert again.last_transaction() == 3


@pytest.mark.parametrize("name", VERBS)
def test_a_repetition_is_answered_if_the_write_removed_expired_entries(place, name):
    alice = opened(place)
    for collection in ("preferences/likes", "blocks"):
        alice.diary.constrain(collection, Constraint(ttl=timedelta(days=1)))
    yesterday = datetime.now(UTC) - timedelta(days=2)
    alice.upsert_preference("likes", "dark roast", now=yesterday)
    alice.append_block("agenda", "a walk", now=yesterday)
    verb = getattr(alice, name.partition(" ")[0])
    first = verb(*VERBS[name], operation_id="op")
    assert any(change.seq == 3 and change.after is None for change in alice.history())
    assert verb(*VERBS[name], operation_id="op") == first
    assert alice.last_transaction() == 3


@pytest.mark.parametrize("name", VERBS)
def test_a_repetition_is_new_after_another_process_dropped_its_record(tmp_path, name):
    alice, other = opened(tmp_path), opened(tmp_path)
    verb = getattr(alice, name.partition(" ")[0])
    verb(*VERBS[name], operation_id="op")
    alice.upsert_preference("goals", "in between", operation_id="kept")
    alice.upsert_preference("goals", "at last")
    other.prune_history(keep=2)
    alice.upsert_preference("goals", "in between", operation_id="kept")
    assert alice.last_transaction() == 3
    verb(*OTHERS[name], operation_id="op")
    assert alice.last_transaction() == 4


@pytest.mark.parametrize("name", ["upsert_preference", "append_block"])
def test_a_repetition_is_answered_after_the_entry_was_removed(place, name):
    alice = opened(place)
    first = getattr(alice, name)(*VERBS[name], operation_id="op")
    if name == "append_block":
        alice.forget_block("notes")
    else:
        alice.forget_preference("likes", "pref001")
    assert getattr(alice, name)(*VERBS[name], operation_id="op") == first
    assert alice.blocks() == alice.preferences("likes") == {}


@pytest.mark.parametrize("name", VERBS)
def test_an_operation_id_inside_a_transaction_is_refused(place, name):
    alice = opened(place)
    verb = getattr(alice, name.partition(" ")[0])
    with (
        alice.transaction(operation_id="all"),
        pytest.raises(NestedTransaction, match="operation id to transaction"),
    ):
        verb(*VERBS[name], operation_id="op")
    assert alice.last_transaction() == 0


IN_TRANSACTIONS = {
    "put": lambda alice, text: DiaryStore(alice.diary).put(("alice", "x"), "k", {"text": text}),
    "update": lambda alice, text: DiaryStore(alice.diary).update(
        ("alice", "x"), text, lambda _: {"a": 1}
    ),
    "turn": lambda alice, text: alice.add_turn(f"I love {text}.", "ok", "s"),
    "promote": lambda alice, text: alice.promote_session(text),
    "discard": lambda alice, text: alice.discard_session(text),
    "confirm": lambda alice, text: alice.confirm(f"blocks/{text}"),
}


@pytest.mark.parametrize("name", IN_TRANSACTIONS)
def test_an_operation_id_of_a_transaction_used_for_other_content_is_a_conflict(place, name):
    alice = opened(place)
    call = IN_TRANSACTIONS[name]
    for text in ("tea", "rum"):
        alice.blocks.set(text, "1")
        alice.draft(text).upsert_preference("likes", text)
    for _ in range(2):
        with alice.transaction(operation_id="op"):
            call(alice, "tea")
    with (
        pytest.raises(Conflict, match="used for different content"),
        alice.transaction(operation_id="op"),
    ):
        call(alice, "rum")


def test_the_calls_of_a_transaction_may_be_repeated_in_another_order(place):
    """As those of parallel tools, which threads make."""
    alice = opened(place)
    for names in (["tea", "rum"], ["rum", "tea"]):
        with alice.transaction(operation_id="op"):
            for name in names:
                alice.blocks.set(name, "1")
    assert alice.last_transaction() == 1


def test_a_nested_transaction_with_an_operation_id_is_refused(place):
    alice = opened(place)
    with (
        alice.transaction(),
        pytest.raises(NestedTransaction, match="operation id to transaction"),
        alice.transaction(operation_id="op"),
    ):
        alice.upsert_preference("likes", "tea")
    assert alice.last_transaction() == 0


def test_a_nested_transaction_checks_the_expected_number(place):
    alice = opened(place)
    with alice.transaction(), pytest.raises(Conflict), alice.transaction(expected=7):
        alice.upsert_preference("likes", "tea")
    with alice.transaction(), alice.transaction(expected=0):
        alice.upsert_preference("likes", "tea")
    assert alice.last_transaction() == 1
