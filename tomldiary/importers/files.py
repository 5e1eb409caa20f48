"""Files of other programs: JSON, JSON Lines, SQLite and Markdown, read as plain data."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tomldiary.errors import InvalidValue
from tomldiary.ingest.source import as_list, as_object
from tomldiary.ingest.source import MOST_BYTES, load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.ingest.source import JsonObject

__all__ = ["is_sqlite", "json_records", "listed", "parsed", "rows"]

_SQLITE = b"SQLite format 3\0"


def json_records(place: str) -> list[object]:
    """Return the values of a JSON array or of JSON Lines, or a single JSON object as a list.

    Raises:
        InvalidValue: The file is missing, empty, too large or not JSON. The message contains path:line:column.
    """
    return load(Path(place), known="a file in JSON or JSON Lines", max_bytes=MOST_BYTES)


def listed(records: list[object], *names: str) -> list[JsonObject]:
    """Return the records as objects, or those in the list under one of `names` in a single object."""
    if len(records) == 1:
        whole = as_object(records[0])
        for name in names:
            if name in whole:
                return [as_object(each) for each in as_list(whole[name])]
    return [as_object(each) for each in records]


def is_sqlite(place: str) -> bool:
    """Return whether a file is a SQLite database."""
    path = Path(place)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def rows(place: str, query: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a SQLite database, which is opened read-only.

    Raises:
        InvalidValue: The file is not a SQLite database, or the query fails.
    """
    if not is_sqlite(place):
        raise InvalidValue("expected a SQLite database. Check the path", where=place)
    address = f"{Path(place).resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            yield from database.execute(query)
    except sqlite3.Error as error:
        raise InvalidValue(
            f"this database does not have the expected tables ({error}). Check --from", where=place
        ) from error


def parsed(value: Any, place: str) -> object:
    """Return a JSON value of a database, parsed if it is text.

    Raises:
        InvalidValue: The text is not JSON.
    """
    if not isinstance(value, str | bytes):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(
            "a record of this database is not JSON. Check --from", where=place
        ) from error
