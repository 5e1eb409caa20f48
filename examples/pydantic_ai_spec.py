"""An agent that is defined in a file, including its memory; each run sets its user.

Shows `Agent.from_file` with `DiaryCapability`. Run: python examples/pydantic_ai_spec.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic_ai import Agent, models
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from tomldiary import Diary
from tomldiary_pydantic_ai import DiaryCapability

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo

models.ALLOW_MODEL_REQUESTS = False  # the models here are scripted


def librarian(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stand in for the model of the file."""
    tools = ", ".join(tool.name for tool in info.function_tools)
    known = "crime novels" if "crime novels" in str(messages) else "nothing"
    return ModelResponse([TextPart(f"I know of {known}, and my tools are: {tools}.")])


async def main(folder: Path) -> None:
    """Write a spec, create the agent, and run it for two readers."""
    Diary(folder).user("ida").upsert_preference("likes", "crime novels")
    file = folder / "librarian.json"
    # The agent reads the memory that other agents write, and records no turns.
    memory = {"diary": str(folder), "tools": "read", "heading": "## Reader", "record": False}
    spec = {
        "model": "test",  # replace it with the name of a model
        "instructions": "You recommend books.",
        "capabilities": [{"DiaryCapability": memory}],
    }
    file.write_text(json.dumps(spec, indent=2), "utf-8")
    agent = Agent.from_file(file, custom_capability_types=[DiaryCapability])
    for reader in ("ida", "ole"):
        answer = await agent.run(
            "What shall I read?", metadata={"user_id": reader}, model=FunctionModel(librarian)
        )
        print(f"{reader}: {answer.output}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
