"""Finds a text in other texts as a person reads them, so that no spelling of it stays after an erasure."""

from __future__ import annotations

import re
from unicodedata import category

from tomldiary.text.visible import HIDDEN, compatible
from tomldiary.text.words import ascii_digits

_HIDDEN_RUN = "\u200b"
_RUN = re.compile(rf"[\s{HIDDEN}]{{2,}}|[^\S ]|[{HIDDEN}]")  # all but a single space
_SPACE = re.compile(r"\s")
_LENGTHENING = "\u0640"
# A run of hidden characters before a letter or mark, from its start, so that each run is read once.
_BEFORE_LETTER = re.compile(rf"[{HIDDEN}](?<![{HIDDEN}]{{2}})[{HIDDEN}]*+(?=([^\x00-\x7f]))")
_GAP = re.compile(f"[ {_HIDDEN_RUN}]")
_LETTER = re.compile(f"([^ {_HIDDEN_RUN}])([ {_HIDDEN_RUN}]?)")
"""A letter, and the gap after it: a folded text has no two gaps in a row."""
_FITTING = {"": ("", _HIDDEN_RUN), " ": (" ", _HIDDEN_RUN), _HIDDEN_RUN: ("", " ", _HIDDEN_RUN)}
"""The gaps of a text that a gap of the wanted text may have in their place."""


def folded(text: str) -> str:
    """Return a text as it is compared: in lower case, each letter and digit in one form, one space for white space.

    A run of hidden characters becomes one of them. Turkish letters without a dot become `i`, as `I` does. The lines
    that lengthen Arabic words are removed.
    """
    if not text.isascii():
        text = _BEFORE_LETTER.sub(_outside_letter, text)
        text = ascii_digits(compatible(compatible(text).casefold()))
        text = text.replace("i\u0307", "i").replace("\u0131", "i").replace(_LENGTHENING, "")
    return _RUN.sub(_one_character, text.lower())


def sought(text: str) -> str:
    """Return a text to search for, folded; "" if it has only white space and hidden characters."""
    return folded(text).strip(f" {_HIDDEN_RUN}")


def is_mentioned(wanted: str, text: str) -> bool:
    """Return whether a folded text has the result of `sought`.

    Hidden characters may separate letters and words of the text. In the wanted text they may stand for a space.
    """
    if _HIDDEN_RUN not in wanted and _HIDDEN_RUN not in text:
        return wanted in text
    if _GAP.sub("", wanted) not in _GAP.sub("", text):
        return False
    # Shift-and (Baeza-Yates and Gonnet, 1992), as the time of a pattern grows with the product of both lengths.
    letters: dict[str, int] = {}
    gaps = dict.fromkeys(_FITTING, 0)
    sought_letters: list[tuple[str, str]] = _LETTER.findall(wanted)
    for at, (letter, gap) in enumerate(sought_letters, 1):
        letters[letter] = letters.get(letter, 0) | 1 << at - 1
        for each in _FITTING[gap] if at < len(sought_letters) else _FITTING:
            gaps[each] |= 1 << at - 1
    found = 0  # a bit for each beginning of the wanted text that ends here
    for letter, gap in _LETTER.findall(text):
        found = (found << 1 | 1) & letters.get(letter, 0) & gaps[gap]
        if found.bit_length() == len(sought_letters):
            return True
    return False


def _outside_letter(found: re.Match[str]) -> str:
    """Return a hidden run; "" before what normalisation joins or orders: marks, and the rest of Korean syllables."""
    after = found[1]
    is_within = (
        category(after)[0] == "M" or "\u1161" <= after <= "\u11ff" or after in "\uff9e\uff9f"
    )
    return "" if is_within else found[0]


def _one_character(found: re.Match[str]) -> str:
    return _HIDDEN_RUN if _SPACE.search(found.group()) is None else " "
