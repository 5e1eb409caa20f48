"""Documents in folders of a user's folder: listed, private, recovered, and never elsewhere."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from file_systems import SetClock
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.backends import LocalBackend
from tomldiary.doctor.doctor import check
from tomldiary.engine.engine import Source
from tomldiary.errors import BackendError, IdentifierError, InvalidValue, UnsafeDocument
from tomldiary.storage.files import FileSystem
from tomldiary.storage.local.publish import staged_path


@pytest.fixture(params=["local", "memory"])
def nested(request, tmp_path):
    return Diary(tmp_path / "m" if request.param == "local" else "memory:", agent="rules")


def put(diary, kind, text, user="alice"):
    def change(tx):
        tx.edit(kind).put(("entries", "one"), {"text": text})

    diary.engine.write(user, change, Source("test"))


def test_a_document_may_be_in_a_folder(nested):
    put(nested, "episodes/2026-11", "met Bo")
    put(nested, "items/work/a%2fb", "one")
    put(nested, "items/work/a/b", "another")
    backend = nested.engine.backend
    assert backend.kinds("alice") == ["episodes/2026-11", "items/work/a%2fb", "items/work/a/b"]
    assert "met Bo" in nested.user("alice").document("episodes/2026-11")
    assert '"one"' in nested.user("alice").document("items/work/a%2fb")
    assert backend.users() == ["alice"]


@pytest.mark.parametrize(
    "call",
    [
        lambda nested: nested.users(),
        lambda nested: nested.user("bob").preferences(),
        lambda nested: nested.user("bob").upsert_preference("likes", "tea"),
        lambda nested: nested.user("bob").forget(everything=True),
        lambda nested: MemoryWriter(nested).submit_nowait(Turn("bob", "s", "I love tea.", "ok")),
    ],
    ids=["users", "read", "write", "forget", "writer"],
)
@pytest.mark.parametrize("user", ["alice", "Ann", "x" * 200])
def test_the_folder_of_a_user_is_no_memory(tmp_path, user, call):
    above = Diary(tmp_path / "m", agent="rules")
    above.user(user).upsert_preference("likes", "jazz")
    folder = above.backend.folder(user)
    shutil.rmtree(tmp_path / "m/.tomldiary")  # a clone of git has none
    before = sorted(folder.rglob("*"))
    with pytest.raises(InvalidValue, match="folder of one user") as refused:
        call(Diary(folder, agent="rules"))
    assert f"Diary({str(tmp_path / 'm')!r}).user({user!r})" in str(refused.value)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "call",
    [
        lambda backend: backend.users(),
        lambda backend: backend.token("bob", "preferences"),
        lambda backend: backend.lock("bob", 1.0).__enter__(),
        lambda backend: backend.journal_folder,
    ],
    ids=["users", "read", "write", "writer"],
)
def test_a_backend_refuses_the_folder_of_a_user(tmp_path, call):
    """Python 3.11 already refuses it as a diary is made, because it looks for the folder of journals then."""
    Diary(tmp_path, agent="rules").user("alice").upsert_preference("likes", "jazz")
    with pytest.raises(InvalidValue, match="folder of one user"):
        call(LocalBackend(tmp_path / "alice"))
    assert not (tmp_path / "alice/.tomldiary").exists()


def test_a_memory_may_be_in_a_folder_of_a_memory(tmp_path):
    Diary(tmp_path, agent="rules").user("alice").upsert_preference("likes", "jazz")
    inner = Diary(tmp_path / "team", agent="rules")
    inner.user("history").upsert_preference("likes", "tea")
    assert Diary(tmp_path / "team", agent="rules").users() == ["history"]


@pytest.mark.parametrize(
    "call",
    [
        lambda user: user.upsert_preference("likes", "tea"),
        lambda user: user.add_turn("I love tea.", "ok", "s1"),
        lambda user: user.forget(everything=True),
        lambda user: user.forget(matching="jazz"),
        lambda user: asyncio.run(user.diary.backend.delete_user(user.user_id)),
    ],
    ids=["write", "turn", "forget", "matching", "delete"],
)
def test_a_memory_is_no_user_of_the_folder_above(tmp_path, call):
    memory = Diary(tmp_path / "m", agent="rules")
    memory.user("alice").upsert_preference("likes", "jazz")
    before = {path: path.read_bytes() for path in (tmp_path / "m").rglob("*.toml")}
    above = Diary(tmp_path, agent="rules")
    assert above.users() == []
    assert above.user("m").export()["documents"] == {}
    with pytest.raises(InvalidValue, match="memory with users of its own") as refused:
        call(above.user("m"))
    assert f"Diary({str(tmp_path / 'm')!r})" in str(refused.value)
    assert {path: path.read_bytes() for path in (tmp_path / "m").rglob("*.toml")} == before
    assert Diary(tmp_path / "m", agent="rules").users() == ["alice"]


def test_documents_of_one_folder_are_listed_alone(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    backend = diary.engine.backend
    for kind in ("items/work/a", "items/b", "items2/c", "episodes/2026-11"):
        put(diary, kind, "x")
    (tmp_path / "alice/items/.hidden.toml").touch()
    (tmp_path / "alice/items/empty").mkdir()
    assert backend.listing("alice", "items/") == ["items/b", "items/work/a"]
    assert backend.listing("alice", "facts/") == []
    assert backend.listing("bob", "items/") == []
    (tmp_path / "alice/facts").symlink_to(tmp_path / "alice/items")
    assert backend.listing("alice", "facts/") == []


def test_a_folder_is_listed_again_only_if_a_name_in_it_has_changed(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    backend, folder = diary.engine.backend, tmp_path / "alice/items"
    put(diary, "items/a", "x")
    put(diary, "items/work/b", "x")

    def settled():
        time.sleep(0.05)  # longer than a folder counts as just changed
        backend.listing("alice", "items/")
        listed = backend.listing("alice", "items/")
        assert backend.listing("alice", "items/") is listed
        return listed

    assert settled() == ["items/a", "items/work/b"]
    put(diary, "items/a", "changed")
    assert settled() == ["items/a", "items/work/b"]
    (folder / "work/c.toml").touch()
    assert backend.listing("alice", "items/") == settled()
    (folder / "new/deep").mkdir(parents=True)
    assert settled() == ["items/a", "items/work/b", "items/work/c"]
    (folder / "new/deep/d.toml").touch()
    assert backend.listing("alice", "items/")[1] == "items/new/deep/d"
    (folder / "a.toml").unlink()
    assert settled() == ["items/new/deep/d", "items/work/b", "items/work/c"]


def test_documents_in_folders_are_private_and_recovered(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    put(diary, "items/work/a%2fb", "old")
    file = tmp_path / "alice/items/work/a%2fb.toml"
    before = file.read_bytes()
    put(diary, "items/work/a%2fb", "new")
    after = file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    # Killed between history and exchange: the new text is staged, the old one in place.
    file.write_bytes(before)
    Path(staged_path(tmp_path / "alice", "items/work/a%2fb", after, 2)).write_bytes(after)
    assert '"new"' in Diary(tmp_path, agent="rules").user("alice").document("items/work/a%2fb")
    assert file.read_bytes() == after
    assert not list((tmp_path / "alice").glob(".staged-*"))


@pytest.mark.skipif(not FileSystem().has_exchange, reason="needs an exchange of files")
@pytest.mark.parametrize(("mode", "kept"), [(0o400, 0o400), (0o444, 0o400), (0o644, 0o600)])
def test_a_document_that_is_read_only_stays_so_and_is_private(tmp_path, mode, kept):
    alice = Diary(tmp_path, agent="rules").user("alice")
    file = tmp_path / "alice/preferences.toml"
    for change in (
        lambda: alice.upsert_preference("likes", "rye", session_id="s2"),
        alice.rollback,
        lambda: alice.forget(session_id="s1"),
    ):
        alice.upsert_preference("likes", "tea", session_id="s1")
        file.chmod(mode)
        change()
        assert file.stat().st_mode & 0o777 == kept


@pytest.mark.parametrize(
    "kind", ["owner", "history/2026-11-001", "../bob/x", "a//b", "/a", "a/.b", "A", "x" * 181]
)
def test_reserved_and_escaping_document_names_are_refused(tmp_path, kind):
    diary = Diary(tmp_path, agent="rules")
    with pytest.raises(IdentifierError):
        put(diary, kind, "x")
    assert list(tmp_path.rglob("*.toml")) == []


def test_a_linked_folder_is_neither_written_to_nor_listed_nor_emptied(tmp_path):
    diary = Diary(tmp_path / "m", agent="rules")
    put(diary, "blocks", "x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "work.toml").write_text('[entries.one]\ntext = "theirs"\n')
    (tmp_path / "m/alice/items").symlink_to(outside)
    for reader in (diary, Diary(tmp_path / "m", agent="rules")):
        with pytest.raises(BackendError, match="link"):
            reader.engine.document("alice", "items/work")
    with pytest.raises(BackendError, match="link"):
        put(diary, "items/work", "ours")
    assert "theirs" not in "".join(diary.engine.backend.records("alice"))
    with pytest.raises(BackendError, match="link"):
        diary.engine.backend.erase("alice", "items/work")
    assert diary.engine.backend.kinds("alice") == ["blocks"]
    diary.user("alice").forget(everything=True)
    assert (outside / "work.toml").read_text() == '[entries.one]\ntext = "theirs"\n'


def test_a_folder_that_cannot_be_inspected_is_an_error_of_the_storage(tmp_path, files):
    diary = Diary(LocalBackend(tmp_path, files=files), agent="rules")
    put(diary, "items/work", "one")

    def broken(name, path, *_):
        if name == "lstat" and path.endswith("alice/items"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    files.hook = broken
    with pytest.raises(BackendError, match="alice/items: cannot be read"):
        diary.engine.backend.read("alice", "items/work")


def test_a_linked_segment_of_history_is_neither_read_nor_cut_off(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("no record\n")
    Diary(tmp_path / "m", agent="rules").user("alice").upsert_preference("likes", "tea")
    [segment] = (tmp_path / "m/alice/history").iterdir()
    segment.unlink()
    segment.symlink_to(outside)
    alice = Diary(tmp_path / "m", agent="rules").user("alice")
    for use in (alice.preferences, alice.history, lambda: alice.set_block("persona", "calm")):
        with pytest.raises(BackendError, match=r"001.toml: cannot be read \(it is a link\)"):
            use()
    assert outside.read_text() == "no record\n"


def test_a_linked_folder_of_history_is_neither_read_nor_written_to(tmp_path):
    outside = tmp_path / "outside"
    Diary(tmp_path / "m", agent="rules").user("alice").upsert_preference("likes", "tea")
    (tmp_path / "m/alice/history").rename(outside)
    (tmp_path / "m/alice/history").symlink_to(outside)
    [segment] = outside.iterdir()
    before = segment.read_bytes()
    diary = Diary(tmp_path / "m", agent="rules")
    alice = diary.user("alice")
    for use in (
        alice.preferences,
        alice.history,
        lambda: alice.set_block("persona", "calm"),
        lambda: alice.forget(matching="tea"),
        lambda: alice.forget(everything=True),
    ):
        with pytest.raises(BackendError, match="alice/history: is a link"):
            use()
    assert [path.read_bytes() for path in outside.iterdir()] == [before]
    assert any("alice/history: is a link" in found.message for found in check(diary))


def test_a_link_whose_target_cannot_be_inspected_is_no_document(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea", session_id="s1")
    (tmp_path / "alice/notes.toml").symlink_to("notes.toml")
    assert [hit.text for hit in alice.recall("tea")] == ["tea"]
    assert alice.forget(session_id="s1").entries == 1


def test_forgetting_covers_documents_in_folders(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    put(diary, "episodes/2026-11", "canary")
    diary.user("alice").forget(everything=True)
    assert not (tmp_path / "alice").exists()


@pytest.mark.parametrize(
    "name",
    [
        "preferences (1)",
        "Notes",
        "items/My Notes",
        "é",
        "x" * 200,
        ".preferences",
        ".ipynb_checkpoints/preferences-checkpoint",  # JupyterLab's editor makes it at each save
        "history/.ipynb_checkpoints/2026-11-001-checkpoint",
    ],
)
def test_a_copy_with_an_invalid_name_is_reported_and_blocks_forget(tmp_path, name):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "secret tea", session_id="s1")
    alice.upsert_preference("likes", "coffee", session_id="s2")
    copy = tmp_path / f"alice/{name}.toml"
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes((tmp_path / "alice/preferences.toml").read_bytes())
    assert diary.engine.backend.kinds("alice") == ["preferences"]
    assert list(alice.export()["documents"]) == ["preferences"]
    told = check(diary, ["alice"], mounts=tmp_path / "none")
    assert str(copy) in [one.place for one in told if "no file of the diary" in one.message]
    with pytest.raises(BackendError, match=r"Nothing was forgotten\. Remove the file"):
        alice.forget(session_id="s1")
    assert "secret tea" in (tmp_path / "alice/preferences.toml").read_text()
    copy.unlink()
    (tmp_path / "alice/.#preferences.toml").symlink_to("me@here.1")  # the lock of an editor
    (tmp_path / "alice/._preferences.toml").touch()  # macOS makes it on other file systems
    alice.forget(session_id="s1")
    copy.write_text("secret tea")
    assert "secret tea" not in (tmp_path / "alice/preferences.toml").read_text()
    alice.forget(everything=True)
    assert not (tmp_path / "alice").exists()


@pytest.mark.parametrize("name", ["preferences.toml~", ".preferences.toml.swp", "items/a.toml.bak"])
def test_a_copy_that_an_editor_left_is_reported(tmp_path, name):
    diary = Diary(tmp_path, agent="rules")
    diary.user("alice").upsert_preference("likes", "tea")
    copy = tmp_path / f"alice/{name}"
    copy.parent.mkdir(mode=0o700, exist_ok=True)
    copy.write_text("tea")
    copy.chmod(0o600)
    staged = tmp_path / "alice/.staged-9-1.0123abcd.1-a.toml.tmp"
    staged.touch(0o600)
    os.utime(staged, (0, 0))
    assert [one for one in check(diary) if "copy" in one.message] == []  # the editor is open
    os.utime(copy, (0, 0))
    found = [one for one in check(diary) if "copy" in one.message]
    assert [(one.level, one.place) for one in found] == [("warning", str(copy))]


@pytest.mark.parametrize(
    "name",
    [
        "2026-11-001 (copy)",
        "2026-11-001.sync-conflict-20261123-101010-ABCDEFG",
        "9999-12-backup",
        "old/2026-11-001",
    ],
)
def test_a_copy_of_a_segment_is_not_read_and_blocks_forget(tmp_path, name):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "secret tea", session_id="s1")
    (segment,) = (tmp_path / "alice/history").iterdir()
    copy = tmp_path / f"alice/history/{name}.toml"
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes(segment.read_bytes())
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "coffee", session_id="s2")
    assert [one.seq for one in alice.history()] == [2, 1]
    assert copy.read_bytes() in segment.read_bytes()
    told = check(diary, ["alice"], mounts=tmp_path / "none")
    assert str(copy) in [one.place for one in told if "no file of the diary" in one.message]
    with pytest.raises(BackendError, match=r"Nothing was forgotten\. Remove the file"):
        alice.forget(session_id="s1")
    copy.unlink()
    alice.forget(session_id="s1")
    assert "secret tea" not in segment.read_text()


def test_a_copy_with_a_valid_name_is_reported_and_blocks_forget(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "secret tea", session_id="s1")
    copy = tmp_path / "alice/preferences-old.toml"
    copy.write_bytes((tmp_path / "alice/preferences.toml").read_bytes())
    assert [hit.text for hit in alice.recall("tea")] == ["secret tea"]
    (problem,) = alice.problems()
    assert "nothing reads this table" in str(problem)
    assert "preferences-old" in str(problem)
    with pytest.raises(InvalidValue, match=r"preferences-old.*Nothing was forgotten"):
        alice.forget(session_id="s1")
    assert "secret tea" in (tmp_path / "alice/preferences.toml").read_text()
    alice.forget(everything=True)
    assert not (tmp_path / "alice").exists()


class CoarseFiles(FileSystem):
    """A file system that stores the times of folders in even seconds."""

    def folder_time(self, path):
        found = super().folder_time(path)
        return max(found, 0) // 2_000_000_000 * 2_000_000_000


class MeasuredFiles(FileSystem):
    """A file system that knows the most bytes that were read of one file."""

    most = 0

    def read_all(self, descriptor):
        found = super().read_all(descriptor)
        self.most = max(self.most, len(found))
        return found


def test_a_document_that_is_too_large_is_not_read(tmp_path):
    Diary(tmp_path, agent="rules").user("alice").upsert_preference("likes", "tea")
    path = tmp_path / "alice/preferences.toml"
    with path.open("r+b") as file:
        file.truncate(17 << 20)
    files = MeasuredFiles()
    alice = Diary(LocalBackend(tmp_path, files=files, clock=SetClock("next")), agent="rules").user(
        "alice"
    )
    assert alice.preferences()["likes"]["pref001"].text == "tea"
    alice.upsert_preference("likes", "coffee")
    assert path.stat().st_size == 17 << 20
    with pytest.raises(UnsafeDocument, match="larger than 16384 KiB"):
        alice.forget(matching="tea")
    alice.forget(everything=True)
    assert 0 < files.most < 1 << 20


class TimelessFiles(FileSystem):
    """A file system that never changes the times of folders."""

    def folder_time(self, path):
        return min(super().folder_time(path), 1)


def test_new_documents_are_found_where_folders_have_times_in_even_seconds(tmp_path):
    alice, other = (
        Diary(LocalBackend(tmp_path, files=CoarseFiles()), agent="rules").user("alice")
        for _ in range(2)
    )
    alice.upsert_preference("likes", "tea")
    for user in (alice, other):
        assert [hit.kind for hit in user.recall("tea")] == ["preferences"]
    alice.add_episode("tea", "with milk")
    for user in (alice, other):
        assert {hit.kind for hit in user.recall("tea")} == {"preferences", "episodes"}


def test_forgetting_finds_documents_that_no_folder_time_shows(tmp_path):
    backend = LocalBackend(tmp_path, files=TimelessFiles())
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    alice.recall("tea")
    Diary(tmp_path, agent="rules").user("alice").add_episode("tea", "with milk")
    alice.forget(matching="tea")
    assert "tea" not in "".join(path.read_text() for path in tmp_path.glob("alice/**/*.toml"))


def test_a_document_below_a_link_is_not_read(tmp_path):
    Diary(tmp_path / "m", agent="rules").user("alice").upsert_preference("likes", "tea")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/work.toml").write_text('[entries.one]\ntext = "of another program"\n')
    (tmp_path / "m/alice/items").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BackendError, match="items: is a link"):
        LocalBackend(tmp_path / "m").read("alice", "items/work")


@pytest.mark.parametrize(
    ("folder", "options", "where"),
    [
        (b"memories", {}, "path"),
        ("memories", {"segment_bytes": 0}, "segment_bytes"),
        ("memories", {"checkpoint_interval": 0}, "checkpoint_interval"),
    ],
)
def test_an_unusable_option_of_a_folder_is_named(folder, options, where):
    with pytest.raises(InvalidValue) as caught:
        LocalBackend(folder, **options)
    assert caught.value.where == where


def test_reading_a_user_who_does_not_exist_creates_nothing(tmp_path):
    assert Diary(tmp_path / "m", agent="rules").user("alice").preferences("likes") == {}
    assert not (tmp_path / "m").exists()
