"""History names each version of a document by the digest of the whole file."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from tomldiary import Diary
from tomldiary.history.record import parse_record
from tomldiary.history.verify import verify
from tomldiary.storage.local.publish import is_as_staged, staged_path

MANY = 300


def by_the_book(data):
    return sha256(data).hexdigest()[:32]


def filled(folder, word="thing"):
    user = Diary(folder, agent="rules", max_prefs_per_category=10**4).user("alice")
    with user.transaction():
        for number in range(MANY):
            user.upsert_preference("likes", f"this is {word} {number}", id=f"e{number}")
    return user


def last_record(user):
    return parse_record(user.diary.engine.backend.last_record("alice"))


@pytest.mark.parametrize("word", ["thing", "grünes 🌱"])
def test_history_holds_the_digest_of_a_long_document(tmp_path, word):
    user = filled(tmp_path, word)
    file = tmp_path / "alice/preferences.toml"
    changes = [
        lambda: user.upsert_preference("likes", "changed and longer than before", id="e150"),
        lambda: user.upsert_preference("goals", "a new one"),
        lambda: user.forget_preference("likes", "e2"),
        lambda: file.write_text(file.read_text().replace("this is", "THIS IS", 3)),
        lambda: user.upsert_preference("likes", "ü", id="e250"),
        user.rollback,
    ]
    for number, change in enumerate(changes):
        change()
        user.upsert_preference("likes", f"an early one, {number}", id="e10")
        assert last_record(user).results["preferences"] == by_the_book(file.read_bytes())
    assert verify(user.diary.engine.backend, "alice") is None


def test_a_staged_file_is_recognised_by_its_digest(tmp_path):
    data = filled(tmp_path).document("preferences").encode()
    name = Path(staged_path(tmp_path, "preferences", data, 3)).name
    assert is_as_staged(name, data, newest=3)
    for saved in (data + b"# saved\n", b"\xff", data + b"\xff", b""):
        assert not is_as_staged(name, saved, newest=3)
