"""Whose memory a run is about, and which session it belongs to; never decided by a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from tomldiary.errors import IdentifierError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from pydantic_ai import RunContext
    from pydantic_ai.tools import AgentDepsT

    Who: TypeAlias = str | Callable[[RunContext[AgentDepsT]], str | None] | None
    """A name, a function of the run, or None: look in the run's deps and metadata."""

__all__ = ["session_of", "user_of"]


def user_of(ctx: RunContext[Any], explicit: Who[Any]) -> str:
    """Return the user of a run: given explicitly, in its deps, or in its metadata, in this order.

    Raises:
        IdentifierError: Nobody says who the user is, or a name is blank or no text. A name that is
            found but cannot be used is never passed over: the next place might name somebody else.
    """
    if explicit is not None:
        name = explicit(ctx) if callable(explicit) else explicit
        if name is None:
            raise IdentifierError("user_id was given as a function, and it returned None.")
        return _checked(name, "user_id")
    for place, holder in (("deps", ctx.deps), ("metadata", ctx.metadata)):
        name = _field(holder, "user_id")
        if name is not None:
            return _checked(name, f"user_id in {place}")
    raise IdentifierError(
        "whose memory is this? Give user_id (a text, or a function of the run context), or a user_id"
        " in the deps or the metadata of the run."
    )


def session_of(ctx: RunContext[Any], explicit: Who[Any]) -> str:
    """Return the session of a run: explicit, in its deps, its conversation, or the run itself.

    Raises:
        IdentifierError: A name that is given is blank or no text.
    """
    given = explicit(ctx) if callable(explicit) else explicit
    if given is None:
        given = _field(ctx.deps, "session_id")
    if given is not None:
        return _checked(given, "session_id")
    return ctx.conversation_id or ctx.run_id or ""


def _field(holder: object, name: str) -> Any:
    if isinstance(holder, Mapping):
        return cast("Mapping[str, Any]", holder).get(name)
    return getattr(holder, name, None)


def _checked(name: object, where: str) -> str:
    if not isinstance(name, str):
        raise IdentifierError(
            f"{where}: expected text, found {type(name).__name__}. Give the toolset a function that"
            " returns it as text."
        )
    if not name.strip():
        raise IdentifierError(f"{where} is blank. Leave it out or give a name.")
    return name
