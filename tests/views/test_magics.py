"""`%load_ext tomldiary` in a real IPython shell, and progress bars."""

from __future__ import annotations

import asyncio
import atexit
import io
import itertools
import json
import sys
from time import process_time

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from tomldiary import Diary
from tomldiary.ingest import ingest
from tomldiary.user.recall import Hits
from tomldiary.views.progress import reporting


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shell = InteractiveShell()
    shell.history_manager.enabled = False
    shell.run_line_magic("load_ext", "tomldiary")
    yield shell
    shell.history_manager.end_session()
    atexit.unregister(shell.atexit_operations)  # else the end of the run collects garbage for each
    InteractiveShell.clear_instance()


@pytest.fixture
def alice(shell, tmp_path):
    return shell.run_line_magic("diary", f"'{tmp_path / 'm'}' alice")


def test_a_diary_is_opened_and_its_names_are_set(shell, alice, tmp_path):
    assert repr(alice) == "UserDiary('alice')"
    assert shell.user_ns["user"] is alice
    assert isinstance(shell.user_ns["diary"], Diary)
    again = shell.run_line_magic("diary", f"'{tmp_path / 'm'}' bob")
    assert again.diary is alice.diary  # opened once
    assert shell.run_line_magic("diary", "").user_id == "bob"


def test_another_diary_leaves_no_user_of_the_one_before(shell, alice, tmp_path):
    shell.run_line_magic("diary", f"'{tmp_path / 'other'}'")
    assert "user" not in shell.user_ns
    shell.user_ns["user"] = "a variable of the notebook"
    shell.run_line_magic("diary", f"'{tmp_path / 'm'}'")
    assert shell.user_ns["user"] == "a variable of the notebook"


def test_a_relative_folder_is_another_one_in_another_working_directory(
    shell, tmp_path, monkeypatch
):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    shell.run_line_magic("diary", "m alice")
    shell.run_line_magic("remember", "likes: tea")
    monkeypatch.chdir(tmp_path / "sub")
    assert shell.run_line_magic("diary", "m alice").preferences("likes") == {}
    shell.run_line_magic("diary", "memory: alice")
    shell.run_line_magic("remember", "likes: tea")
    monkeypatch.chdir(tmp_path)
    assert len(shell.run_line_magic("diary", "memory: alice").preferences("likes")) == 1


def test_a_removed_current_folder_is_named_and_needs_an_absolute_one(shell, tmp_path, monkeypatch):
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    with pytest.raises(UsageError, match="m: the current folder was removed"):
        shell.run_line_magic("diary", "m")
    assert shell.run_line_magic("diary", f"'{tmp_path / 'm'}' alice").user_id == "alice"


def test_the_names_of_blocks_are_completed(shell, alice):
    alice.blocks.set("persona", "Be kind.")
    shell.push({"blocks": alice.blocks})
    with provisionalcompleter():
        found = [each.text for each in shell.Completer.completions('blocks["', 8)]
    assert "persona" in found


def test_a_text_is_remembered_and_found(shell, alice):
    shell.push({"dark": "light", "roast": "raw"})
    changes = shell.run_line_magic("remember", "I'm allergic to walnuts.")
    assert "allergies/pref001" in repr(changes)
    assert shell.run_line_magic("remember", "likes: $dark {roast} coffee")[0].key == "likes/pref001"
    found = shell.run_line_magic("recall", "roast coffee?")
    assert isinstance(found, Hits)
    assert found[0].text == "$dark {roast} coffee"  # no variable is put in


def test_a_remembered_text_drops_no_conversation_of_a_program_with_another_limit(shell, tmp_path):
    diary = Diary(tmp_path / "m", agent="rules", max_conversations=500)
    with diary.user("alice").transaction() as transaction:
        for number in range(101):
            transaction.add_turn("Hello.", "Hello.", f"session {number}")
    shell.run_line_magic("diary", f"'{tmp_path / 'm'}' alice")
    shell.run_line_magic("remember", "I love tea.")
    assert len(diary.user("alice").conversations()) == 102


@pytest.mark.parametrize("before", ["", "found = ", "x = 1\n", "if True:\n    found = "])
def test_a_question_may_end_with_a_question_mark(shell, alice, before):
    alice.upsert_preference("likes", "walnut cake")
    done = shell.run_cell(f"{before}%recall which cake does she like?")
    found = shell.user_ns["found"] if "found" in before else done.result
    assert [hit.text for hit in found] == ["walnut cake"]
    shell.run_cell("%remember likes: who knows?", silent=True)
    assert "who knows?" in [item.text for item in alice.preferences("likes").values()]


def test_a_cell_with_a_deep_indentation_is_read_quickly(shell):
    began = process_time()
    shell.transform_cell(f"if True:\n{' ' * 80_000}x = 1\n")
    assert process_time() - began < 1


@pytest.mark.parametrize("line", ["%recall?", "alice.recall?", "?alice", "%recall??"])
def test_a_question_mark_behind_a_name_still_asks_for_help(shell, alice, line, monkeypatch):
    asked = []
    monkeypatch.setattr(shell, "_inspect", lambda *arguments, **_: asked.append(arguments))
    shell.run_cell(line, silent=True)
    assert len(asked) == 1


@pytest.mark.parametrize("text", ["I love tea.", "likes: tea", "What is the time?"])
def test_a_cell_that_runs_again_changes_nothing(shell, alice, text, capsys):
    shell.run_line_magic("remember", text)
    before = {name: alice.document(name) for name in alice.documents()}
    number = alice.last_transaction()
    assert shell.run_line_magic("remember", text) is None
    assert "nothing was changed" in capsys.readouterr().out
    assert {name: alice.document(name) for name in alice.documents()} == before
    assert alice.last_transaction() == number


def test_a_removed_text_is_not_said_to_be_stored(shell, alice, capsys):
    shell.run_line_magic("remember", "likes: tea")
    alice.remove_preference("likes", "pref001")
    assert shell.run_line_magic("remember", "likes: tea") is None
    said = capsys.readouterr().out
    assert "stored;" not in said
    assert "user.upsert_preference" in said


def test_a_whole_cell_is_one_turn(shell, alice):
    changes = shell.run_cell_magic("remember", "", "I love tea.\nMy goal is a marathon.\n")
    assert {change.key for change in changes} >= {"likes/pref001", "goals/pref001"}


def test_a_text_without_a_statement_is_said_to_be_none(shell, alice, capsys):
    shell.run_line_magic("remember", "What is the time?")
    assert "%remember likes:" in capsys.readouterr().out


def test_magics_work_inside_a_running_loop(shell, alice):
    async def cell():
        shell.run_line_magic("remember", "I love tea.")
        return shell.run_line_magic("recall", "tea"), await alice.arecall("tea")

    once, awaited = asyncio.run(cell())
    assert once == awaited
    assert type(once) is type(awaited)


@pytest.mark.parametrize(
    ("magic", "line"),
    [("diary", ""), ("diary", "a b c"), ("diary", "m --agent"), ("diary", "m --user x"), ("diary", "'m"),
     ("recall", "tea"), ("remember", "I love tea."), ("recall", " "), ("remember", "")],
)  # fmt: skip
def test_a_wrong_use_is_one_sentence(shell, magic, line):
    with pytest.raises(UsageError):
        shell.run_line_magic(magic, line)


def test_an_error_of_the_diary_is_one_sentence(shell, alice):
    with pytest.raises(UsageError, match="the text is blank"):
        shell.run_line_magic("remember", "likes:")


# Progress


def log_of(path, turns):
    lines = [
        message
        for number in range(turns)
        for message in (
            {"role": "user", "content": f"I love tea number {number}."},
            {"role": "assistant", "content": "ok"},
        )
    ]
    path.write_text(json.dumps(lines))
    return path


def test_an_ingest_reports_each_turn(tmp_path):
    told = []
    log = log_of(tmp_path / "log.json", 3)
    ingest(Diary("memory:", agent="rules"), log, "ann", progress=lambda *step: told.append(step))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_script_without_ipython_shows_no_bar_unless_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", None)
    with reporting(None, "turns") as report:
        assert report is None
    with reporting(False, "turns") as report:
        assert report is None
    with reporting(True, "turns") as report:
        report(1, 2)


def test_a_bar_counts_the_steps_and_is_removed(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    clock = itertools.count(0, 10)  # seconds: a bar appears after one
    monkeypatch.setattr("tqdm.std.time", lambda: next(clock))
    with reporting(True, "turns") as report:
        report(1, 4)
        report(4, 4)
    shown = screen.getvalue()
    assert "turns" in shown
    assert shown.rstrip(" \r") == "" or shown.endswith("\r")


def test_without_tqdm_no_bar_is_shown(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with reporting(True, "turns") as report:
        assert report is None
