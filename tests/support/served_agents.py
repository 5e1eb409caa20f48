"""Agents of the server that test_langgraph_server starts.

A deep agent has a task done in the background by another one. A third agent waits until its run is cancelled.
"""

import asyncio

from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.messages import AIMessage

from scripted_chat import Scripted, calling
from served_memory import diary, writer
from tomldiary_langchain import DiaryMiddleware

memory = DiaryMiddleware(diary, writer=writer)
found = AIMessage("I love pizza. Here are three places.")
helping = create_deep_agent(Scripted(answers=[found]), middleware=[memory])
task = {"description": "I prefer places in Rome.", "subagent_type": "helper"}
asking = create_deep_agent(
    Scripted(
        answers=[calling(("start_async_task", task)), AIMessage("Started."), AIMessage("Told.")]
    ),
    middleware=[memory],
    subagents=[{"name": "helper", "description": "finds places", "graph_id": "helping"}],
)


class Waiting(Scripted):
    """Answers no message that begins with "Wait"."""

    async def _agenerate(self, messages, stop=None, run_manager=None, **more):
        if messages[-1].text.startswith("Wait"):
            await asyncio.Event().wait()
        return self._generate(messages)


waiting = create_agent(Waiting(answers=[AIMessage("Told.")]), middleware=[memory])
