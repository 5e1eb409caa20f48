"""Tools for a model, to read and change the memory of the run's user."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.runnables import RunnableConfig  # noqa: TC002 - LangChain reads the annotation
from langchain_core.tools import StructuredTool, ToolException, create_schema_from_function
from pydantic import ValidationError

from tomldiary.agents.identity import checked_id, current_place, field_of
from tomldiary.agents.options import (
    checked_descriptions,
    checked_table,
    checked_text,
    chosen_tools,
    known_tools,
)
from tomldiary.agents.turn_messages import digest, keep_out_of_steps
from tomldiary.agents.verbs import READING_VERBS, VERBS, MemoryVerbs, Verb, naming_categories
from tomldiary.diary import Diary, diary_of
from tomldiary.entries.constraints import explained
from tomldiary.errors import InvalidValue
from tomldiary.runtime.async_bridge import in_thread
from tomldiary_langchain.identity import Who, follow_runs, resolve_session, resolve_user

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Generator, Mapping

    from langchain_core.utils.pydantic import TypeBaseModel
    from pydantic.v1 import ValidationError as ValidationErrorV1

    from tomldiary.agents.answers import Answer

_call: ContextVar[str] = ContextVar("tomldiary_langchain_call", default="")
"""A digest of the model's call that is run; "" if the application calls the tool."""


def diary_tools(
    diary: Diary | str | os.PathLike[str],
    user_id: Who = None,
    *,
    session_id: Who = None,
    tools: Literal["none", "read", "all"] | Collection[Verb] = "all",
    names: Mapping[str, str] | None = None,
    descriptions: Mapping[str, str] | None = None,
) -> list[StructuredTool]:
    """Return tools for preferences and blocks, sync and async.

    They are `recall`, `remember`, `update`, `forget`, and `read_block`, `append_block`,
    `replace_in_block` for texts that are kept whole.

    An error is returned as the tool's answer with the status "error"; only a run that names no user raises. The data
    of an answer are the message's `artifact`. If LangGraph repeats a node, for example after an interrupt in another tool
    of it, a call that was run has no second effect.

    Args:
        diary: A diary, or a folder or an address, which gets the built-in preference table.
        user_id: The user, or a function of the run's config; None looks it up in the run's context, config and
            metadata. It is never an argument of a tool.
        session_id: The session of new entries, given in the same ways; None takes `session_id` or `thread_id` of the
            run. If an agent with `DiaryMiddleware` calls the tool in a turn, and the run names no other session, it is
            that of the turn.
        tools: "all", "read" (those that change nothing), "none", or names.
        names: Other names of tools, by the names above.
        descriptions: Other descriptions of tools, by the names above.

    Raises:
        InvalidValue: A name is not that of a tool, or two tools get the same one.
    """
    memory = diary_of(diary)
    checked_id("user_id", user_id, "config")
    checked_id("session_id", session_id, "config")
    follow_runs()

    verbs = partial(verbs_in, memory, user_id, session_id)
    return tools_of(memory, verbs, tools, names, descriptions)


def verbs_in(diary: Diary, user_id: Who, session_id: Who, config: RunnableConfig) -> MemoryVerbs:
    """Return the verbs for the user and the session of a run, which are given as in `diary_tools`."""
    user = diary.user(resolve_user(user_id, config))
    _, task = current_place(field_of(config, "configurable"))
    operation = digest(task, _call.get()) if task and _call.get() else ""
    session = resolve_session(session_id, config, diary, user.user_id)
    return MemoryVerbs(user, session, operation)


def tools_of(
    diary: Diary,
    verbs: Callable[[RunnableConfig], MemoryVerbs],
    tools: Literal["none", "read", "all"] | Collection[Verb] = "all",
    names: Mapping[str, str] | None = None,
    descriptions: Mapping[str, str] | None = None,
) -> list[StructuredTool]:
    """Return the tools for the user that `verbs` finds for a run; see `diary_tools`."""
    described = checked_descriptions(descriptions, VERBS)
    renamed = checked_table(names or {}, "names")
    known_tools("names", renamed, VERBS)
    for tool, name in renamed.items():
        if not checked_text(name, f"names.{tool}").strip():
            raise InvalidValue("the name is blank. Leave it out.", where=f"names.{tool}")
    notes = {"remember": f"Categories: {naming_categories(diary)}"}
    made = [
        _tool(name, verbs, renamed.get(name, name), described.get(name), notes.get(name, ""))
        for name in chosen_tools(tools, VERBS, READING_VERBS)
    ]
    used = Counter(tool.name for tool in made)
    for name in (name for name, count in used.items() if count > 1):
        raise InvalidValue(f"two tools have the name {name!r}. Give another one.", where="names")
    keep_out_of_steps(used)
    return made


class _Tool(StructuredTool):
    """A tool whose function knows the call of the model."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - the name in LangChain's interface
        with _calling(input):
            return super().invoke(input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - as above
        with _calling(input):
            return await super().ainvoke(input, config, **kwargs)


@contextmanager
def _calling(call: Any) -> Generator[None]:
    made = [repr(field_of(call, name)) for name in ("id", "name", "args")]
    token = _call.set(digest(*made) if field_of(call, "type") == "tool_call" else "")
    try:
        yield
    finally:
        _call.reset(token)


def _tool(
    verb: str,
    verbs: Callable[[RunnableConfig], MemoryVerbs],
    name: str,
    description: str | None,
    note: str,
) -> StructuredTool:
    """Return a tool with the parameters of a verb; LangChain adds the config of the run."""

    # LangChain passes a text, as in `recall.invoke("milk")`, by position.
    def run(*texts: str, config: RunnableConfig, **arguments: Any) -> tuple[str, Any]:
        answer: Answer = getattr(verbs(config), verb)(*texts, **arguments)
        if answer.is_error:
            raise ToolException(answer)
        return str(answer), answer.data

    def unfit(error: ValidationError | ValidationErrorV1) -> str:
        assert isinstance(error, ValidationError)  # noqa: S101 - the arguments are a model of pydantic 2
        return f"❌ {explained(error, name)}"

    async def arun(*texts: str, config: RunnableConfig, **arguments: Any) -> tuple[str, Any]:
        return await in_thread(run, *texts, config=config, **arguments)

    schema = _arguments(verb, name)
    return _Tool(
        name=name,
        description=f"{description or schema.__doc__} {note}".strip(),
        args_schema=schema,
        func=run,
        coroutine=arun,
        response_format="content_and_artifact",
        handle_tool_error=True,
        handle_validation_error=unfit,
    )


@lru_cache
def _arguments(verb: str, name: str) -> TypeBaseModel:
    """Return the model of a tool's arguments; all tools of a name share it, because LangChain makes it slowly."""
    return create_schema_from_function(name, getattr(MemoryVerbs, verb), parse_docstring=True)
