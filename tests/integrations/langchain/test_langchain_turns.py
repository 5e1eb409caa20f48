"""Which words of a thread are the turn that a run is about, however the run ends."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, nullcontext, suppress
from functools import reduce
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    HumanInTheLoopMiddleware,
    LLMToolSelectorMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIDetectionError,
    PIIMiddleware,
    SummarizationMiddleware,
    ToolCallLimitMiddleware,
    after_agent,
    after_model,
    before_agent,
    before_model,
)
from langchain.agents.middleware.tool_call_limit import ToolCallLimitExceededError
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import ToolRuntime, tool
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt
from langsmith import traceable
from pydantic import BaseModel
from test_langchain_middleware import (
    OK,
    THREAD,
    Down,
    Recording,
    both,
    either,
    memories,
    noop,
    talk,
)

from recent_values import run_within_keep
from scripted_chat import DONE, Scripted, calling
from tomldiary import Diary, MemoryWriter
from tomldiary.entries.kinds.episodes import ToolStep
from tomldiary.errors import IdentifierError, InvalidValue
from tomldiary.retrieval.render import framed_memory
from tomldiary_langchain import DiaryMiddleware, DiaryRetriever, diary_tools
from tomldiary_langchain.endings import Endings, endings
from tomldiary_langgraph import DiaryStore, recall_node
from traced_runs import traced

NOOP = calling(("noop", {}))


def link_diary(folder):
    """Make a link to the folder of the diary: a diary opened by it shares no state in memory, as in another process."""
    (folder / "diary").mkdir()
    (folder / "link").symlink_to("diary")


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path / "diary", agent="rules")


@pytest.fixture
def writer(diary):
    with Recording(diary) as writer:
        yield writer


def agent_of(writer, *answers, tools=(noop,), before=(), behind=(), name="", **options):
    memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer, name=name)
    return create_agent(
        Scripted(answers=list(answers)), tools, middleware=[*before, memory, *behind], **options
    )


def ended(writer):
    return [(turn.status, turn.user_msg, turn.assistant_msg) for turn in writer.turns]


UNREADABLE = {"type": "invalid_tool_call", "name": "noop", "args": "{", "id": "1", "error": None}


@after_model(can_jump_to=["end"])
def hang_up(state, runtime):
    return {"jump_to": "end"}


endings_without_answer = pytest.mark.parametrize(
    ("answer", "behind"),
    [(AIMessage("Let me", invalid_tool_calls=[UNREADABLE]), []), (NOOP, [hang_up])],
    ids=["unreadable call", "call that is not run"],
)


# All that the user said since the last answer


@either
def test_messages_in_a_row_are_one_turn(writer, mode):
    agent = agent_of(writer, OK)
    talk(agent, [HumanMessage("I am a vegan."), HumanMessage("What should I cook?")], mode=mode)
    assert writer.said == [("I am a vegan.\n\nWhat should I cook?", "ok")]


@either
def test_a_run_without_a_message_of_the_user_is_no_turn(writer, mode):
    talk(agent_of(writer, OK), [AIMessage("Hello!")], mode=mode)
    assert writer.turns == []


IMAGE = {"type": "image", "url": "http://localhost/dog.png"}
SHOWN = framed_memory(["- rain"])


@either
@pytest.mark.parametrize("content", [[IMAGE], [SHOWN, IMAGE], []])
def test_the_answer_to_an_image_without_words_is_a_turn(writer, content, mode):
    talk(agent_of(writer, AIMessage("Your dog Rex.")), [HumanMessage(content)], mode=mode)
    assert writer.said == [("", "Your dog Rex.")]


@pytest.mark.parametrize("inject", ["user", "instructions"])
def test_the_memory_precedes_all_messages_of_the_turn(writer, inject):
    writer.diary.user("alice").upsert_preference("likes", "rain")
    model = Scripted(answers=[OK])
    memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer, inject=inject)
    agent = create_agent(model, middleware=[memory])
    talk(agent, [HumanMessage("old"), AIMessage("older"), HumanMessage("one"), HumanMessage("two")])
    texts = [one.text for one in model.asked[0] if one not in memories(model.asked[0])]
    assert texts == ["old", "older", "one", "two"]
    if inject == "user":
        assert model.asked[0].index(memories(model.asked[0])[0]) == 2


def test_a_message_during_a_pending_approval_joins_the_turn(writer):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    agent = agent_of(writer, NOOP, OK, behind=[approval], checkpointer=InMemorySaver())
    talk(agent, "I am a vegan.", THREAD)
    talk(agent, "What should I cook?", THREAD)
    assert writer.said == [("I am a vegan.\n\nWhat should I cook?", "ok")]


@either
def test_an_answer_after_a_failure_joins_the_next_message(writer, mode):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    book = NOOP.model_copy(update={"content": "Shall I book it?"})
    saver = InMemorySaver()
    agent = agent_of(writer, Down(), book, OK, behind=[approval], checkpointer=saver)
    with suppress(Down):
        talk(agent, "I need a room.", THREAD, mode)
    talk(agent, None, THREAD, mode)
    talk(agent, "A cheaper one.", THREAD, mode)
    assert ended(writer) == [
        ("failed", "I need a room.", ""),
        ("completed", "A cheaper one.", "Shall I book it?\n\nok"),
    ]


def test_a_resumed_approval_is_one_turn(writer):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    agent = agent_of(writer, NOOP, OK, behind=[approval], checkpointer=InMemorySaver())
    talk(agent, "I am a vegan.", THREAD)
    assert writer.turns == []
    talk(agent, Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert ended(writer) == [("completed", "I am a vegan.", "ok")]


@either
def test_an_approval_within_a_graph_is_resumed_as_one_turn(writer, mode):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    agent = agent_of(writer, NOOP, OK, behind=[approval])
    builder = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent")
    graph = builder.compile(checkpointer=InMemorySaver())
    talk(graph, "I am a vegan.", THREAD, mode)
    assert writer.turns == []
    talk(graph, Command(resume={"decisions": [{"type": "approve"}]}), THREAD, mode)
    assert ended(writer) == [("completed", "I am a vegan.", "ok")]


@either
def test_a_question_that_the_run_cut_out_before_a_resume_is_recorded(writer, mode):
    @after_model
    def cut(state, runtime):
        asked = [one for one in state["messages"] if one.type == "human"]
        return {"messages": [RemoveMessage(str(one.id)) for one in asked]}

    saver, answers = InMemorySaver(), [NOOP, OK]

    def agent():  # another process has another middleware
        approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
        return agent_of(writer, answers.pop(0), behind=[approval, cut], checkpointer=saver)

    talk(agent(), "I am a vegan.", THREAD, mode)
    talk(agent(), Command(resume={"decisions": [{"type": "approve"}]}), THREAD, mode)
    assert ended(writer) == [("completed", "I am a vegan.", "ok")]


@either
@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_a_question_that_a_summary_replaced_before_a_resume_is_recorded(writer, decision, mode):
    summary = Scripted(answers=[AIMessage("They talked.")])
    saver, answers = InMemorySaver(), [NOOP, NOOP, OK]
    team = MemoryWriter(Diary("memory:", agent="rules"))

    def agent():  # another process has another middleware
        behind = [
            DiaryMiddleware(team.diary, user_id="blue", writer=team, name="team"),
            SummarizationMiddleware(summary, trigger=("messages", 3), keep=("messages", 1)),
            HumanInTheLoopMiddleware(interrupt_on={"noop": True}),
        ]
        return agent_of(writer, *answers, behind=behind, checkpointer=saver)

    talk(agent(), "I am a vegan.", THREAD, mode)
    for _ in range(2):
        answers.pop(0)
        talk(agent(), Command(resume={"decisions": [{"type": decision}]}), THREAD, mode)
    assert writer.said == [("I am a vegan.", "ok")]
    assert team.stats()["submitted"] == 1
    team.close_sync()
    kept = agent().get_state(THREAD).values
    assert "vegan" not in str(kept)


@either
def test_a_question_that_a_summary_replaced_joins_the_next_message(writer, mode):
    summary = Scripted(answers=[AIMessage("They talked.")])
    behind = [
        SummarizationMiddleware(summary, trigger=("messages", 3), keep=("messages", 1)),
        HumanInTheLoopMiddleware(interrupt_on={"ask": True}),
    ]

    @tool
    def ask() -> str:
        """Ask."""
        return "yes"

    answers, tools = [NOOP, calling(("ask", {})), OK], [noop, ask]
    agent = agent_of(writer, *answers, tools=tools, behind=behind, checkpointer=InMemorySaver())
    talk(agent, "I am a vegan.", THREAD, mode)
    talk(agent, "What should I cook?", THREAD, mode)
    talk(agent, "Thanks.", THREAD, mode)
    assert writer.said == [("I am a vegan.\n\nWhat should I cook?", "ok"), ("Thanks.", "ok")]


@both
def test_a_question_that_a_middleware_trimmed_joins_the_next_message(writer, mode):
    @before_model
    def trim(state, runtime):
        return {"messages": [RemoveMessage(one.id) for one in state["messages"][:-2]]}

    behind = [trim, HumanInTheLoopMiddleware(interrupt_on={"ask": True})]

    @tool
    def ask() -> str:
        """Ask."""
        return "yes"

    answers, tools = [NOOP, calling(("ask", {})), OK], [noop, ask]
    agent = agent_of(writer, *answers, tools=tools, behind=behind, checkpointer=InMemorySaver())
    for text in ("I am a vegan.", "What should I cook?"):
        talk(agent, text, THREAD, mode)
    assert writer.said == [("I am a vegan.\n\nWhat should I cook?", "ok")]


def test_a_question_that_the_host_removed_does_not_join_the_next_message(writer):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    agent = agent_of(writer, NOOP, OK, behind=[approval], checkpointer=InMemorySaver())
    asked = talk(agent, "I am a vegan.", THREAD)["messages"]
    agent.update_state(THREAD, {"messages": [RemoveMessage(one.id) for one in asked]})
    talk(agent, "What should I cook?", THREAD)
    assert writer.said == [("What should I cook?", "ok")]


def test_a_question_that_the_host_removed_behind_a_rejected_call_stays_out(writer):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    agent = agent_of(writer, NOOP, NOOP, OK, behind=[approval], checkpointer=InMemorySaver())
    talk(agent, [HumanMessage("I am a vegan.", id="1")], THREAD)
    talk(agent, Command(resume={"decisions": [{"type": "reject"}]}), THREAD)
    agent.update_state(THREAD, {"messages": [RemoveMessage("1")]})
    talk(agent, "What should I cook?", THREAD)
    assert writer.said == [("What should I cook?", "ok")]


@before_model(can_jump_to=["end"])
def remove_the_question(state, runtime):
    last = state["messages"][-1]
    return {"messages": [RemoveMessage(last.id)], "jump_to": "end"}


def test_a_removed_question_gets_no_answer_of_another_process(writer, tmp_path):
    saver = InMemorySaver()
    with Recording(Diary(tmp_path / "another process", agent="rules")) as another:
        talk(agent_of(another, OK, checkpointer=saver), "Hello.", THREAD)
    agent = agent_of(writer, OK, behind=[remove_the_question], checkpointer=saver)
    talk(agent, "I am a vegan.", THREAD)
    assert writer.said == [("I am a vegan.", "")]


@pytest.mark.parametrize("place", ["before", "behind"])
def test_blocked_words_that_the_host_removes_beside_a_summary_stay_out(writer, place):
    summaries = SummarizationMiddleware(
        Scripted(answers=[OK]), trigger=("messages", 5), keep=("messages", 3)
    )
    block = PIIMiddleware("email", strategy="block")
    around = {"behind": [block], place: [summaries]}
    if place == "behind":
        around["behind"] = [block, summaries]
    agent = agent_of(writer, OK, checkpointer=InMemorySaver(), **around)
    for number in range(3):
        talk(agent, f"I like the number {number}.", THREAD)
    blocked = ["I like rum.", "I am a@example.org."]
    with pytest.raises(PIIDetectionError):
        talk(agent, [HumanMessage(text, id=text) for text in blocked], THREAD)
    agent.update_state(THREAD, {"messages": [RemoveMessage(text) for text in blocked]})
    talk(agent, "What should I cook?", THREAD)
    assert writer.said[-1] == ("What should I cook?", "ok")


@either
@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("model", ("I am a vegan.\n\nWhat should I cook?", "ok")),
        ("DiaryMiddleware.after_agent", ("I am a vegan.\n\nWhat should I cook?", "Fine.\n\nok")),
    ],
)
def test_words_of_a_run_whose_process_was_killed_join_the_next_message(
    writer, tmp_path, last, said, mode
):
    saver = InMemorySaver()
    with Recording(Diary(tmp_path / "killed", agent="rules")) as killed:
        first = agent_of(killed, NOOP, AIMessage("Fine."), checkpointer=saver)
        talk(first, "I am a vegan.", THREAD, mode)
        left = next(one for one in first.get_state_history(THREAD) if one.next == (last,)).config
    config = {"configurable": {**THREAD["configurable"], **left["configurable"]}}
    talk(agent_of(writer, OK, checkpointer=saver), "What should I cook?", config, mode)
    assert writer.said == [said]


@tool
def ask_user(question: str, runtime: ToolRuntime) -> Command[Any]:
    """Ask."""
    said = HumanMessage(interrupt(question))
    result = ToolMessage("asked", tool_call_id=runtime.tool_call_id)
    return Command(update={"messages": [result, said]})


ASKS = calling(("ask_user", {"question": "Any allergies?"}))


def test_words_before_and_after_a_tool_that_asks_the_user_are_one_turn(writer):
    agent = agent_of(writer, ASKS, OK, tools=[ask_user], checkpointer=InMemorySaver())
    talk(agent, "Book me a table.", THREAD)
    talk(agent, Command(resume="Yes, walnuts."), THREAD)
    talk(agent, "Thanks.", THREAD)
    assert writer.said == [("Book me a table.\n\nYes, walnuts.", "ok"), ("Thanks.", "ok")]


@tool
def note(runtime: ToolRuntime) -> list[Any]:
    """Return several updates."""
    said = HumanMessage("I eat no nuts.")
    return [
        ToolMessage("ok", tool_call_id=runtime.tool_call_id),
        Command(update={"messages": [said]}),
    ]


@either
def test_words_in_one_of_several_updates_are_recorded_though_a_middleware_changes_them(
    writer, mode
):
    options = {"tools": [note], "behind": [Retrieval()], "checkpointer": InMemorySaver()}
    agent = agent_of(writer, calling(("note", {})), OK, **options)
    talk(agent, "Book me a table.", THREAD, mode)
    assert writer.said == [("Book me a table.\n\nI eat no nuts.", "ok")]


@either
@pytest.mark.parametrize("around", ["summary", "documents"])
def test_words_of_a_tool_are_recorded_though_a_middleware_changes_or_removes_them(
    writer, around, mode
):
    summary = SummarizationMiddleware(
        Scripted(answers=[OK]), trigger=("messages", 5), keep=("messages", 1)
    )
    behind = [summary if around == "summary" else Retrieval()]
    answers, saver = [ASKS, NOOP, NOOP, OK], InMemorySaver()
    agent = agent_of(writer, *answers, tools=[ask_user, noop], behind=behind, checkpointer=saver)
    talk(agent, "Book me a table.", THREAD, mode)
    talk(agent, Command(resume="Yes, walnuts."), THREAD, mode)
    assert writer.said == [("Book me a table.\n\nYes, walnuts.", "ok")]


@either
def test_words_of_tools_in_documents_are_recorded_if_the_run_stops_before_the_model(mode):
    saver = InMemorySaver()

    @before_model
    def documents(state, runtime):
        found = (one for one in state["messages"] if one.type == "human" and "rain" not in one.text)
        texts = ((one, f"I like rain. {one.text} I like snow.") for one in found)
        return {"messages": [one.model_copy(update={"content": text}) for one, text in texts]}

    def run(given, *answers):
        with Recording(Diary("memory:", agent="rules")) as own:  # as another process
            options = {"checkpointer": saver, "interrupt_before": ["model"]}
            agent = agent_of(own, *answers, tools=[ask_user], behind=[documents], **options)
            talk(agent, given, THREAD, mode)
            return own.said, agent.get_state(THREAD).interrupts

    ask = {"question": "Anything else?"}
    run("Book me a table.", OK)
    _, asked = run(None, calling(("ask_user", ask), ("ask_user", ask)))
    said = zip(asked, ["At eight.", "For two."], strict=True)
    run(Command(resume={each.id: text for each, text in said}), OK)
    said, _ = run(None, OK)
    assert said == [("Book me a table.\n\nAt eight.\n\nFor two.", "ok")]


@tool
def compact(runtime: ToolRuntime) -> Command[Any]:
    """Write the thread again."""
    result = ToolMessage("done", tool_call_id=runtime.tool_call_id)
    thread = [RemoveMessage(REMOVE_ALL_MESSAGES), *runtime.state["messages"], result]
    return Command(update={"messages": thread})


@either
def test_earlier_messages_that_a_tool_writes_again_are_no_part_of_the_turn(tmp_path, mode):
    saver = InMemorySaver()
    link_diary(tmp_path)

    def run(folder, given, *answers):
        with Recording(Diary(tmp_path / folder, agent="rules")) as own:
            agent = agent_of(own, *answers, tools=[compact], checkpointer=saver)
            talk(agent, given, THREAD, mode)
        return own.said

    assert run("diary", "I like tea.", OK) == [("I like tea.", "ok")]
    assert run("link", "Tidy up.", calling(("compact", {})), DONE) == [("Tidy up.", "done")]


def few_shot(messages):
    call = {"name": "noop", "args": {}, "id": "shot"}
    shown = [HumanMessage("I am Bob."), AIMessage("", tool_calls=[call])]
    return [*shown, ToolMessage("seen", tool_call_id="shot"), AIMessage("Hello Bob."), *messages]


def summarized(messages):
    return [HumanMessage("They talked."), *messages[-1:]]


def rewritten(messages):
    return [HumanMessage("Please cook.") if one.type == "human" else one for one in messages]


@either
@pytest.mark.parametrize("change", [few_shot, summarized, rewritten])
def test_messages_that_a_middleware_puts_in_front_of_or_for_the_question_are_not_recorded(
    writer, change, mode
):
    @before_model
    def around(state, runtime):
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *change(state["messages"])]}

    saver = InMemorySaver()
    agent = agent_of(writer, OK, NOOP, OK, behind=[around], checkpointer=saver)
    for text in ("I am a vegan.", "What should I cook?"):
        talk(agent, text, THREAD, mode)
    assert writer.said == [("I am a vegan.", "ok"), ("What should I cook?", "ok")]


class Briefing(AgentMiddleware):
    """Adds a message for one call of the model."""

    def before_model(self, state, runtime):
        return {"messages": [HumanMessage("Be brief.", id="brief")]}

    def after_model(self, state, runtime):
        return {"messages": [RemoveMessage("brief")]}


@either
def test_a_message_for_one_model_call_is_not_recorded_after_an_interrupt(writer, mode):
    behind = [Briefing(), HumanInTheLoopMiddleware(interrupt_on={"noop": True})]
    agent = agent_of(writer, NOOP, OK, behind=behind, checkpointer=InMemorySaver())
    talk(agent, "I like tea.", THREAD, mode)
    talk(agent, Command(resume={"decisions": [{"type": "approve"}]}), THREAD, mode)
    assert writer.said == [("I like tea.", "ok")]


@either
def test_words_of_a_tool_of_a_run_that_failed_elsewhere_are_not_submitted_again(tmp_path, mode):
    saver = InMemorySaver()
    link_diary(tmp_path)

    def run(folder, answer, given):
        with Recording(Diary(tmp_path / folder, agent="rules")) as own:
            agent = agent_of(own, answer, tools=[ask_user], checkpointer=saver)
            with suppress(Down):
                talk(agent, given, THREAD, mode)
            return own.said

    run("diary", ASKS, "Book me a table.")
    said = "Book me a table.\n\nYes, walnuts."
    assert run("diary", Down(), Command(resume="Yes, walnuts.")) == [(said, "")]
    assert run("link", OK, None) == [("", "ok")]


@either
def test_an_edited_message_of_a_run_that_broke_off_elsewhere_is_submitted(tmp_path, mode):
    saver = InMemorySaver()
    link_diary(tmp_path)

    def run(folder, answer, *given):
        with Recording(Diary(tmp_path / folder, agent="rules")) as own, suppress(Down):
            talk(agent_of(own, answer, checkpointer=saver), [*given], THREAD, mode)
        return own.said

    tea, rice = "I like tea.", "I like rice."
    said = run("diary", Down(), HumanMessage(tea, id="1"), HumanMessage("Hello?", id="2"))
    assert said == [(f"{tea}\n\nHello?", "")]
    said = run("link", OK, HumanMessage(rice, id="1"), HumanMessage("Again?", id="3"))
    assert said == [(f"{rice}\n\nAgain?", "ok")]


@either
def test_an_edited_message_is_submitted_if_a_third_process_resumes_its_run(tmp_path, mode):
    saver = InMemorySaver()
    (tmp_path / "diary").mkdir()

    def run(process, answer, given):
        (tmp_path / process).symlink_to("diary")
        with Recording(Diary(tmp_path / process, agent="rules")) as own, suppress(Down):
            agent = agent_of(own, answer, tools=[ask_user], checkpointer=saver)
            talk(agent, given, THREAD, mode)
        return own.said

    tea, rice, hello = "I like tea.", "I like rice.", HumanMessage("Hello?", id="2")
    assert run("1", Down(), [HumanMessage(tea, id="1"), hello]) == [(f"{tea}\n\nHello?", "")]
    assert run("2", ASKS, [HumanMessage(rice, id="1")]) == []
    said = run("3", OK, Command(resume="Yes, walnuts."))
    assert said == [(f"{rice}\n\nYes, walnuts.", "ok")]


@either
def test_words_before_an_edited_message_of_a_broken_run_are_not_submitted_again(tmp_path, mode):
    saver = InMemorySaver()
    link_diary(tmp_path)

    def run(folder, given, *answers):
        with Recording(Diary(tmp_path / folder, agent="rules")) as own:
            agent = agent_of(own, *answers, checkpointer=saver)
            for each in given:
                with suppress(Down):
                    talk(agent, each, THREAD, mode)
        return own.said

    tea, hello = HumanMessage("I like tea.", id="1"), HumanMessage("Hello?", id="2")
    edited = HumanMessage("Hello again?", id="2")
    said = run("diary", [[tea, hello], [edited]], OK, Down())
    assert said == [("I like tea.\n\nHello?", "ok"), ("Hello again?", "ok")]
    assert run("link", [None], DONE) == [("", "ok\n\ndone")]


def test_a_turn_that_an_earlier_middleware_ends_is_recorded_alone(writer):
    @before_agent(can_jump_to=["end"])
    def guard(state, runtime):
        if state["messages"][-1].text == "Bad.":
            return {"messages": [AIMessage("No.")], "jump_to": "end"}
        return None

    saver = InMemorySaver()
    for text in ("Good.", "Bad."):  # each in a process of its own, which knows of no turn before
        with Recording(Diary("memory:", agent="rules")) as own:
            talk(agent_of(own, OK, before=[guard], checkpointer=saver), text, THREAD)
            writer.turns += own.turns
    assert writer.said == [("Good.", "ok"), ("Bad.", "No.")]


def test_messages_of_a_failed_run_are_not_submitted_twice(writer):
    agent = agent_of(writer, Down(), OK, checkpointer=InMemorySaver())
    with pytest.raises(Down):
        talk(agent, "I am a vegan.", THREAD)
    talk(agent, "What should I cook?", THREAD)
    assert ended(writer) == [("failed", "I am a vegan.", ""), ("completed", "What should I cook?", "ok")]  # fmt: skip


class WhenReleased:
    """An extractor that waits for the test."""

    def __init__(self):
        self.released = threading.Event()

    async def run(self, message, /, *, deps):
        await asyncio.to_thread(self.released.wait, 60)


@pytest.mark.parametrize(
    ("applied", "given", "said", "mode"),
    [
        ("before", None, ("", "ok"), "invoke"),
        ("before", "What should I cook?", ("What should I cook?", "ok"), "ainvoke"),
        ("during the run", None, ("", "ok"), "ainvoke"),
        ("during the run", "What should I cook?", ("What should I cook?", "ok"), "invoke"),
    ],
)
def test_words_of_a_run_that_broke_off_in_another_process_are_not_submitted_again(
    tmp_path, applied, given, said, mode
):
    saver, extractor = InMemorySaver(), WhenReleased()
    there = Diary(tmp_path / "diary", agent=extractor)
    (tmp_path / "link").symlink_to("diary")  # this process does not know that it is the same folder
    with Recording(there) as broken:
        with pytest.raises(Down):
            talk(agent_of(broken, Down(), checkpointer=saver), "I am a vegan.", THREAD, mode)

        @after_model
        def end_the_other(state, runtime):
            extractor.released.set()
            broken.close_sync()

        if applied == "before":
            end_the_other.after_model({}, None)
        with Recording(Diary(tmp_path / "link", agent="rules")) as writer:
            agent = agent_of(writer, OK, behind=[end_the_other], checkpointer=saver)
            talk(agent, given, THREAD, mode)
    assert broken.said == [("I am a vegan.", "")]
    assert writer.said == [said]


@pytest.mark.parametrize(
    ("given", "said"), [(None, []), ("What should I cook?", [("What should I cook?", "ok")])]
)
def test_words_of_an_agent_whose_graph_was_left_are_not_submitted_again(tmp_path, given, said):
    saver = InMemorySaver()
    link_diary(tmp_path)

    def graph(own):
        builder = StateGraph(MessagesState).add_node("agent", agent_of(own, OK))
        return builder.add_edge(START, "agent").compile(checkpointer=saver)

    asked = {"messages": [HumanMessage("I am a vegan.")]}
    with Recording(Diary(tmp_path / "diary", agent="rules")) as left:
        parts = graph(left).stream(asked, THREAD, stream_mode="updates", subgraphs=True)
        with closing(parts):  # LangGraph drops the agent's answer if a message follows
            next(part for _, part in parts if "DiaryMiddleware.after_agent" in part)
    with Recording(Diary(tmp_path / "link", agent="rules")) as writer:
        talk(graph(writer), given, THREAD)
    assert left.said == [("I am a vegan.", "ok")]
    assert writer.said == said


@either
@pytest.mark.parametrize("is_nested", [True, False])
def test_a_message_of_a_failed_run_that_is_sent_again_to_another_process_is_known(
    tmp_path, is_nested, mode
):
    saver, said = InMemorySaver(), []
    link_diary(tmp_path)
    for folder, answer in (("diary", Down()), ("link", OK)):
        with Recording(Diary(tmp_path / folder, agent="rules")) as own:
            agent = agent_of(own, answer, checkpointer=None if is_nested else saver)
            if is_nested:
                builder = StateGraph(MessagesState).add_node("agent", agent)
                agent = builder.add_edge(START, "agent").compile(checkpointer=saver)
            with suppress(Down):
                talk(agent, [HumanMessage("I am a vegan.", id="1")], THREAD, mode)
            said += own.said
    assert said == [("I am a vegan.", ""), ("", "ok")]


@either
def test_a_run_in_a_graph_does_not_wait_for_a_long_transaction(writer, mode, monkeypatch, caplog):
    engine = writer.diary.engine
    look_up = engine.done_operations
    monkeypatch.setattr(
        engine, "done_operations", lambda user, timeout: look_up(user, timeout / 100)
    )
    builder = StateGraph(MessagesState).add_node("agent", agent_of(writer, OK))
    agent = builder.add_edge(START, "agent").compile(checkpointer=InMemorySaver())
    with ThreadPoolExecutor() as pool, engine.backend.lock("alice", 10):
        assert pool.submit(talk, agent, "Hello", THREAD, mode).result(10)
    assert writer.said == [("Hello", "ok")]
    assert "a turn may be recorded twice: LockTimeout" in caplog.text


@either
@pytest.mark.parametrize("begins", ["__start__", "model"])
def test_a_replay_in_another_process_submits_its_answer_alone(tmp_path, begins, mode):
    saver = InMemorySaver()
    link_diary(tmp_path)
    with Recording(Diary(tmp_path / "diary", agent="rules")) as first:
        agent = agent_of(first, OK, checkpointer=saver)
        talk(agent, [HumanMessage("I am a vegan.", id="1")], THREAD, mode)
        past = next(one for one in agent.get_state_history(THREAD) if one.next == (begins,))
    with Recording(Diary(tmp_path / "link", agent="rules")) as writer:
        talk(agent_of(writer, DONE, checkpointer=saver), None, past.config, mode)
    assert first.said == [("I am a vegan.", "ok")]
    assert writer.said == [("", "done")]


class Broken(InMemorySaver):
    """A saver that fails once its writer has a turn."""

    writer: Any = None

    def put(self, *args, **more):
        return self.unless_submitted(super().put, *args, **more)

    def put_writes(self, *args, **more):
        return self.unless_submitted(super().put_writes, *args, **more)

    def unless_submitted(self, save, *args, **more):
        if self.writer is not None and self.writer.turns:
            raise Down
        return save(*args, **more)


def test_agents_of_a_graph_repeat_no_turn_of_another_process(tmp_path):
    saver = Broken()
    link_diary(tmp_path)

    def graph(own):
        agents = [("first", agent_of(own, OK)), ("second", agent_of(own, DONE))]
        builder = StateGraph(MessagesState).add_sequence(agents)
        return builder.add_edge(START, "first").compile(checkpointer=saver)

    with Recording(Diary(tmp_path / "diary", agent="rules")) as broken:
        saver.writer = broken
        with pytest.raises(Down):
            talk(graph(broken), "I am a vegan.", THREAD, durability="sync")
    saver.writer = None
    with Recording(Diary(tmp_path / "link", agent="rules")) as writer:
        talk(graph(writer), None, THREAD)
    assert broken.said == [("I am a vegan.", "ok")]
    assert writer.said == [("", "done")]


@either
def test_runs_that_break_off_in_two_processes_may_have_different_answers(tmp_path, mode):
    @tool
    def broken() -> str:
        """Fail."""
        raise Down

    saver, extractor = InMemorySaver(), WhenReleased()
    link_diary(tmp_path)
    part = calling(("broken", {})).model_copy(update={"content": "Let me look."})
    with (
        Recording(Diary(tmp_path / "diary", agent=extractor)) as first,
        Recording(Diary(tmp_path / "link", agent=extractor)) as second,
    ):
        for own, given, answer in ((first, "I am a vegan.", Down()), (second, None, part)):
            agent = agent_of(own, answer, tools=[broken], checkpointer=saver)
            with pytest.raises(Down):
                talk(agent, given, THREAD, mode)
        extractor.released.set()
    assert second.said == [("I am a vegan.", "Let me look.")]
    assert (first.stats()["failed"], second.stats()["failed"]) == (0, 0)


@either
def test_a_run_may_be_resumed_in_a_transaction_of_its_user(tmp_path, mode):
    saver = InMemorySaver()
    link_diary(tmp_path)
    with Recording(Diary(tmp_path / "diary", agent="rules")) as first, pytest.raises(Down):
        talk(agent_of(first, Down(), checkpointer=saver), "I am a vegan.", THREAD, mode)
    with Recording(Diary(tmp_path / "link", agent="rules", lock_timeout=1)) as second:
        agent = agent_of(second, OK, checkpointer=saver)
        with second.diary.user("alice").transaction():
            talk(agent, None, THREAD, mode)
    assert second.said == [("", "ok")]


def test_words_that_a_tool_got_before_a_second_failure_are_submitted(writer):
    agent = agent_of(
        writer, Down(), ASKS, Down(), OK, tools=[ask_user], checkpointer=InMemorySaver()
    )
    with pytest.raises(Down):
        talk(agent, "Book me a table.", THREAD)
    talk(agent, None, THREAD)
    with pytest.raises(Down):
        talk(agent, Command(resume="No walnuts."), THREAD)
    writer.flush()
    assert writer.said == [("Book me a table.", ""), ("No walnuts.", "")]
    assert writer.stats()["failed"] == 0


@either
@pytest.mark.parametrize("saver", [None, InMemorySaver])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_drained_run_is_submitted_if_no_checkpoint_keeps_it(writer, is_nested, saver, mode):
    control = pytest.importorskip("langgraph.runtime").RunControl()
    errors = pytest.importorskip("langgraph.errors")

    @before_model
    def drain(state, runtime):
        control.request_drain()

    kept = {"checkpointer": saver and saver()}
    agent: Any = agent_of(writer, OK, behind=[drain], **({} if is_nested else kept))
    if is_nested:
        agent = (
            StateGraph(MessagesState).add_node(agent).add_edge(START, agent.name).compile(**kept)
        )
    with pytest.raises(errors.GraphDrained):
        talk(agent, "I am a vegan.", THREAD, mode, control=control)
    assert ended(writer) == ([] if saver else [("aborted", "I am a vegan.", "")])


@endings_without_answer
def test_words_of_a_turn_that_ended_are_not_submitted_by_another_process(answer, behind):
    saver, said = InMemorySaver(), []
    for text, reply in (("I am Ann.", answer), ("Hello?", OK)):
        with Recording(Diary("memory:", agent="rules")) as own:  # it knows of no turn before
            talk(agent_of(own, reply, behind=behind, checkpointer=saver), text, THREAD)
            said += [turn.user_msg for turn in own.turns]
    assert said == ["I am Ann.", "Hello?"]


@either
@pytest.mark.parametrize("behind", [[], [hang_up]], ids=["answer", "call that is not run"])
def test_a_run_that_no_user_began_submits_its_answer_alone_in_another_process(behind, mode):
    saver, said = InMemorySaver(), []
    report = HumanMessage("The task is done.", additional_kwargs={"lc_source": "task"})
    first = NOOP if behind else AIMessage("Started.")
    runs = [(HumanMessage("I am Ann."), first), (report, OK), (report, OK), ("Bye.", OK)]
    for message, reply in runs:
        with Recording(Diary("memory:", agent="rules")) as own:  # it knows of no turn before
            agent = agent_of(own, reply, behind=behind, checkpointer=saver)
            talk(agent, [message], THREAD, mode)
            said += [(*own.said[-1], own.turns[-1].earlier or ())]
    assert [one[:2] for one in said] == [
        ("I am Ann.", first.text), ("", "ok"), ("", "ok"), ("Bye.", "ok"),
    ]  # fmt: skip
    assert said[1][2] == (("I am Ann.", first.text),)


def test_an_edited_question_is_submitted_though_its_answer_stays(writer):
    agent = agent_of(writer, OK, checkpointer=InMemorySaver())
    for text in ("I am Ann.", "I am Anna."):
        talk(agent, [HumanMessage(text, id="q")], THREAD)
    assert [one[0] for one in writer.said] == ["I am Ann.", "I am Anna."]


def test_messages_left_unanswered_by_another_process_join_the_turn(writer):
    saver = InMemorySaver()
    other = create_agent(Scripted(answers=[Down()]), [noop], checkpointer=saver)
    with pytest.raises(Down):
        talk(other, "I am a vegan.", THREAD)
    talk(agent_of(writer, OK, checkpointer=saver), "What should I cook?", THREAD)
    assert writer.said == [("I am a vegan.\n\nWhat should I cook?", "ok")]


def test_the_turn_includes_earlier_exchanges(writer):
    agent = agent_of(writer, NOOP, AIMessage("Any allergies?"), OK, checkpointer=InMemorySaver())
    talk(agent, [HumanMessage("Hi."), HumanMessage("Book me a table.")], THREAD)
    talk(agent, "Yes, peanuts.", THREAD)
    assert [turn.earlier for turn in writer.turns] == [
        None,
        (("Hi.\n\nBook me a table.", "Any allergies?"),),
    ]


def test_the_turn_includes_a_question_that_began_the_conversation(writer):
    agent = agent_of(writer, OK)
    talk(agent, [AIMessage("Hi. Do you have allergies?"), HumanMessage("Yes, peanuts.")])
    assert [turn.earlier for turn in writer.turns] == [(("", "Hi. Do you have allergies?"),)]
    assert writer.flush(20)
    assert "peanuts" in writer.diary.user("alice").document("preferences")


def test_a_long_thread_is_read_once_in_a_turn(writer):
    read: list[str] = []

    class Answer(AIMessage):
        @property
        def text(self) -> Any:
            read.append(super().text)
            return read[-1]

    thread = [one for n in range(200) for one in (HumanMessage(f"q{n}"), Answer(f"a{n}"))]
    talk(agent_of(writer, OK), [*thread, HumanMessage("What now?")])
    assert writer.said == [("What now?", "ok")]
    assert len(read) < 1.2 * 200


# Replays, and clients that keep no ids


def test_a_replay_from_the_first_checkpoint_is_one_turn(writer):
    agent = agent_of(writer, OK, checkpointer=InMemorySaver())
    talk(agent, {"messages": [{"role": "user", "content": "I like rain."}]}, THREAD)
    first = list(agent.get_state_history(THREAD))[-1]
    talk(agent, None, first.config)
    assert len({turn.operation_id for turn in writer.turns}) == 1
    assert writer.flush(20)
    assert writer.diary.user("alice").conversations()["t1"].turns == 1


@pytest.mark.parametrize("goes_on", ["resume", "next message"])
def test_a_replay_that_is_interrupted_repeats_no_words(writer, goes_on):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    answers = [OK, NOOP, AIMessage("fine")]
    agent = agent_of(writer, *answers, behind=[approval], checkpointer=InMemorySaver())
    talk(agent, "I like rain.", THREAD)
    first = list(agent.get_state_history(THREAD))[-1]
    talk(agent, None, first.config)
    if goes_on == "resume":
        talk(agent, Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
        assert writer.said == [("I like rain.", "ok"), ("", "fine")]
    else:
        talk(agent, "And tea.", THREAD)
        assert writer.said == [("I like rain.", "ok"), ("And tea.", "fine")]


@either
def test_a_replay_behind_a_pending_approval_repeats_no_words(writer, mode):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    agent = agent_of(writer, NOOP, OK, behind=[approval], checkpointer=InMemorySaver())
    talk(agent, "I am a vegan.", THREAD, mode)
    talk(agent, "What should I cook?", THREAD, mode)
    begun = [one for one in agent.get_state_history(THREAD) if one.next == ("__start__",)]
    talk(agent, None, begun[0].config, mode)
    assert writer.said == [("I am a vegan.\n\nWhat should I cook?", "ok"), ("", "ok")]


def test_a_replay_of_a_replay_repeats_no_words(writer):
    answers = [AIMessage(text) for text in ("one", "two", "three", "four")]
    team = StateGraph(MessagesState).add_node("agent", agent_of(writer, *answers))
    graph = team.add_edge(START, "agent").compile(checkpointer=InMemorySaver())
    talk(graph, "I like rain.", THREAD)
    for _ in range(3):
        begun = [one for one in graph.get_state_history(THREAD) if one.next == ("__start__",)]
        talk(graph, None, begun[0].config)
    assert writer.said == [("I like rain.", "one"), ("", "two"), ("", "three"), ("", "four")]


def test_equal_text_later_in_a_thread_is_another_turn(writer):
    agent = agent_of(writer, OK, checkpointer=InMemorySaver())
    for _ in range(3):
        talk(agent, "Thanks.", THREAD)
    assert len({turn.operation_id for turn in writer.turns}) == 3


@pytest.mark.parametrize("names_checkpoint", [False, True])
def test_equal_turns_of_a_thread_that_loses_old_messages_are_kept(writer, names_checkpoint):
    @after_model
    def keep_the_last_two(state, runtime):
        return {"messages": [RemoveMessage(each.id) for each in state["messages"][:-2]]}

    agent = agent_of(writer, OK, behind=[keep_the_last_two], checkpointer=InMemorySaver())
    config = THREAD
    for _ in range(4):
        talk(agent, "I took my pills.", config)
        config = agent.get_state(THREAD).config if names_checkpoint else THREAD
    assert writer.said == [("I took my pills.", "ok")] * 4
    assert writer.flush(20)
    assert writer.diary.user("alice").conversations()["t1"].turns == 4


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_client_without_ids_keeps_one_session(writer, is_made_anew):
    agent = agent_of(writer, OK)
    messages = []
    for text in ("Hello.", "I like rain.", "Bye."):
        agent = agent_of(writer, OK) if is_made_anew else agent  # as a host does for each request
        messages.append({"role": "user", "content": text})
        answer = talk(agent, {"messages": messages})["messages"][-1]
        messages.append({"role": "assistant", "content": answer.text})
    assert len({turn.session_id for turn in writer.turns}) == 1
    talk(agent, {"messages": [{"role": "user", "content": "Hello."}]})
    assert len({turn.session_id for turn in writer.turns}) == 2


def test_a_client_without_ids_keeps_its_session_across_processes(writer):
    messages = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "ok"}]
    for text in ("I like rain.", "Bye."):
        messages.append({"role": "user", "content": text})
        talk(agent_of(writer, OK), {"messages": messages})
        messages.append({"role": "assistant", "content": "ok"})
    assert len({turn.session_id for turn in writer.turns}) == 1


def test_a_client_without_ids_keeps_its_session_when_its_host_shows_memory(writer):
    agent, messages = agent_of(writer, OK), []
    for text in ("Hello.", "Bye."):
        shown = {"role": "user", "content": f"{SHOWN}\n\n{text}"}  # in the last message only
        answer = talk(agent, {"messages": [*messages, shown]})["messages"][-1]
        messages += [
            {"role": "user", "content": text},
            {"role": "assistant", "content": answer.text},
        ]
    assert writer.said == [("Hello.", "ok"), ("Bye.", "ok")]
    assert len({turn.session_id for turn in writer.turns}) == 1


# Runs that do not end well


@tool
def broken() -> str:
    """Fail."""
    raise Down


@pytest.mark.parametrize(
    ("mode", "saver"),
    [("invoke", None), ("ainvoke", InMemorySaver), ("stream", InMemorySaver), ("astream", None)],
)
def test_a_turn_with_a_failing_tool_is_submitted(writer, mode, saver):
    call = AIMessage("Let me see.", tool_calls=[{"name": "broken", "args": {}, "id": "1"}])
    agent = agent_of(writer, call, tools=[broken], checkpointer=saver and saver())
    with pytest.raises(Down):
        talk(agent, "I like rain.", THREAD, mode)
    assert ended(writer) == [("failed", "I like rain.", "Let me see.")]


@either
def test_a_tool_that_fails_after_its_approval_ends_the_turn(writer, mode):
    approval = HumanInTheLoopMiddleware(interrupt_on={"broken": True})
    call = calling(("broken", {}))
    saver = InMemorySaver()
    agent = agent_of(writer, call, tools=[broken], behind=[approval], checkpointer=saver)
    talk(agent, "I like rain.", THREAD, mode)
    with pytest.raises(Down):
        talk(agent, Command(resume={"decisions": [{"type": "approve"}]}), THREAD, mode)
    assert ended(writer) == [("failed", "I like rain.", "")]


@either
@pytest.mark.parametrize("called", ["noop", "remember"])
def test_the_memory_is_shown_behind_an_approved_call(writer, called, mode):
    writer.diary.user("alice").upsert_preference("likes", "rain")
    approval = HumanInTheLoopMiddleware(interrupt_on={called: True})
    call = calling((called, {} if called == "noop" else {"text": "snow", "category": "likes"}))
    model = Scripted(answers=[call, OK])
    memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer, tools="all")
    agent = create_agent(model, [noop], middleware=[memory, approval], checkpointer=InMemorySaver())
    talk(agent, "What is new?", THREAD, mode)
    talk(agent, Command(resume={"decisions": [{"type": "approve"}]}), THREAD, mode)
    assert [len(memories(asked)) for asked in model.asked] == [1, 1]


@either
@pytest.mark.parametrize("limit", [3, 4, 5])
def test_a_turn_that_reaches_the_recursion_limit_is_submitted(writer, mode, limit):
    agent = agent_of(writer, NOOP)
    with pytest.raises(GraphRecursionError):
        talk(agent, "I like rain.", {"recursion_limit": limit}, mode)
    assert ended(writer) == [("failed", "I like rain.", "")]


def test_a_turn_that_is_cancelled_while_it_is_stored_is_submitted_once(diary):
    class Slow(Recording):
        async def submit_turn(self, turn):
            await super().submit_turn(turn)
            task.cancel()
            await asyncio.sleep(10)

    async def stop_it():
        nonlocal task
        given = {"messages": [HumanMessage("I like tea.")]}
        task = asyncio.create_task(agent.ainvoke(given, THREAD))
        with pytest.raises(asyncio.CancelledError):
            await task

    task = None
    with Slow(diary) as writer:
        agent = agent_of(writer, OK, checkpointer=InMemorySaver())
        asyncio.run(stop_it())
        talk(agent, "I like rain.", THREAD)
        assert list(dict.fromkeys(writer.said)) == [("I like tea.", "ok"), ("I like rain.", "ok")]


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_a_turn_that_finds_the_queue_full_is_kept_and_holds_no_thread_of_the_loop(tmp_path, status):
    gate = threading.Event()

    def wait(message, *, deps):
        assert gate.wait(60)

    async def end_all(agents):
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        given = [{"messages": [HumanMessage(f"I like tea {number}.")]} for number in range(6)]
        runs = [asyncio.create_task(agents[one["messages"][0].text].ainvoke(one)) for one in given]
        if status == "cancelled":
            while len(submitted) < len(runs):  # noqa: ASYNC110 - four of them find the queue full
                await asyncio.sleep(0.01)
            for one in runs:
                one.cancel()
        await asyncio.wait(runs)
        try:
            await asyncio.wait_for(asyncio.to_thread(int), 5)
        finally:
            gate.set()

    class Noting(MemoryWriter):
        async def submit_turn(self, turn):
            submitted.append(turn)
            return await super().submit_turn(turn)

    submitted, diary = [], Diary(tmp_path, agent=wait, episodes=True)
    with Noting(diary, workers=1, qsize=1) as writer:
        ok = OK if status == "cancelled" else Down()
        asyncio.run(end_all({f"I like tea {n}.": agent_of(writer, ok) for n in range(6)}))
    said = [one.input for one in diary.user("alice").episodes()]
    assert sorted(said) == [f"I like tea {number}." for number in range(6)]


def test_a_turn_of_an_abandoned_sync_stream_is_submitted(writer):
    stream = agent_of(writer, NOOP, OK).stream(
        {"messages": [HumanMessage("I like rain.")]}, stream_mode="updates"
    )
    assert any("model" in part for part in stream)  # stops at the first answer
    stream.close()
    assert ended(writer) == [("aborted", "I like rain.", "")]


@pytest.mark.parametrize("number", range(7))
def test_a_stream_may_be_collected_while_another_run_is_recorded(writer, monkeypatch, number):
    agent = agent_of(writer, OK)

    def run():
        agent.invoke({"messages": [HumanMessage("I like sun.")]}, THREAD)

    gc.disable()
    try:
        cycle: list[Any] = [
            agent.stream({"messages": [HumanMessage("I like rain.")]}, stream_mode="updates")
        ]
        assert any("model" in part for part in cycle[0])
        cycle.append(cycle)
        del cycle
        # The stream is young, and all else takes long.
        was_called = run_within_keep(monkeypatch, number, lambda: gc.collect(0))
        runner = threading.Thread(target=run, daemon=True)
        runner.start()
        runner.join(30)
        assert not runner.is_alive(), "a thread waits for itself"
    finally:
        gc.enable()
    assert was_called()
    said = {"I like rain.": "aborted", "I like sun.": "completed"}
    assert {user: status for status, user, _ in ended(writer)} == said


def test_a_closing_writer_gets_the_turn_of_a_stream_in_a_reference_cycle(writer):
    given = {"messages": [HumanMessage("I like rain.")]}
    gc.disable()
    try:
        # Web frameworks leave the stream of a client that has gone like this.
        cycle: list[Any] = [agent_of(writer, NOOP, OK).stream(given, stream_mode="updates")]
        assert any("model" in part for part in cycle[0])
        cycle.append(cycle)
        del cycle
        writer.close_sync()
    finally:
        gc.enable()
    assert ended(writer) == [("aborted", "I like rain.", "")]
    assert writer.stats()["completed"] == 1


@pytest.mark.parametrize("is_async", [True, False])
def test_a_writer_that_waits_gets_the_turn_of_a_stream_in_a_reference_cycle(writer, is_async):
    async def leave():
        agent = agent_of(writer, NOOP, OK)
        given = {"messages": [HumanMessage("I like rain.")]}
        closing = None
        if is_async:
            cycle: list[Any] = [agent.astream(given, stream_mode="updates")]
            async for part in cycle[0]:
                if "model" in part:
                    break
        else:
            cycle = [agent.stream(given, stream_mode="updates")]
            assert any("model" in part for part in cycle[0])
            closing = asyncio.create_task(writer.close())
            await asyncio.wait([closing], timeout=0.3)
        cycle.append(cycle)
        del cycle
        await (closing or writer.close())

    gc.disable()
    try:
        asyncio.run(leave())
    finally:
        gc.enable()
    assert ended(writer) == [("aborted", "I like rain.", "")]
    assert writer.stats()["completed"] == 1


def test_a_turn_of_an_abandoned_async_stream_is_submitted(writer):
    async def leave():
        agent = agent_of(writer, NOOP, OK)
        given = {"messages": [HumanMessage("I like rain.")]}
        async with aclosing(agent.astream(given, stream_mode="updates")) as stream:
            async for part in stream:
                if "model" in part:
                    return

    asyncio.run(leave())
    assert [(turn.status, turn.user_msg) for turn in writer.turns] == [("aborted", "I like rain.")]


def test_a_cancelled_tool_leaves_nothing_in_the_tree_of_runs(writer):
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        return str(await asyncio.Event().wait())

    async def main():
        agent = agent_of(writer, calling(("wait", {})), tools=[wait])
        running = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("Hello")]}))
        await asyncio.wait_for(begun.wait(), 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    def kept():
        return {name: len(each) for name, each in vars(endings()).items() if isinstance(each, dict)}

    before = kept()
    asyncio.run(main())
    assert ended(writer) == [("cancelled", "Hello", "")]
    assert kept() == before


def test_a_graph_may_get_a_further_watcher_while_the_others_see_its_messages():
    tree, graph, node, given = Endings(), uuid4(), uuid4(), {"messages": ["Hello"]}
    seen = []

    class Watched:
        def see(self, messages):
            seen.append(messages)
            watch()  # as another thread does

    def watch():
        config = {"callbacks": SimpleNamespace(parent_run_id=node)}
        tree.watch(config, object(), Watched(), seen.append)

    tree.on_chain_start({}, {}, run_id=graph)
    tree.on_chain_start({}, given, run_id=node, parent_run_id=graph)
    watch()
    tree.on_chain_start({}, given, run_id=uuid4(), parent_run_id=graph)
    tree.on_chain_error(OSError(), run_id=node)
    assert seen == [["Hello"]] * 3


@either
def test_a_retry_in_front_gives_one_turn(writer, mode):
    retry = ModelRetryMiddleware(max_retries=3, initial_delay=0, jitter=False)
    talk(agent_of(writer, Down(), Down(), OK, before=[retry]), "Hello", mode=mode)
    assert ended(writer) == [("completed", "Hello", "ok")]


@either
@pytest.mark.parametrize(("config", "saver"), [({}, None), (THREAD, None), (THREAD, InMemorySaver)])
def test_a_retried_agent_records_the_words_once(writer, config, saver, mode):
    agent = agent_of(writer, Down(), OK, OK, checkpointer=saver and saver())
    retried = agent.with_retry(wait_exponential_jitter=False, stop_after_attempt=2)
    for _ in range(2):  # the same words in another run are another turn
        talk(retried, {"messages": [("user", "Hello")]}, config, mode)
    first = [("failed", "Hello", ""), ("completed", "", "ok")]
    assert ended(writer) == [*first, ("completed", "Hello", "ok")]
    assert len({turn.session_id for turn in writer.turns[:2]}) == 1


@either
@pytest.mark.parametrize(("kind", "config"), [("fallback", THREAD), ("node", {})])
def test_an_agent_that_follows_a_failed_one_records_the_words_once(writer, kind, config, mode):
    first, second = agent_of(writer, Down()), agent_of(writer, OK)
    if kind == "fallback":
        agent = first.with_fallbacks([second])
    else:  # its messages have new ids in each attempt
        agents = iter([first, second, first, second])

        def answer(state):
            return {"messages": next(agents).invoke({"messages": [("user", "Hello")]})["messages"]}

        builder = StateGraph(MessagesState).add_edge(START, "answer")
        policy = RetryPolicy(initial_interval=0.01, jitter=False, retry_on=Down)
        agent = builder.add_node("answer", answer, retry_policy=policy).compile()
    for _ in range(2):  # the same words in another run are another turn
        talk(agent, {"messages": [("user", "Hello")]}, config, mode)
    assert ended(writer) == [("failed", "Hello", ""), ("completed", "", "ok")] * 2
    assert len({turn.session_id for turn in writer.turns}) == (1 if config else 2)


@pytest.mark.parametrize(
    ("then", "said"),
    [(Command(resume={"decisions": [{"type": "approve"}]}), ""), ("I'm back.", "I'm back.")],
)
def test_a_retry_that_is_interrupted_repeats_no_words(writer, then, said):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    agent = agent_of(writer, Down(), NOOP, OK, behind=[approval], checkpointer=InMemorySaver())
    retried = agent.with_retry(wait_exponential_jitter=False, stop_after_attempt=2)
    talk(retried, {"messages": [("user", "Hello")]}, THREAD)
    talk(agent, then, THREAD)
    assert ended(writer) == [("failed", "Hello", ""), ("completed", said, "ok")]


def test_equal_words_of_a_job_over_threads_are_a_turn_in_each(writer):
    first, second = agent_of(writer, Down()), agent_of(writer, OK)

    def job(_):
        for thread, agent in [("t1", first), ("t2", second), ("t3", second)]:
            with suppress(Down):
                talk(agent, "Hello", {"configurable": {"thread_id": thread}})

    RunnableLambda(job).invoke({})
    assert [(turn.session_id, turn.user_msg) for turn in writer.turns] == [
        ("t1", "Hello"), ("t2", "Hello"), ("t3", "Hello"),
    ]  # fmt: skip


@pytest.mark.parametrize("keeps_thread", [False, True])
def test_equal_words_in_one_job_after_a_retry_are_a_turn_of_their_own(writer, keeps_thread):
    agent = agent_of(writer, Down(), OK, OK)

    def job(_):
        thread = []
        for text in ["yes", "yes", "yes"]:
            with suppress(Down):
                said = talk(agent, [*thread, HumanMessage(text)], THREAD)["messages"]
                thread = said if keeps_thread else []

    RunnableLambda(job).invoke({})
    retried = [("failed", "yes", ""), ("completed", "", "ok")]
    assert ended(writer) == [*retried, ("completed", "yes", "ok")]


def test_a_chat_goes_on_in_the_session_of_its_first_attempt(writer):
    agent = agent_of(writer, Down(), OK, OK)
    retried = agent.with_retry(wait_exponential_jitter=False, stop_after_attempt=2)
    said = talk(retried, {"messages": [("user", "Hello")]})["messages"]
    talk(agent, [*said, HumanMessage("Again")])
    assert len({turn.session_id for turn in writer.turns}) == 1


def test_a_session_of_one_user_names_no_chat_of_another(writer):
    memory = DiaryMiddleware(writer.diary, writer=writer)
    agent = create_agent(Scripted(answers=[OK, OK]), middleware=[memory])
    given = {"messages": [HumanMessage("Hello", id="m1")]}
    agent.invoke(given, {"configurable": {"user_id": "alice", "session_id": "private"}})
    agent.invoke(given, {"configurable": {"user_id": "bob"}})
    assert [turn.session_id for turn in writer.turns] == ["private", "m1"]


@either
def test_a_fallback_in_front_gives_one_turn(writer, mode):
    fallback = ModelFallbackMiddleware(Scripted(answers=[OK]))
    talk(agent_of(writer, Down(), before=[fallback]), "Hello", mode=mode)
    assert ended(writer) == [("completed", "Hello", "ok")]


class Rejecting(AgentMiddleware):
    """Fails after each answer, as LangChain's `ModelRefusalMiddleware` does after a refusal."""

    def wrap_model_call(self, request, handler):
        handler(request)
        raise Down

    async def awrap_model_call(self, request, handler):
        await handler(request)
        raise Down


@both
def test_an_answer_that_a_middleware_in_front_rejects_is_not_recorded(writer, mode):
    agent = agent_of(writer, AIMessage("I cannot."), before=[Rejecting()])
    with pytest.raises(Down):
        talk(agent, "How do I pick a lock?", mode=mode)
    assert ended(writer) == [("failed", "How do I pick a lock?", "")]


def test_an_answer_before_a_cancelled_middleware_in_front_is_recorded(writer):
    answered = asyncio.Event()

    class Checking(AgentMiddleware):
        async def awrap_model_call(self, request, handler):
            await handler(request)  # a reader of the stream has seen the answer
            answered.set()
            return await asyncio.Event().wait()

    async def main():
        agent = agent_of(writer, OK, before=[Checking()])
        running = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("Hello")]}))
        await asyncio.wait_for(answered.wait(), 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert ended(writer) == [("cancelled", "Hello", "ok")]


# Words that another middleware redacts


@either
@pytest.mark.parametrize("is_resumed", [True, False])
def test_words_that_were_redacted_and_then_summarised_stay_redacted(writer, is_resumed, mode):
    summary = Scripted(answers=[AIMessage("They talked.")])
    saver, answers = InMemorySaver(), [NOOP, NOOP, OK]
    team = Recording(Diary("memory:", agent="rules"))

    def agent():  # another process has another middleware
        behind = [
            DiaryMiddleware(team.diary, user_id="blue", writer=team, name="team"),
            PIIMiddleware("email"),
            SummarizationMiddleware(summary, trigger=("messages", 3), keep=("messages", 1)),
            *([HumanInTheLoopMiddleware(interrupt_on={"noop": True})] if is_resumed else ()),
        ]
        return agent_of(writer, *answers, behind=behind, checkpointer=saver)

    talk(agent(), "I am ann@example.com.", THREAD, mode)
    for _ in range(2 * is_resumed):
        answers.pop(0)
        talk(agent(), Command(resume={"decisions": [{"type": "approve"}]}), THREAD, mode)
    assert writer.said == team.said == [("I am [REDACTED_EMAIL].", "ok")]
    assert "ann@" not in str(agent().get_state(THREAD).values)
    team.close_sync()


class Retrieval(AgentMiddleware):
    """Puts documents around the user's words, as in LangChain's tutorial."""

    def before_model(self, state, runtime):
        last = state["messages"][-1]
        found = f"Documents: I like rain.\n\n{last.text}\n\nI like snow."
        return {"messages": [last.model_copy(update={"content": found})]}


@either
@pytest.mark.parametrize("is_first", [True, False])
def test_documents_that_a_middleware_puts_around_the_words_are_no_part_of_them(writer, is_first, mode):  # fmt: skip
    saver, behind = InMemorySaver(), [] if is_first else [Retrieval()]
    review = HumanInTheLoopMiddleware(interrupt_on={"noop": True})

    def agent(*answers):  # another process has another middleware
        behind_all = [*behind, review]
        before = [Retrieval()] if is_first else []
        return agent_of(writer, *answers, before=before, behind=behind_all, checkpointer=saver)

    with suppress(Down):
        talk(agent(Down()), "I like tea.", THREAD, mode)
    assert writer.said == [("I like tea.", "")]
    talk(agent(NOOP), "I like salt.", THREAD, mode)
    talk(agent(OK), Command(resume={"decisions": [{"type": "approve"}]}), THREAD, mode)
    talk(agent(NOOP), "I like rice.", THREAD, mode)
    talk(agent(OK), "I like figs.", THREAD, mode)
    assert writer.said[1:] == [("I like salt.", "ok"), ("I like rice.\n\nI like figs.", "ok")]


def test_words_with_documents_around_them_are_submitted_once_by_the_agents_of_a_graph(writer):
    builder = StateGraph(MessagesState)
    agents = [agent_of(writer, OK, behind=[Retrieval()]), agent_of(writer, DONE)]
    builder.add_sequence([("first", agents[0]), ("second", agents[1])]).add_edge(START, "first")
    talk(builder.compile(), "I like tea.", THREAD)
    assert writer.said == [("I like tea.", "ok"), ("", "done")]


@either
def test_words_in_documents_are_submitted_once_by_agents_that_replay_an_interrupted_run(
    writer, mode
):
    review = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    first = agent_of(writer, NOOP, OK, behind=[Retrieval(), review])
    builder = StateGraph(MessagesState)
    builder.add_sequence([("first", first), ("second", agent_of(writer, DONE))])
    graph = builder.add_edge(START, "first").compile(checkpointer=InMemorySaver())
    talk(graph, "I like tea.", THREAD, mode)
    talk(graph, None, [*graph.get_state_history(THREAD)][-1].config, mode)
    assert writer.said == [("I like tea.", "ok"), ("", "done")]


def test_a_message_that_is_written_again_during_an_approval_is_submitted_as_it_is_now(writer):
    behind = [HumanInTheLoopMiddleware(interrupt_on={"noop": True})]
    agent = agent_of(writer, NOOP, OK, behind=behind, checkpointer=InMemorySaver())
    talk(agent, [HumanMessage("I like tea.", id="1")], THREAD)
    talk(agent, [HumanMessage("I like tea. I like rice.", id="1")], THREAD)
    assert writer.said == [("I like tea. I like rice.", "ok")]


@either
def test_an_unanswered_message_is_submitted_with_what_was_added_to_it(mode):
    saver = InMemorySaver()

    def run(answer, *given):
        with Recording(Diary("memory:", agent="rules")) as own:  # as another process
            review = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
            agent = agent_of(own, answer, behind=[Retrieval(), review], checkpointer=saver)
            talk(agent, [*given], THREAD, mode)
            return own.said

    run(NOOP, HumanMessage("I like tea.", id="1"))
    run(NOOP, HumanMessage("I like tea. I like rice.", id="1"), HumanMessage("Hello?", id="2"))
    said = run(OK, HumanMessage("Again: hello?", id="3"))
    assert said == [("I like tea. I like rice.\n\nHello?\n\nAgain: hello?", "ok")]


@either
def test_words_that_the_host_adds_while_a_tool_waits_are_submitted(writer, mode):
    waiting = {"checkpointer": InMemorySaver(), "interrupt_before": ["tools"]}
    agent = agent_of(writer, NOOP, OK, behind=[Retrieval()], **waiting)
    asked = talk(agent, "I like tea.", THREAD, mode)["messages"][0]
    more = HumanMessage("I like tea. I like rice.", id=asked.id)
    agent.update_state(THREAD, {"messages": [more]})
    talk(agent, None, THREAD, mode)
    assert writer.said == [("I like tea. I like rice.", "ok")]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("part", ["_chats", "_submitted"])
def test_a_child_that_is_forked_during_a_run_of_another_thread_runs_agents(writer, part):
    agent = agent_of(writer, OK)
    memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer)
    is_held, may_end = threading.Event(), threading.Event()

    def hold():
        with getattr(memory, part)._guard:
            is_held.set()
            may_end.wait(30)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        is_held.wait()
        child = os.fork()
        if not child:
            signal.alarm(20)
            talk(agent, "I like rain.")
            os._exit(0)
        may_end.set()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("answer", [OK, Down()], ids=["answered", "failed"])
def test_runs_at_once_with_one_run_id_are_kept_apart(diary, writer, answer):
    both_begun = threading.Barrier(2)

    @before_model
    def meet(state, runtime):
        both_begun.wait(30)

    model = Scripted(answers=[answer, answer, OK])
    memory = DiaryMiddleware(diary, writer=writer)
    agent = create_agent(model, middleware=[memory, meet], checkpointer=InMemorySaver())
    users, run_id = ("alice", "bob"), uuid4()
    for user in users:
        diary.user(user).upsert_preference("likes", f"tea of {user}")

    def say(user, text):
        config = {"run_id": run_id, "configurable": {"user_id": user, "thread_id": user}}
        with suppress(Down):
            agent.invoke({"messages": [f"{user}: {text}"]}, config)

    for text in ("Hello.", "Are you there?"):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(say, users, [text] * 2))
    assert len(model.asked) == 4
    for shown in map(str, model.asked):
        assert [f"tea of {user}" in shown for user in users] == [
            f"{user}: Hello." in shown for user in users
        ]
    said = {user: [] for user in users}
    for turn in writer.turns:
        said[turn.user_id] += turn.user_msg.split("\n\n")
    assert said == {user: [f"{user}: Hello.", f"{user}: Are you there?"] for user in users}


def test_a_sub_agent_with_the_run_id_of_the_run_around_it_is_not_submitted(writer):
    agent, run_id = agent_of(writer, OK), uuid4()

    @tool
    def ask() -> str:
        """Ask the sub-agent."""
        talk(agent, "Written by a model.", {"run_id": run_id})
        return "done"

    graph = StateGraph(MessagesState).add_node("ask", lambda _: ask.invoke({}) and {})
    graph.add_edge(START, "ask").compile().invoke({"messages": []}, {"run_id": run_id})
    assert writer.turns == []


@pytest.mark.parametrize(
    "notes",
    [
        "x",
        {"DiaryMiddleware": {}},
        {"DiaryMiddleware": {"unanswered": {"1": {}}, "ended": {}}},
        {"DiaryMiddleware": {"unanswered": {}, "ended": "x"}},
    ],
    ids=str,
)
def test_an_update_of_the_notes_is_refused_and_later_runs_succeed(writer, notes):
    agent = agent_of(writer, OK, OK, checkpointer=InMemorySaver())
    talk(agent, "I like tea.", THREAD, "sync")
    with pytest.raises(InvalidValue, match="diary_notes: only the middleware"):
        agent.update_state(THREAD, {"diary_notes": notes})
    agent.update_state(
        THREAD, {"diary_notes": {"__overwrite__": notes}}
    )  # not checked by LangGraph
    talk(agent, "I like rice.", THREAD, "sync")
    assert writer.said == [("I like tea.", "ok"), ("I like rice.", "ok")]


@either
def test_documents_in_a_message_that_the_client_sends_back_are_no_part_of_the_words(writer, mode):
    review = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    behind = [Retrieval(), review]
    agent = agent_of(writer, NOOP, OK, behind=behind, checkpointer=InMemorySaver())
    thread = talk(agent, "I like tea.", THREAD, mode)["messages"]
    talk(agent, [*thread, HumanMessage("I like rice.")], THREAD, mode)
    assert writer.said == [("I like tea.\n\nI like rice.", "ok")]


@either
def test_words_with_documents_are_submitted_once_if_a_graph_of_agents_is_resumed(writer, mode):
    control = pytest.importorskip("langgraph.runtime").RunControl()
    drained = pytest.importorskip("langgraph.errors").GraphDrained

    @after_model
    def drain(state, runtime):
        control.request_drain()

    first = agent_of(writer, OK, behind=[Retrieval(), drain])
    builder = StateGraph(MessagesState)
    builder.add_sequence([("first", first), ("second", agent_of(writer, DONE))])
    graph = builder.add_edge(START, "first").compile(checkpointer=InMemorySaver())
    with pytest.raises(drained):
        talk(graph, "I like tea.", THREAD, mode, control=control)
    talk(graph, None, THREAD, mode)
    assert writer.said == [("I like tea.", "ok"), ("", "done")]


def test_an_answer_that_was_redacted_before_its_tool_failed_stays_redacted(writer):
    answer = AIMessage(
        "To ann@example.com.", tool_calls=[{"name": "broken", "args": {}, "id": "1"}]
    )
    behind = [PIIMiddleware("email", apply_to_output=True)]
    with pytest.raises(Down):
        talk(agent_of(writer, answer, tools=[broken], behind=behind), "Write.")
    assert ended(writer) == [("failed", "Write.", "To [REDACTED_EMAIL].")]


@either
@pytest.mark.parametrize("place", ["before_model", "wrap_model_call"])
def test_redacted_words_of_a_run_without_a_model_call_stay_redacted(writer, place, mode):
    @before_model
    def check(state, runtime):
        raise Down

    select = LLMToolSelectorMiddleware(model=Scripted(answers=[Down()]))
    fails = check if place == "before_model" else select
    agent = agent_of(writer, OK, before=[PIIMiddleware("email"), fails])
    with pytest.raises(Down):
        talk(agent, "I am ann@example.com.", mode=mode)
    assert ended(writer) == [("failed", "I am [REDACTED_EMAIL].", "")]


@either
def test_a_redacted_answer_of_a_run_that_fails_behind_it_stays_redacted(writer, mode):
    limit = ToolCallLimitMiddleware(run_limit=1, exit_behavior="error")
    answer = calling(("noop", {}), ("noop", {})).model_copy(
        update={"content": "To ann@example.com."}
    )
    behind = [limit, PIIMiddleware("email", apply_to_output=True)]
    with pytest.raises(ToolCallLimitExceededError):
        talk(agent_of(writer, answer, behind=behind), "Write.", mode=mode)
    assert ended(writer) == [("failed", "Write.", "To [REDACTED_EMAIL].")]


@either
def test_redacted_words_of_a_failed_run_within_a_graph_are_submitted_once(writer, mode):
    agent = agent_of(writer, Down(), OK, behind=[PIIMiddleware("email")])
    builder = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent")
    graph = builder.compile(checkpointer=InMemorySaver())
    with pytest.raises(Down):
        talk(graph, "I am ann@example.com.", THREAD, mode)
    talk(graph, "Hello?", THREAD, mode)
    assert ended(writer) == [
        ("failed", "I am [REDACTED_EMAIL].", ""),
        ("completed", "Hello?", "ok"),
    ]


class FailsOnce(AgentMiddleware):
    """Fails in front of the first model call."""

    failed = False

    def before_model(self, state, runtime):
        if not self.failed:
            self.failed = True
            raise Down


@either
def test_words_that_a_replay_redacts_after_they_were_submitted_are_no_new_words(writer, mode):
    behind = [FailsOnce(), PIIMiddleware("email")]
    agent = agent_of(writer, OK, behind=behind, checkpointer=InMemorySaver())
    with pytest.raises(Down):
        talk(agent, "I am ann@example.com.", THREAD, mode)
    talk(agent, None, [*agent.get_state_history(THREAD)][-1].config, mode)
    assert ended(writer) == [("failed", "I am ann@example.com.", ""), ("completed", "", "ok")]


@pytest.mark.parametrize("phase", ["before_model", "after_model"])
def test_redacted_words_of_an_abandoned_stream_stay_redacted(writer, phase):
    pii = PIIMiddleware("email", apply_to_output=True)
    agent = agent_of(writer, AIMessage("To ann@example.com."), behind=[pii])
    stream = agent.stream({"messages": [("user", "I am ann@example.com.")]}, stream_mode="updates")
    assert any(f"{pii.name}.{phase}" in part for part in stream)
    stream.close()
    answer = "To [REDACTED_EMAIL]." if phase == "after_model" else ""
    assert ended(writer) == [("aborted", "I am [REDACTED_EMAIL].", answer)]


@either
def test_words_that_are_blocked_are_not_submitted(writer, mode):
    agent = agent_of(
        writer, OK, behind=[PIIMiddleware("email", strategy="block")], checkpointer=InMemorySaver()
    )
    with pytest.raises(PIIDetectionError):
        talk(agent, [HumanMessage("I am ann@example.com.", id="1")], THREAD, mode)
    agent.update_state(THREAD, {"messages": [RemoveMessage("1")]})
    talk(agent, "Hello.", THREAD, mode)
    assert ended(writer) == [("completed", "Hello.", "ok")]
    assert writer.turns[0].earlier is None


# What the assistant's side is, and whose words are the user's


class Booking(BaseModel):
    city: str


@either
def test_an_answer_behind_a_turn_that_goes_on_is_submitted(writer, mode):
    @after_agent(can_jump_to=["model"])
    def check(state, runtime):
        return {"jump_to": "model"} if state["messages"][-1].text == "draft" else None

    talk(agent_of(writer, AIMessage("draft"), OK, before=[check]), "Write.", mode=mode)
    assert writer.said == [("Write.", "draft"), ("", "ok")]


@pytest.mark.parametrize("said", ["", "Here:"])
def test_a_structured_response_is_the_answer(writer, said):
    call = AIMessage(said, tool_calls=[{"name": "Booking", "args": {"city": "Oslo"}, "id": "1"}])
    strategy = ToolStrategy(Booking, tool_message_content="booked")
    agent = agent_of(writer, call, response_format=strategy, checkpointer=InMemorySaver())
    for text in ("To Oslo.", "Again."):
        talk(agent, text, THREAD)
    answer = '{"city":"Oslo"}'
    assert [one[0] for one in writer.said] == ["To Oslo.", "Again."]
    assert all(one[1].startswith(said) and answer in one[1] for one in writer.said)


@either
def test_a_replay_submits_no_structured_response_again(writer, mode):
    call = AIMessage("", tool_calls=[{"name": "Booking", "args": {"city": "Oslo"}, "id": "1"}])
    saved = {"response_format": ToolStrategy(Booking), "checkpointer": InMemorySaver()}
    agent = agent_of(writer, call, **saved)
    talk(agent, ["A trip.", "To Oslo."], THREAD, mode)
    last = ("DiaryMiddleware.after_agent",)
    before = next(one for one in agent.get_state_history(THREAD) if one.next == last)
    talk(agent, None, before.config, mode)
    assert writer.said == [("A trip.\n\nTo Oslo.", '{"city":"Oslo"}')]


def test_a_structured_response_that_is_no_json_costs_no_words(writer):
    schema = {"title": "Booking", "type": "object", "properties": {"city": {"type": "string"}}}
    strategy = ToolStrategy(schema, tool_message_content="booked")
    call = calling(("Booking", {"city": "half of an emoji: \ud83d"}))
    talk(agent_of(writer, call, response_format=strategy), "To Oslo.")
    assert writer.said == [("To Oslo.", "booked")]


def test_the_input_of_a_tool_that_is_no_json_costs_no_words(writer):
    call = calling(("noop", {"place": {(1, 2): "a key that JSON lacks"}}))
    talk(agent_of(writer, call, OK), "To Oslo.")
    (turn,) = writer.turns
    assert (turn.user_msg, turn.steps) == ("To Oslo.", (ToolStep("noop", "", "done"),))


REFUSED_BY_CLAUDE = {
    "model_provider": "anthropic",
    "stop_reason": "refusal",
    "stop_details": {"explanation": "I cannot."},
}
REFUSED_BY_GEMINI = {
    "model_provider": "google_genai",
    "finish_reason": "SAFETY",
    "finish_message": "I cannot.",
}


@pytest.mark.parametrize(
    "answer",
    [
        AIMessage("", additional_kwargs={"refusal": "I cannot."}),
        AIMessage([{"type": "refusal", "refusal": "I cannot."}]),
        AIMessage("", response_metadata=REFUSED_BY_CLAUDE),
        AIMessage("", response_metadata=REFUSED_BY_GEMINI),
    ],
    ids=["field", "part", "Anthropic", "Google"],
)
def test_a_refusal_is_the_answer(writer, answer):
    talk(agent_of(writer, answer), "How do I pick a lock?")
    assert writer.said == [("How do I pick a lock?", "I cannot.")]


def test_an_answer_that_langchain_cannot_read_has_no_words(writer):
    content: Any = [{"type": "web_search_call", "status": "completed"}]
    answer = AIMessage(content, response_metadata={"model_provider": "openai"})
    with pytest.raises(KeyError, match="id"):
        _ = answer.content_blocks
    talk(agent_of(writer, answer), "Find a vet for Rex.")
    assert writer.said == [("Find a vet for Rex.", "")]


@either
def test_a_tool_that_ends_the_turn_answers_words_that_another_tool_added(writer, mode):
    @tool
    def ask(runtime: ToolRuntime) -> Command:
        """Ask the user."""
        result = ToolMessage("asked", tool_call_id=runtime.tool_call_id)
        return Command(update={"messages": [result, HumanMessage("On Monday.")]})

    @tool(return_direct=True)
    def book() -> str:
        """Book."""
        return "booked"

    answers = [calling((name, {})) for name in ("ask", "book")]
    talk(agent_of(writer, *answers, tools=[ask, book]), "To Oslo.", mode=mode)
    assert writer.said == [("To Oslo.\n\nOn Monday.", "booked")]


def test_a_result_that_is_returned_directly_is_the_answer(writer):
    @tool(return_direct=True)
    def show() -> str:
        """Show."""
        return "a picture"

    agent = agent_of(writer, calling(("show", {})), tools=[show], checkpointer=InMemorySaver())
    for text in ("Show me.", "Once more."):
        talk(agent, text, THREAD)
    assert writer.said == [("Show me.", "a picture"), ("Once more.", "a picture")]


@either
def test_a_result_with_the_name_of_a_handoff_is_the_answer_in_a_chat_that_the_client_keeps(
    writer, mode
):
    @tool(return_direct=True)
    def transfer_to_human() -> str:
        """Transfer."""
        return "We call you."

    call = calling(("transfer_to_human", {}))
    agent, kept = agent_of(writer, call, OK, tools=[transfer_to_human]), []
    for text in ("I like rain.", "I like snow."):
        said = [*kept, HumanMessage(text)]
        result = talk(agent, said, mode=mode)
        kept = [one.model_copy(update={"id": None}) for one in result["messages"]]
    assert writer.said == [("I like rain.", "We call you."), ("I like snow.", "ok")]


@either
def test_the_last_of_several_direct_results_is_the_answer(writer, mode):
    is_second_done = threading.Event()

    @tool(return_direct=True)
    def first() -> str:
        """Show the first one."""
        assert is_second_done.wait(20)
        return "a picture"

    @tool(return_direct=True)
    def second() -> str:
        """Show the second one."""
        is_second_done.set()
        return "a map"

    agent = agent_of(writer, calling(("first", {}), ("second", {})), tools=[first, second])
    talk(agent, "Show me.", mode=mode)
    assert writer.said == [("Show me.", "a map")]


@either
@pytest.mark.parametrize(
    ("call", "answer"),
    [(("Booking", {"city": "Oslo"}), '{"city":"Oslo"}'), (("show", {}), "a map")],
)
def test_an_answer_without_text_follows_a_question_that_was_summarised(writer, call, answer, mode):
    @tool(return_direct=True)
    def show() -> str:
        """Show."""
        return "a map"

    summary = Scripted(answers=[AIMessage("They talked.")])
    behind = [SummarizationMiddleware(summary, trigger=("messages", 3), keep=("messages", 1))]
    strategy = ToolStrategy(Booking)
    agent = agent_of(
        writer, NOOP, calling(call), tools=[noop, show], behind=behind, response_format=strategy
    )
    talk(agent, "To Oslo.", mode=mode)
    assert writer.said == [("To Oslo.", answer)]


@either
@pytest.mark.parametrize(
    ("name", "config"), [("tools", {"configurable": {"thread_id": "t2"}}), ("tool_node", None)]
)
def test_the_prompt_of_a_sub_agent_is_no_turn(writer, name, config, mode, monkeypatch):
    engine, looked_up = writer.diary.engine, []
    look_up = engine.done_operations
    monkeypatch.setattr(
        engine, "done_operations", lambda *given: looked_up.append(given) or look_up(*given)
    )
    writer.diary.user("alice").upsert_preference("likes", "rain")
    model = Scripted(answers=[OK])
    memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer)
    inner = create_agent(model, middleware=[memory])

    @tool
    def delegate() -> str:
        """Ask another agent."""
        before = len(looked_up)
        asked = {"messages": [HumanMessage("I like to delegate.")]}
        text = inner.invoke(asked, config)["messages"][-1].text
        assert len(looked_up) == before  # in the whole history
        return text

    outer = agent_of(writer, OK)
    if name == "tools":
        outer = agent_of(writer, calling(("delegate", {})), OK, tools=[delegate])
    else:  # a graph of the host's own, as in LangGraph's first tutorial
        asking = Scripted(answers=[calling(("delegate", {}))])
        builder = StateGraph(MessagesState).add_node("outer", outer)
        builder.add_node("ask", lambda state: {"messages": [asking.invoke(state["messages"])]})
        builder.add_node(name, ToolNode([delegate]))
        builder.add_edge(START, "ask").add_edge("ask", name).add_edge(name, "outer")
        outer = builder.compile()
    talk(outer, "Hello", mode=mode)
    assert writer.said == [("Hello", "ok")]
    assert memories(model.asked[0])


@either
def test_a_resumed_sub_agent_does_not_take_the_turn_of_the_agent_around(writer, mode):
    memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer)

    @tool
    def ask() -> str:
        """Ask a person."""
        return interrupt("May I?")

    answers = [calling(("ask", {})), AIMessage("It may.")]
    inner = create_agent(Scripted(answers=answers), [ask], middleware=[memory])

    @tool
    def delegate() -> str:
        """Ask another agent."""
        return inner.invoke({"messages": [HumanMessage("May it?")]})["messages"][-1].text

    model = Scripted(answers=[calling(("delegate", {})), OK])
    outer = create_agent(model, [delegate], middleware=[memory], checkpointer=InMemorySaver())
    talk(outer, "Do it.", THREAD, mode)
    talk(outer, Command(resume="Yes."), THREAD, mode)
    assert writer.said == [("Do it.", "ok")]


@either
@pytest.mark.filterwarnings("ignore:The middleware `RubricMiddleware` is in beta")
def test_the_prompt_of_a_grader_of_a_deep_agent_is_no_turn(writer, mode):
    deepagents = pytest.importorskip("deepagents")
    criteria = [{"name": "rhyme", "passed": True, "gap": "", "evidence": "It rhymes."}]
    verdict = {"result": "satisfied", "explanation": "", "criteria": criteria}
    grader = Scripted(answers=[calling(("GraderResponse", verdict))])
    memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer)
    rubric = deepagents.RubricMiddleware(model=grader, grader_middleware=[memory])
    agent = deepagents.create_deep_agent(Scripted(answers=[OK]), middleware=[memory, rubric])
    given = {"messages": [HumanMessage("Write a poem.")], "rubric": "- It rhymes."}
    talk(agent, given, mode=mode)
    assert len(grader.asked) == 1
    assert writer.said == [("Write a poem.", "ok")]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_resumed_agent_in_a_hook_does_not_take_the_turn_of_the_agent_around(writer, is_first):
    memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer)

    class Guard(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            guard.invoke({"messages": [HumanMessage("May it?")]})
            return handler(request)

    class Asking(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            interrupt("May I?")
            return handler(request)

    guard = create_agent(Scripted(answers=[AIMessage("It may.")]), middleware=[memory, Asking()])
    behind = [memory, Guard()] if is_first else [Guard(), memory]
    agent = create_agent(Scripted(answers=[OK]), middleware=behind, checkpointer=InMemorySaver())
    talk(agent, "Do it.", THREAD)
    talk(agent, Command(resume="Yes."), THREAD)
    assert writer.said == [("May it?", "It may."), ("Do it.", "ok")]


# Several agents on one turn


def graph_of(*nodes, chain=True):
    builder = StateGraph(MessagesState)
    for number, node in enumerate(nodes):
        builder.add_node(node.name, node)
        builder.add_edge(nodes[number - 1].name if number and chain else START, node.name)
    return builder.compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize(("chain", "is_shared"), [(True, True), (False, False)])
def test_two_agents_of_a_graph_submit_each_message_once(writer, chain, is_shared):
    memories = [DiaryMiddleware(writer.diary, user_id="alice", writer=writer) for _ in range(2)]
    agents = [
        create_agent(
            Scripted(answers=[AIMessage(name)]),
            middleware=[memories[not is_shared and n]],
            name=name,
        )
        for n, name in enumerate(("plan", "do"))
    ]
    talk(graph_of(*agents, chain=chain), "I like rain.", THREAD)
    assert sorted(answer for _, answer in writer.said) == ["do", "plan"]
    assert sorted(question for question, _ in writer.said) == ["", "I like rain."]


@either
@pytest.mark.parametrize(("remembers", "is_traced"), [(True, True), (False, False)])
def test_words_before_a_handoff_are_submitted_once(writer, mode, remembers, is_traced):
    @tool
    def hand_off(runtime: ToolRuntime) -> Any:
        """Hand off."""
        told = ToolMessage("Yours.", tool_call_id=runtime.tool_call_id)
        update = {"messages": [runtime.state["messages"][-1], told]}
        return Command(goto="expert", graph=Command.PARENT, update=update)

    def agent(name, *answers, **options):
        memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer)
        has_memory = remembers or name == "front"
        given = [memory] if has_memory else []
        return create_agent(Scripted(answers=list(answers)), middleware=given, name=name, **options)

    front = agent("front", calling(("hand_off", {})), tools=[hand_off])
    builder = StateGraph(MessagesState)
    builder.add_node("front", front, destinations=("expert",))
    builder.add_node("expert", agent("expert", AIMessage("Done.")))
    graph = builder.add_edge(START, "front").compile(checkpointer=InMemorySaver())
    with traced() if is_traced else nullcontext():
        for text in ("I like rain.", "I like snow."):
            traceable(talk)(graph, text, THREAD, mode)
    answer = "Done." if remembers else ""
    assert ended(writer) == [
        ("completed", "I like rain.", answer),
        ("completed", "I like snow.", answer),
    ]


@either
def test_words_before_a_handoff_are_submitted_once_by_two_processes(tmp_path, mode):
    @tool
    def hand_off(runtime: ToolRuntime) -> Any:
        """Hand off."""
        told = ToolMessage("Yours.", tool_call_id=runtime.tool_call_id)
        update = {"messages": [runtime.state["messages"][-1], told]}
        return Command(goto="expert", graph=Command.PARENT, update=update)

    saver, said = InMemorySaver(), []
    review = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    approval = Command(resume={"decisions": [{"type": "approve"}]})
    link_diary(tmp_path)
    for folder, given, answer in (("diary", "I like rain.", NOOP), ("link", approval, OK)):
        with Recording(Diary(tmp_path / folder, agent="rules")) as own:
            front = agent_of(own, calling(("hand_off", {})), tools=[hand_off])
            builder = StateGraph(MessagesState)
            builder.add_node("front", front, destinations=("expert",))
            builder.add_node("expert", agent_of(own, answer, behind=[review]))
            graph = builder.add_edge(START, "front").compile(checkpointer=saver)
            talk(graph, given, THREAD, mode)
            said += own.said
    assert said == [("I like rain.", ""), ("", "ok")]


@either
@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("folder", ["diary", "link"])
@pytest.mark.parametrize("name", ["transfer_to_expert", "ask_expert"])
def test_words_before_a_handoff_join_the_next_turn_if_the_next_agent_is_interrupted(
    tmp_path, remembers, folder, name, mode
):
    @tool(name)
    def hand_off(runtime: ToolRuntime) -> Any:
        """Hand off."""
        marks = {} if name.startswith("transfer_to_") else {"__handoff_destination": "expert"}
        told = ToolMessage("Yours.", tool_call_id=runtime.tool_call_id, response_metadata=marks)
        update = {"messages": [runtime.state["messages"][-1], told]}
        return Command(goto="expert", graph=Command.PARENT, update=update)

    saver, said = InMemorySaver(), []
    review = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    link_diary(tmp_path)
    for where, given, answer in (("diary", "I like rain.", NOOP), (folder, "I like snow.", OK)):
        with Recording(Diary(tmp_path / where, agent="rules")) as own:
            front = agent_of(own, calling((name, {})), tools=[hand_off])
            if not remembers:
                front = create_agent(Scripted(answers=[calling((name, {}))]), [hand_off])
            builder = StateGraph(MessagesState)
            builder.add_node("front", front, destinations=("expert",))
            builder.add_node("expert", agent_of(own, answer, behind=[review]))
            begin = "front" if given == "I like rain." else "expert"
            graph = builder.add_edge(START, begin).compile(checkpointer=saver)
            talk(graph, given, THREAD, mode)
            said += [turn.user_msg for turn in own.turns]
    first = ["I like rain.", "I like snow."] if remembers else ["I like rain.\n\nI like snow."]
    assert said == first


def test_ids_of_messages_need_be_unique_in_their_session_only(writer):
    memory = DiaryMiddleware(writer.diary, writer=writer)
    agent = create_agent(Scripted(answers=[OK]), middleware=[memory])
    for user, session in (("alice", "a"), ("alice", "b"), ("bob", "a")):
        said = [HumanMessage(f"I like {user} {session}.", id="1"), HumanMessage("Hello.", id="2")]
        config = {"configurable": {"user_id": user, "session_id": session}}
        talk(agent, said[:1], config)
        talk(agent, said, config)
    assert [one[0] for one in writer.said] == [
        text for who in ("alice a", "alice b", "bob a") for text in (f"I like {who}.", "Hello.")
    ]


def test_equal_text_in_two_threads_of_a_session_is_two_turns(writer):
    agent = agent_of(writer, OK, checkpointer=InMemorySaver())
    for thread in ("monday", "friday"):
        settings = {"thread_id": thread, "session_id": "chat"}
        talk(agent, "I like rain.", {"configurable": settings})
    assert writer.flush(20)
    assert writer.diary.user("alice").preferences("likes")["pref001"].count == 2


@either
def test_new_words_are_submitted_with_an_answer_from_the_model_s_cache(writer, mode):
    memory = DiaryMiddleware(writer.diary, user_id="alice", session_id="chat", writer=writer)
    model = Scripted(answers=[OK], cache=InMemoryCache())  # its answer keeps the id
    for _ in range(2):
        talk(create_agent(model, middleware=[memory]), "Hello.", mode=mode)
    assert writer.said == [("Hello.", "ok")] * 2


# Users who share a thread


def in_room(user):
    return {"configurable": {"user_id": user, "thread_id": "room"}}


def said_by(writer):
    return [(turn.user_id, turn.user_msg, turn.assistant_msg) for turn in writer.turns]


@either
def test_a_decision_of_another_user_is_taken_anew_from_the_model_call(writer, mode):
    booked: list[str] = []

    @tool
    def book() -> str:
        """Book."""
        booked.append("Oslo")
        return "booked"

    review = HumanInTheLoopMiddleware(interrupt_on={"book": True})
    memory = DiaryMiddleware(writer.diary, writer=writer)
    model = Scripted(answers=[calling(("book", {})), calling(("book", {})), OK])
    agent = create_agent(model, [book], middleware=[memory, review], checkpointer=InMemorySaver())
    talk(agent, "To Oslo.", in_room("ann"), mode)
    with pytest.raises(IdentifierError):
        talk(agent, Command(resume={"decisions": [{"type": "approve"}]}), in_room("bob"), mode)
    before = next(one for one in agent.get_state_history(in_room("ann")) if one.next == ("model",))
    settings = {**in_room("ann")["configurable"], **before.config["configurable"]}
    talk(agent, None, {"configurable": settings}, mode)
    talk(agent, Command(resume={"decisions": [{"type": "reject"}]}), in_room("ann"), mode)
    assert (booked, said_by(writer)) == ([], [("ann", "To Oslo.", "ok")])


@either
def test_unanswered_words_of_another_user_are_no_part_of_a_turn(writer, mode):
    memory = DiaryMiddleware(writer.diary, writer=writer)
    model = Scripted(answers=[Down(), OK])
    agent = create_agent(model, middleware=[memory], checkpointer=InMemorySaver())
    with pytest.raises(Down):
        talk(agent, "I am Ann.", in_room("ann"), mode)
    talk(agent, "I am Bob.", in_room("bob"), mode)
    talk(agent, "Ann again.", in_room("ann"), mode)
    assert said_by(writer) == [
        ("ann", "I am Ann.", ""),
        ("bob", "I am Bob.", "ok"),
        ("ann", "Ann again.", "ok"),
    ]


@either
def test_words_of_a_deep_agent_are_known_again_without_ids(writer, mode):
    create_deep_agent = pytest.importorskip("deepagents").create_deep_agent
    memory = DiaryMiddleware(writer.diary, writer=writer)
    model = Scripted(answers=[Down(), NOOP, OK])
    agent = create_deep_agent(model, [noop], middleware=[memory], checkpointer=InMemorySaver())
    with pytest.raises(Down):
        talk(agent, {"messages": [("user", "I am Ann.")]}, in_room("ann"), mode)
    for user, text in (("bob", "I am Bob."), ("ann", "Ann again.")):
        talk(agent, {"messages": [("user", text)]}, in_room(user), mode)
    assert said_by(writer) == [
        ("ann", "I am Ann.", ""),
        ("bob", "I am Bob.", "ok"),
        ("ann", "Ann again.", "ok"),
    ]
    assert [step.tool for step in writer.turns[1].steps] == ["noop"]


@either
def test_words_before_a_message_to_a_pending_deep_agent_are_recorded(writer, mode):
    create_deep_agent = pytest.importorskip("deepagents").create_deep_agent
    memory = DiaryMiddleware(writer.diary, user_id="alice", writer=writer)
    agent = create_deep_agent(
        Scripted(answers=[NOOP, OK]),
        [noop],
        middleware=[memory],
        interrupt_on={"noop": True},
        checkpointer=InMemorySaver(),
    )
    for text in ("I am Ann.", "Hello?"):
        talk(agent, {"messages": text}, THREAD, mode)
    assert writer.said == [("I am Ann.\n\nHello?", "ok")]


@either
@endings_without_answer
def test_words_of_a_turn_that_ended_are_not_another_user_s(writer, answer, behind, mode):
    memory = DiaryMiddleware(writer.diary, writer=writer)
    agent = create_agent(
        Scripted(answers=[answer, OK]),
        [noop],
        middleware=[memory, *behind],
        checkpointer=InMemorySaver(),
    )
    for user in ("ann", "bob"):
        talk(agent, f"I am {user}.", in_room(user), mode)
    assert said_by(writer) == [("ann", "I am ann.", answer.text), ("bob", "I am bob.", "ok")]


def test_an_agent_within_a_graph_ends_a_turn_with_an_unreadable_call(writer):
    memory = DiaryMiddleware(writer.diary, writer=writer)
    model = Scripted(answers=[AIMessage("Let me", invalid_tool_calls=[UNREADABLE]), OK])
    builder = StateGraph(MessagesState).add_node("agent", create_agent(model, middleware=[memory]))
    graph = builder.add_edge(START, "agent").compile(checkpointer=InMemorySaver())
    for user in ("ann", "bob"):
        talk(graph, f"I am {user}.", in_room(user))
    assert said_by(writer) == [("ann", "I am ann.", "Let me"), ("bob", "I am bob.", "ok")]


def test_words_of_another_user_between_two_messages_are_no_part_of_a_turn(writer):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    memory = DiaryMiddleware(writer.diary, writer=writer)
    model = Scripted(answers=[NOOP, NOOP, OK])
    agent = create_agent(model, [noop], middleware=[memory, approval], checkpointer=InMemorySaver())
    for user, text in (("bob", "I am Bob."), ("ann", "I am Ann."), ("bob", "Bob again.")):
        talk(agent, text, in_room(user))
    assert said_by(writer) == [("bob", "I am Bob.\n\nBob again.", "ok")]


def test_words_during_another_user_s_pending_approval_are_a_turn_of_their_own(writer, caplog):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    memory = DiaryMiddleware(writer.diary, writer=writer)
    model = Scripted(answers=[NOOP, OK])
    agent = create_agent(model, [noop], middleware=[memory, approval], checkpointer=InMemorySaver())
    talk(agent, "I am Ann.", in_room("ann"))
    talk(agent, "I am Bob.", in_room("bob"))
    assert said_by(writer) == [("bob", "I am Bob.", "ok")]
    assert "not part of this turn" in caplog.text


def test_what_another_user_was_told_between_two_messages_is_no_part_of_a_turn(writer):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    memory = DiaryMiddleware(writer.diary, writer=writer)
    to_ann = NOOP.model_copy(update={"content": "Your salary, Ann:"})
    model = Scripted(answers=[NOOP, to_ann, OK])
    agent = create_agent(model, [noop], middleware=[memory, approval], checkpointer=InMemorySaver())
    for user, text in [("bob", "I am Bob."), ("ann", "I am Ann."), ("bob", "Bob again.")]:
        talk(agent, text, in_room(user))
    assert said_by(writer) == [("bob", "I am Bob.\n\nBob again.", "ok")]


@either
def test_a_run_that_another_user_resumes_fails_and_its_own_user_may_go_on(writer, mode):
    writer.diary.user("bob").upsert_preference("likes", "rain")
    paid = []

    @tool
    def pay() -> str:
        """Pay."""
        paid.append(True)
        return "paid"

    approval = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
    model = Scripted(answers=[calling(("pay", {})), OK])
    saver = InMemorySaver()

    def agent():  # another process has another middleware
        memory = DiaryMiddleware(writer.diary, writer=writer)
        return create_agent(model, [pay], middleware=[memory, approval], checkpointer=saver)

    talk(agent(), "I am Ann.", in_room("ann"), mode)
    approved = Command(resume={"decisions": [{"type": "approve"}]})
    with pytest.raises(IdentifierError, match="another user began this turn"):
        talk(agent(), approved, in_room("bob"), mode)
    assert (len(model.asked), paid) == (1, [])
    talk(agent(), None, in_room("ann"), mode)
    assert said_by(writer) == [("ann", "I am Ann.", "ok")]


def drained_and_resumed(runs, mode):
    """Drain a graph before its agent has a checkpoint, and resume it in other processes; return what each recorded."""
    control = pytest.importorskip("langgraph.runtime").RunControl()
    drained = pytest.importorskip("langgraph.errors").GraphDrained
    saver = InMemorySaver()

    @before_model
    def drain(state, runtime):
        control.request_drain()

    def run(given, config, behind=(), **more):
        with Recording(Diary("memory:", agent="rules")) as own:  # as another process
            memory = DiaryMiddleware(own.diary, writer=own)
            agent = create_agent(Scripted(answers=[OK]), middleware=[memory, *behind])
            graph = StateGraph(MessagesState, context_schema=dict)
            graph = graph.add_node("agent", agent).add_edge(START, "agent")
            kept: Any = {"configurable": {"thread_id": "t1", **config.get("configurable", {})}}
            kept["metadata"] = config.get("metadata", {})
            more |= {"context": config.get("context", {}), "durability": "exit"}
            talk(graph.compile(checkpointer=saver), given, kept, mode, **more)
            return said_by(own)

    with pytest.raises(drained):
        run("I am Ann.", runs[0], [drain], control=control)
    for config in runs[1:]:
        yield lambda config=config: run(None, config)


@either
@pytest.mark.parametrize("place", ["configurable", "metadata"])
def test_a_run_whose_agent_left_no_checkpoint_is_resumed_by_its_own_user_alone(place, mode):
    ann, bob = {place: {"user_id": "ann"}}, {place: {"user_id": "bob"}}
    by_bob, by_ann = drained_and_resumed([ann, bob, ann], mode)
    with pytest.raises(IdentifierError, match="another user began this turn"):
        by_bob()
    assert by_ann() == [("ann", "I am Ann.", "ok")]


@either
def test_another_name_in_the_metadata_is_no_other_user_if_the_context_names_the_user(mode):
    ann = {"context": {"user_id": "ann"}}
    names = [{**ann, "metadata": {"user_id": operator}} for operator in ("o1", "o2")]
    (resumed,) = drained_and_resumed(names, mode)
    assert resumed() == [("ann", "I am Ann.", "ok")]


@either
def test_another_name_in_the_metadata_is_no_other_user_if_the_settings_name_the_user(writer, mode):
    config: Any = {**in_room("ann"), "metadata": {"user_id": "operator"}}
    memory = DiaryMiddleware(writer.diary, writer=writer)
    agent = create_agent(Scripted(answers=[OK]), middleware=[memory], checkpointer=InMemorySaver())
    given: Any = [HumanMessage("I am Ann."), HumanMessage("Hello.")]
    talk(agent, given, config, mode, durability="sync")
    assert said_by(writer) == [("ann", "I am Ann.\n\nHello.", "ok")]


class Counting(InMemorySaver):
    """Counts the checkpoints that are read for senders; may keep the last ones only, or return none."""

    def __init__(self, keeps=None, error=None):
        super().__init__()
        self.keeps, self.error, self.read = keeps, error, 0

    def get_tuple(self, config):
        saved, place = super().get_tuple(config), config["configurable"]
        if "user_id" in place:  # LangGraph reads it
            return saved
        if self.error is not None:
            raise self.error
        last = self.list({"configurable": {**place, "checkpoint_id": None}}, limit=self.keeps)
        self.read += 1
        return saved if saved and saved.config in [each.config for each in last] else None


@either
def test_senders_are_searched_only_as_far_as_a_message_may_have_one(writer, mode):
    saver = Counting()
    memory = DiaryMiddleware(writer.diary, writer=writer)
    agent = create_agent(Scripted(answers=[OK]), middleware=[memory], checkpointer=saver)
    for given in ("I am Ann.", {"messages": "Hello."}, {"messages": HumanMessage("Bye.")}):
        talk(agent, given, in_room("ann"), mode)
    assert saver.read == 0
    talk(agent, [HumanMessage("I like tea."), HumanMessage("I like rice.")], in_room("ann"), mode)
    assert 0 < saver.read <= 2


@either
@pytest.mark.parametrize("error", [NotImplementedError(), ConnectionError("down")])
def test_a_run_does_not_need_a_saver_that_returns_checkpoints(writer, error, mode):
    memory = DiaryMiddleware(writer.diary, writer=writer, on_error="raise")
    agent = create_agent(
        Scripted(answers=[OK]), middleware=[memory], checkpointer=Counting(error=error)
    )
    talk(agent, [HumanMessage("I am Ann."), HumanMessage("Hello.")], in_room("ann"), mode)
    assert said_by(writer) == [("ann", "I am Ann.\n\nHello.", "ok")]


def test_a_sender_that_the_process_knows_is_not_replaced_by_one_in_remaining_checkpoints(writer):
    memory = DiaryMiddleware(writer.diary, writer=writer)
    review = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    model = Scripted(answers=[NOOP, NOOP, OK])
    agent = create_agent(model, [noop], middleware=[memory, review])

    def ask(state):  # an agent without notes in the checkpoints
        return agent.invoke({"messages": state["messages"]})

    builder = StateGraph(MessagesState).add_sequence([("before", lambda state: {}), ask])
    graph = builder.add_edge(START, "before").compile(checkpointer=Counting(keeps=5))
    for user, text in (("ann", "I am Ann."), ("bob", "I am Bob."), ("ann", "Ann again.")):
        talk(graph, text, in_room(user))
    assert said_by(writer) == [("ann", "I am Ann.\n\nAnn again.", "ok")]


@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
def test_a_replayed_question_of_a_long_thread_is_its_user_s_in_another_process(tmp_path, mode):
    (tmp_path / "diary").mkdir()
    saver, found = InMemorySaver(), []
    for user, count in (("bob", 1), ("ann", 9), ("ann", 0), ("bob", 0)):
        folder = tmp_path / f"{len(found)}"
        folder.symlink_to("diary")  # each is a process of its own
        with Recording(Diary(folder, agent="rules")) as own:
            memory = DiaryMiddleware(own.diary, writer=own)
            model = Scripted(answers=[AIMessage(f"ok {len(found)}")])
            agent = create_agent(model, middleware=[memory], checkpointer=saver)
            for number in range(count):
                talk(agent, f"{user} says {number}.", in_room(user), mode)
            if not count:
                states = agent.get_state_history(in_room(user))
                [*_, first] = [state for state in states if "before_agent" in "".join(state.next)]
                place = {**in_room(user)["configurable"], **first.config["configurable"]}
                with pytest.raises(IdentifierError) if user == "ann" else nullcontext():
                    talk(agent, None, {"configurable": place}, mode)
            found.append(said_by(own))
    assert found[2:] == [[], [("bob", "", "ok 3")]]


@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
@pytest.mark.parametrize(
    ("durability", "edits"), [("sync", 0), ("sync", 1), ("sync", 2), ("exit", 0), ("exit", 1)]
)
def test_words_before_a_fork_of_a_long_thread_stay_those_of_their_user(
    tmp_path, mode, durability, edits
):
    (tmp_path / "diary").mkdir()
    saver, place = InMemorySaver(), in_room("ann")["configurable"]
    for number in range(2):
        (tmp_path / f"{number}").symlink_to("diary")  # each is a process of its own
        with Recording(Diary(tmp_path / f"{number}", agent="rules")) as own:
            memory = DiaryMiddleware(own.diary, writer=own)
            agent = create_agent(Scripted(answers=[OK]), middleware=[memory], checkpointer=saver)
            if number:
                given = {"messages": [HumanMessage("I am Ann.")]}
                talk(agent, given, {"configurable": place}, mode, durability=durability)
                assert said_by(own) == [("ann", "I am Ann.", "ok")]
                continue
            given = {"messages": [HumanMessage("I am Bob.")]}
            with closing(agent.stream(given, in_room("bob"), stream_mode="values")) as stream:
                next(stream)  # left before the middleware notes the message
            left = agent.get_state(in_room("bob")).config["configurable"]
            place = {**place, **left}
            for text in range(9):
                talk(agent, f"Ann says {text}.", in_room("ann"), mode)
            for _ in range(edits):  # each is a new checkpoint, whose parent is the one before
                edited = agent.update_state({"configurable": place}, {"messages": []}, "__start__")
                place |= edited["configurable"]


@either
def test_senders_are_not_searched_in_another_branch_of_the_thread(writer, mode):
    failing = set()

    @before_agent
    def fail(state, runtime):
        if state["messages"][-1].text in failing:
            raise Down

    memory = DiaryMiddleware(writer.diary, writer=writer)
    agent = create_agent(
        Scripted(answers=[OK]), middleware=[fail, memory], checkpointer=InMemorySaver()
    )

    def asks(user, text, place=None):
        failing.add(text)
        settings = in_room(user)["configurable"] | (place or {})
        with pytest.raises(Down):
            talk(agent, text, {"configurable": settings}, mode)
        return agent.get_state(in_room(user)).config["configurable"]

    talk(agent, "Hello.", in_room("eve"), mode)
    begin = agent.get_state(in_room("eve")).config["configurable"]
    of_ann = asks("ann", "I am Ann.")
    asks("bob", "I am Bob.", begin)
    asks("cat", "I am Cat.", of_ann)
    talk(agent, "Thanks.", in_room("cat"), mode)
    assert said_by(writer)[1:] == [("cat", "I am Cat.\n\nThanks.", "ok")]


class WithoutFirstParent(InMemorySaver):
    """Returns a config without an id as the parent of a thread's first checkpoint."""

    def get_tuple(self, config):
        saved = super().get_tuple(config)
        if saved is None or saved.parent_config is not None:
            return saved
        place = {**config["configurable"], "checkpoint_id": None}
        return saved._replace(parent_config={"configurable": place})


@either
def test_senders_are_known_if_the_first_checkpoint_names_an_empty_parent(writer, mode):
    @before_agent
    def fail(state, runtime):
        if len(state["messages"]) == 1:
            raise Down

    memory = DiaryMiddleware(writer.diary, writer=writer)
    agent = create_agent(
        Scripted(answers=[OK]), middleware=[fail, memory], checkpointer=WithoutFirstParent()
    )
    with pytest.raises(Down):
        talk(agent, "I am Ann.", in_room("ann"), mode)
    talk(agent, "I am Bob.", in_room("bob"), mode)
    assert said_by(writer) == [("bob", "I am Bob.", "ok")]


def delta_state():
    """Return a state whose messages are kept as writes, as in deep agents."""
    channel = pytest.importorskip("langgraph.channels.delta").DeltaChannel

    def added(held, writes):
        return reduce(add_messages, writes, held or [])

    return TypedDict("DeltaState", {"messages": Annotated[list[AnyMessage], channel(added)]})


@pytest.mark.parametrize(
    ("place", "state", "mode"),
    [
        ("in front of the middleware", lambda: AgentState, "ainvoke"),
        ("in a graph", delta_state, "invoke"),
    ],
)
def test_words_that_another_process_left_without_notes_stay_those_of_their_user(
    tmp_path, place, state, mode
):
    (tmp_path / "diary").mkdir()
    saver, found, schema = InMemorySaver(), [], state()

    @before_agent
    def fail(state, runtime):
        raise Down

    def run(number, user, text, *answers):
        (tmp_path / str(number)).symlink_to("diary")  # each run is in a process of its own
        with Recording(Diary(tmp_path / str(number), agent="rules")) as own:
            memory = DiaryMiddleware(own.diary, writer=own)
            is_nested = place == "in a graph"
            around = [memory] if is_nested or answers else [fail, memory]
            graph: Any = create_agent(
                Scripted(answers=list(answers) or [Down()]),
                middleware=around,
                state_schema=schema,
                checkpointer=None if is_nested else saver,
            )
            if is_nested:
                graph = StateGraph(schema).add_node("agent", graph).add_edge(START, "agent")
                graph = graph.compile(checkpointer=saver)
            with nullcontext() if answers else pytest.raises(Down):
                talk(graph, text, in_room(user), mode)
            found.extend(said_by(own))

    run(1, "ann", "I am Ann.")
    run(2, "bob", "I am Bob.", OK)
    run(3, "ann", "I am Ann again.")
    run(4, "ann", "Hello.", OK)
    if place == "in a graph":
        assert found == [
            ("ann", "I am Ann.", ""), ("bob", "I am Bob.", "ok"),
            ("ann", "I am Ann again.", ""), ("ann", "Hello.", "ok"),
        ]  # fmt: skip
    else:
        assert found == [("bob", "I am Bob.", "ok"), ("ann", "I am Ann again.\n\nHello.", "ok")]


@either
@pytest.mark.parametrize(
    ("user", "form"),
    [("ann", lambda text: {"role": "user", "content": text}), ("bob", HumanMessage)],
    ids=["ann dict", "bob object"],
)
def test_a_message_sent_alone_to_an_agent_is_known_in_another_process(tmp_path, form, user, mode):
    (tmp_path / "diary").mkdir()
    saver = InMemorySaver()

    def unanswered(state):
        return [Send("agent", {"messages": [one]}) for one in state["messages"]]

    def run(number, user, text, answer):
        (tmp_path / str(number)).symlink_to("diary")  # each run is in a process of its own
        with Recording(Diary(tmp_path / str(number), agent="rules")) as own:
            memory = DiaryMiddleware(own.diary, writer=own)
            agent = create_agent(Scripted(answers=[answer]), middleware=[memory])
            builder = StateGraph(MessagesState).add_node("before", lambda state: {})
            builder.add_node("agent", agent).add_edge(START, "before")
            builder.add_conditional_edges("before", unanswered, ["agent"])
            error = Down if answer is not OK else IdentifierError if user == "bob" else None
            with pytest.raises(error) if error else nullcontext():
                given = {"messages": [form(text)]}
                talk(builder.compile(checkpointer=saver), given, in_room(user), mode)
            return sorted(said_by(own))

    assert run(1, "ann", "I like tea.", Down()) == [("ann", "I like tea.", "")]
    said = run(2, user, "I like rice.", OK)
    assert (user, "I like tea.") not in [one[:2] for one in said]
    if user == "ann":
        assert said == [("ann", "", "ok"), ("ann", "I like rice.", "ok")]


@either
def test_words_that_a_tool_got_of_another_user_are_no_part_of_a_turn(writer, mode):
    memory = DiaryMiddleware(writer.diary, writer=writer)
    model = Scripted(answers=[ASKS, Down(), OK])
    agent = create_agent(model, [ask_user], middleware=[memory], checkpointer=InMemorySaver())
    talk(agent, "I am Ann.", in_room("ann"), mode)
    with pytest.raises(Down):
        talk(agent, Command(resume="No walnuts."), in_room("ann"), mode)
    talk(agent, "I am Bob.", in_room("bob"), mode)
    assert said_by(writer) == [
        ("ann", "I am Ann.\n\nNo walnuts.", ""),
        ("bob", "I am Bob.", "ok"),
    ]


@either
def test_a_run_with_words_that_a_tool_got_is_resumed_by_their_user_alone(mode):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    model, saver = Scripted(answers=[ASKS, NOOP, OK]), InMemorySaver()

    def resume(user, given):
        with Recording(Diary("memory:", agent="rules")) as own:  # as another process
            memory = DiaryMiddleware(own.diary, writer=own)
            agent = create_agent(
                model, [ask_user, noop], middleware=[memory, approval], checkpointer=saver
            )
            talk(agent, given, in_room(user), mode)
            return said_by(own)

    resume("ann", "I am Ann.")
    resume("ann", Command(resume="No walnuts."))
    approved = Command(resume={"decisions": [{"type": "approve"}]})
    with pytest.raises(IdentifierError, match="another user began this turn"):
        resume("bob", approved)
    assert resume("ann", approved) == [("ann", "I am Ann.\n\nNo walnuts.", "ok")]


@either
def test_a_user_with_older_unanswered_words_cannot_resume_another_s_run(writer, mode):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    memory = DiaryMiddleware(writer.diary, writer=writer)
    model = Scripted(answers=[NOOP, NOOP, OK])
    agent = create_agent(model, [noop], middleware=[memory, approval], checkpointer=InMemorySaver())
    talk(agent, "I am Bob.", in_room("bob"), mode)
    talk(agent, "I am Ann.", in_room("ann"), mode)
    approved = Command(resume={"decisions": [{"type": "approve"}]})
    with pytest.raises(IdentifierError, match="another user began this turn"):
        talk(agent, approved, in_room("bob"), mode)
    talk(agent, None, in_room("ann"), mode)
    assert said_by(writer) == [("ann", "I am Ann.", "ok")]


@either
@pytest.mark.parametrize("first", ["failed", "interrupted"])
def test_an_agent_within_a_graph_counts_no_words_for_another_user(writer, first, mode):
    approval = HumanInTheLoopMiddleware(interrupt_on={"noop": True})
    memory = DiaryMiddleware(writer.diary, writer=writer)
    model = Scripted(answers=[Down() if first == "failed" else NOOP, OK])
    agent = create_agent(model, [noop], middleware=[memory, approval])
    builder = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent")
    graph = builder.compile(checkpointer=InMemorySaver())
    try:
        talk(graph, "I am Ann.", in_room("ann"), mode)
    except Down:
        assert first == "failed"
    talk(graph, "I am Bob.", in_room("bob"), mode)
    assert said_by(writer)[-1] == ("bob", "I am Bob.", "ok")


@either
@pytest.mark.parametrize("team", ["team", lambda _state, _runtime: "team"])
def test_agents_of_a_graph_may_record_a_turn_for_different_users(writer, team, mode):
    own = DiaryMiddleware(writer.diary, writer=writer)
    shared = DiaryMiddleware(writer.diary, writer=writer, user_id=team)
    agents = [create_agent(Scripted(answers=[OK]), middleware=[each]) for each in (own, shared)]
    builder = StateGraph(MessagesState).add_sequence(
        [(f"agent{n}", each) for n, each in enumerate(agents)]
    )
    graph = builder.add_edge(START, "agent0").compile(checkpointer=InMemorySaver())
    talk(graph, "I like rain.", in_room("ann"), mode)
    assert said_by(writer) == [("ann", "I like rain.", "ok"), ("team", "I like rain.", "ok\n\nok")]


def failing_once():
    """Return a step that fails at its first call, and then passes the state on."""
    failures = [Down()]

    def step(state):
        if failures:
            raise failures.pop()
        return state

    return step


@either
def test_words_that_a_recall_node_saw_are_in_no_turn_of_another_user_s_agent(writer, mode):
    memory = DiaryMiddleware(writer.diary, writer=writer)
    agent = create_agent(Scripted(answers=[OK]), middleware=[memory])
    nodes = [("recall", recall_node(writer.diary)), ("check", failing_once()), ("agent", agent)]
    builder = StateGraph(MessagesState).add_sequence(nodes).add_edge(START, "recall")
    graph = builder.compile(checkpointer=InMemorySaver())
    with pytest.raises(Down):
        talk(graph, "I am Ann.", in_room("ann"), mode)
    with pytest.raises(IdentifierError, match="another user began this turn"):
        talk(graph, None, in_room("bob"), mode)
    talk(graph, "I am Bob.", in_room("bob"), mode)
    assert said_by(writer) == [("bob", "I am Bob.", "ok")]


@either
def test_words_that_an_agent_of_a_failed_graph_answered_stay_their_user_s(writer, mode):
    memory = DiaryMiddleware(writer.diary, writer=writer)
    agent = create_agent(Scripted(answers=[OK]), middleware=[memory])
    node = agent | RunnableLambda(failing_once())
    builder = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")
    graph = builder.compile(checkpointer=InMemorySaver())
    with pytest.raises(Down):
        talk(graph, "I am Ann.", in_room("ann"), mode)
    talk(graph, "I am Bob.", in_room("bob"), mode)
    assert said_by(writer) == [("ann", "I am Ann.", "ok"), ("bob", "I am Bob.", "ok")]


@either
def test_a_graph_that_another_user_resumes_behind_an_answer_fails(tmp_path, mode):
    saver = InMemorySaver()
    link_diary(tmp_path)

    @before_model
    def ask(state, runtime):
        interrupt("Go on?")

    def run(folder, given, user):
        with Recording(Diary(tmp_path / folder, agent="rules")) as own:
            around = [DiaryMiddleware(own.diary, writer=own)], [ask], [DiaryMiddleware(own.diary, writer=own)]  # fmt: skip
            agents = [create_agent(Scripted(answers=[OK]), middleware=each) for each in around]
            builder = StateGraph(MessagesState).add_edge(START, "0")
            builder.add_sequence([(f"{number}", agent) for number, agent in enumerate(agents)])
            talk(builder.compile(checkpointer=saver), given, in_room(user), mode)
            return said_by(own)

    assert run("diary", "I am Ann.", "ann") == [("ann", "I am Ann.", "ok")]
    for folder in ("diary", "link"):
        with pytest.raises(IdentifierError, match="another user began this turn"):
            run(folder, Command(resume=True), "bob")


@either
def test_a_run_behind_a_summary_of_another_user_s_words_is_resumed(writer, mode):
    summary = SummarizationMiddleware(
        Scripted(answers=[OK]), trigger=("messages", 3), keep=("messages", 2)
    )
    around = [DiaryMiddleware(writer.diary, writer=writer), summary]
    review, saver = HumanInTheLoopMiddleware(interrupt_on={"noop": True}), InMemorySaver()

    @after_model
    def ask(state, runtime):
        interrupt("Go on?")

    def agent(answer, *behind):
        model = Scripted(answers=[answer])
        return create_agent(model, [noop], middleware=[*around, *behind], checkpointer=saver)

    talk(agent(NOOP, review), "I am Ann.", in_room("ann"), mode)
    talk(agent(OK, ask), "I am Bob.", in_room("bob"), mode)
    talk(agent(OK, ask), Command(resume=True), in_room("bob"), mode)
    assert said_by(writer) == [("bob", "I am Bob.", "ok")]


@pytest.mark.parametrize("first", [OK, Down()], ids=["answered", "failed"])
def test_a_thread_that_is_deleted_and_begun_again_may_be_another_user_s(writer, first):
    saver = InMemorySaver()
    agent = create_agent(
        Scripted(answers=[first, OK]),
        middleware=[DiaryMiddleware(writer.diary, writer=writer)],
        checkpointer=saver,
    )
    for user in ("ann", "bob"):  # the client counts its messages
        with suppress(Down):
            talk(agent, [HumanMessage("Hi.", id="1")], in_room(user))
        saver.delete_thread("room")
    answer = "ok" if first is OK else ""
    assert said_by(writer) == [("ann", "Hi.", answer), ("bob", "Hi.", "ok")]


# Two memories in one agent


@either
def test_an_agent_can_have_a_user_memory_and_a_team_memory(tmp_path, writer, mode):
    team = Diary(tmp_path / "team", agent="rules")
    team.user("blue").upsert_preference("likes", "stand-ups at nine")
    writer.diary.user("alice").upsert_preference("likes", "rain")
    model = Scripted(answers=[calling(("team_recall", {"query": "nine"})), OK])
    with Recording(team) as second:
        own = DiaryMiddleware(writer.diary, user_id="alice", writer=writer, tools="read")
        other = DiaryMiddleware(team, user_id="blue", writer=second, tools="read", name="team")
        agent = create_agent(model, middleware=[own, other])
        last = talk(agent, "Hello", mode=mode)
        assert ended(writer) == ended(second) == [("completed", "Hello", "ok")]
    shown = [one.text for one in memories(model.asked[0])]
    assert len(shown) == 2
    assert ["team" in text for text in shown].count(True) == 1
    assert {tool["name"] for tool in model.offered} >= {"recall", "team_recall"}
    assert any("stand-ups" in one.text for one in last["messages"] if one.type == "tool")


def test_calls_with_one_id_keep_their_own_results(writer):
    @tool
    def search() -> str:
        """Search."""
        return "found"

    writer.diary.user("alice").upsert_preference("likes", "rain")
    calls = [
        calling((name, args)) for name, args in (("search", {}), ("recall", {"query": "rain"}))
    ]
    agent = agent_of(writer, *calls, OK, tools=[search, *diary_tools(writer.diary, "alice")])
    talk(agent, "What do I like?")
    assert writer.turns[0].steps == (ToolStep("search", "{}", "found"),)


def test_what_tools_look_up_in_one_memory_is_no_step_in_another(writer):
    writer.diary.user("alice").upsert_preference("likes", "rain")
    with Recording(Diary("memory:", agent="rules")) as team:
        own = DiaryMiddleware(
            writer.diary, user_id="alice", writer=writer, tools=["recall"], name="own"
        )
        shared = DiaryMiddleware(team.diary, user_id="blue", writer=team)
        look_up = diary_tools(writer.diary, "alice", tools=["recall"], names={"recall": "look_up"})
        rain = {"query": "rain"}
        asks = calling(("own_recall", rain), ("look_up", rain), ("noop", {}))
        agent = create_agent(
            Scripted(answers=[asks, OK]), [noop, *look_up], middleware=[own, shared]
        )
        messages = talk(agent, "Hello.")["messages"]
        assert [one.text.count("rain") for one in messages if one.type == "tool"] == [1, 1, 0]
        steps = [*team.turns[0].steps, *writer.turns[0].steps]
        assert [step.tool for step in steps] == ["noop", "noop"]


# Options that cannot be meant


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"writer": "rules"}, "expected a MemoryWriter, found str"),
        ({"writer": Diary("memory:")}, "expected a MemoryWriter, found Diary"),
        ({"name": "our team"}, "cannot be the prefix of a tool name"),
        ({"tools": "write"}, "unknown"),
        ({"max_tokens": 0}, "max_tokens: expected a whole number of at least 1, found 0"),
    ],
)
def test_an_invalid_option_of_the_middleware_is_refused(diary, options, message):
    with pytest.raises(InvalidValue, match=message):
        DiaryMiddleware(diary, **options)


def test_a_writer_of_another_diary_is_refused(diary, tmp_path):
    with (
        MemoryWriter(Diary(tmp_path / "other")) as other,
        pytest.raises(InvalidValue, match="writes to"),
    ):
        DiaryMiddleware(diary, writer=other)
    with MemoryWriter(Diary(tmp_path / "diary")) as same:
        assert DiaryMiddleware(diary, writer=same).writer is same


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (DiaryStore, "found DiaryStore. Give its `.diary`."),
        (lambda _: Scripted(answers=[OK]), "found Scripted. Give the diary first."),
        (lambda _: {"messages": []}, "found dict. Give the diary first."),
    ],
)
def test_what_is_given_instead_of_a_diary_is_refused(diary, given, sentence):
    for make in (DiaryMiddleware, lambda given: DiaryRetriever(diary=given), DiaryStore):
        with pytest.raises(
            ValueError, match=f"expected a Diary or a folder, {re.escape(sentence)}"
        ):
            make(given(diary))
