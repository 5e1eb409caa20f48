"""Reads the messages of a conversation: the memory in them, and the texts of user and assistant in one run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, takewhile
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import pydantic_ai
from pydantic_ai.messages import (
    BinaryContent,
    InstructionPart,
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_core import to_json

from tomldiary.agents.identity import field_of
from tomldiary.agents.turn_messages import (
    ToolCall,
    ToolResult,
    digest,
    or_left_out,
    tool_steps,
    with_results,
    words_beside_memory,
)
from tomldiary.agents.utterances import Heard, RunIds

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponsePart

    from tomldiary.entries.kinds.episodes import ToolStep

ORIGIN = "tomldiary.v1"
"""Marks texts that the diary put into a conversation; models do not see the mark."""
CAN_APPEND = "on_change" in {field.name for field in dataclasses.fields(InstructionPart)}
"""Whether the framework can append the changes of an instruction."""

_OF_FRAMEWORK = "__pydantic_ai__"
"""The key of the framework's own metadata. Newer releases keep the id of a message in an interface there, and mark the
texts that a capability framed."""
_HARNESS = "pydantic-ai-harness."
"""The beginning of the origins that the harness gives to its texts."""
_OF_COMPACTION = (f"{_HARNESS}compaction.receipt.", f"{_HARNESS}compaction.pin.")
"""The beginnings of the metadata of two kinds of texts: what the harness tells a model of a compaction, and what an
application lets each compaction keep."""
PAUSED = tuple(
    getattr(pydantic_ai, name)
    for name in ("DeferredToolRequests", "PendingModelResponse")
    if hasattr(pydantic_ai, name)
)
"""Outputs of a run that another run continues; older releases have fewer of them."""


def _marks(item: object) -> Mapping[str, Any]:
    """Return the marks that an application put on a part of a prompt; empty if a user may have written it."""
    metadata = item.metadata if isinstance(item, TextContent) else None
    return cast("Mapping[str, Any]", metadata) if isinstance(metadata, Mapping) else {}


def _ours(message: ModelMessage) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the texts that the diary put into a message, each with its marks; ("", {}) where a summary replaces them."""
    for part in message.parts:
        if part.part_kind == "compaction":
            yield "", {}
        yield from _ours_in(part)


def _ours_in(part: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the texts that the diary put into a part, each with its marks."""
    for item, text in _texts(part.content) if isinstance(part, UserPromptPart) else ():
        marks = _marks(item)
        if marks.get("origin") == ORIGIN:
            yield text, marks


def shown_memory(
    messages: Sequence[ModelMessage], scope: str, memory: str, user: str
) -> tuple[list[str], str]:
    """Return the texts about a user that the model still sees, oldest first, and the name for further ones, or "".

    If a conversation contains texts about several users of a memory, each frame must name its user, else a model cannot
    attribute it. Therefore texts without a name do not count then.
    """
    texts: list[str] = []
    has_others = False
    for text, marks in (each for message in messages for each in _ours(message)):
        if not marks:
            texts.clear()
        elif marks.get("scope") == scope:
            texts.append(text)
        elif marks.get("memory") == memory:
            has_others = True
    if not has_others:
        return texts, ""
    return [text for text in texts if ' about="' in text.partition(">")[0]], user


def as_data(text: str, ctx: RunContext[Any], scope: str, memory: str) -> ModelRequest:
    """Return a user message of the run with a text that `shown_memory` finds again."""
    mark = {"origin": ORIGIN, "scope": scope, "memory": memory}
    mark |= {"run_id": ctx.run_id, "conversation_id": ctx.conversation_id}
    message = ModelRequest(parts=[UserPromptPart([TextContent(text, metadata=mark)])])
    add_ids(message, ctx)
    return message


def add_ids(message: ModelMessage, ctx: RunContext[Any]) -> None:
    """Add the ids of a run to a message without ids, as the framework does to the last message of a request."""
    message.run_id = message.run_id or ctx.run_id
    message.conversation_id = message.conversation_id or ctx.conversation_id


def appending(text: str) -> InstructionPart:
    """Return an instruction whose later changes are appended to the conversation, if the framework can do so.

    Give `user_mark` beside it, because another user may continue the conversation.
    """
    options: dict[str, Any] = {"name": "memory", "on_change": "append"} if CAN_APPEND else {}
    return InstructionPart(text, dynamic=True, **options)


def user_mark(user: str) -> list[InstructionPart]:
    """Return an instruction that differs for each user: when it changes, the framework shows no earlier `appending` text."""
    text = f"(memory of user {digest(user)[:8]})"
    return [InstructionPart(text, dynamic=True)] if CAN_APPEND else []


def ids_of(message: ModelMessage) -> RunIds:
    """Return the ids of the conversation and the run of a message.

    The framework joins consecutive requests into one without ids. A text of the diary in it has the ids of its run.
    """
    ids = RunIds(message.conversation_id, message.run_id)
    if message.run_id is None and isinstance(message, ModelRequest):
        for _, marks in _ours(message):
            if marks:
                ids = RunIds(marks.get("conversation_id"), marks.get("run_id"))
    return ids


def returns_tools(message: ModelMessage | None) -> TypeGuard[ModelRequest]:
    """Return whether a message has tool results."""
    return isinstance(message, ModelRequest) and any(
        part.part_kind == "tool-return" for part in message.parts
    )


def queued_messages(ctx: RunContext[Any]) -> list[ModelMessage]:
    """Return the enqueued messages that no request took yet."""
    return [each for pending in ctx.pending_messages or () for each in pending.messages]


def mark_of(part: ModelRequestPart, text: str) -> str:
    """Return a digest of a text and its time, which a part keeps when the framework joins messages; "" without a time."""
    time = getattr(part, "timestamp", None)
    return "" if time is None else digest(str(time), text)


def words_in(messages: Iterable[ModelMessage]) -> list[Heard]:
    """Return the texts of users."""
    return [
        Heard(
            text,
            ids_of(message),
            mark_of(part, text),
            _id_in_interface(message, part),
            is_joined=len(message.parts) > 1,
            part=part,
        )
        for message in messages
        for part in _prompts_in_history(message)
        for text in said([part])
    ]


def _id_in_interface(message: ModelMessage, part: ModelRequestPart) -> str | None:
    """Return the id that a user interface gave to the message of a text; "" if it is lost, None if there is none.

    An adapter joins messages in a row into one, which has the id of the last one.
    """
    id_ = field_of(field_of(field_of(message, "metadata"), _OF_FRAMEWORK), "ui_message_id")
    if not id_:
        return None
    return str(id_) if part is message.parts[-1] else ""


def unanswered(messages: Sequence[ModelMessage]) -> list[Heard]:
    """Return the texts of users since the last response."""
    return words_in(reversed(_since_response(messages)))


def _since_response(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the messages since the last response, newest first."""
    return [*takewhile(lambda message: not isinstance(message, ModelResponse), reversed(messages))]


def parts_of_others(messages: Sequence[ModelMessage], scope: str, memory: str) -> set[int]:
    """Return the ids of the parts since the last response behind which their run showed the memory of another scope."""
    others: set[int] = set()
    behind: Mapping[str, Any] = {}
    for message in _since_response(messages):
        # A message of the host has no run; the run behind it had its words.
        if message.run_id not in (None, behind.get("run_id")):
            behind = {}
        for part in reversed(message.parts):
            shown = [marks for _, marks in _ours_in(part) if marks.get("memory") == memory]
            behind = shown[0] if shown else behind
            if behind.get("scope", scope) != scope:
                others.add(id(part))
    return others


def is_of_others(
    messages: Sequence[ModelMessage], run: str | None, scope: str, memory: str
) -> bool:
    """Return whether a run showed the memory of another scope."""
    shown = (marks for message in messages for _, marks in _ours(message))
    return run is not None and any(
        (marks.get("run_id"), marks.get("memory")) == (run, memory) and marks.get("scope") != scope
        for marks in shown
    )


def resumed(messages: Sequence[ModelMessage], prompt: object) -> ModelResponse | None:
    """Return the response that a run with this history and prompt continues: suspended, or with open tool calls."""
    returned: set[str] = set()
    for message in reversed(messages):
        # The framework itself answers the open calls of an interrupted request. Those of an interrupted response it
        # answers only if the run has a prompt.
        is_cut_off = getattr(message, "state", None) == "interrupted"
        if isinstance(message, ModelResponse):
            if _is_suspended(message):
                return message
            calls = {p.tool_call_id for p in message.parts if isinstance(p, ToolCallPart)}
            return None if calls <= returned or (is_cut_off and prompt is not None) else message
        if is_cut_off:
            return None
        returned |= {str(getattr(part, "tool_call_id", "")) for part in message.parts}
    return None


def _is_suspended(message: ModelMessage) -> bool:
    """Return whether a response is incomplete, so that a run with this history continues it."""
    return getattr(message, "state", None) == "suspended"


def prompts_in(message: ModelMessage) -> list[ModelRequestPart]:
    """Return the user's parts of a message, written or spoken."""
    if isinstance(message, ModelResponse):
        return []
    return [part for part in message.parts if part.part_kind in {"user-prompt", "speech"}]


def said(prompts: Iterable[ModelRequestPart]) -> list[str]:
    """Return the user's texts in parts of a message."""
    texts = (
        prompt_words(part.content) if isinstance(part, UserPromptPart) else _transcript(part)
        for part in prompts
    )
    return [words for words in texts if words]


def _answers(response: ModelResponse) -> list[str]:
    """Return the assistant's texts in a response, written or spoken; adjacent parts are one text, as in the output."""
    texts: list[str | None] = []
    for is_text, parts in groupby(response.parts, lambda part: isinstance(part, TextPart)):
        if is_text:
            texts.append("".join(cast("TextPart", part).content for part in parts))
        else:
            texts += map(_transcript, parts)
    return [text for text in texts if text and text.strip()]


def _structured_answer(
    messages: Sequence[ModelMessage], number: int, output_tools: Collection[str]
) -> list[str]:
    """Return the arguments of the first accepted call of an output tool in a response, as JSON."""
    retried = {
        getattr(part, "tool_call_id", None)
        for message in messages[number + 1 : number + 2]
        for part in message.parts
        if _asks_to_retry(part)
    }
    accepted = (
        part
        for part in messages[number].parts
        if isinstance(part, ToolCallPart)
        and part.tool_name in output_tools
        and part.tool_call_id not in retried
    )
    texts = (or_left_out("an answer", part.args_as_json_str) for part in islice(accepted, 1))
    return [*filter(None, texts)]


def _transcript(part: object) -> str | None:
    """Return the transcript of a part of a realtime session; older releases have none."""
    return getattr(part, "transcript", None)


def _prompts_in_history(message: ModelMessage) -> list[ModelRequestPart]:
    """Return the user's parts of a message of the history.

    User parts beside tool results come from tools. The exception is a message without a run id: a user interface
    made it, and puts the user's next message there.
    """
    is_of_tools = returns_tools(message) and ids_of(message).run is not None
    return [] if is_of_tools else prompts_in(message)


def exchanges(
    messages: Sequence[ModelMessage], output_tools: Collection[str] = ()
) -> list[tuple[str, str]]:
    """Return pairs of a user's text and its answer, oldest first; unanswered texts are left out.

    A structured answer is the arguments of a call of one of `output_tools`.
    """
    found: list[tuple[str, str]] = []
    asked: list[str] = []
    rejected = _rejected(messages, output_tools)
    for number, message in enumerate(messages):
        if not isinstance(message, ModelResponse):
            asked += said(_prompts_in_history(message))
            continue
        if number in rejected:
            continue
        answer = "\n\n".join(
            [*_answers(message), *_structured_answer(messages, number, output_tools)]
        )
        if asked:
            found.append(("\n\n".join(asked), answer))
            asked = []
        elif found and answer:
            question, before = found[-1]
            found[-1] = question, f"{before}\n\n{answer}" if before else answer
        elif answer:  # the assistant began the conversation
            found.append(("", answer))
    return found


def answered(
    messages: Sequence[ModelMessage],
    run_id: str | None,
    output: object = None,
    *,
    is_parsed: bool = False,
    output_tools: Collection[str] = (),
) -> str:
    """Return the assistant's texts in a run, then the run's output if it differs; an output of another type as JSON.

    Rejected answers, for example by an output validator, and suspended ones are left out. If the output was parsed
    from the text of the last answer (`is_parsed`), the output replaces this text. Binary output is left out.
    """
    rejected = _rejected(messages, output_tools)
    answers = [
        _answers(message)
        for number, message in enumerate(messages)
        if isinstance(message, ModelResponse)
        and message.run_id == run_id
        and number not in rejected
        and not _is_suspended(message)
    ]
    is_text = isinstance(output, str)
    shown = output if is_text else _as_json(output)
    if is_parsed and shown is not None and not (is_text and _is_said(shown, answers)):
        answers = answers[:-1]
    texts = [text for each in answers for text in each]
    if shown is not None and shown not in ("".join(texts) if is_text else texts):
        texts.append(shown)
    return "\n\n".join(texts)


def _is_said(output: str, said: Sequence[Sequence[str]]) -> bool:
    """Return whether an output equals the last answer, or the part of it after a native tool call."""
    last = said[-1] if said else ()
    ends = ("".join(last[start:]).split() for start in range(len(last)))
    return output.split() in ends


def _as_json(output: object) -> str | None:
    """Return an output as JSON; None if there is none, or JSON cannot express it."""
    if output is None or isinstance(output, (bytes, BinaryContent)):
        return None
    text = or_left_out("an output", lambda: to_json(output, fallback=str).decode())
    return None if text is None else _without_binary(text)


def _without_binary(text: str) -> str:
    """Return a text; if it is JSON with binary content of the framework, the data are removed."""
    if '"kind":"binary"' not in text:
        return text
    try:
        kept = json.loads(text, object_hook=_without_data)
    except (ValueError, RecursionError):
        return text
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


def _without_data(value: dict[str, Any]) -> dict[str, Any]:
    is_binary = value.get("kind") == "binary"
    return {key: each for key, each in value.items() if not (is_binary and key == "data")}


def _rejected(messages: Sequence[ModelMessage], output_tools: Collection[str] = ()) -> set[int]:
    """Return the numbers of the responses that were rejected."""
    return {
        number - 1 for number, message in enumerate(messages) if _asks_again(message, output_tools)
    }


def _asks_again(message: ModelMessage, output_tools: Collection[str]) -> bool:
    """Return whether a message rejects the response before it: its text, or all its calls of output tools."""
    if any(
        part.part_kind == "retry-feedback"
        or (part.part_kind == "retry-prompt" and part.tool_name is None)
        for part in message.parts
    ):
        return True
    outcomes = [
        _asks_to_retry(part)
        for part in message.parts
        if getattr(part, "tool_name", None) in output_tools
    ]
    return bool(outcomes) and all(outcomes)


def _asks_to_retry(part: ModelRequestPart | ModelResponsePart) -> bool:
    return part.part_kind == "retry-prompt" or getattr(part, "outcome", "") == "retried"


def steps_in(
    messages: Sequence[ModelMessage],
    run_id: str | None,
    *,
    is_paused: bool,
    output_tools: Collection[str] = (),
) -> tuple[ToolStep, ...]:
    """Return the tool calls of a run, without those of a diary's tools.

    Calls of `output_tools` are left out, since the output has their content. Open calls of a paused run belong to the
    run that brings their results.
    """
    history = list(takewhile(lambda message: message.run_id != run_id, messages))
    after = [message for message in messages if message.run_id == run_id]
    # A user interface puts results at the end of the history; their message has no run if the memory follows it.
    while history and returns_tools(history[-1]) and history[-1].run_id is None:
        after.insert(0, history.pop())
    response = resumed(history, None)
    earlier = [] if response is None else list(response.parts)
    own = [part for message in after for part in message.parts]
    parts: list[ToolCall | ToolResult] = []
    for part in (*earlier, *own):
        if isinstance(part, ToolCallPart):
            parts.append(ToolCall(part.tool_call_id, part.tool_name, part.args))
        elif isinstance(part, ToolReturnPart):
            text = or_left_out("a result of a tool", part.model_response_str) or ""
            parts.append(ToolResult(part.tool_call_id, _without_binary(text)))
    before = sum(isinstance(part, ToolCallPart) for part in earlier)
    return tool_steps(
        (call, result)
        for number, (call, result) in enumerate(with_results(parts))
        if call.name not in output_tools
        if result is not None or not (is_paused or number < before)
    )


def prompt_words(prompt: object) -> str | None:
    """Return the user's text in a prompt: a text, a sequence of parts, or None.

    Parts that an application marked as its own are left out, and so is memory without a mark, for example from a user
    interface. If the first one is of the harness, so are all others, such as the texts beside a background tool's file.
    """
    items = [*_texts(prompt)]
    if any(str(_marks(item).get("origin")).startswith(_HARNESS) for item, _ in items[:1]):
        return None
    texts = [words_beside_memory(text) for item, text in items if not _is_generated(item)]
    return "\n".join(filter(None, texts)) or None


def _is_generated(item: object) -> bool:
    """Return whether an application, a capability or the framework marked a part of a prompt as its own."""
    marks = _marks(item)
    return (
        marks.get("origin") is not None
        or field_of(marks.get(_OF_FRAMEWORK), "framework_frame") is True
        or str(field_of(item, "metadata")).startswith(_OF_COMPACTION)
    )


def is_unsaid(part: ModelRequestPart) -> bool:
    """Return whether a part has text, but no words of a user: memory, or text of an application."""
    return (
        isinstance(part, UserPromptPart)
        and any(text for _, text in _texts(part.content))
        and not said([part])
    )


def _texts(prompt: object) -> Iterator[tuple[Any, str]]:
    """Yield the parts of a prompt that are text, each with its text."""
    items = [prompt] if isinstance(prompt, str) else prompt
    for item in cast("Sequence[Any]", items) if isinstance(items, Sequence) else ():
        text = item if isinstance(item, str) else getattr(item, "content", None)
        if isinstance(text, str):
            yield item, text
