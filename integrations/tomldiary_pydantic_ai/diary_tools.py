"""The four tools of a host agent: look up, note down, correct, remove. They answer and never raise."""
# ruff: noqa: D417 - models read these docstrings; the context is not an argument of theirs

from __future__ import annotations

import asyncio
import copy
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pydantic_ai import RunContext  # noqa: TC002 - the tools' schemas are made from annotations

from tomldiary.errors import DiaryError, UnknownEntry
from tomldiary.logging import get_logger
from tomldiary.render import escape_for_model, render_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from pydantic_ai.tools import ToolDefinition

    from tomldiary.recall import Hit
    from tomldiary.user import UserDiary

__all__ = ["TOOL_NAMES", "WRITING_TOOLS", "DiaryTools", "naming_categories"]

_logger = get_logger(__name__)

TOOL_NAMES = ("recall", "remember", "update", "forget")
WRITING_TOOLS = TOOL_NAMES[1:]
_MOST_HITS = 20
_ANSWER_TOKENS = 4_000
_ACTOR = "agent"
_SIMILAR_SHOWN = 3

S = TypeVar("S")
P = ParamSpec("P")


def _answering(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, str]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, str]]:
    """Turn what goes wrong into a sentence: an exception would end the host's run."""

    @functools.wraps(method)
    async def answer(self: S, *args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return await method(self, *args, **kwargs)
        except UnknownEntry as error:
            key = error.where.removeprefix("preferences/")
            return f"❌ {key} does not exist. Look the entry up to see its key."
        except DiaryError as error:
            return f"❌ {error}"
        except OSError as error:
            reason = error.strerror or type(error).__name__
            return f"❌ The diary cannot be used just now ({reason}). Go on without it."
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
            _logger.warning("a tool of the diary failed: %s", type(error).__name__)
            return f"❌ The diary failed ({type(error).__name__}). Go on without it."

    return answer


class DiaryTools:
    """The tools as methods; `user` and `session` say for each run whose diary it is."""

    def __init__(
        self,
        user: Callable[[RunContext[Any]], UserDiary],
        session: Callable[[RunContext[Any]], str],
    ) -> None:
        self._user = user
        self._session = session

    def functions(self) -> dict[str, Callable[..., Coroutine[Any, Any, str]]]:
        """Return the methods by the names of the tools."""
        return {
            "recall": self.recall,
            "remember": self.remember,
            "update": self.update,
            "forget": self.forget,
        }

    @_answering
    async def recall(self, ctx: RunContext[Any], query: str, limit: int = 5) -> str:
        """Look up what is known about the user from earlier conversations.

        Args:
            query: What to look for: a question or a few words.
            limit: Most entries to return, up to 20.
        """
        hits = await self._user(ctx).arecall(query, max(1, min(limit, _MOST_HITS)))
        if not hits:
            return "Nothing in the diary matches. Other words may find it."
        return render_memory([_fact(hit) for hit in hits], max_tokens=_ANSWER_TOKENS)

    @_answering
    async def remember(
        self,
        ctx: RunContext[Any],
        text: str,
        category: str,
        contexts: list[str] | None = None,
    ) -> str:
        """Note down a lasting fact about the user or a preference of theirs; once is enough.

        Args:
            text: One short statement that makes sense on its own.
            category: The category to file it under.
            contexts: Short labels of the situations it applies to, such as "work" or "travel".
        """
        user = self._user(ctx)
        similar = await user.asimilar(category, text, limit=_SIMILAR_SHOWN + 1)
        key, item = await user.aupsert_preference(
            category, text, contexts=contexts or (), session_id=self._session(ctx), actor=_ACTOR
        )
        if item.count > 1:
            return f"Known already as {category}/{key}; confirmed ({item.count}×)."
        others = [match for match in similar if match.id != key][:_SIMILAR_SHOWN]
        if not others:
            return f"Noted as {category}/{key}."
        listed = "; ".join(f"{category}/{one.id}: {escape_for_model(one.text)}" for one in others)
        return (
            f"Noted as {category}/{key}. Similar entries: {listed}. Correct or remove what no longer"
            " holds."
        )

    @_answering
    async def update(
        self, ctx: RunContext[Any], key: str, text: str, contexts: list[str] | None = None
    ) -> str:
        """Replace the text of an entry that has changed or was not exact.

        Args:
            key: The key of the entry as it was looked up, such as "likes/pref001".
            text: The new statement.
            contexts: Labels to add to those of the entry.
        """
        user = self._user(ctx)
        category, name = _split(key)
        # The core gives an unknown id to a new entry; a correction must not create one.
        await asyncio.to_thread(user.entry, "preferences", key)
        await user.aupsert_preference(
            category,
            text,
            id=name,
            contexts=contexts or (),
            count_up=False,
            session_id=self._session(ctx),
            actor=_ACTOR,
        )
        return f"Changed {key}."

    @_answering
    async def forget(self, ctx: RunContext[Any], key: str) -> str:
        """Remove one entry that is no longer true or that the user wants forgotten.

        Args:
            key: The key of the entry as it was looked up, such as "likes/pref001".
        """
        category, name = _split(key)
        item = await self._user(ctx).aforget_preference(
            category, name, session_id=self._session(ctx), actor=_ACTOR
        )
        return f"Removed {key}: {escape_for_model(item.text)}"


def naming_categories(
    categories: Sequence[str],
) -> Callable[[RunContext[Any], ToolDefinition], Coroutine[Any, Any, ToolDefinition]]:
    """Return a `prepare` function that names the diary's categories where `remember` asks for one.

    They are named, not enforced: an enumeration would make a test model write into the diary.
    """

    async def prepare(_ctx: RunContext[Any], definition: ToolDefinition) -> ToolDefinition:
        schema = copy.deepcopy(definition.parameters_json_schema)
        schema["properties"]["category"]["description"] += f" One of: {', '.join(categories)}."
        return replace(definition, parameters_json_schema=schema)

    return prepare


def _split(key: str) -> tuple[str, str]:
    category, slash, name = key.partition("/")
    if not slash:
        raise UnknownEntry(key)
    return category, name


def _fact(hit: Hit) -> str:
    if hit.kind == "preferences":
        return f"{escape_for_model(hit.key)}: {escape_for_model(hit.text)}"
    return f"conversation of {hit.updated[:10]}: {escape_for_model(hit.text)}"
