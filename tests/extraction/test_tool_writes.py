"""One saying counts once, also where an agent with memory tools stands in front of a writer."""

from __future__ import annotations

import asyncio

import pytest

from tomldiary import Diary, ExtractionError, MemoryWriter
from tomldiary.agents.verbs import MemoryVerbs


def likes(diary):
    entries = diary.user("alice").preferences("likes").values()
    return [(item.text, item.count) for item in entries]


def pydantic_ai_run(diary, writer, prompt, tool, arguments):
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent  # noqa: PLC0415 - optional
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart  # noqa: PLC0415
    from pydantic_ai.models.function import FunctionModel  # noqa: PLC0415

    from tomldiary_pydantic_ai import DiaryCapability  # noqa: PLC0415

    def respond(messages, _info):
        if any(part.part_kind == "tool-return" for part in messages[-1].parts):
            return ModelResponse(parts=[TextPart("Done.")])
        return ModelResponse(parts=[ToolCallPart(tool, arguments)])

    memory = DiaryCapability(diary, "alice", writer=writer)
    asyncio.run(Agent(FunctionModel(respond), capabilities=[memory]).run(prompt))


def langchain_run(diary, writer, prompt, tool, arguments):
    pytest.importorskip("langchain")
    from langchain.agents import create_agent  # noqa: PLC0415 - optional
    from langchain_core.messages import AIMessage  # noqa: PLC0415

    from scripted_chat import Scripted  # noqa: PLC0415
    from tomldiary_langchain import DiaryMiddleware, diary_tools  # noqa: PLC0415

    call = {"name": tool, "args": arguments, "id": "call-1"}
    model = Scripted(answers=[AIMessage("", tool_calls=[call]), AIMessage("Done.")])
    agent = create_agent(
        model,
        tools=diary_tools(diary, user_id="alice", session_id="s1"),
        middleware=[DiaryMiddleware(diary, writer=writer, user_id="alice", session_id="s1")],
    )
    agent.invoke({"messages": [{"role": "user", "content": prompt}]})


RUNS = pytest.mark.parametrize("run", [pydantic_ai_run, langchain_run])


@RUNS
def test_an_entry_that_a_tool_forgets_is_not_stored_by_the_writer(tmp_path, run):
    diary = Diary(tmp_path, agent="rules")
    diary.user("alice").upsert_preference("likes", "I love tango.")
    with MemoryWriter(diary) as writer:
        words = "I love tango was wrong, take it out."
        run(diary, writer, words, "forget", {"key": "likes/pref001"})
        assert writer.flush(30)
    assert likes(diary) == []
    assert [talk.turns for talk in diary.user("alice").conversations().values()] == [1]


@RUNS
def test_words_of_an_entry_that_a_tool_updates_are_stored_once(tmp_path, run):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("biography", "Lives in Bergen")
    corrected = {"key": "biography/pref001", "text": "Lives in Oslo"}
    with MemoryWriter(diary) as writer:
        run(diary, writer, "I live in Oslo now.", "update", corrected)
        assert writer.flush(30)
    assert [item.text for item in alice.preferences("biography").values()] == ["Lives in Oslo"]


def test_a_correction_to_what_a_tool_stored_is_counted_once():
    def extract(message, *, deps):
        deps.upsert("likes", "pref001", "coffee")

    alice = Diary("memory:", agent=extract).user("alice")
    alice.upsert_preference("likes", "tea")
    MemoryVerbs(alice, "s1").remember("coffee", "likes")
    alice.add_turn("Coffee instead of tea.", "Noted.", session_id="s1")
    [(key, item)] = alice.preferences("likes").items()
    assert (key, item.text, item.count) == ("pref002", "coffee", 1)


@RUNS
def test_contractions_are_stored_once_with_a_tool(tmp_path, run):
    diary = Diary(tmp_path, agent="rules")
    noted = {"text": "Allergic to walnuts", "category": "allergies"}
    with MemoryWriter(diary) as writer:
        run(diary, writer, "I'm allergic to walnuts.", "remember", noted)
        assert writer.flush(30)
    stored = diary.user("alice").preferences("allergies").values()
    assert [(item.text, item.count) for item in stored] == [("Allergic to walnuts", 1)]


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (pydantic_ai_run, "Please remember that I love tango."),
        (langchain_run, "Remember: I love tango!"),
        (pydantic_ai_run, "Don't forget that I love tango."),
        (langchain_run, "From now on, keep in mind that I love tango."),
        (pydantic_ai_run, "I love tango, please remember that."),
    ],
)
def test_words_that_ask_to_remember_are_stored_once_with_a_tool(tmp_path, run, words):
    diary = Diary(tmp_path, agent="rules")
    with MemoryWriter(diary) as writer:
        run(diary, writer, words, "remember", {"text": "loves tango", "category": "likes"})
        run(diary, writer, "Remember that I love waltzes.", "recall", {"query": "tango"})
        assert writer.flush(30)
    assert likes(diary) == [("loves tango", 1), ("Remember that I love waltzes.", 1)]


@RUNS
@pytest.mark.parametrize("text", ["I love tango.", "loves tango"])
def test_an_entry_that_a_tool_stores_counts_once_with_a_writer(tmp_path, run, text):
    diary = Diary(tmp_path, agent="rules")
    with MemoryWriter(diary) as writer:
        run(diary, writer, "I love tango.", "remember", {"text": text, "category": "likes"})
        assert writer.flush(30)
    assert likes(diary) == [(text, 1)]
    assert [talk.turns for talk in diary.user("alice").conversations().values()] == [1]


@pytest.mark.parametrize("before", ["failed", "repeated"])
def test_an_entry_of_a_tool_counts_once_beside_a_turn_that_is_given_again(before):
    def listen(message, *, deps):
        if failures:
            raise failures.pop()
        if "tea" in deps.user_msg:
            deps.upsert("likes", None, deps.user_msg)

    diary, failures = Diary("memory:", agent=listen), []
    alice, words = diary.user("alice"), "I like tea."
    alice.add_turn("Hello.", "ok", session_id="s", operation_id="first")
    alice.upsert_preference("likes", words, session_id="s", actor="agent")
    if before == "failed":
        failures.append(ConnectionError())
        with pytest.raises(ExtractionError):
            alice.add_turn(words, "ok", session_id="s")
    else:
        alice.add_turn("Hello.", "ok", session_id="s", operation_id="first")
    alice.add_turn(words, "ok", session_id="s")
    assert likes(diary) == [(words, 1)]
