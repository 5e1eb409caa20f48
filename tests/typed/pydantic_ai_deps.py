# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""How a type checker sees an agent with a diary; checked, never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from pydantic_ai import Agent, RunContext

from tomldiary import Diary, MemoryDeps, MemoryWriter, PreferenceItem
from tomldiary_pydantic_ai import (
    AgentMemoryToolset,
    DiaryCapability,
    DiaryToolset,
    compactor_agent,
    extractor_agent,
)


@dataclass
class Deps:
    """What a host agent is run with."""

    user: str
    number: int


def user_of(ctx: RunContext[Deps]) -> str:
    """Return the user."""
    return ctx.deps.user


# The deps of a function that names the user are those of the capability, and of the toolset.
capability = DiaryCapability("./memories", user_id=user_of)
assert_type(capability, DiaryCapability[Deps])
toolset = DiaryToolset("./memories", user_id=user_of)
assert_type(toolset, DiaryToolset[Deps])

# An agent's deps say what a lambda may look at.
agent = Agent(
    "test",
    deps_type=Deps,
    capabilities=[DiaryCapability[Deps]("./memories", user_id=lambda ctx: ctx.deps.user)],
    toolsets=[DiaryToolset[Deps]("./memories", lambda ctx: ctx.deps.user, id="second")],
)
assert_type(agent, Agent[Deps, str])
DiaryCapability[Deps]("./memories", user_id=lambda ctx: ctx.deps.usr)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownLambdaType]
DiaryCapability[Deps]("./memories", user_id=lambda ctx: ctx.deps.number)  # pyright: ignore[reportArgumentType]
DiaryToolset[Deps]("./memories", user_id=lambda ctx: ctx.deps.number)  # pyright: ignore[reportArgumentType]

# Options that are not listed are found before the program runs.
DiaryCapability("./memories", "alice", inject=True)  # pyright: ignore[reportArgumentType]
DiaryToolset("./memories", "alice", on_error="stop")  # pyright: ignore[reportArgumentType]
DiaryCapability("./memories", "alice", tools="writes")  # pyright: ignore[reportArgumentType]
DiaryToolset("./memories", "alice", approve=["remembr"])  # pyright: ignore[reportArgumentType]
DiaryCapability("./memories", "alice", tools=["recall"], approve={"recall"})
DiaryCapability(7, "alice")  # pyright: ignore[reportArgumentType]

# Without deps, and with a writer.
diary = Diary("./memories", agent="rules")
plain = Agent("test", capabilities=[DiaryCapability(diary, "alice", writer=MemoryWriter(diary))])
assert_type(plain, Agent[object, str])

# The writer may be left out, and is there then.
memory = DiaryCapability[object](diary, "alice", writer=None)
assert_type(memory.writer, MemoryWriter)
memory.writer.flush()
DiaryCapability(diary, "alice", writer="./memories")  # pyright: ignore[reportArgumentType]
Agent("test", toolsets=[AgentMemoryToolset(user_id=lambda ctx: ctx.run_id)])

# The extraction agents.
assert_type(extractor_agent(PreferenceItem), Agent[MemoryDeps, str])
compactor = compactor_agent(["openai-chat:gpt-5-mini", "test"])
