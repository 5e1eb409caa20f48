"""The current turn, cut from the messages of a whole thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_messages,
)

from tomldiary.agents.turn_messages import (
    Spoken,
    earlier_exchanges,
    exchange_of,
    tool_steps,
    turn_start,
)
from tomldiary.errors import InvalidValue

if TYPE_CHECKING:
    from tomldiary.entries.episodes import ToolStep

__all__ = ["CurrentTurn", "current_turn", "last_question"]

_SOURCE = "lc_source"
"""Marks messages that stand in for people: summaries, memory, prompts of other models."""
_STRUCTURED = "Returning structured response: "
"""Begins the result with which LangChain's agents end a turn whose answer has a schema."""


class CurrentTurn(NamedTuple):
    """What was said in a turn and before it."""

    user_msg: str
    assistant_msg: str
    earlier: tuple[tuple[str, str], ...]
    ids: tuple[str, ...]
    """Of the user's messages; empty if one of them has none."""
    position: int
    """Of the first of them in the thread."""
    steps: tuple[ToolStep, ...] = ()
    """The tools that were called in the turn."""


def current_turn(state: Any, key: str) -> CurrentTurn | None:
    """Return what the user said since the last answer, and the answer; None if there is none yet.

    Raises:
        InvalidValue: The state has no such key.
    """
    messages = _messages(state, key)
    thread = _spoken(messages)
    start = turn_start(thread)
    if start is None:
        return None
    question, answer = exchange_of(thread[start:])
    if not answer:
        return None
    asked = zip(messages[start:], thread[start:], strict=True)
    ids = [message.id or "" for message, spoken in asked if spoken.by == "user"]
    earlier = tuple(earlier_exchanges(thread, start))
    return CurrentTurn(
        question, answer, earlier, tuple(ids) if all(ids) else (), start, _steps(messages[start:])
    )


def last_question(state: Any, key: str) -> str | None:
    """Return what the user said since the last answer, or None."""
    thread = _spoken(_messages(state, key))
    start = turn_start(thread)
    return None if start is None else exchange_of(thread[start:])[0] or None


def _spoken(messages: Sequence[BaseMessage]) -> list[Spoken]:
    spoken: list[Spoken] = []
    for message in messages:
        text = str(message.text).strip()
        if isinstance(message, HumanMessage) and not message.additional_kwargs.get(_SOURCE):
            spoken.append(Spoken("user", text))
        elif isinstance(message, AIMessage):
            is_calling = bool(message.tool_calls or message.invalid_tool_calls)
            spoken.append(Spoken("assistant", text, is_answer=not is_calling))
        elif isinstance(message, ToolMessage):
            spoken.append(Spoken("tool", text, is_answer=text.startswith(_STRUCTURED)))
        else:
            spoken.append(Spoken("other", text))
    return spoken


def _steps(messages: Sequence[BaseMessage]) -> tuple[ToolStep, ...]:
    calls = [
        (call["id"] or "", call["name"], call["args"])
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    ]
    told = [message for message in messages if isinstance(message, ToolMessage)]
    return tool_steps(calls, {each.tool_call_id: str(each.text) for each in told})


def _messages(state: Any, key: str) -> list[BaseMessage]:
    if isinstance(state, Mapping):
        held: Any = cast("Mapping[str, Any]", state).get(key)
    else:
        held = getattr(state, key, None)
    if held is None:
        raise InvalidValue(f"the state has no {key!r}. Say in messages_key where the messages are.")
    return convert_to_messages(cast("list[Any]", held) if isinstance(held, list) else [held])
