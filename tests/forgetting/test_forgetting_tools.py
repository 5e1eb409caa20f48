"""What an agent's tools store during a turn names the turn once it is stored, so it is erased with the turn."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

import engines
from tomldiary import Constraint, Diary
from tomldiary.agents.verbs import MemoryVerbs


class Diet(BaseModel):
    role: str
    food: str


@pytest.fixture(params=engines.ALL)
def engine(request, disk):
    return engines.space(request.param, disk)


@pytest.fixture
def alice(opened):
    diary = Diary(opened(), agent="rules", episodes=True)
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    return diary.user("alice")


def turn(alice, words, *notes, session="s1"):
    """A run whose tools note texts, and then its turn."""
    verbs = MemoryVerbs(alice, session)
    for note in notes:
        said = verbs.remember(note, "likes")
        assert said.startswith("✅"), said
    return alice.add_turn(words, "Noted.", session_id=session)


def likes(alice):
    return {key: item.text for key, item in alice.preferences("likes").items()}


def test_a_turn_is_erased_with_what_tools_stored_during_it(alice, engine):
    turn(alice, "I am hungry.", "walnut cake")
    MemoryVerbs(alice, "s1").remember("", "diet", fields={"role": "user", "food": "almond"})
    done = turn(alice, "No meat.", "pecan pie")
    assert (done.applied, done.skipped) == (0, [])
    assert alice.why("likes/pref001").turn == "s1#1"
    assert alice.why("facts/diet/user").turn == alice.why("likes/pref002").turn == "s1#2"
    assert alice.why("likes/pref001").origin == "agent"
    keys = {change.key for change in alice.history(source="s1#2")}
    assert {"likes/pref002", "facts/diet/user"} < keys
    # Another session says it, too.
    MemoryVerbs(alice, "s2").remember("pecan pie", "likes")
    alice.forget(source="s1#2")
    assert likes(alice) == {"pref001": "walnut cake"}
    assert [word for word in ("almond", "pecan", "No meat") if word in engine.texts()] == []
    assert "walnut" in engine.texts()


def test_an_episode_is_erased_with_what_tools_stored_during_its_turn(alice, engine):
    turn(alice, "I am hungry.", "walnut cake")
    alice.forget(key=f"episodes/{alice.episodes()[0].id}")
    assert "walnut" not in engine.texts()


def test_a_tool_that_confirms_an_entry_makes_it_none_of_its_turn(alice):
    alice.upsert_preference("likes", "walnut cake", session_id="s0")
    pie, _ = alice.upsert_preference("likes", "pie", session_id="s0")
    MemoryVerbs(alice, "s1").update(f"likes/{pie}", "almond pie")
    turn(alice, "I am hungry.", "walnut cake")
    alice.forget(source="s1#1")
    assert likes(alice) == {"pref001": "walnut cake", "pref002": "pie"}


def test_an_entry_that_another_session_confirms_before_the_turn_is_stored_names_it(alice, engine):
    MemoryVerbs(alice, "s1").remember("walnut cake", "likes")
    MemoryVerbs(alice, "s2").remember("walnut cake", "likes")
    turn(alice, "I am hungry.")
    assert alice.why("likes/pref001").turn == "s1#1"
    alice.forget(source="s1#1")
    assert "walnut" not in engine.texts()


def test_an_entry_that_was_changed_since_or_names_a_turn_is_not_named_again(alice):
    turn(alice, "I am hungry.", "walnut cake")
    MemoryVerbs(alice, "s1").remember("pecan pie", "likes")
    alice.upsert_preference("likes", "plum pie", id="pref002", session_id="s1")
    turn(alice, "I am hungry still.", "walnut cake")
    assert [alice.why(f"likes/{key}").turn for key in likes(alice)] == ["s1#1", ""]


def test_a_rollback_of_a_turn_leaves_what_tools_stored_to_be_erased_with_it(alice, engine):
    turn(alice, "I am hungry.", "walnut cake")
    alice.rollback(1)
    assert likes(alice) == {"pref001": "walnut cake"}
    alice.forget(source="s1#1")
    assert "walnut" not in engine.texts()
