"""Finding what was remembered: a ranked full-text index over one user's entries.

SQLite FTS5 with Porter stemming, in memory, derived from the documents and brought up to date by
comparing entries: an unchanged entry is the same object in the next version of its document.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING, Any, ClassVar

from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.lru import Recent
from tomldiary.text.words import folded, query_tokens, searchable, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Hit", "Indexes", "Source", "WordTable", "normal_score", "query_words", "word_weight"]

_COMMON = frozenset(
    [
        "a",
        "about",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "been",
        "but",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "for",
        "from",
        "had",
        "has",
        "have",
        "he",
        "her",
        "hers",
        "him",
        "his",
        "how",
        "i",
        "if",
        "in",
        "is",
        "it",
        "its",
        "me",
        "my",
        "of",
        "on",
        "or",
        "our",
        "she",
        "should",
        "so",
        "some",
        "that",
        "the",
        "their",
        "them",
        "there",
        "they",
        "this",
        "to",
        "us",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "whom",
        "whose",
        "why",
        "will",
        "with",
        "would",
        "you",
        "your",
    ]
)
_MOST_WORDS = 64  # words of a query that are looked for; a longer one is a text, not a question
_MOST_HITS = 1_000_000
_LEAST_WEIGHT = 1e-6  # of a word that more than half of the entries have, as in SQLite's bm25
_CACHED_USERS = 256


@dataclass(frozen=True, slots=True)
class Source:
    """An entry as it is indexed: `body` is what is searched, `entry` is compared by identity."""

    kind: str
    key: str
    body: str
    entry: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hit:
    """One entry found."""

    kind: str
    """`preferences`, `conversations`, `facts`, `blocks` or `episodes`."""
    key: str
    """`category/id` of a preference, `type/key` of a fact, else the session, the name or the id."""
    text: str
    score: float
    """How well it matches, from 0 to 1: two thirds for an entry of average length with every word of the query."""
    reasons: list[str] = field(default_factory=list[str])
    """The words of the query that occur in the entry, stemmed forms not counted."""
    created: str = ""
    updated: str = ""
    source: str = ""
    """The turn an entry was taken from, `session#turn`, where it is known."""


class WordTable:
    """An FTS5 table in memory; its connection is closed with `close()`, or when the table is dropped.

    A forked child must not touch its parent's connection, not even to close it: another thread of the
    parent may have held SQLite's lock at the fork. `leave()` keeps it open for as long as the child lives.
    """

    _left: ClassVar[list[sqlite3.Connection]] = []

    def __init__(self, name: str) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.close = weakref.finalize(self, self._database.close)
        self.execute(f"CREATE VIRTUAL TABLE {name} USING fts5(body, tokenize='porter unicode61')")

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one statement; the connection commits by itself outside BEGIN and COMMIT."""
        return self._database.execute(statement, values)  # pyright: ignore[reportArgumentType] - sqlite3 checks the values

    def leave(self) -> None:
        """Never close the connection: it is the parent's, and this process is its forked child."""
        if self.close.detach() is not None:
            self._left.append(self._database)


class _Index:
    """The full-text index of one user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.table = WordTable("entries")
        self._rows: dict[tuple[str, str], tuple[int, Source]] = {}
        self._by_row: dict[int, Source] = {}
        self._next = 1
        self._seen: tuple[int, ...] = ()
        self._kept: tuple[object, ...] = ()

    def refresh(self, documents: tuple[object, ...], sources: Iterable[Source]) -> None:
        """Bring the index up to date; `documents` are compared by identity to skip the rest."""
        with self._lock:
            seen = tuple(map(id, documents))
            if seen == self._seen:
                return
            current: set[tuple[str, str]] = set()
            self.table.execute("BEGIN")
            for source in sources:
                place = (source.kind, source.key)
                current.add(place)
                known = self._rows.get(place)
                if known is not None and known[1].entry is source.entry:
                    continue
                row = known[0] if known is not None else self._next
                if known is not None:
                    self.table.execute("DELETE FROM entries WHERE rowid = ?", (row,))
                else:
                    self._next += 1
                self.table.execute(
                    "INSERT INTO entries(rowid, body) VALUES (?, ?)",
                    (row, searchable(source.body)),
                )
                self._rows[place] = (row, source)
                self._by_row[row] = source
            for place in self._rows.keys() - current:
                row, _ = self._rows.pop(place)
                del self._by_row[row]
                self.table.execute("DELETE FROM entries WHERE rowid = ?", (row,))
            self.table.execute("COMMIT")
            self._seen, self._kept = seen, documents

    def search(self, words: list[str], limit: int) -> list[tuple[Source, float]]:
        """Return entries that hold at least one of `words`, best first, with scores; ties by kind and key."""
        match = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            full = sum(map(self._weight, words))
            rows = self.table.execute(
                "SELECT rowid, -bm25(entries) AS score FROM entries WHERE entries MATCH ?"
                " ORDER BY score DESC LIMIT ?",
                (match, limit),
            ).fetchall()
            found = [(self._by_row[row], normal_score(score / full)) for row, score in rows]
        return sorted(found, key=lambda item: (-item[1], item[0].kind, item[0].key))

    def _weight(self, word: str) -> float:
        having = self.table.execute(
            "SELECT count(*) FROM entries WHERE entries MATCH ?", (f'"{word}"',)
        ).fetchone()[0]
        return word_weight(having, len(self._by_row)) if having else 0.0


def word_weight(having: int, entries: int) -> float:
    """Return what BM25 takes a word to weigh that so many of the entries have, as SQLite does."""
    return max(log((entries - having + 0.5) / (having + 0.5)), _LEAST_WEIGHT)


def normal_score(relevance: float) -> float:
    """Return a relevance as a score between 0 and 1.

    Args:
        relevance: BM25 divided by the weights of all words of the question that occur anywhere: about 1 for
            an entry of average length that has each of them once, which gives two thirds.
    """
    return relevance / (relevance + 0.5)


class Indexes:
    """The indexes of the users asked for most recently."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._indexes: Recent[str, _Index] = Recent(_CACHED_USERS)
        renew_after_fork(self)

    def renew(self) -> None:
        """Start anew: an SQLite connection does not survive a fork, and the indexes are derived."""
        for index in self._indexes.values():
            index.table.leave()
        self._guard = threading.Lock()
        self._indexes = Recent(_CACHED_USERS)

    def drop(self, user: str) -> None:
        """Let go of a user's index; the next search makes a new one."""
        with self._guard:
            self._indexes.pop(user, None)

    def search(
        self,
        user: str,
        query: str,
        documents: tuple[object, ...],
        sources: Iterable[Source],
        limit: int,
    ) -> list[tuple[Source, float, list[str]]]:
        """Return matching entries of a user with their score and the query's words they hold."""
        words = query_words(query)
        if not words or limit < 1:
            return []
        limit = min(limit, _MOST_HITS)
        with self._guard:
            index = self._indexes.get(user)
            if index is None:
                index = _Index()
            self._indexes.keep(user, index)
        index.refresh(documents, sources)
        return [
            (source, score, _reasons(words, source.body))
            for source, score in index.search(words, limit)
        ]


def _reasons(words: list[str], body: str) -> list[str]:
    text = folded(body).lower()
    return [word for word in map(shown, words) if word in text]


def query_words(query: str) -> list[str]:
    """Return the words of a question that are worth looking for; all of them if none is left.

    They are tokens of the index; `words.shown` returns them as they are written.
    """
    words = list(dict.fromkeys(query_tokens(query)))
    return ([word for word in words if word not in _COMMON] or words)[:_MOST_WORDS]
