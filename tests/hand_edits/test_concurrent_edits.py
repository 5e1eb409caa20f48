"""A person's editor and an agent, each in a process of its own, on one file at the same time."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import time
from collections import defaultdict

import pytest

from capabilities import needs_exchange
from tomldiary import Diary
from tomldiary.history.verify import verify

SHARED = "goals/shared"
ENTRIES = 120
"""The agent forgets one of its entries for each new one, once it has so many."""
BUFFERS = 6
PATIENCE = 60.0  # seconds that one process waits for the other before the test fails


def opened(root):
    return Diary(root, agent="rules", durability="process", max_prefs_per_category=10**6).user(
        "alice"
    )


class Book:
    """A file with what one of the two did; it remains however the process ends."""

    def __init__(self, path):
        self._file = path.open("a")

    def note(self, *what):
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()

    @staticmethod
    def read(path):
        return [json.loads(line) for line in path.read_text().splitlines()]


def agent(root, book, ready, stop, seed):
    """Add, change and forget entries of its own, and sometimes one that the person writes to as well."""
    alice, book, choose = opened(root), Book(book), random.Random(seed)
    mine = []
    number = 0
    ready.wait()
    while not stop.is_set():
        number += 1
        dice = choose.random()
        if dice < 0.15:
            key, text = SHARED, f"agent shares {number}"
        elif dice < 0.4 and mine:
            key, text = choose.choice(mine), f"agent changes {number}"
        elif len(mine) > ENTRIES or (dice < 0.5 and mine):
            key, text = mine.pop(choose.randrange(len(mine))), None
        else:
            key, text = f"likes/a{number}", f"agent adds {number}"
            mine.append(key)
        category, name = key.split("/")
        if text is not None:
            alice.upsert_preference(category, text, id=name)
        elif name in alice.preferences(category):  # the person may have been faster
            alice.forget_preference(category, name)
        book.note(key, text)
        time.sleep(choose.random() * 0.003)


def seq_of(text):
    return int(re.search(r"^seq = (\d+)$", text, re.MULTILINE)[1])


def editor(root, book, ready, saves, seed):
    """Save like editors do, in place or by a rename, from a buffer just read or ten writes old."""
    file, book, choose = root / "alice/preferences.toml", Book(book), random.Random(seed)
    ready.wait()
    buffers = [file.read_text()]
    last = None
    for number in range(saves):
        wait_for(file, lambda now, last=last: now != last)
        text = file.read_text()
        is_old = number % 3 == 2
        if is_old:
            text = buffers[0]
            wait_for(file, lambda now, text=text: seq_of(now) >= seq_of(text) + 10)
        else:
            buffers = [*buffers[1 - BUFFERS :], text]
        time.sleep(choose.random() * 0.003)  # the person types
        key, value, last = edited(text, number, choose)
        if number % 2:
            file.write_text(last)
        else:
            beside = file.with_name("preferences.toml~")
            beside.write_text(last)
            if is_old:  # with its earlier time, as some editors do: no reader waits for more of it
                os.utime(beside, (1, 1))
            beside.replace(file)
        book.note(key, value, is_old)


def wait_for(file, is_there):
    """Wait until the agent has written, and return what stands there then."""
    patience = time.monotonic() + PATIENCE
    while not is_there(text := file.read_text()):
        assert time.monotonic() < patience, "the agent does not write any more"
        time.sleep(0.0005)
    return text


def edited(text, number, choose):
    """Change one entry of a text; return its key, what it says now, and the text."""
    mine = re.findall(r"^\[preferences\.goals\.(h\d+)\]", text, re.MULTILINE)
    theirs = re.findall(r"^\[preferences\.likes\.(a\d+)\]", text, re.MULTILINE)
    dice = choose.random()
    if dice < 0.15 and mine:
        name = choose.choice(mine)
        return f"goals/{name}", None, without(text, name)
    if dice < 0.6:
        key = SHARED
        if dice < 0.35 and mine:
            key = f"goals/{choose.choice(mine)}"
        elif dice < 0.5 and theirs:
            key = f"likes/{choose.choice(theirs)}"
        header = f"[preferences.{key.replace('/', '.')}]"
        at = text.find(header)
        if at >= 0:
            value = f"hand changes {number}"
            made = re.sub(r"^text = .*$", f'text = "{value}"  # {number}', text[at:], count=1, flags=re.MULTILINE)  # fmt: skip
            return key, value, text[:at] + made
    value = f"hand adds {number}"
    entry = f'# note {number}\n[preferences.goals.h{number}]\ntext = "{value}"  # {number}\n'
    return f"goals/h{number}", value, f"{text.rstrip()}\n\n# loose {number}\n\n{entry}"


def without(text, name):
    """Take an entry out with the note above it; the loose comment in front of that stays."""
    number = name.removeprefix("h")
    begin = text.index(f"# note {number}\n[preferences.goals.{name}]\n")
    end = re.compile(r"^(?:#|\[)", re.MULTILINE).search(text, text.index("\n[", begin) + 2)
    return text[:begin] + (text[end.start() :] if end else "")


def race(tmp_path, saves, seed):
    root = tmp_path / "m"
    opened(root).upsert_preference("goals", "to begin with", id="shared")
    context = multiprocessing.get_context("fork")
    stop, ready = context.Event(), context.Barrier(2)
    books = tmp_path / "agent", tmp_path / "editor"
    for book in books:
        book.touch()
    writing = context.Process(target=agent, args=(root, books[0], ready, stop, seed))
    saving = context.Process(target=editor, args=(root, books[1], ready, saves, seed))
    for process in (writing, saving):
        process.start()
    saving.join()
    stop.set()
    writing.join()
    assert (writing.exitcode, saving.exitcode) == (0, 0)
    written, saved = map(Book.read, books)
    assert len(saved) == saves
    check(root, written, saved)
    return len(written), sum(is_old for *_, is_old in saved)


def check(root, written, saved):
    """Check that each change is in the file; of an entry that both changed, history has both and the file the person's."""
    alice, file = opened(root), root / "alice/preferences.toml"
    time.sleep(1.1)  # seconds: a file this fresh may be taken for half saved
    alice.upsert_preference("goals", "the last word", id="last")
    text = file.read_text()
    now = {f"{category}/{key}": item.text for category, items in alice.preferences().items() for key, item in items.items()}  # fmt: skip
    told = defaultdict(list)
    for entry in alice.history(limit=10**7):
        told[entry.key].append((entry.type, text_of(entry.before), text_of(entry.after), entry))
    by_hand, by_agent = defaultdict(list), defaultdict(list)
    for key, value, _ in saved:
        by_hand[key].append(value)
    for key, value in written:
        by_agent[key].append(value)
    for key, values in by_hand.items():
        # Only the person wrote it: the last save stays, whatever the agent changed elsewhere.
        if key not in by_agent:
            assert now.get(key) == values[-1], (key, values, now.get(key))
        for value in values:
            assert value is None or any(t == "hand" and after == value for t, _, after, _ in told[key]), (key, value)  # fmt: skip
    for key, values in by_agent.items():
        if key not in by_hand:
            assert now.get(key) == values[-1], (key, values, now.get(key))
        for value in values:
            assert value is None or any(value in (before, after) for _, before, after, _ in told[key]), (key, value)  # fmt: skip
    for changes in told.values():
        for type_, _, after, entry in changes:
            if entry.is_conflict:
                assert type_ == "hand"
                assert after is None or after.startswith("hand"), entry
    check_comments(text, saved, now)
    assert verify(alice.diary.engine.backend, "alice") is None
    assert not list(file.parent.glob(".staged*"))


def text_of(values):
    return values and values["text"]


def check_comments(text, saved, now):
    """Comments stand where the person put them, and entries in the order in which they came."""
    added = [int(value.split()[-1]) for _, value, _ in saved if value and value.startswith("hand adds")]  # fmt: skip
    assert added
    for number in added:
        assert f"# loose {number}\n" in text
        if f"goals/h{number}" in now:
            assert f"# note {number}\n[preferences.goals.h{number}]\ntext = " in text
            said = now[f"goals/h{number}"].split()[-1]
            assert re.search(rf'^text = "hand \w+ {said}"  # {said}$', text, re.MULTILINE)
        else:
            assert f"# note {number}\n" not in text


@needs_exchange
def test_8_hand_edits_and_a_writing_agent_lose_nothing(tmp_path):
    written, old = race(tmp_path, 8, 1)
    assert old == 2
    assert written > 10  # the number depends on the machine


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
def test_1000_hand_edits_and_a_writing_agent_lose_nothing(tmp_path):
    written, old = race(tmp_path, 1_000, random.randrange(10**9))
    assert old == 333
    assert written > 500  # the number depends on the machine
