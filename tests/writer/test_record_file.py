"""The file that a journal appends to: not looked at for each record, and no gap in it whatever is cut off."""

from __future__ import annotations

import os

import pytest

from tomldiary import Turn
from tomldiary.writer.job import Job
from tomldiary.writer.journal import Journal
from tomldiary.writer.journal_record import render_turn

SYNCED = pytest.mark.parametrize("sync", [True, False], ids=["synced", "not synced"])


def take_in(journal, *texts):
    jobs = [Job(Turn("alice", "s", text, "ok"), f"of {text}", is_new=True) for text in texts]
    for job in jobs:
        job.rendered = render_turn(job.turn, job.operation, "2026-11-20T00:00:00+00:00")
    journal.append_turns(jobs, lambda _: 0)
    journal.sync()
    return jobs


def left_in(journal):
    """What is found after the writer was killed."""
    journal.drop()
    adopted, jobs = Journal.adopt(journal.folder, sync=False)
    adopted.drop()
    return [job.turn.user_msg for job in jobs]


@pytest.fixture
def looks(monkeypatch):
    """The inodes of files whose status was asked for, with how it was."""
    found = []

    def watched(name):
        real = getattr(os, name)

        def called(*args, **kwargs):
            status = real(*args, **kwargs)
            found.append((name, status.st_ino))
            return status

        monkeypatch.setattr(os, name, called)

    for name in ("stat", "lstat", "fstat"):
        watched(name)
    return found


@SYNCED
def test_who_appends_again_and_again_never_asks_for_the_times_of_the_file(tmp_path, looks, sync):
    """A file system that knows somebody saw them may give the next write new ones, which its sync has to write."""
    journal = Journal.create(tmp_path / "journal", sync=sync)
    jobs = take_in(journal, "first")  # that the file came into its folder is looked into once
    [path] = journal.folder.glob("*.toml")
    inode = path.stat().st_ino
    assert ("stat", inode) in looks  # one who does look is seen
    looks.clear()
    for number in range(20):
        jobs += take_in(journal, f"single {number}")
    journal.append_operations(jobs[:1], [], lambda _: 0, sync=True)
    journal.finish(jobs[:3], now=True)
    assert looks  # the folder is looked at
    assert inode not in {found for _, found in looks}
    assert left_in(journal) == [job.turn.user_msg for job in jobs[3:]]


@SYNCED
@pytest.mark.parametrize("within", [0, 30], ids=["behind a record", "within a record"])
@pytest.mark.parametrize("kept", [0, 2])
def test_a_file_that_somebody_cuts_shorter_in_place_has_no_gap_behind(tmp_path, sync, kept, within):
    journal = Journal.create(tmp_path / "journal", sync=sync)
    [path] = journal.folder.glob("*.toml")
    ends = [0]
    texts = ["one", "two", "three", "four"]
    for text in texts:
        take_in(journal, text)
        ends.append(len(path.read_bytes().rstrip(b"\n")) + 1)
    os.truncate(path, ends[kept] + within)
    take_in(journal, "five")
    take_in(journal, "six")
    assert b"\0" not in path.read_bytes()
    assert left_in(journal) == [*texts[:kept], "five", "six"]
