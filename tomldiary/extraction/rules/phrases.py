"""The phrases of statements that users make about themselves, from `phrases.toml`, and their patterns.

English has one table for each kind of statement; its requests are in `sentences`. Each other language is a `Language`.
Some languages are only recognised, so that the extractor can report that it does not support them.
"""

from __future__ import annotations

import pkgutil
import re
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE: dict[str, Any] = tomllib.loads((pkgutil.get_data(__name__, "phrases.toml") or b"").decode())
WORD = re.compile(r"[^\W\d_]+|\d+")
SO = r"(?:(?:and|but|so|well|ok|okay|hi|hey|hello|also|now|then|btw|by the way) )?"
_OPENING = r"(?:(?:und|aber|also|hallo|danke|y|pero|hola|gracias|et|mais|bonjour|merci|e|mas|olá|obrigad[oa]|ma|ciao|grazie) )?"


def compile_phrases(phrases: str | Mapping[str, str], *, start: str = "") -> re.Pattern[str]:
    """One pattern of many phrases, kinds as named groups: the leftmost wins, then table order."""
    kinds = {"any": phrases} if isinstance(phrases, str) else phrases
    source = "|".join(f"(?P<{kind}>{_either(text)})" for kind, text in kinds.items() if text)
    while names := set(re.findall(r"(?<!\?P)<(\w+)>", source)):
        for name in names:
            words = f"(?:{_either(_FILE['words'][name])})"
            source = re.sub(rf"(?<!\?P)<{name}>", words.replace("\\", r"\\"), source)
    source = source.replace("~", r"(?:\S+ ){0,4}?")
    return re.compile(rf" {start}(?:{source})(?: |(?<= ))")


def _either(lines: str) -> str:
    return "|".join(line.strip() for line in lines.split("\n"))


def _phrases(name: str) -> dict[str, str]:
    return {kind: table[name] for kind, table in _FILE["kinds"].items() if name in table}


SHORT_FORMS = frozenset(_FILE["short_forms"].split())
LAST_FORMS = frozenset(_FILE["last_forms"].split())
HOMES = {kind: homes.split() for kind, homes in _phrases("homes").items()}
"""Words of the names of categories for each kind of statement, best first."""
LASTING = compile_phrases(_phrases("lasting"))
PASSING = compile_phrases(_phrases("passing"))
ALLERGY = compile_phrases({"allergy": _phrases("lasting")["allergy"]})
FIRST_PERSON = compile_phrases("i|my|mine|me|we|our")


@dataclass(frozen=True, slots=True)
class Patterns:
    """The phrases of a language, compiled."""

    first_person: re.Pattern[str]
    allergy: re.Pattern[str]
    lasting: re.Pattern[str]
    passing: re.Pattern[str]
    asks: re.Pattern[str]
    opens: re.Pattern[str]
    forgets: re.Pattern[str]
    keeps: re.Pattern[str]
    supposes: re.Pattern[str]
    hands_over: re.Pattern[str]
    ordinal: re.Pattern[str] | None
    splice: re.Pattern[str]
    """Matches the beginning of a question after a statement."""


@dataclass(frozen=True)
class Language:
    """The table of one language; `phrases.toml` describes its fields."""

    name: str
    common: str
    first_person: str = ""
    fillers: str = ""
    asks: str = ""
    opens: str = ""
    forgets: str = ""
    keeps: str = ""
    supposes: str = ""
    hands_over: str = ""
    ordinals: str = ""
    lasting: Mapping[str, str] = field(default_factory=dict[str, str])
    passing: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def words(self) -> frozenset[str]:
        """The common words."""
        return frozenset(self.common.split())

    @cached_property
    def dropped(self) -> frozenset[str]:
        """The words that the plain form leaves out."""
        return frozenset(self.fillers.split())

    def plain_form(self, sentence: str) -> str:
        """Return the form for matching phrases: one space around each word."""
        words = ("#" if word.isdigit() else word for word in WORD.findall(sentence.lower()))
        return " ".join(["", *(word for word in words if word not in self.dropped), ""])

    @cached_property
    def patterns(self) -> Patterns:
        """The phrases as patterns; compiled when a message is in the language."""
        return Patterns(
            compile_phrases(self.first_person),
            compile_phrases({"allergy": self.lasting["allergy"]}),
            compile_phrases(self.lasting),
            compile_phrases(self.passing),
            compile_phrases(self.asks),
            compile_phrases(self.opens, start=_OPENING),
            compile_phrases(self.forgets),
            compile_phrases(self.keeps),
            compile_phrases(self.supposes),
            compile_phrases(self.hands_over),
            re.compile(rf"\b(?:{self.ordinals}) \d\d?\Z", re.IGNORECASE) if self.ordinals else None,
            re.compile(rf",\s*(?=(?:{_either(self.opens)})\s)|\s*¿", re.IGNORECASE),
        )


LANGUAGES = {code: Language(**table) for code, table in _FILE["languages"].items()}
