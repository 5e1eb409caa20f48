"""A person asks to be forgotten while an agent works for them: what the run hands in afterwards is refused.

The run began before the erasure, so its words were said before it. Erasures of a part leave the run alone.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

import engines
import programs
from processes import STRICT
from scripted_chat import Scripted, calling
from six_verbs import SixVerbs
from tomldiary import Diary, Forgotten, MemoryWriter, RetryPolicy, Turn
from tomldiary.errors import ExtractionError
from tomldiary.writer.dead_letters import DeadLetters
from tomldiary_langchain import DiaryMiddleware
from tomldiary_langgraph import Memory, extract_node, recall_node, submit_node
from tomldiary_pydantic_ai import DiaryCapability
from waiting import LONG, until

WORDS = "I love canary gardens."


@pytest.fixture(params=engines.ALL)
def engine(request, disk):
    return engines.space(request.param, disk)


shared = pytest.mark.parametrize("engine", engines.SHARED, indirect=True)
in_a_folder = pytest.mark.parametrize("engine", ["folder"], indirect=True)


def likes(backend):
    user = Diary(backend, agent="rules").user("alice")
    return [item.text for item in user.preferences("likes").values()]


def erase(backend, **selector):
    """Erase as another process would, which has a backend of its own."""
    return Diary(backend, agent="rules").user("alice").forget(**selector or {"everything": True})


# The turn


def test_a_turn_of_a_run_before_an_erasure_is_refused(engine, opened, caplog):
    diary = Diary(opened(), agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    with MemoryWriter(diary) as writer:
        began = alice.epoch
        erase(opened())
        late = writer.submit_nowait(Turn("alice", "s", WORDS, "ok", epoch=began))
        kept = writer.submit_nowait(Turn("alice", "s", "I love jazz.", "ok", epoch=alice.epoch))
        kept.wait(LONG)
        with pytest.raises(Forgotten):
            late.wait(LONG)
        assert not late.is_stored
        stats = writer.stats()
    assert (stats["completed"], stats["failed"], stats["dead_letters"]) == (1, 1, 0)
    with pytest.raises(Forgotten):
        alice.add_turn(WORDS, "ok", "s", epoch=began)
    assert likes(opened()) == ["I love jazz."]
    assert "canary" not in engine.texts()
    errors = [each.getMessage().lower() for each in caplog.records if each.levelname == "ERROR"]
    assert len(errors) == 1
    assert "forgotten" in errors[0]
    assert "canary" not in caplog.text


@shared
def test_a_submit_of_a_run_before_an_erasure_raises(engine, opened):
    async def submit():
        writer = MemoryWriter(Diary(opened(), agent="rules"), qsize=1)
        began = writer.diary.user("alice").epoch
        erase(opened())
        with pytest.raises(Forgotten):
            await writer.submit("alice", "s", WORDS, "ok", epoch=began)
        # A full queue is not held up by a turn that was refused.
        turns = [Turn("alice", "s", WORDS, str(n), epoch=began) for n in range(3)]
        turns += [Turn("alice", "s", f"I love tea number {n}.", "ok") for n in range(3)]
        done = await asyncio.gather(*map(writer.submit_turn, turns), return_exceptions=True)
        assert [isinstance(each, Forgotten) for each in done] == [True] * 3 + [False] * 3
        await writer.close()

    asyncio.run(asyncio.wait_for(submit(), LONG))
    assert likes(opened()) == [f"I love tea number {n}." for n in range(3)]
    assert "canary" not in engine.texts()


def test_an_erasure_of_a_part_leaves_the_run_alone(opened):
    diary = Diary(opened(), agent="rules")
    alice = diary.user("alice")
    alice.forget(everything=True)
    alice.upsert_preference("likes", "tea", session_id="gone")
    began = alice.epoch
    erase(opened(), session_id="gone")
    erase(opened(), matching="nothing of the kind")
    with MemoryWriter(diary) as writer:
        writer.submit_nowait(Turn("alice", "s", "I love jazz.", "ok", epoch=began)).wait(LONG)
    alice.add_turn("I love chess.", "ok", "s", epoch=began)
    assert likes(opened()) == ["I love jazz.", "I love chess."]


def test_erasures_of_parts_do_not_hide_that_of_everything(engine, opened):
    diary = Diary(opened(), agent="rules")
    alice = diary.user("alice")
    began = alice.epoch
    erase(opened())
    alice.upsert_preference("likes", "tea", session_id="gone")
    left = erase(opened(), session_id="gone").files
    assert left
    assert not any(name.startswith(".") for name in left)
    with MemoryWriter(diary) as writer:
        late = writer.submit_nowait(Turn("alice", "s", WORDS, "ok", epoch=began))
        with pytest.raises(Forgotten):
            late.wait(LONG)
    assert likes(opened()) == []
    assert "canary" not in engine.texts()


@shared
def test_a_requeued_dead_letter_is_of_no_run_any_more(opened):
    def fail(message, *, deps):
        raise ValueError("no")

    backend = opened()
    alice = Diary(backend, agent="rules").user("alice")
    alice.forget(everything=True)
    began = alice.epoch
    with MemoryWriter(Diary(backend, agent=fail), retry=RetryPolicy(1)) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "I love jazz.", "ok", epoch=began))
        with pytest.raises(ExtractionError):
            receipt.wait(LONG)
    alice.forget(session_id="another")
    letters = DeadLetters(backend)
    assert len(letters.requeue(letters.list())) == 1
    with MemoryWriter(Diary(backend, agent="rules")) as writer:
        assert writer.flush(LONG)
    assert likes(opened()) == ["I love jazz."]


def test_six_methods_refuse_a_late_turn_too():
    shelf = SixVerbs()
    diary = Diary(shelf, agent="rules")
    alice = diary.user("alice")
    with MemoryWriter(diary, coalesce=4) as writer:
        began = alice.epoch
        alice.forget(everything=True)
        alice.upsert_preference("likes", "water", session_id="gone")
        alice.forget(session_id="gone")  # does not hide the erasure of everything
        turns = [("I love jazz.", None), (WORDS, began), ("I love tea.", None)]
        with diary.engine.backend.lock("alice", LONG):  # the others wait behind the first one
            receipts = [
                writer.submit_nowait(Turn("alice", "s", text, "ok", epoch=epoch))
                for text, epoch in turns
            ]
            until(lambda: writer.stats()["queue_size"] == 2)
        with pytest.raises(Forgotten):
            receipts[1].wait(LONG)
        receipts[0].wait(LONG)
        receipts[2].wait(LONG)
    assert "canary" not in str(shelf.texts)
    assert [item.text for item in alice.preferences("likes").values()] == [
        "I love jazz.",
        "I love tea.",
    ]


# The adapters: an erasure while the model is asked


class Asked(Scripted):
    """A chat model that calls a function before it answers."""

    meanwhile: object = None

    def _generate(self, messages, stop=None, run_manager=None, **options):
        self.meanwhile()
        return super()._generate(messages, stop, run_manager, **options)


def langchain(diary, writer, meanwhile):
    model = Asked(answers=[AIMessage("ok")], meanwhile=meanwhile)
    memory = DiaryMiddleware(diary, user_id="alice", session_id="s", writer=writer)
    agent = create_agent(model, middleware=[memory])
    return lambda text: agent.invoke({"messages": [("user", text)]})


def langchain_without_memory(diary, writer, meanwhile):
    model = Asked(answers=[AIMessage("ok")], meanwhile=meanwhile)
    memory = DiaryMiddleware(diary, user_id="alice", session_id="s", writer=writer, inject=False)
    agent = create_agent(model, middleware=[memory])
    return lambda text: asyncio.run(agent.ainvoke({"messages": [("user", text)]}))


def langgraph(diary, last, meanwhile):
    class Chat(MessagesState):
        memory: Memory

    def answer(state):
        meanwhile()
        return {"messages": [("ai", "ok")]}

    nodes = [("recall", recall_node(diary)), ("answer", answer), ("last", last)]
    return StateGraph(Chat).add_sequence(nodes).add_edge(START, "recall").compile()


RUN = {"configurable": {"user_id": "alice", "thread_id": "s"}}


def langgraph_submitting(diary, writer, meanwhile):
    graph = langgraph(diary, submit_node(writer), meanwhile)
    return lambda text: graph.invoke({"messages": [("user", text)]}, RUN)


def langgraph_submitting_async(diary, writer, meanwhile):
    graph = langgraph(diary, submit_node(writer), meanwhile)
    return lambda text: asyncio.run(graph.ainvoke({"messages": [("user", text)]}, RUN))


def langgraph_extracting(diary, writer, meanwhile):
    graph = langgraph(diary, extract_node(diary), meanwhile)
    return lambda text: asyncio.run(graph.ainvoke({"messages": [("user", text)]}, RUN))


def pydantic_ai(diary, writer, meanwhile, **options):
    def respond(messages, _info):
        meanwhile()
        return ModelResponse(parts=[TextPart("ok")])

    memory = DiaryCapability(diary, "alice", "s", writer=writer, **options)
    agent = Agent(FunctionModel(respond), capabilities=[memory])
    return lambda text: asyncio.run(agent.run(text))


def pydantic_ai_without_memory(diary, writer, meanwhile):
    return pydantic_ai(diary, writer, meanwhile, inject=False, tools="none")


ADAPTERS = [
    langchain,
    langchain_without_memory,
    langgraph_submitting,
    langgraph_submitting_async,
    langgraph_extracting,
    pydantic_ai,
    pydantic_ai_without_memory,
]
adapters = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda each: each.__name__)


def run_during(diary, adapter, meanwhile):
    """Let a run hand in a secret, with `meanwhile` in its model call; then another run."""
    calls = [meanwhile]
    with MemoryWriter(diary) as writer:
        run = adapter(diary, writer, lambda: calls.pop()() if calls else None)
        run(WORDS)
        run("I love jazz.")
        assert writer.flush(LONG)


@in_a_folder
@adapters
def test_a_run_during_an_erasure_brings_nothing_back(engine, opened, adapter):
    diary = Diary(opened(), agent="rules")
    diary.user("alice").upsert_preference("likes", "canary songs")
    run_during(diary, adapter, lambda: diary.user("alice").forget(everything=True))
    assert likes(opened()) == ["I love jazz."]
    assert "canary" not in engine.texts()


@shared
def test_a_run_during_an_erasure_by_another_process(engine, opened):
    command = [*STRICT, "-m", "tomldiary", "forget", "--path", engine.url]
    command += ["--user", "alice", "--everything", "--yes"]
    diary = Diary(opened(), agent="rules")
    diary.user("alice").upsert_preference("likes", "canary songs")
    run_during(diary, langchain, lambda: programs.run(*command, check=True))
    assert likes(opened()) == ["I love jazz."]
    assert "canary" not in engine.texts()


@pytest.mark.parametrize(
    "adapter", [langchain, langgraph_submitting, pydantic_ai], ids=lambda each: each.__name__
)
def test_a_run_during_an_erasure_of_a_part_is_kept(tmp_path, adapter):
    diary = Diary(tmp_path, agent="rules")
    diary.user("alice").upsert_preference("likes", "tea", session_id="gone")
    run_during(diary, adapter, lambda: diary.user("alice").forget(session_id="gone"))
    assert likes(tmp_path) == [WORDS, "I love jazz."]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("selector", "kept"),
    [({"session_id": "gone"}, [WORDS, "I love jazz."]), ({"everything": True}, ["I love jazz."])],
)
def test_an_erasure_during_an_extraction_in_a_graph(tmp_path, is_async, selector, kept):
    erasures = [selector]

    def remember(_message, *, deps):
        deps.upsert("likes", None, deps.user_msg)
        if erasures:
            alice.forget(**erasures.pop())

    diary = Diary(tmp_path, agent=remember)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", session_id="gone")
    nodes = [
        ("answer", lambda state: {"messages": [("ai", "ok")]}),
        ("extract", extract_node(diary)),
    ]
    graph = StateGraph(MessagesState).add_sequence(nodes).add_edge(START, "answer").compile()
    for text in (WORDS, "I love jazz."):
        said = {"messages": [("user", text)]}
        asyncio.run(graph.ainvoke(said, RUN)) if is_async else graph.invoke(said, RUN)
    assert likes(tmp_path) == kept


def test_a_turn_with_an_epoch_is_extracted_again_without_what_was_said_before():
    messages = []

    def remember(message, *, deps):
        messages.append(message)
        deps.upsert("likes", None, deps.user_msg)
        if len(messages) == 1:
            alice.forget(matching="heron")

    alice = Diary("memory:", agent=remember).user("alice")
    alice.blocks.set("notes", "a heron")
    said = [("I saw a heron.", "Nice.")]
    alice.add_turn(WORDS, "ok", "s", earlier=said, epoch=alice.epoch)
    assert ["heron" in message for message in messages] == [True, False]
    assert alice.traces("heron") == []
    assert [item.text for item in alice.preferences("likes").values()] == [WORDS]
    messages.clear()
    alice.blocks.set("notes", "a heron")
    with pytest.raises(Forgotten):  # without `epoch`, the caller decides
        alice.add_turn("I love jazz.", "ok", "s")


@pytest.mark.parametrize("adapter", [langchain, langgraph_submitting], ids=lambda f: f.__name__)
def test_runs_of_other_users_go_on_during_an_erasure(tmp_path, adapter):
    diary = Diary(tmp_path, agent="rules")
    run_during(diary, adapter, lambda: diary.user("bob").forget(everything=True))
    assert likes(tmp_path) == [WORDS, "I love jazz."]


# The tools of a run


def remembering_langchain(diary, meanwhile):
    asking = calling(("remember", {"text": WORDS, "category": "likes"}))
    model = Asked(answers=[asking, AIMessage("ok")], meanwhile=meanwhile)
    memory = DiaryMiddleware(diary, user_id="alice", session_id="s", tools="all")
    agent = create_agent(model, middleware=[memory])
    said = agent.invoke({"messages": [("user", "Note it.")]})["messages"]
    memory.writer.close_sync()
    return str(said[-2].content)


def calling_once(tool, meanwhile=lambda: None, **arguments):
    def respond(messages, _info):
        if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
            return ModelResponse(parts=[TextPart("ok")])
        meanwhile()
        return ModelResponse(parts=[ToolCallPart(tool, arguments)])

    return respond


def remembering_pydantic_ai(diary, meanwhile, *, record=True):
    respond = calling_once("remember", meanwhile, text=WORDS, category="likes")
    memory = DiaryCapability(diary, "alice", "s", record=record)
    agent = Agent(FunctionModel(respond), capabilities=[memory])
    said = asyncio.run(agent.run("Note it.")).all_messages()
    if record:
        memory.writer.close_sync()
    return str(said[-2].parts[0].content)


def remembering_pydantic_ai_unrecorded(diary, meanwhile):
    return remembering_pydantic_ai(diary, meanwhile, record=False)


def remembering_pydantic_ai_delegate(diary, meanwhile):
    memory = DiaryCapability(diary, "alice", "s", record=False)
    said = []

    def delegate() -> str:
        meanwhile()
        said.append(remembering_pydantic_ai(diary, lambda: None, record=False))
        return said[0]

    agent = Agent(FunctionModel(calling_once("delegate")), capabilities=[memory], tools=[delegate])
    asyncio.run(agent.run("Note it."))
    return said[0]


@pytest.mark.parametrize(
    ("engine", "run"),
    [
        *((name, remembering_pydantic_ai_unrecorded) for name in engines.ALL),
        ("folder", remembering_langchain),
        ("folder", remembering_pydantic_ai),
        ("folder", remembering_pydantic_ai_delegate),
    ],
    indirect=["engine"],
)
def test_tools_of_a_run_during_an_erasure_write_nothing(engine, opened, run):
    diary = Diary(opened(), agent="rules")
    alice = diary.user("alice")
    calls = [lambda: alice.forget(everything=True)]
    assert "forgotten since this run began" in run(diary, lambda: calls and calls.pop()())
    assert "canary" not in engine.texts()
    assert run(diary, lambda: None).startswith("✅")
    calls = [lambda: alice.forget(session_id="another")]
    assert run(diary, lambda: calls and calls.pop()()).startswith("✅")


# The race: the erasure comes while the turn is being stored


@shared
def test_an_erasure_while_turns_are_being_stored_leaves_none(engine, opened):
    diary = Diary(opened(), agent="rules")
    alice = diary.user("alice")
    with MemoryWriter(diary) as writer:
        for _ in range(6):
            began = alice.epoch
            eraser = threading.Thread(target=erase, args=(opened(),))
            eraser.start()
            receipts = [
                writer.submit_nowait(Turn("alice", "s", WORDS, "ok", epoch=began)) for _ in range(8)
            ]
            eraser.join(LONG)
            for receipt in receipts:  # some were perhaps applied before, and erased
                with suppress(Forgotten):
                    receipt.wait(LONG)
            assert "canary" not in engine.texts()
