"""`ingest` applies a chat log to a user's memory, each turn once; `consolidate` reads stored episodes."""

from __future__ import annotations

from typing import Annotated

import typer

from tomldiary.cli.memory import known_user, user_to_change
from tomldiary.cli.options import (
    DEFAULT_PATH,
    Agent,
    AsJson,
    MemoryPath,
    PreferenceTable,
    RequiredUser,
    UserName,
)
from tomldiary.cli.output import print_json, print_text, progress_bar
from tomldiary.cli.tables import load_table
from tomldiary.ingest import KNOWN_FORMATS
from tomldiary.ingest import ingest as run_ingest
from tomldiary.text.visible import one_line

__all__ = ["consolidate", "ingest"]

_FORMATS = ", ".join(("auto", *KNOWN_FORMATS))


def ingest(
    file: Annotated[str, typer.Argument(help="A chat log in JSON or JSON Lines.")],
    *,
    user: RequiredUser,
    path: MemoryPath = DEFAULT_PATH,
    log_format: Annotated[str, typer.Option("--format", help=f"One of: {_FORMATS}.")] = "auto",
    agent: Agent = "rules",
    speaker: Annotated[
        str | None, typer.Option(help="The speaker to remember, in a log of two people.")
    ] = None,
    table: PreferenceTable = None,
    as_json: AsJson = False,
) -> None:
    """Apply a chat log to a memory. After an interruption, run it again: applied turns are skipped."""
    alice = user_to_change(path, user, load_table(table) if table else None, agent=agent)
    with progress_bar("turns") as progress:
        report = run_ingest(
            alice.diary, file, user, format=log_format, speaker=speaker, progress=progress
        )
    if as_json:
        print_json(report)
        return
    print_text(f"turns          {report.turns}")
    print_text(f"applied        {report.applied}")
    print_text(f"already there  {report.skipped}")
    print_text(f"seconds        {report.seconds:.2f}")
    print_text(f"entries        {report.entries}")
    print_text(f"size           {report.bytes / 1024:.1f} KB")
    for note in report.notes:
        print_text(f"note           {note}")


def consolidate(
    *,
    user: UserName = None,
    path: MemoryPath = DEFAULT_PATH,
    agent: Agent = "rules",
    limit: Annotated[
        int | None, typer.Option(help="The maximum number of episodes.", min=1)
    ] = None,
    table: PreferenceTable = None,
    as_json: AsJson = False,
) -> None:
    """Extract memory from the episodes that have not been read."""
    user = known_user(path, user).user_id
    alice = user_to_change(path, user, load_table(table) if table else None, agent=agent)
    done = alice.consolidate(limit=limit)
    if as_json:
        print_json(done)
    else:
        print_text(f"read     {done.read}")
        print_text(f"applied  {done.applied}")
        for note in done.skipped:
            print_text(f"skipped  {one_line(note)}")
        for name in done.failed:
            print_text(f"failed   {one_line(name)}")
    if done.failed:
        raise typer.Exit(1)
