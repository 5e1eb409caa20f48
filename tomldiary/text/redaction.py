"""Redacts secrets, keys, cards, account numbers, e-mail addresses and telephone numbers in text.

The detectors read a text in the form of ASCII, without hidden characters and escapes. What they find is replaced at its
place in the text as it is.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from string import ascii_letters
from typing import Any, NamedTuple, cast

from tomldiary.errors import InvalidValue, wrong_type
from tomldiary.runtime.callables import refuse_async, refuse_misfit
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.text.detectors import DETECTORS, KINDS, Detector
from tomldiary.text.visible import HIDDEN
from tomldiary.text.words import ascii_digits

Redact = Callable[[str], str]
"""Returns a text without the parts that must not be stored."""

# Letters, signs, spaces, hyphens and quotation marks in the form that the patterns have; each is one character.
_AS_ASCII = {
    **{code + 0xFEE0: code for code in b"@.+()=_" + ascii_letters.encode()},
    **dict.fromkeys([0xA0, 0x2007, 0x2009, 0x202F, 0x3000], " "),
    **dict.fromkeys([0x2010, 0x2011], "-"),
    **dict.fromkeys(map(ord, "“”„«»「」『』"), '"'),
}
# A longer dash, which is a hyphen only within a number; elsewhere it separates words.
_DASH_IN_NUMBER = re.compile("(?<=[\\d)])[\u2012\u2013\u2212\uff0d](?=\\d)")
# Letters beside which a number or an address may begin and end, as in languages without spaces. Hebrew joins a
# preposition by a hyphen.
_OTHER_LETTERS = re.compile("(?<=[\u05d0-\u05ea])-|[\u0590-\u209f\u20d0-\U0010ffff]")
_HIDDEN = re.compile(f"[{HIDDEN}]")
# Hidden characters, and escapes of all characters as JSON has.
_HIDDEN_OR_ESCAPED = re.compile(rf"[{HIDDEN}]|(?<!\\)\\++u([0-9a-fA-F]{{4}})")
# The rest of an escape, which separates words.
_ESCAPED = re.compile(r"(?<=\\)(?:[nrtbf]|u[0-9a-fA-F]{4})")
# An amount, such as 612 345 678 €, which without these spaces would be a telephone number.
_AMOUNT = re.compile(r"\d{1,3}(?:[\xa0\u2007\u2009\u202f]\d{3})+")
_DEEPEST = 64  # levels of a value; a document has fewer


class Redactor:
    """Replaces sensitive data in text by "[redacted: kind]", and counts the replacements by kind. Thread-safe.

    Args:
        kinds: Those of `KINDS` to redact; None for all of them.
        also: A function that is applied after the detectors; a text that it changes is counted as "other".

    Raises:
        InvalidValue: A kind does not exist, or `also` is async or has other parameters.
    """

    def __init__(self, kinds: Iterable[str] | None = None, also: Redact | None = None) -> None:
        wanted = tuple(KINDS if kinds is None else kinds)
        unknown = [str(kind) for kind in wanted if kind not in KINDS]
        if unknown:
            raise InvalidValue(
                f"expected some of {', '.join(KINDS)}, found {', '.join(unknown)}.", where="redact"
            )
        if also is not None:
            refuse_async(also, "redact")
            refuse_misfit(also, "text", "redact", "")
        self.kinds = wanted
        self._also = also
        self._detectors = [each for each in DETECTORS if each.kind in wanted]
        self._counts: Counter[str] = Counter()
        # Reentrant, because the garbage collector may end a run, whose texts are then redacted, at any time.
        self._lock = fork_safe(threading.RLock())

    def __repr__(self) -> str:
        return f"Redactor({list(self.kinds)!r})"

    def stats(self) -> dict[str, int]:
        """Return the number of redactions of each kind."""
        with self._lock:
            return dict(self._counts)

    def __call__(self, text: str) -> str:
        """Return a redacted text.

        Raises:
            InvalidValue: The function `also` returned no text.
        """
        found: Counter[str] = Counter()
        for is_joined in _passes(text):
            form = _form(text, is_joined=is_joined)
            for each in self._detectors:
                changed, count = _redacted(text, each, form)
                if count:
                    text, form = changed, _form(changed, is_joined=is_joined)
                    found[each.kind] += count
        if self._also is not None:
            changed = self._also(text)
            if not isinstance(changed, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
                raise InvalidValue(
                    f"the function returned {type(changed).__name__}. Return a text.",
                    where="redact",
                )
            found["other"] += changed != text
            text = changed
        if found:
            with self._lock:
                self._counts.update(found)
        return text

    def values(self, value: Any, *, depth: int = 0) -> Any:
        """Return a value with all its texts redacted; the keys of tables and numbers are unchanged.

        Raises:
            InvalidValue: It is nested too deeply for any document, or contains itself.
        """
        if isinstance(value, str):
            return self(value)
        if depth > _DEEPEST:
            raise InvalidValue(f"nested deeper than {_DEEPEST}. Flatten it.", where="redact")
        if isinstance(value, Mapping):
            table = cast("Mapping[str, Any]", value)
            return {key: self.values(each, depth=depth + 1) for key, each in table.items()}
        if isinstance(value, list | tuple):
            listed = cast("list[Any] | tuple[Any, ...]", value)
            items = [self.values(each, depth=depth + 1) for each in listed]
            return items if isinstance(listed, list) else tuple(items)
        return value

    def uncounted(self, value: Any) -> Any:
        """Return the same as `values` without counting, for a text that is redacted again when it is stored."""
        # Not under the lock, because the function `also` may be slow or wait.
        other = copy(self)
        other._counts = Counter()  # noqa: SLF001 - of the same class
        return other.values(value)

    def entry(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of an entry redacted; managed fields such as "_created" are unchanged."""
        return {key: each if key[:1] == "_" else self.values(each) for key, each in data.items()}


class _Form(NamedTuple):
    """A text as the patterns read it."""

    shown: str
    """The text, without hidden characters and escapes if it is joined."""
    plain: str
    """The same in the form that the patterns have."""
    apart: str
    """The same with one sign in place of each of the `_OTHER_LETTERS`."""
    places: Sequence[int]
    """The place of each character in the text."""


def _passes(text: str) -> tuple[bool, ...]:
    """Return whether to search a text joined, as it is, or both: hidden characters may be within a number or beside it."""
    if "\\u" not in text and (text.isascii() or _HIDDEN.search(text) is None):
        return (False,)
    codes = [each[1] for each in _HIDDEN_OR_ESCAPED.finditer(text)]
    if not codes:
        return (False,)
    return (True, False) if any(map(_is_hidden, codes)) else (True,)


def _is_hidden(code: str | None) -> bool:
    """Return whether a match of `_HIDDEN_OR_ESCAPED` is a hidden character or the code of one."""
    return code is None or _HIDDEN.match(chr(int(code, 16))) is not None


def _form(text: str, *, is_joined: bool) -> _Form:
    places: Sequence[int] = range(len(text))
    if is_joined:
        text, places = _joined(text)
    plain = _ESCAPED.sub(lambda rest: "|" * len(rest[0]), text) if "\\" in text else text
    if text.isascii():
        return _Form(text, plain, plain, places)
    plain = _DASH_IN_NUMBER.sub("-", ascii_digits(plain.translate(_AS_ASCII)))
    return _Form(text, plain, _OTHER_LETTERS.sub("。", plain), places)


def _joined(text: str) -> tuple[str, list[int]]:
    """Return a text without hidden characters, and the place of each other character."""
    shown: list[str] = []
    places: list[int] = []
    at = 0
    for match in _HIDDEN_OR_ESCAPED.finditer(text):
        shown.append(text[at : match.start()])
        places += range(at, match.start())
        at = match.end()
        if not _is_hidden(match[1]):
            shown.append(chr(int(match[1], 16)))
            places.append(match.start())
    return "".join([*shown, text[at:]]), [*places, *range(at, len(text))]


def _redacted(text: str, detector: Detector, form: _Form) -> tuple[str, int]:
    """Return a text without what a detector finds in a form of it, and the number of redactions."""
    parts: list[str] = []
    done = 0
    for match in detector.matches(form.apart if detector.is_apart else form.plain):
        if _AMOUNT.fullmatch(form.shown, *match.span()):
            continue
        taken = "value" if match.groupdict().get("value") is not None else 0
        start, last = form.places[match.start(taken)], form.places[match.end(taken) - 1]
        code = _HIDDEN_OR_ESCAPED.match(text, last)
        parts += [text[done:start], f"[redacted: {detector.kind}]"]
        done = code.end() if code else last + 1
    return "".join([*parts, text[done:]]), len(parts) // 2


def redactor_of(redact: bool | str | Iterable[str] | Redact | Redactor | None) -> Redactor | None:  # noqa: FBT001 - an option
    """Return the redactor for an option of a diary; None if redaction is off.

    Raises:
        InvalidValue: The option is not a redactor, plain function, kind or list of kinds.
    """
    if redact is None or redact is False:
        return None
    if redact is True:
        return Redactor()
    if isinstance(redact, Redactor):
        return redact
    if isinstance(redact, str):
        return Redactor([redact])
    if callable(redact):
        return Redactor((), redact)
    if not isinstance(redact, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise wrong_type(redact, "True, kinds or a function", "redact")
    return Redactor(redact)
