"""TomlMemoryStore under the real pydantic-ai-harness; run by a test with an interpreter that has it.

Usage: python -m pytest tests/support/harness_memory.py
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic_ai import Agent, models
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai_harness import Memory
from pydantic_ai_harness.memory import (
    MemoryConflictError,
    MemoryOperation,
    MemoryOperationConflictError,
    MemoryStore,
    MetadataMemoryStore,
    SearchableMemoryStore,
    SqliteMemoryStore,
)

from processes import run_at_once
from tomldiary import Diary
from tomldiary_pydantic_ai import TomlMemoryStore

models.ALLOW_MODEL_REQUESTS = False

PATH = "alice/main/MEMORY.md"


@pytest.fixture(params=["toml", "sqlite"])
def store(request, tmp_path):
    """Ours, and one of theirs: what is promised holds for both, so the test asks for no more than they do."""
    if request.param == "sqlite":
        return SqliteMemoryStore(database=tmp_path / "memory.db")
    return TomlMemoryStore(tmp_path)


ODD_PATHS = ("a b.md", "é.md", "a\\b", "x" * 201)
BOUNDS = {"limit": 10, "max_files": 100, "max_chars": 1000, "max_file_chars": 1000}


def run(coroutine):
    return asyncio.run(coroutine)


def test_it_is_all_three_kinds_of_store(tmp_path):
    store = TomlMemoryStore(tmp_path)
    assert isinstance(store, MemoryStore)
    assert isinstance(store, MetadataMemoryStore)
    assert isinstance(store, SearchableMemoryStore)


def test_a_written_file_has_a_version_and_is_cut_on_request(store):
    async def body():
        assert await store.read(PATH, max_chars=9) is None
        done = await store.write(PATH, "likes tea\n", expected_version=None)
        assert (done.replayed, done.existed) == (False, False)
        file = await store.read(PATH, max_chars=100)
        assert (file.content, file.version, file.truncated) == ("likes tea\n", done.version, False)
        cut = await store.read(PATH, max_chars=5)
        assert (cut.content, cut.version, cut.truncated) == ("likes", done.version, True)
        again = await store.write(PATH, "likes tea\n", expected_version=done.version)
        assert again.existed
        assert again.version != done.version
        with pytest.raises(ValueError, match="max_chars"):
            await store.read(PATH, max_chars=0)

    run(body())


def test_a_write_that_is_based_on_an_old_version_is_refused(store):
    async def body():
        first = await store.write(PATH, "one", expected_version=None)
        with pytest.raises(MemoryConflictError):
            await store.write(PATH, "two", expected_version=None)
        await store.write(PATH, "two", expected_version=first.version)
        for expected in (first.version, None, "other"):
            with pytest.raises(MemoryConflictError):
                await store.write(PATH, "three", expected_version=expected)
            with pytest.raises(MemoryConflictError):
                await store.delete(PATH, expected_version=expected)
        assert (await store.read(PATH, max_chars=99)).content == "two"

    run(body())


def test_a_removed_file_is_gone_and_a_new_one_has_another_version(store):
    async def body():
        first = await store.write(PATH, "one", expected_version=None)
        gone = await store.delete(PATH, expected_version=first.version)
        assert (gone.version, gone.existed) == (None, True)
        assert await store.read(PATH, max_chars=9) is None
        nothing = await store.delete(PATH, expected_version=None)
        assert not nothing.existed
        second = await store.write(PATH, "one", expected_version=None)
        assert second.version != first.version

    run(body())


def test_an_operation_has_one_effect_and_its_id_no_second_use(store):
    first, second = MemoryOperation("op1", "f1"), MemoryOperation("op2", "f2")

    async def body():
        assert await store.get_operation(first) is None
        done = await store.write(PATH, "one", expected_version=None, operation=first)
        assert (await store.read(PATH, max_chars=9)).operation_id == "op1"
        replayed = await store.write(PATH, "other", expected_version="any", operation=first)
        assert (replayed.version, replayed.replayed, replayed.existed) == (
            done.version,
            True,
            False,
        )
        assert (await store.get_operation(first)) == replayed
        gone = await store.delete(PATH, expected_version=done.version, operation=second)
        assert await store.delete(PATH, expected_version="any", operation=second) == (
            await store.get_operation(second)
        )
        assert gone.existed
        stolen = MemoryOperation("op1", "f3")
        with pytest.raises(MemoryOperationConflictError):
            await store.get_operation(stolen)
        with pytest.raises(MemoryOperationConflictError):
            await store.write(PATH, "x", expected_version=None, operation=stolen)
        assert await store.read(PATH, max_chars=9) is None

    run(body())


def test_operations_are_known_after_a_restart(tmp_path):
    operation = MemoryOperation("op1", "f1")

    async def body():
        done = await TomlMemoryStore(tmp_path).write(
            PATH, "one", expected_version=None, operation=operation
        )
        found = await TomlMemoryStore(tmp_path).get_operation(operation)
        assert (found.version, found.replayed) == (done.version, True)

    run(body())


def test_metadata_belongs_to_the_write_that_gave_it(store):
    async def body():
        first = await store.write_with_metadata(
            PATH, "one", expected_version=None, metadata={"by": "ui", "é": '"'}
        )
        assert dict((await store.read(PATH, max_chars=9)).metadata) == {"by": "ui", "é": '"'}
        await store.write(PATH, "two", expected_version=first.version)
        assert (await store.read(PATH, max_chars=9)).metadata is None
        for wrong in ({"a": 1}, {"a": "\0"}, {"a": "x" * 5000}):
            with pytest.raises((TypeError, ValueError)):
                await store.write_with_metadata(
                    "alice/main/b.md", "x", expected_version=None, metadata=wrong
                )
        assert await store.read("alice/main/b.md", max_chars=9) is None

    run(body())


def test_paths_are_listed_sorted_below_a_prefix_as_far_as_asked(store):
    paths = ["main/MEMORY.md", "alice/main/a.md", "alice/main/b.md", "alice/other/a.md", "al/main/c.md", "alice/main/deep/x/d.md"]  # fmt: skip

    async def body():
        for path in paths:
            await store.write(path, path, expected_version=None)
        assert await store.list_paths(limit=99) == sorted(paths)
        assert await store.list_paths(limit=2) == sorted(paths)[:2]
        assert await store.list_paths("alice/main/", limit=99) == sorted(p for p in paths if p.startswith("alice/main/"))  # fmt: skip
        assert await store.list_paths("nobody/", limit=99) == []
        with pytest.raises(ValueError, match="limit"):
            await store.list_paths(limit=0)

    run(body())


def test_a_path_that_leads_elsewhere_is_refused(store):
    async def body():
        for path in ("", "../x", "a/../b", "/abs", "a//b", "a/./b", "a/b/", *ODD_PATHS):
            with pytest.raises(ValueError):  # noqa: PT011 - each store has its own words
                await store.write(path, "x", expected_version=None)
            with pytest.raises(ValueError):  # noqa: PT011 - the same
                await store.read(path, max_chars=9)

    run(body())


def test_a_prefix_that_leads_elsewhere_is_refused(store):
    async def body():
        for prefix in ("../", "/", "a//", "a b/"):
            with pytest.raises(ValueError):  # noqa: PT011 - each store has its own words
                await store.list_paths(prefix, limit=9)
            with pytest.raises(ValueError):  # noqa: PT011 - the same
                await store.search(prefix, "tea", **BOUNDS)

    run(body())


@pytest.mark.parametrize("seed", range(20))
def test_searches_find_and_score_as_the_harnesss_own(tmp_path, seed):
    chance = random.Random(seed)
    words = ["alpha", "barbaz", "baz", "tea", "東京", "彼女は東京に", "x1", "Ünïcode"]
    stores = [TomlMemoryStore(tmp_path), SqliteMemoryStore(database=tmp_path / "db")]

    async def body():
        for number in range(chance.randrange(1, 12)):
            path = f"ann/main/{chance.choice(['n', 'tea', 'deep/n'])}{number}.md"
            text = " ".join(chance.choices(words, k=chance.randrange(1, 40)))
            for store in stores:
                await store.write(path, text, expected_version=None)
        for _ in range(20):
            bounds = {
                "limit": chance.randrange(1, 9), "max_files": chance.randrange(1, 12),
                "max_chars": chance.choice([1, 5, 30, 999]),
                "max_file_chars": chance.choice([1, 20, 999]),
            }  # fmt: skip
            query = " ".join(chance.choices([*words, "lph", "az", "nothing"], k=2))
            ours, theirs = [await each.search("ann/main/", query, **bounds) for each in stores]
            assert ours == theirs, (query, bounds)

    run(body())


def test_a_search_stays_within_its_prefix_and_its_bounds(store):
    async def body():
        for number in range(12):
            text = f"note {number} about tea " + "x" * 300
            await store.write(f"alice/main/n{number:02}.md", text, expected_version=None)
        await store.write("bob/main/n.md", "tea of bob", expected_version=None)
        await store.write("alice/main/deep/x/n.md", "tea below", expected_version=None)
        found = await store.search("alice/main/", "tea", **BOUNDS)
        assert found.matches
        assert all(m.path.startswith("alice/main/n") for m in found.matches)
        assert sum(len(m.snippet) + len(m.path) - len("alice/main/") for m in found.matches) <= 1000
        assert found.truncated
        few = await store.search("alice/main/", "tea", **{**BOUNDS, "limit": 2, "max_files": 3})
        assert (len(few.matches), few.scanned, few.truncated) == (2, 3, True)
        assert all(m.path <= "alice/main/n02.md" for m in few.matches)
        short = await store.search("alice/main/", "tea", **{**BOUNDS, "max_file_chars": 4})
        assert "tea" not in "".join(m.snippet for m in short.matches)
        for nothing in ("", "   "):
            assert not (await store.search("alice/main/", nothing, **BOUNDS)).matches
        assert not (await store.search("alice/main/", "coffee", **BOUNDS)).matches

    run(body())


def test_a_search_finds_words_in_other_forms(tmp_path):
    async def body():
        for kind, found in (("toml", 1), ("sqlite", 0)):
            store = TomlMemoryStore(tmp_path) if kind == "toml" else SqliteMemoryStore(database=tmp_path / "db")  # fmt: skip
            await store.write(PATH, "likes strong teas", expected_version=None)
            result = await store.search("alice/main/", "liking", **BOUNDS)
            assert len(result.matches) == found, kind

    run(body())


# Under the capability itself


@dataclass
class Deps:
    user: str


def noting(messages, _info):
    if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        return ModelResponse(parts=[TextPart("done")])
    first = next(part for message in messages for part in message.parts if part.part_kind == "user-prompt")  # fmt: skip
    return ModelResponse(parts=[ToolCallPart("write_memory", {"content": str(first.content)})])


def agent_on(store):
    memory = Memory(store=store, namespace=lambda ctx: ctx.deps.user)
    return Agent(FunctionModel(noting), deps_type=Deps, capabilities=[memory])


def test_one_line_switches_the_memory_of_an_agent(tmp_path):
    agent = agent_on(TomlMemoryStore(tmp_path))
    asyncio.run(agent.run("- likes tea", deps=Deps("alice")))
    told = []

    def look(messages, _info):
        told.append(str(messages))
        return ModelResponse(parts=[TextPart("done")])

    asyncio.run(agent.run("hello", deps=Deps("alice"), model=FunctionModel(look)))
    assert "- likes tea" in told[0]
    asyncio.run(agent.run("hello", deps=Deps("bob"), model=FunctionModel(look)))
    assert "likes tea" not in told[1]
    # What the harness wrote is in alice's diary, and forgotten with her.
    alice = Diary(tmp_path).user("alice")
    assert alice.block("main/MEMORY.md").text.strip() == "- likes tea"
    assert [hit.kind for hit in alice.recall("tea")] == ["blocks"]
    alice.forget(everything=True)
    left = [
        path for path in tmp_path.rglob("*") if path.is_file() and b"likes tea" in path.read_bytes()
    ]
    assert left == []


@pytest.mark.parametrize("runs", [20, 40])
def test_concurrent_runs_of_one_user_keep_all_writes(tmp_path, runs):
    agent = agent_on(TomlMemoryStore(tmp_path))
    facts = [f"- fact {n}." for n in range(runs)]

    async def together():
        await asyncio.gather(*(agent.run(fact, deps=Deps("alice")) for fact in facts))

    asyncio.run(together())
    text = Diary(tmp_path).user("alice").block("main/MEMORY.md").text
    assert sorted(text.splitlines()) == sorted(facts)


def test_slow_storage_keeps_the_writes_of_concurrent_runs(tmp_path):
    class Slow(TomlMemoryStore):
        async def read(self, *args, **options):
            found = await super().read(*args, **options)
            await asyncio.sleep(0.02)  # the latency of a database
            return found

        async def write(self, *args, **options):
            await asyncio.sleep(0.02)
            return await super().write(*args, **options)

    agent = agent_on(Slow(tmp_path))
    facts = [f"- fact {n}." for n in range(60)]

    async def together():
        await asyncio.gather(*(agent.run(fact, deps=Deps("alice")) for fact in facts))

    asyncio.run(together())
    text = Diary(tmp_path).user("alice").block("main/MEMORY.md").text
    assert sorted(text.splitlines()) == sorted(facts)


def test_two_stores_in_two_processes_lose_nothing(tmp_path):
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from harness_memory import Deps, TomlMemoryStore, agent_on
agent = agent_on(TomlMemoryStore({str(tmp_path)!r}))
print("ready", flush=True)
sys.stdin.readline()
async def together():
    for n in range(10):
        await agent.run(f"- {{sys.argv[1]}} {{n}}.", deps=Deps("alice"))
asyncio.run(together())
"""
    run_at_once(code, ["one"], ["two"], imported=("harness_memory",))  # once for both
    text = Diary(tmp_path).user("alice").block("main/MEMORY.md").text
    assert sorted(text.splitlines()) == sorted(f"- {name} {n}." for name in ("one", "two") for n in range(10))  # fmt: skip
