"""Firestore: the documents of a real TOMLDiary 0.9, large steps, and what a dead process leaves."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

import engines
from tomldiary import Diary
from tomldiary.backends import FirestoreBackend
from tomldiary.errors import BackendError, IdentifierError
from tomldiary.storage.shared.database import WHOLE_HISTORY, DatabaseLost, Step
from tomldiary.storage.shared.firestore.batch import LARGEST, Batch

CLEAR_TRASH = "tomldiary.storage.shared.firestore.database.clear_trash"
GOLDEN = Path(__file__).parents[2] / "golden" / "tomldiary-0.9"
PEER = """
import asyncio, sys
from tomldiary.backends import FirestoreBackend

project, base, user, *files = sys.argv[1:]
backend = FirestoreBackend(project, base)
for file in files:
    name, _, path = file.partition("=")
    if path:
        asyncio.run(backend.save(user, name, open(path, encoding="utf-8").read()))
    else:
        print(asyncio.run(backend.load(user, name)), end="")
print(*asyncio.run(backend.list_users()), end="")
"""


@pytest.fixture
def engine():
    return engines.space("firestore")


@pytest.fixture
def backend(engine):
    made = engine.backend()
    yield made
    made.close()


def peer(engine, *files):
    python = os.environ.get("TOMLDIARY_PEER_PYTHON")
    if not python:
        pytest.skip("no Python with TOMLDiary 0.9 in TOMLDIARY_PEER_PYTHON")
    _, _, project, base = engine.url.split("/", 3)
    command = [python, "-c", PEER, project, base, "guest", *files]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout


def test_documents_of_0_9_open_and_stay_readable_for_it(engine, backend):
    files = sorted(GOLDEN.rglob("guest/*.toml")) or sorted(GOLDEN.rglob("*.toml"))
    stored = {path.stem: path for path in files}
    peer(engine, *(f"{name}={path}" for name, path in stored.items()))
    diary = Diary(backend, agent="rules")
    assert diary.users() == ["guest"]
    assert asyncio.run(backend.load("guest", "preferences")) == stored["preferences"].read_text(
        "utf-8"
    )
    guest = diary.user("guest")
    before = guest.document("conversations")
    guest.add_turn("I love jazz.", "Noted.", session_id="new")
    assert "new" in guest.conversations()
    assert peer(engine, "conversations") == guest.document("conversations") + "guest"
    assert before != guest.document("conversations")


GUEST = """
[_meta]
version = "0.3"
schema_name = "MyPrefTable"

[preferences.likes.pref001]
text = "cake"
_count = 1
"""


def written_by_0_9(backend, user, **fields):
    place = backend.database.connection.user(user).document("preferences.toml")
    place.set({"updated_at": "2025-10-10T12:00:00Z", "version": "0.3", **fields})


def test_a_user_whom_0_9_deletes_begins_anew(engine, backend):
    diary = Diary(backend, agent="rules")
    alice = diary.user("alice")
    for text in ("tea", "cake"):
        alice.upsert_preference("likes", text)
    for document in backend.database.connection.user("alice").stream():
        document.reference.delete()  # as its `delete_user` does
    alice.upsert_preference("likes", "coffee")
    [liked] = diary.user("alice").preferences("likes").values()
    assert liked.text == "coffee"
    assert [change.seq for change in alice.history()] == [1]
    alice.forget(matching="juice")
    assert "coffee" in engine.texts()
    assert "tea" not in engine.texts()


def test_a_user_whom_0_9_deletes_keeps_no_mark(engine, backend):
    diary = Diary(backend, agent="rules")
    backend.change_hidden("alice", ".queue", lambda *_: "turns")
    diary.user("bob").upsert_preference("likes", "tea")
    diary.user("bob").forget(everything=True)
    for user in ("alice", "bob"):
        for document in backend.database.connection.user(user).stream():
            document.reference.delete()  # as its `delete_user` does
        Diary(engine.backend(), agent="rules").user(user).blocks.set("persona", "kind")
    assert diary.users() == ["alice", "bob"]
    assert backend.holders(".queue") == backend.erased_users() == []


def test_what_0_9_writes_after_an_erasure_is_listed(backend):
    diary = Diary(backend, agent="rules")
    for user in ("alice", "bob"):
        diary.user(user).upsert_preference("likes", "tea")
        diary.user(user).forget(everything=True)
    written_by_0_9(backend, "alice", content=GUEST)
    assert diary.users() == ["alice"]
    assert backend.erased_users() == ["bob"]
    diary.user("alice").upsert_preference("likes", "jazz")
    assert diary.users() == ["alice"]


@pytest.mark.parametrize("content", [42, None, b"x = 1", ["x"], {"x": 1}])
def test_a_content_that_is_no_text_is_a_broken_document(backend, content):
    diary = Diary(backend, agent="rules")
    diary.user("alice").add_turn("I like tea.", "Noted.", session_id="s")
    written_by_0_9(backend, "alice", content=content)
    fresh = Diary(backend, agent="rules").user("alice")
    assert len(fresh.preferences("likes")) == 1  # the last good state
    assert "alice/preferences.toml:1:5: expected" in str(fresh.problems()[0])
    assert len(fresh.conversations()) == 1


def test_the_arguments_of_0_9_are_taken():
    pytest.importorskip("google.cloud.firestore")
    with pytest.raises(ValueError, match="Cannot specify both"):
        FirestoreBackend("p", "a/b", credentials_path="x", credentials_dict={"y": 1})
    with pytest.raises(ValueError, match="Firestore requires an EVEN number of path segments"):
        FirestoreBackend(project_id="p", base_path="users")
    with pytest.raises(BackendError, match="credentials_dict cannot be read"):
        FirestoreBackend("p", "a/b", credentials_dict='{"type": "service_account"}')


def test_missing_credentials_of_firestore_are_named(tmp_path, monkeypatch):
    pytest.importorskip("google.cloud.firestore")
    monkeypatch.delenv("FIRESTORE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    with pytest.raises(BackendError, match="there are no credentials"):
        FirestoreBackend("p", "a/b")


USERS = ["__x__", "_tomldiary", "a/b", "a%2Fb", ".%a%2Fb", ".%2E", ".", "..", "😀", "x" * 200]


@pytest.mark.parametrize("user", USERS)
def test_a_user_id_that_firestore_refuses_is_stored_under_another_name(backend, user):
    diary = Diary(backend, agent="rules")
    diary.user(user).upsert_preference("likes", "tea")
    assert diary.users() == [user]
    assert len(diary.user(user).preferences("likes")) == 1


def test_a_user_id_that_is_too_long_for_firestore_is_refused(backend):
    with pytest.raises(IdentifierError, match="at most 1,400 bytes"):
        Diary(backend, agent="rules").user("é" * 701).preferences()


def test_user_ids_are_kept_apart_and_those_of_0_9_keep_their_names(backend):
    from google.cloud import firestore  # noqa: PLC0415 - slow to import, and used with servers only

    diary = Diary(backend, agent="rules")
    taken = ["50%", "ann%40example.org", "ann@example.org", "__a", "José", "Jose\u0301"]
    for user in (*USERS, *taken):
        diary.user(user).upsert_preference("likes", f"tea of {user}")
    assert diary.users() == sorted([*USERS, *taken])
    for user in (*USERS, *taken):
        [liked] = diary.user(user).preferences("likes").values()
        assert liked.text == f"tea of {user}"
    client = firestore.Client(project="tests")
    place = client.document("/".join(str(backend.database).split("/")[3:]))
    assert {*taken} <= {each.id for each in place.collections()}
    client.close()


def test_a_step_larger_than_a_batch_is_applied_whole(backend):
    texts = {f"blocks-{number}": f'text = "{"x" * 800_000}"\n' for number in range(14)}
    head = backend.database.head("alice")
    after = backend.database.apply("alice", head, Step(texts))
    found = backend.database.read("alice", [*texts])
    assert {kind: text for kind, (text, _) in found.items()} == texts
    assert {kind: version for kind, (_, version) in found.items()} == after.versions


def test_six_hundred_records_are_rewritten_in_one_step(engine, backend):
    records = [(number, f"[[tx]]\nseq = {number}\nold\n") for number in range(1, 601)]
    head = backend.database.head("alice")
    backend.database.apply("alice", head, Step({"blocks": "x = 1\n"}, records=records))
    head = backend.database.head("alice")
    kept = [(number, f"[[tx]]\nseq = {number}\nkept\n") for number in range(1, 601)]
    backend.database.apply("alice", head, Step(records=kept, dropped=WHOLE_HISTORY, erasures=1))
    assert backend.database.records("alice", WHOLE_HISTORY, 1000) == kept[::-1]
    assert "old" not in engine.texts()


def test_parts_that_a_dead_process_left_are_deleted_by_an_erasure(engine, backend):
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    place = (
        backend.database.connection.document("alice", "preferences")
        .collection("parts")
        .document("left")
    )
    place.create({"content": "the zebra on the roof"})
    alice.forget(everything=True)
    assert "zebra" not in engine.texts()


@pytest.mark.parametrize("character", "xé中😀")
def test_a_long_text_is_stored_in_few_parts(backend, character):
    database = backend.database
    text = "ab" + character * (2 * LARGEST // len(character.encode()))
    database.apply("alice", database.head("alice"), Step({"blocks": text}))
    parts = database.connection.document("alice", "blocks").collection("parts")
    sizes = [len(each.get("content").encode()) for each in parts.stream()]
    assert len(sizes) == 3
    assert max(sizes) <= LARGEST
    assert database.read("alice", ["blocks"])["blocks"][0] == text


def test_an_erasure_keeps_the_parts_of_other_documents(backend):
    database, long = backend.database, "x" * (LARGEST + 1)
    head = database.apply("alice", database.head("alice"), Step({"blocks": long}))
    database.apply("alice", head, Step({"facts": "x = 1\n"}, erasures=1))
    assert database.read("alice", ["blocks"])["blocks"][0] == long


def test_parts_of_a_refused_step_are_deleted(backend):
    database = backend.database
    stale = database.head("alice")
    database.apply("alice", stale, Step({"blocks": "x = 1\n"}))
    assert database.apply("alice", stale, Step({"blocks": "x" * (LARGEST + 1)})) is None
    parts = database.connection.document("alice", "blocks").collection("parts")
    assert [*parts.stream()] == []


def test_parts_of_a_replaced_text_are_deleted(backend):
    database, head = backend.database, backend.database.head("alice")
    parts = database.connection.document("alice", "blocks").collection("parts")
    for text, kept in (("x" * (LARGEST + 1), {"x"}), ("y" * (LARGEST + 1), {"y"}), ("z", set())):
        head = database.apply("alice", head, Step({"blocks": text}))
        assert {part.get("content")[0] for part in parts.stream()} == kept


def test_a_text_whose_part_is_missing_is_read_again(backend):
    database = backend.database
    database.apply("alice", database.head("alice"), Step({"blocks": "x" * (LARGEST + 1)}))
    parts = database.connection.document("alice", "blocks").collection("parts")
    next(parts.stream()).reference.delete()
    with pytest.raises(DatabaseLost, match="replaced while it was read"):
        database.read("alice", ["blocks"])


def test_a_history_larger_than_a_request_is_stored_or_taken_back(backend):
    database, stale = backend.database, backend.database.head("alice")
    records = [(seq, f"[[tx]]\nseq = {seq}\n{'x' * 4000}\n") for seq in range(1, 1101)]
    assert database.apply("alice", stale, Step(records=records)) is not None
    pages = [database.records("alice", below, 1000) for below in (1101, 101)]
    assert [each for page in pages for each in page] == records[::-1]
    assert database.apply("alice", stale, Step(records=records)) is None
    [history] = database.connection.head("alice").collections()
    assert history.id == f"history-{database.head('alice').generation}"


_LONG = f"[[tx]]\nseq = 2\n{'zebra ' * 200_000}"


@pytest.mark.parametrize(
    "unfinished",
    [
        Step({"facts": _LONG}),
        Step(records=[(2, _LONG)]),
        Step(records=[(2, _LONG)], dropped=WHOLE_HISTORY, erasures=1),
        Step(
            records=[(seq, _LONG[:800_000]) for seq in range(2, 6)],
            dropped=WHOLE_HISTORY,
            erasures=1,
        ),
    ],
    ids=["document", "record", "erasure", "history"],
)
def test_parts_of_an_unfinished_step_are_deleted_by_an_erasure(
    engine, backend, monkeypatch, unfinished
):
    database = backend.database
    first = Step({"blocks": "x = 1\n"}, records=[(1, "[[tx]]\nseq = 1\n")])
    database.apply("alice", database.head("alice"), first)

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Batch, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            database.apply("alice", database.head("alice"), unfinished)
    assert "zebra" in engine.texts()
    erasure = Step(removed=["blocks"], dropped=WHOLE_HISTORY, erasures=1)
    database.apply("alice", database.head("alice"), erasure)
    assert "zebra" not in engine.texts()


def test_what_a_dead_process_did_not_delete_is_deleted_by_the_next_write(
    engine, backend, monkeypatch
):
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "the zebra on the roof", session_id="gone")
    alice.upsert_preference("likes", "tea", session_id="kept")
    with monkeypatch.context() as patched:
        patched.setattr(CLEAR_TRASH, lambda *_: True)  # it dies before
        alice.forget(session_id="gone")
    assert "zebra" in engine.texts()
    other = engine.backend()
    Diary(other, agent="rules").user("alice").upsert_preference("likes", "coffee")
    assert "zebra" not in engine.texts()
    other.close()


def test_clearing_with_a_stale_head_deletes_no_part_of_a_newer_document(
    engine, backend, monkeypatch
):
    database = backend.database
    long, longer = ("x" * 2_000_000, "y" * 2_000_000)
    database.apply("alice", database.head("alice"), Step({"blocks": long}))
    with monkeypatch.context() as patched:
        patched.setattr(CLEAR_TRASH, lambda *_: True)  # it dies before
        database.apply("alice", database.head("alice"), Step({"facts": "x = 1\n"}, erasures=1))
    stale = database.head("alice")
    other = engine.backend()
    other.database.apply("alice", other.database.head("alice"), Step({"blocks": longer}))
    assert database.apply("alice", stale, Step({"facts": "x = 2\n"})) is None
    assert other.database.read("alice", ["blocks"])["blocks"][0] == longer
    other.close()
