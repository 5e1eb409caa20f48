"""Where users' histories end, remembered so that a look at one that nobody added to reads no more than its last record."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tomldiary.history.record import next_sequence
from tomldiary.storage.files import folder_time
from tomldiary.storage.local.log_reader import last_record
from tomldiary.storage.local.log_segments import End, cut_off, end_behind, newest_segment

__all__ = ["HistoryTails"]


class _Tail(NamedTuple):
    """The end of a user's history as last seen."""

    end: End
    folder_time: int
    record: str
    seq: int
    """The record's."""


class HistoryTails:
    """The ends of all users' histories; the caller holds the user's lock."""

    def __init__(self) -> None:
        self._tails: dict[str, _Tail] = {}

    def keep(self, user: str, place: str, end: End, record: str, seq: int) -> None:
        """Remember where a history ends that was just added to; `place` is its folder."""
        known = self._tails.get(user)
        # A segment that was there before has not changed the folder; what somebody else has put there shows.
        is_known = known is not None and known.end.segment == end.segment
        changed = known.folder_time if known is not None and is_known else folder_time(place)
        self._tails[user] = _Tail(end, changed, record, seq)

    def drop(self, user: str) -> None:
        """Take nothing of a user's for granted any more."""
        self._tails.pop(user, None)

    def drop_changed(self, user: str) -> None:
        """Drop the end of a history that somebody else has changed since; needs no lock."""
        tail = self._tails.get(user)
        if tail is not None and not tail.end.is_there() and self._tails.get(user) is tail:
            self._tails.pop(user, None)

    def numbered(self, user: str, place: str, seq: int) -> End | None:
        """Return the end of a history that transaction `seq` is to follow; None if there is no history.

        Whoever gave it that number has looked under the lock that is held now.
        """
        tail = self._tails.get(user)
        if tail is None or tail.seq != seq - 1:
            tail = self._found(user, place)
        return tail.end if tail is not None else None

    def of(self, user: str, place: str) -> str | None:
        """Return the last complete record, or None; a torn end is cut off."""
        tail = self._found(user, place)
        return tail.record if tail is not None else None

    def _found(self, user: str, place: str) -> _Tail | None:
        # Once it was found, others may drop what is remembered.
        cached = self._tails.get(user)
        changed = folder_time(place)
        if not changed:
            self.drop(user)
            return None
        if (
            cached is not None
            and cached.folder_time == changed  # no segment was added since
            and cached.end.is_there()
        ):
            return cached
        newest = newest_segment(Path(place))
        if newest is None:
            self.drop(user)
            return None
        record, at = last_record(newest)
        cut_off(newest, at)
        if record is None:
            # The only record of a fresh segment was torn: the one before it is in the segment before.
            newest.unlink()
            return self._found(user, place)
        seq = next_sequence(record) - 1
        found = self._tails[user] = _Tail(end_behind(newest, at, record), changed, record, seq)
        return found
