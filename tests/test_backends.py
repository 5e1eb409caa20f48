"""The backends of this package, and any object with six async methods, pass the public suite."""

from __future__ import annotations

import asyncio
import os

import pytest

from tomldiary import Diary
from tomldiary.backends import LocalBackend, MemoryBackend
from tomldiary.errors import BackendError, CommittedUnpublished, InvalidTOML
from tomldiary.testing import BackendSuite


class TestLocalBackend(BackendSuite):
    def make_backend(self, tmp_path):
        return LocalBackend(tmp_path / "memories")


class TestLocalBackendWithoutSync(BackendSuite):
    def make_backend(self, tmp_path):
        return LocalBackend(path=tmp_path / "memories", durability="process")


class TestMemoryBackend(BackendSuite):
    def make_backend(self, tmp_path):
        return MemoryBackend()


class Dictionary:
    """Storage of somebody else's: six methods, nothing of this package."""

    def __init__(self):
        self.documents = {}
        self.broken = set()

    async def load(self, user_id, kind):
        await asyncio.sleep(0)
        return self.documents.get(user_id, {}).get(kind)

    async def save(self, user_id, kind, content):
        await asyncio.sleep(0)
        if kind in self.broken:
            raise OSError("no route to storage")
        self.documents.setdefault(user_id, {})[kind] = content

    async def exists(self, user_id, kind):
        return kind in self.documents.get(user_id, {})

    async def delete(self, user_id, kind):
        self.documents.get(user_id, {}).pop(kind, None)

    async def delete_user(self, user_id):
        self.documents.pop(user_id, None)

    async def list_users(self):
        return sorted(self.documents)


class TestSixMethods(BackendSuite):
    def make_backend(self, tmp_path):
        return Dictionary()


def test_a_suite_can_fail(tmp_path):
    class Forgetful(Dictionary):
        async def save(self, user_id, kind, content):
            await super().save(user_id, kind, content.replace("# kept\n", ""))

    suite = BackendSuite()
    with pytest.raises(AssertionError):
        suite.test_a_diary_on_it_keeps_comments(Forgetful())


def test_six_methods_say_what_they_cannot_do():
    stats = Diary(Dictionary(), agent="rules").stats()
    assert (stats["is_atomic"], stats["is_shared"]) == (False, False)


def test_a_failing_save_says_whether_anything_was_saved():
    storage = Dictionary()
    diary = Diary(storage, agent="rules")
    storage.broken = {"preferences", "conversations"}
    with pytest.raises(BackendError, match="Nothing was changed"):
        asyncio.run(diary.update_memory("u", "s", "I love tea.", "ok"))
    storage.broken = {"conversations"}
    with pytest.raises(CommittedUnpublished, match="preferences was saved"):
        asyncio.run(diary.update_memory("u", "s", "I love tea.", "ok"))


def test_saving_what_does_not_parse_is_refused_and_changes_nothing(tmp_path):
    backend = LocalBackend(tmp_path)
    asyncio.run(backend.save("u", "preferences", "a = 1\n"))
    with pytest.raises(InvalidTOML, match=r"preferences\.toml:2:3"):
        asyncio.run(backend.save("u", "preferences", "a = 1\nb 2\n"))
    assert (tmp_path / "u/preferences.toml").read_text() == "a = 1\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_in_place_of_a_document_is_an_error_and_keeps_nobody_waiting(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    path = tmp_path / "alice/preferences.toml"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BackendError, match="is not a regular file"):
        alice.preferences("likes")
    path.unlink()
    alice.upsert_preference("likes", "milk")
    assert "milk" in path.read_text()


def test_a_folder_may_be_given_under_both_names(tmp_path):
    assert LocalBackend(tmp_path).base_path == LocalBackend(path=tmp_path).base_path
    with pytest.raises(TypeError, match="one folder"):
        LocalBackend()


@pytest.mark.parametrize("bad", [object(), 3, "s3://bucket"])
def test_what_is_no_backend_is_refused_with_what_it_needs(bad):
    with pytest.raises(BackendError, match=r"needs the methods|no backend for"):
        Diary(bad, agent="rules")
