"""Finds a text in other texts as a person reads them, so that no spelling of it stays after an erasure."""

from __future__ import annotations

import re
from unicodedata import normalize

from tomldiary.text.visible import HIDDEN

_HIDDEN_RUN = "\u200b"
_RUN = re.compile(rf"[\s{HIDDEN}]{{2,}}|[^\S ]|[{HIDDEN}]")  # all but a single space
_SPACE = re.compile(r"\s")


def folded(text: str) -> str:
    """Return a text as it is compared: in lower case, each letter in one form, one space for white space.

    A run of hidden characters becomes one of them. Turkish letters without a dot become `i`, as `I` does.
    """
    text = normalize("NFKC", normalize("NFKC", text).casefold())
    return _RUN.sub(_one_character, text.replace("i\u0307", "i").replace("\u0131", "i"))


def sought(text: str) -> str:
    """Return a text to search for, folded and without hidden characters; "" if it has no others."""
    return folded(text).replace(_HIDDEN_RUN, "").strip()


def is_mentioned(wanted: str, text: str) -> bool:
    """Return whether a folded text has the result of `sought`; hidden characters may separate its letters and words."""
    if _HIDDEN_RUN not in text:
        return wanted in text
    words = (f"{_HIDDEN_RUN}?".join(map(re.escape, word)) for word in wanted.split(" "))
    return re.search(f"[ {_HIDDEN_RUN}]".join(words), text) is not None


def _one_character(found: re.Match[str]) -> str:
    return _HIDDEN_RUN if _SPACE.search(found.group()) is None else " "
