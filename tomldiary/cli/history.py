"""`history`: what happened to an entry, or to all of them, newest first."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tomldiary.cli.changes import print_changes
from tomldiary.cli.memory import known_user
from tomldiary.cli.output import print_json, print_text
from tomldiary.cli.points import full_key

__all__ = ["history"]


def history(
    key: Annotated[
        str | None, typer.Argument(help="category/id or conversations/session; without it, all.")
    ] = None,
    *,
    user: Annotated[str, typer.Option(help="Whose memory.")],
    path: Annotated[str, typer.Option(help="The folder of the memory.")] = "./memories",
    limit: Annotated[int, typer.Option(help="Most changes shown.", min=1)] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what happened to what is remembered, newest first; times are UTC."""
    alice = known_user(path, user).user(user)
    found = alice.history(None if key is None else full_key(key), limit=limit)
    if as_json:
        print_json([asdict(change) for change in found])
        return
    print_changes(found)
    if not found:
        print_text("Nothing is known to have happened.")
