"""The documents of one user as they were at a point of history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.errors import DiaryError
from tomldiary.hand_edits.detect import NOTHING
from tomldiary.toml.document import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

__all__ = ["PastDocuments"]


class PastDocuments:
    """Reads documents as they were after a transaction.

    Args:
        text_of: Returns the text of a document as it was.
        seq: The last transaction in it.
        kinds: The documents that existed.
        moment: The time that counts as now.
    """

    def __init__(
        self, text_of: Callable[[str], str], seq: int, kinds: list[str], moment: datetime
    ) -> None:
        self._text_of = text_of
        self._documents: dict[str, Document] = {}
        self.kinds = kinds
        self.moment = moment
        self.seq = seq

    def document(self, kind: str) -> Document:
        """Return a document as it was; empty if it did not exist."""
        if kind not in self.kinds:
            return NOTHING
        if kind not in self._documents:
            self.keep({kind: self._text_of(kind)})
        return self._documents[kind]

    def keep(self, texts: Mapping[str, str]) -> None:
        """Store texts that are read already."""
        self._documents.update({kind: Document.parse(text) for kind, text in texts.items()})

    def refusal(self) -> DiaryError:
        """Return the error for a write, or for a query of history from here."""
        return DiaryError(
            f"this is the memory as it was after transaction {self.seq}; it cannot be changed."
            " Use diary.user(…) for the current memory."
        )
