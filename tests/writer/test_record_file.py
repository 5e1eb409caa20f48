"""The file that a journal appends to has no gap, wherever another program cuts it off."""

from __future__ import annotations

import os

import pytest

from tomldiary import Turn
from tomldiary.writer.journal import Journal
from tomldiary.writer.journal_record import render_turn
from tomldiary.writer.receipts import Job

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
