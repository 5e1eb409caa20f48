"""The current turn, cut from the messages of a whole thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages

from tomldiary.errors import InvalidValue

__all__ = ["current_turn", "last_question"]


def current_turn(state: Any, key: str) -> tuple[str, str] | None:
    """Return the last human message and what the model said after it; None if it said nothing yet.

    Raises:
        InvalidValue: The state has no such key.
    """
    messages = _messages(state, key)
    start = _last_human(messages)
    if start is None:
        return None
    said = [_text(message) for message in messages[start + 1 :] if isinstance(message, AIMessage)]
    answer = "\n\n".join(filter(None, said))
    return (_text(messages[start]), answer) if answer else None


def last_question(state: Any, key: str) -> str | None:
    """Return the text of the last human message, or None."""
    messages = _messages(state, key)
    start = _last_human(messages)
    return None if start is None else _text(messages[start]) or None


def _messages(state: Any, key: str) -> list[BaseMessage]:
    if isinstance(state, Mapping):
        held: Any = cast("Mapping[str, Any]", state).get(key)
    else:
        held = getattr(state, key, None)
    if held is None:
        raise InvalidValue(f"the state has no {key!r}. Say in messages_key where the messages are.")
    return convert_to_messages(cast("list[Any]", held) if isinstance(held, list) else [held])


def _last_human(messages: list[BaseMessage]) -> int | None:
    numbers = (n for n in range(len(messages) - 1, -1, -1) if isinstance(messages[n], HumanMessage))
    return next(numbers, None)


def _text(message: BaseMessage) -> str:
    return str(message.text).strip()
