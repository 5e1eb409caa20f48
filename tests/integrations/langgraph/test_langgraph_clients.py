"""Programs that use a LangGraph store, on a diary: agents, graphs, langmem, deepagents, a server."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import operator
import os
import re
import threading
import tomllib
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.tools import InjectedStore, ToolRuntime, tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.types import Send

import programs
from processes import STRICT
from scripted_chat import DONE, Scripted, calling
from tomldiary import Diary
from tomldiary_langgraph import DiaryStore

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "langgraph"


@pytest.fixture
def store(tmp_path):
    return DiaryStore(Diary(tmp_path / "m", durability="process"))


@tool
def note(text: str, runtime: ToolRuntime) -> str:
    """Note down."""
    runtime.store.put(("alice", "notes"), "k", {"text": text})
    return "noted"


@tool("anote")
def note_again(text: str, runtime: ToolRuntime) -> str:
    """Note down."""
    runtime.store.put(("alice", "notes"), "k", {"text": text})
    return "noted"


@tool
async def anote(text: str, runtime: ToolRuntime) -> str:
    """Note down."""
    await runtime.store.aput(("alice", "notes"), "k", {"text": text})
    return "noted"


@tool
def read(store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Read."""
    return store.get(("alice", "notes"), "k").value["text"]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_agent_s_tools_reach_the_store_both_ways(store, is_async):
    model = Scripted(answers=[calling(("note", {"text": "tea"})), calling(("read", {})), DONE])
    agent = create_agent(model, [note, read], store=store)
    asked = {"messages": [HumanMessage("hi")]}
    answer = asyncio.run(agent.ainvoke(asked)) if is_async else agent.invoke(asked)
    assert [message.text for message in answer["messages"] if message.type == "tool"] == [
        "noted",
        "tea",
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_items_of_a_run_have_its_session_and_are_forgotten_with_it(store, tmp_path, is_async):
    model = Scripted(answers=[calling(("anote", {"text": "walnuts"})), DONE])
    agent = create_agent(
        model, [anote if is_async else note_again], store=store, checkpointer=InMemorySaver()
    )
    run = {"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": "t1"}}
    asyncio.run(agent.ainvoke(*run)) if is_async else agent.invoke(*run)
    entry = tomllib.loads((tmp_path / "m/alice/items/notes.toml").read_text())["items"]["k"]
    assert entry["_created_by"] == entry["_updated_by"] == "t1"
    store.diary.user("alice").forget(session_id="t1")
    assert store.search(("alice",)) == []
    files = [path for path in (tmp_path / "m").rglob("*") if path.is_file()]
    assert not any(b"walnuts" in path.read_bytes() for path in files)


class State(TypedDict):
    n: int
    done: Annotated[list[int], operator.add]


@pytest.mark.parametrize("is_async", [False, True])
def test_parallel_nodes_put_at_once(store, is_async):
    def one(state):
        get_store().put(("alice", "fan"), str(state["n"]), {"n": state["n"]})
        return {"done": [state["n"]]}

    builder = StateGraph(State).add_node(one)
    builder.add_conditional_edges(START, lambda _: [Send("one", {"n": n}) for n in range(12)])
    graph = builder.add_edge("one", END).compile(store=store)
    start = {"n": 0, "done": []}
    done = asyncio.run(graph.ainvoke(start)) if is_async else graph.invoke(start)
    assert sorted(done["done"]) == list(range(12))
    assert len(store.search(("alice", "fan"), limit=100)) == 12


def test_an_entrypoint_and_its_tasks_share_the_store(store):
    @task
    def keep(number):
        get_store().put(("alice", "tasks"), str(number), {"n": number})

    @entrypoint(store=store)
    def work(count, *, store):
        for waiting in [keep(number) for number in range(count)]:
            waiting.result()
        return len(store.search(("alice", "tasks"), limit=100))

    assert work.invoke(4) == 4


def test_an_invalid_call_fails_alone_and_a_get_sees_an_earlier_put(store):
    async def run():
        return await asyncio.gather(
            store.aput(("alice", "x"), "k", {"n": 1}),
            store.aget(("alice", "x"), "k"),
            store.abatch([PutOp(("alice", "x"), "bad", {"n": object()})]),
            store.aput(("alice", "x"), "l", {"n": 2}),
            return_exceptions=True,
        )

    done = asyncio.run(run())
    assert [isinstance(each, Exception) for each in done] == [False, False, True, False]
    assert {item.key for item in store.search(("alice",))} == {"k", "l"}


def example(name, *arguments, strict=True, **env):
    line = [*(STRICT if strict else ()), EXAMPLES / name, *arguments]
    done = programs.run(*line, imported=programs.FRAMEWORKS, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def needs(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def test_the_agent_example_remembers_across_runs_for_each_user(tmp_path):
    lines = example("agent.py", tmp_path)
    assert lines[3] == "  A table by the window, please.."
    assert lines[5] == "  nothing."
    assert "[items.seat]" in lines


def test_langmem_s_tools_work_unchanged(tmp_path):
    needs("langmem")
    lines = example("langmem_tools.py", tmp_path, strict=False)  # its imports are deprecated
    assert lines == [
        "created",
        "created",
        "Which table? True False",
        "walnut False True",
        "['Is allergic to walnuts.', 'Likes tables by the window.']",
    ]


class Updates(BaseChatModel):
    """Stands in for langmem's model: changes what it is shown of a drink, or else notes it anew."""

    drink: str

    @property
    def _llm_type(self):
        return "updates"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        told = "\n".join(message.text for message in messages)
        shown = re.search(r"<instance id=(\S+) [^>]*>\s*{'content': 'I drink ", told)
        text = f"I drink {self.drink}"
        if shown is None:
            call = {"name": "Memory", "args": {"content": text}, "id": "1"}
        else:
            patch = {"op": "replace", "path": "/content", "value": text}
            patched = {"json_doc_id": shown[1], "planned_edits": "", "patches": [patch]}
            call = {"name": "PatchDoc", "args": patched, "id": "1"}
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[call]))])


def test_langmem_gives_the_same_memories_as_on_an_in_memory_store(tmp_path):
    needs("langmem")
    ends = []
    for store in (InMemoryStore(), DiaryStore(tmp_path / "m")):
        for drink in ("black tea", "espresso"):
            manager = langmem_manager(Updates(drink=drink), store)
            said = {"messages": [HumanMessage(f"Mornings start with {drink} for me now.")]}
            manager.invoke(said, config={"configurable": {"langgraph_user_id": "robin"}})
        items = store.search(("robin", "memories"))
        ends.append([item.value["content"]["content"] for item in items])
    assert ends == [["I drink espresso"]] * 2


def langmem_manager(model, store):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of langmem's imports
        from langmem import create_memory_store_manager  # noqa: PLC0415 - it warns

        return create_memory_store_manager(
            model, namespace=("{langgraph_user_id}", "memories"), store=store
        )


def test_deepagents_files_work_unchanged(tmp_path):
    needs("deepagents")
    assert example("deep_agent.py", tmp_path) == [
        "By the garden.",
        "['/notes/food.md', '/notes/table.md']",
        "['/notes/food.md']",
        "2 files",
    ]


def test_deepagents_pages_through_many_files(store):
    needs("deepagents")
    from deepagents.backends import StoreBackend  # noqa: PLC0415 - an option of the tests

    backend = StoreBackend(store=store, namespace=lambda _: ("alice", "files"))
    for number in range(230):
        backend.write(f"/d/f{number:03}.md", f"text {number}\n")
    assert len(backend.ls("/d/").entries) == 230
    assert [match["path"] for match in backend.grep("text 229").matches] == ["/d/f229.md"]
    backend.delete("/d/f000.md")
    assert len(backend.ls("/d/").entries) == 229


def served_example():
    path = json.loads((EXAMPLES / "langgraph.json").read_text())["store"]["path"].split(":")[0]
    spec = importlib.util.spec_from_file_location("served", EXAMPLES / path)
    served = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(served)
    return served


def test_the_server_example_identifies_users_by_tokens(monkeypatch):
    monkeypatch.setenv("DEMO_TOKENS", "one=robin,two=kim")
    signed_in = served_example().signed_in
    assert [asyncio.run(signed_in(f"Bearer {token}")) for token in ("one", "two")] == [
        "robin",
        "kim",
    ]
    for wrong in (None, "", "Bearer ", "one", "Bearer three", "Bearer one=robin"):
        with pytest.raises(Exception, match="not known"):
            asyncio.run(signed_in(wrong))


def test_a_server_that_opens_the_store_once_per_thread_loses_no_update(tmp_path, monkeypatch):
    monkeypatch.setenv("DIARY_FOLDER", str(tmp_path / "m"))
    served = served_example()
    robin = {"configurable": {"langgraph_auth_user_id": "robin"}}
    barrier = threading.Barrier(4)

    async def serve():
        async with served.make_store() as store:
            graph = served.graph.compile(store=store)
            barrier.wait()
            answers = [
                await graph.ainvoke({"messages": [HumanMessage("kim")]}, robin) for _ in range(5)
            ]
            return [int(answer["messages"][-1].content) for answer in answers]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: asyncio.run(serve()), range(4)))
    assert sorted(number for each in found for number in each) == list(range(1, 21))
    item = DiaryStore(tmp_path / "m").get(("robin", "stats"), "turns", refresh_ttl=False)
    assert item.value == {"n": 20}
