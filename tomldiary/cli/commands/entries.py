"""`show NAME`, `search` and `review`: the entries of a user, as tables on a terminal, as lines elsewhere, or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Argument, Option

from tomldiary.agents.options import one_of
from tomldiary.cli.memory import known_user, overwritable, point, stored_preferences
from tomldiary.cli.options import DEFAULT_PATH, EMBEDDERS, WORDS, AsJson, MemoryPath, UserName
from tomldiary.cli.output import (
    Column,
    Row,
    heading,
    print_json,
    print_rows,
    print_text,
    print_toml,
)
from tomldiary.compat.default_table import DefaultPrefTable
from tomldiary.entries.fields import last_used
from tomldiary.entries.kinds import KINDS, PREFERENCES, entries_in, entries_of, entry_kind
from tomldiary.entries.schema import categories
from tomldiary.errors import InvalidValue, UnknownCategory
from tomldiary.runtime.views import counted
from tomldiary.text.visible import one_line
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tomldiary.entries.kinds import StoredEntry
    from tomldiary.entries.kinds.pending import PendingChange
    from tomldiary.user.recall import Hit

_DAY = 10
_ENTRY_COLUMNS = (
    Column("key", "cyan"),
    Column("said", "dim", is_number=True),
    Column("updated", "dim"),
    Column("text"),
)


def _print_entries(entries: Iterable[StoredEntry], *, is_titled: bool) -> None:
    """Print a table for each kind of entries: keys, numbers of mentions, update times and texts."""
    for number, (kind, of_kind) in enumerate(groupby(entries, lambda each: each.kind)):
        if is_titled:
            heading(f"{chr(10) if number else ''}{one_line(kind)}")
        rows = [
            (each.key, _times(each.fields), last_used(each.fields)[:_DAY], _text(each))
            for each in of_kind
        ]
        print_rows(_ENTRY_COLUMNS, rows)


def _text(entry: StoredEntry) -> str:
    """Return the text of an entry, followed by a line with its labels."""
    kind, fields = entry_kind(entry.kind), entry.fields
    labels: Any = fields.get(kind.labels) if kind.labels else None
    if not isinstance(labels, list) or not labels:
        return kind.text(fields)
    return f"{kind.text(fields)}\n{kind.labels}: {', '.join(map(str, cast('list[Any]', labels)))}"


def _times(fields: Mapping[str, Any]) -> str:
    count = fields.get("_count", fields.get("_turns"))
    return f"{count}x" if isinstance(count, int) and count > 1 else ""


def show_memory(
    path: str, user: str, *, category: str | None, at: str | None, raw: bool, as_json: bool
) -> None:
    """Print the memory of a user, or one category of it, now or at a point in history."""
    alice = known_user(path, user)
    if at is not None:
        alice = alice.as_of(point(at, alice))
    engine = alice.diary.engine
    with engine.reading():
        for kind in KINDS:
            alice.document(kind)  # raises an error for what is no regular file, which is not listed
        names = dict.fromkeys(("preferences", "conversations", *alice.documents()))
        stored = {
            kind: engine.document(user, kind)
            if at is None
            else Document.parse(alice.document(kind))
            for kind in names
        }
    joined = _joined(stored)
    shown = stored if raw else joined
    if category is not None:
        _check_category(joined["preferences"], category)
        shown = {
            kind: _narrowed(each, category)
            for kind, each in shown.items()
            if entry_kind(kind) is PREFERENCES
        }
    if as_json:
        print_json({"user": user, **{kind: _data(kind, shown[kind], raw=raw) for kind in shown}})
    elif raw:
        for kind, document in shown.items():
            heading(f"# {one_line(user)}: {kind}.toml")
            print_toml(document.text)
    else:
        entries = list(entries_in(shown))
        _print_entries(entries, is_titled=category is None)
        if not entries:
            print_text(f"No preferences in {one_line(category)}." if category else "No entries.")


def _joined(documents: Mapping[str, Document]) -> dict[str, Document]:
    """Return the documents, with the parts of each split kind joined into one document."""
    kinds = {name: entry_kind(name) for name in documents}
    names = dict.fromkeys(kind.name if kind.is_split else name for name, kind in kinds.items())
    return {
        name: entries_of(name, documents, lambda part: documents.get(part, Document.parse("")))
        for name in names
    }


def _data(kind: str, document: Document, *, raw: bool) -> Any:
    if raw:
        return document.text
    if kind == "preferences":
        return stored_preferences(document)
    if kind != "conversations":
        return {key: value for key, value in document.data.items() if key != "_meta"}
    return {each.path[-1]: each.fields for each in entries_in({kind: document})}


def _check_category(document: Document, category: str) -> None:
    """Refuse an unknown category.

    Raises:
        UnknownCategory: Neither the document nor the built-in table, if the document uses it, has this category.
    """
    known = stored_preferences(document)
    schema = document.meta.get("schema_name", DefaultPrefTable.__name__)
    tables = [*categories(DefaultPrefTable)] if schema == DefaultPrefTable.__name__ else []
    if category not in known and category not in tables:
        raise UnknownCategory(category, list(dict.fromkeys([*known, *tables])))


def _narrowed(document: Document, category: str) -> Document:
    """Return the document without the other categories."""
    edit = Edit(document)
    for other in stored_preferences(document):
        if other != category:
            for place in (("preferences", other), (other,)):
                if edit.table(place) is not None:
                    edit.delete(place)
    return edit.done()


# search

_HIT_COLUMNS = (Column("score", "green", is_number=True), Column("key", "cyan"), Column("text"))


def search(
    query: Annotated[str, Argument(help="A question or words.")],
    *,
    user: UserName = None,
    path: MemoryPath = DEFAULT_PATH,
    limit: Annotated[int, Option(help="The maximum number of results.", min=1)] = 5,
    embedder: Annotated[
        str, Option(metavar="NAME", help='"words" (no embedder) or "local".')
    ] = WORDS,
    as_json: AsJson = False,
) -> None:
    """Search entries and store items, best match first."""
    one_of("--embedder", embedder, EMBEDDERS)
    alice = known_user(path, user, embedder=None if embedder == WORDS else embedder)
    hits = alice.recall(query, limit)
    if as_json:
        print_json([{**asdict(hit), "key": hit.full_key} for hit in hits])
        return
    otherwise = "word forms" if embedder == WORDS else "vectors or word forms"
    print_rows(_HIT_COLUMNS, (_hit_row(hit, otherwise) for hit in hits))
    if not hits:
        print_text("No entry matches.")


def _hit_row(hit: Hit, otherwise: str) -> Row:
    """Return the row of a hit; `otherwise` says how an entry without a word of the question was found."""
    words = f"words: {', '.join(map(one_line, hit.reasons))}" if hit.reasons else otherwise
    found = (
        f"{hit.kind}, {words}, updated {one_line((hit.updated or hit.created)[:10] or 'unknown')}"
    )
    return f"{hit.score:6.2f}", hit.full_key, f"{one_line(hit.text)}\n{found}"


# review

_DONE = {"accept": "accepted", "reject": "rejected", "edit": "edited"}
_ACTIONS = ("list", *_DONE)
_CHANGE_COLUMNS = (Column("id"), Column("from", "yellow"), Column("entry", "cyan"), Column("text"))


def review(
    action: Annotated[str, Argument(help="list, accept, reject or edit.")] = "list",
    ids: Annotated[
        list[str] | None, Argument(help="The ids of changes, as list shows them.")
    ] = None,
    *,
    user: UserName = None,
    text: Annotated[str | None, Option(help="The new text, for edit.")] = None,
    force: Annotated[
        bool,
        Option(
            "--force", help="Accept even if the entry was changed since, or has different changes."
        ),
    ] = False,
    path: MemoryPath = DEFAULT_PATH,
    as_json: AsJson = False,
) -> None:
    """List, accept or reject changes from untrusted sources.

    No prompt contains a change before it is accepted.
    """
    if action not in _ACTIONS:
        raise InvalidValue(f"expected {', '.join(_ACTIONS)}, found {action!r}", where="action")
    if action == "list" and ids:
        raise InvalidValue("list shows all changes, so it takes no ids", where="ids")
    if action != "list" and not ids:
        raise InvalidValue(
            f'{action} requires the id of a change; the command "review" lists the ids', where="ids"
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
        with overwritable():
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
    rows = [
        (each.id, each.origin, each.key, one_line("(removed)" if each.after is None else each.text))
        for each in found
    ]
    print_rows(_CHANGE_COLUMNS, rows)
    if action == "list":
        print_text(counted(len(found), "pending change"))
    else:
        print_text(f"{counted(len(found), 'change')} {_DONE[action]}")
