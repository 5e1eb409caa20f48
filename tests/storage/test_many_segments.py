"""A month may have more than 999 segments of history."""

from __future__ import annotations

import pytest

from hand_edits import texts
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.doctor.doctor import check
from tomldiary.history.verify import verify
from tomldiary.storage.files import FileSystem
from tomldiary.storage.local.log import segments


@pytest.fixture
def alice(tmp_path):
    """Six transactions in segments 997 to 1002."""
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "thing 0", session_id="s0")
    (first,) = (tmp_path / "alice/history").iterdir()
    first.rename(first.with_name(first.name.replace("-001", "-997")))
    return more(tmp_path, 1, 6)


def more(folder, begin, end):
    alice = Diary(LocalBackend(folder, segment_bytes=1), agent="rules").user("alice")
    for number in range(begin, end):
        alice.upsert_preference("likes", f"thing {number}", session_id=f"s{number}")
    return alice


def is_well(folder, wanted):
    diary = Diary(folder, agent="rules")
    alice = diary.user("alice")
    levels = [finding.level for finding in check(diary)]
    return (
        texts(alice) == wanted
        and verify(diary.engine.backend, "alice") is None
        and not {"problem", "warning"} & {*levels}
    )


def things(*numbers):
    return [f"thing {number}" for number in numbers]


def test_segments_are_in_the_order_of_their_numbers(tmp_path, alice):
    numbers = [path.stem[8:] for path in segments(FileSystem(), tmp_path / "alice/history")]
    assert numbers == ["997", "998", "999", "1000", "1001", "1002"]
    assert [entry.seq for entry in alice.history()] == [6, 5, 4, 3, 2, 1]
    assert next(entry.seq for entry in more(tmp_path, 0, 0).history()) == 6
    assert is_well(tmp_path, things(*range(6)))


def test_writes_continue_in_the_last_segment(tmp_path, alice):
    more(tmp_path, 6, 8)
    assert alice.last_transaction() == 8
    assert is_well(tmp_path, things(*range(8)))
    assert texts(alice.as_of(4)) == things(*range(4))


def test_retention_drops_the_oldest_segments(tmp_path, alice):
    alice.prune_history(keep=2)
    numbers = [path.stem[8:] for path in segments(FileSystem(), tmp_path / "alice/history")]
    assert numbers[-2:] == ["1001", "1002"]
    assert is_well(tmp_path, things(*range(6)))
    more(tmp_path, 6, 7)
    assert is_well(tmp_path, things(*range(7)))


def test_forgetting_covers_all_segments(tmp_path, alice):
    alice.forget(session_id="s3")
    assert is_well(tmp_path, things(0, 1, 2, 4, 5))
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and b"thing 3" in path.read_bytes()
    ]


def test_a_new_month_starts_after_a_long_segment(tmp_path):
    folder = tmp_path / "history"
    folder.mkdir()
    for name in ("2026-11-1000", "2026-12-001", "2026-11-999", "2027-01-001"):
        (folder / f"{name}.toml").touch()
    found = [path.stem for path in segments(FileSystem(), folder)]
    assert found == ["2026-11-999", "2026-11-1000", "2026-12-001", "2027-01-001"]
