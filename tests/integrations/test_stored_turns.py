"""The middleware and the submit node return when the turn is in the journal; cancelled runs lose no turn.

The words are stored as they were said.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from weakref import WeakSet

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langgraph.errors import ParentCommand
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel

import programs
from tomldiary import Diary, MemoryWriter
from tomldiary.errors import BackendError
from tomldiary.extraction.context import Turn
from tomldiary_langchain import DiaryMiddleware
from tomldiary_langgraph import submit_node
from tomldiary_pydantic_ai import DiaryCapability
from tomldiary_pydantic_ai import run as pydantic_ai_runs
from tomldiary_pydantic_ai.run import RunState

SAID = "I like rain."


def middleware(writer, on_error="raise"):
    memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer, on_error=on_error)
    return create_agent(FakeListChatModel(responses=["ok"] * 4), middleware=[memory])


def node(writer, on_error="raise"):
    builder = StateGraph(MessagesState)
    builder.add_node("chat", lambda _: {"messages": [AIMessage("ok")]})
    builder.add_node("submit", submit_node(writer, user_id="alice", on_error=on_error))
    builder.add_edge(START, "chat")
    builder.add_edge("chat", "submit")
    return builder.compile()


class Asked(MemoryWriter):
    """A writer that says when it was asked to store a turn of alice."""

    def __init__(self, diary, **options):
        super().__init__(diary, **options)
        self.asked = threading.Event()

    async def submit_turn(self, turn):
        if turn.user_id == "alice":
            self.asked.set()
        return await super().submit_turn(turn)


hosts = pytest.mark.parametrize("host", [middleware, node])
modes = pytest.mark.parametrize("mode", ["invoke", "ainvoke"])


def ask(agent, mode):
    asked = {"messages": SAID}
    return agent.invoke(asked) if mode == "invoke" else asyncio.run(agent.ainvoke(asked))


def run(program, folder):
    """Run a program that may import this module; its argument is a folder."""
    paths = [str(Path(__file__).parent), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return programs.run("-c", program, folder, imported=programs.FRAMEWORKS, env=env)


@hosts
@modes
def test_a_turn_survives_a_process_that_is_killed_after_the_answer(tmp_path, host, mode):
    program = f"""
import asyncio, os, signal, sys, threading
from test_stored_turns import SAID, {host.__name__}
from tomldiary import Diary, MemoryWriter

def never(message, deps):
    threading.Event().wait()

agent = {host.__name__}(MemoryWriter(Diary(sys.argv[1], agent=never)))

async def main():
    await agent.ainvoke({{"messages": SAID}})
    os.kill(os.getpid(), signal.SIGKILL)

if {mode!r} == "ainvoke":
    asyncio.run(main())
agent.invoke({{"messages": SAID}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run(program, tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert liked(tmp_path) == [SAID]


def liked(folder):
    with MemoryWriter(Diary(folder, agent="rules")) as writer:
        assert writer.flush(20)
    return [item.text for item in Diary(folder).user("alice").preferences("likes").values()]


@pytest.mark.parametrize("parts", [False, True])
@hosts
def test_the_words_of_a_turn_keep_their_indentation_and_line_ends(tmp_path, host, parts):
    said = "    def ask():\r\n        return 日 \n\n"
    content = [{"type": "text", "text": said}] if parts else said
    diary = Diary(tmp_path, agent="rules", episodes=True)
    with MemoryWriter(diary) as writer:
        host(writer).invoke({"messages": [("user", content)]})
    assert [each.input for each in diary.user("alice").episodes.list()] == [said]


@hosts
@modes
def test_a_turn_that_the_disk_refuses_fails_the_run_or_is_logged(tmp_path, caplog, host, mode):
    (tmp_path / ".tomldiary").mkdir()
    (tmp_path / ".tomldiary" / "journal").write_text("a file in place of the folder")
    with MemoryWriter(Diary(tmp_path, agent="rules")) as writer:
        with pytest.raises(BackendError):
            ask(host(writer), mode)
        assert ask(host(writer, "ignore"), mode)["messages"][-1].text == "ok"
    assert "a turn could not be stored: " in caplog.text


@pytest.mark.parametrize("is_cancelled", [False, True])
@hosts
def test_an_async_run_waits_while_the_queue_is_full(tmp_path, host, is_cancelled):
    gate = threading.Event()

    def extract(message, *, deps):
        gate.wait()

    async def main(writer):
        for _ in range(2):  # one turn in work, and one in the queue
            await writer.submit_turn(Turn("bob", "s1", "I like tea.", "ok"))
        run = asyncio.create_task(host(writer).ainvoke({"messages": SAID}))
        await asyncio.to_thread(writer.asked.wait, 20)
        assert not run.done()
        if is_cancelled:
            run.cancel()
            await asyncio.wait([run])
            assert run.cancelled()
        gate.set()
        if not is_cancelled:
            await run

    diary = Diary(tmp_path, agent=extract)
    with Asked(diary, qsize=1) as writer:
        asyncio.run(main(writer))
        assert writer.flush(20)
        assert writer.stats()["completed"] == 3


async def langchain_run(writer, hang):
    class Hanging(AgentMiddleware):
        async def awrap_model_call(self, request, handler):
            await hang()

    memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer)
    model = FakeListChatModel(responses=["ok"])
    await create_agent(model, middleware=[memory, Hanging()]).ainvoke({"messages": SAID})


async def handed_off_run(writer, hang):
    class HandsOff(AgentMiddleware):
        async def awrap_model_call(self, request, handler):
            raise ParentCommand(Command(graph=Command.PARENT, goto="second"))

    async def second(state):
        await hang()

    memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer)
    model = FakeListChatModel(responses=["ok"])
    builder = StateGraph(MessagesState)
    builder.add_node("first", create_agent(model, middleware=[memory, HandsOff()]))
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    await builder.compile().ainvoke({"messages": SAID})


async def pydantic_ai_run(writer, hang):
    async def respond(messages, info):
        await hang()

    memory = DiaryCapability(writer.diary, user_id="alice", writer=writer)
    await Agent(FunctionModel(respond), capabilities=[memory]).run(SAID)


@pytest.mark.parametrize("start", [langchain_run, handed_off_run, pydantic_ai_run])
@pytest.mark.parametrize(("timeout", "count"), [(None, 1), (0, 0)])
def test_a_writer_waits_for_its_runs_that_are_cancelled_while_it_closes(
    tmp_path, monkeypatch, start, timeout, count
):
    collections = []
    monkeypatch.setattr("gc.collect", lambda: collections.append(1))

    def submit_slowly(turn):  # such as a long text that is redacted
        time.sleep(0.05)
        return MemoryWriter.submit_later(writer, turn)

    async def main():
        begun = asyncio.Event()

        async def hang():
            begun.set()
            await asyncio.Event().wait()

        run = asyncio.create_task(start(writer, hang))
        await begun.wait()
        await MemoryWriter(writer.diary).close()  # the run is not one of this writer
        assert collections == []
        # uvicorn cancels requests and ends the lifespan; the cancelled requests cancel their streams.
        closing = asyncio.create_task(writer.close(timeout))
        await asyncio.wait([closing], timeout=0.2 if count else None)
        run.cancel()
        assert (await closing)["completed"] == count
        await writer.close()  # it is closed, so no run can submit to it
        assert len(collections) == 1
        await asyncio.wait([run])
        assert run.cancelled()

    writer = MemoryWriter(Diary(tmp_path, agent="rules"))
    monkeypatch.setattr(writer, "submit_later", submit_slowly)
    asyncio.run(main())


def test_a_writer_closes_while_another_thread_begins_runs(tmp_path, monkeypatch):
    class Meanwhile(WeakSet):
        def __iter__(self):
            for each in super().__iter__():
                if len(begun) == 1:
                    begin()
                yield each

    def begin():
        begun.append(RunState(None, None, "", records=True))
        runs.add(begun[-1])

    begun, runs = [], Meanwhile()
    begin()
    monkeypatch.setattr(pydantic_ai_runs, "_RUNS", runs)
    writer = MemoryWriter(Diary(tmp_path, agent="rules"))
    asyncio.run(writer.close())
    assert len(begun) == 2


def test_a_blocked_event_loop_takes_no_time_from_open_runs(tmp_path, monkeypatch):
    async def main():
        begun, looked = asyncio.Event(), threading.Event()

        async def hang():
            begun.set()
            await asyncio.Event().wait()

        run = asyncio.create_task(pydantic_ai_run(writer, hang))
        await begun.wait()
        monkeypatch.setattr("gc.collect", looked.set)
        closing = asyncio.create_task(writer.close())
        await asyncio.to_thread(looked.wait)
        run.cancel()
        # Like the end of a sync stream of LangGraph, which waits for its model.
        time.sleep(1.2)  # noqa: ASYNC251
        assert (await closing)["completed"] == 1
        await asyncio.wait([run])

    writer = MemoryWriter(Diary(tmp_path, agent="rules"))
    asyncio.run(main())


def test_the_time_for_open_runs_is_part_of_the_time_to_close(tmp_path, monkeypatch):
    async def main():
        begun, left = asyncio.Event(), []

        async def hang():
            begun.set()
            await asyncio.Event().wait()

        run = asyncio.create_task(pydantic_ai_run(writer, hang))
        await begun.wait()
        with monkeypatch.context() as patched:
            patched.setattr(writer, "flush", lambda timeout: left.append(timeout) or True)
            await writer.close(0.05)
        assert left[0] == 0
        run.cancel()
        await asyncio.wait([run])

    writer = MemoryWriter(Diary(tmp_path, agent="rules"))
    asyncio.run(main())


UNREAD = """
import sys
from pathlib import Path
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from langchain_core.messages import HumanMessage
from test_stored_turns import ask, middleware, node
from tomldiary import Diary, MemoryWriter
from tomldiary_langgraph import recall_node, submit_node
from tomldiary_pydantic_ai import DiaryCapability

file = Path(sys.argv[1], "alice", "preferences.toml")
file.parent.mkdir()
file.write_text("likes")
diary = Diary(sys.argv[1], agent="rules")
writer = MemoryWriter(diary)
writer.close_sync()
recall_node(diary, user_id="alice", on_error="ignore").invoke({"messages": []})
for host in (middleware, node):
    ask(host(writer, "ignore"), "invoke")
submit_node(writer, user_id="alice").invoke({"messages": [HumanMessage("tea")]})
memory = DiaryCapability(diary, user_id="alice", writer=writer)
Agent(TestModel(call_tools=[]), capabilities=[memory]).run_sync("tea")
"""


def test_a_run_without_its_memory_or_turn_says_so_on_stderr_without_logging(tmp_path):
    done = run(UNREAD, tmp_path)
    assert done.returncode == 0, done.stderr
    unread = f"InvalidTOML: {tmp_path}/alice/preferences.toml:1:6: "
    closed = "RuntimeError: MemoryWriter is closed. Create another one."
    said = [line for line in done.stderr.splitlines() if "Reads return the last" not in line]
    expected = [
        f"the memory could not be read: {unread}",
        f"a run continues without its memory: {unread}",
        f"a turn could not be stored: {closed}",
        "a node records no turn, because the user's last message has no answer yet.",
        f"a turn could not be submitted: {closed}",
    ]
    assert all(any(line.startswith(f"tomldiary: {each}") for line in said) for each in expected), (
        said
    )
    assert len(said) == len(expected) + 2, said  # two hosts read no memory, and two stored no turn
