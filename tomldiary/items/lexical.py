"""Ranked search by words, without an embedder: SQLite FTS5 with Porter stemming over one user's items.

In memory, derived, and brought up to date by comparing entries: one that did not change is the same
object in the next snapshot. The words of a question are looked for as words; no question is ever part of
a query's own language.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

from tomldiary.forks import renew_after_fork
from tomldiary.items.paths import all_texts, texts_at
from tomldiary.recall import query_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tomldiary.items.entry import Entry
    from tomldiary.items.naming import Namespace
    from tomldiary.items.snapshot import Snapshot

__all__ = ["LexicalIndex", "searched_text"]

_RERANKED = 64  # rows that are scored twice; what matches worse keeps its order
_ALL = -1
_MOST_PAIRS = 32
_POSSESSIVE = re.compile(r"[\u2019']s\b")
_WORD = re.compile(r"\w+")


def searched_text(entry: Entry) -> str:
    """Return what of an item is searched: all its texts, the fields it was put with, or nothing."""
    index = entry.index
    if index is False:
        return ""
    if isinstance(index, list):
        return " ".join(text for path in index for text in texts_at(entry.value, path))
    return " ".join(all_texts(entry.value))


class LexicalIndex:
    """The full-text index of one user's items. Thread-safe."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start anew: an SQLite connection does not survive a fork."""
        self._guard = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.execute(
            "CREATE VIRTUAL TABLE items USING fts5(body, tokenize='porter unicode61')"
        )
        self._seen: dict[Namespace, Snapshot] = {}
        self._rows: dict[Entry, int] = {}
        self._by_row: dict[int, tuple[Namespace, Entry]] = {}
        self._next = 1

    def search(
        self, snapshots: Sequence[Snapshot], query: str
    ) -> Iterator[tuple[float, Snapshot, Entry]] | None:
        """Yield what matches a question, best first, with its score; None if it has no words.

        The score is BM25, over the words and pairs of words of the question, times the share of its words
        that the item has. The order of equal scores stays the same while nothing is put.
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
        scale = 1.0
        for limit, offset in ((_RERANKED, 0), (_ALL, _RERANKED)):
            with self._guard:
                for snapshot in snapshots:
                    self._refresh(snapshot)
                rows: list[tuple[int, float]] = self._database.execute(
                    "SELECT rowid, -bm25(items) AS score FROM items WHERE items MATCH ?"
                    " ORDER BY score DESC, rowid LIMIT ? OFFSET ?",
                    (match, limit, offset),
                ).fetchall()
                ranked = [(row, score * scale) for row, score in rows]
                if offset == 0:
                    ranked = self._reranked(rows, words)
                found = [(score, *self._by_row[row]) for row, score in ranked]
            for score, namespace, entry in found:
                snapshot = wanted.get(namespace)
                if snapshot is not None and snapshot.get(entry.key) is entry:
                    yield float(score), snapshot, entry
            if len(rows) < _RERANKED:
                return
            # What comes behind keeps its order, and a score below those in front.
            scale = ranked[-1][1] / rows[-1][1] if rows[-1][1] > 0 else 1.0

    def _reranked(self, rows: list[tuple[int, float]], words: list[str]) -> list[tuple[int, float]]:
        """Return rows by score times the share of words they have; the caller holds the lock."""
        if len(words) == 1:
            return rows
        counts = dict.fromkeys([row for row, _ in rows], 0)
        for word in words:
            hits = self._database.execute(
                "SELECT rowid FROM items WHERE items MATCH ?", (f'"{word}"',)
            ).fetchall()
            for (row,) in hits:
                if row in counts:
                    counts[row] += 1
        scored = [(row, score * counts[row] / len(words)) for row, score in rows]
        return sorted(scored, key=lambda found: -found[1])

    def _refresh(self, snapshot: Snapshot) -> None:
        before = self._seen.get(snapshot.namespace)
        if before is snapshot:
            return
        old = set(before.entries.values() if before is not None else ())
        now = set(snapshot.entries.values())
        self._database.execute("BEGIN")
        for entry in old - now:
            row = self._rows.pop(entry, None)
            if row is not None:
                del self._by_row[row]
                self._database.execute("DELETE FROM items WHERE rowid = ?", (row,))
        for entry in snapshot.ordered:
            if entry in old:
                continue
            text = searched_text(entry)
            if text:
                self._rows[entry] = self._next
                self._by_row[self._next] = (snapshot.namespace, entry)
                self._database.execute(
                    "INSERT INTO items(rowid, body) VALUES (?, ?)", (self._next, text)
                )
                self._next += 1
        self._database.execute("COMMIT")
        self._seen[snapshot.namespace] = snapshot


def _pairs(query: str, words: list[str]) -> list[str]:
    """Return neighbouring words of a question that are both worth looking for."""
    known = set(words)
    found = _WORD.findall(query.lower())
    return [f"{one} {other}" for one, other in pairwise(found) if one in known and other in known][
        :_MOST_PAIRS
    ]
