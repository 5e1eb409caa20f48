"""Search of items: newest first, or best first by words or vectors. Filters apply before the limit.

A query ranks items but omits none: items that do not match follow the matches, newest first, with the score
None. Programs that update memories search for candidates this way.
"""

from __future__ import annotations

from heapq import merge
from itertools import islice
from sys import maxsize
from typing import TYPE_CHECKING

from tomldiary.retrieval.embedders import Vectors
from tomldiary.retrieval.lexical_index import UserIndex
from tomldiary.runtime.lru import PerUser
from tomldiary.store.operations import Item, Search
from tomldiary.toml.values import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tomldiary.diary import Diary
    from tomldiary.retrieval.filters import Predicate
    from tomldiary.retrieval.vector_index import Embedding
    from tomldiary.store.item import Entry
    from tomldiary.store.snapshot import Snapshot, View

Found = tuple["float | None", "Snapshot", "Entry"]
Index = UserIndex["Snapshot", "Entry"]


class Finder:
    """Searches namespaces, with cached indexes of the most recently searched users.

    Args:
        diary: The diary; indexes are stored next to its documents.
        embedding: The embedding of texts; None searches by words.
        stored: Returns all namespaces of a user.

    Raises:
        MissingExtra: There is an embedding, and numpy is not installed.
    """

    def __init__(
        self, diary: Diary, embedding: Embedding | None, stored: Callable[[str], Sequence[Snapshot]]
    ) -> None:
        self._diary = diary
        # Dropped after an erasure, so that erased text does not stay in memory.
        self._indexes = PerUser[Index](lambda _: UserIndex())
        self.vectors = None if embedding is None else Vectors(diary.engine, embedding, stored)
        """The vectors of the users; None searches by words."""

    def search(
        self,
        view: View,
        op: Search,
        snapshots: Sequence[Snapshot],
        vectors: Mapping[str, Sequence[float]],
        epochs: Mapping[str, int],
    ) -> list[Item]:
        """Return one page of the results of a search.

        `epochs` has the fencing token of each user, read before the `snapshots`; it may be empty without a query.
        """
        fits = op.fits
        found = self._ranked(op.query, snapshots, vectors, epochs)
        if found is None:
            found = _newest_first(snapshots, fits)
        elif fits is not None:
            found = (each for each in found if fits(each[2].value))
        shown = (each for each in found if view.is_shown(each[1], each[2]))
        page = list(islice(shown, min(op.offset, maxsize), min(op.offset + op.limit, maxsize)))
        if op.refresh:
            for _, snapshot, entry in page:
                view.read(snapshot, entry)
        return [as_item(snapshot, entry, score) for score, snapshot, entry in page]

    def _ranked(
        self,
        query: str | None,
        snapshots: Sequence[Snapshot],
        vectors: Mapping[str, Sequence[float]],
        epochs: Mapping[str, int],
    ) -> Iterable[Found] | None:
        """Return items, best first; None if the query cannot rank them."""
        if not query or not query.strip():
            return None
        if self.vectors is None:
            return self._by_words(query, snapshots, epochs)
        several = [
            self._indexes.of(user, epochs[user]).fused(
                mine, query, self.vectors.of(user).asked(vectors[query])
            )
            for user, mine in by_user(snapshots).items()
        ]
        ranked = merge(*several, key=lambda each: -each.rank)
        found = ((each.cosine, each.collection, each.entry) for each in ranked)
        return _matches_then_others(found, snapshots)

    def _by_words(
        self, query: str, snapshots: Sequence[Snapshot], epochs: Mapping[str, int]
    ) -> Iterable[Found] | None:
        several: list[Iterator[Found]] = []
        known = self._diary.embedder
        for user, mine in by_user(snapshots).items():
            asked = None if known is None else known.prepared(user, mine, query, epochs[user])
            found = self._indexes.of(user, epochs[user]).search(mine, query, asked)
            if found is None:
                return None
            several.append(found.matches)
        return _matches_then_others(merge(*several, key=lambda each: -(each[0] or 0.0)), snapshots)


def as_item(snapshot: Snapshot, entry: Entry, score: float | None = None) -> Item:
    """Return an item for the caller, with a copy of its value."""
    created, updated = entry.moments
    return Item(snapshot.namespace, entry.key, copied(entry.value), created, updated, score)


def by_user(snapshots: Sequence[Snapshot]) -> dict[str, list[Snapshot]]:
    """Return the snapshots of each user."""
    found: dict[str, list[Snapshot]] = {}
    for snapshot in snapshots:
        found.setdefault(snapshot.user, []).append(snapshot)
    return found


def _matches_then_others(found: Iterable[Found], snapshots: Sequence[Snapshot]) -> Iterator[Found]:
    """Yield matches, then the other items."""
    given: set[Entry] = set()
    for each in found:
        given.add(each[2])
        yield each
    yield from (each for each in _newest_first(snapshots, None) if each[2] not in given)


def _newest_first(snapshots: Sequence[Snapshot], fits: Predicate | None) -> Iterable[Found]:
    """Yield items of several namespaces in a stable order: newest first, then by key and namespace."""
    several = [_fitting(snapshot, fits) for snapshot in snapshots]
    return merge(*several, key=lambda found: (*found[2].order, found[1].namespace))


def _fitting(snapshot: Snapshot, fits: Predicate | None) -> Iterable[Found]:
    """Yield the items that match a filter, newest first; it filters before sorting."""
    return (
        (None, snapshot, entry) for entry in snapshot.ordered if fits is None or fits(entry.value)
    )
