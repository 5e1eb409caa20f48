"""Items in the core: documents that people read, names, sizes, hand edits, history and forgetting."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import multiprocessing
import os
import random
import re
import sys
import threading
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta, timezone
from time import sleep
from time import time_ns as now_ns
from types import SimpleNamespace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hand_edits import age
from store_expiry import end_of
from tomldiary import Diary
from tomldiary.backends import LocalBackend, MemoryBackend
from tomldiary.engine.deadlines import Deadlines
from tomldiary.entries.kinds.parts import part_name, part_of
from tomldiary.errors import (
    BackendError,
    InvalidValue,
    NestedTransaction,
    NewerVersion,
    UnsafeDocument,
)
from tomldiary.history.verify import verify
from tomldiary.identifiers.namespaces import SHARED, document_of, namespace_of
from tomldiary.store.operations import Get, List, Put, Search
from tomldiary.store.store import ItemStore
from tomldiary.store.ttl import Sweeper
from tomldiary_langgraph import DiaryStore
from waiting import until

NS = ("alice", "memories")


@pytest.fixture
def diary(tmp_path, files):
    return Diary(LocalBackend(tmp_path / "m", durability="process", files=files))


@pytest.fixture
def store(diary):
    return ItemStore(diary)


def put(store, namespace, key, value, **more):
    store.run([Put(namespace, key, value, **more)])


def get(store, namespace, key):
    return store.run([Get(namespace, key)])[0]


def found(store, prefix, **more):
    return [item.key for item in store.run([Search(prefix, limit=1000, **more)])[0]]


def namespaces(store):
    return store.run([List(limit=10_000)])[0]


def remember(look, tmp_path, files):
    """Look until all is remembered: once the times of folders can be trusted, no file is opened or listed."""
    for folder in ("m", "m/alice", "m/alice/items"):
        age(tmp_path / folder)
    looked = [look() for _ in range(3)]
    opened = []
    files.hook = lambda name, path, *_: opened.append((name, path))
    assert look() == looked[0]
    files.hook = None
    assert not {"open", "scandir"} & {name for name, _ in opened}


# The file


def test_an_item_is_a_readable_table(store, diary):
    put(store, NS, "2026 plan", {"title": "move", "done": False, "_note": 1, "where": None})
    text = diary.user("alice").document("items/memories")
    entry = tomllib.loads(text)["items"]["2026 plan"]
    assert tomllib.loads(text)["_meta"]["namespace"] == ["alice", "memories"]
    assert entry["title"] == "move"
    assert entry["done"] is False
    assert entry["\\_note"] == 1
    assert entry["_null"] == ["/where"]
    assert entry["_created"] == entry["_updated"]
    assert get(store, NS, "2026 plan").value == {
        "title": "move",
        "done": False,
        "_note": 1,
        "where": None,
    }


def test_an_item_larger_than_a_document_may_be_is_refused_with_its_document(store):
    with pytest.raises(UnsafeDocument, match="items/notes: the document is larger than 16384 KiB"):
        put(store, ("alice", "notes"), "all", {"text": "x" * (17 << 20)}, index=False)
    assert get(store, ("alice", "notes"), "all") is None


def test_only_the_changed_item_changes_in_the_file(store, diary):
    for number in range(5):
        put(store, NS, f"k{number}", {"n": number})
    before = diary.user("alice").document("items/memories")
    put(store, NS, "k2", {"n": 20})
    after = diary.user("alice").document("items/memories")
    changed = [
        pair
        for pair in zip(before.splitlines(), after.splitlines(), strict=True)
        if pair[0] != pair[1]
    ]
    assert [old.split(" ")[0] for old, _ in changed] == ["seq", "n", "_updated"]


def test_a_hand_edit_is_read_and_never_lost(store, diary, tmp_path):
    put(store, NS, "a", {"n": 1})
    path = tmp_path / "m/alice/items/memories.toml"
    path.write_text(path.read_text().replace("n = 1", "n = 5 # mine") + '\n[items.hand]\nx = "y"\n')
    assert get(store, NS, "a").value == {"n": 5}
    assert get(store, NS, "hand").value == {"x": "y"}
    put(store, NS, "b", {"n": 2})
    assert "n = 5 # mine" in path.read_text()
    assert sorted(found(store, NS)) == ["a", "b", "hand"]
    new = tmp_path / "m/alice/items/mine.toml"
    new.write_text("[items.k]\nx = 1\n")
    assert ("alice", "mine") in namespaces(store)
    assert get(store, ("alice", "mine"), "k").value == {"x": 1}
    new.unlink()
    assert ("alice", "mine") not in namespaces(store)


def test_shortened_namespaces_of_several_users_are_listed_once_in_order(tmp_path):
    store = ItemStore(Diary(tmp_path, durability="process"), user_label=1)
    places = [("b", "x", "1"), ("b", "x", "2"), ("a", "y"), ("b", "y"), ("c", "x", "1")]
    store.run([Put(place, "k", {"a": 1}) for place in places])
    for _ in range(2):
        assert store.run([List(max_depth=1)]) == [[("a",), ("b",), ("c",)]]
        assert store.run([List(max_depth=2, offset=1, limit=2)]) == [[("b", "x"), ("b", "y")]]
        assert store.run([List()]) == [sorted(places)]
    store.run([Put(("0", "x"), "k", {"a": 1})])
    assert store.run([List(max_depth=1, limit=2)]) == [[("0",), ("a",)]]


def test_a_hand_edit_in_place_is_found_by_the_next_search(store, tmp_path, files):
    put(store, NS, "a", {"n": 1})
    remember(lambda: found(store, ("alice",)), tmp_path, files)
    path = tmp_path / "m/alice/items/memories.toml"
    with path.open("a") as file:
        file.write('\n[items.hand]\nx = "y"\n')
    assert sorted(found(store, ("alice",))) == ["a", "hand"]
    until(lambda: namespaces(store) == [NS])
    path.write_text("[_meta]\nseq = 1\n")
    until(
        lambda: not namespaces(store)
    )  # at the latest once no editor can be half way through a save


def test_a_put_waits_for_an_unfinished_hand_edit(store, diary, tmp_path, monkeypatch):
    for number, key in enumerate("ab"):
        put(store, NS, key, {"n": number})
    path = tmp_path / "m/alice/items/memories.toml"
    text = path.read_text().replace("n = 1", "n = 5")
    begun, settled = threading.Event(), diary.engine.settled
    monkeypatch.setattr(diary.engine, "settled", lambda *args: begun.set() or settled(*args))
    with ThreadPoolExecutor(1) as pool, path.open("w") as editor:
        half = text.index("[items.b]")
        editor.write(text[:half])
        editor.flush()
        done = pool.submit(put, store, NS, "c", {"n": 3})
        assert begun.wait(10)
        editor.write(text[half:])
        editor.close()
        done.result(20)
    assert {key: get(store, NS, key).value["n"] for key in "abc"} == {"a": 0, "b": 5, "c": 3}


def test_typed_entries_added_after_a_listing_are_in_the_next(store, diary, tmp_path, files):
    put(store, NS, "a", {"n": 1})
    folder = tmp_path / "m/alice"
    remember(lambda: namespaces(store), tmp_path, files)
    (folder / "preferences.toml").write_text('[preferences.likes.mine]\ntext = "by hand"\n')
    likes = ("alice", "diary", "preferences", "likes")
    assert namespaces(store) == [likes, NS]
    (folder / "preferences.toml").unlink()
    remember(lambda: namespaces(store), tmp_path, files)
    Diary(tmp_path / "m").user("alice").add_episode("in", "out", session_id="s")
    assert namespaces(store) == [("alice", "diary", "episodes"), NS]


def test_a_backend_may_change_the_list_of_documents_that_it_returned():
    class OwnList(MemoryBackend):
        names: ClassVar[list[str]] = []

        def kinds(self, user):
            self.names[:] = super().kinds(user)
            return self.names

    diary = Diary(OwnList(), agent="rules")
    store = ItemStore(diary)
    put(store, NS, "a", {"n": 1})
    assert namespaces(store) == [NS]
    diary.user("alice").upsert_preference("likes", "tea")
    assert namespaces(store) == [("alice", "diary", "preferences", "likes"), NS]


def test_a_namespace_of_another_process_seen_by_a_put_is_listed(store, tmp_path, files):
    other = ItemStore(Diary(tmp_path / "m", durability="process"))
    put(store, NS, "a", {"n": 1})
    remember(lambda: namespaces(store), tmp_path, files)
    second = ("alice", "second")
    put(other, second, "a", {"n": 1})
    put(store, second, "b", {"n": 2})
    assert namespaces(store) == [NS, second]
    assert found(store, ("alice",)) == ["b", "a", "a"]


def test_a_namespace_in_a_folder_that_was_empty_at_the_last_listing_is_listed(
    store, tmp_path, files
):
    """A put creates the folder of a new namespace long before it publishes the document in it."""
    put(store, NS, "a", {"n": 1})
    empty = tmp_path / "m/alice/items/trips"
    empty.mkdir()
    age(empty)
    remember(lambda: namespaces(store), tmp_path, files)
    trip = ("alice", "trips", "porto")
    put(ItemStore(Diary(tmp_path / "m", durability="process")), trip, "b", {"n": 1})
    assert namespaces(store) == [NS, trip]
    assert found(store, ("alice",)) == ["b", "a"]


def test_items_that_a_transaction_rolled_back_are_not_listed(store, diary, tmp_path, files):
    put(store, NS, "a", {"n": 1})
    remember(lambda: namespaces(store), tmp_path, files)
    with contextlib.suppress(KeyError), diary.user("alice").transaction():
        put(store, ("alice", "gone"), "k", {"n": 1})
        put(store, ("alice", "empty"), "k", None)
        assert namespaces(store) == [("alice", "gone"), NS]
        raise KeyError
    assert namespaces(store) == [NS]
    assert found(store, ("alice",)) == ["a"]
    put(store, ("alice", "gone"), "k", {"n": 1})
    assert namespaces(store) == [("alice", "gone"), NS]


def test_no_namespace_is_missing_after_a_listing_that_failed(store, tmp_path, files):
    hashed = ("alice", "a" * 150, "b" * 150)  # only its document states the labels
    put(ItemStore(Diary(tmp_path / "m", durability="process")), hashed, "a", {"n": 1})
    for folder in ("m/alice", "m/alice/items"):
        age(tmp_path / folder)

    def refuse(name, path, *_):
        if name == "open" and "/items/" in path:
            raise OSError(errno.EIO, "the disk does not answer", path)

    files.hook = refuse
    with pytest.raises(BackendError):
        namespaces(store)
    files.hook = None
    assert namespaces(store) == [hashed]
    assert found(store, ("alice",)) == ["a"]


def test_labels_that_end_in_toml_have_documents_of_their_own(store):
    for namespace in [
        ("alice", "b.toml", "x"),
        ("alice", "b"),
        ("alice", "b.toml"),
        ("alice", "b", "x"),
    ]:
        put(store, namespace, "k", {"at": list(namespace)})
        assert get(store, namespace, "k").value == {"at": list(namespace)}
    assert len(namespaces(store)) == 4


def test_history_knows_items_and_rolls_them_back(store, diary):
    put(store, NS, "k", {"n": 1})
    put(store, NS, "k", {"n": 2})
    alice = diary.user("alice")
    assert [record.type for record in alice.history()][:2] == ["put", "put"]
    alice.rollback(1)
    assert get(store, NS, "k").value == {"n": 1}


def test_a_transaction_and_its_reads_include_items(store, diary):
    alice = diary.user("alice")

    def fail():
        with alice.transaction():
            put(store, NS, "k", {"n": 1})
            alice.upsert_preference("likes", "tea")
            assert get(store, NS, "k").value == {"n": 1}
            assert sorted(found(store, ("alice",))) == ["k", *alice.preferences("likes")]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert get(store, NS, "k") is None
    assert namespaces(store) == []
    with alice.transaction():
        put(store, NS, "k", {"n": 1})
        put(store, NS, "l", {"n": 2})
        put(store, NS, "k", {"n": 3})
    assert get(store, NS, "k").value == {"n": 3}
    assert alice.last_transaction() == 1


def test_listings_over_all_users_include_the_transaction_of_a_new_user(store, diary):
    put(store, ("bob", "memories"), "k", {"n": 1})
    with diary.user("alice").transaction():
        put(store, NS, "k", {"n": 2})
        assert namespaces(store) == [NS, ("bob", "memories")]
        assert sorted(item.value["n"] for item in store.run([Search(())])[0]) == [1, 2]
    assert namespaces(store) == [NS, ("bob", "memories")]


def test_a_namespace_that_a_transaction_rolled_back_is_not_listed(store, diary, tmp_path, files):
    put(store, NS, "a", {"n": 1})
    remember(lambda: namespaces(store), tmp_path, files)
    with contextlib.suppress(KeyError), diary.user("alice").transaction():
        put(store, ("alice", "gone"), "k", {"n": 1})
        put(store, ("alice", "gone"), "l", {"n": 1})
        raise KeyError
    assert namespaces(store) == [NS]
    assert diary.engine.backend.kinds("alice") == ["items/memories"]


def test_a_listing_after_puts_looks_at_each_file_at_most_twice(store, files):
    for _ in range(2):
        for name in "abc":
            put(store, ("alice", name), "k", {"n": 1})
        sleep(0.03)  # a younger file may change again without a new version
        looked: list[tuple[str, str]] = []
        files.hook = lambda name, path, *_, looked=looked: looked.append((name, str(path)))
        assert len(namespaces(store)) == 3
        files.hook = None
    times = Counter(looked)
    assert max(times[each] for each in times if "/items/" in each[1]) <= 2


def test_a_document_that_was_moved_away_and_back_is_listed(store, tmp_path, files):
    put(store, NS, "a", {"n": 1})
    remember(lambda: namespaces(store), tmp_path, files)
    path = tmp_path / "m/alice/items/memories.toml"
    path.rename(tmp_path / "aside")
    assert get(store, NS, "a") is None
    (tmp_path / "aside").rename(path)
    assert namespaces(store) == [NS]
    assert found(store, ("alice",)) == ["a"]


# Parts


def test_deleting_a_document_of_items_deletes_its_further_ones(store, diary):
    for number in range(20):
        put(store, NS, f"k{number}", {"text": "x" * 9_000})
        put(store, ("alice", "memories2"), f"k{number}", {"text": "x" * 9_000})
    backend = diary.engine.backend
    assert "items/memories~2" in backend.kinds("alice")
    asyncio.run(backend.delete("alice", "items/memories"))
    assert namespaces(store) == [("alice", "memories2")]
    assert len(found(store, ("alice",))) == 20


def test_a_put_in_a_large_namespace_writes_one_of_its_documents(store, diary, tmp_path):
    for number in range(60):
        put(store, NS, f"k{number}", {"text": "x" * 2_000, "n": number})
    folder = tmp_path / "m/alice/items"
    files = sorted(path.name for path in folder.iterdir())
    assert len(files) > 3
    assert "memories~2.toml" in files
    assert all(path.stat().st_size < 40_000 for path in folder.iterdir())
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}
    put(store, NS, "k3", {"text": "y"})
    after = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert sum(before[name] != after[name] for name in before) == 1
    assert len(found(store, NS)) == 60
    assert namespaces(store) == [NS]
    fresh = ItemStore(Diary(tmp_path / "m"))
    assert get(fresh, NS, "k59").value["n"] == 59
    assert len(found(fresh, ("alice",))) == 60
    for number in range(60):
        put(store, NS, f"k{number}", None)
    assert namespaces(fresh) == []
    put(store, NS, "big", {"text": "z" * 90_000})
    put(store, NS, "big", {"text": "z" * 80_000})
    assert get(fresh, NS, "big").value == {"text": "z" * 80_000}


def sizes(folder):
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_single_puts_fill_small_documents_and_a_batch_larger_ones(store, diary, tmp_path):
    diary.engine.part_size = 32_000
    small = 8_000
    folder = tmp_path / "m/alice/items"
    for number in range(75):
        put(store, NS, f"k{number}", {"text": "x" * 200})
    assert max(sizes(folder).values()) < small + 1_000
    assert len(sizes(folder)) == 3
    bulk = ("alice", "bulk")
    store.run([Put(bulk, f"k{number}", {"text": "x" * 200}) for number in range(250)])
    large = [size for name, size in sizes(folder).items() if name.startswith("bulk")]
    assert len(large) == 3
    assert 3 * small < max(large) < 5 * small
    assert len(found(store, bulk)) == 250


def test_a_namespace_in_one_large_document_continues_in_another(store, tmp_path):
    store.run([Put(NS, f"k{number}", {"text": "x" * 200}) for number in range(400)])
    folder = tmp_path / "m/alice/items"
    assert list(sizes(folder)) == ["memories.toml"]
    old = sizes(folder)["memories.toml"]
    put(store, NS, "new", {"n": 1})
    assert sizes(folder)["memories.toml"] == old
    put(store, NS, "k7", {"n": 7})
    assert sizes(folder)["memories.toml"] < old
    fresh = ItemStore(Diary(tmp_path / "m"))
    for each in (store, fresh):
        assert get(each, NS, "new").value == {"n": 1}
        assert get(each, NS, "k7").value == {"n": 7}
        assert len(found(each, NS)) == 401
        assert namespaces(each) == [NS]


def test_an_item_that_grows_leaves_a_full_document(store, diary, tmp_path):
    diary.engine.part_size = 4_000
    for number in range(30):
        put(store, NS, f"k{number}", {"text": "x" * 200})
    put(store, NS, "k0", {"text": "x" * 6_000})
    documents = [file.read_text() for file in (tmp_path / "m/alice/items").rglob("*.toml")]
    assert [*tomllib.loads(max(documents, key=len))["items"]] == ["k0"]
    assert get(store, NS, "k0").value == {"text": "x" * 6_000}
    assert len(found(store, NS)) == 30


def test_a_document_with_few_items_left_gets_new_ones(store, tmp_path):
    for number in range(60):
        put(store, NS, f"k{number}", {"text": "x" * 2_000})
    first = tmp_path / "m/alice/items/memories.toml"
    known = list(tomllib.loads(first.read_text())["items"])
    store.run([Put(NS, key, None) for key in known[1:]])
    for number in range(100, 116):
        put(store, NS, f"k{number}", {"text": "x" * 2_000})
    assert len(tomllib.loads(first.read_text())["items"]) > 3
    assert len(found(store, NS)) == 60 - len(known) + 1 + 16


def test_a_namespace_whose_first_document_is_empty_is_listed(store, tmp_path, files):
    for number in range(30):
        put(store, NS, f"k{number}", {"text": "x" * 2_000})
    assert namespaces(store) == [NS]
    first = tomllib.loads((tmp_path / "m/alice/items/memories.toml").read_text())["items"]
    store.run([Put(NS, key, None) for key in first])
    remember(lambda: namespaces(store), tmp_path, files)
    store.run([Put(NS, f"k{number}", None) for number in range(30)])
    assert namespaces(store) == []


def test_a_cached_listing_never_hides_a_delete(store, tmp_path, files):
    for is_recent in (True, False) * 5:
        put(store, NS, "k", {"n": 1})
        remember(lambda: namespaces(store), tmp_path, files)
        put(store, NS, "k", None)
        if not is_recent:  # so that the time of the folder is trusted at once
            age(tmp_path / "m/alice/items", 3)
        assert namespaces(store) == []


def test_an_item_copied_into_two_documents_is_one_item(store, tmp_path):
    put(store, NS, "k", {"n": 1})
    path = tmp_path / "m/alice/items/memories.toml"
    copy = tmp_path / "m/alice/items/memories~2.toml"
    copy.write_text(path.read_text().replace("seq = 1\n", "").replace("n = 1", "n = 2"))
    assert found(store, NS) == ["k"]
    shown = get(store, NS, "k").value
    assert store.update(NS, "k", lambda value: {"was": value}).value == {"was": shown}
    put(store, NS, "k", {"n": 3})
    assert get(store, NS, "k").value == {"n": 3}
    put(store, NS, "k", None)
    assert get(store, NS, "k") is None


def test_the_newer_of_two_copied_items_counts(store, tmp_path):
    put(store, NS, "k", {"n": 1})
    path = tmp_path / "m/alice/items/memories.toml"
    copy = tmp_path / "m/alice/items/memories~2.toml"
    copy.write_text(path.read_text().replace("seq = 1\n", "").replace("n = 1", "n = 2"))
    path.write_text(path.read_text().replace('_updated = "2', '_updated = "3'))
    age(path)
    age(copy)
    for _ in range(2):  # from the files, and from the cache
        assert get(store, NS, "k").value == {"n": 1}
    assert store.run([Search(NS)])[0][0].value == {"n": 1}


# Names


LABELS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200
) | st.sampled_from(
    ["con", "NUL", "..", ".", "~", "~2", "a~2", "a/b", "%", "%2f", "É", "e\u0301", "items"]
)


@settings(max_examples=40)
@given(st.lists(LABELS, min_size=1, max_size=5).map(tuple), st.integers(0, 4))
def test_a_namespace_maps_to_its_own_document_name_and_back(namespace, number):
    for user in (namespace[0], namespace[-1], "somebody", SHARED):
        kind = document_of(user, namespace)
        assert kind.removeprefix("items/").replace("/", "").replace("%", "").isascii()
        assert kind == kind.lower()
        assert ".." not in kind
        assert len(kind) < 180
        assert namespace_of(user, kind) in (namespace, None)
        assert part_of(part_name(kind, number + 1)) == (kind, number + 1)


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(LABELS, min_size=1, max_size=3).map(tuple), min_size=2, max_size=6, unique=True
    )
)
def test_two_namespaces_never_share_a_document(several):
    user = several[0][0]
    kinds = [part_name(document_of(user, each), part) for each in several for part in (1, 2)]
    assert len(set(kinds)) == len(kinds)


def test_80_hostile_labels_and_keys_come_back_equal(tmp_path):
    store = ItemStore(Diary(tmp_path / "m", durability="none"))
    source = random.Random(7)
    pieces = ["..", "/", "\\", "~", "~2", "%2e", "'", '"', ";--", "$", "*", "?", "\n", "\t", "con", "É",
              "e\u0301", "[x]", "]]", "=", "#", "{}", "\u202e", "😀", "__class__", "None", "a" * 90]  # fmt: skip
    values = {}
    for number in range(80):
        labels = tuple(
            "".join(source.choices(pieces, k=source.randint(1, 3)))
            for _ in range(source.randint(1, 3))
        )
        labels = tuple(label.replace("\0", "") for label in ("eve", *labels) if label)
        key = "".join(source.choices([*pieces, "\0", "."], k=source.randint(0, 4)))
        value = {"".join(source.choices(pieces, k=2)): source.choice(pieces), "n": number}
        values[labels, key] = value
    store.run([Put(*place, value) for place, value in values.items()])
    fresh = ItemStore(Diary(tmp_path / "m"))
    for (namespace, key), value in values.items():
        assert get(fresh, namespace, key).value == value
        field, wanted = next(iter(value.items()))
        if not field.startswith("$"):
            hits = fresh.run([Search(namespace, {field: wanted, "n": value["n"]}, limit=1000)])[0]
            assert key in [item.key for item in hits]
    assert set(namespaces(fresh)) == {namespace for namespace, _ in values}
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert {path.name for path in (tmp_path / "m").iterdir()} == {"eve", ".tomldiary"}


@pytest.mark.parametrize("bad", ["\ud800", "a\udfff"])
def test_half_a_surrogate_is_no_label_key_or_value(store, bad):
    for op in (
        Put(("alice", bad), "k", {}),
        Put(NS, bad, {}),
        Put(NS, "k", {"x": bad}),
        Put(NS, "k", {bad: 1}),
    ):
        with pytest.raises(InvalidValue):
            store.run([op])
    assert namespaces(store) == []


# Stands for the type of numpy, which is no subclass of Python's.
numpy_bool = type("bool", (), {"__module__": "numpy"})


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        (Put("alice", "k", {}), "namespace: expected a tuple of labels, found str. Give one"),
        (Put(NS, "k", 3), "alice/memories/k: expected a table"),
        (Put(NS, "k", {}, index=[1]), "index: expected False or a list of fields"),
        (
            Put(NS, "k", {"x": numpy_bool()}),
            r"k\.x: expected .* true or false, .* found numpy\.bool\.",
        ),
    ],
)
def test_a_put_of_wrong_types_is_refused(store, operation, says):
    with pytest.raises(InvalidValue, match=says):
        store.run([operation])


@pytest.mark.parametrize("label", ["", "a\0b", "\0shared"])
def test_a_label_that_no_namespace_can_have_is_refused(store, label):
    for op in (Put(("alice", label), "k", {}), Get((label,), "k")):
        with pytest.raises(InvalidValue, match="namespace: a label"):
            store.run([op])


@pytest.mark.parametrize(
    ("operation", "name", "value"),
    [
        (Get, "key", 5),
        (Search, "limit", -1),
        (Search, "offset", -1),
        (Search, "query", 5),
        (List, "limit", True),
        (List, "offset", "1"),
        (List, "max_depth", 0),
    ],
)
def test_a_wrong_argument_of_an_operation_is_named(store, operation, name, value):
    place = () if operation is List else (NS,)
    with pytest.raises(InvalidValue, match=f"{name}: expected"):
        store.run([operation(*place, **{name: value})])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=30)
@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), JSON, max_size=4)
)
def test_any_json_value_comes_back_equal(value):
    store = ItemStore(Diary("memory:"))
    put(store, NS, "k", value)
    back = get(store, NS, "k").value
    assert back == value
    assert json.dumps(back, sort_keys=True) == json.dumps(value, sort_keys=True)


class _OwnTime(datetime):
    """As a library of times could have it: one that says more of itself than a file takes."""

    def isoformat(self, *_):
        return f"{super().isoformat()}\n[evil]"


TIMES = [
    time(1, 2, 3, 4), date(1, 1, 1), datetime(9999, 12, 31, tzinfo=UTC), datetime(2026, 1, 1, 2, 3, 4, 5, tzinfo=UTC), _OwnTime(2026, 1, 1, 1),
    datetime(2026, 7, 1, tzinfo=timezone(timedelta(hours=-23, minutes=-59))),
]  # fmt: skip


@pytest.mark.parametrize("value", TIMES)
def test_a_time_equals_the_one_that_a_file_gives(store, tmp_path, value):
    put(store, NS, "k", {"at": value})
    for each in (store, ItemStore(Diary(tmp_path / "m"))):
        back = get(each, NS, "k").value["at"]
        assert back == value
        assert type(back) in {date, time, datetime}


@pytest.mark.parametrize(
    "value", [time(1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=90)))]
)
def test_a_time_that_toml_cannot_write_leaves_the_namespace_as_it_was(store, tmp_path, value):
    put(store, NS, "k", {"n": 1})
    with pytest.raises(InvalidValue, match=r"memories/bad\.at\.0: .* zone"):
        put(store, NS, "bad", {"at": [value]})
    assert found(ItemStore(Diary(tmp_path / "m")), NS) == ["k"]


# Owners


def test_the_label_names_the_owner_of_a_namespace(diary):
    for label, owner in [(0, "memories"), (1, "alice"), (None, SHARED)]:
        store = ItemStore(diary, user_label=label)
        put(store, ("memories", "alice", "x"), "k", {"label": str(label)})
        assert any(kind.startswith("items/") for kind in diary.engine.backend.kinds(owner))
        assert get(store, ("memories", "alice", "x"), "k").value == {"label": str(label)}
    store = ItemStore(diary, user_label=lambda namespace, _: f"{namespace[-1]}@example.org")
    put(store, ("team", "bo"), "k", {"n": 1})
    assert "bo@example.org" in diary.users()
    assert found(store, ("team",)) == ["k"]
    assert ("team", "bo") in namespaces(store)


def test_namespaces_of_one_owner_never_collide_for_any_user_label(diary):
    places = [
        ("alice",),
        ("alice", "x"),
        ("x", "alice"),
        ("x",),
        ("alice", "alice"),
        ("alice", "x", "alice"),
    ]
    store = ItemStore(diary, user_label=lambda namespace, key: "alice")
    for number, namespace in enumerate(places):
        put(store, namespace, "k", {"n": number})
    assert [get(store, namespace, "k").value["n"] for namespace in places] == list(
        range(len(places))
    )
    assert sorted(namespaces(ItemStore(diary, user_label=lambda *_: "alice"))) == sorted(places)


@pytest.mark.parametrize("named", ["", " ", 5, SHARED])
def test_an_invalid_owner_of_a_namespace_is_an_error(diary, named):
    store = ItemStore(diary, user_label=lambda *_: named)
    with pytest.raises(InvalidValue, match="user_label"):
        put(store, NS, "k", {})


def test_a_batch_of_reads_sees_later_puts_into_another_document_of_the_namespace(store):
    long = "long " * 9000
    put(store, NS, "a", {"text": long})
    store.run([Get(NS, "a")])
    for number in range(2):  # first a new document, then a changed one
        put(store, NS, "b", {"text": long, "number": number})
        first, second, every = store.run([Get(NS, "a"), Get(NS, "b"), Search(NS[:1])])
        assert [first.key, second.value["number"], len(every)] == ["a", number, 2]


def test_a_batch_of_several_users_is_checked_before_any_write(store):
    likes = ("bo", "diary", "preferences", "likes")
    ops = [
        Put(("alice", "m"), "k", {}),
        Put(likes, "a", {"text": "tea"}),
        Put(likes, "b", {"text": "tea"}),
    ]
    with pytest.raises(InvalidValue, match="holds the same text"):
        store.run(ops)
    assert namespaces(store) == []


# Forgetting


def everything_on_disk(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_forgetting_a_session_removes_its_items_from_files_and_history(store, diary, tmp_path):
    store.run([Put(NS, "secret-key", {"text": "walnut allergy"})], session="s1")
    store.run([Put(NS, "kept", {"text": "likes tea"})], session="s2")
    store.run([Put(NS, "changed", {"text": "first words"})], session="s2")
    store.run([Put(NS, "changed", {"text": "walnut words"})], session="s1")
    receipt = diary.user("alice").forget(session_id="s1")
    assert receipt.entries >= 1
    left = everything_on_disk(tmp_path / "m")
    assert b"walnut" not in left
    assert b"secret-key" not in left
    assert b"likes tea" in left
    assert get(store, NS, "changed").value == {"text": "first words"}
    assert [item.score for item in store.run([Search(NS, query="walnut")])[0]] == [None, None]


def test_forgetting_a_source_removes_the_items_that_name_it(store, diary, tmp_path):
    put(store, NS, "kept", {"text": "likes tea"})
    with (tmp_path / "m/alice/items/memories.toml").open("a") as file:
        file.write('\n[items.told]\ntext = "walnut allergy"\n_source = "s1#2"\n')
    assert diary.user("alice").forget(source="s1#1").entries == 0
    assert get(store, NS, "told").value == {"text": "walnut allergy"}
    assert diary.user("alice").forget(source="s1").entries == 1
    assert get(store, NS, "told") is None
    assert get(store, NS, "kept").value == {"text": "likes tea"}
    assert b"walnut" not in everything_on_disk(tmp_path / "m")


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"text": ["pear"], "days": 2}, {"text": ["pear"], "days": 2}),
        ({"days": 2}, None),
        ({"text": ["walnut", "pear"], "days": 2}, None),
    ],
    ids=["the whole value", "a part", "a part of a list"],
)
def test_an_item_that_another_session_updates_keeps_no_words(store, diary, tmp_path, changes, left):
    alice = diary.user("alice")
    with alice.transaction(session_id="s1"):
        put(store, NS, "trip", {"text": ["walnut"], "days": 1})
    alice.items.update("memories/trip", changes, session_id="s2")
    alice.forget(session_id="s1")
    assert alice.items.get("memories/trip") == left
    assert b"walnut" not in everything_on_disk(tmp_path / "m")


def test_an_update_that_changes_nothing_names_no_session(store, diary):
    alice = diary.user("alice")
    with alice.transaction(session_id="s1"):
        put(store, NS, "trip", {"text": "walnut", "days": 1})
    alice.items.update("memories/trip", {"days": 1}, session_id="s2")
    alice.items.update("memories/trip", {"days": 2}, session_id="s1")
    alice.forget(session_id="s2")
    assert alice.items.get("memories/trip") == {"text": "walnut", "days": 2}


def test_forgetting_everything_or_old_entries_covers_items(store, diary, tmp_path):
    put(store, NS, "k", {"text": "walnut"})
    put(store, ("bo", "x"), "k", {"text": "pecan"})
    diary.user("alice").forget(everything=True)
    diary.user("bo").forget(before=datetime(2100, 1, 1, tzinfo=UTC))
    left = everything_on_disk(tmp_path / "m")
    assert b"walnut" not in left
    assert b"pecan" not in left
    assert namespaces(store) == []


# At once


def test_items_of_another_process_are_read_at_once(store, tmp_path):
    other = ItemStore(Diary(tmp_path / "m", durability="process"))
    for number in range(20):
        put(store if number % 2 else other, NS, "k", {"n": number})
        assert get(other if number % 2 else store, NS, "k").value == {"n": number}
        put(store if number % 2 else other, ("alice", str(number)), "k", {})
        assert len(namespaces(other if number % 2 else store)) == number + 2


def _count(folder, turns):
    store = ItemStore(Diary(folder, durability="process"))
    for _ in range(turns):
        store.update(NS, "n", lambda value: {"n": (value or {"n": 0})["n"] + 1})


def test_all_documents_that_another_process_added_are_read_at_once(store, tmp_path):
    put(store, NS, "first", {"n": 1})
    assert found(store, NS) == ["first"]
    for key in ("second", "third", "fourth"):  # each fills a document
        put(ItemStore(Diary(tmp_path / "m")), NS, key, {"text": key * 20_000})
    assert get(store, NS, "fourth").value == {"text": "fourth" * 20_000}


def test_four_processes_that_update_one_key_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_count, args=(tmp_path / "m", 30)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert get(ItemStore(Diary(tmp_path / "m")), NS, "n").value == {"n": 120}


def test_threads_that_update_one_key_lose_nothing(store):
    barrier = threading.Barrier(8)

    def work():
        barrier.wait()
        for _ in range(10):
            store.update(NS, "n", lambda value: {"n": (value or {"n": 0})["n"] + 1})

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert get(store, NS, "n").value == {"n": 80}


def test_writes_inside_an_update_are_part_of_its_transaction(store, diary):
    alice = diary.user("alice")

    def change(old):
        put(store, NS, "b", {"n": 1})
        store.update(NS, "c", lambda _: {"n": 2})
        with alice.transaction():
            alice.upsert_preference("likes", "tea")
        with pytest.raises(NestedTransaction):
            put(store, ("bob", "notes"), "b", {"n": 1})
        if old is not None:
            raise ValueError("refused")
        return {"n": 3}

    assert store.update(NS, "a", change).value == {"n": 3}
    assert [get(store, NS, key).value for key in "abc"] == [{"n": 3}, {"n": 1}, {"n": 2}]
    assert len({change.seq for change in alice.history()}) == 1
    alice.remove_preference("likes", "pref001")
    with pytest.raises(ValueError, match="refused"):
        store.update(NS, "a", change)
    assert not alice.preferences("likes")


def test_an_update_of_an_expired_item_begins_anew(diary):
    store = ItemStore(diary, omit_expired=True)
    put(store, NS, "k", {"n": 1}, ttl=0.00001)
    sleep(0.01)  # more than the time to live, of 0.6 ms
    assert store.update(NS, "k", lambda value: {"found": value}).value == {"found": None}


def test_an_update_can_fail_or_remove_the_item(store):
    put(store, NS, "k", {"n": 1})
    with pytest.raises(ZeroDivisionError):
        store.update(NS, "k", lambda value: {"n": 1 / 0})
    with pytest.raises(InvalidValue):
        store.update(NS, "k", lambda value: {"n": object()})
    assert get(store, NS, "k").value == {"n": 1}
    likes = ("alice", "diary", "preferences", "likes")
    store.update(likes, "tea", lambda value: {"text": "green tea", "contexts": [str(value)]})
    assert store.update(likes, "tea", lambda value: {**value, "n": 1}).value["contexts"] == ["None"]
    assert store.update(NS, "k", lambda value: None) is None
    assert get(store, NS, "k") is None


def test_a_forked_child_reads_and_writes(store):
    if not hasattr(os, "fork"):
        pytest.skip("this system does not fork")
    put(store, NS, "k", {"text": "before"})
    assert found(store, NS, query="before") == ["k"]
    child = os.fork()
    if child == 0:
        try:
            put(store, NS, "l", {"text": "before and after"})
            os._exit(0 if sorted(found(store, NS, query="before")) == ["k", "l"] else 1)
        except BaseException:  # noqa: BLE001 - a child of a test must not run the rest of it
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(found(store, NS, query="before")) == ["k", "l"]


# Expiry


def test_a_ttl_refresh_is_stored_beside_the_document_not_in_history(store, diary, tmp_path):
    put(store, NS, "secret-key", {"n": 1}, ttl=0.01)
    before = diary.user("alice").document("items/memories")
    assert "_ttl = 0.01" in before
    entry = store.catalog("alice").snapshot(NS).get("secret-key")
    deadlines = store.diary.engine.deadlines("alice")
    while end_of(deadlines, "items/memories", entry) == entry.expires:
        get(store, NS, "secret-key")
    assert diary.user("alice").document("items/memories") == before
    assert diary.user("alice").last_transaction() == 1
    noted = tmp_path / "m/.tomldiary/index/alice/expiry"
    assert b"secret-key" not in noted.read_bytes()
    other = ItemStore(Diary(tmp_path / "m"))
    others = other.diary.engine.deadlines("alice")
    assert end_of(others, "items/memories", entry) == end_of(deadlines, "items/memories", entry)
    put(store, NS, "secret-key", {"n": 2}, ttl=0.001)
    again = store.catalog("alice").snapshot(NS).get("secret-key")
    assert end_of(others, "items/memories", again) == again.expires
    noted.unlink()
    assert end_of(deadlines, "items/memories", entry) == entry.expires
    diary.user("alice").forget(everything=True)
    assert not noted.parent.exists()


def test_a_batch_with_an_unknown_typed_namespace_refreshes_no_ttl(store):
    put(store, NS, "k", {"n": 1}, ttl=0.001)
    entry = store.catalog("alice").snapshot(NS).get("k")
    is_over = False
    while not is_over:
        is_over = now_ns() > entry.expires * 1000
        with pytest.raises(InvalidValue, match="there is no namespace"):
            store.run([Get(NS, "k"), Put(("alice", "diary", "none"), "k", None)])
    assert end_of(store.diary.engine.deadlines("alice"), "items/memories", entry) == entry.expires


def test_a_torn_or_foreign_expiry_file_is_ignored(store, tmp_path):
    put(store, NS, "k", {}, ttl=0.001)
    noted = tmp_path / "m/.tomldiary/index/alice/expiry"
    noted.parent.mkdir(parents=True)
    noted.write_bytes(b"tomldiary expiry 1 zz\nnothing of ours \xff\nabc 1\n")
    entry = store.catalog("alice").snapshot(NS).get("k")
    deadlines = store.diary.engine.deadlines("alice")
    assert end_of(deadlines, "items/memories", entry) == entry.expires
    until(store.sweep)
    assert get(store, NS, "k") is None


def test_a_sweep_keeps_items_put_or_read_during_it(diary):
    store = ItemStore(diary, omit_expired=True)
    put(store, NS, "old", {}, ttl=0.0001)
    until(lambda: store.run([Get(NS, "old", refresh=False)])[0] is None)
    put(store, NS, "new", {}, ttl=60)
    assert store.sweep() == 1
    assert found(store, NS) == ["new"]
    assert next(iter(diary.user("alice").history())).type == "expire"


@pytest.mark.parametrize("ttl", [0, -1, True, "5", float("nan"), float("inf"), 1e12, 10**400])
def test_a_time_to_live_is_minutes_above_zero(store, ttl):
    with pytest.raises(InvalidValue, match=r"ttl: .* up to 1,000,000,000, or None, found"):
        put(store, NS, "k", {}, ttl=ttl)


@pytest.mark.parametrize("minutes", [0, -1, True, "5", float("nan")])
def test_a_sweep_interval_is_minutes_above_zero(minutes):
    with pytest.raises(InvalidValue, match="interval: expected minutes above 0, found"):
        Sweeper(int).start(minutes)


def test_ttl_refreshes_of_another_process_are_read(store, tmp_path, files):
    """Otherwise a sweep would remove an item that another process has just read."""
    put(store, NS, "ours", {}, ttl=60)
    put(store, NS, "theirs", {}, ttl=60)
    entries = {key: store.catalog("alice").snapshot(NS).get(key) for key in ("ours", "theirs")}
    mine, other = (
        store.diary.engine.deadlines("alice"),
        ItemStore(Diary(tmp_path / "m")).diary.engine.deadlines("alice"),
    )
    later = entries["ours"].expires
    mine.refresh([("items/memories", entries["ours"])], later)  # so that there is a file
    other.refresh([("items/memories", entries["ours"])], later * 2)

    def meanwhile(name, *_):
        if name == "write":
            files.hook = None
            other.refresh([("items/memories", entries["theirs"])], later)

    files.hook = meanwhile
    mine.refresh([("items/memories", entries["ours"])], later * 3)
    assert not mine.is_over("items/memories", entries["theirs"], later)
    assert end_of(mine, "items/memories", entries["theirs"]) == end_of(
        other, "items/memories", entries["theirs"]
    )


def test_a_long_file_of_refreshes_is_shortened_and_keeps_the_newest(tmp_path):
    begin = now_ns() // 1000
    items = [
        SimpleNamespace(key=f"k{number}", updated=begin, expires=begin + 60_000_000, ttl=1.0)
        for number in range(1_500)
    ]
    noted, longest = Deadlines(tmp_path), 0
    for seconds in range(10, 150, 10):
        now = begin + seconds * 1_000_000
        noted.refresh([("items/work", each) for each in items], now)
        longest = max(longest, (tmp_path / "expiry").stat().st_size)
    assert longest < 1_200_000  # 14 times 100,000 bytes were written
    for each in (noted, Deadlines(tmp_path)):
        ends = {end_of(each, "items/work", one) for one in items}
        assert ends == {now + 60_000_000}


def test_a_sweep_continues_after_an_error_for_one_user(store, tmp_path):
    for user in ("ann", "bo", "cy"):
        put(store, (user, "m"), "k", {}, ttl=0.0001)
        put(store, (user, "m"), "stays", {})
    file = tmp_path / "m/bo/items/m.toml"
    file.write_text(file.read_text().replace('"0.3"', '"99.0"'))
    ends = store.catalog("cy").snapshot(("cy", "m")).get("k").expires
    while now_ns() // 1000 <= ends:
        pass
    with pytest.raises(NewerVersion):
        store.sweep()
    assert [found(store, (user, "m")) for user in ("ann", "cy")] == [["stays"], ["stays"]]


def test_a_sweep_that_fails_does_not_end_the_sweeper(caplog):
    swept = threading.Event()

    def sweep():
        if not caplog.records:
            raise OSError("the disk is away")
        swept.set()
        return 0

    sweeper = Sweeper(sweep)
    ended = sweeper.start(0.0001)
    assert swept.wait(10)
    assert sweeper.stop()
    assert ended.result(10) is None
    assert "a sweep failed; the next one tries again" in caplog.text


def test_a_stopped_sweeper_can_be_started_again():
    at_work, go_on = threading.Event(), threading.Event()

    def sweep():
        at_work.set()
        go_on.wait()
        return 0

    sweeper = Sweeper(sweep)
    first = sweeper.start(0.0001)
    at_work.wait()
    assert not sweeper.stop(0)
    again = sweeper.start(1e12)
    assert sweeper.start(1) is again  # it runs already
    go_on.set()
    first.result(10)
    assert sweeper.is_running
    assert not again.done()
    assert sweeper.stop()
    assert again.done()
    assert not sweeper.is_running


@pytest.mark.parametrize("written", ["inf", "1" + "0" * 400, "-1", "nan", '"x"'])
def test_any_hand_written_ttl_leaves_the_item_readable(store, tmp_path, written):
    put(store, NS, "k", {"n": 1}, ttl=0.5)
    file = tmp_path / "m/alice/items/memories.toml"
    file.write_text(file.read_text().replace("_ttl = 0.5", f"_ttl = {written}"))
    assert get(store, NS, "k").value == {"n": 1}
    assert found(store, ()) == ["k"]


@pytest.mark.parametrize("field", ["_created", "_updated", "_expires"])
@pytest.mark.parametrize(
    "written", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-14:00", "9999-12-31T23:59:59Z"]
)  # fmt: skip
def test_any_hand_written_time_allows_reads_and_puts(store, tmp_path, field, written):
    put(store, NS, "k", {"n": 1}, ttl=60)
    file = tmp_path / "m/alice/items/memories.toml"
    file.write_text(re.sub(rf'{field} = "[^"]*"', f'{field} = "{written}"', file.read_text()))
    assert get(store, NS, "k").value == {"n": 1}
    assert found(store, ()) == ["k"]
    put(store, NS, "k", {"n": 2}, ttl=1e9)
    assert get(store, NS, "k").value == {"n": 2}


@pytest.mark.parametrize("written", ["2026-11-20", '"2026-11-20"', "2026-11-20T01:00:00+01:00"])
def test_a_day_written_by_hand_is_a_time_for_stores_too(store, diary, tmp_path, written):
    put(store, NS, "k", {"n": 1})
    file = tmp_path / "m/alice/items/memories.toml"
    file.write_text(re.sub(r'_updated = "[^"]*"', f"_updated = {written}", file.read_text()))
    assert get(store, NS, "k").updated_at == datetime(2026, 11, 20, tzinfo=UTC)
    since = ("2026-11-19", "2026-11-21")
    assert [hit.key for hit in diary.user("alice").recall("n", time_range=since)] == ["memories/k"]


def test_an_item_put_while_the_document_is_broken_can_be_updated(store, diary, tmp_path):
    put(store, NS, "k", {"n": 0})
    put(store, NS, "other", {"n": 0})
    file = tmp_path / "m/alice/items/memories.toml"
    file.write_text(file.read_text().replace("n = 0", "n = ", 1))
    os.utime(file, (1, 1))
    for number in range(1, 4):
        store.update(NS, "k", lambda value: {"n": value["n"] + 1})
        put(store, NS, "other", {"n": number})
        assert [get(store, NS, key).value["n"] for key in ("k", "other")] == [number] * 2
        items = store.run([Search(("alice",), filter={"n": number})])[0]
        assert sorted(item.key for item in items) == ["k", "other"]
    put(store, NS, "k", None)
    assert found(store, ()) == ["other"]
    assert "n = \n" in file.read_text()
    assert verify(diary.engine.backend, "alice") is None


STRAYS = ["memories (1)", "My Notes", "Memories", "é", "#memories#", "memories~1", "memories~0", "x" * 200,
          "memories~1" + "0" * 180, f"~h{'0' * 64} (1)", "sub/My Notes", f"My/~{'0' * 64}"]  # fmt: skip


@pytest.mark.parametrize("name", STRAYS)
def test_a_backup_copy_beside_a_document_changes_nothing(store, tmp_path, name):
    put(store, NS, "k", {"n": 1})
    put(store, ("bo", "m"), "k", {})
    file = tmp_path / "m/alice/items/memories.toml"
    copy = file.parent / f"{name}.toml"
    copy.parent.mkdir(exist_ok=True)
    copy.write_text(file.read_text())
    for each in (store, ItemStore(Diary(tmp_path / "m", durability="process"))):
        put(each, NS, "l", {"n": 2})
        assert get(each, NS, "k").value == {"n": 1}
        assert sorted(found(each, NS, query=None)) == ["k", "l"]
        assert namespaces(each) == [NS, ("bo", "m")]
        assert each.sweep() == 0
    assert "[items.l]" not in copy.read_text()


def test_a_document_with_an_invalid_namespace_hides_no_other(store, tmp_path):
    far = ("alice", "x" * 90, "y" * 90)
    put(store, far, "k", {})
    put(store, NS, "k", {})
    file = next((tmp_path / "m/alice/items").glob("~h*.toml"))
    for labels in ('["alice", ""]', '["bo", "x"]', "[]", "5", '["a\\u0000"]'):
        lines = [
            f"namespace = {labels}" if line.startswith("namespace =") else line
            for line in file.read_text().split("\n")
        ]
        file.write_text("\n".join(lines))
        assert namespaces(ItemStore(Diary(tmp_path / "m"))) == [NS]
    assert get(store, far, "k").value == {}


def test_a_document_of_one_user_that_cannot_be_used_hides_no_other_user(
    store, diary, tmp_path, caplog
):
    for user in ("ann", "bo", "cy"):
        put(store, (user, "m"), user, {"text": "tea"})
    file = tmp_path / "m/bo/items/m.toml"
    file.write_text(file.read_text().replace('"0.3"', '"99.0"'))
    for query in (None, "tea"):
        assert sorted(found(store, (), query=query)) == ["ann", "cy"]
    assert namespaces(store) == [("ann", "m"), ("cy", "m")]
    expected = "a user is omitted from a listing: 'bo': "  # not every error names its user
    assert {message.startswith(expected) for message in caplog.messages} == {True}
    with pytest.raises(NewerVersion):
        found(store, ("bo",))
    file.rename(tmp_path / "m.toml")
    file.symlink_to(tmp_path / "m.toml")
    with pytest.raises(BackendError, match="it is a link"):
        found(ItemStore(diary), ())


def test_namespaces_are_in_the_order_of_tuples_and_not_of_joined_text(store):
    names = [("a", "z"), ("a-b",), ("a", "a", "c"), ("a!",), ("a", "z z"), ("a", "z", "b")]
    store.run([Put(namespace, "k", {}) for namespace in names])
    assert namespaces(store) == sorted(names)
    assert sorted(names) not in (sorted(names, key=join) for join in (".".join, "/".join))


def test_limits_and_offsets_may_exceed_64_bits(store):
    put(store, NS, "k", {})
    put(store, NS, "l", {})
    assert len(store.run([Search(NS, limit=sys.maxsize, offset=1)])[0]) == 1
    assert store.run([Search(NS, limit=10**30, offset=10**30)])[0] == []


def test_two_writers_lose_no_item_while_the_document_is_broken(tmp_path):
    """History goes on without the file then: what a writer has seen before is not all there is."""
    stores = [DiaryStore(Diary(tmp_path, agent="rules", durability="process")) for _ in "ab"]
    stores[0].put(("alice", "things"), "k", {"n": 0})
    file = tmp_path / "alice/items/things.toml"
    file.write_text(file.read_text().replace("n = 0", "n = "))
    os.utime(file, (1, 1))
    for number in range(1, 9):
        for store in stores:
            assert store.get(("alice", "things"), "k") is not None
        stores[number % 2].put(("alice", "things"), f"k{number % 3}", {"n": number})
    diary = Diary(tmp_path, agent="rules")
    assert verify(diary.engine.backend, "alice") is None
    found = DiaryStore(diary).search(("alice", "things"), limit=20)
    assert {item.key: item.value["n"] for item in found} == {
        "k": 0, "k0": 6, "k1": 7, "k2": 8,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_shared_items_have_no_user_but_are_found_and_expire(tmp_path, kind):
    diary = Diary("memory:" if kind == "memory" else tmp_path, agent="rules")
    store = DiaryStore(diary, user_label=1, ttl={"default_ttl": 60})
    store.put(("memories",), "k", {"n": 1})
    store.put(("memories", "alice"), "gone", {"n": 1}, ttl=0.00001)
    store.put(("memories",), "gone", {"n": 1}, ttl=0.00001)
    assert diary.users() == ["alice"]
    assert store.list_namespaces() == [("memories",), ("memories", "alice")]
    swept = 0
    while swept < 2:
        swept += store.sweep_ttl()
    assert [item.key for item in store.search((), limit=10)] == ["k"]
    assert store.list_namespaces() == [("memories",)]
