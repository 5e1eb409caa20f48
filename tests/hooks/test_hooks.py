"""Hooks get every change, also after failures, erasures and restarts, and never hold up a write."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import BaseModel

from calls import noted_calls
from outside_index import ScriptedIndex
from six_verbs import SixVerbs
from tomldiary import Constraint, Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import (
    BackendError,
    HookError,
    InvalidValue,
    NestedTransaction,
    NotSupported,
    UnknownEntry,
)
from tomldiary.hooks.change import Change, Position
from tomldiary.hooks.delivery import Cursor, Cursors, Delivery
from tomldiary.runtime.sources import HOOKS
from tomldiary.storage.shared.database import DatabaseAway
from tomldiary.store.operations import Put
from tomldiary.store.store import ItemStore
from waiting import until

CANARY = "walnuts-canary"


@pytest.fixture(params=["memory:", "folder"])
def place(request, tmp_path):
    return request.param if request.param == "memory:" else str(tmp_path / "memories")


@pytest.fixture
def diary(place):
    with Diary(place, agent="rules") as diary:
        yield diary


@pytest.fixture
def index():
    return ScriptedIndex()


def fill(diary):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "dark roast coffee")
    alice.blocks.set("persona", "kind and brief", session_id="s2")
    alice.episodes.add("hello", "hi", session_id="s2")
    return alice


def both(alice):
    with alice.transaction():
        alice.blocks.set("persona", "other")
        alice.blocks.set("second", "block")


def test_a_hook_gets_entries_of_all_kinds_and_their_removal(diary, index):
    diary.hooks.add(index, name="index")
    alice = fill(diary)
    assert diary.hooks.flush()
    (episode,) = alice.episodes()
    assert index.texts("alice") == {
        "likes/pref001": "dark roast coffee",
        "blocks/persona": "kind and brief",
        f"episodes/{episode.id}": "hello\nhi",
    }
    alice.remove_preference("likes", "pref001")
    alice.blocks.append("persona", "and calm")
    assert diary.hooks.flush()
    assert index.texts("alice")["blocks/persona"] == "kind and brief\nand calm"
    assert "likes/pref001" not in index.texts("alice")


def test_a_hook_that_is_added_later_gets_what_is_stored_already(diary, index):
    fill(diary)
    diary.hooks.add(index, name="index")
    assert diary.hooks.flush()
    assert len(index.texts("alice")) == 3


def test_a_restart_delivers_only_what_the_hook_has_not_got(tmp_path, index):
    with Diary(tmp_path, agent="rules") as diary:
        diary.hooks.add(index, name="index")
        fill(diary)
        assert diary.hooks.flush()
    delivered = len(index.calls)
    Diary(tmp_path, agent="rules").user("alice").blocks.set("more", "text")
    with Diary(tmp_path, agent="rules") as diary:
        diary.hooks.add(index, name="index")
        assert diary.hooks.flush()
    assert index.calls[delivered:] == [["alice@0.4/blocks/more"]]


def test_a_hook_that_is_down_neither_blocks_a_write_nor_loses_it(diary, index):
    index.error = ConnectionError("down")
    diary.hooks.add(index, name="index", longest_pause=0.1)
    fill(diary)
    until(lambda: diary.hooks.stats()["index"]["failures"] > 0)
    assert not diary.hooks.flush(0.05)
    assert not index.entries
    stats = diary.hooks.stats()["index"]
    assert (stats["failing"], stats["last_error"]) == (1, "ConnectionError")
    index.error = None
    assert diary.hooks.flush()
    assert len(index.texts("alice")) == 3
    assert diary.hooks.stats()["index"]["failing"] == 0


@pytest.mark.parametrize("users", [1, 3])
def test_users_whose_changes_a_hook_refuses_delay_no_other_user(diary, monkeypatch, users):
    refused, seen = [f"refused-{number}" for number in range(users)], []

    def pause(least, most):
        return least if most <= 0.2 else 1000.0

    monkeypatch.setattr(random, "uniform", pause)

    def hook(changes):
        seen.append(changes[0].user)
        if seen[-1] in refused:
            raise ValueError

    diary.hooks.add(hook, name="log")
    for user in refused:
        diary.user(user).upsert_preference("likes", "tea")
    until(lambda: sorted(seen) == sorted(refused * 2))
    diary.user("bob").upsert_preference("likes", "tea")
    until(lambda: "bob" in seen)


def test_a_hook_that_is_down_is_called_for_a_few_of_many_users(diary, monkeypatch):
    def pause(_least, most):
        return 0.0 if most < 1.0 else 1000.0

    monkeypatch.setattr(random, "uniform", pause)
    seen = set()

    def hook(changes):
        seen.add(changes[0].user)
        raise ConnectionError

    for number in range(20):
        diary.user(f"user-{number}").blocks.set("persona", "kind")
    diary.hooks.add(hook, name="log")
    until(lambda: len(seen) == 7)
    assert not diary.hooks.flush(0.2)
    assert len(seen) == 7


def test_a_hook_is_called_again_after_a_thousand_failures():
    diary, calls = Diary("memory:", agent="rules"), []

    def hook(changes):
        calls.append(changes)
        if len(calls) <= 1030:
            raise ConnectionError

    diary.hooks.add(hook, name="log", longest_pause=1e-6)
    diary.user("alice").blocks.set("persona", "kind")
    assert diary.hooks.flush(60)
    assert len(calls) == 1031
    diary.close()


class Panic(BaseException):
    """What a library written in Rust raises when it fails, and what a cancelled task raises."""


def test_a_hook_is_called_again_after_an_error_that_is_no_exception(diary):
    calls = []

    def hook(changes):
        calls.append([change.key for change in changes])
        if len(calls) == 1:
            raise Panic

    diary.hooks.add(hook, name="rust")
    diary.user("alice").upsert_preference("likes", "tea")
    assert diary.hooks.flush(10)
    assert len(calls) >= 2
    assert "likes/pref001" in calls[-1]
    assert diary.hooks.stats()["rust"]["last_error"] == "Panic"


@pytest.mark.parametrize("strict", [False, True])
def test_what_a_hook_does_to_its_changes_does_not_change_the_memory(diary, strict):
    def hook(changes):
        for after in [change.after for change in changes if change.after]:
            after["contexts"].append("changed")
            after["text"] = "changed"

    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", contexts=["morning"])
    diary.hooks.add(hook, name="rude", strict=strict)
    alice.upsert_preference("likes", "coffee", contexts=["noon"])
    assert diary.hooks.flush(10)
    found = [(item.text, item.contexts) for item in alice.preferences("likes").values()]
    assert found == [("tea", ["morning"]), ("coffee", ["noon"])]


def test_a_write_returns_while_its_hook_is_busy(diary, index):
    index.gate.clear()
    diary.hooks.add(index, name="index")
    alice = fill(diary)
    alice.blocks.set("while", "busy")
    assert alice.blocks["while"].text == "busy"
    index.gate.set()
    assert diary.hooks.flush()
    assert index.texts("alice")["blocks/while"] == "busy"


def test_a_failing_hook_does_not_hold_up_another_one(diary, index):
    broken = ScriptedIndex()
    broken.error = OSError("no")
    diary.hooks.add(broken, name="broken")
    diary.hooks.add(index, name="index")
    fill(diary)
    until(lambda: len(index.texts("alice")) == 3)


def test_a_delivery_that_fails_half_way_is_repeated_with_the_same_ids(diary):
    seen, failures = [], [True]

    def hook(changes):
        seen.append([change.id for change in changes])
        if failures:
            failures.pop()
            raise ConnectionError

    diary.hooks.add(hook, name="log", longest_pause=0.1)
    diary.user("alice").upsert_preference("likes", "tea", now=None)
    assert diary.hooks.flush()
    assert seen == [["alice@0.1/likes/pref001"]] * 2


def test_forgetting_a_session_reaches_a_hook(diary, index):
    diary.hooks.add(index, name="index")
    alice = fill(diary)
    assert diary.hooks.flush()
    alice.forget(session_id="s2")
    assert diary.hooks.flush()
    assert index.texts("alice") == {"likes/pref001": "dark roast coffee"}


def test_forgetting_a_user_reaches_a_hook_that_was_away(place, index):
    with Diary(place, agent="rules") as diary:
        diary.hooks.add(index, name="index")
        diary.user("bob").upsert_preference("likes", "rye")
        fill(diary)
        assert diary.hooks.flush()
        diary.hooks.remove("index")
        diary.user("alice").forget(everything=True)
        assert index.texts("alice")
        diary.hooks.add(index, name="index")
        assert diary.hooks.flush()
        assert index.users() == {"bob"}
        assert diary.engine.backend.holders(HOOKS) == ["bob"]


def test_a_hook_that_does_not_return_is_named_at_the_end(diary, caplog):
    began, may_end = threading.Event(), threading.Event()

    def hangs(_):
        began.set()
        may_end.wait()

    diary.hooks.add(hangs, name="stuck")
    diary.user("alice").blocks.set("persona", "kind")
    assert began.wait(10)
    diary.hooks.close(timeout=0.01)
    may_end.set()
    assert "the hook stuck did not return within 0.01 s" in caplog.text


def test_a_user_who_comes_back_after_an_erasure_is_delivered_again(diary, index):
    diary.hooks.add(index, name="index")
    alice = fill(diary)
    assert diary.hooks.flush()
    diary.hooks.remove("index")
    alice.forget(everything=True)
    alice.blocks.set("new", "start")
    diary.hooks.add(index, name="index")
    assert diary.hooks.flush()
    assert index.texts("alice") == {"blocks/new": "start"}


def test_what_was_delivered_before_a_kill_is_erased_with_its_user(place, index):
    """A kill after the hook got its first entry, and before the cursor moved, leaves a note of the user."""
    diary = Diary(place, agent="rules")
    alice = fill(diary)
    delivery = Delivery(diary.engine, "index", index)
    moves, move = [], delivery.cursors.move

    def killed(*arguments):
        moves.append(arguments)
        if len(moves) == 2:
            raise KeyboardInterrupt
        return move(*arguments)

    delivery.cursors.move = killed
    with pytest.raises(KeyboardInterrupt):
        delivery.deliver("alice")
    assert len(index.texts("alice")) == 3
    alice.forget(everything=True)
    diary.hooks.add(index, name="index")
    assert diary.hooks.flush()
    assert not index.entries
    diary.close()


def test_a_strict_hook_that_fails_refuses_the_write(diary, index):
    diary.hooks.add(index, name="index", strict=True)
    alice = fill(diary)
    index.error = ConnectionError(CANARY)
    with pytest.raises(HookError, match=r"'index' failed \(ConnectionError\)") as failed:
        alice.upsert_preference("likes", "tea")
    assert CANARY not in str(failed.value)
    with pytest.raises(HookError):
        both(alice)
    assert [item.text for item in alice.preferences("likes").values()] == ["dark roast coffee"]
    assert alice.blocks["persona"].text == "kind and brief"
    assert alice.last_transaction() == 3


def test_a_strict_hook_that_writes_to_the_same_user_fails_at_once(diary):
    alice = diary.user("alice")
    diary.hooks.add(lambda _: alice.blocks.append("log", "x"), name="note", strict=True)
    begin = time.monotonic()
    with pytest.raises(HookError, match="NestedTransaction") as alone:
        alice.upsert_preference("likes", "tea")
    with pytest.raises(HookError, match="NestedTransaction"), alice.transaction():
        alice.upsert_preference("likes", "tea")
    assert time.monotonic() - begin < 20  # not when it could wait no longer for the lock
    assert "a strict hook cannot write" in str(alone.value.__cause__)
    assert alice.last_transaction() == 0


def test_a_strict_hook_reads_the_memory_before_the_transaction(diary):
    alice = diary.user("alice")

    def one_hour_a_day(changes):
        for change in changes:
            stored = alice.preferences("routines").values()
            if change.after and any(item.text[:3] == change.text[:3] for item in stored):
                raise ValueError

    diary.hooks.add(one_hour_a_day, name="hours", strict=True)
    alice.upsert_preference("routines", "Mon 9")
    with pytest.raises(HookError):
        alice.upsert_preference("routines", "Mon 17", id="new")
    alice.upsert_preference("routines", "Tue 9")
    assert [item.text for item in alice.preferences("routines").values()] == ["Mon 9", "Tue 9"]


def test_a_strict_hook_may_start_a_write_that_waits_for_the_one_it_checks(diary):
    alice = diary.user("alice")

    async def run():
        loop, begun = asyncio.get_running_loop(), []

        def hook(changes):
            if not begun and changes[0].key.startswith("likes/"):
                write = alice.aupsert_preference("goals", "rest")
                begun.append(asyncio.run_coroutine_threadsafe(write, loop))

        diary.hooks.add(hook, name="note", strict=True)
        await alice.aupsert_preference("likes", "tea")
        await asyncio.wrap_future(begun[0])

    asyncio.run(run())
    assert [*alice.preferences("goals")] == ["pref001"]


def test_a_strict_hook_has_an_entry_before_the_write_returns(diary, index):
    diary.hooks.add(index, name="index", strict=True)
    diary.user("alice").upsert_preference("likes", "tea")
    assert index.texts("alice") == {"likes/pref001": "tea"}


def test_a_strict_hook_gets_an_entry_of_any_part_of_a_document(diary, index):
    alice = diary.user("alice")
    diary.engine.part_size = 500
    for number in range(9):
        alice.upsert_preference("likes", f"{number} dark roast coffee")
    assert len(diary.engine.kinds("alice")) > 2
    diary.hooks.add(index, name="index", strict=True)
    assert diary.hooks.flush()
    for name in ("pref001", "pref009"):
        alice.upsert_preference("likes", f"tea {name}", id=name)
        assert index.texts("alice")[f"likes/{name}"] == f"tea {name}"
    alice.remove_preference("likes", "pref001")
    assert "likes/pref001" not in index.texts("alice")


def test_a_strict_hook_gets_nothing_of_a_change_that_waits_for_a_review(place):
    got: list[Change] = []

    class Policy:
        def apply(self, changes):
            got.extend(changes)

    with Diary(place, agent="rules", quarantine={"web"}) as diary:
        diary.hooks.add(Policy(), name="policy", strict=True)
        diary.user("alice").upsert_preference("likes", "tea", actor="web")
        assert diary.hooks.flush()
    assert not got


def test_a_strict_hook_is_brought_back_when_a_later_one_refuses(diary, index):
    other = ScriptedIndex()
    diary.hooks.add(index, name="index", strict=True)
    diary.hooks.add(other, name="other", strict=True)
    alice = fill(diary)
    assert diary.hooks.flush()
    before = dict(index.entries)
    other.error = ConnectionError()
    with pytest.raises(HookError):
        alice.blocks.set("persona", "changed")
    with pytest.raises(HookError):
        alice.upsert_preference("likes", "tea")
    other.error = None
    assert diary.hooks.flush()
    assert index.entries == other.entries == before


def test_a_strict_hook_is_brought_back_at_once_after_a_refused_block(diary, index):
    other = ScriptedIndex()
    diary.hooks.add(index, name="index", strict=True, poll=3600)
    diary.hooks.add(other, name="other", strict=True, poll=3600)
    alice = fill(diary)
    assert diary.hooks.flush()
    before = dict(index.entries)
    other.error = ConnectionError()
    with pytest.raises(HookError), alice.transaction():
        alice.blocks.set("persona", "changed")
    until(lambda: index.entries == before)


def test_a_strict_hook_loses_what_another_process_could_not_store(diary, index):
    fill(diary)
    survivor = Delivery(diary.engine, "index", index)
    survivor.deliver("alice")
    assert not survivor.is_behind("alice")
    before = dict(index.entries)
    with diary.engine.backend.lock("alice", 10):  # another process is killed before it stores
        Cursors(diary.engine.backend, "index").add_keys("alice", {"blocks/persona"})
    index.entries["alice", "blocks/persona"] = ("changed", "changed")
    assert survivor.is_behind("alice")
    survivor.deliver("alice")
    assert index.entries == before


def test_reconcile_repairs_and_counts_what_differs(diary, index):
    diary.hooks.add(index, name="index")
    fill(diary)
    assert diary.hooks.flush()
    before = dict(index.entries)
    del index.entries["alice", "likes/pref001"]
    index.entries["alice", "blocks/persona"] = ("other", "other")
    index.entries["alice", "blocks/gone"] = ("left", "left")
    index.entries["ghost", "blocks/gone"] = ("left", "left")
    repaired = diary.hooks.reconcile("index")
    assert (repaired.added, repaired.changed, repaired.removed, repaired.drift) == (1, 1, 2, 4)
    assert index.entries == before
    assert diary.hooks.reconcile("index").drift == 0


def test_rebuild_delivers_everything_anew(diary, index):
    diary.hooks.add(index, name="index")
    fill(diary)
    diary.user("bob").blocks.set("persona", "bob")
    assert diary.hooks.flush()
    before = dict(index.entries)
    assert diary.hooks.rebuild("index").added == 4
    assert index.entries == before
    diary.hooks.add(lambda changes: None, name="log")
    with pytest.raises(NotSupported, match="cannot be cleared"):
        diary.hooks.rebuild("log")


@pytest.mark.parametrize("verb", ["rebuild", "reconcile"])
def test_a_refused_repair_leaves_the_index_as_it_is(diary, index, verb):
    diary.hooks.add(index, name="index")
    fill(diary)
    assert diary.hooks.flush()
    before, diary.engine.lock_timeout = dict(index.entries), 1.0
    with diary.user("alice").transaction(), pytest.raises(NestedTransaction):
        getattr(diary.hooks, verb)("index")
    assert index.entries == before


def test_search_shows_nothing_that_the_memory_no_longer_holds(diary, index):
    diary.hooks.add(index, name="index")
    alice = fill(diary)
    alice.upsert_preference("likes", "filter coffee", id="new")
    alice.upsert_preference("likes", "coffee bars", id="new")
    assert diary.hooks.flush()
    index.gate.clear()  # the index stays behind
    alice.remove_preference("likes", "pref001")
    alice.upsert_preference("likes", "loud coffee bars", id="pref003")
    alice.forget(session_id="s2")
    found = diary.hooks.search("index", "coffee kind hello", user_id="alice")
    index.gate.set()
    assert [(each.key, each.text, each.score) for each in found] == [
        ("likes/pref002", "filter coffee", 1.0)
    ]


def test_a_hook_finds_and_keeps_no_entry_that_is_over(diary, index):
    diary.constrain("blocks", Constraint(ttl=timedelta(days=30)))
    diary.hooks.add(index, name="index")
    diary.user("alice").blocks.set("persona", "kind")
    assert diary.hooks.flush()
    assert diary.hooks.search("index", "kind", user_id="alice")
    diary.engine.now = lambda: datetime.now(UTC) + timedelta(days=31)
    assert diary.hooks.search("index", "kind", user_id="alice") == []
    assert diary.hooks.reconcile("index").removed == 1
    assert not index.entries


def test_a_hook_finds_no_item_that_has_expired(diary, index):
    diary.hooks.add(index, name="index")
    ItemStore(diary).run([Put(("alice", "trips"), "k", {"text": "kind"}, ttl=60)])
    assert diary.hooks.flush()
    assert diary.hooks.search("index", "kind", user_id="alice")
    diary.engine.now = lambda: datetime.now(UTC) + timedelta(hours=2)
    assert diary.hooks.search("index", "kind", user_id="alice") == []


class Home(BaseModel):
    who: str
    city: str


def test_a_search_of_a_hook_finds_the_facts_that_hold_now(diary, index):
    diary.register_schema("home", Home, Constraint("who", temporal=True))
    diary.hooks.add(index, name="index")
    alice = diary.user("alice")
    for year in range(2000, 2010):
        home = Home(who="user", city=f"city of {year}")
        alice.facts.commit(home, valid_from=datetime(year, 1, 1, tzinfo=UTC))
    alice.facts.commit(Home(who="user", city="Mars"), valid_from=datetime(2999, 1, 1, tzinfo=UTC))
    assert diary.hooks.flush()
    (found,) = diary.hooks.search("index", "city user", user_id="alice", limit=1)
    assert found.key == "facts/home/user@2009-01-01"
    alice.facts.update("home/user", {}, valid_to=datetime.now(UTC))
    assert diary.hooks.flush()
    assert diary.hooks.search("index", "city user", user_id="alice") == []


@pytest.mark.parametrize(("limit", "most"), [(3, 1000), (1500, 1500)])
def test_a_hook_that_always_has_more_stale_hits_is_asked_for_at_most_1000(
    diary, index, limit, most
):
    diary.hooks.add(index, name="index")
    asked = []

    def search(query, *, user, limit):
        asked.append(limit)
        assert len(asked) < 12
        return [("likes/gone", "stale", 0.5)] * limit

    index.search = search
    assert diary.hooks.search("index", "coffee", user_id="alice", limit=limit) == []
    assert max(asked) == most


def test_a_failing_hook_is_logged_once_until_it_succeeds(diary, index, caplog):
    index.error = OSError("away")
    diary.hooks.add(index, name="index", longest_pause=0.01)
    fill(diary)
    for count in (1, 2):
        wanted = diary.hooks.stats()["index"]["failures"] + 3
        until(lambda wanted=wanted: diary.hooks.stats()["index"]["failures"] >= wanted)
        assert caplog.text.count("the hook index failed (OSError") == count
        index.error = None
        assert diary.hooks.flush()
        index.error = OSError("away")
        diary.user("alice").blocks.set("persona", f"text {count}")


def test_a_removed_hook_has_ended_its_last_call(diary, index):
    index.gate.clear()
    diary.hooks.add(index, name="index")
    diary.user("alice").blocks.set("persona", "kind")
    assert index.begun.wait(20)
    threading.Timer(0.1, index.gate.set).start()
    diary.hooks.remove("index", timeout=60.0)
    assert index.calls


def test_a_hook_may_remove_itself(diary):
    errors = []

    def once(_):
        try:
            diary.hooks.remove("once")
        except Exception as error:
            errors.append(error)
            raise

    diary.hooks.add(once, name="once")
    fill(diary)
    until(lambda: not len(diary.hooks))
    assert errors == []


def test_a_flush_ends_when_its_hook_is_removed(diary, index):
    diary.hooks.add(index, name="index", poll=1000.0)
    assert diary.hooks.flush()
    asked, removed, users = threading.Event(), threading.Event(), diary.engine.backend.users

    def waiting():
        asked.set()
        assert removed.wait(60)
        return users()

    diary.engine.backend.users = waiting  # the search for changes of other processes
    with ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(diary.hooks.flush, 60.0)
        assert asked.wait(60)
        diary.hooks.remove("index", timeout=0.0)
        assert flushed.result(30) is False
        removed.set()


@pytest.mark.parametrize("limit", [1, 9])
def test_a_hook_is_searched_once_if_enough_hits_hold_or_it_has_no_more(diary, index, limit):
    diary.hooks.add(index, name="index")
    fill(diary)
    assert diary.hooks.flush()
    with noted_calls(index.search) as searches:
        assert diary.hooks.search("index", "coffee", user_id="alice", limit=limit)
    assert len(searches) == 1


def test_a_search_of_a_hook_may_return_none(diary, index):
    diary.hooks.add(index, name="index")
    index.search = lambda query, *, user, limit: None
    assert diary.hooks.search("index", "coffee", user_id="alice") == []


def test_cursors_name_no_entry_after_something_was_forgotten(tmp_path):
    with Diary(tmp_path, agent="rules") as diary:
        alice, backend = diary.user("alice"), diary.engine.backend
        with backend.lock("alice", 10):  # as a strict hook that fails leaves it
            Cursors(backend, "index").add_keys("alice", {f"blocks/{CANARY}"})
        cursor = Path(tmp_path, ".tomldiary/hooks/alice.toml")
        assert CANARY in cursor.read_text("utf-8")
        alice.forget(session_id="s1")
        assert CANARY not in cursor.read_text("utf-8")


def test_a_function_that_lost_its_cursor_is_told_of_an_erasure(tmp_path):
    got = []
    with Diary(tmp_path, agent="rules") as diary:
        alice = fill(diary)
        diary.hooks.add(got.extend, name="log")
        assert diary.hooks.flush()
        diary.hooks.remove("log")
        shutil.rmtree(tmp_path / ".tomldiary/hooks")
        alice.forget(key="blocks/persona")
        got.clear()
        diary.hooks.add(got.extend, name="log")
        assert diary.hooks.flush()
        assert got[0].is_reset
        assert {each.text for each in got[1:]} == {"dark roast coffee", "hello\nhi"}


def test_a_history_that_begins_anew_is_noticed(tmp_path, index):
    with Diary(tmp_path, agent="rules") as diary:
        diary.hooks.add(index, name="index")
        fill(diary)
        assert diary.hooks.flush()
        shutil.rmtree(tmp_path / "alice")
        alice = diary.user("alice")
        for number in range(3):
            alice.blocks.set("again", f"text {number}")
        assert diary.hooks.flush()
        assert index.texts("alice") == {"blocks/again": "text 2"}


def test_pruned_history_costs_a_hook_nothing(diary, index):
    diary.hooks.add(index, name="index")
    alice = fill(diary)
    assert diary.hooks.flush()
    diary.hooks.remove("index")
    alice.blocks.set("persona", "changed")
    alice.remove_preference("likes", "pref001")
    alice.prune_history(keep=1)
    diary.hooks.add(index, name="index")
    assert diary.hooks.flush()
    assert diary.hooks.reconcile("index").drift == 0
    assert index.texts("alice")["blocks/persona"] == "changed"


def overtake(index, alice, delivery):
    """Let another process deliver a newer state before the next changes are applied."""
    apply = index.apply

    def overtaken(changes):
        index.apply = apply
        alice.blocks.set("persona", "newest")
        delivery.deliver("alice")
        apply(changes)  # late, with the state before

    index.apply = overtaken


def test_two_deliveries_at_once_end_with_the_newest_state(place, index):
    """Another process moves the cursor while this one applies older changes."""
    diary = Diary(place, agent="rules")
    alice = fill(diary)
    first, second = (Delivery(diary.engine, "index", each) for each in (index, index))
    for each in (first, second):
        each._locks = _NoLocks()
    overtake(index, alice, second)
    first.deliver("alice")
    assert index.texts("alice")["blocks/persona"] == "newest"


def test_a_repair_is_repeated_if_another_process_delivers_meanwhile(index):
    alice = fill(Diary("memory:", agent="rules"))
    first, second = (Delivery(alice.diary.engine, "index", index) for _ in range(2))
    first.deliver("alice")
    index.entries.clear()
    overtake(index, alice, second)
    assert first.reconcile("alice").added == 3
    assert index.texts("alice")["blocks/persona"] == "newest"


class SlowToPublish(LocalBackend):
    """Logs a transaction, and lets another thread run before its documents show it."""

    def __init__(self, folder):
        super().__init__(folder)
        self.between = None

    def _publish(self, *arguments):
        if self.between is not None:
            self.between()
        return super()._publish(*arguments)


def test_a_delivery_waits_for_documents_that_lag_behind_history(tmp_path, index):
    backend = SlowToPublish(tmp_path)
    alice = Diary(backend, agent="rules").user("alice")
    alice.blocks.set("persona", "old")
    delivery = Delivery(alice.diary.engine, "index", index)
    delivery.deliver("alice")
    other = threading.Thread(target=delivery.deliver, args=["alice"])

    def meanwhile():
        other.start()
        other.join(0.3)

    backend.between = meanwhile
    alice.blocks.set("persona", "new")
    other.join(20)
    assert index.texts("alice") == {"blocks/persona": "new"}


class _NoLocks:
    def hold(self, user, timeout):
        return threading.Lock()


def test_a_cursor_moves_only_from_where_it_is_expected(diary):
    cursors = Cursors(diary.engine.backend, "index")
    one, two = (Cursor(Position(0, seq, "now")) for seq in (1, 2))
    assert cursors.move("alice", None, one)
    assert not cursors.move("alice", None, two)
    assert cursors.move("alice", one, two)
    assert cursors.of("alice") == two
    assert Cursors(diary.engine.backend, "other").of("alice") is None
    assert cursors.move("alice", two, None)
    assert diary.engine.backend.holders(HOOKS) == []


def test_changes_of_another_process_are_found_without_a_word(tmp_path, index):
    with Diary(tmp_path, agent="rules") as diary:
        diary.hooks.add(index, name="index", poll=0.05)
        Diary(tmp_path, agent="rules").user("alice").blocks.set("other", "process")
        until(lambda: index.entries)
    assert index.texts("alice") == {"blocks/other": "process"}


def test_a_user_who_cannot_be_read_keeps_back_no_other_user(tmp_path, index, monkeypatch):
    with Diary(tmp_path, agent="rules") as diary:
        for user in ("alice", "bob"):
            diary.user(user).blocks.set("persona", user)
        backend = diary.engine.backend
        read = backend.last_record

        def last_record(user):
            if user == "alice":
                raise BackendError("history cannot be read")
            return read(user)

        monkeypatch.setattr(backend, "last_record", last_record)
        diary.hooks.add(index, name="index", poll=0.05)
        until(lambda: index.entries)
        assert index.texts("bob") == {"blocks/persona": "bob"}
        until(lambda: diary.hooks.stats()["index"]["failing"] == 1)
        assert not diary.hooks.flush(0.1)


def test_a_database_that_is_away_is_asked_for_one_user_only(index, monkeypatch):
    asked = []

    def last_record(user):
        asked.append(user)
        raise BackendError("the database cannot be reached") from DatabaseAway("refused")

    with Diary("memory:", agent="rules") as diary:
        for user in ("alice", "bob"):
            diary.user(user).blocks.set("persona", user)
        monkeypatch.setattr(diary.engine.backend, "last_record", last_record)
        diary.hooks.add(index, name="index", poll=3600)
        until(lambda: diary.hooks.stats()["index"]["failures"])
    assert asked == ["alice"]


def test_a_flush_that_ends_during_a_delivery_says_so(tmp_path, index):
    with Diary(tmp_path, agent="rules") as diary:
        diary.hooks.add(index, name="index", poll=3600)
        assert diary.hooks.flush()
        Diary(tmp_path, agent="rules").user("alice").blocks.set("other", "process")
        index.gate.clear()
        assert not diary.hooks.flush(timeout=0.3)
        index.gate.set()
        assert diary.hooks.flush()
    assert index.texts("alice") == {"blocks/other": "process"}


def test_a_hook_whose_cursors_are_damaged_gets_the_whole_state(diary, index):
    fill(diary)
    delivery = Delivery(diary.engine, "index", index)
    delivery.deliver("alice")
    for damaged in ("[hooks", "hooks = 1\n", "[hooks.index]\nseq = 1\n"):
        index.entries.clear()
        diary.engine.backend.change_hidden("alice", HOOKS, lambda _text, _epoch, new=damaged: new)
        assert delivery.is_behind("alice")
        delivery.deliver("alice")
        assert index.texts("alice")["blocks/persona"] == "kind and brief"


def test_a_hook_of_a_user_without_data_keeps_no_cursor(diary):
    Delivery(diary.engine, "calls", list).deliver("alice")
    assert diary.engine.backend.holders(HOOKS) == []


def test_a_removed_hook_is_released(diary):
    index = ScriptedIndex()
    diary.hooks.add(index, name="index", strict=True)
    fill(diary)
    assert diary.hooks.flush()
    released = weakref.ref(index)
    diary.hooks.remove("index")
    del index
    gc.collect()
    assert released() is None


def test_long_and_odd_user_ids_have_cursors(tmp_path, index):
    users = ["Ä b/c", "x" * 300, "line\nbreak"]
    with Diary(tmp_path, agent="rules") as diary:
        diary.hooks.add(index, name="index")
        for user in users:
            diary.user(user).blocks.set("persona", "kind")
        assert diary.hooks.flush()
        assert diary.engine.backend.holders(HOOKS) == sorted(users)
        for user in users:
            diary.user(user).forget(everything=True)
        assert diary.hooks.flush()
        assert diary.engine.backend.holders(HOOKS) == []
    assert not index.entries


def test_wrong_arguments_and_backends_are_refused_with_a_remedy(diary, index):
    with pytest.raises(InvalidValue, match="1 to 40 characters of a-z"):
        diary.hooks.add(index, name="My Index")
    with pytest.raises(InvalidValue, match="apply"):
        diary.hooks.add(object(), name="index")
    with pytest.raises(InvalidValue, match="hook: ScriptedIndex is a class"):
        diary.hooks.add(ScriptedIndex, name="index")
    with pytest.raises(InvalidValue, match=r"a call with \(changes\) fails, missing .* 'fact_id'"):
        diary.hooks.add(lambda op, fact_id, fact: None, name="index")
    with pytest.raises(InvalidValue, match="strict: expected True or False"):
        diary.hooks.add(index, name="index", strict="no")
    diary.hooks.add(index, name="index")
    with pytest.raises(InvalidValue, match="already"):
        diary.hooks.add(index, name="index")
    with pytest.raises(UnknownEntry, match="The hooks are: index"):
        diary.hooks.reconcile("chroma")
    with pytest.raises(NotSupported, match="hooks would miss changes"):
        Diary(SixVerbs(), agent="rules").hooks.add(index, name="index")
    assert diary.hooks["index"] is index
    assert [*diary.hooks] == ["index"]
    diary.hooks.add(lambda changes: None, name="plain")
    with pytest.raises(NotSupported, match="'plain' cannot search"):
        diary.hooks.search("plain", "coffee", user_id="alice")


def test_a_hook_gets_the_last_of_several_changes_of_an_entry(diary):
    alice = diary.user("alice")
    for text in ("one", "two"):
        alice.blocks.set("persona", text)
    got = []
    diary.hooks.add(got.extend, name="log")
    assert diary.hooks.flush()
    assert [(change.seq, change.text) for change in got] == [(2, "two")]
    assert [change.text for change in diary.changes(follow=False)] == ["one", "two"]


def test_a_function_gets_each_change_once_and_a_repair_once(diary):
    found = []
    diary.hooks.add(found.extend, name="plain")
    diary.user("alice").blocks.set("one", "1")
    diary.user("alice").blocks.set("two", "2")
    assert diary.hooks.flush()
    assert [each.key for each in found] == ["blocks/one", "blocks/two"]
    diary.hooks.reconcile("plain")
    assert [(each.key, each.type) for each in found[2:]] == [
        ("", "reset"),
        ("blocks/one", "state"),
        ("blocks/two", "state"),
    ]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "hook_of", [lambda apply: apply, lambda apply: SimpleNamespace(apply=apply)]
)
def test_a_coroutine_is_no_hook_and_delivers_nothing(diary, hook_of, strict):
    async def policy(changes):
        raise ValueError(changes)

    class Policy:
        async def __call__(self, changes):
            raise ValueError(changes)

    for hook in (policy, Policy()):
        with pytest.raises(InvalidValue, match="is not awaited"):
            diary.hooks.add(hook, name="policy", strict=strict)
    hook = hook_of(lambda changes: (policy(changes),)[0])
    diary.hooks.add(hook, name="policy", strict=strict)
    if strict:
        with pytest.raises(HookError, match="TypeError"):
            fill(diary)
        assert not diary.user("alice").preferences("likes")
    else:
        fill(diary)
        until(lambda: diary.hooks.stats()["policy"]["last_error"] == "TypeError")
        assert diary.hooks.stats()["policy"]["delivered"] == 0


def test_a_change_of_the_same_state_has_the_same_digest():
    one, two = (
        Change("alice", "blocks/b", 0, seq, after={"text": "x", "_updated": "now"})
        for seq in (1, 2)
    )
    assert one.digest == two.digest
    assert Change("alice", "blocks/b", 0, 3).digest == ""
