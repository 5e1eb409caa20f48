"""Print the precision and recall of the offline rules on PrefEval and LoCoMo, without a judge.

The rules were developed with one half of the PrefEval topics ("dev": every other file in sorted order). The
other half was only measured. Both halves are printed. The conversations of LoCoMo have two people: each turn is
treated as a user message, and the turns that its `observation` facts refer to count as correct.

    python benchmarks/extraction.py --data DIR
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

from tomldiary.extraction.rules import find_statements

CATEGORIES = {
    "likes": "things the user enjoys",
    "dislikes": "things the user avoids",
    "allergies": "",
    "routines": "",
    "biography": "",
}
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
FIRST_PERSON = re.compile(r"\b(?:I|I['\u2019]\w+|[Mm]y|[Mm]e|[Mm]ine|[Ww]e|[Oo]ur)\b")
WORD = re.compile(r"[a-z0-9]+")
STOP_WORDS = """a an and are as at be been being but by for from had has have he her hers him his i in is it
    its me my of on or our she so that the their them they this to was we were which who will with you your
    not do does did about into than then there what when"""


def every_sentence(message: str) -> list[str]:
    return [part for part in (piece.strip() for piece in SENTENCE_END.split(message)) if part]


def first_person(message: str) -> list[str]:
    return [s for s in every_sentence(message) if FIRST_PERSON.search(s) and not s.endswith("?")]


def rules(message: str) -> list[str]:
    return [statement.text for statement in find_statements(message, CATEGORIES)]


EXTRACTORS: dict[str, Callable[[str], list[str]]] = {
    "every sentence": every_sentence,
    "first person, no question": first_person,
    "rules": rules,
}


@dataclass
class Topic:
    """One PrefEval file, and the half that contains it."""

    half: str
    pairs: list[dict[str, str]]


@dataclass
class Chat:
    """The turns of one LoCoMo conversation, and the facts that refer to them."""

    turns: dict[str, str]
    facts: list[tuple[str, list[str]]]


def load_prefeval(data: Path) -> list[Topic]:
    files = sorted((data / "prefeval").glob("*.json"))
    return [
        Topic("held-out" if index % 2 else "dev", json.loads(file.read_text("utf-8")))
        for index, file in enumerate(files)
    ]


def load_locomo(data: Path) -> list[Chat]:
    return [
        read_chat(raw)
        for raw in json.loads((data / "locomo" / "locomo-dev.json").read_text("utf-8"))
    ]


def read_chat(raw: dict[str, Any]) -> Chat:
    names = [name for name in raw["conversation"] if re.fullmatch(r"session_\d+", name)]
    turns = {turn["dia_id"]: turn["text"] for name in names for turn in raw["conversation"][name]}
    facts = [
        (fact, [turn_id for turn_id in turn_ids(where) if turn_id in turns])
        for session in raw["observation"].values()
        for told in session.values()
        for fact, where in told
    ]
    return Chat(turns, facts)


def turn_ids(where: str | list[str]) -> Iterator[str]:
    for part in [where] if isinstance(where, str) else where:
        yield from re.findall(r"D\d+:\d+", part)


def content_words(text: str) -> set[str]:
    return set(WORD.findall(text.lower())) - set(STOP_WORDS.split())


def share_hit(extract: Callable[[str], list[str]], messages: list[str]) -> float:
    return sum(bool(extract(message)) for message in messages) / len(messages)


def locomo_figures(extract: Callable[[str], list[str]], chats: list[Chat]) -> list[str]:
    chosen = right = hits = characters = kept = 0
    recalled: list[float] = []
    seconds = 0.0
    for chat in chats:
        named = {turn_id for _, where in chat.facts for turn_id in where}
        started = time.perf_counter()
        extracted = {turn_id: extract(text) for turn_id, text in chat.turns.items()}
        seconds += time.perf_counter() - started
        picked = {turn_id for turn_id, sentences in extracted.items() if sentences}
        chosen, right, hits = chosen + len(picked), right + len(named), hits + len(picked & named)
        characters += sum(map(len, chat.turns.values()))
        kept += sum(len(sentence) for sentences in extracted.values() for sentence in sentences)
        for fact, where in chat.facts:
            wanted = content_words(fact)
            if where and wanted:
                found = content_words(" ".join(s for turn_id in where for s in extracted[turn_id]))
                recalled.append(len(wanted & found) / len(wanted))
    precision, recall = hits / chosen, hits / right
    turns = sum(len(chat.turns) for chat in chats)
    return [
        f"{precision:.3f}",
        f"{recall:.3f}",
        f"{2 * precision * recall / (precision + recall):.3f}",
        f"{sum(recalled) / len(recalled):.3f}",
        f"{kept / characters:.3f}",
        f"{seconds / turns * 1e6:.1f}",
    ]


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    print(f"\n{title}")
    for row in [columns, ["-" * width for width in widths], *rows]:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def main() -> None:
    default = os.environ.get("TOMLDIARY_BENCH_DATA") or Path(__file__).parents[1] / "../shared/data"
    parser = argparse.ArgumentParser(description="Measure the offline rules extractor.")
    parser.add_argument(
        "--data", type=Path, default=Path(default), help="folder with prefeval/ and locomo/"
    )
    data: Path = parser.parse_args().data
    if not (data / "prefeval").is_dir() or not (data / "locomo" / "locomo-dev.json").is_file():
        sys.exit(
            f"No data in {data}: expected prefeval/*.json and locomo/locomo-dev.json. Set the folder with --data."
        )
    topics, chats = load_prefeval(data), load_locomo(data)
    rows: list[list[str]] = []
    for name, extract in EXTRACTORS.items():
        for half in ("dev", "held-out", "both"):
            pairs = [
                pair for topic in topics if half in {topic.half, "both"} for pair in topic.pairs
            ]
            stated = share_hit(extract, [pair["preference"] for pair in pairs])
            asked = share_hit(extract, [pair["question"] for pair in pairs])
            rows.append([name, half, str(len(pairs)), f"{stated:.3f}", f"{asked:.3f}"])
    print_table(
        "PrefEval: share of messages from which something was extracted",
        ["extractor", "half", "pairs", "preferences (aim >= .92)", "questions (aim <= .10)"],
        rows,
    )
    print_table(
        f"LoCoMo: {sum(len(chat.turns) for chat in chats)} turns, {sum(len(chat.facts) for chat in chats)} facts",
        ["extractor", "precision", "recall", "F1", "fact words", "text kept", "us/turn"],
        [[name, *locomo_figures(extract, chats)] for name, extract in EXTRACTORS.items()],
    )


if __name__ == "__main__":
    main()
