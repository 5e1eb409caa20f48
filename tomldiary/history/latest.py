"""Finds the newest record of each document, without reading the whole history again for each document."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tomldiary.history.record import is_snapshot, is_whole, results_of, type_of
from tomldiary.history.timeline import Timeline, sequence_of

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
    """What the newest records of a history say. Never changed."""

    newest: int
    """The hash of the newest record."""
    length: int
    """How many records were read."""
    is_all: bool
    """Whether no older records were left to read."""
    documents: dict[str, Latest | None]
    """The newest record of each document; None if it is torn or altered."""


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

        It reads from the newest record backwards, and keeps what the records say about other documents. Later it reads
        the new records only. If the answer is not among them, it reads at least twice as many records. So many
        documents need a few passes over history.

        Raises:
            InvalidTOML: The record was altered.
        """
        read = self._read
        newest: int | None = None
        length, least, is_all = 0, 0, False
        documents: dict[str, Latest | None] = {}
        for text in self._source.records(self._user):
            this = hash(text)
            newest = this if newest is None else newest
            if read is not None and this == read.newest:
                documents = {**read.documents, **documents}
                if kind in documents or read.is_all:
                    self._read = _Read(newest, length + read.length, read.is_all, documents)
                    return self._answer(documents, kind)
                least = length + 2 * read.length
            length += 1
            seq, type_, is_intact = sequence_of(text), type_of(text), is_whole(text)
            for name, result in results_of(text).items():
                latest = Latest(seq, type_, result) if is_intact else None
                documents.setdefault(name, latest)
            is_all = is_snapshot(text)
            if is_all or (kind in documents and length >= least):
                break
        else:
            is_all = True
        if newest is not None:
            self._read = _Read(newest, length, is_all, documents)
        return self._answer(documents, kind)

    def _answer(self, documents: dict[str, Latest | None], kind: str) -> Latest | None:
        found = documents.get(kind)
        if found is not None or kind not in documents:
            return found
        # A torn record at the end was never acknowledged and is skipped; any other one raises an error.
        last = Timeline(self._source, self._user).last(kind)
        return None if last is None else Latest(last.seq, last.type, last.results[kind])
