"""Every run of an agent reaches the writer as a turn, however it ends; users are never mixed up."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import json
import multiprocessing
import threading
import time
import weakref
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest

import programs

pytest.importorskip("pydantic_ai")

import pydantic_ai
from pydantic import BaseModel, Field
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    NativeOutput,
    PromptedOutput,
    RunContext,
    ToolOutput,
    capture_run_messages,
    models,
)
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory
from pydantic_ai.exceptions import ModelHTTPError, UsageLimitExceeded, UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.usage import RunUsage, UsageLimits
from pydantic_core import PydanticSerializationError
from pydantic_graph import End

from recent_values import run_within_keep
from tomldiary import CompactionConfig, Diary, MemoryWriter, Turn
from tomldiary.entries.kinds.episodes import ToolStep
from tomldiary.errors import IdentifierError
from tomldiary_pydantic_ai import AgentMemoryToolset, DiaryCapability, DiaryToolset
from tomldiary_pydantic_ai.conversation import exchanges

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

models.ALLOW_MODEL_REQUESTS = False

ROOT = Path(__file__).parents[3]
SAID = "I like tea."
names_its_run = pytest.mark.skipif(
    "run_id" not in inspect.signature(Agent.run).parameters, reason="runs cannot be named yet"
)

can_dequeue = pytest.mark.skipif(
    not hasattr(RunContext, "dequeue"), reason="the queue cannot be changed yet"
)


class Kept(MemoryWriter):
    """A writer that also keeps the turns it was handed."""

    def __init__(self, diary: Diary, **options: Any) -> None:
        super().__init__(diary, **options)
        self.turns: list[Turn] = []

    def submit_nowait(self, turn: Turn) -> Any:
        receipt = super().submit_nowait(turn)
        self.turns.append(turn)
        return receipt

    def submit_later(self, turn: Turn) -> Any:
        receipt = super().submit_later(turn)
        self.turns.append(turn)
        return receipt

    async def submit_turn(self, turn: Turn) -> Any:
        receipt = await super().submit_turn(turn)
        self.turns.append(turn)
        return receipt


def answer(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart("Good choice.")])


async def stream(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    for word in ("Good ", "choice."):
        yield word


def fail(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    raise ModelHTTPError(500, "scripted")


def call_once(tool: str, **arguments: Any) -> Any:
    """Return a model that calls a tool, and then answers."""

    def respond(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if has_result(messages):
            return ModelResponse(parts=[TextPart("Good choice.")])
        return ModelResponse(parts=[TextPart("Let me see."), ToolCallPart(tool, arguments)])

    return respond


def has_result(messages: Sequence[ModelMessage]) -> bool:
    """Return whether a tool was called in a conversation."""
    return any(isinstance(part, ToolReturnPart) for one in messages for part in one.parts)


class Setting:
    """An agent with a memory that is not empty, and the writer that its turns should reach."""

    def __init__(self, path: Path, respond: Any = answer, **options: Any) -> None:
        self.diary = Diary(path, agent="rules")
        self.diary.user("alice").upsert_preference("dislikes", "the colour green")
        self.writer = Kept(self.diary)
        self.capability = DiaryCapability(self.diary, "alice", "s1", writer=self.writer)
        model = FunctionModel(respond, stream_function=stream)
        self.agent: Agent[None, Any] = Agent(model, capabilities=[self.capability], **options)

    def the_turn(self, status: str, assistant: str) -> Turn:
        """Check that one turn was submitted and applied, and return it."""
        assert self.writer.flush(30)
        (turn,) = self.writer.turns
        assert (turn.user_id, turn.session_id, turn.user_msg) == ("alice", "s1", SAID)
        assert (turn.status, turn.assistant_msg) == (status, assistant)
        assert turn.operation_id
        assert self.writer.stats()["failed"] == 0
        assert self.diary.user("alice").conversations()["s1"].turns == 1
        self.writer.close_sync()
        return turn


# The ways in which a run ends


def test_a_run_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path)
    asyncio.run(setting.agent.run(SAID))
    setting.the_turn("completed", "Good choice.")
    assert [item.text for item in setting.diary.user("alice").preferences("likes").values()] == [SAID]  # fmt: skip


def test_a_sync_run_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path)
    loop = asyncio.new_event_loop()  # else the framework makes one and does not close it
    asyncio.set_event_loop(loop)
    try:
        setting.agent.run_sync(SAID)
        setting.the_turn("completed", "Good choice.")
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_a_streamed_run_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path)

    async def run() -> None:
        async with setting.agent.run_stream(SAID) as response:
            assert [text async for text in response.stream_text(delta=True)]

    asyncio.run(run())
    setting.the_turn("completed", "Good choice.")


def test_a_stepped_run_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path)

    async def run() -> None:
        async with setting.agent.iter(SAID) as steps:
            async for _ in steps:
                pass

    asyncio.run(run())
    setting.the_turn("completed", "Good choice.")


def test_an_abandoned_stream_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path)

    async def run() -> None:
        async with setting.agent.run_stream(SAID) as response:
            async for _ in response.stream_text(delta=True):
                break

    asyncio.run(run())
    setting.the_turn("cancelled", "Good choice.")


def test_an_abandoned_stepped_run_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path, call_once("look"))

    @setting.agent.tool_plain
    def look() -> str:
        return "seen"

    async def run() -> None:
        async with setting.agent.iter(SAID) as steps:
            async for node in steps:
                if Agent.is_call_tools_node(node):
                    break

    asyncio.run(run())
    setting.the_turn("cancelled", "Let me see.")


@pytest.mark.filterwarnings("ignore:Capability `DiaryCapability`")
@pytest.mark.parametrize("is_left", [False, True])
def test_a_realtime_session_is_submitted(tmp_path: Path, is_left: bool):
    pytest.importorskip("pydantic_ai.realtime.lifecycle")
    from realtime_model import RepeatingModel  # noqa: PLC0415 - needs a newer release

    setting = Setting(tmp_path)
    model = RepeatingModel(heard=SAID, says="Good choice.")
    instructing = DiaryCapability(
        setting.diary, "alice", "s1", writer=setting.writer, inject="instructions"
    )
    agent = Agent(FunctionModel(answer), capabilities=[instructing])

    async def talk() -> None:
        async with agent.realtime(model).session() as session:
            await session.send("I like milk.")
            async for _ in session:
                if is_left:
                    break

    asyncio.run(talk())
    (turn,) = setting.writer.turns
    assert turn.user_msg.split("\n\n") == [SAID, "I like milk."]
    assert set(turn.assistant_msg.split("\n\n")) == {"Good choice."}
    assert "the colour green" in repr(model.parameters)
    setting.writer.close_sync()


def test_a_run_cancelled_in_a_tool_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path, call_once("wait"))

    async def run() -> None:
        waiting = asyncio.Event()

        @setting.agent.tool_plain
        async def wait() -> str:
            waiting.set()
            await asyncio.Event().wait()
            return "never"

        task = asyncio.create_task(setting.agent.run(SAID))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    setting.the_turn("cancelled", "Let me see.")


class UserRollback(Exception):
    """The cause with which a LangGraph server cancels a run that it rolls back."""


def cancelled(folder: Path, cause: Exception | None) -> Setting:
    """Cancel a run with a cause during its model request."""
    waiting = asyncio.Event()

    async def respond(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        waiting.set()
        await asyncio.Event().wait()
        raise AssertionError

    setting = Setting(folder, respond)

    async def run() -> None:
        task = asyncio.create_task(setting.agent.run(SAID))
        await waiting.wait()
        task.cancel(cause)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    return setting


def test_a_run_cancelled_during_a_model_request_is_submitted(tmp_path: Path):
    cancelled(tmp_path, None).the_turn("cancelled", "")


def test_a_run_that_a_langgraph_server_rolls_back_is_not_submitted(tmp_path: Path):
    setting = cancelled(tmp_path, UserRollback())
    setting.writer.close_sync()
    assert setting.writer.turns == []


class DBOSBaseException(BaseException):
    """DBOS stops a workflow by errors of this class, which user code does not catch."""


class DBOSWorkflowConflictIDError(DBOSBaseException):
    """Another executor has recovered the workflow."""


def test_a_run_whose_dbos_workflow_another_executor_has_is_not_submitted(tmp_path: Path):
    def respond(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        raise DBOSWorkflowConflictIDError

    setting = Setting(tmp_path, respond)
    with pytest.raises(DBOSWorkflowConflictIDError):
        asyncio.run(setting.agent.run(SAID))
    setting.writer.close_sync()
    assert setting.writer.turns == []


def test_a_run_that_is_cancelled_in_any_step_of_its_begin_ends_and_is_submitted(tmp_path: Path):
    # The framework leaves the task behind if the cancellation comes between two steps.
    setting, steps = Setting(tmp_path), 12

    async def cancel(task: asyncio.Task[Any], step: int) -> None:
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()

    class Cancelled(AbstractCapability[None]):
        async def before_run(self, ctx: RunContext[None]) -> None:
            others.append(asyncio.create_task(cancel(runs[-1], len(runs) - 1)))

    agent = Agent(FunctionModel(answer), capabilities=[setting.capability, Cancelled()])
    runs: list[asyncio.Task[Any]] = []
    others: list[asyncio.Task[Any]] = []

    async def run() -> None:
        for step in range(steps):
            runs.append(asyncio.create_task(agent.run(f"I like {step} cups.")))
            await asyncio.wait(runs)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        _, open_ = await asyncio.wait(left, timeout=20) if left else ((), ())
        assert not open_

    asyncio.run(run())
    assert runs[0].cancelled()
    setting.writer.close_sync()
    words = [f"I like {step} cups." for step in range(steps)]
    assert sorted(turn.user_msg for turn in setting.writer.turns) == sorted(words)


def test_a_run_that_a_token_cancels_in_any_step_of_its_begin_ends(tmp_path: Path):
    make_token: Any = getattr(pydantic_ai, "CancellationToken", None)
    if make_token is None:
        pytest.skip("this release has no tokens")
    setting, steps = Setting(tmp_path), 40

    async def run() -> None:
        for step in range(steps):
            token = make_token()
            agent_run = setting.agent.run(f"I like {step} cups.", cancellation_token=token)
            begun = asyncio.create_task(agent_run)
            for _ in range(step):
                await asyncio.sleep(0)
            token.cancel()
            await asyncio.gather(begun, return_exceptions=True)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        _, open_ = await asyncio.wait(left, timeout=20) if left else ((), ())
        assert not open_

    asyncio.run(run())


def test_a_run_that_is_closed_as_garbage_is_submitted(tmp_path: Path):
    # Releases of the framework leave the task behind if a run is cancelled in its first steps.
    setting = Setting(tmp_path)
    asyncio.run(begun_run(setting)).close()
    setting.the_turn("cancelled", "")


def test_a_run_that_the_framework_left_behind_is_not_kept_by_its_caller(tmp_path: Path):
    setting = Setting(tmp_path)

    async def leave() -> None:
        begun = asyncio.Event()

        async def hang() -> Any:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(await wrapped_run(setting, hang))
        await begun.wait()
        left = weakref.ref(task)
        del task
        gc.collect()
        assert left() is None

    asyncio.run(leave())
    setting.the_turn("cancelled", "")


async def begun_run(setting: Setting) -> Any:
    """Return the coroutine of a run that waits."""

    async def hang() -> Any:
        await asyncio.Event().wait()

    coroutine = await wrapped_run(setting, hang)
    coroutine.send(None)
    return coroutine


async def wrapped_run(setting: Setting, handler: Any) -> Any:
    """Return the coroutine of a run, which this task calls, with a handler in place of the framework's."""
    ids = {"run_id": "run-1", "conversation_id": "c"}
    ctx = RunContext(deps=None, model=TestModel(), usage=RunUsage(), prompt=SAID, **ids)
    capability = await setting.capability.for_run(ctx)
    capability.get_toolset()
    return capability.wrap_run(ctx, handler=handler)


@pytest.mark.parametrize("number", range(7))
def test_a_run_may_be_closed_while_another_one_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    setting = Setting(tmp_path)
    run = asyncio.run(begun_run(setting))
    was_called = run_within_keep(monkeypatch, number, run.close)
    runner = threading.Thread(target=lambda: asyncio.run(setting.agent.run("Hi.")), daemon=True)
    runner.start()
    runner.join(30)
    assert not runner.is_alive(), "a thread waits for itself"
    assert was_called()
    said = {SAID: "cancelled", "Hi.": "completed"}
    assert {turn.user_msg: turn.status for turn in setting.writer.turns} == said
    setting.writer.close_sync()


def test_a_run_whose_model_failed_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path, fail)
    with pytest.raises(ModelHTTPError):
        asyncio.run(setting.agent.run(SAID))
    setting.the_turn("failed", "")


def test_a_run_that_reached_its_request_limit_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path, call_once("look"))

    @setting.agent.tool_plain
    def look() -> str:
        return "seen"

    with pytest.raises(UsageLimitExceeded):
        asyncio.run(setting.agent.run(SAID, usage_limits=UsageLimits(request_limit=1)))
    setting.the_turn("failed", "Let me see.")


def test_a_run_without_any_allowed_request_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path)
    with pytest.raises(UsageLimitExceeded):
        asyncio.run(setting.agent.run(SAID, usage_limits=UsageLimits(request_limit=0)))
    setting.the_turn("failed", "")


def test_a_run_whose_tool_failed_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path, call_once("look"))

    @setting.agent.tool_plain
    def look() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(setting.agent.run(SAID))
    setting.the_turn("failed", "Let me see.")


def test_a_capability_records_turns_unless_record_is_false(tmp_path: Path):
    for record in (True, False):
        diary = Diary(tmp_path / str(record), agent="rules")
        capability = DiaryCapability(diary, user_id="alice", record=record)
        asyncio.run(Agent(FunctionModel(answer), capabilities=[capability]).run(SAID))
        assert (capability.writer is not None) is record
        if capability.writer is not None:
            assert capability.writer.flush(30)
            capability.writer.close_sync()
        stored = [item.text for item in diary.user("alice").preferences("likes").values()]
        assert stored == ([SAID] if record else [])


@pytest.mark.parametrize("place", ["folder", "memory:"])
def test_a_dropped_capability_leaves_no_thread(tmp_path: Path, place: str):
    before = set(threading.enumerate())
    diary = Diary(place if place == "memory:" else tmp_path, agent="rules")
    capability = DiaryCapability(diary, user_id="alice")
    asyncio.run(Agent(FunctionModel(answer), capabilities=[capability]).run(SAID))
    assert capability.writer is not None
    assert capability.writer.flush(30)
    started = set(threading.enumerate()) - before
    started = {thread for thread in started if thread.name != "tomldiary-call"}  # of all diaries
    assert started
    del diary, capability
    gc.collect()
    for thread in started:
        thread.join(10)
    assert [thread.name for thread in started if thread.is_alive()] == []


def test_a_program_without_a_writer_keeps_its_turns_silently(
    tmp_path: Path,
):
    code = f"""
import warnings
warnings.filterwarnings("error", module="tomldiary")
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from tomldiary import Diary
from tomldiary_pydantic_ai import DiaryCapability
diary = Diary({str(tmp_path)!r}, agent="rules")
agent = Agent(TestModel(call_tools=[]), capabilities=[DiaryCapability(diary, user_id="alice")])
agent.run_sync({SAID!r})
"""
    done = programs.run("-c", code, imported=programs.FRAMEWORKS, check=True, teardown=True)
    assert done.stderr == ""
    likes = Diary(tmp_path).user("alice").preferences("likes")
    assert [item.text for item in likes.values()] == [SAID]


# What of a run is submitted


def test_injected_memory_is_not_submitted(tmp_path: Path):
    setting = Setting(tmp_path)
    seen: list[str] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(repr(messages))
        return answer(messages, info)

    asyncio.run(setting.agent.run(SAID, model=FunctionModel(respond)))
    turn = setting.the_turn("completed", "Good choice.")
    assert "the colour green" in seen[0]
    assert "green" not in turn.user_msg + turn.assistant_msg


@pytest.mark.parametrize(
    "mark",
    [
        {"origin": "another.application"},
        {"__pydantic_ai__": {"framework_frame": True}},  # the framework's function for frames
        "pydantic-ai-harness.compaction.receipt.v1",
        "pydantic-ai-harness.compaction.pin.v1",
    ],
    ids=["application", "frame", "receipt", "pin"],
)
def test_parts_of_tools_and_applications_are_not_user_messages(tmp_path: Path, mark: object):
    setting = Setting(tmp_path, call_once("look"))

    @setting.agent.tool_plain
    def look() -> ToolReturn:
        return ToolReturn("seen", content="I like what the web page says.")

    other = TextContent("I like another memory.", metadata=mark)
    marked = TextContent(SAID, metadata={"language": "en"})
    asyncio.run(setting.agent.run([marked, other]))
    setting.the_turn("completed", "Let me see.\n\nGood choice.")


def test_texts_beside_the_result_of_a_background_tool_are_not_user_messages(tmp_path: Path):
    setting = Setting(tmp_path, call_once("look"))
    mark = {"origin": "pydantic-ai-harness.background_tools.result.v1"}

    @setting.agent.tool
    def look(ctx: RunContext[None]) -> str:
        # As the harness enqueues a result that has a file.
        result = TextContent("<tool_result>", metadata=mark)
        ctx.enqueue(result, BinaryContent(b"x", media_type="image/png"), "</tool_result>", "Look.")
        return "started"

    note = TextContent("<note>", metadata=mark)  # behind the user's words, which stay
    asyncio.run(setting.agent.run([SAID, note]))
    setting.the_turn("completed", "Let me see.\n\nGood choice.")


def test_only_the_current_turn_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path)
    first = asyncio.run(setting.agent.run(SAID))
    asyncio.run(setting.agent.run("And cake.", message_history=first.all_messages()))
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID, "And cake."]
    assert len({turn.operation_id for turn in setting.writer.turns}) == 2
    setting.writer.close_sync()


def test_the_turn_includes_a_question_that_began_the_conversation(tmp_path: Path):
    setting = Setting(tmp_path)
    asked = ModelResponse(parts=[TextPart("Hi. Do you have any allergies?")])
    asyncio.run(setting.agent.run("Yes, peanuts.", message_history=[asked]))
    assert list(setting.writer.turns[0].earlier or ()) == [("", "Hi. Do you have any allergies?")]
    assert setting.writer.flush(30)
    assert "peanuts" in setting.diary.user("alice").document("preferences")
    setting.writer.close_sync()


def test_an_answer_in_several_parts_is_one_text(tmp_path: Path):
    # Some providers begin a part at each citation.
    def respond(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("Tea comes "), TextPart("from China"), TextPart(".")])

    setting = Setting(tmp_path, respond)
    first = asyncio.run(setting.agent.run(SAID))
    asyncio.run(setting.agent.run("Sure?", message_history=first.all_messages()))
    assert [turn.assistant_msg for turn in setting.writer.turns] == [first.output] * 2
    assert list(setting.writer.turns[1].earlier or ()) == [(SAID, "Tea comes from China.")]
    setting.writer.close_sync()


def test_an_answer_that_is_no_text_is_submitted_as_json(tmp_path: Path):
    class Order(BaseModel):
        drink: str

    def respond(_messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"drink": "tea"})])

    setting = Setting(tmp_path, respond, output_type=ToolOutput(Order))
    asyncio.run(setting.agent.run(SAID))
    setting.the_turn("completed", '{"drink":"tea"}')


def test_an_earlier_answer_that_is_no_text_is_a_part_of_its_exchange(tmp_path: Path):
    class Reply(BaseModel):
        question: Annotated[str, Field(min_length=9)]

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        name = info.output_tools[0].name
        is_first = not any(isinstance(message, ModelResponse) for message in messages)
        replies = ("Why?",) if is_first else ("Who?", "Any allergies?", "Anything else?")
        return ModelResponse(parts=[ToolCallPart(name, {"question": each}) for each in replies])

    setting = Setting(tmp_path, respond, output_type=Reply, retries=3)
    asked = asyncio.run(setting.agent.run(SAID))
    asyncio.run(setting.agent.run("Yes, peanuts.", message_history=asked.all_messages()))
    earlier = setting.writer.turns[1].earlier
    assert list(earlier or ()) == [(SAID, '{"question":"Any allergies?"}')]
    setting.writer.close_sync()


@pytest.mark.parametrize("kind", [NativeOutput, PromptedOutput])
def test_an_answer_that_is_parsed_is_submitted_once(tmp_path: Path, kind: Any):
    class Order(BaseModel):
        drink: str
        cups: int = 1

    def respond(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        said = '{"drink": 5}' if len(messages) < 3 else '```json\n{"drink": "tea"}\n```'
        return ModelResponse(parts=[TextPart(said)])

    setting = Setting(tmp_path, respond, output_type=kind(Order))
    model = FunctionModel(respond, profile=ModelProfile(supports_json_schema_output=True))
    asyncio.run(setting.agent.run(SAID, model=model))
    setting.the_turn("completed", '{"drink":"tea","cups":1}')


def test_an_answer_that_a_validator_changes_is_submitted_as_changed(tmp_path: Path):
    setting = Setting(tmp_path)

    @setting.agent.output_validator
    def censor(output: str) -> str:
        return output.replace("Good", "Fine")

    asyncio.run(setting.agent.run(SAID))
    setting.the_turn("completed", "Fine choice.")


@pytest.mark.parametrize("longest", [9, 3], ids=["by the validator", "by the schema"])
def test_a_rejected_output_call_and_text_beside_it_are_not_recorded(tmp_path: Path, longest: int):
    class Order(BaseModel):
        drink: Annotated[str, Field(max_length=longest)]

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        drink = "coffee" if len(messages) < 3 else "tea"
        call = ToolCallPart(info.output_tools[0].name, {"drink": drink})
        return ModelResponse(parts=[TextPart(f"One {drink}."), call])

    setting = Setting(tmp_path, respond, output_type=Order)

    @setting.agent.output_validator
    def hide(output: Order) -> Order:
        if output.drink == "coffee":
            raise ModelRetry("there is no coffee")
        return Order(drink="***")

    asyncio.run(setting.agent.run(SAID))
    assert not setting.the_turn("completed", 'One tea.\n\n{"drink":"***"}').steps


def test_text_beside_two_output_calls_stays_if_one_is_accepted(tmp_path: Path):
    class Order(BaseModel):
        cups: int

    def respond(_messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        name = info.output_tools[0].name
        calls = [ToolCallPart(name, {"cups": cups}) for cups in ("some", 2)]
        return ModelResponse(parts=[TextPart("Here."), *calls])

    setting = Setting(tmp_path, respond, output_type=Order)
    asyncio.run(setting.agent.run(SAID))
    setting.the_turn("completed", 'Here.\n\n{"cups":2}')


def test_a_picture_in_the_result_of_a_tool_is_left_out(tmp_path: Path):
    setting = Setting(tmp_path, call_once("look"))

    @setting.agent.tool_plain
    def look() -> dict[str, Any]:
        return {"seen": "café", "pictures": [BinaryContent(b"\xff" * 999, media_type="image/png")]}

    asyncio.run(setting.agent.run(SAID))
    (step,) = setting.the_turn("completed", "Let me see.\n\nGood choice.").steps
    assert "café" in step.result
    assert '"data"' not in step.result


def test_a_picture_in_structured_output_is_left_out(tmp_path: Path):
    def respond(_messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"drink": "café"})])

    def draw(drink: str) -> dict[str, Any]:
        return {"title": drink, "pictures": [BinaryContent(b"\xff" * 999, media_type="image/png")]}

    setting = Setting(tmp_path, respond, output_type=ToolOutput(draw))
    asyncio.run(setting.agent.run(SAID))
    assert setting.writer.flush(30)
    (turn,) = setting.writer.turns
    assert turn.assistant_msg.startswith('{"title":"café","pictures":[{')
    assert "image/png" in turn.assistant_msg
    assert '"data"' not in turn.assistant_msg
    setting.writer.close_sync()


def endless() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize("made", [b"\xff", endless()], ids=["bytes", "no JSON"])
def test_an_output_that_is_no_text_costs_no_words(tmp_path: Path, made: Any):
    def respond(_messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        call = ToolCallPart(info.output_tools[0].name, {"drink": "tea"})
        return ModelResponse(parts=[TextPart("Here."), call])

    def draw(drink: str) -> Any:
        assert drink == "tea"
        return made

    setting = Setting(tmp_path, respond, output_type=ToolOutput(draw))
    assert asyncio.run(setting.agent.run(SAID)).output is made
    setting.the_turn("completed", "Here.")


def test_an_earlier_answer_that_is_no_json_costs_no_words(tmp_path: Path):
    setting = Setting(tmp_path, output_type=[str, ToolOutput(dict, name="draw")])
    call = ToolCallPart("draw", {"drink": endless()}, tool_call_id="1")
    result = ToolReturnPart("draw", "drawn", tool_call_id="1")
    before = [ModelRequest([UserPromptPart("Hi.")]), ModelResponse([call]), ModelRequest([result])]
    with pytest.raises(PydanticSerializationError):  # of the framework's model for tests
        asyncio.run(setting.agent.run(SAID, message_history=before))
    setting.the_turn("failed", "")


def test_a_tool_result_that_is_no_json_costs_no_words(tmp_path: Path):
    setting = Setting(tmp_path, call_once("look"))
    setting.agent.tool_plain(endless, name="look")
    with pytest.raises(PydanticSerializationError):
        asyncio.run(setting.agent.run(SAID))
    assert setting.the_turn("failed", "Let me see.").steps[0].result == ""


def test_a_prompt_with_images_is_submitted_with_its_text(tmp_path: Path):
    setting = Setting(tmp_path)
    picture = BinaryContent(b"x", media_type="image/png")
    asyncio.run(setting.agent.run([SAID, picture]))
    setting.the_turn("completed", "Good choice.")


def test_calls_with_one_id_keep_their_own_results(tmp_path: Path):
    def respond(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        calls = [("look", {}), ("recall", {"query": "green"})]
        asked = sum(isinstance(one, ModelResponse) for one in messages)
        if asked == len(calls):
            return ModelResponse(parts=[TextPart("Good choice.")])
        return ModelResponse(parts=[ToolCallPart(*calls[asked], tool_call_id="call_0")])

    setting = Setting(tmp_path, respond)

    @setting.agent.tool_plain
    def look() -> str:
        return "seen"

    asyncio.run(setting.agent.run(SAID))
    assert setting.the_turn("completed", "Good choice.").steps == (ToolStep("look", "{}", "seen"),)


def test_both_parts_of_a_run_with_an_approval_are_submitted(tmp_path: Path):
    setting = Setting(
        tmp_path,
        call_once("look"),
        output_type=[str, DeferredToolRequests],
        instructions="Be brief.",
    )

    @setting.agent.tool_plain(requires_approval=True)
    def look() -> str:
        return "seen"

    async def run() -> None:
        waiting = await setting.agent.run(SAID)
        assert isinstance(waiting.output, DeferredToolRequests)
        approvals = {waiting.output.approvals[0].tool_call_id: True}
        done = await setting.agent.run(
            message_history=waiting.all_messages(),
            deferred_tool_results=DeferredToolResults(approvals=approvals),
        )
        assert done.output == "Good choice."

    asyncio.run(run())
    first, second = setting.writer.turns
    assert (first.user_msg, first.assistant_msg) == (SAID, "Let me see.")
    assert (second.user_msg, second.assistant_msg) == ("", "Good choice.")
    assert [*first.steps, *second.steps] == [ToolStep("look", "{}", "seen")]
    assert setting.writer.flush(30)
    assert setting.writer.stats()["failed"] == 0
    setting.writer.close_sync()


@pytest.mark.parametrize("prompt", [None, SAID])
def test_results_that_an_interface_puts_into_the_history_are_steps(
    tmp_path: Path, prompt: str | None
):
    setting = Setting(tmp_path)
    history: list[ModelMessage] = [
        *user_says("Look around."),
        ModelResponse(parts=[ToolCallPart("look", {}, "1")]),
        ModelRequest(parts=[ToolReturnPart("look", "seen", "1")]),
    ]
    first = asyncio.run(setting.agent.run(prompt, message_history=history))
    asyncio.run(setting.agent.run("Go on.", message_history=first.all_messages()))
    steps = [turn.steps for turn in setting.writer.turns]
    assert steps == [(ToolStep("look", "{}", "seen"),), ()]
    setting.writer.close_sync()


@pytest.mark.skipif(not hasattr(pydantic_ai, "PendingModelResponse"), reason="runs cannot wait yet")
def test_a_run_that_waits_for_its_provider_is_one_answer(tmp_path: Path):
    class Slow(FunctionModel):
        def continuation_delay(self, response: ModelResponse) -> float | None:
            return 0.001 if response.state == "suspended" else None

    states = iter(["suspended", "suspended", "complete"])

    def respond(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        return ModelResponse([TextPart("Tea.")], provider_response_id="job", state=next(states))

    diary = Diary(tmp_path, agent="rules")
    with Kept(diary) as writer:
        agent: Agent[Deps, Any] = Agent(
            Slow(respond),
            deps_type=Deps,
            output_type=[str, pydantic_ai.PendingModelResponse],
            capabilities=[DiaryCapability(diary, writer=writer)],
        )

        async def run() -> None:
            result = await agent.run(SAID, deps=Deps("ann"))
            diary.user("ann").upsert_preference("likes", "cake")
            with pytest.raises(IdentifierError, match="another user began this turn"):
                await agent.run(message_history=result.all_messages(), deps=Deps("bob"))
            for _ in range(2):
                assert isinstance(result.output, pydantic_ai.PendingModelResponse)
                messages = result.all_messages()
                result = await agent.run(message_history=messages, deps=Deps("ann"))

        asyncio.run(run())
    turns = [(turn.user_id, turn.user_msg, turn.assistant_msg) for turn in writer.turns]
    assert turns == [("ann", SAID, ""), ("ann", "", "Tea.")]


def user_says(*texts: str) -> list[ModelMessage]:
    return [ModelRequest(parts=[UserPromptPart(text)]) for text in texts]


def test_prompts_in_the_message_history_are_submitted(tmp_path: Path):
    # As UI adapters do it: the prompt is the last message of the history.
    setting = Setting(tmp_path)
    history = user_says(SAID)
    for number in range(3):
        asyncio.run(setting.agent.run(message_history=history))
        answered = ModelResponse(parts=[TextPart("Good choice.")])
        history = [*history, answered, *user_says(f"And cake {number}.")]
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [SAID, "And cake 0.", "And cake 1."]
    assert list(setting.writer.turns[2].earlier or ())[-1] == ("And cake 0.", "Good choice.")
    setting.writer.close_sync()


@pytest.mark.parametrize("prompt", [None, "And cake."])
def test_the_turn_has_all_messages_since_the_last_answer(tmp_path: Path, prompt: str | None):
    setting = Setting(tmp_path)
    answered = ModelResponse(parts=[TextPart("Hello.")])
    history = [*user_says("Hi."), answered, *user_says(SAID, "I like milk.")]
    asyncio.run(setting.agent.run(prompt, message_history=history))
    (turn,) = setting.writer.turns
    assert turn.user_msg == "\n\n".join(filter(None, [SAID, "I like milk.", prompt]))
    setting.writer.close_sync()


@pytest.mark.parametrize("history", ["kept", "kept without ids"])
def test_messages_of_a_failed_run_are_not_submitted_again(tmp_path: Path, history: str):
    setting = Setting(tmp_path)
    with pytest.raises(ModelHTTPError):
        asyncio.run(setting.agent.run(SAID, model=FunctionModel(fail)))
    before = user_says(SAID)
    if history == "kept":
        for message in before:
            message.run_id = "the failed one"
    asyncio.run(setting.agent.run("I like milk.", message_history=before))
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID, "I like milk."]
    again = [*before, *user_says("I like milk."), ModelResponse(parts=[TextPart("Fine.")])]
    asyncio.run(setting.agent.run(SAID, message_history=again))
    assert setting.writer.turns[2].user_msg == SAID
    assert setting.writer.flush(30)
    setting.writer.close_sync()


def test_another_agent_repeats_no_words_of_a_failed_run(tmp_path: Path):
    setting = Setting(tmp_path)
    with pytest.raises(ModelHTTPError):
        asyncio.run(setting.agent.run(SAID, model=FunctionModel(fail)))
    second = DiaryCapability(tmp_path, "alice", "s1", writer=setting.writer)
    asyncio.run(Agent(FunctionModel(answer), capabilities=[second]).run(SAID))
    said = [(turn.user_msg, turn.assistant_msg) for turn in setting.writer.turns]
    assert said == [(SAID, ""), ("", "Good choice.")]
    setting.writer.close_sync()


def test_memory_that_lost_its_mark_is_no_user_message(tmp_path: Path):
    # As `dump_messages` of UI adapters does it: of each part, only the text is kept.
    setting = Setting(tmp_path)
    history = asyncio.run(setting.agent.run("Hi.")).all_messages()
    with capture_run_messages() as failed, pytest.raises(ModelHTTPError):
        asyncio.run(setting.agent.run(SAID, message_history=history, model=FunctionModel(fail)))
    plain: list[ModelMessage] = []
    for message in failed:
        if isinstance(message, ModelResponse):
            plain.append(ModelResponse(parts=message.parts))
            continue
        for part in message.parts:
            content = part.content if isinstance(part, UserPromptPart) else ""
            texts = [content] if isinstance(content, str) else content
            plain += user_says(*(getattr(text, "content", str(text)) for text in texts))
    assert "<user_memory" in str(plain)
    asyncio.run(setting.agent.run("And cake.", message_history=plain))
    assert [turn.user_msg for turn in setting.writer.turns] == ["Hi.", SAID, "And cake."]
    assert list(setting.writer.turns[2].earlier or ()) == [("Hi.", "Good choice.")]
    setting.writer.close_sync()


def test_memory_beside_words_is_left_out(tmp_path: Path):
    setting = Setting(tmp_path)
    memory = setting.diary.user("alice").render()
    asyncio.run(setting.agent.run(f"{memory}\n\n{SAID}"))
    setting.the_turn("completed", "Good choice.")


def test_the_same_history_again_repeats_no_words(tmp_path: Path):
    setting = Setting(tmp_path)
    history = user_says(SAID)
    for _ in range(2):
        asyncio.run(setting.agent.run(message_history=history))
    answered = ModelResponse(parts=[TextPart("Good choice.")])
    asyncio.run(setting.agent.run(message_history=[*history, answered, *history]))
    for _ in range(2):  # a prompt is said each time
        asyncio.run(setting.agent.run(SAID))
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID, "", SAID, SAID, SAID]
    setting.writer.close_sync()


def test_a_failed_message_of_the_history_is_known_after_other_runs(tmp_path: Path):
    setting = Setting(tmp_path)
    history = user_says(SAID)
    copied = copy.deepcopy(history)
    failed(setting.agent, None, message_history=history)
    failed(setting.agent, "I like milk.")  # another chat of the same session
    asyncio.run(setting.agent.run("I like cake.", message_history=copied))
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [SAID, "I like milk.", "I like cake."]
    setting.writer.close_sync()


@pytest.mark.parametrize("is_prompt", [True, False])
def test_a_retry_with_a_history_of_texts_repeats_no_words(tmp_path: Path, is_prompt: bool):
    # No message has an id or the time of an earlier run, so each run is a new conversation.
    setting = Setting(tmp_path)
    memory = DiaryCapability(setting.diary, "alice", writer=setting.writer)
    agent = Agent(FunctionModel(answer), capabilities=[memory])

    def asked(*texts: str) -> dict[str, Any]:
        before = [*user_says("Hi."), ModelResponse([TextPart("Hello.")])]
        *earlier, last = texts
        if is_prompt:
            return {"user_prompt": last, "message_history": [*before, *user_says(*earlier)]}
        return {"user_prompt": None, "message_history": [*before, *user_says(*texts)]}

    for _ in range(2):
        failed(agent, asked(SAID)["user_prompt"], message_history=asked(SAID)["message_history"])
    failed(agent, None, message_history=user_says(SAID))  # another chat
    asyncio.run(agent.run(**asked(SAID, "I like milk.")))
    # The host lost the answer, and the user says it again.
    asyncio.run(agent.run(**asked("I like milk.")))
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [SAID, SAID, "I like milk.", "I like milk."]
    setting.writer.close_sync()


def test_words_of_a_failed_run_may_be_said_again_in_another_named_session(tmp_path: Path):
    # Each session begins with the same examples.
    setting = Setting(tmp_path)
    examples = [*user_says("Hi."), ModelResponse([TextPart("Hello.")])]
    agents = [
        Agent(
            FunctionModel(answer),
            capabilities=[DiaryCapability(setting.diary, "alice", name, writer=setting.writer)],
        )
        for name in ("s1", "s2")
    ]
    failed(agents[0], SAID, message_history=examples)
    asyncio.run(agents[1].run(SAID, message_history=examples))
    said = [(turn.session_id, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("s1", SAID), ("s2", SAID)]
    setting.writer.close_sync()


def test_a_long_chat_of_equal_words_hides_no_failed_message(tmp_path: Path):
    setting = Setting(tmp_path)
    history = user_says(SAID)
    copied = copy.deepcopy(history)
    failed(setting.agent, None, message_history=history)
    long = [
        each for _ in range(3_000) for each in (*user_says("Yes."), ModelResponse([TextPart("?")]))
    ]
    failed(setting.agent, "Yes.", message_history=long)
    asyncio.run(setting.agent.run("I like cake.", message_history=copied))
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [SAID, "Yes.", "I like cake."]
    setting.writer.close_sync()


def test_messages_left_unanswered_elsewhere_are_submitted(tmp_path: Path):
    setting = Setting(tmp_path)
    other = Agent(FunctionModel(fail))
    with capture_run_messages() as messages, pytest.raises(ModelHTTPError):
        asyncio.run(other.run(SAID))
    asyncio.run(setting.agent.run("I like milk.", message_history=messages))
    (turn,) = setting.writer.turns
    assert turn.user_msg == f"{SAID}\n\nI like milk."
    setting.writer.close_sync()


@pytest.mark.parametrize(
    ("end", "ids"),
    [("failed", {}), ("open", {}), pytest.param("failed", {"run_id": "1"}, marks=names_its_run)],
)
def test_words_of_another_user_of_a_conversation_are_no_part_of_the_turn(
    tmp_path: Path, end: str, ids: dict[str, Any]
):
    diary = Diary(tmp_path, agent="rules")
    writer = Kept(diary)
    capability = DiaryCapability(diary, lambda ctx: ctx.deps.user_id, writer=writer)
    agent = Agent(FunctionModel(answer), deps_type=Deps, capabilities=[capability])
    history = user_says(SAID)

    async def respond(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if end == "open":
            await say("bob", [*history, *user_says("I like milk.")])
        raise ModelHTTPError(500, "scripted")

    async def say(user: str, messages: list[ModelMessage], **options: Any) -> None:
        await agent.run(
            message_history=messages, deps=Deps(user), conversation_id="room", **ids, **options
        )

    with pytest.raises(ModelHTTPError):
        asyncio.run(say("ann", history, model=FunctionModel(respond)))
    if end == "failed":
        asyncio.run(say("bob", [*history, *user_says("I like milk.")]))
    said = {(turn.user_id, turn.user_msg) for turn in writer.turns}
    assert said == {("ann", SAID), ("bob", "I like milk.")}
    writer.close_sync()


def failed(agent: Agent[Any, Any], words: str | None, **options: Any) -> list[ModelMessage]:
    """Return the messages of a run whose model fails."""
    with capture_run_messages() as messages, pytest.raises(ModelHTTPError):
        asyncio.run(agent.run(words, model=FunctionModel(fail), **options))
    return messages


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_a_branch_of_a_conversation_does_not_repeat_words(tmp_path: Path, user: str):
    setting = Setting(tmp_path)
    capability = DiaryCapability(setting.diary, writer=setting.writer)
    agent = Agent(FunctionModel(answer), capabilities=[capability])

    async def say(words: str, user: str, history: Sequence[ModelMessage]) -> list[ModelMessage]:
        metadata = {"user_id": user}
        result = await agent.run(words, message_history=history, metadata=metadata)
        return result.all_messages()

    async def run() -> None:
        history = await say("I like milk.", "alice", await say(SAID, "alice", []))
        # Other words in place of the first answer and all that followed.
        await say("I like rice.", user, history[:1])

    asyncio.run(run())
    said = [(turn.user_id, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("alice", SAID), ("alice", "I like milk."), (user, "I like rice.")]
    setting.writer.close_sync()


@pytest.mark.parametrize("case", ["failed", "failed twice", "another chat"])
def test_words_of_another_user_are_no_part_of_a_turn_in_a_new_conversation(
    tmp_path: Path, case: str
):
    diary = Diary(tmp_path, agent="rules")
    writer = Kept(diary)
    capability = DiaryCapability(diary, lambda ctx: ctx.deps.user_id, writer=writer)
    agent = Agent(FunctionModel(answer), deps_type=Deps, capabilities=[capability])
    diary.user("ann").upsert_preference("likes", "tea")
    history: list[ModelMessage] = []
    for number in range(2 if case == "failed twice" else 1):
        history = failed(agent, f"I like {number}.", deps=Deps("ann"), message_history=history)
    if case == "another chat":
        same = history[-1].conversation_id
        asyncio.run(agent.run("What is the time?", deps=Deps("ann"), conversation_id=same))
    asyncio.run(agent.run(SAID, deps=Deps("bob"), message_history=history, conversation_id="new"))
    assert [turn.user_msg for turn in writer.turns if turn.user_id == "bob"] == [SAID]
    writer.close_sync()


@pytest.mark.parametrize("case", ["a run", "two runs", "of the host", "no name", "again"])
def test_shown_memory_tells_another_process_whose_words_were_unanswered(tmp_path: Path, case: str):
    said: list[tuple[str, str]] = []
    history: list[ModelMessage] = []
    for place in ("here", "elsewhere"):  # what a process knows of runs, it knows for one memory
        diary = Diary(tmp_path / place, agent="rules")
        diary.user("ann").upsert_preference("likes", "tea")
        writer = Kept(diary)
        name = None if (case, place) == ("no name", "here") else "diary"
        agent = Agent(
            FunctionModel(answer),
            deps_type=Deps,
            capabilities=[DiaryCapability(diary, writer=writer, id=name)],
        )
        if place == "here":
            for number in range(2 if case == "two runs" else 1):
                words: str | None = f"I like {number}."
                if case == "of the host":  # behind a result, its words get no run
                    called = ModelResponse(parts=[ToolCallPart("look", {}, "1")])
                    result = ModelRequest(parts=[ToolReturnPart("look", "rain", "1")])
                    history, words = [called, result, *user_says("I like rain.")], None
                history = failed(agent, words, deps=Deps("ann"), message_history=history)
                diary.user("ann").upsert_preference("likes", f"bike {number}")
            history = ModelMessagesTypeAdapter.validate_json(
                ModelMessagesTypeAdapter.dump_json(history)
            )
        else:
            if case == "again":
                history += user_says("I like milk.")
                history = failed(agent, None, deps=Deps("bob"), message_history=history)
            asyncio.run(agent.run(SAID, deps=Deps("bob"), message_history=history))
            said += [(turn.user_id, turn.user_msg) for turn in writer.turns]
        writer.close_sync()
    assert said == [*([("bob", "I like milk.")] if case == "again" else []), ("bob", SAID)]


def test_a_failed_run_is_continued_without_its_words_after_another_chat(tmp_path: Path):
    setting = Setting(tmp_path)
    history = failed(setting.agent, SAID)
    asyncio.run(setting.agent.run("What is the time?"))  # another chat of the same session
    asyncio.run(setting.agent.run("I like milk.", message_history=history))
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [SAID, "What is the time?", "I like milk."]
    asyncio.run(setting.agent.run(SAID, message_history=failed(setting.agent, SAID)))
    assert [turn.user_msg for turn in setting.writer.turns[3:]] == [SAID, SAID]  # said again
    setting.writer.close_sync()


def test_the_last_messages_of_a_failed_run_repeat_no_words(tmp_path: Path):
    # The host's message in front of the prompt has no id, and is not at its place any more.
    setting = Setting(tmp_path)
    history = asyncio.run(setting.agent.run("Hi.")).all_messages()
    kept = failed(setting.agent, "I like milk.", message_history=[*history, *user_says(SAID)])
    failed(setting.agent, "I like rum.", message_history=history)  # at the same time
    asyncio.run(setting.agent.run("I like cake.", message_history=kept[-3:]))
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == ["Hi.", f"{SAID}\n\nI like milk.", "I like rum.", "I like cake."]
    setting.writer.close_sync()


@pytest.mark.parametrize("is_prompt", [True, False])
def test_words_repeated_after_a_stopped_answer_are_submitted(tmp_path: Path, is_prompt: bool):
    setting = Setting(tmp_path)
    failed(setting.agent, "Yes.")
    stopped = [*user_says("Yes."), ModelResponse(parts=[TextPart("Are you a vegetarian?")])]
    if is_prompt:
        asyncio.run(setting.agent.run("Yes.", message_history=stopped))
    else:  # a user interface puts the prompt there
        asyncio.run(setting.agent.run(message_history=[*stopped, *user_says("Yes.")]))
    assert [turn.user_msg for turn in setting.writer.turns] == ["Yes.", "Yes."]
    setting.writer.close_sync()


@pytest.mark.parametrize("is_known", [True, False])
def test_words_that_are_answered_again_for_another_user_are_not_submitted(
    tmp_path: Path, is_known: bool
):
    diary = Diary(tmp_path, agent="rules")
    if is_known:  # then the memory follows the words
        diary.user("bob").upsert_preference("dislikes", "the colour green")
    writer = Kept(diary)
    agent = Agent(
        FunctionModel(answer),
        deps_type=Deps,
        capabilities=[DiaryCapability(diary, session_id="s1", writer=writer)],
    )
    result = asyncio.run(agent.run(message_history=user_says(SAID), deps=Deps("bob")))
    asyncio.run(agent.run(message_history=result.all_messages()[:-1], deps=Deps("ann")))
    assert [(turn.user_id, turn.user_msg) for turn in writer.turns] == [("bob", SAID), ("ann", "")]
    writer.close_sync()


def test_words_of_the_history_before_a_prompt_keep_their_user(tmp_path: Path):
    setting = Setting(tmp_path)
    memory = DiaryCapability(setting.diary, writer=setting.writer)
    agent = Agent(FunctionModel(answer), deps_type=Deps, capabilities=[memory])

    async def ask(user: str, prompt: str | None, history: list[ModelMessage]) -> list[ModelMessage]:
        options: Any = {"deps": Deps(user), "conversation_id": "room"}
        return (await agent.run(prompt, message_history=history, **options)).all_messages()

    answered = asyncio.run(ask("bob", "I like milk.", user_says(SAID)))
    asyncio.run(ask("ann", None, answered[:-1]))  # the answer is made again
    said = [(turn.user_id, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("bob", f"{SAID}\n\nI like milk."), ("ann", "")]
    setting.writer.close_sync()


@pytest.mark.parametrize("is_known", [True, False])
def test_messages_that_the_framework_joined_are_submitted_once(tmp_path: Path, is_known: bool):
    diary = Diary(tmp_path, agent="rules")
    if is_known:  # then the memory is shown among the messages
        diary.user("ann").upsert_preference("dislikes", "the colour green")
    writer = Kept(diary)
    memory = DiaryCapability(diary, session_id="s1", writer=writer)
    agent = Agent(FunctionModel(answer), deps_type=Deps, capabilities=[memory])
    history: list[ModelMessage] = []
    for words in (SAID, "I like milk.", "Hello?"):
        history = failed(agent, words, message_history=history, deps=Deps("ann"))
    copied = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(history))
    asyncio.run(agent.run("What is the time?", deps=Deps("ann")))  # another chat
    asyncio.run(agent.run("I like cake.", message_history=copied, deps=Deps("ann")))
    asyncio.run(agent.run("I like soup.", message_history=copied, deps=Deps("bob")))
    assert [(turn.user_id, turn.user_msg) for turn in writer.turns[3:]] == [
        ("ann", "What is the time?"),
        ("ann", "I like cake."),
        ("bob", "I like soup."),
    ]
    writer.close_sync()


def test_a_prompt_joined_with_tool_results_is_submitted_once(tmp_path: Path):
    diary = Diary(tmp_path, agent="rules")
    writer = Kept(diary)
    memory = DiaryCapability(diary, session_id="s1", writer=writer)

    def look_first(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return fail(messages, info) if has_result(messages) else call_once("look")(messages, info)

    agent = Agent(FunctionModel(answer), deps_type=Deps, capabilities=[memory])

    @agent.tool_plain
    def look() -> str:
        return "seen"

    async def ask() -> None:
        await agent.run(SAID, model=FunctionModel(look_first), deps=Deps("ann"))

    with capture_run_messages() as history, pytest.raises(ModelHTTPError):
        asyncio.run(ask())
    for words in ("I like milk.", "Hello?"):
        history = failed(agent, words, message_history=history, deps=Deps("ann"))
    asyncio.run(agent.run("What is the time?", deps=Deps("ann")))
    asyncio.run(agent.run("I like soup.", message_history=history, deps=Deps("bob")))
    assert writer.turns[-1].user_msg == "I like soup."
    writer.close_sync()


def test_each_memory_of_an_agent_records_a_prompt_in_the_history(tmp_path: Path):
    diary = Diary(tmp_path, agent="rules")
    writer = Kept(diary)
    users = {"diary": "ann", "team": "the team"}
    memories = [
        DiaryCapability(diary, user, id=name, tools="none", writer=writer)
        for name, user in users.items()
    ]
    agent = Agent(FunctionModel(answer), capabilities=memories)
    asyncio.run(agent.run(message_history=user_says(SAID)))
    said = {(turn.user_id, turn.user_msg) for turn in writer.turns}
    assert said == {("ann", SAID), ("the team", SAID)}
    writer.close_sync()


@pytest.mark.parametrize("door", ["capability", "toolset"])
def test_a_turn_that_another_user_began_cannot_be_continued(tmp_path: Path, door: str):
    diary = Diary(tmp_path, agent="rules")
    for user in ("ann", "bob"):
        diary.user(user).upsert_preference("likes", f"the bike of {user}")
    forget = call_once("forget", key="likes/pref001")
    with MemoryWriter(diary) as writer:
        is_capability = door == "capability"
        agent: Agent[Deps, Any] = Agent(
            FunctionModel(forget),
            deps_type=Deps,
            output_type=[str, DeferredToolRequests],
            capabilities=[DiaryCapability(diary, writer=writer, approve=["forget"])]
            if is_capability
            else [],
            toolsets=[] if is_capability else [DiaryToolset(diary, approve=["forget"])],
        )

        async def approve(waiting: Any, user: str) -> str:
            approvals: dict[str, Any] = {waiting.output.approvals[0].tool_call_id: True}
            stored = ModelMessagesTypeAdapter.validate_json(waiting.all_messages_json())
            results = DeferredToolResults(approvals=approvals)
            done = await agent.run(
                message_history=stored, deferred_tool_results=results, deps=Deps(user)
            )
            return done.output

        async def run() -> None:
            waiting = await agent.run("Forget my bike.", deps=Deps("ann"))
            with pytest.raises(IdentifierError, match="another user began this turn"):
                await approve(waiting, "bob")
            assert await approve(waiting, "ann") == "Good choice."

        asyncio.run(run())
    assert "likes" in diary.user("bob").document("preferences")
    assert "bike of ann" not in diary.user("ann").document("preferences")


def test_shown_memory_tells_another_process_who_began_a_turn(tmp_path: Path):
    waiting: Any = None
    for place in ("here", "elsewhere"):  # what a process knows of runs, it knows for one memory
        diary = Diary(tmp_path / place, agent="rules")
        for user in ("ann", "bob"):
            diary.user(user).upsert_preference("likes", f"the bike of {user}")
        agent: Agent[Deps, Any] = Agent(
            FunctionModel(call_once("forget", key="likes/pref001")),
            deps_type=Deps,
            output_type=[str, DeferredToolRequests],
            capabilities=[DiaryCapability(diary, record=False, approve=["forget"])],
        )
        if waiting is None:
            waiting = asyncio.run(agent.run("Forget my bike.", deps=Deps("ann")))
            continue
        approved = {
            "message_history": ModelMessagesTypeAdapter.validate_json(waiting.all_messages_json()),
            "deferred_tool_results": DeferredToolResults(
                approvals={waiting.output.approvals[0].tool_call_id: True}
            ),
        }
        with pytest.raises(IdentifierError, match="another user began this turn"):
            asyncio.run(agent.run(deps=Deps("bob"), **approved))
        assert "bike of bob" in diary.user("bob").document("preferences")
        assert asyncio.run(agent.run(deps=Deps("ann"), **approved)).output == "Good choice."
        assert "bike of ann" not in diary.user("ann").document("preferences")


@pytest.mark.parametrize("tokens", [None, 1], ids=["in a tool", "before the tool"])
def test_another_user_may_speak_after_a_run_that_was_cut_off(tmp_path: Path, tokens: int | None):
    diary = Diary(tmp_path, agent="rules")
    writer = Kept(diary)
    capability = DiaryCapability(diary, writer=writer)
    agent = Agent(FunctionModel(call_once("look")), deps_type=Deps, capabilities=[capability])

    @agent.tool_plain
    def look() -> str:
        raise LookupError

    limits = UsageLimits(total_tokens_limit=tokens)
    cut_off = pytest.raises((LookupError, UsageLimitExceeded))
    with capture_run_messages() as messages, cut_off:
        asyncio.run(agent.run(SAID, deps=Deps("ann"), usage_limits=limits))
    if getattr(messages[-1], "state", "") != "interrupted":
        pytest.skip("older releases do not close the calls of a run that was cut off")
    asyncio.run(agent.run("I like milk.", deps=Deps("bob"), message_history=messages))
    assert [turn.user_msg for turn in writer.turns] == [SAID, "I like milk."]
    writer.close_sync()


@pytest.mark.parametrize("is_prompt", [True, False])
def test_words_of_runs_that_overlap_are_submitted_once(tmp_path: Path, is_prompt: bool):
    setting = Setting(tmp_path)
    history = user_says(SAID)

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await setting.agent.run("I like milk.", message_history=history)
        return answer(messages, info)

    model = FunctionModel(respond)
    if is_prompt:
        asyncio.run(setting.agent.run(SAID, model=model))
    else:
        asyncio.run(setting.agent.run(message_history=history, model=model))
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [f"{SAID}\n\nI like milk.", ""]  # the first one that ends has all
    setting.writer.close_sync()


def test_a_prompt_in_the_history_of_an_open_run_is_submitted_once(tmp_path: Path):
    setting = Setting(tmp_path)

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await setting.agent.run(SAID)
        return answer(messages, info)

    history = user_says(SAID)
    asyncio.run(
        setting.agent.run("I like milk.", message_history=history, model=FunctionModel(respond))
    )
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID, "I like milk."]
    setting.writer.close_sync()


def test_a_retry_repeats_no_words_if_another_user_said_the_same(tmp_path: Path):
    setting = Setting(tmp_path)
    memory = DiaryCapability(setting.diary, session_id="s1", writer=setting.writer)
    agent = Agent(FunctionModel(answer), deps_type=Deps, capabilities=[memory])
    first = asyncio.run(agent.run(SAID, deps=Deps("ann"))).all_messages()[:-1]
    failed(agent, None, message_history=user_says(SAID), deps=Deps("bob"))
    asyncio.run(agent.run(message_history=[*first, *user_says(SAID)], deps=Deps("bob")))
    said = [(turn.user_id, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("ann", SAID), ("bob", SAID), ("bob", "")]
    setting.writer.close_sync()


def test_runs_at_once_submit_the_words_of_their_history_once(tmp_path: Path):
    setting = Setting(tmp_path)

    async def run(**options: Any) -> None:
        await asyncio.gather(*(setting.agent.run(**options) for _ in range(3)))

    asyncio.run(run(message_history=user_says(SAID)))
    asyncio.run(run(user_prompt="I like milk."))  # a prompt is said each time
    said = sorted(turn.user_msg for turn in setting.writer.turns)
    assert said == ["", "", *["I like milk."] * 3, SAID]
    setting.writer.close_sync()


def sent_by_interface(text: str, id_: str, *before: str) -> list[ModelMessage]:
    """Return a message as a UI adapter gives it to the run, which joins it to the messages before it."""
    marks = {"__pydantic_ai__": {"ui_message_id": id_}}
    parts = [UserPromptPart(each) for each in (*before, text)]
    return [ModelRequest(parts=parts, metadata=marks)]


def test_equal_words_of_users_in_chats_with_one_id_are_submitted(tmp_path: Path):
    setting = Setting(tmp_path)
    memory = DiaryCapability(setting.diary, writer=setting.writer)
    agent = Agent(FunctionModel(answer), deps_type=Deps, capabilities=[memory])

    async def ask(user: str) -> None:
        said = sent_by_interface(SAID, f"message of {user}")
        await agent.run(message_history=said, deps=Deps(user), conversation_id="main")

    async def at_once() -> None:
        await asyncio.gather(*map(ask, ("ann", "bob")))

    asyncio.run(at_once())
    said = sorted((turn.user_id, turn.user_msg) for turn in setting.writer.turns)
    assert said == [("ann", SAID), ("bob", SAID)]
    setting.writer.close_sync()


def test_words_of_an_interface_that_sends_no_history_count_each_time(tmp_path: Path):
    setting = Setting(tmp_path)
    for id_ in ("1", "2", "2"):  # the last one asks for another answer
        asyncio.run(setting.agent.run(message_history=sent_by_interface(SAID, id_)))
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID, SAID, ""]
    setting.writer.close_sync()


def test_a_retry_with_another_id_of_the_interface_repeats_no_words(tmp_path: Path):
    setting = Setting(tmp_path)
    failed(setting.agent, None, message_history=sent_by_interface(SAID, "1"))
    asyncio.run(setting.agent.run(message_history=sent_by_interface(SAID, "2")))
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID, ""]
    setting.writer.close_sync()


def chat_of_two(setting: Setting) -> Callable[..., None]:
    """Return a function that runs an agent for a user of one conversation, with a history."""
    memory = DiaryCapability(setting.diary, writer=setting.writer)
    agent = Agent(FunctionModel(answer), deps_type=Deps, capabilities=[memory])

    def ask(user: str, *history: ModelMessage) -> None:
        asyncio.run(
            agent.run(message_history=history, deps=Deps(user), conversation_id="their chat")
        )

    return ask


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_an_older_message_that_an_interface_sends_again_is_known(tmp_path: Path, user: str):
    setting = Setting(tmp_path)
    ask = chat_of_two(setting)
    first, answered = sent_by_interface(SAID, "1"), ModelResponse([TextPart("Good choice.")])
    ask("alice", *first)
    ask("alice", *first, answered, *sent_by_interface("And cake.", "2"))
    ask(user, *sent_by_interface(SAID, "1"))  # for another answer
    ask(user, *sent_by_interface(SAID, "3"))  # said again
    said = [(turn.user_id, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("alice", SAID), ("alice", "And cake."), (user, ""), (user, SAID)]
    setting.writer.close_sync()


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_joined_messages_that_an_interface_sends_again_are_known(tmp_path: Path, user: str):
    setting = Setting(tmp_path)
    ask = chat_of_two(setting)
    first, answered = sent_by_interface("Cake.", "2", SAID), ModelResponse([TextPart("Fine.")])
    ask("alice", *first)
    ask("alice", *first, answered, *sent_by_interface("Thanks.", "3"))
    ask(user, *sent_by_interface("Cake.", "2", SAID))  # for another answer
    ask(user, *sent_by_interface("Bread.", "2", SAID))  # one message is edited
    ask(user, *first, answered, *sent_by_interface("Really?", "4"))
    ask(user, *sent_by_interface("Cake.", "5", SAID))  # the last one is said again
    ask(user, *sent_by_interface(SAID, "1"))  # the others are deleted
    again = [*sent_by_interface(SAID, "1"), answered, *sent_by_interface("Tea.", "6", SAID)]
    ask(user, *again)  # the history has its words elsewhere
    assert [(turn.user_id, turn.user_msg) for turn in setting.writer.turns] == [
        ("alice", f"{SAID}\n\nCake."),
        ("alice", "Thanks."),
        (user, ""),
        (user, "Bread."),
        (user, "Really?"),
        (user, "Cake."),
        (user, ""),
        (user, f"{SAID}\n\nTea."),
    ]
    setting.writer.close_sync()


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_words_that_equal_joined_ones_of_the_history_are_new(tmp_path: Path, user: str):
    setting = Setting(tmp_path)
    ask = chat_of_two(setting)
    chat = sent_by_interface("Cake.", "2", SAID)
    ask("alice", *chat)
    chat += [ModelResponse([TextPart("Fine.")]), *sent_by_interface(SAID, "3")]
    ask(user, *chat)
    chat += [ModelResponse([TextPart("Fine.")]), *sent_by_interface("Tea.", "5", SAID)]
    ask(user, *chat)
    ask("alice", *chat)  # for another answer
    assert [(turn.user_id, turn.user_msg) for turn in setting.writer.turns] == [
        ("alice", f"{SAID}\n\nCake."),
        (user, SAID),
        (user, f"{SAID}\n\nTea."),
        ("alice", ""),
    ]
    setting.writer.close_sync()


def test_words_of_a_refused_run_are_not_given_to_the_next_user(tmp_path: Path):
    setting = Setting(tmp_path)
    memory = DiaryCapability(setting.diary, writer=setting.writer)
    output: Any = [str, DeferredToolRequests]
    pays = FunctionModel(call_once("pay"))
    agent = Agent(pays, deps_type=Deps, output_type=output, capabilities=[memory])

    @agent.tool_plain(requires_approval=True)
    def pay() -> str:
        return "paid"

    def ask(user: str, *history: ModelMessage, **options: Any) -> Any:
        options |= {"deps": Deps(user), "conversation_id": "their chat"}
        return asyncio.run(agent.run(message_history=history, **options))

    paused = ask("alice", *sent_by_interface(SAID, "1"))
    before = paused.all_messages()
    with pytest.raises(IdentifierError):
        ask("bob", *before, *sent_by_interface("I like milk.", "2"))
    (call,) = paused.output.approvals
    approved = DeferredToolResults(approvals={call.tool_call_id: True})
    asked = sent_by_interface("Go on.", "3", "I like milk.")
    ask("alice", *before, *asked, deferred_tool_results=approved)
    said = [(turn.user_id, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("alice", SAID), ("alice", "Go on.")]
    setting.writer.close_sync()


def test_interfaces_may_use_an_id_again_in_another_chat_of_a_session(tmp_path: Path):
    setting = Setting(tmp_path)
    answered = ModelResponse([TextPart("Good choice.")])
    for chat in ("monday", "tuesday"):
        first = sent_by_interface(SAID, "1")
        for history in (first, [*first, answered, *sent_by_interface(f"On {chat}.", "2")]):
            asyncio.run(setting.agent.run(message_history=history, conversation_id=chat))
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [SAID, "On monday.", SAID, "On tuesday."]
    setting.writer.close_sync()


def test_a_vercel_client_that_asks_for_another_answer_repeats_no_words(tmp_path: Path):
    vercel = pytest.importorskip("pydantic_ai.ui.vercel_ai").VercelAIAdapter
    if "manage_message_history" not in inspect.signature(vercel).parameters:
        pytest.skip("this release does not keep the client's ids of messages")
    setting = Setting(tmp_path)

    async def send(*sent: tuple[str, str, str], trigger: str) -> None:
        messages = [
            {"id": id_, "role": role, "parts": [{"type": "text", "text": text}]}
            for id_, role, text in sent
        ]
        request = {"id": "chat", "messages": messages, "trigger": trigger}
        adapter = vercel(setting.agent, vercel.build_run_input(json.dumps(request).encode()))
        async for _ in adapter.run_stream():
            pass

    first = ("1", "user", SAID)
    later = (first, ("2", "assistant", "Good choice."), ("3", "user", "And cake."))
    for sent, trigger in (
        ([first], "submit-message"),
        (later, "submit-message"),
        (later, "regenerate-message"),
        ([first], "regenerate-message"),
    ):
        asyncio.run(send(*sent, trigger=trigger))
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID, "And cake.", "", ""]
    setting.writer.close_sync()


def test_words_that_a_run_could_not_submit_are_left_to_another(tmp_path: Path):
    setting = Setting(tmp_path)
    history = user_says(SAID)
    closed = MemoryWriter(setting.diary)
    closed.close_sync()
    memory = DiaryCapability(setting.diary, "alice", "s1", writer=closed)
    other = Agent(FunctionModel(answer), capabilities=[memory])

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await other.run(message_history=history)
        return answer(messages, info)

    asyncio.run(setting.agent.run(message_history=history, model=FunctionModel(respond)))
    setting.the_turn("completed", "Good choice.")


def test_a_message_with_an_approval_is_submitted(tmp_path: Path):
    setting = Setting(tmp_path, call_once("look"), output_type=[str, DeferredToolRequests])

    @setting.agent.tool_plain(requires_approval=True)
    def look() -> str:
        return "seen"

    async def run() -> None:
        waiting = await setting.agent.run(SAID)
        assert isinstance(waiting.output, DeferredToolRequests)
        approvals: dict[str, Any] = {waiting.output.approvals[0].tool_call_id: True}
        await setting.agent.run(
            "I like milk.",
            message_history=waiting.all_messages(),
            deferred_tool_results=DeferredToolResults(approvals=approvals),
        )

    asyncio.run(run())
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID, "I like milk."]
    setting.writer.close_sync()


def test_words_enqueued_before_an_approval_are_submitted_once(tmp_path: Path):
    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if any(isinstance(part, ToolReturnPart) for one in messages for part in one.parts):
            return answer(messages, info)
        return ModelResponse(parts=[ToolCallPart("look", {}), ToolCallPart("pay", {})])

    setting = Setting(tmp_path, respond, output_type=[str, DeferredToolRequests])

    @setting.agent.tool
    def look(ctx: RunContext[None]) -> str:
        ctx.enqueue("I like milk.")
        return "seen"

    @setting.agent.tool_plain(requires_approval=True)
    def pay() -> str:
        return "paid"

    async def run() -> None:
        waiting = await setting.agent.run(SAID)
        if not isinstance(waiting.output, DeferredToolRequests):
            pytest.skip("older releases go on with what was enqueued")
        approvals: dict[str, Any] = {waiting.output.approvals[0].tool_call_id: True}
        await setting.agent.run(
            "I like milk.",
            message_history=waiting.all_messages(),
            deferred_tool_results=DeferredToolResults(approvals=approvals),
        )

    asyncio.run(run())
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [f"{SAID}\n\nI like milk.", "I like milk."]  # the prompt says it again
    setting.writer.close_sync()


def test_a_failed_run_that_heard_more_is_repeated_without_its_words(tmp_path: Path):
    setting = Setting(tmp_path, call_once("look"))
    is_first = [True]

    @setting.agent.tool
    def look(ctx: RunContext[None]) -> str:
        if is_first:
            is_first.clear()
            ctx.enqueue("I like milk.")
            raise LookupError
        return "seen"

    with pytest.raises(LookupError):
        asyncio.run(setting.agent.run(SAID))
    asyncio.run(setting.agent.run(SAID))
    said = [(turn.status, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("failed", f"{SAID}\n\nI like milk."), ("completed", "")]
    setting.writer.close_sync()


def test_words_enqueued_in_another_order_are_submitted_once(tmp_path: Path):
    calls = [ToolCallPart(name, {}) for name in ("late", "soon", "pay")]

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if any(isinstance(part, ToolReturnPart) for one in messages for part in one.parts):
            return answer(messages, info)
        return ModelResponse(parts=calls)

    setting = Setting(tmp_path, respond, output_type=[str, DeferredToolRequests])

    @setting.agent.tool
    async def late(ctx: RunContext[None]) -> str:
        ctx.enqueue("I like milk.", priority="when_idle")
        return "seen"

    @setting.agent.tool
    async def soon(ctx: RunContext[None]) -> str:
        ctx.enqueue("I like rum.", priority="asap")
        return "seen"

    @setting.agent.tool_plain(requires_approval=True)
    def pay() -> str:
        return "paid"

    async def run() -> None:
        waiting = await setting.agent.run(SAID)
        if not isinstance(waiting.output, DeferredToolRequests):
            pytest.skip("older releases go on with what was enqueued")
        await setting.agent.run(
            message_history=waiting.all_messages(),
            deferred_tool_results=DeferredToolResults(approvals={calls[2].tool_call_id: True}),
        )

    asyncio.run(run())
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [f"{SAID}\n\nI like milk.\n\nI like rum.", ""]
    setting.writer.close_sync()


@pytest.mark.parametrize("priority", ["asap", "when_idle"])
def test_messages_enqueued_during_a_run_are_user_messages(tmp_path: Path, priority: Any):
    setting = Setting(tmp_path, call_once("look"))

    @setting.agent.tool
    def look(ctx: RunContext[None]) -> ToolReturn:
        ctx.enqueue("I like milk.", priority=priority)
        return ToolReturn("seen", content="I like what the web page says.")

    asyncio.run(setting.agent.run(SAID, usage_limits=UsageLimits(request_limit=3)))
    (turn,) = setting.writer.turns
    assert turn.user_msg == f"{SAID}\n\nI like milk."
    setting.writer.close_sync()


def test_messages_that_the_host_enqueues_are_user_messages(tmp_path: Path):
    setting = Setting(tmp_path)

    async def run() -> None:
        async with setting.agent.iter(SAID) as steps:
            steps.enqueue("I like milk.")
            async for _ in steps:
                pass

    asyncio.run(run())
    (turn,) = setting.writer.turns
    assert turn.user_msg == f"{SAID}\n\nI like milk."
    setting.writer.close_sync()


@pytest.mark.parametrize("priority", ["asap", "when_idle"])
def test_messages_that_a_capability_enqueues_are_user_messages(tmp_path: Path, priority: Any):
    class Steering(AbstractCapability[None]):
        """Sends what the user types while the agent works."""

        async def before_model_request(self, ctx: RunContext[None], request_context: Any) -> Any:
            if ctx.run_step == 1:
                ctx.enqueue("I like milk.", priority=priority)
            return request_context

    setting = Setting(tmp_path)
    asyncio.run(setting.agent.run(SAID, capabilities=[Steering()]))
    (turn,) = setting.writer.turns
    assert turn.user_msg == f"{SAID}\n\nI like milk."
    setting.writer.close_sync()


@pytest.mark.parametrize("end", ["left", "failed"])
def test_enqueued_messages_that_no_request_took_are_submitted(tmp_path: Path, end: str):
    setting = Setting(tmp_path, fail)

    async def run() -> None:
        async with setting.agent.iter(SAID) as steps:
            steps.enqueue("I like milk.", priority="when_idle")
            async for _ in steps:
                if end == "left":
                    break

    with nullcontext() if end == "left" else pytest.raises(ModelHTTPError):
        asyncio.run(run())
    asyncio.run(setting.agent.run("I like milk.", model=FunctionModel(answer)))  # it is sent again
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [f"{SAID}\n\nI like milk.", ""]
    setting.writer.close_sync()


@can_dequeue  # the first releases refuse such messages in a loop
def test_enqueued_messages_are_submitted_if_the_host_leaves_before_their_request(tmp_path: Path):
    setting = Setting(tmp_path)

    async def run() -> None:
        async with setting.agent.iter(SAID) as steps:
            steps.enqueue("I like milk.", priority="when_idle")
            is_answered = False
            async for node in steps:
                if is_answered and Agent.is_model_request_node(node):
                    break
                is_answered = is_answered or Agent.is_call_tools_node(node)

    asyncio.run(run())
    (turn,) = setting.writer.turns
    assert turn.user_msg == f"{SAID}\n\nI like milk."
    setting.writer.close_sync()


@can_dequeue
@pytest.mark.parametrize("by", ["host", "tool"])
def test_messages_that_the_host_takes_back_are_not_submitted(tmp_path: Path, by: str):
    setting = Setting(tmp_path, call_once("look"))
    enqueued: list[str] = []

    @setting.agent.tool
    def look(ctx: RunContext[None]) -> str:
        if by == "tool":
            enqueued.append(ctx.enqueue("I like milk.", priority="when_idle"))
        return "seen"

    async def run() -> None:
        async with setting.agent.iter(SAID) as steps:
            if by == "host":
                enqueued.append(steps.enqueue("I like milk.", priority="when_idle"))
            steps.enqueue("I like rum.", priority="when_idle")
            async for node in steps:
                if Agent.is_call_tools_node(node) and has_result(steps.all_messages()) and enqueued:
                    assert steps.dequeue(enqueued.pop())

    asyncio.run(run())
    (turn,) = setting.writer.turns
    assert turn.user_msg == f"{SAID}\n\nI like rum."
    setting.writer.close_sync()


def rewritten(message: ModelMessage, how: str) -> ModelMessage:
    """Return a message as a history processor leaves it."""
    if not isinstance(message, ModelRequest):
        return message
    parts = [copy.deepcopy(part) for part in message.parts]
    for number, part in enumerate(parts):
        if isinstance(part, UserPromptPart) and isinstance(part.content, str) and how != "copied":
            text = f"[redacted] {part.content[-5:]}"
            new = replace(part, content=text) if how == "redacted" else UserPromptPart(text)
            parts[number] = new
    if how == "built":
        return ModelRequest(parts=parts, run_id=message.run_id)
    if how == "bare":
        return ModelRequest(parts=parts)
    return replace(message, parts=parts)


@pytest.mark.parametrize("how", ["copied", "redacted", "made anew", "built"])
def test_words_that_a_processor_rewrites_are_submitted_once(tmp_path: Path, how: str):
    setting = Setting(tmp_path)

    def process(messages: list[ModelMessage]) -> list[ModelMessage]:
        return [rewritten(message, how) for message in messages]

    agent: Agent[None, str] = Agent(
        FunctionModel(call_once("look")),
        capabilities=[setting.capability, ProcessHistory(process)],
    )

    @agent.tool
    def look(ctx: RunContext[None]) -> str:
        ctx.enqueue("I like milk.", priority="when_idle")
        return "seen"

    asyncio.run(agent.run(SAID))
    (turn,) = setting.writer.turns
    assert turn.user_msg == f"{SAID}\n\nI like milk."
    setting.writer.close_sync()


@pytest.mark.parametrize("is_copied", [False, True])
def test_words_behind_a_summary_of_a_processor_are_submitted_once(tmp_path: Path, is_copied: bool):
    setting = Setting(tmp_path)

    def process(messages: list[ModelMessage]) -> list[ModelMessage]:
        last = copy.deepcopy(messages) if is_copied else messages
        summary = [*user_says("A summary."), ModelResponse(parts=[TextPart("Understood.")])]
        return [*summary, *last[-2:]]

    agent: Agent[None, str] = Agent(
        FunctionModel(answer), capabilities=[ProcessHistory(process), setting.capability]
    )
    history: list[ModelMessage] = []
    for text in (SAID, "I like milk.", SAID):
        history = asyncio.run(agent.run(text, message_history=history)).all_messages()
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID, "I like milk.", SAID]
    setting.writer.close_sync()


@pytest.mark.parametrize("how", ["redacted", "made anew", "built"])
def test_rewritten_words_of_a_failed_run_are_not_submitted_again(tmp_path: Path, how: str):
    setting = Setting(tmp_path)

    def process(messages: list[ModelMessage]) -> list[ModelMessage]:
        return [rewritten(message, how) for message in messages]

    agent: Agent[None, str] = Agent(
        FunctionModel(answer), capabilities=[setting.capability, ProcessHistory(process)]
    )
    with capture_run_messages() as messages, pytest.raises(ModelHTTPError):
        asyncio.run(agent.run(SAID, model=FunctionModel(fail)))
    asyncio.run(agent.run("I like milk.", message_history=messages))
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID, "I like milk."]
    setting.writer.close_sync()


def shortened(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Return messages with the first letters of the user's texts, as a history processor leaves them."""
    short: list[ModelMessage] = []
    for message in messages:
        parts = [
            UserPromptPart("".join(getattr(text, "content", text) for text in part.content)[:40])
            if isinstance(part, UserPromptPart)
            else part
            for part in message.parts
        ]
        short.append(replace(message, parts=parts))
    return short


@pytest.mark.parametrize(("user", "is_plain"), [("ann", False), ("bob", True)])
def test_memory_that_a_processor_rewrites_is_no_user_message(
    tmp_path: Path, user: str, is_plain: bool
):
    setting = Setting(tmp_path)
    setting.diary.user("ann").upsert_preference("likes", "rain")
    memory = DiaryCapability(setting.diary, session_id="s1", writer=setting.writer)
    agent: Agent[Deps, str] = Agent(
        FunctionModel(answer), deps_type=Deps, capabilities=[memory, ProcessHistory(shortened)]
    )
    history: list[ModelMessage] = []
    for words in (SAID, "I like milk."):
        options: dict[str, Any] = {"message_history": history, "conversation_id": "room"}
        history = failed(agent, words, deps=Deps("ann"), **options)
    assert prompts(history[0])[1].startswith("<user_memory")
    if is_plain:
        history = user_says(*(each for message in history for each in prompts(message)))
    options["message_history"] = history
    asyncio.run(agent.run("I like cake.", deps=Deps(user), **options))
    said = [(turn.user_id, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("ann", SAID), ("ann", "I like milk."), (user, "I like cake.")]
    setting.writer.close_sync()


def test_spoken_words_that_a_processor_writes_down_are_submitted(tmp_path: Path):
    setting = Setting(tmp_path)
    spoken = UserPromptPart([BinaryContent(b"tea", media_type="audio/wav")])

    def written(messages: list[ModelMessage]) -> list[ModelMessage]:
        texts = [
            UserPromptPart(SAID) if part == spoken else part
            for message in messages
            for part in message.parts
        ]
        return [ModelRequest(parts=texts)]

    agent: Agent[None, str] = Agent(
        FunctionModel(answer), capabilities=[setting.capability, ProcessHistory(written)]
    )
    history: list[ModelMessage] = [*user_says("I like cake."), ModelRequest(parts=[spoken])]
    history = failed(agent, None, message_history=history)
    texts = [each for message in history for each in prompts(message)]
    asyncio.run(agent.run("I like milk.", message_history=user_says(*texts)))
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == ["I like cake.", f"{SAID}\n\nI like milk."]
    setting.writer.close_sync()


def test_words_that_a_processor_rewrites_in_the_history_are_known_again(tmp_path: Path):
    setting = Setting(tmp_path)

    def process(messages: list[ModelMessage]) -> list[ModelMessage]:
        return [rewritten(message, "built") for message in messages]

    agent: Agent[None, str] = Agent(
        FunctionModel(fail), capabilities=[setting.capability, ProcessHistory(process)]
    )
    history: Any = []
    for text in (SAID, "I like milk.", "I like rum."):
        with capture_run_messages() as messages, pytest.raises(ModelHTTPError):
            asyncio.run(agent.run(text, message_history=history, metadata={"session_id": "s1"}))
        # The host stores texts alone.
        history = user_says(*(each for message in messages for each in prompts(message)))
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [SAID, "I like milk.", "I like rum."]
    setting.writer.close_sync()


@pytest.mark.parametrize("user", ["ann", "bob"])
def test_words_behind_a_rewritten_exchange_are_known_again(tmp_path: Path, user: str):
    setting = Setting(tmp_path)

    def process(messages: list[ModelMessage]) -> list[ModelMessage]:
        return [rewritten(message, "bare") for message in messages]

    memory = DiaryCapability(setting.diary, writer=setting.writer)
    agent: Agent[Deps, str] = Agent(
        FunctionModel(answer), deps_type=Deps, capabilities=[memory, ProcessHistory(process)]
    )
    # Without ids, one user is known by the place; several share an id of the conversation.
    options: dict[str, Any] = {} if user == "ann" else {"conversation_id": "room"}
    before = [*user_says("I like rum."), ModelResponse(parts=[TextPart("Good choice.")])]
    kept = failed(agent, SAID, message_history=before, deps=Deps("ann"), **options)
    history = [*user_says("[redacted]  rum."), before[1], *user_says(*prompts(kept[2])[:1])]
    assert [prompts(message)[:1] for message in history[::2]] == [
        prompts(kept[0]),
        prompts(kept[2])[:1],
    ]
    asyncio.run(agent.run("I like cake.", message_history=history, deps=Deps(user), **options))
    said = [(turn.user_id, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("ann", SAID), (user, "I like cake.")]
    setting.writer.close_sync()


def test_words_of_another_user_that_a_processor_made_anew_keep_their_user(tmp_path: Path):
    setting = Setting(tmp_path)

    def process(messages: list[ModelMessage]) -> list[ModelMessage]:
        return [rewritten(message, "bare") for message in messages]

    memory = DiaryCapability(setting.diary, session_id="s1", writer=setting.writer)
    agent: Agent[Deps, str] = Agent(
        FunctionModel(answer), deps_type=Deps, capabilities=[memory, ProcessHistory(process)]
    )
    history: list[ModelMessage] = []
    for user, text in (("ann", SAID), ("bob", "I like milk.")):
        options: dict[str, Any] = {"deps": Deps(user), "conversation_id": "room"}
        history = failed(agent, text, message_history=history, **options)
    asyncio.run(agent.run("What is the time?", deps=Deps("ann")))
    asyncio.run(agent.run("I like cake.", message_history=history, **options))
    said = [turn.user_msg for turn in setting.writer.turns if turn.user_id == "bob"]
    assert said == ["I like milk.", "I like cake."]
    setting.writer.close_sync()


def test_words_sent_behind_an_answer_of_a_failed_run_keep_their_user(tmp_path: Path):
    setting = Setting(tmp_path)
    memory = DiaryCapability(setting.diary, writer=setting.writer, inject=False)
    agent: Agent[Deps, str] = Agent(FunctionModel(answer), deps_type=Deps, capabilities=[memory])

    @agent.tool
    def look(ctx: RunContext[Deps]) -> str:
        ctx.enqueue("I like milk.")
        return "seen"

    def call_and_fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return (fail if has_result(messages) else call_once("look"))(messages, info)

    options: dict[str, Any] = {"conversation_id": "room"}
    with capture_run_messages() as kept, pytest.raises(ModelHTTPError):
        asyncio.run(
            agent.run(SAID, model=FunctionModel(call_and_fail), deps=Deps("ann"), **options)
        )
    history = [
        *user_says(*prompts(kept[0])),
        ModelResponse(parts=[TextPart("Let me see.")]),
        *user_says(*prompts(kept[2])),
    ]
    asyncio.run(agent.run("I like cake.", message_history=history, deps=Deps("bob"), **options))
    said = [(turn.user_id, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("ann", f"{SAID}\n\nI like milk."), ("bob", "I like cake.")]
    setting.writer.close_sync()


@pytest.mark.parametrize("prompt", ["I like cake.", None])
def test_words_whose_answer_the_host_left_out_keep_their_user(tmp_path: Path, prompt: str | None):
    # A host of texts keeps nothing of a structured output.
    setting = Setting(tmp_path)
    memory = DiaryCapability(setting.diary, writer=setting.writer)
    agent: Agent[Deps, str] = Agent(FunctionModel(answer), deps_type=Deps, capabilities=[memory])
    options: dict[str, Any] = {"conversation_id": "room"}
    asyncio.run(agent.run(message_history=user_says(SAID), deps=Deps("ann"), **options))
    history = user_says(SAID) if prompt else user_says(SAID, "I like cake.")
    asyncio.run(agent.run(prompt, message_history=history, deps=Deps("bob"), **options))
    # Without more words, the user may have said the same.
    asyncio.run(agent.run(message_history=user_says(SAID), deps=Deps("eve"), **options))
    said = [(turn.user_id, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("ann", SAID), ("bob", "I like cake."), ("eve", SAID)]
    setting.writer.close_sync()


def test_words_sent_behind_an_answer_of_a_failed_run_are_known_again(tmp_path: Path):
    # The host keeps texts alone, so each run is a new conversation.
    setting = Setting(tmp_path)
    memory = DiaryCapability(setting.diary, "alice", writer=setting.writer, inject=False)
    agent: Agent[None, Any] = Agent(FunctionModel(answer), capabilities=[memory])

    @agent.tool
    def look(ctx: RunContext[None]) -> str:
        ctx.enqueue("I like milk.")
        return "seen"

    def call_and_fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return (fail if has_result(messages) else call_once("look"))(messages, info)

    before = [*user_says("Hi."), ModelResponse(parts=[TextPart("Hello.")])]
    with pytest.raises(ModelHTTPError):
        asyncio.run(agent.run(SAID, model=FunctionModel(call_and_fail), message_history=before))
    stopped = [*before, *user_says(SAID), ModelResponse(parts=[TextPart("Let me see.")])]
    for words in (SAID, "I like cake."):  # the first ones are said again
        history = [*stopped, *user_says("I like milk.")]
        failed(agent, words, message_history=history)
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [f"{SAID}\n\nI like milk.", SAID, "I like cake."]
    setting.writer.close_sync()


@pytest.mark.parametrize("user", ["ann", "bob"])
def test_words_rewritten_in_a_run_of_another_user_are_submitted_once(tmp_path: Path, user: str):
    setting = Setting(tmp_path)
    memory = DiaryCapability(setting.diary, session_id="s1", writer=setting.writer)
    plain, shortening = (
        Agent(FunctionModel(answer), deps_type=Deps, capabilities=[memory, *others])
        for others in ([], [ProcessHistory(shortened)])
    )
    long = "I like tea with oat milk and a spoonful of honey."
    options: dict[str, Any] = {"conversation_id": "room"}
    failed(plain, long, deps=Deps("ann"), **options)
    kept = failed(
        shortening, "I like milk.", deps=Deps("bob"), message_history=user_says(long), **options
    )
    history = user_says(long[:40], "I like milk.")  # the host stores texts alone
    assert [prompts(message) for message in kept[:2]] == [[long[:40]], ["I like milk."]]
    asyncio.run(plain.run("Cake?", deps=Deps(user), message_history=history, **options))
    said = [(turn.user_id, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("ann", long), ("bob", "I like milk."), (user, "Cake?")]
    setting.writer.close_sync()


def test_words_said_again_are_submitted_once_if_all_messages_have_one_time(tmp_path: Path):
    setting = Setting(tmp_path)

    def process(messages: list[ModelMessage]) -> list[ModelMessage]:
        return [rewritten(message, "copied") for message in messages]

    agent: Agent[None, str] = Agent(
        FunctionModel(answer), capabilities=[setting.capability, ProcessHistory(process)]
    )
    history: list[ModelMessage] = []
    for text in ("I like milk.", SAID, SAID):
        asyncio.run(agent.run(text, message_history=history))
        history += [*user_says(text), ModelResponse(parts=[TextPart("Good choice.")])]
        for message in history:
            for part in message.parts:
                if isinstance(part, UserPromptPart):
                    part.timestamp = datetime(2025, 1, 1, tzinfo=UTC)
    assert [turn.user_msg for turn in setting.writer.turns] == ["I like milk.", SAID, SAID]
    setting.writer.close_sync()


@pytest.mark.parametrize(
    ("how", "kept"), [("redacted", 2), ("made anew", 9), ("built", 2), ("bare", 9)]
)
def test_words_enqueued_beside_a_processor_are_submitted_once(tmp_path: Path, how: str, kept: int):
    setting = Setting(tmp_path)
    run: Any = None

    def process(messages: list[ModelMessage]) -> list[ModelMessage]:
        return [rewritten(message, how) for message in messages][-kept:]

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not any("jam" in text for message in messages for text in prompts(message)):
            run.enqueue("I like jam.")
        return ModelResponse(parts=[TextPart("Noted.")])

    agent: Agent[None, str] = Agent(
        FunctionModel(respond), capabilities=[setting.capability, ProcessHistory(process)]
    )

    async def chat() -> None:
        nonlocal run
        async with agent.iter(SAID, message_history=user_says("I like milk.")) as run:
            node = run.next_node
            while not isinstance(
                node, End
            ):  # in older releases, a plain loop takes nothing of the queue
                node = await run.next(node)

    asyncio.run(chat())
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [f"I like milk.\n\n{SAID}\n\nI like jam."]
    setting.writer.close_sync()


@pytest.mark.parametrize("removed", [0, 100])
def test_a_long_history_of_equal_words_delays_no_run(tmp_path: Path, removed: int):
    setting = Setting(tmp_path)
    answered = ModelResponse(parts=[TextPart("Yes?")])
    history = [each for _ in range(4000) for each in (*user_says("Go on."), answered)]
    trim: ProcessHistory[None] = ProcessHistory(lambda messages: messages[removed:])
    agent: Agent[None, str] = Agent(FunctionModel(answer), capabilities=[setting.capability, trim])
    began = time.process_time()
    asyncio.run(agent.run(SAID, message_history=history))
    assert time.process_time() - began < 2
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID]
    setting.writer.close_sync()


def prompts(message: ModelMessage) -> list[str]:
    """Return the texts of the user's prompts in a message."""
    parts = [part for part in message.parts if isinstance(part, UserPromptPart)]
    return [part.content for part in parts if isinstance(part.content, str)]


def test_a_rejected_answer_is_not_submitted(tmp_path: Path):
    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        is_first = not any(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(parts=[TextPart("Bad.")]) if is_first else answer(messages, info)

    setting = Setting(tmp_path, respond)

    @setting.agent.output_validator
    def check(output: str) -> str:
        if output == "Bad.":
            raise ModelRetry("Not like this.")
        return output

    first = asyncio.run(setting.agent.run(SAID))
    asyncio.run(setting.agent.run("And cake.", message_history=first.all_messages()))
    assert [turn.assistant_msg for turn in setting.writer.turns] == ["Good choice."] * 2
    assert list(setting.writer.turns[1].earlier or ()) == [(SAID, "Good choice.")]
    setting.writer.close_sync()


def test_words_beside_a_tool_result_are_submitted_if_an_interface_puts_them_there(tmp_path: Path):
    setting = Setting(tmp_path)
    returned = ToolReturnPart("look", "seen", "1")
    history: list[ModelMessage] = [
        *user_says("Look around."),
        ModelResponse(parts=[ToolCallPart("look", {}, "1")]),
        ModelRequest(parts=[returned, UserPromptPart(SAID)]),
    ]
    asyncio.run(setting.agent.run(message_history=history))
    assert setting.writer.turns[0].user_msg == SAID
    for message in history:
        message.run_id = "of a tool that returned text for the model"
    asyncio.run(setting.agent.run(message_history=history, conversation_id="2"))
    assert setting.writer.turns[1].user_msg == ""
    setting.writer.close_sync()


@pytest.mark.parametrize("records", [True, False])
def test_the_prompt_of_a_sub_agent_is_no_user_message(tmp_path: Path, records: bool):
    setting = Setting(tmp_path, call_once("delegate"))
    helper = Agent(FunctionModel(answer), capabilities=[setting.capability])
    if not records:
        silent = DiaryCapability(setting.diary, "alice", "s1", record=False)
        setting.agent = Agent(FunctionModel(call_once("delegate")), capabilities=[silent])

    @setting.agent.tool_plain
    async def delegate() -> str:
        return (await helper.run("The user likes coffee.")).output

    asyncio.run(setting.agent.run(SAID))
    (turn,) = setting.writer.turns
    assert turn.user_msg == SAID
    setting.writer.close_sync()


def test_the_prompt_of_an_agent_in_an_output_function_is_no_user_message(tmp_path: Path):
    def hand_over(_messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        call = ToolCallPart(info.output_tools[0].name, {"query": "The user likes coffee."})
        return ModelResponse(parts=[call])

    async def expert(query: str) -> str:
        return (await helper.run(query)).output

    setting = Setting(tmp_path, hand_over, output_type=ToolOutput(expert))
    helper = Agent(FunctionModel(answer), capabilities=[setting.capability])
    asyncio.run(setting.agent.run(SAID))
    setting.the_turn("completed", "Good choice.")


def test_the_prompt_of_a_sub_agent_is_no_user_message_after_a_cancellation(tmp_path: Path):
    setting = Setting(tmp_path, call_once("delegate"))
    helper = Agent(FunctionModel(answer), capabilities=[setting.capability])

    async def run() -> None:
        has_begun = asyncio.Event()

        @setting.agent.tool_plain
        async def delegate() -> None:
            try:
                has_begun.set()
                await asyncio.Event().wait()
            finally:
                await helper.run("Note down what the user likes.")

        task = asyncio.create_task(setting.agent.run(SAID))
        await has_begun.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID]
    setting.writer.close_sync()


def test_a_sub_agent_may_have_a_diary_object_of_its_own(tmp_path: Path):
    setting = Setting(tmp_path, call_once("delegate"))
    own = DiaryCapability(tmp_path, "alice", "s1", writer=setting.writer)
    helper = Agent(FunctionModel(answer), capabilities=[own])

    @setting.agent.tool_plain
    async def delegate() -> str:
        return (await helper.run("The user likes coffee.")).output

    asyncio.run(setting.agent.run(SAID))
    setting.the_turn("completed", "Let me see.\n\nGood choice.")


def test_two_sub_agents_of_a_run_that_records_nothing_submit_its_words_once(tmp_path: Path):
    setting = Setting(tmp_path)
    silent = DiaryCapability(setting.diary, "alice", "s1", record=False)
    helper = Agent(FunctionModel(answer), capabilities=[setting.capability])

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
            return answer(messages, info)
        return ModelResponse(parts=[ToolCallPart("delegate", {}), ToolCallPart("delegate", {})])

    agent = Agent(FunctionModel(respond), capabilities=[silent])

    @agent.tool_plain
    async def delegate() -> str:
        return (await helper.run("The user likes coffee.")).output

    for _ in range(2):  # the second time the user says it again
        asyncio.run(agent.run(SAID))
    said = [turn.user_msg for turn in setting.writer.turns]
    assert said == [SAID, "", SAID, ""]
    setting.writer.close_sync()


def test_words_that_follow_the_turn_of_a_failed_sub_agent_are_submitted(tmp_path: Path):
    setting = Setting(tmp_path)
    silent = DiaryCapability(setting.diary, "alice", "s1", record=False)
    helper = Agent(FunctionModel(answer), capabilities=[setting.capability])
    agent = Agent(FunctionModel(call_once("delegate")), capabilities=[silent])
    is_first = [True]

    @agent.tool
    async def delegate(ctx: RunContext[None]) -> str:
        if not is_first:
            return (await helper.run("The user likes coffee.")).output
        is_first.clear()
        with suppress(ModelHTTPError):
            await helper.run("The user likes coffee.", model=FunctionModel(fail))
        ctx.enqueue("I like milk.")
        raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(agent.run(SAID))
    asyncio.run(agent.run("I like milk."))
    said = [(turn.status, turn.user_msg) for turn in setting.writer.turns]
    assert said == [("failed", SAID), ("completed", "I like milk.")]
    setting.writer.close_sync()


def test_a_run_for_another_user_in_a_tool_is_submitted(tmp_path: Path):
    diary = Diary(tmp_path, agent="rules")
    writer = Kept(diary)
    capability = DiaryCapability(diary, lambda ctx: ctx.deps.user_id, writer=writer)
    helper = Agent(FunctionModel(answer), deps_type=Deps, capabilities=[capability])
    agent = Agent(FunctionModel(call_once("ask_bob")), deps_type=Deps, capabilities=[capability])

    @agent.tool_plain
    async def ask_bob() -> str:
        return (await helper.run("I like milk.", deps=Deps("bob"))).output

    asyncio.run(agent.run(SAID, deps=Deps("alice")))
    said = [(turn.user_id, turn.user_msg) for turn in writer.turns]
    assert said == [("bob", "I like milk."), ("alice", SAID)]
    writer.close_sync()


@pytest.mark.parametrize("task", ["extracts", "compacts"])
def test_a_run_that_extracts_or_compacts_is_no_turn(tmp_path: Path, task: str):
    asked: list[str] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(task)
        return answer(messages, info)

    setting = Setting(tmp_path, respond)
    config = CompactionConfig(enabled=True, user_turn_interval=1, compact_conversations=False)
    diary = (
        Diary(tmp_path, agent=setting.agent)
        if task == "extracts"
        else Diary(tmp_path, agent="rules", compactor=setting.agent, compaction_config=config)
    )
    diary.user("alice").add_turn(SAID, "Noted.", "s1")
    assert diary.user("alice").conversations()["s1"].turns == 1
    assert asked == [task]
    assert not setting.writer.turns
    setting.writer.close_sync()


def test_a_chat_that_a_tool_started_is_submitted_after_the_run_of_the_tool(tmp_path: Path):
    setting = Setting(tmp_path, call_once("open_chat"))
    chat = Agent(FunctionModel(answer), capabilities=[setting.capability])

    async def run() -> None:
        is_over = asyncio.Event()

        async def serve() -> None:
            await is_over.wait()
            await chat.run(SAID)

        @setting.agent.tool_plain
        async def open_chat() -> str:
            tasks.append(asyncio.create_task(serve()))
            return "open"

        tasks: list[asyncio.Task[None]] = []
        await setting.agent.run("Open a chat.")
        is_over.set()
        await tasks[0]

    asyncio.run(run())
    assert [turn.user_msg for turn in setting.writer.turns] == ["Open a chat.", SAID]
    setting.writer.close_sync()


def test_a_chat_is_submitted_while_another_tool_of_the_cancelled_run_hangs(tmp_path: Path):
    def call_both(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart("open_chat", {}), ToolCallPart("hang", {})])

    setting = Setting(tmp_path, call_both)
    chat = Agent(FunctionModel(answer), capabilities=[setting.capability])

    async def run() -> None:
        is_open, has_begun, is_served = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def serve() -> None:
            is_open.set()
            while not setting.writer.turns:  # noqa: ASYNC110 - the cancelled run has no event
                await asyncio.sleep(0)
            await chat.run(SAID)
            is_served.set()

        @setting.agent.tool_plain
        async def open_chat() -> None:
            tasks.append(asyncio.create_task(serve()))

        @setting.agent.tool_plain
        async def hang() -> None:
            try:
                await is_open.wait()
                has_begun.set()
                await asyncio.Event().wait()
            finally:
                await is_served.wait()

        tasks: list[asyncio.Task[None]] = []
        task = asyncio.create_task(setting.agent.run("Open a chat."))
        await has_begun.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await tasks[0]

    asyncio.run(run())
    assert [turn.user_msg for turn in setting.writer.turns] == ["Open a chat.", SAID]
    setting.writer.close_sync()


@names_its_run
def test_a_run_repeated_after_a_restart_counts_once(tmp_path: Path):
    for _ in range(2):
        setting = Setting(tmp_path)
        asyncio.run(setting.agent.run(SAID, run_id="1", conversation_id="s1"))
        setting.the_turn("completed", "Good choice.")


@names_its_run
def test_a_replayed_run_submits_the_same_words(tmp_path: Path):
    setting = Setting(tmp_path)
    for _ in range(2):
        said = user_says(SAID)
        asyncio.run(setting.agent.run(message_history=said, run_id="1", conversation_id="s1"))
    assert setting.writer.flush(30)
    assert [turn.user_msg for turn in setting.writer.turns] == [SAID, SAID]
    assert setting.diary.user("alice").conversations()["s1"].turns == 1
    setting.writer.close_sync()


@names_its_run
def test_a_run_id_reused_in_another_conversation_loses_no_turn(tmp_path: Path):
    setting = Setting(tmp_path)
    agent = Agent(
        FunctionModel(answer),
        capabilities=[DiaryCapability(setting.diary, "alice", writer=setting.writer)],
    )
    for words in ("I like tea.", "I like milk."):
        asyncio.run(agent.run(words, run_id="1", conversation_id=words))
    assert setting.writer.flush(30)
    stored = setting.diary.user("alice").preferences("likes").values()
    assert {item.text for item in stored} == {"I like tea.", "I like milk."}
    assert setting.writer.stats()["completed"] == 2
    setting.writer.close_sync()


def with_room_for_one(path: Path) -> tuple[Setting, threading.Event]:
    """Have the writer take one turn, and one more, until the event is set."""
    hold = threading.Event()
    setting = Setting(path)

    def slow(_message: str, *, deps: Any) -> None:
        assert hold.wait(30)

    setting.diary.agent = slow
    setting.writer = Kept(setting.diary, workers=1, qsize=1)
    setting.capability.writer = setting.writer
    return setting, hold


def test_a_full_queue_blocks_a_run_and_loses_no_turn(tmp_path: Path):
    setting, hold = with_room_for_one(tmp_path)

    async def run() -> None:
        runs = [asyncio.create_task(setting.agent.run(SAID)) for _ in range(5)]
        done, _ = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) < 5
        hold.set()
        await asyncio.gather(*runs)

    asyncio.run(run())
    assert setting.writer.flush(30)
    assert len(setting.writer.turns) == 5
    setting.writer.close_sync()


def test_a_run_cancelled_while_the_queue_is_full_is_submitted(tmp_path: Path):
    setting, hold = with_room_for_one(tmp_path)

    async def run() -> None:
        runs = [asyncio.create_task(setting.agent.run(SAID)) for _ in range(5)]
        _, waiting = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        hold.set()

    asyncio.run(run())
    assert setting.writer.flush(30)
    assert len({turn.operation_id for turn in setting.writer.turns}) == 5
    assert setting.writer.stats()["completed"] == 5
    setting.writer.close_sync()


def test_a_run_cancelled_while_its_turn_is_stored_is_submitted_once(tmp_path: Path):
    class Slow(Kept):
        async def submit_turn(self, turn: Turn) -> Any:
            await super().submit_turn(turn)
            runs[-1].cancel()
            await asyncio.sleep(10)

    async def run(text: str, **options: Any) -> None:
        runs.append(asyncio.create_task(agent.run(text, **options)))
        await asyncio.gather(*runs, return_exceptions=True)

    async def fail_and_go_on() -> None:
        with capture_run_messages() as messages:
            await run(SAID, model=FunctionModel(fail))
        for _ in range(2):  # a host that got no answer repeats the words
            await run("I like milk.", message_history=messages)

    runs: list[asyncio.Task[Any]] = []
    with Slow(Diary(tmp_path, agent="rules")) as writer:
        memory = DiaryCapability(tmp_path, "alice", "s1", writer=writer)
        agent = Agent(FunctionModel(answer), capabilities=[memory])
        asyncio.run(fail_and_go_on())
        said = {turn.operation_id: turn.user_msg for turn in writer.turns}
    assert [*said.values()] == [SAID, "I like milk.", ""]


def test_a_run_that_is_cancelled_waits_for_no_full_queue(tmp_path: Path):
    setting, hold = with_room_for_one(tmp_path)

    async def run() -> None:
        asked = asyncio.Event()

        async def respond(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        runs = [asyncio.create_task(setting.agent.run(SAID)) for _ in range(5)]
        await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
        agent = Agent(FunctionModel(respond), capabilities=[setting.capability])
        gone = asyncio.create_task(agent.run(SAID))
        await asked.wait()
        gone.cancel()
        done, _ = await asyncio.wait([gone], timeout=20)
        hold.set()
        assert done
        await asyncio.gather(*runs)

    asyncio.run(run())
    assert setting.writer.flush(30)
    assert len(setting.writer.turns) == 6
    setting.writer.close_sync()


def test_a_closed_writer_does_not_change_the_result_of_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    setting = Setting(tmp_path)
    setting.writer.close_sync()
    assert asyncio.run(setting.agent.run(SAID)).output == "Good choice."
    assert "a turn could not be submitted: RuntimeError: MemoryWriter is closed" in caplog.text
    assert SAID not in caplog.text


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_turn_that_cannot_be_stored_fails_its_run_on_request(tmp_path: Path, is_streamed: bool):
    setting = Setting(tmp_path)
    strict = DiaryCapability(setting.diary, "alice", writer=setting.writer, on_error="raise")
    agent = Agent(TestModel(call_tools=[]), capabilities=[strict])
    broken = Agent(FunctionModel(fail), capabilities=[strict])
    setting.writer.close_sync()

    async def talk() -> None:
        if not is_streamed:
            await agent.run(SAID)
            return
        async with agent.run_stream(SAID) as result:
            assert await result.get_output()

    with pytest.raises(RuntimeError, match="MemoryWriter is closed"):
        asyncio.run(talk())
    with pytest.raises(ModelHTTPError, match="scripted"):  # the run's own error
        asyncio.run(broken.run(SAID))


def test_turns_of_a_program_that_exits_at_once_are_applied(tmp_path: Path):
    code = f"""
import sys
sys.path[:0] = {[str(ROOT), str(ROOT / "integrations"), str(ROOT / "tests/integrations/pydantic_ai"), str(ROOT / "tests/support")]!r}
from pathlib import Path
from test_pydantic_ai_turns import SAID, Setting
Setting(Path({str(tmp_path)!r})).agent.run_sync(SAID)
"""
    programs.run("-c", code, imported=programs.FRAMEWORKS, check=True, teardown=True)
    assert Diary(tmp_path).user("alice").conversations()["s1"].turns == 1


@pytest.mark.parametrize(
    "use",
    [
        "result = agent.run_stream_sync(SAID); print(result.get_output())",
        """loop = asyncio.new_event_loop()
run = loop.create_task(agent.run(SAID, model=slow))
loop.run_until_complete(asyncio.sleep(0.5))""",
        """loop = asyncio.new_event_loop()
run = loop.create_task(agent.run(SAID, model=slow))
loop.run_until_complete(asyncio.sleep(0.5))
loop.close()""",
    ],
    ids=["an unclosed stream", "a stopped loop", "a closed loop"],
)
def test_a_run_that_is_open_when_the_program_ends_is_submitted(tmp_path: Path, use: str):
    """Its event loop has stopped, and nothing else ends the run before the writer closes."""
    code = f"""
import asyncio, sys
from pathlib import Path
from pydantic_ai.models.function import FunctionModel
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_pydantic_ai_turns import SAID, Setting
async def wait(messages, info): await asyncio.sleep(60)
slow = FunctionModel(wait)
agent = Setting(Path({str(tmp_path)!r})).agent
{use}
"""
    programs.run("-c", code, imported=programs.FRAMEWORKS, check=True, teardown=True)
    alice = Diary(tmp_path).user("alice")
    assert alice.conversations()["s1"].turns == 1
    assert [each.text for each in alice.preferences()["likes"].values()] == [SAID]


@names_its_run
@pytest.mark.parametrize(("answer", "turns"), [("Noted.", 1), ("Done.", 2)])
def test_a_task_that_is_run_again_in_another_process_is_one_turn_if_its_answer_is_the_same(
    tmp_path: Path, answer: str, turns: int
):
    code = f"""
import os, sys
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from tomldiary import Diary
from tomldiary_pydantic_ai import DiaryCapability
memory = DiaryCapability(Diary({str(tmp_path)!r}, agent="rules"), "alice", "s1")
model = TestModel(call_tools=[], custom_output_text=sys.argv[1])
Agent(model, capabilities=[memory]).run_sync({SAID!r}, run_id="task-7")
os._exit(9)  # before the task is acknowledged
"""
    for said in ("Noted.", answer):
        done = programs.run("-c", code, said, imported=programs.FRAMEWORKS)
        assert done.returncode == 9, done.stderr
    with MemoryWriter(Diary(tmp_path, agent="rules")) as writer:
        assert writer.flush(30)
    assert Diary(tmp_path).user("alice").conversations()["s1"].turns == turns


# Many at once


@dataclass
class Deps:
    user_id: str
    word: str = ""


def test_six_concurrent_users_never_share_memory(tmp_path: Path):
    diary = Diary(tmp_path, agent="rules")
    users = [f"user {n}@example.org" for n in range(6)]
    for user in users:
        diary.user(user).upsert_preference("likes", f"the secret of {user}")
    writer = Kept(diary)
    told: dict[str, str] = {}
    together = asyncio.Barrier(len(users))

    async def respond(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        await together.wait()  # all runs are under way at the same time
        text = repr(messages)
        (user,) = {one for one in users if f"I am {one}." in text}
        told[user] = text
        if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
            return ModelResponse(parts=[TextPart(f"Hello {user}.")])
        call = {"text": f"noted by {user}", "category": "likes"}
        return ModelResponse(parts=[ToolCallPart("remember", call)])

    agent = Agent(
        FunctionModel(respond),
        deps_type=Deps,
        capabilities=[DiaryCapability(diary, lambda ctx: ctx.deps.user_id, writer=writer)],
    )

    async def run() -> None:
        await asyncio.gather(*(agent.run(f"I am {user}.", deps=Deps(user)) for user in users))

    asyncio.run(run())
    assert writer.flush(30)
    for user in users:
        others = [one for one in users if one != user]
        assert f"the secret of {user}" in told[user]
        assert not any(f"the secret of {one}'" in told[user] for one in others)
        stored = {item.text for item in diary.user(user).preferences("likes").values()}
        assert {f"the secret of {user}", f"noted by {user}"} <= stored
        (turn,) = [turn for turn in writer.turns if turn.user_id == user]
        assert (turn.user_msg, turn.assistant_msg) == (f"I am {user}.", f"Hello {user}.")
    writer.close_sync()


@names_its_run
@pytest.mark.parametrize("door", ["toolset", "capability", "prefixed", "instructions"])
def test_a_reused_run_id_never_shows_memory_of_another_user(tmp_path: Path, door: str):
    diary = Diary(tmp_path, agent="rules")
    diary.user("ann").upsert_preference("likes", "the secret of ann")
    diary.user("bob").upsert_preference("likes", "the secret of bob")
    told: list[str] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        told.append(f"{info.instructions} {messages!r}")
        if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
            return ModelResponse(parts=[TextPart("done")])
        (remember,) = (tool.name for tool in info.function_tools if "remember" in tool.name)
        call = {"text": f"noted in run {len(told)}", "category": "likes"}
        return ModelResponse(parts=[ToolCallPart(remember, call)])

    capability = DiaryCapability(
        diary, inject="instructions" if door == "instructions" else "user", tools=["remember"]
    )
    given: dict[str, Any] = {
        "toolset": {"toolsets": [DiaryToolset(diary, tools=["remember"])]},
        "prefixed": {"capabilities": [capability.prefix_tools("my")]},
    }
    agent = Agent(
        FunctionModel(respond), deps_type=Deps, **given.get(door, {"capabilities": [capability]})
    )
    for user in ("ann", "bob"):
        asyncio.run(agent.run("hi", deps=Deps(user), run_id="1"))
    assert "the secret of ann" in told[0]
    assert "the secret of bob" in told[2]
    assert "the secret of ann" not in told[2] + told[3]
    noted = [list(diary.user(user).preferences("likes").values())[1:] for user in ("ann", "bob")]
    assert [[item.text for item in items] for items in noted] == [
        ["noted in run 1"],
        ["noted in run 3"],
    ]


WRITING_DOORS = ["toolset", "capability", "notes"]


def test_concurrent_runs_in_two_processes_keep_all_writes_of_a_user(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(2)

    def write(name: str):
        ready.wait()
        for door in WRITING_DOORS:
            write_together(tmp_path / door, door, [f"{name} {n}" for n in range(4)])

    children = [context.Process(target=write, args=(name,)) for name in ("one", "two")]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    expected = [f"{name} {n}" for name in ("one", "two") for n in range(4)]
    for door in WRITING_DOORS:
        assert written(tmp_path / door, door) == sorted(expected)


def written(path: Path, door: str) -> list[str]:
    alice = Diary(path).user("alice")
    if door == "notes":
        return sorted(alice.blocks["main"].text.split("\n\n"))
    return sorted(item.text for item in alice.preferences("likes").values())


def write_together(path: Path, door: str, facts: list[str]) -> str:
    """Let as many runs as there are facts note down one each at the same time, all about one user."""
    together = asyncio.Barrier(len(facts))

    async def respond(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
            return ModelResponse(parts=[TextPart("done")])
        await together.wait()
        first = messages[0]
        assert isinstance(first, ModelRequest)
        said = str(first.parts[0].content)
        if door == "notes":
            return ModelResponse(parts=[ToolCallPart("write_memory", {"content": said})])
        call = {"text": said, "category": "likes"}
        return ModelResponse(parts=[ToolCallPart("remember", call)])

    options: dict[str, Any] = {
        "toolset": {"toolsets": [DiaryToolset(path, "alice")]},
        "capability": {"capabilities": [DiaryCapability(path, "alice", record=False)]},
        "notes": {"toolsets": [AgentMemoryToolset(memory_dir=path, user_id="alice")]},
    }
    agent = Agent(FunctionModel(respond), **options[door])

    async def run() -> set[str]:
        return {result.output for result in await asyncio.gather(*map(agent.run, facts))}

    (output,) = asyncio.run(run())
    return output


def test_a_run_without_a_user_fails_first_and_submits_nothing(tmp_path: Path):
    writer = Kept(Diary(tmp_path))
    requests: list[Any] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        requests.append(messages)
        return answer(messages, info)

    capability = DiaryCapability(writer.diary, writer=writer)
    agent = Agent(FunctionModel(respond), capabilities=[capability])
    with pytest.raises((ValueError, UserError)):
        asyncio.run(agent.run(SAID))
    assert (requests, writer.turns) == ([], [])


def test_an_earlier_answer_in_several_responses_is_one():
    responses = [
        ModelResponse([TextPart("Let me look."), ToolCallPart("look", {}, "call")]),
        ModelRequest([ToolReturnPart("look", "rain", "call")]),
        ModelResponse([TextPart("Take a coat.")]),
    ]
    answer = "Let me look.\n\nTake a coat."
    assert exchanges([ModelRequest.user_text_prompt("A coat?"), *responses]) == [
        ("A coat?", answer)
    ]
    assert exchanges(responses) == [("", answer)]
