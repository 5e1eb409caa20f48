"""Finds the last turn in a thread of messages, its texts, and the messages that were already submitted.

A turn contains all user messages since the last answer: consecutive messages, a message that arrives while a run
waits for an approval, and messages that an interrupted or failed run did not answer. Several agents may work on one
turn, and a run may be repeated. `SubmittedMessages` ensures that each message is submitted once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar, cast
from weakref import WeakValueDictionary

from tomldiary.agents.identity import (
    begins_again,
    current_place,
    is_resumed,
    kept_thread,
    named_checkpoint,
)
from tomldiary.agents.options import place_of
from tomldiary.agents.verbs import BLOCK_VERBS, VERBS
from tomldiary.entries.episodes import ToolStep
from tomldiary.errors import IdentifierError
from tomldiary.logging import get_logger
from tomldiary.runtime.lru import Recent
from tomldiary.storage.protocol import LocalFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from tomldiary.diary import Diary

__all__ = [
    "OTHERS_TURN",
    "SOURCE",
    "Spoken",
    "StateText",
    "SubmittedMessages",
    "ToolCall",
    "ToolResult",
    "digest",
    "earlier_exchanges",
    "exchange_of",
    "is_before_question",
    "is_generated",
    "is_question",
    "keep_out_of_steps",
    "last_words",
    "memory_place",
    "of_memory",
    "own_part",
    "own_words",
    "spoken",
    "steps_of",
    "tool_steps",
    "turn_start",
    "with_ids",
    "with_results",
]

T = TypeVar("T")
_logger = get_logger(__name__)

OTHERS_TURN = "another user began this turn. Continue it as that user: name the user in the run."
SOURCE = "lc_source"
"""LangChain's key for user messages that no user wrote: summaries, memory, prompts of other models."""
_SOURCES = (SOURCE, "deepagents_notification")
"""The second key marks the reports of background tasks in deepagents."""
_NUDGE = "nemotron_"
"""The prefix of the names of messages that deepagents writes to steer Nemotron models; they have no key."""
_HANDOFF = "__is_handoff_back"
"""The mark of a message that langgraph-supervisor writes for a worker, such as "Transferring back to supervisor"."""
_BY = {
    "human": "user", "HumanMessageChunk": "user", "ai": "assistant", "AIMessageChunk": "assistant",
    "tool": "tool", "ToolMessageChunk": "tool",
}  # fmt: skip
_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}
_TEXTS = ("text", "input_text")
_KNOWN = 16_384  # the number of messages and turns that are remembered
_our_tools = {*VERBS, *BLOCK_VERBS}


class Spoken(NamedTuple):
    """One message of a thread."""

    by: Literal["user", "assistant", "tool", "other"]
    """ "other" is an instruction, or a user message that no user wrote; see `SOURCE`."""
    text: str = ""
    is_answer: bool = False
    """Whether the message ended a turn: the assistant called no tool, or only with arguments that could not be parsed,
    or the tool's result was the answer."""
    id: str = ""
    """The id of the message in the thread; "" if it has none."""
    calls: tuple[tuple[str, str, object], ...] = ()
    """Id, name and arguments of each tool that the assistant called."""
    call: str = ""
    """The id of the call that a tool's result belongs to."""


def spoken(
    messages: Sequence[Any], ends_turn: Callable[[Sequence[Any], int], bool]
) -> list[Spoken]:
    """Convert LangChain's messages.

    Args:
        messages: A thread.
        ends_turn: Whether the tool result with a number in the thread is the answer of the turn.
    """
    said: list[Spoken] = []
    for number, message in enumerate(messages):
        by: Any = _by(message)
        text, id_ = _unless_blank(str(message.text)), message.id or ""
        if by == "assistant":
            called = getattr(message, "tool_calls", ())
            is_unreadable = bool(getattr(message, "invalid_tool_calls", ()))
            is_answer = not called and (not is_unreadable or is_before_question(messages, number))
            calls = tuple((each["id"] or "", each["name"], each["args"]) for each in called)
            text = "" if message.response_metadata.get(_HANDOFF) else text
            said.append(Spoken(by, text, is_answer, id_, calls))
        elif by == "tool":
            is_answer = ends_turn(messages, number)
            said.append(Spoken(by, text, is_answer, id_, call=message.tool_call_id))
        elif is_question(message):
            said.append(Spoken(by, _words(message.content), id=id_))
        else:
            said.append(Spoken("other", text, id=id_))
    return said


def is_question(message: Any) -> bool:
    """Return whether a user wrote a LangChain message: it is marked neither as generated nor as part of a tool call."""
    return _by(message) == "user" and not is_generated(message.additional_kwargs, message.name)


def is_generated(marks: Mapping[str, Any], name: str | None) -> bool:
    """Return whether the `additional_kwargs` or the name of a user message say that no user wrote it."""
    is_of_tool = any(mark.endswith("tool_call_id") for mark in marks)
    return is_of_tool or any(map(marks.get, _SOURCES)) or (name or "").startswith(_NUDGE)


def is_before_question(messages: Sequence[Any], number: int) -> bool:
    """Return whether a message that a user wrote follows message `number`."""
    return any(map(is_question, messages[number + 1 : number + 2]))


def _by(message: Any) -> str:
    """Return the role that wrote a message; a `ChatMessage` of LangChain names it."""
    return _BY.get(message.type) or _ROLES.get(getattr(message, "role", ""), "other")


def _words(content: object) -> str:
    """Return the text of a user's message, with one line for each part."""
    if isinstance(content, str):
        return _unless_blank(content)
    parts = (
        part if isinstance(part, str) else part.get("text") if part.get("type") in _TEXTS else None
        for part in cast("list[Any]", content)
    )
    return _unless_blank("\n".join(filter(None, parts)))


def _unless_blank(text: str) -> str:
    """Return a text unchanged, as its first line may be indented code; "" if it has no words."""
    return text if text.strip() else ""


def turn_start(thread: Sequence[Spoken]) -> int | None:
    """Return the index of the first user message since the last answer; None if there is no user message.

    Answers after the last user message belong to the turn.
    """
    asked = [number for number, one in enumerate(thread) if one.by == "user"]
    if not asked:
        return None
    answers = [number for number in range(asked[-1]) if thread[number].is_answer]
    last_answer = answers[-1] if answers else -1
    return next(number for number in asked if number > last_answer)


def own_words(
    thread: Sequence[Spoken], unanswered: Sequence[int], is_others: Callable[[Spoken], bool]
) -> list[int]:
    """Return the numbers of the unanswered messages that the user of a run wrote; several users may share the thread.

    Raises:
        IdentifierError: Another user wrote the last of them.
    """
    own = [number for number in unanswered if not is_others(thread[number])]
    if own[-1:] != list(unanswered[-1:]):
        raise IdentifierError(OTHERS_TURN)
    if len(own) < len(unanswered):
        _logger.warning("unanswered messages of another user are not part of this turn")
    return own


def own_part(turn: Sequence[Spoken], others: Collection[str]) -> list[Spoken]:
    """Return a turn without the messages with the ids `others`, which other users wrote, and what followed these."""
    own: list[Spoken] = []
    is_own = True
    for one in turn:
        if one.by == "user":
            is_own = one.id not in others
        if is_own:
            own.append(one)
    return own


def last_words(thread: Sequence[Spoken]) -> str:
    """Return a digest of the last user message; it is unchanged as long as no user writes another one."""
    asked = [one for one in thread if one.by == "user"]
    return digest(*(text for one in asked[-1:] for text in (one.id, one.text)))


def exchange_of(turn: Sequence[Spoken], *, is_over: bool = True) -> tuple[str, str]:
    """Return the user's and the assistant's texts of a turn; a tool result that ends it is part of the answer."""
    said = [one.text for one in turn if one.by == "assistant"]
    if is_over and turn and turn[-1].by == "tool":
        said.append(turn[-1].text)
    return _joined(one.text for one in turn if one.by == "user"), _joined(said)


def earlier_exchanges(thread: Sequence[Spoken], start: int) -> list[tuple[str, str]]:
    """Return the exchanges before the turn that begins at `start`, oldest first."""
    begins: list[int] = []
    is_answered = True
    for number, one in enumerate(thread[:start]):
        if one.by == "user" and is_answered:
            begins.append(number)
            is_answered = False
        is_answered = is_answered or one.is_answer
    places = [0, *begins, start]  # the assistant may have begun the conversation
    exchanges = [exchange_of(thread[begin:end]) for begin, end in pairwise(places)]
    return exchanges if any(exchanges[0]) else exchanges[1:]


class ToolCall(NamedTuple):
    """A call of a tool; some models reuse its id in a later answer."""

    id: str
    name: str
    given: object
    """The arguments: JSON, or a value that is written as JSON."""


class ToolResult(NamedTuple):
    """The result of the last call with an id."""

    id: str
    text: str


def steps_of(turn: Iterable[Spoken]) -> tuple[ToolStep, ...]:
    """Return the tool calls of a turn; see `tool_steps`."""
    parts: list[ToolCall | ToolResult] = []
    for one in turn:
        parts += [ToolCall(*call) for call in one.calls]
        if one.by == "tool":
            parts.append(ToolResult(one.call, one.text))
    return tool_steps(with_results(parts))


def with_results(parts: Iterable[ToolCall | ToolResult]) -> list[tuple[ToolCall, str | None]]:
    """Return the calls in order, each with the text of its result, or None."""
    calls: list[ToolCall] = []
    results: dict[int, str] = {}
    last: dict[str, int] = {}
    for part in parts:
        if isinstance(part, ToolCall):
            last[part.id] = len(calls)
            calls.append(part)
        elif part.id in last:
            results[last[part.id]] = part.text
    return [(call, results.get(number)) for number, call in enumerate(calls)]


def tool_steps(calls: Iterable[tuple[ToolCall, str | None]]) -> tuple[ToolStep, ...]:
    """Return tool calls with their results, for the episode of a turn.

    Calls of a diary's tools are left out: their results repeat entries, which may be forgotten later or belong to
    another memory.
    """
    return tuple(
        ToolStep(name, given if isinstance(given, str) else _as_json(given), result or "")
        for (_, name, given), result in calls
        if name not in _our_tools
    )


def keep_out_of_steps(tools: Iterable[str]) -> None:
    """Register names of a diary's tools, whose calls `tool_steps` leaves out."""
    _our_tools.update(tools)


def digest(*parts: str) -> str:
    """Return a digest of 32 characters, which also depends on the boundaries between the texts."""
    known = hashlib.blake2b(digest_size=16)
    for part in parts:
        known.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return known.hexdigest()


class SubmittedMessages:
    """The messages that this process submitted to a memory, so that each is submitted once. Thread-safe.

    Messages without an id are always new. The last 16,384 messages and turns are remembered.
    """

    def __init__(self) -> None:
        # Reentrant, because the garbage collector may end a run, whose turn is then submitted, at any time.
        self._guard = threading.RLock()
        self._known: Recent[str, None] = Recent(_KNOWN)
        self._first_ids: Recent[str, tuple[tuple[str, ...], tuple[str, str]]] = Recent(_KNOWN)
        self._replayed: Recent[str, str] = Recent(_KNOWN)
        """The first id of a message by the id that a replay gave it."""
        self._attempts: Recent[str, tuple[str, tuple[str, ...]]] = Recent(_KNOWN)
        """Session and ids of a turn by each run that it is in."""
        self._owners: Recent[str, tuple[str, str]] = Recent(_KNOWN)
        """The user who wrote a message, and the checkpoint at which it was answered, or ""."""
        self._sayers: Recent[str, tuple[dict[str, None], tuple[str, str]]] = Recent(_KNOWN)
        """The users who wrote a text in a thread, and the place at which it was last seen."""
        self._epochs: Recent[str, int] = Recent(_KNOWN)

    def first_ids(
        self, settings: Any, user: str, session: str, before: Sequence[str], asked: Sequence[Spoken]
    ) -> tuple[str, ...]:
        """Return the first ids of a user's messages: a replay of a persisted thread gives the same input new ids.

        Args:
            settings: LangGraph's settings of the run.
            user: The user of the session.
            session: The session.
            before: Identifies the place in the thread, for example by the texts before it. A thread that lost its
                old messages has the same place again. Therefore only a replay counts as a repetition.
            asked: The messages.
        """
        ids, thread = tuple(one.id for one in asked), kept_thread(settings)
        if not (thread and all(ids)):
            return ids
        key = digest(user, session, thread, *before, exchange_of(asked)[0])
        of_message = [digest(user, session, thread, one) for one in ids]
        with self._guard:
            known, seen_at = self._first_ids.get(key, ((), ("", "")))
            if _is_replay(settings, seen_at) and len(known) == len(ids):
                for each, first in zip(of_message, known, strict=True):
                    self._replayed.keep(each, first)  # the replay may be resumed, or replayed too
            else:
                known = tuple(map(self._replayed.get, of_message, ids))
            return self._first_ids.keep(key, (known, current_place(settings)))[0]

    def first_attempt(
        self,
        attempt: tuple[Iterable[str], Iterable[str]],
        user: str,
        named: str,
        asked: Sequence[Spoken],
        turn: tuple[str, tuple[str, ...]],
    ) -> tuple[str, tuple[str, ...]]:
        """Return the session and ids of a turn; in a later attempt, those of the first.

        Args:
            attempt: The result of `RunTree.attempt_of`.
            user: The user of the run.
            named: The session that the run names; "" if it names none, because then each attempt has another one.
            asked: The user's messages.
            turn: The session and the ids of these messages in this attempt.
        """
        around, failed = attempt
        words = exchange_of(asked)[0]
        with self._guard:
            for run in failed:
                known = self._attempts.get(digest(run, user, named, words))
                if known is not None and len(known[1]) == len(turn[1]):
                    turn = known
            for one, first in zip(asked, turn[1], strict=False):
                if self.has(user, turn[0], one._replace(id=first)):  # the attempt may be resumed
                    self._known.keep(_key(user, turn[0], one), None)
            for run in around:
                self._attempts.keep(digest(run, user, named, words), turn)
        return turn

    def owner(
        self, settings: Any, where: str, known: Mapping[str, str], message: Spoken, user: str
    ) -> str:
        """Return the user who wrote an unanswered message of a persisted thread.

        This is the user in the checkpoint, or the one recorded by this process, or the user of the run.

        Args:
            settings: LangGraph's settings of the run.
            where: The memory that reads the thread.
            known: The users that the checkpoint names, by message id.
            message: The message.
            user: The user of the run.
        """
        key = _place(settings, where, message)
        if not key:
            return known.get(message.id, user)
        with self._guard:
            if key not in self._owners and message.id not in known:
                user = self._sayer(settings, where, message, user)
            first, answered_at = self._owners.get(key, (user, ""))
            if answered_at and begins_again(settings, answered_at):
                first = user
            return self._owners.keep(key, (known.get(message.id, first), ""))[0]

    def _sayer(self, settings: Any, where: str, message: Spoken, user: str) -> str:
        """Return the user who wrote a message with an unknown id; a replay assigns new ids, so its text is compared."""
        key = digest(where, kept_thread(settings), "", message.text)
        sayers, seen_at = self._sayers.get(key, ({}, ("", "")))
        if user not in sayers and _is_replay(settings, seen_at):
            return next(reversed(sayers))
        self._sayers.keep(key, ({**sayers, user: None}, current_place(settings)))
        return user

    def answered(self, settings: Any, where: str, messages: Iterable[Spoken]) -> None:
        """Record that messages were answered; a thread that begins again may have them from other users."""
        now = current_place(settings)[0]
        with self._guard:
            for key in (_place(settings, where, each) for each in messages):
                if key in self._owners:
                    self._owners.keep(key, (self._owners[key][0], now))

    def begin(self, user: str, turn: Iterable[Spoken], epoch: int) -> None:
        """Record the fencing token of the user at the start of the run that has these messages."""
        with self._guard:
            for one in turn:
                if one.id and one.by == "user":
                    self._epochs.keep(_key(user, "", one), epoch)

    def began(self, user: str, turn: Iterable[Spoken]) -> int | None:
        """Return the lowest token that `begin` recorded for the messages of a turn; None if there is none."""
        with self._guard:
            known = [self._epochs.get(_key(user, "", one)) for one in turn if one.id]
        return min((epoch for epoch in known if epoch is not None), default=None)

    def has(self, user: str, session: str, message: Spoken) -> bool:
        """Return whether a message of a user's session was submitted."""
        return bool(message.id) and _key(user, session, message) in self._known

    @contextmanager
    def once(
        self,
        user: str,
        session: str,
        operation: str,
        turn: Sequence[Spoken],
        as_said: Iterable[Spoken] = (),
        *,
        outlives_cancellation: bool = False,
    ) -> Generator[list[Spoken]]:
        """Yield the new messages of a turn, to be submitted in the block; none if the turn was submitted with this id.

        If the block raises, the messages count as not submitted. Other threads do not wait for it.

        Args:
            user: The user of the session.
            session: The session; message ids are unique in it.
            operation: The id of the turn; "" is none.
            turn: The messages of the turn.
            as_said: The messages before redaction, which another run may read again.
            outlives_cancellation: Whether the block submits the turn also if it is cancelled, as `submit_turn` does.
        """
        keys = [_key(user, session, one) if one.id else "" for one in turn]
        said = [_key(user, session, one) for one in as_said if one.id]
        whole = digest(user, operation) if operation else ""
        with self._guard:
            is_known = whole in self._known
            new = [
                key
                for key in dict.fromkeys([whole, *keys, *said])
                if key and key not in self._known
            ]
            for key in () if is_known else new:
                self._known.keep(key, None)
        if is_known:
            yield []
            return
        try:
            yield [one for one, key in zip(turn, keys, strict=True) if not key or key in new]
        except BaseException as error:
            if not (outlives_cancellation and isinstance(error, asyncio.CancelledError)):
                with self._guard:
                    for key in new:
                        self._known.pop(key, None)
            raise


class StateText(str, Generic[T]):
    """A text in a graph's state with data for this process; streams, traces and stored states have the text alone."""

    __slots__ = ("data",)

    data: T

    def __new__(cls, text: str, data: T) -> Self:
        """Return the text with its data."""
        made = super().__new__(cls, text)
        made.data = data
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickle as plain text, for servers that store the state."""
        return str, (str(self),)


_kept: WeakValueDictionary[tuple[object, type[Any]], Any] = WeakValueDictionary()


def with_ids(turn: Sequence[Spoken], ids: Sequence[str], others: Sequence[str]) -> list[Spoken]:
    """Return the messages of a turn with `ids` replaced by `others`."""
    other = dict(zip(ids, others, strict=True))
    return [one._replace(id=other.get(one.id, one.id)) for one in turn]


def of_memory(diary: Diary, kind: type[T]) -> T:
    """Return the instance of `kind` that all diaries with the same storage share. The first call creates it."""
    return _kept.setdefault((memory_place(diary), kind), kind())


def memory_place(diary: Diary) -> object:
    """Return a key that all diaries with the same storage have in common.

    For a folder this is its path as given: resolving it reads the disk, which would block the event loop.
    """
    backend = diary.engine.backend
    return backend.base_path if isinstance(backend, LocalFolder) else place_of(backend)


def _key(user: str, session: str, message: Spoken) -> str:
    return digest(user, session, message.id, message.text)


def _is_replay(settings: Any, seen_at: tuple[str, str]) -> bool:
    """Return whether a run repeats one that saw its words at a place: it began at or before it, or resumes its task."""
    now = current_place(settings)
    is_repeated = "" < named_checkpoint(settings) <= seen_at[0] < now[0]
    return is_repeated or (seen_at == now and is_resumed(settings))


def _place(settings: Any, where: str, message: Spoken) -> str:
    thread = kept_thread(settings)
    return digest(where, thread, message.id) if thread and message.id else ""


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))
