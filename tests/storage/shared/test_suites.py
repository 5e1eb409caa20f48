"""The public suites for backends and for LangGraph stores, on every database server."""

from __future__ import annotations

import importlib.util

import pytest

import engines
from tomldiary import Diary
from tomldiary.testing import BackendSuite, StoreSuite
from tomldiary_langgraph import DiaryStore


class OnServers:
    name = ""

    @pytest.fixture(autouse=True)
    def _closed(self):
        self.backends = []
        yield
        for backend in self.backends:
            backend.close()

    def new_backend(self):
        self.backends.append(engines.space(self.name).backend())
        return self.backends[-1]


class Backends(OnServers, BackendSuite):
    def make_backend(self, tmp_path):
        return self.new_backend()


class TestPostgres(Backends):
    name = "postgres"


class TestRedis(Backends):
    name = "redis"


class TestFirestore(Backends):
    name = "firestore"


class Stores(OnServers, StoreSuite):
    has_vectors = importlib.util.find_spec("numpy") is not None

    def make_store(self, tmp_path, *, index=None, ttl=None):
        return DiaryStore(Diary(self.new_backend()), index=index, ttl=ttl)

    def expiry_of(self, calls, namespace, key):
        items = calls.store._items
        owner = items._owner(namespace, key)
        entry = items.catalog(owner).snapshot(namespace).get(key)
        return items.deadlines(owner).of(namespace, entry)


class TestStoreOnPostgres(Stores):
    name = "postgres"


class TestStoreOnRedis(Stores):
    name = "redis"


class TestStoreOnFirestore(Stores):
    name = "firestore"


del Backends, Stores, BackendSuite, StoreSuite
