"""Output of the commands: text without control characters, rows of values, highlighted TOML, and JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, TextIO

from tomldiary.text.visible import one_line, printable
from tomldiary.toml.values import json_value

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from rich.text import Text

EXIT_PARTIAL = 1
_WIDTH = 80
_NARROWEST = 20
_HANGING = 8
_DIFF_STYLES = {
    "---": "bold", "+++": "bold", "+": "green", "-": "red", "@": "cyan",
}  # fmt: skip
_GAP = "  "
_TEXT_SHARE = 0.35
"""The minimum share of a line for the text column; with less space, the text is printed below the other columns."""
_BELOW = "    "
_CHANGES = {"+": "green", "-": "red"}

Row = tuple[str, ...]


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def width() -> int:
    """Return the maximum length of a line: the width of the terminal, or 80 characters without one."""
    return max(_NARROWEST, shutil.get_terminal_size().columns) if is_terminal() else _WIDTH


def print_text(text: str = "") -> None:
    """Print text with control characters as escapes; on a terminal, wrap long lines between words."""
    _write_out(f"{_shown(text, is_wrapped=is_terminal())}\n")


def print_error(text: str) -> None:
    """Print text on stderr, as `print_text` does on stdout; a stderr that cannot be written changes no exit code."""
    try:
        sys.stderr.write(f"{_shown(text, is_wrapped=sys.stderr.isatty())}\n")
    except OSError:
        _drop(sys.stderr)


def _shown(text: str, *, is_wrapped: bool) -> str:
    shown = printable(_lines(text))
    if is_wrapped:
        shown = "\n".join(part for line in shown.split("\n") for part in _wrapped(line, width()))
    return shown


def _write_out(text: str) -> None:
    """Write to stdout, which may be unbuffered; exit with 1 if it cannot be written."""
    try:
        sys.stdout.write(text)
    except OSError as error:
        drop_output(error)
        sys.exit(EXIT_PARTIAL)


def _drop(stream: TextIO) -> None:
    """Drop what a stream could not write: its buffer keeps it, and the interpreter flushes it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def drop_output(error: OSError) -> None:
    """Drop what stdout could not write, and print the reason unless the reader has closed the pipe."""
    _drop(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        print_error(f"The output could not be written ({error.strerror}).")


def print_note(text: str) -> None:
    """Print a note about a default value on stderr if it is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{printable(text)}\n")


def print_not_done(needed: str = "--yes", *, dry_run: bool) -> None:
    """Print that nothing was changed, and which options apply the change, instead of --dry-run if that was given."""
    what = f"Use {needed} instead of --dry-run" if dry_run else f"Add {needed}"
    print_text(f"Nothing was changed. {what} to apply the changes.")


def sentence(text: str) -> str:
    """Return text on one line that ends like a sentence."""
    shown = one_line(text)
    return shown if shown.endswith((".", "!", "?")) else f"{shown}."


def ranges(numbers: list[int]) -> str:
    """Return integers as text with ranges, lowest first: 1-3, 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def heading(text: str) -> None:
    """Print a heading, which is bold on a terminal."""
    if is_terminal():
        from rich.console import Console  # noqa: PLC0415 - only a terminal needs it

        Console(highlight=False).print(printable(text), style="bold", markup=False, emoji=False)
    else:
        print_text(text)


def print_toml(text: str) -> None:
    """Print TOML, with syntax highlighting on a terminal."""
    # A byte order mark would be printed as an escape.
    text = text.removeprefix("\ufeff").rstrip("\r\n")
    if not is_terminal():
        print_text(text)
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.syntax import Syntax  # noqa: PLC0415 - the same

    shown = printable(_lines(text))
    Console().print(Syntax(shown, "toml", background_color="default", word_wrap=True))


def print_diff(text: str) -> None:
    """Print a unified diff; on a terminal it is coloured, and long lines are wrapped between words."""
    if not is_terminal():
        # Not wrapped, and with the line ends of the files, because it may be used as a patch.
        _write_out("\r\n".join(map(printable, f"{text}\n".split("\r\n"))))
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.text import Text  # noqa: PLC0415 - the same

    console = Console(width=width(), highlight=False)
    for line in printable(_lines(text)).split("\n"):
        for part in _wrapped(line, width()):
            console.print(Text(part, _DIFF_STYLES.get(line[:3]) or _DIFF_STYLES.get(line[:1], "")))


def print_json(value: Any) -> None:
    """Print JSON in plain ASCII, without control characters. A dataclass is printed as an object of its fields."""
    plain = json.loads(json.dumps(value, default=_plain))
    text = json.dumps(json_value(plain), indent=2)  # without `nan` and `inf`, which JSON lacks
    _write_out(f"{text}\n")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return json_value(value)


@contextmanager
def progress_bar(what: str) -> Generator[Callable[[int, int], object] | None]:
    """Show a progress bar, and yield a function that sets the numbers of finished and of all steps.

    Yields None without showing a bar if stderr is not a terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.progress import (  # noqa: PLC0415 - the same
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console, is_shown = Console(stderr=True), sys.stdout.isatty()  # piped output is not the bar's
    with Progress(*columns, console=console, transient=True, redirect_stdout=is_shown) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _wrapped(line: str, columns: int) -> list[str]:
    """Split a line between words into parts of at most `columns` columns; all parts except the first are indented."""
    from rich.cells import cell_len  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    line = line.expandtabs()
    if cell_len(line) <= columns:
        return [line]
    indent = min(len(line) - len(line.lstrip(" ")) + _HANGING, columns // 2)
    first = Text(line).wrap(Console(), columns)[0].plain
    others = Text(line[len(first) :].lstrip(" ")).wrap(Console(), columns - indent)
    return [first.rstrip(" "), *(f"{' ' * indent}{part.plain.rstrip(' ')}" for part in others)]


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n")


# Rows


@dataclass(frozen=True, slots=True)
class Column:
    """One column, with a style of rich. The last column is the text, which is wrapped between words."""

    title: str
    style: str = ""
    is_number: bool = False
    is_change: bool = False
    """Whether the texts begin with + or -, which determines the colour of their first line."""


def print_rows(columns: Sequence[Column], rows: Iterable[Row]) -> None:
    """Print rows of one cell for each column. Only the last cell may have several lines.

    Piped output has no column headings, colours, padding or wrapping, so each line depends only on its own row. Cells are
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
        line = _GAP.join([*(cell for cell in row[:-1] if cell), first]).rstrip()
        _write_out("\n".join([line, *(f"{_BELOW}{line}" for line in further)]) + "\n")


def _print_on_terminal(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Print aligned cells, and the text of each row beside them, or below them if it would be too narrow."""
    from rich.cells import cell_len  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    rows = [(*(cell.strip() for cell in row[:-1]), row[-1]) for row in rows]
    heads = tuple(column.title for column in columns)
    shown = [at for at in range(len(columns) - 1) if any(row[at] for row in rows)]
    widths = {at: max(cell_len(row[at]) for row in [heads, *rows]) for at in shown}
    fixed = sum(each + len(_GAP) for each in widths.values())
    longest = max(cell_len(line) for row in rows for line in row[-1].split("\n"))
    is_beside = fixed + min(longest, width() * _TEXT_SHARE) <= width()
    is_aligned = fixed - len(_GAP) <= width()
    indent = " " * fixed if is_beside else _BELOW
    console = Console(width=width(), highlight=False)
    for row in [heads, *rows] if any(heads) else rows:
        cells: list[Text] = []
        for at, size in widths.items():
            cell = Text(row[at], "bold" if row is heads else columns[at].style)
            if is_aligned:
                cell.align("right" if columns[at].is_number else "left", size)
            cells.append(cell)
        text = Text(row[-1], "bold") if row is heads else _styled(columns[-1], row[-1])
        parts = list(text.wrap(console, width() - len(indent))) if row[-1] else []
        if is_beside:
            cells += parts[:1]
            del parts[:1]
        console.print(Text(_GAP).join(cell for cell in cells if cell.plain), overflow="fold")
        for part in parts:
            console.print(Text.assemble(indent, part))


def _styled(column: Column, text: str) -> Text:
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs it

    first, line_end, further = text.partition("\n")
    style = _CHANGES.get(text[:1], "") if column.is_change else column.style
    return Text.assemble((first, style), line_end, (further, "dim" if column.is_change else style))
