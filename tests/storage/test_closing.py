"""Searches hold nothing that has to be closed, and work in a forked child."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False)
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
