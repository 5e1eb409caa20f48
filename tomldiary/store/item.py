"""One item as a TOML table: the fields of its value, and managed fields that begin with an underscore.

    [items."2026 plan"]
    title = "move"
    done = false
    _created = "2026-11-20T03:37:54.320748+00:00"
    _updated = "2026-11-20T03:37:54.320748+00:00"
    _expires = "…"  _ttl = 60.0        # only with a time to live, in minutes
    _index = false                     # only if the caller chose the searched fields

A field of a value that begins with an underscore or a backslash is escaped with a leading backslash. `_null`
names the null fields.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.fields import session_turn
from tomldiary.errors import wrong_type
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.text.json_paths import searched_names, searched_text
from tomldiary.toml.values import (
    NULL_FIELD,
    check_unicode,
    checked_number,
    decode_nulls,
    encode_nulls,
    moment,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tomldiary.store.operations import Put

_EPOCH = datetime.fromtimestamp(0, UTC)
_NAIVE_EPOCH = _EPOCH.replace(tzinfo=None)
_MINUTE = 60_000_000  # microseconds
_MICROSECOND = timedelta(microseconds=1)
_LATEST = datetime(8000, 1, 1, tzinfo=UTC)
"""Later times, which a hand edit may contain, are invalid, so that adding to a time cannot overflow."""
_LONGEST_TTL = 1e9
"""The maximum time to live in minutes, about two thousand years."""
_ESCAPED = frozenset({"_", "\\"})


def written(micros: int) -> str:
    """Return the time of microseconds since 1970 in the format of files."""
    # A time without a zone is formatted faster.
    return f"{(_NAIVE_EPOCH + micros * _MICROSECOND).isoformat('T', 'microseconds')}+00:00"


def _micros(written: Any) -> int | None:
    """Return a time from a file in microseconds since 1970; None if it is invalid."""
    found = moment(written)
    return None if found is None or found > _LATEST else _since_1970(found)


def _since_1970(when: datetime) -> int:
    return (when - _EPOCH) // _MICROSECOND


def _updated(table: Mapping[str, Any]) -> int:
    return _micros(table.get("_updated", table.get("_created"))) or 0


class IncreasingClock:
    """A strictly increasing clock in microseconds since 1970."""

    def __init__(self) -> None:
        self._guard = fork_safe(threading.Lock())
        self._last = 0

    def now(self) -> int:
        """Return the current time, later than all returned before."""
        with self._guard:
            self._last = max(time.time_ns() // 1000, self._last + 1)
            return self._last


class Entry:
    """A stored item. Immutable; `value` is shared, so callers get copies of it."""

    __slots__ = ("_moments", "expires", "key", "order", "table", "updated", "value")

    def __init__(self, key: str, table: Mapping[str, Any]) -> None:
        self.key = key
        self.table = table
        self.updated = _updated(table)
        """Microseconds since 1970; 0 if a hand edit removed the field."""
        self.order = (-self.updated, key)
        """The sort key: newest first, then by key."""
        self.expires = _micros(table["_expires"]) if "_expires" in table else None
        """The stored expiry; later reads may have extended it."""
        whole = decode_nulls(table) if NULL_FIELD in table else table
        self.value = {key.removeprefix("\\"): item for key, item in whole.items() if key[:1] != "_"}
        """The value, shared and not copied."""
        self._moments: tuple[datetime, datetime] | None = None

    @property
    def moments(self) -> tuple[datetime, datetime]:
        """The times of the first and the last put of the key."""
        if self._moments is None:
            created = _micros(self.table.get("_created"))
            first = self.updated if created is None else created
            self._moments = (_EPOCH + first * _MICROSECOND, _EPOCH + self.updated * _MICROSECOND)
        return self._moments

    @property
    def ttl(self) -> float | None:
        """The time to live in minutes after the last put or read; None if the item does not expire."""
        found = self.table.get("_ttl")
        # A hand edit may contain any number.
        return (
            float(found) if isinstance(found, int | float) and 0 < found <= _LONGEST_TTL else None
        )

    @property
    def index(self) -> bool | list[str] | None:
        """The fields to index: False for none, a list, or None for the store's default."""
        found = self.table.get("_index")
        if isinstance(found, list):
            return [str(each) for each in cast("list[Any]", found)]
        return False if found is False else None

    @property
    def searched_text(self) -> str:
        """The text to search: all texts of the value, or those of the fields in `index`."""
        return searched_text(self.value, self.index)

    @property
    def searched_names(self) -> str:
        """The searched names of its fields, which depend on `index`."""
        return searched_names(self.value, self.index)

    @property
    def day(self) -> date | None:
        """The day of the last put, in UTC; None if a hand edit removed it."""
        return (_EPOCH + self.updated * _MICROSECOND).date() if self.updated else None

    @property
    def turn(self) -> tuple[str, str] | None:
        """The session of the first put and its time, because items of a session are ordered like turns."""
        return session_turn(f"{self.table.get('_created', '')} {self.key}", self.table)


def table_of(
    value: Mapping[str, Any], put: Put, old: Mapping[str, Any] | None, *, now: int, session: str
) -> dict[str, Any]:
    """Return the TOML table of an item to put.

    Args:
        value: The result of `storable_copy`.
        put: The times of the item, and its fields to index.
        old: The previous table; None for a new item.
        now: The time in microseconds since 1970; the update time of an item never decreases.
        session: The session of the put.
    """
    fields = {(f"\\{key}" if key[:1] in _ESCAPED else key): each for key, each in value.items()}
    table = encode_nulls(fields)
    began = now
    if put.times is not None:
        began, now = map(_since_1970, put.times)
    updated = now if old is None else max(now, _updated(old) + 1)
    created = old.get("_created") if old is not None else None
    last = written(updated)
    if created is None:
        created = last if began == updated else written(began)
    table["_created"] = created
    table["_updated"] = last
    if old is not None and old.get("_created_by"):
        table["_created_by"] = old["_created_by"]
    elif old is None and session:
        table["_created_by"] = session
    if session or (old is not None and "_created_by" in old):
        table["_updated_by"] = session
    if put.ttl is not None:
        table["_expires"] = written(updated + round(put.ttl * _MINUTE))
        table["_ttl"] = put.ttl
    if put.index is False:
        table["_index"] = False
    elif isinstance(put.index, list):
        table["_index"] = put.index
    return table


def checked_minutes(given: Any, where: str) -> float | None:
    """Return a time to live or an interval in minutes; None stays None.

    Raises:
        InvalidValue: It is no number, not above 0, or too long.
    """
    if given is None:
        return None
    expected = f"minutes above 0 and up to {_LONGEST_TTL:,.0f}, or None"
    return float(checked_number(given, where, expected, lambda each: 0 < each <= _LONGEST_TTL))


def checked_key(key: Any, *, is_new: bool = True) -> str:
    """Return a key as plain text.

    Args:
        key: The key given by the caller.
        is_new: Whether the key is for a new item.

    Raises:
        InvalidValue: The key is not text, or is text that a file cannot store.
    """
    if not isinstance(key, str):
        raise wrong_type(key, "text as a key", "key")
    if is_new and not key.isascii():
        check_unicode(key, "key")
    return str.__str__(key)
