"""Graph nodes: recall before the model, submit or extract after it.

    builder.add_node("recall", recall_node(diary))
    builder.add_node("submit", submit_node(writer))
    builder.add_edge(START, "recall")  # … recall → model → submit

Each works sync and async, with a state that is a TypedDict, a dataclass or a pydantic model, and finds
user and session in the run (see `identity`), never in what a model wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig, RunnableLambda

from tomldiary.diary import Diary
from tomldiary.writer import Turn
from tomldiary_langgraph.identity import Who, resolve_session, resolve_user
from tomldiary_langgraph.messages import current_turn, last_question

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from tomldiary.writer import MemoryWriter

__all__ = ["extract_node", "recall_node", "submit_node"]

Node = RunnableLambda[Any, dict[str, Any]]


def recall_node(
    diary: Diary | str | os.PathLike[str],
    *,
    user_id: Who = None,
    state_key: str = "memory",
    messages_key: str | None = "messages",
    max_tokens: int = 1500,
    token_counter: Callable[[str], int] | None = None,
) -> Node:
    """Return a node that puts what is known about the user into the state, as text for a model.

    Place it at the start of the graph, and it runs once per turn. The text is framed as data; facts
    that match the last human message come first.

    Args:
        diary: A diary, or the folder of one with the built-in preference table.
        user_id: The user, or a function of state and runtime; None looks it up in the run.
        state_key: Where the text goes; "" if nothing is known.
        messages_key: Where the state keeps its messages; None renders without a question.
        max_tokens: Budget for the text.
        token_counter: Counts tokens; None takes four characters for one token.
    """
    memory = diary if isinstance(diary, Diary) else Diary(diary)

    def prepare(state: Any, config: RunnableConfig) -> tuple[str, str | None]:
        user = resolve_user(user_id, state, config)
        return user, None if messages_key is None else last_question(state, messages_key)

    def recall(state: Any, config: RunnableConfig) -> dict[str, Any]:
        user, query = prepare(state, config)
        return {state_key: memory.user(user).render(query, max_tokens, token_counter)}

    async def arecall(state: Any, config: RunnableConfig) -> dict[str, Any]:
        user, query = prepare(state, config)
        return {state_key: await memory.user(user).arender(query, max_tokens, token_counter)}

    return RunnableLambda(recall, arecall, name="recall")


def submit_node(
    writer: MemoryWriter,
    *,
    user_id: Who = None,
    session_id: Who = None,
    messages_key: str = "messages",
) -> Node:
    """Return a node that hands the finished turn to a background writer and changes no state.

    A turn is the last human message and what the model said after it; without an answer there is
    nothing to submit. The node does not wait for the extraction. If the writer's queue is full, async
    runs wait for room and sync ones raise.

    Args:
        writer: Applies the turns, in the order they came.
        user_id: The user, or a function of state and runtime; None looks it up in the run.
        session_id: The session, likewise; None is `session_id` or `thread_id` of the run.
        messages_key: Where the state keeps its messages.
    """

    def prepare(state: Any, config: RunnableConfig) -> Turn | None:
        return _turn(state, config, user_id, session_id, messages_key)

    def submit(state: Any, config: RunnableConfig) -> dict[str, Any]:
        turn = prepare(state, config)
        if turn is not None:
            writer.submit_nowait(turn)
        return {}

    async def asubmit(state: Any, config: RunnableConfig) -> dict[str, Any]:
        turn = prepare(state, config)
        if turn is not None:
            await writer.submit(turn.user_id, turn.session_id, turn.user_msg, turn.assistant_msg)
        return {}

    return RunnableLambda(submit, asubmit, name="submit")


def extract_node(
    diary: Diary | str | os.PathLike[str],
    extractor: Any = None,
    *,
    user_id: Who = None,
    session_id: Who = None,
    messages_key: str = "messages",
) -> Node:
    """Return a node that extracts from the finished turn inside the graph, and changes no state.

    The graph waits for it, and an extraction that fails fails the run; `submit_node` does neither.

    Args:
        diary: A diary, or the folder of one with the built-in preference table.
        extractor: Who reads the turn: the chat model of the graph, or whatever `Diary(agent=…)` takes;
            None is the diary's own.
        user_id: The user, or a function of state and runtime; None looks it up in the run.
        session_id: The session, likewise; None is `session_id` or `thread_id` of the run.
        messages_key: Where the state keeps its messages.
    """
    memory = diary if isinstance(diary, Diary) else Diary(diary)
    if extractor is not None:
        memory = memory.with_agent(extractor)

    def prepare(state: Any, config: RunnableConfig) -> Turn | None:
        return _turn(state, config, user_id, session_id, messages_key)

    def extract(state: Any, config: RunnableConfig) -> dict[str, Any]:
        turn = prepare(state, config)
        if turn is not None:
            user = memory.user(turn.user_id)
            user.add_turn(turn.user_msg, turn.assistant_msg, turn.session_id)
        return {}

    async def aextract(state: Any, config: RunnableConfig) -> dict[str, Any]:
        turn = prepare(state, config)
        if turn is not None:
            user = memory.user(turn.user_id)
            await user.aadd_turn(turn.user_msg, turn.assistant_msg, turn.session_id)
        return {}

    return RunnableLambda(extract, aextract, name="extract")


def _turn(
    state: Any, config: RunnableConfig, user_id: Who, session_id: Who, messages_key: str
) -> Turn | None:
    user = resolve_user(user_id, state, config)
    session = resolve_session(session_id, state, config)
    said = current_turn(state, messages_key)
    return None if said is None else Turn(user, session, *said)
