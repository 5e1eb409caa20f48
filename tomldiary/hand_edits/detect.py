"""Detects hand edits: classifies a document as unchanged, edited, being saved, or unparsable.

A hand edit starts from the version that the editor opened. `_meta.seq` names this base version, so the edit is
known exactly. A three-way merge combines it with the transactions since.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from tomldiary.entries.fields import toml_word
from tomldiary.entries.kinds import own_tables
from tomldiary.errors import DocumentError, NewerVersion
from tomldiary.hand_edits.three_way_merge import NOTHING, base_of_save, merge, written_number
from tomldiary.history.record import HistoryIndex, Latest
from tomldiary.history.timeline import EMPTY, Timeline
from tomldiary.logging import get_logger, tell
from tomldiary.storage.protocol import DetectsSaves, DocumentSource, Stored, Token
from tomldiary.toml.document import FORMAT_VERSION, Document

_logger = get_logger(__name__)
_META = re.compile(r"^\ufeff?[ \t]*(?=(?:\[\[[ \t]*)?[\"']?_meta\b)", re.MULTILINE)
# Python converts no text of more than 4300 digits.
_VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})*")
_YOUNG = 0.01  # seconds; a file changed within this time may change again without a new time stamp
_SETTLING = 1.0  # seconds; a file changed within this time that lost entries may be half saved


@dataclass(slots=True)
class Known:
    """One document as readers see it, and its relation to the file and to history."""

    token: Token
    """The version of the file that was read."""
    document: Document
    """The text of the file, or the merged text; the last good one if the file is unusable, half saved or outdated."""
    is_logged: bool
    """Whether history ends at exactly this text."""
    logged: Document | None = None
    """The document at the end of history, if a hand edit has changed the file since."""
    is_merged: bool = False
    """Whether the document is that hand edit merged with our writes, so that it differs from the file."""
    conflicts: list[str] = field(default_factory=list[str])
    """Tables in which the hand edit displaced our changes."""
    is_saved: bool = False
    """Whether history ends with a hand edit of this document."""
    before: Document | None = None
    """The document before the latest hand edits, once it was looked up, which reads all records since."""
    problem: DocumentError | None = None
    """The error of a file that cannot be used; the document is then the last good one."""
    is_settling: bool = False
    """Whether the file looks half saved; the document is then the last good one."""
    is_young: bool = False
    """Whether the file may change again without showing a new version."""
    is_reported: bool = False
    """Whether its forbidden hand edits were reported."""
    seen: int = -1
    """The number of the last transaction when this was read under the user's lock; -1 without the lock."""

    @property
    def is_edited(self) -> bool:
        """Whether there are hand edits since the last write."""
        return self.logged is not None or self.is_saved


def look(
    source: DocumentSource,
    user: str,
    kind: str,
    stored: Stored,
    cached: Known | None,
    index: HistoryIndex | None = None,
) -> Known:
    """Classify a stored text: unchanged, edited, being saved, or unusable.

    Args:
        source: The storage of the document and its history.
        user: The user.
        kind: The name of the document.
        stored: The text just read.
        cached: The previous result, to avoid repeated work.
        index: The index of the user's history, if several documents are classified.

    Raises:
        DocumentError: The text cannot be used, and history has no usable version either.
        NewerVersion: The document has a newer format.
    """
    place = source.place(user, kind)
    young = _age(stored.token) < _YOUNG
    timeline = Timeline(source, user)
    last = (index or HistoryIndex(source, user)).of(kind)
    is_saved = last is not None and last.type == "hand"
    as_logged = partial(Known, stored.token, is_logged=True, is_saved=is_saved, is_young=young)
    document, problem = _parsed(stored, place, cached)
    ours = None
    if last is not None and last.result != EMPTY:
        if problem is None and document.fingerprint == last.result:
            return as_logged(document)
        ours = _last_logged(timeline, kind, last.result, cached)
    if ours is None or last is None:
        if problem is not None:
            raise problem
        is_saved_now = is_being_saved(source, user, kind)
        return Known(
            stored.token,
            document,
            is_logged=False,
            is_settling=is_saved_now,
            is_young=young or is_saved_now,
        )
    good = as_logged(ours)
    if problem is not None:
        return _unusable(good, problem, cached)
    is_fresh = 0 <= _age(stored.token) < _SETTLING
    if is_fresh:
        # A header without values, which many programs leave out when they save, has no entry to lose.
        had = {path for path, values in own_tables(kind, ours).items() if values}
        if not had <= own_tables(kind, document).keys():
            return replace(good, is_settling=True, is_young=True)
    base = base_of_save(timeline, kind, document, ours, last)
    if base.text == document.text:
        if not _takes_back(document, ours, last, stored.token, timeline):
            return good  # not edited; the file only has an older version
        base = ours
    if is_being_saved(source, user, kind):
        return replace(good, is_settling=True, is_young=True)
    if is_blank(stored.text):
        return _unusable(good, emptied(place), cached)
    return _merged(kind, good, base, document)


def _takes_back(
    document: Document, ours: Document, last: Latest, token: Token, timeline: Timeline
) -> bool:
    """Return whether a file with an older version was saved after the hand edits since then were logged.

    A file that was never updated is older than their record.
    """
    if last.type != "hand" or written_number(document) != written_number(ours):
        return False
    return time.time() - _age(token) > timeline.moment_of(last.seq).timestamp()


def _parsed(
    stored: Stored, place: str, cached: Known | None
) -> tuple[Document, DocumentError | None]:
    """Return a document, or an empty one with the error of its text.

    Raises:
        NewerVersion: The document has a newer format.
    """
    if stored.problem is not None:
        return NOTHING, stored.problem
    if (
        cached is not None
        and cached.is_logged
        and not cached.problem
        and cached.document.text == stored.text
    ):
        return cached.document, None
    try:
        document = Document.parse(stored.text, path=place)
        check_version(document, place)
    except NewerVersion:
        raise
    except DocumentError as error:
        return NOTHING, error
    return document, None


def _unusable(good: Known, problem: DocumentError, cached: Known | None) -> Known:
    if cached is None or str(cached.problem) != str(problem):
        # Log a problem once. Versions are not compared, because each write changes that of a broken file.
        tell(_logger, f"{problem} Reads return the last good state until then.")
    return replace(good, problem=problem)


def _merged(kind: str, good: Known, base: Document, saved: Document) -> Known:
    """Return a hand edit merged with the writes since its base; `good` is the end of history."""
    ours = good.document
    merged = merge(kind, base, ours, saved)
    result = merged.document.sharing_blocks_of(ours)
    if result.text == ours.text:
        # The merged edit is in history already; only the file was not replaced.
        return replace(good, is_merged=True)
    return replace(
        good,
        document=result,
        is_logged=False,
        logged=ours,
        is_merged=result.text != saved.text,
        conflicts=merged.conflicts,
    )


def is_being_saved(source: DocumentSource, user: str, kind: str) -> bool:
    """Return whether another program is saving a document, if the backend can detect it."""
    return isinstance(source, DetectsSaves) and source.is_being_saved(user, kind)


def is_blank(text: str) -> bool:
    """Return whether a text is empty, without even a comment."""
    return not text.strip("\ufeff \t\r\n")


def emptied(place: str) -> DocumentError:
    """Return the error for a file that was emptied."""
    return DocumentError(
        "the file was emptied, which counts as a failed save; history has its text. Undo it in your editor,"
        " or remove the file to delete all of it.",
        path=place,
    )


def _last_logged(
    timeline: Timeline, kind: str, wanted: str, cached: Known | None
) -> Document | None:
    """Return the document at the end of history, or None if history cannot be read."""
    if cached is not None:
        if cached.is_logged and cached.document.fingerprint == wanted:
            return cached.document
        if cached.logged is not None and cached.logged.fingerprint == wanted:
            return cached.logged
    try:
        return Document.parse(timeline.text(kind))
    except DocumentError as error:
        _logger.warning("history of %s cannot be read: %s", kind, type(error).__name__)
        return None


def _age(token: Token) -> float:
    """Return the age of a file's last change in seconds; infinite if its version token has no time."""
    if isinstance(token, tuple):
        return (time.time_ns() - token[0]) / 1e9  # pyright: ignore[reportUnknownVariableType] - a token of LocalBackend begins with the time
    return float("inf")


def check_version(document: Document, place: str) -> None:
    """Refuse a document whose `_meta` cannot be read.

    Raises:
        NewerVersion: The format is newer than this package; the error names both versions.
        DocumentError: `_meta` is not a table; the error has the line.
    """
    meta: Any = document.data.get("_meta", {})
    if not isinstance(meta, dict):
        before = _META.split(document.text, maxsplit=1)[0]
        raise DocumentError(
            f"_meta: expected a table, found {toml_word(meta)}. Write it as [_meta] or remove it.",
            path=place,
            line=before.count("\n") + 1,
        )
    version = cast("dict[str, Any]", meta).get("version", FORMAT_VERSION)
    is_version = _VERSION.fullmatch(str(version)) is not None
    if not is_version or _numbers(str(version)) > _numbers(FORMAT_VERSION):
        raise NewerVersion(
            f"this document has format version {version!r}; this package reads up to"
            f" {FORMAT_VERSION!r} and will not change it. Upgrade tomldiary-kit.",
            path=place,
        )


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
