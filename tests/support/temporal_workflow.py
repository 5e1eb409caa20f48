"""Runs an agent with a diary in a workflow of a real Temporal server, whose worker replays it at each step.

Usage: FOLDER=… python temporal_workflow.py
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    from servers import free_port, running
    from temporal_keeper import SHOWN, Deps, agent, diary, memory
    from tomldiary.errors import IdentifierError


@workflow.defn(failure_exception_types=[IdentifierError])
class Talk:
    @workflow.run
    async def run(self, user: str) -> str:
        first = await agent.run("I love jazz.", deps=Deps(user, "s1"))
        for session, text in (("s2", "I hate rain."), ("s3", "I hate snow.")):
            said = [ModelRequest([UserPromptPart(text)])]
            for _ in range(2):
                with suppress(Exception):
                    await agent.run(message_history=said, deps=Deps(user, session))
                await workflow.sleep(0.1)  # the next task of the worker replays the run
        said = first.all_messages()
        last = await agent.run("Hello.", message_history=said, deps=Deps(user, "s1"))
        return last.output


@workflow.defn
class Ask:
    """Asks with a message of the host, without a prompt."""

    @workflow.run
    async def run(self, user: str) -> str:
        said = [ModelRequest([UserPromptPart("I love rain.")])]
        asked = await agent.run(message_history=said, deps=Deps(user, "s1"))
        await workflow.sleep(0.1)
        return asked.output


async def connected(address: str, plugin: Any) -> Any:
    """Return a client; the server listens some time before it answers."""
    from temporalio.client import Client  # noqa: PLC0415 - no workflow needs it

    for _ in range(100):
        try:
            return await Client.connect(address, plugins=[plugin])
        except RuntimeError as error:
            refusal = error
            await asyncio.sleep(0.1)
    raise refusal


async def check_operations(client: Any) -> None:
    """Check that a run, also a failed one, has the operations that histories of earlier versions have."""
    history = await client.get_workflow_handle("talk").fetch_history()
    names = {
        event.activity_task_scheduled_event_attributes.activity_type.name.rpartition("__")[2]
        for event in history.events
    }
    known = {"", "epoch", "load", "model_request", "call_tool", "submit"}
    assert names <= known, names - known


async def main() -> None:
    from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin  # noqa: PLC0415 - no workflow needs it
    from temporalio.client import WorkflowFailureError  # noqa: PLC0415 - the same
    from temporalio.worker import Worker  # noqa: PLC0415 - the same

    port, program = free_port(), Path(sys.executable).with_name("temporal")
    options = ["--headless", "--port", str(port), "--http-port", str(free_port())]
    with running([str(program), "server", "start-dev", *options], port):
        client = await connected(f"127.0.0.1:{port}", PydanticAIPlugin())
        async with Worker(
            client,
            task_queue="talks",
            workflows=[Talk, Ask],
            plugins=[AgentPlugin(agent)],
            max_cached_workflows=0,
        ):
            talk = client.execute_workflow(Talk.run, "alice", id="talk", task_queue="talks")
            assert await asyncio.wait_for(talk, 150) == "done"
            await check_operations(client)
            # The memory of bob cannot be read.
            ask = client.execute_workflow(Ask.run, "bob", id="broken", task_queue="talks")
            assert (await asyncio.wait_for(ask, 60)).startswith("done in version")
            without_user = client.execute_workflow(
                Talk.run, "", id="without_user", task_queue="talks"
            )
            [failed] = await asyncio.gather(
                asyncio.wait_for(without_user, 30), return_exceptions=True
            )
            assert isinstance(failed, WorkflowFailureError), failed
            assert "the user is not known" in str(failed.cause), failed.cause
    assert memory.writer.flush(30)
    memory.writer.close_sync()


if __name__ == "__main__":
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    diary.user("team").upsert_preference("likes", "cocoa")
    broken = Path(os.environ["FOLDER"], "bob", "preferences.toml")
    broken.parent.mkdir()
    broken.write_text('likes = "tea')
    asyncio.run(main())
    assert "- likes: tea" in SHOWN[0]
    assert "- likes: cocoa" in SHOWN[0]
    texts = [each.text for each in diary.user("team").preferences("likes").values()]
    assert texts == ["cocoa", "I love jazz.", "I love rain."], texts
    known = {
        name: [each.text for each in found.values()] for name, found in alice.preferences().items()
    }
    assert known["likes"] == ["tea", "milk", "I love jazz."], known
    assert known["dislikes"] == ["I hate rain.", "I hate snow."], known
    # A failed run and its answered repetition are two turns. If the repetition fails, it has nothing to submit.
    turns = {name: session.turns for name, session in alice.conversations().items()}
    assert turns == {"s1": 2, "s2": 2, "s3": 1}, turns
    sys.stdout.write("ok\n")
