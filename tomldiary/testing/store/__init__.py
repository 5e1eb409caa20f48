"""What a LangGraph store has to do, as tests, for any store: sync and async, vectors, time to live."""

from __future__ import annotations

from tomldiary.testing.store.basics import Basics
from tomldiary.testing.store.concurrency import Concurrency
from tomldiary.testing.store.lifetime import Lifetime
from tomldiary.testing.store.searching import Listing, Searching
from tomldiary.testing.store.vectors import Vectors

__all__ = ["StoreSuite"]


class StoreSuite(Basics, Searching, Listing, Vectors, Lifetime, Concurrency):
    """Subclass it, say how a fresh store is made, and let pytest collect the tests.

        class TestMyStore(StoreSuite):
            known_faults = {"test_a_read_makes_no_namespace": "issue 12"}

            def make_store(self, tmp_path, *, index=None, ttl=None):
                return MyStore(tmp_path / "store", index=index, ttl=ttl)

    Every test runs with the store's sync methods and with its async ones; say in `surfaces` if it has
    one of them only, and `has_vectors = False` if it takes no index. Tests of a time to live are skipped
    unless the store says `supports_ttl`. Needs langgraph.
    """
