"""The public suite for LangGraph stores, run on a diary and on LangGraph's own store in memory."""

from __future__ import annotations

import pytest
from langgraph.store.memory import InMemoryStore

from tomldiary import Diary
from tomldiary.testing import StoreSuite
from tomldiary_langgraph import DiaryStore

pytest.importorskip("numpy", reason='vectors need numpy: pip install "tomldiary-kit[embeddings]"')


class DiarySuite(StoreSuite):
    def expiry_of(self, calls, namespace, key):
        items = calls.store._items
        snapshot = items._snapshot(namespace, key)
        return items.deadlines(snapshot.user).of(namespace, snapshot.get(key))


class TestDiaryInFiles(DiarySuite):
    def make_store(self, tmp_path, *, index=None, ttl=None):
        diary = Diary(tmp_path / "memories", durability="process")
        return DiaryStore(diary, index=index, ttl=ttl)


class TestDiaryInMemory(DiarySuite):
    def make_store(self, tmp_path, *, index=None, ttl=None):
        return DiaryStore("memory:", index=index, ttl=ttl)


class TestDiaryInFilesSharedByAll(DiarySuite):
    def make_store(self, tmp_path, *, index=None, ttl=None):
        diary = Diary(tmp_path / "memories", durability="process")
        return DiaryStore(diary, None, index=index, ttl=ttl)


class TestInMemoryStore(StoreSuite):
    known_faults = {}

    def make_store(self, tmp_path, *, index=None, ttl=None):
        return InMemoryStore(index=index)
