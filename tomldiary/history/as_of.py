"""A past state in the place of the engine, so that all reading verbs work on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.errors import DiaryError
from tomldiary.hand_edits.detect import NOTHING
from tomldiary.toml.document import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

__all__ = ["FrozenEngine"]


class FrozenEngine:
    """Stands in for the engine of a past state: reads what was, writes nothing.

    Args:
        text_of: Returns the text of a document as it was.
        seq: The last transaction in it.
        kinds: The documents there were.
        moment: The time that counts as now.
    """

    def __init__(
        self, text_of: Callable[[str], str], seq: int, kinds: list[str], moment: datetime
    ) -> None:
        self._text_of = text_of
        self._kinds = kinds
        self._documents: dict[str, Document] = {}
        self._moment = moment
        self.seq = seq
        self.is_frozen = True
        self.lists_documents = True

    def now(self) -> datetime:
        """Return the time of the past state."""
        return self._moment

    def document(self, _user: str, kind: str) -> Document:
        """Return a document as it was."""
        if kind not in self._kinds:
            return NOTHING
        if kind not in self._documents:
            self.keep({kind: self._text_of(kind)})
        return self._documents[kind]

    def cached(self, _user: str, *_kinds: str) -> None:
        """Return None: how long it takes to find out what was is not known."""

    def keep(self, texts: Mapping[str, str]) -> None:
        """Take in documents as they were."""
        self._documents.update({kind: Document.parse(text) for kind, text in texts.items()})

    def kinds(self, _user: str) -> list[str]:
        """Return the documents there were."""
        return self._kinds

    def load(self, _user: str, _kind: str) -> None:
        """Return None: there is no file behind it."""

    def __getattr__(self, name: str) -> Any:
        raise DiaryError(
            f"this is the memory as it was after transaction {self.seq}; it cannot be changed ({name})."
        )
