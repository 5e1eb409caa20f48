"""Collections of entries, which indexes follow from version to version.

A collection has parts, such as its documents. Unchanged parts and entries are the same objects in the next version,
so an index that follows a collection reads only the changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from datetime import date


KEPT = 1000
"""The number of indexes that are kept for collections that a search leaves out."""


class Searchable(Protocol):
    """An entry of an index, compared by identity."""

    @property
    def key(self) -> str:
        """Its key in the collection."""
        ...

    @property
    def order(self) -> tuple[Any, ...]:
        """The sort key of entries with equal scores."""
        ...

    @property
    def searched_text(self) -> str:
        """The text to search."""
        ...

    @property
    def searched_names(self) -> str:
        """Names that also match the entry, such as its category; they do not count for its length."""
        ...

    @property
    def day(self) -> date | None:
        """The day of its last change in UTC, which a question may name."""
        ...

    @property
    def turn(self) -> tuple[str, str] | None:
        """The session of a turn, and its position as sortable text; None if the entry is not a turn."""
        ...


S_co = TypeVar("S_co", bound=Searchable, covariant=True)


class Part(Protocol[S_co]):
    """Some entries of a collection. Immutable."""

    @property
    def entries(self) -> Mapping[str, S_co]:
        """The entries by key."""
        ...


class Collection(Protocol[S_co]):
    """One version of a group of entries. Immutable."""

    @property
    def namespace(self) -> Hashable:
        """The name of the group, which is the same in every version."""
        ...

    @property
    def searched(self) -> Mapping[str, Part[S_co]]:
        """Its parts by name."""
        ...

    def get(self, key: str) -> S_co | None:
        """Return the entry with a key, or None."""
        ...


E = TypeVar("E", bound=Searchable)
C = TypeVar("C", bound=Collection[Any])


def changes(before: Mapping[str, Part[E]], now: Mapping[str, Part[E]]) -> tuple[list[E], list[E]]:
    """Return the entries that were removed from the parts of a version, and those that were added."""
    gone: dict[E, None] = {}
    come: dict[E, None] = {}
    for name in {**before, **now}:
        one, other = before.get(name), now.get(name)
        if one is other:
            continue
        old: Mapping[str, E] = one.entries if one is not None else {}
        new: Mapping[str, E] = other.entries if other is not None else {}
        gone.update((entry, None) for key, entry in old.items() if new.get(key) is not entry)
        come.update((entry, None) for key, entry in new.items() if old.get(key) is not entry)
    # An entry may have moved to another part.
    return (
        [entry for entry in gone if entry not in come],
        [entry for entry in come if entry not in gone],
    )
