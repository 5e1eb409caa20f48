"""Killed at any moment, a writer loses no turn it acknowledged, and none is applied twice."""

from __future__ import annotations

import random
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import programs
from tomldiary import Diary
from tomldiary.storage.log import scan_log
from tomldiary.writer.journals import segment_files

SCRIPT = Path(__file__).parents[1] / "support/writer_process.py"
TURNS = 50


def start(folder, name, turns=TURNS, durability="process"):
    return programs.start(SCRIPT, folder, name, turns, durability)


def kill_somewhere(process, rng):
    """Kill a process after a random number of acknowledgements, mostly all, and a random pause."""
    wanted = TURNS if rng.random() < 0.7 else rng.randrange(1, TURNS)
    acknowledged = []
    for line in process.stdout:
        acknowledged.append(line.rstrip("\n"))
        if len(acknowledged) >= wanted:
            break
    pause = rng.uniform(0, 0.12)
    try:
        process.wait(pause)
    except subprocess.TimeoutExpired:
        process.kill()
    acknowledged += process.communicate().splitlines()
    return [line for line in acknowledged if line != "end"]


def extracted_and_pending(folder):
    """Return the texts of pending turns whose operations are in a journal, and how many turns pend."""
    texts, pending = set(), 0
    for journal in (folder / ".tomldiary" / "journal").iterdir():
        turns, operations = {}, set()
        if not journal.is_dir():
            continue
        for path in segment_files(journal):
            for entry in scan_log(path.read_bytes()):
                if entry.data is None:
                    continue
                if entry.kind == "turn":
                    turns[entry.data["number"]] = entry.data["user_msg"]
                elif entry.kind == "operations":
                    operations.update(entry.data["numbers"])
                else:
                    for number in entry.data["numbers"]:
                        turns.pop(number, None)
        pending += len(turns)
        texts |= {text for number, text in turns.items() if number in operations}
    return texts, pending


def crash(folder, cycles, processes, seed):
    """Kill writers again and again, let one finish, and check what is in memory.

    At least `cycles` times, and until a turn was pending whose operations were in a journal.
    """
    rng = random.Random(seed)
    acknowledged, calls_before, left = [], {}, 0
    for cycle in range(cycles + 50):
        if cycle >= cycles and calls_before:
            break
        running = [start(folder, f"{cycle}-{number}") for number in range(processes)]
        for process in running:
            acknowledged += kill_somewhere(process, rng)
        extracted, pending = extracted_and_pending(folder)
        left += pending
        calls = Counter((folder / "calls").read_text().splitlines())
        for text in extracted:
            calls_before.setdefault(text, calls[text])
    last = start(folder, "last", turns=0)
    assert last.communicate() == "end\n"
    assert last.returncode == 0

    calls = Counter((folder / "calls").read_text().splitlines())
    assert {text: calls[text] for text in calls_before} == calls_before
    diary = Diary(folder, agent="rules")
    stored = Counter()
    for user in diary.users():
        files = [
            folder / user / "preferences.toml",
            *sorted((folder / user / "preferences").glob("*.toml")),  # behind a full one
        ]
        texts = [
            entry["text"]
            for file in files
            for category in tomllib.loads(file.read_text())["preferences"].values()
            for entry in category.values()
        ]
        stored.update(f"{user} {text}" for text in texts)
        # A turn that is applied twice finds its preference there already, but is counted twice.
        assert diary.user(user).conversations()["s"].turns == len(texts)
        for name in {text.split()[0] for text in texts}:
            numbers = [int(text.split()[1]) for text in texts if text.split()[0] == name]
            assert numbers == sorted(numbers), "turns of one process out of order"
    assert set(acknowledged) - set(stored) == set()
    assert max(stored.values()) == 1
    journals = folder / ".tomldiary" / "journal"
    assert [path.name for path in journals.iterdir() if not path.name.startswith(".")] == []
    return left, len(calls_before)


def test_each_turn_is_applied_once_after_repeated_kills(tmp_path):
    left, extracted = crash(tmp_path, cycles=3, processes=2, seed=4)
    assert left > 20  # turns were pending when the processes were killed
    assert extracted > 0  # some of them had been extracted already


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
@pytest.mark.parametrize("processes", [1, 2])
def test_each_turn_is_applied_once_after_100_kills(tmp_path, processes):
    left, extracted = crash(tmp_path, 100, processes, seed=1)
    print(f"{left} turns were pending, {extracted} of them extracted")  # noqa: T201 - the figures of a long run
    assert left > 1000
    assert extracted > 10
