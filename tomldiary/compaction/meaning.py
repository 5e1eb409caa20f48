"""What a clean-up may not change: numbers, signs and polarity, and which of two contradictory entries holds.

A compactor joins and shortens texts. What it may not do is decide: a rewritten text says nothing that no text
said before, and an entry is not deleted because another one says the opposite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.text.contradiction import covers
from tomldiary.text.similarity import Similarity, conflict, normalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tomldiary.text.similarity import Match

__all__ = ["contradicting", "reworded"]

_SIMILAR = Similarity()
_MOST_COMPARED = 20
_DETAILS = frozenset({"different number", "different comparison", "different unit"}) | {
    "different currency",
    "different sign",
}


def reworded(old: str, new: str, known: Iterable[str]) -> str:
    """Return how a rewritten text contradicts the one before, or "".

    Args:
        old: The text before.
        new: The text now.
        known: The texts of the category before the clean-up; their numbers and signs may be joined.
    """
    why = conflict(old, new)
    if not why or not _similar({"": old}, new):
        return ""  # another subject altogether
    if why in _DETAILS:
        is_joined = covers(new, old) and covers(" ".join(known), new)
        if is_joined or (why == "different number" and covers(old, new)):
            return ""
    return why


def contradicting(text: str, others: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the id of an entry that contradicts a deleted text, and how; None if one has it too.

    Args:
        text: The deleted text.
        others: The texts that stay, by id.
    """
    found = _similar(others, text)
    if any(not match.conflict or covers(match.text, text) for match in found):
        return None
    return (found[0].id, found[0].conflict) if found else None


def _similar(texts: Mapping[str, str], text: str) -> list[Match]:
    keys = list(texts)
    folded = [normalise(texts[key]) for key in keys]
    return _SIMILAR.find("", text, keys, folded, texts.__getitem__, limit=_MOST_COMPARED)
