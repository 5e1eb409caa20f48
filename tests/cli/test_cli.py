"""The command line: what it prints, what it refuses, and that stored text cannot steer a terminal."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from datetime import date
from pathlib import Path
from unittest import mock

import pytest
from pydantic import BaseModel
from rich.cells import cell_len

import programs
from command_line import ROOT, call, program
from openai_server import OpenAIServer, says, status
from tomldiary import Constraint, Diary
from tomldiary.cli.output import print_text
from tomldiary.cli.tables import load_table
from tomldiary.store.operations import Put
from tomldiary.store.store import ItemStore

TABLE = '''
from __future__ import annotations

from pydantic import BaseModel

from tomldiary import PreferenceItem


class Spicy(PreferenceItem):
    """Hot."""


class Food(BaseModel):
    """What is eaten.

    tastes : what is good
    """

    tastes: dict[str, Spicy] = {}


class Other(BaseModel):
    number: int = 1
'''
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil\u200b\x9b31m"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u200b]")


class Diet(BaseModel):
    who: str
    food: str


@pytest.fixture
def memories(tmp_path):
    place = tmp_path / "memories"
    alice = Diary(place, agent="rules", durability="process").user("alice")
    alice.add_turn("I'm allergic to walnuts. I love dark roast.", "Noted.", "s1")
    alice.add_turn("I love dark roast.", "I know.", "s2")
    return place


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "chat.json"
    turns = [
        {"role": "user", "content": "I love tea."},
        {"role": "assistant", "content": "Good."},
        {"role": "user", "content": "My sister lives in Graz."},
    ]
    path.write_text(json.dumps(turns), encoding="utf-8")
    return path


# demo

NO_NETWORK = """
import socket, sys

def refuse(*arguments, **options):
    raise AssertionError("the demo tried to reach the network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
sys.argv = ["tomldiary", "demo", *sys.argv[1:]]
from tomldiary.__main__ import main
main()
"""


def demo(*arguments, block="", imported=programs.CORE):
    hidden = {key: value for key, value in os.environ.items() if "API_KEY" not in key}
    env = {**hidden, "LANGSMITH_TRACING": "true"}
    return programs.run("-c", block + NO_NETWORK, *arguments, imported=imported, env=env)


def toml_in(output):
    return tomllib.loads(output[output.index("[_meta]") : output.index("\n3. ")])


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A folder, and what the demo printed that wrote to it."""
    folder = tmp_path_factory.mktemp("demo") / "kept here"
    return folder, demo("--path", folder, imported=programs.FRAMEWORKS)


def test_the_demo_reads_one_memory_through_every_adapter_without_a_network(shown):
    _, done = shown
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    written = toml_in(done.stdout)
    assert written["preferences"]["likes"]["pref001"]["_count"] == 2
    asked = done.stdout[done.stdout.index("\n3. ") :]
    assert "walnuts" in asked.splitlines()[2]
    assert len(done.stdout.splitlines()) < 60
    doors = done.stdout[done.stdout.index("\n4. ") :]
    for framework in ("LangGraph", "LangChain", "pydantic-ai"):
        line = next(line for line in doors.splitlines() if line.strip().startswith(framework))
        assert "walnuts" in line
        assert "failed" not in line


def test_the_demo_writes_to_a_new_folder_only(shown):
    folder, done = shown
    assert f"tomldiary show --path '{folder}'" in done.stdout
    assert Diary(folder).users() == ["alice", "bob"]
    again = demo("--path", folder)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == f"{folder}: the demo needs a new or an empty folder.\n"


def test_the_demo_names_the_install_command_of_a_missing_framework():
    block = """
import sys
for name in ("langgraph", "langgraph.store", "langgraph.store.base", "langchain_core", "pydantic_ai"):
    sys.modules[name] = None
"""
    done = demo(block=block)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'python -m pip install "tomldiary-kit[langgraph]"' in done.stdout
    assert 'python -m pip install "tomldiary-kit[langchain]"' in done.stdout
    assert 'python -m pip install "tomldiary-kit[pydantic-ai]"' in done.stdout


def test_a_failing_adapter_is_one_line_and_stops_no_other():
    block = """
import sys, types

class DiaryStore:
    def __init__(self, diary):
        raise ValueError("jammed")

class DiaryRetriever:
    def __init__(self, **options):
        pass
    def invoke(self, question):
        return []

# Frameworks that are there, and are not loaded.
for name in ("langgraph", "langgraph.store", "langgraph.store.base", "langchain_core", "langchain_core.retrievers"):
    sys.modules[name] = types.ModuleType(name)
graph = types.ModuleType("tomldiary_langgraph")
graph.DiaryStore = DiaryStore
chain = types.ModuleType("tomldiary_langchain")
chain.DiaryRetriever = DiaryRetriever
sys.modules.update(tomldiary_langgraph=graph, tomldiary_langchain=chain, pydantic_ai=None)
"""
    done = demo(block=block)
    assert done.returncode == 1
    assert "LangGraph    failed (ValueError: jammed)." in done.stdout
    assert "LangChain    answered" in done.stdout
    assert "pydantic-ai" in done.stdout
    assert "Traceback" not in done.stderr


# ingest


def test_ingest_prints_a_report_and_a_rerun_changes_no_file(tmp_path, log):
    place = tmp_path / "m"
    first = call("ingest", log, "--user", "ann", "--path", place, check=0)
    assert first.stderr == ""
    figures = dict(line.rsplit(None, 1) for line in first.stdout.splitlines()[:5])
    assert (figures["turns"], figures["applied"], figures["already there"]) == ("2", "2", "0")

    def contents():
        """Documents, history and indexes: all files but locks and temporary files."""
        files = (path for path in place.rglob("[!.]*") if path.is_file())
        return {path: path.read_bytes() for path in files if path.parent.name != "locks"}

    before = contents()
    second = call("ingest", log, "--user", "ann", "--path", place, "--json", check=0)
    report = json.loads(second.stdout)
    assert (report["turns"], report["applied"], report["skipped"]) == (2, 0, 2)
    assert contents() == before


def test_ingest_reads_standard_input_for_a_hyphen(tmp_path, log):
    words = ("-m", "tomldiary", "ingest", "-", "--user", "ann", "--path", tmp_path / "m")
    programs.run(*words, stdin=log, check=True)
    likes = Diary(tmp_path / "m").user("ann").preferences("likes")
    assert [each.text for each in likes.values()] == ["I love tea."]


@pytest.mark.parametrize("is_blocking", [True, False])
def test_ingest_reads_standard_input_that_is_a_socket(tmp_path, log, is_blocking):
    words = ("-m", "tomldiary", "ingest", "-", "--user", "ann", "--path", tmp_path / "m")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(is_blocking)
        reader = programs.start(*words, streams=(theirs.fileno(), 1, 2))
        if not is_blocking:
            with suppress(subprocess.TimeoutExpired):  # a slow sender
                reader.wait(1)
        ours.sendall(log.read_bytes())
        ours.shutdown(socket.SHUT_WR)
        assert reader.wait() == 0
    assert len(Diary(tmp_path / "m").user("ann").preferences("likes")) == 1


def test_ingest_from_a_terminal_ends_at_the_first_end_of_file(tmp_path, log):
    pty = pytest.importorskip("pty")
    words = ("-m", "tomldiary", "ingest", "-", "--user", "ann", "--path", tmp_path / "m")
    master, slave = pty.openpty()
    reader = subprocess.Popen(
        [sys.executable, *words], stdin=slave, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    os.write(master, log.read_bytes() + b"\n\x04")  # Ctrl-D
    try:
        assert reader.wait(60) == 0
    finally:
        reader.kill()
        os.close(slave)
        os.close(master)
    assert len(Diary(tmp_path / "m").user("ann").preferences("likes")) == 1


def test_ingest_of_a_log_of_several_people_requires_a_speaker(tmp_path):
    def sample(name, one, other):
        said = [{"speaker": one, "text": f"I love {name}."}, {"speaker": other, "text": "Nice."}]
        return {"sample_id": name, "conversation": {"speaker_a": one, "speaker_b": other, "session_1": said}}  # fmt: skip

    log = tmp_path / "talks.json"
    log.write_text(json.dumps([sample("tea", "Ann", "Bob"), sample("jazz", "Cy", "Dee")]))
    place = ("--user", "ann", "--path", tmp_path / "m")
    for more in ([], ["--speaker", "speaker_a"]):
        refused = call("ingest", log, *place, *more)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "conversations of several people" in refused.stderr
        assert "--speaker" in refused.stderr
        assert "Ann, Bob, Cy, Dee" in refused.stderr
    assert not (tmp_path / "m/ann").exists()
    call("ingest", log, *place, "--speaker", "Ann", check=0)
    shown = call("show", "ann", "--path", tmp_path / "m", check=0).stdout
    assert "tea" in shown
    assert "jazz" not in shown


def test_ingest_uses_the_given_preference_table(tmp_path, log):
    (tmp_path / "food.py").write_text(TABLE)
    table = f"{tmp_path / 'food.py'}:Food"
    call("ingest", log, "--user", "ann", "--path", tmp_path / "m", "--table", table, check=0)
    assert 'schema_name = "Food"' in (tmp_path / "m/ann/preferences.toml").read_text()
    found = call("search", "tea", "--user", "ann", "--path", tmp_path / "m", "--json", check=0)
    assert [hit["key"] for hit in json.loads(found.stdout)] == ["tastes/pref001"]


def test_what_is_extracted_goes_to_the_categories_of_the_stored_table(tmp_path, log):
    """Other categories would be read by no program that uses the table."""
    (tmp_path / "food.py").write_text(TABLE)
    ann = Diary(tmp_path / "m", load_table(f"{tmp_path / 'food.py'}:Food"), agent="rules").user(
        "ann"
    )
    ann.upsert_preference("tastes", "rye bread")
    ann.episodes.add("I love jazz.", "Noted.")
    call("ingest", log, "--user", "ann", "--path", tmp_path / "m", check=0)
    call("consolidate", "--path", tmp_path / "m", check=0)
    texts = [item.text for item in ann.preferences("tastes").values()]
    assert ("rye bread" in texts, "I love jazz." in texts, len(texts)) == (True, True, 4)
    assert ann.problems() == []


def test_ingest_that_a_model_stops_says_how_many_turns_are_stored(tmp_path, log, monkeypatch):
    monkeypatch.setattr("pydantic_ai.models.ALLOW_MODEL_REQUESTS", True)
    options = ("--user", "ann", "--path", tmp_path / "m", "--agent", "openai-chat:any")
    with OpenAIServer([says("done"), status(401)]) as server:
        model = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"}
        done = call("ingest", log, *options, **model)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("are stored: 1 of 2. Ingest it again to continue.\n")


def test_a_consolidation_with_a_failed_episode_exits_with_1(tmp_path, monkeypatch):
    monkeypatch.setattr("pydantic_ai.models.ALLOW_MODEL_REQUESTS", True)
    alice = Diary(tmp_path, agent="rules").user("alice")
    for text in ("I love jazz.", "I love tea."):
        alice.episodes.add(text, "Noted.")
    options = ("--path", tmp_path, "--agent", "openai-chat:any", "--json")
    with OpenAIServer([says("done"), status(400)]) as server:
        model = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"}
        done = json.loads(call("consolidate", *options, check=1, **model).stdout)
    assert (done["read"], len(done["failed"])) == (1, 1)


# show and search


def test_show_lists_users_and_prints_one(memories):
    assert call("show", "--path", memories, check=0).stdout == "alice\n"
    shown = call("show", "alice", "--path", memories, check=0).stdout
    assert "I'm allergic to walnuts." in shown
    assert re.search(r"^likes/pref001  2x  [\d-]+  I love dark roast\.$", shown, re.MULTILINE)
    assert re.search(r"^conversations\nconversations/s1  [\d-]+$", shown, re.MULTILINE)


def test_show_prints_facts_and_blocks_as_lines_without_their_toml(memories):
    alice = Diary(memories, agent="rules").user("alice")
    alice.diary.register_schema("diet", Diet, Constraint(singleton_key="who"))
    alice.facts.commit(Diet(who="she", food="vegan"))
    alice.blocks.set("persona", "Brief.\nKind.")
    shown = call("show", "alice", "--path", memories, check=0).stdout
    assert re.search(r"^facts/diet/she  [\d-]+  who = she, food = vegan$", shown, re.MULTILINE)
    assert re.search(r"^blocks/persona  [\d-]+  Brief\.\n    Kind\.$", shown, re.MULTILINE)
    assert "_created" not in shown


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a pipe is needed")
@pytest.mark.parametrize("option", [[], ["--raw"], ["--json"]])
def test_show_names_a_pipe_in_place_of_a_document(memories, option):
    pipe = Path(memories) / "alice/blocks.toml"
    os.mkfifo(pipe)
    said = call("show", "alice", "--path", memories, *option, check=2)
    assert (
        said.stderr
        == f"{pipe}: is not a regular file. Replace it with a regular file, or remove it.\n"
    )


def test_show_narrows_to_a_category(memories):
    shown = call("show", "alice", "--path", memories, "--category", "likes", check=0).stdout
    assert "dark roast" in shown
    assert "walnuts" not in shown
    assert "conversations" not in shown


@pytest.mark.parametrize(
    ("schema", "category", "other"),
    [("Moods", "mood", "likes"), ("Mine", "likes", "goals"), ("DefaultPrefTable", "mood", "moods")],
)
def test_commands_take_the_categories_of_the_file(tmp_path, schema, category, other):
    file = tmp_path / "alice/preferences.toml"
    file.parent.mkdir()
    meta = f'[_meta]\nversion = "0.3"\nschema_name = "{schema}"\n'
    file.write_text(f'{meta}\n[preferences.{category}.pref001]\ntext = "calm"\n')
    for words in (["search", "calm"], ["show", "alice", "--category", category]):
        assert "calm" in call(*words, "--path", tmp_path, check=0).stdout
    call("add", category, "cheerful", "--path", tmp_path, check=0)
    assert f'schema_name = "{schema}"' in file.read_text()
    refused = call("add", other, "x", "--path", tmp_path, check=2)
    assert f"unknown category {other!r}" in refused.stderr


def test_show_raw_of_a_file_from_another_system_is_valid(memories):
    file = memories / "alice/preferences.toml"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    shown = call(
        "show", "alice", "--path", memories, "--raw", "--category", "goals", check=0
    ).stdout
    assert "preferences" not in tomllib.loads(shown)


def test_show_parses_the_preferences_to_find_the_categories_and_once_more_with_them(memories):
    with mock.patch.object(tomllib, "loads", wraps=tomllib.loads) as parsed:
        call("show", "alice", "--path", memories, "--json")
    text = (memories / "alice/preferences.toml").read_text()
    assert 0 < parsed.call_args_list.count(mock.call(text)) <= 2


def test_show_raw_is_the_text_of_the_files(memories):
    shown = call("show", "alice", "--path", memories, "--raw", check=0).stdout
    for kind in ("preferences", "conversations"):
        assert (memories / f"alice/{kind}.toml").read_text().strip() in shown


def test_search_finds_the_best_entry_first(memories):
    found = call("search", "what is she allergic to?", "--user", "alice", "--path", memories)
    assert "allergies/pref001  I'm allergic to walnuts." in found.stdout.splitlines()[0]
    none = call("search", "zebra", "--user", "alice", "--path", memories, check=0)
    assert none.stdout == "No entry matches.\n"


def test_search_with_an_embedder_finds_what_recall_finds(memories):
    pytest.importorskip("wordllama", reason='pip install "tomldiary-kit[embeddings]"')
    asked = ["search", "which nuts are dangerous", "--path", memories, "--json", "--embedder"]
    hits = Diary(memories, embedder="local").user("alice").recall("which nuts are dangerous")
    found = json.loads(call(*asked, "local").stdout)
    assert [each["text"] for each in found] == [hit.text for hit in hits] != []
    assert json.loads(call(*asked, "words", check=0).stdout) == []
    asked.remove("--json")
    assert "vectors or word forms" in call(*asked, "local").stdout
    assert "'nope' is unknown" in call(*asked, "nope", check=2).stderr


@pytest.mark.parametrize(
    ("arguments", "check"),
    [
        (["show"], lambda data: data == ["alice"]),
        (
            ["show", "alice"],
            lambda data: (
                data["preferences"]["likes"]["pref001"]["_count"] == 2
                and set(data["conversations"]) == {"s1", "s2"}
            ),
        ),
        (
            ["show", "alice", "--category", "likes"],
            lambda data: set(data["preferences"]) == {"likes"},
        ),
        (["show", "alice", "--raw"], lambda data: tomllib.loads(data["preferences"])),
        (
            ["search", "walnuts", "--user", "alice"],
            lambda data: data[0]["key"] == "allergies/pref001",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_json_is_valid_and_alone_on_stdout(memories, arguments, check):
    done = call(*arguments, "--path", memories, "--json", check=0)
    assert check(json.loads(done.stdout))
    assert done.stderr == ""


def test_json_has_no_number_that_json_lacks(memories):
    file = memories / "alice" / "blocks.toml"
    file.write_text(
        '[blocks.trip]\ntext = "x"\nkm = inf\ncost = [nan, 1.5]\nday = 2026-05-01T12:00:00\n'
    )
    Diary(memories, agent="rules").user("alice").blocks.append("trip", "y")  # logs the hand edit
    trip = {"km": "inf", "cost": ["nan", 1.5], "day": "2026-05-01T12:00:00"}
    shown = call("show", "alice", "--path", memories, "--json", check=0)
    found = json.loads(shown.stdout, parse_constant=pytest.fail)["blocks"]["blocks"]["trip"]
    assert {name: found[name] for name in trip} == trip
    logged = call("history", "--user", "alice", "--path", memories, "--json", check=0)
    found = json.loads(logged.stdout, parse_constant=pytest.fail)[0]["before"]
    assert {name: found[name] for name in trip} == trip
    exported = Diary(memories, agent="rules").user("alice").export(entries=True)
    found = json.loads(json.dumps(exported["entries"], allow_nan=False))["blocks/trip"]
    assert {name: found[name] for name in trip} == trip


# Hostile text


@pytest.fixture
def hostile(tmp_path):
    place = tmp_path / "memories"
    user = Diary(place, agent="rules", durability="process").user(f"eve{HOSTILE}")
    user.upsert_preference("likes", f"tea {HOSTILE}", contexts=[HOSTILE], session_id=HOSTILE)
    user.add_turn("Hello.", "Hi.", f"s{HOSTILE}")
    return place, user.user_id


@pytest.mark.parametrize("form", [[], ["--raw"], ["--json"]], ids="".join)
def test_control_characters_are_printed_as_escapes(hostile, form):
    place, user = hostile
    outputs = [
        call("show", user, "--path", place, *form, check=0).stdout,
        call("show", "--path", place, *[f for f in form if f == "--json"], check=0).stdout,
    ]
    if form != ["--raw"]:
        outputs.append(call("search", "tea", "--user", user, "--path", place, *form).stdout)
    for output in outputs:
        assert OBEYED.search(output) is None
        assert "evil" in output


def test_control_characters_in_errors_are_printed_as_escapes(tmp_path):
    done = call("show", f"who{HOSTILE}\nsecond", "--path", tmp_path)
    assert done.returncode == 2
    assert OBEYED.search(done.stderr) is None
    assert done.stderr.count("\n") == 1


def on_a_terminal(*line, columns=80, code=0, out=None):
    """Run the command on a terminal of so many columns; return what it writes, except to `out`."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    environment.pop("NO_COLOR", None)
    streams = (0, slave if out is None else out, slave)
    child = programs.start("-m", "tomldiary", *line, streams=streams, env=environment)
    os.close(slave)
    data = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        data += part
    os.close(master)
    assert child.wait() == code, data
    return data.decode().replace("\r\n", "\n")


def test_an_error_is_wrapped_between_words_on_a_terminal():
    told = on_a_terminal("show", "--path", "a-folder-that-does-not-exist", columns=40, code=2)
    assert told == (
        "a-folder-that-does-not-exist: there is\n"
        "        no such folder; name another one\n"
        "        with --path.\n"
    )


@pytest.mark.parametrize(("command", "code"), [("users", 0), ("doctor", 0)])
def test_a_terminal_shows_how_many_users_are_read(tmp_path, command, code):
    for user in ("ann", "ben"):
        Diary(tmp_path, agent="rules").user(user).upsert_preference("likes", "tea")
    told = on_a_terminal(command, "--path", tmp_path, code=code)
    assert "2/2" in told


def test_rows_are_in_piped_output_while_a_terminal_shows_the_progress(tmp_path):
    (tmp_path / "memory/ann").mkdir(parents=True)
    (tmp_path / "memory/ann/preferences.toml").write_text("likes = [", "utf-8")
    with (tmp_path / "out").open("wb") as out:
        told = on_a_terminal("doctor", "--path", tmp_path / "memory", code=1, out=out.fileno())
    assert "1/1" in told
    assert "preferences.toml:1:10" in (tmp_path / "out").read_text("utf-8")
    assert "preferences.toml" not in told


def test_a_terminal_gets_no_control_sequences_but_colours(hostile):
    place, user = hostile
    text = on_a_terminal("show", user, "--path", place, "--raw")
    assert "\x1b[" in text
    assert OBEYED.search(re.sub(r"\x1b\[[0-9;]*m", "", text)) is None


# schema


def test_schema_shows_a_table_and_a_conversation(tmp_path):
    file = tmp_path / "food.py"
    file.write_text(TABLE)
    place = f"{file}:Food"
    assert "tastes: dict[str, Spicy]" in call("schema", "preferences", place, check=0).stdout
    data = json.loads(call("schema", "preferences", place, "-f", "json", check=0).stdout)
    assert "tastes" in data["properties"]
    source = call("schema", "preferences", place, "-f", "python", check=0).stdout
    scope = {"__name__": "copy"}
    exec(compile(source, "copy.py", "exec"), scope)  # noqa: S102 - the printed source has to run
    assert "tastes" in scope["Food"].model_fields
    assert "keywords" in call("schema", "conversations", check=0).stdout
    assert json.loads(call("schema", "conversations", "-f", "json", check=0).stdout)["title"]
    assert not (tmp_path / "__pycache__").exists()


def test_without_a_file_the_built_in_table_is_shown():
    shown = call("schema", "preferences", check=0).stdout
    assert shown.startswith("DefaultPrefTable")
    assert "allergies" in shown


# On the way in


def test_the_version_is_shown_where_the_package_has_no_metadata():
    code = (
        "import importlib.metadata, sys\n"
        "importlib.metadata.distribution = None\n"  # as in a zip file, or a copy of the folder
        "sys.argv[1:] = ['--version']\n"
        "from tomldiary.__main__ import main; main()"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    done = programs.run("-c", code)
    assert (done.returncode, done.stdout) == (0, f"tomldiary {project['version']}\n")


def test_a_relative_folder_in_a_removed_folder_is_explained(tmp_path):
    code = (
        "import os, sys\n"
        "os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n"
        "sys.argv[1:] = ['show', '--path', 'memories']\n"
        "from tomldiary.__main__ import main; main()"
    )
    done = programs.run("-c", code, tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("memories: the current folder was removed.")


def test_the_version_and_the_short_help_are_shown():
    assert re.fullmatch(r"tomldiary \d+\.\d+\S*\n", program("--version").stdout)
    for arguments in ([], ["show"], ["schema"], ["schema", "preferences"]):
        assert call(*arguments, "-h", check=0).stdout == call(*arguments, "--help", check=0).stdout


def test_completion_is_a_command_and_no_option():
    assert re.findall(r"^ +(\S*completion)\b", call("--help", check=0).stdout, re.MULTILINE) == [
        "completion"
    ]
    for option in ("--install-completion", "--show-completion"):
        done = call(option)
        assert done.returncode == 2
        assert "tomldiary completion --help" in done.stderr


def test_the_environment_can_name_the_path(memories):
    assert call("show", check=0, TOMLDIARY_PATH=str(memories)).stdout == "alice\n"
    assert call("show", "--path", "nowhere", TOMLDIARY_PATH=str(memories)).returncode == 2


def test_the_user_is_an_argument_or_an_option_but_not_both(memories):
    shown = call("show", "alice", "--path", memories, check=0).stdout
    assert call("show", "--user", "alice", "--path", memories, check=0).stdout == shown
    twice = call("show", "alice", "--user", "alice", "--path", memories)
    assert twice.returncode == 2
    assert "give the user once" in twice.stderr


def test_a_command_does_not_import_the_other_commands(tmp_path):
    code = (
        f"import sys; sys.argv = ['tomldiary', 'show', '--path', {str(tmp_path)!r}]\n"
        "from tomldiary.cli.app import run\n"
        "try:\n    run()\nexcept SystemExit:\n    print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "tomldiary.cli.commands.show" in loaded
    for other in ("demo", "portability", "doctor", "writer", "entries"):
        assert f"tomldiary.cli.commands.{other}" not in loaded
    assert not loaded & {
        "tomldiary.diary",  # a list of users reads names only
        "tomldiary.writer.writer",
        "tomldiary.ingest",
        "tomldiary.importers",
        "rich.console",
        "asyncio",
        "sqlite3",
    }


def test_an_empty_category_is_not_an_error(memories):
    shown = call("show", "alice", "--category", "goals", "--path", memories, check=0)
    assert shown.stdout == "No preferences in goals.\n"
    told = call("show", "alice", "--category", "goals", "--json", "--path", memories, check=0)
    assert json.loads(told.stdout)["preferences"] == {}
    wrong = call("show", "alice", "--category", "gaols", "--path", memories)
    assert wrong.returncode == 2
    assert "goals" in wrong.stderr


def test_items_of_a_store_are_searched_and_shown(memories):
    diary = Diary(memories)
    items = ItemStore(diary)
    items.run([Put(("alice", "notes"), "n/1", {"text": "walnuts grow in the garden"})])
    items.run([Put(("bob", "notes"), "n1", {"text": "walnuts of bob"})])
    ItemStore(diary, user_label=1).run([Put(("memories", "alice"), "n2", {"food": "walnuts"})])
    found = call("search", "walnuts", "--user", "alice", "--path", memories, check=0).stdout
    for part in (
        "items/notes/n%2f1  walnuts grow",
        "items/memories/~/n2  walnuts",
        "allergies/pref001",
        "words: walnuts",
    ):
        assert part in found
    assert found.count("  items, ") == 2
    assert "bob" not in found
    best = call("search", "garden", "--user", "alice", "--path", memories, "--json", "--limit", 1)
    assert [hit["kind"] for hit in json.loads(best.stdout)] == ["items"]
    items.run([Put(("alice", "notes"), "day", {"on": date(2026, 11, 26)})])
    shown = call("show", "alice", "--path", memories, "--json", check=0).stdout
    assert '"on": "2026-11-26"' in shown
    shown = call("show", "bob", "--path", memories, check=0).stdout
    assert "walnuts of bob" in shown
    assert "No preferences" not in shown
    assert "No conversations" not in shown


LONG = "I love " + " ".join(f"word{number}" for number in range(40))


@pytest.mark.parametrize(
    ("columns", "arguments"),
    [(40, ["search", "word7"]), (80, ["history"]), (140, ["why", "likes/long"])],
)
def test_lines_are_wrapped_between_words_at_the_terminal_width(memories, arguments, columns):
    Diary(memories).user("alice").upsert_preference("likes", LONG, id="long")
    line = [*arguments, "--user", "alice", "--path", memories]
    shown = on_a_terminal(*line, columns=columns)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).split("\n")
    assert max(map(len, lines)) <= columns
    assert max(map(len, lines)) > columns - 12
    words = " ".join(lines).split()
    for number in range(40):
        assert f"word{number}" in words
    assert LONG in call(*line, check=0).stdout


def test_a_terminal_shows_labels_only_of_a_list_that_has_some(memories):
    file = memories / "alice/preferences.toml"
    file.write_text(file.read_text().replace("contexts = []", 'contexts = "home"', 1))
    shown = on_a_terminal("show", "alice", "--path", memories)
    table = shown[shown.index("updated") :]
    assert "I love dark roast." in table
    assert "contexts" not in table


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("word", ["漢字 ", "x", "x" + "\u0301" * 2000])
def test_the_time_to_wrap_a_line_is_linear(monkeypatch, word):
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    line = (word * 200_000)[:200_000]
    start = time.process_time()
    print_text(line)
    assert time.process_time() - start < 5
    shown = terminal.getvalue()
    assert "".join(shown.split()) == line.replace(" ", "")
    assert max(map(cell_len, shown.split("\n"))) <= 80


@pytest.mark.parametrize("words", [["show", "alice", "--raw"], ["diff", "0", "--user", "alice"]])
def test_toml_and_diffs_are_not_wrapped_in_a_pipe(memories, words):
    Diary(memories).user("alice").upsert_preference("likes", LONG, id="long")
    assert LONG in call(*words, "--path", memories, check=0).stdout


# Errors


def errors(tmp_path):
    (tmp_path / "food.py").write_text(TABLE)
    (tmp_path / "broken.py").write_text("import nothing_like_that\n")
    (tmp_path / "quits.py").write_text("x = 1\nraise SystemExit(0)\n")
    (tmp_path / "syntax.py").write_text("class :\n")
    (tmp_path / "log.json").write_text('[{"role": "user", "content": "I love tea."}]')
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "odd.json").write_text('{"a": 1}')
    (tmp_path / "m").mkdir()
    (tmp_path / "torn/ann").mkdir(parents=True)
    (tmp_path / "torn/ann/preferences.toml").write_text("[preferences\n")
    (tmp_path / "file").write_text("")


CASES = {
    "no folder": (["show"], "./memories: there is no such folder"),
    "unknown user": (["show", "bob", "--path", "m"], "there is no user 'bob'"),
    "empty user": (["show", "", "--path", "m"], "the user id is empty"),
    "unknown category": (["show", "al", "--path", "ok", "--category", "x"], "unknown category 'x'"),
    "search an unknown user": (
        ["search", "x", "--user", "bob", "--path", "m"],
        "there is no user 'bob'",
    ),
    "a broken file": (["show", "ann", "--path", "torn"], "preferences.toml:1:13"),
    "no such log": (["ingest", "no.json", "--user", "u"], "no.json: there is no such file"),
    "no such export": (
        ["import", "no.json", "--user", "u"],
        "no.json: there is no such file. Check the path.",
    ),
    "a folder as export": (["import", ".", "--user", "u"], "this is a folder. Name one file in it"),
    "an empty log": (["ingest", "empty.json", "--user", "u"], "the file is empty"),
    "no chat": (["ingest", "odd.json", "--user", "u"], "the file has no chat message"),
    "wrong format": (
        ["ingest", "log.json", "--user", "u", "--format", "x"],
        "format 'x' is unknown",
    ),
    "nobody's log": (["ingest", "log.json", "--user", ""], "the user id is empty"),
    "add with an empty id": (["add", "likes/", "x", "--user", "u"], "likes/: the text after the"),
    "a block with no name": (["add", "blocks", "x", "--user", "u"], "needs a name, as in blocks/"),
    "add for a user in bytes": (["add", "likes", "x", "--user", "\udcff"], "not UTF-8 (0xFF)"),
    "import for a user in bytes": (["import", "odd.json", "--user", "\udcff"], "not UTF-8 (0xFF)"),
    "a file as folder": (["ingest", "log.json", "--user", "u", "--path", "file"], "file"),
    "no such table": (
        ["schema", "preferences", "no.py:Food"],
        "no.py: there is no such file; check the path.",
    ),
    "table without class": (["schema", "preferences", "food.py"], "expected FILE.py:Class"),
    "table with an empty class": (["schema", "preferences", "food.py:"], "expected FILE.py:Class"),
    "table without file": (["schema", "preferences", ":Food"], "expected FILE.py:Class"),
    "no such class": (
        ["schema", "preferences", "food.py:Foo"],
        "the file has no class Foo; it has Spicy, Food, Other.",
    ),
    "wrong class": (["schema", "preferences", "food.py:Other"], "Other: has no category"),
    "no class at all": (["schema", "preferences", "food.py:annotations"], "food.py: "),
    "a table that fails": (
        ["schema", "preferences", "broken.py:A"],
        "broken.py:1: running the file failed",
    ),
    "a table that quits": (
        ["schema", "preferences", "quits.py:A"],
        "quits.py:2: running the file failed",
    ),
    "a table that is no Python": (
        ["schema", "preferences", "syntax.py:A"],
        "syntax.py:1: the file is not",
    ),
    "unknown schema format": (["schema", "conversations", "-f", "x"], "unknown format 'x'"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_error_is_one_line_and_exit_code_2(tmp_path, case):
    errors(tmp_path)
    Diary(tmp_path / "ok", durability="process").user("al").upsert_preference("likes", "tea")
    arguments, expected = CASES[case]
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(".\n")
    assert done.stdout == ""
    assert not (tmp_path / "memories").exists()


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_the_command_names_the_install_command(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from tomldiary.__main__ import main; main()"
    )
    done = programs.run("-c", code)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert 'python -m pip install "tomldiary-kit[cli]"' in done.stderr


STOPS = {
    "import": (
        "import sys\n"
        "class Stops:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stops())\n"
    ),
    "parser": (
        "import typer.main\ndef stop(*_): raise KeyboardInterrupt\ntyper.main.get_command = stop\n"
    ),
}


@pytest.mark.parametrize("stage", STOPS)
def test_ctrl_c_before_the_command_ends_without_a_traceback(stage):
    done = programs.run("-c", STOPS[stage] + "from tomldiary.__main__ import main; main()")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def with_output(output, *arguments):
    """Run a program of Python with an output; return its exit code and its error messages."""
    with tempfile.TemporaryFile("w+") as errors:
        streams = (0, output.fileno(), errors.fileno())
        code = programs.start(*arguments, streams=streams).wait()
        errors.seek(0)
        return code, errors.read()


def on_full_disk(*arguments):
    """Run a program of Python with an output that cannot be written."""
    with Path("/dev/full").open("w") as full:
        return with_output(full, *arguments)


@pytest.mark.parametrize("lines", [1, 10_000])
def test_a_closed_pipe_is_not_an_error(memories, lines):
    """The error comes at the end, or at the first line that the buffer cannot hold."""
    Diary(memories).user("alice").blocks.set("plan", "long\n" * lines)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        code, told = with_output(output, "-m", "tomldiary", "show", "alice", "--path", memories)
    assert (code, told) == (1, "")  # docs/cli.md


def test_a_full_disk_under_the_output_is_named_and_what_was_stored_stays(memories):
    line = ["add", "likes", "tea", "--user", "alice", "--path", memories]
    told = "The output could not be written (No space left on device).\n"
    assert on_full_disk("-m", "tomldiary", *line) == (1, told)
    assert "tea" in Diary(memories).user("alice").document("preferences")


def test_an_unbuffered_output_on_a_full_disk_is_reported_once(memories):
    unbuffered = (
        "import io, sys; sys.stdout = io.TextIOWrapper(open(1, 'wb', 0), write_through=True)\n"
        "from tomldiary.__main__ import main; main()"
    )
    told = "The output could not be written (No space left on device).\n"
    assert on_full_disk("-c", unbuffered, "show", "--path", memories) == (1, told)


@pytest.mark.parametrize("command", ["export", "show"])
def test_output_above_the_buffer_is_reported_once_on_a_full_disk(memories, command):
    Diary(memories).user("alice").blocks.set("plan", "long\n" * 10_000)
    told = "The output could not be written (No space left on device).\n"
    line = [command, "--user", "alice", "--path", memories]
    assert on_full_disk("-m", "tomldiary", *line) == (1, told)


@pytest.mark.parametrize(
    ("line", "code"), [(["show", "bob"], 2), (["--nope"], 2), (["history", "--limit", "1"], 0)]
)
def test_an_error_stream_that_cannot_be_written_changes_no_exit_code(memories, line, code):
    with Path("/dev/full").open("w") as full, Path(os.devnull).open("w") as output:
        streams, env = (0, output.fileno(), full.fileno()), {"TOMLDIARY_PATH": str(memories)}
        command = programs.start(
            "-m", "tomldiary", *line, streams=streams, env={**os.environ, **env}
        )
        assert command.wait() == code


@pytest.mark.parametrize(
    ("ending", "code", "told"),
    [
        ("DiaryError('the cause')", 2, ["The output could not be written", "the cause.\n"]),
        ("SystemExit(130)", 130, ["The output could not be written"]),
        ("KeyError('a defect')", 1, ["The output could not be written", "KeyError: 'a defect'"]),
    ],
)
def test_a_failure_is_reported_even_if_the_output_cannot_be_written(ending, code, told):
    program = f"""
from tomldiary.cli import app
from tomldiary.errors import DiaryError

def fails():
    print("the beginning")
    raise {ending}

app.app = fails
app.run()
"""
    found, errors = on_full_disk("-c", program)
    assert found == code
    assert all(each in errors for each in told)


def test_a_terminal_without_unicode_gets_escapes(tmp_path):
    Diary(tmp_path / "m", durability="process").user("zoë").upsert_preference("likes", "crêpes")
    shown = call("show", "--path", tmp_path / "m", check=0, encoding="ascii").stdout
    assert shown == "zo\\xeb\n"


def test_doctor_prints_sentences_and_counts_warnings(memories):
    file = memories / "alice/preferences.toml"
    file.write_text(file.read_text().replace('text = "I love', 'text = 3 # "I love', 1))
    told = call("doctor", "--path", memories, check=1).stdout
    assert "found number. Correct it" in told
    assert told.splitlines()[-1] == "0 problems, 1 warning."


def test_doctor_prints_the_notes_of_a_few_users(tmp_path):
    diary = Diary(tmp_path, agent="rules", durability="none")
    for number in range(25):
        diary.user(f"user {number:02}").upsert_preference("likes", "tea")
    told = call("doctor", "--path", tmp_path, check=0).stdout.splitlines()
    assert [line for line in told if "the last write" in line][-1].split()[1:3] == ["user", "18:"]
    assert told[-2:] == [
        "6 more notes; --json shows all, --user NAME those of one user.",
        "0 problems, 0 warnings.",
    ]
    assert len(json.loads(call("doctor", "--path", tmp_path, "--json", check=0).stdout)) == 26
