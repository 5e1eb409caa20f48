"""The words by language that `languages.toml` lists, as the tables that comparisons and search use."""

from __future__ import annotations

import pkgutil
import tomllib
from typing import Any, NamedTuple
from unicodedata import normalize

_FILE: dict[str, Any] = tomllib.loads(
    normalize("NFKC", (pkgutil.get_data(__name__, "languages.toml") or b"").decode())
)
_LANGUAGES: list[dict[str, Any]] = list(_FILE["languages"].values())
_WORDS = {name: frozenset(words.split()) for name, words in _FILE["words"].items()}


class Value(NamedTuple):
    """One word of a row."""

    row: int
    place: int
    """The position in the row; equal for words with the same meaning."""
    kind: str
    """The kind of difference between two words of the row."""


def _rows(name: str) -> list[list[list[str]]]:
    """Return the rows of a table: the forms of each word."""
    rows = _FILE["rows"][name].strip().splitlines()
    return [[word.split("/") for word in row.split()] for row in rows]


def _values(*kinds: str) -> dict[str, list[Value]]:
    found: dict[str, list[Value]] = {}
    rows = [(kind, row) for kind in kinds for row in _rows(kind)]
    for number, (kind, row) in enumerate(rows):
        for place, forms in enumerate(row):
            for word in forms:
                found.setdefault(word, []).append(Value(number, place, f"different {kind}"))
    return found


def _opposites() -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for row in _rows("opposites"):
        for side in row:
            others = frozenset(word for each in row if each is not side for word in each)
            for word in side:
                found[word] = found.get(word, frozenset()) | others
    return found


def _spellings(name: str) -> dict[str, str]:
    rows = (line.lower().split() for line in _FILE["rows"][name].strip().splitlines())
    return {word: row[0] for row in rows for word in row}


def _numbers() -> dict[str, str]:
    found = {"hundred": "100", "thousand": "1000", "hundert": "100", "tausend": "1000"}
    for language in _LANGUAGES:
        for tens in language.get("tens", "").splitlines():
            for number, words in enumerate(tens.split(), 2):
                found |= dict.fromkeys(words.split("/"), f"{number}0")
        for number, words in enumerate(language.get("numbers", "").split()):
            found |= dict.fromkeys(words.split("/"), str(number))
    found["once"] = "1"  # English; the Spanish word for 11 is rarer
    left_out = {"-", *_WORDS["ambiguous_numbers"]}
    return {word: number for word, number in found.items() if word not in left_out}


def _of_languages(name: str, *, concord: bool | None = None) -> frozenset[str]:
    """Return the words of a field of all languages, or of those with or without negative concord."""
    chosen = [each for each in _LANGUAGES if concord in {None, each.get("concord", False)}]
    return frozenset(word for each in chosen for word in each.get(name, "").split())


OPPOSITES = _opposites()
"""The words that a word excludes in otherwise equal statements."""
EXCLUDING = _values("time", "amount", "value", "subject")
"""The rows of each word, whose values exclude each other in otherwise equal statements."""
MONTHS = {
    word: f"{number:02}"
    for row in _rows("time")
    if len(row) == 12  # noqa: PLR2004 - only rows of months have as many words
    for number, forms in enumerate(row, 1)
    for word in forms
}
"""The number of a month, as "01", by each of its names."""
RELATIVES = {
    word: [value._replace(kind="different subject", row=-1 - value.row) for value in values]
    for word, values in _values("relatives").items()
}
"""Words for the subject of a statement."""
NUMBERS = _numbers()
"""The digits of each number word."""
UNITS = _spellings("units")
"""The first spelling of a unit by each of its spellings."""
CURRENCIES = _spellings("currencies")
"""The first spelling of a currency by each of its spellings."""
AVERSIONS = _of_languages("aversions")
"""Words for dislike and avoidance."""
PARITY_NO = _of_languages("no", concord=False)
"""Negative words of which two in one text cancel out."""
ONE_NO = _of_languages("no", concord=True) - PARITY_NO
"""Negative words of which any number is one negation."""
NEGATIONS = PARITY_NO | ONE_NO | AVERSIONS
"""Words that invert the meaning of a statement."""
MORE = _of_languages("more")
"""Words for a lower bound of a number."""
LESS = _of_languages("less")
"""Words for an upper bound of a number."""
AND = _WORDS["and"]
ARTICLES = _WORDS["articles"]
PART_STARTS = _WORDS["part_starts"]
SINGLE = _WORDS["single"]
TRADES = _WORDS["trades"]
COPULAS = _WORDS["copulas"]
DEFINITE = _WORDS["definite"]
INDEFINITE = _WORDS["indefinite"]
ORIGINS = _WORDS["origins"]
PLACES = _WORDS["places"]
PLACES_IN = _WORDS["places_in"]
FAVOURITES = tuple(_WORDS["favourites"])
LINKING = _WORDS["linking"] | COPULAS | INDEFINITE | PLACES_IN
ENGLISH = frozenset(_FILE["search"]["english"].split())
OTHERS = frozenset(_FILE["search"]["others"].split())
IRREGULAR = {
    form: base
    for base, *forms in map(str.split, _FILE["search"]["irregular"].strip().splitlines())
    for form in forms
}
"""The base of irregular English forms."""
