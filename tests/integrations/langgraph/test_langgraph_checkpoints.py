"""Recalled memory reaches the model's node, and no checkpoint keeps a copy of it."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import NotRequired
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph, add_messages
from langgraph.types import Command, Send, interrupt

import programs
from modes import alternating
from random_graphs import Data, Dictionary, Model
from tomldiary import Diary
from tomldiary.errors import IdentifierError
from tomldiary_langgraph import Memory, extract_node, recall_node

ALICE = {"configurable": {"user_id": "alice", "thread_id": "t1"}}
CANARY = "zanzibar"


class Tracked(MessagesState):
    memory: str


class Typed(MessagesState):
    memory: NotRequired[Memory]


@pytest.fixture
def diary():
    found = Diary("memory:", agent="rules")
    found.user("alice").upsert_preference("likes", CANARY)
    return found


def memory_of(state):
    return state.get("memory", "") if isinstance(state, dict) else state.memory


def answering(seen):
    def answer(state):
        seen.append(memory_of(state))
        return {"messages": [("ai", "Noted.")]}

    return answer


def builder_of(diary, state, answer, *between, recalled=None):
    nodes = [("recall", recalled or recall_node(diary)), *between, ("answer", answer)]
    return StateGraph(state).add_sequence(nodes).add_edge(START, "recall")


QUESTION = {"messages": [HumanMessage("Where to?")]}
states = pytest.mark.parametrize("state", [Dictionary, Typed, Data, Model])
both = pytest.mark.parametrize("mode", ["sync", "async"])
either = alternating("sync", "async")


def in_memory(saver):
    return pickle.dumps([dict(saver.writes), dict(saver.blobs), _plain(saver.storage)])


def _plain(storage):
    return {
        thread: {name: dict(rows) for name, rows in each.items()}
        for thread, each in storage.items()
    }


def on_disk(folder):
    return b"".join(path.read_bytes() for path in folder.iterdir())


def run(builder, kind, mode, folder, inputs=(QUESTION,)):
    """Run a graph once for each input; return everything that its checkpointer keeps."""
    if mode == "sync":
        with _saver(kind, folder) as saver:
            graph = builder.compile(checkpointer=saver)
            for given in inputs:
                graph.invoke(given, ALICE)
            return in_memory(saver) if kind == "memory" else on_disk(folder)

    async def main():
        async with _asaver(kind, folder) as saver:
            graph = builder.compile(checkpointer=saver)
            for given in inputs:
                await graph.ainvoke(given, ALICE)
            return in_memory(saver) if kind == "memory" else on_disk(folder)

    return asyncio.run(main())


@contextmanager
def _saver(kind, folder):
    if kind == "memory":
        yield InMemorySaver()
    else:
        with SqliteSaver.from_conn_string(str(folder / "checkpoints")) as saver:
            yield saver


@asynccontextmanager
async def _asaver(kind, folder):
    if kind == "memory":
        yield InMemorySaver()
    else:
        async with AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints")) as saver:
            yield saver


@pytest.mark.parametrize(
    ("state", "kind", "mode"),
    [
        (Dictionary, "memory", "sync"),
        (Data, "sqlite", "sync"),
        (Model, "memory", "async"),
        (Dictionary, "sqlite", "async"),
    ],
)
def test_no_checkpoint_keeps_the_memory(diary, state, kind, mode, tmp_path, caplog):
    seen = []
    kept = run(builder_of(diary, state, answering(seen)), kind, mode, tmp_path)
    assert CANARY in seen[0]
    assert b"Where to?" in kept
    assert CANARY.encode() not in kept
    assert caplog.messages == []


@both
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_no_checkpoint_of_a_subgraph_keeps_the_memory(diary, kind, mode, tmp_path):
    seen = []
    inner = builder_of(diary, Dictionary, answering(seen)).compile()
    outer = StateGraph(Dictionary).add_node("inner", inner).add_edge(START, "inner")
    outer.add_node("after", answering(seen)).add_edge("inner", "after")
    kept = run(outer, kind, mode, tmp_path)
    assert [CANARY in each for each in seen] == [True, True]
    assert b"Where to?" in kept
    assert CANARY.encode() not in kept


@either
@pytest.mark.parametrize(("is_told", "kind"), [(False, "memory"), (True, "sqlite")])
def test_documented_subgraphs_keep_no_memory_of_their_parent(diary, is_told, kind, mode, tmp_path):
    seen = []
    inner = StateGraph(Dictionary).add_node("answer", answering(seen)).add_edge(START, "answer")
    outer = StateGraph(Dictionary).add_node("recall", recall_node(diary))
    if is_told:
        outer.add_node("inner", inner.compile(checkpointer=False))
    else:
        outer.add_node("inner", inner.compile(), input_schema=MessagesState)
    outer.add_edge(START, "recall").add_edge("recall", "inner")
    kept = run(outer, kind, mode, tmp_path)
    assert [CANARY in each for each in seen] == [is_told]
    assert b"Where to?" in kept
    assert CANARY.encode() not in kept


@both
def test_a_recall_within_the_model_s_node_leaves_no_memory_in_the_state(diary, mode):
    """A LangGraph server keeps the values of each checkpoint event, also of a run that waits."""
    seen, recall = [], recall_node(diary)

    def answer(state):
        seen.append(recall.invoke(state)["memory"])
        return {"messages": [("ai", interrupt("Which city?"))]}

    async def aanswer(state):
        seen.append((await recall.ainvoke(state))["memory"])
        return {"messages": [("ai", interrupt("Which city?"))]}

    builder = StateGraph(Dictionary).add_node("answer", answer if mode == "sync" else aanswer)
    graph = builder.add_edge(START, "answer").compile(checkpointer=InMemorySaver())

    async def events():
        return [each async for each in graph.astream(QUESTION, ALICE, stream_mode="checkpoints")]

    if mode == "sync":
        values = list(graph.stream(QUESTION, ALICE, stream_mode="checkpoints"))
    else:
        values = asyncio.run(events())
    assert CANARY in seen[0]
    assert "Where to?" in str(values)
    assert CANARY not in str(values)


@pytest.mark.parametrize(
    ("state", "kind"), [(Dictionary, "memory"), (Data, "sqlite"), (Model, "memory")]
)
def test_a_recall_after_an_interrupt_restores_the_memory(diary, state, kind, tmp_path):
    seen = []

    def confirm(_state):
        interrupt("Go on?")
        return {}

    again = [("confirm", confirm), ("recall_again", recall_node(diary))]
    builder = builder_of(diary, state, answering(seen), *again)
    kept = run(builder, kind, "sync", tmp_path, [QUESTION, Command(resume="yes")])
    assert CANARY in seen[0]
    assert CANARY.encode() not in kept


@states
def test_the_memory_is_empty_after_an_interrupt_without_a_recall(diary, state, tmp_path):
    seen = []

    def confirm(_state):
        interrupt("Go on?")
        return {}

    builder = builder_of(diary, state, answering(seen), ("confirm", confirm))
    run(builder, "memory", "sync", tmp_path, [QUESTION, Command(resume="yes")])
    assert seen == [""]


def test_a_node_may_declare_the_memory_that_the_state_lacks(diary, tmp_path, caplog):
    seen = []

    def answer(state: Dictionary):
        return answering(seen)(state)

    kept = run(builder_of(diary, MessagesState, answer), "memory", "sync", tmp_path)
    assert CANARY in seen[0]
    assert CANARY.encode() not in kept
    assert caplog.messages == []


@both
def test_a_field_kept_in_checkpoints_is_warned_about_once(diary, mode, tmp_path, caplog):
    seen = []
    builder = builder_of(diary, Tracked, answering(seen))
    kept = run(builder, "memory", mode, tmp_path, [QUESTION, QUESTION])
    assert CANARY.encode() in kept
    [warning] = caplog.messages
    assert "checkpoints keep the state's field 'memory'" in warning
    assert "`memory: Memory`" in warning
    assert [CANARY in each for each in seen] == [True, True]


def test_a_field_without_checkpoints_needs_no_warning(diary, caplog):
    builder_of(diary, Tracked, answering([])).compile().invoke(QUESTION, ALICE)
    assert caplog.messages == []


@pytest.mark.parametrize("key", ["memory", "known"])
def test_a_state_that_drops_the_memory_is_warned_about_once(diary, key, caplog):
    recalled = recall_node(diary, state_key=key)
    graph = builder_of(diary, MessagesState, answering([]), recalled=recalled).compile()
    graph.invoke(QUESTION, ALICE)
    graph.invoke(QUESTION, ALICE)
    [warning] = caplog.messages
    assert f"no field {key!r}" in warning
    assert f"`{key}: Memory`" in warning


@pytest.mark.parametrize(
    "returned",
    [
        lambda update: {**update},
        lambda update: Command(update=update),
        lambda update: Command(update=[*update.items()]),
        lambda update: [{"messages": []}, Command(update=update)],
        lambda update: ({"messages": []}, Command(update=update)),
    ],
)
def test_a_node_that_recalls_itself_and_returns_the_memory_is_warned_about(diary, returned, caplog):
    recalled = recall_node(diary)
    graph = StateGraph(MessagesState)
    graph.add_node("recall", lambda state: returned(recalled.invoke(state)))
    graph.add_edge(START, "recall").compile().invoke(QUESTION, ALICE)
    assert "no field 'memory'" in caplog.text


def test_a_node_that_recalls_itself_needs_no_field_and_no_warning(diary, caplog):
    recalled, seen = recall_node(diary), []

    def answer(state):
        return answering(seen)({**state, **recalled.invoke(state)})

    graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
    graph.invoke(QUESTION, ALICE)
    assert CANARY in seen[0]
    assert caplog.messages == []


def test_a_state_that_drops_the_memory_is_shown_without_logging(tmp_path):
    program = (
        "from langgraph.graph import START, MessagesState, StateGraph\n"
        "from tomldiary_langgraph import recall_node\n"
        f"nodes = [('recall', recall_node({str(tmp_path)!r}))]\n"
        "graph = StateGraph(MessagesState).add_sequence(nodes).add_edge(START, 'recall').compile()\n"
        "for _ in range(2):\n"
        "    graph.invoke({'messages': [('user', 'Hello')]}, {'configurable': {'user_id': 'alice'}})\n"
    )
    done = programs.run("-c", program, imported=programs.FRAMEWORKS, check=True)
    assert done.stderr.count("the graph's state has no field 'memory'") == 1


@either
@states
def test_what_a_send_passes_as_a_dictionary_leaves_no_memory_in_checkpoints(
    diary, state, mode, tmp_path
):
    def send(state):
        messages = state["messages"] if isinstance(state, dict) else state.messages
        return [Send("answer", {"messages": messages, "memory": memory_of(state)})]

    seen = []
    builder = StateGraph(state).add_node("recall", recall_node(diary)).add_edge(START, "recall")
    builder.add_node("answer", answering(seen)).add_conditional_edges("recall", send)
    kept = run(builder, "memory", mode, tmp_path)
    assert CANARY in seen[0]
    assert CANARY.encode() not in kept


@either
@pytest.mark.parametrize("place", ["node", "subgraph"])
def test_branches_of_a_fan_out_may_each_recall(diary, place, mode, tmp_path):
    diary.user("team").upsert_preference("likes", "stand-ups")
    seen, builder = [], StateGraph(Dictionary)
    for name, user in (("own", "alice"), ("again", "alice"), ("team", "team")):
        node = recall_node(diary, user_id=user)
        if place == "subgraph":
            node = StateGraph(Dictionary).add_node("recall", node).add_edge(START, "recall")
            node = node.compile()
        builder.add_node(name, node).add_edge(START, name)
    builder.add_node("answer", answering(seen)).add_edge(["own", "again", "team"], "answer")
    kept = run(builder, "memory", mode, tmp_path)
    assert [seen[0].count(each) for each in (CANARY, "stand-ups")] == [1, 1]
    assert CANARY.encode() not in kept


# Users who share a thread


class Noted:
    """An extractor that keeps whose words it was given."""

    def __init__(self):
        self.turns = []

    def run(self, message, /, *, deps):
        self.turns.append((deps.user_id, deps.user_msg, deps.assistant_msg))


def named_in(user, place):
    """Return a config and a context in which a run names its user."""
    thread = {"thread_id": "room"}
    if place == "context":
        return {"configurable": thread}, {"user_id": user}
    if place == "function":
        return {"configurable": thread}, {"account": user}
    if place == "function of a service":
        return {"configurable": {**thread, "user_id": "service"}}, {"account": user}
    return {"configurable": {**thread, "user_id": user}}, None


def in_room(
    given, user, place, mode, folder, extractor, answer, *, inner=False, within=False, **options
):
    """Run a graph of a new process, as it were, on the checkpoints of a folder.

    `inner` tells whether a subgraph recalls, `within` whether another one answers and records.
    """
    diary = Diary(f"{folder}/{uuid4()}", agent=extractor)
    account = (lambda _, runtime: runtime.context["account"]) if "function" in place else None
    recall = recall_node(diary, user_id=account)
    if inner:
        recall = (
            StateGraph(Dictionary).add_node("recall", recall).add_edge(START, "recall").compile()
        )
    extract = extract_node(diary, **{"user_id": account, **options})
    nodes = [("answer", answer), ("extract", extract)]
    if within:
        inside = StateGraph(MessagesState, context_schema=dict).add_sequence(nodes)
        nodes = [("inside", inside.add_edge(START, "answer").compile())]
    nodes = [("recall", recall), *nodes]
    builder = StateGraph(Dictionary, context_schema=dict).add_sequence(nodes)
    builder.add_edge(START, "recall")
    config, context = named_in(user, place)

    async def main():
        async with _asaver("sqlite", folder) as saver:
            graph = builder.compile(checkpointer=saver)
            return await graph.ainvoke(given, config, context=context)

    if mode == "async":
        return asyncio.run(main())
    with _saver("sqlite", folder) as saver:
        return builder.compile(checkpointer=saver).invoke(given, config, context=context)


def failing(_state):
    raise ConnectionError


def asking(_state):
    interrupt("Go on?")
    return {"messages": [("ai", "Noted.")]}


ANN = {"messages": [("user", "I am Ann.")]}
BOB = {"messages": [("user", "I am Bob.")]}


@either
@pytest.mark.parametrize(
    ("first", "place", "inner"),
    [
        (failing, "settings", False),
        (asking, "context", False),
        (failing, "function", True),
        (asking, "function of a service", True),
    ],
)
def test_unanswered_words_of_another_user_are_in_no_turn(
    first, place, inner, mode, tmp_path, caplog
):
    noted = Noted()
    try:
        in_room(ANN, "ann", place, mode, tmp_path, noted, first, inner=inner)
    except ConnectionError:
        assert first is failing
    for user, given in (("bob", BOB), ("ann", ANN)):
        in_room(given, user, place, mode, tmp_path, noted, answering([]), inner=inner)
    assert noted.turns == [("bob", "I am Bob.", "Noted."), ("ann", "I am Ann.", "Noted.")]
    assert "not part of this turn" in caplog.text


def test_branches_that_recall_note_whose_words_they_saw(tmp_path):
    noted = Noted()
    for user, given in (("ann", ANN), ("bob", BOB)):
        diary = Diary(tmp_path / user, agent=noted)
        nodes = [("answer", asking if user == "ann" else answering([]))]
        builder = StateGraph(Dictionary).add_sequence([*nodes, ("extract", extract_node(diary))])
        for name in ("one", "two"):
            builder.add_node(name, recall_node(diary)).add_edge(START, name)
        builder.add_edge(["one", "two"], "answer")
        with _saver("sqlite", tmp_path) as saver:
            builder.compile(checkpointer=saver).invoke(given, named_in(user, "settings")[0])
    assert noted.turns == [("bob", "I am Bob.", "Noted.")]


@both
def test_unanswered_words_of_the_same_user_join_the_next_turn(mode, tmp_path):
    noted = Noted()
    with pytest.raises(ConnectionError):
        in_room(ANN, "ann", "settings", mode, tmp_path, noted, failing)
    again = {"messages": [("user", "Hello?")]}
    in_room(again, "ann", "context", mode, tmp_path, noted, answering([]))
    assert noted.turns == [("ann", "I am Ann.\n\nHello?", "Noted.")]


@either
@pytest.mark.parametrize(
    ("place", "within"),
    [("settings", False), ("function", True), ("function of a service", False)],
)
def test_a_run_that_another_user_resumes_records_nothing(place, within, mode, tmp_path):
    noted = Noted()
    in_room(ANN, "ann", place, mode, tmp_path, noted, asking, within=within)
    with pytest.raises(IdentifierError, match="another user began this turn"):
        in_room(Command(resume=1), "bob", place, mode, tmp_path, noted, asking, within=within)
    assert noted.turns == []
    in_room(None, "ann", place, mode, tmp_path, noted, asking, within=within)
    assert noted.turns == [("ann", "I am Ann.", "Noted.")]


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
def test_a_graph_of_another_thread_may_have_messages_for_another_user(saver):
    noted = Noted()
    diary = Diary("memory:", agent=noted)
    answer = ("answer", lambda _: {"messages": [("ai", "Noted.")]})
    inner = StateGraph(MessagesState).add_sequence([answer, ("extract", extract_node(diary))])
    inside = inner.add_edge(START, "answer").compile()

    def delegate(state):
        inside.invoke(state, {"configurable": {"user_id": "bob", "thread_id": "his"}})

    nodes = [("recall", recall_node(diary)), ("delegate", delegate)]
    outer = StateGraph(Dictionary).add_sequence(nodes)
    outer.add_edge(START, "recall")
    config = {"configurable": {"user_id": "ann", "thread_id": "hers"}}
    outer.compile(checkpointer=saver).invoke(ANN, config)
    assert noted.turns == [("bob", "I am Ann.", "Noted.")]


def test_a_user_with_older_unanswered_words_cannot_resume_another_s_run(tmp_path):
    noted = Noted()
    for user, given in (("bob", BOB), ("ann", ANN)):
        in_room(given, user, "settings", "sync", tmp_path, noted, asking)
    with pytest.raises(IdentifierError, match="another user began this turn"):
        in_room(Command(resume=1), "bob", "settings", "sync", tmp_path, noted, asking)
    in_room(None, "ann", "settings", "sync", tmp_path, noted, asking)
    assert noted.turns == [("ann", "I am Ann.", "Noted.")]


def test_what_another_user_was_told_between_two_messages_is_in_no_turn(tmp_path):
    def to_ann(_state):
        call = {"name": "pay", "args": {}, "id": "1"}
        return {"messages": [AIMessage("Your salary, Ann:", tool_calls=[call])]}

    noted = Noted()
    for user, given, answer in (("bob", BOB, asking), ("ann", ANN, to_ann), ("bob", BOB, asking)):
        in_room(given, user, "settings", "sync", tmp_path, noted, answer)
    in_room(Command(resume=1), "bob", "settings", "sync", tmp_path, noted, asking)
    assert noted.turns == [
        ("ann", "I am Ann.", "Your salary, Ann:"),
        ("bob", "I am Bob.\n\nI am Bob.", "Noted."),
    ]


def test_a_node_with_a_user_of_its_own_records_the_words_of_all(tmp_path):
    noted = Noted()
    in_room(ANN, "ann", "settings", "sync", tmp_path, noted, asking)
    in_room(BOB, "bob", "settings", "sync", tmp_path, noted, answering([]), user_id="team")
    assert noted.turns == [("team", "I am Ann.\n\nI am Bob.", "Noted.")]


@pytest.mark.parametrize("place", ["settings", "function"])
def test_a_node_with_a_function_of_its_own_may_record_for_a_team(place, tmp_path):
    noted = Noted()
    team = lambda _state, _runtime: "team"  # noqa: E731 - another function than that of `recall`
    in_room(ANN, "ann", place, "sync", tmp_path, noted, answering([]), user_id=team)
    assert noted.turns == [("team", "I am Ann.", "Noted.")]


def test_a_node_with_other_arguments_of_the_same_function_may_record_for_a_team(diary):
    def named(key, _state, runtime):
        return runtime.context[key]

    noted = Noted()
    recall = recall_node(diary, user_id=partial(named, "user"))
    extract = extract_node(diary, noted, user_id=partial(named, "team"))
    nodes = [("recall", recall), ("answer", answering([])), ("extract", extract)]
    builder = StateGraph(Dictionary, context_schema=dict).add_sequence(nodes)
    graph = builder.add_edge(START, "recall").compile(checkpointer=InMemorySaver())
    graph.invoke(ANN, ALICE, context={"user": "ann", "team": "red"})
    assert noted.turns == [("red", "I am Ann.", "Noted.")]


@either
@states
def test_a_thread_in_another_checkpointer_has_its_own_users(state, mode):
    noted, failures = Noted(), [ConnectionError()]
    diary = Diary("memory:", agent=noted)

    def answer(_state):
        if failures:
            raise failures.pop()
        return {"messages": [("ai", "Noted.")]}

    builder = builder_of(diary, state, answer)
    builder.add_node("extract", extract_node(diary)).add_edge("answer", "extract")
    for user in ("ann", "bob"):  # each has a checkpointer, and the client counts its messages
        graph = builder.compile(checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "main", "user_id": user}}
        given = {"messages": [HumanMessage("Hi.", id="1")]}
        with suppress(ConnectionError):
            if mode == "sync":
                graph.invoke(given, config)
            else:
                asyncio.run(graph.ainvoke(given, config))
    assert noted.turns == [("bob", "Hi.", "Noted.")]


def in_one_room(failures):
    """Return a graph whose model fails a few times, its thread, and a function that runs it for a user."""
    diary = Diary("memory:", agent="rules")

    def answer(_state):
        if failures:
            raise failures.pop()
        return {"messages": [("ai", "Noted.")]}

    builder = StateGraph(MessagesState).add_sequence(
        [("recall", recall_node(diary)), ("answer", answer), ("extract", extract_node(diary))]
    )
    graph = builder.add_edge(START, "recall").compile(checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "room"}}

    def run(user, number=None):
        given = number and {"messages": [HumanMessage(f"I am {user}.", id=number)]}
        with suppress(ConnectionError):
            graph.invoke(given, thread, context={"user_id": user})

    return graph, thread, run


def test_a_failed_run_of_a_thread_that_began_again_is_its_user_s():
    graph, _, run = in_one_room([ConnectionError()] * 3)
    run("ann", "1")
    run("ann", "2")
    graph.checkpointer.delete_thread("room")
    run("bob", "2")
    with pytest.raises(IdentifierError, match="another user began this turn"):
        run("carol")


def test_a_failed_run_of_a_fork_is_its_user_s():
    graph, thread, run = in_one_room([ConnectionError()] * 2)
    run("ann", "1")
    run("ann", "2")
    (first, *_) = (
        each for each in reversed([*graph.get_state_history(thread)]) if each.values.get("messages")
    )
    graph.update_state(first.config, {"messages": []}, as_node=START)
    with pytest.raises(IdentifierError, match="another user began this turn"):
        run("bob")


# Turns that ended in another process

REPORT = {"messages": [HumanMessage("The task is done.", additional_kwargs={"lc_source": "task"})]}


@both
def test_a_run_that_no_user_began_records_its_answer_alone_in_another_process(mode, tmp_path):
    noted = Noted()
    for given in (ANN, REPORT, REPORT, {"messages": [("user", "Bye.")]}):
        in_room(given, "ann", "settings", mode, tmp_path, noted, answering([]))
    assert [one[1:] for one in noted.turns] == [
        ("I am Ann.", "Noted."), ("", "Noted."), ("", "Noted."), ("Bye.", "Noted."),
    ]  # fmt: skip


def test_a_resumed_run_records_recorded_words_no_second_time_in_another_process(tmp_path):
    noted = Noted()

    def asks_back(state):
        return {"messages": [("ai", f"Noted, {interrupt('Sure?')}.")]}

    for given in (ANN, Command(resume="sure")):
        diary = Diary(tmp_path / uuid4().hex, agent=noted)
        builder = builder_of(diary, Dictionary, answering([]))
        builder.add_node("extract", extract_node(diary)).add_node("ask", asks_back)
        builder.add_edge("answer", "extract").add_edge("ask", "extract")
        builder.add_conditional_edges(
            "extract", lambda state: "__end__" if len(state["messages"]) > 2 else "ask"
        )
        with _saver("sqlite", tmp_path) as saver:
            builder.compile(checkpointer=saver).invoke(given, ALICE)
    assert [one[1:] for one in noted.turns] == [("I am Ann.", "Noted."), ("", "Noted, sure.")]


def test_a_task_of_a_resumed_entrypoint_records_no_words_again_in_another_process(tmp_path):
    noted = Noted()

    def run(given):
        extract = extract_node(Diary(tmp_path / uuid4().hex, agent=noted))

        @task
        def record(thread):
            extract.invoke({"messages": thread})

        with _saver("sqlite", tmp_path) as saver:

            @entrypoint(checkpointer=saver)
            def chat(said):
                thread = []
                while said != "bye":
                    thread = add_messages(thread, [("user", said), ("ai", "Noted.")])
                    record(thread).result()
                    said = interrupt("What else?")

            chat.invoke(given, ALICE)

    for given in ("tea", Command(resume="jazz"), Command(resume="chess"), Command(resume="bye")):
        run(given)
    assert [said for _, said, _ in noted.turns] == ["tea", "jazz", "chess"]


class Losing(SqliteSaver):
    """Loses its database when asked to."""

    is_lost = False

    def put(self, *args):
        self.check()
        return super().put(*args)

    def put_writes(self, *args):
        self.check()
        super().put_writes(*args)

    def check(self):
        if self.is_lost:
            raise ConnectionError("the database is away")


def test_a_turn_whose_answer_is_in_no_checkpoint_is_recorded_once_with_sync(tmp_path):
    noted = Noted()

    def run(given, *, loses):
        diary = Diary(tmp_path / uuid4().hex, agent=noted)
        with _saver("sqlite", tmp_path) as opened:
            saver = Losing(opened.conn)

            def answer(_state):
                saver.is_lost = loses
                return {"messages": [("ai", f"Noted {loses}.")]}

            builder = builder_of(diary, Dictionary, answer)
            builder.add_node("extract", extract_node(diary)).add_edge("answer", "extract")
            builder.compile(checkpointer=saver).invoke(given, ALICE, durability="sync")

    with pytest.raises(ConnectionError):
        run(ANN, loses=True)
    run(None, loses=False)
    assert [one[1:] for one in noted.turns] == [("I am Ann.", "Noted False.")]


def test_words_of_a_turn_that_a_tool_ended_are_in_no_turn_of_another_process(tmp_path):
    def pay(_state):
        call = {"name": "pay", "args": {}, "id": "1"}
        told = ToolMessage("Paid.", tool_call_id="1")
        return {"messages": [AIMessage("", tool_calls=[call]), told]}

    noted = Noted()
    for user, given in (("ann", ANN), ("ann", {"messages": [("user", "Again.")]}), ("bob", BOB)):
        in_room(given, user, "settings", "sync", tmp_path, noted, pay)
    assert noted.turns == [
        ("ann", "I am Ann.", "Paid."), ("ann", "Again.", "Paid."), ("bob", "I am Bob.", "Paid."),
    ]  # fmt: skip


def test_words_after_a_turn_that_a_tool_ended_wait_for_their_answer(diary):
    def pay(_state):
        call = {"name": "pay", "args": {}, "id": "1"}
        told = ToolMessage("Paid.", tool_call_id="1")
        return {"messages": [AIMessage("Now:", tool_calls=[call]), told]}

    noted = Noted()
    builder = StateGraph(Dictionary).add_node("extract", extract_node(diary, noted))
    builder.add_node("answer", pay).add_edge("answer", "extract").add_edge(START, "extract")
    builder.add_conditional_edges(
        "extract", lambda state: "answer" if state["messages"][-1].type == "human" else "__end__"
    )
    graph = builder.compile(checkpointer=InMemorySaver())
    for given in (ANN, {"messages": [("user", "Again.")]}):
        graph.invoke(given, ALICE)
    assert [one[1:] for one in noted.turns] == [
        ("I am Ann.", "Now:\n\nPaid."), ("Again.", "Now:\n\nPaid."),
    ]  # fmt: skip


def test_edited_words_are_recorded_by_another_process_though_their_answer_stays(tmp_path):
    noted = Noted()
    for text in ("I am Ann.", "I am Anna."):
        given = {"messages": [HumanMessage(text, id="q")]}
        in_room(given, "ann", "settings", "sync", tmp_path, noted, answering([]))
    assert [one[1] for one in noted.turns] == ["I am Ann.", "I am Anna."]


def test_an_answer_that_is_revised_in_its_place_is_recorded_too(tmp_path):
    noted = Noted()
    diary = Diary(tmp_path / "memories", agent=noted)
    builder = StateGraph(Dictionary).add_node("extract", extract_node(diary))

    def answer(state):
        draft = len(state["messages"]) == 1
        return {"messages": [AIMessage("Draft." if draft else "Better.", id="a")]}

    builder.add_node("answer", answer).add_edge(START, "answer").add_edge("answer", "extract")
    builder.add_conditional_edges(
        "extract", lambda state: "answer" if state["messages"][-1].text == "Draft." else "__end__"
    )
    with _saver("sqlite", tmp_path) as saver:
        builder.compile(checkpointer=saver).invoke(ANN, ALICE)
    assert noted.turns == [("alice", "I am Ann.", "Draft."), ("alice", "", "Better.")]


def test_noting_the_end_of_a_turn_leaves_the_memory_in_the_state(diary, tmp_path):
    builder = builder_of(diary, Dictionary, answering([]))
    builder.add_node("extract", extract_node(diary)).add_edge("answer", "extract")
    with _saver("sqlite", tmp_path) as saver:
        assert CANARY in builder.compile(checkpointer=saver).invoke(QUESTION, ALICE)["memory"]
