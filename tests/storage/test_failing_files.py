"""Each file operation of twelve calls fails once, or from then on.

The memory is then in the old or the new state, as the call reported, and errors are those of this package."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import functools
import os
import re
import shutil
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from file_systems import WRITES, HookedFiles
from processes import close
from tomldiary import Diary, MemoryWriter
from tomldiary.backends import LocalBackend
from tomldiary.errors import BackendError, CommittedUnpublished, DiaryError
from tomldiary.history import verify as verification
from tomldiary.storage.copy import copy_users
from tomldiary.storage.files import FileSystem
from tomldiary.toml.values import copied

CODES = {
    "write": (errno.ENOSPC, errno.EIO),
    **dict.fromkeys(
        (
            "sync_file", "sync_data", "read", "lseek", "fstat", "lstat", "listdir", "open_to_read",
        ),
        (errno.EIO,),
    ),
}  # fmt: skip
OTHERS = (errno.EIO, errno.EACCES)
SHORT = "short"


class Faults(HookedFiles):
    """Counts the file operations below a folder, and lets the one with a certain number fail."""

    def __init__(self, root, number=None, code=None, *, lasting=False):
        super().__init__(self.fail)
        self.root = os.fspath(root)
        self.number, self.code, self.lasting = number, code, lasting
        self.is_at_work = False
        self.names = []

    def identity(self, folder):
        return "the same disk"

    def fail(self, name, path, *args):
        if not self.is_at_work or not path.startswith(self.root) or "/locks" in path:
            return None
        self.names.append(name)
        is_it = len(self.names) - 1 == self.number or (
            self.lasting and self.number is not None and len(self.names) - 1 > self.number
        )
        if is_it and self.code == SHORT and name == "write":
            return bytes(args[0])[: max(1, len(args[0]) // 2)]
        if is_it and self.code != SHORT and (name in WRITES or not self.lasting):
            raise OSError(self.code, os.strerror(self.code), path)
        return None


def opened(folder, files):
    backend = LocalBackend(folder, files=files, segment_bytes=1200, checkpoint_interval=2)
    return Diary(backend, agent="rules")


def seen(diary, user="alice"):
    diary.engine.document(user, "preferences")
    found = {}
    for kind in diary.engine.backend.kinds(user):
        table = tomllib.loads(diary.engine.document(user, kind).text)
        table.pop("_meta", None)
        found[kind] = without_times(table)
    return {kind: table for kind, table in found.items() if table}


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in {"_created", "_updated"}}
    return value


# What one does: each prepares a memory, and then does one thing to it.


def some(alice):
    alice.upsert_preference("likes", "tea")
    alice.add_turn("I love coffee.", "ok", session_id="s1")
    alice.upsert_preference("goals", "rest")


def age(path):
    os.utime(path, (1, 1))


def edit_by_hand(alice, folder):
    path = folder / "alice/preferences.toml"
    buffer = path.read_text()
    alice.upsert_preference("likes", "water")
    path.write_text(buffer.replace('"tea"', '"green tea"'))
    age(path)


class Killed(BaseException):
    """No handler catches it."""


def crash(alice, folder):
    """Leave what a kill right behind the commit point leaves."""
    files = alice.diary.engine.backend.files
    files.exchange = lambda *_: (_ for _ in ()).throw(Killed)
    with pytest.raises(Killed):
        alice.add_turn("I love walking.", "ok", session_id="s2")


def put_nested(user, text="x"):
    user.diary.engine.write(
        user.user_id,
        lambda tx: tx.edit("items/work").put(("entries", "one"), {"text": text}),
        local_source(),
    )


def local_source():
    from tomldiary.engine.engine import Source  # noqa: PLC0415 - used once

    return Source("put")


SCENARIOS = {
    "the first write": (None, lambda alice: alice.upsert_preference("likes", "tea")),
    "a turn over two documents": (
        some,
        lambda alice: alice.add_turn("I love walking.", "ok", session_id="s2"),
    ),
    "a change": (some, lambda alice: alice.upsert_preference("likes", "milk", id="pref001")),
    "a removal": (some, lambda alice: alice.forget_preference("likes", "pref001")),
    "a full segment": (some, lambda alice: alice.upsert_preference("likes", "long " * 40)),
    "a write behind a save by hand": (
        some,
        lambda alice: alice.forget_preference("goals", "pref001"),
    ),
    "a rollback": (some, lambda alice: alice.rollback(2)),
    "forgetting a session": (some, lambda alice: alice.forget(session_id="s1")),
    "forgetting everything": (some, lambda alice: alice.forget(everything=True)),
    "a write behind a crash": (some, lambda alice: alice.upsert_preference("likes", "milk")),
    "a document in a folder": (some, put_nested),
    "a change of a document in a folder": (lambda alice: put_nested(alice, "a"), put_nested),
    "a long user id": (None, lambda user: user.upsert_preference("likes", "tea")),
}
LIKE_OTHERS = {"a change", "a full segment", "a change of a document in a folder"}
"""They make the file operations of a removal, which the short form has."""


@pytest.fixture
def remembered(monkeypatch):
    """Parse a text once: each is read many times."""
    parsed = functools.lru_cache(maxsize=200)(tomllib.loads)
    monkeypatch.setattr(tomllib, "loads", lambda text: copied(parsed(text)))


def prepare(name, folder):
    user = "x" * 300 if name == "a long user id" else "alice"
    setup, _ = SCENARIOS[name]
    diary = opened(folder, Faults(folder))
    diary.user("bob").upsert_preference("likes", "rum")
    if setup is not None:
        setup(diary.user(user))
    if name == "a write behind a save by hand":
        edit_by_hand(diary.user(user), folder)
    if name == "a write behind a crash":
        crash(diary.user(user), folder)
        for path in (folder / "alice").glob("*.toml"):
            age(path)  # else a document that lags behind may be one that is being saved
    close(diary)
    return user


def run(name, store, user, faults_for):
    """Make the call on a copy of the memory; return the exception, the state, and the faults."""
    folder = Path(tempfile.mkdtemp(dir=store.parent))
    try:
        shutil.copytree(store, folder, dirs_exist_ok=True)
        faults = faults_for(folder)
        diary = opened(folder, faults)
        raised = None
        faults.is_at_work = True
        try:
            SCENARIOS[name][1](diary.user(user))
        except Exception as error:  # noqa: BLE001 - judged by the caller
            raised = error
        faults.is_at_work = False
        kept_open = [path for path in faults.paths.values() if "/locks/" not in path]
        assert kept_open == []
        try:
            again = opened(folder, Faults(folder))
            found = seen(again, user)
            assert seen(diary, user) == found, "the process that failed sees something else"
            assert verification.verify(again.engine.backend, user) is None
            for each, text in ((diary, "next"), (again, "and next")):
                each.user(user).upsert_preference("dislikes", text)
            left = seen(diary, user)
            assert len(left["preferences"]["preferences"].pop("dislikes")) == 2
            if not left["preferences"]["preferences"]:
                del left["preferences"]
            assert left == found, "the next write changed something else"
            assert verification.verify(again.engine.backend, user) is None
            assert list(again.engine.backend.folder(user).glob(".*")) == []
            assert seen(again, "bob")
        finally:
            close(diary)
            close(again)
        return raised, found, faults
    finally:
        shutil.rmtree(folder)


def judge(raised, found, old, new):
    """Return what is wrong with an outcome, or None."""
    if raised is not None and not isinstance(raised, DiaryError):
        return f"{type(raised).__name__} is no error of ours: {raised}"
    if raised is None or isinstance(raised, CommittedUnpublished):
        return None if found == new else f"claimed to be stored ({raised!r}), but is {found}"
    is_open = "is unknown" in str(raised) or "Some of the data to forget" in str(raised)
    if is_open:
        return None if found in (old, new) else f"neither old nor new: {found}"
    return None if found == old else f"claimed not to be stored ({raised}), but is {found}"


def faults_of(operation):
    """Return the errors that an operation may fail with, and whether all that write fail from then on."""
    codes = [*CODES.get(operation, OTHERS), *([SHORT] if operation == "write" else [])]
    return [
        (code, lasting)
        for code in codes
        for lasting in ((False, True) if operation in WRITES else (False,))
    ]


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize(
    ("name", "every"),
    [
        *((name, False) for name in SCENARIOS if name not in LIKE_OTHERS),
        *(pytest.param(name, True, marks=pytest.mark.torture) for name in SCENARIOS),
    ],
)
def test_a_failing_file_operation_leaves_the_documented_state(name, every, disk, request):
    """Each eighth operation that writes fails, and each 24th one that reads; or all of them, in `every` way."""
    if every:
        request.getfixturevalue("_asked_for")
    store = disk / "store"
    user = prepare(name, store)
    first = opened(shutil.copytree(store, disk / "look"), Faults(disk))
    old = seen(first, user)
    close(first)
    raised, new, dry = run(name, store, user, Faults)
    assert raised is None
    assert new != old
    problems, met, done = [], Counter(), Counter()
    for number, operation in enumerate(dry.names):
        met[operation] += 1
        step = 8 if operation in WRITES else 24
        if not every and met[operation] % step != 1:
            continue
        faults = faults_of(operation)
        for code, lasting in faults if every else [faults[done.total() % len(faults)]]:
            faults_for = functools.partial(Faults, number=number, code=code, lasting=lasting)
            what = f"{operation} {number} {code}{' and all from then on' if lasting else ''}"
            done[operation] += 1
            try:
                raised, found, _ = run(name, store, user, faults_for)
                problem = judge(raised, found, old, new)
            except Exception as error:  # noqa: BLE001 - each is a finding
                problem = f"afterwards: {type(error).__name__}: {error}"
            if problem is not None:
                problems.append(f"{what}: {problem[:300]}")
    assert not problems, "\n".join(problems)
    assert {"open", "write", "stat", "sync_file"} <= set(done)


def test_an_unreadable_system_folder_stops_no_read_of_documents(tmp_path):
    """It belongs to another person, who lets others read the documents."""
    Diary(tmp_path, agent="rules").user("alice").upsert_preference("likes", "tea")

    def refuse(_name, path, *_args):
        if "/.tomldiary/" in path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    backend = LocalBackend(tmp_path, files=HookedFiles(refuse))
    alice = Diary(backend, agent="rules").user("alice")
    assert [item.text for item in alice.preferences("likes").values()] == ["tea"]
    with pytest.raises(BackendError, match=r"epochs\.key: cannot be read .*Check the permissions"):
        alice.recall("tea")


def test_a_turn_in_a_folder_without_permission_names_the_remedy(tmp_path):
    def fail(_operation, path, *_):
        if path.startswith(f"{tmp_path}/alice/"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)

    files = HookedFiles()
    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    alice.forget(matching="tea")
    files.hook = fail
    with pytest.raises(BackendError, match=r"Permission denied\)\. Check the permissions"):
        alice.add_turn("I like rice.", "Noted.", session_id="s1")


def test_a_folder_that_cannot_be_inspected_is_named(tmp_path):
    Diary(tmp_path, agent="rules").user("alice").upsert_preference("likes", "tea")
    met = Counter()

    def fail(operation, path, *_):
        met[operation] += path == f"{tmp_path}/alice"
        if operation == "lstat" and met["lstat"] == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    diary = Diary(LocalBackend(tmp_path, files=HookedFiles(fail)), agent="rules")
    with pytest.raises(BackendError, match=r"alice: cannot be inspected \(Input/output error\)"):
        diary.user("alice").recall("tea")


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_without_locks_is_named_with_a_remedy(tmp_path, monkeypatch, code):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    alice = Diary(tmp_path, agent="rules").user("alice")
    monkeypatch.setattr(fcntl, "flock", flock)
    why = re.escape(os.strerror(code))
    told = rf"locks/\w+: cannot be locked \({why}\)\. Move the memory to a local disk"
    with pytest.raises(BackendError, match=told):
        alice.upsert_preference("likes", "tea")
    told = r"The turn was not stored\. Move the memory to a local disk"
    with MemoryWriter(alice.diary) as writer, pytest.raises(BackendError, match=told):
        asyncio.run(writer.submit("alice", "s1", "I like tea.", "Noted."))
    monkeypatch.undo()
    alice.upsert_preference("likes", "tea")


def test_no_error_of_another_call_than_a_lock_advises_against_the_disk(tmp_path):
    def fail(operation, path, *_):
        if operation == "read" and path.endswith("preferences.toml"):
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), path)

    files = HookedFiles()
    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    files.hook = fail
    with pytest.raises(BackendError, match=r"cannot be read \(Operation not supported\)\.$"):
        Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice").preferences()


def test_a_copy_names_a_lock_file_that_it_may_not_write(tmp_path):
    Diary(tmp_path / "from", agent="rules").user("alice").upsert_preference("likes", "tea")

    def refuse(operation, path, *_):
        if operation == "open" and "/locks/" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)

    source = LocalBackend(tmp_path / "from", files=HookedFiles(refuse))
    told = r"locks/\w+: the lock file cannot be opened for writing \(Permission denied\)\. Check"
    with pytest.raises(BackendError, match=told):
        list(copy_users(source, LocalBackend(tmp_path / "to")))
    assert LocalBackend(tmp_path / "to").users() == []


class Immutable(FileSystem):
    """Refuses to replace a file, as the system does after `chattr +i`."""

    has_exchange = False

    def replace(self, one, two):
        if Path(two).exists():
            raise PermissionError(errno.EPERM, "Operation not permitted", one, None, two)
        super().replace(one, two)


def test_an_error_names_the_file_that_cannot_be_replaced(tmp_path):
    alice = Diary(LocalBackend(tmp_path, files=Immutable()), agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    with pytest.raises(CommittedUnpublished, match=r"/preferences\.toml: the change is stored"):
        alice.upsert_preference("likes", "coffee")
    with pytest.raises(BackendError, match=r"/preferences\.toml: cannot be .*\(Operation not"):
        alice.upsert_preference("likes", "milk")
