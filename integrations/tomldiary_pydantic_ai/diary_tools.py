"""The core's four verbs as tools of a host agent; they answer and never raise."""

from __future__ import annotations

import copy
import hashlib
import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai import (
    RunContext,
    ToolReturn,
)
from pydantic_ai.exceptions import UserError

from tomldiary.agents.verbs import Answer, MemoryVerbs, described_by, failure, naming_categories

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from pydantic_ai import RunContext
    from pydantic_ai.tools import ToolDefinition

    from tomldiary.diary import Diary

__all__ = ["call_id", "diary_functions", "span", "telling_categories"]


@contextmanager
def span(ctx: RunContext[Any], name: str) -> Generator[dict[str, int | bool | str]]:
    """Record `tomldiary.<name>` within the run's trace; what is put into the yielded dict is recorded.

    An error's text may quote the memory, so only its type is recorded. A run context that was sent to
    another process, as to an activity of Temporal, has no tracer: nothing is recorded there.
    """
    told: dict[str, int | bool | str] = {}
    try:
        tracer = ctx.tracer
    except (AttributeError, UserError):
        yield told
        return
    with tracer.start_as_current_span(
        f"tomldiary.{name}", record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield told
        except BaseException as error:
            told["error_type"] = type(error).__name__
            raise
        finally:
            for key, value in told.items():
                current.set_attribute(f"tomldiary.{key}", value)


def diary_functions(
    verbs: Callable[[RunContext[Any], str], MemoryVerbs],
) -> dict[str, Callable[..., Coroutine[Any, Any, str]]]:
    """Return the tools by name.

    Args:
        verbs: Says for each call whose diary it is; its second argument is the id of the call.
    """

    @described_by(MemoryVerbs.recall)
    async def recall(ctx: RunContext[Any], query: str, limit: int = 5) -> str:
        return await answer(ctx, "recall", query, limit)

    @described_by(MemoryVerbs.remember)
    async def remember(
        ctx: RunContext[Any],
        text: str,
        category: str,
        contexts: list[str] | None = None,
        fields: dict[str, Any] | None = None,
    ) -> str:
        more = [] if fields is None else [fields]
        return await answer(ctx, "remember", text, category, contexts, *more)

    @described_by(MemoryVerbs.update)
    async def update(
        ctx: RunContext[Any],
        key: str,
        text: str = "",
        contexts: list[str] | None = None,
        fields: dict[str, Any] | None = None,
    ) -> str:
        more = [] if fields is None else [fields]
        return await answer(ctx, "update", key, text, contexts, *more)

    @described_by(MemoryVerbs.forget)
    async def forget(ctx: RunContext[Any], key: str) -> str:
        return await answer(ctx, "forget", key)

    async def answer(ctx: RunContext[Any], verb: str, *arguments: Any) -> str:
        with span(ctx, verb) as told:
            try:
                user = verbs(ctx, call_id(ctx, verb, *arguments))
            except Exception as error:  # noqa: BLE001 - the host's function that names the user may fail
                said = failure(error)
            else:
                said: Answer = await getattr(user, f"a{verb}")(*arguments)
            told["failed"] = said.is_error
        if said.data is None:
            return str(said)
        # The model reads the sentence; a program finds the data in the part's metadata.
        return cast("str", ToolReturn(str(said), metadata=said.data))

    return {tool.__name__: tool for tool in (recall, remember, update, forget)}


def call_id(ctx: RunContext[Any], verb: str, *arguments: Any) -> str:
    """Return an id that a repetition of the same call has too, and no other call; "" outside of a run.

    Some models number the calls of each response anew, so what is asked for is part of it.
    """
    if ctx.run_id is None or ctx.tool_call_id is None:
        return ""
    call = json.dumps([ctx.run_id, ctx.run_step, ctx.tool_call_id, verb, *arguments])
    return hashlib.sha256(call.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def telling_categories(
    diary: Diary,
) -> Callable[[RunContext[Any], ToolDefinition], Coroutine[Any, Any, ToolDefinition]]:
    """Return a `prepare` function that names the diary's categories where `remember` asks for one.

    They are named, not enforced: an enumeration would make a test model write into the diary.
    """
    # The same for every request, until a type of facts is registered.
    told: tuple[object, dict[str, Any]] | None = None

    async def prepare(_ctx: RunContext[Any], definition: ToolDefinition) -> ToolDefinition:
        nonlocal told
        if told is None or told[0] is not diary.fact_schemas:
            schema = copy.deepcopy(definition.parameters_json_schema)
            schema["properties"]["category"]["description"] += f" {naming_categories(diary)}"
            told = diary.fact_schemas, schema
        return replace(definition, parameters_json_schema=told[1])

    return prepare
