"""The memory in the conversation itself: told once, then what changed, and always as data."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import programs

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, models
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import (
    CompactionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from tomldiary import Diary, MemoryWriter
from tomldiary.agents.verbs import ENTRY_VERBS
from tomldiary.errors import BackendError, IdentifierError, InvalidTOML, InvalidValue
from tomldiary_pydantic_ai import AgentMemoryToolset, DiaryCapability, DiaryToolset
from tomldiary_pydantic_ai.conversation import CAN_APPEND

if TYPE_CHECKING:
    from collections.abc import Iterator

models.ALLOW_MODEL_REQUESTS = False

ROOT = Path(__file__).parents[3]


class Talk:
    """A conversation with an agent, and what its model was sent in the last request."""

    def __init__(self, capability: Any, *more: Any, **options: Any) -> None:
        self.instructions: list[str] = []
        self.sent: list[list[ModelMessage]] = []
        self.replies: list[ModelResponse] = []
        self.messages: list[ModelMessage] = []
        model = FunctionModel(self._answer)
        self.agent: Agent[Any, str] = Agent(model, capabilities=[capability, *more], **options)

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.instructions.append(info.instructions or "")
        self.sent.append(list(messages))
        return self.replies.pop(0) if self.replies else ModelResponse(parts=[TextPart("hm")])

    def say(self, prompt: str | None, **options: Any) -> str:
        """Say something, and return what the diary told the model after it; "" if nothing."""
        before = sum(len(told(message)) for message in self.messages)
        result = asyncio.run(
            self.agent.run(prompt, message_history=self.messages or None, **options)
        )
        self.messages = result.all_messages()
        return "\n".join([text for message in self.messages for text in told(message)][before:])


def told(message: ModelMessage) -> list[str]:
    return [
        item.content
        for part in message.parts
        if isinstance(part, UserPromptPart) and not isinstance(part.content, str)
        for item in part.content
        if isinstance(item, TextContent)
    ]


def read_nothing(_message: str, *, deps: Any) -> None:
    """Extract nothing: these tests are about what models are told."""


def diary_with(*likes: str, path: Any = "memory:") -> Diary:
    diary = Diary(path, agent=read_nothing)
    with diary.user("alice").transaction():
        for text in likes:
            diary.user("alice").upsert_preference("likes", text)
    return diary


MANY = [f"fact number {n}" for n in range(20)]


# What the model is told, and when


def test_the_memory_is_injected_once_and_then_its_changes(tmp_path: Path):
    diary = diary_with(*MANY)
    alice = diary.user("alice")
    talk = Talk(DiaryCapability(diary, "alice"))
    assert talk.say("hello").count("\n- likes: ") == 20
    assert talk.say("again") == ""
    alice.upsert_preference("goals", "run")
    assert talk.say("third").splitlines()[1:-1] == ["+ goals: run"]
    alice.upsert_preference("goals", "sail", id="pref001")
    withdrawal = 'no longer: every earlier line that begins with "goals:"'
    assert talk.say("and then").splitlines()[1:-1] == [withdrawal, "+ goals: sail (2×)"]
    assert talk.say("fourth") == ""


def test_twenty_turns_with_changes_stay_within_a_token_budget(tmp_path: Path):
    # Peers need 85,000 to 121,000 units for the same; the benchmark runs them.
    place = ROOT / "benchmarks" / "pydantic_ai.py"
    spec = importlib.util.spec_from_file_location("memory_benchmark", place)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    found = asyncio.run(benchmark.characters(benchmark.Side("ours", str(tmp_path), 40)))
    assert found["units"] <= 30_000
    assert found["last request"] <= 13_100


def test_every_request_begins_with_the_one_before_it():
    diary = diary_with(*MANY)
    talk = Talk(DiaryCapability(diary, "alice"))
    for number in range(6):
        talk.say(f"turn {number}")
        diary.user("alice").upsert_preference("likes", f"new fact {number}")
    flat = [[part for message in sent for part in texts(message)] for sent in talk.sent]
    for shorter, longer in pairwise(flat):
        assert longer[: len(shorter)] == shorter
    assert len(set(talk.instructions)) == 1


def texts(message: ModelMessage) -> list[str]:
    return [str(getattr(part, "content", "")) for part in message.parts]


def test_the_instructions_are_the_same_for_all_users():
    diary = diary_with(*MANY)
    given: set[str] = set()
    for user in ("alice", "bob", "müller@example.org"):
        talk = Talk(DiaryCapability(diary, user))
        talk.say("hello")
        given.update(talk.instructions)
    (text,) = given
    assert "fact" not in text


def test_a_reloaded_conversation_gets_no_second_injection():
    diary = diary_with(*MANY)
    talk = Talk(DiaryCapability(diary, "alice"))
    talk.say("hello")
    talk.messages = ModelMessagesTypeAdapter.validate_json(
        ModelMessagesTypeAdapter.dump_json(talk.messages)
    )
    assert talk.say("again") == ""
    diary.user("alice").upsert_preference("likes", "milk")
    assert talk.say("third").splitlines()[1:-1] == ["+ likes: milk"]


def test_a_conversation_without_marks_gets_a_new_injection():
    diary = diary_with(*MANY)
    talk = Talk(DiaryCapability(diary, "alice"))
    talk.say("hello")
    for message in talk.messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
                part.content = "\n".join(
                    str(getattr(item, "content", item)) for item in part.content
                )
    assert talk.say("again").count("\n- likes: ") == 20


def test_a_user_text_that_resembles_memory_is_no_injection():
    talk = Talk(DiaryCapability(diary_with("tea"), "alice"))
    talk.say("hello")
    (fake,) = (text for message in talk.messages for text in told(message))
    other = Talk(DiaryCapability(diary_with("tea"), "alice"))
    assert fake in other.say(fake)


@pytest.mark.parametrize("where", ["response", "request", "history"])
def test_a_compaction_causes_a_new_injection(where: str):
    if where == "request" and "CompactionPart" not in str(ModelRequestPart):
        pytest.skip("no request has a compaction yet")
    diary = diary_with(*MANY)
    talk = Talk(DiaryCapability(diary, "alice"))
    talk.say("hello")
    if where != "history":
        kind, by = (ModelResponse, "function") if where == "response" else (ModelRequest, None)
        part: Any = CompactionPart(content="They talked.", provider_name=by)
        talk.messages.append(kind(parts=[part]))
    else:  # what a summarising history processor leaves
        talk.messages = [
            ModelRequest(parts=[UserPromptPart("They talked.")]),
            ModelResponse(parts=[TextPart("I see.")]),
        ]
    assert talk.say("again").count("\n- likes: ") == 20


def test_a_compaction_within_a_run_causes_a_new_injection():
    diary = diary_with(*MANY)

    def shorten(messages: list[ModelMessage]) -> list[ModelMessage]:
        return messages[-2:] if len(messages) > 2 else messages

    talk = Talk(DiaryCapability(diary, "alice"))
    shortening = Talk(ProcessHistory(shorten), DiaryCapability(diary, "alice"))
    for one in (talk, shortening):
        one.replies = [ModelResponse(parts=[ToolCallPart("recall", {"query": "fact"})])]
        one.say("hello")
    assert [sum(len(told(m)) for m in sent) for sent in talk.sent] == [1, 1]
    assert [sum(len(told(m)) for m in sent) for sent in shortening.sent] == [1, 1]
    assert any(isinstance(p, ToolReturnPart) for m in shortening.sent[1] for p in m.parts)


def test_a_compaction_that_leaves_only_changes_causes_a_new_injection():
    diary = diary_with(*MANY)
    shortening = ProcessHistory(lambda messages: messages[-4:])
    talk = Talk(shortening, DiaryCapability(diary, "alice"))
    talk.say("hello")
    diary.user("alice").upsert_preference("likes", "chess")
    talk.replies = [ModelResponse(parts=[ToolCallPart("recall", {"query": "fact"})])]
    talk.say("again")
    assert [
        [text.partition(" ")[0] for message in sent for text in told(message)]
        for sent in talk.sent[1:]
    ] == [["<user_memory", "<user_memory_changes"], ["<user_memory_changes", "<user_memory"]]


def test_memory_is_injected_at_the_prompt_not_among_tool_results():
    diary = diary_with(*MANY)
    talk = Talk(DiaryCapability(diary, "alice"))
    talk.replies = [
        ModelResponse(parts=[ToolCallPart("remember", {"text": "milk", "category": "likes"})])
    ]
    assert "milk" not in talk.say("I like milk")
    last = talk.sent[1][-1]
    assert [part.part_kind for part in last.parts] == ["tool-return"]
    assert talk.say("again").splitlines()[1:-1] == ["+ likes: milk"]


def test_a_prompt_after_unanswered_tool_results_is_told_the_changes():
    diary = diary_with("tea")
    talk = Talk(DiaryCapability(diary, "alice"))
    talk.replies = [ModelResponse(parts=[ToolCallPart("recall", {"query": "tea"})])]
    talk.say("hello")
    assert isinstance(talk.messages.pop().parts[0], TextPart)  # the host left before the answer
    diary.user("alice").upsert_preference("likes", "chess")
    # where UI adapters put the prompt
    talk.messages.append(ModelRequest(parts=[UserPromptPart("again")]))
    assert talk.say(None).splitlines()[1:-1] == ["+ likes: chess"]


def test_system_prompt_and_prompt_keep_their_place():
    talk = Talk(DiaryCapability(diary_with("tea"), "alice"), system_prompt="Be kind.")
    talk.say("hello")
    kinds = [type(part) for message in talk.sent[0] for part in message.parts]
    assert kinds == [SystemPromptPart, UserPromptPart, UserPromptPart]
    assert texts(talk.sent[0][0])[:2] == ["Be kind.", "hello"]


def test_two_memories_in_one_agent_are_kept_apart():
    team = diary_with("deploys on Fridays")
    own = diary_with("tea")
    first = DiaryCapability(own, "alice", heading="## Yours")
    second = DiaryCapability(team, "alice", heading="## The team's", id="team", tools="none")
    talk = Talk(first, second)
    text = talk.say("hello")
    assert "<user_memory" in text.partition("\n## Yours\n- ")[0].splitlines()[-1]
    assert "<user_memory" in text.partition("\n## The team's\n- ")[0].splitlines()[-1]
    team.user("alice").upsert_preference("likes", "rolls back on Mondays")
    assert "Mondays" in talk.say("again")
    assert "tea" not in talk.say("third")
    assert '<user_memory name="team" note=' in text
    assert '<user_memory_changes name="team"' in str(talk.messages)
    (guidance,) = set(talk.instructions)
    assert guidance.count("about this user") == 1
    assert 'You have a diary named "team"' in guidance
    assert "Memory is given in <user_memory>;" in guidance
    assert 'Memory is given in <user_memory name="team">;' in guidance
    assert guidance.count("of the same name and user") == 2


def test_two_users_of_one_diary_need_two_ids():
    diary = diary_with("tea")
    # Older releases refuse equal ids themselves.
    with pytest.raises((InvalidValue, UserError), match="id 'diary'"):
        Talk(DiaryCapability(diary, "alice"), DiaryCapability(diary, "team")).say("hello")


def test_what_a_renamed_tool_looks_up_is_in_no_episode():
    with MemoryWriter(diary_with("deploys on Fridays")) as writer:
        team = DiaryCapability(writer.diary, "alice", id="team", writer=writer, episodes=True)
        own = DiaryToolset(diary_with("tea"), "alice", id="own", tools="read")
        look_up = own.renamed({"look_up": "recall", "look_at": "read_block"})
        talk = Talk(team, toolsets=[look_up])
        talk.replies.append(ModelResponse([ToolCallPart("look_up", {"query": "tea"})]))
        talk.say("hello")
        writer.flush()
        assert "tea" in str(talk.messages)
        (episode,) = writer.diary.user("alice").episodes()
        assert (episode.input, episode.steps) == ("hello", ())


@pytest.mark.parametrize("is_first", [True, False])
def test_memory_is_injected_for_any_order_of_capabilities(is_first: bool):
    def shorten(messages: list[ModelMessage]) -> list[ModelMessage]:
        return messages[-1:]

    memory = DiaryCapability(diary_with("tea"), "alice", record=False)
    given: list[Any] = [memory, ProcessHistory(shorten)]
    talk = Talk(*(given if is_first else given[::-1]))
    for number in range(6):
        talk.say(f"turn {number}")
    assert [sum(len(told(m)) for m in sent) for sent in talk.sent] == [1] * 6


def named_tools(diary: Diary, kind: str) -> dict[str, Any]:
    toolset = DiaryToolset(diary, "alice", max_tokens=60)
    capability = DiaryCapability(diary, "alice", max_tokens=60)
    return {
        "toolset": {"toolsets": [toolset.prefixed("mem")]},
        "capability": {"capabilities": [capability.prefix_tools("mem")]},
        "renamed": {"toolsets": [toolset.renamed({"mem_recall": "recall"})]},
    }[kind]


@pytest.mark.parametrize("kind", ["toolset", "capability", "renamed"])
def test_hints_name_the_tools_as_the_model_sees_them(kind: str):
    sent: list[str] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(f"{info.instructions} {messages!r}")
        return ModelResponse(parts=[TextPart("hm")])

    agent = Agent(FunctionModel(respond), **named_tools(diary_with(*MANY), kind))
    asyncio.run(agent.run("hello"))
    assert "are stored: use mem_recall)" in sent[0]
    assert ("(mem_forget)" if kind != "renamed" else "(forget)") in sent[0]


def test_the_guidance_names_only_available_tools():
    def instructions(toolset: Any) -> str:
        model = TestModel(call_tools=[])
        asyncio.run(Agent(model, toolsets=[toolset]).run("hello"))
        parameters = model.last_model_request_parameters
        assert parameters is not None
        return "\n".join(part.content for part in parameters.instruction_parts or [])

    toolset = DiaryToolset(diary_with(*MANY), "alice", max_tokens=60)
    reading = instructions(toolset.filtered(lambda _, tool: tool.name == "recall"))
    assert "use recall)" in reading
    assert "Note down" not in reading
    assert "Note something down" not in reading
    without = instructions(toolset.filtered(lambda _, tool: tool.name != "recall"))
    assert "stored: use" not in without
    assert "Look into it" not in without
    assert "(remember)" in without


@pytest.mark.parametrize("record", [True, False])
def test_the_guidance_asks_for_notes_only_without_a_writer(record: bool):
    talk = Talk(DiaryCapability(diary_with("tea"), "alice", record=record))
    talk.say("hello")
    assert ("Note down what users say" in talk.instructions[0]) is not record
    assert ("only if the user asks for it" in talk.instructions[0]) is record


@pytest.mark.parametrize("name", ["diary", "team"])
def test_the_guidance_ranks_what_the_user_says_now_above_the_memory(name: str):
    talk = Talk(DiaryCapability(diary_with(), "alice", id=name, record=False))
    talk.say("I moved to Rome.")
    assert "unless the user now says otherwise" in talk.instructions[0]
    assert "If none is given, there is none to show." in talk.instructions[0]


def test_the_guidance_does_not_deny_entries_that_only_a_tool_finds():
    diary = diary_with()
    diary.user("alice").episodes.add("Where is the key?", "Under the mat.")
    talk = Talk(DiaryCapability(diary, "alice", record=False))
    talk.say("Where is the key?")
    assert "nothing is known" not in f"{talk.instructions}{talk.sent}"
    assert [hit.kind for hit in diary.user("alice").recall("key")] == ["episodes"]


def test_an_entry_that_a_tool_also_stores_counts_once(tmp_path: Path):
    diary = Diary(tmp_path, agent="rules")
    capability = DiaryCapability(diary, "alice", "s1")
    talk = Talk(capability)
    call = ToolCallPart("remember", {"text": "I love green tea.", "category": "likes"})
    talk.replies = [ModelResponse(parts=[call])]
    talk.say("I love green tea.")
    assert capability.writer is not None
    assert capability.writer.flush(30)
    capability.writer.close_sync()
    assert [item.count for item in diary.user("alice").preferences("likes").values()] == [1]


def test_the_data_of_an_answer_is_in_the_metadata_of_the_tool_return():
    talk = Talk(DiaryCapability(diary_with("tea"), "alice", record=False))
    calls = [ToolCallPart("recall", {"query": "tea"}), ToolCallPart("forget", {"key": "likes/no"})]
    talk.replies = [ModelResponse(parts=calls)]
    talk.say("hello")
    returns = [part for m in talk.messages for part in m.parts if isinstance(part, ToolReturnPart)]
    assert "likes/pref001: tea" in str(returns[0].content)
    assert returns[0].metadata[0]["text"] == "tea"
    assert str(returns[1].content).startswith("❌")
    assert returns[1].metadata is None
    ModelMessagesTypeAdapter.dump_json(talk.messages)


def test_frames_name_their_user_if_a_conversation_has_several():
    diary = diary_with("tea")
    diary.user("bob").upsert_preference("likes", "milk")
    talk = Talk(DiaryCapability(diary, lambda ctx: ctx.deps), deps_type=str)
    assert "about=" not in talk.say("hello", deps="alice")
    assert '<user_memory about="bob" note=' in talk.say("it is Bob now", deps="bob")
    again = talk.say("Alice again", deps="alice")
    assert '<user_memory about="alice" note=' in again
    assert "likes: tea" in again
    assert talk.say("and again", deps="alice") == ""
    diary.user("bob").upsert_preference("goals", "run")
    assert "+ goals: run" in talk.say("Bob again", deps="bob") or "- goals: run" in str(
        talk.messages[-2]
    )


def test_a_user_without_memory_is_not_taken_for_another_one():
    talk = Talk(DiaryCapability(diary_with("tea"), lambda ctx: ctx.deps), deps_type=str)
    assert "likes: tea" in talk.say("hello", deps="alice")
    text = talk.say("it is Bob now", deps="bob")
    assert '<user_memory about="bob" note=' in text
    assert "(nothing is known)" in text
    assert talk.say("and again", deps="bob") == ""


def test_two_diaries_under_one_id_are_refused():
    first, second = (DiaryCapability(diary_with(text), "alice") for text in ("tea", "milk"))
    with pytest.raises(Exception, match="id"):
        Talk(first, second).say("hello")


def test_each_user_of_a_conversation_gets_its_own_memory():
    diary = diary_with("tea")
    diary.user("bob").upsert_preference("likes", "milk")
    talk = Talk(DiaryCapability(diary, lambda ctx: ctx.deps), deps_type=str)
    assert "likes: tea" in talk.say("hello", deps="alice")
    text = talk.say("hello, it is Bob now", deps="bob")
    assert "likes: milk" in text
    assert "tea" not in text


def test_matches_of_the_prompt_are_injected_first_where_the_budget_cuts():
    diary = diary_with("sails at weekends", *MANY, *MANY)
    talk = Talk(DiaryCapability(diary, "alice", max_tokens=60))
    assert "sails" not in talk.say("hello")
    assert "likes: sails at weekends" in talk.say("Where could I go sailing?")


def test_a_repeated_run_is_told_what_matches_its_words():
    diary = diary_with("sails at weekends", *MANY, *MANY)
    talk = Talk(DiaryCapability(diary, "alice", "s1", max_tokens=60))

    def fail(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(500, "scripted")

    with pytest.raises(ModelHTTPError):
        talk.say("Where could I go sailing?", model=FunctionModel(fail))
    assert "sails at weekends" in talk.say("Where could I go sailing?")


def in_a_capability(diary: Diary, user: str) -> dict[str, Any]:
    return {"capabilities": [DiaryCapability(diary, user, inject="instructions", record=False)]}


def in_a_toolset(diary: Diary, user: str) -> dict[str, Any]:
    return {"toolsets": [DiaryToolset(diary, user, inject="instructions")]}


def as_notes(diary: Diary, user: str) -> dict[str, Any]:
    return {"toolsets": [AgentMemoryToolset(memory_dir=diary, user_id=user)]}


@pytest.mark.parametrize("has_memory", [in_a_capability, in_a_toolset, as_notes])
def test_instructions_show_no_memory_of_another_user_of_the_conversation(has_memory: Any):
    diary, messages = Diary("memory:", agent=read_nothing), None
    instructions: list[str] = []
    sent: list[str] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        instructions.append(info.instructions or "")
        sent.append(f"{info.instructions} {[each.parts for each in messages]}")
        return ModelResponse(parts=[TextPart("hm")])

    for user, text in (("ann", "tea"), ("ann", "cocoa"), ("bob", "milk"), ("eve", "")):
        if text:
            diary.user(user).upsert_preference("likes", text)
            diary.user(user).blocks.set("main", f"- {text}")
        agent: Agent[None, str] = Agent(FunctionModel(respond), **has_memory(diary, user))
        messages = asyncio.run(agent.run("hello", message_history=messages)).all_messages()
    shown = [[word for word in ("tea", "cocoa", "milk") if word in text] for text in sent]
    assert "cocoa" in shown[1]
    assert shown[2:] == [["milk"], []]
    assert (instructions[0] == instructions[1]) is CAN_APPEND  # for prompt caches


def test_memory_is_in_the_instructions_only_on_request():
    diary = diary_with(*MANY)
    talk = Talk(DiaryCapability(diary, "alice", inject="instructions"))
    assert talk.say("hello") == ""
    assert "likes: fact number 7" in talk.instructions[0]
    diary.user("alice").upsert_preference("likes", "milk")
    talk.say("again")
    everything = talk.instructions[1] + str(talk.sent[1])
    assert "milk" in everything
    # Where the framework can, the first text stays as it was, and the change comes after it.
    assert ("milk" not in talk.instructions[1]) is CAN_APPEND
    hidden = Talk(DiaryCapability(diary, "alice", inject=False))
    hidden.say("hello")
    assert "fact number" not in hidden.instructions[0] + str(hidden.sent)


def test_a_capability_offers_the_tools_of_the_toolset(tmp_path: Path):
    def offered(**options: Any) -> list[str]:
        model = TestModel(call_tools=[])
        memory = DiaryCapability(tmp_path, "alice", record=False, **options)
        agent = Agent(model, capabilities=[memory])
        asyncio.run(agent.run("hello"))
        parameters = model.last_model_request_parameters
        assert parameters is not None
        return [tool.name for tool in parameters.function_tools]

    assert offered() == [*ENTRY_VERBS]
    assert offered(tools="read") == ["recall"]
    assert offered(tools="none") == []
    with pytest.raises(InvalidValue, match="there is no tool 'write'"):
        DiaryCapability(tmp_path, "alice", tools=["write"])
    prefixed = Talk(DiaryCapability(diary_with("tea"), "alice").prefix_tools("diary"))
    prefixed.replies = [ModelResponse(parts=[ToolCallPart("diary_recall", {"query": "tea"})])]
    assert "likes: tea" in prefixed.say("hello")
    assert "likes/pref001: tea" in str(prefixed.sent[1])


def test_the_owner_of_a_run_is_resolved_once():
    asked: list[str] = []

    def user(ctx: Any) -> str:
        asked.append(ctx.run_id)
        return "alice"

    diary = diary_with("tea")
    talk = Talk(DiaryCapability(diary, user))
    call = ToolCallPart("remember", {"text": "milk", "category": "likes"})
    talk.replies = [ModelResponse(parts=[call])]
    talk.say("hello")
    assert len(asked) == 1
    assert len(diary.user("alice").preferences("likes")) == 2


def test_an_unreadable_memory_fails_a_run_only_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice" / "preferences.toml").write_text("= broken", encoding="utf-8")
    assert Talk(DiaryCapability(tmp_path, "alice")).say("hello") == ""
    file = tmp_path / "alice" / "preferences.toml"
    assert f"a run continues without its memory: InvalidTOML: {file}:1:1: " in caplog.text
    with pytest.raises(InvalidTOML):
        Talk(DiaryCapability(tmp_path, "alice", on_error="raise")).say("hello")


def test_a_user_with_unreadable_memory_is_not_taken_for_another_one(tmp_path: Path):
    diary = diary_with("tea", path=tmp_path)
    file = tmp_path / "bob" / "preferences.toml"
    file.parent.mkdir()
    file.write_text("= broken", encoding="utf-8")
    talk = Talk(DiaryCapability(diary, lambda ctx: ctx.deps, record=False), deps_type=str)
    assert "likes: tea" in talk.say("hello", deps="alice")
    text = talk.say("it is Bob now", deps="bob")
    assert '<user_memory about="bob" note=' in text
    assert "(nothing is known)" in text
    assert talk.say("and again", deps="bob") == ""
    file.unlink()
    diary.user("bob").upsert_preference("likes", "milk")
    text = talk.say("and now", deps="bob")
    assert "likes: milk" in text
    file.write_text("= broken", encoding="utf-8")
    assert talk.say("and then", deps="bob") == ""


@pytest.mark.parametrize(
    "options", [{}, {"system_prompt": "Be kind."}, {"instructions": "Be kind."}]
)
def test_a_run_without_a_prompt_gets_the_memory(options: Any):
    talk = Talk(DiaryCapability(diary_with("tea"), "alice"), **options)
    assert "likes: tea" in talk.say(None)
    assert "likes: tea" in str(talk.sent[0])
    if "instructions" in options:
        assert "Be kind." in talk.instructions[0]


# What is refused when it is given


class Store:
    """What has a diary, as the adapters' stores have."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary


def wrong_options(path: Path) -> dict[str, tuple[dict[str, Any], str]]:
    mine = Diary(path / "mine", agent="rules")
    return {
        "writer of rules": ({"writer": "rules"}, "expected a MemoryWriter, found str"),
        "writer elsewhere": (
            {"writer": MemoryWriter(Diary(path / "other", agent="rules"))},
            "Create it with the same diary",
        ),
        "writer unused": ({"writer": MemoryWriter(mine), "record": False}, "record=False"),
        "store": ({"diary": Store(mine)}, r"Give its `\.diary`"),
        "no budget": (
            {"max_tokens": 0},
            "max_tokens: expected a whole number of at least 1, found 0",
        ),
        "negative budget": (
            {"max_tokens": -5},
            "max_tokens: expected a whole number of at least 1, found -5",
        ),
        "budget as text": ({"max_tokens": "1500"}, "max_tokens: expected a whole number"),
        "tools": ({"tools": "writes"}, "'writes' is unknown"),
        "approve": ({"tools": "read", "approve": ["forget"]}, "approve: there is no tool 'forget'"),
    }


@pytest.mark.parametrize("case", wrong_options(Path("unused")))
def test_a_wrong_option_is_refused_by_the_constructor(tmp_path: Path, case: str):
    options, said = wrong_options(tmp_path)[case]
    given: Any = {"diary": tmp_path / "mine", "user_id": "alice", **options}
    with pytest.raises(InvalidValue, match=said):
        DiaryCapability(**given)
    if "writer" not in options:
        with pytest.raises(InvalidValue, match=said):
            DiaryToolset(**given)


def test_a_memory_that_the_model_loads_itself_records_no_turns():
    diary = diary_with("tea")
    with pytest.raises(InvalidValue, match="no turn is recorded before the model loads"):
        DiaryCapability(diary, "alice", defer_loading=True)
    talk = Talk(DiaryCapability(diary, "alice", defer_loading=True, record=False))
    talk.replies = [ModelResponse(parts=[ToolCallPart("load_capability", {"id": "diary"})])]
    assert "- likes: tea" in talk.say("Hello.")


def test_a_folder_instead_of_a_writer_is_refused(tmp_path: Path):
    given: Any = str(tmp_path)
    with pytest.raises(InvalidValue, match="expected a Diary, found str"):
        MemoryWriter(given)


def test_a_writer_of_the_same_folder_is_accepted(tmp_path: Path):
    with MemoryWriter(Diary(tmp_path / "here", agent="rules")) as writer:
        capability = DiaryCapability(tmp_path / "x" / ".." / "here", "alice", writer=writer)
        assert capability.writer is writer


@pytest.mark.parametrize("is_user", [True, False])
def test_a_folder_that_became_a_file_fails_a_run_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_user: bool
):
    root = tmp_path / "memories"
    talks = [
        Talk(DiaryCapability(Diary(root), "alice", on_error=on_error, record=False))
        for on_error in ("ignore", "raise")
    ]
    if is_user:
        root.mkdir()
    (root / "alice" if is_user else root).write_text("notes", encoding="utf-8")
    assert talks[0].say("hello") == ""
    assert "a run continues without its memory: BackendError" in caplog.text
    with pytest.raises(BackendError, match="a parent folder is a file"):
        talks[1].say("hello")


# Specs, spans, durable execution


def test_an_agent_spec_makes_a_capability(tmp_path: Path):
    options = {"diary": str(tmp_path), "user_id": "alice", "extractor": "rules", "episodes": True}
    spec = {"model": "test", "capabilities": [{"DiaryCapability": options}]}
    assert DiaryCapability.get_serialization_name() == "DiaryCapability"
    agent = Agent.from_spec(spec, custom_capability_types=[DiaryCapability])
    model = TestModel(call_tools=["recall"])
    asyncio.run(agent.run("I love green tea.", model=model))
    (capability,) = find(agent)
    assert capability.writer.flush(30)
    capability.writer.close_sync()
    assert Diary(tmp_path).user("alice").recall("tea")
    assert [one.input for one in Diary(tmp_path).user("alice").episodes.list()] == [
        "I love green tea."
    ]
    wrong = {"model": "test", "capabilities": [{"DiaryCapability": {"diary": "x", "toools": []}}]}
    with pytest.raises(Exception, match="toools"):
        Agent.from_spec(wrong, custom_capability_types=[DiaryCapability])


def test_a_template_in_a_spec_is_filled_in_from_the_deps(tmp_path: Path):
    pytest.importorskip("pydantic_handlebars")
    diary = diary_with(path=tmp_path)
    for user in ("acme/ann", "acme/bob"):
        diary.user(user).upsert_preference("likes", f"the secret of {user}")
    who = {"diary": str(tmp_path), "user_id": "{{tenant}}/{{ user }}", "record": False}
    agent: Any = Agent.from_spec(
        {"model": "test", "capabilities": [{"DiaryCapability": who}]},
        custom_capability_types=[DiaryCapability],
        deps_type=dict,
    )
    model = TestModel(call_tools=[])
    for user, other in (("ann", "bob"), ("bob", "ann")):
        result = asyncio.run(agent.run("hi", model=model, deps={"tenant": "acme", "user": user}))
        assert f"the secret of acme/{user}" in str(result.all_messages())
        assert f"the secret of acme/{other}" not in str(result.all_messages())
    with pytest.raises(IdentifierError, match="user"):
        asyncio.run(agent.run("hi", model=model, deps={"tenant": "acme"}))


@pytest.mark.parametrize(
    "place",
    ["{{~user~}}", "{{{~ user }}}", "{{&user}}", "{{./user}}", "{{[user]}}", "{{@root.user}}",
     "{{lookup this 'user'}}", "{{#if user}}{{user}}{{else}}{{user}}{{/if}}"],
)  # fmt: skip
def test_a_place_of_a_template_that_stays_empty_is_refused(tmp_path: Path, place: str):
    pytest.importorskip("pydantic_handlebars")
    who = {"diary": str(tmp_path), "user_id": f"acme/{place}", "extractor": "rules"}
    agent: Any = Agent.from_spec(
        {"model": "test", "capabilities": [{"DiaryCapability": who}]},
        custom_capability_types=[DiaryCapability],
        deps_type=dict,
    )
    asked: list[str] = []

    def answer(_messages: Any, _info: Any) -> ModelResponse:
        asked.append("asked")
        return ModelResponse(parts=[TextPart("ok")])

    for deps in ({"user": ""}, {"user": None}, {}):
        with pytest.raises(IdentifierError, match="in the agent spec is empty for this run"):
            asyncio.run(agent.run("I hate figs.", model=FunctionModel(answer), deps=deps))
    assert not asked
    (memory,) = find(agent)
    asyncio.run(agent.run("I hate figs.", model=FunctionModel(answer), deps={"user": "ann"}))
    memory.writer.flush()
    assert Diary(tmp_path).users() == ["acme/ann"]


@pytest.mark.parametrize("option", ["user_id", "session_id"])
def test_an_unfilled_template_is_refused(tmp_path: Path, option: str):
    given: Any = {option: "{{user}}"}
    for make in (DiaryCapability, DiaryToolset, DiaryCapability.from_spec):
        with pytest.raises(InvalidValue, match="is a template"):
            make(str(tmp_path), **given)
    with pytest.raises(InvalidValue, match="is a template"):
        AgentMemoryToolset(memory_dir=tmp_path, user_id="{{user}}")
    with pytest.raises(InvalidValue, match=r"is a template\. Give one folder for all users"):
        DiaryCapability.from_spec("./memories/{{tenant}}")


def test_a_prefix_that_is_no_text_is_refused():
    given: Any = 5
    with pytest.raises(InvalidValue, match="prefix: expected text, found int"):
        DiaryCapability("memory:", "alice", record=False).prefix_tools(given)


def find(agent: Any) -> list[Any]:
    found: list[Any] = []
    agent.root_capability.apply(found.append)
    return [one for one in found if isinstance(one, DiaryCapability)]


def test_a_spec_file_makes_a_capability(tmp_path: Path):
    pytest.importorskip("yaml")
    diary_with("tea", path=tmp_path / "memories")
    file = tmp_path / "agent.yaml"
    file.write_text(
        f"model: test\ncapabilities:\n  - DiaryCapability:\n      diary: {tmp_path}/memories\n"
        "      user_id: alice\n      tools: read\n      record: false\n",
        encoding="utf-8",
    )
    agent = Agent.from_file(file, custom_capability_types=[DiaryCapability])
    model = TestModel(call_tools=[])
    result = asyncio.run(agent.run("hello", model=model))
    assert "likes: tea" in str(result.all_messages())


def test_spans_name_verbs_and_neither_text_nor_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trace = pytest.importorskip("opentelemetry.trace")
    from pydantic_ai.models.instrumented import InstrumentationSettings  # noqa: PLC0415 - needs what is looked for above

    spans: list[tuple[str, dict[str, Any]]] = []

    class Span(trace.NonRecordingSpan):
        def __init__(self, name: str) -> None:
            super().__init__(trace.INVALID_SPAN_CONTEXT)
            self.attributes: dict[str, Any] = {}
            spans.append((name, self.attributes))

        def is_recording(self) -> bool:
            return True

        def set_attribute(self, key: str, value: Any) -> None:
            self.attributes[key] = value

        def record_exception(self, exception: BaseException, *args: Any, **kwargs: Any) -> None:
            self.attributes["exception"] = str(exception)

    class Tracer(trace.NoOpTracer):
        def start_span(self, name: str, *args: Any, **kwargs: Any) -> Span:
            return Span(name)

        @contextmanager
        def start_as_current_span(self, name: str, *args: Any, **kwargs: Any) -> Iterator[Span]:
            yield Span(name)

    class Provider(trace.NoOpTracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Tracer:
            return Tracer()

    diary = diary_with("the secret", path=tmp_path)
    diary.agent = "rules"
    writer = MemoryWriter(diary)
    settings = InstrumentationSettings(tracer_provider=Provider(), include_content=False)
    talk = Talk(DiaryCapability(diary, "alice", writer=writer))
    monkeypatch.setattr(talk.agent, "_instrument_default", settings)
    calls = [
        ToolCallPart("recall", {"query": "the secret"}),
        ToolCallPart("forget", {"key": "likes/the secret"}),
    ]
    talk.replies = [ModelResponse(parts=calls)]
    talk.say("hello")
    writer.close_sync()
    ours = {name: attributes for name, attributes in spans if name.startswith("tomldiary.")}
    assert set(ours) == {"tomldiary.inject", "tomldiary.recall", "tomldiary.forget", "tomldiary.submit"}  # fmt: skip
    assert ours["tomldiary.inject"]["tomldiary.facts"] == 1
    assert ours["tomldiary.forget"] == {"tomldiary.failed": True}
    assert ours["tomldiary.submit"] == {"tomldiary.status": "completed"}
    written = json.dumps(ours)
    assert "secret" not in written
    assert "alice" not in written


def told_by(span: Any) -> dict[str, Any]:
    return {key.removeprefix("tomldiary."): value for key, value in span.attributes.items()}


def test_spans_have_the_right_parents_in_the_trace_of_a_run(tmp_path: Path):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - needs what is looked for above
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415 - the same
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415 - the same
    from pydantic_ai.models.instrumented import InstrumentationSettings  # noqa: PLC0415 - the same

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    diary = diary_with("the secret", path=tmp_path)
    diary.agent = "rules"
    writer = MemoryWriter(diary)
    (tmp_path / "bob").mkdir()
    (tmp_path / "bob" / "preferences.toml").write_text('likes = "the secret', encoding="utf-8")
    settings = InstrumentationSettings(tracer_provider=provider, include_content=False)
    talk = Talk(DiaryCapability(diary, "alice", writer=writer))
    broken = Talk(DiaryCapability(diary, "bob", writer=writer, on_error="raise"))
    talk.agent.instrument = broken.agent.instrument = settings
    talk.replies = [
        ModelResponse(parts=[ToolCallPart("remember", {"text": "milk", "category": "likes"})])
    ]
    talk.say("hello, this is the secret of alice")
    with pytest.raises(InvalidTOML):
        broken.say("hello, this is the secret of bob")
    writer.close_sync()
    spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans}
    ours = [span for span in spans if span.name.startswith("tomldiary.")]
    nested = [
        (span.name.partition(".")[2], by_id[span.parent.span_id].name, told_by(span))
        for span in ours
    ]
    asking = nested[0][1]
    assert asking.partition(" ")[0] in {
        "chat",
        "invoke_agent",
    }  # as newer, and older, releases have it
    shown = {"facts": 1, "characters": 108, "is_snapshot": True}
    assert nested == [
        ("inject", asking, shown),
        ("remember", "execute_tool remember", {"failed": False}),
        ("submit", "invoke_agent agent", {"status": "completed"}),
        ("inject", asking, {"error_type": "InvalidTOML"}),
        ("submit", "invoke_agent agent", {"status": "failed"}),
    ]
    told = str([span.to_json() for span in ours])
    assert "secret" not in told
    assert "alice" not in told
    assert not any(span.events for span in ours)


DURABLE = os.environ.get("TOMLDIARY_DURABLE_PYTHON")


def run_durable(script: str, *arguments: str, **variables: str) -> str:
    """Run a program of tests/support in the environment of the durable engines; return what it logged.

    Its last word is "ok".
    """
    done = subprocess.run(
        [str(DURABLE), str(ROOT / "tests/support" / script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'integrations'}", **variables},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("ok")
    return done.stderr


@pytest.mark.skipif(DURABLE is None, reason="$TOMLDIARY_DURABLE_PYTHON names no interpreter")
def test_an_agent_with_a_diary_can_be_made_durable_by_each_engine(tmp_path: Path):
    run_durable("durable_agents.py", str(tmp_path))


@pytest.mark.skipif(DURABLE is None, reason="$TOMLDIARY_DURABLE_PYTHON names no interpreter")
def test_a_recovered_workflow_confuses_no_users_of_overlapping_runs(tmp_path: Path):
    run_durable("dbos_overlap.py", str(tmp_path))


@pytest.mark.skipif(
    DURABLE is None or not Path(DURABLE).with_name("temporal").exists(),
    reason="$TOMLDIARY_DURABLE_PYTHON names no environment with Temporal's server",
)
def test_a_workflow_that_temporal_replays_submits_each_turn_once(tmp_path: Path):
    log = run_durable("temporal_workflow.py", FOLDER=str(tmp_path / "memories"))
    assert "could not be submitted" not in log, log


def test_durability_needs_no_package_of_an_engine(tmp_path: Path):
    code = "import tomldiary_pydantic_ai, sys; print({'temporalio', 'dbos', 'prefect'} & set(sys.modules))"
    done = programs.run("-c", code, imported=programs.FRAMEWORKS, check=True)
    assert done.stdout.strip() == "set()"
