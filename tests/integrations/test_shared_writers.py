"""Agents of one diary that are given no writer share one: a user's turns stay in order, and closing it loses none."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import replace

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

import programs
from tomldiary import Diary, MemoryWriter
from tomldiary.agents.submission import SubmittedMessages
from tomldiary.agents.turn_messages import of_memory
from tomldiary.diary import diary_of
from tomldiary.storage.local.backend import LocalBackend
from tomldiary_langchain import DiaryMiddleware
from tomldiary_langgraph import DiaryStore
from tomldiary_pydantic_ai import DiaryCapability
from waiting import until


class WithMiddleware:
    def __init__(self, diary):
        self.memory = DiaryMiddleware(diary, user_id="alice")
        model = FakeListChatModel(responses=["ok"])
        self.agent = create_agent(model, middleware=[self.memory])

    def ask(self, text):
        self.agent.invoke({"messages": text})


class WithCapability:
    def __init__(self, diary):
        self.memory = DiaryCapability(diary, user_id="alice")
        model = TestModel(call_tools=[], custom_output_text="ok")
        self.agent = Agent(model, capabilities=[self.memory])

    def ask(self, text):
        asyncio.run(self.agent.run(text))


pairs = pytest.mark.parametrize(
    ("first", "second"),
    [
        (WithMiddleware, WithMiddleware),
        (WithCapability, WithCapability),
        (WithMiddleware, WithCapability),
    ],
)


@pairs
def test_turns_of_a_user_with_several_agents_are_applied_in_order(tmp_path, first, second):
    answered, applied = threading.Event(), []

    async def slow_at_first(message, deps):
        if "rain" in message:
            await asyncio.to_thread(answered.wait, 20)
        applied.append("rain" if "rain" in message else "tea")

    diary = Diary(tmp_path, agent=slow_at_first)
    agents = first(diary), second(diary)
    agents[0].ask("I like rain.")
    agents[1].ask("I like tea.")
    answered.set()
    assert agents[0].memory.writer.flush(20)
    assert applied == ["rain", "tea"]
    agents[0].memory.writer.close_sync()


@pairs
def test_a_turn_after_another_agent_closed_the_writer_is_applied(tmp_path, first, second):
    diary = Diary(tmp_path, agent="rules")
    agents = first(diary), second(diary)
    with agents[0].memory.writer:
        agents[0].ask("I like rain.")
    agents[1].ask("I like tea.")
    agents[0].ask("I like snow.")
    assert agents[0].memory.writer is agents[1].memory.writer
    agents[1].memory.writer.close_sync()
    texts = [item.text for item in diary.user("alice").preferences("likes").values()]
    assert texts == ["I like rain.", "I like tea.", "I like snow."]


doors = pytest.mark.parametrize("door", [WithMiddleware, WithCapability])


@doors
def test_a_turn_is_applied_if_another_agent_closes_meanwhile(tmp_path, monkeypatch, door):
    diary = Diary(tmp_path, agent="rules")
    one, other = door(diary), door(diary)
    writer = one.memory.writer

    def closed_before(submit):
        return lambda turn: (writer.close_sync(), submit(turn))[1]

    for name in "submit_turn", "submit_nowait", "submit_later":
        monkeypatch.setattr(writer, name, closed_before(getattr(writer, name)))
    other.ask("I like tea.")
    assert one.memory.writer is other.memory.writer is not writer
    one.memory.writer.close_sync()
    texts = [item.text for item in diary.user("alice").preferences("likes").values()]
    assert texts == ["I like tea."]


@doors
def test_a_writer_that_a_run_makes_or_opens_has_no_context_of_the_run(tmp_path, door):
    caller, seen = ContextVar("caller", default=""), []

    async def noting(message, deps):
        seen.append(caller.get())

    request = copy_context()
    request.run(caller.set, "alice")
    agent = request.run(door, Diary(tmp_path, agent=noting))
    request.run(agent.ask, "I like tea.")
    agent.memory.writer.close_sync()
    request.run(agent.ask, "I like milk.")
    agent.memory.writer.close_sync()
    assert seen == ["", ""]


ABANDONED = """
import sys
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from tomldiary import Diary
from tomldiary_langchain import DiaryMiddleware
from tomldiary_langgraph import DiaryStore

memory = DiaryMiddleware(Diary(sys.argv[1], agent="rules"), user_id="alice")
agent = create_agent(FakeListChatModel(responses=["ok"]), middleware=[memory])
run = agent.stream({"messages": "I like tea."})
next(run)
"""


def test_a_turn_that_comes_too_late_at_exit_is_reported(tmp_path):
    ended = programs.run(
        "-c", ABANDONED, tmp_path, imported=programs.FRAMEWORKS, check=True, teardown=True
    )
    assert "a turn could not be stored" in ended.stderr


@doors
def test_another_writer_can_be_assigned(tmp_path, door):
    diary = Diary(tmp_path, agent="rules")
    agent = door(diary)
    with MemoryWriter(diary) as writer:
        agent.memory.writer = writer
        agent.ask("I like tea.")
        assert writer.stats()["submitted"] == 1


def test_equal_capabilities_of_a_folder_count_as_one(tmp_path):
    memories = [DiaryCapability(tmp_path, user_id="alice") for _ in range(2)]
    agent = Agent(TestModel(call_tools=[]), capabilities=memories)
    assert asyncio.run(agent.run("I like tea.")).output
    for memory in memories:
        memory.writer.close_sync()


@pairs
def test_agents_of_a_folder_share_a_writer(tmp_path, monkeypatch, first, second):
    monkeypatch.chdir(tmp_path)
    one, other = first("memories"), second(tmp_path / "memories")
    assert one.memory.writer is other.memory.writer
    one.memory.writer.close_sync()


def test_threads_that_open_a_folder_at_once_share_what_it_needs(tmp_path):
    def opened(folder):
        diary = diary_of(folder)
        return diary, of_memory(diary, SubmittedMessages)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            for number in range(50):
                found = list(pool.map(opened, [tmp_path / str(number)] * 6))
                assert [len(set(map(id, each))) for each in zip(*found, strict=True)] == [1, 1]
    finally:
        sys.setswitchinterval(before)


def test_a_backend_is_not_shared_with_agents_of_its_folder(tmp_path):
    given, plain = diary_of(LocalBackend(tmp_path, durability="none")), diary_of(tmp_path)
    assert (given.stats()["durability"], plain.stats()["durability"]) == ("none", "full")


def test_a_link_with_another_target_moves_only_what_was_given_the_link(tmp_path):
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "first", target_is_directory=True)
    linked, direct = diary_of(link), diary_of(tmp_path / "first")
    link.unlink()
    link.symlink_to(tmp_path / "second", target_is_directory=True)
    direct.user("alice").upsert_preference("likes", "tea")
    assert [*Diary(tmp_path / "first").users()] == ["alice"]
    assert [*linked.users()] == []


def test_agents_of_other_folders_have_other_writers(tmp_path):
    writers = [WithMiddleware(tmp_path / name).memory.writer for name in "ab"]
    assert writers[0] is not writers[1]
    for writer in writers:
        writer.close_sync()


def test_a_store_of_a_folder_closes_a_diary_of_its_own(tmp_path):
    agent = WithMiddleware(tmp_path)
    with DiaryStore(tmp_path) as store:
        assert store.diary is not agent.memory.diary
    agent.memory.writer.close_sync()


def test_agents_of_other_diaries_have_other_writers(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    one, other = WithMiddleware(diary), WithMiddleware(Diary(tmp_path, agent="rules"))
    own = MemoryWriter(diary)
    given = DiaryMiddleware(diary, user_id="alice", writer=own)
    writers = {one.memory.writer, other.memory.writer, given.writer}
    assert len(writers) == 3
    for writer in writers:
        writer.close_sync()


def test_an_agent_that_is_given_the_shared_writer_shares_its_successors(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    one = DiaryMiddleware(diary, user_id="alice")
    other = replace(DiaryCapability(diary, user_id="alice"), writer=one.writer)
    one.writer.close_sync()
    asyncio.run(Agent(TestModel(call_tools=[]), capabilities=[other]).run("I like tea."))
    assert one.writer is other.writer
    assert one.writer.is_running
    one.writer.close_sync()
    assert diary.user("alice").preferences("likes")


def test_a_given_writer_is_not_replaced_when_it_is_closed(tmp_path, caplog):
    diary = Diary(tmp_path, agent="rules")
    with MemoryWriter(diary) as writer:
        memory = DiaryCapability(diary, user_id="alice", writer=writer)
    agent = Agent(TestModel(call_tools=[]), capabilities=[memory])
    asyncio.run(agent.run("I like rain."))
    assert "MemoryWriter is closed" in caplog.text
    assert memory.writer is writer


def test_a_shared_writer_is_released_with_its_last_agent(tmp_path):
    agents = [WithMiddleware(Diary(tmp_path, agent="rules"))]
    agents.append(WithMiddleware(agents[0].memory.diary))
    writer = weakref.ref(agents[0].memory.writer)
    agents.pop()
    gc.collect()
    assert writer() is not None
    agents.clear()

    def is_released():
        gc.collect()  # again for what a finalizer releases, or if another thread collects at this moment
        return writer() is None

    until(is_released, 20)
