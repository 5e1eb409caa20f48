"""Opens a memory with the categories of its own files, and parses typed transactions, times and keys."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, create_model

from tomldiary.cli.output import print_note
from tomldiary.cli.places import open_storage, shown, writable
from tomldiary.cli.tables import load_table
from tomldiary.compat.default_table import DefaultPrefTable
from tomldiary.diary import Diary
from tomldiary.entries.kinds import FACTS, KINDS, PREFERENCES
from tomldiary.entries.models import PreferenceItem
from tomldiary.entries.preferences import by_category
from tomldiary.errors import EntryConflict, IdentifierError, InvalidValue
from tomldiary.past.as_of import point_of
from tomldiary.runtime.sources import DEAD_LETTERS, QUEUE
from tomldiary.storage.protocol import KeepsHidden, KeepsJournal
from tomldiary.text.visible import one_line
from tomldiary.toml.values import check_unicode
from tomldiary.writer.journals import waiting_jobs

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from datetime import datetime

    from tomldiary.storage.protocol import Backend
    from tomldiary.toml.document import Document
    from tomldiary.user.user import UserDiary

_CREATE = "add --user NAME to create one"
_NAMED = 10  # the maximum number of users in an error message
MOST_EXTRACTED = 100
"""The maximum number of preferences in a category, and of new conversations, for an extractor, as in a `Diary` without options."""
_UNLIMITED = {"max_prefs_per_category": 1_000_000, "max_conversations": 1_000_000}


def open_memory(path: str) -> Diary:
    """Open a database, or a folder that exists.

    Raises:
        InvalidValue: The folder does not exist; reading must not create it.
    """
    return without_limits(open_storage(path))


def known_user(
    path: str, user: str | None, categories: Iterable[str] = (), *, embedder: str | None = None
) -> UserDiary:
    """Return a stored user, with the categories of the user's file.

    Args:
        path: The folder, or the URL of a database.
        user: The user; None is the only user, whose name is then printed on a terminal.
        categories: Further categories.
        embedder: As for `Diary`.

    Raises:
        InvalidValue: The folder does not exist, or `user` is None and the memory does not have exactly one user.
        IdentifierError: The memory has no such user.
    """
    diary = without_limits(open_storage(path), embedder=embedder)
    if user is None:
        user = _only_user(diary, path)
    check_user(diary, path, user)
    document = diary.engine.readable(user, PREFERENCES.name)
    if not stored_preferences(document) and not categories:
        return diary.user(user)
    table = _table_of(document, categories)
    return without_limits(diary.engine.backend, table, embedder=embedder).user(user)


def without_limits(
    backend: Backend | str,
    table: type[BaseModel] = DefaultPrefTable,
    agent: str = "rules",
    embedder: Any = None,
    **limits: int,
) -> Diary:
    """Return a diary that refuses and drops nothing: a memory does not store the limits of the program that uses it.

    Args:
        backend: As for `Diary`.
        table: As for `Diary`.
        agent: As for `Diary`.
        embedder: As for `Diary`.
        limits: `max_prefs_per_category` or `max_conversations`, if there is a limit after all.
    """
    options: dict[str, Any] = {**_UNLIMITED, **limits}
    return Diary(backend, table, agent=agent, embedder=embedder, **options)


def is_stored(diary: Diary, user: str) -> bool:
    """Return whether a memory has documents of a user, or a history of documents that were deleted by hand."""
    return bool(diary.engine.backend.kinds(user) or diary.user(user).last_transaction())


def users_with_turns(backend: Backend) -> set[str]:
    """Return the ids of the users with turns that wait in a queue or failed."""
    found: set[str] = set()
    if isinstance(backend, KeepsHidden):
        found.update(backend.holders(QUEUE), backend.holders(DEAD_LETTERS))
    folder = backend.journal_folder if isinstance(backend, KeepsJournal) else None
    jobs = () if folder is None else waiting_jobs(folder)
    return found.union(job.turn.user_id for job in jobs)


def check_user(diary: Diary, path: str, user: str) -> None:
    """Raise IdentifierError if a memory has no such user; `path` is its place for the message."""
    if not is_stored(diary, user):
        raise IdentifierError(
            f'there is no user {user!r} in {shown(path)}; the command "users" lists all users'
        )


def user_to_change(
    path: str,
    user: str | None,
    table: str | None,
    *,
    agent: str = "rules",
    is_extracted: bool = False,
) -> UserDiary:
    """Return a user whose memory a command changes; a named user may be new.

    The categories are those of `table`, as `FILE.py:Class`. Without `table`, they are those of the built-in table if it fits the user's
    file, and otherwise those of the file.

    Args:
        path: The folder, or the URL of a database.
        user: The user; None is the only user.
        table: The preference table.
        agent: The extractor.
        is_extracted: Whether an extractor fills the memory. Without limits, a long log would make documents that slow
            down each turn, and of which the program that uses the memory drops all but its own limit.
    """
    check_unicode(user or "", "--user")
    given = None if table is None else load_table(table)
    diary = Diary(open_storage(path, _CREATE) if user is None else writable(path), agent="rules")
    if user is None:
        user = _only_user(diary, path, _CREATE)
    document = diary.engine.readable(user, PREFERENCES.name)
    stored = stored_preferences(document)
    schema = document.meta.get("schema_name", diary.schema_name)
    if given is None:
        is_built_in = schema == diary.schema_name and {*stored} <= {*diary.allowed}
        given = diary.pref_table_cls if is_built_in else _table_of(document)
    limits: dict[str, int] = {}
    if is_extracted:
        # No stored conversation is dropped, unless the log has more than the limit.
        limits["max_conversations"] = len(diary.user(user).conversations()) + MOST_EXTRACTED
        if all(len(entries) <= MOST_EXTRACTED for entries in stored.values()):
            limits["max_prefs_per_category"] = MOST_EXTRACTED
    return without_limits(diary.engine.backend, given, agent, **limits).user(user)


def _only_user(diary: Diary, path: str, remedy: str = "") -> str:
    users = diary.users()
    if len(users) == 1:
        print_note(f"{one_line(users[0])} in {one_line(shown(path))}")
        return users[0]
    if not users:
        problem = "there are no users in it yet"
        raise InvalidValue(f"{problem}; {remedy}" if remedy else problem, where=shown(path))
    named = ", ".join(users[:_NAMED]) + (", …" if len(users) > _NAMED else "")
    raise InvalidValue(
        f"there are {len(users)} users in it; name one with --user: {named}", where=shown(path)
    )


def stored_preferences(document: Document) -> dict[str, dict[str, Any]]:
    """Return all preferences by category and id, in the order of the file."""
    found = by_category(document.data)
    return {category: entries for category, entries in found.items() if isinstance(entries, dict)}


def _table_of(document: Document, categories: Iterable[str] = ()) -> type[BaseModel]:
    names = [*dict.fromkeys([*stored_preferences(document), *categories])] or ["preferences"]
    fields: dict[str, Any] = {
        name: (dict[str, PreferenceItem], {}) for name in names if not name.startswith("_")
    }
    schema = str(document.meta.get("schema_name") or "Preferences")
    with warnings.catch_warnings():
        # pydantic warns of a category with the name of one of its methods, which is harmless here.
        warnings.simplefilter("ignore")
        # Only the fields are read, so the slow building of a validator is deferred.
        return create_model(schema, __config__=ConfigDict(defer_build=True), **fields)


@contextmanager
def overwritable() -> Generator[None]:
    """Name the option --force in a conflict in the block."""
    try:
        yield
    except EntryConflict as error:
        message = str(error).replace("force=True", "--force")
        raise EntryConflict(message, keys=error.keys) from None


def point(written: str, user: UserDiary) -> int | datetime:
    """Return a typed transaction number or ISO 8601 time; a time without a zone is UTC.

    Raises:
        InvalidValue: The text is neither, or the user has no such transaction.
    """
    if written.isdecimal():
        newest = user.last_transaction()
        if len(written) > len(str(newest)) or int(written) > newest:
            year = f"; a year is {written}-01-01" if len(written) == 4 else ""  # noqa: PLR2004 - digits
            raise InvalidValue(
                f"there is no such transaction; the newest is {newest}{year}", where=written
            )
        return int(written)
    return point_of(written, written)


def fact_key(written: str, user: UserDiary) -> str:
    """Return the typed id of a stored fact as a key; other keys are unchanged.

    The command line registers no types of facts, so the user's methods do not recognise an id.
    """
    first = written.partition("/")[0]
    if first in KINDS or first in user.diary.allowed:
        return written
    types = user.diary.engine.readable(user.user_id, FACTS.name).table((FACTS.name,)) or {}
    return f"{FACTS.name}/{written}" if first in types else written


def key_with_kind(written: str, user: UserDiary) -> str:
    """Return a typed key with its kind, which also finds entries of a category that is now empty.

    Raises:
        InvalidValue: The key has no slash, so it may be the name of a user.
    """
    if "/" not in written:
        raise InvalidValue(
            f'expected a key such as likes/pref001, found {one_line(written)!r}. The command "show" lists the keys;'
            " a user is named with --user.",
            where="key",
        )
    written = fact_key(written, user)
    first, _, rest = written.partition("/")
    # A category may have the name of the kind.
    is_long = first in KINDS and (first != PREFERENCES.name or "/" in rest)
    return written if is_long else f"{PREFERENCES.name}/{written}"
