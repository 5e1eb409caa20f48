"""The cases in which MemState 0.5.1 loses its hooks or drafts; here each gives the wanted answer.

The numbers are those of `tests/entries/test_memstate_cases.py`, which has the others, and these without hooks.
"""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from outside_index import ScriptedIndex
from tomldiary import Constraint, Diary
from tomldiary.errors import HookError


class Diet(BaseModel):
    role: str
    value: str


@pytest.fixture
def diary():
    with Diary("memory:", agent="rules") as diary:
        diary.register_schema("diet", Diet, constraint=Constraint(singleton_key="role"))
        yield diary


@pytest.fixture
def index(diary):
    index = ScriptedIndex()
    diary.hooks.add(index, name="index", strict=True)
    return index


@pytest.fixture
def alice(diary):
    return diary.user("alice")


def value(alice):
    found = alice.facts.get("diet/user")
    return None if found is None else found.data.value


def refused(index, write, *arguments, **options):
    """Let a write be refused by a hook that is down."""
    index.error = ConnectionError()
    with pytest.raises(HookError):
        write(*arguments, **options)
    index.error = None


def test_case_7_a_refused_update_leaves_no_entry_in_the_log(alice, index):
    alice.facts.commit(Diet(role="user", value="first"), session_id="a")
    alice.facts.update("diet/user", {"value": "second"}, session_id="a")
    refused(index, alice.facts.update, "diet/user", {"value": "third"}, session_id="a")
    alice.rollback(session_id="a")
    assert value(alice) == "first"


def test_case_8_a_rollback_after_a_refused_update_keeps_newer_writes(alice, index):
    alice.facts.commit(Diet(role="user", value="first"), session_id="a")
    refused(index, alice.facts.update, "diet/user", {"value": "second"}, session_id="a")
    alice.facts.update("diet/user", {"value": "newer"}, session_id="b")
    with pytest.raises(Exception, match="changed since"):
        alice.rollback(session_id="a")
    assert value(alice) == "newer"


def test_case_9_a_refused_delete_leaves_fact_and_index(diary, alice, index):
    alice.facts.commit(Diet(role="user", value="first"))
    refused(index, alice.facts.delete, "diet/user")
    assert value(alice) == "first"
    assert diary.hooks.flush()
    assert index.texts("alice") == {"facts/diet/user": "role = user, value = first"}


def test_case_10_the_first_of_two_hooks_is_brought_back(diary, alice, index):
    second = ScriptedIndex()
    diary.hooks.add(second, name="second", strict=True)
    refused(second, alice.facts.commit, Diet(role="user", value="first"))
    assert diary.hooks.flush()
    assert index.entries == second.entries == {}


def test_case_11_a_refused_rollback_can_be_repeated(diary, alice, index):
    alice.facts.commit(Diet(role="user", value="first"), session_id="a")
    alice.facts.update("diet/user", {"value": "second"}, session_id="a")
    refused(index, alice.rollback, session_id="a")
    assert value(alice) == "second"
    alice.rollback(session_id="a")
    assert value(alice) == "first"
    assert diary.hooks.flush()
    assert index.texts("alice") == {"facts/diet/user": "role = user, value = first"}


def test_case_13_discarding_a_session_is_undone_and_hooks_never_saw_it(diary, alice, index):
    alice.facts.commit(Diet(role="user", value="draft"), session_id="a", ephemeral=True)
    assert [each.text for each in alice.discard_session("a")] == ["role = user, value = draft"]
    alice.rollback()
    assert len(alice.drafts("a")) == 1
    assert diary.hooks.flush()
    assert not index.entries
    alice.promote_session("a")
    assert index.texts("alice") == {"facts/diet/user": "role = user, value = draft"}


def test_case_14_a_promoted_fact_outlives_the_end_of_its_session(alice):
    alice.facts.commit(Diet(role="user", value="kept"), session_id="a", ephemeral=True)
    alice.promote_session("a")
    assert alice.discard_session("a") == []
    assert value(alice) == "kept"


def test_case_15_drafts_and_their_rollback_survive_a_restart(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    for number in (1, 2, 3):
        alice.blocks.set("persona", f"version {number}", session_id="a")
    alice.blocks.set("persona", "draft", session_id="a", ephemeral=True)
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.promote_session("a")
    alice.rollback()
    assert alice.blocks["persona"].text == "version 3"
    assert len(alice.drafts("a")) == 1


def test_case_25_a_text_that_becomes_blank_leaves_the_index(diary, alice, index):
    alice.blocks.set("persona", "kind")
    alice.blocks.set("persona", " ")
    assert diary.hooks.flush()
    assert not index.entries


def test_case_26_a_higher_score_is_better_and_results_are_limited(diary, alice, index):
    for text in ("tea", "green tea", "green tea leaves"):
        alice.upsert_preference("likes", text, id="new")
    found = diary.hooks.search("index", "green tea leaves", user_id="alice", limit=2)
    assert [each.text for each in found] == ["green tea leaves", "green tea"]
    assert found[0].score > found[1].score
