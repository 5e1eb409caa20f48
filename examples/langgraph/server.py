"""The store, the authentication and a graph of a LangGraph server; `langgraph.json` refers to them.

    "store": {"path": "./server.py:make_store"}, "auth": {"path": "./server.py:auth"}

The server opens the store once in each of its threads and calls only the async methods. The stores share the
folder $DIARY_FOLDER. The user is always the one that `auth` returns; user ids in a message, the context or the
config are ignored. Needs: pip install "langgraph-cli[inmem]"
Run: DEMO_TOKENS="secret=robin" langgraph dev
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig  # noqa: TC002 - LangGraph reads the annotation
from langgraph.config import get_store
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph_sdk import Auth

from tomldiary_langgraph import DiaryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

auth = Auth()


@auth.authenticate
async def signed_in(authorization: str | None) -> str:
    """Return the user of a token; a real server asks its identity provider."""
    pairs = (pair.split("=") for pair in os.environ.get("DEMO_TOKENS", "").split(",") if pair)
    users = {f"Bearer {token}": user for token, user in pairs}
    if authorization not in users:
        raise Auth.exceptions.HTTPException(status_code=401, detail="The token is not known.")
    return users[authorization]


@auth.on(resources=["threads", "crons"])
async def only_own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str]:
    """Limit users to their own threads and cron jobs: without this, each signed-in user may read and change all of them."""
    owner = {"owner": ctx.user.identity}
    value.setdefault("metadata", {}).update(owner)
    return owner


@asynccontextmanager
async def make_store() -> AsyncIterator[DiaryStore]:
    """Open the store; items expire after 30 days without a read."""
    folder = os.environ.get("DIARY_FOLDER", "./memories")
    async with DiaryStore(folder, ttl={"default_ttl": 30 * 24 * 60}) as store:
        store.start_ttl_sweeper()  # the server's own sweeper ignores custom stores
        yield store


async def count(state: MessagesState, config: RunnableConfig) -> MessagesState:  # noqa: ARG001
    """Count the turns of the signed-in user in the store."""
    user = config["configurable"]["langgraph_auth_user_id"]
    store = get_store()
    assert isinstance(store, DiaryStore)  # noqa: S101 - the server was given one
    item = await store.aupdate(
        (user, "stats"), "turns", lambda old: {"n": (old or {"n": 0})["n"] + 1}
    )
    return {"messages": [f"{item.value['n'] if item else 0}"]}  # type: ignore[list-item]


graph = StateGraph(MessagesState).add_node(count).add_edge(START, "count").add_edge("count", END)
