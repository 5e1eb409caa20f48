"""Putting and removing items inside a transaction: one table for each key, in documents of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.entries.kinds.parts import part_name, part_of
from tomldiary.identifiers.namespaces import kind_of
from tomldiary.store.item import table_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tomldiary.engine.transaction import Transaction
    from tomldiary.identifiers.namespaces import Namespace
    from tomldiary.store.catalog import Catalog
    from tomldiary.store.item import Clock
    from tomldiary.store.operations import Put
    from tomldiary.toml.edit import Edit

__all__ = ["LARGEST", "apply_puts", "remove_items"]

SMALL = 32 * 1024
LARGEST = 256 * 1024
"""Characters from which on a document takes no new item, at the least and at the most.

A put writes the whole document anew, so small ones make it quick; a read looks at every one of them, so there
are not too many.
"""
_SHARE = 16  # documents that a namespace of medium size is spread over
_AT_ONCE = 4  # times as much goes to a document that is written anyway
_TABLE = "items"


def apply_puts(
    tx: Transaction, catalog: Catalog, puts: Sequence[Put], clock: Clock, session: str
) -> None:
    """Apply checked puts, of which no two are about one item.

    Raises:
        InvalidValue: A document was edited by hand so that an item cannot be put; nothing may be committed.
    """
    by_namespace: dict[Namespace, list[Put]] = {}
    for put in puts:
        by_namespace.setdefault(put.namespace, []).append(put)
    for namespace, mine in by_namespace.items():
        target = _Target(tx, catalog, namespace, {put.key for put in mine})
        for put in mine:
            if put.value is None:
                target.remove(put.key)
            else:
                target.put(put.key, put.value, put, clock, session)


def remove_items(
    tx: Transaction, catalog: Catalog, namespace: Namespace, keys: Sequence[str]
) -> None:
    """Remove items, those of them that exist."""
    target = _Target(tx, catalog, namespace, set(keys))
    for key in keys:
        target.remove(key)


class _Target:
    """The documents of one namespace within a transaction that is about items of certain keys."""

    def __init__(
        self, tx: Transaction, catalog: Catalog, namespace: Namespace, keys: AbstractSet[str]
    ) -> None:
        self._tx = tx
        self._namespace = namespace
        self._base = kind_of(catalog.user, namespace)
        documents = catalog.documents(tx, namespace)
        self._stored: dict[str, Mapping[str, Any]] = {}
        self._holding: dict[str, Mapping[str, Any]] = {}
        """Those documents that hold one of the items."""
        self._sizes: dict[str, int] = {}
        for kind, document in documents.items():
            tables = self._stored[kind] = document.table((_TABLE,)) or {}
            if not tables.keys().isdisjoint(keys):
                self._holding[kind] = tables
            self._sizes[kind] = document.size
        self._edits: dict[str, Edit] = {}
        self._limit = min(LARGEST, max(SMALL, sum(self._sizes.values()) // _SHARE))
        self._most = min(LARGEST, _AT_ONCE * self._limit)

    def put(self, key: str, value: Mapping[str, Any], put: Put, clock: Clock, session: str) -> None:
        """Make an item hold exactly a value."""
        holders = self._holders(key)
        edit = self._tx.edit(holders[0]) if holders else None
        old = edit.table((_TABLE, key)) if edit is not None else None
        for other in holders[1:]:
            self._tx.edit(other).delete((_TABLE, key))  # a copy that a hand edit made
        table = table_of(value, old, now=clock.now(), ttl=put.ttl, index=put.index, session=session)
        kind = holders[0] if holders else self._roomy()
        before = self._put(kind, key, table, is_new=not holders)
        if before and self._is_overfull(kind, before, key):
            self._tx.edit(kind).delete((_TABLE, key))
            self._put(self._roomy(), key, table, is_new=True)

    def _put(self, kind: str, key: str, table: Mapping[str, Any], *, is_new: bool) -> int:
        """Write an item to a document and return how long it was there before."""
        edit = self._edits.get(kind) or self._open(kind)
        before = 0 if is_new else edit.length((_TABLE, key))
        edit.put((_TABLE, key), table)
        self._sizes[kind] = self._sizes.get(kind, 0) + edit.length((_TABLE, key)) - before
        return before

    def remove(self, key: str) -> None:
        """Remove an item if it exists."""
        for kind in self._holders(key):
            self._tx.edit(kind).delete((_TABLE, key))

    def _holders(self, key: str) -> list[str]:
        return [kind for kind, tables in self._holding.items() if key in tables]

    def _is_overfull(self, kind: str, before: int, key: str) -> bool:
        """Tell whether an item that has grown should leave a document that others are in too."""
        grown = self._tx.edit(kind).length((_TABLE, key)) > before
        return grown and self._sizes[kind] > 1.25 * LARGEST and len(self._stored.get(kind, ())) > 1

    def _roomy(self) -> str:
        """Return the document that takes a new item: the last one, else any half empty one, else a new one."""
        limit = self._limit
        for kind in reversed(self._sizes):
            if self._sizes[kind] < (self._most if kind in self._edits else limit):
                return kind
            limit = self._limit // 2
        last = next(reversed(self._sizes), None)
        kind = part_name(self._base, 1 if last is None else part_of(last)[1] + 1)
        self._sizes[kind] = 0
        return kind

    def _open(self, kind: str) -> Edit:
        edit = self._edits[kind] = self._tx.edit(kind)
        meta = edit.table(("_meta",)) or {}
        if "namespace" not in meta:
            edit.put(("_meta",), {**meta, "namespace": list(self._namespace)}, at_head=True)
        return edit
