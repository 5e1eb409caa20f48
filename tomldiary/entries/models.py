"""The typed items that the public interface returns: preferences and conversations.

Field names are plain; in TOML the fields that the engine manages carry a leading underscore.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tomldiary.errors import InvalidValue
from tomldiary.runtime.views import DictView, Viewed

__all__ = [
    "FORMAT_VERSION",
    "ConversationItem",
    "ConversationItems",
    "MetaInfo",
    "PreferenceItem",
    "PreferenceItems",
    "PreferenceTables",
    "When",
    "in_utc",
    "moment",
    "timestamp",
]

FORMAT_VERSION = "0.3"
"""The version of the file format that is written; newer files are refused."""


When = datetime | date | str
"""A time or a date, also as ISO 8601 text. A time without a zone is in UTC."""


def moment(written: Any) -> datetime | None:
    """Return a time of type `When` in UTC, or None if it is invalid; a date means its start."""
    found = written
    try:
        if isinstance(found, str):
            found = datetime.fromisoformat(found)
        elif isinstance(found, date) and not isinstance(found, datetime):
            found = datetime.combine(found, time())
        if isinstance(found, datetime):
            # Without the methods of a subclass: a Timestamp of pandas writes nanoseconds, and NaT is no time.
            found = datetime.combine(found.date(), found.timetz())
            return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # not a time, or outside of the years 1 to 9999 in UTC
    return None


def in_utc(given: When, where: str = "") -> datetime:
    """Return a time of type `When` in UTC, like `moment`.

    Raises:
        InvalidValue: The value is not a time; the error begins with `where`.
    """
    found = moment(given)
    if found is None:
        raise InvalidValue(
            f"expected a time such as 2026-11-20T12:00, found {given!r}.", where=where
        )
    return found


def timestamp(now: When | None = None) -> str:
    """Return an ISO 8601 time in UTC with microseconds, as stored in the files."""
    when = datetime.now(UTC) if now is None else in_utc(now, "now")
    # The default format is faster, and omits the microseconds only if they are zero.
    return when.isoformat() if when.microsecond else when.isoformat(timespec="microseconds")


class PreferenceItem(Viewed, BaseModel):
    """One remembered preference or fact.

    text       : what was learned, in a few words
    contexts   : short labels of the situations it came up in
    count      : how often it was confirmed (`_count` in TOML, managed)
    created    : when it was first stored, ISO 8601 (`_created`, managed)
    updated    : when it last changed, ISO 8601 (`_updated`, managed)
    created_by : session that created it (`_created_by`, managed)
    updated_by : session that last changed it (`_updated_by`, managed)
    """

    model_config = ConfigDict(populate_by_name=True, defer_build=True)

    text: str
    contexts: list[str] = Field(default_factory=list[str])
    count: int = Field(default=1, alias="_count")
    created: str = Field(default_factory=timestamp, alias="_created")
    updated: str = Field(default_factory=timestamp, alias="_updated")
    created_by: str = Field(default="", alias="_created_by")
    updated_by: str = Field(default="", alias="_updated_by")


class ConversationItem(Viewed, BaseModel):
    """One conversation, as a rolling summary.

    created  : when the session began, ISO 8601 (`_created` in TOML, managed)
    updated  : when it last changed, ISO 8601 (`_updated`, managed)
    turns    : number of user and assistant pairs (`_turns`, managed)
    summary  : what was talked about so far
    keywords : the main topics
    """

    model_config = ConfigDict(populate_by_name=True, defer_build=True)

    created: str = Field(default_factory=timestamp, alias="_created")
    updated: str = Field(default_factory=timestamp, alias="_updated")
    turns: int = Field(default=0, alias="_turns")
    summary: str = ""
    keywords: list[str] = Field(default_factory=list[str])


class PreferenceItems(DictView[str, PreferenceItem]):
    """The preferences of a category by id."""

    __slots__ = ()


class PreferenceTables(DictView[str, PreferenceItems]):
    """The preferences of a user by category and id."""

    __slots__ = ()


class ConversationItems(DictView[str, ConversationItem]):
    """The conversations of a user by session id."""

    __slots__ = ()


class MetaInfo(BaseModel):
    """The `[_meta]` table at the head of a document."""

    model_config = ConfigDict(defer_build=True)

    version: str = FORMAT_VERSION
    schema_name: str = ""
