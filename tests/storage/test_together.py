"""Changes that wait for one user are stored with one commit, and each is a transaction with a fate of its own."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import shutil
import tempfile
import threading
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from langgraph.store.base import GetOp, PutOp
from test_failing_files import CODES, OTHERS, SHORT, WRITES, Faults

from power_cuts import Recorder, crash_states, left_over, materialise
from processes import close
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.engine.engine import Source
from tomldiary.engine.group_commit import Work, write_together
from tomldiary.errors import BackendError, CommittedUnpublished, Conflict, LockTimeout
from tomldiary.history import verify as verification
from tomldiary.history.record import parse_record
from tomldiary.storage.local import checkpoint as settling
from tomldiary.storage.local import log_reader as records_module
from tomldiary.storage.local import log_segments as segments
from tomldiary.storage.local import publish as staging
from tomldiary.storage.local import session as opened_users
from tomldiary.storage.protocol import Commit
from tomldiary.store.async_batching import Gathering
from tomldiary.toml import guards
from tomldiary_langgraph import DiaryStore

NS = ("alice", "memories")


@pytest.fixture(params=["memory:", "folder"])
def diary(request, disk):
    return Diary(disk / "m" if request.param == "folder" else request.param, agent="rules")


@pytest.fixture
def commits(monkeypatch):
    """What is stored, commit by commit."""
    made = []
    real = LocalBackend.commit

    def commit(self, user, commit):
        made.append([parse_record(text) for text in commit.records])
        return real(self, user, commit)

    monkeypatch.setattr(LocalBackend, "commit", commit)
    return made


def work(kind, key, value, *, session="", raises=None):
    def change(tx):
        tx.edit(kind).put(("entries", key), {"n": value})
        if raises is not None:
            raise raises

    return Work(change, Source("put", session))


def entries(diary, kind, user="alice"):
    table = diary.engine.document(user, kind).table(("entries",)) or {}
    return {key: entry["n"] for key, entry in table.items()}


def records(diary, user="alice"):
    return [parse_record(text) for text in diary.engine.backend.records(user)][::-1]


def together(diary, *works, user="alice"):
    write_together(diary.engine, user, works)
    return [each.error for each in works]


# Each is a transaction


def test_changes_stored_together_are_transactions_of_their_own(diary):
    assert together(diary, work("items/a", "before", 0)) == [None]
    errors = together(
        diary,
        work("items/a", "x", 1, session="s1"),
        work("items/b", "y", 2, session="s2"),
        work("items/b", "z", 3, session="s3"),
    )
    assert errors == [None] * 3
    found = records(diary)
    assert [each.seq for each in found] == [1, 2, 3, 4]
    assert [each.session for each in found] == ["", "s1", "s2", "s3"]
    assert [list(each.results) for each in found[1:]] == [["items/a"], ["items/b"], ["items/b"]]
    assert [each.group for each in found] == [0, 0, 2, 2]
    assert entries(diary, "items/b") == {"y": 2, "z": 3}
    assert verification.verify(diary.engine.backend, "alice") is None
    alice = diary.user("alice")
    assert "entries.y" not in alice.as_of(2).document("items/b")
    assert "entries.y" in alice.as_of(3).document("items/b")
    assert "entries.z" not in alice.as_of(3).document("items/b")
    alice.rollback(1)
    assert entries(diary, "items/b") == {"y": 2}
    alice.rollback(session_id="s1")
    assert entries(diary, "items/a") == {"before": 0}
    assert entries(diary, "items/b") == {"y": 2}


def test_each_sees_what_those_before_it_did(diary):
    seen = []

    def count(tx):
        table = tx.edit("items/a").table(("entries", "n")) or {"n": 0}
        seen.append(table["n"])
        assert (tx.document("items/a").table(("entries", "n")) or {"n": 0}) == table
        tx.edit("items/a").put(("entries", "n"), {"n": table["n"] + 1})

    assert together(diary, *[Work(count, Source("put")) for _ in range(5)]) == [None] * 5
    assert seen == [0, 1, 2, 3, 4]
    assert entries(diary, "items/a") == {"n": 5}


def test_one_that_raises_is_left_out_alone(diary):
    bad = ValueError("no")
    errors = together(
        diary,
        work("items/a", "x", 1),
        work("items/a", "bad", 2, raises=bad),
        work("items/new", "bad", 2, raises=bad),
        work("items/a", "y", 3),
    )
    assert errors == [None, bad, bad, None]
    assert entries(diary, "items/a") == {"x": 1, "y": 3}
    assert diary.engine.kinds("alice") == ["items/a"]
    assert [each.seq for each in records(diary)] == [1, 2]
    assert together(diary, *[work("items/a", "bad", 2, raises=bad)] * 2) == [bad, bad]
    assert len(records(diary)) == 2


def test_one_too_large_is_left_out_alone(diary, monkeypatch):
    monkeypatch.setattr(guards, "MAX_BYTES", 5000)
    large = Work(
        lambda tx: tx.edit("items/a").put(("entries", "large"), {"n": "x" * 6000}),
        Source("put"),
    )
    errors = together(diary, work("items/a", "x", 1), large, work("items/a", "y", 2))
    assert [type(error).__name__ for error in errors] == ["NoneType", "UnsafeDocument", "NoneType"]
    assert entries(diary, "items/a") == {"x": 1, "y": 2}


# Of an event loop


def gathered(store, *puts):
    """Put all in one tick; returns what each met."""

    async def run():
        calls = [store.aput(*put) for put in puts]
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


def test_puts_of_one_tick_are_few_commits_and_a_transaction_each(disk, commits):
    store = DiaryStore(Diary(disk / "m", agent="rules"))
    puts = [((*NS, f"n{n % 7}"), f"k{n}", {"n": n}) for n in range(300)]
    assert gathered(store, *puts) == [None] * 300
    assert [len(each) for each in commits] == [256, 44]
    assert gathered(store, *puts) == [None] * 300
    assert [len(each) for each in commits[2:]] == [212, 44, 44]  # a window of history ends at 512
    assert [each.seq for each in records(store.diary)] == list(range(1, 601))
    assert all(store.get(namespace, key).value == value for namespace, key, value in puts)
    assert verification.verify(store.diary.engine.backend, "alice") is None


def test_puts_of_one_key_count_in_the_order_they_were_asked_for(diary):
    store = DiaryStore(diary)
    assert gathered(store, *[(NS, "k", {"n": n}) for n in range(20)]) == [None] * 20
    item = store.get(NS, "k")
    assert item.value == {"n": 19}
    assert item.created_at < item.updated_at
    diary.user("alice").rollback(1)
    assert store.get(NS, "k").value == {"n": 18}


def test_a_bad_put_in_a_tick_is_refused_alone(diary):
    store = DiaryStore(diary)
    met = gathered(
        store,
        (NS, "a", {"n": 1}),
        (NS, "b", {"n": {1, 2}}),
        (("alice", "x.y"), "c", {"n": 3}),
        ((), "d", {"n": 4}),
        (NS, "e\ud800", {"n": 5}),
        (NS, "f", {"n": 6}),
    )
    assert [isinstance(each, ValueError) for each in met] == [False, True, True, True, True, False]
    assert met[0] is met[-1] is None
    assert sorted(item.key for item in store.search(("alice",))) == ["a", "f"]


def test_a_delete_and_a_put_of_one_tick_do_what_they_would_do_apart(diary):
    store = DiaryStore(diary)
    store.put(NS, "old", {"n": 1})

    async def run():
        await asyncio.gather(
            store.adelete(NS, "old"), store.aput(NS, "old", {"n": 2}), store.adelete(NS, "none")
        )
        first = store.get(NS, "old")
        await asyncio.gather(store.aput(NS, "old", {"n": 3}), store.adelete(NS, "old"))
        return first

    first = asyncio.run(run())
    assert first.value == {"n": 2}
    assert store.get(NS, "old") is None
    assert len(records(diary)) == 5


def test_batches_of_a_tick_that_read_or_go_elsewhere_are_run_as_ever(diary):
    store = DiaryStore(diary)

    async def run():
        return await asyncio.gather(
            store.abatch([PutOp(NS, "a", {"n": 1}), PutOp(NS, "b", {"n": 2})]),
            store.abatch([PutOp(("bo", "x"), "c", {"n": 3}), PutOp(NS, "d", {"n": 4})]),
            store.abatch([GetOp(NS, "zz"), PutOp(NS, "e", {"n": 5})]),
            store.abatch([PutOp(("alice", "diary", "blocks"), "persona", {"text": "kind"})]),
            store.abatch([]),
        )

    assert asyncio.run(run()) == [[None, None], [None, None], [None, None], [None], []]
    assert sorted(item.key for item in store.search(NS)) == ["a", "b", "d", "e"]
    assert store.get(("bo", "x"), "c").value == {"n": 3}
    assert diary.user("alice").blocks()["persona"].text == "kind"


def test_puts_inside_a_transaction_are_part_of_it(diary):
    store = DiaryStore(diary)

    async def run():
        with suppress(KeyError):
            async with diary.user("alice").atransaction():
                await store.aput(NS, "a", {"n": 1})
                assert (await store.aget(NS, "a")).value == {"n": 1}
                raise KeyError
        async with diary.user("alice").atransaction():
            await store.aput(NS, "b", {"n": 1})
            await store.aput(NS, "c", {"n": 2})

    asyncio.run(run())
    assert sorted(item.key for item in store.search(NS)) == ["b", "c"]
    assert len(records(diary)) == 1


def test_forgetting_the_session_of_one_put_takes_nothing_of_the_others(disk):
    store = DiaryStore(Diary(disk / "m", agent="rules"))
    items = store._items

    async def run():
        puts = [PutOp(NS, f"k{n}", {"text": f"walnut {n}"}) for n in range(4)]
        await asyncio.gather(
            *(
                items.aput("alice", functools.partial(store._prepared, [put], None), f"s{n}")
                for n, put in enumerate(puts)
            )
        )

    asyncio.run(run())
    assert [each.session for each in records(store.diary)] == ["s0", "s1", "s2", "s3"]
    store.diary.user("alice").forget(session_id="s2")
    assert sorted(item.key for item in store.search(NS)) == ["k0", "k1", "k3"]
    assert verification.verify(store.diary.engine.backend, "alice") is None
    files = [path.read_bytes() for path in (disk / "m").rglob("*") if path.is_file()]
    assert not any(b"walnut 2" in data for data in files)


def test_a_user_whose_lock_is_held_keeps_nobody_else_waiting(disk):
    store = DiaryStore(Diary(disk / "m", agent="rules"))
    held, free = threading.Event(), threading.Event()

    def hold():
        with store.diary.engine.backend.lock("alice", 5):
            held.set()
            free.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()

    async def run():
        held.wait(10)
        waiting = asyncio.gather(*(store.aput(NS, f"k{n}", {"n": n}) for n in range(40)))
        others = [store.aput((f"user{n}", "x"), "k", {"n": n}) for n in range(3)]
        await asyncio.wait_for(asyncio.gather(*others), 10)
        assert not waiting.done()
        free.set()
        await waiting

    try:
        asyncio.run(run())
    finally:
        free.set()
        thread.join()
    assert len(store.search(NS, limit=100)) == 40


def test_a_cancelled_put_harms_nobody_and_later_ones_are_stored(disk):
    store = DiaryStore(Diary(disk / "m", agent="rules"))

    async def run():
        with store.diary.engine.backend.lock("alice", 5):
            tasks = [asyncio.create_task(store.aput(NS, f"k{n}", {"n": n})) for n in range(3)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            late = [asyncio.create_task(store.aput(NS, f"late{n}", {"n": n})) for n in range(3)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            late[1].cancel()
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks, *late, return_exceptions=True)

    met = asyncio.run(run())
    cancelled = [isinstance(each, asyncio.CancelledError) for each in met]
    assert cancelled == [False, True, False, False, True, False]
    kept = {item.key for item in store.search(NS)} - {"k1"}  # it was under way: done or not
    assert kept == {"k0", "k2", "late0", "late2"}


def test_the_end_of_a_loop_leaves_nobody_waiting():
    begun, free = threading.Event(), threading.Event()

    def run(_user, calls):
        begun.set()
        free.wait(10)
        return [None for _ in calls]

    gathering = Gathering(run)

    async def main():
        task = asyncio.create_task(gathering.done("u", 1))
        await asyncio.to_thread(begun.wait, 10)
        later = asyncio.create_task(gathering.done("u", 2))
        await asyncio.sleep(0)
        (worker,) = {each for each in asyncio.all_tasks() if "_work" in repr(each)}
        worker.cancel()
        free.set()
        async with asyncio.timeout(10):
            return await asyncio.gather(task, later, return_exceptions=True)

    met = asyncio.run(main())
    assert [type(each) for each in met] == [asyncio.CancelledError] * 2
    free.set()

    async def again():
        return await gathering.done("u", 3)

    assert asyncio.run(again()) is None  # another loop, as if nothing had been


def test_an_error_of_a_run_is_told_to_each_of_its_calls():
    def run(_user, calls):
        if "bad" in calls:
            raise LockTimeout("held")
        return [None for _ in calls]

    gathering = Gathering(run)

    async def main():
        first = await asyncio.gather(
            gathering.done("u", "bad"), gathering.done("u", "x"), return_exceptions=True
        )
        return [*first, await gathering.done("u", "y")]

    one, other, none = asyncio.run(main())
    assert type(one) is type(other) is LockTimeout
    assert one is not other
    assert none is None


# Storage and people


def test_they_are_one_commit(disk, commits):
    diary = Diary(disk / "m", agent="rules")
    assert together(diary, *[work("items/a", f"k{n}", n) for n in range(9)]) == [None] * 9
    assert [len(each) for each in commits] == [9]


def test_no_commit_is_in_two_windows(disk, commits, monkeypatch):
    """Nobody would answer then for documents that the first of its transactions changed."""
    monkeypatch.setattr(settling, "WINDOW", 3)
    diary = Diary(disk / "m", agent="rules")
    assert together(diary, *[work("items/a", f"k{n}", n) for n in range(8)]) == [None] * 8
    assert [[record.seq for record in each] for each in commits] == [[1, 2, 3], [4, 5, 6], [7, 8]]
    backend = diary.engine.backend
    texts = list(backend.records("alice"))[::-1]
    with pytest.raises(ValueError, match="transactions 3 to 4"):
        backend.commit("alice", Commit({}, {}, texts[2:4]))
    assert list(backend.records("alice"))[::-1] == texts


@pytest.mark.parametrize("error", [BackendError("full"), CommittedUnpublished("late")])
def test_a_failing_storage_fails_each_with_that_error_and_an_object_of_its_own(
    disk, monkeypatch, error
):
    diary = Diary(disk / "m", agent="rules")
    together(diary, work("items/a", "x", 1))
    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "commit", lambda *_: (_ for _ in ()).throw(error))
        first, second = together(diary, work("items/a", "y", 2), work("items/a", "z", 3))
    assert type(first) is type(second) is type(error)
    assert str(first) == str(second) == str(error)
    assert first is not second
    assert entries(diary, "items/a") == {"x": 1}
    assert together(diary, *[work("items/a", f"k{n}", n) for n in range(2)]) == [None] * 2
    assert entries(diary, "items/a") == {"x": 1, "k0": 0, "k1": 1}


def test_what_is_in_history_though_its_file_could_not_be_replaced_is_read_at_once(
    disk, monkeypatch
):
    diary = Diary(disk / "m", agent="rules")
    together(diary, work("items/a", "x", 1), work("items/a", "y", 2))

    def refused(*_args, **_options):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(staging, "put_in_place", refused)
        met = together(diary, work("items/a", "z", 3), work("items/a", "y", 4))
        assert [type(each) for each in met] == [CommittedUnpublished] * 2
        patch.setattr(
            LocalBackend, "_recover", lambda *_: (_ for _ in ()).throw(BackendError("no"))
        )
        assert entries(diary, "items/a") == {"x": 1, "y": 4, "z": 3}  # nor can it be put right now
    assert entries(diary, "items/a") == {"x": 1, "y": 4, "z": 3}
    assert tomllib.loads((disk / "m/alice/items/a.toml").read_text())["entries"]["y"]["n"] == 4
    assert verification.verify(diary.engine.backend, "alice") is None


def test_a_lock_that_another_keeps_fails_all_and_writes_nothing(disk):
    diary = Diary(disk / "m", agent="rules", lock_timeout=0.05)
    with Diary(disk / "m").engine.backend.lock("alice", 1):
        met = together(diary, work("items/a", "x", 1), work("items/a", "y", 2))
    assert [type(each) for each in met] == [LockTimeout, LockTimeout]
    assert met[0] is not met[1]
    assert records(diary) == []


def test_a_save_of_a_person_between_reading_and_storing_is_kept(disk, monkeypatch):
    diary = Diary(disk / "m", agent="rules")
    together(diary, work("items/a", "x", 1), work("items/a", "y", 2))
    path = disk / "m/alice/items/a.toml"
    real, saves = LocalBackend.commit, []

    def commit(self, user, commit):
        if len(saves) < 2:
            saves.append(path.read_text().replace("n = 1", f"n = 1{len(saves)}"))
            path.write_text(saves[-1])
            os.utime(path, (len(saves), len(saves)))
        return real(self, user, commit)

    monkeypatch.setattr(LocalBackend, "commit", commit)
    assert together(diary, work("items/a", "z", 3), work("items/a", "y", 4)) == [None, None]
    assert entries(diary, "items/a") == {"x": 110, "y": 4, "z": 3}
    assert "hand" in [each.type for each in records(diary)]
    assert verification.verify(diary.engine.backend, "alice") is None


def test_saves_without_end_fail_all_with_a_conflict(disk, monkeypatch):
    diary = Diary(disk / "m", agent="rules")
    together(diary, work("items/a", "x", 1))
    monkeypatch.setattr(
        LocalBackend, "commit", lambda *_: (_ for _ in ()).throw(Conflict("saved again"))
    )
    errors = together(diary, work("items/a", "y", 2), work("items/a", "z", 3))
    assert [type(each) for each in errors] == [Conflict, Conflict]


def test_what_a_person_saved_before_is_stored_first_and_nothing_is_lost(disk):
    diary = Diary(disk / "m", agent="rules")
    together(diary, work("items/a", "x", 1), work("items/a", "y", 2))
    path = disk / "m/alice/items/a.toml"
    path.write_text(path.read_text().replace("n = 1", "n = 100"))
    os.utime(path, (1, 1))
    assert together(diary, work("items/a", "z", 3), work("items/b", "w", 4)) == [None, None]
    assert entries(diary, "items/a") == {"x": 100, "y": 2, "z": 3}
    assert [each.type for each in records(diary)] == ["put", "put", "hand", "put", "put"]
    path.unlink()
    assert together(diary, work("items/b", "v", 5), work("items/a", "z", 6)) == [None, None]
    assert entries(diary, "items/a") == {"z": 6}
    assert verification.verify(diary.engine.backend, "alice") is None


# Looking back at them in another process


@pytest.mark.parametrize("bytes_of_a_segment", [300, 4_000_000])
def test_another_process_finds_them_whole_wherever_they_begin(
    disk, monkeypatch, bytes_of_a_segment
):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", bytes_of_a_segment)
    diary = Diary(disk / "m", agent="rules")
    for number in range(3):
        each = [work("items/a", f"k{number}-{n}", n) for n in range(4)]
        assert together(diary, *each) == [None] * 4
        other = Diary(disk / "m", agent="rules")
        assert len(entries(other, "items/a")) == 4 * (number + 1)
        assert [each.seq for each in records(other)] == list(range(1, 4 * number + 5))
        close(other)
    diary.user("alice").prune_history(keep=2)
    other = Diary(disk / "m", agent="rules")
    assert other.engine.backend.last_record("alice") == diary.engine.backend.last_record("alice")
    assert [each.seq for each in records(other)] == [10, 11, 12]
    assert together(other, work("items/a", "x", 1), work("items/a", "y", 2)) == [None, None]
    assert verification.verify(other.engine.backend, "alice") is None
    assert not list((disk / "m/alice/history").glob("*damaged*"))


def test_damage_to_one_of_the_last_takes_no_entry(disk):
    diary = Diary(disk / "m", agent="rules")
    assert together(diary, *[work("items/a", f"k{n}", n) for n in range(4)]) == [None] * 4
    (path,) = (disk / "m/alice/history").glob("*.toml")
    path.write_bytes(path.read_bytes().replace(b"[entries.k1]", b"[entries.k9]", 1))
    other = Diary(disk / "m", agent="rules")
    assert entries(other, "items/a") == {"k0": 0, "k1": 1, "k2": 2, "k3": 3}
    assert together(other, work("items/a", "x", 1), work("items/a", "y", 2)) == [None, None]
    assert entries(other, "items/a") == {"k0": 0, "k1": 1, "k2": 2, "k3": 3, "x": 1, "y": 2}
    assert list((disk / "m/alice/history").glob("*damaged*"))
    third = Diary(disk / "m", agent="rules")
    assert entries(third, "items/a") == entries(other, "items/a")


# After a crash


def group():
    """Two documents, one of them new, each changed twice."""
    return [
        work("items/a", "x", 2),
        work("items/new", "y", 3),
        work("items/a", "z", "long " * 20),
        work("items/new", "y", 4),
    ]


def states():
    """What a reader may find after each of them."""
    old = {"a": {"before": 0}, "new": {}}
    found = [old]
    for kind, key, value in [
        ("a", "x", 2),
        ("new", "y", 3),
        ("a", "z", "long " * 20),
        ("new", "y", 4),
    ]:
        found.append({**found[-1], kind: {**found[-1][kind], key: value}})
    return found


def seen(diary):
    return {kind: entries(diary, f"items/{kind}") for kind in ("a", "new")}


def on_disk(folder):
    found = {}
    for kind in ("a", "new"):
        path = folder / f"alice/items/{kind}.toml"
        text = path.read_text() if path.exists() else ""
        table = tomllib.loads(text).get("entries", {})
        found[kind] = {key: entry["n"] for key, entry in table.items()}
    return found


def recorded(disk, monkeypatch, durability="full"):
    top = disk / "recorded"
    top.mkdir()
    recorder = Recorder(top)
    with recorder.watching(monkeypatch):
        diary = Diary(LocalBackend(top / "m", durability=durability), agent="rules")
        assert together(diary, work("items/a", "before", 0)) == [None]
        recorder.mark("alice", 0)
        assert together(diary, *group()) == [None] * 4
        recorder.mark("alice", 4)
        close(diary)
    return recorder


def examine(recorder, disk, monkeypatch, *, is_power_cut=True):
    """Return how many different states a crash may leave, and what is wrong with those that are wrong."""
    problems, different = [], set()
    for state in crash_states(recorder, subsets=3, cuts=range(60, 3000, 120)):
        if "alice" not in state.acknowledged or (state.is_power_cut and not is_power_cut):
            continue
        tree = frozenset(state.tree.items())
        key = (state.is_power_cut, tree, state.resting, state.acknowledged["alice"])
        if key not in different:
            different.add(key)
            problem = examined(state, disk, monkeypatch, states())
            if problem is not None:
                problems.append(f"step {state.step}, {state.how}: {problem}")
    return len(different), problems


@pytest.mark.parametrize("window", [256, 3], ids=["one window", "two windows"])
def test_a_power_cut_at_any_step_leaves_what_some_of_them_did_in_their_order(
    disk, monkeypatch, window
):
    monkeypatch.setattr(settling, "WINDOW", window)
    different, problems = examine(recorded(disk, monkeypatch), disk, monkeypatch)
    assert problems == []
    assert different > 80


def test_a_kill_at_any_step_leaves_what_some_of_them_did_in_their_order(disk, monkeypatch):
    recorder = recorded(disk, monkeypatch, "process")
    different, problems = examine(recorder, disk, monkeypatch, is_power_cut=False)
    assert problems == []
    assert different >= 9  # one more where files are exchanged


@pytest.mark.parametrize("guard", ["whole groups", "all of a group"])
def test_without_a_guard_a_power_cut_would_leave_less(disk, monkeypatch, guard):
    recorder = recorded(disk, monkeypatch)
    if guard == "whole groups":
        monkeypatch.setattr(records_module, "_breach", lambda *_: None)
    else:
        monkeypatch.setattr(opened_users, "stored_together", lambda _, records: records)
    assert examine(recorder, disk, monkeypatch)[1]


def examined(state, disk, monkeypatch, wanted):
    place = Path(tempfile.mkdtemp(dir=disk))
    materialise(state.tree, place, 1e9, state.resting)
    monkeypatch.setattr(opened_users, "may_lack_writes", lambda *_: state.is_power_cut)
    diary = Diary(place / "m", agent="rules")
    try:
        found = seen(diary)
        if found not in wanted[state.acknowledged["alice"] :]:
            return f"found {found}"
        if on_disk(place / "m") != found:
            return f"files hold {on_disk(place / 'm')}, history {found}"
        damage = verification.verify(diary.engine.backend, "alice")
        if damage is not None and segments.DAMAGED not in damage.place:
            return f"{damage.place} {damage.message}"
        if together(diary, work("items/a", "after", 5), work("items/c", "w", 6)) != [None, None]:
            return "the next ones failed"
        after = seen(diary)
        if after != {**found, "a": {**found["a"], "after": 5}}:
            return f"the next ones changed {found} to {after}"
        left = left_over(place / "m/alice", state.tree, is_power_cut=state.is_power_cut)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return f"{type(error).__name__}: {error}"
    else:
        return f"left over: {left}" if left else None
    finally:
        close(diary)
        shutil.rmtree(place)


def test_a_failing_file_operation_leaves_what_each_was_told(disk, monkeypatch):
    store = disk / "store"
    diary = Diary(store, agent="rules")
    together(diary, work("items/a", "before", 0))
    close(diary)
    monkeypatch.setattr(opened_users, "may_lack_writes", lambda *_: False)
    dry = failing(store, monkeypatch, Faults)
    assert dry[0] == []
    problems, number, tried = [], 0, 0
    for number, operation in enumerate(dry[1].names):
        for code in (*CODES.get(operation, OTHERS), *([SHORT] if operation == "write" else [])):
            for lasting in (False, True) if operation in WRITES else (False,):
                tried += 1
                faults_for = functools.partial(Faults, number=number, code=code, lasting=lasting)
                found, _ = failing(store, monkeypatch, faults_for)
                problems += [f"{operation} {number} {code} {lasting}: {each}" for each in found]
    assert problems == []
    assert tried > 50


def failing(store, monkeypatch, faults_for):
    place = Path(tempfile.mkdtemp(dir=store.parent))
    shutil.copytree(store, place, dirs_exist_ok=True)
    diary = Diary(place, agent="rules")
    works = group()
    problems = []
    with faults_for(place).at_work(monkeypatch) as faults:
        together(diary, *works)
    try:
        again = Diary(place, agent="rules")
        wanted = {"a": {"before": 0}, "new": {}}
        for each, (kind, key, value) in zip(
            works,
            [("a", "x", 2), ("new", "y", 3), ("a", "z", "long " * 20), ("new", "y", 4)],
            strict=True,
        ):
            if each.error is None or isinstance(each.error, CommittedUnpublished):
                wanted = {**wanted, kind: {**wanted[kind], key: value}}
            elif not isinstance(each.error, BackendError):
                problems.append(f"{each.error!r} is no error of the storage")
        is_open = any("is not known" in str(each.error) for each in works)
        found = seen(again)
        if found != seen(diary):
            problems.append(f"the process that failed sees {seen(diary)}, another {found}")
        if found != wanted and not (is_open and found in states()):
            problems.append(f"{[each.error for each in works]} left {found}")
        if on_disk(place) != found:
            problems.append(f"files hold {on_disk(place)}")
        if verification.verify(again.engine.backend, "alice") is not None:
            problems.append("history does not fit together")
        if together(again, work("items/a", "after", 5), work("items/c", "w", 6)) != [None, None]:
            problems.append("the next ones failed")
    finally:
        close(diary)
        close(again)
        shutil.rmtree(place)
    return problems, faults
