"""Points of history and keys of entries, as people type them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tomldiary.errors import InvalidValue

if TYPE_CHECKING:
    from tomldiary.user.user import UserDiary

__all__ = ["full_key", "point"]

_DOCUMENTS = ("conversations/", "facts/", "blocks/", "episodes/", "items/")


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
    if written.startswith(_DOCUMENTS) or written.count("/") == 0:
        return written
    if written.startswith("preferences/") and written.count("/") > 1:
        return written
    return f"preferences/{written}"
