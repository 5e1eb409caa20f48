"""Memory in a graph: recalled before the model, submitted or extracted after it, never mixed up."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from operator import add
from typing import Annotated, Any
from uuid import uuid4

import pytest
from langchain.tools import tool
from langchain_core.language_models import SimpleChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt
from langsmith import traceable
from pydantic import BaseModel
from typing_extensions import TypedDict

from modes import alternating
from scripted_chat import DONE, calling
from scripted_chat import Scripted as Tools
from tomldiary import Diary, MemoryWriter
from tomldiary.errors import (
    BackendError,
    ExtractionError,
    IdentifierError,
    InvalidValue,
    WriterBusy,
)
from tomldiary_langchain import ChatModelExtractor
from tomldiary_langgraph import DiaryStore, Memory, extract_node, recall_node, submit_node
from tomldiary_langgraph.nodes import runs
from traced_runs import traced

ALICE = {"configurable": {"user_id": "alice", "thread_id": "t1"}}
AT_ONCE = RetryPolicy(max_attempts=2, initial_interval=0.01, jitter=False)


class Dictionary(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    memory: str


class WithoutIds(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add]


@dataclass
class Data:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)
    memory: str = ""


class Model(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []
    memory: str = ""


class Noted:
    """An extractor that keeps what it was given, and nothing else."""

    def __init__(self):
        self.turns = []

    def run(self, message, /, *, deps):
        self.turns.append((deps.session_id, deps.user_msg, deps.assistant_msg))


def answering(*answers):
    return GenericFakeChatModel(messages=iter(AIMessage(answer) for answer in answers))


def graph_of(nodes, *, state=Dictionary, context=None, checkpointer=None):
    builder = StateGraph(state, context_schema=context)
    builder.add_sequence(nodes)
    builder.add_edge(START, nodes[0][0])
    builder.add_edge(nodes[-1][0], END)
    return builder.compile(checkpointer=checkpointer)


def chat_node(model, seen=None):
    def chat(state):
        messages = state["messages"] if isinstance(state, dict) else state.messages
        memory = state.get("memory", "") if isinstance(state, dict) else state.memory
        if seen is not None:
            seen.append(memory)
        return {"messages": [model.invoke([SystemMessage(memory), *messages])]}

    return chat


def run(graph, given, config, mode, **more):
    state = {"messages": [HumanMessage(given)]} if isinstance(given, str) else given
    if mode == "sync":
        return graph.invoke(state, config, **more)
    return asyncio.run(graph.ainvoke(state, config, **more))


both = pytest.mark.parametrize("mode", ["sync", "async"])
either = alternating("sync", "async")


@pytest.mark.parametrize(
    ("state", "mode"), [(Dictionary, "sync"), (Data, "async"), (Model, "sync")]
)
def test_memory_is_recalled_before_and_extracted_after_the_model(state, mode):
    diary = Diary("memory:", agent="rules")
    diary.user("alice").upsert_preference("likes", "dark roast")
    seen = []
    nodes = [
        ("recall", recall_node(diary)),
        ("chat", chat_node(answering("Enjoy."), seen)),
        ("extract", extract_node(diary)),
    ]
    graph = graph_of(nodes, state=state)
    result = run(graph, "I'm allergic to walnuts. Which roast?", ALICE, mode)
    assert "dark roast" in seen[0]
    assert seen[0].startswith("<user_memory")
    assert result["memory"] == seen[0]
    assert [message.text for message in result["messages"]][-1] == "Enjoy."
    alice = diary.user("alice")
    assert any("walnuts" in hit.text for hit in alice.recall("walnuts"))
    assert alice.conversations()["t1"].turns == 1
    store = DiaryStore(diary)
    assert store.search(("alice",), query="walnuts")[0].key


@both
def test_a_checkpointed_graph_submits_each_of_five_turns_exactly_once(mode):
    extractor = Noted()
    diary = Diary("memory:", agent=extractor)
    with MemoryWriter(diary) as writer:
        nodes = [
            ("chat", chat_node(answering(*(f"answer {n}" for n in range(5))))),
            ("submit", submit_node(writer)),
        ]
        graph = graph_of(nodes, checkpointer=InMemorySaver())
        for number in range(5):
            result = run(graph, f"question {number}", ALICE, mode)
        assert len(result["messages"]) == 10
        assert writer.flush(10)
        assert writer.stats()["submitted"] == 5
    assert extractor.turns == [("t1", f"question {n}", f"answer {n}") for n in range(5)]
    assert diary.user("alice").conversations()["t1"].turns == 5


def test_the_submitting_node_does_not_wait_for_the_extraction():
    gate = asyncio.Event()
    loops = []

    async def slow(message, *, deps):
        loops.append(asyncio.get_running_loop())
        await gate.wait()

    with MemoryWriter(Diary("memory:", agent=slow)) as writer:
        node = submit_node(writer)
        state = {"messages": [HumanMessage("hi"), AIMessage("hello")]}
        assert node.invoke(state, ALICE) == {}
        assert asyncio.run(node.ainvoke(state, ALICE)) == {}
        assert writer.stats()["pending"] == 2
        while not loops:
            assert not writer.flush(0.01)
        loops[0].call_soon_threadsafe(gate.set)
        assert writer.flush(10)


def test_a_full_queue_is_an_error_in_sync_runs():
    gate = asyncio.Event()
    loops = []

    async def slow(message, *, deps):
        loops.append(asyncio.get_running_loop())
        await gate.wait()

    with MemoryWriter(Diary("memory:", agent=slow), workers=1, qsize=1) as writer:
        node = submit_node(writer)
        state = {"messages": [HumanMessage("hi"), AIMessage("hello")]}
        node.invoke(state, ALICE)
        while not loops:
            assert not writer.flush(0.01)
        node.invoke(state, ALICE)
        with pytest.raises(WriterBusy):
            node.invoke(state, ALICE)
        loops[0].call_soon_threadsafe(gate.set)
        assert writer.flush(10)


TURNS = [
    ([HumanMessage("a"), AIMessage("b"), HumanMessage("c"), AIMessage("d")], ("c", "d")),
    ([HumanMessage("a"), AIMessage("b"), AIMessage("c")], ("a", "b\n\nc")),
    (
        [
            HumanMessage("a"),
            AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}]),
            ToolMessage("secret", tool_call_id="1"),
            AIMessage("b"),
        ],
        ("a", "b"),
    ),
    ([HumanMessage([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]),
      AIMessage([{"type": "text", "text": "b"}])], ("a", "b")),
    ([{"role": "user", "content": "a"}, ("ai", "b")], ("a", "b")),
    ([SystemMessage("s"), HumanMessage("a"), AIMessage("b"), SystemMessage("later")], ("a", "b")),
    ([HumanMessage("a"), HumanMessage("b"), AIMessage("c")], ("a\n\nb", "c")),
    ([HumanMessage("a"), calling(("f", {})), HumanMessage("b"), AIMessage("c")], ("a\n\nb", "c")),
    (
        [
            HumanMessage("a"), calling(("f", {})), ToolMessage("failed", tool_call_id="c0"),
            HumanMessage("b"), AIMessage("c"),
        ],
        ("a\n\nb", "c"),
    ),
    (
        [
            HumanMessage("a"), calling(("f", {})),
            ToolMessage("Returning structured response: x", tool_call_id="c0"),
            HumanMessage("b"), calling(("f", {})),
            ToolMessage("Returning structured response: y", tool_call_id="c0"),
        ],
        ("b", "Returning structured response: y"),
    ),
    (
        [
            HumanMessage("a"), calling(("f", {}), ("x", {})),
            ToolMessage("Returning structured response: x", tool_call_id="c1"),
            ToolMessage("secret", tool_call_id="c0"),
        ],
        ("a", "Returning structured response: x"),
    ),
    (
        [
            HumanMessage("so far", additional_kwargs={"lc_source": "summarization"}),
            HumanMessage("a"),
            HumanMessage("graded", additional_kwargs={"lc_source": "rubric"}), AIMessage("b"),
        ],
        ("a", "b"),
    ),
    ([HumanMessage("s", additional_kwargs={"lc_source": "summarization"}), AIMessage("b")], None),
    (
        [HumanMessage("a", name="ann"), HumanMessage("s", name="nemotron_entity_guard"), AIMessage("b")],
        ("a", "b"),
    ),
    (
        [{"role": "user", "content": "s", "deepagents_notification": {"status": "success"}}, AIMessage("b")],
        None,
    ),
    ([HumanMessage("a")], None),
    ((HumanMessage("a"), AIMessage("b")), ("a", "b")),
    (deque([("user", "a"), ("ai", "b")]), ("a", "b")),
    (("user", "a"), None),
    ([HumanMessage("a"), AIMessage(" ")], ("a", "")),
    ([HumanMessage([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]),
      AIMessage([{"type": "text", "text": "c"}, {"type": "text", "text": "d"}])], ("a\nb", "cd")),
    ([HumanMessage([{"type": "text", "text": 5}, {"type": "text"}, "a"]), AIMessage("b")], ("a", "b")),
    ([HumanMessage([{"text": "a"}, {"cachePoint": {}}]), AIMessage("b")], ("a", "b")),
    ([ChatMessage("a", role="user"), ChatMessage("b", role="assistant")], ("a", "b")),
    ([ChatMessage("s", role="critic"), ChatMessage("a", role="human"), AIMessage("b")], ("a", "b")),
    (
        [
            HumanMessage("a"), calling(("f", {})), ToolMessage("see below", tool_call_id="c0"),
            HumanMessage("frames", additional_kwargs={"read_file_tool_call_id": "c0"}),
            AIMessage("b"),
        ],
        ("a", "b"),
    ),
    ([AIMessage("b")], None),
    ([HumanMessage("a"), AIMessage("b"), HumanMessage("c")], None),
    ([], None),
]  # fmt: skip


@either
@pytest.mark.parametrize(("messages", "expected"), TURNS)
def test_only_the_finished_current_turn_is_submitted(messages, expected, mode):
    extractor = Noted()
    node = extract_node(Diary("memory:", agent=extractor))
    state: dict[str, Any] = {"messages": messages}
    if mode == "sync":
        node.invoke(state, ALICE)
    else:
        asyncio.run(node.ainvoke(state, ALICE))
    assert [turn[1:] for turn in extractor.turns] == ([expected] if expected else [])


@both
@pytest.mark.parametrize("kind", ["submit", "extract"])
def test_the_turn_of_a_node_includes_earlier_exchanges(kind, mode):
    seen = []

    def look(message, *, deps):
        seen.append(list(deps.earlier))

    messages = [HumanMessage("Hi."), HumanMessage("Book."), AIMessage("Allergies?")]
    state = {"messages": [*messages, HumanMessage("Yes, peanuts."), AIMessage("ok")]}
    with MemoryWriter(Diary("memory:", agent=look)) as writer:
        node = submit_node(writer) if kind == "submit" else extract_node(writer.diary)
        if mode == "sync":
            node.invoke(state, ALICE)
        else:
            asyncio.run(node.ainvoke(state, ALICE))
        assert writer.flush(20)
    assert seen == [[("Hi.\n\nBook.", "Allergies?")]]


@either
@pytest.mark.parametrize("saver", [None, InMemorySaver])
def test_a_human_message_with_the_name_of_a_node_is_an_answer(saver, mode):
    """Workers of LangGraph's supervisors return such messages, also as the last one."""
    extractor = Noted()
    diary = Diary("memory:", agent=extractor)

    def research(_state):
        return {"messages": [HumanMessage("I love walnuts, a page says.", name="research")]}

    nodes = [("recall", recall_node(diary)), ("research", research)]
    graph = graph_of([*nodes, ("extract", extract_node(diary))], checkpointer=saver and saver())
    for text in ("What do people love?", "And now?"):
        asked = {"messages": [HumanMessage(text, name="ann")]}
        if mode == "sync":
            graph.invoke(asked, ALICE)
        else:
            asyncio.run(graph.ainvoke(asked, ALICE))
    found = "I love walnuts, a page says."
    assert extractor.turns == [
        ("t1", "What do people love?", found),
        ("t1", "And now?", found),
    ]


@either
@pytest.mark.parametrize(
    ("written", "said"),
    [
        (lambda memory: [HumanMessage(memory)], "Which roast?"),
        (
            lambda memory: [HumanMessage([memory, {"type": "text", "text": "Or tea?"}])],
            "Which roast?\n\nOr tea?",
        ),
        (
            lambda memory: [HumanMessage([{"type": "text", "text": memory}])],
            "Which roast?",
        ),
        (lambda memory: [HumanMessage(f"{memory}\n\nOr tea?")], "Which roast?\n\nOr tea?"),
    ],
    ids=["message", "part", "only part", "beside words"],
)
def test_memory_that_a_graph_writes_as_a_human_message_is_no_turn(written, said, mode):
    diary, noted = Diary("memory:"), Noted()
    diary.user("alice").upsert_preference("likes", "dark roast")
    nodes = [
        ("recall", recall_node(diary)),
        ("show", lambda state: {"messages": written(state["memory"])}),
        ("chat", chat_node(answering("Dark."))),
        ("extract", extract_node(diary, noted)),
    ]
    run(graph_of(nodes), "Which roast?", ALICE, mode)
    assert noted.turns == [("t1", said, "Dark.")]


@either
def test_what_a_supervisor_writes_for_its_workers_is_no_answer(mode):
    """langgraph-supervisor marks these messages."""
    extractor = Noted()
    back = {"__is_handoff_back": True}

    def work(_state):
        call = {"name": "transfer_back_to_supervisor", "args": {}, "id": "1"}
        text = "Transferring back to supervisor"
        return {
            "messages": [
                AIMessage("Three flights.", name="worker"),
                AIMessage(text, tool_calls=[call], name="worker", response_metadata=back),
                ToolMessage("Transferred", tool_call_id="1", response_metadata=back),
            ]
        }

    extract = extract_node(Diary("memory:", agent=extractor))
    nodes = [("work", work), ("answer", chat_node(answering("Done."))), ("extract", extract)]
    run(graph_of(nodes), "Find flights.", ALICE, mode)
    assert extractor.turns == [("t1", "Find flights.", "Three flights.\n\nDone.")]


@either
@pytest.mark.parametrize(
    ("place", "config"),
    [
        ("tools", None),
        ("tool_node", {"configurable": {"user_id": "al", "thread_id": "t2"}}),
        ("own function", None),
    ],
)
def test_the_prompt_of_a_graph_within_a_tool_is_no_turn(place, config, mode):
    extractor = Noted()
    diary = Diary("memory:", agent=extractor)
    nodes = [("chat", chat_node(answering("ok", "ok"))), ("extract", extract_node(diary))]
    inner = graph_of(nodes)

    @tool
    def delegate() -> str:
        """Ask another graph."""
        asked = {"messages": [HumanMessage("Find flights.")]}
        return inner.invoke(asked, config)["messages"][-1].text

    def call(state):
        [asked] = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage(delegate.invoke(asked["args"]), tool_call_id=asked["id"])]}

    model = Tools(answers=[calling(("delegate", {})), DONE])
    chat = chat_node(model)
    tools = call if place == "own function" else ToolNode([delegate])
    name = "run" if place == "own function" else place
    nodes = [("ask", chat), (name, tools), ("answer", chat), ("extract", extract_node(diary))]
    run(graph_of(nodes), "Book a trip.", ALICE, mode)
    assert extractor.turns == [("t1", "Book a trip.", "done")]
    run(inner, "I like rain.", ALICE, mode)
    assert extractor.turns[1:] == [("t1", "I like rain.", "ok")]


def test_words_in_a_tool_that_the_host_calls_itself_are_a_turn():
    extractor = Noted()
    diary = Diary("memory:", agent=extractor)
    inner = graph_of([("chat", chat_node(answering("ok"))), ("extract", extract_node(diary))])

    @tool
    def ask(text: str) -> str:
        """Ask the graph."""
        return inner.invoke({"messages": [HumanMessage(text)]}, ALICE)["messages"][-1].text

    assert ask.invoke({"text": "I like rain."}) == "ok"
    assert extractor.turns == [("t1", "I like rain.", "ok")]


@pytest.mark.parametrize("is_in_tool", [True, False])
def test_a_traced_function_of_the_host_changes_no_turn(is_in_tool):
    extractor = Noted()
    diary = Diary("memory:", agent=extractor)
    inner = graph_of([("chat", chat_node(answering("ok"))), ("extract", extract_node(diary))])

    def asked(text):
        return inner.invoke({"messages": [HumanMessage(text)]}, ALICE)["messages"][-1].text

    @tool
    def ask(text: str) -> str:
        """Ask the graph."""
        return traceable(asked)(text) if is_in_tool else asked(text)

    with traced():
        if is_in_tool:
            call = {"name": "ask", "args": {"text": "Find flights."}, "id": "1"}
            graph = graph_of([("work", ToolNode([ask]))])
            graph.invoke({"messages": [AIMessage("", tool_calls=[call])]})
        else:
            traceable(lambda: ask.invoke({"text": "I like rain."}))()
    assert extractor.turns == ([] if is_in_tool else [("t1", "I like rain.", "ok")])


def test_a_left_stream_of_events_leaves_nothing_in_the_tree_of_runs():
    nodes = [("chat", answering("Hello.")), ("extract", extract_node("memory:"))]
    graph = graph_of(nodes)

    async def main():
        events = graph.astream_events({"messages": [HumanMessage("Hello")]}, ALICE, version="v2")
        async for event in events:
            if event["name"] == "chat":
                break
        await events.aclose()

    before = len(runs().running)
    asyncio.run(main())
    assert len(runs().running) == before


def test_streams_left_at_their_first_event_leave_few_runs_in_the_tree():
    diary = Diary("memory:", agent=Noted())
    chat = ("chat", lambda _: {"messages": [("ai", "Hello.")]})
    graph = graph_of([chat, ("extract", extract_node(diary))])
    given = {"messages": [HumanMessage("Hello")]}

    async def main():
        for _ in range(150):
            events = graph.astream_events(given, ALICE, version="v2")
            await anext(events)
            await events.aclose()

    before = len(runs().running)
    asyncio.run(main())
    assert len(runs().running) < 3 * before + 100


def test_messages_and_memory_may_have_other_names():
    extractor = Noted()
    diary = Diary("memory:", agent=extractor)
    diary.user("alice").upsert_preference("likes", "tea")
    state = {"chat": [HumanMessage("a"), AIMessage("b")]}
    found = recall_node(diary, state_key="known", messages_key="chat").invoke(state, ALICE)
    assert "tea" in found["known"]
    assert "tea" in recall_node(diary, messages_key=None).invoke({}, ALICE)["memory"]
    extract_node(diary, messages_key="chat").invoke(state, ALICE)
    assert extractor.turns == [("t1", "a", "b")]
    for node in (recall_node(diary), extract_node(diary)):
        with pytest.raises(InvalidValue, match="the state has no 'messages'"):
            node.invoke(state, ALICE)


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        (5, "messages: expected messages, found int. Give message objects"),
        ([("user", "a"), 5], "messages.1: expected a message, found int."),
        ([{"content": "a"}], "messages.0: expected a message, found dict."),
        ([{"role": "tool", "content": "a"}], "messages.0: expected a message, found dict."),
    ],
)
def test_a_state_without_readable_messages_is_refused_with_their_place(messages, sentence):
    diary = Diary("memory:", agent=Noted())
    for node in (recall_node(diary), extract_node(diary)):
        with pytest.raises(InvalidValue, match=sentence):
            node.invoke({"messages": messages}, ALICE)


def test_memory_is_recalled_where_nothing_is_asked():
    diary = Diary("memory:", agent=Noted())
    diary.user("alice").upsert_preference("likes", "tea")
    for messages in ([], [AIMessage("Hello")], [HumanMessage("Hi"), AIMessage("Hello")]):
        assert "tea" in recall_node(diary).invoke({"messages": messages}, ALICE)["memory"]


def test_budget_and_query_reach_the_renderer():
    diary = Diary("memory:")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "walnuts make me ill")
    for number in range(50):
        alice.upsert_preference("likes", f"fact number {number} about things")
    state = {"messages": [HumanMessage("can I eat walnuts?")]}
    text = recall_node(diary, max_tokens=80).invoke(state, ALICE)["memory"]
    assert "walnuts make me ill" in text.splitlines()[1]
    assert "more facts are stored)" in text  # and no tool is named, because the graph may have none
    counted = recall_node(diary, max_tokens=30, token_counter=lambda text: len(text.split()))
    assert len(counted.invoke(state, ALICE)["memory"].split()) <= 30


# Who and which session


@dataclass
class Who:
    user_id: str | None = None
    session_id: str | None = None


class SignedIn:
    identity = "server"


def configured(**settings):
    return {"configurable": settings}


USERS = [
    ("fixed", Who("context"), configured(user_id="config"), "fixed"),
    (lambda state, runtime: runtime.context.user_id[::-1], Who("context"), configured(), "txetnoc"),
    (lambda state, runtime: state["messages"][0].text, None, configured(user_id="config"), "hi"),
    (None, Who("context"), configured(user_id="config"), "context"),
    (None, Who(), configured(user_id="config", langgraph_user_id="lg"), "config"),
    (None, None, {"metadata": {"user_id": "meta"}, **configured(langgraph_user_id="lg")}, "meta"),
    (None, None, configured(langgraph_user_id="lg"), "lg"),
    (None, None, configured(user_id="", langgraph_user_id="lg"), "lg"),
    ("fixed", Who("context"), configured(langgraph_auth_user=SignedIn()), "fixed"),
    (None, None, configured(langgraph_auth_user=SignedIn()), "server"),
    (None, None, configured(langgraph_auth_user_id="server2"), "server2"),
]


@either
@pytest.mark.parametrize(("explicit", "context", "config", "expected"), USERS)
def test_the_user_is_found_in_a_fixed_order(explicit, context, config, expected, mode):
    diary = Diary("memory:", agent=Noted())
    nodes = [
        ("recall", recall_node(diary, user_id=explicit)),
        ("chat", chat_node(answering("hello"))),
        ("extract", extract_node(diary, user_id=explicit, session_id="s")),
    ]
    graph = graph_of(nodes, context=Who)
    run(graph, "hi", config, mode, context=context)
    assert diary.users() == [expected]


SESSIONS = [
    ("fixed", Who("u", "context"), configured(thread_id="thread"), "fixed"),
    (lambda state, runtime: "computed", Who("u"), configured(thread_id="thread"), "computed"),
    (None, Who("u", "context"), configured(session_id="config", thread_id="thread"), "context"),
    (None, Who("u"), configured(session_id="config", thread_id="thread"), "config"),
    (None, Who("u"), {"metadata": {"session_id": "m"}, **configured(thread_id="thread")}, "m"),
    (None, Who("u"), configured(thread_id="thread"), "thread"),
]


@pytest.mark.parametrize(("explicit", "context", "config", "expected"), SESSIONS)
def test_the_session_is_found_in_a_fixed_order(explicit, context, config, expected):
    diary = Diary("memory:", agent=Noted())
    nodes = [
        ("chat", chat_node(answering("hello"))),
        ("extract", extract_node(diary, session_id=explicit)),
    ]
    run(graph_of(nodes, context=Who), "hi", config, "sync", context=context)
    assert list(diary.user("u").conversations()) == [expected]


@both
def test_a_node_called_with_settings_of_its_own_keeps_the_thread(mode):
    diary = Diary("memory:", agent=Noted())
    extract = extract_node(diary)

    def keep(state):
        extract.invoke(state, {"configurable": {"user_id": "u"}})

    async def akeep(state):
        await extract.ainvoke(state, {"configurable": {"user_id": "u"}})

    nodes = [("chat", chat_node(answering("hello"))), ("keep", RunnableLambda(keep, akeep))]
    run(graph_of(nodes), "hi", configured(thread_id="thread"), mode)
    assert list(diary.user("u").conversations()) == ["thread"]


@either
@pytest.mark.parametrize(
    ("explicit", "config"),
    [
        (None, {}),
        (None, configured(thread_id="t1")),
        (None, configured(user_id="")),
        (None, configured(user_id=5)),
        (lambda state, runtime: None, configured(user_id="alice")),
    ],
)
def test_an_unknown_user_is_an_error_before_the_model_is_called(explicit, config, mode):
    seen = []
    diary = Diary("memory:")
    nodes = [
        ("recall", recall_node(diary, user_id=explicit)),
        ("chat", chat_node(answering("hello"), seen)),
    ]
    with pytest.raises(IdentifierError):
        run(graph_of(nodes), "hi", config, mode)
    assert seen == []


@either
@pytest.mark.parametrize("kind", ["submit", "extract"])
@pytest.mark.parametrize("place", ["run_id", "metadata", ""])
def test_a_turn_without_a_session_has_the_session_of_its_run(place, kind, mode):
    diary = Diary("memory:", agent=Likes())
    with MemoryWriter(diary) as writer:
        record = submit_node(writer) if kind == "submit" else extract_node(diary)
        graph = graph_of([("chat", chat_node(Echo())), ("record", record)])
        runs = [uuid4(), uuid4()]
        for each in runs:
            config = {"configurable": {"user_id": "alice"}}
            if place:
                config |= {"run_id": each} if place == "run_id" else {place: {"run_id": each}}
            run(graph, "tea", config, mode)
        assert writer.flush(30)
    talks = diary.user("alice").conversations()
    assert [talk.turns for talk in talks.values()] == [1, 1]
    if place:
        assert set(talks) == {str(each) for each in runs}
    assert kept(diary) == ([("tea", 2)], 2)


@either
@pytest.mark.parametrize("kind", ["submit", "extract"])
def test_a_turn_without_a_session_is_recorded_once(kind, mode):
    diary = Diary("memory:", agent=Likes())
    failing = [ConnectionError("after it was recorded")]

    class Plain(TypedDict):
        messages: list

    def fails_once(state):
        if failing:
            raise failing.pop()
        return state

    with MemoryWriter(diary) as writer:
        record = submit_node(writer) if kind == "submit" else extract_node(diary)
        for state in (Dictionary, Plain):
            failing[:] = [ConnectionError("after it was recorded")]
            builder = StateGraph(state)
            again = AT_ONCE
            builder.add_node("record", record | fails_once, retry_policy=again)
            builder.add_node("again", lambda _: {})
            builder.add_edge(START, "record").add_edge("record", "again")
            if state is Dictionary:  # ids tell a second pass; without them only a retry is known
                rounds = iter(["record", END])
                builder.add_conditional_edges("again", lambda _, rounds=rounds: next(rounds))
            said = {"messages": [HumanMessage("tea"), AIMessage("Noted.")]}
            config = {"configurable": {"user_id": "alice"}}
            if mode == "sync":
                builder.compile().invoke(said, config)
            else:
                asyncio.run(builder.compile().ainvoke(said, config))
        assert writer.flush(30)
    assert kept(diary) == ([("tea", 2)], 2)


def test_a_node_outside_a_graph_needs_no_session():
    diary = Diary("memory:", agent=Likes())
    node = extract_node(diary, user_id="alice")
    for _ in range(2):
        node.invoke({"messages": [HumanMessage("tea"), AIMessage("Noted.")]})
    assert [talk.turns for talk in diary.user("alice").conversations().values()] == [1, 1]


def test_an_invalid_session_is_an_error():
    node = extract_node(
        Diary("memory:", agent="rules"), user_id="alice", session_id=lambda state, runtime: None
    )
    with pytest.raises(IdentifierError, match="session_id"):
        node.invoke({"messages": [HumanMessage("a"), AIMessage("b")]})


def test_a_run_without_a_session_still_needs_a_user():
    node = extract_node(Diary("memory:", agent="rules"))
    with pytest.raises(IdentifierError, match="user is not known"):
        node.invoke({"messages": [HumanMessage("a"), AIMessage("b")]})


def test_async_nodes_ask_for_the_user_in_the_event_loop():
    diary = Diary("memory:", agent=Noted())
    loops = []

    def user(_state, _runtime):
        loops.append(asyncio.get_running_loop())
        return "alice"

    with MemoryWriter(diary) as writer:
        nodes = [
            ("recall", recall_node(diary, user_id=user)),
            ("chat", chat_node(answering("Hello."))),
            ("submit", submit_node(writer, user_id=user)),
        ]
        run(graph_of(nodes), "Hi", {}, "async")
    assert len(set(loops)) == 1
    assert list(diary.users()) == ["alice"]


@both
def test_two_users_of_one_graph_never_share_memory(mode):
    diary = Diary("memory:", agent="rules")
    seen = []
    nodes = [
        ("recall", recall_node(diary)),
        ("chat", chat_node(answering(*["Noted."] * 8), seen)),
        ("extract", extract_node(diary)),
    ]
    graph = graph_of(nodes, checkpointer=InMemorySaver())
    for turn in range(4):
        for user, thing in (("alice", "walnuts"), ("bob", "shrimps")):
            config = configured(user_id=user, thread_id=f"{user}-{turn}")
            run(graph, f"I'm allergic to {thing}.", config, mode)
    assert all("shrimps" not in memory for memory in seen[0::2])
    assert all("walnuts" not in memory for memory in seen[1::2])
    assert all("walnuts" in memory for memory in seen[2::2])
    assert all("shrimps" in memory for memory in seen[3::2])


def test_a_failing_extractor_fails_the_run_and_changes_nothing():
    def fails(message, *, deps):
        deps.upsert("likes", None, "half done", ())
        raise OSError("no answer")

    diary = Diary("memory:", agent=fails)
    nodes = [("chat", chat_node(answering("hello"))), ("extract", extract_node(diary))]
    with pytest.raises(ExtractionError):
        run(graph_of(nodes), "hi", ALICE, "sync")
    assert diary.users() == []


class Echo(SimpleChatModel):
    @property
    def _llm_type(self):
        return "echo"

    def _call(self, messages, *_args, **_kwargs):
        return "ok"


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


@both
def test_the_message_stream_contains_no_extraction_output(mode):
    diary = Diary("memory:", agent=ChatModelExtractor(Scripted(messages=iter([AIMessage("done")]))))
    nodes = [("chat", chat_node(answering("hello"))), ("extract", extract_node(diary))]
    graph = graph_of(nodes)
    state = {"messages": [HumanMessage("hi")]}

    async def collect():
        return [part async for part in graph.astream(state, ALICE, stream_mode="messages")]

    if mode == "sync":
        parts = list(graph.stream(state, ALICE, stream_mode="messages"))
    else:
        parts = asyncio.run(collect())
    assert "".join(message.text for message, _ in parts) == "hello"


@both
def test_a_node_can_extract_with_the_model_of_the_graph(mode):
    model = Tools(
        answers=[calling(("upsert_preference", {"category": "likes", "text": "tea"})), DONE]
    )
    diary = Diary("memory:", agent="rules")
    nodes = [("chat", chat_node(answering("hello"))), ("extract", extract_node(diary, model))]
    run(graph_of(nodes), "I like tea.", ALICE, mode)
    assert [item.text for item in diary.user("alice").preferences("likes").values()] == ["tea"]
    assert diary.agent == "rules"
    assert list(diary.user("alice").conversations()) == ["t1"]


@both
def test_nodes_work_in_an_entrypoint(mode):
    diary = Diary("memory:", agent="rules")
    extract, recall = extract_node(diary), recall_node(diary)
    said = {"messages": [HumanMessage("I love tea."), AIMessage("Nice.")]}

    @entrypoint()
    def sync_work(_):
        extract.invoke(said)
        return recall.invoke(said)["memory"]

    @entrypoint()
    async def async_work(_):
        await extract.ainvoke(said)
        return (await recall.ainvoke(said))["memory"]

    if mode == "sync":
        memory = sync_work.invoke(1, ALICE)
    else:
        memory = asyncio.run(async_work.ainvoke(1, ALICE))
    assert "tea" in memory


@both
def test_a_graph_within_a_run_has_a_user_of_its_own_if_the_call_names_one(mode):
    listening = Noted()
    diary = Diary("memory:", agent=listening, episodes=True)
    inner = graph_of([("chat", chat_node(Echo())), ("extract", extract_node(diary))], context=dict)
    bob = {"user_id": "bob"}
    settings = [{**bob, "thread_id": "t2"}, bob, {**bob, "session_id": "s2"}]
    ways = [{}, {"context": bob}, *({"config": {"configurable": each}} for each in settings)]

    def call_inner(state):
        return inner.invoke(state)

    between = graph_of([("call", call_inner)], context=dict)

    def call(_, config):
        for number, more in enumerate(ways):
            inner.invoke({"messages": [HumanMessage(f"w{number}")]}, **more)
        between.invoke({"messages": [HumanMessage("w5")]}, {"configurable": bob})
        named = {**config["configurable"], "user_id": "ann"}  # the user of the run
        inner.invoke({"messages": [HumanMessage("w6")]}, {"configurable": named})
        inner.invoke(
            {"messages": [HumanMessage("w7")]}, {"configurable": {"user_id": "cy"}}, context=bob
        )

    outer = graph_of([("call", call)], context=dict)
    # A name beside the context of the run does not count.
    beside = {"configurable": {"user_id": "eve"}}
    run(outer, "Go on.", beside, mode, context={"user_id": "ann", "session_id": "s1"})
    said = {name: [one.input for one in diary.user(name).episodes] for name in ("ann", "bob")}
    assert said == {"ann": ["w0", "w6"], "bob": ["w1", "w2", "w3", "w4", "w5", "w7"]}
    assert {one.session_id for one in diary.user("ann").episodes} == {"s1"}
    sessions = {one.input: one.session_id for one in diary.user("bob").episodes}
    assert sessions["w4"] == "s2"
    assert "s1" not in sessions.values()


class Question(TypedDict, total=False):
    question: str
    answer: str
    memory: Memory


@both
def test_a_state_with_a_question_and_an_answer_is_recorded_once(mode):
    listening, shown, failing = Noted(), [], [True]
    diary = Diary("memory:", agent=listening)
    diary.user("alice").upsert_preference("likes", "tea")
    extract = extract_node(diary)

    def answer(state):
        shown.append(state["memory"])
        return {"answer": "Tea."}

    def record(state):
        extract.invoke({"messages": [("user", state["question"]), ("ai", state["answer"])]})
        if failing and failing.pop():
            raise ConnectionError

    recall = recall_node(diary, messages_key="question")
    builder = StateGraph(Question).add_node("record", record, retry_policy=AT_ONCE)
    builder.add_sequence([("recall", recall), ("answer", answer)]).add_edge(START, "recall")
    graph = builder.add_edge("answer", "record").compile(checkpointer=InMemorySaver())
    for _ in range(2):
        run(graph, {"question": "What now?"}, ALICE, mode)
    begun = [each for each in graph.get_state_history(ALICE) if each.next == ("recall",)]
    again = {**begun[-1].config["configurable"], "user_id": "alice"}
    run(graph, None, {"configurable": again}, mode)
    turn = ("t1", "What now?", "Tea.")
    assert listening.turns == [turn, turn]
    assert all("tea" in memory for memory in shown)
    assert len(shown) == 3


@both
def test_concurrent_turns_of_many_users_are_kept_apart(mode):
    diary = Diary("memory:", agent="rules")
    graph = graph_of([("chat", chat_node(Echo())), ("extract", extract_node(diary))])
    things = [f"thing{number}" for number in range(8)]
    asked = [{"messages": [HumanMessage(f"I love {thing}.")]} for thing in things]
    configs = [{"configurable": {"user_id": f"u{n}", "thread_id": "t"}} for n in range(8)]
    if mode == "sync":
        graph.batch(asked, configs)
    else:
        asyncio.run(graph.abatch(asked, configs))
    for number, thing in enumerate(things):
        texts = [item.text for item in diary.user(f"u{number}").preferences("likes").values()]
        assert len(texts) == 1
        assert thing in texts[0]


@both
def test_a_run_that_fails_before_the_node_submits_no_turn(mode):
    def breaks(state):
        raise OSError("the model is away")

    diary = Diary("memory:", agent="rules")
    graph = graph_of([("chat", breaks), ("extract", extract_node(diary))])
    with pytest.raises(OSError, match="away"):
        run(graph, "I love tea.", ALICE, mode)
    assert diary.users() == []


def test_nodes_take_a_path(tmp_path):
    Diary(tmp_path).user("alice").upsert_preference("likes", "tea")
    assert "tea" in recall_node(tmp_path, user_id="alice", messages_key=None).invoke({})["memory"]
    assert (
        extract_node(str(tmp_path), user_id="alice", session_id="s").invoke({"messages": []}) == {}
    )


recorded = pytest.mark.parametrize("kind", ["submit", "extract"])


class Likes:
    """An extractor that stores what the user said."""

    def run(self, message, /, *, deps):
        deps.upsert("likes", None, deps.user_msg, ())


def kept(diary):
    likes = diary.user("alice").preferences("likes").values()
    turns = sum(talk.turns for talk in diary.user("alice").conversations().values())
    return sorted((item.text, item.count) for item in likes), turns


@either
@pytest.mark.parametrize(("state", "kind"), [(Dictionary, "extract"), (WithoutIds, "submit")])
def test_replay_of_a_checkpoint_records_no_turn_twice(state, kind, mode):
    diary = Diary("memory:", agent=Likes())
    with MemoryWriter(diary) as writer:
        graph = graph_of(
            [
                ("chat", lambda _: {"messages": [AIMessage("Noted.")]}),
                ("record", submit_node(writer) if kind == "submit" else extract_node(diary)),
            ],
            state=state,
            checkpointer=InMemorySaver(),
        )
        run(graph, "tea", ALICE, mode)
        run(graph, "jazz", ALICE, mode)
        for past in list(graph.get_state_history(ALICE)):
            if past.next:
                config = {"configurable": {**past.config["configurable"], "user_id": "alice"}}
                if mode == "sync":
                    graph.invoke(None, config)
                else:
                    asyncio.run(graph.ainvoke(None, config))
        assert writer.flush(30)
    assert kept(diary) == ([("jazz", 1), ("tea", 1)], 2)


@either
def test_a_replay_with_changed_memory_beside_the_words_records_them_once(mode):
    diary = Diary("memory:", agent=Likes())
    diary.user("alice").upsert_preference("dislikes", "rain")

    def show(state):
        asked = state["messages"][-1]
        return {"messages": [HumanMessage(f"{state['memory']}\n\n{asked.text}", id=asked.id)]}

    nodes = [
        ("recall", recall_node(diary)),
        ("show", show),
        ("chat", lambda _: {"messages": [AIMessage("Noted.")]}),
        ("extract", extract_node(diary)),
    ]
    graph = graph_of(nodes, checkpointer=InMemorySaver())
    run(graph, "tea", ALICE, mode)
    begin = next(one for one in graph.get_state_history(ALICE) if one.next == ("recall",))
    settings = {**begin.config["configurable"], "user_id": "alice"}
    if mode == "sync":
        graph.invoke(None, {"configurable": settings})
    else:
        asyncio.run(graph.ainvoke(None, {"configurable": settings}))
    assert "tea" in graph.get_state(ALICE).values["memory"]
    assert kept(diary) == ([("tea", 1)], 1)


@either
@pytest.mark.parametrize("then", ["resumed", "a new message"])
def test_a_replay_that_is_interrupted_records_no_words_twice(then, mode):
    diary = Diary("memory:", agent=Likes())
    asks = [False, True, False]

    def answer(state):
        if asks.pop(0):
            interrupt("Go on?")
        return {"messages": [("ai", "Noted.")]}

    nodes = [("recall", recall_node(diary)), ("chat", answer), ("record", extract_node(diary))]
    graph = graph_of(nodes, checkpointer=InMemorySaver())
    run(graph, "tea", ALICE, mode)
    first = list(graph.get_state_history(ALICE))[-1].config["configurable"]
    run(graph, None, {"configurable": {**first, "user_id": "alice"}}, mode)
    run(graph, Command(resume=True) if then == "resumed" else "jazz", ALICE, mode)
    likes = [("tea", 1)] if then == "resumed" else [("jazz", 1), ("tea", 1)]
    assert kept(diary) == (likes, len(likes))


@both
@recorded
def test_node_that_is_retried_records_its_turn_once(kind, mode):
    diary = Diary("memory:", agent=Likes())
    failing = [ConnectionError("after it was recorded")]
    with MemoryWriter(diary) as writer:
        recording = submit_node(writer) if kind == "submit" else extract_node(diary)

        def fails_once(state):
            if failing:
                raise failing.pop()
            return state

        builder = StateGraph(Dictionary)
        builder.add_node("record", recording | fails_once, retry_policy=AT_ONCE)
        builder.add_edge(START, "record")
        said = {"messages": [("user", "tea"), ("ai", "Noted.")]}
        if mode == "sync":
            builder.compile().invoke(said, ALICE)
        else:
            asyncio.run(builder.compile().ainvoke(said, ALICE))
        assert writer.flush(30)
    assert failing == []
    assert kept(diary) == ([("tea", 1)], 1)


@recorded
def test_node_passed_twice_records_new_messages_and_no_old_ones(kind):
    diary = Diary("memory:", agent=Likes())
    said = iter([[], [("user", "jazz"), ("ai", "Noted.")], []])

    def more(_):
        return {"messages": next(said)}

    with MemoryWriter(diary) as writer:
        record = submit_node(writer) if kind == "submit" else extract_node(diary)
        builder = StateGraph(Dictionary)
        builder.add_node("record", record)
        builder.add_node("more", more)
        builder.add_edge(START, "record").add_edge("record", "more")
        rounds = iter(["record", "record", END])
        builder.add_conditional_edges("more", lambda _: next(rounds))
        builder.compile().invoke({"messages": [("user", "tea"), ("ai", "Noted.")]}, ALICE)
        assert writer.flush(30)
    assert kept(diary) == ([("jazz", 1), ("tea", 1)], 2)


@recorded
@pytest.mark.parametrize("names_checkpoint", [False, True])
def test_equal_turns_of_a_thread_that_is_emptied_are_each_recorded(names_checkpoint, kind):
    diary = Diary("memory:", agent=Likes())
    with MemoryWriter(diary) as writer:
        record = submit_node(writer) if kind == "submit" else extract_node(diary)
        nodes = [
            ("chat", lambda _: {"messages": [("ai", "Noted.")]}),
            ("record", record),
            ("empty", lambda _: {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES)]}),
        ]
        graph = graph_of(nodes, checkpointer=InMemorySaver())
        config = ALICE
        for _ in range(3):
            run(graph, "I took my pills.", config, "sync")
            if names_checkpoint:  # as a host does that keeps the config of the state
                last = graph.get_state(ALICE).config["configurable"]
                config = {"configurable": {**last, "user_id": "alice"}}
        assert writer.flush(30)
    assert kept(diary) == ([("I took my pills.", 3)], 3)


@either
@pytest.mark.parametrize("join", [add, add_messages], ids=["no ids", "other ids in each pass"])
def test_equal_turns_of_one_entrypoint_are_each_recorded_once(join, mode):
    diary = Diary("memory:", agent=Likes())
    extract = extract_node(diary)

    @entrypoint(checkpointer=InMemorySaver())
    def chat(text):
        said = []
        while text:
            said = join(said, [("user", text), ("ai", "Noted.")])
            extract.invoke({"messages": said})
            text = interrupt("What else?")

    for given in ("tea", Command(resume="tea"), Command(resume="tea"), Command(resume="")):
        if mode == "sync":
            chat.invoke(given, ALICE)
        else:
            asyncio.run(chat.ainvoke(given, ALICE))
    assert kept(diary) == ([("tea", 3)], 3)


def test_a_replayed_entrypoint_records_no_turn_twice():
    diary = Diary("memory:", agent=Likes())
    extract = extract_node(diary)

    @entrypoint(checkpointer=InMemorySaver())
    def chat(text, *, previous):
        said = add_messages(previous or [], [("user", text), ("ai", "Noted.")])
        extract.invoke({"messages": said})
        return said

    for text in ("tea", "jazz"):
        chat.invoke(text, ALICE)
    for past in [past for past in chat.get_state_history(ALICE) if past.next]:
        chat.invoke(None, {"configurable": {**past.config["configurable"], "user_id": "alice"}})
    assert kept(diary) == ([("jazz", 1), ("tea", 1)], 2)


@task
def new_answer():
    return AIMessage(uuid4().hex)


@task
def record(node, thread):
    node.invoke({"messages": thread})


def test_a_replay_of_an_entrypoint_that_was_resumed_records_no_words_twice():
    diary = Diary("memory:", agent="rules", episodes=True)
    recall, extract = recall_node(diary), extract_node(diary)

    @entrypoint(checkpointer=InMemorySaver())
    def chat(text):
        asked = add_messages([], [("user", text)])
        recall.invoke({"messages": asked})
        record(extract, add_messages(asked, new_answer().result())).result()
        interrupt("What else?")

    chat.invoke("tea", ALICE)
    chat.invoke(None, ALICE)  # the recorded task is not repeated, but its message has another id
    [begun] = chat.get_state_history(ALICE)
    chat.invoke(None, {"configurable": {**begun.config["configurable"], "user_id": "alice"}})
    assert [turn.input for turn in diary.user("alice").episodes.list("t1")] == ["tea", ""]


def test_words_that_several_tasks_read_are_recorded_once_when_one_is_resumed():
    diary = Diary("memory:", agent="rules", episodes=True)
    extract = extract_node(diary)

    @entrypoint(checkpointer=InMemorySaver())
    def chat(text):
        thread = add_messages([("user", text)], new_answer().result())
        record(extract, thread).result()
        extract.invoke({"messages": thread})
        interrupt("What else?")

    chat.invoke("tea", ALICE)
    # Only the entrypoint itself is repeated, with another id of the message.
    chat.invoke(None, ALICE)
    assert [turn.input for turn in diary.user("alice").episodes.list("t1")] == ["tea"]


def test_an_entrypoint_that_another_user_resumes_records_no_words_of_the_first():
    diary = Diary("memory:", agent=Likes())
    extract = extract_node(diary)

    @entrypoint(checkpointer=InMemorySaver())
    def chat(text):
        extract.invoke({"messages": add_messages([("user", text)], [("ai", "Noted.")])})
        interrupt("What else?")

    chat.invoke("tea", ALICE)
    with pytest.raises(IdentifierError, match="another user began this turn"):
        chat.invoke(Command(resume="jazz"), {"configurable": {"user_id": "bob", "thread_id": "t1"}})
    assert diary.users() == ["alice"]


@recorded
def test_a_node_in_front_of_the_model_is_warned_about_once(kind, caplog):
    diary = Diary("memory:", agent=(noted := Noted()))
    with MemoryWriter(diary) as writer:
        record = submit_node(writer) if kind == "submit" else extract_node(diary)
        model = chat_node(answering("one", "two", "three"))
        run(graph_of([("chat", model), ("record", record)]), "hello", ALICE, "sync")
        assert caplog.messages == []
        graph = graph_of([("record", record), ("chat", model)], checkpointer=InMemorySaver())
        for text in ("I like tea.", "I like jazz."):
            run(graph, text, ALICE, "sync")
        assert writer.flush(30)
    assert noted.turns == [("t1", "hello", "one")]
    assert len(caplog.messages) == 1
    assert "Place the node behind the model, and return an answer as an AIMessage" in caplog.text


@recorded
def test_two_nodes_of_a_graph_record_each_message_once(kind):
    diary = Diary("memory:", agent=(noted := Noted()))
    with MemoryWriter(diary) as writer:
        records = [
            extract_node(diary),
            submit_node(writer) if kind == "submit" else extract_node(diary),
        ]
        nodes = [("plan", chat_node(answering("Plan."))), ("first", records[0])]
        nodes += [("answer", chat_node(answering("Done."))), ("last", records[1])]
        run(graph_of(nodes, checkpointer=InMemorySaver()), "I like tea.", ALICE, "sync")
        assert writer.flush(30)
    assert noted.turns == [("t1", "I like tea.", "Plan."), ("t1", "", "Done.")]


def test_a_tool_s_result_without_an_id_is_no_answer_of_a_later_node():
    diary = Diary("memory:", agent=(noted := Noted()))
    look_up = [calling(("look", {})), ToolMessage("secret", tool_call_id="c0")]
    nodes = [
        ("tools", lambda _: {"messages": look_up}),
        ("answer", lambda _: {"messages": [AIMessage("ok", id="1")]}),  # models give ids
        ("first", extract_node(diary)),
        ("last", extract_node(diary)),
    ]
    run(graph_of(nodes, state=WithoutIds), "I like tea.", ALICE, "sync")
    assert noted.turns == [("t1", "I like tea.", "ok")] * 2


def test_words_before_a_call_that_cannot_be_read_are_recorded_once():
    diary = Diary("memory:", agent=(noted := Noted()))
    call = {"type": "invalid_tool_call", "name": "look", "args": "{", "id": "1", "error": None}
    answers = iter([AIMessage("", invalid_tool_calls=[call]), DONE])
    nodes = [
        ("chat", lambda _: {"messages": [next(answers)]}),
        ("extract", extract_node(diary)),
    ]
    graph = graph_of(nodes, checkpointer=InMemorySaver())
    for text in ("I like tea.", "Hello."):
        run(graph, text, ALICE, "sync")
    assert noted.turns == [("t1", "I like tea.", ""), ("t1", "Hello.", "done")]


@recorded
def test_a_turn_whose_recording_failed_is_recorded_by_the_next_node(kind):
    diary = Diary("memory:", agent=(noted := Noted()))
    writer = MemoryWriter(diary)

    class Failing:
        async def run(self, message, /, *, deps):
            raise ExtractionError("down")

    failing = extract_node(diary, Failing(), on_error="ignore")
    record = submit_node(writer) if kind == "submit" else extract_node(diary)
    nodes = [("chat", chat_node(answering("ok"))), ("failing", failing), ("record", record)]
    run(graph_of(nodes), "I like tea.", ALICE, "sync")
    assert writer.flush(30)
    writer.close_sync()
    assert noted.turns == [("t1", "I like tea.", "ok")]


@recorded
def test_equal_text_in_two_runs_is_two_turns(kind):
    diary = Diary("memory:", agent=Likes())

    class Plain(TypedDict):
        messages: list

    with MemoryWriter(diary) as writer:
        for state in (Dictionary, Plain):
            record = submit_node(writer) if kind == "submit" else extract_node(diary)
            graph = graph_of([("record", record)], state=state)
            for _ in range(2):
                graph.invoke({"messages": [HumanMessage("tea"), AIMessage("Noted.")]}, ALICE)
        assert writer.flush(30)
    assert kept(diary) == ([("tea", 4)], 4)


@both
def test_on_error_ignore_continues_without_the_memory(mode, caplog):
    class Full:
        diary = Diary("memory:")

        def submit_nowait(self, turn):
            raise WriterBusy("full")

        submit_later = submit_nowait

        async def submit_turn(self, turn):
            raise WriterBusy("full")

    def fails(message, *, deps):
        raise ConnectionError("no model")

    diary = Diary("memory:", agent=fails)

    def broken(*arguments):
        raise BackendError("no disk")

    for recording in (
        submit_node(Full(), on_error="ignore"),
        extract_node(diary, on_error="ignore"),
        recall_node(diary, on_error="ignore", token_counter=broken),
    ):
        diary.user("alice").upsert_preference("likes", "tea")
        graph = graph_of([("chat", chat_node(answering("hello"))), ("record", recording)])
        result = run(graph, "hi", ALICE, mode)
        assert result["messages"][-1].text == "hello"
        assert result.get("memory", "") == ""
    assert len(caplog.records) == 3
    for node in (submit_node(Full(), on_error="ignore"), extract_node(diary, on_error="ignore")):
        with pytest.raises(IdentifierError):
            run(
                graph_of([("chat", chat_node(answering("hello"))), ("record", node)]),
                "hi",
                {},
                mode,
            )


@both
def test_on_error_ignore_continues_if_the_token_counter_fails(mode, caplog):
    def broken(text):
        raise ValueError("no tokens")

    diary = Diary("memory:", agent="rules")
    diary.user("alice").upsert_preference("likes", "tea")
    for on_error in ("ignore", "raise"):
        recall = recall_node(diary, on_error=on_error, token_counter=broken)
        graph = graph_of([("recall", recall), ("chat", chat_node(answering("hello")))])
        if on_error == "raise":
            with pytest.raises(ValueError, match="no tokens"):
                run(graph, "hi", ALICE, mode)
        else:
            assert run(graph, "hi", ALICE, mode).get("memory", "") == ""
    assert "the memory could not be read" in caplog.text


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: extract_node(answering("x")),
            r"Give the diary first: extract_node\(diary, model\)",
        ),
        (lambda: recall_node(answering("x")), r"Give the diary first: recall_node\(diary\)"),
        (lambda: recall_node(MemoryWriter(Diary("memory:"))), "expected a Diary or a folder"),
        (
            lambda: graph_of([("recall", recall_node)]).invoke({"messages": "hi"}),
            r"expected a Diary or a folder, found dict\. Give the diary first: recall_node\(diary\)",
        ),
        (lambda: submit_node(Diary("memory:")), "expected a MemoryWriter, found Diary"),
        (lambda: submit_node("./memories"), "expected a MemoryWriter, found str"),
        (lambda: recall_node("memory:", on_error="warn"), "'warn' is unknown. Use one of"),
        (
            lambda: recall_node("memory:", max_tokens=0),
            "max_tokens: expected a whole number of at least 1, found 0",
        ),
    ],
)
def test_invalid_arguments_are_refused_with_the_expected_ones(make, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        make()


def test_a_node_is_shown_with_its_name():
    diary = Diary("memory:", agent="rules")
    nodes = [recall_node(diary), extract_node(diary), submit_node(MemoryWriter(diary))]
    shown = ["RunnableLambda(recall)", "RunnableLambda(extract)", "RunnableLambda(submit)"]
    assert [repr(node) for node in nodes] == shown


def test_nodes_take_the_diary_of_a_store():
    diary = Diary("memory:", agent="rules")
    diary.user("alice").upsert_preference("likes", "dark roast")
    graph = graph_of([("recall", recall_node(DiaryStore(diary)))])
    assert "dark roast" in run(graph, "hi", ALICE, "sync")["memory"]


@either
@pytest.mark.parametrize("redacts", [False, True])
def test_words_that_a_recall_node_saw_are_in_no_turn_of_another_user(redacts, mode):
    noted = Noted()
    diary = Diary("memory:", agent=noted)
    answers = iter([None, AIMessage("Noted.")])

    def chat(_state):
        answer = next(answers)
        if answer is None:
            raise ConnectionError
        return {"messages": [answer]}

    def redact(state):
        said = state["messages"][-1]
        return {"messages": [HumanMessage(said.text.replace("Ann", "[NAME]"), id=said.id)]}

    nodes = [("recall", recall_node(diary)), ("chat", chat), ("extract", extract_node(diary))]
    if redacts:
        nodes.insert(1, ("redact", redact))
    graph = graph_of(nodes, checkpointer=InMemorySaver())
    ann, bob = ({"configurable": {"user_id": each, "thread_id": "room"}} for each in ("ann", "bob"))
    with pytest.raises(ConnectionError):
        run(graph, "I am Ann.", ann, mode)
    run(graph, "I am Bob.", bob, mode)
    assert noted.turns == [("room", "I am Bob.", "Noted.")]


def room_in_which_ann_spoke(diary, place, mode):
    """Return a graph, and the config of Bob's run from Ann's checkpoint in front of a node."""
    chat = chat_node(answering("Hello.", "Hello again.", "Welcome."))
    nodes = [("recall", recall_node(diary)), ("chat", chat), ("extract", extract_node(diary))]
    graph = graph_of(nodes, checkpointer=InMemorySaver())
    run(graph, "I am Ann.", {"configurable": {"user_id": "ann", "thread_id": "room"}}, mode)
    past = graph.get_state_history({"configurable": {"thread_id": "room"}})
    [start] = [one.config["configurable"] for one in past if one.next == (place,)]
    return graph, {"configurable": {**start, "user_id": "bob"}}


@either
@pytest.mark.parametrize("place", ["__start__", "recall"])
def test_a_turn_that_another_user_replays_stays_the_first_user_s(place, mode):
    noted = Noted()
    diary = Diary("memory:", agent=noted)
    graph, config = room_in_which_ann_spoke(diary, place, mode)
    with pytest.raises(IdentifierError, match="another user began this turn"):
        graph.invoke(None, config) if mode == "sync" else asyncio.run(graph.ainvoke(None, config))
    assert diary.users() == ["ann"]
    assert noted.turns == [("room", "I am Ann.", "Hello.")]


@either
def test_a_branch_that_another_user_s_replay_began_repeats_no_words(mode):
    noted = Noted()
    graph, config = room_in_which_ann_spoke(Diary("memory:", agent=noted), "__start__", mode)
    with pytest.raises(IdentifierError):
        run(graph, None, config, mode)
    past = graph.get_state_history({"configurable": {"thread_id": "room"}})
    branch = next(one.config["configurable"] for one in past if one.next == ("chat",))
    run(graph, None, {"configurable": {**branch, "user_id": "ann"}}, mode)
    assert noted.turns == [("room", "I am Ann.", "Hello."), ("room", "", "Welcome.")]


@either
@pytest.mark.parametrize("says", [None, "I like tea."])
def test_a_branch_that_a_replay_without_a_user_began_repeats_no_words(says, mode):
    noted = Noted()
    graph, config = room_in_which_ann_spoke(Diary("memory:", agent=noted), "__start__", mode)
    del config["configurable"]["user_id"]
    with pytest.raises(IdentifierError, match="the user is not known"):
        run(graph, None, config, mode)
    run(graph, says, {"configurable": {"user_id": "ann", "thread_id": "room"}}, mode)
    assert noted.turns == [("room", "I am Ann.", "Hello."), ("room", says or "", "Hello again.")]


@either
def test_a_replay_repeats_no_words_of_a_run_without_a_user(mode):
    noted = Noted()
    nodes = [("recall", recall_node(diary := Diary("memory:", agent=noted)))]
    nodes += [("chat", chat_node(answering("Hello.", "Hi."))), ("extract", extract_node(diary))]
    graph = graph_of(nodes, checkpointer=InMemorySaver())
    thread = {"thread_id": "room"}
    with pytest.raises(IdentifierError):
        run(graph, "I am Ann.", {"configurable": thread}, mode)
    start = list(graph.get_state_history({"configurable": thread}))[-1].config["configurable"]
    run(graph, "I like tea.", {"configurable": {**thread, "user_id": "ann"}}, mode)
    run(graph, None, {"configurable": {**start, "user_id": "ann"}}, mode)
    assert noted.turns == [("room", "I am Ann.\n\nI like tea.", "Hello."), ("room", "", "Hi.")]


@either
def test_a_replay_repeats_no_words_that_another_user_said_too(mode):
    noted = Noted()
    graph, bob = room_in_which_ann_spoke(Diary("memory:", agent=noted), "__start__", mode)
    ann = {"configurable": {**bob["configurable"], "user_id": "ann"}}
    run(graph, "I am Ann.", bob, mode)
    run(graph, None, ann, mode)
    assert [one[1:] for one in noted.turns] == [
        ("I am Ann.", "Hello."), ("I am Ann.", "Hello again."), ("", "Welcome."),
    ]  # fmt: skip


@either
def test_answered_words_are_in_no_turn_of_a_user_who_branches_off_before(mode):
    noted = Noted()
    graph, config = room_in_which_ann_spoke(Diary("memory:", agent=noted), "recall", mode)
    run(graph, "I am Bob.", config, mode)
    assert noted.turns == [("room", "I am Ann.", "Hello."), ("room", "I am Bob.", "Hello again.")]


@pytest.mark.parametrize("kind", ["retry", "fallback"])
@pytest.mark.parametrize("saver", [None, InMemorySaver])
def test_a_retried_graph_records_the_words_once(tmp_path, saver, kind):
    extractor, failures = Noted(), [ConnectionError("down")]

    def answer(state):
        return {"messages": [("ai", "ok")]}

    def fail_once(state):
        if failures:
            raise failures.pop()

    record = extract_node(Diary(tmp_path, agent=extractor))
    nodes = [("answer", answer), ("extract", record), ("last", fail_once)]
    builder = StateGraph(Dictionary).add_sequence(nodes).add_edge(START, "answer")
    graph = builder.compile(checkpointer=saver and saver())
    config = ALICE if saver else {"configurable": {"user_id": "alice"}}
    if kind == "retry":
        repeated = graph.with_retry(wait_exponential_jitter=False, stop_after_attempt=2)
    else:
        repeated = graph.with_fallbacks([builder.compile(checkpointer=saver and saver())])
    repeated.invoke({"messages": [("user", "Hello")]}, config)
    assert len(extractor.turns) == 1
    repeated.invoke({"messages": [("user", "Hello")]}, config)  # another run is another turn
    assert len(extractor.turns) == 2


def test_a_turn_that_is_cancelled_while_it_is_stored_is_recorded_once():
    class Slow(MemoryWriter):
        async def submit_turn(self, turn):
            receipt = await super().submit_turn(turn)
            if turn.user_msg == "I like tea.":
                task.cancel()
                await asyncio.sleep(10)
            return receipt

    async def talk():
        nonlocal task
        task = asyncio.create_task(run_async("I like tea."))
        with pytest.raises(asyncio.CancelledError):
            await task
        await run_async("I like rain.")

    def run_async(text):
        return graph.ainvoke({"messages": [HumanMessage(text)]}, ALICE)

    task, noted = None, Noted()
    with Slow(Diary("memory:", agent=noted)) as writer:
        nodes = [("answer", chat_node(answering("ok", "ok"))), ("submit", submit_node(writer))]
        graph = graph_of([("talk", graph_of(nodes))], checkpointer=InMemorySaver())
        asyncio.run(talk())
    assert noted.turns == [("t1", "I like tea.", "ok"), ("t1", "I like rain.", "ok")]
