"""Erasure beside other processes on a shared database; the public suite has the rest."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from tomldiary import Diary, Forgotten
from tomldiary.errors import BackendError, RevisionConflict
from tomldiary.history.record import Source
from tomldiary.storage.shared import transactions
from tomldiary.storage.shared.database import RESERVED, WHOLE_HISTORY, DatabaseLost, Step

WORDS = "the zebra on the roof"


def test_work_that_began_before_an_erasure_is_refused(opened):
    one, two = (Diary(opened(), agent="rules") for _ in range(2))
    one.user("alice").upsert_preference("likes", WORDS)
    epoch = one.engine.backend.epoch("alice")
    two.user("alice").forget(everything=True)
    with pytest.raises(Forgotten):
        one.engine.write(
            "alice", lambda transaction: transaction.edit("preferences"), Source("x"), epoch=epoch
        )


def test_a_forgotten_text_leaves_no_trace(opened):
    alice = Diary(opened(), agent="rules").user("alice")
    alice.upsert_preference("likes", WORDS)
    alice.blocks.set("notes", WORDS)
    assert {"preferences", "history", "blocks"} <= {*alice.traces("zebra")}
    alice.forget(matching="zebra")
    assert alice.traces("zebra") == []


def test_erasing_everything_ends_while_others_write_all_the_time(engine, opened):
    backend = opened()
    one = Diary(backend, agent="rules", lock_timeout=5.0).user("alice")
    two = Diary(opened(), agent="rules", similarity=101).user("alice")
    one.upsert_preference("likes", "tea")
    records = backend.database.records

    def overtaken(*arguments):
        two.blocks.append("notes", WORDS)
        return records(*arguments)

    backend.database.records = overtaken
    assert one.forget(everything=True).is_done
    assert WORDS not in engine.texts()


def test_an_erasure_takes_what_another_process_wrote_meanwhile(engine, opened):
    backend = opened()
    one, two = (  # without patience: however long an attempt takes, there is a second one
        Diary(backend, agent="rules", lock_timeout=0.0).user("alice"),
        Diary(opened(), agent="rules").user("alice"),
    )
    one.upsert_preference("likes", "tea", session_id="gone")
    read, calls = backend.database.read, []

    def overtaken(user, kinds):
        found = read(user, kinds)
        if not calls:
            calls.append(two.upsert_preference("likes", WORDS, session_id="gone"))
        return found

    backend.database.read = overtaken
    one.forget(session_id="gone")
    assert calls
    assert WORDS not in engine.texts()


def test_a_long_redaction_ends_while_others_write_all_the_time(engine, opened):
    backend = opened()
    one = Diary(backend, agent="rules", lock_timeout=10.0).user("alice")
    two = Diary(opened(), agent="rules").user("alice")
    one.upsert_preference("likes", WORDS, session_id="gone")
    read, is_over, written = backend.database.read, threading.Event(), 0

    def slow(*arguments):  # as if history were long
        time.sleep(0.6)
        return read(*arguments)

    def write():
        nonlocal written
        while not is_over.is_set():
            two.blocks.append("notes", f"{written}")
            written += 1
            time.sleep(0.02)

    backend.database.read = slow
    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert one.forget(session_id="gone").entries == 1
        during = written
        assert RESERVED not in backend.versions("alice")
        two.blocks.append("notes", "a write after the end of the redaction")
    finally:
        is_over.set()
        writer.join()
    assert during > 0
    assert two.blocks["notes"].text.count("\n") == written
    assert WORDS not in engine.texts()


@pytest.fixture
def _short_reservations(monkeypatch):
    """A refused transaction reserves the user at once, and others wait for it briefly."""
    monkeypatch.setattr(transactions, "_LONG", 0.0)
    monkeypatch.setattr(transactions, "_RESERVATION", 0.5)


@pytest.mark.usefixtures("_short_reservations")
def test_a_writer_ends_the_reservation_of_a_process_that_died(opened):
    backend = opened()
    Diary(backend, agent="rules").user("alice").upsert_preference("likes", "tea")
    assert backend.database.apply(
        "alice", backend.database.head("alice"), Step({RESERVED: "reserved\n"})
    )
    other = Diary(opened(), agent="rules").user("alice")
    other.upsert_preference("likes", "coffee")
    assert len(other.preferences("likes")) == 2
    assert RESERVED not in backend.versions("alice")


def reserve(backend):
    state = backend.database.head("alice")
    assert backend.database.apply("alice", state, Step({RESERVED: "another process\n"}))


def test_a_reservation_that_ends_while_a_writer_looks_at_it_is_no_error(opened):
    backend, alice = opened(), Diary(opened(), agent="rules").user("alice")
    reserve(backend)
    database = alice.diary.engine.backend.database
    read = database.read

    def ended(user, kinds):
        if kinds == [RESERVED]:
            backend.database.apply(user, backend.database.head(user), Step(removed=kinds))
        return read(user, kinds)

    database.read = ended
    alice.upsert_preference("likes", "tea")
    assert backend.kinds("alice") == ["preferences"]


@pytest.mark.usefixtures("_short_reservations")
@pytest.mark.parametrize(
    ("meanwhile", "is_own"),
    [
        (lambda _backend: None, True),
        (reserve, False),
        (lambda backend: backend.transactions.renew(), False),
    ],
    ids=["own", "of another process", "of the parent process"],
)
def test_a_writer_ends_only_its_own_reservation_after_the_database_was_away(
    opened, monkeypatch, meanwhile, is_own
):
    backend, pauses = opened(), []
    one, two = (Diary(each, agent="rules").user("alice") for each in (backend, opened()))
    one.upsert_preference("likes", "tea")
    apply, timeout = backend.database.apply, backend.transactions.timeout
    monkeypatch.setattr(transactions, "pause", pauses.append)

    def away(user, head, step):
        if RESERVED in step.removed:
            assert len(pauses) < 100
            raise DatabaseLost("away")
        return apply(user, head, step)

    def overtaken():
        with one.transaction() as transaction:
            transaction.upsert_preference("likes", "coffee")
            two.upsert_preference("likes", "milk")

    backend.database.apply, backend.transactions.timeout = away, 0.2
    with pytest.raises(RevisionConflict):
        overtaken()
    with pytest.raises(BackendError, match="away"):
        one.upsert_preference("likes", "coffee")
    backend.database.apply, backend.transactions.timeout = apply, timeout
    assert RESERVED in backend.versions("alice")
    pauses.clear()
    meanwhile(backend)
    one.upsert_preference("likes", "coffee")
    assert (pauses == [0]) == is_own
    assert RESERVED not in backend.versions("alice")


def test_the_token_of_a_complete_erasure_outlives_a_later_redaction(opened):
    backend = opened()
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    alice.forget(everything=True)
    alice.upsert_preference("likes", "milk")
    alice.forget(matching="milk")
    assert (backend.erased("alice"), backend.epoch("alice")) == (1, 2)
    assert opened().erased("alice") == 1


def test_a_dropped_history_begins_anew(opened):
    backend = opened()
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    with backend.lock("alice", 5):
        head = backend.database.head("alice")
        assert backend.database.apply("alice", head, Step(dropped=WHOLE_HISTORY))
    assert backend.last_record("alice") is None
    assert list(backend.records("alice")) == []


def overtaken_by(backend, works):
    """Run each of `works` before the backend reads records below a number for the nth time; the keys are both."""
    records, calls = backend.database.records, Counter()

    def overtaken(user, below, limit):
        calls[below] += 1
        works.get((below, calls[below]), bool)()
        return records(user, below, limit)

    backend.database.records = overtaken


@pytest.mark.parametrize(("read", "reads"), [("as_of", 3), ("diff", 2), ("diff_text", 2)])
def test_a_past_state_is_read_while_another_process_drops_history(opened, read, reads):
    backend = opened()
    one = Diary(backend, agent="rules").user("alice")
    for number in range(30):
        one.blocks.set("notes", f"note {number + 1}")

    def result():
        if read == "as_of":
            return one.as_of(28).blocks["notes"].text
        return f"{getattr(one, read)(28, 29)}"

    expected = result()
    other = Diary(opened(), agent="rules").user("alice")
    works = {
        # The text was read, so history is now newer, and is read until the first transaction.
        (WHOLE_HISTORY, reads): lambda: other.blocks.set("notes", "another note"),
        (11, 1): lambda: other.prune_history(keep=20),
    }
    overtaken_by(backend, works)
    assert result() == expected
    assert one.kept_history().first == 11


def test_two_processes_drop_history_at_once(opened):
    backend = opened()
    one = Diary(backend, agent="rules").user("alice")
    for number in range(30):
        one.blocks.set("notes", f"note {number + 1}")
    other = Diary(opened(), agent="rules").user("alice")
    overtaken_by(backend, {(30, 2): lambda: other.prune_history(keep=5)})
    assert one.prune_history(keep=10).first == other.kept_history().first == 25
