"""Prints rows of values: as a table on a terminal, and elsewhere as one plain line for each row."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tomldiary.cli.output import is_terminal, width
from tomldiary.text.visible import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.text import Text

__all__ = ["Column", "Row", "print_rows"]

_GAP = 2
_TEXT_SHARE = 0.35
"""The minimum share of a line for the text column; with less space, the text is printed below the other columns."""
_BELOW = "    "
_CHANGES = {"+": "green", "-": "red"}

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One column, with a style of rich. The last column is the text, which is wrapped between words."""

    title: str
    style: str = ""
    is_number: bool = False
    is_change: bool = False
    """Whether the texts begin with + or -, which determines the colour of their first line."""


def print_rows(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Print rows of one cell for each column. Only the last cell may have several lines.

    Piped output has no headings, colours, padding or wrapping, so each line depends only on its own row. Cells are
    separated by two spaces, empty cells are omitted, and further lines of a text are indented.
    """
    cells = [
        (*map(one_line, row[:-1]), printable(row[-1].replace("\r\n", "\n").replace("\t", " ")))
        for row in rows
    ]
    if is_terminal():
        if cells:
            _print_on_terminal(columns, cells)
        return
    for row in cells:
        first, *further = row[-1].split("\n")
        line = "  ".join([*(cell for cell in row[:-1] if cell), first]).rstrip()
        sys.stdout.write("\n".join([line, *(f"{_BELOW}{line}" for line in further)]) + "\n")


def _print_on_terminal(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    from rich.cells import cell_len  # noqa: PLC0415 - only a terminal needs it

    # Cells are stripped because rich aligns them.
    rows = [(*(cell.strip() for cell in row[:-1]), row[-1]) for row in rows]
    heads = tuple(column.title for column in columns)
    shown = [at for at in range(len(columns) - 1) if any(row[at] for row in rows)]
    widths = {at: max(cell_len(row[at]) for row in [heads, *rows]) for at in shown}
    fixed = sum(each + _GAP for each in widths.values())
    longest = max(cell_len(line) for row in rows for line in row[-1].split("\n"))
    if fixed + min(longest, width() * _TEXT_SHARE) > width():
        _print_texts_below(columns, heads, rows, widths)
    else:
        _print_table(columns, heads, rows, shown)


def _print_texts_below(
    columns: Sequence[Column], heads: Row, rows: Sequence[Row], widths: Mapping[int, int]
) -> None:
    """Print the text of each row below its other cells, which are aligned if they fit on a line."""
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.padding import Padding  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    console = Console(width=width(), highlight=False)
    is_aligned = sum(each + _GAP for each in widths.values()) - _GAP <= width()
    for row in [heads, *rows] if all(heads) else rows:
        cells: list[Text] = []
        for at, size in widths.items():
            cell = Text(row[at], "bold" if row is heads else columns[at].style)
            if is_aligned:
                cell.align("right" if columns[at].is_number else "left", size)
            cells.append(cell)
        line = Text(" " * _GAP).join(cell for cell in cells if cell.plain)
        console.print(line, soft_wrap=False, overflow="fold")
        text = Text(row[-1], "bold") if row is heads else _styled(columns[-1], row[-1])
        if row[-1]:
            console.print(Padding(text, (0, 0, 0, len(_BELOW))), overflow="fold")


def _print_table(
    columns: Sequence[Column], heads: Row, rows: Sequence[Row], shown: Sequence[int]
) -> None:
    """Print the columns that have values, and the text, as a table."""
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.table import Table  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
        header_style="bold",
        show_header=any(heads),
    )
    for at in [*shown, len(columns) - 1]:
        column, is_last = columns[at], at == len(columns) - 1
        table.add_column(
            heads[at],
            style=column.style,
            justify="right" if column.is_number else "left",
            no_wrap=not is_last,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(row[at]) for at in shown), _styled(columns[-1], row[-1]))
    Console(width=width(), highlight=False).print(table)


def _styled(column: Column, text: str) -> Text:
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs it

    first, line_end, further = text.partition("\n")
    style = _CHANGES.get(text[:1], "") if column.is_change else column.style
    return Text.assemble((first, style), line_end, (further, "dim" if column.is_change else style))
