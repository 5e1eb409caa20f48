"""Listing users and namespaces is a scan of names: users that are not asked about are not opened."""

from __future__ import annotations

import gc
import runpy
import shutil
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from hand_edits import age
from tomldiary import Constraint, Diary
from tomldiary.backends import LocalBackend
from tomldiary.doctor import doctor as checkup
from tomldiary.identifiers.namespaces import SHARED
from tomldiary.store.operations import Condition, List, Put, Search
from tomldiary.store.snapshot import Part
from tomldiary.store.store import ItemStore

NUMBER = 60
NAMES = [f"user{number:03d}" for number in range(NUMBER)]


class Job(BaseModel):
    name: str


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


def test_a_second_listing_reads_no_document_again(watched, looks):
    store = ItemStore(watched, few_users=0)
    names = store.run([List(limit=10_000)])[0]
    for user in NAMES:
        watched.engine.discard(user, ["preferences"])  # as if they did not fit into the cache
    looks.clear()
    assert store.run([List(limit=10_000)])[0] == names
    assert not [path for name, path in looks if name == "open"]


def test_the_cached_namespaces_are_limited_by_the_number_of_documents(watched, looks):
    """One user may have thousands of them."""
    watched.engine.cached_characters = 256 * 5 * NUMBER - 1  # all but one user
    store = ItemStore(watched, few_users=0)
    store.run([List(limit=10_000)])
    for user in NAMES:
        watched.engine.discard(user, ["preferences"])
    looks.clear()
    store.run([List(limit=10_000)])
    assert [path for name, path in looks if name == "open"]


def test_a_listing_shows_a_hand_edit_in_place_that_follows_a_listing_closely(tmp_path, monkeypatch):
    """The catalog's own names may be older than the version of the document."""
    monkeypatch.setattr("tomldiary.store.catalog._TRUSTED", 60.0)
    store = ItemStore(Diary(tmp_path, agent="rules"), few_users=0)
    path, trips = tmp_path / "ann/items/trips.toml", ("ann", "trips")
    store.run([Put(trips, "porto", {"text": "x"})])
    whole = path.read_text()
    store.run([Put(trips, "porto", None)])
    for each in (path, path.parent, path.parent.parent):
        age(each)
    assert store.run([List()]) == [[]]
    path.write_text(path.read_text() + whole[whole.index("[items.") :])
    age(path)
    assert store.run([List()]) == [[trips]]


@pytest.mark.parametrize("few_users", [0, 256])
def test_a_second_listing_shows_each_change(tmp_path, few_users):
    diary, other = Diary(tmp_path, agent="rules"), Diary(tmp_path, agent="rules")
    for user in ("ann", "ben"):
        diary.user(user).upsert_preference("likes", "tea")
    store, writer = ItemStore(diary, few_users=few_users), ItemStore(other)
    likes = [(user, "diary", "preferences", "likes") for user in ("ann", "ben")]
    trips, goals = ("ann", "trips"), ("ann", "diary", "preferences", "goals")

    def listed(**options):
        time.sleep(0.03)  # recent files are read again
        assert store.run([List(**options)]) == store.run([List(**options)])
        return store.run([List(**options)])[0]

    assert listed() == likes
    writer.run([Put(trips, "porto", {"text": "x"})])
    assert listed() == [likes[0], trips, likes[1]]
    with diary.user("ben").transaction():
        diary.user("ben").upsert_preference("goals", "run")
        assert (*likes[1][:-1], "goals") in store.run([List()])[0]
        diary.user("ben").remove_preference("goals", "pref001")
    path = tmp_path / "ann/preferences.toml"
    path.write_text(path.read_text() + '[preferences.goals.pref001]\ntext = "run"\n')
    assert listed() == [goals, likes[0], trips, likes[1]]
    assert listed(max_depth=1, limit=1) == [("ann",)]
    assert listed(conditions=(Condition("suffix", ("likes",)),)) == likes
    writer.run([Put(trips, "porto", None)])
    assert listed() == [goals, *likes]
    other.user("ben").forget(everything=True)
    assert listed() == [goals, likes[0]]
    other.register_schema("job", Job, constraint=Constraint(temporal=True, singleton_key="name"))
    diary.register_schema("job", Job, constraint=Constraint(temporal=True, singleton_key="name"))
    soon = datetime.now(UTC) + timedelta(seconds=1)
    other.user("ann").facts.commit(Job(name="x"), valid_to=soon)
    assert ("ann", "diary", "facts", "job") in listed() or datetime.now(UTC) >= soon
    time.sleep(max(0.0, (soon - datetime.now(UTC)).total_seconds()))
    assert listed() == [goals, likes[0]]


def test_a_store_keeps_no_more_text_than_its_limit(tmp_path):
    store = ItemStore(Diary(tmp_path, agent="rules", durability="process"))
    users = [f"u{number:02d}" for number in range(20)]
    for user in users:
        store.run([Put((user, "notes"), "k", {"text": "x" * 4000})])
    diary = Diary(tmp_path, agent="rules")
    diary.engine.cached_characters = 20_000
    store = ItemStore(diary)
    gc.collect()
    others = {id(each) for each in gc.get_objects() if isinstance(each, Part)}
    for user in users:
        assert store.run([Search((user,))])[0]
    kept = [each for each in gc.get_objects() if isinstance(each, Part) and id(each) not in others]
    assert 0 < len(kept) <= 5
    assert len(store.run([Search((), limit=100)])[0]) == 20


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
    for number in range((1 << 15) + 1):
        backend.token(f"another{number}", "preferences")
    backend.token(NAMES[0], "preferences")
    assert listed.count(NAMES[0]) == 2 * first
