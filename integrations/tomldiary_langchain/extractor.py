"""Extraction with any LangChain chat model: one that calls tools, or one that only writes."""

from __future__ import annotations

import inspect
import json
import os
import re
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.runnables import Runnable
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.fallbacks import RunnableWithFallbacks
from pydantic import BaseModel, Field, ValidationError, create_model, model_validator

from tomldiary.agents.identity import field_of
from tomldiary.agents.options import checked_count
from tomldiary.agents.turn_messages import refusal
from tomldiary.entries.constraints import explained
from tomldiary.errors import ExtractionError, ExtractorUnusable, wrong_type
from tomldiary.extraction.failures import NoCompletion
from tomldiary.extraction.prompt import draft_prompt
from tomldiary.extraction.tools import EXTRACTION_TOOLS, FACT_TOOLS
from tomldiary.runtime.async_bridge import in_daemon_thread, is_of_another_loop, is_private_loop
from tomldiary.text.visible import escape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from langchain_core.language_models import BaseChatModel, LanguageModelInput
    from langchain_core.messages import InvalidToolCall
    from langchain_core.runnables import RunnableConfig

    from tomldiary.extraction.draft import MemoryDeps

# The first tag keeps what this model writes out of the message stream of a graph that it runs in.
_TAGS = ["nostream", "tomldiary"]

# What `bind_tools` of LangChain's models binds. A host's tools would replace those of the extractor.
_OF_TOOLS = ("tools", "tool_choice", "tool_config", "functions", "function_call")

ChatModel: TypeAlias = "BaseChatModel | Runnable[LanguageModelInput, AIMessage]"
"""A chat model, or one with retries, fallbacks or settings around it."""
Tools: TypeAlias = "Mapping[str, type[BaseModel]]"
"""The arguments of the tools, by name."""
Answered = tuple["ToolCall | InvalidToolCall", str]
"""A tool call of a model, and the text that answers it."""


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
        self._dialogue = dialogue_with(model, _TOOLS)
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
            tools = _TYPED_TOOLS
            dialogue = self._typed = self._typed or dialogue_with(self._model, tools)
        prompt = draft_prompt(deps) + dialogue.instructions
        config: RunnableConfig = {  # by which traces and callbacks know the calls
            "tags": _TAGS,
            "run_name": "tomldiary_extractor",
            "metadata": {"user_id": deps.user_id, "session_id": deps.session_id},
        }
        messages: list[BaseMessage] = [SystemMessage(prompt), HumanMessage(message)]
        for _ in range(self.max_rounds):
            answer = await dialogue.ask(messages, config)
            messages.append(answer.message)
            if not answer.calls and not answer.unreadable:
                _check_ended(answer.message)
                return str(answer.message.text)
            # In sequence: a call may depend on the result of the one before.
            told = [(call, await _call_tool(context, tools, call)) for call in answer.calls]
            messages += dialogue.replies([*told, *answer.unreadable])
        raise ExtractionError(
            f"the model still called tools after {self.max_rounds} answers. Nothing was changed; raise"
            " max_rounds if the turns are long."
        )


_CUT = re.compile(
    "length|max_|limit|context_window|filter|guardrail|armor|refus|safety|prohibited|blocklist|recitation|spii"
    "|language|malformed|unexpected_tool|too_many|signature|error|cancel|insufficient|other"
)
"""What names of such reasons have in common: each provider has its own, and a joined stream may repeat it."""
_REASONS = ("finish_reason", "stop_reason", "stopReason", "done_reason")
"""Where the metadata of a message has the reason for its end; the last ones are those of Bedrock and Ollama."""


def _check_ended(message: BaseMessage) -> None:
    """Raise if an empty answer does not mean that the model has nothing to add."""
    ended = message.response_metadata
    incomplete = field_of(ended.get("incomplete_details"), "reason")  # of OpenAI's Responses API
    why = str(next(filter(None, (*map(ended.get, _REASONS), incomplete)), "")).lower()
    # Providers refuse in words, or by not accepting the prompt.
    if refusal(message) or field_of(ended.get("prompt_feedback"), "block_reason"):
        why = "refusal"
    if _CUT.search(why) and not str(message.text).strip():
        raise ExtractionError(
            f"the model's answer was cut short or withheld ({why}). Nothing was changed. Allow longer answers, or"
            " name another model."
        )


async def _call_tool(context: SimpleNamespace, tools: Tools, call: ToolCall) -> str:
    name = call["name"]
    if name not in tools:
        return f"❌ There is no tool {name!r}. Use one of: {', '.join(tools)}."
    try:
        arguments = tools[name].model_validate(call["args"])
    except ValidationError as error:
        return f"❌ {explained(error, name)}"
    given = {each: getattr(arguments, each) for each in arguments.model_fields_set}
    return await _FUNCTIONS[name](context, **given)


def _arguments(function: Callable[..., Awaitable[str]]) -> type[BaseModel]:
    """Return the arguments of a tool of the core; its first parameter, the context, is hidden from the model."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    fields: dict[str, Any] = {
        one.name: (one.annotation, ... if one.default is one.empty else one.default)
        for one in parameters
    }
    return create_model(function.__name__, __doc__=inspect.getdoc(function), **fields)


_FUNCTIONS: dict[str, Callable[..., Awaitable[str]]] = {
    each.__name__: each for each in (*EXTRACTION_TOOLS, *FACT_TOOLS)
}
_TOOLS: Tools = {each.__name__: _arguments(each) for each in EXTRACTION_TOOLS}
_TYPED_TOOLS: Tools = {**_TOOLS, **{each.__name__: _arguments(each) for each in FACT_TOOLS}}


class Asked(NamedTuple):
    """One answer of a model."""

    message: AIMessage
    calls: Sequence[ToolCall]
    unreadable: Sequence[Answered] = ()
    """Calls that could not be read, each with the text that tells the model so."""


def dialogue_with(model: ChatModel, tools: Tools) -> Dialogue:
    """Return the dialogue that fits a model."""
    try:
        return Dialogue(_bound(model, lambda inner: inner.bind_tools(list(tools.values()))))
    except (NotImplementedError, AttributeError):
        pass
    try:
        return _WrittenDialogue(
            _bound(model, lambda inner: inner.with_structured_output(_Calls, include_raw=True)),
            tools,
        )
    except (NotImplementedError, AttributeError):
        return _WrittenDialogue(model, tools)


def _bound(model: Any, bind: Callable[[Any], Any]) -> Any:
    """Bind a model, also within `with_retry`, `bind`, `with_config` or `with_fallbacks`, which do not pass it on.

    Tools that the host has bound are left out.
    """
    if isinstance(model, RunnableWithFallbacks):
        several = cast("RunnableWithFallbacks[Any, Any]", model)
        fallbacks = [_bound(each, bind) for each in several.fallbacks]
        return several.model_copy(
            update={"runnable": _bound(several.runnable, bind), "fallbacks": fallbacks}
        )
    if isinstance(model, RunnableBindingBase):
        binding = cast("RunnableBindingBase[Any, Any]", model)
        kwargs = {name: each for name, each in binding.kwargs.items() if name not in _OF_TOOLS}
        return binding.model_copy(update={"bound": _bound(binding.bound, bind), "kwargs": kwargs})
    return bind(model)


class Dialogue:
    """Asks a model for tool calls, and returns their answers to it. This class is for models that can call tools."""

    instructions = ""
    """The instructions for calling tools, which follow the prompt."""

    def __init__(self, model: Runnable[Any, Any]) -> None:
        self._model = model

    async def ask(self, messages: list[BaseMessage], config: RunnableConfig) -> Asked:
        """Return the model's next answer."""
        answer: AIMessage = await _ask_model(self._model, messages, config)
        unreadable = [
            (call, f"❌ The arguments of {call['name']!r} could not be read: {call['error'] or 'no JSON'}.")
            for call in answer.invalid_tool_calls
        ]  # fmt: skip
        return Asked(answer, answer.tool_calls, unreadable)

    def replies(self, answered: Sequence[Answered]) -> list[BaseMessage]:
        """Return the answers to calls as messages for the model."""
        return [
            ToolMessage(
                text,
                tool_call_id=call["id"] or "",
                status="error" if text.startswith("❌") else "success",
            )
            for call, text in answered
        ]


class _Call(BaseModel):
    tool: str = Field(description="The name of a tool.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Its arguments, by name.")


class _Calls(BaseModel):
    """The tools to call now, in this order; none when there is nothing left to do."""

    calls: list[_Call] = Field(default_factory=list[_Call])

    @model_validator(mode="before")
    @classmethod
    def _check(cls, given: Any) -> Any:
        """Refuse an object with calls elsewhere, such as a single call; `{"status": "done"}` ends the dialogue."""
        if isinstance(given, dict) and "calls" not in given:
            held = cast("dict[str, Any]", given).values()
            if any(each and isinstance(each, dict | list) for each in held):
                raise ValueError('the key "calls" is missing')
        return cast("Any", given)


_WRITE_CALLS = """
You cannot call the tools yourself; write down which to call, and you are told what they answer. \
Answer with JSON and nothing else, such as
{"calls": [{"tool": "list_preferences", "arguments": {"category": "…"}}]}
and, when the diary is up to date, with {"calls": []}

The tools, with their arguments as JSON schemas:
"""
_UNREADABLE: InvalidToolCall = {
    "type": "invalid_tool_call", "name": "your answer", "args": None, "id": None, "error": None,
}  # fmt: skip


class _WrittenDialogue(Dialogue):
    """For a model that cannot call tools: it writes its calls as text or as structured output."""

    def __init__(self, model: Runnable[Any, Any], tools: Tools) -> None:
        super().__init__(model)
        self.instructions = _WRITE_CALLS + "\n".join(
            json.dumps({"tool": name, **_schema(arguments)}, ensure_ascii=False)
            for name, arguments in tools.items()
        )

    async def ask(self, messages: list[BaseMessage], config: RunnableConfig) -> Asked:
        answer: Any = await _ask_model(self._model, messages, config)
        answered = type(answer).__name__
        if isinstance(answer, dict) and "raw" in answer:  # structured output
            held = cast("dict[str, Any]", answer)
            message, read, error = held["raw"], held["parsed"], held["parsing_error"]
        elif isinstance(answer, BaseMessage | str):
            text = answer if isinstance(answer, str) else str(answer.text)
            message = answer if isinstance(answer, AIMessage) else AIMessage(text)
            read, error = _calls_in(text)
        else:
            raise ExtractionError(
                f"a chat model answers with a message or text, but this one with {answered}. Nothing was"
                " changed. Give a chat model, or a function of (message, *, deps)."
            )
        if read is None:
            why = f"❌ it could not be read ({error or 'no JSON'}). Answer with JSON and nothing else."
            return Asked(message, (), [(_UNREADABLE, why)])
        calls = _Calls.model_validate(read).calls
        return Asked(
            message, [ToolCall(name=one.tool, args=one.arguments, id=None) for one in calls]
        )

    def replies(self, answered: Sequence[Answered]) -> list[BaseMessage]:
        lines = "\n".join(f"{call['name']}: {escape(text)}" for call, text in answered)
        return [HumanMessage(f'<tool_answers note="data">\n{lines}\n</tool_answers>')]


async def _ask_model(
    model: Runnable[Any, Any], messages: list[BaseMessage], config: RunnableConfig
) -> Any:
    """Ask the model in an event loop or a thread in which its connections can be used.

    Models of one provider share an async HTTP client in a process, and its connections belong to the
    event loop that opened them. A private event loop therefore uses the sync client. So does an event loop that finds
    connections of an earlier one: hosts run one for each request, as with `asyncio.run`. If the model has only a
    coroutine, a repeated call of it opens new connections.
    """
    in_thread = partial(in_daemon_thread, model.invoke)
    first, second = model.ainvoke, in_thread
    if is_private_loop():
        first, second = second, first
    try:
        for ask in (first, second):
            try:
                return await ask(messages, config)
            except RuntimeError as error:
                if not (isinstance(error, NotImplementedError) or is_of_another_loop(error)):
                    raise
        return await model.ainvoke(messages, config)
    except (IndexError, TypeError, ValueError) as error:
        # What LangChain's models raise if they cannot read a response, or not send it back.
        raise NoCompletion(str(error)) from error


def _calls_in(text: str) -> tuple[_Calls | None, Exception | None]:
    """Return the calls that a text has as JSON, or the error; a text without JSON has no calls."""
    start = text.find("{")
    if start < 0:
        return _Calls(), None
    try:
        # An answer that was cut short is an error: completing its JSON would store half of the calls.
        found, _ = json.JSONDecoder(strict=False).raw_decode(text[start:])
        return _Calls.model_validate(found), None
    except ValueError as error:
        return None, error


def _schema(arguments: type[BaseModel]) -> dict[str, Any]:
    schema = arguments.model_json_schema()
    return {"description": schema.get("description", ""), "arguments": schema.get("properties", {})}
