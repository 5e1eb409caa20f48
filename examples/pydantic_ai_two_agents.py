"""Two agents share a user's memory, and one of them also keeps its own notes.

Shows that an agent receives the writes of the other as changes during a conversation, and
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
    """Stand in for a model: repeat the facts in the newest request."""
    lines = [line for part in messages[-1].parts for line in facts_in(part.content)]
    return ModelResponse([TextPart(" / ".join(lines) or "nothing new")])


def facts_in(content: object) -> list[str]:
    """Return the facts in a prompt, which are lines of a snapshot or of changes."""
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
    """Run the planner before and after the booking."""
    diary = Diary(folder)
    noor = diary.user("noor")
    noor.upsert_preference("likes", "a window seat", id="pref001", count_up=False)
    noor.upsert_preference("likes", "short flights")
    memory = DiaryCapability(diary, "noor", record=False)
    planning = Agent(FunctionModel(planner), capabilities=[memory])
    notes = AgentMemoryToolset(agent_name="booker", memory_dir=diary)
    booking = Agent(FunctionModel(booker), capabilities=[memory], toolsets=[notes])

    first = await planning.run("I'd like to fly to Oslo.")
    print(f"planner is shown: {first.output}")
    print(f"booker: {(await booking.run('Oslo, on Monday.')).output}")
    second = await planning.run("Is it booked?", message_history=first.all_messages())
    print(f"planner is shown: {second.output}")
    third = await planning.run("Thanks.", message_history=second.all_messages())
    print(f"planner is shown: {third.output}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
