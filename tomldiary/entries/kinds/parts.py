"""Parts: the documents that the entries of one kind are spread over."""

from __future__ import annotations

import re

__all__ = ["part_name", "part_of"]

_PART = re.compile(r"(.+)~([2-9]|[1-9][0-9]{1,8})")


def part_name(document: str, number: int) -> str:
    """Return the name of a further document of the same entries by number, from 1 on: `work~2`."""
    return document if number == 1 else f"{document}~{number}"


def part_of(document: str) -> tuple[str, int]:
    """Undo `part_name`."""
    found = _PART.fullmatch(document)
    return (document, 1) if found is None else (found.group(1), int(found.group(2)))
