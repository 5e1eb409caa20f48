"""Entries that a person wrote inline or with dotted keys are changed like those with headers."""

from __future__ import annotations

import pytest

from hand_edits import age, texts
from tomldiary import Diary
from tomldiary.backends import LocalBackend

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


def change(alice):
    alice.upsert_preference("likes", "bebop", id="b")
    alice.upsert_preference("likes", "water", id="c")


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "with a byte order mark"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
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
