"""LangChain's own standard tests, on the tools, the retriever and the store of bytes."""

from __future__ import annotations

from functools import cached_property

import pytest
from langchain_tests.integration_tests import (
    BaseStoreAsyncTests,
    BaseStoreSyncTests,
    RetrieversIntegrationTests,
    ToolsIntegrationTests,
)
from langchain_tests.unit_tests import ToolsUnitTests

from tomldiary import Diary
from tomldiary_langchain import DiaryByteStore, DiaryRetriever, diary_tools

# Their coroutine tests are run by the plugin that comes with anyio, which langchain-core needs anyway.
pytestmark = pytest.mark.anyio

EXAMPLES = {
    "recall": {"query": "tea", "limit": 3},
    "remember": {"text": "late dinners", "category": "likes", "contexts": ["travel"]},
    "update": {"key": "likes/pref001", "text": "white tea"},
    "forget": {"key": "likes/pref002"},
    "read_block": {"name": "notes"},
    "append_block": {"name": "notes", "text": "Never guess."},
    "replace_in_block": {"name": "notes", "old": "brief", "new": "kind"},
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def a_diary():
    diary = Diary("memory:")
    for number in range(5):
        diary.user("alice").upsert_preference("likes", f"tea of kind {number}")
    diary.user("alice").blocks.append("notes", "Be brief.")
    return diary


class Tool:
    """One tool of the list, with example arguments; each class below names one."""

    name = ""

    @cached_property
    def tool_constructor(self):
        return next(tool for tool in diary_tools(a_diary(), "alice") if tool.name == self.name)

    @property
    def tool_invoke_params_example(self):
        return EXAMPLES[self.name]


def _suites():
    for name in EXAMPLES:
        for suite in (ToolsUnitTests, ToolsIntegrationTests):
            title = f"Test{name.title().replace('_', '')}{suite.__name__}"
            yield title, type(title, (Tool, suite), {"name": name})


globals().update(_suites())


def test_every_tool_is_tested():
    assert {tool.name for tool in diary_tools(a_diary())} == set(EXAMPLES)


class TestDiaryRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self):
        return DiaryRetriever

    @cached_property
    def retriever_constructor_params(self):
        return {"diary": a_diary(), "user_id": "alice"}

    @property
    def retriever_query_example(self):
        return "Which tea?"


@pytest.fixture(params=[None, "alice"], ids=["shared", "of a user"])
def kv_store(request, tmp_path):
    return DiaryByteStore(tmp_path, ("cache",), request.param)


class TestDiaryByteStoreSync(BaseStoreSyncTests[bytes]):
    @pytest.fixture
    def kv_store(self, kv_store):
        return kv_store

    @pytest.fixture
    def three_values(self):
        return b"foo", b"\x00\xff", b""


class TestDiaryByteStoreAsync(BaseStoreAsyncTests[bytes]):
    @pytest.fixture
    def kv_store(self, kv_store):
        return kv_store

    @pytest.fixture
    def three_values(self):
        return b"foo", b"\x00\xff", b""
