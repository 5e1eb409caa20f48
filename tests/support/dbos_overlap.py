"""Recovers DBOS workflows: overlapping runs in another order, with other ids, and beside a lost run; run by a test.

Usage: python dbos_overlap.py FOLDER
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel

from tomldiary import Diary
from tomldiary_pydantic_ai import DiaryCapability

FOLDER = Path(sys.argv[1])
FIRST = {"epoch": "alice", "load": "alice", "submit": "alice"}
"""The user who is first at each step of the memory; the other one waits."""
HAS_PASSED = {}
BOTH = {}
TOLD = []

DBOS(config={"name": "keeper", "system_database_url": f"sqlite:///{FOLDER}/dbos.sqlite"})
diary = Diary(FOLDER / "memories", agent="rules")


async def wait_at(step, user):
    if user != FIRST[step]:
        await HAS_PASSED[step].wait()


def passed(step, user):
    if user == FIRST[step]:
        HAS_PASSED[step].set()


class AfterLoad(AbstractCapability):
    async def wrap_model_request(self, ctx, *, request_context, handler):
        passed("load", ctx.deps)
        await BOTH["loaded"].wait()
        return await handler(request_context)


def answer(messages, _info):
    TOLD.append(str(messages))
    return ModelResponse(parts=[TextPart("done")])


memory = DiaryCapability(diary, lambda ctx: ctx.deps, lambda ctx: ctx.deps, tools="none")
agent = Agent(
    FunctionModel(answer),
    name="keeper",
    deps_type=str,
    capabilities=[AfterLoad(), memory, DBOSDurability()],
)


@agent.instructions
async def wait_to_load(ctx):
    await wait_at("load", ctx.deps)


@agent.output_validator
async def wait_to_submit(ctx, output):
    await BOTH["answered"].wait()
    await wait_at("submit", ctx.deps)
    return output


async def run(user):
    try:
        return (await agent.run(f"I am {user}.", deps=user)).output
    except Exception as error:  # noqa: BLE001 - it is the result
        for barrier in BOTH.values():
            await barrier.abort()
        return type(error).__name__
    finally:
        passed("load", user)
        passed("submit", user)


@DBOS.workflow()
async def work() -> list[str]:
    HAS_PASSED.update({step: asyncio.Event() for step in FIRST})
    BOTH.update({step: asyncio.Barrier(2) for step in ("loaded", "answered")})
    users = sorted(("alice", "bob"), key=lambda user: user != FIRST["epoch"])
    return sorted(await asyncio.gather(*map(run, users)))


async def recovered(step, number):
    """Return the results of a workflow that has the steps before `number`, and bob first at `step`."""
    FIRST.update(dict.fromkeys(FIRST, "alice") | {step: "bob"})
    again = await DBOS.fork_workflow_async("first", number)
    return await again.get_result()


def turns_of(user):
    memory.writer.flush(30)
    return diary.user(user).conversations()[user].turns


def converse(messages, _info):
    said = str(messages)
    if "yes" in said:
        raise LookupError
    if "Plan" in said and not any(isinstance(one, ToolReturnPart) for one in messages[-1].parts):
        return ModelResponse(parts=[ToolCallPart("delegate", {})])
    return ModelResponse(parts=[TextPart("done")])


def talker(name):
    own = DiaryCapability(diary, lambda ctx: ctx.deps, tools="none")
    return Agent(
        FunctionModel(converse), name=name, deps_type=str, capabilities=[own, DBOSDurability()]
    )


planner, helper = talker("planner"), talker("helper")


@DBOS.step()
async def after_the_run() -> None:
    pass


@DBOS.workflow()
async def delegated(user: str) -> str:
    answer = (await helper.run("Look it up.", deps=user)).output
    await after_the_run()
    return answer


@planner.tool
async def delegate(ctx) -> str:
    return await delegated(ctx.deps)


@DBOS.workflow()
async def converse_with_all() -> str:
    said = []
    for user in ("dave", "erin"):
        said.append(ModelRequest([UserPromptPart("yes")]))
        with suppress(LookupError):
            await planner.run(message_history=said, deps=user, conversation_id="channel")
    return (await planner.run("Plan it.", deps="carol")).output


HAPPENED = []


async def await_moment(moment):
    while moment not in HAPPENED:  # noqa: ASYNC110 - the executions have different event loops
        await asyncio.sleep(0.01)


lost = talker("lost")


@lost.tool
async def delegate(ctx) -> str:  # noqa: F811 - the name that the model calls
    if HAPPENED:
        HAPPENED.append("repeated")
        await await_moment("failed")
        return "seen"
    HAPPENED.append("lost")
    # Without the context of the workflow, because another executor does this.
    await asyncio.get_running_loop().run_in_executor(None, DBOS.resume_workflow, DBOS.workflow_id)
    await await_moment("repeated")
    raise LookupError


@DBOS.workflow()
async def lose() -> str:
    try:
        return (await lost.run("Plan it alone.", deps="frank")).output
    finally:
        HAPPENED.append("failed")


async def check_a_tool_that_fails_after_the_workflow_is_lost():
    with SetWorkflowID("lost"):
        lost_handle = await DBOS.start_workflow_async(lose)
    assert await lost_handle.get_result() == "done"
    assert HAPPENED == ["lost", "repeated", "failed", "failed"], HAPPENED
    memory.writer.flush(30)
    [talk] = diary.user("frank").conversations().values()
    assert talk.turns == 1, talk


async def names_of_steps(workflow):
    return [step["function_name"] for step in await DBOS.list_workflow_steps_async(workflow)]


async def check_replays_with_other_ids():
    with SetWorkflowID("all"):
        assert await converse_with_all() == "done"
    [part] = [one.workflow_id for one in await DBOS.list_workflows_async(name="delegated")]
    for workflow in ("all", part):  # the second one without the run around it
        steps = await names_of_steps(workflow)
        again = await DBOS.fork_workflow_async(workflow, len(steps) + 1)
        assert await again.get_result() == "done"
        assert await names_of_steps(again.workflow_id) == steps
    memory.writer.flush(30)
    turns = {
        user: [session.turns for session in diary.user(user).conversations().values()]
        for user in ("carol", "dave", "erin")
    }
    assert turns == {"carol": [1], "dave": [1], "erin": [1]}, turns


async def main():
    await check_replays_with_other_ids()
    await check_a_tool_that_fails_after_the_workflow_is_lost()
    for user in ("alice", "bob"):
        diary.user(user).upsert_preference("likes", f"the secret of {user}")
    with SetWorkflowID("first"):
        assert await work() == ["done", "done"]
    operations = [name.rpartition(".")[2] for name in await names_of_steps("first")]
    assert operations[::2] == operations[1::2] == ["epoch", "load", "request", "submit"]
    assert sorted(said.count("the secret of") for said in TOLD) == [1, 1]

    TOLD.clear()
    for step, number in (("epoch", 3), ("load", 5)):
        assert "IdentifierError" in await recovered(step, number), step
        assert not TOLD, step
    before = turns_of("bob")
    assert await recovered("submit", 8) == ["done", "done"]
    assert turns_of("bob") == before + 1


DBOS.launch()
asyncio.run(main())
DBOS.destroy()
sys.stdout.write("ok\n")
