"""Stores of LangGraph: the database of `SqliteStore` or `PostgresStore`, or items as JSON: `item.dict()`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tomldiary.errors import InvalidValue, MissingExtra
from tomldiary.importers.files import is_sqlite, json_records, listed, parsed, rows
from tomldiary.importers.records import Found, Item
from tomldiary.ingest.source import as_list, as_object, as_text, json_time

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read"]

_QUERY = (
    "SELECT * FROM store ORDER BY prefix, key"  # older tables have no columns for a time to live
)


def read(place: str, user: str) -> Found:
    """Read the items of all namespaces with the user as a label, which include those of langmem."""
    found, now = Found(), datetime.now(UTC)
    for item, expires in _items(place):
        if not item.namespace or not item.key:
            found.leave_out("record that is not an item")
        elif user not in item.namespace:
            found.users.add("/".join(item.namespace))
        elif expires is not None and expires <= now:
            found.leave_out("expired item")
        else:
            found.records.append(item)
    return found


def _items(place: str) -> Iterator[tuple[Item, datetime | None]]:
    """Yield the items with their expiry times."""
    if "://" in place:
        stored = _postgres(place)
    elif is_sqlite(place):
        stored = rows(place, _QUERY)
    else:
        for item in listed(json_records(place), "items"):
            namespace = tuple(as_text(label) for label in as_list(item.get("namespace")))
            times = _times(item.get("created_at"), item.get("updated_at"))
            yield (
                Item(namespace, as_text(item.get("key")), as_object(item.get("value")), times),
                None,
            )
        return
    for prefix, key, value, created, updated, *lifetime in stored:
        expires, ttl = lifetime or (None, None)
        times, data = _times(created, updated), as_object(parsed(value, place))
        yield Item(tuple(prefix.split(".")), key, data, times, ttl), json_time(expires)


def _times(created: object, updated: object) -> tuple[datetime, datetime] | None:
    first, last = json_time(created), json_time(updated)
    return None if first is None or last is None else (first, max(first, last))


def _postgres(place: str) -> Iterator[tuple[Any, ...]]:
    try:
        import psycopg  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingExtra("a PostgreSQL store", "postgres") from error
    try:
        with psycopg.connect(place) as database:
            yield from database.execute(_QUERY)
    except psycopg.Error as error:
        raise InvalidValue(
            f"the table of the store cannot be read ({type(error).__name__}). Check the address and the permissions"
        ) from error
