"""Renders a sheet as text for a console, with aligned columns and without control characters."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from tomldiary.text.visible import one_line
from tomldiary.views.sheet import cut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.views.sheet import Sheet, Table

__all__ = ["card", "line"]

_MOST_ROWS = 12
_LINE = 72  # the maximum number of characters of an object on one line
_COLUMN = 60  # the maximum number of characters of a cell


def line(name: str, text: str) -> str:
    """Return an object on one line: its class and a short text."""
    return f"<{name} {_short(one_line(text), _LINE)}>"


def card(sheet: Sheet) -> str:
    """Return a sheet with its first rows."""
    marks = "".join(f" [{badge.text}]" for badge in sheet.badges)
    lines = [f"{one_line(sheet.title)}{marks}"]
    lines += [one_line(note) for note in sheet.notes if note]
    for table in sheet.tables:
        if table.rows:
            lines += _rows(table)
    if sheet.empty and len(lines) == 1 and not any(table.rows for table in sheet.tables):
        lines.append(one_line(sheet.empty))
    return "\n".join(lines)


def _rows(table: Table) -> Iterator[str]:
    table = table.without_empty()
    if table.heading:
        yield f"{one_line(table.heading)}:"
    # A line that says "1 more" would be no shorter than the row.
    is_one_more = len(table.rows) == _MOST_ROWS + 1 and not table.left_out
    shown = table.rows if is_one_more else table.rows[:_MOST_ROWS]
    cells = [[_short(cell.text, _COLUMN) for cell in row] for row in shown]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [
            text + " " * (width - _width(text)) for text, width in zip(row, widths, strict=True)
        ]
        yield f"  {'  '.join(padded)}".rstrip()
    left_out = table.left_out + len(table.rows) - len(shown)
    if left_out:
        yield f"  … {left_out:,} more"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else cut(text, most).partition(" … ")[0] + "…"


def _width(text: str) -> int:
    """Return the number of console columns that a text needs."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
