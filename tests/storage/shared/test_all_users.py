"""Operations over all users ask a database for several users at once, and for no state twice."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections import Counter

import pytest

from tomldiary import Diary
from tomldiary.errors import BackendError
from tomldiary.runtime.in_order import in_order
from tomldiary.storage.shared.database import DatabaseLost
from tomldiary.store.operations import List, Put, Search
from tomldiary.store.store import ItemStore
from tomldiary.views.memory import view_diary

USERS = [f"user {number:02}" for number in range(40)]
AT_ONCE = 8
AHEAD = 16
OPERATIONS = {
    "list": lambda store: store.run([List(limit=100)]),
    "search": lambda store: store.run([Search((), limit=100)]),
    "sweep": lambda store: store.sweep(),
    "forget": lambda store: store.diary.user("not stored").forget(matching="milk"),
    "view": lambda store: view_diary(store.diary),
}
operations = pytest.mark.parametrize("work", OPERATIONS.values(), ids=OPERATIONS)


@pytest.fixture
def store(engine):
    """The items of a process that has read nothing yet; 40 users have one item each."""
    with Diary(engine.url, agent="rules") as diary:
        for user in USERS:
            ItemStore(diary).run([Put((user, "notes"), "k", {"text": "tea"})])
    with Diary(engine.url, agent="rules") as diary:
        yield ItemStore(diary)


@pytest.fixture
def asked(store, monkeypatch):
    """The requests for the state of each user."""
    counts, guard = Counter(), threading.Lock()
    database = type(store.diary.engine.backend.database)
    head = database.head

    def counting(self, user, known=None):
        with guard:
            counts[user] += 1
        return head(self, user, known)

    monkeypatch.setattr(database, "head", counting)
    return counts


@operations
def test_several_users_are_read_at_once(store, work, monkeypatch):
    together, seen = threading.Barrier(AT_ONCE, timeout=20), set()
    backend = store.diary.engine.backend

    def waiting(original):
        def read(user, *args):
            if user in USERS and user not in seen:
                seen.add(user)
                together.wait()  # broken unless eight users are read at once
            return original(user, *args)

        return read

    for name in ("tokens", "kinds"):
        monkeypatch.setattr(backend, name, waiting(getattr(backend, name)))
    work(store)
    assert seen == {*USERS}
    assert not together.broken


@operations
def test_the_state_of_each_user_is_asked_for_once(store, work, asked):
    for _ in range(2):
        asked.clear()
        work(store)
        assert {asked[user] for user in USERS} == {1}


def test_the_operations_of_a_batch_read_the_same_states(store, asked):
    items, names = store.run([Search((), limit=100), List(limit=100)])
    assert [item.namespace for item in sorted(items, key=lambda each: each.namespace)] == names
    assert {asked[user] for user in USERS} == {1}


def test_a_listing_that_ends_early_has_read_few_further_users(store, asked):
    assert store.run([List(limit=2)]) == [[(user, "notes") for user in USERS[:2]]]
    assert len(asked) <= 2 + AHEAD


def test_an_unreadable_user_is_left_out(store, engine, caplog):
    backend = engine.backend()
    [kind] = [kind for kind in backend.kinds(USERS[3]) if kind.startswith("items")]
    stored = backend.read(USERS[3], kind)
    newer = stored.text.replace('"0.3"', '"99.0"')
    backend.save_edit(USERS[3], kind, newer, version=stored.token)
    assert len(store.run([Search((), limit=100)])[0]) == len(USERS) - 1
    assert f"a user is omitted from a listing: {USERS[3]!r}" in caplog.text


def test_inside_a_transaction_the_users_are_read_by_its_thread(store, monkeypatch):
    threads, backend = set(), store.diary.engine.backend
    tokens = backend.tokens

    def noted(user, kinds):
        threads.add(threading.get_ident())
        return tokens(user, kinds)

    monkeypatch.setattr(backend, "tokens", noted)
    with store.diary.user(USERS[5]).transaction():
        store.run([Put((USERS[5], "more"), "k", {"text": "milk"})])
        [names] = store.run([List(limit=100)])
    assert (USERS[5], "more") in names
    assert len(names) == len(USERS) + 1
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("name", ["list", "search", "sweep"])
def test_a_lost_database_is_asked_for_few_users(store, name, monkeypatch):
    backend, seen = store.diary.engine.backend, set()
    backend.transactions.timeout = 0.01

    def lost(_self, user, _known=None):
        seen.add(user)
        raise DatabaseLost("the test")

    monkeypatch.setattr(type(backend.database), "head", lost)
    with pytest.raises(BackendError, match="cannot be reached"):
        OPERATIONS[name](store)
    assert len(seen) <= AHEAD


def test_results_come_in_order_and_an_error_ends_the_calls():
    begun, first = [], threading.Event()

    def work(number):
        begun.append(number)
        if number == 0:
            first.wait(20)
        if number == 3:
            raise ValueError(number)
        return number

    found = in_order(work, range(1000), "test")
    threading.Timer(0.05, first.set).start()
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3"):
        next(found)
    assert len(begun) <= AHEAD
    assert [*in_order(str, range(50), "test")] == [*map(str, range(50))]


def test_a_thread_that_begins_late_does_not_hide_the_first_error():
    failed = threading.Event()

    def late(frame, event, _):
        is_run = event == "call" and frame.f_code.co_qualname == "in_order.<locals>.run"
        if is_run and frame.f_locals["number"] == 2:
            failed.wait(20)

    def work(number):
        if number == 5:
            failed.set()
            raise ValueError(number)
        return number

    found, results = in_order(work, range(20), "test"), []
    threading.setprofile(late)
    try:
        with pytest.raises(ValueError, match="5"):
            results.extend(found)
    finally:
        threading.setprofile(None)
    assert results == [*range(5)]


def test_an_error_is_not_kept_by_a_cycle():
    class Failed(Exception):
        def __init__(self):
            made.append(weakref.ref(self))

    def work(_number):
        raise Failed

    made = []
    gc.disable()
    try:
        with pytest.raises(Failed):
            [*in_order(work, range(3), "test")]
        assert made[0]() is None
    finally:
        gc.enable()


@pytest.fixture
def few_threads(monkeypatch):
    """Only two threads of `in_order` can be started."""
    start, left = threading.Thread.start, [1, 2]

    def limited(thread):
        if thread.name.startswith(("test", "tomldiary-users")):
            if not left:
                raise RuntimeError("can't start new thread")
            left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    return left


def test_each_call_is_made_once_if_few_threads_can_start(few_threads):
    begun, both = Counter(), threading.Barrier(2, timeout=20)

    def work(number):
        begun[number] += 1
        if number in {0, 1}:
            both.wait()  # until the failed attempts to start a thread are over
        return number

    assert [*in_order(work, range(40), "test")] == [*range(40)]
    assert not few_threads
    assert {*begun.values()} == {1}


def test_without_threads_a_result_is_taken_outside_of_the_block_of_its_states(
    engine, store, few_threads
):
    few_threads.clear()
    backend = store.diary.engine.backend
    with backend.reading():
        before = backend.epoch(USERS[0])
        found = backend.of_each(USERS, backend.epoch)
    assert next(found) == before
    with Diary(engine.url, agent="rules") as other:
        other.user(USERS[0]).forget(everything=True)
    assert backend.epoch(USERS[0]) == before + 1


def test_calls_that_are_not_needed_do_not_begin():
    begun = []
    found = in_order(begun.append, range(1000), "test")
    assert next(found) is None
    found.close()
    assert len(begun) <= AHEAD


def test_a_process_that_ends_can_still_read_all_users():
    script = """
import atexit
from tomldiary.runtime.in_order import in_order
atexit.register(lambda: print(*in_order(str, range(20), "test")))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [*map(str, range(20))], done.stderr
