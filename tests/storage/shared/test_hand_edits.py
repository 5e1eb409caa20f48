"""People edit documents of a database with `edit`, `pull` and `push`; nothing written meanwhile is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import engines
from engines import one_server  # noqa: F401 - the fixture `engine` of this module
from tomldiary import Diary, Forgotten
from tomldiary.cli.app import app
from tomldiary.cli.commands import edit
from tomldiary.errors import IdentifierError, RevisionConflict
from tomldiary.identifiers.user_ids import encode_folder
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.store.operations import Put
from tomldiary.store.store import ItemStore

KILLED_PULL = """
import os, signal, sys
from pathlib import Path
from typer.testing import CliRunner
from tomldiary import Diary
from tomldiary.cli.app import app

folder, url, moment = sys.argv[1:]

def kill_at(owner, name):
    function = getattr(owner, name)

    def call(path, *arguments, **options):
        if "bob" in path.parts or path.name == "bob":
            os.kill(os.getpid(), signal.SIGKILL)
        return function(path, *arguments, **options)

    setattr(owner, name, call)

def pull():
    CliRunner().invoke(app, ["pull", folder, "--path", url])

if moment == "staged":  # the text is written, and does not replace the file
    kill_at(os, "utime")
else:  # the file of an erased user is removed, its folder is not
    pull()
    Diary(url).user("bob").forget(everything=True)
    kill_at(Path, "rmdir")
pull()
"""
"""Pulls from a database to a folder, and ends its process at a moment."""


@pytest.fixture
def alice(opened):
    memory = Diary(opened(), agent="rules").user("alice")
    memory.upsert_preference("likes", "tea")
    return memory


def run(engine, *arguments):
    return CliRunner().invoke(app, [*arguments, "--path", engine.url])


def after_each(monkeypatch, owner, name, act):
    """Run `act` after each call of a function of a module or class."""
    function = getattr(owner, name)

    def call(*arguments):
        result = function(*arguments)
        act()
        return result

    monkeypatch.setattr(owner, name, call)


def texts(memory):
    return [item.text for item in memory.preferences("likes").values()]


@engines.on_each_server
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


def test_a_push_lists_all_users_for_the_name_of_a_hash_only(engine, alice, tmp_path, monkeypatch):
    run(engine, "pull", str(tmp_path))
    file = tmp_path / "alice" / "preferences.toml"
    file.write_text(file.read_text().replace('"tea"', '"milk"'))
    listings = []
    after_each(monkeypatch, SharedBackend, "users", lambda: listings.append(1))
    assert run(engine, "push", str(tmp_path)).stdout == "stored 1 edited document\n"
    assert (texts(alice), listings) == (["milk"], [])


@engines.on_each_server
def test_an_edit_of_another_version_than_the_stored_one_is_refused(alice, opened):
    text = alice.document("preferences")
    with pytest.raises(RevisionConflict):
        opened().save_edit("alice", "preferences", text.replace("tea", "milk"), version=None)
    assert texts(alice) == ["tea"]


@pytest.mark.parametrize("meanwhile", [["coffee"], []], ids=["after a write", "alone"])
def test_an_edit_that_takes_a_pushed_one_back_is_stored(engine, alice, tmp_path, meanwhile):
    run(engine, "pull", str(tmp_path))
    file = tmp_path / "alice" / "preferences.toml"
    for text in meanwhile:
        alice.upsert_preference("likes", text)
    for old, new in (("tea", "juice"), ("juice", "tea")):
        file.write_text(file.read_text().replace(f'"{old}"', f'"{new}"'))
        assert run(engine, "push", str(tmp_path)).stdout == "stored 1 edited document\n"
        assert texts(alice) == [new, *meanwhile]
    pulled, stored = (
        re.sub("seq = [0-9]+", "", each)
        for each in (file.read_text(), alice.document("preferences"))
    )
    assert pulled == stored


@pytest.mark.parametrize("user", ["preferences.toml", "中" * 200])
def test_a_user_with_an_unusual_id_is_pulled_and_pushed(engine, opened, tmp_path, user):
    memory = Diary(opened(), agent="rules").user(user)
    memory.upsert_preference("likes", "tea")
    for old, new in (("tea", "coffee"), ("coffee", "water")):
        assert run(engine, "pull", str(tmp_path)).stdout == f"wrote 1 document to {tmp_path}\n"
        file = tmp_path / encode_folder(user) / "preferences.toml"
        file.write_text(file.read_text().replace(f'"{old}"', f'"{new}"'))
        assert run(engine, "push", str(tmp_path)).stdout == "stored 1 edited document\n"
    assert texts(memory) == ["water"]
    file.write_text(file.read_text().replace('"water"', '"milk"'))
    memory.forget(everything=True)
    assert isinstance(run(engine, "push", str(tmp_path)).exception, Forgotten)
    assert texts(memory) == []


def test_edits_of_two_people_are_both_kept(engine, alice, tmp_path):
    alice.upsert_preference("likes", "coffee")
    for name, old, new in (("ann", "tea", "green tea"), ("bob", "coffee", "mocha")):
        run(engine, "pull", str(tmp_path / name))
        file = tmp_path / name / "alice" / "preferences.toml"
        file.write_text(file.read_text().replace(f'"{old}"', f'"{new}"'))
    for name in ("ann", "bob"):
        pushed = run(engine, "push", str(tmp_path / name))
        assert pushed.stdout == "stored 1 edited document\n"
    assert texts(alice) == ["green tea", "mocha"]
    assert [entry.type for entry in alice.history()] == ["hand", "hand", "upsert", "upsert"]
    assert run(engine, "pull", str(tmp_path / "ann")).exit_code == 0
    assert '"mocha"' in (tmp_path / "ann" / "alice" / "preferences.toml").read_text()


@pytest.mark.parametrize(
    ("more", "left", "conflicts"),
    [
        ({"ann": ("coffee", "mocha"), "bob": ("juice", "cider")}, ["mate", "mocha", "cider"], []),
        ({"bob": ("mate", "water")}, ["water", "coffee", "juice"], ["likes/pref001"]),
    ],
    ids=["the same and another", "another text"],
)
def test_an_edit_of_what_another_person_edited_is_merged_with_the_pulled_text(
    engine, alice, tmp_path, more, left, conflicts
):
    for text in ("coffee", "juice"):
        alice.upsert_preference("likes", text)
    for name in ("ann", "bob"):
        run(engine, "pull", str(tmp_path / name))
        file = tmp_path / name / "alice" / "preferences.toml"
        file.write_text(file.read_text().replace('"tea"', '"mate"'))
        old, new = more.get(name, ("", ""))
        file.write_text(file.read_text().replace(f'"{old}"', f'"{new}"'))
    for name in ("ann", "bob"):
        pushed = run(engine, "push", str(tmp_path / name))
        assert pushed.exit_code == 0
    named = [
        f"{file}: preferences.{key.replace('/', '.')}: another writer also changed it meanwhile."
        " Your version is stored, and the other one is in history."
        for key in conflicts
    ]
    assert pushed.stdout.splitlines()[1:] == named
    assert texts(alice) == left
    assert [change.key for change in alice.history() if change.is_conflict] == conflicts


def displacing_edit(engine, alice, folder):
    """Edit a pulled text after another writer changed it, and return the line of `push` about it."""
    assert run(engine, "pull", str(folder)).exit_code == 0
    file = folder / "alice" / "preferences.toml"
    file.write_text(file.read_text().replace('"tea"', '"mint"'))
    alice.upsert_preference("likes", "juice", id="pref001")
    return (
        f"{file}: preferences.likes.pref001: another writer also changed it meanwhile."
        " Your version is stored, and the other one is in history."
    )


def test_push_names_what_it_displaces_if_history_was_pruned(engine, alice, tmp_path):
    line = displacing_edit(engine, alice, tmp_path)
    alice.upsert_preference("likes", "coffee")
    alice.prune_history(keep=1)
    assert run(engine, "push", str(tmp_path)).stdout.splitlines()[1:] == [line]
    assert texts(alice) == ["mint", "coffee"]
    assert [change.before["text"] for change in alice.history() if change.is_conflict] == ["juice"]


def test_a_push_that_fails_names_what_it_displaced_before(engine, alice, tmp_path, monkeypatch):
    bob = alice.diary.user("bob")
    bob.upsert_preference("likes", "tea")
    line = displacing_edit(engine, alice, tmp_path)
    file = tmp_path / "bob" / "preferences.toml"
    file.write_text(file.read_text().replace('"tea"', '"coffee"'))
    with monkeypatch.context() as patched:
        after_each(patched, edit, "save_text", lambda: bob.forget(everything=True))
        pushed = run(engine, "push", str(tmp_path))
    assert isinstance(pushed.exception, Forgotten)
    assert line in pushed.stderr
    assert texts(alice) == ["mint"]
    file.unlink()
    assert run(engine, "push", str(tmp_path)).stdout == "stored 0 edited documents\n"


def test_a_file_that_was_only_pulled_changes_nothing(engine, alice, tmp_path):
    run(engine, "pull", str(tmp_path))
    alice.upsert_preference("likes", "coffee")
    assert run(engine, "push", str(tmp_path)).stdout == "stored 0 edited documents\n"
    assert texts(alice) == ["tea", "coffee"]


@pytest.mark.parametrize("selection", [{"everything": True}, {"key": "likes/pref001"}])
def test_push_brings_nothing_back_that_was_forgotten(engine, alice, tmp_path, selection):
    alice.upsert_preference("likes", "coffee")
    run(engine, "pull", str(tmp_path))
    alice.forget(**selection)
    left = texts(alice)
    assert run(engine, "push", str(tmp_path)).stdout == "stored 0 edited documents\n"
    file = tmp_path / "alice" / "preferences.toml"
    pulled = file.read_text()
    file.write_text(pulled.replace('"coffee"', '"mocha"'))
    done = run(engine, "push", str(tmp_path))
    assert done.exit_code != 0
    assert "of this user was forgotten" in str(done.exception)
    assert "Remove the file, then pull." in str(done.exception)
    assert texts(alice) == left
    file.unlink()
    assert run(engine, "pull", str(tmp_path)).exit_code == 0
    assert "tea" not in "".join(path.read_text() for path in tmp_path.rglob("*.toml"))


def test_push_brings_nothing_back_that_was_forgotten_before_a_failed_pull(engine, alice, tmp_path):
    run(engine, "pull", str(tmp_path))
    alice.forget(matching="tea")
    alice.upsert_preference("likes", "coffee")
    folder = tmp_path / "alice"
    (folder / ".preferences.toml.new").mkdir()  # the file cannot be replaced
    assert run(engine, "pull", str(tmp_path)).exit_code != 0
    file = folder / "preferences.toml"
    file.write_text(file.read_text() + "# a comment\n")
    assert isinstance(run(engine, "push", str(tmp_path)).exception, Forgotten)
    assert texts(alice) == ["coffee"]
    file.unlink()
    (folder / ".preferences.toml.new").rmdir()
    assert run(engine, "pull", str(tmp_path)).exit_code == 0
    file.write_text(file.read_text().replace('"coffee"', '"mocha"'))
    assert run(engine, "push", str(tmp_path)).exit_code == 0
    assert texts(alice) == ["mocha"]


def test_push_refuses_an_edit_after_a_failed_pull_of_another_database(engine, alice, tmp_path):
    other = engines.space(engine.name)
    Diary(other.backend(), agent="rules").user("alice").upsert_preference("likes", "coffee")
    run(engine, "pull", str(tmp_path))
    folder = tmp_path / "alice"
    (folder / ".preferences.toml.new").mkdir()  # the file cannot be replaced
    assert run(other, "pull", str(tmp_path)).exit_code != 0
    file = folder / "preferences.toml"
    file.write_text(file.read_text().replace('"tea"', '"green tea"'))
    done = run(other, "push", str(tmp_path))
    assert f"{file}: was pulled from {engine.backend().database}. Push" in str(done.exception)


@engines.on_each_server
def test_push_brings_nothing_back_that_was_forgotten_during_a_push(
    engine, alice, tmp_path, monkeypatch
):
    run(engine, "pull", str(tmp_path))
    file = tmp_path / "alice" / "preferences.toml"
    file.write_text(file.read_text().replace('"tea"', '"green tea"'))
    after_each(monkeypatch, edit, "save_text", lambda: alice.forget(everything=True))
    assert run(engine, "push", str(tmp_path)).exit_code == 0
    monkeypatch.undo()
    file.write_text(file.read_text() + "# a comment\n")
    assert isinstance(run(engine, "push", str(tmp_path)).exception, Forgotten)
    assert texts(alice) == []


@engines.on_each_server
def test_push_to_another_database_than_the_pulled_one_is_refused(engine, alice, tmp_path):
    run(engine, "pull", str(tmp_path))
    file = tmp_path / "alice" / "preferences.toml"
    file.write_text(file.read_text().replace('"tea"', '"green tea"'))
    other = engines.space(engine.name)
    done = run(other, "push", str(tmp_path))
    assert f"{file}: was pulled from {engine.backend().database}. Push it there" in str(
        done.exception
    )
    assert other.backend().users() == []
    assert run(engine, "push", str(tmp_path)).exit_code == 0
    assert texts(alice) == ["green tea"]
    assert run(other, "pull", str(tmp_path)).stdout == f"wrote 0 documents to {tmp_path}\n"


def test_pull_keeps_no_trace_of_older_texts(engine, alice, tmp_path):
    for text in ("tea", "walnuts", "cocoa"):
        alice.upsert_preference("likes", text)
        assert run(engine, "pull", str(tmp_path)).exit_code == 0
    assert len((tmp_path / ".pulled").read_text().splitlines()) == 1


def test_pull_removes_the_folder_of_an_erased_user(engine, alice, tmp_path):
    bob = alice.diary.user("bob")
    bob.upsert_preference("likes", "chess")
    ItemStore(alice.diary).run([Put(("bob", "trips"), "porto", {"text": "by train"})])
    for _ in range(2):
        assert run(engine, "pull", str(tmp_path)).exit_code == 0
        assert (tmp_path / "bob").exists() == bool(bob.documents())
        (tmp_path / "alice" / "notes.txt").write_text("mine")
        bob.forget(everything=True)
    assert (tmp_path / "alice" / "notes.txt").exists()


@pytest.mark.parametrize("moment", ["staged", "removed"])
def test_pull_removes_what_a_killed_pull_left_of_an_erased_user(engine, alice, tmp_path, moment):
    bob = alice.diary.user("bob")
    bob.upsert_preference("likes", "chess")
    command = [sys.executable, "-c", KILLED_PULL, str(tmp_path), engine.url, moment]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    left = {path.name for path in (tmp_path / "bob").iterdir()}
    assert left == ({".preferences.toml.new"} if moment == "staged" else set())
    bob.forget(everything=True)
    (tmp_path.parent / ".outside.toml.new").write_text("mine")
    with (tmp_path / ".pulled").open("a") as lines:
        lines.write('["../outside.toml", "a digest", 0, "a database"]\n')
    assert run(engine, "pull", str(tmp_path)).exit_code == 0
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert left == {".pulled", "alice", "alice/preferences.toml"}
    assert (tmp_path.parent / ".outside.toml.new").exists()


def test_pull_replaces_a_link(engine, alice, tmp_path):
    run(engine, "pull", str(tmp_path / "texts"))
    file, target = tmp_path / "texts" / "alice" / "preferences.toml", tmp_path / "target"
    text = file.read_text()
    file.rename(target)
    file.symlink_to(target)
    alice.upsert_preference("likes", "coffee")
    assert run(engine, "pull", str(tmp_path / "texts")).exit_code == 0
    assert "coffee" in file.read_text()
    assert (file.is_symlink(), target.read_text()) == (False, text)


@pytest.mark.parametrize("line", ['[5, "a", 0, "b"]', '["", "a", 0, "b"]', "5"])
def test_a_line_of_a_pulled_folder_that_names_no_file_is_skipped(engine, alice, tmp_path, line):
    run(engine, "pull", str(tmp_path))
    with (tmp_path / ".pulled").open("a") as lines:
        lines.write(f"{line}\n")
    alice.upsert_preference("likes", "coffee")
    assert run(engine, "pull", str(tmp_path)).exit_code == 0
    assert "coffee" in (tmp_path / "alice" / "preferences.toml").read_text()
    assert line not in (tmp_path / ".pulled").read_text().splitlines()


def test_a_line_of_a_pulled_folder_that_lacks_a_value_is_skipped(engine, alice, tmp_path):
    run(engine, "pull", str(tmp_path))
    with (tmp_path / ".pulled").open("a") as lines:
        lines.write('["alice/preferences.toml", "a digest", 0]\n')
    assert run(engine, "push", str(tmp_path)).stdout == "stored 0 edited documents\n"


def test_pull_to_a_file_is_refused(engine, alice, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    done = run(engine, "pull", str(file))
    assert str(done.exception) == f"{file}: pull writes a folder, and this is a file. Name a folder"
    assert file.read_text() == "mine"


def test_pull_overwrites_no_edit(engine, alice, tmp_path):
    run(engine, "pull", str(tmp_path))
    file = tmp_path / "alice" / "preferences.toml"
    edited = file.read_text().replace('"tea"', '"green tea"').replace("\n", "\r\n").encode()
    file.write_bytes(edited)
    alice.upsert_preference("likes", "coffee")
    done = run(engine, "pull", str(tmp_path))
    assert done.exit_code != 0
    found = "1 edited file would be overwritten, such as alice/preferences.toml"
    assert found in str(done.exception)
    assert file.read_bytes() == edited
    run(engine, "push", str(tmp_path))
    assert run(engine, "push", str(tmp_path)).stdout == "stored 0 edited documents\n"
    assert run(engine, "pull", str(tmp_path)).exit_code == 0
    assert texts(alice) == ["green tea", "coffee"]
    assert b'"green tea"\r\n' in file.read_bytes()


@pytest.mark.parametrize("is_removed", [False, True])
def test_pull_overwrites_no_edit_that_is_made_meanwhile(
    engine, alice, tmp_path, monkeypatch, is_removed
):
    run(engine, "pull", str(tmp_path))
    if is_removed:
        alice.forget(everything=True)
    file = tmp_path / "alice" / "preferences.toml"
    after_each(monkeypatch, SharedBackend, "users", lambda: file.write_text("# mine\n"))
    done = run(engine, "pull", str(tmp_path))
    assert f"{file}: was edited or open for writing during this call" in str(done.exception)
    assert file.read_text() == "# mine\n"


def test_pull_overwrites_no_edit_of_its_last_moment(engine, alice, tmp_path, monkeypatch):
    run(engine, "pull", str(tmp_path))
    alice.upsert_preference("likes", "coffee")
    file = tmp_path / "alice" / "preferences.toml"
    after_each(monkeypatch, os, "utime", lambda: file.write_text("# mine\n"))
    done = run(engine, "pull", str(tmp_path))
    assert f"{file}: was edited or open for writing during this call" in str(done.exception)
    assert file.read_text() == "# mine\n"
    assert [each.name for each in file.parent.iterdir()] == ["preferences.toml"]


def test_pull_names_the_first_file_that_is_added_meanwhile(engine, alice, tmp_path, monkeypatch):
    run(engine, "pull", str(tmp_path))
    added = [tmp_path / f"user{number}" / "preferences.toml" for number in range(9)]

    def add():
        for file in added:
            file.parent.mkdir(exist_ok=True)
            file.write_text("# mine\n")

    after_each(monkeypatch, SharedBackend, "users", add)
    done = run(engine, "pull", str(tmp_path))
    assert f"{added[0]}: was edited or open for writing during this call" in str(done.exception)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("alice/preferences.toml", b"# caf\xe9\n", "is not UTF-8"),
        (
            "alice/history/2026-11-001.toml",
            b"x = 1\n",
            "is not a document of a user; move the file",
        ),
        ("notes.toml", b"x = 1\n", "is not a document of a user; move the file"),
    ],
)
def test_push_refuses_what_is_no_document(engine, alice, tmp_path, name, data, said):
    run(engine, "pull", str(tmp_path))
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)
    done = run(engine, "push", str(tmp_path))
    assert done.exit_code != 0
    assert said in str(done.exception)
    assert alice.diary.engine.backend.kinds("alice") == ["preferences"]


def test_hidden_files_such_as_those_of_editors_and_git_are_ignored(engine, alice, tmp_path):
    alice.upsert_preference("likes", "tea")
    run(engine, "pull", str(tmp_path))
    (tmp_path / "alice/.#preferences.toml").symlink_to("someone@host.1:2")
    branch = tmp_path / ".git/refs/heads/a.toml"
    branch.parent.mkdir(parents=True)
    branch.write_text("0123\n")
    (tmp_path / "alice/.queue.toml").write_text("x = 1\n")
    assert run(engine, "push", str(tmp_path)).stdout == "stored 0 edited documents\n"
    assert run(engine, "pull", str(tmp_path)).exit_code == 0
    assert branch.exists()
    assert alice.diary.engine.backend.kinds("alice") == ["preferences"]


def test_push_names_the_files_that_were_removed(engine, alice, tmp_path):
    alice.blocks.set("persona", "Brief.")
    run(engine, "pull", str(tmp_path))
    (tmp_path / "alice/blocks.toml").unlink()
    done = run(engine, "push", str(tmp_path))
    assert done.stdout == "stored 0 edited documents\n"
    assert "alice/blocks.toml: the file was removed, but push removes no document" in done.stderr
    assert "persona" in alice.blocks


def test_push_of_a_missing_folder_says_so(engine, alice, tmp_path):
    done = run(engine, "push", str(tmp_path / "none"))
    assert done.exit_code != 0
    assert "there is no such folder" in str(done.exception)


@pytest.mark.parametrize("command", ["pull", "push"])
def test_an_address_in_place_of_the_folder_is_refused(
    engine, alice, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    alice.blocks.set("persona", "Be short.")
    before = sorted(tmp_path.rglob("*"))
    done = run(engine, command, "postgresql://ann:secret@127.0.0.1/x")
    assert str(done.exception).startswith("postgresql://127.0.0.1/x: is an address. Name a folder")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("text", "says"), [("[blocks.x\n", "blocks.toml:1"), ("", "is empty")])
def test_push_stores_nothing_if_one_file_is_broken(engine, alice, tmp_path, text, says):
    alice.blocks.set("persona", "Be short.")
    run(engine, "pull", str(tmp_path))
    file = tmp_path / "alice" / "preferences.toml"
    file.write_text(file.read_text().replace('"tea"', '"green tea"'))
    (tmp_path / "alice" / "blocks.toml").write_text(text)
    done = run(engine, "push", str(tmp_path))
    assert done.exit_code != 0
    assert says in str(done.exception)
    assert texts(alice) == ["tea"]


@pytest.mark.usefixtures("alice")
def test_edit_refuses_a_name_that_no_document_can_have(engine):
    found = run(engine, "edit", "caf\udce9", "--user", "alice")
    assert isinstance(found.exception, IdentifierError)
    assert "cannot name a document" in str(found.exception)


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


@pytest.fixture(params=["folder", pytest.param("postgres", marks=engines.needs("postgres"))])
def path(request, tmp_path):
    """The address of a memory in a folder or in a server."""
    return engines.space(request.param, tmp_path).url


def before_editor(monkeypatch, act):
    """Run `act` when the next editor is opened."""
    run = subprocess.run

    def call(*arguments, **options):
        monkeypatch.setattr(subprocess, "run", run)
        act()
        return run(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", call)


def test_an_edit_keeps_what_another_person_edits_meanwhile(path, monkeypatch):
    memory = Diary(path, agent="rules").user("alice")
    for text in ("tea", "coffee"):
        memory.upsert_preference("likes", text)
    arguments = ["edit", "preferences", "--user", "alice", "--path", path]

    def edit_by_another_person():
        with monkeypatch.context() as patched:
            patched.setenv("VISUAL", "sed -i.old s/coffee/mocha/")
            done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output

    monkeypatch.setenv("VISUAL", "sed -i.old s/tea/mint/")
    before_editor(monkeypatch, edit_by_another_person)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert set(texts(memory)) == {"mint", "mocha"}


def test_an_edit_does_not_bring_back_what_is_forgotten_meanwhile(path, monkeypatch):
    memory = Diary(path, agent="rules").user("alice")
    memory.upsert_preference("likes", "coffee")
    before_editor(monkeypatch, lambda: memory.forget(matching="coffee"))
    monkeypatch.setenv("VISUAL", 'sh -c \'echo "# mine" >> "$0"\'')
    done = CliRunner().invoke(app, ["edit", "preferences", "--user", "alice", "--path", path])
    assert done.exit_code != 0
    assert "of this user was forgotten" in str(done.exception)
    assert "coffee" not in texts(memory)


def test_edit_of_a_folder_opens_the_file_itself(tmp_path, monkeypatch):
    memory = Diary(tmp_path / "memories", agent="rules").user("alice")
    memory.upsert_preference("likes", "tea")
    monkeypatch.setenv("VISUAL", "sed -i.old s/tea/coffee/")
    arguments = ["edit", "preferences", "--user", "alice", "--path", str(tmp_path / "memories")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert texts(memory) == ["coffee"]
