"""Tests of searches without a query (prefixes, filters, order, pages), and of listing namespaces."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tomldiary.testing.store.surface import Calls, StoreFixtures, keys

__all__ = ["Listing", "Searching"]

_ODD = [
    "a_b",
    "a%b",
    "a*b",
    "a?b",
    "a[b]",
    "a+b",
    "axb",
    "a b",
    "A_B",
    "a_b\n",
    "ä",
    "a'b",
    'a"b',
    "a;b",
]
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

    def test_labels_that_differ_in_case_or_form_are_different(self, store: Calls) -> None:
        for label in ["Case", "case", "\u00e9", "e\u0301", "con", "CON", "x" * 300, "x" * 301]:
            store.put(("r", label), "k", {"label": label})
        assert len(store.list_namespaces(prefix=("r",))) == 8  # noqa: PLR2004 - all of them
        assert store.get(("r", "x" * 300), "k").value == {"label": "x" * 300}

    def test_filters_ask_for_equal_fields(self, store: Calls) -> None:
        store.put(("d",), "a", {"type": "note", "tags": ["draft"], "n": 1})
        store.put(("d",), "b", {"type": "note", "tags": ["draft", "x"], "n": 2})
        store.put(("d",), "c", {"type": "mail", "n": 1})
        assert set(keys(store.search(("d",), filter={"type": "note"}))) == {"a", "b"}
        assert keys(store.search(("d",), filter={"tags": ["draft"]})) == ["a"]
        assert keys(store.search(("d",), filter={"type": "note", "n": 2})) == ["b"]
        assert store.search(("d",), filter={"type": "nothing"}) == []

    @pytest.mark.parametrize(("condition", "expected"), _COMPARED)
    def test_numbers_are_compared(
        self, store: Calls, condition: dict[str, Any], expected: set[str]
    ) -> None:
        for key, number in _NUMBERS.items():
            store.put(("n",), key, {"v": number})
        store.put(("n",), "bare", {})
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

    @pytest.mark.parametrize("text", _INJECTED)
    def test_a_value_in_a_filter_is_only_a_value(self, store: Calls, text: str) -> None:
        store.put(("n",), "plain", {"v": "x"})
        assert store.search(("n",), filter={"v": text}) == []
        store.put(("n",), "same", {"v": text})
        assert keys(store.search(("n",), filter={"v": text})) == ["same"]

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


class Listing(StoreFixtures):
    """Tests of listing namespaces."""

    @pytest.fixture
    def tree(self, store: Calls) -> Calls:
        """A store with namespaces of several depths."""
        for path in [
            "a/b/c",
            "a/b/d/e",
            "a/b/d/i",
            "a/b/f",
            "a/c/f",
            "b/a/f",
            "users/ada/malice",
            "users/alice",
        ]:
            store.put(tuple(path.split("/")), "k", {})
        return store

    @pytest.mark.parametrize(
        ("asked", "expected"),
        [
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
        ],
        ids=str,
    )  # fmt: skip
    def test_namespaces_are_listed_in_order(
        self, tree: Calls, asked: dict[str, Any], expected: list[str]
    ) -> None:
        assert tree.list_namespaces(**asked) == [tuple(path.split("/")) for path in expected]

    def test_conditions_in_a_batch_may_be_lists(self, tree: Calls, base: Any) -> None:
        suffix: Any = ["*", "f"]
        found = tree.batch(
            [
                base.ListNamespacesOp((base.MatchCondition("suffix", suffix),)),
                base.SearchOp((), limit=3),
            ]
        )
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
