"""A user who talks to one memory through an agent of each framework, also in a process for each."""

# ruff: noqa: PLC0415 - a process loads its own framework only
from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from tomldiary import Diary, MemoryWriter

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DOORS", "SESSION", "Echo", "main", "talk"]

SESSION = "monday"
RUN: Any = {"configurable": {"user_id": "alice", "thread_id": SESSION}}


class Echo:
    """An extractor that stores what the user said."""

    async def run(self, message: str, /, *, deps: Any) -> None:
        deps.upsert("likes", None, deps.user_msg, ())


def langgraph(writer: MemoryWriter) -> Callable[[str], Any]:
    """Return what says a word to a graph."""
    from langgraph.graph import START, MessagesState, StateGraph

    from tomldiary_langgraph import submit_node

    def answer(_: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", "ok")]}

    nodes: list[Any] = [("answer", answer), ("submit", submit_node(writer))]
    graph = StateGraph(MessagesState).add_sequence(nodes).add_edge(START, "answer").compile()
    return lambda word: graph.invoke({"messages": [("user", word)]}, RUN)


def langchain(writer: MemoryWriter) -> Callable[[str], Any]:
    """Return what says a word to an agent of LangChain."""
    from langchain.agents import create_agent
    from langchain_core.messages import AIMessage

    from scripted_chat import Scripted
    from tomldiary_langchain import DiaryMiddleware

    memory = DiaryMiddleware(writer.diary, writer=writer)
    agent = create_agent(Scripted(answers=[AIMessage("ok")]), middleware=[memory])
    return lambda word: agent.invoke({"messages": [("user", word)]}, RUN)


def pydantic_ai(writer: MemoryWriter) -> Callable[[str], Any]:
    """Return what says a word to an agent of pydantic-ai."""
    from pydantic_ai import Agent
    from pydantic_ai.models.test import TestModel

    from tomldiary_pydantic_ai import DiaryCapability

    memory = DiaryCapability(writer.diary, "alice", SESSION, writer=writer, tools="none")
    agent = Agent(TestModel(), capabilities=[memory])
    return lambda word: asyncio.run(agent.run(word))


DOORS = {door.__name__: door for door in (langgraph, langchain, pydantic_ai)}


def talk(door: str, diary: Diary, words: list[str]) -> None:
    """Say each word to an agent, and wait until all of them are remembered."""
    with MemoryWriter(diary) as writer:
        say = DOORS[door](writer)
        for word in words:
            say(word)
        assert writer.flush(60)
        assert writer.stats()["failed"] == 0


def main() -> None:
    """Talk as the arguments of the program say, once it is told to."""
    folder, door, *words = sys.argv[1:]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    talk(door, Diary(folder, agent=Echo()), words)
