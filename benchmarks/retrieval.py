"""How often a question finds the text that answers it: recall and the store's search, by words and with vectors.

    python benchmarks/retrieval.py [--data DIR]
    python benchmarks/retrieval.py --costs 1000 10000

LoCoMo: each turn of a conversation is an episode of recall, or an item of the store that was put in its session.
PrefEval: each stated preference is an entry of one user, and the question is one for which it matters.
recall@N is the share of a question's gold texts among the first N, averaged over the questions.

SQLite FTS5 with Porter stemming runs beside them over the same texts, with and without function words, and so do the
cosine of the local embedder alone and the reciprocal ranks of both. Both data
sets are CC BY-NC 4.0 and not part of this repository; get them from snap-research/locomo and
amazon-science/PrefEval, and name their folder in --data or $TOMLDIARY_BENCH_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sqlite3
import statistics
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tomldiary import Diary
from tomldiary.retrieval.embedders import local_embedder
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore
from tomldiary.text.words import asked_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ENDINGS = ("ler", "ton", "mish", "rend", "vak", "zor", "pil", "gan", "dus", "fet")
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
        telling = [word.shown for word in asked_words(question) if not word.says_little]
        words = " OR ".join(f'"{word}"' for word in (asked if all_words else telling or asked))
        sql = "SELECT id FROM t WHERE t MATCH ? ORDER BY bm25(t) LIMIT ?"
        return [row[0] for row in database.execute(sql, (words, limit))]

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


def costs(size: int) -> None:
    """Print what a query costs among so many made-up texts, and what it costs after one put."""
    choose = random.Random(1)  # noqa: S311 - made-up texts, the same each time
    words = [f"{one}{two}{end}" for one in "bcdfgklm" for two in "aeiou" for end in _ENDINGS]
    rarity = [1 / (rank + 1) for rank in range(len(words))]

    def text(length: int) -> str:
        return " ".join(choose.choices(words, rarity, k=length))

    texts = {f"k{number}": ("", text(20)) for number in range(size)}
    full_text = plain(texts, all_words=True)
    found: dict[str, list[float]] = {"FTS5": [], "search": [], "search after a put": []}
    store, namespace = ItemStore(Diary("memory:")), ("alice", "turns")
    for start in range(0, size, 1000):
        keys = list(texts)[start : start + 1000]
        store.run([Put(namespace, key, {"text": texts[key][1]}) for key in keys])

    def timed(name: str, run: Callable[[], Any]) -> None:
        start = time.process_time()
        run()
        found[name].append((time.process_time() - start) * 1e3)

    store.run([Search(namespace, query="warm up", limit=10)])
    for number in range(25):
        question = text(6)
        search = Search(namespace, query=question, limit=10)
        timed("FTS5", lambda question=question: full_text(question, 10))
        timed("search", lambda search=search: store.run([search]))
        store.run([Put(namespace, f"k{number}", {"text": text(20)})])
        timed("search after a put", lambda search=search: store.run([search]))
    medians = ", ".join(f"{name} {statistics.median(each):.2f}" for name, each in found.items())
    print(f"{size} texts, median ms of processor time: {medians}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("TOMLDIARY_BENCH_DATA", "data"))
    parser.add_argument("--costs", type=int, nargs="*", help="numbers of texts; needs no data")
    options = parser.parse_args()
    if options.costs is not None:
        for size in options.costs or (1_000, 10_000):
            costs(size)
        return
    for title, cases in (
        ("LoCoMo", list(locomo(options.data / "locomo"))),
        ("PrefEval", list(prefeval(options.data / "prefeval"))),
    ):
        size = statistics.median(len(texts) for texts, _ in cases)
        print(f"{title}: {len(cases)} collections of about {size:.0f} texts")
        for name, make in (
            ("FTS5 porter", lambda texts: plain(texts, all_words=False)),
            ("with all words", lambda texts: plain(texts, all_words=True)),
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
