"""Conformance tests of LangGraph stores: sync and async methods, vectors, and time to live."""

from __future__ import annotations

from tomldiary.testing.store.basics import Basics, Listing, Searching
from tomldiary.testing.store.concurrency import Concurrency
from tomldiary.testing.store.lifetime import Lifetime
from tomldiary.testing.store.vectors import Vectors

__all__ = ["StoreSuite"]


class StoreSuite(Basics, Searching, Listing, Vectors, Lifetime, Concurrency):
    """Tests of any LangGraph store: subclass it, override `make_store`, and let pytest collect the tests.

        class TestMyStore(StoreSuite):
            known_faults = {"test_a_read_makes_no_namespace": "issue 12"}

            def make_store(self, tmp_path, *, index=None, ttl=None):
                return MyStore(tmp_path / "store", index=index, ttl=ttl)

    Every test runs with the sync and with the async methods of the store. Set `surfaces` if the store has only one of
    them, and `has_vectors = False` if it accepts no index. Tests of the time to live are skipped unless the store sets
    `supports_ttl`. Requires langgraph.
    """
