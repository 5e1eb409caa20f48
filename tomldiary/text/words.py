"""Splits texts and questions into the words that search compares, in all languages.

Indexes and questions use the same tokenizer. Case, accents and spelling variants of letters are normalised. English
words are reduced to Porter's stem, and words of other languages to their first five letters, with the last letters as
another word if they may be compounds. Prefixes and suffixes of Arabic words are removed, and Hebrew words are also
indexed without prefixes. Scripts without spaces are
split into pairs of characters (Chinese, Japanese, Korean) or groups of three (Thai and its neighbours). Numbers are
kept, and amounts and signs are additional words: "15%" is "15" and "15%", "1,500" also "1500". The parts of names are also additional
words: "getUserById" is also "user", and "wi-fi" is also "wifi".
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tomldiary.runtime.forgettable_cache import cleared_on_forget
from tomldiary.text.languages import ENGLISH, IRREGULAR, MONTHS, OTHERS
from tomldiary.text.visible import compatible, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import date

_PAIRED = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
_TRIPLED = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u0f40-\u0fbc\u1000-\u103f\u1050-\u108f\u1780-\u17d3\uaa60-\uaa7f"
_MARKED = "\u0900-\u0963\u0971-\u0dff"
_ARABIC = "\u0620-\u063f\u0641-\u064a\u0671-\u06d3\u06d5\u06ee\u06ef\u06fa-\u06fc\u0750-\u077f\u08a0-\u08c9"
_HEBREW = "\u05d0-\u05ea"
_OTHER = f"[^\\W_{_PAIRED}{_TRIPLED}{_MARKED}{_ARABIC}{_HEBREW}]"
_WORD = re.compile(
    f"(?P<latin>[a-z]+(?!{_OTHER}))|(?P<paired>[{_PAIRED}]+)|(?P<tripled>[{_TRIPLED}]+)|(?P<marked>[{_MARKED}]+)"
    f"|(?P<arabic>[{_ARABIC}]+)|(?P<hebrew>[{_HEBREW}]+)|(?P<other>{_OTHER}+)"
)
_ASCII_WORD = re.compile("[a-z0-9]+")
_ELIDED = re.compile(r"(?<=\w)['\u2019](?:s|t|d|m)\b|\b(?:[cdjlmnst]|qu)['\u2019](?=\w)")
_SIGNED = re.compile(  # no run of digits is scanned again from its middle
    r"[$\u20ac\u00a3\u00a5\u20b9]\s?\d[\d.,]*|\d[\d.,]{0,30}+\s?[%\u20ac$\u00a3\u00a5\u20b9\u00b0]"
    r"|(?<![\w.])[-+<>=\u2264\u2265]{1,2}\s?\d[\d.,]*|(?<!\d)\d++(?:[.:,/-]\d++)+|\b[a-z](?:\+\+|#)"
)
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}([.,])\d{3}(?:\1\d{3})*(?!\d|\1\d)")
_MAY_BE_SIGNED = re.compile(r"\d|[a-z](?:\+\+|#)")
_JOINT = re.compile(
    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"
)
_MAY_BE_JOINT = re.compile(r"[a-z0-9][A-Z]|[A-Z][A-Z][a-z]|[A-Za-z][0-9]|[0-9][a-z]")
_HYPHENED = re.compile(r"(?<![\w\u2010-])[a-z]++(?:[-\u2010][a-z]++)++(?!\w)")
_HYPHEN = re.compile("[-\u2010]")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9]+")
_MOST_PARTS = 8  # of a name; a hash has more
_OTHER_LETTER = re.compile(  # or an accent; emoji and curly quotes do not indicate a language
    r"[^\W\d_a-zA-Z]|[\u0300-\u036f]"
)
_FLAG = "[\U0001f1e6-\U0001f1ff]"  # one of its two letters
_EMOJI = re.compile(  # begins with one class of characters, because alternatives are searched four times as slowly
    f"[\u231a-\u23ff\u2600-\u27bf\u2b1b-\u2b55\U0001f1e6-\U0001faff](?:(?<={_FLAG}){_FLAG})?"
)
_MARKS = re.compile(f"[{_MARKED}]")
_SIZES: dict[str | None, int] = {"paired": 2, "tripled": 3}
_KANA_ONLY = re.compile("[\u3041-\u3096\u309d-\u309f\u30fc]+")  # endings and particles
_PARTICLE = re.compile(
    "[\u7684\u4e86\u662f\u5728\u548c\u4e5f\u5c31\u90fd\u5417\u5462\u5427\u4e48\u4ec0\u54ea\u8c01\u7740\u628a\u88ab\u7ed9]"
)
"""Characters of Chinese function words; pairs with one of them have little meaning."""
_HEBREW_PREFIX = re.compile("[\u05d1\u05d4\u05d5\u05db\u05dc\u05de\u05e9]{0,2}")
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LONE_HAN = re.compile(f"(?<![{_HAN}])[{_HAN}](?![{_HAN}])")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
_ACCENT = re.compile("[\u0300-\u036f]")
_UMLAUT = re.compile("(?<=[aou])(?<![aeiouq][aou])e")  # "Muenchen" is "München"
CUT = 5
"""The number of letters of a word of another language that are compared."""
_SHORTEST = 3
_SHORT_ENDINGS = ("a", "e", "i", "o", "s", "as", "es", "os", "en", "n")
CUT_MARK = "~"
"""Marks a truncated word at its end, so that "carol" does not match "caroline"."""
END_MARK = "~"
"""Marks a possible last part of a compound at its beginning; it does not count as a word of the text."""
_QUERY_PART = 10_000  # characters at the start and the end of a question that are read
_LONGEST_WORD = 64  # letters; a longer one is no word
DAY_MARK = "@"
"""Marks a day or a month at its beginning; no word of a text begins with it."""
_DATE = re.compile(r"(?<!\d)(\d{4})-(\d\d)(?:-(\d\d))?(?!\d)")
_DAY_FIRST = re.compile(r"(?<![\d.,/-])(\d\d?)([./-])(\d\d?)\2(\d{4})(?!\.?\d|[/-])")
_YEAR_FIRST = re.compile(r"(?<![\d.,/-])(\d{4})[./](\d\d?)[./](\d\d?)(?!\.?\d|[/-])")
_MARKED_DATE = re.compile(
    r"(?:(\d{4})[\u5e74\ub144] ?)?(?<!\d)(\d\d?)[\u6708\uc6d4](?: ?(\d\d?)[\u65e5\u53f7\u865f\uc77c])?"
)
"""A date such as "2026年10月13日"."""
_YEAR = re.compile("[0-9]{4}")
_DAYS = frozenset(f"{number:02}" for number in range(1, 32))
_OF_DATE = re.compile(r"\d+|[^\W\d_]+")
_WITHIN_DATE = frozenset(["st", "nd", "rd", "th", "er", "the", "of", "de", "del", "di"])
_INSIDE = frozenset(["in", "im", "en", "em", "last", "this", "during", "в", "w"])
"""Words before a month without a day or year; elsewhere it may be a name or a verb, such as "June" and "may"."""
_LONG = 8  # letters of a word that may be a compound
_SHORTEST_END, _LONGEST_END = 4, 10  # letters of its last part that are compared

# Letters that are written in several ways, and marks that are often left out.
_FOLDED = {
    **dict.fromkeys(map(ord, "\u0622\u0623\u0625\u0671"), "\u0627"),
    **dict.fromkeys(map(ord, "\u0649\u06cc"), "\u064a"),
    ord("\u06a9"): "\u0643",
    ord("\u0629"): "\u0647",
    **dict.fromkeys([0x640, *range(0x64B, 0x660), 0x670, 0x200C, 0x200D]),
    **dict.fromkeys(
        [*range(0x591, 0x5BE), 0x5BF, 0x5C1, 0x5C2, 0x5C4, 0x5C5, 0x5C7]
    ),  # points of Hebrew
    ord("\u0131"): "i",
    ord("\u0142"): "l",
    ord("\u00f8"): "o",
    **dict.fromkeys(map(ord, "\u0111\u00f0"), "d"),
    ord("\u00fe"): "th",
    ord("\u00e6"): "ae",
    ord("\u0153"): "oe",
}


class Asked(NamedTuple):
    """One word of a question."""

    shown: str
    """The folded word of the question."""
    forms: tuple[str, ...]
    """The forms that it may have in the index."""
    is_common: bool = False
    """Whether it is a function word of the question's language."""


def ascii_digits(text: str) -> str:
    """Return text with the digits 0 to 9 in place of those of other scripts, such as Arabic or Bengali."""
    return _OTHER_DIGIT.sub(lambda found: str(unicodedata.digit(found.group())), text)


def folded(text: str) -> str:
    """Return text in lower case without accents and hidden characters, each letter and digit in one form."""
    if text.isascii():
        return text.lower()
    text = compatible(visible(text)).casefold().translate(_FOLDED)
    text = ascii_digits(text)
    return unicodedata.normalize("NFC", _ACCENT.sub("", unicodedata.normalize("NFD", text)))


_MONTHS = {folded(word): number for word, number in MONTHS.items()}
_MONTHS_OF_YEAR = frozenset(_MONTHS.values())


def indexed_words(text: str) -> list[str]:
    """Return the words of a text for an index, in order; ends of compounds, amounts and signs are last."""
    lower = folded(text)
    runs = _runs(lower)
    latin = [word for kind, word in runs if kind == "latin"]
    is_plain = text.isascii() or _OTHER_LETTER.search(text) is None
    is_in_english = is_english(latin, is_default=is_plain)
    words: list[str] = []
    for kind, word in runs:
        if kind == "latin" and is_in_english:
            words.append(porter(word))
        elif kind == "arabic":
            words.append(_cut(_light10(word)))
        elif kind in _SIZES:
            size = _SIZES[kind]
            words += [*_grams(word, size), *_grams(word, size - 1)]
        else:
            words.append(_cut(word))
    if not is_in_english:
        words += _ends(latin)
    bare = [each for kind, word in runs if kind == "hebrew" for each in _unprefixed(word)]
    words += [END_MARK + each for each in bare]
    joined = map("".join, _hyphened(lower))
    words += map(porter if is_in_english else _cut, joined)
    return [*words, *map(porter, _parts(text)), *_EMOJI.findall(lower), *_signed(lower)]


def lone_words(text: str) -> set[str]:
    """Return the words of a text, each in a form that does not depend on the language of those beside it."""
    lower = folded(text)
    runs = {word for _, word in _runs(lower)}
    return {*_EMOJI.findall(lower), *(form for word in runs for form in indexed_words(word))}


def asked_words(query: str) -> list[Asked]:
    """Return the words of a question in order, each with its forms.

    Of a very long question, such as a pasted document, only the first and last 10,000 characters are read.
    """
    if len(query) > 2 * _QUERY_PART:
        query = f"{query[:_QUERY_PART]} {query[-_QUERY_PART:]}"
    text = folded(query)
    found: list[Asked] = []
    runs = _runs(text)
    is_in_english = is_english(word for kind, word in runs if kind == "latin")
    little = ENGLISH if is_in_english else OTHERS
    joined = {max(parts, key=len): "".join(parts) for parts in _hyphened(text)}
    more = {part: (porter(whole), _cut(whole)) for part, whole in joined.items()}
    for kind, word in runs:
        found += _asked(kind, word, little, more.get(word, ()))
    found += [Asked(part, (porter(part), _cut(part)), part in little) for part in _parts(query)]
    found += [Asked(each, (each,), is_common=True) for each in _EMOJI.findall(text)]
    found += [Asked(each, (each,)) for each in _signed(text)]
    found += [Asked(each, (each,)) for each in _asked_days(text)]
    return found


def telling_words(asked: Iterable[Asked]) -> list[Asked]:
    """Return the distinct words of a question, without function words unless it has no others."""
    words = dict.fromkeys(asked)
    return [word for word in words if not word.is_common] or list(words)


def matched_words(asked: Sequence[Asked], *texts: str) -> list[str]:
    """Return the words that occur in some texts in any form, as spelled in the query."""
    stored = {word for text in texts for word in indexed_words(text)}
    return [word.shown for word in asked if not stored.isdisjoint(word.forms)]


def is_english(words: Iterable[str], *, is_default: bool = True) -> bool:
    """Return whether the lower-case words of a text in Latin script are English; `is_default` if this is unclear."""
    each = set(words)
    english, others = len(each & ENGLISH), len(each & OTHERS)
    return is_default if english == others else english > others


def day_words(day: date | None) -> list[str]:
    """Return the words of a day for an index: the day, its month, and both in any year; none for None."""
    iso = "" if day is None else day.isoformat()
    return [DAY_MARK + each for each in (iso, iso[:7], iso[5:], iso[5:7]) if each]


def _asked_days(text: str) -> list[str]:
    """Return the words of `day_words` for the days and months that a folded text names."""
    dates: list[tuple[str, str, str]] = [*_DATE.findall(text), *_dates_in_numbers(text)]
    words = ["", *(word for word in _OF_DATE.findall(text) if word not in _WITHIN_DATE), "", ""]
    for at, word in enumerate(words):
        if word in _MONTHS:
            before, after, last = words[at - 1], words[at + 1], words[at + 2]
            day = next((each.zfill(2) for each in (before, after) if each.zfill(2) in _DAYS), "")
            year = next((each for each in (after, last) if _YEAR.fullmatch(each)), "")
            if day or year or before in _INSIDE:
                dates.append((year, _MONTHS[word], day))
    # The month as well, because days are in UTC, so the day of the user may be the one before or after. It is first,
    # because an index has it after the day, and adjacent words count more.
    found = [f"{year}-{month}" for year, month, day in dates if year and day]
    found += ["-".join(filter(None, each)) for each in dates]
    return [DAY_MARK + each for each in dict.fromkeys(found)]


def _dates_in_numbers(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield year, month and day of dates such as "13.10.2026"; both readings of "3/10/2026"."""
    found = [*_YEAR_FIRST.findall(text), *_MARKED_DATE.findall(text)]
    for one, mark, two, year in _DAY_FIRST.findall(text):
        if mark == "/" or int(two) > len(_MONTHS_OF_YEAR):
            found.append((year, one, two))
        found.append((year, two, one))
    for year, *others in found:
        month, day = (each and each.zfill(2) for each in others)
        if month in _MONTHS_OF_YEAR and day in {"", *_DAYS}:
            yield year, month, day


def _asked(
    kind: str | None, word: str, little: frozenset[str], more: tuple[str, ...]
) -> Iterator[Asked]:
    if kind == "latin":
        yield Asked(word, _latin_forms(word) + more, word in little)
    elif kind == "arabic":
        yield Asked(word, (_cut(_light10(word)),))
    elif kind in _SIZES:
        for gram in _asked_grams(word, _SIZES[kind]):
            yield Asked(gram, (gram,), _PARTICLE.search(gram) is not None)
    elif kind == "hebrew":
        forms = [_cut(word), *_unprefixed(word)]
        yield Asked(word, (*forms, *(END_MARK + each for each in forms)))
    else:
        yield Asked(word, (_cut(word),))


def _asked_grams(text: str, size: int) -> list[str]:
    if len(text) < size:
        return _grams(text, size - 1)
    grams = _grams(text, size)
    telling = _LONE_HAN.findall(text)
    telling += [gram for gram in grams if _KANA_ONLY.fullmatch(gram) is None]
    return telling or grams


def _grams(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(len(text) - size + 1)]


def _cut(word: str) -> str:
    if not (word.isalpha() or _MARKS.search(word)):
        return word
    if word.isascii():
        word = _UMLAUT.sub("", word)
    elif len(word) <= _LONGEST_WORD:  # the ending of a longer one is never within the cut
        word = _ENDING.sub("", word)
    return word[:CUT] + CUT_MARK


def _unprefixed(word: str) -> list[str]:
    """Return a Hebrew word without the one or two letters that may be an article or preposition: "חתול" of "החתול"."""
    prefix = _HEBREW_PREFIX.match(word)
    longest = min(prefix.end() if prefix else 0, len(word) - _SHORTEST)
    return [_cut(word[at:]) for at in range(1, longest + 1)]


def _ends(words: list[str]) -> list[str]:
    """Return the possible last parts of long words: "schlussel" of "hausturschlussel"."""
    found: list[str] = []
    for word in words:
        if len(word) >= _LONG and word.isalpha():
            bare = _bare(word)
            longest = min(len(bare) - _SHORTEST, _LONGEST_END)
            found += [END_MARK + bare[-size:] for size in range(_SHORTEST_END, longest + 1)]
    return found


def _bare(word: str) -> str:
    """Return a word without the most common endings of German and its neighbours."""
    return _UMLAUT.sub("", word).rstrip("ens")


@cleared_on_forget
@lru_cache(4096)
def _latin_forms(word: str) -> tuple[str, ...]:
    """Return the forms that a Latin word may have in the index, with further forms of short non-English words."""
    found = [porter(word), _cut(word)]
    bare = _bare(word)
    if word.isalpha() and len(bare) >= _SHORTEST_END:
        found.append(END_MARK + bare[-_LONGEST_END:])
    if _SHORTEST <= len(word) <= CUT and word.isalpha():
        stem = word.rstrip("aeious") or word
        ends = ("", *_SHORT_ENDINGS) if len(stem) >= len(word) - 2 else ()
        found += [_cut(stem + end) for end in ends if len(stem) >= _SHORTEST]
    return tuple(dict.fromkeys(found))


def _runs(text: str) -> list[tuple[str | None, str]]:
    """Return the words of a folded text with their kinds, which are groups of `_WORD`."""
    if "'" in text or "\u2019" in text:
        text = _ELIDED.sub(" ", text)
    if text.isascii():  # numbers need no kind of their own, because stems leave them unchanged
        return [("latin", word) for word in _ASCII_WORD.findall(text)]
    return [(run.lastgroup, run.group()) for run in _WORD.finditer(text)]


def _hyphened(text: str) -> list[list[str]]:
    """Return the parts of the words with hyphens of a folded text: "wi" and "fi" of "wi-fi"."""
    if "-" not in text and "\u2010" not in text:
        return []
    return [_HYPHEN.split(word) for word in _HYPHENED.findall(text)]


def _parts(text: str) -> list[str]:
    """Return the lower-case parts of names that are written as one word, such as "getUserById" or "TS2345"."""
    if _MAY_BE_JOINT.search(text) is None:
        return []
    found: list[str] = []
    for word in _PLAIN_WORD.findall(text):
        parts = _JOINT.split(word)
        if 1 < len(parts) <= _MOST_PARTS:
            found += [part.lower() for part in parts]
    return found


def _signed(text: str) -> list[str]:
    """Return amounts with their signs, times and similar tokens; "500 €" is returned as "€500".

    Numbers with separators of thousands are returned without them as well: "1,500" also as "1500".
    """
    found: list[str] = []
    if _MAY_BE_SIGNED.search(text) is None:
        return found
    for each in _SIGNED.findall(text):
        amount = each.replace(" ", "").rstrip(".,")
        is_behind = not (amount[-1].isdecimal() or amount[0].isalpha())
        found.append(amount[-1] + amount[:-1] if is_behind else amount)
    found += [each[0].replace(each[1], "") for each in _GROUPED.finditer(text)]
    return found


# Stems. `porter` is the algorithm of M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the two
# changes of its author's program. `_light10` follows L. Larkey's light stemmer for Arabic. In other languages, the first
# five letters of a word are almost as good as a stemmer for each language.

_CYRILLIC_ENDING = (
    r"(?<=[\u0400-\u04ff]{3})(?:[аяы]ми|[иыое]ми|[оеё]го|[оеё]му|[аяиы]х|[оеё]в|[оеиыё]й|[ая]я|[оеыи]е"
    r"|[ую]ю|[оеёаяыи]м|[аеёиоуыэюяьїє])$"
)
_INDIC_MARKS = r"[\u0900-\u0903\u093a\u093b\u093e-\u094f\u0962\u0963]"
_INDIC_ENDING = (
    rf"(?<=[\u0900-\u0963]{{3}})[\u0924\u0928][\u093e\u0940\u0947]{_INDIC_MARKS}*$"
    rf"|(?<=[\u0900-\u0963]{{2}}){_INDIC_MARKS}+$"
)
_GREEK_ENDING = r"(?<=[\u03b1-\u03c9]{3})(?:ουσ|εισ|[αεηιο]σ|ου|ων|οι|ει|[αηο]ν|[αεηιοω])$"
_ENDING = re.compile(f"{_CYRILLIC_ENDING}|{_GREEK_ENDING}|{_INDIC_ENDING}")
"""The ending of a Cyrillic, Greek or Indic word, such as "а" of "кошка"."""
_OUR = re.compile("(?<=[a-z]{2})our(?=s?$|ed$|ing$|ite|ful|able)")
_ISE = re.compile("(?<=[a-z]{3})is(?=e$|es$|ed$|ing$|ation)")
_LONGEST_ENDING = 7
_SHORTEST_STEMMED = 3  # letters
_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble",
    "alli": "al", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate",
    "ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al",
    "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {
    "icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": "",
}  # fmt: skip
_STEP_4 = dict.fromkeys(
    ["al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion", "ou",
     "ism", "ate", "iti", "ous", "ive", "ize"], "",
)  # fmt: skip
_KEPT = {"sion": "s", "tion": "t"}  # of a suffix of step 4 that is taken off

_ARABIC_PREFIXES = ("وال", "بال", "كال", "فال", "لل", "ال")
_ARABIC_SUFFIXES = ("ها", "ان", "ات", "ون", "ين", "يه", "ه", "ي")
_SHORTEST_ARABIC = 2


def porter(word: str) -> str:
    """Return the stem of an English word in lower case; other text is returned unchanged."""
    # Not `cached_if_short`, because each recall would call one more file. Long "words", such as files in base64,
    # would fill the cache.
    return _cached_stem(word) if len(word) <= _LONGEST_WORD else _stem(word)


def _stem(word: str) -> str:
    if len(word) < _SHORTEST_STEMMED or not (word.isascii() and word.isalpha()):
        return word
    word = IRREGULAR.get(word) or _american(word)
    word = _without_plural(word)
    word = _without_tense(word)
    if word.endswith("y") and "v" in _form(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, _STEP_2, 0)
    word = _replaced(word, _STEP_3, 0)
    word = _replaced(word, _STEP_4, 1)
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_cvc(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


_cached_stem = cleared_on_forget(lru_cache(1 << 16)(_stem))


def _american(word: str) -> str:
    """Return a British word in American spelling: "colour", "organised", "theatre"."""
    word = _OUR.sub("or", word)
    return _ISE.sub("iz", word[:-2] + "er" if word.endswith("tre") else word)


def _light10(word: str) -> str:
    """Return an Arabic word without its attached article, prepositions and endings."""
    if word.startswith("و") and len(word) > _SHORTEST_ARABIC + 1:
        word = word.removeprefix("و")
    prefix = next((each for each in _ARABIC_PREFIXES if word.startswith(each)), "")
    if len(word) - len(prefix) >= _SHORTEST_ARABIC:
        word = word.removeprefix(prefix)
    for suffix in _ARABIC_SUFFIXES:
        if len(word) - len(suffix) >= _SHORTEST_ARABIC:
            word = word.removesuffix(suffix)
    return word


def _without_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _without_tense(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    stem = next((word[: -len(end)] for end in ("ed", "ing") if word.endswith(end)), "")
    if "v" not in _form(stem):
        return word
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if stem[-1] == stem[-2:-1] and _form(stem)[-1] == "c" and stem[-1] not in "lsz":
        return stem[:-1]
    return stem + "e" if _measure(stem) == 1 and _ends_cvc(stem) else stem


def _replaced(word: str, endings: Mapping[str, str], least: int) -> str:
    """Return a word with its longest known ending replaced if the stem before it is long enough."""
    for size in range(min(len(word), _LONGEST_ENDING), 1, -1):
        end = word[-size:]
        if end in endings:
            stem = word[:-size] + _KEPT.get(end, "") if least else word[:-size]
            return stem + endings[end] if _measure(stem) > least else word
    return word


def _form(word: str) -> str:
    """Return c for each consonant of a word and v for each vowel; y after a consonant is a vowel."""
    found = ""
    for letter in word:
        is_vowel = letter in "aeiou" or (letter == "y" and found[-1:] == "c")
        found += "v" if is_vowel else "c"
    return found


def _measure(word: str) -> int:
    return _form(word).count("vc")


def _ends_cvc(word: str) -> bool:
    return _form(word).endswith("cvc") and word[-1] not in "wxy"
