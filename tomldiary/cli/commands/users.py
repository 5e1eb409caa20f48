"""`users` and `stats`: the size of the memory of each user, and the guarantees of the storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Exit, Option

from tomldiary.cli.memory import check_user, open_memory, stored_preferences
from tomldiary.cli.options import DEFAULT_PATH, AsJson, MemoryPath, user_option
from tomldiary.cli.output import (
    Column,
    Row,
    print_error,
    print_json,
    print_rows,
    print_text,
    progress_bar,
)
from tomldiary.cli.places import shown, unread_users
from tomldiary.entries.kinds import BLOCKS, KINDS, PREFERENCES
from tomldiary.errors import DiaryError
from tomldiary.runtime.views import counted, to_second
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.database import DatabaseLost
from tomldiary.text.visible import one_line

if TYPE_CHECKING:
    from tomldiary.diary import Diary
    from tomldiary.storage.protocol import Backend

_COLUMNS = (
    Column("user", "cyan"),
    Column("entries", is_number=True),
    Column("characters", is_number=True),
    Column("changes", is_number=True),
    Column("last seen"),
)
_LABELS = {"kept_from": "history from"}  # the oldest transaction that was not dropped
_LOSS = {
    "full": "no acknowledged write",
    "process": "the writes of the last seconds, if the machine loses power",
    "none": "everything, if the process ends",
}


def users(
    *,
    path: MemoryPath = DEFAULT_PATH,
    limit: Annotated[int, Option(help="The maximum number of users.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """List the users with the size of their memory. The exit code is 1 if the memory of some cannot be read."""
    diary = open_memory(path)
    names = diary.users()
    found: list[dict[str, Any]] = []
    unread = unread_users(diary.engine.backend, names)
    broken = len(unread)

    def figures(name: str) -> dict[str, Any] | DiaryError:
        try:
            return _figures(diary, path, name)
        except DiaryError as error:
            if isinstance(error.__cause__, DatabaseLost):
                raise
            return error  # it is of one user, so the others are listed

    with progress_bar("users") as progress:
        for number, each in enumerate(diary.engine.of_each(names[:limit], figures), 1):
            if isinstance(each, DiaryError):
                print_error(one_line(each))
                broken += 1
            else:
                found.append(each)
            if progress is not None:
                progress(number, min(limit, len(names)))
    if as_json:
        print_json(found)
    else:
        print_rows(_COLUMNS, map(_row, found))
        if not names and not unread:
            print_text(f"There are no users in {shown(path)} yet.")
    if len(names) > limit:
        print_error(f"{counted(len(names) - limit, 'more user')}; --limit {len(names)} shows all.")
    if broken:
        raise Exit(1)


def _row(found: dict[str, Any]) -> Row:
    numbers = (str(found[name]) for name in ("entries", "characters", "transactions"))
    return (found["user"], *numbers, _minute(found["last_seen"]))


def stats(
    *,
    user: Annotated[str | None, user_option("Also print the numbers of this user.")] = None,
    path: MemoryPath = DEFAULT_PATH,
    as_json: AsJson = False,
) -> None:
    """Show the guarantees of the storage and the number of users."""
    diary = open_memory(path)
    guarantees: dict[str, Any] = diary.stats()
    names = diary.users()
    figures = None if user is None else _figures(diary, path, user)
    if as_json:
        print_json({**guarantees, "users": len(names), "user": figures})
        return
    rows = [
        ("storage", str(guarantees["backend"])),
        ("durability", f"{guarantees['durability']}; {_loss(diary.engine.backend)}"),
        (
            "a turn is",
            "stored all or nothing" if guarantees["is_atomic"] else "not atomic across documents",
        ),
        ("writers", "several processes" if guarantees["is_shared"] else "one process"),
        ("users", str(len(names))),
    ]
    if figures is not None:
        figures["last_seen"] = _minute(figures["last_seen"])
        rows += [
            (_LABELS.get(name, name.replace("_", " ")), _shown(value))
            for name, value in figures.items()
            if value not in ({}, 0, "")
        ]
    print_rows((Column("", "dim"), Column("")), [(f"{name:<13}", text) for name, text in rows])


def _loss(backend: Backend) -> str:
    """Return what may be lost of an acknowledged write."""
    risk = backend.risk if isinstance(backend, SharedBackend) else None
    return f"the server {risk}" if risk else f"a crash loses {_LOSS[backend.durability]}"


def _figures(diary: Diary, path: str, name: str) -> dict[str, Any]:
    """Return the counts of one user: entries of each kind, characters and transactions."""
    with diary.engine.reading():  # a database is asked for the versions once
        check_user(diary, path, name)
        alice = diary.user(name)
        document = diary.engine.readable(name, PREFERENCES.name)
        # No warning of another table, because its categories are counted below.
        diary.known_tables.add(str(document.meta.get("schema_name", "")))
        profile, kept = alice.profile(), alice.kept_history()
        stored = stored_preferences(document)
        documents = alice.documents()
        characters = sum(len(alice.document(each)) for each in documents)
        diary.engine.discard(name, documents)  # of many users, each is read once
    counts = {kind: profile[kind] for kind in KINDS if kind in profile}
    # A profile has only the categories of the diary's own table.
    tables = {category: _tables(entries) for category, entries in stored.items()}
    counts[PREFERENCES.name] = {category: count for category, count in tables.items() if count}
    return {
        "user": name,
        "entries": sum(_entries(kind, count) for kind, count in counts.items()),
        "characters": characters,
        "transactions": kept.last,
        "kept_from": kept.first,
        "last_seen": profile["last_seen"],
        **counts,
    }


def _tables(entries: dict[str, Any]) -> int:
    return sum(isinstance(entry, dict) for entry in entries.values())


def _minute(time: str) -> str:
    return one_line(to_second(time)[:16])


def _entries(kind: str, count: int | dict[str, int]) -> int:
    """Return the number of entries of a kind; `count` is its value in a profile, for blocks the length of each."""
    if isinstance(count, int):
        return count
    return len(count) if kind == BLOCKS.name else sum(count.values())


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        counts = cast("dict[str, int]", value)
        return ", ".join(f"{one_line(name)} {number}" for name, number in counts.items())
    return one_line(value)
