"""Tests of searches with vectors: scores, fields, pages, and vectors of removed texts."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from tomldiary.testing.store.surface import Calls, Embedder, StoreFixtures, cosine, keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.testing.store.surface import Opener

NS = ("docs",)
_SCRIPTS = {
    "zh": "这是中文的文本", "ja": "これは日本語です", "ko": "이것은 한국어입니다", "ru": "это русский текст",
    "hi": "यह हिन्दी में है",
}  # fmt: skip
_VALUE: dict[str, Any] = {
    "title": "t", "n": 7, "on": True, "none": None, "nested": {"a": "na", "b": {"c": "nbc"}},
    "list": ["l0", "l1", {"x": "l2x"}], "rows": [{"c": "r0"}, {"c": "r1"}, {}],
}  # fmt: skip
_PATHS: list[tuple[list[str], list[str]]] = [
    (
        ["title", "n", "on", "nested.a", "nested.b", "nested.b.c", "list[0]", "list[-1]", "list[-1].x", "rows[*].c"],
        ["t", "7", "True", "na", '{"c": "nbc"}', "nbc", "l0", '{"x": "l2x"}', "l2x", "r0", "r1"],
    ),
    (["none", "missing", "nested.a.b", "list[9]", "list[x]", "list[", "title[0]"], []),
    (["nested.*"], ["na", '{"c": "nbc"}']),
    (["{title,nested.a}"], ["t", "na"]),
    (["{title,missing}"], ["t"]),
]  # fmt: skip


class Vectors(StoreFixtures):
    """Tests of searches with an index."""

    def test_what_resembles_the_query_comes_first(self, indexed: Calls) -> None:
        for key, text in {"a": "the cat sat", "b": "quantum physics", "c": "zzzz"}.items():
            indexed.put(NS, key, {"text": text})
        found = indexed.search(NS, query="the cat sat")
        assert found[0].key == "a"
        scores = [item.score for item in found]
        assert scores == sorted(scores, reverse=True)

    def test_a_score_is_the_cosine(self, indexed: Calls, embedder: Embedder) -> None:
        texts = {"a": "hello world", "b": "goodbye moon", "c": "hello"}
        for key, text in texts.items():
            indexed.put(NS, key, {"text": text})
        wanted = embedder.vector("hello there")
        for item in indexed.search(NS, query="hello there"):
            expected = cosine(embedder.vector(texts[item.key]), wanted)
            assert item.score == pytest.approx(expected, abs=1e-3)

    def test_an_update_moves_the_vector(self, indexed: Calls) -> None:
        def score(query: str) -> float:
            return next(item.score for item in indexed.search(NS, query=query) if item.key == "k")

        indexed.put(NS, "k", {"text": "apples and pears"})
        old, new = score("apples and pears"), score("submarine volcano")
        indexed.put(NS, "k", {"text": "submarine volcano"})
        assert score("apples and pears") < old
        assert score("submarine volcano") > new

    def test_what_is_not_indexed_comes_last_without_a_score(self, indexed: Calls) -> None:
        for number in range(3):
            indexed.put(NS, f"k{number}", {"text": f"apples {number}"})
        indexed.put(NS, "bare", {"text": "apples"}, index=False)
        found = indexed.search(NS, query="apples")
        assert found[-1].key == "bare"
        assert found[-1].score is None
        assert None not in [item.score for item in found[:-1]]
        assert "bare" in keys(indexed.search(NS))

    def test_no_vector_outlives_its_text(self, indexed: Calls) -> None:
        def scored() -> set[str]:
            return {
                item.key for item in indexed.search(NS, query="secret") if item.score is not None
            }

        indexed.put(NS, "again", {"text": "secret"})
        indexed.put(NS, "gone", {"text": "secret"})
        indexed.put(NS, "back", {"text": "secret"})
        assert scored() == {"again", "gone", "back"}
        indexed.put(NS, "again", {"text": "secret"}, index=False)
        indexed.delete(NS, "gone")
        indexed.delete(NS, "back")
        indexed.put(NS, "back", {"text": "secret"}, index=False)
        assert scored() == set()

    def test_a_list_that_shrinks_leaves_no_vector(self, embedding: Opener) -> None:
        store = embedding("t[*]")
        store.put(NS, "k", {"t": ["apples", "volcano"]})
        before = store.search(NS, query="volcano")[0].score
        store.put(NS, "k", {"t": ["apples"]})
        assert store.search(NS, query="volcano")[0].score < before

    def test_equal_texts_in_one_batch_are_fine(self, indexed: Calls, base: Any) -> None:
        indexed.batch([base.PutOp(NS, key, {"text": "the same"}) for key in "ab"])
        found = indexed.search(NS, query="the same")
        assert sorted(keys(found)) == ["a", "b"]
        assert found[0].score == pytest.approx(found[1].score)

    def test_a_broken_embedder_writes_nothing(
        self, indexed: Calls, embedder: Embedder, base: Any
    ) -> None:
        embedder.is_broken = True
        with pytest.raises(RuntimeError, match="the embedder is unavailable"):
            indexed.batch([base.PutOp(NS, "a", {"text": "x"}), base.PutOp(NS, "b", {"n": 1})])
        embedder.is_broken = False
        assert indexed.search(NS) == []

    def test_filters_come_before_the_limit(self, indexed: Calls) -> None:
        for number in range(30):
            indexed.put(NS, f"k{number}", {"text": "apples", "late": number > 27})  # noqa: PLR2004
        found = indexed.search(NS, query="apples", filter={"late": True}, limit=2)
        assert sorted(keys(found)) == ["k28", "k29"]
        assert None not in [item.score for item in found]

    def test_pages_of_a_ranking_join(self, indexed: Calls) -> None:
        for number in range(7):
            indexed.put(NS, f"k{number}", {"text": "apple " * (number + 1) + "pear"})
        whole = indexed.search(NS, query="pear", limit=10)
        pages = [indexed.search(NS, query="pear", limit=2, offset=at) for at in range(0, 8, 2)]
        assert [key for page in pages for key in keys(page)] == keys(whole)
        assert len({item.key for item in whole}) == 7  # noqa: PLR2004 - all of them

    def test_odd_queries_find_something(self, indexed: Calls) -> None:
        indexed.put(NS, "k", {"text": "hello"})
        for query in ("", None, "x" * 500, "?!., ;:-", "  "):
            assert keys(indexed.search(NS, query=query)) == ["k"]

    def test_the_best_of_several_fields_counts(self, embedding: Opener) -> None:
        store = embedding("a", "b")
        store.put(NS, "both", {"a": "volcano", "b": "apples"})
        store.put(NS, "one", {"b": "apples"})
        store.put(NS, "none", {"c": "apples"})
        found = {item.key: item.score for item in store.search(NS, query="apples")}
        assert found["both"] == pytest.approx(found["one"], abs=1e-5)
        assert found.get("none") is None

    def test_fields_of_one_put_take_the_place_of_the_store_s(self, indexed: Calls) -> None:
        indexed.put(NS, "own", {"text": "volcano", "other": "apples"}, index=["other"])
        indexed.put(NS, "usual", {"text": "volcano", "other": "apples"})
        found = {item.key: item.score for item in indexed.search(NS, query="apples")}
        assert found["own"] == pytest.approx(1, abs=1e-3)
        assert found["usual"] < found["own"]

    def test_one_item_of_many_texts_takes_one_place(self, embedding: Opener) -> None:
        store = embedding("t[*]")
        store.put(NS, "many", {"t": [f"apples {number}" for number in range(20)]})
        store.put(NS, "one", {"t": ["pears"]})
        assert keys(store.search(NS, query="apples", limit=2)) == ["many", "one"]

    def test_text_in_any_script_finds_itself(self, indexed: Calls) -> None:
        for script, text in _SCRIPTS.items():
            indexed.put(NS, script, {"text": text})
        for script, text in _SCRIPTS.items():
            assert indexed.search(NS, query=text)[0].key == script

    def test_one_match_is_found_among_many_others(self, indexed: Calls, base: Any) -> None:
        noise = [base.PutOp(("docs", "noise"), f"n{n}", {"text": f"zz{n}zz"}) for n in range(200)]
        indexed.batch(noise)
        indexed.put(("docs", "other"), "match", {"text": "the needle"})
        found = indexed.search(NS, query="the needle", limit=10)
        assert found[0].key == "match"
        assert len(set(keys(found))) == 10  # noqa: PLR2004 - the limit
        assert keys(indexed.search(NS, query="the needle", limit=1)) == ["match"]

    @pytest.mark.parametrize(("paths", "expected"), _PATHS)
    def test_a_path_names_what_is_embedded(
        self, indexed: Calls, embedder: Embedder, paths: list[str], expected: list[str]
    ) -> None:
        indexed.put(NS, "k", _VALUE, index=paths)
        assert sorted(embedder.asked) == sorted(expected)

    @pytest.mark.parametrize("kind", [UserDict, MappingProxyType])
    def test_any_mapping_is_embedded(
        self, indexed: Calls, embedder: Embedder, kind: Callable[[dict[str, Any]], Any]
    ) -> None:
        indexed.put(NS, "k", kind({"text": "hello"}))
        assert embedder.asked == ["hello"]
        assert indexed.get(NS, "k").value["text"] == "hello"

    @pytest.mark.parametrize("kind", ["function", "coroutine function", "Embeddings"])
    def test_every_kind_of_embedder_is_taken(self, opened: Opener, surface: str, kind: str) -> None:
        self.needs_vectors()
        embedder = Embedder()

        parent: Any = import_module("langchain_core.embeddings").Embeddings

        class Own(parent):
            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                return embedder(texts)

            def embed_query(self, text: str) -> list[float]:
                return embedder.vector(text)

        async def embed(texts: list[str]) -> list[list[float]]:
            return embedder(texts)

        kinds: dict[str, Any] = {
            "function": embedder,
            "coroutine function": embed,
            "Embeddings": Own(),
        }
        store = opened(index={"dims": embedder.dims, "embed": kinds[kind]})
        if kind == "coroutine function" and surface == "sync":
            with pytest.raises((ValueError, RuntimeError)):
                store.put(NS, "k", {"text": "hello"})
            return
        store.put(NS, "k", {"text": "hello"})
        store.put(NS, "other", {"text": "zzz"})
        found = store.search(NS, query='{"text": "hello"}')
        assert found[0].key == "k"
        assert found[0].score == pytest.approx(1, abs=1e-3)
