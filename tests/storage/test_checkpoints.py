"""Documents go to the disk a window of transactions at a time, and a restart finds out what it has lost."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from file_systems import SetClock
from hand_edits import age
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import BackendError
from tomldiary.history.record import parse_record
from tomldiary.storage.copy import copy_users
from tomldiary.storage.environment import CHECKPOINT_INTERVAL, Clock, Environment
from tomldiary.storage.local import recovery as boots
from tomldiary.storage.local.publish import staged_path


def opened(root, durability="full", window=CHECKPOINT_INTERVAL, **options):
    backend = LocalBackend(root, durability=durability, checkpoint_interval=window, **options)
    return Diary(backend, agent="rules")


def history_of(root):
    [segment] = (root / "alice/history").iterdir()
    return segment


@pytest.fixture
def synced(files):
    """The inodes that were synced with this file system, in order."""
    found = []

    def note(name, path, *_):
        if name == "sync_file":
            found.append(Path(path).stat().st_ino)

    files.hook = note
    return found


def test_a_checkpoint_syncs_documents_before_the_next_interval(tmp_path, files, synced):
    alice = opened(tmp_path, window=4, files=files).user("alice")
    file = tmp_path / "alice/preferences.toml"
    when = []
    for number in range(1, 10):
        before = file.stat().st_ino if number > 1 else None
        synced.clear()
        alice.upsert_preference("likes", f"thing {number}")
        if before in synced and file.parent.stat().st_ino in synced:
            when.append(number)
    assert when == [5, 9]


@pytest.mark.parametrize(
    ("drop", "first"),
    [
        (lambda alice: alice.prune_history(keep=1), "history/.pruned.tmp"),
        (lambda alice: alice.forget(session_id="s1"), ".forgetting-0"),
    ],
    ids=["retention", "forgetting"],
)
def test_documents_are_synced_before_their_records_are_dropped(tmp_path, files, drop, first):
    alice = opened(tmp_path, files=files).user("alice")
    file = tmp_path / "alice/preferences.toml"
    alice.add_turn("I love rum.", "ok", session_id="s1")
    for number in range(3):
        alice.upsert_preference("likes", f"thing {number}")
    done = []
    files.hook = lambda name, path, *_: done.append((name, path))
    drop(alice)
    before = done[: done.index(("open", str(file.parent / first)))]
    assert ("sync_file", str(file)) in before
    assert ("sync_file", str(file.parent)) in before


def test_a_snapshot_is_on_the_disk_before_older_segments_are_removed(tmp_path, files):
    alice = opened(tmp_path, files=files, segment_bytes=1).user("alice")
    for number in range(4):
        alice.upsert_preference("likes", f"thing {number}")
    done = []
    files.hook = lambda name, path, *_: done.append((name, path))
    alice.prune_history(keep=1)
    history = str(tmp_path / "alice/history")
    done = done[done.index(("replace", f"{history}/.pruned.tmp")) :]
    removed = next(number for number, (name, _) in enumerate(done) if name == "unlink")
    assert ("sync_file", history) in done[:removed]
    assert ("sync_file", history) in done[removed:]


def test_a_new_segment_begins_when_the_one_before_is_on_the_disk(tmp_path, files, synced):
    opened(tmp_path, "process").user("alice").upsert_preference("likes", "tea")
    before = history_of(tmp_path).stat().st_ino
    opened(tmp_path, files=files, segment_bytes=1).user("alice").upsert_preference("likes", "rum")
    assert before in synced


def test_the_first_write_syncs_the_names_of_all_its_folders(tmp_path, files, synced):
    opened(tmp_path / "m", files=files).user("alice").upsert_preference("likes", "tea")
    folders = [tmp_path, tmp_path / "m", tmp_path / "m/alice", tmp_path / "m/alice/history"]
    for root in folders[1:]:
        assert root.stat().st_ino in synced, root
    synced.clear()
    opened(tmp_path / "m", files=files).user("alice").upsert_preference("likes", "rum")
    for root in folders:  # the process that created them may have been killed
        assert root.stat().st_ino in synced, root


def test_a_checkpoint_syncs_documents_of_other_processes(tmp_path, files, synced):
    alice = opened(tmp_path, window=4, files=files).user("alice")
    alice.upsert_preference("likes", "tea")
    opened(tmp_path, "process", 4).user("alice").add_turn("hello", "hi", session_id="s1")
    while alice.history()[0].seq < 4:
        alice.upsert_preference("likes", f"thing {alice.history()[0].seq}")
    synced.clear()
    alice.upsert_preference("likes", "more")
    assert (tmp_path / "alice/conversations.toml").stat().st_ino in synced


@pytest.mark.parametrize("window", [4, 256])
def test_a_copy_syncs_documents_that_recovery_would_not_restore(tmp_path, files, synced, window):
    """Recovery reads the last window only, and a copy has the records of several, but none of a new hand edit."""
    alice = opened(tmp_path / "source", window=4).user("alice")
    alice.blocks.set("persona", "short answers")
    for number in range(5):
        alice.upsert_preference("likes", f"thing {number}")
    with (tmp_path / "source/alice/preferences.toml").open("a", encoding="utf-8") as file:
        file.write('[preferences.likes.mine]\ntext = "by hand"\n')
    target = opened(tmp_path / "target", window=window, files=files).engine.backend
    assert [each.records for each in copy_users(LocalBackend(tmp_path / "source"), target)] == [6]
    for name in ("blocks.toml", "preferences.toml"):
        assert (tmp_path / "target/alice" / name).stat().st_ino in synced


def test_numbers_that_are_left_out_skip_no_checkpoint(tmp_path, files, synced):
    """As after records were removed that documents still name."""
    alice = opened(tmp_path, window=4, files=files).user("alice")
    file = tmp_path / "alice/preferences.toml"
    for number in range(4):
        alice.upsert_preference("likes", f"thing {number}")
        if number == 1:
            segment, fewer = history_of(tmp_path), history_of(tmp_path).read_bytes()
    segment.write_bytes(fewer)
    synced.clear()
    before = file.stat().st_ino
    alice.upsert_preference("likes", "more")
    assert alice.last_transaction() == 7  # what the document has was logged, too
    assert before in synced


def test_without_full_durability_no_document_is_synced(tmp_path, files, synced):
    alice = opened(tmp_path, "process", 2, files=files).user("alice")
    file = tmp_path / "alice/preferences.toml"
    inodes = set()
    for number in range(6):
        alice.upsert_preference("likes", f"thing {number}")
        inodes.add(file.stat().st_ino)
    assert inodes.isdisjoint(synced)


def test_a_link_in_place_of_a_document_stops_no_checkpoint(tmp_path):
    alice = opened(tmp_path / "m", window=4).user("alice")
    alice.blocks.set("persona", "short answers")
    place, file = tmp_path / "elsewhere.toml", tmp_path / "m/alice/blocks.toml"
    file.rename(place).chmod(0o644)
    file.symlink_to(place)
    for number in range(6):
        alice.upsert_preference("likes", f"thing {number}")
    assert len(alice.preferences("likes")) == 6
    assert place.stat().st_mode & 0o777 == 0o644


def test_a_document_whose_sync_failed_is_written_again(tmp_path, files):
    # The system tells of what it could not write once; a second sync of the same file says that all is well.
    alice = opened(tmp_path, window=2, files=files).user("alice")
    file = tmp_path / "alice/preferences.toml"
    alice.upsert_preference("likes", "tea")
    alice.upsert_preference("likes", "rum")

    def failing(name, path, *_):
        if (name, path) == ("sync_file", str(file)):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))

    files.hook = failing
    with pytest.raises(BackendError, match="Nothing was changed"):
        alice.upsert_preference("likes", "gin")
    assert [item.text for item in alice.preferences("likes").values()] == ["tea", "rum"]
    synced = []

    def note(name, path, *_):
        if name == "sync_file":
            synced.append((path, Path(path).read_bytes() if Path(path).is_file() else b""))

    files.hook = note
    before = file.read_bytes()
    alice.upsert_preference("likes", "gin")
    assert ".staged-" in synced[0][0]
    assert [data for path, data in synced if ".staged-" in path] == [before]
    assert [item.text for item in alice.preferences("likes").values()] == ["tea", "rum", "gin"]


# After a restart


@pytest.fixture
def restarted(tmp_path):
    """Does four things to a memory, and opens it like the first process after a restart of the machine."""
    alice = opened(tmp_path).user("alice")
    for number in range(4):
        alice.upsert_preference("likes", f"thing {number}")

    def open_again():
        return opened(tmp_path, clock=SetClock("the next boot")).user("alice")

    return open_again


def texts(alice):
    return [item.text for item in alice.preferences("likes").values()]


def cut_between_entries(data):
    return data[: data.index(b"[preferences.likes.pref004]")]


TEARS = {
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "zeros of the size of a block": lambda data: bytes(100) + data[100:],
    "cut within a line": lambda data: data[:-7],
    "cut between entries": cut_between_entries,
    "cut within a letter": lambda data: data.replace(b"thing 3", "thing \u00e9".encode())[:0],
}


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_document_is_restored_from_history(tmp_path, restarted, tear):
    file = tmp_path / "alice/preferences.toml"
    whole = file.read_bytes()
    file.write_bytes(TEARS[tear](whole))
    os.utime(file, (1, 1))
    assert texts(restarted()) == [f"thing {number}" for number in range(4)]
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("later", "written", "is_theirs"), [(5, 0, False), (120, 0, True), (100, 50, True)]
)
def test_a_file_saved_long_after_its_record_is_a_hand_edit(
    tmp_path, restarted, later, written, is_theirs
):
    history = history_of(tmp_path)  # the last transaction may be of another document
    os.utime(history, (history.stat().st_mtime + written,) * 2)
    file = tmp_path / "alice/preferences.toml"
    saved = cut_between_entries(file.read_bytes())
    file.write_bytes(saved)
    moment = file.stat().st_mtime + later
    os.utime(file, (moment, moment))
    alice = restarted()
    alice.diary.engine.backend.last_record("alice")
    with alice.diary.engine.backend.lock("alice", 1.0):
        pass
    assert (file.read_bytes() == saved) == is_theirs


def test_retention_keeps_the_time_from_which_a_saved_file_is_a_hand_edit(tmp_path, restarted):
    os.utime(history_of(tmp_path), (9, 9))
    assert opened(tmp_path).user("alice").prune_history(keep=1).is_pruned
    assert history_of(tmp_path).stat().st_mtime == 9


def test_an_older_version_is_replaced_by_the_logged_one(tmp_path, files, synced):
    alice, file = opened(tmp_path).user("alice"), tmp_path / "alice/preferences.toml"
    for number in range(4):
        alice.upsert_preference("likes", f"thing {number}")
        if number == 1:
            shutil.copyfile(file, tmp_path / "old")
    whole = file.read_bytes()
    (tmp_path / "old").replace(file)
    opened(tmp_path, files=files, clock=SetClock("the next boot")).user("alice").preferences()
    assert file.read_bytes() == whole
    assert file.parent.stat().st_ino in synced


@pytest.mark.parametrize(("kept", "found"), [(2, 2), (3, 4)], ids=["before it", "after it"])
@pytest.mark.parametrize("part", ["seq = 3", "type = "])
def test_a_damaged_record_ends_what_a_document_is_restored_from(tmp_path, part, kept, found):
    alice, file = opened(tmp_path).user("alice"), tmp_path / "alice/preferences.toml"
    for number in range(4):
        alice.upsert_preference("likes", f"thing {number}")
        if number + 1 == kept:
            shutil.copyfile(file, tmp_path / "old")
    (tmp_path / "old").replace(file)
    os.utime(file, (1, 1))
    history = history_of(tmp_path)
    head, third, rest = history.read_text().partition("\nseq = 3\n")
    history.write_text(head + f"{third}{rest}".replace(f"\n{part}", "\n# ", 1))
    alice = opened(tmp_path, clock=SetClock("the next boot")).user("alice")
    assert texts(alice) == [f"thing {number}" for number in range(found)]


@pytest.mark.parametrize("change", [("tea", "ted"), ("result = {", 'result = { "\\q" = "",')])
def test_a_damaged_record_does_not_stop_the_open_of_a_user_with_a_staged_file(tmp_path, change):
    alice, file = opened(tmp_path).user("alice"), tmp_path / "alice/preferences.toml"
    alice.upsert_preference("likes", "tea")
    replaced = file.read_bytes()
    alice.upsert_preference("likes", "rum")
    Path(staged_path(file.parent, "preferences", file.read_bytes(), 2)).write_bytes(replaced)
    history = history_of(tmp_path)
    history.write_text(history.read_text().replace(*change, 1))
    assert opened(tmp_path).user("alice").upsert_preference("likes", "gin")
    assert not list(file.parent.glob(".staged-*"))


SAVES = {
    "edited": lambda data: data.replace(b"thing 2", b"my thing"),
    "cut off and edited": lambda data: cut_between_entries(data).replace(b"thing 2", b"my thing"),
    "in another encoding": lambda data: data.decode().encode("utf-16"),
    "broken": lambda data: data + b"likes = [\n",
}


@pytest.mark.parametrize("save", SAVES)
def test_a_hand_edit_is_never_taken_for_a_torn_document(tmp_path, restarted, save):
    file = tmp_path / "alice/preferences.toml"
    saved = SAVES[save](file.read_bytes())
    file.write_bytes(saved)
    os.utime(file, (1, 1))
    alice = restarted()
    alice.diary.engine.backend.last_record("alice")
    with alice.diary.engine.backend.lock("alice", 1.0):
        pass
    assert file.read_bytes() == saved


def test_a_document_removed_by_hand_stays_removed(tmp_path, restarted):
    (tmp_path / "alice/preferences.toml").unlink()
    assert texts(restarted()) == []


def test_a_new_document_that_was_deleted_stays_deleted_after_a_restart(tmp_path):
    backend, restarted = (LocalBackend(tmp_path, clock=SetClock(boot)) for boot in ("one", "two"))
    text = '[preferences.likes.pref001]\ntext = "tea"\n'
    asyncio.run(backend.save("alice", "preferences", text))
    asyncio.run(backend.delete("alice", "preferences"))
    assert restarted.read("alice", "preferences") is None
    alice = Diary(restarted, agent="rules").user("alice")
    alice.upsert_preference("likes", "milk")
    assert texts(alice) == ["milk"]
    alice.rollback(2)  # a record without changes is none of the two
    assert texts(alice) == ["tea"]


def test_a_deletion_that_is_refused_removes_nothing(tmp_path, files):
    def full(name, *_):
        if name == "write":
            raise OSError(errno.ENOSPC, "no space left")

    backend = LocalBackend(tmp_path, files=files)
    asyncio.run(backend.save("alice", "preferences", ""))
    files.hook = full
    with pytest.raises(BackendError, match="Nothing was changed"):
        asyncio.run(backend.delete("alice", "preferences"))
    assert backend.read("alice", "preferences") is not None


def test_a_deletion_is_synced(tmp_path, files, synced):
    diary = opened(tmp_path, files=files)
    diary.user("alice").upsert_preference("likes", "tea")
    synced.clear()
    asyncio.run(diary.engine.backend.delete("alice", "preferences"))
    assert (tmp_path / "alice").stat().st_ino in synced


@pytest.mark.parametrize("staged_for", [None, 2], ids=["nothing is staged", "one was to come back"])
def test_a_new_document_removed_by_hand_stays_removed(tmp_path, staged_for):
    alice = opened(tmp_path).user("alice")
    alice.add_turn("I love jazz.", "ok", session_id="s1")
    file = tmp_path / "alice/preferences.toml"
    text = file.read_bytes()
    file.unlink()
    if staged_for is not None:  # by one who was killed before there was a record
        file.with_name(f".staged-1-{staged_for}.00000000.1-preferences.tmp").write_bytes(text)
    assert texts(opened(tmp_path).user("alice")) == []
    assert not file.exists()
    assert list((tmp_path / "alice").glob(".*")) == []


def test_a_torn_staged_file_is_never_published(tmp_path, restarted):
    file = tmp_path / "alice/preferences.toml"
    whole = file.read_bytes()
    beside = file.with_name(".staged-1-4.00000000.1-preferences.tmp")
    beside.write_bytes(cut_between_entries(whole))
    assert texts(restarted()) == [f"thing {number}" for number in range(4)]
    assert file.read_bytes() == whole
    assert not beside.exists()


def may_lack_writes(alice, folder, boot=None, record=None):
    clock = Clock() if boot is None else SetClock(boot)
    last = parse_record(alice.diary.engine.backend.last_record("alice"))
    return boots.Recovery(Environment(clock=clock), folder, record or last).may_be_torn


def test_a_record_of_this_boot_and_folder_needs_no_repair(tmp_path):
    alice = opened(tmp_path).user("alice")
    alice.upsert_preference("likes", "tea")
    assert not may_lack_writes(alice, tmp_path / "alice")
    alice.forget(source="nothing of this name")
    alice.forget_preference("likes", "pref001")
    assert not may_lack_writes(alice, tmp_path / "alice")


@pytest.mark.parametrize("boot", ["of another machine", ""])
def test_a_record_of_another_or_an_unknown_boot_needs_repair(tmp_path, boot):
    alice = opened(tmp_path).user("alice")
    alice.upsert_preference("likes", "tea")
    assert may_lack_writes(alice, tmp_path / "alice", boot)
    alice = opened(tmp_path, clock=SetClock(boot)).user("alice")
    alice.upsert_preference("likes", "rum")
    assert may_lack_writes(alice, tmp_path / "alice", boot) == (not boot)


def test_a_record_in_a_copied_folder_needs_repair(tmp_path):
    alice = opened(tmp_path / "one").user("alice")
    alice.upsert_preference("likes", "tea")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert may_lack_writes(alice, tmp_path / "two/alice")


def test_neither_uptime_nor_the_clock_triggers_a_repair(tmp_path):
    alice = opened(tmp_path).user("alice")
    alice.upsert_preference("likes", "tea")
    record = parse_record(alice.diary.engine.backend.last_record("alice"))
    for moment in ("1999-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"):
        moved = replace(record, time=moment)
        assert not may_lack_writes(alice, tmp_path / "alice", record=moved)
        assert may_lack_writes(alice, tmp_path / "alice", "another", moved)


@pytest.mark.parametrize("keeps_times", [True, False])
@pytest.mark.parametrize("tear", TEARS)
def test_a_copy_of_a_disk_that_lost_power_is_repaired(tmp_path, tear, keeps_times):
    alice = opened(tmp_path / "one").user("alice")
    for number in range(4):
        alice.upsert_preference("likes", f"thing {number}")
    file = tmp_path / "one/alice/preferences.toml"
    whole, segment = file.read_bytes(), next((tmp_path / "one/alice/history").iterdir())
    file.write_bytes(TEARS[tear](whole))
    if not keeps_times:
        for each in (file, segment):
            os.utime(each, (each.stat().st_mtime + 3600,) * 2)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert texts(opened(tmp_path / "two").user("alice")) == [f"thing {n}" for n in range(4)]
    assert (tmp_path / "two/alice/preferences.toml").read_bytes() == whole


@pytest.mark.parametrize("save", ["edited", "cut off and edited"])
def test_a_hand_edit_in_a_copied_folder_is_kept(tmp_path, save):
    alice = opened(tmp_path / "one").user("alice")
    for number in range(4):
        alice.upsert_preference("likes", f"thing {number}")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    file = tmp_path / "two/alice/preferences.toml"
    file.write_bytes(SAVES[save](file.read_bytes()))
    age(file)
    alice = opened(tmp_path / "two").user("alice")
    assert "my thing" in texts(alice)
    alice.upsert_preference("likes", "more")
    assert {"my thing", "more"} <= set(texts(opened(tmp_path / "two").user("alice")))
