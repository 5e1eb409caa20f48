"""Documents as they were at a point of history."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any

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
    """The part of `UserDiary` that brings documents back as they were."""

    diary: Any
    user_id: str
    _engine: Engine

    def _kinds(self) -> list[str]:
        """Return all documents there are or were, as far as history is kept."""
        known = self._timeline().kinds()
        known.update(self._engine.backend.kinds(self.user_id))
        return [*USUAL_KINDS, *sorted(known.difference(USUAL_KINDS))]

    def _timeline(self) -> Timeline:
        return Timeline(self._engine.backend, self.user_id)

    def _texts(self, at: Point, kinds: Collection[str]) -> dict[str, str]:
        """Return the texts of documents as they were at a point of history."""
        now: dict[str, str] = {}
        for kind in kinds:
            with suppress(DocumentError):  # a file that cannot be read is not needed to look back
                known = self._engine.load(self.user_id, kind)
                if known is not None and (known.is_logged or known.logged is not None):
                    now[kind] = (known.logged or known.document).text
        return self._timeline().texts(kinds, self._sequence(at), now)

    def _sequence(self, at: Point) -> int:
        point = point_of(at)
        if isinstance(point, datetime):
            return self._timeline().sequence_at(point)
        newest = next((record.seq for record in self._timeline().records()), 0)
        if not 0 <= point <= newest:
            raise InvalidValue(
                f"there is no transaction {point}; the newest is {newest}.", where="at"
            )
        return point
