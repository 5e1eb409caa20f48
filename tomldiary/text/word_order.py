"""Detects texts that differ in meaning because of their word order: "tea over coffee", "coffee over tea".

The order of some parts does not change the meaning: parts of a sentence ("in Rome with her", "with her in Rome"), the
words of an enumeration, the sides of an "is", and a word for a time.
"""

from __future__ import annotations

from collections import Counter

from tomldiary.text.statement_words import AND, ARTICLES, PART_STARTS
from tomldiary.text.value_words import COPULAS, EXCLUDING

__all__ = ["SEPARATORS", "in_one_order", "is_reordered"]

SEPARATORS = frozenset(",、&")
"""Marks between the words of an enumeration."""
_SHORTEST = 3
_ENDING = 2
"""The maximum number of letters at the end in which forms of one word differ."""
_SUBJECTS = frozenset(
    ["i", "he", "she", "we", "they", "it", "ich", "er", "wir", "je", "il", "elle", "yo", "eu"]
)


def _stem(word: str) -> str:
    return word[: max(_SHORTEST, len(word) - _ENDING)]


_TIMES = [
    word for word, values in EXCLUDING.items() if any(v.kind == "different time" for v in values)
]
_WHEN = frozenset([*_TIMES, *map(_stem, _TIMES)])


def is_reordered(one: tuple[str, ...], two: tuple[str, ...]) -> bool:
    """Return whether two texts have the same words, or forms of them, in an order that may change the meaning.

    Args:
        one: The words of one text from `in_one_order`.
        two: The words of the other text from `in_one_order`.
    """
    ours, theirs = one, two
    if ours == theirs or len(ours) != len(theirs):
        return False
    if Counter(ours) != Counter(theirs):
        ours, theirs = tuple(map(_stem, ours)), tuple(map(_stem, theirs))
        if Counter(ours) != Counter(theirs):
            return False
    telling = [[word for word in each if word not in COPULAS] for each in (ours, theirs)]
    if telling[0] == telling[1] or _have_same_parts(ours, theirs):
        return False
    return _without_time(ours) != _without_time(theirs)


def _without_time(words: tuple[str, ...]) -> list[str]:
    """Return words without a single word for a time, its preposition and the subject; otherwise unchanged."""
    times = [at for at, word in enumerate(words) if word in _WHEN]
    if len(times) != 1:
        return list(words)
    at = times[0]
    first = at - 1 if at and words[at - 1] in PART_STARTS else at
    return [word for word in (*words[:first], *words[at + 1 :]) if word not in _SUBJECTS]


def _have_same_parts(one: tuple[str, ...], two: tuple[str, ...]) -> bool:
    """Return whether only the positions of whole parts differ: "in Rome with her", "with her in Rome"."""
    ours, theirs = _split_parts(one), _split_parts(two)
    is_bare = any(len(part) == 1 and part[0] in PART_STARTS for part in ours)
    return not is_bare and Counter(ours) == Counter(theirs)


def _split_parts(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    is_open = False
    for word in words:
        if is_open and word not in PART_STARTS and word not in COPULAS and word not in _SUBJECTS:
            found[-1] += (word,)
        else:
            found.append((word,))
        is_open = word not in COPULAS
    return found


def in_one_order(words: list[str]) -> tuple[str, ...]:
    """Return words without articles; the words of an enumeration are sorted."""
    found: list[str] = []
    run: list[str] = []
    is_joined = False
    for word in words:
        if word in AND or word in SEPARATORS:
            is_joined = True
        elif word not in ARTICLES:
            if not is_joined:
                found += sorted(run)
                run = []
            run.append(word)
            is_joined = False
    return (*found, *sorted(run))
