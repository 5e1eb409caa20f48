"""Whose memory a node works on, and in which session; the same order in every adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from langgraph.runtime import get_runtime

from tomldiary.errors import IdentifierError

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

__all__ = ["Who", "resolve_session", "resolve_user"]

Who = str | Callable[[Any, Any], str | None] | None
"""An id; a function of the state and LangGraph's `Runtime` that returns one; or None to look it up."""


def resolve_user(explicit: Who, state: Any, config: RunnableConfig) -> str:
    """Return the user: explicit, `user_id` in context, in the config, `langgraph_user_id`, the server's.

    Raises:
        IdentifierError: None of them names one, or what is found is no text.
    """
    runtime = _runtime()
    settings = _settings(config)
    signed_in = settings.get("langgraph_auth_user")
    return _first(
        "user",
        _explicit(explicit, state, runtime),
        _field(getattr(runtime, "context", None), "user_id"),
        settings.get("user_id"),
        (config.get("metadata") or {}).get("user_id"),
        settings.get("langgraph_user_id"),
        _field(signed_in, "identity"),
        settings.get("langgraph_auth_user_id"),
    )


def resolve_session(explicit: Who, state: Any, config: RunnableConfig) -> str:
    """Return the session: explicit, `session_id` in context or in the config, `thread_id`.

    Raises:
        IdentifierError: None of them names one, or what is found is no text.
    """
    runtime = _runtime()
    settings = _settings(config)
    return _first(
        "session",
        _explicit(explicit, state, runtime),
        _field(getattr(runtime, "context", None), "session_id"),
        settings.get("session_id"),
        (config.get("metadata") or {}).get("session_id"),
        settings.get("thread_id"),
    )


def _runtime() -> Any:
    try:
        return get_runtime()
    except (RuntimeError, KeyError):  # called outside a graph
        return None


def _settings(config: RunnableConfig) -> dict[str, Any]:
    return config.get("configurable") or {}


def _explicit(explicit: Who, state: Any, runtime: Any) -> str | None:
    if not callable(explicit):
        return explicit
    found = explicit(state, runtime)
    if found is None:
        # Falling through to other sources could pick somebody else.
        raise IdentifierError("the function that was given to name the user or session named none.")
    return found


def _field(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return cast("Mapping[str, Any]", holder).get(name)
    return getattr(holder, name, None)


def _first(what: str, *found: Any) -> str:
    for value in found:
        if value is None:
            continue
        if not isinstance(value, str) or not value:
            raise IdentifierError(f"a {what} id is text that is not empty, found {value!r}.")
        return value
    place = 'config={"configurable": {"user_id": …}}' if what == "user" else "a thread_id"
    raise IdentifierError(
        f"the {what} is not known. Give {what}_id to the node, put it in the context, or pass {place}."
    )
