"""`rollback`: undo transactions by writing their inverse as a new one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tomldiary.cli.memory import known_user, point
from tomldiary.cli.options import DEFAULT_PATH, AsJson, DryRun, MemoryPath, UserName, Yes
from tomldiary.cli.output import print_json, print_not_done, print_text, ranges
from tomldiary.errors import EntryConflict, InvalidValue
from tomldiary.text.visible import one_line

__all__ = ["rollback"]


def rollback(
    *,
    user: UserName = None,
    path: MemoryPath = DEFAULT_PATH,
    steps: Annotated[
        int | None,
        typer.Option(help="Undo this many transactions; 1 by default.", min=1),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="N|TIME", help="Undo all after this transaction or time.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="Only transactions of this session.")] = None,
    dry_run: DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also overwrite entries that others changed since.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Undo transactions, newest first; a dry run unless --yes is given. The undo can be undone."""
    if steps is not None and to is not None:
        raise InvalidValue("use --steps or --to, not both")
    is_done = yes and not dry_run
    alice = known_user(path, user)
    try:
        result = alice.rollback(
            steps or 1,
            session_id=session,
            to=None if to is None else point(to, alice),
            dry_run=not is_done,
            force=force,
            actor="hand",
            reason="tomldiary rollback",
        )
    except EntryConflict as error:
        keys = ", ".join(map(one_line, error.keys))
        raise EntryConflict(
            f"{keys} changed since. Nothing was undone; --force overwrites.", keys=error.keys
        ) from None
    if as_json:
        print_json({**asdict(result), "is_done": is_done})
        return
    many = f" ({len(result.undone)} transactions)" if len(result.undone) > 1 else ""
    print_text(f"{'undone' if is_done else 'would undo'}: {ranges(result.undone)}{many}")
    for key in result.keys:
        print_text(f"  {one_line(key)}{'  (changed since)' if key in result.conflicts else ''}")
    if not is_done:
        print_not_done("--yes --force" if result.conflicts and not force else "--yes")
