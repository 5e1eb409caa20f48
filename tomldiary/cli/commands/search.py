"""`search`: the entries and store items that answer a question best."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tomldiary.cli.memory import known_user
from tomldiary.cli.options import AsJson, MemoryPath
from tomldiary.cli.output import print_json, print_text
from tomldiary.text.visible import one_line

__all__ = ["search"]


def search(
    query: Annotated[str, typer.Argument(help="A question or words.")],
    *,
    user: Annotated[str, typer.Option(help="Whose memory.")],
    path: MemoryPath = "./memories",
    limit: Annotated[int, typer.Option(help="Most entries shown.", min=1)] = 5,
    as_json: AsJson = False,
) -> None:
    """Search entries and store items, best match first."""
    alice = known_user(path, user).user(user)
    hits = alice.recall(query, limit)
    if as_json:
        print_json([{**asdict(hit), "key": hit.full_key} for hit in hits])
        return
    for hit in hits:
        print_text(f"{hit.score:6.2f}  {one_line(hit.full_key)}  {one_line(hit.text)}")
        words = f"words: {', '.join(map(one_line, hit.reasons))}" if hit.reasons else "word forms"
        print_text(
            f"        {hit.kind}, {words}, updated {one_line(hit.updated[:10] or 'unknown')}"
        )
    if not hits:
        print_text("No entry has these words.")
