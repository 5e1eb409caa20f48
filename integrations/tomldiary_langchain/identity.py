"""Reads the user and the session of a run from LangChain; the core decides which source has precedence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig, ensure_config

from tomldiary.agents.delegation import places_in
from tomldiary.agents.identity import (
    field_of,
    given,
    kept_thread,
    named_checkpoint,
    saved_user,
    session_of,
    user_of,
)
from tomldiary.agents.submission import errors_logged
from tomldiary.agents.turn_messages import memory_place
from tomldiary.logging import get_logger

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

    from tomldiary.diary import Diary

Who = str | Callable[[RunnableConfig], str | None] | None
"""An id; a function of the run's config that returns one; or None to look it up in the run."""
AgentWho = str | Callable[[Any, Any], str | None] | None
"""An id; a function of an agent's state and `Runtime` that returns one; or None to look it up."""


class _TurnAround(NamedTuple):
    """The turn whose tool calls the running code."""

    session: str
    places: Mapping[str, Any]
    """The places where its run may name a session, as `places_in` returns them."""


_turns: ContextVar[Mapping[tuple[object, str], _TurnAround]] = ContextVar(
    "tomldiary_langchain_turns", default=MappingProxyType({})
)
"""By memory and user."""
_HINT = (
    "Give user_id when you make the {what}, put a user_id in the context, or pass"
    ' config={{"configurable": {{"user_id": …}}}}.'
)
_logger = get_logger(__name__)
_OF_SESSION = "user_id", "session_id"
_CHECKPOINTS = 32  # the number that is searched for the sender of a message


def follow_runs() -> None:
    """Follow all runs from now on: `resolve_user` needs to know the runs around a run."""
    with suppress(ImportError):  # without LangGraph, no run has a context
        from tomldiary_langchain.endings import endings  # noqa: PLC0415 - LangChain's core does not need it

        endings()


def resolve_user(explicit: Who, config: RunnableConfig) -> str:
    """Return the user: given explicitly, authenticated by the server, in the context, or in the config.

    Raises:
        IdentifierError: None of them names a user, a name is blank or not text, or context or config name
            another user than the authenticated one.
    """
    hint = _HINT.format(what="retriever or the tools")
    named = given("user", explicit, config)
    around = ensure_config().get("configurable")
    return user_of(named, hint=hint, around=around, **_places(config, _context(config), "user_id"))


@contextmanager
def within_turn(diary: Diary, user: str, session: str, context: Any) -> Generator[None]:
    """Record for the block, in which a tool is called, that it is part of a turn, whose run has a context."""
    turn = _TurnAround(session, _places(None, context, *_OF_SESSION))
    token = _turns.set({**_turns.get(), (memory_place(diary), user): turn})
    try:
        yield
    finally:
        _turns.reset(token)


def session_within(diary: Diary, user: str, named: str) -> str:
    """Return the session of a run that names one, or "".

    In a tool of a turn of the user it is that of the turn, unless the run names another one than the run of the turn.
    """
    turn = _turns.get().get((memory_place(diary), user))
    if turn is None:
        return named
    return turn.session if named in ("", session_of(None, **turn.places)) else named


def resolve_session(explicit: Who, config: RunnableConfig, diary: Diary, user: str) -> str:
    """Return the session given explicitly, or that of `session_within`; "" if there is none.

    Raises:
        IdentifierError: A name is blank or not text.
    """
    chosen = given("session", explicit, config)
    named = session_of(chosen, **_places(config, _context(config), *_OF_SESSION))
    return session_within(diary, user, named) if chosen is None else named


def agent_user(explicit: AgentWho, state: Any, runtime: Runtime[Any]) -> str:
    """Return the user of an agent's run, with the sources and errors of `resolve_user`."""
    hint = _HINT.format(what="middleware")
    named = given("user", explicit, state, runtime)
    return user_of(named, hint=hint, **_places(agent_config(), runtime.context, "user_id"))


def agent_session(explicit: AgentWho, state: Any, runtime: Runtime[Any]) -> str:
    """Return the session of an agent's run: given explicitly, in the run, or its thread; else "".

    Raises:
        IdentifierError: A name is blank or not text.
    """
    named = given("session", explicit, state, runtime)
    return session_of(named, **_places(agent_config(), runtime.context, *_OF_SESSION))


def _places(config: RunnableConfig | None, context: Any, *names: str) -> dict[str, Any]:
    found = ensure_config(config)  # a bridge of another framework passes none
    return places_in(found, context, *names)


def _context(config: RunnableConfig | None) -> Any:
    """Return the context of the running graph, if any; None if `config` is of another run and names its user."""
    try:
        from langgraph.runtime import get_runtime  # noqa: PLC0415 - LangChain's core does not need it

        runtime = get_runtime()
    except (ImportError, RuntimeError, KeyError):
        return None
    settings = ensure_config(config).get("configurable", {})
    names_user = settings.get("user_id") or settings.get("langgraph_user_id")
    if names_user and all(each is not runtime for each in settings.values()):
        return None
    return getattr(runtime, "context", None)


def agent_config() -> RunnableConfig:
    """Return the config of the running graph."""
    from langgraph.config import get_config  # noqa: PLC0415 - LangChain's core does not need it

    return get_config()


def senders(config: RunnableConfig, user: str, ids: Collection[str]) -> dict[str, str]:
    """Return the user of each message that the run of another user saved in the graph's checkpoints, by id.

    Args:
        config: The config of the running graph.
        user: The user of the run. If only its context names this user, the result is empty.
        ids: The ids of the messages.
    """
    found, saver = _Senders(ids, _begin(config, user, ids)), _saver(config)
    with _saver_errors_logged():
        while found.place:
            found.read(saver.get_tuple(found.place))
    return found.others(user)


async def asenders(config: RunnableConfig, user: str, ids: Collection[str]) -> dict[str, str]:
    """Do what `senders` does without holding the event loop."""
    found, saver = _Senders(ids, _begin(config, user, ids)), _saver(config)
    with _saver_errors_logged():
        while found.place:
            found.read(await saver.aget_tuple(found.place))
    return found.others(user)


def _saver(config: RunnableConfig) -> Any:
    return config.get("configurable", {}).get("__pregel_checkpointer")


def _begin(config: RunnableConfig, user: str, ids: Collection[str]) -> Any:
    """Return the config of the checkpoint from which a run continues; None if the checkpoints cannot tell the senders.

    It is the newest one of the outermost graph, unless the run names one. Later ones then belong to other branches,
    whose users did not write the messages.
    """
    settings, metadata = config.get("configurable", {}), config.get("metadata") or {}
    thread = kept_thread(settings)
    # The metadata of a checkpoint have both.
    if not (ids and thread and saved_user({**settings, **metadata}) == user):
        return None
    place = {"thread_id": thread, "checkpoint_ns": ""}
    if named := named_checkpoint(settings):
        # LangGraph copies the id that the caller gave. `named` may be that of new input, which is not always saved yet.
        place["checkpoint_id"] = metadata.get("checkpoint_id", named)
    return {"configurable": place}


@contextmanager
def _saver_errors_logged() -> Generator[None]:
    """Log errors of the host's saver, and ignore that it cannot read; the run continues without the senders."""
    what = "the senders of earlier messages are not known"
    with errors_logged("ignore", what, _logger), suppress(NotImplementedError):
        yield


class _Senders:
    """The users of messages, by id, from the checkpoints of a thread, which are read from the newest to the oldest.

    Args:
        ids: The ids of the messages.
        place: The config of the newest checkpoint; None if none is read.
    """

    def __init__(self, ids: Collection[str], place: Any) -> None:
        self._ids = ids
        self.place = place
        """The config of the next checkpoint to read, or None."""
        self._left = _CHECKPOINTS
        self._found: dict[str, str] = {}
        self._continued: dict[str | None, str] = {}
        """The user whose run continued a checkpoint, by the id of the checkpoint."""

    def read(self, saved: Any) -> None:
        """Read a checkpoint, or None for one that is missing.

        The search ends at the first checkpoint that has messages but none of those that are searched.
        """
        self.place, self._left = None, self._left - 1
        if saved is None:
            return
        user, values = saved_user(saved.metadata), saved.checkpoint["channel_values"].values()
        held = set(_message_ids(values))
        own = held.intersection(self._ids)
        # A `DeltaChannel` keeps messages as writes on the checkpoint that the run continued.
        writer = self._continued.get(saved.checkpoint["id"])
        if writer is not None:
            written = set(_message_ids(value for _, _, value in saved.pending_writes or ()))
            self._found |= dict.fromkeys(written.intersection(self._ids), writer)
        self._found |= dict.fromkeys(own, user)
        parent = field_of(field_of(saved.parent_config, "configurable"), "checkpoint_id")
        self._continued[parent] = user
        # Without an id, a saver would return the newest checkpoint again.
        if parent and self._left and (own or not held):
            self.place = saved.parent_config

    def others(self, user: str) -> dict[str, str]:
        """Return the users other than the user of the run."""
        return {id_: by for id_, by in self._found.items() if by and by != user}


def _message_ids(values: Iterable[Any]) -> Iterator[str]:
    """Yield the ids of the messages in the fields of a state."""
    for value in values:
        held = getattr(value, "value", value)  # of an `Overwrite` or the snapshot of a channel
        for one in cast("list[Any]", held) if isinstance(held, list) else [held]:
            if isinstance(one, BaseMessage):
                yield str(one.id)
