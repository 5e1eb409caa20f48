"""A chat with an agent of LangChain: its model, tools and middleware, and the words that were said in it."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    ToolCallLimitMiddleware,
)
from langchain.tools import ToolRuntime, tool
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import ensure_config
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import RunControl
from langgraph.types import Command, interrupt
from pydantic import Field

from scripted_chat import Scripted, calling
from tomldiary_langchain import DiaryMiddleware

if TYPE_CHECKING:
    from collections.abc import Mapping

    from langgraph.checkpoint.base import BaseCheckpointSaver

    from tomldiary import MemoryWriter

USERS = ("ann", "bob", "cay")
WORD = re.compile(r"\b[wax][0-9a-f]{12}\b")
"""A word that a user says, that a model answers, or that no turn may have."""
SHAPES = ("alone", "with a sub-agent", "in a graph", "two in a graph")
AROUND = ("nothing", "summary", "trimming", "documents", "redaction", "retries", "limits")


class Down(Exception):
    """A model or a tool failed."""


@dataclass(eq=False)
class Said:
    """A word, and how often the memory should have it."""

    word: str
    user: str
    chat: str
    least: int = 1
    most: int = 1
    answer: str = ""
    """A word of the model that the turn has, if it is known."""
    text: str = ""
    """The message with it."""
    is_in_tool: bool = False
    """Whether it answers the question of a tool."""
    is_heard: bool = False
    """Whether the tool was given it."""
    is_settled: bool = True
    """Whether it is recorded only when the model has answered; not if the caller left the run."""


@dataclass(eq=False)
class Chat:
    """The conversation of one or several users with an agent."""

    name: str
    seed: int
    choose: random.Random = field(init=False)
    kept: list[Any] = field(default_factory=list)
    """The messages that the client keeps."""
    script: list[str] = field(default_factory=list)
    """What the model does next; it answers if nothing is left."""
    said: dict[str, Said] = field(default_factory=dict)
    open: list[Said] = field(default_factory=list)
    """What was said since the last answer."""
    given: list[Said] = field(default_factory=list)
    """What the model said in this run, except for what may be cut out."""
    shown: list[Said] = field(default_factory=list)
    """Words of other users that a model was shown as the memory."""
    user: str = ""
    """The user of the last run."""
    processes: set[int] = field(default_factory=set)
    """Where it ran."""
    has_travelled: bool = False
    control: RunControl = field(default_factory=RunControl)
    is_hanging: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.choose = choose = random.Random(f"{self.seed} {self.name}")
        self.is_saved = choose.random() < 0.8
        """Whether checkpoints keep the messages; else the client does."""
        self.has_ids = choose.random() < 0.7
        """Whether the client gives each message an id."""
        self.users = choose.sample(USERS, choose.choice([1, 1, 2]) if self.is_saved else 1)
        self.shape, self.around = choose.choice(SHAPES), choose.choice(AROUND)
        self.is_around_first = choose.random() < 0.3
        """Whether the middleware that changes messages is in front of the memory."""

    @property
    def is_nested(self) -> bool:
        return self.shape in ("in a graph", "two in a graph")

    def __str__(self) -> str:
        kept = "saved" if self.is_saved else "kept by the client"
        ids = "with" if self.has_ids else "without"
        return f"{self.name} of {self.users}: {self.shape}, {self.around}, {kept} {ids} ids"

    def new(self, kind: str, user: str = "") -> Said:
        """Return a new word."""
        count = f"{self.seed} {self.name} {len(self.said)}"
        word = kind + hashlib.sha256(count.encode()).hexdigest()[:12]
        self.said[word] = said = Said(word, user, self.name, text=f"I like {word}.")
        if kind == "x":
            said.least = said.most = 0
        else:
            self.open.append(said)
        return said

    def hear(self, text: str) -> None:
        """Note that a tool was given an answer of the user."""
        for word in WORD.findall(text):
            if not self.said[word].is_heard:
                self.said[word].is_heard, self.said[word].least = True, 1

    def answer(self, user: str, *, is_part: bool = False) -> str:
        """Return a new word of the model; it is recorded at least if its run ends."""
        said = self.new("a", user)
        said.least = 0
        # "If a summary replaces the question during the run, the turn has the question and the last answer, without
        # tool calls." (docs/langchain-details.md)
        if not (is_part and self.around in ("summary", "trimming")):
            self.given.append(said)
        return said.word


class Talker(BaseChatModel):
    """Does what the script of its chat says, and then answers with a new word."""

    chats: dict[str, Chat] = Field(repr=False)
    is_inner: bool = False

    @property
    def _llm_type(self):
        return "talker"

    def bind_tools(self, tools, **_):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **_):
        settings = ensure_config().get("configurable", {})
        chat, user = self.chats[settings["chat"]], settings["user_id"]
        memory = " ".join(one.text for one in messages if "<user_memory" in one.text)
        words = (said for each in [*self.chats.values()] for said in [*each.said.values()])
        chat.shown += [
            said for said in words if said.word in memory and said.user not in ("", user)
        ]
        if self.is_inner:
            return _result(AIMessage(chat.new("x").word))
        step = chat.script.pop(0) if chat.script else "answer"
        if step == "fail":
            raise Down
        if step == "drain":
            chat.control.request_drain()
        if step in ("drain", "answer"):
            return _result(AIMessage(chat.answer(user)))
        arguments = {"text": chat.new("x").word} if step in ("ask", "delegate") else {}
        beside = [] if len(chat.said) % 3 else [("look", {})]
        call = calling((step, arguments), *beside)
        if len(chat.said) % 2:
            call.content = f"Let me see {chat.answer(user, is_part=True)}."
        return _result(call)

    async def _agenerate(self, messages, stop=None, run_manager=None, **_):
        chat = self.chats[ensure_config().get("configurable", {})["chat"]]
        if chat.script[:1] == ["hang"]:
            chat.script.pop(0)
            chat.is_hanging.set()
            await asyncio.Event().wait()
        return self._generate(messages)


def _result(message: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message)])


@tool
def look() -> str:
    """Look."""
    return "seen"


@tool
def book() -> str:
    """Book, after an approval."""
    return "booked"


@tool
def broken() -> str:
    """Fail."""
    raise Down


class Trimming(AgentMiddleware):
    """Keeps the last four messages."""

    def before_model(self, state, runtime):
        return {"messages": [RemoveMessage(one.id) for one in state["messages"][:-4]]}


class Documents(AgentMiddleware):
    """Puts a document around the last message of the user, as in LangChain's tutorial."""

    def __init__(self, document: str) -> None:
        self.document = document

    def before_model(self, state, runtime):
        last = state["messages"][-1]
        if not isinstance(last, HumanMessage) or self.document in last.text:
            return None
        found = f"{self.document}\n\n{last.text}\n\n{self.document}"
        return {"messages": [last.model_copy(update={"content": found})]}


def _around(chat: Chat) -> list[Any]:
    """Return the middleware that changes the messages of a chat."""
    if chat.around == "summary":
        model = Scripted(answers=[AIMessage("They talked.")])
        return [SummarizationMiddleware(model, trigger=("messages", 5), keep=("messages", 2))]
    if chat.around == "documents":
        return [Documents(chat.new("x").word)]
    if chat.around == "retries":
        return [ModelRetryMiddleware(max_retries=1, initial_delay=0, on_failure="error")]
    if chat.around == "limits":
        return [ToolCallLimitMiddleware(run_limit=1)]
    return {"trimming": [Trimming()], "redaction": [PIIMiddleware("email")]}.get(chat.around, [])


def agent_of(
    chat: Chat,
    chats: Mapping[str, Chat],
    writer: MemoryWriter,
    saver: BaseCheckpointSaver[Any],
) -> Any:
    """Return the agent of a chat, or the graph that it is in."""
    kept: Any = {"checkpointer": saver} if chat.is_saved else {}
    around = _around(chat)

    def memory():
        return DiaryMiddleware(writer.diary, writer=writer)

    @tool
    def ask(text: str, runtime: ToolRuntime) -> Command[Any]:
        """Ask the user."""
        answer = interrupt(text)
        chat.hear(answer)
        result = ToolMessage("asked", tool_call_id=runtime.tool_call_id)
        return Command(update={"messages": [result, HumanMessage(answer)]})

    @tool
    def delegate(text: str) -> str:
        """Ask another agent."""
        inner = create_agent(Talker(chats={**chats}, is_inner=True), middleware=[memory()])
        return inner.invoke({"messages": [HumanMessage(text)]})["messages"][-1].text

    def agent(**options: Any) -> Any:
        review = HumanInTheLoopMiddleware(interrupt_on={"book": True})
        return create_agent(
            Talker(chats={**chats}),
            [look, book, broken, ask, delegate],
            middleware=[*around, memory(), review]
            if chat.is_around_first
            else [memory(), *around, review],
            **options,
        )

    if not chat.is_nested:
        return agent(**kept)
    nodes = ["first", "second"] if chat.shape == "two in a graph" else ["first"]
    builder = StateGraph(MessagesState).add_sequence([(name, agent()) for name in nodes])
    return builder.add_edge(START, "first").compile(**kept)
