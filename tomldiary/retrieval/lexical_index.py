"""The word index of one collection of entries: finds and scores the entries that match a question.

A collection has parts, such as its documents. Unchanged parts and entries are the same objects in the next version,
so an index that follows a collection reads only the changes.

The index is in memory and is derived from the entries. Each entry is one row, or one row for each passage of
a long text. A row stores the numbers of its words in order, and each word stores the rows that contain it.

The score of a row is BM25 over the words and word pairs of the question, times the share of the question's
words in the row. Words are weighted by rarity, so most languages need no list of common words.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from heapq import nlargest
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from tomldiary.text.words import END_MARK, Asked, asked_words, indexed_words

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

_LONG = 600  # characters of a text in one row; a longer text has a row for each passage
_PASSAGE = 400  # characters
_MOST_WORDS = 64  # the maximum number of searched words of a question; the rarest are used
_SATURATION = 1.2  # BM25's k1
_LENGTH_SHARE = 0.75  # BM25's b
_LITTLE = 0.3  # the factor for the weight of a common word
_PAIR = 0.5  # the share of the weight of two words that is added if they are adjacent
_BEST, _MEAN = 0.7, 0.3  # the shares of the best passage and of the mean of all passages
_BEFORE, _AFTER = 0.5, 0.3  # the shares of the previous and the next turn's score
_SCORED = 40  # the number of rows with the best estimates, which are scored exactly
_DEAD = 256  # the number of dead rows that are kept in addition to one for each live row


class Searchable(Protocol):
    """An entry of an index, compared by identity."""

    @property
    def key(self) -> str:
        """Its key in the collection."""
        ...

    @property
    def order(self) -> tuple[Any, ...]:
        """The sort key of entries with equal scores."""
        ...

    @property
    def searched_text(self) -> str:
        """The text to search."""
        ...

    @property
    def searched_names(self) -> str:
        """Names that also match the entry, such as its category; they do not count for its length."""
        ...

    @property
    def turn(self) -> tuple[str, str] | None:
        """The session of a turn, and its position as sortable text; None if the entry is not a turn."""
        ...


S_co = TypeVar("S_co", bound=Searchable, covariant=True)


class Part(Protocol[S_co]):
    """Some entries of a collection. Immutable."""

    @property
    def entries(self) -> Mapping[str, S_co]:
        """The entries by key."""
        ...


class Collection(Protocol[S_co]):
    """One version of a group of entries. Immutable."""

    @property
    def namespace(self) -> Hashable:
        """The name of the group, which is the same in every version."""
        ...

    @property
    def searched(self) -> Mapping[str, Part[S_co]]:
        """Its parts by name."""
        ...

    def get(self, key: str) -> S_co | None:
        """Return the entry with a key, or None."""
        ...


E = TypeVar("E", bound=Searchable)


def changes(before: Mapping[str, Part[E]], now: Mapping[str, Part[E]]) -> tuple[list[E], list[E]]:
    """Return the entries that were removed from the parts of a version, and those that were added."""
    gone: dict[E, None] = {}
    come: dict[E, None] = {}
    for name in {**before, **now}:
        one, other = before.get(name), now.get(name)
        if one is other:
            continue
        old: Mapping[str, E] = one.entries if one is not None else {}
        new: Mapping[str, E] = other.entries if other is not None else {}
        gone.update((entry, None) for key, entry in old.items() if new.get(key) is not entry)
        come.update((entry, None) for key, entry in new.items() if old.get(key) is not entry)
    # An entry may have moved to another part.
    return (
        [entry for entry in gone if entry not in come],
        [entry for entry in come if entry not in gone],
    )


class Question(NamedTuple):
    """A question, with its words weighted by their rarity among the searched rows."""

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


class LexicalIndex(Generic[E]):
    """The words of one collection. Not thread-safe."""

    def __init__(self) -> None:
        self.parts: Mapping[str, Part[E]] = {}
        """The parts of the collection that it follows."""
        self._numbers: dict[str, int] = {}
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
        gone, come = changes(self.parts, parts)
        for entry in gone:
            self.remove(entry)
        for entry in come:
            self.add(entry)
        self.parts = parts

    def add(self, entry: E) -> None:
        """Index an entry."""
        text = entry.searched_text
        names = indexed_words(entry.searched_names)
        first = len(self._rows)
        for passage in _passages(text) or ([""] if names else []):
            words = indexed_words(passage)
            length = sum(not word.startswith(END_MARK) for word in words)
            self._add_row(entry, [*words, *names], length)
        self._places[entry] = range(first, len(self._rows))
        turn = entry.turn
        if turn is not None:
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
        """Return the number of rows that contain a word in any form."""
        return sum(len(self._having[number]) for number in self._forms(word))

    def _forms(self, word: Asked) -> list[int]:
        return [self._numbers[form] for form in word.forms if form in self._numbers]

    def matches(self, question: Question) -> Matches[E]:
        """Return the current entries that contain words of a question."""
        shares = self._weights(question)
        found = Matches(self._owners, self._lengths, shares, question)
        if shares:
            found.scored = self._scored(question, shares, found.estimates)
        return found

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

    def _scored(
        self, question: Question, shares: dict[int, float], estimates: dict[int, float]
    ) -> dict[E, float]:
        """Return the exact scores of the entries with the best estimates."""
        rows = nlargest(_SCORED, estimates, key=estimates.__getitem__)
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
        self._owners = owners
        self._shares = shares
        self._total = question.total
        self.estimates: dict[int, float] = _estimates(shares, lengths, question) if shares else {}
        """The scores of rows under the assumption that each word occurs once."""
        self.scored: dict[E, float] = {}
        """The exact scores of the entries with the best estimates."""

    @property
    def coverage(self) -> float:
        """The greatest share of the question's words in one row, from 0 to 1."""
        return max(self._shares.values(), default=0.0) / self._total

    def estimated(self) -> dict[E, float]:
        """Return the entries without an exact score, with their estimated scores."""
        owners, scored = self._owners, self.scored
        found: dict[E, float] = {}
        for row, score in self.estimates.items():
            entry = owners[row]
            if entry not in scored and score > found.get(entry, 0.0):
                found[entry] = score
        return found


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


def question_of(query: str, indexes: Sequence[LexicalIndex[Any]]) -> Question | None:
    """Return a question for a search of some indexes, or None for a query without words."""
    asked = asked_words(query)
    words = list(dict.fromkeys(asked))
    if not words:
        return None
    size = sum(index.size for index in indexes)
    length = sum(index.length for index in indexes)
    having = {word: sum(index.count(word) for index in indexes) for word in words}
    if len(words) > _MOST_WORDS:  # the rarest of those that are stored
        words.sort(key=lambda word: having[word] or size + 1)
        having = {word: having[word] for word in words[:_MOST_WORDS]}
    weights = {word: _weight(word, max(number, 1), size) for word, number in having.items()}
    stored = sum(weights[word] for word in having if having[word])
    pairs = [
        (one, other, _PAIR * (weights[one] + weights[other]))
        for one, other in dict.fromkeys(pairwise(asked))
        if one in weights and other in weights
    ]
    total = sum(weights.values())
    # At least 1, because lengths are divided by it; it would be 0 if only names are indexed.
    average = max(length, 1) / max(size, 1)
    return Question(list(weights.items()), pairs, total, stored, average)


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
            space = max(text.rfind(" ", at + 1, end), text.rfind("\n", at + 1, end))
            end = space if space > at else end
        found.append(text[at:end])
        at = end
    return found
