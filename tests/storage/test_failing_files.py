"""Every file operation of twelve things one does to a memory fails once, or from then on: the state is the
old or the new one, whichever was claimed, and an error is an error of ours."""

from __future__ import annotations

import errno
import functools
import os
import pathlib
import shutil
import tempfile
import tomllib
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import close
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import CommittedUnpublished, DiaryError
from tomldiary.history import verify as verification
from tomldiary.storage.local import checkpoint as settling
from tomldiary.storage.local import log as segments
from tomldiary.storage.local import publish as exchange
from tomldiary.storage.local import session as opened_users

READS = (
    "open",
    "read",
    "pread",
    "lseek",
    "stat",
    "lstat",
    "fstat",
    "scandir",
    "listdir",
    "Path.open",
)
WRITES = [
    "write", "fsync", "fdatasync", "replace", "rename", "link", "unlink", "mkdir", "rmdir", "ftruncate", "truncate",
    "fchmod", "chmod", "swap", "pwrite", "utime",
]  # fmt: skip
CODES = {
    "write": (errno.ENOSPC, errno.EIO),
    "fsync": (errno.EIO,),
    "fdatasync": (errno.EIO,),
}
OTHERS = (errno.EIO, errno.EACCES)
CODES.update(
    dict.fromkeys(
        ("read", "pread", "lseek", "fstat", "lstat", "listdir", "Path.open"), (errno.EIO,)
    )
)
SHORT = "short"


class Faults:
    """Counts the file operations below a folder, and lets the one with a certain number fail."""

    def __init__(self, root, number=None, code=None, *, lasting=False):
        self.root = os.fspath(root)
        self.number, self.code, self.lasting = number, code, lasting
        self.names = []
        self.descriptors = set()

    def is_ours(self, target):
        if isinstance(target, int):
            return target in self.descriptors
        return os.fsdecode(target).startswith(self.root) and "/locks" not in os.fsdecode(target)

    def wrap(self, name, real):
        @functools.wraps(real)
        def called(target=".", *args, **kwargs):
            if not self.is_ours(target):
                return real(target, *args, **kwargs)
            self.names.append(name)
            is_it = len(self.names) - 1 == self.number or (
                self.lasting and self.number is not None and len(self.names) - 1 > self.number
            )
            if is_it and self.code == SHORT and name == "write":
                return real(target, bytes(args[0])[: max(1, len(args[0]) // 2)])
            if is_it and self.code != SHORT and (name in WRITES or not self.lasting):
                where = None if isinstance(target, int) else os.fspath(target)
                raise OSError(self.code, os.strerror(self.code), where)
            done = real(target, *args, **kwargs)
            if name == "open":
                self.descriptors.add(done)
            return done

        return called

    @contextmanager
    def at_work(self, monkeypatch):
        with monkeypatch.context() as patch:
            for name in (*READS, *WRITES):
                if name == "swap":
                    owner, attribute = exchange, "swap"
                elif name == "Path.open":
                    owner, attribute = pathlib.Path, "open"
                else:
                    owner, attribute = os, name
                patch.setattr(owner, attribute, self.wrap(name, getattr(owner, attribute)))
            yield self


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
    """Nobody catches it."""


def crash(alice, folder):
    """Leave what a kill right behind the commit point leaves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalBackend, "_publish", lambda *_: (_ for _ in ()).throw(Killed))
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


def prepare(name, folder):
    user = "x" * 300 if name == "a long user id" else "alice"
    setup, _ = SCENARIOS[name]
    diary = Diary(folder, agent="rules")
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


def run(name, store, user, monkeypatch, faults_for):
    """Do the thing on a copy of the memory; return what was raised, what is there, and the faults."""
    folder = Path(tempfile.mkdtemp(dir=store.parent))
    try:
        shutil.copytree(store, folder, dirs_exist_ok=True)
        diary = Diary(folder, agent="rules")
        faults = faults_for(folder)
        raised = None
        with faults.at_work(monkeypatch):
            try:
                SCENARIOS[name][1](diary.user(user))
            except Exception as error:  # noqa: BLE001 - judged by the caller
                raised = error
        try:
            again = Diary(folder, agent="rules")
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
    is_open = "is unknown" in str(raised) or "Some of what was to be forgotten" in str(raised)
    if is_open:
        return None if found in (old, new) else f"neither old nor new: {found}"
    return None if found == old else f"claimed not to be stored ({raised}), but is {found}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_failing_file_operation_leaves_the_state_that_is_claimed(name, disk, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1200)
    monkeypatch.setattr(settling, "WINDOW", 2)
    monkeypatch.setattr(opened_users, "may_lack_writes", lambda *_: False)
    store = disk / "store"
    user = prepare(name, store)
    first = Diary(shutil.copytree(store, disk / "look"), agent="rules")
    old = seen(first, user)
    close(first)
    raised, new, dry = run(name, store, user, monkeypatch, Faults)
    assert raised is None
    assert new != old
    problems, done = [], Counter()
    for number, operation in enumerate(dry.names):
        for code in (
            *CODES.get(operation, OTHERS),
            *([SHORT] if operation == "write" else []),
        ):
            for lasting in (False, True) if operation in WRITES else (False,):
                faults_for = functools.partial(Faults, number=number, code=code, lasting=lasting)
                what = f"{operation} {number} {code}{' and all from then on' if lasting else ''}"
                done[operation] += 1
                try:
                    raised, found, _ = run(name, store, user, monkeypatch, faults_for)
                    problem = judge(raised, found, old, new)
                except Exception as error:  # noqa: BLE001 - each is a finding
                    problem = f"afterwards: {type(error).__name__}: {error}"
                if problem is not None:
                    problems.append(f"{what}: {problem[:300]}")
    assert not problems, "\n".join(problems)
    assert {"open", "write", "stat", "fsync"} <= set(done)
