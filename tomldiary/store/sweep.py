"""Removing what has expired, as a transaction of its owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.engine.engine import Source
from tomldiary.store.writes import remove_items

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.engine.engine import Engine, Transaction
    from tomldiary.store.catalog import Catalog
    from tomldiary.store.namespaces import Namespace
    from tomldiary.store.ttl import Deadlines

__all__ = ["sweep"]


def sweep(engine: Engine, catalog: Catalog, deadlines: Deadlines, clock: Callable[[], int]) -> int:
    """Remove the items of a user whose time is over and return how many that were."""

    def over() -> dict[Namespace, list[str]]:
        now = clock()
        found: dict[Namespace, list[str]] = {}
        for snapshot in catalog.snapshots():
            keys = [
                entry.key
                for entry in snapshot.entries.values()
                if deadlines.is_over(snapshot.namespace, entry, now)
            ]
            if keys:
                found[snapshot.namespace] = keys
        return found

    if not over():
        return 0

    def write(tx: Transaction) -> int:
        # Looked at again under the lock: somebody may have put or read an item meanwhile.
        found = over()
        for namespace, keys in found.items():
            remove_items(tx, catalog, namespace, keys)
        return sum(map(len, found.values()))

    return engine.write(catalog.user, write, Source("expire", actor="store"))
