"""When an item of a store ends, as its deadlines say: `StoreSuite` asks for it."""

from __future__ import annotations


def expiry_of(store, namespace, key):
    """Return the time at which an item of a `DiaryStore` ends; None if it stays."""
    items = store._items
    owner = items._owners.owner(namespace, key)
    snapshot = items.catalog(owner).snapshot(namespace)
    return items.diary.engine.deadlines(owner).of(snapshot.base, snapshot.get(key))
