"""The typed entries of a diary as namespaces, and as plain values by collection and key.

Namespaces such as `(user, "diary", "preferences", "likes")` contain typed entries, written under the diary's
rules. A namespace with "diary" as its second label is typed or does not exist. `entries.kinds.collections` describes
the values.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from tomldiary.entries.kind import Collected, Listed, Rules, Tables
from tomldiary.entries.kinds import KINDS, typed_kinds
from tomldiary.entries.kinds.collections import collections
from tomldiary.errors import InvalidValue
from tomldiary.runtime.lru import PerUser
from tomldiary.store.item import Entry
from tomldiary.store.operations import MARK
from tomldiary.store.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tomldiary.diary import Diary
    from tomldiary.engine.transaction import Transaction
    from tomldiary.identifiers.namespaces import Namespace

_MOST_USERS = 10_000  # the maximum number of cached users, to limit memory
_TYPED = {kind.name for kind in typed_kinds()}
_PREFIX = 2  # the labels before the collection: the user and "diary"
Change = tuple[Collected, str, "dict[str, Any] | None"]
"""The collection, the key and the new value; None removes the entry."""


class TypedEntries:
    """The typed entries of one user, as stored or within a transaction. Each document is read once.

    Args:
        diary: The diary, with its rules.
        user: The user.
        tx: The transaction for reading and writing; None reads the stored entries, without expired ones.
        session: The session that writes.
    """

    def __init__(
        self, diary: Diary, user: str, tx: Transaction | None = None, session: str = ""
    ) -> None:
        engine = diary.engine
        self._rules: Rules = diary
        self._tx = tx
        self._session = session
        # Keys begin with the kind.
        self._is_over = None if tx is not None else diary.entry_rules.ends(engine.now())
        tables: Callable[[str], Tables] = (
            partial(engine.readable, user) if tx is None else tx.entries
        )
        self._tables = cache(tables)
        self._documents = Listed(partial(engine.kinds, user) if tx is None else tx.listed)

    def get(self, collection: Collected, key: str) -> Mapping[str, Any] | None:
        """Return an entry unchanged, or None; a temporal fact also by its singleton key."""
        kind = KINDS[collection[0]]
        for name in kind.places((*collection, key), self._documents)[0]:
            found = kind.get(self._tables(name), self._rules, collection, key)
            if found is not None and not self._is_hidden(collection, key, found):
                return found
        return None

    def _is_hidden(self, collection: Collected, key: str, entry: Mapping[str, Any]) -> bool:
        return self._is_over is not None and self._is_over("/".join((*collection, key)), entry)

    def entries(self, collection: Collected) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the entries of a collection by key, in the order of the file.

        Temporal facts that do not hold now are omitted.
        """
        kind = KINDS[collection[0]]
        for name in kind.documents(self._documents):
            for key, entry in kind.listed(self._tables(name), self._rules, collection):
                if not self._is_hidden(collection, key, entry):
                    yield key, entry

    def apply(self, changes: Iterable[Change], now: str = "") -> None:
        """Apply checked changes: removals first and new entries last, so that a full category has space.

        The count and the time of creation of a changed entry stay. `now` is the time of the change; "" is this moment.

        Raises:
            UnknownCategory, LimitReached, ImmutableEntry, InvalidValue: A rule forbids it; nothing may be committed.
        """
        assert self._tx is not None  # noqa: S101 - a write without a transaction is a mistake of the caller
        writing = self._tx.writing(self._rules, self._session, now)
        late: list[tuple[Collected, str, dict[str, Any]]] = []
        for collection, key, value in changes:
            if value is not None:
                late.append((collection, key, value))
            elif self.get(collection, key) is not None:
                KINDS[collection[0]].delete(writing, collection, key)
        late.sort(key=lambda change: self.get(change[0], change[1]) is None)
        for collection, key, value in late:
            KINDS[collection[0]].put(writing, collection, key, value)


class _TypedEntry(Entry):
    """A typed entry as an item; its searched text is the same as for `recall`."""

    __slots__ = ("_kind", "_name")

    def __init__(self, collection: Collected, key: str, table: Mapping[str, Any]) -> None:
        super().__init__(key, table)
        self._kind = KINDS[collection[0]]
        self._name = "/".join((*collection[1:], key))

    @property
    def searched_text(self) -> str:
        return self._kind.body(self.table)

    @property
    def searched_names(self) -> str:
        return self._kind.names(self._name, self.table)

    @property
    def turn(self) -> tuple[str, str] | None:
        return self._kind.turn(self._name, self.table)


class TypedNamespaces:
    """The typed namespaces of all users of a diary."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._seen = PerUser[dict["Namespace", Snapshot]](lambda _: {})
        """The last snapshots of a user, from which unchanged entries are taken."""
        self._without: dict[str, list[str]] = {}
        """The documents of each user who had no typed entries; while nothing changes, the same list is returned."""

    def collection(self, namespace: Namespace) -> Collected:
        """Return the collection that a typed namespace shows.

        Raises:
            InvalidValue: The namespace does not exist; the message lists the existing ones.
        """
        found = tuple(namespace[_PREFIX:])
        if found in collections(self._diary):
            return found
        known = ", ".join(
            "(user, " + ", ".join(f'"{label}"' for label in (MARK, *each)) + ")"
            for each in collections(self._diary)
        )
        raise InvalidValue(
            f"there is no namespace {namespace!r}. The namespaces with {MARK!r} as the second label are {known}."
        )

    def check_prefix(self, prefix: Namespace) -> None:
        """Raise InvalidValue if no typed namespace begins with a prefix."""
        rest = prefix[_PREFIX:]
        if not any(each[: len(rest)] == rest for each in collections(self._diary)):
            self.collection(prefix)

    def find(self, namespace: Namespace, key: str) -> tuple[Snapshot, Entry | None]:
        """Return the namespace and the current entry with a key, or None for the entry."""
        collection = self.collection(namespace)
        table = TypedEntries(self._diary, namespace[0]).get(collection, key)
        entry = None if table is None else Entry(key, table)
        return Snapshot(namespace[0], namespace, entries={}), entry

    def snapshots(self, user: str, prefix: Namespace) -> list[Snapshot]:
        """Return the non-empty typed namespaces of a user that begin with a prefix."""
        if not user or "." in user or "\0" in user:
            return []  # no application can use it, because it is not a valid label
        if not self._has_documents(user):
            return []
        seen = self._seen.of(user, self._diary.engine.backend.epoch(user))
        stored = TypedEntries(self._diary, user)
        size = len(prefix)
        found = [
            _snapshot(seen, stored, (user, MARK, *each), each)
            for each in collections(self._diary)
            if (user, MARK, *each)[:size] == prefix
        ]
        return [each for each in found if each.entries]

    def _has_documents(self, user: str) -> bool:
        """Return whether the user has documents of typed entries, by their names."""
        kinds = self._diary.engine.listed(user, "")
        if kinds is self._without.get(user):
            return False
        if any(kind.partition("/")[0] in _TYPED for kind in kinds):
            return True
        if len(self._without) > _MOST_USERS:
            self._without.clear()
        self._without[user] = kinds
        return False


def _snapshot(
    seen: dict[Namespace, Snapshot],
    stored: TypedEntries,
    namespace: Namespace,
    collection: Collected,
) -> Snapshot:
    """Return the current snapshot of a namespace, which is the last one if nothing has changed."""
    before = seen.get(namespace)
    known: Mapping[str, Entry] = before.entries if before is not None else {}
    entries: dict[str, Entry] = {}
    for key, table in stored.entries(collection):
        entry = known.get(key)
        entries[key] = (
            entry
            if entry is not None and entry.table is table
            else _TypedEntry(collection, key, table)
        )
    if before is not None and known == entries:  # entries compare by identity
        return before
    made = seen[namespace] = Snapshot(namespace[0], namespace, entries=entries)
    return made
