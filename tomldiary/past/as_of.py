"""Point-in-time reader: the documents of one user at a point of history."""

from __future__ import annotations

import functools
from contextlib import suppress
from datetime import datetime
from numbers import Integral
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from tomldiary.entries.kinds import entries_of
from tomldiary.errors import (
    DiaryError,
    DocumentError,
    HistoryPruned,
    InvalidValue,
    attribute_hint,
    printed,
    wrong_value,
)
from tomldiary.hand_edits.three_way_merge import NOTHING
from tomldiary.history.record import next_sequence
from tomldiary.history.timeline import Timeline
from tomldiary.toml.document import Document
from tomldiary.toml.values import When, in_utc, start_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tomldiary.engine.engine import Engine

P = ParamSpec("P")
R = TypeVar("R")

Point = int | When
"""A point of history: a transaction number, or a time."""

_FIRST = ("preferences", "conversations")
"""The documents that are listed before the others."""


def point_of(at: object, where: str = "at") -> int | datetime:
    """Return a point of history as a transaction number or a time with a zone; a day or a month means its start.

    Raises:
        InvalidValue: `at` is not a point of history; the error begins with `where`.
    """
    # A DataFrame has whole numbers of other types than int.
    if isinstance(at, int | Integral) and not isinstance(at, bool):
        return int(at)
    # Digits alone may be meant as the number of a transaction, not as a year.
    read = in_utc if isinstance(at, str) and at.isdecimal() else start_of
    try:
        return read(cast("When", at))
    except InvalidValue:
        expected = "a transaction number, or a time such as 2026-11-20T12:00"
        raise wrong_value(at, expected, where, attribute_hint(at, "seq")) from None


def reread(read: Callable[P, R]) -> Callable[P, R]:
    """Return a function that reads history, and repeats the read after an error, unless the same error follows.

    Another process may forget or drop records during a read. Damaged history fails in the same way again.
    """

    @functools.wraps(read)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> R:
        message = ""
        while True:
            try:
                return read(*args, **kwargs)
            except HistoryPruned:
                raise
            except DocumentError as error:
                if str(error) == message:
                    raise
                message = str(error)

    return repeated


class PastTexts:
    """Reads past versions of one user's documents from history.

    Args:
        engine: Reads the current documents and the history.
        user_id: The user.
    """

    def __init__(self, engine: Engine, user_id: str) -> None:
        self.engine = engine
        self.user_id = user_id

    def kinds(self) -> list[str]:
        """Return the names of all documents that exist, or existed in the kept history."""
        known = self.timeline().kinds()
        known.update(self.engine.backend.kinds(self.user_id))
        return [*(kind for kind in _FIRST if kind in known), *sorted(known.difference(_FIRST))]

    def timeline(self) -> Timeline:
        """Return the user's history."""
        return Timeline(self.engine.backend, self.user_id)

    def newest(self) -> int:
        """Return the number of the newest transaction; 0 if there is none."""
        backend = self.engine.backend
        backend.token(self.user_id, _FIRST[0])  # this call completes the recovery after a crash
        return next_sequence(backend.last_record(self.user_id)) - 1

    def texts(self, at: Point, kinds: Collection[str], where: str = "at") -> dict[str, str]:
        """Return the texts of documents at a point of history."""
        now: dict[str, str] = {}
        with self.engine.reading():
            for kind in kinds:
                # An unreadable file is not needed, because history has its text.
                with suppress(DocumentError):
                    known = self.engine.load(self.user_id, kind)
                    if known is not None and (known.is_logged or known.logged is not None):
                        now[kind] = (known.logged or known.document).text
        return self.timeline().texts(kinds, self.sequence(at, where), now)

    def sequence(self, at: Point, where: str = "at") -> int:
        """Return the number of the last transaction up to a point of history.

        Raises:
            InvalidValue: `at` is not a point of history, or there is no such transaction.
        """
        point = point_of(at, where)
        if isinstance(point, datetime):
            return self.timeline().sequence_at(point, self.newest())
        newest = self.newest()
        if not 0 <= point <= newest:
            raise InvalidValue(
                f"there is no transaction {printed(point)}; the newest is {newest}.", where=where
            )
        return point


class PastDocuments:
    """Reads documents in their state after a transaction.

    Args:
        past: The user's history.
        seq: The number of the transaction.
        kinds: The names of the user's documents, including removed ones.
        moment: The time to use as the current time.
    """

    def __init__(self, past: PastTexts, seq: int, kinds: list[str], moment: datetime) -> None:
        self._past = past
        self._documents: dict[str, Document] = {}
        self.kinds = kinds
        self.moment = moment
        self.seq = seq

    def document(self, kind: str) -> Document:
        """Return a document as it was; empty if it did not exist."""
        if kind not in self.kinds:
            return NOTHING
        if kind not in self._documents:
            # Each read goes through history, so it reads as many documents in advance as were read before.
            waiting = [each for each in self.kinds if each == kind or each not in self._documents]
            at = waiting.index(kind)
            with suppress(DocumentError):  # perhaps of another document
                self.read(waiting[at : at + max(1, len(self._documents))])
            if kind not in self._documents:
                self.read([kind])
        return self._documents[kind]

    def entries(self, kind: str) -> Document:
        """Return all entries of a kind as one document."""
        return entries_of(kind, self.kinds, self.document)

    @reread
    def read(self, kinds: Collection[str]) -> None:
        """Read documents in advance."""
        texts = self._past.texts(self.seq, kinds)
        self._documents.update({kind: Document.parse(text) for kind, text in texts.items()})

    def refusal(self) -> DiaryError:
        """Return the error for a write or a history query on this past state."""
        return DiaryError(
            f"this is the memory as it was after transaction {self.seq}; it cannot be changed and has no history."
            " Use diary.user(…) for the current memory."
        )
