"""`search`: the entries and store items that match a question best."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tomldiary.cli.memory import known_user
from tomldiary.cli.options import DEFAULT_PATH, AsJson, MemoryPath, UserName
from tomldiary.cli.output import Column, Row, print_json, print_rows, print_text
from tomldiary.text.visible import one_line

if TYPE_CHECKING:
    from tomldiary.user.recall import Hit

__all__ = ["search"]

_COLUMNS = (Column("score", "green", is_number=True), Column("key", "cyan"), Column("text"))


def search(
    query: Annotated[str, typer.Argument(help="A question or words.")],
    *,
    user: UserName = None,
    path: MemoryPath = DEFAULT_PATH,
    limit: Annotated[int, typer.Option(help="The maximum number of results.", min=1)] = 5,
    as_json: AsJson = False,
) -> None:
    """Search entries and store items, best match first."""
    hits = known_user(path, user).recall(query, limit)
    if as_json:
        print_json([{**asdict(hit), "key": hit.full_key} for hit in hits])
        return
    print_rows(_COLUMNS, [_row(hit) for hit in hits])
    if not hits:
        print_text("No entry matches.")


def _row(hit: Hit) -> Row:
    words = f"words: {', '.join(map(one_line, hit.reasons))}" if hit.reasons else "word forms"
    found = (
        f"{hit.kind}, {words}, updated {one_line((hit.updated or hit.created)[:10] or 'unknown')}"
    )
    return f"{hit.score:6.2f}", hit.full_key, f"{one_line(hit.text)}\n{found}"
