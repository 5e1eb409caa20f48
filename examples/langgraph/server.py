"""The store of a LangGraph server: `langgraph.json` beside this file names `make_store`.

    "store": {"path": "./server.py:make_store"}

The server opens what it is given once for each of its threads, and calls only the async methods; the
stores share one folder, set by $DIARY_FOLDER. Run: langgraph dev
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from langgraph.config import get_store
from langgraph.graph import END, START, MessagesState, StateGraph

from tomldiary_langgraph import DiaryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def make_store() -> AsyncIterator[DiaryStore]:
    """Open the store; items expire after 30 days in which nobody reads them."""
    folder = os.environ.get("DIARY_FOLDER", "./memories")
    async with DiaryStore(folder, ttl={"default_ttl": 30 * 24 * 60}) as store:
        store.start_ttl_sweeper()  # the server's own sweeper leaves custom stores alone
        yield store


async def count(state: MessagesState) -> MessagesState:
    """Count the turns of a user in the store."""
    store = get_store()
    user = str(state["messages"][-1].content)
    assert isinstance(store, DiaryStore)  # noqa: S101 - the server was given one
    item = await store.aupdate(
        (user, "stats"), "turns", lambda old: {"n": (old or {"n": 0})["n"] + 1}
    )
    return {"messages": [f"{item.value['n'] if item else 0}"]}  # type: ignore[list-item]


graph = StateGraph(MessagesState).add_node(count).add_edge(START, "count").add_edge("count", END)
