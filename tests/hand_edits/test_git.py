"""A memory in a git repository: a process sees what git does, and writes lose nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hand_edits import age
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.doctor.doctor import check

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is needed")
PAGE = Path(__file__).parents[2] / "docs/files.md"


@pytest.fixture
def git(tmp_path):
    def run(*words, check=True):
        line = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=check)
        return done.stdout

    run("init", "-q", "-b", "main")
    for name in (".gitignore", ".gitattributes"):
        rows = re.findall(
            rf"^\| `\{name}` \| (.+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
        )
        lines = [line for row in rows for line in re.findall("`(.+?)`", row)]
        (tmp_path / name).write_text("\n".join([*lines, ""]))
    return run


@pytest.fixture
def alice(tmp_path, git):
    alice = Diary(tmp_path / "memories", durability="process").user("alice")
    write(alice, git, "tea", "coffee")
    return alice


def write(alice, git, *new):
    for text in new:
        alice.upsert_preference("likes", text)
    git("add", "-A")
    git("commit", "-qm", "write")


def texts(alice):
    return [item.text for item in alice.preferences("likes").values()]


def problems(tmp_path):
    return [one for one in check(Diary(tmp_path / "memories")) if one.level == "problem"]


@pytest.mark.parametrize("config", ["core.autocrlf=false", "core.autocrlf=true"])
def test_a_running_process_follows_a_checkout(tmp_path, git, alice, config):
    git("config", *config.split("="))
    write(alice, git, "jazz")
    git("checkout", "-q", "HEAD~1")
    assert texts(alice) == ["tea", "coffee"]
    alice.upsert_preference("likes", "blues")
    git("stash", "-q")
    git("checkout", "-q", "main")
    alice.upsert_preference("likes", "funk")
    assert texts(alice) == ["tea", "coffee", "jazz", "funk"]
    assert [change.after["text"] for change in alice.history(limit=2)] == ["funk", "jazz"]
    assert problems(tmp_path) == []


def test_reads_and_writes_go_on_during_a_merge_and_both_sides_are_kept(tmp_path, git, alice):
    git("checkout", "-qb", "other")
    write(alice, git, "jazz", "funk")
    git("checkout", "-q", "main")
    write(alice, git, "blues")
    git("merge", "-q", "other", check=False)
    assert texts(alice) == ["tea", "coffee", "blues"]
    alice.upsert_preference("likes", "rock")  # goes to history
    file = tmp_path / "memories/alice/preferences.toml"
    assert "<<<<<<<" in file.read_text()
    assert "git left a conflict here" in str(alice.problems())

    ours, theirs = (git("show", f"{side}:memories/alice/preferences.toml") for side in (":2", ":3"))
    new = theirs[theirs.index("\n[preferences.likes.pref003]") :]
    file.write_text(ours + new.replace("pref003", "jazz").replace("pref004", "funk"))
    git("add", "-A")
    git("commit", "-qm", "merged")
    age(file)
    alice.upsert_preference("likes", "ska")
    assert sorted(texts(alice)) == sorted(["tea", "coffee", "blues", "rock", "jazz", "funk", "ska"])
    by_hand = [change for change in alice.history() if change.type == "hand"]
    assert {change.after["text"] for change in by_hand} == {"jazz", "funk"}
    assert problems(tmp_path) == []


@pytest.mark.parametrize("style", ["merge", "zdiff3"])
def test_a_conflict_in_history_is_mended_by_the_command_that_doctor_names(
    tmp_path, git, alice, style
):
    (tmp_path / ".gitattributes").write_text("* -text\n")
    git("commit", "-qam", "history is merged line by line")
    git("config", "merge.conflictStyle", style)
    git("checkout", "-qb", "other")
    write(alice, git, "jazz")
    next_month = LocalBackend(tmp_path / "memories", durability="process", segment_bytes=1)
    write(Diary(next_month).user("alice"), git, "funk")  # in a new file, which the merge adds
    git("checkout", "-q", "main")
    write(alice, git, "blues")
    git("merge", "-q", "other", check=False)
    history = tmp_path / "memories/alice/history"
    assert any("<<<<<<<" in path.read_text() for path in history.iterdir())
    [found] = [one for one in problems(tmp_path) if one.place.startswith(str(history))]
    command = found.remedy.partition(": ")[2].split()
    assert command == ["git", "-C", str(history), "checkout", "--no-overlay", "HEAD", "--", "."]
    subprocess.run(command, cwd="/", check=True)
    assert [one.message for one in problems(tmp_path) if one.place.startswith(str(history))] == []
    assert texts(Diary(tmp_path / "memories").user("alice")) == ["tea", "coffee", "blues"]


@pytest.mark.parametrize("is_mended_first", [True, False])
def test_a_document_of_the_other_side_is_newer_than_history(tmp_path, git, alice, is_mended_first):
    """git takes it without a conflict, so its number is not checked."""
    git("checkout", "-qb", "other")
    for text in ("baker", "cook"):
        alice.blocks.set("persona", text)
    git("add", "-A")
    git("commit", "-qm", "blocks")
    git("checkout", "-q", "main")
    write(alice, git, "blues")
    git("merge", "-q", "other", check=False)
    git("add", "-A")
    git("commit", "-qm", "merged")
    (found,) = problems(tmp_path)
    assert found.message.endswith("merge in git, or was typed by hand, set seq in [_meta] to 3.")
    if is_mended_first:
        file = tmp_path / "memories/alice/blocks.toml"
        file.write_text(file.read_text().replace("seq = 4", "seq = 3"))
    alice = Diary(tmp_path / "memories").user("alice")
    alice.upsert_preference("likes", "ska")
    assert (texts(alice)[-2:], alice.blocks["persona"].text) == (["blues", "ska"], "cook")
    if not is_mended_first:
        (found,) = problems(tmp_path)
        assert "tomldiary history --user NAME --keep 1 --yes" in found.remedy
        alice.prune_history(keep=1)
    assert problems(tmp_path) == []
