"""How far back history is kept, and dropping what is older."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tomldiary.errors import InvalidValue
from tomldiary.history.record import SNAPSHOT, Change, Record
from tomldiary.history.timeline import EMPTY, Timeline
from tomldiary.toml.fingerprint import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tomldiary.engine.engine import Engine

__all__ = ["KeptHistory", "Retention"]


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """The transactions that can be looked back to; all zero and empty if there is no history."""

    first: int
    """`as_of` knows this one and all later ones."""
    since: str
    """When that was, ISO 8601."""
    last: int
    is_pruned: bool
    """Whether there were older ones; of `first` only the result is known then, not what it did."""


class Retention:
    """How far back the history of one user is kept.

    Args:
        engine: Reads and prunes the history.
        user_id: Whose history.
    """

    def __init__(self, engine: Engine, user_id: str) -> None:
        self._engine = engine
        self._user = user_id

    def kept_history(self) -> KeptHistory:
        """Return how far back history is kept."""
        first = last = None
        for first in Timeline(self._engine.backend, self._user).records():
            last = last or first
        if first is None or last is None:
            return KeptHistory(0, "", 0, is_pruned=False)
        return KeptHistory(first.seq, first.time, last.seq, is_pruned=first.type == SNAPSHOT)

    def prune_history(
        self, *, before: datetime | None = None, keep: int | None = None, dry_run: bool = False
    ) -> KeptHistory:
        """Drop old transactions for good and return what is kept; the documents stay as they are.

        A snapshot of the documents takes their place, so `as_of`, `diff` and `rollback` work back to it,
        and say so when asked for more. The last transaction always stays. What was dropped cannot be looked
        up any more: neither who did it nor its operation id, which would then be done a second time.

        Args:
            before: Drop what happened before this time (without a zone: UTC).
            keep: Or drop all but this many transactions, at least 1.
            dry_run: Only return what would be kept.

        Raises:
            InvalidValue: Neither or both are given, or `keep` is below 1.
            NestedTransaction: A transaction of this user is open here.
            DocumentError: History is damaged, so that no snapshot can be made. Nothing was dropped.
            BackendError: The storage failed; what is left of history fits together.
        """
        if (before is None) == (keep is None) or (keep is not None and keep < 1):
            raise InvalidValue("say what to drop: before=… a time, or all but keep=… transactions.")
        aware = before.replace(tzinfo=UTC) if before is not None and not before.tzinfo else before

        def chosen(timeline: Timeline) -> list[Record]:
            records = list(timeline.records())[::-1]
            if aware is None:
                dropped = len(records) - (keep or 0)
            else:
                dropped = sum(datetime.fromisoformat(record.time) < aware for record in records)
            return records[: max(0, min(dropped, len(records) - 1))]

        def cut(timeline: Timeline) -> Record | None:
            dropped = chosen(timeline)
            return _snapshot(timeline, dropped) if dropped else None

        if dry_run:
            kept, dropped = (
                self.kept_history(),
                chosen(Timeline(self._engine.backend, self._user)),
            )
            if not dropped:
                return kept
            return replace(kept, first=dropped[-1].seq, since=dropped[-1].time, is_pruned=True)
        self._engine.prune(self._user, cut)
        return self.kept_history()


def _snapshot(timeline: Timeline, dropped: Sequence[Record]) -> Record | None:
    """Return the record that can stand for these; None if one does already."""
    last = dropped[-1]
    if last.type == SNAPSHOT:
        return None
    kinds = dict.fromkeys(kind for record in dropped for kind in record.results)
    texts = {kind: text for kind, text in timeline.texts(kinds, last.seq).items() if text}
    return Record(
        last.seq,
        SNAPSHOT,
        [Change(kind, 0, "", text) for kind, text in texts.items()],
        dict.fromkeys(texts, EMPTY),
        {kind: digest(text) for kind, text in texts.items()},
        time=last.time,
    )
