"""A diary behind `create_agent`: memory in front of the model, and finished turns into the writer.

agent = create_agent(model, tools, middleware=[DiaryMiddleware("./memories", user_id="alice")])
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, cast

from langchain.agents.middleware.types import AgentMiddleware, AgentState, PrivateStateAttr
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.errors import GraphBubbleUp

from tomldiary.adapter_options import one_of
from tomldiary.diary import Diary
from tomldiary.logging import get_logger
from tomldiary.memory_verbs import MemoryVerbs
from tomldiary.render import render_memory
from tomldiary.twins import in_thread
from tomldiary.writer import MemoryWriter, Turn
from tomldiary_langchain.identity import agent_session, agent_user, resolve_session, resolve_user
from tomldiary_langchain.messages import (
    first_question,
    last_question,
    said_since,
    text_of,
    with_memory,
    with_text,
)
from tomldiary_langchain.tools import tools_of

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Collection, Generator
    from typing import Self

    from langchain.agents.middleware.types import (
        ModelCallResult,
        ModelRequest,
        ModelResponse,
        ToolCallRequest,
    )
    from langchain_core.messages import ToolMessage
    from langchain_core.runnables import RunnableConfig
    from langgraph.runtime import Runtime
    from langgraph.types import Command

    from tomldiary.receipts import TurnStatus
    from tomldiary_langchain.identity import AgentWho

__all__ = ["DiaryMiddleware", "DiaryState"]

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Run:
    """What is settled when a turn begins, and holds until its end."""

    owner: DiaryMiddleware
    user: str
    session: str
    question_id: str | None
    question: str
    memory: str = ""


class _Held(str):
    """A run in the state; as text it says nothing, because streams and traces show private fields too."""

    __slots__ = ("run",)

    run: _Run

    def __new__(cls, run: _Run) -> Self:
        held = super().__new__(cls, "settled")
        held.run = run
        return held


_calling: ContextVar[tuple[_Run, str] | None] = ContextVar(
    "tomldiary_langchain_calling", default=None
)
"""The run whose tool is being called, and an id of the call: LangChain's tools do not see the state."""


class DiaryState(AgentState[Any]):
    """An agent's state with a private field that is in no input, output or checkpoint."""

    # Untracked: a copy of the memory in a checkpoint would outlive what `forget` removes.
    diary_run: NotRequired[Annotated[Any, UntrackedValue, PrivateStateAttr]]


class DiaryMiddleware(AgentMiddleware[DiaryState, Any]):
    """Shows the model what is known about its user, and hands each finished turn to a writer once.

    The memory is read once per turn and shown on each model call, in front of the turn; it is no part
    of state, history or checkpoints. A run that names no user fails before its model is called.

    A turn whose model call raises is submitted as well, with the status "failed", or "cancelled"; so
    place this middleware in front of those that retry. The same turn again has no second effect.

    Args:
        diary: A diary, or the folder of one with the built-in preference table.
        user_id: The user, or a function of state and runtime; None looks it up in the run's context,
            config and metadata.
        session_id: The session, likewise; None is `session_id` or `thread_id` of the run, or else the
            id of the chat's first question.
        writer: Extracts the turns in the background; None makes one, the attribute `writer`.
        tools: Tools that the model gets: "none", "read" (those that change nothing), "all", or names.
        inject: "user" shows the memory as a message of the user's, "instructions" in the system
            message; False not at all.
        max_tokens: Budget of the memory that is shown.
        query: "prompt" puts first what matches the question; "none" goes by count and date.
        on_error: If the memory cannot be read or the turn cannot be queued, "ignore" logs it and goes
            on, "raise" fails the run.

    Raises:
        InvalidValue: An option has a value that is not listed here.
    """

    state_schema = DiaryState

    def __init__(
        self,
        diary: Diary | str | os.PathLike[str],
        *,
        user_id: AgentWho = None,
        session_id: AgentWho = None,
        writer: MemoryWriter | None = None,
        tools: Literal["none", "read", "all"] | Collection[str] = "none",
        inject: Literal["user", "instructions", False] = "user",
        max_tokens: int = 1500,
        query: Literal["none", "prompt"] = "none",
        on_error: Literal["ignore", "raise"] = "ignore",
    ) -> None:
        one_of("inject", inject, ("user", "instructions", False))
        one_of("query", query, ("none", "prompt"))
        one_of("on_error", on_error, ("ignore", "raise"))
        self.diary = diary if isinstance(diary, Diary) else Diary(diary)
        self.tools = tools_of(self.diary, self._verbs, tools)
        self.writer = MemoryWriter(self.diary) if writer is None else writer
        self._user_id = user_id
        self._session_id = session_id
        self._inject = inject
        self._max_tokens = max_tokens
        self._query = query
        self._on_error = on_error
        self._tool_names = frozenset(tool.name for tool in self.tools)
        self._look_up = "recall" if "recall" in self._tool_names else ""

    # Before the model

    def before_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
        """Settle user and session, and read the memory, once for the whole turn.

        Raises:
            IdentifierError: Nobody says who the user is, or a name cannot be used.
            Exception: The memory cannot be read, and `on_error` is "raise".
        """
        return {"diary_run": _Held(self._read(self._settle(state, runtime)))}

    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
        """Do what `before_agent` does without holding the event loop."""
        run = await in_thread(self._read, self._settle(state, runtime))
        return {"diary_run": _Held(run)}

    def _settle(self, state: AgentState[Any], runtime: Runtime[Any]) -> _Run:
        messages = state["messages"]
        first, last = first_question(messages), last_question(messages)
        user = self.diary.user(agent_user(self._user_id, state, runtime)).user_id
        chat = (first.id if first is not None else None) or "chat"
        session = agent_session(self._session_id, state, runtime, default=chat)
        if last is None:
            return _Run(self, user, session, None, "")
        return _Run(self, user, session, last.id, text_of(last))

    def _read(self, run: _Run) -> _Run:
        if not self._inject:
            return run
        query = run.question if self._query == "prompt" else None
        try:
            user = self.diary.user(run.user)
            lines = user.memory_lines(query or None, but_session=run.session).shown
            memory = render_memory(lines, max_tokens=self._max_tokens, look_up=self._look_up)
        except Exception as error:
            if self._on_error == "raise":
                raise
            _logger.warning("a run goes on without its memory: %s", type(error).__name__)
            return run
        return replace(run, memory=memory)

    def _settled(self, state: AgentState[Any]) -> _Run | None:
        """Return what `before_agent` settled; None in a run that was resumed after it."""
        held = cast("dict[str, Any]", state).get("diary_run")
        return held.run if isinstance(held, _Held) and held.run.owner is self else None

    # Around the model

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelCallResult[Any]:
        """Show the memory to the model, in this call only."""
        run = self._settled(request.state)
        if run is None:
            run = self._read(self._settle(request.state, request.runtime))
        try:
            return handler(self._shown(request, run))
        except GraphBubbleUp:  # an interrupt: the run goes on later
            raise
        except Exception:
            self._submit_broken(run, request.state, "failed")
            raise

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelCallResult[Any]:
        """Show the memory to the model, in this call only."""
        run = self._settled(request.state)
        if run is None:
            run = await in_thread(self._read, self._settle(request.state, request.runtime))
        try:
            return await handler(self._shown(request, run))
        except GraphBubbleUp:  # an interrupt: the run goes on later
            raise
        except asyncio.CancelledError:
            self._submit_broken(run, request.state, "cancelled")
            raise
        except Exception:
            self._submit_broken(run, request.state, "failed")
            raise

    def _shown(self, request: ModelRequest[Any], run: _Run) -> ModelRequest[Any]:
        if not run.memory:
            return request
        if self._inject == "instructions":
            return request.override(system_message=with_text(request.system_message, run.memory))
        return request.override(messages=with_memory(request.messages, run.question_id, run.memory))

    # After the turn

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Queue the finished turn; extraction goes on in the background.

        Raises:
            Exception: The writer does not take it, and `on_error` is "raise".
        """
        run = self._settled(state) or self._settle(state, runtime)
        try:
            self._submit(run, state, "completed")
        except Exception as error:
            if self._on_error == "raise":
                raise
            _logger.warning("a turn could not be queued: %s", type(error).__name__)

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Do what `after_agent` does: queueing waits for nothing."""
        self.after_agent(state, runtime)

    def _submit_broken(self, run: _Run, state: AgentState[Any], status: TurnStatus) -> None:
        try:
            self._submit(run, state, status)
        except Exception as error:  # noqa: BLE001 - the model's own error is the one to raise
            _logger.warning("a turn could not be queued: %s", type(error).__name__)

    def _submit(self, run: _Run, state: AgentState[Any], status: TurnStatus) -> None:
        said = said_since(state["messages"], run.question_id, run.question)
        if said is None:
            return
        # The same turn is the same operation, however often a host resumes, retries or replays it.
        operation = _digest(status, run.session, run.question_id or "", *said)
        self.writer.submit_nowait(
            Turn(run.user, run.session, *said, status=status, operation_id=operation)
        )

    # The tools

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Let the diary's tools know whose run it is; other tools are called as they are."""
        with self._known_to_tools(request):
            return handler(request)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Let the diary's tools know whose run it is; other tools are called as they are."""
        with self._known_to_tools(request):
            return await handler(request)

    @contextmanager
    def _known_to_tools(self, request: ToolCallRequest) -> Generator[None]:
        if request.tool_call["name"] not in self._tool_names:
            yield
            return
        called: Any = request  # its runtime is no `Runtime`, but has all that is asked of one here
        run = self._settled(called.state) or self._settle(called.state, called.runtime)
        token = _calling.set((run, _call_id(request)))
        try:
            yield
        finally:
            _calling.reset(token)

    def _verbs(self, config: RunnableConfig) -> MemoryVerbs:
        run, call_id = _calling.get() or (None, "")
        if run is None or run.owner is not self:  # called by somebody else than the agent
            bound = self._user_id if isinstance(self._user_id, str) else None
            user, session = resolve_user(bound, config), resolve_session(None, config)
            return MemoryVerbs(self.diary.user(user), session)
        return MemoryVerbs(self.diary.user(run.user), run.session, operation_id=call_id)


def _call_id(request: ToolCallRequest) -> str:
    """Return an id that the same call has when a host repeats it, and no other call has."""
    call, state = request.tool_call, cast("dict[str, Any]", request.state)
    asked_by = state["messages"][-1].id  # some models number the calls of each answer anew
    return _digest(str(asked_by), str(call["id"]), call["name"], repr(call["args"]))


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=16).hexdigest()
