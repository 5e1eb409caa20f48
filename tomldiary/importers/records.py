"""The records of a source, in five kinds, and the counts of skipped content."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = ["Block", "Episode", "Fact", "Found", "Item", "Note", "Record"]


@dataclass(frozen=True, slots=True)
class Note:
    """One remembered sentence. It becomes a preference, whose id is derived from `id`."""

    id: str
    text: str
    category: str = ""
    """The category in the source, which is used if the preference table has it."""
    labels: tuple[str, ...] = ()
    when: datetime | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A named text. It becomes a block."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """Typed fields. They become a fact of the type."""

    type: str
    data: Mapping[str, Any]
    session: str = ""
    confidence: float = 1.0
    when: datetime | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """The verbatim text of one turn. It becomes an episode."""

    input: str
    output: str
    session: str
    when: datetime | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """A value in a namespace. It becomes an item."""

    namespace: tuple[str, ...]
    key: str
    value: Mapping[str, Any]
    times: tuple[datetime, datetime] | None = None
    """The times of creation and of the last update."""
    ttl: float | None = None
    """The lifetime in minutes after the import and after each read; None is unlimited."""


Record: TypeAlias = Note | Block | Fact | Episode | Item


@dataclass(slots=True)
class Found:
    """The memory of one user in a source.

    place    : the file, folder or address of the source
    user     : the user's id in the source
    records  : the records, in the order of the source
    left_out : the numbers of skipped values, by a phrase such as "embedding"
    users    : the other users with records in the source
    documents: the documents of a diary, which are imported unchanged
    temporal : the types of facts with intervals, and the fields that identify a fact
    """

    place: str
    user: str
    records: list[Record] = field(default_factory=list[Record])
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    users: set[str] = field(default_factory=set[str])
    documents: dict[str, str] = field(default_factory=dict[str, str])
    temporal: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def leave_out(self, phrase: str, count: int = 1) -> None:
        """Count content that is not imported."""
        if count:
            self.left_out[phrase] = self.left_out.get(phrase, 0) + count
