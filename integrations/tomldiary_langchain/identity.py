"""Whose memory a retriever or a tool works on, as LangChain says it; the order is the core's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.identity import session_of, user_of

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

__all__ = ["resolve_session", "resolve_user"]

_HINT = (
    "Give user_id when you make the retriever or the tools, or pass"
    ' config={"configurable": {"user_id": …}}.'
)


def resolve_user(explicit: str | None, config: RunnableConfig) -> str:
    """Return the user: explicit, in the context, in the config, or the server's.

    Raises:
        IdentifierError: None of them names one, or a name that is found is blank or no text.
    """
    return user_of(explicit, hint=_HINT, **_places(config))


def resolve_session(config: RunnableConfig) -> str:
    """Return the session a run belongs to, for the record; "" if it names none.

    Raises:
        IdentifierError: A name that is found is blank or no text.
    """
    return session_of(None, default="", **_places(config))


def _places(config: RunnableConfig) -> dict[str, Any]:
    return {
        "context": _context(),
        "settings": config.get("configurable"),
        "metadata": config.get("metadata"),
    }


def _context() -> Any:
    """Return the context of the graph that runs, if one does."""
    try:
        from langgraph.runtime import get_runtime  # noqa: PLC0415 - LangChain's core does not need it

        return getattr(get_runtime(), "context", None)
    except (ImportError, RuntimeError, KeyError):
        return None
