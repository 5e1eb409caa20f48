"""Tests of concurrent calls: threads, tasks, and calls that fail or are cancelled while others run."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from tomldiary.testing.store.surface import Calls, StoreFixtures, async_only, keys, sync_only

NS = ("shared",)
_THREADS = 8


class Concurrency(StoreFixtures):
    """A call does not affect concurrent calls."""

    many: ClassVar[int] = 600
    """The number of concurrent operations."""
    rounds: ClassVar[int] = 8
    """The number of rounds of each thread."""

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
    def test_many_operations_gathered_all_return(self, store: Calls) -> None:
        store.gather(lambda each: [each.aput(NS, f"k{n}", {"n": n}) for n in range(20)])
        found = store.gather(
            lambda each: [
                each.aget(NS, f"k{number % 20}") if number % 3 else each.asearch(NS, limit=5)
                for number in range(self.many)
            ]
        )
        assert len(found) == self.many
        assert all(found)

    @async_only
    def test_a_bad_call_harms_no_other_call(self, store: Calls) -> None:
        store.put(NS, "old", {"n": 0})
        found = store.gather(
            lambda each: [
                each.aput(NS, "a", {"n": 1}),
                each.asearch(NS, filter={"n": {"$zz": 1}}),
                each.aput(NS, "bad", {"n": object()}),
                each.aget(NS, "old"),
                each.aput(NS, "b", {"n": 2}),
            ],
            return_exceptions=True,
        )
        assert [isinstance(each, Exception) for each in found] == [False, True, True, False, False]
        assert found[3].value == {"n": 0}
        assert {*keys(store.search(NS, limit=10))} == {"old", "a", "b"}

    @async_only
    def test_two_readers_get_an_object_each(self, store: Calls) -> None:
        store.put(NS, "k", {"list": [1]})
        one, other = store.gather(lambda each: [each.aget(NS, "k"), each.aget(NS, "k")])
        one.value["list"].append(2)
        assert other.value == {"list": [1]}

    @async_only
    def test_a_cancelled_call_leaves_the_store_usable(self, store: Calls) -> None:
        def make(each: Any) -> list[asyncio.Task[Any]]:
            tasks = [asyncio.create_task(each.aput(NS, f"k{n}", {"n": n})) for n in range(10)]
            for task in tasks[::2]:
                asyncio.get_running_loop().call_soon(task.cancel)
            return tasks

        found = store.gather(make, return_exceptions=True)
        store.put(NS, "after", {"n": 1})
        done = {f"k{n}" for n in range(10) if not isinstance(found[n], asyncio.CancelledError)}
        assert {"after", *done} <= {*keys(store.search(NS, limit=100))}

    @async_only
    def test_threads_call_sync_methods_while_a_loop_runs(self, store: Calls) -> None:
        def work(each: Any, thread: int) -> int:
            for number in range(self.rounds):
                each.put((*NS, str(thread)), str(number), {"n": number})
                assert each.get((*NS, str(thread)), str(number)).value == {"n": number}
            return thread

        def make(each: Any) -> list[Any]:
            calls = [asyncio.to_thread(work, each, thread) for thread in range(4)]
            return [*calls, each.aput(NS, "beside", {})]

        assert store.gather(make)[:-1] == [0, 1, 2, 3]
        assert store.get(NS, "beside") is not None
