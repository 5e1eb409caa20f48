"""After a crash at any file operation, and a power cut that keeps what it likes of what was not synced,
each memory is as it was after one of its transactions, and after no earlier one than was acknowledged."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import shutil
import tempfile
import tomllib
from pathlib import Path

import pytest

from file_systems import SetClock
from power_cuts import (
    Names,
    Recorder,
    SameDisk,
    crash_states,
    materialise,
    tree_of,
    without_syncs,
)
from processes import close
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.forgetting import forget
from tomldiary.history import record as history
from tomldiary.history import timeline
from tomldiary.history import verify as verification
from tomldiary.storage.environment import CHECKPOINT_INTERVAL
from tomldiary.storage.files import FileSystem
from tomldiary.storage.local import log as segments
from tomldiary.storage.local import recovery
from tomldiary.storage.local import session as opened_users
from tomldiary.toml.values import copied

USERS = ALICE, BOB, LONG = "alice", "bob", "x" * 300
CANARY = b"zanzibar"
SHORT = 3
WINDOWS = pytest.mark.parametrize(
    "window", [SHORT, CHECKPOINT_INTERVAL], ids=["short windows", "one window"]
)
BOOT, NEXT_BOOT, LAST_BOOT = "this boot", "the next boot", "the boot after that"


def opened(folder, files, boot=BOOT, window=CHECKPOINT_INTERVAL, durability="full"):
    backend = LocalBackend(
        folder,
        durability=durability,
        files=files,
        clock=SetClock(boot),
        segment_bytes=2500,
        checkpoint_interval=window,
    )
    return Diary(backend, agent="rules")


def seen(diary, user):
    """What a reader finds: all documents of a user, without the bookkeeping in `_meta`."""
    found = {}
    diary.engine.document(user, "preferences")
    for kind in diary.engine.backend.kinds(user):
        table = tomllib.loads(diary.engine.document(user, kind).text)
        table.pop("_meta", None)
        found[kind] = table
    return {kind: table for kind, table in found.items() if table}


class Workload:
    """Does things to a memory, and keeps what it was after each of them."""

    def __init__(self, recorder, window, durability="full"):
        self.recorder = recorder
        self.window = window
        self.disk = recorder.top.parent
        self.folder = recorder.top / "nested/memories"
        self.diary = opened(self.folder, recorder, window=window, durability=durability)
        self.states = {ALICE: [{}], BOB: [{}], LONG: [{}]}
        self.forgotten = {}  # user: state from which on a text may be found nowhere

    def did(self, user):
        self.recorder.mark(user, len(self.states[user]))
        self.states[user].append(seen(self.diary, user))

    def edit(self, user, change, *, style):
        """Save like an editor that syncs: what happens while it saves is its own affair."""
        path = self.folder / user / "preferences.toml"
        text = change(path.read_text(encoding="utf-8"))
        self.recorder.mark(user, len(self.states[user]) - 1, is_watched=False)
        beside = path.with_name("edited~") if style == "rename" else path
        files = self.recorder
        descriptor = files.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        files.write(descriptor, text.encode())
        files.sync_file(descriptor)
        files.close(descriptor)
        if style == "rename":
            files.replace(beside, path)
        os.utime(path, (1, 1))
        files.sync_folder(path.parent)
        self.did(user)

    def run(self):  # noqa: PLR0915 - one history, told in order
        alice, bob, long = (self.diary.user(user) for user in (ALICE, BOB, LONG))
        alice.upsert_preference("likes", "tea")
        self.did(ALICE)
        bob.upsert_preference("likes", "rum")
        self.did(BOB)
        alice.add_turn(f"I love {CANARY.decode()}.", "ok", session_id="s1")
        self.did(ALICE)
        for number in range(3):
            alice.upsert_preference("likes", f"thing {number}")
            self.did(ALICE)
        self.edit(ALICE, lambda text: text.replace('"tea"', '"green tea"  # mine'), style="rename")
        alice.forget_preference("likes", "pref001")
        self.did(ALICE)
        with alice.transaction(reason="both"):
            alice.upsert_preference("goals", "rest")
            alice.add_turn("I love walking.", "ok", session_id="s2")
        self.did(ALICE)
        self.edit(ALICE, lambda text: text.replace('"rest"', '"work"'), style="in place")
        alice.upsert_preference("goals", "sing", id="pref001")
        self.did(ALICE)
        alice.rollback(2, force=True)
        self.did(ALICE)
        # An editor's buffer of before, and then a change of the very entry that was edited in it.
        path = self.folder / ALICE / "preferences.toml"
        buffer = path.read_text(encoding="utf-8")
        alice.upsert_preference("likes", "thing 3")
        self.did(ALICE)
        self.edit(ALICE, lambda _: buffer.replace('"thing 1"', '"my thing"'), style="rename")
        with alice.transaction(reason="of what was edited"):
            key = next(
                k for k, item in alice.preferences("likes").items() if item.text == "my thing"
            )
            alice.forget_preference("likes", key)
            alice.upsert_preference("goals", "swim")
        self.did(ALICE)
        alice.prune_history(keep=8)
        self.did(ALICE)
        long.upsert_preference("likes", "owls")
        self.did(LONG)
        bob.add_turn("I love gin.", "ok", session_id="s1")
        self.did(BOB)
        alice.forget(session_id="s1")
        self.forgotten[ALICE] = len(self.states[ALICE])
        self.did(ALICE)
        for number in range(3):
            alice.upsert_preference("goals", f"later {number}")
            self.did(ALICE)
        alice.prune_history(keep=2)
        self.did(ALICE)
        self.diary.engine.backend.reopen(ALICE)
        alice.rollback(1)
        self.did(ALICE)
        bob.forget(everything=True)
        self.did(BOB)
        bob.upsert_preference("likes", "water")
        self.did(BOB)
        close(self.diary)


def is_never_written(damage):
    """Tell whether what was set aside as damaged is an append whose blocks did not all come to the disk."""
    if segments.DAMAGED not in damage.place:
        return False
    return b"\0" in Path(damage.place).read_bytes()


class Examiner:
    """Opens what a crash left like the next process would, and says what is wrong with it.

    Users have nothing in common but the folder `.tomldiary`, so each is looked at alone, and no two times.
    """

    def __init__(self, workload, disk, monkeypatch, *, boot=None, files=None):
        self.boot = boot  # None: the same one after a kill, the next one after a power cut
        self.files = files or SameDisk()
        self.workload = workload
        self.place = workload.folder.relative_to(workload.recorder.top).as_posix()
        self.disk = disk
        self.found = {}
        # The same records and documents are read thousands of times.
        parsed = functools.cache(tomllib.loads)
        monkeypatch.setattr(tomllib, "loads", lambda text: copied(parsed(text)))
        remembering = functools.cache(history.parse_record)
        for module in (forget, opened_users, recovery, timeline, verification):
            monkeypatch.setattr(module, "parse_record", remembering)
        backend = workload.diary.engine.backend
        self.folders = {f"{self.place}/{backend.folder(user).name}": user for user in USERS}

    def problem(self, state):
        """Return what is wrong with a state, or None."""
        parts = {user: {} for user in USERS}
        for path, data in state.tree.items():
            user = self.folders.get("/".join(path.split("/")[:3]))
            for each in (user,) if user else USERS:
                parts[each][path] = data
        for user, tree in parts.items():
            key = (user, state.is_power_cut, frozenset(tree.items()))
            if key not in self.found:
                self.found[key] = self.open(user, tree, is_power_cut=state.is_power_cut)
            found = self.found[key]
            if isinstance(found, str):
                return f"{user[:9]}: {found}"
            states, oldest = self.workload.states[user], state.acknowledged.get(user, 0)
            if found not in states[oldest : oldest + 2]:
                is_at = [number for number, wanted in enumerate(states) if found == wanted]
                return f"{user[:9]}: is at {is_at}, acknowledged was {oldest}: {found}"
            if oldest >= self.workload.forgotten.get(user, 1000) and any(
                CANARY in data for data in tree.values() if data
            ):
                return f"{user[:9]}: what was forgotten is still there"
        return None

    def open(self, user, tree, *, is_power_cut):
        """Return what a new process reads, or what is wrong with what it finds."""
        folder = Path(tempfile.mkdtemp(dir=self.disk))
        materialise(tree, folder, 1e9)
        boot = self.boot or (NEXT_BOOT if is_power_cut else BOOT)
        diary = opened(folder / self.place, self.files, boot, self.workload.window)
        backend = diary.engine.backend
        try:
            found = seen(diary, user)
            known = [diary.engine.load(user, kind) for kind in backend.kinds(user)]
            if any(each.problem for each in known):
                return f"a document is broken: {[each.problem for each in known]}"
            damage = verification.verify(backend, user)
            if damage is not None and not is_never_written(damage):
                return f"{damage.place} {damage.message}"
            if diary.users() != ([user] if backend.kinds(user) else []):
                return f"the users are {diary.users()}"
            diary.user(user).upsert_preference("dislikes", "after the crash")
            after = seen(diary, user)
            mine = after["preferences"]["preferences"].pop("dislikes")
            if not after["preferences"]["preferences"]:
                del after["preferences"]
            if after != found or len(mine) != 1:
                return f"the next write changed {found} to {after}"
            damage = verification.verify(backend, user)
            if damage is not None and not is_never_written(damage):
                return f"after a write: {damage.place} {damage.message}"
            left = [path.name for path in backend.folder(user).glob(".*")]
            if left:
                return f"left over: {left}"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            return f"{type(error).__name__}: {error}"
        else:
            return found
        finally:
            close(diary)
            shutil.rmtree(folder)


def record(disk, window=CHECKPOINT_INTERVAL, durability="full"):
    recorder = Recorder(disk / "recorded")
    recorder.top.mkdir()
    workload = Workload(recorder, window, durability)
    workload.run()
    return workload


def examine(workload, disk, monkeypatch, states, *, until_the_first=False, **options):
    """Return how many different states there are, and what is wrong with those that are wrong."""
    examiner = Examiner(workload, disk, monkeypatch, **options)
    different = set()
    problems = []
    for state in states:
        tree = hash(frozenset(state.tree.items()))
        different.add((state.is_power_cut, tree, *state.acknowledged.items()))
        problem = examiner.problem(state)
        if problem is not None:
            problems.append(f"step {state.step}, {state.how}: {problem[:500]}")
            if until_the_first:
                break
    return len(different), problems


@pytest.fixture(scope="module")
def recorded(disk_of_module):
    """Return a function that records a workload once for each window, and returns it with its crash states."""

    @functools.cache
    def once(window):
        folder = disk_of_module / str(window)
        folder.mkdir()
        workload = record(folder, window)
        return workload, list(crash_states(workload.recorder, subsets=2))

    return once


def test_the_recorder_misses_no_operation(recorded):
    recorder = recorded(CHECKPOINT_INTERVAL)[0].recorder
    *_, last = (state for state in crash_states(recorder, subsets=0) if not state.is_power_cut)
    found = {path: data for path, data in tree_of(recorder.top).items() if "/locks/" not in path}
    assert last.tree == found


@WINDOWS
@pytest.mark.parametrize(
    "share", [240, pytest.param(1, marks=pytest.mark.torture)], ids=["short", "long"]
)
def test_a_power_cut_at_any_step_keeps_acknowledged_transactions(
    recorded, disk, monkeypatch, window, share, request
):
    if share == 1:
        request.getfixturevalue("_asked_for")
    workload, states = recorded(window)
    different, problems = examine(workload, disk, monkeypatch, states[::share])
    assert problems == []
    assert len(states) > 5000
    assert different > 1600 / share


def on_another_machine(monkeypatch, workload, disk, states, **options):
    """Return what is wrong with states that are read on a machine that has been up for years."""
    return examine(
        workload,
        disk,
        monkeypatch,
        states,
        boot="another machine",
        files=FileSystem(),
        **options,
    )


@WINDOWS
def test_power_cut_states_are_repaired_after_a_longer_uptime(recorded, disk, monkeypatch, window):
    workload, states = recorded(window)
    states = [state for state in states if state.is_power_cut]
    different, problems = on_another_machine(monkeypatch, workload, disk, states[::480])
    assert problems == []
    assert different > 20


def test_without_boot_ids_power_cut_states_are_damaged(recorded, disk, monkeypatch):
    workload, states = recorded(CHECKPOINT_INTERVAL)
    states = [state for state in states if state.is_power_cut]
    assert examine(workload, disk, monkeypatch, states, boot=BOOT, until_the_first=True)[1]


@pytest.mark.torture
@WINDOWS
def test_5000_power_cut_states_are_repaired_after_a_longer_uptime(
    disk, monkeypatch, request, window
):
    if request.config.getoption("markexpr") != "torture":
        pytest.skip("long; run with -m torture")
    workload = record(disk, window)
    states = crash_states(workload.recorder, seed=2, subsets=100, cuts=range(1, 400, 5))
    states = (state for state in states if state.is_power_cut)
    different, problems = on_another_machine(monkeypatch, workload, disk, states)
    assert problems == []
    assert different >= 5000


def test_a_kill_at_any_step_loses_nothing_without_syncs(disk, monkeypatch):
    workload = record(disk, durability="process")
    states = [
        state for state in crash_states(workload.recorder, subsets=0) if not state.is_power_cut
    ]
    different, problems = examine(workload, disk, monkeypatch, states[::4])
    assert problems == []
    assert different > 50


def crashes_again(workload, disk, states, number):
    """Yield what is left if what opens a crashed memory crashes as well, for `number` memories."""
    place = workload.folder.relative_to(workload.recorder.top)
    found = 0
    for first in states:
        folder = disk / "again"
        folder.mkdir()
        materialise(first.tree, folder, 1e9)
        recorder = Recorder(folder)
        boot = NEXT_BOOT if first.is_power_cut else BOOT
        diary = opened(folder / place, recorder, boot, workload.window)
        for user in USERS:
            seen(diary, user)
        close(diary)
        shutil.rmtree(folder)
        if any(isinstance(operation, Names) for operation in recorder.operations):
            found += 1
            for second in crash_states(recorder, subsets=0):
                yield dataclasses.replace(
                    second,
                    how=f"{first.how}, at step {first.step}, then {second.how}",
                    acknowledged=first.acknowledged,
                    is_power_cut=True,  # the machine was restarted since, whatever came then
                )
        if found == number:
            return


@pytest.mark.parametrize(
    "number", [2, pytest.param(150, marks=pytest.mark.torture)], ids=["short", "long"]
)
def test_a_power_cut_during_recovery_loses_nothing(recorded, disk, monkeypatch, number, request):
    if number > 100 and request.config.getoption("markexpr") != "torture":
        pytest.skip("long; run with -m torture")
    workload, states = recorded(CHECKPOINT_INTERVAL)
    states = [state for state in states if state.is_power_cut]
    random.Random(number).shuffle(states)
    again = crashes_again(workload, disk, states, number)
    different, problems = examine(workload, disk, monkeypatch, again, boot=LAST_BOOT)
    assert problems == []
    assert different > 8 * number


@pytest.mark.torture
@WINDOWS
def test_5000_power_cut_states_keep_acknowledged_transactions(disk, monkeypatch, request, window):
    if request.config.getoption("markexpr") != "torture":
        pytest.skip("long; run with -m torture")
    workload = record(disk, window)
    states = crash_states(workload.recorder, seed=1, subsets=100, cuts=range(1, 400, 5))
    different, problems = examine(workload, disk, monkeypatch, states)
    assert problems == []
    assert different >= 5000


def is_document(path):
    name = path.rpartition("/")[2]
    return path.endswith(".toml") and "/history/" not in path and not name.startswith(".")


def behind_a_rename(recorder):
    """Tell whether a file was published last: a name changed that is not the one of a new folder."""
    last = recorder.operations[-1]
    return isinstance(last, Names) and not any(
        node in recorder.folders for *_, node in last.changes
    )


def left_out(guard):
    """Return what says which syncs are left out without a guard, by the recorder, the sync and the path."""

    def behind_a_staged_file(recorder):
        return recorder.last_synced.rpartition("/")[2].startswith(".")

    def is_left_out(recorder, call, path):
        is_folder = call == "sync_folder"
        is_mine = path.rpartition("/")[2] in {ALICE, BOB} or "~" in path
        if guard == "history":
            return call == "sync_data"
        if guard == "documents of a window":
            return call == "sync_file" and is_document(path)
        if guard == "their names":
            return is_folder and is_mine and is_document(recorder.last_synced)
        if guard == "folders":
            return is_folder and not behind_a_staged_file(recorder)
        if guard == "known names":  # the files' own folder, behind the first rename of each
            is_checkpoint = is_document(recorder.last_synced)
            return (
                is_folder
                and is_mine
                and not behind_a_staged_file(recorder)
                and (is_checkpoint or behind_a_rename(recorder))
            )
        if guard == "snapshot":
            return call == "sync_file" and path.endswith(".pruned.tmp")
        if guard == "snapshot's name":
            return is_folder and recorder.last_synced.endswith(".pruned.tmp")
        return (
            guard == "root" and is_folder and Path(path) in {recorder.top, recorder.top / "nested"}
        )

    return is_left_out


@pytest.mark.parametrize(
    "guard",
    [
        "history", "documents of a window", "their names", "folders", "known names", "root", "snapshot",
        "snapshot's name", "torn versions",
    ],
)  # fmt: skip
def test_without_any_one_sync_a_power_cut_loses_data(recorded, disk, monkeypatch, guard):
    if guard == "torn versions":
        monkeypatch.setattr(recovery, "is_torn", lambda *_: False)
    workload, _ = recorded(SHORT)
    recorder = without_syncs(workload.recorder, left_out(guard))
    # A document that was cut off between two entries looks like a hand edit.
    cuts = range(60, 400, 28) if guard == "their names" else ()
    states = list(crash_states(recorder, subsets=0, cuts=cuts))
    random.Random(1).shuffle(states)  # most of these matter late
    assert examine(workload, disk, monkeypatch, states, until_the_first=True)[1]
