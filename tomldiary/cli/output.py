"""What the commands print: text that cannot steer a terminal, highlighted TOML, and JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

from tomldiary.terminal import printable

__all__ = ["heading", "is_terminal", "one_line", "print_json", "print_text", "print_toml"]


def is_terminal() -> bool:
    """Whether a person is reading the output."""
    return sys.stdout.isatty()


def print_text(text: str = "") -> None:
    """Print stored text; what a terminal would obey is shown as an escape."""
    sys.stdout.write(f"{printable(_lines(text))}\n")


def one_line(value: object) -> str:
    """A value on one line, whatever is in it."""
    return printable(str(value)).replace("\n", "\\n").replace("\t", "\\t")


def heading(text: str) -> None:
    """Print a headline, bold on a terminal."""
    if is_terminal():
        Console(highlight=False).print(printable(text), style="bold", markup=False, emoji=False)
    else:
        print_text(text)


def print_toml(text: str) -> None:
    """Print TOML, coloured on a terminal and as it is everywhere else."""
    if not is_terminal():
        print_text(text.rstrip("\n"))
        return
    from rich.syntax import Syntax  # noqa: PLC0415 - a highlighter is only needed on a terminal

    shown = printable(_lines(text)).rstrip("\n")
    Console().print(Syntax(shown, "toml", background_color="default", word_wrap=True))


def print_json(value: Any) -> None:
    """Print JSON in plain ASCII, so that nothing in it can steer a terminal."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n")
