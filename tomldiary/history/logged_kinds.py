"""Which documents a user's history tells of, and which transaction changed each of them last.

So a new document is known for new, and a cached one for current, without looking through history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.errors import InvalidTOML
from tomldiary.history.index import HistoryIndex
from tomldiary.history.record import result_kinds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tomldiary.history.index import Since
    from tomldiary.storage.protocol import Backend

__all__ = ["LoggedKinds"]


class LoggedKinds:
    """The names of documents in the histories of all users."""

    def __init__(self, backend: Backend) -> None:
        self._index = HistoryIndex(backend, lambda _, text: dict.fromkeys(result_kinds(text)))
        self._changes = HistoryIndex(
            backend, lambda seq, text: dict.fromkeys(result_kinds(text), seq), is_whole=False
        )

    def note(self, user: str, seq: int, kinds: Iterable[str]) -> None:
        """Note the documents that the transaction just stored changed; the caller holds the user's lock."""
        found = list(kinds)
        self._index.note(user, seq, dict.fromkeys(found))
        self._changes.note(user, seq, dict.fromkeys(found, seq))

    def changes(self, user: str) -> Since[int]:
        """Return by document the transaction that changed it last; the caller holds the user's lock.

        Raises:
            InvalidTOML: A record is damaged.
        """
        return self._changes.since(user)

    def may_hold(self, user: str, kind: str) -> bool:
        """Tell whether history may tell of a document; the caller holds the user's lock."""
        try:
            return kind in self._index.of(user)
        except InvalidTOML:
            return True  # damaged: whoever looks at it says so
