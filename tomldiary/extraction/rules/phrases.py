"""The phrases of statements that users make about themselves, from `phrases.toml`, and their patterns.

Some languages are only recognised, so that the extractor can report that it does not support them.
"""

from __future__ import annotations

import pkgutil
import re
import tomllib
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: dict[str, Any] = tomllib.loads((pkgutil.get_data(__name__, "phrases.toml") or b"").decode())
WORD = re.compile(r"[^\W\d_]+|\d+")
_NEVER = re.compile(r"(?!)")
_AFTER = "(?:(?:OPENING) )?"
_PLAIN = "(?:PHRASES)(?: |(?<= ))"
_IN_TEXT = {
    "ordinals": r"(?i:\b(?:PHRASES) \d\d?\Z)",
    "splices": rf"(?i:(?:[,;]\s*|\s(?:--?|[\u2013\u2014])\s){_AFTER}(?=(?:PHRASES)\s))|\s*¿",
}


class Language:
    """One language; `phrases.toml` describes the parts of its table."""

    def __init__(self, code: str, table: Mapping[str, Any]) -> None:
        self.code = code
        self.name: str = table["name"]
        self.table = {"splices": table.get("opens", ""), **table}
        self.is_supported = "lasting" in table
        self.words = frozenset(table["common"].split())
        self._fillers = frozenset(table.get("fillers", "").split())
        self._expansions = [
            (re.compile(f" (?:{words})(?= )"), f" {expanded}")
            for words, expanded in table.get("expansions", {}).items()
        ]

    def plain_form(self, sentence: str) -> str:
        """Return the form for matching phrases: one space around each word."""
        words = ("#" if word.isdigit() else word for word in WORD.findall(sentence.lower()))
        plain = " ".join(["", *(word for word in words if word not in self._fillers), ""])
        for words, expanded in self._expansions:
            plain = words.sub(expanded, plain)
        return plain

    def search(self, part: str, text: str) -> re.Match[str] | None:
        """Find a phrase of this part of the table: the leftmost, then in table order."""
        return _pattern(self.code, part).search(text)

    def match(self, part: str, plain: str) -> re.Match[str] | None:
        """Find a phrase at the beginning, also after a word of `opening`."""
        return _pattern(self.code, part, f" {_AFTER}{_PLAIN}").match(plain)

    def kind(self, part: str, plain: str) -> str:
        """Return the kind of statement of a phrase in `lasting` or `passing`; empty if there is none."""
        found = self.search("allergy", plain) or self.search(part, plain)
        return (found and found.lastgroup) or ""


LANGUAGES = {code: Language(code, table) for code, table in FILE["languages"].items()}
ENGLISH = LANGUAGES["en"]


@cache
def _pattern(code: str, part: str, frame: str = f" {_PLAIN}") -> re.Pattern[str]:
    """Compile a part of a table, when a message first needs it."""
    table = LANGUAGES[code].table
    phrases = table["lasting"]["allergy"] if part == "allergy" else table.get(part, "")
    kinds: Mapping[str, str] = {part: phrases} if isinstance(phrases, str) else phrases
    source = "|".join(f"(?P<{kind}>{_either(text)})" for kind, text in kinds.items() if text)
    if not source:
        return _NEVER
    source = _IN_TEXT.get(part, frame).replace("PHRASES", source)
    source = source.replace("OPENING", table["opening"])
    while names := set(re.findall(r"(?<!\?P)<(\w+)>", source)):
        for name in names:
            words = f"(?:{_either(FILE['words'][name])})"
            source = re.sub(rf"(?<!\?P)<{name}>", words.replace("\\", r"\\"), source)
    return re.compile(source.replace("~", r"(?:\S+ ){0,4}?"))


def _either(lines: str) -> str:
    return "|".join(line.strip() for line in lines.split("\n"))
