"""`completion`: the script that lets a shell complete commands, users, categories and keys."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
import typer.completion

from tomldiary.cli.options import AsJson
from tomldiary.cli.output import print_json, print_text

__all__ = ["completion"]

_PROGRAM, _VARIABLE = "tomldiary", "_TOMLDIARY_COMPLETE"


class Shell(StrEnum):
    """The shells that there is a script for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell.")] = Shell.bash,
    *,
    install: Annotated[
        bool, typer.Option("--install", help="Add it to the shell's start-up.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the completion script of a shell: eval "$(tomldiary completion bash)", or install it."""
    script = typer.completion.get_completion_script(  # pyright: ignore[reportPrivateImportUsage] - as typer's own options do
        prog_name=_PROGRAM, complete_var=_VARIABLE, shell=shell.value
    )
    place = None
    if install:
        _, place = typer.completion.install(  # pyright: ignore[reportPrivateImportUsage] - the same
            shell=shell.value, prog_name=_PROGRAM, complete_var=_VARIABLE
        )
    if as_json:
        print_json({"shell": shell.value, "script": script, "installed": place and str(place)})
    elif place is not None:
        print_text(f"installed in {place}; open a new shell")
    else:
        print_text(script)
