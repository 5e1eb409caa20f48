"""History is laid out ahead with empty lines while a process writes to it, and nobody takes them for anything else."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from capabilities import needs_exchange
from hand_edits import texts
from tomldiary import Diary
from tomldiary.errors import BackendError
from tomldiary.history import verify as verification
from tomldiary.history.record import parse_record
from tomldiary.history.timeline import Timeline
from tomldiary.storage import files
from tomldiary.storage import statx as looks
from tomldiary.storage.local import exchange, layout
from tomldiary.storage.local import log_reader as records
from tomldiary.storage.local import log_segments as segments
from tomldiary.storage.local import log_tail as tails
from tomldiary.storage.local import spare_files as spares
from tomldiary.storage.locks import UserLocks


def opened(root, durability="full"):
    return Diary(root, agent="rules", durability=durability).user("alice")


def write(alice, text="tea"):
    alice.upsert_preference("likes", f"{text} {len(texts(alice))}")


def segment(root):
    return segments.segments(root / "alice/history")[-1]


def room(root):
    """Return how many bytes of empty lines there are behind the last record."""
    data = segment(root).read_bytes()
    return len(data) - len(data.rstrip(b"\n")) - 1


def sequences(root):
    return [parse_record(text).seq for text in records.read_records(root / "alice/history")][::-1]


def with_room(root):
    """Return a user that nothing else refers to, with room for more."""
    alice = opened(root)
    for _ in range(3):
        write(alice)
    assert room(root) > 2000
    return alice


@pytest.fixture
def alice(tmp_path):
    """Has written so often that there is room for more."""
    return with_room(tmp_path)


# Laying out


def test_who_writes_once_lays_nothing_out(tmp_path):
    once, again = opened(tmp_path), opened(tmp_path)
    write(once)
    assert room(tmp_path) == 0
    write(again)
    assert room(tmp_path) == 0
    write(again)
    assert room(tmp_path) > 0


def test_a_segment_that_is_written_to_again_does_not_grow_with_each_record(tmp_path, alice):
    length = segment(tmp_path).stat().st_size
    write(alice)
    write(alice)
    assert segment(tmp_path).stat().st_size == length
    assert sequences(tmp_path) == [1, 2, 3, 4, 5]
    assert texts(opened(tmp_path)) == [f"tea {number}" for number in range(5)]


def test_as_much_is_laid_out_as_there_is_but_within_bounds(tmp_path, alice):
    least, most = segments._LEAST_ROOM, segments._MOST_ROOM
    assert room(tmp_path) < least
    found = []
    for _ in range(90):
        left = room(tmp_path)
        write(alice, "x" * 900)
        if room(tmp_path) > left:
            used = segment(tmp_path).stat().st_size - room(tmp_path)
            assert room(tmp_path) == min(max(used, least), most)
            found.append(room(tmp_path))
    assert found[0] < found[1] < found[-1] == most


def test_what_is_not_synced_is_not_laid_out(tmp_path):
    alice = opened(tmp_path, "process")
    for _ in range(3):
        write(alice)
    assert room(tmp_path) == 0


def test_a_full_disk_takes_the_room_and_nothing_else(tmp_path, monkeypatch):
    real = os.write

    def full(descriptor, data):
        if not bytes(data).strip(b"\n"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    alice = opened(tmp_path)
    for _ in range(3):
        write(alice)
    assert room(tmp_path) == 0
    assert texts(opened(tmp_path)) == ["tea 0", "tea 1", "tea 2"]


def test_a_record_that_cannot_be_synced_is_taken_back_with_the_room(tmp_path, alice, monkeypatch):
    def failing(_descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        with pytest.raises(BackendError, match="Nothing was changed"):
            write(alice)
    assert room(tmp_path) == 0
    assert sequences(tmp_path) == [1, 2, 3]
    write(alice)
    assert sequences(tmp_path) == [1, 2, 3, 4]


def test_a_segment_that_is_full_keeps_no_empty_lines(tmp_path, monkeypatch):
    alice = opened(tmp_path)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 6000)
    for _ in range(12):
        write(alice)
    first, *_, last = segments.segments(tmp_path / "alice/history")
    assert not first.read_bytes().endswith(b"\n\n")
    assert last.read_bytes().endswith(b"\n\n")
    assert sequences(tmp_path) == list(range(1, 13))


def test_a_segment_that_somebody_cuts_off_just_now_gets_no_gap(tmp_path, alice):
    path = segment(tmp_path)
    end = segments.End(str(path), path.stat().st_size + 1000, b"")
    record = records.last_record(path)[0]
    after = segments.append_records(str(path.parent), end, [record], sync=True)
    assert b"\0" not in path.read_bytes()
    assert after.at == path.stat().st_size
    assert after.is_there()


def test_what_stands_in_the_way_of_a_new_segment_is_never_written_over(tmp_path, monkeypatch):
    """Another process has begun it just now, and the folder's time does not tell."""
    alice = opened(tmp_path)
    write(alice)
    path = segment(tmp_path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        segments.append_records(str(path.parent), None, ["[[tx]]\n]\n"], sync=True)
    assert path.read_bytes() == before
    real = tails.HistoryTails.numbered
    missed = [None]
    monkeypatch.setattr(
        tails.HistoryTails,
        "numbered",
        lambda self, *args: missed.pop() if missed else real(self, *args),
    )
    write(alice)  # begins anew
    assert missed == []
    assert sequences(tmp_path) == [1, 2]
    assert not list(tmp_path.glob("*/.staged-*"))


def test_a_new_segment_that_the_folder_s_time_does_not_tell_of_is_found(tmp_path, monkeypatch):
    """Two wrote within one tick of a coarse clock; what the second has to write is too much for the old one."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 3000)
    monkeypatch.setattr(tails, "folder_time", lambda _: 1)
    one, other = opened(tmp_path), opened(tmp_path)
    write(one)
    write(other)
    for each in (one, other):
        write(each, "x" * 3000)
    assert len(segments.segments(tmp_path / "alice/history")) == 3
    assert sequences(tmp_path) == [1, 2, 3, 4]


def test_an_end_that_is_dropped_meanwhile_is_the_one_that_was_found(tmp_path, monkeypatch):
    """Whoever reads drops what is remembered of it, without the lock."""
    alice = opened(tmp_path)
    write(alice)
    known = alice.diary.engine.backend._tails
    place = str(tmp_path / "alice/history")
    known.drop("alice")
    real = tails.end_behind

    class Dropping(dict):
        def __setitem__(self, user, tail):
            """Somebody drops it at once."""

    monkeypatch.setattr(known, "_tails", Dropping())
    assert known.numbered("alice", place, 2) == real(
        segment(tmp_path), segment(tmp_path).stat().st_size, newest_text(tmp_path)
    )


def newest_text(root):
    return next(records.read_records(root / "alice/history"))


def test_an_end_that_was_found_meanwhile_is_not_dropped_for_an_older_one(tmp_path, alice):
    known = alice.diary.engine.backend._tails
    newer = known._tails["alice"]
    older = newer._replace(end=Moving(known, newer))
    known._tails["alice"] = older
    known.drop_changed("alice")
    assert known._tails["alice"] is newer


class Moving:
    """An end that somebody else finds to be another one while it is looked at."""

    def __init__(self, known, newer):
        self.known, self.newer = known, newer

    def is_there(self):
        self.known._tails["alice"] = self.newer
        return False


# Whoever else is at it


@pytest.mark.parametrize("keeps_times", [False, True])
def test_what_others_append_is_seen_though_neither_length_nor_time_tells(
    tmp_path, alice, keeps_times
):
    other = opened(tmp_path)
    while room(tmp_path) < 7000:
        write(other)
    known = len(texts(other))
    for number in range(8):
        before = segment(tmp_path).stat()
        write((alice, other)[number % 2], f"turn {number}, text")
        assert segment(tmp_path).stat().st_size == before.st_size
        if keeps_times:
            os.utime(segment(tmp_path), ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sequences(tmp_path) == list(range(1, known + 9))
    assert texts(alice) == texts(other)
    assert len(texts(alice)) == known + 8


def test_what_others_have_forgotten_is_seen(tmp_path, alice):
    opened(tmp_path).forget(before=datetime.now(UTC))
    assert room(tmp_path) == 0
    seen = sequences(tmp_path)
    write(alice, "coffee")
    assert sequences(tmp_path) == [*seen, seen[-1] + 1]
    assert "tea" not in segment(tmp_path).read_text()


def test_a_history_that_was_put_back_is_seen(tmp_path, alice):
    copy = segment(tmp_path).read_bytes()
    document = (tmp_path / "alice/preferences.toml").read_bytes()
    write(alice)
    write(alice)
    segment(tmp_path).write_bytes(copy)
    (tmp_path / "alice/preferences.toml").write_bytes(document)
    write(alice, "coffee")
    assert sequences(tmp_path) == [1, 2, 3, 4]


@pytest.mark.parametrize("part", [0.02, 0.3, 0.6, 0.99])
def test_half_a_record_is_read_by_nobody(tmp_path, alice, part):
    """A writer is at it, or was killed: what is read without a lock ends in front of it."""
    before = segment(tmp_path).read_bytes()
    write(alice)
    after = segment(tmp_path).read_bytes()
    begin = len(before.rstrip(b"\n")) + 1
    record = after[begin:].rstrip(b"\n")
    half = record[: int(len(record) * part)]
    path = segment(tmp_path)
    path.write_bytes(before[:begin] + half + before[begin + len(half) :])
    assert sequences(tmp_path) == [1, 2, 3]
    backend = alice.diary.engine.backend
    assert [record.seq for record in Timeline(backend, "alice").records()] == [3, 2, 1]
    assert Timeline(backend, "alice").text("preferences", 2).count("tea") == 2
    assert records.last_record(path)[1] == begin
    assert texts(opened(tmp_path)) == ["tea 0", "tea 1", "tea 2", "tea 3"]  # the document has it
    write(opened(tmp_path))
    assert path.read_bytes().startswith(before[:begin])


@pytest.mark.parametrize("reading", ["records", "doctor"])
def test_what_is_written_while_it_is_read_is_read_again(tmp_path, alice, monkeypatch, reading):
    """The one part of a segment is read when it is room still, the next when there are records in it."""
    before = segment(tmp_path).read_bytes()
    write(alice)
    write(alice)
    after = segment(tmp_path).read_bytes()
    begin = len(before.rstrip(b"\n")) + 1
    torn = [
        before[: begin + 700] + after[begin + 700 :],
        before[:begin] + after[begin : begin + 300],
    ]
    torn[1] += b"\n" * 500 + after[begin + 800 :]
    states = [*torn, after]
    real = records._read_at_once

    def reading_torn(read):
        return real(lambda: (read(), states.pop(0))[1] if states else read())

    monkeypatch.setattr(records, "_read_at_once", reading_torn)
    if reading == "records":
        assert sequences(tmp_path) == [1, 2, 3, 4, 5]
    else:
        assert verification.verify(alice.diary.engine.backend, "alice") is None
    assert states == []


def test_the_doctor_finds_nothing_in_empty_lines(tmp_path, alice):
    write(alice)
    backend = alice.diary.engine.backend
    assert verification.verify(backend, "alice") is None
    following = segments.new_segment(tmp_path / "alice/history", segment(tmp_path))
    for nothing in (b"", b"\n" * 50):  # of a process that was killed before it wrote
        following.write_bytes(nothing)
        assert verification.verify(backend, "alice") is None
        assert sequences(tmp_path) == [1, 2, 3, 4]
    following.unlink()
    path = segment(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"tea 1", b"tee 1", 1))
    assert verification.verify(backend, "alice").place.startswith(f"{path}:")


def test_what_is_damaged_in_front_of_the_room_is_set_aside_without_it(tmp_path, alice):
    path = segment(tmp_path)
    end = len(path.read_bytes().rstrip(b"\n")) + 1
    path.write_bytes(path.read_bytes().replace(b"tea 2", b"tee 2"))
    write(opened(tmp_path))
    (aside,) = segments.damaged(path.parent)
    assert aside.read_bytes().startswith(b"[[tx]]")
    assert aside.read_bytes().endswith(b"\n]\n")
    assert len(aside.read_bytes()) < end


# The end of a process


WORK = """
import os, signal, sys
from tomldiary import Diary
from tomldiary.history import verify as verification
alice = Diary(sys.argv[1], agent="rules").user("alice")
for number in range(4):
    alice.upsert_preference("likes", f"{sys.argv[2]} {number}")
"""


def run(root, then="", name="x"):
    return subprocess.run(
        [sys.executable, "-c", WORK + then, str(root), name], check=False, timeout=60
    ).returncode


def test_a_process_that_ends_leaves_no_empty_lines_and_no_other_time(tmp_path):
    say = "print(os.stat(alice.diary.engine.backend._tails._tails['alice'].end.segment).st_mtime_ns, flush=True)"
    done = subprocess.run(
        [sys.executable, "-c", WORK + say, str(tmp_path), "x"],
        check=True, timeout=60, capture_output=True,
    )  # fmt: skip
    assert room(tmp_path) == 0
    # By that time whoever comes next tells whether documents are behind.
    assert segment(tmp_path).stat().st_mtime_ns == int(done.stdout)


def test_what_a_killed_process_laid_out_is_used_and_goes_with_the_next(tmp_path):
    assert run(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)") == -signal.SIGKILL
    assert room(tmp_path) > 0
    length = segment(tmp_path).stat().st_size
    alice = opened(tmp_path)
    write(alice)
    assert segment(tmp_path).stat().st_size == length
    assert run(tmp_path, name="y") == 0
    assert room(tmp_path) == 0
    assert sequences(tmp_path) == list(range(1, 10))


def test_a_diary_that_nobody_has_any_more_leaves_no_empty_lines(tmp_path):
    alice = with_room(tmp_path)
    del alice
    gc.collect()
    assert room(tmp_path) == 0


def test_what_somebody_else_is_at_stays(tmp_path):
    alice = with_room(tmp_path)
    locks = UserLocks(tmp_path / ".tomldiary/locks")
    with locks.hold("alice", 1):
        del alice
        gc.collect()
        assert room(tmp_path) > 0


def test_records_that_somebody_else_has_written_since_stay(tmp_path):
    alice = with_room(tmp_path)
    other = opened(tmp_path)
    write(other)
    write(other)
    left = room(tmp_path)
    del alice
    gc.collect()
    assert room(tmp_path) == left
    assert sequences(tmp_path) == [1, 2, 3, 4, 5]


def test_an_end_that_is_one_byte_off_is_none(tmp_path, alice):
    """Somebody else has written history anew meanwhile, and its last record ends one byte behind ours."""
    end = alice.diary.engine.backend._tails._tails["alice"].end
    before = segment(tmp_path).read_bytes()
    moved = before.replace(b"tea", b"teas", 1)
    segment(tmp_path).write_bytes(moved)
    segments.cut_room(end)
    assert segment(tmp_path).read_bytes() == moved


def test_a_forked_child_leaves_the_room_to_its_parent(tmp_path):
    fork = """
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
data = open(alice.diary.engine.backend._tails._tails["alice"].end.segment, "rb").read()
print(data.endswith(b"\\n\\n"), flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WORK + fork, str(tmp_path), "x"],
        check=True, timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "True\n"
    assert room(tmp_path) == 0


def test_a_folder_that_is_gone_is_not_made_again(tmp_path):
    alice = with_room(tmp_path)
    shutil.rmtree(tmp_path / "alice")
    shutil.rmtree(tmp_path / ".tomldiary")
    del alice
    gc.collect()
    assert list(tmp_path.iterdir()) == []


# Times that nobody asks for


def test_a_look_tells_what_the_system_says(tmp_path, monkeypatch):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"12345")
    link.symlink_to(path)
    found = path.stat()
    for _ in range(2):
        assert looks.look(str(path)) == (found.st_mode, found.st_ino, 5)
        assert looks.look(str(link), follow=True) == (found.st_mode, found.st_ino, 5)
        assert stat.S_ISLNK(looks.look(str(link))[0])
        with pytest.raises(FileNotFoundError, match="nothing"):
            looks.look(str(tmp_path / "nothing"))
        with pytest.raises(NotADirectoryError):
            looks.look(str(path / "below"))
        monkeypatch.setattr(looks, "_statx", lambda: None)  # a system without it


def test_a_sandbox_that_does_not_know_the_look_gets_the_usual_one(tmp_path, monkeypatch):
    unknown = (lambda *_: -1), bytearray, lambda: errno.EPERM
    monkeypatch.setattr(looks, "_statx", lambda: (unknown[0], lambda: bytearray(256), unknown[2]))
    assert looks.look(str(tmp_path))[1] == tmp_path.stat().st_ino


class Clock:
    """Counts the times that a file gets which has just been asked for its times: those are finer, see `looks`."""

    def __init__(self, patch):
        self.seen: dict[int, bool] = {}
        self.fine = 0
        for name in ("stat", "lstat", "fstat"):
            patch.setattr(os, name, self.asking(getattr(os, name)))
        for name in ("write", "writev", "pwrite", "ftruncate", "utime"):
            patch.setattr(os, name, self.changing(getattr(os, name)))
        for name in ("rename", "replace"):
            patch.setattr(os, name, self.moving(getattr(os, name)))
        patch.setattr(exchange, "swap", self.moving(exchange.swap))
        self.real = os.stat.__wrapped__

    def asking(self, real):
        def call(*args, **kwargs):
            found = real(*args, **kwargs)
            if found.st_ino in self.seen:
                self.seen[found.st_ino] = True
            return found

        call.__wrapped__ = real
        return call

    def change(self, file):
        with suppress(FileNotFoundError):
            inode = (
                self.real(file, follow_symlinks=False).st_ino
                if isinstance(file, str)
                else self.real(file).st_ino
            )
            self.fine += self.seen.get(inode, False)
            self.seen[inode] = False

    def changing(self, real):
        def call(file, *args, **kwargs):
            result = real(file, *args, **kwargs)
            self.change(file)
            return result

        return call

    def moving(self, real):
        def call(one, two):
            result = real(one, two)
            for each in (one, two, os.path.dirname(one), os.path.dirname(two)):  # noqa: PTH120
                self.change(each)
            return result

        return call

    def next_tick(self):
        """Go on to a moment at which every file has an older time."""
        self.seen.clear()


@needs_exchange
def test_no_file_is_asked_for_its_times_between_two_of_its_changes(tmp_path, monkeypatch):
    backend = Diary(tmp_path, agent="rules").engine

    def put(number):
        from tomldiary.engine.engine import Source  # noqa: PLC0415 - used once

        kind = f"items/k{number % 7}"
        backend.write(
            "alice", lambda tx: tx.edit(kind).put(("entries", "e"), {"n": number}), Source("put")
        )

    for number in range(28):
        put(number)
    clock = Clock(monkeypatch)
    changed = 0
    for number in range(28, 56):
        if number % 7 == 0:
            clock.next_tick()
        put(number)
        changed += len(clock.seen)
    assert changed > 28
    assert clock.fine == 0


def test_where_times_are_rounded_a_spare_is_asked_for_its_own(tmp_path, monkeypatch):
    real = os.utime

    def rounded(file, times=None, *, ns=None, **options):
        ns = tuple(each // 10**9 * 10**9 for each in ns)
        return real(file, times, ns=ns, **options)

    monkeypatch.setattr(os, "utime", rounded)
    alice = opened(tmp_path)
    document = tmp_path / "alice/preferences.toml"
    inodes = []
    for _ in range(9):
        write(alice)
        inodes.append(document.stat().st_ino)
    assert len(set(inodes)) == 2  # they took turns, and nobody's save was found in between
    assert texts(opened(tmp_path)) == [f"tea {number}" for number in range(9)]
    assert sequences(tmp_path) == list(range(1, 10))
    assert document.stat().st_mtime_ns % 10**9 != 0  # the system's time
    assert files.file_token(document) == alice.diary.engine.backend.token("alice", "preferences")


def test_where_a_spare_cannot_have_its_time_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(spares, "AT_REST", layout.AT_REST + 10**9)
    real = os.utime
    monkeypatch.setattr(os, "utime", lambda file, ns: real(file, ns=ns) if ns[0] > 10**18 else None)
    alice = opened(tmp_path)
    for _ in range(5):
        write(alice)
    assert list(tmp_path.glob("*/.spare-*")) == []
    assert list(tmp_path.glob("*/.staged-*")) == []
    assert len(texts(opened(tmp_path))) == 5
