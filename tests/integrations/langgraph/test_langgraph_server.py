"""A LangGraph server with authentication: `langgraph dev` with a diary as store, in nodes and in a writer."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from langgraph_sdk import get_client

from tomldiary import Diary
from tomldiary_langgraph import DiaryStore

ROOT = Path(__file__).parents[3]
HERE = sys.executable if importlib.util.find_spec("langgraph_api") else None
SERVER = os.environ.get("TOMLDIARY_SERVER_PYTHON", HERE)
pytestmark = pytest.mark.skipif(
    SERVER is None, reason="langgraph-cli[inmem] is missing, and $TOMLDIARY_SERVER_PYTHON not set"
)
LONG = 90  # seconds; nothing takes so long unless it is broken
USERS = 40
BOTH = 2
GRAPHS = ("chat", "probing", "retrieving", "telling")
HAS_AGENTS = SERVER == HERE and importlib.util.find_spec("deepagents") is not None
AGENTS = ("asking", "helping", "waiting") if HAS_AGENTS else ()


class Server:
    """`langgraph dev` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        for name in (
            "served_graphs.py",
            "served_agents.py",
            "served_memory.py",
            "scripted_chat.py",
        ):
            shutil.copy(ROOT / "tests/support" / name, folder)
        config = {
            "dependencies": ["."],
            "graphs": {name: f"./served_graphs.py:{name}" for name in GRAPHS}
            | {name: f"./served_agents.py:{name}" for name in AGENTS},
            "store": {"path": "./served_graphs.py:make_store"},
            "auth": {"path": "./served_graphs.py:auth", "disable_studio_auth": True},
        }
        (folder / "langgraph.json").write_text(json.dumps(config))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        env = {name: value for name, value in os.environ.items() if not name.startswith("LANG")}
        env |= {
            "DIARY_FOLDER": str(folder / "memories"),
            "LANGGRAPH_CLI_NO_ANALYTICS": "1",
            "LANGSMITH_TRACING": "false",
            "NO_PROXY": "127.0.0.1",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'integrations'}",
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [SERVER, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload",
                 "--port", str(port)],
                cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.url}/ok", timeout=5).is_success:
                    return
            except httpx.TransportError:
                assert self.process.poll() is None, self.log.read_text()
                time.sleep(0.1)
        raise AssertionError(self.log.read_text())

    def stop(self) -> None:
        """Stop it as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(LONG)
        finally:
            self.process.kill()

    def client(self, user: str):
        return get_client(
            url=self.url, headers={"Authorization": f"Bearer {user}"}, timeout=LONG, api_key=None
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = Server(tmp_path_factory.mktemp("server"))
    try:
        started.wait()
        yield started
    finally:
        started.stop()


def said(text):
    return {"messages": [{"role": "user", "content": text}]}


async def outcome(client, graph, given, **more):
    """Return the end state of a run, or the error's type and text."""
    async with client:
        state = await client.runs.wait(None, graph, input=given, raise_error=False, **more)
    error = state.get("__error__")
    return state if error is None else f"{error['error']}: {error['message']}"


FORGED = {
    "context": {"context": {"user_id": "alice"}},
    "configurable": {"config": {"configurable": {"user_id": "alice"}}},
    "langgraph_user_id": {"config": {"configurable": {"langgraph_user_id": "alice"}}},
    "metadata": {"metadata": {"user_id": "alice"}},
    "config metadata": {"config": {"metadata": {"user_id": "alice"}}},
    "checkpoint": {"checkpoint": {"user_id": "alice"}},
    "server fields": {
        "config": {
            "configurable": {
                "langgraph_auth_user": {"identity": "alice"},
                "langgraph_auth_user_id": "alice",
            }
        }
    },
    "server fields in the context": {
        "context": {"langgraph_auth_user": {"identity": "alice"}, "langgraph_auth_user_id": "alice"}
    },
}


def test_every_turn_of_many_users_is_applied_once_and_nothing_blocks(server):
    async def use():
        gate = asyncio.Semaphore(30)

        async def run(user, number):
            async with gate:
                client = server.client(user)
                return await outcome(client, "chat", said(f"{user} says {number}"))

        users = [f"user{n}" for n in range(USERS)]
        states = await asyncio.gather(*(run(user, n) for n in range(BOTH) for user in users))
        assert [state for state in states if isinstance(state, str)] == []
        return users, (await outcome(server.client("user0"), "telling", {}))["stats"]

    users, stats = asyncio.run(use())
    assert stats == {"completed": USERS * BOTH, "failed": 0, "pending": 0}
    diary = Diary(server.folder / "memories")
    store = DiaryStore(diary)
    for user in users:
        likes = diary.user(user).preferences("likes").values()
        assert sorted(item.text for item in likes) == [f"{user} says {n}" for n in range(BOTH)]
        assert all(item.count == 1 for item in likes)
        assert sum(talk.turns for talk in diary.user(user).conversations().values()) == BOTH
        assert store.get((user, "runs"), "n", refresh_ttl=False).value == {"n": BOTH}
    log = server.log.read_text()
    assert "BlockingError" not in log
    assert "Exception ignored" not in log


def test_a_signed_in_user_sees_only_its_own_memory(server):
    async def use():
        await outcome(server.client("alice"), "chat", said("my secret is quokka"))
        async with server.client("alice") as alice:
            await alice.store.put_item(["alice", "notes"], "k", {"text": "secret quokkas"})
        await outcome(server.client("alice"), "telling", {})
        told = await outcome(server.client("alice"), "chat", said("what do you know?"))
        assert "quokka" in str(told["messages"][-1])
        for name, more in FORGED.items():
            for graph, given in (("chat", said("hi")), ("retrieving", {})):
                found = str(await outcome(server.client("mallory"), graph, given, **more))
                assert "quokka" not in found, (name, graph)
                if not name.startswith(("server", "checkpoint")):
                    assert found.startswith("IdentifierError"), (name, graph, found)
        for namespace in (["alice"], ["alice", "notes"], ["alice", "diary", "preferences"], []):
            found = await outcome(server.client("mallory"), "probing", {"namespace": namespace})
            assert "quokka" not in str(found), namespace
        await outcome(server.client("alice"), "telling", {})

    asyncio.run(use())
    diary = Diary(server.folder / "memories")
    kept = [item.text for item in diary.user("alice").preferences("likes").values()]
    assert sorted(kept) == ["my secret is quokka", "what do you know?"]


def test_a_last_node_leaves_no_memory_in_the_values_of_a_thread(server):
    async def use():
        async with server.client("dora") as dora:
            thread = (await dora.threads.create())["thread_id"]
            for text in ("I like figs", "what else?"):
                await dora.runs.wait(thread, "chat", input=said(text))
                await outcome(server.client("dora"), "telling", {})
            return (await dora.threads.get(thread))["values"]

    values = asyncio.run(use())
    assert "<user_memory" in str(values["messages"][-1])  # the node had it
    assert values["memory"] == ""


def test_store_routes_of_the_server_show_only_the_signed_in_user(server):
    async def use():
        async with server.client("carol") as carol:
            await carol.store.put_item(["carol", "notes"], "k", {"text": "secret wombat"})
            found = await carol.store.search_items(["carol"])
            assert [item["value"] for item in found["items"]] == [{"text": "secret wombat"}]
        async with server.client("mallory") as mallory:
            for reach in (
                mallory.store.get_item(["carol", "notes"], "k"),
                mallory.store.search_items(["carol"]),
                mallory.store.put_item(["carol", "notes"], "k", {"text": "mine"}),
                mallory.store.delete_item(["carol", "notes"], "k"),
                mallory.store.list_namespaces(prefix=["carol"]),
            ):
                with pytest.raises(httpx.HTTPStatusError):
                    await reach
            everything = await mallory.store.search_items([])
            assert "wombat" not in str(everything)
            assert "carol" not in str(await mallory.store.list_namespaces())
        async with server.client("carol") as carol:
            item = await carol.store.get_item(["carol", "notes"], "k")
            assert item["value"] == {"text": "secret wombat"}

    asyncio.run(use())


@pytest.mark.skipif(not HAS_AGENTS, reason="deepagents is missing beside the server")
def test_what_a_deep_agent_and_its_background_task_tell_each_other_is_no_turn(server):
    async def use():
        async with server.client("erin") as erin:
            thread = (await erin.threads.create())["thread_id"]
            await erin.runs.wait(thread, "asking", input=said("I like tea."))
            deadline = time.monotonic() + LONG
            texts = [""]
            while texts[-1] != "Told.":  # the answer to the report of the task
                assert time.monotonic() < deadline, texts
                await asyncio.sleep(0.1)
                state = await erin.threads.get_state(thread)
                texts = [message["content"] for message in state["values"]["messages"]]
        await outcome(server.client("erin"), "telling", {})
        return str(texts)

    texts = asyncio.run(use())
    assert "I love pizza" in texts
    likes = Diary(server.folder / "memories").user("erin").preferences("likes").values()
    assert [item.text for item in likes] == ["I like tea."]


@pytest.mark.skipif(not HAS_AGENTS, reason="deepagents is missing beside the server")
def test_words_of_a_run_that_is_rolled_back_are_not_recorded(server):
    async def use():
        async with server.client("fay") as fay:
            thread = (await fay.threads.create())["thread_id"]
            await fay.runs.create(thread, "waiting", input=said("Wait, I like tea."))
            state = {"next": []}
            while state["next"] != ["model"]:
                state = await fay.threads.get_state(thread)
            await fay.runs.wait(
                thread, "waiting", input=said("I like milk."), multitask_strategy="rollback"
            )
            state = await fay.threads.get_state(thread)
        await outcome(server.client("fay"), "telling", {})
        return [message["content"] for message in state["values"]["messages"]]

    assert asyncio.run(use()) == ["I like milk.", "Told."]
    likes = Diary(server.folder / "memories").user("fay").preferences("likes").values()
    assert [item.text for item in likes] == ["I like milk."]
