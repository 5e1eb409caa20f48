"""Graphs of many shapes around the nodes of a memory, whose runs fail, wait or are left where a program says."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel

from tomldiary.errors import ExtractionError, IdentifierError
from tomldiary_langgraph import Memory, extract_node, recall_node, submit_node

BODIES = (
    "plain", "subgraph", "inner", "send", "branches", "tools", "worker", "goto", "entrypoint", "each",
)  # fmt: skip
"""What is between the recall node and the recording nodes.

"inner" is a subgraph that records, and "each" answers and records each message by itself.
"""
STEPS = ("before", "answer", "after", "extractor", "last")
"""Where a run may fail or wait."""
SYNC = ("invoke", "retried", "stream", "left")
ASYNC = ("ainvoke", "astream", "aleft", "events left", "cancelled")
"""How a run is started, and whether its stream is left early."""
PLACES = ("configurable", "context", "metadata", "function")
"""Where the runs of a thread name the user."""
FAILURES = (ConnectionError, TimeoutError, IdentifierError, ExtractionError)
RETRIED = RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False, retry_on=TimeoutError)


class Dictionary(MessagesState):
    memory: Memory


@dataclass
class Data:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)
    memory: Memory = ""


class Model(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []
    memory: Memory = ""


class Thread:
    """A graph and one thread of it.

    Args:
        program: Gives the random numbers, the memory and the texts of the answers, and is told what a model is shown.
        name: The id of the thread.
        restarts: Whether the graph is built again in the middle, as in another process.
        is_saved: Whether there is a checkpointer.
    """

    def __init__(self, program, name, *, restarts, is_saved):
        choose = program.choose
        self.program, self.name = program, name
        # A node that records a part of the thread cannot note where the whole turn ends.
        self.body = choose.choice(BODIES[:-2] if restarts else BODIES[: -(name == "room") or None])
        self.state = choose.choice([Dictionary, Data, Model])
        self.place = choose.choice(PLACES)
        count = 1 if restarts else choose.choice([1, 1, 2])
        self.kinds = choose.choices(["extract", "submit"], k=count)
        self.saver = InMemorySaver() if is_saved else None
        self.trims = choose.random() < 0.2
        self.has_tasks = choose.random() < 0.5
        """Whether an entrypoint records in tasks."""
        self.resends = choose.random() < 0.5
        """Whether a client sends the words of a failed run again, where there is no checkpointer."""
        self.kept: list[AnyMessage] = []
        """The thread as a client has it."""
        self.troubles: dict[str, str] = {}
        """What goes wrong in the next run, by step."""
        self.leaves_at = 0
        self.goes_again = False
        """Whether the next run that comes to its end passes the recording node again."""
        self.given: list[str] = []
        """The answers in this run."""
        self._task: Any = None
        self.build()

    def __repr__(self):
        saved = "saved" if self.saver else "not saved"
        return f"{self.body} {self.state.__name__} {self.place} {self.kinds} {saved}"

    def trouble(self, step):
        """Fail or wait, if the run is to do so here."""
        kind = self.troubles.get(step)
        if kind == "wait":
            interrupt("Go on?")
        self.troubles.pop(step, None)
        if kind in ("error", "timeout"):
            raise (TimeoutError if kind == "timeout" else ConnectionError)(step)
        return kind

    def build(self):
        """Make the nodes and the graph."""
        diary = self.program.diary
        account = (
            (lambda _, runtime: runtime.context["account"]) if self.place == "function" else None
        )
        self._recall = recall_node(diary, user_id=account)
        self._records = [
            submit_node(self.program.writer, user_id=account)
            if kind == "submit"
            else extract_node(diary, user_id=account)
            for kind in self.kinds
        ]
        self.graph = self._entry() if self.body == "entrypoint" else self._nodes()

    def _step(self, name, work=lambda _state, _config: {}):
        def call(state, config):
            self.trouble(name)
            return work(state, config)

        async def acall(state, config):
            if self.trouble(name) == "cancel" and self._task is not None:
                self._task.cancel()
                await asyncio.sleep(60)
            return work(state, config)

        return RunnableLambda(call, acall)

    def _answer(self, state, config):
        messages = messages_of(state)
        shown = state.get("memory") if isinstance(state, dict) else getattr(state, "memory", "")
        self.program.shown(config["configurable"]["by"], shown or "")
        if self.body == "tools" and messages[-1].type != "tool":
            call = {"name": "look", "args": {}, "id": uuid4().hex}
            return {"messages": [AIMessage("", tool_calls=[call])]}
        word = [word for one in messages for word in asked_in(one)][-1]
        answer, text = self.program.new_answer(word)
        self.given.append(answer)
        if self.body == "each":
            said = [*messages, AIMessage(text, id=uuid4().hex)]
            return Command(update={"messages": said[1:]}, goto=Send("record 0", {"messages": said}))
        if self.body == "worker":
            return {"messages": [HumanMessage(text, name="answer")]}
        update = {"messages": [AIMessage(text)]}
        return Command(update=update, goto="after") if self.body == "goto" else update

    def _look(self, state):
        """A tool whose agent has the same memory."""
        nodes = [("help", lambda _: {"messages": [("ai", "Seen.")]}), ("record", self._records[0])]
        helper = StateGraph(MessagesState).add_sequence(nodes).add_edge(START, "help").compile()
        helper.invoke({"messages": [("user", "Look at it.")]})
        call = messages_of(state)[-1].tool_calls[0]["id"]
        return {"messages": [ToolMessage("nothing", tool_call_id=call)]}

    def _trim(self, state, _config):
        if self.goes_again:
            self.goes_again = False
            return Command(goto="record 0")
        old = messages_of(state)[:-2] if self.trims else []
        return {"messages": [RemoveMessage(one.id) for one in old]}

    def _nodes(self):
        builder = StateGraph(self.state, context_schema=dict)
        answer, after = self._step("answer", self._answer), ("after", self._step("after"))
        records = [(f"record {number}", node) for number, node in enumerate(self._records)]
        builder.add_sequence([("recall", self._recall), ("before", self._step("before"))])
        builder.add_edge(START, "recall")
        steps = [after, *records]
        if self.body == "inner":
            steps = [after]
        elif self.body == "each":
            steps = [records[0], after, *records[1:]]
        builder.add_sequence([*steps, ("last", self._step("last", self._trim))])
        if self.body in ("subgraph", "inner"):
            inside = StateGraph(self.state, context_schema=dict)
            inside.add_sequence([("model", answer), *(records if self.body == "inner" else [])])
            inside.add_edge(START, "model")
            builder.add_node("answer", inside.compile(), input_schema=MessagesState)
        else:
            builder.add_node("answer", answer, retry_policy=RETRIED)
        if self.body in ("send", "each"):
            builder.add_conditional_edges("before", getattr(self, f"_{self.body}"), ["answer"])
        else:
            builder.add_edge("before", "answer")
        if self.body == "branches":
            builder.add_node("other", answer).add_edge("before", "other").add_edge("other", "after")
        if self.body == "tools":
            builder.add_node("tools", self._look).add_edge("tools", "answer")
            builder.add_conditional_edges("answer", calls, ["tools", "after"])
        elif self.body not in ("goto", "each"):
            builder.add_edge("answer", "after")
        return builder.compile(checkpointer=self.saver)

    def _send(self, state):
        return [Send("answer", fields(state))] * 2

    def _each(self, state):
        return [Send("answer", {**fields(state), "messages": [one]}) for one in unanswered(state)]

    def _entry(self):
        @task(retry_policy=RETRIED)
        def answer(state, by):
            self.trouble("answer")
            return self._answer(state, {"configurable": {"by": by}})["messages"][0]

        @task
        def record(number, thread):
            self._records[number].invoke({"messages": thread})

        @entrypoint(checkpointer=self.saver, context_schema=dict)
        def chat(given, *, previous=None, config=None):
            thread = add_messages(previous or [], given["messages"])
            memory = self._recall.invoke({"messages": thread})["memory"]
            self.trouble("before")
            state, by = {"messages": thread, "memory": memory}, config["configurable"]["by"]
            thread = add_messages(thread, answer(state, by).result())
            self.trouble("after")
            for number in range(len(self._records)):
                if self.has_tasks:
                    record(number, thread).result()
                else:
                    self._records[number].invoke({"messages": thread})
            self.trouble("last")
            return entrypoint.final(value={"messages": thread}, save=thread)

        return chat

    def run(self, given, user, way, settings=None, **options):
        """Run the graph for a user, "" for none; return whether the run ended.

        Args:
            given: The input.
            user: The user.
            way: How it is run.
            settings: The checkpoint to begin at.
            options: LangGraph's options of a run with a checkpointer, such as `durability`.
        """
        self.given = []
        named = {self.place: {"user_id": user}} if user and self.place != "function" else {}
        context = named.pop("context", {"account": user} if self.place == "function" else None)
        place = {**(settings or {}), "thread_id": self.name, "by": user}
        config = {**named, "configurable": {**named.get("configurable", {}), **place}}
        options["context"] = context
        try:
            if way in ASYNC:
                result = asyncio.run(self._arun(given, config, way, options))
            else:
                result = self._run(given, config, way, options)
        except (*FAILURES, asyncio.CancelledError) as error:
            return self.program.note(f"  {self.name}: {type(error).__name__}: {error}")
        finally:
            self._task = None
        if result is None or (self.saver and self.snapshot.tasks):
            return False
        self.kept = result["messages"]
        return True

    def _run(self, given, config, way, options):
        if way == "invoke":
            return self.graph.invoke(given, config, **options)
        if way == "retried":
            repeated = self.graph.with_retry(
                retry_if_exception_type=(TimeoutError,),
                wait_exponential_jitter=False,
                stop_after_attempt=2,
            )
            return repeated.invoke(given, config, **options)
        found: list[Any] = [None]
        stream = self.graph.stream(given, config, **options, stream_mode="values")
        for found[0] in stream:
            if self._leaves(way):
                return None
        return found[0]

    async def _arun(self, given, config, way, options):
        if way == "ainvoke":
            return await self.graph.ainvoke(given, config, **options)
        if way == "cancelled":
            coroutine = self.graph.ainvoke(given, config, **options)
            self._task = asyncio.ensure_future(coroutine)
            return await self._task
        found: list[Any] = [None]
        if way == "events left":
            stream = self.graph.astream_events(given, config, **options, version="v2")
            async with aclosing(stream):
                async for event in stream:
                    is_part = event["event"] == "on_chain_stream" and not event["parent_ids"]
                    if is_part and self._leaves(way):
                        break
            return None
        stream = self.graph.astream(given, config, **options, stream_mode="values")
        async with aclosing(stream):
            async for found[0] in stream:
                if self._leaves(way):
                    return None
        return found[0]

    @property
    def stops(self):
        """The nodes before which a run may stop, behind the recall node."""
        return [] if self.body == "entrypoint" else [*self.graph.builder.nodes][1:]

    def _leaves(self, way):
        self.leaves_at -= 1
        return self.leaves_at < 0 and "left" in way

    def edit(self, begin, message):
        """Replace a message at a checkpoint, behind the recall node; return the place to continue."""
        update = {"messages": [message]}
        return self.graph.update_state(begin.config, update, as_node="recall")["configurable"]

    @property
    def snapshot(self):
        """The state of the thread, as LangGraph has it."""
        return self.graph.get_state({"configurable": {"thread_id": self.name}})

    @property
    def past(self):
        """The checkpoints from which a run may begin, the newest first."""
        history = self.graph.get_state_history({"configurable": {"thread_id": self.name}})
        return [one for one in history if one.next]


def words(text):
    """Return the words of users in a text."""
    return re.findall(r"\bw\d+", text)


def asked_in(message):
    """Return the words of a message that a user wrote."""
    is_asked = message.type == "human" and message.name != "answer"
    return words(message.text) if is_asked else []


def messages_of(state):
    """Return the messages of a state."""
    return state["messages"] if isinstance(state, dict) else state.messages


def unanswered(state):
    """Return the messages of a state behind the last answer."""
    messages = messages_of(state)
    answers = [number for number, one in enumerate(messages) if one.type == "ai"]
    return messages[answers[-1] + 1 :] if answers else messages


def fields(state):
    """Return a state as a dictionary, as docs/langgraph-details.md wants it for `Send`."""
    return dict(state if isinstance(state, dict) else vars(state))


def calls(state):
    """Return the node behind a model."""
    return "tools" if messages_of(state)[-1].tool_calls else "after"
