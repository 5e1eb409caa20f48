"""The agent that extracts entries from one turn, and helpers that it shares with the compaction agent."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic_ai import Agent, FunctionToolset, ModelRetry, RunContext, Tool
from pydantic_ai.agent import AbstractAgent, WrapperAgent
from pydantic_ai.exceptions import UsageLimitExceeded

from tomldiary.agents.options import checked_count
from tomldiary.entries.schema import categories_doc
from tomldiary.errors import DiaryError, InvalidValue
from tomldiary.extraction.draft import MemoryDeps
from tomldiary.extraction.prompt import EXTRACTION_PROMPT, draft_prompt, prompt_text
from tomldiary.extraction.tools import EXTRACTION_TOOLS, FACT_TOOLS
from tomldiary.logging import get_logger
from tomldiary_pydantic_ai.models import LoopModel, agent_model

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from pydantic import BaseModel
    from pydantic_ai.models import Model
    from pydantic_ai.tools import ToolDefinition

    from tomldiary_pydantic_ai.models import FallbackWhen, ModelChoice

DepsT = TypeVar("DepsT")

_TOOL_NAMES = frozenset(function.__name__ for function in EXTRACTION_TOOLS)
_logger = get_logger(__name__)
_RETRIES = 3  # arguments or answers that do not validate, before the turn counts as failed
_MAX_REQUESTS = 20


def extractor_agent(
    pref_table_cls: type[BaseModel],
    model: ModelChoice = None,
    prompt_template: object = None,
    fallback_retries: int = 3,
    fallback_on: FallbackWhen | None = None,
    *,
    model_name: Model | str | None = None,
) -> Agent[MemoryDeps, str]:
    """Return an agent that stores what a user says about themselves; it needs no API key until it runs.

    `Diary(agent="<model name>")` uses it. It runs as `await agent.run(message, deps=deps)`, and stops after 20
    requests to the model.

    Args:
        pref_table_cls: The preference table, whose categories are in the prompt.
        model: A model or its name, or several: each is used if those before it failed. None takes
            $EXTRACTOR_MODEL, or else the default model. If the diary runs a private event loop, it uses a copy of a
            model object there, with separate HTTP connections, unless the model's provider was given an HTTP client.
        prompt_template: Other instructions: a text, the path of a file, or an object with `prompt`.
            `{categories_doc}` and `{current_time}` are replaced.
        fallback_retries: The number of further attempts after a transient error.
        fallback_on: The exceptions after which to try again, or a function of the exception. None is time-outs,
            broken connections, rate limits and server errors.
        model_name: The deprecated name of `model`.

    If `model` is an agent, it is returned unchanged if it has the diary's tools; otherwise it gets them and the
    prompt.

    Raises:
        SchemaError: `pref_table_cls` cannot be read as categories.
        InvalidValue: `model` is no model, or `model_name` is given too, or `prompt_template` is no prompt, or
            `fallback_retries` is no whole number of at least 0.
    """
    checked_count(fallback_retries, "fallback_retries")
    if model_name is not None:
        if model is not None:
            raise InvalidValue(
                "give model, not both: model_name is its old name.", where="model_name"
            )
        warnings.warn("model_name is now called model", DeprecationWarning, stacklevel=2)
        model = model_name
    given: Any = model
    if isinstance(given, AbstractAgent):
        return equipped(cast("AbstractAgent[Any, Any]", given), pref_table_cls, prompt_template)
    prompt = prompt_text(prompt_template, EXTRACTION_PROMPT)
    categories = categories_doc(pref_table_cls)

    # Coroutines, because pydantic-ai runs plain functions in a thread of their own.
    async def instructions(ctx: RunContext[MemoryDeps]) -> str:
        if ctx.run_step > _MAX_REQUESTS:
            raise UsageLimitExceeded(f"the run did not end within {_MAX_REQUESTS} requests")
        return draft_prompt(ctx.deps, prompt, categories)

    agent = Agent(
        agent_model(model, fallback_retries, fallback_on),
        deps_type=MemoryDeps,
        name="diary_extractor",
        instructions=instructions,
        tools=_extraction_tools(),
        retries=_RETRIES,
    )
    agent.output_validator(_check_draft)
    return agent


def _extraction_tools() -> list[Tool[MemoryDeps]]:
    """Return the extraction tools; those for facts are included if a type of facts is registered."""

    async def where_typed(
        ctx: RunContext[MemoryDeps], definition: ToolDefinition
    ) -> ToolDefinition | None:
        return definition if ctx.deps.fact_schemas else None

    typed = agent_tools(FACT_TOOLS, MemoryDeps)
    for tool in typed:
        tool.prepare = where_typed
    return [*agent_tools(EXTRACTION_TOOLS, MemoryDeps), *typed]


async def _check_draft(ctx: RunContext[MemoryDeps], answer: str) -> str:
    """Ask the model to correct a draft that cannot be stored, so that the turn is not lost."""
    try:
        _ = ctx.deps.operations
    except (DiaryError, TypeError, ValueError) as error:
        raise ModelRetry(f"The diary cannot be stored like this: {error} Correct it.") from error
    return answer


def build_extractor(
    pref_table_cls: type[BaseModel],
    model_name: Model | str | None = None,
    prompt_template_path: object = None,
) -> Agent[MemoryDeps, str]:
    """Return `extractor_agent` for a prompt; the older spelling. A text is the path of a file.

    Raises:
        OSError: The prompt's file cannot be read.
        SchemaError, InvalidValue: As `extractor_agent`.
    """
    prompt = prompt_template_path
    return extractor_agent(
        pref_table_cls, model_name, Path(prompt) if isinstance(prompt, str) else prompt
    )


def equipped(
    agent: AbstractAgent[Any, Any], pref_table_cls: type[BaseModel], prompt_template: object = None
) -> Agent[MemoryDeps, str]:
    """Return an agent that can update a diary: `agent`, with the six tools if it has none of them.

    An agent with other tools for the draft declares `deps_type=MemoryDeps`.
    """
    if _has_tools(agent):
        return cast("Agent[MemoryDeps, str]", agent)
    _logger.info("the agent lacks the tools of the diary, so they are added")
    prompt = prompt_text(prompt_template, EXTRACTION_PROMPT)
    twin = _Equipped(agent, prompt, categories_doc(pref_table_cls))
    return cast("Agent[MemoryDeps, str]", twin)


def _has_tools(agent: AbstractAgent[Any, Any]) -> bool:
    found: set[str] = set()
    for toolset in agent.toolsets:
        if not isinstance(toolset, FunctionToolset):
            return True  # its tools are known only when it runs
        found |= toolset.tools.keys()
    deps_type: Any = getattr(agent, "deps_type", object)
    is_for_drafts = isinstance(deps_type, type) and issubclass(deps_type, MemoryDeps)
    return bool(found & _TOOL_NAMES) or (bool(found) and is_for_drafts)


class _Equipped(WrapperAgent[Any, Any]):
    """An agent whose runs get the diary's tools and prompt."""

    def __init__(self, wrapped: AbstractAgent[Any, Any], prompt: str, categories: str) -> None:
        super().__init__(wrapped)
        self._prompt = prompt
        self._categories = categories
        self._tools: Any = FunctionToolset(_extraction_tools(), id="diary-extraction")

    async def run(self, user_prompt: Any = None, *, deps: Any = None, **options: Any) -> Any:
        model = options.pop("model", None) or self.wrapped.model
        if model is not None and not isinstance(model, LoopModel):
            model = agent_model(model)
        return await self.wrapped.run(
            user_prompt,
            deps=deps,
            model=model,
            instructions=draft_prompt(deps, self._prompt, self._categories),
            toolsets=[self._tools, *options.pop("toolsets", ())],
            **options,
        )


def agent_tools(
    functions: Iterable[Callable[..., Coroutine[Any, Any, str]]], deps_type: type[DepsT]
) -> list[Tool[DepsT]]:
    """Return the core's functions as tools; their docstrings describe the parameters."""
    return [
        Tool(
            _taking_run_context(function, deps_type),
            takes_ctx=True,
            docstring_format="google",
            require_parameter_descriptions=True,
        )
        for function in functions
    ]


def _taking_run_context(
    function: Callable[..., Coroutine[Any, Any, str]], deps_type: type[Any]
) -> Callable[..., Coroutine[Any, Any, str]]:
    """Annotate the context parameter of a function with pydantic-ai's type."""

    @functools.wraps(function)
    async def tool(ctx: Any, *args: Any, **kwargs: Any) -> str:
        return await function(ctx, *args, **kwargs)

    tool.__annotations__ = {**function.__annotations__, "ctx": RunContext[deps_type]}
    return tool
