"""Tools with which a model reads and changes what is remembered about the user of the run."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from langchain_core.runnables import (
    RunnableConfig,  # noqa: TC002 - LangChain reads the annotations of tools
)
from langchain_core.tools import StructuredTool, ToolException
from pydantic import Field

from tomldiary.diary import Diary
from tomldiary.errors import InvalidValue, LimitReached, UnknownCategory, UnknownEntry
from tomldiary.render import escape_for_model, render_memory
from tomldiary_langchain.identity import resolve_session, resolve_user

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

__all__ = ["diary_tools"]

Answer = tuple[str, Any]
"""What the model reads, and the same as data for the program."""

_ANSWERABLE = (InvalidValue, LimitReached, UnknownCategory, UnknownEntry)
_MAX_TOKENS = 1500


def diary_tools(
    diary: Diary | str | os.PathLike[str], user_id: str | None = None
) -> list[StructuredTool]:
    """Return the tools `recall`, `remember`, `update` and `forget`, sync and async.

    What a model can put right (an unknown id, a full category) it is told as the tool's answer; other
    failures are raised. The data of an answer is the message's `artifact`.

    Args:
        diary: A diary, or the folder of one with the built-in preference table.
        user_id: The user; None takes the one the run's config names. Never an argument of a tool.
    """
    memory = diary if isinstance(diary, Diary) else Diary(diary)
    categories = f"Categories: {', '.join(memory.allowed)}."

    def recall(  # noqa: D417 - LangChain fills in the config
        query: str, config: RunnableConfig, limit: Annotated[int, Field(ge=1, le=50)] = 5
    ) -> Answer:
        """Look up what is remembered about the user.

        Args:
            query: A question, or the words to look for.
            limit: How many memories to return at most.
        """
        hits = memory.user(resolve_user(user_id, config)).recall(query, limit)
        facts = [f"{escape_for_model(hit.key)}: {escape_for_model(hit.text)}" for hit in hits]
        text = render_memory(facts, max_tokens=_MAX_TOKENS) or "Nothing is remembered about that."
        return text, [asdict(hit) for hit in hits]

    def remember(  # noqa: D417 - see recall
        category: str, text: str, config: RunnableConfig, contexts: list[str] | None = None
    ) -> Answer:
        """Remember something lasting that the user said about themselves.

        Args:
            category: The category to file it under.
            text: What to remember, as one short statement.
            contexts: Short labels of the situations it applies to.
        """
        return _upsert(config, category, None, text, contexts)

    def update(  # noqa: D417 - see recall
        category: str,
        id: str,  # noqa: A002 - the argument's name is part of the tool
        text: str,
        config: RunnableConfig,
        contexts: list[str] | None = None,
    ) -> Answer:
        """Change something remembered that is no longer true or not exact.

        Args:
            category: The category it is filed under.
            id: Its id, as recall shows it behind the slash.
            text: What is true now.
            contexts: Labels to add.
        """
        if category in memory.allowed:  # otherwise the answer is which categories there are
            memory.user(resolve_user(user_id, config)).entry("preferences", f"{category}/{id}")
        return _upsert(config, category, id, text, contexts)

    def forget(  # noqa: D417 - see recall
        category: str,
        id: str,  # noqa: A002 - see update
        config: RunnableConfig,
    ) -> Answer:
        """Forget something the user takes back or wants forgotten.

        Args:
            category: The category it is filed under.
            id: Its id, as recall shows it behind the slash.
        """
        user = memory.user(resolve_user(user_id, config))
        session = resolve_session(config)
        item = user.forget_preference(category, id, session_id=session, actor="agent")
        return f"Forgot {category}/{id}.", _data(category, id, item)

    def _upsert(
        config: RunnableConfig,
        category: str,
        key: str | None,
        text: str,
        contexts: list[str] | None,
    ) -> Answer:
        found, item = memory.user(resolve_user(user_id, config)).upsert_preference(
            category,
            text,
            id=key,
            contexts=contexts or (),
            session_id=resolve_session(config),
            actor="agent",
        )
        return f"Stored as {category}/{found}.", _data(category, found, item)

    return [
        _tool(recall),
        *(_tool(function, categories) for function in (remember, update, forget)),
    ]


def _data(category: str, key: str, item: Any) -> dict[str, Any]:
    return {"category": category, "id": key, **item.model_dump()}


def _tool(function: Callable[..., Answer], note: str = "") -> StructuredTool:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Answer:
        try:
            return function(*args, **kwargs)
        except _ANSWERABLE as error:
            raise ToolException(str(error)) from error

    @functools.wraps(function)
    async def arun(*args: Any, **kwargs: Any) -> Answer:
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
