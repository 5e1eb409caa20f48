"""The command that copies all users to another storage."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from tomldiary import Diary
from tomldiary.cli.app import app


def test_copy_moves_all_users_and_says_what_it_did(tmp_path):
    source, target = str(tmp_path / "one"), str(tmp_path / "two")
    for user in ("alice", "bob"):
        Diary(source, agent="rules").user(user).upsert_preference("likes", "tea")
    first = CliRunner().invoke(app, ["copy", source, target])
    assert (first.exit_code, first.stdout) == (
        0,
        f"copied 2 users to {target}; 0 users had been copied before\n",
    )
    again = CliRunner().invoke(app, ["copy", source, target, "--json"])
    assert [(each["user"], each["is_new"]) for each in json.loads(again.stdout)] == [
        ("alice", False),
        ("bob", False),
    ]
    assert Diary(target, agent="rules").users() == ["alice", "bob"]


def test_copy_of_a_missing_folder_makes_none(tmp_path):
    run = CliRunner().invoke(app, ["copy", str(tmp_path / "none"), str(tmp_path / "two")])
    assert run.exit_code != 0
    assert not (tmp_path / "two").exists()
