"""Writers on several machines share one queue: each turn is applied once, in its user's order."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from processes import STRICT
from tomldiary import Diary, Forgotten, MemoryWriter, RetryPolicy, Turn
from tomldiary.errors import ExtractionError, OperationConflict
from tomldiary.writer.receipts import Job
from tomldiary.writer.shared.letters import SharedLetters
from tomldiary.writer.shared.queue import SharedQueue

SCRIPT = Path(__file__).parents[2] / "support" / "shared_writer.py"


def process(engine, first, last, turns):
    command = [sys.executable, *STRICT, str(SCRIPT), engine.url, *map(str, (first, last, turns))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def check_applied(diary, users, turns):
    for user in range(users):
        memory = diary.user(f"u{user}")
        texts = [item.text for item in memory.preferences("likes").values()]
        assert texts == [f"I love thing number {number} of {user}." for number in range(turns)]
        assert memory.conversations()["s"].turns == turns
        types = [entry.seq for entry in memory.history(limit=1000)]
        assert len({*types}) == turns


def run_kills(engine, opened, users, turns, kills):
    shares = ((0, users // 2), (users // 2, users))
    chance = random.Random(7)
    running = [process(engine, *share, turns) for share in shares]
    for _ in range(kills):
        for number, share in enumerate(shares):
            time.sleep(chance.uniform(0.8, 2.5))
            running[number].kill()
            running[number].communicate()
            running[number] = process(engine, *share, turns)
    for each in running:
        assert each.stdout.readline() == "submitted\n"
        assert each.stdout.readline() == "done\n"
    for each in running:
        each.communicate("", timeout=60)
        assert each.returncode == 0
    check_applied(Diary(opened(), agent="rules"), users, turns)
    assert opened().holders(".queue") == []


def test_killed_writers_apply_each_turn_once_and_in_order(engine, opened):
    run_kills(engine, opened, users=12, turns=5, kills=1)


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
def test_two_hundred_users_survive_two_kills_of_each_writer(engine, opened):
    run_kills(engine, opened, users=200, turns=10, kills=2)


def test_a_turn_waits_for_a_writer_after_its_process_has_ended(opened):
    gate = threading.Event()

    def slow(*_args, **_kwargs):
        gate.wait(20)
        raise ExtractionError("never")

    writer = MemoryWriter(Diary(opened(), agent=slow), lease=2.0)
    receipt = writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted.", operation_id="op"))
    assert receipt.wait_stored(20)
    gate.set()
    writer.close_sync(0, drain=False)
    with MemoryWriter(Diary(opened(), agent="rules"), lease=2.0) as other:
        deadline = time.monotonic() + 30
        while not other.stats()["completed"] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert other.stats()["recovered"] == 1
    assert [item.text for item in Diary(opened()).user("alice").preferences("likes").values()] == [
        "I love tea."
    ]


def test_a_receipt_is_settled_when_another_writer_applies_the_turn(opened):
    gate = threading.Event()
    calls = []

    def slow(message, deps):
        calls.append(message)
        gate.wait(20)

    with (
        MemoryWriter(Diary(opened(), agent=slow)) as one,
        MemoryWriter(Diary(opened(), agent="rules")) as two,
    ):
        first = one.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
        assert first.wait_stored(20)
        while not calls:
            time.sleep(0.01)
        second = two.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted."))
        assert second.wait_stored(20)
        time.sleep(0.3)
        assert not second.is_done
        gate.set()
        assert first.wait(30) is not None
        assert second.wait(30).transaction == 2


def test_an_operation_id_is_submitted_once_whichever_writer_gets_it(opened):
    with (
        MemoryWriter(Diary(opened(), agent="rules")) as one,
        MemoryWriter(Diary(opened(), agent="rules")) as two,
    ):
        for writer in (one, two, one):
            writer.submit_nowait(
                Turn("alice", "s", "I love tea.", "Noted.", operation_id="op")
            ).wait(30)
        wrong = Turn("alice", "s", "I love milk.", "Noted.", operation_id="op")
        with pytest.raises(OperationConflict):
            two.submit_nowait(wrong).wait(30)
    assert Diary(opened()).user("alice").conversations()["s"].turns == 1


def test_an_erasure_takes_queued_turns_with_it(engine, opened):
    gate = threading.Event()

    def slow(*_args, **_kwargs):
        gate.wait(20)

    writer = MemoryWriter(Diary(opened(), agent=slow))
    receipts = [
        writer.submit_nowait(Turn("alice", session, f"I love the zebra of {session}.", "Noted."))
        for session in ("gone", "kept")
    ]
    for receipt in receipts:
        assert receipt.wait_stored(20)
    assert "zebra of gone" in engine.texts()
    Diary(opened()).user("alice").forget(session_id="gone")
    assert "zebra of gone" not in engine.texts()
    assert "zebra of kept" in engine.texts()
    gate.set()
    with pytest.raises(Forgotten):
        receipts[0].wait(30)
    assert receipts[1].wait(30) is not None
    writer.close_sync()
    Diary(opened()).user("alice").forget(everything=True)
    assert "zebra" not in engine.texts()


def test_a_turn_that_fails_is_a_dead_letter_for_every_machine(opened):
    def broken(*_args, **_kwargs):
        raise ValueError("no")

    with MemoryWriter(Diary(opened(), agent=broken), retry=RetryPolicy(attempts=1)) as writer:
        receipt = writer.submit_nowait(
            Turn("alice", "s", "I love tea.", "Noted.", operation_id="op")
        )
        with pytest.raises(ExtractionError):
            receipt.wait(30)
    letters = SharedLetters(opened())
    assert [(each.id, each.turn.user_id) for each in letters.list()] == [("op", "alice")]
    assert Diary(opened()).users() == []
    letters.take(None, letters.requeue)
    assert letters.list() == []
    with MemoryWriter(Diary(opened(), agent="rules")) as writer:
        deadline = time.monotonic() + 30
        while not writer.stats()["completed"] and time.monotonic() < deadline:
            time.sleep(0.05)
    assert Diary(opened()).user("alice").conversations()["s"].turns == 1


def test_a_writer_taken_for_dead_leaves_its_turns_to_the_other(opened, monkeypatch):
    gate, calls = threading.Event(), []

    def slow(message, deps):
        calls.append(message)
        gate.wait(30)

    one = MemoryWriter(Diary(opened(), agent=slow), lease=1.0)
    monkeypatch.setattr(
        one._journal_queue, "_beat", lambda: None
    )  # it is stopped by a debugger, say
    with one, MemoryWriter(Diary(opened(), agent="rules"), lease=1.0) as two:
        receipts = [
            one.submit_nowait(Turn("alice", "s", f"I love thing {number}.", "Noted."))
            for number in range(3)
        ]
        for receipt in receipts:
            assert receipt.wait_stored(20)
        deadline = time.monotonic() + 30
        while two.stats()["completed"] < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        gate.set()
        assert [receipt.wait(30).transaction for receipt in receipts] == [1, 2, 3]
        assert len(calls) == 1
    alice = Diary(opened()).user("alice")
    assert [item.text for item in alice.preferences("likes").values()] == [
        f"I love thing {n}." for n in range(3)
    ]
    assert {entry.seq for entry in alice.history()} == {1, 2, 3}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_turn_stored_while_another_one_ends_is_delivered_once(opened, when):
    backend, delivered = opened(), []
    queue = SharedQueue(backend, threading.Condition(), delivered.extend, None, None)
    jobs = [Job(Turn("alice", "s", f"I love {n}.", "ok"), f"op-{n}", is_new=True) for n in range(2)]
    for job in jobs:
        queue.prepare(job)
    queue._store("alice", jobs[:1])
    change = backend.change_hidden

    def overlapping(user, kind, make):
        backend.change_hidden = change
        if when == "before":
            queue.finish(jobs[:1])
        change(user, kind, make)
        if when == "after":
            queue.finish(jobs[:1])

    backend.change_hidden = overlapping
    queue._store("alice", jobs[1:])
    queue._look()
    assert delivered == jobs
    assert len(queue) == 0
    queue.finish(jobs[1:])
    assert backend.holders(".queue") == []
