"""Looking back: any document's text at any point of the kept history, by redoing its transactions."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from tomldiary.backends.base import digest
from tomldiary.errors import DocumentError, InvalidTOML
from tomldiary.history import parse_record, redo
from tomldiary.toml.values import render_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.backends.base import Backend
    from tomldiary.history import Record

__all__ = ["EMPTY", "Timeline"]

EMPTY = digest("")
"""Fingerprint of a document that does not exist; a change based on it holds the whole text."""


# A batch may change hundreds of documents in one record, which is then looked up for each of them.
_parsed = lru_cache(maxsize=2)(parse_record)


class Timeline:
    """The history of one user, read from the newest record backwards as far as needed."""

    def __init__(self, backend: Backend, user: str) -> None:
        self._backend = backend
        self._user = user

    def records(self) -> Iterator[Record]:
        """Yield the whole records, newest first; a torn end that was never acknowledged is left out."""
        for number, text in enumerate(self._backend.records(self._user)):
            try:
                yield parse_record(text)
            except InvalidTOML:
                if number:
                    raise

    def last(self, kind: str) -> Record | None:
        """Return the newest record that changed document `kind`, or None.

        A record that does not name the document is not parsed: a user may have thousands of documents,
        and most of history is about others.
        """
        name = f"{render_key(kind)} = "
        for number, text in enumerate(self._backend.records(self._user)):
            if name not in text:
                continue
            try:
                record = _parsed(text)
            except InvalidTOML:
                if number:
                    raise
                continue
            if kind in record.results:
                return record
        return None

    def text(self, kind: str, seq: int | None = None) -> str:
        """Return a document's text right after transaction `seq` (None: the newest); "" if it had none.

        Raises:
            DocumentError: History does not reach back that far, or does not fit together.
        """
        steps: list[Record] = []
        reached = False
        for record in self.records():
            if kind not in record.results or (seq is not None and record.seq > seq):
                continue
            steps.append(record)
            if record.bases[kind] == EMPTY:
                reached = True
                break
        if not steps:
            return ""
        if not reached:
            raise DocumentError(
                f"history is kept from transaction {steps[-1].seq} on; what {kind} was before is not known."
            )
        text = ""
        for record in reversed(steps):
            text = redo(text, record, kind)
            if digest(text) != record.results[kind]:
                raise DocumentError(
                    f"{kind}: transaction {record.seq} does not lead to the text it says it led to."
                )
        return text

    def sequence_at(self, moment: datetime) -> int:
        """Return the number of the last transaction at or before a moment; 0 if there was none."""
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        for record in self.records():
            if datetime.fromisoformat(record.time) <= aware:
                return record.seq
        return 0
