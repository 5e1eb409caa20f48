"""Documents as they were at a point of history."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING

from tomldiary.errors import DocumentError, InvalidValue
from tomldiary.history.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Collection

    from tomldiary.engine.engine import Engine

__all__ = ["USUAL_KINDS", "PastTexts", "Point", "point_of"]

Point = int | datetime | date | str
"""A point of history: a transaction number, a time, a day, or either of these as ISO 8601 text. Without a zone: UTC."""

USUAL_KINDS = ("preferences", "conversations")
"""The documents that count as there even while they are not."""


def point_of(at: object) -> int | datetime:
    """Return a point of history as a transaction number or a time with a zone; a day is its first moment.

    Raises:
        InvalidValue: It is none.
    """
    found: object = at
    if isinstance(at, str):
        try:
            found = datetime.fromisoformat(at)
        except ValueError:
            found = None
    elif isinstance(at, date) and not isinstance(at, datetime):
        found = datetime.combine(at, time())
    if isinstance(found, datetime):
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    if isinstance(found, int) and not isinstance(found, bool):
        return found
    raise InvalidValue(
        f"expected a transaction number, or a time such as 2026-11-20T12:00, found {at!r}.",
        where="at",
    )


class PastTexts:
    """The documents of one user as they were, read back from history.

    Args:
        engine: Reads the current documents and the history.
        user_id: Whose documents.
    """

    def __init__(self, engine: Engine, user_id: str) -> None:
        self.engine = engine
        self.user_id = user_id

    def kinds(self) -> list[str]:
        """Return all documents that exist or existed, as far as history is kept."""
        known = self.timeline().kinds()
        known.update(self.engine.backend.kinds(self.user_id))
        return [*USUAL_KINDS, *sorted(known.difference(USUAL_KINDS))]

    def timeline(self) -> Timeline:
        """Return the transactions of the user."""
        return Timeline(self.engine.backend, self.user_id)

    def newest(self) -> int:
        """Return the number of the newest transaction; 0 if there is none."""
        return next((record.seq for record in self.timeline().records()), 0)

    def texts(self, at: Point, kinds: Collection[str]) -> dict[str, str]:
        """Return the texts of documents as they were at a point of history."""
        now: dict[str, str] = {}
        for kind in kinds:
            with suppress(DocumentError):  # an unreadable file is not needed: history has its text
                known = self.engine.load(self.user_id, kind)
                if known is not None and (known.is_logged or known.logged is not None):
                    now[kind] = (known.logged or known.document).text
        return self.timeline().texts(kinds, self.sequence(at), now)

    def sequence(self, at: Point) -> int:
        """Return the number of the last transaction up to a point of history.

        Raises:
            InvalidValue: `at` is no point, or there is no such transaction.
        """
        point = point_of(at)
        if isinstance(point, datetime):
            return self.timeline().sequence_at(point)
        newest = self.newest()
        if not 0 <= point <= newest:
            raise InvalidValue(
                f"there is no transaction {point}; the newest is {newest}.", where="at"
            )
        return point
