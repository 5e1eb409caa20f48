"""Two files take turns as one document, and nobody notices: not who reads an old version, nor who looks for what was forgotten."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from capabilities import needs_exchange, needs_leases
from hand_edits import age, begin, texts
from processes import close
from tomldiary import Diary
from tomldiary.errors import BackendError
from tomldiary.storage.local import backend as local_module
from tomldiary.storage.local import checkpoint as settling
from tomldiary.storage.local import exchange, layout
from tomldiary.storage.local import lease as saving
from tomldiary.storage.local import log_segments as segments
from tomldiary.storage.local import publish as staging
from tomldiary.storage.local import spare_files as spares

pytestmark = [
    needs_exchange,
    needs_leases,
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]


def opened(root, durability="full"):
    return Diary(root, agent="rules", durability=durability).user("alice")


def write(alice, count=1):
    """Write so many times; return the inodes that the document had."""
    found = []
    for _ in range(count):
        alice.upsert_preference("likes", f"thing {len(texts(alice))}")
        found.append(Path(alice.diary.engine.backend.place("alice", "preferences")).stat().st_ino)
    return found


class Stopped(BaseException):
    """Nobody catches it."""


def stops(*_args, **_options):
    raise Stopped


def kept(root):
    """Return the spares that there are."""
    return list(root.glob("*/.spare-*"))


@pytest.fixture
def alice(tmp_path):
    """Has written so often that the next version is written over a spare."""
    alice = opened(tmp_path)
    write(alice, 3)
    assert len(kept(tmp_path)) == 1
    return alice


def test_two_files_take_turns_as_one_document(tmp_path, alice):
    inodes = write(alice, 6)
    assert inodes[:2] * 3 == inodes
    assert len(set(inodes)) == 2
    assert texts(opened(tmp_path)) == texts(alice) == [f"thing {number}" for number in range(9)]


def test_a_shorter_version_leaves_nothing_of_a_longer_one(tmp_path, alice, file):
    alice.upsert_preference("likes", "x" * 3000)
    for key in list(alice.preferences("likes"))[2:]:
        alice.forget_preference("likes", key)
    assert "thing 2" not in file.read_text()
    assert len(file.read_text()) < 1000
    assert texts(opened(tmp_path)) == ["thing 0", "thing 1"]


def test_the_spare_of_a_document_that_a_person_removed_goes(tmp_path, alice, file):
    file.unlink()
    age(file.parent)
    write(alice)
    assert kept(tmp_path) == []


def test_who_reads_a_memory_sees_nothing_of_it(tmp_path, alice):
    write(alice, 3)
    files = [path.name for path in (tmp_path / "alice").iterdir() if path.is_file()]
    assert [name for name in files if not name.startswith(".")] == ["preferences.toml"]
    assert alice.diary.engine.backend.kinds("alice") == ["preferences"]


def test_documents_in_folders_have_spares_of_their_own(tmp_path):
    backend = Diary(tmp_path, agent="rules").engine

    def put(kind, number):
        from tomldiary.engine.engine import Source  # noqa: PLC0415 - used once

        backend.write(
            "alice", lambda tx: tx.edit(kind).put(("entries", "e"), {"n": number}), Source("put")
        )

    for number in range(6):
        for kind in ("items/a", "items/a-b", "items%2fa"):
            put(kind, f"{kind} {number}")
    found = {
        kind: backend.document("alice", kind) for kind in ("items/a", "items/a-b", "items%2fa")
    }
    assert {kind: each.table(("entries", "e"))["n"] for kind, each in found.items()} == {
        kind: f"{kind} 5" for kind in found
    }
    assert len(kept(tmp_path)) == 3


# Whoever has a file


def test_whoever_reads_an_old_version_reads_it_to_the_end(alice, file):
    with file.open("rb") as old:
        begin = old.read(20)
        whole = file.read_bytes()
        write(alice, 4)
        assert begin + old.read() == whole


def test_whoever_has_mapped_an_old_version_keeps_it(alice, file):
    whole = file.read_bytes()
    with file.open("rb") as opened_file:
        mapped = mmap.mmap(opened_file.fileno(), 0, access=mmap.ACCESS_READ)
    write(alice, 4)
    assert mapped[:] == whole
    mapped.close()


def test_a_copy_under_a_second_name_stays_what_it_was(tmp_path, alice, file):
    copy, whole = tmp_path / "backup", file.read_bytes()
    os.link(file, copy)
    write(alice, 4)
    assert copy.read_bytes() == whole


@pytest.mark.parametrize("style", ["in place", "by rename"])
def test_a_file_that_a_person_has_saved_is_never_written_over(alice, file, style):
    text = file.read_text().replace("thing 1", "my thing")
    if style == "in place":
        file.write_text(text)
    else:
        (file.parent / "beside~").write_text(text)
        (file.parent / "beside~").replace(file)
    age(file)
    theirs = file.stat().st_ino
    held = os.open(file, os.O_PATH)  # its number is given to no other file meanwhile
    assert theirs not in write(alice, 5)
    os.close(held)
    assert "my thing" in texts(alice)


def test_what_a_person_saved_and_another_process_took_in_is_never_written_over(
    tmp_path, alice, file, monkeypatch
):
    other = opened(tmp_path)
    file.write_text(file.read_text().replace("thing 1", "my thing"))
    age(file)
    theirs = file.stat().st_ino
    held = os.open(file, os.O_PATH)
    with monkeypatch.context() as patch:
        patch.setattr(other.diary.engine, "store", stops)
        with pytest.raises(
            Stopped
        ):  # what they saved is in history, and nothing has come behind it
            write(other)
    assert alice.history()[0].type == "hand"
    assert theirs not in write(alice, 5)
    os.close(held)


def test_a_spare_goes_when_a_person_has_saved(tmp_path, alice, file):
    file.write_text(file.read_text().replace("thing 1", "my thing"))
    age(file)
    write(alice)
    assert kept(tmp_path) == []
    write(alice, 2)
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("moment", ["before", "during the sync"])
def test_a_spare_that_somebody_has_written_to_is_not_written_over(
    tmp_path, alice, monkeypatch, moment
):
    (spare,) = kept(tmp_path)
    held = os.open(spare, os.O_PATH)
    theirs, real = spare.stat().st_ino, segments._sync_data

    save = threading.Thread(target=spare.write_text, args=["What a save that came too late wrote."])

    def meanwhile(descriptor):
        monkeypatch.setattr(segments, "_sync_data", real)
        save.start()
        save.join(0.2)
        assert save.is_alive()  # it waits
        real(descriptor)

    if moment == "before":
        save.start()
        save.join()
    else:
        monkeypatch.setattr(segments, "_sync_data", meanwhile)
    assert theirs not in write(alice, 3)
    save.join()
    assert spare.read_text() == "What a save that came too late wrote."
    os.close(held)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), Stopped()])
def test_a_spare_is_let_go_of_when_its_record_cannot_be_stored(tmp_path, alice, monkeypatch, error):
    (spare,) = kept(tmp_path)
    before, leased = spare.read_text(), []

    def fails(_descriptor):
        leased.extend(alice.diary.engine.backend._spares._opened)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(segments, "_sync_data", fails)
        with pytest.raises((BackendError, Stopped)):
            write(alice)
    assert len(leased) == 1
    os.close(os.open(spare, os.O_RDWR | os.O_NONBLOCK))  # or it says that somebody has a lease
    assert spare.read_text() == before
    write(alice, 3)


def test_a_process_forked_during_a_write_leaves_the_spare_to_its_parent(
    tmp_path, alice, monkeypatch
):
    (spare,) = kept(tmp_path)
    real, children = segments._sync_data, []

    def forks(descriptor):
        monkeypatch.setattr(segments, "_sync_data", real)
        child = os.fork()
        if child == 0:
            open_here = [each.resolve() for each in Path("/proc/self/fd").iterdir()]
            os._exit(spare in open_here)
        children.append(os.waitpid(child, 0)[1])
        real(descriptor)

    monkeypatch.setattr(segments, "_sync_data", forks)
    theirs = spare.stat().st_ino
    assert write(alice) == [theirs]
    assert children == [0]


@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_rights_that_somebody_gave_to_an_old_version_are_not_given_to_new_ones(
    alice, file, monkeypatch, mode
):
    file.chmod(mode)
    write(alice)
    with monkeypatch.context() as patch:
        patch.setattr(spares.Spares, "fill", stops)  # that is known before there is a record
        write(alice)
    for _ in range(4):
        write(alice)
        assert file.stat().st_mode & 0o777 == 0o600


def test_where_nobody_can_tell_who_has_a_file_none_is_kept_any_more(alice, monkeypatch):
    asked = []

    def refused(descriptor, *, for_writing):
        asked.append((descriptor, for_writing))
        return errno.ENOSYS

    monkeypatch.setattr(spares, "lease", refused)
    monkeypatch.setattr(spares, "write_over", stops)
    write(alice, 5)
    assert [for_writing for _, for_writing in asked] == [True]


# What is not to be lost


def test_without_a_sync_nothing_is_written_over(tmp_path):
    alice = opened(tmp_path, "process")
    write(alice, 6)
    assert kept(tmp_path) == []


def test_a_spare_is_written_over_only_once_its_record_is_on_the_disk(tmp_path, alice, monkeypatch):
    (spare,) = kept(tmp_path)
    before = spare.read_bytes()
    seen = []
    real = segments.write_all, segments._sync_data

    def looking(call):
        def looked(*args):
            seen.append(spare.read_bytes() == before)
            done = call(*args)
            seen.append(spare.read_bytes() == before)
            return done

        return looked

    # A look at the file from here is a second one who has it, so that a second name has to do.
    name = tmp_path / "name"
    os.link(spare, name)
    name.unlink()
    monkeypatch.setattr(segments, "write_all", looking(real[0]))
    monkeypatch.setattr(segments, "_sync_data", looking(real[1]))
    monkeypatch.setattr(spares, "lease", lambda *_, **__: 0)
    write(alice)
    assert seen == [True] * 4
    assert texts(opened(tmp_path)) == [f"thing {number}" for number in range(4)]


def test_a_record_that_cannot_be_stored_leaves_document_and_spare_as_they_were(
    tmp_path, alice, file, monkeypatch
):
    (spare,) = kept(tmp_path)
    before = spare.read_bytes(), file.read_bytes()
    opened_files = len(list(Path("/proc/self/fd").iterdir()))

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(segments, "_sync_data", full)
        with pytest.raises(BackendError, match="Nothing was changed"):
            write(alice)
    assert len(list(Path("/proc/self/fd").iterdir())) == opened_files
    assert (spare.read_bytes(), file.read_bytes()) == before
    write(alice, 2)
    assert texts(opened(tmp_path)) == [f"thing {number}" for number in range(5)]


def test_a_full_disk_refuses_a_version_that_needs_more_room(tmp_path, alice, file, monkeypatch):
    (spare,) = kept(tmp_path)
    before = file.read_bytes(), spare.read_bytes()
    real = os.statvfs

    class Full:
        f_bavail, f_frsize = 1000, 4096

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    with monkeypatch.context() as patch:
        patch.setattr(staging, "write_new", full)
        with pytest.raises(BackendError, match="Nothing was changed"):
            alice.upsert_preference("likes", "x" * 9000)
        write(alice)  # has room where the one before it was
    assert len(alice.history()) == 4
    assert before[1] != spare.read_bytes()
    monkeypatch.setattr(os, "statvfs", real)
    alice.upsert_preference("likes", "x" * 9000)
    assert "x" * 9000 in file.read_text()


def dies(*_, **__):
    os._exit(7)


def half_of(calls):
    """Return what writes so much of a version over another, in two calls, and dies."""

    def written(descriptor, parts):
        os.write(descriptor, parts[0] + parts[1][:calls])
        dies()

    return written


def killed(root, moment, prepare=lambda: None):
    """Write as often as it takes to have a spare, in a process of its own, which dies at some moment of one write more."""
    child = os.fork()
    if child == 0:
        alice = opened(root)
        write(alice, 2)
        setattr(*moment)
        prepare()
        write(alice)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_what_is_half_staged_behind_its_record_takes_no_document_s_place(tmp_path, file):
    alice = opened(tmp_path)
    write(alice)

    def read_slowly():
        os.open(
            kept(tmp_path)[0], os.O_RDONLY
        )  # so that there has to be a new file, once the record is written

    killed(tmp_path, (staging, "write_new", half_staged), read_slowly)
    (left,) = (tmp_path / "alice").glob(".staged-*")
    assert left.stat().st_size == 100
    assert texts(opened(tmp_path)) == [f"thing {number}" for number in range(4)]
    assert "thing 3" in file.read_text()
    assert [change.type for change in alice.history()] == ["upsert"] * 4


def half_staged(path, data, *, sync):
    Path(path).write_bytes(data[:100])
    os._exit(7)


def test_a_link_in_place_of_a_user_s_folder_is_not_followed(tmp_path, alice):
    other, (spare,) = tmp_path / "other", kept(tmp_path)
    (tmp_path / "alice").rename(other)
    (tmp_path / "alice").symlink_to(other)
    remove(opened(tmp_path))
    assert (other / spare.name).exists()


def test_no_spare_of_another_window_is_written_over(tmp_path, monkeypatch):
    monkeypatch.setattr(settling, "WINDOW", 4)
    alice = opened(tmp_path)
    filled, real = [], spares.Spares.fill

    def fill(*args):
        done = real(*args)
        filled.append(alice.history()[0].seq)
        return done

    monkeypatch.setattr(spares.Spares, "fill", fill)
    write(alice, 12)
    assert filled == [3, 4, 6, 7, 8, 10, 11, 12]
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize(
    "moment",
    [
        (spares.Spares, "fill", dies),
        (os, "writev", half_of(100)),
        (os, "pwrite", dies),
        (exchange, "swap", dies),
        (spares.Spares, "keep", dies),
    ],
    ids=[
        "before it is written over",
        "half way",
        "before it is whole",
        "before the exchange",
        "behind it",
    ],
)
@pytest.mark.parametrize("who", ["one at work", "a new one"])
def test_one_who_is_killed_behind_the_record_has_written(tmp_path, file, moment, who):
    other = opened(tmp_path)
    write(other)

    killed(tmp_path, moment)
    finder = other if who == "one at work" else opened(tmp_path)
    finder.upsert_preference("goals", "rest")
    assert texts(finder) == texts(other) == [f"thing {number}" for number in range(4)]
    assert "thing 3" in file.read_text()
    assert all(path.stat().st_mtime_ns == layout.AT_REST for path in kept(tmp_path))
    assert list((tmp_path / "alice").glob(".staged-*")) == []
    assert [change.type for change in finder.history()] == ["upsert"] * 5
    write(other, 3)
    assert texts(opened(tmp_path)) == [f"thing {number}" for number in range(7)]


@pytest.mark.parametrize("who", ["one at work", "a new one"])
@pytest.mark.parametrize("moment", ["behind the exchange", "behind a look at it"])
def test_a_save_that_displaced_a_spare_outlives_who_displaced_it(tmp_path, file, moment, who):
    other = opened(tmp_path)
    write(other)
    real = exchange.swap

    def saved_meanwhile(one, two):
        save_as_editors_do(file)
        done = real(one, two)
        return dies() if moment == "behind the exchange" else done

    def prepare():
        if moment == "behind a look at it":
            local_module.take_in = dies

    killed(tmp_path, (exchange, "swap", saved_meanwhile), prepare)
    assert "my thing" not in file.read_text()
    finder = other if who == "one at work" else opened(tmp_path)
    finder.upsert_preference("goals", "rest")
    expected = ["thing 0", "my thing", "thing 2", "thing 3"]
    assert texts(finder) == texts(opened(tmp_path)) == expected
    assert [change.type for change in finder.history()] == ["upsert", "hand", *["upsert"] * 4]
    assert list((tmp_path / "alice").glob(".staged-*")) == []
    write(finder, 3)
    assert texts(opened(tmp_path)) == [*expected, *[f"thing {number}" for number in range(4, 7)]]


def save_as_editors_do(file):
    beside = file.parent / "beside~"
    beside.write_text(file.read_text().replace("thing 1", "my thing"))
    beside.replace(file)


def test_a_save_that_displaced_a_spare_is_taken_in_at_once(alice, file, monkeypatch):
    real = exchange.swap

    def saved_meanwhile(one, two):
        monkeypatch.setattr(exchange, "swap", real)
        save_as_editors_do(file)
        return real(one, two)

    monkeypatch.setattr(exchange, "swap", saved_meanwhile)
    write(alice)
    assert "my thing" in file.read_text()
    assert "thing 3" in file.read_text()
    assert [change.type for change in alice.history()][:2] == ["hand", "upsert"]


def test_a_spare_that_is_being_exchanged_makes_room_for_no_other(tmp_path, alice, monkeypatch):
    """What it gives way to may be a save."""
    monkeypatch.setattr(spares, "_MOST", 1)
    real = exchange.swap

    def meanwhile(one, two):
        monkeypatch.setattr(exchange, "swap", real)
        for number in range(3):
            alice.diary.user("bob").upsert_preference("likes", f"thing {number}")
        assert Path(one).exists()
        return real(one, two)

    monkeypatch.setattr(exchange, "swap", meanwhile)
    write(alice)
    assert texts(opened(tmp_path)) == [f"thing {number}" for number in range(4)]


@pytest.mark.parametrize("is_reader", [True, False])
def test_a_spare_goes_when_a_save_comes_first(tmp_path, alice, file, monkeypatch, is_reader):
    real = exchange.Held

    def saved_meanwhile(path):
        monkeypatch.setattr(exchange, "Held", real)
        save_as_editors_do(file)
        return real(path)

    (spare,) = kept(tmp_path)
    monkeypatch.setattr(exchange, "Held", saved_meanwhile)
    with spare.open("rb") if is_reader else nullcontext():
        write(alice)
    assert "my thing" in file.read_text()
    assert kept(tmp_path) == []


def test_no_spare_is_used_for_a_document_that_a_person_has_saved(alice, file, monkeypatch):
    save_as_editors_do(file)
    age(file)
    monkeypatch.setattr(spares.Spares, "fill", stops)
    write(alice)
    assert "my thing" in file.read_text()


def test_what_somebody_wrote_to_a_spare_is_left_for_whoever_comes_next(tmp_path, alice, file):
    (spare,) = kept(tmp_path)
    spare.write_text(file.read_text().replace("thing 1", "my thing"))
    write(alice, 3)
    assert "my thing" in texts(opened(tmp_path))
    assert not spare.exists()


def make_folder(path):
    (path / "photos").mkdir(parents=True)


@pytest.mark.parametrize("name", [".spare-00000000-0.0-{}.tmp", ".staged-999-1.00000000.0-{}.tmp"])
@pytest.mark.parametrize("make", [make_folder, os.mkfifo, "a link", "a text"])
def test_what_is_nothing_of_ours_is_left_alone_under_any_name(tmp_path, alice, name, make):
    kind = "preferences"
    if make == "a text":
        kind, make = "..%2fbob%2fpreferences", Path.touch
    elif make == "a link":
        if "spare" not in name:
            pytest.skip("may be what somebody has put in a document's place")
        make = lambda path: path.symlink_to("/etc/passwd")  # noqa: E731 - as the others
    path = tmp_path / "alice" / name.format(kind)
    make(path)
    other = opened(tmp_path)
    assert texts(other) == ["thing 0", "thing 1", "thing 2"]
    write(other)
    write(alice)
    assert os.path.lexists(path)
    if path.is_dir():
        os.utime(path, ns=(layout.AT_REST, layout.AT_REST))
        other.forget(session_id="s1")
        assert path.is_dir()
    assert texts(opened(tmp_path)) == [f"thing {number}" for number in range(5)]


def test_a_pipe_in_place_of_a_spare_costs_that_one_only(tmp_path, alice):
    (spare,) = kept(tmp_path)
    spare.unlink()
    os.mkfifo(spare)
    write(alice, 4)
    spare.unlink()
    assert len(kept(tmp_path)) == 1


def test_a_user_s_folder_that_is_a_link_has_no_spares(tmp_path, alice):
    (tmp_path / "alice").rename(tmp_path / "other")
    (tmp_path / "alice").symlink_to(tmp_path / "other")
    write(alice, 5)
    alice.prune_history(keep=1)
    assert kept(tmp_path) == []
    other = opened(tmp_path)
    write(other, 5)
    assert kept(tmp_path) == []


def test_where_a_time_is_not_kept_there_are_no_spares(tmp_path, monkeypatch):
    real = saving.Held.set_time

    def rounded(self, time):
        real(self, time // 60_000_000_000 * 60_000_000_000)

    monkeypatch.setattr(saving.Held, "set_time", rounded)
    alice = opened(tmp_path)
    for _ in range(5):
        write(alice)
        assert kept(tmp_path) == []


@pytest.mark.parametrize("text", [b"\0t\0e\0a", b"broken = "])
def test_a_displaced_save_that_is_no_text_goes_back_to_its_place(tmp_path, file, text):
    write(opened(tmp_path))
    real = exchange.swap

    def saved_meanwhile(one, two):
        (file.parent / "beside~").write_bytes(text)
        (file.parent / "beside~").replace(file)
        real(one, two)
        dies()

    killed(tmp_path, (exchange, "swap", saved_meanwhile))
    opened(tmp_path).preferences()
    assert file.read_bytes() == text


def test_a_save_that_displaced_a_spare_and_cannot_be_set_aside_is_taken_in_all_the_same(
    alice, file, monkeypatch
):
    real, rename = exchange.swap, os.rename

    def saved_meanwhile(one, two):
        monkeypatch.setattr(exchange, "swap", real)
        save_as_editors_do(file)
        return real(one, two)

    def refused(one, two):
        if ".spare-" in str(one):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), one)
        rename(one, two)

    monkeypatch.setattr(exchange, "swap", saved_meanwhile)
    monkeypatch.setattr(os, "rename", refused)
    write(alice)
    assert "my thing" in file.read_text()


def test_a_displaced_save_that_nobody_can_take_in_yet_outlives_the_window(
    tmp_path, file, monkeypatch
):
    monkeypatch.setattr(settling, "WINDOW", 5)
    write(opened(tmp_path))
    real = exchange.swap

    def saved_meanwhile(one, two):
        save_as_editors_do(file)
        real(one, two)
        dies()

    killed(tmp_path, (exchange, "swap", saved_meanwhile))
    (displaced,) = kept(tmp_path)
    whole = file.read_text()
    saving = os.open(displaced, os.O_WRONLY)
    file.write_text("broken = ")
    age(file)
    finder = opened(tmp_path)
    for number in range(6):
        finder.upsert_preference("goals", f"goal {number}")
    os.close(saving)
    file.write_text(whole)
    age(file)
    finder.upsert_preference("goals", "rest")
    assert "my thing" in texts(finder)


def test_nothing_but_a_document_on_its_way_brings_a_removed_one_back(tmp_path, file):
    """What is a spare at rest is not known for one in a copy that kept no times."""
    alice = opened(tmp_path)
    write(alice, 3)
    (spare,) = kept(tmp_path)
    file.unlink()
    age(file.parent)
    other = opened(tmp_path)
    other.upsert_preference("likes", "anew")
    assert kept(tmp_path) == [spare]
    spare.touch()
    file.unlink()
    age(file.parent)
    assert texts(opened(tmp_path)) == []
    assert not file.exists()


def test_a_spare_at_rest_is_nobody_s_save_whatever_it_holds(tmp_path, monkeypatch):
    write(opened(tmp_path))
    killed(tmp_path, (spares.Spares, "fill", dies))
    (spare,) = kept(tmp_path)
    spare.write_text(spare.read_text().replace("thing 1", "half a"))
    os.utime(spare, ns=(layout.AT_REST, layout.AT_REST))
    monkeypatch.setattr(spares, "_OLD", -1)
    assert texts(opened(tmp_path)) == [f"thing {number}" for number in range(4)]
    assert kept(tmp_path) == []


@pytest.mark.parametrize("length", [100, 10_000])
@pytest.mark.parametrize("then", ["other rights", "a copy", "removed"])
def test_a_half_written_spare_is_nobody_s_save(tmp_path, then, length):
    """What it holds says so: rights change, and times and modes do not survive copies."""
    root = tmp_path / "m"

    write(opened(root))
    killed(root, (os, "writev", half_of(length)))
    assert kept(root)
    expected = [f"thing {number}" for number in range(4)]
    if then == "other rights":
        for path in root.rglob("*"):
            path.chmod(0o755)
    elif then == "a copy":
        root = shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)
    else:
        shutil.rmtree(root / "alice")
        expected = []
    alice = opened(root)
    alice.upsert_preference("goals", "rest")
    assert texts(alice) == texts(opened(root)) == expected
    assert {change.type for change in alice.history()} == {"upsert"}
    write(alice, 3)
    assert len(texts(opened(root))) == len(expected) + 3


def test_the_spare_of_what_was_removed_is_not_the_next_one_s(tmp_path, alice, monkeypatch):
    shutil.rmtree(tmp_path / "alice")
    monkeypatch.setattr(spares.Spares, "fill", stops)
    write(alice, 2)
    assert texts(opened(tmp_path)) == ["thing 0", "thing 1"]


def test_a_reader_puts_right_what_a_killed_writer_left(tmp_path, file):
    write(opened(tmp_path))
    killed(tmp_path, (spares.Spares, "fill", lambda *_: os._exit(7)))
    assert "thing 3" not in file.read_text()
    assert texts(opened(tmp_path)) == [f"thing {number}" for number in range(4)]
    assert "thing 3" in file.read_text()


def test_the_first_version_of_a_document_is_its_second_s_spare(tmp_path):
    alice = opened(tmp_path)
    first = write(alice)
    write(alice)
    assert [path.stat().st_ino for path in kept(tmp_path)] == first


def test_a_document_that_a_person_removed_is_staged_before_its_record(alice, file, monkeypatch):
    monkeypatch.setattr(spares.Spares, "fill", stops)
    file.unlink()
    age(file.parent)
    alice.upsert_preference("likes", "tea")
    assert "tea" in file.read_text()


def test_a_process_that_was_forked_meanwhile_keeps_nobody_waiting(alice, file, monkeypatch):
    real, children = spares.write_over, []

    def forking(*args):
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
        real(*args)

    monkeypatch.setattr(spares, "write_over", forking)
    write(alice)
    reader = begin(file.read_text)
    is_waiting = reader.is_alive()
    os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)
    reader.join()
    assert not is_waiting


@pytest.mark.parametrize("size", [0, 3, 5000, 20_000])
@pytest.mark.parametrize("data", [b"", b"a=1", b"a = 1\n", b"x" * 10_000])
def test_what_is_written_over_a_file_is_all_that_it_holds(tmp_path, data, size):
    path = tmp_path / "file"
    path.write_bytes(b"y" * size)
    descriptor = os.open(path, os.O_RDWR)
    spares.write_over(descriptor, data, size)
    os.close(descriptor)
    assert path.read_bytes() == data


@pytest.mark.parametrize("count", [2, 4, 100])
def test_a_short_write_is_continued_or_done_elsewhere(alice, file, monkeypatch, count):
    done = []

    def short(descriptor, parts):
        done.append(os.write(descriptor, b"".join(parts)[:count]))
        return done[-1]

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", short)
        write(alice)
    assert done == [count]
    assert file.read_text() == alice.document("preferences")
    assert file.read_text().count("thing") == 4


def test_a_spare_without_room_is_left_for_a_new_file(alice, file, monkeypatch):
    def full(descriptor, parts):
        os.write(descriptor, parts[0])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = write(alice, 2)
    held = [os.open(path, os.O_PATH) for path in (file, *kept(file.parent.parent))]
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        assert write(alice)[0] not in before
        assert all(path.stat().st_mtime_ns == layout.AT_REST for path in kept(file.parent.parent))
    for descriptor in held:
        os.close(descriptor)
    assert "thing 5" in file.read_text()
    write(alice, 3)
    assert len(texts(alice)) == 9


@pytest.mark.parametrize("moment", [(spares.Spares, "fill"), (exchange, "swap")])
def test_a_spare_that_somebody_has_removed_is_missed_by_nobody(
    tmp_path, alice, monkeypatch, moment
):
    def remove(*_):
        for path in kept(tmp_path):
            path.unlink()

    remove()
    write(alice, 3)
    real = getattr(*moment)

    def too_late(*args):
        remove()
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(*moment, too_late)
        write(alice, 3)
    assert texts(opened(tmp_path)) == [f"thing {number}" for number in range(9)]
    write(alice, 3)
    assert len(kept(tmp_path)) == 1
    assert {change.type for change in alice.history()} == {"upsert"}


def test_two_who_write_in_turn_lose_nothing(tmp_path):
    both = opened(tmp_path), opened(tmp_path)
    for number in range(20):
        write(both[number % 3 == 0])
    assert texts(opened(tmp_path)) == [f"thing {number}" for number in range(20)]
    assert len(kept(tmp_path)) <= 1


# What is not to stay


def forget_all(alice):
    alice.forget(everything=True)


def forget_one(alice):
    alice.forget(f"preferences/likes/{next(iter(alice.preferences('likes')))}")


def remove(alice):
    alice.diary.engine.backend.erase("alice")


@pytest.mark.parametrize("forget", [forget_all, remove])
@pytest.mark.parametrize("is_other", [True, False])
def test_spares_go_with_what_is_forgotten(tmp_path, alice, forget, is_other):
    assert b"thing 0" in kept(tmp_path)[0].read_bytes()
    forget(opened(tmp_path) if is_other else alice)
    assert kept(tmp_path) == []
    write(alice, 4)
    assert texts(opened(tmp_path)) == [f"thing {number}" for number in range(4)]


def test_no_spare_holds_what_was_forgotten_of_a_session(tmp_path):
    alice = opened(tmp_path)
    for number in range(4):
        alice.add_turn(f"I love zanzibar {number}.", "ok", session_id="s1")
    assert any(b"zanzibar" in path.read_bytes() for path in kept(tmp_path))
    opened(tmp_path).forget(session_id="s1")
    assert kept(tmp_path) == []
    write(alice, 4)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"zanzibar" in path.read_bytes() for path in left)


def test_spares_go_with_history_that_is_dropped(tmp_path, alice):
    alice.prune_history(keep=1)
    assert kept(tmp_path) == []


def test_a_spare_that_cannot_be_removed_keeps_all_from_being_forgotten(
    tmp_path, alice, monkeypatch
):
    real = os.unlink

    def refused(path, **options):
        if "/.spare-" in str(path):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refused)
        with pytest.raises(BackendError, match="Nothing was changed"):
            alice.forget(everything=True)
    assert texts(alice) == ["thing 0", "thing 1", "thing 2"]


def test_spares_go_at_the_end_of_a_diary(tmp_path):
    alice = opened(tmp_path)
    write(alice, 3)
    assert len(kept(tmp_path)) == 1
    del alice
    gc.collect()
    assert kept(tmp_path) == []


def test_spares_go_at_the_end_of_a_process(tmp_path):
    script = (
        "import sys\nfrom tomldiary import Diary\n"
        "alice = Diary(sys.argv[1], agent='rules').user('bob')\n"
        "for n in range(4): alice.upsert_preference('likes', f'thing {n}')\n"
        "from pathlib import Path\n"
        "assert list(Path(sys.argv[1]).glob('bob/.spare-*'))\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert kept(tmp_path) == []


@pytest.mark.parametrize("writes", [0, 3])
def test_a_forked_process_leaves_its_parent_s_spares_and_none_of_its_own(tmp_path, writes):
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom tomldiary import Diary\n"
        "alice = Diary(sys.argv[1], agent='rules').user('alice')\n"
        "def write(n):\n"
        "    for each in range(n): alice.upsert_preference('likes', f'thing {os.getpid()} {each}')\n"
        "write(4)\n"
        "def kept(): return [(p, p.stat().st_ino) for p in Path(sys.argv[1]).glob('alice/.spare-*')]\n"
        "before = kept()\n"
        "assert len(before) == 1\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    write(int(sys.argv[2]))\n"
        "    sys.exit()\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert kept() == before, kept()\n"
        "write(4)\n"
        "assert len(kept()) == 1\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path), str(writes)], check=True)
    assert kept(tmp_path) == []
    assert len(texts(opened(tmp_path))) == 4 + writes


def test_the_spares_of_one_user_are_nothing_to_another(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    for user in ("alice", "bob"):
        for number in range(3):
            diary.user(user).upsert_preference("likes", f"{user} {number}")
    assert len(kept(tmp_path)) == 2
    diary.user("alice").forget(everything=True)
    assert [b"bob" in path.read_bytes() for path in kept(tmp_path)] == [True]


def test_what_killed_processes_left_goes_after_an_hour(tmp_path, file, monkeypatch):
    write(opened(tmp_path))
    killed(tmp_path, (spares.Spares, "fill", dies))
    (left,) = kept(tmp_path)
    texts(opened(tmp_path))
    assert kept(tmp_path) == [left]
    monkeypatch.setattr(spares, "_OLD", -1)
    texts(opened(tmp_path))
    assert kept(tmp_path) == []


def test_only_so_many_documents_have_a_spare(tmp_path, monkeypatch):
    monkeypatch.setattr(spares, "_MOST", 2)
    diary = Diary(tmp_path, agent="rules")
    for number in range(12):
        diary.user(f"user{number % 3}").upsert_preference("likes", f"thing {number}")
    assert len(kept(tmp_path)) <= 2
    for number in range(6):
        diary.user("user1").upsert_preference("likes", f"more {number}")
    assert len(kept(tmp_path)) == 1
    close(diary)
