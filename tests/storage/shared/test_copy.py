"""All users move from one storage to another, with documents, history and fencing tokens."""

from __future__ import annotations

import itertools
from contextlib import closing

import pytest
from typer.testing import CliRunner

import engines
from tomldiary import BackendError, Diary, Forgotten, MemoryWriter, Turn
from tomldiary.cli.app import app
from tomldiary.errors import DiaryError, DocumentError
from tomldiary.history.verify import verify
from tomldiary.storage.copy import copy_users
from tomldiary.storage.files import FileSystem
from tomldiary.storage.local.backend import LocalBackend
from tomldiary.storage.open import open_backend
from tomldiary.storage.protocol import Commit
from tomldiary.storage.shared.database import DatabaseAway
from tomldiary_langgraph import DiaryStore

ENGINES = engines.ALL
# A copy reads one storage and writes another: in a ring, each is read once and written once.
pairs = pytest.mark.parametrize(("source", "target"), [*itertools.pairwise([*ENGINES, ENGINES[0]])])


@pytest.fixture
def opened(tmp_path):
    backends, numbers = [], itertools.count()

    def open_one(name):
        if name in engines.SERVERS:
            backends.append(engines.space(name).backend())
            return backends[-1]
        return open_backend("memory:" if name == "memory" else tmp_path / str(next(numbers)), None)

    yield open_one
    for backend in backends:
        backend.close()


def fill(backend):
    diary = Diary(backend, agent="rules")
    for user in ("alice", "bob"):
        for number in range(6):
            diary.user(user).upsert_preference(
                "likes", f"drink {number}", session_id=f"s{number % 2}"
            )
        diary.user(user).forget(session_id="s1")
        DiaryStore(diary).put((user, "notes", "deep"), "one", {"text": "tea"})
    diary.user("bob").prune_history(keep=2)
    return diary


@pairs
def test_a_copy_goes_on_as_the_original_would(source, target, opened):
    one, two = opened(source), opened(target)
    before, after = fill(one), Diary(two, agent="rules")
    assert [each.is_new for each in copy_users(one, two)] == [True, True]
    assert [each.is_new for each in copy_users(one, two)] == [False, False]
    for user in ("alice", "bob"):
        old, new = before.user(user), after.user(user)
        assert two.epoch(user) == 1
        assert [entry.seq for entry in new.history()] == [entry.seq for entry in old.history()]
        assert {kind: new.document(kind) for kind in new.documents()} == {
            kind: old.document(kind) for kind in old.documents()
        }
        new.upsert_preference("likes", "water")
        assert new.last_transaction() == old.last_transaction() + 1
        assert DiaryStore(after).get((user, "notes", "deep"), "one").value == {"text": "tea"}
        assert verify(two, user) is None


def test_a_copy_of_a_copy_in_folders_is_the_same(opened):
    one, two, three = (opened("folder") for _ in range(3))
    fill(one)
    list(copy_users(one, two))
    assert len(list(copy_users(two, three))) == 2
    assert verify(three, "alice") is None
    assert Diary(three, agent="rules").user("alice").preferences("likes")


def test_a_copy_to_the_source_by_a_second_path_is_refused(tmp_path):
    class Bound(FileSystem):
        """As if `two` were a bind mount of `one`."""

        def stat(self, path):
            return super().stat(str(path).replace("two", "one"))

    one = LocalBackend(tmp_path / "one")
    fill(one)
    for place in ("two", "two/inside", "two/a/b"):
        with pytest.raises(BackendError, match="one is inside the other"):
            [*copy_users(one, LocalBackend(tmp_path / place, files=Bound()))]
    assert len([*copy_users(one, LocalBackend(tmp_path / "three", files=Bound()))]) == 2


@pytest.mark.parametrize("name", ENGINES)
def test_an_interrupted_copy_is_completed(name, opened):
    one, two = opened(name), opened("folder")
    diary, names = Diary(one, agent="rules"), [f"user {number:02}" for number in range(40)]
    for each in names:
        diary.user(each).upsert_preference("likes", "tea")
    copying = copy_users(one, two)
    next(copying)
    copying.close()
    assert "user 00" in two.users()
    assert [each.user for each in copy_users(one, two)] == two.users() == names


def test_a_copy_to_a_folder_that_was_killed_between_two_documents_is_completed(
    tmp_path, monkeypatch
):
    source, place = open_backend("memory:", None), tmp_path / "target"
    alice = Diary(source, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    alice.blocks.set("persona", "kind")
    target = open_backend(place, None)

    def dies(_user, _folder, _staging, new):
        if new:
            raise KeyboardInterrupt
        return {}

    # The history is stored, and no document is published.
    monkeypatch.setattr(target, "_publish", dies)
    with pytest.raises(KeyboardInterrupt):
        list(copy_users(source, target))
    again = open_backend(place, None)
    assert again.kinds("alice") == ["blocks"]  # recovery publishes those of the last transaction
    assert [each.is_new for each in copy_users(source, again)] == [True]
    assert [each.is_new for each in copy_users(source, again)] == [False]
    assert verify(again, "alice") is None
    copied = Diary(again, agent="rules").user("alice")
    copied.upsert_preference("likes", "milk")
    assert [item.text for item in copied.preferences("likes").values()] == ["tea", "milk"]
    assert copied.last_transaction() == alice.last_transaction() + 1


def test_another_state_of_a_user_is_not_overwritten(opened):
    one, two = opened("folder"), opened("folder")
    fill(one)
    Diary(two, agent="rules").user("alice").upsert_preference("likes", "milk")
    with pytest.raises(BackendError, match="the memory of 'alice' differs"):
        list(copy_users(one, two))
    assert [item.text for item in Diary(two).user("alice").preferences("likes").values()] == [
        "milk"
    ]


@pytest.mark.parametrize("name", ["postgres", "firestore"])
def test_a_user_whose_id_the_target_cannot_store_stops_no_other(name, opened):
    one, two = opened("folder"), opened(name)
    long = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))  # 3,000 bytes that cannot be compressed
    names = [f"user {number:02}" for number in range(20)]
    for user in (long, *names, f"{names[0]}a{long}"):
        Diary(one, agent="rules").user(user).upsert_preference("likes", "tea")
    with pytest.raises(BackendError, match=f"2 users were not copied: 'user 00a.*, '{long[:9]}"):
        list(copy_users(one, two))
    assert two.users() == names


def test_the_error_of_a_single_user_is_raised_unchanged(tmp_path):
    source = open_backend(tmp_path, None)
    Diary(source, agent="rules").user("alice").upsert_preference("likes", "tea")
    (tmp_path / "alice/preferences.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(DocumentError, match=r"alice/preferences\.toml"):
        list(copy_users(source, open_backend("memory:", None)))


@pytest.mark.parametrize("fault", ["link", "job"])
def test_a_copy_names_the_user_whose_folder_cannot_be_read(fault, opened, tmp_path):
    for user in ("alice", "bob"):
        Diary(tmp_path, agent="rules").user(user).upsert_preference("likes", "tea")
    if fault == "link":
        (tmp_path / "alice").rename(tmp_path / ".moved")
        (tmp_path / "alice").symlink_to("alice")
    else:
        (tmp_path / "alice/.forgetting.toml").write_text("x = [")
    target = opened("memory")
    with pytest.raises(DiaryError, match="/alice"):
        list(copy_users(open_backend(tmp_path, None), target))
    assert target.users() == ["bob"]


def test_a_copy_counts_no_folder_without_a_document(opened, tmp_path):
    Diary(tmp_path, agent="rules").user("alice").upsert_preference("likes", "tea")
    (tmp_path / "notes").mkdir()
    found = list(copy_users(open_backend(tmp_path, None), opened("memory")))
    assert [each.user for each in found] == ["alice"]


def test_a_copy_ends_if_the_database_cannot_be_reached(opened, monkeypatch):
    one, two = opened("folder"), opened("redis")
    for number in range(100):
        Diary(one, agent="rules").user(f"user {number:02}").upsert_preference("likes", "tea")
    asked = []

    def away(user, *_):
        asked.append(user)
        raise DatabaseAway("no answer")

    two.transactions.timeout = 0.1
    monkeypatch.setattr(two.database, "head", away)
    with pytest.raises(BackendError, match="cannot be reached"):
        list(copy_users(one, two))
    assert len(set(asked)) < 100


def test_a_user_who_changes_during_a_copy_is_copied_at_one_state(engine, tmp_path):
    target = open_backend(tmp_path / "target", None)
    with closing(engine.backend()) as source, closing(engine.backend()) as elsewhere:
        other = Diary(elsewhere, agent="rules").user("alice")
        other.upsert_preference("likes", "tea")
        read, late = source.read, ["coffee", "water"]

        def read_late(user, kind):
            if late:  # another process writes between the list of documents and their texts
                other.upsert_preference("likes", late.pop())
            return read(user, kind)

        source.read = read_late
        assert [each.is_new for each in copy_users(source, target)] == [True]
        copied = Diary(target, agent="rules").user("alice")
        assert [entry.seq for entry in copied.history()] == [3, 2, 1]
        assert copied.document("preferences") == other.document("preferences")
    assert verify(target, "alice") is None


@pytest.mark.parametrize("target", ENGINES)
def test_documents_of_tomldiary_0_9_are_copied_without_history(target, opened):
    one, two = opened("folder"), opened(target)
    names = ("preferences", "conversations")
    for user in ("alice", "bob"):
        folder = one.folder(user)
        folder.mkdir(parents=True)
        for name in names:
            head = f'[_meta]\nversion = "0.3"\nschema_name = "T"\n\n[{name}]\n'
            text = '[preferences.likes.pref001]\n_count = 1\ntext = "tea"\n'
            (folder / f"{name}.toml").write_text(
                head + (text if name == "preferences" else ""), "utf-8"
            )
    # Another copy of alice was interrupted between her two documents.
    content = one.read("alice", "conversations").text.encode()
    two.commit("alice", Commit({"conversations": content}, {"conversations": None}))
    assert [each.is_new for each in copy_users(one, two)] == [True, True]
    assert [each.is_new for each in copy_users(one, two)] == [False, False]
    diary = Diary(two, agent="rules")
    for user in ("alice", "bob"):
        assert [two.read(user, name).text for name in names] == [
            one.read(user, name).text for name in names
        ]
        diary.user(user).upsert_preference("likes", "milk")
        texts = [item.text for item in diary.user(user).preferences("likes").values()]
        assert texts == ["tea", "milk"]
        assert verify(two, user) is None


@pytest.mark.parametrize("name", ["memory", *engines.SERVERS])
def test_fencing_tokens_of_erased_users_are_copied(name, opened):
    one, two = opened(name), opened("folder")
    diary = fill(one)
    for user in ("carol", "a/b {c} *", "bob"):
        diary.user(user).upsert_preference("likes", "tea")
        diary.user(user).forget(everything=True)
    assert one.erased_users() == ["a/b {c} *", "bob", "carol"]
    copied = {each.user: (each.documents, each.is_new) for each in copy_users(one, two)}
    assert copied == {
        "alice": (2, True), "bob": (0, True), "carol": (0, True), "a/b {c} *": (0, True),
    }  # fmt: skip
    assert [two.epoch(user) for user in copied] == [one.epoch(user) for user in copied]
    assert two.epoch("bob") == 2
    assert two.users() == ["alice"]
    assert not any(each.is_new for each in copy_users(one, two))


@pairs
def test_a_copy_names_a_user_who_was_erased_since_the_last_copy(source, target, opened):
    one, two = opened(source), opened(target)
    diary = fill(one)
    Diary(two, agent="rules").user("carol").upsert_preference("likes", "tea")
    assert len([*copy_users(one, two)]) == 2
    diary.user("bob").forget(everything=True)
    with pytest.raises(BackendError, match="the memory of 'bob' differs"):
        list(copy_users(one, two))
    Diary(two).user("bob").forget(everything=True)
    assert "bob" not in two.users()
    assert not any(each.is_new for each in copy_users(one, two))


@pairs
def test_a_turn_of_a_run_from_before_an_erasure_is_refused_by_a_copy(source, target, opened):
    one, two = opened(source), opened(target)
    diary = Diary(one, agent="rules")
    epochs = {}
    for user in ("alice", "bob"):
        alice = diary.user(user)
        alice.upsert_preference("likes", "tea")
        epochs[user] = alice.epoch
        alice.forget(everything=True)
    for text in ("milk", "jazz"):
        diary.user("alice").upsert_preference("likes", text, session_id=text)
    epochs["after"] = diary.user("alice").epoch
    diary.user("alice").forget(session_id="jazz")
    copied = [each.user for each in copy_users(one, two)]
    assert copied == (["alice"] if source == "folder" else ["alice", "bob"])
    assert not any(each.is_new for each in copy_users(one, two))
    copy = Diary(two, agent="rules")
    for user in copied:
        assert two.epoch(user) == one.epoch(user)
        with pytest.raises(Forgotten):
            copy.user(user).add_turn("I love walnuts.", "ok", session_id="s", epoch=epochs[user])
    copy.user("alice").add_turn("I love yoga.", "ok", session_id="s", epoch=epochs["after"])


@pytest.mark.parametrize("name", engines.SERVERS)
def test_the_command_names_the_users_whose_turns_wait_in_a_database(name, tmp_path):
    source = engines.space(name).url
    with Diary(source, agent="rules") as diary, MemoryWriter(diary, workers=0) as writer:
        diary.user("alice").upsert_preference("likes", "tea")
        writer.submit_nowait(Turn("bob", "s", "I love jazz.", "Noted.")).wait_stored(30)
    run = CliRunner().invoke(app, ["copy", source, str(tmp_path / "two")])
    assert run.exit_code == 0, run.output
    assert run.stderr.startswith("turns that wait or failed are not copied: those of bob.")


def test_the_command_shows_no_password(tmp_path):
    source, target = tmp_path / "one", engines.space("redis")
    Diary(source, agent="rules").user("alice").upsert_preference("likes", "tea")
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    client = redis.Redis.from_url(target.server)
    name = target.url.rpartition("=")[2]
    client.acl_setuser(name, enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"])
    address = target.url.replace("redis://", f"redis://{name}:secret@")
    try:
        run = CliRunner().invoke(app, ["copy", str(source), address])
    finally:
        client.acl_deluser(name)
        client.close()
    assert run.exit_code == 0, run.output
    assert run.stdout.startswith("copied 1 user to redis://127.0.0.1:")
    assert "secret" not in run.output
