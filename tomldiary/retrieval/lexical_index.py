"""Ranked search by words, without an embedder: SQLite FTS5 with Porter stemming over one user's items.

In memory, derived, and brought up to date by comparing entries: one that did not change is the same
object in the next snapshot. The words of a question are looked for as words; no question is ever part of
a query's own language.
"""

from __future__ import annotations

import re
import threading
from heapq import nlargest
from itertools import pairwise
from math import inf
from sys import maxsize
from typing import TYPE_CHECKING

from tomldiary.retrieval.recall import WordTable, normal_score, query_words, word_weight
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.store.json_paths import all_names, all_texts, texts_at
from tomldiary.text.words import query_tokens, searchable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tomldiary.store.item import Entry
    from tomldiary.store.namespaces import Namespace
    from tomldiary.store.snapshot import Snapshot

__all__ = ["LexicalIndex", "searched_text"]

_SCORES = "SELECT rowid, -bm25(items) FROM items WHERE items MATCH ?"
_SCORED_FIRST = 48  # rows that look best; the others are scored when somebody asks for more
_LONG = 600  # characters
_MOST_LONG = 256
_MOST_PAIRS = 32
_POSSESSIVE = re.compile(r"[\u2019']s\b")
_INNER_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def searched_text(entry: Entry) -> str:
    """Return what of an item is searched: its texts and field names, the fields it was put with, or nothing."""
    index = entry.index
    if index is False:
        return ""
    if isinstance(index, list):
        return " ".join(text for path in index for text in texts_at(entry.value, path))
    names = (_INNER_CAPITAL.sub(" ", name) for name in all_names(entry.value))
    return " ".join((*all_texts(entry.value), *dict.fromkeys(names)))


class LexicalIndex:
    """The full-text index of one user's items. Thread-safe."""

    def __init__(self) -> None:
        self._begin()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start anew: an SQLite connection does not survive a fork."""
        self._table.leave()
        self._begin()

    def _begin(self) -> None:
        self._guard = threading.Lock()
        self._table = WordTable("items")
        self._seen: dict[Namespace, Snapshot] = {}
        self._rows: dict[Entry, int] = {}
        self._by_row: dict[int, tuple[Namespace, Entry]] = {}
        self._lengths: dict[int, int] = {}
        self._length = 0
        self._long: set[int] = set()
        self._next = 1

    def search(
        self, snapshots: Sequence[Snapshot], query: str
    ) -> Iterator[tuple[float, Snapshot, Entry]] | None:
        """Yield what matches a question, best first, with its score; None if it has no words.

        Items are ranked by BM25, over the words and pairs of words of the question, times the share of its
        words that the item has. The score is that as a number between 0 and 1: two thirds for a text of
        average length that has each word once. Of many matches those that look best are scored first: behind the first dozens
        the order is by and large that of the score. It stays the same while nothing is put.
        """
        plain = _POSSESSIVE.sub("", query)
        words = query_words(plain)
        if not words:
            return None
        return self._matches(snapshots, words, _pairs(plain, words))

    def _matches(
        self, snapshots: Sequence[Snapshot], words: list[str], pairs: list[str]
    ) -> Iterator[tuple[float, Snapshot, Entry]]:
        wanted = {snapshot.namespace: snapshot for snapshot in snapshots}
        match = " OR ".join(f'"{each}"' for each in (*words, *pairs))
        given: list[Entry] = []
        lowest = inf
        for most in (_SCORED_FIRST, maxsize):
            with self._guard:
                for snapshot in snapshots:
                    self._refresh(snapshot)
                # Others may have brought the index elsewhere and back since: rows have new numbers then.
                behind = [self._rows[entry] for entry in given]
                rows, is_all = self._scored(match, words, wanted, most, behind)
                found = [(score, *self._by_row[row]) for row, score in rows]
            for score, namespace, entry in found:
                snapshot = wanted[namespace]
                if snapshot.get(entry.key) is entry:
                    # What looked worse and turns out better comes behind, as those in front are given.
                    yield min(score, lowest), snapshot, entry
            if is_all:
                return
            given = [entry for _, _, entry in found]
            lowest = rows[-1][1]

    def _scored(
        self,
        match: str,
        words: list[str],
        wanted: Mapping[Namespace, Snapshot],
        most: int,
        given: list[int],
    ) -> tuple[list[tuple[int, float]], bool]:
        """Return rows by BM25 times the share of words they have, and whether there are no more.

        BM25 is what takes long, so at first it is asked for those alone that look best: by the weights of
        their words as if each stood there once. A long text may have one often, and is asked about in any
        case. The caller holds the lock.
        """
        counts, weights, total = self._counted(words)
        if len(wanted) < len(self._seen):
            counts = {row: n for row, n in counts.items() if self._by_row[row][0] in wanted}
        long = self._long & counts.keys()
        most = maxsize if len(words) == 1 or len(long) > _MOST_LONG else most
        is_all = len(counts) - len(long) <= most
        if is_all:
            rows, which = given, "NOT IN"
        else:
            lengths, mean = self._lengths, self._length / len(self._lengths)

            def looks(row: int) -> float:
                return counts[row] * weights[row] / (1.3 * mean + 0.9 * lengths[row])

            rows, which = [*long, *nlargest(most, counts.keys() - long, key=looks)], "IN"
        found: list[tuple[int, float]] = self._table.execute(
            f"{_SCORES} AND +rowid {which} ({','.join('?' * len(rows))})",
            (match, *rows),
        ).fetchall()
        scored = [
            (row, normal_score(score * counts[row] / len(words) / total))
            for row, score in found
            if row in counts
        ]
        scored.sort(key=lambda each: (-each[1], each[0]))
        return scored, is_all

    def _counted(self, words: list[str]) -> tuple[dict[int, int], dict[int, float], float]:
        """Return by row how many of the words it has, and what they weigh; and what all that exist weigh."""
        total = 0.0
        counts: dict[int, int] = {}
        weights: dict[int, float] = {}
        for word in words:
            hits: list[tuple[int]] = self._table.execute(
                "SELECT rowid FROM items WHERE items MATCH ?", (f'"{word}"',)
            ).fetchall()
            having = len(hits)
            weight = word_weight(having, len(self._by_row))
            total += weight if hits else 0.0
            for (row,) in hits:
                if row in counts:
                    counts[row] += 1
                    weights[row] += weight
                else:
                    counts[row] = 1
                    weights[row] = weight
        return counts, weights, total

    def _refresh(self, snapshot: Snapshot) -> None:
        before = self._seen.get(snapshot.namespace)
        if before is snapshot:
            return
        old = set(before.entries.values() if before is not None else ())
        now = set(snapshot.entries.values())
        self._table.execute("BEGIN")
        for entry in old - now:
            row = self._rows.pop(entry, None)
            if row is not None:
                del self._by_row[row]
                self._length -= self._lengths.pop(row)
                self._long.discard(row)
                self._table.execute("DELETE FROM items WHERE rowid = ?", (row,))
        for entry in snapshot.ordered:
            if entry in old:
                continue
            text = searchable(searched_text(entry))
            if text:
                self._rows[entry] = self._next
                self._by_row[self._next] = (snapshot.namespace, entry)
                self._lengths[self._next] = len(text)
                self._length += len(text)
                if len(text) > _LONG:
                    self._long.add(self._next)
                self._table.execute(
                    "INSERT INTO items(rowid, body) VALUES (?, ?)", (self._next, text)
                )
                self._next += 1
        self._table.execute("COMMIT")
        self._seen[snapshot.namespace] = snapshot


def _pairs(query: str, words: list[str]) -> list[str]:
    """Return neighbouring words of a question that are both worth looking for."""
    known = set(words)
    found = query_tokens(query)
    return [f"{one} {other}" for one, other in pairwise(found) if one in known and other in known][
        :_MOST_PAIRS
    ]
