"""A user that a server signed in is the only one whose memory a run or a request reaches."""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import GetOp, PutOp, SearchOp
from langgraph_sdk.auth.exceptions import HTTPException
from typing_extensions import TypedDict

from tomldiary import Diary, MemoryWriter
from tomldiary.errors import IdentifierError
from tomldiary_langchain import DiaryMiddleware, DiaryRetriever, diary_tools
from tomldiary_langgraph import DiaryStore, extract_node, recall_node, submit_node

EXAMPLE = Path(__file__).parents[3] / "examples/langgraph/server.py"
MALLORY = {"langgraph_auth_user": {"identity": "mallory"}, "langgraph_auth_user_id": "mallory"}
ANOTHER = "another user than the one"
FORGED: dict[str, dict[str, Any]] = {
    "configurable": {"config": {"configurable": {**MALLORY, "user_id": "alice"}}},
    "langgraph_user_id": {"config": {"configurable": {**MALLORY, "langgraph_user_id": "alice"}}},
    "metadata": {"config": {"configurable": MALLORY, "metadata": {"user_id": "alice"}}},
    "context": {"config": {"configurable": MALLORY}, "context": {"user_id": "alice"}},
}
forged = pytest.mark.parametrize("more", FORGED.values(), ids=FORGED)
both = pytest.mark.parametrize("mode", ["sync", "async"])


class Context(TypedDict, total=False):
    user_id: str


class State(TypedDict, total=False):
    messages: list[Any]
    memory: str
    found: Any


@pytest.fixture
def diary(tmp_path):
    with Diary(tmp_path / "m", agent="rules", durability="process") as opened:
        opened.user("alice").upsert_preference("likes", "dark roast")
        yield opened


def run(graph, state, mode, *, config, **more):
    if mode == "sync":
        return graph.invoke(state, config, **more)
    return asyncio.run(graph.ainvoke(state, config, **more))


def graph_of(node):
    builder = StateGraph(State, context_schema=Context)
    builder.add_node("node", node)
    builder.add_edge(START, "node").add_edge("node", END)
    return builder.compile()


def in_run(function, mode, user="mallory"):
    """Return what a function returns inside a run of a signed-in user."""
    settings = {"langgraph_auth_user": SimpleNamespace(identity=user)}
    state = run(
        graph_of(lambda _: {"found": function()}), {}, mode, config={"configurable": settings}
    )
    return state["found"]


@pytest.mark.parametrize(
    ("kind", "place", "mode"),
    [
        *((kind, "configurable", mode) for kind in ("recall", "extract", "submit") for mode in ("sync", "async")),
        *(("recall", place, "sync") for place in FORGED if place != "configurable"),
    ],
)  # fmt: skip
def test_node_refuses_a_name_beside_the_signed_in_user(diary, kind, place, mode):
    with MemoryWriter(diary) as writer:
        nodes = {"recall": recall_node(diary), "extract": extract_node(diary)}
        graph = graph_of({**nodes, "submit": submit_node(writer)}[kind])
        said = {"messages": [HumanMessage("I like tea."), ("ai", "Noted.")]}
        with pytest.raises(IdentifierError, match=ANOTHER):
            run(graph, said, mode, **FORGED[place])
    assert diary.users() == ["alice"]
    assert len(diary.user("alice").history()) == 1


@pytest.mark.parametrize(
    ("place", "mode"), [("configurable", "async"), *((place, "sync") for place in FORGED)]
)
def test_middleware_refuses_a_name_beside_the_signed_in_user(diary, place, mode):
    model = FakeListChatModel(responses=["hello"])
    middleware = DiaryMiddleware(diary)
    agent = create_agent(model, middleware=[middleware], context_schema=Context)
    with middleware.writer, pytest.raises(IdentifierError, match=ANOTHER):
        run(agent, {"messages": ["hello"]}, mode, **FORGED[place])
    assert diary.users() == ["alice"]


@forged
def test_retriever_and_tools_refuse_a_name_beside_the_signed_in_user(diary, more):
    retriever = DiaryRetriever(diary=diary)
    recall = next(tool for tool in diary_tools(diary) if tool.name == "recall")
    for node in (
        RunnableLambda(lambda _, config: {"found": retriever.invoke("roast", config)}),
        RunnableLambda(lambda _, config: {"found": recall.invoke({"query": "roast"}, config)}),
    ):
        with pytest.raises(IdentifierError, match=ANOTHER):
            graph_of(node).invoke({}, **more)


def test_settings_inside_a_run_do_not_replace_the_signed_in_user(diary):
    retriever = DiaryRetriever(diary=diary)
    other = {"configurable": {"user_id": "alice"}}
    with pytest.raises(IdentifierError, match=ANOTHER):
        in_run(lambda: retriever.invoke("roast", other), "sync")


@both
def test_signed_in_user_is_the_user_of_node_and_middleware(diary, mode):
    config = {"configurable": {**MALLORY, "user_id": "mallory"}}
    assert run(graph_of(recall_node(diary)), {"messages": ["hi"]}, mode, config=config) == {
        "messages": ["hi"],
        "memory": "",
    }
    explicit = recall_node(diary, user_id="alice")
    told = run(graph_of(explicit), {"messages": ["hi"]}, mode, config=config)["memory"]
    assert "dark roast" in told


REACHES = {
    "get": lambda store, namespace: store.get(namespace, "k"),
    "put": lambda store, namespace: store.put(namespace, "k", {"text": "mine"}),
    "delete": lambda store, namespace: store.delete(namespace, "k"),
    "search": lambda store, namespace: store.search(namespace),
    "query": lambda store, namespace: store.search(namespace, query="secret"),
    "list": lambda store, namespace: store.list_namespaces(prefix=namespace),
    "update": lambda store, namespace: store.update(namespace, "k", lambda old: old),
    "batch": lambda store, namespace: store.batch(
        [PutOp(("mallory", "n"), "k", {}), GetOp(namespace, "k")]
    ),
}
AREACHES = {
    "aget": lambda store, namespace: store.aget(namespace, "k"),
    "aput": lambda store, namespace: store.aput(namespace, "k", {"text": "mine"}),
    "adelete": lambda store, namespace: store.adelete(namespace, "k"),
    "asearch": lambda store, namespace: store.asearch(namespace),
    "alist": lambda store, namespace: store.alist_namespaces(prefix=namespace),
    "aupdate": lambda store, namespace: store.aupdate(namespace, "k", lambda old: old),
    "abatch": lambda store, namespace: store.abatch(
        [PutOp(("mallory", "n"), "k", {}), SearchOp(namespace)]
    ),
}
LAYOUTS = {
    "first label": (0, ("alice", "notes"), ("mallory", "notes")),
    "second label": (1, ("notes", "alice"), ("notes", "mallory")),
    "typed": (0, ("alice", "diary", "preferences", "likes"), None),
    "typed, second label": (1, ("alice", "diary", "preferences", "likes"), None),
    "typed, all shared": (None, ("alice", "diary", "preferences", "likes"), None),
    "function": (lambda names, _: names[-1], ("notes", "alice"), ("notes", "mallory")),
}


def filled(diary, layout):
    label, alices, mallorys = LAYOUTS[layout]
    store = DiaryStore(diary, user_label=label)
    if mallorys is not None:
        store.put(alices, "k", {"text": "a secret"})
        store.put(mallorys, "k", {"text": "no secret"})
    return store, alices, mallorys


@pytest.mark.parametrize(
    ("layout", "reach"),
    [
        *(("first label", reach) for reach in [*REACHES, *AREACHES]),
        # Each operation asks for the owner of its namespace alike.
        *((layout, reach) for layout in list(LAYOUTS)[1:] for reach in ("put", "search", "list", "abatch")),
    ],
)  # fmt: skip
def test_store_refuses_namespaces_of_other_users_in_a_signed_in_run(diary, reach, layout):
    store, alices, _ = filled(diary, layout)
    before = len(diary.user("alice").history()), diary.users()
    is_async = reach in AREACHES

    async def anode(_):
        return {"found": await AREACHES[reach](store, alices)}

    def reached():
        if not is_async:
            return in_run(lambda: REACHES[reach](store, alices), "sync")
        return asyncio.run(graph_of(anode).ainvoke({}, {"configurable": MALLORY}))["found"]

    if callable(LAYOUTS[layout][0]) and reach in {"search", "query", "list", "asearch", "alist"}:
        # What a function says of a prefix is not known: these show what is the user's own.
        assert reached() == []
        return
    with pytest.raises(IdentifierError, match=ANOTHER):
        reached()
    assert (len(diary.user("alice").history()), diary.users()) == before


@both
@pytest.mark.parametrize("layout", ["first label", "second label", "function"])
def test_signed_in_run_searches_and_lists_only_its_own_and_shared(diary, layout, mode):
    store, alices, mallorys = filled(diary, layout)
    shared = DiaryStore(diary, user_label=None)
    shared.put(("manual",), "k", {"text": "no secret either"})
    open_prefix = alices[:1] if alices[0] == "notes" else ()
    for prefix in {(), open_prefix}:
        for query in (None, "secret"):
            found = in_run(lambda p=prefix, q=query: store.search(p, query=q), mode)
            assert [each.namespace for each in found if each.namespace[0] != "manual"] == [mallorys]
        listed = in_run(lambda p=prefix: store.list_namespaces(prefix=p), mode)
        assert [each for each in listed if each != ("manual",)] == [mallorys]
    assert alices in store.list_namespaces()
    assert in_run(lambda: store.get(mallorys, "k"), mode).value == {"text": "no secret"}
    assert in_run(lambda: store.get(alices, "k"), mode, user="alice").value["text"] == "a secret"


def test_a_request_of_the_store_routes_is_limited_to_its_user(diary, monkeypatch):
    store, alices, mallorys = filled(diary, "first label")
    request = SimpleNamespace(user=SimpleNamespace(identity="mallory"))
    monkeypatch.setitem(
        sys.modules, "langgraph_api.utils", SimpleNamespace(get_auth_ctx=lambda: request)
    )
    with pytest.raises(IdentifierError, match=ANOTHER):
        asyncio.run(store.aget(alices, "k"))
    assert asyncio.run(store.aget(mallorys, "k")).value == {"text": "no secret"}
    assert [item.namespace for item in store.search(())] == [mallorys]
    request.user = SimpleNamespace(identity="")
    assert store.get(alices, "k").value == {"text": "a secret"}


def test_the_example_server_limits_users_to_their_own_threads_and_cron_jobs(tmp_path, monkeypatch):
    monkeypatch.setenv("DIARY_FOLDER", str(tmp_path / "m"))
    monkeypatch.setenv("DEMO_TOKENS", "secret=robin")
    server = SimpleNamespace(**runpy.run_path(str(EXAMPLE)))
    robin = SimpleNamespace(user=SimpleNamespace(identity="robin"))
    assert '@auth.on(resources=["threads", "crons"])' in EXAMPLE.read_text()

    async def main():
        assert await server.signed_in("Bearer secret") == "robin"
        with pytest.raises(HTTPException, match="not known"):
            await server.signed_in("Bearer other")
        value = {"metadata": {"owner": "mallory", "topic": "tea"}}
        assert await server.only_own(ctx=robin, value=value) == {"owner": "robin"}
        assert value == {"metadata": {"owner": "robin", "topic": "tea"}}
        assert await server.only_own(ctx=robin, value={}) == {"owner": "robin"}
        async with server.make_store() as store:
            graph = server.graph.compile(store=store)
            said = {"messages": [HumanMessage("Hello.")]}
            config = {"configurable": {"langgraph_auth_user_id": "robin"}}
            answers = [(await graph.ainvoke(said, config))["messages"][-1].text for _ in range(2)]
            assert answers == ["1", "2"]

    asyncio.run(main())
