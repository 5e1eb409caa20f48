"""Finds the user and the session of a run; the core decides which source has precedence."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pydantic_ai import RunContext, TemplateStr
from pydantic_ai.tools import AgentDepsT

from tomldiary.agents import identity
from tomldiary.errors import IdentifierError, InvalidValue

__all__ = ["RunOwner", "Who", "filled", "no_template", "session_of", "user_of"]

T = TypeVar("T")

Who: TypeAlias = str | Callable[[RunContext[AgentDepsT]], str | None] | None
"""A name, a function of the run context, or None for a look into the run's deps and metadata."""


class RunOwner(NamedTuple):
    """The user and the session of a run."""

    user: str
    session: str


_HINT = (
    "To name the user, give user_id (a text, or a function of the run context), or put a"
    " user_id in the deps or the metadata of the run."
)


def user_of(ctx: RunContext[Any], explicit: Who[Any]) -> str:
    """Return the user of a run: given explicitly, in its deps, or in its metadata, in this order.

    Raises:
        IdentifierError: The run names no user, or a name is blank or not text.
    """
    return identity.user_of(
        identity.given("user", explicit, ctx), hint=_HINT, context=ctx.deps, metadata=ctx.metadata
    )


def session_of(ctx: RunContext[Any], explicit: Who[Any]) -> str:
    """Return the session of a run: explicit, in its deps or metadata, its conversation, or the run itself.

    Raises:
        IdentifierError: A given name is blank or not text.
    """
    return identity.session_of(
        identity.given("session", explicit, ctx),
        context=ctx.deps,
        metadata=ctx.metadata,
        settings={"conversation_id": ctx.conversation_id or ctx.run_id},
        default="",
    )


def no_template(option: str, given: T) -> T:
    """Return the value of an option, unless it is a template that would not be filled in.

    Raises:
        InvalidValue: It is a template. Used literally, it would be one name for all users.
    """
    if isinstance(given, str) and "{{" in given:
        raise InvalidValue(
            f"{given!r} is a template. Templates are filled in within agent specs only; here, give a"
            " function of the run context.",
            where=option,
        )
    return given


def filled(given: str | TemplateStr[Any] | None) -> Who[Any]:
    """Return a name from an agent spec; a template becomes a function that fills it in from the deps.

    The function raises IdentifierError if the deps leave a placeholder empty: the name could then be the same for
    several users.
    """
    if not isinstance(given, TemplateStr):
        return given
    places = [TemplateStr[Any](place) for place in _PLACEHOLDER.findall(str(given))]

    def name(ctx: RunContext[Any]) -> str:
        for place in places:
            if not place(ctx).strip():
                raise IdentifierError(
                    f"{place} in the agent spec is empty for this run. Set it in the deps."
                )
        return given(ctx)

    return name


_PLACEHOLDER = re.compile(r"\{\{\{?\s*[\w.]+\s*\}?\}\}")
