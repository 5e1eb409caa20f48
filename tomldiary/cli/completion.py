"""What the shell completes: users, categories and keys of the memory that the command line names."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tomldiary.text.visible import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tomldiary.user.user import UserDiary

__all__ = ["complete_category", "complete_document", "complete_key", "complete_user"]

_MOST = 500


def complete_user(ctx: Any, incomplete: str) -> list[str]:
    """Return the users that begin with what was typed."""
    return _offered(lambda: _users(ctx), incomplete)


def complete_category(ctx: Any, incomplete: str) -> list[str]:
    """Return the categories that begin with what was typed."""
    return _offered(lambda: _user(ctx).diary.allowed, incomplete)


def complete_document(ctx: Any, incomplete: str) -> list[str]:
    """Return the documents that begin with what was typed."""
    return _offered(lambda: _user(ctx).documents(), incomplete)


def complete_key(ctx: Any, incomplete: str) -> list[str]:
    """Return the keys of entries that begin with what was typed."""
    return _offered(lambda: _keys(_user(ctx)), incomplete)


def _offered(values: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    found: list[str] = []
    with suppress(Exception):  # a completion that fails is empty, and prints nothing
        for value in values():
            if value.startswith(incomplete) and one_line(value) == value:
                found.append(value)
                if len(found) == _MOST:
                    break
    return found


def _path(ctx: Any) -> str:
    named = (os.environ.get(name) for name in ("TOMLDIARY_URL", "TOMLDIARY_PATH"))
    return ctx.params.get("path") or next(filter(None, named), "./memories")


def _users(ctx: Any) -> list[str]:
    from tomldiary.cli.memory import open_memory  # noqa: PLC0415 - only completion needs it here

    return open_memory(_path(ctx)).users()


def _user(ctx: Any) -> UserDiary:
    from tomldiary.cli.memory import known_user  # noqa: PLC0415 - only completion needs it here

    name = ctx.params.get("user") or ctx.params.get("name") or os.environ.get("TOMLDIARY_USER")
    return known_user(_path(ctx), name)


def _keys(alice: UserDiary) -> Iterator[str]:
    from tomldiary.cli.entries import stored_entries  # noqa: PLC0415 - only completion needs it here

    return (entry.key for entry in stored_entries(alice))
