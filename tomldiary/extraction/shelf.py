"""Which stored preferences a model is shown beside a turn: those that share words with it, then the newest.

A shelf follows the versions of one user's memory. An entry that did not change is the same object in the
next version, so only what changed is split into words again.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, cast

from tomldiary.draft import preference_line
from tomldiary.forks import renew_after_fork
from tomldiary.preferences import entry_text
from tomldiary.similarity import normalise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tomldiary.preferences import Preferences

__all__ = ["Shelf", "Shelves"]

_SHORT_WORD = 2  # words up to this length say nothing about the topic
_SHORTEST_LINE = 12  # "- a/b: c (1×)"
_STRIDE = 64  # entries compared at once
_CACHED_USERS = 256


class _Category:
    """The entries of one category: their lines, and by word where they stand."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._clear()

    def _clear(self) -> None:
        self._keys: list[str] = []
        self._entries: list[Any] = []
        self._words: list[frozenset[str]] = []
        self.lines: list[str] = []
        """A line for each entry, empty for what is no entry."""
        self.updated: list[str] = []
        self.places: dict[str, set[int]] = {}
        self.strays = 0

    def follow(self, keys: list[str], entries: list[Any]) -> None:
        """Take over what is stored now."""
        known = len(self._keys)
        if keys[:known] != self._keys:
            # Something was removed or moved: positions are no longer what they were.
            self._clear()
            known = 0
        is_changed = known < len(keys)
        for start in range(0, known, _STRIDE):
            before, now = self._entries[start : start + _STRIDE], entries[start : start + _STRIDE]
            if all(map(is_, before, now)):
                continue
            is_changed = True
            for number, (old, new) in enumerate(zip(before, now, strict=False), start):
                if old is not new:
                    self._put(number, keys[number], new)
        for number in range(known, len(keys)):
            self.lines.append("")
            self.updated.append("")
            self._words.append(frozenset())
            self._put(number, keys[number], entries[number])
        self._keys, self._entries = keys, entries
        if is_changed:
            self.strays = self.lines.count("")

    def _put(self, number: int, key: str, entry: Any) -> None:
        table = cast("dict[str, Any]", entry) if type(entry) is dict else None
        words = _words(entry_text(table)) if table is not None else frozenset[str]()
        for word in self._words[number] - words:
            self.places[word].discard(number)
        for word in words - self._words[number]:
            self.places.setdefault(word, set()).add(number)
        self._words[number] = words
        self.lines[number] = preference_line(self._name, key, table) if table is not None else ""
        self.updated[number] = str(table.get("_updated", "")) if table is not None else ""


class Shelf:
    """One user's preferences as lines of text, found by the words of a turn. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._categories: dict[str, _Category] = {}

    def lines(self, preferences: Preferences, turn: str, budget: int) -> tuple[list[str], int]:
        """Return the lines to show, in the order of the file, and how many entries they leave out.

        Args:
            preferences: The memory as it is now.
            turn: What was said.
            budget: Characters that the lines may take with their line breaks.
        """
        with self._lock:
            found = [self._followed(preferences, name) for name in preferences.rules.categories]
            lines = list(chain.from_iterable(category.lines for category in found))
            stored = len(lines) - sum(category.strays for category in found)
            # A line is never shorter than this, so a large memory is noticed without adding it up.
            if stored * _SHORTEST_LINE <= budget:
                shown = [line for line in lines if line]
                if sum(map(len, shown)) + len(shown) <= budget:
                    return shown, 0
            chosen: list[int] = []
            used = 0
            for number in _ranked(found, _words(turn), len(lines)):
                if lines[number]:
                    used += len(lines[number]) + 1
                    if used > budget:
                        break
                    chosen.append(number)
        return [lines[number] for number in sorted(chosen)], stored - len(chosen)

    def _followed(self, preferences: Preferences, name: str) -> _Category:
        category = self._categories.get(name)
        if category is None:
            category = self._categories[name] = _Category(name)
        category.follow(*preferences.columns(name))
        return category


def _ranked(categories: Sequence[_Category], words: frozenset[str], total: int) -> Iterator[int]:
    """Yield all entries: those that share most words with the turn, the newest of them first, then the rest.

    New entries stand at the end of their category.
    """
    shared: Counter[int] = Counter()
    updated: list[str] = []
    for category in categories:
        offset = len(updated)
        updated += category.updated
        for word in words & category.places.keys():
            places = category.places[word]
            shared.update([offset + place for place in places] if offset else places)
    # Each sort keeps the order of the one before among equals.
    first = sorted(shared)
    first.sort(key=updated.__getitem__)
    first.sort(key=shared.__getitem__)
    yield from reversed(first)
    yield from (number for number in range(total - 1, -1, -1) if number not in shared)


class Shelves:
    """The shelves of the users whose turns were read most recently."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start anew with a new lock."""
        self._guard = threading.Lock()
        self._shelves: OrderedDict[str, Shelf] = OrderedDict()

    def of(self, user: str) -> Shelf:
        """Return a user's shelf."""
        with self._guard:
            shelf = self._shelves.setdefault(user, Shelf())
            self._shelves.move_to_end(user)
            while len(self._shelves) > _CACHED_USERS:
                self._shelves.popitem(last=False)
        return shelf

    def drop(self, user: str) -> None:
        """Let go of what is known of a user's entries."""
        with self._guard:
            self._shelves.pop(user, None)


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in normalise(text).split() if len(word) > _SHORT_WORD)
