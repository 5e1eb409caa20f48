r"""Makes stored text safe to show: without hidden characters and tags for models, with escapes for people.

Hidden characters are the format and default-ignorable characters of Unicode. They are not displayed, so they can
contain text that a model reads but a person does not see. Four uses are kept because they are necessary to read a
text: joiners in Arabic and Indic words, joiners between emoji, one presentation selector after an emoji, and the tags
of three flags.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import chain, groupby

HIDDEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""The hidden characters, as the inside of a character class."""
_HIDDEN_CHARACTER = re.compile(f"[{HIDDEN}]")
# Control characters for terminals, and hidden characters. Text needs no controls except newline and tab.
_OBEYED = re.compile(
    "["
    "\x00-\x08\x0b-\x1f"  # C0 with ESC and carriage return
    "\x7f-\x9f"  # DEL and C1
    "\u2028\u2029"  # separators that some programs treat as line ends
    "\ud800-\udfff"  # surrogates, which cannot be encoded
    f"{HIDDEN}]"
)
_LONGEST_RUN = 30
_MARKS = re.compile(rf"[^\w\s\x00-\x7f]{{{_LONGEST_RUN},}}")  # on a letter, or other signs
_JOINERS = "\u200c\u200d"
_EMOJI_JOINER = "\u200d"
_PRESENTATIONS = "\ufe0e\ufe0f"
_KEYCAP = "\u20e3"
_BLACK_FLAG, _FIRST_TAG = "\U0001f3f4", "\U000e0020"
_TAGGED_FLAGS = tuple(
    "".join(
        [_BLACK_FLAG, *(chr(ord(_FIRST_TAG) + ord(char) - 0x20) for char in region), "\U000e007f"]
    )
    for region in ("gbeng", "gbsct", "gbwls")
)
"""The flags of England, Scotland and Wales, the only emoji with tags."""
_LONGEST_FLAG = 6  # tags
# Scripts whose letters join: Arabic and its relatives, Mongolian, and those of South and South-East Asia.
_JOINING = re.compile(
    "[\u0600-\u08ff\u0900-\u109f\u1700-\u18af\u1900-\u1cff\ua800-\uabff\ufb50-\ufdff\ufe70-\ufefc"
    "\U00010a00-\U00010fff\U00011000-\U00011fff]"
)
# Tags are escaped, and line ends replaced by spaces. Hidden characters are removed earlier.
_ESCAPES: dict[int, str | None] = {
    **dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029], " "),
    **dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}"),
    ord("&"): "&amp;",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
}
_UNPRINTABLE = {
    **{code: None for code in range(0x20) if chr(code) not in "\t\n"},
    **dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}"),
}


def visible(text: str) -> str:
    """Return text without hidden characters, for a model; all other characters are unchanged."""
    if text.isascii():
        return text
    return _HIDDEN_CHARACTER.sub(lambda found: found.group() if _is_needed(found) else "", text)


def compatible(text: str) -> str:
    """Return text in NFKC. Marks in a row are sorted first, because `normalize` sorts them in quadratic time."""
    text = text.replace("\uff9e", "\u3099").replace(
        "\uff9f", "\u309a"
    )  # letters that NFKC makes marks of
    return unicodedata.normalize("NFKC", _MARKS.sub(_in_order, text))


def composed(text: str) -> str:
    """Return text in NFC, as `compatible` returns NFKC; long runs of marks and signs are in NFKC."""
    return text if text.isascii() else unicodedata.normalize("NFC", _MARKS.sub(_in_order, text))


def _in_order(run: re.Match[str]) -> str:
    """Return a run of marks and signs in NFKD, which has the same NFKC."""
    text = run[0]
    starts = range(0, len(text), _LONGEST_RUN)
    marks = "".join([unicodedata.normalize("NFKD", text[at : at + _LONGEST_RUN]) for at in starts])
    by_class = unicodedata.combining
    found = (
        sorted(each, key=by_class) for _, each in groupby(marks, lambda mark: not by_class(mark))
    )
    return "".join(chain.from_iterable(found))


def as_stored(quoted: str, text: str) -> str:
    """Return the only part of `text` that equals `quoted` but for hidden characters; otherwise `quoted` unchanged."""
    if not quoted or quoted in text:
        return quoted
    # Searched without hidden characters, because the time of a pattern grows with the product of both lengths.
    shown = [at for at, char in enumerate(text) if _HIDDEN_CHARACTER.match(char) is None]
    plain, wanted = "".join(text[at] for at in shown), _HIDDEN_CHARACTER.sub("", quoted)
    if not wanted or plain.count(wanted) != 1:
        return quoted
    start = plain.find(wanted)
    end = shown[start + len(wanted) - 1] + 1
    if _HIDDEN_CHARACTER.match(quoted[-1]):  # such as the presentation of an emoji
        end = [*shown, len(text)][start + len(wanted)]
    return text[shown[start] : end]


def escape(text: str) -> str:
    """Return text that cannot open or close a tag, without hidden characters."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_for_model(text: str) -> str:
    """Return stored text as one visible line that cannot open or close a tag and can be encoded as UTF-8."""
    return " ".join(visible(text).translate(_ESCAPES).split())


def escape_lines(text: str) -> list[str]:
    """Return stored text as lines that cannot open or close a tag; the indentation is kept."""
    return [escape_line(line) for line in text.splitlines()] or [""]


def escape_line(line: str) -> str:
    """Return one line of stored text that cannot open or close a tag; the indentation is kept."""
    return visible(line).expandtabs(4).translate(_ESCAPES).rstrip()


def scrub(text: str) -> str:
    """Return an application's text without control characters and surrogates."""
    return text.translate(_UNPRINTABLE)


def printable(text: str) -> str:
    r"""Return text with escapes for the characters that a terminal executes, hides or reorders.

    For example, ESC becomes `\x1b`, and a right-to-left override `\u202e`. Newline, tab and all visible characters
    are unchanged.
    """
    return _OBEYED.sub(
        lambda found: found.group() if _is_needed(found) else _escape(ord(found.group())), text
    )


def one_line(value: object) -> str:
    """Return a value on one line, with escapes."""
    return printable(str(value)).replace("\n", "\\n").replace("\t", "\\t")


def _is_needed(found: re.Match[str]) -> bool:
    """Return whether a hidden character is necessary to read the text."""
    char, text, at = found.group(), found.string, found.start()
    if char >= _FIRST_TAG:
        start = text.rfind(_BLACK_FLAG, max(0, at - _LONGEST_FLAG), at)
        return start >= 0 and text.startswith(_TAGGED_FLAGS, start)
    if char not in _JOINERS + _PRESENTATIONS or not at:
        return False
    before, after = text[at - 1], text[at + 1 : at + 2]
    if char in _PRESENTATIONS:
        return _is_emoji(before) or (before in "#*0123456789" and after == _KEYCAP)
    if char == _EMOJI_JOINER and after and _is_emoji(after):
        return _is_emoji(text[at - 2] if before in _PRESENTATIONS and at > 1 else before)
    return (
        unicodedata.category(before)[0] in "LM"
        and _JOINING.match(before) is not None
        and after not in [*_JOINERS]
    )


def _is_emoji(char: str) -> bool:
    # Symbols and skin tone modifiers.
    return unicodedata.category(char) == "So" or "\U0001f3fb" <= char <= "\U0001f3ff"


def _escape(code: int) -> str:
    if code < 0x100:  # noqa: PLR2004 - the widths of Python's own escapes
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # noqa: PLR2004 - the same
