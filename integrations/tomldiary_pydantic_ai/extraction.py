"""The agent that reads one turn of a conversation and keeps the diary up to date."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.agent import AbstractAgent

from tomldiary.entries.schema import categories_doc
from tomldiary.errors import DiaryError
from tomldiary.extraction.draft import MemoryDeps
from tomldiary.extraction.prompt import EXTRACTION_PROMPT, draft_prompt
from tomldiary.extraction.tools import EXTRACTION_TOOLS
from tomldiary_pydantic_ai.agents import agent_tools, check_requests, prompt_text
from tomldiary_pydantic_ai.given_agent import equipped
from tomldiary_pydantic_ai.models import agent_model

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_ai.models import Model

    from tomldiary_pydantic_ai.models import FallbackWhen, ModelChoice

__all__ = ["build_extractor", "extractor_agent"]

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
    """Return an agent that files what a user says about themselves; needs no key until it runs.

    It is what `Diary(agent="<model name>")` uses, and runs as `await agent.run(message, deps=deps)`.
    A run is stopped after 20 requests to the model.

    Args:
        pref_table_cls: The preference table whose categories the model is told.
        model: A model or its name, or several: one is asked when those before it failed. None is
            $EXTRACTOR_MODEL, or else the default model. Where the diary runs an event loop of its own,
            a model object is copied there with HTTP connections of its own, unless its provider was
            given an HTTP client.
        prompt_template: Other instructions: a text, the `Path` of one, or an object with `prompt`.
            `{categories_doc}` and `{current_time}` are filled in.
        fallback_retries: Attempts after a request that failed in passing; 0 is none.
        fallback_on: Exceptions after which to try again, or a function that tells; None is
            time-outs, broken connections, rate limits and errors of the server.
        model_name: Deprecated name of `model`.

    An agent of your own in place of a model is returned as it is if it has the diary's tools, and else
    with them and with the prompt.

    Raises:
        SchemaError: `pref_table_cls` cannot be read as categories.
        InvalidValue: `model` is no model.
    """
    if model_name is not None:
        warnings.warn("model_name is now called model", DeprecationWarning, stacklevel=2)
        model = model_name if model is None else model
    given: Any = model
    if isinstance(given, AbstractAgent):
        return equipped(cast("AbstractAgent[Any, Any]", given), pref_table_cls, prompt_template)
    prompt = prompt_text(prompt_template, EXTRACTION_PROMPT)
    categories = categories_doc(pref_table_cls)

    # Coroutines, because pydantic-ai runs plain functions in a thread of their own.
    async def instructions(ctx: RunContext[MemoryDeps]) -> str:
        check_requests(ctx, _MAX_REQUESTS)
        return draft_prompt(ctx.deps, prompt, categories)

    agent = Agent(
        agent_model(model, fallback_retries, fallback_on),
        deps_type=MemoryDeps,
        name="diary_extractor",
        instructions=instructions,
        tools=agent_tools(EXTRACTION_TOOLS, MemoryDeps),
        retries=_RETRIES,
    )
    agent.output_validator(_check_draft)
    return agent


async def _check_draft(ctx: RunContext[MemoryDeps], answer: str) -> str:
    """Let the model mend a draft that cannot be stored, instead of losing the turn."""
    try:
        _ = ctx.deps.operations
    except (DiaryError, TypeError, ValueError) as error:
        raise ModelRetry(f"The diary cannot be stored like this: {error} Mend it.") from error
    return answer


def build_extractor(
    pref_table_cls: type[BaseModel],
    model_name: Model | str | None = None,
    prompt_template_path: str | Path | None = None,
) -> Agent[MemoryDeps, str]:
    """Return `extractor_agent` for a prompt in a file; the older spelling.

    Raises:
        OSError: The prompt's file cannot be read.
        SchemaError, InvalidValue: As `extractor_agent`.
    """
    path = None if prompt_template_path is None else Path(prompt_template_path)
    return extractor_agent(pref_table_cls, model_name, path)
