"""`forget`: take out for good what a session, a turn or a time said, or everything."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from tomldiary.cli.memory import known_user
from tomldiary.cli.options import AsJson, MemoryPath
from tomldiary.cli.output import one_line, print_json, print_text
from tomldiary.errors import InvalidValue
from tomldiary.forgetting import Selection

__all__ = ["forget"]


def forget(
    *,
    user: Annotated[str, typer.Option(help="Whose memory.")],
    path: MemoryPath = "./memories",
    session: Annotated[str | None, typer.Option(help="What only this session said.")] = None,
    before: Annotated[
        str | None, typer.Option(metavar="TIME", help="What was last updated before this time.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="SESSION#TURN", help="What was taken from this turn.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="The whole user, history and all.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove for good; nobody can bring it back. Asks first, unless --yes says that it is meant."""
    moment = None if before is None else _time(before)
    Selection.one_of(session, moment, source, everything)  # before anybody is asked
    alice = known_user(path, user).user(user)
    if not yes:
        _ask(user, session=session, before=before, source=source)
    receipt = alice.forget(session_id=session, before=moment, source=source, everything=everything)
    if as_json:
        print_json(asdict(receipt))
        return
    print_text(
        f"forgotten: {receipt.entries} entries, {receipt.conversations} conversations;"
        f" {receipt.records} transactions in history emptied"
    )


def _ask(user: str, **chosen: str | None) -> None:
    told = next((f"{name} {value}" for name, value in chosen.items() if value), "everything")
    question = f"Forget {one_line(told)} of {one_line(user)} for good?"
    if not sys.stdin.isatty():
        raise InvalidValue(f"{question} Nothing was forgotten; to do it, add --yes")
    if not typer.confirm(question, err=True):
        raise InvalidValue("nothing was forgotten")


def _time(written: str) -> datetime:
    try:
        return datetime.fromisoformat(written)
    except ValueError:
        raise InvalidValue("expected a time such as 2026-11-20T12:00", where=written) from None
