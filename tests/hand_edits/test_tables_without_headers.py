"""Entries that a person wrote inline or with dotted keys merge and roll back like those with headers."""

from __future__ import annotations

import pytest

from hand_edits import age, texts
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import EntryConflict
from tomldiary_langgraph import DiaryStore

META = '[_meta]\nversion = "0.3"\nschema_name = "DefaultPrefTable"\nseq = 1\n\n'
LAYOUTS = {
    "inline entries": META
    + '[preferences.likes]\na = {text = "tea"} # one\nb = {text = "jazz"}\n# two\n',
    "inline categories": META
    + '[preferences]\nlikes = {a = {text = "tea"}, b = {text = "jazz"}} # one\n# two\n',
    "an inline document": '_meta = {version = "0.3", schema_name = "DefaultPrefTable", seq = 1}\n'
    'preferences = {likes = {a = {text = "tea"}, b = {text = "jazz"}}} # one\n# two\n',
    "dotted keys in a category": META
    + '[preferences.likes]\na.text = "tea" # one\nb.text = "jazz"\n# two\n',
    "dotted keys": META
    + '[preferences]\nlikes.a.text = "tea" # one\nlikes.b.text = "jazz"\n# two\n',
    "a dotted document": '_meta.version = "0.3"\n_meta.schema_name = "DefaultPrefTable"\n_meta.seq = 1\n'
    'preferences.likes.a.text = "tea" # one\npreferences.likes.b.text = "jazz"\n# two\n',
}


@pytest.fixture
def alice(tmp_path):
    return Diary(LocalBackend(tmp_path, durability="process"), agent="rules").user("alice")


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS)
def written(request, alice, file):
    """A file that a person has written anew, and that the diary has written to since."""
    alice.upsert_preference("likes", "tea", id="a")
    file.write_text(request.param)
    age(file)
    alice.upsert_preference("goals", "rest", id="g")
    assert texts(alice) == ["tea", "jazz"]
    return file


one_of_each_form = pytest.mark.parametrize(
    "written", [LAYOUTS["inline categories"], LAYOUTS["dotted keys"]], indirect=True
)


def change(alice):
    alice.upsert_preference("likes", "bebop", id="b")
    alice.upsert_preference("likes", "water", id="c")


def test_an_older_buffer_reverts_no_write_to_such_entries(alice, written):
    buffer = written.read_text()
    change(alice)
    written.write_text(buffer.replace('"tea"', '"green tea"') + "# mine\n")
    age(written)
    assert texts(alice) == ["green tea", "bebop", "water"]
    alice.upsert_preference("work", "a baker")
    assert texts(alice) == ["green tea", "bebop", "water"]
    assert all(f"# {each}\n" in written.read_text() for each in ("one", "two", "mine"))


@one_of_each_form
def test_an_older_buffer_brings_no_such_entry_back(alice, written):
    buffer = written.read_text()
    alice.remove_preference("likes", "b")
    written.write_text(buffer.replace('"tea"', '"green tea"'))
    age(written)
    assert texts(alice) == ["green tea"]


@one_of_each_form
def test_a_second_save_of_a_buffer_reverts_no_write_to_such_entries(alice, written):
    buffer = written.read_text().replace('"tea"', '"green tea"')
    written.write_text(buffer)
    age(written)
    change(alice)
    alice.upsert_preference("likes", "black tea", id="a")
    written.write_text(f"{buffer}# mine\n")
    age(written)
    assert texts(alice) == ["black tea", "bebop", "water"]


@one_of_each_form
def test_a_save_during_a_transaction_reverts_no_such_entry(alice, written):
    buffer = written.read_text()
    with alice.transaction() as tx:
        tx.upsert_preference("likes", "bebop", id="b")
        written.write_text(buffer.replace('"tea"', '"green tea"'))
        age(written)
    assert texts(alice) == ["green tea", "bebop"]


@one_of_each_form
def test_both_changes_of_one_such_entry_are_a_conflict_in_history(alice, written):
    buffer = written.read_text()
    change(alice)
    written.write_text(buffer.replace('"jazz"', '"swing"'))
    age(written)
    alice.upsert_preference("work", "a baker")
    assert texts(alice) == ["tea", "swing", "water"]
    conflicts = [entry for entry in alice.history() if entry.is_conflict]
    assert [(each.before["text"], each.after["text"]) for each in conflicts] == [("bebop", "swing")]


def test_such_an_entry_is_rolled_back(alice, written):
    before = alice.preferences("likes")
    change(alice)
    assert alice.rollback(2).keys == ["likes/b", "likes/c"]
    assert alice.preferences("likes") == before
    alice.remove_preference("likes", "b")
    alice.rollback()
    assert alice.preferences("likes") == before


@one_of_each_form
def test_such_an_entry_that_a_save_lacks_is_waited_for(alice, written):
    lines = written.read_text().replace(', b = {text = "jazz"}', "").split("\n")
    written.write_text("\n".join(line for line in lines if "jazz" not in line))
    assert texts(alice) == ["tea", "jazz"]
    age(written)
    assert texts(alice) == ["tea"]


@one_of_each_form
def test_such_an_entry_is_imported_into_a_memory_that_has_others(alice, written):
    export = alice.export()
    bob = alice.diary.user("bob")
    bob.upsert_preference("likes", "rock", id="z")
    bob.import_(export)
    assert texts(bob) == ["rock", "tea", "jazz"]
    carla = alice.diary.user("carla")
    carla.upsert_preference("likes", "coffee", id="a")
    with pytest.raises(EntryConflict, match=r"preferences\.likes\.a"):
        carla.import_(export)
    assert texts(carla) == ["coffee"]


@one_of_each_form
def test_a_secret_in_such_an_entry_is_redacted_when_it_is_imported(alice, written, tmp_path):
    written.write_text(written.read_text().replace("jazz", "ann@example.org"))
    age(written)
    bob = Diary(LocalBackend(tmp_path), agent="rules", redact=True).user("bob")
    bob.import_(alice.export())
    assert texts(bob) == ["tea", "[redacted: email]"]


@pytest.mark.parametrize(
    ("newline", "mark"),
    [("\n", "\ufeff"), ("\r\n", "")],
    ids=["with a byte order mark", "crlf"],
)
def test_changes_of_such_entries_keep_line_endings_and_comments(alice, written, newline, mark):
    text = mark + written.read_text().replace("\n", newline)
    written.write_bytes(text.encode())
    age(written)
    change(alice)
    alice.remove_preference("likes", "a")
    alice.remove_preference("goals", "g")
    alice.upsert_preference("likes", "tea", id="a")
    assert sorted(texts(alice)) == ["bebop", "tea", "water"]
    saved = written.read_bytes().decode()
    assert saved.startswith(mark)
    assert saved.count("\r\n") == (saved.count("\n") if newline == "\r\n" else 0)
    assert f"# two{newline}" in saved


def test_the_last_entry_of_a_dotted_category_is_removed(alice, file):
    alice.upsert_preference("likes", "tea", id="a")
    file.write_text(LAYOUTS["dotted keys"] + 'goals.g.text = "rest" # three\n')
    age(file)
    alice.remove_preference("goals", "g")
    assert not alice.preferences("goals")
    alice.upsert_preference("goals", "sleep", id="h")
    assert texts(alice, "goals") == ["sleep"]


def test_an_older_buffer_brings_no_list_below_a_table_without_a_header_back(tmp_path):
    store, file = DiaryStore(tmp_path), tmp_path / "alice/items/m.toml"
    for key in ("a", "b"):
        store.put(("alice", "m"), key, {"x": 1})
    file.write_text(f"{file.read_text()}\n[[items.a.home.rooms]]\nn = 1\n")
    age(file)
    store.put(("alice", "m"), "b", {"x": 2})
    buffer = file.read_text()
    store.put(("alice", "m"), "a", {"x": 1})
    file.write_text(buffer.replace("x = 2", "x = 3"))
    age(file)
    assert [store.get(("alice", "m"), key).value for key in "ab"] == [{"x": 1}, {"x": 3}]
