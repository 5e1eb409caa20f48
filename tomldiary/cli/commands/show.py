"""`show`: the users, or the memory of one of them, now or at any point of history."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tomldiary.cli.completion import complete_category, complete_user
from tomldiary.cli.entries import print_entries, stored_entries
from tomldiary.cli.memory import known_user, open_memory, point, shown, stored_preferences
from tomldiary.cli.options import DEFAULT_PATH, AsJson, MemoryPath
from tomldiary.cli.output import (
    heading,
    is_terminal,
    print_json,
    print_text,
    print_toml,
    width,
)
from tomldiary.compat.default_table import DefaultPrefTable
from tomldiary.compat.pretty_print import pretty_print_conversations, pretty_print_preferences
from tomldiary.entries.conversations import Conversations
from tomldiary.entries.kinds import PREFERENCES, entry_kind
from tomldiary.entries.kinds.parts import join, parts_among
from tomldiary.entries.schema import categories
from tomldiary.errors import InvalidValue, UnknownCategory
from tomldiary.text.visible import one_line
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tomldiary.diary import Diary
    from tomldiary.user.user import UserDiary

__all__ = ["show"]


def show(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Whose memory, as --user; without it, all users.", autocompletion=complete_user
        ),
    ] = None,
    *,
    user: Annotated[
        str | None, typer.Option(help="Whose memory.", autocompletion=complete_user)
    ] = None,
    path: MemoryPath = DEFAULT_PATH,
    category: Annotated[
        str | None,
        typer.Option(help="Preferences of this category only.", autocompletion=complete_category),
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="N|TIME", help="As it was after this transaction or time.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The TOML text as it is stored.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the users, or show the memory of one, now or at a point of history."""
    if name is not None and user is not None:
        raise InvalidValue("give the user once, as NAME or with --user", where=name)
    user = name if user is None else user
    if user is None:
        if at is not None:
            raise InvalidValue("--at needs a user", where="--at")
        _show_users(open_memory(path), path, as_json=as_json)
        return
    alice = known_user(path, user)
    if at is not None:
        alice = alice.as_of(point(at, alice))
    names = dict.fromkeys(("preferences", "conversations", *alice.documents()))
    stored = {kind: Document.parse(alice.document(kind)) for kind in names}
    joined = _joined(stored)
    shown = stored if raw else joined
    if category is not None:
        _check_category(joined["preferences"], category)
        shown = {
            kind: _narrowed(each, category)
            for kind, each in shown.items()
            if entry_kind(kind) is PREFERENCES
        }
    preferences = shown["preferences"]
    if as_json:
        print_json({"user": user, **{kind: _data(kind, shown[kind], raw=raw) for kind in shown}})
    elif raw:
        for kind, document in shown.items():
            heading(f"# {one_line(user)}: {kind}.toml")
            print_toml(document.text)
    elif category is not None and not stored_preferences(preferences):
        print_text(f"No preferences in {one_line(category)}.")
    elif is_terminal():
        _show_entries(alice, category)
    else:
        _show_documents(shown)


def _joined(documents: Mapping[str, Document]) -> dict[str, Document]:
    """Return documents with all parts of a kind as one."""
    found: dict[str, Document] = {}
    for name, document in documents.items():
        kind = entry_kind(name)
        if not kind.is_split:
            found[name] = document
        elif kind.name not in found:
            parts = parts_among(kind.name, documents)
            found[kind.name] = join(kind, [documents[each] for each in parts if each in documents])
    return found


def _show_entries(alice: UserDiary, category: str | None) -> None:
    """Print the entries of each kind, or of one category, as a table."""
    for number, (kind, entries) in enumerate(
        groupby(stored_entries(alice), lambda each: each.kind)
    ):
        if category is None:
            heading(f"{chr(10) if number else ''}{kind}")
            print_entries(entries)
        elif kind == PREFERENCES.name:
            print_entries(each for each in entries if each.key.startswith(f"{category}/"))


def _show_documents(shown: Mapping[str, Document]) -> None:
    """Print documents for people, empty ones only where there is nothing else."""
    preferences = shown["preferences"]
    others = {kind: shown[kind] for kind in shown if kind not in ("preferences", "conversations")}
    if stored_preferences(preferences) or not others:
        print_text(pretty_print_preferences(preferences.text, max_width=width()))
    conversations = shown.get("conversations")
    if conversations is not None and (talks := _data("conversations", conversations, raw=False)):
        print_text("\nconversations:")
        print_text(pretty_print_conversations(talks, max_width=width()))
    for kind, document in others.items():
        edit = Edit(document)
        edit.delete(("_meta",))
        heading(f"\n{one_line(kind)}:")
        print_toml(edit.done().text)


def _show_users(diary: Diary, path: str, *, as_json: bool) -> None:
    users = diary.users()
    if as_json:
        print_json(users)
        return
    for user in users:
        print_text(one_line(user))
    if not users:
        print_text(f"There are no users in {shown(path)} yet.")


def _data(kind: str, document: Document, *, raw: bool) -> Any:
    if raw:
        return document.text
    if kind == "preferences":
        return stored_preferences(document)
    if kind != "conversations":
        return {key: value for key, value in document.data.items() if key != "_meta"}
    return {key: dict(entry) for key, entry in Conversations(document).entries()}


def _check_category(document: Document, category: str) -> None:
    """Refuse an unknown category.

    Raises:
        UnknownCategory: Neither the document nor the table it was written with has such a category.
    """
    known = stored_preferences(document)
    schema = (document.table(("_meta",)) or {}).get("schema_name", DefaultPrefTable.__name__)
    tables = [*categories(DefaultPrefTable)] if schema == DefaultPrefTable.__name__ else []
    if category not in known and category not in tables:
        raise UnknownCategory(category, list(dict.fromkeys([*known, *tables])))


def _narrowed(document: Document, category: str) -> Document:
    """Remove the other categories."""
    edit = Edit(document)
    for other in stored_preferences(document):
        if other != category:
            for place in (("preferences", other), (other,)):
                if edit.table(place) is not None:
                    edit.delete(place)
    return edit.done()
