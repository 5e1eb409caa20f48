"""Extraction with any LangChain chat model that can call tools."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from pydantic import BaseModel, ValidationError, create_model

from tomldiary.errors import ExtractionError, SchemaError
from tomldiary.extraction.prompt import draft_prompt
from tomldiary.tools import EXTRACTION_TOOLS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage, InvalidToolCall, ToolCall
    from langchain_core.runnables import RunnableConfig

    from tomldiary.draft import MemoryDeps

__all__ = ["ChatModelExtractor"]

# The tag keeps what this model writes out of the message stream of a graph that it runs in.
_CONFIG: RunnableConfig = {"tags": ["nostream"], "run_name": "tomldiary_extractor"}


@dataclass(frozen=True, slots=True)
class _Context:
    deps: MemoryDeps


@dataclass(frozen=True, slots=True)
class _Tool:
    run: Callable[..., Awaitable[str]]
    arguments: type[BaseModel]


def _tool(function: Callable[..., Awaitable[str]]) -> _Tool:
    """Describe one of the core's tools without its first parameter, the context."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    fields: dict[str, Any] = {
        one.name: (one.annotation, ... if one.default is one.empty else one.default)
        for one in parameters
    }
    doc = inspect.getdoc(function)
    return _Tool(function, create_model(function.__name__, __doc__=doc, **fields))


_TOOLS = {function.__name__: _tool(function) for function in EXTRACTION_TOOLS}


class ChatModelExtractor:
    """Lets a chat model read a turn and update the diary with the core's six tools.

    Use it as a diary's `agent`: `Diary("./memories", agent=ChatModelExtractor(model))`.

    Args:
        model: A chat model that implements `bind_tools`.
        max_rounds: Answers the model may give for one turn. A model that still calls tools in the
            last one has not finished: the turn fails and changes nothing.

    Raises:
        SchemaError: The model cannot call tools.
    """

    def __init__(self, model: BaseChatModel, max_rounds: int = 8) -> None:
        if max_rounds < 1:
            raise ValueError("max_rounds is at least 1.")
        try:
            self._model = model.bind_tools([tool.arguments for tool in _TOOLS.values()])
        except (NotImplementedError, AttributeError) as error:
            raise SchemaError(
                f"{type(model).__name__} cannot call tools. Give a chat model that implements bind_tools."
            ) from error
        self._name = type(model).__name__
        self.max_rounds = max_rounds

    def __repr__(self) -> str:
        return f"ChatModelExtractor({self._name}, max_rounds={self.max_rounds})"

    async def run(self, message: str, /, *, deps: MemoryDeps) -> str:
        """Let the model work on the draft, and return its last words.

        Raises:
            ExtractionError: It was not finished after `max_rounds` answers.
        """
        context = _Context(deps)
        messages: list[BaseMessage] = [SystemMessage(draft_prompt(deps)), HumanMessage(message)]
        for _ in range(self.max_rounds):
            answer = await self._model.ainvoke(messages, _CONFIG)
            messages.append(answer)
            if not answer.tool_calls and not answer.invalid_tool_calls:
                return str(answer.text)
            # One after the other: the second call may build on what the first one stored.
            messages += [_reply(call, await _call(context, call)) for call in answer.tool_calls]
            messages += [_reply(call, _unreadable(call)) for call in answer.invalid_tool_calls]
        raise ExtractionError(
            f"the model still called tools after {self.max_rounds} answers. Nothing was changed; raise"
            " max_rounds if the turns are long."
        )


async def _call(context: _Context, call: ToolCall) -> str:
    tool = _TOOLS.get(call["name"])
    if tool is None:
        return f"❌ There is no tool {call['name']!r}. Use one of: {', '.join(_TOOLS)}."
    try:
        arguments = tool.arguments.model_validate(call["args"])
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}"
            for one in error.errors()
        )
        return f"❌ {call['name']}: {wrong}."
    given = {name: getattr(arguments, name) for name in arguments.model_fields_set}
    return await tool.run(context, **given)


def _unreadable(call: InvalidToolCall) -> str:
    return f"❌ The arguments of {call['name']!r} could not be read: {call['error'] or 'no JSON'}."


def _reply(call: ToolCall | InvalidToolCall, text: str) -> ToolMessage:
    status = "error" if text.startswith("❌") else "success"
    return ToolMessage(text, tool_call_id=call["id"] or "", status=status)
