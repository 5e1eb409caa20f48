"""Old history can be dropped behind a snapshot: what is kept is said, and everything else works on."""

from __future__ import annotations

import os
import shutil
import signal
from datetime import UTC, datetime, timedelta

import pytest

from file_systems import HookedFiles, killed_before
from tomldiary import Conflict, Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import (
    HistoryPruned,
    InvalidTOML,
    InvalidValue,
    NestedTransaction,
    UnknownEntry,
)
from tomldiary.history.verify import verify


@pytest.fixture(params=["files", "memory"])
def diary(request, tmp_path):
    return opened(tmp_path) if request.param == "files" else Diary("memory:", agent="rules")


def opened(root, **options):
    return Diary(LocalBackend(root, segment_bytes=2000, **options), agent="rules")


@pytest.fixture
def alice(diary):
    """Twelve transactions: things 0 to 9, then a turn, then a removal."""
    return filled(diary)


def filled(diary):
    alice = diary.user("alice")
    for number in range(10):
        alice.upsert_preference("likes", f"thing {number}", session_id=f"s{number}")
    alice.add_turn("I love tea.", "ok", "talk")
    alice.forget_preference("likes", "pref011")
    return alice


def texts(user):
    return [item.text for item in user.preferences("likes").values()]


def files(tmp_path):
    return sorted((tmp_path / "alice/history").iterdir())


def test_retention_keeps_later_points_and_names_dropped_ones(alice):
    before = [texts(alice.as_of(seq)) for seq in range(13)]
    document = alice.document("preferences")
    kept = alice.prune_history(keep=5)
    assert (kept.first, kept.last, kept.is_pruned) == (7, 12, True)
    assert alice.kept_history() == kept
    assert [texts(alice.as_of(seq)) for seq in range(7, 13)] == before[7:]
    assert alice.document("preferences") == document
    for look in (alice.as_of, alice.diff, alice.diff_text):
        with pytest.raises(HistoryPruned, match=r"begins at transaction 7 \(20") as error:
            look(6)
        assert (error.value.first, error.value.since) == (7, kept.since)
    with pytest.raises(HistoryPruned):
        alice.as_of(datetime.fromisoformat(kept.since) - timedelta(microseconds=1))
    assert [change.seq for change in alice.history()] == [12, 11, 11, 10, 9, 8]
    assert verify(alice.diary.engine.backend, "alice") is None


def test_the_kept_range_needs_no_record_between_its_ends(tmp_path):
    """A history of thousands of records is not parsed for each user of a list."""
    known = filled(opened(tmp_path)).kept_history()
    altered = next(file for file in files(tmp_path) if "thing 5" in file.read_text())
    altered.write_text(altered.read_text().replace("thing 5", "thong 5"))
    again = opened(tmp_path).user("alice")
    assert again.kept_history() == known
    with pytest.raises(InvalidTOML):
        again.history()


@pytest.mark.parametrize("segment", [0, 2, -2])
def test_a_reader_goes_on_when_history_is_pruned_meanwhile(tmp_path, segment):
    filled(opened(tmp_path))
    hooked = HookedFiles()
    alice = opened(tmp_path, files=hooked).user("alice")
    before = texts(alice)
    place = files(tmp_path)[segment]

    def pruned(name, path, *_):
        if (name, path) == ("open_to_read", str(place)):
            hooked.hook = None
            opened(tmp_path).user("alice").prune_history(keep=1)

    hooked.hook = pruned
    assert {change.seq for change in alice.history()} <= set(range(1, 13))
    assert hooked.hook is None
    assert not place.exists()
    assert [change.seq for change in alice.history()] == [12]
    assert texts(alice) == before


def test_rollback_past_the_snapshot_is_refused(alice):
    alice.prune_history(keep=3)
    document = alice.document("preferences")
    for far in ({"steps": 4}, {"to": 5}, {"session_id": "s2"}):
        with pytest.raises(HistoryPruned, match="begins at transaction 9"):
            alice.rollback(**far)
    assert alice.document("preferences") == document
    assert alice.rollback(to=9).undone == [12, 11, 10]
    assert texts(alice) == [f"thing {number}" for number in range(9)]
    alice.rollback()
    assert alice.document("preferences").split("\n\n", 1)[1] == document.split("\n\n", 1)[1]


def test_an_entry_names_its_origin_after_retention(alice):
    alice.prune_history(keep=1)
    assert (alice.why("likes/pref002").session, alice.why("likes/pref002").changes) == ("s1", [])
    with pytest.raises(UnknownEntry, match="begins with transaction 11"):
        alice.why("likes/pref099")


def test_retention_drops_no_cached_document(alice, diary):
    document = diary.engine.document("alice", "preferences")
    alice.prune_history(keep=5)
    assert diary.engine.document("alice", "preferences") is document


def test_retention_by_time_can_be_repeated(alice):
    late = datetime.now(UTC)
    alice.upsert_preference("goals", "run")
    assert alice.prune_history(before=late).first == 12
    assert alice.prune_history(before=late).first == 12  # nothing more to drop
    assert alice.prune_history(before=late - timedelta(days=1)).first == 12
    assert alice.prune_history(before=late.date()).first == 12
    assert alice.prune_history(before=late.isoformat()).first == 12
    alice.upsert_preference("goals", "swim")
    assert alice.prune_history(keep=1).first == 13
    future = datetime.now(UTC) + timedelta(days=1)
    assert alice.prune_history(before=future).first == 13  # the last one always stays
    assert [change.after["text"] for change in alice.history()] == ["swim"]


def test_retention_refuses_what_is_no_time(alice):
    with pytest.raises(InvalidValue, match="before: expected a time such as"):
        alice.prune_history(before="last week")


def test_retention_takes_one_selector_outside_of_transactions(alice):
    for wrong in ({}, {"keep": 1, "before": datetime.now(UTC)}):
        with pytest.raises(InvalidValue, match="exactly one of before"):
            alice.prune_history(**wrong)
    with alice.transaction(), pytest.raises(NestedTransaction):
        alice.prune_history(keep=1)
    assert alice.diary.user("nobody").prune_history(keep=1).last == 0
    assert not alice.kept_history().is_pruned


def test_ids_and_kept_operation_ids_survive_retention(alice):
    with alice.transaction(operation_id="old"):
        alice.upsert_preference("goals", "one")
    with alice.transaction(operation_id="new"):
        alice.upsert_preference("goals", "two")
    alice.forget_preference("likes", "pref010")
    alice.prune_history(keep=2)
    assert alice.upsert_preference("likes", "fresh")[0] == "pref012"
    with pytest.raises(Conflict), alice.transaction(operation_id="new"):
        alice.upsert_preference("goals", "three")
    with alice.transaction(operation_id="old"):
        alice.upsert_preference("goals", "four")
    assert len(alice.preferences("goals")) == 3


def test_forgetting_removes_text_from_the_snapshot(alice, diary, tmp_path):
    alice.prune_history(keep=3)
    alice.forget(session_id="s4")
    assert "thing 4" not in texts(alice)
    assert "thing 4" not in texts(alice.as_of(9))
    everything = "".join(diary.engine.backend.records("alice"))
    assert "thing 4" not in everything
    assert "thing 3" in everything
    assert verify(diary.engine.backend, "alice") is None
    assert not [path for path in tmp_path.rglob("*.toml") if "thing 4" in path.read_text()]


def test_an_old_editor_buffer_is_merged_after_retention(tmp_path):
    alice = filled(Diary(tmp_path, agent="rules"))
    file = tmp_path / "alice/preferences.toml"
    buffer = file.read_text().replace("thing 1", "thing one")
    alice.upsert_preference("goals", "meanwhile")
    alice.prune_history(keep=1)
    file.write_text(buffer)
    os.utime(file, (0, 0))
    assert texts(alice)[1] == "thing one"
    alice.upsert_preference("likes", "more")
    assert [item.text for item in alice.preferences("goals").values()] == ["meanwhile"]


def test_retention_keeps_the_kept_records_byte_for_byte(tmp_path):
    diary = opened(tmp_path)
    other = opened(tmp_path)
    alice = filled(diary)
    records = list(diary.engine.backend.records("alice"))
    other.user("alice").upsert_preference("goals", "by another process")
    before = len(files(tmp_path))
    alice.prune_history(keep=5)
    kept = list(diary.engine.backend.records("alice"))
    assert kept[1:-1] == records[:4]
    assert len(files(tmp_path)) < before
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files(tmp_path))
    other.user("alice").upsert_preference("goals", "goes on behind it")
    assert alice.last_transaction() == 14
    assert verify(diary.engine.backend, "alice") is None


def prune_until(root, number):
    """Remove old history in a process that is killed before its n-th file operation; return how it ended."""
    child = os.fork()
    if child == 0:
        try:
            files = HookedFiles()
            alice = opened(root, files=files).user("alice")
            alice.document("preferences")
            files.hook = killed_before(number)
            alice.prune_history(keep=5)
            os._exit(0)
        finally:
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_retention_removes_the_file_that_a_killed_one_left(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    for number in range(3):
        alice.upsert_preference("likes", f"thing {number}")
    left = tmp_path / "alice/history/.pruned.tmp"
    left.write_text("torn")
    assert alice.prune_history(keep=1).is_pruned
    assert not left.exists()


def test_killed_retention_loses_no_kept_transaction(tmp_path):
    store = tmp_path / "store"
    alice = filled(opened(store, durability="process"))
    want = [texts(alice.as_of(seq)) for seq in range(13)]
    seen, left = set(), set()
    for at in range(1, 60, 2):
        root = tmp_path / str(at)
        shutil.copytree(store, root)
        alice = opened(root, durability="process").user("alice")
        assert texts(alice) == want[12]
        ended = prune_until(root, at)
        assert ended in {0, -signal.SIGKILL}
        state = (ended, *sorted((path.name, path.stat().st_size) for path in root.rglob("*")))
        if state in left:
            continue  # most operations change nothing
        left.add(state)
        assert (
            verify(Diary(root, agent="rules").engine.backend, "alice") is None
        )  # before any repair
        # A process that had opened the user before does not repair, and must not read past the snapshot.
        kept = alice.kept_history()
        fresh = Diary(root, agent="rules").user("alice")
        assert fresh.kept_history() == kept
        assert kept.first in {1, 7}
        seen.add((kept.first, ended))
        for user in (alice, fresh):
            assert [texts(user.as_of(seq)) for seq in range(kept.first, 13, 3)] == want[
                kept.first :: 3
            ]
        fresh.upsert_preference("goals", "afterwards")
        names = [path.name for path in files(root)]
        assert all(name.endswith(".toml") for name in names)
        if kept.first == 7:
            heads = [path.read_text()[:200] for path in files(root)]
            assert [number for number, head in enumerate(heads) if '"snapshot"' in head] == [0]
        if ended == 0:
            break
    assert seen == {(1, -9), (7, -9), (7, 0)}


def test_a_changed_snapshot_is_detected(tmp_path):
    alice = filled(Diary(tmp_path, agent="rules"))
    alice.prune_history(keep=2)
    (segment,) = files(tmp_path)
    segment.write_text(segment.read_text().replace("thing 3", "thing X", 1))
    damage = verify(Diary(tmp_path, agent="rules").engine.backend, "alice")
    assert damage is not None
    assert "checksum" in damage.message


def test_a_snapshot_of_other_records_is_detected(tmp_path):
    """The records that it replaces are still there after a crash."""
    alice, other = (filled(Diary(tmp_path / each, agent="rules")) for each in "ab")
    other.upsert_preference("likes", "of another memory")
    alice.upsert_preference("likes", "of this memory")
    alice.upsert_preference("likes", "the last thing")
    alice.prune_history(keep=1)
    (before,) = files(tmp_path / "b")
    before.rename(tmp_path / "a/alice/history/2020-01-001.toml")
    damage = verify(Diary(tmp_path / "a", agent="rules").engine.backend, "alice")
    assert damage.message == "the snapshot differs from the result of the records."
