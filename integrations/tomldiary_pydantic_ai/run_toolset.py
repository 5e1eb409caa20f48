"""A toolset whose tools belong to the user of a run: how the user is found, the binding to the run, ids of calls, spans."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pydantic_ai import RunContext, TemplateStr
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, WrapperToolset

from tomldiary.agents import identity
from tomldiary.agents.identity import checked_id
from tomldiary.agents.options import checked_text
from tomldiary.agents.turn_messages import OTHERS_TURN, digest, digested, of_memory
from tomldiary.agents.utterances import RunIds, RunOwner, Utterances
from tomldiary.diary import Diary, diary_of
from tomldiary.errors import IdentifierError, InvalidValue, wrong_type
from tomldiary.runtime.async_bridge import in_thread
from tomldiary_pydantic_ai.conversation import ids_of, is_of_others, resumed

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Sequence

    from pydantic_ai.messages import InstructionPart
    from pydantic_ai.toolsets import ToolsetTool

    from tomldiary_pydantic_ai.run import RunState

T = TypeVar("T")
_RETRIES = 10
"""The number of calls with invalid arguments that a run may make; each gets an error message."""

Who: TypeAlias = str | Callable[[RunContext[AgentDepsT]], str | None] | None
"""A name, a function of the run context, or None for a look into the run's deps and metadata."""


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
    )


_FILLED = (
    "Templates are filled in within agent specs only; here, give a function of the run context."
)


def checked_who(option: str, who: Who[AgentDepsT]) -> Who[AgentDepsT]:
    """Return `user_id` or `session_id` as it was given.

    Raises:
        InvalidValue: It is a template.
        IdentifierError: See `checked_id`.
    """
    return checked_id(option, no_template(option, who), "ctx")


def no_template(option: str, given: T, remedy: str = _FILLED) -> T:
    """Return the value of an option, unless it is a template that would not be filled in.

    Raises:
        InvalidValue: It is a template. Used literally, it would be one name for all users.
    """
    if isinstance(given, str) and "{{" in given:
        raise InvalidValue(f"{given!r} is a template. {remedy}", where=option)
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


_PLACEHOLDER = re.compile(r"\{\{\{?~?\s*(?!else\b)[^\s{}#/!>^~][^{}]*\}?\}\}")
"""An expression of a template; blocks, comments and partials are none."""


class RunToolset(FunctionToolset[AgentDepsT]):
    """A toolset whose tools and instructions belong to the user and session that a run named when it began.

    Args:
        diary: A diary, or its folder or address.
        user_id: The user, as `user_of` takes it.
        session_id: The session, as `session_of` takes it.
        id: The id of the toolset.

    Raises:
        InvalidValue: `diary` is neither, or the id is not text.
    """

    def __init__(
        self,
        diary: Diary | str | os.PathLike[str],
        user_id: Who[AgentDepsT],
        session_id: Who[AgentDepsT],
        *,
        id: str,  # noqa: A002 - the framework's word
    ) -> None:
        super().__init__(id=checked_text(id, "id"), max_retries=_RETRIES)
        if isinstance(diary, RunContext):  # pyright: ignore[reportUnnecessaryIsInstance] - the framework calls a listed class
            hint = "List an instance instead of the class, made with the diary."
            raise wrong_type(diary, "a Diary or a folder", "diary", hint)
        self.diary = diary_of(diary)
        self.turns = of_memory(self.diary, Utterances)
        self._user_id = checked_who("user_id", user_id)
        self._session_id = checked_who("session_id", session_id)

    def found_owner(self, ctx: RunContext[AgentDepsT]) -> RunOwner:
        """Return the user and session that the context of a run names.

        Raises:
            IdentifierError: The run names no user, or a name is invalid.
        """
        owner = RunOwner(user_of(ctx, self._user_id), session_of(ctx, self._session_id))
        self.diary.user(owner.user)  # refuses an id that cannot be used
        return owner

    def owner(self, ctx: RunContext[AgentDepsT]) -> RunOwner:
        """Return the user and session of the run, as resolved when the run began.

        Raises:
            IdentifierError: The run names no user, or a name is invalid.
        """
        run = self.bound(ctx)
        return self.found_owner(ctx) if run is None else run.owner

    def bound(self, ctx: RunContext[AgentDepsT]) -> OwnedToolset[AgentDepsT] | None:
        """Return the run of this toolset that is calling it; None outside of one, and for the context of another run."""
        run = _CALLING.get()
        # A copy of a toolset shares its tools, which belong to the original.
        if run is None or run.toolset.tools is not self.tools:
            return None
        return run if ctx.run_id in (None, run.run_id) else None

    async def for_run(self, ctx: RunContext[AgentDepsT]) -> AbstractToolset[AgentDepsT]:
        """Resolve the owner of the run before its model is called, and record it; this reads no memory.

        Raises:
            IdentifierError: See `found_owner` and `enter`.
        """
        owner = self.found_owner(ctx)
        self.enter(ctx, owner)
        return OwnedToolset(self, self, owner, ctx.run_id)

    def enter(self, ctx: RunContext[AgentDepsT], owner: RunOwner, scope: str | None = None) -> None:
        """Record the owner of a run that begins now.

        Args:
            ctx: The run.
            owner: Its owner.
            scope: The scope of the memory that the run shows in the conversation; None if it shows none there.

        Raises:
            IdentifierError: Another user began the turn.
        """
        response = resumed(ctx.messages, ctx.prompt)
        began = None if response is None else ids_of(response)
        if began and scope and is_of_others(ctx.messages, began.run, scope, self.id or ""):
            raise IdentifierError(OTHERS_TURN)
        ids = RunIds(ctx.conversation_id, ctx.run_id)
        self.turns.enter(self.id or "", owner.user, ids, began)


@dataclass
class OwnedToolset(WrapperToolset[AgentDepsT]):
    """A toolset in one run: its tools and instructions use the owner of the run, also if the deps change later.

    The wrapped object may be a wrapper of durable execution around `toolset`.
    """

    toolset: RunToolset[AgentDepsT]
    owner: RunOwner
    run_id: str | None
    run: RunState | None = None
    """The run of a capability."""

    @property
    def id(self) -> str | None:
        """The id of the toolset, which durable execution looks up."""
        return self.toolset.id

    @contextmanager
    def calling(self) -> Generator[None]:
        """Let `toolset` know this run in the block."""
        outer = _CALLING.set(self)
        try:
            yield
        finally:
            _CALLING.reset(outer)

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[AgentDepsT],
        tool: ToolsetTool[AgentDepsT],
    ) -> Any:
        """Call a tool for the owner of the run."""
        with self.calling():
            return await super().call_tool(name, tool_args, ctx, tool)

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        """Return the tools for the owner of the run."""
        with self.calling():
            return await super().get_tools(ctx)

    async def get_instructions(
        self, ctx: RunContext[AgentDepsT]
    ) -> str | InstructionPart | Sequence[str | InstructionPart] | None:
        """Return the instructions for the owner of the run."""
        with self.calling():
            return await super().get_instructions(ctx)


_CALLING: ContextVar[OwnedToolset[Any] | None] = ContextVar("tomldiary_toolset", default=None)


async def call_id(diary: Diary, ctx: RunContext[Any], verb: str, *arguments: Any) -> str:
    """Return an id of a tool call that stays the same when the call is repeated; "" outside of a run.

    Some models reuse call ids in each response, so the arguments are part of the id.
    """
    if ctx.run_id is None or ctx.tool_call_id is None:
        return ""
    if diary.redactor is not None:  # its function may be slow
        arguments = await in_thread(digested, diary, arguments)
    return digest(ctx.run_id, str(ctx.run_step), ctx.tool_call_id, verb, repr(arguments))


@contextmanager
def span(ctx: RunContext[Any], name: str) -> Generator[dict[str, int | bool | str]]:
    """Record the span `tomldiary.<name>` in the run's trace, with the attributes in the yielded dict.

    The text of an error may quote the memory, so only its type is recorded. A run context that was sent to another
    process, for example to an activity of Temporal, has no tracer, so nothing is recorded.
    """
    attributes: dict[str, int | bool | str] = {}
    try:
        tracer = ctx.tracer
    except (AttributeError, UserError):
        yield attributes
        return
    with tracer.start_as_current_span(
        f"tomldiary.{name}", record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield attributes
        except BaseException as error:
            attributes["error_type"] = type(error).__name__
            raise
        finally:
            for key, value in attributes.items():
                current.set_attribute(f"tomldiary.{key}", value)
