"""One memory behind LangGraph: a store over a diary's entries, and nodes that recall and remember.

from tomldiary_langgraph import DiaryStore, extract_node, recall_node, submit_node
"""

from __future__ import annotations

from importlib.util import find_spec

from tomldiary.errors import MissingExtra, NotSupported

if find_spec("langgraph") is None:
    raise MissingExtra("tomldiary_langgraph", "langgraph")

from tomldiary_langgraph.nodes import extract_node, recall_node, submit_node
from tomldiary_langgraph.store import DiaryStore
from tomldiary_langgraph.turns import Memory

__all__ = ["DiaryStore", "Memory", "NotSupported", "extract_node", "recall_node", "submit_node"]


def __dir__() -> list[str]:
    return __all__
