"""The options that several commands take.

Commands that remove or overwrite are dry runs unless `--yes` is given; `--dry-run` wins over `--yes`.
"""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AsJson", "DryRun", "MemoryPath", "PreferenceTable", "Yes"]

MemoryPath = Annotated[
    str,
    typer.Option(
        help="The folder of the memory, or the URL of its database.",
        envvar=["TOMLDIARY_URL", "TOMLDIARY_PATH"],
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PreferenceTable = Annotated[
    str | None,
    typer.Option(metavar="FILE.py:Class", help="The preference table; the file is run."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this it is a dry run.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")]
