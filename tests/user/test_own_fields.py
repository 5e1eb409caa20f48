"""The fields of a host's own item types are stored with a preference, and changed with it."""

from __future__ import annotations

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, Field

from tomldiary import Diary, InvalidValue, MemoryDeps, PreferenceItem


class Dish(PreferenceItem):
    heat: int = 0


class Kitchen(BaseModel):
    dishes: dict[str, Dish] = {}


def cook(agent: object = "rules") -> Diary:
    return Diary("memory:", Kitchen, agent=agent)


@pytest.mark.parametrize("again", [{"id": "pref001"}, {"text": "Curry."}])
def test_an_entry_that_is_there_takes_the_own_fields_it_is_given(again):
    alice = cook().user("alice")
    alice.upsert_preference("dishes", "curry", fields={"heat": 1, "pinned": True})
    _, item = alice.upsert_preference("dishes", **again, fields={"heat": 4})
    assert (item.heat, item.count) == (4, 2)
    assert alice.entry("preferences", "dishes/pref001")["pinned"] is True


def test_an_entry_that_is_there_refuses_a_wrong_own_field():
    alice = cook().user("alice")
    alice.upsert_preference("dishes", "curry", fields={"heat": 1})
    with pytest.raises(InvalidValue, match=r"dishes\.pref001\.heat.*Nothing was stored"):
        alice.upsert_preference("dishes", id="pref001", fields={"heat": "hot"})
    assert alice.preferences("dishes")["pref001"].heat == 1


@pytest.mark.parametrize("name", ["text", "contexts", "_count", "_created", "_source"])
def test_fields_of_the_diary_cannot_be_given_as_own_ones(name):
    alice = cook().user("alice")
    with pytest.raises(InvalidValue, match=name):
        alice.upsert_preference("dishes", "curry", fields={name: "x"})
    assert not alice.preferences("dishes")


@pytest.mark.parametrize("again", [{"id": "pref001"}, {"text": "curry"}, {"text": "soup"}])
def test_an_own_field_that_the_type_does_not_have_is_refused(again):
    alice = cook().user("alice")
    alice.upsert_preference("dishes", "curry", fields={"heat": 1})
    before = alice.entry("preferences", "dishes/pref001")
    with pytest.raises(InvalidValue, match=r"dishes\.haet: there is no such field.* heat, pinned"):
        alice.upsert_preference("dishes", **again, fields={"haet": 4})
    assert alice.entry("preferences", "dishes/pref001") == before
    assert len(alice.preferences("dishes")) == 1


def test_a_field_that_is_read_from_within_a_table_is_given_as_this_table():
    class Dish(PreferenceItem):
        heat: int = Field(0, validation_alias=AliasPath("spice", "heat"))

    class Table(BaseModel):
        dishes: dict[str, Dish] = {}

    alice = Diary("memory:", Table, agent="rules").user("alice")
    _, item = alice.upsert_preference("dishes", "curry", fields={"spice": {"heat": 3}})
    assert item.heat == 3


def test_an_undeclared_own_field_is_refused_with_how_to_declare_it():
    alice = Diary("memory:", agent="rules").user("alice")
    with pytest.raises(InvalidValue, match=r"Declare others in a subclass of PreferenceItem\."):
        alice.upsert_preference("likes", "curry", fields={"heat": 4})


def test_a_type_that_allows_further_fields_takes_them():
    class Free(PreferenceItem, extra="allow"): ...

    class Table(BaseModel):
        dishes: dict[str, Free] = {}

    alice = Diary("memory:", Table, agent="rules").user("alice")
    alice.upsert_preference("dishes", "curry", fields={"from": "Goa"})
    assert alice.entry("preferences", "dishes/pref001")["from"] == "Goa"


@pytest.mark.parametrize("name", ["heat", "h", "hotness"])
def test_an_own_field_may_be_given_by_each_of_its_names(name):
    class Short(PreferenceItem):
        heat: int = Field(default=0, validation_alias=AliasChoices("h", "hotness"))

    class Table(BaseModel):
        dishes: dict[str, Short] = {}

    alice = Diary("memory:", Table, agent="rules").user("alice")
    alice.upsert_preference("dishes", "curry", fields={name: 4})
    assert alice.preferences("dishes")["pref001"].heat == 4


def test_an_extractor_changes_the_own_fields_of_an_entry():
    def listen(message: str, *, deps: MemoryDeps) -> None:
        deps.upsert("dishes", "pref001", None, (), fields={"heat": 4})

    alice = cook(listen).user("alice")
    alice.upsert_preference("dishes", "curry", fields={"heat": 1})
    alice.add_turn("Hotter!", "Noted.", session_id="s1")
    assert alice.preferences("dishes")["pref001"].heat == 4


class Strict(PreferenceItem):
    heat: int = Field(ge=0, le=5)


class Menu(BaseModel):
    dishes: dict[str, Strict] = {}
    allergies: dict[str, PreferenceItem] = {}


def test_an_extracted_entry_that_does_not_fit_its_type_is_skipped_and_named():
    alice = Diary("memory:", Menu, agent="rules").user("alice")
    done = alice.add_turn("I love curry. I'm allergic to nuts.", "Noted.", session_id="s1")
    assert done.skipped == ["dishes.pref001.heat: Field required. Nothing was stored."]
    assert [hit.key for hit in alice.recall("curry or nuts")] == ["allergies/pref001"]
    assert alice.problems() == []


def test_an_extractor_is_told_that_an_entry_does_not_fit_its_type():
    told: list[str] = []

    def listen(message: str, *, deps: MemoryDeps) -> None:
        for fields in ({"heat": 6}, {"heat": 5}):
            try:
                deps.upsert("dishes", None, "curry", (), fields=fields)
            except InvalidValue as error:
                told.append(str(error))

    alice = Diary("memory:", Menu, agent=listen).user("alice")
    alice.add_turn("Hot, please!", "Noted.", session_id="s1")
    assert len(told) == 1
    assert alice.preferences("dishes")["pref001"].heat == 5


def test_an_entry_edited_in_the_draft_must_fit_its_type():
    def listen(message: str, *, deps: MemoryDeps) -> None:
        deps.prefs["preferences"]["dishes"]["pref001"]["heat"] = 9

    alice = Diary("memory:", Menu, agent=listen).user("alice")
    alice.upsert_preference("dishes", "curry", fields={"heat": 1})
    done = alice.add_turn("Hot, please!", "Noted.", session_id="s1")
    assert len(done.skipped) == 1
    assert alice.preferences("dishes")["pref001"].heat == 1
