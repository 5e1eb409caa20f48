"""Each lock of a user finds what a killed or failed writer left."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from capabilities import needs_exchange
from file_systems import HookedFiles
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import BackendError, CommittedUnpublished, LockTimeout
from tomldiary.storage.local.publish import staged_path


def opened(folder, files=None):
    return Diary(LocalBackend(folder, durability="process", files=files), agent="rules")


def texts(diary):
    return [item.text for item in diary.user("alice").preferences("likes").values()]


def busy(folder, files=None):
    """Return a diary that has written and found nothing left over."""
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


def test_a_write_that_is_refused_leaves_no_staged_file(tmp_path, files):
    diary = busy(tmp_path, files)

    def is_full(name, path, *_):
        if name == "write" and path.endswith("-conversations.tmp"):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    files.hook = is_full
    with pytest.raises(BackendError, match="Nothing was changed"):
        diary.user("alice").add_turn("I love walks.", "ok", session_id="s1")
    assert list((tmp_path / "alice").glob(".staged-*")) == []


@needs_exchange
def test_the_next_read_publishes_what_a_write_only_committed(tmp_path, files):
    diary = busy(tmp_path, files)

    def fails(name, path, *_):
        if name == "exchange":
            raise OSError(errno.EIO, "Input/output error", path)

    files.hook = fails
    with pytest.raises(CommittedUnpublished):
        diary.user("alice").upsert_preference("likes", "walks")
    assert texts(diary) == ["tea", "coffee", "water", "walks"]
    files.hook = None
    assert texts(diary) == ["tea", "coffee", "water", "walks"]
    assert '"walks"' in (tmp_path / "alice/preferences.toml").read_text()


def test_without_exchanges_on_its_disk_a_document_is_replaced(tmp_path, files):
    files.exchange = lambda *_: False
    busy(tmp_path, files)
    assert '"water"' in (tmp_path / "alice/preferences.toml").read_text()
    assert list((tmp_path / "alice").glob(".staged-*")) == []


def test_without_exchanges_a_hand_edit_during_a_write_is_kept(tmp_path, files):
    files.has_exchange = False
    diary, file = busy(tmp_path, files), tmp_path / "alice/preferences.toml"

    def save(name, path, *_):
        if name == "write" and "/history/" in path:
            files.hook = None
            file.write_text(file.read_text().replace('"tea"', '"green tea"'))
            os.utime(file, (1, 1))

    files.hook = save
    diary.user("alice").upsert_preference("likes", "rest")
    assert texts(diary) == ["green tea", "coffee", "water", "rest"]


def test_a_file_that_only_begins_like_a_staged_one_is_left_alone(tmp_path):
    busy(tmp_path)
    other = tmp_path / "alice/.staged-My notes"
    other.write_text("mine")
    opened(tmp_path).user("alice").upsert_preference("likes", "rest")
    assert other.read_text() == "mine"


def test_a_folder_restored_after_its_user_was_locked_is_recovered(tmp_path):
    opened(tmp_path / "backup").user("alice").upsert_preference("likes", "tea")
    backend = LocalBackend(tmp_path / "restored")
    with backend.lock("alice", 1):
        pass  # there is no such user yet
    shutil.copytree(tmp_path / "backup/alice", tmp_path / "restored/alice")
    left = Path(staged_path(tmp_path / "restored/alice", "preferences", b"torn", 99))
    left.write_bytes(b"torn")
    with backend.lock("alice", 1):
        assert not left.exists()


def replace_folder(memory):
    shutil.copytree(memory, memory.with_name("copy"))
    memory.rename(memory.with_name("old"))
    memory.with_name("copy").rename(memory)


def remove_system_folder(memory):
    shutil.rmtree(memory / ".tomldiary")


@pytest.mark.parametrize("change", [replace_folder, remove_system_folder, shutil.rmtree])
def test_processes_exclude_each_other_after_lock_files_were_removed(tmp_path, change):
    first, second = (LocalBackend(tmp_path / "memory") for _ in range(2))
    with first.lock("alice", 1):
        pass  # keeps its lock file open
    change(tmp_path / "memory")
    with second.lock("alice", 1), pytest.raises(LockTimeout), first.lock("alice", 0):
        pass
    with first.lock("alice", 1), pytest.raises(LockTimeout), second.lock("alice", 0):
        pass


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES])
def test_without_a_lock_file_nothing_is_written(tmp_path, code):
    def refused(name, path, *args):
        if name == "open" and args[0] & os.O_RDWR and f"{tmp_path}/.tomldiary/locks/" in path:
            raise OSError(code, os.strerror(code), path)

    alice = opened(tmp_path, HookedFiles(refused)).user("alice")
    with pytest.raises(BackendError, match="locks/"):
        alice.upsert_preference("likes", "tea")
    assert not (tmp_path / "alice").exists()
