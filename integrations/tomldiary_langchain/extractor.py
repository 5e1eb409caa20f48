"""Extraction with any LangChain chat model: one that calls tools, or one that only writes."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from pydantic import BaseModel, ValidationError, create_model

from tomldiary.agents.options import checked_count
from tomldiary.entries.constraints import explained
from tomldiary.errors import ExtractionError, ExtractorUnusable, wrong_type
from tomldiary.extraction.prompt import draft_prompt
from tomldiary.extraction.tools import EXTRACTION_TOOLS, FACT_TOOLS
from tomldiary_langchain.dialogue import ChatModel, config_of, dialogue_with

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from langchain_core.messages import BaseMessage, ToolCall

    from tomldiary.extraction.draft import MemoryDeps
    from tomldiary_langchain.dialogue import Dialogue

__all__ = ["ChatModelExtractor"]


@dataclass(frozen=True, slots=True)
class _Tool:
    run: Callable[..., Awaitable[str]]
    arguments: type[BaseModel]


def _tool(function: Callable[..., Awaitable[str]]) -> _Tool:
    """Convert a tool of the core; its first parameter, the context, is hidden from the model."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    fields: dict[str, Any] = {
        one.name: (one.annotation, ... if one.default is one.empty else one.default)
        for one in parameters
    }
    doc = inspect.getdoc(function)
    return _Tool(function, create_model(function.__name__, __doc__=doc, **fields))


_TOOLS = {function.__name__: _tool(function) for function in EXTRACTION_TOOLS}
_FACT_TOOLS = {function.__name__: _tool(function) for function in FACT_TOOLS}


def _arguments(tools: Mapping[str, _Tool]) -> dict[str, type[BaseModel]]:
    return {name: tool.arguments for name, tool in tools.items()}


class ChatModelExtractor:
    """Lets a chat model read a turn and update the diary with the core's tools.

    Use it as a diary's `agent`: `Diary("./memories", agent=ChatModelExtractor(model))`, or give the chat model
    itself. A model without tool calling writes its calls as structured output if it supports this, or else as JSON
    in its text.

    Args:
        model: A chat model, also one with retries, fallbacks or bound settings.
        max_rounds: The maximum number of answers for one turn. If the model still calls tools in the last one, the
            turn fails and changes nothing.

    Raises:
        InvalidValue: `model` is no chat model, or `max_rounds` is no whole number of at least 1.
    """

    def __init__(self, model: ChatModel, max_rounds: int = 8) -> None:
        self.max_rounds = checked_count(max_rounds, "max_rounds", least=1)
        if not isinstance(model, Runnable) or hasattr(model, "update_state"):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            # A graph, such as an agent of `create_agent`, has this method and takes a state instead of messages.
            named = f"init_chat_model({model!r})" if isinstance(model, str) else "a chat model"
            raise wrong_type(model, "a chat model", "model", f"Give {named}.")
        self._name = type(model).__name__
        self._model = model
        self._dialogue = dialogue_with(model, _arguments(_TOOLS))
        self._typed: Dialogue | None = None
        """The dialogue with the tools for facts; made when a diary has a type of facts."""
        self._process: int | None = None
        """The process in which the model was first asked."""

    def __repr__(self) -> str:
        return f"ChatModelExtractor({self._name}, max_rounds={self.max_rounds})"

    async def run(self, message: str, /, *, deps: MemoryDeps) -> str:
        """Let the model edit the draft, and return its last text.

        Raises:
            ExtractorUnusable: The model was used before this process was forked.
            ExtractionError: The model did not finish within `max_rounds` answers, or its last one is empty because it
                was truncated or filtered.
        """
        if self._process not in {None, os.getpid()}:
            # Both processes would share its connections, so an answer could reach another user.
            raise ExtractorUnusable(
                "the chat model was asked before this process was forked, and shares its connections with the"
                " parent. Nothing was changed. Create model and diary after the fork, with gunicorn without"
                " --preload."
            )
        self._process = os.getpid()
        context = SimpleNamespace(deps=deps)
        tools, dialogue = _TOOLS, self._dialogue
        if deps.fact_schemas:
            tools = {**_TOOLS, **_FACT_TOOLS}
            dialogue = self._typed = self._typed or dialogue_with(self._model, _arguments(tools))
        prompt = draft_prompt(deps) + dialogue.instructions
        config = config_of(deps.user_id, deps.session_id)
        messages: list[BaseMessage] = [SystemMessage(prompt), HumanMessage(message)]
        for _ in range(self.max_rounds):
            answer = await dialogue.ask(messages, config)
            messages.append(answer.message)
            if not answer.calls and not answer.unreadable:
                _check_ended(answer.message)
                return str(answer.message.text)
            # In sequence: a call may depend on the result of the one before.
            told = [(call, await _call(context, tools, call)) for call in answer.calls]
            messages += dialogue.replies([*told, *answer.unreadable])
        raise ExtractionError(
            f"the model still called tools after {self.max_rounds} answers. Nothing was changed; raise"
            " max_rounds if the turns are long."
        )


_CUT = frozenset(
    {
        "length",
        "max_tokens",
        "content_filter",
        "refusal",
        "safety",
        "prohibited_content",
        "blocklist",
    }
)


def _check_ended(message: BaseMessage) -> None:
    """Raise if an empty answer does not mean that the model has nothing to add."""
    ended = message.response_metadata
    why = str(ended.get("finish_reason") or ended.get("stop_reason") or "").lower()
    # Providers refuse in a field, in a part of the content, or by not accepting the prompt.
    feedback: dict[str, Any] = ended.get("prompt_feedback") or {}
    parts = [part.get("type") for part in message.content if isinstance(part, dict)]
    if (
        message.additional_kwargs.get("refusal")
        or "refusal" in parts
        or feedback.get("block_reason")
    ):
        why = "refusal"
    if why in _CUT and not str(message.text).strip():
        raise ExtractionError(
            f"the model's answer was cut short or withheld ({why}). Nothing was changed. Allow longer answers, or"
            " name another model."
        )


async def _call(context: SimpleNamespace, tools: Mapping[str, _Tool], call: ToolCall) -> str:
    tool = tools.get(call["name"])
    if tool is None:
        return f"❌ There is no tool {call['name']!r}. Use one of: {', '.join(tools)}."
    try:
        arguments = tool.arguments.model_validate(call["args"])
    except ValidationError as error:
        return f"❌ {explained(error, call['name'])}"
    given = {name: getattr(arguments, name) for name in arguments.model_fields_set}
    return await tool.run(context, **given)
