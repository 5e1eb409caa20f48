"""What two statements that are alike say differently in one place: a time, an amount, a subject or a value.

Two rules: values of one kind exclude each other ("on Monday", "on Friday"), and what has one value at a time has
no other one ("lives in Paris", "lives in Rome"). What may hold at once, as in "likes cats" and "likes dogs",
is no contradiction.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING

from tomldiary.runtime.forgettable_cache import let_go_on_forget
from tomldiary.text.statement_words import NUMBERS, OPPOSITES
from tomldiary.text.value_words import (
    ADVERBS,
    ATTRIBUTES,
    COPULAS,
    DEFINITE,
    EXCLUDING,
    FAVOURITES,
    INDEFINITE,
    LINKING,
    ORIGINS,
    PLACES,
    PLACES_IN,
    RELATIVES,
    SINGLE,
    TRADES,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["are_alike", "differ_besides", "replaced_value"]

_ELIDED = re.compile(r"\b(?:[cdjlmnst]|qu|dell|nell|all|dall|sull|un)'(?=\w)|(?<=\w)'s\b")
_WORD = re.compile(r"\d+(?:[.,:]\d+)*|[^\W_]+(?:[-'][^\W_]+)*")
_LONGEST = 3
"""Words of a value."""
_NEAR = 4
"""Words within which a statement says whom it is about."""
_COMMON = 4
_SHORTEST = 3
_ENDING = 2
_MOST_COMPARED = 40
"""Words that only one of two alike statements has, at most."""
_ROLES = {(word,) for word in ("as", "als", "como", "comme", "come", "как")}
_ARTICLES = INDEFINITE | (DEFINITE - PLACES_IN)
"""Letters that forms of one word differ in at most."""


def replaced_value(left: str, right: str) -> str:
    """Say in what the one place differs that two folded statements do not share; empty if nothing tells.

    Args:
        left: A statement in lower case with one spelling of each sign.
        right: The other one.
    """
    one, two = _words(left), _words(right)
    return _excluding(one, two) or _other_value(one, two)


@let_go_on_forget
@lru_cache(maxsize=4096)
def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(_ELIDED.sub(" ", text.replace("i'm", "i am"))))


def _excluding(one: tuple[str, ...], two: tuple[str, ...]) -> str:
    """Compare two statements that have words of one row."""
    ours, theirs = set(one).difference(two), set(two).difference(one)
    kinds = {
        value.kind
        for table in (EXCLUDING, RELATIVES)
        for mine in table.keys() & ours
        for yours in table.keys() & theirs
        for value in table[mine]
        for other in table[yours]
        if value.row == other.row
        and value.place != other.place
        and (table is EXCLUDING or (_is_about(one, mine) and _is_about(two, yours)))
        and not differ_besides(ours, theirs, mine, yours)
    }
    return min(kinds, default="")


def _is_about(words: tuple[str, ...], relative: str) -> bool:
    """Return whether a statement is about a relative, or says that a person is one."""
    if words[-1] == relative:
        return not COPULAS.isdisjoint(words)
    return words.index(relative) < _NEAR


def _other_value(one: tuple[str, ...], two: tuple[str, ...]) -> str:
    """Compare two statements that differ in one run of words."""
    shorter = min(len(one), len(two))
    head = next((n for n in range(shorter) if not are_alike(one[n], two[n])), shorter)
    rest = shorter - head
    tail = next((n for n in range(rest) if not are_alike(one[-1 - n], two[-1 - n])), rest)
    before, behind = one[:head], one[len(one) - tail :]
    mine, yours = one[head : len(one) - tail], two[head : len(two) - tail]
    my_link, mine = _split(mine)
    your_link, yours = _split(yours)
    if not (0 < len(mine) <= _LONGEST and 0 < len(yours) <= _LONGEST):
        return ""
    if any(are_alike(w, v) for w in mine for v in yours):
        return ""
    known = [word for word in before if word not in LINKING]
    link = [*reversed([*takewhile(LINKING.__contains__, reversed(before))])]
    links = [*link, *my_link], [*link, *your_link]
    is_said = not COPULAS.isdisjoint(link)
    if is_said and all(_is_place(each, is_named=bool(known)) for each in links):
        return "different place"
    if not known and (behind or not is_said):
        return _whom(behind, mine, yours)
    if not _link_alike(*links) or _is_time(mine) != _is_time(yours):
        return ""
    is_kind = len(mine) == len(yours) == 1 and not INDEFINITE.isdisjoint(links[0])
    if is_said and is_kind and known and RELATIVES.keys().isdisjoint(known):
        return "different value"  # "the dog is a poodle"
    is_trade = mine[-1] in TRADES and yours[-1] in TRADES
    if is_trade and (is_said or known[-1] in {"be", "become"}):
        return "different value"
    is_single = known and (
        behind[:1] in _ROLES or _is_single(known, links, (mine, yours), is_said=is_said)
    )
    return "different value" if is_single else ""


def _is_time(value: tuple[str, ...]) -> bool:
    return any(each.kind == "different time" for word in value for each in EXCLUDING.get(word, ()))


def _is_single(
    known: list[str],
    links: tuple[list[str], list[str]],
    values: tuple[tuple[str, ...], tuple[str, ...]],
    *,
    is_said: bool,
) -> bool:
    """Return whether what follows some words has one value at a time.

    Args:
        known: The words before it that say what it is about.
        links: The linking words before both values.
        values: The values.
        is_said: Whether one of them is an "is".
    """
    last = known[-1]
    if any(word.startswith("prefer") for word in known):
        return len(values[0]) == len(values[1])
    if last in SINGLE:
        return last not in {"come", "comes"} or "from" in links[0]
    if is_said and (last in ATTRIBUTES or any(word.startswith(FAVOURITES) for word in known)):
        return True
    # "works as a nurse at the clinic"
    return not SINGLE.isdisjoint(known) and all(_ends_in(link, PLACES_IN) for link in links)


def _whom(behind: tuple[str, ...], mine: tuple[str, ...], yours: tuple[str, ...]) -> str:
    """Compare the beginnings of two statements."""
    if len(mine) > 1 or len(yours) > 1 or len(behind) < 2:  # noqa: PLR2004 - a verb and what it is about
        return ""
    if behind[0] in COPULAS and any(word.startswith(FAVOURITES) for word in behind):
        return "different value"
    if {*mine, *yours} & ADVERBS or any(w.endswith(("ly", "ing", "s")) for w in (*mine, *yours)):
        return ""
    verb = behind[0]
    is_verb = verb in COPULAS or verb in SINGLE or (verb.endswith("s") and verb not in LINKING)
    return "different subject" if is_verb else ""


def _is_place(link: list[str], *, is_named: bool) -> bool:
    """Return whether what follows some words says where something is or comes from."""
    if INDEFINITE.intersection(link):
        return False
    if _ends_in(link, ORIGINS):
        return True
    # English "am" is no German "am".
    is_placed = any(word in PLACES and COPULAS.intersection(link) - {word} for word in link)
    return is_placed and (is_named or _ends_in(link, DEFINITE))


def _ends_in(link: list[str], words: frozenset[str]) -> bool:
    return not words.isdisjoint(link[-1:])


def _split(words: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """Return the linking words that a run begins with, and the others."""
    link = [*takewhile(LINKING.__contains__, words)]
    return link, words[len(link) :]


def _link_alike(one: list[str], two: list[str]) -> bool:
    """Return whether two values are of one form: both "in Paris", both "a nurse"."""
    if bool(INDEFINITE.intersection(one)) != bool(INDEFINITE.intersection(two)):
        return False
    ours, theirs = (
        {"in" if word in PLACES_IN else word for word in link if word not in _ARTICLES}
        for link in (one, two)
    )
    return ours == theirs or not ours or not theirs


def are_alike(one: str, two: str) -> bool:
    """Return whether two words are forms of one."""
    if one == two or _means(one) & _means(two):
        return True
    if _is_number(one) and _is_number(two):
        return True  # numbers are compared elsewhere
    shorter, longer = sorted((one, two), key=len)
    if longer.startswith(shorter):
        return len(shorter) >= _SHORTEST and len(longer) - len(shorter) <= _ENDING
    common = max(_COMMON, len(longer) - _ENDING)
    return longer[:common] == shorter[:common]


def differ_besides(ours: Iterable[str], theirs: Iterable[str], mine: str, yours: str) -> bool:
    """Return whether two statements both have words that the other one lacks, besides two that are compared.

    Args:
        ours: The words of one statement that the other one lacks.
        theirs: Those of the other one.
        mine: The compared word of one.
        yours: The compared word of the other.
    """
    first = [word for word in ours if word not in LINKING and word != mine]
    second = [word for word in theirs if word not in LINKING and word != yours]
    if min(len(first), len(second)) > _MOST_COMPARED:
        return True
    return any(not any(are_alike(w, v) for v in second) for w in first) and any(
        not any(are_alike(w, v) for w in first) for v in second
    )


def _means(word: str) -> set[object]:
    if word in OPPOSITES:
        return {OPPOSITES[word]}
    return {*EXCLUDING.get(word, ()), *RELATIVES.get(word, ())}


def _is_number(word: str) -> bool:
    return word[0].isdigit() or word in NUMBERS
