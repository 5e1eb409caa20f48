"""The typed items that the public interface returns: preferences and conversations.

Field names are plain; in TOML the fields that the engine manages carry a leading underscore.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from tomldiary.runtime.views import DictView, Viewed
from tomldiary.toml.document import FORMAT_VERSION
from tomldiary.toml.values import timestamp

__all__ = [
    "FORMAT_VERSION",
    "ConversationItem",
    "ConversationItems",
    "MetaInfo",
    "PreferenceItem",
    "PreferenceItems",
    "PreferenceTables",
    "timestamp",
]


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


class PreferenceTables(DictView[str, PreferenceItems]):
    """The preferences of a user by category and id."""


class ConversationItems(DictView[str, ConversationItem]):
    """The conversations of a user by session id."""


class MetaInfo(BaseModel):
    """The `[_meta]` table at the head of a document."""

    model_config = ConfigDict(defer_build=True)

    version: str = FORMAT_VERSION
    schema_name: str = ""
