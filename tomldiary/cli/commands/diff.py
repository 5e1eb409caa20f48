"""`diff`: what differs between two points of history."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from tomldiary.cli.commands.memory import known_user
from tomldiary.cli.options import MemoryPath
from tomldiary.cli.output import print_json
from tomldiary.cli.points import point
from tomldiary.text.visible import printable

__all__ = ["diff"]


def diff(
    before: Annotated[
        str | None,
        typer.Argument(
            metavar="A", help="Transaction or ISO time; without it, before the last one."
        ),
    ] = None,
    after: Annotated[
        str | None, typer.Argument(metavar="B", help="The same; without it, now.")
    ] = None,
    *,
    user: Annotated[str, typer.Option(help="Whose memory.")],
    path: MemoryPath = "./memories",
    every: Annotated[
        bool, typer.Option("--all", help="Also counters and times, so that it is a patch.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the entries that differ, as JSON.")
    ] = False,
) -> None:
    """Show what changed between two transactions or times, as a unified diff of the files."""
    alice = known_user(path, user).user(user)
    first = max(0, alice.last_transaction() - 1) if before is None else point(before, alice)
    last = None if after is None else point(after, alice)
    if as_json:
        print_json([asdict(difference) for difference in alice.diff(first, last)])
        return
    shown = alice.diff_text(first, last, bookkeeping=every)
    sys.stdout.write(
        f"{printable(shown) or 'Nothing differs.'}\n"
    )  # lines of a diff are not wrapped
