"""The tree of runs, from LangChain's callbacks."""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import ensure_config
from langchain_core.tracers.context import register_configure_hook

from tomldiary.agents.delegation import LANGCHAIN, RunTree, tell_within

__all__ = ["runs"]


class _Runs(RunTree, BaseCallbackHandler):
    """The tree of a process's runs."""


@cache
def runs() -> RunTree:
    """Return the tree of this process, registered with LangChain from the first call on."""
    tree = _Runs()
    register_configure_hook(ContextVar("tomldiary_runs", default=tree), inheritable=True)
    tell_within(LANGCHAIN, lambda: tree.is_of_agent(ensure_config()))
    return tree
