"""Entries of a diary as values of a store, and back.

A value is an entry without the fields that begin with an underscore, which the diary keeps for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from tomldiary.conversations import Conversations
from tomldiary.errors import InvalidValue
from tomldiary.preferences import Preferences, entry_to_item
from tomldiary.schema import item_type
from tomldiary.toml.guards import MAX_DEPTH
from tomldiary.toml.values import NULL_FIELD, decode_nulls, encode_nulls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tomldiary.diary import Diary
    from tomldiary.engine import Transaction
    from tomldiary_langgraph.namespaces import Place

__all__ = ["Change", "apply_changes", "checked_value", "entry_times", "entry_value"]

Change = tuple["Place", str, "dict[str, Any] | None"]
"""Where, which key, and the new value; None removes the entry."""

_UNKNOWN = datetime.fromtimestamp(0, UTC)
_FIELDS = {"preferences": ("text", "contexts"), "conversations": ("summary", "keywords")}


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


def checked_value(place: Place, key: str, value: Any) -> dict[str, Any]:
    """Return a copy of a value that fits the place's schema.

    Raises:
        InvalidValue: The text is missing or no text, the labels are no list of text, or a field belongs
            to the diary; names the field in TOML words.
    """
    where = f"{place.category or place.kind}.{key}"
    if not isinstance(value, Mapping):
        raise InvalidValue(f"expected a table, found {_word(value)}.", where=where)
    copied: dict[str, Any] = _copied(value, where)
    text, labels = _FIELDS[place.kind]
    for name in copied:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise InvalidValue(f"expected text as a key, found {_word(name)}.", where=where)
        if name.startswith("_"):
            raise InvalidValue(
                "fields that begin with an underscore belong to the diary. Leave it out.",
                where=f"{where}.{name}",
            )
    if not isinstance(copied.get(text), str):
        raise InvalidValue(
            f"expected text, found {_word(copied.get(text))}.", where=f"{where}.{text}"
        )
    found = copied.setdefault(labels, [])
    if not isinstance(found, list):
        raise InvalidValue(
            f"expected a list of text, found {_word(found)}.", where=f"{where}.{labels}"
        )
    for number, label in enumerate(cast("list[Any]", found)):
        if not isinstance(label, str):
            raise InvalidValue(
                f"expected text, found {_word(label)}.", where=f"{where}.{labels}.{number}"
            )
    return copied


def apply_changes(tx: Transaction, diary: Diary, changes: Sequence[Change], now: str) -> None:
    """Apply checked changes to one user's documents: what leaves first, what is new last.

    Raises:
        UnknownCategory, LimitReached, InvalidValue: The diary's rules say no; nothing may be committed.
    """
    writers = {"preferences": _put_preference, "conversations": _put_conversation}
    late: list[Change] = []
    for place, key, value in changes:
        if value is None:
            _delete(tx, diary, place, key)
        else:
            late.append((place, key, value))
    late.sort(key=lambda change: not _exists(tx, diary, change[0], change[1]))
    for place, key, value in late:
        writers[place.kind](tx, diary, place, key, value or {}, now)


def _preferences(tx: Transaction, diary: Diary) -> Preferences:
    return Preferences(tx.edit("preferences"), diary.turn_rules.preferences)


def _conversations(tx: Transaction, diary: Diary) -> Conversations:
    return Conversations(tx.edit("conversations"), diary.max_conversations)


def _exists(tx: Transaction, diary: Diary, place: Place, key: str) -> bool:
    if place.category:
        return _preferences(tx, diary).find(place.category, key) is not None
    return _conversations(tx, diary).find(key) is not None


def _delete(tx: Transaction, diary: Diary, place: Place, key: str) -> None:
    if not _exists(tx, diary, place, key):
        return
    if place.category:
        _preferences(tx, diary).forget(place.category, key)
    else:
        _conversations(tx, diary).delete(key)


def _put_preference(
    tx: Transaction, diary: Diary, place: Place, key: str, value: dict[str, Any], now: str
) -> None:
    book = _preferences(tx, diary)
    where = f"{place.category}.{key}"
    outcome = book.upsert(
        place.category, key, value["text"], (), now=now, session="", count_up=False
    )
    if outcome.action == "merged":
        raise InvalidValue(
            f"{place.category}/{outcome.id} holds the same text. Put to that key, or change the text.",
            where=where,
        )
    if outcome.id != key:
        raise InvalidValue(
            "ids of the form pref001 are given out by the diary, and this one may have belonged to"
            " something forgotten. Choose another key.",
            where=where,
        )
    found = book.find(place.category, key)
    assert found is not None  # noqa: S101 - it was just stored
    path, entry = found
    data = {**value, "text": entry["text"]}
    try:
        entry_to_item(data, item_type(diary.pref_table_cls, place.category))
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidValue(
            f"{first['msg']}.", where=".".join(map(str, (where, *first["loc"])))
        ) from None
    tx.edit("preferences").put(path, _entry(data, entry, now) | {"_updated_by": ""})


def _put_conversation(
    tx: Transaction, diary: Diary, place: Place, key: str, value: dict[str, Any], now: str
) -> None:
    book = _conversations(tx, diary)
    book.ensure(key, now=now)
    book.set_summary(key, value["summary"], None, now=now)
    entry = book.find(key)
    assert entry is not None  # noqa: S101 - it was just stored
    data = {**value, "summary": entry["summary"]}
    tx.edit("conversations").put((place.kind, key), _entry(data, entry, now))


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
        return [_copied(item, where, depth + 1) for item in cast("list[Any]", value)]
    if isinstance(value, str):
        return str.__str__(value)
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value


def _word(value: Any) -> str:
    """Return what TOML calls a value of this type."""
    if value is None:
        return "nothing"
    words = {bool: "true or false", str: "text", int: "number", float: "number"}
    for kind, word in words.items():
        if isinstance(value, kind):
            return word
    if isinstance(value, Mapping):
        return "a table"
    return "a list" if isinstance(value, list | tuple) else type(value).__name__
