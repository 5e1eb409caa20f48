"""What another process reads between the new fencing token and the new files of a forget is stored nowhere."""

from __future__ import annotations

import threading

import pytest

from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import BackendError, Forgotten, LockTimeout
from tomldiary.retrieval.vector_index import Embedding
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore


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


@pytest.fixture
def in_thread():
    """Start a thread that stores something later, and wait until it has read what it needs."""
    threads = []
    has_read = threading.Event()

    def start(work):
        threads.append(threading.Thread(target=work))
        threads[0].start()
        assert has_read.wait(30)

    start.has_read = has_read
    start.join = lambda: threads[0].join(30)
    return start


@pytest.mark.parametrize("way", ["recall", "store", "index"])
def test_a_search_by_meaning_stores_no_vector(tmp_path, forget_during, in_thread, way):
    pytest.importorskip("numpy")

    def embed(texts):
        if "canary" in texts:
            in_thread.has_read.set()
        return [[float(len(text)), 1.0] for text in texts]

    def search():
        if way == "recall":
            return reader.user("alice").recall("drink")
        [items] = store.run([Search(("alice",), query="drink")])
        return items

    def stored():
        return list((tmp_path / ".tomldiary/index").rglob("vectors-*"))

    reader = Diary(tmp_path, agent="rules", embedder=None if way == "index" else embed)
    store = ItemStore(reader, embedding=Embedding(2, embed, ("text",)) if way == "index" else None)
    forget_during(lambda: in_thread(search))
    in_thread.join()
    assert stored() == []
    assert len(search()) == 2
    assert len(stored()) == 1


def test_an_extractor_stores_nothing(tmp_path, forget_during, in_thread):
    def extract(message, *, deps):
        in_thread.has_read.set()
        deps.upsert("likes", "new", f"Both: {deps.pretty_prefs()}")

    def add_turn():
        with pytest.raises(Forgotten):
            reader.add_turn("Join them.", "Done.", session_id="s1")

    reader = Diary(tmp_path, agent=extract).user("alice")
    forget_during(lambda: in_thread(add_turn))
    in_thread.join()
    assert [item.text for item in reader.preferences("likes").values()] == ["tea"]


def test_an_episode_that_is_consolidated_is_read_again(tmp_path, forget_during, in_thread):
    def extract(message, *, deps):
        in_thread.has_read.set()
        deps.upsert("goals", "new", f"Both: {deps.pretty_prefs()}")

    reader = Diary(tmp_path, agent=extract).user("alice")
    reader.episodes.add("Join them.", "Done.", session_id="s1")
    forget_during(lambda: in_thread(reader.consolidate))
    in_thread.join()
    [goal] = reader.preferences("goals").values()
    assert "tea" in goal.text
    assert "canary" not in goal.text


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
