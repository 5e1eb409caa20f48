"""Long texts in pieces: where they are cut and what they are called follows from their bytes alone."""

from __future__ import annotations

import random
from hashlib import sha256
from zlib import crc32

import pytest

from tomldiary import Diary
from tomldiary.errors import DocumentError
from tomldiary.history.record import Change, Record, parse_record, redo, redone
from tomldiary.history.verify import verify
from tomldiary.storage.local import recovery
from tomldiary.storage.local import session as opened_users
from tomldiary.storage.local.layout import is_as_staged, staged_name
from tomldiary.toml import fingerprint as pieces
from tomldiary.toml.diff import Span
from tomldiary.toml.fingerprint import Pieces

MANY = 700  # entries, of some 200 bytes


def by_the_book(data):
    """A text's fingerprint as the documentation defines it, done the plain way."""
    if len(data) < pieces._LITTLE:
        return sha256(data).hexdigest()[:32]
    starts = [0] if data.startswith(b"[") else []
    starts += [at + 1 for at in range(len(data)) if data.startswith(b"\n[", at)]
    cuts = [0]
    for before, at in zip([None, *starts], starts, strict=False):
        table = data[(0 if before is None else before + 1) : at - 1] if at else b""
        if at - cuts[-1] >= pieces._LEAST and crc32(table) % pieces._ONE_IN == 0:
            cuts.append(at)
    parts = [data[begin:end] for begin, end in zip(cuts, [*cuts[1:], len(data)], strict=True)]
    if len(parts) == 1:
        return sha256(data).hexdigest()[:32]
    digests = b"".join(sha256(part).digest() for part in parts)
    return f"{sha256(digests).hexdigest()[:32]}-{len(parts)}"


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(pieces, "_LITTLE", 200)
    monkeypatch.setattr(pieces, "_LEAST", 40)
    monkeypatch.setattr(pieces, "_ONE_IN", 3)


FRAGMENTS = ["[", "\n", "\n[", "a", "é", "[x]\n", "k = 1\r\n", "\n[t.{}]\nv = 2\n", "😀"]


def words(choose, most):
    chosen = choose.choices(FRAGMENTS, k=choose.randint(0, most))
    return "".join(each.format(choose.randint(0, 99)) for each in chosen)


@pytest.mark.usefixtures("small")
def test_a_changed_text_has_the_pieces_of_one_that_is_cut_afresh():
    choose = random.Random(5)
    shared = 0
    for _ in range(400):
        text = words(choose, 200)
        cut = Pieces.of(text.encode())
        for _ in range(4):
            places = sorted(choose.sample(range(len(text) + 1), k=min(len(text), 6) // 2 * 2))
            spans = []
            for begin, stop in zip(places[::2], places[1::2], strict=True):
                end = choose.choice([begin, stop])
                spans.append(Span(begin, text[begin:end], choose.choice(["", words(choose, 12)])))
            record = Record(1, "", [Change("p", *span) for span in spans], {}, {})
            text = redo(text, record, "p")
            changed, afresh = redone(cut, record, "p"), Pieces.of(text.encode())
            assert [each.data for each in changed._pieces] == [each.data for each in afresh._pieces]
            assert changed.data == text.encode()
            assert (changed.characters, changed.length) == (len(text), len(text.encode()))
            assert changed.fingerprint == afresh.fingerprint == by_the_book(text.encode())
            shared += len(set(changed._pieces) & set(cut._pieces))
            cut = changed
    assert shared > 2500  # 1,900 if the piece behind a change were always cut again


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("word", ["plain", "grün"])
def test_a_change_that_does_not_fit_is_refused(word):
    text = "".join(f"[t.{number}]\nv = '{word}'\n" for number in range(60))
    cut, middle = Pieces.of(text.encode()), len(text) // 2
    assert len(cut._pieces) > 5
    wrong = [
        [Change("p", middle, "something else", "")],
        [Change("p", len(text), "v", "")],
        [Change("p", 5, text[5:9], ""), Change("p", 7, text[7:9], "")],
        [Change("p", -3, "", "x")],
    ]
    for changes in wrong:
        with pytest.raises(DocumentError, match="transaction 3 does not fit"):
            redone(cut, Record(3, "", changes, {}, {}), "p")


@pytest.mark.usefixtures("small")
def test_no_other_text_has_the_fingerprint_of_pieces():
    cut = Pieces.of("".join(f"[t.{number}]\nv = 1\n" for number in range(60)).encode())
    digests = b"".join(each.digest for each in cut._pieces)
    assert Pieces.of(digests).fingerprint != cut.fingerprint


def filled(folder, word="thing"):
    user = Diary(folder, agent="rules", max_prefs_per_category=10**4).user("alice")
    with user.transaction():
        for number in range(MANY):
            user.upsert_preference("likes", f"this is {word} {number}", id=f"e{number}")
    return user


def last_record(user):
    return parse_record(user.diary.engine.backend.last_record("alice"))


@pytest.mark.parametrize("word", ["thing", "grünes 🌱"])
def test_history_names_a_long_document_as_its_file_says(tmp_path, word):
    user = filled(tmp_path, word)
    file = tmp_path / "alice/preferences.toml"
    changes = [
        lambda: user.upsert_preference("likes", "changed and longer than before", id="e350"),
        lambda: user.upsert_preference("goals", "a new one"),
        lambda: user.forget_preference("likes", "e2"),
        lambda: file.write_text(file.read_text().replace("this is", "THIS IS", 3)),
        lambda: user.upsert_preference("likes", "ü", id="e600"),
        user.rollback,
    ]
    for change in changes:
        change()
        user.upsert_preference("likes", "the last one", id="e699")
        data = file.read_bytes()
        assert last_record(user).results["preferences"] == by_the_book(data)
        assert "-" in by_the_book(data)
    assert verify(user.diary.engine.backend, "alice") is None


def test_a_put_hashes_what_it_changes_of_a_long_document(tmp_path, monkeypatch):
    user = filled(tmp_path)
    user.upsert_preference("likes", "warm", id="e1")
    hashed = []

    def counting(data):
        hashed.append(len(data))
        return sha256(data)

    monkeypatch.setattr(pieces, "sha256", counting)
    user.upsert_preference("likes", "changed", id="e350")
    assert 0 < sum(hashed) < 0.4 * len(user.document("preferences"))


def test_a_staged_file_of_a_long_document_is_known_by_its_fingerprint(tmp_path):
    user = filled(tmp_path)
    data = user.document("preferences").encode()
    name = staged_name("preferences", data, 3, 1)
    assert is_as_staged(name, data, newest=3)
    for saved in (data + b"# saved\n", b"\xff", data + b"\xff", b""):
        assert not is_as_staged(name, saved, newest=3)


@pytest.mark.parametrize("of_then", [0, 2, 4])
def test_after_a_restart_a_version_of_a_long_document_is_known(tmp_path, monkeypatch, of_then):
    file = tmp_path / "alice/preferences.toml"
    versions = []
    monkeypatch.setattr(pieces, "_LEAST", 40)
    monkeypatch.setattr(pieces, "_ONE_IN", 1)
    monkeypatch.setattr(pieces, "_LITTLE", 200)
    alice = Diary(tmp_path, agent="rules").user("alice")
    for number in range(5):
        alice.upsert_preference("likes", f"thing {number}")
        versions.append(file.read_bytes())
    # A version is none that is torn, and is told before.
    monkeypatch.setattr(recovery, "is_torn", lambda *_: False)
    monkeypatch.setattr(opened_users, "may_lack_writes", lambda *_: True)
    file.write_bytes(versions[of_then])
    inode = file.stat().st_ino
    again = Diary(tmp_path, agent="rules").user("alice")
    assert len(again.preferences("likes")) == 5
    assert file.read_bytes() == versions[4]
    assert (file.stat().st_ino == inode) is (of_then == 4)
    assert "hand" not in [each.type for each in again.history()]
