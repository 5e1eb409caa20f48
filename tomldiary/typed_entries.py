"""Preferences and conversations as plain values by collection and key, for stores of other frameworks.

A collection is `("preferences", category)` or `("conversations",)`. A value is an entry without the
fields that begin with an underscore, which the diary keeps for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from tomldiary.constraints import toml_word
from tomldiary.conversations import Conversations
from tomldiary.errors import InvalidValue
from tomldiary.preferences import Preferences, entry_to_item
from tomldiary.schema import item_type
from tomldiary.toml.guards import MAX_DEPTH
from tomldiary.toml.values import NULL_FIELD, decode_nulls, encode_nulls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Self

    from tomldiary.diary import Diary
    from tomldiary.engine import Transaction
    from tomldiary.toml.document import Document, Overlay

__all__ = ["Change", "Collection", "TypedEntries", "checked_value", "entry_times", "entry_value"]

Collection = tuple[str, ...]
Change = tuple[Collection, str, "dict[str, Any] | None"]
"""Which collection and key, and the new value; None removes the entry."""

_UNKNOWN = datetime.fromtimestamp(0, UTC)
_FIELDS = {"preferences": ("text", "contexts"), "conversations": ("summary", "keywords")}


class TypedEntries:
    """The typed entries of one user: as they are stored, or within a transaction that changes them.

    Args:
        diary: Its rules hold: categories, limits, no text twice.
        tables: Returns the document of a kind, or an edit of it; asked once for each kind.
    """

    def __init__(self, diary: Diary, tables: Callable[[str], Document | Overlay]) -> None:
        self._diary = diary
        self._tables = tables

    @classmethod
    def stored(cls, diary: Diary, user: str) -> Self:
        """Return a user's entries for reading; a document stays as it was when it was first read."""
        return cls(diary, lambda kind: diary.engine.document(user, kind))

    @classmethod
    def within(cls, diary: Diary, tx: Transaction) -> Self:
        """Return the entries of a transaction's user, for reading and writing."""
        return cls(diary, tx.edit)

    # Reading

    def get(self, collection: Collection, key: str) -> Mapping[str, Any] | None:
        """Return an entry as it is in the file, or None."""
        if collection[0] == "conversations":
            return self._conversations.find(key)
        found = self._preferences.find(collection[1], key)
        return None if found is None else found[1]

    def entries(self, collection: Collection) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the entries of a collection by key, in the order of the file."""
        if collection[0] == "conversations":
            return self._conversations.entries()
        return self._preferences.entries(collection[1])

    @cached_property
    def _preferences(self) -> Preferences:
        return Preferences(self._tables("preferences"), self._diary.turn_rules.preferences)

    @cached_property
    def _conversations(self) -> Conversations:
        return Conversations(self._tables("conversations"), self._diary.max_conversations)

    # Writing

    def apply(self, changes: Iterable[Change], now: str) -> None:
        """Apply checked changes: what leaves first, what is new last, so that a full category has room.

        Raises:
            UnknownCategory, LimitReached, InvalidValue: The diary's rules say no; nothing may be committed.
        """
        late: list[tuple[Collection, str, dict[str, Any]]] = []
        for collection, key, value in changes:
            if value is None:
                self.delete(collection, key)
            else:
                late.append((collection, key, value))
        late.sort(key=lambda change: self.get(change[0], change[1]) is None)
        for collection, key, value in late:
            self.put(collection, key, value, now)

    def delete(self, collection: Collection, key: str) -> None:
        """Remove an entry if there is one."""
        if self.get(collection, key) is None:
            return
        if collection[0] == "conversations":
            self._conversations.delete(key)
        else:
            self._preferences.forget(collection[1], key)

    def put(self, collection: Collection, key: str, value: Mapping[str, Any], now: str) -> None:
        """Make an entry hold exactly a checked value; its counter and the date it was created stay.

        Raises:
            UnknownCategory, LimitReached, InvalidValue: The diary's rules say no; nothing may be committed.
        """
        if collection[0] == "conversations":
            self._put_conversation(key, value, now)
        else:
            self._put_preference(collection[1], key, value, now)

    def _put_preference(self, category: str, key: str, value: Mapping[str, Any], now: str) -> None:
        book = self._preferences
        where = f"{category}.{key}"
        outcome = book.upsert(category, key, value["text"], (), now=now, session="", count_up=False)
        if outcome.action == "merged":
            raise InvalidValue(
                f"{category}/{outcome.id} holds the same text. Put to that key, or change the text.",
                where=where,
            )
        if outcome.id != key:
            raise InvalidValue(
                "ids of the form pref001 are given out by the diary, and this one may have belonged"
                " to something forgotten. Choose another key.",
                where=where,
            )
        found = book.find(category, key)
        assert found is not None  # noqa: S101 - it was just stored
        path, entry = found
        data = {**value, "text": entry["text"]}
        try:
            entry_to_item(data, item_type(self._diary.pref_table_cls, category))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, (where, *first["loc"])))
            raise InvalidValue(f"{first['msg']}.", where=place) from None
        self._edit("preferences").put(path, _entry(data, entry, now) | {"_updated_by": ""})

    def _put_conversation(self, key: str, value: Mapping[str, Any], now: str) -> None:
        book = self._conversations
        book.ensure(key, now=now)
        book.set_summary(key, value["summary"], None, now=now)
        entry = book.find(key)
        assert entry is not None  # noqa: S101 - it was just stored
        data = {**value, "summary": entry["summary"]}
        self._edit("conversations").put(("conversations", key), _entry(data, entry, now))

    def _edit(self, kind: str) -> Overlay:
        return cast("Overlay", self._tables(kind))


def entry_value(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's data as a value of the caller's own."""
    return {
        key: _copied(value) for key, value in decode_nulls(entry).items() if not key.startswith("_")
    }


def entry_times(entry: Mapping[str, Any]) -> tuple[datetime, datetime]:
    """Return when an entry was created and last changed, in UTC; 1970 if nothing in it says so."""
    created, updated = _moment(entry.get("_created")), _moment(entry.get("_updated"))
    return created or updated or _UNKNOWN, updated or created or _UNKNOWN


def _moment(written: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(written))
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def checked_value(collection: Collection, key: str, value: Any) -> dict[str, Any]:
    """Return a copy of a value that fits its collection.

    Raises:
        InvalidValue: The text is missing or no text, the labels are no list of text, or a field belongs
            to the diary; names the field in TOML words.
    """
    where = f"{collection[-1]}.{key}"
    if not isinstance(value, Mapping):
        raise InvalidValue(f"expected a table, found {toml_word(value)}.", where=where)
    copied: dict[str, Any] = _copied(value, where)
    for name in copied:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise InvalidValue(f"expected text as a key, found {toml_word(name)}.", where=where)
        if name.startswith("_"):
            raise InvalidValue(
                "fields that begin with an underscore belong to the diary. Leave it out.",
                where=f"{where}.{name}",
            )
    text, labels = _FIELDS[collection[0]]
    _check_text(copied.get(text), f"{where}.{text}")
    found = copied.setdefault(labels, [])
    if not isinstance(found, list):
        raise InvalidValue(
            f"expected a list of text, found {toml_word(found)}.", where=f"{where}.{labels}"
        )
    for number, label in enumerate(cast("Sequence[Any]", found)):
        _check_text(label, f"{where}.{labels}.{number}")
    return copied


def _check_text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise InvalidValue(f"expected text, found {toml_word(value)}.", where=where)


def _entry(data: dict[str, Any], old: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return an entry with new data and the managed fields of the old one."""
    kept = {key: item for key, item in old.items() if key.startswith("_") and key != NULL_FIELD}
    kept["_updated"] = max(now, str(old.get("_updated", "")))
    return encode_nulls({**data, **kept})


def _copied(value: Any, where: str = "", depth: int = 0) -> Any:
    """Copy tables and lists, and take text and numbers out of their subclasses: files have only these."""
    if depth > MAX_DEPTH:  # also where a value contains itself
        raise InvalidValue(f"nested deeper than {MAX_DEPTH}. Flatten it.", where=where)
    if isinstance(value, Mapping):
        table = cast("Mapping[Any, Any]", value)
        return {key: _copied(item, where, depth + 1) for key, item in table.items()}
    if isinstance(value, list | tuple):
        return [_copied(item, where, depth + 1) for item in cast("Sequence[Any]", value)]
    if isinstance(value, str):
        return str.__str__(value)
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value
