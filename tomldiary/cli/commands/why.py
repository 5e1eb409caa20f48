"""`why`: where an entry comes from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tomldiary.cli.changes import print_changes
from tomldiary.cli.commands.memory import known_user
from tomldiary.cli.options import AsJson, MemoryPath
from tomldiary.cli.output import one_line, print_json, print_text
from tomldiary.cli.points import full_key

__all__ = ["why"]


def why(
    key: Annotated[str, typer.Argument(help="category/id or conversations/session.")],
    *,
    user: Annotated[str, typer.Option(help="Whose memory.")],
    path: MemoryPath = "./memories",
    as_json: AsJson = False,
) -> None:
    """Tell where an entry comes from: the turn, the session, and every change since, oldest first."""
    origin = known_user(path, user).user(user).why(full_key(key))
    if as_json:
        print_json(asdict(origin))
        return
    print_text(f"{one_line(origin.key)}  {one_line(origin.text)}")
    print_text(f"session        {one_line(origin.session or 'unknown')}")
    print_text(f"turn           {one_line(origin.turn or 'unknown')}")
    print_text(f"confirmations  {origin.confirmations}")
    print_text(
        f"verified       {'yes' if origin.is_verified else 'no (stored by the rules extractor, not checked)'}"
    )
    print_changes(origin.changes)
