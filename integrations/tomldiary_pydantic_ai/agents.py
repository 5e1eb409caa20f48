"""What the extraction agent and the compaction agent share: tools, prompt text, a limit on requests."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_ai import RunContext, Tool
from pydantic_ai.exceptions import UsageLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

__all__ = ["agent_tools", "check_requests", "prompt_text"]

DepsT = TypeVar("DepsT")


def agent_tools(
    functions: Iterable[Callable[..., Coroutine[Any, Any, str]]], deps_type: type[DepsT]
) -> list[Tool[DepsT]]:
    """Return the core's functions as tools; each parameter is described by the docstring."""
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
    """Give a function that takes any context the annotation by which pydantic-ai knows its own."""

    @functools.wraps(function)
    async def tool(ctx: Any, *args: Any, **kwargs: Any) -> str:
        return await function(ctx, *args, **kwargs)

    tool.__annotations__ = {**function.__annotations__, "ctx": RunContext[deps_type]}
    return tool


def prompt_text(template: object, default: str) -> str:
    """Return the text of a prompt: a text, the path of a file, an object with `prompt`, or nothing."""
    if template is None:
        return default
    if isinstance(template, Path):
        return template.read_text(encoding="utf-8")
    return str(getattr(template, "prompt", template))


def check_requests(ctx: RunContext[Any], most: int) -> None:
    """Stop a run that would send more than `most` requests; called where each request is put together.

    Raises:
        UsageLimitExceeded: The run has used up its requests.
    """
    if ctx.run_step > most:
        raise UsageLimitExceeded(f"the run did not come to an end within {most} requests")
