"""The public suites for backends and for LangGraph stores, on every database server."""

from __future__ import annotations

import importlib.util

import pytest

import engines
from store_expiry import expiry_of
from tomldiary import Diary
from tomldiary.testing import SharedBackendSuite, StoreSuite
from tomldiary.testing.backend.clients import Clients
from tomldiary_langgraph import DiaryStore


class Server:
    """Opens backends on a space in one server."""

    name = ""
    # A commit here only collects what the end of the transaction applies in one step.
    test_a_process_killed_within_a_commit_leaves_no_part_of_it = None

    def new_backend(self):
        self.engine = engines.space(self.name)
        return self.engine.backend()

    def make_backend(self, tmp_path):
        return self.new_backend()

    def open_again(self, backend):
        return self.engine.backend()

    def opening_code(self, backend):
        return f"backend = {self.engine.url!r}"

    def stored_text(self, backend):
        return self.engine.texts()


@engines.needs("postgres")
class Postgres(Server):
    name = "postgres"


@engines.needs("redis")
class Redis(Server):
    name = "redis"


@engines.needs("firestore")
class Firestore(Server):
    name = "firestore"


class TestPostgres(Postgres, SharedBackendSuite):
    pass


class TestRedis(Redis, SharedBackendSuite):
    pass


class TestFirestore(Firestore, SharedBackendSuite):
    pass


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
class Long(Clients):
    """The processes make 200 updates each."""

    updates = 200


class TestLongOnPostgres(Postgres, Long):
    pass


class TestLongOnRedis(Redis, Long):
    pass


class TestLongOnFirestore(Firestore, Long):
    pass


class Stores(Server, StoreSuite):
    surfaces = ("async",)  # in a folder and in memory, the suite also calls the sync methods
    has_vectors = importlib.util.find_spec("numpy") is not None

    store_backend = None

    @pytest.fixture(autouse=True)
    def _closed(self):
        yield
        if self.store_backend is not None:
            self.store_backend.close()

    def make_store(self, tmp_path, *, index=None, ttl=None):
        self.store_backend = self.new_backend()
        return DiaryStore(Diary(self.store_backend), index=index, ttl=ttl)

    def expiry_of(self, calls, namespace, key):
        return expiry_of(calls.store, namespace, key)


class TestStoreOnPostgres(Postgres, Stores):
    pass


class TestStoreOnRedis(Redis, Stores):
    pass


class TestStoreOnFirestore(Firestore, Stores):
    pass


del Clients, Long, SharedBackendSuite, StoreSuite, Stores
