"""Middleware for `create_agent`: shows the model the memory, and submits finished turns to a writer.

agent = create_agent(model, tools, middleware=[DiaryMiddleware("./memories", user_id="alice")])
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast

from langchain.agents.middleware import PIIDetectionError
from langchain.agents.middleware.types import AgentMiddleware, AgentState, ExtendedModelResponse
from langchain.tools import ToolRuntime
from langchain_core.runnables import ensure_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt, ParentCommand
from langgraph.types import Command, Overwrite
from typing_extensions import TypeVar  # Python 3.11 has none with a default

from tomldiary.agents.identity import checked_id, saves_checkpoints
from tomldiary.agents.options import checked_episodes, memory_name, one_of
from tomldiary.agents.shown_memory import ShownMemory
from tomldiary.agents.submission import (
    AgentWriter,
    SubmittedMessages,
    errors_logged,
    is_rolled_back,
    store_turn,
    submit_turn,
    with_ids,
)
from tomldiary.agents.turn_messages import (
    Spoken,
    digest,
    digested,
    exchange_of,
    of_memory,
    or_left_out,
)
from tomldiary.agents.verbs import VERBS, MemoryVerbs, Verb
from tomldiary.diary import Diary, diary_of
from tomldiary.errors import IdentifierError
from tomldiary.extraction.context import Turn as WriterTurn
from tomldiary.logging import get_logger
from tomldiary.runtime.async_bridge import in_thread
from tomldiary_langchain.endings import endings
from tomldiary_langchain.identity import (
    AgentWho,
    agent_config,
    agent_session,
    agent_user,
    asenders,
    senders,
    session_within,
    within_turn,
)
from tomldiary_langchain.tools import tools_of, verbs_in
from tomldiary_langchain.turns import (
    Chats,
    DiaryState,
    Noted,
    Notes,
    Run,
    Turn,
    asked_in,
    behind_in,
    ended_in,
    forms_in,
    identified,
    notes_in,
    returned_in,
    said_in,
    turn_of,
    unanswered_in,
    with_memory,
    with_text,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence

    from langchain.agents.middleware.types import (
        ModelCallResult,
        ModelRequest,
        ModelResponse,
        ToolCallRequest,
    )
    from langchain_core.messages import BaseMessage, ToolMessage
    from langchain_core.runnables import RunnableConfig
    from langgraph.runtime import Runtime
    from langgraph.typing import StateLike  # pyright: ignore[reportPrivateImportUsage] - the bound there

    from tomldiary.extraction.context import TurnStatus
    from tomldiary.writer.writer import MemoryWriter

__all__ = ["DiaryMiddleware", "DiaryState"]

ContextT = TypeVar("ContextT", bound="StateLike | None", default=Any)
"""The context type of the agent; any for a middleware outside of one."""
_logger = get_logger(__name__)
_NOT_STORED = "a turn could not be stored"
_LOOK_UP_SECONDS = 1.0
"""How long a run waits for the user's lock to look up its words, because the model waits too."""
_IN_GRAPH = "|"
"""Part of a node's namespace of checkpoints if the graph of the node is a node itself."""
_SEPARATOR = "-"
"""The text between the parts of an operation id."""
_NO_OTHERS: Mapping[str, str] = MappingProxyType({})


_calling: ContextVar[Mapping[object, tuple[Run, ToolCallRequest | None]]] = ContextVar(
    "tomldiary_langchain_calling", default=MappingProxyType({})
)
"""The run whose tool is being called, and the call if the tool is ours, by middleware; LangChain's tools have no access
to the state."""


class DiaryMiddleware(AgentMiddleware[AgentState[Any], ContextT]):
    """Shows the model the memory of its user, and submits each finished turn to a writer once.

    The memory is read once per turn and added to each model call, in front of the turn. It is not stored in state,
    history or checkpoints. A run that names no user fails before its model is called.

    A turn has all messages of the user since the last answer. A run that fails, is cancelled or is abandoned is
    submitted too, with the status "failed", "cancelled" or "aborted". Submitting the same turn again has no effect.
    In a sub-agent the memory is shown, but nothing is recorded, because the user did not write its prompt.

    For type checkers, `DiaryMiddleware[Caller](…)` gives the agent's context the type `Caller`.

    Args:
        diary: A diary, or a folder or an address, which gets the built-in preference table.
        user_id: The user, or a function of state and runtime; None looks it up in the run's context, config and
            metadata.
        session_id: The session, given in the same ways; None takes `session_id` or `thread_id` of the run, or else
            the id of the chat's first question.
        writer: Extracts the turns in the background; None takes the writer that all agents of the diary share. It is
            the attribute `writer`.
        tools: The tools for the model: "none", "read" (those that change nothing), "all", or names.
        inject: "user" shows the memory as a user message, "instructions" in the system message; False does not
            show it.
        max_tokens: The budget of the memory.
        token_counter: Counts the tokens of a text; None estimates them by script.
        query: "cut" shows entries that match the question first if the memory exceeds the budget, "prompt" always;
            "none" orders entries by count and date.
        on_error: If the memory cannot be read or the turn cannot be stored, "ignore" logs the error and continues,
            "raise" fails the run.
        episodes: Whether turns are stored word for word as episodes; None takes the diary's setting.
        name: The name of the memory, if an agent has several: the model sees it with the memory, and the names of
            the tools begin with it.

    Raises:
        InvalidValue: An option has a value that is not listed here, or the writer is of another diary.
    """

    state_schema = DiaryState

    def __init__(
        self,
        diary: Diary | str | os.PathLike[str],
        *,
        user_id: AgentWho = None,
        session_id: AgentWho = None,
        writer: MemoryWriter | None = None,
        tools: Literal["none", "read", "all"] | Collection[Verb] = "none",
        inject: Literal["user", "instructions", False] = "user",
        max_tokens: int = 1500,
        token_counter: Callable[[str], int] | None = None,
        query: Literal["cut", "prompt", "none"] = "cut",
        on_error: Literal["ignore", "raise"] = "ignore",
        name: str = "",
        episodes: bool | None = None,
    ) -> None:
        one_of("inject", inject, ("user", "instructions", False))
        one_of("on_error", on_error, ("ignore", "raise"))
        self.diary = diary_of(diary)
        self._memory_name = memory_name(name)
        names = {tool: f"{name}_{tool}" for tool in VERBS} if name else None
        self.tools = tools_of(self.diary, self._verbs, tools, names)
        self.writer = writer
        self._user_id = checked_id("user_id", user_id, "state", "runtime")
        self._session_id = checked_id("session_id", session_id, "state", "runtime")
        self._inject = inject
        self._shown_memory = ShownMemory(max_tokens, token_counter, query, name=name)
        self._on_error = on_error
        self._episodes = checked_episodes(episodes)
        self._tool_names = frozenset(tool.name for tool in self.tools)
        look_up = f"{name}_recall" if name else "recall"
        self._look_up = look_up if look_up in self._tool_names else ""
        self._endings = endings()
        self._chats = of_memory(self.diary, Chats)
        self._submitted = of_memory(self.diary, SubmittedMessages)
        # An agent with a user of its own knows other senders of messages than the nodes of its graph.
        self._where = "" if user_id is None else f"{self.name} {user_id}"

    def __repr__(self) -> str:
        user = "" if self._user_id is None else f", user_id={self._user_id!r}"
        return f"{self.name}({self.diary!r}{user})"

    @property
    def name(self) -> str:
        """The name of the middleware, which is unique in an agent."""
        kind = type(self).__name__
        return f"{kind}[{self._memory_name}]" if self._memory_name else kind

    @property
    def writer(self) -> MemoryWriter:
        """The writer that gets the turns."""
        return self._writer.current

    @writer.setter
    def writer(self, given: MemoryWriter | None) -> None:
        self._writer = AgentWriter(given, self.diary)

    # Before the model

    def before_agent(self, state: AgentState[Any], runtime: Runtime[ContextT]) -> dict[str, Any]:
        """Resolve user and session, and read the memory, once for the whole turn.

        Raises:
            IdentifierError: The run names no user, or a name is invalid.
            Exception: The memory cannot be read, and `on_error` is "raise".
        """
        user, earlier = agent_user(self._user_id, state, runtime), self._ids_of_earlier_runs(state)
        others = senders(agent_config(), user, earlier) if self._user_id is None else _NO_OTHERS
        run = self._new_run(state, runtime, begins=True, earlier=earlier, others=others)
        return self._update_at_begin(state, self._read_memory(run))

    async def abefore_agent(
        self, state: AgentState[Any], runtime: Runtime[ContextT]
    ) -> dict[str, Any]:
        """Do what `before_agent` does without holding the event loop."""
        user, earlier = agent_user(self._user_id, state, runtime), self._ids_of_earlier_runs(state)
        others = (
            await asenders(agent_config(), user, earlier) if self._user_id is None else _NO_OTHERS
        )
        run = self._new_run(state, runtime, begins=True, earlier=earlier, others=others)
        return self._update_at_begin(state, await in_thread(self._read_memory, run))

    def _ids_of_earlier_runs(self, state: AgentState[Any]) -> frozenset[str]:
        """Return ids of unanswered messages without notes if an earlier run may have been given some of them."""
        ids = unanswered_in(state["messages"]).difference(notes_in(state, self.name)["unanswered"])
        config = agent_config()
        found = [one for one in state["messages"] if one.id in ids]
        is_only_new = (
            len(found) == 1
            and not self._endings.is_continued(config)
            # Else a graph gives its agents single messages of the thread, as `Send` does.
            and self._endings.is_input(config, found[0])
        )
        return frozenset() if is_only_new else frozenset(ids)

    def _update_at_begin(self, state: AgentState[Any], run: Run) -> dict[str, Any]:
        update = self._update(self._noted_of(state, run), notes_in(state, self.name)["ended"])
        update["diary_graph"] = str(self._endings.graph_of(agent_config()) or "")
        if not all(one.id for one in state["messages"]):  # the next run must recognise them
            update["messages"] = Overwrite(run.messages)
        return update

    def _update(self, unanswered: dict[str, Noted], ended: dict[str, str]) -> dict[str, Any]:
        return {"diary_notes": {self.name: Notes(unanswered=unanswered, ended=ended)}}

    def _noted(
        self,
        state: AgentState[Any],
        user: str,
        unanswered: Sequence[Spoken],
        messages: Sequence[BaseMessage],
    ) -> dict[str, Noted]:
        """Return notes of the unanswered messages in a part of the thread, by id, in the run of a user."""
        known, behind = notes_in(state, self.name)["unanswered"], behind_in(messages)
        forms = forms_in(messages, [one.id for one in unanswered])
        return {
            one.id: Noted(
                text=one.text,
                by=known[one.id]["by"] if one.id in known else self._owner(state, user, one),
                behind=known[one.id]["behind"] if one.id in known else behind.get(one.id, ""),
                form=forms.get(one.id, ""),
            )
            for one in unanswered
        }

    def _noted_of(self, state: AgentState[Any], run: Run) -> dict[str, Noted]:
        return self._noted(state, run.user, run.turn.unanswered, run.messages)

    def _owner(self, state: AgentState[Any], user: str, message: Spoken) -> str:
        """Return a digest of the user who wrote an unanswered message; it is `user` if nothing else is known."""
        known = notes_in(state, self.name)["unanswered"].get(message.id)
        noted = None if known is None else known["by"]
        settings = agent_config().get("configurable")
        return self._submitted.owner(settings, self._where, noted, message, digest(user))

    def _new_run(
        self,
        state: AgentState[Any],
        runtime: Runtime[ContextT],
        *,
        begins: bool = False,
        earlier: Collection[str] = (),
        others: Mapping[str, str] = _NO_OTHERS,
    ) -> Run:
        """Return a new record of the run that calls this hook, and watch how the run ends.

        Args:
            state: The agent's state.
            runtime: LangGraph's runtime.
            begins: Whether the run of the agent begins.
            earlier: The ids of unanswered messages without notes that an earlier run may have been given.
            others: The users who wrote some of these messages, by id, if they are not the user of the run.
        """
        messages, config = identified(state["messages"]), agent_config()
        user = self.diary.user(agent_user(self._user_id, state, runtime)).user_id
        named = agent_session(self._session_id, state, runtime)
        within = session_within(self.diary, user, named) if self._session_id is None else named
        session = within or self._chats.session(user, messages)
        own, settings = digest(user), config.get("configurable", {})
        is_saved = saves_checkpoints(settings)
        turn = turn_of(
            messages,
            lambda one: self._submitted.has(user, session, one),
            lambda one: self._owner(state, others.get(one.id, user), one) != own,
            notes_in(state, self.name),
            self._endings.given_to(self._endings.graph_of(config)) if begins else None,
            # The forms are those of the model call that asked for the tool.
            is_noted=isinstance(runtime, ToolRuntime),
            is_saved=is_saved,
        )
        first_session, ids = self._first_attempt(config, user, named, session, turn)
        # Within a graph, the notes of a run that broke off are lost, and a client may send its message again.
        has_no_notes = is_saved and _IN_GRAPH in str(settings.get("checkpoint_ns"))
        known = frozenset(turn.ids)
        if begins and not has_no_notes:
            known = frozenset(earlier).union(notes_in(state, self.name)["unanswered"])
        is_delegated = self._endings.is_delegated(config)
        run = Run(
            user,
            first_session,
            turn,
            ids,
            messages,
            turn.asked,
            known=frozenset() if is_delegated else known,  # what is not submitted is not looked up
            is_delegated=is_delegated,
            is_saved=is_saved,
        )
        run.see(messages)  # an earlier run may have changed them
        self._endings.watch(config, self, run, self._submit_broken)
        return run

    def _first_attempt(
        self, config: RunnableConfig, user: str, named: str, session: str, turn: Turn
    ) -> tuple[str, tuple[str, ...]]:
        """Return the session of a turn and the ids of `turn.asked`, as the first attempt of the run had them.

        A replay gives the messages other ids. A retry gets another session if the run names none.
        """
        settings = config.get("configurable")
        ids = self._submitted.first_ids(settings, user, session, turn.before, turn.own)
        of_asked = ids[len(turn.own) - len(turn.asked) :]  # the last ones of `own`
        attempt = self._endings.attempt_of(config)
        return self._submitted.first_attempt(attempt, user, named, turn.asked, (session, of_asked))

    def _read_memory(self, run: Run) -> Run:
        """Read the memory and the fencing token of the user into a run, and return the run."""
        with self._errors("a run continues without its memory"):
            user = self.diary.user(run.user)
            run.epoch = user.epoch
            if self._inject:
                lines = self._shown_memory.lines(user, run.session, run.turn.question)
                run.memory = self._shown_memory.text(lines, self._look_up)
        self._note_submitted(run)
        return run

    def _note_submitted(self, run: Run) -> None:
        """Note the unanswered messages of the run that another process has submitted already."""
        said = with_ids(run.turn.asked, run.turn.ids, run.ids)
        with errors_logged("ignore", "a turn may be recorded twice", _logger):
            words = {
                self._words_id(run, one): first
                for one, first in zip(run.turn.asked, said, strict=True)
                if one.id in run.known and not self._submitted.has(run.user, run.session, first)
            }
            if not words:
                return
            done = self.diary.engine.done_operations(run.user, _LOOK_UP_SECONDS)
            run.done = {part for each in done for part in each.split(_SEPARATOR)}
            submitted = [one for id_, one in words.items() if id_ in run.done]
            self._submitted.note(run.user, run.session, submitted)

    def _watched_run(self, state: AgentState[Any]) -> Run | None:
        """Return the record that an earlier hook of the run made; None if this is the first hook of a resumed run."""
        graph = str(cast("dict[str, Any]", state).get("diary_graph") or "")
        return self._endings.watched(ensure_config(), self, graph)

    def _run_of(self, request: ModelRequest[ContextT] | ToolCallRequest) -> Run:
        called: Any = request  # a tool's runtime is no `Runtime`, but has the same attributes
        return self._watched_run(called.state) or self._read_memory(
            self._new_run(called.state, called.runtime)
        )

    async def _arun_of(self, request: ModelRequest[ContextT] | ToolCallRequest) -> Run:
        called: Any = request
        run = self._watched_run(called.state)
        return run or await in_thread(
            self._read_memory, self._new_run(called.state, called.runtime)
        )

    # Around the model

    def wrap_model_call(
        self,
        request: ModelRequest[ContextT],
        handler: Callable[[ModelRequest[ContextT]], ModelResponse[Any]],
    ) -> ModelCallResult[Any]:
        """Show the memory to the model, in this call only."""
        run = self._run_of(request)
        return self._with_response(run, request, handler(self._shown(request, run)))

    async def awrap_model_call(
        self,
        request: ModelRequest[ContextT],
        handler: Callable[[ModelRequest[ContextT]], Awaitable[ModelResponse[Any]]],
    ) -> ModelCallResult[Any]:
        """Show the memory to the model, in this call only."""
        run = await self._arun_of(request)
        return self._with_response(run, request, await handler(self._shown(request, run)))

    def _shown(self, request: ModelRequest[ContextT], run: Run) -> ModelRequest[ContextT]:
        run.see(request.state["messages"])
        self._noted_of(request.state, run)  # before the model is called, which may fail
        if not run.memory:
            return request
        if self._inject == "instructions":
            return request.override(system_message=with_text(request.system_message, run.memory))
        return request.override(messages=with_memory(request.messages, run.turn, run.memory))

    def _with_response(
        self, run: Run, request: ModelRequest[ContextT], response: ModelResponse[Any]
    ) -> ModelCallResult[Any]:
        run.messages = [*request.state["messages"], *response.result]
        noted, known = self._noted_of(request.state, run), notes_in(request.state, self.name)
        if noted == known["unanswered"]:
            return response
        update = self._update(noted, known["ended"])
        return ExtendedModelResponse(response, Command(update=update))

    # After the turn

    def after_agent(self, state: AgentState[Any], runtime: Runtime[ContextT]) -> dict[str, Any]:
        """Submit the finished turn, for extraction in the background; wait until it is stored.

        Raises:
            Exception: The turn cannot be stored, or the queue is full, and `on_error` is "raise".
        """
        run = self._run_at_end(state, runtime)
        self._note_submitted(run)
        with self._errors(_NOT_STORED), self._turn(run, state, "completed") as turn:
            if turn is not None:
                store_turn(self._writer, turn)
        return self._update_at_end(state, run)

    async def aafter_agent(
        self, state: AgentState[Any], runtime: Runtime[ContextT]
    ) -> dict[str, Any]:
        """Do what `after_agent` does without holding the event loop; also wait while the queue is full."""
        run = self._run_at_end(state, runtime)
        if run.known:
            await in_thread(self._note_submitted, run)
        with self._errors(_NOT_STORED), self._turn(run, state, "completed") as turn:
            if turn is not None:
                await submit_turn(self._writer, turn)
        return self._update_at_end(state, run)

    def _run_at_end(self, state: AgentState[Any], runtime: Runtime[ContextT]) -> Run:
        run = self._watched_run(state) or self._new_run(state, runtime)
        run.is_over = True
        return run

    def _update_at_end(self, state: AgentState[Any], run: Run) -> dict[str, Any]:
        self._submitted.answered(agent_config().get("configurable"), self._where, run.turn.asked)
        return self._update({}, ended_in(state["messages"]))

    def _submit_broken(self, run: Run, error: BaseException) -> None:
        """Queue the turn of a run that ended in an error."""
        if run.is_over or is_rolled_back(error):
            return
        status: TurnStatus = "failed"
        if isinstance(error, ParentCommand):  # a handoff: another agent has answered
            status = "completed"
        elif isinstance(error, GraphInterrupt | PIIDetectionError):
            return  # after an interrupt the run continues later; blocked texts must not be stored
        elif isinstance(error, GraphBubbleUp):  # the graph was drained
            if run.is_saved:
                return
            status = "aborted"
        elif isinstance(error, GeneratorExit):
            status = "aborted"
        elif isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            status = "cancelled"
        state: AgentState[Any] = {"messages": cast("Any", run.messages)}
        # The run's own error is the one to raise.
        with errors_logged("ignore", _NOT_STORED, _logger), self._turn(run, state, status) as turn:
            if turn is not None:
                self._writer.submit_later(turn)

    def _errors(self, what: str) -> AbstractContextManager[None]:
        return errors_logged(self._on_error, what, _logger)

    @contextmanager
    def _turn(
        self, run: Run, state: AgentState[Any], status: TurnStatus
    ) -> Generator[WriterTurn | None]:
        """Yield the new part of a run's turn, to be submitted in the block; None if there is none."""
        messages = cast("list[BaseMessage]", state["messages"])
        said = said_in(run.turn, messages, state.get("structured_response"))
        if run.is_delegated or not said:
            yield None
            return
        said = with_ids(said, run.turn.ids, run.ids)
        self._chats.keep(run.user, messages, run.session)
        # Resumed, retried and replayed runs have the same operation id.
        whole = digested(self.diary, exchange_of(said, is_over=status == "completed"))
        turn = WriterTurn(
            run.user,
            run.session,
            "",
            "",
            status=status,
            operation_id=digest(self.name, status, run.session, *run.ids, run.turn.behind, *whole),
            earlier=run.turn.earlier or None,
            episode=self._episodes,
            epoch=run.epoch,
        )
        if turn.operation_id in run.done:
            self._submitted.note(run.user, run.session, said)
            yield None
            return
        words: list[str] = []
        asked = with_ids(run.turn.asked, run.turn.ids, run.ids)
        if not all(self._submitted.has(run.user, run.session, one) for one in asked):
            # another process finds the words by their ids; answers need none
            own = {one.id for one in run.turn.own}
            words = [self._words_id(run, one) for one in run.turn.unanswered if one.id in own]
        # In a replay the messages have other ids in the thread.
        forms = [*run.as_said, *with_ids(run.as_said, run.turn.ids, run.ids)]
        with self._submitted.once(
            turn, said, forms, diary=self.diary, outlives_cancellation=True
        ) as new:
            if new is None:
                yield None
            else:
                yield replace(new, operation_id=_SEPARATOR.join([*words, new.operation_id]))

    def _words_id(self, run: Run, words: Spoken) -> str:
        """Return a part of the operation id of a turn; a process that resumes the run finds the words by this.

        The last part depends on the answer and the status, because two runs with the words may differ in these.
        """
        return digest("unfinished", run.session, words.id, digested(self.diary, words.text))

    # The tools

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Pass the run to the diary's tools, and note the words of the user that a tool returns."""
        run = self._run_of(request)
        with self._known_to_tools(run, request):
            result = handler(request)
        return self._with_notes(run, request, result)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Pass the run to the diary's tools, and note the words of the user that a tool returns."""
        run = await self._arun_of(request)
        with self._known_to_tools(run, request):
            result = await handler(request)
        return self._with_notes(run, request, result)

    def _with_notes(self, run: Run, request: ToolCallRequest, result: Any) -> Any:
        """Return the result of a tool with notes of the user's messages in it, because one checkpoint stores both."""
        if isinstance(result, list):
            results = cast("list[Any]", result)
            return [self._with_notes(run, request, one) for one in results]
        messages, state = returned_in(result), request.state
        present = {one.id for one in state["messages"]}  # the tool may write the thread again
        said = [one for one in asked_in(messages) if one.id not in present]
        if not said:
            return result
        noted = self._noted(state, run.user, said, [*state["messages"][-1:], *messages])
        run.of_tools.update(noted)
        notes = {**result.update.get("diary_notes", {}), self.name: {"unanswered": noted}}
        update = {**result.update, "messages": messages, "diary_notes": notes}
        return replace(result, update=update)

    @contextmanager
    def _known_to_tools(self, run: Run, request: ToolCallRequest) -> Generator[None]:
        run.see(request.state["messages"])  # an `after_model` may have redacted the answer
        is_ours = request.tool_call["name"] in self._tool_names
        # A later middleware may replace the call by one of our tools, for example after a review.
        called: Any = request
        with within_turn(self.diary, run.user, run.session, called.runtime.context):
            if not (is_ours or callable(self._user_id)):
                yield
                return
            call = run, request if is_ours else None
            token = _calling.set({**_calling.get(), self: call})
            try:
                yield
            finally:
                _calling.reset(token)

    def _verbs(self, config: RunnableConfig) -> MemoryVerbs:
        run, call = _calling.get().get(self, (None, None))
        if run is None:  # not called by the agent
            if callable(self._user_id):  # it needs a state; the config could name another user
                raise IdentifierError(
                    "user_id is a function of the agent's run. Outside of it use diary_tools(diary, user_id)."
                )
            named = None if callable(self._session_id) else self._session_id
            return verbs_in(self.diary, self._user_id, named, config)
        user = self.diary.user(run.user)
        # Here, because a function that redacts may be slow: an async tool has left the event loop.
        call_id = _call_id(self.diary, call) if call else ""
        return MemoryVerbs(user, run.session, operation_id=call_id, epoch=run.epoch)


def _call_id(diary: Diary, request: ToolCallRequest) -> str:
    """Return an id of a tool call that stays the same when a host repeats it."""
    call, state = request.tool_call, cast("dict[str, Any]", request.state)
    asked_by = state["messages"][-1].id  # some models reuse call ids in each answer
    given = or_left_out("the input of a tool", lambda: repr(digested(diary, call["args"])))
    return digest(str(asked_by), str(call["id"]), call["name"], given or "")
