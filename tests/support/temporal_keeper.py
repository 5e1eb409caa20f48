"""The module of the agent in a Temporal worker, as docs/how-to/durable-execution.md describes; `FOLDER` has the memory."""

import os
from dataclasses import dataclass
from itertools import count

from pydantic_ai import Agent
from pydantic_ai.durable_exec.temporal import TemporalDurability
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from tomldiary import Diary, MemoryWriter
from tomldiary_pydantic_ai import DiaryCapability

SHOWN = []
VERSIONS = count(1)
FAILURES = ["I hate rain.", "I hate snow.", "I hate snow."]
"""Prompts whose next request fails."""


@dataclass
class Deps:
    user_id: str
    session_id: str


def respond(messages, _info):
    SHOWN.append(str(messages))
    for text in FAILURES:
        if text in str(messages[0].parts):
            FAILURES.remove(text)
            raise UserError("the model is down")  # the worker does not retry it
    if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart("remember", {"text": "milk", "category": "likes"})])


diary = Diary(os.environ["FOLDER"], agent="rules")
memory = DiaryCapability(diary, writer=MemoryWriter(diary))
team = DiaryCapability(diary, "team", id="team", writer=memory.writer).prefix_tools("team")
agent = Agent(
    FunctionModel(respond),
    name="keeper",
    deps_type=Deps,
    capabilities=[memory, team, TemporalDurability()],
)


@agent.output_validator
def versioned(ctx, output):
    """Give bob another answer in each replay, as a new version of the program does."""
    return f"{output} in version {next(VERSIONS)}" if ctx.deps.user_id == "bob" else output
