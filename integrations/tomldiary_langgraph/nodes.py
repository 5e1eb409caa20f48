"""Graph nodes: recall before the model, submit or extract after it.

    builder.add_node("recall", recall_node(diary))
    builder.add_node("submit", submit_node(writer))
    builder.add_edge(START, "recall")  # … recall → model → submit

Each node works sync and async, and with a state that is a TypedDict, a dataclass or a pydantic model. It takes user
and session from the run (see `identity`), never from the output of a model.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, cast
from uuid import uuid4

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.types import Command

from tomldiary.agents.delegation import RunTree, register_tree
from tomldiary.agents.identity import checked_id, field_of, kept_thread, saves_checkpoints
from tomldiary.agents.options import check_writer, checked_episodes, checked_text, one_of
from tomldiary.agents.shown_memory import ShownMemory
from tomldiary.agents.submission import (
    SubmittedMessages,
    errors_logged,
    store_turn,
    submit_turn,
    with_ids,
)
from tomldiary.agents.turn_messages import Spoken, digest, digested, exchange_of, of_memory
from tomldiary.diary import Diary, diary_of
from tomldiary.errors import IdentifierError, InvalidValue
from tomldiary.extraction.context import Turn
from tomldiary.logging import get_logger, tell
from tomldiary.runtime.async_bridge import in_thread, run_coroutine
from tomldiary_langgraph.identity import (
    Speaker,
    Who,
    nodes_of,
    resolve_session,
    resolve_user,
    run_id_of,
    session_here,
    speakers_of,
    state_channels,
    task_here,
)
from tomldiary_langgraph.store import DiaryStore
from tomldiary_langgraph.turns import (
    CurrentTurn,
    MemoryChannel,
    Recalled,
    asked_by_in,
    current_turn,
    ended_by,
    ended_in,
    thread_of,
    unanswered,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Generator, Mapping
    from uuid import UUID

    from tomldiary.writer.writer import MemoryWriter

Node = RunnableLambda[Any, dict[str, Any]]
OnError = Literal["raise", "ignore"]
_logger = get_logger(__name__)


def recall_node(
    diary: Diary | str | os.PathLike[str],
    *,
    user_id: Who = None,
    state_key: str = "memory",
    messages_key: str | None = "messages",
    max_tokens: int = 1500,
    token_counter: Callable[[str], int] | None = None,
    on_error: OnError = "raise",
) -> Node:
    """Return a node that writes the memory of the user into the state, as text for a model.

    Place it at the start of the graph, so that it runs once per turn. The text is framed as data. Facts that match
    the last human message come first. Declare the state's field as `Memory`: a field of type `str` is stored in
    checkpoints, where `forget` does not remove it. The node logs a warning for such a field, and for a state without
    the field.

    Args:
        diary: A diary, or a folder or an address, which gets the built-in preference table.
        user_id: The user, or a function of state and runtime; None looks it up in the run.
        state_key: The field for the text, which is "" if the memory is empty.
        messages_key: The field with the messages; None orders facts without a question.
        max_tokens: The budget of the text.
        token_counter: Counts tokens; None estimates them by script.
        on_error: If the memory cannot be read, "raise" fails the run, "ignore" logs the error and returns "".

    Raises:
        BackendError: `diary` is no diary, folder or address.
        InvalidValue: `diary` is a model or a graph, or an option has a value that is not listed here.
    """
    one_of("on_error", on_error, ("raise", "ignore"))
    shown = ShownMemory(max_tokens, token_counter, "prompt")
    checked_id("user_id", user_id, "state", "runtime")
    checked_text(state_key, "state_key")
    if messages_key is not None:
        checked_text(messages_key, "messages_key")
    memory = _diary(diary, "recall_node(diary)")
    submitted = of_memory(memory, SubmittedMessages)
    runs()  # sees what the node returns
    warned: set[str] = set()

    def asked_in(state: Any, config: RunnableConfig, user: str) -> list[Spoken]:
        if messages_key is None:
            return []
        thread = thread_of(state, messages_key, nodes_of(state_channels(config)))
        asked, place = unanswered(thread)
        session = session_here() or run_id_of(config)
        submitted.first_ids(config.get("configurable"), user, session, place, asked)
        return asked

    def user_here(state: Any, config: RunnableConfig) -> str:
        try:
            return resolve_user(user_id, state, config)
        except IdentifierError:
            with suppress(InvalidValue):
                asked_in(state, config, "")  # the run may be continued, and may be a replay
            raise

    def read(state: Any, config: RunnableConfig, user: str) -> dict[str, Any]:
        channels = state_channels(config) or {}
        _check_field(state_key, channels, config, warned)
        asked = asked_in(state, config, user)
        found = ""
        with _errors(on_error, "the memory could not be read"):
            submitted.begin(user, asked, memory.user(user).epoch)
            lines = shown.lines(memory.user(user), "", exchange_of(asked)[0])
            found = shown.text(lines, look_up="")  # the model may have no tool
        speakers = speakers_of(user_id, user, config)
        noted = asked_by_in(channels)
        owners = {
            _note_key(each, one): _owner(submitted, config, noted, one, each)
            for each in speakers
            for one in asked
            if one.id
        }
        is_kept = speakers and isinstance(channels.get(state_key), MemoryChannel)
        return {state_key: Recalled(found, owners) if is_kept else found}

    def recall(state: Any, config: RunnableConfig) -> dict[str, Any]:
        return read(state, config, user_here(state, config))

    async def arecall(state: Any, config: RunnableConfig) -> dict[str, Any]:
        # In the event loop, as in the other nodes: the host's function may use objects of this loop.
        user = user_here(state, config)
        return await in_thread(read, state, config, user)

    return RunnableLambda(recall, arecall, name="recall")


def submit_node(
    writer: MemoryWriter,
    *,
    user_id: Who = None,
    session_id: Who = None,
    messages_key: str = "messages",
    on_error: OnError = "raise",
    episodes: bool | None = None,
) -> Node:
    """Return a node that submits the finished turn to a background writer; a field `Memory` records its end.

    A turn has all messages of the user since the last answer, and the answers after them. The node submits nothing
    before there is an answer, nor in a graph that an agent runs as its sub-agent or tool. It waits until the turn is
    stored, but not for the extraction. If the writer's queue is full, async runs wait and sync runs raise `WriterBusy`. A replay, a retry,
    or a second pass with the same messages submits nothing twice; new messages are a new turn.

    Args:
        writer: Applies the turns, in the order of their submission.
        user_id: The user, or a function of state and runtime; None looks it up in the run.
        session_id: The session, given in the same ways; None takes `session_id` or `thread_id` of the run, else the
            id of the run; without one, each turn is a separate session.
        messages_key: The field with the messages.
        on_error: If the turn cannot be stored, "raise" fails the run, "ignore" logs the error and continues.
        episodes: Whether turns are stored word for word as episodes; None takes the diary's setting.

    Raises:
        InvalidValue: `writer` is not a MemoryWriter, or an option has a value that is not listed here.
    """
    check_writer(writer, "; to extract inside the graph, use extract_node(diary)")
    recording = _RecordingNode(writer.diary, user_id, session_id, messages_key, on_error, episodes)

    return recording.node(
        "submit",
        "a turn could not be stored",
        partial(store_turn, writer),
        partial(submit_turn, writer),
        outlives_cancellation=True,
    )


def extract_node(
    diary: Diary | str | os.PathLike[str],
    extractor: Any = None,
    *,
    user_id: Who = None,
    session_id: Who = None,
    messages_key: str = "messages",
    on_error: OnError = "raise",
    episodes: bool | None = None,
) -> Node:
    """Return a node that extracts from the finished turn inside the graph; a field `Memory` records its end.

    The graph waits for the extraction. A failed extraction fails the run, unless `on_error` is "ignore". A replay,
    a retry, or a second pass with the same messages extracts nothing twice. If a part of the user's memory is forgotten
    meanwhile, the turn is extracted again.

    Args:
        diary: A diary, or a folder or an address, which gets the built-in preference table.
        extractor: The chat model of the graph, or anything that `Diary(agent=…)` accepts; None is the diary's
            extractor.
        user_id: The user, or a function of state and runtime; None looks it up in the run.
        session_id: The session, given in the same ways; None takes `session_id` or `thread_id` of the run, else the
            id of the run; without one, each turn is a separate session.
        messages_key: The field with the messages.
        on_error: If the extraction fails, "raise" fails the run, "ignore" logs the error and continues.
        episodes: Whether turns are stored word for word as episodes; None takes the diary's setting.

    Raises:
        BackendError: `diary` is no diary, folder or address.
        InvalidValue: `diary` is a model or a graph, or an option has a value that is not listed here.
    """
    memory = _diary(diary, "extract_node(diary, model)")
    if extractor is not None:
        memory = memory.with_agent(extractor)

    recording = _RecordingNode(memory, user_id, session_id, messages_key, on_error, episodes)

    async def aextract(turn: Turn) -> None:
        if turn.epoch is None:
            turn = replace(turn, epoch=await memory.turns.current_epoch(turn.user_id))
        await memory.turns.process(turn)

    def extract(turn: Turn) -> None:
        run_coroutine(aextract(turn))

    return recording.node("extract", "a turn could not be read", extract, aextract)


class _Runs(RunTree, BaseCallbackHandler):
    """The tree of LangChain runs, with warnings about dropped memory."""

    config_here = staticmethod(var_child_runnable_config.get)

    def on_chain_end(self, outputs: Any = None, *_: Any, run_id: UUID, **__: Any) -> None:
        """Remove an ended run, and warn if it returns the memory but the state has no field for it."""
        run = self.running.get(run_id)
        if run is not None and run.dropped is not None:
            key, warn = run.dropped
            returned = cast("Any", outputs if isinstance(outputs, list | tuple) else [outputs])
            if any(field_of(_update_of(each), key) is not None for each in returned):
                warn()
        super().on_chain_end(run_id=run_id)

    def asked_by(self, config: RunnableConfig) -> dict[str, str]:
        """Return the notes of unanswered messages in the states of a node's graph and the graphs around it; see `Recalled`.

        Only graphs of the same thread count.
        """
        thread = str(config.get("configurable", {}).get("thread_id", ""))
        around = [
            run.begun_in
            for run in self.runs_from(self.run_of(config))
            # The graph of another thread may have the messages for another user.
            if run.begun_in and "" != kept_thread(run.begun_in.get("configurable")) == thread
        ]
        return {
            id_: owner
            for each in [*reversed(around), config]
            for id_, owner in asked_by_in(state_channels(each)).items()
        }


def _update_of(returned: Any) -> Any:
    """Return the update of a graph's state in what its node returned."""
    if not isinstance(returned, Command):
        return returned
    command = cast("Command[Any]", returned)
    if command.graph is not None:
        return None  # another graph has other fields
    update: Any = cast("Any", command).update
    with suppress(TypeError, ValueError):  # no list of pairs
        return dict(update)
    return update


@cache
def runs() -> _Runs:
    """Return the tree of this process, registered with LangChain from the first call on."""
    tree = _Runs()
    register_configure_hook(ContextVar("tomldiary_runs", default=tree), inheritable=True)
    register_tree(tree)
    return tree


class _RecordingNode:
    """Makes a node that records the finished turn: `submit_node` and `extract_node` differ only in how they store it."""

    def __init__(
        self,
        diary: Diary,
        user_id: Who,
        session_id: Who,
        messages_key: str,
        on_error: OnError,
        episodes: bool | None,  # noqa: FBT001 - the option of the nodes
    ) -> None:
        self._diary = diary
        self._submitted = of_memory(diary, SubmittedMessages)
        self._runs = runs()
        self._user_id = checked_id("user_id", user_id, "state", "runtime")
        self._session_id = checked_id("session_id", session_id, "state", "runtime")
        self._messages_key = checked_text(messages_key, "messages_key")
        self._on_error: OnError = one_of("on_error", on_error, ("raise", "ignore"))
        self._episodes = checked_episodes(episodes)
        self._has_warned = False

    def node(
        self,
        name: str,
        failed: str,
        store: Callable[[Turn], object],
        astore: Callable[[Turn], Awaitable[object]],
        *,
        outlives_cancellation: bool = False,
    ) -> Node:
        """Return the node, which stores turns with `store` or `astore`; see `_turn`."""

        def record(state: Any, config: RunnableConfig) -> dict[str, Any]:
            with self._turn(state, config, failed) as (turn, update):
                if turn is not None:
                    store(turn)
                return update
            return {}

        async def arecord(state: Any, config: RunnableConfig) -> dict[str, Any]:
            outlives = outlives_cancellation
            with self._turn(state, config, failed, outlives=outlives) as (turn, update):
                if turn is not None:
                    await astore(turn)
                return update
            return {}

        record.__name__ = name  # the repr shows it
        return RunnableLambda(record, arecord, name=name)

    @contextmanager
    def _turn(
        self, state: Any, config: RunnableConfig, failed: str, *, outlives: bool = False
    ) -> Generator[tuple[Turn | None, dict[str, Any]]]:
        """Yield the new part of the current turn, or None if there is none or no answer yet; and the state's update.

        With `on_error="ignore"`, an error in the block is logged as `failed` instead of raised. `outlives` tells whether
        the block stores the turn also if it is cancelled.
        """
        user = resolve_user(self._user_id, state, config)
        named = resolve_session(self._session_id, state, config)
        session = named or run_id_of(config)  # "" in a run without an id
        # A node with a fixed user records the messages of all users.
        is_fixed = isinstance(self._user_id, str)
        speakers = [] if is_fixed else speakers_of(self._user_id, user, config)
        said = self._current(state, config, speakers)
        if said is None or self._runs.is_delegated(config):
            yield None, {}
            return
        said = said.identified(task_here())
        update = ended_by(state_channels(config), _node(config), said.end) if said.end else {}
        asked = [one for one in said.messages if one.by == "user"]
        epoch = self._submitted.began(user, asked)
        first = self._submitted.first_ids(
            config.get("configurable"), user, session, said.place, asked
        )
        attempt = self._runs.attempt_of(config)
        session, first = self._submitted.first_attempt(
            attempt, user, named, asked, (session, first)
        )
        if all(first):  # a replay gives other ids
            said = said._replace(messages=with_ids(said.messages, said.ids, first))
        found = list[str]()
        with _errors(self._on_error, failed):
            found.append(_operation_id(self._diary, config, session, said))
        if not found:  # its texts cannot be redacted
            yield None, update
            return
        (operation,) = found
        with _errors(self._on_error, failed):
            turn = Turn(
                user,
                session or operation or uuid4().hex,
                "",
                "",
                operation_id=operation,
                earlier=said.earlier or None,
                episode=self._episodes,
                epoch=epoch,
            )
            once = self._submitted.once(
                turn, said.messages, diary=self._diary, outlives_cancellation=outlives
            )
            with once as new:
                yield new, update
                if new is None:
                    return
        for where in {"", *(each.function for each in speakers)}:
            self._submitted.answered(config.get("configurable"), where, asked)

    def _current(
        self, state: Any, config: RunnableConfig, speakers: list[Speaker]
    ) -> CurrentTurn | None:
        """Return the current turn; None, with a warning the first time, if it has no answer yet."""
        channels = state_channels(config)
        thread = thread_of(state, self._messages_key, nodes_of(channels))
        noted = self._runs.asked_by(config)
        said = current_turn(
            thread,
            lambda one: any(
                _owner(self._submitted, config, noted, one, each) != each.user for each in speakers
            ),
            ended_in(channels, _node(config)),
        )
        if said is None and not self._has_warned and thread and thread[-1].by == "user":
            self._has_warned = True
            tell(
                _logger,
                "a node records no turn, because the user's last message has no answer yet."
                " Place the node behind the model, and return an answer as an AIMessage: LangGraph reads a text"
                " as a user's message.",
            )
        return said


def _note_key(speaker: Speaker, message: Spoken) -> str:
    """Return the key under which a field `Memory` notes the user of a message."""
    return digest(speaker.function, message.id) if speaker.function else message.id


def _owner(
    submitted: SubmittedMessages,
    config: RunnableConfig,
    noted: Mapping[str, str],
    message: Spoken,
    speaker: Speaker,
) -> str:
    """Return a digest of the user who wrote an unanswered message."""
    known = noted.get(_note_key(speaker, message))
    return submitted.owner(
        config.get("configurable"), speaker.function, known, message, speaker.user
    )


def _operation_id(diary: Diary, config: RunnableConfig, session: str, said: CurrentTurn) -> str:
    """Return an id of a node's turn that is the same in a replay, a retry and a second pass; "" if there is none."""
    known = said.ids or ((said.behind,) if said.behind else ())
    if not known:
        return ""
    whole = digested(diary, exchange_of(said.messages))
    return f"node-{digest(_node(config), session, *known, *whole)}"


def _node(config: RunnableConfig) -> str:
    return str(config.get("metadata", {}).get("langgraph_node", ""))


def _diary(given: Any, call: str) -> Diary:
    """Return the diary that a node was given as a diary, a folder or a store."""
    if isinstance(given, DiaryStore):
        return given.diary
    return diary_of(given, hint=f"Give the diary first: {call}.")


def _check_field(
    key: str, channels: Mapping[str, Any], config: RunnableConfig, warned: set[str]
) -> None:
    """Warn, once for each node, if the state has no field for the memory or stores it in checkpoints."""
    if warned or not channels or isinstance(channels.get(key), UntrackedValue):
        return

    def warn(problem: str) -> None:
        if not warned:
            warned.add(key)
            hint = f"Declare it as `{key}: Memory`, with `from tomldiary_langgraph import Memory`."
            tell(_logger, f"{problem} {hint}")

    if key in channels:
        if saves_checkpoints(config.get("configurable")):
            warn(f"checkpoints keep the state's field {key!r}, and `forget` does not reach them.")
        return
    problem = (
        f"the graph's state has no field {key!r}, so LangGraph drops what recall_node returns."
    )
    for node in [*runs().runs_from(runs().run_of(config))][1:2]:
        # The warning waits for what this run returns: a node that calls the recall node may use the text itself.
        node.dropped = key, partial(warn, problem)


def _errors(on_error: OnError, what: str) -> AbstractContextManager[None]:
    """Apply `on_error` to a block; a wrong user always fails the run."""
    return errors_logged(on_error, what, _logger, always_raised=IdentifierError)
