"""Whoever was at a user last has left a mark: what a killed writer left is found, and looked for no more often than needed."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from capabilities import needs_exchange
from hand_edits import age
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.storage.local.layout import staged_name
from tomldiary.storage.locks import UserLocks

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def opened(folder, files=None):
    return Diary(LocalBackend(folder, durability="process", files=files), agent="rules")


def texts(diary):
    return [item.text for item in diary.user("alice").preferences("likes").values()]


def busy(folder, files=None):
    """Return a diary that has found nothing left over, and need not look again."""
    diary = opened(folder, files)
    for text in ("tea", "coffee", "water"):
        diary.user("alice").upsert_preference("likes", text)
    return diary


def killed(diary, files, moment):
    """Write "walks" in a process of its own, which dies at some moment of that."""
    child = os.fork()
    if child == 0:

        def die(name, path, *_):
            if moment in (name, f"{name} {Path(path).parent.name}"):
                os._exit(7)

        files.hook = die
        diary.user("alice").upsert_preference("likes", "walks")
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@needs_exchange
@pytest.mark.parametrize("is_same_object", [True, False])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_running_process_recovers_writes_of_a_killed_one(
    tmp_path, files, is_same_object, is_committed
):
    diary = busy(tmp_path, files)
    moment = "exchange" if is_committed else "write history"
    killed(diary if is_same_object else opened(tmp_path, files), files, moment)
    folder = tmp_path / "alice"
    assert len(list(folder.glob(".staged-*"))) == 1
    diary.user("alice").upsert_preference("likes", "rest")
    assert list(folder.glob(".staged-*")) == []
    wanted = ["tea", "coffee", "water", *(["walks"] if is_committed else []), "rest"]
    assert texts(diary) == texts(opened(tmp_path)) == wanted


def test_recovery_reads_the_folder_only_after_another_process_wrote(tmp_path, files):
    looks = []
    diary = busy(tmp_path, files)
    files.hook = lambda name, path, *_: looks.append(path) if name == "listdir" else None
    for number in range(20):
        diary.user("alice").upsert_preference("likes", f"thing {number}")
    assert str(tmp_path / "alice") not in looks
    opened(tmp_path).user("alice").upsert_preference("likes", "of another")
    looks.clear()
    diary.user("alice").upsert_preference("likes", "ours again")
    assert looks.count(str(tmp_path / "alice")) == 1


def test_an_unpublished_document_is_not_recovered_repeatedly(tmp_path, files):
    looks = []
    diary = busy(tmp_path, files)
    file = tmp_path / "alice/preferences.toml"
    file.write_text(f"{file.read_text()}\nlikes = [")  # not finished
    age(file)
    diary.user("alice").upsert_preference("likes", "of one")
    opened(tmp_path).user("alice").upsert_preference("likes", "of another")
    files.hook = lambda name, path, *_: looks.append(path) if name == "listdir" else None
    diary.user("alice").upsert_preference("likes", "of the one")
    assert str(tmp_path / "alice") in looks
    looks.clear()
    for number in range(5):
        diary.user("alice").upsert_preference("likes", f"thing {number}")
    assert str(tmp_path / "alice") not in looks


@needs_exchange
def test_a_failed_write_causes_a_new_recovery(tmp_path, files):
    diary = busy(tmp_path, files)

    class Interrupted(BaseException):
        pass

    def stops(*_):
        raise Interrupted

    files.exchange = stops
    with pytest.raises(Interrupted):
        diary.user("alice").upsert_preference("likes", "walks")
    del files.exchange
    diary.user("alice").upsert_preference("likes", "rest")
    assert list((tmp_path / "alice").glob(".staged-*")) == []
    assert texts(diary) == ["tea", "coffee", "water", "walks", "rest"]


def tenure(locks, user="alice"):
    with locks.hold(user, 1):
        return locks.tenure(user)


def test_a_lock_taken_by_another_process_ends_the_tenure(tmp_path):
    ours, others = UserLocks(tmp_path), UserLocks(tmp_path)
    seen = [tenure(ours), tenure(ours)]
    assert seen[0] == seen[1]
    for _ in range(3):
        tenure(others, "bob")  # of another file
        assert tenure(ours) == seen[-1]
        tenure(others)
        seen.append(tenure(ours))
    assert len(set(seen)) == 4


def test_a_forked_child_counts_as_another_process(tmp_path):
    locks = UserLocks(tmp_path)
    before = tenure(locks)
    child = os.fork()
    if child == 0:
        os._exit(int(tenure(locks) != before))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert tenure(locks) != before


def test_a_process_that_cannot_write_its_mark_ends_every_tenure(tmp_path, files):
    ours, others = UserLocks(tmp_path), UserLocks(tmp_path, files)
    before = tenure(ours)

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    files.write_at = full
    assert tenure(others) != tenure(others)  # nobody can tell whether it was them the last time
    assert tenure(ours) != before


def test_a_folder_restored_after_its_user_was_locked_is_recovered(tmp_path):
    opened(tmp_path / "backup").user("alice").upsert_preference("likes", "tea")
    backend = LocalBackend(tmp_path / "restored")
    with backend.lock("alice", 1):
        pass  # there is no such user yet
    shutil.copytree(tmp_path / "backup/alice", tmp_path / "restored/alice")
    left = tmp_path / "restored/alice" / staged_name("preferences", b"torn", 99, 1)
    left.write_bytes(b"torn")
    with backend.lock("alice", 1):
        assert not left.exists()
