"""Whose memory a node works on, and in which session, as LangGraph says it; the order is the core's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from langgraph.config import get_config
from langgraph.runtime import get_runtime

from tomldiary.errors import IdentifierError
from tomldiary.identity import given, session_of, user_of

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

__all__ = ["Who", "resolve_session", "resolve_user", "session_here"]

Who = str | Callable[[Any, Any], str | None] | None
"""An id; a function of the state and LangGraph's `Runtime` that returns one; or None to look it up."""

_HINT = "Give {what}_id to the node, put it in the context, or pass {config}."


def resolve_user(explicit: Who, state: Any, config: RunnableConfig) -> str:
    """Return the user: explicit, in the context, in the config, or the server's.

    Raises:
        IdentifierError: None of them names one, or a name that is found is blank or no text.
    """
    hint = _HINT.format(what="user", config='config={"configurable": {"user_id": …}}')
    return user_of(given("user", explicit, state, _runtime()), hint=hint, **_places(config))


def resolve_session(explicit: Who, state: Any, config: RunnableConfig) -> str:
    """Return the session: explicit, in the context, in the config, or the thread.

    Raises:
        IdentifierError: None of them names one, or a name that is found is blank or no text.
    """
    hint = _HINT.format(what="session", config="a thread_id")
    return session_of(given("session", explicit, state, _runtime()), hint=hint, **_places(config))


def session_here() -> str:
    """Return the session of the run that this is called in; "" outside of one, or if it names none."""
    try:
        config = get_config()
    except RuntimeError:  # called outside a graph
        return ""
    try:
        return session_of(None, default="", **_places(config))
    except IdentifierError:  # a store is no place to complain about a run's settings
        return ""


def _places(config: RunnableConfig) -> dict[str, Any]:
    return {
        "context": getattr(_runtime(), "context", None),
        "settings": config.get("configurable"),
        "metadata": config.get("metadata"),
    }


def _runtime() -> Any:
    try:
        return get_runtime()
    except (RuntimeError, KeyError):  # called outside a graph
        return None
