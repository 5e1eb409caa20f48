"""Whose memory a run is about, and which session it belongs to; never decided by a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from pydantic_ai import RunContext
from pydantic_ai.tools import AgentDepsT

from tomldiary import identity

__all__ = ["RunOwner", "Who", "session_of", "user_of"]

Who: TypeAlias = str | Callable[[RunContext[AgentDepsT]], str | None] | None
"""A name, a function of the run, or None: look in the run's deps and metadata."""


class RunOwner(NamedTuple):
    """Whose run it is, and which session it belongs to."""

    user: str
    session: str


_HINT = (
    "To say whose memory it is, give user_id (a text, or a function of the run context), or put a"
    " user_id in the deps or the metadata of the run."
)


def user_of(ctx: RunContext[Any], explicit: Who[Any]) -> str:
    """Return the user of a run: given explicitly, in its deps, or in its metadata, in this order.

    Raises:
        IdentifierError: Nobody says who the user is, or a name is blank or no text.
    """
    return identity.user_of(
        identity.given("user", explicit, ctx), hint=_HINT, context=ctx.deps, metadata=ctx.metadata
    )


def session_of(ctx: RunContext[Any], explicit: Who[Any]) -> str:
    """Return the session of a run: explicit, in its deps or metadata, its conversation, or the run itself.

    Raises:
        IdentifierError: A name that is given is blank or no text.
    """
    return identity.session_of(
        identity.given("session", explicit, ctx),
        context=ctx.deps,
        metadata=ctx.metadata,
        settings={"conversation_id": ctx.conversation_id or ctx.run_id},
        default="",
    )
