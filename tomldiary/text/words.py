"""How texts and questions are split into words for search, also in scripts that write without spaces.

SQLite splits at spaces and signs, so a Chinese or Thai sentence would be one word, and the marks of Indic scripts
would split one. Runs of such scripts are indexed as ASCII tokens that name their characters: pairs of
characters for Chinese, Japanese and Korean, groups of three for Thai and its neighbours, whole words for
Indic scripts. Arabic words are indexed without the article, prepositions and endings that are written
onto them (the rules of Larkey's light10 stemmer). All else is left to SQLite.
"""

from __future__ import annotations

import re
import unicodedata

from tomldiary.text.visible import visible

__all__ = ["folded", "query_tokens", "searchable", "shown"]

_PAIRED = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
_TRIPLED = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u0f40-\u0fbc\u1000-\u103f\u1050-\u108f\u1780-\u17d3\uaa60-\uaa7f"
_MARKED = "\u0900-\u0963\u0971-\u0dff"
_ARABIC = "\u0620-\u063f\u0641-\u064a\u0671-\u06d3\u06d5\u06ee\u06ef\u06fa-\u06fc\u0750-\u077f\u08a0-\u08c9"
_RUN = re.compile(
    f"(?P<paired>[{_PAIRED}]+)|(?P<tripled>[{_TRIPLED}]+)|(?P<marked>[{_MARKED}]+)|(?P<arabic>[{_ARABIC}]+)"
)
_WORD_OR_RUN = re.compile(rf"{_RUN.pattern}|[^\W{_PAIRED}{_TRIPLED}{_MARKED}{_ARABIC}]+")
_KANA_ONLY = re.compile("[\u3041-\u3096\u309d-\u309f\u30fc]+")  # endings and particles
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LONE_HAN = re.compile(f"(?<![{_HAN}])[{_HAN}](?![{_HAN}])")
_TOKEN = re.compile(r"(?:u\d+)+")

# Letters that are written in several ways, and marks that are often left out.
_FOLDED = {
    **dict.fromkeys(map(ord, "\u0622\u0623\u0625\u0671"), "\u0627"),
    **dict.fromkeys(map(ord, "\u0649\u06cc"), "\u064a"),
    ord("\u06a9"): "\u0643",
    ord("\u0629"): "\u0647",
    **dict.fromkeys([0x640, *range(0x64B, 0x660), 0x670, 0x200C, 0x200D]),
}
_PREFIXES = ("وال", "بال", "كال", "فال", "لل", "ال")
_SUFFIXES = ("ها", "ان", "ات", "ون", "ين", "يه", "ه", "ي")
_SHORTEST_STEM = 2


def searchable(text: str) -> str:
    """Return text as it is indexed: with tokens in place of what SQLite cannot split."""
    if text.isascii():
        return text
    return _RUN.sub(lambda run: f" {' '.join(_indexed(run))} ", folded(text))


def query_tokens(query: str) -> list[str]:
    """Return the words of a question in their order, as they stand in the index."""
    if query.isascii():
        return re.findall(r"\w+", query.lower())
    # Not casefold: SQLite, which splits the texts, keeps ß as it is.
    found: list[str] = []
    for word in _WORD_OR_RUN.finditer(folded(query.lower())):
        found += _asked(word)
    return found


def shown(token: str) -> str:
    """Return a token of `query_tokens` as a person writes it."""
    if _TOKEN.fullmatch(token) is None:
        return token
    return "".join(chr(int(code)) for code in token.split("u")[1:])


def folded(text: str) -> str:
    """Return text without hidden characters, in which letters that are written in several ways have one form."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", visible(text)).translate(_FOLDED)


def _indexed(run: re.Match[str]) -> list[str]:
    text = run.group()
    if run.lastgroup == "arabic":
        return [_stem(text)]
    if run.lastgroup == "marked":
        return [_token(text)]
    size = 2 if run.lastgroup == "paired" else 3
    return [*_grams(text, size), *_grams(text, size - 1)]


def _asked(word: re.Match[str]) -> list[str]:
    text = word.group()
    if word.lastgroup in (None, "arabic", "marked"):
        return [text] if word.lastgroup is None else _indexed(word)
    size = 2 if word.lastgroup == "paired" else 3
    if len(text) < size:
        return _grams(text, size - 1)
    grams = _grams(text, size)
    if word.lastgroup == "tripled":
        return grams
    telling = [_token(one) for one in _LONE_HAN.findall(text)]
    telling += [gram for gram in grams if _KANA_ONLY.fullmatch(shown(gram)) is None]
    return telling or grams


def _grams(text: str, size: int) -> list[str]:
    return [_token(text[at : at + size]) for at in range(len(text) - size + 1)]


def _token(text: str) -> str:
    # Decimal digits end it: SQLite's stemmer leaves such a word as it is.
    return "".join(f"u{ord(char)}" for char in text)


def _stem(word: str) -> str:
    if word.startswith("و") and len(word) > _SHORTEST_STEM + 1:
        word = word.removeprefix("و")
    prefix = next((each for each in _PREFIXES if word.startswith(each)), "")
    if len(word) - len(prefix) >= _SHORTEST_STEM:
        word = word.removeprefix(prefix)
    for suffix in _SUFFIXES:
        if len(word) - len(suffix) >= _SHORTEST_STEM:
            word = word.removesuffix(suffix)
    return word
