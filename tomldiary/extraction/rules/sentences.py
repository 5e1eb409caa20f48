"""The languages of `phrases.toml`, and a message in one of them: its language, its sentences, and requests.

Code, quotations and addresses are blanked out, since they are not the user's own words. Some languages are only
recognised, so that the extractor can report that it does not support them.
"""

from __future__ import annotations

import pkgutil
import re
import tomllib
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE: dict[str, Any] = tomllib.loads((pkgutil.get_data(__name__, "phrases.toml") or b"").decode())
WORD = re.compile(r"[^\W\d_]+|\d+")
_NEVER = re.compile(r"(?!)")
_AFTER = "(?:(?:OPENING) )?"
_PLAIN = "(?:PHRASES)(?: |(?<= ))"
_IN_TEXT = {
    "ordinals": r"(?i:\b(?:PHRASES) \d\d?\Z)",
    "splices": rf"(?i:(?:[,;]\s*|\s(?:--?|[\u2013\u2014])\s){_AFTER}(?=(?:PHRASES)\s))|\s*¿",
}
MAX_CHARACTERS = 20_000  # of a message; the rest is ignored
MAX_SENTENCE = 600  # characters; anything longer is a pasted text, not a statement
_LOOK = 20  # characters around a full stop
_INITIALS = "abcdefghjklmnopqrstuvwxyz"  # without "i", which ends sentences
_QUOTE_MARKS = str.maketrans("\u2018\u2019\u02bc\u201c\u201d\u201e\u00ab\u00bb", "'" * 3 + '"' * 5)
_HIDDEN = re.compile(  # each branch stops at the next mark of its own kind, so no scan is repeated
    r"`[^`\n]*`|(?<!\w)\"[^\"\n]*\"|(?<![\w'])'(?:[^'\n]|(?<=\w)'(?=\w))*+'(?!\w)|(?:https?://|www\.)\S+"
)
_LEVEL = "(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)"
_LOG_LINE = re.compile(
    rf"\s*\[?(?:\d{{4}}-\d\d-\d\d[ T](?:\d\d:|\W?{_LEVEL})|\d\d:\d\d:\d\d|{_LEVEL})\b"
)
_LABEL = re.compile(r"\s*(?:[-*]\s+)?([^\W\d_][\w.]*(?: \w+)?)\s?:\s")
_ROLES, _OWN_LABELS = (frozenset(FILE[key].split()) for key in ("roles", "own_labels"))
_SHORT_FORMS, _LAST_FORMS = (frozenset(FILE[key].split()) for key in ("short_forms", "last_forms"))
_SOFT_WRAP = re.compile(r"(?<![.!?:;\n])\n(?=[a-z])(?!(?:i|i'm|im|i've|my|we|our)\b)")
_BOUNDARY = re.compile(r"\n|(?<![.!?\u2026])[.!?\u2026]++[^\w\s]{0,8}+(?=\s|\Z)|\Z")
_BULLETS = re.compile(
    r"(?:[-\u2022\u2013\s]|\*(?=\s|[^*]*\Z))*"
)  # an asterisk may also begin emphasis


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


# Sentences


def split_sentences(message: str, language: Language) -> Iterator[tuple[str, str]]:
    """Yield each sentence as typed, and with code, quotations and addresses blanked out.

    Args:
        message: The text.
        language: The language of the text.
    """
    cut, message = len(message) > MAX_CHARACTERS, message[:MAX_CHARACTERS]
    mask = _mask(message)
    start = 0
    for boundary in _BOUNDARY.finditer(mask):
        end = boundary.end()
        if boundary.group() == "." and _is_within_sentence(mask, start, end, language):
            continue
        if cut and not boundary.group():
            return  # a truncated sentence is not verbatim
        text = _BULLETS.sub("", message[start:end], count=1)
        if 0 < len(text) <= MAX_SENTENCE:
            yield text.rstrip(), mask[end - len(text) : end].rstrip()
        start = end


def _mask(message: str) -> str:
    """Blank out text that is not the user's own; all offsets stay the same."""
    lines: list[str] = []
    fence = ""
    plain = message.translate(_QUOTE_MARKS).split("\n")
    speakers = _speakers(plain)
    for line in plain:
        mark = line.lstrip()[:3]
        hidden = bool(fence) or mark in {"```", "~~~"} or mark.startswith(">")
        hidden = hidden or _LOG_LINE.match(line) is not None or _label(line) in speakers
        if mark in {"```", "~~~"} and fence in {"", mark}:
            fence = "" if fence else mark
        lines.append("\n" * len(line) if hidden else line)
    text = _HIDDEN.sub(lambda hit: "_" * len(hit.group()), "\n".join(lines))
    return _SOFT_WRAP.sub(" ", text)


def _speakers(lines: list[str]) -> frozenset[str]:
    """Return the labels of lines in a pasted conversation: roles, and names of which one is repeated."""
    labels = [label for label in map(_label, lines) if label]
    is_dialogue = len(labels) > len(set(labels)) > 1
    others = set(labels) if is_dialogue else {each for each in labels if each in _ROLES}
    return frozenset(others - _OWN_LABELS)


def _label(line: str) -> str:
    """Return the text before the first colon of a line, in lower case; empty if there is none."""
    found = _LABEL.match(line)
    return found.group(1).lower() if found is not None else ""


def _is_within_sentence(mask: str, start: int, end: int, language: Language) -> bool:
    """Return whether the full stop before `end` belongs to a short form, an initial or an ordinal number."""
    before = mask[max(start, end - _LOOK) : end - 1]
    last = "".join(before.lower().split()[-1:])
    if last in _SHORT_FORMS:
        return True
    is_initial = len(last) == 1 and last in _INITIALS
    if not (last in _LAST_FORMS or is_initial or language.search("ordinals", before)):
        return False
    # A common word with a capital begins a sentence: "at 6 a.m. I run", but "at 6 a.m. Eastern Time".
    following = WORD.search(mask[end : end + _LOOK])
    word = following.group() if following else ""
    return not (word.istitle() and word.lower() in language.words)


# Requests

_TAG = 6  # spaces in the plain form of a tag question ("isn't it great?")


def is_request(language: Language, plain: str, *, question: bool = False) -> bool:
    """Return whether a sentence is a question or an order; "remember that I ..." is neither.

    Args:
        language: The language of the sentence.
        plain: The plain form of the sentence.
        question: Whether it ends with a question mark.
    """
    if language.match("keeps", plain):
        return False
    if question or language.match("reminds", plain):
        return question
    return bool(language.search("asks", plain) or language.match("opens", plain))


def is_small_talk(language: Language, plain: str, *, question: bool) -> bool:
    """Return whether a question is about the assistant ("and you?"), and no request for help."""
    if language.search("asks", plain) or language.match("orders", plain):
        return False
    if language.search("you", plain) or language.match("nudges", plain):
        return True
    return question and plain.count(" ") <= _TAG and not language.search("first_person", plain)


def hands_over(language: Language, plain: str, mask: str, *, request: bool) -> bool:
    """Return whether a sentence is followed by a text to work on or a role to play, which is not about the user."""
    if language.match("role_play", plain) or (request and language.search("points_below", plain)):
        return True
    is_announced = request or "points_below" not in language.table
    colon = mask.endswith(":") or (is_announced and ":" in mask)
    return colon and language.search("hands_over", plain) is not None


# Languages

_SURE = 2
"""The minimum number of common words to recognise a language that is not supported."""
_FEW = 12
"""The length in words up to which common words alone do not identify a language."""
_PHRASE_WORDS = 2
"""The number of common words that a first-person phrase counts as."""
_MOST = 200
"""The number of words that are read to identify the language."""
_SCRIPTS = [(name, re.compile(f"[{letters}]")) for name, letters in FILE["scripts"].items()]


def language_of(text: str) -> tuple[str, str]:
    """Return the code of a supported language and "", or "" and the name of one that is not supported.

    A text that identifies no language, for example names and code, counts as English.
    """
    if not text.isascii():
        letters = sum(map(str.isalpha, text))
        for name, script in _SCRIPTS:
            if 2 * len(script.findall(text)) > letters:
                return "", name
        if 2 * sum(len(script.findall(text)) for _, script in _SCRIPTS) > letters:
            return "", _SCRIPTS[0][0]
    words = WORD.findall(text.lower())[:_MOST]
    best, most = ENGLISH, 0
    is_unclear = 0 < len(words) <= _FEW and sum(word in ENGLISH.words for word in words) < _SURE
    for language in LANGUAGES.values():
        count = sum(word in language.words for word in words)
        if is_unclear and language.is_supported:
            about_oneself = language.search("lasting", language.plain_form(text))
            count += _PHRASE_WORDS * (about_oneself is not None)
        if count > most and (language.is_supported or count >= _SURE):
            best, most = language, count
    return (best.code, "") if best.is_supported else ("", best.name)
