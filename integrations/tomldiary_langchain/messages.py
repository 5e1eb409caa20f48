"""The current turn in the messages of a whole thread, without generated user messages.

LangChain marks these with `lc_source`: summaries of removed messages, and the memory that is shown to a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, SystemMessage
from pydantic_core import to_json

from tomldiary.agents.turn_messages import (
    SOURCE,
    Spoken,
    earlier_exchanges,
    exchange_of,
    is_before_question,
    is_question,
    last_words,
    own_part,
    own_words,
    spoken,
    turn_start,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "Turn",
    "as_in",
    "ended_in",
    "first_exchange",
    "identified",
    "said_in",
    "turn_of",
    "with_memory",
    "with_text",
]

_OURS = "tomldiary"


class Turn(NamedTuple):
    """The turn of a run, at the start of the run."""

    asked: tuple[Spoken, ...]
    """The user's messages."""
    before: tuple[str, ...]
    """The texts of the messages before `own`."""
    earlier: tuple[tuple[str, str], ...]
    """The exchanges before the turn, oldest first."""
    unanswered: tuple[Spoken, ...] = ()
    """All user messages since the last answer, including those of other users and those already submitted."""
    own: tuple[Spoken, ...] = ()
    """Those of them that the user of the run wrote, of which `asked` are the last ones."""
    behind: str = ""
    """The id of the message that ended the previous turn, if there is no user message after it."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the user's messages."""
        return tuple(one.id for one in self.asked)

    @property
    def question(self) -> str:
        """The text of the user's messages."""
        return exchange_of(self.asked)[0]


def turn_of(
    messages: Sequence[BaseMessage],
    is_submitted: Callable[[Spoken], bool],
    is_others: Callable[[Spoken], bool],
    begun_with: Mapping[str, str],
    ended: Mapping[str, str],
    *,
    goes_on: bool,
) -> Turn:
    """Return the turn of a run; `asked` is empty if there is no message of the user.

    Args:
        messages: A thread.
        is_submitted: Whether a message was submitted with an earlier turn, though the thread has no answer to it.
        is_others: Whether another user wrote a message.
        begun_with: The texts of the messages that the last run began with, by id, if this run did not succeed. All
            messages after them are part of the turn, also tool results and answers.
        ended: The result of `ended_in` at the end of the last turn.
        goes_on: Whether that run continues. Messages that a summary replaced are part of the turn in any case.

    Raises:
        IdentifierError: Another user wrote the last unanswered message.
    """
    thread = [one._replace(is_answer=one.is_answer or one.id in ended) for one in _spoken(messages)]
    if goes_on or any(one.additional_kwargs.get(SOURCE) for one in messages):
        thread = _with_begun(thread, begun_with)  # else a host removed what is missing
    start = turn_start(thread)
    if start is None:
        return Turn((), (), ())
    words = last_words(thread)
    over = next((one.id for one in thread if ended.get(one.id) == words), "")
    if over:
        texts, earlier = (one.text for one in thread), earlier_exchanges(thread, len(thread))
        return Turn((), tuple(texts), tuple(earlier), behind=over)
    begun = [number for number, one in enumerate(thread) if one.id in begun_with]
    start = min([start, *begun])
    unanswered = [n for n in range(start, len(thread)) if thread[n].by == "user"]
    numbers = own_words(thread, unanswered, is_others)
    start = next((n for n in numbers if not is_submitted(thread[n])), numbers[-1])
    return Turn(
        tuple(thread[n] for n in numbers if n >= start),
        tuple(one.text for one in thread[: numbers[0]]),
        tuple(earlier_exchanges(thread, start)),
        tuple(thread[n] for n in unanswered),
        tuple(thread[n] for n in numbers),
    )


def ended_in(messages: Sequence[BaseMessage]) -> dict[str, str]:
    """Return the id of a turn's last message, which may be no answer, with a digest of the last user message."""
    return {str(one.id): last_words(_spoken(messages)) for one in messages[-1:]}


def _with_begun(thread: list[Spoken], begun_with: Mapping[str, str]) -> list[Spoken]:
    """Return a thread with the messages that were removed from it, inserted after its last answer."""
    present = {one.id for one in thread}
    gone = [Spoken("user", text, id=id_) for id_, text in begun_with.items() if id_ not in present]
    behind = max((number + 1 for number, one in enumerate(thread) if one.is_answer), default=0)
    return [*thread[:behind], *gone, *thread[behind:]]


def identified(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return messages with ids: deep agents give none to a message from a text or a tuple."""
    return [one if one.id else one.model_copy(update={"id": str(uuid4())}) for one in messages]


def as_in(messages: Sequence[BaseMessage], turn: Turn) -> Turn:
    """Return a turn with the current texts of the thread, which a middleware may have redacted."""
    ids = {one.id for one in turn.unanswered if one.id}
    now = {one.id: one for one in _spoken([one for one in messages if one.id in ids])}
    asked, unanswered = (
        tuple(now.get(one.id, one) for one in each) for each in (turn.asked, turn.unanswered)
    )
    return turn._replace(asked=asked, unanswered=unanswered)


def said_in(turn: Turn, messages: Sequence[BaseMessage], structured: object = None) -> list[Spoken]:
    """Return the messages of a turn so far; none if there is no user message, now or in an earlier turn.

    If the turn was removed from the thread meanwhile, the result is its question and the last answer.

    Args:
        turn: The turn at its start.
        messages: The thread now.
        structured: The structured response of the run, which is the answer (as JSON) if the model wrote no text.
    """
    if not (turn.asked or turn.behind):
        return []
    thread = _spoken(messages)
    first = turn.behind or turn.ids[0]
    start = next((n for n, one in enumerate(thread) if one.id and one.id == first), None)
    if start is None:
        answers = [one for one in thread if one.by == "assistant"]
        return [*turn.asked, *(one._replace(calls=()) for one in answers[-1:])]
    not_of_it = {one.id for one in turn.unanswered} - set(turn.ids)
    said = own_part(thread[start + bool(turn.behind) :], not_of_it)
    if structured is not None and said and said[-1].by == "tool":
        said.append(Spoken("assistant", to_json(structured, fallback=str).decode()))
    return said


def first_exchange(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the first user message and the first answer to it, if they exist."""
    thread = _spoken(messages)
    asked = [n for n, one in enumerate(thread) if one.by == "user"][:1]
    answered = [n for n, one in enumerate(thread) if one.is_answer and asked and n > asked[0]][:1]
    return [messages[n] for n in (*asked, *answered)]


def with_memory(messages: Sequence[AnyMessage], turn: Turn, memory: str) -> list[AnyMessage]:
    """Return the messages with the memory in front of the current turn, as a marked user message.

    The messages before it are the same on each call, so a provider's prompt cache remains valid.
    """
    shown = HumanMessage(memory, additional_kwargs={SOURCE: _OURS})
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
    """Return the index of the turn's first message; without a user message, the first one after instructions."""
    asked = [number for number, message in enumerate(messages) if is_question(message)]
    begins = [number for number in asked if messages[number].id in turn.ids]
    if begins or asked:
        return (begins or asked[-1:])[0]
    kinds = (number for number, one in enumerate(messages) if not isinstance(one, SystemMessage))
    return next(kinds, len(messages))


def _spoken(messages: Sequence[BaseMessage]) -> list[Spoken]:
    # A tool result followed by a user message was not shown to the model, so it is the answer.
    return spoken(messages, is_before_question)
