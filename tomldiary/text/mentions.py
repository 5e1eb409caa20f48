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
_GAPS = {" ": f"[ {_HIDDEN_RUN}]", _HIDDEN_RUN: f"[ {_HIDDEN_RUN}]?"}
_GAP = re.compile(f"([ {_HIDDEN_RUN}])")


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
    # A folded text has no two gaps in a row. So one pattern for each gap suffices, and it matches in one way only.
    pattern = "".join(
        _GAPS.get(part) or f"{_HIDDEN_RUN}?".join(map(re.escape, part))
        for part in _GAP.split(wanted)
    )
    return re.search(pattern, text) is not None


def _outside_letter(found: re.Match[str]) -> str:
    """Return a hidden run; "" before what normalisation joins or orders: marks, and the rest of Korean syllables."""
    after = found[1]
    is_within = (
        category(after)[0] == "M" or "\u1161" <= after <= "\u11ff" or after in "\uff9e\uff9f"
    )
    return "" if is_within else found[0]


def _one_character(found: re.Match[str]) -> str:
    return _HIDDEN_RUN if _SPACE.search(found.group()) is None else " "
