"""`review`: list, accept, edit and reject changes from untrusted sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tomldiary.cli.memory import known_user, overwritable
from tomldiary.cli.options import DEFAULT_PATH, AsJson, MemoryPath, UserName
from tomldiary.cli.output import Column, print_json, print_rows, print_text
from tomldiary.errors import InvalidValue
from tomldiary.runtime.views import counted
from tomldiary.text.visible import one_line

if TYPE_CHECKING:
    from tomldiary.entries.kinds.pending import PendingChange

__all__ = ["review"]

_DONE = {"accept": "accepted", "reject": "rejected", "edit": "edited"}
_ACTIONS = ("list", *_DONE)
_COLUMNS = (
    Column("id"),
    Column("from", "yellow"),
    Column("entry", "cyan"),
    Column("text"),
)


def review(
    action: Annotated[str, typer.Argument(help="list, accept, reject or edit.")] = "list",
    ids: Annotated[
        list[str] | None, typer.Argument(help="The ids of changes, as list shows them.")
    ] = None,
    *,
    user: UserName = None,
    text: Annotated[str | None, typer.Option(help="The new text, for edit.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Accept even if the entry was changed since.")
    ] = False,
    path: MemoryPath = DEFAULT_PATH,
    as_json: AsJson = False,
) -> None:
    """List, accept or reject changes from untrusted sources.

    No prompt contains a change before it is accepted.
    """
    if action not in _ACTIONS:
        raise InvalidValue(f"expected {', '.join(_ACTIONS)}, found {action!r}", where="action")
    if (action == "list") == bool(ids):
        raise InvalidValue(
            "list takes no ids; each other action requires ids that list shows", where="ids"
        )
    if (action == "edit") != (text is not None):
        raise InvalidValue("edit requires --text; no other action accepts it", where="--text")
    if action == "edit" and len(ids or ()) > 1:
        raise InvalidValue("edit changes one text, so it accepts one id", where="ids")
    reader = known_user(path, user)
    waiting = reader.review()
    categories = {each.path[1] for each in waiting if each.path[:1] == ("preferences",)}
    alice = known_user(path, reader.user_id, categories)
    found: list[PendingChange]
    if action == "accept":
        with overwritable("changed"):
            found = alice.review.accept(*(ids or ()), force=force)
    elif action == "reject":
        found = alice.review.reject(*(ids or ()))
    elif action == "edit":
        found = [alice.review.edit(each, {"text": text}) for each in ids or ()]
    else:
        found = waiting
    if as_json:
        print_json(found)
        return
    print_rows(
        _COLUMNS,
        [
            (
                each.id,
                one_line(each.origin),
                one_line(each.key),
                one_line("(removed)" if each.after is None else each.text),
            )
            for each in found
        ],
    )
    if action == "list":
        print_text(counted(len(found), "pending change"))
    else:
        print_text(f"{counted(len(found), 'change')} {_DONE[action]}")
