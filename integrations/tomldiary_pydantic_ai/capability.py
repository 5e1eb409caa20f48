"""A capability that gives an agent the diary of its user: memory, tools, and every turn to the writer."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence  # noqa: TC003 - annotations are looked up at run time
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic_ai import DeferredToolRequests, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.tools import AgentDepsT

from tomldiary.diary import Diary
from tomldiary.errors import InvalidValue
from tomldiary.injection import HOW_TO_READ, next_injection
from tomldiary.logging import get_logger
from tomldiary.ranking import MemoryLines
from tomldiary.receipts import Turn, TurnStatus
from tomldiary.recent import Recent
from tomldiary.writer import MemoryWriter
from tomldiary_pydantic_ai.conversation import (
    answered,
    as_data,
    asked,
    has_prompt,
    prompt_words,
    told,
)
from tomldiary_pydantic_ai.features import CAN_APPEND, appending, durable_operation
from tomldiary_pydantic_ai.handing_in import hand_in
from tomldiary_pydantic_ai.identity import RunOwner, Who  # noqa: TC001 - the same
from tomldiary_pydantic_ai.spans import span
from tomldiary_pydantic_ai.toolset import DiaryToolset

if TYPE_CHECKING:
    import os

    from pydantic_ai.agent.abstract import AgentInstructions
    from pydantic_ai.capabilities import WrapRunHandler
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.run import AgentRunResult

__all__ = ["DiaryCapability"]

_logger = get_logger(__name__)


_REMEMBERED_RUNS = 4096


class _CapabilityToolset(DiaryToolset[AgentDepsT]):
    """The tools of a capability, which settles whose run it is and sees to the instructions."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._owners: Recent[str, RunOwner] = Recent(_REMEMBERED_RUNS)

    def remember(self, run_id: str | None, owner: RunOwner) -> None:
        """Keep whose run it is, so that nobody is asked twice."""
        if run_id is not None:
            self._owners.keep(run_id, owner)

    def owner(self, ctx: RunContext[AgentDepsT]) -> RunOwner:
        return self._owners.get(ctx.run_id or "") or super().owner(ctx)

    async def get_instructions(self, ctx: RunContext[AgentDepsT]) -> None:  # noqa: ARG002 - the framework's signature
        return None


@dataclass
class _Run:
    """What a capability keeps of one run."""

    owner: RunOwner
    scope: str
    messages: list[ModelMessage] | None = None
    """The run's own list, which is not to be had any more when the run has been cut off."""
    was_told: bool = False
    """Whether the model has been told the memory, or did not have to be."""


@dataclass
class DiaryCapability(AbstractCapability[AgentDepsT]):
    """The diary of the user an agent talks to, for `Agent(capabilities=[DiaryCapability(...)])`.

    The model is told how to use the diary in one constant instruction. What is remembered it is told as
    data, in the conversation itself: once whole, afterwards what changed, so that the text before stays as
    it was and prompt caches go on serving it. The messages must be kept from run to run, as any
    conversation's; who drops them is told the memory afresh.

    Every run that ends goes to the `writer` as a turn, also one that was cancelled, abandoned or failed.

    Who the user is is settled when the run begins, as for `DiaryToolset`; a run without a user fails
    before its model is called.

    Args:
        diary: A `Diary`, or the folder of one.
        user_id: Whose diary: a text, or a function of the run context; None looks for `user_id` in
            deps (an attribute or a key), then in the run's metadata.
        session_id: The session, given likewise; None is `session_id` in deps or metadata, or else the
            run's conversation.
        writer: Takes the turns; None keeps only what the model itself notes down.
        tools: "all", "read" (recall only), "none", or names among recall, remember, update, forget.
        descriptions: Other descriptions of tools, by name.
        guidance: Another standing instruction; "" is none.
        heading: A line above the memory, to tell several apart.
        inject: "user" tells the memory in the conversation; "instructions" puts it into the instructions,
            which is for memory whose authors you trust; False does not show it.
        max_tokens: Budget of a text that tells the memory.
        token_counter: Counts the tokens of a text; None takes four characters for one token.
        query: "prompt" tells first what matches the prompt; "none" goes by count and date.
        on_error: Whether a run goes on without its memory ("ignore", the failure is logged) or fails
            ("raise") if the memory cannot be read. Tools always answer in a sentence.
        approve: Names of tools whose calls need approval.
        id: Name of this memory in the agent; two memories need two.

    Raises:
        InvalidValue: An option has a value that is not listed here.
    """

    diary: Diary | str | os.PathLike[str]
    user_id: Who[AgentDepsT] = None
    session_id: Who[AgentDepsT] = None
    _: KW_ONLY
    writer: MemoryWriter | None = None
    tools: Literal["all", "read", "none"] | Collection[str] = "all"
    descriptions: Mapping[str, str] | None = None
    guidance: str | None = None
    heading: str = ""
    inject: Literal["user", "instructions", False] = "user"
    max_tokens: int = 1500
    token_counter: Callable[[str], int] | None = None
    query: Literal["none", "prompt"] = "none"
    on_error: Literal["ignore", "raise"] = "ignore"
    approve: Collection[str] = ()
    id: str | None = "diary"

    _toolset: _CapabilityToolset[AgentDepsT] = field(init=False, repr=False, compare=False)
    _run: _Run | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._toolset = _CapabilityToolset(
            self.diary,
            self.user_id,
            self.session_id,
            id=self.id or "diary",
            tools=self.tools,
            descriptions=self.descriptions,
            guidance=self.guidance,
            heading=self.heading,
            inject=self.inject,
            max_tokens=self.max_tokens,
            token_counter=self.token_counter,
            query=self.query,
            on_error=self.on_error,
            approve=self.approve,
        )

    # What it adds to an agent

    def get_toolset(self) -> DiaryToolset[AgentDepsT]:
        """Return the tools; the same object for every run, as durable execution needs it."""
        return self._toolset

    def get_instructions(self) -> AgentInstructions[AgentDepsT] | None:
        """Return the guidance, which is the same for everybody; with the memory where that is asked for."""
        guidance = self._toolset.guidance
        if self.inject == "user" and guidance.strip():
            guidance = f"{guidance} {HOW_TO_READ}"
        parts: list[Any] = [guidance] if guidance.strip() else []
        if self.inject == "instructions":
            parts.append(self._memory_instruction)
        return parts or None

    async def _memory_instruction(self, ctx: RunContext[AgentDepsT]) -> Any:
        part = appending(await self._toolset.memory(ctx), "memory")
        return (
            part if CAN_APPEND else part.content
        )  # where it cannot be told what changes, text is all

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """Return the name that agent specs know it by."""
        return "DiaryCapability"

    @classmethod
    def from_spec(  # noqa: D417 - the others are those of the class
        cls,
        diary: str,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        extractor: str | None = None,
        tools: Literal["all", "read", "none"] | list[str] = "all",
        descriptions: dict[str, str] | None = None,
        guidance: str | None = None,
        heading: str = "",
        inject: Literal["user", "instructions", False] = "user",
        max_tokens: int = 1500,
        query: Literal["none", "prompt"] = "none",
        on_error: Literal["ignore", "raise"] = "ignore",
        approve: list[str] | None = None,
        id: str = "diary",  # noqa: A002 - the framework's word
    ) -> DiaryCapability[Any]:
        """Make a capability from an agent spec.

        Args:
            diary: The folder.
            user_id: Whose diary; None looks in the deps and the metadata of each run.
            session_id: The session; None is the run's conversation.
            extractor: Who reads the turns: "rules" or a model's name; None reads none.

        Raises:
            InvalidValue: An option has a value that is not listed.
        """
        opened = Diary(diary, agent=extractor)
        return DiaryCapability(
            opened,
            user_id,
            session_id,
            writer=MemoryWriter(opened) if extractor is not None else None,
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
        )

    @classmethod
    def combine(
        cls, capabilities: Sequence[AbstractCapability[AgentDepsT]]
    ) -> AbstractCapability[AgentDepsT]:
        """Return the one capability that is given several times.

        Raises:
            InvalidValue: They differ: merged, one user's memory could take the place of another's.
        """
        first, *others = capabilities
        if any(other != first for other in others):
            raise InvalidValue(
                "two different diaries have the same id. Give each its own.", where="id"
            )
        return first

    # One run

    async def for_run(self, ctx: RunContext[AgentDepsT]) -> DiaryCapability[AgentDepsT]:
        """Return the capability for one run, whose owner is settled now; reads nothing.

        Raises:
            IdentifierError: Nobody says who the user is, or a name cannot be used.
        """
        owner = self._toolset.owner(ctx)
        self._toolset.diary.user(owner.user)
        self._toolset.remember(ctx.run_id, owner)
        scope = hashlib.sha256(json.dumps([self.id, owner.user]).encode()).hexdigest()[:16]
        run = copy.copy(self)
        run._run = _Run(owner, scope)  # noqa: SLF001 - a copy of ours
        return run

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Tell the model what it has to know of the memory, at the end of the conversation.

        Raises:
            Exception: The memory cannot be read, and `on_error` is "raise".
        """
        run = self._run
        if run is None:
            return request_context
        is_first = run.messages is None
        run.messages = ctx.messages
        if self.inject != "user":
            return request_context
        before = told(request_context.messages, run.scope)
        tail = request_context.messages[-1] if request_context.messages else None
        # Among the results of tools, text of the user's channel would read as if the user had spoken.
        # Only what a compaction has taken away is told again there.
        if has_prompt(tail) if is_first else run.was_told and not before:
            text = await self._news(ctx, run.owner, before)
            if text:
                before.append(text)
                message = as_data(text, ctx, run.scope)
                request_context.messages = [*request_context.messages, message]
                ctx.messages.append(message)
        run.was_told = run.was_told or bool(before)
        return request_context

    async def _news(
        self, ctx: RunContext[AgentDepsT], owner: RunOwner, before: Sequence[str]
    ) -> str | None:
        toolset = self._toolset
        words = prompt_words(ctx.prompt) if self.query == "prompt" else None
        with span(ctx, "inject") as noted:
            try:
                shown, also_true = await self._load(ctx, owner.user, owner.session, words)
                news = next_injection(
                    before,
                    MemoryLines(shown, also_true),
                    max_tokens=self.max_tokens,
                    token_counter=self.token_counter,
                    heading=toolset.heading,
                    look_up=toolset.look_up,
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on unless it is to fail
                noted["error_type"] = type(error).__name__
                toolset.go_on_without(error)
                return None
            noted["facts"] = len(shown)
            noted["characters"] = len(news.text) if news is not None else 0
            noted["is_snapshot"] = news is not None and news.is_snapshot
        return news.text if news is not None else None

    @durable_operation("load")
    async def _load(
        self, _ctx: RunContext[AgentDepsT], user: str, session: str, words: str | None
    ) -> tuple[list[str], list[str]]:
        memory = await self._toolset.diary.user(user).amemory_lines(words, but_session=session)
        return list(memory.shown), list(memory.also_true)

    async def wrap_run(
        self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler
    ) -> AgentRunResult[Any]:
        """Hand the turn to the writer when the run has ended, however it ended."""
        status: TurnStatus = "failed"
        output: object = None
        try:
            result = await handler()
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        else:
            status, output = "completed", result.output
            return result
        finally:
            if self._run is not None and self.writer is not None:
                await self._hand_in(ctx, self._run, status, output)

    async def _hand_in(
        self, ctx: RunContext[AgentDepsT], run: _Run, status: TurnStatus, output: object
    ) -> None:
        messages = run.messages if run.messages is not None else ctx.messages
        if isinstance(output, DeferredToolRequests):
            output = None
        user_msg = asked(messages, ctx.run_id, ctx.prompt)
        assistant_msg = answered(messages, ctx.run_id, output)
        if not user_msg and not assistant_msg:
            return
        with span(ctx, "submit") as noted:
            noted["status"] = status
            try:
                await self._submit(
                    ctx, *run.owner, user_msg, assistant_msg, status, ctx.run_id or ""
                )
            except Exception as error:  # noqa: BLE001 - the run has ended, and its outcome is not ours to change
                noted["error_type"] = type(error).__name__
                _logger.error("a turn could not be handed in: %s", type(error).__name__)  # noqa: TRY400 - the trace may quote it

    @durable_operation("submit")
    async def _submit(
        self,
        _ctx: RunContext[AgentDepsT],
        user: str,
        session: str,
        user_msg: str,
        assistant_msg: str,
        status: TurnStatus,
        run_id: str,
    ) -> None:
        writer = self.writer
        assert writer is not None  # noqa: S101 - nothing is handed in without one
        turn = Turn(user, session, user_msg, assistant_msg, status=status, operation_id=run_id)
        await hand_in(writer, turn)
