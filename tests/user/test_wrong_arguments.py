"""Arguments of the wrong type or value: one sentence that names them, and nothing is changed."""

# ruff: noqa: DTZ001 - times without a zone are the subject

from __future__ import annotations

import asyncio
import copy
import os
import re
import time
from datetime import date, datetime, timedelta
from enum import Enum
from functools import partial
from math import inf, nan
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from pydantic import BaseModel

from tomldiary import (
    CompactionConfig,
    Constraint,
    Diary,
    DiaryError,
    InvalidValue,
    MemoryWriter,
    PreferencesPrinter,
    RetryPolicy,
    Turn,
    UnknownEntry,
    pretty_print_conversations,
    pretty_print_preferences,
)
from tomldiary.doctor.doctor import check
from tomldiary.errors import ExtractionError, IdentifierError, SchemaError, UnknownCategory
from tomldiary.evaluation import Collection, Question, compare, evaluate, evaluate_stored
from tomldiary.importers import carry_over
from tomldiary.ingest import ingest
from tomldiary.storage import FirestoreBackend, LocalBackend, PostgresBackend, RedisBackend
from tomldiary.store.store import ItemStore
from tomldiary.user.deprecated import NAMES_OF_OTHERS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from tomldiary import UserDiary


class Names(str, Enum):  # noqa: UP042 - prints its member's name, unlike StrEnum
    USER = "alice"
    SESSION = "monday"
    BLOCK = "plan"
    MESSAGE = "I love jazz."


class Untrue:
    def __bool__(self) -> bool:
        raise ValueError


class AsyncCall:
    async def __call__(self, *_: object) -> None: ...


class Diet(BaseModel):
    role: str


class Row:
    """A row of a database whose session was closed."""

    @property
    def id(self) -> str:
        raise LookupError


@pytest.fixture
def alice() -> UserDiary:
    diary = Diary("memory:", agent="rules")
    diary.register_schema("diet", Diet)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", now=datetime(2026, 5, 1, 12))
    return alice


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda alice: alice.add_turn(["a part"], "Noted.", "s"), "user_msg: expected text"),
        (lambda alice: alice.add_turn("I love jazz.", None, "s"), "assistant_msg: expected text"),
        (lambda alice: alice.add_turn("I love jazz.", "Noted.", 5), "session_id: expected text"),
        (lambda alice: alice.add_turn("I love jazz.", "Noted.", ""), "session_id: the session"),
        (lambda alice: alice.upsert_preference("likes", 5), "likes.text: expected text"),
        (lambda alice: alice.upsert_preference("likes", "caf\udce9"), r"not UTF-8 \(0xE9\)"),
        (lambda alice: alice.upsert_preference("likes", "x", contexts=[5]), "contexts: expected"),
        (lambda alice: alice.upsert_preference("likes", "x", id=5), "id: expected text"),
        (lambda alice: alice.recall(5), "query: expected text"),
        (lambda alice: alice.recall("tea", "5"), "limit: expected a whole number"),
        (lambda alice: alice.recall("tea", -1), "limit: expected a whole number"),
        (lambda alice: alice.recall("tea", kinds=["preference"]), "no kind 'preference'"),
        (lambda alice: alice.recall("tea", kinds=5), "no kind 5"),
        (lambda alice: alice.recall("tea", kinds=[["facts"]]), r"no kind \['facts'\]"),
        (lambda alice: alice.recall("tea", time_range=("soon", None)), "time_range: expec"),
        (
            lambda alice: alice.recall("tea", time_range=("2026-05-01",)),
            "time_range: expected a pair",
        ),
        (lambda alice: alice.recall("tea", valid_at=5), "valid_at: expected a time"),
        (lambda alice: alice.upsert_preference("likes", "x", now="noon"), "now: expected a time"),
        (lambda alice: alice.episodes.add("q", "a", now="noon"), "now: expected a time"),
        (lambda alice: alice.render(5), "query: expected text"),
        (lambda alice: alice.render(max_tokens=None), "max_tokens: expected a whole number"),
        (lambda alice: alice.render(token_counter=5), "token_counter: expected a function"),
        (lambda alice: alice.render(token_counter=str.split), "token_counter: it returned list"),
        (lambda alice: alice.history(5), "key: expected text"),
        (lambda alice: alice.why(5), "key: expected text"),
        (
            lambda alice: alice.why(alice.recall("tea")[0]),
            "key: expected text, found Hit. The key of a hit is its `full_key`",
        ),
        (lambda alice: alice.forget(key=alice.recall("tea")[0]), "found Hit. Give its `full_key`"),
        (lambda alice: alice.blocks[Row()], "name: expected text, found Row.$"),
        (lambda alice: alice.promote_session("s1", keys=alice.history()), "Give its `key`"),
        (lambda alice: alice.traces(alice.recall("tea")[0]), "found Hit. Give its `text`"),
        (lambda alice: alice.has_done(alice.history()[0]), "found HistoryEntry.$"),
        (lambda alice: alice.as_of(alice.history()[0]), "at: .* Give its `seq`"),
        (lambda alice: alice.history(source=alice.history()[0]), "Give the `source` of a hit, or"),
        (lambda alice: alice.forget(source=alice.history()[0]), "Give the `source` of a hit, or"),
        (
            lambda alice: alice.facts.query(Diet),
            "type: expected text, found the class Diet. Give the name of a registered type",
        ),
        (
            lambda alice: alice.facts.count(Diet),
            "type: expected text, found the class Diet. Give the name of a registered type",
        ),
        (lambda alice: alice.forget(before="soon"), "before: expected a time"),
        (lambda alice: alice.forget(before="0001-01-01T00:00:00+05:00"), "expected a time"),
        (lambda alice: alice.recall("tea", time_range=5), "time_range: expected a pair"),
        (lambda alice: alice.facts.get(5), "id: expected text"),
        (lambda alice: alice.blocks.set(5, "x"), "name: expected text"),
        (lambda alice: alice.similar("likes", 5), "text: expected text"),
        (lambda alice: alice.upsert_preference("likes", "x", session_id=5), "session_id: expected"),
        (lambda alice: alice.upsert_preference("likes", "x", actor=5), "actor: expected text"),
        (lambda alice: alice.upsert_preference("likes", "x", reason=5), "reason: expected text"),
        (lambda alice: alice.upsert_preference("likes", "x", contexts=None), "contexts: expected"),
        (
            lambda alice: alice.upsert_preference("likes", "x", fields="y"),
            "fields: expected a table",
        ),
        (
            lambda alice: alice.add_turn("I", "x", "s", operation_id=UUID(int=1)),
            "operation_id: exp",
        ),
        (
            lambda alice: alice.add_turn("I", "x", "s", steps=[("find", {"q": 1})]),
            "steps: expected",
        ),
        (lambda alice: alice.transaction(session_id=5).__enter__(), "session_id: expected text"),
        (lambda alice: alice.draft(5), "session_id: expected text"),
        (lambda alice: alice.drafts(5), "session_id: expected text"),
        (lambda alice: alice.promote_session(5), "session_id: expected text"),
        (lambda alice: alice.rollback(1, reason=5), "reason: expected text"),
        (lambda alice: alice.rollback(session_id=""), "session_id must be a non-empty string"),
        (lambda alice: alice.history(limit="3"), "limit: expected a whole number"),
        (lambda alice: alice.history(session_id=5), "session_id: expected text"),
        (lambda alice: alice.conversations("3"), "limit: expected a whole number"),
        (lambda alice: alice.consolidate(limit="3"), "limit: expected a whole number"),
        (lambda alice: alice.traces(None), "text: expected text"),
        (lambda alice: alice.blocks.append("plan", None), "plan: expected text"),
        (lambda alice: alice.blocks.get(["plan"]), "name: expected text"),
        (lambda alice: alice.episodes.list(limit="3"), "limit: expected a whole number"),
        (lambda alice: alice.episodes.messages("s", 1.5), "limit: expected a whole number"),
        (lambda alice: alice.episodes.add("q", "a", id=5), "id: expected text"),
        (lambda alice: alice.facts.count(5), "type: expected text"),
        (lambda alice: alice.facts.count("diet", ["role"]), "where: expected a table"),
        (lambda alice: alice.facts.query("diet", order_by=5), "order_by: expected text"),
        (lambda alice: alice.facts.update("diet/me", None), "changes: expected a table"),
        (lambda alice: alice.facts.commit("diet", 5), "expected a table, found int"),
        (lambda alice: alice.facts.commit("diet", ""), "expected a table, found str"),
        (
            lambda alice: alice.facts.commit({"role": "a"}),
            r'fact: expected an instance of a model, found dict\. .*: facts\.commit\("diet", \{…\}\)\.',
        ),
        (
            lambda alice: alice.facts.commit(Diet),
            "fact: expected an instance of a model, found the class Diet",
        ),
        (lambda alice: alice.facts.query("diet", {5: 5}), "where: expected text, found int"),
        (lambda alice: alice.facts.query("diet", session_id=5), "session_id: expected text"),
        (lambda alice: alice.episodes.messages(5), "session_id: expected text"),
        (lambda alice: alice.episodes.list(5), "session_id: expected text"),
        (lambda alice: alice.items.get(None), "key: expected text"),
        (lambda alice: alice.items.update("m/k", None), "expected a table, found NoneType"),
        (lambda alice: alice.items.update("m/k", {"v": [nan]}), r"m/k\.v\.0: nan is not a number"),
        (
            lambda alice: alice.items.update("m/k", {"v": {"\ud800": 1}}),
            r"m/k\.v: the text holds half of a surrogate pair",
        ),
        (
            lambda alice: alice.facts.commit("diet", {"role": "\ud800"}),
            r"diet\.role: the text holds half of a surrogate pair",
        ),
        (
            lambda alice: alice.facts.commit(Diet(role="\ud800")),
            r"diet\.role: the text holds half of a surrogate pair",
        ),
        (lambda alice: alice.similar("likes", "tea", limit=-1), "limit: expected a whole number"),
        (
            lambda alice: alice.upsert_preference("likes", "x", fields={5: 5}),
            "fields: expected text, found int",
        ),
        (lambda alice: alice.review.edit("1", {5: 5}), "fields: expected text, found int"),
        (lambda alice: alice.review.accept(5), "ids: expected text, found int. Give the `id` of"),
        (lambda alice: alice.review.edit(8, {}), "id: expected text, found int. Give the `id` of"),
        (lambda alice: alice.facts.delete(Diet(role="a")), "found Diet. Give the `id` of the fact"),
        (lambda alice: alice.episodes.get(5), "found int. Give the `id` of the episode"),
        (lambda alice: alice.episodes.delete(5), "id: expected text, found int"),
        (
            lambda alice: alice.facts.commit("diet", {"role": "a"}, source=5),
            "source: expected text",
        ),
        (lambda alice: alice.has_done(UUID(int=1)), "operation_id: expected text"),
        (lambda alice: alice.document(5), "kind: expected text"),
        (lambda alice: alice.entry("facts", "likes/pref001"), "kind: expected one of"),
        (lambda alice: alice.entry("preferences", 5), "key: expected text"),
        (lambda alice: alice.prune_history(keep=nan), "keep: expected a whole number"),
        (lambda alice: alice.prune_history(keep=0), "keep: expected a whole number"),
        (
            lambda alice: alice.facts.query(offset=-(10**5000)),
            "offset: .* found an integer of more",
        ),
        (lambda alice: alice.as_of(10**5000), "at: there is no transaction"),
        (lambda alice: alice.prune_history(keep="3"), "keep: expected a whole number"),
        (lambda alice: alice.add_turn("I", "x", "s", steps=5), "steps: expected"),
        (lambda alice: alice.add_turn("I", "x", "s", epoch=nan), "epoch: expected a whole number"),
        (lambda alice: alice.add_turn("I", "x", "s", now=""), "now: expected a time"),
        (lambda alice: alice.transaction(expected="1").__enter__(), "expected: expected a whole"),
        (
            lambda alice: alice.blocks.set("plan", "x", reason="a\ud800"),
            "reason: the text holds half",
        ),
    ],
)
def test_a_wrong_argument_is_named(
    alice: UserDiary, call: Callable[[Any], object], named: str
) -> None:
    with pytest.raises(InvalidValue, match=named):
        call(alice)
    assert alice.last_transaction() == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda alice: alice.preferences("hats"),
        lambda alice: alice.similar("hats", "tea"),
        lambda alice: alice.entry("preferences", "hats/pref001"),
        lambda alice: alice.upsert_preference("hats", "tea"),
        lambda alice: alice.upsert_preference("hats", "tea", id="pref001", create=False),
        lambda alice: alice.remove_preference("hats", "pref001"),
    ],
)
def test_a_category_that_the_table_lacks_is_named_with_the_others(
    alice: UserDiary, call: Callable[[Any], object]
) -> None:
    with pytest.raises(UnknownCategory, match=r"'?hats'?.*likes"):
        call(alice)
    assert alice.last_transaction() == 1


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda alice: alice.upsert_preference("likes", "x" * 99_999), r"likes\.text"),
        (lambda alice: alice.upsert_preference("likes", "x" * 99_999, id="pref001"), r"\.text"),
        (lambda alice: alice.upsert_preference("likes", "x", contexts=["y" * 99_999]), "contexts"),
        (
            lambda alice: alice.upsert_preference("likes", id="pref001", contexts=["y" * 99_999]),
            "contexts",
        ),
        (lambda alice: alice.upsert_preference("likes", "x", id="k" * 9_999), "an id has 1 to"),
        (lambda alice: alice.episodes.add("q", "a", id="k" * 9_999), "an id has 1 to"),
        (lambda alice: alice.upsert_preference("likes", "x", fields={"hat": 1}), "hat"),
    ],
)
def test_what_no_entry_can_hold_is_refused(
    alice: UserDiary, call: Callable[[Any], object], named: str
) -> None:
    with pytest.raises(InvalidValue, match=named):
        call(alice)
    assert alice.last_transaction() == 1


@pytest.mark.parametrize(
    ("call", "flag"),
    [
        (lambda alice, no: alice.rollback(dry_run=no), "dry_run"),
        (lambda alice, no: alice.rollback(force=no), "force"),
        (lambda alice, no: alice.prune_history(keep=1, dry_run=no), "dry_run"),
        (lambda alice, no: alice.forget(key="likes/pref001", dry_run=no), "dry_run"),
        (lambda alice, no: alice.import_(alice.export(), replace=no), "replace"),
        (lambda alice, no: alice.import_preview(alice.export(), replace=no), "replace"),
        (lambda alice, no: alice.diff_text(0, bookkeeping=no), "bookkeeping"),
        (lambda alice, no: alice.export(history=no), "history"),
        (lambda alice, no: alice.export(entries=no), "entries"),
        (lambda alice, no: alice.facts.commit("diet", {"role": "a"}, force=no), "force"),
        (lambda alice, no: alice.facts.query("diet", include_ended=no), "include_ended"),
        (lambda alice, no: alice.facts.count("diet", include_ended=no), "include_ended"),
        (lambda alice, no: alice.upsert_preference("likes", "x", create=no), "create"),
        (lambda alice, no: alice.upsert_preference("likes", "x", count_up=no), "count_up"),
        (
            lambda alice, no: alice.upsert_preference("likes", "x", session_id="s", ephemeral=no),
            "ephemeral",
        ),
        (
            lambda alice, no: alice.transaction(session_id="s", ephemeral=no).__enter__(),
            "ephemeral",
        ),
        (lambda alice, no: alice.review.accept("1", force=no), "force"),
        (lambda alice, no: alice.promote_session("s", force=no), "force"),
        (lambda alice, no: alice.consolidate(include_read=no), "include_read"),
        (lambda alice, no: alice.diary.changes(follow=no), "follow"),
        (lambda alice, no: alice.diary.hooks.add(print, name="log", strict=no), "strict"),
    ],
)
def test_a_flag_is_true_or_false(alice: UserDiary, call: Any, flag: str) -> None:
    with pytest.raises(InvalidValue, match=f"{flag}: expected True or False, found 'no'"):
        call(alice, "no")
    assert alice.last_transaction() == 1


@pytest.mark.parametrize("no", [None, 0])
def test_a_flag_is_neither_none_nor_a_number(alice: UserDiary, no: Any) -> None:
    with pytest.raises(InvalidValue, match=f"history: expected True or False, found {no}"):
        alice.export(history=no)


@pytest.mark.parametrize(
    "call",
    [
        lambda alice, column: alice.upsert_preference("likes", "x", now=column),
        lambda alice, column: alice.recall("x", column),
        lambda alice, column: alice.preferences(column),
    ],
)
def test_a_long_wrong_value_is_shown_on_one_line_and_cut(alice: UserDiary, call: Any) -> None:
    class Column:  # as of a DataFrame
        def __repr__(self) -> str:
            return "\n".join(map(str, range(1000)))

    with pytest.raises(DiaryError, match="0 1 2 3") as raised:
        call(alice, Column())
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("call", "flag"),
    [
        (lambda alice, no: alice.add_turn("I", "x", "s", episode=no), "episode"),
        (lambda alice, no: Turn("alice", "s", "I", "x", episode=no), "episode"),
        (lambda alice, no: alice.blocks.set("plan", "x", pinned=no), "pinned"),
        (lambda alice, no: alice.upsert_preference("likes", "x", fields={"pinned": no}), "pinned"),
    ],
)
@pytest.mark.parametrize("no", ["no", 0])
def test_a_flag_may_be_left_to_the_setting(
    alice: UserDiary, call: Any, flag: str, no: object
) -> None:
    with pytest.raises(InvalidValue, match=f"{flag}: expected True or False, found {no!r}"):
        call(alice, no)
    assert alice.last_transaction() == 1


@pytest.mark.parametrize(
    "options",
    [
        {"max_prefs_per_category": "3"},
        {"max_prefs_per_category": 0},
        {"max_conversations": 0},
        {"max_summary_chars": 1.5},
        {"context_turns": -1},
        {"context_turns": True},
        {"lock_timeout": "soon"},
        {"lock_timeout": inf},
        {"lock_timeout": 1e30},
        {"extraction_timeout": 1e30},
        {"lock_timeout": 10**400},
        {"lock_timeout": 10**5000},
        {"max_conversations": -(10**5000)},
        {"extraction_timeout": 0},
        {"similarity": 0.7},
        {"similarity": nan},
        {"compaction_config": {"enabled": True}},
        {"compactor": "openai-chat:gpt-5-mini"},
        {"draft_lifetime": 3600},
        {"draft_lifetime": timedelta()},
        {"quarantine": None},
        {"durability": "nope"},
        {"scorer": 5},
        {"scorer": asyncio.sleep},
        {"scorer": AsyncCall()},
        {"scorer": lambda text: 1.0},
        {"redact": AsyncCall()},
        {"quarantine": AsyncCall()},
    ],
)
def test_a_wrong_option_of_a_diary_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(options))):
        Diary("memory:", agent="rules", **options)


def test_a_fraction_as_similarity_is_told_to_be_a_percentage() -> None:
    with pytest.raises(InvalidValue, match=r"expected a percentage such as 80, found 0\.8"):
        Diary("memory:", agent="rules", similarity=0.8)
    for similarity in (0, 80, 101):
        Diary("memory:", agent="rules", similarity=similarity)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": "30"},
        {"timeout": 0},
        {"breaker_pause": "5"},
        {"takeover_interval": "10"},
        {"lease": None},
        {"retry": 3},
        {"consolidate_every": "20"},
        {"workers": 10**30},
        {"workers": 10**5000},
        {"consolidate_after": -1},
    ],
)
def test_a_wrong_option_of_a_writer_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(options))):
        MemoryWriter(Diary("memory:", agent="rules"), **options)


@pytest.mark.parametrize(
    "options",
    [{"attempts": 0}, {"attempts": "5"}, {"first_pause": nan}, {"longest_pause": None}],
)
def test_a_wrong_option_of_a_retry_policy_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(options))):
        RetryPolicy(**options)


@pytest.mark.parametrize("options", [{"segment_bytes": "1"}, {"checkpoint_interval": 0}])
def test_a_wrong_option_of_a_folder_is_named(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(options))):
        LocalBackend(tmp_path, **options)


@pytest.mark.parametrize(
    ("make", "options", "named"),
    [
        (LocalBackend, {"path": 5}, "path: expected a folder, found int"),
        (PostgresBackend, {"url": None}, "url: expected text, found NoneType"),
        (
            PostgresBackend,
            {"url": "postgresql://ann:p\udce4ss@h/x"},
            r"url: the text holds .* \(0xE4\)",
        ),
        (PostgresBackend, {"connections": "5"}, "connections: expected a whole number"),
        (PostgresBackend, {"timeout": "5"}, "timeout: expected more than 0 and at most"),
        (RedisBackend, {"url": None}, "url: expected text, found NoneType"),
        (RedisBackend, {"url": "redis://:p\udce4ss@h/0"}, r"url: the text holds .* \(0xE4\)"),
        (RedisBackend, {"prefix": None}, "prefix: expected text, found NoneType"),
        (RedisBackend, {"timeout": None}, "timeout: expected more than 0 and at most"),
        (RedisBackend, {"timeout": 1e12}, "timeout: expected more than 0 and at most"),
        (RedisBackend, {"watch": "5"}, "watch: expected 0.2 to 86,400 seconds"),
        (FirestoreBackend, {"base_path": None}, "base_path: expected text, found NoneType"),
        (FirestoreBackend, {"base_path": "a/\udce4"}, r"base_path: the text holds .* \(0xE4\)"),
        (FirestoreBackend, {"database": None}, "database: expected text, found NoneType"),
        (FirestoreBackend, {"timeout": "5"}, "timeout: expected more than 0 and at most"),
    ],
)
def test_a_wrong_option_of_a_backend_is_named(
    make: Any, options: dict[str, Any], named: str
) -> None:
    valid = {
        LocalBackend: {},
        PostgresBackend: {"url": "postgresql://localhost/memories"},
        RedisBackend: {"url": "redis://localhost/0"},
        FirestoreBackend: {"project_id": "memories"},
    }
    with pytest.raises(InvalidValue, match=named):
        make(**{**valid[make], **options})


@pytest.mark.parametrize(
    "options", [{"poll": "5"}, {"poll": nan}, {"longest_pause": None}, {"name": 5}]
)
def test_a_wrong_option_of_a_hook_is_named(alice: UserDiary, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(options))):
        alice.diary.hooks.add(print, **{"name": "index", **options})
    assert not list(alice.diary.hooks)


@pytest.mark.parametrize("name", ["../bob/blocks", "/etc/hosts", "a\0b", "\ud800", ""])
def test_a_name_that_no_document_has_is_refused(tmp_path, name):
    with pytest.raises(IdentifierError, match="cannot name a document"):
        Diary(tmp_path, agent="rules").user("alice").document(name)


@pytest.mark.parametrize("user", [5, None, UUID(int=1), ("alice",), ""])
def test_a_user_id_is_text_that_is_not_empty(alice: UserDiary, user: Any) -> None:
    with pytest.raises(IdentifierError, match="user id"):
        asyncio.run(alice.diary.preferences(user))
    assert alice.diary.users() == ["alice"]


@pytest.mark.parametrize(
    "call",
    [
        lambda diary, user: diary.last_conversations(user),
        lambda diary, user: diary.pretty_preferences(user),
        lambda diary, user: diary.pretty_conversations(user),
        lambda diary, user: diary.ensure_session(user, "s"),
        lambda diary, user: diary.build_deps(user, "s"),
        lambda diary, user: diary.update_memory(user, "s", "I love jazz.", "Noted."),
    ],
)
def test_no_coroutine_takes_anything_but_text_as_a_user(
    alice: UserDiary, call: Callable[[Diary, Any], Coroutine[Any, Any, object]]
) -> None:
    with pytest.raises(IdentifierError, match="user id"):
        asyncio.run(call(alice.diary, None))
    assert alice.diary.users() == ["alice"]


def test_the_changes_of_one_user_need_no_list(alice: UserDiary) -> None:
    for users in ("alice", ["alice"], None):
        assert [change.user for change in alice.diary.changes(users=users, follow=False)]
    for unknown, found in ((5, "a list of names, found 5"), ([5], "text, found int")):
        with pytest.raises(InvalidValue, match=f"users: expected {found}"):
            alice.diary.changes(users=cast("Any", unknown))
    with pytest.raises(IdentifierError, match="the user id is empty"):
        alice.diary.changes(users=[""])
    for poll in (0, 1e30):
        with pytest.raises(InvalidValue, match="poll: expected more than 0 seconds and at most"):
            alice.diary.changes(poll=poll)


def test_a_hook_is_asked_about_one_user_by_id_only(alice: UserDiary) -> None:
    hooks, nobody = alice.diary.hooks, cast("Any", None)
    hooks.add(print, name="index")
    with pytest.raises(IdentifierError):
        hooks.search("index", "tea", user_id=nobody)
    with pytest.raises(IdentifierError):
        hooks.reconcile("index", "")
    names: Any = [["index"], None]
    for name in names:
        with pytest.raises(InvalidValue, match="name: expected text"):
            hooks.remove(name)
    hooks.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"enabled": "no"}, "enabled: expected True or False"),
        ({"compact_preferences": None}, "compact_preferences: expected True or False"),
        ({"total_char_threshold": "5000"}, "total_char_threshold: expected a number"),
        ({"user_turn_interval": nan}, "user_turn_interval: expected a number"),
        ({"cooldown_seconds": None}, "cooldown_seconds: expected 0 or more seconds"),
        ({"schedule_at": "03:00"}, "schedule_at: expected a time such as"),
    ],
)
def test_a_wrong_option_of_a_compaction_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        CompactionConfig(**{"enabled": True, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"singleton_key": 5},
        {"required": ["role", 5]},
        {"normalise": None},
        {"limit": "3"},
        {"limit": True},
        {"ttl": 30},
    ],
)
def test_a_wrong_option_of_a_constraint_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match=next(iter(options))):
        Constraint(**options)


def test_a_table_in_place_of_a_constraint_is_named() -> None:
    diary, wrong = Diary("memory:", agent="rules"), cast("Any", {"limit": 3})
    with pytest.raises(SchemaError, match="expected a Constraint"):
        diary.constrain("blocks", wrong)
    with pytest.raises(SchemaError, match="expected a Constraint"):
        diary.register_schema("diet", Diet, wrong)


@pytest.mark.parametrize("given", [5, None, b"x"])
def test_a_block_takes_nothing_but_text_in_place_of_text(alice: UserDiary, given: Any) -> None:
    alice.blocks.set("plan", "a trip to Lyon")
    with pytest.raises(InvalidValue, match=r"blocks\.plan: expected text"):
        alice.blocks.replace("plan", "Lyon", given)
    with pytest.raises(InvalidValue, match=r"blocks\.plan: expected text"):
        alice.blocks.replace("plan", given, "Paris")
    assert alice.blocks["plan"].text == "a trip to Lyon"


def test_an_enum_of_texts_stands_for_its_text(tmp_path: Path) -> None:
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user(Names.USER)
    assert f"{alice.user_id}" == "alice"
    with MemoryWriter(diary) as writer:
        writer.submit_nowait(Turn(Names.USER, Names.SESSION, Names.MESSAGE, "Noted."))
    alice.add_turn(Names.MESSAGE, "Noted.", Names.SESSION)
    alice.blocks.set(Names.BLOCK, Names.MESSAGE, session_id=Names.SESSION)
    assert {key: item.turns for key, item in alice.conversations().items()} == {"monday": 2}
    assert alice.blocks["plan"].text == "I love jazz."
    assert alice.preferences("likes")["pref001"].created_by == "monday"
    assert alice.forget(session_id="monday").conversations == 1
    assert alice.traces("monday") == []


def test_recall_without_a_limit_returns_every_match(alice: UserDiary) -> None:
    for number in range(60):
        alice.upsert_preference("likes", f"tea number {number}")
    assert len(alice.recall("tea", None)) == len(alice.recall("tea", 100)) == 61
    assert alice.recall("tea", 0) == []


def test_a_turn_that_cannot_be_stored_never_enters_a_queue() -> None:
    diary = Diary("memory:", agent="rules")
    wrong: Any = None
    run_id: Any = UUID(int=1)
    with MemoryWriter(diary) as writer:
        given: Any = {"user_id": "alice"}
        with pytest.raises(InvalidValue, match=r"turn: expected a Turn, found dict\. Give Turn\("):
            writer.submit_nowait(given)
        with pytest.raises(InvalidValue, match="turn: expected a Turn, found dict"):
            asyncio.run(writer.submit_turn(given))
        with pytest.raises(InvalidValue, match="session_id"):
            writer.submit_nowait(Turn("alice", "", "I love jazz.", "Noted."))
        with pytest.raises(IdentifierError, match="the user id is empty"):
            Turn("", "s", "I love jazz.", "Noted.")
        with pytest.raises(InvalidValue, match="assistant_msg"):
            writer.submit_nowait(Turn("alice", "s", "I love jazz.", wrong))
        with pytest.raises(InvalidValue, match="user_id: expected text, found NoneType"):
            writer.submit_nowait(Turn(wrong, "s", "I love jazz.", "Noted."))
        with pytest.raises(InvalidValue, match="operation_id: expected text, found UUID"):
            writer.submit_nowait(Turn("alice", "s", "Jazz.", "Noted.", operation_id=run_id))
        ended: Any = "success"
        with pytest.raises(InvalidValue, match="status: expected one of completed, cancelled"):
            writer.submit_nowait(Turn("alice", "s", "Jazz.", "Noted.", status=ended))
        with pytest.raises(InvalidValue, match=r"episodes\.steps: expected the name of a tool"):
            Turn("alice", "s", "I love jazz.", "Noted.", steps=wrong)
        late: Any = "3"
        with pytest.raises(InvalidValue, match="epoch: expected a whole number"):
            writer.submit_nowait(Turn("alice", "s", "Jazz.", "Noted.", epoch=late))
        with pytest.raises(IdentifierError, match=r"a user id must be a string.* as text"):
            writer.consolidate(wrong)
        assert writer.stats()["submitted"] == 0


@pytest.mark.parametrize("given", ["memories", None])
def test_a_writer_needs_a_diary(given: Any) -> None:
    with pytest.raises(InvalidValue, match="diary: expected a Diary, found"):
        MemoryWriter(given)


class Hook:
    def apply(self, changes: Any) -> None: ...


@pytest.mark.parametrize(
    "call",
    [
        lambda diary: MemoryWriter(Diary),
        lambda diary: diary.hooks.add(Hook, name="index"),
        lambda diary: Diary("memory:", embedder=Hook),
        lambda diary: Diary("memory:", compactor=Hook),
        lambda diary: Diary("memory:", compaction_config=CompactionConfig),
    ],
)
def test_a_class_in_place_of_its_instance_is_refused(alice: UserDiary, call: Any) -> None:
    with pytest.raises(InvalidValue, match=r"is a class\. Give an instance of it: \w+\(…\)\."):
        call(alice.diary)


def test_a_writer_with_a_wrong_limit_of_time_stays_open() -> None:
    diary = Diary("memory:", agent="rules")
    writer = MemoryWriter(diary)
    receipt = writer.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted."))
    text: Any = "30"
    calls: list[Callable[[Any], object]] = [
        writer.flush,
        writer.close_sync,
        lambda limit: asyncio.run(writer.close(limit)),
        receipt.wait,
        receipt.wait_stored,
        diary.hooks.flush,
        partial(diary.hooks.remove, "x"),
        ItemStore(diary).sweeper.stop,
    ]
    for call in calls:
        for limit in (text, inf, nan, 1e30):
            with pytest.raises(InvalidValue, match="timeout: expected a number of seconds"):
                call(limit)
    with pytest.raises(InvalidValue, match="drain: expected True or False"):
        writer.close_sync(drain=cast("Any", "no"))
    assert writer.is_running
    writer.close_sync()
    assert receipt.result is not None
    assert diary.users() == ["alice"]


def test_the_number_of_conversations_is_checked_and_none_is_all(alice: UserDiary) -> None:
    for session in ("a", "b", "c", "d"):
        alice.add_turn("I love jazz.", "Noted.", session)
    read = alice.diary.last_conversations
    assert [*asyncio.run(read("alice", 2, skip_metadata=True))] == ["d", "c"]
    assert len(asyncio.run(read("alice", None, skip_metadata=True))) == 4
    for limit in (-1, cast("Any", "3")):
        with pytest.raises(InvalidValue, match="limit: expected a whole number"):
            asyncio.run(read("alice", limit))


def test_a_turn_without_a_session_asks_no_model() -> None:
    asked: list[str] = []

    async def extract(message: str, deps: Any) -> None:
        asked.append(message)

    with pytest.raises(InvalidValue, match="session_id"):
        Diary("memory:", agent=extract).user("alice").add_turn("I love jazz.", "Noted.", "")
    assert not asked


def test_a_single_context_of_an_extractor_is_not_read_letter_by_letter() -> None:
    async def extract(message: str, *, deps: Any) -> None:
        deps.upsert("likes", None, "tea", "work")

    alice = Diary("memory:", agent=extract).user("alice")
    alice.add_turn("I drink tea at work.", "Noted.", "s")
    assert alice.preferences("likes")["pref001"].contexts == ["work"]


def test_a_point_of_history_takes_no_turn(alice: UserDiary) -> None:
    with pytest.raises(DiaryError, match="cannot be changed"):
        alice.as_of(1).add_turn("I love jazz.", "Noted.", "s")
    assert alice.last_transaction() == 1


@pytest.mark.parametrize("start", [datetime(2026, 5, 1), date(2026, 5, 1), "2026-05-01"])
def test_times_may_be_datetimes_days_or_text(alice: UserDiary, start: Any) -> None:
    assert [hit.text for hit in alice.recall("tea", time_range=(start, "2026-05-02"))] == ["tea"]
    assert not alice.recall("tea", time_range=(None, start))
    assert alice.forget(before=start, dry_run=True).entries == 0
    assert alice.forget(before="2026-05-02", dry_run=True).entries == 1


def test_a_time_without_a_zone_is_utc_in_every_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TZ", "America/New_York")
    time.tzset()
    try:
        alice = Diary("memory:", agent="rules", episodes=True).user("alice")
        noon = datetime(2026, 5, 1, 12)
        alice.add_turn("I love jazz.", "Noted.", "s", now=noon)
        entry = alice.preferences("likes")["pref001"]
        assert entry.created == "2026-05-01T12:00:00.000000+00:00"
        assert alice.episodes.list()[0].created.startswith("2026-05-01T12:00:00")
        assert alice.recall("jazz", time_range=(noon, None))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_view_of_a_dry_run_says_so(alice: UserDiary) -> None:
    assert repr(alice.rollback(dry_run=True)) == "<Rollback 1 transaction would be undone, 1 entry>"
    assert "dry run" in repr(alice.forget(everything=True, dry_run=True))
    assert repr(alice.rollback()) == "<Rollback 1 transaction undone, 1 entry>"
    assert "dry run" not in repr(alice.forget(everything=True))


def test_a_time_that_no_zone_can_show_is_none_when_read(tmp_path: Path) -> None:
    diary = Diary(tmp_path, agent="rules")
    diary.user("alice").upsert_preference("likes", "tea")
    file = tmp_path / "alice" / "preferences.toml"
    stored = datetime.fromisoformat(diary.user("alice").preferences("likes")["pref001"].created)
    file.write_text(
        file.read_text("utf-8").replace(stored.isoformat(), "0001-01-01T00:00:00+05:00"), "utf-8"
    )
    alice = Diary(tmp_path, agent="rules").user("alice")
    assert not alice.recall("tea", time_range=("2020-01-01", None))
    assert [hit.text for hit in alice.recall("tea")] == ["tea"]


def test_a_key_without_its_kind_is_told_where_the_whole_key_is(alice: UserDiary) -> None:
    alice.blocks.set("persona", "a zebra")
    (hit,) = alice.recall("zebra")
    with pytest.raises(UnknownEntry, match="full_key"):
        alice.why(hit.key)
    assert alice.why(hit.full_key).text == "a zebra"


def test_an_extractor_that_returns_entries_is_told_once_that_they_are_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def listen(message: str, *, deps: Any) -> object:
        if "jazz" in deps.user_msg:
            deps.upsert("likes", None, "jazz")
        return {"tea": [], "wind": Untrue()}.get(deps.user_msg, ["jazz"])

    alice = Diary("memory:", agent=listen).user("alice")
    for said, told in (("jazz", 0), ("tea", 0), ("wind", 0), ("rain", 1), ("snow", 1)):
        alice.add_turn(said, "ok", "monday")
        assert caplog.text.count("returned a list, which is ignored") == told


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("upsert_preference", r"\. Use upsert\(category, None, text\)"),
        ("upsrt", r"\. Use upsert"),
        ("xyz", ""),
    ],
)
def test_a_mistake_in_an_extractor_is_told_with_its_line(name: str, use: str) -> None:
    def listen(message: str, *, deps: Any) -> None:
        getattr(deps, name)

    alice = Diary("memory:", agent=listen).user("alice")
    line = listen.__code__.co_firstlineno + 1
    where = rf"AttributeError in test_wrong_arguments\.py, line {line}: "
    told = rf"no attribute '{name}'{use}\)\. Nothing was changed\. Correct the code"
    with pytest.raises(ExtractionError, match=f"{where}.*{told}"):
        alice.add_turn("jazz", "ok", "monday")


def test_an_extractor_that_is_a_generator_is_an_error() -> None:
    def listen(message: str, *, deps: Any) -> Any:
        yield deps.upsert("likes", None, "jazz")

    async def hear(message: str, *, deps: Any) -> Any:
        yield deps.upsert("likes", None, "jazz")

    for extractor in (listen, hear):
        alice = Diary("memory:", agent=extractor).user("alice")
        with pytest.raises(DiaryError, match="is a generator"):
            alice.add_turn("Some jazz, please.", "Here you are.", "s")
        assert alice.last_transaction() == 0


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("recall", "diary.user(user_id).recall"),
        ("blocks", "diary.user(user_id).blocks"),
        ("search", "diary.user(user_id).recall(query)"),
        ("delete_all", "diary.user(user_id).forget(everything=True)"),
        ("update_block", "diary.user(user_id).blocks.set(name, text)"),
        ("add_hook", "hooks.add(hook, name=…)"),
        ("list_users", "users()"),
    ],
)
def test_a_name_that_a_diary_lacks_is_answered_with_the_one_to_use(alice, name, use):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'") as caught:
        getattr(alice.diary, name)
    assert str(caught.value).endswith(f". Use {use}.")


def test_names_of_other_libraries_are_answered_with_methods_of_a_user(alice):
    for name, use in NAMES_OF_OTHERS.items():
        with pytest.raises(AttributeError, match=f"no attribute '{name}'") as caught:
            getattr(alice, name)
        assert str(caught.value).endswith(f". Use {use}.")
        assert re.match(r"\w+", use)[0] in dir(alice)
    assert copy.copy(alice).user_id == "alice"


def test_a_misspelt_name_is_not_answered_with_a_private_one(alice):
    with pytest.raises(AttributeError, match=r"no attribute 'all_facts'$"):
        _ = alice.facts.all_facts


def test_a_property_that_fails_raises_its_own_error(alice, monkeypatch):
    monkeypatch.setattr(type(alice), "epoch", property(lambda _: {}.epoch))
    with pytest.raises(AttributeError, match="'dict' object has no attribute 'epoch'"):
        _ = alice.epoch


def test_a_missing_argument_is_named_with_the_method_that_was_called(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    with pytest.raises(TypeError, match=r"^UserDiary\.forget\(\) takes 1 positional argument"):
        alice.forget("walnut")
    with pytest.raises(TypeError, match=r"^UserDiary\.recall\(\) got an unexpected .* 'top_k'"):
        asyncio.run(alice.arecall("walnut", top_k=3))
    with pytest.raises(TypeError, match=r"UserDiary\.add_turn\(\) missing .* 'session_id'"):
        alice.add_turn("hello", "hi")
    with pytest.raises(TypeError, match=r"^UserBlocks\.set\(\) missing .* 'text'"):
        alice.blocks.set("persona")
    with pytest.raises(TypeError, match=r"^UserFacts\.query\(\) got an unexpected .* 'filters'"):
        alice.facts.query("diet", filters={})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quarantine": [5]}, "quarantine: expected text, found int"),
        ({"redact": [5]}, "redact: expected some of .*found 5"),
        ({"episodes": "no"}, "episodes: expected True or False, found 'no'"),
    ],
)
def test_an_option_of_a_wrong_type_is_refused(options: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Diary("memory:", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"immutable": "no"}, "immutable: expected True or False"),
        ({"singleton_key": "role", "multi_valued": 5}, "multi_valued: expected a table"),
        (
            {"singleton_key": "role", "multi_valued": {"likes": 5}},
            r"multi_valued\.likes: expected text",
        ),
    ],
)
def test_a_constraint_of_a_wrong_type_is_refused(options: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Constraint(**options)


def test_drafts_are_selected_by_texts_only(alice: UserDiary) -> None:
    for keys in (5, [5]):
        with pytest.raises(InvalidValue, match="keys: expected"):
            alice.promote_session("s", keys=cast("Any", keys))


COLLECTION = Collection("alice", [Question("tea?", frozenset({"likes/pref001"}))])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda alice, log: ingest(alice, log, "alice"), "diary: expected a Diary or a folder"),
        (lambda alice, log: ingest(alice.diary, log, "alice", format=None), "format: expected"),
        (lambda alice, log: carry_over(alice.diary, "claude-md", log), "alice: expected a user"),
        (lambda alice, log: carry_over("alice", "claude-md", log), "alice: expected a user"),
        (lambda alice, log: carry_over(alice, ["mem0"], log), "source: expected text"),
        (
            lambda alice, log: carry_over(alice, "claude-md", log, their_user=5),
            "their_user: expected text",
        ),
        (
            lambda alice, log: carry_over(alice, "claude-md", log, singletons=["diet"]),
            "singletons: expected a table",
        ),
        (lambda alice, log: check(alice), "diary: expected a Diary or a folder"),
        (lambda alice, log: check(alice.diary, 5), "users: expected a list of names"),
        (lambda alice, log: PreferencesPrinter(fields=5), "fields: expected a list of names"),
        (lambda alice, log: evaluate(log), "collections: expected the result of load_questions"),
        (lambda alice, log: evaluate([COLLECTION], alice.diary), "make_diary: expected a function"),
        (
            lambda alice, log: evaluate([COLLECTION], ks=5),
            "ks: expected a list of numbers, found 5",
        ),
        (lambda alice, log: evaluate([COLLECTION], budgets=["9"]), "budgets: expected a whole"),
        (lambda alice, log: evaluate([COLLECTION], stored_as="facts"), "stored_as: 'facts' is unk"),
        (lambda alice, log: evaluate_stored(alice, [COLLECTION]), "diary: expected a Diary or"),
        (lambda alice, log: evaluate_stored(alice.diary, log), "collections: expected the result"),
        (lambda alice, log: pretty_print_preferences(None), "prefs_toml: expected text"),
        (lambda alice, log: pretty_print_conversations(None), "convs_dict: expected a table"),
    ],
)
def test_a_wrong_argument_of_a_function_is_named(
    alice: UserDiary, tmp_path: Path, call: Callable[[Any, Any], object], named: str
) -> None:
    log = tmp_path / "log.json"
    log.write_text('[{"role": "user", "content": "I love jazz."}]')
    with pytest.raises(InvalidValue, match=named):
        call(alice, str(log))
    assert alice.last_transaction() == 1


def test_a_single_collection_is_evaluated(alice: UserDiary) -> None:
    run = evaluate_stored(alice.diary, cast("Any", COLLECTION))
    assert run.mean("mrr") == 1.0
    gold: Any = "likes/pref001"
    assert Question("tea?", gold) == COLLECTION.questions[0]
    with pytest.raises(InvalidValue, match="samples: expected a whole number of at least 1"):
        compare(run, run, "mrr", samples=0)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("recal", ". Use recall."),
        ("facts.gett", ". Use get."),
        ("blocks.sett", ". Use set."),
        ("review.acept", ". Use accept."),
        ("facts.xyz", ""),
        ("upsert_preferences", ". Use upsert_preference."),
        ("aupsert_preferences", ". Use aupsert_preference."),
        ("xyz", ""),
    ],
)
def test_a_misspelt_method_is_named_in_notebooks_too(name: str, told: str) -> None:
    alice, (*parts, missing) = Diary("memory:").user("alice"), name.split(".")
    owner = getattr(alice, parts[0]) if parts else alice
    with pytest.raises(AttributeError) as caught:
        getattr(owner, missing)
    expected = f"{type(owner).__name__!r} object has no attribute {missing!r}{told}"
    assert str(caught.value) == expected
    # Python adds a suggestion of its own only to an error with a name.
    assert (caught.value.name is None) == bool(told)
