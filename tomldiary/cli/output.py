"""Output of the commands: text without control characters, highlighted TOML, and JSON."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, TextIO

from tomldiary.text.visible import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = [
    "heading",
    "is_terminal",
    "print_diff",
    "print_error",
    "print_json",
    "print_not_done",
    "print_note",
    "print_text",
    "print_toml",
    "progress_bar",
    "ranges",
    "width",
]

_WIDTH = 80
_NARROWEST = 20
_HANGING = 8
_DIFF_STYLES = {
    "---": "bold", "+++": "bold", "+": "green", "-": "red", "@": "cyan",
}  # fmt: skip


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def width() -> int:
    """Return the maximum length of a line: the width of the terminal, or 80 characters without one."""
    return shutil.get_terminal_size().columns if is_terminal() else _WIDTH


def print_text(text: str = "") -> None:
    """Print text with control characters as escapes; on a terminal, wrap long lines between words."""
    _write(text, sys.stdout, is_wrapped=is_terminal())


def print_error(text: str) -> None:
    """Print text on stderr, as `print_text` does on stdout."""
    _write(text, sys.stderr, is_wrapped=sys.stderr.isatty())


def _write(text: str, stream: TextIO, *, is_wrapped: bool) -> None:
    shown = printable(_lines(text))
    if is_wrapped:
        shown = "\n".join(part for line in shown.split("\n") for part in _wrapped(line, width()))
    stream.write(f"{shown}\n")


def print_note(text: str) -> None:
    """Print a note about a default value on stderr if it is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{printable(text)}\n")


def print_not_done(needed: str = "--yes") -> None:
    """Print that nothing was changed, and which options apply the change."""
    print_text(f"Nothing was changed. Add {needed} to apply the changes.")


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
    if not is_terminal():
        print_text(text.rstrip("\n"))
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.syntax import Syntax  # noqa: PLC0415 - the same

    shown = printable(_lines(text)).rstrip("\n")
    Console().print(Syntax(shown, "toml", background_color="default", word_wrap=True))


def print_diff(text: str) -> None:
    """Print a unified diff; on a terminal it is coloured, and long lines are wrapped between words."""
    shown = printable(_lines(text))
    if not is_terminal():
        sys.stdout.write(f"{shown}\n")  # not wrapped, because it may be used as a patch
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.text import Text  # noqa: PLC0415 - the same

    console = Console(width=width(), highlight=False)
    for line in shown.split("\n"):
        for part in _wrapped(line, width()):
            console.print(Text(part, _DIFF_STYLES.get(line[:3]) or _DIFF_STYLES.get(line[:1], "")))


def print_json(value: Any) -> None:
    """Print JSON in plain ASCII, without control characters. A dataclass is printed as an object of its fields."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


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
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _wrapped(line: str, columns: int) -> list[str]:
    """Split a line into parts of at most `columns` columns; all parts except the first are indented."""
    from rich.cells import cell_len, chop_cells  # noqa: PLC0415 - only a terminal needs it

    columns = max(columns, _NARROWEST)
    if cell_len(line) <= columns:
        return [line]
    indent = " " * min(len(line) - len(line.lstrip(" ")) + _HANGING, columns // 2)
    parts: list[str] = []
    left, start = line, ""
    while cell_len(start + left) > columns:
        fitting = chop_cells(left, columns - cell_len(start))[0]
        end = len(fitting)
        if left[end : end + 1] != " ":
            space = fitting.rfind(" ")
            if fitting[:space].strip():  # otherwise the word is longer than a line
                end = space if space > 0 else end
        parts.append(f"{start}{left[:end]}".rstrip(" "))
        left, start = left[end:].lstrip(" "), indent
    return [*parts, f"{start}{left}"] if left else parts


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n")
