"""Every command: its help, its page, its JSON, its tables on a terminal, and what the shell completes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from pydantic import create_model
from test_cli import on_a_terminal
from typer.testing import CliRunner

import programs
from command_line import ROOT, call, not_done, program
from tomldiary import Diary, MemoryWriter, PreferenceItem, Turn
from tomldiary.cli import output
from tomldiary.cli.app import app
from tomldiary.cli.commands import entries
from tomldiary.cli.mistakes import mistakes
from tomldiary.ingest import KNOWN_FORMATS

PAGE = (ROOT / "docs/cli.md").read_text("utf-8")
LONG = "I love " + " ".join(f"word{number}" for number in range(30))
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def commands(group=None, front=()):
    """Yield each command with its words; of a group, its commands."""
    group = group or typer.main.get_command(app)
    context = typer.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if hasattr(found, "list_commands"):
            yield from commands(found, (*front, name))
        else:
            yield (*front, name), found


COMMANDS = dict(commands())


@pytest.fixture
def memories(tmp_path):
    place = tmp_path / "memories"
    alice = Diary(place, agent="rules", durability="process").user("alice")
    alice.add_turn("I'm allergic to walnuts. I love dark roast.", "Noted.", "s1")
    alice.add_turn("I love dark roast.", "I know.", "s2")
    alice.upsert_preference("likes", LONG, id="long", contexts=["talks"])
    alice.blocks.set("persona", "Be short.\nBe kind.")
    return place


# Help and documentation


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_is_on_the_page(words):
    command = COMMANDS[words]
    assert command.help
    nameless = [each.name for each in command.params if not getattr(each, "help", "")]
    assert nameless == []
    rows = [line for line in PAGE.split("\n") if line.startswith("| `")]
    is_named = any(re.search(rf"`(?:{words[0]} )?{words[-1]}[` ]", row) for row in rows)
    assert is_named, f"add a row for {' '.join(words)} to docs/cli.md"


def test_the_page_names_every_chat_log_format():
    row = next(line for line in PAGE.split("\n") if line.startswith("| `--format` |"))
    assert set(re.findall(r"`([\w-]+)`", row)) == {"--format", "auto", *KNOWN_FORMATS}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_prints_json(words):
    assert "--json" in {name for each in COMMANDS[words].params for name in each.opts}


def documented(command):
    row = next(line for line in PAGE.split("\n") if (line.startswith(f"| `{command}` | ") and "a list of `" in line) or line.startswith(f"| `{command}` | `"))  # fmt: skip
    return set(re.findall(r"`(\w+)`", row.split(" | ", 1)[1].partition("(")[0])) - {"history"}


JSON = {
    "search": ["search", "walnuts", "--user", "alice"],
    "add": ["add", "likes", "tea", "--user", "alice"],
    "history": ["history", "--user", "alice"],
    "history --keep": ["history", "--keep", "1", "--user", "alice"],
    "why": ["why", "likes/long", "--user", "alice"],
    "diff": ["diff", "0", "--user", "alice"],
    "rollback": ["rollback", "--user", "alice"],
    "forget": ["forget", "--everything", "--user", "alice"],
    "stats": ["stats"],
    "export": ["export"],
}


@pytest.mark.parametrize("command", JSON)
def test_json_has_the_documented_keys(memories, command):
    done = call(*JSON[command], "--path", memories, "--json", check=0)
    found = json.loads(done.stdout)
    assert set(found[0] if isinstance(found, list) else found) == documented(command)
    done.stdout.encode("ascii")


def test_users_are_listed_beside_one_that_cannot_be_read(memories):
    Diary(memories).user("bob").upsert_preference("likes", "tea")
    document = memories / "alice/preferences.toml"
    document.unlink()
    document.mkdir()
    done = call("users", "--path", memories, check=1)
    assert done.stdout.startswith("bob  1  ")
    assert str(document) in done.stderr


@pytest.mark.parametrize("command", ["users", "show"])
def test_a_folder_that_cannot_be_read_is_not_taken_for_no_user(tmp_path, caplog, command):
    Diary(tmp_path).user("alice").upsert_preference("likes", "tea")
    (tmp_path / "bob").symlink_to("bob")
    done = call(command, "--path", tmp_path, check=1)
    assert done.stdout.startswith("alice")
    (tmp_path / "alice").rename(tmp_path / ".alice")
    done = call(command, "--path", tmp_path, check=1)
    assert done.stdout == ""
    assert f"{tmp_path}/bob: cannot be read (Too many levels of symbolic links)" in caplog.text


def test_users_keeps_no_document_of_a_user_in_memory(tmp_path):
    for number in range(30):
        folder = tmp_path / f"m/user{number}"
        folder.mkdir(parents=True)
        notes = (f'[blocks.b{each}]\ntext = "{each} {"x" * 100}"\n' for each in range(300))
        (folder / "blocks.toml").write_text("".join(notes))
    call("users", "--path", tmp_path / "m", "--limit", 1, check=0)  # loads the modules
    tracemalloc.start()
    try:
        call("users", "--path", tmp_path / "m", "--json", check=0)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 5_000_000


def test_the_json_of_users_counts_each_kind(memories):
    found = json.loads(call("users", "--path", memories, "--json", check=0).stdout)
    assert [each["user"] for each in found] == ["alice"]
    assert documented("users") <= {*found[0]}
    assert found[0]["entries"] == 6
    assert found[0]["preferences"] == {"likes": 2, "allergies": 1}
    assert found[0]["blocks"] == {"persona": 18}


# Users, defaults, add, stats


def test_the_only_user_and_the_folder_are_the_defaults(memories):
    named = call("history", "--user", "alice", "--path", memories, check=0).stdout
    assert call("history", "--path", memories, check=0).stdout == named
    assert call("history", check=0, cwd=memories.parent).stdout == named
    Diary(memories).user("bob").upsert_preference("likes", "tea")
    refused = call("history", "--path", memories)
    assert refused.returncode == 2
    assert "name one with --user: alice, bob." in refused.stderr
    assert call("history", "--path", memories, check=0, TOMLDIARY_USER="alice").stdout == named
    shown = call("show", "alice", "--path", memories, check=0, TOMLDIARY_USER="bob").stdout
    assert call("show", "--path", memories, check=0, TOMLDIARY_USER="alice").stdout == shown


@pytest.mark.parametrize("line", [["review"], ["review", "accept", "1"], ["consolidate"]])
def test_a_review_and_a_consolidation_take_the_only_user_too(tmp_path, line):
    place = tmp_path / "memories"
    alice = Diary(place, agent="rules", quarantine={"web"}).user("alice")
    alice.upsert_preference("likes", "tea", actor="web")
    done = call(*line, "--json", "--path", place, check=0).stdout
    Diary(place, agent="rules").user("bob").upsert_preference("likes", "tea")
    assert "alice, bob" in call(*line, "--path", place).stderr
    named = call(*line[:1], "--json", "--path", place, check=0, TOMLDIARY_USER="alice").stdout
    assert (named == done) is (len(line) == 1)


def test_several_changes_of_a_new_category_are_accepted_at_once(tmp_path):
    table = create_model("Moods", mood=(dict[str, PreferenceItem], {}))
    alice = Diary(tmp_path, table, agent="rules", quarantine={"web"}).user("alice")
    for text in ("calm", "cheerful"):
        alice.upsert_preference("mood", text, actor="web")
    ids = [each.id for each in alice.review()]
    assert "2 changes accepted" in call("review", "accept", *ids, "--path", tmp_path).stdout
    assert len(alice.preferences("mood")) == 2


def test_a_review_that_is_refused_changes_nothing_and_names_the_option(tmp_path):
    alice = Diary(tmp_path, agent="rules", quarantine={"web"}).user("alice")
    for text, actor in (("jazz", "user"), ("tea", "web"), ("cocoa", "web"), ("soul", "user")):
        alice.upsert_preference("likes", text, id="music", actor=actor)
    edited = call("review", "edit", "2", "3", "--text", "coffee", "--path", tmp_path, check=2)
    assert edited.stderr == "ids: edit changes one text, so it accepts one id.\n"
    assert [each.text for each in alice.review()] == ["tea", "cocoa"]
    refused = call("review", "accept", "2", "--path", tmp_path, check=2)
    assert refused.stderr == "likes/music changed since. Nothing was changed; --force overwrites.\n"
    alice.blocks.set("plan", "x", actor="web:a")
    alice.blocks.set("plan", "y", actor="web:b")
    first, second = (each.id for each in alice.review() if each.document == "blocks")
    refused = call("review", "accept", first, second, "--path", tmp_path, check=2)
    assert f"{first}, {second} are different changes of one entry, blocks/plan." in refused.stderr
    assert "; --force makes all of them" in refused.stderr


def test_history_shows_the_text_of_an_edited_pending_change(tmp_path):
    alice = Diary(tmp_path, agent="rules", quarantine={"web"}).user("alice")
    alice.upsert_preference("likes", "tea", actor="web")
    alice.review.edit("1", {"text": "green tea"})
    shown = call("history", "quarantine/1", "--path", tmp_path, check=0).stdout
    assert "  quarantine/1  text: tea -> green tea\n" in shown


def test_a_terminal_is_told_the_default_user_and_folder(memories):
    line = ["why", "likes/long", "--path", memories]
    assert on_a_terminal(*line).startswith(f"alice in {memories}\n")
    assert "alice in" not in call(*line, check=0).stdout


def test_forget_and_ingest_need_a_named_user(memories):
    for line in (["forget", "--everything"], ["ingest", "chat.json"]):
        assert "--user" in call(*line, "--path", memories).stderr


def test_add_without_any_memory_says_how_to_begin_one(tmp_path):
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.mkdir()
    for folder in (missing, empty):
        done = call("add", "likes", "tea", "--path", str(folder))
        assert done.returncode == 2
        assert "add --user NAME to create one" in done.stderr
    assert not missing.exists()


def test_add_stores_a_preference_or_a_block(memories):
    place = ("--path", memories)
    told = call("add", "likes", "green tea", "--context", "morning", *place, check=0).stdout
    assert told == "stored: likes/pref002 of alice\n"
    call("add", "likes/pref002", "black tea", *place, check=0)
    call("add", "blocks/persona", "Be brief.", *place, check=0)
    alice = Diary(memories).user("alice")
    assert alice.preferences("likes")["pref002"].text == "black tea"
    assert alice.preferences("likes")["pref002"].contexts == ["morning"]
    assert alice.blocks["persona"].text == "Be brief."
    assert {change.actor for change in alice.history(limit=3)} == {"hand"}
    call("add", "goals", "rest", "--user", "new", *place, check=0)
    assert Diary(memories).users() == ["alice", "new"]
    wrong = call("add", "gaols", "rest", "--user", "alice", *place)
    assert (wrong.returncode, "unknown category 'gaols'" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("words", [["users"], ["stats", "--user", "al"]])
def test_sizes_count_the_categories_of_another_table_silently(tmp_path, words):
    (tmp_path / "al").mkdir()
    text = '_meta.schema_name = "Food"\npreferences.tastes.a.text = "hot"\n'
    (tmp_path / "al/preferences.toml").write_text(text)
    done = program(*words, "--path", tmp_path, "--json")
    found = json.loads(done.stdout)
    sizes = found[0] if words == ["users"] else found["user"]
    assert (sizes["preferences"], done.stderr) == ({"tastes": 1}, "")


def test_stats_show_what_a_crash_loses(memories):
    told = call("stats", "--path", memories, "--user", "alice", check=0).stdout
    assert "full; a crash loses no acknowledged write" in told
    assert "allergies 1, likes 2" in told


# Tables


@pytest.fixture
def people(monkeypatch):
    """Let commands print for a terminal of so many columns, in this process."""

    def look(columns):
        for module in (output, entries):
            monkeypatch.setattr(module, "is_terminal", lambda: True, raising=False)
            monkeypatch.setattr(module, "width", lambda: columns, raising=False)

    return look


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("command", ["show", "search word7", "history", "why likes/long", "diff 2", "doctor", "users", "stats"])  # fmt: skip
def test_no_word_is_cut_on_a_terminal(memories, people, command, columns):
    people(columns)
    line = [*command.split(), "--path", memories]
    if command not in {"users", "doctor"}:
        line += ["--user", "alice"]
    shown = COLOUR.sub("", call(*line, check=0 if command != "doctor" else None).stdout)
    lines = shown.split("\n")
    assert max(map(len, lines)) <= columns
    if command.split()[0] in {"show", "search", "history", "why", "diff"}:
        words = re.findall(r"\w+", shown)
        for number in range(30):
            assert f"word{number}" in words
    assert "_meta" not in shown
    assert "_count" not in shown or not command.startswith("diff")


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil\u200b\x9b31m"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u200b]")


def test_tables_show_hostile_text_as_escapes(tmp_path, people):
    people(100)
    eve = Diary(tmp_path / "m", durability="process").user(f"eve{HOSTILE}")
    eve.upsert_preference("likes", f"tea {HOSTILE}", id=f"id{HOSTILE}", contexts=[HOSTILE], session_id=HOSTILE)  # fmt: skip
    eve.blocks.set(f"b{HOSTILE}", f"[red]{HOSTILE}[/red]\nline")
    for line in (["show", eve.user_id], ["search", "tea"], ["history"], ["diff", "0"], ["users"], ["stats", "--user", eve.user_id]):  # fmt: skip
        shown = call(*line, "--path", tmp_path / "m", check=0).stdout
        assert OBEYED.search(COLOUR.sub("", shown)) is None
        assert "evil" in shown
    assert "[red]" in call("show", eve.user_id, "--path", tmp_path / "m", check=0).stdout


def test_only_the_change_of_a_row_of_history_is_coloured(memories, people, monkeypatch):
    people(140)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = call("history", "--user", "alice", "--path", memories, check=0).stdout
    green = re.findall(r"\x1b\[32m([^\x1b]*)", shown)
    assert "+ I love dark roast." in " ".join(green)
    assert "session s1" in shown
    assert not any("session" in each for each in green)


def test_rows_that_are_too_narrow_for_columns_have_heads_as_well(people, capsys):
    people(40)
    columns = (
        output.Column("user"),
        output.Column("entries", is_number=True),
        output.Column("seen"),
    )
    output.print_rows(columns, [("a.rather.long.name@example.com", "8", "2026-11-22 03:11")])
    shown = COLOUR.sub("", capsys.readouterr().out).splitlines()
    assert list(map(str.rstrip, shown)) == [
        "user                            entries", "    seen", "a.rather.long.name@example.com        8", "    2026-11-22 03:11",
    ]  # fmt: skip


def test_no_rows_print_nothing(people, capsys):
    people(80)
    output.print_rows((output.Column("id"), output.Column("text")), [])
    assert capsys.readouterr().out == ""


def test_history_hides_bookkeeping_unless_all_is_given(memories):
    line = ["history", "--user", "alice", "--path", memories]
    every = call(*line, "--all", check=0).stdout
    assert "conversations/s1  + (no text yet)" in every
    shown = call(*line, check=0).stdout
    assert "confirmed 2x" in shown
    for each in ("conversations/", "_turns", "_count", "_updated", "_created"):
        assert each not in shown
    call("rollback", "--steps", "3", "--yes", "--user", "alice", "--path", memories, check=0)
    assert "_count" not in call(*line, check=0).stdout


def test_a_terminal_gets_heads_and_colours_and_a_pipe_neither(memories):
    line = ["diff", "2", "--path", memories]
    shown = on_a_terminal(*line)
    assert "\x1b[32m+" in shown
    assert "\x1b" not in call(*line, check=0).stdout
    assert "entries" in on_a_terminal("users", "--path", memories)
    assert call("users", "--path", memories, check=0).stdout.startswith("alice  6  ")


def test_a_piped_row_does_not_depend_on_the_other_rows(memories):
    alone = call("search", "walnuts", "--path", memories, check=0).stdout
    Diary(memories).user("alice").upsert_preference("likes", "walnuts", id="a-much-longer-key")
    both = call("search", "walnuts", "--path", memories, check=0).stdout
    assert alone.partition("  ")[2].split("\n")[0].partition("  ")[2] in both
    assert "  allergies/pref001  I'm allergic to walnuts.\n" in both


def test_a_search_shows_the_date_of_an_episode(tmp_path):
    Diary(tmp_path).user("alice").episodes.add(
        "a tale of zebras", "", now=datetime(2026, 1, 2, tzinfo=UTC)
    )
    assert "updated 2026-01-02" in call("search", "zebras", "--path", tmp_path, check=0).stdout


def test_changes_of_counters_alone_are_named(memories):
    Diary(memories).user("alice").upsert_preference("likes", id="long")
    told = call("diff", "--path", memories, check=0).stdout
    assert told == "Only counters and times differ; --all shows them.\n"
    assert told == call("history", "conversations/s1", "--path", memories, check=0).stdout
    assert "+_count = 2" in call("diff", "--all", "--path", memories, check=0).stdout


def test_a_dry_run_that_finds_nothing_offers_no_yes_for_it(memories):
    for selector in (["--session", "none"], ["--key", "likes/none"], ["--matching", "none"]):
        told = call("forget", "--user", "alice", *selector, "--path", memories, check=0).stdout
        assert "Add --yes" not in told
        assert "turns that wait or failed" in told
    kept = call("history", "--keep", "1000", "--path", memories, check=0).stdout
    assert kept.startswith("would drop: nothing; ")
    assert "Add --yes" not in kept


def test_a_dry_run_offers_yes_for_a_folder_without_entries(tmp_path):
    Diary(tmp_path).user("alice").upsert_preference("likes", "tea")
    shutil.rmtree(tmp_path / "alice/history")
    (tmp_path / "alice/preferences.toml").write_text("[broken\n")
    told = call("forget", "--user", "alice", "--everything", "--path", tmp_path, check=0).stdout
    assert told.startswith("would forget: 0 entries")
    assert "Add --yes" in told


@pytest.mark.parametrize(
    ("selector", "is_left"), [(["--matching", "jazz"], True), (["--everything"], False)]
)
def test_forget_names_turns_of_a_user_without_a_memory(tmp_path, selector, is_left):
    def refuse(message, *, deps):
        raise ValueError("no")

    with MemoryWriter(Diary(tmp_path, agent=refuse)) as writer:
        for text in ("I love jazz.", "I love tea."):
            writer.submit_nowait(Turn("bob", "s1", text, "Noted."))
    line = ["forget", "--user", "bob", *selector, "--path", tmp_path]
    planned = call(*line, check=0).stdout
    assert planned.startswith("only turns that wait or failed are stored for bob")
    done = call(*line, "--yes", check=0).stdout
    assert f"turns that waited or failed: {'some are left' if is_left else 'all erased'}" in done
    assert [turn["turn"]["user_msg"] for turn in letters(tmp_path)] == ["I love tea."] * is_left
    if not is_left:
        assert call(*line, check=0).stdout.startswith("nothing is stored for bob")


def letters(place):
    return json.loads(call("writer", "list", "--json", "--path", place, check=0).stdout)


def test_an_export_to_a_file_prints_json_with_the_documented_keys(memories, tmp_path):
    file = tmp_path / "alice.json"
    done = call("export", "--output", file, "--path", memories, "--json", check=0)
    told = json.loads(done.stdout)
    assert set(told) == documented("export --output")
    assert told["file"] == str(file)
    assert told["documents"] == list(json.loads(file.read_text())["documents"])


def test_an_export_to_a_dash_is_printed(memories):
    told = call("export", "--output", "-", "--path", memories, check=0).stdout
    assert json.loads(told)["user"] == "alice"


# edit

EDITOR = """
import sys
with open(sys.argv[1], "r+") as steps:
    old, new, *rest = steps.read().split("|")
    steps.seek(0)
    steps.truncate()
    steps.write("|".join(rest))
with open(sys.argv[2], "r+", encoding="utf-8") as file:
    text = file.read()
    assert old in text, text
    file.seek(0)
    file.truncate()
    file.write(text.replace(old, new, 1))
"""


@pytest.fixture
def edit(memories, tmp_path, monkeypatch):
    """Run `edit` with an editor that replaces texts, one at a time; return code, stdout and stderr."""
    (tmp_path / "editor.py").write_text(EDITOR)

    def edited(*steps, answers="", arguments=("preferences",)):
        (tmp_path / "steps").write_text("|".join(steps))
        parts = [sys.executable, tmp_path / "editor.py", tmp_path / "steps"]
        monkeypatch.setenv("VISUAL", shlex.join(map(str, parts)))
        line = ["edit", *arguments, "--path", str(memories)]
        return CliRunner().invoke(app, line, input=answers)

    return edited


def likes(memories):
    return [item.text for item in Diary(memories).user("alice").preferences("likes").values()]


def test_edit_explains_a_mistake_and_opens_the_editor_again(memories, edit):
    done = edit('text = "I love dark', 'text "I love dark', 'text "I', 'text = "I', answers="y\n")
    assert done.exit_code == 0, done.output
    told = done.stdout.split("\n")
    assert re.match(r'preferences\.toml:(\d+):6: expected "=" after a key', told[0])
    number = re.search(r"toml:(\d+)", told[0])[1]
    assert told[1] == f'  {number} | text "I love dark roast."'
    assert told[2] == f"{' ' * (len(number) + 5 + 5)}^"
    assert "Open it again?" in done.stderr
    assert told[-2] == "unchanged: preferences"


def test_the_page_shows_how_a_mistake_is_explained():
    diary = Diary("memory:", agent="rules")
    diary.user("alice").upsert_preference("likes", "I love tea.")
    written = diary.engine.backend.read("alice", "preferences")
    assert written is not None
    text = written.text.replace('text = "I', 'text "I')
    found = mistakes(diary, "preferences", text, "")
    assert [each.problem for each in found] == [""]
    assert f"{found[0].explained}\nOpen it again?" in PAGE


@pytest.mark.parametrize("is_by_hand", [True, False], ids=["by hand", "with edit"])
def test_an_edit_that_takes_an_earlier_one_back_is_stored(memories, edit, is_by_hand):
    path = memories / "alice/preferences.toml"
    first = path.read_text()
    (text, *_) = likes(memories)
    if is_by_hand:
        path.write_text(first.replace(text, "I love tea."))
    else:
        edit(text, "I love tea.")
    assert likes(memories)[0] == "I love tea."
    assert edit("I love tea.", text).exit_code == 0
    assert likes(memories)[0] == text
    Diary(memories).user("alice").upsert_preference("likes", "jazz")
    assert likes(memories)[0] == text
    assert edit("I love", "I love").stdout == "unchanged: preferences\n"


def test_edit_shows_a_mistake_that_is_kept_only_once(memories, edit, caplog):
    done = edit('"I love dark roast."', "3", answers="n\n")
    assert done.exit_code == 0
    shown = done.output + caplog.text  # without a handler of a test, the log is on stderr
    assert shown.count("pref001.text: expected text, found number") == 1
    assert done.stdout.endswith("stored: preferences\n")


def test_edit_keeps_a_text_that_does_not_parse_beside_the_memory(memories, edit):
    before = (memories / "alice/preferences.toml").read_bytes()
    for answers in ("n\n", ""):
        done = edit("[preferences.likes", "[preferences..likes", answers=answers)
        assert "nothing was stored" in str(done.exception)
        assert (memories / "alice/preferences.toml").read_bytes() == before
        kept = Path(re.search(r"The edited text is kept in (.*)\.\n", done.stderr)[1])
        assert "[preferences..likes" in kept.read_text()
        shutil.rmtree(kept.parent)
    assert not [*(memories / "alice").glob(".*edit")]


def test_edit_stores_no_text_that_the_editor_emptied(memories):
    before = (memories / "alice/preferences.toml").read_bytes()
    for emptied in ("", "\n \n"):
        script = f"import sys; open(sys.argv[1], 'w').write({emptied!r})"
        editor = shlex.join([sys.executable, "-c", script])
        done = call("edit", "--path", memories, VISUAL=editor)
        assert done.returncode == 2
        assert "the text is empty, which counts as a failed save" in done.stdout
        assert (memories / "alice/preferences.toml").read_bytes() == before


def test_ctrl_c_at_the_question_stores_nothing_and_keeps_the_text(memories, tmp_path):
    pty = pytest.importorskip("pty")
    before = (memories / "alice/preferences.toml").read_bytes()
    script = (
        "import pathlib, sys; file = pathlib.Path(sys.argv[1]);"
        " file.write_text(file.read_text().replace('\"I love dark roast.\"', '3'))"
    )
    master, slave = pty.openpty()
    # Where the tests run in the background of a shell, processes ignore the signal unless they say otherwise.
    program = (
        "import runpy, signal, tempfile; signal.signal(signal.SIGINT, signal.default_int_handler);"
        f" tempfile.tempdir = {str(tmp_path)!r};"
        " runpy.run_module('tomldiary', run_name='__main__', alter_sys=True)"
    )
    line = ["-c", program, "edit", "--path", memories]
    editor = {"VISUAL": shlex.join([sys.executable, "-c", script])}
    told = b""
    child = programs.start(*line, streams=(slave, slave, slave), env=os.environ | editor)
    os.close(slave)
    while b"Open it again?" not in told:
        told += os.read(master, 65536)
    for _ in range(20):  # a signal just before the child begins to read has no effect
        os.kill(child.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(10)  # a second signal would interrupt its end
            break
    with suppress(OSError):  # all is read
        while more := os.read(master, 65536):
            told += more
    os.close(master)
    assert child.returncode == 130
    assert b"preferences.likes.pref001.text: expected text, found number" in b" ".join(told.split())
    [kept] = tmp_path.glob("tomldiary-*/preferences.toml")
    assert "text = 3" in kept.read_text()
    # The terminal may have split the path between lines.
    named = "".join(f"The edited text is kept in {kept}".split())
    assert os.fsencode(named) in b"".join(told.split())
    assert (memories / "alice/preferences.toml").read_bytes() == before


def test_edit_says_on_a_terminal_that_an_editor_must_wait(memories):
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    line = ["-m", "tomldiary", "edit", "--path", memories]
    child = programs.start(*line, streams=(0, slave, slave), env=os.environ | {"VISUAL": "true"})
    os.close(slave)
    told = b""
    with suppress(OSError):  # all is read
        while more := os.read(master, 65536):
            told += more
    os.close(master)
    assert child.wait() == 0
    assert b"EDITOR='code --wait'" in told
    assert b"unchanged: preferences" in told


@pytest.mark.parametrize(
    ("encoding", "place", "message"),
    [
        ("latin-1", r"\d+:\d+", "the byte 0xe9 is not UTF-8"),
        ("utf-16", "1:1", "UTF-16 is not UTF-8"),
    ],
)
def test_edit_names_the_place_of_what_is_not_utf_8(memories, encoding, place, message):
    before = (memories / "alice/preferences.toml").read_bytes()
    script = (
        "import pathlib, sys; file = pathlib.Path(sys.argv[1]);"
        f" file.write_text(file.read_text() + '# café', encoding={encoding!r})"
    )
    done = call("edit", "--path", memories, VISUAL=shlex.join([sys.executable, "-c", script]))
    assert done.returncode == 2, done.stderr
    assert re.match(rf"preferences\.toml:{place}: {message}\. Save the file as", done.stdout)
    assert (memories / "alice/preferences.toml").read_bytes() == before


def test_edit_keeps_bytes_that_are_not_utf_8_until_they_are_saved_as_utf_8(memories):
    file = memories / "alice/preferences.toml"
    file.write_bytes(file.read_bytes().replace(b"dark roast", b"caf\xe9"))
    before = file.read_bytes()

    def editor(old, new):
        script = "import pathlib, sys; file = pathlib.Path(sys.argv[1]);"
        script += f"file.write_bytes(file.read_bytes().replace({old!r}, {new!r}))"
        return shlex.join([sys.executable, "-c", script])

    done = call("edit", "--path", memories, VISUAL=editor(b"walnuts", b"hazelnuts"))
    assert done.returncode == 2
    assert "the byte 0xe9 is not UTF-8. Save the file as UTF-8." in done.stdout
    [kept] = re.findall(r"kept in (.+)\.\n", done.stderr)
    assert Path(kept).read_bytes() == before.replace(b"walnuts", b"hazelnuts")
    assert file.read_bytes() == before
    done = call("edit", "--path", memories, VISUAL=editor(b"\xe9", "\u00e9".encode()))
    assert (done.returncode, done.stdout) == (0, "stored: preferences\n")
    assert Diary(memories).user("alice").preferences("likes")["pref001"].text == "I love caf\u00e9."


@pytest.mark.parametrize("mistake", [b'= "', b'= = "', b'= "\xe9'], ids=["none", "TOML", "UTF-8"])
def test_edit_overwrites_no_mistake_that_another_program_saved_meanwhile(memories, mistake):
    file = memories / "alice/preferences.toml"
    file.write_bytes(file.read_bytes().replace(b'= "I love dark', mistake + b"I love dark"))
    script = f"import pathlib, sys; file = pathlib.Path(sys.argv[1]); other = pathlib.Path({str(file)!r});"
    script += "other.write_bytes(other.read_bytes().replace(b'I love dark', b'\\xff'));"
    script += f"file.write_bytes(file.read_bytes().replace({mistake!r}, b'= \"') + b'# mine')"
    done = call("edit", "--path", memories, VISUAL=shlex.join([sys.executable, "-c", script]))
    assert done.returncode == 2
    assert "saved a text with a mistake meanwhile, which this edit would overwrite" in done.stderr
    assert b"\xff" in file.read_bytes()


def test_edit_names_the_line_of_a_field_that_does_not_fit(memories, edit):
    done = edit('text = "I love dark roast."', "text = 3", answers="n\n")
    text = (memories / "alice/preferences.toml").read_text()
    number = text[: text.index("text = 3")].count("\n") + 1
    assert f"preferences.toml:{number}: preferences.likes.pref001.text: " in done.stdout
    assert f"  {number} | text = 3\n" in done.stdout
    assert "stored: preferences" in done.stdout


def test_edit_stores_no_text_of_a_newer_version(memories, edit):
    done = edit('version = "0.3"', 'version = "9.0"', answers="n\n")
    assert done.exit_code != 0
    assert 'version = "0.3"' in (memories / "alice/preferences.toml").read_text()


def test_edit_names_the_line_of_a_misspelt_category(memories, edit):
    done = edit("[preferences.likes", "# mine\n[preferences.lieks", answers="n\n")
    text = (memories / "alice/preferences.toml").read_text()
    number = text[: text.index("[preferences.lieks")].count("\n") + 1
    assert f"preferences.toml:{number}: preferences.lieks: " in done.stdout
    assert f"  {number} | [preferences.lieks.pref001]\n" in done.stdout


def edit_while(memories, change):
    """Edit a text, and change the memory while the editor is open; return what the command did."""
    opened, editor = memories.parent / "opened", memories.parent / "editor"
    os.mkfifo(opened)
    editor.write_text(
        f"#!/bin/sh\ncat {shlex.quote(str(opened))}\n"
        'text=$(sed "s/dark roast/light roast/" "$1")\nprintf "%s\\n" "$text" >"$1"\n'
    )
    editor.chmod(0o700)

    def changes():
        with opened.open("w"):  # returns once the editor reads it, and ends that
            change()

    other = threading.Thread(target=changes)
    other.start()
    done = CliRunner(env={"VISUAL": shlex.quote(str(editor))}).invoke(
        app, ["edit", "--path", str(memories), "--json"]
    )
    reader = os.open(opened, os.O_RDONLY | os.O_NONBLOCK)  # for a command that opened no editor
    other.join()
    os.close(reader)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_edit_keeps_what_an_agent_wrote_meanwhile(memories):
    alice = Diary(memories).user("alice")
    edit_while(memories, lambda: alice.upsert_preference("likes", "late tea"))
    assert {"I love light roast.", "late tea"} <= {*likes(memories)}


@pytest.mark.parametrize("other", ["agent", "person"])
def test_edit_says_what_another_writer_changed_meanwhile(memories, other):
    file = memories / "alice/preferences.toml"

    def change():
        if other == "agent":
            Diary(memories).user("alice").upsert_preference("likes", "mocha", id="pref001")
        else:
            file.write_text(file.read_text().replace("I love dark roast.", "mocha"))

    [problem] = edit_while(memories, change)["problems"]
    assert problem.startswith("preferences.likes.pref001: another writer also changed it")
    assert "I love light roast." in likes(memories)
    changes = Diary(memories).user("alice").history("likes/pref001")
    assert changes[0].before["text"] == "mocha"


def test_ctrl_c_in_the_editor_ends_neither_the_editor_nor_the_command(memories, tmp_path):
    script = tmp_path / "interrupts.py"
    script.write_text(
        "import os, signal, sys\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "file = sys.argv[1]; text = open(file).read()\n"
        "open(file, 'w').write(text.replace('dark roast', 'light roast'))\n"
    )
    done = program("edit", "--path", memories, VISUAL=shlex.join([sys.executable, str(script)]))
    assert done.stdout == "stored: preferences\n"
    assert "I love light roast." in likes(memories)


def test_a_document_that_is_too_large_is_not_opened_in_an_editor(memories):
    with (memories / "alice/preferences.toml").open("r+b") as file:
        file.truncate(17 << 20)
    done = call("edit", "--path", memories, VISUAL="no-such-editor", check=2)
    assert "larger than 16384 KiB" in done.stderr
    assert "no-such-editor" not in done.stderr


@pytest.mark.parametrize(("editor", "says"), [("'", "is not a valid command"), ("false", "the editor ended with code 1"), ("rm", "rm: the editor removed the text; nothing was stored."), ("no-such-editor", "no-such-editor: the editor cannot be started (No such file or directory); nothing was stored. Set $EDITOR")])  # fmt: skip
def test_an_editor_that_fails_stores_nothing(memories, editor, says):
    before = (memories / "alice/preferences.toml").read_bytes()
    done = call("edit", "--path", memories, VISUAL=editor)
    assert (done.returncode, says in done.stderr) == (2, True)
    assert (memories / "alice/preferences.toml").read_bytes() == before


def test_the_text_of_an_editor_that_fails_after_saving_is_kept(memories, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = tmp_path / "crashing"
    script.write_text("#!/bin/sh\necho '# an hour of work' >> \"$1\"; kill -9 $$\n")
    script.chmod(0o700)
    done = call("edit", "--path", memories, VISUAL=shlex.quote(str(script)))
    [kept] = tmp_path.glob("tomldiary-*/preferences.toml")
    assert f"The edited text is kept in {kept}." in done.stderr
    assert "# an hour of work" in kept.read_text()
    assert "# an hour of work" not in (memories / "alice/preferences.toml").read_text()
    assert call("edit", "--path", memories, VISUAL="false").returncode == 2
    assert [*tmp_path.glob("tomldiary-*/preferences.toml")] == [kept]


def test_piped_help_and_usage_errors_have_no_frames(memories):
    for line in (["--help"], ["show", "--help"], ["writer", "list", "--help"], ["show", "--nonsense"], ["forget"]):  # fmt: skip
        done = call(*line)
        assert "\u256d" not in done.stdout + done.stderr
        assert "Usage: " in done.stdout + done.stderr


def test_edit_as_json_says_whether_it_changed(memories, edit):
    done = edit("dark", "light", arguments=("preferences", "--json"))
    assert json.loads(done.stdout) == {"document": "preferences", "is_changed": True, "problems": []}  # fmt: skip


# Completion


def completed(line, **environment):
    """Return what bash is offered for the last word of a line."""
    asked = {
        "_TOMLDIARY_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    done = call(**asked, **environment)
    assert done.stderr == ""
    return done.stdout.split("\n")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tomldiary his", "history"),
        ("tomldiary show al", "alice"),
        ("tomldiary history --user al", "alice"),
        ("tomldiary why likes/lo", "likes/long"),
        ("tomldiary why --user alice blocks/", "blocks/persona"),
        ("tomldiary show alice --category aller", "allergies"),
        ("tomldiary edit bl", "blocks"),
        ("tomldiary forget --key likes/lo", "likes/long"),
    ],
)
def test_the_shell_completes_users_categories_and_keys(memories, line, offered):
    if "alice" in line:
        Diary(memories).user("bob").upsert_preference("likes", "tea")
    assert offered in completed(line, TOMLDIARY_PATH=str(memories))


def test_nothing_that_a_shell_would_run_is_completed(memories):
    diary = Diary(memories)
    names = [
        "a$(id)",
        "a`id`",
        "a;id",
        r"a\$(id)",
        "a b",
        "a'b",
        "a*",
        "a\nb",
        "a\u202eb",
        "a|b",
        "a>b",
    ]
    for name in names:
        diary.user(name).upsert_preference("likes", "tea", id=name.replace("\n", " "))
    offered = completed("tomldiary show --user a", TOMLDIARY_PATH=str(memories))
    assert [name for name in offered if name] == ["alice"]
    line = "tomldiary why --user a;id likes/"
    assert [key for key in completed(line, TOMLDIARY_PATH=str(memories)) if key] == []
    diary.user("anné@example.org").upsert_preference("likes", "tea")
    assert "anné@example.org" in completed("tomldiary show --user a", TOMLDIARY_PATH=str(memories))


def test_a_completion_offers_at_most_500_keys(tmp_path):
    (tmp_path / "alice").mkdir()
    tables = (f'[preferences.likes.p{number}]\ntext = "x"\n' for number in range(600))
    (tmp_path / "alice/preferences.toml").write_text("".join(tables))
    offered = completed("tomldiary why likes/", TOMLDIARY_PATH=str(tmp_path))
    assert len([key for key in offered if key]) == 500


def test_a_completion_without_a_memory_is_empty(tmp_path):
    assert completed("tomldiary why x", TOMLDIARY_PATH=str(tmp_path / "none")) == ["", ""]


def test_the_completion_script_is_printed():
    for shell in ("bash", "zsh", "fish"):
        script = call("completion", shell, check=0).stdout
        assert "_TOMLDIARY_COMPLETE" in script
        assert "complete" in script
    assert call("completion", "tcsh").returncode == 2


# import --from

PEERS = ROOT / "tests/importers/peers"


def test_import_from_is_a_dry_run_without_yes(tmp_path):
    line = ["import", PEERS / "mem0.json", "--from", "mem0", "--user", "alice", "--path", tmp_path / "m"]  # fmt: skip
    for more in ([], ["--dry-run"], ["--yes", "--dry-run"]):
        told = call(*line, *more, check=0).stdout
        assert "would add      4\n" in told
        assert told.endswith(f"{not_done(more)}\n")
        assert not (tmp_path / "m").exists()
    assert "added          4\n" in call(*line, "--yes", check=0).stdout
    again = json.loads(call(*line, "--yes", "--json", check=0).stdout)
    assert set(again) == documented("import --from")
    assert (again["added"], len(again["present"]), again["is_done"]) == ([], 4, True)


@pytest.mark.parametrize("is_piped", [False, True])
@pytest.mark.parametrize(("source", "added"), [("mem0", 4), ("letta", 2), ("langgraph-store", 1)])
def test_import_from_reads_standard_input_for_a_hyphen(tmp_path, source, added, is_piped):
    item = {"namespace": ["alice", "trips"], "key": "k", "value": {"to": "Porto"}}
    (tmp_path / "items.json").write_text(json.dumps([item]))
    files = {"mem0": PEERS / "mem0.json", "letta": PEERS / "letta.af"}
    file = files.get(source, tmp_path / "items.json")
    words = ["import", "-", "--from", source, "--user", "alice", "--path", tmp_path / "m", "--yes"]
    with file.open("rb") as opened:
        given = {"input": file.read_bytes()} if is_piped else {"stdin": opened}
        line = [sys.executable, "-m", "tomldiary", *words]
        done = subprocess.run(line, check=True, capture_output=True, **given)
    assert f"added          {added}\n" in done.stdout.decode()


def test_import_from_a_file_whose_name_counts_refuses_standard_input(tmp_path):
    words = ["--from", "claude-md", "--user", "alice", "--path", tmp_path / "m"]
    assert "-: name the file, because its name" in call("import", "-", *words, check=2).stderr


@pytest.mark.parametrize("more", [[], ["--yes"], ["--yes", "--json"]], ids="".join)
def test_import_from_a_file_of_another_program_says_that_it_found_nothing(tmp_path, more):
    line = ["import", PEERS / "letta.af", "--from", "mem0", "--user", "alice", "--path", tmp_path / "m"]  # fmt: skip
    done = call(*line, *more, check=1)
    assert done.stderr == (
        f"{PEERS / 'letta.af'}: nothing of mem0 was found in it, and nothing was imported. Check the file and --from.\n"
    )
    if "--json" in more:
        assert json.loads(done.stdout)["found"] == {}
    else:
        assert done.stdout.startswith("found          nothing\n")


def test_import_from_accepts_more_than_a_diary_and_says_so(tmp_path):
    records = [{"id": str(n), "memory": f"word{n} alone{n}"} for n in range(130)]
    (tmp_path / "m.json").write_text(json.dumps(records))
    line = ["import", tmp_path / "m.json", "--from", "mem0", "--user", "alice", "--path", tmp_path / "m"]  # fmt: skip
    told = call(*line, "--yes", check=0).stdout
    assert "biography has 130 entries" in told
    assert "  + 110 more" in told


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--from", "mem1"], "unknown source. Use one of: mem0"),
        (["--from", "mem0", "--replace"], "--replace: is only valid for exports"),
        (["--category", "likes"], "--category: is only valid with --from"),
        (["--from", "memstate", "--singleton", "x"], "expected TYPE=FIELD"),
        (["--from", "memstate", "--singleton", "=x"], "expected TYPE=FIELD"),
        (["--from", "mem0", "--category", "gaols"], "unknown category 'gaols'"),
    ],
)
def test_import_from_names_what_does_not_fit(tmp_path, more, says):
    done = call("import", PEERS / "mem0.json", "--user", "alice", "--path", tmp_path / "m", *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert not (tmp_path / "m").exists()
