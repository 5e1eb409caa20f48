"""Options that several commands share.

Commands that remove or overwrite are dry runs unless `--yes` is given; `--dry-run` overrides `--yes`.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tomldiary.cli.completion import complete_user

__all__ = [
    "DEFAULT_PATH",
    "Agent",
    "AsJson",
    "DryRun",
    "MemoryPath",
    "PreferenceTable",
    "RequiredUser",
    "UserName",
    "Yes",
    "user_option",
]

DEFAULT_PATH = "./memories"

MemoryPath = Annotated[
    str,
    typer.Option(
        help="The folder of the memory, or the URL of its database.",
        envvar=["TOMLDIARY_URL", "TOMLDIARY_PATH"],
    ),
]


def user_option(text: str) -> Any:
    """Return the option `--user`, which the environment may set; `text` is its help."""
    return typer.Option("--user", help=text, envvar="TOMLDIARY_USER", autocompletion=complete_user)


RequiredUser = Annotated[str, typer.Option(help="The user.", autocompletion=complete_user)]
UserName = Annotated[str | None, user_option("The user; by default the only user.")]
Agent = Annotated[str, typer.Option(help='The extractor: "rules" (offline) or a model name.')]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PreferenceTable = Annotated[
    str | None,
    typer.Option(metavar="FILE.py:Class", help="The preference table; the file is run."),
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Apply the changes; without it, the command is a dry run.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")]
