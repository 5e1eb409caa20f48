"""The tree of LangChain runs."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from tomldiary.agents.delegation import ChainRun, RunTree


class Tree(RunTree):
    @staticmethod
    def config_here() -> None:
        """No run is around it."""


@pytest.mark.parametrize("number", range(2))
def test_two_threads_may_begin_a_run_with_one_id_at_the_same_time(number: int):
    tree, calls = Tree(), count()
    begun: list[ChainRun] = []

    class RunId(str):
        """Another thread begins its run when this one looks the id up."""

        __slots__ = ()
        __eq__ = str.__eq__

        def __hash__(self) -> int:
            if next(calls) == number:
                begun.append(tree.on_chain_start(run_id=one))
            return super().__hash__()

    one: Any = "run 1"
    own: Any = RunId(one)
    begun.append(tree.on_chain_start(run_id=own))
    assert all(each is tree.running[one] for each in begun)
    assert tree.running[one].is_shared == (len(begun) == 2)


def test_a_run_stays_in_the_tree_if_another_one_with_its_id_is_cancelled():
    tree, one, other = Tree(), UUID(int=1), UUID(int=2)

    async def run() -> None:
        tree.on_chain_start(run_id=one)
        try:
            await asyncio.Event().wait()
        finally:
            tree.on_chain_error(asyncio.CancelledError(), run_id=one)

    async def main() -> None:
        tasks = [asyncio.create_task(run()) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        tree.on_chain_start(run_id=other)
        assert [*tree.running] == [one, other]
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert [*tree.running] == [other]

    asyncio.run(main())


def test_a_run_that_never_ends_remembers_its_last_failed_runs_only():
    tree, service = Tree(), UUID(int=0)
    run = tree.on_chain_start(run_id=service)
    for number in range(1, 1_101):
        tree.on_chain_start(run_id=UUID(int=number), parent_run_id=service)
        tree.on_chain_error(OSError(), run_id=UUID(int=number))
    assert [run.failed[0].int, run.failed[-1].int, len(run.failed)] == [101, 1_100, 1_000]
