"""A capability for the diary of an agent's user: it injects memory, adds tools, and records turns."""

from __future__ import annotations

import asyncio
import copy
import logging
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence  # noqa: TC003 - annotations are looked up at run time
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

from pydantic_ai import RunContext, TemplateStr, capabilities
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.messages import ModelResponse
from pydantic_ai.tools import AgentDepsT

from tomldiary.agents.delegation import LANGCHAIN, is_within
from tomldiary.agents.options import checked_episodes, checked_flag, checked_text
from tomldiary.agents.submission import AgentWriter, is_rolled_back, submit_turn
from tomldiary.agents.turn_messages import digest, digested
from tomldiary.agents.utterances import RunIds, UserTurn
from tomldiary.agents.verbs import Verb  # noqa: TC001 - annotations are looked up at run time
from tomldiary.compaction.draft import CompactionDeps
from tomldiary.diary import Diary
from tomldiary.errors import IdentifierError, InvalidValue, cause_of
from tomldiary.extraction.context import Turn, TurnStatus  # noqa: TC001 - engines look up annotations at run time
from tomldiary.extraction.draft import MemoryDeps
from tomldiary.logging import get_logger, tell
from tomldiary.retrieval.injection import has_snapshot, next_injection
from tomldiary.retrieval.ranking import MemoryLines
from tomldiary.runtime.async_bridge import current_task, is_woken_by_threads
from tomldiary_pydantic_ai.conversation import add_ids, as_data, returns_tools, shown_memory
from tomldiary_pydantic_ai.run import RunState, end_with_caller, runs_around, within_tool
from tomldiary_pydantic_ai.run_toolset import OwnedToolset, Who, filled, no_template, span
from tomldiary_pydantic_ai.toolset import DEFAULT_ID, CapabilityToolset

if TYPE_CHECKING:
    import os

    from pydantic_ai.capabilities import AgentNode, WrapRunHandler
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.output import OutputContext
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset

    from tomldiary.writer.writer import MemoryWriter

F = TypeVar("F", bound="Callable[..., Any]")

_logger = get_logger(__name__)
_OF_TOOLSET = (
    "user_id", "session_id", "tools", "descriptions", "guidance", "heading", "inject", "max_tokens",
    "token_counter", "query", "on_error", "approve",
)  # fmt: skip
"""The options that the capability passes on to its toolset."""


class _Writer:
    """The field `writer`: it is set to a writer or None, and read as the writer in use, or None if `record` is False."""

    def __get__(self, capability: object, owner: object = None) -> MemoryWriter:
        held: Any = self if capability is None else vars(capability)["writer"]
        return held.current if isinstance(held, AgentWriter) else held

    def __set__(self, capability: object, given: MemoryWriter | AgentWriter | Self | None) -> None:
        vars(capability)["writer"] = None if given is self else given  # it is its own default


def durable_operation(name: str) -> Callable[[F], F]:
    """Return a decorator that lets a durable execution engine record and replay a method's result.

    Results are plain values: in Temporal's sandbox, pydantic cannot look up the types of this package.
    """
    mark: Callable[[str], Callable[[F], F]] | None = getattr(
        capabilities, "durable_operation", None
    )
    return (lambda method: method) if mark is None else mark(name)


@dataclass
class DiaryCapability(AbstractCapability[AgentDepsT]):
    """The diary of the user an agent talks to, for `Agent(capabilities=[DiaryCapability(...)])`.

    One constant instruction explains the diary to the model. The memory is put into the conversation as data: first as a
    whole, afterwards only its changes. Earlier messages stay the same, so prompt caches remain valid. Pass the messages
    on from run to run; without them, the next run gets the whole memory again.

    Each run is submitted to the `writer` as a turn when it ends, even if it was cancelled, abandoned or failed.

    The user is resolved when the run begins. A run without a user fails before its model is called.

    The options `user_id`, `session_id`, `tools`, `descriptions`, `guidance`, `heading`, `max_tokens`, `token_counter`,
    `query`, `on_error` and `approve` are those of `DiaryToolset`.

    With `defer_loading=True`, the model loads the capability itself; this needs `record=False`. `description` is what
    the model is told of such a capability.

    Args:
        diary: A `Diary`, or its folder or address.
        writer: Extracts the turns in the background; None takes the writer that all agents of the diary share, as the
            attribute `writer`. Flush or close it when the program no longer needs it; otherwise the interpreter
            closes it at exit.
        record: Whether turns are recorded; False stores only what the model writes with its tools.
        inject: "user" puts the memory into the conversation; "instructions" puts it into the instructions, for
            memory whose authors you trust; False does not show it.
        id: The name of this memory in the agent. Two memories of one agent or conversation need different names. The
            model sees any name but "diary" in the guidance and around the memory.
        episodes: Whether turns are stored word for word as episodes; None takes the diary's setting.

    Raises:
        InvalidValue: An option has a value that is not listed here.
    """

    diary: Diary | str | os.PathLike[str]
    user_id: Who[AgentDepsT] = None
    session_id: Who[AgentDepsT] = None
    _: KW_ONLY
    writer: _Writer = field(default=_Writer(), compare=False)
    record: bool = True
    tools: Literal["all", "read", "none"] | Collection[Verb] = "all"
    descriptions: Mapping[str, str] | None = None
    guidance: str | None = None
    heading: str = ""
    inject: Literal["user", "instructions", False] = "user"
    max_tokens: int = 1500
    token_counter: Callable[[str], int] | None = None
    query: Literal["cut", "prompt", "none"] = "cut"
    on_error: Literal["ignore", "raise"] = "ignore"
    approve: Collection[Verb] = ()
    id: str | None = DEFAULT_ID
    episodes: bool | None = None

    _toolset: CapabilityToolset[AgentDepsT] = field(init=False, repr=False, compare=False)
    _run: RunState | None = field(default=None, init=False, repr=False, compare=False)
    _prefixes: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        checked_flag(self.record, "record")
        checked_episodes(self.episodes)
        given = cast("MemoryWriter | None", self.writer)
        if not self.record and given is not None:
            raise InvalidValue("record=False keeps no turns. Leave the writer out.", where="writer")
        if self.defer_loading and self.record:
            raise InvalidValue(
                "no turn is recorded before the model loads the memory. Give record=False beside it.",
                where="defer_loading",
            )
        self._toolset = CapabilityToolset(
            self.diary,
            id=self.id or DEFAULT_ID,
            **{name: getattr(self, name) for name in _OF_TOOLSET},
        )
        if self.record:
            self.writer = AgentWriter(given, self._toolset.diary)
            self._toolset.records = True

    @classmethod
    def from_spec(  # noqa: D417 - the others are those of the class
        cls,
        diary: str,
        user_id: TemplateStr[Any] | str | None = None,
        session_id: TemplateStr[Any] | str | None = None,
        *,
        extractor: str | None = None,
        record: bool = True,
        tools: Literal["all", "read", "none"] | list[Verb] = "all",
        descriptions: dict[str, str] | None = None,
        guidance: str | None = None,
        heading: str = "",
        inject: Literal["user", "instructions", False] = "user",
        max_tokens: int = 1500,
        query: Literal["cut", "prompt", "none"] = "cut",
        on_error: Literal["ignore", "raise"] = "ignore",
        approve: list[Verb] | None = None,
        id: str = DEFAULT_ID,  # noqa: A002 - the framework's word
        episodes: bool | None = None,
    ) -> DiaryCapability[Any]:
        """Make a capability from an agent spec; the other options are those of the class.

        Args:
            diary: The path of the folder.
            user_id: The user or a template such as "{{user}}", which is filled in from the deps of each run; None looks
                in the deps and the metadata.
            extractor: "rules" or the name of a model; None takes $EXTRACTOR_MODEL, or the default model.
        """
        opened = Diary(
            no_template("diary", diary, "Give one folder for all users."), agent=extractor
        )
        return DiaryCapability(
            opened,
            filled(user_id),
            filled(session_id),
            record=record,
            tools=tools,
            descriptions=descriptions,
            guidance=guidance,
            heading=heading,
            inject=inject,
            max_tokens=max_tokens,
            query=query,
            on_error=on_error,
            approve=approve or (),
            id=id,
            episodes=episodes,
        )

    @classmethod
    def combine(
        cls, capabilities: Sequence[AbstractCapability[AgentDepsT]]
    ) -> AbstractCapability[AgentDepsT]:
        """Return the first of several equal capabilities.

        Raises:
            InvalidValue: They differ. Merging them could replace the memory of one user by that of another.
        """
        first, *others = capabilities
        if any(other != first for other in others):
            raise InvalidValue(
                f"two memories of the agent have the id {first.id!r}. Give each its own.",
                where="id",
            )
        return first

    def get_ordering(self) -> CapabilityOrdering:
        """Run after all capabilities that change the history, so that the memory is added to the final history."""
        return CapabilityOrdering(position="innermost")

    def get_toolset(self) -> AbstractToolset[AgentDepsT]:
        """Return the tools; in a run, bound to its owner. Durable execution needs the same object inside for every run."""
        run, tools = self._run, self._toolset
        offered: AbstractToolset[AgentDepsT] = tools
        if run is not None:
            # Here, because the framework calls `for_run` in another task.
            run.caller = current_task()
            offered = OwnedToolset(tools, tools, run.owner, run.turn.ids.run, run)
        for prefix in self._prefixes:
            offered = offered.prefixed(prefix)
        return offered

    def prefix_tools(self, prefix: str) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride] - no wrapper
        """Return a copy whose tools have names with a prefix.

        The framework's wrapper would hide the durable operations from the engines.
        """
        prefixed = copy.copy(self)
        prefixed._prefixes = (*self._prefixes, checked_text(prefix, "prefix"))  # noqa: SLF001 - a copy of this object
        return prefixed

    # A run

    async def for_run(self, ctx: RunContext[AgentDepsT]) -> DiaryCapability[AgentDepsT]:
        """Return the capability for one run, whose user and session are resolved now; this reads no memory.

        Raises:
            IdentifierError: See `RunToolset.found_owner` and `RunToolset.enter`.
        """
        if type(ctx) is not RunContext:
            # An engine rebuilt it, without messages, for one durable operation, whose arguments name the user.
            return self
        owner = self._toolset.found_owner(ctx)
        diary, memory = self._toolset.diary, self._toolset.id or ""
        scope = digest(memory, owner.user)[:16]
        # A host may give one agent as the extractor, too.
        is_turn = not (isinstance(ctx.deps, MemoryDeps | CompactionDeps) or is_within(LANGCHAIN))
        records, around = self.record and is_turn, runs_around(diary, owner.user)
        ids = RunIds(ctx.conversation_id or ctx.run_id, ctx.run_id)
        turn = UserTurn(memory, owner, ids)
        run = copy.copy(self)
        run._run = RunState(diary, turn, scope, records, around)  # noqa: SLF001 - a copy of this object
        run._run.begin(ctx, self._toolset.turns)  # noqa: SLF001 - the same
        try:  # now, because also words of a refused run are those of its user
            self._toolset.enter(ctx, owner, scope)
        except IdentifierError:
            self._toolset.turns.end(turn)
            raise
        return run

    async def wrap_run(
        self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler
    ) -> AgentRunResult[Any]:
        """Submit the turn when the run has ended, whatever its outcome."""
        run = self._run
        if run is None:
            return await handler()
        status: TurnStatus = "failed"
        result: AgentRunResult[Any] | None = None
        run.task, run.writer, caller = asyncio.current_task(), self.writer, run.caller
        end_with = partial(end_with_caller, weakref.ref(run))
        if caller is not None:
            caller.add_done_callback(end_with)
        try:
            await self._begin(ctx, run)
            result = await handler()
        except (asyncio.CancelledError, GeneratorExit) as error:
            # A coroutine that is being closed cannot await; `submit_turn` does not wait for the turn of a cancelled run.
            status = "cancelled"
            run.is_turn = run.is_turn and not is_rolled_back(error)
            raise
        except BaseException as error:
            run.is_turn = run.is_turn and not _is_taken_over(error)
            raise
        else:
            status = "completed"
            return result
        finally:
            run.has_ended = True
            try:
                if run.is_turn:
                    await self._record(ctx, run, status, result)
            finally:
                run.task = None
                if caller is not None:
                    caller.remove_done_callback(end_with)
                self._toolset.turns.end(run.turn)

    async def _begin(self, ctx: RunContext[AgentDepsT], run: RunState) -> None:
        run.epoch = run.outermost.epoch
        run.is_turn = run.records and not any(outer.records for outer in run.around)
        with self._toolset.errors(always_raised=IdentifierError):
            begun = await self._epoch(ctx, run.owner.user, run.epoch, is_turn=run.is_turn)
            _check_owner(run, begun[0])
            _, run.epoch, run.is_turn = begun

    @durable_operation("epoch")
    async def _epoch(
        self, _ctx: RunContext[AgentDepsT], user: str, epoch: int | None, *, is_turn: bool
    ) -> tuple[str, int | None, bool]:
        """Return the user, the fencing token, and whether the run is a turn of its own, as they were when the run began.

        The engine records all three, because a recovered run may lack the runs around it.
        """
        if epoch is None:
            with self._toolset.errors():
                epoch = await self._toolset.diary.turns.current_epoch(user)
        return user, epoch, is_turn

    # What the model sees

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Add the memory, or its changes, at the end of the conversation.

        Raises:
            Exception: The memory cannot be read, and `on_error` is "raise".
        """
        run = self._run
        if run is None:
            return request_context
        is_first = run.messages is None
        run.messages = ctx.messages
        run.collect(ctx.messages, ctx)
        tools = request_context.model_request_parameters.output_tools
        run.output_tools = [tool.name for tool in tools]
        if self.inject == "user":
            await self._inject(ctx, request_context, run, is_first=is_first)
        return request_context

    async def _inject(
        self,
        ctx: RunContext[AgentDepsT],
        request_context: ModelRequestContext,
        run: RunState,
        *,
        is_first: bool,
    ) -> None:
        """Add the memory, or its changes, to the messages of a request and of the run."""
        tail = request_context.messages[-1] if request_context.messages else None
        if isinstance(tail, ModelResponse):  # it is suspended and must stay the last message
            return
        memory, user = run.turn.memory, run.owner.user
        before, about = shown_memory(request_context.messages, run.scope, memory, user)
        # The memory is added before the first request, and again if a compaction removed it. Behind tool results,
        # the model could take it for words of the user, so there it is added only if the conversation has none.
        is_shown = has_snapshot(before)
        ends_in_results = returns_tools(tail) and tail.parts[-1].part_kind != "user-prompt"
        is_compacted = run.has_memory and not is_shown
        is_due = not (is_shown and ends_in_results) if is_first else is_compacted
        if is_due:
            text = await self._new_memory(ctx, run, before, about)
            if text:
                before.append(text)
                message = as_data(text, ctx, run.scope, memory)
                for last in (*request_context.messages[-1:], *ctx.messages[-1:]):
                    # Without the memory, the framework would do this.
                    if not returns_tools(last):
                        add_ids(last, ctx)
                request_context.messages = [*request_context.messages, message]
                ctx.messages.append(message)
                run.collect(ctx.messages, ctx)  # before a history processor rewrites it
        run.has_memory = run.has_memory or bool(before)

    async def _new_memory(
        self, ctx: RunContext[AgentDepsT], run: RunState, before: Sequence[str], about: str
    ) -> str:
        """Return the text to add; "" if the model sees the current memory, or it cannot be read."""
        toolset = self._toolset
        words = "\n".join(run.outermost.turn.said) if self.query != "none" else ""
        with toolset.errors(always_raised=IdentifierError), span(ctx, "inject") as noted:
            user, shown, also_true, error_type = await self._load(ctx, *run.owner, words)
            _check_owner(run, user)
            if error_type:
                noted["error_type"] = error_type
                # If nothing were shown, the model would take the memory of another user for that of this one.
                if before or not about:
                    return ""
            lines = MemoryLines(shown, also_true)
            form = toolset.shown.form(toolset.look_up(ctx))
            news = next_injection(before, lines, about=about, **form)
            noted["facts"] = len(lines.shown)
            noted["characters"] = len(news.text) if news is not None else 0
            noted["is_snapshot"] = news is not None and news.is_snapshot
            return news.text if news is not None else ""
        return ""

    @durable_operation("load")
    async def _load(
        self, _ctx: RunContext[AgentDepsT], user: str, session: str, words: str
    ) -> tuple[str, list[str], list[str], str]:
        """Return the user, the two parts of `MemoryLines`, and the type of the error if they cannot be read."""
        try:
            toolset = self._toolset
            lines = await toolset.shown.alines(toolset.diary.user(user), session, words)
        except Exception as error:  # an engine may repeat an operation that raises, without end
            with self._toolset.errors():
                raise
            return user, [], [], type(error).__name__
        return user, list(lines.shown), list(lines.also_true), ""

    # The user's words during the run

    async def before_node_run(
        self, ctx: RunContext[AgentDepsT], *, node: AgentNode[AgentDepsT]
    ) -> AgentNode[AgentDepsT]:
        """Collect enqueued words of the user before a history processor can change or remove them."""
        if self._run is not None:
            self._run.collect_enqueued(ctx)
        return node

    async def wrap_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,  # noqa: ARG002 - the framework's signature
        tool_def: ToolDefinition,  # noqa: ARG002 - the same
        args: Any,
        handler: Callable[[Any], Any],
    ) -> Any:
        """Mark runs that a tool starts: the user did not write their prompts."""
        try:
            with within_tool(self._run):
                return await handler(args)
        finally:
            if self._run is not None:
                # Later, beside the tool's result, an enqueued text looks like a part of this result.
                self._run.collect_enqueued(ctx)

    async def wrap_output_process(
        self,
        ctx: RunContext[AgentDepsT],  # noqa: ARG002 - the framework's signature
        *,
        output_context: OutputContext,
        output: Any,
        handler: Callable[[Any], Any],
    ) -> Any:
        """Mark runs that an output function starts, as for tools."""
        if self._run is not None:
            is_image = output_context.mode == "image"
            self._run.is_parsed = output_context.tool_call is None and not is_image
        with within_tool(self._run):
            return await handler(output)

    # The turn, when the run has ended

    async def _record(
        self,
        ctx: RunContext[AgentDepsT],
        run: RunState,
        status: TurnStatus,
        result: AgentRunResult[Any] | None,
    ) -> None:
        ending = run.ending(ctx, result)
        turns, first = self._toolset.turns, run.outermost
        # A replayed workflow must call the operation again, whatever this process knows of the words.
        if not (first.heard or first.turn.said or ending.answer):
            return
        # A forked or reset workflow replays the run with other ids, and with another session unless it has a name.
        of_run = digest(run.owner.user, run.turn.place, *run.heard, ending.answer)
        submission = digest(ctx.run_id or "", run.owner.session, status, of_run)
        taken = turns.take_words(first.turn, submission)
        with span(ctx, "submit") as noted:
            noted["status"] = status
            is_submitted = False
            try:
                turn = run.submitted(taken.texts, ending, status, self.episodes)
                if status == "failed" and not _is_in_temporal():
                    await self._check(ctx)
                is_own = await self._submit(ctx, turn, of_run) == of_run
                # DBOS may have returned the recorded submit of an overlapping run, so this turn may not be stored.
                # Temporal confuses no results: there, another version of the program gave the answer.
                if not is_own and not _is_in_temporal():
                    await self._submit_here(turn)
                is_submitted = True
            except asyncio.CancelledError:
                # The turn is stored all the same, but an engine that cancels a workflow replays it later.
                is_submitted = not _is_in_temporal()
                status = "cancelled"  # the host got no answer, and may repeat the words
                raise
            except Exception as error:
                noted["error_type"] = type(error).__name__
                if status == "completed" and self.on_error == "raise":
                    raise  # a failed run raises its own error
                tell(_logger, f"a turn could not be submitted: {cause_of(error)}", logging.ERROR)
            finally:
                if is_submitted:
                    turns.note(
                        first.turn,
                        taken,
                        first.found,
                        is_answered=status == "completed",
                        is_paused=ending.is_paused,
                    )
                else:
                    turns.give_back(taken)

    @durable_operation("check")
    async def _check(self, _ctx: RunContext[AgentDepsT]) -> None:
        """Do nothing: the note of its end fails in an executor of DBOS that has lost the workflow, for example in a tool.

        Temporal needs no such note, and a replay of its older histories would not expect the operation.
        """

    @durable_operation("submit")
    async def _submit(self, _ctx: RunContext[AgentDepsT], turn: Turn | None, of_run: str) -> str:
        """Submit a turn, and return `of_run`, by which the caller knows that the recorded result is its own."""
        await self._submit_here(turn)
        return of_run

    async def _submit_here(self, turn: Turn | None) -> None:
        if turn is None:
            return
        if turn.operation_id:
            said = digested(self._toolset.diary, (turn.user_msg, turn.assistant_msg))
            turn = replace(turn, operation_id=digest(turn.operation_id, *said))
        await submit_turn(vars(self)["writer"], turn)  # the attribute itself may be closed


def _is_in_temporal() -> bool:
    """Return whether the running event loop is that of a Temporal workflow, which threads do not wake."""
    return not is_woken_by_threads(asyncio.get_running_loop())


def _is_taken_over(error: BaseException) -> bool:
    """Return whether DBOS stopped a run, because its workflow was cancelled or belongs to another executor, which repeats it."""
    return any(each.__name__ == "DBOSBaseException" for each in type(error).__mro__)


def _check_owner(run: RunState, user: str) -> None:
    """Check that a durable operation returned the data of the user of the run.

    An engine that finds results by their order may confuse overlapping runs when it recovers a workflow.
    """
    if user != run.owner.user:
        raise IdentifierError(
            "the recovered workflow confused overlapping runs of two users. Start each run in a workflow of its own."
        )
