"""A forked child that lives on keeps nothing locked of a parent that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

import engines
import programs
from tomldiary import Diary, MemoryWriter
from tomldiary.errors import NestedTransaction
from tomldiary.storage.files import FileSystem
from tomldiary.storage.locks import UserLocks, lock_file, try_lock
from tomldiary.writer.journal import Journal

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

# A parent that is killed while it holds a lock, and a child of its that waits until its input ends.
PARENT = """
import os, sys
from tomldiary import Diary
folder, when, locked = sys.argv[1:]
alice = Diary(folder, agent="rules", durability="process").user("alice")
alice.upsert_preference("likes", "tea")

def fork():
    told, tell = os.pipe()
    if os.fork() != 0:
        os.read(told, 1)  # the child has begun
    else:
        os.write(tell, b"x")
        os.close(1)
        sys.stdin.read()
        os._exit(0)

def hold():
    if locked == "journal":
        from pathlib import Path
        from tomldiary.storage.locks import lock_file
        place = Path(folder) / "alice/locked"
        place.touch()
        return lock_file(alice.diary.engine.backend.files, place)
    if locked == "writer":
        import time
        from tomldiary import MemoryWriter, Turn
        writer = MemoryWriter(Diary(folder, agent=lambda message, *, deps: time.sleep(600)))
        writer.submit_nowait(Turn("alice", "s", "I love coffee.", "ok")).wait_stored(30)
        return writer
    return alice.transaction()

if when == "before":
    fork()
with hold():
    if when == "inside":
        fork()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def orphaned(tmp_path):
    """Have a parent killed in a transaction; its child ends with the test."""
    parents = []

    def orphan(when, locked="user"):
        parent = programs.start("-c", PARENT, tmp_path, when, locked)
        parents.append(parent)
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        parent.wait()

    yield orphan
    for parent in parents:
        parent.stdin.close()
        parent.stdout.close()


@pytest.mark.parametrize("when", ["before", "inside"])
def test_a_killed_parents_lock_is_free_while_its_child_lives(tmp_path, orphaned, when):
    orphaned(when)
    alice = Diary(tmp_path, agent="rules", durability="process", lock_timeout=2).user("alice")
    alice.upsert_preference("likes", "coffee")
    assert len(alice.preferences("likes")) == 2


@pytest.mark.parametrize("when", ["before", "inside"])
def test_a_killed_parents_journal_is_free_while_its_child_lives(tmp_path, orphaned, when):
    orphaned(when, "journal")
    descriptor = os.open(tmp_path / "alice/locked", os.O_RDWR)
    try:
        assert try_lock(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("when", ["before", "inside"])
def test_a_killed_writers_turns_are_taken_over_while_its_child_lives(tmp_path, orphaned, when):
    orphaned(when, "writer")
    diary = Diary(tmp_path, agent="rules")
    with MemoryWriter(diary) as writer:
        assert writer.flush(30)
        assert writer.stats()["recovered"] == 1
    assert len(diary.user("alice").preferences("likes")) == 2


def test_a_child_locks_by_itself_and_leaves_its_parents_lock_alone(tmp_path, files):
    locks = UserLocks(tmp_path, files)
    with locks.hold("alice", 1):
        [descriptor] = files.paths
        child = os.fork()
        if child == 0:
            with suppress(OSError):  # it is closed
                os.fstat(descriptor)
                os._exit(4)
            try:
                with UserLocks(tmp_path).hold("alice", 0.1):
                    os._exit(2)
            except Exception as error:  # noqa: BLE001 - told by the exit code
                os._exit(0 if type(error).__name__ == "LockTimeout" else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with UserLocks(tmp_path).hold("alice", 1):
        pass


def texts(alice):
    return sorted((change.seq, change.after["text"]) for change in alice.history())


@pytest.mark.parametrize("backend", ["folder", "memory:"])
def test_a_child_forked_inside_a_transaction_does_not_store_it(tmp_path, backend):
    diary = Diary(tmp_path if backend == "folder" else backend, agent="rules")
    alice = diary.user("alice")
    child = -1
    try:
        with alice.transaction():
            alice.upsert_preference("likes", "tea")
            child = os.fork()
            if child:
                alice.upsert_preference("likes", "jazz")
    except NestedTransaction as error:
        os._exit(0 if child == 0 and "forked inside the transaction" in str(error) else 3)
    finally:
        if child == 0:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert texts(alice) == [(1, "jazz"), (1, "tea")]


def test_a_child_forked_inside_a_transaction_writes_after_it(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    with alice.transaction():
        alice.upsert_preference("likes", "tea")
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                alice.upsert_preference("likes", "jazz")
                os._exit(0)
            os._exit(3)
        time.sleep(0.1)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)  # it waits for the lock
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert texts(alice) == [(1, "tea"), (2, "jazz")]


# A writer applies two turns, and each module that one of its threads imports is printed.
IMPORTS = """
import sys, threading
from tomldiary import Diary, MemoryWriter, Turn

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            print(name)

sys.meta_path.insert(0, Watch())
with MemoryWriter(Diary(sys.argv[1], agent="rules")) as writer:
    for text in ("I love tea.", "I love jazz."):
        writer.submit_nowait(Turn("alice", "s", text, "ok"))
        assert writer.flush(60)
"""


@pytest.mark.parametrize("name", ["folder", "postgres", "redis"])
def test_a_writers_threads_import_nothing_that_a_fork_would_leave_locked(name, tmp_path):
    place = engines.space(name, tmp_path).url
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, place], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


def user_lock(folder, files):
    with UserLocks(folder, files).hold("alice", 1):
        pass


def locked_file(folder, files):
    (folder / "file").touch()
    with lock_file(files, folder / "file"):
        pass


def journal(folder, files):
    Journal.create(folder, sync=False, files=files).close()


def has_copy_in_a_child(descriptor, status):
    """Return whether a child that is forked now has a file open under this number."""
    child = os.fork()
    if child == 0:
        try:
            # On a slow machine the number may be of another file by now.
            os._exit(os.path.samestat(os.fstat(descriptor), status))
        except OSError:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


@pytest.mark.parametrize("lock", [user_lock, locked_file, journal])
def test_a_child_forked_while_a_lock_file_is_opened_has_no_copy(tmp_path, lock):
    opened, found = threading.Event(), []

    class SlowFiles(FileSystem):
        def open(self, *args):
            descriptor = super().open(*args)
            found.append((descriptor, os.fstat(descriptor)))
            opened.set()
            time.sleep(0.2)
            return descriptor

    thread = threading.Thread(target=lock, args=(tmp_path, SlowFiles()))
    thread.start()
    assert opened.wait(30)
    assert not has_copy_in_a_child(*found[0])
    thread.join()


def test_a_child_forked_while_a_lock_file_is_closed_has_no_copy(tmp_path):
    closing, found = threading.Event(), []

    class SlowFiles(FileSystem):
        def close(self, descriptor):
            found.append((descriptor, os.fstat(descriptor)))
            closing.set()
            time.sleep(0.2)
            super().close(descriptor)

    thread = threading.Thread(target=locked_file, args=(tmp_path, SlowFiles()))
    thread.start()
    assert closing.wait(30)
    assert not has_copy_in_a_child(*found[0])
    thread.join()
