"""The diary's typed entries as namespaces: `(user, "diary", "preferences", "likes")` and its like.

These are written by the diary's rules, not as items; a namespace with "diary" as its second label is
one of them or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from tomldiary.engine.transaction import open_here
from tomldiary.entries.collections import TypedEntries, collections
from tomldiary.entries.kinds import typed_kinds
from tomldiary.errors import InvalidValue
from tomldiary.store.item import Entry
from tomldiary.store.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tomldiary.diary import Diary
    from tomldiary.entries.collections import Collection
    from tomldiary.store.namespaces import Namespace

__all__ = ["MARK", "TypedNamespaces", "is_typed", "may_expire"]

MARK = "diary"
_MOST_USERS = 10_000  # remembered at once; a bound on memory, nothing depends on it
_PREFIX = 2  # labels in front of the collection: the user and the mark


def is_typed(namespace: Sequence[str]) -> bool:
    """Tell whether a namespace is kept for typed entries."""
    return len(namespace) >= _PREFIX and namespace[1] == MARK


def may_expire(namespace: object) -> bool:
    """Tell whether what is put to a namespace may have a time to live: entries of the diary have none."""
    return not (isinstance(namespace, tuple | list) and is_typed(cast("Sequence[str]", namespace)))


class TypedNamespaces:
    """The typed namespaces of all users of a diary."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._seen: dict[Namespace, Snapshot] = {}
        self._without: dict[str, Any] = {}
        """The times of the folders of users who had no typed entries then."""

    def collection(self, namespace: Namespace) -> Collection:
        """Return the collection that a typed namespace shows.

        Raises:
            InvalidValue: There is no such namespace; names those that exist.
        """
        found = tuple(namespace[_PREFIX:])
        if found in collections(self._diary):
            return found
        known = ", ".join(
            "(user, " + ", ".join(f'"{label}"' for label in (MARK, *each)) + ")"
            for each in collections(self._diary)
        )
        raise InvalidValue(
            f"there is no namespace {namespace!r}. With {MARK!r} as the second label there are {known}."
        )

    def check_prefix(self, prefix: Namespace) -> None:
        """Raise InvalidValue if no typed namespace could begin like this."""
        rest = prefix[_PREFIX:]
        if not any(each[: len(rest)] == rest for each in collections(self._diary)):
            self.collection(prefix)

    def find(self, namespace: Namespace, key: str) -> tuple[Snapshot, Entry | None]:
        """Return an entry of a typed namespace as it is now."""
        collection = self.collection(namespace)
        table = TypedEntries.stored(self._diary, namespace[0]).get(collection, key)
        entry = None if table is None else Entry(key, table)
        return Snapshot(namespace[0], namespace, entries={}), entry

    def snapshots(self, user: str, prefix: Namespace) -> list[Snapshot]:
        """Return the typed namespaces of a user that begin like this and hold something."""
        if not user or "." in user or "\0" in user:
            return []  # no label, so no host can name it
        if not self._has_documents(user):
            return []
        stored = TypedEntries.stored(self._diary, user)
        size = len(prefix)
        found = [
            self._snapshot(stored, (user, MARK, *each), each)
            for each in collections(self._diary)
            if (user, MARK, *each)[:size] == prefix
        ]
        return [each for each in found if each.entries]

    def _has_documents(self, user: str) -> bool:
        """Tell whether there can be any entry; a look at a handful of names is all most users need."""
        backend: Any = self._diary.engine.backend
        if not hasattr(backend, "tokens") or open_here() is not None:
            return True
        now = backend.folder_times(user, [""])
        if now is not None and now == self._without.get(user):
            return False  # nothing came into the folder since
        names = [kind.name for kind in typed_kinds()]
        if any(backend.tokens(user, names)):
            return True
        folders = backend.folder_times(user, names)
        if folders is None or any(folders):
            return True
        if len(self._without) > _MOST_USERS:
            self._without.clear()
        self._without[user] = now
        return False

    def _snapshot(
        self, stored: TypedEntries, namespace: Namespace, collection: Collection
    ) -> Snapshot:
        before = self._seen.get(namespace)
        known: Mapping[str, Entry] = before.entries if before is not None else {}
        entries: dict[str, Entry] = {}
        for key, table in stored.entries(collection):
            entry = known.get(key)
            entries[key] = (
                entry if entry is not None and entry.table is table else Entry(key, table)
            )
        if before is not None and len(known) == len(entries):
            same = zip(known.values(), entries.values(), strict=True)
            if all(one is other for one, other in same):
                return before
        made = self._seen[namespace] = Snapshot(namespace[0], namespace, entries=entries)
        return made
