"""What a source is read into: records of five kinds, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = ["Block", "Episode", "Fact", "Found", "Item", "Note", "Record"]


@dataclass(frozen=True, slots=True)
class Note:
    """One remembered sentence; becomes a preference with the id `id`."""

    id: str
    text: str
    category: str = ""
    """The source's own word for what it is about; used if the preference table has it."""
    labels: tuple[str, ...] = ()
    when: datetime | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A named text; becomes a block."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """Typed fields; becomes a fact of the type."""

    type: str
    data: Mapping[str, Any]
    session: str = ""
    confidence: float = 1.0
    when: datetime | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """One turn, word for word; becomes an episode."""

    input: str
    output: str
    session: str
    when: datetime | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """A value below a namespace; becomes an item of it."""

    namespace: tuple[str, ...]
    key: str
    value: Mapping[str, Any]
    times: tuple[datetime, datetime] | None = None
    """When it was created and updated."""
    ttl: float | None = None
    """How many minutes it lives from its import and from each read; None is for ever."""


Record: TypeAlias = Note | Block | Fact | Episode | Item


@dataclass(slots=True)
class Found:
    """What a source holds of one user.

    records  : in the order of the source
    left_out : how many of what there is no place for, by a phrase such as "embedding"
    users    : the other users whose records the source has too
    documents: documents of a diary, which are imported as they are
    temporal : types of facts with intervals, with the fields that tell their facts apart
    """

    records: list[Record] = field(default_factory=list[Record])
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    users: set[str] = field(default_factory=set[str])
    documents: dict[str, str] = field(default_factory=dict[str, str])
    temporal: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def leave_out(self, phrase: str, count: int = 1) -> None:
        """Count what is not carried over."""
        if count:
            self.left_out[phrase] = self.left_out.get(phrase, 0) + count
