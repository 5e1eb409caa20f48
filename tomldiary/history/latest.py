"""Finds the newest record of each document, without reading the whole history again for each document."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tomldiary.errors import InvalidTOML
from tomldiary.history.record import is_snapshot, results_of, type_of
from tomldiary.history.timeline import parsed, sequence_of

if TYPE_CHECKING:
    from tomldiary.storage.protocol import HistorySource

__all__ = ["Latest", "LatestRecords"]


class Latest(NamedTuple):
    """The newest record that changed a document."""

    seq: int
    type: str
    result: str
    """The fingerprint of the document after the transaction."""


class _Read(NamedTuple):
    """The records of a history that were read, from the newest one backwards without gaps. Never changed."""

    newest: tuple[int, int]
    """The number and the hash of the newest one."""
    oldest: int
    length: int
    is_all: bool
    documents: dict[str, Latest]


class LatestRecords:
    """The newest records of one user's documents. Thread-safe: a race only repeats work.

    Args:
        source: The storage of the history.
        user: The user.
    """

    def __init__(self, source: HistorySource, user: str) -> None:
        self._source = source
        self._user = user
        self._read: _Read | None = None

    def of(self, kind: str) -> Latest | None:
        """Return the newest record that changed document `kind`, or None.

        Reads from the newest record backwards as far as needed, and keeps what the records say about other documents.
        If that is not enough, a later call reads twice as many records, so many documents need only a few calls that read.

        Raises:
            InvalidTOML: The record is damaged.
        """
        before, least, is_joined = self._read, 0, False
        newest, oldest, count = (0, 0), 0, 0
        found: dict[str, Latest] = {}
        is_all = False
        for number, text in enumerate(self._source.records(self._user)):
            seq = sequence_of(text)
            if is_joined and seq >= oldest:
                continue  # read before
            if before is not None and not is_joined and seq <= before.newest[0]:
                if (seq, hash(text)) == before.newest:
                    newest = newest if count else before.newest
                    oldest, least, count = before.oldest, 2 * before.length, count + before.length
                    found = {**before.documents, **found} if found else before.documents.copy()
                    is_joined, is_all = True, before.is_all
                    if kind in found or is_all:
                        break
                    continue
                before = None  # history was replaced
            results = results_of(text)
            if kind in results or not number:
                try:
                    parsed(text)
                except InvalidTOML:
                    if number:
                        raise
                    continue  # a torn end that was never acknowledged
            newest, oldest, count = newest if count else (seq, hash(text)), seq or oldest, count + 1
            for name, result in results.items():
                found.setdefault(name, Latest(seq, type_of(text), result))
            is_all = is_snapshot(text)
            if is_all or (kind in found and count >= least):
                break
        else:
            is_all = True
        if before is None or is_joined or is_all:
            self._read = _Read(newest, oldest, count, is_all, found)
        return found.get(kind)
