"""When two short statements may mean the same, and when they certainly do not.

Two questions, two rules. "Is there an entry this might update?" is answered by a fuzzy score
(rapidfuzz `token_set_ratio`, from 70 on), which only ever suggests. "Are they the same?" is answered
by equality of the normalised texts, and nothing else is merged silently. A suggestion that differs in
polarity, in numbers or in word order is shown as a conflict: it is more likely the opposite or an
update than a duplicate.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tomldiary.runtime.forgettable_cache import let_go_on_forget
from tomldiary.text.visible import visible

__all__ = [
    "DEFAULT_THRESHOLD",
    "NEGATIONS",
    "Match",
    "Scorer",
    "Similarity",
    "conflict",
    "normalise",
    "same_text",
]

DEFAULT_THRESHOLD = 70.0
"""Score from which a new entry is answered with those it resembles."""
_SCORED_CHARACTERS = 2000  # longer texts are compared by their beginning: time stays bounded

Scorer = Callable[[str, str], float]
"""Takes two normalised texts, returns 0 (nothing in common) to 100."""

# Letters, digits, marks that carry meaning in names ("C++", "C#", ".NET"), and every symbol such as
# emoji; other punctuation separates words.
_DROPPED = re.compile(r"[\s!\"$%&'()*,/:;<=>?@\[\\\]^_`{|}~‐-―‘-‟…、。「」！？，：；（）]+")
_EDGE_DOTS = re.compile(r"(?<!\S)\.+(?=\s|$)|(?<=\S)\.+(?=\s|$)")
_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NEGATIONS = frozenset(
    [
        "no",
        "not",
        "never",
        "none",
        "neither",
        "nor",
        "without",
        "cannot",
        "cant",
        "dont",
        "doesnt",
        "didnt",
        "isnt",
        "arent",
        "wasnt",
        "werent",
        "wont",
        "wouldnt",
        "shouldnt",
        "couldnt",
        "hasnt",
        "havent",
        "hadnt",
        "aint",
        "stopped",
        "quit",
    ]
)
_AVERSIONS = frozenset(
    [
        "dislike",
        "dislikes",
        "disliked",
        "hate",
        "hates",
        "hated",
        "avoid",
        "avoids",
        "avoided",
        "detest",
        "detests",
        "loathe",
        "loathes",
        "allergic",
        "intolerant",
        "refuse",
        "refuses",
    ]
)
NEGATIONS = _NEGATIONS | _AVERSIONS
"""Words that turn the meaning of a statement around."""
_NUMBER_WORDS = frozenset(
    [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "twenty",
        "thirty",
        "forty",
        "fifty",
        "hundred",
        "thousand",
        "once",
        "twice",
    ]
)


@let_go_on_forget
@lru_cache(maxsize=65536)
def normalise(text: str) -> str:
    """Fold case, width, punctuation and hidden characters away; keep words, numbers, symbols and emoji."""
    if text.isascii():
        folded = text.lower()  # the same for ASCII, and quicker
    else:
        folded = unicodedata.normalize("NFKC", visible(text)).casefold().replace("’", "'")
    if "'" in folded:
        folded = _APOSTROPHE.sub("", folded)
    folded = _DROPPED.sub(" ", folded)
    if "." in folded:
        folded = _EDGE_DOTS.sub("", folded)
    return " ".join(folded.split()) or text.strip()


def same_text(left: str, right: str) -> bool:
    """Return whether two texts are equal but for case, spacing and punctuation."""
    return normalise(left) == normalise(right)


def conflict(left: str, right: str) -> str:
    """Say how two similar texts contradict each other, in a word or two; empty if they do not."""
    one, two = normalise(left).split(), normalise(right).split()
    if _polarity(one) != _polarity(two):
        return "opposite meaning"
    if _numbers(left, one) != _numbers(right, two):
        return "different number"
    if one != two and sorted(one) == sorted(two):
        return "different order"
    return ""


def _polarity(words: list[str]) -> bool:
    """Return whether the statement says no, with an even count of negations cancelling out."""
    turns = sum(word in _NEGATIONS for word in words) + sum(word in _AVERSIONS for word in words)
    return turns % 2 == 1


def _numbers(text: str, words: list[str]) -> list[str]:
    return sorted(_NUMBER.findall(text)) + sorted(word for word in words if word in _NUMBER_WORDS)


@dataclass(frozen=True, slots=True)
class Match:
    """An entry whose text resembles the one asked for; `score` is 0 to 100."""

    category: str
    id: str
    text: str
    score: float
    conflict: str = ""
    """How it contradicts the text asked for; empty for a likely duplicate."""


class Similarity:
    """Finds entries that resemble a text.

    Args:
        threshold: Score from which an entry is suggested, 0 to 100.
        scorer: Compares two normalised texts; None is rapidfuzz `token_set_ratio`.
    """

    def __init__(self, threshold: float = DEFAULT_THRESHOLD, scorer: Scorer | None = None) -> None:
        self.threshold = threshold
        self.scorer = scorer

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
        """Return the entries that resemble `text`, best first.

        Args:
            category: Named in the matches.
            text: The statement to compare.
            keys: The ids of the entries.
            normalised: Their texts as `normalise` returns them; None for what is no entry.
            text_of: Returns the text of an entry as it is stored.
            limit: Most matches returned.
        """
        from rapidfuzz import fuzz, process  # noqa: PLC0415 - slow to import, only writers need it

        wanted = normalise(text)[:_SCORED_CHARACTERS]
        choices = [each and each[:_SCORED_CHARACTERS] for each in normalised]
        if self.scorer is None:
            found = process.extract(
                wanted,
                choices,
                scorer=fuzz.token_set_ratio,
                score_cutoff=self.threshold,
                limit=limit,
            )
            scored = [(keys[number], score) for _, score, number in found]
        else:
            rated = [
                (key, self.scorer(wanted, choice))
                for key, choice in zip(keys, choices, strict=True)
                if choice is not None
            ]
            rated.sort(key=lambda pair: -pair[1])
            scored = [(key, score) for key, score in rated[:limit] if score >= self.threshold]
        texts = {key: text_of(key) for key, _ in scored}
        return [
            Match(category, key, texts[key], score, conflict(text, texts[key]))
            for key, score in scored
        ]
