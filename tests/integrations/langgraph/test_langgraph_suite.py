"""The public suite for LangGraph stores, run on a diary and on LangGraph's own store in memory."""

from __future__ import annotations

import importlib.util
from copy import copy
from typing import ClassVar

from langgraph.store.memory import InMemoryStore

from store_expiry import expiry_of
from tomldiary import Diary
from tomldiary.testing import StoreSuite
from tomldiary.testing.store.surface import Calls
from tomldiary_langgraph import DiaryStore


class DiarySuite(StoreSuite):
    has_vectors = (
        importlib.util.find_spec("numpy") is not None
    )  # pip install "tomldiary-kit[embeddings]"

    user_label: ClassVar[int | None] = 0

    def expiry_of(self, calls, namespace, key):
        return expiry_of(calls.store, namespace, key, self.user_label)


class TestDiaryInFiles(DiarySuite):
    surfaces = ("async",)

    def make_store(self, tmp_path, *, index=None, ttl=None):
        diary = Diary(tmp_path / "memories", durability="process")
        return DiaryStore(diary, index=index, ttl=ttl)


class TestDiaryInMemory(DiarySuite):
    surfaces = ("sync",)

    def make_store(self, tmp_path, *, index=None, ttl=None):
        return DiaryStore("memory:", index=index, ttl=ttl)


class TestDiarySharedByAll(DiarySuite):
    surfaces = ("sync",)
    user_label = None

    def make_store(self, tmp_path, *, index=None, ttl=None):
        diary = Diary(tmp_path / "memories", durability="process")
        return DiaryStore(diary, None, index=index, ttl=ttl)


class TestInMemoryStore(StoreSuite):
    surfaces = ("sync",)
    known_faults: ClassVar = {
        "test_a_read_makes_no_namespace": "langgraph #8734",
        "test_a_namespace_ends_with_its_last_item": "langgraph #8734",
        "test_a_changed_copy_changes_nothing_stored": "langgraph #8835",
        "test_two_readers_get_an_object_each": "langgraph #8835",
        "test_a_value_that_cannot_be_stored_rejects_its_batch": "langgraph #8835: it keeps the object itself",
        "test_a_bad_call_harms_no_other_call": "langgraph #8835: it keeps the object itself",
        "test_an_update_keeps_when_an_item_was_created": "langgraph #8340",
        "test_no_vector_outlives_its_text": "langgraph #8214",
        "test_a_list_that_shrinks_leaves_no_vector": "langgraph #8214",
        "test_an_operator_that_is_not_known_is_an_error": "langgraph #8829",
        "test_the_newest_comes_first": "langgraph #8831",
        "test_a_batch_with_a_bad_label_writes_nothing": "langgraph #8832",
        # Seen here, reported nowhere that we know of.
        "test_equal_texts_in_one_batch_are_fine": "ValueError when a batch embeds two equal texts",
        "test_a_prefix_may_be_a_list": "a list as a prefix finds nothing",
        "test_numbers_are_compared": "TypeError where an item lacks the field",
        "test_texts_and_dates_are_compared": "ValueError for text",
    }

    def make_store(self, tmp_path, *, index=None, ttl=None):
        return InMemoryStore(index=index)


def test_a_copy_of_a_suites_calls_calls_the_same_store():
    calls = copy(Calls(InMemoryStore(), None))
    calls.put(("alice",), "drink", {"is": "tea"})
    assert calls.get(("alice",), "drink").value == {"is": "tea"}
    assert not hasattr(calls, "vacuum")
