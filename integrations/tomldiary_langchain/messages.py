"""The current turn, cut from the messages of a whole thread, without what only stands in for people.

LangChain marks messages that nobody said with `lc_source`: summaries of what was cut off, and the
memory that is shown to a model. They are never taken for the user's words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "Said",
    "first_question",
    "last_question",
    "said_since",
    "text_of",
    "with_memory",
    "with_text",
]

_SOURCE = "lc_source"
_OURS = "tomldiary"


class Said(NamedTuple):
    """What was said in one turn."""

    question: str
    answer: str


def first_question(messages: Sequence[BaseMessage]) -> BaseMessage | None:
    """Return the first message of a person, or None."""
    return next((message for message in messages if _is_question(message)), None)


def last_question(messages: Sequence[BaseMessage]) -> BaseMessage | None:
    """Return the last message of a person, or None."""
    return next((message for message in reversed(messages) if _is_question(message)), None)


def said_since(
    messages: Sequence[BaseMessage], question_id: str | None, question: str
) -> Said | None:
    """Return what person and model said from a question on; None if the person said nothing.

    Args:
        messages: A thread.
        question_id: The message the turn begins with.
        question: What it said. If it was cut out of the thread meanwhile, this and the last answer
            are the turn.
    """
    begins = [number for number, message in enumerate(messages) if message.id == question_id]
    told = [message for message in messages if isinstance(message, AIMessage)][-1:]
    if begins:
        turn = messages[begins[-1] :]
        question = _joined(message for message in turn if _is_question(message))
        told = [message for message in turn if isinstance(message, AIMessage)]
    return Said(question, _joined(told)) if question else None


def with_memory(
    messages: Sequence[AnyMessage], question_id: str | None, memory: str
) -> list[AnyMessage]:
    """Return the messages with the memory in front of the current turn, as a marked user message.

    What stands before it is the same on each call, so that a provider's prompt cache holds.
    """
    shown = HumanMessage(memory, additional_kwargs={_SOURCE: _OURS})
    place = _start(messages, question_id)
    if place == len(messages):  # nobody said anything: first, but behind instructions
        kinds = (
            number for number, one in enumerate(messages) if not isinstance(one, SystemMessage)
        )
        place = next(kinds, place)
    return [*messages[:place], shown, *messages[place:]]


def with_text(message: SystemMessage | None, text: str) -> SystemMessage:
    """Return a system message that ends with `text`; its own blocks stay as they are."""
    if message is None:
        return SystemMessage(text)
    content: Any = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": f"{content}\n\n{text}" if content else text})
    return message.model_copy(update={"content": [*content, {"type": "text", "text": text}]})


def text_of(message: BaseMessage) -> str:
    """Return what a message says in words."""
    return str(message.text).strip()


def _start(messages: Sequence[BaseMessage], question_id: str | None) -> int:
    """Return where the turn begins; behind the end if nobody said anything."""
    asked = [number for number, message in enumerate(messages) if _is_question(message)]
    begins = [number for number in asked if messages[number].id == question_id]
    return (begins or asked or [len(messages)])[-1]


def _joined(messages: Iterable[BaseMessage]) -> str:
    return "\n\n".join(filter(None, map(text_of, messages)))


def _is_question(message: BaseMessage) -> bool:
    return isinstance(message, HumanMessage) and not message.additional_kwargs.get(_SOURCE)
