"""Finding items: by words, by vectors, by filters; indexes that follow, survive and are forgotten."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from time import process_time

import pytest

from calls import noted_calls
from living import objects_of
from tomldiary import Diary
from tomldiary.errors import Forgotten, InvalidValue, MissingExtra
from tomldiary.retrieval import lexical_index
from tomldiary.retrieval.embedders import LOCAL_DIMS, local_embedder, name_of
from tomldiary.retrieval.filters import compile_filter
from tomldiary.retrieval.lexical_index import LexicalIndex, UserIndex
from tomldiary.retrieval.vector_index import Embedding, VectorIndex
from tomldiary.storage.files import unfinished
from tomldiary.store.item import Entry
from tomldiary.store.operations import Get, Put, Search
from tomldiary.store.snapshot import Snapshot
from tomldiary.store.store import ItemStore
from tomldiary.text.json_paths import texts_at
from tomldiary_langgraph import DiaryStore

NS = ("alice", "memories")


def letters(text):
    found = [0.0] * 26
    for letter in text.lower():
        if "a" <= letter <= "z":
            found[ord(letter) - 97] += 1.0
    return found


class Embeds:
    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked += texts
        return [letters(text) for text in texts]


@pytest.fixture
def store(tmp_path):
    return ItemStore(Diary(tmp_path / "m", durability="process"))


def found(store, query, prefix=NS, **more):
    """Return the keys of the matches; the items behind them have no score."""
    items = store.run([Search(prefix, query=query, **more)])[0]
    return [item.key for item in items if item.score is not None]


def put(store, key, text, **more):
    store.run([Put(NS, key, {"text": text}, **more)])


# Words


def test_words_match_in_any_form_and_the_best_item_is_first(store):
    put(store, "both", "She was running marathons in the spring.")
    put(store, "one", "They run a shop.")
    put(store, "none", "Nothing of the kind.")
    assert found(store, "Does she run marathons?") == ["both", "one"]
    best, second, other = store.run([Search(NS, query="run marathon")])[0]
    assert 1 > best.score > second.score > 0
    assert (other.key, other.score) == ("none", None)


def test_items_without_a_match_follow_the_matches(store):
    put(store, "oldest", "By the window.")
    put(store, "match", "Black tea in the morning.")
    put(store, "hidden", "Black tea as well.", index=False)
    put(store, "newest", "No walnuts.")
    store.run([Put(("alice", "other"), "elsewhere", {"text": "Green tea."})])

    def shown(query, prefix=NS, **more):
        items = store.run([Search(prefix, query=query, **more)])[0]
        return [(item.key, item.score is not None) for item in items]

    whole = [("match", True), ("newest", False), ("hidden", False), ("oldest", False)]
    assert shown("black tea") == whole
    assert [shown("black tea", limit=1, offset=n) for n in range(5)] == [
        *([each] for each in whole),
        [],
    ]
    assert shown("espresso") == [(key, False) for key in ("newest", "hidden", "match", "oldest")]
    assert shown("tea", filter={"text": {"$ne": "No walnuts."}}) == [whole[0], *whole[2:]]
    assert shown("green tea", ("alice",), limit=3) == [
        ("elsewhere", True),
        ("match", True),
        ("newest", False),
    ]


def test_field_names_are_found_where_no_item_has_a_text(store):
    store.run([Put(NS, "k", {"attempts": 3})])
    assert found(store, "attempts") == ["k"]
    assert [hit.key for hit in store.diary.user("alice").recall("attempts")] == ["memories/k"]


def test_field_names_are_searched(store):
    store.run([Put(NS, "food", {"favorite_food": "pizza", "more": [{"kindOfTea": 1}]})])
    store.run([Put(NS, "chosen", {"favorite_food": "pasta", "note": "x"}, ["note"])])
    put(store, "other", "Nothing of the kind.")
    assert found(store, "favorite food") == ["food"]
    assert found(store, "favorite_food") == ["food"]
    assert found(store, "tea") == ["food"]
    assert found(store, "pasta note") == []


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_scores_lie_between_0_and_1_whatever_the_size_of_the_store(store, count):
    others = {f"k{n}": f"something else {n} entirely" for n in range(count - 1)}
    for key, text in {**others, "tea": "black tea each morning"}.items():
        put(store, key, text)
    scores = {}
    for query in ("black tea each morning", "black tea", "black coffee"):
        best = store.run([Search(NS, query=query)])[0][0]
        assert best.key == "tea"
        scores[query] = best.score
    assert 1 > scores["black tea each morning"] >= scores["black tea"] > 0.5
    assert 0.5 >= scores["black coffee"] > 0.2


def test_the_index_includes_every_change(store, tmp_path):
    put(store, "k", "walnut")
    assert found(store, "walnut") == ["k"]
    put(store, "k", "pecan")
    assert found(store, "walnut") == []
    assert found(store, "pecan") == ["k"]
    put(store, "hidden", "pecan", index=False)
    put(store, "field", "nothing", index=["other"])
    store.run([Put(NS, "field", {"text": "pecan", "other": "almond"}, ["other"])])
    assert found(store, "almond") == ["field"]
    assert found(store, "pecan") == ["k"]
    path = tmp_path / "m/alice/items/memories.toml"
    path.write_text(path.read_text().replace('"pecan"', '"hazelnut"', 1))
    assert found(store, "hazelnut") == ["k"]
    store.run([Put(NS, "k", None)])
    assert found(store, "hazelnut") == []


@pytest.mark.parametrize("removed", [False, True])
def test_an_item_without_searched_words_has_no_effect_on_the_items_of_its_session(store, removed):
    store.run([Put(NS, "cake", {"text": "walnut cake"})], session="monday")
    store.run([Put(NS, "secret", {"text": "walnut"}, index=False)], session="monday")
    if removed:  # the item that has the next row
        store.run([Put(NS, "tea", {"text": "walnut tea"})], session="tuesday")
        store.run([Search(NS, query="walnut")])
        store.run([Put(NS, "tea", None)])
    found = store.run([Search(NS, query="walnut")])[0]
    assert [(each.key, each.score is None) for each in found] == [("cake", False), ("secret", True)]


def test_a_search_after_a_put_puts_no_documents_together(monkeypatch):
    store = ItemStore(Diary("memory:"))
    for number in range(4):
        put(store, f"k{number}", f"walnut {number} " + "x" * 60_000)
    assert len(found(store, "walnut")) == 4
    put(store, "k1", "pecan")
    with monkeypatch.context() as patched:
        patched.setattr(Snapshot, "entries", property(lambda _: pytest.fail("all items were read")))
        assert found(store, "walnut", limit=3) == ["k3", "k2", "k0"]
        assert found(store, "pecan", limit=1) == ["k1"]


def test_pages_of_many_matches_neither_skip_nor_repeat(store):
    ops = [Put(NS, f"k{n:03}", {"text": f"tea {'cup ' * (n % 7)}{n}"}) for n in range(150)]
    store.run(ops)
    whole = found(store, "tea cup", limit=1000)
    assert len(set(whole)) == len(whole) == 150
    pages = [found(store, "tea cup", limit=20, offset=at) for at in range(0, 160, 20)]
    assert [key for page in pages for key in page] == whole
    scores = [item.score for item in store.run([Search(NS, query="tea cup", limit=1000)])[0]]
    assert scores == sorted(scores, reverse=True)
    late = found(store, "tea", filter={"text": {"$gte": "tea cup cup cup cup cup cup 1"}}, limit=3)
    assert len(late) == 3


def test_ranking_few_candidates_equals_ranking_all_matches(store, monkeypatch):
    """What is scored first is chosen by looks; compared with the score of every match."""
    numbers = random.Random(7)
    words = [f"w{n}" for n in range(200)]
    texts: dict[str, str] = {}
    for n in range(600):  # some words are in many texts, some in few
        by_chance = sorted(words, key=lambda word: numbers.random() * (30 + int(word[1:])))
        texts[f"k{n}"] = " ".join(by_chance[: numbers.randint(2, 60)])
    store.run([Put(NS, key, {"text": text}) for key, text in texts.items()])
    alike = 0
    for _ in range(10):
        asked = " ".join(numbers.sample(words, 4))
        search = Search(NS, query=asked, limit=1000)
        got = [item for item in store.run([search])[0] if item.score is not None]
        with monkeypatch.context() as all_scored:
            all_scored.setattr(lexical_index, "_SCORED", 1000)
            whole = [item for item in store.run([search])[0] if item.score is not None]
        assert sorted(item.key for item in got) == sorted(item.key for item in whole)
        assert len(got) > 100
        scores = [item.score for item in got]
        assert scores == sorted(scores, reverse=True)
        alike += len({item.key for item in got[:10]} & {item.key for item in whole[:10]})
    assert alike >= 98


def test_a_rare_word_in_a_long_text_is_scored_before_common_words(store):
    rare = f"walnut {' '.join(f'word{n}' for n in range(70))}"
    assert len(rare) < 600  # characters, from which on a text counts as long
    texts = {"rare": rare, **{f"k{n}": f"tea {n}" for n in range(100)}}
    store.run([Put(NS, key, {"text": text}) for key, text in texts.items()])
    assert found(store, "tea walnut")[0] == "rare"


def test_a_search_returns_each_item_of_its_snapshot_once(store):
    store.run([Put(NS, f"k{n:03}", {"text": f"tea cup {n}"}) for n in range(150)])
    (snapshot,) = store.below(NS)
    index = UserIndex()
    search = index.search([snapshot], "tea cup").matches
    keys = [next(search)[2].key]
    for n in range(150):
        put(store, f"k{n:03}", f"coffee, no tea {n}")
    assert len(list(index.search(store.below(NS), "coffee").matches)) == 150
    keys += [entry.key for _, _, entry in search]
    assert sorted(keys) == [f"k{n:03}" for n in range(150)]


def test_matches_in_other_namespaces_displace_no_result(store):
    store.run([Put(NS, f"k{n}", {"text": "tea " * 3}) for n in range(100)])
    there = ("alice", "there")
    store.run([Put(there, f"k{n}", {"text": f"a long way to a cup of tea {n}"}) for n in range(3)])
    assert len(found(store, "tea")) == 10
    before = store.run([Search(there, query="tea")])[0]
    assert [item.key for item in before] == ["k2", "k1", "k0"]
    store.run([Put(NS, "k0", {"text": "more tea"})])
    assert store.run([Search(there, query="tea")])[0] == before


@pytest.mark.parametrize(
    "word",
    [
        "Straße",
        "λόγος",
        "ΛΌΓΟΣ",
        "ﬁne",
        "cafe\u0301",
        "ПРИВЕТ",
        "커피를",
        "नमस्ते",
        "北京大学",
    ],
)
def test_a_word_of_any_script_is_found_as_it_was_written(store, word):
    put(store, "k", f"{word} 1")
    store.run([Put(NS, f"n{n}", {"text": f"walnut {n}"}) for n in range(3)])
    alice = store.diary.user("alice")
    alice.upsert_preference("likes", f"{word} 1")
    for query in (word, word.lower(), f"{word} walnut?"):
        assert found(store, query)[0] == "k"
        hits = alice.recall(query, kinds=["preferences", "items"])
        assert {hit.key for hit in hits if hit.text == f"{word} 1"} == {
            "likes/pref001",
            "memories/k",
        }


@pytest.mark.parametrize("symbol", ["🇩🇪", "⭐", "🎂"])
def test_a_symbol_is_found(store, symbol):
    put(store, "k", f"{symbol} walnut")
    put(store, "n", "🇫🇷 walnut ⌚")
    assert found(store, symbol) == ["k"]


@pytest.mark.parametrize("query", ['"', "NEAR(a b)", "text:walnut", "walnut*", "a AND b", "^walnut", "walnut -x", "';--"])  # fmt: skip
def test_a_query_is_never_parsed_as_a_query_language(store, query):
    put(store, "k", "walnut")
    assert set(found(store, query)) <= {"k"}


# Vectors


def indexed(place, embed, **more):
    pytest.importorskip("numpy", reason='pip install "tomldiary-kit[embeddings]"')
    return ItemStore(Diary(place), embedding=Embedding(26, embed, **{"fields": ("text",), **more}))


def test_indexes_of_removed_namespaces_do_not_accumulate():
    index, before = UserIndex(), objects_of(LexicalIndex)
    for number in range(1100):
        entries = {"k": Entry("k", {"text": "tea"})}
        index.search([Snapshot("alice", ("alice", str(number)), entries=entries)], "tea")
    assert objects_of(LexicalIndex) - before == 1001


def test_vectors_of_removed_namespaces_do_not_accumulate():
    pytest.importorskip("numpy", reason='pip install "tomldiary-kit[embeddings]"')
    index, before = VectorIndex(Embedding(26, letters, ("text",)), None), objects_of(Snapshot)
    asked = index.asked(letters("tea"))
    for number in range(1100):
        entries = {"k": Entry("k", {"text": "tea"})}
        index.cosines([Snapshot("alice", ("alice", str(number)), entries=entries)], asked.vector)
    assert objects_of(Snapshot) - before == 1001


def test_typed_entries_of_many_users_do_not_accumulate():
    diary = Diary("memory:", agent="rules")
    store, before = DiaryStore(diary), objects_of(Entry)
    for number in range(300):
        diary.user(f"user{number}").upsert_preference("likes", "tea")
        assert len(store.search((f"user{number}",), query="tea")) == 1
    assert objects_of(Entry) - before <= 256


@pytest.mark.parametrize("has_vectors", [False, True])
def test_what_was_removed_or_replaced_changes_no_score(has_vectors):
    embedding = Embedding(26, Embeds(), fields=["text"]) if has_vectors else None
    used, fresh = (ItemStore(Diary("memory:"), embedding=embedding) for _ in range(2))
    puts = [Put(NS, f"k{number}", {"text": f"pecan pie {number * 'x'}"}) for number in range(9)]
    for put in puts:  # with a search after each change, so that the index follows each one
        used.run([put])
        assert put.key in found(used, "pecan")
    changed = [Put(NS, put.key, {"text": "walnut tart"}) for put in puts[:3]]
    changed += [Put(NS, put.key, None) for put in puts[3:6]]
    for put in changed:
        used.run([put])
        found(used, "pecan")
    last = Put(NS, "last", {"text": "pecan cake"})
    scores = []
    for store, steps in ((used, [last]), (fresh, [*changed, *puts[6:], last])):
        store.run(steps)
        items = store.run([Search(NS, query="walnut cake")])[0]
        scores.append({item.key: item.score for item in items})
    assert scores[0] == pytest.approx(scores[1])
    assert len(scores[0]) == 7


def test_vectors_are_stored_and_equal_texts_embedded_once(tmp_path):
    embeds = Embeds()
    store = indexed(tmp_path, embeds)
    store.run([Put(NS, key, {"text": "walnut"}) for key in "abc"])
    put(store, "d", "pecan")
    assert embeds.asked == ["walnut", "pecan"]
    again = Embeds()
    assert found(indexed(tmp_path, again), "pecan")[0] == "d"
    assert again.asked == ["pecan"]  # the question
    files = list((tmp_path / ".tomldiary/index/alice").glob("vectors-*"))
    assert len(files) == 1
    assert b"walnut" not in files[0].read_bytes()
    assert files[0].stat().st_mode & 0o777 == 0o600


def test_vectors_of_a_second_process_are_stored_beside_those_of_the_first(tmp_path):
    put(indexed(tmp_path, Embeds()), "a", "walnut")
    put(indexed(tmp_path, Embeds()), "b", "pecan")
    third = Embeds()
    assert set(found(indexed(tmp_path, third), "cake")) == {"a", "b"}
    assert third.asked == ["cake"]


def test_a_single_put_is_embedded_before_anything_is_written(tmp_path):
    def fails(_):
        raise OSError("no model")

    asked = Embeds()
    indexed(tmp_path, asked).run([Put(NS, "a", {"text": "walnut"})])
    assert asked.asked == ["walnut"]
    broken = indexed(tmp_path, fails)
    with pytest.raises(OSError, match="no model"):
        broken.run([Put(NS, "b", {"text": "pecan"})])
    with pytest.raises(OSError, match="no model"):
        DiaryStore(tmp_path, index={"dims": 26, "embed": fails}).put(NS, "b", {"text": "pecan"})
    assert indexed(tmp_path, asked).run([Get(NS, "b")]) == [None]


def test_a_vector_index_that_is_removed_while_it_is_open_is_written_anew(tmp_path, caplog):
    store = indexed(tmp_path, Embeds())
    put(store, "a", "walnut")
    (file,) = (tmp_path / ".tomldiary/index/alice").glob("vectors-*")
    file.unlink()
    put(store, "b", "pecan")
    assert found(store, "walnut")[0] == "a"
    assert found(store, "pecan")[0] == "b"
    assert file.exists()
    assert not caplog.records


def test_a_missing_or_damaged_vector_index_is_rebuilt(tmp_path, caplog):
    put(indexed(tmp_path, Embeds()), "a", "walnut")
    (file,) = (tmp_path / ".tomldiary/index/alice").glob("vectors-*")
    data = file.read_bytes()
    for damaged in (data[:-104] + b"\0\0\x80?" * 26, data + b"torn", b"something else", b""):
        file.write_bytes(damaged)
        with caplog.at_level(logging.CRITICAL):
            store = indexed(tmp_path, Embeds())
            put(store, "b", f"pecan {len(damaged)}")
            best = store.run([Search(NS, query="walnut")])[0][0]
            assert (best.key, best.score) == ("a", pytest.approx(1))
    file.unlink()
    again = Embeds()
    assert found(indexed(tmp_path, again), "walnut")[0] == "a"
    assert "walnut" in again.asked


def test_the_next_search_embeds_items_of_other_processes_and_hand_edits(tmp_path):
    store = indexed(tmp_path, Embeds())
    put(store, "a", "walnut")
    put(ItemStore(Diary(tmp_path)), "b", "pecan")
    assert found(store, "pecan")[0] == "b"
    path = tmp_path / "alice/items/memories.toml"
    path.write_text(path.read_text().replace('"pecan"', '"zzzz"'))
    item = store.run([Search(NS, query="zzzz")])[0][0]
    assert (item.key, item.score) == ("b", pytest.approx(1))


def test_forgetting_removes_vectors_and_refuses_late_ones(tmp_path):
    store = indexed(tmp_path, Embeds())
    store.run([Put(NS, "a", {"text": "walnut"})], session="s1")
    store.run([Put(NS, "b", {"text": "pecan"})], session="s2")
    index = tmp_path / ".tomldiary/index/alice"
    store.diary.user("alice").forget(before="2020-01-01")  # as each night
    [vectors] = index.glob("*vectors-*")
    unfinished(vectors).write_bytes(vectors.read_bytes())  # by a killed process
    late = store.prepare([Put(NS, "c", {"text": "late"})])
    store.diary.user("alice").forget(session_id="s1")
    assert not list(index.glob("*vectors-*"))
    with pytest.raises(Forgotten):
        store.finish(late, [letters("late")])
    assert found(store, "walnut") == ["b"]
    store.diary.user("alice").forget(everything=True)
    assert not index.exists()


def churned(store, number):
    """Store this number of texts, of which only the last 64 remain."""
    for start in range(0, number, 64):
        store.run([Put(NS, f"k{n}", {"text": f"walnut {start + n}"}) for n in range(64)])


def test_vectors_of_former_texts_are_dropped_at_1024_and_all_others_stay(tmp_path):
    of_notes = partial(indexed, tmp_path, fields=("note",))
    of_notes(Embeds()).run([Put(NS, "a", {"note": "pecan"})])
    store = indexed(tmp_path, embeds := Embeds())
    store.diary.user("alice").upsert_preference("likes", "almond")
    store.run([Search(("alice",), query="almond")])
    with noted_calls(VectorIndex.keep) as kept:
        churned(store, 1024)
        assert len(kept) == 1
        best = indexed(tmp_path, again := Embeds()).run([Search(("alice",), query="walnut 1023")])
        assert (best[0][0].key, best[0][0].score) == ("k63", pytest.approx(1))
        of_notes(again).run([Search(NS, query="nuts")])
        assert again.asked == ["walnut 1023", "nuts"]
        store.run([Put(NS, f"more{n}", {"text": f"tea {n}"}) for n in range(1100)])
        put(store, "k0", "hazelnut")
        assert len(kept) == 2
    embeds.asked.clear()
    put(store, "k0", "walnut 900")  # which was a former text, and one of few
    assert not embeds.asked


def test_vectors_stay_beside_an_unreadable_document(tmp_path):
    store = indexed(tmp_path, Embeds())
    put(store, "k", "pecan")
    (tmp_path / "alice/items/broken.toml").write_text("= broken")
    churned(store, 1088)
    assert found(store, "walnut 1087")[0] == "k63"


def test_a_torn_vector_costs_no_other_one(tmp_path):
    put(indexed(tmp_path, Embeds()), "a", "walnut")
    (file,) = (tmp_path / ".tomldiary/index/alice").glob("vectors-*")
    with file.open("ab") as torn:
        torn.write(file.read_bytes()[-100:-50])
    put(indexed(tmp_path, Embeds()), "b", "pecan")
    again = Embeds()
    indexed(tmp_path, again).run([Search(NS, query="nuts")])
    assert again.asked == ["nuts"]


def test_a_vector_index_that_was_made_anew_is_read_from_its_start(tmp_path):
    embeds = Embeds()
    store = indexed(tmp_path / "one", embeds)
    put(store, "a", "walnut")
    other = indexed(tmp_path / "two", Embeds())
    other.run([Put(NS, "b", {"text": "pecan"}), Put(NS, "c", {"text": "almond"})])
    mine, theirs = (next((tmp_path / name / ".tomldiary/index/alice").glob("vectors-*")) for name in ("one", "two"))  # fmt: skip
    mine.write_bytes(theirs.read_bytes())  # with the inode of the former file
    put(store, "d", "pecan")
    assert embeds.asked == ["walnut"]


def test_a_put_with_vectors_joins_an_open_transaction(tmp_path):
    store = indexed(tmp_path, Embeds())
    store.diary.engine.lock_timeout = 0.2
    with store.diary.user("alice").transaction():
        store.run([Put(NS, "a", {"text": "walnut"})])
    assert found(store, "walnut") == ["a"]


def test_vectors_of_the_wrong_size_write_nothing(tmp_path):
    store = indexed(tmp_path, lambda texts: [[1.0]] * len(texts))
    with pytest.raises(InvalidValue, match="vectors of 26 numbers"):
        put(store, "a", "walnut")
    assert store.run([Get(NS, "a")]) == [None]


@pytest.mark.parametrize("wrong", [lambda texts: [], lambda texts: [letters("a")] * (len(texts) + 1),
                                   lambda texts: [[1.0] * (n + 1) for n, _ in enumerate(texts)], lambda texts: ["no"], lambda texts: None])  # fmt: skip
def test_an_embedder_with_an_invalid_result_writes_nothing(tmp_path, wrong):
    store = indexed(tmp_path, wrong)
    ops = [Put((user, "m"), "k", {"text": f"walnut {user}"}) for user in ("ann", "bo", "cy")]
    with pytest.raises(InvalidValue, match=r"expected .*vectors"):
        store.run(ops)
    assert store.run([Search(())]) == [[]]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e300])
def test_a_vector_of_nan_matches_nothing_and_keeps_the_order(tmp_path, number):
    def embed(texts):
        return [letters(text) if text.strip() else [number] * 26 for text in texts]

    store = indexed(tmp_path, embed)
    for user in ("ann", "bo"):
        for text in ("", "walnut", "wal"):
            store.run([Put((user, "m"), text or "empty", {"text": text})])
    items = store.run([Search((), query="walnut")])[0]
    assert [item.key for item in items] == ["walnut", "walnut", "wal", "wal", "empty", "empty"]
    assert [item.score for item in items[4:]] == [0.0, 0.0]


@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_a_cosine_does_not_depend_on_the_length_of_a_vector(tmp_path, scale):
    store = indexed(tmp_path, lambda texts: [[scale * each for each in letters(text)] for text in texts])  # fmt: skip
    put(store, "a", "walnut")
    assert store.run([Search(NS, query="walnut")])[0][0].score == pytest.approx(1)


def test_the_next_process_asks_again_for_a_vector_of_nan(tmp_path):
    def fails_once(texts):
        return [[float("nan")] * 26 if text == "walnut" else letters(text) for text in texts]

    store = indexed(tmp_path, fails_once)
    put(store, "a", "walnut")
    put(store, "b", "pecan")
    again = Embeds()
    item = indexed(tmp_path, again).run([Search(NS, query="walnut")])[0][0]
    assert (item.key, item.score) == ("a", pytest.approx(1))
    assert again.asked == ["walnut", "walnut"]  # the text and the question


def test_a_put_succeeds_if_its_vectors_cannot_be_stored(tmp_path):
    store = indexed(tmp_path, Embeds())
    (tmp_path / ".tomldiary/index").mkdir(parents=True)
    (tmp_path / ".tomldiary/index/alice").write_text("in the way")
    put(store, "a", "walnut")
    put(store, "b", "almond", ttl=5)
    assert found(store, "walnut") == ["a", "b"]


def test_vectors_of_two_models_are_never_mixed(tmp_path):
    pytest.importorskip("numpy", reason='pip install "tomldiary-kit[embeddings]"')

    class Model:
        def __init__(self, sign, **names):
            self.sign = sign
            vars(self).update(names)

        def __call__(self, texts):
            return [[self.sign * number for number in letters(text)] for text in texts]

    for name in ("model", "model_name", "model_id"):
        for sign in (1, -1):
            index = {"dims": 26, "embed": Model(sign, **{name: f"{name} {sign}"})}
            store = DiaryStore(
                Diary(tmp_path, durability="process"), index=index | {"fields": ["text"]}
            )
            store.put(NS, "k", {"text": "walnut"})
            assert store.search(NS, query="walnut")[0].score == pytest.approx(1.0)


def test_vectors_of_two_functions_without_names_are_never_mixed(tmp_path):
    pytest.importorskip("numpy", reason='pip install "tomldiary-kit[embeddings]"')

    def model(sign):
        return lambda texts: [[sign * number for number in letters(text)] for text in texts]

    for embed in (model(1), model(-1), lambda texts: [letters(text + "z") for text in texts]):
        store = DiaryStore(
            Diary(tmp_path, durability="process"),
            index={"dims": 26, "embed": embed, "fields": ["text"]},
        )
        store.put(NS, "k", {"text": "walnut"})
        assert store.search(NS, query="walnut")[0].score == pytest.approx(1.0)
    assert name_of("small") != name_of("large")
    assert name_of(model(1)) == name_of(model(1)) != name_of(model(-1))
    assert name_of(partial(model, 1)) == name_of(partial(model, 1)) != name_of(partial(model, -1))


def test_zero_and_equal_vectors_are_no_error(tmp_path):
    store = indexed(tmp_path, Embeds())
    for key, text in {"a": "123", "b": "!!", "c": "walnut", "d": "walnut"}.items():
        put(store, key, text)
    items = store.run([Search(NS, query="walnut")])[0]
    assert [item.key for item in items] == ["d", "c", "b", "a"]
    assert [item.score for item in items[2:]] == [0.0, 0.0]
    assert len(store.run([Search(NS, query="456")])[0]) == 4


def test_typed_entries_are_found_by_vectors(tmp_path):
    store = indexed(tmp_path, Embeds())
    store.diary.user("alice").upsert_preference("likes", "walnut cake")
    put(store, "a", "pecan pie")
    items = store.run([Search(("alice",), query="walnut cake")])[0]
    assert items[0].namespace == ("alice", "diary", "preferences", "likes")


def test_async_embedding_does_not_hold_the_event_loop(tmp_path):
    waiting = []

    async def embed(texts):
        waiting.append(len(texts))
        await asyncio.sleep(0.02)
        return [letters(text) for text in texts]

    pytest.importorskip("numpy", reason='pip install "tomldiary-kit[embeddings]"')
    store = DiaryStore(tmp_path, index={"dims": 26, "embed": embed, "fields": ["text"]})

    async def run():
        await asyncio.gather(*[store.aput(NS, str(n), {"text": f"walnut {n}"}) for n in range(5)])
        return await store.asearch(NS, query="walnut 3")

    assert len(asyncio.run(run())) == 5
    assert waiting


@pytest.mark.parametrize("holder", ["alice", "bob"])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_search_by_meaning_succeeds_beside_a_transaction(tmp_path, caplog, has_index, holder):
    embed = Embeds()
    diary = Diary(tmp_path, embedder=None if has_index else embed, lock_timeout=0.05)
    pytest.importorskip("numpy", reason='pip install "tomldiary-kit[embeddings]"')
    embedding = Embedding(26, embed, ("text",)) if has_index else None
    store = ItemStore(diary, embedding=embedding)
    ItemStore(Diary(tmp_path)).run([Put(NS, "k", {"text": "pecan"})])
    is_here = holder == "bob"  # a lock of another user could wait for this one
    with (
        (diary if is_here else Diary(tmp_path)).user(holder).transaction(),
        ThreadPoolExecutor() as pool,
    ):
        search = partial(store.run, [Search(NS, query="pecan")])
        [[item]] = search() if is_here else pool.submit(search).result(30)
    assert (item.key, embed.asked.count("pecan"), caplog.text) == ("k", 2, "")
    store.run([Search(NS, query="tart")])
    store.run([Search(NS, query="tart")])
    assert embed.asked.count("pecan") == 3  # now its vector is stored


def test_a_cosine_of_rounded_vectors_is_at_most_1():
    store = ItemStore(
        Diary("memory:"), embedding=Embedding(3, lambda texts: [[1, 1, 4]] * len(texts))
    )
    put(store, "a", "pecan")
    [[found]] = store.run([Search(NS, query="pecan")])
    assert found.score == 1.0


def test_without_numpy_the_error_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtra, match=r"pip install .tomldiary-kit\[embeddings\]"):
        ItemStore(Diary(tmp_path), embedding=Embedding(26, Embeds()))
    monkeypatch.setitem(sys.modules, "wordllama", None)
    with pytest.raises(MissingExtra, match=r"pip install .tomldiary-kit\[embeddings\]"):
        local_embedder()
    assert ItemStore(Diary(tmp_path)).run([Search(NS, query="x")]) == [[]]


def test_the_local_embedder_works_offline(tmp_path):
    pytest.importorskip("wordllama", reason='pip install "tomldiary-kit[embeddings]"')
    index = {"dims": LOCAL_DIMS, "embed": local_embedder(), "fields": ["text"]}
    store = DiaryStore(tmp_path, index=index)
    store.put(NS, "dog", {"text": "My dog sleeps on the sofa."})
    store.put(NS, "tax", {"text": "The tax return is due in May."})
    assert store.search(NS, query="a puppy on the couch")[0].key == "dog"
    assert store.search(NS, query="money owed to the state")[0].key == "tax"


# Filters and paths


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"n": {"$in": [1, "2"]}}, True),
        ({"n": {"$in": []}}, False),
        ({"n": {"$nin": [2]}}, True),
        ({"missing": {"$nin": [2]}}, False),
        ({"missing": {"$ne": 2}}, False),
        ({"missing": None}, False),
        ({"null": None}, True),
        ({"missing": {"$exists": False}}, True),
        ({"null": {"$exists": True}}, True),
        ({"missing": {"$not": {"$eq": 1}}}, True),
        ({"$not": {"n": 1}}, False),
        ({"$and": [{"n": 1}, {"on": True}]}, True),
        ({"$or": [{"n": 2}, {"u.x": 1}]}, True),
        ({"$or": [{"n": 2}, {"u.x": 2}]}, False),
        ({"u": {"x": 1}}, True),
        ({"u": {"$eq": {"x": 1}}}, False),
        ({"u": {"x": {"$gt": 0}, "y": {"z": "d"}}}, True),
        ({"u.y.z": "d"}, True),
        ({"list": {"$eq": [{"on": True, "n": [1]}]}}, True),
        ({"list": {"$eq": [{"on": 1, "n": [1]}]}}, False),
        ({"list": {"$eq": [{"on": True, "n": [True]}]}}, False),
        ({"list": {"$eq": [{"on": True}]}}, False),
        ({"u.y.z.deeper": "d"}, False),
        ({"a.b": "dotted"}, True),
        ({"on": 1}, False),
        ({"n": True}, False),
        ({"day": {"$gt": date(2026, 1, 1)}}, True),
        ({"day": {"$lt": "2026-06"}}, True),
        ({"at": {"$gte": datetime(2026, 5, 1, tzinfo=UTC)}}, True),
        ({"at": {"$gte": datetime(2026, 5, 1, 12)}}, True),  # noqa: DTZ001 - taken for UTC
        ({"at": {"$lt": datetime(2026, 5, 1, tzinfo=UTC)}}, False),
        ({"at": {"$gte": date(2026, 5, 1), "$lt": date(2026, 5, 2)}}, True),
        ({"stored": {"$gte": datetime(2026, 5, 1, tzinfo=UTC)}}, True),
        ({"stored": {"$lt": datetime(2026, 5, 1, 1, tzinfo=UTC)}}, True),
        ({"hour": {"$gt": time(7)}}, True),
        ({"text": {"$gt": time(7)}}, False),
        ({"text": {"$gt": date(2026, 1, 1)}}, False),
        ({"n": {"$gt": "0"}}, False),
    ],
    ids=str,
)
def test_a_filter_matches_values_as_documented(condition, expected):
    value = {
        "n": 1, "on": True, "null": None, "u": {"x": 1, "y": {"z": "d"}}, "a.b": "dotted",
        "a": {"b": "nested"}, "day": "2026-05-01", "at": "2026-05-01T14:00:00Z", "text": "tea",
        "stored": date(2026, 5, 1), "hour": "07:30", "list": [{"on": True, "n": [1]}],
    }  # fmt: skip
    assert compile_filter(condition)(value) is expected


@pytest.mark.parametrize(
    "within",
    [
        lambda inner: {"$not": inner},
        lambda inner: {"$and": [inner]},
        lambda inner: {"n": inner},
        lambda inner: {"n": {"$not": inner}},
    ],
    ids=["not", "and", "table", "field"],
)
def test_a_filter_that_is_nested_too_deep_is_refused(within):
    condition = {"n": 1}
    for _ in range(2000):
        condition = within(condition)
    with pytest.raises(InvalidValue, match="nested deeper than"):
        compile_filter(condition)


@pytest.mark.parametrize("operand", [{1}, [{1}], {"x": {1}}, {"x": [{"y": {1}}]}], ids=str)
def test_a_filter_with_a_value_that_cannot_be_stored_is_refused(operand):
    with pytest.raises(InvalidValue, match="of type set cannot be stored"):
        compile_filter({"n": {"$eq": operand}})


@pytest.mark.parametrize("operator", ["$in", "$nin"])
def test_a_filter_with_many_values_is_fast_and_compares_each_as_eq_does(operator):
    odd = [True, math.nan, None, [1], {"x": 1.0}, "2", datetime(2026, 1, 2, tzinfo=UTC)]
    is_met = compile_filter({"n": {operator: [*odd, *map(float, range(100, 30_000))]}})
    found = [1, 1.0, math.nan, False, "1", *odd, [True], {"x": 1}, 99, 100, "100"]
    equal = [any(compile_filter({"n": each})({"n": one}) for each in [*odd, 100]) for one in found]
    assert [is_met({"n": one}) for one in found] == [one is (operator == "$in") for one in equal]
    began = process_time()
    assert not any(is_met({"n": number}) is (operator == "$in") for number in range(-500, 0))
    assert process_time() - began < 0.5
    start = datetime(2026, 1, 2, tzinfo=UTC)
    is_met = compile_filter({"n": {operator: [start + timedelta(n) for n in range(30_000)]}})
    began = process_time()
    assert all(is_met({"n": start - timedelta(n)}) is (operator == "$nin") for n in range(1, 500))
    assert process_time() - began < 0.5


@pytest.mark.parametrize("operator", ["$eq", "$gte", "$lte", "$in"])
def test_a_time_without_a_zone_is_compared_as_utc(operator):
    times = datetime(2026, 1, 2, 3), datetime(2026, 1, 2, 3, tzinfo=UTC)  # noqa: DTZ001 - it is the question
    for stored in times:
        for asked in times:
            operand = [asked] if operator == "$in" else asked
            assert compile_filter({"at": {operator: operand}})({"at": stored})
            assert not compile_filter({"at": {"$ne": asked}})({"at": stored})


@pytest.mark.parametrize(
    "path", ["a..b", "[", "a[", "{", "{}", "a{b", "]", "a[1", "[*", ".", "*.*.*"]
)
def test_an_invalid_json_path_is_no_error(path):
    assert isinstance(texts_at({"a": {"b": 1}, "c": [1]}, path), list)
