"""The current turn, cut from the messages of a whole thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from langchain_core.messages import BaseMessage, convert_to_messages

from tomldiary.agents.turn_messages import (
    Spoken,
    digest,
    earlier_exchanges,
    exchange_of,
    last_words,
    own_words,
    spoken,
    turn_start,
)
from tomldiary.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CurrentTurn", "current_turn", "unanswered", "waits_for_answer"]

_STRUCTURED = "Returning structured response: "
"""Begins the result with which LangChain's agents end a turn whose answer has a schema."""


class CurrentTurn(NamedTuple):
    """What was said in a turn and before it."""

    messages: Sequence[Spoken]
    earlier: tuple[tuple[str, str], ...]
    position: int
    """Of the first of them in the thread."""
    end: str
    """A digest by which the thread tells that no user spoke since; "" if its last message has no id."""
    behind: str = ""
    """The id of the message that ended the turn before, if no user said anything since."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the user's messages; empty if one of them has none."""
        ids = tuple(one.id for one in self.messages if one.by == "user")
        return ids if all(ids) else ()

    @property
    def place(self) -> tuple[str, ...]:
        """Its place in the thread, and what was said before it."""
        return (str(self.position), *(text for pair in self.earlier for text in pair))


def current_turn(
    state: Any, key: str, is_others: Callable[[Spoken], bool], ended: Collection[str]
) -> CurrentTurn | None:
    """Return what the user said since the last answer, and the answer; None if there is none yet.

    Args:
        state: The state of a graph.
        key: Where it keeps the messages.
        is_others: Whether another user said an unanswered message.
        ended: The `end` of turns that were recorded.

    Raises:
        InvalidValue: The state has no such key.
        IdentifierError: Another user said the last of what is answered.
    """
    thread = _thread(state, key)
    start = turn_start(thread)
    if start is None:
        return None
    words = last_words(thread)
    ends = [digest(one.id, one.text, words) if one.id else "" for one in thread]
    over = next((number for number, end in enumerate(ends) if end in ended), None)
    turn = thread[start if over is None else over + 1 :]
    if not exchange_of(turn)[1] and not any(one.is_answer for one in turn):
        return None
    asked = [number for number in range(start, len(thread)) if thread[number].by == "user"]
    own = own_words(thread, asked, is_others)
    if over is not None:
        earlier = tuple(earlier_exchanges(thread, over + 1))
        return CurrentTurn(turn, earlier, over + 1, ends[-1], thread[over].id)
    others = set(asked) - set(own)
    turn = [thread[number] for number in range(own[0], len(thread)) if number not in others]
    return CurrentTurn(turn, tuple(earlier_exchanges(thread, own[0])), own[0], ends[-1])


def unanswered(state: Any, key: str) -> list[Spoken]:
    """Return the messages of users since the last answer."""
    thread = _thread(state, key)
    start = turn_start(thread)
    return [] if start is None else [one for one in thread[start:] if one.by == "user"]


def waits_for_answer(state: Any, key: str) -> bool:
    """Whether the last message is the user's."""
    thread = _thread(state, key)
    return bool(thread) and thread[-1].by == "user"


def _thread(state: Any, key: str) -> list[Spoken]:
    if isinstance(state, Mapping):
        held: Any = cast("Mapping[str, Any]", state).get(key)
    else:
        held = getattr(state, key, None)
    if held is None:
        raise InvalidValue(f"the state has no {key!r}. Say in messages_key where the messages are.")
    messages = convert_to_messages([held] if _is_message(held) else list(held))
    return spoken(messages, lambda all_, number: all_[number].text.startswith(_STRUCTURED))


def _is_message(held: Any) -> bool:
    """Whether this is one message, also as text, as a dictionary or as role and text; else it is several."""
    first = cast("tuple[Any, ...]", held)[0] if isinstance(held, tuple) and held else None
    return isinstance(first, str) or isinstance(held, str | Mapping | BaseMessage)
