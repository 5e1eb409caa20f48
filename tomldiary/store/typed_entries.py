"""Reads and writes typed entries as plain values by collection and key, which `entries.kinds.collections` describes."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self

from tomldiary.entries.kind import Collected, Rules, Tables, Writing
from tomldiary.entries.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tomldiary.diary import Diary
    from tomldiary.engine.transaction import Transaction

Change = tuple[Collected, str, "dict[str, Any] | None"]
"""The collection, the key and the new value; None removes the entry."""


class TypedEntries:
    """The typed entries of one user, as stored or within a transaction.

    Args:
        rules: The categories, limits and types of facts, usually a diary.
        tables: Returns a document by name, or an edit of it; called once for each document.
        documents: Returns the names of the user's documents.
        session: The session that writes.
        tx: The transaction for writing; None for reading only.
        is_over: Returns whether an entry has expired by its key including the kind; None if entries do not expire.
    """

    def __init__(
        self,
        rules: Rules,
        tables: Callable[[str], Tables],
        documents: Callable[[], Iterable[str]],
        session: str = "",
        tx: Transaction | None = None,
        is_over: Callable[[str, Mapping[str, Any]], bool] | None = None,
    ) -> None:
        self._rules = rules
        self._is_over = is_over
        self._tx = tx
        self._tables = cache(tables)
        self._documents = documents
        self._session = session

    @classmethod
    def stored(cls, diary: Diary, user: str) -> Self:
        """Return a user's entries for reading; each document is read once."""
        engine, rules = diary.engine, diary.entry_rules
        is_over = rules.ends(engine.now())
        return cls(
            diary, partial(engine.readable, user), partial(engine.kinds, user), is_over=is_over
        )

    @classmethod
    def within(cls, diary: Diary, tx: Transaction, session: str = "") -> Self:
        """Return the entries of a transaction's user, for reading and writing."""
        return cls(diary, tx.entries, tx.listed, session, tx)

    def get(self, collection: Collected, key: str) -> Mapping[str, Any] | None:
        """Return an entry unchanged, or None; a temporal fact also by its singleton key."""
        kind = KINDS[collection[0]]
        for name in kind.documents_of(key, self._documents()):
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
        for name in kind.documents(self._documents()):
            for key, entry in kind.listed(self._tables(name), self._rules, collection):
                if not self._is_hidden(collection, key, entry):
                    yield key, entry

    def apply(self, changes: Iterable[Change], now: str) -> None:
        """Apply checked changes: removals first and new entries last, so that a full category has space.

        Raises:
            UnknownCategory, LimitReached, ImmutableEntry, InvalidValue: A rule forbids it; nothing may be committed.
        """
        late: list[tuple[Collected, str, dict[str, Any]]] = []
        for collection, key, value in changes:
            if value is None:
                self.delete(collection, key)
            else:
                late.append((collection, key, value))
        late.sort(key=lambda change: self.get(change[0], change[1]) is None)
        for collection, key, value in late:
            self.put(collection, key, value, now)

    def delete(self, collection: Collected, key: str) -> None:
        """Remove an entry if there is one."""
        if self.get(collection, key) is not None:
            KINDS[collection[0]].delete(self._writing(), collection, key)

    def put(self, collection: Collected, key: str, value: Mapping[str, Any], now: str) -> None:
        """Set an entry to a checked value; its count and its time of creation stay.

        Raises:
            UnknownCategory, LimitReached, ImmutableEntry, InvalidValue: A rule forbids it; nothing may be committed.
        """
        KINDS[collection[0]].put(self._writing(now), collection, key, value)

    def _writing(self, now: str = "") -> Writing:
        assert self._tx is not None  # noqa: S101 - made by `within`
        return self._tx.writing(self._rules, now, self._session)
