"""Whose memory a retriever or a tool works on; the same order in every adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from tomldiary.errors import IdentifierError

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

__all__ = ["resolve_session", "resolve_user"]


def resolve_user(explicit: str | None, config: RunnableConfig) -> str:
    """Return the user: explicit, `user_id` in context, in the config, `langgraph_user_id`, the server's.

    Raises:
        IdentifierError: None of them names one, or what is found is no text.
    """
    settings: dict[str, Any] = config.get("configurable") or {}
    found = (
        explicit,
        _field(_context(), "user_id"),
        settings.get("user_id"),
        (config.get("metadata") or {}).get("user_id"),
        settings.get("langgraph_user_id"),
        _field(settings.get("langgraph_auth_user"), "identity"),
        settings.get("langgraph_auth_user_id"),
    )
    for value in found:
        if value is None:
            continue
        if not isinstance(value, str) or not value:
            raise IdentifierError(f"a user id is text that is not empty, found {value!r}.")
        return value
    raise IdentifierError(
        "the user is not known. Give user_id when you make the retriever or the tools, or pass"
        ' config={"configurable": {"user_id": …}}.'
    )


def resolve_session(config: RunnableConfig) -> str:
    """Return the session a run belongs to, for the record; "" if it names none."""
    settings: dict[str, Any] = config.get("configurable") or {}
    found = _field(_context(), "session_id") or settings.get("session_id")
    return str(found or settings.get("thread_id") or "")


def _context() -> Any:
    """Return the context of the graph that runs, if one does."""
    try:
        from langgraph.runtime import get_runtime  # noqa: PLC0415 - LangChain's core does not need it

        return getattr(get_runtime(), "context", None)
    except (ImportError, RuntimeError, KeyError):
        return None


def _field(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return cast("Mapping[str, Any]", holder).get(name)
    return getattr(holder, name, None)
