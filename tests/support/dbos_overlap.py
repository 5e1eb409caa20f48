"""Recovers a DBOS workflow whose two runs overlap, in another order than before; run by a test.

Usage: python dbos_overlap.py FOLDER
"""

import asyncio
import sys
from pathlib import Path

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelResponse, TextPart
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


async def main():
    for user in ("alice", "bob"):
        diary.user(user).upsert_preference("likes", f"the secret of {user}")
    with SetWorkflowID("first"):
        assert await work() == ["done", "done"]
    names = [step["function_name"] for step in await DBOS.list_workflow_steps_async("first")]
    operations = [name.rpartition(".")[2] for name in names]
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
