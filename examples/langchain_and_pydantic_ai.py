"""One user, one file, two frameworks: each framework recalls the entries of the other.

Shows `DiaryMiddleware` and `DiaryToolset` on the same diary, without any synchronisation.
The models are scripted, so it runs offline. Run: python examples/langchain_and_pydantic_ai.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from langchain.agents import create_agent
from langchain_core.language_models import SimpleChatModel
from pydantic_ai import Agent, models
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from tomldiary import Diary
from tomldiary_langchain import DiaryMiddleware
from tomldiary_pydantic_ai import DiaryToolset

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo

models.ALLOW_MODEL_REQUESTS = False  # the models here are scripted


class Concierge(SimpleChatModel):
    """A scripted LangChain model that repeats the memory in its prompt."""

    @property
    def _llm_type(self) -> str:
        return "concierge"

    def _call(self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any) -> str:
        lines = str(messages[0].text).splitlines()
        facts = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
        return f"I know: {'; '.join(facts) or 'nothing yet'}"


def travel_desk(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """A scripted pydantic-ai model that stores one entry and recalls another."""
    told = [part.content for part in messages[-1].parts if part.part_kind == "tool-return"]
    if not told:
        noted = ToolCallPart("remember", {"category": "likes", "text": "night trains"})
        return ModelResponse([noted, ToolCallPart("recall", {"query": "walnuts"})])
    return ModelResponse([TextPart(f"{told[0]} {str(told[1]).splitlines()[1]}")])


def main(folder: Path) -> None:
    """Let two agents of two frameworks serve one user."""
    diary = Diary(folder, agent="rules")
    middleware = DiaryMiddleware(diary, user_id="leo")
    concierge = create_agent(Concierge(), middleware=[middleware])
    desk = Agent(FunctionModel(travel_desk), toolsets=[DiaryToolset(diary, "leo")])

    def ask_concierge(text: str) -> None:
        answer = concierge.invoke({"messages": [{"role": "user", "content": text}]})
        print(f"LangChain: {answer['messages'][-1].text}")
        middleware.writer.flush()

    ask_concierge("I'm allergic to walnuts.")
    print(f"pydantic-ai: {desk.run_sync('I like night trains.').output}")
    ask_concierge("What do you know about me?")
    middleware.writer.close_sync()


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
