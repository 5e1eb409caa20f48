"""One memory read through each framework that is installed.

Frameworks and adapters are looked up by name when the demo runs; nothing here depends on any of them.
A door that fails never closes the others.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.diary import Diary

__all__ = ["Reading", "open_doors"]

_LIMIT = 3
_REMOTE_TRACING = ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING_V2")


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of one door: `told` is the sentence to print."""

    framework: str
    state: Literal["worked", "not installed", "not available", "failed"]
    told: str


@dataclass(frozen=True, slots=True)
class _Door:
    framework: str
    module: str
    """A module of the framework; if it cannot be found, the framework is not installed."""
    adapter: str
    entrance: str
    """What the adapter has to offer."""
    extra: str
    read: Callable[[Any, Diary, str, str], str]


def open_doors(diary: Diary, user: str, question: str, answer: str) -> list[Reading]:
    """Ask the question through every door; the text that comes back has to hold `answer`."""
    for name in _REMOTE_TRACING:
        os.environ[name] = "false"  # offline means that nobody else is told, either
    return [_open(door, diary, user, question, answer) for door in _DOORS]


def _open(door: _Door, diary: Diary, user: str, question: str, answer: str) -> Reading:
    name = door.framework
    try:
        if not _is_installed(door.module):
            command = f'python -m pip install "tomldiary-kit[{door.extra}]"'
            return Reading(name, "not installed", f"is not installed. Run: {command}")
        entrance: Any = getattr(_adapter(door.adapter), door.entrance, None)
        if entrance is None:
            told = f"{door.adapter}.{door.entrance} is not available in this version."
            return Reading(name, "not available", told)
        text = door.read(entrance, diary, user, question)
    except Exception as error:  # noqa: BLE001 - the other doors have to be tried, whatever it is
        return Reading(name, "failed", f"failed ({type(error).__name__}: {error}).")
    if answer not in text:
        return Reading(name, "failed", f"answered {text!r}, which leaves out {answer!r}.")
    return Reading(name, "worked", text)


def _is_installed(module: str) -> bool:
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == module.partition(".")[0]:
            return False
        raise
    return True


def _adapter(name: str) -> Any:
    """Import an adapter; None if this version does not have it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return None
        raise


def _through_langgraph(store_class: Any, diary: Diary, user: str, question: str) -> str:
    namespace = (user, "diary", "preferences")
    items = store_class(diary).search(namespace, query=question, limit=_LIMIT)
    matches = [item for item in items if item.score is not None]
    found = "; ".join(f"{item.key} {item.value['text']} ({item.score:.2f})" for item in matches)
    return f"store.search → {found}"


def _through_langchain(retriever_class: Any, diary: Diary, user: str, question: str) -> str:
    retriever = retriever_class(diary=diary, user_id=user, k=_LIMIT)
    documents = retriever.invoke(question)
    return f"retriever.invoke → {'; '.join(document.page_content for document in documents)}"


def _through_pydantic_ai(toolset_class: Any, diary: Diary, user: str, question: str) -> str:
    messages_module = import_module("pydantic_ai.messages")
    model_class = import_module("pydantic_ai.models.function").FunctionModel
    agent_class = import_module("pydantic_ai").Agent

    def script(messages: Any, info: Any) -> Any:
        """Call `recall` with the question, then answer with what it returned."""
        returned = [part.content for part in messages[-1].parts if part.part_kind == "tool-return"]
        if returned:
            part = messages_module.TextPart(str(returned[-1]))
        else:
            tool = next(tool for tool in info.function_tools if tool.name == "recall")
            argument = tool.parameters_json_schema["required"][0]
            part = messages_module.ToolCallPart("recall", {argument: question})
        return messages_module.ModelResponse(parts=[part])

    toolset = toolset_class(diary, user_id=user)
    agent = agent_class(model_class(script), toolsets=[toolset])
    return f"agent called recall → {agent.run_sync(question).output}"


_DOORS = (
    _Door(
        "LangGraph",
        "langgraph.store.base",
        "tomldiary_langgraph",
        "DiaryStore",
        "langgraph",
        _through_langgraph,
    ),
    _Door(
        "LangChain",
        "langchain_core.retrievers",
        "tomldiary_langchain",
        "DiaryRetriever",
        "langchain",
        _through_langchain,
    ),
    _Door(
        "pydantic-ai",
        "pydantic_ai",
        "tomldiary_pydantic_ai",
        "DiaryToolset",
        "pydantic-ai",
        _through_pydantic_ai,
    ),
)
