"""The command that copies all users to another storage."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import programs
from command_line import call
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.backends import LocalBackend
from tomldiary.cli.app import app
from tomldiary.errors import BackendError
from tomldiary.storage.copy import copy_users


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


def test_copy_goes_on_after_a_user_who_differs(tmp_path):
    source, target = str(tmp_path / "one"), str(tmp_path / "two")
    for user in ("alice", "bob", "carol", "dave"):
        Diary(source, agent="rules").user(user).upsert_preference("likes", "tea")
    for user in ("alice", "carol"):
        Diary(target, agent="rules").user(user).upsert_preference("likes", "milk")
    run = CliRunner().invoke(app, ["copy", source, target])
    assert run.exit_code == 1
    assert run.stdout == f"copied 2 users to {target}; 0 users had been copied before\n"
    assert "2 users were not copied: 'alice', 'carol'. " in str(run.exception)
    assert "the memory of 'alice' differs" in str(run.exception)
    assert Diary(target, agent="rules").users() == ["alice", "bob", "carol", "dave"]
    [left] = Diary(target, agent="rules").user("carol").preferences("likes").values()
    assert left.text == "milk"


def fail(message, *, deps):
    raise ValueError(message)


def test_copy_names_the_users_whose_turns_wait_or_failed(tmp_path):
    source = Diary(tmp_path / "one", agent="rules")
    source.user("alice").upsert_preference("likes", "tea")
    run = CliRunner().invoke(app, ["copy", str(tmp_path / "one"), str(tmp_path / "two")])
    assert run.stderr == ""
    kill = (
        "import os, sys, time\n"
        "from tomldiary import Diary, MemoryWriter, Turn\n"
        "slow = lambda message, deps: time.sleep(60)\n"
        "writer = MemoryWriter(Diary(sys.argv[1], agent=slow))\n"
        "writer.submit_nowait(Turn('bob', 's', 'I love jazz.', 'Noted.')).wait_stored(30)\n"
        "os._exit(0)\n"
    )
    programs.run("-c", kill, tmp_path / "one", check=True)
    with MemoryWriter(Diary(tmp_path / "one", agent=fail)) as writer:
        writer.submit_nowait(Turn("carol", "s", "tea", "ok"))
    run = CliRunner().invoke(app, ["copy", str(tmp_path / "one"), str(tmp_path / "two"), "--json"])
    assert run.exit_code == 0
    assert run.stderr.startswith("turns that wait or failed are not copied: those of bob, carol.")
    assert [each["user"] for each in json.loads(run.stdout)] == ["alice"]


def test_copy_of_a_missing_folder_makes_none(tmp_path):
    run = CliRunner().invoke(app, ["copy", str(tmp_path / "none"), str(tmp_path / "two")])
    assert "there is no such folder; name the folder to copy" in str(run.exception)
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("folder", [".", ".tomldiary/locks"])
def test_a_source_without_users_is_refused(tmp_path, folder):
    """The mount point of a disk that is not mounted, for instance, also after a copy that was interrupted by that."""
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    run = CliRunner().invoke(app, ["copy", str(tmp_path), str(tmp_path.with_name("two"))])
    assert (run.exit_code, run.stdout) == (1, "")
    assert "has no users to copy. Check the address" in str(run.exception)


def test_a_copy_names_the_users_whose_files_disappear_meanwhile(tmp_path):
    source, target = LocalBackend(tmp_path / "one"), LocalBackend(tmp_path / "two")
    users = [Diary(source, agent="rules").user(name) for name in ("alice", "bob", "carol", "dave")]
    for user in users:
        user.upsert_preference("likes", "tea")
    copying = copy_users(source, target)
    next(copying)
    users[1].forget(everything=True)
    users[3].remove_preference("likes", "pref001")
    (tmp_path / "one/dave/preferences.toml").unlink()
    shutil.rmtree(tmp_path / "one/alice")
    shutil.rmtree(tmp_path / "one/carol")
    with pytest.raises(
        BackendError, match="memory of 'alice', 'carol' disappeared during the copy"
    ):
        list(copying)


def test_a_copy_of_a_folder_to_itself_is_refused_at_once(tmp_path):
    source = tmp_path / "one"
    Diary(source, agent="rules").user("alice").upsert_preference("likes", "tea")
    run = CliRunner().invoke(app, ["copy", str(source), str(tmp_path / "x" / ".." / "one")])
    assert "is the source folder" in str(run.exception)


@pytest.mark.parametrize(
    ("source", "target"), [("one", "one/backup"), ("one", "one/alice/x"), ("two/one", "two")]
)
def test_a_copy_into_the_source_or_around_it_is_refused(tmp_path, source, target):
    Diary(tmp_path / source, agent="rules").user("alice").upsert_preference("likes", "tea")
    run = CliRunner().invoke(app, ["copy", str(tmp_path / source), str(tmp_path / target)])
    assert "one is inside the other" in str(run.exception)
    assert Diary(tmp_path / source, agent="rules").users() == ["alice"]


@pytest.mark.parametrize(
    "command",
    ["copy {} memory:", "copy memory: {}", "add likes tea --user alice --path memory:",
     "import {}/export.json --user alice --path memory:", "demo --path memory:"],
)  # fmt: skip
def test_a_command_refuses_a_memory_that_ends_with_it(tmp_path, command):
    alice = Diary(tmp_path / "one", agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    line = [part.format(tmp_path / "one") for part in command.split()]
    run = CliRunner().invoke(app, line)
    assert str(run.exception).startswith('"memory:" is lost when this command ends;')


def test_the_demo_refuses_a_database_without_showing_its_password(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app, ["demo", "--path", "postgresql://alice:secret@localhost/x"])
    assert "the demo needs a folder" in str(run.exception)
    assert "secret" not in f"{run.exception}{run.output}"
    assert not [*tmp_path.iterdir()]


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" || exit 77
"$2" -c '
import sys
from tomldiary.cli.app import app
for each in ("whole", "without locks"):
    app(["copy", f"{sys.argv[1]}/{each}", f"{sys.argv[2]}/{each}"], standalone_mode=False)
' "$1" "$3"
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs a mount of its own")
def test_a_read_only_folder_is_copied(tmp_path):
    """A backup, for instance, which may be without the folder of the locks."""
    source, target = tmp_path / "source", tmp_path / "target"
    folders = [source / "whole", source / "without locks"]
    for folder in folders:
        Diary(folder, agent="rules").user("alice").upsert_preference("likes", "tea")
    shutil.rmtree(folders[1] / ".tomldiary")
    shell = ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", source, sys.executable, target]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"no mount is allowed here: {done.stderr}")
    assert (done.returncode, done.stderr) == (0, "")
    for folder in folders:
        copied = Diary(target / folder.name, agent="rules").user("alice")
        assert len(copied.preferences("likes")) == 1, folder.name


def test_an_altered_record_is_copied_as_it_is(tmp_path):
    source, target = tmp_path / "one", tmp_path / "two"
    alice = Diary(source, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    alice.upsert_preference("likes", "coffee")
    [segment] = (source / "alice/history").iterdir()
    segment.write_text(segment.read_text().replace('check = "', '# check = "', 1))
    assert CliRunner().invoke(app, ["copy", str(source), str(target)]).exit_code == 0
    [copy] = (target / "alice/history").iterdir()
    assert "# check = " in copy.read_text()


def test_one_user_is_restored_from_a_copy_and_the_restore_can_be_undone(tmp_path):
    memories, backup, file = tmp_path / "m", tmp_path / "backup" / "1", tmp_path / "alice.json"
    alice = Diary(memories, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    call("copy", memories, backup, check=0)
    alice.upsert_preference("likes", "coffee")
    call("export", "--user", "alice", "--path", backup, "--output", file, check=0)
    line = ("--user", "alice", "--path", memories, "--yes")
    call("import", file, "--replace", *line, check=0)
    assert [item.text for item in alice.preferences("likes").values()] == ["tea"]
    call("rollback", *line, check=0)
    assert [item.text for item in alice.preferences("likes").values()] == ["tea", "coffee"]
