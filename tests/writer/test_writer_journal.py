"""The journal: one sync for many, one owner at a time, whole records only, and gone when all is done."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import shutil
import signal
import stat
import statistics
import threading
import time
import tomllib
from contextlib import ExitStack
from dataclasses import replace

import pytest
from pydantic import BaseModel

import programs
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.doctor.files import check_files
from tomldiary.errors import BackendError, InvalidValue
from tomldiary.extraction.operations import (
    CommitFact,
    ForgetPreference,
    SetFields,
    SetSummary,
    UpsertPreference,
    from_dict,
    to_table,
)
from tomldiary.storage.files import FileSystem
from tomldiary.storage.locks import lock_file
from tomldiary.storage.log import scan_log
from tomldiary.writer import journals
from tomldiary.writer.journal import Journal, render_operations, render_turn, render_turn_record
from tomldiary.writer.journals import forget_turns, turn_of
from tomldiary.writer.receipts import Job
from waiting import until

LONG = 120


def jobs_of(*texts, user="alice"):
    made = []
    for number, text in enumerate(texts):
        job = Job(Turn(user, "s", text, "ok"), f"op-{number}-{text}", is_new=True)
        job.rendered = render_turn(job.turn, job.operation, "2026-11-20T00:00:00+00:00")
        made.append(job)
    return made


def first_epoch(user):
    return 0


def die(journal):
    """Let go of a journal like a process that is killed."""
    journal.drop()


def root_of(folder):
    return folder / ".tomldiary" / "journal"


def never(message, *, deps):
    time.sleep(LONG)


async def hang(message, *, deps):
    await asyncio.Event().wait()


def remember(message, *, deps):
    deps.upsert("likes", None, deps.user_msg, ())


# Files


def test_a_journal_is_readable_toml_in_private_files(tmp_path):
    old = os.umask(0)
    try:
        journal = Journal.create(tmp_path / "journal", sync=True)
    finally:
        os.umask(old)
    jobs = jobs_of("tea", 'a "quoted"\n[[turn]]\nline', "juice")
    journal.append_turns(jobs, first_epoch)
    journal.sync()
    journal.append_operations(jobs[:1], [UpsertPreference("likes", text="tea")], first_epoch)
    journal.finish(jobs[:1])
    [path] = journal.folder.glob("*.toml")
    data = tomllib.loads(path.read_text("utf-8"))
    assert [turn["user_msg"] for turn in data["turn"]] == [job.turn.user_msg for job in jobs]
    assert data["operations"][0]["operations"] == [
        {"op": "UpsertPreference", "category": "likes", "text": "tea"}
    ]
    assert data["done"][0]["numbers"] == [1]
    for place in (tmp_path / "journal", journal.folder):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    for place in journal.folder.iterdir():
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert journal.pending == 2
    journal.close()


@pytest.mark.parametrize(
    "turn",
    [
        Turn("alice", "s", "hello", "hi"),
        Turn("böse\n\x00\ud800 id", "s\t1", 'a "b"\\\n\u2028', "", status="cancelled"),
        Turn("alice", "s", "x" * 100_000, "y", None, "failed", "run-1"),
    ],
)
def test_every_turn_survives_the_journal_unchanged(turn):
    text = render_turn_record(3, 7, render_turn(turn, "op", "2026-11-20"))
    [entry] = scan_log(text.encode())
    assert turn_of(entry.data) == replace(turn, operation_id="op")
    assert (entry.data["number"], entry.data["epoch"]) == (3, 7)


@pytest.mark.parametrize(
    "operation",
    [
        UpsertPreference("likes"),
        UpsertPreference("likes", "pref001", "tea", ("a", "b"), count_up=False, created_as="x",
                         fields=(("_source", "s#1"), ("score", 0.5), ("list", ["a", {"b": 1}]))),
        ForgetPreference("likes", "pref001"),
        SetSummary("s", "talked", ("one", "two")), SetSummary("s", "talked"),
        SetSummary("s", "", ()),
        SetFields("preferences", ("preferences", "likes", "p"), (("text", "x"),), ("old",), existing=True),
        SetFields("preferences", ("preferences", "likes", "p"), delete=True),
    ],
)  # fmt: skip
def test_every_operation_survives_the_journal_unchanged(operation):
    [entry] = scan_log(render_operations([1], "op", [operation]).encode())
    assert from_dict(entry.data["operations"][0]) == operation
    assert from_dict(to_table(operation)) == operation


def test_segments_are_removed_when_their_turns_and_older_ones_are_done(tmp_path):
    journal = Journal.create(tmp_path / "journal", sync=False, segment_bytes=2_000)

    def files():
        return len(list(journal.folder.glob("*.toml")))

    for stuck in ([], jobs_of("stuck")):
        journal.append_turns(stuck, first_epoch)
        for number in range(50):
            jobs = jobs_of(f"turn {number}", f"more {number}")
            journal.append_turns(jobs, first_epoch)
            journal.finish(jobs)
        assert (files() > 2) is bool(stuck)
    die(journal)
    # Newer files say that turns of older files are done.
    journal, left = Journal.adopt(journal.folder, sync=False)
    assert [job.turn.user_msg for job in left] == ["stuck"]
    journal.finish(left)
    assert (journal.pending, files()) == (0, 1)
    journal.close()
    assert list((tmp_path / "journal").iterdir()) == []


def test_turns_that_were_read_together_are_taken_over_together(tmp_path):
    journal = Journal.create(tmp_path / "journal", sync=False, segment_bytes=0)
    jobs = jobs_of("one", "two", "three", "four")
    for job in jobs:
        journal.append_turns([job], first_epoch)
    alone, both = UpsertPreference("likes", text="one"), UpsertPreference("likes", text="both")
    journal.append_operations(jobs[:1], [alone], first_epoch)
    journal.append_operations(jobs[1:3], [both], first_epoch)
    journal.finish(jobs[:1])  # its file is removed; its operations are in the last one
    die(journal)
    journal, left = Journal.adopt(journal.folder, sync=False)
    found = [[each.turn.user_msg for each in (job, *job.group)] for job in left]
    assert (found, left[0].operations) == ([["two", "three"], ["four"]], [both])
    journal.finish([each for job in left for each in (job, *job.group)])
    assert journal.pending == 0
    journal.close()


def test_a_segment_is_synced_before_the_next_one_begins(tmp_path, monkeypatch):
    synced = []

    class Watched(FileSystem):
        def sync_data(self, descriptor):
            synced.append(self.fstat(descriptor).st_ino)

    journal = Journal.create(tmp_path, sync=True, files=Watched(), segment_bytes=0)
    jobs, sync = jobs_of("one", "two", "three"), journal.sync
    journal.append_turns(jobs[:2], first_epoch)
    segment = max(journal.folder.glob("*.toml"))

    def sync_late():
        journal.append_turns(jobs[2:], first_epoch)  # another thread begins the next segment
        sync()

    synced.clear()
    monkeypatch.setattr(journal, "sync", sync_late)
    journal.append_operations(jobs[:2], [], first_epoch)  # those of a group are durable afterwards
    assert "[[operations]]" in segment.read_text("utf-8")
    assert segment.stat().st_ino in synced
    journal.drop()


def test_a_long_segment_of_finished_turns_is_emptied(tmp_path):
    journal = Journal.create(tmp_path / "journal", sync=False)
    for number in range(10):
        jobs = jobs_of("x" * 10_000 + str(number))
        journal.append_turns(jobs, first_epoch)
        journal.finish(jobs)
    assert sum(path.stat().st_size for path in journal.folder.glob("*.toml")) < 80_000
    assert journal.pending == 0
    journal.close()


def test_a_torn_log_tail_is_cut_off_and_a_damaged_record_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tomldiary"), "propagate", False)  # as without logging
    journal = Journal.create(tmp_path / "journal", sync=False)
    journal.append_turns(jobs_of("one", "two", "three", "four"), first_epoch)
    die(journal)
    [path] = journal.folder.glob("*.toml")
    data = path.read_bytes().replace(b'"two"', b'"tw0"')
    path.write_bytes(data[:-10])
    journal, left = Journal.adopt(journal.folder, sync=False)
    assert [job.turn.user_msg for job in left] == ["one", "three"]
    assert "1 record failed the checksum" in capsys.readouterr().err
    assert b'"tw0"' in path.with_suffix(".damaged").read_bytes()
    more = jobs_of("five")
    journal.append_turns(more, first_epoch)
    assert [entry.data["number"] for entry in scan_log(path.read_bytes()) if entry.data] == [
        1, 3, 4,
    ]  # fmt: skip
    journal.finish([*left, *more])
    journal.close()
    [finding] = [each for each in check_files(tmp_path) if each.level == "problem"]
    assert finding.place == str(path.with_suffix(".damaged"))
    assert finding.message == "these queued turns failed the checksum and were not applied."


def test_turns_are_read_from_a_journal_with_converted_line_ends(tmp_path):
    journal = Journal.create(tmp_path / "journal", sync=False)
    journal.append_turns(jobs_of("one\r\nword", "two"), first_epoch)
    die(journal)
    [path] = journal.folder.glob("*.toml")
    torn = b"[[turn]]\nche"
    path.write_bytes((path.read_bytes() + torn).replace(b"\n", b"\r\n"))
    for more in ([], jobs_of("three")):
        journal, left = Journal.adopt(journal.folder, sync=False)
        assert [job.turn.user_msg for job in left] == ["one\r\nword", "two"]
        journal.append_turns(more, first_epoch)
        die(journal)
    journal, left = Journal.adopt(journal.folder, sync=False)
    assert [job.turn.user_msg for job in left] == ["one\r\nword", "two", "three"]
    die(journal)


def test_a_queued_turn_whose_session_id_is_too_long_is_applied_and_a_new_one_refused(tmp_path):
    turn = Turn("alice", "s" * 1001, "I like tea.", "ok")
    job = Job(turn, "op", is_new=True)
    job.rendered = render_turn(turn, job.operation, "2026-11-20T00:00:00+00:00")
    journal = Journal.create(root_of(tmp_path), sync=False)
    journal.append_turns([job], first_epoch)
    die(journal)
    diary = Diary(tmp_path, agent="rules")
    with MemoryWriter(diary) as writer:
        with pytest.raises(InvalidValue, match="the session id has 1,001 characters"):
            writer.submit_nowait(turn)
        until(lambda: diary.user("alice").preferences("likes"))


@pytest.mark.parametrize("tail", [b"", b"\0" * 4096, b"[[tur"], ids=["torn", "zeros", "header"])
def test_unacknowledged_bytes_behind_the_last_record_are_cut_off(tmp_path, tail):
    journal = Journal.create(tmp_path / "journal", sync=True)
    journal.append_turns(jobs_of("one"), first_epoch)
    journal.append_turns(jobs_of("two"), first_epoch)
    die(journal)
    [path] = journal.folder.glob("*.toml")
    data = path.read_bytes()
    path.write_bytes((data if tail else data[:-10]) + tail)
    journal, left = Journal.adopt(journal.folder, sync=True)
    assert [job.turn.user_msg for job in left] == (["one", "two"] if tail else ["one"])
    assert data.startswith(path.read_bytes())
    assert not path.with_suffix(".damaged").exists()
    die(journal)


def test_a_full_disk_refuses_the_turn_and_leaves_the_file_as_it_was(tmp_path, files):
    journal = Journal.create(tmp_path / "journal", sync=True, files=files)
    journal.append_turns(jobs_of("one"), first_epoch)
    [path] = journal.folder.glob("*.toml")
    before = path.read_bytes()
    written = []

    def full(name, _path, data=b"", *_):
        if name == "write" and written:
            raise OSError(errno.ENOSPC, "No space left on device")
        if name == "write":
            written.append(data[:40])
            return data[:40]
        return None

    files.hook = full
    with pytest.raises(BackendError, match="No space left"):
        journal.append_turns(jobs_of("two"), first_epoch)
    assert written
    files.hook = None
    assert path.read_bytes().rstrip(b"\n") == before.rstrip(b"\n")
    journal.append_turns(jobs_of("three"), first_epoch)
    die(journal)
    _, left = Journal.adopt(journal.folder, sync=True)
    assert [job.turn.user_msg for job in left] == ["one", "three"]


@pytest.mark.parametrize("sync", [True, False], ids=["full", "process"])
def test_turns_submitted_after_forget_are_in_the_new_file(tmp_path, sync):
    root = tmp_path / "journal"
    journal = Journal.create(root, sync=sync)
    for number in range(3):
        journal.append_turns(jobs_of(f"of alice {number}"), first_epoch)
        journal.append_turns(jobs_of(f"of bob {number}", user="bob"), first_epoch)
        forget_turns(root, "alice", {"everything": True}, 1, FileSystem())
    journal.append_turns(jobs_of("last", user="bob"), first_epoch)
    die(journal)
    _, left = Journal.adopt(journal.folder, sync=sync)
    assert [job.turn.user_msg for job in left] == ["of bob 0", "of bob 1", "of bob 2", "last"]


def test_a_removed_journal_file_is_noticed_before_the_next_append(tmp_path):
    journal = Journal.create(tmp_path / "journal", sync=True)
    journal.append_turns(jobs_of("one"), first_epoch)
    [path] = journal.folder.glob("*.toml")
    path.unlink()
    journal.append_turns(jobs_of("two"), first_epoch)
    die(journal)
    _, left = Journal.adopt(journal.folder, sync=True)
    assert [job.turn.user_msg for job in left] == ["two"]


# Owners


def test_only_the_journal_of_a_dead_writer_is_taken_over_once(tmp_path):
    journal = Journal.create(tmp_path / "journal", sync=False)
    journal.append_turns(jobs_of("tea"), first_epoch)
    assert Journal.adopt(journal.folder, sync=False) is None
    code = (
        "import sys; from pathlib import Path; from tomldiary.writer.journal import Journal\n"
        "print(Journal.adopt(Path(sys.argv[1]), sync=False) is not None, flush=True); sys.stdin.read()"
    )
    command = ["-c", code, journal.folder]
    assert programs.run(*command, check=True).stdout == "False\n"
    die(journal)
    others = [programs.start(*command) for _ in range(4)]
    answers = sorted(process.stdout.readline() for process in others)
    assert answers == ["False\n", "False\n", "False\n", "True\n"]
    for process in others:
        process.kill()
        process.communicate()
    journal, left = Journal.adopt(journal.folder, sync=False)
    assert [job.turn.user_msg for job in left] == ["tea"]
    die(journal)


def test_without_the_owner_check_a_live_journal_is_taken_over(tmp_path, monkeypatch):
    """The lock is what keeps others away."""
    journal = Journal.create(tmp_path / "journal", sync=False)
    journal.append_turns(jobs_of("tea"), first_epoch)
    monkeypatch.setattr(journals, "try_lock", lambda *_arguments, **_options: True)
    assert Journal.adopt(journal.folder, sync=False) is not None
    die(journal)


FORK = """
import os, signal, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forking with threads
from tomldiary import Diary, MemoryWriter, Turn
async def hang(message, *, deps):
    import asyncio
    await asyncio.Event().wait()
writer = MemoryWriter(Diary(sys.argv[1], agent=hang, durability="process"))
writer.submit_nowait(Turn("alice", "s", "of the parent", "ok")).wait_stored(30)
child = os.fork()
if child == 0:
    writer.submit_nowait(Turn("bob", "s", "of the child", "ok")).wait_stored(30)
    os.write(1, b"ready\\n")
    time.sleep(60)
os.write(1, f"{child}\\n".encode())
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_holds_neither_its_parents_journal_nor_its_turns(tmp_path):
    parent = programs.start("-c", FORK, tmp_path)
    lines = {parent.stdout.readline().strip() for _ in range(2)}
    [child] = [int(line) for line in lines - {"ready"}]
    assert "ready" in lines
    journals = sorted(root_of(tmp_path).iterdir())
    assert len(journals) == 2
    parent.kill()
    parent.wait()
    with MemoryWriter(Diary(tmp_path, agent=remember), takeover_interval=0.1) as writer:
        assert writer.flush(LONG)
        assert writer.stats()["recovered"] == 1  # though the child lives
        os.kill(child, signal.SIGKILL)
        until(lambda: writer.stats()["completed"] == 2)
    parent.communicate()
    diary = Diary(tmp_path, agent="rules")
    for user, text in (("alice", "of the parent"), ("bob", "of the child")):
        assert [item.text for item in diary.user(user).preferences("likes").values()] == [text]


def test_a_running_writer_takes_over_journals_periodically(tmp_path):
    diary = Diary(tmp_path, agent=remember)
    with MemoryWriter(diary, takeover_interval=0.02) as writer:
        other = MemoryWriter(Diary(tmp_path, agent=hang))
        other.submit_nowait(Turn("alice", "s", "tea", "ok")).wait_stored(LONG)
        other.close_sync(drain=False)
        until(lambda: writer.stats()["completed"] == 1)
    assert diary.user("alice").conversations()["s"].turns == 1


class Later(UpsertPreference):
    """An operation that only a later version of the package has."""


@pytest.mark.parametrize(
    ("recorded", "is_read_again"),
    [
        (UpsertPreference("likes", text="coffee"), False),
        (UpsertPreference("hates", text="tea"), True),
        (CommitFact("diet", (("food", "rice"),)), False),
        (CommitFact("diet", (("food", ["rice"]),)), True),
        (CommitFact("diet", (("food", "rice"), ("drink", "tea"))), True),
        (CommitFact("home", (("city", "Graz"),)), True),
        (Later("likes", text="coffee"), True),
    ],
)
def test_a_turn_whose_operations_do_not_fit_the_schema_is_read_again(
    tmp_path, recorded, is_read_again
):
    class Diet(BaseModel):
        food: str

    jobs = jobs_of("tea")
    journal = Journal.create(root_of(tmp_path), sync=False)
    journal.append_turns(jobs, first_epoch)
    journal.append_operations(jobs, [recorded], first_epoch)
    die(journal)
    diary = Diary(tmp_path, agent=remember, durability="process")
    diary.register_schema("diet", Diet)
    with MemoryWriter(diary) as writer:
        writer.flush(10)
    alice = diary.user("alice")
    assert ("tea" in str(alice.preferences("likes"))) is is_read_again
    assert alice.last_transaction() == 1


def test_a_dropped_writer_closes_its_journal(tmp_path):
    writer = MemoryWriter(Diary(tmp_path, agent=remember))
    writer.submit_nowait(Turn("alice", "s", "tea", "ok")).wait(LONG)
    assert writer.flush(LONG)
    assert list(root_of(tmp_path).iterdir())
    del writer
    until(lambda: gc.collect() >= 0 and not list(root_of(tmp_path).iterdir()))


def test_without_durability_there_is_no_journal(tmp_path):
    for diary in (
        Diary("memory:", agent=remember),
        Diary(tmp_path, agent=remember, durability="none"),
    ):
        with MemoryWriter(diary) as writer:
            receipt = writer.submit_nowait(Turn("alice", "s", "tea", "ok"))
            assert receipt.wait_stored(LONG) is False
            assert receipt.wait(LONG).applied == 1
            assert writer.stats()["durability"] == "none"
    assert not root_of(tmp_path).exists()


# Syncs


class Counting:
    """Counts syncs, each of which waits for the test if it wants."""

    def __init__(self, monkeypatch):
        self.real, self.count = os.fdatasync, 0
        self.began, self.go_on = threading.Semaphore(0), threading.Event()
        self.go_on.set()
        monkeypatch.setattr(os, "fdatasync", self)

    def __call__(self, descriptor):
        self.count += 1
        self.began.release()
        self.go_on.wait(LONG)
        self.real(descriptor)


@pytest.mark.parametrize(("durability", "expected"), [("full", 1), ("process", 0)])
def test_full_durability_syncs_a_turn_before_submit_returns(
    tmp_path, monkeypatch, durability, expected
):
    syncs = Counting(monkeypatch)

    async def use():
        writer = MemoryWriter(Diary(tmp_path, agent=hang, durability=durability))
        receipt = await writer.submit("alice", "s", "tea", "ok")
        assert receipt.is_stored
        assert syncs.count == expected
        await writer.close(drain=False)

    asyncio.run(use())


def test_turns_submitted_during_a_sync_share_the_next_one(tmp_path, monkeypatch):
    syncs = Counting(monkeypatch)

    async def use():
        writer = MemoryWriter(Diary(tmp_path, agent=hang), qsize=1000)
        syncs.go_on.clear()
        first = asyncio.create_task(writer.submit("alice", "s", "first", "ok"))
        await asyncio.to_thread(syncs.began.acquire, timeout=LONG)
        others = [
            asyncio.create_task(writer.submit("alice", "s", f"{number}", "ok"))
            for number in range(50)
        ]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in (first, *others))  # none before its sync
        assert writer.stats()["loss_window"] == 51
        syncs.go_on.set()
        await asyncio.gather(first, *others)
        assert syncs.count == 2
        assert writer.stats()["loss_window"] == 0
        return await writer.close(drain=False)

    assert asyncio.run(use())["pending"] == 51


def test_a_takeover_that_is_due_during_a_sync_runs_after_it(tmp_path, monkeypatch):
    diary = Diary(tmp_path, agent=remember)
    with MemoryWriter(diary, takeover_interval=0.02) as writer:
        writer.submit_nowait(Turn("alice", "s", "tea", "ok")).wait(LONG)
        syncs = Counting(monkeypatch)
        syncs.go_on.clear()
        writer.submit_nowait(Turn("alice", "s", "walks", "ok"))
        assert syncs.began.acquire(timeout=LONG)
        dead = Journal.create(root_of(tmp_path), sync=False)
        dead.append_turns(jobs_of("left behind", user="bob"), first_epoch)
        die(dead)
        syncs.go_on.set()
        until(lambda: writer.stats()["recovered"] == 1)
    assert "left behind" in diary.user("bob").render()


def test_a_search_for_dead_writers_on_request_is_awaited_by_flush(tmp_path):
    diary = Diary(tmp_path, agent=remember)
    with MemoryWriter(diary, takeover_interval=3600) as writer:
        assert writer.flush(LONG)
        dead = Journal.create(root_of(tmp_path), sync=False)
        dead.append_turns(jobs_of("left behind", user="bob"), first_epoch)
        die(dead)
        writer.look_for_dead_writers()
        assert writer.flush(LONG)
        assert "left behind" in diary.user("bob").render()
    writer.look_for_dead_writers()  # does nothing after close


def test_turn_is_never_synced_in_the_event_loop_of_its_submitter(tmp_path, monkeypatch):
    places = []
    monkeypatch.setattr(os, "fdatasync", lambda _: places.append(threading.current_thread()))

    async def use():
        async with MemoryWriter(Diary(tmp_path, agent=hang)) as writer:
            for number in range(20):
                assert (await writer.submit("alice", "s", f"{number}", "ok")).is_stored
            assert len(places) == 20
            assert threading.current_thread() not in places
            await writer.close(drain=False)

    asyncio.run(use())


def test_forget_in_the_journal_does_not_block_the_event_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)
    looked = []

    async def use():
        writer = MemoryWriter(Diary(tmp_path, agent=hang))
        for number in range(3):
            await writer.submit("alice", "s", f"{number}", "ok")
        [path] = root_of(tmp_path).glob("*/*.toml")
        forgetting = ExitStack()
        forgetting.enter_context(lock_file(FileSystem(), path))

        def let_go():
            looked.append(writer.stats()["loss_window"])
            forgetting.close()

        asyncio.get_running_loop().call_later(0.02, let_go)
        in_any_case = threading.Timer(LONG / 6, forgetting.close)
        in_any_case.start()
        async with asyncio.timeout(LONG):
            assert (await writer.submit("alice", "s", "last", "ok")).is_stored
        in_any_case.cancel()
        return await writer.close(drain=False), path

    stats, path = asyncio.run(use())
    assert looked == [1]
    assert (stats["pending"], stats["loss_window"]) == (4, 0)
    assert path.read_bytes().count(b"[[turn]]") == 4


def test_submit_nowait_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    syncs = Counting(monkeypatch)
    writer = MemoryWriter(Diary(tmp_path, agent=hang))
    syncs.go_on.clear()
    receipt = writer.submit_nowait(Turn("alice", "s", "tea", "ok"))
    assert syncs.began.acquire(timeout=LONG)
    assert not receipt.is_stored
    with pytest.raises(TimeoutError):
        receipt.wait_stored(0.01)
    syncs.go_on.set()
    assert receipt.wait_stored(LONG)
    assert repr(receipt) == "<Receipt stored>"
    writer.close_sync(drain=False)


def test_a_submit_cancelled_before_its_turn_is_stored_withdraws_it(tmp_path, monkeypatch):
    syncs = Counting(monkeypatch)

    async def use():
        writer = MemoryWriter(Diary(tmp_path, agent=hang), workers=1)
        await writer.submit("bob", "s", "in work", "ok")
        assert syncs.began.acquire(timeout=LONG)  # that one's
        syncs.go_on.clear()
        first = asyncio.create_task(writer.submit("alice", "s", "first", "ok"))
        await asyncio.to_thread(syncs.began.acquire, timeout=LONG)
        second = asyncio.create_task(writer.submit("alice", "s", "second", "ok"))
        await asyncio.sleep(0)
        second.cancel()
        for _ in range(2):  # until it has noticed that
            await asyncio.sleep(0)
        syncs.go_on.set()
        await first
        assert (await asyncio.gather(second, return_exceptions=True))[0].__class__ is (
            asyncio.CancelledError
        )
        return await writer.close(drain=False)

    assert asyncio.run(use())["pending"] == 2
    [path] = root_of(tmp_path).glob("*/*.toml")
    assert b"second" not in path.read_bytes()


def test_a_replaced_journal_file_is_reopened(tmp_path):
    """Forgetting replaces files that are in use; an append must not go to the old one."""
    journal = Journal.create(tmp_path / "journal", sync=False)
    journal.append_turns(jobs_of("one"), first_epoch)
    [path] = journal.folder.glob("*.toml")
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)
    journal.append_turns(jobs_of("two"), first_epoch)
    assert path.read_bytes().count(b"[[turn]]") == 2
    die(journal)


@pytest.mark.parametrize("sync", [True, False], ids=["full", "process"])
def test_a_turn_is_journaled_once_with_its_fencing_token(tmp_path, sync):
    epochs = iter([1234, 1234, 1234, 1235])
    journal = Journal.create(tmp_path / "journal", sync=sync)
    done = jobs_of("done")
    journal.append_turns(done, first_epoch)
    journal.append_turns(jobs_of("open"), first_epoch)
    journal.finish(done)
    for text in ("one", "two", "three", "four"):
        journal.append_turns(jobs_of(text, user="bob"), lambda _: next(epochs))
    [path] = journal.folder.glob("*.toml")
    data = tomllib.loads(path.read_text("utf-8"))
    die(journal)
    found = [(turn["user_msg"], turn["epoch"]) for turn in data["turn"]]
    assert found == [
        ("done", 0), ("open", 0), ("one", 1234), ("two", 1234), ("three", 1234), ("four", 1235),
    ]  # fmt: skip
    assert [each["numbers"] for each in data["done"]] == [[1]]


@pytest.mark.parametrize("sync", [True, False], ids=["full", "process"])
def test_a_turn_without_a_readable_fencing_token_is_not_journaled(tmp_path, sync):
    def unreadable(user):
        raise BackendError("cannot be looked at")

    journal = Journal.create(tmp_path / "journal", sync=sync)
    journal.append_turns(jobs_of("one"), first_epoch)
    with pytest.raises(BackendError, match="cannot be looked at"):
        journal.append_turns(jobs_of("two"), unreadable)
    journal.append_turns(jobs_of("three"), first_epoch)
    die(journal)
    _, left = Journal.adopt(journal.folder, sync=sync)
    assert [job.turn.user_msg for job in left] == ["one", "three"]


def test_a_journal_with_a_removed_folder_closes_only_its_own_files(tmp_path):
    journal = Journal.create(tmp_path / "journal", sync=False)
    journal.append_turns(jobs_of("one"), first_epoch)
    shutil.rmtree(journal.folder)
    others = []
    for text in ("two", "three", "four"):
        with pytest.raises(BackendError, match="was not stored"):
            journal.append_turns(jobs_of(text), first_epoch)
        # The next opened file gets the number that was freed last.
        others.append(os.open(tmp_path, os.O_RDONLY))
    for other in others:
        os.fstat(other)
        os.close(other)
    die(journal)


# The event loop


def test_turns_never_block_the_event_loop(tmp_path, monkeypatch):
    """Hundreds of turns at a thousand preferences per user; a detector watches the loop all the time."""
    diary = Diary(tmp_path, agent=remember, max_prefs_per_category=100_000, similarity=101)
    for user in ("alice", "bob"):
        with diary.user(user).transaction():
            for number in range(1000):
                diary.user(user).upsert_preference("likes", f"thing number {number} of {user}")
    stalls, syncing = [], set()
    real = os.fdatasync

    def fdatasync(descriptor):
        syncing.add(threading.current_thread())
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)

    async def watch(stop):
        """Note how much later than asked for the loop comes back, in CPU time of this thread."""
        while not stop.is_set():
            begin, used = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            stalls.append((time.thread_time() - used, time.perf_counter() - begin - 0.001))

    async def use():
        stop = asyncio.Event()
        async with MemoryWriter(diary, workers=8, qsize=2000) as writer:
            watcher = asyncio.create_task(watch(stop))
            await asyncio.sleep(0.01)
            for number in range(400):
                await writer.submit(f"{('alice', 'bob')[number % 2]}", "s", f"turn {number}", "ok")
            stop.set()
            await watcher
            return await writer.close(drain=False)

    gc.disable()  # a collection of what all tests before have left is not the writer's
    try:
        stats = asyncio.run(use())
    finally:
        gc.enable()
    assert stats["submitted"] == 400
    assert threading.current_thread() not in syncing  # nor is there any waiting for the disk
    assert syncing
    # CPU time that one step of the loop took: what others do on the machine does not count.
    assert max(used for used, _ in stalls) <= 0.010
    # … and it waits for nothing else: mostly the loop is back in time, however busy the machine is.
    assert statistics.median(late for _, late in stalls) <= 0.010
