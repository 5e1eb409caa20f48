"""Recall: ranks as the store does, and indexes only what changed."""

from __future__ import annotations

import gc
import json
import random
import sys
import threading
import tracemalloc
from datetime import UTC, date, datetime
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from tomldiary import Diary
from tomldiary.agents.verbs import MemoryVerbs
from tomldiary.cli.app import app
from tomldiary.entries.kinds.items import ItemKind
from tomldiary.retrieval.lexical_index import LexicalIndex, matches_of, question_of
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore
from tomldiary.text.words import asked_words
from tomldiary_langchain import DiaryRetriever, diary_tools
from tomldiary_langgraph import DiaryStore


def test_recall_scores_entries_as_the_store_does():
    numbers = random.Random(3)
    words = [f"w{n}" for n in range(60)]
    diary = Diary("memory:")
    alice, store = diary.user("alice"), ItemStore(diary)
    texts = [" ".join(numbers.choices(words, k=numbers.randint(3, 40))) for _ in range(200)]
    with alice.transaction():
        for number, text in enumerate(texts):
            alice.add_episode(text, "", session_id=f"s{number}")
    store.run([Put(("alice", "n"), f"{n}", {"said": text}) for n, text in enumerate(texts)])
    for _ in range(20):
        query = " ".join(numbers.sample(words, 3))
        items = store.run([Search(("alice", "n"), query=query, limit=10)])[0]
        hits = alice.recall(query, 10, kinds=["episodes"])
        assert [hit.score for hit in hits] == [item.score for item in items]
        assert {hit.text.strip() for hit in hits} & {item.value["said"] for item in items}


TEXTS = [
    "Drinks black tea with lemon in the morning", "Runs marathons in the spring", "Tea at five, with milk",
    "Keeps two cats, Miro and Luna", "Is allergic to walnuts", "Baked a walnut cake for the neighbours",
    "Lives near the old harbour of Oslo", "Plays chess on Thursdays", "Bought a 500 € camera in Oslo",
    "Reads crime novels on the train", "Learns Norwegian with a neighbour", "Prefers trains to planes",
    "The cat of the neighbours is called Tea", "Wakes at 7:30 and runs before breakfast",
]  # fmt: skip
QUESTIONS = [
    "Which tea does she drink in the mornings?", "What does she have against walnuts?", "cats",
    "How did the neighbour get his cake?", "When does she run?", "camera in Oslo", "train or plane?",
    "Norwegan", "alergic to wallnuts", "a mornning at the harbor",
]  # fmt: skip


def doors(folder):
    """Each way to search the same texts: what it returns for a question, best first."""
    diary = Diary(folder, durability="process")
    alice, name = diary.user("alice"), ("alice", "notes")
    with alice.transaction():
        for number, text in enumerate(TEXTS):
            alice.upsert_preference("likes", text, id=f"pref{number + 1:03}")
    store = DiaryStore(diary)
    for number, text in enumerate(TEXTS):
        store.put(name, f"{number}", {"text": text})
    typed = ("alice", "diary", "preferences", "likes")
    tool = {tool.name: tool for tool in diary_tools(diary, user_id="alice")}["recall"]
    retriever = DiaryRetriever(diary=diary, user_id="alice", kinds=["preferences"], k=20)
    items = DiaryRetriever(diary=diary, user_id="alice", kinds=[], items=("notes",), k=20)
    toolset = MemoryVerbs(alice, "s1")

    def stored(namespace):
        return lambda query: [
            item.value["text"]
            for item in store.search(namespace, query=query, limit=20)
            if item.score is not None
        ]

    def shown(text):
        lines = [line[2:] for line in text.splitlines() if line.startswith("- ")]
        return [line.split(": ", 1)[1].rpartition(" (")[0] for line in lines]  # without the day

    def printed(query, kind):
        options = ["--user", "alice", "--path", str(folder), "--limit", "40", "--json"]
        rows = json.loads(CliRunner().invoke(app, ["search", query, *options]).stdout)
        return [row["text"] for row in rows if row["kind"] == kind]

    return {
        "recall": lambda query: [hit.text for hit in alice.recall(query, 20, kinds=["preferences"])],
        "recall of items": lambda query: [hit.text for hit in alice.recall(query, 20, kinds=["items"])],
        "store.search": stored(name),
        "store.search of typed entries": stored(typed),
        "retriever": lambda query: [each.page_content for each in retriever.invoke(query)],
        "retriever of items": lambda query: [
            json.loads(each.page_content)["text"] if each.page_content[0] == "{" else each.page_content
            for each in items.invoke(query)
        ],
        "tool": lambda query: shown(tool.invoke({"query": query, "limit": 20})),
        "verb": lambda query: shown(toolset.recall(query, 20)),
        "recall of all kinds": lambda query: [hit.text for hit in alice.recall(query, 20)],
        "command line": lambda query: printed(query, "preferences"),
        "command line, items": lambda query: printed(query, "items"),
    }  # fmt: skip


def test_every_door_returns_the_same_texts_in_the_same_order(tmp_path):
    opened = doors(tmp_path / "m")
    for question in QUESTIONS:
        found = {name: search(question) for name, search in opened.items()}
        assert len(found["recall"]) > 0
        whole = found.pop("recall of all kinds")
        assert found.pop("tool") == found.pop("verb") == whole
        assert list(dict.fromkeys(whole)) == found["recall"][: len(set(whole))]
        assert found == dict.fromkeys(found, found["recall"]), question


def test_of_equal_matches_the_newest_is_first_in_recall_and_in_the_store():
    diary = Diary("memory:", max_prefs_per_category=100)
    alice, store = diary.user("alice"), DiaryStore(diary)
    names = [f"c{number:02}" for number in range(50)]  # more than are scored exactly
    for name in names:
        alice.upsert_preference("likes", f"Her favourite color is {name}", id=name)
    hits = alice.recall("What is her favourite color?", None)
    namespace = ("alice", "diary", "preferences", "likes")
    items = store.search(namespace, query="favourite color", limit=100)
    assert [hit.key for hit in hits] == [f"likes/{name}" for name in reversed(names)]
    assert [item.key for item in items] == names[::-1]


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("What did I say on 2026-10-13?", ["b", "c"]),  # the day before the rest of its month
        ("what happened on October 13th, 2026", ["b", "c"]),
        ("Was habe ich am 13. Oktober gesagt?", ["b", "a"]),  # of any year
        ("what did I do in June", ["d"]),
        ("qu'ai-je dit le 1er fevrier ?", ["e"]),
        ("qu'ai-je dit le \uff11 fe\u0301vrier ?", ["e"]),
        ("what did I say on 13.10.2026, please", ["b", "c"]),
        ("what did I say on 10/13/2026", ["b", "c"]),
        ("what did I say on 6/2/2026", ["d", "e"]),  # either day
        ("2026年10月13日には", ["b", "c"]),
        ("Что я говорил 13 октября?", ["b", "a"]),
        ("version 192.168.10.2026", []),
        ("version 13.10.2026.4 and 2026.10.13.1", []),
        ("What does June like?", []),
        ("What did I say on 2026-11-13?", []),
    ],
)
def test_a_question_that_names_a_day_finds_what_was_said_then(question, found):
    diary = Diary("memory:")
    alice = diary.user("alice")
    days = {"a": (2025, 10, 13), "b": (2026, 10, 13), "c": (2026, 10, 20), "d": (2026, 6, 2)}
    days["e"] = (2026, 2, 1)
    for text, day in days.items():
        alice.episodes.add(text, "", session_id=text, now=datetime(*day, tzinfo=UTC))
    assert sorted(hit.text.strip() for hit in alice.recall(question)) == sorted(found)
    store = DiaryStore(diary)
    items = store.search(("alice", "diary", "episodes"), query=question)
    assert [item.value["input"] for item in items if item.score is not None] == found


def test_an_item_is_found_by_the_day_of_its_put_unless_it_is_not_indexed():
    store = DiaryStore("memory:")
    store.put(("alice", "n"), "k", {"text": "tea"})
    store.put(("alice", "n"), "hidden", {"text": "tea"}, index=False)
    query = f"what did I note on {store.get(('alice', 'n'), 'k').updated_at:%Y-%m-%d}"
    items = store.search(("alice", "n"), query=query)
    assert [item.key for item in items if item.score is not None] == ["k"]


def test_an_item_without_times_has_no_day(tmp_path):
    store = DiaryStore(Diary(tmp_path))
    store.put(("alice", "n"), "k", {"text": "tea"})
    [file] = tmp_path.rglob("items/*.toml")
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line for line in lines if line[:3] not in {"_cr", "_up"}))
    [item] = store.search(("alice", "n"), query="what did I note on 1970-01-01")
    assert (item.updated_at.year, item.score) == (1970, None)


def test_a_write_indexes_only_the_changed_entry():
    alice = Diary("memory:").user("alice")
    for n in range(20):
        alice.upsert_preference("likes", f"tea number {n}")
        alice.add_episode(f"cup {n}", "ok", session_id="s1")
    assert alice.recall("tea cup")
    indexed = []

    def note(frame, event, _):
        if event == "call" and frame.f_code is LexicalIndex.add.__code__:
            indexed.append(frame.f_locals["entry"].key)

    alice.upsert_preference("likes", "green tea of the morning")
    sys.setprofile(note)
    try:
        assert alice.recall("green")[0].text == "green tea of the morning"
    finally:
        sys.setprofile(None)
    assert indexed == ["likes/pref021"]


def test_recall_reads_only_the_documents_of_the_kinds_asked_for(monkeypatch):
    diary = Diary("memory:")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    alice.add_episode("tea", "ok", session_id="s1")
    read = []
    document = diary.engine.document
    monkeypatch.setattr(
        diary.engine, "document", lambda user, kind: read.append(kind) or document(user, kind)
    )
    assert [hit.kind for hit in alice.recall("tea", kinds=["preferences"])] == ["preferences"]
    assert read == ["preferences"]


def test_recalls_of_a_growing_memory_keep_one_kind_for_each_document():
    def kinds():
        gc.collect()
        return sum(type(each) is ItemKind for each in gc.get_objects())

    diary = Diary("memory:")
    alice, store, before, rounds = diary.user("alice"), ItemStore(diary), kinds(), 20
    for number in range(rounds):
        store.run([Put(("alice", f"n{number}"), "k", {"text": "tea"})])
        alice.recall("tea")
        alice.render("tea")
    assert kinds() - before <= 3 * rounds


def test_recall_finds_no_entry_of_a_transaction_that_failed():
    alice = Diary("memory:").user("alice")
    alice.upsert_preference("likes", "green tea")

    def fail():
        with alice.transaction():
            alice.upsert_preference("likes", "black tea")
            assert {hit.text for hit in alice.recall("tea")} == {"green tea", "black tea"}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [hit.text for hit in alice.recall("tea")] == ["green tea"]


def test_a_search_beside_puts_repeats_nothing_and_misses_no_acknowledged_item():
    store, namespace = ItemStore(Diary("memory:")), ("alice", "notes")
    acknowledged = []

    def write():
        for number in range(300):
            store.run([Put(namespace, f"k{number:04}", {"text": f"tea of day {number}"})])
            acknowledged.append(f"k{number:04}")

    writer = threading.Thread(target=write)
    writer.start()
    searches = 0
    while writer.is_alive() or not searches:
        before = list(acknowledged)
        found = store.run([Search(namespace, query="tea", limit=2000)])[0]
        keys = [item.key for item in found if item.score is not None]
        assert len(keys) == len(set(keys))
        assert set(before) <= set(keys)
        searches += 1
    writer.join()
    assert len(store.run([Search(namespace, query="tea", limit=2000)])[0]) == 300


class Searched(NamedTuple):
    """A text as an index sees it."""

    searched_text: str
    searched_names: str = ""
    day: date | None = None
    order: tuple[()] = ()
    turn: tuple[str, str] | None = None


def test_a_day_of_no_entry_changes_no_score():
    index = LexicalIndex()
    index.add(Searched("tea in october 2026"))
    index.add(Searched("coffee"))
    asked = question_of("tea in October 2026", [index])
    assert [word.shown for word, _ in asked.words] == ["tea", "in", "october", "2026"]


def test_a_day_and_its_month_do_not_count_as_adjacent_words():
    index = LexicalIndex()
    index.add(Searched("tea", day=date(2026, 10, 13)))
    index.add(Searched("coffee"))
    asked = question_of("tea on 2026-10-13", [index])
    assert index.matches(asked).scored == index.matches(asked._replace(pairs=[])).scored


def test_many_collections_have_at_most_four_times_the_exact_scores_of_one():
    whole, parts = LexicalIndex(), [LexicalIndex() for _ in range(30)]
    for number in range(600):
        text = Searched(f"walnut number{number}")
        whole.add(text)
        parts[number % 30].add(text)
    found = matches_of(question_of("walnut", parts), parts)
    alone = whole.matches(question_of("walnut", [whole]))
    assert sum(len(each.scored) for each in found) <= 4 * len(alone.scored) < 600


def test_an_index_that_lost_most_of_its_entries_frees_their_memory():
    words = [" ".join(f"w{(37 * n + 7 * k) % 200}" for k in range(40)) for n in range(700)]
    index, texts = (
        LexicalIndex(),
        [Searched(f"walnut {text} number{n}") for n, text in enumerate(words)],
    )
    tracemalloc.start()
    try:
        for text in texts:
            index.add(text)
        full, _ = tracemalloc.get_traced_memory()
        for text in texts[:-1]:
            index.remove(text)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 0.6 * full
    assert index.matches(question_of("walnut", [index])).scored.keys() == {texts[-1]}


def test_a_removed_turn_raises_the_score_of_no_turn_beside_it():
    turns = [
        Searched(text, turn=("s", place)) for place, text in enumerate(["walnut", "cake", "tea"])
    ]
    used, fresh = LexicalIndex(), LexicalIndex()
    for turn in turns:
        used.add(turn)
    used.remove(turns[1])
    for turn in (turns[0], turns[2]):
        fresh.add(turn)
    scores = [index.matches(question_of("walnut cake", [index])).scored for index in (used, fresh)]
    assert scores[0] == scores[1] != {}


def test_a_question_of_very_many_words_is_searched_by_the_rarest():
    index = LexicalIndex()
    texts = [Searched(f"walnut word{n}") for n in range(100)]
    for text in texts:
        index.add(text)
    asked = question_of(" ".join(["walnut", *(f"word{n}" for n in range(100))]), [index])
    assert len(asked.words) < 100
    assert "walnut" not in [word.shown for word, _ in asked.words]


def test_a_question_that_names_the_user_is_searched_by_its_other_words():
    alice = Diary("memory:").user("alice")
    alice.upsert_preference("likes", "dark tea")
    alice.upsert_preference("allergies", "walnuts")

    assert [hit.text for hit in alice.recall("What does the user like?")] == ["dark tea"]
    assert alice.recall("What does the user drink?") == []


def test_a_german_question_that_names_the_user_is_searched_in_german():
    alice = Diary("memory:").user("alice")
    alice.upsert_preference("likes", "mag Tee")
    alice.upsert_preference("likes", "der Kaffee von Dallmayr")

    assert [hit.text for hit in alice.recall("Was mag der User?")] == ["mag Tee"]


def test_a_compound_in_each_entry_scores_at_least_as_its_part():
    alice = Diary("memory:").user("alice")
    alice.upsert_preference("likes", "oat-milk")
    whole, part = (alice.recall(query)[0] for query in ("oat-milk", "oat"))
    assert whole.score >= part.score


def test_of_a_very_long_question_the_start_and_the_end_are_read():
    filler = " ".join(f"word{n}" for n in range(2_000))
    asked = asked_words(f"walnut {filler} quince {filler} cherry")
    shown = {word.shown for word in asked}
    assert {"walnut", "cherry"} <= shown
    assert "quince" not in shown


@pytest.mark.parametrize("is_store", [False, True])
def test_a_search_after_an_interrupted_one_finds_all(is_store):
    diary = Diary("memory:", agent="rules")
    alice, store = diary.user("alice"), DiaryStore(diary)
    alice.upsert_preference("likes", "tea", id="tea")
    store.put(("alice", "x"), "tea", {"text": "tea"})

    def found():
        if is_store:
            return [item.key for item in store.search(("alice", "x"), query="tea")]
        return [hit.key for hit in alice.recall("tea", kinds=["preferences"])]

    key = found()
    alice.upsert_preference("likes", "green tea", id="tea")
    store.put(("alice", "x"), "tea", {"text": "green tea"})

    def interrupt(frame, *_):
        if frame.f_code is LexicalIndex.add.__code__:
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            found()
    finally:
        sys.setprofile(None)
    assert found() == key


def test_a_document_added_by_another_process_is_found_at_once(tmp_path):
    alice = Diary(tmp_path, durability="process").user("alice")
    alice.upsert_preference("likes", "green tea")
    assert len(alice.recall("tea")) == 1
    ItemStore(Diary(tmp_path, durability="process")).run([Put(("alice", "n"), "k", {"a": "tea"})])
    assert len(alice.recall("tea")) == 2
