"""A document in another encoding than UTF-8 behaves like one that is no TOML: nothing stops, nothing is lost."""

from __future__ import annotations

import asyncio

import pytest

from hand_edits import age, texts
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.backends import MemoryBackend
from tomldiary.errors import DocumentError
from tomldiary.history.verify import verify
from tomldiary.storage.copy import copy_users
from tomldiary.store.operations import List, Put, Search
from tomldiary.store.store import ItemStore

ENCODINGS = {
    "UTF-16 with a mark": (
        lambda data: data.decode().encode("utf-16"),
        ":1:1: UTF-16 is not UTF-8",
    ),
    "UTF-16 without": (lambda data: data.decode().encode("utf-16-le"), ":1:"),
    "one Latin-1 byte": (
        lambda data: data.replace(b'"tea"', b'"th\xe9"'),
        "byte 0xe9 is not UTF-8",
    ),
    "no TOML": (lambda data: data + b"likes = [", ":"),
}


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path, agent="rules", durability="process")


@pytest.fixture
def alice(diary):
    alice = diary.user("alice")
    for text in ("tea", "coffee"):
        alice.upsert_preference("likes", text)
    diary.user("bob").upsert_preference("likes", "rum")
    return alice


@pytest.fixture(params=ENCODINGS)
def spoilt(request, file, alice):
    """The bytes of alice's file before and after a program has saved it in another encoding."""
    assert len(texts(alice)) == 2
    save, told = ENCODINGS[request.param]
    before = file.read_bytes()
    after = save(before)
    file.write_bytes(after)
    age(file)
    return before, after, told


@pytest.mark.parametrize("is_fresh", [True, False], ids=["new process", "same process"])
def test_reads_return_the_last_good_state_and_locate_the_error(
    tmp_path, alice, file, spoilt, is_fresh, caplog
):
    reader = Diary(tmp_path, agent="rules").user("alice") if is_fresh else alice
    assert texts(reader) == ["tea", "coffee"]
    assert str(file) + ":" in caplog.text
    assert spoilt[2] in caplog.text
    assert "coffee" in reader.render()


def test_writes_continue_in_history_until_the_file_is_repaired(tmp_path, alice, file, spoilt):
    before, after, _ = spoilt
    alice.upsert_preference("likes", "water")
    assert file.read_bytes() == after
    fresh = Diary(tmp_path, agent="rules").user("alice")
    assert texts(fresh) == texts(alice) == ["tea", "coffee", "water"]
    file.write_bytes(before.replace(b'"tea"', '"thé"'.encode()))
    age(file)
    fresh.upsert_preference("likes", "milk")
    assert texts(fresh) == texts(alice) == ["thé", "coffee", "water", "milk"]
    assert "water" in file.read_text(encoding="utf-8")
    assert verify(fresh.diary.engine.backend, "alice") is None


@pytest.mark.usefixtures("spoilt")
def test_turns_are_applied_and_none_is_parked(diary, alice):
    with MemoryWriter(diary) as writer:
        for number in range(3):
            writer.submit_nowait(Turn("alice", f"s{number}", f"I love thing{number}.", "ok"))
        assert writer.flush(30)
        assert writer.stats()["dead_letters"] == 0
    assert len(alice.conversations()) == 3


@pytest.mark.usefixtures("spoilt")
def test_other_users_are_listed(diary, alice):
    store = ItemStore(diary)
    assert diary.users() == ["alice", "bob"]
    assert ("bob", "diary", "preferences", "likes") in store.run([List()])[0]
    assert len(store.run([Search(())])[0]) == 3


def test_a_user_without_any_good_state_stops_no_listing(tmp_path, diary, alice, caplog):
    path = tmp_path / "carol/preferences.toml"
    path.parent.mkdir()
    path.write_bytes(b'[preferences.likes.pref001]\ntext = "th\xe9"\n')
    age(path)
    store = ItemStore(diary)
    store.run([Put(("bob", "notes"), "one", {"text": "rum"})])
    (path.parent / "items").mkdir()
    (path.parent / "items/notes.toml").write_bytes(b'[items.x]\ntext = "th\xe9"\n')
    names = store.run([List()])[0]
    assert {labels[0] for labels in names} == {"alice", "bob"}
    assert {item.namespace[0] for item in store.run([Search(())])[0]} == {"alice", "bob"}
    assert f"{path}:2:11: the byte 0xe9 is not UTF-8. Save the file as UTF-8." in caplog.text
    with pytest.raises(DocumentError, match=":2:11: the byte 0xe9"):
        diary.user("carol").preferences()
    with pytest.raises(DocumentError, match=r"notes\.toml:2:11"):
        store.run([Search(("carol", "notes"))])


def test_a_byte_order_mark_changes_nothing(tmp_path, alice, file):
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    age(file)
    alice.upsert_preference("likes", "water")
    assert texts(Diary(tmp_path, agent="rules").user("alice")) == ["tea", "coffee", "water"]
    assert file.read_bytes().startswith(b"\xef\xbb\xbf")


def test_the_six_methods_refuse_another_encoding(diary, alice, file):
    backend = diary.engine.backend
    file.write_bytes(file.read_bytes().replace(b"tea", b"th\xe9"))
    with pytest.raises(DocumentError, match="not UTF-8"):
        asyncio.run(backend.load("alice", "preferences"))
    with pytest.raises(DocumentError, match="not UTF-8"):
        asyncio.run(backend.save("alice", "preferences", "x = 1\n"))
    assert alice.preferences("likes")


def test_a_copy_of_another_encoding_is_refused(diary, alice, file):
    file.write_bytes(file.read_bytes().replace(b"tea", b"th\xe9"))
    target = MemoryBackend()
    with pytest.raises(DocumentError, match="not UTF-8"):
        list(copy_users(diary.engine.backend, target))
    assert target.users() == ["bob"]


def test_a_backend_save_over_a_hand_edit_keeps_history_consistent(diary, alice, file):
    file.write_bytes(file.read_bytes().replace(b"tea", b"rum"))
    age(file)
    text = file.read_text().replace("coffee", "gin")
    asyncio.run(diary.engine.backend.save("alice", "preferences", text))
    assert verify(diary.engine.backend, "alice") is None
    assert texts(alice) == ["rum", "gin"]
