"""Detects similar statements that differ in one place: a time, an amount, a subject or a value.

There are two rules. Values of one kind exclude each other ("on Monday", "on Friday"). A property with one value at a
time has no second value ("lives in Paris", "lives in Rome"; "the boss is Ann", "the boss is Ben"). Statements that may
both be true, such as "likes cats" and "likes dogs", are no contradiction.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from tomldiary.text.languages import (
    COPULAS,
    DEFINITE,
    EXCLUDING,
    FAVOURITES,
    INDEFINITE,
    LINKING,
    NUMBERS,
    OPPOSITES,
    ORIGINS,
    PLACES,
    PLACES_IN,
    RELATIVES,
    SINGLE,
    TRADES,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tomldiary.text.languages import Value

_ELIDED = re.compile(r"\b(?:[cdjlmnst]|qu|dell|nell|all|dall|sull|un)'(?=\w)|(?<=\w)'s\b")
_WORD = re.compile(r"\d+(?:[.,:]\d+)*|[^\W_]+(?:[-'][^\W_]+)*")
_LONGEST = 3
"""The maximum number of words of a value."""
_NEAR = 4
"""The number of words in which the subject of a statement is searched."""
_COMMON = 4
_SHORTEST = 3
_ENDING = 2
"""The maximum number of letters in which forms of one word differ."""
_MOST_COMPARED = 40
"""The maximum number of words that only one of two similar statements has."""
_ARTICLES = INDEFINITE | (DEFINITE - PLACES_IN - {"as"})
_WILL_BE = frozenset(["be", "become"])


class _Difference(NamedTuple):
    """The run of words in which two statements differ, with its context."""

    known: list[str]
    """The words before it that name the subject."""
    links: tuple[list[str], list[str]]
    """The linking words before each value."""
    values: tuple[tuple[str, ...], tuple[str, ...]]
    behind: tuple[str, ...]
    is_said: bool
    """Whether the words before both are linked by an "is"."""


def replaced_value(left: str, right: str) -> str:
    """Return the kind of the only difference between two statements; "" if they may both be true.

    Args:
        left: A statement from `plain_signs`.
        right: The other statement from `plain_signs`.
    """
    one, two = _words(left.lower()), _words(right.lower())
    found = _excluding(one, two)
    difference = None if found else _difference(one, two)
    if difference is None:
        return found
    if _is_other_place(difference):
        return "different place"
    are_names = all(
        any(word.title() in text for word in value)
        for value, text in zip(difference.values, (left, right), strict=True)
    )
    return "different value" if _is_single(difference, are_names=are_names) else ""


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(_ELIDED.sub(" ", text.replace("i'm", "i am"))))


def _excluding(one: tuple[str, ...], two: tuple[str, ...]) -> str:
    """Return the kind of difference of two statements with different words of one row; "" if there is none."""
    ours, theirs = set(one).difference(two), set(two).difference(one)
    kinds = {
        kind
        for mine, yours, kind in _rivals(EXCLUDING, ours, theirs)
        if not all(have_own_words(ours, theirs, mine, yours))
    }
    kinds |= {
        kind
        for mine, yours, kind in _rivals(RELATIVES, ours, theirs)
        if _is_about(one, mine)
        and _is_about(two, yours)
        and not any(have_own_words(ours, theirs, mine, yours))
    }
    return min(kinds, default="")


def _rivals(
    table: Mapping[str, list[Value]], ours: set[str], theirs: set[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield pairs of words of two statements from one row, with the kind of their difference."""
    for mine in table.keys() & ours:
        for yours in table.keys() & theirs:
            for value in table[mine]:
                if any(value.row == v.row and value.place != v.place for v in table[yours]):
                    yield mine, yours, value.kind


def _is_about(words: tuple[str, ...], relative: str) -> bool:
    """Return whether a statement is about a relative, or states that a person is one."""
    if words[-1] == relative:
        return not COPULAS.isdisjoint(words)
    return words.index(relative) < _NEAR


def _difference(one: tuple[str, ...], two: tuple[str, ...]) -> _Difference | None:
    """Return the run of words in which two statements differ; None if there are several, or it is too long."""
    shorter = min(len(one), len(two))
    head = next((n for n in range(shorter) if not are_alike(one[n], two[n])), shorter)
    rest = shorter - head
    tail = next((n for n in range(rest) if not are_alike(one[-1 - n], two[-1 - n])), rest)
    before, behind = one[:head], one[len(one) - tail :]
    my_link, mine = _split(one[head : len(one) - tail])
    your_link, yours = _split(two[head : len(two) - tail])
    if not (0 < len(mine) <= _LONGEST and 0 < len(yours) <= _LONGEST):
        return None
    if any(are_alike(w, v) for w in mine for v in yours):
        return None
    known = [word for word in before if word not in LINKING]
    link = [*reversed([*takewhile(LINKING.__contains__, reversed(before))])]
    links = [*link, *my_link], [*link, *your_link]
    return _Difference(known, links, (mine, yours), behind, not COPULAS.isdisjoint(link))


def _split(words: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """Return the linking words at the beginning of a run, and its other words."""
    link = [*takewhile(LINKING.__contains__, words)]
    return link, words[len(link) :]


def _is_single(found: _Difference, *, are_names: bool) -> bool:
    """Return whether the property in which two statements differ has one value at a time."""
    known, links, (mine, yours) = found.known, found.links, found.values
    if not _link_alike(*links) or _is_time(mine) != _is_time(yours):
        return False
    last = known[-1] if known else ""
    if not found.is_said and not known:
        return _is_favourite(found.behind)  # "pizza is my favourite"
    if mine[-1] in TRADES and yours[-1] in TRADES and (found.is_said or last in _WILL_BE):
        return True
    if not known:
        return False
    if found.is_said:
        # "my boss is Ann"; "the dog is a poodle"
        is_kind = len(mine) == len(yours) == 1 and not INDEFINITE.isdisjoint(links[0])
        is_one = are_names or (is_kind and RELATIVES.keys().isdisjoint(known))
        if is_one or _is_favourite(known):
            return True
    if last in SINGLE:
        return last not in {"come", "comes"} or "from" in links[0]
    # "works as a nurse at the clinic"
    return not SINGLE.isdisjoint(known) and all(_ends_in(link, PLACES_IN) for link in links)


def _is_time(value: tuple[str, ...]) -> bool:
    return any(each.kind == "different time" for word in value for each in EXCLUDING.get(word, ()))


def _is_favourite(words: Iterable[str]) -> bool:
    return any(word.startswith(FAVOURITES) for word in words)


def _is_other_place(found: _Difference) -> bool:
    """Return whether both values are places or origins of a thing."""
    return found.is_said and all(
        _is_place(each, is_named=bool(found.known)) for each in found.links
    )


def _is_place(link: list[str], *, is_named: bool) -> bool:
    """Return whether a place or an origin follows the linking words."""
    if INDEFINITE.intersection(link):
        return False
    if _ends_in(link, ORIGINS):
        return True
    # The English "am" is a verb, and the German "am" a preposition.
    is_placed = any(word in PLACES and COPULAS.intersection(link) - {word} for word in link)
    return is_placed and (is_named or _ends_in(link, DEFINITE))


def _ends_in(link: list[str], words: frozenset[str]) -> bool:
    return not words.isdisjoint(link[-1:])


def _link_alike(one: list[str], two: list[str]) -> bool:
    """Return whether two values have the same form, such as "in Paris" or "a nurse"."""
    if bool(INDEFINITE.intersection(one)) != bool(INDEFINITE.intersection(two)):
        return False
    ours, theirs = (
        {"in" if word in PLACES_IN else word for word in link if word not in _ARTICLES}
        for link in (one, two)
    )
    return ours == theirs or not ours or not theirs


def are_alike(one: str, two: str) -> bool:
    """Return whether two words are forms of the same word."""
    if one == two or _means(one) & _means(two):
        return True
    if _is_number(one) and _is_number(two):
        return True  # numbers are compared elsewhere
    shorter, longer = sorted((one, two), key=len)
    if longer.startswith(shorter):
        return len(shorter) >= _SHORTEST and len(longer) - len(shorter) <= _ENDING
    common = max(_COMMON, len(longer) - _ENDING)
    return longer[:common] == shorter[:common]


def have_own_words(
    ours: Iterable[str], theirs: Iterable[str], mine: str = "", yours: str = ""
) -> tuple[bool, bool]:
    """Return for each of two statements whether it has content that the other one lacks.

    Args:
        ours: The words of the first statement that the second one lacks.
        theirs: The words of the second statement that the first one lacks.
        mine: A word of the first statement that is compared elsewhere.
        yours: A word of the second statement that is compared elsewhere.
    """
    little = LINKING - RELATIVES.keys()  # "son" is Spanish for "are"
    first = [word for word in ours if word not in little and word != mine]
    second = [word for word in theirs if word not in little and word != yours]
    if min(len(first), len(second)) > _MOST_COMPARED:
        return True, True
    return (
        any(not any(are_alike(w, v) for v in second) for w in first),
        any(not any(are_alike(w, v) for w in first) for v in second),
    )


def _means(word: str) -> set[object]:
    if word in OPPOSITES:
        return {OPPOSITES[word]}
    return {*EXCLUDING.get(word, ()), *RELATIVES.get(word, ())}


def _is_number(word: str) -> bool:
    return word[0].isdigit() or word in NUMBERS
