"""The time in which a fact holds: where it is written, and how one interval ends another."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tomldiary.entries.constraints import FactSchema

__all__ = ["ALWAYS", "Held", "chained", "group_of", "in_utc", "interval", "moment", "short"]

ALWAYS = datetime.min.replace(tzinfo=UTC)
"""When a fact begins to hold that does not say when."""


class Held(NamedTuple):
    """An entry that can be read, and the time in which it holds."""

    key: str
    entry: Mapping[str, Any]
    start: datetime | None
    end: datetime | None

    def holds(self, at: datetime) -> bool:
        """Tell whether it holds at a moment."""
        return (self.start or ALWAYS) <= at and (self.end is None or at < self.end)


def group_of(schema: FactSchema, key: str) -> str:
    """Return the part of a key that its singleton key makes."""
    if not schema.constraint.temporal or "@" not in key:
        return key
    head, _, tail = key.rpartition("@")
    return head if moment(tail) is not None else key


def interval(entry: Mapping[str, Any]) -> tuple[datetime | None, datetime | None]:
    """Return from when on and until when an entry says that it holds."""
    return moment(entry.get("_valid_from")), moment(entry.get("_valid_to"))


def chained(schema: FactSchema, found: list[Held]) -> list[Held]:
    """Let each interval end where the next one with the same singleton key begins."""
    if not schema.constraint.keys:
        return found
    groups: dict[str, list[Held]] = {}
    for held in found:
        groups.setdefault(group_of(schema, held.key), []).append(held)
    ends: dict[str, datetime | None] = {}
    for group in groups.values():
        group.sort(key=lambda held: held.start or ALWAYS)
        for held, following in zip(group, [*group[1:], None], strict=True):
            cuts = [held.end, following.start or ALWAYS if following is not None else None]
            ends[held.key] = min((cut for cut in cuts if cut is not None), default=None)
    return [Held(held.key, held.entry, held.start, ends[held.key]) for held in found]


def moment(written: Any) -> datetime | None:
    """Return a time as it is written in a file, in UTC; None if it is none."""
    if isinstance(written, date) and not isinstance(written, datetime):
        written = datetime.combine(written, time.min)
    if not isinstance(written, datetime):
        try:
            written = datetime.fromisoformat(str(written))
        except ValueError:
            return None
    return in_utc(written)


def in_utc(given: datetime) -> datetime:
    """Return a time in UTC; without a zone it is taken to be that."""
    return given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)


def short(given: datetime) -> str:
    """Return a time for a key: a day where that is exact."""
    written = given.astimezone(UTC).replace(tzinfo=None).isoformat()
    return written.removesuffix("T00:00:00") if written.endswith("T00:00:00") else f"{written}Z"
