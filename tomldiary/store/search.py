"""How items are found: newest first, or best first by words or by vectors; filters come before the limit.

A query ranks and leaves nothing out: items that do not match come behind the matches, newest first, with
the score None. Programs that update memories look for candidates this way.
"""

from __future__ import annotations

import threading
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from sys import maxsize
from typing import TYPE_CHECKING

from tomldiary.engine.transaction import open_here
from tomldiary.errors import Forgotten
from tomldiary.retrieval.search import UserIndex
from tomldiary.retrieval.vector_index import Embedding, VectorIndex
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.lru import Recent
from tomldiary.storage.protocol import LocalFolder
from tomldiary.store.item import Entry, copied
from tomldiary.store.operations import Item, Search

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tomldiary.diary import Diary
    from tomldiary.identifiers.namespaces import Namespace
    from tomldiary.retrieval.filters import Predicate
    from tomldiary.store.snapshot import Snapshot, View

__all__ = ["Finder", "as_item"]

Found = tuple["float | None", "Snapshot", "Entry"]
Index = UserIndex["Snapshot", "Entry"]
_CACHED_USERS = 256


class Finder:
    """Searches namespaces, with indexes for the users asked about most recently.

    Args:
        diary: Whose storage; indexes are kept beside it.
        embedding: How texts become vectors; None searches by words.

    Raises:
        MissingExtra: There is an embedding, and numpy is not installed.
    """

    def __init__(self, diary: Diary, embedding: Embedding | None) -> None:
        self.embedding = embedding
        self._diary = diary
        backend = diary.engine.backend
        self._folder = backend if isinstance(backend, LocalFolder) else None
        self._lexical: Recent[str, tuple[int, Index]] = Recent(_CACHED_USERS)
        self._vectors: Recent[str, tuple[int, VectorIndex]] = Recent(_CACHED_USERS)
        self.renew()
        renew_after_fork(self)
        if embedding is not None:
            VectorIndex(embedding, None)  # says so now if it cannot work

    def renew(self) -> None:
        """Make a new lock."""
        self._guard = threading.Lock()

    def search(
        self,
        view: View,
        op: Search,
        snapshots: Sequence[Snapshot],
        vectors: Mapping[str, Sequence[float]],
    ) -> list[Item]:
        """Return one page of what an operation asks for."""
        fits = op.fits
        found = self._ranked(op.query, snapshots, vectors)
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
    ) -> Iterable[Found] | None:
        """Return items, best first; None if there is nothing to rank them by."""
        if not query or not query.strip():
            return None
        if self.embedding is None:
            return self._by_words(query, snapshots)
        return self._by_vectors(vectors[query], snapshots)

    def _by_words(self, query: str, snapshots: Sequence[Snapshot]) -> Iterable[Found] | None:
        several: list[Iterator[Found]] = []
        for user, mine in _by_user(snapshots).items():
            found = self._index(user).search(mine, query)
            if found is None:
                return None
            several.append(found)
        return _and_the_rest(_best_first(several), snapshots)

    def _by_vectors(self, query: Sequence[float], snapshots: Sequence[Snapshot]) -> Iterable[Found]:
        several: list[Iterator[Found]] = []
        without: list[tuple[Snapshot, Entry]] = []
        for user, mine in _by_user(snapshots).items():
            found, bare = self._vectors_of(user).ranked(mine, query)
            several.append(found)
            without += bare
        without.sort(key=lambda place: (place[1].order, place[0].namespace))
        return chain(_best_first(several), ((None, *place) for place in without))

    # Vectors

    def missing(
        self, texts: Mapping[str, Sequence[str]], searched: Sequence[Snapshot]
    ) -> dict[str, list[str]]:
        """Return the texts that have to be embedded first, by user.

        Args:
            texts: Texts that are about to be put, by user.
            searched: Namespaces that are about to be searched.
        """
        found = {user: self._vectors_of(user).missing(mine) for user, mine in texts.items()}
        for user, mine in _by_user(searched).items():
            known = found.setdefault(user, [])
            known += [
                text for text in self._vectors_of(user).missing_below(mine) if text not in known
            ]
        return {user: mine for user, mine in found.items() if mine}

    def epochs(self, users: Iterable[str]) -> dict[str, int]:
        """Return how often something of these users was forgotten."""
        return {user: self._diary.engine.backend.epoch(user) for user in users}

    def add(
        self, user: str, texts: Sequence[str], vectors: Sequence[Sequence[float]], epoch: int
    ) -> None:
        """Keep vectors of texts that were read before anything else was forgotten.

        Raises:
            Forgotten: Something of the user was forgotten since.
        """
        engine = self._diary.engine
        joined = open_here()
        if joined is not None and joined.is_joined_by(engine, user):
            self._vectors_of(user).add(texts, vectors)
            return
        with engine.backend.lock(user, engine.lock_timeout):
            if engine.backend.epoch(user) != epoch:
                raise Forgotten(
                    "something of this user was forgotten while texts were embedded, and these may hold"
                    " what was forgotten. Nothing was written; do it again if it is still wanted."
                )
            self._vectors_of(user).add(texts, vectors)

    def _vectors_of(self, user: str) -> VectorIndex:
        assert self.embedding is not None  # noqa: S101 - the callers looked
        epoch = self._diary.engine.backend.epoch(user)
        with self._guard:
            known = self._vectors.get(user)
            if known is None or known[0] != epoch:
                place = self._folder
                folder = place.index_folder(user) if place is not None else None
                files = place.files if place is not None else None
                known = (epoch, VectorIndex(self.embedding, folder, files))
            return self._vectors.keep(user, known)[1]

    def _index(self, user: str) -> Index:
        epoch = self._diary.engine.backend.epoch(user)
        with self._guard:
            known = self._lexical.get(user)
            if known is None or known[0] != epoch:
                known = (epoch, Index())  # what was forgotten is not kept in memory either
            return self._lexical.keep(user, known)[1]


def as_item(snapshot: Snapshot, entry: Entry, score: float | None = None) -> Item:
    """Return an item as it is handed out."""
    return Item(snapshot.namespace, entry.key, copied(entry.value), *entry.moments, score)


def _by_user(snapshots: Sequence[Snapshot]) -> dict[str, list[Snapshot]]:
    found: dict[str, list[Snapshot]] = {}
    for snapshot in snapshots:
        found.setdefault(snapshot.user, []).append(snapshot)
    return found


def _best_first(several: list[Iterator[Found]]) -> Iterable[Found]:
    if len(several) == 1:
        return several[0]
    return merge(*several, key=lambda found: -(found[0] or 0.0))


def _and_the_rest(found: Iterable[Found], snapshots: Sequence[Snapshot]) -> Iterator[Found]:
    """Yield matches, then the other items."""
    given: set[Entry] = set()
    for each in found:
        given.add(each[2])
        yield each
    yield from (each for each in _newest_first(snapshots, None) if each[2] not in given)


def _newest_first(snapshots: Sequence[Snapshot], fits: Predicate | None) -> Iterable[Found]:
    """Yield items of several namespaces in one order that never changes: newest first, key, namespace."""
    several = [_fitting(snapshot, fits) for snapshot in snapshots]
    if len(snapshots) == 1:
        return ((None, snapshots[0], entry) for entry in several[0])
    decorated = map(_decorated, snapshots, several)
    return ((None, found[1], found[2]) for found in merge(*decorated, key=itemgetter(0)))


def _fitting(snapshot: Snapshot, fits: Predicate | None) -> Iterable[Entry]:
    """Yield items, newest first; those that do not fit take no part in any sorting."""
    if fits is None:
        return snapshot.ordered
    return (entry for entry in snapshot.ordered if fits(entry.value))


def _decorated(
    snapshot: Snapshot, entries: Iterable[Entry]
) -> Iterator[tuple[tuple[int, str, Namespace], Snapshot, Entry]]:
    return (((*entry.order, snapshot.namespace), snapshot, entry) for entry in entries)
