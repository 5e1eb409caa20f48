"""What the README of TOMLDiary shows runs unchanged against this package, offline.

Its blocks use `await` and `return` at top level. They are parsed as they stand and put into an async
function, syntax tree and all, so that not one character of them differs.
"""

from __future__ import annotations

import ast
import asyncio
import re
import shlex
import sys
import threading
import tomllib
import types
from pathlib import Path

import pytest
from pydantic import BaseModel

import tomldiary
from command_line import call
from tomldiary import PreferenceItem, load_conversations, load_preferences

ROOT = Path(__file__).parents[2]
README = ROOT.parent / "shared" / "seeds" / "001_b07a05c8e52230c3.txt"

pytestmark = pytest.mark.skipif(not README.exists(), reason="the README of TOMLDiary is not here")


def block(heading, language="python", number=0):
    """Return a code block below a heading, as it stands."""
    text = README.read_text("utf-8")
    heads = re.compile(rf"^(?:#+ |\*\*){re.escape(heading)}(?::\*\*)?$", re.MULTILINE)
    match = heads.search(text)
    assert match is not None, heading
    fences = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return fences.findall(text[match.end() :])[number]


class Reader:
    """Someone who copies the blocks into a program, one after the other."""

    def __init__(self, **names):
        self.names = {"__name__": "reader", **names}

    async def arun(self, source):
        """Run a block; its names stay, and what it returns is returned."""
        tree = ast.parse(source)
        names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and _is_set(n)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.AsyncFunctionDef | ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in node.names}
        function = ast.parse("async def block(): pass").body[0]
        function.body = [ast.Global(names=sorted(names)), *tree.body]
        module = ast.fix_missing_locations(ast.Module(body=[function], type_ignores=[]))
        exec(compile(module, "README.md", "exec", dont_inherit=True), self.names)  # noqa: S102 - this is the test
        return await self.names["block"]()

    def run(self, source):
        return asyncio.run(self.arun(source))


def _is_set(name):
    return isinstance(name.ctx, ast.Store)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A reader in an empty folder who did the quick start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXTRACTOR_MODEL", "rules")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    reader = Reader(user_id="user123", session_id="chat_123")
    reader.run(block("Quick Start"))
    return reader


def test_the_quick_start_remembers_the_allergy(reader, tmp_path):
    stored = reader.names["diary"].user("user123").preferences("allergies")
    assert [item.text for item in stored.values()] == ["I'm allergic to walnuts."]

    files = {path.stem: path for path in (tmp_path / "memories" / "user123").glob("*.toml")}
    written = tomllib.loads(files["preferences"].read_text("utf-8"))
    assert (written["_meta"]["version"], written["_meta"]["schema_name"]) == ("0.3", "MyPrefTable")
    assert list(written["preferences"]) == ["allergies"]
    sessions = load_conversations(files["conversations"].read_text("utf-8"))
    assert sessions["chat_123"].turns == 1


def test_the_files_of_the_readme_are_read(reader, tmp_path):
    table = reader.names["MyPrefTable"]
    preferences = block("TOML Memory Example", "toml")
    walnuts = load_preferences(preferences, table).allergies["walnuts"]
    assert (walnuts.text, walnuts.contexts) == ("allergic to walnuts", ["diet", "health"])
    conversations = block("TOML Memory Example", "toml", 1)
    assert load_conversations(conversations)["chat_123"].turns == 5

    (tmp_path / "memories" / "alice").mkdir()
    (tmp_path / "memories" / "alice" / "preferences.toml").write_text(preferences, "utf-8")
    (tmp_path / "memories" / "alice" / "conversations.toml").write_text(conversations, "utf-8")
    alice = reader.names["diary"].user("alice")
    assert alice.preferences("allergies")["walnuts"] == walnuts
    assert alice.conversations()["chat_123"].keywords == ["food", "allergy", "italian"]


def test_custom_categories_are_the_categories(reader):
    reader.run(block("Custom Preference Categories"))
    diary = tomldiary.Diary("memory:", reader.names["DetailedPrefTable"])
    assert diary.allowed == ["dietary", "medical", "interests", "goals", "family", "work"]
    ann = diary.user("ann")
    ann.add_turn("I work as a nurse. My goal is to run a marathon.", "Noted.", "s1")
    assert [len(entries) for entries in ann.preferences().values()] == [0, 0, 0, 1, 0, 1]


def test_the_schema_utilities_show_every_category(reader, capsys):
    reader.run(block("Type Schema Utilities"))
    shown = capsys.readouterr().out
    for category in ("likes", "dislikes", "allergies", "routines", "biography"):
        assert f"{category}: dict[str, PreferenceItem]" in shown
        assert f'"{category}": {{' in shown
    assert "class MyPrefTable" in shown
    assert "turns: int" in shown


def test_safe_loading_gives_typed_data(reader, capsys):
    reader.names["incoming_api_data"] = {"tea": {"text": "green tea", "contexts": ["morning"]}}
    assert reader.run(block("Safe Data Loading")) is None
    table = reader.names["MyPrefTable"]
    assert str(table) in capsys.readouterr().out
    assert isinstance(reader.names["prefs"], table)
    assert isinstance(reader.names["prefs"].allergies["pref001"], PreferenceItem)
    assert reader.names["validated"]["tea"].text == "green tea"


@pytest.mark.parametrize(
    "wrong", [{"tea": {"contexts": []}}, {"tea": "green"}, {"tea": {"text": 5}}]
)
def test_safe_loading_names_what_is_wrong_in_a_request(reader, wrong):
    reader.names["incoming_api_data"] = wrong
    answer = reader.run(block("Safe Data Loading"))
    assert answer["error"] == "Invalid preference data"
    assert "tea" in answer["details"]


def test_the_configured_local_backend_has_the_six_methods(reader, tmp_path):
    reader.run(block("Local Filesystem (Default)"))
    backend = reader.names["backend"]

    async def use():
        assert await backend.list_users() == ["user123"]
        assert await backend.load("nobody", "preferences") is None
        await backend.save("bob", "preferences", '[_meta]\nversion = "0.3"\n')
        assert await backend.exists("bob", "preferences")
        await backend.delete("bob", "preferences")
        assert not await backend.exists("bob", "preferences")
        await backend.delete_user("user123")
        return await backend.list_users()

    assert asyncio.run(use()) == []
    assert not (tmp_path / "memories" / "user123").exists()


# The writer


@pytest.fixture
def writing(reader):
    """The reader after the writer's configuration, and a gate that holds its extractor."""
    gate = threading.Event()
    gate.set()

    def wait(message, *, deps):
        gate.wait(30)

    reader.names["MemoryWriter"] = tomldiary.MemoryWriter
    reader.names["diary"].agent = wait
    reader.run(block("Memory Writer Configuration"))
    yield reader, gate
    gate.set()
    reader.names["writer"].close_sync()


def test_the_writer_accepts_both_forms_of_a_turn(writing):
    reader, _ = writing
    writer = reader.names["writer"]

    async def use():
        await writer.submit("user123", "chat_123", "Hello.", "Hello.")
        await writer.submit(
            "user123", "chat_123", user_message="And again.", assistant_response="Again."
        )
        await writer.close()

    asyncio.run(use())
    assert reader.names["diary"].user("user123").conversations()["chat_123"].turns == 3
    with pytest.raises(RuntimeError, match="MemoryWriter is closed"):
        asyncio.run(writer.submit("user123", "chat_123", "Hello.", "Hello."))


def test_the_statistics_have_the_twelve_keys_of_the_readme(writing):
    reader, _ = writing
    source = block("Observability and Monitoring")
    shown = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict))
    keys = [key.value for key in shown.keys]
    reader.names["writer"].close_sync()  # its submit(...) stands for arguments: leave it out
    reader.run(source)
    stats = reader.names["stats"]
    assert list(stats)[: len(keys)] == keys
    assert len(keys) == 12
    assert (stats["total_workers"], stats["queue_capacity"], stats["is_running"]) == (
        8,
        1000,
        False,
    )


class App:
    """The part of a web framework that the health check uses."""

    def __init__(self):
        self.routes = {}

    def get(self, path):
        return lambda function: self.routes.setdefault(path, function)


class HTTPException(Exception):
    """As the web framework names it."""


def fill(reader, gate, size):
    """Replace the writer by a small one, and fill it: all workers busy, the queue full."""
    gate.clear()
    writer = tomldiary.MemoryWriter(reader.names["diary"], workers=1, qsize=size)
    reader.names["writer"] = writer
    for number in range(size + 1):
        asyncio.run(writer.submit("user123", "chat_123", f"message {number}", "answer"))
    return writer


def test_the_health_check_reports_a_full_queue(writing):
    reader, gate = writing
    reader.names["app"] = app = App()
    reader.run(block("Health Check Endpoints"))
    health = app.routes["/health/memory"]
    assert asyncio.run(health())["status"] == "healthy"
    writer = fill(reader, gate, 10)
    answer = asyncio.run(health())
    assert answer["status"] == "degraded"
    assert {**answer["metrics"], "oldest_age": 0} == {**writer.stats(), "oldest_age": 0}
    gate.set()
    assert writer.flush(30)
    assert asyncio.run(health())["status"] == "healthy"
    writer.close_sync()


def test_alerts_and_refusals_follow_the_thresholds(writing):
    reader, gate = writing
    alerts = []
    reader.names |= {"alert": alerts.append, "HTTPException": HTTPException}
    reader.run(block("Monitoring and Alerting"))
    reader.run(block("Graceful Degradation"))
    assert alerts == []

    writer = fill(reader, gate, 10)
    reader.run(block("Monitoring and Alerting"))
    assert alerts == ["MemoryWriter queue depth high", "All MemoryWriter workers busy"]
    with pytest.raises(HTTPException):
        reader.run(block("Graceful Degradation"))
    gate.set()
    assert writer.close_sync(30)["completed"] == 11


def test_failures_raise_the_error_rate_alert(writing):
    reader, _ = writing
    alerts = []
    reader.names["alert"] = alerts.append

    def fail(message, *, deps):
        raise ZeroDivisionError

    reader.names["diary"].agent = fail
    receipt = asyncio.run(reader.names["writer"].submit("user123", "chat_123", "Hello.", "Hello."))
    with pytest.raises(tomldiary.DiaryError):
        receipt.wait(30)
    reader.run(block("Monitoring and Alerting"))
    assert alerts == ["MemoryWriter error rate: 100.0%"]


def test_the_statistics_go_to_logfire_as_fields(writing, monkeypatch):
    reader, _ = writing
    logged = {}
    logfire = types.ModuleType("logfire")
    logfire.info = lambda message, **fields: logged.update({message: fields})
    monkeypatch.setitem(sys.modules, "logfire", logfire)
    reader.run(block("Integration with Logfire"))
    assert logged["memory_writer_stats"] == reader.names["writer"].stats()


# Compaction


def test_compaction_runs_for_a_long_block_and_keeps_its_progress(reader):
    cleaned = []

    class Compactor:
        async def run(self, message, *, deps):
            cleaned.extend(deps.preference_blocks())
            assert deps.conversation_blocks() == [] or not deps.include_conversations
            deps.rewrite_preference_block(cleaned[-1][0], text="tells long stories")

    def tell(message, *, deps):
        deps.upsert("biography", None, "once upon a time " * 40, ())

    reader.run(block("Local Filesystem (Default)"))
    reader.names["extractor"] = tell
    reader.run(block("Automated compaction sweeps"))
    diary = reader.names["diary"]
    config = diary.compaction_config
    assert (config.total_char_threshold, config.cooldown_seconds) == (4000, 900)
    assert not config.compact_conversations

    diary.compactor = Compactor()
    asyncio.run(diary.update_memory("user123", "chat_123", "Let me tell you.", "Please do."))
    assert [key for key, _ in cleaned] == ["allergies/pref001", "biography/pref001"]
    stored = diary.user("user123").preferences("biography")
    assert stored["pref001"].text == "tells long stories"
    meta = tomllib.loads(asyncio.run(diary.preferences("user123")))["_meta"]
    assert meta["compaction"]["last_run"] == stored["pref001"].updated
    asyncio.run(diary.update_memory("user123", "chat_123", "One more.", "Please do."))
    assert len(cleaned) == 2, "the cool-down holds"


# The command line

TABLE = '''
from pydantic import BaseModel

from tomldiary import PreferenceItem


class CulinaryPrefTable(BaseModel):
    """What a cook knows of a guest."""

    favourite_dishes: dict[str, PreferenceItem] = {}
    kitchen_tools: dict[str, PreferenceItem] = {}
'''


def test_the_command_lines_of_the_readme_print_schemas(tmp_path):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "culinary_prefs.py").write_text(TABLE, "utf-8")
    lines = re.findall(r"^tomldiary (.*?)(?: > (.*))?$", block("CLI Access", "bash"), re.MULTILINE)
    assert len(lines) == 3
    shown = ""
    for line, file in lines:
        done = call(*shlex.split(line), cwd=tmp_path, check=0, NO_COLOR="1")
        if file:
            (tmp_path / file).write_text(done.stdout, "utf-8")
        else:
            shown += done.stdout
    assert "favourite_dishes: dict[str, PreferenceItem]" in shown
    assert "ConversationItem" in shown

    class CulinaryPrefTable(BaseModel):
        """What a cook knows of a guest."""

        favourite_dishes: dict[str, PreferenceItem] = {}
        kitchen_tools: dict[str, PreferenceItem] = {}

    saved = (tmp_path / "schema.json").read_text("utf-8")
    shown = tomldiary.show_preferences_schema(CulinaryPrefTable, format="json")
    assert saved.strip() == shown.strip()
