"""Makes an agent with a diary durable; run by a test with an interpreter that has the engines.

Usage: python durable_agents.py FOLDER
"""

import asyncio
import sys
from pathlib import Path

from pydantic_ai import Agent, RunContext, models
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RunUsage

from tomldiary import Diary, MemoryWriter
from tomldiary_pydantic_ai import DiaryCapability, DiaryToolset

models.ALLOW_MODEL_REQUESTS = False
TOLD = []


def respond(messages, _info):
    TOLD.append(str(messages))
    if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart("remember", {"text": "milk", "category": "likes"})])


def durable_agent(folder, durability):
    diary = Diary(folder, agent="rules")
    diary.user("alice").upsert_preference("likes", "tea")
    writer = MemoryWriter(diary)
    capability = DiaryCapability(diary, "alice", "s1", writer=writer)
    second = DiaryToolset(diary, "alice", id="second", inject=False).prefixed("second")
    agent = Agent(
        FunctionModel(respond),
        name="keeper",
        toolsets=[second],
        capabilities=[capability, durability],
    )
    return diary, writer, agent


def check(diary, writer):
    assert writer.flush(30)
    alice = diary.user("alice")
    assert [item.text for item in alice.preferences("likes").values()] == ["tea", "milk"]
    assert alice.conversations()["s1"].turns == 1
    assert "- likes: tea" in TOLD[0]
    writer.close_sync()


def temporal(folder):
    from pydantic_ai.durable_exec.temporal import TemporalDurability  # noqa: PLC0415 - only this engine's

    durability = TemporalDurability()
    diary, writer, agent = durable_agent(folder, durability)
    activities = bound(agent).temporal_activities
    names = [vars(one)["__temporal_activity_definition"].name for one in activities]
    for operation in ("diary__load", "diary__submit", "diary__call_tool", "second__call_tool"):
        assert any(operation in name for name in names), operation
    # Outside of a workflow it runs like any other agent.
    asyncio.run(agent.run("hello"))
    check(diary, writer)
    asyncio.run(call_tools(diary, agent, activities, names))
    Path(folder, "asked_in_a_workflow.py").write_text(WORKFLOW)
    sys.path.insert(0, str(folder))
    asyncio.run(import_in_the_sandbox())


async def call_tools(diary, agent, activities, names):
    """Run the activities of tools as a worker does, with a run context that came from a workflow."""
    from pydantic_ai.durable_exec.temporal import TemporalRunContext  # noqa: PLC0415 - only this engine's
    from pydantic_ai.durable_exec.temporal._toolset import CallToolParams  # noqa: PLC0415
    from temporalio.testing import ActivityEnvironment  # noqa: PLC0415

    for toolset, tool, key in (("diary", "remember", "pref003"), ("second", "forget", "")):
        run = RunContext(
            deps=None, model=agent.model, usage=RunUsage(), run_id="r", run_step=1,
            tool_call_id=f"call-{toolset}", tool_name=tool,
        )  # fmt: skip
        arguments = {"text": "cocoa", "category": "likes"} if key else {"key": "likes/pref003"}
        held = TemporalRunContext.serialize_run_context(run)
        called = CallToolParams(
            name=tool, tool_args=arguments, serialized_run_context=held, tool_def=None
        )
        [at] = [n for n, name in enumerate(names) if name.endswith(f"__{toolset}__call_tool")]
        answer = str(await ActivityEnvironment().run(activities[at], called, None))
        assert "❌" not in answer, answer
        likes = diary.user("alice").preferences("likes")
        assert ("pref003" in likes) is bool(key), answer


WORKFLOW = """
from temporalio import workflow
from tomldiary import Diary, MemoryWriter
from tomldiary_pydantic_ai import AgentMemoryToolset, DiaryCapability, DiaryToolset

@workflow.defn
class Ask:
    @workflow.run
    async def run(self, prompt: str) -> str:
        return prompt
"""


async def import_in_the_sandbox():
    """Import the packages in the sandbox that workflow code runs in: it allows no randomness."""
    import asked_in_a_workflow  # noqa: PLC0415 - written just now
    from temporalio import workflow  # noqa: PLC0415
    from temporalio.worker.workflow_sandbox import (  # noqa: PLC0415
        SandboxedWorkflowRunner,
        SandboxRestrictions,
    )

    passed = SandboxRestrictions.default.with_passthrough_modules("pydantic_ai", "httpx2", "anyio")
    definition = workflow._Definition.must_from_class(asked_in_a_workflow.Ask)
    SandboxedWorkflowRunner(restrictions=passed).prepare_workflow(definition)


def bound(agent):
    found = []
    agent.root_capability.apply(found.append)
    return next(one for one in found if hasattr(one, "temporal_activities"))


def dbos(folder):
    from dbos import DBOS  # noqa: PLC0415 - only this engine's
    from pydantic_ai.durable_exec.dbos import DBOSDurability  # noqa: PLC0415 - only this engine's

    DBOS(config={"name": "keeper", "system_database_url": f"sqlite:///{folder}/dbos.sqlite"})
    diary, writer, agent = durable_agent(folder / "memories", DBOSDurability())

    @DBOS.workflow()
    async def work(prompt: str) -> str:
        return (await agent.run(prompt)).output

    DBOS.launch()
    assert asyncio.run(work("hello")) == "done"
    check(diary, writer)
    DBOS.destroy()


def prefect(folder):
    from pydantic_ai.durable_exec.prefect import PrefectDurability  # noqa: PLC0415 - only this engine's

    diary, writer, agent = durable_agent(folder, PrefectDurability())
    asyncio.run(agent.run("hello"))
    check(diary, writer)


if __name__ == "__main__":
    # One process for all engines: what they share takes longer to import than the engines themselves.
    for engine in (temporal, dbos, prefect):
        folder = Path(sys.argv[1], engine.__name__)
        folder.mkdir()
        TOLD.clear()
        engine(folder)
        sys.stdout.write(f"{engine.__name__} ")
    sys.stdout.write("ok\n")
