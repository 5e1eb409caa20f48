"""Submits the turn of an agent's run to the agent's writer once, and waits until the turn is stored.

Several agents may work on one turn, and a run may be repeated. `SubmittedMessages` ensures that each message is
submitted once.
If the whole user was forgotten during the run, the turn is refused. The writer logs it, and the run does not fail.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

from tomldiary.agents.identity import (
    begins_again,
    current_place,
    is_resumed,
    kept_thread,
    named_checkpoint,
)
from tomldiary.agents.options import writer_of
from tomldiary.agents.turn_messages import Spoken, digest, digested, exchange_of, steps_of
from tomldiary.errors import Forgotten, cause_of
from tomldiary.logging import tell
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.runtime.lru import Recent
from tomldiary.writer.writer import MemoryWriter

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Container, Generator, Iterable, Sequence

    from tomldiary.diary import Diary
    from tomldiary.extraction.context import Turn
    from tomldiary.writer.receipts import Receipt

_KNOWN = 16_384  # the number of messages and turns that are remembered
_shared: WeakValueDictionary[int, MemoryWriter] = WeakValueDictionary()
"""The last shared writer by the id of its diary. A writer holds its diary, so no other object has this id."""
# Reentrant, because the garbage collector may end a run, whose turn is then submitted, at any time.
_making = fork_safe(threading.RLock())


class AgentWriter:
    """The writer that an agent was given, or the one that all agents with the same `Diary` object share.

    Args:
        given: The writer; None is the shared one, which is made if there is none.
        diary: The diary of the agent.

    Raises:
        InvalidValue: `given` is not a writer, or it writes to another storage.
    """

    def __init__(self, given: MemoryWriter | None, diary: Diary) -> None:
        self._diary = diary
        self._is_shared = given is None or given is _shared.get(id(diary))
        self._last = self._shared_one() if given is None else writer_of(given, diary)

    @property
    def current(self) -> MemoryWriter:
        """The writer; of shared ones, the one that was opened last by any agent."""
        if self._is_shared:
            self._last = _shared.get(id(self._diary), self._last)
        return self._last

    async def submit_turn(self, turn: Turn) -> Receipt:
        """Do what `MemoryWriter.submit_turn` does, with a new writer if another agent closes the shared one."""
        writer = self._open()
        try:
            return await writer.submit_turn(turn)
        except RuntimeError:
            if self._open() is writer:
                raise
        return await self.submit_turn(turn)

    def submit_nowait(self, turn: Turn) -> Receipt:
        """Do what `MemoryWriter.submit_nowait` does, as in `submit_turn`."""
        return self._submitted(lambda writer: writer.submit_nowait(turn))

    def submit_later(self, turn: Turn) -> Receipt:
        """Do what `MemoryWriter.submit_later` does, as in `submit_turn`."""
        return self._submitted(lambda writer: writer.submit_later(turn))

    def _submitted(self, submit: Callable[[MemoryWriter], Receipt]) -> Receipt:
        writer = self._open()
        try:
            return submit(writer)
        except RuntimeError:
            if self._open() is writer:
                raise
        return self._submitted(submit)

    def _open(self) -> MemoryWriter:
        # A writer that is made while the interpreter ends loses its turns without a word.
        if self._is_shared and not self._last.is_running and not sys.is_finalizing():
            self._last = self._shared_one()
        return self._last

    def _shared_one(self) -> MemoryWriter:
        with _making:
            found = _shared.get(id(self._diary))
            if found is None or not found.is_running:
                # A run may make the agent or open the writer. The context of this run would be that of all later turns,
                # for example with the callbacks of its user.
                found = Context().run(MemoryWriter, self._diary)
                _shared[id(self._diary)] = found
            return found


async def submit_turn(writer: MemoryWriter | AgentWriter, turn: Turn) -> None:
    """Submit a turn; on return it is in the writer's journal, unless its run was cancelled.

    While the queue is full, this waits. The turn of a cancelled run waits in memory instead.

    Raises:
        RuntimeError: The writer is closed.
        DiaryError: The turn cannot be stored.
    """
    if not turn.operation_id:
        turn = replace(turn, operation_id=uuid4().hex)
    if turn.status == "cancelled":
        writer.submit_later(turn)
        return
    try:
        with suppress(Forgotten):
            await writer.submit_turn(turn)
    except asyncio.CancelledError:
        # The cancellation withdrew the turn, or came too late; then the operation id makes both submits one turn.
        writer.submit_later(turn)
        raise


def store_turn(writer: MemoryWriter | AgentWriter, turn: Turn) -> None:
    """Submit a turn from sync code; on return it is in the writer's journal.

    Raises:
        WriterBusy: The queue is full.
        RuntimeError: The writer is closed.
        DiaryError: The turn cannot be stored.
    """
    with suppress(Forgotten):
        writer.submit_nowait(turn).wait_stored()


def is_rolled_back(error: BaseException) -> bool:
    """Return whether a LangGraph server cancelled a run in order to delete it and its checkpoints."""
    return any(type(each).__name__ == "UserRollback" for each in error.args)


@contextmanager
def errors_logged(
    on_error: str,
    what: str,
    logger: logging.Logger,
    *,
    always_raised: type[Exception] | tuple[()] = (),
) -> Generator[None]:
    """With `on_error="ignore"`, log an error of the block as `what` instead of raising it.

    That the user was forgotten is always logged.
    """
    try:
        yield
    except always_raised:
        raise
    except Exception as error:
        if on_error == "raise" and not isinstance(error, Forgotten):
            raise
        tell(logger, f"{what}: {cause_of(error)}")


class _Read(NamedTuple):
    """The messages at a place of a thread as its last run read them."""

    ids: tuple[str, ...]
    """Their first ids."""
    checkpoint: str
    tasks: frozenset[str]
    """The tasks of the checkpoint that read them."""


class SubmittedMessages:
    """The messages that this process submitted to a memory, so that each is submitted once. Thread-safe.

    Messages without an id are always new. The last 16,384 messages and turns are remembered.
    """

    def __init__(self) -> None:
        # Reentrant, because the garbage collector may end a run, whose turn is then submitted, at any time.
        self._guard = fork_safe(threading.RLock())
        self._known: Recent[str, None] = Recent(_KNOWN)
        self._first_ids: Recent[str, dict[str, _Read]] = Recent(_KNOWN)
        """The messages at a place by user, in the order of the runs."""
        self._replayed: Recent[str, str] = Recent(_KNOWN)
        """The first id of a message by the id that a replay gave it."""
        self._attempts: Recent[str, tuple[str, tuple[str, ...]]] = Recent(_KNOWN)
        """Session and ids of a turn by each run that it is in."""
        self._owners: Recent[str, tuple[str, str, bool]] = Recent(_KNOWN)
        """The user who wrote a message, the checkpoint at which it was first seen or answered, and whether it was answered."""
        self._sayers: Recent[str, tuple[dict[str, None], tuple[str, str]]] = Recent(_KNOWN)
        """The users who wrote a text in a thread, and the place at which it was last seen."""
        self._epochs: Recent[str, int] = Recent(_KNOWN)

    def first_ids(
        self, settings: Any, user: str, session: str, before: Sequence[str], asked: Sequence[Spoken]
    ) -> tuple[str, ...]:
        """Return the first ids of messages: a replay of a persisted thread gives the same input new ids.

        Args:
            settings: LangGraph's settings of the run.
            user: The user of the run; "" if it names none. A replay may be of another user, who wrote the messages.
            session: The session.
            before: Identifies the place in the thread, for example by the texts before it. A thread that lost its
                old messages has the same place again. Therefore only a replay counts as a repetition.
            asked: The messages.
        """
        ids, thread = tuple(one.id for one in asked), kept_thread(settings)
        if not (thread and all(ids)):
            return ids
        key = digest(session, thread, *before, exchange_of(asked)[0])
        of_message = [digest(session, thread, one) for one in ids]
        with self._guard:
            by_user = self._first_ids.get(key, {})
            last = next(reversed(by_user.values()), _Read((), "", frozenset()))
            read = by_user.get(user, last)
            known, (checkpoint, task) = read.ids, current_place(settings)
            if _is_replay(settings, read.checkpoint, read.tasks) and len(known) == len(ids):
                for each, first in zip(of_message, known, strict=True):
                    self._replayed.keep(each, first)  # the replay may be resumed, or replayed too
            else:
                known = tuple(map(self._replayed.get, of_message, ids))
            # Several tasks of a run may read the messages. If it is resumed, any of them may be the first to repeat.
            is_same_run = known == read.ids and checkpoint == read.checkpoint
            tasks = read.tasks | {task} if is_same_run else frozenset({task})
            others = {who: one for who, one in by_user.items() if who != user}
            self._first_ids.keep(key, {**others, user: _Read(known, checkpoint, tasks)})
        return known

    def first_attempt(
        self,
        attempt: tuple[Iterable[str], Iterable[tuple[str, str]]],
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
        said = digest(user, named, exchange_of(asked)[0])
        with self._guard:
            for run, own in failed:
                # Only one attempt follows: equal words after it are said again.
                known = self._attempts.pop(digest(run, said), None)
                known = self._attempts.get(digest(own, said), known)
                if known is not None and len(known[1]) == len(turn[1]):
                    turn = known
            for one, first in zip(asked, turn[1], strict=False):
                if self.has(user, turn[0], one._replace(id=first)):  # the attempt may be resumed
                    self._known.keep(_key(user, turn[0], one), None)
            for run in around:
                self._attempts.keep(digest(run, said), turn)
        return turn

    def owner(
        self, settings: Any, where: str, noted: str | None, message: Spoken, user: str
    ) -> str:
        """Return the user who wrote an unanswered message of a persisted thread.

        This is the user in the checkpoint, or the one recorded by this process, or the user of the run.

        Args:
            settings: LangGraph's settings of the run.
            where: The memory that reads the thread.
            noted: The user that the checkpoint names; None if it names none.
            message: The message.
            user: The user of the run.
        """
        key = _place(settings, where, message)
        if not key:
            return user if noted is None else noted
        now = current_place(settings)[0]
        with self._guard:
            if key not in self._owners and noted is None:
                user = self._sayer(settings, where, message, user)
            first, place, is_over = self._owners.get(key, (user, now, False))
            if place and begins_again(settings, place):
                first, is_over = user, True
            owner = first if noted is None else noted
            return self._owners.keep(key, (owner, now if is_over else place, False))[0]

    def _sayer(self, settings: Any, where: str, message: Spoken, user: str) -> str:
        """Return the user who wrote a message with an unknown id; a replay assigns new ids, so its text is compared."""
        key = digest(where, kept_thread(settings), "", message.text)
        sayers, seen_at = self._sayers.get(key, ({}, ("", "")))
        if user not in sayers and _is_replay(settings, seen_at[0], {seen_at[1]}):
            return next(reversed(sayers))
        self._sayers.keep(key, ({**sayers, user: None}, current_place(settings)))
        return user

    def answered(self, settings: Any, where: str, messages: Iterable[Spoken]) -> None:
        """Record that messages were answered; a thread that begins again may have them from other users."""
        now = current_place(settings)[0]
        with self._guard:
            for key in (_place(settings, where, each) for each in messages):
                if key in self._owners:
                    self._owners.keep(key, (self._owners[key][0], now, True))

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

    def note(self, user: str, session: str, messages: Iterable[Spoken]) -> None:
        """Record that another process submitted messages of a user's session."""
        with self._guard:
            for one in messages:
                self._known.keep(_key(user, session, one), None)

    @contextmanager
    def once(
        self,
        turn: Turn,
        messages: Sequence[Spoken],
        as_said: Iterable[Spoken] = (),
        *,
        diary: Diary,
        outlives_cancellation: bool = False,
    ) -> Generator[Turn | None]:
        """Yield a turn with the texts and steps of its new messages, to be submitted in the block; None if there are none.

        If the block raises, the messages count as not submitted. Other threads do not wait for it.

        Args:
            turn: The turn without texts. It has no new messages if a turn with its operation id was submitted. A part
                of the messages gets another id; "" is none.
            messages: The messages of the turn; their ids are unique in the session.
            as_said: The user's messages in all their forms, for example before redaction. Another run may read one again.
                A message is not new if one of its forms was submitted.
            diary: The diary that stores the turn.
            outlives_cancellation: Whether the block submits the turn also if it is cancelled, as `submit_turn` does.
        """
        user, session, operation = turn.user_id, turn.session_id, turn.operation_id
        is_over = turn.status == "completed"
        keys = [_key(user, session, one) if one.id else "" for one in messages]
        forms = [(one.id, _key(user, session, one)) for one in as_said if one.id]
        whole = digest(user, operation) if operation else ""
        with self._guard:
            is_known = whole in self._known
            submitted = {id_ for id_, key in forms if key in self._known}
            noted = {
                key
                for key in (whole, *keys, *(key for _, key in forms))
                if key and key not in self._known
            }
            for key in () if is_known else noted:
                self._known.keep(key, None)
        if is_known:
            yield None
            return
        new = {
            key
            for one, key in zip(messages, keys, strict=True)
            if key in noted and not (one.by == "user" and one.id in submitted)
        }
        part = _new_part(messages, keys, new)
        # A tool's result is no answer if the answer behind it is known.
        said = exchange_of(part, is_over=is_over and part[-1:] == messages[-1:])
        try:
            if operation and said != exchange_of(messages, is_over=is_over):
                operation = digest(operation, *digested(diary, said))
            if not any(said):
                yield None
                return
            user_msg, answer = said
            yield replace(
                turn,
                user_msg=user_msg,
                assistant_msg=answer,
                operation_id=operation,
                steps=steps_of(part),
            )
        except BaseException as error:
            if not (outlives_cancellation and isinstance(error, asyncio.CancelledError)):
                with self._guard:
                    for key in noted:
                        self._known.pop(key, None)
            raise


def with_ids(turn: Sequence[Spoken], ids: Sequence[str], others: Sequence[str]) -> list[Spoken]:
    """Return the messages of a turn with `ids` replaced by `others`."""
    other = dict(zip(ids, others, strict=True))
    return [one._replace(id=other.get(one.id, one.id)) for one in turn]


def _new_part(messages: Sequence[Spoken], keys: Sequence[str], new: Container[str]) -> list[Spoken]:
    """Return the new messages of a turn, and all answers behind the first new message of the user.

    LangChain's cache of models gives an answer again, with its id, to another message of the user.

    Args:
        messages: The messages of the turn.
        keys: Their keys, in the same order; "" for a message without an id, which is always new.
        new: The keys of messages that were not submitted.
    """
    asked = (n for n, key in enumerate(keys) if key in new and messages[n].by == "user")
    answers_from = next(asked, len(messages))
    return [
        one
        for n, (one, key) in enumerate(zip(messages, keys, strict=True))
        if not key or key in new or (n > answers_from and one.by != "user")
    ]


def _key(user: str, session: str, message: Spoken) -> str:
    """Return the key by which `SubmittedMessages` knows a message."""
    return digest(user, session, message.id, message.text)


def _is_replay(settings: Any, seen_at: str, tasks: Container[str]) -> bool:
    """Return whether a run repeats one whose tasks read its words: it began at or before it, or resumes one of them."""
    now, task = current_place(settings)
    is_repeated = "" < named_checkpoint(settings) <= seen_at < now
    return is_repeated or (seen_at == now and task in tasks and is_resumed(settings))


def _place(settings: Any, where: str, message: Spoken) -> str:
    thread = kept_thread(settings)
    return digest(where, thread, message.id) if thread and message.id else ""
