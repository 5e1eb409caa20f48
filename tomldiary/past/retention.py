"""Retention: reports how far back history is kept, and drops older transactions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from tomldiary.errors import InvalidValue
from tomldiary.history.record import SNAPSHOT, Change, Record
from tomldiary.history.timeline import EMPTY
from tomldiary.runtime.views import Viewed
from tomldiary.toml.document import digest
from tomldiary.toml.values import checked_count, checked_flag, start_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tomldiary.history.timeline import Timeline
    from tomldiary.past.as_of import PastTexts
    from tomldiary.toml.values import When


@dataclass(frozen=True, slots=True, repr=False)
class KeptHistory(Viewed):
    """The range of kept transactions; all fields are zero or empty if there is no history."""

    first: int
    """The first transaction that `as_of` accepts."""
    since: str
    """When `first` was stored (ISO 8601)."""
    last: int
    is_pruned: bool
    """Whether older transactions were dropped; then only the result of `first` is known, not its changes."""


class Retention:
    """Reports and limits the kept history of one user.

    Args:
        past: The user's history.
    """

    def __init__(self, past: PastTexts) -> None:
        self._past = past

    def kept_history(self) -> KeptHistory:
        """Return the range of kept transactions."""
        ends = self._past.timeline().ends()
        if ends is None:
            return KeptHistory(0, "", 0, is_pruned=False)
        first, last = ends
        return KeptHistory(first.seq, first.time, last.seq, is_pruned=first.type == SNAPSHOT)

    def prune_history(
        self, *, before: When | None = None, keep: int | None = None, dry_run: bool = False
    ) -> KeptHistory:
        """Drop old transactions permanently and return the kept range; the documents do not change.

        A snapshot of the documents replaces the dropped transactions. `as_of`, `diff` and `rollback` work back
        to the snapshot, and raise `HistoryPruned` for anything older. The last transaction always stays.

        Dropped transactions cannot be queried. Their operation ids are dropped too, so a repeated operation
        would be applied a second time.

        Args:
            before: Drop transactions before this time: a datetime, a date, month or year (its start) or ISO 8601 text
                (UTC without a zone).
            keep: The number of newest transactions to keep, at least 1.
            dry_run: Return the range that would be kept, and drop nothing.

        Raises:
            InvalidValue: Neither or both are given, `keep` is below 1, or `before` is not a time.
            NestedTransaction: A transaction of this user is open here.
            DocumentError: History is damaged, so no snapshot can be created. Nothing was dropped.
            BackendError: The storage failed; the remaining history is consistent.
        """
        if (before is None) == (keep is None):
            raise InvalidValue("pass exactly one of before=… (a time) and keep=… (transactions).")
        checked_flag(dry_run, "dry_run")
        least = 0 if keep is None else checked_count(keep, "keep", least=1)
        limit = None if before is None else start_of(before, "before")

        def chosen(timeline: Timeline) -> list[Record]:
            records = list(timeline.records())[::-1]
            if limit is None:
                dropped = len(records) - least
            else:
                dropped = sum(datetime.fromisoformat(record.time) < limit for record in records)
            return records[: max(0, min(dropped, len(records) - 1))]

        def cut(timeline: Timeline) -> Record | None:
            dropped = chosen(timeline)
            return self._snapshot(dropped) if dropped else None

        if dry_run:
            kept, dropped = self.kept_history(), chosen(self._past.timeline())
            if not dropped:
                return kept
            return replace(kept, first=dropped[-1].seq, since=dropped[-1].time, is_pruned=True)
        self._past.engine.prune(self._past.user_id, cut)
        return self.kept_history()

    def _snapshot(self, dropped: Sequence[Record]) -> Record | None:
        """Return the snapshot that replaces these records, or None if the last one is already a snapshot."""
        last = dropped[-1]
        if last.type == SNAPSHOT:
            return None
        kinds = dict.fromkeys(kind for record in dropped for kind in record.results)
        past = self._past.texts(last.seq, kinds)
        texts = {kind: text for kind, text in past.items() if text}
        return Record(
            last.seq,
            SNAPSHOT,
            [Change(kind, 0, "", text) for kind, text in texts.items()],
            dict.fromkeys(texts, EMPTY),
            {kind: digest(text) for kind, text in texts.items()},
            time=last.time,
        )
