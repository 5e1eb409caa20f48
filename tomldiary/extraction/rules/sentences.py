"""A message cut into sentences, and the plain form of a sentence that phrases are matched against.

What is not the user's own speech is blanked out: code, quotations, addresses.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MAX_CHARACTERS", "MAX_SENTENCE", "plain_form", "split_sentences"]

MAX_CHARACTERS = 20_000  # of a message; what follows is not looked at
MAX_SENTENCE = 600  # characters; anything longer is a pasted text, not a statement
_INTENSIFIERS = """really absolutely truly strongly totally deeply particularly especially actually honestly
    personally generally definitely simply just also still kinda very quite so pretty greatly intensely
    extremely currently now completely genuinely firmly thoroughly utterly fully both big huge strong deep
    intense severe serious real mild slight major lifelong certain profound great acute chronic extreme total
    much please even already recently finally"""
_FILLERS = frozenset(_INTENSIFIERS.split())
_CONTRACTIONS = {
    "an": "a",
    "im": "i am",
    "ive": "i have",
    "dont": "do not",
    "doesnt": "does not",
    "cant": "can not",
    "can't": "can not",
    "cannot": "can not",
    "won't": "will not",
    "gonna": "going to",
    "wanna": "want to",
}
_ENDINGS = {
    "n't": "not",
    "'m": "am",
    "'ve": "have",
    "'ll": "will",
    "'d": "would",
    "'re": "are",
    "'s": "is",
}
_SHORT_FORMS = "dr mr mrs ms prof st vs e.g i.e eg ie approx no inc jr sr u.s u.k a.m p.m"
_ABBREVIATIONS = frozenset(_SHORT_FORMS.split())
_INITIALS = "abcdefghjklmnopqrstuvwxyz"  # without "i", which ends sentences
_QUOTE_MARKS = str.maketrans("\u2018\u2019\u02bc\u201c\u201d\u201e\u00ab\u00bb", "'" * 3 + '"' * 5)
_HIDDEN = re.compile(  # each branch stops at the next mark of its own kind, so no scan is repeated
    r"`[^`\n]*`|(?<!\w)\"[^\"\n]*\"|(?<![\w'])'(?:[^'\n]|(?<=\w)'(?=\w))*+'(?!\w)|(?:https?://|www\.)\S+"
)
_SOFT_WRAP = re.compile(r"(?<![.!?:;\n])\n(?=[a-z])(?!(?:i|i'm|im|i've|my|we|our)\b)")
_BOUNDARY = re.compile(r"\n|(?<![.!?\u2026])[.!?\u2026]++[^\w\s]{0,8}+(?=\s|\Z)|\Z")
_BULLETS = "-*\u2022\u2013 \t"
_PLAIN_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|\d+")


def split_sentences(message: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence as typed, and with code, quotations and addresses blanked out."""
    cut, message = len(message) > MAX_CHARACTERS, message[:MAX_CHARACTERS]
    mask = _mask(message)
    start = 0
    for boundary in _BOUNDARY.finditer(mask):
        end = boundary.end()
        if boundary.group() == "." and _is_abbreviation(mask[max(start, end - 8) : end - 1]):
            continue
        if cut and not boundary.group():
            return  # what the cap cuts off is not verbatim
        text = message[start:end].lstrip().lstrip(_BULLETS)
        if 0 < len(text) <= MAX_SENTENCE:
            yield text.rstrip(), mask[end - len(text) : end].rstrip()
        start = end


def _mask(message: str) -> str:
    """Blank out what is not the user's own speech; every offset stays where it was."""
    lines: list[str] = []
    fence = ""
    for line in message.translate(_QUOTE_MARKS).split("\n"):
        mark = line.lstrip()[:3]
        hidden = bool(fence) or mark in {"```", "~~~"} or mark.startswith(">")
        if mark in {"```", "~~~"} and fence in {"", mark}:
            fence = "" if fence else mark
        lines.append("\n" * len(line) if hidden else line)
    text = _HIDDEN.sub(lambda hit: "_" * len(hit.group()), "\n".join(lines))
    return _SOFT_WRAP.sub(" ", text)


def _is_abbreviation(before: str) -> bool:
    word = before.lower().split()[-1:]
    return bool(word) and (
        word[0] in _ABBREVIATIONS or (len(word[0]) == 1 and word[0] in _INITIALS)
    )


def plain_form(sentence: str) -> str:
    """The form that phrases are matched against: one space around each word, see `phrases`."""
    words: list[str] = [""]
    for match in _PLAIN_WORD.finditer(sentence.lower()):
        token = match.group()
        word = "#" if token.isdigit() else _CONTRACTIONS.get(token, token)
        if "'" in word:
            ending = next((ending for ending in _ENDINGS if word.endswith(ending)), "")
            word = f"{word.removesuffix(ending)} {_ENDINGS[ending]}" if ending else word
        if word not in _FILLERS:
            words.append(word)
    return " ".join([*words, ""])
