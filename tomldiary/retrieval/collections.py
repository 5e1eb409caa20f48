"""What indexes follow: entries in collections, and what changed from one version of a collection to the next.

A collection has parts, such as its documents. A part that did not change is the same object in the next version, and
so is an entry, so that an update reads only what changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

__all__ = ["Changes", "Collection", "Part", "Searchable", "changes"]


class Searchable(Protocol):
    """An entry as an index sees it: compared by identity."""

    @property
    def key(self) -> str:
        """Its key in the collection."""
        ...

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts entries of equal score."""
        ...

    @property
    def searched_text(self) -> str:
        """The text to search."""
        ...

    @property
    def searched_names(self) -> str:
        """Names that find the entry too, such as its category; they do not count as its length."""
        ...

    @property
    def turn(self) -> tuple[str, str] | None:
        """The session it is a turn of, and its place there as text that sorts; None if it is no turn."""
        ...


S_co = TypeVar("S_co", bound=Searchable, covariant=True)


class Part(Protocol[S_co]):
    """Some entries of a collection; an object that never changes."""

    @property
    def entries(self) -> Mapping[str, S_co]:
        """The entries by key."""
        ...


class Collection(Protocol[S_co]):
    """One version of a group of entries. Immutable."""

    @property
    def namespace(self) -> Hashable:
        """Names the group; the same in every version."""
        ...

    @property
    def searched(self) -> Mapping[str, Part[S_co]]:
        """Its parts by name."""
        ...

    def get(self, key: str) -> S_co | None:
        """Return the entry of a key."""
        ...


E = TypeVar("E", bound=Searchable)


class Changes(NamedTuple):
    """Entries by identity, from one version to the next."""

    gone: list[Any]
    come: list[Any]


def changes(before: Mapping[str, Part[E]], now: Mapping[str, Part[E]]) -> Changes:
    """Return which entries the parts of a version have no more, and which ones are new."""
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
    return Changes(
        [entry for entry in gone if entry not in come],
        [entry for entry in come if entry not in gone],
    )
