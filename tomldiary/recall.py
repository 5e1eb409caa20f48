"""Finding what was remembered: a ranked full-text index over one user's entries.

SQLite FTS5 with Porter stemming, in memory, derived from the documents and brought up to date by
comparing entries: an unchanged entry is the same object in the next version of its document.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tomldiary.forks import renew_after_fork
from tomldiary.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Hit", "Indexes", "Source"]

_WORD = re.compile(r"\w+")
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
    """One entry found; `score` is BM25 turned so that more is better, comparable within one result."""

    kind: str
    """`preferences`, `conversations`, `facts`, `blocks` or `episodes`."""
    key: str
    """`category/id` of a preference, `type/key` of a fact, else the session, the name or the id."""
    text: str
    score: float
    reasons: list[str] = field(default_factory=list[str])
    """The words of the query that occur in the entry, stemmed forms not counted."""
    created: str = ""
    updated: str = ""
    source: str = ""
    """The turn an entry was taken from, `session#turn`, where it is known."""


class _Index:
    """The full-text index of one user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.execute(
            "CREATE VIRTUAL TABLE entries USING fts5(body, tokenize='porter unicode61')"
        )
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
            self._database.execute("BEGIN")
            for source in sources:
                place = (source.kind, source.key)
                current.add(place)
                known = self._rows.get(place)
                if known is not None and known[1].entry is source.entry:
                    continue
                row = known[0] if known is not None else self._next
                if known is not None:
                    self._database.execute("DELETE FROM entries WHERE rowid = ?", (row,))
                else:
                    self._next += 1
                self._database.execute(
                    "INSERT INTO entries(rowid, body) VALUES (?, ?)", (row, source.body)
                )
                self._rows[place] = (row, source)
                self._by_row[row] = source
            for place in self._rows.keys() - current:
                row, _ = self._rows.pop(place)
                del self._by_row[row]
                self._database.execute("DELETE FROM entries WHERE rowid = ?", (row,))
            self._database.execute("COMMIT")
            self._seen, self._kept = seen, documents

    def search(self, words: list[str], limit: int) -> list[tuple[Source, float]]:
        """Return entries that hold at least one of `words`, best first; ties by kind and key."""
        match = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            rows = self._database.execute(
                "SELECT rowid, -bm25(entries) AS score FROM entries WHERE entries MATCH ?"
                " ORDER BY score DESC LIMIT ?",
                (match, limit),
            ).fetchall()
            found = [(self._by_row[row], float(score)) for row, score in rows]
        return sorted(found, key=lambda item: (-item[1], item[0].kind, item[0].key))


class Indexes:
    """The indexes of the users asked for most recently."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start anew: an SQLite connection does not survive a fork, and the indexes are derived."""
        self._guard = threading.Lock()
        self._indexes: Recent[str, _Index] = Recent(_CACHED_USERS)

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
            (source, score, [word for word in words if word in source.body.lower()])
            for source, score in index.search(words, limit)
        ]


def query_words(query: str) -> list[str]:
    """Return the words of a question that are worth looking for; all of them if none is left."""
    # Not casefold: SQLite, which splits the texts, keeps ß and ligatures as they are.
    words = list(dict.fromkeys(_WORD.findall(query.lower())))
    return ([word for word in words if word not in _COMMON] or words)[:_MOST_WORDS]
