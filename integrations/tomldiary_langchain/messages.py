"""The current turn, cut from the messages of a whole thread, without what only stands in for people.

LangChain marks generated messages with `lc_source`: summaries of what was cut off, and the
memory that is shown to a model. They are never taken for the user's words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic_core import to_json

from tomldiary.agents.turn_messages import (
    Spoken,
    earlier_exchanges,
    exchange_of,
    tool_steps,
    turn_start,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tomldiary.entries.episodes import ToolStep

__all__ = ["Turn", "first_exchange", "said_in", "steps_in", "turn_of", "with_memory", "with_text"]

_SOURCE = "lc_source"
_OURS = "tomldiary"


class Turn(NamedTuple):
    """The part of a thread that a run is about, as it is when the run begins."""

    ids: tuple[str, ...]
    """The ids of the user's messages."""
    question: str
    """What they say."""
    before: tuple[str, ...]
    """The texts of the messages in front of it."""
    earlier: tuple[tuple[str, str], ...]
    """The exchanges in front of it, oldest first."""


def turn_of(messages: Sequence[BaseMessage], told: Collection[str] = ()) -> Turn:
    """Return the turn of a run; without ids if the user said nothing.

    Args:
        messages: A thread.
        told: Ids of messages that were in an earlier turn, though the thread has no answer to them.
    """
    thread = _spoken(messages)
    start = turn_start(thread)
    if start is None:
        return Turn((), "", (), ())
    numbers = [n for n in range(start, len(thread)) if thread[n].by == "user"]
    new = [n for n in numbers if messages[n].id not in told]
    start = new[0] if new else numbers[-1]
    return Turn(
        tuple(messages[n].id or "" for n in numbers if n >= start),
        exchange_of([one for one in thread[start:] if one.by == "user"])[0],
        tuple(one.text for one in thread[:start]),
        tuple(earlier_exchanges(thread, start)),
    )


def said_in(
    turn: Turn, messages: Sequence[BaseMessage], structured: object = None
) -> tuple[str, str] | None:
    """Return what user and model said in a turn so far; None if the user said nothing.

    If the turn was cut out of the thread meanwhile, its question and the last answer are all of it.

    Args:
        turn: The turn as it began.
        messages: The thread now.
        structured: The structured response of the run; an answer as JSON where the model gave no words.
    """
    ids = {one.id for one in messages}
    if turn.ids and turn.ids[0] in ids:
        start = next(n for n, one in enumerate(messages) if one.id == turn.ids[0])
        said = _spoken(messages)[start:]
        if structured is not None and said[-1].by == "tool":
            said.append(Spoken("assistant", to_json(structured, fallback=str).decode()))
        question, answer = exchange_of(said)
    else:
        told = [one for one in messages if isinstance(one, AIMessage)][-1:]
        question, answer = turn.question, exchange_of(_spoken(told))[1]
    return (question, answer) if question else None


def steps_in(
    turn: Turn, messages: Sequence[BaseMessage], ours: Collection[str]
) -> tuple[ToolStep, ...]:
    """Return the tools that were called in a turn so far; `ours` are names of the diary's tools."""
    start = next((n for n, one in enumerate(messages) if turn.ids and one.id == turn.ids[0]), None)
    return () if start is None else _steps(messages[start:], ours)


def first_exchange(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the first message of a user and the first answer to it, as far as they are there."""
    thread = _spoken(messages)
    asked = [n for n, one in enumerate(thread) if one.by == "user"][:1]
    answered = [n for n, one in enumerate(thread) if one.is_answer and asked and n > asked[0]][:1]
    return [messages[n] for n in (*asked, *answered)]


def with_memory(messages: Sequence[AnyMessage], turn: Turn, memory: str) -> list[AnyMessage]:
    """Return the messages with the memory in front of the current turn, as a marked user message.

    What stands before it is the same on each call, so that a provider's prompt cache holds.
    """
    shown = HumanMessage(memory, additional_kwargs={_SOURCE: _OURS})
    place = _start(messages, turn)
    return [*messages[:place], shown, *messages[place:]]


def with_text(message: SystemMessage | None, text: str) -> SystemMessage:
    """Return a system message that ends with `text`; its own blocks stay as they are."""
    if message is None:
        return SystemMessage(text)
    content: Any = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": f"{content}\n\n{text}" if content else text})
    return message.model_copy(update={"content": [*content, {"type": "text", "text": text}]})


def _start(messages: Sequence[BaseMessage], turn: Turn) -> int:
    """Return where the turn begins; first, but behind instructions, if the user said nothing."""
    asked = [number for number, message in enumerate(messages) if _is_question(message)]
    begins = [number for number in asked if messages[number].id in turn.ids]
    if begins or asked:
        return (begins or asked[-1:])[0]
    kinds = (number for number, one in enumerate(messages) if not isinstance(one, SystemMessage))
    return next(kinds, len(messages))


def _spoken(messages: Sequence[BaseMessage]) -> list[Spoken]:
    spoken: list[Spoken] = []
    for number, message in enumerate(messages):
        text = str(message.text).strip()
        if _is_question(message):
            spoken.append(Spoken("user", text))
        elif isinstance(message, AIMessage):
            is_calling = bool(message.tool_calls or message.invalid_tool_calls)
            spoken.append(Spoken("assistant", text, is_answer=not is_calling))
        elif isinstance(message, ToolMessage):
            # An agent that goes on asks its model; what it does not show a model is its answer.
            following = messages[number + 1 : number + 2]
            spoken.append(Spoken("tool", text, is_answer=any(map(_is_question, following))))
        else:
            spoken.append(Spoken("other", text))
    return spoken


def _steps(messages: Sequence[BaseMessage], ours: Collection[str]) -> tuple[ToolStep, ...]:
    calls = [
        (call["id"] or "", call["name"], call["args"])
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    ]
    told = [message for message in messages if isinstance(message, ToolMessage)]
    return tool_steps(calls, {each.tool_call_id: str(each.text) for each in told}, ours)


def _is_question(message: BaseMessage) -> bool:
    return isinstance(message, HumanMessage) and not message.additional_kwargs.get(_SOURCE)
