"""`torture`: crashes and crowds on your own disk."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tomldiary.cli.options import AsJson
from tomldiary.cli.output import one_line, print_json, print_text
from tomldiary.errors import InvalidValue
from tomldiary.torture import torture_for

__all__ = ["torture"]


def torture(
    *,
    minutes: Annotated[
        float, typer.Option(help="Rounds are run until then, at least one.", min=0)
    ] = 1,
    path: Annotated[str, typer.Option(help="A folder on the disk that matters.")] = ".",
    as_json: AsJson = False,
) -> None:
    """Write with many processes, kill them, edit in between, and count what is lost. Exit code 1: anything."""
    if not Path(path).is_dir():
        raise InvalidValue("there is no such folder, name another one with --path", where=path)
    figures = torture_for(minutes, path)
    if as_json:
        print_json({**asdict(figures), "is_clean": figures.is_clean})
    else:
        print_text(f"rounds                {figures.rounds}")
        print_text(f"seconds               {figures.seconds:.1f}")
        print_text(f"updates acknowledged  {figures.acknowledged}")
        print_text(f"  lost                {figures.lost}")
        print_text(f"  duplicated          {figures.duplicated}")
        print_text(f"  failed              {figures.failed}")
        print_text(f"kill cycles           {figures.cycles}")
        print_text(f"editor's saves        {figures.saves}")
        print_text(f"  lost                {figures.saves_lost}")
        print_text(f"unreadable            {figures.unreadable}")
        for message in figures.messages:
            print_text(f"note                  {one_line(message)}")
        if figures.kept:
            print_text(f"kept for a look       {one_line(figures.kept)}")
    if not figures.is_clean:
        raise typer.Exit(1)
