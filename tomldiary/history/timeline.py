"""Reads one user's history: any document at any point of the kept history."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, takewhile
from typing import TYPE_CHECKING

from tomldiary.errors import DocumentError, HistoryPruned, InvalidTOML
from tomldiary.history.record import (
    SNAPSHOT,
    Record,
    is_snapshot,
    parse_record,
    results_of,
    sequence_of,
    type_of,
)
from tomldiary.runtime.forgettable_cache import cleared_on_forget
from tomldiary.toml.document import digest
from tomldiary.toml.values import is_bare, render_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from tomldiary.storage.protocol import HistorySource

EMPTY = digest("")
"""The fingerprint of a document that does not exist; a change based on it has the whole text."""


# Cached, because a batch may change hundreds of documents in one record, which is read for each of them.
_parse = cleared_on_forget(lru_cache(maxsize=2)(parse_record))


class Timeline:
    """The history of one user, read from the newest record backwards as far as needed."""

    def __init__(self, source: HistorySource, user: str) -> None:
        self._source = source
        self._user = user

    def records(self, naming: str = "", *, after: int = 0) -> Iterator[Record]:
        """Yield the complete records, newest first; skip a torn end that was never acknowledged.

        If retention dropped older records, the last record is the snapshot that replaces them.

        Args:
            naming: The last part of an entry's key; records that cannot have it are neither parsed nor returned.
            after: The number of the transaction before the oldest record to return.
        """
        texts: Iterable[tuple[int, str]] = enumerate(self._source.records(self._user))
        if is_bare(naming):
            # A record has a bare key as it is, unless a person wrote it with an escape, which is a doubled backslash here.
            texts = (
                item
                for item in texts
                if naming in item[1] or "\\\\" in item[1] or is_snapshot(item[1])
            )
        return takewhile(lambda record: record.seq > after, self._parsed(texts))

    def ends(self) -> tuple[Record, Record] | None:
        """Return the oldest and the newest complete record, or None; the records between them are not parsed."""
        texts = enumerate(self._source.records(self._user))
        newest = next(self._parsed(texts), None)
        oldest = ""
        if newest is not None and newest.type != SNAPSHOT:
            for _, oldest in texts:
                if is_snapshot(oldest):
                    break
        return None if newest is None else (parse_record(oldest) if oldest else newest, newest)

    @staticmethod
    def _parsed(texts: Iterable[tuple[int, str]]) -> Iterator[Record]:
        for number, text in texts:
            try:
                record = _parse(text)
            except InvalidTOML:
                if number:
                    raise
                continue
            yield record
            if record.type == SNAPSHOT:
                return  # older records are about to be removed

    def first_edits(self, kind: str) -> list[Record]:
        """Return the hand edits of a document before the diary first wrote to it, oldest first, if history has them.

        A document that was removed begins again.
        """
        found: list[str] = []
        for text in self._source.records(self._user):
            result = results_of(text).get(kind)
            if result == EMPTY:
                break
            if result is not None and type_of(text) != "hand":
                found.clear()
            elif result is not None:
                found.append(text)
        return [parse_record(text) for text in reversed(found)]

    def kinds(self) -> set[str]:
        """Return the names of all documents that the kept history mentions."""
        return {kind for text in self._source.records(self._user) for kind in results_of(text)}

    def text(self, kind: str, seq: int | None = None) -> str:
        """Return a document's text right after transaction `seq`; "" if the document did not exist.

        None is the newest transaction.

        Raises:
            HistoryPruned: History is kept, but not that far back.
            DocumentError: History does not reach back that far, or is inconsistent.
        """
        return self.texts([kind], seq)[kind]

    def texts(
        self, kinds: Collection[str], seq: int | None = None, now: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return the texts of several documents; see `text`.

        Args:
            kinds: The documents.
            seq: The transaction; None is the newest.
            now: Texts at the end of history, if known; undoing from them may need fewer records.

        Raises:
            HistoryPruned: History is kept, but not that far back.
            DocumentError: History does not reach back that far, or is inconsistent.
        """
        later: list[tuple[int, str]] = []
        texts = enumerate(self._source.records(self._user))
        rest: list[tuple[int, str]] = []
        for number, text in texts:
            if seq is None or sequence_of(text) <= seq:
                rest.append((number, text))
                break
            if is_snapshot(text):
                snapshot = parse_record(text)
                raise HistoryPruned(snapshot.seq, snapshot.time)
            later.append((number, text))
        first = sequence_of(later[-1][1]) if later else 0
        has_gap = seq is not None and first > seq + 1
        if rest and not has_gap and 0 < sequence_of(rest[0][1]) < first - 1:
            # A hand edit behind removed records begins at the state before them.
            has_gap = type_of(later[-1][1]) == "hand"
        ends = dict(now or {})
        is_near = not has_gap and (seq is None or len(later) <= seq)
        found = self._walked_back(kinds, later, ends, is_all=not rest) if is_near else {}
        missing = [kind for kind in kinds if kind not in found]
        if not missing:
            return found
        try:
            if first > 1 and not rest:
                raise out_of_reach(first)
            older = chain(rest, texts)
            older = older if seq is None else _whole(older, seq + 1)
            return found | self._replayed(missing, older, ends)
        except DocumentError:
            if is_near or has_gap:
                raise
            found = self._walked_back(missing, later, ends, is_all=not rest)
            if found.keys() < set(missing):
                raise
            return found

    def _walked_back(
        self,
        kinds: Collection[str],
        later: list[tuple[int, str]],
        ends: Mapping[str, str],
        *,
        is_all: bool,
    ) -> dict[str, str]:
        """Return the documents before the records `later`; `is_all` means that these are all records."""
        if not later or not ends:
            return {}
        records = list(self._parsed(later))
        found: dict[str, str] = {}
        for kind in kinds:
            steps = [record for record in records if kind in record.results]
            if steps:
                text = ends.get(kind, "")
                for record in steps:
                    text = undo(text, record, kind)
                if digest(text) == steps[-1].bases[kind]:
                    found[kind] = text
            elif is_all or kind in ends:
                found[kind] = ends.get(kind, "")
        return found

    def _replayed(
        self, kinds: Collection[str], texts: Iterable[tuple[int, str]], ends: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the documents after these records; `ends` has texts that may already be the result."""
        steps: dict[str, list[Record]] = {kind: [] for kind in kinds}
        missing = set(steps)
        found: dict[str, str] = {}
        # Other records are not parsed: a user may have thousands of documents, and most records concern a few.
        names = [f"{render_key(kind)} = " for kind in kinds]
        naming = (
            item for item in texts if is_snapshot(item[1]) or any(name in item[1] for name in names)
        )
        for record in self._parsed(naming):
            for kind in record.results.keys() & missing:
                if not steps[kind] and kind in ends and digest(ends[kind]) == record.results[kind]:
                    found[kind] = ends[kind]
                    missing.discard(kind)
                    continue
                steps[kind].append(record)
                if record.bases[kind] == EMPTY:
                    missing.discard(kind)
            if not missing:
                break
        return {
            kind: found[kind] if kind in found else _redone(kind, steps[kind]) for kind in kinds
        }

    def sequence_at(self, moment: datetime, newest: int) -> int:
        """Return the number of the last transaction at or before a moment; 0 if there was none.

        Args:
            moment: The time.
            newest: The number of the newest transaction, whose record may be missing.

        Raises:
            DocumentError: The records around that moment are missing.
        """
        later = newest + 1
        for record in self.records():
            if datetime.fromisoformat(record.time) <= moment:
                check_follows(record.seq, later)
                return record.seq
            later = record.seq
        return 0

    def moment_of(self, seq: int) -> datetime:
        """Return the time of transaction `seq`, or of the last one before it; the year 1 if there is none."""
        for text in self._source.records(self._user):
            if 0 < sequence_of(text) <= seq:
                return datetime.fromisoformat(parse_record(text).time)
        return datetime.min.replace(tzinfo=UTC)


def check_follows(seq: int, later: int) -> None:
    """Check that no transaction is missing between `seq` and `later`.

    Raises:
        DocumentError: Another program has removed records between them.
    """
    if 0 < seq < later - 1:
        several = f"records of transactions {seq + 1} to {later - 1} are"
        missing = several if seq + 2 < later else f"record of transaction {seq + 1} is"
        raise DocumentError(
            f"the {missing} missing, so this state cannot be rebuilt. Run"
            ' "tomldiary doctor" for the place, and restore the file from a backup.'
        )


def _whole(texts: Iterable[tuple[int, str]], later: int) -> Iterator[tuple[int, str]]:
    """Yield the records before transaction `later`; raise an error if one is missing."""
    for number, text in texts:
        seq = sequence_of(text)
        check_follows(seq, later)
        yield number, text
        later = seq or later


def _redone(kind: str, steps: list[Record]) -> str:
    """Return a document's text after these records, newest first."""
    if not steps:
        return ""
    if steps[-1].bases[kind] != EMPTY:
        raise out_of_reach(steps[-1].seq)
    text = ""
    for record in reversed(steps):
        text = redo(text, record, kind)
    if digest(text) != steps[0].results[kind]:
        raise DocumentError(
            f'{kind}: the text rebuilt from history does not match its fingerprint. Run "tomldiary doctor" for the place.'
        )
    return text


def out_of_reach(first: int) -> DocumentError:
    """Return the error for a point before the first kept record, if that record is not a snapshot."""
    return DocumentError(
        f"history begins at transaction {first}; earlier states are not known. Use {first} or later."
    )


def redo(text: str, record: Record, doc: str) -> str:
    """Apply a record's changes of document `doc` to its base text.

    Raises:
        DocumentError: `text` is not the base text of the record.
    """
    shift = 0
    for change in record.changes:
        if change.doc != doc:
            continue
        at = change.at + shift
        if text[at : at + len(change.old)] != change.old:
            raise DocumentError(f"{doc}: transaction {record.seq} does not fit this text.")
        text = text[:at] + change.new + text[at + len(change.old) :]
        shift += len(change.new) - len(change.old)
    return text


def undo(text: str, record: Record, doc: str) -> str:
    """Undo a record's changes of document `doc` in the resulting text; the caller compares the fingerprint."""
    changes = [change for change in record.changes if change.doc == doc]
    shift = sum(len(change.new) - len(change.old) for change in changes)
    for change in reversed(changes):
        shift -= len(change.new) - len(change.old)
        at = change.at + shift
        text = text[:at] + change.old + text[at + len(change.new) :]
    return text
