"""The fields of a host's own item types are stored with a preference, and changed with it."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

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


def test_an_extractor_changes_the_own_fields_of_an_entry():
    def listen(message: str, *, deps: MemoryDeps) -> None:
        deps.upsert("dishes", "pref001", None, (), fields={"heat": 4})

    alice = cook(listen).user("alice")
    alice.upsert_preference("dishes", "curry", fields={"heat": 1})
    alice.add_turn("Hotter!", "Noted.", session_id="s1")
    assert alice.preferences("dishes")["pref001"].heat == 4
