"""The turn of a run in the messages of a thread, its state for the run, and the sessions of chats.

Generated user messages are no part of it. LangChain marks these with `lc_source`: summaries of removed messages, and the
memory that is shown to a model.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NotRequired, cast
from uuid import UUID, uuid4

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import (
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    convert_to_messages,
)
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.types import Command
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_json
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from tomldiary.agents.turn_messages import (
    SOURCE,
    Spoken,
    digest,
    earlier_exchanges,
    exchange_of,
    is_before_question,
    is_question,
    last_words,
    or_left_out,
    own_part,
    own_words,
    spoken,
    turn_start,
)
from tomldiary.errors import InvalidValue
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.runtime.lru import Recent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence


_OURS = "tomldiary"
_HANDOFF = "transfer_to_"
"""The beginning of the names of hand-off tools in langgraph-swarm, langgraph-supervisor and LangChain's documentation."""
_DESTINATION = "__handoff_destination"
"""Metadata of the results of hand-off tools in langgraph-supervisor, whatever their names."""


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
    ids_before: frozenset[str] = frozenset()
    """The ids of the messages before `own`."""

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
    notes: Notes,
    given: Collection[str] | None,
    *,
    is_noted: bool = False,
    is_saved: bool = False,
) -> Turn:
    """Return the turn of a run; `asked` is empty if there is no message of the user.

    Args:
        messages: A thread.
        is_submitted: Whether a message was submitted with an earlier turn, though the thread has no answer to it.
        is_others: Whether another user wrote a message.
        notes: What the state notes of earlier runs. If the last run did not succeed, all messages after its unanswered
            ones are part of the turn, also tool results and answers.
        given: The ids of the messages in the input of the run. None if the last run continues: messages that a summary
            replaced are part of the turn in any case.
        is_noted: Whether the run continues with a tool, so that only the host changes messages after their forms were
            noted. A change by an `after_model` hook counts as one by the host.
        is_saved: Whether checkpoints keep the thread. Else a hand-off in it is over, or only has the name of one.

    Raises:
        IdentifierError: Another user wrote the last unanswered message.
    """
    begun_with, ended = notes["unanswered"], notes["ended"]
    thread = spoken(messages, _ends_turn if is_saved else is_before_question)
    thread = [one._replace(is_answer=True) if one.id in ended else one for one in thread]
    thread = _with_noted_words(thread, begun_with, given, is_noted=is_noted)
    replaced = _replaced(messages, begun_with, is_continued=given is None)
    thread = _with_begun(thread, replaced, begun_with)
    start = turn_start(thread)
    if start is None:
        return Turn((), (), ())
    asked_last = last_words(thread)
    over = next((one.id for one in thread if ended.get(one.id) == asked_last), "")
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
        ids_before=frozenset(one.id for one in thread[: numbers[0]]),
    )


def _with_noted_words(
    thread: list[Spoken],
    begun_with: Mapping[str, Noted],
    given: Collection[str] | None,
    *,
    is_noted: bool,
) -> list[Spoken]:
    """Return a thread in which noted messages have the words of the notes, except those that were written again.

    The arguments are those of `turn_of`.
    """
    again = {one.id for one in thread if _is_changed(one, begun_with)}
    if given is not None:  # the user may have written the last message again, or an earlier one
        again.intersection_update(given)
        again.update([one.id for one in thread if one.by == "user"][-1:])
    elif not is_noted:  # a middleware of the run that continues may have changed them
        again.clear()
    words = {id_: noted["text"] for id_, noted in begun_with.items() if id_ not in again}
    return [_own_words(words.get(one.id, ""), one) for one in thread]


def _is_changed(message: Spoken, begun_with: Mapping[str, Noted]) -> bool:
    """Return whether a message has another text in the thread than when the notes were written."""
    noted = begun_with.get(message.id)
    return noted is not None and noted.get("form", "") not in ("", digest(message.text))


def _replaced(
    messages: Sequence[BaseMessage], begun_with: Mapping[str, Noted], *, is_continued: bool
) -> dict[str, str]:
    """Return the words of noted messages, by id, without those that a host removed from the thread.

    A summary also replaces what is before a message. Otherwise a host removed the message. In a run that continues,
    the host removed none.
    """
    # A reviewer's answer to a tool call has the mark too.
    has_summary = any(one.type == "human" and one.additional_kwargs.get(SOURCE) for one in messages)
    present = {one.id for one in messages}
    replaced: dict[str, str] = {}
    for id_, noted in begun_with.items():
        before = noted["behind"]
        is_before_gone = before not in present and (before in replaced or before not in begun_with)
        if is_continued or noted.get("form") == "" or (has_summary and is_before_gone):
            replaced[id_] = noted["text"]
    return replaced


def unanswered_in(messages: Sequence[BaseMessage]) -> set[str]:
    """Return the ids of the user's messages since the last answer before the last of them.

    An agent of a graph may have answered them already.
    """
    asked: list[str] = []
    for number in reversed(range(len(messages))):  # not the whole thread, which may be long
        one = next(_spoken(messages[number : number + 2]))
        is_answer = _ends_turn(messages, number) if one.by == "tool" else one.is_answer
        if asked and is_answer:
            break
        if one.by == "user":
            asked.append(one.id)
    return {*filter(None, asked)}


def behind_in(messages: Sequence[BaseMessage]) -> dict[str, str]:
    """Return the id of the message before each message, by id; "" for the first one. Instructions do not count."""
    ids = [str(one.id) for one in messages if not isinstance(one, SystemMessage)]
    return dict(zip(ids, ["", *ids], strict=False))


def forms_in(messages: Sequence[BaseMessage], ids: Collection[str]) -> dict[str, str]:
    """Return `Noted.form` of the messages with these ids."""
    return {one.id: digest(one.text) for one in _with_ids(messages, ids)}


def ended_in(messages: Sequence[BaseMessage]) -> dict[str, str]:
    """Return `Notes.ended` at the end of a turn."""
    asked = [*islice(filter(is_question, reversed(messages)), 1)]
    return {str(one.id): last_words(_spoken(asked)) for one in messages[-1:]}


def _with_begun(
    thread: list[Spoken], replaced: Mapping[str, str], begun_with: Collection[str]
) -> list[Spoken]:
    """Return a thread with the messages of `replaced` that it lacks.

    They are inserted before the first message of `begun_with` that remains, directly behind the last answer before it.
    """
    present = {one.id for one in thread}
    gone = [Spoken("user", text, id=id_) for id_, text in replaced.items() if id_ not in present]
    rest = next((n for n, one in enumerate(thread) if one.id in begun_with), len(thread))
    behind = max((n + 1 for n, one in enumerate(thread[:rest]) if one.is_answer), default=0)
    return [*thread[:behind], *gone, *thread[behind:]]


def identified(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return messages with ids: deep agents give none to a message from a text or a tuple."""
    return [one if one.id else one.model_copy(update={"id": str(uuid4())}) for one in messages]


def as_in(messages: Sequence[BaseMessage], turn: Turn) -> Turn:
    """Return a turn with the current texts of the thread, which a middleware may have redacted; see `_own_words`."""
    now = {one.id: one for one in _with_ids(messages, [one.id for one in turn.unanswered])}
    asked, unanswered = (
        tuple(_own_words(one.text, now.get(one.id, one)) for one in each)
        for each in (turn.asked, turn.unanswered)
    )
    return turn._replace(asked=asked, unanswered=unanswered)


def asked_in(messages: Sequence[BaseMessage]) -> list[Spoken]:
    """Return the messages that a user wrote."""
    return [one for one in _spoken(messages) if one.by == "user"]


def returned_in(result: Any) -> list[BaseMessage]:
    """Return the messages, with ids, that the result of a tool adds to the thread."""
    is_of_agent = isinstance(result, Command) and result.graph is None
    update = cast("Any", result).update if is_of_agent else None
    given = cast("dict[str, Any]", update).get("messages") if isinstance(update, dict) else None
    return (
        identified(convert_to_messages(cast("list[Any]", given))) if isinstance(given, list) else []
    )


def _with_added(turn: Turn, added: tuple[Spoken, ...]) -> Turn:
    """Return a turn with further messages of its user."""
    return turn._replace(
        asked=turn.asked + added, unanswered=turn.unanswered + added, own=turn.own + added
    )


def _own_words(known: str, now: Spoken) -> Spoken:
    """Return a message as it is now; if all its known words are still in it, with these alone.

    A middleware may put documents that it retrieved around the words of the user.
    """
    return now._replace(text=known) if known and known in now.text else now


def said_in(turn: Turn, messages: Sequence[BaseMessage], structured: object = None) -> list[Spoken]:
    """Return the messages of a turn so far; none if the turn has no message of the user and follows no other turn.

    If a middleware removed the turn's first message from the thread, the result is the user's messages and the last
    answer, which may be the result of a tool.

    Args:
        turn: The turn at its start.
        messages: The thread now.
        structured: The structured response of the run, which is the answer (as JSON) if the model wrote no text.
    """
    if not (turn.asked or turn.behind):
        return []
    first = turn.behind or turn.ids[0]
    start = next((n for n, one in enumerate(messages) if one.id and one.id == first), None)
    if start is None:
        rest = [one for one in _spoken(messages) if one.id not in turn.ids_before]
        answers = [one._replace(calls=()) for one in rest if one.by == "assistant"]
        said = [*turn.asked, *answers[-1:], *(one for one in rest[-1:] if one.by == "tool")]
    else:
        own = {one.id for one in turn.own}
        # An earlier run may have submitted words, but not all answers to them.
        start = next((n for n, one in enumerate(messages[:start]) if one.id in own), start)
        others = {one.id for one in turn.unanswered} - own
        if turn.behind:  # this message belongs to the previous turn
            start += 1
        said = own_part(_spoken(messages[start:]), others)
        words = {one.id: one.text for one in turn.unanswered if one.id}
        said = [_own_words(words.get(one.id, ""), one) for one in said]
        submitted = own - set(turn.ids)
        said = [one for one in said if one.by != "user" or one.id not in submitted]
    if structured is not None and said and said[-1].by == "tool":
        answer = or_left_out("an answer", lambda: to_json(structured, fallback=str).decode())
        if answer is not None:
            said.append(Spoken("assistant", answer, id=said[-1].id))
    return said


def first_exchange(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the first user message and the first answer to it, if they exist."""
    thread = zip(messages, _spoken(messages), strict=True)
    asked = next((message for message, one in thread if one.by == "user"), None)
    answered = next((message for message, one in thread if one.is_answer), None)  # after it
    return [message for message in (asked, answered) if message is not None]


def with_memory(messages: Sequence[AnyMessage], turn: Turn, memory: str) -> list[AnyMessage]:
    """Return the messages with the memory in front of the current turn, as a marked user message.

    The messages before it are the same on each call, so a provider's prompt cache remains valid.
    """
    shown = HumanMessage(memory, additional_kwargs={SOURCE: _OURS})
    # Another middleware may have added dictionaries to the request.
    request = cast("list[AnyMessage]", convert_to_messages(messages))
    place = _start(request, turn)
    return [*request[:place], shown, *request[place:]]


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
    ids = turn.ids
    begins = (n for n, one in enumerate(messages) if one.id in ids and is_question(one))
    asked = (n for n in reversed(range(len(messages))) if is_question(messages[n]))
    others = (n for n, one in enumerate(messages) if not isinstance(one, SystemMessage))
    return next(chain(begins, asked, others), len(messages))


def _with_ids(messages: Sequence[BaseMessage], ids: Collection[str]) -> list[Spoken]:
    # From the end, because the thread may be long, and the messages are usually its last ones.
    left, found = {each for each in ids if each}, list[BaseMessage]()
    for one in reversed(messages):
        if not left:
            break
        if one.id in left:
            left.remove(one.id)
            found.append(one)
    return [*_spoken(found[::-1])]


def _spoken(messages: Sequence[BaseMessage]) -> Iterator[Spoken]:
    return spoken(messages, _ends_turn)


def _ends_turn(messages: Sequence[Any], number: int) -> bool:
    """Return whether the tool result with a number is the answer: no model was shown it before the next question.

    The result of a hand-off is no answer, because the next agent did not finish.
    """
    return is_before_question(messages, number) and not _is_handoff(messages, number)


def _is_handoff(messages: Sequence[Any], number: int) -> bool:
    told = messages[number]
    called = (
        each for one in reversed(messages[:number]) for each in getattr(one, "tool_calls", ())
    )
    name = next((each["name"] for each in called if each["id"] == told.tool_call_id), "")
    return name.startswith(_HANDOFF) or _DESTINATION in told.response_metadata


@dataclass(eq=False, slots=True)
class Run:
    """The owner and session of a turn, and its messages so far."""

    user: str
    session: str
    turn: Turn
    ids: tuple[str, ...]
    """The ids of the user's messages before a replay."""
    messages: list[BaseMessage]
    """The last known messages of the thread."""
    as_said: tuple[Spoken, ...]
    """The user's messages, in each form that the thread had during the run."""
    memory: str = ""
    epoch: int | None = None
    """The user's fencing token at the start of the run; None is unknown."""
    of_tools: set[str] = field(default_factory=set[str])
    """The ids of the user's messages that tools of the run returned."""
    known: frozenset[str] = frozenset()
    """The ids of the messages that an earlier run was given."""
    done: set[str] = field(default_factory=set[str])
    """The parts of the operation ids in the history; empty if no words were searched there."""
    is_delegated: bool = False
    """Whether a model wrote the prompt, so that the turn is not submitted."""
    is_saved: bool = False
    """Whether checkpoints keep the thread, so that a run that stops can continue."""
    is_over: bool = False
    """Whether the turn has ended without an error."""

    def see(self, messages: Sequence[BaseMessage]) -> None:
        """Update the thread and the texts of the turn, which a middleware may have redacted.

        User messages that a tool added become part of the turn, because a middleware may change or remove them later.
        """
        if added := _with_ids(messages, self.of_tools.difference(self.turn.ids)):
            self.turn = _with_added(self.turn, tuple(added))
            self.ids += tuple(one.id for one in added)
        self.messages = list(messages)
        self.turn = as_in(messages, self.turn)
        forms = _with_ids(messages, self.turn.ids)
        self.as_said += tuple(one for one in forms if one not in self.as_said)

    def see_changes(self, returned: Sequence[object]) -> None:
        """Take over the texts that a node has changed, because the run may end before another node gets them."""
        known = (one for one in returned if isinstance(one, BaseMessage) and one.id)
        changed = {(one.id, one.type): one for one in known}
        self.see([changed.get((one.id, one.type), one) for one in self.messages])


class Noted(TypedDict):
    """What the state keeps of an unanswered message, which a summary may remove before the run is resumed."""

    text: str
    by: str
    """A digest of the user who wrote it."""
    behind: str
    """The id of the message before it; "" if it was the first one."""
    form: NotRequired[str]
    """A digest of its text in the thread, in which a middleware may have put documents around the words; "" if one
    removed the message."""


class _OfTool(TypedDict):
    """What a tool adds to the notes of a middleware."""

    unanswered: dict[str, Noted]
    """By message id."""


class Notes(_OfTool):
    """What the state keeps for one middleware."""

    ended: dict[str, str]
    """The id of the last turn's last message, which may be no answer, with a digest of the last user message."""


_NO_NOTES = Notes(unanswered={}, ended={})
_KEPT: TypeAdapter[Any] = TypeAdapter(dict[str, Notes])
_WRITTEN: TypeAdapter[Any] = TypeAdapter(
    dict[str, Notes | _OfTool], config=ConfigDict(extra="forbid")
)


def _fits(form: TypeAdapter[Any], notes: Any) -> bool:
    try:
        form.validate_python(notes)
    except ValidationError:
        return False
    return True


def _merged(old: dict[str, Notes], new: dict[str, Notes | _OfTool]) -> dict[str, Notes]:
    """Return the new notes of each middleware; those of a tool are added, because several tools may run at once.

    Raises:
        InvalidValue: A client has written something else, with which later runs of the thread would fail.
    """
    if not _fits(_WRITTEN, new):
        raise InvalidValue(
            "only the middleware writes this field. Leave it out of the update.",
            where="diary_notes",
        )
    merged = dict(_readable(old))
    for name, notes in new.items():
        known = merged.get(name, _NO_NOTES)
        if "ended" in notes:
            merged[name] = notes
        else:
            unanswered = known["unanswered"] | notes["unanswered"]
            merged[name] = Notes(unanswered=unanswered, ended=known["ended"])
    return merged


class DiaryState(AgentState[Any]):
    """An agent's state with private fields, which are in no input or output and hold no memory."""

    diary_graph: NotRequired[Annotated[str, UntrackedValue, PrivateStateAttr]]
    """The id of the running graph. A middleware may call the model in a thread that has no context of it."""
    diary_notes: NotRequired[Annotated[dict[str, Notes], PrivateStateAttr, _merged]]
    """By the name of the middleware."""


def notes_in(state: AgentState[Any], middleware: str) -> Notes:
    """Return what the state keeps for a middleware."""
    notes = _readable(cast("dict[str, Any]", state).get("diary_notes"))
    return notes.get(middleware, _NO_NOTES)


def _readable(notes: Any) -> dict[str, Notes]:
    """Return the notes of a state; none if a client of a server has overwritten them with something else."""
    return notes if notes and _fits(_KEPT, notes) else {}


_CHATS = 4_096


class Chats:
    """Identifies chats by the id of their first message, or by their first exchange if clients keep no ids.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._guard = fork_safe(threading.RLock())  # as in `SubmittedMessages`
        self._known: Recent[str, str] = Recent(_CHATS)

    def session(self, user: str, messages: Sequence[BaseMessage]) -> str:
        """Return the session of a chat."""
        first = first_exchange(messages)
        if not first:
            return "chat"
        named = first[0].id or "chat"
        begun = _begun(user, first)
        with self._guard:
            known = self._known.get(named) or (self._known.get(begun) if begun else None)
            if known is None:
                # LangGraph gives such ids to messages without one, models give others.
                keeps_ids = not begun or not (_is_uuid(named) and _is_uuid(first[1].id))
                known = named if keeps_ids else begun
            return self._known.keep(named, known)

    def keep(self, user: str, messages: Sequence[BaseMessage], session: str) -> None:
        """Remember the session of a chat by its first exchange."""
        first = first_exchange(messages)
        begun = _begun(user, first)
        if begun:
            with self._guard:
                self._known.keep(begun, session)
                # A retry gives the message another UUID. Other ids come from clients, and two users may have the same.
                if _is_uuid(first[0].id):
                    self._known.keep(str(first[0].id), session)


def _begun(user: str, first: Sequence[BaseMessage]) -> str:
    if len(first) < 2:  # noqa: PLR2004 - a question and an answer
        return ""
    return digest(user, *(one.text for one in _spoken(first)))  # without memory, which changes


def _is_uuid(text: str | None) -> bool:
    try:
        return str(UUID(text or "")) == text
    except ValueError:
        return False
