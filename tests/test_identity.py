"""Who a run is about and which session it belongs to: one order, and no name is passed over."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from tomldiary.errors import IdentifierError
from tomldiary.identity import field_of, first_id, given, session_of, user_of

USER_PLACES = [
    {"explicit": "explicit"},
    {"context": {"user_id": "context"}},
    {"settings": {"user_id": "settings"}},
    {"metadata": {"user_id": "metadata"}},
    {"settings": {"langgraph_user_id": "langgraph"}},
    {"settings": {"langgraph_auth_user": {"identity": "server"}}},
    {"settings": {"langgraph_auth_user_id": "server's id"}},
]
SESSION_PLACES = [
    {"explicit": "explicit"},
    {"context": {"session_id": "context"}},
    {"settings": {"session_id": "settings"}},
    {"metadata": {"session_id": "metadata"}},
    {"settings": {"thread_id": "thread"}},
    {"settings": {"conversation_id": "conversation"}},
]
NAMES = ["explicit", "context", "settings", "metadata"]


def together(places):
    """Return the arguments in which every one of `places` names somebody."""
    found = {"explicit": None}
    for place in places:
        for argument, value in place.items():
            both = isinstance(value, dict) and isinstance(found.get(argument), dict)
            found[argument] = {**found[argument], **value} if both else value
    return found


@pytest.mark.parametrize("first", range(len(USER_PLACES)))
def test_the_user_named_nearest_wins_over_all_that_come_later(first):
    names = [*NAMES, "langgraph", "server", "server's id"]
    assert user_of(**together(USER_PLACES[first:]), hint="") == names[first]


@pytest.mark.parametrize("first", range(len(SESSION_PLACES)))
def test_the_session_named_nearest_wins_over_all_that_come_later(first):
    names = [*NAMES, "thread", "conversation"]
    assert session_of(**together(SESSION_PLACES[first:])) == names[first]


@pytest.mark.parametrize("wrong", ["", "  ", 7, b"ann", True, ["ann"]])
@pytest.mark.parametrize("first", range(len(USER_PLACES) - 1))
def test_a_name_that_cannot_be_used_is_never_passed_over(first, wrong):
    broken = together(USER_PLACES[first:])
    argument, value = next(iter(USER_PLACES[first].items()))
    if isinstance(value, dict):
        key, inner = next(iter(value.items()))
        wrong = {"identity": wrong} if isinstance(inner, dict) else wrong
        broken[argument] = {**broken[argument], key: wrong}
    else:
        broken[argument] = wrong
    with pytest.raises(IdentifierError, match=r"is blank|expected text, found"):
        user_of(**broken, hint="")


def test_what_is_wrong_is_told_with_its_place_and_without_the_value():
    with pytest.raises(
        IdentifierError, match=r"^user_id in the metadata: expected text, found dict"
    ):
        user_of(None, metadata={"user_id": {"secret": 1}}, hint="")
    with pytest.raises(IdentifierError, match=r"^session_id in the context is blank"):
        session_of(None, context={"session_id": " "}, settings={"thread_id": "t"}, default="")


def test_nobody_named_is_an_error_with_the_hint_and_a_default_is_for_sessions():
    with pytest.raises(IdentifierError, match=r"^the user is not known\. Say who\.$"):
        user_of(None, hint="Say who.", context=object(), settings={}, metadata=None)
    with pytest.raises(IdentifierError, match=r"^the session is not known\. Name it\.$"):
        session_of(None, hint="Name it.")
    assert session_of(None, default="") == ""


def test_a_function_that_names_nobody_is_an_error_although_others_could():
    assert given("user", lambda first, second: first + second, "a", "b") == "ab"
    assert given("user", "ann", "unused") == "ann"
    assert given("user", None) is None
    with pytest.raises(
        IdentifierError, match="user_id was given as a function, and it returned None"
    ):
        given("user", lambda: None)


def test_threads_may_be_numbers_and_uuids_but_people_may_not():
    assert session_of(None, settings={"thread_id": 7}) == "7"
    thread = UUID(int=5)
    assert session_of(None, settings={"thread_id": thread}) == str(thread)
    with pytest.raises(IdentifierError):
        session_of(None, settings={"thread_id": True})
    with pytest.raises(IdentifierError):
        user_of(None, settings={"user_id": 7}, hint="")


def test_fields_are_keys_or_attributes():
    assert field_of({"user_id": "ann"}, "user_id") == "ann"
    assert field_of(SimpleNamespace(user_id="ann"), "user_id") == "ann"
    # A mapping's methods are not its fields.
    assert field_of({}, "keys") is None
    assert field_of(None, "user_id") is None


def test_the_first_place_that_says_something_counts():
    assert first_id("user", [("here", None), ("there", " ann "), ("later", 7)]) == " ann "
