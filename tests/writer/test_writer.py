"""The writer: no turn lost or out of order, from any thread, loop or process, until the very end."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import gc
import logging
import os
import random
import threading
import time
import tracemalloc
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from unittest.mock import Mock

import pytest
from pydantic import BaseModel

import programs
from processes import newest_thread
from tomldiary import Diary, MemoryWriter, PreferenceItem, shutdown_all_background_tasks
from tomldiary.backends import LocalBackend
from tomldiary.errors import (
    BackendError,
    Conflict,
    ExtractionError,
    Forgotten,
    IdentifierError,
    InvalidValue,
    WriterBusy,
)
from tomldiary.extraction.operations import Applied
from tomldiary.writer import Receipt, Turn, background_tasks, fire_and_forget

LONG = 120  # seconds; nothing waits that long unless it is broken


class Table(BaseModel):
    """likes : what the person enjoys"""

    likes: dict[str, PreferenceItem] = {}


def run(work):
    return asyncio.run(work)


class Remembering:
    """An extractor that takes a few milliseconds and stores what the user said."""

    async def run(self, message, *, deps):
        await asyncio.sleep(random.uniform(0.001, 0.005))
        deps.upsert("likes", None, deps.user_msg, ())


def diary_at(folder, agent=None, **options):
    return Diary(
        folder, Table, agent=agent or Remembering(), max_prefs_per_category=1000,
        durability="process", **options,
    )  # fmt: skip


def texts(diary, user):
    found = diary.user(user).preferences().values()
    return [item.text for items in found for item in items.values()]


def turn(text, user="alice", session="s"):
    return Turn(user, session, text, "ok")


class Gated:
    """A duck-typed diary whose turns wait until the test lets them through, one at a time or all."""

    def __init__(self):
        self.applied = []
        self.started = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    async def update_memory(self, user_id, session_id, user_msg, assistant_msg, *, context_now):
        self.started.release()
        await asyncio.to_thread(self.may_end.acquire, timeout=LONG)
        self.applied.append(user_msg)

    def wait_until_started(self, count=1):
        for _ in range(count):
            assert self.started.acquire(timeout=LONG)

    def let_through(self, count=1000):
        self.may_end.release(count)


class Plain:
    """A duck-typed diary that applies at once."""

    def __init__(self):
        self.applied = []

    async def update_memory(self, user_id, session_id, user_msg, assistant_msg, *, context_now):
        if user_msg == "fail":
            raise ValueError("her secret")
        self.applied.append((user_id, session_id, user_msg, assistant_msg, context_now))


@pytest.fixture
def gated():
    diary = Gated()
    yield diary
    diary.let_through()


# Nothing lost, everything in order


def test_turns_of_40_users_are_in_order_for_each(tmp_path):
    diary = diary_at(tmp_path)
    with MemoryWriter(diary, workers=8, qsize=300) as writer:
        for number in range(3):
            for user in range(40):
                writer.submit_nowait(turn(f"turn {number}", f"user {user}"))
    expected = [f"turn {number}" for number in range(3)]
    assert {user: texts(diary, user) for user in diary.users()} == {
        f"user {user}": expected for user in range(40)
    }


def test_one_user_has_at_most_one_worker():
    busy, overlaps = defaultdict(int), []

    class Watching:
        async def update_memory(self, user_id, *rest, context_now):
            busy[user_id] += 1
            if busy[user_id] > 1:
                overlaps.append(user_id)
            await asyncio.sleep(0)
            busy[user_id] -= 1

    with MemoryWriter(Watching(), workers=8) as writer:
        for number in range(200):
            writer.submit_nowait(turn(f"{number}", f"user {number % 3}"))
    assert overlaps == []


def test_workers_apply_turns_of_different_users_in_parallel(tmp_path):
    """Also by plain functions, which need a thread each, on a machine with few cores."""
    everybody = threading.Barrier(40)

    def meet(message, *, deps):
        everybody.wait(LONG)

    with MemoryWriter(Diary("memory:", agent=meet), workers=40) as writer:
        receipts = [writer.submit_nowait(turn("hi", f"user {number}")) for number in range(40)]
        for receipt in receipts:
            receipt.wait(LONG)


def test_no_user_waits_behind_all_turns_of_a_busy_user(gated):
    with MemoryWriter(gated, workers=1) as writer:
        writer.submit_nowait(turn("slow 0", "busy"))
        gated.wait_until_started()
        for number in range(1, 50):
            writer.submit_nowait(turn(f"slow {number}", "busy"))
        writer.submit_nowait(turn("quick", "other"))
        gated.let_through()
    assert gated.applied[:3] == ["slow 0", "quick", "slow 1"]
    assert len(gated.applied) == 51


# From wherever it is used


def test_a_writer_works_without_an_event_loop(tmp_path):
    diary = diary_at(tmp_path)
    writer = MemoryWriter(diary)
    receipt = writer.submit_nowait(turn("tea"))
    assert receipt.wait(LONG) == Applied(applied=1)
    assert writer.flush(LONG)
    assert texts(diary, "alice") == ["tea"]
    writer.close_sync()


def test_one_writer_serves_one_event_loop_after_another():
    diary = Plain()
    writer = MemoryWriter(diary)

    async def submit(text):
        return await (await writer.submit("alice", "s", text, "ok"))

    for number in range(3):
        run(submit(f"{number}"))
    assert run(writer.close())["completed"] == 3
    assert [text for _, _, text, _, _ in diary.applied] == ["0", "1", "2"]


def test_one_writer_serves_several_event_loops_and_threads_at_once():
    diary = Plain()
    together = threading.Barrier(4)
    failures = []

    def guarded(target):
        def work():
            try:
                together.wait(LONG)
                target()
            except BaseException as error:  # noqa: BLE001 - shown by the test
                failures.append(error)

        return threading.Thread(target=work)

    async def in_a_loop(name):
        for number in range(50):
            receipt = await writer.submit(name, "s", f"{number}", "ok")
        await receipt

    def without_a_loop(name):
        for number in range(50):
            receipt = writer.submit_nowait(turn(f"{number}", name))
        receipt.wait(LONG)

    with MemoryWriter(diary, workers=3) as writer:
        threads = [guarded(lambda n=name: run(in_a_loop(n))) for name in ("a", "b")]
        threads += [guarded(lambda n=name: without_a_loop(n)) for name in ("c", "d")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
    assert failures == []
    for name in ("a", "b", "c", "d"):
        assert [text for user, _, text, _, _ in diary.applied if user == name] == [
            f"{number}" for number in range(50)
        ]


def test_blocking_calls_work_inside_a_running_event_loop(tmp_path):
    diary = diary_at(tmp_path)

    async def cell():
        writer = MemoryWriter(diary)
        first = writer.submit_nowait(turn("tea"))
        assert first.wait(LONG).applied == 1  # holds this loop, not the writer's
        second = await writer.submit("alice", "s", "juice", "ok")
        assert (await asyncio.to_thread(second.wait, LONG)).applied == 1
        assert writer.flush(LONG)
        assert writer.close_sync()["completed"] == 2

    run(cell())
    assert texts(diary, "alice") == ["tea", "juice"]


def test_a_turn_sees_no_context_variable_of_the_request_that_submitted_it():
    request = contextvars.ContextVar("request", default="none")
    seen = []

    class Looking:
        async def update_memory(self, user_id, *rest, context_now):
            seen.append((user_id, request.get()))
            request.set(user_id)

    request.set("start")
    with MemoryWriter(Looking(), workers=1) as writer:
        for user in ("alice", "bob", "carol"):
            request.set(f"request of {user}")
            writer.submit_nowait(turn("hi", user))
    assert seen == [("alice", "start"), ("bob", "start"), ("carol", "start")]


def test_both_forms_of_a_turn_are_equivalent():
    diary = Plain()

    async def use():
        async with MemoryWriter(diary) as writer:
            await writer.submit("alice", "s", "hello", "hi")
            await writer.submit("alice", "s", user_msg="hello", assistant_msg="hi")
            await writer.submit(
                user_id="alice", session_id="s", user_message="hello", assistant_response="hi"
            )
            with pytest.raises(TypeError, match="assistant_msg"):
                await writer.submit("alice", "s", "hello")
            with pytest.raises(TypeError, match="user_msg"):
                await writer.submit("alice", "s", assistant_response="hi")
        return writer.stats()["submitted"]

    assert run(use()) == 3
    assert diary.applied == [("alice", "s", "hello", "hi", None)] * 3


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"qsize": 0}, {"workers": "2"}])
def test_a_writer_without_workers_or_capacity_is_refused(wrong):
    with pytest.raises(InvalidValue, match=f"{next(iter(wrong))}: expected a whole number"):
        MemoryWriter(Plain(), **wrong)


def test_any_object_with_update_memory_is_a_diary():
    diary = Plain()
    with MemoryWriter(diary) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "hello", "hi"))
        assert receipt.wait(LONG) is None
    assert diary.applied == [("alice", "s", "hello", "hi", None)]


def test_an_update_memory_that_cannot_take_a_turn_is_refused(tmp_path):
    class Untimed(Diary):
        async def update_memory(self, user_id, session_id, user_msg, assistant_msg):  # pyright: ignore[reportIncompatibleMethodOverride]
            raise AssertionError

    with pytest.raises(InvalidValue, match=r"update_memory: a call with .* 'context_now'"):
        MemoryWriter(Untimed(tmp_path))


def test_an_overridden_update_memory_is_honoured(tmp_path):
    class Louder(Diary):
        async def update_memory(self, user_id, session_id, user_msg, assistant_msg, **more):
            await super().update_memory(
                user_id, session_id, user_msg.upper(), assistant_msg, **more
            )

    diary = Louder(tmp_path, Table, agent=Remembering())
    with MemoryWriter(diary) as writer:
        writer.submit_nowait(turn("tea"))
    assert texts(diary, "alice") == ["TEA"]

    replaced = diary_at(tmp_path)
    replaced.update_memory = Plain().update_memory
    with MemoryWriter(replaced) as writer:
        assert writer.submit_nowait(turn("juice")).wait(LONG) is None
    assert texts(replaced, "alice") == ["TEA"]


# A full queue


def fill(writer, gated):
    """Give the one worker a turn, and fill the queue behind it."""
    writer.submit_nowait(turn("working"))
    gated.wait_until_started()
    for number in range(writer.stats()["queue_capacity"]):
        writer.submit_nowait(turn(f"queued {number}"))


async def waiting(writer, *names, user="alice"):
    """Return tasks that wait in line for room."""
    tasks = [asyncio.create_task(writer.submit(user, "s", name, "ok")) for name in names]
    await asyncio.sleep(0)  # each ran until it had to wait
    assert not any(task.done() for task in tasks)
    return tasks


def test_when_the_queue_is_full_submit_waits_and_submit_nowait_raises(gated):
    async def use():
        async with MemoryWriter(gated, workers=1, qsize=2) as writer:
            fill(writer, gated)
            with pytest.raises(WriterBusy, match="2 turns waiting"):
                writer.submit_nowait(turn("refused"))
            (task,) = await waiting(writer, "waited")
            stats = writer.stats()
            assert (stats["submitted"], stats["queue_size"], stats["queue_utilization"]) == (
                3,
                2,
                1,
            )
            assert not task.done()
            gated.let_through()
            await (await task)

    run(use())
    assert gated.applied == ["working", "queued 0", "queued 1", "waited"]


def test_turns_blocked_by_a_full_queue_keep_their_order():
    diary = Plain()

    async def use():
        async with MemoryWriter(diary, workers=2, qsize=2) as writer:
            await asyncio.gather(
                *(writer.submit("alice", "s", f"{number}", "ok") for number in range(200))
            )

    run(use())
    assert [text for _, _, text, _, _ in diary.applied] == [f"{number}" for number in range(200)]


def test_a_new_turn_does_not_overtake_blocked_turns(gated):
    async def use():
        async with MemoryWriter(gated, workers=1, qsize=1) as writer:
            fill(writer, gated)
            tasks = await waiting(writer, "first", "second")
            gated.let_through(1)
            gated.wait_until_started()  # its place in the queue is used at once
            with pytest.raises(WriterBusy):
                writer.submit_nowait(turn("newcomer"))
            gated.let_through()
            await asyncio.gather(*tasks)

    run(use())
    assert gated.applied == ["working", "queued 0", "first", "second"]


def test_a_turn_whose_fencing_token_cannot_be_read_takes_no_time_of_its_session():
    diary = Diary("memory:", agent="rules")
    diary.engine.backend.epoch = Mock(side_effect=BackendError("down"))
    with MemoryWriter(diary) as writer:
        with pytest.raises(BackendError):
            writer.submit_nowait(turn("I like tea."))
        with pytest.raises(BackendError):
            asyncio.run(writer.submit_turn(turn("I like tea.")))
    assert diary.sessions.take("alice", "s")[0] == ""


def fill_while_busy(writer, begun):
    """Fill the queue of a writer whose only worker waits, so that no turn leaves it later; return the last receipt."""
    receipt = writer.submit_nowait(turn("queued"))
    assert begun.wait(LONG)
    with suppress(WriterBusy):
        while True:
            receipt = writer.submit_nowait(turn("queued"))
    return receipt


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_a_turn_that_waits_in_memory_is_applied_though_the_writer_closes(tmp_path, place):
    begun, gate = threading.Event(), threading.Event()

    def wait(message, *, deps):
        begun.set()
        assert gate.wait(LONG)

    diary = Diary("memory:" if place == "memory" else tmp_path, agent=wait, episodes=True)
    writer = MemoryWriter(diary, workers=1, qsize=1)
    last = fill_while_busy(writer, begun)
    if place == "folder":
        last.wait_stored(LONG)
    before = writer.stats()
    receipts = [writer.submit_later(turn(text)) for text in ("first", "second")]
    stats, stored = writer.stats(), [each.is_stored for each in receipts]
    gate.set()
    writer.close_sync()
    for name in ("submitted", "pending", "queue_size", "loss_window"):
        assert stats[name] == before[name] + 2, name
    assert stored == [False, False]
    inputs = [one.input for one in diary.user("alice").episodes.list("s")]
    assert inputs == [*["queued"] * (len(inputs) - 2), "first", "second"]


def test_a_turn_that_is_submitted_again_after_it_found_no_space_begins_at_the_same_time(tmp_path):
    begun, gate = threading.Event(), threading.Event()

    def wait(message, *, deps):
        begun.set()
        assert gate.wait(LONG)

    async def cancel(writer):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.submit_turn(turn("second")), 0.05)

    diary, spans = Diary(tmp_path, agent=wait), []
    take = diary.sessions.take

    def taken(user, session):
        spans.append(take(user, session))
        return spans[-1]

    diary.sessions.take = taken
    with MemoryWriter(diary, workers=1, qsize=1) as writer:
        fill_while_busy(writer, begun)
        for _ in range(2):  # the first may still have found space
            writer.submit_later(turn("first"))
        first = spans[-1]
        with pytest.raises(WriterBusy):
            writer.submit_nowait(turn("second"))
        asyncio.run(cancel(writer))
        writer.submit_later(turn("second"))
        gate.set()
    assert len(spans[spans.index(first) :]) == 4
    assert spans[-1][0] == first[1]


@pytest.mark.parametrize("refusal", ["closed", "closed meanwhile", "conflict", "full", "repeated"])
def test_an_entry_of_a_tool_is_not_counted_again_after_a_refused_submit(tmp_path, files, refusal):
    begun, gate = threading.Event(), threading.Event()

    def fail(_name, path, *_):
        if "journal" in str(path):
            raise OSError(errno.ENOSPC, "full")

    async def close_during_submit():
        waiting = asyncio.create_task(writer.submit_turn(turn("I like tea.")))
        await asyncio.sleep(0)  # it waits for space
        await asyncio.to_thread(writer.close_sync, 0)
        with pytest.raises(RuntimeError, match="closed"):
            await waiting

    def listen(message, *, deps):
        begun.set()
        assert gate.wait(LONG)
        if "tea" in deps.user_msg:
            deps.upsert("likes", None, deps.user_msg)

    diary = Diary(LocalBackend(tmp_path, files=files), agent=listen)
    alice, first = diary.user("alice"), ("alice", "s", "Hello.", "ok")
    writer = MemoryWriter(diary, workers=1, qsize=1)
    writer.submit_nowait(Turn(*first, operation_id="first"))
    assert begun.wait(LONG)
    alice.upsert_preference("likes", "I like tea.", session_id="s", actor="agent")
    if refusal == "repeated":
        writer.submit_nowait(Turn(*first, operation_id="first"))
    elif refusal == "conflict":
        with pytest.raises(Conflict):
            writer.submit_nowait(Turn("alice", "s", "Good evening.", "ok", operation_id="first"))
    elif refusal == "full":
        files.hook = fail
        with pytest.raises(BackendError):
            writer.submit_nowait(turn("I like tea.")).wait(LONG)
        files.hook = None
    elif refusal == "closed meanwhile":
        writer.submit_nowait(Turn("bob", "s", "queued", "ok"))
        asyncio.run(close_during_submit())
    gate.set()
    writer.close_sync()
    if refusal == "closed":
        with pytest.raises(RuntimeError, match="closed"):
            writer.submit_nowait(turn("I like tea."))
    with MemoryWriter(diary) as other:
        other.submit_nowait(turn("I like tea."))
    assert [each.count for each in alice.preferences("likes").values()] == [1]


@pytest.mark.parametrize("is_down", [False, True])
def test_a_turn_that_waits_in_memory_does_not_hold_its_caller_for_a_slow_storage(
    tmp_path, monkeypatch, is_down
):
    begun, gate, here = threading.Event(), threading.Event(), threading.get_ident()

    def wait(message, *, deps):
        begun.set()
        assert gate.wait(LONG)

    diary = Diary(tmp_path, agent=wait, episodes=True)
    with MemoryWriter(diary, workers=1, qsize=1) as writer:
        fill_while_busy(writer, begun)
        backend, reading = diary.engine.backend, threading.Event()
        epoch, read_by = backend.epoch, []

        def slow(user):
            reader = threading.current_thread()
            read_by.append(reader.ident)
            if reader.name.startswith("tomldiary-epoch"):
                assert reading.wait(LONG)
                if is_down:
                    raise BackendError("down")
            return epoch(user)

        monkeypatch.setattr(backend, "epoch", slow)
        receipts = [writer.submit_later(turn(text)) for text in ("first", "second")]
        by_caller = here in read_by
        reading.set()
        try:
            if is_down:
                for receipt in receipts:
                    with pytest.raises(BackendError):
                        receipt.wait_stored(5)
                with pytest.raises(BackendError):
                    asyncio.run(asyncio.wait_for(writer.submit_turn(turn("third")), LONG))
        finally:
            gate.set()
    assert not by_caller
    said = {one.input for one in diary.user("alice").episodes.list("s")}
    assert said == ({"queued"} if is_down else {"queued", "first", "second"})
    stats = writer.stats()
    assert stats["failed"] == 3 * is_down
    assert stats["submitted"] == stats["completed"] + stats["failed"]


def test_an_erasure_refuses_a_turn_that_began_to_wait_just_before(tmp_path, monkeypatch):
    begun, gate, reading = threading.Event(), threading.Event(), threading.Event()

    def wait(message, *, deps):
        begun.set()
        assert gate.wait(LONG)

    diary = Diary(tmp_path, agent=wait, episodes=True)
    alice, epoch = diary.user("alice"), diary.engine.backend.epoch

    def slow(user):
        if threading.current_thread().name.startswith("tomldiary-epoch"):
            assert reading.wait(LONG)
        return epoch(user)

    with MemoryWriter(diary, workers=1, qsize=1) as writer:
        fill_while_busy(writer, begun)
        monkeypatch.setattr(diary.engine.backend, "epoch", slow)
        receipt = writer.submit_later(turn("zebra"))
        erasing = threading.Thread(target=alice.forget, kwargs={"matching": "zebra"})
        erasing.start()
        erasing.join(0.05)  # it waits, and would end before the token of the turn is read
        reading.set()
        erasing.join()
        gate.set()
        with pytest.raises(Forgotten):
            receipt.wait(LONG)
    assert "zebra" not in [one.input for one in alice.episodes.list("s")]


def test_a_turn_that_waits_no_longer_is_not_read_for(tmp_path, monkeypatch):
    """Each read of a database that is down would delay the end of the program."""
    begun, gate, reading = threading.Event(), threading.Event(), threading.Event()

    def wait(message, *, deps):
        begun.set()
        assert gate.wait(LONG)

    async def cancel(writer):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.submit_turn(turn("cancelled", "bob")), 0.05)

    diary = Diary(tmp_path, agent=wait)
    with MemoryWriter(diary, workers=1, qsize=1) as writer:
        fill_while_busy(writer, begun)
        backend, read = diary.engine.backend, []
        epoch = backend.epoch

        def slow(user):
            if threading.current_thread().name.startswith("tomldiary-epoch"):
                read.append(user)
                assert reading.wait(LONG)
            return epoch(user)

        monkeypatch.setattr(backend, "epoch", slow)
        writer.submit_later(turn("first"))
        asyncio.run(cancel(writer))
        last = writer.submit_later(turn("last", "carol"))
        reading.set()
        gate.set()
        assert last.wait(LONG)
    assert read == ["alice", "carol"]


def test_a_submit_cancelled_while_waiting_admits_the_next_one(gated):
    async def use():
        async with MemoryWriter(gated, workers=1, qsize=1) as writer:
            fill(writer, gated)
            first, second, third = await waiting(writer, "first", "second", "third")
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            gated.let_through()
            await asyncio.gather(second, third)
        return writer.stats()

    assert run(use())["submitted"] == 4
    assert gated.applied == ["working", "queued 0", "second", "third"]


def test_a_submit_cancelled_on_admission_withdraws_its_turn(gated):
    async def use():
        async with MemoryWriter(gated, workers=1, qsize=1) as writer:
            fill(writer, gated)
            first, second = await waiting(writer, "first", "second")
            gated.let_through(1)
            gated.wait_until_started()  # while this loop is held: "first" is queued and does not know
            assert writer.stats()["submitted"] == 3
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            gated.let_through()
            await second
        return writer.stats()

    stats = run(use())
    assert (stats["submitted"], stats["completed"]) == (3, 3)
    assert gated.applied == ["working", "queued 0", "second"]


def test_withdrawing_a_turn_keeps_the_turns_of_other_users(gated):
    async def use():
        async with MemoryWriter(gated, workers=1, qsize=1) as writer:
            fill(writer, gated)
            (task,) = await waiting(writer, "of bob", user="bob")
            gated.let_through(1)
            gated.wait_until_started()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gated.let_through()
            for user, text in (("carol", "of carol"), ("bob", "again")):
                receipt = await writer.submit(user, "s", text, "ok")
                await asyncio.wait_for(receipt, LONG)

    run(use())
    assert gated.applied == ["working", "queued 0", "of carol", "again"]


# Receipts


def test_every_wait_on_a_receipt_returns_the_result(tmp_path):
    diary = diary_at(tmp_path)

    async def use():
        async with MemoryWriter(diary) as writer:
            receipt = await writer.submit("alice", "s", "tea", "ok")
            answers = await asyncio.gather(receipt, receipt, asyncio.to_thread(receipt.wait, LONG))
            assert answers == [Applied(applied=1)] * 3
            assert receipt.is_done
            assert receipt.turn == Turn("alice", "s", "tea", "ok")
            assert repr(receipt) == "<Receipt done>"

    run(use())


def test_a_turn_that_is_not_waited_for_takes_little_memory():
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [Receipt(Turn("alice", "s", "tea", "ok")) for _ in range(100)]
        for receipt in kept:
            receipt.settle(None)
        assert tracemalloc.get_traced_memory()[0] - before < 1000 * len(kept)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("answer", [Applied(applied=1), RuntimeError("no model")], ids=type)
def test_threads_that_begin_to_wait_during_the_outcome_get_it(answer):
    error = answer if isinstance(answer, RuntimeError) else None

    def waited(receipt, together):
        together.wait()
        try:
            return receipt.wait(LONG)
        except RuntimeError as found:
            return found

    with ThreadPoolExecutor(3) as pool:
        for _ in range(200):
            receipt, together = Receipt(Turn("alice", "s", "tea", "ok")), threading.Barrier(4)
            found = [pool.submit(waited, receipt, together) for _ in range(3)]
            together.wait()
            receipt.settle(None if error else answer, error)
            assert [each.result() for each in found] == [answer] * 3


def test_the_own_timeout_of_a_turn_is_what_a_wait_raises():
    receipt = Receipt(Turn("alice", "s", "tea", "ok"))
    with pytest.raises(TimeoutError, match="the turn was not stored within 0 s"):
        receipt.wait_stored(0)
    receipt.settle(None, TimeoutError("the model did not answer"))
    with pytest.raises(TimeoutError, match="the model did not answer"):
        receipt.wait(5)


def test_a_timeout_that_is_no_number_is_refused():
    receipt = Receipt(Turn("alice", "s", "tea", "ok"))
    receipt.settle(None)
    with MemoryWriter(Diary("memory:", agent="rules")) as writer:
        for wait in (receipt.wait, receipt.wait_stored, writer.flush, writer.close_sync):
            with pytest.raises(InvalidValue, match="timeout: expected a number of seconds"):
                wait("5")
        with pytest.raises(InvalidValue, match="diary"):
            MemoryWriter(Diary)


def test_a_turn_without_a_user_is_refused():
    with pytest.raises(IdentifierError, match="user id is empty"):
        Turn("", "s", "tea", "ok")


def test_a_timed_out_wait_does_not_affect_the_turn(gated):
    async def use():
        async with MemoryWriter(gated) as writer:
            receipt = await writer.submit("alice", "s", "tea", "ok")
            with pytest.raises(TimeoutError, match=r"not applied within 0\.01 s\. It may still be"):
                receipt.wait(0.01)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(receipt, 0.01)
            assert not writer.flush(0.01)
            assert not await writer.aflush(0.01)
            assert not receipt.is_done
            gated.let_through()
            await receipt
            assert await writer.aflush(LONG)

    run(use())
    assert gated.applied == ["tea"]


def test_receipts_and_counters_agree_after_flush():
    with MemoryWriter(Plain(), workers=1) as writer:
        for number in range(300):
            receipt = writer.submit_nowait(turn(f"{number}"))
            if number % 2:
                writer.flush(LONG)
                assert receipt.is_done
            else:
                receipt.wait(LONG)
                assert writer.stats()["completed"] == number + 1


def test_a_failing_turn_is_counted_and_reported_alone(tmp_path):
    def picky(message, *, deps):
        if deps.user_msg == "fail":
            raise ValueError("the model is down")
        deps.upsert("likes", None, deps.user_msg, ())

    diary = diary_at(tmp_path, picky)

    async def use():
        async with MemoryWriter(diary) as writer:
            receipts = [
                await writer.submit("alice", "s", text, "ok") for text in ("tea", "fail", "juice")
            ]
            with pytest.raises(ExtractionError, match="the model is down"):
                await receipts[1]
            with pytest.raises(ExtractionError, match="the model is down"):
                receipts[1].wait(LONG)
            await receipts[2]
            return writer.stats()

    stats = run(use())
    assert (stats["submitted"], stats["completed"], stats["failed"]) == (3, 2, 1)
    assert stats["error_rate"] == 1 / 3
    assert texts(diary, "alice") == ["tea", "juice"]


def test_the_log_reports_a_failed_turn_without_quoting_it(caplog):
    with caplog.at_level(logging.INFO, "tomldiary"), MemoryWriter(Plain()) as writer:
        writer.submit_nowait(turn("fail"))
    assert "a turn could not be applied: ValueError" in caplog.text
    assert "secret" not in caplog.text
    with caplog.at_level(logging.DEBUG, "tomldiary"), MemoryWriter(Plain()) as writer:
        writer.submit_nowait(turn("fail"))
    assert "her secret" in caplog.text


@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_an_extractor_that_raises_base_exceptions_stops_no_other_turn(kind):
    class Odd(Plain):
        async def update_memory(self, user_id, session_id, user_msg, *rest, context_now):
            if user_msg == "odd":
                raise kind
            await super().update_memory(
                user_id, session_id, user_msg, *rest, context_now=context_now
            )

    async def use():
        async with MemoryWriter(Odd(), workers=1) as writer:
            odd = await writer.submit("alice", "s", "odd", "ok")
            await (await writer.submit("alice", "s", "tea", "ok"))
            if kind is asyncio.CancelledError:
                with pytest.raises(RuntimeError, match="cancelled"):  # the test itself was not
                    await odd
        return writer.stats()

    stats = run(use())
    assert (stats["completed"], stats["failed"]) == (1, 1)


# Counters


def test_the_counters_agree_at_every_moment(tmp_path):
    samples = []

    def look():
        stats = writer.stats()
        samples.append(stats)
        assert stats["submitted"] == stats["completed"] + stats["failed"] + stats["pending"]
        assert stats["pending"] == stats["queue_size"] + stats["active_workers"]
        assert stats["active_workers"] + stats["idle_workers"] == stats["total_workers"] == 4
        return stats

    class Looking:
        async def update_memory(self, user_id, session_id, user_msg, *rest, context_now):
            assert 1 <= look()["active_workers"] <= 4
            await asyncio.sleep(0)
            if int(user_msg) % 10 == 0:
                raise ValueError

    done = threading.Event()

    def sample():
        while not done.is_set():
            look()

    writer = MemoryWriter(Looking(), workers=4, qsize=1000)
    sampler = threading.Thread(target=sample)
    sampler.start()
    for number in range(200):
        writer.submit_nowait(turn(f"{number}", f"user {number % 20}"))
    final = writer.close_sync()
    done.set()
    sampler.join(LONG)
    assert len(samples) > 200
    in_order_of_0_9 = {
        "queue_size": 0, "queue_capacity": 1000, "queue_utilization": 0.0, "total_workers": 4,
        "active_workers": 0, "idle_workers": 4, "submitted": 200, "completed": 180, "failed": 20,
        "pending": 0, "error_rate": 0.1, "is_running": False,
    }  # fmt: skip
    assert list(final.items())[:12] == list(in_order_of_0_9.items())
    assert repr(writer) == "<MemoryWriter 0 queued, 0 in work>"


# The end


def test_close_finishes_queued_turns_and_admits_no_more(gated):
    writer = MemoryWriter(gated, workers=2)
    receipts = [writer.submit_nowait(turn(f"{number}")) for number in range(20)]
    assert writer.is_running
    gated.let_through()
    stats = writer.close_sync()
    assert not writer.is_running
    assert (stats["completed"], stats["pending"], stats["is_running"]) == (20, 0, False)
    assert all(receipt.is_done for receipt in receipts)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"MemoryWriter is closed\. Create another one\."):
            writer.submit_nowait(turn("late"))
        with pytest.raises(RuntimeError, match="MemoryWriter is closed"):
            run(writer.submit("alice", "s", "late", "ok"))
        assert writer.close_sync() == stats == run(writer.close())
    assert len(gated.applied) == 20


def test_with_closes_also_when_the_block_raises():
    diary = Plain()
    writers = [MemoryWriter(diary), MemoryWriter(diary)]

    def fail():
        with writers[0] as writer:
            writer.submit_nowait(turn("tea"))
            raise KeyError

    async def fail_too():
        async with writers[1] as writer:
            await writer.submit("alice", "s", "juice", "ok")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(KeyError):
        run(fail_too())
    assert not any(writer.is_running for writer in writers)
    assert [text for _, _, text, _, _ in diary.applied] == ["tea", "juice"]


class Hanging:
    """A diary that never comes to an end, and lets itself be cancelled."""

    def __init__(self):
        self.started = threading.Event()
        self.enough = threading.Event()
        self.cancelled = threading.Event()

    async def update_memory(self, *turn, context_now):
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class Stubborn(Hanging):
    """One that does not even let itself be cancelled."""

    async def update_memory(self, *turn, context_now):
        self.started.set()
        while not self.enough.is_set():
            try:
                await asyncio.to_thread(self.enough.wait, LONG)
            except asyncio.CancelledError:
                self.cancelled.set()


@pytest.mark.parametrize("kind", [Hanging, Stubborn])
def test_close_with_a_timeout_abandons_hanging_turns(kind, caplog, short_grace):
    diary = kind()
    writer = MemoryWriter(diary, workers=1, qsize=3)
    receipts = [writer.submit_nowait(turn("0"))]
    assert diary.started.wait(LONG)
    receipts += [writer.submit_nowait(turn(f"{number}")) for number in range(1, 4)]
    thread = newest_thread()

    async def use():
        (late,) = await waiting(writer, "late")
        start = time.monotonic()
        stats = await writer.close(0.05)
        assert time.monotonic() - start < LONG / 3
        with pytest.raises(RuntimeError, match="MemoryWriter is closed"):
            await late
        for receipt in receipts:
            with pytest.raises(RuntimeError, match="closed before this turn was finished"):
                await receipt
        return stats

    stats = run(use())
    assert (stats["submitted"], stats["failed"], stats["pending"]) == (4, 4, 0)
    assert "closed with 4 turns not applied" in caplog.text
    for receipt in receipts:
        with pytest.raises(RuntimeError, match="closed before this turn was finished"):
            receipt.wait(0)
    assert diary.cancelled.is_set()
    diary.enough.set()
    thread.join(LONG)
    assert writer.stats() == stats  # what ends too late is not counted twice


def test_a_turn_that_cannot_start_a_thread_is_refused_and_not_counted(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    with MemoryWriter(Plain()) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                writer.submit_nowait(turn("tea"))
        assert writer.stats()["submitted"] == 0
        assert writer.submit_nowait(turn("tea")).wait(LONG) is None


def test_a_dropped_writer_leaves_no_thread():
    writer = MemoryWriter(Plain())
    writer.submit_nowait(turn("tea")).wait(LONG)
    thread = newest_thread()
    del writer
    gc.collect()
    thread.join(LONG)
    assert not thread.is_alive()


EXIT = """
import asyncio, sys, time
from tomldiary import Diary, MemoryWriter
from tomldiary.writer.writer import Turn
{extractor}
diary = Diary(sys.argv[1], agent=remember, durability="process")
writer = MemoryWriter(diary)
for number in range(30):
    writer.submit_nowait(Turn("alice", "s", f"turn {{number}}", "ok"))
"""
COROUTINE = """
async def remember(message, *, deps):
    await asyncio.sleep(0.002)
    deps.upsert(deps.allowed_cats[0], None, deps.user_msg, ())
"""
FUNCTION = """
def remember(message, *, deps):
    time.sleep(0.002)
    deps.upsert(deps.allowed_cats[0], None, deps.user_msg, ())
"""

CALL_IN_A_THREAD = """
from tomldiary.runtime.async_bridge import in_daemon_thread
async def remember(message, *, deps):
    await in_daemon_thread(time.sleep, 0.002)
    deps.upsert(deps.allowed_cats[0], None, deps.user_msg, ())
"""


LOOP = "asyncio.run(asyncio.sleep(0))"


@pytest.mark.parametrize(
    ("extractor", "end"),
    [
        pytest.param(COROUTINE, "sys.exit(0)", id="coroutine, exit"),
        pytest.param(COROUTINE, LOOP, id="coroutine, event loop"),
        pytest.param(FUNCTION, "", id="function"),
        pytest.param(CALL_IN_A_THREAD, "", id="call in a thread"),
    ],
)
def test_a_program_that_exits_finishes_its_turns_first(tmp_path, extractor, end):
    script = EXIT.format(extractor=extractor) + end
    done = programs.run("-c", script, tmp_path, teardown=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert texts(Diary(tmp_path, agent="rules"), "alice") == [f"turn {n}" for n in range(30)]


FORK = """
import multiprocessing, os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forking with threads
from tomldiary import Diary, MemoryWriter
from tomldiary.writer.writer import Turn

gate, started = threading.Event(), threading.Event()

def remember(message, *, deps):
    if deps.user_msg.startswith("parent"):
        started.set()
        gate.wait(30)
    deps.upsert(deps.allowed_cats[0], None, deps.user_msg, ())

writer = MemoryWriter(Diary(sys.argv[1], agent=remember, durability="process"), qsize=1)
receipts = [writer.submit_nowait(Turn("alice", "s", "parent 0", "ok"))]
started.wait(30)
receipts.append(writer.submit_nowait(Turn("alice", "s", "parent 1", "ok")))
closed = MemoryWriter(writer.diary)
closed.close_sync()

def child():
    assert writer.stats()["pending"] == writer.stats()["submitted"] == 0
    assert writer.flush(0)
    try:
        receipts[0].wait(60)
    except RuntimeError as error:
        assert "before this process was forked" in str(error)
    else:
        raise AssertionError("a receipt of the parent")
    for number in range(3):  # the child has room: its parent's turns are its parent's
        assert writer.submit_nowait(Turn("bob", "s", f"child {number}", "ok")).wait(30).applied == 1
    assert writer.stats()["completed"] == 3 and not closed.is_running
    writer.submit_nowait(Turn("bob", "s", "child at the end", "ok"))

held, release = threading.Event(), threading.Event()
def hold():
    with writer._state:
        held.set()
        release.wait(30)
holder = threading.Thread(target=hold)
holder.start()
held.wait(30)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
release.set()
holder.join()
process.join(20)
assert process.exitcode == 0, process.exitcode
gate.set()
for receipt in receipts:
    receipt.wait(30)
print(writer.close_sync()["completed"])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_writer_of_its_own(tmp_path):
    done = programs.run("-c", FORK, tmp_path, timeout=2 * LONG, teardown=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
    diary = Diary(tmp_path, agent="rules")
    assert texts(diary, "alice") == ["parent 0", "parent 1"]
    assert texts(diary, "bob") == ["child 0", "child 1", "child 2", "child at the end"]


FORK_AT_ONCE = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forking with threads
from tomldiary import Diary, MemoryWriter
from tomldiary.writer.writer import Turn

class Slow:  # if a worker imported the extractor, this would last until the fork
    begun, forked = threading.Event(), threading.Event()

    def find_spec(self, name, path=None, target=None):
        worker = threading.current_thread() is not threading.main_thread()
        if worker and name.startswith("tomldiary.extraction.rules") and not self.forked.is_set():
            self.begun.set()
            self.forked.wait(30)

sys.meta_path.insert(0, Slow())
writer = MemoryWriter(Diary(sys.argv[1], agent="rules"))
first = writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
Slow.begun.wait(1)
child = os.fork()
Slow.forked.set()
if child == 0:
    signal.alarm(20)
    writer.submit_nowait(Turn("bob", "s", "I love jazz.", "Noted.")).wait(30)
    writer.close_sync()
    os._exit(0)
first.wait(30)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_during_the_first_turn_applies_its_own_turns(tmp_path):
    done = programs.run("-c", FORK_AT_ONCE, tmp_path, timeout=2 * LONG, teardown=True)
    assert done.returncode == 0
    diary = Diary(tmp_path, agent="rules")
    assert [texts(diary, user) for user in ("alice", "bob")] == [["I love tea."], ["I love jazz."]]


def test_shutdown_returns_at_once_without_pending_work():
    diary = Plain()
    writers = [MemoryWriter(diary) for _ in range(3)]
    writers[0].submit_nowait(turn("tea")).wait(LONG)
    start = time.monotonic()
    run(shutdown_all_background_tasks(timeout=LONG))
    assert time.monotonic() - start < LONG / 3
    assert not any(writer.is_running for writer in writers)


def test_shutdowns_within_background_tasks_do_not_wait_for_each_other():
    async def use():
        tasks = [fire_and_forget(shutdown_all_background_tasks(timeout=0.2)) for _ in range(2)]
        await asyncio.gather(*tasks)

    run(use())


def test_shutdown_finishes_turns_and_cancels_late_tasks():
    diary = Plain()
    ended = []

    async def task(name, event):
        await event.wait()
        ended.append(name)

    async def use():
        soon, never = asyncio.Event(), asyncio.Event()
        MemoryWriter(diary).submit_nowait(turn("tea"))
        hanging = Hanging()
        abandoned = MemoryWriter(hanging).submit_nowait(turn("never"))
        assert await asyncio.to_thread(hanging.started.wait, LONG)
        first = fire_and_forget(task("soon", soon), name="soon")
        second = fire_and_forget(task("never", never))
        assert {first, second} <= background_tasks
        soon.set()
        start = time.monotonic()
        await shutdown_all_background_tasks(timeout=0.2)
        assert second.cancelled()
        assert time.monotonic() - start < LONG / 3
        with pytest.raises(RuntimeError, match="closed before this turn was finished"):
            await abandoned
        assert not {first, second} & background_tasks

    run(use())
    assert ended == ["soon"]
    assert [text for _, _, text, _, _ in diary.applied] == ["tea"]


def test_shutdown_takes_tasks_that_another_thread_starts_meanwhile():
    class Started:
        def get_loop(self):
            background_tasks.add(later)

    first, later = Started(), Started()
    background_tasks.add(first)
    try:
        run(shutdown_all_background_tasks(timeout=LONG))
        assert later in background_tasks
    finally:
        background_tasks.difference_update((first, later))


def test_a_receipt_gets_one_result():
    receipt = Receipt(turn("tea"))
    receipt.settle(Applied(applied=1))
    receipt.settle(None, RuntimeError("too late"))
    assert receipt.wait(0) == Applied(applied=1)
