"""Make the files of this folder with the programs whose memories they are.

Usage: python make_fixtures.py PEER FILE

Each peer is installed into an environment of its own: mem0ai, langmem, langgraph-checkpoint-sqlite, memstate,
loomflow, letta-client, pydantic-ai-harness, basic-memory, tomldiary==0.9.0 with its extra `firestore` and the emulator
that FIRESTORE_EMULATOR_HOST names. Databases are stored as SQL text: `sqlite3 FILE .dump`.
"""

# ruff: noqa: PLC0415 - each peer needs another environment

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ALICE = "alice"


def written(file, value):
    Path(file).write_text(json.dumps(value, indent=1, ensure_ascii=False, default=str), "utf-8")


def mem0(file):
    """What `Memory.get_all` returns of two users."""
    os.environ.update(MEM0_TELEMETRY="False", MEM0_DIR=tempfile.mkdtemp(), OPENAI_API_KEY="none")
    from mem0 import Memory
    from mem0.embeddings.base import EmbeddingBase
    from mem0.utils import factory

    class Hashed(EmbeddingBase):
        def __init__(self):
            self.config = None

        def embed(self, text, memory_action=None):
            return [byte / 255 for byte in hashlib.sha512(text.encode()).digest()]

        def embed_batch(self, texts, memory_action=None):
            return [self.embed(text) for text in texts]

    factory.EmbedderFactory.create = classmethod(lambda *_, **__: Hashed())
    folder = tempfile.mkdtemp()
    vectors = {"path": folder, "embedding_model_dims": 64, "on_disk": True}
    memory = Memory.from_config(
        {
            "vector_store": {"provider": "qdrant", "config": vectors},
            "history_db_path": f"{folder}/history.db",
        }
    )
    for text, metadata in (
        ("Is allergic to walnuts", {"category": "health"}),
        ("Loves dark roast in the morning", None),
        ("Zürich ist ihr Wohnort 🏔", {"source": "chat"}),
        ("Works as a nurse; shifts on Tuesdays", None),
    ):
        memory.add(text, user_id=ALICE, metadata=metadata, infer=False)
    memory.add("Bob plays chess", user_id="bob", infer=False)
    found = [memory.get_all(filters={"user_id": user})["results"] for user in (ALICE, "bob")]
    written(file, {"results": [*found[0], *found[1]]})


def langmem(file):
    """Items of an InMemoryStore, two of them made by langmem's tool."""
    from langgraph.store.memory import InMemoryStore
    from langmem import create_manage_memory_tool

    store = InMemoryStore()
    tool = create_manage_memory_tool(namespace=("memories", "{user}"), store=store)
    for text in ("Is allergic to walnuts", "Loves dark roast 🏔\nin the morning"):
        config = {"configurable": {"user": ALICE}}
        tool.invoke({"content": text, "action": "create"}, config=config)
    value = {"text": "walnuts", "none": None, "deep": {"list": [1, 2.5, "x"]}}
    store.put((ALICE, "notes", "a b"), "n/1", value)
    spaces = store.list_namespaces(limit=1000)
    found = [item for space in spaces for item in store.search(space, limit=1000) if item.namespace == space]  # fmt: skip
    written(file, [item.dict() for item in found])


def langgraph_sqlite(file):
    """The database of a SqliteStore."""
    from langgraph.store.sqlite import SqliteStore

    with SqliteStore.from_conn_string(file) as store:
        store.setup()
        value = {"text": "walnuts 🏔", "none": None, "deep": {"list": [1, 2.5]}}
        store.put((ALICE, "notes", "work"), "n/1", value)
        store.put(("memories", ALICE), "m1", {"content": "Loves dark roast"})
        store.put(("bob", "notes"), "n1", {"text": "bob's"})


def memstate(file):
    """The database of MemState."""
    from memstate import Constraint, MemoryStore
    from memstate.backends.sqlite import SQLiteStorage
    from pydantic import BaseModel

    class Diet(BaseModel):
        role: str
        food: str

    class Note(BaseModel):
        text: str
        tags: list[str] = []

    memory = MemoryStore(SQLiteStorage(file))
    memory.register_schema("diet", Diet, Constraint(singleton_key="role"))
    memory.register_schema("note", Note)
    diet = Diet(role="user", food="vegan")
    memory.commit_model(diet, session_id="s1", actor="agent", reason="said so")
    memory.commit_model(Note(text="walnuts grow 🏔", tags=["a", "b"]), session_id="s1")
    memory.commit_model(Note(text="second note"), session_id="s2")


def loomflow(file):
    """What `export` of loomflow's memory returns."""
    from loomflow.core.types import Episode, Fact
    from loomflow.memory import InMemoryMemory

    def day(month, number, year=2026):
        return datetime(year, month, number, tzinfo=UTC)

    def fact(predicate, other, start, noted, **more):
        return Fact(user_id=ALICE, subject=ALICE, predicate=predicate, object=other, valid_from=start, recorded_at=noted, **more)  # fmt: skip

    def turn(said, answered, when):
        return Episode(session_id="s1", user_id=ALICE, input=said, output=answered, occurred_at=when)  # fmt: skip

    async def make():
        memory = InMemoryMemory()
        await memory.update_block("persona", "Be patient.\nBe short. 🏔", user_id=ALICE)
        await memory.update_block("human", "Alice is a nurse.", user_id=ALICE)
        await memory.remember(turn("I moved to Graz", "Noted.", day(1, 2)))
        await memory.remember(turn("I like jazz", "Nice.", day(1, 3)))
        await memory.facts.append(fact("lives_in", "Wien", day(1, 1, 2020), day(1, 1)))
        await memory.facts.append(fact("lives_in", "Graz", day(1, 2), day(1, 2), confidence=0.9))
        await memory.facts.append(fact("likes", "jazz", day(1, 3), day(1, 3), sources=["x"]))
        return await memory.export(user_id=ALICE)

    Path(file).write_text(asyncio.run(make()).model_dump_json(indent=1), "utf-8")


def letta(file):
    """An agent file; its blocks are made by letta-client, the envelope by hand, as a server would write it."""
    from letta_client.types import BlockResponse

    blocks = [
        BlockResponse(
            id="block-1",
            label="persona",
            value="Be patient.\nBe short. 🏔",
            description="How to answer",
        ),
        BlockResponse(id="block-2", label="human", value="Is allergic to walnuts."),
    ]
    message = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    agent = {"id": "agent-0", "name": "tutor", "block_ids": ["block-1", "block-2"], "messages": [message]}  # fmt: skip
    stored = [block.model_dump(exclude_none=True) for block in blocks]
    empty = {"groups": [], "files": [], "sources": [], "mcp_servers": [], "metadata": {}}
    written(file, {"agents": [agent], "blocks": stored, "tools": [{"name": "send_message"}], **empty})  # fmt: skip


def harness(folder):
    """The folder of a FileStore of pydantic-ai-harness."""
    from pydantic_ai.workspaces import LocalWorkspaceBackend
    from pydantic_ai_harness.memory import FileStore

    Path(folder).mkdir()

    async def make():
        store = FileStore(".", workspace=LocalWorkspaceBackend(str(folder)))
        text = "# Alice\n\n- Is allergic to walnuts\n- Lives in Zürich 🏔\n"
        await store.write("MEMORY.md", text, expected_version=None)
        await store.write("projects/garden.md", "Plant walnuts in March.\n", expected_version=None)

    asyncio.run(make())


def tomldiary_firestore(file):
    """The documents that TOMLDiary 0.9 keeps in Firestore, by path; a scripted model extracts."""
    from pydantic import BaseModel
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from tomldiary import Diary, PreferenceItem
    from tomldiary.backends.firestore import FirestoreBackend

    class MyTable(BaseModel):
        likes: dict[str, PreferenceItem] = {}
        allergies: dict[str, PreferenceItem] = {}

    script = {
        "walnuts": ("upsert_preference", {"category": "allergies", "text": "Is allergic to walnuts 🏔"}),
        "coffee": ("upsert_preference", {"category": "likes", "text": 'Dark "roast"', "contexts": ["morning"]}),
        "again": ("upsert_preference", {"category": "likes", "id": "pref001"}),
        "talk": ("update_conversation_summary", {"summary": "About food.", "keywords": ["food"]}),
    }  # fmt: skip

    def model(messages, _):
        if any(part.part_kind == "tool-return" for part in messages[-1].parts):
            return ModelResponse([TextPart("done")])
        turn = str(messages[-1].parts[-1].content)
        calls = [ToolCallPart(*call) for word, call in script.items() if f"<user_message>{word}" in turn]  # fmt: skip
        return ModelResponse(calls or [TextPart("nothing")])

    base = f"app/{tempfile.mktemp(dir='')}"  # noqa: S306 - a name, not a file
    backend = FirestoreBackend("import-test", base)
    diary = Diary(backend, MyTable, FunctionModel(model))
    for session, word in (("s1", "walnuts"), ("s1", "coffee"), ("s2", "again"), ("s2", "talk")):
        asyncio.run(diary.update_memory(ALICE, session, word, "Noted."))
    found = backend.db.collection(f"{base}/{ALICE}").stream()
    written(file, {f"{ALICE}/{each.id}": each.to_dict() for each in found})


def basic_memory(folder):
    """The notes of a project of basic-memory."""
    import subprocess

    Path(folder).mkdir()
    home = {**os.environ, "HOME": tempfile.mkdtemp(), "BASIC_MEMORY_HOME": str(Path(folder).resolve())}  # fmt: skip
    for title, place, text in (
        ("Alice", "people", "# Alice\n\n- [allergy] walnuts 🏔 #health\n- lives_in [[Zürich]]\n"),
        ("Garden", "projects", "Plant walnuts in March.\n"),
    ):
        line = ["basic-memory", "tool", "write-note", "--title", title, "--folder", place, "--tags", "test"]  # fmt: skip
        subprocess.run(line, input=text, env=home, text=True, check=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
