"""People edit documents of a database with `edit`, `pull` and `push`; nothing written meanwhile is lost."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from tomldiary import Diary
from tomldiary.cli.app import app


@pytest.fixture
def alice(opened):
    memory = Diary(opened(), agent="rules").user("alice")
    memory.upsert_preference("likes", "tea")
    return memory


def run(engine, *arguments):
    return CliRunner().invoke(app, [*arguments, "--path", engine.url])


def texts(memory):
    return [item.text for item in memory.preferences("likes").values()]


def test_a_pushed_edit_is_merged_with_what_was_written_meanwhile(engine, alice, tmp_path):
    assert run(engine, "pull", str(tmp_path)).stdout == f"wrote 1 document to {tmp_path}\n"
    alice.upsert_preference("likes", "coffee")
    file = tmp_path / "alice" / "preferences.toml"
    file.write_text(file.read_text().replace('"tea"', '"green tea"  # from Uji'))
    assert run(engine, "push", str(tmp_path)).stdout == "stored 1 edited document\n"
    assert texts(alice) == ["green tea", "coffee"]
    assert "# from Uji" in alice.document("preferences")
    alice.upsert_preference("likes", "water")
    assert [entry.type for entry in alice.history(limit=9)][:2] == ["upsert", "hand"]


def test_a_file_that_was_only_pulled_changes_nothing(engine, alice, tmp_path):
    run(engine, "pull", str(tmp_path))
    alice.upsert_preference("likes", "coffee")
    assert run(engine, "push", str(tmp_path)).stdout == "stored 0 edited documents\n"
    assert texts(alice) == ["tea", "coffee"]


def test_push_stores_nothing_if_one_file_is_broken(engine, alice, tmp_path):
    run(engine, "pull", str(tmp_path))
    file = tmp_path / "alice" / "preferences.toml"
    file.write_text(file.read_text().replace('"tea"', '"green tea"'))
    (tmp_path / "alice" / "blocks.toml").write_text("[blocks.x\n")
    done = run(engine, "push", str(tmp_path))
    assert done.exit_code != 0
    assert "blocks.toml:1" in str(done.exception)
    assert texts(alice) == ["tea"]


def test_edit_opens_the_editor_again_after_a_mistake(engine, alice, tmp_path, monkeypatch):
    script = tmp_path / "editor.py"
    script.write_text(
        "import pathlib, sys\n"
        "file = pathlib.Path(sys.argv[1])\n"
        "text = file.read_text()\n"
        "broken = text.replace('\"tea\"', '\"tea')\n"
        "file.write_text(broken if broken != text else text.replace('\"tea', '\"black tea\"'))\n"
    )
    monkeypatch.setenv("VISUAL", f"{sys.executable} {script}")
    arguments = ["edit", "preferences", "--user", "alice", "--path", engine.url]
    done = CliRunner().invoke(app, arguments, input="y\n")
    assert done.exit_code == 0, done.output
    assert "preferences.toml:" in done.stdout
    assert texts(alice) == ["black tea"]


def test_edit_of_a_folder_opens_the_file_itself(tmp_path, monkeypatch):
    memory = Diary(tmp_path / "memories", agent="rules").user("alice")
    memory.upsert_preference("likes", "tea")
    monkeypatch.setenv("VISUAL", "sed -i s/tea/coffee/")
    arguments = ["edit", "preferences", "--user", "alice", "--path", str(tmp_path / "memories")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert texts(memory) == ["coffee"]
