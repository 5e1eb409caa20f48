"""Typed access to parsed JSON of an unknown structure."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, cast

from tomldiary.toml.values import moment

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["JsonObject", "as_list", "as_object", "as_text", "first_moment", "is_list", "json_time"]

JsonObject: TypeAlias = "dict[str, object]"

_MILLISECONDS_FROM = 1e11
"""Larger numbers are milliseconds, because as seconds they would be after the year 5000."""


def as_object(value: object) -> JsonObject:
    """Return the value if it is a JSON object, otherwise an empty object."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """Return the value if it is a JSON array, otherwise an empty array."""
    return value if is_list(value) else []


def is_list(value: object) -> TypeGuard[list[object]]:
    """Return whether the value is a JSON array."""
    return isinstance(value, list)


def as_text(value: object) -> str:
    """Return the value if it is a string, otherwise an empty string."""
    return value if isinstance(value, str) else ""


def json_time(value: object) -> datetime | None:
    """Return a datetime, ISO 8601 text or Unix time (seconds or milliseconds) as a datetime in UTC; None if invalid.

    A time without a time zone is read as UTC.
    """
    if isinstance(value, str | datetime):
        return moment(value.strip() if isinstance(value, str) else value)
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            seconds = value / 1000 if value > _MILLISECONDS_FROM else value
            return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
    except (ValueError, OverflowError, OSError):
        return None
    return None


def first_moment(source: JsonObject, keys: Iterable[str]) -> datetime | None:
    """Return the first time among the values of some keys; None if there is none."""
    for key in keys:
        if (found := json_time(source.get(key))) is not None:
            return found
    return None
