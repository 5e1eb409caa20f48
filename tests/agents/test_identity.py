"""The user and the session of a run: names are searched in one order, and none is ignored."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from uuid import UUID

import pytest

from tomldiary.agents.delegation import RunTree
from tomldiary.agents.identity import (
    begins_again,
    field_of,
    first_id,
    given,
    session_of,
    signed_in,
    user_of,
)
from tomldiary.errors import IdentifierError
from tomldiary.identifiers.namespaces import SHARED

USER_PLACES = [
    {"explicit": "explicit"},
    {"context": {"user_id": "context"}},
    {"settings": {"user_id": "settings"}},
    {"metadata": {"user_id": "metadata"}},
    {"settings": {"langgraph_user_id": "langgraph"}},
]
SERVERS = [
    {"settings": {"langgraph_auth_user": {"identity": "alice"}}},
    {"settings": {"langgraph_auth_user": SimpleNamespace(identity="alice")}},
    {"settings": {"langgraph_auth_user_id": "alice"}},
    {"around": {"langgraph_auth_user": {"identity": "alice"}}},
]
SESSION_PLACES = [
    {"explicit": "explicit"},
    {"context": {"session_id": "context"}},
    {"settings": {"session_id": "settings"}},
    {"metadata": {"session_id": "metadata"}},
    {"settings": {"thread_id": "thread"}},
    {"settings": {"conversation_id": "conversation"}},
    {"metadata": {"thread_id": "thread around"}},
]
NAMES = ["explicit", "context", "settings", "metadata"]


def together(places):
    """Return the arguments in which each of `places` names a user."""
    found = {"explicit": None}
    for place in places:
        for argument, value in place.items():
            both = isinstance(value, dict) and isinstance(found.get(argument), dict)
            found[argument] = {**found[argument], **value} if both else value
    return found


@pytest.mark.parametrize("first", range(len(USER_PLACES)))
def test_the_first_place_that_names_a_user_wins(first):
    names = [*NAMES, "langgraph"]
    assert user_of(**together(USER_PLACES[first:]), hint="") == names[first]


@pytest.mark.parametrize("first", range(len(SESSION_PLACES)))
def test_the_first_place_that_names_a_session_wins(first):
    names = [*NAMES, "thread", "conversation", "thread around"]
    assert session_of(**together(SESSION_PLACES[first:])) == names[first]


@pytest.mark.parametrize("wrong", ["  ", 7, b"ann", True, ["ann"], SHARED])
@pytest.mark.parametrize("first", range(len(USER_PLACES)))
def test_an_invalid_name_is_an_error_and_never_skipped(first, wrong):
    broken = together(USER_PLACES[first:])
    argument, value = next(iter(USER_PLACES[first].items()))
    if isinstance(value, dict):
        key = next(iter(value))
        broken[argument] = {**broken[argument], key: wrong}
    else:
        broken[argument] = wrong
    with pytest.raises(IdentifierError, match=r"is blank|expected text, found|is reserved"):
        user_of(**broken, hint="")


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("place", USER_PLACES[1:])
def test_the_signed_in_user_wins_and_another_name_is_an_error(place, server):
    named = together([place, server])
    with pytest.raises(IdentifierError, match=r"names another user than .* signed in"):
        user_of(**named, hint="")
    argument, value = next(iter(place.items()))
    for same in ("alice", "", None):
        named[argument] = {**named[argument], next(iter(value)): same}
        assert user_of(**named, hint="") == "alice"


@pytest.mark.parametrize("server", SERVERS)
def test_a_name_in_host_code_overrides_the_signed_in_user(server):
    assert user_of("bob", **{"context": {"user_id": "carol"}, **server}, hint="") == "bob"


def test_an_error_about_another_user_quotes_no_name():
    settings = {"langgraph_auth_user": {"identity": "alice"}, "user_id": "bob"}
    with pytest.raises(IdentifierError) as error:
        user_of(None, settings=settings, hint="")
    assert "alice" not in str(error.value)
    assert "bob" not in str(error.value)
    assert str(error.value).startswith('user_id in config["configurable"] ')


@pytest.mark.parametrize(
    "user",
    [
        {},
        {"identity": None},
        {"identity": 7},
        {"identity": " "},
        {"identity": "", "is_authenticated": True},
        SimpleNamespace(identity="", is_authenticated=True),
    ],
)
def test_a_signed_in_user_without_an_identity_is_an_error(user):
    with pytest.raises(IdentifierError, match="langgraph_auth_user"):
        user_of(None, settings={"langgraph_auth_user": user, "user_id": "bob"}, hint="")


def test_different_signed_in_users_are_an_error():
    alice, bob = {"langgraph_auth_user_id": "alice"}, {"langgraph_auth_user_id": "bob"}
    with pytest.raises(IdentifierError, match="names another user"):
        user_of(None, settings=alice, around=bob, hint="")


def test_the_user_of_a_request_is_used_outside_of_runs(monkeypatch):
    request = SimpleNamespace(user=SimpleNamespace(identity="alice"))
    utils = SimpleNamespace(get_auth_ctx=lambda: request)
    monkeypatch.setitem(sys.modules, "langgraph_api.utils", utils)
    assert signed_in() == "alice"
    assert user_of(None, hint="") == "alice"
    with pytest.raises(IdentifierError, match="names another user"):
        user_of(None, settings={"user_id": "bob"}, hint="")
    # The run's own config counts: values of an outer request may belong to an older one.
    anonymous = {"langgraph_auth_user": None, "langgraph_auth_user_id": "", "user_id": "bob"}
    assert user_of(None, settings=anonymous, hint="") == "bob"
    monkeypatch.setattr(utils, "get_auth_ctx", lambda: None)
    assert signed_in() is None


def test_an_empty_name_from_a_server_is_absent():
    anonymous = {"user_id": "", "langgraph_auth_user": None, "langgraph_auth_user_id": ""}
    assert user_of(None, settings=anonymous, metadata={"user_id": "ann"}, hint="") == "ann"
    unauthenticated = SimpleNamespace(identity="", is_authenticated=False)
    assert (
        user_of(None, settings={"langgraph_auth_user": unauthenticated, "user_id": "ann"}, hint="")
        == "ann"
    )
    anonymous = {"user_id": "", "langgraph_auth_user": SimpleNamespace(identity="")}
    with pytest.raises(IdentifierError, match=r"^the user is not known\. Say who\.$"):
        user_of(None, settings=anonymous, metadata={"user_id": ""}, hint="Say who.")
    assert session_of(None, settings={"session_id": "", "thread_id": "t"}) == "t"
    with pytest.raises(IdentifierError, match="is blank"):
        user_of("", settings={"user_id": "ann"}, hint="")


def test_an_error_names_the_place_and_not_the_value():
    with pytest.raises(
        IdentifierError, match=r"^user_id in the metadata: expected text, found dict"
    ):
        user_of(None, metadata={"user_id": {"secret": 1}}, hint="")
    with pytest.raises(IdentifierError, match=r"^session_id in the context is blank"):
        session_of(None, context={"session_id": " "}, settings={"thread_id": "t"})


def test_no_user_is_an_error_and_no_session_is_none():
    with pytest.raises(IdentifierError, match=r"^the user is not known\. Say who\.$"):
        user_of(None, hint="Say who.", context=object(), settings={}, metadata=None)
    assert session_of(None) == ""


def test_a_function_that_returns_no_user_is_an_error():
    assert given("user", lambda first, second: first + second, "a", "b") == "ab"
    assert given("user", "ann", "unused") == "ann"
    assert given("user", None) is None
    with pytest.raises(
        IdentifierError, match=r"the function user_id returned None\. Return the id of the user"
    ):
        given("user", lambda: None)


def test_thread_ids_can_be_numbers_and_uuids_but_user_ids_cannot():
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


def test_the_first_place_with_a_value_counts():
    assert first_id("user", [("here", None), ("there", " ann "), ("later", 7)]) == " ann "


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"ls_agent_type": "subagent"}, True),  # of deepagents, in a tool node of any name
        ({"checkpoint_ns": "tools:1|model:2"}, True),
        ({"checkpoint_ns": "agent:1|tools:2"}, False),
        ({"ls_agent_type": "root"}, False),
        (None, False),
    ],
)
def test_a_run_within_a_tool_is_a_delegated_one(settings, expected):
    assert RunTree().is_delegated({"configurable": settings}) is expected


@pytest.mark.parametrize(
    ("name", "reason"),
    [("s\ud800", "half of a surrogate pair"), ("s" * 1001, "1,001 characters, 1,000 are allowed")],
)
@pytest.mark.parametrize("place", SESSION_PLACES)
def test_a_session_that_no_file_can_store_or_that_is_too_long_is_refused(place, name, reason):
    (argument, value), *_ = place.items()
    bad = name if argument == "explicit" else dict.fromkeys(value, name)
    with pytest.raises(IdentifierError, match=reason):
        session_of(**{"explicit": None, argument: bad})
    assert user_of("a\ud800", hint="") == "a\ud800"


FIRST, SECOND = "1f0c9b1a-0000-6000-bffe-000000000000", "1f0c9b1a-0000-6000-8003-000000000000"


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (FIRST, SECOND, True),
        (SECOND, FIRST, False),
        (SECOND, SECOND, False),
        ("from another saver", SECOND, True),
        ("", SECOND, True),
    ],
)
def test_a_thread_begins_again_at_an_earlier_step(now, before, expected):
    settings = {"checkpoint_map": {"": now}}
    assert begins_again(settings, before) is expected
    assert not begins_again(
        {**settings, "__pregel_replay_state": SimpleNamespace(checkpoint_id=SECOND)}, before
    )
