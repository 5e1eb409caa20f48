"""A first read never waits for a writer, and is right nevertheless."""

from __future__ import annotations

import os
import shutil
import time

import pytest

import programs
from file_systems import HookedFiles
from hand_edits import age, texts
from power_cuts import SameDisk
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import LockTimeout
from tomldiary.storage.locks import UserLocks
from tomldiary.store.operations import List, Put, Search
from tomldiary.store.store import ItemStore

WRITER = """
import sys
from tomldiary import Diary
with Diary(sys.argv[1], agent="rules", durability="process").user(sys.argv[2]).transaction() as tx:
    tx.upsert_preference("likes", "not yet")
    print("ready", flush=True)
    sys.stdin.readline()
"""
READS = {
    "preferences": lambda alice: alice.preferences(),
    "render": lambda alice: alice.render(),
    "conversations": lambda alice: alice.conversations(),
    "recall": lambda alice: alice.recall("tea"),
    "history": lambda alice: alice.history(),
    "blocks": lambda alice: alice.blocks(),
    "export": lambda alice: alice.export(),
    "listing": lambda alice: ItemStore(alice.diary).run([List()]),
    "search": lambda alice: ItemStore(alice.diary).run([Search(("alice",))]),
}


def neighbour_of(user):
    """Return a user who shares the lock of another user."""
    locks = UserLocks(None)
    with locks.hold(user, 1.0):
        for name in map("user {}".format, range(10_000)):
            try:
                with locks.hold(name, 0):
                    pass
            except LockTimeout:
                return name
    raise AssertionError("each user has a lock of their own")


NEIGHBOUR = neighbour_of("alice")


@pytest.fixture
def diary(tmp_path):
    diary = Diary(LocalBackend(tmp_path / "m", files=SameDisk()), agent="rules")
    diary.user("alice").upsert_preference("likes", "tea")
    diary.user("alice").upsert_preference("likes", "walking")
    diary.user("alice").add_turn("Hello.", "Hello.", session_id="s1")
    return diary


@pytest.fixture
def writing():
    """Have another process stand still in a transaction."""
    started = []

    def write(folder, user):
        process = programs.start("-c", WRITER, folder, user)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield write
    for process in started:
        if process.returncode is None:
            process.communicate("go\n")


@pytest.mark.usefixtures("diary")
@pytest.mark.parametrize("user", ["alice", NEIGHBOUR], ids=["same user", "same lock file"])
def test_a_first_read_does_not_wait_for_a_long_transaction(tmp_path, writing, user):
    writing(tmp_path / "m", user)
    for name, read in READS.items():
        alice = Diary(tmp_path / "m", agent="rules").user("alice")
        started = time.monotonic()
        found = read(alice)
        assert time.monotonic() - started < 4, (
            name
        )  # each lock would be waited for for five seconds
        assert found is not None, name
        assert texts(alice) == ["tea", "walking"]


def cut(data):
    return data[: data.index(b"[preferences.likes.pref002]")]


@pytest.mark.usefixtures("diary")
@pytest.mark.parametrize("tear", [cut, lambda data: b"", lambda data: data[:-9]])
def test_a_torn_document_is_repaired_in_memory_for_readers(tmp_path, writing, tear):
    shutil.copytree(tmp_path / "m", tmp_path / "two")  # as after a power cut: another boot
    file = tmp_path / "two/alice/preferences.toml"
    whole = file.read_bytes()
    torn = tear(whole)
    file.write_bytes(torn)
    os.utime(file, (1e9, 1e9))
    (tmp_path / "two/alice/blocks.toml").write_text('[blocks.note]\ntext = "in no record"\n')
    writer = writing(tmp_path / "two", NEIGHBOUR)
    alice = Diary(tmp_path / "two", agent="rules").user("alice")
    assert texts(alice) == ["tea", "walking"]
    assert alice.blocks()["note"].text == "in no record"
    assert file.read_bytes() == torn
    writer.communicate("go\n")
    assert texts(alice) == ["tea", "walking"]
    assert file.read_bytes() == whole


@pytest.mark.usefixtures("diary")
def test_without_the_repair_in_memory_a_torn_document_is_read(tmp_path, writing):
    """Where the boot is known as the same, nothing can be torn, and the repair is left out."""
    shutil.copytree(tmp_path / "m", tmp_path / "two")
    file = tmp_path / "two/alice/preferences.toml"
    file.write_bytes(cut(file.read_bytes()))
    os.utime(file, (1e9, 1e9))
    writing(tmp_path / "two", NEIGHBOUR)
    backend = LocalBackend(tmp_path / "two", files=SameDisk())
    assert texts(Diary(backend, agent="rules").user("alice")) == ["tea"]


@pytest.mark.usefixtures("diary")
def test_a_hand_edit_is_read_while_the_lock_is_held(tmp_path, writing):
    file = tmp_path / "m/alice/preferences.toml"
    file.write_text(file.read_text().replace('"tea"', '"rum"'))
    age(file)
    writing(tmp_path / "m", NEIGHBOUR)
    assert texts(Diary(tmp_path / "m", agent="rules").user("alice")) == ["rum", "walking"]


@pytest.mark.usefixtures("diary")
@pytest.mark.parametrize("name", ["recall", "render", "export", "documents", "users"])
def test_a_first_read_lists_what_a_killed_writer_did_not_publish(tmp_path, name):
    child = os.fork()
    if child == 0:
        try:
            files = HookedFiles(lambda made, *_: os._exit(0) if made == "replace" else None)
            store = ItemStore(Diary(LocalBackend(tmp_path / "m", files=files), agent="rules"))
            store.run([Put(("bob", "trips"), "porto", {"text": "tea in Porto"})])
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not (tmp_path / "m/bob/items/trips.toml").exists()
    listing = {
        "documents": lambda bob: bob.documents(),
        "users": lambda bob: (bob.diary.users(), bob.documents()),
    }
    found = str({**READS, **listing}[name](Diary(tmp_path / "m", agent="rules").user("bob")))
    assert "trips" in found
    assert name != "users" or "'bob'" in found


@pytest.mark.parametrize("name", READS)
def test_reading_a_folder_without_history_creates_nothing(tmp_path, name):
    """The path may be that of other files, such as a project with a folder `src`."""
    for file, text in (
        ("alice/preferences", '[likes.tea]\ntext = "tea"'),
        ("src/project", "a = 1"),
    ):
        (tmp_path / file).parent.mkdir()
        (tmp_path / f"{file}.toml").write_text(f"{text}\n")
    diary = Diary(tmp_path, agent="rules")
    for user in diary.users():
        READS[name](diary.user(user))
    assert {each.name for each in tmp_path.iterdir()} == {"alice", "src"}
    assert texts(diary.user("alice")) == ["tea"]
    diary.user("alice").upsert_preference("likes", "walking")
    assert {*texts(Diary(tmp_path, agent="rules").user("alice"))} == {"tea", "walking"}
