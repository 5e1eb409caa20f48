"""Tests of put, get, delete, batches and namespaces, and of searches without a query."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from tomldiary.testing.store.surface import Calls, StoreFixtures, keys

NS = ("users", "ada")
_VALUES: list[dict[str, Any]] = [
    {},
    {"a": 1, "b": 2.5, "c": "ü", "d": None, "e": True, "f": [1, [None, {"x": []}]], "g": {"h": {}}},
    {"_private": 1, "_created": "mine", "__": {"_x": None}, "": "empty", "a.b": 1, "\\": 2},
    {"text": "line\nline\ttab \"quoted\" '''three''' \\ \x00 \u2028 😀", "n": -0.0, "big": 10**18},
]
_KEYS = [
    "k", "", "a.b/c", "a b", "ключ", "\x00", "[x]", '"', "\\", "#", "=", "../..", "😀", "A", "a",
]  # fmt: skip


class Basics(StoreFixtures):
    """Tests of put, get, delete and batches."""

    def test_what_was_put_comes_back_equal(self, store: Calls) -> None:
        for value in _VALUES:
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

    def test_results_of_a_batch_keep_the_order_of_its_operations(
        self, store: Calls, base: Any
    ) -> None:
        store.put(NS, "old", {"n": 1})
        ops = [
            base.SearchOp(("users",), filter={"n": 1}),
            base.GetOp(NS, "old"),
            base.ListNamespacesOp((base.MatchCondition("prefix", ("users",)),)),
            base.PutOp(NS, "new", {"n": 2}),
        ]
        searched, got, listed, put = store.batch(ops)
        assert [type(item) for item in searched] == [base.SearchItem]
        assert type(got) is base.Item
        assert got.value == {"n": 1}
        assert listed == [NS]
        assert put is None
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
            base.PutOp(NS, key, value) for key, value in (("a", {}), ("b", {"n": 2}), ("c", None))
        ]
        assert store.batch(ops) == [None, None, None]
        assert store.batch([]) == []
        assert sorted(keys(store.search(NS))) == ["a", "b"]

    def test_a_value_that_cannot_be_stored_rejects_its_batch(self, store: Calls, base: Any) -> None:
        store.put(NS, "old", {"n": 1})
        puts: dict[str, Any] = {"a": {}, "old": None, "bad": {"x": object()}}
        with pytest.raises((TypeError, ValueError)):
            store.batch([base.PutOp(NS, key, value) for key, value in puts.items()])
        assert keys(store.search(())) == ["old"]

    def test_an_unknown_operation_rejects_its_batch(self, store: Calls, base: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            store.batch([base.PutOp(NS, "a", {}), ("get", NS)])
        assert store.search(()) == []

    # Namespaces

    def test_a_namespace_that_is_not_allowed_is_not_put(self, store: Calls) -> None:
        names: list[Any] = [(), ("a.b",), ("",), ("a", ""), ("langgraph", "x"), (1,)]
        for namespace in names:
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

    def test_a_bad_label_is_refused_before_anything_is_run(
        self, store: Calls, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[object] = []

        def spy(_: object, ops: object) -> None:
            ran.append(ops)

        kind: Any = store.store.__class__
        for name in ("batch", "abatch"):
            monkeypatch.setattr(kind, name, spy)
        names: list[Any] = [("foo.bar",), ("foo\0",), ("foo", ""), (123,)]
        for namespace in names:
            calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
                ("get", (namespace, "k"), {}), ("delete", (namespace, "k"), {}), ("search", (namespace,), {}),
                ("list_namespaces", (), {"prefix": namespace}), ("list_namespaces", (), {"suffix": namespace}),
            ]  # fmt: skip
            for verb, args, named in calls:
                with pytest.raises(ValueError, match=r"."):
                    getattr(store, verb)(*args, **named)
        assert ran == []

    def test_a_batch_with_a_bad_label_writes_nothing(self, store: Calls, base: Any) -> None:
        store.put(("foo", "bar"), "k", {"n": 1})
        names: list[Any] = [("foo.bar",), ("foo\0bar",), ("foo", ""), ("foo", 1)]
        for bad in names:
            with pytest.raises(ValueError, match=r"."):
                store.batch([base.PutOp(("new",), "k", {}), base.PutOp(bad, "k", {"n": 2})])
        assert store.get(("foo", "bar"), "k").value == {"n": 1}
        assert store.get(("new",), "k") is None


_ODD = [
    "a_b", "a%b", "a*b", "a?b", "a[b]", "a+b", "axb", "a b", "A_B", "a_b\n", "ä", "a'b", 'a"b', "a;b",
]  # fmt: skip
_NUMBERS = {"low": -5, "zero": 0, "half": 0.5, "ten": 10, "huge": 10**100, "inf": math.inf}
_COMPARED = [
    ({"$gt": 0}, {"half", "ten", "huge", "inf"}),
    ({"$gte": 0}, {"zero", "half", "ten", "huge", "inf"}),
    ({"$lt": 0.5}, {"low", "zero"}),
    ({"$lte": 0.5}, {"low", "zero", "half"}),
    ({"$gt": 10**99}, {"huge", "inf"}),
    ({"$gte": math.inf}, {"inf"}),
    ({"$gt": -math.inf, "$lt": 1}, {"low", "zero", "half"}),
    ({"$ne": 10}, {"low", "zero", "half", "huge", "inf"}),
]
_INJECTED = [
    "' OR '1'='1", "'; DROP TABLE store; --", "x') OR 1=1 --", '"', "\\", "$.x", "{}", "%", "a\0b",
]  # fmt: skip


class Searching(StoreFixtures):
    """Tests of searches without a query."""

    def test_a_prefix_is_whole_labels(self, store: Calls) -> None:
        for namespace in [("foo",), ("foo", "x"), ("foo", "x", "y"), ("foobar",), ("foo2", "x")]:
            store.put(namespace, "k", {})
        found = {item.namespace for item in store.search(("foo",))}
        assert found == {("foo",), ("foo", "x"), ("foo", "x", "y")}
        assert store.search(("fo",)) == []
        assert len(store.search(())) == 5  # noqa: PLR2004 - all of them

    def test_a_prefix_may_be_a_list(self, store: Calls) -> None:
        store.put(("a", "b"), "k", {})
        assert keys(store.search(["a"])) == ["k"]
        assert store.list_namespaces(prefix=["a"], suffix=["b"]) == [("a", "b")]

    def test_signs_in_labels_mean_themselves(self, store: Calls) -> None:
        for label in _ODD:
            store.put(("r", label), label, {})
        for label in _ODD:
            assert keys(store.search(("r", label))) == [label]
            assert store.list_namespaces(prefix=("r", label)) == [("r", label)]
            assert store.get(("r", label), label) is not None

    def test_labels_and_keys_that_differ_in_case_or_form_are_different(self, store: Calls) -> None:
        names = ["Case", "case", "\u00e9", "e\u0301", "con", "CON", "x" * 300, "x" * 301]
        for name in names:
            store.put(("r", name), "k", {"name": name})
            store.put(("s",), name, {"name": name})
        assert sorted(store.list_namespaces(prefix=("r",))) == sorted(("r", name) for name in names)
        for name in names:
            assert store.get(("r", name), "k").value == {"name": name}
            assert store.get(("s",), name).value == {"name": name}

    def test_filters_ask_for_equal_fields(self, store: Calls) -> None:
        store.put(("d",), "a", {"type": "note", "tags": ["draft"], "n": 1})
        store.put(("d",), "b", {"type": "note", "tags": ["draft", "x"], "n": 2})
        store.put(("d",), "c", {"type": "mail", "n": 1})
        assert set(keys(store.search(("d",), filter={"type": "note"}))) == {"a", "b"}
        assert keys(store.search(("d",), filter={"tags": ["draft"]})) == ["a"]
        assert keys(store.search(("d",), filter={"type": "note", "n": 2})) == ["b"]
        assert store.search(("d",), filter={"type": "nothing"}) == []

    def test_numbers_are_compared(self, store: Calls) -> None:
        for key, number in _NUMBERS.items():
            store.put(("n",), key, {"v": number})
        store.put(("n",), "bare", {})
        for condition, expected in _COMPARED:
            assert set(keys(store.search(("n",), filter={"v": condition}))) == expected

    def test_nothing_equals_nan(self, store: Calls) -> None:
        store.put(("n",), "k", {"v": 1.0})
        assert store.search(("n",), filter={"v": {"$eq": math.nan}}) == []

    def test_texts_and_dates_are_compared(self, store: Calls) -> None:
        for key, day in {"a": "2026-01-31", "b": "2026-02-01", "c": "2026-11-20T10:00:00Z"}.items():
            store.put(("n",), key, {"day": day})
        assert keys(store.search(("n",), filter={"day": {"$lt": "2026-02"}})) == ["a"]
        assert set(keys(store.search(("n",), filter={"day": {"$gte": "2026-02-01"}}))) == {"b", "c"}

    def test_true_and_false_are_found(self, store: Calls) -> None:
        store.put(("n",), "t", {"on": True})
        store.put(("n",), "f", {"on": False})
        assert keys(store.search(("n",), filter={"on": True})) == ["t"]
        assert keys(store.search(("n",), filter={"on": False})) == ["f"]

    def test_an_operator_that_is_not_known_is_an_error(self, store: Calls) -> None:
        store.put(("n",), "a", {"v": 1})
        with pytest.raises((ValueError, TypeError)):
            store.search(("n",), filter={"v": {"$regex": ".*"}})
        with pytest.raises((ValueError, TypeError)):
            store.search(("n",), filter={"$where": [{"v": 1}]})

    def test_a_value_in_a_filter_is_only_a_value(self, store: Calls) -> None:
        store.put(("n",), "plain", {"v": "x"})
        for text in _INJECTED:
            assert store.search(("n",), filter={"v": text}) == []
            store.put(("n",), text, {"v": text})
            assert keys(store.search(("n",), filter={"v": text})) == [text]

    def test_pages_join_without_hole_or_double(self, store: Calls) -> None:
        for number in range(23):
            store.put(("p", str(number % 3)), f"k{number}", {"even": number % 2 == 0})
        whole = keys(store.search(("p",), limit=100))
        assert len(set(whole)) == len(whole) == 23  # noqa: PLR2004 - all of them
        pages = [keys(store.search(("p",), limit=4, offset=start)) for start in range(0, 28, 4)]
        assert [key for page in pages for key in page] == whole
        assert pages[-1] == []
        found: dict[str, Any] = {"filter": {"even": True}}
        whole = keys(store.search(("p",), limit=100, **found))
        pages = [keys(store.search(("p",), limit=5, offset=at, **found)) for at in range(0, 15, 5)]
        assert [key for page in pages for key in page] == whole

    def test_the_newest_comes_first(self, store: Calls) -> None:
        for key in "cab":
            store.put(("o",), key, {})
        store.put(("o",), "c", {"changed": True})
        assert keys(store.search(("o",))) == ["c", "b", "a"]
        assert keys(store.search(("o",), offset=2)) == ["a"]


_LISTED: list[tuple[dict[str, Any], list[str]]] = [
    ({"prefix": ("a", "b")}, ["a/b/c", "a/b/d/e", "a/b/d/i", "a/b/f"]),
    ({"suffix": ("f",)}, ["a/b/f", "a/c/f", "b/a/f"]),
    ({"prefix": ("a",), "suffix": ("f",)}, ["a/b/f", "a/c/f"]),
    ({"prefix": ("a", "*", "f")}, ["a/b/f", "a/c/f"]),
    ({"suffix": ("*", "f")}, ["a/b/f", "a/c/f", "b/a/f"]),
    ({"prefix": ("*", "a")}, ["b/a/f"]),
    ({"prefix": ("nothing",)}, []),
    ({"suffix": ("alice",)}, ["users/alice"]),
    ({"prefix": ("a", "b"), "max_depth": 3}, ["a/b/c", "a/b/d", "a/b/f"]),
    ({"prefix": ("a", "*"), "max_depth": 2}, ["a/b", "a/c"]),
    ({"max_depth": 1}, ["a", "b", "users"]),
    ({"limit": 2}, ["a/b/c", "a/b/d/e"]),
    ({"limit": 2, "offset": 6}, ["users/ada/malice", "users/alice"]),
    ({"offset": 100}, []),
]


class Listing(StoreFixtures):
    """Tests of listing namespaces."""

    @pytest.fixture
    def tree(self, store: Calls) -> Calls:
        """A store with namespaces of several depths."""
        paths = "a/b/c a/b/d/e a/b/d/i a/b/f a/c/f b/a/f users/ada/malice users/alice"
        for path in paths.split():
            store.put(tuple(path.split("/")), "k", {})
        return store

    def test_namespaces_are_listed_in_order(self, tree: Calls) -> None:
        for asked, expected in _LISTED:
            assert tree.list_namespaces(**asked) == [tuple(path.split("/")) for path in expected]

    def test_conditions_in_a_batch_may_be_lists(self, tree: Calls, base: Any) -> None:
        suffix = base.MatchCondition("suffix", ["*", "f"])
        found = tree.batch([base.ListNamespacesOp((suffix,)), base.SearchOp((), limit=3)])
        assert found[0] == [("a", "b", "f"), ("a", "c", "f"), ("b", "a", "f")]
        assert len(found[1]) == 3  # noqa: PLR2004 - the limit

    def test_an_empty_store_lists_nothing(self, store: Calls) -> None:
        assert store.list_namespaces() == []

    def test_a_hundred_are_listed_unless_asked(self, store: Calls, base: Any) -> None:
        store.batch([base.PutOp(("n", f"{number:03}"), "k", {}) for number in range(105)])
        assert len(store.list_namespaces()) == 100  # noqa: PLR2004 - the default
        assert len(store.list_namespaces(limit=1000)) == 105  # noqa: PLR2004 - all of them

    def test_a_read_makes_no_namespace(self, store: Calls) -> None:
        store.get(("ghost",), "k")
        store.search(("ghost", "x"))
        store.delete(("ghost", "y"), "k")
        assert store.list_namespaces() == []

    def test_a_namespace_ends_with_its_last_item(self, store: Calls) -> None:
        store.put(("a", "b"), "k", {})
        store.delete(("a", "b"), "k")
        assert store.list_namespaces() == []
