"""Forgetting a session forgets the namespaces that it alone has used: their labels name what was said, too."""

from __future__ import annotations

import pytest

from hand_edits import age
from processes import close
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.history.verify import verify
from tomldiary.store.operations import List, Put
from tomldiary.store.store import ItemStore

CANARY = "zanzibar"
SHORT, NESTED, LONG = (
    ("alice", f"therapy with Dr {CANARY}"),
    ("alice", "notes", CANARY, "deep"),
    ("alice", f"{CANARY} {'x' * 200}"),
)
OPEN = ("alice", "hobbies")


@pytest.fixture(params=["files", "memory"])
def diary(request, tmp_path):
    return Diary(tmp_path if request.param == "files" else "memory:", agent="rules")


def put(diary, session, *namespaces, key="one", value="secret"):
    store = ItemStore(diary)
    for namespace in namespaces:
        store.run([Put(namespace, key, value and {"text": f"{value} {session}"})], session=session)


def names(diary):
    return ItemStore(diary).run([List()])[0]


def traces(folder):
    """Where the secret is: in the names and contents of all files."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if CANARY in str(path.relative_to(folder))
        or (path.is_file() and CANARY.encode() in path.read_bytes())
    ]


def is_forgotten(diary, folder):
    backend = diary.engine.backend
    if diary.engine.backend.durability == "none":
        texts = [*backend.records("alice"), *backend.kinds("alice")]
        return not any(CANARY in text for text in texts) and verify(backend, "alice") is None
    fresh = Diary(folder, agent="rules")
    fresh_names = names(fresh)
    is_whole = verify(fresh.engine.backend, "alice") is None
    close(fresh)
    return traces(folder) == [] and is_whole and fresh_names == names(diary)


def test_a_namespace_of_only_the_session_is_removed(diary, tmp_path):
    put(diary, "s1", SHORT, NESTED, LONG, OPEN)
    put(diary, "s2", OPEN, key="two")
    assert set(names(diary)) == {SHORT, NESTED, LONG, OPEN}
    diary.user("alice").forget(session_id="s1")
    assert names(diary) == [OPEN]
    assert is_forgotten(diary, tmp_path)
    put(diary, "s3", OPEN, key="three")
    assert names(diary) == [OPEN]


def test_a_namespace_whose_items_were_deleted_is_removed(diary, tmp_path):
    put(diary, "s1", SHORT, NESTED)
    put(diary, "s1", SHORT, value=None)
    diary.user("alice").forget(session_id="s1")
    assert is_forgotten(diary, tmp_path)


def test_a_namespace_that_another_session_used_stays(diary):
    put(diary, "s1", SHORT)
    put(diary, "s2", SHORT, key="two")
    diary.user("alice").forget(session_id="s1")
    assert names(diary) == [SHORT]
    assert [item.key for item in ItemStore(diary).below(SHORT)[0].ordered] == ["two"]


def test_a_namespace_keeps_the_history_of_a_removed_item_of_another_session(diary):
    put(diary, "s2", OPEN, key="two")
    put(diary, "s2", OPEN, key="two", value=None)
    put(diary, "s1", OPEN)
    alice = diary.user("alice")
    alice.forget(session_id="s1")
    found = [each.before or each.after for each in alice.history("items/hobbies/two")]
    assert [each["text"] for each in found] == ["secret s2", "secret s2"]


def test_a_new_item_creates_the_namespace_again(diary):
    put(diary, "s1", SHORT)
    diary.user("alice").forget(session_id="s1")
    put(diary, "s2", SHORT)
    assert names(diary) == [SHORT]
    assert verify(diary.engine.backend, "alice") is None


def test_a_removed_document_of_the_session_leaves_no_trace(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    put(diary, "s1", SHORT)
    put(diary, "s2", OPEN)
    (document,) = (tmp_path / "alice/items").glob("therapy*")
    document.unlink()
    age(tmp_path / "alice/items")
    diary.user("alice").forget(session_id="s1")
    assert is_forgotten(diary, tmp_path)


def test_a_hand_written_comment_keeps_the_document(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    put(diary, "s1", SHORT)
    (document,) = (tmp_path / "alice/items").glob("therapy*")
    text = document.read_text()
    document.write_text(f"# my own note\n\n{text}")
    age(document)
    diary.user("alice").forget(session_id="s1")
    assert "# my own note" in document.read_text()
    assert "secret" not in document.read_text()
    assert verify(diary.engine.backend, "alice") is None


@pytest.mark.parametrize("step", range(2, 9))
def test_an_interrupted_forget_is_finished_by_the_next_open(tmp_path, files, step):
    diary = Diary(LocalBackend(tmp_path, files=files), agent="rules")
    put(diary, "s1", SHORT, NESTED)
    put(diary, "s2", OPEN)
    left = [step]

    def stopping(name, *_):
        left[0] -= name in {"unlink", "rmdir"}
        if left[0] == 0:
            raise KeyboardInterrupt

    files.hook = stopping
    try:
        diary.user("alice").forget(session_id="s1")
    except KeyboardInterrupt:
        close(diary)
    diary = Diary(tmp_path, agent="rules")
    assert names(diary) == [OPEN]
    assert is_forgotten(diary, tmp_path)


def test_an_item_that_is_saved_by_hand_during_a_forget_keeps_its_namespace(tmp_path, files):
    diary = Diary(LocalBackend(tmp_path, files=files), agent="rules")
    put(diary, "s1", SHORT)
    [document] = tmp_path.glob("alice/items/**/*.toml")
    text = document.read_text()

    def save(name, path, *_):
        if name == "replace" and path.endswith("/.forgetting-0"):
            document.write_text(f'{text}\n[items.two]\ntext = "mine"\n')

    files.hook = save
    diary.user("alice").forget(session_id="s1")
    files.hook = None
    age(document)
    assert [item.key for item in ItemStore(diary).below(SHORT)[0].ordered] == ["two"]
    assert "secret" not in document.read_text()
