"""A support agent that remembers its customers from one conversation to the next.

Shows `DiaryCapability`: it adds the memory to the prompt, has a tool that stores entries, and extracts each
turn in the background. The model is scripted. Run: python examples/pydantic_ai_support.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic_ai import Agent, models
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from tomldiary import Diary, MemoryWriter
from tomldiary_pydantic_ai import DiaryCapability

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo

models.ALLOW_MODEL_REQUESTS = False  # the models here are scripted


@dataclass
class Customer:
    """The dependencies of a run; the capability reads `user_id`."""

    user_id: str


def support(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Stand in for a model: store the device, and answer according to the memory."""
    last, known = messages[-1].parts, str(messages)
    if any(part.part_kind == "tool-return" for part in last):
        return ModelResponse([TextPart("Noted. Have you tried turning it off and on?")])
    if "router" in str(messages[0].parts[0].content) and "biography: " not in known:
        fact = {"category": "biography", "text": "Has the router R200."}
        return ModelResponse([ToolCallPart("remember", fact)])
    device = "R200" if "R200" in known else "device"
    manner = "by mail" if "phone calls" in known else "on the phone"
    return ModelResponse([TextPart(f"Let us look at your {device} {manner}.")])


async def main(folder: Path) -> None:
    """Serve two customers, one of them twice."""
    diary = Diary(folder, agent="rules")  # or the name of a model, with an API key
    with MemoryWriter(diary) as writer:
        agent = Agent(
            FunctionModel(support),
            deps_type=Customer,
            capabilities=[DiaryCapability(diary, writer=writer)],
        )
        for user, text in (
            ("ana", "My router R200 blinks. And I hate phone calls."),
            ("ana", "It blinks again!"),
            ("ben", "It blinks!"),
        ):
            answer = await agent.run(text, deps=Customer(user))
            print(f"{user}: {text}\n  {answer.output}")
            await writer.aflush()  # only in this example, so that the next run sees the entries
    print(f"\n{(folder / 'ana' / 'preferences.toml').read_text('utf-8')}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
