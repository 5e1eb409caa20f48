"""Tests of put, get, delete, batches, and invalid namespaces."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tomldiary.testing.store.surface import Calls, StoreFixtures, keys

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["Basics"]

NS = ("users", "ada")
_VALUES: list[dict[str, Any]] = [
    {},
    {"a": 1, "b": 2.5, "c": "ü", "d": None, "e": True, "f": [1, [None, {"x": []}]], "g": {"h": {}}},
    {"_private": 1, "_created": "mine", "__": {"_x": None}, "": "empty", "a.b": 1, "\\": 2},
    {"text": "line\nline\ttab \"quoted\" '''three''' \\ \x00 \u2028 😀", "n": -0.0, "big": 10**18},
]
_KEYS = [
    "k",
    "",
    "a.b/c",
    "a b",
    "ключ",
    "\x00",
    "[x]",
    '"',
    "\\",
    "#",
    "=",
    "../..",
    "😀",
    "A",
    "a",
]


class Basics(StoreFixtures):
    """Tests of put, get, delete and batches."""

    @pytest.mark.parametrize("value", _VALUES, ids=range(len(_VALUES)))
    def test_what_was_put_comes_back_equal(self, store: Calls, value: dict[str, Any]) -> None:
        store.put(NS, "k", value)
        found = store.get(NS, "k")
        assert (found.value, found.key, found.namespace) == (value, "k", NS)

    def test_any_key_is_its_own(self, store: Calls) -> None:
        for number, key in enumerate(_KEYS):
            store.put(NS, key, {"n": number})
        assert [store.get(NS, key).value["n"] for key in _KEYS] == list(range(len(_KEYS)))
        assert sorted(keys(store.search(NS, limit=100))) == sorted(_KEYS)

    def test_a_put_replaces_the_whole_value(self, store: Calls) -> None:
        store.put(NS, "k", {"a": 1, "b": 2})
        store.put(NS, "k", {"a": 3})
        assert store.get(NS, "k").value == {"a": 3}

    def test_an_update_is_strictly_later(self, store: Calls) -> None:
        times: list[Any] = []
        for number in range(5):
            store.put(NS, "k", {"n": number})
            times.append(store.get(NS, "k").updated_at)
        assert times == sorted(set(times))

    def test_an_update_keeps_when_an_item_was_created(self, store: Calls) -> None:
        store.put(NS, "k", {"n": 1})
        before = store.get(NS, "k")
        store.put(NS, "k", {"n": 2})
        assert store.get(NS, "k").created_at == before.created_at

    def test_times_are_in_utc(self, store: Calls) -> None:
        store.put(NS, "k", {})
        found = store.get(NS, "k")
        assert found.created_at.utcoffset() == found.updated_at.utcoffset() == timedelta(0)

    def test_what_is_not_there_is_none(self, store: Calls) -> None:
        store.put(NS, "k", {})
        assert store.get(NS, "other") is None
        assert store.get(("users",), "k") is None
        assert store.get((*NS, "deeper"), "k") is None

    def test_what_is_deleted_is_gone(self, store: Calls) -> None:
        store.put(NS, "k", {})
        store.delete(NS, "k")
        store.delete(NS, "k")
        store.delete(("never", "there"), "k")
        assert store.get(NS, "k") is None
        assert store.search(()) == []

    def test_a_changed_copy_changes_nothing_stored(self, store: Calls) -> None:
        numbers = [1]
        value: dict[str, Any] = {"list": numbers, "table": {"x": 1}}
        store.put(NS, "k", value)
        numbers.append(2)
        store.get(NS, "k").value["table"]["x"] = 2
        store.search(NS)[0].value["list"].append(3)
        assert store.get(NS, "k").value == {"list": [1], "table": {"x": 1}}

    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
    def test_results_of_a_batch_keep_the_order_of_its_operations(
        self, store: Calls, order: tuple[int, ...], base: Any
    ) -> None:
        store.put(NS, "old", {"n": 1})
        ops = [
            base.GetOp(NS, "old"),
            base.PutOp(NS, "new", {"n": 2}),
            base.SearchOp(("users",), filter={"n": 1}),
            base.ListNamespacesOp((base.MatchCondition("prefix", ("users",)),)),
        ]
        found = store.batch([ops[number] for number in order])
        results = dict(zip(order, found, strict=True))
        assert type(results[0]) is base.Item
        assert results[0].value == {"n": 1}
        assert results[1] is None
        assert [type(item) for item in results[2]] == [base.SearchItem]
        assert results[3] == [NS]
        assert store.get(NS, "new").value == {"n": 2}

    def test_reads_of_a_batch_see_what_was_there_before_it(self, store: Calls, base: Any) -> None:
        store.put(NS, "k", {"n": 1})
        ops = [
            base.PutOp(NS, "k", {"n": 2}), base.GetOp(NS, "k"), base.PutOp(NS, "x", {}), base.SearchOp(NS),
            base.PutOp(NS, "k", None), base.GetOp(NS, "x"),
        ]  # fmt: skip
        found = store.batch(ops)
        assert found[1].value == {"n": 1}
        assert keys(found[3]) == ["k"]
        assert found[5] is None
        assert store.get(NS, "k") is None

    def test_of_several_puts_to_one_key_the_last_counts(self, store: Calls, base: Any) -> None:
        def put(key: str, value: dict[str, Any] | None) -> Any:
            return base.PutOp(NS, key, value)

        store.batch([put("a", {"n": 1}), put("a", {"n": 2}), put("b", {"n": 1}), put("b", None)])
        store.batch([put("c", {"n": 1}), put("c", None), put("c", {"n": 3})])
        assert store.get(NS, "a").value == {"n": 2}
        assert store.get(NS, "b") is None
        assert store.get(NS, "c").value == {"n": 3}

    def test_a_batch_of_reads_has_its_holes(self, store: Calls, base: Any) -> None:
        store.put(NS, "a", {"n": 1})
        store.put(NS, "c", {"n": 3})
        found = store.batch([base.GetOp(NS, key) for key in "abc"])
        assert [item and item.value["n"] for item in found] == [1, None, 3]

    def test_a_batch_of_puts_returns_nothing_for_each(self, store: Calls, base: Any) -> None:
        ops = [
            base.PutOp(NS, "a", {}),
            base.PutOp(NS, "b", {"n": 2}),
            base.PutOp(NS, "missing", None),
        ]
        assert store.batch(ops) == [None, None, None]
        assert store.batch([]) == []
        assert sorted(keys(store.search(NS))) == ["a", "b"]

    def test_a_value_that_cannot_be_stored_rejects_its_batch(self, store: Calls, base: Any) -> None:
        store.put(NS, "old", {"n": 1})
        ops = [
            base.PutOp(NS, "a", {}),
            base.PutOp(NS, "old", None),
            base.PutOp(NS, "bad", {"x": object()}),
        ]
        with pytest.raises((TypeError, ValueError)):
            store.batch(ops)
        assert keys(store.search(())) == ["old"]

    def test_an_unknown_operation_rejects_its_batch(self, store: Calls, base: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            store.batch([base.PutOp(NS, "a", {}), ("get", NS)])
        assert store.search(()) == []

    # Namespaces

    @pytest.mark.parametrize(
        "namespace", [(), ("a.b",), ("",), ("a", ""), ("langgraph", "x"), (1,)]
    )
    def test_a_namespace_that_is_not_allowed_is_not_put(
        self, store: Calls, namespace: tuple[Any, ...]
    ) -> None:
        with pytest.raises(ValueError, match=r"."):
            store.put(namespace, "k", {})
        assert store.search(()) == []

    def test_langgraph_is_reserved_in_front_only_and_not_in_batches(
        self, store: Calls, base: Any
    ) -> None:
        store.put(("a", "langgraph"), "k", {"n": 1})
        store.batch([base.PutOp(("langgraph", "x"), "k", {"n": 2})])
        assert store.get(("a", "langgraph"), "k").value == {"n": 1}
        assert store.get(("langgraph", "x"), "k").value == {"n": 2}

    @pytest.mark.parametrize("namespace", [("foo.bar",), ("foo\0",), ("foo", ""), (123,)])
    def test_a_bad_label_is_refused_before_anything_is_run(
        self, store: Calls, namespace: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[object] = []

        def spy(_: object, ops: object) -> None:
            ran.append(ops)

        kind: Any = store.store.__class__
        for name in ("batch", "abatch"):
            monkeypatch.setattr(kind, name, spy)
        calls: list[Callable[[], Any]] = [
            lambda: store.get(namespace, "k"),
            lambda: store.delete(namespace, "k"),
            lambda: store.search(namespace),
            lambda: store.list_namespaces(prefix=namespace),
            lambda: store.list_namespaces(suffix=namespace),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"."):
                call()
        assert ran == []

    def test_a_batch_with_a_bad_label_writes_nothing(self, store: Calls, base: Any) -> None:
        store.put(("foo", "bar"), "k", {"n": 1})
        names: list[Any] = [("foo.bar",), ("foo\0bar",), ("foo", ""), ("foo", 1)]
        for bad in names:
            with pytest.raises(ValueError, match=r"."):
                store.batch([base.PutOp(("new",), "k", {}), base.PutOp(bad, "k", {"n": 2})])
        assert store.get(("foo", "bar"), "k").value == {"n": 1}
        assert store.get(("new",), "k") is None
