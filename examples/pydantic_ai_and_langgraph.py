"""One diary for a pydantic-ai agent and a LangGraph graph.

Shows `DiaryCapability` together with `recall_node`: the graph reads an entry of the agent, then an edit of
the file. Run: python examples/pydantic_ai_and_langgraph.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypedDict

from langgraph.graph import END, START, StateGraph
from pydantic_ai import Agent, models
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from tomldiary import Diary
from tomldiary_langgraph import Memory, recall_node
from tomldiary_pydantic_ai import DiaryCapability

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo

models.ALLOW_MODEL_REQUESTS = False  # the models here are scripted


class State(TypedDict, total=False):
    """The state of the graph."""

    memory: Memory
    answer: str


def waiter(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Stand in for a model: store what the guest does not eat."""
    if any(part.part_kind == "tool-return" for part in messages[-1].parts):
        return ModelResponse([TextPart("With pleasure.")])
    fact = {"category": "dislikes", "text": "Does not eat mushrooms."}
    return ModelResponse([ToolCallPart("remember", fact)])


def kitchen(state: State) -> State:
    """Stand in for a node with a model: it reads the memory that the first node wrote to the state."""
    avoided = next(food for food in ("mushrooms", "leeks") if food in state["memory"])
    return {"answer": f"A risotto without {avoided}."}


async def main(folder: Path) -> None:
    """Store with the agent, recall in the graph."""
    diary = Diary(folder)
    agent = Agent(FunctionModel(waiter), capabilities=[DiaryCapability(diary, "lea", record=False)])
    print(f"waiter: {(await agent.run('No mushrooms for me, please.')).output}")

    graph = StateGraph(State)
    graph.add_node("recall", recall_node(diary, user_id="lea", messages_key=None))
    graph.add_node("kitchen", kitchen)
    graph.add_edge(START, "recall")
    graph.add_edge("recall", "kitchen")
    graph.add_edge("kitchen", END)
    print(f"kitchen: {(await graph.compile().ainvoke({}))['answer']}")

    file = folder / "lea" / "preferences.toml"
    file.write_text(file.read_text("utf-8").replace("mushrooms", "leeks"), "utf-8")
    print(f"kitchen, after an edit: {(await graph.compile().ainvoke({}))['answer']}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
