"""When an item of a store ends, as its deadlines say: `StoreSuite` asks for it."""

from __future__ import annotations

from tomldiary.store.operations import Owners
from tomldiary.store.store import ItemStore


def expiry_of(store, namespace, key, user_label=0):
    """Return the time at which an item of a `DiaryStore` ends; None if it stays."""
    owner = Owners(user_label).owner(namespace, key)
    snapshot = ItemStore(store.diary, user_label=user_label).catalog(owner).snapshot(namespace)
    entry = snapshot.get(key)
    return entry.expires and end_of(store.diary.engine.deadlines(owner), snapshot.base, entry)


def end_of(deadlines, base, entry):
    """Return the time at which an item with a time to live ends, after the reads that have refreshed it."""
    return max(entry.expires, deadlines.until(base, entry.key, entry.updated))
