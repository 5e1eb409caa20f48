"""Indexes one user's history: the newest record of each document, and the idempotency keys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from tomldiary.history.record import (
    OWN_LINES,
    is_snapshot,
    is_whole,
    next_sequence,
    operation_of,
    parse_record,
    results_of,
    sequence_of,
    type_of,
)
from tomldiary.runtime.forgettable_cache import cleared_on_forget

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tomldiary.history.record import Record
    from tomldiary.storage.protocol import HistorySource

__all__ = ["HistoryIndex", "Indexed", "Latest"]


class Latest(NamedTuple):
    """The newest record that changed a document."""

    seq: int
    type: str
    result: str
    """The fingerprint of the document after the transaction."""


@dataclass(slots=True)
class Indexed:
    """What the newest records of a history say; it may contain keys of records that were dropped since.

    Readers use it without a lock, so its documents are not changed once it is complete.
    """

    last: int = 0
    """The number of the newest transaction."""
    newest: int = 0
    """The `_identity` of its record; it differs if the indexed history was not stored, or was replaced."""
    start: int = -1
    """The number of the transaction after which all records are indexed; 0 is the whole history, -1 is unknown."""
    documents: dict[str, Latest | None] = field(default_factory=dict[str, "Latest | None"])
    """The newest record of each document; None if it was altered."""
    operations: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """By idempotency key: the transaction, and the fingerprint of the request. Only used under the user's lock."""

    def ends_with(self, text: str) -> bool:
        """Return whether a record is the newest indexed one."""
        return self.last == sequence_of(text) and self.newest == _identity(text)

    def knows(self, kind: str) -> bool:
        """Return whether the records before the indexed ones are not needed for a document."""
        return kind in self.documents or not self.start

    def add(self, text: str) -> None:
        """Add the record before the oldest indexed one."""
        seq = sequence_of(text)
        if not self.newest:
            self.last, self.newest = seq, _identity(text)
        if seq:
            self.start = 0 if is_snapshot(text) else seq - 1
        type_, is_intact = type_of(text), is_whole(text)
        for kind, result in results_of(text).items():
            self.documents.setdefault(kind, Latest(seq, type_, result) if is_intact else None)
        operation, content = operation_of(text)
        if operation:
            self.operations.setdefault(operation, (seq, content))

    def then(self, newer: Indexed) -> Indexed:
        """Return this index with the records after it."""
        documents, operations = self.documents | newer.documents, self.operations
        if newer.operations:
            operations = operations | newer.operations
        return Indexed(newer.last, newer.newest, self.start, documents, operations)


class HistoryIndex:
    """The index of one user's history, which is read from the newest record backwards as far as needed.

    Thread-safe: a race only repeats work. Readers and writers keep what they know apart, because a reader may see an
    older or another history than the writer: without the transactions that are about to be stored, or a restored one.

    Args:
        source: The storage of the history.
        user: The user.
    """

    def __init__(self, source: HistorySource, user: str) -> None:
        self._source = source
        self._user = user
        self._read: Indexed | None = None
        """What `of` has read."""
        self._written: Indexed | None = None
        """What `at` and `note` know, under the user's lock."""

    def of(self, kind: str) -> Latest | None:
        """Return the newest record that changed document `kind`, or None.

        What the records say about other documents is kept. Later only the new records are read. If the answer is not
        among them, at least twice as many records are read. So many documents need a few passes over history.

        Raises:
            InvalidTOML: The record was altered.
        """
        texts = self._texts()
        newest = next(texts, None)
        if newest is None:
            return None
        known = self._written
        if known is None or not known.knows(kind) or not known.ends_with(newest):
            known = self._read
        self._read = found = _back_to(kind, chain([newest], texts), known)
        latest = found.documents.get(kind)
        if latest is not None or kind not in found.documents:
            return latest
        altered = next((text for text in self._texts() if kind in results_of(text)), None)
        if altered is None:
            return None
        record = parse_record(altered)  # raises the error, unless the record was restored since
        return Latest(record.seq, record.type, record.results[kind])

    def at(self, record: str | None, *, is_whole: bool = False) -> Indexed:
        """Return the index of a history that ends with `record`; the caller holds the user's lock.

        It covers the whole history if `is_whole`, otherwise at least the records since the first call.

        Raises:
            InvalidTOML: The record has no number.
        """
        last, newest = next_sequence(record) - 1, _identity(record)
        known = self._written
        if known is None or (known.last, known.newest) != (last, newest):
            continued = self._after(known) if known is not None else None
            known = continued or Indexed(start=last)
        if is_whole and known.start:
            known = self._after(Indexed()) or known
        if (known.last, known.newest) != (last, newest):
            # The last record is a placeholder, which is not among the stored ones, or none was read.
            known = replace(known, last=last, newest=newest)
        self._written = known
        return known

    def note(self, made: Record, text: str, last: str | None) -> None:
        """Add the latest transaction, stored as `text` after the record `last`; the caller holds the user's lock."""
        known = self._written
        if known is not None and known.newest == _identity(last):
            self._written = None  # an interruption must not leave a half noted transaction
            newer = {kind: Latest(made.seq, made.type, each) for kind, each in made.results.items()}
            if made.operation:
                known.operations[made.operation] = (made.seq, made.content)
            self._written = replace(
                known, last=made.seq, newest=_identity(text), documents=known.documents | newer
            )

    def is_dropped(self, seq: int) -> bool:
        """Return whether the record of a transaction was dropped from history since, for example by retention."""
        older = (text for text in self._source.records(self._user) if 0 < sequence_of(text) <= seq)
        found = next(older, None)
        return found is None or is_snapshot(found)

    def _texts(self) -> Iterator[str]:
        """Yield the records, newest first, without a torn end that was never acknowledged."""
        texts = iter(self._source.records(self._user))
        newest = next(texts, None)
        if newest is not None and _is_whole(newest):
            yield newest
        yield from texts

    def _after(self, known: Indexed) -> Indexed | None:
        """Return an index with all records after its end, or None if history does not continue it.

        This is the case if the user was removed, history was rewritten, or an indexed transaction was not stored.
        """
        fresh = Indexed()
        for text in self._texts():
            if 0 < sequence_of(text) <= known.last:
                return known.then(fresh) if known.ends_with(text) else None
            fresh.add(text)
            if not fresh.start:
                break
        fresh.start = 0
        return fresh


def _back_to(kind: str, texts: Iterable[str], known: Indexed | None) -> Indexed:
    """Return the index of the records, newest first, until the newest one of a document; `known` has read some."""
    fresh, least = Indexed(), 0
    for text in texts:
        if known is not None and 0 < sequence_of(text) <= known.last:
            is_same = known.ends_with(text)
            if is_same and (kind in fresh.documents or known.knows(kind)):
                return known.then(fresh) if fresh.newest else known
            if is_same:
                least = (fresh.last or known.last) + known.last - 2 * known.start
            known = None  # its records are read again
        fresh.add(text)
        is_enough = known is None and fresh.last - fresh.start >= least
        if not fresh.start or (is_enough and kind in fresh.documents):
            return fresh
    fresh.start = 0
    return fresh


# Cached, because the newest record is checked for each document that is read.
_is_whole = cleared_on_forget(lru_cache(maxsize=4)(is_whole))


@cleared_on_forget
@lru_cache(maxsize=16)  # a transaction on many documents asks for each of them
def _identity(record: str | None) -> int:
    """Return the hash of a record without the lines that differ between storages."""
    head, _, rest = (record or "").partition("\nbase = ")
    return hash((OWN_LINES.sub("", head).rstrip("\n"), rest))
