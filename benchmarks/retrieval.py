"""Measure how often a question finds the text that answers it: recall and the store's search, by words and vectors.

    python benchmarks/retrieval.py [--data DIR]
    python benchmarks/retrieval.py --costs 1000 10000 100000 [--data DIR]

In LoCoMo, each turn of a conversation is an episode for recall, or an item of the store in the session of the turn.
In PrefEval, each stated preference is an entry of one user, and the question is one for which the preference matters.
recall@N is the share of a question's gold texts among the first N results, averaged over the questions.

The same texts are also searched with SQLite FTS5 with Porter stemming (with and without function words), with BM25 over
stems, with only the cosine of the local embedder, and with the reciprocal ranks of FTS5 and cosine. --costs prints
processor time and memory for given numbers of texts. The texts are LoCoMo's turns and copies with a fifth of their
words exchanged, or generated texts without --data. Both data sets are CC BY-NC 4.0 and not part of this repository.
Download them from snap-research/locomo and amazon-science/PrefEval, and set their folder with --data or
$TOMLDIARY_BENCH_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sqlite3
import statistics
import tempfile
import time
import tracemalloc
from collections import Counter
from importlib import import_module
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tomldiary import Diary
from tomldiary.retrieval.embedders import local_embedder
from tomldiary.retrieval.lexical_index import LexicalIndex
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore
from tomldiary.text.words import asked_words, porter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WORDS = 20_000  # the number of different generated words, as in a long conversation
_QUERIES = 25
Texts = dict[str, tuple[str, str]]
"""Session and text by id."""
Case = tuple[Texts, list[tuple[str, set[str]]]]
"""The texts of a user, and questions with the ids of their gold texts."""


def locomo(folder: Path) -> Iterator[Case]:
    for sample in json.loads((folder / "locomo-dev.json").read_text("utf-8")):
        turns: Texts = {}
        for name, session in sample["conversation"].items():
            if re.fullmatch(r"session_\d+", name):
                for turn in session:
                    caption = f" {turn['blip_caption']}" if turn.get("blip_caption") else ""
                    turns[turn["dia_id"]] = name, f"{turn['speaker']}: {turn['text']}{caption}"
        asked: list[tuple[str, set[str]]] = []
        for question in sample["qa"]:
            found = {
                re.sub(r"D0*(\d+):0*(\d+)", r"D\1:\2", each)
                for text in question.get("evidence") or []
                for each in re.findall(r"D\d+:\d+", text)
            }
            if gold := found & turns.keys():
                asked.append((question["question"], gold))
        yield turns, asked


def prefeval(folder: Path) -> Iterator[Case]:
    texts: Texts = {}
    asked: list[tuple[str, set[str]]] = []
    for path in sorted(folder.glob("*.json")):
        for number, row in enumerate(json.loads(path.read_text("utf-8"))):
            key = f"{path.stem} {number}"
            texts[key] = "", row["preference"]
            asked.append((row["question"], {key}))
    yield texts, asked


def plain(texts: Texts, *, all_words: bool) -> Callable[[str, int], list[str]]:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE t USING fts5(id UNINDEXED, body, tokenize='porter')")
    database.executemany(
        "INSERT INTO t VALUES (?, ?)", [(key, text) for key, (_, text) in texts.items()]
    )

    def search(question: str, limit: int) -> list[str]:
        asked = re.findall(r"\w+", question)
        telling = [word.shown for word in asked_words(question) if not word.is_common]
        words = " OR ".join(f'"{word}"' for word in (asked if all_words else telling or asked))
        sql = "SELECT id FROM t WHERE t MATCH ? ORDER BY bm25(t) LIMIT ?"
        return [row[0] for row in database.execute(sql, (words, limit))]

    return search


def okapi(texts: Texts) -> Callable[[str, int], list[str]]:
    """BM25 (k1 1.2, b .75) over Porter's stems of all words."""

    def words(text: str) -> list[str]:
        return [porter(word) for word in re.findall(r"\w+", text.lower())]

    having: dict[str, dict[str, int]] = {}
    lengths: dict[str, int] = {}
    for key, (_, text) in texts.items():
        counts = Counter(words(text))
        lengths[key] = counts.total()
        for word, count in counts.items():
            having.setdefault(word, {})[key] = count
    average = sum(lengths.values()) / len(lengths)

    def search(question: str, limit: int) -> list[str]:
        scores: dict[str, float] = {}
        for word in words(question):
            found = having.get(word, {})
            weight = log(1 + (len(texts) - len(found) + 0.5) / (len(found) + 0.5))
            for key, count in found.items():
                damping = 1.2 * (0.25 + 0.75 * lengths[key] / average)
                scores[key] = scores.get(key, 0.0) + weight * 2.2 * count / (count + damping)
        return sorted(scores, key=lambda key: -scores[key])[:limit]

    return search


def stored(texts: Texts) -> Callable[[str, int], list[str]]:
    store = ItemStore(Diary("memory:"))
    for session in dict.fromkeys(session for session, _ in texts.values()):
        puts = [
            Put(("alice", "turns"), key, {"text": text})
            for key, (mine, text) in texts.items()
            if mine == session
        ]
        store.run(puts, session=session)

    def search(question: str, limit: int) -> list[str]:
        found: Any = store.run([Search(("alice", "turns"), query=question, limit=limit)])[0]
        return [item.key for item in found]

    return search


def recalled(texts: Texts, embedder: str | None = None) -> Callable[[str, int], list[str]]:
    diary = Diary("memory:", max_prefs_per_category=100_000, embedder=embedder)
    alice, names = diary.user("alice"), {}
    with alice.transaction():
        for key, (session, text) in texts.items():
            if session:
                name = alice.episodes.add(text, "", session_id=session)
            else:
                number, _ = alice.upsert_preference("likes", text)
                name = f"likes/{number}"
            names[name] = key

    def search(question: str, limit: int) -> list[str]:
        return [names[hit.key] for hit in alice.recall(question, limit)]

    return search


def dense(texts: Texts) -> Callable[[str, int], list[str]]:
    numpy, embed = import_module("numpy"), local_embedder()
    keys = list(texts)

    def unit(several: list[str]) -> Any:
        found = numpy.asarray(embed(several), "float32")
        return found / numpy.maximum(numpy.linalg.norm(found, axis=1, keepdims=True), 1e-9)

    matrix = unit([text for _, text in texts.values()])

    def search(question: str, limit: int) -> list[str]:
        order = numpy.argsort(-(matrix @ unit([question])[0]), kind="stable")[:limit]
        return [keys[at] for at in order]

    return search


def fused_by_rank(texts: Texts) -> Callable[[str, int], list[str]]:
    searches = plain(texts, all_words=False), dense(texts)

    def search(question: str, limit: int) -> list[str]:
        scores: dict[str, float] = {}
        for each in searches:
            for rank, key in enumerate(each(question, 100)):
                scores[key] = scores.get(key, 0.0) + 1 / (60 + rank)
        return sorted(scores, key=lambda key: -scores[key])[:limit]

    return search


def measured(cases: list[Case], make: Callable[[Texts], Any]) -> dict[str, float]:
    at_5: list[float] = []
    at_10: list[float] = []
    times: list[float] = []
    for texts, asked in cases:
        search = make(texts)
        search("warm up", 1)
        for question, gold in asked:
            start = time.perf_counter()
            found = search(question, 10)
            times.append((time.perf_counter() - start) * 1e3)
            at_5.append(len(gold & set(found[:5])) / len(gold))
            at_10.append(len(gold & set(found)) / len(gold))
    return {
        "recall@5": statistics.mean(at_5),
        "recall@10": statistics.mean(at_10),
        "median ms": statistics.median(times),
        "questions": len(at_5),
    }


def many(size: int, folder: Path | None) -> tuple[list[str], list[str]]:
    """Return the texts, some texts to put later, and questions."""
    choose = random.Random(1)  # noqa: S311 - a fixed seed, for the same texts in each run
    if folder is not None:
        cases = list(locomo(folder / "locomo"))
        turns = [text for texts, _ in cases for _, text in texts.values()]
        questions = [question for _, asked in cases for question, _ in asked]
        words = [word for text in turns for word in text.split()]
        texts = turns[:size]
        while len(texts) < size + _QUERIES:
            old = turns[len(texts) % len(turns)].split()
            new = (choose.choice(words) if choose.random() < 1 / 5 else word for word in old)
            texts.append(" ".join(new))
        return texts, choose.sample(questions, _QUERIES)
    words = [
        f"w{number:x}".translate(str.maketrans("0123456789", "ghijklmnop"))
        for number in range(_WORDS)
    ]
    rarity = [1 / (rank + 1) for rank in range(_WORDS)]
    texts = [" ".join(choose.choices(words, rarity, k=20)) for _ in range(size + _QUERIES)]
    return texts, [" ".join(choose.choices(words, rarity, k=6)) for _ in range(_QUERIES)]


class _Text:
    """A text for an index of words."""

    searched_names = ""
    day = None
    turn = None

    def __init__(self, text: str) -> None:
        self.key = self.searched_text = text
        self.order = (text,)


def memory(texts: list[str]) -> float:
    """Return the memory of the index of words in bytes for each text."""
    given = [_Text(text) for text in texts]
    tracemalloc.start()
    index: LexicalIndex[Any] = LexicalIndex()
    for each in given:
        index.add(each)
    found = tracemalloc.get_traced_memory()[0] / len(texts)
    tracemalloc.stop()
    return found


def costs(size: int, folder: Path | None) -> None:
    """Print the cost of searches in a number of texts, and the cost of a search after one put."""
    texts, questions = many(size, folder)
    texts, later = texts[:size], texts[size:]
    found: dict[str, list[float]] = {}

    def timed(name: str, run: Callable[[], Any]) -> None:
        start = time.process_time()
        run()
        found.setdefault(name, []).append((time.process_time() - start) * 1e3)

    numbered = {f"k{number}": ("", text) for number, text in enumerate(texts)}
    baselines = {"FTS5 porter": plain(numbered, all_words=True), "numpy, cosine": dense(numbered)}
    for name, search in baselines.items():
        for question in questions:
            timed(name, lambda search=search, question=question: search(question, 10))
    namespace = ("alice", "turns")
    with tempfile.TemporaryDirectory() as place:
        for embedder, title in ((None, "search"), ("local", "search with vectors")):
            store = ItemStore(Diary(place, embedder=embedder, durability="process"))
            if embedder is None:
                for start in range(0, size, 1000):
                    keys = list(numbered)[start : start + 1000]
                    store.run([Put(namespace, key, {"text": numbered[key][1]}) for key in keys])
            else:
                store.run([Search(namespace, query="embed all", limit=10)])
            opened = ItemStore(Diary(place, embedder=embedder, durability="process"))
            opened.run([Search(namespace, limit=1)])  # reads the documents
            first = Search(namespace, query=questions[0], limit=10)
            timed(f"{title}, the first one", lambda opened=opened, first=first: opened.run([first]))
            for number, question in enumerate(questions):
                search = Search(namespace, query=question, limit=10)
                timed(title, lambda opened=opened, search=search: opened.run([search]))
                opened.run([Put(namespace, f"k{number}", {"text": later[number]})])
                timed(
                    f"{title}, after a put",
                    lambda opened=opened, search=search: opened.run([search]),
                )
    alice = Diary("memory:", max_prefs_per_category=size).user("alice")
    for start in range(0, min(size, 10_000), 1000):
        with alice.transaction():
            for text in texts[start : start + 1000]:
                alice.upsert_preference("likes", text)
    alice.render(questions[0])
    for question in questions:
        timed("render(query), 10,000 at most", lambda question=question: alice.render(question))
    print(f"{size} texts, ms of processor time (median, 95th percentile)")
    for name, each in found.items():
        several = f" {sorted(each)[int(len(each) * 0.95)]:9.2f}" if len(each) > 1 else ""
        print(f"  {name:36} {statistics.median(each):9.2f}{several}")
    print(f"  {'index of words, bytes a text':36} {memory(texts):9.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("TOMLDIARY_BENCH_DATA"))
    parser.add_argument("--costs", type=int, nargs="*", help="numbers of texts; needs no data")
    options = parser.parse_args()
    given = options.data
    if options.costs is not None:
        for size in options.costs or (1_000, 10_000, 100_000):
            costs(size, given)
        return
    if given is None:
        parser.error("name the folder of the data sets with --data")
    for title, cases in (
        ("LoCoMo", list(locomo(given / "locomo"))),
        ("PrefEval", list(prefeval(given / "prefeval"))),
    ):
        size = statistics.median(len(texts) for texts, _ in cases)
        print(f"{title}: {len(cases)} collections of about {size:.0f} texts")
        for name, make in (
            ("FTS5 porter", lambda texts: plain(texts, all_words=False)),
            ("with all words", lambda texts: plain(texts, all_words=True)),
            ("BM25 of stems", okapi),
            ("store.search", stored),
            ("alice.recall", recalled),
            ("  with vectors", lambda texts: recalled(texts, "local")),
            ("dense, cosine", dense),
            ("RRF of both", fused_by_rank),
        ):
            row = measured(cases, make)
            print(f"  {name:16}" + "".join(f"{key} {value:.3f}  " for key, value in row.items()))


if __name__ == "__main__":
    main()
