"""`history`: what happened to an entry, or to all of them, newest first."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tomldiary.cli.changes import print_changes
from tomldiary.cli.memory import known_user
from tomldiary.cli.options import AsJson, MemoryPath
from tomldiary.cli.output import print_json, print_text
from tomldiary.cli.points import full_key, point
from tomldiary.errors import InvalidValue

if TYPE_CHECKING:
    from tomldiary.user import UserDiary

__all__ = ["history"]


def history(
    key: Annotated[
        str | None, typer.Argument(help="category/id or conversations/session; without it, all.")
    ] = None,
    *,
    user: Annotated[str, typer.Option(help="Whose memory.")],
    path: MemoryPath = "./memories",
    limit: Annotated[int, typer.Option(help="Most changes shown.", min=1)] = 50,
    keep: Annotated[
        int | None,
        typer.Option(help="Drop all but this many transactions, with --yes.", min=1),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Drop what happened before this time, with --yes."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Drop it for good; without this nothing is dropped.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tell what happened to what is remembered, newest first; times are UTC. Or drop what is old."""
    alice = known_user(path, user).user(user)
    if keep is not None or before is not None:
        _drop(alice, keep, before, is_done=yes, as_json=as_json)
        return
    found = alice.history(None if key is None else full_key(key), limit=limit)
    if as_json:
        print_json([asdict(change) for change in found])
        return
    print_changes(found)
    if not found:
        print_text("Nothing is known to have happened.")


def _drop(
    alice: UserDiary, keep: int | None, before: str | None, *, is_done: bool, as_json: bool
) -> None:
    """Drop old transactions, or only say how far back history is kept."""
    moment = point(before, alice) if before is not None else None
    if isinstance(moment, int):
        raise InvalidValue("expected a time such as 2026-11-20", where=str(before))
    kept = alice.prune_history(before=moment, keep=keep) if is_done else alice.kept_history()
    if as_json:
        print_json(asdict(kept))
        return
    since = f"transactions {kept.first} ({kept.since}) to {kept.last} are kept"
    print_text(f"{since}." if is_done else f"Nothing was dropped: {since}. Add --yes to drop.")
