"""How often a question finds the turn that answers it, without an embedder: the store's search and recall.

    python benchmarks/retrieval.py [--data DIR] [--limit 10]

LoCoMo: each turn of a conversation is an item of the store and an episode of recall; recall@N is the
share of a question's gold turns among the first N, averaged over the questions. PrefEval: each stated
preference of a topic is one entry, and the question is one for which it matters.
The store fills its answer up with the newest items that do not match; recall does not.

SQLite FTS5 with Porter stemming runs beside them over the same texts. It is asked for any of the
question's words, with and without the most common ones. Both data sets are CC BY-NC 4.0 and not part of
this repository; get them from snap-research/locomo and amazon-science/PrefEval, and name their folder in
--data or $TOMLDIARY_BENCH_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph.store.base import PutOp

from tomldiary import Diary
from tomldiary.retrieval.lexical_index import query_words
from tomldiary_langgraph import DiaryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Case = tuple[str, dict[str, str], list[tuple[str, set[str]]]]
"""A collection's name, its texts by id, and questions with the ids of their gold texts."""


def locomo(folder: Path) -> Iterator[Case]:
    for sample in json.loads((folder / "locomo-dev.json").read_text("utf-8")):
        turns: dict[str, str] = {}
        for name, session in sample["conversation"].items():
            if re.fullmatch(r"session_\d+", name):
                for turn in session:
                    caption = f" {turn['blip_caption']}" if turn.get("blip_caption") else ""
                    turns[turn["dia_id"]] = f"{turn['speaker']}: {turn['text']}{caption}"
        asked: list[tuple[str, set[str]]] = []
        for question in sample["qa"]:
            found = {
                re.sub(r"D0*(\d+):0*(\d+)", r"D\1:\2", each)
                for text in question.get("evidence") or []
                for each in re.findall(r"D\d+:\d+", text)
            }
            if gold := found & turns.keys():
                asked.append((question["question"], gold))
        yield str(sample["sample_id"]), turns, asked


def prefeval(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("*.json")):
        rows = json.loads(path.read_text("utf-8"))
        texts = {str(number): row["preference"] for number, row in enumerate(rows)}
        yield path.stem, texts, [(row["question"], {str(n)}) for n, row in enumerate(rows)]


def plain(texts: dict[str, str], *, all_words: bool) -> Callable[[str, int], list[str]]:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE t USING fts5(id UNINDEXED, body, tokenize='porter')")
    database.executemany("INSERT INTO t VALUES (?, ?)", texts.items())

    def search(question: str, limit: int) -> list[str]:
        asked = re.findall(r"\w+", question) if all_words else query_words(question)
        words = " OR ".join(f'"{word}"' for word in asked)
        sql = "SELECT id FROM t WHERE t MATCH ? ORDER BY bm25(t) LIMIT ?"
        return [row[0] for row in database.execute(sql, (words, limit))]

    return search


def diary(name: str, texts: dict[str, str]) -> Callable[[str, int], list[str]]:
    store = DiaryStore("memory:")
    namespace = (name.replace(".", "-"), "turns")
    store.batch([PutOp(namespace, key, {"text": text}) for key, text in texts.items()])

    def search(question: str, limit: int) -> list[str]:
        return [item.key for item in store.search(namespace, query=question, limit=limit)]

    search("warm up", 1)
    return search


def recalled(_: str, texts: dict[str, str]) -> Callable[[str, int], list[str]]:
    alice = Diary("memory:").user("alice")
    with alice.transaction():
        names = {alice.add_episode(text, "", session_id="s"): key for key, text in texts.items()}

    def search(question: str, limit: int) -> list[str]:
        return [names[hit.key] for hit in alice.recall(question, limit)]

    search("warm up", 1)
    return search


def measured(cases: list[Case], make: Callable[[str, dict[str, str]], Any]) -> dict[str, float]:
    at_5: list[float] = []
    at_10: list[float] = []
    times: list[float] = []
    for name, texts, asked in cases:
        search = make(name, texts)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("TOMLDIARY_BENCH_DATA", "data"))
    options = parser.parse_args()
    for title, cases in (
        ("LoCoMo", list(locomo(options.data / "locomo"))),
        ("PrefEval", list(prefeval(options.data / "prefeval"))),
    ):
        size = statistics.median(len(texts) for _, texts, _ in cases)
        print(f"{title}: {len(cases)} collections of about {size:.0f} texts")
        for name, make in (
            ("FTS5 porter", lambda _, texts: plain(texts, all_words=False)),
            ("with all words", lambda _, texts: plain(texts, all_words=True)),
            ("DiaryStore", diary),
            ("alice.recall", recalled),
        ):
            row = measured(cases, make)
            print(f"  {name:16}" + "".join(f"{key} {value:.3f}  " for key, value in row.items()))


if __name__ == "__main__":
    main()
