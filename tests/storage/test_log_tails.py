"""The remembered end of a history holds only while no other process has changed the history."""

from __future__ import annotations

import gc
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hand_edits import texts
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.history.record import parse_record, render_record
from tomldiary.history.timeline import Timeline
from tomldiary.history.verify import verify
from tomldiary.storage.environment import Clock, Environment
from tomldiary.storage.files import FileSystem
from tomldiary.storage.local import log as records
from tomldiary.storage.local import log as segments
from tomldiary.storage.local import log as tails


def opened(root, **options):
    return Diary(LocalBackend(root, **options), agent="rules").user("alice")


def write(alice, text="tea"):
    alice.upsert_preference("likes", f"{text} {len(texts(alice))}")


def segment(root):
    return segments.segments(FileSystem(), root / "alice/history")[-1]


def sequences(root):
    return [
        parse_record(text).seq
        for text in records.read_records(FileSystem(), root / "alice/history")
    ][::-1]


@pytest.fixture
def alice(tmp_path):
    alice = opened(tmp_path)
    for _ in range(3):
        write(alice)
    return alice


def test_segments_with_converted_line_ends_are_read_continued_and_redacted(tmp_path):
    alice = opened(tmp_path, segment_bytes=2000)
    for _ in range(6):
        write(alice)
    paths = segments.segments(FileSystem(), tmp_path / "alice/history")
    assert len(paths) > 1
    paths[-1].write_bytes(paths[-1].read_bytes() + b"[[tx]]\nche")  # torn by a crash
    for path in paths:
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    for each in (alice, opened(tmp_path, segment_bytes=2000)):  # read before, and anew
        assert len(each.history()) == len(sequences(tmp_path))
        write(each)
    assert sequences(tmp_path) == [*range(1, 9)]
    alice.forget(matching="tea 0")
    assert sequences(tmp_path)[:8] == [*range(1, 9)]
    assert "tea 0" not in "".join(path.read_text() for path in paths)


def test_a_torn_record_in_a_new_segment_disturbs_no_write_after_a_read(tmp_path):
    alice = opened(tmp_path, segment_bytes=1)
    write(alice)
    newest = segment(tmp_path)
    segments.new_segment(newest.parent, newest, newest.stem[:7]).write_bytes(b"[[tx]]\nche")
    assert len(texts(alice)) == 1  # reads the history without the lock
    write(alice)
    assert sequences(tmp_path) == [1, 2]


def test_an_append_to_a_shortened_segment_leaves_no_gap(tmp_path, alice):
    path = segment(tmp_path)
    record = records.last_record(FileSystem(), path)[0]
    tail = tails.Tail(str(path), path.stat().st_size + 1000, None, 1, record)
    after = segments.append_records(Environment(), str(path.parent), tail, [record], sync=True)
    assert b"\0" not in path.read_bytes()
    assert after.at == path.stat().st_size
    assert after.token == FileSystem().token(path)


def test_a_new_segment_never_overwrites_an_existing_file(tmp_path, monkeypatch):
    """Another process created it, and the folder's time does not show that."""
    alice = opened(tmp_path)
    write(alice)
    path = segment(tmp_path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        segments.append_records(Environment(), str(path.parent), None, ["[[tx]]\n]\n"], sync=True)
    assert path.read_bytes() == before
    real = tails.HistoryTails.of
    missed = [None]
    monkeypatch.setattr(
        tails.HistoryTails,
        "of",
        lambda self, *args: missed.pop() if missed else real(self, *args),
    )
    write(alice)  # reads the end again
    assert missed == []
    assert sequences(tmp_path) == [1, 2]
    assert not list(tmp_path.glob("*/.staged-*"))


def test_a_new_segment_is_found_when_the_folder_time_is_unchanged(tmp_path):
    """Two processes write within one tick of a coarse clock; the second starts a new segment."""
    files = FileSystem()
    files.folder_time = lambda _: 1
    one, other = (opened(tmp_path, segment_bytes=3000, files=files) for _ in range(2))
    write(one)
    write(other)
    for each in (one, other):
        write(each, "x" * 3000)
    assert len(segments.segments(FileSystem(), tmp_path / "alice/history")) == 3
    assert sequences(tmp_path) == [1, 2, 3, 4]


def test_a_log_tail_dropped_by_a_reader_is_still_returned(tmp_path, monkeypatch):
    """Readers drop a remembered end without the lock."""
    alice = opened(tmp_path)
    write(alice)
    known = tails.HistoryTails(FileSystem(), lambda user: tmp_path / user)
    known.drop("alice")

    class Dropping(dict):
        def __setitem__(self, user, tail):
            """Drop the end at once."""

    monkeypatch.setattr(known, "_tails", Dropping())
    path = segment(tmp_path)
    assert known.of("alice")[:3] == (str(path), path.stat().st_size, FileSystem().token(path))


class LaterMonth(Clock):
    def month(self):
        return "2100-01"


@pytest.mark.parametrize("clock", [Clock(), LaterMonth()], ids=["this month", "a later month"])
def test_a_history_whose_folder_is_from_1970_is_continued(tmp_path, alice, clock):
    """Some archives and file systems give all folders the time 0."""
    alice.add_episode("a tea", "with milk")
    for folder in ("alice/history", "alice/episodes", "alice"):
        os.utime(tmp_path / folder, (0, 0))
    sizes = 1500, 4_000_000, 1500
    others = [opened(tmp_path, segment_bytes=size, clock=clock) for size in sizes]
    for _ in range(3):
        for other in others:
            os.utime(tmp_path / "alice/history", (0, 0))
            write(other)
            assert [hit.kind for hit in other.recall("milk")] == ["episodes"]
    assert sequences(tmp_path) == [*range(1, 14)]
    assert verify(LocalBackend(tmp_path), "alice") is None


@pytest.mark.parametrize("segment_bytes", [4_000_000, 3000], ids=["a record", "a segment"])
def test_a_follower_of_the_feed_cuts_no_record_that_is_being_written(
    tmp_path, files, segment_bytes
):
    """It reads the end of history without the lock, and sees what another process has appended so far."""
    alice, seen = opened(tmp_path, files=files, segment_bytes=segment_bytes), []
    for _ in range(3):
        write(alice, "x" * 500)

    def followed(name, path, data=b"", *_):
        if name != "write" or "/history/" not in path:
            return None
        if len(data) > 900:
            return data[:900]
        seen.extend(change.seq for change in opened(tmp_path).diary.changes(follow=False))
        return None

    files.hook = followed
    write(alice, "y" * 500)
    files.hook = None
    assert seen == [1, 2, 3]
    assert sequences(tmp_path) == [1, 2, 3, 4]
    assert verify(alice.diary.engine.backend, "alice") is None


def test_a_log_tail_is_dropped_after_an_erasure(tmp_path, alice):
    """Another process has erased what the remembered record may quote; the next read drops it."""

    def remembered():
        found = [each for each in gc.get_objects() if isinstance(each, tails.Tail)]
        return [tail for tail in found if str(tmp_path) in tail.segment and "tea 2" in tail.record]

    assert remembered()
    opened(tmp_path).forget(before=datetime.now(UTC))
    assert remembered()
    assert texts(alice) == []
    assert not remembered()


def test_a_process_remembers_the_log_tails_of_some_users_only(files):
    """The last records of very many users would fill the memory of a server."""
    known = tails.HistoryTails(files, Path)
    for number in range(10_000):
        known.keep(f"user {number}", tails.Tail("none", 0, None, 1, "a record"))
    found = [each for each in gc.get_objects() if isinstance(each, tails.Tail)]
    assert 0 < sum(each.segment == "none" for each in found) < 5000


@pytest.mark.parametrize("keeps_times", [False, True])
def test_records_appended_by_another_process_are_seen(tmp_path, alice, keeps_times):
    other = opened(tmp_path)
    known = len(texts(other))
    for number in range(8):
        before = segment(tmp_path).stat()
        write((alice, other)[number % 2], f"turn {number}, text")
        if keeps_times:
            os.utime(segment(tmp_path), ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sequences(tmp_path) == list(range(1, known + 9))
    assert texts(alice) == texts(other)
    assert len(texts(alice)) == known + 8


def test_history_that_another_process_redacted_is_read_again(tmp_path, alice):
    opened(tmp_path).forget(before=datetime.now(UTC))
    seen = sequences(tmp_path)
    write(alice, "coffee")
    assert sequences(tmp_path) == [*seen, seen[-1] + 1]
    assert "tea" not in segment(tmp_path).read_text()


def test_history_restored_from_a_copy_is_read_again(tmp_path, alice):
    copy = segment(tmp_path).read_bytes()
    document = (tmp_path / "alice/preferences.toml").read_bytes()
    write(alice)
    write(alice)
    segment(tmp_path).write_bytes(copy)
    (tmp_path / "alice/preferences.toml").write_bytes(document)
    write(alice, "coffee")
    assert sequences(tmp_path) == [1, 2, 3, 4]


@pytest.mark.parametrize("part", [0.02, 0.3, 0.6, 0.99])
def test_readers_ignore_a_half_written_record(tmp_path, alice, part):
    path = segment(tmp_path)
    before = path.read_bytes()
    write(alice)
    record = path.read_bytes()[len(before) :]
    path.write_bytes(before + record[: int(len(record) * part)])
    assert sequences(tmp_path) == [1, 2, 3]
    backend = alice.diary.engine.backend
    assert [record.seq for record in Timeline(backend, "alice").records()] == [3, 2, 1]
    assert Timeline(backend, "alice").text("preferences", 2).count("tea") == 2
    assert records.last_record(FileSystem(), path)[1] == len(before)
    assert texts(opened(tmp_path)) == ["tea 0", "tea 1", "tea 2", "tea 3"]  # the document has it
    write(opened(tmp_path))
    assert path.read_bytes().startswith(before)


def test_a_writer_cuts_a_torn_record_off_that_a_reader_has_seen(tmp_path, alice):
    path = segment(tmp_path)
    with path.open("ab") as file:
        file.write(b"[[tx]]\n" + b"x" * 5000)
    alice.diary.engine.backend.last_record("alice")
    write(alice)
    assert b"xxx" not in path.read_bytes()


def test_another_record_of_the_same_length_is_read_again(tmp_path, alice):
    reader, path = LocalBackend(tmp_path), segment(tmp_path)
    old = reader.last_record("alice")
    record = parse_record(old)
    for change in record.changes:
        change.new = change.new.replace("tea 2", "oat 2")
    new = render_record(record)
    path.write_text(path.read_text().replace(old, new))
    assert (len(new), reader.last_record("alice")) == (len(old), new)
