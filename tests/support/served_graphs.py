"""The graphs, the store and the authentication of the server that test_langgraph_server starts.

The server loads this file once for each of them, under names of its own: no postponed annotations here,
and what they share is in `served_memory`.
"""

from contextlib import asynccontextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_store
from langgraph.graph import MessagesState, StateGraph
from langgraph_sdk import Auth
from typing_extensions import TypedDict

from served_memory import diary, writer
from tomldiary_langchain import DiaryRetriever
from tomldiary_langgraph import DiaryStore, Memory, recall_node, submit_node

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> str:
    """Return the user; a token is the user's name."""
    kind, _, user = (authorization or "").partition(" ")
    if kind != "Bearer" or not user:
        raise Auth.exceptions.HTTPException(status_code=401, detail="no token")
    return user


@asynccontextmanager
async def make_store():
    """Open the store once for each thread of the server."""
    async with DiaryStore(diary, ttl={"default_ttl": 60}) as store:
        store.start_ttl_sweeper()
        yield store


class State(MessagesState):
    """A conversation."""

    memory: Memory


class Context(TypedDict, total=False):
    """What a client may say of a run."""

    user_id: str


class Probed(TypedDict, total=False):
    """A namespace of the client's choice, and what was found there."""

    namespace: list[str]
    found: Any
    stats: Any


async def answer(state: State) -> dict[str, Any]:
    """Answer with what is known."""
    return {"messages": [("ai", f"known: {state['memory']}")]}


async def count(state: State, config: RunnableConfig) -> dict[str, Any]:
    """Count the user's runs in the store, and leave no memory in the values of the thread."""
    user = config["configurable"]["langgraph_auth_user_id"]
    store = get_store()
    assert isinstance(store, DiaryStore)
    await store.aupdate((user, "runs"), "n", lambda old: {"n": (old or {"n": 0})["n"] + 1})
    return {"memory": ""}


async def probe(state: Probed) -> dict[str, Any]:
    """Search the namespace that the client names."""
    items = await get_store().asearch(tuple(state["namespace"]))
    return {"found": [[list(item.namespace), item.value] for item in items]}


async def retrieve(state: Probed) -> dict[str, Any]:
    """Look up the memory of the run's user."""
    found = await DiaryRetriever(diary=diary).ainvoke("secret")
    return {"found": [document.page_content for document in found]}


async def stats(state: Probed) -> dict[str, Any]:
    """Wait for the writer, and tell what it did."""
    await writer.aflush(30)
    return {"stats": {key: writer.stats()[key] for key in ("completed", "failed", "pending")}}


def graph_of(state: Any, *nodes: tuple[str, Any]) -> Any:
    """Return a graph that runs nodes one after the other."""
    builder = StateGraph(state, context_schema=Context).add_sequence(nodes)
    return builder.set_entry_point(nodes[0][0]).compile()


chat = graph_of(
    State,
    ("recall", recall_node(diary)),
    ("answer", answer),
    ("submit", submit_node(writer)),
    ("count", count),
)
probing = graph_of(Probed, ("probe", probe))
retrieving = graph_of(Probed, ("retrieve", retrieve))
telling = graph_of(Probed, ("stats", stats))
