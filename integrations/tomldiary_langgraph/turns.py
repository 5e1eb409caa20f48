"""The turn in a graph's state: its messages, and the field that notes users and ends of turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self, cast

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from langgraph.channels.untracked_value import UntrackedValue

from tomldiary.agents.identity import field_of
from tomldiary.agents.turn_messages import (
    Spoken,
    digest,
    earlier_exchanges,
    exchange_of,
    last_words,
    own_part,
    own_words,
    spoken,
    turn_start,
)
from tomldiary.errors import InvalidValue, wrong_type

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


class StateText(str):
    """A text in a graph's state with data for this process; streams, traces and stored states have the text alone."""

    __slots__ = ("data",)

    data: dict[str, str]

    def __new__(cls, text: str, data: dict[str, str]) -> Self:
        """Return the text with its data."""
        made = super().__new__(cls, text)
        made.data = data
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickle as plain text, for servers that store the state."""
        return str, (str(self),)


class Recalled(StateText):
    """Recalled memory, with a digest of the user of each unanswered message.

    Its key is the id of the message. A user that a function of the node returned has the digest of function and id.
    """


class Ended(StateText):
    """The place where a node's last turn ended, by node; an empty text, which does not replace the field's text."""


class MemoryChannel(UntrackedValue[str]):
    """Stores the users of unanswered messages and the ends of turns in checkpoints, but not the text."""

    __slots__ = ("asked_by", "ended")

    asked_by: dict[str, str]
    ended: dict[str, str]

    def __init__(self, typ: type[str], guard: bool = True) -> None:  # noqa: FBT001, FBT002 - as in the base class
        super().__init__(typ, guard)
        self.asked_by, self.ended = {}, {}

    def copy(self) -> Self:
        """Return a copy of the channel."""
        copied = super().copy()
        copied.asked_by, copied.ended = self.asked_by, self.ended
        return copied

    def checkpoint(self) -> Any:
        """Return the part that a checkpoint stores: no text."""
        known = [self.asked_by, self.ended]
        return known if any(known) else super().checkpoint()

    def from_checkpoint(self, checkpoint: Any) -> Self:
        """Return the channel from a checkpoint."""
        restored = super().from_checkpoint(checkpoint)
        if isinstance(checkpoint, list):
            restored.asked_by, restored.ended = cast("list[dict[str, str]]", checkpoint)
        return restored

    def update(self, values: Sequence[str]) -> bool:
        """Set the text, and the users if `recall_node` wrote it; a subgraph has no users of its parent."""
        ended = [each.data for each in values if isinstance(each, Ended)]
        for each in ended:
            self.ended = {**self.ended, **each}
        values = [each for each in values if not isinstance(each, Ended)]
        if len(values) > 1:  # branches of a fan-out, each with a recall node
            known = [each.data if isinstance(each, Recalled) else self.asked_by for each in values]
            texts = "\n\n".join(dict.fromkeys(filter(None, values)))
            values = [Recalled(texts, {id_: one for each in known for id_, one in each.items()})]
        changed = super().update(values)
        if changed and isinstance(self.value, Recalled):
            now = self.value.data
            self.asked_by = {id_: self.asked_by.get(id_, owner) for id_, owner in now.items()}
        return changed or bool(ended)


Memory = Annotated[str, MemoryChannel]
"""The type of the state's field for `recall_node`: a text that no checkpoint of the graph keeps.

    class Chat(MessagesState):
        memory: Memory

Checkpoints of a subgraph keep its whole input. Pass it the messages alone, with `add_node(…, input_schema=MessagesState)`.

The field lasts for one `invoke`. When a run continues after an interrupt, it is missing until a recall node runs.
Recording nodes read two things from it: the users of unanswered messages in a shared thread, and the end of their
last turn.
"""


def asked_by_in(channels: Mapping[str, Any] | None) -> dict[str, str]:
    """Return what the fields of a state note of unanswered messages; see `Recalled`."""
    fields = _fields(channels).values()
    return {id_: owner for each in fields for id_, owner in each.asked_by.items()}


def ended_in(channels: Mapping[str, Any] | None, node: str) -> set[str]:
    """Return the places where the last turn of a node ended, from the fields of a state."""
    return {each.ended[node] for each in _fields(channels).values() if node in each.ended}


def ended_by(channels: Mapping[str, Any] | None, node: str, end: str) -> dict[str, Ended]:
    """Return the update of a state's fields that records where a turn of a node ended."""
    return {field: Ended("", {node: end}) for field in _fields(channels)}


def _fields(channels: Mapping[str, Any] | None) -> dict[str, MemoryChannel]:
    known = (channels or {}).items()
    return {name: each for name, each in known if isinstance(each, MemoryChannel)}


_MESSAGE = (
    "Give message objects, texts, pairs of role and text, or dictionaries with role and content."
)
_STRUCTURED = "Returning structured response: "
"""The beginning of the tool result by which LangChain's agents end a turn with structured output."""


class CurrentTurn(NamedTuple):
    """A turn, and the exchanges before it."""

    messages: Sequence[Spoken]
    earlier: tuple[tuple[str, str], ...]
    position: int
    """The index of the first message in the thread."""
    end: str
    """The place where the turn ends: a digest of the last messages; "" if the last message has no id."""
    behind: str = ""
    """The id of the message that ended the previous turn, if there is no user message after it."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the user's messages; empty if one has no id."""
        ids = tuple(one.id for one in self.messages if one.by == "user")
        return ids if all(ids) else ()

    def identified(self, task: str) -> CurrentTurn:
        """Return the turn with ids for user messages without one: of LangGraph's task, which a retry keeps, and the place."""
        messages = [
            one._replace(id=digest(task, *self.place, str(number)))
            if task and one.by == "user" and not one.id
            else one
            for number, one in enumerate(self.messages)
        ]
        return self._replace(messages=messages)

    @property
    def place(self) -> tuple[str, ...]:
        """See `_place`."""
        return _place(self.position, self.earlier)


def current_turn(
    thread: Sequence[Spoken], is_others: Callable[[Spoken], bool], ended: Collection[str]
) -> CurrentTurn | None:
    """Return the user's messages since the last answer, and the answer to them; None if there is no answer yet.

    Args:
        thread: The messages.
        is_others: Whether another user wrote an unanswered message.
        ended: The `end` of recorded turns.

    Raises:
        IdentifierError: Another user wrote the last of these messages.
    """
    start = turn_start(thread)
    if start is None:
        return None
    asked = [number for number in range(start, len(thread)) if thread[number].by == "user"]
    ends = _ends(thread[start:])
    recorded = [start + number for number, end in enumerate(ends) if end in ended]
    # If a turn was recorded that ended behind the user's last message, only further answers are new.
    over = next((number for number in recorded if number >= asked[-1]), None)
    last_end = over if over is not None else max(recorded, default=start - 1)
    turn = thread[last_end + 1 :]
    # A last message without a readable tool call ends the turn, even if it has no words.
    ends_unread = any(one.by == "assistant" and not one.calls for one in turn[-1:])
    if not (exchange_of(turn)[1] or ends_unread or any(one.is_answer for one in turn)):
        return None
    unrecorded = asked
    # The result of a tool may have ended a recorded turn. That turn has the messages of one user up to its end.
    for number in recorded if over is None else ():
        [*_, last] = [each for each in asked if each <= number]
        whose = is_others(thread[last])
        unrecorded = [
            each for each in unrecorded if each > last or is_others(thread[each]) != whose
        ]
    own = own_words(thread, unrecorded, is_others)
    if over is not None:
        earlier = tuple(earlier_exchanges(thread, over + 1))
        return CurrentTurn(turn, earlier, over + 1, ends[-1], thread[over].id)
    turn = own_part(thread[own[0] :], {thread[number].id for number in set(asked) - set(own)})
    return CurrentTurn(turn, tuple(earlier_exchanges(thread, own[0])), own[0], ends[-1])


def _ends(thread: Sequence[Spoken]) -> list[str]:
    """Return the `end` of a turn for each message that may be its last one."""
    words = last_words(())
    ends: list[str] = []
    for one in thread:
        words = last_words([one]) if one.by == "user" else words
        ends.append(digest(one.id, one.text, words) if one.id else "")
    return ends


def unanswered(thread: Sequence[Spoken]) -> tuple[list[Spoken], tuple[str, ...]]:
    """Return the user messages since the last answer, and the `place` of a turn that begins with them."""
    start = turn_start(thread)
    if start is None:
        return [], ()
    asked = [one for one in thread[start:] if one.by == "user"]
    return asked, _place(start, earlier_exchanges(thread, start))


def _place(position: int, earlier: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the index of a turn's first message in the thread, and the texts before it."""
    return (str(position), *(text for pair in earlier for text in pair))


def thread_of(state: Any, key: str, nodes: Collection[str]) -> list[Spoken]:
    """Return the messages in a field of a graph's state.

    A human message with the name of a node is an answer: workers of a supervisor return such messages, because some
    models need a human message at the end.

    Raises:
        InvalidValue: The state has no such field, or what is in it is no message.
    """
    held = field_of(state, key)
    if held is None:
        raise InvalidValue(f"the state has no {key!r}. Say in messages_key where the messages are.")
    messages = [
        AIMessage(one.content, id=one.id) if one.type == "human" and one.name in nodes else one
        for one in _converted([held] if _is_message(held) else held, key)
    ]
    return [*spoken(messages, lambda all_, number: all_[number].text.startswith(_STRUCTURED))]


def _converted(held: Any, key: str) -> list[BaseMessage]:
    """Return values as LangChain's messages.

    Raises:
        InvalidValue: One is no message, or `held` is not iterable.
    """
    if not isinstance(held, Iterable):
        raise wrong_type(held, "messages", key, _MESSAGE)
    messages: list[BaseMessage] = []
    for number, one in enumerate(cast("Iterable[Any]", held)):
        try:
            messages += [one] if isinstance(one, BaseMessage) else convert_to_messages([one])
        except (TypeError, ValueError, LookupError, NotImplementedError) as error:
            raise wrong_type(one, "a message", f"{key}.{number}", _MESSAGE) from error
    return messages


def _is_message(held: Any) -> bool:
    """Return whether a value is one message, also as a text, a dictionary, or a role and a text; else it is several."""
    first = cast("tuple[Any, ...]", held)[0] if isinstance(held, tuple) and held else None
    return isinstance(first, str) or isinstance(held, str | Mapping | BaseMessage)
