"""Points of history and keys of entries, as people type them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tomldiary.entries.kinds import KINDS, PREFERENCES
from tomldiary.errors import InvalidValue

if TYPE_CHECKING:
    from tomldiary.user.user import UserDiary

__all__ = ["full_key", "point"]


def point(written: str, user: UserDiary) -> int | datetime:
    """Return the transaction number, or the ISO 8601 time (without a zone: UTC), that was typed.

    Raises:
        InvalidValue: It is neither, or the user has no such transaction.
    """
    if written.isascii() and written.isdecimal():
        newest = user.last_transaction()
        if len(written) > len(str(newest)) or int(written) > newest:
            raise InvalidValue(
                f"there is no such transaction, the newest is {newest}", where=written
            )
        return int(written)
    try:
        found = datetime.fromisoformat(written)
    except ValueError:
        raise InvalidValue(
            "expected a transaction number, or a time such as 2026-11-20T12:00", where=written
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def full_key(written: str) -> str:
    """Return the key in its long form, which also finds entries of a category that is empty by now."""
    first = written.partition("/")[0]
    is_short = "/" in written and first not in KINDS
    if first == PREFERENCES.name and written.count("/") == 1:
        is_short = True  # a category may have this name
    return f"{PREFERENCES.name}/{written}" if is_short else written
