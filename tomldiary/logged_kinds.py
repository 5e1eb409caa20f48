"""Which documents a user's history tells of, so that a new one is known for new without looking through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.errors import InvalidTOML
from tomldiary.history import result_kinds
from tomldiary.history_index import HistoryIndex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tomldiary.backends.base import Backend

__all__ = ["LoggedKinds"]


class LoggedKinds:
    """The names of documents in the histories of all users."""

    def __init__(self, backend: Backend) -> None:
        self._index = HistoryIndex(backend, lambda _, text: dict.fromkeys(result_kinds(text)))

    def note(self, user: str, seqs: range, kinds: Iterable[str]) -> None:
        """Take note of what transactions that were just stored led to; the caller holds the user's lock."""
        self._index.note(user, seqs, dict.fromkeys(kinds))

    def may_hold(self, user: str, kind: str) -> bool:
        """Tell whether history may tell of a document; the caller holds the user's lock."""
        try:
            return kind in self._index.of(user)
        except InvalidTOML:
            return True  # damaged: whoever looks at it says so
