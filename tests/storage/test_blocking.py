"""Nothing blocks an event loop: every coroutine under blockbuster, which raises on disk work in a loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import threading
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import pytest
from blockbuster import BlockBuster
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.store.base import GetOp, PutOp, SearchOp
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from tomldiary import CompactionConfig, Constraint, Diary, MemoryWriter, Turn
from tomldiary.user.blocks import UserBlocks
from tomldiary.user.deprecated import DeprecatedNames
from tomldiary.user.episodes import UserEpisodes
from tomldiary.user.facts import UserFacts
from tomldiary.user.user import UserDiary
from tomldiary_langchain import DiaryMiddleware, DiaryRetriever, diary_tools
from tomldiary_langgraph import DiaryStore, extract_node, recall_node, submit_node
from tomldiary_pydantic_ai import AgentMemoryToolset, DiaryCapability, DiaryToolset

NOW = datetime(2026, 3, 1, tzinfo=UTC)
NS = ("alice", "memories")


class Diet(BaseModel):
    role: str
    food: str


@contextlib.contextmanager
def no_blocking():
    """Raise BlockingError on a blocking call in any running loop, ours and the host's."""
    guard = BlockBuster()
    guard.functions["os.listdir"].can_block_in("importlib/metadata/__init__.py", "children")
    for name in ("os.stat", "io.BufferedReader.read", "io.TextIOWrapper.read"):
        guard.functions[name].can_block_in("importlib/metadata/__init__.py", {"mtime", "read_text"})
    guard.activate()
    try:
        yield
    finally:
        guard.deactivate()


def run(main):
    async def guarded():
        with no_blocking():
            return await main()

    return asyncio.run(guarded())


@pytest.fixture(params=["full", "process"])
def diary(request, tmp_path):
    config = CompactionConfig(enabled=False)
    made = Diary(tmp_path / "m", agent="rules", durability=request.param, compaction_config=config)
    made.register_schema("diet", Diet, constraint=Constraint(singleton_key="role"))
    return made


def test_a_blocking_call_in_an_event_loop_is_detected(tmp_path):
    (tmp_path / "x").write_text("x")

    async def main():
        (tmp_path / "x").read_text()

    with pytest.raises(Exception, match="Blocking call"):
        run(main)


CALLS: dict[str, Any] = {
    "aupsert_preference": ("likes", "dark roast"),
    "apreferences": (),
    "asimilar": ("likes", "roast"),
    "asame_elsewhere": ("likes", "roast"),
    "aremove_preference": ("likes", "pref001"),
    "aconversations": (),
    "aadd_turn": ("I'm allergic to walnuts.", "Noted.", "s1"),
    "aremove_conversation": ("s1",),
    "blocks.aset": ("persona", "kind"),
    "blocks.aappend": ("persona", "and calm"),
    "blocks.areplace": ("persona", "kind", "warm"),
    "blocks.aget": ("persona",),
    "blocks.aall": (),
    "blocks.adelete": ("persona",),
    "facts.acommit": (Diet(role="user", food="rice"),),
    "facts.aget": None,
    "facts.aupdate": None,
    "facts.aquery": ("diet",),
    "facts.acount": ("diet",),
    "facts.adelete": None,
    "episodes.aadd": ("a question", "an answer"),
    "episodes.aget": ("2026-11-20T07:30:00.000000Z",),
    "episodes.alist": (),
    "episodes.amessages": ("s1",),
    "episodes.adelete": None,
    "akeys_of_line": ("likes: walnuts",),
    "arecall": ("walnuts",),
    "arender": ("walnuts",),
    "amemory_lines": (),
    "ahistory": (),
    "awhy": ("likes/pref001",),
    "adiff": (1, 2),
    "adiff_text": (1, 2),
    "ahas_done": ("an operation",),
    "alast_transaction": (),
    "adocuments": (),
    "adocument": ("preferences",),
    "aproblems": (),
    "aentry": None,
    "aas_of": (1,),
    "akept_history": (),
    "aprune_history": None,
    "arollback": (),
    "adrafts": (),
    "apromote_session": ("s1",),
    "adiscard_session": ("s1",),
    "aconfirm": None,
    "atraces": ("walnuts",),
    "aprofile": (),
    "aexport": (),
    "aimport_": None,
    "aimport_preview": None,
    "aforget": None,
    "aconsolidate": (),
}


def test_every_coroutine_of_a_user_diary_is_called_here():
    parts = {"": UserDiary, "facts.": UserFacts, "blocks.": UserBlocks, "episodes.": UserEpisodes}
    found = {
        f"{prefix}{name}"
        for prefix, part in parts.items()
        for name, value in inspect.getmembers(part, inspect.iscoroutinefunction)
        if value is not getattr(DeprecatedNames, name, None)
    }
    assert found == set(CALLS)


def test_user_diary_coroutines_do_not_block(diary):
    async def main():
        alice = diary.user("alice")
        await alice.aupsert_preference("likes", "green tea")
        await alice.aconfirm("likes/pref001")
        assert await alice.aentry("preferences", "likes/pref001")
        for name, arguments in CALLS.items():
            if arguments is not None:
                await attrgetter(name)(alice)(*arguments)
        fact = await alice.facts.acommit(Diet(role="user", food="bread"))
        assert await alice.facts.aget(fact)
        fact = await alice.facts.aupdate(fact, {"food": "soup"})
        await alice.facts.adelete(fact)
        async with alice.atransaction(session_id="s2"):
            await alice.aupsert_preference("likes", "a walk")
            await alice.blocks.aset("persona", "kind")
        episode = await alice.episodes.aadd("q", "a")
        await alice.episodes.adelete(episode)
        await diary.user("bob").aimport_preview(await alice.aexport())
        await diary.user("bob").aimport_(await alice.aexport())
        await alice.aprune_history(keep=3)
        await alice.aforget(everything=True)
        await diary.update_memory("carol", "s1", "I love tea.", "Noted.")
        for name in ("preferences", "last_conversations", "pretty_preferences"):
            await getattr(diary, name)("carol")
        await diary.pretty_conversations("carol")
        await diary.ensure_session("carol", "s2")

    run(main)


def test_store_coroutines_do_not_block(diary):
    async def main():
        store = DiaryStore(diary, ttl={"default_ttl": 5})
        async with store:
            store.start_ttl_sweeper()
            await asyncio.gather(*(store.aput(NS, f"k{n}", {"text": f"tea {n}"}) for n in range(5)))
            await store.aput(("alice", "diary", "preferences", "likes"), "new", {"text": "tea"})
            assert (await store.aget(NS, "k1")).value == {"text": "tea 1"}
            assert await store.aget(NS, "k1", refresh_ttl=True)
            assert len(await store.asearch(("alice",), query="tea 3")) == 6
            assert len(await store.alist_namespaces()) == 2
            await store.aupdate(NS, "k1", lambda old: {**(old or {}), "n": 1})
            await store.abatch([GetOp(NS, "k1"), PutOp(NS, "k2", None), SearchOp(NS)])
            await store.adelete(NS, "k3")
        index = {"dims": 1, "embed": lambda texts: [[1.0] for _ in texts]}
        async with DiaryStore(diary, index=index) as indexed:
            await indexed.aput(NS, "k", {"text": "tea"})
            assert await indexed.asearch(NS, query="tea")

    run(main)


@pytest.mark.parametrize("durability", ["full", "none"])
def test_writer_applies_every_turn_without_blocking_a_loop(tmp_path, durability, caplog):
    diary = Diary(tmp_path / "m", agent="rules", durability=durability)

    async def main():
        async with MemoryWriter(diary) as writer:
            alone = [
                await writer.submit("alice", "s", f"I love tea {n}.", "Noted.") for n in range(20)
            ]
            at_once = await asyncio.gather(
                *(writer.submit(f"u{n % 7}", "s", f"I love tea {n}.", "Noted.") for n in range(30))
            )
            queued = [
                writer.submit_nowait(Turn("bob", "s", f"I love tea {n}.", "Noted."))
                for n in range(20)
            ]
            with_id = Turn("carol", "s", "I love tea.", "Noted.", operation_id="one")
            queued += [writer.submit_nowait(with_id), writer.submit_nowait(with_id)]
            assert await writer.aflush(60)
            for receipt in [*alone, *at_once, *queued]:
                await receipt
            return writer.stats()

    stats = run(main)
    assert (stats["completed"], stats["failed"], stats["pending"]) == (71, 0, 0)
    assert caplog.text == ""


def test_a_cancelled_submit_withdraws_its_turn_without_blocking(tmp_path):
    started, go_on = threading.Event(), threading.Event()

    class Waits:
        def run(self, message, /, *, deps):
            started.set()
            go_on.wait(30)

    diary = Diary(tmp_path / "m", agent=Waits())

    async def main():
        async with MemoryWriter(diary, workers=1) as writer:
            await writer.submit("alice", "s", "one", "two")
            await asyncio.to_thread(started.wait, 30)
            tasks = [
                asyncio.ensure_future(writer.submit("alice", "s", f"three {n}", "four"))
                for n in range(5)
            ]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in results)
            go_on.set()
            assert await writer.aflush(30)
            return writer.stats()

    stats = run(main)
    assert (stats["completed"], stats["failed"]) == (1, 0)


def test_journal_of_a_dead_writer_is_taken_over_without_blocking(tmp_path, caplog):
    folder = tmp_path / "m"
    dead = MemoryWriter(Diary(folder, agent=Broken()), retry=None)
    dead.submit_nowait(Turn("alice", "s", "I love tea.", "Noted.")).wait_stored(30)
    dead.close_sync(drain=False)  # as after a kill: the journal stays, and no process holds it

    async def main():
        async with MemoryWriter(Diary(folder, agent="rules")) as writer:
            assert await writer.aflush(30)
            return writer.stats()

    try:
        stats = run(main)
    finally:
        dead.close_sync(0, drain=False)
    assert (stats["recovered"], stats["completed"], stats["failed"]) == (1, 1, 0)
    assert list((folder / ".tomldiary/journal").glob("[0-9]*")) == []


class Broken:
    def run(self, message, /, *, deps):
        threading.Event().wait(0.2)
        raise ConnectionError("no model")


def state_graph(nodes):
    builder = StateGraph(Remembering)
    builder.add_sequence(nodes)
    builder.set_entry_point(nodes[0][0])
    return builder.compile(checkpointer=InMemorySaver())


class Remembering(MessagesState):
    memory: str


def test_nodes_and_middleware_do_not_block(diary):
    config: Any = {"configurable": {"user_id": "alice", "thread_id": "t"}}

    async def answer(_):
        return {"messages": [("ai", "Noted.")]}

    async def main():
        async with MemoryWriter(diary) as writer:
            for drink, last in (("tea", extract_node(diary)), ("milk", submit_node(writer))):
                nodes = [("recall", recall_node(diary)), ("answer", answer), ("last", last)]
                graph = state_graph(nodes)
                for n in range(5):
                    await graph.ainvoke({"messages": [("user", f"I love {drink} {n}.")]}, config)
            middleware = DiaryMiddleware(diary, writer=writer, query="prompt")
            agent = create_agent(FakeListChatModel(responses=["Hi."]), middleware=[middleware])
            for n in range(5):
                await agent.ainvoke({"messages": [("user", f"I love coffee {n}.")]}, config)
            for tool in diary_tools(diary, user_id="alice"):
                if tool.name == "recall":
                    assert "tea" in str(await tool.ainvoke({"query": "tea"}))
            assert await DiaryRetriever(diary=diary).ainvoke("tea", config)
            assert await writer.aflush(60)
            return writer.stats()

    stats = run(main)
    assert (stats["completed"], stats["failed"]) == (10, 0)


@pytest.mark.parametrize("make", [DiaryMiddleware, DiaryCapability, DiaryToolset, recall_node])
def test_an_agent_is_made_from_a_folder_without_blocking(tmp_path, make):
    async def main():
        return make(tmp_path / "m", user_id="alice")

    assert run(main) is not None


def test_toolsets_and_capability_do_not_block(diary):
    async def main():
        for toolset in (
            DiaryToolset(diary, "alice"),
            AgentMemoryToolset(memory_dir=diary, user_id="alice"),
        ):
            model = TestModel()
            async with Agent(model, toolsets=[toolset]) as agent:
                await agent.run("I love tea.")
        async with MemoryWriter(diary) as writer:
            capability = DiaryCapability(diary, user_id="alice", writer=writer)
            agent = Agent(TestModel(call_tools=[]), capabilities=[capability])
            for n in range(5):
                await agent.run(f"I love tea {n}.")
            assert await writer.aflush(60)
            return writer.stats()

    stats = run(main)
    assert (stats["completed"], stats["failed"]) == (5, 0)


def test_objects_dropped_in_a_loop_do_not_block_it_and_leave_no_files(tmp_path):
    """Finalizers of diary and writer close files in another thread."""
    folder = tmp_path / "m"

    async def main():
        diary = Diary(folder, agent="rules")
        alice = diary.user("alice")
        for n in range(5):
            await alice.aupsert_preference("likes", f"tea {n}")
        writer = MemoryWriter(diary)
        await writer.submit("alice", "s", "I love coffee.", "Noted.")
        assert await writer.aflush(30)
        del diary, alice, writer  # without having closed it
        gc.collect()

    run(main)
    deadline = threading.Event()
    for _ in range(100):
        left = [path.name for path in (folder / ".tomldiary/journal").glob("[0-9]*")]
        if not left:
            break
        gc.collect()  # what a thread still held at that time
        deadline.wait(0.05)
    assert left == []
