"""The core's four memory verbs as tools of an agent; errors are returned as sentences."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic_ai import RunContext, Tool, ToolReturn, capabilities
from pydantic_ai.exceptions import UserError

from tomldiary.agents.answers import Answer, failure
from tomldiary.agents.turn_messages import digest
from tomldiary.agents.verbs import MemoryVerbs, naming_categories, parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from pydantic_ai._function_schema import FunctionSchema
    from pydantic_ai.tools import ToolDefinition

    from tomldiary.diary import Diary

F = TypeVar("F", bound="Callable[..., Any]")


@contextmanager
def span(ctx: RunContext[Any], name: str) -> Generator[dict[str, int | bool | str]]:
    """Record the span `tomldiary.<name>` in the run's trace, with the attributes in the yielded dict.

    The text of an error may quote the memory, so only its type is recorded. A run context that was sent to another
    process, for example to an activity of Temporal, has no tracer, so nothing is recorded.
    """
    attributes: dict[str, int | bool | str] = {}
    try:
        tracer = ctx.tracer
    except (AttributeError, UserError):
        yield attributes
        return
    with tracer.start_as_current_span(
        f"tomldiary.{name}", record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield attributes
        except BaseException as error:
            attributes["error_type"] = type(error).__name__
            raise
        finally:
            for key, value in attributes.items():
                current.set_attribute(f"tomldiary.{key}", value)


def diary_tool(
    verb: str, verbs: Callable[[RunContext[Any], str], MemoryVerbs], **options: Any
) -> Tool[Any]:
    """Return a verb as a tool.

    Args:
        verb: The name of the verb, which is that of the tool.
        verbs: Returns the verbs for the user of a call; its second argument is the id of the call.
        **options: Further options of the tool.
    """
    function, made = _function(verb, verbs), _schema(verb)
    # A copy, because pydantic-ai lets a host change the JSON schema in place.
    schema = replace(made, function=function, json_schema=copy.deepcopy(made.json_schema))
    return Tool(function, name=verb, function_schema=schema, **options)


@cache
def _schema(verb: str) -> FunctionSchema:
    """Return the schema of a verb's tool for any function; it is made once, because that takes a millisecond."""
    never_called = cast("Callable[[RunContext[Any], str], MemoryVerbs]", None)
    tool = Tool(
        _function(verb, never_called),
        name=verb,
        takes_ctx=True,
        docstring_format="google",
        require_parameter_descriptions=True,
    )
    return tool.function_schema


def _function(
    verb: str, verbs: Callable[[RunContext[Any], str], MemoryVerbs]
) -> Callable[..., Coroutine[Any, Any, str]]:
    """Return a function with the run context as first parameter, followed by the parameters of a verb."""
    first = Parameter("ctx", Parameter.POSITIONAL_ONLY, annotation=RunContext[Any])
    signature = Signature([first, *parameters_of(verb)], return_annotation=str)

    async def tool(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        ctx, *arguments = bound.args
        with span(ctx, verb) as attributes:
            try:
                user = verbs(ctx, call_id(ctx, verb, *arguments))
                said: Answer = await getattr(user, f"a{verb}")(*arguments)
            except Exception as error:  # noqa: BLE001 - the host's function that names the user may fail
                said = failure(error)
            attributes["failed"] = said.is_error
        if said.data is None:
            return str(said)
        # The model gets the sentence; programs find the data in the part's metadata.
        return cast("str", ToolReturn(str(said), metadata=said.data))

    tool.__doc__ = getattr(MemoryVerbs, verb).__doc__
    tool.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
    tool.__annotations__["return"] = str
    tool.__signature__ = signature
    return tool


def call_id(ctx: RunContext[Any], verb: str, *arguments: Any) -> str:
    """Return an id of a tool call that stays the same when the call is repeated; "" outside of a run.

    Some models reuse call ids in each response, so the arguments are part of the id.
    """
    if ctx.run_id is None or ctx.tool_call_id is None:
        return ""
    return digest(ctx.run_id, str(ctx.run_step), ctx.tool_call_id, verb, repr(arguments))


def with_categories(
    diary: Diary,
) -> Callable[[RunContext[Any], ToolDefinition], Coroutine[Any, Any, ToolDefinition]]:
    """Return a `prepare` function that lists the diary's categories in the description of `remember`.

    The schema does not enforce them: with an enumeration, pydantic-ai's TestModel would write into the diary.
    """

    async def prepare(_ctx: RunContext[Any], definition: ToolDefinition) -> ToolDefinition:
        schema = copy.deepcopy(definition.parameters_json_schema)
        schema["properties"]["category"]["description"] += f" {naming_categories(diary)}"
        return replace(definition, parameters_json_schema=schema)

    return prepare


def durable_operation(name: str) -> Callable[[F], F]:
    """Return a decorator that lets a durable execution engine record and replay a method's result."""
    mark: Callable[[str], Callable[[F], F]] | None = getattr(
        capabilities, "durable_operation", None
    )

    return (lambda method: method) if mark is None else mark(name)
