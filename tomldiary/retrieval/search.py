"""The one ranking: recall, stores, retrievers, tools, prompts and the command line all search here.

A `UserIndex` follows the collections of one user: it reads the entries that changed since the last search,
and no others. Entries that do not change are the same objects in the next version of a collection.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tomldiary.retrieval.lexical_index import LexicalIndex, Matches, Searchable, question_of
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.text.words import asked_words, indexed_words

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

__all__ = ["Collection", "UserIndex", "matched_words"]

S_co = TypeVar("S_co", bound=Searchable, covariant=True)
E = TypeVar("E", bound=Searchable)


class Part(Protocol[S_co]):
    """Some entries of a collection; an object that never changes."""

    @property
    def entries(self) -> Mapping[str, S_co]:
        """The entries by key."""
        ...


class Collection(Protocol[S_co]):
    """One version of a group of entries. Immutable."""

    @property
    def namespace(self) -> Hashable:
        """Names the group; the same in every version."""
        ...

    @property
    def searched(self) -> Mapping[str, Part[S_co]]:
        """Its parts by name; one that did not change is the same object in the next version."""
        ...

    def get(self, key: str) -> S_co | None:
        """Return the entry of a key."""
        ...


C = TypeVar("C", bound=Collection[Any])


class _Followed(Generic[E]):
    """The index of one collection, and the parts that it shows."""

    def __init__(self) -> None:
        self.words: LexicalIndex[E] = LexicalIndex()
        self.parts: dict[str, Part[E]] = {}

    def follow(self, parts: Mapping[str, Part[E]]) -> None:
        """Update to other parts."""
        gone: dict[E, None] = {}
        come: dict[E, None] = {}
        for name in self.parts.keys() | parts.keys():
            before, now = self.parts.get(name), parts.get(name)
            if before is now:
                continue
            old: Mapping[str, E] = before.entries if before is not None else {}
            new: Mapping[str, E] = now.entries if now is not None else {}
            gone.update((entry, None) for key, entry in old.items() if new.get(key) is not entry)
            come.update((entry, None) for key, entry in new.items() if old.get(key) is not entry)
        for entry in gone.keys() - come.keys():  # one may have moved to another part
            self.words.remove(entry)
        for entry in come:
            if entry not in gone:
                self.words.add(entry)
        self.parts = dict(parts)


class UserIndex(Generic[C, E]):
    """The indexes of one user's collections. Thread-safe."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start anew: another thread may have been half way through a change at a fork."""
        self._guard = threading.Lock()
        self._followed: dict[Hashable, _Followed[E]] = {}

    def search(self, collections: Sequence[C], query: str) -> Iterator[tuple[float, C, E]] | None:
        """Yield matching entries, best first, with their score; None if the query has no words.

        The score is a number between 0 and 1: about two thirds for a text of average length with each word once.
        Entries that look best are scored first; behind these, the order follows the score by and large.
        """
        with self._guard:
            followed = [self._follow(each) for each in collections]
            question = question_of(query, [each.words for each in followed])
            if question is None:
                return None
            found = [each.words.matches(question) for each in followed]
        return _in_order(collections, found)

    def _follow(self, collection: C) -> _Followed[E]:
        known = self._followed.get(collection.namespace)
        if known is None:
            known = self._followed[collection.namespace] = _Followed()
        known.follow(collection.searched)
        return known


def _in_order(
    collections: Sequence[C], found: Sequence[Matches[E]]
) -> Iterator[tuple[float, C, E]]:
    best = _sorted(collections, [each.scored for each in found])
    yield from best
    lowest = best[-1][0] if best else 1.0
    for score, collection, entry in _sorted(collections, [each.estimated() for each in found]):
        # An entry that would score above the first ones follows them all the same.
        yield min(score, lowest), collection, entry


def _sorted(
    collections: Sequence[C], scores: Sequence[Mapping[E, float]]
) -> list[tuple[float, C, E]]:
    """Return entries of several collections, best first, without those that a newer one of the same key hides."""
    found = [
        (_normal(score), collection, entry)
        for collection, several in zip(collections, scores, strict=True)
        for entry, score in several.items()
        if collection.get(entry.key) is entry
    ]
    found.sort(key=lambda each: (-each[0], each[2].order))
    return found


def _normal(relevance: float) -> float:
    """Return a relevance as a score between 0 and 1.

    Args:
        relevance: About 1 for an entry of average length that has each word once, which gives two thirds.
    """
    return relevance / (relevance + 0.5)


def matched_words(query: str, *texts: str) -> list[str]:
    """Return the words of a query that texts have in any form, as they were asked, without function words."""
    stored = {word for text in texts for word in indexed_words(text)}
    asked = dict.fromkeys(asked_words(query))
    telling = [word for word in asked if not word.says_little] or list(asked)
    return [word.shown for word in telling if not stored.isdisjoint(word.forms)]
