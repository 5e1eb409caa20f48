"""A stream that its reader abandons, and a cancelled run: both turns are recorded.

Each turn records how its run ended. Run: python examples/pydantic_ai_stream.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic_ai import Agent, models
from pydantic_ai.models.function import FunctionModel

from tomldiary import Diary, MemoryWriter
from tomldiary_pydantic_ai import DiaryCapability

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models.function import AgentInfo

models.ALLOW_MODEL_REQUESTS = False  # the models here are scripted


async def talkative(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    """Stand in for a model that streams a long answer."""
    for number in range(1000):
        yield f"And {number}, "
        await asyncio.sleep(0)


class Hanging:
    """Stands in for a model that does not answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def respond(self, _messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        """Wait until the run is cancelled."""
        self.asked.set()
        return await asyncio.get_running_loop().create_future()


async def main(folder: Path) -> None:
    """Leave one stream early, and cancel one run."""
    diary = Diary(folder, agent="rules")
    with MemoryWriter(diary) as writer:
        memory = DiaryCapability(diary, "sam", writer=writer)
        agent = Agent(FunctionModel(stream_function=talkative), capabilities=[memory])
        async with agent.run_stream("I like short answers.") as response:
            async for text in response.stream_text(delta=True, debounce_by=None):
                print(f"the reader has seen {text!r} and leaves")
                break

        hanging = Hanging()
        model = FunctionModel(hanging.respond)
        run = asyncio.create_task(agent.run("I hate waiting.", model=model))
        await hanging.asked.wait()
        run.cancel()
        print(f"the run was cancelled: {(await asyncio.wait([run]))[0].pop().cancelled()}")

    for category, items in diary.user("sam").preferences().items():
        for item in items.values():
            print(f"remembered, {category}: {item.text}")
    print(f"turns: {sum(talk.turns for talk in diary.user('sam').conversations().values())}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
