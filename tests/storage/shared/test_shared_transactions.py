"""Transactions of several machines: no update is lost, none is applied twice, and one state is seen."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from copy import copy

import pytest

import engines
from capabilities import needs_fork
from processes import STRICT
from tomldiary import Diary
from tomldiary.errors import BackendError, OperationConflict, RevisionConflict
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.database import DatabaseLost

UPDATES = 60
CLIENT = """
import sys
from tomldiary import Diary

url, name, count = sys.argv[1:]
alice = Diary(url, agent="rules", max_prefs_per_category=1000).user("alice")
for number in range(int(count)):
    alice.upsert_preference("likes", f"{name} has thing {number}", operation_id=f"{name}-{number}")
    print(number, flush=True)
"""


def client(engine, name, count=UPDATES):
    command = [sys.executable, *STRICT, "-c", CLIENT, engine.url, name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def texts(diary):
    return sorted(item.text for item in diary.user("alice").preferences("likes").values())


def test_two_processes_lose_no_update_and_apply_none_twice(engine, opened):
    clients = [client(engine, name) for name in "ab"]
    for each in clients:
        each.communicate(timeout=120)
        assert each.returncode == 0
    diary = Diary(opened(), agent="rules")
    assert texts(diary) == sorted(
        f"{name} has thing {number}" for name in "ab" for number in range(UPDATES)
    )
    assert [entry.seq for entry in diary.user("alice").history(limit=1000)] == list(
        range(2 * UPDATES, 0, -1)
    )


def test_a_killed_client_loses_nothing_acknowledged(engine, opened):
    killed, other = client(engine, "a"), client(engine, "b")
    acknowledged = [killed.stdout.readline() for _ in range(10)]
    killed.send_signal(signal.SIGKILL)
    acknowledged += killed.communicate()[0].splitlines()
    other.communicate(timeout=120)
    diary = Diary(opened(), agent="rules")
    kept = [text for text in texts(diary) if text.startswith("a ")]
    assert len(acknowledged) <= len(kept) <= len(acknowledged) + 1
    again = client(engine, "a")
    again.communicate(timeout=120)
    assert again.returncode == 0
    assert len(texts(diary)) == 2 * UPDATES
    assert len({*texts(diary)}) == 2 * UPDATES


def test_a_write_of_another_backend_is_seen_at_once(opened):
    one, two = (Diary(opened(), agent="rules").user("alice") for _ in range(2))
    for number in range(5):
        key, _ = one.upsert_preference("likes", f"drink number {number}")
        assert two.preferences("likes")[key].text == f"drink number {number}"
        assert two.recall(f"drink number {number}", limit=1)[0].text == f"drink number {number}"


def test_a_block_whose_user_was_changed_elsewhere_is_refused(opened):
    one, two = (Diary(opened(), agent="rules").user("alice") for _ in range(2))
    one.upsert_preference("likes", "tea")

    def overtaken():
        with one.transaction() as transaction:
            transaction.upsert_preference("likes", "coffee")
            two.upsert_preference("dislikes", "milk")

    with pytest.raises(RevisionConflict):
        overtaken()
    assert [item.text for item in one.preferences("likes").values()] == ["tea"]
    with one.transaction() as transaction:
        transaction.upsert_preference("likes", "coffee")
    assert [item.text for item in two.preferences("likes").values()] == ["tea", "coffee"]


def test_a_change_is_made_again_on_fresh_state(opened):
    one, two = (Diary(opened(), agent="rules").user("alice") for _ in range(2))
    one.blocks.set("log", "")
    barrier = threading.Barrier(2)

    def append(user, name):
        barrier.wait()
        for number in range(20):
            user.blocks.append("log", f"{name}{number}\n")

    threads = [threading.Thread(target=append, args=each) for each in ((one, "a"), (two, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = one.blocks.get("log").text.split()
    for name in "ab":
        assert [line for line in lines if line[0] == name] == [
            f"{name}{number}" for number in range(20)
        ]


def test_an_operation_id_counts_across_backends(opened):
    one, two = (Diary(opened(), agent="rules").user("alice") for _ in range(2))
    for user in (one, two, one):
        user.upsert_preference("likes", "tea", operation_id="op-1")
    assert len(two.history()) == 1
    with pytest.raises(OperationConflict):
        two.upsert_preference("likes", "coffee", operation_id="op-1")


class Unreliable:
    """A database that loses the connection before or after it applies a step."""

    def __init__(self, database):
        self._database = database
        self.loses = []

    def __getattr__(self, name):
        return getattr(self._database, name)

    def __str__(self):
        return str(self._database)

    def apply(self, user, head, step):
        how = self.loses.pop(0) if self.loses else ""
        if how == "before":
            raise DatabaseLost("broken")
        done = self._database.apply(user, head, step)
        if how == "after":
            raise DatabaseLost("broken")
        return done


@pytest.mark.parametrize(
    "loses", [["before"], ["after"], ["before", "before"], ["before", "after"]]
)
def test_a_broken_connection_leaves_each_step_applied_once(opened, loses):
    backend = opened()
    backend.database = Unreliable(backend.database)
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    backend.database.loses = loses
    alice.upsert_preference("likes", "coffee")
    assert backend.database.loses == []
    assert [item.text for item in alice.preferences("likes").values()] == ["tea", "coffee"]
    assert [entry.seq for entry in alice.history()] == [2, 1]


def test_a_lost_answer_is_told_from_the_step_of_another_process(opened):
    backend = opened()
    backend.database = Unreliable(backend.database)
    one, two = (
        Diary(backend, agent="rules").user("alice"),
        Diary(opened(), agent="rules").user("alice"),
    )
    one.upsert_preference("likes", "tea")
    apply = backend.database.apply

    def overtaken(user, head, step):
        backend.database.apply = apply
        two.upsert_preference("likes", "milk")
        raise DatabaseLost("broken")

    backend.database.apply = overtaken
    one.upsert_preference("likes", "coffee")
    assert sorted(item.text for item in one.preferences("likes").values()) == [
        "coffee",
        "milk",
        "tea",
    ]
    assert len(one.history()) == 3


def test_a_lost_answer_does_not_hide_what_was_written_behind_it(opened):
    backend = opened()
    backend.database = Unreliable(backend.database)
    one = Diary(backend, agent="rules").user("alice")
    two = Diary(opened(), agent="rules").user("alice")
    one.upsert_preference("likes", "tea")
    apply = backend.database.apply

    def lost(user, head, step):
        backend.database.apply = apply
        apply(user, head, step)
        two.upsert_preference("likes", "milk")
        raise DatabaseLost("broken")

    backend.database.apply = lost
    one.upsert_preference("likes", "coffee")
    assert [item.text for item in one.preferences("likes").values()] == ["tea", "coffee", "milk"]
    one.upsert_preference("likes", "water")
    assert len(two.preferences("likes")) == 4


def test_a_slow_first_attempt_is_not_repeated(opened):
    backend = opened()
    backend.database = Unreliable(backend.database)
    alice = Diary(backend, agent="rules").user("alice")
    alice.blocks.set("log", "a")
    apply, late = backend.database.apply, []

    def slow(user, head, step):
        if not late:
            late.append(step)
            raise DatabaseLost("timed out, and the server is still at it")
        backend.database.apply = apply
        apply(user, copy(head), step)  # the first attempt, just now
        return apply(user, head, step)

    backend.database.apply = slow
    alice.blocks.append("log", "b")
    assert alice.blocks.get("log").text == "a\nb"
    assert len(alice.history()) == 2


def test_a_step_of_unknown_outcome_says_so(opened):
    backend = opened(timeout=0.2)
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    database = backend.database

    class Gone(Unreliable):
        def apply(self, user, head, step):
            self.head = self.lost
            raise DatabaseLost("broken")

        def lost(self, user, kinds=()):
            raise DatabaseLost("broken")

    backend.database = Gone(database)
    with pytest.raises(BackendError, match="unknown whether the change is stored"):
        alice.upsert_preference("likes", "coffee")
    backend.database = database
    assert len(alice.history()) == 1


def test_a_shared_backend_says_what_it_can_do(opened):
    stats = Diary(opened(), agent="rules").stats()
    assert (stats["is_atomic"], stats["is_shared"], stats["durability"]) == (True, True, "full")
    assert isinstance(opened(), SharedBackend)


def test_saves_of_two_machines_leave_the_last_one_whole(opened):
    backends = [opened(), opened()]
    contents = [f'[preferences.likes.pref001]\ntext = "{number}"\n' for number in range(10)]

    async def save_all():
        saves = [
            backends[n % 2].save("alice", "preferences", each) for n, each in enumerate(contents)
        ]
        await asyncio.gather(*saves)

    asyncio.run(save_all())
    assert asyncio.run(backends[0].load("alice", "preferences")) in contents
    assert len(list(backends[0].records("alice"))) == 10


@needs_fork
@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_a_forked_child_has_connections_of_its_own(name):
    backend = engines.space(name).backend()
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    for number in range(3):
        child = os.fork()
        if not child:
            try:
                alice.upsert_preference("likes", f"drink {number}")
            finally:
                os._exit(0)
        alice.upsert_preference("dislikes", f"dish {number}")
        os.waitpid(child, 0)
        alice.upsert_preference("dislikes", f"meal {number}")
    assert texts(Diary(backend)) == ["drink 0", "drink 1", "drink 2", "tea"]
    assert len(alice.preferences("dislikes")) == 6
    backend.close()
