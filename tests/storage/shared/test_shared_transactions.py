"""Transactions of several machines: no update is lost, none is applied twice, and one state is seen."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import pytest

import engines
from capabilities import needs_fork
from counted_requests import Counting
from tomldiary import Diary
from tomldiary.agents.verbs import MemoryVerbs
from tomldiary.errors import BackendError, IdentifierError, RevisionConflict
from tomldiary.history.record import Record, render_record
from tomldiary.runtime.sources import HOOKS, QUEUE
from tomldiary.storage.protocol import Commit
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.database import (
    RESERVED,
    DatabaseLost,
    Head,
    Step,
    outcome,
    unreachable,
)
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore
from tomldiary.writer.attempts import lost_database
from tomldiary_pydantic_ai.memory_document import AgentMemory


def texts(diary):
    return sorted(item.text for item in diary.user("alice").preferences("likes").values())


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


def test_a_commit_over_another_state_changes_nothing(opened):
    backend = opened()
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    before, token = alice.document("preferences"), backend.token("alice", "preferences")
    for version, seq in ((None, 2), (token, 9)):
        commit = Commit({"preferences": b""}, {"preferences": version}, [f"[[tx]]\nseq = {seq}\n"])
        with pytest.raises(RevisionConflict), backend.lock("alice", 1):
            backend.commit("alice", commit)
    assert alice.document("preferences") == before


def test_a_commit_fails_if_a_hidden_document_that_it_read_has_changed(opened):
    backend = opened()
    Diary(backend, agent="rules").user("alice").upsert_preference("likes", "tea")
    commit = Commit({"blocks": b"x = 1\n"}, {"blocks": None}, ["[[tx]]\nseq = 2\n"])
    with backend.lock("alice", 1):
        backend.hidden("alice", QUEUE)
        opened().change_hidden("alice", QUEUE, lambda *_: "a turn\n")
        with pytest.raises(RevisionConflict):
            backend.commit("alice", commit)
    assert backend.kinds("alice") == ["preferences"]


def test_a_hidden_document_that_changes_while_it_is_read_is_read_again(opened):
    backend, elsewhere = opened(), opened()
    elsewhere.change_hidden("alice", QUEUE, lambda *_: "a")
    read, calls = backend.database.read, iter([lambda text, _: f"{text}b"])

    def overtaken(user, kinds):
        for change in calls:
            elsewhere.change_hidden("alice", QUEUE, change)
        return read(user, kinds)

    backend.database.read, backend.transactions.timeout = overtaken, 2.0
    backend.change_hidden("alice", QUEUE, lambda text, _: f"{text}c")
    assert elsewhere.hidden("alice", QUEUE) == "abc"


def test_a_block_is_refused_if_a_hand_edit_was_stored_meanwhile(opened):
    backend, elsewhere = opened(), opened()
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    stored = elsewhere.read("alice", "preferences")
    edited = stored.text.replace("tea", "rum")
    backend.transactions.database = database = Counting(backend.database)
    versions = iter([stored.token])

    def edit():
        for version in versions:
            elsewhere.save_edit("alice", "preferences", edited, version=version)

    database.before = edit

    def overtaken():
        with alice.transaction():
            alice.upsert_preference("likes", "coffee")

    with pytest.raises(RevisionConflict):
        overtaken()
    assert elsewhere.read("alice", "preferences").text == edited


@pytest.mark.parametrize("ends_old", [False, True])
def test_a_block_is_not_refused_for_what_it_does_not_read(opened, ends_old):
    backend, elsewhere = opened(), opened()
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    backend.transactions.database = database = Counting(backend.database)
    kinds = iter([QUEUE, HOOKS])

    def overtake():
        for kind in itertools.islice(kinds, 1):
            elsewhere.change_hidden("alice", kind, lambda text, _: f"{text}x")

    database.before = overtake
    with alice.transaction(session_id="s"):
        alice.upsert_preference("likes", "coffee")
        if ends_old:  # from then on, a refused transaction makes other writers wait
            time.sleep(1.1)
    assert next(kinds, None) is None
    assert [item.text for item in alice.preferences("likes").values()] == ["tea", "coffee"]
    assert [entry.seq for entry in alice.history()] == [2, 1]
    assert RESERVED not in elsewhere.versions("alice")


def test_a_block_is_refused_if_a_queue_that_it_read_has_changed(opened):
    backend, elsewhere = opened(), opened()
    alice = Diary(backend, agent="rules").user("alice")

    def overtaken():
        with alice.transaction(session_id="s"):
            alice.upsert_preference("likes", "coffee")
            backend.hidden("alice", QUEUE)
            elsewhere.change_hidden("alice", QUEUE, lambda text, _: f"{text}x")

    with pytest.raises(RevisionConflict):
        overtaken()
    assert alice.history() == []


def verbs(alice):
    """What an agent's tools call, with the id of the call."""
    return MemoryVerbs(alice, "s", "call-1", epoch=alice.epoch)


def notes(alice, call=""):
    return AgentMemory(alice, "pilot", "MEMORY.md", operation_id=call)


@pytest.mark.parametrize(
    "call",
    [
        lambda alice: alice.rollback(),
        lambda alice: verbs(alice).remember("juice", "likes"),
        lambda alice: verbs(alice).update("likes/pref001", "juice"),
        lambda alice: verbs(alice).forget("likes/pref001"),
        lambda alice: notes(alice, "call-1").update("old", "new"),
    ],
    ids=["rollback", "remember", "update", "forget", "notes"],
)
def test_a_single_call_is_run_again_if_another_machine_is_faster(opened, call):
    backend = opened()
    alice, elsewhere = (Diary(each, agent="rules").user("alice") for each in (backend, opened()))
    alice.upsert_preference("likes", "tea")
    notes(alice).write("old notes")
    backend.transactions.database = database = Counting(backend.database)

    def write():
        database.before = lambda: None
        elsewhere.upsert_preference("goals", "a garden")

    database.before = write
    answer = call(alice)
    assert [change.seq for change in alice.history(limit=2)] == [4, 3], answer


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
    backend.transactions.database = Unreliable(backend.database)
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    backend.database.loses = loses
    alice.upsert_preference("likes", "coffee")
    assert backend.database.loses == []
    assert [item.text for item in alice.preferences("likes").values()] == ["tea", "coffee"]
    assert [entry.seq for entry in alice.history()] == [2, 1]


@pytest.mark.parametrize(("loses", "calls"), [("before", [""]), ("after", [""])])
def test_a_hidden_document_is_changed_if_a_connection_breaks(opened, loses, calls):
    backend, found = opened(), []
    backend.transactions.database = Unreliable(backend.database)
    backend.database.loses = [loses]
    backend.change_hidden("alice", ".list", lambda text, _: found.append(text) or "a")
    assert backend.hidden("alice", ".list") == "a"
    assert found == calls


@pytest.mark.parametrize("growth", [7, 8], ids=["same growth", "another growth"])
def test_a_hidden_document_is_changed_after_the_step_of_another_process(opened, growth):
    backend, found = opened(), []
    apply = backend.database.apply

    def refused(user, head, step):
        backend.database.apply = apply
        apply(user, head, Step({".list": "theirs"}, growth=growth))
        step.growth = 7
        raise DatabaseLost("broken")

    backend.database.apply = refused
    backend.change_hidden("alice", ".list", lambda text, _: found.append(text) or "ours")
    assert found == ["", "theirs"]


def test_an_erasure_with_a_lost_answer_is_not_repeated(opened):
    backend = opened()
    backend.transactions.database = Unreliable(backend.database)
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    backend.database.loses = ["after"]
    assert alice.forget(everything=True).entries == 1
    assert (alice.epoch, backend.users()) == (1, [])


@pytest.mark.parametrize("reads", [1, sys.maxsize], ids=["away", "overtaken"])
def test_a_hidden_document_with_a_lost_answer_and_no_later_one_is_unknown(opened, reads):
    backend, other = opened(), opened()
    backend.transactions.timeout = 0.2
    apply, read, left = backend.database.apply, backend.database.head, iter(range(reads))

    def overtaken(user, head, step):
        backend.database.apply, backend.database.head = lambda *_: None, limited
        apply(user, head, step)
        other.change_hidden("alice", ".other", lambda text, _: f"{text}b")
        raise DatabaseLost("broken")

    def limited(user, known=None):
        if next(left, None) is None:
            raise DatabaseLost("away")
        return read(user, known)

    backend.database.apply = overtaken
    with pytest.raises(BackendError, match="unknown whether the change is stored") as caught:
        backend.change_hidden("alice", ".list", lambda text, _: f"{text}a")
    assert (lost_database(caught.value) is None) == (reads > 1)
    backend.database.head = read
    assert backend.hidden("alice", ".list") == "a"


def test_a_step_is_refused_if_a_program_without_revisions_wrote_meanwhile():
    class Overwritten:
        """The document has another version, and the user's revision is the same."""

        def head(self, user):
            return Head(3, versions={"blocks": 9})

        def apply(self, user, head, step):
            raise AssertionError("it would be refused for ever")

    step = Step({"blocks": "x = 1\n"})
    before = Head(3, versions={"blocks": 8})
    assert outcome(Overwritten(), 1.0, "alice", before, step, DatabaseLost("broken")) is None


@pytest.mark.parametrize(
    ("reason", "checked"),
    [
        ("SSL error: certificate verify failed", "certificates"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "certificates"),
        ("SSL SYSCALL error: EOF detected", "server runs"),
        ("SSL error: unexpected eof while reading", "server runs"),
    ],
)
def test_the_remedy_of_a_lost_connection_names_no_certificate(reason, checked):
    assert checked in str(unreachable("postgresql://h/x", DatabaseLost(reason)))


def test_a_lost_answer_is_told_from_the_step_of_another_process():
    """Clocks of some systems have coarse steps, so both steps may have the same time."""
    ours, theirs = (
        render_record(Record(2, "upsert", [], {}, {}, time="2026-11-30T00:00:00.000000+00:00", reason=reason))
        for reason in ("ours", "theirs")
    )  # fmt: skip

    class Overtaken:
        """Another step follows the same state."""

        def head(self, user):
            return Head(4, epoch=1, record=theirs)

        def records(self, user, before, limit):
            return [(2, theirs)]

    step = Step({"blocks": "x = 1\n"}, records=[(2, ours)])
    lost = DatabaseLost("broken")
    assert outcome(Overtaken(), 1.0, "alice", Head(3, epoch=1), step, lost) is None


def test_an_unknown_outcome_keeps_the_remedy_of_a_refused_request():
    class Refusing:
        def head(self, _user):
            raise BackendError("may not be read. Grant it.") from ValueError("of the driver")

    step, lost = Step({"blocks": "x = 1\n"}), DatabaseLost("broken")
    with pytest.raises(BackendError, match="unknown whether the change is stored") as raised:
        outcome(Refusing(), 1.0, "alice", Head(3, epoch=1), step, lost)
    assert "Grant it." in str(raised.value.__cause__)


def test_a_step_that_is_applied_at_the_end_of_the_timeout_has_a_known_outcome(opened):
    database = opened().database
    head, lost = database.head("alice"), DatabaseLost("broken")
    found = outcome(database, 0.0, "alice", head, Step({"blocks": "x = 1\n"}), lost)
    assert found == database.head("alice").versions


def test_a_lost_answer_does_not_hide_what_was_written_behind_it(opened):
    backend = opened()
    backend.transactions.database = Unreliable(backend.database)
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
    backend.transactions.database = Unreliable(backend.database)
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


def pruned_after(*more):
    def prune(two):
        for text in more:
            two.upsert_preference("likes", text)
        two.prune_history(keep=1)

    return prune


@pytest.mark.parametrize(
    "cut",
    [
        lambda two: two.forget(everything=True),
        lambda two: two.forget(matching="tea"),
        pruned_after("milk"),  # the snapshot has the number of the lost record
        pruned_after("milk", "water"),
    ],
    ids=["forget all", "forget a part", "prune", "prune more"],
)
def test_a_lost_answer_before_another_process_cuts_history_is_unknown(opened, cut):
    backend = opened()
    one, two = (Diary(each, agent="rules").user("alice") for each in (backend, opened()))
    one.upsert_preference("likes", "tea")
    apply = backend.database.apply

    def lost(user, head, step):
        backend.database.apply = apply
        apply(user, head, step)
        cut(two)
        raise DatabaseLost("broken")

    backend.database.apply = lost
    with pytest.raises(BackendError, match="unknown whether the change is stored"):
        one.upsert_preference("likes", "coffee")
    counts = {item.text: item.count for item in two.preferences("likes").values()}
    assert counts.get("coffee", 1) == 1
    assert "coffee" in counts or not counts


def test_a_step_of_unknown_outcome_says_so(opened):
    backend = opened()
    backend.transactions.timeout = 0.2
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    database = backend.database

    class Gone(Unreliable):
        def apply(self, user, head, step):
            self.head = self.lost
            raise DatabaseLost("broken")

        def lost(self, user, kinds=()):
            raise DatabaseLost("broken")

    backend.transactions.database = Gone(database)
    with pytest.raises(BackendError, match="unknown whether the change is stored"):
        alice.upsert_preference("likes", "coffee")
    backend.transactions.database = database
    assert len(alice.history()) == 1


def test_many_other_users_do_not_make_an_unconfirmed_write_a_stored_one(opened):
    class Unconfirmed(Unreliable):
        def touch(self, _user):
            raise DatabaseLost("replica away")

    def write():
        alice.add_turn("I love tea.", "Noted.", session_id="s", operation_id="turn")

    backend = opened()
    backend.transactions.timeout = 0.2
    backend.transactions.database = database = Unconfirmed(backend.database)
    alice, database.loses = Diary(backend, agent="rules").user("alice"), ["after"]
    with pytest.raises(BackendError, match="unknown whether the change is stored"):
        write()
    for number in range(2000):
        backend.transactions.heads.of(f"user {number}")
    with pytest.raises(BackendError, match="replica away"):
        write()  # finds its operation id, and changes nothing


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


@pytest.mark.parametrize("verb", ["save", "delete", "delete_user"])
def test_an_async_verb_is_repeated_if_another_machine_is_faster(opened, verb):
    backend, elsewhere = opened(), Diary(opened(), agent="rules").user("alice")
    elsewhere.upsert_preference("likes", "tea")
    backend.transactions.database = database = Counting(backend.database)

    def write():
        database.before = lambda: None
        elsewhere.upsert_preference("likes", "coffee")

    database.before = write
    content = '[preferences.likes.pref001]\ntext = "juice"\n'
    arguments = {"save": ["preferences", content], "delete": ["preferences"], "delete_user": []}
    asyncio.run(getattr(backend, verb)("alice", *arguments[verb]))
    stored = asyncio.run(opened().load("alice", "preferences"))
    assert stored == (content if verb == "save" else None)
    assert opened().epoch("alice") == (verb == "delete_user")


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


@needs_fork
def test_a_forked_child_waits_for_no_lock_of_the_client_of_redis():
    diary = Diary(engines.space("redis").backend(), agent="rules")
    diary.user("alice").upsert_preference("likes", "tea")
    lock = diary.engine.backend.database._client.connection_pool._lock
    with ThreadPoolExecutor(1) as other:
        other.submit(lock.acquire).result()
        child = os.fork()
        if not child:
            signal.alarm(20)
            found = []
            try:
                found = texts(diary)
            finally:
                os._exit(0 if found == ["tea"] else 1)
        other.submit(lock.release).result()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    diary.engine.backend.close()


@needs_fork
@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_a_thread_of_a_forked_child_is_in_no_transaction_of_its_parent(name):
    space = engines.space(name)
    diary, other = (Diary(space.backend(), agent="rules") for _ in range(2))
    other.user("alice").upsert_preference("likes", "tea")
    begun, ended = threading.Event(), threading.Event()

    def change():
        with diary.user("alice").transaction():
            texts(diary)
            begun.set()
            assert ended.wait(60)

    thread = threading.Thread(target=change)
    thread.start()
    assert begun.wait(60)
    child = os.fork()
    if not child:
        found = []
        try:
            other.user("alice").upsert_preference("likes", "coffee")
            # It gets the identifier of the parent's thread, which is free here.
            reader = threading.Thread(target=lambda: found.append(texts(diary)))
            reader.start()
            reader.join()
        finally:
            os._exit(0 if found == [["coffee", "tea"]] else 1)
    status = os.waitpid(child, 0)[1]
    ended.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    for each in (diary, other):
        each.engine.backend.close()


def test_a_snapshot_may_replace_the_newest_record(opened):
    database = opened().database
    first, snapshot = "[[tx]]\nseq = 1\n", '[[tx]]\nseq = 1\ntype = "snapshot"\n'
    head = database.apply("alice", database.head("alice"), Step(records=[(1, first)]))
    head = database.apply("alice", head, Step(records=[(1, snapshot)], dropped=1))
    assert head.record == database.head("alice").record == snapshot


def test_a_user_of_whom_only_history_is_left_can_be_erased(opened):
    backend = opened()
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    for _ in range(2):
        backend.erase("alice", "preferences")
    assert backend.kinds("alice") == []
    alice.forget(everything=True)
    assert [*backend.records("alice")] == []


def test_a_user_id_that_no_database_can_store_is_refused(opened):
    alice = Diary(opened(), agent="rules").user("a\ud800b")
    backend = opened()
    for call in (
        alice.preferences,
        alice.history,
        lambda: alice.blocks.set("persona", "x"),
        lambda: backend.read("a\ud800b", "preferences"),
        lambda: [*backend.records("a\ud800b")],
    ):
        with pytest.raises(IdentifierError, match="cannot store"):
            call()
    with pytest.raises(IdentifierError):
        backend.read("", "preferences")


def test_user_ids_with_control_characters_stay_apart(opened):
    users = ["a\0b", "a\1b", "a\1\1b", "a\1\2b", "a\1\0b", "\1", "\0"]
    diary = Diary(opened(), agent="rules")
    for user in users:
        diary.user(user).blocks.set("name", repr(user))
    again = Diary(opened())
    assert again.users() == sorted(users)
    assert [again.user(user).blocks["name"].text for user in users] == [*map(repr, users)]
    again.user("a\0b").forget(everything=True)
    assert sorted(set(users) - {"a\0b"}) == diary.users()
    assert diary.backend.erased_users() == ["a\0b"]


def test_namespaces_without_an_owner_are_shared_by_all_machines(opened):
    one, two = (ItemStore(Diary(opened(), agent="rules"), user_label=None) for _ in range(2))
    one.run([Put(("docs", "alice"), "k", {"text": "a shared page"})])
    [items] = two.run([Search(("docs",), query="page")])
    assert [item.value for item in items] == [{"text": "a shared page"}]
    assert two.diary.users() == []
    two.run([Put(("docs", "alice"), "k", {"text": "another page"})])
    [items] = one.run([Search(("docs",))])
    assert [item.value for item in items] == [{"text": "another page"}]
