"""Errors cross processes: each is pickled and copied with its message and its fields."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from pydantic import BaseModel

from tomldiary import Constraint, Diary, LimitReached, errors

MADE = [
    errors.BackendError("the disk is full"),
    errors.Conflict("changed", keys=["likes/pref001"], where="a.toml", expected=1, hint="Again."),
    errors.HandEditConflict.busy("a.toml", 3.0),
    errors.HistoryPruned(5, "2026-05-01"),
    errors.ImmutableEntry("facts/diet/me"),
    errors.InvalidTOML("expected a value", path="a.toml", line=3, column=7),
    errors.InvalidValue("expected text, found int", where="likes.text"),
    errors.LimitReached("likes", 100, "max_prefs_per_category"),
    errors.LockTimeout("another writer holds the lock"),
    errors.MissingExtra("recall", "embeddings"),
    errors.UnknownCategory("like", ["likes", "dislikes"]),
    errors.UnknownEntry("likes/pref001", "The entries are: none."),
    errors.WeakClaim("facts/diet/me", 0.9, 0.1),
]


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])  # the oldest and the newest
def test_an_error_keeps_its_message_and_fields(error, protocol):
    pickled = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - our own bytes
    for again in (pickled, copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_a_star_import_brings_all_errors_and_nothing_else():
    names = {}
    exec("from tomldiary.errors import *", names)  # noqa: S102 - a star import at the top of a module is no test
    defined = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.DiaryError)
    }
    assert names.keys() - {"__builtins__"} == defined


def test_a_key_with_control_characters_is_escaped_in_the_message():
    alice = Diary("memory:", agent="rules").user("alice")
    with pytest.raises(errors.UnknownEntry) as refused:
        alice.why("likes/\x1b[31m\u202e")
    assert str(refused.value).startswith(r"'likes/\x1b[31m\u202e' does not exist.")
    assert refused.value.where == "likes/\x1b[31m\u202e"


@pytest.mark.parametrize(
    "name",
    [
        "10\u00a0€",
        "メモ\u3000帳",
        "👨\u200d👩\u200d👧",
        "می\u200cخواهد",
        "\ue000",
        "\U000323b0",
        "a\n\tb",
    ],
)
def test_visible_characters_are_unchanged_in_messages(name):
    assert str(errors.InvalidValue("no such file", where=name)) == f"{name}: no such file"


@pytest.mark.parametrize(
    "name", ["\x1b[31m", "\r", "\x9b", "\u202e", "\u2028", "\udcff", "\U000e0041"]
)
def test_characters_that_a_terminal_obeys_or_hides_are_escaped_in_messages(name):
    escaped = repr(name)[1:-1]
    assert str(errors.InvalidValue("no such file", where=name)) == f"{escaped}: no such file"
    assert str(errors.UnknownEntry("a", f"Write items/{name}.")).endswith(f"Write items/{escaped}.")


def test_control_characters_of_field_names_and_keys_are_escaped_in_messages():
    class Guest(BaseModel):
        name: str

    diary = Diary("memory:", agent="rules")
    diary.register_schema("guest", Guest, Constraint(singleton_key="name", immutable=True))
    alice = diary.user("alice")
    with pytest.raises(errors.InvalidValue) as refused:
        alice.facts.commit("guest", {"name": "Ann", "\x1b[31m\u202e": 1})
    assert str(refused.value).startswith(r"guest.\x1b[31m\u202e: Guest has no such field.")
    assert refused.value.where == "guest.\x1b[31m\u202e"
    alice.facts.commit(Guest(name="\x1b[2J"))
    with pytest.raises(errors.ImmutableEntry, match=r"^facts/guest/\\x1b\[2J is never changed"):
        alice.facts.delete("guest/\x1b[2J")


def test_an_empty_key_is_visible_in_the_message():
    alice = Diary("memory:", agent="rules").user("alice")
    with pytest.raises(errors.UnknownEntry, match=r"^'' does not exist\. A key is "):
        alice.why("")


@pytest.mark.parametrize(
    "call",
    [
        lambda alice, name: alice.why(name),
        lambda alice, name: alice.blocks[name],
        lambda alice, name: alice.remove_preference("likes", name),
        lambda alice, name: alice.facts.query(name),
        lambda alice, name: alice.preferences(name),
        lambda alice, name: alice.recall("tea", kinds=[name]),
        lambda alice, name: alice.as_of(name),
    ],
)
def test_an_error_quotes_the_beginning_of_a_long_name(call):
    alice = Diary("memory:", agent="rules").user("alice")
    with pytest.raises(errors.DiaryError) as refused:
        call(alice, "k" * 5_000)
    assert "kkk" in str(refused.value)
    assert len(str(refused.value)) < 500


def fill(folder):
    alice = Diary(folder, agent="rules", max_prefs_per_category=1).user("alice")
    alice.upsert_preference("likes", "tea")
    alice.upsert_preference("likes", "a long walk")


def test_an_error_of_a_worker_process_reaches_its_parent(tmp_path):
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        refused = pool.submit(fill, tmp_path)
        with pytest.raises(LimitReached, match="likes is full") as told:
            refused.result(timeout=60)
    assert (told.value.where, told.value.limit) == ("likes", 1)
