"""Transactions: all or nothing over all documents, one lock, nesting, repetition, expectation."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from types import ModuleType

import pytest

from tomldiary import Conflict, Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import (
    DiaryError,
    LimitReached,
    LockTimeout,
    NestedTransaction,
    RevisionConflict,
)
from tomldiary.history.record import Source, parse_record
from tomldiary.runtime.async_bridge import OwnThread, in_thread
from tomldiary.storage.locks import UserLocks
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path, agent="rules", durability="process", lock_timeout=5)


def texts(diary, user="alice"):
    return [item.text for item in diary.user(user).preferences("likes").values()]


def records(tmp_path, user="alice"):
    return [parse_record(text) for text in reversed(list(LocalBackend(tmp_path).records(user)))]


def test_a_transaction_covers_all_documents(diary, tmp_path):
    with diary.user("alice").transaction(session_id="s", actor="me", reason="moving in") as tx:
        tx.upsert_preference("likes", "tea")
        tx.upsert_preference("goals", "rest")
        asyncio.run(diary.ensure_session("alice", "s"))
        tx.add_turn("I love coffee.", "ok", "s")
    (record,) = records(tmp_path)
    assert (record.session, record.actor, record.reason) == ("s", "me", "moving in")
    assert set(record.results) == {"preferences", "conversations"}
    assert texts(diary) == ["tea", "I love coffee."]
    assert diary.user("alice").conversations()["s"].turns == 1


def test_a_call_within_a_block_is_not_repeated_alone(diary):
    engine, tried = diary.engine, []
    engine.lock_timeout = 0.01

    def overtaken(tx):
        tried.append(tx)
        raise RevisionConflict.of(tx.user)

    with diary.user("alice").transaction() as block:
        with pytest.raises(RevisionConflict):
            engine.transact("alice", Source("transaction"), overtaken)
        assert len(tried) == 1
        block.upsert_preference("likes", "tea")
    with pytest.raises(RevisionConflict):
        engine.transact("alice", Source("transaction"), overtaken)
    assert len(tried) > 2
    assert texts(diary) == ["tea"]


def test_an_error_in_a_transaction_changes_nothing(diary, tmp_path):
    diary.user("alice").upsert_preference("likes", "tea")
    before = (tmp_path / "alice/preferences.toml").read_bytes()

    def failing():
        with diary.user("alice").transaction() as tx:
            tx.upsert_preference("likes", "coffee")
            tx.forget_preference("likes", "pref001")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert (tmp_path / "alice/preferences.toml").read_bytes() == before
    assert len(records(tmp_path)) == 1


def test_a_transaction_alone_reads_its_own_writes(diary, tmp_path):
    alice = diary.user("alice")
    with alice.transaction() as tx:
        tx.upsert_preference("likes", "tea")
        assert texts(diary) == ["tea"]
        assert [hit.text for hit in tx.recall("tea")] == ["tea"]
        assert "tea" in tx.render()
        tx.upsert_preference("likes", "green tea", id="pref001")
        assert texts(diary) == ["green tea"]
        assert texts(Diary(tmp_path, agent="rules")) == []
        seen = []
        thread = threading.Thread(target=lambda: seen.append(texts(diary)))
        thread.start()
        thread.join()
        assert seen == [[]]
    assert texts(Diary(tmp_path, agent="rules")) == ["green tea"]


def test_a_transaction_begins_while_another_thread_imports_asyncio(diary, monkeypatch):
    alice = diary.user("alice")
    monkeypatch.setitem(sys.modules, "asyncio", ModuleType("asyncio"))  # still empty
    with alice.transaction():
        alice.upsert_preference("likes", "tea")
    assert [item.text for item in alice.preferences("likes").values()] == ["tea"]


def test_a_nested_transaction_is_part_of_the_outer_one(diary, tmp_path):
    alice = diary.user("alice")
    with alice.transaction(reason="outer") as tx:
        tx.upsert_preference("likes", "tea")
        with diary.user("alice").transaction(reason="inner") as inner:
            inner.upsert_preference("likes", "coffee")
    assert [record.reason for record in records(tmp_path)] == ["outer"]
    assert texts(diary) == ["tea", "coffee"]


def test_a_nested_transaction_has_its_own_session_and_actor(tmp_path):
    alice = Diary(tmp_path, agent="rules", quarantine={"web"}).user("alice")
    with alice.transaction(session_id="outer", actor="agent"):
        with alice.transaction(session_id="inner"):
            alice.blocks.set("persona", "brief")
        with alice.transaction(actor="web:page"):
            alice.upsert_preference("likes", "casinos")
        alice.upsert_preference("likes", "tea")
    assert [item.text for item in alice.preferences("likes").values()] == ["tea"]
    assert [change.origin for change in alice.review()] == ["web:page"]
    assert alice.forget(session_id="inner").entries == 1
    assert alice.traces("brief") == []
    assert alice.preferences("likes")["pref001"].created_by == "outer"


def test_a_transaction_goes_on_after_one_of_another_diary(diary, tmp_path):
    other = Diary("memory:", agent="rules")
    with diary.user("alice").transaction():
        with other.user("alice").transaction() as tx:
            tx.upsert_preference("likes", "rum")
        diary.user("alice").upsert_preference("likes", "tea")  # joins the outer one
    assert len(records(tmp_path)) == 1
    assert (texts(diary), texts(other)) == (["tea"], ["rum"])


def test_the_loop_runs_while_an_async_transaction_waits_for_a_call_to_end(diary):
    began, released = threading.Event(), threading.Event()

    def change(_):
        began.set()
        assert released.wait(4)

    async def main():
        async with diary.user("alice").atransaction():
            call = asyncio.to_thread(diary.engine.write, "alice", change, Source("set"))
            waiting = asyncio.create_task(call)
            await asyncio.to_thread(began.wait, 4)
            asyncio.get_running_loop().call_later(0.01, released.set)
        await waiting

    asyncio.run(main())


def test_an_error_undoes_a_nested_transaction_alone(diary, tmp_path):
    alice = diary.user("alice")
    alice.blocks.set("persona", "stored")

    def fail():
        with alice.transaction():
            alice.upsert_preference("likes", "undone")
            alice.upsert_preference("dislikes", "undone")
            alice.blocks.append("persona", "undone")
            raise ValueError("half way")

    with alice.transaction() as tx:
        tx.upsert_preference("likes", "before")
        with pytest.raises(ValueError, match="half way"):
            fail()
        tx.upsert_preference("likes", "after")
        assert texts(diary) == ["before", "after"]
    assert texts(diary) == ["before", "after"]
    assert alice.blocks["persona"].text == "stored"
    assert not [path for path in tmp_path.rglob("*.toml") if "undone" in path.read_text()]


@pytest.mark.parametrize("call", ["import", "promote", "accept"])
def test_a_call_that_fails_half_way_in_a_transaction_changes_nothing(tmp_path, call):
    diary = Diary(tmp_path, agent="rules", max_prefs_per_category=2, quarantine={"web"})
    alice, bob = diary.user("alice"), diary.user("bob")
    bob.blocks.set("persona", "brief")
    for text in ("tea", "coffee"):
        bob.upsert_preference("likes", text)
        held = {"session_id": "s", "ephemeral": True} if call == "promote" else {"actor": "web"}
        alice.upsert_preference("likes", text, **held)
    alice.upsert_preference("likes", "milk")
    calls = {
        "import": lambda: alice.import_(bob.export()),
        "promote": lambda: alice.promote_session("s"),
        "accept": lambda: alice.review.accept(*[change.id for change in alice.review()]),
    }
    waiting = len(alice.review()), len(alice.drafts())
    with alice.transaction():
        with pytest.raises(DiaryError):
            calls[call]()
        alice.upsert_preference("goals", "rest")
    assert (texts(diary), alice.last_transaction()) == (["milk"], 4)
    assert (len(alice.blocks()), len(alice.review()), len(alice.drafts())) == (0, *waiting)


def test_a_transaction_refuses_other_users(diary):
    with diary.user("alice").transaction():
        with pytest.raises(NestedTransaction, match="another user"):
            diary.user("bob").upsert_preference("likes", "tea")
        with pytest.raises(NestedTransaction), diary.user("bob").transaction():
            pass
        assert texts(diary, "bob") == []  # reading is free


def test_other_writers_wait_for_the_end_of_a_transaction(diary):
    order = []
    inside = threading.Event()

    def other():
        inside.wait()
        diary.user("alice").upsert_preference("likes", "second")
        order.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    with diary.user("alice").transaction() as tx:
        inside.set()
        thread.join(0.1)
        tx.upsert_preference("likes", "first")
        order.append("block")
    thread.join()
    assert order == ["block", "other"]
    assert texts(diary) == ["first", "second"]


def test_two_tasks_of_one_loop_exclude_each_other(diary):
    async def work(name, steps):
        async with diary.user("alice").atransaction() as tx:
            for number in range(steps):
                known = len(await tx.apreferences("likes"))
                await asyncio.sleep(0)
                await tx.aupsert_preference("likes", f"{name} {number} {known}")

    async def both():
        await asyncio.gather(*(work(f"task {n}", 5) for n in range(6)))

    asyncio.run(both())
    found = texts(diary)
    assert len(found) == 30
    assert [text.split()[-1] for text in found] == [
        str(n) for n in range(30)
    ]  # nothing interleaved


def test_a_transaction_of_a_task_joins_the_one_around_it(diary):
    alice = diary.user("alice")

    async def nested():
        async with alice.atransaction(), alice.atransaction():
            await alice.aupsert_preference("likes", "inside")
            assert alice.last_transaction() == 0

    asyncio.run(nested())
    assert alice.last_transaction() == 1


def test_a_transaction_may_end_in_another_thread(diary):
    alice = diary.user("alice")
    block = alice.transaction()

    def begin():
        block.__enter__()
        alice.upsert_preference("likes", "tea")

    with ThreadPoolExecutor() as threads:  # as a dependency of FastAPI that yields
        threads.submit(copy_context().run, begin).result()
        threads.submit(copy_context().run, block.__exit__, None, None, None).result()
    assert texts(diary) == ["tea"]
    assert alice.last_transaction() == 1


def test_threads_with_a_copy_of_the_context_lose_nothing_in_a_transaction(diary):
    """LangGraph runs the tool calls of one answer in such threads, all at once."""
    begun, meanwhile = threading.Event(), threading.Event()
    engine, alice = diary.engine, diary.user("alice")

    def slow(tx):
        begun.set()
        assert not meanwhile.wait(0.1)
        tx.edit("blocks").put(("blocks", "one"), {"text": "1"})

    def fast(tx):
        meanwhile.set()
        tx.edit("blocks").put(("blocks", "two"), {"text": "2"})

    with ThreadPoolExecutor() as threads:
        with alice.transaction():
            calls = [threads.submit(copy_context().run, engine.write, "alice", slow, Source("x"))]
            begun.wait(20)
            calls.append(
                threads.submit(copy_context().run, engine.write, "alice", fast, Source("x"))
            )
        for call in calls:  # they may end after the block
            call.result()
    assert len(alice.blocks) == len(calls)


def test_a_call_in_a_transaction_may_write_in_another_thread_and_wait_for_it(tmp_path):
    diary = Diary(tmp_path, agent="rules", durability="process", lock_timeout=0.1)
    alice = diary.user("alice")

    def of_one_call(old):
        alice.add_turn("I love tea.", "ok", "s")
        return {"n": 1}

    def of_two_calls(_):
        with ThreadPoolExecutor() as threads, pytest.raises(LockTimeout, match="another thread"):
            threads.submit(beside.run, alice.upsert_preference, "likes", "rum").result()

    def of_an_older_context(_):
        beside.run(alice.upsert_preference, "likes", "gin")
        alice.add_turn("I love cake.", "ok", "s")

    with alice.transaction():
        beside = copy_context()
        ItemStore(diary).update(("alice", "counts"), "turns", of_one_call)
        diary.engine.write("alice", of_two_calls, Source("test"))
        diary.engine.write("alice", of_an_older_context, Source("test"))
    assert texts(diary) == ["I love tea.", "gin", "I love cake."]


@pytest.mark.parametrize("is_nested", [True, False])
def test_parallel_tools_use_a_transaction_one_after_the_other(diary, is_nested):
    """Each may have a block of its own, of which an error undoes nothing else, or add a turn."""
    alice = diary.user("alice")

    def tool(number):
        if not is_nested:
            alice.add_turn(f"I love tea {number}.", "ok", f"s{number}")
            return
        with suppress(ZeroDivisionError), alice.transaction(session_id=f"s{number}"):
            alice.upsert_preference("likes", f"tea {number}")
            started.wait(0.05)
            started.set()
            1 / (number % 2)

    started = threading.Event()
    with alice.transaction(), ThreadPoolExecutor() as threads:
        for done in [threads.submit(copy_context().run, tool, number) for number in range(4)]:
            done.result()
    sessions = {item.created_by for item in alice.preferences("likes").values()}
    assert sessions == ({"s1", "s3"} if is_nested else {"s0", "s1", "s2", "s3"})
    assert alice.last_transaction() == 1


def test_a_search_and_a_put_in_two_threads_of_a_transaction_end(diary):
    """Both need the transaction and the store's guard of its listing, so they must take them in one order."""
    alice, store, begun = diary.user("alice"), ItemStore(diary), threading.Event()
    diary.engine.lock_timeout = 1
    store.run([Put(("alice", "notes"), "one", {"n": 1})])

    def search():
        begun.set()
        return store.run([Search(("alice", "notes"))])[0]

    def put(_):
        found.append(threads.submit(beside.run, search))
        begun.wait(20)
        with suppress(TimeoutError):
            found[0].result(0.05)
        store.run([Put(("alice", "notes"), "two", {"n": 2})])

    found = []
    with ThreadPoolExecutor() as threads, alice.transaction():
        beside = copy_context()
        diary.engine.write("alice", put, Source("test"))
        assert len(found[0].result()) == 2


def test_a_tool_in_a_thread_may_add_a_turn_while_the_task_of_the_transaction_waits(diary):
    alice, begun, ended = diary.user("alice"), threading.Event(), threading.Event()
    diary.engine.lock_timeout = 1

    def tool():
        with alice.transaction(session_id="s"):
            begun.set()
            assert not ended.wait(0.05)
            alice.add_turn("I love tea.", "ok", "s")

    async def main():
        async with alice.atransaction():
            job = asyncio.create_task(asyncio.to_thread(tool))
            await asyncio.to_thread(begun.wait, 20)
            await alice.aupsert_preference("likes", "rum")
            ended.set()
            await job

    asyncio.run(main())
    assert texts(diary) == ["I love tea.", "rum"]


def test_a_transaction_adds_a_turn_while_many_threads_wait_to_add_theirs(diary, monkeypatch):
    """They must not keep all threads of the loop that it needs."""
    alice, waiting, lock = diary.user("alice"), threading.Semaphore(0), diary.engine.backend.lock
    diary.engine.lock_timeout = 5

    def counted(user, timeout):
        waiting.release()
        return lock(user, timeout)

    with ThreadPoolExecutor(40) as threads:
        with alice.transaction():
            monkeypatch.setattr(diary.engine.backend, "lock", counted)
            add = partial(alice.add_turn, "I love tea.", "ok", "s")
            others = [threads.submit(add) for _ in range(40)]
            assert all(waiting.acquire(timeout=20) for _ in range(5))  # a loop has at least five
            alice.add_turn("I love rum.", "ok", "s")
        for done in others:
            done.result()
    assert texts(diary) == ["I love rum.", "I love tea."]


def test_a_task_may_write_after_it_left_a_generator_with_a_transaction(diary):
    alice = diary.user("alice")

    async def edits():
        async with alice.atransaction():
            await alice.aupsert_preference("likes", "unfinished")
            yield

    async def main():
        generator = edits()
        await anext(generator)
        await asyncio.create_task(generator.aclose())  # as the loop does with one that is left
        await alice.aupsert_preference("likes", "tea")

    asyncio.run(main())
    assert texts(diary) == ["tea"]


def test_a_stop_iteration_in_the_thread_of_a_transaction_ends_its_call():
    async def work():
        await asyncio.wait_for(OwnThread().run(lambda: next(iter([]))), 5)

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        asyncio.run(work())


def test_a_task_started_in_a_transaction_is_not_part_of_it(diary):
    diary.engine.lock_timeout = 0.05

    async def outer():
        async with diary.user("alice").atransaction() as tx:
            await tx.aupsert_preference("likes", "inside")
            child = asyncio.create_task(diary.user("alice").aupsert_preference("likes", "child"))
            with pytest.raises(LockTimeout):
                await child
            assert await asyncio.create_task(diary.user("alice").apreferences("likes")) == {}

    asyncio.run(outer())
    assert texts(diary) == ["inside"]


def test_a_cancelled_wait_for_the_lock_leaves_it_free(diary):
    async def main():
        alice = diary.user("alice")
        async with alice.atransaction():
            waiting = asyncio.create_task(_enter(alice))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await asyncio.sleep(0.05)
        await alice.aupsert_preference("likes", "free")

    async def _enter(alice):
        async with alice.atransaction():
            pytest.fail("it was cancelled")

    asyncio.run(main())
    assert texts(diary) == ["free"]


def test_a_write_that_is_cancelled_before_it_begins_stores_nothing(diary):
    waiting, released = threading.Event(), threading.Event()

    def late():
        waiting.set()
        released.wait(20)  # as for the lock of the user
        diary.user("alice").upsert_preference("likes", "given up")

    async def main():
        call = asyncio.create_task(in_thread(late))
        await asyncio.to_thread(waiting.wait, 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        released.set()
        await diary.user("alice").aupsert_preference("likes", "tea")

    asyncio.run(main())  # it ends after the threads of its loop
    assert texts(diary) == ["tea"]


def test_what_a_cancelled_call_started_may_write_after_its_end(diary):
    begun, cancelled, ended = threading.Event(), threading.Event(), threading.Event()
    threads = []

    def write():
        ended.wait(20)
        diary.user("alice").upsert_preference("likes", "tea")

    def start():
        threads.append(threading.Thread(target=copy_context().run, args=(write,)))
        threads[0].start()
        begun.set()
        cancelled.wait(20)

    async def main():
        call = asyncio.create_task(in_thread(start))
        await asyncio.to_thread(begun.wait, 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        cancelled.set()

    asyncio.run(main())  # it ends after the threads of its loop
    ended.set()
    threads[0].join()
    assert texts(diary) == ["tea"]


def test_a_repeated_operation_has_one_effect_also_after_a_restart(diary, tmp_path):
    for handle in (diary, diary, Diary(tmp_path, agent="rules")):
        with handle.user("alice").transaction(operation_id="op-1") as tx:
            tx.upsert_preference("likes", "tea")
    assert len(records(tmp_path)) == 1
    assert diary.user("alice").preferences("likes")["pref001"].count == 1


def test_an_operation_id_used_for_other_content_is_a_conflict(diary, tmp_path):
    with diary.user("alice").transaction(operation_id="op-1") as tx:
        tx.upsert_preference("likes", "tea")
    with (
        pytest.raises(Conflict, match="'op-1' was used for different content"),
        diary.user("alice").transaction(operation_id="op-1") as tx,
    ):
        tx.upsert_preference("likes", "coffee")
    assert texts(diary) == ["tea"]
    with diary.user("bob").transaction(operation_id="op-1") as tx:
        tx.upsert_preference("likes", "coffee")
    assert texts(diary, "bob") == ["coffee"]


def test_a_stale_expected_sequence_is_a_conflict(diary):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    seen = alice.last_transaction()
    with alice.transaction(expected=seen) as tx:
        tx.upsert_preference("likes", "coffee")
    with pytest.raises(Conflict, match="Read again"), alice.transaction(expected=seen):
        pytest.fail("the block must not run")
    assert texts(diary) == ["tea", "coffee"]


def test_a_hand_edit_during_a_transaction_is_merged(diary, tmp_path):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    with alice.transaction() as tx:
        tx.upsert_preference("likes", "coffee")
        file.write_text(file.read_text().replace('"tea"', '"green tea"  # by hand'))
    assert texts(diary) == ["green tea", "coffee"]
    assert "# by hand" in file.read_text()


def test_a_failing_verb_can_be_caught_in_a_transaction(tmp_path):
    diary = Diary(tmp_path, agent="rules", max_prefs_per_category=1)
    with diary.user("alice").transaction() as tx:
        tx.upsert_preference("likes", "tea")
        with pytest.raises(LimitReached):
            tx.upsert_preference("likes", "coffee")
        tx.upsert_preference("goals", "rest")
    assert texts(diary) == ["tea"]
    assert len(diary.user("alice").preferences("goals")) == 1


def test_a_transaction_without_a_change_writes_nothing(diary, tmp_path):
    with diary.user("alice").transaction(operation_id="x") as tx:
        tx.preferences()
    assert not (tmp_path / "alice").exists()


def test_waiting_tasks_cannot_block_the_holder_of_the_lock(
    tmp_path,
):
    diary = Diary(tmp_path, agent="rules", durability="process", lock_timeout=20)
    alice = diary.user("alice")

    async def one(number):
        async with alice.atransaction():
            await asyncio.sleep(0)
            await alice.aupsert_preference("likes", f"thing {number}")

    async def main():
        # Two threads: all of the shared threads wait for the lock.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        await asyncio.gather(
            *(one(number) for number in range(20)),
            *(alice.aupsert_preference("likes", f"plain {number}") for number in range(20)),
        )

    asyncio.run(main())
    assert len(alice.preferences("likes")) == 40


def test_a_cancelled_commit_keeps_the_lock_until_it_is_stored(tmp_path, monkeypatch):
    diary = Diary(tmp_path, agent="rules", durability="process")
    alice = diary.user("alice")
    at_it, go_on = threading.Event(), threading.Event()
    real = diary.engine.backend.commit

    def slow(user, commit):
        at_it.set()
        assert go_on.wait(20)
        return real(user, commit)

    async def store():
        async with alice.atransaction():
            alice.upsert_preference("likes", "tea")

    async def main():
        with monkeypatch.context() as patch:
            patch.setattr(diary.engine.backend, "commit", slow)
            task = asyncio.create_task(store())
            await asyncio.to_thread(at_it.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        diary.engine.lock_timeout = 0.05
        with pytest.raises(LockTimeout):
            await alice.aupsert_preference("likes", "coffee")
        go_on.set()
        diary.engine.lock_timeout = 20
        await alice.aupsert_preference("likes", "coffee")

    asyncio.run(main())
    assert [item.text for item in alice.preferences("likes").values()] == ["tea", "coffee"]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_call_that_begins_after_its_transaction_was_cancelled_has_no_effect(tmp_path, is_async):
    diary = Diary(tmp_path, agent="rules", durability="process", lock_timeout=1)
    alice = diary.user("alice")
    at_it, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    told, logged = [], []

    def late(user):
        """A verb whose thread is slow to begin."""
        at_it.set()
        assert go_on.wait(20)
        try:
            user.upsert_preference("likes", "tea")
        except DiaryError as error:
            told.append(str(error))
            raise
        finally:
            ended.set()

    async def store():
        if is_async:
            async with alice.atransaction():
                await in_thread(late, alice)
        else:
            with alice.transaction():
                await in_thread(late, alice)

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, about: logged.append(about))
        task = asyncio.create_task(store())
        await asyncio.to_thread(at_it.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await asyncio.to_thread(ended.wait, 20)
        await alice.aupsert_preference("likes", "coffee")
        gc.collect()  # asyncio logs an error that was not read

    asyncio.run(main())
    assert logged == []
    assert told == [
        "the transaction was cancelled before this call began. Nothing of it was stored; begin a new transaction."
    ]
    assert [item.text for item in alice.preferences("likes").values()] == ["coffee"]


def test_the_lock_goes_to_the_longest_waiting_task():
    queue = UserLocks(None).stripe(0)
    assert queue.acquire("first")
    order, threads = [], []

    def wait(name):
        assert queue.acquire(name, timeout=20)
        order.append(name)
        queue.release(name)

    for number in range(3):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        while len(queue._waiting) <= number and threads[-1].is_alive():
            pass
    queue.release("first")
    queue.acquire("again")  # a writer in a loop asks again at once
    order.append("again")
    queue.release("again")
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, "again"]


def test_a_long_hold_makes_no_writer_of_other_users_wait(tmp_path, monkeypatch):
    locks, pauses = UserLocks(tmp_path), []
    with locks.hold("alice", 1.0):
        threading.Event().wait(0.15)
    monkeypatch.setattr(time, "sleep", pauses.append)
    with locks.hold("bob", 1.0):
        assert pauses == []
    with locks.hold("alice", 1.0):
        assert len(pauses) == 1  # other processes may wait for this lock


def test_an_interrupt_at_the_end_of_a_lock_releases_it(tmp_path, monkeypatch):
    locks, pid, interrupts = UserLocks(tmp_path), os.getpid(), []

    def getpid():
        if interrupts:
            raise interrupts.pop()
        return pid

    monkeypatch.setattr("os.getpid", getpid)
    with pytest.raises(KeyboardInterrupt), locks.hold("alice", 0):
        interrupts.append(KeyboardInterrupt)
    for each in (locks, UserLocks(tmp_path)):
        with each.hold("alice", 0.1):
            pass


def test_a_task_that_stops_waiting_is_skipped():
    queue = UserLocks(None).stripe(0)
    assert queue.acquire("first")
    for late in ("second", "third"):
        assert not queue.acquire(late, 0.01)
        queue.release(late)
    queue.release("first")
    assert queue.acquire("fourth", 0.01)


def test_an_operation_of_a_removed_user_is_done_again(tmp_path):
    diary = Diary(tmp_path, agent="rules", durability="process")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "rum")
    for _ in range(2):
        with alice.transaction(operation_id="order 1"):
            alice.upsert_preference("likes", "tea", id="tea")
    assert alice.preferences("likes")["tea"].count == 1
    shutil.rmtree(tmp_path / "alice")
    alice.upsert_preference("goals", "rest")
    with alice.transaction(operation_id="order 1"):
        alice.upsert_preference("likes", "tea", id="tea")
    assert list(alice.preferences("likes")) == ["tea"]


def test_a_gathered_write_in_a_transaction_is_told_what_it_waits_for(tmp_path):
    alice = Diary(tmp_path, agent="rules", durability="process", lock_timeout=0.2).user("alice")

    async def main():
        async with alice.atransaction() as tx:
            await asyncio.gather(tx.aupsert_preference("likes", "tea"))

    with pytest.raises(
        LockTimeout, match=r"started inside a transaction waits until.* In coroutines write"
    ):
        asyncio.run(main())
    assert alice.last_transaction() == 0


CALLS = {
    "rollback": lambda diary, alice: alice.rollback(),
    "rollback, dry run": lambda diary, alice: alice.rollback(dry_run=True),
    "turn with an id": lambda diary, alice: alice.add_turn(
        "I love tea.", "", "s", operation_id="t"
    ),
    "reconcile": lambda diary, alice: diary.hooks.reconcile("log"),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_be_part_of_a_transaction_is_refused_at_once(diary, name):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    diary.hooks.add(lambda changes: None, name="log")
    diary.hooks.flush()
    with alice.transaction():
        with pytest.raises(NestedTransaction):
            CALLS[name](diary, alice)
        alice.upsert_preference("likes", "coffee")
    assert texts(diary) == ["tea", "coffee"]
    diary.close()
