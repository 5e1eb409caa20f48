"""Searches hold nothing that has to be closed, and work in a forked child."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import programs
from tomldiary import Diary
from tomldiary.errors import LockTimeout
from tomldiary.storage.locks import UserLocks, try_lock

FORK = """
import os, sys, warnings
from tomldiary import Diary

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forking with threads
diary = Diary("memory:")
diary.user("alice").upsert_preference("likes", "tea")
assert diary.user("alice").recall("tea")
diary.indexes._guard.acquire()  # another thread searches while the process forks
child = os.fork()
if not child:
    code = 1
    try:
        code = 0 if len(diary.user("alice").recall("tea")) == 1 else 2
    finally:
        os._exit(code)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_searches_though_its_parent_was_searching():
    done = programs.run("-c", FORK)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interpreter_that_ends_leaves_nothing_open():
    code = (
        "from tomldiary import Diary; d = Diary('memory:'); u = d.user('a');"
        "u.upsert_preference('likes', 'tea'); assert u.recall('tea')"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""


def test_an_interpreter_that_ends_inside_a_lock_reports_no_error(tmp_path):
    code = (
        "import builtins, sys; from tomldiary.storage.locks import UserLocks\n"
        "def hold():\n"
        "    with UserLocks(sys.argv[1]).hold('alice', 5):\n"
        "        yield\n"
        "builtins.held = hold(); next(builtins.held)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def open_below(folder):
    """The files below a folder that this process has open."""
    found = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [path for path in found if path.is_relative_to(folder)]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_closed_diary_holds_no_file_open_and_works_again(tmp_path):
    with Diary(tmp_path, agent="rules") as diary:
        diary.user("alice").upsert_preference("likes", "tea")
        assert open_below(tmp_path)
    assert open_below(tmp_path) == []
    diary.user("alice").upsert_preference("likes", "coffee")
    assert len(diary.user("alice").preferences("likes")) == 2


def test_closing_does_not_release_a_lock_that_is_held(tmp_path):
    locks, other = UserLocks(tmp_path), UserLocks(tmp_path)
    with locks.hold("alice", 1):
        locks.close()
        with pytest.raises(LockTimeout), other.hold("alice", 0.05):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(("allowed", "most"), [(1024, 300), (256, 85), (-1, 300)])
def test_several_memories_of_many_users_hold_few_lock_files_open(
    tmp_path, monkeypatch, allowed, most
):
    monkeypatch.setattr(os, "sysconf", {"SC_OPEN_MAX": allowed}.__getitem__)
    several = [UserLocks(tmp_path / str(number)) for number in range(4)]
    for user in range(300):
        for locks in several:
            with locks.hold(f"user{user}", 5):
                if user == 299:  # released locks have closed their files by now; a held one has not
                    other = UserLocks(locks.folder)
                    with pytest.raises(LockTimeout), other.hold(f"user{user}", 0):
                        pass
    assert len(open_below(tmp_path)) <= most
    for locks in several:
        locks.close()
    assert open_below(tmp_path) == []


@pytest.mark.skipif(
    sys.platform == "win32", reason="there a locked file is a handle, not a descriptor"
)
def test_an_interrupt_after_a_lock_file_is_closed_unlocks_no_other_file(tmp_path, monkeypatch):
    locks, *several = [UserLocks(tmp_path / str(number)) for number in range(4)]
    for user in range(300):
        for each in several:
            with each.hold(f"user{user}", 5):
                pass
    path = tmp_path / "other"
    other = os.open(path, os.O_RDWR | os.O_CREAT)
    closed, close = [], os.close

    def interrupt(frame, event, _):
        if event == "call" and closed and frame.f_code.co_name == "release":
            sys.setprofile(None)
            os.dup2(other, closed[0])  # another thread gets this number for its file, and locks it
            assert try_lock(closed[0])
            raise KeyboardInterrupt

    with locks.hold("alice", 5):
        pass
    monkeypatch.setattr(os, "close", lambda number: (close(number), closed.append(number)))
    with pytest.raises(KeyboardInterrupt), locks.hold("alice", 5):
        sys.setprofile(interrupt)
    monkeypatch.undo()
    again = os.open(path, os.O_RDWR)
    assert not try_lock(again)
    with locks.hold("alice", 0):
        pass
    for descriptor in (*closed, other, again):
        os.close(descriptor)
