"""The core's four verbs as tools of a host agent; they answer and never raise."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_ai import RunContext  # noqa: TC002 - the tools' schemas are made from annotations

from tomldiary.memory_verbs import Answer, MemoryVerbs, described_by, failure, naming_categories

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from pydantic_ai.tools import ToolDefinition

__all__ = ["diary_functions", "telling_categories"]


def diary_functions(
    verbs: Callable[[RunContext[Any]], MemoryVerbs],
) -> dict[str, Callable[..., Coroutine[Any, Any, str]]]:
    """Return the tools by name; `verbs` says for each run whose diary it is."""

    @described_by(MemoryVerbs.recall)
    async def recall(ctx: RunContext[Any], query: str, limit: int = 5) -> str:
        return await answer(ctx, lambda user: user.arecall(query, limit))

    @described_by(MemoryVerbs.remember)
    async def remember(
        ctx: RunContext[Any], text: str, category: str, contexts: list[str] | None = None
    ) -> str:
        return await answer(ctx, lambda user: user.aremember(text, category, contexts))

    @described_by(MemoryVerbs.update)
    async def update(
        ctx: RunContext[Any], key: str, text: str, contexts: list[str] | None = None
    ) -> str:
        return await answer(ctx, lambda user: user.aupdate(key, text, contexts))

    @described_by(MemoryVerbs.forget)
    async def forget(ctx: RunContext[Any], key: str) -> str:
        return await answer(ctx, lambda user: user.aforget(key))

    async def answer(
        ctx: RunContext[Any], use: Callable[[MemoryVerbs], Coroutine[Any, Any, Answer]]
    ) -> str:
        try:
            user = verbs(ctx)
        except Exception as error:  # noqa: BLE001 - the host's function that names the user may fail
            return str(failure(error))
        return str(await use(user))

    return {tool.__name__: tool for tool in (recall, remember, update, forget)}


def telling_categories(
    categories: Sequence[str],
) -> Callable[[RunContext[Any], ToolDefinition], Coroutine[Any, Any, ToolDefinition]]:
    """Return a `prepare` function that names the diary's categories where `remember` asks for one.

    They are named, not enforced: an enumeration would make a test model write into the diary.
    """

    async def prepare(_ctx: RunContext[Any], definition: ToolDefinition) -> ToolDefinition:
        schema = copy.deepcopy(definition.parameters_json_schema)
        schema["properties"]["category"]["description"] += f" {naming_categories(categories)}"
        return replace(definition, parameters_json_schema=schema)

    return prepare
