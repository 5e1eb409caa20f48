"""A document that history does not tell of is new, whatever was remembered of history before."""

from __future__ import annotations

import shutil
from dataclasses import replace
from zlib import crc32

import pytest

from hand_edits import age
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.engine.engine import Source
from tomldiary.history.record import HEADER, Record, parse_record, render_record
from tomldiary.history.timeline import Timeline
from tomldiary.runtime.lru import Recent
from tomldiary.store.operations import Put
from tomldiary.store.store import ItemStore


def put(diary, kind, value=1, operation=""):
    source = Source("put", operation=operation)
    diary.engine.write("alice", lambda tx: tx.edit(kind).put(("x",), {"n": value}), source)


def removed(file):
    file.unlink()
    age(file.parent)


def types(diary):
    return [parse_record(text).type for text in diary.engine.backend.records("alice")][::-1]


@pytest.fixture
def diary(tmp_path, files):
    backend = LocalBackend(tmp_path / "m", durability="process", files=files)
    return Diary(backend, agent="rules")


def test_a_removed_document_of_another_process_is_not_new(diary, tmp_path):
    put(diary, "items/a")
    put(diary, "items/b")  # what history tells of is known now
    other = Diary(tmp_path / "m", agent="rules", durability="process")
    put(other, "items/c")
    removed(tmp_path / "m/alice/items/c.toml")
    put(diary, "items/c", 2)
    assert types(diary) == ["put", "put", "put", "hand", "put"]


def test_a_document_that_another_process_has_forgotten_is_new(tmp_path):
    one = Diary(tmp_path, agent="rules")
    put(one, "items/a")
    ItemStore(one).run([Put(("alice", "b"), "k", {"text": "secret"})])
    put(one, "items/a", 2)
    two = Diary(tmp_path, agent="rules")
    put(two, "items/a", 3, "known")  # the whole history is indexed now
    one.user("alice").forget(key="items/b/k")
    last = two.user("alice").last_transaction()
    ItemStore(two).run([Put(("alice", "b"), "j", {"text": "new"})])
    assert two.user("alice").last_transaction() == last + 1  # and no hand edit


def test_a_document_of_a_user_who_was_recreated_is_known(diary, tmp_path):
    for number in range(5):
        put(diary, f"items/k{number}")
    shutil.rmtree(tmp_path / "m/alice")
    other = Diary(tmp_path / "m", agent="rules", durability="process")
    put(other, "items/new")
    put(other, "items/other")
    removed(tmp_path / "m/alice/items/new.toml")
    put(diary, "items/new", 2)
    assert types(diary) == ["put", "put", "hand", "put"]


@pytest.mark.parametrize("operation", ["", "o"])
def test_documents_that_a_restored_history_lacks_are_logged_again(diary, tmp_path, operation):
    for key in "abc":
        put(diary, f"items/{key}")
    (segment,) = (tmp_path / "m/alice/history").iterdir()
    restored = segment.read_bytes()
    put(diary, "items/b", 2, operation)
    put(diary, "items/d", 2)
    segment.write_bytes(restored)
    put(diary, "items/a", 2, operation and "p")
    assert types(diary) == ["put", "put", "put", "hand", "put"]
    timeline = Timeline(diary.engine.backend, "alice")
    assert all(timeline.text(f"items/{key}").endswith("n = 2\n") for key in "bd")


def test_an_index_of_records_that_were_not_stored_is_built_again(diary, tmp_path):
    put(diary, "items/a")
    put(diary, "items/b")
    index = diary.engine.whole_history("alice")
    index.newest, index.documents["items/c"] = 1, None  # of a step that was refused
    assert "items/c" not in diary.engine.whole_history("alice").documents


def test_new_documents_cause_no_scan_of_history(diary, files):
    for key in "ab":
        put(diary, f"items/{key}")  # history is read once, to know what is in it
    read = []
    files.hook = lambda name, path, *_: read.append(path) if name == "open_to_read" else None
    for number in range(5):
        put(diary, f"items/k{number}")
    assert read == []
    assert list(diary.engine.backend.records("alice"))
    assert len(read) == 1  # a scan would be seen
    assert types(diary) == ["put"] * 7


def test_records_of_this_process_are_not_read_back(diary, tmp_path, monkeypatch):
    put(diary, "items/a")
    put(diary, "items/b")
    read = []
    backend = diary.engine.backend
    records = backend.records
    monkeypatch.setattr(backend, "records", lambda user: read.append(user) or records(user))
    for number in range(5):
        put(diary, f"items/k{number}")
    assert read == []
    removed(tmp_path / "m/alice/items/k1.toml")
    put(diary, "items/k1", 2)
    assert types(diary)[-2:] == ["hand", "put"]


def test_the_record_of_a_hand_edit_is_not_read_back(diary, tmp_path, monkeypatch):
    put(diary, "items/a")
    put(diary, "items/b")
    file = tmp_path / "m/alice/items/a.toml"
    file.write_text(file.read_text().replace("n = 1", "n = 2"))
    age(file)
    put(diary, "items/a", 3)
    read = []
    backend = diary.engine.backend
    records = backend.records
    monkeypatch.setattr(backend, "records", lambda user: read.append(user) or records(user))
    put(diary, "items/b", 2)
    assert read == []
    assert types(diary) == ["put", "put", "hand", "put", "put"]


def test_records_of_another_process_are_read(diary, tmp_path):
    put(diary, "items/a")
    put(diary, "items/b")
    other = Diary(tmp_path / "m", agent="rules", durability="process")
    put(other, "items/theirs")
    put(diary, "items/a", 2)  # behind theirs, and not all that is new
    removed(tmp_path / "m/alice/items/theirs.toml")
    put(diary, "items/theirs", 2)
    assert types(diary)[-2:] == ["hand", "put"]


def test_the_index_of_all_users_is_only_used_under_its_lock(diary):
    # No race would show it: to look something up is a single step in CPython. So the lock is asked.
    index, asked = diary.engine.logged, []

    def ask(name):
        asked.append((name, index._guard.locked()))

    class Watched(Recent):
        def get(self, *args):
            ask("get")
            return super().get(*args)

        def keep(self, *args):
            ask("keep")
            return super().keep(*args)

    index._known = Watched(2)
    put(diary, "items/a")
    put(diary, "items/b")
    assert ("get", True) in asked
    assert ("keep", True) in asked
    assert all(is_locked for _, is_locked in asked)


def test_record_with_the_former_group_field_is_read():
    record = Record(7, "put", [], {}, {})
    body = render_record(record).partition('"\n')[2].replace("type =", "group = 6\ntype =", 1)
    text = f'{HEADER}check = "{crc32(body.encode()):08x}"\n{body}'
    assert parse_record(text) == replace(record, time=record.time)
