"""A cancelled `submit` withdraws its own turn only; a cancelled wait leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.backends import LocalBackend
from tomldiary.writer.queue import UserQueues
from tomldiary.writer.receipts import Job

LONG = 120


def remember(message, *, deps):
    deps.upsert("likes", None, deps.user_msg, ())


def texts(diary):
    found = diary.user("alice").preferences().values()
    return [item.text for items in found for item in items.values()]


@pytest.fixture
def sync(monkeypatch):
    """The next sync: it waits until it may go on."""

    class Sync:
        began, may_go_on = threading.Event(), threading.Event()

    real = os.fdatasync

    def wait(descriptor):
        Sync.began.set()
        assert Sync.may_go_on.wait(LONG)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", wait)
    yield Sync
    Sync.may_go_on.set()


async def begin(coroutine):
    """Let it come as far as it can."""
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    return task


async def cancel(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def stored_soon(sync):
    await asyncio.to_thread(sync.began.wait, LONG)


def test_submit_nowait_stores_the_turn_of_a_stream_that_was_left(tmp_path):
    """Starlette cancels the scope of a stream, and so each later `await` in it, when the client leaves."""
    diary = Diary(tmp_path, agent=remember)

    async def stream(writer):
        with anyio.CancelScope() as scope:
            try:
                scope.cancel()
                await anyio.sleep(LONG)
            finally:
                writer.submit_nowait(Turn("alice", "s", "kept", "cut", status="aborted"))
                await writer.submit("alice", "s", "not stored", "cut", status="aborted")

    with MemoryWriter(diary) as writer:
        asyncio.run(stream(writer))
    assert texts(diary) == ["kept"]


def test_a_turn_is_withdrawn_while_it_is_being_stored(tmp_path, sync):
    diary = Diary(tmp_path, agent=remember)

    async def use():
        async with MemoryWriter(diary) as writer:
            gone = await begin(writer.submit("alice", "s", "tea", "ok"))
            await stored_soon(sync)
            await cancel(gone)
            sync.may_go_on.set()
            await (await writer.submit("alice", "s", "juice", "ok"))
        return writer.stats()

    stats = asyncio.run(use())
    assert (stats["submitted"], stats["completed"], stats["pending"]) == (1, 1, 0)
    assert texts(diary) == ["juice"]


def test_a_turn_withdrawn_while_it_is_being_stored_makes_room(tmp_path, sync):
    diary = Diary(tmp_path, agent=remember)

    async def use():
        async with MemoryWriter(diary, qsize=1) as writer:
            gone = await begin(writer.submit("alice", "s", "tea", "ok"))
            await stored_soon(sync)
            kept = await begin(writer.submit("alice", "s", "juice", "ok"))
            await cancel(gone)
            sync.may_go_on.set()
            await (await asyncio.wait_for(kept, 20))

    asyncio.run(use())
    assert texts(diary) == ["juice"]


def test_a_cancelled_submit_keeps_no_other_of_its_batch_waiting(tmp_path, files):
    began, may_go_on = ([threading.Event(), threading.Event()] for _ in range(2))
    batches = itertools.count()

    def wait(name, path, *_):
        if name == "sync_data" and "/journal/" in path and (batch := next(batches)) < len(began):
            began[batch].set()
            assert may_go_on[batch].wait(LONG)

    files.hook = wait

    async def use():
        diary = Diary(LocalBackend(tmp_path, files=files), agent=remember)
        async with MemoryWriter(diary) as writer:
            await begin(writer.submit("bob", "s", "in the way", "ok"))
            await asyncio.to_thread(began[0].wait, LONG)
            gone = await begin(writer.submit("alice", "s", "tea", "ok"))
            kept = await begin(writer.submit("alice", "s", "juice", "ok"))
            may_go_on[0].set()
            await asyncio.to_thread(began[1].wait, LONG)
            await cancel(gone)
            may_go_on[1].set()
            await (await asyncio.wait_for(kept, 20))
        return texts(diary)

    assert asyncio.run(use()) == ["juice"]


@pytest.mark.parametrize("moment", ["waiting", "stored"])
def test_a_turn_with_another_submitter_is_not_withdrawn(tmp_path, sync, moment):
    """A client that gives up and tries again: the first request is cancelled, the second has to be answered."""
    diary = Diary(tmp_path, agent=remember)

    async def use():
        async with MemoryWriter(diary) as writer:
            turn = Turn("alice", "s", "tea", "ok", operation_id="request-1")
            if moment == "waiting":
                await begin(writer.submit("bob", "s", "in the way", "ok"))
                await stored_soon(sync)
            first = await begin(writer.submit_turn(turn))
            if moment == "stored":
                await stored_soon(sync)
            second = await begin(writer.submit_turn(turn))
            third = writer.submit_nowait(turn)
            await cancel(first)
            sync.may_go_on.set()
            receipt = await asyncio.wait_for(second, LONG)
            assert receipt is third
            await asyncio.wait_for(receipt, LONG)

    asyncio.run(use())
    assert texts(diary) == ["tea"]


@pytest.mark.parametrize("moment", ["waiting", "stored"])
def test_a_turn_is_withdrawn_when_all_submitters_are_cancelled(tmp_path, sync, moment):
    diary = Diary(tmp_path, agent=remember)

    async def use():
        async with MemoryWriter(diary) as writer:
            turn = Turn("alice", "s", "tea", "ok", operation_id="request-1")
            if moment == "waiting":
                await begin(writer.submit("bob", "s", "in the way", "ok"))
                await stored_soon(sync)
            tasks = [await begin(writer.submit_turn(turn)) for _ in range(2)]
            if moment == "stored":
                await stored_soon(sync)
            for task in tasks:
                await cancel(task)
            sync.may_go_on.set()
        return writer.stats()

    stats = asyncio.run(use())
    assert stats["submitted"] == stats["completed"] == (moment == "waiting")
    assert texts(diary) == []


def test_a_turn_of_a_failed_group_is_not_withdrawn():
    """Its first try has failed, before the event loop of its submitter came to tell it anything."""
    lines = UserQueues()
    for text in ("tea", "juice"):
        lines.push(Job(Turn("alice", "s", text, "ok"), text, is_new=True))
    job = lines.pop(2)
    assert [each.operation for each in job.group] == ["juice"]
    lines.requeue(job)
    assert not lines.remove(job)
    assert len(lines) == 2


# Waits that are cancelled


def test_a_cancelled_aflush_leaves_its_thread(tmp_path):
    gate = threading.Event()

    async def wait(message, *, deps):
        await asyncio.to_thread(gate.wait, LONG)

    async def use(writer):
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await writer.submit("alice", "s", "tea", "ok")
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(writer.aflush(), 0.05)
            # The only thread of the loop is free, so the end of `asyncio.run` need not wait for it.
            await asyncio.wait_for(asyncio.to_thread(int), 5)
        finally:
            gate.set()

    with MemoryWriter(Diary(tmp_path, agent=wait)) as writer:
        asyncio.run(use(writer))


def test_the_error_of_a_receipt_that_is_not_awaited_any_more_is_not_logged(tmp_path):
    gate, logged = threading.Event(), []

    def fail(message, *, deps):
        gate.wait(LONG)
        raise ValueError(deps.user_msg)

    async def use(writer):
        asyncio.get_running_loop().set_exception_handler(lambda _loop, told: logged.append(told))
        receipt = await writer.submit("alice", "s", "a secret", "ok")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receipt, 0.01)
        gate.set()
        assert await writer.aflush(LONG)
        assert "a secret" in str(receipt.result)

    with MemoryWriter(Diary(tmp_path, agent=fail)) as writer:
        asyncio.run(use(writer))
    gc.collect()  # asyncio logs an error that no task has read when its future is collected
    assert logged == []
