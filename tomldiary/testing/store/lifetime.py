"""Tests of items that expire: default and explicit times, reads that refresh, and the sweeper."""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, Any

import pytest

from tomldiary.testing.store.surface import Calls, StoreFixtures, awaited, keys, sync_only, until

if TYPE_CHECKING:
    from tomldiary.testing.store.surface import Opener


NS = ("short",)
SHORT = 0.002
"""A time to live in minutes: 0.12 seconds."""


class Lifetime(StoreFixtures):
    """A store observes the time to live of its items, or raises an error if it does not support one."""

    @pytest.fixture
    def mortal(self, opened: Opener) -> Opener:
        """Opens stores whose items may expire: `mortal(default_ttl=…)`."""

        def make(**ttl: Any) -> Calls:
            return _supporting_ttl(opened(ttl=ttl))

        return make

    @staticmethod
    def sweep(calls: Calls) -> int:
        """Remove the expired items and return their number."""
        swept = calls.store.sweep_ttl()
        if inspect.isawaitable(swept):
            assert calls.runner is not None
            swept = calls.runner.run(awaited(swept))
        return int(swept)

    def test_a_store_without_ttl_says_so(self, store: Calls) -> None:
        if store.store.supports_ttl:
            store.put(NS, "k", {}, ttl=1)
            assert store.get(NS, "k") is not None
            return
        with pytest.raises(NotImplementedError):
            store.put(NS, "k", {}, ttl=1)
        store.put(NS, "k", {}, ttl=None)
        assert store.get(NS, "k") is not None

    def test_what_expired_is_swept(self, mortal: Opener) -> None:
        store = mortal(default_ttl=SHORT)
        store.put(NS, "default", {})
        store.put(NS, "own", {}, ttl=SHORT / 2)
        store.put(NS, "long", {}, ttl=60)
        store.put(NS, "for ever", {}, ttl=None)
        swept = 0

        def both() -> bool:
            nonlocal swept
            swept += self.sweep(store)
            return swept == 2  # noqa: PLR2004 - the two short ones

        until(both)
        assert sorted(keys(store.search(NS))) == ["for ever", "long"]
        assert self.sweep(store) == 0

    def test_a_put_starts_the_time_anew_or_ends_it(self, mortal: Opener) -> None:
        store = mortal()
        store.put(NS, "k", {"n": 1}, ttl=SHORT)
        store.put(NS, "k", {"n": 2}, ttl=None)
        store.put(NS, "mark", {}, ttl=SHORT)
        until(lambda: self.sweep(store))
        assert keys(store.search(NS)) == ["k"]

    @pytest.mark.parametrize("verb", ["get", "search"])
    def test_a_read_gives_the_time_back_if_asked(self, mortal: Opener, verb: str) -> None:
        store = mortal(omit_expired=False)
        store.put(NS, "read", {}, ttl=20 * SHORT)
        store.put(("left",), "left", {}, ttl=20 * SHORT)
        expiry = self.expiry_of(store, NS, "read")
        if expiry is None:
            pytest.skip("the suite cannot read when items of this store expire; override expiry_of")

        def read(*, refresh: bool) -> None:
            if verb == "get":
                store.get(NS, "read", refresh_ttl=refresh)
            else:
                store.search(NS, refresh_ttl=refresh)

        read(refresh=False)
        assert self.expiry_of(store, NS, "read") == expiry

        def moved() -> bool:
            read(refresh=True)
            later = self.expiry_of(store, NS, "read")
            assert later is not None
            return later > expiry

        until(moved)

    def expiry_of(self, calls: Calls, namespace: tuple[str, ...], key: str) -> Any:  # noqa: ARG002 - to be overridden
        """Return when an item expires, as a value with an order; return None if this cannot be read."""
        return None

    def test_reads_keep_an_item_alive(self, mortal: Opener) -> None:
        ttl = SHORT
        while True:
            ttl, longest = 4 * ttl, 0.0
            store = mortal(default_ttl=ttl, refresh_on_read=True)
            store.put(NS, "read", {})
            store.put(("left",), "left", {})

            def swept(store: Calls = store) -> int:
                nonlocal longest
                begin = time.monotonic()
                store.get(NS, "read")
                count = self.sweep(store)
                longest = max(longest, time.monotonic() - begin)
                return count

            until(swept)  # sweeps the item that is not read
            if longest < ttl * 60:  # otherwise the item may have expired between a read and a sweep
                break
        assert store.get(NS, "read") is not None
        assert store.get(("left",), "left") is None

    def test_reads_that_do_not_refresh_let_it_die(self, mortal: Opener) -> None:
        store = mortal(default_ttl=SHORT, refresh_on_read=False)
        store.put(NS, "k", {})

        def gone() -> bool:
            self.sweep(store)
            return store.get(NS, "k") is None and store.search(NS) == []

        until(gone)

    def test_expired_items_may_be_hidden_before_they_are_swept(self, mortal: Opener) -> None:
        store = mortal(default_ttl=SHORT, omit_expired=True, refresh_on_read=True)
        store.put(("old",), "k", {})
        until(lambda: store.get(("old",), "k", refresh_ttl=False) is None)
        assert store.get(("old",), "k", refresh_ttl=True) is None
        assert store.get(("old",), "k") is None
        assert store.search(("old",)) == []
        assert store.list_namespaces() == []
        for number in range(3):
            store.put(("old",), f"new{number}", {}, ttl=None)
        assert len(store.search(("old",), limit=3)) == 3  # noqa: PLR2004 - the limit
        assert self.sweep(store) == 1

    def test_expired_items_are_shown_until_they_are_swept(self, mortal: Opener) -> None:
        store = mortal()
        store.put(NS, "k", {}, ttl=SHORT / 10)
        store.put(("mark",), "mark", {}, ttl=None)
        ended = time.monotonic() + SHORT / 10 * 60 + 0.001
        until(lambda: time.monotonic() > ended)
        assert store.get(NS, "k", refresh_ttl=False) is not None
        assert keys(store.search(NS, refresh_ttl=False)) == ["k"]
        assert store.list_namespaces() == [("mark",), NS]
        until(lambda: self.sweep(store))
        assert store.get(NS, "k") is None
        assert store.list_namespaces() == [("mark",)]

    @sync_only
    def test_the_sweeper_works_by_itself_until_it_is_stopped(self, mortal: Opener) -> None:
        store = mortal(default_ttl=SHORT, refresh_on_read=False, sweep_interval_minutes=SHORT / 4)
        store.put(NS, "k", {})
        store.store.start_ttl_sweeper(SHORT / 4)
        store.store.start_ttl_sweeper(SHORT / 4)
        until(lambda: store.get(NS, "k") is None)
        assert store.store.stop_ttl_sweeper(10) is not False
        store.put(NS, "k", {}, ttl=SHORT / 10)
        until(lambda: self.sweep(store))
        assert store.store.stop_ttl_sweeper(10) is not False

    def test_an_expired_item_leaves_no_vector(self, embedding: Opener) -> None:
        store = _supporting_ttl(embedding("text", ttl={}))
        store.put(NS, "k", {"text": "secret"}, ttl=SHORT)
        assert store.search(NS, query="secret", refresh_ttl=False)[0].score == pytest.approx(1)
        until(lambda: self.sweep(store))
        store.put(NS, "k", {"text": "secret"}, index=False)
        assert store.search(NS, query="secret")[0].score is None


def _supporting_ttl(calls: Calls) -> Calls:
    """Return a store; skip the test if its items never expire."""
    if not calls.store.supports_ttl:
        pytest.skip(f"{type(calls.store).__name__} does not support a time to live")
    return calls
