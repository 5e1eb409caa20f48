"""What recall searches: the entries of one user's documents, and the hits it returns."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tomldiary.retrieval.lexical_index import LexicalIndex
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.lru import Recent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tomldiary.entries.kind import EntryKind, Rules
    from tomldiary.toml.document import Document

__all__ = ["Hit", "Indexes", "Source"]

_CACHED_USERS = 256


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """An entry as it is indexed; the same object as long as `entry` is."""

    kind: EntryKind
    key: str
    entry: Mapping[str, Any]

    @property
    def order(self) -> tuple[str, str]:
        """Sorts entries of equal score."""
        return self.kind.name, self.key

    @property
    def searched_text(self) -> str:
        """The text to search."""
        return self.kind.body(self.key, self.entry)


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


class _Entries:
    """The entries of one kind, as their documents held them."""

    def __init__(
        self,
        kind: EntryKind,
        documents: tuple[Document, ...],
        rules: Rules,
        before: _Entries | None,
    ) -> None:
        self.namespace = kind.name
        self.documents = documents
        self.sources: dict[str, Source] = {}
        known = before.sources if before is not None else {}
        for document in documents:
            for key, entry in kind.entries(document, rules):
                source = known.get(key)
                if source is None or source.entry is not entry:
                    source = Source(kind, key, entry)
                self.sources[key] = source

    @property
    def ordered(self) -> list[Source]:
        """The entries, in the order of the documents."""
        return list(self.sources.values())


class _UserIndex:
    """The index of one user. Thread-safe: a race costs time only."""

    def __init__(self) -> None:
        self._index: LexicalIndex[_Entries, Source] = LexicalIndex()
        self._entries: dict[str, _Entries] = {}

    def search(
        self, query: str, documents: Mapping[EntryKind, tuple[Document, ...]], rules: Rules
    ) -> Iterator[tuple[float, Source]]:
        current: list[_Entries] = []
        for kind, mine in documents.items():
            found = self._entries.get(kind.name)
            if found is None or list(map(id, found.documents)) != list(map(id, mine)):
                found = self._entries[kind.name] = _Entries(kind, mine, rules, found)
            current.append(found)
        for score, _, source in self._index.search(current, query) or ():
            yield score, source


class Indexes:
    """The indexes of the users asked for most recently."""

    def __init__(self) -> None:
        self.renew()
        self._indexes: Recent[str, _UserIndex] = Recent(_CACHED_USERS)
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock."""
        self._guard = threading.Lock()

    def drop(self, user: str) -> None:
        """Remove a user's index; the next search makes a new one."""
        with self._guard:
            self._indexes.pop(user, None)

    def search(
        self,
        user: str,
        query: str,
        documents: Mapping[EntryKind, tuple[Document, ...]],
        rules: Rules,
    ) -> Iterator[tuple[float, Source]]:
        """Yield the matching entries of a user, best first, with their score.

        Args:
            user: Whose they are.
            query: A question or words.
            documents: The documents to search, by kind; compared by identity to skip unchanged ones.
            rules: Say which entries count.
        """
        with self._guard:
            index = self._indexes.keep(user, self._indexes.get(user) or _UserIndex())
        return index.search(query, documents, rules)
