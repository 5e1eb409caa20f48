"""The singleton key of a temporal fact erases all its intervals, and the key of an interval erases this one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import BaseModel

import engines
from command_line import call
from tomldiary import Constraint, Diary
from tomldiary.engine.engine import Source

WORDS = ("walnut", "almond", "cashew", "pecan")


class Home(BaseModel):
    who: str
    city: str


class Trip(BaseModel):
    name: str
    town: str


@pytest.fixture(params=engines.ALL)
def engine(request, disk):
    return engines.space(request.param, disk)


@pytest.fixture
def alice(opened):
    diary = Diary(opened(), agent="rules")
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    alice = diary.user("alice")
    for year, city in ((2020, "walnut"), (2022, "almond"), (2099, "cashew")):
        alice.facts.commit(Home(who="user", city=city), valid_from=datetime(year, 1, 1, tzinfo=UTC))
    alice.facts.update("home/user@2022-01-01", {"city": "pecan"}, reason="facts/home/user moved")
    alice.facts.commit(Home(who="bob", city="kept"), valid_from=datetime(2020, 1, 1, tzinfo=UTC))
    return alice


def left(engine):
    texts = engine.texts()
    return [word for word in WORDS if word in texts]


def test_a_singleton_key_erases_all_intervals_with_their_history(alice, engine):
    alice.facts.delete("home/user@2020-01-01")
    assert left(engine) == [*WORDS]
    keys = alice.forget(key="facts/home/user", dry_run=True).keys
    assert [key.partition("@")[0] for key in keys] == ["facts/home/user"] * 4
    receipt = alice.forget(key="home/user")
    assert receipt.entries == 4
    assert left(engine) == []
    assert [fact.data.city for fact in alice.facts.query(include_ended=True)] == ["kept"]
    assert alice.history("facts/home/user") == []
    assert [change.key for change in alice.history()] == ["facts/home/bob@2020-01-01"]


def test_the_key_of_an_interval_erases_this_one(alice, engine):
    assert alice.forget(key="facts/home/user@2020-01-01").entries == 1
    assert left(engine) == ["almond", "cashew", "pecan"]


def test_a_singleton_key_erases_intervals_in_drafts(alice, engine):
    alice.facts.commit("home", {"who": "user", "city": "hazel"}, session_id="s", ephemeral=True)
    alice.facts.commit("home", {"who": "bob", "city": "mine"}, session_id="s", ephemeral=True)
    alice.forget(key="facts/home/user")
    assert "hazel" not in engine.texts()
    assert "mine" in engine.texts()


@pytest.mark.parametrize("engine", ["folder"], indirect=True)
def test_the_command_line_erases_all_intervals_of_a_type_that_it_does_not_know(alice, engine):
    # As the type had it before it was temporal.
    with alice.diary.engine.transaction("alice", Source("test")) as tx:
        tx.edit("facts").put(("facts", "home", "user"), {"who": "user", "city": "walnut"})
    done = call("forget", "--user", "alice", "--path", engine.url, "--key", "home/user", "--yes")
    assert "5 entries" in done.stdout
    assert left(engine) == []
    assert [fact.data.city for fact in alice.facts.query(include_ended=True)] == ["kept"]


def test_a_removed_fact_of_an_unknown_type_has_no_other_fact_as_its_interval(alice, engine):
    alice.diary.register_schema("trip", Trip, Constraint(singleton_key="name"))
    for name, town in (("lyon", "walnut"), ("lyon@2020-01-01", "hazel")):
        alice.facts.commit(Trip(name=name, town=town))
    alice.facts.delete("trip/lyon")
    Diary(engine.backend()).user("alice").forget(key="facts/trip/lyon")
    assert [fact.data.town for fact in alice.facts.query("trip")] == ["hazel"]
