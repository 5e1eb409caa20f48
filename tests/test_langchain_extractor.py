"""Extraction with any LangChain chat model, with tools or without."""

from __future__ import annotations

import asyncio
import importlib.metadata
from importlib.metadata import EntryPoint

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from scripted_chat import DONE, Scripted, calling
from tomldiary import Diary, MemoryWriter
from tomldiary.errors import ExtractionError, SchemaError
from tomldiary_langchain import ChatModelExtractor

both = pytest.mark.parametrize("mode", ["sync", "async"])


def extraction(*answers, **options):
    model = Scripted(answers=list(answers))
    diary = Diary("memory:", agent=ChatModelExtractor(model, **options))
    return model, diary


@both
def test_a_chat_model_updates_the_diary_through_the_six_tools(mode):
    model, diary = extraction(
        calling(("list_categories", {}), ("list_preferences", {"category": "likes"})),
        calling(
            ("upsert_preference", {"category": "likes", "text": "tea", "contexts": ["am"]}),
            ("upsert_preference", {"category": "likes", "id": "pref001", "text": "green tea"}),
            ("update_conversation_summary", {"summary": "About tea.", "keywords": ["tea"]}),
            ("list_conversation_summary", {"session_id": "s1"}),
        ),
        DONE,
    )
    alice = diary.user("alice")
    if mode == "sync":
        alice.add_turn("I like <tea>.", "Nice.", session_id="s1")
    else:
        asyncio.run(alice.aadd_turn("I like <tea>.", "Nice.", session_id="s1"))
    assert [item.text for item in alice.preferences("likes").values()] == ["green tea"]
    assert alice.conversations()["s1"].summary == "About tea."
    assert {one["name"] for one in model.offered} == {
        "list_categories", "list_preferences", "upsert_preference", "forget_preference",
        "list_conversation_summary", "update_conversation_summary",
    }  # fmt: skip
    upsert = next(one for one in model.offered if one["name"] == "upsert_preference")
    assert set(upsert["parameters"]["properties"]) == {
        "category", "id", "text", "contexts", "suppress_count_increment",
    }  # fmt: skip
    assert upsert["parameters"]["required"] == ["category"]
    assert "Leave out, with an id, to only confirm." in upsert["description"]
    system, user = model.asked[0]
    assert "- **likes**" in system.content
    assert "{" not in system.content
    assert "I like &lt;tea&gt;." in user.content
    answers = [one for one in model.asked[-1] if isinstance(one, ToolMessage)]
    assert [one.tool_call_id for one in answers] == ["c0", "c1", "c0", "c1", "c2", "c3"]
    assert all(one.status == "success" for one in answers)
    assert "About tea." in answers[-1].content


def test_wrong_calls_are_answered_and_the_model_goes_on():
    broken = AIMessage(
        "",
        invalid_tool_calls=[
            {"name": "upsert_preference", "args": "{", "id": "c9", "error": "bad JSON",
             "type": "invalid_tool_call"}
        ],
    )  # fmt: skip
    model, diary = extraction(
        calling(
            ("drop_everything", {}),
            ("upsert_preference", {"category": "likes", "text": ["tea"]}),
            ("upsert_preference", {"text": "tea"}),
            ("upsert_preference", {"category": "nope", "text": "tea"}),
            ("forget_preference", {"category": "likes", "id": "pref001"}),
        ),
        broken,
        calling(("upsert_preference", {"category": "likes", "text": "tea", "ctx": 1, "x": 2})),
        DONE,
    )
    diary.user("alice").add_turn("I like tea.", "Nice.", session_id="s1")
    answers = [one for one in model.asked[-1] if isinstance(one, ToolMessage)]
    assert [one.status for one in answers] == ["error"] * 6 + ["success"]
    texts = [one.content for one in answers]
    assert "Use one of: list_categories" in texts[0]
    assert "upsert_preference: text: " in texts[1]
    assert "category: Field required" in texts[2]
    assert "not allowed" in texts[3]
    assert "bad JSON" in texts[5]
    assert len(diary.user("alice").preferences("likes")) == 1


def test_a_model_that_never_ends_is_stopped_and_changes_nothing():
    looping = calling(("upsert_preference", {"category": "likes", "id": "new", "text": "tea"}))
    model, diary = extraction(looping, max_rounds=3)
    with pytest.raises(ExtractionError, match="after 3 answers"):
        diary.user("alice").add_turn("I like tea.", "Nice.", session_id="s1")
    assert len(model.asked) == 3
    assert diary.users() == []
    _, diary = extraction(looping, DONE, max_rounds=2)
    diary.user("alice").add_turn("I like tea.", "Nice.", session_id="s1")
    assert len(diary.user("alice").preferences("likes")) == 1
    with pytest.raises(ValueError, match="max_rounds"):
        ChatModelExtractor(model, max_rounds=0)


def test_a_failing_model_changes_nothing():
    store = calling(("upsert_preference", {"category": "likes", "text": "tea"}))
    _, diary = extraction(store, OSError("no line"))
    with pytest.raises(ExtractionError, match="no line"):
        diary.user("alice").add_turn("I like tea.", "Nice.", session_id="s1")
    assert diary.users() == []


def test_a_model_without_tools_is_refused_when_the_extractor_is_made():
    with pytest.raises(SchemaError, match="GenericFakeChatModel cannot call tools"):
        ChatModelExtractor(GenericFakeChatModel(messages=iter([])))


def test_one_extractor_serves_many_users_at_once():
    class Echo(Scripted):
        def _generate(self, messages, stop=None, run_manager=None, **_):
            if isinstance(messages[-1], ToolMessage):
                answer = DONE
            else:
                said = messages[1].content.split("<user_message>")[1].split("<")[0]
                answer = calling(("upsert_preference", {"category": "likes", "text": said}))
            return ChatResult(generations=[ChatGeneration(message=answer)])

    diary = Diary("memory:", agent=ChatModelExtractor(Echo(answers=[])))

    async def work():
        async with MemoryWriter(diary) as writer:
            for number in range(12):
                await writer.submit(f"user{number}", "s", f"thing {number}", "ok")

    asyncio.run(work())
    for number in range(12):
        items = diary.user(f"user{number}").preferences("likes").values()
        assert [item.text for item in items] == [f"thing {number}"]


def test_a_chat_model_is_an_agent_of_the_diary_through_the_entry_point(monkeypatch):
    line = EntryPoint(
        "chat_model_extractor",
        "tomldiary_langchain.extractor:ChatModelExtractor",
        "tomldiary.extractors",
    )
    installed = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda **wanted: [line] if wanted.get("name") == line.name else installed(**wanted),
    )
    store = calling(("upsert_preference", {"category": "likes", "text": "tea"}))
    diary = Diary("memory:", agent=Scripted(answers=[store, DONE]))
    diary.user("alice").add_turn("I like tea.", "Nice.", session_id="s1")
    assert [item.text for item in diary.user("alice").preferences("likes").values()] == ["tea"]
