"""Claims of writers that share one queue; what holds for every queue is in `test_writer_engines`."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import tomllib
import weakref
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest

import engines
from counted_requests import Counting
from engines import one_server  # noqa: F401 - the fixture `engine` of this module
from living import objects_of
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.doctor.doctor import check
from tomldiary.errors import (
    BackendError,
    Conflict,
    ExtractionError,
    Forgotten,
    LockTimeout,
    RevisionConflict,
    TurnTaken,
)
from tomldiary.extraction.operations import TurnOperation
from tomldiary.runtime.forgettable_cache import clear_caches
from tomldiary.runtime.sources import DEAD_LETTERS, QUEUE
from tomldiary.storage.log import LogRecord, scan_log
from tomldiary.storage.protocol import Rewrite
from tomldiary.storage.shared.database import DatabaseAway, DatabaseLost
from tomldiary.writer.attempts import RetryPolicy
from tomldiary.writer.dead_letters import DeadLetters
from tomldiary.writer.journal import render_turn
from tomldiary.writer.receipts import Job
from tomldiary.writer.shared import turns
from tomldiary.writer.shared.claims import Claims, Heartbeats
from tomldiary.writer.shared.queue import SharedQueue
from tomldiary.writer.shared.turns import Turns
from waiting import until

LONG = 60  # seconds; nothing waits that long unless it is broken


def test_a_receipt_is_settled_when_another_writer_applies_the_turn(opened):
    gate, last = threading.Event(), threading.Event()
    calls = []

    def slow(message, deps):
        calls.append(message)
        (gate if len(calls) < 3 else last).wait(20)

    with (
        MemoryWriter(Diary(opened(), agent=slow)) as one,
        MemoryWriter(Diary(opened(), agent="rules")) as two,
    ):
        first = one.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
        assert first.wait_stored(20)
        until(lambda: calls)
        second = two.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted."))
        assert second.wait_stored(20)
        time.sleep(0.3)
        assert not second.is_done
        third = two.submit_nowait(Turn("alice", "s", "I love rain.", "Noted."))
        assert third.wait_stored(20)
        gate.set()
        assert first.wait(30) is not None
        assert second.wait(15).transaction == 2
        assert not third.is_done
        last.set()
        assert third.wait(30).transaction == 3


def test_a_receipt_waits_until_the_result_of_another_writer_can_be_read(opened):
    gate, calls = threading.Event(), []

    def slow(message, deps):
        calls.append(message)
        gate.wait(20)

    here = Diary(opened(), agent="rules")
    with MemoryWriter(Diary(opened(), agent=slow)) as other, MemoryWriter(here) as writer:
        assert other.submit_nowait(Turn("alice", "s", "I love tea.", "Noted.")).wait_stored(20)
        until(lambda: calls)
        receipt = writer.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted."))
        assert receipt.wait_stored(20)
        with here.engine.backend.lock("alice", 20):
            gate.set()
            until(lambda: other.stats()["completed"] == 2)
            time.sleep(1.5)  # longer than the interval of the searches
            assert not receipt.is_done
            # The thread that stores turns does not wait for the lock.
            assert writer.submit_nowait(Turn("bob", "s", "I love rain.", "Noted.")).wait(10)
        assert receipt.wait(30).transaction == 2
        stats = writer.stats()
    assert (stats["submitted"], stats["completed"], stats["failed"]) == (2, 2, 0)


def test_a_receipt_names_dropped_history_as_a_cause(opened, monkeypatch):
    here, there = Diary(opened(), agent="rules"), Diary(opened(), agent="rules")
    find = here.turns.find

    def find_late(*args, **kwargs):
        there.user("alice").upsert_preference("likes", "jazz")
        there.user("alice").prune_history(keep=1)
        return find(*args, **kwargs)

    monkeypatch.setattr(here.turns, "find", find_late)
    with MemoryWriter(there), MemoryWriter(here, workers=0) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
        with pytest.raises(ExtractionError, match="history was dropped"):
            receipt.wait(20)


def test_flush_waits_for_the_results_of_turns_that_another_writer_applied(opened, monkeypatch):
    gate, asked, answer = threading.Event(), threading.Event(), threading.Event()

    def slow(message, deps):
        gate.wait(20)

    here = Diary(opened(), agent="rules")
    find = here.turns.find

    def find_late(*args, **kwargs):
        asked.set()
        answer.wait(20)
        return find(*args, **kwargs)

    monkeypatch.setattr(here.turns, "find", find_late)
    with MemoryWriter(Diary(opened(), agent=slow)) as other, MemoryWriter(here) as writer:
        assert other.submit_nowait(Turn("alice", "s", "I love tea.", "Noted.")).wait_stored(20)
        receipt = writer.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted."))
        assert receipt.wait_stored(20)
        gate.set()
        assert asked.wait(20)
        assert (writer.flush(0), writer.stats()["pending"]) == (False, 1)
        answer.set()
        assert writer.flush(20)
        assert (receipt.is_done, writer.stats()["completed"]) == (True, 1)


def test_a_writer_that_is_created_waits_for_no_server():
    pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        diary = Diary(f"redis://127.0.0.1:{port}/0?timeout=1.5", agent="rules")
        begin = time.monotonic()
        writer = MemoryWriter(diary)
        assert time.monotonic() - begin < 1.4
    writer.close_sync()


def test_turns_and_claims_of_many_users_wait_only_once_for_a_database_that_is_away(
    opened, monkeypatch
):
    backend = opened()
    backend.transactions.timeout = 1.0

    async def slow(message, deps):
        await asyncio.sleep(LONG)

    def away(*_):
        raise DatabaseAway("gone")

    writer = MemoryWriter(Diary(backend, agent=slow), workers=1)
    for number in range(10):
        turn = Turn(f"user {number}", "s", "I love tea.", "Noted.")
        assert writer.submit_nowait(turn).wait_stored(LONG)
    with monkeypatch.context() as patch:
        for name in ("apply", "head", "read", "holders"):
            patch.setattr(backend.database, name, away)
        begin = time.monotonic()
        receipts = [
            writer.submit_nowait(Turn(f"another {number}", "s", "I love jazz.", "Noted."))
            for number in range(10)
        ]
        for receipt in receipts:
            with pytest.raises(BackendError, match=r"cannot be reached \(gone\)"):
                receipt.wait_stored(LONG)
        assert time.monotonic() - begin < 6  # not 10 times the timeout
        assert writer.stats()["last_failure"] == "BackendError (gone)."
        begin = time.monotonic()
        assert writer.close_sync(timeout=0)["pending"] == 10
        assert time.monotonic() - begin < 6


def test_a_turn_of_a_user_in_a_transaction_is_refused_with_the_real_cause(opened):
    backend = opened()
    backend.transactions.timeout = 0.1
    diary = Diary(backend, agent="rules")
    with MemoryWriter(diary, workers=0) as writer:
        with diary.user("alice").transaction():
            receipt = writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
            with pytest.raises(
                LockTimeout, match=r"another call of this process .* 'alice' for 0\.1 s"
            ):
                receipt.wait_stored(LONG)
        assert writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted.")).wait_stored(LONG)


def test_a_database_that_is_away_for_long_makes_no_dead_letters(opened, monkeypatch):
    backend = opened()
    backend.transactions.timeout = 0.1
    gate, reached = threading.Event(), threading.Event()

    def slow(message, deps):
        reached.set()
        gate.wait(LONG)

    apply = backend.database.apply

    def away(user, head, step):
        if DEAD_LETTERS not in step.contents:  # as if the database came back for this step
            raise DatabaseAway("gone")
        return apply(user, head, step)

    retry = RetryPolicy(attempts=2, first_pause=0.01, longest_pause=0.01)
    with MemoryWriter(Diary(backend, agent=slow), retry=retry) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
        assert receipt.wait_stored(LONG)
        assert reached.wait(LONG)
        with monkeypatch.context() as patch:
            patch.setattr(backend.database, "apply", away)
            gate.set()
            until(lambda: writer.stats()["retries"] > 3 or writer.stats()["dead_letters"])
        assert receipt.wait(LONG) is not None
        assert writer.stats()["dead_letters"] == 0


def test_a_user_with_the_id_of_an_internal_one_keeps_its_dead_letters(opened):
    backend = opened()
    backend.change_hidden(".writers-d", DEAD_LETTERS, lambda *_: "a turn\n")
    heartbeats = Heartbeats(backend, lease=0.001)
    for _ in range(2):
        assert heartbeats.is_dead("d0d0d0d0d0d0d0d0")
        time.sleep(0.1)  # a writer without a heartbeat for so long is forgotten
    assert backend.hidden(".writers-d", DEAD_LETTERS) == "a turn\n"


def test_a_writer_is_dead_once_it_sends_no_heartbeats(opened):
    writer, other = (Heartbeats(opened(), lease=0.5) for _ in range(2))
    for _ in range(2):
        writer.beat()
        assert not other.is_dead(writer.id)
        time.sleep(0.6)
    assert other.is_dead(writer.id)


def test_a_writer_sends_heartbeats_while_a_turn_takes_long(opened):
    elsewhere, began, gate = opened(), threading.Event(), threading.Event()

    def slow(message, deps):
        began.set()
        gate.wait(LONG)

    def version():
        owner = Claims(elsewhere, 60.0, works=False).read("alice")[0].owner
        return elsewhere.versions(f".writers-{owner[0]}")[f".{owner}"]

    with MemoryWriter(Diary(opened(), agent=slow), lease=1.0) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
        assert began.wait(LONG)
        first = version()
        until(lambda: version() != first)
        gate.set()
        receipt.wait(LONG)


@engines.on_each_server
def test_the_heartbeat_of_a_writer_dead_for_long_is_removed(opened):
    dead, other = (Heartbeats(opened(), lease=0.01) for _ in range(2))
    dead.beat()
    place, backend = f".writers-{dead.id[0]}", opened()
    assert backend.versions(place)
    until(lambda: other.is_dead(dead.id) and not backend.versions(place))


@engines.on_each_server
def test_a_writer_soon_knows_what_a_write_survives(opened):
    diary = Diary(opened(), agent="rules")
    with MemoryWriter(diary) as writer:
        until(lambda: writer.stats()["durability"] == diary.stats()["durability"] == "full")


@engines.on_each_server
def test_only_the_owner_of_a_user_changes_the_waiting_turns(opened):
    owner, other = (Claims(opened(), 60.0, works=True) for _ in range(2))
    job = Job(Turn("alice", "s", "I love tea.", "Noted."), "turn-1", is_new=False)
    job.rendered = render_turn(job.turn, job.operation, "2026-11-20T00:00:00+00:00")
    for _ in range(2):  # a repeated id is one turn
        assert owner.store("alice", [job]).numbers() == {"turn-1": 1}
    assert other.store("alice") is None
    assert (owner.holds(job), other.holds(job)) == (True, False)
    assert owner.read("alice")[1] is not other.read("alice")[1]
    # An owner that searches does not have the turns, for example after a failed submit.
    assert (owner.without_owner(["alice"]), other.without_owner(["alice"])) == (["alice"], [])
    with pytest.raises(TurnTaken):
        other.append_operations([job], [], lambda _user: 0)
    assert other.remove("alice", ["turn-1"]) is None
    other.release("alice")
    assert owner.holds(job)
    owner.release("alice")
    assert other.store("alice").numbers() == {"turn-1": 1}


def test_operations_read_before_an_erasure_are_not_stored(opened):
    backend = opened()
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "coffee", session_id="gone")
    claims = Claims(backend, 60.0, works=True)
    job, gone = two_jobs()
    gone.turn = Turn("alice", "gone", "I love coffee.", "Noted.")
    gone.rendered = render_turn(gone.turn, gone.operation, gone.time)
    claims.store("alice", [job, gone])
    assert claims.holds(gone)
    alice.forget(session_id="gone")
    assert not claims.holds(gone)
    with pytest.raises(Forgotten):
        claims.append_operations([job], [], lambda _user: 0)
    assert claims.holds(job)
    alice.forget(everything=True)
    assert backend.holders(QUEUE) == []


def test_a_turn_of_a_run_before_an_erasure_is_refused_and_not_stored(opened):
    backend, elsewhere = opened(), opened()
    Diary(elsewhere, agent="rules").user("alice").upsert_preference("likes", "coffee")
    backend.transactions.database = database = Counting(backend.database)
    erasures = iter([Rewrite({"everything": True}, 1)])

    def overtake():  # as another process, which does not know of the turn
        for erasure in erasures:
            with elsewhere.lock("alice", LONG):
                elsewhere.rewrite("alice", erasure)

    with MemoryWriter(Diary(backend, agent="rules")) as writer:
        writer.submit_nowait(Turn("bob", "s", "I love tea.", "Noted.")).wait(LONG)
        database.before = overtake
        receipt = writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted.", epoch=0))
        with pytest.raises(Forgotten):
            receipt.wait(LONG)
        assert not receipt.is_stored
        assert elsewhere.holders(QUEUE) == []
        assert writer.stats()["pending"] == 0


@engines.on_each_server
def test_a_writer_taken_for_dead_leaves_its_turns_to_the_other(opened):
    gate, calls = threading.Event(), []

    def slow(message, deps):
        calls.append(message)
        gate.wait(30)

    # One gives a sign of life each 120 seconds, and is dead for the other one after a second without.
    one = MemoryWriter(Diary(opened(), agent=slow), lease=600)
    with one, MemoryWriter(Diary(opened(), agent="rules"), lease=1.0) as two:
        receipts = [
            one.submit_nowait(Turn("alice", "s", f"I love thing {number}.", "Noted."))
            for number in range(3)
        ]
        for receipt in receipts:
            assert receipt.wait_stored(20)
        until(lambda: two.stats()["completed"] == 3)
        gate.set()
        assert [receipt.wait(30).transaction for receipt in receipts] == [1, 2, 3]
        assert len(calls) == 1
    alice = Diary(opened()).user("alice")
    assert [item.text for item in alice.preferences("likes").values()] == [
        f"I love thing {n}." for n in range(3)
    ]
    assert {entry.seq for entry in alice.history()} == {1, 2, 3}


def tables_of(engine):
    schema = engine.url.rpartition("=")[2]
    return [f"{schema}.{name}" for name in ("users", "documents", "history")]


def keep_state(server, tables):
    for table in tables:
        server.execute(f"CREATE TABLE {table}_before AS TABLE {table}")


def lose_steps(server, tables):
    """Return to the kept state, as after a failover to a replica without the last steps."""
    with server.transaction():
        for table in tables:
            server.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
            server.execute(f"INSERT INTO {table} TABLE {table}_before")


def test_a_turn_whose_step_is_lost_before_it_is_finished_is_applied_again(engine, opened):
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    backend, calls = opened(), []
    change = backend.change_parts

    def kept(message, deps):
        if not calls:
            keep_state(server, tables_of(engine))
        calls.append(message)
        deps.upsert("likes", "new", deps.user_msg, [])

    def loses(*arguments):
        if alice.preferences("likes"):  # the turn is applied, and leaves the queue
            backend.change_parts = change
            lose_steps(server, tables_of(engine))
        return change(*arguments)

    backend.change_parts = loses
    diary = Diary(backend, agent=kept)
    alice = diary.user("alice")
    with (
        psycopg.connect(engine.server, autocommit=True) as server,
        MemoryWriter(diary) as writer,
    ):
        assert writer.submit_nowait(Turn("alice", "s", "one", "Noted.")).wait(LONG).transaction
        until(lambda: not diary.engine.backend.holders(QUEUE))
        assert writer.flush(LONG)
    assert len(calls) == 2
    assert [item.text for item in alice.preferences("likes").values()] == ["one"]


@pytest.mark.parametrize("later", [[], ["three"]], ids=["alone", "with a later one"])
def test_turns_keep_their_order_if_the_database_loses_the_first_one_s_step(engine, opened, later):
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    tables = tables_of(engine)
    begun = {text: threading.Event() for text in ("one", "two", "three")}
    gates = {text: threading.Event() for text in begun}

    def slow(message, deps):
        begun[deps.user_msg].set()
        gates[deps.user_msg].wait(LONG)
        deps.upsert("likes", "new", deps.user_msg, [])

    alice = Diary(opened(), agent="rules").user("alice")
    with (
        MemoryWriter(Diary(opened(), agent=slow, similarity=101)) as writer,
        psycopg.connect(engine.server, autocommit=True) as server,
    ):
        turns = {text: Turn("alice", "s", text, "Noted.") for text in begun}
        receipts = [writer.submit_nowait(turns[text]) for text in ("one", "two")]
        assert all(each.wait_stored(LONG) for each in receipts)
        assert begun["one"].wait(LONG)
        keep_state(server, tables)
        gates["one"].set()
        assert begun["two"].wait(LONG)
        lose_steps(server, tables)
        receipts += [writer.submit_nowait(turns[text]) for text in later]
        assert all(each.wait_stored(LONG) for each in receipts)
        gates["two"].set()
        gates["three"].set()
        assert writer.flush(LONG)
        assert all(each.wait(LONG).transaction for each in receipts)
    assert [item.text for item in alice.preferences("likes").values()] == ["one", "two", *later]


def test_a_finished_turn_behind_a_failed_submit_holds_up_no_later_one(opened, caplog):
    begun, gate = threading.Event(), threading.Event()

    def slow(message, deps):
        begun.set()
        gate.wait(LONG)

    backend = opened()
    change = backend.change_parts

    def failed(*arguments):
        backend.change_parts = change
        raise BackendError("away")

    def change_next(*arguments):
        return next(steps, change)(*arguments)

    with MemoryWriter(Diary(backend, agent=slow)) as writer:
        turns = [Turn("alice", "s", text, "Noted.") for text in ("one", "two", "three")]
        receipts = [writer.submit_nowait(turn) for turn in turns[:2]]
        assert all(each.wait_stored(LONG) for each in receipts)
        assert begun.wait(LONG)
        backend.change_parts = failed
        with pytest.raises(BackendError, match="away"):
            writer.submit_nowait(turns[2]).wait_stored(LONG)
        steps = iter([change, failed])  # the turn's operations are stored, but it is not removed
        backend.change_parts = change_next
        gate.set()
        assert [each.wait(LONG).transaction for each in receipts] == [1, 2]
    assert "a finished turn stays in the queue (away)" in caplog.text


def test_a_turn_whose_dead_letter_is_lost_stays_in_the_queue(opened):
    """As after a failover to a server that lacks the last step."""
    backend, other, lost = opened(), opened(), []
    change = backend.change_parts

    def change_after_loss(user, kind, changed):
        if kind == QUEUE and not lost and other.hidden("alice", DEAD_LETTERS):
            lost.append(other.hidden("alice", DEAD_LETTERS))
            other.change_hidden("alice", DEAD_LETTERS, lambda _text, _epoch: "")
        change(user, kind, changed)

    def fail(_message, *, deps):
        raise ValueError(deps.user_msg)

    backend.change_parts = change_after_loss
    with MemoryWriter(Diary(backend, agent=fail), retry=RetryPolicy(1)) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
        with pytest.raises(ExtractionError):
            receipt.wait(LONG)
        until(lambda: not other.holders(QUEUE))
    assert lost
    assert [each.turn.user_msg for each in DeadLetters(other).list()] == ["I love tea."]


@pytest.mark.parametrize("error", [BackendError, LockTimeout])
def test_a_cancelled_turn_that_stays_in_the_queue_is_not_applied(opened, error):
    backend, failed = opened(), threading.Event()
    change = backend.change_parts

    def waits():
        return "I love tea." in str(backend.hidden_parts("alice", QUEUE))

    def cancelled(*arguments):
        if waits() and not failed.is_set():  # the cancelled turn leaves the queue
            failed.set()
            raise error("away")
        changed = change(*arguments)
        if waits() and not task.cancelled():
            loop.call_soon_threadsafe(task.cancel)
            until(task.cancelled)
        return changed

    async def use():
        nonlocal loop, task
        loop = asyncio.get_running_loop()
        async with MemoryWriter(diary) as writer:
            task = loop.create_task(writer.submit("alice", "s", "I love tea.", "Noted."))
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(failed.wait, LONG)
            receipt = await writer.submit("alice", "s", "I love jazz.", "Noted.")
            await receipt
            await asyncio.to_thread(until, lambda: not diary.engine.backend.holders(QUEUE))
        return writer.stats()

    backend.change_parts = cancelled
    loop = task = None
    diary = Diary(backend, agent="rules")
    stats = asyncio.run(use())
    likes = diary.user("alice").preferences("likes").values()
    assert [item.text for item in likes] == ["I love jazz."]
    assert (stats["submitted"], stats["completed"], stats["recovered"]) == (1, 1, 0)


def test_a_cancelled_turn_that_is_stored_without_an_answer_is_not_applied(opened):
    backend, stored = opened(), threading.Event()
    diary, change = Diary(backend, agent="rules"), backend.change_parts

    def lose_answer(user, *arguments):
        change(user, *arguments)
        if user != "alice":
            return  # a heartbeat
        backend.change_parts = change
        loop.call_soon_threadsafe(task.cancel)
        until(task.cancelled)
        stored.set()
        raise BackendError("the answer was lost")

    async def use():
        nonlocal loop, task
        loop = asyncio.get_running_loop()
        async with MemoryWriter(diary) as writer:
            task = loop.create_task(writer.submit("alice", "s", "I love tea.", "Noted."))
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(stored.wait, LONG)
            await asyncio.to_thread(until, lambda: not backend.holders(QUEUE))

    backend.change_parts = lose_answer
    loop = task = None
    asyncio.run(use())
    assert diary.user("alice").history() == []


def test_a_turn_that_is_stored_without_an_answer_is_still_wanted(opened):
    backend, delivered = opened(), []
    queue, change = queue_of(backend, delivered), backend.change_parts
    # An erasure of this user would wait for the turns, which no writer refuses here.

    def lose_answer(user, *arguments):
        change(user, *arguments)
        if user == "nora":
            raise BackendError("the answer was lost")

    backend.change_parts = lose_answer
    with pytest.raises(BackendError, match="the answer was lost"):
        queue.store("nora", two_jobs("nora"))
    backend.change_parts = change
    queue.claim_users()
    assert [(job.operation, job.wanted) for job in delivered] == [("op-0", 1), ("op-1", 1)]


def test_an_erasure_covers_a_turn_that_is_being_stored(opened):
    backend, asked, gate = opened(), threading.Event(), threading.Event()
    alice, change = Diary(opened(), agent="rules").user("alice"), backend.change_parts
    backend.__class__ = type("OfAnApplication", (type(backend),), {})

    def slow(*arguments):
        backend.change_parts = change
        asked.set()
        gate.wait(LONG)
        return change(*arguments)

    alice.upsert_preference("likes", "tea")
    with MemoryWriter(Diary(backend, agent="rules")) as writer:
        backend.change_parts = slow
        writer.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted."))
        assert asked.wait(LONG)
        forgetting = threading.Thread(target=partial(alice.forget, everything=True))
        forgetting.start()
        forgetting.join(0.3)  # it would end here if it did not wait
        gate.set()
        forgetting.join()
        assert writer.flush(LONG)  # the turn was applied before the erasure, or refused
    assert alice.preferences("likes") == {}


def test_a_turn_that_a_dead_writer_applied_is_not_applied_again(opened):
    dead, diary = Claims(opened(), 60.0, works=True), Diary(opened(), agent="rules")
    job = Job(Turn("alice", "s", "I love tea.", "Noted."), "turn-1", is_new=False)
    job.rendered = render_turn(job.turn, job.operation, "2026-11-20T00:00:00+00:00")
    assert dead.store("alice", [job]) is not None
    with MemoryWriter(Diary(opened(), agent="rules"), lease=1.0) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted."))
        assert receipt.wait_stored(20)
        for each in dead.read("alice")[0].jobs():  # it dies before it removes them from the queue
            operation = TurnOperation(each.operation, each.turn.content)
            asyncio.run(diary.turns.process(each.turn, operation))
        assert receipt.wait(30).is_repeated
        assert writer.flush(30)
        assert writer.stats()["repeated"] == 2
    assert diary.user("alice").conversations()["s"].turns == 2


def queue_of(backend, delivered, *, works=True):
    """Return a queue that adds the turns for its workers to a list."""
    admission = SimpleNamespace(state=threading.Condition(), waiting=(), deliver=delivered.extend)
    return SharedQueue(backend, admission, None, lease=15.0, works=works)


def two_jobs(user="alice", begin=0):
    jobs = [
        Job(Turn(user, "s", f"I love {n}.", "ok"), f"op-{n}", is_new=True)
        for n in (begin, begin + 1)
    ]
    for job in jobs:
        job.rendered = render_turn(job.turn, job.operation, job.time)
    return jobs


def test_a_search_ends_at_the_first_user_for_whom_the_database_is_away(opened):
    backend, asked = opened(), []
    for user in ("alice", "bob", "carol"):
        queue_of(opened(), [], works=False).store(user, two_jobs(user))

    def away(user, *_):
        asked.append(user)
        raise DatabaseAway("gone")

    backend.transactions.timeout, backend.database.head = 0.1, away
    with pytest.raises(BackendError, match="gone"):
        queue_of(backend, []).claim_users()
    assert len(set(asked)) == 1


def test_a_closed_queue_releases_its_users_to_a_writer_that_knows_its_heartbeat(opened):
    queue, other = queue_of(opened(), []), Claims(opened(), lease=600, works=True)
    queue.store("alice", two_jobs())
    assert not other.read("alice")[1]
    queue.close()
    assert other.store("alice").numbers() == {"op-0": 1, "op-1": 2}


def test_a_writer_without_workers_asks_for_users_with_turns_of_its_own_only(opened):
    backend, delivered = opened(), []
    backend.transactions.database = Counting(backend.database)
    requests = backend.database.requests
    queue_of(opened(), delivered).store("alice", two_jobs())
    queue = queue_of(backend, [], works=False)
    queue.claim_users()
    assert requests == []
    queue.store("bob", two_jobs("bob"))
    requests.clear()
    queue.claim_users()
    assert requests == ["holders", "head"]


@engines.needs("redis")
@pytest.mark.parametrize("part", ["head", "texts", "versions"])
def test_a_user_of_whom_redis_removed_a_key_delays_no_other_user(part, caplog):
    engine = engines.space("redis")
    users, prefix = ["alice", "bob", "carol"], engine.url.partition("prefix=")[2]
    left = queue_of(engine.backend(), [])
    for user in users:
        left.store(user, two_jobs(user))
    left.close()
    with pytest.importorskip("redis").Redis.from_url(engine.server) as client:
        assert client.delete(f"{prefix}:{{bob}}:{part}") == 1
    delivered = []
    queue = queue_of(engine.backend(), delivered)
    for _ in range(3):  # as often as the queue is polled
        queue.claim_users()
    assert {job.turn.user_id for job in delivered} == {"alice", "carol"}
    assert caplog.text.count("the turns of a user cannot be read or claimed") == 1


@pytest.mark.parametrize("size", [1, 8192])
def test_turns_that_were_read_together_come_back_together(opened, size):
    delivered, jobs = [], two_jobs()
    jobs[0].is_counted = True
    queue = queue_of(opened(queue_part=size), delivered)
    queue.store("alice", jobs)
    queue.append_operations(jobs, [], lambda _user: 0)
    queue.lost(jobs)
    delivered.clear()
    queue.claim_users()
    [job] = delivered
    assert [each.receipt for each in (job, *job.group)] == [each.receipt for each in jobs]
    assert [each.is_counted for each in (job, *job.group)] == [True, False]


def test_turns_that_another_writer_took_over_come_back_one_by_one(opened):
    backend, delivered = opened(), []
    queue, jobs = queue_of(backend, delivered), two_jobs()
    queue.store("alice", jobs)
    assert delivered == jobs
    jobs[0].group = [jobs[1]]  # read in one call of the model
    queue.lost(jobs)
    delivered.clear()
    queue.claim_users()
    assert [(job.operation, job.group, job.is_new) for job in delivered] == [
        ("op-0", [], False),
        ("op-1", [], False),
    ]


def test_a_turn_that_comes_back_to_a_writer_is_counted_once(opened):
    gate, calls = threading.Event(), []

    def slow(message, deps):
        calls.append(message)
        gate.wait(20)

    queue_of(opened(), [], works=False).store("alice", two_jobs())
    other = Claims(opened(), lease=0.01, works=True)
    with MemoryWriter(Diary(opened(), agent=slow)) as writer:
        receipt = writer.submit_nowait(Turn("bob", "s", "I love tea.", "Noted."))
        until(lambda: len(calls) == 2)
        until(lambda: other.store("alice"))  # the writer seems dead for the other one
        other.release("alice")
        gate.set()
        assert receipt.wait(30)
        until(lambda: not writer.stats()["pending"])
        stats = writer.stats()
    assert (stats["submitted"], stats["completed"], stats["recovered"]) == (3, 3, 2)


def test_the_breaker_tries_again_after_another_writer_took_the_single_try(opened):
    gate, calls = threading.Event(), []

    def model(message, deps):
        calls.append(message)
        if len(calls) == 1:
            raise ConnectionError
        gate.wait(30)

    retry = RetryPolicy(first_pause=0.01)
    diary = Diary(opened(), agent=model)
    with MemoryWriter(diary, lease=600, breaker=1, breaker_pause=0.01, retry=retry) as one:
        first = one.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
        until(lambda: len(calls) == 2)
        with MemoryWriter(Diary(opened(), agent="rules"), lease=1.0) as two:
            until(lambda: two.stats()["completed"])
        gate.set()
        assert first.wait(30).transaction == 1
        second = one.submit_nowait(Turn("bob", "s", "I love jazz.", "Noted."))
        assert second.wait(30).transaction == 1


def test_a_dropped_writer_is_collected_and_its_threads_end(opened):
    before = set(threading.enumerate())
    writer = MemoryWriter(Diary(opened(), agent="rules"))
    writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted.")).wait(30)
    until(writer.flush)
    dropped = weakref.ref(writer)
    del writer

    def has_ended():
        gc.collect()
        mine = {each.name for each in set(threading.enumerate()) - before}
        return dropped() is None and not mine & {"tomldiary-writer", "tomldiary-queue"}

    until(has_ended)


def test_a_lost_turn_that_was_submitted_again_settles_both_receipts(opened):
    began, gate = threading.Event(), threading.Event()

    def slow(message, deps):
        began.set()
        gate.wait(20)

    again = Turn("alice", "s", "I love tea.", "Noted.", operation_id="op")
    other = Claims(opened(), lease=0.01, works=True)
    with MemoryWriter(Diary(opened(), agent=None), workers=0) as web:
        first = web.submit_nowait(again)
        assert first.wait_stored(20)
        with MemoryWriter(Diary(opened(), agent=slow)) as writer:
            assert began.wait(20)
            second = writer.submit_nowait(again)
            assert second.wait_stored(20)
            until(lambda: other.store("alice"))  # the writer seems dead for the other one
            gate.set()
            until(lambda: not writer.stats()["active_workers"])
            stats = writer.stats()
            assert (stats["submitted"], stats["pending"]) == (2, 2)
            other.release("alice")
            assert [each.wait(30).transaction for each in (first, second)] == [1, 1]
            until(lambda: not writer.stats()["pending"])
            assert writer.stats()["completed"] == 2


def test_a_turn_with_the_id_of_another_waiting_turn_is_refused(opened):
    def submitted(writer, text):
        return writer.submit_nowait(Turn("alice", "s", text, "Noted.", operation_id="op"))

    with MemoryWriter(Diary(opened(), agent=None), workers=0) as web:
        first = submitted(web, "I love tea.")
        assert first.wait_stored(LONG)
        with MemoryWriter(Diary(opened(), agent=None), workers=0) as other:
            with pytest.raises(Conflict, match="different content"):
                submitted(other, "I love jazz.").wait_stored(LONG)
            stats = other.stats()
        assert (stats["submitted"], stats["failed"], stats["pending"]) == (1, 1, 0)
        with MemoryWriter(Diary(opened(), agent="rules")):
            assert first.wait(LONG).transaction == 1


def test_a_finished_turn_takes_no_other_turn_that_has_its_id_later(opened):
    delivered = []
    worker, watcher = queue_of(opened(), delivered), queue_of(opened(), delivered)
    web = queue_of(opened(), delivered, works=False)
    jobs = [Job(Turn("alice", "s", text, "ok"), "op", is_new=False) for text in "aab"]
    for job in jobs:
        job.rendered = render_turn(job.turn, job.operation, job.time)
    worker.store("alice", jobs[:1])
    watcher.store("alice", jobs[1:2])
    worker.finish(jobs[:1])
    web.store("alice", jobs[2:])
    watcher.claim_users()
    assert [job.turn.user_msg for job in delivered] == ["a", "b"]


@pytest.mark.parametrize("when", ["before", "meanwhile", "after a failure"])
def test_a_cancelled_submit_leaves_another_writers_turn_of_its_id(opened, when):
    backend, delivered, job = opened(), [], None
    queue, change = queue_of(backend, delivered), backend.change_parts

    def submitted(queue):
        nonlocal job
        job = Job(Turn("alice", "s", "tea", "ok", operation_id="op"), "op", is_new=False)
        job.rendered = render_turn(job.turn, job.operation, job.time)
        queue.store("alice", [job])

    def store_elsewhere():
        submitted(queue_of(opened(), delivered, works=False))

    def cancelled(user, *arguments):
        if user == "alice":
            backend.change_parts = change
            job.wanted -= 1
            if when == "after a failure":
                raise BackendError("away")
        change(user, *arguments)
        if (user, when) == ("alice", "meanwhile"):
            store_elsewhere()

    if when == "before":
        store_elsewhere()
    backend.change_parts = cancelled
    with suppress(BackendError):
        submitted(queue)
    if when == "after a failure":
        store_elsewhere()
        queue.claim_users()
    assert [job.wanted for job in delivered] == [1]


def test_a_submit_that_is_cancelled_before_its_storing_withdraws_the_turn(opened):
    backend, diary = opened(), Diary(opened(), agent="rules")
    change, began, gate = backend.change_parts, threading.Semaphore(0), threading.Semaphore(0)

    def slow(user, *arguments):
        if user in {"alice", "bob"} and threading.current_thread().name == "tomldiary-queue":
            began.release()
            assert gate.acquire(timeout=LONG)
        change(user, *arguments)

    async def use():
        writer = MemoryWriter(Diary(backend, agent="rules"))
        async with writer:
            alice = asyncio.create_task(writer.submit("alice", "s", "I love tea.", "Noted."))
            assert await asyncio.to_thread(began.acquire, timeout=LONG)
            bob, carol = (
                asyncio.create_task(
                    writer.submit(user, "s", "I love jazz.", "Noted.", operation_id="op")
                )
                for user in ("bob", "carol")
            )
            await asyncio.sleep(0)
            gate.release()
            assert await asyncio.to_thread(began.acquire, timeout=LONG)
            carol.cancel()
            await asyncio.wait([carol])
            gate.release()
            await asyncio.gather(await alice, await bob)
            return await writer.close()

    backend.change_parts = slow
    stats = asyncio.run(asyncio.wait_for(use(), LONG))
    assert (stats["submitted"], stats["completed"], stats["pending"]) == (2, 2, 0)
    assert diary.user("carol").preferences("likes") == {}


def test_a_turn_in_work_whose_storing_fails_is_applied_and_counted_once(opened, caplog):
    backend, began, gate = opened(), threading.Event(), threading.Event()
    change = backend.change_parts

    def slow(_message, deps):
        began.set()
        gate.wait(LONG)

    def lose_answer(user, *arguments):
        change(user, *arguments)
        if user == "alice" and threading.current_thread().name == "tomldiary-queue":
            backend.change_parts = change
            gate.set()
            until(lambda: writer.stats()["completed"] == 2)
            raise BackendError("the answer was lost")

    async def use():
        async with writer:
            await writer.submit("alice", "s", "I love tea.", "Noted.")
            await asyncio.to_thread(began.wait, LONG)
            backend.change_parts = lose_answer
            receipt = await writer.submit("alice", "s", "I love jazz.", "Noted.")
            assert (await receipt).transaction == 2
            return await writer.close()

    writer = MemoryWriter(Diary(backend, agent=slow))
    stats = asyncio.run(asyncio.wait_for(use(), LONG))
    assert (stats["submitted"], stats["completed"], stats["failed"]) == (2, 2, 0)
    assert (stats["pending"], stats["last_failure"]) == (0, None)
    assert "0 turns" not in caplog.text


def test_a_turn_that_ends_after_the_close_delivers_no_other_turn(opened):
    backend, removing, gate, ended = opened(), *(threading.Event() for _ in range(3))
    change = backend.change_parts

    def slow(*arguments):
        if threading.current_thread().name != "tomldiary-queue" and backend.last_record("alice"):
            removing.set()
            gate.wait(LONG)
            change(*arguments)
            ended.set()
        else:
            change(*arguments)

    writer = MemoryWriter(Diary(backend, agent="rules"))
    with MemoryWriter(Diary(opened(), agent=None), workers=0) as web:
        backend.change_parts = slow
        writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
        assert removing.wait(LONG)
        other = web.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted."))
        assert other.wait_stored(LONG)
        stats = writer.close_sync(0)
        gate.set()
        assert ended.wait(LONG)
        with MemoryWriter(Diary(opened(), agent="rules")):
            assert other.wait(LONG).transaction == 2
    after = writer.stats()
    assert (after["submitted"], after["recovered"], after["pending"]) == (1, 0, 1)
    assert after["submitted"] == stats["submitted"]


def test_a_turn_counts_once_while_it_is_stored(opened, monkeypatch):
    backend = opened()
    change, began, go_on = backend.change_parts, threading.Event(), threading.Event()

    def slow(*arguments, **options):
        began.set()
        assert go_on.wait(30)
        return change(*arguments, **options)

    with MemoryWriter(Diary(backend, agent="rules")) as writer:
        assert writer.flush(30)
        monkeypatch.setattr(backend, "change_parts", slow)
        receipt = writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
        assert began.wait(30)
        stats = writer.stats()
        go_on.set()
        assert receipt.wait(30).transaction == 1
    assert (stats["submitted"], stats["pending"], stats["loss_window"]) == (1, 1, 1)


@engines.on_each_server
@pytest.mark.parametrize("when", ["before", "after", "with the stored one"])
def test_a_turn_stored_while_another_one_ends_is_delivered_once(opened, when):
    backend, delivered = opened(), []
    queue, jobs = queue_of(backend, delivered), two_jobs()
    queue.store("alice", jobs[:1])
    change = backend.change_parts

    def overlapping(user, kind, make):
        backend.change_parts = change
        if when == "before":
            queue.finish(jobs[:1])
        change(user, kind, make)
        if when != "before":
            queue.finish(jobs[:1])
        if when == "with the stored one":
            queue.finish(jobs[1:])

    backend.change_parts = overlapping
    queue.store("alice", jobs[1:])
    queue.claim_users()
    assert delivered == jobs
    assert len(queue) == 0
    queue.finish(jobs[1:])
    assert backend.holders(".queue") == []


def test_a_turn_of_another_process_is_applied_before_those_stored_after_it(opened):
    began, go_on = threading.Event(), threading.Event()

    def slow(message, *, deps):
        began.set()
        assert go_on.wait(30)
        deps.upsert("likes", None, deps.user_msg, ())

    def submit(writer, text):
        receipt = writer.submit_nowait(Turn("alice", "s", text, "Noted."))
        assert receipt.wait_stored(30)
        return receipt

    web = MemoryWriter(Diary(opened(), agent=None), workers=0)
    with web, MemoryWriter(Diary(opened(), agent=slow, similarity=101)) as worker:
        receipts = [submit(worker, "tea")]
        assert began.wait(30)
        receipts += submit(web, "milk"), submit(worker, "water"), submit(worker, "juice")
        go_on.set()
        assert [receipt.wait(30).transaction for receipt in receipts] == [1, 2, 3, 4]


def test_a_new_turn_brings_those_that_other_processes_stored_before_it(opened):
    delivered = []
    queue, (first, last) = queue_of(opened(), delivered), two_jobs()
    queue.store("alice", [first])
    queue_of(opened(), [], works=False).store("alice", two_jobs(begin=2))
    queue.store("alice", [last])  # at once: the first turn may wait long for another attempt
    assert [job.operation for job in delivered] == ["op-0", "op-2", "op-3", "op-1"]
    assert (delivered[0], delivered[-1]) == (first, last)


@engines.on_each_server
def test_a_writer_without_workers_leaves_its_turns_to_others(engine, opened):
    web = MemoryWriter(Diary(opened(), agent=None), workers=0)
    first = web.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
    assert first.wait_stored(30)
    assert web.flush(1.5) is False  # longer than the interval of its searches
    assert (web.stats()["pending"], web.stats()["loss_window"]) == (1, 0)
    assert web.health().status == "healthy"
    assert opened().holders(".queue") == ["alice"]
    assert "[[owner]]" not in engine.texts()
    with MemoryWriter(Diary(opened(), agent="rules")):
        assert first.wait(30).transaction == 1
    second = web.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted."))
    begin = time.monotonic()
    assert web.close_sync()["pending"] == 1  # at once, and the turn is stored
    assert time.monotonic() - begin < 60  # not the time that a close may take
    with pytest.raises(RuntimeError):
        second.wait(0)
    with MemoryWriter(Diary(opened(), agent="rules")) as worker:
        until(lambda: worker.stats()["completed"])
    assert len(Diary(opened()).user("alice").preferences("likes")) == 2


def test_turns_that_another_writer_ends_count_for_the_health(opened):
    gate = threading.Event()

    def listen(message, deps):
        if "slow" in deps.user_msg:
            gate.wait(LONG)
        if "bad" in deps.user_msg:
            raise ValueError

    with (
        MemoryWriter(Diary(opened(), agent=listen)),
        MemoryWriter(Diary(opened(), agent=None), workers=0) as web,
    ):
        slow = web.submit_nowait(Turn("alice", "s", "slow", "Noted."))
        assert web.submit_nowait(Turn("bob", "s", "tea", "Noted.")).wait(LONG)
        until(lambda: web.stats()["oldest_age"] > 1)
        health = web.health(longest_wait=1)
        assert (health.status, len(health.reasons)) == ("degraded", 1)  # only alice waits
        assert health.stats["latency_p50"] > 0
        gate.set()
        assert slow.wait(LONG)
        with pytest.raises(ExtractionError):
            web.submit_nowait(Turn("bob", "s", "bad", "Noted.")).wait(LONG)
        assert "tomldiary writer list" in web.health(most_errors=1).reasons[0]


def test_a_remedy_for_dead_letters_of_a_database_has_the_option_path(opened):
    def fail(_message, *, deps):
        raise ValueError(deps.user_msg)

    with MemoryWriter(Diary(opened(), agent=fail)) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "tea", "Noted."))
        with pytest.raises(ExtractionError):
            receipt.wait(LONG)
    [remedy] = [each.remedy for each in check(Diary(opened())) if "not be applied" in each.message]
    assert "tomldiary writer list --path URL. " in remedy
    assert remedy.endswith("tomldiary writer retry --all --path URL")


def test_each_waiting_turn_of_a_user_is_parsed_once(opened, monkeypatch):
    number, parsed = 30, []
    loads = tomllib.loads

    def counted(text):
        parsed.extend(["turn"] * text.startswith("number = "))
        return loads(text)

    with MemoryWriter(Diary(opened(), agent=None), workers=0) as web:
        receipts = [
            web.submit_nowait(Turn("alice", "s", f"I love tea {each}.", "Noted."))
            for each in range(number)
        ]
        assert all(each.wait_stored(30) for each in receipts)
        monkeypatch.setattr(tomllib, "loads", counted)
        with MemoryWriter(Diary(opened(), agent="rules")) as worker:
            until(lambda: worker.stats()["completed"] == number, 60)
        monkeypatch.undo()
    assert len(parsed) < 4 * number  # each in both writers, and some while they are still stored


def test_short_turns_that_were_parsed_take_a_limited_part_of_memory():
    """The documents of 12,000 short turns have 3 million characters, and would take 40 MB if all were kept."""
    clear_caches()
    for number in range(12_000):
        job = Job(Turn("alice", "s", "I love tea.", "Noted."), f"id-{number}", is_new=True)
        job.rendered = render_turn(job.turn, job.operation, job.time)
        waiting = Turns("", 8192, {})
        waiting.add([job], 0)
        waiting.render()
    kept = objects_of(LogRecord)
    clear_caches()
    assert 1000 < kept < 10_000


def test_a_writer_of_a_folder_needs_workers(tmp_path):
    with pytest.raises(ValueError, match="workers=0 needs a diary on PostgreSQL"):
        MemoryWriter(Diary(tmp_path), workers=0)


def test_the_last_owner_of_a_user_finds_a_turn_without_owner_at_once(opened):
    backend = opened()
    one, two, web = (Claims(backend, 600, works=works) for works in (True, True, False))

    def turn(number):
        job = Job(Turn("alice", "s", f"I love {number}.", "ok"), f"op-{number}", is_new=True)
        job.rendered = render_turn(job.turn, job.operation, job.time)
        return job

    assert one.store("alice", [turn(1)]) is not None
    assert two.read("alice")[1] is False
    assert two.without_owner(["alice"]) == []
    one.remove("alice", ["op-1"])
    assert two.store("alice", [turn(2)]) is not None
    assert one.read("alice")[1] is False
    two.remove("alice", ["op-2"])
    assert web.store("alice", [turn(3)]) is None
    assert (one.without_owner(["alice"]), two.without_owner(["alice"])) == ([], ["alice"])
    assert two.read("alice")[1] is True


def test_a_dead_letter_forgotten_meanwhile_is_not_requeued(opened):
    backend, other = opened(), Diary(opened(), agent="rules")
    letters = DeadLetters(backend)
    job = Job(Turn("alice", "gone", "the zebra", "ok"), "op", is_new=True)
    job.epoch, job.time = 0, "2026-11-20T00:00:00+00:00"
    letters.add(job, "no")
    found, change = letters.list(), backend.change_parts

    def overlapping(*arguments, **options):
        backend.change_parts = change
        other.user("alice").forget(session_id="gone")
        change(*arguments, **options)

    backend.change_parts = overlapping
    with pytest.raises(Forgotten):
        letters.requeue(found)
    assert backend.hidden("alice", QUEUE) == ""
    assert letters.list() == []


def test_forgetting_one_of_the_turns_that_were_read_together_removes_all():
    waiting, jobs = Turns.parse({}, 8192), two_jobs()
    for job in jobs:
        job.rendered = render_turn(job.turn, job.operation, "2026-11-20T00:00:00+00:00")
    waiting.add(jobs, 0)
    waiting.add_operations([job.operation for job in jobs], [])
    [text] = waiting.render().values()
    selection = {"key": "likes/pref001", "operations": ["op-0"]}  # history has one id for both
    assert turns.redacted(text, "alice", selection, 1) == ""
    assert "I love 1." in turns.redacted(text, "alice", {"key": "likes/pref001"}, 1)


def park(letters, name, error="no"):
    job = Job(Turn("alice", "s", name, "ok"), name, is_new=True)
    job.epoch, job.time = 0, "2026-11-20T00:00:00+00:00"
    letters.add(job, error)


def test_a_retried_turn_that_fails_again_at_once_stays_a_dead_letter(opened, monkeypatch):
    backend = opened()
    letters, remove = DeadLetters(backend), backend.change_hidden

    def failed_again(*arguments, **options):
        park(DeadLetters(opened()), "first", "no again")
        return remove(*arguments, **options)

    park(DeadLetters(opened()), "first")
    monkeypatch.setattr(backend, "change_hidden", failed_again)
    assert len(letters.requeue(letters.list())) == 1
    assert [letter.error for letter in letters.list()] == ["no again"]


def test_a_retry_keeps_a_turn_that_its_worker_has_not_removed_from_the_queue_yet(opened):
    letters = DeadLetters(opened())
    park(letters, "first")
    assert len(letters.requeue(letters.list())) == 1
    park(letters, "first")
    assert letters.requeue(letters.list()) == []
    assert [letter.id for letter in letters.list()] == ["first"]


def lose_next_answer(database, then=lambda: None):
    """Let the next step be applied without an answer; `then` is called after it."""
    apply = database.apply

    def lost(user, head, step):
        database.apply = apply
        apply(user, head, step)
        then()
        raise DatabaseLost("broken")

    database.apply = lost


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_a_retry_with_a_lost_answer_moves_the_turn(opened, is_overtaken):
    backend, other = opened(), opened()
    letters = DeadLetters(backend)
    park(letters, "first")

    def overtake():
        if is_overtaken:
            other.change_hidden("alice", ".other", lambda *_: "x")

    found = letters.list()
    lose_next_answer(backend.database, overtake)
    assert letters.requeue(found) == found
    assert letters.list() == []
    assert [*Turns.parse(other.hidden_parts("alice", QUEUE), 8192).numbers()] == ["first"]


def test_a_drop_with_a_lost_answer_returns_the_turn(opened):
    backend = opened()
    letters = DeadLetters(backend)
    park(letters, "first")
    found = letters.list()
    lose_next_answer(backend.database)
    assert letters.drop(found) == found
    assert letters.list() == []


@pytest.mark.parametrize("moment", ["hidden_parts", "change_parts"])
def test_a_turn_that_is_parked_during_a_retry_stays_a_dead_letter(opened, moment):
    backend = opened()
    letters, step = DeadLetters(backend), getattr(backend, moment)

    def overlapping(*arguments, **options):
        setattr(backend, moment, step)
        park(DeadLetters(opened()), "second")
        return step(*arguments, **options)

    park(DeadLetters(opened()), "first")
    found = DeadLetters(opened()).list()
    setattr(backend, moment, overlapping)
    assert letters.requeue(found) == found
    assert Turns.parse(backend.hidden_parts("alice", QUEUE), 8192).has("first")
    assert [letter.id for letter in letters.list()] == ["second"]


def test_the_work_for_a_backlog_of_one_user_grows_with_its_length(opened, monkeypatch):
    count = 20
    with MemoryWriter(Diary(opened(), agent="rules"), workers=0) as storing:
        for number in range(count):
            turn = Turn("alice", "s", f"I love tea {number}.", "Noted.")
            assert storing.submit_nowait(turn).wait_stored(20)
    parsed = []

    def counted(data):
        found = scan_log(data)
        parsed.append(len(found))
        return found

    monkeypatch.setattr(turns, "scan_log", counted)
    with MemoryWriter(Diary(opened(), agent="rules")) as writer:
        assert writer.flush(60)
    assert sum(parsed) <= 4 * count  # not all waiting turns for each turn


def test_a_step_sends_a_small_part_of_a_long_backlog(opened, monkeypatch):
    count, gate, sent = 40, threading.Event(), []
    backend = opened(queue_part=600)
    apply = backend.database.apply

    def measured(user, head, step):
        queued = [text for kind, text in step.contents.items() if kind.startswith(QUEUE)]
        sent.append(sum(map(len, queued)))
        return apply(user, head, step)

    def remember(message, *, deps):
        gate.wait(LONG)
        deps.upsert("likes", None, deps.user_msg, ())

    monkeypatch.setattr(backend.database, "apply", measured)
    with MemoryWriter(Diary(backend, agent=remember, similarity=101)) as writer:
        for number in range(count):
            turn = Turn("alice", "s", f"turn {number}", "Noted.")
            assert writer.submit_nowait(turn).wait_stored(LONG)
        assert len(backend.hidden("alice", QUEUE)) > 6000
        gate.set()
        assert writer.flush(LONG)
    assert max(sent) < 1500
    alice = Diary(opened()).user("alice")
    assert [each.text for each in alice.preferences("likes").values()] == [
        f"turn {number}" for number in range(count)
    ]
    assert not backend.hidden_parts("alice", QUEUE)


@engines.on_each_server
def test_a_redaction_keeps_the_other_turns_of_all_parts_in_their_order(engine, opened):
    backend = opened(queue_part=400)
    with MemoryWriter(Diary(backend, agent=None), workers=0) as web:
        for number in range(12):
            session = "kept" if number % 3 else "erased"
            turn = Turn("alice", session, f"I love thing {number}.", "Noted.")
            assert web.submit_nowait(turn).wait_stored(LONG)
    assert len(backend.hidden_parts("alice", QUEUE)) > 3
    Diary(opened(), agent="rules").user("alice").forget(session_id="erased")
    assert '"erased"' not in engine.texts()
    queue_of(opened(queue_part=400), [], works=False).store("alice", two_jobs())
    with MemoryWriter(Diary(backend, agent="rules")) as writer:
        until(lambda: writer.stats()["completed"] == 10)
    texts = [each.text for each in Diary(opened()).user("alice").preferences("likes").values()]
    expected = [f"I love thing {number}." for number in range(12) if number % 3]
    assert texts == [*expected, "I love 0.", "I love 1."]
    assert backend.holders(QUEUE) == []


@engines.on_each_server
def test_the_parts_of_a_queue_are_read_in_one_state(opened):
    owner, backend = Claims(opened(queue_part=1), 60.0, works=True), opened(queue_part=1)
    jobs = two_jobs()
    owner.store("alice", jobs[:1])
    assert len(backend.hidden_parts("alice", QUEUE)) == 1
    owner.store("alice", jobs[1:])
    database, read = backend.database, backend.database.read

    def overlapping(user, kinds):
        database.read = read
        owner.remove("alice", [jobs[0].operation])  # so the other turn is in the first part
        return read(user, kinds)

    database.read = overlapping
    turns = Claims(backend, 60.0, works=False).read("alice")[0]
    assert (turns.owner, [*turns.numbers()]) == (owner.writer, ["op-1"])
    assert opened().holders(QUEUE) == ["alice"]
    owner.store("alice", jobs[:1])
    database.read = lambda *_: {}
    with backend.lock("alice", LONG), pytest.raises(RevisionConflict):
        backend.hidden_parts("alice", QUEUE)


def test_a_turn_is_not_given_up_if_the_queue_changes_while_a_forget_is_checked(opened, monkeypatch):
    began, gate = threading.Event(), threading.Event()
    backend, conflicts = opened(), [RevisionConflict.of("alice")]
    lock = backend.lock

    def overtaken(*arguments):
        if conflicts and gate.is_set():
            raise conflicts.pop()
        return lock(*arguments)

    def slow(message, deps):
        began.set()
        gate.wait(LONG)

    monkeypatch.setattr(backend, "lock", overtaken)
    alice = Diary(opened(), agent="rules").user("alice")
    alice.upsert_preference("likes", "coffee", session_id="another")
    retry = RetryPolicy(first_pause=0.01)
    with MemoryWriter(Diary(backend, agent=slow), retry=retry) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
        assert began.wait(LONG)
        alice.forget(session_id="another")
        gate.set()
        assert receipt.wait(LONG) is not None
        assert not conflicts


def test_a_turn_is_parked_later_if_others_keep_changing_its_user(opened, monkeypatch):
    backend, conflicts = opened(), [RevisionConflict.of("alice")]
    change = backend.change_hidden

    def overtaken(user, kind, *args, **kwargs):
        if kind == DEAD_LETTERS and conflicts:
            raise conflicts.pop()
        change(user, kind, *args, **kwargs)

    def refuse(message, deps):
        raise ValueError("this extractor is broken")

    monkeypatch.setattr(backend, "change_hidden", overtaken)
    diary, retry = Diary(backend, agent=refuse), RetryPolicy(longest_pause=0.01)
    with MemoryWriter(diary, retry=retry) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
        with pytest.raises(ExtractionError, match="broken"):
            receipt.wait(LONG)
    assert not conflicts
    assert (backend.holders(QUEUE), backend.holders(DEAD_LETTERS)) == ([], ["alice"])
