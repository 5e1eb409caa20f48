"""One run of an agent: the user of its memory, and the words of this user in it. A model decides neither.

The words come in with the message history, the prompt and the queue; `Utterances` decides which of them are recorded. They
are collected before history processors see them. Later, only parts that replace no earlier part are new words.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ReferenceType, WeakSet

from pydantic_ai.messages import UserPromptPart

from tomldiary.agents.delegation import PYDANTIC_AI, register_within
from tomldiary.agents.turn_messages import digest, memory_place
from tomldiary.agents.utterances import Utterance
from tomldiary.extraction.context import Turn
from tomldiary.writer.shutdown import await_open_runs, before_writers_close
from tomldiary_pydantic_ai.conversation import (
    PAUSED,
    answered,
    exchanges,
    is_unsaid,
    mark_of,
    parts_of_others,
    prompt_words,
    prompts_in,
    queued_messages,
    returns_tools,
    said,
    steps_in,
    unanswered,
    words_in,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Sequence

    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelMessage, ModelRequestPart
    from pydantic_ai.run import AgentRunResult

    from tomldiary.agents.utterances import RunOwner, UserTurn, Utterances
    from tomldiary.diary import Diary
    from tomldiary.entries.kinds.episodes import ToolStep
    from tomldiary.extraction.context import TurnStatus
    from tomldiary.writer.writer import MemoryWriter


class _Part(NamedTuple):
    """A part of a message."""

    part: ModelRequestPart
    utterance: Utterance | None
    """The unanswered utterance whose words the part has; None if there is none."""


class Ending(NamedTuple):
    """The agent's side of a run that has ended."""

    answer: str
    steps: tuple[ToolStep, ...]
    is_paused: bool
    """Whether it waits for tool results."""


@dataclass(eq=False)
class RunState:
    """One run of one capability."""

    diary: Diary
    turn: UserTurn
    scope: str
    records: bool
    """Whether its turn is submitted, unless the run is part of the turn of a run around it."""
    around: Sequence[RunState] = ()
    """The runs of the same user whose tools started this one, outermost first."""
    is_turn: bool = False
    """Whether it is submitted as a turn of its own when it ends."""
    epoch: int | None = None
    """The user's fencing token at the start of the run; None is unknown."""
    history: Sequence[ModelMessage] = ()
    """The messages before the run."""
    messages: list[ModelMessage] | None = None
    """The list that the framework extends, kept because the context of an abandoned run lacks it."""
    has_memory: bool = False
    """Whether the conversation contains the memory, or needed none."""
    task: asyncio.Task[Any] | None = None
    """The task that records the run when it ends; None before and afterwards."""
    caller: asyncio.Task[Any] | None = None
    """The task that runs the agent."""
    writer: MemoryWriter | None = None
    """The writer that gets the turn."""
    began_in: tuple[int, int] = field(default_factory=lambda: (os.getpid(), threading.get_ident()))
    """The process and the thread of the run."""
    has_ended: bool = False
    is_parsed: bool = False
    """Whether the output was parsed from the text of the last answer."""
    output_tools: Collection[str] = ()
    """Names of the tools that return the run's output."""
    heard: Sequence[str] = ()
    """The texts since the last answer when the run began, of any user. What this process knows of other runs changes
    the utterances, but not these."""
    found: list[tuple[str, str, Utterance]] = field(
        default_factory=list["tuple[str, str, Utterance]"]
    )
    """The marks and the texts of the parts that had words since the last answer, with their utterances, of any user."""
    _parts: list[_Part] = field(default_factory=list["_Part"])
    """The user's parts at the last look: of the conversation, then of the queue."""
    _queued: dict[Utterance, ModelMessage] = field(default_factory=dict[Utterance, "ModelMessage"])
    """The enqueued messages that have utterances."""

    @property
    def owner(self) -> RunOwner:
        """The user and the session."""
        return self.turn.owner

    @property
    def outermost(self) -> RunState:
        """The run that received the user's prompt: the outermost one."""
        return self.around[0] if self.around else self

    def begin(self, ctx: RunContext[Any], known: Utterances) -> None:
        """Collect the user's texts before the first request: in the history and in the prompt."""
        prompt = prompt_words(ctx.prompt) or ""
        before, words = unanswered(ctx.messages), words_in(ctx.messages)
        others = parts_of_others(ctx.messages, self.scope, self.turn.memory)
        before = [each._replace(is_others=id(each.part) in others) for each in before]
        self.turn.place = _place(ctx.messages)
        self.heard = [*(each.text for each in before), *filter(None, [prompt])]
        if self.around:  # another agent wrote its prompt
            return
        self.history = tuple(ctx.messages)
        answered = words[: len(words) - len(before)]
        since = known.begin(self.turn, answered, before, prompt)
        of_part = {id(words.part): one for words, one in zip(before, since, strict=False)}
        self._parts = [
            self._with(part, of_part.get(id(part)))
            for message in ctx.messages
            for part in prompts_in(message)
        ]
        if prompt:  # until a message has its part
            self._parts.append(_Part(UserPromptPart(prompt), since[-1]))
        if self.records:
            known.opened(self.turn)
            _RUNS.add(self)

    def collect(self, messages: Sequence[ModelMessage], ctx: RunContext[Any]) -> None:
        """Add texts that the user sent during the run, in its messages or in the queue for them."""
        if self.around:
            return
        present = [(part, message) for message in messages for part in prompts_in(message)]
        there = {id(part) for part, _ in present}
        waiting = {id(part) for message in queued_messages(ctx) for part in prompts_in(message)}
        before = [each for each in self._parts if id(each.part) not in waiting]
        places = {id(each.part): number for number, each in enumerate(before)}
        now: list[_Part] = []
        unknown: list[tuple[ModelRequestPart, ModelMessage]] = []
        begin = 0
        for part, message in present:
            place = places.get(id(part))
            if place is None:
                unknown.append((part, message))
                continue
            gone = [each for each in before[begin:place] if id(each.part) not in there]
            now += [*self._placed(unknown, gone, ctx), before[place]]
            unknown, begin = [], place + 1
        gone = [each for each in before[begin:] if id(each.part) not in there]
        now += self._placed(unknown, gone, ctx)
        self._parts = [*now, *(each for each in self._parts if id(each.part) in waiting)]
        self.collect_enqueued(ctx)

    def _placed(
        self,
        unknown: Sequence[tuple[ModelRequestPart, ModelMessage]],
        gone: Sequence[_Part],
        ctx: RunContext[Any],
    ) -> Iterator[_Part]:
        """Yield the unknown parts at a place of the messages, each as a new form of a part that is gone, or as new words.

        Other capabilities, such as history processors, replace parts, remove the oldest ones, and add a summary before
        the last ones. A part with the text of a known one replaces it; otherwise the first parts replace the last gone ones.
        """
        of_text: dict[tuple[str, ...], list[_Part]] = {}
        for each in gone:
            of_text.setdefault(tuple(said([each.part])), []).append(each)
        of_text.pop((), None)
        replaced: dict[int, _Part] = {}
        for part, _ in reversed(unknown):
            if same := of_text.get(tuple(said([part]))):
                replaced[id(part)] = same.pop()
        taken = {id(each.part) for each in replaced.values()}
        left = [each for each in gone if id(each.part) not in taken]
        others = iter(left[max(0, len(left) + len(replaced) - len(unknown)) :])
        for part, message in unknown:
            before = replaced.get(id(part)) or next(others, None)
            if before is not None:
                yield self._with(part, before.utterance or self._unsaid(before.part, part))
            elif message.run_id == ctx.run_id and not returns_tools(message):
                yield self._with_new(part)
            else:
                yield _Part(part, None)

    def _unsaid(self, before: ModelRequestPart, now: ModelRequestPart) -> Utterance | None:
        """Return an utterance for words that replace memory, or text of an application: no user said them."""
        if not (is_unsaid(before) and said([now])):
            return None
        one = Utterance("", self.owner.user, is_submitted=True)
        self.turn.utterances.append(one)
        return one

    def collect_enqueued(self, ctx: RunContext[Any]) -> None:
        """Add texts of enqueued messages that are not part of the conversation yet."""
        known = {id(each.part) for each in self._parts}
        for message in () if self.around else queued_messages(ctx):
            for part in prompts_in(message):
                if id(part) not in known:
                    self._parts.append(self._with_new(part, message))

    def _with_new(self, part: ModelRequestPart, queued: ModelMessage | None = None) -> _Part:
        """Return a part with a new utterance, unless it has no words."""
        one: Utterance | None = None
        for text in said([part]):
            one = Utterance(text, self.owner.user)
            self.turn.utterances.append(one)
            if queued is not None:
                self._queued[one] = queued
        return self._with(part, one)

    def _with(self, part: ModelRequestPart, utterance: Utterance | None) -> _Part:
        """Return a part with its utterance, and record the part's text as a form of the utterance."""
        if utterance is not None:
            for text in said([part]):
                utterance.forms.add(text)
                if mark := mark_of(part, text):
                    self.found.append((mark, text, utterance))
        return _Part(part, utterance)

    def _is_in_queue(self, one: Utterance) -> bool:
        """Return whether no request took the message of an utterance, or the host took it back."""
        # The framework sets the run of a message when it takes it for a request.
        return one in self._queued and self._queued[one].run_id is None

    def remove_dequeued(self, ctx: RunContext[Any]) -> None:
        """Remove texts of enqueued messages that the host took back before a request took them."""
        waiting = {id(one) for one in queued_messages(ctx)}
        self.turn.utterances = [
            one
            for one in self.turn.utterances
            if one.is_submitted or not self._is_in_queue(one) or id(self._queued[one]) in waiting
        ]

    def ending(self, ctx: RunContext[Any], result: AgentRunResult[Any] | None) -> Ending:
        """Collect the user's last texts, and return what the agent did in the run."""
        if (
            self.messages is None
        ):  # a realtime session, or a run that ended before its first request
            # The context of an abandoned session lacks the last messages.
            self.messages = ctx.messages if result is None else result.all_messages()
        messages, run, tools = self.messages, ctx.run_id, self.output_tools
        # Messages that were enqueued too late for a request of this run.
        self.collect(messages, ctx)
        self.remove_dequeued(ctx)
        if result is None:
            # A retry may come with the messages of this run, as history processors left them.
            self.turn.places.add(_place(messages))
        output: object = None if result is None else result.output
        is_paused = isinstance(output, PAUSED)
        steps = steps_in(messages, run, is_paused=is_paused, output_tools=tools)
        if is_paused:
            output = None
        answer = answered(messages, run, output, is_parsed=self.is_parsed, output_tools=tools)
        return Ending(answer, steps, is_paused)

    def submitted(
        self,
        texts: Sequence[str],
        ending: Ending,
        status: TurnStatus,
        episode: bool | None,  # noqa: FBT001 - the option of the capability
    ) -> Turn | None:
        """Return what the run submits, with these texts of the user; None if it has no text.

        Its operation id lacks the digest of the texts, because a workflow, which runs this, must not redact them: the
        function that redacts may read files or wait.
        """
        (user, session), run_id = self.owner, self.turn.ids.run
        user_msg, answer = "\n\n".join(texts), ending.answer
        if not (user_msg or answer):
            return None
        earlier = exchanges(self.history, self.output_tools)
        return Turn(
            user,
            session,
            user_msg,
            answer,
            status=status,
            operation_id=digest(run_id, session) if run_id else "",
            earlier=earlier[-self.diary.context_turns or len(earlier) :] or None,
            steps=ending.steps,
            episode=episode,
            epoch=self.epoch,
        )


def _place(messages: Sequence[ModelMessage]) -> str:
    """Return a digest of the exchanges in messages."""
    return digest(*(text for pair in exchanges(messages) for text in pair))


def end_with_caller(which: ReferenceType[RunState], caller: asyncio.Task[Any]) -> None:
    """End a run if its caller was cancelled or failed: the framework leaves it waiting forever if it has just begun.

    A `timeout` and a `CancellationToken` of the framework end the caller with an error.
    The caller may live as long as the program. With a strong reference, the run would too, if only a time limit ended it.
    """
    run = which()
    if run is not None and run.task is not None and (caller.cancelled() or caller.exception()):
        run.task.cancel()


_RUNS: WeakSet[RunState] = WeakSet()
_SECONDS_TO_END = 10
"""How long the exit of the interpreter waits for a run that ignores its cancellation."""


def _runs() -> list[RunState]:
    while True:
        with suppress(RuntimeError):  # another thread began a run meanwhile
            return list(_RUNS)


def _end_stopped_runs() -> None:
    """Cancel or close the runs whose event loop has stopped, such as an unclosed `run_stream_sync`; this records them."""
    here = os.getpid(), threading.get_ident()
    for run in _runs():
        task = run.task
        if task is None or task.done() or run.began_in != here:
            continue
        loop = task.get_loop()
        with suppress(Exception):  # a loop of another library may refuse
            if loop.is_closed():  # it can run nothing any more
                task.get_coro().close()
            elif not loop.is_running():
                task.cancel()
                loop.run_until_complete(asyncio.wait([task], timeout=_SECONDS_TO_END))


def _has_open_runs(writer: MemoryWriter) -> bool:
    """Return whether a run has not ended, or is being recorded, whose turn the writer gets."""
    tasks = [run.task for run in _runs() if run.writer is writer]
    return any(task is not None and not task.done() for task in tasks)


before_writers_close(_end_stopped_runs)
await_open_runs(_has_open_runs)


@dataclass(eq=False)
class _Call:
    """A call of a tool or an output function. It may outlive its run, if that is cancelled."""

    run: RunState
    is_running: bool = True

    @property
    def is_over(self) -> bool:
        """Whether a run that starts now is not part of the run of the call."""
        return self.run.has_ended and not self.is_running


_AROUND: ContextVar[tuple[_Call, ...]] = ContextVar("tomldiary_calls_around", default=())
register_within(PYDANTIC_AI, lambda: any(not call.is_over for call in _AROUND.get()))


@contextmanager
def within_tool(run: RunState | None) -> Generator[None]:
    """Treat runs that start in this block as started by a tool of `run`."""
    if run is None:
        yield
        return
    call = _Call(run)
    token = _AROUND.set((*_AROUND.get(), call))
    try:
        yield
    finally:
        call.is_running = False
        _AROUND.reset(token)


def runs_around(diary: Diary, user: str) -> tuple[RunState, ...]:
    """Return the runs of the same user and memory whose tools are running this code, outermost first.

    A task that a tool started may outlive its run, for example to serve a chat.
    """
    place = memory_place(diary)
    return tuple(
        call.run
        for call in _AROUND.get()
        if not call.is_over
        and call.run.owner.user == user
        and memory_place(call.run.diary) == place
    )
