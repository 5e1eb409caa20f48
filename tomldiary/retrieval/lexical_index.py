"""Ranked search by words, without an embedder: SQLite FTS5 with Porter stemming.

One index serves recall and the store. It lives in memory and is derived: it follows collections of
entries by identity, since an unchanged entry is the same object in the next version of its collection.
The words of a query are quoted: no query is ever part of FTS5's own language.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import weakref
from heapq import nlargest
from itertools import pairwise
from math import inf, log
from sys import maxsize
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.text.words import folded, query_tokens, searchable, shown

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

__all__ = ["LexicalIndex", "WordTable", "matched_words", "query_words", "shown_words"]

_COMMON = frozenset(
    [
        "a", "about", "an", "and", "are", "as", "at", "be", "been", "but", "by", "can", "could",
        "did", "do", "does", "for", "from", "had", "has", "have", "he", "her", "hers", "him",
        "his", "how", "i", "if", "in", "is", "it", "its", "me", "my", "of", "on", "or", "our",
        "she", "should", "so", "some", "that", "the", "their", "them", "there", "they", "this",
        "to", "us", "was", "we", "were", "what", "when", "where", "which", "who", "whom", "whose",
        "why", "will", "with", "would", "you", "your",
    ]
)  # fmt: skip
_MOST_WORDS = 64  # words of a query that are searched for; a longer query is a text
_MOST_PAIRS = 32
_LEAST_WEIGHT = 1e-6  # of a word in more than half of the entries, as in SQLite's bm25
_SCORED_FIRST = 48  # rows that BM25 is computed for first
_LONG = 600  # characters
_MOST_LONG = 256
_SCORES = "SELECT rowid, -bm25(entries) FROM entries WHERE entries MATCH ?"
_POSSESSIVE = re.compile(r"[\u2019']s\b")


class Searchable(Protocol):
    """An entry as the index sees it: compared by identity."""

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts entries of equal score."""
        ...

    @property
    def searched_text(self) -> str:
        """The text to search; "" keeps the entry out of the index."""
        ...


E = TypeVar("E", bound=Searchable)
S_co = TypeVar("S_co", bound=Searchable, covariant=True)


class Collection(Protocol[S_co]):
    """One version of a group of entries. Immutable."""

    @property
    def namespace(self) -> Hashable:
        """Names the group; the same in every version."""
        ...

    @property
    def ordered(self) -> Sequence[S_co]:
        """The entries."""
        ...


C = TypeVar("C", bound=Collection[Any])


class WordTable:
    """An FTS5 table in memory; its connection is closed with `close()`, or when the table is dropped.

    A forked child must not touch its parent's connection, not even to close it: another thread of the
    parent may have held SQLite's lock at the fork. `leave()` keeps it open for as long as the child lives.
    """

    _left: ClassVar[list[sqlite3.Connection]] = []

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.close = weakref.finalize(self, self._database.close)
        self.execute("CREATE VIRTUAL TABLE entries USING fts5(body, tokenize='porter unicode61')")

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one statement; the connection commits by itself outside BEGIN and COMMIT."""
        return self._database.execute(statement, values)  # pyright: ignore[reportArgumentType] - sqlite3 checks the values

    def leave(self) -> None:
        """Never close the connection: it is the parent's, and this process is its forked child."""
        if self.close.detach() is not None:
            self._left.append(self._database)


class LexicalIndex(Generic[C, E]):
    """A full-text index of one user's entries. Thread-safe."""

    def __init__(self) -> None:
        self._begin()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start with an empty table: an SQLite connection does not survive a fork."""
        self._table.leave()
        self._begin()

    def _begin(self) -> None:
        self._guard = threading.Lock()
        self._table = WordTable()
        self._seen: dict[Hashable, C] = {}
        self._rows: dict[E, int] = {}
        self._by_row: dict[int, tuple[Hashable, E]] = {}
        self._lengths: dict[int, int] = {}
        self._length = 0
        self._long: set[int] = set()
        self._next = 1

    def search(self, collections: Sequence[C], query: str) -> Iterator[tuple[float, C, E]] | None:
        """Yield matching entries, best first, with their score; None if the query has no words.

        The rank is BM25 over the words and pairs of words of the query, times the share of the query's
        words that the entry has. The score is that as a number between 0 and 1: two thirds for a text of
        average length with each word once. Of many matches the most promising are scored first; behind
        these, the order follows the score by and large. It is stable while no entry changes.
        """
        plain = _POSSESSIVE.sub("", query)
        words = query_words(plain)
        if not words:
            return None
        return self._matches(collections, words, _pairs(plain, words))

    def _matches(
        self, collections: Sequence[C], words: list[str], pairs: list[str]
    ) -> Iterator[tuple[float, C, E]]:
        wanted = {each.namespace: each for each in collections}
        match = " OR ".join(f'"{each}"' for each in (*words, *pairs))
        given: list[E] = []
        lowest = inf
        for most in (_SCORED_FIRST, maxsize):
            with self._guard:
                for collection in collections:
                    self._refresh(collection)
                # Other searches may have rebuilt rows since: the numbers are read again.
                behind = [self._rows[entry] for entry in given]
                rows, is_all = self._scored(match, words, wanted, most, behind)
                found = [(score, *self._by_row[row]) for row, score in rows]
            for score, namespace, entry in found:
                # An entry that scores above the first ones follows them all the same.
                yield min(score, lowest), wanted[namespace], entry
            if is_all:
                return
            given = [entry for _, _, entry in found]
            lowest = rows[-1][1]

    def _scored(
        self,
        match: str,
        words: list[str],
        wanted: Mapping[Hashable, C],
        most: int,
        given: list[int],
    ) -> tuple[list[tuple[int, float]], bool]:
        """Return rows by BM25 times the share of words they have, and whether there are no more.

        BM25 takes most of the time. At first it is computed only for the most promising rows: those whose
        words would weigh most if each occurred once. Long texts are always among them, as they may have a
        word often. The caller holds the lock.
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

            def promise(row: int) -> float:
                return counts[row] * weights[row] / (1.3 * mean + 0.9 * lengths[row])

            rows, which = [*long, *nlargest(most, counts.keys() - long, key=promise)], "IN"
        found: list[tuple[int, float]] = self._table.execute(
            f"{_SCORES} AND +rowid {which} ({','.join('?' * len(rows))})",
            (match, *rows),
        ).fetchall()
        scored = [
            (row, _normal_score(score * counts[row] / len(words) / total))
            for row, score in found
            if row in counts
        ]
        scored.sort(key=lambda each: (-each[1], self._by_row[each[0]][1].order))
        return scored, is_all

    def _counted(self, words: list[str]) -> tuple[dict[int, int], dict[int, float], float]:
        """Return how many of the words each row has, their weight, and the weight of all that occur."""
        total = 0.0
        counts: dict[int, int] = {}
        weights: dict[int, float] = {}
        for word in words:
            hits: list[tuple[int]] = self._table.execute(
                "SELECT rowid FROM entries WHERE entries MATCH ?", (f'"{word}"',)
            ).fetchall()
            weight = _word_weight(len(hits), len(self._by_row))
            total += weight if hits else 0.0
            for (row,) in hits:
                if row in counts:
                    counts[row] += 1
                    weights[row] += weight
                else:
                    counts[row] = 1
                    weights[row] = weight
        return counts, weights, total

    def _refresh(self, collection: C) -> None:
        before = self._seen.get(collection.namespace)
        if before is collection:
            return
        old: set[E] = set(before.ordered) if before is not None else set()
        self._table.execute("BEGIN")
        for entry in old.difference(collection.ordered):
            row = self._rows.pop(entry, None)
            if row is not None:
                del self._by_row[row]
                self._length -= self._lengths.pop(row)
                self._long.discard(row)
                self._table.execute("DELETE FROM entries WHERE rowid = ?", (row,))
        for entry in collection.ordered:
            if entry in old:
                continue
            text = searchable(entry.searched_text)
            if text:
                row, self._next = self._next, self._next + 1
                self._rows[entry] = row
                self._by_row[row] = (collection.namespace, entry)
                self._lengths[row] = len(text)
                self._length += len(text)
                if len(text) > _LONG:
                    self._long.add(row)
                self._table.execute("INSERT INTO entries(rowid, body) VALUES (?, ?)", (row, text))
        self._table.execute("COMMIT")
        self._seen[collection.namespace] = collection


def shown_words(query: str) -> list[str]:
    """Return the words of a query worth searching for, as a person writes them."""
    return list(map(shown, query_words(query)))


def matched_words(words: Sequence[str], text: str) -> list[str]:
    """Return those of `shown_words` that occur in a text, stemmed forms not counted."""
    lower = folded(text).lower()
    return [word for word in words if word in lower]


def query_words(query: str) -> list[str]:
    """Return the words of a query worth searching for, as tokens of the index; all if none is left."""
    words = list(dict.fromkeys(query_tokens(query)))
    return ([word for word in words if word not in _COMMON] or words)[:_MOST_WORDS]


def _pairs(query: str, words: list[str]) -> list[str]:
    """Return neighbouring words of a query that are both searched for."""
    known = set(words)
    found = query_tokens(query)
    return [f"{one} {other}" for one, other in pairwise(found) if one in known and other in known][
        :_MOST_PAIRS
    ]


def _word_weight(having: int, entries: int) -> float:
    """Return the BM25 weight of a word that `having` of the entries have, as SQLite computes it."""
    return max(log((entries - having + 0.5) / (having + 0.5)), _LEAST_WEIGHT)


def _normal_score(relevance: float) -> float:
    """Return a relevance as a score between 0 and 1.

    Args:
        relevance: BM25 divided by the weights of all words of the query that occur anywhere: about 1 for
            an entry of average length that has each of them once, which gives two thirds.
    """
    return relevance / (relevance + 0.5)
