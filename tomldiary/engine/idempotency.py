"""Which operations history says were done already, so that none is done twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.errors import Conflict
from tomldiary.history.index import HistoryIndex
from tomldiary.history.record import operation_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tomldiary.history.record import Source
    from tomldiary.storage.protocol import Backend

__all__ = ["DoneOperations"]


class DoneOperations:
    """The operation ids in the histories of all users."""

    def __init__(self, backend: Backend) -> None:
        self._index: HistoryIndex[tuple[int, str]] = HistoryIndex(backend, _operation)
        self.drop = self._index.drop

    def repetition(self, user: str, source: Source) -> int | None:
        """Return the number of the transaction that did this operation before; the caller holds the lock.

        Raises:
            Conflict: The operation id is in history for other content.
        """
        if not source.operation or source.is_new:
            return None
        before = self.of(user).get(source.operation)
        if before is not None and before[1] != source.fingerprint():
            raise Conflict(
                f"operation {source.operation!r} was done already, with other content. Use a new id.",
                keys=[source.operation],
            )
        return before[0] if before is not None else None

    def of(self, user: str) -> Mapping[str, tuple[int, str]]:
        """Return the transaction's number and the content, by operation id; the caller holds the user's lock."""
        return self._index.of(user)


def _operation(seq: int, text: str) -> dict[str, tuple[int, str]]:
    operation, content = operation_of(text)
    return {operation: (seq, content)} if operation else {}
