"""`add`: store a preference or a block by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from tomldiary.cli.completion import complete_category, complete_user
from tomldiary.cli.memory import user_to_change
from tomldiary.cli.options import DEFAULT_PATH, AsJson, MemoryPath, PreferenceTable
from tomldiary.cli.output import print_json, print_text
from tomldiary.cli.tables import load_table
from tomldiary.entries.kinds import BLOCKS
from tomldiary.text.visible import one_line

__all__ = ["add"]


def add(
    where: Annotated[
        str,
        typer.Argument(
            metavar="CATEGORY[/ID] | blocks/NAME",
            help="Where it is stored.",
            autocompletion=complete_category,
        ),
    ],
    text: Annotated[str, typer.Argument(help="What to remember.")],
    *,
    user: Annotated[
        str | None,
        typer.Option(
            help="Whose memory, also of a new user; without it, that of the only user.",
            envvar="TOMLDIARY_USER",
            autocompletion=complete_user,
        ),
    ] = None,
    path: MemoryPath = DEFAULT_PATH,
    context: Annotated[
        list[str] | None, typer.Option(help="A label of the preference; may be repeated.")
    ] = None,
    table: PreferenceTable = None,
    as_json: AsJson = False,
) -> None:
    """Store a preference, or the text of a block. An entry with the id is changed."""
    alice = user_to_change(path, user, load_table(table) if table else None)
    first, _, name = where.partition("/")
    if first == BLOCKS.name and name:
        alice.blocks.set(name, text, actor="hand", reason="tomldiary add")
        key = where
    else:
        found, _ = alice.upsert_preference(
            first,
            text,
            id=name or None,
            contexts=context or (),
            actor="hand",
            reason="tomldiary add",
        )
        key = f"{first}/{found}"
    if as_json:
        print_json({"user": alice.user_id, "key": key, "seq": alice.last_transaction()})
        return
    print_text(f"stored: {one_line(key)} of {one_line(alice.user_id)}")
