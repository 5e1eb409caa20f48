"""One user talks through all three frameworks at once while a person edits the file: it stays one memory."""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import programs
import talking_doors
from processes import run_at_once
from talking_doors import DOORS, SESSION, Echo, talk
from tomldiary import Diary

SUPPORT = str(Path(talking_doors.__file__).parent)
TURNS = 4
TO_ALL = "what she says to everyone"


def words(door):
    said = [hashlib.sha256(f"{door} {n}".encode()).hexdigest()[:20] for n in range(TURNS)]
    return [*said[: TURNS // 2], TO_ALL, *said[TURNS // 2 :]]


def edit(file, is_over):
    """Save the file as an editor does, with a comment, a changed text and an entry of one's own."""
    while not file.exists() or file.read_text().count("[preferences.likes.") < TURNS // 2:
        assert not is_over.is_set()
        time.sleep(0.001)
    text = file.read_text()
    changed = text.replace('text = "seed"', 'text = "by hand"  # mine')
    assert changed != text
    new = file.with_name("preferences.toml.new")
    new.write_text(f'{changed}\n[preferences.goals.mine]\ntext = "a walk"\n')
    new.replace(file)


def in_one_process(folder):
    diary = Diary(folder, agent=Echo())
    gate = threading.Barrier(len(DOORS))

    def say(door):
        gate.wait()
        talk(door, diary, words(door))

    with ThreadPoolExecutor(len(DOORS)) as pool:
        list(pool.map(say, DOORS))


def in_three_processes(folder):
    code = (
        f"import sys; sys.path.insert(0, {SUPPORT!r}); import talking_doors; talking_doors.main()"
    )
    commands = ([str(folder), door, *words(door)] for door in DOORS)
    run_at_once(code, *commands, imported=programs.FRAMEWORKS)


@pytest.mark.parametrize("run", [in_one_process, in_three_processes])
def test_three_frameworks_and_an_editor_lose_and_double_nothing(tmp_path, run):
    folder = tmp_path / "memories"
    Diary(folder, agent="rules").user("alice").upsert_preference("likes", "seed", id="seed")
    file, is_over = folder / "alice" / "preferences.toml", threading.Event()
    with ThreadPoolExecutor(1) as editor:
        saved = editor.submit(edit, file, is_over)
        try:
            run(folder)
        finally:
            is_over.set()
        saved.result()
    alice = Diary(folder, agent="rules").user("alice")
    likes = {item.text: item.count for item in alice.preferences("likes").values()}
    said = {word: 1 for door in DOORS for word in words(door)}
    assert likes == {**said, TO_ALL: len(DOORS), "by hand": 1}
    assert len(alice.preferences("likes")) == len(likes)
    assert [item.text for item in alice.preferences("goals").values()] == ["a walk"]
    assert '"by hand"  # mine' in file.read_text()
    assert alice.conversations()[SESSION].turns == len(DOORS) * (TURNS + 1)
    assert alice.problems() == []
