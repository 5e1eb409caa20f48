"""Wrong names, places and options: one line says what was meant, and nothing waits or is changed."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import programs
from capabilities import needs_exchange, needs_leases
from command_line import call, not_done, program, program_after
from processes import as_user
from tomldiary import Diary
from tomldiary.cli.commands import edit
from tomldiary.cli.places import shown
from tomldiary.errors import HandEditConflict
from tomldiary.storage.files import FileSystem


@pytest.fixture
def memories(tmp_path):
    place = tmp_path / "memories"
    alice = Diary(place, agent="rules", durability="process").user("alice")
    alice.upsert_preference("likes", "tea")
    alice.blocks.set("persona", "Be short.")
    alice.blocks.delete("persona")
    return place


def test_a_quoted_tilde_is_the_same_folder_for_every_command(tmp_path):
    place, home = ("--path", "~/m"), {"HOME": str(tmp_path)}
    call("add", "likes", "tea", "--user", "alice", *place, check=0, **home)
    call("export", "--output", tmp_path / "alice.json", *place, check=0, **home)
    assert call("show", *place, check=0, **home).stdout == "alice\n"
    assert "copied 1 user" in call("copy", "~/m", "~/copied", check=0, **home).stdout
    line = ["import", tmp_path / "alice.json", "--user", "alice", "--dry-run", *place]
    assert "0 entries added" in call(*line, check=0, **home).stdout
    assert (
        "each folder inside a memory is one user"
        in call("users", "--path", "~/m/alice", **home).stderr
    )
    assert "a new or an empty folder" in call("demo", *place, **home).stderr


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("postgresql://ann:secret@h/x?timeout=2&schema=notes", "postgresql://h/x?schema=notes"),
        ("redis://:secret@h/0?prefix=notes&password=secret", "redis://h/0?prefix=notes"),
        ("redis://sec?prefix=ret@h/0", "redis://sec"),
        ("redis://:sec?prefix=ret@h/0", "redis://…"),
        ("notes?schema=x", "notes?schema=x"),
    ],
)
def test_a_message_names_the_part_of_a_database_and_no_password(path, named):
    assert shown(path) == named


@pytest.mark.parametrize(
    "words", [["export", "--user", "alice", "--output"], ["schema", "preferences"]]
)
def test_an_address_in_place_of_a_file_is_shown_without_its_password(memories, words):
    place = [] if words[0] == "schema" else ["--path", str(memories)]
    done = call(*words, "postgresql://ann:hunter2@h/db", *place)
    assert done.returncode == 2
    assert "h/db: " in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("words", [[], ["show"], ["writer"]])
def test_an_unknown_option_is_shown_with_escapes(words):
    done = call(*words, "--\u202e\x1b[31mX")
    assert done.returncode == 2
    assert r"No such option: --\u202e\x1b[31mX" in done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["shwo"], "show"), (["get"], "show"), (["delete"], "forget")],
)
def test_a_wrong_command_is_named_with_the_right_one(words, meant):
    done = call(*words)
    assert done.returncode == 2
    assert f"Did you mean {meant!r}?" in done.stderr


def test_a_command_unlike_any_other_is_an_error():
    done = call("xyzzy")
    assert (done.returncode, "No such command 'xyzzy'" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            ["why", "alice", "likes/pref001"],
            "(likes/pref001). Name the user with --user; put a text",
        ),
        (["add", "likes", "green", "tea"], "(tea). Name the user with --user; put a text"),
        (["users", "alice"], "extra argument(s) (alice)."),
    ],
)
def test_an_argument_too_many_says_how_to_name_a_user_or_a_text(memories, words, hint):
    done = call(*words, "--path", str(memories))
    assert done.returncode == 2
    assert hint in " ".join(done.stderr.split())


@pytest.mark.parametrize("option", ["--path=m", "--user", "--json"])
def test_an_option_before_the_command_says_where_it_belongs(option):
    done = call(option, "show")
    assert done.returncode == 2
    assert f"{option.partition('=')[0]} belongs after the command" in done.stderr


@pytest.mark.parametrize("words", [["show", "alice"], ["users"]], ids=" ".join)
def test_a_command_reports_a_broken_file_once(memories, words):
    file = memories / "alice" / "preferences.toml"
    file.write_text(f"{file.read_text()}\n=======\n")
    done = program(*words, "--path", memories)  # in this process pytest receives the records
    assert done.stderr.count("Reads return the last good state") == 1


def test_a_user_whose_file_never_parsed_hides_no_other_and_can_be_erased(memories):
    (memories / "bob").mkdir()
    (memories / "bob/preferences.toml").write_text("[preferences.likes.pref001\n")
    for form in ([], ["--json"]):
        done = call("users", "--path", memories, *form, check=1)
        assert "alice" in done.stdout
        assert done.stderr.startswith(f"{memories}/bob/preferences.toml:1:27: ")
    erase = ("forget", "--user", "bob", "--everything", "--path", memories)
    call(*erase, check=0)
    assert (memories / "bob").exists()
    call(*erase, "--yes", check=0)
    assert Diary(memories, agent="rules").users() == ["alice"]


@pytest.mark.parametrize("words", [[], ["writer"], ["schema"]])
def test_help_shows_each_command_in_one_whole_line(words):
    shown = call(*words, "--help").stdout
    assert "..." not in shown.partition("Commands:")[2]
    assert ("completion" in shown) is (words == [])


@pytest.mark.parametrize("command", ["show", "ingest", "import", "forget", "stats"])
def test_help_names_the_values_of_shared_options_in_words(command):
    shown = call(command, "--help").stdout
    assert "--user NAME " in shown
    assert "--path FOLDER|URL " in shown


@pytest.mark.parametrize(("user", "code", "streams"), [("alice", 0, 2), ("bob", 2, 3)])
def test_a_closed_stream_changes_no_exit_code(memories, user, code, streams):
    """Python has no stream for a descriptor that is closed as it starts."""
    closed = f"for number in range({streams}): os.close(number)\n"
    names = ("stdin", "stdout", "stderr")[:streams]
    missing = "".join(f"sys.{name} = None\n" for name in names)
    done, told = program_after(closed + missing, "show", user, "--path", memories)
    assert (done, "Traceback" in told) == (code, False)


@pytest.mark.parametrize("command", ["show", "users", "doctor"])
def test_the_folder_of_one_user_is_no_memory(memories, command):
    done = call(command, "--path", str(memories / "alice"))
    assert done.returncode == 2
    assert "each folder inside a memory is one user" in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process of another user is needed")
def test_a_memory_of_another_user_of_the_system_names_the_remedy():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        place = Path(folder) / "memories"
        Diary(place, durability="process").user("alice").upsert_preference("likes", "tea")
        call("show", "alice", "--path", place, check=0)  # another user may be unable to import
        place.chmod(0o000)

        def show():
            os.chdir(folder)  # another user may be unable to return to the current one
            return call("show", "alice", "--path", place, cwd=folder).stderr

        told = as_user(65534, show)
        place.chmod(0o700)
    assert told.startswith(f"{place}/")
    assert told.endswith("Check the permissions.\n")


def test_no_memory_is_begun_in_the_folder_of_a_user(memories, tmp_path):
    chat = tmp_path / "chat.json"
    chat.write_text('[{"role": "user", "content": "I love jazz."}]')
    exported = tmp_path / "alice.json"
    call("export", "--user", "alice", "--path", memories, "--output", exported, check=0)
    for place in (memories / "alice", memories / "bob"):  # bob has no folder yet
        for words in (["add", "likes", "jazz"], ["ingest", chat], ["import", exported]):
            done = call(*words, "--user", "bob", "--path", place)
            assert (done.returncode, "each folder inside a memory is one user" in done.stderr) == (
                2,
                True,
            )
        done = call("pull", place, "--path", memories)
        assert (done.returncode, "each folder inside a memory is one user" in done.stderr) == (
            2,
            True,
        )
    assert Diary(memories, agent="rules").users() == ["alice"]
    assert Diary(memories, agent="rules").user("alice").documents() == ["blocks", "preferences"]


def test_consolidate_refuses_an_unknown_user(memories):
    done = call("consolidate", "--user", "alcie", "--path", str(memories))
    assert done.returncode == 2
    assert "there is no user 'alcie'" in done.stderr


def test_a_memory_with_more_than_a_hundred_entries_is_imported_and_changed(tmp_path):
    """The program that uses it has other limits, which the memory does not store."""
    place, file, log = tmp_path / "m", tmp_path / "export.json", tmp_path / "log.json"
    limits = {"max_prefs_per_category": 500, "max_conversations": 500}
    diary = Diary(place, agent="rules", quarantine={"web"}, **limits)
    alice = diary.user("alice")
    with alice.transaction():
        for number in range(101):
            alice.upsert_preference("likes", f"tea number {number}")
            alice.add_turn("Hello.", "Hello.", f"session {number}")
    alice.upsert_preference("likes", "cocoa", actor="web")
    call("export", "--user", "alice", "--path", place, "--output", file, check=0)
    alice.forget(everything=True)
    call("import", file, "--user", "alice", "--path", place, check=0)
    call("review", "accept", "2", "--user", "alice", "--path", place, check=0)
    call("add", "likes", "milk", "--user", "alice", "--path", place, check=0)
    log.write_text('[{"role": "user", "content": "I love dark roast coffee."}]')
    call("ingest", log, "--user", "alice", "--path", place, check=0)
    assert (len(alice.preferences("likes")), len(alice.conversations())) == (104, 102)


def test_an_ingest_adds_at_most_a_hundred_conversations(memories, tmp_path):
    """A document of all of them would slow down each turn, and most programs would drop the others."""
    log = tmp_path / "log.json"
    bob = Diary(memories, agent="rules").user("bob")
    bob.add_turn("I love tea.", "Noted.", "s1")
    said = [{"role": "user", "content": "Hello."}]
    log.write_text(json.dumps([{"id": f"chat {n}", "messages": said} for n in range(103)]))
    call("ingest", log, "--user", "bob", "--path", memories, check=0)
    assert len(bob.conversations()) == 101


def test_a_second_import_of_an_export_changes_nothing(memories, tmp_path):
    file = tmp_path / "alice.json"
    exported = call("export", "--json", "--user", "alice", "--path", str(memories))
    file.write_text(exported.stdout)
    words = ["import", str(file), "--user", "bob", "--path", str(memories)]
    assert call(*words).stdout == "imported: blocks, preferences\n"
    assert call(*words).stdout == "All entries of the export are already stored.\n"


@pytest.mark.parametrize("command", ["import", "ingest", "eval"])
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"a": \n"caf\xe9"}', ":2:5: this is not UTF-8 text"),
        (b'{"a":\n "b" "c"}', ":2:6: this is not JSON"),
        (b"[" * 100_000, ": the JSON is nested too deeply"),
    ],
)
def test_a_damaged_file_is_named_with_line_and_column(memories, tmp_path, command, data, says):
    file = tmp_path / "x.json"
    file.write_bytes(data)
    words = ["--path", memories, *([] if command == "eval" else ["--user", "bob"])]
    done = call(command, file, *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{file}{says}")
    if command == "import":
        done = programs.run("-m", "tomldiary", "import", "-", *words, stdin=file)
        assert done.returncode == 2
        assert done.stderr.startswith(f"/dev/stdin{says}")


def test_an_edited_text_that_cannot_be_stored_is_kept(memories, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    document = str(memories / "alice/preferences.toml")
    script = (
        "import pathlib, sys; file = pathlib.Path(sys.argv[1]);"
        " file.write_text(file.read_text() + '# an hour of work');"
        f" document = pathlib.Path({document!r}); document.unlink(); document.mkdir()"
    )
    editor = shlex.join([sys.executable, "-c", script])
    done = call("edit", "--path", str(memories), VISUAL=editor)
    assert (done.returncode, "is not a regular file" in done.stderr) == (2, True)
    [kept] = tmp_path.glob("tomldiary-*/preferences.toml")
    assert f"The edited text is kept in {kept}." in done.stderr
    assert kept.read_text().endswith("# an hour of work")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_an_error_of_edit_names_the_document_and_no_copy(memories, tmp_path):
    script = (
        "import os, resource, sys; open(sys.argv[1], 'a').write('# too large');"
        " resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (9, 9))"  # like a full disk
    )
    editor = shlex.join([sys.executable, "-c", script])
    _, told = program_after("", "edit", "--path", memories, VISUAL=editor, TMPDIR=str(tmp_path))
    assert f"{memories / 'alice/preferences.toml'}: File too large." in told


def test_an_export_that_does_not_fit_on_the_disk_leaves_no_file(memories, tmp_path):
    file = tmp_path / "alice.json"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    line = ["export", "--path", memories, "--output", file]
    assert program_after(limit, *line) == (2, f"{file}: File too large.\n")
    assert not file.exists()


def test_an_error_of_the_system_has_a_remedy(memories, tmp_path):
    done = call("export", "--path", memories, "--output", tmp_path / ("a" * 300), check=2)
    assert ": File name too long. Use a shorter name, or a folder with" in done.stderr


def test_a_dry_run_of_an_import_creates_no_folder(memories, tmp_path):
    file = tmp_path / "alice.json"
    theirs = tmp_path / "mem0.json"
    theirs.write_text('{"results": [{"id": "1", "memory": "tea", "user_id": "bob"}]}')
    call("export", "--user", "alice", "--path", str(memories), "--output", str(file))
    for source, option, key in (
        (file, ["--dry-run"], "likes/pref001"),
        (file, ["--replace"], "likes/pref001"),
        (theirs, ["--from", "mem0"], "biography/imported-1"),
    ):
        place = ("--user", "bob", "--path", str(tmp_path / "m"))
        done = call("import", str(source), *place, *option)
        assert f"+ {key}" in done.stdout
        assert done.stdout.endswith(f"{not_done(option)}\n")
        assert not (tmp_path / "m").exists()


def test_a_dry_run_of_an_import_refuses_an_address_of_no_backend(memories, tmp_path):
    file = tmp_path / "alice.json"
    call("export", "--user", "alice", "--path", str(memories), "--output", str(file))
    for address in ("sqlite:x.db", "mysql://host/x"):
        done = call("import", file, "--user", "bob", "--path", address, "--dry-run", check=2)
        assert "there is no backend for this kind of address" in done.stderr


def test_a_name_of_a_folder_may_contain_a_colon_and_slashes(memories, tmp_path):
    file = tmp_path / "alice.json"
    call("export", "--user", "alice", "--path", str(memories), "--output", str(file))
    place = ("--path", f"{tmp_path}/a://b")
    assert "there is no such folder" in call("users", *place, check=2).stderr
    call("import", file, "--user", "bob", *place, "--dry-run")
    assert not (tmp_path / "a:").exists()


def test_a_point_before_a_document_does_not_show_it(memories):
    Diary(memories, agent="rules").user("alice").upsert_preference("goals", "a marathon")
    shown = call("show", "alice", "--at", "1", "--path", str(memories)).stdout
    assert "tea" in shown
    assert "blocks:" not in shown


def test_an_edit_that_is_saved_during_an_erasure_brings_nothing_back(memories, monkeypatch):
    diary = Diary(memories, agent="rules", durability="process")
    alice, backend = diary.user("alice"), diary.engine.backend
    text = backend.read("alice", "preferences").text.replace('"tea"', '"green tea"')
    erasing = threading.Thread(target=alice.forget, kwargs={"matching": "tea"})
    set_times = os.utime

    def saved_late(*arguments):
        monkeypatch.setattr(os, "utime", set_times)
        erasing.start()
        erasing.join(0.3)  # long enough for an erasure that waits for nothing
        set_times(*arguments)

    monkeypatch.setattr(os, "utime", saved_late)  # the last step before the rename
    edit.save_text(diary, "alice", "preferences", text, backend.epoch("alice"))
    erasing.join(20)
    assert "tea" not in (memories / "alice" / "preferences.toml").read_text("utf-8")


@pytest.mark.parametrize(
    ("owner", "step", "without"),
    [
        (os, "utime", ""),
        (os, "utime", "exchange"),
        pytest.param(FileSystem, "exchange", "", marks=needs_exchange),
    ],
)
def test_an_edit_keeps_what_another_program_saves_meanwhile(
    memories, monkeypatch, owner, step, without
):
    if without:
        monkeypatch.setenv("TOMLDIARY_WITHOUT", without)
    diary = Diary(memories, agent="rules", durability="process")
    alice, backend = diary.user("alice"), diary.engine.backend
    alice.upsert_preference("likes", "chess")
    file = memories / "alice" / "preferences.toml"
    text = file.read_text("utf-8")
    function = getattr(owner, step)

    def after_a_save(*arguments):
        patch.undo()
        saved = file.with_name(".other")
        saved.write_text(text.replace('"chess"', '"go"'), "utf-8")
        saved.replace(file)
        return function(*arguments)

    edited = text.replace('"tea"', '"green tea"')
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, staticmethod(after_a_save))
        edit.save_text(diary, "alice", "preferences", edited, backend.epoch("alice"))
    likes = [item.text for item in alice.preferences("likes").values()]
    assert {"green tea", "go"} <= {*likes}
    assert list(file.parent.glob(".staged-*")) == []


@needs_leases
def test_an_edit_of_a_file_that_is_open_for_writing_names_the_file(memories, monkeypatch):
    diary = Diary(memories, agent="rules", durability="process")
    monkeypatch.setattr(diary.engine, "save_timeout", 0.05)
    file = memories / "alice" / "preferences.toml"
    text = file.read_text("utf-8")
    edited, epoch = text.replace('"tea"', '"green tea"'), diary.engine.backend.epoch("alice")
    with file.open("r+"), pytest.raises(HandEditConflict, match="still being written") as raised:
        edit.save_text(diary, "alice", "preferences", edited, epoch)
    assert raised.value.where == str(file)
    assert file.read_text("utf-8") == text
    assert list(file.parent.glob(".staged-*")) == []


def test_an_edit_that_was_killed_leaves_no_text_behind_an_erasure(memories, monkeypatch):
    diary = Diary(memories, agent="rules", durability="process")
    alice, backend = diary.user("alice"), diary.engine.backend
    text = backend.read("alice", "preferences").text.replace('"tea"', '"green tea"')
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(os, "utime", lambda *_: os._exit(7))
        edit.save_text(diary, "alice", "preferences", text, backend.epoch("alice"))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    alice.forget(matching="tea")
    left = [each for each in (memories / "alice").rglob("*") if each.is_file()]
    assert [each for each in left if b"tea" in each.read_bytes()] == []


@pytest.mark.parametrize("command", ["pull", "push"])
def test_documents_of_a_folder_are_neither_pulled_nor_pushed(memories, command):
    copied = memories.parent / "copied"
    done = call(command, str(copied), "--path", str(memories))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("require a database; in a folder, edit the files directly.\n")
    assert not copied.exists()
