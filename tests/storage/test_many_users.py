"""Listing users and namespaces is a scan of names: users that are not asked about are not opened."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import pytest

from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.doctor import doctor as checkup
from tomldiary.identifiers.namespaces import SHARED
from tomldiary.store.operations import Condition, List, Put
from tomldiary.store.store import ItemStore

NUMBER = 60
NAMES = [f"user{number:03d}" for number in range(NUMBER)]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A folder of many users, each with a preference."""
    root = tmp_path_factory.mktemp("many")
    Diary(root, agent="rules").user(NAMES[0]).upsert_preference("likes", "tea")
    for name in NAMES[1:]:
        shutil.copytree(root / NAMES[0], root / name)
    return root


@pytest.fixture
def looks(files):
    """The operations and the paths that a diary of `watched` asks for."""
    found = []
    files.hook = lambda name, path, *_: found.append((name, path))
    return found


@pytest.fixture
def watched(many, files):
    return Diary(LocalBackend(many, files=files), agent="rules")


def opened(looks):
    """The users whose folders were listed, as recovery does first."""
    return {Path(path).name for name, path in looks if name == "listdir"} & {*NAMES}


def test_users_are_listed_without_opening_any(watched, looks):
    assert watched.users() == NAMES
    assert not opened(looks)


def test_listing_users_reads_two_names_of_each(watched, looks):
    assert watched.users() == NAMES
    assert len(looks) < 2 * NUMBER + 20


def test_a_page_of_namespaces_opens_the_users_on_it(watched, looks):
    store = ItemStore(watched)
    wanted = [(name, "diary", "preferences", "likes") for name in NAMES]
    assert store.run([List(limit=5)])[0] == wanted[:5]
    assert opened(looks) == {*NAMES[:5]}
    assert store.run([List(limit=5, offset=3)])[0] == wanted[3:8]
    assert opened(looks) == {*NAMES[:8]}
    assert store.run([List(limit=10_000)])[0] == wanted


@pytest.mark.parametrize("label", [0, 1, None, lambda namespace, key: namespace[-1]])
def test_pages_add_up_to_the_whole_listing(tmp_path, label):
    diary = Diary(tmp_path, agent="rules", durability="process")
    store = ItemStore(diary, user_label=label)
    for number in range(6):
        user = f"u{number:02d}"
        diary.user(user).upsert_preference("likes", "tea")
        for namespace in ((user, "notes", "b"), (user, "a"), ("zoo", user), ("memories", user)):
            store.run([Put(namespace, "one", {"text": "x"})])
    everything = store.run([List(limit=1000)])[0]
    assert everything == sorted(set(everything))
    assert len(everything) > 20
    for size in (2, 7):
        pages = [store.run([List(limit=size, offset=at)])[0] for at in range(0, 50, size)]
        assert [name for page in pages for name in page] == everything
    shallow = store.run([List(max_depth=1, limit=1000)])[0]
    assert shallow == sorted({name[:1] for name in everything})
    assert store.run([List(max_depth=1, limit=3, offset=2)])[0] == shallow[2:5]
    some = List((Condition("suffix", ("likes",)),), limit=1000)
    assert len(store.run([some])[0]) == 6
    assert store.run([List(some.conditions, limit=2, offset=2)])[0] == store.run([some])[0][2:4]


def test_every_kind_of_user_is_listed(tmp_path):
    diary = Diary(tmp_path, agent="rules", durability="process")
    ids = ["alice", "Bob", "auth0|x", "x" * 300, "con", ".hidden", "é", "a.b", "nul.txt"]
    for user in ids:
        diary.user(user).upsert_preference("likes", "tea")
    ItemStore(diary).run([Put(("items only", "n"), "k", {"text": "x"})])
    diary.user("gone").upsert_preference("likes", "tea")
    (tmp_path / "gone/preferences.toml").unlink()
    (tmp_path / "Plain").mkdir()
    (tmp_path / "Plain/preferences.toml").write_text('[likes.tea]\ntext = "tea"\n')
    wanted = sorted([*ids, "items only", "Plain"])
    assert diary.users() == wanted
    assert Diary(tmp_path, agent="rules").users() == wanted


@pytest.mark.parametrize("place", ["files", "memory"])
def test_the_owner_of_shared_namespaces_is_no_user(tmp_path, place):
    diary = Diary(tmp_path if place == "files" else "memory:", agent="rules")
    store = ItemStore(diary, user_label=None)
    store.run([Put(("team", "notes"), "k", {"text": "x"}, ttl=60)])
    diary.user("alice").upsert_preference("likes", "tea")
    assert diary.users() == ["alice"]
    assert SHARED in diary.engine.backend.users()  # who sweeps and forgets finds it
    assert ("team", "notes") in store.run([List()])[0]


def test_doctor_reports_findings_before_it_has_read_all_users(watched, looks):
    told = checkup.findings(watched)
    assert next(found for found in told if found.place == NAMES[0])
    read = [Path(path).parent.name for name, path in looks if path.endswith("preferences.toml")]
    assert {*read} == {*NAMES[:1]}
    assert sum(1 for _ in told) >= NUMBER - 1


def test_the_benchmark_of_many_users_runs(tmp_path, monkeypatch, capsys):
    script = Path(__file__).parents[2] / "benchmarks/many_users.py"
    monkeypatch.setattr(sys, "argv", [script.name, "--users", "30", "--path", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    shown = capsys.readouterr().out
    for row in ("users()", "first page of namespaces", "all namespaces", "doctor"):
        assert row in shown


def test_a_process_remembers_the_recovery_of_some_users_only(many, files):
    """A server would otherwise keep the id of every user that it has ever opened."""
    backend, listed = LocalBackend(many, files=files), []
    files.hook = lambda name, path, *_: (
        listed.append(Path(path).name) if name == "listdir" else None
    )
    backend.token(NAMES[0], "preferences")
    first = listed.count(NAMES[0])
    backend.token(NAMES[0], "preferences")
    assert listed.count(NAMES[0]) == first > 0
    for number in range(10_001):
        backend.token(f"another{number}", "preferences")
    backend.token(NAMES[0], "preferences")
    assert listed.count(NAMES[0]) == 2 * first
