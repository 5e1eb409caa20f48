"""The ranking of matches for recall, stores, retrievers, tools, prompts and the command line.

A `UserIndex` follows the collections of one user, and reads only the entries that changed since the last search.
Unchanged entries are the same objects in the next version of a collection.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from itertools import accumulate, groupby
from math import exp
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from tomldiary.retrieval.lexical_index import (
    Collection,
    LexicalIndex,
    Matches,
    Searchable,
    question_of,
)
from tomldiary.retrieval.vector_index import QueryVector, numpy
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.text.words import Asked, asked_words, indexed_words

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

E = TypeVar("E", bound=Searchable)
C = TypeVar("C", bound=Collection[Any])
_HALF = 3.0
"""The rank, in standard deviations, that has a score of one half."""
_NOISE = 1e-5
_KEPT = 1000  # the number of indexes that are kept for collections that a search leaves out


class Ranked(NamedTuple, Generic[C, E]):
    """An entry with its rank by words and vectors."""

    rank: float
    """The rank in standard deviations above the mean."""
    has_words: bool
    cosine: float
    collection: C
    entry: E


class UserIndex(Generic[C, E]):
    """The indexes of one user's collections. Thread-safe."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Reset the index after a fork, because another thread may have been changing it."""
        self._guard = threading.Lock()
        self._followed: dict[Hashable, LexicalIndex[E]] = {}

    def search(
        self,
        collections: Sequence[C],
        query: str,
        asked: QueryVector | None = None,
    ) -> Iterator[tuple[float, C, E]] | None:
        """Return an iterator over matches, best first; None if the query has no words and no vector.

        A match is the score between 0 and 1, the collection and the entry. A search by words gives about two thirds
        to a text of average length with each word once. The entries with the best estimates are scored exactly; the
        order of the others is approximate.

        Args:
            collections: The collections to search.
            query: A question or words.
            asked: The query as a vector, to also rank by vectors; None ranks only by words.
        """
        if asked is None:
            found = self._matches(collections, query)
            return _in_order(collections, found) if found is not None else None
        return (
            (1 / (1 + exp(_HALF - each.rank)), each.collection, each.entry)
            for each in self.fused(collections, query, asked)
            if each.rank >= 0 or each.has_words
        )

    def fused(
        self, collections: Sequence[C], query: str, asked: QueryVector
    ) -> Iterator[Ranked[C, E]]:
        """Return an iterator over all entries with vectors, best first by words and vectors together.

        Both scores are standardised over all entries. The weight of the score by words is the greatest share of
        the query's words in one entry. `Embedding.is_cosine` ranks only by the cosine.
        """
        is_cosine = asked.vectors.embedding.is_cosine
        found = [] if is_cosine else self._matches(collections, query) or []
        return _fused(collections, found, asked)

    def _matches(self, collections: Sequence[C], query: str) -> list[Matches[E]] | None:
        with self._guard:
            followed = [self._follow(each) for each in collections]
            # Removed collections are searched no more, so those that were searched last are kept.
            for namespace in list(self._followed)[: -len(collections) - _KEPT]:
                del self._followed[namespace]
            question = question_of(query, followed)
            if question is None:
                return None
            return [each.matches(question) for each in followed]

    def _follow(self, collection: C) -> LexicalIndex[E]:
        # An index whose update is interrupted is incomplete. It is not kept, so the next search makes a new one.
        known = self._followed.pop(collection.namespace, None) or LexicalIndex[E]()
        known.follow(collection.searched)
        self._followed[collection.namespace] = known  # the last one in order
        return known


def _in_order(
    collections: Sequence[C], found: Sequence[Matches[E]]
) -> Iterator[tuple[float, C, E]]:
    lowest = 1.0
    for score, collection, entry in _sorted(collections, [each.scored for each in found]):
        lowest = score
        yield score, collection, entry
    for score, collection, entry in _sorted(collections, [each.estimated() for each in found]):
        # An estimate above the exact scores is lowered, so that scores never increase.
        yield min(score, lowest), collection, entry


def _sorted(
    collections: Sequence[C], scores: Sequence[Mapping[E, float]]
) -> Iterator[tuple[float, C, E]]:
    """Yield entries of several collections, best first, without those replaced by a newer entry of the same key."""
    found = [
        (score, collection, entry)
        for collection, several in zip(collections, scores, strict=True)
        for entry, score in several.items()
    ]
    found.sort(key=itemgetter(0), reverse=True)
    for score, alike in groupby(found, key=itemgetter(0)):
        for _, collection, entry in sorted(alike, key=lambda each: each[2].order):
            if collection.get(entry.key) is entry:
                yield _normal(score), collection, entry


def _fused(
    collections: Sequence[C],
    found: Sequence[Matches[E]],
    asked: QueryVector,
) -> Iterator[Ranked[C, E]]:
    several, cosines, ranks = asked.vectors.cosines(collections, asked.vector)
    if not asked.vectors.embedding.is_cosine:
        ranks = _standardised(ranks)
    words: Any = None
    if found:  # empty if only the cosine ranks
        words = _word_scores(found, several)
        # With a low coverage by words, vectors decide.
        ranks = ranks + max(each.coverage for each in found) * _standardised(words)
    ends = list(accumulate(map(len, several)))
    places = numpy().argsort(-ranks).tolist()  # not stable: equal ranks are sorted below
    given: set[E] = set()
    for _, alike in groupby(places, key=ranks.__getitem__):
        rows: list[Ranked[C, E]] = []
        for place in alike:
            number = bisect_right(ends, place)
            entry = several[number][place - ends[number]]
            collection = collections[number]
            if entry not in given and collection.get(entry.key) is entry:
                given.add(entry)
                has_words = words is not None and bool(words[place] > 0)
                rank, cosine = float(ranks[place]), float(cosines[place])
                rows.append(Ranked(rank, has_words, cosine, collection, entry))
        rows.sort(key=lambda row: row.entry.order)
        yield from rows


def _word_scores(found: Sequence[Matches[E]], several: Sequence[Sequence[E]]) -> Any:
    """Return the scores by words of the entries of all collections; 0 without a match."""
    scores = [{**matches.estimated(), **matches.scored} for matches in found]
    return numpy().asarray(
        [
            known.get(entry, 0.0)
            for known, entries in zip(scores, several, strict=True)
            for entry in entries
        ]
    )


def _standardised(scores: Any) -> Any:
    """Return scores with the mean 0 and the standard deviation 1."""
    deviation = float(scores.std()) if len(scores) else 0.0
    return (scores - scores.mean()) / deviation if deviation > _NOISE else scores * 0.0


def _normal(relevance: float) -> float:
    """Return a relevance as a score between 0 and 1.

    Args:
        relevance: About 1 for an entry of average length with each word once, which gives two thirds.
    """
    return relevance / (relevance + 0.5)


def telling_words(query: str) -> list[Asked]:
    """Return the distinct words of a query, without function words unless it has no others."""
    asked = dict.fromkeys(asked_words(query))
    return [word for word in asked if not word.is_common] or list(asked)


def matched_words(asked: Sequence[Asked], *texts: str) -> list[str]:
    """Return the words that occur in some texts in any form, as spelled in the query."""
    stored = {word for text in texts for word in indexed_words(text)}
    return [word.shown for word in asked if not stored.isdisjoint(word.forms)]
