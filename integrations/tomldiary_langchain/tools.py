"""Tools with which a model reads and changes what is remembered about the user of the run."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Annotated, Any

from langchain_core.runnables import (
    RunnableConfig,  # noqa: TC002 - LangChain reads the annotations of tools
)
from langchain_core.tools import StructuredTool, ToolException
from pydantic import Field

from tomldiary.diary import Diary
from tomldiary.memory_verbs import MOST_HITS, Answer, MemoryVerbs, described_by, naming_categories
from tomldiary_langchain.identity import resolve_session, resolve_user

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

__all__ = ["diary_tools"]


def diary_tools(
    diary: Diary | str | os.PathLike[str], user_id: str | None = None
) -> list[StructuredTool]:
    """Return the tools `recall`, `remember`, `update` and `forget`, sync and async.

    What goes wrong is the tool's answer, with the status "error"; only a run that names no user
    raises. The data of an answer is the message's `artifact`.

    Args:
        diary: A diary, or the folder of one with the built-in preference table.
        user_id: The user; None takes the one the run's config names. Never an argument of a tool.
    """
    memory = diary if isinstance(diary, Diary) else Diary(diary)

    def verbs(config: RunnableConfig) -> MemoryVerbs:
        return MemoryVerbs(memory.user(resolve_user(user_id, config)), resolve_session(config))

    @described_by(MemoryVerbs.recall)
    def recall(
        query: str, config: RunnableConfig, limit: Annotated[int, Field(ge=1, le=MOST_HITS)] = 5
    ) -> Answer:
        return verbs(config).recall(query, limit)

    @described_by(MemoryVerbs.remember)
    def remember(
        text: str, category: str, config: RunnableConfig, contexts: list[str] | None = None
    ) -> Answer:
        return verbs(config).remember(text, category, contexts)

    @described_by(MemoryVerbs.update)
    def update(
        key: str, text: str, config: RunnableConfig, contexts: list[str] | None = None
    ) -> Answer:
        return verbs(config).update(key, text, contexts)

    @described_by(MemoryVerbs.forget)
    def forget(key: str, config: RunnableConfig) -> Answer:
        return verbs(config).forget(key)

    categories = f"Categories: {naming_categories(memory.allowed)}"
    return [_tool(recall), _tool(remember, categories), _tool(update), _tool(forget)]


def _tool(function: Callable[..., Answer], note: str = "") -> StructuredTool:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> tuple[str, Any]:
        answer = function(*args, **kwargs)
        if answer.is_error:
            raise ToolException(answer)
        return str(answer), answer.data

    @functools.wraps(function)
    async def arun(*args: Any, **kwargs: Any) -> tuple[str, Any]:
        return await asyncio.to_thread(run, *args, **kwargs)

    tool = StructuredTool.from_function(
        run,
        arun,
        parse_docstring=True,
        response_format="content_and_artifact",
        handle_tool_error=True,
        handle_validation_error=True,
    )
    tool.description = f"{tool.description} {note}".strip()
    return tool
