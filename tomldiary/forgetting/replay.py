"""Replays the versions of one document from its history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.errors import DocumentError
from tomldiary.history.record import Record, redo, undo
from tomldiary.history.timeline import EMPTY
from tomldiary.toml.document import digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["Replay"]


class Replay:
    """The versions of one document that history can rebuild."""

    def __init__(self, records: Sequence[Record], kind: str, newest: str | None) -> None:
        self.records = records
        self._kind = kind
        self._chains: list[list[int]] = []
        for number, record in enumerate(records):
            if kind in record.results:
                if not self._chains or record.bases[kind] == EMPTY:
                    self._chains.append([])
                self._chains[-1].append(number)
        self._starts: dict[int, str] = {}
        for chain in self._chains:
            start = self._start(chain, newest if chain is self._chains[-1] else None)
            if start is not None:
                self._starts[chain[0]] = start

    def _start(self, chain: list[int], newest: str | None) -> str | None:
        """Return the text before a chain of records; None if the chain is inconsistent."""
        kind = self._kind
        text: str | None = "" if self.records[chain[0]].bases[kind] == EMPTY else None
        try:
            if text is None:
                # Retention may have removed the oldest segments: then the chain is undone from the current text.
                if newest is None:
                    return None
                text = newest
                for number in reversed(chain):
                    if digest(text) != self.records[number].results[kind]:
                        return None
                    text = undo(text, self.records[number], kind)
            after = text
            for number in chain:
                after = redo(after, self.records[number], kind)
                if digest(after) != self.records[number].results[kind]:
                    return None
        except DocumentError:
            return None
        return text

    def steps(self) -> Iterator[tuple[int, str, str]]:
        """Yield each record's number with the text before and after it."""
        for chain in self._chains:
            after = self._starts.get(chain[0])
            for number in chain:
                if after is None or chain[0] not in self._starts:
                    break
                before, after = after, redo(after, self.records[number], self._kind)
                yield number, before, after

    def lose(self, number: int) -> None:
        """Drop the chain of versions that a record belongs to."""
        self._starts.pop(next(chain[0] for chain in self._chains if number in chain), None)
