"""Each guard of the storage, taken away: what it guards against does happen then, so its test can fail.

The guards against power cuts are taken away in `test_power_cuts.py`, the lock between processes in
`test_torture.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import threading
from zlib import crc32

import pytest

from capabilities import needs_exchange
from file_systems import HookedFiles
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.engine.engine import Engine
from tomldiary.errors import BackendError, Conflict, DiaryError
from tomldiary.hand_edits import detect as outside
from tomldiary.hand_edits.three_way_merge import Merged
from tomldiary.history import record as history
from tomldiary.history import verify as verification
from tomldiary.storage.local import publish as exchange
from tomldiary.storage.locks import UserLocks


def open_diary(folder, files=None):
    backend = LocalBackend(folder, durability="process", files=files)
    return Diary(backend, agent="rules", lock_timeout=5)


def texts(diary, category="likes"):
    return {item.text for item in diary.user("alice").preferences(category).values()}


def age(path):
    os.utime(path, (1, 1))


# What is guarded: each returns whether all is well.


def two_writers_lose_nothing(folder, files):
    diary = open_diary(folder, files)
    diary.user("alice").upsert_preference("likes", "water")
    inside = threading.Barrier(2, timeout=0.3)
    failed = []

    def meeting(name, path, *_):
        if name == "write" and "/history/" in path:
            with contextlib.suppress(threading.BrokenBarrierError):
                inside.wait()  # two who are not kept apart meet here

    def write(name):
        try:
            diary.user("alice").upsert_preference("likes", name)
        except DiaryError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("tea", "coffee")]
    files.hook = meeting
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files.hook = None
    is_whole = verification.verify(LocalBackend(folder), "alice") is None
    return not failed and is_whole and texts(open_diary(folder)) == {"tea", "coffee", "water"}


def damage_is_not_believed(folder, files):
    diary = open_diary(folder, files)
    for text in ("tea", "coffee", "water"):
        diary.user("alice").upsert_preference("likes", text)
    (segment,) = (folder / "alice/history").glob("*.toml")
    segment.write_bytes(segment.read_bytes().replace(b"water", b"wader"))
    try:
        return "wader" not in str(open_diary(folder).user("alice").history())
    except DiaryError:
        return True


def a_new_version_is_noticed(folder, files):
    diary = open_diary(folder, files)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    path = folder / "alice/preferences.toml"
    age(path)
    texts(diary)
    path.write_text(path.read_text().replace('"tea"', '"rum"'))
    return texts(diary) == {"rum"}


def a_save_between_reading_and_writing_is_kept(folder, files):
    diary = open_diary(folder, files)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    path = folder / "alice/preferences.toml"
    real, saved = diary.engine.backend.commit, itertools.count()

    def late(user, commit):
        if next(saved) == 0:
            path.write_text(path.read_text().replace('"tea"', '"green tea"'))
            age(path)
        return real(user, commit)

    diary.engine.backend.commit = late
    alice.upsert_preference("likes", "coffee")
    return texts(open_diary(folder)) == {"green tea", "coffee"}


def a_save_at_the_instant_of_the_exchange_is_kept(folder, files):
    diary = open_diary(folder, files)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    path = folder / "alice/preferences.toml"

    def late(name, at, *_):
        if name in {"exchange", "replace"} and "/.staged-" in at:
            files.hook = None
            saved = path.with_name("saved")  # to rename it does not wait for the lease
            saved.write_text(path.read_text().replace('"tea"', '"green tea"'))
            age(saved)
            saved.replace(path)

    files.hook = late
    alice.upsert_preference("likes", "coffee")
    return texts(open_diary(folder)) == {"green tea", "coffee"}


def an_expectation_is_held(folder, files):
    diary = open_diary(folder, files)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    seen = alice.last_transaction()
    alice.upsert_preference("likes", "coffee")
    try:
        with alice.transaction(expected=seen):
            alice.upsert_preference("likes", "stale")
    except Conflict:
        return texts(diary) == {"tea", "coffee"}
    return False


def an_old_buffer_reverts_nothing(folder, files):
    diary = open_diary(folder, files)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    path = folder / "alice/preferences.toml"
    buffer = path.read_text()
    alice.upsert_preference("likes", "coffee")
    path.write_text(buffer.replace('"tea"', '"green tea"'))
    age(path)
    alice.upsert_preference("goals", "rest")
    return texts(open_diary(folder)) == {"green tea", "coffee"}


def a_link_is_not_followed(folder, files):
    secret = folder / "secret"
    secret.write_text('[preferences.likes.pref001]\ntext = "secret"\n')
    (folder / "m/alice").mkdir(parents=True)
    (folder / "m/alice/preferences.toml").symlink_to(secret)
    try:
        return "secret" not in texts(open_diary(folder / "m", files))
    except BackendError:
        return True


def a_short_write_is_continued(folder, files):
    files.hook = lambda name, _path, *args: args[0][:50] if name == "write" else None
    with contextlib.suppress(DiaryError):
        open_diary(folder, files).user("alice").upsert_preference("likes", "x" * 300)
    try:
        return texts(open_diary(folder)) == {"x" * 300}
    except DiaryError:
        return False


# The guards


@contextlib.contextmanager
def let_in(self, user, timeout, *_):
    yield


class Unchecked:
    """The pattern of a record's head, with whatever checksum the rest has."""

    @staticmethod
    def match(text):
        head = real_check.match(text)
        return None if head is None else Believed(head, text)


class Believed:
    def __init__(self, head, text):
        self.end = head.end
        self.check = f"{crc32(text[head.end() :].encode()):08x}"

    def group(self, number):
        return self.check


real_check = history._CHECK


class WritesOnce(HookedFiles):
    def write_all(self, descriptor, data):
        self.write(descriptor, data)


class Replaces(HookedFiles):
    has_exchange = False


class FollowsLinks(HookedFiles):
    def open(self, path, flags, mode=0o777):
        return super().open(path, flags & ~os.O_NOFOLLOW, mode)


def theirs_only(kind, base, ours, theirs):
    return Merged(theirs)


def commit_whatever_is_there(self, user, commit):
    expected = {kind: self.files.token(self.place(user, kind)) for kind in commit.expected}
    return real_commit(self, user, dataclasses.replace(commit, expected=expected))


real_commit = LocalBackend.commit


class Whatever:
    """Equal to every other version."""

    def __eq__(self, other):
        return True

    __hash__ = None


real_begin = Engine._begin


def begin_whatever(self, user, source, _expected):
    return real_begin(self, user, source, None)


GUARDS = {
    "lock": (two_writers_lose_nothing, [(UserLocks, "hold", let_in)]),
    "checksum": (damage_is_not_believed, [(history, "_CHECK", Unchecked)]),
    "stat": (
        a_new_version_is_noticed,
        [(LocalBackend, "token", lambda self, user, kind: Whatever())],
    ),
    "expected version": (
        a_save_between_reading_and_writing_is_kept,
        [(LocalBackend, "commit", commit_whatever_is_there)],
    ),
    "exchange": (
        a_save_at_the_instant_of_the_exchange_is_kept,
        Replaces,
    ),
    "compare": (
        a_save_at_the_instant_of_the_exchange_is_kept,
        [(exchange, "is_same", lambda *_: True)],
    ),
    "expectation": (an_expectation_is_held, [(Engine, "_begin", begin_whatever)]),
    "merge": (an_old_buffer_reverts_nothing, [(outside, "merge", theirs_only)]),
    "links": (a_link_is_not_followed, FollowsLinks),
    "whole writes": (
        a_short_write_is_continued,
        WritesOnce,
    ),
}
TRIED = [
    pytest.param(guard, marks=[needs_exchange] if guard in {"exchange", "compare"} else [])
    for guard in GUARDS
]


@pytest.mark.parametrize("guard", TRIED)
def test_each_guard_keeps_its_promise(guard, tmp_path, files):
    assert GUARDS[guard][0](tmp_path, files)


@pytest.mark.parametrize("guard", TRIED)
def test_without_its_guard_each_promise_breaks(guard, tmp_path, files, monkeypatch):
    is_well, removed = GUARDS[guard]
    if isinstance(removed, list):
        for owner, name, instead in removed:
            monkeypatch.setattr(owner, name, instead)
    else:
        files = removed()
    assert not is_well(tmp_path, files)
