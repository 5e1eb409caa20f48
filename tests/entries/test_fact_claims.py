"""What identifies a fact, how sure it is, and which facts a query is about."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import AliasChoices, BaseModel, Field

from counted_models import counted
from tomldiary import Constraint, Diary
from tomldiary.errors import InvalidValue, SchemaError, UnknownEntry, WeakClaim

START = datetime(2026, 1, 1, tzinfo=UTC)


class Statement(BaseModel):
    subject: str
    predicate: str
    object: str


class Diet(BaseModel):
    role: str
    food: str
    rank: int = 0


STATEMENTS = Constraint(
    singleton_key=("subject", "predicate"),
    multi_valued={"likes": "object", "speaks": "object"},
    normalise=("predicate", "object"),
)


@pytest.fixture(params=[False, True], ids=["plain", "temporal"])
def is_temporal(request):
    return request.param


@pytest.fixture
def alice(is_temporal):
    diary = Diary("memory:")
    rules = Constraint(
        singleton_key=STATEMENTS.singleton_key,
        multi_valued=STATEMENTS.multi_valued,
        normalise=STATEMENTS.normalise,
        temporal=is_temporal,
    )
    diary.register_schema("said", Statement, rules)
    diary.register_schema("diet", Diet, Constraint(singleton_key="role", temporal=is_temporal))
    return diary.user("alice")


def say(alice, predicate, value, **how):
    fields = {"subject": "alice", "predicate": predicate, "object": value}
    return alice.facts.commit("said", fields, **how)


def objects(alice, **how):
    return [fact.data.object for fact in alice.facts.query("said", **how)]


def test_a_fact_is_committed_by_type_name_and_fields(alice):
    key = alice.facts.commit("diet", {"role": "user", "food": "vegan"}, session_id="s1")
    assert alice.facts.get(key).data == Diet(role="user", food="vegan")
    assert alice.facts.commit(Diet(role="user", food="vegan")).partition("@")[0] == "diet/user"
    for wrong, error in {
        ("hats", None): SchemaError,
        ("diet", ("role", "user")): InvalidValue,
        ("diet", ("hat", "x")): InvalidValue,
        ("likes", None): SchemaError,
    }.items():
        with pytest.raises(error):
            alice.facts.commit(wrong[0], dict([wrong[1]]) if wrong[1] else {})
    with pytest.raises(InvalidValue, match="data: fields can only be passed"):
        alice.facts.commit(Diet(role="user", food="x"), {"food": "y"})
    assert alice.facts.count() == 1


def test_some_predicates_have_one_value_and_others_several(alice):
    for number, food in enumerate(["pizza", "sushi", "ramen"]):
        say(alice, "likes", food, now=START + timedelta(days=number))
        say(alice, "lives_in", food, now=START + timedelta(days=number))
    assert objects(alice, where={"predicate": "likes"}) == ["pizza", "sushi", "ramen"]
    assert objects(alice, where={"predicate": "lives_in"}) == ["ramen"]


def test_spellings_of_a_predicate_or_value_are_one_fact(alice):
    for predicate, name in [("Name-Is", "Alice"), ("nameIs", "Alicia"), ("name_is", "Ally")]:
        say(alice, predicate, name)
    for food in ("Pizza", "pizza ", "PIZZA"):
        say(alice, "likes", food, session_id="s1")
    assert sorted(objects(alice)) == ["Ally", "Pizza"]
    assert objects(alice, where={"predicate": "NAME is"}) == ["Ally"]
    assert objects(alice, where={"object": {"$in": ["pizza", "x"]}}) == ["Pizza"]
    assert objects(alice, where={"$or": [{"object": "ALLY"}, {"predicate": "x"}]}) == ["Ally"]


def test_equal_facts_without_a_key_are_one_in_any_spelling():
    diary = Diary("memory:")
    diary.register_schema("said", Statement, Constraint(normalise=("object",)))
    alice = diary.user("alice")
    keys = {say(alice, "likes", food) for food in ("Pizza", "pizza", "PIZZA!")}
    assert len(keys) == 1
    assert objects(alice) == ["Pizza"]


def test_a_less_sure_claim_does_not_displace_a_surer_one(alice):
    key = say(alice, "lives_in", "Paris", confidence=0.9)
    with pytest.raises(WeakClaim, match=r"confidence 0.9, and the new value only 0.05") as told:
        say(alice, "lives_in", "Tokyo", confidence=0.05)
    assert pickle.loads(pickle.dumps(told.value)).claimed == 0.05  # noqa: S301 - our own bytes
    assert objects(alice) == ["Paris"]
    assert alice.facts.get(key).confidence == 0.9
    say(alice, "lives_in", "Tokyo", confidence=0.05, force=True)
    assert objects(alice) == ["Tokyo"]
    say(alice, "lives_in", "Oslo")
    assert [fact.confidence for fact in alice.facts.query("said")] == [1.0]


def test_a_confirmed_claim_becomes_surer_and_never_less_sure(alice):
    for confidence in (0.3, 0.8, 0.5):
        key = say(alice, "lives_in", "Paris", confidence=confidence)
    assert alice.facts.get(key).confidence == 0.8
    assert alice.facts.query("said", {"_confidence": {"$gte": 0.8}})
    assert not alice.facts.query("said", {"_confidence": {"$gt": 0.8}})
    for wrong in (1.5, -1, float("nan"), "high", True, None):
        with pytest.raises(InvalidValue, match="from 0 to 1"):
            say(alice, "lives_in", "Paris", confidence=wrong)


def test_an_update_leaves_the_confidence_as_it_is(alice):
    key = alice.facts.commit("diet", {"role": "user", "food": "vegan"}, confidence=0.4)
    fresh = alice.facts.update(key, {"food": "vegetarian"})
    assert alice.facts.get(fresh).confidence == 0.4


def test_a_query_goes_over_all_types_that_have_its_fields(alice):
    say(alice, "lives_in", "Paris", now=START)
    for number in range(5):
        fields = {"role": f"r{number}", "food": "rice", "rank": number}
        alice.facts.commit("diet", fields, now=START + timedelta(days=number + 1))
    assert [fact.type for fact in alice.facts.query(order_by="_created")] == ["said", *["diet"] * 5]
    late = {"_created": {"$gte": START + timedelta(days=4)}}
    assert [fact.data.rank for fact in alice.facts.query(None, late)] == [3, 4]
    found = alice.facts.query(None, {"rank": {"$gt": 0}}, 2, 1, "-rank")
    assert [fact.data.rank for fact in found] == [3, 2]
    assert alice.facts.count() == 6
    assert alice.facts.count("diet", {"rank": {"$lt": 2}}) == 2
    with pytest.raises(InvalidValue, match="no registered type of facts has the fields hat"):
        alice.facts.query(None, {"hat": 1})
    with pytest.raises(InvalidValue, match="unknown operator"):
        alice.facts.count(None, {"rank": {"$near": 1}})


@pytest.mark.parametrize(
    "rules",
    [
        {"multi_valued": {"likes": "object"}},
        {"singleton_key": "subject", "multi_valued": {"likes": "hat"}},
        {"normalise": "hat"},
    ],
)
def test_a_rule_about_a_missing_field_is_refused(rules):
    with pytest.raises(SchemaError):
        Diary("memory:").register_schema("said", Statement, Constraint(**rules))


def test_a_normal_form_is_part_of_the_key_that_names_a_fact(alice):
    say(alice, "Name-Is", "Alice")
    assert alice.facts.get("said/alice/name_is").data.object == "Alice"
    with pytest.raises(UnknownEntry):
        alice.facts.update("said/alice/Name-Is", {"object": "x"})


def test_a_query_by_the_whole_key_looks_at_no_other_fact(alice):
    parsed = []
    for name, schema in alice.diary.fact_schemas.items():
        alice.diary.register_schema(name, counted(schema.model, parsed), schema.constraint)
    with alice.transaction():
        for number in range(50):
            alice.facts.commit("diet", {"role": f"r{number}", "food": "rice"})
            say(alice, "likes", f"food {number}")
    parsed.clear()
    assert [fact.data.role for fact in alice.facts.query("diet", {"role": "r7"})] == ["r7"]
    likes = {"subject": "alice", "predicate": "Likes", "object": "Food 7"}
    assert objects(alice, where=likes) == ["food 7"]
    assert len(parsed) <= 4  # each of them to find it and to return it
    assert len(objects(alice, where={"subject": "alice", "predicate": "likes"})) == 50
    assert alice.facts.query("diet", {"role": {"$in": ["r7", "r8"]}}, limit=1)
    assert alice.facts.query("diet", {"role": None}) == []


def test_a_query_by_confidence_finds_facts_of_full_confidence(alice):
    for role, confidence in (("a", 0.4), ("b", 1.0), ("c", 0.8)):
        alice.facts.commit(Diet(role=role, food="vegan"), confidence=confidence)

    def roles(where=None, **how):
        return [fact.data.role for fact in alice.facts.query("diet", where, **how)]

    assert roles({"_confidence": 1}) == ["b"]
    assert roles({"_confidence": {"$gte": 0.5}}) == ["b", "c"]
    assert roles(order_by="-_confidence") == ["b", "c", "a"]


def test_a_query_finds_a_key_of_numbers_by_an_equal_number(is_temporal):
    class Size(BaseModel):
        number: float

    diary = Diary("memory:")
    diary.register_schema("size", Size, Constraint("number", temporal=is_temporal))
    alice = diary.user("alice")
    alice.facts.commit(Size(number=7))
    assert (
        alice.facts.count("size", {"number": 7}) == alice.facts.count("size", {"number": 7.0}) == 1
    )


# Models of two versions of a program


class Older(BaseModel):
    role: str
    food: str


class Newer(BaseModel):
    role: str
    food: str
    kcal: int = 0
    place: str = Field("", validation_alias=AliasChoices("place", "shop"))


@pytest.fixture
def versions(tmp_path, is_temporal):
    """The same user in an older and in a newer version of a program."""
    found = []
    for model in (Older, Newer):
        diary = Diary(tmp_path)
        diary.register_schema("diet", model, Constraint("role", temporal=is_temporal))
        found.append(diary.user("alice").facts)
    return found


def test_an_update_keeps_the_fields_that_only_a_newer_version_has(versions):
    old, new = versions
    new.commit(Newer(role="user", food="rice", kcal=300, shop="Spar"))
    old.update("diet/user", {"food": "soup"})
    assert new.get("diet/user").data == Newer(role="user", food="soup", kcal=300, shop="Spar")


def test_an_update_keeps_a_field_that_its_model_reads_by_another_name(tmp_path):
    class First(BaseModel):
        role: str
        meal: str = Field("", alias="food")

    class Next(BaseModel):
        role: str
        meal: str = Field("", alias="food", validation_alias="dish", serialization_alias="dish")

    found = []
    for model in (First, Next):
        diary = Diary(tmp_path)
        diary.register_schema("diet", model, Constraint("role"))
        found.append(diary.user("alice"))
    old, new = found
    old.commit("diet", {"role": "user", "food": "rice"})
    new.update("diet/user", {"dish": "soup"})
    assert old.get("diet/user").data.meal == "rice"
    assert new.get("diet/user").data.meal == "soup"


def test_a_fact_that_an_older_version_says_again_is_not_changed(versions):
    old, new = versions
    key = new.commit(Newer(role="user", food="rice", kcal=300))
    assert old.commit(Older(role="user", food="rice"), session_id="s2") == key
    assert new.get(key).data.kcal == 300
    old.commit(Older(role="user", food="soup"))
    assert new.get("diet/user").data == Newer(role="user", food="soup")


def test_a_fact_of_an_older_version_is_the_same_in_a_newer_one(versions, is_temporal):
    old, new = versions
    key = old.commit(Older(role="user", food="rice"))
    assert new.commit(Newer(role="user", food="rice")) == key
    if is_temporal:
        new.update(key, {}, valid_to=datetime.now(UTC) + timedelta(days=1))
    assert [fact.id for fact in new.query("diet", include_ended=True)] == [key]


def test_a_fact_without_a_singleton_key_is_the_same_in_both_versions(tmp_path, is_temporal):
    found = []
    for model in (Older, Newer):
        diary = Diary(tmp_path)
        diary.register_schema("diet", model, Constraint(temporal=is_temporal))
        found.append(diary.user("alice").facts)
    old, new = found
    rice, soup = (
        old.commit(Older(role="user", food="rice")),
        new.commit(Newer(role="user", food="soup", kcal=300)),
    )
    assert new.commit(Newer(role="user", food="rice")) == rice
    assert old.commit(Older(role="user", food="soup")) == soup
    assert new.get(soup).data.kcal == 300
    new.delete(rice)
    assert new.commit(Newer(role="user", food="rice")) != rice


def test_an_update_removes_a_field_that_is_read_by_another_name(tmp_path, versions, is_temporal):
    _, new = versions
    new.commit("diet", {"role": "user", "food": "rice"})
    file = tmp_path / "alice/facts.toml"
    file.write_text(file.read_text().replace('place = ""', 'shop = "Spar"'))
    new.update("diet/user", {"food": "soup"})
    assert new.get("diet/user").data.place == "Spar"
    assert file.read_text().count("shop") == is_temporal  # in the interval before
