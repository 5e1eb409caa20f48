"""The account of what a reader left out, so that nothing disappears silently."""

from __future__ import annotations

import re

__all__ = ["Omissions"]

_SURROGATE = re.compile("[\ud800-\udfff]")


class Omissions:
    """Counts of what was left out, told as sentences."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._replaced = 0

    def leave_out(self, one: str, many: str) -> None:
        """Count one more thing; `one` and `many` are its singular and plural."""
        self._counts[one, many] = self._counts.get((one, many), 0) + 1

    def clean(self, text: str) -> str:
        """The text with each lone surrogate, which no file can store, replaced by U+FFFD."""
        cleaned, replaced = _SURROGATE.subn("\ufffd", text)
        self._replaced += replaced
        return cleaned

    def sentences(self) -> list[str]:
        """One sentence for each kind of thing, in the order in which they were met first."""
        told = [
            _SURROGATE.sub("\ufffd", f"Left out {count} {one if count == 1 else many}.")
            for (one, many), count in self._counts.items()
        ]
        if self._replaced:
            noun = "character that is" if self._replaced == 1 else "characters that are"
            told.append(f"Replaced {self._replaced} {noun} no valid text by U+FFFD.")
        return told
