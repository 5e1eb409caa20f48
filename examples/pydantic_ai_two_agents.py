"""Two agents share a user's memory, and each keeps its own notes.

Shows that what one agent writes the other is told as a change, in a conversation that goes on, and
`AgentMemoryToolset` for an agent's notes. Run: python examples/pydantic_ai_two_agents.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic_ai import Agent, models
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from tomldiary import Diary
from tomldiary_pydantic_ai import AgentMemoryToolset, DiaryCapability

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo

models.ALLOW_MODEL_REQUESTS = False  # the models here are scripted


def planner(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Stand in for a model: store what the request says about the user."""
    lines = [line for part in messages[-1].parts for line in told(part.content)]
    return ModelResponse([TextPart(" / ".join(lines) or "nothing new")])


def told(content: object) -> list[str]:
    """Return the facts in a prompt: lines of a snapshot or of changes."""
    texts = (
        [getattr(item, "content", item) for item in content] if isinstance(content, list) else []
    )
    marks = ("- ", "+ ", "no longer: ")
    return [line for text in texts for line in str(text).splitlines() if line.startswith(marks)]


def booker(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Stand in for a model: correct an entry, and append a note."""
    if any(part.part_kind == "tool-return" for part in messages[-1].parts):
        return ModelResponse([TextPart("booked")])
    changed = {"key": "likes/pref001", "text": "an aisle seat"}
    note = {"content": "- The airline answers within a day."}
    return ModelResponse([ToolCallPart("update", changed), ToolCallPart("write_memory", note)])


async def main(folder: Path) -> None:
    """Let the planner talk with the user before and after the booking."""
    diary = Diary(folder)
    noor = diary.user("noor")
    noor.upsert_preference("likes", "a window seat", id="pref001", count_up=False)
    noor.upsert_preference("likes", "short flights")
    memory = DiaryCapability(diary, "noor", record=False)
    planning = Agent(FunctionModel(planner), capabilities=[memory])
    notes = AgentMemoryToolset(agent_name="booker", memory_dir=diary)
    booking = Agent(FunctionModel(booker), capabilities=[memory], toolsets=[notes])

    first = await planning.run("I'd like to fly to Oslo.")
    print(f"planner is told: {first.output}")
    print(f"booker: {(await booking.run('Oslo, on Monday.')).output}")
    second = await planning.run("Is it booked?", message_history=first.all_messages())
    print(f"planner is told: {second.output}")
    third = await planning.run("Thanks.", message_history=second.all_messages())
    print(f"planner is told: {third.output}")


if __name__ == "__main__":
    with TemporaryDirectory() as spare:
        asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else spare)))
