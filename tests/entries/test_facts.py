"""Typed facts: models, singleton keys, intervals, limits, hand edits, and asking for them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import re
import sys
import threading
import tomllib
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AliasChoices,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    SecretStr,
    create_model,
    field_serializer,
    field_validator,
)

from calls import noted_calls
from counted_models import counted
from hand_edits import age
from living import objects_of
from processes import run_at_once
from tomldiary import Conflict, Constraint, Diary
from tomldiary.agents.verbs import MemoryVerbs
from tomldiary.doctor.doctor import check
from tomldiary.entries.facts import FactIndex, Facts
from tomldiary.errors import (
    DiaryError,
    DocumentError,
    ImmutableEntry,
    InvalidValue,
    LimitReached,
    SchemaError,
    UnknownEntry,
)
from tomldiary.toml.values import timestamp
from tomldiary_langgraph import DiaryStore


class Diet(BaseModel):
    role: str
    food: str
    note: str | None = None


class Home(BaseModel):
    who: str
    city: str


class Birth(BaseModel):
    who: str
    year: int


class Tag(BaseModel):
    text: str


class Likes(BaseModel):
    what: str


def opened(place):
    diary = Diary(place, agent="rules", durability=None if place == "memory:" else "process")
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    diary.register_schema("birth", Birth, Constraint(singleton_key="who", immutable=True))
    diary.register_schema("tag", Tag, Constraint(limit=2))
    diary.register_schema("likes", Likes, Constraint(temporal=True))
    return diary


@pytest.fixture
def diary(tmp_path):
    return opened(tmp_path)


@pytest.fixture
def alice(diary):
    return diary.user("alice")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "alice/facts.toml"


def day(number):
    return datetime(2020, 1, number, tzinfo=UTC)


def cities(user, **when):
    return [fact.data.city for fact in user.query("home", **when)]


# What is written


def test_a_fact_is_a_readable_table(alice, file):
    alice.commit(Diet(role="user", food="vegan"), session_id="s1", source="s1#2")
    table = tomllib.loads(file.read_text())["facts"]["diet"]["user"]
    created = table.pop("_created")
    assert table == {
        "role": "user",
        "food": "vegan",
        "_updated": created,
        "_created_by": "s1",
        "_updated_by": "s1",
        "_source": "s1#2",
    }
    assert alice.why("facts/diet/user").turn == "s1#2"


def test_history_names_actor_fact_and_reason(alice):
    alice.commit(Diet(role="user", food="vegan"), session_id="s1", actor="agent", reason="said so")
    alice.update("diet/user", {"food": "fish"}, actor="hand")
    alice.delete("diet/user", reason="wrong")
    found = alice.history("facts/diet/user")
    assert [(h.type, h.actor, h.reason) for h in found] == [
        ("delete", "", "wrong"),
        ("update", "hand", ""),
        ("commit", "agent", "said so"),
    ]
    assert alice.as_of(1).get("diet/user").data.food == "vegan"
    assert [(d.key, d.before["food"], d.after["food"]) for d in alice.diff(1, 2)] == [
        ("facts/diet/user", "vegan", "fish")
    ]


def test_every_verb_has_a_coroutine_and_joins_a_transaction(alice):
    async def main():
        async with alice.atransaction(session_id="s", reason="all at once"):
            fact = await alice.acommit(Diet(role="user", food="vegan"))
            assert (await alice.aget(fact)).data.food == "vegan"
            await alice.aupdate(fact, {"note": "no honey"})
            assert len(await alice.aquery("diet")) == 1
            other = await alice.acommit(Diet(role="dog", food="meat"))
            await alice.adelete(other)

    asyncio.run(main())
    assert [entry.key for entry in alice.history()] == ["facts/diet/user"]
    assert alice.last_transaction() == 1


def test_committing_an_equal_fact_writes_only_for_another_session(alice):
    fact = Diet(role="user", food="vegan")
    alice.commit(fact, session_id="s1")
    alice.commit(fact, session_id="s1")
    alice.commit(fact)
    assert alice.last_transaction() == 1
    alice.commit(fact, session_id="s2")
    assert (alice.last_transaction(), alice.get("diet/user").updated_by) == (2, "s2")


def test_without_a_singleton_key_an_equal_fact_is_not_stored_twice(alice):
    first = alice.commit(Tag(text="a"))
    assert alice.commit(Tag(text="a")) == first
    second = alice.commit(Tag(text="A"))
    assert first != second
    alice.delete(second)
    assert alice.commit(Tag(text="A")) not in {first, second}  # an id is not given out twice


class Colour(Enum):
    RED = "red"


class Nested(BaseModel):
    parts: list[str] = []
    more: dict[str, int | None] = {}


class Everything(BaseModel):
    model_config = ConfigDict(strict=True)

    key: int
    at: datetime
    day: date = date(2020, 1, 2)
    colour: Colour = Colour.RED
    share: float = 0.5
    inner: Nested = Nested()
    gone: str | None = "there"
    named: bool = Field(default=False, alias="isNamed")

    @property
    def doubled(self) -> int:
        return self.key * 2


@pytest.mark.parametrize("gone", ["there", None, "", 'multi\nline """ and \\'])
def test_every_value_of_a_model_survives_a_round_trip(tmp_path, gone):
    diary = opened(tmp_path)
    diary.register_schema("every", Everything, Constraint(singleton_key=("key", "colour")))
    fact = Everything(
        key=7,
        at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        inner=Nested(parts=["a", "日"], more={"x": None, "y": 2}),
        gone=gone,
        isNamed=True,
    )
    key = diary.user("alice").commit(fact)
    assert key == "every/7/red"
    assert opened_with(diary, tmp_path).user("alice").get(key).data == fact


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    value: Any = None


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_infinity_in_a_field_without_a_type_is_kept(tmp_path, number):
    diary = opened(tmp_path)
    diary.register_schema("loose", Loose, Constraint(singleton_key="name"))
    alice, mixed = diary.user("alice"), {"deep": [1, number], "none": None}
    facts = [
        alice.commit(Loose(name="a", value=number, extra=mixed)),
        alice.commit("loose", {"name": "b", "value": number, "extra": mixed}),
        alice.update(alice.commit(Loose(name="c")), {"value": number, "extra": mixed}),
    ]
    again = opened_with(diary, tmp_path).user("alice")
    for data in (again.get(fact).data for fact in facts):
        assert repr((data.value, data.extra)) == repr((number, mixed))


def test_no_caller_sets_a_managed_field_of_a_model_with_extra_fields(diary, alice, file):
    diary.register_schema("loose", Loose, Constraint(singleton_key="name"))
    alice.facts.commit(Loose(name="a"), session_id="s1")
    stored = file.read_bytes()
    tools = MemoryVerbs(alice, "s2")
    assert "❌" in tools.update("facts/loose/a", fields={"_verified": True})
    assert "❌" in tools.remember("b", "loose", fields={"name": "b", "_source": "s1#1"})
    extra = {"_said_by": ["s9"]}
    for write in (
        lambda: alice.facts.update("loose/a", extra),
        lambda: alice.facts.commit("loose", {"name": "b", **extra}),
        lambda: alice.facts.commit(Loose(name="b", **extra)),
    ):
        with pytest.raises(InvalidValue, match=r"loose\._said_by: fields that begin with an under"):
            write()
    assert file.read_bytes() == stored
    assert len(alice.facts.query("loose", {"_verified": None})) == 1


class Hiding(BaseModel):
    pin: float | None = None
    keys: list[bytes] = []

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    @field_serializer("pin", when_used="json")
    def hidden(self, _):
        return None


def test_what_a_serializer_of_a_model_makes_is_stored(tmp_path):
    diary = opened(tmp_path)
    diary.register_schema("hiding", Hiding)
    fact = diary.user("alice").commit(Hiding(pin=1234.0, keys=[b"\xff"]))
    assert diary.user("alice").get(fact).data == Hiding(keys=[b"\xff"])


def test_bytes_that_no_text_holds_are_named_with_their_field(tmp_path):
    class Image(BaseModel):
        pixels: bytes

    diary = opened(tmp_path)
    diary.register_schema("image", Image)
    facts = diary.user("alice").facts
    fact = facts.commit(Image(pixels=b"abc"))
    for call in (
        lambda: facts.commit(Image(pixels=b"\xff")),
        lambda: facts.commit("image", {"pixels": b"\xff"}),
        lambda: facts.update(fact, {"pixels": b"\xff"}),
    ):
        with pytest.raises(InvalidValue, match=r"image\.pixels: bytes cannot be stored"):
            call()


def test_a_value_that_contains_itself_and_a_huge_integer_are_refused(diary):
    class Loose(BaseModel):
        name: str
        found: Any = None

    diary.register_schema("loose", Loose, Constraint(singleton_key="name"))
    facts = diary.user("alice").facts
    facts.commit(Loose(name="a"))
    loop: dict[str, object] = {}
    loop["again"] = loop
    for value, named in ((loop, r"loose\.found: dict cannot"), (10**5000, "loose: an integer")):
        for call in (
            lambda value=value: facts.commit(Loose(name="a", found=value)),
            lambda value=value: facts.commit("loose", {"name": "a", "found": value}),
            lambda value=value: facts.update("loose/a", {"found": value}),
        ):
            with pytest.raises(InvalidValue, match=named):
                call()
    assert facts.get("loose/a").data.found is None


def test_an_error_of_a_function_of_the_model_is_not_blamed_on_a_value(diary):
    class Money:
        amount = 1

    def no_currency():
        raise ValueError("no currency")

    class Price(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        name: str
        money: Any = None
        note: Any = Field(None, alias="remark")
        currency: str = Field(default_factory=no_currency)

        @field_serializer("money")
        def amount(self, money: Any) -> Any:
            if isinstance(money, Money) and money.amount < 0:
                raise ValueError("a negative amount")
            return getattr(money, "amount", money)

    diary.register_schema("price", Price, Constraint(singleton_key="name"))
    facts, money = diary.user("alice").facts, Money()
    with pytest.raises(InvalidValue, match=r"price\.remark: bytes cannot be stored"):
        facts.commit(Price(name="a", money=money, note=b"\xff", currency="EUR"))
    money.amount = -1
    with pytest.raises(ValueError, match="ValueError: a negative amount"):
        facts.commit(Price(name="a", money=money, currency="EUR"))
    with pytest.raises(ValueError, match=r"^no currency$"):
        facts.commit("price", {"name": "a"})


def opened_with(diary, place):
    again = opened(place)
    again.fact_schemas = diary.fact_schemas
    return again


def test_a_field_that_a_strict_model_lacks_is_named(diary, alice, file):
    class Strict(BaseModel, extra="forbid"):
        text: str = ""

    diary.register_schema("strict", Strict)
    alice.commit(Strict(text="x"))
    with pytest.raises(InvalidValue, match=r"strict\.hat: Strict has no such field"):
        alice.commit("strict", {"hat": 1})
    alice.commit(Diet(role="user", food="vegan"))
    with pytest.raises(InvalidValue, match=r"diet\.hat: Diet has no such field"):
        alice.update("diet/user", {"hat": 1})
    file.write_text(file.read_text().replace('text = "x"', 'text = "x"\nhat = 1'))
    age(file)
    (problem,) = alice.problems()
    assert "hat: there is no such field" in str(problem)


def test_a_field_of_a_subclass_that_the_type_lacks_is_refused(alice):
    class Strict(Diet):
        since: int = 0

    with pytest.raises(InvalidValue, match=r"^diet\.since: Diet has no such field"):
        alice.facts.commit(Strict(role="user", food="vegan", since=2020))
    assert alice.last_transaction() == 0


def test_an_invalid_fact_is_refused_in_toml_words_and_not_written(alice):
    class Odd(BaseModel):
        role: str
        size: Literal["s", "l"]
        tags: list[str] = []
        age: int = 0

        @field_validator("age")
        @classmethod
        def old(cls, value):
            if value < 0:
                raise ValueError("nobody is that young")
            return value

    alice.diary.register_schema("odd", Odd, Constraint(singleton_key="role"))
    key = alice.commit(Odd(role="a", size="s"))
    cases = {
        "role": (7, "odd.role: expected text, found number."),
        "size": ("m", "odd.size: expected 's' or 'l'."),
        "tags": (["x", 1], "odd.tags.1: expected text, found number."),
        "age": (-1, "odd.age: nobody is that young."),
    }
    for field, (value, message) in cases.items():
        with pytest.raises(InvalidValue) as caught:
            alice.update(key, {field: value})
        assert str(caught.value) == message
    with pytest.raises(InvalidValue) as caught:
        alice.update(key, {"tags": "x", "age": "old"})
    assert str(caught.value) == (
        "odd.tags: expected a list, found text; odd.age: expected a whole number, found text."
    )
    forged = Odd.model_construct(role="b", size="xxl")
    with pytest.raises(InvalidValue, match=r"odd.size: expected 's' or 'l'"):
        alice.commit(forged)
    assert alice.last_transaction() == 1


@pytest.mark.parametrize("role", ["", "x" * 201])
def test_a_singleton_key_needs_a_value_that_can_be_a_key(alice, role):
    with pytest.raises(InvalidValue, match=r"diet\.role"):
        alice.commit(Diet(role=role, food="vegan"))
    assert alice.history() == []


def test_two_keys_that_look_alike_are_two_facts(tmp_path):
    class Pair(BaseModel):
        one: str
        two: str

    diary = opened(tmp_path)
    diary.register_schema("pair", Pair, Constraint(singleton_key=("one", "two")))
    alice = diary.user("alice")
    parts = ["a", "/", "%", "a/", "%2f", "/a", "a%2f"]
    facts = [Pair(one=one, two=two) for one in parts for two in parts]
    keys = [alice.commit(fact) for fact in facts]
    assert len(set(keys)) == len(facts)
    assert [alice.get(key).data for key in keys] == facts


class Door(BaseModel):
    code: list[SecretStr] | None = None


class Aliased(BaseModel):
    code: str = Field(alias="_code")


class Unseen(BaseModel):
    text: str = Field(default="", exclude=True)


@pytest.mark.parametrize(
    ("name", "model", "constraint", "message"),
    [
        ("x", dict, {}, "expected a pydantic model class"),
        ("x", BaseModel, {}, "expected a pydantic model class"),
        ("foods", RootModel[list[str]], {}, "has no fields"),
        ("a/b", Diet, {}, "cannot name a type"),
        ("_x", Diet, {}, "cannot name a type"),
        ("", Diet, {}, "cannot name a type"),
        ("other", Diet, {}, "is already registered as 'diet'"),
        ("door", Door, {}, r"door\.code: pydantic hides its value"),
        ("diary", Unseen, {}, r"diary\.text: pydantic hides its value"),
        ("diet", Diet, {"singleton_key": "nope"}, "'nope' is no field of Diet"),
        ("diet", Diet, {"required": ["role", "nope"]}, "required field 'nope' is no field of Diet"),
        ("diet", Diet, {"normalise": "role.inner"}, "'role.inner' is no field of Diet"),
        ("diet", Diet, {"immutable": True, "temporal": True}, "exclude each other"),
        ("diet", Diet, {"limit": 0}, "limit: expected a whole number of at least 1"),
        ("diet", Diet, {"append_only": True, "temporal": True}, "exclude each other"),
        ("aliased", Aliased, {}, r"aliased\._code: fields that begin with an underscore belong"),
    ],
)
def test_an_unusable_schema_is_refused_at_registration(diary, name, model, constraint, message):
    with pytest.raises(SchemaError, match=message):
        diary.register_schema(name, model, Constraint(**constraint))


class Coded(BaseModel):
    code: str

    @field_validator("code")
    @classmethod
    def _known(cls, code: str) -> str:
        return {"a": "a", "b": "b"}[code]


def test_an_error_of_a_validator_hides_no_other_entry(diary, alice, file):
    diary.register_schema("coded", Coded)
    for code in "ab":
        alice.facts.commit("coded", {"code": code})
    with pytest.raises(KeyError):
        alice.facts.commit("coded", {"code": "c"})
    file.write_text(file.read_text().replace('code = "b"', 'code = "c"'))
    age(file)
    assert [fact.data.code for fact in alice.facts()] == ["a"]
    assert ["Coded raised KeyError('c')" in str(each) for each in alice.problems()] == [True]
    alice.facts.commit("coded", {"code": "b"})


def test_registering_a_type_again_makes_no_further_indexes(diary):
    alice = diary.user("alice")
    alice.facts.commit(Diet(role="user", food="vegan"))
    before = objects_of(FactIndex)
    for _ in range(20):
        diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
        assert len(alice.facts.query("diet")) == 1
        assert "vegan" in alice.render()
    assert objects_of(FactIndex) - before <= 1


def test_a_type_can_be_registered_again(diary, alice):
    alice.commit(Diet(role="user", food="vegan"))

    class Diet2(BaseModel):
        role: str
        food: str = "anything"
        note: str | None = None

    diary.register_schema("diet", Diet2, Constraint(singleton_key="role", immutable=True))
    assert isinstance(alice.get("diet/user").data, Diet2)
    with pytest.raises(ImmutableEntry):
        alice.update("diet/user", {"food": "fish"})
    with pytest.raises(SchemaError):
        alice.commit(Diet(role="user", food="vegan"))


# Limits


def test_a_class_that_was_defined_again_is_told_to_be_registered_again(diary, alice):
    def cell():
        class Note(BaseModel):
            text: str

        return Note

    diary.register_schema("note", cell())
    with pytest.raises(SchemaError, match=r"register_schema\(name, Note\) first, and again"):
        alice.commit(cell()(text="tea"))


def test_a_full_type_refuses_new_facts_also_on_rollback(alice):
    first = alice.commit(Tag(text="a"), session_id="s1")
    alice.commit(Tag(text="b"), session_id="s1")
    with pytest.raises(LimitReached, match=r"facts/tag is full \(2/2\)"):
        alice.commit(Tag(text="c"))
    alice.delete(first, session_id="s1")
    alice.commit(Tag(text="c"), session_id="s2")
    with pytest.raises(Conflict, match="a constraint forbids it") as caught:
        alice.rollback(session_id="s1", force=True)
    assert caught.value.keys == [f"facts/{first}"]
    assert sorted(fact.data.text for fact in alice.query("tag")) == ["b", "c"]


def test_a_temporal_fact_above_a_lowered_limit_can_be_updated(diary):
    diary.register_schema("tag", Tag, Constraint(temporal=True))
    alice = diary.user("alice")
    first, _ = (alice.facts.commit("tag", {"text": text}) for text in ("tea", "chess"))
    diary.register_schema("tag", Tag, Constraint(temporal=True, limit=1))
    alice.facts.update(first, {"text": "rum"})
    assert sorted(fact.data.text for fact in alice.facts.query("tag")) == ["chess", "rum"]


def test_a_limit_counts_the_temporal_facts_that_hold_at_once(diary):
    diary.register_schema("home", Home, Constraint("who", temporal=True, limit=1))
    alice, later = diary.user("alice"), datetime.now(UTC) + timedelta(days=1)
    alice.facts.commit(Home(who="ann", city="Rome"))
    ended = {"valid_from": day(1), "valid_to": day(2)}
    alice.facts.commit(Home(who="ben", city="Oslo"), **ended)
    alice.facts.commit(Home(who="ben", city="Bergen"), valid_from=day(1))
    with pytest.raises(LimitReached):
        alice.facts.commit(Home(who="ben", city="Bergen"), valid_from=day(1), valid_to=later)
    with pytest.raises(LimitReached):
        alice.facts.commit(Home(who="cid", city="Lyon"), valid_from=later)
    assert [fact.data.city for fact in alice.facts.query("home", include_ended=True)] == ["Rome", "Bergen"]  # fmt: skip


def test_a_limit_counts_the_temporal_facts_that_will_hold_at_once(diary):
    diary.register_schema("home", Home, Constraint("who", temporal=True, limit=1))
    alice, later = diary.user("alice"), datetime.now(UTC) + timedelta(days=1)
    alice.facts.commit(Home(who="ann", city="Rome"), valid_from=later)
    with pytest.raises(LimitReached):
        alice.facts.commit(Home(who="ben", city="Oslo"))
    alice.facts.commit(Home(who="ben", city="Oslo"), valid_to=later)
    alice.facts.commit(Home(who="ann", city="Bern"), valid_from=later + timedelta(days=1))
    assert alice.facts.count("home", include_ended=True) == 3


def test_a_limit_counts_facts_that_will_hold_at_once_and_no_equal_or_replaced_ones(diary):
    diary.register_schema("likes", Likes, Constraint(temporal=True, limit=1))
    diary.register_schema("home", Home, Constraint("who", temporal=True, limit=1))
    facts, now = diary.user("alice").facts, datetime.now(UTC)
    first, second, third = (now + timedelta(days=days) for days in (1, 2, 3))
    facts.commit(Likes(what="tea"), valid_from=first, valid_to=second)
    facts.commit(Likes(what="tea"), valid_to=third)
    with pytest.raises(LimitReached):
        facts.commit(Likes(what="rum"), valid_to=third)
    facts.commit(Home(who="ann", city="Rome"), valid_from=first, valid_to=second)
    facts.commit(Home(who="ben", city="Oslo"), valid_from=second)
    facts.commit(Home(who="ann", city="Bern"), valid_to=third)  # until she moves to Rome
    assert facts.count("home", include_ended=True) == 3


def test_a_limit_counts_the_facts_that_hold_longer_than_before(diary):
    diary.register_schema("likes", Likes, Constraint(temporal=True, limit=1))
    facts, now = diary.user("alice").facts, datetime.now(UTC)
    first, second, third = (now + timedelta(days=days) for days in (1, 2, 3))
    tea = facts.commit(Likes(what="tea"), valid_to=first)
    facts.commit(Likes(what="rum"), valid_from=second)
    with pytest.raises(LimitReached):
        facts.update(tea, {}, valid_to=third)
    with pytest.raises(LimitReached):
        facts.commit(Likes(what="tea"), valid_to=third)
    facts.update(tea, {}, valid_to=second)
    assert [fact.valid_to for fact in facts.query("likes", include_ended=True)] == [second, None]


def test_a_limit_counts_a_fact_that_is_said_over_two_equal_ones_once(diary):
    diary.register_schema("likes", Likes, Constraint(temporal=True, limit=1))
    facts, now = diary.user("alice").facts, datetime.now(UTC)
    first, second, third = (now + timedelta(days=days) for days in (1, 2, 3))
    facts.commit(Likes(what="tea"), valid_from=second, valid_to=third)
    facts.commit(Likes(what="tea"), valid_from=first, valid_to=second)
    facts.commit(Likes(what="tea"), valid_from=now, valid_to=third)
    held = facts.query("likes", include_ended=True, order_by="_valid_from")
    assert [(fact.valid_from, fact.valid_to) for fact in held] == [(now, second), (second, third)]
    fourth, fifth = (now + timedelta(days=days) for days in (4, 5))
    facts.commit(Likes(what="mate"), valid_from=fourth, valid_to=fifth)
    facts.commit(Likes(what="tea"), valid_from=now, valid_to=first)
    with diary.user("alice").transaction() as tx:
        for begin in (now, now - timedelta(days=1)):
            with pytest.raises(LimitReached):
                tx.facts.commit(Likes(what="tea"), valid_from=begin, valid_to=fifth)
    after = facts.query("likes", include_ended=True, order_by="_valid_from")
    times = [(now, first), (second, third), (fourth, fifth)]
    assert [(fact.valid_from, fact.valid_to) for fact in after] == times


# Intervals


def test_a_temporal_fact_ends_the_one_before_instead_of_overwriting_it(alice, file):
    paris = alice.commit(Home(who="user", city="Paris"), valid_from=day(1))
    tokyo = alice.commit(Home(who="user", city="Tokyo"), valid_from=day(5))
    assert (paris, tokyo) == ("home/user@2020-01-01", "home/user@2020-01-05")
    assert cities(alice) == ["Tokyo"]
    assert cities(alice, valid_at=day(3)) == ["Paris"]
    assert cities(alice, valid_at=day(5)) == ["Tokyo"]
    assert cities(alice, valid_at=datetime(2019, 1, 1)) == []  # noqa: DTZ001 - without a zone: UTC
    assert cities(alice, include_ended=True) == ["Paris", "Tokyo"]
    assert alice.get("home/user").data.city == "Tokyo"
    assert alice.get("home/user", valid_at=day(2)).id == paris
    found = alice.get(paris)
    assert (found.valid_from, found.valid_to) == (day(1), day(5))
    assert "Paris" in file.read_text()  # what ended is kept
    assert [hit.text for hit in alice.recall("paris tokyo")] == ["who = user, city = Tokyo"]
    assert [hit.text for hit in alice.recall("paris tokyo", valid_at=day(2))] == [
        "who = user, city = Paris"
    ]
    assert "Tokyo" in alice.render()
    assert "Paris" not in alice.render()


def test_any_order_of_commits_gives_the_same_timeline():
    moves = [("Paris", 1), ("Rome", 3), ("Oslo", 5), ("Tokyo", 8)]
    for order in itertools.permutations(moves):
        alice = opened("memory:").user("alice")
        for city, number in order:
            alice.commit(Home(who="user", city=city), valid_from=day(number))
        timeline = [
            (fact.data.city, fact.valid_from, fact.valid_to)
            for fact in alice.query("home", include_ended=True, order_by="city")
        ]
        ends = [day(3), day(5), day(8), None]
        wanted = [(city, day(n), end) for (city, n), end in zip(moves, ends, strict=True)]
        assert timeline == sorted(wanted, key=lambda item: item[0])


def test_at_no_time_do_two_facts_with_one_singleton_key_hold():
    rng = random.Random(7)
    for _ in range(8):
        alice = opened("memory:").user("alice")
        for number in range(8):
            start = day(rng.randint(1, 20))
            end = start + timedelta(days=rng.randint(1, 9)) if rng.random() < 0.4 else None
            alice.commit(Home(who="user", city=str(number)), valid_from=start, valid_to=end)
        for number in range(1, 30):
            assert len(alice.query("home", valid_at=day(number))) <= 1
        alice.rollback(3)
        for number in range(1, 30):
            assert len(alice.query("home", valid_at=day(number))) <= 1


def test_the_holder_that_a_commit_finds_is_the_one_that_a_query_finds(alice):
    """The index of a timeline follows commits, ends, removals and rollbacks in any order."""
    rng = random.Random(7)
    for step in range(60):
        who, now = rng.choice("ab"), day(rng.randint(1, 20))
        held = alice.facts.query("home", {"who": who}, include_ended=True)
        verb = rng.choice(["commit", "commit", "end", "delete", "rollback"])
        if verb == "commit":
            end = rng.choice([None, now + timedelta(days=rng.randint(1, 5))])
            home = Home(who=who, city=rng.choice("xyz"))
            alice.facts.commit(home, valid_from=now, valid_to=end)
        elif verb == "rollback" and alice.last_transaction():
            with contextlib.suppress(Conflict):
                alice.rollback()
        elif held:
            chosen = rng.choice([*held])
            if verb == "delete":
                alice.facts.delete(chosen.id)
            else:
                with contextlib.suppress(InvalidValue):
                    alice.facts.update(chosen.id, {}, valid_to=now, now=chosen.valid_from)
        book = Facts(alice.diary.engine.readable("alice", "facts"), alice.diary.fact_schemas)
        for number, name in itertools.product(range(1, 27), "ab"):
            wanted = [each for each in book.held("home", name) if each.holds(day(number))]
            found = book.holding("home", name, day(number))
            assert [each.key for each in wanted] == ([] if found is None else [found.key]), step


@pytest.mark.parametrize("key", ["ann", "person {}"], ids=["one-key", "many-keys"])
def test_the_work_of_a_temporal_commit_does_not_grow_with_the_facts(diary, key):
    alice, parsed = diary.user("alice"), []
    rules = Constraint("who", temporal=True, limit=500)
    diary.register_schema("home", counted(Home, parsed), rules)
    with alice.transaction():
        for number in range(200):
            alice.facts.commit("home", {"who": key.format(number), "city": f"city {number}"})
    assert len(parsed) <= 4 * 200


class Reading(BaseModel):
    sensor: int
    is_on: bool = True


def test_facts_that_differ_in_numbers_only_are_not_compared_in_pairs(diary):
    alice, compared = diary.user("alice"), []
    diary.register_schema("reading", Reading)

    def note(frame, event, _):
        if event == "call" and frame.f_code is Facts.says.__code__:
            compared.append(frame)

    sys.setprofile(note)
    try:
        with alice.transaction():
            keys = [alice.facts.commit(Reading(sensor=number)) for number in range(50)]
            assert alice.facts.commit(Reading(sensor=7)) == keys[7]
    finally:
        sys.setprofile(None)
    assert 0 < len(compared) < 5


def test_undoing_a_move_lets_the_earlier_home_hold_again(alice):
    alice.commit(Home(who="user", city="Paris"), valid_from=day(1))
    before = alice.query("home")
    alice.commit(Home(who="user", city="Tokyo"))
    alice.rollback()
    assert [(f.id, f.data, f.valid_to) for f in alice.query("home")] == [
        (f.id, f.data, f.valid_to) for f in before
    ]


def test_a_fact_from_the_same_moment_is_corrected_in_place(alice, file):
    first = alice.commit(Home(who="user", city="Paris"), valid_from=day(1), session_id="s1")
    assert alice.commit(Home(who="user", city="Rome"), valid_from=day(1), valid_to=day(9)) == first
    fact = alice.get(first)
    assert (fact.data.city, fact.created_by, fact.valid_to) == ("Rome", "s1", day(9))
    file.write_text(file.read_text().replace('"Rome"', "7"))
    with pytest.raises(InvalidValue, match="expected text, found number"):
        alice.commit(Home(who="user", city="Oslo"), valid_from=day(1))
    assert "city = 7" in file.read_text()


def test_removing_the_last_interval_lets_the_one_before_hold_again(alice):
    alice.commit(Home(who="user", city="Paris"), valid_from=day(1), valid_to=day(3))
    alice.commit(Home(who="user", city="Rome"), valid_from=day(5))
    last = alice.commit(Home(who="user", city="Tokyo"))
    alice.delete(last)
    assert cities(alice) == ["Rome"]
    alice.delete("home/user")
    assert cities(alice) == []  # a given end stays
    assert cities(alice, valid_at=day(2)) == ["Paris"]


def test_a_commit_with_the_start_of_a_past_fact_corrects_it_and_its_end(alice):
    old = alice.commit(Home(who="user", city="Paris"), valid_from=day(1))
    alice.commit(Home(who="user", city="Rome"), valid_from=day(3))
    with pytest.raises(InvalidValue, match="with its valid_from and valid_to"):
        alice.update(old, {}, valid_to=day(2))
    corrected = Home(who="user", city="Oslo")
    assert alice.commit(corrected, valid_from=day(1), valid_to=day(2)) == old
    assert (alice.get(old).data, alice.get(old).valid_to) == (corrected, day(2))


def test_a_type_that_got_another_singleton_key_says_why_its_facts_are_not_read(tmp_path):
    def opened(key):
        diary = Diary(tmp_path, agent="rules")
        diary.register_schema("diet", Diet, Constraint(singleton_key=key))
        return diary.user("alice")

    opened("role").facts.commit(Diet(role="user", food="rice"))
    assert opened("food").facts() == []
    [problem] = opened("food").problems()
    assert "register the type with the singleton key that it had" in str(problem)


def test_updating_a_temporal_fact_ends_the_interval_that_holds(alice):
    old = alice.commit(Home(who="user", city="Paris"), valid_from=day(1))
    new = alice.update("home/user", {"city": "Rome"})
    assert new != old
    assert alice.get(old).valid_to == alice.get(new).valid_from
    with pytest.raises(InvalidValue, match="does not hold now"):
        alice.update(old, {"city": "Oslo"})
    end = datetime.now(UTC)
    assert alice.update(new, {}, valid_to=end) == new
    assert alice.get(new).valid_to == end
    assert alice.query("home") == []
    with pytest.raises(InvalidValue, match="not after valid_from"):
        alice.commit(Home(who="x", city="y"), valid_from=day(2), valid_to=day(2))
    with pytest.raises(InvalidValue, match="not temporal"):
        alice.commit(Diet(role="user", food="vegan"), valid_from=day(2))


def test_a_diary_without_the_type_shows_only_the_facts_that_hold(alice, diary, tmp_path):
    for number, city in ((1, "Paris"), (3, "Rome")):
        alice.commit(Home(who="user", city=city), valid_from=day(number))
    alice.commit(Home(who="user@2020-01-01", city="Bern"), valid_from=day(1))
    alice.commit(Diet(role="cook@2020-01-01", food="stew"))
    alice.commit(Diet(role="cook@2020-01-02", food="soup"))
    alice.commit(Likes(what="tea"), valid_from=day(1))
    alice.commit(Likes(what="jazz"), valid_from=day(2))
    other = Diary(tmp_path, agent="rules").user("alice")
    assert other.render() == alice.render()
    hits = [{hit.text for hit in each.recall("user cook tea jazz")} for each in (alice, other)]
    assert hits[0] == hits[1]
    assert not any("Paris" in text for text in hits[1])
    assert (
        other.profile()["facts"] == alice.profile()["facts"] == {"home": 2, "diet": 2, "likes": 2}
    )
    assert other.why("facts/home/user").text == "who = user, city = Rome"
    assert other.why("facts/diet/cook@2020-01-01").text == "role = cook@2020-01-01, food = stew"
    past = ("Paris" in each.render(valid_at=day(2)) for each in (alice, other))
    assert all(past)


def test_temporal_facts_without_a_singleton_key_hold_side_by_side(alice):
    for what in ("pizza", "sushi", "ramen", "pizza"):
        alice.commit(Likes(what=what))
    assert sorted(fact.data.what for fact in alice.query("likes")) == ["pizza", "ramen", "sushi"]
    pizza = alice.query("likes", {"what": "pizza"})[0].id
    alice.update(pizza, {"what": "pasta"})
    assert sorted(fact.data.what for fact in alice.query("likes")) == ["pasta", "ramen", "sushi"]
    assert alice.get(pizza).valid_to is not None


def test_an_update_at_the_start_of_a_temporal_fact_corrects_it(alice):
    first = alice.commit(Likes(what="pizza"), valid_from=day(1), session_id="s1")
    assert alice.facts.update(first, {"what": "pasta"}, now=day(1)) == first
    (fact,) = alice.query("likes", include_ended=True)
    assert (fact.data.what, fact.valid_from, fact.valid_to) == ("pasta", day(1), None)
    other = alice.commit(Likes(what="pizza"), valid_from=day(1))
    with pytest.raises(InvalidValue, match="says the same already"):
        alice.facts.update(other, {"what": "pasta"}, now=day(1))


@pytest.mark.parametrize("start", [day(1), day(5)], ids=["same-start", "later-start"])
def test_an_equal_temporal_fact_without_a_singleton_key_is_stored_once(alice, start):
    first = alice.commit(Likes(what="pizza"), valid_from=day(1))
    assert alice.commit(Likes(what="pizza"), valid_from=start) == first
    assert alice.commit(Likes(what="pizza"), valid_from=start, valid_to=day(9)) == first
    (fact,) = alice.query("likes", include_ended=True)
    assert (fact.valid_from, fact.valid_to) == (day(1), day(9))


def test_an_equal_temporal_fact_with_an_earlier_start_is_stored_once(diary):
    diary.register_schema("likes", Likes, Constraint(temporal=True, limit=1))
    alice, later = diary.user("alice"), datetime.now(UTC) + timedelta(days=1)
    first = alice.commit(Likes(what="pizza"), session_id="s1")
    assert alice.commit(Likes(what="pizza"), valid_from=day(1), session_id="s2") == first
    (fact,) = alice.query("likes", include_ended=True)
    assert (fact.valid_from, fact.valid_to, fact.created_by) == (day(1), None, "s1")
    alice.update(first, {}, valid_to=later)
    alice.commit(Likes(what="pizza"), valid_from=later + timedelta(days=1))
    assert alice.facts.count("likes", include_ended=True) == 2


@pytest.mark.parametrize(
    ("stored", "said", "found"),
    [
        ([(3, 6)], (1, 4), [(1, 4)]),
        ([(3, 6)], (1, 9), [(1, 9)]),
        ([(3, None)], (1, 5), [(1, 5)]),
        ([(3, 6)], (1, 3), [(3, 6), (1, 3)]),  # they only touch
        ([(3, 6)], (6, 9), [(3, 6), (6, 9)]),
        ([(3, 6)], (1, None), [(1, None)]),
        ([(1, 6)], (3, None), [(1, None)]),
        ([(3, 6), (8, 9)], (1, None), [(1, 6), (8, None)]),
        ([(3, 6), (8, None)], (1, None), [(1, 6), (8, None)]),
        ([(2, 4), (6, 8)], (3, 9), [(2, 6), (6, 9)]),
        ([(2, 4), (6, 8)], (1, 7), [(1, 6), (6, 7)]),
    ],
)
def test_equal_facts_never_hold_at_once(alice, stored, said, found):
    """The later statement sets the end; a later fact that begins before it goes on in place of the earlier one."""

    def times(fact):
        return (fact.valid_from.day, fact.valid_to and fact.valid_to.day)

    for start, end in (*stored, said):
        alice.commit(Likes(what="tea"), valid_from=day(start), valid_to=end and day(end))
    assert [*map(times, alice.query("likes", include_ended=True))] == found


def test_an_end_reaches_over_many_equal_facts_in_one_pass(alice):
    for start in range(1, 21, 2):
        alice.commit(Likes(what="tea"), valid_from=day(start), valid_to=day(start + 1))
    with noted_calls(Facts.alike) as calls:
        alice.commit(Likes(what="tea"), valid_from=day(1), valid_to=day(30))
    assert len(calls) <= 2
    found = alice.query("likes", include_ended=True)
    assert [fact.valid_to.day for fact in found] == [*range(3, 21, 2), 30]


def test_a_fact_that_may_not_hold_again_stays_as_it_was(diary):
    diary.register_schema("likes", Likes, Constraint(temporal=True, limit=1))
    facts = diary.user("alice").facts
    for what, end in (("tea", day(6)), ("rum", None)):
        facts.commit(Likes(what=what), valid_from=day(4), valid_to=end)
    with diary.user("alice").transaction():
        for start in (2, 5):
            with pytest.raises(LimitReached):
                facts.commit(Likes(what="tea"), valid_from=day(start))
    [tea] = facts.query("likes", {"what": "tea"}, include_ended=True)
    assert (tea.valid_from, tea.valid_to) == (day(4), day(6))


def test_a_later_end_of_a_fact_reaches_over_an_equal_one(alice):
    now = datetime.now(UTC)
    first, second, third, fourth = (now + timedelta(days=days) for days in (1, 2, 3, 4))
    tea = alice.commit(Likes(what="tea"), valid_to=first)
    alice.commit(Likes(what="tea"), valid_from=second, valid_to=third)
    alice.update(tea, {}, valid_to=fourth)
    assert [fact.valid_to for fact in alice.query("likes", include_ended=True)] == [second, fourth]


def test_an_end_that_is_given_with_an_equal_fact_is_stored(alice):
    end = datetime.now(UTC) + timedelta(days=9)
    alice.commit(Home(who="user", city="Paris"), valid_from=day(1))
    alice.commit(Home(who="user", city="Paris"), valid_to=end)
    alice.commit(Home(who="user", city="Paris"), valid_to=end)
    assert alice.get("home/user").valid_to == end
    assert alice.last_transaction() == 2


def test_an_older_time_of_a_write_moves_no_update_back(alice):
    for now in (day(20), day(2)):
        alice.blocks.set("persona", f"text of {now.day}", now=now)
        alice.facts.commit(Diet(role="user", food=f"food of {now.day}"), now=now)
        alice.facts.commit(Home(who="user", city="Rome"), valid_from=day(1), now=now)
        alice.facts.update("home/user", {}, valid_to=day(now.day + 1), now=now)
    updated = {fact.updated for fact in alice.facts.query(include_ended=True)}
    assert updated | {alice.blocks["persona"].updated} == {timestamp(day(20))}
    assert alice.forget(before=day(19), dry_run=True).keys == ()


def test_a_write_replaces_an_invalid_time_of_the_last_update(tmp_path):
    alice = Diary(tmp_path).user("alice")
    alice.blocks.set("persona", "kind")
    alice.upsert_preference("likes", "tea", id="drink")
    for kind in ("blocks", "preferences"):
        file = tmp_path / f"alice/{kind}.toml"
        text = re.sub('_updated = ".*"', '_updated = "unknown"', file.read_text("utf-8"))
        file.write_text(text, "utf-8")
    alice.blocks.set("persona", "brief")
    alice.upsert_preference("likes", "mate", id="drink")
    assert "unknown" not in alice.document("blocks") + alice.document("preferences")
    assert not alice.problems()


def test_updates_with_past_times_change_what_held_then(alice):
    alice.commit(Home(who="user", city="Paris"), now=day(1))
    alice.update("home/user", {"city": "Rome"}, now=day(3))
    alice.update("home/user", {}, valid_to=day(9), now=day(5))
    alice.update("home/user", {"city": "Oslo"}, now=day(7))
    timeline = [
        (fact.data.city, fact.valid_from) for fact in alice.query("home", include_ended=True)
    ]
    assert timeline == [("Paris", day(1)), ("Rome", day(3)), ("Oslo", day(7))]
    for fact_id, changes in (("home/user", {"city": "Bern"}), ("diet/user", {})):
        alice.commit(Diet(role="user", food="vegan"))
        with pytest.raises(InvalidValue, match=r"not both at once|has no end"):
            alice.update(fact_id, changes, valid_to=day(9))


def test_a_singleton_value_that_ends_with_a_date_names_its_fact(diary, alice):
    tag = alice.commit(Home(who="release@2024-05-01", city="Paris"), valid_from=day(1))
    alice.commit(Home(who="release", city="Oslo"), valid_from=day(2))
    assert alice.get("home/release@2024-05-01").data.city == "Paris"
    assert alice.get("home/release").data.city == "Oslo"
    assert alice.why("facts/home/release@2024-05-01").key == f"facts/{tag}"
    store, namespace = DiaryStore(diary), ("alice", "diary", "facts", "home")
    store.put(namespace, "release@2024-05-01", {"who": "release@2024-05-01", "city": "Rome"})
    assert store.get(namespace, "release@2024-05-01").value["city"] == "Rome"
    alice.delete("home/release@2024-05-01")
    assert cities(alice) == ["Paris", "Oslo"]


def test_a_bare_singleton_key_names_the_temporal_fact_that_holds(diary, alice):
    """As in a type that became temporal later, or in a table that a person added without a time."""
    diary.register_schema("home", Home, Constraint("who"))
    alice.commit(Home(who="user", city="Paris"))
    diary.register_schema("home", Home, Constraint("who", temporal=True))
    assert alice.get("home/user").data.city == "Paris"
    alice.update("home/user", {"city": "Rome"})
    alice.update("home/user", {"city": "Oslo"})
    assert cities(alice) == [alice.get("home/user").data.city] == ["Oslo"]
    alice.delete("home/user")
    assert alice.get("home/user").data.city == "Rome"


def test_confirm_and_forget_take_the_singleton_key_of_a_temporal_fact(alice):
    alice.commit(Home(who="user", city="Paris"), valid_from=day(1))
    rome = alice.commit(Home(who="user", city="Rome"), valid_from=day(2))
    alice.confirm("facts/home/user")
    assert "_verified" in alice.history(f"facts/{rome}")[0].after
    assert alice.forget(key="facts/home/user").entries == 2
    assert alice.traces("Rome") == alice.traces("Paris") == []
    assert cities(alice) == []


def test_the_history_of_a_singleton_key_has_all_intervals_also_ended_ones(alice):
    rome = alice.commit(Home(who="user", city="Rome"), valid_from=day(1))
    oslo = alice.commit(Home(who="user", city="Oslo"), valid_from=day(2), valid_to=day(3))
    alice.commit(Home(who="users", city="Bern"), valid_from=day(2))
    alice.commit(Diet(role="user@2020-01-02", food="stew"))
    for key in ("facts/home/user", "home/user"):
        assert [each.key for each in alice.history(key)] == [f"facts/{oslo}", f"facts/{rome}"]
    assert [each.key for each in alice.history(f"facts/{rome}")] == [f"facts/{rome}"]
    assert alice.history("facts/diet/user") == []
    with pytest.raises(UnknownEntry, match=rf"the last change is of facts/{oslo}\."):
        alice.why("facts/home/user")
    unregistered = Diary(alice.diary.backend, agent="rules").user("alice")
    assert unregistered.history("facts/home/user") == alice.history("facts/home/user")


# Asking


def test_a_query_filters_orders_and_pages(alice):
    for number, role in enumerate(["c", "a", "e", "b", "d"]):
        note = None if number % 2 else f"n{number}"
        alice.commit(Diet(role=role, food="vegan" if role < "d" else "fish", note=note))

    def roles(*args, **kwargs):
        return [fact.data.role for fact in alice.query("diet", *args, **kwargs)]

    assert roles() == ["c", "a", "e", "b", "d"]
    assert roles(order_by="role") == ["a", "b", "c", "d", "e"]
    assert roles(order_by="-role", limit=2, offset=1) == ["d", "c"]
    assert roles({"food": "fish"}, order_by="role") == ["d", "e"]
    assert roles({"food": "vegan", "note": None}, order_by="role") == ["a", "b"]
    assert roles(order_by="note") == ["c", "e", "d", "a", "b"]  # those without come last
    assert roles(order_by="-note") == ["d", "e", "c", "a", "b"]
    assert roles(order_by="-_created", limit=1) == ["d"]
    assert roles(limit=0) == roles(offset=9) == []
    for bad in ({"limit": -1}, {"offset": -1}, {"order_by": "nope"}):
        with pytest.raises(InvalidValue):
            alice.query("diet", **bad)


def test_conditions_in_a_list_compare_times_and_not_texts(diary, alice):
    class Meeting(BaseModel):
        at: datetime

    diary.register_schema("meeting", Meeting)
    alice.commit(Meeting(at=datetime(2026, 1, 1, 12, tzinfo=UTC)))
    before = datetime(2026, 1, 1, 13, 30, tzinfo=timezone(timedelta(hours=2)))
    assert alice.facts.count("meeting", {"$or": [{"at": {"$lt": before}}]}) == 0
    assert alice.facts.count("meeting", {"$or": [{"at": {"$gt": before}}]}) == 1


def test_dates_that_a_person_wrote_are_compared_at_any_depth(diary, alice, file):
    class Trip(BaseModel):
        day: date
        stops: list[date]
        ends: dict[str, date]

    diary.register_schema("trip", Trip)
    some = date(2026, 1, 1)
    alice.commit(Trip(day=some, stops=[some], ends={"last": some}))
    file.write_text(file.read_text().replace('"2026-01-01"', "2026-01-01"))
    age(file)
    for where in ({"day": "2026-01-01"}, {"stops": ["2026-01-01"]}, {"ends.last": "2026-01-01"}):
        ((name, value),) = where.items()
        assert alice.facts.count("trip", {name: {"$eq": value}}) == 1, name


def test_facts_without_a_singleton_key_end_no_others_by_their_ids(alice, file):
    alice.commit(Likes(what="tea"))
    with file.open("a") as handle:
        for year, place in ((2021, "Rome"), (2022, "Bern")):
            handle.write(f'\n[facts.likes."visit@{year}-01-01"]\nwhat = "{place}"\n')
            handle.write(f"_valid_from = {year}-01-01\n")
    age(file)
    assert {fact.data.what for fact in alice.query("likes")} == {"tea", "Rome", "Bern"}
    assert len(alice.recall("Rome Bern")) == 2


def test_a_table_in_a_query_finds_an_equal_number_in_the_key(diary, alice):
    class Place(BaseModel):
        at: dict[str, float]

    diary.register_schema("place", Place, Constraint(singleton_key="at.height"))
    alice.commit(Place(at={"height": 1.0}))
    assert alice.facts.count("place", {"at": {"height": 1}}) == 1


def test_lists_and_tables_of_a_fact_are_found_and_shown_as_plain_text(diary, alice):
    class Trip(BaseModel):
        stops: list[str]
        ends: dict[str, str]

    diary.register_schema("trip", Trip)
    alice.commit(Trip(stops=["Rome", "Oslo"], ends={"last": "Bern"}))
    (hit,) = alice.recall("Bern")
    assert hit.text == "stops = Rome Oslo, ends = last Bern"


def test_conditions_on_a_normalised_field_ignore_its_case(diary, alice):
    diary.register_schema("likes", Likes, Constraint(normalise="what"))
    alice.commit(Likes(what="Green  tea"))
    assert alice.facts.count("likes", {"what": {"$in": ["GREEN TEA"]}}) == 1
    assert alice.facts.count("likes", {"what": {"$not": {"$eq": "GREEN TEA"}}}) == 0
    assert alice.facts.count("likes", {"$or": [{"what": "GREEN TEA"}]}) == 1
    assert alice.facts.count("likes", {"$not": {"what": "GREEN TEA"}}) == 0


def test_a_query_orders_numbers_by_their_value(alice):
    for year in (900, 1990, 20):
        alice.commit(Birth(who=f"in {year}", year=year))
    assert [fact.data.year for fact in alice.query("birth", order_by="year")] == [20, 900, 1990]


class Shift(BaseModel):
    who: str
    start: datetime | None = None
    rate: Decimal = Decimal(1)
    length: timedelta | None = None
    rest: dict[str, timedelta] = {}


def test_times_decimals_and_durations_compare_as_what_they_are(diary, alice):
    diary.register_schema("shift", Shift, Constraint(singleton_key=("who", "start")))
    tokyo, early = timezone(timedelta(hours=9)), datetime(2026, 1, 20, 14, tzinfo=UTC)
    day, hour = timedelta(days=1), timedelta(hours=1)
    alice.commit(Shift(who="b", start=early.astimezone(tokyo), rate=Decimal("9.5"), length=2 * day))
    alice.commit(Shift(who="c", start=early + hour, rate=Decimal("10.50"), length=10 * day))
    half = early + timedelta(hours=1, microseconds=500_000)
    alice.commit(
        Shift(who="d", start=half, rate=Decimal(100), length=20 * day, rest={"noon": hour})
    )
    alice.commit(Shift(who="a", start=early - hour, rate=Decimal(-2), length=hour))

    def found(where=None, **order):
        return [fact.data.who for fact in alice.query("shift", where, **order)]

    for field in ("start", "rate", "length"):
        assert found(order_by=field) == ["a", "b", "c", "d"]
        assert found(order_by=f"-{field}") == ["d", "c", "b", "a"]
    for start in (early, early.astimezone(tokyo), "2026-01-20T14:00Z", early.replace(tzinfo=None)):
        assert found({"start": start}) == found({"start": {"$in": [start]}}) == ["b"]
    assert found({"who": "b", "start": early}) == ["b"]
    assert found({"start": {"$lt": "2026-01-20T14:30Z"}}) == ["b", "a"]
    for rate in (10.5, "10.5", Decimal("10.500")):
        assert found({"rate": rate}) == found({"$or": [{"rate": {"$eq": rate}}]}) == ["c"]
        assert found({"rate": {"$gt": rate}}) == ["d"]
    assert found({"length": {"$gte": 2 * day, "$lt": "P11D"}}) == ["b", "c"]
    for condition in ({"rest.noon": hour}, {"rest": {"noon": {"$gt": timedelta(minutes=9)}}}):
        assert found(condition) == ["d"]
    assert found({"length": None}) == []
    for other in (
        {"rate": {"$gt": "much"}},
        {"start": {"$lt": "soon"}},
        {"length": {"$in": ["x"]}},
    ):
        assert found(other) == []


def querying(annotation, *values, **model):
    """Return a function that queries facts with these values, and returns the positions of those that it finds."""
    diary = Diary("memory:")
    fields = {"n": (int, ...), "value": (annotation, ...)}
    made = create_model("Measured", **fields, **model)
    diary.register_schema("measured", made)
    alice = diary.user("alice")
    for n, value in enumerate(values):
        alice.facts.commit(made(n=n, value=value))
    return lambda where=None, **order: [
        fact.data.n for fact in alice.facts.query("measured", where, **order)
    ]


@pytest.mark.parametrize("kind", [datetime, AwareDatetime, datetime | date])
def test_a_month_and_a_year_are_times_in_a_query(kind):
    first, last = (datetime(2026, month, 20, tzinfo=UTC) for month in (10, 11))
    found = querying(kind, first, last)
    assert found({"value": {"$lt": "2026-11"}}) == [0]
    assert found({"value": {"$gte": "2026-11"}}) == found({"value": {"$gt": "2026-10-21"}}) == [1]
    assert found({"value": {"$gte": "2026"}}) == found({"value": {"$gt": ""}}) == [0, 1]
    assert found({"_created": {"$gte": "2020-01"}}) == found({"_updated": {"$gt": ""}}) == [0, 1]
    tokyo = timezone(timedelta(hours=9))
    assert found({"value": first.astimezone(tokyo)}) == found({"value": {"$lte": first}}) == [0]


def test_a_field_that_may_have_text_compares_as_text():
    found = querying(str | Decimal, "0041", "41", "Nan", "soon")
    for n, value in enumerate(("0041", "41", "Nan", "soon")):
        assert found({"value": value}) == [n]


def test_decimals_compare_exactly_and_with_floats_by_their_digits():
    values = [f"0.{number}0000000000000000001" for number in (2, 1)] + ["0.1", "Infinity", "NaN"]
    found = querying(Annotated[Decimal, Field(allow_inf_nan=True)] | float, *map(Decimal, values))
    for n, value in enumerate(values[:4]):
        assert found({"value": Decimal(value)}) == found({"value": {"$in": [value]}}) == [n]
    assert found({"value": {"$gt": 0.1}}) == [0, 1, 3]
    assert found({"value": {"$lte": 0.1}}) == found({"value": 0.1}) == [2]
    assert found({"value": {"$gt": float("nan")}}) == []
    assert found(order_by="value") == [2, 1, 0, 3, 4]


@pytest.mark.parametrize("number", ["1e999999999", "-1e999999999", "1" * 60, "1e-999999999"])
def test_a_decimal_of_many_digits_stalls_no_query(number):
    found = querying(Decimal, Decimal(5), Decimal(number))
    assert found({"value": 5}) == found({"value": {"$in": ["5.0"]}}) == [0]
    assert found({"value": {"$gt": 5}}) == ([1] if Decimal(number) > 5 else [])
    assert found({"value": Decimal(number)}) == [1]


def test_annotated_fields_compare_as_what_they_are():
    euros = list[Annotated[Decimal, {"unit": "euro"}]]
    assert querying(euros, [Decimal("9.50")])({"value": ["9.5"]}) == [0]
    found = querying(Annotated[Decimal, Field(gt=0)] | None, Decimal("9.5"), Decimal("10.50"))
    assert found(order_by="value") == [0, 1]
    assert found({"value": "10.5"}) == [1]


def test_values_that_a_model_serializes_itself_compare_as_stored():
    noon = datetime(2026, 1, 20, 12, tzinfo=UTC)
    seconds = Annotated[datetime, PlainSerializer(datetime.timestamp)]
    assert querying(seconds, noon)({"value": {"$gt": noon.timestamp() - 1}}) == [0]

    def read(value):
        return datetime.strptime(value, "%d.%m.%Y %z") if isinstance(value, str) else value

    def written(value):
        return value.strftime("%d.%m.%Y +0000")

    german = Annotated[datetime, BeforeValidator(read), PlainSerializer(written)]
    assert querying(german, noon)({"value": "20.01.2026 +0000"}) == [0]


def test_a_query_calls_no_serializer_of_a_model(diary, alice):
    written = []

    class Timed(BaseModel):
        at: datetime

        @field_serializer("at")
        def write(self, value: datetime) -> str:
            written.append(value)
            return value.strftime("%Y-%m")

        @field_validator("at", mode="before")
        @classmethod
        def read(cls, value: Any) -> Any:
            return f"{value}-01T00:00Z" if isinstance(value, str) else value

    diary.register_schema("timed", Timed)
    for month in (1, 11):
        alice.commit(Timed(at=datetime(2026, month, 1, tzinfo=UTC)))
    written.clear()
    assert alice.facts.count("timed", {"at": "2026-11"}) == 1
    assert alice.facts.count("timed", {"at": {"$gte": datetime(2026, 2, 1, tzinfo=UTC)}}) == 1
    assert [fact.data.at.month for fact in alice.query("timed", order_by="-at")] == [11, 1]
    assert not written


def test_a_query_of_all_types_refuses_no_value_of_one_of_them(diary, alice):
    class Price(BaseModel):
        level: Decimal

    class Skill(BaseModel):
        level: str

    diary.register_schema("price", Price)
    diary.register_schema("skill", Skill)
    price, skill = alice.commit(Price(level=Decimal(2))), alice.commit(Skill(level="high"))

    def found(level):
        return [fact.id for fact in alice.query(where={"level": level})]

    assert found("high") == [skill]
    assert found({"$ne": "high"}) == [price]
    assert found({"$in": ["high", "2.0"]}) == [price, skill]


def test_a_query_finds_a_table_whose_key_contains_a_dot(diary, alice):
    class Price(BaseModel):
        model_config = ConfigDict(extra="allow")

    diary.register_schema("price", Price)
    alice.commit(Price.model_validate({"shop.de": {"net": 3, "tax.vat": 0.5}}))
    for wanted, count in ({"net": {"$gt": 2}}, 1), ({"net": 3}, 1), ({"tax.vat": {"$lt": 0.5}}, 0):
        assert alice.facts.count("price", {"shop.de": wanted}) == count


def test_a_query_finds_and_sorts_by_a_value_whose_key_contains_a_dot(diary, alice):
    class Price(BaseModel):
        model_config = ConfigDict(extra="allow")

    diary.register_schema("price", Price)
    high, low = (alice.commit(Price.model_validate({"tax.vat": vat})) for vat in (0.5, 0.2))
    for wanted in (0.5, {"$eq": 0.5}, {"$gt": 0.2}):
        assert [fact.id for fact in alice.query("price", {"tax.vat": wanted})] == [high]
    assert [fact.id for fact in alice.query("price", order_by="tax.vat")] == [low, high]


def test_times_are_sorted_among_dates_and_lists_of_times_as_text(diary, alice):
    class Meeting(BaseModel):
        when: datetime

    class Party(BaseModel):
        when: date

    diary.register_schema("meeting", Meeting)
    diary.register_schema("party", Party)
    for month in (10, 2, 9):
        alice.commit(Meeting(when=datetime(2026, month, 1, tzinfo=UTC)))
        alice.commit(Party(when=date(2026, month, 15)))
    said = [(fact.data.when.month, fact.type) for fact in alice.query(order_by="when")]
    assert said == [(month, kind) for month in (2, 9, 10) for kind in ("meeting", "party")]
    months = [[datetime(2026, month, 1, tzinfo=UTC)] for month in (10, 2, 9)]
    assert querying(list[datetime], *months)(order_by="value") == [1, 2, 0]
    assert querying(set[datetime], *map(set, months))({"value": set(months[1])}) == [1]


def test_a_date_is_a_singleton_key_of_temporal_facts(alice):
    alice.commit(Home(who="2024-05-01", city="Oslo"), valid_from=day(1))
    alice.commit(Home(who="2024-05-02", city="Rome"), valid_from=day(1))
    assert cities(alice) == ["Oslo", "Rome"]
    assert alice.get("home/2024-05-02").data.city == "Rome"


@pytest.mark.parametrize("value", ["5", '"text"', "[1]", "true", "2020-01-01", "nan"])
def test_a_value_in_the_place_of_a_fact_is_reported_and_not_read(alice, file, value):
    alice.commit(Diet(role="user", food="vegan"))
    head = "[facts.diet.user]"
    file.write_text(file.read_text().replace(head, f"[facts.diet]\nstray = {value}\n\n{head}"))
    age(file)
    assert [fact.id for fact in alice.query("diet")] == ["diet/user"]
    assert alice.get("diet/stray") is None
    assert [problem.where for problem in alice.problems()] == ["facts.diet.stray"]


def test_a_query_orders_and_narrows_by_the_start_of_facts(diary):
    diary.register_schema("home", Home, Constraint("who", temporal=True))
    facts = diary.user("alice").facts
    for year, city in ((2021, "Rome"), (2019, "Oslo"), (2023, "Bern")):
        facts.commit(Home(who="ann", city=city), valid_from=datetime(year, 1, 1, tzinfo=UTC))
    by_start = facts.query("home", order_by="_valid_from", include_ended=True)
    assert [fact.data.city for fact in by_start] == ["Oslo", "Rome", "Bern"]
    since = {"_valid_from": {"$gte": datetime(2021, 1, 1, tzinfo=UTC)}}
    late = facts.query("home", since, order_by="-_valid_from", include_ended=True)
    assert [fact.data.city for fact in late] == ["Bern", "Rome"]


def test_a_query_compares_fields_that_a_file_lacks_as_the_model_reads_them(tmp_path):
    class Home(BaseModel):
        city: str = "Bern"

    class User(BaseModel):
        name: str
        title: str = ""
        home: Home = Home()

    class Address(Home):
        floor: int = 0

    class Member(BaseModel):
        name: str
        home: Address
        role: str | None = Field(
            "guest",
            validation_alias=AliasChoices("role", "title"),
            serialization_alias="role",
        )
        level: int = 1
        since: datetime = datetime(2026, 1, 1, tzinfo=UTC)
        tags: list[str] = Field(default_factory=lambda: ["new"])

    with Diary(tmp_path) as older:
        older.register_schema("user", User, Constraint("name"))
        older.user("alice").facts.commit(User(name="ann", title="owner"))
    diary = Diary(tmp_path)
    diary.register_schema("user", Member, Constraint("name", normalise="role"))
    facts = diary.user("alice").facts
    home = Address(floor=2)
    facts.commit("user", {"name": "bob", "home": home, "role": None, "level": 0, "tags": []})
    path = tmp_path / "alice" / "facts.toml"
    path.write_text(path.read_text() + '[facts.user.cid]\nname = "cid"\nhome = {}\n')

    def names(where, **order):
        return [fact.data.name for fact in facts.query("user", where, **order)]

    assert names({"role": "Guest"}) == ["cid"]
    assert names({"role": "owner"}) == ["ann"]
    assert names({"role": None}) == ["bob"]
    assert names({"level": {"$gt": 0}}) == names({"tags": ["new"]}) == ["ann", "cid"]
    assert names({"since": {"$lt": datetime(2027, 1, 1, tzinfo=UTC)}}) == ["ann", "bob", "cid"]
    assert names({"home.floor": 0}) == names({"$or": [{"home": {"floor": 0}}]}) == ["ann", "cid"]
    assert names({"home": {"$eq": {"city": "Bern", "floor": 0}}}) == ["ann", "cid"]
    assert names({}, order_by="level") == ["bob", "ann", "cid"]


def test_a_query_reads_an_optional_field_from_its_earlier_name(tmp_path):
    class User(BaseModel):
        name: str
        title: str = ""

    class Member(BaseModel):
        name: str
        role: str | None = Field(None, validation_alias=AliasChoices("role", "title"))

    with Diary(tmp_path) as older:
        older.register_schema("user", User, Constraint("name"))
        older.user("alice").facts.commit(User(name="ann", title="owner"))
    diary = Diary(tmp_path)
    diary.register_schema("user", Member, Constraint("name"))
    facts = diary.user("alice").facts
    facts.commit(Member(name="bob"))
    assert [fact.data.name for fact in facts.query("user", {"role": "owner"})] == ["ann"]
    assert [fact.data.name for fact in facts.query("user", {"role": None})] == ["bob"]


def test_a_query_reads_a_fact_that_lacks_a_field_once_until_it_changes(diary, file):
    class Dated(Home):
        since: int = 2020

    facts, parsed = diary.user("alice").facts, []
    facts.commit(Home(who="ann", city="Bern"))
    facts.commit(Home(who="bob", city="Rome"))
    diary.register_schema("home", counted(Dated, parsed), Constraint("who", temporal=True))
    assert facts.count("home", {"since": 2020}) == 2
    parsed.clear()
    assert facts.count("home", {"since": 2020}) == 2
    assert parsed == []
    file.write_text(file.read_text().replace('"Rome"', '"Oslo"\nsince = 2021'))
    age(file)
    assert facts.count("home", {"since": 2020}) == 1


def test_a_filter_of_facts_that_is_malformed_is_refused(diary):
    within = {"role": {"$not": 1}}
    within["$and"] = [within]
    deep = "x"
    for _ in range(3000):
        deep = [deep]
    for where in (within, {"$and": [{1: 2}]}, {"role": {"$eq": deep}}):
        with pytest.raises(InvalidValue, match=r"nested (deeper|too deep)|expected text"):
            diary.user("alice").facts.query("diet", where)


def test_true_is_not_one_in_a_query(tmp_path):
    class Flag(BaseModel):
        value: int | bool

    diary = opened(tmp_path)
    diary.register_schema("flag", Flag)
    alice = diary.user("alice")
    alice.commit(Flag(value=1))
    alice.commit(Flag(value=True))
    assert [fact.data.value for fact in alice.query("flag", {"value": 1})] == [1]
    assert [fact.data.value for fact in alice.query("flag", {"value": True})] == [True]


def test_inner_fields_are_queried_with_dots(tmp_path):
    class Place(BaseModel):
        at: dict[str, str]

    diary = opened(tmp_path)
    diary.register_schema("place", Place, Constraint(singleton_key="at.city"))
    alice = diary.user("alice")
    assert alice.commit(Place(at={"city": "Oslo", "zip": "1"})) == "place/Oslo"
    alice.commit(Place(at={"city": "Rome"}))
    assert [f.id for f in alice.query("place", {"at.zip": "1"})] == ["place/Oslo"]
    assert [f.id for f in alice.query("place", {"at.zip": None})] == ["place/Rome"]


def test_a_missing_fact_is_none_or_an_error(alice):
    assert alice.get("diet/nobody") is None
    for ask in (lambda: alice.update("diet/nobody", {}), lambda: alice.delete("diet/nobody")):
        with pytest.raises(UnknownEntry, match="facts/diet/nobody"):
            ask()


# People's edits


def test_a_hand_edit_of_a_fact_is_read_and_kept(alice, file):
    alice.commit(Diet(role="user", food="vegan"))
    file.write_text(file.read_text().replace('"vegan"', '"fish"  # since May'))
    assert alice.get("diet/user").data.food == "fish"
    alice.update("diet/user", {"note": "no bones"})
    assert "# since May" in file.read_text()
    assert [h.actor for h in alice.history("facts/diet/user")] == ["", "hand", ""]


def test_a_hand_edit_of_an_immutable_fact_is_undone_and_recorded(alice, file):
    alice.commit(Birth(who="user", year=1980))
    alice.commit(Birth(who="dog", year=2015))
    good = file.read_text()
    file.write_text(good.replace("year = 1980", "year = 1999").replace("2015", "2016"))
    assert alice.get("birth/user").data.year == 1980
    assert [hit.text for hit in alice.recall("1980 1999")] == ["who = user, year = 1980"]
    alice.commit(Diet(role="user", food="vegan"))
    tables = tomllib.loads(file.read_text())["facts"]["birth"]
    assert (tables["user"]["year"], tables["dog"]["year"]) == (1980, 2015)
    changes = [(h.actor, h.after["year"]) for h in alice.history("facts/birth/user")]
    assert changes == [("", 1980), ("hand", 1999), ("", 1980)]


def test_a_hand_edit_of_an_immutable_fact_in_a_transaction_is_undone(alice, file):
    alice.commit(Birth(who="user", year=1980))
    with alice.transaction():
        alice.commit(Diet(role="user", food="vegan"))
        file.write_text(file.read_text().replace("year = 1980", "year = 1999"))
    tables = tomllib.loads(file.read_text())["facts"]
    assert (tables["birth"]["user"]["year"], tables["diet"]["user"]["food"]) == (1980, "vegan")
    assert [h.actor for h in alice.history("facts/birth/user")] == ["", "hand", ""]


def test_forget_undoes_hand_edits_of_immutable_facts(alice, file):
    alice.commit(Birth(who="user", year=1980))
    alice.commit(Diet(role="user", food="vegan"), session_id="s1")
    file.write_text(file.read_text().replace("year = 1980", "year = 1999"))
    alice.forget(session_id="s1")
    assert "year = 1980" in file.read_text()
    assert "year = 1999" not in file.read_text()
    assert (alice.get("birth/user").data.year, alice.get("diet/user")) == (1980, None)
    changes = [(h.actor, h.after["year"]) for h in alice.history("facts/birth/user")]
    assert changes == [("", 1980), ("hand", 1999), ("", 1980)]
    with pytest.raises(Conflict, match="forgotten"):  # as ever
        alice.rollback(to=1)


def test_a_user_with_unparsable_facts_can_be_forgotten(alice, file):
    file.parent.mkdir(parents=True)
    file.write_text("[facts.birth.user\n")
    with pytest.raises(DocumentError):
        alice.forget(session_id="s1")
    alice.forget(everything=True)
    assert not file.exists()


@pytest.mark.parametrize("in_transaction", [True, False])
def test_an_immutable_fact_removed_by_hand_comes_back(alice, file, in_transaction):
    alice.commit(Birth(who="user", year=1980))
    alice.commit(Diet(role="user", food="vegan"))
    good = file.read_text()
    start = good.index("[facts.birth.user]")
    file.write_text(good[:start] + good[good.index("[facts.diet.user]") :])
    age(file)  # no need to wait for an editor
    again = opened(file.parents[1]).user("alice")  # also for a new reader
    assert again.get("birth/user").data.year == 1980
    if in_transaction:
        with again.transaction():
            again.commit(Diet(role="dog", food="meat"))
    else:
        again.commit(Diet(role="dog", food="meat"))
    assert tomllib.loads(file.read_text())["facts"]["birth"]["user"]["year"] == 1980


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('food = "vegan"', "food = 7"), "facts.diet.user.food: expected text, found number"),
        (
            ('role = "user"', 'role = "bob"'),
            "facts.diet.user: its fields say that its key is 'bob'",
        ),
        (("[facts.diet.user]", "[facts.diet.bob]"), "facts.diet.bob: its fields say"),
        (('role = "user"\n', ""), "facts.diet.user.role: expected a value, found nothing"),
    ],
)
def test_a_fact_that_breaks_its_rules_is_kept_but_not_read(diary, alice, file, change, message):
    alice.commit(Diet(role="user", food="vegan"))
    alice.commit(Diet(role="dog", food="meat"))
    file.write_text(file.read_text().replace(*change, 1))
    age(file)
    assert [fact.id for fact in alice.query("diet")] == ["diet/dog"]
    assert [hit.key for hit in alice.recall("vegan meat")] == ["diet/dog"]
    assert [str(problem).startswith(message) for problem in alice.problems()] == [True]
    assert any(finding.message.startswith(message) for finding in check(diary))
    alice.commit(Diet(role="cat", food="fish"))
    assert change[1] in file.read_text()


def test_a_hand_edit_with_the_key_of_a_fact_is_not_overwritten(alice, file):
    alice.commit(Diet(role="user", food="vegan"))
    file.write_text(file.read_text().replace('food = "vegan"', "food = 7"))
    for write in (
        lambda: alice.commit(Diet(role="user", food="fish")),
        lambda: alice.update("diet/user", {"food": "fish"}),
    ):
        with pytest.raises(InvalidValue) as refused:
            write()
        assert str(refused.value) == (
            "facts.diet.user.food: the stored fact cannot be read: expected text, found number."
            " Correct it in the file, or remove it with facts.delete('diet/user')."
        )
    assert "food = 7" in file.read_text()
    alice.delete("diet/user")
    alice.commit(Diet(role="user", food="fish"))
    assert alice.get("diet/user").data.food == "fish"
    alice.delete("diet/user")
    alice.commit(Diet(role="user", food="fish"))
    assert alice.problems() == []


def test_a_fact_added_by_hand_is_a_fact(alice, file):
    alice.commit(Diet(role="user", food="vegan"))
    with file.open("a") as handle:
        handle.write('\n[facts.diet.dog]\nrole = "dog"\nfood = "meat"\n')
        handle.write('\n[facts.home.user]\nwho = "user"\ncity = "Oslo"\n')
        handle.write('\n[facts.home."user@2020-01-05"]\nwho = "user"\ncity = "Rome"\n')
        handle.write("_valid_from = 2020-01-05\n")
    assert alice.get("diet/dog").data.food == "meat"
    assert cities(alice) == ["Rome"]
    assert cities(alice, valid_at=day(2)) == ["Oslo"]
    assert alice.problems() == []


def test_a_misspelled_type_by_hand_is_reported(diary, alice, file):
    alice.commit(Diet(role="user", food="vegan"))
    with file.open("a") as handle:
        handle.write('\n[facts.diett.dog]\nrole = "dog"\nfood = "meat"\n')
        handle.write('\n[facts.pet.dog]\nname = "Rex"\n')  # another program may have registered it
    age(file)
    message = "facts.diett: no such type is registered, but 'diet' is, so no query finds it"
    assert [str(each).startswith(message) for each in alice.problems()] == [True]
    assert [found.message for found in check(diary) if found.level == "warning"] == [message]
    bob = diary.user("bob")
    bob.import_(alice.export())
    assert len(bob.problems()) == 1


def test_a_similar_type_of_another_program_is_no_problem(diary, alice):
    other = Diary(diary.engine.backend, agent="rules")
    other.register_schema("diets", Diet)
    other.user("alice").facts.commit("diets", {"role": "user", "food": "vegan"})
    other.user("alice").draft("s").facts.commit("diets", {"role": "dog", "food": "meat"})
    assert len(alice.promote_session("s")) == 1
    assert alice.problems() == []


@pytest.mark.parametrize(
    ("start", "named"),
    [("", "it is missing, and"), ("_valid_from = 2023-01-05\n", "it differs from")],
)
def test_a_fact_by_hand_with_another_start_than_its_key_is_reported(alice, file, start, named):
    written = f'[facts.home."user@2022-01-05"]\nwho = "user"\ncity = "Rome"\n{start}'
    alice.commit(Home(who="user", city="Oslo"), valid_from=day(1))
    with file.open("a") as handle:
        handle.write(f"\n{written}")
    age(file)
    [problem] = map(str, alice.problems())
    assert problem.startswith(f'facts.home."user@2022-01-05"._valid_from: {named} the start')
    with pytest.raises(InvalidValue, match="Correct one of them in the file"):
        alice.commit(Home(who="user", city="Bern"), valid_from=datetime(2022, 1, 5, tzinfo=UTC))
    assert written in file.read_text()
    file.write_text(
        file.read_text().replace(
            written, f"{written.removesuffix(start)}_valid_from = 2022-01-05\n"
        )
    )
    age(file)
    alice.commit(Home(who="user", city="Bern"), valid_from=datetime(2022, 1, 5, tzinfo=UTC))
    assert alice.problems() == []
    assert cities(alice, valid_at=datetime(2022, 2, 1, tzinfo=UTC)) == ["Bern"]


# Writers at once


PROCESS = """\
import sys
from pydantic import BaseModel
from tomldiary import Constraint, Diary

class Diet(BaseModel):
    role: str
    food: str
    note: str | None = None

diary = Diary(sys.argv[1], agent="rules", durability="process")
diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
alice = diary.user("alice")
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    alice.commit(Diet(role=str(number), food=sys.argv[2]))
"""


def test_concurrent_commits_of_one_key_leave_one_fact(tmp_path):
    run_at_once(PROCESS, [str(tmp_path), "one"], [str(tmp_path), "two"])
    alice = opened(tmp_path).user("alice")
    assert sorted(int(fact.data.role) for fact in alice.query("diet")) == list(range(40))
    assert len([h for h in alice.history(limit=500) if h.type == "commit"]) == 80


def test_concurrent_temporal_commits_leave_one_fact_that_holds(tmp_path):
    alice = opened(tmp_path).user("alice")
    barrier = threading.Barrier(8)

    def commit(number):
        barrier.wait()
        alice.commit(Home(who="user", city=str(number)))

    threads = [threading.Thread(target=commit, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(alice.query("home")) == 1
    assert len(alice.query("home", include_ended=True)) == 8


def test_a_past_state_cannot_be_committed_to(alice):
    alice.commit(Diet(role="user", food="vegan"))
    with pytest.raises(DiaryError, match="cannot be changed"):
        alice.as_of(1).commit(Diet(role="user", food="fish"))


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_a_past_state_reads_temporal_facts_by_its_own_clock(tmp_path, kind):
    alice = opened(tmp_path if kind == "files" else "memory:").user("alice")
    moment = datetime.now(UTC)
    hour = timedelta(hours=1)
    alice.commit(Home(who="a", city="Rome"), valid_from=moment - hour, valid_to=moment + hour)
    alice.commit(Home(who="b", city="Oslo"), valid_from=moment + hour)
    seq, then, later = alice.last_transaction(), datetime.now(UTC), moment + 2 * hour

    def cities(user, **when):
        found = {fact.data.city for fact in user.query("home", **when)}
        assert {hit.text.rpartition(" ")[2] for hit in user.recall("Rome Oslo", **when)} == found
        for shown in (user.render(**when), user.render("Rome Oslo", **when)):
            assert {city for city in ("Rome", "Oslo") if city in shown} == found
        assert (user.get("home/a", **when) is not None) is ("Rome" in found)
        return found

    assert cities(alice) == {"Rome"}
    assert cities(alice, valid_at=later) == {"Oslo"}
    assert cities(alice.as_of(later)) == {"Oslo"}
    for point in (seq, then):
        assert cities(alice.as_of(point)) == {"Rome"}
        assert cities(alice.as_of(point), valid_at=later) == {"Oslo"}
    before, after = (alice.as_of(each)._context.moment(None) for each in (seq - 1, seq))
    assert moment < before < after < then
    assert cities(alice.as_of(0)) == set()


class Task(BaseModel):
    name: str
    rank: int = 0
    due: date | None = None
    place: dict[str, str] = {}


@pytest.fixture
def tasks():
    diary = Diary("memory:", agent="rules")
    diary.register_schema("task", Task)
    alice = diary.user("alice")
    for rank, name in enumerate("abcd", 1):
        alice.commit(Task(name=name, rank=rank, due=date(2026, 1, rank), place={"city": name * 2}))
    return alice


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ({"rank": {"$gt": 2}}, "cd"),
        ({"rank": {"$gte": 2, "$lt": 4}}, "bc"),
        ({"rank": {"$in": [1, 4]}}, "ad"),
        ({"rank": {"$ne": 1}, "name": "b"}, "b"),
        ({"name": {"$nin": ["a", "b"]}}, "cd"),
        ({"due": {"$lte": date(2026, 1, 2)}}, "ab"),
        ({"due": {"$lte": "2026-01-02"}}, "ab"),
        ({"due": {"$eq": date(2026, 1, 3)}}, "c"),
        ({"place.city": {"$in": ["aa"]}}, "a"),
        ({"place": {"city": "bb"}}, "b"),
        ({"$or": [{"rank": 1}, {"name": "d"}]}, "ad"),
        ({"$not": {"rank": {"$lt": 3}}}, "cd"),
        ({"$and": [{"rank": {"$gt": 1}}, {"rank": {"$lt": 3}}]}, "b"),
        ({"$or": [{"due": {"$lt": date(2026, 1, 2)}}, {"due": {"$gt": date(2026, 1, 3)}}]}, "ad"),
    ],
)
def test_a_query_takes_the_conditions_of_the_stores_filter(tasks, where, names):
    found = {fact.data.name for fact in tasks.query("task", where)}
    assert found == set(names)
    if "due" not in where:  # a store has no dates of a model
        store = DiaryStore(tasks.diary)
        items = store.search(("alice", "diary", "facts", "task"), filter=where, limit=100)
        assert {item.value["name"] for item in items} == found


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"rank": {"$above": 3}}, r"unknown operator '\$above'. Use one of: \$eq"),
        ({"$nor": [{"rank": 1}]}, r"unknown operator '\$nor'. Use one of: \$and, \$or"),
        ({"rank": {"$in": 3}}, "a list of values"),
        ({"rnak": {"$gt": 3}}, "rnak"),
        ({"$or": [{"rnak": 3}]}, "rnak"),
    ],
)
def test_an_invalid_condition_is_an_error(tasks, where, message):
    with pytest.raises(InvalidValue, match=message):
        tasks.query("task", where)


def test_an_update_never_makes_two_equal_facts(tasks):
    one, other = (fact.id for fact in tasks.query("task", {"name": {"$in": ["a", "b"]}}))
    wanted = {"name": "a", "rank": 1, "due": date(2026, 1, 1), "place": {"city": "aa"}}
    with pytest.raises(InvalidValue, match=f"{one} says the same already"):
        tasks.update(other, wanted)
    assert tasks.update(one, wanted) == one
    assert tasks.update(other, {"rank": 1}) == other
    assert len(tasks.query("task")) == 4


@pytest.mark.parametrize("fact", ["user", "fact-1a2b3c4d", "facts/user", "", "diet", "facts/diet"])
def test_a_name_that_is_no_id_of_a_fact_is_told(alice, fact):
    facts = alice.facts
    for use in (facts.get, facts.delete, partial(facts.update, changes={"food": "rice"})):
        with pytest.raises(InvalidValue, match=r"^id: expected type/key, found '.*Give the `id`"):
            use(fact)
    assert fact not in facts


def test_verbs_accept_the_fact_ids_that_recall_shows(tmp_path):
    alice = opened(tmp_path).user("alice")
    assert alice.commit(Diet(role="user", food="vegan")) == "diet/user"
    assert alice.get("facts/diet/user").data.food == "vegan"
    assert alice.update("facts/diet/user", {"food": "fish"}) == "diet/user"
    assert alice.delete("facts/diet/user") == {"role": "user", "food": "fish"}
    alice.upsert_preference("goals", "tea")
    for ask in (
        lambda: alice.get("goals/pref001"),
        lambda: alice.update("goals/pref001", {"text": "x"}),
        lambda: alice.delete("goals/pref001"),
    ):
        with pytest.raises(SchemaError, match="'goals' is a category of preferences"):
            ask()
    for ask in (lambda: alice.query("goals"), lambda: alice.commit("goals", {"text": "x"})):
        with pytest.raises(SchemaError, match="the fact type 'goals' is not registered"):
            ask()


def test_a_full_collection_names_the_setting_that_limits_it():
    diary = Diary("memory:", agent="rules", max_prefs_per_category=1)
    diary.register_schema("tag", Tag, Constraint(limit=1))
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    alice.commit(Tag(text="a"))
    with pytest.raises(LimitReached, match=r"likes is full \(1/1\).*raise max_prefs_per_category"):
        alice.upsert_preference("likes", "milk")
    diary.constrain("blocks", Constraint(limit=1))
    alice.blocks.set("one", "1")
    with pytest.raises(LimitReached, match=r"blocks is full.*raise its Constraint\(limit=…\)"):
        alice.blocks.set("two", "2")
    with pytest.raises(LimitReached, match=r"facts/tag is full.*raise its Constraint\(limit=…\)"):
        alice.commit(Tag(text="b"))


def test_types_and_rules_that_threads_register_at_once_are_all_kept():
    models = [create_model(f"Type{number}", x=(int, 1)) for number in range(40)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            diary, begin = Diary("memory:", agent="rules"), threading.Barrier(4)

            def register(first, diary=diary, begin=begin):
                begin.wait()
                for number in range(first, len(models), 4):
                    diary.register_schema(f"t{number}", models[number], Constraint(limit=1))
                    diary.constrain(f"blocks/b{number}", Constraint(limit=1))

            threads = [threading.Thread(target=register, args=(first,)) for first in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(diary.fact_schemas) == len(models)
            keys = [f"{kind}{number}" for number in range(40) for kind in ("facts/t", "blocks/b")]
            assert all(map(diary.entry_rules.of, keys))
    finally:
        sys.setswitchinterval(interval)


def test_a_list_of_the_facts_logs_once_what_is_left_out(diary, alice, file, caplog):
    for name in ("a", "b"):
        alice.commit(Diet(role=name, food="soup"))
    file.write_text(file.read_text().replace('food = "soup"', "food = 5", 1))
    age(file)
    assert len(alice.query()) == 1
    caplog.clear()
    assert len(list(diary.user("alice").facts)) == 1
    assert caplog.text.count("1 fact of type diet left out") == 1


@pytest.mark.parametrize("temporal", [False, True])
def test_a_field_whose_alias_has_a_dot_identifies_a_fact(tmp_path, temporal):
    class Stay(BaseModel):
        city: str = Field(alias="home.city")
        floor: int = 1

    diary = Diary(tmp_path, agent="rules")
    rule = Constraint("home.city", required=("home.city",), temporal=temporal)
    diary.register_schema("stay", Stay, rule)
    facts = diary.user("alice").facts
    for city, floor in (("Rome", 1), ("Bari", 2), ("Rome", 3)):
        key = facts.commit("stay", {"home.city": city, "floor": floor})
        assert key.startswith(f"stay/{city}")
    found = facts.query("stay", {"home.city": "Rome"})
    assert [fact.data.floor for fact in found] == [3]
    assert len(facts) == 2
    with pytest.raises(InvalidValue, match="expected a value"):
        facts.commit("stay", {"home.city": " "})


def test_a_field_whose_alias_has_a_dot_is_queried_and_sorted_by(tmp_path):
    class Visit(BaseModel):
        place: str = Field("home", alias="trip.place")
        at: datetime = Field(alias="trip.at")
        trip: dict[str, str] = {}

    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("visit", Visit)
    facts = diary.user("alice").facts
    for place, hour in (("Rome", "12"), ("Bari", "08")):
        at = f"2026-01-01T{hour}:00:00Z"
        facts.commit("visit", {"trip.place": place, "trip.at": at, "trip": {"way": place}})
    for name in ("visit", None):

        def places(where=None, name=name, **more):
            return [fact.data.place for fact in facts.query(name, where, **more)]

        assert places({"trip.place": "Rome"}) == places({"trip.way": "Rome"}) == ["Rome"]
        assert places({"trip.place": {"$in": ["Bari"]}}) == ["Bari"]
        assert places({"trip.at": "2026-01-01T09:00:00+01:00"}) == ["Bari"]
        assert places(order_by="trip.place") == ["Bari", "Rome"]
    file = tmp_path / "alice/facts.toml"
    file.write_text(file.read_text().replace('"trip.place" = "Bari"\n', ""))
    age(file)
    assert [each.data.place for each in facts("visit", {"trip.place": "home"})] == ["home"]
    with pytest.raises(InvalidValue, match="no such field"):
        facts("visit", {"tour.place": "Rome"})


@pytest.mark.parametrize("at", ["2021", "2021-03"])
def test_a_year_or_a_month_is_a_time_at_which_facts_hold(alice, at):
    for city, year in (("Oslo", 2020), ("Rome", 2022)):
        start = datetime(year, 1, 1, tzinfo=UTC)
        alice.commit(Home(who="user", city=city), valid_from=start)
    assert [fact.data.city for fact in alice.query("home", valid_at=at)] == ["Oslo"]
    assert alice.get("home/user", valid_at=at).data.city == "Oslo"
