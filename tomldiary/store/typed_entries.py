"""Reads and writes typed entries as plain values by collection and key, which `entries.kinds.collections` describes."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from tomldiary.entries.kind import Collected, Listed, Rules, Tables
from tomldiary.entries.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tomldiary.diary import Diary
    from tomldiary.engine.transaction import Transaction

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
