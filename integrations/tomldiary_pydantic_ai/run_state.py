"""What a capability keeps of one run: whose it is, and what the user said in it."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tomldiary.errors import WriterBusy
from tomldiary.runtime.lru import Recent
from tomldiary_pydantic_ai.conversation import (
    exchanges,
    prompt_words,
    returns_tools,
    said,
    unanswered,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelMessage

    from tomldiary.diary import Diary
    from tomldiary.writer.receipts import Turn
    from tomldiary.writer.writer import MemoryWriter
    from tomldiary_pydantic_ai.identity import RunOwner

__all__ = ["RunState", "UnansweredTurns", "hand_in", "outer_run", "within_tool"]

_PATIENCE = 0.02  # seconds between two tries while the writer's queue is full


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
        asyncio.get_running_loop().run_in_executor(None, _insist, writer, turn)


def _insist(writer: MemoryWriter, turn: Turn) -> None:
    while True:
        try:
            writer.submit_nowait(turn)
        except WriterBusy:
            time.sleep(_PATIENCE)
        else:
            return


_SESSIONS_KEPT = 4096


@dataclass
class RunState:
    """One run of one capability."""

    diary: Diary
    owner: RunOwner
    scope: str
    records: bool
    outer: RunState | None = None
    """The run in whose tool this one was started for the same user."""
    heard: list[str] = field(default_factory=list[str])
    """What the user said since the last answer; what an earlier run handed in is left out."""
    handed_in: Sequence[str] = ()
    """What the user said since the last answer, and an earlier run handed in."""
    earlier: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    messages: list[ModelMessage] | None = None
    """The run's own list, which is not to be had any more when the run has been cut off."""
    was_told: bool = False
    """Whether the model has been told the memory, or did not have to be."""
    _known: list[object] = field(default_factory=list[object])
    """Parts of messages whose words are heard already."""
    _prompt: str | None = None

    def begin(self, ctx: RunContext[Any], handed_in: Sequence[str]) -> None:
        """Note what the user said before the first request: in the history and in the prompt."""
        if self.outer is not None:  # its prompt is the words of the agent that started it
            self.heard = list(self.outer.heard)
            return
        said_now = unanswered(ctx.messages)
        if words := prompt_words(ctx.prompt):
            said_now.append(words)
        count = len(handed_in)
        if count and said_now[:count] == list(handed_in):
            self.handed_in, said_now = handed_in, said_now[count:]
        self.heard = said_now
        self.earlier = exchanges(ctx.messages)[-self.diary.context_turns or len(ctx.messages) :]
        self._known += [part for message in ctx.messages for part in message.parts]
        self._prompt = words

    def hear(self, messages: Iterable[ModelMessage]) -> None:
        """Add what the user said while the run went on: messages that were enqueued."""
        for message in messages:
            news = [part for part in message.parts if not any(part is one for one in self._known)]
            self._known += news
            if self.outer is not None or returns_tools(message):
                continue
            for words in said(news):
                if words == self._prompt:
                    self._prompt = None  # the prompt as a message; a second time it was enqueued
                else:
                    self.heard.append(words)


class UnansweredTurns:
    """What runs without an answer handed in, so that the next run of the session does not repeat it."""

    def __init__(self) -> None:
        self._texts: Recent[tuple[str, str], tuple[str, ...]] = Recent(_SESSIONS_KEPT)
        self._lock = threading.Lock()

    def of(self, owner: RunOwner) -> tuple[str, ...]:
        """Return the texts that were handed in for a session and not answered."""
        return self._texts.get(owner, ())

    def note(self, run: RunState, *, is_answered: bool) -> None:
        """Note that the turn of a run was handed in."""
        with self._lock:
            self._texts.pop(run.owner, None)
            if not is_answered:
                self._texts.keep(run.owner, (*run.handed_in, *run.heard))


_AROUND: ContextVar[tuple[RunState, ...]] = ContextVar("tomldiary_runs_around", default=())


@contextmanager
def within_tool(run: RunState) -> Generator[None]:
    """Know runs that are started in here as those of a tool of this run."""
    token = _AROUND.set((*_AROUND.get(), run))
    try:
        yield
    finally:
        _AROUND.reset(token)


def outer_run(diary: Diary, user: str) -> RunState | None:
    """Return the run of the same user's diary in whose tool the code runs; None outside of any."""
    for run in reversed(_AROUND.get()):
        if run.owner.user == user and run.diary.engine.backend is diary.engine.backend:
            return run
    return None
