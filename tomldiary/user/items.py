"""`alice.items`: the items that stores put in a user's namespaces; listed, and read, changed and removed by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from tomldiary.entries.fields import plain
from tomldiary.entries.kinds import ITEMS, find_entry
from tomldiary.entries.kinds.items import item_value
from tomldiary.errors import InvalidValue, UnknownEntry, missing_attribute
from tomldiary.history.record import Source
from tomldiary.runtime.async_bridge import async_twin
from tomldiary.runtime.views import DictView
from tomldiary.toml.values import checked_table, checked_text, copied, storable_copy
from tomldiary.user.context import DictAccessor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tomldiary.engine.transaction import Transaction
    from tomldiary.toml.document import Document, Path


_NAMES_OF_STORES = ("add", "aput", "put", "set")


class ItemValues(DictView[str, dict[str, Any]]):
    """The values of a user's items by key."""


class UserItems(DictAccessor[dict[str, Any]]):
    """The items of one user, as `alice.items`. A key is `namespace/key`, as shown by `recall`.

    A store puts new items. A key may begin with `items/`; if the namespace itself begins so, the key must, as listings
    show it. A slash in the item's own key is written `%2f`.
    `items()` is short for `items.list()`. Reads like a mapping from keys to values: `items["trips/porto"]`,
    `"trips/porto" in items`, `len(items)`, `for key, value in items.items()`.
    """

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            store = "put(namespace, key, value) of a store such as tomldiary_langgraph.DiaryStore"
            raise missing_attribute(self, name, store if name in _NAMES_OF_STORES else None)

    def __call__(self, namespace: str = "") -> ItemValues:
        """Return the values of items by key; see `list`."""
        return self.list(namespace)

    def list(self, namespace: str = "") -> ItemValues:
        """Return the values of items by key, without expired items.

        Args:
            namespace: The beginning of the keys, without the user: "trips" has the items of `("alice", "trips")` and of
                all namespaces below it. "" is all.
        """
        prefix = f"{namespace}/" if checked_text(namespace, "namespace") else ""
        found = self._unexpired(prefix)
        return ItemValues((key, copied(item_value(entry))) for key, entry in found.items())

    alist = async_twin(list)  # noqa: A003 - the method above

    def __len__(self) -> int:
        return len(self._unexpired())

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the value of an item, or None if it is missing or expired."""
        path = _known_path(key)
        if path is None:
            return None
        with self._context.reading():
            return self._found(path, self._context.kinds(), self._context.read)

    aget = async_twin(get)

    def update(
        self,
        key: str,
        changes: Mapping[str, Any],
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
    ) -> dict[str, Any]:
        """Change fields of an item and return its value. Its time to live restarts.

        Args:
            key: `namespace/key`.
            changes: New values by field; other fields are kept.
            session_id: Stored with the item and in history.
            actor: The author of the change, for history.
            reason: The reason for the change, for history.

        Raises:
            UnknownEntry: There is no such item.
            InvalidValue: A value cannot be stored. Nothing was changed.
        """
        path, fields = _path(key), _storable(changes, key)
        session_id = self._context.session(session_id)

        def change(tx: Transaction) -> dict[str, Any]:
            value = {**self._existing(tx, key, path), **fields}
            ITEMS.put(tx.writing(self._diary, session_id), path[:1], path[1], value)
            return value

        asked = (key, self._context.fingerprinted("", fields))
        why = Source("update_item", session_id, actor, reason, asked=asked)
        return self._context.write(change, why)

    aupdate = async_twin(update)

    def delete(
        self, key: str, *, session_id: str = "", actor: str = "", reason: str = ""
    ) -> dict[str, Any]:
        """Remove an item from its file and return its value. History keeps it.

        Raises:
            UnknownEntry: There is no such item.
        """
        path = _path(key)

        def change(tx: Transaction) -> dict[str, Any]:
            value = self._existing(tx, key, path)
            ITEMS.delete(tx.writing(self._diary), path[:1], path[1])
            return value

        why = Source("delete_item", session_id, actor, reason, asked=(key,))
        return self._context.write(change, why)

    adelete = async_twin(delete)

    def _unexpired(self, prefix: str = "") -> dict[str, Mapping[str, Any]]:
        """Return the tables of the items whose keys begin with `prefix`, by key."""
        found: dict[str, Mapping[str, Any]] = {}
        with self._context.reading():
            for name in ITEMS.documents(self._context.kinds()):
                document, kind = self._context.read(name), ITEMS.within(name)
                is_shown = self._current(name, document)
                for short, entry in kind.entries(document, self._diary):
                    full = f"{ITEMS.name}/{short}"
                    key = ITEMS.short_key(short)
                    if short.startswith(prefix) and key not in found and is_shown(full, entry):
                        found[key] = entry
        return found

    def _current(self, name: str, document: Document) -> Callable[[str, Mapping[str, Any]], bool]:
        """Return a function that returns whether an item of a document has not expired.

        It takes the key, which begins with `items/`, and the table.
        """
        context, at = self._context, self._context.moment(None)
        holds = ITEMS.within(name, context.until).current(document, context.diary, at)
        return lambda key, entry: (
            not context.is_over(key, entry) and (holds is None or holds(key, entry))
        )

    def _found(
        self, path: Path, listed: Iterable[str], read: Callable[[str], Document]
    ) -> dict[str, Any] | None:
        """Return a copy of the value of an item; None if it is missing or expired."""
        found = find_entry(path, listed, read)
        if found is None:
            return None
        name, _, entry = found
        is_shown = self._current(name, read(name))(ITEMS.key(path), entry)
        return copied(item_value(entry)) if is_shown else None

    def _existing(self, tx: Transaction, key: str, path: Path) -> dict[str, Any]:
        found = self._found(path, tx.listed(), tx.document)
        if found is None:
            raise self._unknown(key)
        return found

    def _unknown(self, id: str) -> UnknownEntry:  # noqa: A002 - as in the base class
        return UnknownEntry(ITEMS.key(_path(id)), "A hit of recall() has the key as `full_key`.")


def _storable(changes: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return fields as a put stores them, such as dates; other values, such as numbers of a DataFrame, as JSON."""
    fields: dict[str, Any] = {}
    for name, value in checked_table(changes, key).items():
        try:
            fields |= storable_copy({name: value}, key)
        except InvalidValue:
            fields |= storable_copy(plain({name: value}, key), key)
    return fields


def _known_path(key: str) -> Path | None:
    key = checked_text(key, "key")
    return ITEMS.path(key) or ITEMS.path(f"{ITEMS.name}/{key}")


def _path(key: str) -> Path:
    path = _known_path(key)
    if path is None:
        raise UnknownEntry(key, "The key of an item is items/namespace/key.")
    return path
