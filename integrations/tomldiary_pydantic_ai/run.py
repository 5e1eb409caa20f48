"""One run of an agent: whose memory it is about, and what the user said in it. A model decides neither."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

from pydantic_ai import RunContext, TemplateStr, capabilities
from pydantic_ai.tools import AgentDepsT

from tomldiary.agents import identity
from tomldiary.agents.delegation import PYDANTIC_AI, tell_within
from tomldiary.agents.turn_messages import OTHERS_TURN, digest, memory_place
from tomldiary.errors import IdentifierError, InvalidValue, WriterBusy
from tomldiary.runtime.lru import Recent
from tomldiary_pydantic_ai.conversation import (
    Words,
    exchanges,
    ids_of,
    prompt_words,
    prompts_in,
    resumed,
    returns_tools,
    said,
    unanswered,
)

if TYPE_CHECKING:
    from datetime import datetime

    from pydantic_ai.messages import ModelMessage, ModelRequestPart

    from tomldiary.diary import Diary
    from tomldiary.writer.receipts import Turn
    from tomldiary.writer.writer import MemoryWriter

__all__ = [
    "LastTurns",
    "RunOwner",
    "RunState",
    "Who",
    "durable_operation",
    "filled",
    "hand_in",
    "no_template",
    "runs_around",
    "session_of",
    "user_of",
    "within_tool",
]

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")

Who: TypeAlias = str | Callable[[RunContext[AgentDepsT]], str | None] | None
"""A name, a function of the run, or None: look in the run's deps and metadata."""


class RunOwner(NamedTuple):
    """Whose run it is, and which session it belongs to."""

    user: str
    session: str


_HINT = (
    "To say whose memory it is, give user_id (a text, or a function of the run context), or put a"
    " user_id in the deps or the metadata of the run."
)


def user_of(ctx: RunContext[Any], explicit: Who[Any]) -> str:
    """Return the user of a run: given explicitly, in its deps, or in its metadata, in this order.

    Raises:
        IdentifierError: The run names no user, or a name is blank or not text.
    """
    return identity.user_of(
        identity.given("user", explicit, ctx), hint=_HINT, context=ctx.deps, metadata=ctx.metadata
    )


def session_of(ctx: RunContext[Any], explicit: Who[Any]) -> str:
    """Return the session of a run: explicit, in its deps or metadata, its conversation, or the run itself.

    Raises:
        IdentifierError: A name that is given is blank or no text.
    """
    return identity.session_of(
        identity.given("session", explicit, ctx),
        context=ctx.deps,
        metadata=ctx.metadata,
        settings={"conversation_id": ctx.conversation_id or ctx.run_id},
        default="",
    )


def no_template(option: str, given: T) -> T:
    """Return what an option was given, unless it is the text of a template that nothing fills in.

    Raises:
        InvalidValue: It is: taken literally, it would be one name for all users.
    """
    if isinstance(given, str) and "{{" in given:
        raise InvalidValue(
            f"{given!r} is a template. Templates are filled in within agent specs only; here, give a"
            " function of the run context.",
            where=option,
        )
    return given


def filled(given: str | TemplateStr[Any] | None) -> Who[Any]:
    """Return a name from an agent spec; a template becomes a function that fills it in from the deps.

    The function raises IdentifierError where the deps leave a placeholder empty: without it, the name
    could be the same for several users.
    """
    if not isinstance(given, TemplateStr):
        return given
    places = [TemplateStr[Any](place) for place in _PLACEHOLDER.findall(str(given))]

    def name(ctx: RunContext[Any]) -> str:
        for place in places:
            if not place(ctx).strip():
                raise IdentifierError(
                    f"{place} in the agent spec is empty for this run. Set it in the deps."
                )
        return given(ctx)

    return name


_PLACEHOLDER = re.compile(r"\{\{\{?\s*[\w.]+\s*\}?\}\}")


async def hand_in(writer: MemoryWriter, turn: Turn) -> None:
    """Hand a turn in; unless its run was cancelled, it is in the writer's journal on return.

    While the queue is full, a run waits, and a thread waits in the place of one that was cancelled.

    Raises:
        RuntimeError: The writer is closed.
        DiaryError: The turn cannot be stored.
    """
    if turn.status == "cancelled":
        _hand_in_at_once(writer, turn)
        return
    try:
        await writer.submit_turn(turn)
    except asyncio.CancelledError:
        # Taken back, if it was waiting; the same operation id makes it one turn if it was not.
        _hand_in_at_once(writer, turn)
        raise


def _hand_in_at_once(writer: MemoryWriter, turn: Turn) -> None:
    try:
        writer.submit_nowait(turn)
    except WriterBusy:
        # The loop's own threads: it waits for them when it is closed.
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, lambda: asyncio.run(writer.submit_turn(turn)))


_SESSIONS_KEPT = 4096


@dataclass(eq=False)
class RunState:
    """One run of one capability."""

    diary: Diary
    memory: str
    """The id of the toolset."""
    owner: RunOwner
    scope: str
    records: bool
    around: Sequence[RunState] = ()
    """The runs in whose tools this one was started for the same user, outermost first."""
    heard: list[str] = field(default_factory=list[str])
    """What the user said since the last answer, and was not handed in."""
    handed_in: Sequence[str] = ()
    """What the user said since the last answer, and was handed in: by an earlier run, or by agents in its tools."""
    before: Sequence[str] = ()
    """What the user said at the end of the message history."""
    epoch: int | None = None
    """How often something of the user was erased before the run; None is unknown."""
    place: str = ""
    """Stands for the exchanges before the turn."""
    id: str = ""
    """The framework's id of the run."""
    conversation: str = ""
    """The framework's id of the conversation, which several users may share."""
    earlier: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    messages: list[ModelMessage] | None = None
    """The run's own list, which is not to be had any more when the run has been cut off."""
    was_told: bool = False
    """Whether the model has been told the memory, or did not have to be."""
    is_over: bool = False
    is_parsed: bool = False
    """Whether the output was made of the text of the last answer."""
    output_tools: Collection[str] = ()
    """Names of the tools by which the model gives the output."""
    _known: dict[int, tuple[ModelRequestPart, ModelMessage]] = field(
        default_factory=dict[int, "tuple[ModelRequestPart, ModelMessage]"]
    )
    """Parts whose words are heard already, each with its message, by the part's identity."""
    _prompt: str | None = None

    @property
    def outermost(self) -> RunState:
        """The run that the user spoke to: this one, or the outermost around it."""
        return self.around[0] if self.around else self

    def begin(self, ctx: RunContext[Any], last: LastTurns) -> None:
        """Note what the user said before the first request: in the history and in the prompt."""
        if self.around:  # its prompt is the words of the agent that started it
            return
        words = prompt_words(ctx.prompt)
        prompt = [words] if words else []
        earlier = exchanges(ctx.messages)
        self.place = digest(*(text for pair in earlier for text in pair))
        self.id = ctx.run_id or ""
        self.conversation = ctx.conversation_id or self.id
        before = last.without_others(self, unanswered(ctx.messages))
        self.before = [words.text for words in before]
        self.handed_in = last.repeated(self, before, prompt)
        self.heard = _without([*self.before, *prompt], self.handed_in)
        self.earlier = earlier[-self.diary.context_turns or len(earlier) :]
        self._new_prompts(ctx.messages)
        self._prompt = words
        if self.records:
            last.begin(self)

    def collect(self, messages: Sequence[ModelMessage], run_id: str | None) -> None:
        """Add what the user said while the run went on: messages of the run that were enqueued."""
        if self.around:
            return
        words = [
            text
            for message, news in self._new_prompts(messages)
            if message.run_id == run_id and not returns_tools(message)
            for text in said(news)
        ]
        if self._prompt is not None and words:  # a second time it was enqueued
            words.remove(self._prompt if self._prompt in words else words[0])
        self._prompt = None
        self.heard += words

    def collect_enqueued(self, ctx: RunContext[Any]) -> None:
        """Add what the user said in messages that are enqueued, and not yet part of the conversation."""
        if not self.around:
            for pending in ctx.pending_messages or ():
                for message in pending.messages:
                    self.heard += said(self._unknown(message))

    @property
    def said(self) -> tuple[str, ...]:
        """What the user said since the last answer."""
        return (*self.handed_in, *self.heard)

    def _new_prompts(
        self, messages: Sequence[ModelMessage]
    ) -> list[tuple[ModelMessage, list[ModelRequestPart]]]:
        """Return messages with those of their parts that were not there before, and know these from now on."""
        present = {id(part) for message in messages for part in prompts_in(message)}
        # What another capability put in the place of a part, or of its message, has the time of either.
        gone = {
            time
            for identity, (part, message) in self._known.items()
            if identity not in present
            for time in (_time_of(part), message.timestamp)
            if time is not None
        }
        news = [(message, self._unknown(message)) for message in messages]
        return [
            (message, [part for part in parts if _time_of(part) not in gone])
            for message, parts in news
            if message.timestamp not in gone
        ]

    def _unknown(self, message: ModelMessage) -> list[ModelRequestPart]:
        parts = [part for part in prompts_in(message) if id(part) not in self._known]
        self._known.update((id(part), (part, message)) for part in parts)
        return parts


def _time_of(part: ModelRequestPart) -> datetime | None:
    return getattr(part, "timestamp", None)


def _without(texts: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return texts in their order without the first of each that is among others."""
    left, kept = [*others], list[str]()
    for text in texts:
        if text in left:
            left.remove(text)
        else:
            kept.append(text)
    return kept


class _LastTurn(NamedTuple):
    """What the user said in the last turn of a session, where that stood, and how its run ended."""

    id: str
    memory: str
    owner: RunOwner
    said: tuple[str, ...]
    place: str
    conversation: str
    is_answered: bool
    is_failed: bool


class _Sent(NamedTuple):
    """Who sent a message in a run, and what the run handed in of it and of the history."""

    user: str
    said: tuple[str, ...] = ()


class LastTurns:
    """What was handed in last of each session, and whose runs there were, so that no run repeats another's words."""

    def __init__(self) -> None:
        self._turns: Recent[RunOwner, _LastTurn] = Recent(_SESSIONS_KEPT)
        self._sent: Recent[tuple[str | None, ...], _Sent] = Recent(_SESSIONS_KEPT)
        self._open: WeakSet[RunState] = WeakSet()
        self._lock = threading.Lock()

    def enter(self, memory: str, user: str, ctx: RunContext[Any]) -> None:
        """Note who begins a run.

        Args:
            memory: The id of the toolset or the capability.
            user: Whose run it is.
            ctx: The run.

        Raises:
            IdentifierError: It goes on with a turn that another user began, as by an approval.
        """
        response = resumed(ctx.messages, ctx.prompt)
        began = None if response is None else self._sender(memory, response)
        if began is not None and began.user != user:
            raise IdentifierError(OTHERS_TURN)
        with self._lock:
            self._sent.keep((memory, ctx.conversation_id, ctx.run_id), _Sent(user))

    def _sender(self, memory: str, message: ModelMessage) -> _Sent | None:
        """Return what is known of the run that sent a message; None if nothing is."""
        conversation, run = ids_of(message)
        return None if run is None else self._sent.get((memory, conversation, run))

    def repeated(
        self, run: RunState, before: Sequence[Words], prompt: Sequence[str]
    ) -> tuple[str, ...]:
        """Return what was handed in already of the words that a run begins with.

        Args:
            run: The run.
            before: The unanswered words of the history, with their messages.
            prompt: The prompt. With the words of a run that failed it is the same run again; with those of an
                answered one the user says them again.
        """
        sent = [
            text
            for text, message in before
            if (sender := self._sender(run.memory, message)) is not None and text in sender.said
        ]
        last = self._turns.get(run.owner)
        if last is None or (last.is_answered and last.place != run.place):
            return tuple(sent)
        left = _without(last.said, sent)
        now = _without(run.before, sent)
        # In any order: a run begins with only some of the words if others were said while it went on.
        now += prompt if last.is_failed else ()
        repeated = list[str]()
        for text in takewhile(lambda each: each in left, now):
            left.remove(text)
            repeated.append(text)
        return (*sent, *repeated)

    def without_others(self, run: RunState, before: Sequence[Words]) -> list[Words]:
        """Return the unanswered words of a history without those that other users said."""
        with self._lock:
            turns = [*self._open, *(one for one in self._turns.values() if not one.is_answered)]
        sent = {ids_of(words.message)[1] for words in before}
        others = [
            text
            for one in turns
            if one.owner.user != run.owner.user
            if one.id != run.id
            or one.memory == run.memory  # else it is another memory of the agent
            if one.id in sent or (one.conversation, one.place) == (run.conversation, run.place)
            for text in one.said
        ]
        own = list[Words]()
        for words in before:
            if words.text in others:
                others.remove(words.text)
            else:
                own.append(words)
        return own

    def begin(self, run: RunState) -> None:
        """Note that a run goes on."""
        with self._lock:
            self._open.add(run)

    def take_words(self, run: RunState) -> list[str]:
        """Return what a run hands in of its user's words, and keep others from handing in the same again.

        These are agents in its tools, and runs that overlap and have these words in their history.
        """
        with self._lock:
            words, run.handed_in, run.heard = run.heard, run.said, []
            for one in self._open:
                if (one.owner, one.place) != (run.owner, run.place):
                    continue
                for text in words:
                    if text in one.heard and text in (*one.before, *run.before):
                        one.heard.remove(text)
                        one.handed_in = (*one.handed_in, text)
        return words

    def end(self, run: RunState) -> None:
        """Note that a run hands in nothing any more."""
        with self._lock:
            self._open.discard(run)

    def note(self, run: RunState, *, is_answered: bool, is_paused: bool) -> None:
        """Note that the turn of a run was handed in; one that is paused waits for results of tools."""
        with self._lock:
            ended = is_answered and not is_paused
            self._turns.keep(
                run.owner,
                _LastTurn(
                    run.id,
                    run.memory,
                    run.owner,
                    run.said,
                    run.place,
                    run.conversation,
                    ended,
                    not is_answered,
                ),
            )
            self._sent.keep((run.memory, run.conversation, run.id), _Sent(run.owner.user, run.said))


_AROUND: ContextVar[tuple[RunState, ...]] = ContextVar("tomldiary_runs_around", default=())
tell_within(PYDANTIC_AI, lambda: any(not run.is_over for run in _AROUND.get()))


@contextmanager
def within_tool(run: RunState) -> Generator[None]:
    """Know runs that are started in here as those of a tool of this run."""
    token = _AROUND.set((*_AROUND.get(), run))
    try:
        yield
    finally:
        _AROUND.reset(token)


def runs_around(diary: Diary, user: str) -> tuple[RunState, ...]:
    """Return the runs of the same user's memory in whose tools the code runs, outermost first.

    A task that a tool started may outlive its run, as one that serves a chat does.
    """
    place = memory_place(diary)
    return tuple(
        run
        for run in _AROUND.get()
        if not run.is_over and run.owner.user == user and memory_place(run.diary) == place
    )


def durable_operation(name: str) -> Callable[[F], F]:
    """Return a decorator that lets a durable execution engine record and replay a method's result."""
    mark: Callable[[str], Callable[[F], F]] | None = getattr(
        capabilities, "durable_operation", None
    )

    def decorate(method: F) -> F:
        if mark is None:
            return method
        # The framework looks it up on each call; found here it need not be made each time.
        method.__signature__ = inspect.signature(method)
        return mark(name)(method)

    return decorate
