"""Puts that wait for one user are one transaction, and gets are one read; an invalid call fails alone."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from langgraph.store.base import GetOp, PutOp

from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import BackendError, CommittedUnpublished, Conflict, LockTimeout
from tomldiary.history import verify as verification
from tomldiary.history.record import parse_record
from tomldiary.runtime.async_bridge import SCOPE
from tomldiary.store.batch import Batches, PreparedBatch
from tomldiary.store.operations import Get, Put, Search
from tomldiary.store.store import ItemStore
from tomldiary_langgraph import DiaryStore

NS = ("alice", "memories")


@pytest.fixture(params=["memory:", "folder"])
def diary(request, disk):
    return Diary(disk / "m" if request.param == "folder" else request.param, agent="rules")


def records(diary, user="alice"):
    return [parse_record(text) for text in diary.engine.backend.records(user)][::-1]


def gathered(store, *puts):
    """Put all in one tick; returns what each met."""

    async def run():
        calls = [store.aput(*put) for put in puts]
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


def test_puts_of_one_tick_are_one_transaction_for_1024_of_them(disk):
    store = DiaryStore(Diary(disk / "m", agent="rules"))
    puts = [((*NS, f"n{n % 7}"), f"k{n}", {"n": n}) for n in range(1100)]
    assert gathered(store, *puts) == [None] * 1100
    assert [(each.seq, len(each.results)) for each in records(store.diary)] == [(1, 7), (2, 7)]
    assert all(store.get(namespace, key).value == value for namespace, key, value in puts)
    assert verification.verify(store.diary.engine.backend, "alice") is None


def test_last_put_of_a_key_in_one_tick_wins(diary):
    store = DiaryStore(diary)
    assert gathered(store, *[(NS, "k", {"n": n}) for n in range(20)]) == [None] * 20
    first = store.get(NS, "k")
    assert first.value == {"n": 19}
    assert gathered(store, *[(NS, "k", {"n": -n}) for n in range(20)]) == [None] * 20
    second = store.get(NS, "k")
    assert second.value == {"n": -19}
    assert second.created_at == first.created_at < second.updated_at
    diary.user("alice").rollback(1)
    assert store.get(NS, "k").value == {"n": 19}


def test_puts_of_one_tick_are_one_transaction_after_an_interrupted_block(diary):
    def interrupted():
        with diary.user("alice").transaction():
            left = SCOPE.get()
        SCOPE.set(left)  # as after an interrupt while the block ended
        assert (
            gathered(DiaryStore(diary), *[(NS, f"k{n}", {"n": n}) for n in range(5)]) == [None] * 5
        )

    contextvars.copy_context().run(interrupted)
    assert len(records(diary)) == 1


def test_invalid_put_in_a_tick_fails_alone(diary):
    store = DiaryStore(diary)
    met = gathered(
        store,
        (NS, "a", {"n": 1}),
        (NS, "b", {"n": {1, 2}}),
        (("alice", "x.y"), "c", {"n": 3}),
        ((), "d", {"n": 4}),
        (NS, "e\ud800", {"n": 5}),
        (NS, "f", {"n": 6}),
    )
    assert [isinstance(each, ValueError) for each in met] == [False, True, True, True, True, False]
    assert met[0] is met[-1] is None
    assert sorted(item.key for item in store.search(("alice",))) == ["a", "f"]


def test_last_of_a_delete_and_a_put_in_one_tick_wins(diary):
    store = DiaryStore(diary)
    store.put(NS, "old", {"n": 1})

    async def run():
        await asyncio.gather(
            store.adelete(NS, "old"), store.aput(NS, "old", {"n": 2}), store.adelete(NS, "none")
        )
        first = store.get(NS, "old")
        await asyncio.gather(store.aput(NS, "old", {"n": 3}), store.adelete(NS, "old"))
        return first

    first = asyncio.run(run())
    assert first.value == {"n": 2}
    assert store.get(NS, "old") is None
    assert len(records(diary)) == 3


def test_batches_that_read_or_have_several_users_run_by_themselves(diary):
    store = DiaryStore(diary)

    async def run():
        return await asyncio.gather(
            store.abatch([PutOp(NS, "a", {"n": 1}), PutOp(NS, "b", {"n": 2})]),
            store.abatch([PutOp(("bo", "x"), "c", {"n": 3}), PutOp(NS, "d", {"n": 4})]),
            store.abatch([GetOp(NS, "zz"), PutOp(NS, "e", {"n": 5})]),
            store.abatch([PutOp(("alice", "diary", "blocks"), "persona", {"text": "kind"})]),
            store.abatch([]),
        )

    assert asyncio.run(run()) == [[None, None], [None, None], [None, None], [None], []]
    assert sorted(item.key for item in store.search(NS)) == ["a", "b", "d", "e"]
    assert store.get(("bo", "x"), "c").value == {"n": 3}
    assert diary.user("alice").blocks()["persona"].text == "kind"


def test_puts_inside_a_transaction_join_it(diary):
    store = DiaryStore(diary)

    async def run():
        with suppress(KeyError):
            async with diary.user("alice").atransaction():
                await store.aput(NS, "a", {"n": 1})
                assert (await store.aget(NS, "a")).value == {"n": 1}
                raise KeyError
        async with diary.user("alice").atransaction():
            await store.aput(NS, "b", {"n": 1})
            await store.aput(NS, "c", {"n": 2})

    asyncio.run(run())
    assert sorted(item.key for item in store.search(NS)) == ["b", "c"]
    assert len(records(diary)) == 1


def test_puts_of_several_sessions_are_forgotten_separately(disk):
    items = ItemStore(Diary(disk / "m", agent="rules"))

    async def run():
        puts = [Put(NS, f"k{n}", {"text": f"walnut {n}"}) for n in range(4)]
        await asyncio.gather(
            *(
                items.arun("alice", functools.partial(items.prepare, [put]), f"s{n}", puts=True)
                for n, put in enumerate(puts)
            )
        )

    asyncio.run(run())
    assert [each.session for each in records(items.diary)] == ["s0", "s1", "s2", "s3"]
    items.diary.user("alice").forget(session_id="s2")
    assert sorted(item.key for item in items.run([Search(NS)])[0]) == ["k0", "k1", "k3"]
    assert verification.verify(items.diary.engine.backend, "alice") is None
    files = [path.read_bytes() for path in (disk / "m").rglob("*") if path.is_file()]
    assert not any(b"walnut 2" in data for data in files)


def test_held_lock_of_one_user_does_not_delay_puts_of_others(disk):
    store = DiaryStore(Diary(disk / "m", agent="rules"))
    held, free = threading.Event(), threading.Event()

    def hold():
        with store.diary.engine.backend.lock("alice", 5):
            held.set()
            free.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()

    async def run():
        held.wait(10)
        waiting = asyncio.gather(*(store.aput(NS, f"k{n}", {"n": n}) for n in range(40)))
        others = [store.aput((f"user{n}", "x"), "k", {"n": n}) for n in range(3)]
        await asyncio.wait_for(asyncio.gather(*others), 10)
        assert not waiting.done()
        free.set()
        await waiting

    try:
        asyncio.run(run())
    finally:
        free.set()
        thread.join()
    assert len(store.search(NS, limit=100)) == 40


def test_a_cancelled_put_that_waits_is_withdrawn_without_the_others(disk):
    store = DiaryStore(Diary(disk / "m", agent="rules"))

    async def run():
        with store.diary.engine.backend.lock("alice", 5):
            tasks = [asyncio.create_task(store.aput(NS, f"k{n}", {"n": n})) for n in range(3)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            late = [asyncio.create_task(store.aput(NS, f"late{n}", {"n": n})) for n in range(3)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            late[1].cancel()
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks, *late, return_exceptions=True)

    met = asyncio.run(run())
    cancelled = [isinstance(each, asyncio.CancelledError) for each in met]
    assert cancelled == [False, True, False, False, True, False]
    assert {item.key for item in store.search(NS)} == {"k0", "k2", "late0", "late2"}


def test_end_of_the_loop_cancels_waiting_puts():
    begun, free = threading.Event(), threading.Event()

    def finish(_work, *, session):
        assert session == "s"
        begun.set()
        free.wait(10)
        return [None]

    batches = Batches(finish)
    call = "s", lambda: PreparedBatch([Get(NS, "k")])

    async def main():
        task = asyncio.create_task(batches.done("u", call))
        await asyncio.to_thread(begun.wait, 10)
        later = asyncio.create_task(batches.done("u", call))
        await asyncio.sleep(0)
        (worker,) = {each for each in asyncio.all_tasks() if "_work" in repr(each)}
        worker.cancel()
        free.set()
        async with asyncio.timeout(10):
            return await asyncio.gather(task, later, return_exceptions=True)

    met = asyncio.run(main())
    assert [type(each) for each in met] == [asyncio.CancelledError] * 2
    free.set()

    async def again():
        return await batches.done("u", call)

    assert asyncio.run(again()) == [None]  # another loop


def test_a_thread_that_cannot_start_is_an_error_of_each_call(disk):
    class Full(ThreadPoolExecutor):
        def submit(self, *_, **__):
            raise RuntimeError("can't start new thread")

    store = DiaryStore(Diary(disk / "m", agent="rules"))

    async def run():
        asyncio.get_running_loop().set_default_executor(Full())
        calls = [store.aput(NS, "a", {}), store.aput(NS, "b", {})]
        return await asyncio.gather(*calls, return_exceptions=True)

    with asyncio.Runner() as runner:
        one, other = runner.run(run())
        runner.get_loop().set_default_executor(ThreadPoolExecutor())
        runner.run(store.aput(NS, "a", {}))
    assert type(one) is type(other) is RuntimeError
    assert one is not other
    assert store.get(NS, "a").value == {}


def test_put_that_fails_when_applied_fails_alone(disk):
    store = DiaryStore(Diary(disk / "m", agent="rules"))
    store.put((*NS, "edited"), "k", {"n": 1})
    (path,) = (disk / "m/alice/items/memories").glob("edited*.toml")
    path.write_text(path.read_text().split("[items.k]")[0] + "[items]\nk = 5\n")
    os.utime(path, (1, 1))
    met = gathered(
        store, (NS, "a", {"n": 1}), ((*NS, "edited"), "k", {"n": 2}), (NS, "b", {"n": 3})
    )
    assert [type(each).__name__ for each in met] == ["NoneType", "DocumentError", "NoneType"]
    assert sorted(item.key for item in store.search(NS) if item.key != "k") == ["a", "b"]


@pytest.mark.parametrize(
    "error", [BackendError("full"), CommittedUnpublished("late"), Conflict("saved again")]
)
def test_storage_error_is_raised_to_each_put_as_its_own_object(disk, error):
    class Failing(LocalBackend):
        tries = 0

        def commit(self, user, commit):
            self.tries += 1
            raise error

    backend = Failing(disk / "m")
    store = DiaryStore(Diary(backend, agent="rules"))
    first, second = gathered(store, (NS, "a", {"n": 1}), (NS, "b", {"n": 2}))
    assert type(first) is type(second) is type(error)
    assert str(first) == str(second) == str(error)
    assert first is not second
    assert backend.tries == (20 if isinstance(error, Conflict) else 1)


def test_lock_timeout_is_raised_to_each_put_and_writes_nothing(disk):
    diary = Diary(disk / "m", agent="rules", lock_timeout=0.05)
    with Diary(disk / "m").engine.backend.lock("alice", 1):
        met = gathered(DiaryStore(diary), (NS, "a", {"n": 1}), (NS, "b", {"n": 2}))
    assert [type(each) for each in met] == [LockTimeout, LockTimeout]
    assert met[0] is not met[1]
    assert records(diary) == []


class Watched(ItemStore):
    """Notes the number of operations of each read, before which it calls `begin`."""

    def __init__(self, diary, begin=bool):
        super().__init__(diary)
        self.reads, self.begin = [], begin

    def finish(self, work, *vectors, **named):
        self.reads.append(len(work.ops))
        self.begin()
        return super().finish(work, *vectors, **named)

    def asked(self, *ops):
        return self.arun("alice", lambda: self.prepare(ops), puts=False)


def test_gets_of_one_tick_are_one_read_and_an_invalid_one_fails_alone(disk):
    diary = Diary(disk / "m", agent="rules")  # in memory, the event loop answers most of them
    DiaryStore(diary).batch([PutOp((*NS, f"n{n % 7}"), f"k{n}", {"n": n}) for n in range(100)])
    store, reads = DiaryStore(diary), []

    async def run():
        gets = [store.aget((*NS, f"n{n % 7}"), f"k{n}") for n in range(101)]
        several = store.abatch([GetOp((*NS, "n1"), "k1"), GetOp((*NS, "n0"), "none")])
        return await asyncio.gather(*gets, several)

    def note(frame, event, _):
        if event == "call" and frame.f_code is ItemStore.finish.__code__:
            reads.append(len(frame.f_locals["work"].ops))

    threading.setprofile(note)
    try:
        *found, several = asyncio.run(run())
    finally:
        threading.setprofile(None)
    assert [each and each.value["n"] for each in found] == [*range(100), None]
    assert [each and each.value["n"] for each in several] == [1, None]
    assert reads == [103]

    async def invalid():
        gets = [store.aget(NS, "none"), store.aget(NS, "a"), store.aget(NS, None)]  # pyright: ignore[reportArgumentType]
        bad = store.abatch([GetOp(("alice", "x.y"), "k")])
        return await asyncio.gather(
            *gets, bad, store.aget((*NS, "n1"), "k1"), return_exceptions=True
        )

    met = asyncio.run(invalid())
    assert [type(each).__name__ for each in met] == [
        "NoneType", "NoneType", "NoneType", "InvalidNamespaceError", "Item",
    ]  # fmt: skip


def test_gets_behind_a_cancelled_one_are_answered(disk):
    diary = Diary(disk / "m", agent="rules")
    begun, free = threading.Event(), threading.Event()
    items = Watched(diary, lambda: begun.set() or free.wait(10))
    DiaryStore(diary).batch([PutOp(NS, f"k{n}", {"n": n}) for n in range(4)])

    async def run():
        tasks = [asyncio.create_task(items.asked(Get(NS, f"k{n}"))) for n in range(4)]
        await asyncio.to_thread(begun.wait, 10)
        tasks[0].cancel()
        tasks[2].cancel()
        free.set()
        async with asyncio.timeout(10):
            return await asyncio.gather(*tasks, return_exceptions=True)

    met = asyncio.run(run())
    assert [type(each).__name__ for each in met] == [
        "CancelledError",
        "list",
        "CancelledError",
        "list",
    ]
    assert asyncio.run(items.asked(Get(NS, "k2")))[0].value == {"n": 2}


def test_a_storage_error_is_raised_to_each_get_as_its_own_object(disk):
    def fail():
        raise BackendError("away")

    items = Watched(Diary(disk / "m", agent="rules"), fail)

    async def run():
        gets = [items.asked(Get(NS, f"k{n}")) for n in range(3)]
        return await asyncio.gather(*gets, return_exceptions=True)

    met = asyncio.run(run())
    assert [str(each) for each in met] == ["away"] * 3
    assert len(set(map(id, met))) == 3
    assert items.reads == [3]
