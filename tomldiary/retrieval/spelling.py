"""Finds words of the rows that are spelled nearly as a word of a question, such as "allergic" for "alergic".

Only words of at least five letters are compared, and only with words that begin with the same letter. The distance is
the number of inserted, omitted, exchanged and swapped letters. It is 1 at most, and 2 from eight letters on. A word
is compared as it is and by its stem, words of other languages also by their first letters, with what the index stores.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from tomldiary.text.words import CUT, CUT_MARK, Asked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tomldiary.retrieval.lexical_index import LexicalIndex

_SHORTEST = 5  # letters
_LONG = 8  # letters of a stem with a distance of 2 at most
_MOST_WORDS = 8  # of a question
_MOST_FORMS = 5  # of those with the least distance from a word


def spelling_group(form: str) -> str:
    """Return the group of a stored form: forms of other groups have another spelling; "" is never compared."""
    letters = form.removesuffix(CUT_MARK)
    is_cut = letters != form
    if len(letters) < (CUT if is_cut else _SHORTEST - 1) or not letters.isalpha():
        return ""
    return form[0] + CUT_MARK * is_cut


def respelled(words: Iterable[Asked], indexes: Sequence[LexicalIndex[Any]]) -> dict[Asked, Asked]:
    """Return words with the nearest forms that the rows of indexes have; words without any are left out.

    Args:
        words: The words that no row contains. Only the first eight that can be compared are.
        indexes: The indexes.
    """
    compared = (
        word
        for word in words
        if len(word.shown) >= _SHORTEST and word.shown.isalpha() and not word.is_common
    )
    found = ((word, _nearest(word, indexes)) for word in islice(compared, _MOST_WORDS))
    return {word: Asked(word.shown, forms) for word, forms in found if forms}


def _nearest(word: Asked, indexes: Sequence[LexicalIndex[Any]]) -> tuple[str, ...]:
    """Return the stored forms with the least distance from a word."""
    from rapidfuzz import process  # noqa: PLC0415 - slow to import, few searches need it
    from rapidfuzz.distance import OSA  # noqa: PLC0415

    *stems, cut = word.forms[:2]
    # A wrong letter may change where the stem ends, so the whole word is compared too.
    whole = [stem for stem in (*stems, word.shown) if len(stem) >= _SHORTEST]
    groups = {stem: spelling_group(stem) for stem in whole}
    # A letter too much or too few moves the place where the word is cut.
    begins = (cut, *(word.shown[:size] + CUT_MARK for size in (CUT - 1, CUT + 1)))
    groups.update(dict.fromkeys(begins, spelling_group(cut)))
    distances: dict[str, float] = {}
    for form, group in groups.items():
        most = 2 if len(form) >= _LONG else 1
        for index in indexes if group else ():
            near = process.extract(
                form, index.spelled(group), scorer=OSA.distance, score_cutoff=most, limit=None
            )
            for other, distance, _ in near:
                if index.has(other):
                    distances[other] = min(distance, distances.get(other, distance))
    least = min(distances.values(), default=0)
    return tuple(form for form, distance in distances.items() if distance == least)[:_MOST_FORMS]
