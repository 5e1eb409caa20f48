"""Where users' histories end, remembered so that a look at one that nobody added to is two `stat`s."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tomldiary.backends.files import FileToken, file_token, folder_time
from tomldiary.backends.segments import cut_off, last_record, newest_segment
from tomldiary.history import next_sequence

__all__ = ["HistoryTails"]


class _Tail(NamedTuple):
    """The end of a user's history as last seen."""

    segment: str
    token: FileToken
    folder_time: int
    record: str
    seq: int
    """The record's."""


class HistoryTails:
    """The ends of all users' histories; the caller holds the user's lock."""

    def __init__(self) -> None:
        self._tails: dict[str, _Tail] = {}

    def keep(
        self, user: str, place: str, segment: str, token: FileToken, record: str, seq: int
    ) -> None:
        """Remember where a history ends that was just added to; `place` is its folder."""
        known = self._tails.get(user)
        # A segment that was there before has not changed the folder; what somebody else has put there shows.
        changed = (
            folder_time(place) if known is None or known.segment != segment else known.folder_time
        )
        self._tails[user] = _Tail(segment, token, changed, record, seq)

    def drop(self, user: str) -> None:
        """Take nothing of a user's for granted any more."""
        self._tails.pop(user, None)

    def drop_changed(self, user: str) -> None:
        """Drop the end of a history that somebody else has changed since; needs no lock."""
        tail = self._tails.get(user)
        if tail is not None and file_token(tail.segment) != tail.token:
            self._tails.pop(user, None)

    def numbered(self, user: str, place: str, seq: int) -> _Tail | None:
        """Return the end of a history that transaction `seq` is to follow; None if there is no history.

        Whoever gave it that number has looked under the lock that is held now.
        """
        tail = self._tails.get(user)
        if tail is not None and tail.seq == seq - 1:
            return tail
        self.of(user, place)
        return self._tails.get(user)

    def of(self, user: str, place: str) -> tuple[str | None, str | None]:
        """Return the newest segment and its last whole record; a torn end is cut off for good."""
        cached = self._tails.get(user)
        changed = folder_time(place)
        if not changed:
            self.drop(user)
            return None, None
        if (
            cached is not None
            and cached.folder_time == changed  # no segment was added since
            and file_token(cached.segment) == cached.token
        ):
            return cached.segment, cached.record
        newest = newest_segment(Path(place))
        if newest is None:
            self.drop(user)
            return None, None
        record, end = last_record(newest)
        if end < newest.stat().st_size:
            cut_off(newest, end)
        if record is None:
            # The only record of a fresh segment was torn: the one before it is in the segment before.
            newest.unlink()
            return self.of(user, place)
        token = file_token(newest)
        assert token is not None  # noqa: S101 - it was just read, and the lock is held
        seq = next_sequence(record) - 1
        self._tails[user] = _Tail(str(newest), token, changed, record, seq)
        return str(newest), record
