"""What another process reads between the new fencing token and the new files of a forget is stored nowhere."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest

from file_systems import HookedFiles
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.backends import LocalBackend
from tomldiary.errors import BackendError, LockTimeout
from tomldiary.retrieval.vector_index import Embedding
from tomldiary.store.operations import Get, Put, Search
from tomldiary.store.store import ItemStore
from tomldiary.writer.attempts import RetryPolicy


@pytest.fixture
def forget_during(tmp_path, files):
    """Forget a text, and call a function between the new fencing token and the new files."""
    forgetting = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    forgetting.upsert_preference("likes", "canary")
    forgetting.upsert_preference("likes", "tea")
    store = ItemStore(forgetting.diary)
    store.run([Put(("alice", "notes"), text, {"text": text}) for text in ("canary", "tea")])
    forgetting.forget(matching="earlier")  # so the fencing token is above 0

    def forget(work):
        def hook(name, path, *_):
            if name == "replace" and path.endswith(".forgetting-0"):
                files.hook = None
                work()

        files.hook = hook
        forgetting.forget(matching="canary")

    return forget


@pytest.mark.parametrize("way", ["recall", "store", "index"])
def test_a_search_by_meaning_neither_waits_nor_stores_a_vector(
    tmp_path, forget_during, caplog, way
):
    pytest.importorskip("numpy")
    embedded = []

    def embed(texts):
        embedded.extend(texts)
        return [[float(len(text)), 1.0] for text in texts]

    def search():
        if way == "recall":
            return reader.user("alice").recall("drink")
        [items] = store.run([Search(("alice",), query="drink")])
        return items

    def stored():
        return list((tmp_path / ".tomldiary/index").rglob("vectors-*"))

    embedder = None if way == "index" else embed
    reader = Diary(tmp_path, agent="rules", embedder=embedder, lock_timeout=0.01)
    store = ItemStore(reader, embedding=Embedding(2, embed, ("text",)) if way == "index" else None)
    forget_during(search)
    assert "canary" in embedded
    assert stored() == []
    assert caplog.text == ""
    assert len(search()) == 2
    assert len(stored()) == 1


@pytest.mark.parametrize("way", ["turn", "consolidation", "compaction"])
def test_no_model_reads_before_the_forget_ends(tmp_path, forget_during, way):
    seen = []

    def read(message, *, deps):
        seen.append(repr(deps.prefs))

    def extracted():
        if way == "turn":
            reader.add_turn("Join them.", "Done.", session_id="s1")
        elif way == "consolidation":
            reader.consolidate()
        else:
            now = datetime.now(UTC)
            asyncio.run(diary.compaction.compact("alice", "s1", ["preferences"], now))

    def wait():
        with pytest.raises(LockTimeout):
            extracted()

    diary = Diary(tmp_path, agent=read, compactor=read, lock_timeout=0.01)
    reader = diary.user("alice")
    reader.episodes.add("Join them.", "Done.", session_id="s1")
    forget_during(wait)
    assert seen == []
    extracted()
    assert seen
    assert "tea" in seen[0]
    assert "canary" not in "".join(seen)


def test_a_turn_in_memory_of_the_time_of_a_forget_is_stored(tmp_path, forget_during):
    def extract(message, *, deps):
        deps.upsert("goals", "new", f"Both: {deps.pretty_prefs()}")

    def submit():
        receipts.append(writer.submit_nowait(Turn("alice", "s1", "Join them.", "Done.")))
        while not writer.stats()["retries"] and not receipts[0].is_done:
            time.sleep(0.01)
        writer.submit_nowait(Turn("bob", "s1", "Join them.", "Done.")).wait(30)

    receipts = []
    backend = LocalBackend(tmp_path, durability="none")
    diary = Diary(backend, agent=extract, lock_timeout=0.01)
    retry = RetryPolicy(attempts=10_000, first_pause=0.01, longest_pause=0.01)
    with MemoryWriter(diary, workers=1, retry=retry) as writer:
        forget_during(submit)
        receipts[0].wait(30)
    [goal] = diary.user("alice").preferences("goals").values()
    assert "tea" in goal.text
    assert "canary" not in goal.text


def test_a_put_beside_a_search_waits_for_the_end_of_a_forget(tmp_path, forget_during):
    pytest.importorskip("numpy")

    embedded = []

    def embed(texts):
        embedded.extend(texts)
        return [[float(len(text)), 1.0] for text in texts]

    def run(diary):
        store = ItemStore(diary, embedding=Embedding(2, embed, ("text",)))
        search = Search(("alice",), query="drink")
        return store.run([Put(("alice", "notes"), "rice", {"text": "rice"}), search])

    def wait():
        with pytest.raises(LockTimeout):
            run(Diary(tmp_path, agent="rules", lock_timeout=0.01))

    forget_during(wait)
    assert embedded == []
    run(Diary(tmp_path, agent="rules"))
    assert "rice" in embedded
    assert "canary" not in embedded


def test_a_put_beside_a_search_of_a_user_with_a_forget_is_stored(tmp_path, forget_during):
    pytest.importorskip("numpy")

    def run():
        bob = Put(("bob", "notes"), "rice", {"text": "rice"})
        assert store.run([bob, Search(("alice",), query="drink")])[1]

    embedding = Embedding(2, lambda texts: [[1.0, 1.0] for _ in texts], ("text",))
    store = ItemStore(Diary(tmp_path, agent="rules", lock_timeout=0.01), embedding=embedding)
    forget_during(run)
    assert store.run([Get(("bob", "notes"), "rice")])[0].value == {"text": "rice"}


@pytest.mark.parametrize("way", ["embedder", "index", "pinned"])
def test_a_text_read_before_a_forget_gets_no_vector(tmp_path, way):
    pytest.importorskip("numpy")
    embedded = []

    def embed(texts):
        embedded.extend(texts)
        return [[float(len(text)), 1.0] for text in texts]

    def stored():
        return list((tmp_path / ".tomldiary/index").rglob("vectors-*"))

    def forget(name, path, *_):
        if name == "open" and path.endswith("alice/items/pets.toml"):
            files.hook = None
            writer.user("alice").forget(matching="canary")

    writer = Diary(tmp_path, agent="rules")
    notes, pets = ("alice", "notes"), ("alice", "pets")
    items = [(notes, "bird", "canary"), (notes, "drink", "tea"), (pets, "cat", "a cat")]
    ItemStore(writer).run([Put(where, key, {"text": text}) for where, key, text in items])
    files = HookedFiles()
    backend = LocalBackend(tmp_path, files=files)
    reader = Diary(backend, agent="rules", embedder=None if way == "index" else embed)
    embedding = Embedding(2, embed, ("text",)) if way == "index" else None
    store = ItemStore(reader, embedding=embedding)
    assert reader.user("alice").last_transaction() == 1  # so no lock for recovery is needed later
    files.hook = forget
    search = Search(("alice",), query="drink")
    others = [Get(notes, "bird"), Get(pets, "cat")] if way == "pinned" else []
    store.run([*others, search])
    assert files.hook is None
    assert "canary" in embedded
    assert stored() == []
    [found] = store.run([search])
    assert {item.key for item in found} == {"drink", "cat"}
    assert len(stored()) == 1


def test_a_feed_returns_nothing_that_is_forgotten(tmp_path, forget_during):
    diary = Diary(tmp_path, agent="rules", lock_timeout=0.01)
    feed = diary.changes(follow=False)

    def read():
        with pytest.raises(LockTimeout):
            list(feed)

    forget_during(read)
    assert [change.text for change in diary.changes(feed.cursor, follow=False) if change.text] == [
        "tea",
        "tea",
    ]


def test_a_turn_after_a_killed_forget_finishes_it_and_is_stored(tmp_path, forget_during):
    def extract(message, *, deps):
        deps.upsert("likes", "new", f"Seen: {deps.pretty_prefs()}")

    def fail():
        raise OSError("no space")

    with pytest.raises(BackendError, match="Some of the data to forget remains"):
        forget_during(fail)
    reader = Diary(tmp_path, agent=extract).user("alice")
    reader.add_turn("Tell me.", "Done.", session_id="s1")
    seen = reader.preferences("likes").popitem()[1].text
    assert "tea" in seen
    assert "canary" not in seen
