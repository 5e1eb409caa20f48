"""A ReAct agent whose tools keep notes in a diary, through LangGraph's store interface.

Shows `create_agent(store=DiaryStore(…))`: one tool receives the store as `ToolRuntime`, the other as
`InjectedStore`. The model is scripted, so it runs offline. Run: python examples/langgraph/agent.py [FOLDER]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.tools import InjectedStore, ToolRuntime, tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.store.base import BaseStore  # noqa: TC002 - the tool reads the annotation

from tomldiary_langgraph import DiaryStore


@dataclass
class Guest:
    """The context of a run: its user."""

    user_id: str


@tool
def note(key: str, text: str, runtime: ToolRuntime[Guest]) -> str:
    """Keep a note about the guest."""
    assert runtime.store is not None  # noqa: S101 - the agent has one
    runtime.store.put((runtime.context.user_id, "notes"), key, {"text": text})
    return "noted"


@tool
def look_up(
    question: str, runtime: ToolRuntime[Guest], store: Annotated[BaseStore, InjectedStore()]
) -> str:
    """Look up notes about the guest."""
    found = store.search((runtime.context.user_id, "notes"), query=question)
    return "; ".join(item.value["text"] for item in found) or "nothing"


class Host(BaseChatModel):
    """Stands in for a model: it notes statements, and looks up the answers to questions."""

    @property
    def _llm_type(self) -> str:
        return "host"

    def bind_tools(self, *_args: Any, **_kwargs: Any) -> Any:
        """Return the model itself, because its tool calls are scripted."""
        return self

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any) -> ChatResult:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            answer = AIMessage(f"{last.text}.")
        elif isinstance(last, HumanMessage) and last.text.endswith("?"):
            answer = AIMessage("", tool_calls=[_call("look_up", question=last.text)])
        else:
            answer = AIMessage("", tool_calls=[_call("note", key="seat", text=last.text)])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def _call(name: str, **arguments: str) -> Any:
    return {"name": name, "args": arguments, "id": f"call-{name}", "type": "tool_call"}


def main(folder: Path) -> None:
    """State a fact in one run, and ask for it in other runs."""
    store = DiaryStore(folder)
    agent = create_agent(Host(), [note, look_up], store=store, context_schema=Guest)
    for user, text in [
        ("robin", "A table by the window, please."),
        ("robin", "Which table do I like?"),
        ("kim", "Which table do I like?"),
    ]:
        answer = agent.invoke({"messages": [HumanMessage(text)]}, context=Guest(user))
        print(f"{user}: {text}\n  {answer['messages'][-1].text}")
    print((folder / "robin" / "items" / "notes.toml").read_text("utf-8"))


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as temporary:
            main(Path(temporary))
