"""The options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AsJson", "MemoryPath", "PreferenceTable"]

MemoryPath = Annotated[str, typer.Option(help="The folder of the memory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PreferenceTable = Annotated[
    str | None,
    typer.Option(metavar="FILE.py:Class", help="The preference table; the file is run."),
]
