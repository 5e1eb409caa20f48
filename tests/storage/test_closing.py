"""What is opened is closed: database connections, with and without a `with` block, and after a fork."""

from __future__ import annotations

import gc
import os
import sqlite3
import subprocess
import sys
from contextlib import nullcontext

import pytest

import tomldiary.retrieval.lexical_index
from tomldiary import Diary
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore


@pytest.fixture
def opened(monkeypatch):
    """The connections that are open, by identity; SQLite itself is the real one."""
    connections = []

    class Counted(sqlite3.Connection):
        def __init__(self, *values, **options):
            super().__init__(*values, **options)
            connections.append(id(self))

        def close(self):
            super().close()
            connections.remove(id(self))

    connect = sqlite3.connect

    def counting(*values, **options):
        return connect(*values, factory=Counted, **options)

    monkeypatch.setattr(sqlite3, "connect", counting)
    assert tomldiary.retrieval.lexical_index.sqlite3.connect is counting
    return connections


@pytest.mark.parametrize("is_left", [True, False], ids=["with", "without"])
def test_a_diary_closes_its_search_connections(tmp_path, opened, is_left):
    diary = Diary(tmp_path)
    with diary if is_left else nullcontext():
        alice = diary.user("alice")
        alice.upsert_preference("likes", "tea")
        assert alice.recall("tea")
        assert alice.as_of(1).recall("tea")
        alice.forget(everything=True)
        alice.upsert_preference("likes", "tea")
        assert alice.recall("tea")
    assert opened
    del alice, diary
    gc.collect()
    assert opened == []


def test_a_store_closes_its_search_connections(tmp_path, opened):
    store = ItemStore(Diary(tmp_path))
    for text in ("tea", "coffee"):
        store.run([Put(("alice", "notes"), "a", {"text": text})])
        assert store.run([Search(("alice",), query=text)])[0]
        if text == "tea":
            store.diary.user("alice").forget(everything=True)
    assert opened
    del store
    gc.collect()
    assert opened == []


FORK = """
import gc, os, sys, warnings
from tomldiary import Diary
from tomldiary.retrieval.lexical_index import WordTable

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forking with threads
diary = Diary("memory:")
diary.user("alice").upsert_preference("likes", "tea")
assert diary.user("alice").recall("tea")
child = os.fork()
if not child:
    code = 1
    try:
        gc.collect()
        left = len(WordTable._left)
        found = len(diary.user("alice").recall("tea"))
        code = 0 if (left, found) == (1, 1) else 2
    finally:
        os._exit(code)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_close_connections_of_its_parent():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interpreter_that_ends_leaves_no_connection_open():
    code = (
        "from tomldiary import Diary; d = Diary('memory:'); u = d.user('a');"
        "u.upsert_preference('likes', 'tea'); assert u.recall('tea')"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
