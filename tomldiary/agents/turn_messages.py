"""Where in a thread of messages the last turn begins, what it says, and what of it was handed in already.

All that a user said since the last answer is one turn: messages in a row, a message while a run waits for an
approval, and what a run left unanswered that was interrupted or failed. Several agents may work on one turn, and
a run may be repeated: `HandedIn` lets each message through once.
"""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

from tomldiary.agents.identity import current_checkpoint, kept_thread, named_checkpoint
from tomldiary.agents.options import place_of
from tomldiary.agents.verbs import BLOCK_VERBS, VERBS
from tomldiary.entries.episodes import ToolStep
from tomldiary.errors import IdentifierError
from tomldiary.logging import get_logger
from tomldiary.runtime.lru import Recent
from tomldiary.storage.protocol import LocalFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from tomldiary.diary import Diary

__all__ = [
    "OTHERS_TURN",
    "SOURCE",
    "HandedIn",
    "Spoken",
    "digest",
    "earlier_exchanges",
    "exchange_of",
    "is_before_question",
    "is_question",
    "keep_out_of_steps",
    "last_words",
    "memory_place",
    "of_memory",
    "own_words",
    "spoken",
    "steps_of",
    "tool_steps",
    "turn_start",
    "with_ids",
]

T = TypeVar("T")
_logger = get_logger(__name__)

OTHERS_TURN = "another user began this turn. Continue it as that user: name the user in the run."
SOURCE = "lc_source"
"""By this key LangChain marks what stands in for people: summaries, memory, prompts of other models."""
_SOURCES = (SOURCE, "deepagents_notification")
"""The second one marks what a deep agent's tasks in the background report to it."""
_BY = {
    "human": "user", "HumanMessageChunk": "user", "ai": "assistant", "AIMessageChunk": "assistant",
    "tool": "tool", "ToolMessageChunk": "tool",
}  # fmt: skip
_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}
_TEXTS = ("text", "input_text")
_KNOWN = 16_384  # messages and turns that are recognised
_our_tools = {*VERBS, *BLOCK_VERBS}


class Spoken(NamedTuple):
    """One message of a thread."""

    by: Literal["user", "assistant", "tool", "other"]
    """ "other" are instructions, and what stands in for people: summaries, memory, prompts of models."""
    text: str = ""
    is_answer: bool = False
    """Whether it ended a turn: the assistant called no tool, or none that could be read, or the call's result was
    the answer."""
    id: str = ""
    """Its id in the thread; "" if it has none."""
    calls: tuple[tuple[str, str, object], ...] = ()
    """Id, name and arguments of each tool that the assistant called."""
    call: str = ""
    """The id of the call that a tool's result belongs to."""


def spoken(
    messages: Sequence[Any], ends_turn: Callable[[Sequence[Any], int], bool]
) -> list[Spoken]:
    """Return LangChain's messages as what was said.

    Args:
        messages: A thread.
        ends_turn: Whether the result of a tool, by its number in the thread, is the answer of the turn.
    """
    said: list[Spoken] = []
    for number, message in enumerate(messages):
        by: Any = _by(message)
        text, id_ = str(message.text).strip(), message.id or ""
        if by == "assistant":
            called = getattr(message, "tool_calls", ())
            is_unreadable = bool(getattr(message, "invalid_tool_calls", ()))
            is_answer = not called and (not is_unreadable or is_before_question(messages, number))
            calls = tuple((each["id"] or "", each["name"], each["args"]) for each in called)
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
    """Whether a message of LangChain is a user's own: neither marked as generated, nor said to be of a tool's call."""
    marks: dict[str, Any] = message.additional_kwargs
    is_of_tool = any(name.endswith("tool_call_id") for name in marks)
    return _by(message) == "user" and not (is_of_tool or any(map(marks.get, _SOURCES)))


def is_before_question(messages: Sequence[Any], number: int) -> bool:
    """Whether a user's own message follows the one of this number."""
    return any(map(is_question, messages[number + 1 : number + 2]))


def _by(message: Any) -> str:
    """Return who said a message; a `ChatMessage` of LangChain names its role."""
    return _BY.get(message.type) or _ROLES.get(getattr(message, "role", ""), "other")


def _words(content: object) -> str:
    """Return the text of a user's message; parts of it stand on lines of their own."""
    if isinstance(content, str):
        return content.strip()
    parts = (
        part if isinstance(part, str) else part.get("text") if part.get("type") in _TEXTS else None
        for part in cast("list[Any]", content)
    )
    return "\n".join(filter(None, parts)).strip()


def turn_start(thread: Sequence[Spoken]) -> int | None:
    """Return the index of the first user message since the last answer; None if no user said anything.

    Answers behind the last user message belong to the turn.
    """
    asked = [number for number, one in enumerate(thread) if one.by == "user"]
    if not asked:
        return None
    answers = [number for number in range(asked[-1]) if thread[number].is_answer]
    behind = answers[-1] if answers else -1
    return next(number for number in asked if number > behind)


def own_words(
    thread: Sequence[Spoken], unanswered: Sequence[int], is_others: Callable[[Spoken], bool]
) -> list[int]:
    """Return which unanswered messages, by their numbers, the user of a run said, in a thread that users may share.

    Raises:
        IdentifierError: Another user said the last of them, and so began the turn.
    """
    own = [number for number in unanswered if not is_others(thread[number])]
    if own[-1:] != list(unanswered[-1:]):
        raise IdentifierError(OTHERS_TURN)
    if len(own) < len(unanswered):
        _logger.warning("another user's messages without an answer are no part of this turn")
    return own


def last_words(thread: Sequence[Spoken]) -> str:
    """Return a digest of the user's last message, by which a thread tells that no user spoke since a turn ended."""
    asked = [one for one in thread if one.by == "user"]
    return digest(*(text for one in asked[-1:] for text in (one.id, one.text)))


def exchange_of(turn: Sequence[Spoken], *, is_over: bool = True) -> tuple[str, str]:
    """Return what the user and the assistant said in a turn; a tool's result that ends it is an answer."""
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


def steps_of(turn: Iterable[Spoken]) -> tuple[ToolStep, ...]:
    """Return the tools that were called in a turn; see `tool_steps`."""
    turn = list(turn)
    results = {one.call: one.text for one in turn if one.by == "tool"}
    return tool_steps((call for one in turn for call in one.calls), results)


def tool_steps(
    calls: Iterable[tuple[str, str, object]], results: Mapping[str, str]
) -> tuple[ToolStep, ...]:
    """Return the calls of tools with their results, for the episode of a turn.

    Tools of diaries are left out: their results repeat entries that may be forgotten later, or of another memory.

    Args:
        calls: Id, name and arguments of each call, in their order.
        results: The text of each result by the id of its call.
    """
    return tuple(
        ToolStep(name, given if isinstance(given, str) else _as_json(given), results.get(id_, ""))
        for id_, name, given in calls
        if name not in _our_tools
    )


def keep_out_of_steps(tools: Iterable[str]) -> None:
    """Note names that tools of a diary have in this process, for `tool_steps`."""
    _our_tools.update(tools)


def digest(*parts: str) -> str:
    """Return 32 characters that stand for texts; other texts, also joined differently, have others."""
    known = hashlib.blake2b(digest_size=16)
    for part in parts:
        known.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return known.hexdigest()


class HandedIn:
    """What this process handed to a memory, so that it hands in no message of a session twice. Thread-safe.

    Messages without an id are always new. The last 16,384 messages and turns are known.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: Recent[str, None] = Recent(_KNOWN)
        self._first_ids: Recent[str, tuple[tuple[str, ...], str]] = Recent(_KNOWN)
        self._owners: Recent[str, tuple[str, bool]] = Recent(_KNOWN)
        """Who said a message, and whether it was answered."""
        self._sayers: Recent[str, tuple[dict[str, None], str]] = Recent(_KNOWN)
        """Who said a text in a thread, and at which checkpoint last."""
        self._epochs: Recent[str, int] = Recent(_KNOWN)

    def first_ids(
        self, settings: Any, user: str, session: str, before: Sequence[str], asked: Sequence[Spoken]
    ) -> tuple[str, ...]:
        """Return the ids that a user's messages had at first: the replay of a kept thread's input gives new ones.

        Args:
            settings: Those of LangGraph for the run.
            user: Whose session.
            session: The session.
            before: What tells the place in the thread, such as what was said before. A thread that lost its old
                messages has the same place again, so that only a replay tells repetition from another turn.
            asked: The messages.
        """
        ids, thread = tuple(one.id for one in asked), kept_thread(settings)
        if not (thread and all(ids)):
            return ids
        key = digest(user, session, thread, *before, exchange_of(asked)[0])
        with self._guard:
            known, seen_at = self._first_ids.get(key, ((), ""))
            is_replay = "" < named_checkpoint(settings) < seen_at
            if is_replay and len(known) == len(ids):
                return known
            self._first_ids.keep(key, (ids, current_checkpoint(settings)))
            return ids

    def owner(
        self, settings: Any, where: str, known: Mapping[str, str], message: Spoken, user: str
    ) -> str:
        """Return who said an unanswered message of a kept thread: as known, as first seen in this process, or the user.

        Args:
            settings: Those of LangGraph for the run.
            where: Whose view of the thread.
            known: The owners that a checkpoint has, by message id.
            message: The message.
            user: The user of the run.
        """
        key = _place(settings, where, message)
        if not key:
            return known.get(message.id, user)
        with self._guard:
            if key not in self._owners and message.id not in known:
                user = self._sayer(settings, where, message, user)
            first, is_answered = self._owners.get(key, (user, False))
            if is_answered and not named_checkpoint(settings):  # the thread may have begun again
                first = user
            return self._owners.keep(key, (known.get(message.id, first), False))[0]

    def _sayer(self, settings: Any, where: str, message: Spoken, user: str) -> str:
        """Return who said a message of an unknown id: in a replay, which gives new ids, who said its text."""
        key = digest(where, kept_thread(settings), "", message.text)
        sayers, seen_at = self._sayers.get(key, ({}, ""))
        if user not in sayers and "" < named_checkpoint(settings) < seen_at:
            return next(reversed(sayers))
        self._sayers.keep(key, ({**sayers, user: None}, current_checkpoint(settings)))
        return user

    def answered(self, settings: Any, where: str, messages: Iterable[Spoken]) -> None:
        """Note that messages were answered: only a replay asks who said them; the arguments are those of `owner`."""
        with self._guard:
            for key in (_place(settings, where, each) for each in messages):
                if key in self._owners:
                    self._owners.keep(key, (self._owners[key][0], True))

    def begin(self, user: str, turn: Iterable[Spoken], epoch: int) -> None:
        """Note for a turn's messages how often something of the user was erased before their run."""
        with self._guard:
            for one in turn:
                if one.id and one.by == "user":
                    self._epochs.keep(_key(user, "", one), epoch)

    def began(self, user: str, turn: Iterable[Spoken]) -> int | None:
        """Return what was noted last for a turn's messages; None if nothing was."""
        with self._guard:
            known = [self._epochs.get(_key(user, "", one)) for one in turn if one.id]
        return min((epoch for epoch in known if epoch is not None), default=None)

    def has(self, user: str, session: str, message: Spoken) -> bool:
        """Whether a message of a user's session was handed in."""
        return bool(message.id) and _key(user, session, message) in self._known

    @contextmanager
    def once(
        self,
        user: str,
        session: str,
        operation: str,
        turn: Sequence[Spoken],
        as_said: Iterable[Spoken] = (),
    ) -> Generator[list[Spoken]]:
        """Yield the messages of a turn that are new; none if the turn was handed in under this id.

        If the block raises, nothing was handed in. Other threads do not wait for it.

        Args:
            user: Whose session.
            session: The session; ids of messages are unique in it.
            operation: The id of the turn; "" is none.
            turn: Its messages.
            as_said: Messages of it as they were before they were redacted, which another run may find again.
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
        except BaseException:
            with self._guard:
                for key in new:
                    self._known.pop(key, None)
            raise


_kept: WeakValueDictionary[tuple[object, type[Any]], Any] = WeakValueDictionary()


def with_ids(turn: Sequence[Spoken], ids: Sequence[str], others: Sequence[str]) -> list[Spoken]:
    """Return the messages of a turn with other ids in place of `ids`."""
    other = dict(zip(ids, others, strict=True))
    return [one._replace(id=other.get(one.id, one.id)) for one in turn]


def of_memory(diary: Diary, kind: type[T]) -> T:
    """Return the object of a class that all diaries of one place share; it is made for the first one."""
    return _kept.setdefault((memory_place(diary), kind), kind())


def memory_place(diary: Diary) -> object:
    """Return what all diaries of one place have in common.

    A folder is told by its path as it was given: asking the disk would block the event loop.
    """
    backend = diary.engine.backend
    return backend.base_path if isinstance(backend, LocalFolder) else place_of(backend)


def _key(user: str, session: str, message: Spoken) -> str:
    return digest(user, session, message.id, message.text)


def _place(settings: Any, where: str, message: Spoken) -> str:
    thread = kept_thread(settings)
    return digest(where, thread, message.id) if thread and message.id else ""


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))
