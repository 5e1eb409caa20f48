"""`show`: the users, or the memory of one of them, now or at any point of history."""

from __future__ import annotations

import os
from typing import Annotated

from typer import Argument, Exit, Option

from tomldiary.cli.options import (
    DEFAULT_PATH,
    AsJson,
    MemoryPath,
    check_absent,
    complete_category,
    complete_user,
)
from tomldiary.cli.output import print_json, print_text
from tomldiary.cli.places import open_storage, shown, unread_users
from tomldiary.errors import InvalidValue
from tomldiary.identifiers.namespaces import SHARED
from tomldiary.text.visible import one_line


def show(
    name: Annotated[
        str | None,
        Argument(
            help="The user, as with --user.",
            autocompletion=complete_user,
        ),
    ] = None,
    *,
    user: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="The user; by default $TOMLDIARY_USER, or else all users are listed.",
            autocompletion=complete_user,
        ),
    ] = None,
    path: MemoryPath = DEFAULT_PATH,
    category: Annotated[
        str | None,
        Option(help="Only preferences of this category.", autocompletion=complete_category),
    ] = None,
    at: Annotated[
        str | None,
        Option(metavar="N|TIME", help="The state after this transaction or at this time."),
    ] = None,
    raw: Annotated[bool, Option("--raw", help="Print the stored TOML text.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the users, or show the memory of one."""
    if name is not None and user is not None:
        raise InvalidValue("give the user once, as NAME or with --user", where=name)
    user = name if user is None else user
    if user is None:  # the environment must not count as a second name
        user = os.environ.get("TOMLDIARY_USER") or None
    if user is None:
        of_a_user = {"--category": category, "--at": at, "--raw": raw}
        check_absent(of_a_user, "requires a user; name one with --user")
        _show_users(path, as_json=as_json)
        return
    from tomldiary.cli.commands.entries import show_memory  # noqa: PLC0415 - a list of users needs no diary

    show_memory(path, user, category=category, at=at, raw=raw, as_json=as_json)


def _show_users(path: str, *, as_json: bool) -> None:
    backend = open_storage(path)
    users = [user for user in backend.users() if user != SHARED]
    unread = unread_users(backend, users)
    if as_json:
        print_json(users)
    else:
        for user in users:
            print_text(one_line(user))
        if not users and not unread:
            print_text(f"There are no users in {shown(path)} yet.")
    if unread:
        raise Exit(1)
