"""`tomldiary writer`: looking at what could not be applied, trying it again, letting go of it."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shlex
import stat
import tomllib

import pytest

from command_line import call, program
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.errors import ExtractionError
from tomldiary.writer.dead_letters import DeadLetters
from waiting import until

LONG = 120


def command(folder, *arguments, code=0):
    return call("writer", *arguments, "--path", folder, check=code).stdout


def fail(message, *, deps):
    raise ValueError(f"cannot read {deps.user_msg!r}")


def park(folder, *texts, users=("alice",), operation=""):
    diary = Diary(folder, agent=fail)
    with MemoryWriter(diary) as writer:
        for text, user in itertools.product(texts, users):
            receipt = writer.submit_nowait(Turn(user, "s", text, "ok", operation_id=operation))
            with pytest.raises(ExtractionError):
                receipt.wait(LONG)


def said(folder):
    return [letter["turn"]["user_msg"] for letter in json.loads(command(folder, "list", "--json"))]


@pytest.mark.parametrize("action", ["retry", "drop"])
def test_a_command_that_finds_no_dead_letter_exits_with_1(tmp_path, action):
    done = "requeued" if action == "retry" else "dropped"
    assert command(tmp_path, action, "--all", code=1) == f"0 turns were {done}.\n"


def test_dead_letters_are_private_and_listed_with_their_error(tmp_path):
    park(tmp_path, "tea \x1b[2J", "juice")
    path = tmp_path / ".tomldiary" / "dead-letters" / "alice.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    first, second = tomllib.loads(path.read_text("utf-8"))["dead"]
    assert first["user_msg"] == "tea \x1b[2J"
    assert (second["user"], second["session"], second["attempts"]) == ("alice", "s", 1)
    assert "cannot read 'juice'" in second["error"]
    shown = command(tmp_path, "list")
    assert "2 turns in the dead letters." in shown
    assert (
        "  1  alice  s  ExtractionError: the extractor failed (ValueError: cannot read 'juice')"
        in shown
    )
    assert "\n    said: juice\n" in shown
    assert "\x1b" not in shown
    assert said(tmp_path) == ["tea \x1b[2J", "juice"]


def test_a_requeued_turn_is_applied_once_by_the_next_writer(tmp_path):
    park(tmp_path, "tea", "juice")
    [tea, juice] = json.loads(command(tmp_path, "list", "--json"))
    assert command(tmp_path, "retry", tea["id"]) == "1 turn was requeued.\n"
    assert said(tmp_path) == ["juice"]
    assert command(tmp_path, "list").endswith("\n1 turn waits to be applied by a writer.\n")
    diary = Diary(
        tmp_path, agent=lambda message, *, deps: deps.upsert("likes", None, deps.user_msg, ())
    )
    with MemoryWriter(diary, takeover_interval=0.1) as writer:
        assert writer.flush(LONG)
        assert writer.stats()["recovered"] == 1
        again = Turn("alice", "s", "tea", "ok", operation_id=tea["id"])
        assert writer.submit_nowait(again).wait(LONG).is_repeated
        program("writer", "retry", "--all", "--path", tmp_path)
        until(lambda: writer.stats()["recovered"] == 2)
    assert [item.text for item in diary.user("alice").preferences("likes").values()] == [
        "tea",
        "juice",
    ]
    assert said(tmp_path) == []
    assert juice["turn"]["user_msg"] == "juice"


def test_drop_needs_ids_or_all_and_keeps_other_dead_letters(tmp_path):
    park(tmp_path, "tea", "juice")
    ids = [letter["id"] for letter in json.loads(command(tmp_path, "list", "--json"))]
    command(tmp_path, "drop", code=2)
    command(tmp_path, "drop", "--all", ids[0], code=2)
    for verb in ("drop", "retry"):
        unknown = call("writer", verb, ids[0], "unknown", "--path", str(tmp_path))
        assert unknown.returncode == 2
        assert "no turn in the dead letters has the id 'unknown'" in unknown.stderr
    for more, needed in (
        ([], "add --yes"),
        (["--dry-run", "--yes"], "use --yes instead of --dry-run"),
    ):
        told = command(tmp_path, "drop", ids[0], *more)
        assert told == f"1 turn was not dropped; {needed}.\n"
    assert said(tmp_path) == ["tea", "juice"]
    assert command(tmp_path, "drop", ids[0], "--yes") == "1 turn was dropped.\n"
    assert said(tmp_path) == ["juice"]
    [gone] = json.loads(command(tmp_path, "drop", "--all", "--yes", "--json"))
    assert gone["id"] == ids[1]
    assert list((tmp_path / ".tomldiary" / "dead-letters").iterdir()) == []


def test_an_altered_dead_letter_is_reported(tmp_path):
    park(tmp_path, "tea", "juice")
    file = tmp_path / ".tomldiary" / "dead-letters" / "alice.toml"
    before = file.read_text("utf-8")
    file.write_text(before.replace('user_msg = "tea"', 'user_msg = "mint tea"'), "utf-8")
    done = call("writer", "list", "--path", tmp_path, "--json", check=0)
    assert done.stderr.startswith("1 dead letter of alice cannot be listed or retried, because")
    assert [letter["turn"]["user_msg"] for letter in json.loads(done.stdout)] == ["juice"]
    found = json.loads(call("doctor", "--path", tmp_path, "--json", check=1).stdout)
    assert [(each["level"], each["place"], each["message"]) for each in found[:2]] == [
        ("problem", "alice", "the text of 1 dead letter was altered."),
        ("warning", "alice", "1 turn could not be applied."),
    ]
    remedies = re.findall(r"tomldiary (writer .*?)(?:\. When|$)", found[1]["remedy"])
    assert len(remedies) == 2
    file.write_text(before, "utf-8")
    for each in remedies:
        assert len(json.loads(call(*shlex.split(each), "--json").stdout)) == 2
    assert said(tmp_path) == []


def test_unreadable_dead_letters_are_a_finding_of_the_doctor(tmp_path):
    park(tmp_path, "tea")
    file = tmp_path / ".tomldiary" / "dead-letters" / "alice.toml"
    file.unlink()
    file.mkdir()
    found = json.loads(call("doctor", "--path", tmp_path, "--json", check=1).stdout)
    assert ("problem", "the dead letters") in [(each["level"], each["place"]) for each in found]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errno.EACCES, "permission denied. Check the permissions."),
        (errno.ENFILE, "too many open files in system. Close some files,"),
    ],
)
def test_dead_letters_that_cannot_be_read_are_named_by_the_doctor(
    tmp_path, monkeypatch, code, told
):
    park(tmp_path, "tea")
    place = tmp_path / ".tomldiary" / "dead-letters" / "alice.toml"

    def refuse(self):
        raise OSError(code, os.strerror(code), str(place))

    monkeypatch.setattr(DeadLetters, "counts", refuse)
    shown = call("doctor", "--path", tmp_path, check=1).stdout
    assert f"problem {place}: {told}" in " ".join(shown.split())


def test_writer_list_reports_nothing_of_unaltered_dead_letters(tmp_path):
    park(tmp_path, "tea", "juice")
    assert call("writer", "list", "--path", tmp_path, check=0).stderr == ""
    assert said(tmp_path) == ["tea", "juice"]


def test_writer_list_shows_the_turns_of_one_user(tmp_path):
    park(tmp_path, "tea", users=("alice", "bob"))
    park(tmp_path, "juice", users=("bob",))
    command(tmp_path, "retry", json.loads(command(tmp_path, "list", "--json"))[-1]["id"])
    found = json.loads(command(tmp_path, "list", "--user", "bob", "--json"))
    assert [each["turn"]["user_id"] for each in found] == ["bob"]
    waiting = "1 turn waits to be applied by a writer.\n"
    assert command(tmp_path, "list", "--user", "bob").endswith(f"dead letters.\n{waiting}")
    assert command(tmp_path, "list", "--user", "alice").endswith("1 turn in the dead letters.\n")
    assert command(tmp_path, "list", "--user", "carol") == "0 turns in the dead letters.\n"


@pytest.mark.parametrize("verb", ["retry", "drop"])
def test_an_id_of_several_users_needs_the_user(tmp_path, verb):
    park(tmp_path, "tea", users=("alice", "bob"), operation="op")
    park(tmp_path, "juice", users=("alice", "bob"))
    meant = ["--yes"] if verb == "drop" else []
    command(tmp_path, verb, "op", code=2)
    assert said(tmp_path) == ["tea", "tea", "juice", "juice"]
    command(tmp_path, verb, "op", "--user", "carol", code=2)
    [gone] = json.loads(command(tmp_path, verb, "op", "--user", "bob", "--json", *meant))
    assert gone["turn"]["user_id"] == "bob"
    assert said(tmp_path) == ["tea", "juice", "juice"]
    command(tmp_path, verb, "op", *meant)  # alice's is the only one now
    assert said(tmp_path) == ["juice", "juice"]
    [gone] = json.loads(command(tmp_path, verb, "--all", "--user", "alice", "--json", *meant))
    assert gone["turn"]["user_id"] == "alice"
    assert said(tmp_path) == ["juice"]


def test_a_missing_folder_is_not_created(tmp_path):
    command(tmp_path / "none", "list", code=2)
    assert not (tmp_path / "none").exists()
