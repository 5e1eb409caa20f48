"""The search by words, for recall, stores, retrievers, tools, prompts and the command line.

A `LexicalIndex` finds and scores the entries of one collection that match a question. A `UserIndex` searches all
collections of one user, and reads only the entries that changed since its last search.

An index is in memory and is derived from the entries. Each entry is one row, or one row for each passage of
a long text. A row stores the numbers of its words in order, and each word stores the rows that contain it.

The score of a row is BM25 over the words and word pairs of the question, times the share of the question's
words in the row. Words are weighted by rarity, so most languages need no list of common words.

A word of the question that no row contains may be misspelled, and is replaced by the nearest words of the rows.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, insort
from heapq import nlargest
from itertools import chain, groupby, islice, pairwise
from math import log
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from tomldiary.retrieval.collection import KEPT, C, E, Part, changes
from tomldiary.retrieval.fusion import fuse
from tomldiary.retrieval.spelling import respelled, spelling_group
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.text.words import DAY_MARK, END_MARK, Asked, asked_words, day_words, indexed_words

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, KeysView, Mapping, Sequence

    from tomldiary.retrieval.fusion import Ranked
    from tomldiary.retrieval.vector_index import QueryVector

_LONG = 600  # characters of a text in one row; a longer text has a row for each passage
_PASSAGE = 400  # characters
_BETWEEN_WORDS = " \n。，、"  # where a passage may end
_MOST_WORDS = 64  # the maximum number of searched words of a question; the rarest are used
_SATURATION = 1.2  # BM25's k1
_LENGTH_SHARE = 0.75  # BM25's b
_LITTLE = 0.3  # the factor for the weight of a common word
_RESPELLED = 0.5  # the factor for the weight of a word in another spelling
_PAIR = 0.5  # the share of the weight of two words that is added if they are adjacent
_BEST, _MEAN = 0.7, 0.3  # the shares of the best passage and of the mean of all passages
_BEFORE, _AFTER = 0.5, 0.3  # the shares of the previous and the next turn's score
_SCORED = 40  # the number of rows with the best estimates, which are scored exactly
_MOST_TIMES = 4  # the number is multiplied by that of the collections with matches, at most by this
_DEAD = 256  # the number of dead rows that are kept in addition to one for each live row


class Question(NamedTuple):
    """A question, with its words weighted by their rarity among the searched rows."""

    asked: list[Asked]
    """All words in order, with respelled words in place of misspelled ones."""
    words: list[tuple[Asked, float]]
    """Each word once, with its weight."""
    pairs: list[tuple[Asked, Asked, float]]
    """Adjacent words, with the weight of the pair."""
    total: float
    """The weight of all words."""
    stored: float
    """The weight of the words that occur in any row."""
    length: float
    """The average number of words in a row."""

    @property
    def is_common(self) -> bool:
        """Whether all words are common."""
        return all(word.is_common for word, _ in self.words)

    def damping(self, length: int) -> float:
        """Return the term of BM25 that normalises the count of a word by the length of the row."""
        return _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * length / self.length)


class Found(NamedTuple, Generic[C, E]):
    """The result of a search."""

    asked: list[Asked]
    """The words of the query in order, with respelled words in place of misspelled ones."""
    matches: Iterator[tuple[float, C, E]]
    """The score between 0 and 1, the collection and the entry of each match, best first."""


class LexicalIndex(Generic[E]):
    """The words of one collection. Not thread-safe."""

    def __init__(self) -> None:
        self.parts: Mapping[str, Part[E]] = {}
        """The parts of the collection that it follows."""
        self._numbers: dict[str, int] = {}
        self._spelled: dict[str, list[str]] = {}
        """The first forms of `_numbers` by `spelling_group`, which only misspelled words need."""
        self._grouped = 0
        """The number of forms in `_spelled`."""
        self._having: list[array[int]] = []
        self._rows: list[array[int]] = []
        self._owners: list[E] = []
        self._lengths = array("I")
        self._places: dict[E, range] = {}
        self._turns: dict[str, list[tuple[str, int]]] = {}
        """The ordered turns of each session, each as its position in the session and its first row."""
        self._turn_of: dict[E, tuple[str, tuple[str, int]]] = {}
        """The session of each entry that is a turn, and its element in `_turns`."""
        self.length = 0
        """The number of words in all rows."""
        self.size = 0
        """The number of rows."""

    # Changes

    def follow(self, parts: Mapping[str, Part[E]]) -> None:
        """Update the index to a new version of the collection's parts."""
        if parts is self.parts:
            return
        gone, come = changes(self.parts, parts)
        for entry in gone:
            self.remove(entry)
        for entry in come:
            self.add(entry)
        self.parts = parts

    def add(self, entry: E) -> None:
        """Index an entry."""
        text = entry.searched_text
        names, day = indexed_words(entry.searched_names), day_words(entry.day)
        first = len(self._rows)
        for passage in _passages(text) or ([""] if names else []):
            words = indexed_words(passage)
            length = sum(not word.startswith(END_MARK) for word in words)
            self._add_row(entry, [*words, *names, *day], length)
        self._places[entry] = range(first, len(self._rows))
        turn = entry.turn
        if turn is not None and first < len(self._rows):  # a turn without words has no row
            session, place = turn
            self._turn_of[entry] = session, (place, first)
            insort(self._turns.setdefault(session, []), (place, first))

    def _add_row(self, entry: E, words: list[str], length: int) -> None:
        found: list[int] = []
        for word in words:
            number = self._numbers.setdefault(word, len(self._having))
            if number == len(self._having):
                self._having.append(array("I"))
            found.append(number)
        for number in set(found):
            self._having[number].append(len(self._rows))
        self._rows.append(array("I", found))  # a new array without unused capacity
        self._owners.append(entry)
        self._lengths.append(length)
        self.length += length
        self.size += 1

    def remove(self, entry: E) -> None:
        """Drop an entry."""
        if entry in self._turn_of:
            session, turn = self._turn_of.pop(entry)
            turns = self._turns[session]
            del turns[bisect_left(turns, turn)]
        for at in self._places.pop(entry):
            for number in set(self._rows[at]):
                having = self._having[number]
                del having[bisect_left(having, at)]
            self.length -= self._lengths[at]
            self.size -= 1
        if len(self._rows) > 2 * self.size + _DEAD:
            self._compact()

    def _compact(self) -> None:
        """Drop the rows of removed entries. A running search keeps the previous lists."""
        kept = list(self._places)
        self.__init__()
        for entry in kept:
            self.add(entry)

    # Searching

    def count(self, word: Asked) -> int:
        """Return about how many rows contain a word in any form; a row with several forms counts for each."""
        return min(sum(len(self._having[number]) for number in self._forms(word)), self.size)

    def known(self, forms: KeysView[str]) -> set[str]:
        """Return the forms that rows contain; some may have lost their rows."""
        return self._numbers.keys() & forms

    def _forms(self, word: Asked) -> list[int]:
        return [self._numbers[form] for form in word.forms if form in self._numbers]

    def spelled(self, group: str) -> list[str]:
        """Return the forms of a `spelling_group`; some may have lost their rows."""
        if self._grouped < len(self._numbers):
            for form in islice(self._numbers, self._grouped, None):
                self._spelled.setdefault(spelling_group(form), []).append(form)
            self._grouped = len(self._numbers)
        return self._spelled.get(group, [])

    def has(self, form: str) -> bool:
        """Return whether any row contains a form that `spelled` returned."""
        return bool(self._having[self._numbers[form]])

    def matches(self, question: Question) -> Matches[E]:
        """Return the current entries that contain words of a question."""
        return matches_of(question, [self])[0]

    def unscored(self, question: Question) -> Matches[E]:
        """Return the same without exact scores."""
        return Matches(self._owners, self._lengths, self._weights(question), question)

    def _weights(self, question: Question) -> dict[int, float]:
        """Return the weight of the question's words in each row that has any."""
        having = [
            (self._having[number], weight)
            for word, weight in question.words
            if not word.is_common or question.is_common
            for number in self._forms(word)
        ]
        if not having:
            return {}
        having.sort(key=lambda each: len(each[0]), reverse=True)
        found = dict.fromkeys(*having[0])
        get = found.get
        for rows, weight in having[1:]:
            for row in rows:
                found[row] = get(row, 0.0) + weight
        return found

    def scored(self, question: Question, found: Matches[E], rows: Sequence[int]) -> dict[E, float]:
        """Return the exact scores of the entries of some rows, and of the turns beside them."""
        if not rows:
            return {}
        shares = found.shares
        best = {self._owners[row] for row in rows}
        beside = {entry: self._beside(entry) for entry in best}
        for turns in list(beside.values()):
            for _, row in turns:
                entry = self._owners[row]
                if row in shares and entry not in beside:
                    beside[entry] = self._beside(entry)
        score = self._row_score(question)
        scores = {
            row: score(row) for entry in beside for row in self._places[entry] if row in shares
        }
        return {
            entry: sum(share * scores.get(row, 0.0) for share, row in turns)
            + self._entry_score(entry, scores)
            for entry, turns in beside.items()
        }

    def _entry_score(self, entry: E, scores: dict[int, float]) -> float:
        passages = [scores.get(row, 0.0) for row in self._places[entry]]
        return _BEST * max(passages) + _MEAN * sum(passages) / len(passages)

    def _beside(self, entry: E) -> list[tuple[float, int]]:
        """Return the rows of the short turns before and after a short turn, with the shares of their scores."""
        if entry not in self._turn_of or len(self._places[entry]) > 1:
            return []
        session, turn = self._turn_of[entry]
        turns = self._turns[session]
        at = bisect_left(turns, turn)
        rows = [
            (share, turns[other][1])
            for share, other in ((_BEFORE, at - 1), (_AFTER, at + 1))
            if 0 <= other < len(turns)
        ]
        return [each for each in rows if len(self._places[self._owners[each[1]]]) == 1]

    def _row_score(self, question: Question) -> Callable[[int], float]:
        """Return a function that scores a row exactly."""
        weights = [weight for _, weight in question.words]
        wanted = {
            number: at
            for at, (word, _) in enumerate(question.words)
            for number in self._forms(word)
        }
        pairs = [
            (weight, array("I", (one, two)).tobytes())
            for word, other, weight in question.pairs
            for one in self._forms(word)
            for two in self._forms(other)
        ]

        def score(at: int) -> float:
            row = self._rows[at]
            damping = question.damping(self._lengths[at])
            times: dict[int, int] = {}
            for number in row:
                if number in wanted:
                    word = wanted[number]
                    times[word] = times.get(word, 0) + 1
            relevance = share = 0.0
            for word, count in times.items():
                weight = weights[word]
                share += weight
                relevance += weight * count * (_SATURATION + 1) / (count + damping)
            if pairs and len(times) > 1:
                data = row.tobytes()
                together = sum(weight for weight, pair in pairs if pair in data)
                relevance += together * (_SATURATION + 1) / (1 + damping)
            return relevance / question.stored * share / question.total

        return score


class Matches(Generic[E]):
    """The entries of one collection that contain words of a question; later changes of entries do not affect it."""

    def __init__(
        self, owners: list[E], lengths: array[int], shares: dict[int, float], question: Question
    ) -> None:
        self.owners = owners
        """The entry of each row."""
        self.shares = shares
        """The weight of the question's words in each row that has any."""
        self._total = question.total
        self.estimates: dict[int, float] = _estimates(shares, lengths, question) if shares else {}
        """The scores of rows under the assumption that each word occurs once."""
        self.scored: dict[E, float] = {}
        """The exact scores of the entries with the best estimates."""

    @property
    def coverage(self) -> float:
        """The greatest share of the question's words in one row, from 0 to 1."""
        return max(self.shares.values(), default=0.0) / self._total

    def estimated(self) -> dict[E, float]:
        """Return the entries without an exact score, with their estimated scores."""
        owners, scored = self.owners, self.scored
        found: dict[E, float] = {}
        for row, score in self.estimates.items():
            entry = owners[row]
            if entry not in scored and score > found.get(entry, 0.0):
                found[entry] = score
        return found


def matches_of(question: Question, indexes: Sequence[LexicalIndex[E]]) -> list[Matches[E]]:
    """Return the matches of each index; the best estimates of all indexes together are scored exactly."""
    found = [index.unscored(question) for index in indexes]
    for index, matches, rows in zip(indexes, found, _best(found), strict=True):
        matches.scored = index.scored(question, matches, rows)
    return found


def _best(found: Sequence[Matches[Any]]) -> list[list[int]]:
    """Return the rows with the best estimates, and of the equal last ones those whose entries are first in order."""
    several = [matches.estimates.values() for matches in found if matches.estimates]
    number = _SCORED * min(len(several), _MOST_TIMES)
    least = min(nlargest(number, chain.from_iterable(several)), default=0.0)
    best = [[row for row, each in matches.estimates.items() if each > least] for matches in found]
    equal = [
        (matches.owners[row].order, rows, row)
        for matches, rows in zip(found, best, strict=True)
        for row, each in matches.estimates.items()
        if each == least
    ]
    equal.sort(key=itemgetter(0))
    for _, rows, row in equal[: number - sum(map(len, best))]:
        rows.append(row)
    return best


def _estimates(
    shares: Mapping[int, float], lengths: array[int], question: Question
) -> dict[int, float]:
    """Return the scores of rows from the weights of their words, as if each word occurred once."""
    share = (_SATURATION + 1) / question.stored / question.total
    least, more = 1 + question.damping(0), question.damping(1) - question.damping(0)
    return {
        row: weight * weight * share / (least + more * lengths[row])
        for row, weight in shares.items()
    }


def question_of(
    query: str, indexes: Sequence[LexicalIndex[Any]], *, is_respelled: bool = True
) -> Question | None:
    """Return a question for a search of some indexes, or None for a query without words.

    Args:
        query: A question or words.
        indexes: The indexes.
        is_respelled: Whether words that no row contains are replaced by near ones. This reads all words of the
            indexes, which must not change meanwhile.
    """
    asked = asked_words(query)
    words = list(dict.fromkeys(asked))
    if not words:
        return None
    size = sum(index.size for index in indexes)
    length = sum(index.length for index in indexes)
    having = {  # without the days and months of no entry, which need not be found in a text
        word: number
        for word, number in _counts(words, indexes).items()
        if number or not word.shown.startswith(DAY_MARK)
    }
    if len(having) > _MOST_WORDS:  # the rarest of those that are stored
        words = sorted(having, key=lambda word: having[word] or size + 1)
        having = {word: having[word] for word in words[:_MOST_WORDS]}
    weights = {word: _weight(word, max(number, 1), size) for word, number in having.items()}
    total = sum(weights.values())
    unknown = [word for word, number in having.items() if not number]
    near = respelled(unknown, indexes) if unknown and is_respelled else {}
    if near:
        asked = [near.get(word, word) for word in asked]
        counts = _counts(near.values(), indexes)
        having |= counts
        # First, so that a word of the question that is spelled as stored has precedence.
        weights = {
            **{word: _RESPELLED * _weight(word, number, size) for word, number in counts.items()},
            **{word: weight for word, weight in weights.items() if word not in near},
        }
    stored = sum(weight for word, weight in weights.items() if having[word])
    pairs = [
        (one, other, _PAIR * (weights[one] + weights[other]))
        for one, other in dict.fromkeys(pairwise(asked))
        if one in weights and other in weights
    ]
    # At least 1, because lengths are divided by it; it would be 0 if only names are indexed.
    average = max(length, 1) / max(size, 1)
    return Question(asked, list(weights.items()), pairs, total, stored, average)


def _counts(words: Iterable[Asked], indexes: Sequence[LexicalIndex[Any]]) -> dict[Asked, int]:
    """Return the number of rows that contain each word."""
    found = dict.fromkeys(words, 0)
    having: dict[str, list[Asked]] = {}
    for word in found:
        for form in word.forms:
            having.setdefault(form, []).append(word)
    for index in indexes:
        # A pasted document has thousands of words, and a user may have as many small collections.
        for word in {word for form in index.known(having.keys()) for word in having[form]}:
            found[word] += index.count(word)
    return found


def _weight(word: Asked, having: int, size: int) -> float:
    """Return the inverse document frequency of a word as in Lucene's BM25; rarer words weigh more."""
    weight = log(1 + (size - having + 0.5) / (having + 0.5))
    return weight * _LITTLE if word.is_common else weight


def _passages(text: str) -> list[str]:
    """Return the passages of a long text, cut between words, or a short text unchanged."""
    if 0 < len(text) <= _LONG:
        return [text]
    found: list[str] = []
    at = 0
    while at < len(text):
        end = at + _PASSAGE
        if end < len(text):
            cut = max(text.rfind(mark, at + 1, end) for mark in _BETWEEN_WORDS)
            end = cut if cut > at else end
        found.append(text[at:end])
        at = end
    return found


# The collections of one user


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
        self, collections: Sequence[C], query: str, asked: QueryVector | None = None
    ) -> Found[C, E] | None:
        """Return the matches of a query; None if it has no words and no vector.

        A search by words gives about two thirds to a text of average length with each word once. The entries with
        the best estimates are scored exactly; the order of the others is approximate.

        Args:
            collections: The collections to search.
            query: A question or words.
            asked: The query as a vector, to also rank by vectors; None ranks only by words.
        """
        question, found = self._matches(collections, query)
        words = question.asked if question is not None else []
        if asked is not None:
            ranked = fuse(collections, found, asked)
            return Found(
                words,
                (
                    (each.score, each.collection, each.entry)
                    for each in ranked
                    if each.rank >= 0 or each.has_words
                ),
            )
        return Found(words, _in_order(collections, found)) if words else None

    def fused(
        self, collections: Sequence[C], query: str, asked: QueryVector
    ) -> Iterator[Ranked[C, E]]:
        """Return an iterator over all entries with vectors, best first by words and vectors together.

        Both scores are standardised over all entries. The weight of the score by words is the greatest share of
        the query's words in one entry. `Embedding.is_cosine` ranks only by the cosine.
        """
        is_cosine = asked.vectors.embedding.is_cosine
        found = [] if is_cosine else self._matches(collections, query)[1]
        return fuse(collections, found, asked)

    def _matches(
        self, collections: Sequence[C], query: str
    ) -> tuple[Question | None, list[Matches[E]]]:
        with self._guard:
            followed = [self._follow(each) for each in collections]
            # Removed collections are searched no more, so those that were searched last are kept.
            for namespace in list(self._followed)[: -len(collections) - KEPT]:
                del self._followed[namespace]
            question = question_of(query, followed)
            if question is None:
                return None, []
            return question, matches_of(question, followed)

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
                # A relevance is about 1 for an entry of average length with each word once, which gives two thirds.
                yield score / (score + 0.5), collection, entry
