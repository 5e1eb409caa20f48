"""Writes of items: one transaction for each user of a batch, in documents of limited size."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tomldiary.engine.transaction import Transaction
from tomldiary.history.record import Source
from tomldiary.identifiers.namespaces import Namespace, document_of
from tomldiary.runtime.async_bridge import scope_here
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.runtime.lru import RecentBySize
from tomldiary.store.catalog import Catalog, next_part
from tomldiary.store.item import IncreasingClock, table_of
from tomldiary.store.operations import Owners, Put, is_typed
from tomldiary.store.typed_entries import Change, TypedEntries, TypedNamespaces
from tomldiary.toml.edit import Edit
from tomldiary.user.pending.held import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tomldiary.diary import Diary
    from tomldiary.toml.document import Document

R = TypeVar("R")

# A document at its size limit accepts no new item. Small documents make puts fast, because a put rewrites the whole
# document. Few documents make reads fast, because a read checks each of them.
_LEAST = 4  # the divisor of `Engine.part_size`, the largest limit, that gives the smallest limit
_SHARE = 16  # the number of documents that a namespace of medium size is split into
_AT_ONCE = (
    4  # the limit is higher by this factor for a document that the transaction already changes
)
_TABLE = "items"

_CATALOG_SIZE = 1024  # the size of an empty catalog in memory, counted as characters


class ItemPuts:
    """The part of an `ItemStore` that writes. Thread-safe."""

    def __init__(self, diary: Diary, owners: Owners) -> None:
        self.diary = diary
        self._owners = owners
        self._typed = TypedNamespaces(diary)
        self._clock = IncreasingClock()
        self._catalogs: RecentBySize[str, Catalog] = RecentBySize(
            # The cache of documents has most of these documents too.
            diary.engine.cached_characters,
            lambda catalog: catalog.size + _CATALOG_SIZE,
        )
        self._latest: Catalog | None = None
        self._guard = fork_safe(threading.Lock())

    def catalog(self, user: str) -> Catalog:
        """Return the catalog of a user's namespaces."""
        with self._guard:
            latest, found = self._latest, self._catalogs.get(user)
            if latest is not None and latest is not found:
                self._catalogs.keep(latest.user, latest)  # its documents were read since
            if found is None:
                found = Catalog(self.diary.engine, user)
            self._catalogs.keep(user, found)
            self._latest = found
            return found

    def _write(self, puts: Sequence[Put], session: str) -> None:
        mine: dict[str, list[Put]] = {}
        last_of_each = {(put.namespace, put.key): put for put in puts}
        for put in last_of_each.values():
            mine.setdefault(self._owners.owner(put.namespace, put.key), []).append(put)
        if len(mine) > 1:
            # The users have separate transactions, so validate all of them before the first commit.
            engine = self.diary.engine
            for user, changes in mine.items():
                with engine.locked(user):
                    self._apply(Transaction(engine, user), changes, session)
        for user, changes in mine.items():
            apply = partial(self._apply, puts=changes, session=session)
            asked = tuple((put.namespace, put.key, put.value) for put in changes)
            self.commit(user, apply, Source("put", session, actor="store", asked=asked))

    def commit(self, user: str, change: Callable[[Transaction], R], source: Source) -> R:
        """Commit a change, or hold it for review if the user's open transaction has an untrusted actor."""
        engine = self.diary.engine
        origin = engine.actor_here(user)
        held = held_back(self.diary, user, change, source, origin) if origin else None
        return engine.write(user, held or change, source)

    def one_owner(self, namespaces: Iterable[Namespace]) -> str | None:
        """Return the one owner of all items if `arun` can run the operations, or None.

        Args:
            namespaces: The namespaces of the operations, not validated yet.
        """
        if scope_here() is not None:
            return None
        owners: set[str | None] = set()
        for labels in namespaces:
            # Typed entries are excluded, because finding one may require a listing of the folder.
            owner = self._owners.known_owner(labels)
            owners.add(owner if owner is not None and not is_typed(labels) else None)
        return owners.pop() if len(owners) == 1 else None

    def _apply(self, tx: Transaction, puts: Sequence[Put], session: str) -> None:
        """Apply validated puts, at most one for each item.

        Raises:
            InvalidValue: A hand edit prevents a put; the transaction must not be committed.
        """
        session = session or tx.session
        changes: list[Change] = []
        targets: dict[Namespace, _Target] = {}
        # An open transaction may continue after an error, which must undo the puts before it.
        with tx.nested(Source("put")) if tx.is_open else nullcontext():
            for put in puts:
                namespace = put.namespace
                target = targets.get(namespace)
                if target is None and is_typed(namespace):
                    changes.append((self._typed.collection(namespace), put.key, put.value))
                    continue
                if target is None:
                    target = targets[namespace] = _Target(tx, self.catalog(tx.user), namespace)
                target.put(put, self._clock, session)
            if changes:
                tx.stamped(
                    lambda tx: TypedEntries(self.diary, tx.user, tx, session).apply(changes),
                    "store",
                )


def remove_items(
    tx: Transaction, catalog: Catalog, namespace: Namespace, keys: Sequence[str]
) -> None:
    """Remove items; missing ones are ignored."""
    target = _Target(tx, catalog, namespace)
    for key in keys:
        target.remove(key)


class _Target:
    """The documents of one namespace within a transaction."""

    def __init__(self, tx: Transaction, catalog: Catalog, namespace: Namespace) -> None:
        self._tx = tx
        self._namespace = namespace
        self._base = document_of(catalog.user, namespace)
        self._documents: dict[str, Document | Edit] = {**catalog.documents(tx, namespace)}
        """The documents, or their edits if it has changed them."""
        self._tables = {
            kind: document.table((_TABLE,)) or {} for kind, document in self._documents.items()
        }
        """The stored tables of each document, by key."""
        size = sum(document.size for document in self._documents.values())
        self._largest = tx.engine.part_size
        self._limit = min(self._largest, max(self._largest // _LEAST, size // _SHARE))
        self._most = min(self._largest, _AT_ONCE * self._limit)

    def put(self, put: Put, clock: IncreasingClock, session: str) -> None:
        """Set the value of an item, or remove the item if the value is None."""
        if put.value is None:
            self.remove(put.key)
            return
        path, holders = (_TABLE, put.key), self._holders(put.key)
        kind = holders[0] if holders else self._document_with_room()
        edit = self._edit(kind)
        for other in holders[1:]:
            self._tx.edit(other).delete(path)  # a duplicate made by a hand edit
        old = edit.table(path) if holders else None
        table = table_of(put.value, put, old, now=clock.now(), session=session)
        before = edit.size
        edit.put(path, table)
        # Move a grown item out of a full document that also contains other items.
        is_full = holders and edit.size > 1.25 * self._largest
        if is_full and edit.size > before and len(self._tables[kind]) > 1:
            kind = self._document_with_room()  # before the item leaves room in this one
            edit.delete(path)
            self._edit(kind).put(path, table)

    def remove(self, key: str) -> None:
        """Remove an item if it exists."""
        for kind in self._holders(key):
            self._tx.edit(kind).delete((_TABLE, key))

    def _holders(self, key: str) -> list[str]:
        return [kind for kind, held in self._tables.items() if key in held]

    def _document_with_room(self) -> str:
        """Return the document for a new item: the last one, or one at most half full, or a new one."""
        limit = self._limit
        for kind, document in reversed(self._documents.items()):
            if document.size < (self._most if isinstance(document, Edit) else limit):
                return kind
            limit = self._limit // 2
        return next_part(self._base, list(self._documents))

    def _edit(self, kind: str) -> Edit:
        edit = self._documents.get(kind)
        if not isinstance(edit, Edit):
            edit = self._documents[kind] = self._tx.edit(kind)
            if "namespace" not in edit.meta:
                edit.set_meta(namespace=list(self._namespace))
        return edit
