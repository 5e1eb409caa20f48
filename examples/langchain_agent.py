"""A LangChain agent that remembers its user from one thread to the next.

Shows `DiaryMiddleware`: it adds the memory to the prompt and extracts each turn in the background.
The model is scripted, so it runs offline. Run: python examples/langchain_agent.py [FOLDER]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from langchain.agents import create_agent
from langchain_core.language_models import SimpleChatModel
from langgraph.checkpoint.memory import InMemorySaver

from tomldiary import Diary
from tomldiary_langchain import DiaryMiddleware

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage


@dataclass
class Guest:
    """The context of a run; the middleware reads the user from it."""

    user_id: str


class Baker(SimpleChatModel):
    """Stands in for a model: it recommends the first cake that nothing in its messages excludes."""

    @property
    def _llm_type(self) -> str:
        return "baker"

    def _call(self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any) -> str:
        given = " ".join(str(message.text) for message in messages)
        cakes = {"walnut cake": "walnuts", "cheesecake": "lactose", "fruit tart": "no fruit"}
        return f"Try the {next(cake for cake, reason in cakes.items() if reason not in given)}."


def main(folder: Path) -> None:
    """State a fact in one thread, and ask a question in another."""
    diary = Diary(folder, agent="rules")  # with a model: the same chat model, or a cheaper one
    memory = DiaryMiddleware(diary)
    agent = create_agent(
        Baker(), middleware=[memory], context_schema=Guest, checkpointer=InMemorySaver()
    )

    def say(user: str, thread: str, text: str) -> None:
        answer = agent.invoke(
            {"messages": [{"role": "user", "content": text}]},
            {"configurable": {"thread_id": thread}},
            context=Guest(user),
        )
        print(f"{user}, {thread}: {text}\n  {answer['messages'][-1].text}")
        memory.writer.flush()  # only in this example, so that the next turn sees the entry

    say("ana", "monday", "I'm allergic to walnuts.")
    say("ana", "friday", "Which cake is good?")
    say("ben", "friday evening", "Which cake is good?")
    memory.writer.close_sync()
    print(f"\n{(folder / 'ana' / 'preferences.toml').read_text('utf-8')}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
