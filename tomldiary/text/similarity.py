"""Finds short statements that may have the same meaning, and detects contradictions.

A fuzzy score (rapidfuzz `token_set_ratio`, from 70 on) finds entries that a new text might update. These entries are
only suggested. Entries are merged without a question only if their `identity` is equal. A suggestion that differs in
polarity, numbers, units, currency, signs or word order is shown as a conflict, because it is more likely the opposite
or an update than a duplicate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tomldiary.errors import InvalidValue
from tomldiary.logging import get_logger
from tomldiary.runtime.lru import cached_if_short
from tomldiary.runtime.views import ListView, Viewed
from tomldiary.text.contradiction import contradiction, plain_signs
from tomldiary.text.languages import NEGATIONS
from tomldiary.text.visible import compatible, visible
from tomldiary.text.words import ascii_digits

_logger = get_logger(__name__)
DEFAULT_THRESHOLD = 70.0
"""The minimum score of entries that are suggested as similar to a new one."""
_SCORED_CHARACTERS = 2000  # longer texts are compared by their beginning to bound the time

Scorer = Callable[[str, str], float]
"""Returns the similarity of two normalised texts, from 0 (nothing in common) to 100."""
Embed = Callable[[list[str]], Sequence[Sequence[float]]]
"""Returns a vector for each text."""

# Punctuation that separates words. Marks that are significant in names ("C++", "C#", ".NET") and symbols such as
# emoji are kept.
_DROPPED = re.compile(r"[\s!\"$%&'()*,/:;<=>?@\[\\\]^_`{|}~‐-―‘-‟…、。「」！？，：；（）]+")
_EDGE_DOTS = re.compile(r"(?<!\.)\.++(?=\s|$)")
_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
_PLAIN = re.compile(r"[A-Za-z]+(?: [A-Za-z]+)*[.!]*")  # most texts, detected quickly
# A run of marks that no space follows is matched as well, and kept, so that it is not scanned again from each mark.
_PAUSE = re.compile(r"(?<![\d\s])[,;:،؛]++(?P<end>(?=\s))?")
# After a sentence or line of one word, a line break separates like a comma: "No\nmeat". Others may only wrap a text.
_BREAKS = r"\n\r\v\f\x85\u2028\u2029"
_LINE_BREAK = re.compile(rf"((?:^|(?<=[{_BREAKS}.!?:]))[^\S{_BREAKS}]*[^\W\d_]+)\s*[{_BREAKS}]")
_STOPS = re.compile(r"(?:[.…。।۔]|(?<!\d)!|(?<=\s)!|！)++(?P<end>(?=\s|$))?")
_BEFORE_PAUSE = 40  # characters; every negation is shorter
_END = " \t\r\n,;:،؛、.…。।۔"
_EDGE_QUOTES = re.compile(
    r"(?<![^\s(])[\"']+(?=\w)|(?<=[^\W\d])[\"]+(?=[\s.,;:!)]|$)|(?<=[.,!])[\"]+(?=\s|$)"
)
_UNIT = re.compile(r"(?<=\d)\s*[^\W\d_]{1,3}\b(?:/[^\W\d_]{1,3}\b)?")


@cached_if_short
def normalise(text: str) -> str:
    """Return text in normal form, without case, width, punctuation and hidden characters; digits are ASCII.

    Words, numbers, symbols and emoji are kept.
    """
    folded = compatible(visible(text)).casefold().replace("’", "'")
    folded = ascii_digits(folded)
    if "'" in folded:
        folded = _APOSTROPHE.sub("", folded)
    folded = _DROPPED.sub(" ", folded)
    if "." in folded:
        folded = _EDGE_DOTS.sub("", folded)
    return " ".join(folded.split()) or text.strip()


@cached_if_short
def identity(text: str) -> str:
    """Return the form of a text that is equal for texts that may be merged without a question.

    Case, width, spacing, hidden characters, pauses, quotation marks around words and the final stop are removed.
    Signs, numbers, apostrophes, the case of a unit ("5 mW") and the comma after a "no" are kept, or the line break after one alone.
    """
    if _PLAIN.fullmatch(text):
        return text.lower().rstrip(" .!") or text.strip()
    # Presentations of emoji are not shown, and only "İ" has two characters in lower case.
    folded = plain_signs(visible(text)).replace("\ufe0e", "").replace("\ufe0f", "")
    folded = folded.replace("\u0130", "i").replace("i\u0307", "i")
    letters = list(folded.lower())
    for unit in _UNIT.finditer(folded):
        letters[slice(*unit.span())] = unit.group()
    lowered = "".join(letters)
    if '"' in lowered or "'" in lowered:
        lowered = _EDGE_QUOTES.sub("", lowered)
    lowered = _LINE_BREAK.sub(r"\1,\n", lowered)
    lowered = _PAUSE.sub(_without_pause, lowered)
    lowered = _STOPS.sub(_as_stop, lowered).rstrip(_END)
    return " ".join(lowered.split()) or text.strip()


def _without_pause(pause: re.Match[str]) -> str:
    if pause["end"] is None:
        return pause.group()
    before = pause.string[max(0, pause.start() - _BEFORE_PAUSE) : pause.start()].split()
    return pause.group() if before and before[-1].strip("\"'(") in NEGATIONS else ""


def _as_stop(stops: re.Match[str]) -> str:
    return stops.group() if stops["end"] is None else "."


def same_text(left: str, right: str) -> bool:
    """Return whether two texts are equal except for case, spacing, pauses and the final stop."""
    return identity(left) == identity(right)


def conflict(left: str, right: str) -> str:
    """Return how two similar texts contradict each other, in a word or two; "" if they do not."""
    found = contradiction(left, right)
    if found or normalise(left) != normalise(right) or same_text(left, right):
        return found
    is_unit = identity(left).lower() == identity(right).lower()  # "5 mW" and "5 MW"
    return "different unit" if is_unit else "different spelling"


_LEVEL = 53.0
"""The cosine of the local embedder, times 100, from which two statements probably have the same meaning."""
_REACH = 45.0
"""The minimum score of entries that are compared with the embedder."""
_ASKED = 20


@dataclass(frozen=True, slots=True, repr=False)
class Match(Viewed):
    """An entry whose text is similar to a given text; `score` is 0 to 100."""

    category: str
    id: str
    text: str
    score: float
    conflict: str = ""
    """How it contradicts the given text; "" for a likely duplicate."""


class Matches(ListView[Match]):
    """Entries that are similar to a text, best first."""


class Similarity:
    """Finds entries that are similar to a text.

    Args:
        threshold: The minimum score of a suggested entry, 0 to 100.
        scorer: Compares two normalised texts; None for rapidfuzz `token_set_ratio`.
        second: Embeds texts on the scale of the local embedder, to raise or lower the score of words. It is ignored
            if there is a scorer, and after it failed.
    """

    def __init__(
        self,
        threshold: float = DEFAULT_THRESHOLD,
        scorer: Scorer | None = None,
        second: Embed | None = None,
    ) -> None:
        self.threshold = threshold
        self.scorer = scorer
        self.second = second

    def score(self, left: str, right: str) -> float:
        """Return the similarity of two texts, 0 to 100."""
        least = Similarity(0.0, self.scorer)
        found = least.find("", left, [""], [normalise(right)], lambda _: right, limit=1)
        return found[0].score if found else 0.0

    def find(
        self,
        category: str,
        text: str,
        keys: Sequence[str],
        normalised: Sequence[str | None],
        text_of: Callable[[str], str],
        *,
        limit: int = 5,
    ) -> list[Match]:
        """Return the entries that are similar to `text`, best first.

        Args:
            category: The category of the matches.
            text: The statement to compare.
            keys: The ids of the entries.
            normalised: The texts of the entries from `normalise`; None for values that are not entries.
            text_of: Returns the stored text of an entry.
            limit: The maximum number of matches.
        """
        from rapidfuzz import fuzz, process  # noqa: PLC0415 - slow to import, only writers need it

        second = self.second if self.scorer is None else None
        found = process.extract(
            normalise(text)[:_SCORED_CHARACTERS],
            [each and each[:_SCORED_CHARACTERS] for each in normalised],
            scorer=fuzz.token_set_ratio if self.scorer is None else _without_options(self.scorer),
            score_cutoff=min(self.threshold, 100.0 if second is None else _REACH),
            limit=limit if second is None else max(limit, _ASKED),
        )
        scored = [(keys[number], score) for _, score, number in found]
        if second is not None and scored:
            scored = self._moved(second, text, scored, text_of)[:limit]
        scored = [(key, score) for key, score in scored if score >= self.threshold]
        texts = {key: text_of(key) for key, _ in scored}
        return [
            Match(category, key, texts[key], score, conflict(text, texts[key]))
            for key, score in scored
        ]

    def _moved(
        self,
        second: Embed,
        text: str,
        scored: list[tuple[str, float]],
        text_of: Callable[[str], str],
    ) -> list[tuple[str, float]]:
        """Return the scores adjusted by the embedder, best first."""
        try:
            wanted, *others = second([text, *(text_of(key) for key, _ in scored)])
        except Exception as error:  # noqa: BLE001 - an embedder may raise any error, and words are compared without it
            _logger.warning(
                "the embedder failed (%s); texts are compared by words", type(error).__name__
            )
            self.second = None
            return scored
        moved: list[tuple[str, float]] = []
        for (key, score), vector in zip(scored, others, strict=True):
            new = min(100.0, max(0.0, score + 100 * _cosine(wanted, vector) - _LEVEL))
            # The score of a contradiction is never lowered, so that its warning is shown.
            moved.append((key, max(score, new) if conflict(text, text_of(key)) else new))
        return sorted(moved, key=lambda pair: -pair[1])


def _without_options(scorer: Scorer) -> Any:
    """Return a scorer that ignores the options that rapidfuzz gives it."""

    def score(one: str, two: str, **_: Any) -> float:
        found: Any = scorer(one, two)
        try:
            return float(found)
        except (TypeError, ValueError):
            raise InvalidValue(
                f"it returned {type(found).__name__}. Return a number from 0 to 100.",
                where="scorer",
            ) from None

    return score


def _cosine(one: Sequence[float], two: Sequence[float]) -> float:
    length = math.hypot(*one) * math.hypot(*two)
    return sum(a * b for a, b in zip(one, two, strict=True)) / length if length else 0.0
