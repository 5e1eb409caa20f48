"""One run of an agent: the user of its memory, and the words of this user in it. A model decides neither."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from pydantic_ai.messages import ModelRequest, UserPromptPart

from tomldiary.agents.delegation import PYDANTIC_AI, tell_within
from tomldiary.agents.turn_messages import OTHERS_TURN, digest, memory_place
from tomldiary.errors import IdentifierError
from tomldiary.runtime.lru import Recent
from tomldiary.writer.shutdown import before_writers_close
from tomldiary_pydantic_ai.conversation import (
    PAUSED,
    Words,
    answered,
    exchanges,
    id_in_interface,
    ids_of,
    mark_of,
    prompt_words,
    prompts_in,
    queued_messages,
    resumed,
    returns_tools,
    said,
    steps_in,
    time_of,
    unanswered,
    words_in,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Sequence
    from datetime import datetime

    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelMessage, ModelRequestPart
    from pydantic_ai.run import AgentRunResult

    from tomldiary.diary import Diary
    from tomldiary.entries.episodes import ToolStep
    from tomldiary_pydantic_ai.toolset import RunOwner

_SESSIONS_KEPT = 4096


@dataclass(eq=False)
class _Text:
    """One of the user's texts since the last answer."""

    text: str
    id: str = ""
    """The id that a user interface gave to its message; "" is none."""
    is_before: bool = False
    """Whether it stood in the message history when the run began."""
    queued: ModelMessage | None = None
    """The enqueued message that has it."""
    is_submitted: bool = False
    rewritten: list[str] = field(default_factory=list[str])
    """The forms that history processors gave to it."""

    @property
    def forms(self) -> tuple[str, ...]:
        """The text in each form that messages may have."""
        return (self.text, *self.rewritten)


@dataclass(eq=False)
class UserTurn:
    """The user's side of a turn: whose it is, its place, and the texts since the last answer."""

    memory: str
    """The id of the toolset."""
    owner: RunOwner
    id: str = ""
    """The framework's id of the run."""
    conversation: str = ""
    """The framework's id of the conversation, which several users may share."""
    place: str = ""
    """A digest of the exchanges before the turn."""
    heard: Sequence[str] = ()
    """The texts since the last answer when the run began, of any user. What this process knows of other runs changes
    `texts`, but not these."""
    answered: int = 0
    """The number of texts of users that were answered before."""
    texts: list[_Text] = field(default_factory=list[_Text])
    is_answered: bool = False
    is_failed: bool = False

    @property
    def spot(self) -> tuple[str, ...]:
        """The place of the turn in the session of the user."""
        return (self.memory, *self.owner, self.place)

    @property
    def said(self) -> list[str]:
        """The user's texts."""
        return [one.text for one in self.texts]


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
    """The list of the run itself; it cannot be reached any more after the run was cut off."""
    has_memory: bool = False
    """Whether the conversation contains the memory, or needed none."""
    task: asyncio.Task[Any] | None = None
    """The task that records the run when it ends."""
    began_in: tuple[int, int] = field(default_factory=lambda: (os.getpid(), threading.get_ident()))
    """The process and the thread of the run."""
    is_over: bool = False
    is_parsed: bool = False
    """Whether the output was parsed from the text of the last answer."""
    output_tools: Collection[str] = ()
    """Names of the tools that return the run's output."""
    _known: dict[int, tuple[ModelRequestPart, ModelMessage]] = field(
        default_factory=dict[int, "tuple[ModelRequestPart, ModelMessage]"]
    )
    """Parts that were read already, each with its message, by the identity of the part."""
    _answered: Collection[int] = ()
    """The identities of the parts that were answered before the run."""
    _seen: list[int] = field(default_factory=list[int])
    """The identities of the user's parts at the last look, in the order of the conversation."""
    _prompt: str | None = None
    """The prompt, until a message has it."""
    _prompt_place: UserPromptPart = field(default_factory=lambda: UserPromptPart(""))
    """Its place in the conversation until then."""

    @property
    def owner(self) -> RunOwner:
        """The user and the session."""
        return self.turn.owner

    @property
    def outermost(self) -> RunState:
        """The run that received the user's prompt: the outermost one."""
        return self.around[0] if self.around else self

    def begin(self, ctx: RunContext[Any], last: LastTurns) -> None:
        """Collect the user's texts before the first request: in the history and in the prompt."""
        self._prompt = prompt_words(ctx.prompt)
        before = unanswered(ctx.messages)
        words = words_in(ctx.messages)
        answered = words[: len(words) - len(before)]
        prompt = () if self._prompt is None else (self._prompt,)
        self.turn.place = digest(*(text for pair in exchanges(ctx.messages) for text in pair))
        self.turn.heard = (*(words.text for words in before), *prompt)
        if self.around:  # another agent wrote its prompt
            return
        self._prompt_place.content = self._prompt or ""
        self.history = tuple(ctx.messages)
        self.turn.conversation = ctx.conversation_id or self.turn.id
        self.turn.answered = len(answered)
        last.begin(self.turn, answered, before, self._prompt or "")
        self._new_prompts(ctx.messages, ctx)
        self._answered = {*self._known} - {id(words.part) for words in before}
        if self._prompt is not None:
            self._unknown(ModelRequest([self._prompt_place]))
        if self.records:
            last.opened(self.turn)
            _RUNS.add(self)

    def collect(self, messages: Sequence[ModelMessage], ctx: RunContext[Any]) -> None:
        """Add texts that the user sent during the run, in its messages or in the queue for them."""
        if self.around:
            return
        words = [
            text
            for message, news in self._new_prompts(messages, ctx)
            if message.run_id == ctx.run_id and not returns_tools(message)
            for text in said(news)
        ]
        if self._prompt is not None and words:  # the prompt is counted already
            form = self._prompt if self._prompt in words else words[0]
            words.remove(form)
            self._rewrite([self._prompt], [form])
        self._prompt = None
        self.turn.texts += map(_Text, words)
        self.collect_enqueued(ctx)

    def collect_enqueued(self, ctx: RunContext[Any]) -> None:
        """Add texts of enqueued messages that are not part of the conversation yet."""
        for message in () if self.around else queued_messages(ctx):
            words = said(self._unknown(message))
            self.turn.texts += [_Text(text, queued=message) for text in words]

    def remove_dequeued(self, ctx: RunContext[Any]) -> None:
        """Remove texts of enqueued messages that the host took back before a request took them."""
        waiting = {id(one) for one in queued_messages(ctx)}
        self.turn.texts = [
            one
            for one in self.turn.texts
            if one.is_submitted
            or one.queued is None
            or id(one.queued) in waiting
            # The framework sets the run of a message when it takes it for a request.
            or one.queued.run_id is not None
        ]

    def ending(self, ctx: RunContext[Any], result: AgentRunResult[Any] | None) -> Ending:
        """Collect the user's last texts, and return what the agent did in the run."""
        messages = self.messages
        if messages is None:  # a realtime session, or a run that ended before its first request
            # The context of an abandoned session lacks the last messages.
            messages = ctx.messages if result is None else result.all_messages()
        # Messages that were enqueued too late for a request of this run.
        self.collect(messages, ctx)
        self.remove_dequeued(ctx)
        output: object = None if result is None else result.output
        is_paused = isinstance(output, PAUSED)
        run, tools = ctx.run_id, self.output_tools
        steps = steps_in(messages, run, is_paused=is_paused, output_tools=tools)
        if is_paused:
            output = None
        answer = answered(messages, run, output, is_parsed=self.is_parsed, output_tools=tools)
        return Ending(answer, steps, is_paused)

    @property
    def earlier(self) -> list[tuple[str, str]]:
        """The exchanges before the turn, as many as the extractor reads."""
        earlier = exchanges(self.history, self.output_tools)
        return earlier[-self.diary.context_turns or len(earlier) :]

    @property
    def in_messages(self) -> tuple[str, ...]:
        """The user's texts since the last answer, in each form that messages may have them."""
        return tuple(form for one in self.turn.texts for form in one.forms)

    def parts(self) -> list[tuple[ModelRequestPart, str]]:
        """Return the parts of messages with the texts that the run has submitted, unless they have no time."""
        own = [part for one, (part, _) in self._known.items() if one not in self._answered]
        timed = [part for part in own if time_of(part) is not None]
        return [(part, text) for part in timed for text in said([part]) if text in self.in_messages]

    def _new_prompts(
        self, messages: Sequence[ModelMessage], ctx: RunContext[Any]
    ) -> list[tuple[ModelMessage, list[ModelRequestPart]]]:
        """Return messages with their new parts, which count as read from now on."""
        present = {id(part) for message in messages for part in prompts_in(message)}
        # If another capability replaced a part or its message, the replacement has the time of one of them.
        gone: dict[datetime | None, list[str]] = {
            time: said([part])
            for identity, (part, message) in self._known.items()
            if identity not in present
            for time in (time_of(part), message.timestamp)
            if time is not None
        }
        by_time = {
            id(part): gone.get(time_of(part), gone.get(message.timestamp))
            for message in messages
            for part in prompts_in(message)
            if id(part) not in self._known
        }
        # If it made both anew, the replacement has the same words or the same place.
        now = [part for message in messages for part in prompts_in(message) if said([part])]
        queued = {id(part) for message in queued_messages(ctx) for part in prompts_in(message)}
        waiting = [one for one in self._seen if one in queued]
        replaced = self._replaced(
            [self._known[one][0] for one in self._seen if one not in queued],
            now,
            [by_time.get(id(part)) or said([part]) for part in now],
        )
        news: list[tuple[ModelMessage, list[ModelRequestPart]]] = []
        for message in messages:
            new: list[ModelRequestPart] = []
            for part in self._unknown(message):
                old = replaced.get(id(part))
                before = by_time[id(part)]
                if before is None and old is not None:
                    before = said([old])
                if before is None:
                    new.append(part)
                else:
                    self._rewrite(before, said([part]))
                if old is self._prompt_place:
                    self._prompt = None
            news.append((message, new))
        self._seen = [*map(id, now), *waiting]
        return news

    @staticmethod
    def _replaced(
        before: Sequence[ModelRequestPart],
        now: Sequence[ModelRequestPart],
        texts: Sequence[Collection[str]],
    ) -> dict[int, ModelRequestPart]:
        """Return the earlier part with the words of each part, or at its place between parts with the same words.

        Args:
            before: The parts that were read last, and enqueued ones that a request took since.
            now: The parts of the messages.
            texts: What each of them said before if this is known, or else says now.
        """
        old, new = [tuple(said([part])) for part in before], [tuple(each) for each in texts]
        # Most requests only add messages or drop the oldest ones. Comparing the others takes quadratic time.
        gone = next((number for number, one in enumerate(before) if now and one is now[0]), 0)
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(old[gone:], new, strict=False))
        same = sum(1 for _ in pairs)
        rest = gone + same
        replaced = {id(part): one for one, part in zip(before[gone:rest], now[:same], strict=True)}
        matcher = SequenceMatcher(None, old[rest:], new[same:], autojunk=False)
        for step, i, j, k, m in matcher.get_opcodes():
            if step in {"equal", "replace"} and m - k <= j - i:  # the oldest ones may be gone
                last = before[rest:][j - (m - k) : j]
                replaced.update(
                    (id(part), one) for one, part in zip(last, now[same:][k:m], strict=True)
                )
        return replaced

    def _rewrite(self, before: Collection[str], after: Collection[str]) -> None:
        """Record another form of one of the user's texts since the last answer."""
        for one in self.turn.texts:
            if not {*before}.isdisjoint(one.forms):
                one.rewritten += [form for form in after if form not in one.forms]
                return

    def _unknown(self, message: ModelMessage) -> list[ModelRequestPart]:
        parts = [part for part in prompts_in(message) if id(part) not in self._known]
        self._known.update((id(part), (part, message)) for part in parts)
        self._seen += [id(part) for part in parts if said([part])]
        return parts


def _take(texts: list[_Text], text: str, id_: str = "") -> bool:
    """Remove the first text with a form, unless both have ids that differ, and return whether there was one."""
    same = (one for one in texts if text in one.forms and (not id_ or one.id in {"", id_}))
    found = next(same, None)
    if found is not None:
        texts.remove(found)
    return found is not None


class _Sent(NamedTuple):
    """The user of a run, and the texts that the run submitted."""

    user: str
    said: tuple[str, ...] = ()


class TakenWords(NamedTuple):
    """The texts that a run submits."""

    submission: str
    """The id of the submit, which is the same in a replay."""
    texts: tuple[str, ...]
    marked: Sequence[_Text]
    """The texts of all runs that count as submitted with these."""


class LastTurns:
    """The last turn of each session and the users of recent runs, so that no run submits texts of another again."""

    def __init__(self) -> None:
        self._turns: Recent[RunOwner, UserTurn] = Recent(_SESSIONS_KEPT)
        self._sent: Recent[tuple[str | None, ...], _Sent] = Recent(_SESSIONS_KEPT)
        self._submitted: Recent[str, tuple[str, ...]] = Recent(_SESSIONS_KEPT)  # by submission
        self._open: WeakSet[UserTurn] = WeakSet()
        self._lock = threading.Lock()

    def enter(self, memory: str, user: str, ctx: RunContext[Any]) -> None:
        """Record the user of a run that begins.

        Args:
            memory: The id of the toolset or the capability.
            user: The user of the run.
            ctx: The run.

        Raises:
            IdentifierError: The run continues a turn that another user began, for example after an approval.
        """
        response = resumed(ctx.messages, ctx.prompt)
        began = None if response is None else self._of_run(memory, response)
        if began is not None and began.user != user:
            raise IdentifierError(OTHERS_TURN)
        with self._lock:
            self._sent.keep((memory, ctx.conversation_id, ctx.run_id), _Sent(user))

    def _sender(self, memory: str, words: Words) -> _Sent | None:
        """Return the record of the run that sent a text of the history, or None."""
        if len(words.message.parts) > 1:  # messages of several runs may have been joined
            sent = self._sent.get((memory, mark_of(words.part, words.text)))
            if sent is not None:
                return sent
        return self._of_run(memory, words.message)

    def _of_run(self, memory: str, message: ModelMessage) -> _Sent | None:
        """Return the record of the run that a message belongs to, or None."""
        conversation, run = ids_of(message)
        return None if run is None else self._sent.get((memory, conversation, run))

    def begin(
        self, turn: UserTurn, answered: Sequence[Words], before: Sequence[Words], prompt: str
    ) -> None:
        """Set the texts of a turn at the start of its run, and mark those that were submitted already.

        Args:
            turn: The turn.
            answered: The answered texts of the history.
            before: The unanswered ones, which may have texts of other users.
            prompt: The prompt. If it repeats a text of a failed run, the run is a retry. If it repeats a text of an
                answered run, the user sent it again.
        """
        for words, sender in self._own(turn, before):
            # A message that the host made has no run, but stays at its place in the conversation.
            sent = sender or self._sent.get((*turn.spot, mark_of(words.part, words.text)))
            is_sent = sent is not None and words.text in sent.said
            text = _Text(words.text, id_in_interface(words), is_before=True, is_submitted=is_sent)
            turn.texts.append(text)
        if prompt:
            turn.texts.append(_Text(prompt))
        last = self._turns.get(turn.owner)
        if last is None or (last.is_answered and last.place != turn.place):
            return
        left = [*last.texts]
        # Words that were answered since are in the history, so the prompt does not repeat them.
        for words in answered[last.answered :]:
            _take(left, words.text)
        for one in turn.texts:
            if one.is_submitted:
                _take(left, one.text)
        # In any order: some of the texts were sent while the earlier run went on.
        for one in turn.texts:
            if one.is_submitted:
                continue
            if not (one.is_before or last.is_failed):
                break
            if not _take(left, one.text, "" if last.is_failed else one.id):
                break
            one.is_submitted = True

    def _own(self, turn: UserTurn, before: Sequence[Words]) -> Iterator[tuple[Words, _Sent | None]]:
        """Yield the unanswered texts of a history with their senders, without those of other users."""
        with self._lock:
            turns = [*self._open, *(one for one in self._turns.values() if not one.is_answered)]
        sent = {ids_of(words.message)[1] for words in before}
        others = [
            text
            for one in turns
            if one.owner.user != turn.owner.user
            if one.id != turn.id
            or one.memory == turn.memory  # else it belongs to another memory of the agent
            if one.id in sent or (one.conversation, one.place) == (turn.conversation, turn.place)
            for text in one.texts
        ]
        for words in before:
            sender = self._sender(turn.memory, words)
            # A message that the host made has no run.
            mark = mark_of(words.part, words.text)
            known = sender or self._sent.get((turn.memory, turn.conversation, mark))
            is_others = _take(others, words.text, id_in_interface(words))
            if not is_others and (known is None or known.user == turn.owner.user):
                yield words, sender

    def opened(self, turn: UserTurn) -> None:
        """Record that a run with a turn has begun."""
        with self._lock:
            self._open.add(turn)

    def take_words(self, turn: UserTurn, submission: str) -> TakenWords:
        """Return the texts that a run has to submit now, and mark them as submitted for all runs that also have them.

        These are agents in its tools, and overlapping runs with the same texts in their history.

        Args:
            turn: The turn.
            submission: The id of the submit. A replay in this process takes the same texts again, because Prefect finds a
                recorded result by the arguments of the call.
        """
        with self._lock:
            taken = [one for one in turn.texts if not one.is_submitted]
            marked = [*taken]
            for one in taken:
                one.is_submitted = True
            for other in self._open:
                if (other.owner, other.place) != (turn.owner, turn.place):
                    continue
                for mine in taken:
                    for its in other.texts:
                        is_same = its.text == mine.text and (its.is_before or mine.is_before)
                        if is_same and not its.is_submitted:
                            its.is_submitted = True
                            marked.append(its)
                            break
            texts = tuple(one.text for one in taken)
            return TakenWords(submission, self._submitted.get(submission, texts), marked)

    def give_back(self, taken: TakenWords) -> None:
        """Record that a run could not submit its texts, so that another run with them does."""
        with self._lock:
            for one in taken.marked:
                one.is_submitted = False

    def end(self, turn: UserTurn) -> None:
        """Record that the run of a turn submits nothing any more."""
        with self._lock:
            self._open.discard(turn)

    def note(self, run: RunState, taken: TakenWords, *, is_answered: bool, is_paused: bool) -> None:
        """Record that the turn of a run was submitted; a paused one waits for tool results."""
        user = run.owner.user
        # A copy, because the user may send more during the run, if an agent in one of its tools has submitted the turn.
        turn = replace(
            run.turn,
            texts=[*run.turn.texts],
            is_answered=is_answered and not is_paused,
            is_failed=not is_answered,
        )
        with self._lock:
            self._submitted.keep(taken.submission, taken.texts)
            self._turns.keep(turn.owner, turn)
            self._sent.keep((turn.memory, turn.conversation, turn.id), _Sent(user, run.in_messages))
            for part, text in run.parts():
                mark = mark_of(part, text)
                for place in ((turn.memory,), (turn.memory, turn.conversation), turn.spot):
                    self._sent.keep((*place, mark), _Sent(user, (text,)))


_RUNS: WeakSet[RunState] = WeakSet()
_SECONDS_TO_END = 10
"""How long the exit of the interpreter waits for a run that ignores its cancellation."""


def _end_stopped_runs() -> None:
    """Cancel the runs whose event loop has stopped, such as an unclosed `run_stream_sync`; this records them."""
    here = os.getpid(), threading.get_ident()
    for run in list(_RUNS):
        task = run.task
        if task is None or task.done() or run.began_in != here:
            continue
        loop = task.get_loop()
        with suppress(Exception):  # a loop of another library may refuse
            if not (loop.is_running() or loop.is_closed()):
                task.cancel()
                loop.run_until_complete(asyncio.wait([task], timeout=_SECONDS_TO_END))


before_writers_close(_end_stopped_runs)


_AROUND: ContextVar[tuple[RunState, ...]] = ContextVar("tomldiary_runs_around", default=())
tell_within(PYDANTIC_AI, lambda: any(not run.is_over for run in _AROUND.get()))


@contextmanager
def within_tool(run: RunState | None) -> Generator[None]:
    """Treat runs that start in this block as started by a tool of `run`."""
    token = _AROUND.set(_AROUND.get() if run is None else (*_AROUND.get(), run))
    try:
        yield
    finally:
        _AROUND.reset(token)


def runs_around(diary: Diary, user: str) -> tuple[RunState, ...]:
    """Return the runs of the same user and memory whose tools are running this code, outermost first.

    A task that a tool started may outlive its run, for example to serve a chat.
    """
    place = memory_place(diary)
    return tuple(
        run
        for run in _AROUND.get()
        if not run.is_over and run.owner.user == user and memory_place(run.diary) == place
    )
