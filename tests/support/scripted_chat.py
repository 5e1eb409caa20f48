"""A chat model that answers what a test tells it to."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable  # noqa: TC002 - a fallback reads the annotation
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field


class Scripted(BaseChatModel):
    """Answers what it was told to, and keeps what it was asked."""

    # Not in the repr, which LangChain makes for each call.
    answers: list[Any] = Field(repr=False)
    asked: list[Any] = Field(default_factory=list, repr=False)
    offered: list[Any] = Field(default_factory=list, repr=False)

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **_) -> Runnable[Any, AIMessage]:
        self.offered.extend(convert_to_openai_tool(tool)["function"] for tool in tools)
        return self

    def _generate(self, messages, stop=None, run_manager=None, **_):
        self.asked.append(list(messages))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        fresh = answer.model_copy(update={"id": None})  # a graph that was given it has named it
        return ChatResult(generations=[ChatGeneration(message=fresh)])


def calling(*calls):
    return AIMessage(
        "", tool_calls=[{"name": n, "args": a, "id": f"c{i}"} for i, (n, a) in enumerate(calls)]
    )


DONE = AIMessage("done")
