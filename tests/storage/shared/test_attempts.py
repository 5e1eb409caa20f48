"""Attempts: writes that begin with assumed state or share a step are stored exactly once, or run again."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial
from types import SimpleNamespace
from zlib import crc32

import pytest

import engines
from counted_requests import Counting
from tomldiary import Diary
from tomldiary.agents.verbs import MemoryVerbs
from tomldiary.cli.commands.edit import save_text
from tomldiary.engine import engine
from tomldiary.errors import BackendError, LimitReached, RevisionConflict, RollbackConflict
from tomldiary.history.record import Source
from tomldiary.storage.copy import copy_users
from tomldiary.storage.open import open_backend
from tomldiary.storage.shared.database import (
    RESERVED,
    WHOLE_HISTORY,
    DatabaseLost,
    Head,
    Step,
)
from tomldiary.storage.shared.heads import CALM, Heads
from tomldiary.storage.shared.transactions import PendingVersion
from waiting import until


@pytest.fixture
def counted(opened):
    backend = opened()
    backend.transactions.database = Counting(backend.database)
    return backend


def texts(user, category="likes"):
    return sorted(item.text for item in user.preferences(category).values())


def test_a_failure_in_an_assumed_state_is_tried_on_the_stored_one(opened):
    alice, elsewhere = (Diary(opened(), agent="rules").user("alice") for _ in range(2))
    alice.upsert_preference("likes", "tea")
    elsewhere.upsert_preference("likes", "juice")
    alice.remove_preference("likes", "pref002")  # of which it has not heard
    assert texts(elsewhere) == ["tea"]


def in_a_block(alice):
    with alice.transaction() as tx:
        tx.upsert_preference("likes", "coffee")


@pytest.mark.parametrize(
    ("write", "stored"),
    [
        (lambda alice: alice.upsert_preference("likes", "coffee"), ["coffee"]),
        (in_a_block, RevisionConflict),
        (lambda alice: alice.rollback(), RollbackConflict),
    ],
    ids=["call", "block", "rollback"],
)
def test_a_document_that_is_removed_during_a_write_is_no_hand_edit(
    opened, monkeypatch, write, stored
):
    one, other = opened(), Diary(opened(), agent="rules").user("alice")
    other.upsert_preference("likes", "tea")
    removals, text = [partial(other.forget, everything=True)], one.transactions.text

    def removed(*arguments):
        if removals:
            removals.pop()()
        return text(*arguments)

    monkeypatch.setattr(one.transactions, "text", removed)
    alice = Diary(one, agent="rules").user("alice")
    if isinstance(stored, list):
        write(alice)
    else:
        with pytest.raises(stored):
            write(alice)
        stored = []
    assert texts(other) == stored


def test_a_write_waits_only_once_for_a_database_that_is_away(counted):
    def lost(*_):
        raise DatabaseLost("away")

    Diary(counted, agent="rules").user("alice").upsert_preference("likes", "tea")
    alice = Diary(counted, agent="rules").user("alice")  # its documents are not in memory
    counted.database.read = lost
    counted.transactions.timeout = 0.01
    counted.database.requests.clear()
    with pytest.raises(BackendError, match="cannot be reached"):
        alice.upsert_preference("likes", "coffee")
    assert counted.database.requests == []


def test_a_change_that_leaves_a_known_text_asks_for_the_stored_one(opened):
    one, other = opened(), opened()
    one.change_hidden("alice", ".list", lambda text, _: f"{text}a")
    other.change_hidden("alice", ".list", lambda text, _: f"{text}b")
    one.change_hidden("alice", ".list", lambda text, _: text.replace("b", "c"))
    assert other.hidden("alice", ".list") == "ac"


def run_at_once(work, count):
    """Run `work` with the numbers up to `count` in threads that start together."""
    barrier = threading.Barrier(count)

    def run(number):
        barrier.wait()
        work(number)

    threads = [threading.Thread(target=run, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_write_after_a_write_is_one_request(counted, opened):
    alice = Diary(counted, agent="rules", max_prefs_per_category=100).user("alice")
    for number in range(3):
        alice.upsert_preference("likes", f"thing number {number}")
    counted.database.requests.clear()
    alice.upsert_preference("likes", "thing number 3")
    assert counted.database.requests == ["apply"]
    Diary(opened(), agent="rules").user("alice").upsert_preference("likes", "thing number 4")
    for number in range(5, 6 + CALM):
        alice.upsert_preference("likes", f"thing number {number}")
    counted.database.requests.clear()
    alice.upsert_preference("likes", "thing number 50")
    assert counted.database.requests == ["apply"]  # again
    for number in range(60, 62):
        counted.database.requests.clear()
        alice.upsert_preference("likes", f"thing number {number}", operation_id=f"op {number}")
    assert counted.database.requests == ["apply"]  # the history was read for the first operation id


def test_an_assumed_state_that_is_old_is_noticed_by_each_kind_of_write(counted, opened):
    one = Diary(counted, agent="rules", max_prefs_per_category=3).user("alice")
    two = Diary(opened(), agent="rules").user("alice")
    for number in range(2):
        one.upsert_preference("likes", f"thing number {number}")
    (key, _) = two.upsert_preference("likes", "thing number 2")
    one.upsert_preference("dislikes", "milk")
    assert len(texts(two)) == 3
    with pytest.raises(LimitReached):
        one.upsert_preference("likes", "thing number 3")
    two.remove_preference("likes", key)  # what the assumed state does not show
    one.upsert_preference("likes", "thing number 3")
    assert len(texts(two)) == 3
    two.remove_preference("dislikes", next(iter(two.preferences("dislikes"))))
    one.upsert_preference("dislikes", "milk")  # changes nothing in the assumed state
    assert texts(two, "dislikes") == ["milk"]


def test_writes_that_wait_for_each_other_share_steps(counted):
    alice = Diary(counted, agent="rules", max_prefs_per_category=1000).user("alice")
    alice.upsert_preference("likes", "tea")
    counted.database.requests.clear()
    threads = [
        threading.Thread(target=alice.upsert_preference, args=["likes", f"thing number {number}"])
        for number in range(12)
    ]
    with counted.lock("alice", 10):
        for thread in threads:
            thread.start()
        until(lambda: counted.transactions.waiting("alice") == 12)
    for thread in threads:
        thread.join()
    assert counted.database.requests == ["apply"]
    assert [entry.seq for entry in alice.history()] == [*range(13, 0, -1)]
    fresh = Diary(counted, agent="rules").user("alice")
    assert texts(alice) == texts(fresh)
    assert len(texts(fresh)) == 13


def test_a_write_is_applied_while_a_user_of_the_same_lock_waits(counted):
    alice = Diary(counted, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    neighbour = next(
        name
        for name in (f"u{number}" for number in itertools.count())
        if crc32(name.encode()) % 256 == crc32(b"alice") % 256
    )
    transactions, is_held, may_end = counted.transactions, threading.Event(), threading.Event()

    def hold():
        with transactions.attempt(neighbour, 30):
            is_held.set()
            may_end.wait(30)

    holder = threading.Thread(target=hold)
    writer = threading.Thread(target=alice.upsert_preference, args=["likes", "coffee"])
    with counted.lock("alice", 10):
        writer.start()
        until(lambda: transactions.waiting("alice") == 1)
        holder.start()
        until(lambda: transactions.waiting(neighbour) == 1)
    assert is_held.wait(30)
    writer.join(30)
    is_stored = not writer.is_alive()
    may_end.set()
    holder.join()
    writer.join()
    assert is_stored


def test_no_write_returns_before_its_step_is_applied(counted, opened):
    other = opened()

    def write(number):
        alice = Diary(counted, agent="rules", max_prefs_per_category=1000).user("alice")
        for turn in range(4):
            text = f"thing {number}-{turn}"
            alice.upsert_preference("likes", text)
            stored = other.read("alice", "preferences").text
            found.append(text in stored)

    found = []
    run_at_once(write, 5)
    assert found == [True] * 20


def test_a_refused_group_runs_again_and_leaves_no_trace(counted, opened):
    two = Diary(opened(), agent="rules", max_prefs_per_category=1000).user("alice")
    diary = Diary(counted, agent="rules", max_prefs_per_category=1000)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", operation_id="first")
    turns = itertools.count()

    def before():
        turn = next(turns)
        # As many transactions as most groups have: their numbers alone tell nothing. With a reservation, the second
        # writer would wait for the first one, which waits here.
        if turn % 2 == 0 and RESERVED not in counted.versions("alice"):
            two.upsert_preference("dislikes", f"dish {turn}", operation_id=f"dish {turn}")

    counted.database.before = before

    def write(number):
        for turn in range(3):
            name = f"{number}-{turn}"
            alice.upsert_preference("likes", f"thing {name}", operation_id=name)
            alice.upsert_preference("likes", f"thing {name}", operation_id=name)

    run_at_once(write, 4)
    counted.database.before = lambda: None
    assert len(texts(two)) == 13
    assert texts(alice) == texts(two)
    seqs = [entry.seq for entry in two.history(limit=1000)]
    assert seqs == [*range(len(seqs), 0, -1)]
    assert alice.problems() == []


def start_in_order(backend, *calls):
    """Start calls in threads that wait for the user's lock in this order, and wait for their end."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    with backend.lock("alice", 10):
        for number, thread in enumerate(threads, 1):
            thread.start()
            until(lambda number=number: backend.transactions.waiting("alice") == number)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize(("count", "size", "steps"), [(70, 3, 2), (13, 90_000, 2), (13, 3, 1)])
def test_a_group_of_writes_is_applied_when_it_is_large(counted, count, size, steps):
    alice = Diary(counted, agent="rules").user("alice")
    alice.blocks.set("first", "tea")
    counted.database.requests.clear()
    start_in_order(
        counted,
        *(partial(alice.blocks.set, f"block{number}", "x" * size) for number in range(count)),
    )
    assert counted.database.requests.count("apply") == steps
    assert len(alice.blocks) == count + 1


def test_an_operation_id_of_a_pending_write_has_one_effect(counted):
    alice = Diary(counted, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea", operation_id="first")
    start_in_order(
        counted,
        lambda: alice.upsert_preference("likes", "coffee", operation_id="a"),
        lambda: alice.upsert_preference("likes", "milk", operation_id="b"),
        lambda: alice.upsert_preference("likes", "coffee", operation_id="a"),
    )
    assert counted.database.requests.count("apply") == 2
    assert [entry.seq for entry in alice.history()] == [3, 2, 1]


def test_a_text_newer_than_the_state_of_a_group_ends_the_group(counted, opened):
    other = Diary(opened(), agent="rules").user("alice")
    other.blocks.set("log", "a")
    alice = Diary(counted, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    read, calls = counted.database.read, []

    def overtaken(user, kinds):
        if kinds == ["blocks"] and not calls:
            calls.append(other.blocks.set("log", "b"))
        return read(user, kinds)

    counted.database.read = overtaken
    start_in_order(
        counted,
        lambda: alice.upsert_preference("likes", "coffee"),
        lambda: alice.blocks.append("log", "c"),  # it joins the group
    )
    assert calls
    assert (texts(other), other.blocks.get("log").text) == (["coffee", "tea"], "b\nc")


def test_single_writes_and_blocks_at_once_lose_no_write(counted):
    alice = Diary(counted, agent="rules", max_prefs_per_category=1000).user("alice")

    def write(number):
        if number % 2:
            alice.upsert_preference("likes", f"thing number {number}")
        else:
            with alice.transaction() as transaction:
                transaction.upsert_preference("likes", f"thing number {number}")

    run_at_once(write, 8)
    assert len(texts(alice)) == 8
    assert len(alice.history()) == 8


def test_a_transaction_or_an_erasure_applies_the_group_that_it_follows(counted):
    alice = Diary(counted, agent="rules").user("alice")

    def write(text, session):
        alice.upsert_preference("likes", text, session_id=session)

    def transact():
        with alice.transaction() as transaction:
            transaction.upsert_preference("likes", "milk")

    start_in_order(
        counted,
        partial(write, "tea", "gone"),
        transact,
        partial(write, "coffee", "kept"),
        partial(alice.forget, session_id="gone"),
        partial(write, "juice", "kept"),
    )
    assert texts(alice) == ["coffee", "juice", "milk"]
    assert alice.problems() == []


def test_a_failed_group_is_an_error_of_each_of_its_writes(counted):
    from tomldiary import BackendError  # noqa: PLC0415 - beside its use

    counted.transactions.timeout = 0.3
    alice = Diary(counted, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    errors = []

    def refuse():
        raise BackendError("the disk of the server is full")

    counted.database.before = refuse

    def write(number):
        try:
            alice.upsert_preference("likes", f"thing number {number}")
        except BackendError as error:
            errors.append(str(error))

    run_at_once(write, 4)
    assert errors == ["the disk of the server is full"] * 4
    counted.database.before = lambda: None
    alice.upsert_preference("likes", "coffee")
    assert texts(alice) == ["coffee", "tea"]


def test_an_interrupted_step_of_a_group_has_an_unknown_outcome_for_the_others(counted):
    alice = Diary(counted, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    raised = []

    def interrupt():
        raise KeyboardInterrupt

    def write(number):
        try:
            alice.upsert_preference("likes", f"thing number {number}")
        except BaseException as error:  # noqa: BLE001 - compared below
            raised.append(error)

    counted.database.before = interrupt
    start_in_order(counted, *(partial(write, number) for number in range(3)))
    counted.database.before = lambda: None
    assert sorted(type(error).__name__ for error in raised) == [
        "BackendError", "BackendError", "KeyboardInterrupt",
    ]  # fmt: skip
    assert sum("unknown whether the change is" in str(error) for error in raised) == 2
    alice.upsert_preference("likes", "coffee")
    assert texts(alice) == ["coffee", "tea"]


def test_a_group_is_applied_if_the_attempt_that_waits_for_the_lock_gives_up(counted, opened):
    alice = Diary(counted, agent="rules").user("alice")
    counted.transactions.waiting = lambda _user: 1  # of which no more is heard
    write = threading.Thread(target=alice.upsert_preference, args=["likes", "tea"], daemon=True)
    write.start()
    write.join(30)
    assert not write.is_alive()
    assert texts(Diary(opened(), agent="rules").user("alice")) == ["tea"]


def test_the_state_of_a_group_is_seen_by_its_writes_alone(counted, opened):
    alice = Diary(counted, agent="rules").user("alice")
    alice.blocks.set("log", "a")
    other = opened()

    def change(number):
        alice.blocks.append("log", str(number))

    run_at_once(change, 6)
    lines = alice.blocks.get("log").text.split()
    assert sorted(lines) == sorted(["a", *"012345"])
    assert other.read("alice", "blocks").text == counted.read("alice", "blocks").text


def test_a_late_answer_replaces_no_newer_state():
    heads = Heads()
    known, before = heads.of("alice"), heads.stamp(heads.of("alice"))
    for revision, stamp, kept in (
        (5, heads.stamp(known), 5),
        (3, before, 5),  # a late answer
        (7, before, 7),  # a late answer that is newer
        (2, None, 2),  # the database has lost steps since
    ):
        heads.keep(known, Head(revision), stamp or heads.stamp(known))
        assert known.head.revision == kept


def test_a_pending_version_equals_only_the_version_it_becomes():
    version = PendingVersion()
    assert version == version  # noqa: PLR0124 - that is the claim
    assert version != PendingVersion()
    assert version != 3
    assert version is not None
    version.version = 3
    assert version == 3
    assert 3 == version  # noqa: SIM300 - the other side's comparison comes first
    assert version != 4


def test_a_hidden_document_is_changed_in_one_request(counted, opened):
    counted.change_hidden("alice", ".queue", lambda text, _: text + "a")
    counted.database.requests.clear()
    counted.change_hidden("alice", ".queue", lambda text, _: text + "b")
    assert counted.database.requests == ["apply"]
    other = opened()
    other.change_hidden("alice", ".queue", lambda text, _: text + "c")
    counted.change_hidden("alice", ".queue", lambda text, _: text + "d")
    other.change_hidden("alice", ".queue", lambda _text, _: "")
    counted.change_hidden("alice", ".queue", lambda text, _: text if "d" in text else "new")
    assert other.hidden("alice", ".queue") == "new"


def test_a_process_that_is_outpaced_makes_the_others_ask(counted, opened):
    fast = opened()
    other = Diary(fast, agent="rules").user("alice")
    other.upsert_preference("likes", "tea")
    alice = Diary(counted, agent="rules").user("alice")
    known, numbers = fast.transactions.heads.of("alice"), itertools.count()

    def before():
        number = next(numbers)
        if number < 3:
            other.upsert_preference("likes", f"faster {number}")
            assert known.is_alone

    counted.database.before = before
    alice.upsert_preference("likes", "coffee")
    assert counted.database.requests.count("touch") == 1
    assert len(texts(alice)) == 5
    assert len(alice.history()) == 5
    other.upsert_preference("likes", "milk")
    assert not known.is_alone


def test_a_touched_user_refuses_steps_on_an_older_state(counted):
    database = counted.database
    database.touch("unknown")
    assert not counted.users()
    Diary(counted, agent="rules").user("alice").upsert_preference("likes", "tea")
    head = database.head("alice")
    database.touch("alice")
    assert database.apply("alice", head, Step({"blocks": "x = 1\n"})) is None
    assert database.apply("alice", head, Step(dropped=WHOLE_HISTORY)) is None
    assert database.head("alice").record == head.record
    assert database.head("alice").revision == head.revision + 1
    assert texts(Diary(counted, agent="rules").user("alice")) == ["tea"]


def test_a_copy_that_is_overtaken_needs_no_permission_to_write(counted, opened):
    for text in ("tea", "milk"):  # the state has the newest record, so the other one is read
        Diary(counted, agent="rules").user("alice").upsert_preference("likes", text)
    other = Diary(opened(), agent="rules").user("alice")

    def refuse():
        raise BackendError("a permission is missing")

    counted.database.before = refuse
    records, calls = counted.database.records, []

    def overtaken(*arguments):
        if not calls:
            time.sleep(1.1)  # from then on, a refused transaction makes other writers wait
            calls.append(other.upsert_preference("likes", "coffee"))
        return records(*arguments)

    counted.database.records = overtaken
    target = open_backend("memory:", None)
    assert [each.records for each in copy_users(counted, target)] == [3]
    assert calls


def add_milk(alice):
    alice.upsert_preference("dislikes", "milk")


def edit_by_hand(alice):
    text = alice.document("preferences").replace('"milk powder"', '"milk"')
    save_text(alice.diary, "alice", "preferences", text, 0)


def roll_back(alice):
    assert "dislikes/pref001" in alice.rollback(to=0, force=True).keys
    add_milk(alice)


def call_a_tool(alice):
    answer = MemoryVerbs(alice, "s", "call-1").remember("milk", "dislikes")
    assert not answer.is_error, answer


def test_a_refused_write_locks_the_user_after_the_time_limit_of_locks(opened, monkeypatch):
    clock = itertools.count(0, 0.3)
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    diary, attempts, locked = Diary(opened(), agent="rules", lock_timeout=0.5), [], []
    lock = diary.engine.backend.lock

    def counted(*arguments):
        locked.append(len(attempts))
        return lock(*arguments)

    def overtaken(transaction):
        attempts.append(transaction)
        if not locked:
            raise RevisionConflict.of("alice")

    diary.engine.backend.lock = counted
    diary.engine.write("alice", overtaken, Source("set"))
    assert locked == [1]


@pytest.mark.parametrize(
    ("engine", "change"),
    [
        *(pytest.param(name, add_milk, marks=engines.needs(name)) for name in engines.SERVERS),
        *(
            pytest.param("postgres", change, marks=engines.needs("postgres"))
            for change in (edit_by_hand, roll_back, call_a_tool)
        ),
    ],
    indirect=["engine"],
)
def test_a_slow_write_ends_while_others_write_all_the_time(opened, change):
    backend = opened()
    one = Diary(backend, agent="rules", lock_timeout=10.0).user("alice")
    two = Diary(opened(), agent="rules").user("alice")
    one.upsert_preference("dislikes", "milk powder")
    apply, is_over, written = backend.database.apply, threading.Event(), itertools.count()

    def slow(user, head, step):  # as if the change took long to compute
        if RESERVED not in {*step.contents, *step.removed}:
            time.sleep(0.5)
        return apply(user, head, step)

    def write():
        while not is_over.is_set():
            two.upsert_preference("likes", f"cup {next(written)}", id="cup")
            time.sleep(0.02)

    backend.database.apply = slow
    writer = threading.Thread(target=write)
    writer.start()
    try:
        change(one)
    finally:
        is_over.set()
        writer.join()
    assert next(written) > 1
    assert "milk" in texts(two, "dislikes")
    assert RESERVED not in backend.versions("alice")
    assert one.problems() == []
