"""Documents as they were at a point of history."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tomldiary.errors import DocumentError
from tomldiary.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Collection

    from tomldiary.engine import Engine

__all__ = ["USUAL_KINDS", "PastTexts"]

USUAL_KINDS = ("preferences", "conversations")
"""The documents that count as there even while they are not."""


class PastTexts:
    """The part of `UserDiary` that brings documents back as they were."""

    diary: Any
    user_id: str
    _engine: Engine

    def _kinds(self) -> list[str]:
        """Return all documents there are or were, as far as history is kept."""
        known = self._timeline().kinds()
        known.update(self._engine.backend.kinds(self.user_id))
        return [*USUAL_KINDS, *sorted(known.difference(USUAL_KINDS))]

    def _timeline(self) -> Timeline:
        return Timeline(self._engine.backend, self.user_id)

    def _texts(self, at: int | datetime, kinds: Collection[str]) -> dict[str, str]:
        """Return the texts of documents as they were at a point of history."""
        now: dict[str, str] = {}
        for kind in kinds:
            with suppress(DocumentError):  # a file that cannot be read is not needed to look back
                known = self._engine.load(self.user_id, kind)
                if known is not None and (known.is_logged or known.logged is not None):
                    now[kind] = (known.logged or known.document).text
        return self._timeline().texts(kinds, self._sequence(at), now)

    def _sequence(self, at: int | datetime) -> int:
        return self._timeline().sequence_at(at) if isinstance(at, datetime) else at
