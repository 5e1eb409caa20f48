"""Which stored preferences a model is shown beside a turn: those that share words with it, then the newest."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.preferences import entry_text
from tomldiary.extraction.draft import preference_line
from tomldiary.text.incremental_index import Following
from tomldiary.text.similarity import normalise
from tomldiary.text.words import searchable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tomldiary.entries.preferences import Preferences

__all__ = ["relevant_lines"]

_SHORT_WORD = 2  # words up to this length say nothing about the topic
_SHORTEST_LINE = 12  # "- a/b: c (1×)"


class _Shelf(Following):
    """The lines of one category, and by word where they stand."""

    def __init__(self, category: str) -> None:
        super().__init__(category)
        self.lines: list[str] = []
        """A line for each entry, empty for what is no entry."""
        self.updated: list[str] = []
        self._words: list[frozenset[str]] = []
        self._by_word: dict[str, set[int]] = {}

    def sharing(self, words: frozenset[str]) -> list[set[int]]:
        """Return for each of these words that occurs in which lines it does."""
        return [self._by_word[word] for word in words & self._by_word.keys()]

    def _put(self, number: int, key: str, entry: Any) -> None:
        table = cast("dict[str, Any]", entry) if type(entry) is dict else None
        words = _words(entry_text(table)) if table is not None else frozenset[str]()
        if number == len(self.lines):
            self.lines.append("")
            self.updated.append("")
            self._words.append(frozenset())
        self._unplace(number, self._words[number] - words)
        for word in words - self._words[number]:
            self._by_word.setdefault(word, set()).add(number)
        self._words[number] = words
        self.lines[number] = preference_line(self.category, key, table) if table is not None else ""
        self.updated[number] = str(table.get("_updated", "")) if table is not None else ""

    def _forget(self, known: int) -> None:
        for number, words in enumerate(self._words[known:], known):
            self._unplace(number, words)
        del self.lines[known:], self.updated[known:], self._words[known:]

    def _unplace(self, number: int, words: frozenset[str]) -> None:
        for word in words:
            places = self._by_word[word]
            places.discard(number)
            if not places:
                del self._by_word[word]


def relevant_lines(preferences: Preferences, turn: str, budget: int) -> tuple[list[str], int]:
    """Return the lines to show, in the order of the file, and how many entries they leave out.

    Args:
        preferences: The memory as it is now.
        turn: What was said.
        budget: Characters that the lines may take with their line breaks.
    """
    lines: list[str] = []

    def add(shelf: _Shelf) -> None:
        lines.extend(shelf.lines)

    _for_each_shelf(preferences, add)
    stored = len(lines) - lines.count("")
    # A line is never shorter than this, so a large memory is noticed without adding it up.
    if stored * _SHORTEST_LINE <= budget:
        shown = [line for line in lines if line]
        if sum(map(len, shown)) + len(shown) <= budget:
            return shown, 0
    words = _words(turn)
    updated: list[str] = []
    shared: Counter[int] = Counter()

    def compare(shelf: _Shelf) -> None:
        offset = len(updated)
        updated.extend(shelf.updated)
        for places in shelf.sharing(words):
            shared.update([offset + place for place in places] if offset else places)

    _for_each_shelf(preferences, compare)
    # Each sort keeps the order of the one before among equals.
    first = sorted(shared)
    first.sort(key=updated.__getitem__)
    first.sort(key=shared.__getitem__)
    chosen: list[int] = []
    # New entries stand at the end of their category.
    for number in chain(reversed(first), _except(shared, len(lines))):
        if lines[number]:
            budget -= len(lines[number]) + 1
            if budget < 0:
                break
            chosen.append(number)
    return [lines[number] for number in sorted(chosen)], stored - len(chosen)


def _for_each_shelf(preferences: Preferences, use: Callable[[_Shelf], None]) -> None:
    for category in preferences.rules.categories:
        preferences.following(category, _Shelf, use)


def _except(shown: Mapping[int, int], total: int) -> Iterator[int]:
    """Yield the other lines, the last first."""
    return (number for number in range(total - 1, -1, -1) if number not in shown)


def _words(text: str) -> frozenset[str]:
    words = searchable(normalise(text)).split()
    return frozenset(word for word in words if len(word) > _SHORT_WORD)
