"""Chroma and Qdrant, the real libraries in local mode, follow the memory and are searched."""

from __future__ import annotations

import sys
import threading
import zlib

import pytest

from tomldiary import Diary
from tomldiary.errors import InvalidValue, MissingExtra
from tomldiary.hooks.change import Change
from tomldiary.hooks.chroma import ChromaHook
from tomldiary.hooks.qdrant import QdrantHook


def embed(texts):
    found = []
    for text in texts:
        vector = [0.01] * 64
        for word in text.lower().split():
            vector[zlib.crc32(word.encode()) % 64] += 1.0
        found.append(vector)
    return found


@pytest.fixture(params=["chroma", "qdrant"])
def opened(request, tmp_path):
    pytest.importorskip({"chroma": "chromadb", "qdrant": "qdrant_client"}[request.param])
    make = {"chroma": ChromaHook, "qdrant": QdrantHook}[request.param]
    return lambda **options: make(str(tmp_path / "index"), **{"embed": embed, **options})


def test_an_index_follows_and_finds_what_the_memory_holds(tmp_path, opened):
    index = opened(metadata=lambda change: {"kind": change.key.partition("/")[0]})
    with Diary(tmp_path / "memories", agent="rules") as diary:
        diary.hooks.add(index, name="index")
        alice, bob = diary.user("alice"), diary.user("bob")
        alice.upsert_preference("likes", "dark roast coffee")
        alice.upsert_preference("dislikes", "loud bars")
        alice.blocks.set("blank", "text")
        bob.upsert_preference("likes", "coffee beans")
        assert diary.hooks.flush()
        found = diary.hooks.search("index", "coffee", user_id="alice", limit=2)
        assert found[0].key == "likes/pref001"
        assert found[0].score > found[1].score
        assert {hit.user for hit in found} == {"alice"}
        alice.blocks.set("blank", "  ")
        alice.remove_preference("dislikes", "pref001")
        assert diary.hooks.flush()
        assert {*index.stored("alice")} == {"likes/pref001"}
        assert diary.hooks.reconcile("index").drift == 0
        assert diary.hooks.rebuild("index").added == 2
        alice.forget(everything=True)
        assert diary.hooks.search("index", "coffee", user_id="alice") == []
        assert diary.hooks.flush()
        assert index.users() == {"bob"}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda _: None,
        lambda texts: [*embed(texts), *embed(texts)],
        lambda texts: [],
        lambda texts: [[float("inf")] * 64 for _ in texts],
        lambda texts: [[float("nan")] * 64 for _ in texts],
        lambda texts: texts,
    ],
    ids=["nothing", "too many", "too few", "infinite", "no numbers", "texts"],
)
def test_wrong_vectors_are_refused_and_not_stored(tmp_path, opened, wrong):
    index = opened(embed=wrong)
    with Diary(tmp_path / "memories", agent="rules") as diary:
        diary.user("alice").upsert_preference("likes", "dark roast coffee")
        diary.hooks.add(index, name="index")
        with pytest.raises(InvalidValue, match="embed: expected 1 vector of finite numbers"):
            diary.hooks.reconcile("index")
        assert index.users() == set()


class SlowCollection:
    """A collection whose removal lasts until a query begins, or for a tenth of a second."""

    def __init__(self):
        self.removing, self.queried = threading.Event(), threading.Event()
        self.overlapped = None

    def upsert(self, **fields):
        raise AssertionError(fields)

    def delete(self, ids):
        self.removing.set()
        self.overlapped = self.queried.wait(0.1)

    def query(self, **fields):
        self.queried.set()
        return {"metadatas": [[]], "distances": [[]]}


def test_chroma_is_not_queried_during_a_removal():
    collection = SlowCollection()
    hook = ChromaHook(collection, embed=embed)
    removal = threading.Thread(target=hook.apply, args=([Change("alice", "likes/a", 0, 1)],))
    removal.start()
    assert collection.removing.wait(30)
    assert hook.search("coffee", user="alice", limit=1) == []
    removal.join(30)
    assert collection.overlapped is False


def test_a_missing_library_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "chromadb", None)
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(MissingExtra, match=r"tomldiary-kit\[chroma\]"):
        ChromaHook(str(tmp_path))
    with pytest.raises(MissingExtra, match=r"tomldiary-kit\[qdrant\]"):
        QdrantHook(str(tmp_path), embed=embed)
    with pytest.raises(InvalidValue, match="cosine, ip, l2"):
        ChromaHook(object(), space="manhattan")


async def async_embed(texts):
    return embed(texts)


class AsyncEmbed:
    async def __call__(self, texts):
        return embed(texts)


@pytest.mark.parametrize(
    ("collection", "options", "message"),
    [
        (None, {}, "collection: expected a folder or a collection"),
        (object(), {}, "collection: expected a folder or a collection"),
        (object(), {"embed": async_embed}, "embed: expected a plain function"),
        (object(), {"embed": AsyncEmbed()}, "embed: expected a plain function"),
        (object(), {"embed": "local"}, "embed: expected a plain function"),
    ],
)
def test_what_chroma_cannot_write_to_is_refused(collection, options, message):
    with pytest.raises(InvalidValue, match=message):
        ChromaHook(collection, **options)


def test_what_qdrant_cannot_write_to_is_refused():
    library = pytest.importorskip("qdrant_client")
    for client in (None, library.QdrantClient, library.AsyncQdrantClient(":memory:")):
        with pytest.raises(InvalidValue, match="client: expected a folder or a QdrantClient"):
            QdrantHook(client, embed=embed)
    with pytest.raises(InvalidValue, match="embed: expected a function of a list of texts"):
        QdrantHook(":memory:", embed=None)
