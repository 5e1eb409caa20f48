"""After a crash at any file operation, and a power cut that keeps what it likes of what was not synced,
each memory is as it was after one of its transactions, and after no earlier one than was acknowledged."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

import power_cuts
import pytest
from power_cuts import Recorder, crash_states, materialise, tree_of

from tomldiary import Diary
from tomldiary.backends import LocalBackend, segments
from tomldiary.backends import local as local_module
from tomldiary.verification import verify

ALICE, BOB, LONG = "alice", "bob", "x" * 300
CANARY = "zanzibar"


@pytest.fixture
def disk():
    """A folder in memory where there is one: nothing here depends on a real disk."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shm if shm.is_dir() else None, prefix="power-cuts-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 2500)


def close(diary):
    for descriptor in diary.engine.backend._locks._descriptors.values():
        os.close(descriptor)
    diary.engine.backend._locks._descriptors.clear()


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

    def __init__(self, recorder, durability="full"):
        self.recorder = recorder
        self.folder = recorder.top / "nested/memories"
        self.diary = Diary(LocalBackend(self.folder, durability=durability), agent="rules")
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
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
        os.close(descriptor)
        if style == "rename":
            os.replace(beside, path)
        os.utime(path, (1, 1))
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        self.did(user)

    def run(self):
        alice, bob, long = (self.diary.user(user) for user in (ALICE, BOB, LONG))
        alice.upsert_preference("likes", "tea")
        self.did(ALICE)
        bob.upsert_preference("likes", "rum")
        self.did(BOB)
        alice.add_turn(f"I love {CANARY}.", "ok", session_id="s1")
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
            key = next(k for k, item in alice.preferences("likes").items() if item.text == "my thing")
            alice.forget_preference("likes", key)
            alice.upsert_preference("goals", "swim")
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
        self.diary.engine.backend.reopen(ALICE)
        alice.rollback(1)
        self.did(ALICE)
        bob.forget(everything=True)
        self.did(BOB)
        bob.upsert_preference("likes", "water")
        self.did(BOB)
        close(self.diary)


class Examiner:
    """Opens what a crash left like the next process would, and says what is wrong with it."""

    def __init__(self, workload, disk, monkeypatch):
        self.workload = workload
        self.place = workload.folder.relative_to(workload.recorder.top)
        self.disk = disk
        self.known = {}
        self.patch = monkeypatch

    def problem(self, state):
        """Return what is wrong with a state, or None."""
        key = (state.is_power_cut, hash(frozenset(state.tree.items())))
        if key not in self.known:
            self.known[key] = self.open(state)
        found = self.known[key]
        if isinstance(found, str):
            return found
        for user, states in self.workload.states.items():
            oldest = state.acknowledged.get(user, 0)
            if not any(found[user] == wanted for wanted in states[oldest : oldest + 2]):
                older = [n for n, wanted in enumerate(states) if found[user] == wanted]
                return f"{user[:9]}: is at {older}, acknowledged was {oldest}: {found[user]}"
        for user, number in self.workload.forgotten.items():
            if state.acknowledged.get(user, 0) >= number and any(
                CANARY.encode() in (data or b"") for data in state.tree.values()
            ):
                return "what was forgotten is still there"
        return None

    def open(self, state):
        folder = Path(tempfile.mkdtemp(dir=self.disk))
        materialise(state.tree, folder, 1e9)
        self.patch.setattr(local_module, "is_older_than_the_system", lambda _: state.is_power_cut)
        root = folder / self.place
        diary = Diary(root, agent="rules")
        try:
            found = {user: seen(diary, user) for user in self.workload.states}
            for user, before in found.items():
                damage = verify(diary.engine.backend, user)
                if damage is not None:
                    return f"{user[:9]}: {damage.place} {damage.message}"
                diary.user(user).upsert_preference("dislikes", "after the crash")
                after = seen(diary, user)
                ideas = after["preferences"]["preferences"].pop("dislikes")
                if not after["preferences"]["preferences"]:
                    del after["preferences"]
                if after != before or len(ideas) != 1:
                    return f"{user[:9]}: the next write changed {before} to {after}"
                damage = verify(diary.engine.backend, user)
                if damage is not None:
                    return f"{user[:9]}: after a write: {damage.place} {damage.message}"
            left = [path for path in root.rglob(".*") if ".tomldiary" not in path.parts]
            if left:
                return f"left over: {left}"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            return f"{type(error).__name__}: {error}"
        else:
            return found
        finally:
            close(diary)
            shutil.rmtree(folder)


def record(disk, monkeypatch, durability="full"):
    recorder = Recorder(disk / "recorded")
    recorder.top.mkdir()
    with recorder.watching(monkeypatch):
        workload = Workload(recorder, durability)
        workload.run()
    return workload


def examine(workload, disk, monkeypatch, states):
    """Return the number of different states, and the problems of those that have one."""
    examiner = Examiner(workload, disk, monkeypatch)
    problems = []
    seen_states = set()
    for state in states:
        problem = examiner.problem(state)
        seen_states.add((hash(frozenset(state.tree.items())), tuple(state.acknowledged.items())))
        if problem is not None:
            problems.append((state, problem))
    return len(seen_states), len(examiner.known), problems
