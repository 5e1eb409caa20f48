"""The texts and the numbers of a category's entries, to find equal text and free ids without reading all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from tomldiary.text.incremental_index import Following
from tomldiary.text.similarity import normalise

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Catalog", "entry_text", "number_of"]


class Catalog(Following):
    """What is asked about a category before something is added to it."""

    def __init__(self, category: str) -> None:
        super().__init__(category)
        self._texts: list[str | None] = []
        self._by_text: dict[str, set[int]] = {}
        self._numbers: list[int] = []
        self._highest: int | None = 0
        self._strays = 0

    @property
    def count(self) -> int:
        """How many entries there are."""
        return len(self._texts) - self._strays

    @property
    def highest(self) -> int:
        """The highest N of an id of the form prefN, 0 if there is none."""
        if self._highest is None:
            self._highest = max(self._numbers, default=0)
        return self._highest

    @property
    def normalised(self) -> tuple[list[str], list[str | None]]:
        """The ids, and the normalised texts with None for what is no entry; copies."""
        return self._keys.copy(), self._texts.copy()

    def same(self, text: str) -> str | None:
        """Return the id of the first entry with the same normalised text, or None."""
        places = self._by_text.get(normalise(text))
        return self._keys[min(places)] if places else None

    def _put(self, number: int, key: str, entry: Any) -> None:
        is_entry = type(entry) is dict
        text = normalise(entry_text(cast("Mapping[str, Any]", entry))) if is_entry else None
        if number == len(self._texts):
            self._texts.append(None)
            self._numbers.append(0)
            self._strays += 1
        before = self._texts[number]
        if before != text:
            self._unplace(before, number)
            if text is not None:
                self._by_text.setdefault(text, set()).add(number)
            self._texts[number] = text
        self._strays += (before is not None) - (text is not None)
        self._numbers[number] = (number_of(key) or 0) if is_entry else 0
        if self._highest is not None:
            self._highest = max(self._highest, self._numbers[number]) if is_entry else None

    def _forget(self, known: int) -> None:
        for number, text in enumerate(self._texts[known:], known):
            self._unplace(text, number)
            self._strays -= text is None
        del self._texts[known:]
        del self._numbers[known:]
        self._highest = None if known else 0

    def _unplace(self, text: str | None, number: int) -> None:
        if text is not None:
            places = self._by_text[text]
            places.discard(number)
            if not places:
                del self._by_text[text]


def entry_text(entry: Mapping[str, Any]) -> str:
    """Return an entry's text, also one a person wrote as a number; empty if it has none."""
    text = entry.get("text", "")
    return text if isinstance(text, str) else str(text)


def number_of(key: str) -> int | None:
    """Return N of an id of the form prefN, else None."""
    digits = key[4:]
    if key.startswith("pref") and digits.isdecimal() and digits.isascii() and len(digits) <= 9:  # noqa: PLR2004
        return int(digits)
    return None
