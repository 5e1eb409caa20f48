# pyright: reportUnnecessaryTypeIgnoreComment=true
"""The context of an agent with a diary, as a type checker sees it; a wrong use is marked and found."""

from dataclasses import dataclass
from typing import Any, assert_type

from langchain.agents import AgentState, create_agent  # pyright: ignore[reportUnknownVariableType]
from langchain.agents.middleware import SummarizationMiddleware
from langchain.agents.middleware.types import InputAgentState, OutputAgentState
from langgraph.graph.state import CompiledStateGraph

import tomldiary_langchain
from tomldiary import Diary
from tomldiary_langchain import DiaryMiddleware

Output = OutputAgentState[Any]


@dataclass
class Caller:
    """Whose agent it is."""

    user_id: str


diary = Diary("memory:")
memory = DiaryMiddleware(diary)
assert_type(memory, DiaryMiddleware[Any])
agent = create_agent(
    "openai:gpt-5-mini",
    middleware=[DiaryMiddleware[Caller](diary), SummarizationMiddleware("openai:gpt-5-mini")],
    context_schema=Caller,
)
assert_type(agent, CompiledStateGraph[AgentState[Any], Caller, InputAgentState, Output])
loose = create_agent("openai:gpt-5-mini", middleware=[memory], context_schema=Caller)
DiaryMiddleware(diary, tools=["recall"])
DiaryMiddleware(diary, tools="write")  # pyright: ignore[reportArgumentType]
DiaryMiddleware(diary, tools=["write"])  # pyright: ignore[reportArgumentType]
tomldiary_langchain.DiaryMiddelware(diary)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
