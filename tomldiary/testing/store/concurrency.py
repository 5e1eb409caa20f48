"""Tests of concurrent calls: threads, tasks, and calls that fail or are cancelled while others run."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from tomldiary.testing.store.surface import Calls, StoreFixtures, async_only, sync_only

NS = ("shared",)
_THREADS = 8


class Concurrency(StoreFixtures):
    """A call does not affect concurrent calls."""

    many: ClassVar[int] = 600
    """The number of concurrent operations."""
    rounds: ClassVar[int] = 8
    """The number of rounds of each thread."""

    @pytest.fixture
    def running(self, store: Calls) -> tuple[Any, asyncio.Runner]:
        """A store, and the runner of its event loop."""
        assert store.runner is not None
        return store.store, store.runner

    @sync_only
    def test_threads_put_search_and_list_at_once(self, store: Calls) -> None:
        barrier = threading.Barrier(_THREADS)

        def work(thread: int) -> None:
            barrier.wait()
            for number in range(self.rounds):
                store.put((*NS, str(thread), str(number)), "k", {"thread": thread})
                assert store.search((*NS, str(thread)), limit=100)
                assert store.list_namespaces(prefix=NS, limit=1000)

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(work, range(_THREADS)))
        assert len(store.search(NS, limit=1000)) == _THREADS * self.rounds

    @async_only
    def test_many_operations_gathered_all_return(self, running: tuple[Any, asyncio.Runner]) -> None:
        store, runner = running

        async def run() -> list[Any]:
            await asyncio.gather(*[store.aput(NS, f"k{n}", {"n": n}) for n in range(20)])
            calls: list[Any] = []
            for number in range(self.many):
                key = f"k{number % 20}"
                calls.append(store.aget(NS, key) if number % 3 else store.asearch(NS, limit=5))
            return list(await asyncio.gather(*calls))

        found = runner.run(run())
        assert len(found) == self.many
        assert all(found)

    @async_only
    def test_a_bad_call_harms_no_other_call(self, running: tuple[Any, asyncio.Runner]) -> None:
        store, runner = running

        async def run() -> list[Any]:
            await store.aput(NS, "old", {"n": 0})
            calls: list[Any] = [
                store.aput(NS, "a", {"n": 1}),
                store.asearch(NS, filter={"n": {"$zz": 1}}),
                store.aput(NS, "bad", {"n": object()}),
                store.aget(NS, "old"),
                store.aput(NS, "b", {"n": 2}),
            ]
            return list(await asyncio.gather(*calls, return_exceptions=True))

        found = runner.run(run())
        assert [isinstance(each, Exception) for each in found] == [False, True, True, False, False]
        assert found[3].value == {"n": 0}
        kept = runner.run(store.asearch(NS, limit=10))
        assert {item.key for item in kept} == {"old", "a", "b"}

    @async_only
    def test_two_readers_get_an_object_each(self, running: tuple[Any, asyncio.Runner]) -> None:
        store, runner = running

        async def run() -> list[Any]:
            await store.aput(NS, "k", {"list": [1]})
            calls: list[Any] = [store.aget(NS, "k"), store.aget(NS, "k")]
            return list(await asyncio.gather(*calls))

        one, other = runner.run(run())
        one.value["list"].append(2)
        assert other.value == {"list": [1]}

    @async_only
    def test_a_cancelled_call_leaves_the_store_usable(
        self, running: tuple[Any, asyncio.Runner]
    ) -> None:
        store, runner = running

        async def run() -> Any:
            tasks = [asyncio.create_task(store.aput(NS, f"k{n}", {"n": n})) for n in range(10)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await store.aput(NS, "after", {"n": 1})
            return [task.cancelled() for task in tasks], await store.asearch(NS, limit=100)

        cancelled, items = runner.run(run())
        stored = {item.key for item in items}
        assert "after" in stored
        assert {f"k{n}" for n in range(10) if not cancelled[n]} <= stored

    @async_only
    def test_threads_call_sync_methods_while_a_loop_runs(
        self, running: tuple[Any, asyncio.Runner]
    ) -> None:
        store, runner = running

        def work(thread: int) -> int:
            for number in range(self.rounds):
                store.put((*NS, str(thread)), str(number), {"n": number})
                assert store.get((*NS, str(thread)), str(number)).value == {"n": number}
            return thread

        async def run() -> list[int]:
            calls = [asyncio.to_thread(work, thread) for thread in range(4)]
            found: list[Any] = await asyncio.gather(*calls, store.aput(NS, "beside", {}))
            return found[:-1]

        assert runner.run(run()) == [0, 1, 2, 3]
        assert runner.run(store.aget(NS, "beside")) is not None
