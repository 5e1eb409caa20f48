"""Writes go on in history while a document's file cannot be replaced, and every process sees all of them."""

from __future__ import annotations

import json
import os

import pytest

import programs
from hand_edits import age, texts
from tomldiary import Diary
from tomldiary.engine import cache as known_documents
from tomldiary.history.verify import verify
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore

fcntl = pytest.importorskip("fcntl")
pytestmark = pytest.mark.skipif(
    not hasattr(fcntl, "F_SETLEASE"), reason="only Linux tells who has a file open for writing"
)

WRITER = """
import json, sys
from tomldiary import Diary
folder, name = sys.argv[1:]
alice = Diary(folder, agent="rules", durability="process", max_prefs_per_category=2000).user("alice")
print(json.dumps(len(alice.preferences())), flush=True)
for line in sys.stdin:
    if line == "read\\n":
        print(json.dumps([item.text for item in alice.preferences("likes").values()]), flush=True)
        continue
    ids = [alice.upsert_preference("likes", f"{name} {number}")[0] for number in range(*json.loads(line))]
    print(json.dumps(ids), flush=True)
"""


class Writer:
    """A process that writes when it is told to."""

    def __init__(self, folder, name):
        self._process = programs.start("-c", WRITER, folder, name)
        self.answer()

    def answer(self):
        return json.loads(self._process.stdout.readline())

    def tell(self, line):
        self._process.stdin.write(f"{line}\n")

    def ask(self, line):
        self.tell(line)
        return self.answer()

    def close(self):
        self._process.communicate()


@pytest.fixture
def alice(tmp_path):
    alice = Diary(tmp_path, agent="rules", durability="process", max_prefs_per_category=2000).user(
        "alice"
    )
    for text in ("tea", "coffee", "water"):
        alice.upsert_preference("likes", text)
    age(tmp_path / "alice/preferences.toml")
    return alice


@pytest.fixture
def writers(tmp_path, alice):
    started = [Writer(tmp_path, name) for name in ("one", "two")]
    yield started
    for writer in started:
        writer.close()


@pytest.fixture
def held(alice, file):
    """A program has the file open for writing, and does not write."""
    descriptor = os.open(file, os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


def all_is_well(alice, given, wanted):
    assert len(given) == len(set(given)) == wanted
    fresh = Diary(alice.diary.engine.backend.base_path, agent="rules").user("alice")
    assert set(given) <= set(fresh.preferences("likes"))
    assert len(fresh.preferences("likes")) == wanted + 3
    assert verify(fresh.diary.engine.backend, "alice") is None


def test_processes_in_turn_see_each_other_while_a_file_is_held_open(alice, writers, held):
    given = []
    for number in range(5):
        for writer in writers:
            given += writer.ask(f"[{number}, {number + 1}]")
    all_is_well(alice, given, 10)
    for writer in writers:
        assert len(writer.ask("read")) == 13
    assert len(texts(alice)) == 13


@pytest.mark.parametrize(
    "number", [20, pytest.param(500, marks=pytest.mark.torture)], ids=["short", "1000 writes"]
)
def test_two_processes_race_while_a_file_is_held_open(alice, writers, file, number, request):
    if number > 100 and request.config.getoption("markexpr") != "torture":
        pytest.skip("long; run with -m torture")
    half, given = number // 2, []
    descriptor = os.open(file, os.O_WRONLY)
    for begin in (0, half):
        for writer in writers:
            writer.tell(f"[{begin}, {begin + half}]")
        for writer in writers:
            given += writer.answer()
        if begin == 0:
            os.close(descriptor)  # the rest is published again
    all_is_well(alice, given, 2 * number)
    assert len(texts(alice)) == 2 * number + 3


def test_a_reader_sees_writes_while_a_file_is_held_open(alice, writers, held):
    assert len(texts(alice)) == 3
    writers[0].ask("[0, 1]")
    assert texts(alice) == ["tea", "coffee", "water", "one 0"]
    writers[1].ask("[0, 1]")
    assert texts(alice) == ["tea", "coffee", "water", "one 0", "two 0"]


def test_a_reader_sees_writes_while_a_document_is_broken(alice, writers, file):
    file.write_text(f"{file.read_text()}\nlikes = [")
    age(file)
    assert len(texts(alice)) == 3
    for writer in writers:
        writer.ask("[0, 1]")
        assert len(texts(alice)) == 4 + writers.index(writer)


def test_a_transaction_reads_unpublished_writes(alice, writers, held):
    assert len(texts(alice)) == 3
    writers[0].ask("[0, 1]")
    with alice.transaction():
        assert "one 0" in texts(alice)
        alice.upsert_preference("likes", "mine")
    assert texts(alice) == ["tea", "coffee", "water", "one 0", "mine"]


def test_two_stores_see_each_others_items_while_a_file_is_held_open(tmp_path):
    stores = [ItemStore(Diary(tmp_path, agent="rules", durability="process")) for _ in range(2)]
    notes = ("alice", "notes")
    stores[0].run([Put(notes, "first", {"text": "x"})])
    keys = {"first"}
    file = tmp_path / "alice/items/notes.toml"
    age(file)
    with file.open("ab"):
        for number in range(6):
            store = stores[number % 2]
            store.run([Put(notes, f"k{number}", {"text": "x"})])
            store.update(notes, "count", lambda old: {"n": (old or {"n": 0})["n"] + 1})
            keys |= {f"k{number}", "count"}
            for each in stores:
                (found,) = each.run([Search(notes, limit=100)])
                assert {item.key for item in found} == keys
    stores[0].run([Put(notes, "last", {"text": "x"})])
    fresh = ItemStore(Diary(tmp_path, agent="rules"))
    found = {item.key: item.value for item in fresh.run([Search(notes, limit=100)])[0]}
    assert found.keys() == keys | {"last"}
    assert found["count"] == {"n": 6}
    assert verify(fresh.diary.engine.backend, "alice") is None


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("guards", ["both", "log", "file time", "none"])
def test_each_guard_of_unpublished_writes_is_needed(alice, monkeypatch, guards):
    other = Diary(alice.diary.engine.backend.base_path, agent="rules", durability="process")
    other = other.user("alice")
    real = known_documents._is_current

    def looks_at_the_file_only(cached, token, kind, _changes, **_):
        return real(cached, token, kind, None, is_written=False)

    if guards in {"file time", "none"}:
        monkeypatch.setattr(known_documents, "_is_current", looks_at_the_file_only)
    if guards in {"log", "none"}:
        alice.diary.engine.backend.files.set_mode = lambda *_: None  # the change time stays
        other.diary.engine.backend.files.set_mode = lambda *_: None
    texts(alice)
    texts(other)
    first = other.upsert_preference("likes", "of another")[0]
    sees_it = "of another" in texts(alice)
    second = alice.upsert_preference("likes", "mine")[0]
    assert sees_it == (guards in {"both", "file time"})
    is_whole = verify(alice.diary.engine.backend, "alice") is None
    assert (is_whole and first != second) == (guards != "none")
