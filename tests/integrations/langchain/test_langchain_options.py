"""Options of the retriever, the extractor and the store of bytes, and what traces are told."""

from __future__ import annotations

import asyncio

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from pydantic import ValidationError

from scripted_chat import DONE, Scripted, calling
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.errors import IdentifierError, InvalidValue
from tomldiary_langchain import ChatModelExtractor, DiaryByteStore, DiaryRetriever
from tomldiary_langgraph import DiaryStore

both = pytest.mark.parametrize("mode", ["sync", "async"])
TEA = calling(("upsert_preference", {"category": "likes", "text": "tea"}))


def ask(retriever, query, mode="sync", config=None):
    if mode == "sync":
        return retriever.invoke(query, config)
    return asyncio.run(retriever.ainvoke(query, config))


@pytest.fixture
def diary(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "green tea")
    alice.blocks.set("notes", "tea at five, and tea again at nine with some biscuits and jam")
    store = DiaryStore(diary)
    store.put(("alice", "memories"), "m1", {"content": "tea with Bob", "kind": "event"})
    store.put(("alice", "files"), "f1", {"name": "tea.txt"})
    store.put(("bob", "memories"), "m2", {"content": "tea of bob's"})
    return diary


def names(found):
    return {document.metadata["id"] for document in found}


# Retriever


@both
def test_kinds_limit_the_search(diary, mode):
    retriever = DiaryRetriever(diary=diary, user_id="alice", kinds=["blocks"])
    assert names(ask(retriever, "tea", mode)) == {"notes"}


@pytest.mark.parametrize(
    ("option", "wrong", "message"),
    [
        ("kinds", ["block"], "kinds: there is no kind 'block'"),
        ("filter", {"kind": {"$like": "b"}}, r"filter\.kind: unknown operator '\$like'"),
        ("user_id", "", "user_id is blank"),
    ],
)
def test_a_wrong_option_is_refused_when_the_retriever_is_made(diary, option, wrong, message):
    with pytest.raises(ValidationError, match=message):
        DiaryRetriever(diary=diary, **{option: wrong})


@both
@pytest.mark.parametrize(
    ("items", "expected"),
    [(("memories",), {"m1"}), ((), {"m1", "f1"}), (("{user_id}", "files"), {"f1"})],
)
def test_items_of_the_user_are_found(diary, mode, items, expected):
    found = ask(DiaryRetriever(diary=diary, user_id="alice", items=items, kinds=()), "tea", mode)
    assert names(found) == expected
    assert all(0 < document.metadata["score"] <= 1 for document in found)
    named = DiaryRetriever(diary=diary, user_id="alice", items=items, kinds=["items"])
    assert ask(named, "tea", mode) == found
    both_found = ask(DiaryRetriever(diary=diary, user_id="alice", items=items, k=9), "tea", mode)
    assert names(both_found) == {"likes/pref001", "notes", *expected}
    assert len(both_found) == len(expected) + 2


def test_items_with_the_user_as_second_label_are_found(tmp_path):
    store = DiaryStore(tmp_path, user_label=1)
    for user in ("alice", "bob"):
        store.put(("memories", user), "m1", {"content": f"tea of {user}"})
    retriever = DiaryRetriever(diary=tmp_path, items=("memories", "{user_id}"), kinds=())
    found = ask(retriever, "tea", config={"configurable": {"user_id": "bob"}})
    assert [document.page_content for document in found] == ["tea of bob"]


def test_a_document_of_an_item_has_the_same_id_in_each_search(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    store = DiaryStore(diary)
    places = (("a",), "b/c"), (("a", "b"), "c"), (("items", "a"), "é"), (("a", "alice"), "k")
    for labels, key in places:
        store.put(("alice", *labels), key, {"content": "tea"})
    for options in ({}, {"items": (), "kinds": ()}):
        found = ask(DiaryRetriever(diary=diary, user_id="alice", **options), "tea")
        assert {each.id for each in found} == {
            "items/a/b%2fc",
            "items/a/b/c",
            "items/items/a/é",
            "items/a/alice/k",
        }
        assert all(each.id in diary.user("alice").items for each in found)


def test_a_copy_of_a_retriever_searches_its_own_diary_and_items(diary, tmp_path):
    options = {"items": ("memories",), "kinds": (), "user_id": "alice"}
    retriever = DiaryRetriever(diary=diary, **options)
    assert names(ask(retriever, "tea")) == {"m1"}
    DiaryStore(diary, user_label=1).put(("shared", "alice"), "s1", {"content": "tea of alice"})
    other = Diary(tmp_path / "other", agent="rules")
    DiaryStore(other).put(("alice", "memories"), "o1", {"content": "tea"})
    for update, found in (({"items": ("shared", "{user_id}")}, "s1"), ({"diary": other}, "o1")):
        assert names(ask(retriever.model_copy(update=update), "tea")) == {found}
    assert names(ask(retriever, "tea")) == {"m1"}


def test_a_filter_applies_to_metadata_and_values(diary):
    def found(**options):
        return names(ask(DiaryRetriever(diary=diary, user_id="alice", **options), "tea"))

    assert found(filter={"kind": "blocks"}) == {"notes"}
    assert found(filter={"kind": {"$ne": "blocks"}}) == {
        "likes/pref001",
        "files/f1",
        "memories/m1",
    }
    assert found(filter={"kind": "event"}, items=("memories",)) == {"m1"}
    assert found(filter={"kind": "blocks"}, k=1) == {"notes"}


def test_a_score_threshold_omits_weaker_matches(diary):
    found = ask(DiaryRetriever(diary=diary, user_id="alice"), "green tea")
    best, *others = [document.metadata["score"] for document in found]
    assert others
    limit = (best + others[0]) / 2
    narrow = DiaryRetriever(diary=diary, user_id="alice", score_threshold=limit)
    assert [document.metadata["score"] for document in ask(narrow, "green tea")] == [best]


@pytest.mark.parametrize(
    "options", [{"top_k": 3}, {"k": 0}, {"search_kwargs": {"k": 3}}, {"score_threshold": 2}]
)
def test_an_unknown_option_of_the_retriever_is_refused(diary, options):
    with pytest.raises(ValidationError, match=next(iter(options))):
        DiaryRetriever(diary=diary, **options)


class Wrapping(BaseRetriever):
    """Asks another retriever as LangChain's MultiQueryRetriever does: with callbacks, without the config."""

    inner: BaseRetriever

    def _get_relevant_documents(self, query, *, run_manager):
        return self.inner.invoke(query, config={"callbacks": run_manager.get_child()})


def test_a_nested_retriever_uses_the_bound_user_or_that_of_the_chain(diary):
    bound = Wrapping(inner=DiaryRetriever(diary=diary, user_id="alice"))
    assert bound.invoke("tea")
    free = Wrapping(inner=DiaryRetriever(diary=diary))
    alice = {"configurable": {"user_id": "alice"}}
    with pytest.raises(IdentifierError):
        free.invoke("tea", alice)
    chain = RunnableLambda(lambda text: text) | free
    assert chain.invoke("tea", alice)
    with pytest.raises(IdentifierError):  # LangChain runs the steps of a batch without its context
        chain.batch(["tea"], [alice])


# Extractor


@pytest.mark.parametrize(
    "given", ["openai:gpt-5", 7, Diary("memory:"), create_agent(Scripted(answers=[]))]
)
def test_an_extractor_accepts_only_chat_models(given):
    with pytest.raises(InvalidValue, match="expected a chat model, found"):
        ChatModelExtractor(given)


def test_an_agent_of_langchain_as_the_extractor_is_refused_at_the_first_turn():
    alice = Diary("memory:", agent=create_agent(Scripted(answers=[]))).user("alice")
    with pytest.raises(InvalidValue, match="expected a chat model, found CompiledStateGraph"):
        alice.add_turn("I love jazz.", "Noted.", "s1")


class Down(Exception):
    """The model's line is down."""


@both
@pytest.mark.parametrize(
    "around",
    [
        lambda model: model.with_retry(stop_after_attempt=3, wait_exponential_jitter=False),
        lambda model: model.bind(stop=["x"]).with_retry(wait_exponential_jitter=False),
        lambda model: Scripted(answers=[Down()]).with_fallbacks([model]),
        lambda model: (
            Scripted(answers=[Down()])
            .with_retry(stop_after_attempt=1)
            .with_fallbacks([model.with_retry()])
        ),
        lambda model: model.with_config({"tags": ["t"]}),
    ],
    ids=["retry", "bind and retry", "fallback", "retry and fallback", "config"],
)
def test_a_wrapped_model_calls_tools(around, mode):
    answers = [TEA, DONE]
    model = Scripted(answers=answers)
    diary = Diary("memory:", agent=around(model))
    alice = diary.user("alice")
    if mode == "sync":
        alice.add_turn("I like tea.", "ok", session_id="s")
    else:
        asyncio.run(alice.aadd_turn("I like tea.", "ok", session_id="s"))
    assert [item.text for item in alice.preferences("likes").values()] == ["tea"]
    assert {tool["name"] for tool in model.offered} >= {"upsert_preference"}
    assert "You cannot call the tools yourself" not in model.asked[0][0].text


class Binding(Scripted):
    """Binds tools as the models of providers do."""

    def bind_tools(self, tools, **more):
        return self.bind(
            tools=[tool if isinstance(tool, str) else tool.__name__ for tool in tools], **more
        )

    def _generate(self, messages, stop=None, run_manager=None, **bound):
        self.offered.append((bound["tools"], bound.get("tool_choice"), bound.get("seed")))
        return super()._generate(messages, stop, run_manager)


@pytest.mark.parametrize("has_retries", [False, True])
def test_a_model_with_tools_of_its_host_gets_those_of_the_extractor(has_retries):
    model = Binding(answers=[TEA, DONE])
    given = model.bind_tools(["book"], tool_choice="book", seed=7)
    diary = Diary("memory:", agent=given.with_retry() if has_retries else given)
    diary.user("alice").add_turn("I like tea.", "ok", session_id="s")
    assert len(model.offered) == 2
    for names, choice, seed in model.offered:
        assert "upsert_preference" in names
        assert "book" not in names
        assert (choice, seed) == (None, 7)
    assert [item.text for item in diary.user("alice").preferences("likes").values()] == ["tea"]


def test_a_model_with_retries_is_asked_again(tmp_path):
    model = Scripted(answers=[Down(), TEA, DONE])
    diary = Diary(tmp_path, agent=model.with_retry(wait_exponential_jitter=False))
    diary.user("alice").add_turn("I like tea.", "ok", session_id="s")
    assert [item.text for item in diary.user("alice").preferences("likes").values()] == ["tea"]


class Traced(BaseCallbackHandler):
    def __init__(self):
        self.calls = []

    def on_chat_model_start(self, serialized, messages, *, tags=None, metadata=None, **_):
        self.calls.append((tags, metadata))


def test_traces_of_background_calls_name_user_and_session():
    handler = Traced()
    model = Scripted(answers=[TEA, DONE], callbacks=[handler])
    with MemoryWriter(Diary("memory:", agent=model)) as writer:
        writer.submit_nowait(Turn("alice", "s7", "I like tea.", "ok"))
        assert writer.flush(20)
    assert len(handler.calls) == 2
    for tags, metadata in handler.calls:
        assert {"tomldiary", "nostream"} <= set(tags)
        assert not any("alice" in tag for tag in tags)
        assert metadata["user_id"] == "alice"
        assert metadata["session_id"] == "s7"


# Store of bytes


def test_bytes_of_a_user_are_forgotten_with_the_user(tmp_path):
    store = DiaryByteStore(tmp_path, user_id="alice")
    shared = DiaryByteStore(tmp_path)
    store.mset([("k", b"1"), ("k2", b"2")])
    shared.mset([("k", b"3")])
    assert store.mget(["k", "none"]) == [b"1", None]
    assert sorted(store.yield_keys(prefix="k")) == ["k", "k2"]
    Diary(tmp_path).user("alice").forget(everything=True)
    assert store.mget(["k"]) == [None]
    assert shared.mget(["k"]) == [b"3"]


def test_a_byte_store_lists_more_keys_than_one_page(tmp_path):
    store = DiaryByteStore("memory:")
    store.mset([(f"k{number}", b"") for number in range(1_201)])
    assert len(list(store.yield_keys())) == 1_201


@pytest.mark.parametrize("namespace", ["cache", ()])
def test_a_byte_store_needs_labels(namespace):
    with pytest.raises(InvalidValue, match="expected a tuple of labels"):
        DiaryByteStore("memory:", namespace)


def test_a_byte_store_refuses_other_values():
    with pytest.raises(InvalidValue, match="expected bytes, found str"):
        DiaryByteStore("memory:").mset([("k", "text")])
