"""Detects how two similar statements contradict each other: opposite, number, unit, currency, sign, order or value.

It compares marks and words, not meaning. It may report a conflict where there is none, because a needless warning is
less harmful than a wrong merge, which loses a statement.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import chain

from tomldiary.runtime.lru import cached_if_short
from tomldiary.text.languages import (
    AND,
    ARTICLES,
    AVERSIONS,
    COPULAS,
    CURRENCIES,
    EXCLUDING,
    LESS,
    MORE,
    NEGATIONS,
    NUMBERS,
    ONE_NO,
    OPPOSITES,
    PARITY_NO,
    PART_STARTS,
    UNITS,
)
from tomldiary.text.replaced_value import have_own_words, replaced_value
from tomldiary.text.visible import compatible
from tomldiary.text.words import ascii_digits, is_english

_CLOSE = 3
"""The maximum distance in words between a comparison and its number: "more than about 3"."""
_SHORT = 2
"""The maximum number of letters of words that are units only after a number."""
_SUPERSCRIPT = re.compile("[²³¹⁰-⁹₀-₉]+")
_ONE_SPELLING = str.maketrans(
    {
        **dict.fromkeys("‐‑‒–—―−﹣－", "-"),
        **dict.fromkeys("’‘ʼ＇`´", "'"),
        **dict.fromkeys("“”„«»＂", '"'),
    }
)
# Two letters, because one may be a sign, as in "10 Ω;".
_GREEK_QUESTION = re.compile("(?<=[\u0370-\u03ff\u1f00-\u1fff]{2});")
_UNSPACED = "\u0e01-\u0e5b\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
# `re` does not match vowel signs of Indic scripts and combining accents as letters.
_LETTER = (
    rf"(?:[^\W\d_{_UNSPACED}]|[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0971-\u0dff])"
)
_TOKEN = re.compile(
    rf"(?P<number>(?:(?<![\w.])\.)?\d+(?:[.,:/⁄-]\d+)*)|(?P<unspaced>[{_UNSPACED}])"
    rf"|(?P<word>\b[ap]\.m\b|{_LETTER}+(?:['-]{_LETTER}+)*)|(?P<mark>[^\w\s])"
)
_HAN_NUMBER = re.compile(
    "(?<![一二两兩三四五六七八九十百千万])([一二两兩三四五六七八九十百千万]++)(?=[个個杯只隻条條本次年月日天公小岁歲人台匹度点點块塊元瓶件张張名円歳時分回週頭])"
)
_UNSPACED_UNITS = re.compile(
    "|".join(
        sorted(
            (word for word in {*UNITS, *CURRENCIES} if _IS_UNSPACED.search(word)),
            key=len,
            reverse=True,
        )
    )
)
_SIGN = re.compile(
    r"(?:(?<![<>=!])[<>=!]++)?[≠≤≥≈~±×÷√∞][<>=!]*+|(?<![<>=!])!*+[<>=][<>=!]*+"  # comparisons and operators
    r"|!(?=\w)|(?<=\d)!"  # not a, n!
    r"|\++|(?<![^\W_])-{1,9}(?=[\d.$€£])|(?<=[^\W_])-+(?!\w)"  # +5, C++, -5, A-
    r"|[‰#°^←↑↓]"
)
_TAG = re.compile(r"</?(?=[^\W\d_])[^<>\s]*>")  # "<name>" is no comparison
_COMPARES = frozenset("<>≤≥≠")
# Negations in scripts without spaces.
_NO = re.compile(
    r"不(?!错|錯|同|仅|僅|断|斷|少|到)|没(?!收)|沒|無|无|别(?!人|的)|別(?!人|的)|勿|讨厌|討厭|痛恨|嫌い|嫌う|"
    r"(?<!少)(?<!危)ない|なく|ません|せず|ずに|なし|ไม่|เกลียด|안 |못 |없|않|싫"
)
_CROSSED = re.compile(r"[❌❎✗✘👎☐]|\[ \]")
_TURKISH_NO = re.compile(r"(?<=\w)m[ıiuü]yor|(?<=\w\w)m[ae]z")
_TURKISH = re.compile("[ışğ]|yor\\b")
_UNSPACED_MORE = re.compile("超过|超過|以上|多于|大于|以后|以後|มากกว่า|มากกว่า")
_UNSPACED_LESS = re.compile("不到|以下|少于|小于|未満|以内|以前|น้อยกว่า|ไม่เกิน")
_FOREIGN = frozenset(["due"])  # Italian "two", and English "due to"
_PORTUGUESE = frozenset("não um uma em na do da ao os as nos mora moro gosta gosto é são".split())  # noqa: SIM905 - a table
_OPPOSING_PREFIXES = "un in im ir il dis non non- anti anti- a ne".split()  # noqa: SIM905 - a table
_OPPOSING_SUFFIXES = ("-free", "free", "less", "frei")
_SHORTEST_ROOT = 3
_MEASURING = (
    NUMBERS.keys() | UNITS.keys() | CURRENCIES.keys() | MORE | LESS | {"dos", "least", "most"}
)
_TIMES = frozenset(["am", "pm", "d", "week", "month", "year"])
_SEPARATORS = frozenset(",、&")
"""Marks between the words of an enumeration."""
_SHORTEST_STEM = 3
_ENDING = 2
"""The maximum number of letters at the end in which forms of one word differ."""
_SUBJECTS = frozenset("i he she we they it ich er wir je il elle yo eu".split())  # noqa: SIM905 - a table


def plain_signs(text: str) -> str:
    """Return text with one spelling of each sign; 10² becomes 10^2, and the Greek question mark "?"."""
    text = _SUPERSCRIPT.sub(lambda found: f"^{found.group()}", text)
    text = ascii_digits(compatible(text)).translate(_ONE_SPELLING)
    return _GREEK_QUESTION.sub("?", text)


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one statement that decide whether it contradicts another one."""

    words: tuple[str, ...]
    order: tuple[str, ...]
    """The words without articles; those of an enumeration are sorted."""
    is_negative: bool
    comparisons: tuple[str, ...]
    """ "more", "less" and signs, sorted."""
    numbers: tuple[str, ...]
    units: tuple[str, ...]
    currencies: tuple[str, ...]
    signs: tuple[str, ...]


@partial(cached_if_short, most=4096)
def marks_of(text: str) -> Marks:
    """Return the marks of a statement."""
    folded = _TAG.sub(" ", plain_signs(text).lower())
    tokens = [(found.lastgroup, _plain_number(found.group())) for found in _TOKEN.finditer(folded)]
    words = [token.replace("'", "") for kind, token in tokens if kind != "mark"]
    numbers = [token for kind, token in tokens if kind == "number"]
    numbers += _number_words(words)
    numbers += _HAN_NUMBER.findall(folded)
    units, currencies = _measures(folded, tokens)
    signs = _SIGN.findall(folded)
    comparing = [sign for sign in signs if _COMPARES.intersection(sign)]
    said = _compared(words)
    said += ["more"] * len(_UNSPACED_MORE.findall(folded))
    said += ["less"] * len(_UNSPACED_LESS.findall(folded))
    return Marks(
        tuple(words),
        _in_one_order(
            [
                token.replace("'", "")
                for kind, token in tokens
                if kind != "mark" or token in _SEPARATORS
            ]
        ),
        _is_negative(folded, words),
        tuple(sorted([*comparing, *said])),
        tuple(sorted(numbers)),
        tuple(sorted(units)),
        tuple(sorted(currencies)),
        tuple(sorted(sign for sign in signs if not _COMPARES.intersection(sign))),
    )


def contradiction(left: str, right: str) -> str:
    """Return how two statements contradict each other, in a word or two; "" if they do not."""
    one, two = marks_of(left), marks_of(right)
    # A negation and an opposite cancel out: "not employed" and "unemployed".
    if (one.is_negative != two.is_negative) != _are_opposites(one.words, two.words):
        return "opposite meaning"
    measured = _other_measure(one, two)
    if measured:
        return measured
    if one.signs != two.signs:
        return "different sign"
    if _is_reordered(one.order, two.order):
        return "different order"
    if one.is_negative != two.is_negative:
        return ""
    return replaced_value(plain_signs(left), plain_signs(right))


def covers(whole: str, part: str) -> bool:
    """Return whether a statement has all numbers, units, currencies and signs of another, and the same polarity."""
    one, two = marks_of(whole), marks_of(part)
    return (
        one.is_negative == two.is_negative
        and not any(
            Counter(theirs) - Counter(ours)
            for ours, theirs in (
                (one.numbers, two.numbers),
                (one.comparisons, two.comparisons),
                (one.units, two.units),
                (one.currencies, two.currencies),
                (one.signs, two.signs),
            )
        )
        and not _is_reordered(one.order, two.order)
    )


def _is_negative(folded: str, words: list[str]) -> bool:
    """Return whether a statement is negative; an even number of negations cancels out.

    A mark such as ❌ or an empty box repeats a negation, and is one in a statement without others.
    """
    said = set(words)
    if "no" in said and said & _PORTUGUESE:
        words = [word for word in words if word != "no"]  # Portuguese "in the"
    turns = 1 if said & ONE_NO else sum(word in PARITY_NO for word in words)
    if not turns and _TURKISH.search(folded):
        turns += _TURKISH_NO.search(folded) is not None
    turns += sum(word in AVERSIONS for word in words)
    turns += len(_NO.findall(folded.replace("非常", "").replace("特别", "")))
    return turns % 2 == 1 or (not turns and _CROSSED.search(folded) is not None)


def _plain_number(token: str) -> str:
    """Return a number without separators of thousands and with a digit before the point: 1,000 as 1000, .5 as 0.5."""
    if token.startswith("."):
        return f"0{token}"
    return token.replace(",", "") if _GROUPED.fullmatch(token) else token


def _parts(word: str) -> list[str]:
    parts = word.split("-")
    return parts if NUMBERS.keys() >= set(parts) else [word]


def _number_words(words: list[str]) -> list[str]:
    """Return the numbers that are written as words; "twenty five" is one number."""
    found: list[str] = []
    tens = ""
    if _FOREIGN.intersection(words) and is_english(words, is_default=False):
        words = [word for word in words if word not in _FOREIGN]
    is_spanish = "dos" in words and _PORTUGUESE.isdisjoint(words)
    for word in chain.from_iterable(map(_parts, words)):
        number = "2" if word == "dos" and is_spanish else NUMBERS.get(word, "")
        if tens and len(number) == 1 and number != "0":
            found[-1] = tens[0] + number
        elif number:
            found.append(number)
        tens = number if len(number) == 2 and number[1] == "0" and number[0] > "1" else ""  # noqa: PLR2004 - 20 to 90
    return found


def _compared(words: list[str]) -> list[str]:
    """Return the words that compare a number as "more" and "less"."""
    said: list[str] = []
    for place, word in enumerate(words):
        kind = "more" if word in MORE else "less" if word in LESS else ""
        if word in {"least", "most"} and place and words[place - 1] == "at":
            kind = "more" if word == "least" else "less"
        following = words[place + 1 : place + 1 + _CLOSE]
        before = words[max(0, place - _CLOSE) : place]
        if word in {"min", "max"} and before and before[-1][0].isdigit():
            continue  # "30 min"
        if kind and any(each[0].isdigit() or each in NUMBERS for each in [*following, *before]):
            said.append(kind)
    return said


def _measures(folded: str, tokens: list[tuple[str | None, str]]) -> tuple[list[str], list[str]]:
    units: list[str] = []
    currencies: list[str] = []
    for place, (kind, token) in enumerate(tokens):
        if kind == "unspaced":
            continue
        last_kind, last = tokens[place - 1] if place else (None, "")
        following = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        behind_number = last_kind == "number" or last in NUMBERS
        # "US$", "R$" and "°C" are two tokens.
        joined = last + token
        if token in CURRENCIES:
            if kind == "mark" or len(token) > _SHORT or behind_number:
                currencies.append(CURRENCIES.get(joined, CURRENCIES[token]))
        elif last == "°" and joined in UNITS:
            units.append(UNITS[joined])
        elif following in ARTICLES and f"{last} {token}".endswith(" in"):
            continue  # "six in the morning"
        elif token in UNITS and (kind == "mark" or len(token) > _SHORT or behind_number):
            units.append(UNITS[token])
    for word in _UNSPACED_UNITS.findall(folded):
        (currencies if word in CURRENCIES else units).append(CURRENCIES.get(word) or UNITS[word])
    return units, currencies


def _are_opposites(one: tuple[str, ...], two: tuple[str, ...]) -> bool:
    """Return whether a word of one text is the opposite of a word of the other, by the table or by its form."""
    ours, theirs = set(one) - set(two), set(two) - set(one)
    pairs = [(a, b) for a in ours for b in _opposites(a) & theirs]
    pairs += [(a, b) for b in theirs for a in _opposites(b) & ours]
    return any(
        NEGATIONS.isdisjoint(pair) and not all(have_own_words(ours, theirs, *pair))
        for pair in pairs
    )


def _opposites(word: str) -> set[str]:
    """Return the opposites of a word: those of the table, and its root."""
    found = set(OPPOSITES.get(word, ()))
    for prefix in _OPPOSING_PREFIXES:
        if word.startswith(prefix) and len(word) - len(prefix) > _SHORTEST_ROOT:
            found.add(word[len(prefix) :])
    for suffix in _OPPOSING_SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _SHORTEST_ROOT:
            found.add(word[: -len(suffix)])
    return found


def _other_measure(one: Marks, two: Marks) -> str:
    """Return the kind of measure in which two statements about the same thing differ; "" if there is none."""
    ours, theirs = _distinctive(one), _distinctive(two)
    says_more = have_own_words(ours - theirs, theirs - ours)
    if all(says_more):
        return ""  # the statements are about different things
    if one.numbers != two.numbers:
        is_detail = any(says_more) and not _replaces(one.numbers, two.numbers)
        return "" if is_detail else "different number"
    if one.comparisons != two.comparisons:
        return "different comparison"
    if one.currencies != two.currencies:
        return "different currency"
    # An added unit is a detail: "at 6" and "at 6 am", "a glass" and "a glass of water".
    is_detail = not _replaces(one.units, two.units) and (
        not one.numbers or {*one.units} ^ {*two.units} <= _TIMES
    )
    return "" if is_detail else "different unit"


def _distinctive(marks: Marks) -> set[str]:
    """Return the words of a statement without measures and very short words."""
    return {
        w for w in marks.words if len(w) > _SHORT and w not in _MEASURING and not w[0].isdigit()
    }


def _replaces(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    """Return whether each of two statements has a mark that the other one lacks."""
    return bool(Counter(ours) - Counter(theirs) and Counter(theirs) - Counter(ours))


# Word order: "tea over coffee", "coffee over tea". The order of some parts does not change the meaning: parts of a
# sentence ("in Rome with her", "with her in Rome"), the words of an enumeration, the sides of an "is", and a word for a
# time.


def _stemmed(word: str) -> str:
    return word[: max(_SHORTEST_STEM, len(word) - _ENDING)]


_TIME_WORDS = [
    word for word, values in EXCLUDING.items() if any(v.kind == "different time" for v in values)
]
_WHEN = frozenset([*_TIME_WORDS, *map(_stemmed, _TIME_WORDS)])


def _is_reordered(one: tuple[str, ...], two: tuple[str, ...]) -> bool:
    """Return whether two texts have the same words, or forms of them, in an order that may change the meaning.

    Args:
        one: The words of one text from `_in_one_order`.
        two: The words of the other text from `_in_one_order`.
    """
    ours, theirs = one, two
    if Counter(ours) != Counter(theirs):
        ours, theirs = tuple(map(_stemmed, ours)), tuple(map(_stemmed, theirs))
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


def _in_one_order(words: list[str]) -> tuple[str, ...]:
    """Return words without articles; the words of an enumeration are sorted."""
    found: list[str] = []
    run: list[str] = []
    is_joined = False
    for word in words:
        if word in AND or word in _SEPARATORS:
            is_joined = True
        elif word not in ARTICLES:
            if not is_joined:
                found += sorted(run)
                run = []
            run.append(word)
            is_joined = False
    return (*found, *sorted(run))
