"""Vectors beside words: every kind of embedder, one order in all doors, and searches that survive its failure."""

from __future__ import annotations

import logging
import re
import struct
import sys
import tracemalloc
from contextlib import suppress
from hashlib import sha256
from shutil import rmtree

import pytest

from tomldiary import Diary
from tomldiary.errors import InvalidValue
from tomldiary.retrieval.embedders import local_embedder
from tomldiary_langchain import DiaryRetriever
from tomldiary_langgraph import DiaryStore

pytest.importorskip("numpy", reason='pip install "tomldiary-kit[embeddings]"')

MEANINGS = {"dog": 0, "puppy": 0, "sofa": 1, "couch": 1, "tax": 2, "money": 2, "tea": 3, "drink": 3}
TEXTS = ["My dog sleeps in the hall", "The sofa is green", "The tax is due in May", "Black tea with milk"]  # fmt: skip


def meaning(text):
    vector = [0.01] * 4
    for word in text.lower().split():
        if word in MEANINGS:
            vector[MEANINGS[word]] += 1.0
    return vector


class Counting:
    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked += texts
        return [meaning(text) for text in texts]


class Broken:
    def __call__(self, texts):
        raise OSError("the model is away")


async def coroutine(texts):
    return [meaning(text) for text in texts]


def langchain(asked=None):
    from langchain_core.embeddings import Embeddings  # noqa: PLC0415 - slow to import

    class Own(Embeddings):
        def embed_documents(self, texts):
            return [meaning(text) for text in texts]

        def embed_query(self, text):
            if asked is not None:
                asked.append(text)
            return meaning(text)

    return Own()


def pydantic_ai(asked=None):
    from pydantic_ai import Embedder  # noqa: PLC0415 - slow to import
    from pydantic_ai.embeddings import EmbeddingResult, TestEmbeddingModel  # noqa: PLC0415

    class Own(TestEmbeddingModel):
        async def embed(self, inputs, *, input_type, settings=None):
            texts = [inputs] if isinstance(inputs, str) else list(inputs)
            if asked is not None and input_type == "query":
                asked.extend(texts)
            vectors = [meaning(text) for text in texts]
            return EmbeddingResult(
                vectors, inputs=texts, input_type=input_type, model_name="own", provider_name="own"
            )

    return Embedder(Own())


def remembered(embedder, place="memory:"):
    diary = Diary(place, embedder=embedder, durability=None if place == "memory:" else "process")
    alice = diary.user("alice")
    with alice.transaction():
        for text in TEXTS:
            alice.upsert_preference("likes", text)
    return alice


@pytest.mark.parametrize(
    "make", [Counting, lambda: coroutine, langchain, pydantic_ai],
    ids=["function", "coroutine function", "LangChain", "pydantic-ai"],
)  # fmt: skip
def test_every_kind_of_embedder_finds_what_no_word_does(make):
    alice = remembered(make())
    assert alice.recall("puppy", 1)[0].text == TEXTS[0]
    assert alice.recall("couch", 1)[0].text == TEXTS[1]
    assert "sofa" in alice.render("couch", max_tokens=60)


@pytest.mark.parametrize("make", [langchain, pydantic_ai])
def test_a_question_is_embedded_as_a_question(make):
    asked = []
    assert remembered(make(asked)).recall("puppy", 1)[0].text == TEXTS[0]
    assert asked == ["puppy"]


def test_the_local_embedder_ranks_recall_and_words_count_too():
    pytest.importorskip("wordllama", reason='pip install "tomldiary-kit[embeddings]"')
    alice = remembered("local")
    alice.upsert_preference("likes", "Case QZX4431 is open")
    assert alice.recall("a puppy in the house", 1)[0].text == TEXTS[0]
    assert alice.recall("QZX4431", 1)[0].text == "Case QZX4431 is open"


def test_recall_store_and_retriever_rank_alike_with_an_embedder(tmp_path):
    alice = remembered(Counting(), tmp_path / "m")
    store = DiaryStore(alice.diary)
    for number, text in enumerate(TEXTS):
        store.put(("alice", "notes"), str(number), {"text": text})
    retriever = DiaryRetriever(diary=alice.diary, user_id="alice", kinds=["preferences"], k=3)
    for query in ("puppy", "money for tea", "the couch", "something to drink in May"):
        hits = [hit.text for hit in alice.recall(query, 3, kinds=["preferences"])]
        items = store.search(("alice", "notes"), query=query, limit=3)
        assert [item.value["text"] for item in items if item.score is not None] == hits
        assert [each.page_content for each in retriever.invoke(query)] == hits


def test_a_blank_question_finds_nothing_and_asks_no_embedder():
    embedder = Counting()
    alice = remembered(embedder)
    assert alice.recall("") == alice.recall(" \n") == []
    assert not embedder.asked


@pytest.mark.parametrize(
    "search",
    [
        lambda alice: alice.recall("puppy"),
        lambda alice: DiaryStore(alice.diary).search((), query="puppy"),
    ],
    ids=["recall", "store"],
)
def test_no_vector_of_a_text_forgotten_during_a_search_is_stored(search, tmp_path, caplog):
    def embed(texts):
        if texts == ["puppy"]:
            Diary(tmp_path).user("alice").forget(matching="dog")
        return [meaning(text) for text in texts]

    alice = remembered(embed, tmp_path)
    DiaryStore(alice.diary).put(("alice", "notes"), "1", {"text": TEXTS[0]})
    with caplog.at_level(logging.WARNING):
        search(alice)
    assert not list(tmp_path.rglob("vectors-*"))
    assert not [each for each in caplog.records if "embedder" in each.message]
    alice.recall("couch")
    assert list(tmp_path.rglob("vectors-*"))


@pytest.mark.parametrize("embedder", [Broken(), "local"], ids=["failing", "missing"])
def test_without_its_embedder_a_search_goes_on_by_words_with_one_warning(
    embedder, caplog, monkeypatch
):
    if embedder == "local":
        monkeypatch.setitem(sys.modules, "wordllama", None)
    alice = remembered(embedder)
    with caplog.at_level(logging.WARNING):
        assert [hit.text for hit in alice.recall("dog")] == [TEXTS[0]]
        assert [hit.text for hit in alice.recall("tea")] == [TEXTS[3]]
    (record,) = [each for each in caplog.records if "embedder" in each.message]
    assert "words" in record.message


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        (
            lambda texts: [[1.0]] * len(texts),
            "expected 4 vectors of 2 numbers, found an array of (4, 1)",
        ),
        (lambda texts: [f"vector of {text}" for text in texts], "expected vectors of numbers"),
    ],
    ids=["other dimensions", "echoed texts"],
)
def test_wrong_vectors_are_named_in_the_warning_without_texts(later, reason, caplog):
    alice = remembered(lambda texts: [[1.0, 2.0]] if len(texts) == 1 else later(texts))
    with caplog.at_level(logging.WARNING):
        assert [hit.text for hit in alice.recall("dog")] == [TEXTS[0]]
    (record,) = [each for each in caplog.records if "embedder" in each.message]
    assert reason in record.message
    assert not any(text in record.message for text in TEXTS)


def away(texts):
    raise OSError(texts)


def nothing(_):
    return None


def too_many(texts):
    return [[1.0]] * (len(texts) + 1)


def numbers(texts):
    return [1.0] * len(texts)


def growing(texts):
    return [[1.0] * len(text) for text in texts]


@pytest.mark.parametrize(
    ("embedder", "said"),
    [
        (away, r"away: OSError\)"),
        (nothing, "embedder: expected 1 vector from nothing, found NoneType"),
        (too_many, "embedder: expected 1 vector from too_many, found 2"),
        (numbers, "embedder: expected vectors of numbers of one length. Check numbers"),
        (growing, "embedder: expected (vectors of numbers|[0-9] vectors of 3).* Check growing"),
    ],
)
def test_the_warning_names_the_function_that_failed(embedder, said, caplog):
    alice = remembered(embedder)
    with caplog.at_level(logging.WARNING):
        assert [hit.text for hit in alice.recall("dog")] == [TEXTS[0]]
    (record,) = [each for each in caplog.records if "embedder" in each.message]
    assert re.search(said, record.message)


def test_an_embedder_that_fails_is_shown_once_without_logging(monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger("tomldiary"), "propagate", False)  # pytest's handlers
    alice = Diary("memory:", agent="rules", embedder=Broken()).user("alice")
    alice.upsert_preference("likes", "tea")
    assert [hit.text for hit in alice.recall("tea") + alice.recall("tea")] == ["tea", "tea"]
    assert capsys.readouterr().err.count("tomldiary: the embedder failed") == 1


@pytest.mark.parametrize("later", [[1.0] * 3, ["a"] * 4, [float("nan")] * 4], ids=str)
def test_a_question_without_a_usable_vector_is_searched_by_words(later):
    given = []
    alice = remembered(lambda texts: given or [meaning(text) for text in texts])
    alice.recall("dog")
    given.append(later)
    assert [hit.text for hit in alice.recall("tea")] == [TEXTS[3]]
    assert list(alice.recall("money")) == []


def test_an_object_that_embeds_nothing_is_refused_at_once():
    with pytest.raises(InvalidValue, match="embedder"):
        Diary("memory:", embedder=3)


def test_a_function_that_takes_no_texts_is_refused_at_once():
    with pytest.raises(InvalidValue, match=r"embedder: a call with \(texts\) fails"):
        Diary("memory:", embedder=lambda: [[1.0]])


def test_a_text_is_embedded_once_and_again_by_no_other_process(tmp_path):
    first, second = Counting(), Counting()
    alice = remembered(first, tmp_path / "m")
    alice.recall("puppy")
    alice.upsert_preference("likes", "A couch for the puppy")
    alice.recall("puppy")
    assert sorted(first.asked) == sorted([*TEXTS, "A couch for the puppy", "puppy", "puppy"])
    again = Diary(tmp_path / "m", embedder=second).user("alice")
    assert again.recall("couch", 1)[0].text == "A couch for the puppy"
    assert second.asked == ["couch"]


def test_forgetting_removes_the_vectors_of_recall(tmp_path):
    alice = remembered(Counting(), tmp_path / "m")
    alice.upsert_preference("likes", "I love my puppy.", session_id="s1")
    alice.recall("puppy")
    assert list((tmp_path / "m/.tomldiary/index/alice").glob("vectors-*"))
    alice.forget(session_id="s1")
    assert not list((tmp_path / "m/.tomldiary/index/alice").glob("vectors-*"))
    assert all("puppy" not in hit.text for hit in alice.recall("puppy"))


CANARY = "my canary likes walnut"


def hashed(texts):
    digests = [int.from_bytes(sha256(text.encode()).digest()) for text in texts]
    return [[1.0 if each >> bit & 1 else -1.0 for bit in range(16)] for each in digests]


def has_canary(place):
    [vector] = hashed([CANARY])
    data = b"".join(struct.pack("<f", number / 4) for number in vector)  # of length 1
    return any(data in each.read_bytes() for each in place.rglob("*") if each.is_file())


def told(alice):
    alice.upsert_preference("likes", CANARY, id="pref001", session_id="s1")
    alice.recall("walnut")


def folder_removed(alice):
    told(alice)
    rmtree(alice.diary.engine.backend.folder("alice"))


def never_stored(alice):
    store = DiaryStore(alice.diary, index={"dims": 16, "embed": hashed, "fields": ["text"]})
    with suppress(OSError), alice.transaction():
        store.put(("alice", "m"), "k", {"text": CANARY})
        raise OSError("full")


@pytest.mark.parametrize(
    "selector", [{"matching": "walnut"}, {"session_id": "s1"}, {"everything": True}]
)
@pytest.mark.parametrize("way", [told, folder_removed, never_stored])
def test_no_vector_of_a_forgotten_text_stays_on_disk(way, selector, tmp_path):
    alice = Diary(tmp_path, embedder=hashed, durability="process").user("alice")
    way(alice)
    assert has_canary(tmp_path)
    alice.forget(**selector)
    assert not has_canary(tmp_path)


def test_retention_of_history_embeds_no_text_again(tmp_path):
    embedder = Counting()
    alice = remembered(embedder, tmp_path)
    alice.upsert_preference("likes", "jazz")
    alice.recall("tea")
    embedder.asked = []
    assert alice.prune_history(keep=1).is_pruned
    alice.recall("dog")
    assert embedder.asked == ["dog"]


def test_vectors_of_former_texts_are_dropped_and_all_others_stay(tmp_path):
    embedder = Counting()
    diary = Diary(tmp_path, embedder=embedder, similarity=101, max_prefs_per_category=400)
    alice = diary.user("alice")
    alice.blocks.set("about", "a quiet couch")
    alice.recall("couch")
    for turn in range(4):
        with alice.transaction():
            for number in range(300):
                alice.upsert_preference("likes", f"tea {number} {turn}", id=f"pref{number + 1:03}")
        alice.recall("drink", kinds=["preferences"])
    Diary(tmp_path, embedder=(again := Counting())).user("alice").recall("dog")
    assert again.asked == ["dog"]
    embedder.asked = []
    alice.recall("dog")
    alice.upsert_preference("likes", "tea 0 0", id="pref001")
    alice.recall("dog")
    assert embedder.asked == ["dog", "dog", "tea 0 0"]


def test_removed_and_changed_texts_leave_the_matrix_in_place():
    alice = remembered(Counting())
    alice.recall("tea")
    for turn in range(10):
        keys = list(alice.preferences("likes"))
        words = [*MEANINGS][turn % 8], [*MEANINGS][turn * 3 % 8]
        alice.upsert_preference("likes", f"{words[0]} {words[1]} {turn}")
        if turn % 3 == 0:
            alice.remove_preference("likes", keys[turn % len(keys)])
        alice.upsert_preference(
            "likes", f"a couch {turn}", id=next(iter(alice.preferences("likes")))
        )
        hits = {hit.text for hit in alice.recall("money", 5)}
        fresh = Diary("memory:", embedder=Counting()).user("alice")
        for key, item in alice.preferences("likes").items():
            fresh.upsert_preference("likes", item.text, id=key)
        assert hits == {hit.text for hit in fresh.recall("money", 5)}


def test_the_cosine_alone_ranks_on_request():
    def keys(**more):
        index = {"dims": 4, "embed": Counting(), "fields": ["text"], **more}
        store = DiaryStore("memory:", index=index)
        store.put(("a",), "word", {"text": "zebra zebra"})
        store.put(("a",), "meaning", {"text": "puppy"})
        for number in range(5):
            store.put(("a",), f"other{number}", {"text": f"tea {number}"})
        return [item.key for item in store.search(("a",), query="zebra dog")][:2]

    assert set(keys()) == {"word", "meaning"}
    assert keys(ranking="cosine")[0] == "meaning"
    with pytest.raises(InvalidValue, match=r"index\.ranking"):
        DiaryStore("memory:", index={"dims": 4, "embed": Counting(), "ranking": "best"})


def test_one_long_text_costs_no_memory_for_the_short_ones_beside_it():
    pytest.importorskip("wordllama", reason='pip install "tomldiary-kit[embeddings]"')
    embed = local_embedder()
    alone = embed(["a short text"])[0]
    tracemalloc.start()
    found = embed([*["a short text"] * 63, "word " * 20_000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0] == alone
    assert peak < 200 * 2**20


def test_the_only_entry_is_found_with_an_embedder_too():
    alice = Diary("memory:", embedder=Counting()).user("alice")
    alice.upsert_preference("likes", "My dog sleeps")
    assert [hit.text for hit in alice.recall("dog")] == ["My dog sleeps"]
    assert [hit.text for hit in alice.recall("puppy")] == ["My dog sleeps"]
