"""The tree of LangChain runs."""

from __future__ import annotations

from itertools import count
from typing import Any

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
