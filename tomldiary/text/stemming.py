"""Stems of words for search: Porter's stem of English words, and lighter stems of other languages.

`porter` is the algorithm of M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the
two changes of its author's program. `light10` follows L. Larkey's light stemmer for Arabic. In other languages, the
first five letters of a word are almost as good as a stemmer for each language.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from tomldiary.runtime.forgettable_cache import cleared_on_forget
from tomldiary.text.languages import IRREGULAR

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["light10", "porter", "without_ending"]

_CYRILLIC_ENDING = (
    r"(?<=[\u0400-\u04ff]{3})(?:[аяы]ми|[иыое]ми|[оеё]го|[оеё]му|[аяиы]х|[оеё]в|[оеиыё]й|[ая]я|[оеыи]е"
    r"|[ую]ю|[оеёаяыи]м|[аеёиоуыэюяьїє])$"
)
_INDIC_MARKS = r"[\u0900-\u0903\u093a\u093b\u093e-\u094f\u0962\u0963]"
_INDIC_ENDING = (
    rf"(?<=[\u0900-\u0963]{{3}})[\u0924\u0928][\u093e\u0940\u0947]{_INDIC_MARKS}*$"
    rf"|(?<=[\u0900-\u0963]{{2}}){_INDIC_MARKS}+$"
)
_ENDING = re.compile(f"{_CYRILLIC_ENDING}|{_INDIC_ENDING}")
_OUR = re.compile("(?<=[a-z]{2})our(?=s?$|ed$|ing$|ite|ful|able)")
_ISE = re.compile("(?<=[a-z]{3})is(?=e$|es$|ed$|ing$|ation)")
_CACHED = 1 << 16
_LONGEST_ENDING = 7
_SHORTEST = 3  # letters of a word that is stemmed
_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble",
    "alli": "al", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate",
    "ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al",
    "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {
    "icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": "",
}  # fmt: skip
_STEP_4 = dict.fromkeys(
    ["al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion", "ou",
     "ism", "ate", "iti", "ous", "ive", "ize"], "",
)  # fmt: skip
_KEPT = {"sion": "s", "tion": "t"}  # of a suffix of step 4 that is taken off

_ARABIC_PREFIXES = ("وال", "بال", "كال", "فال", "لل", "ال")
_ARABIC_SUFFIXES = ("ها", "ان", "ات", "ون", "ين", "يه", "ه", "ي")
_SHORTEST_ARABIC = 2


@cleared_on_forget
@lru_cache(_CACHED)
def porter(word: str) -> str:
    """Return the stem of an English word in lower case; other text is returned unchanged."""
    if len(word) < _SHORTEST or not (word.isascii() and word.isalpha()):
        return word
    word = IRREGULAR.get(word) or _american(word)
    word = _without_plural(word)
    word = _without_tense(word)
    if word.endswith("y") and "v" in _form(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, _STEP_2, 0)
    word = _replaced(word, _STEP_3, 0)
    word = _replaced(word, _STEP_4, 1)
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_cvc(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


def without_ending(word: str) -> str:
    """Return a Cyrillic or Indic word without its ending ("кошка" as "кошк"); other words are returned unchanged."""
    return _ENDING.sub("", word)


def _american(word: str) -> str:
    """Return a British word in American spelling: "colour", "organised", "theatre"."""
    word = _OUR.sub("or", word)
    return _ISE.sub("iz", word[:-2] + "er" if word.endswith("tre") else word)


def light10(word: str) -> str:
    """Return an Arabic word without its attached article, prepositions and endings."""
    if word.startswith("و") and len(word) > _SHORTEST_ARABIC + 1:
        word = word.removeprefix("و")
    prefix = next((each for each in _ARABIC_PREFIXES if word.startswith(each)), "")
    if len(word) - len(prefix) >= _SHORTEST_ARABIC:
        word = word.removeprefix(prefix)
    for suffix in _ARABIC_SUFFIXES:
        if len(word) - len(suffix) >= _SHORTEST_ARABIC:
            word = word.removesuffix(suffix)
    return word


def _without_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _without_tense(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    stem = next((word[: -len(end)] for end in ("ed", "ing") if word.endswith(end)), "")
    if "v" not in _form(stem):
        return word
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if stem[-1] == stem[-2:-1] and _form(stem)[-1] == "c" and stem[-1] not in "lsz":
        return stem[:-1]
    return stem + "e" if _measure(stem) == 1 and _ends_cvc(stem) else stem


def _replaced(word: str, endings: Mapping[str, str], least: int) -> str:
    """Return a word with its longest known ending replaced if the stem before it is long enough."""
    for size in range(min(len(word), _LONGEST_ENDING), 1, -1):
        end = word[-size:]
        if end in endings:
            stem = word[:-size] + _KEPT.get(end, "") if least else word[:-size]
            return stem + endings[end] if _measure(stem) > least else word
    return word


def _form(word: str) -> str:
    """Return c for each consonant of a word and v for each vowel; y after a consonant is a vowel."""
    found = ""
    for letter in word:
        is_vowel = letter in "aeiou" or (letter == "y" and found[-1:] == "c")
        found += "v" if is_vowel else "c"
    return found


def _measure(word: str) -> int:
    return _form(word).count("vc")


def _ends_cvc(word: str) -> bool:
    return _form(word).endswith("cvc") and word[-1] not in "wxy"
