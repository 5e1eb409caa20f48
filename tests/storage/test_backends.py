"""The backends of this package, and any object with six async methods, pass the public suite."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from langgraph.store.base import PutOp
from pydantic import BaseModel

from hand_edits import age
from six_verbs import SixVerbs
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.backends import LocalBackend, MemoryBackend
from tomldiary.errors import (
    BackendError,
    CommittedUnpublished,
    HandEditConflict,
    IdentifierError,
    InvalidTOML,
    InvalidValue,
    NotSupported,
)
from tomldiary.storage.async_methods import AsyncVerbs
from tomldiary.storage.protocol import Commit
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.testing import AtomicBackendSuite, BackendSuite, SharedBackendSuite
from tomldiary_langgraph import DiaryStore


class TestLocalBackend(SharedBackendSuite):
    def make_backend(self, tmp_path):
        return LocalBackend(tmp_path / "memories")

    def open_again(self, backend):
        return LocalBackend(backend.base_path, durability=backend.durability)

    def opening_code(self, backend):
        return f"backend = {str(backend.base_path)!r}"

    def stored_text(self, backend):
        files = [path for path in sorted(backend.base_path.rglob("*")) if path.is_file()]
        return "\n".join(f"{path}\n{path.read_bytes().decode(errors='replace')}" for path in files)


class TestMemoryBackend(AtomicBackendSuite):
    # No document is divided here, so its size makes no difference.
    test_a_document_of_three_megabytes_is_read_changed_and_erased = None

    def make_backend(self, tmp_path):
        return MemoryBackend()


class Dictionary(SixVerbs):
    """A backend of a third party that waits in its methods, and fails to save the kinds in `broken`."""

    def __init__(self):
        super().__init__()
        self.broken = set()
        self.connections = 100

    async def load(self, user_id, kind):
        await asyncio.sleep(0)
        return await super().load(user_id, kind)

    async def save(self, user_id, kind, content):
        if not self.connections:
            raise TimeoutError
        self.connections -= 1
        await asyncio.sleep(0)
        self.connections += 1
        if kind in self.broken:
            raise OSError("no route to storage")
        await super().save(user_id, kind, content)


class TestSixMethods(BackendSuite):
    def make_backend(self, tmp_path):
        return Dictionary()


def test_the_backend_suite_fails_for_a_broken_backend(tmp_path):
    class Forgetful(Dictionary):
        async def save(self, user_id, kind, content):
            await super().save(user_id, kind, content.replace("# kept\n", ""))

    suite = BackendSuite()
    with pytest.raises(AssertionError):
        suite.test_a_diary_on_it_keeps_comments(Forgetful())


def test_the_backend_suite_leaves_out_each_capability_of_the_page():
    page = (Path(__file__).parents[2] / "docs/backends.md").read_text("utf-8")
    table = page.partition("| capability |")[2].partition("\n\n")[0]
    [mark] = BackendSuite.test_a_diary_works_without_an_optional_capability.pytestmark
    named = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert sorted(each.__name__ for each in mark.args[1]) == sorted(named)


def test_a_backend_of_six_methods_names_what_it_lacks():
    stats = Diary(Dictionary(), agent="rules").stats()
    assert (stats["is_atomic"], stats["is_shared"]) == (False, False)


def test_a_backend_of_six_methods_keeps_the_newest_records_of_some_users_only():
    """Each quotes a change, and those of very many users would fill the memory of a server."""
    diary = Diary(Dictionary(), agent="rules")
    alice, backend = diary.user("alice"), diary.engine.backend
    alice.upsert_preference("likes", "tea")
    for number in range(300):
        backend.commit(f"user {number}", Commit({}, {}, ["x" * 100_000]))
    assert backend.last_record("user 299") is not None
    assert sum(backend.last_record(f"user {number}") is not None for number in range(300)) < 200
    assert backend.last_record("alice") is None
    alice.upsert_preference("likes", "coffee")
    stored = Diary(backend.wrapped, agent="rules").user("alice").preferences("likes")
    assert [item.text for item in stored.values()] == ["tea", "coffee"]


def test_a_failing_save_reports_whether_anything_was_saved():
    storage = Dictionary()
    diary = Diary(storage, agent="rules")
    storage.broken = {"preferences", "conversations"}
    with pytest.raises(BackendError, match="Nothing was changed"):
        asyncio.run(diary.update_memory("u", "s", "I love tea.", "ok"))
    storage.broken = {"conversations"}
    with pytest.raises(CommittedUnpublished, match="preferences was saved"):
        asyncio.run(diary.update_memory("u", "s", "I love tea.", "ok"))


@pytest.mark.parametrize("made", [LocalBackend, lambda _: MemoryBackend()])
def test_a_document_is_erased_whether_or_not_it_exists(tmp_path, made):
    backend = made(tmp_path)
    backend.erase("alice", "preferences")
    Diary(backend, agent="rules").user("alice").upsert_preference("likes", "tea")
    for _ in range(2):
        backend.erase("alice", "preferences")
        assert backend.kinds("alice") == []


def test_hidden_documents_of_several_users_are_changed_at_once_without_loss():
    backend = MemoryBackend()
    users = [f"user{number:04d}" for number in range(4000)]

    def change(user):
        backend.change_hidden(user, ".letters", lambda _text, _epoch: user)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(change, users))
    finally:
        sys.setswitchinterval(interval)
    assert backend.holders(".letters") == users
    assert [backend.hidden(user, ".letters") for user in users] == users


@pytest.mark.parametrize("made", [LocalBackend, lambda _: MemoryBackend()])
def test_saving_the_stored_text_again_makes_no_transaction(tmp_path, made):
    backend = made(tmp_path)
    for text in ("a = 1\n", "a = 1\n", "a = 2\n"):
        asyncio.run(backend.save("u", "preferences", text))
    assert len(list(backend.records("u"))) == 2


def test_saving_invalid_toml_is_refused_and_changes_nothing(tmp_path):
    backend = LocalBackend(tmp_path)
    asyncio.run(backend.save("u", "preferences", "a = 1\n"))
    with pytest.raises(InvalidTOML, match=r"preferences\.toml:2:3"):
        asyncio.run(backend.save("u", "preferences", "a = 1\nb 2\n"))
    assert (tmp_path / "u/preferences.toml").read_text() == "a = 1\n"


def test_no_file_outside_the_folder_of_the_user_is_asked_for(tmp_path):
    backend = LocalBackend(tmp_path)
    asyncio.run(backend.save("bob", "preferences", "a = 1\n"))
    for verb in (backend.load, backend.exists, backend.delete):
        with pytest.raises(IdentifierError, match="cannot name a document"):
            asyncio.run(verb("alice", "../bob/preferences"))
    assert asyncio.run(backend.exists("bob", "preferences"))
    assert not asyncio.run(backend.exists("alice", "preferences"))


needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")


@pytest.mark.parametrize("made", [LocalBackend, lambda _: MemoryBackend()])
def test_no_document_is_deleted_or_saved_without_its_name(tmp_path, made):
    backend = made(tmp_path)
    alice = Diary(backend).user("alice")
    alice.upsert_preference("likes", "tea")
    for call in (
        backend.delete("alice", None),
        backend.save("alice", None, "a = 1"),
        backend.save("alice", "notes", None),
    ):
        with pytest.raises(InvalidValue, match=": expected text, found NoneType"):
            asyncio.run(call)
    for call in (backend.delete(None, "preferences"), backend.delete_user(None)):
        with pytest.raises(IdentifierError, match="a user id must be a string"):
            asyncio.run(call)
    assert alice.documents() == ["preferences"]
    assert alice.last_transaction() == 1


@needs_pipes
def test_a_pipe_in_place_of_a_document_is_an_error_without_waiting(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    path = tmp_path / "alice/preferences.toml"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BackendError, match="is not a regular file"):
        alice.preferences("likes")
    assert alice.forget(matching="tea").records == 1  # it syncs the documents first
    path.unlink()
    age(path.parent)
    alice.upsert_preference("likes", "milk")
    assert "milk" in path.read_text()


@needs_pipes
@pytest.mark.parametrize(
    "call",
    [
        lambda alice: alice.preferences("likes"),
        lambda alice: alice.history(),
        lambda alice: alice.upsert_preference("likes", "milk"),
    ],
)
def test_a_pipe_in_place_of_history_is_an_error_without_waiting(tmp_path, call):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    [segment] = (tmp_path / "alice/history").glob("*.toml")
    segment.unlink()
    os.mkfifo(segment)
    with pytest.raises(BackendError, match=f"{segment.name}: is not a regular file"):
        call(Diary(tmp_path, agent="rules").user("alice"))
    alice.forget(everything=True)
    assert not segment.exists()


def test_a_tilde_in_a_folder_name_stands_for_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Diary("~/memories").user("alice").set_block("persona", "Plain.")
    assert (tmp_path / "memories/alice/blocks.toml").exists()
    assert LocalBackend("~/memories").base_path == tmp_path / "memories"


@pytest.mark.parametrize("opened", [Diary, LocalBackend, lambda name: LocalBackend(path=name)])
def test_a_blank_folder_name_is_refused(opened):
    for name in ("", " "):
        with pytest.raises(BackendError, match="name of the folder is blank"):
            opened(name)


def test_a_relative_folder_in_a_removed_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    with pytest.raises(BackendError, match="memories: the current folder was removed"):
        Diary("memories")


def test_a_file_as_the_folder_is_refused_at_once(tmp_path):
    (tmp_path / "alice.toml").write_text("")
    (tmp_path / "link").symlink_to("alice.toml")
    for name in ("alice.toml", "link"):
        with pytest.raises(BackendError, match=f"{name}: is a file\\. Give a folder"):
            Diary(tmp_path / name)


def test_a_link_is_the_folder_that_it_names(tmp_path):
    (tmp_path / "link").symlink_to("disk")
    alice = Diary(tmp_path / "link", agent="rules").user("alice")
    with pytest.raises(BackendError, match="create the folder that it names, or mount its disk"):
        alice.upsert_preference("likes", "tea")
    (tmp_path / "disk").mkdir()
    alice.upsert_preference("likes", "tea")
    assert Diary(tmp_path / "disk").users() == Diary(tmp_path / "link").users() == ["alice"]


@pytest.mark.parametrize("name", ["\0x", "a\0", "\ud800"])
@pytest.mark.parametrize("opened", [Diary, LocalBackend])
def test_a_folder_name_with_an_impossible_character_is_refused(opened, name):
    with pytest.raises(BackendError, match="has a character that no name of a folder can have"):
        opened(name)


def test_both_argument_names_of_the_folder_are_accepted(tmp_path):
    assert LocalBackend(tmp_path).base_path == LocalBackend(path=tmp_path).base_path
    with pytest.raises(TypeError, match="one folder"):
        LocalBackend()


@pytest.mark.parametrize("bad", [object(), 3, "s3://bucket"])
def test_an_object_that_is_no_backend_is_refused_with_its_gaps(bad):
    with pytest.raises(BackendError, match=r"needs the methods|no backend for"):
        Diary(bad, agent="rules")


class SyncLoad(Dictionary):
    def load(self, user_id, kind):
        return None


class ByteLoad(Dictionary):
    async def load(self, user_id, kind):
        return b"likes = 1"


class YieldingUsers(Dictionary):
    async def list_users(self):
        yield "alice"


class NoUsers(Dictionary):
    async def list_users(self):
        return None


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Diary(Dictionary), "Dictionary is a class"),
        (lambda: Diary(SyncLoad()).user("alice").preferences(), "SyncLoad has a method that is no"),
        (
            lambda: Diary(ByteLoad()).user("alice").preferences(),
            "load returned bytes, expected text",
        ),
        (
            lambda: Diary(YieldingUsers()).users(),
            "YieldingUsers has a method that is not a coroutine function",
        ),
        (lambda: Diary(NoUsers()).users(), "list_users of NoUsers: expected a list of names"),
    ],
)
def test_a_backend_that_is_written_wrongly_is_told_what_is_wrong(make, named):
    with pytest.raises((BackendError, InvalidValue), match=named):
        make()


class TwoKinds(Dictionary):
    """Keeps preferences and conversations, and refuses every other kind."""

    files = {"preferences": "p", "conversations": "c"}  # noqa: RUF012 - a test's class

    def __init__(self, error=KeyError):
        super().__init__()
        self.error = error

    def check(self, kind):
        if kind not in self.files:
            raise self.error(kind)

    async def load(self, user_id, kind):
        self.check(kind)
        return await super().load(user_id, kind)

    async def save(self, user_id, kind, content):
        self.check(kind)
        await super().save(user_id, kind, content)

    async def exists(self, user_id, kind):
        self.check(kind)
        return await super().exists(user_id, kind)

    async def delete(self, user_id, kind):
        self.check(kind)
        await super().delete(user_id, kind)


class TestTwoKinds(BackendSuite):
    def make_backend(self, tmp_path):
        return TwoKinds(AssertionError)


class Diet(BaseModel):
    food: str


@pytest.mark.parametrize("error", [KeyError, ValueError, NotImplementedError, AssertionError])
def test_a_backend_of_two_kinds_serves_every_reading_verb(error):
    diary = Diary(TwoKinds(error), agent="rules")
    diary.register_schema("diet", Diet)
    alice = diary.user("alice")
    alice.add_turn("I love jazz.", "Noted.", session_id="s1")
    assert [hit.text for hit in alice.recall("jazz")] == ["I love jazz."]
    assert "I love jazz." in alice.render()
    assert alice.profile()["preferences"] == {"likes": 1}
    assert (alice.blocks(), alice.query("diet"), alice.episodes()) == ({}, [], [])
    assert alice.problems() == []
    exported = alice.export()
    assert sorted(exported["documents"]) == ["conversations", "preferences"]
    bob = Diary(TwoKinds(error), agent="rules").user("bob")
    bob.import_(exported)
    assert [hit.text for hit in bob.recall("jazz")] == ["I love jazz."]
    assert alice.forget(session_id="s1").entries == 1
    assert alice.recall("jazz") == []
    alice.forget(everything=True)
    assert diary.users() == []


def test_a_backend_of_two_kinds_refuses_facts_and_blocks_when_written():
    storage = TwoKinds()
    diary = Diary(storage, agent="rules")
    diary.register_schema("diet", Diet)
    alice = diary.user("alice")
    with pytest.raises(NotSupported, match="does not store documents of the kind blocks"):
        alice.set_block("persona", "kind")
    with pytest.raises(NotSupported, match="the kind facts"):
        alice.commit(Diet(food="vegan"))

    def both():
        with alice.transaction() as tx:
            tx.upsert_preference("likes", "tea")
            tx.set_block("persona", "kind")

    with pytest.raises(NotSupported, match="the kind blocks"):
        both()
    assert storage.texts == {}


@pytest.mark.parametrize(
    ("broken", "error"), [("facts", ConnectionError), ("preferences", KeyError)]
)
def test_a_storage_failure_is_not_taken_for_an_unknown_kind(broken, error):
    class Down(Dictionary):
        async def load(self, user_id, kind):
            if kind == broken:
                raise error("no route")
            return await super().load(user_id, kind)

    alice = Diary(Down(), agent="rules").user("alice")
    with pytest.raises(error):
        alice.recall("tea")


def test_six_methods_load_only_documents_they_can_list():
    asked = set()

    class Asked(Dictionary):
        async def load(self, user_id, kind):
            asked.add(kind)
            return await super().load(user_id, kind)

    diary = Diary(Asked(), agent="rules")
    alice = diary.user("alice")
    alice.add_turn("I love tea.", "Noted.", session_id="s")
    assert alice.document("episodes/2026-11") == ""
    alice.forget(session_id="s")
    assert asked <= {*diary.engine.backend.documents}


def test_the_first_write_with_six_methods_loads_only_its_own_document():
    storage, asked = Dictionary(), set()

    class Asked(Dictionary):
        async def load(self, user_id, kind):
            asked.add(kind)
            return await super().load(user_id, kind)

    Diary(storage, agent="rules").user("alice").blocks.set("persona", "kind")
    again = Asked()
    again.texts = storage.texts
    Diary(again, agent="rules").user("alice").upsert_preference("likes", "tea")
    assert asked == {"preferences"}


def test_six_methods_refuse_documents_they_cannot_list():
    storage = Dictionary()
    diary = Diary(storage, agent="rules")
    alice = diary.user("alice")
    with pytest.raises(NotSupported, match=r"cannot list its documents.*keeps only blocks, conv"):
        alice.add_episode("hi", "hello", session_id="s")
    with pytest.raises(NotSupported, match="so drafts would be stored but never found"):
        alice.draft("s").upsert_preference("likes", "tea")
    trusting = Diary(storage, agent="rules", quarantine={"web"}).user("alice")
    with pytest.raises(NotSupported, match="so pending changes would be stored but never found"):
        trusting.upsert_preference("likes", "tea", actor="web")
    store = DiaryStore(diary)
    with pytest.raises(NotSupported, match="never found"):
        store.put(("alice", "memories"), "k", {"text": "tea"})
    with pytest.raises(NotSupported, match="never found"):
        store.batch(
            [
                PutOp(("alice", "diary", "preferences", "likes"), "a", {"text": "tea"}),
                PutOp(("alice", "memories"), "k", {"text": "tea"}),
            ]
        )
    with pytest.raises(NotSupported, match="never found"):
        asyncio.run(store.aput(("alice", "memories"), "k", {"text": "tea"}))
    assert store.search(("alice",), query="tea") == []
    assert storage.texts == {}
    other = Diary("memory:", agent="rules").user("alice")
    other.add_episode("hi", "hello")
    with pytest.raises(NotSupported, match="never found"):
        alice.import_(other.export())
    assert storage.texts == {}


def test_six_methods_keep_facts_and_blocks_that_are_found_and_forgotten():
    diary = Diary(Dictionary(), agent="rules")
    diary.register_schema("diet", Diet)
    alice = diary.user("alice")
    alice.set_block("persona", "kind", session_id="s")
    alice.commit(Diet(food="vegan"), session_id="s")
    assert {hit.kind for hit in alice.recall("kind vegan")} == {"blocks", "facts"}
    assert sorted(alice.export()["documents"]) == ["blocks", "facts"]
    assert alice.forget(session_id="s").entries == 2
    assert alice.recall("kind vegan") == []
    assert diary.stats()["documents"] == [
        "blocks", "conversations", "facts", "preferences", "receipts",
    ]  # fmt: skip
    assert Diary("memory:", agent="rules").stats()["documents"] is None


class Hidden(LocalBackend):
    """Stores each document as base64, as a class written for TOMLDiary 0.9 would."""

    async def load(self, user_id, kind):
        text = await super().load(user_id, kind)
        return None if text is None else base64.b64decode(text).decode()

    async def save(self, user_id, kind, content):
        await super().save(user_id, kind, base64.b64encode(content.encode()).decode())


def test_a_backend_whose_methods_would_be_bypassed_is_refused(tmp_path):
    with pytest.raises(BackendError, match=r"Hidden overrides load, save of LocalBackend.*six"):
        Diary(Hidden(tmp_path), agent="rules")
    assert list(tmp_path.iterdir()) == []
    backend = MemoryBackend()
    backend.save = Dictionary().save
    with pytest.raises(BackendError, match="overrides save of MemoryBackend"):
        Diary(backend, agent="rules")
    sealed = type("Sealed", (SharedBackend,), {"save": Dictionary.save, "__init__": lambda _: None})
    with pytest.raises(BackendError, match="Sealed overrides save of SharedBackend"):
        Diary(sealed())
    placed = type("Placed", (LocalBackend,), {"_get_file_path": lambda *_: tmp_path})
    with pytest.raises(BackendError, match="Placed overrides _get_file_path of LocalBackend"):
        Diary(placed(tmp_path))


def test_a_folder_backend_with_other_additions_is_accepted(tmp_path):
    class Named(LocalBackend):
        def place(self, user, kind):
            return f"named {kind}"

        async def load_all(self):
            return []

    Diary(Named(tmp_path), agent="rules").user("alice").upsert_preference("likes", "tea")
    assert (tmp_path / "alice/preferences.toml").exists()


class Passing:
    """Passes every other attribute on to a backend."""

    def __init__(self, backend):
        self._backend = backend

    def __getattr__(self, name):
        return getattr(self._backend, name)


class Sealing(Passing):
    async def load(self, user_id, kind):
        text = await self._backend.load(user_id, kind)
        return None if text is None else base64.b64decode(text.removeprefix("# ")).decode()

    async def save(self, user_id, kind, content):
        sealed = base64.b64encode(content.encode()).decode()
        await self._backend.save(user_id, kind, f"# {sealed}")


def test_the_own_methods_of_an_object_around_a_folder_backend_are_called(tmp_path):
    alice = Diary(Sealing(LocalBackend(tmp_path)), agent="rules").user("alice")
    alice.add_turn("I love jazz.", "Noted.", "s1")
    alice.add_turn("I love chess.", "Noted.", "s1")
    assert [item.text for item in alice.preferences("likes").values()] == [
        "I love jazz.",
        "I love chess.",
    ]
    assert not [path for path in tmp_path.rglob("*.toml") if "jazz" in path.read_text()]
    inherited = type("Inherited", (AsyncVerbs, Passing), {})
    assert Diary(inherited(LocalBackend(tmp_path))).stats()["is_atomic"]


@pytest.mark.parametrize(
    "address", ["sqlite:./x.db", "sqlite:///x.db", "mysql://h/d", "redis:x", ":memory:"]
)
def test_an_address_without_a_backend_is_refused_and_makes_no_folder(
    tmp_path, monkeypatch, address
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackendError, match="no backend for this kind of address"):
        Diary(address, agent="rules")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "backend", ["redis://localhost/0", MemoryBackend(), "memory:"], ids=["URL", "object", "memory"]
)
def test_a_durability_that_would_have_no_effect_is_refused(backend):
    level = "often" if backend == "memory:" else "full"
    with pytest.raises((BackendError, InvalidValue), match="durability"):
        Diary(backend, agent="rules", durability=level)


def test_a_commit_over_another_version_changes_nothing(tmp_path):
    for backend in (MemoryBackend(), LocalBackend(tmp_path)):
        alice = Diary(backend, agent="rules").user("alice")
        alice.upsert_preference("likes", "tea")
        before = alice.document("preferences")
        with pytest.raises(HandEditConflict), backend.lock("alice", 1):
            backend.commit("alice", Commit({"preferences": b""}, {"preferences": None}, []))
        assert alice.document("preferences") == before


def test_one_document_of_a_backend_with_six_methods_can_be_erased():
    backend = Diary(Dictionary(), agent="rules").engine.backend
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    alice.blocks.set("notes", "calm")
    for _ in range(2):
        backend.erase("alice", "blocks")
    assert backend.kinds("alice") == ["preferences"]


def test_forgetting_drops_a_hidden_document_that_nothing_can_redact():
    backend = MemoryBackend()
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    backend.change_hidden("alice", ".of-a-newer-version", lambda *_: "tea")
    alice.forget(matching="tea")
    assert backend.hidden("alice", ".of-a-newer-version") == ""


def test_a_change_of_the_working_directory_moves_no_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    diary = Diary("memories", agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    alice.upsert_preference("likes", "walnut cake")
    with MemoryWriter(diary) as writer:
        writer.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted."))
    assert len(alice.preferences("likes")) == len(alice.recall("tea walnut cake jazz")) == 3
    assert alice.traces("walnut")
    alice.forget(matching="walnut")
    assert (alice.traces("walnut"), diary.users()) == ([], ["alice"])
    assert Diary(tmp_path / "memories", agent="rules").user("alice").last_transaction() == 4
    assert [*Path.cwd().iterdir()] == []
    assert alice.diary.backend.place("alice", "preferences") == "memories/alice/preferences.toml"


def test_a_folder_name_with_a_colon_needs_a_dot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("./notes:2026", Path("notes:2027")):
        Diary(place, agent="rules").user("alice").upsert_preference("likes", "tea")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes:2026", "notes:2027"]
