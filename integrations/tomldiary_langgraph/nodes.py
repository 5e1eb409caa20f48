"""Graph nodes: recall before the model, submit or extract after it.

    builder.add_node("recall", recall_node(diary))
    builder.add_node("submit", submit_node(writer))
    builder.add_edge(START, "recall")  # … recall → model → submit

Each works sync and async, with a state that is a TypedDict, a dataclass or a pydantic model, and finds
user and session in the run (see `identity`), never in what a model wrote.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.channels.untracked_value import UntrackedValue

from tomldiary.agents.identity import saves_checkpoints
from tomldiary.agents.options import checked_count, one_of
from tomldiary.agents.turn_messages import (
    HandedIn,
    Spoken,
    digest,
    exchange_of,
    of_memory,
    steps_of,
    with_ids,
)
from tomldiary.diary import Diary, diary_of
from tomldiary.errors import DiaryError, IdentifierError, InvalidValue
from tomldiary.logging import get_logger, tell
from tomldiary.writer.writer import MemoryWriter, Turn
from tomldiary_langgraph.identity import (
    Who,
    resolve_session,
    resolve_user,
    speaker_of,
    state_channels,
    task_here,
)
from tomldiary_langgraph.memory_field import (
    MemoryChannel,
    Recalled,
    asked_by_in,
    ended_by,
    ended_in,
)
from tomldiary_langgraph.messages import (
    CurrentTurn,
    current_turn,
    unanswered,
    waits_for_answer,
)
from tomldiary_langgraph.runs import runs
from tomldiary_langgraph.store import DiaryStore

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator


__all__ = ["extract_node", "recall_node", "submit_node"]

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
    """Return a node that puts what is known about the user into the state, as text for a model.

    Place it at the start of the graph, and it runs once per turn. The text is framed as data; facts
    that match the last human message come first. Declare the state's field as `Memory`: a checkpoint keeps
    a field of type `str`, and so a copy that `forget` does not reach. The node logs a warning for such a
    field, and for a state without the field.

    Args:
        diary: A diary, or the folder of one with the built-in preference table.
        user_id: The user, or a function of state and runtime; None looks it up in the run.
        state_key: Where the text goes; "" if nothing is known.
        messages_key: Where the state keeps its messages; None renders without a question.
        max_tokens: Budget for the text.
        token_counter: Counts tokens; None estimates them by script.
        on_error: If the memory cannot be read, "raise" fails the run, "ignore" logs it and goes on with "".

    Raises:
        InvalidValue: `diary` is neither, or an option has a value that is not listed here.
    """
    one_of("on_error", on_error, ("raise", "ignore"))
    checked_count(max_tokens, "max_tokens", least=1)
    memory = _memory(diary, "recall_node(diary)")
    handed_in = of_memory(memory, HandedIn)
    warned: set[str] = set()

    def prepare(state: Any, config: RunnableConfig) -> tuple[str, str | None, list[Spoken]]:
        _check_field(state_key, config, warned)
        user = resolve_user(user_id, state, config)
        if messages_key is None:
            return user, None, []
        asked = unanswered(state, messages_key)
        return user, exchange_of(asked)[0] or None, asked

    def with_owners(found: str, asked: list[Spoken], config: RunnableConfig) -> str:
        channels, speaker = state_channels(config) or {}, speaker_of(config)
        if not speaker:
            return found
        owners = {one.id: _owner(handed_in, config, one, speaker) for one in asked if one.id}
        is_kept = isinstance(channels.get(state_key), MemoryChannel)
        return Recalled(found, owners) if is_kept else found

    def recall(state: Any, config: RunnableConfig) -> dict[str, Any]:
        user, query, asked = prepare(state, config)
        found = ""
        with _errors(on_error, "the memory could not be read"):
            handed_in.begin(user, asked, memory.user(user).epoch)
            found = memory.user(user).render(query, max_tokens, token_counter)
        return {state_key: with_owners(found, asked, config)}

    async def arecall(state: Any, config: RunnableConfig) -> dict[str, Any]:
        user, query, asked = prepare(state, config)
        found = ""
        with _errors(on_error, "the memory could not be read"):
            handed_in.begin(user, asked, await memory.turns.current_epoch(user))
            found = await memory.user(user).arender(query, max_tokens, token_counter)
        return {state_key: with_owners(found, asked, config)}

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
    """Return a node that hands the finished turn to a background writer; a field `Memory` notes that the turn ended.

    A turn is all that the user said since the last answer, and what the model said after it; without an
    answer there is nothing to submit, nor in a graph that an agent runs as its sub-agent or tool. The node does
    not wait for the extraction. If the writer's queue is full, async runs wait for room and sync ones raise `WriterBusy`. A replay, a retry, or a second pass with
    the same messages submits nothing twice; new messages are a new turn.

    Args:
        writer: Applies the turns, in the order they came.
        user_id: The user, or a function of state and runtime; None looks it up in the run.
        session_id: The session, likewise; None is `session_id` or `thread_id` of the run, else the run's own
            id; without one, each turn is a session of its own.
        messages_key: Where the state keeps its messages.
        on_error: If the turn cannot be queued, "raise" fails the run, "ignore" logs it and goes on.
        episodes: Whether turns are kept word for word as episodes; None is what the diary says.

    Raises:
        InvalidValue: `writer` is none, or an option has a value that is not listed here.
    """
    one_of("on_error", on_error, ("raise", "ignore"))
    if not callable(getattr(writer, "submit_nowait", None)):
        raise InvalidValue(
            f"expected a MemoryWriter, found {type(writer).__name__}. Make one: MemoryWriter(diary); to"
            " extract inside the graph, use extract_node(diary).",
            where="writer",
        )

    recorded = _Recorded(writer.diary, user_id, session_id, messages_key, on_error, episodes)

    def submit(state: Any, config: RunnableConfig) -> dict[str, Any]:
        with recorded.turn(state, config, "a turn could not be queued") as (turn, update):
            if turn is not None:
                writer.submit_nowait(turn)
            return update
        return {}

    async def asubmit(state: Any, config: RunnableConfig) -> dict[str, Any]:
        with recorded.turn(state, config, "a turn could not be queued") as (turn, update):
            if turn is not None:
                await writer.submit_turn(turn)
            return update
        return {}

    return RunnableLambda(submit, asubmit, name="submit")


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
    """Return a node that extracts from the finished turn inside the graph; a field `Memory` notes that the turn ended.

    The graph waits for it, and an extraction that fails fails the run, unless `on_error` is "ignore". A
    replay, a retry, or a second pass with the same messages extracts nothing twice.

    Args:
        diary: A diary, or the folder of one with the built-in preference table.
        extractor: Who reads the turn: the chat model of the graph, or whatever `Diary(agent=…)` takes;
            None is the diary's own.
        user_id: The user, or a function of state and runtime; None looks it up in the run.
        session_id: The session, likewise; None is `session_id` or `thread_id` of the run, else the run's own
            id; without one, each turn is a session of its own.
        messages_key: Where the state keeps its messages.
        on_error: If the extraction fails, "raise" fails the run, "ignore" logs it and goes on.
        episodes: Whether turns are kept word for word as episodes; None is what the diary says.

    Raises:
        InvalidValue: `diary` is none, or an option has a value that is not listed here.
    """
    one_of("on_error", on_error, ("raise", "ignore"))
    memory = _memory(diary, "extract_node(diary, model)")
    if extractor is not None:
        memory = memory.with_agent(extractor)

    recorded = _Recorded(memory, user_id, session_id, messages_key, on_error, episodes)

    def extract(state: Any, config: RunnableConfig) -> dict[str, Any]:
        with recorded.turn(state, config, "a turn could not be read") as (turn, update):
            if turn is not None:
                memory.user(turn.user_id).add_turn(**_said(turn))
            return update
        return {}

    async def aextract(state: Any, config: RunnableConfig) -> dict[str, Any]:
        with recorded.turn(state, config, "a turn could not be read") as (turn, update):
            if turn is not None:
                await memory.user(turn.user_id).aadd_turn(**_said(turn))
            return update
        return {}

    return RunnableLambda(extract, aextract, name="extract")


def _said(turn: Turn) -> dict[str, Any]:
    """Return the arguments of `add_turn`."""
    names = (
        "user_msg",
        "assistant_msg",
        "session_id",
        "earlier",
        "operation_id",
        "steps",
        "episode",
        "epoch",
    )
    return {name: getattr(turn, name) for name in names}


class _Recorded:
    """The turns of one node."""

    def __init__(
        self,
        diary: Diary,
        user_id: Who,
        session_id: Who,
        messages_key: str,
        on_error: OnError,
        episodes: bool | None,  # noqa: FBT001 - the option of the nodes
    ) -> None:
        self._handed_in = of_memory(diary, HandedIn)
        self._runs = runs()
        self._user_id = user_id
        self._session_id = session_id
        self._messages_key = messages_key
        self._on_error: OnError = on_error
        self._episodes = episodes
        self._has_warned = False

    @contextmanager
    def turn(
        self, state: Any, config: RunnableConfig, failed: str
    ) -> Generator[tuple[Turn | None, dict[str, Any]]]:
        """Yield what is new of the current turn, None if nothing is or if there is no answer yet; and what it updates.

        An error inside is logged as `failed` instead of raised, if the host wants that.
        """
        user = resolve_user(self._user_id, state, config)
        session = resolve_session(self._session_id, state, config)
        # A node with a user of its own records what anyone says.
        speaker = "" if isinstance(self._user_id, str) else speaker_of(config)
        channels, node = state_channels(config), _node(config)
        said = current_turn(
            state,
            self._messages_key,
            lambda one: bool(speaker) and _owner(self._handed_in, config, one, speaker) != speaker,
            ended_in(channels, node),
        )
        if said is None and not self._has_warned and waits_for_answer(state, self._messages_key):
            self._has_warned = True
            _logger.warning(
                "a node records no turn, because the user's last message has no answer yet."
                " Place the node behind the model."
            )
        if said is None or self._runs.is_delegated(config):
            yield None, {}
            return
        update = ended_by(channels, node, said.end) if said.end else {}
        asked = [one for one in said.messages if one.by == "user"]
        epoch = self._handed_in.began(user, asked)
        first = self._handed_in.first_ids(
            config.get("configurable"), user, session, said.place, asked
        )
        if all(first):  # a replay gives other ids
            said = said._replace(messages=with_ids(said.messages, said.ids, first))
        operation = _operation(config, session, said)
        session = session or operation or uuid4().hex
        with (
            _errors(self._on_error, failed),
            self._handed_in.once(user, session, operation, said.messages) as new,
        ):
            exchange = exchange_of(new)
            if not any(exchange):
                yield None, update
                return
            if operation and exchange != exchange_of(said.messages):
                operation = f"node-{digest(operation, *exchange)}"
            turn = Turn(
                user,
                session,
                *exchange,
                operation_id=operation,
                earlier=said.earlier or None,
                steps=steps_of(new),
                episode=self._episodes,
                epoch=epoch,
            )
            yield turn, update
        self._handed_in.answered(config.get("configurable"), "", asked)


def _owner(handed_in: HandedIn, config: RunnableConfig, message: Spoken, speaker: str) -> str:
    """Return a digest of the user who said an unanswered message."""
    known = asked_by_in(state_channels(config))
    return handed_in.owner(config.get("configurable"), "", known, message, speaker)


def _operation(config: RunnableConfig, session: str, said: CurrentTurn) -> str:
    """Return an id that a node's turn has again in a replay, a retry and a second pass; "" if it has none.

    Messages without ids are known by the task, which a retry has again, and their place in the thread.
    """
    known = said.ids or ((said.behind,) if said.behind else (task_here(), *said.place))
    if not known[0]:
        return ""
    return f"node-{digest(_node(config), session, *known, *exchange_of(said.messages))}"


def _node(config: RunnableConfig) -> str:
    return str(config.get("metadata", {}).get("langgraph_node", ""))


def _memory(given: Any, call: str) -> Diary:
    """Return the diary that a node was given, as itself, as a folder or as a store."""
    if isinstance(given, DiaryStore):
        return given.diary
    if hasattr(given, "invoke"):
        raise InvalidValue(
            f"expected a Diary or a folder, found {type(given).__name__}. Give the diary first: {call}.",
            where="diary",
        )
    return diary_of(given)


def _check_field(key: str, config: RunnableConfig, warned: set[str]) -> None:
    """Warn, once for each node, of a state that does not take the memory or keeps it in checkpoints."""
    channels = state_channels(config)
    if warned or channels is None or isinstance(channels.get(key), UntrackedValue):
        return
    if key not in channels:
        problem = (
            f"the graph's state has no field {key!r}, so LangGraph drops what recall_node returns."
        )
    elif saves_checkpoints(config.get("configurable")):
        problem = f"checkpoints keep the state's field {key!r}, and `forget` does not reach them."
    else:
        return
    warned.add(key)
    problem += f" Declare it as `{key}: Memory`, with `from tomldiary_langgraph import Memory`."
    tell(_logger, problem)


@contextmanager
def _errors(on_error: OnError, what: str) -> Generator[None]:
    """Log an error of the memory instead of raising it, if the host wants that."""
    try:
        yield
    except IdentifierError:
        raise
    except (DiaryError, RuntimeError) as error:
        if on_error == "raise":
            raise
        _logger.warning("%s: %s", what, type(error).__name__)
