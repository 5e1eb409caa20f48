"""Preferences of an item type of one's own, whose fields are checked."""

import pytest
from pydantic import BaseModel

from tomldiary import DefaultPrefTable, Diary, PreferenceItem
from tomldiary.errors import InvalidValue


class Dish(PreferenceItem):
    """An item type with fields of its own."""

    cuisine: str
    stars: int = 1


class Dishes(BaseModel):
    likes: dict[str, Dish] = {}


@pytest.mark.parametrize(
    ("fields", "place"),
    [({}, "cuisine"), ({"cuisine": 3}, "cuisine"), ({"cuisine": "x", "stars": "y"}, "stars")],
)
def test_a_preference_that_does_not_fit_its_item_type_is_not_stored(fields, place):
    alice = Diary("memory:", Dishes).user("alice")
    with pytest.raises(InvalidValue, match=rf"likes\.pref001\.{place}: .*Nothing was stored"):
        alice.upsert_preference("likes", "sushi", fields=fields)
    assert alice.last_transaction() == 0


def test_an_entry_that_does_not_fit_its_item_type_can_be_removed(tmp_path):
    Diary(tmp_path, DefaultPrefTable).user("alice").upsert_preference("likes", "sushi")
    alice = Diary(tmp_path, Dishes).user("alice")
    assert alice.preferences("likes") == {}
    assert alice.remove_preference("likes", "pref001").text == "sushi"
    assert "sushi" not in alice.document("preferences")
