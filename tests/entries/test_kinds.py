"""A kind of entries is defined in one place; every verb learns of it from the registry."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tomldiary import Diary
from tomldiary.doctor.doctor import check
from tomldiary.engine.engine import Source
from tomldiary.entries.kind import EntryKind
from tomldiary.entries.kinds import KINDS, PREFERENCES, entry_key, entry_path, path_of, register
from tomldiary.entries.kinds.collections import checked_value, collections
from tomldiary.errors import InvalidValue, UnknownEntry
from tomldiary.store.operations import Get, Put
from tomldiary.store.store import ItemStore
from tomldiary.store.typed_entries import TypedEntries
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit
from tomldiary.views.show import as_text

TASKS = ("tasks",)


class TaskKind(EntryKind):
    """`[tasks.key]`: something to do until a day, after which it does not count."""

    def is_timed(self, document):
        return document is not None and self.name in document.data

    def current(self, document, rules, at):
        return lambda _, entry: str(entry.get("until", "9")) > at.date().isoformat()


@pytest.fixture
def tasks():
    yield register(TaskKind("tasks", texts=("title",), labels="tags"))
    del KINDS["tasks"]


@pytest.fixture
def diary(tasks, tmp_path):
    return Diary(tmp_path)


@pytest.fixture
def alice(diary):
    add(diary, "t1", title="Water the orchids", tags=["garden"])
    return diary.user("alice")


def add(diary, key, session="s1", **value):
    def write(tx):
        fresh = checked_value(TASKS, key, value)
        now = datetime.now(UTC).isoformat()
        TypedEntries(diary, tx.user, tx, session).apply([(TASKS, key, fresh)], now)

    diary.engine.write("alice", write, Source("put", session))


def test_recall_finds_entries_of_a_new_kind(alice):
    hit = alice.recall("orchids")[0]
    assert (hit.kind, hit.key, hit.text) == ("tasks", "t1", "Water the orchids")
    assert alice.recall("garden", kinds=["tasks"])
    assert not alice.recall("orchids", kinds=["facts"])


def test_render_shows_entries_of_a_new_kind(alice):
    assert "tasks/t1: Water the orchids" in alice.render()


def test_the_card_of_a_user_shows_entries_of_a_new_kind(alice):
    assert "Water the orchids" in as_text(alice)


def test_an_entry_that_is_put_without_a_time_has_the_present_one(alice, diary, tasks):
    def write(tx):
        tasks.put(tx.writing(diary), TASKS, "t2", {"title": "Sell the kayak"})

    diary.engine.write("alice", write, Source("put"))
    (change,) = alice.history("tasks/t2")
    assert change.after["_created"] > "2020"


def test_export_and_import_carry_a_new_kind(alice, diary):
    exported = alice.export()
    assert "Water the orchids" in exported["documents"]["tasks"]
    bob = diary.user("bob")
    assert bob.import_(exported) == ["tasks"]
    assert bob.recall("orchids")
    assert alice.profile()["tasks"] == 1


def test_history_and_rollback_cover_a_new_kind(alice, diary):
    add(diary, "t1", title="Water the cactus")
    changes = alice.history("tasks/t1")
    assert [change.after["title"] for change in changes] == [
        "Water the cactus",
        "Water the orchids",
    ]
    assert alice.why("tasks/t1").session == "s1"
    alice.rollback()
    assert alice.recall("orchids")
    assert not alice.recall("cactus")


def test_forget_removes_a_session_from_a_new_kind(alice, diary, tmp_path):
    add(diary, "t2", session="s2", title="Sell the kayak")
    assert alice.forget(session_id="s2").entries == 1
    assert [hit.key for hit in alice.recall("kayak orchids")] == ["t1"]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"kayak" in content for content in files)


def test_a_new_kind_can_expire_entries(alice, diary):
    add(diary, "t2", title="Water the orchids twice", until="2020-01-01")
    assert [hit.key for hit in alice.recall("orchids")] == ["t1"]
    assert "twice" not in alice.render()
    past = datetime(2019, 1, 1, tzinfo=UTC)
    assert {hit.key for hit in alice.recall("orchids", valid_at=past)} == {"t1", "t2"}


def test_stores_show_a_new_kind_as_a_namespace(alice, diary):
    assert TASKS in collections(diary)
    store = ItemStore(diary)
    place = ("alice", "diary", "tasks")
    (item,) = store.run([Get(place, "t1")])
    assert item.value["title"] == "Water the orchids"
    store.run([Put(place, "t2", {"title": "Sell the kayak"})])
    assert alice.recall("kayak")
    with pytest.raises(InvalidValue, match="title: expected text"):
        store.run([Put(place, "t3", {"title": 3})])


def test_doctor_checks_the_fields_of_a_new_kind(alice, diary, tmp_path):
    path = tmp_path / "alice" / "tasks.toml"
    path.write_text(path.read_text().replace('title = "Water the orchids"', "title = 7"))
    found = [finding.message for finding in check(diary) if "tasks" in finding.place]
    assert found == ["tasks.t1.title: expected text, found number"]
    assert alice.recall("orchids") == []


def test_a_new_kind_has_keys(tasks):
    assert entry_key(("tasks", "t1")) == "tasks/t1"
    assert entry_path("tasks", ("tasks", "t1", "steps")) == ("tasks", "t1")
    assert path_of("tasks/t1", ["likes"]) == ("tasks", "t1")
    assert path_of("tasks/t1", ["tasks"]) == ("preferences", "tasks", "t1")  # a category goes first
    with pytest.raises(UnknownEntry, match="tasks/key"):
        path_of("unknown", [])
    del KINDS["tasks"]
    with pytest.raises(UnknownEntry):
        path_of("tasks/t1", [])
    register(tasks)


def test_the_names_of_kinds_come_before_categories():
    assert path_of("preferences/likes/x", ["preferences"]) == ("preferences", "likes", "x")
    assert path_of("preferences/x", ["preferences"]) == ("preferences", "preferences", "x")
    assert path_of("conversations/x", ["conversations"]) == ("conversations", "x")
    assert path_of("likes/x", ["likes"]) == ("preferences", "likes", "x")
    assert path_of("diet/x", [], ["diet"]) == ("facts", "diet", "x")
    assert path_of("facts/diet/x", ["facts"], ["diet"]) == ("facts", "diet", "x")
    assert path_of("facts/pref001", ["facts"], ["diet"]) == ("preferences", "facts", "pref001")
    assert PREFERENCES.path("preferences/x") is None


def test_ids_of_a_category_without_a_table_are_not_assigned_again():
    edit = Edit(Document.parse("[preferences.old.pref005]\ntext = 'tea'\n"))
    PREFERENCES.remove(edit, [("preferences", "old", "pref005")])
    assert edit.table(("_meta",))["next_ids"] == {"old": 6}
