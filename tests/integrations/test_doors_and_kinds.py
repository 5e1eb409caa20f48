"""One memory behind all doors: what each door writes, every other one reads, finds, explains and forgets.

The doors are LangGraph's store, nodes of a graph, LangChain's tools and middleware, pydantic-ai's tools and
capability, and the command line. The kinds are those that recall searches. A cell is one entry of one kind that one
door has written; its text is one word of its own. Drafts and what waits for a review are no memory yet: each door
hides them, except where a person or the session asks for them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from itertools import cycle, pairwise
from typing import TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.graph import StateGraph
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from typer.testing import CliRunner

from scripted_chat import Scripted, calling
from tomldiary import Constraint, Diary
from tomldiary.cli.app import app
from tomldiary.user.recall import kinds_named
from tomldiary_langchain import DiaryMiddleware, diary_tools
from tomldiary_langgraph import DiaryStore, extract_node, recall_node
from tomldiary_pydantic_ai import DiaryCapability, DiaryToolset

DOORS = ("store", "nodes", "langchain", "pydantic", "cli")
KINDS = [kind.name for kind in kinds_named(None)]
CELLS = [(door, kind) for door in DOORS for kind in KINDS]
cells = pytest.mark.parametrize(("door", "kind"), CELLS)
# All doors store an entry of a kind alike, as the test of all cells shows: these have each door and each kind once.
some_cells = pytest.mark.parametrize(("door", "kind"), list(zip(cycle(DOORS), KINDS)))


class Note(BaseModel):
    key: str
    text: str


class State(TypedDict, total=False):
    messages: list
    memory: str


def word(door, kind):
    return f"walnut{door}{kind}"


def namespace(kind):
    named = {"preferences": ("preferences", "likes"), "facts": ("facts", "note")}
    return ("alice", "work") if kind == "items" else ("alice", "diary", *named.get(kind, (kind,)))


def value(door, kind):
    text = word(door, kind)
    shapes = {
        "conversations": {"summary": text},
        "facts": {"key": door, "text": text},
        "episodes": {"input": text, "output": "Yes."},
    }
    return shapes.get(kind, {"text": text})


class Extractor:
    """Files a turn as a preference, a fact and the summary of its session."""

    def run(self, message, *, deps):
        door = deps.session_id
        deps.upsert("likes", door, word(door, "preferences"), ())
        deps.commit_fact("note", value(door, "facts"))
        deps.summarise(word(door, "conversations"), None)


def opened(folder):
    diary = Diary(folder, agent=Extractor(), durability="none", similarity=100)
    diary.register_schema("note", Note, Constraint(singleton_key="key"))
    return diary


def by_store(diary):
    store = DiaryStore(diary)
    for kind in KINDS:
        store.put(namespace(kind), "store", value("store", kind))


def graph_of(*nodes, store=None):
    graph = StateGraph(State)
    names = [f"n{number}" for number in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    graph.set_entry_point(names[0])
    for one, other in pairwise(names):
        graph.add_edge(one, other)
    graph.set_finish_point(names[-1])
    return graph.compile(store=store)


def config(door):
    return {"configurable": {"user_id": "alice", "session_id": door, "thread_id": door}}


def by_nodes(diary):
    def work(state, *, store):
        for kind in ("blocks", "items"):
            store.put(namespace(kind), "nodes", value("nodes", kind))
        return state

    extract = extract_node(diary, episodes=True)
    graph = graph_of(work, extract, store=DiaryStore(diary))
    messages = [("user", word("nodes", "episodes")), ("assistant", "Yes.")]
    graph.invoke({"messages": messages}, config("nodes"))


def by_langchain(diary):
    diary.user("alice").blocks.set("langchain", "seed")
    DiaryStore(diary).put(namespace("items"), "langchain", {"text": "seed"})
    calls = [
        ("append_block", {"name": "langchain", "text": word("langchain", "blocks")}),
        ("update", {"key": "items/work/langchain", "text": word("langchain", "items")}),
    ]
    model = Scripted(answers=[calling(*calls), AIMessage("Yes.")])
    middleware = DiaryMiddleware(
        diary, user_id="alice", session_id="langchain", tools="all", episodes=True
    )
    agent = create_agent(model, middleware=[middleware])
    agent.invoke({"messages": [("user", word("langchain", "episodes"))]}, config("langchain"))
    middleware.writer.close_sync()


def by_pydantic(diary):
    diary.user("alice").blocks.set("pydantic", "seed")
    DiaryStore(diary).put(namespace("items"), "pydantic", {"text": "seed"})

    def answer(messages, info):
        if len(messages) > 1:
            return ModelResponse([TextPart("Yes.")])
        keys = {"blocks": "blocks/pydantic", "items": "items/work/pydantic"}
        calls = [(key, word("pydantic", kind)) for kind, key in keys.items()]
        return ModelResponse(
            [ToolCallPart("update", {"key": key, "text": text}) for key, text in calls]
        )

    capability = DiaryCapability(diary, "alice", "pydantic", episodes=True)
    agent = Agent(FunctionModel(answer), capabilities=[capability])
    asyncio.run(agent.run(word("pydantic", "episodes")))
    capability.writer.close_sync()


def by_cli(diary, folder):
    other = opened("memory:").user("alice")
    store = DiaryStore(other.diary)
    for kind in KINDS:
        store.put(namespace(kind), "cli", value("cli", kind))
    path = folder.parent / "export.json"
    path.write_text(json.dumps(other.export()))
    cli(folder, "import", str(path), "--user", "alice")


def cli(folder, *arguments):
    done = CliRunner().invoke(app, [*arguments, "--path", str(folder)])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doors") / "m"
    diary = opened(folder)
    by_store(diary)
    by_nodes(diary)
    by_langchain(diary)
    by_pydantic(diary)
    by_cli(diary, folder)
    return folder


@pytest.fixture(scope="module")
def alice(folder):
    return opened(folder).user("alice")


def ask(alice, name, **arguments):
    """Return what a tool of pydantic-ai answers."""

    def model(messages, info):
        if len(messages) > 1:
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart(name, arguments)])

    toolset = DiaryToolset(alice.diary, "alice", "s9", inject=False)
    done = asyncio.run(Agent(FunctionModel(model), toolsets=[toolset]).run("x"))
    return str(done.all_messages()[2].parts[0].content)


@pytest.fixture(scope="module")
def exported(alice):
    return "".join(alice.export()["documents"].values())


def found(alice, door, kind):
    (hit,) = alice.recall(word(door, kind), kinds=[kind])
    return hit


@cells
def test_an_entry_is_found_explained_and_exported_whoever_wrote_it(alice, exported, door, kind):
    text = word(door, kind)
    hit = found(alice, door, kind)
    assert text in hit.text
    why = alice.why(hit.full_key)
    assert text in why.text
    assert why.changes
    assert alice.history(hit.full_key)
    assert text in exported


@some_cells
def test_the_store_and_the_graph_read_what_any_door_wrote(alice, door, kind):
    text = word(door, kind)
    read = []

    def look(state, *, store):
        read.extend(store.search(namespace(kind), query=text, limit=1))
        return state

    graph = graph_of(look, recall_node(alice.diary), store=DiaryStore(alice.diary))
    state = graph.invoke({"messages": [("user", text)]}, config("s9"))
    assert text in json.dumps(read[0].value)
    # Whole turns and all but the last three conversations are looked up, not shown.
    if kind not in {"episodes", "conversations"}:
        assert text in state["memory"]


@some_cells
def test_tools_of_langchain_and_pydantic_ai_read_what_any_door_wrote(alice, door, kind):
    text = word(door, kind)
    (recall,) = diary_tools(alice.diary, "alice", tools=["recall"])
    assert text in recall.invoke({"query": text})
    assert text in ask(alice, "recall", query=text)


@some_cells
def test_the_command_line_reads_what_any_door_wrote(alice, folder, door, kind):
    text = word(door, kind)
    hits = json.loads(cli(folder, "search", text, "--user", "alice", "--json"))
    assert text in hits[0]["text"]
    assert text in cli(folder, "why", hits[0]["key"], "--user", "alice", "--json")
    assert text in cli(folder, "show", "alice", "--json")


FORGETTERS = {
    "store": "langchain",
    "nodes": "pydantic",
    "langchain": "store",
    "pydantic": "cli",
    "cli": "nodes",
}


@pytest.fixture
def copied(folder, tmp_path):
    """Return a copy of the memory, to remove entries from."""
    return shutil.copytree(folder, tmp_path / "m")


@pytest.mark.parametrize("door", DOORS)
def test_what_any_door_wrote_another_one_removes(copied, door):
    folder, alice, with_door = copied, opened(copied).user("alice"), FORGETTERS[door]
    # A node deletes as the store does: it has one kind.
    kinds = ["facts"] if with_door == "nodes" else KINDS
    for kind in kinds:
        hit = found(alice, door, kind)
        key = hit.full_key
        own = hit.key.rpartition("/")[2] if kind in {"preferences", "facts", "items"} else hit.key
        if with_door == "langchain":
            (forget,) = diary_tools(alice.diary, "alice", tools=["forget"])
            assert forget.invoke({"key": key}).startswith("🗑️")
        elif with_door == "pydantic":
            assert ask(alice, "forget", key=key).startswith("🗑️")
        elif with_door == "store":
            DiaryStore(alice.diary).delete(namespace(kind), own)
        elif with_door == "nodes":

            def remove(state, *, store, kind=kind, own=own):
                store.delete(namespace(kind), own)
                return state

            graph_of(remove, store=DiaryStore(alice.diary)).invoke({}, config("s9"))
    if with_door == "cli":
        cli(folder, "forget", "--user", "alice", "--session", door, "--yes")
        files = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert not any(word(door, kind).encode() in files for kind in kinds)
    assert [kind for kind in kinds if alice.recall(word(door, kind))] == []


HELD = [(state, kind) for state in ("draft", "review") for kind in KINDS if kind != "conversations"]
"""Summaries of conversations are never held back."""


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Return a memory in which nothing but items was decided; what waits has a word of its own."""
    folder = tmp_path_factory.mktemp("held") / "m"
    diary = Diary(folder, agent=Extractor(), durability="none", similarity=100, quarantine={"web"})
    diary.register_schema("note", Note, Constraint(singleton_key="key"))
    alice = diary.user("alice")
    for state, how in (("draft", {"session_id": "s1"}), ("review", {"actor": "web"})):
        DiaryStore(diary).put(namespace("items"), state, {"text": "seed"})
        to, text = alice.draft("s1") if state == "draft" else alice, f"pecan{state}"
        to.upsert_preference("likes", f"{text}preferences", **how)
        to.facts.commit("note", {"key": state, "text": f"{text}facts"}, **how)
        to.blocks.set(state, f"{text}blocks", **how)
        to.episodes.add(f"{text}episodes", "Yes.", **how)
        to.items.update(f"work/{state}", {"text": f"{text}items"}, **how)
    return folder, alice


@pytest.fixture(scope="module")
def prompts(held):
    """Return what the models of two agents are told in the session of the drafts."""
    alice, told = held[1], []

    def model(messages, info):
        told.append(f"{messages} {info.instructions}")
        return ModelResponse([TextPart("Yes.")])

    capability = DiaryCapability(alice.diary, "alice", "s1")
    asyncio.run(Agent(FunctionModel(model), capabilities=[capability]).run("hello"))
    capability.writer.close_sync()
    chat = Scripted(answers=[AIMessage("Yes.")])
    middleware = DiaryMiddleware(alice.diary, user_id="alice", session_id="s1")
    create_agent(chat, middleware=[middleware]).invoke(
        {"messages": [("user", "hello")]}, config("s1")
    )
    middleware.writer.close_sync()
    assert len(told) == len(chat.asked) == 1
    return f"{told} {chat.asked}"


@pytest.mark.parametrize(("state", "kind"), HELD)
def test_no_door_shows_a_model_what_waits_for_a_decision(held, prompts, state, kind):
    (folder, alice), text = held, f"pecan{state}{kind}"
    assert "seed" in prompts
    assert text not in prompts
    read = []

    def look(graph_state, *, store):
        read.extend(store.search(namespace(kind), query=text, limit=50))
        return graph_state

    graph = graph_of(look, recall_node(alice.diary), store=DiaryStore(alice.diary))
    shown = graph.invoke({"messages": [("user", text)]}, config("s1"))
    assert text not in json.dumps([item.value for item in read]) + str(shown["memory"])
    (recall,) = diary_tools(alice.diary, "alice", tools=["recall"])
    assert text not in recall.invoke({"query": f"{text} seed"}).replace(f"{text} seed", "")

    for words in (["search", text], ["show", "alice"]):
        user = ["--user", "alice"] if words[0] == "search" else []
        assert text not in cli(folder, *words, *user, "--json").replace(f'"{text}"', "")
    assert alice.recall(text) == []
    assert text not in alice.render(text)


@pytest.mark.parametrize(("state", "kind"), HELD)
def test_what_waits_is_shown_to_who_decides_exported_and_forgotten(held, tmp_path, state, kind):
    (folder, alice), text = held, f"pecan{state}{kind}"
    waits = alice.drafts("s1") if state == "draft" else alice.review()
    (change,) = [each for each in waits if text in str(each.after)]
    if state == "draft":
        assert text in str(alice.draft("s1").recall(text, kinds=[kind]))
        assert alice.draft("s2").recall(text) == []
    else:
        assert text in cli(folder, "review", "--user", "alice", "--json")
    assert any(text in document for document in alice.export()["documents"].values())
    again = Diary(shutil.copytree(folder, tmp_path / "m"), agent="rules").user("alice")
    again.forget(key=change.key)
    assert again.traces(text) == []


def test_each_door_names_its_memory_and_its_user_in_its_repr():
    diary = Diary("memory:", agent="rules")
    with DiaryMiddleware(diary).writer as writer:
        doors = [
            DiaryStore(diary),
            DiaryToolset(diary),
            DiaryMiddleware(diary, writer=writer),
            DiaryCapability(diary, writer=writer),
            DiaryToolset(diary, user_id="alice"),
            DiaryMiddleware(diary, user_id="alice", writer=writer),
            DiaryCapability(diary, user_id="alice", writer=writer),
        ]
    for number, door in enumerate(doors):
        assert repr(door).startswith(f"{type(door).__name__}(")
        assert repr(diary) in repr(door)
        assert ("user_id='alice'" in repr(door)) == (number > 3)
