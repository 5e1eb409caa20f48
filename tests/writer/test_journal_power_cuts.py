"""After a power cut at any file operation of a journal, each stored turn is there, once and complete."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from power_cuts import Recorder, crash_states, materialise, without_syncs
from tomldiary import Diary, Turn
from tomldiary.backends import LocalBackend
from tomldiary.writer.dead_letters import DeadLetters
from tomldiary.writer.journal import Journal, render_turn
from tomldiary.writer.journals import forget_turns
from tomldiary.writer.receipts import Job

CANARY = "zanzibar"


class Workload:
    """Stores turns, finishes some and forgets some; keeps the turns expected at each mark."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.root = recorder.top / "nested/journal"
        self.left: list[dict[str, str]] = []  # text and operation of turns in the journal, by mark
        self.taken: dict[str, str] = {}
        self.forgotten_at = 0

    def did(self):
        self.recorder.mark("journal", len(self.left))
        self.left.append(dict(self.taken))

    def take_in(self, *texts, user="bob"):
        jobs = []
        for text in texts:
            job = Job(Turn(user, "s", text, "ok"), f"of {text}", is_new=True)
            job.rendered = render_turn(job.turn, job.operation, "2026-11-20T00:00:00+00:00")
            jobs.append(job)
        self.journal.append_turns(jobs, lambda _: 0)
        self.journal.sync()
        self.taken.update((job.turn.user_msg, job.operation) for job in jobs)
        self.did()
        return jobs

    def run(self):
        self.did()
        self.journal = Journal.create(self.root, sync=True, files=self.recorder, segment_bytes=2500)
        for number in range(12):
            self.take_in(f"single {number}")
        self.take_in(*(f"of a group {number}" for number in range(12)))
        self.take_in(f"I love {CANARY}.", "I am ann.", user="ann")
        forget_turns(self.root, "ann", {"everything": True}, 1, self.recorder)
        for text in [text for text in self.taken if CANARY in text or "ann" in text]:
            del self.taken[text]
        self.did()
        self.forgotten_at = len(self.left) - 1
        for number in range(12):
            self.take_in(f"after it {number}")
        self.journal.drop()


def record(disk):
    workload = Workload(Recorder(disk / "recorded"))
    workload.recorder.top.mkdir()
    workload.run()
    return workload


def found_in(root):
    found, journals = [], []
    if root.is_dir():
        for folder in sorted(path for path in root.iterdir() if not path.name.startswith(".")):
            adopted = Journal.adopt(folder, sync=False)
            if adopted is not None:
                journals.append(adopted[0])
                found += [(job.turn.user_msg, job.operation) for job in adopted[1]]
    for journal in journals:
        journal.drop()
    return found


def examine(workload, disk, states, *, until_the_first=False):
    """Return how many different states there were, and what is wrong with any of them."""
    seen, problems = set(), []
    folder = disk / "state"
    submitted = {text: name for left in workload.left for text, name in left.items()}
    for state in states:
        mark = state.acknowledged.get("journal", 0)
        key = (mark, tuple(sorted(state.tree.items())))
        if key in seen:
            continue
        seen.add(key)
        if until_the_first and problems:
            break
        folder.mkdir()
        materialise(state.tree, folder, None)
        found = found_in(folder / "nested/journal")
        forgetting = mark < workload.forgotten_at <= mark + 1  # under way: gone or not
        missing = [
            text for text in workload.left[mark]
            if text not in dict(found) and not (forgetting and ("ann" in text or CANARY in text))
        ]  # fmt: skip
        where = f"step {state.step}, {state.how}"
        if missing:
            problems.append(f"{where}: {missing} are missing")
        if len(found) != len(dict(found)) or any(submitted.get(t) != name for t, name in found):
            problems.append(f"{where}: {found} were never submitted, or come twice")
        if mark >= workload.forgotten_at and any(CANARY in text for text, _ in found):
            problems.append(f"{where}: what was forgotten came back")
        order = [text for text in submitted if text in dict(found)]
        if [text for text, _ in found] != order:
            problems.append(f"{where}: out of order")
        shutil.rmtree(folder)
    return len(seen), problems


def test_after_a_power_cut_each_stored_turn_is_there_once_in_order(disk):
    workload = record(disk)
    cuts = range(20, 400, 45)
    different, problems = examine(
        workload, disk, crash_states(workload.recorder, subsets=0, cuts=cuts)
    )
    assert problems == []
    assert different > 300


@pytest.mark.parametrize("guard", ["records", "folder", "root", "forgotten"])
def test_without_a_sync_a_power_cut_would_lose_turns(disk, guard):
    root = disk / "recorded/nested/journal"

    def left_out(recorder, call, path):
        if guard == "records":
            return call == "sync_data"
        is_rewrite = recorder.last_synced.endswith(".tmp")  # a file without what was forgotten
        if guard == "forgotten":
            return call == "sync_folder" and is_rewrite
        return (
            call == "sync_folder" and not is_rewrite and (Path(path) == root) == (guard == "root")
        )

    workload = record(disk)
    states = list(crash_states(without_syncs(workload.recorder, left_out), subsets=2))
    random.Random(1).shuffle(states)
    assert examine(workload, disk, states, until_the_first=True)[1]


def parked_texts(folder):
    letters = DeadLetters(LocalBackend(folder)).list()
    return {letter.turn.user_msg for letter in letters}


def lost_letters(disk, left_out=lambda *_: False):
    """Park turns, erase their user, and yield what is wrong after a power cut at any step."""
    recorder = Recorder(disk / "recorded")
    recorder.top.mkdir()
    backend = LocalBackend(recorder.top, files=recorder)
    letters = DeadLetters(backend)
    texts = [f"turn {number}" for number in range(4)]
    recorder.mark("letters", 0)
    for number, text in enumerate(texts):
        job = Job(Turn("ann", "s", text, "ok"), f"of {text}", is_new=True)
        job.epoch = 0
        letters.add(job, "the model failed")
        recorder.mark("letters", number + 1)
    Diary(backend, agent="rules").user("ann").forget(everything=True)
    recorder.mark("letters", erased := len(texts) + 1)
    states = list(crash_states(without_syncs(recorder, left_out), subsets=2))
    assert len(states) > 50
    for state in states:
        folder = disk / "state"
        folder.mkdir()
        materialise(state.tree, folder, None)
        mark, found = state.acknowledged.get("letters", 0), parked_texts(folder)
        where = f"step {state.step}, {state.how}"
        if mark < len(texts) and not found >= {*texts[:mark]}:
            yield f"{where}: {mark} turns were parked, and {found} are left"
        if mark == erased and found:
            yield f"{where}: {found} came back"
        shutil.rmtree(folder)


def test_after_a_power_cut_each_parked_turn_is_a_dead_letter(disk):
    assert list(lost_letters(disk)) == []


@pytest.mark.parametrize("call", ["sync_file", "sync_folder"])
def test_without_a_sync_a_power_cut_would_lose_dead_letters(disk, call):
    problems = lost_letters(disk, lambda _, made, path: made == call and "dead" in str(path))
    assert next(problems, None)
