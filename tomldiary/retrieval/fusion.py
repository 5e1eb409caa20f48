"""The ranking by words and vectors together."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, groupby
from math import exp
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from tomldiary.retrieval.collection import C, E
from tomldiary.retrieval.vector_index import QueryVector, numpy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tomldiary.retrieval.lexical_index import Matches

_HALF = 3.0
"""The rank, in standard deviations, that has a score of one half."""
_NOISE = 1e-5


class Ranked(NamedTuple, Generic[C, E]):
    """An entry with its rank by words and vectors."""

    rank: float
    """The rank in standard deviations above the mean."""
    has_words: bool
    cosine: float
    collection: C
    entry: E

    @property
    def score(self) -> float:
        """The rank as a score between 0 and 1."""
        return 1 / (1 + exp(_HALF - self.rank))


def fuse(
    collections: Sequence[C], found: Sequence[Matches[E]], asked: QueryVector
) -> Iterator[Ranked[C, E]]:
    """Return an iterator over the entries of collections, best first.

    Args:
        collections: The collections.
        found: The matches by words in each of them; empty ranks only by the cosine.
        asked: The query as a vector.
    """
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
