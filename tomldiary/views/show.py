"""Renders an object as HTML or as text, with the function that makes its sheet."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tomldiary.errors import DiaryError
from tomldiary.views.html import page
from tomldiary.views.plain import card, line
from tomldiary.views.sheet import Badge, Sheet

__all__ = ["MAKERS", "as_html", "as_text", "sheet_of"]

MAKERS: dict[str, str] = {
    "Accessor": "memory:accessor",
    "Applied": "reports:applied",
    "Changes": "history:changes",
    "Consolidated": "reports:consolidated",
    "ConversationItem": "entries:conversation",
    "ConversationItems": "entries:conversations",
    "Diary": "memory:diary",
    "Difference": "history:difference",
    "Differences": "history:differences",
    "Episode": "entries:episode",
    "Episodes": "entries:episodes",
    "Fact": "entries:fact",
    "FactList": "entries:facts",
    "Finding": "reports:finding",
    "Findings": "reports:findings",
    "ForgetReceipt": "reports:forget_receipt",
    "Health": "reports:health",
    "HistoryEntry": "history:change",
    "Hit": "entries:hit",
    "Hits": "entries:hits",
    "Import": "reports:imported",
    "IngestReport": "reports:ingest_report",
    "ItemValues": "entries:items",
    "KeptHistory": "reports:kept_history",
    "Match": "entries:match",
    "Matches": "entries:matches",
    "MemoryWriter": "reports:writer",
    "Origin": "history:origin",
    "PendingChange": "history:pending_change",
    "PendingChanges": "history:pending_changes",
    "PreferenceItem": "entries:preference",
    "PreferenceItems": "entries:preferences",
    "PreferenceTables": "entries:preference_tables",
    "Receipt": "reports:receipt",
    "Report": "reports:evaluation",
    "Rollback": "reports:rollback",
    "Run": "reports:evaluation_run",
    "StorageStats": "reports:storage_stats",
    "TextBlock": "entries:block",
    "TextBlocks": "entries:blocks",
    "UserDiary": "memory:user",
    "Users": "memory:users",
    "WriterStats": "reports:writer_stats",
}
"""The maker of each class, as `module:function`; a subclass is shown like its base."""


def sheet_of(shown: Any) -> Sheet:
    """Return the sheet of an object.

    Raises:
        TypeError: There is no view for objects of this class.
    """
    for kind in type(shown).__mro__:
        maker = MAKERS.get(kind.__name__)
        if maker is not None:
            module, _, function = maker.partition(":")
            try:
                return getattr(import_module(f"tomldiary.views.{module}"), function)(shown)
            except DiaryError as error:  # only views of a diary and of a user read the storage
                return Sheet(repr(shown), [], [str(error)], badges=[Badge("cannot be read", "bad")])
    raise TypeError(f"there is no view of {type(shown).__name__}.")


def as_html(shown: Any) -> str:
    """Return an object as HTML that needs no script; stored text in it is escaped."""
    return page(sheet_of(shown))


def as_text(shown: Any) -> str:
    """Return an object as text without control characters: one line, or a table for a collection."""
    sheet = sheet_of(shown)
    return card(sheet) if sheet.line is None else line(type(shown).__name__, sheet.line)
