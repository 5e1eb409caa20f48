"""`demo`: a scripted chat, the resulting file, and each installed framework that reads it. Needs no key or network.

Frameworks and adapters are imported by name when the demo runs, so the core depends on none of them.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Exit, Option

from tomldiary.cli.options import AsJson, lasting
from tomldiary.cli.output import heading, print_json, print_text, print_toml
from tomldiary.cli.places import folder_at, shown
from tomldiary.diary import Diary
from tomldiary.errors import InvalidValue, MissingExtra
from tomldiary.extraction.context import Turn
from tomldiary.text.visible import one_line
from tomldiary.writer.writer import MemoryWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

_CHAT = (
    ("alice", "mon", "I love dark roast coffee in the morning.", "A good start into the day."),
    ("bob", "mon", "I hate crowded restaurants.", "I will look for quiet ones."),
    ("alice", "mon", "I'm allergic to walnuts, so no pesto.", "Noted, no walnuts."),
    ("bob", "mon", "My sister Mia lives in Graz.", "A fine town."),
    ("alice", "tue", "I love dark roast coffee in the morning!", "I remember."),
)
_USER = "alice"
_QUESTION = "What is she allergic to?"
_ANSWER = "walnuts"
_LIMIT = 3
_REMOTE_TRACING = ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING_V2")


def demo(
    *,
    path: Annotated[
        str | None, Option(callback=lasting, help="Keep the memory in this new or empty folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a chat, the resulting file, and frameworks that read it."""
    with _folder(path) as folder:
        diary = Diary(folder, agent="rules")
        readings = _as_json(diary) if as_json else _as_text(diary, path)
    if any(reading.state == "failed" for reading in readings):
        raise Exit(1)


def _as_json(diary: Diary) -> list[Reading]:
    _chat(diary)
    alice = diary.user(_USER)
    readings = _readings(diary)
    print_json(
        {
            "users": diary.users(),
            "documents": {kind: alice.document(kind) for kind in alice.documents()},
            "hits": alice.recall(_QUESTION, limit=2),
            "readings": readings,
        }
    )
    return readings


def _as_text(diary: Diary, path: str | None) -> list[Reading]:
    heading("1. Two people chat; a background writer applies every turn.")
    for user, said in _chat(diary):
        print_text(f"   {user:>5}: {said}")
    heading("\n2. This is the memory: alice/preferences.toml, yours to read, edit and diff.")
    alice = diary.user(_USER)
    print_toml(alice.document("preferences"))
    heading(f"\n3. A search for: {_QUESTION}")
    for hit in alice.recall(_QUESTION, limit=2):
        words = ", ".join(map(one_line, hit.reasons))
        print_text(
            f"   {hit.score:.2f}  {one_line(hit.key)}  {one_line(hit.text)}  (matches: {words})"
        )
    heading("\n4. The same file through each framework, with scripted models:")
    readings = _readings(diary)
    for reading in readings:
        print_text(f"   {reading.framework:<12} {one_line(' '.join(reading.told.split()))}")
    if path is not None:
        print_text(
            f"\nThe memory is kept in {path}; show it with: tomldiary show --path {shlex.quote(path)}"
        )
    return readings


def _chat(diary: Diary) -> Iterator[tuple[str, str]]:
    with MemoryWriter(diary, workers=2) as writer:
        receipts = [writer.submit_nowait(Turn(*turn)) for turn in _CHAT]
    for receipt in receipts:
        receipt.wait(0)
    return ((receipt.turn.user_id, receipt.turn.user_msg) for receipt in receipts)


@contextmanager
def _folder(path: str | None) -> Generator[Path]:
    if path is None:
        with tempfile.TemporaryDirectory(prefix="tomldiary-demo-") as folder:
            yield Path(folder)
        return
    folder = folder_at(path)
    if "://" in path:
        raise InvalidValue("the demo needs a folder, not a database", where=shown(path))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidValue("the demo needs a new or an empty folder", where=path)
    yield folder


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one adapter: `told` is the sentence to print."""

    framework: str
    state: Literal["worked", "not installed", "failed"]
    told: str


def _readings(diary: Diary) -> list[Reading]:
    """Search for the question with each adapter."""
    for name in _REMOTE_TRACING:
        os.environ[name] = "false"  # the demo is offline, so it sends no traces
    return [_read_with(diary, *adapter) for adapter in _ADAPTERS]


def _read_with(
    diary: Diary, name: str, class_name: str, read: Callable[[Any, Diary], str]
) -> Reading:
    extra = name.lower()
    try:
        package = import_module(f"tomldiary_{extra.replace('-', '_')}")
        text = read(getattr(package, class_name), diary)
    except MissingExtra:
        command = f'python -m pip install "tomldiary-kit[{extra}]"'
        return Reading(name, "not installed", f"is not installed. Run: {command}")
    except Exception as error:  # noqa: BLE001 - the other adapters are still tried
        return Reading(name, "failed", f"failed ({type(error).__name__}: {error}).")
    if _ANSWER not in text:
        return Reading(name, "failed", f"answered {text!r} without {_ANSWER!r}.")
    return Reading(name, "worked", text)


def _through_langgraph(store_class: Any, diary: Diary) -> str:
    namespace = (_USER, "diary", "preferences")
    items = store_class(diary).search(namespace, query=_QUESTION, limit=_LIMIT)
    matches = [item for item in items if item.score is not None]
    found = "; ".join(f"{item.key} {item.value['text']} ({item.score:.2f})" for item in matches)
    return f"store.search → {found}"


def _through_langchain(retriever_class: Any, diary: Diary) -> str:
    documents = retriever_class(diary=diary, user_id=_USER, k=_LIMIT).invoke(_QUESTION)
    return f"retriever.invoke → {'; '.join(document.page_content for document in documents)}"


def _through_pydantic_ai(toolset_class: Any, diary: Diary) -> str:
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
            part = messages_module.ToolCallPart("recall", {argument: _QUESTION})
        return messages_module.ModelResponse(parts=[part])

    toolset = toolset_class(diary, user_id=_USER)
    agent = agent_class(model_class(script), toolsets=[toolset])
    return f"agent called recall → {agent.run_sync(_QUESTION).output}"


_ADAPTERS = (
    ("LangGraph", "DiaryStore", _through_langgraph),
    ("LangChain", "DiaryRetriever", _through_langchain),
    ("pydantic-ai", "DiaryToolset", _through_pydantic_ai),
)
"""The framework; a class of its adapter; and its use."""
