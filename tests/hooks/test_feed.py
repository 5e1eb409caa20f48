"""The feed of changes: all changes in order, resumed from a cursor, with erasures as a reset."""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from tomldiary import Diary
from tomldiary.backends import LocalBackend, MemoryBackend
from tomldiary.errors import InvalidValue


@pytest.fixture(params=["memory:", "folder"])
def diary(request, tmp_path):
    return Diary("memory:" if request.param == "memory:" else tmp_path, agent="rules")


def keys(feed):
    return [(change.user, change.key, change.type) for change in feed]


def test_the_feed_has_every_change_with_its_state_before_and_after(diary):
    alice = diary.user("alice")
    alice.blocks.set("persona", "kind", session_id="s1", actor="me", reason="asked")
    alice.blocks.set("persona", "brief")
    alice.blocks.delete("persona")
    first, second, third = diary.changes(follow=False)
    assert (first.session, first.actor, first.reason) == ("s1", "me", "asked")
    assert (first.before, first.after["text"], first.text) == (None, "kind", "kind")
    assert (second.before["text"], second.after["text"]) == ("kind", "brief")
    assert (third.before["text"], third.after, third.text) == ("brief", None, "")
    assert [each.id for each in (first, second, third)] == [
        f"alice@0.{seq}/blocks/persona" for seq in (1, 2, 3)
    ]


def test_a_feed_without_new_changes_reads_no_history():
    class Unread(MemoryBackend):
        def records(self, user):
            assert not is_read, user
            return super().records(user)

    diary, is_read = Diary(Unread(), agent="rules"), False
    diary.user("alice").blocks.set("persona", "kind")
    feed = diary.changes(follow=False)
    assert len([*feed]) == 1
    is_read = True
    assert [*diary.changes(since=feed.cursor, follow=False)] == []


def test_a_feed_says_whether_it_waits_for_more(diary):
    storage = repr(diary.engine.backend)
    assert repr(diary.changes()) == f"Feed({storage}, follow=True)"
    assert repr(diary.changes(follow=False)) == f"Feed({storage}, follow=False)"


def test_a_feed_resumes_behind_its_cursor(diary):
    diary.user("alice").blocks.set("one", "1")
    diary.user("bob").blocks.set("one", "1")
    feed = diary.changes(follow=False)
    assert len([*feed]) == 2
    diary.user("alice").blocks.set("two", "2")
    diary.user("carol").blocks.set("one", "1")
    again = diary.changes(feed.cursor, follow=False)
    assert keys(again) == [
        ("alice", "blocks/two", "set_block"),
        ("carol", "blocks/one", "set_block"),
    ]
    assert keys(diary.changes(again.cursor, follow=False)) == []
    assert keys(diary.changes(feed.cursor, users=["carol"], follow=False)) == [
        ("carol", "blocks/one", "set_block")
    ]


def test_a_cursor_within_a_transaction_repeats_the_transaction(diary):
    alice = diary.user("alice")
    with alice.transaction():
        alice.blocks.set("one", "1")
        alice.blocks.set("two", "2")
    feed = diary.changes(follow=False)
    changes = iter(feed)
    next(changes)
    assert len(keys(diary.changes(feed.cursor, follow=False))) == 2
    next(changes)
    assert keys(diary.changes(feed.cursor, follow=False)) == []


def test_a_cursor_within_a_transaction_ignores_later_ones_without_changes(tmp_path):
    alice = Diary(tmp_path).user("alice")
    with alice.transaction():
        alice.blocks.set("one", "1")
        alice.blocks.set("two", "2")
    file = tmp_path / "alice/blocks.toml"
    file.write_text(f"# a comment\n{file.read_text()}")
    alice.blocks.set("three", "3")
    feed = Diary(tmp_path).changes(follow=False)
    assert next(changes := iter(feed)).key == "blocks/one"
    again = Diary(tmp_path).changes(feed.cursor, follow=False)
    assert [change.key for change in again] == ["blocks/one", "blocks/two", "blocks/three"]
    assert next(changes).key == "blocks/two"
    again = Diary(tmp_path).changes(feed.cursor, follow=False)
    assert [change.key for change in again] == ["blocks/three"]


def test_an_erasure_is_a_reset_and_the_entries_that_are_left(diary):
    alice = diary.user("alice")
    alice.blocks.set("stays", "1", session_id="s1")
    alice.blocks.set("goes", "2", session_id="s2")
    feed = diary.changes(follow=False)
    assert len([*feed]) == 2
    alice.forget(session_id="s2")
    again = diary.changes(feed.cursor, follow=False)
    assert keys(again) == [("alice", "", "reset"), ("alice", "blocks/stays", "state")]
    alice.forget(everything=True)
    (last,) = diary.changes(again.cursor, follow=False)
    assert last.is_reset
    assert last.user == "alice"


def test_pruned_history_begins_with_a_reset(diary):
    alice = diary.user("alice")
    for number in range(4):
        alice.blocks.set("persona", str(number))
    alice.prune_history(keep=1)
    reset, state = diary.changes(follow=False)
    assert (reset.is_reset, state.is_reset) == (True, False)
    assert state.text == "3"


def test_a_feed_begins_with_a_reset_if_only_the_first_change_was_pruned(diary):
    alice = diary.user("alice")
    alice.blocks.set("first", "1")
    alice.blocks.set("second", "2")
    alice.prune_history(keep=1)
    reset, *states = diary.changes(follow=False)
    assert reset.is_reset
    assert [each.key for each in states] == ["blocks/first", "blocks/second"]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_feed_begins_with_a_reset_if_the_next_records_are_gone(tmp_path, is_resumed):
    diary = Diary(LocalBackend(tmp_path, segment_bytes=300))
    feed = diary.changes(follow=False)
    for name in ("one", "two", "three"):
        diary.user("alice").blocks.set(name, "x" * 300)
        if is_resumed and name == "one":
            assert len(list(feed)) == 1
    for file in sorted((tmp_path / "alice/history").iterdir())[:2]:
        file.unlink()
    reset, *states = Diary(tmp_path).changes(feed.cursor, follow=False)
    assert reset.is_reset
    assert [each.key for each in states] == ["blocks/one", "blocks/two", "blocks/three"]


def test_a_feed_begins_with_a_reset_if_a_new_history_has_the_same_numbers(tmp_path):
    diary = Diary(tmp_path)
    diary.user("alice").blocks.set("one", "1")
    feed = diary.changes(follow=False)
    assert len(list(feed)) == 1
    shutil.rmtree(tmp_path / "alice")
    diary = Diary(tmp_path)
    diary.user("alice").blocks.set("two", "2")
    assert keys(diary.changes(feed.cursor, follow=False)) == [
        ("alice", "", "reset"),
        ("alice", "blocks/two", "state"),
    ]


def test_an_async_feed_ends_if_it_waits_for_nothing(diary):
    diary.user("alice").blocks.set("one", "1")

    async def run():
        return [change.key async for change in diary.changes(follow=False)]

    assert asyncio.run(asyncio.wait_for(run(), 20)) == ["blocks/one"]


def test_an_async_feed_waits_for_the_next_change(diary):
    async def run():
        feed, found = diary.changes(poll=30.0), []

        async def follow():
            async for change in feed:
                found.append(change.key)
                if len(found) == 3:
                    return

        task = asyncio.create_task(follow())
        alice = diary.user("alice")
        for name in ("one", "two", "three"):
            await alice.blocks.aset(name, "x")
            await asyncio.sleep(0.01)
        await asyncio.wait_for(task, 20)
        return found

    assert asyncio.run(run()) == ["blocks/one", "blocks/two", "blocks/three"]
    assert diary.engine.after_change == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_feed_that_waits_for_a_change_does_not_read_meanwhile(is_async):
    backend, rounds = MemoryBackend(), []
    users = backend.users
    backend.users = lambda: rounds.append(1) or users()
    diary = Diary(backend)
    blocks = diary.user("alice").blocks
    late = threading.Timer(0.1, lambda: blocks.set("three", "3"))
    blocks.set("one", "1")

    def steps(number):
        return blocks.set("two", "2") if number == 1 else late.start()

    async def run():
        changes = aiter(diary.changes(poll=30.0))
        for number in (1, 2):
            await anext(changes)
            steps(number)
        return (await anext(changes)).key

    def read():
        changes = iter(diary.changes(poll=30.0))
        for number in (1, 2):
            next(changes)
            steps(number)
        return next(changes).key

    assert (asyncio.run(run()) if is_async else read()) == "blocks/three"
    assert len(rounds) == 1


def test_a_write_of_its_process_makes_a_feed_read_one_user(diary):
    for user in ("alice", "bob", "carol"):
        diary.user(user).blocks.set("one", "1")
    feed = iter(diary.changes(poll=30.0))
    read, last_record = [], diary.engine.backend.last_record
    for _ in range(3):
        next(feed)
    diary.engine.backend.last_record = lambda user: read.append(user) or last_record(user)
    late = threading.Timer(0.1, lambda: diary.user("bob").blocks.set("two", "2"))
    late.start()
    assert next(feed).key == "blocks/two"
    assert {*read} == {"bob"}
    feed.close()


def test_a_feed_waits_at_least_as_long_as_its_last_check_took():
    backend, checks = MemoryBackend(), []
    diary, users = Diary(backend), backend.users
    diary.user("alice").blocks.set("one", "1")

    def slow():
        begin = time.monotonic()
        time.sleep(0.1)
        checks.append((begin, time.monotonic()))
        if len(checks) == 3:
            diary.user("alice").blocks.set("two", "2")
        return users()

    backend.users = slow
    feed = iter(diary.changes(poll=0.001))
    assert [next(feed).key for _ in range(2)] == ["blocks/one", "blocks/two"]
    feed.close()
    for (_, end), (begin, _) in pairwise(checks):
        assert begin - end >= 0.1


def test_a_feed_that_is_read_again_has_what_was_written_meanwhile(diary):
    blocks = diary.user("alice").blocks
    feed = diary.changes(follow=False, poll=30.0)
    assert keys(feed) == []
    blocks.set("one", "1")
    assert [change.key for change in feed] == ["blocks/one"]


def test_feeds_that_begin_and_end_in_several_threads_leave_nothing_behind():
    diary = Diary("memory:")
    diary.user("alice").blocks.set("one", "1")

    def read(_):
        for _ in range(100):
            changes = iter(diary.changes())
            next(changes)
            changes.close()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert diary.engine.after_change == []


def test_a_feed_sees_what_another_process_writes(tmp_path):
    feed = iter(Diary(tmp_path, agent="rules").changes(poll=0.05))
    Diary(tmp_path, agent="rules").user("alice").blocks.set("one", "1")
    assert next(feed).key == "blocks/one"
    Diary(tmp_path, agent="rules").user("alice").blocks.set("two", "2")
    assert next(feed).key == "blocks/two"
    feed.close()


@pytest.mark.parametrize(
    "cursor", ["", "x", "{}", "[]", '{"version": 9, "users": {}}', '{"version": 1, "users": 1}']
)
def test_what_is_no_cursor_is_refused(diary, cursor):
    with pytest.raises(InvalidValue, match="cursor of a feed"):
        diary.changes(cursor)
