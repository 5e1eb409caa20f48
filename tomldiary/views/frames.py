"""Lists of entries, hits and changes as pandas DataFrames, one row each."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from tomldiary.entries.models import PreferenceItem
from tomldiary.errors import MissingExtra
from tomldiary.views.entries import own_fields
from tomldiary.views.history import text_of, verb_of
from tomldiary.views.memory import summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tomldiary.diary import Diary
    from tomldiary.entries.kinds.pending import PendingChange
    from tomldiary.history.queries import Difference, HistoryEntry
    from tomldiary.user.recall import Hit

__all__ = ["frame"]

_Row = dict[str, Any]
_TIMES = ("time", "created", "updated", "last_write", "valid_from", "valid_to")
_KINDS = ("preferences", "conversations", "facts", "blocks", "episodes", "items")


def frame(shown: Any) -> Any:
    """Return a DataFrame of an object; an empty list has the same columns.

    Raises:
        MissingExtra: pandas is not installed.
        TypeError: Objects of this class cannot be converted.
    """
    try:
        pandas: Any = import_module("pandas")
    except ImportError:
        raise MissingExtra("A DataFrame", "notebook") from None
    for kind in type(shown).__mro__:
        known = _TABLES.get(kind.__name__)
        if known is not None:
            columns, rows_of = known
            rows = list(rows_of(shown))
            extra = [name for row in rows for name in row if name not in columns]
            found = pandas.DataFrame(rows, columns=[*columns, *dict.fromkeys(extra)])
            for name in _TIMES:
                # A field of the user's own class may have this name and another type.
                if name in columns:
                    found[name] = pandas.to_datetime(
                        found[name], utc=True, errors="coerce", format="ISO8601"
                    )
            return found
    # A dict of counters: one row for each name.
    return pandas.DataFrame({"name": list(shown), "value": list(shown.values())})


def _users(found: Sequence[str]) -> Iterable[_Row]:
    return ({"user": user} for user in found)


def _diary(found: Diary) -> Iterable[_Row]:
    for user in found.users():
        each = summary_of(found, user)
        yield {
            "user": user,
            "entries": each.counts.total(),
            **{kind: each.counts[kind] for kind in _KINDS},
            "transactions": each.transactions,
            "last_write": each.last_write or None,
        }


def _preference(category: str, key: str, item: PreferenceItem) -> _Row:
    named = {"category": category} if category else {}
    managed = {
        **named,
        "id": key,
        **{name: getattr(item, name) for name in PreferenceItem.model_fields},
    }
    if category:
        managed["full_key"] = f"{category}/{key}"
    return _beside(managed, own_fields(item))


def _beside(managed: _Row, own: _Row) -> _Row:
    """Return a row with the fields of the user's own class; if a name is taken, the column is `data.name`."""
    return {**managed, **{f"data.{name}" if name in managed else name: own[name] for name in own}}


def _preferences(found: Mapping[str, PreferenceItem]) -> Iterable[_Row]:
    return (_preference("", key, item) for key, item in found.items())


def _tables(found: Mapping[str, Mapping[str, PreferenceItem]]) -> Iterable[_Row]:
    return (
        _preference(name, key, item) for name, items in found.items() for key, item in items.items()
    )


def _change(entry: HistoryEntry | Difference | PendingChange) -> _Row:
    return {
        "change": verb_of(entry.before, entry.after),
        "key": entry.key,
        "old": text_of(entry.key, entry.before) or None,
        "new": text_of(entry.key, entry.after) or None,
        "before": entry.before,
        "after": entry.after,
    }


_WHO = ("seq", "time", "type", "session", "actor", "reason", "source")


def _changes(found: Iterable[HistoryEntry]) -> Iterable[_Row]:
    for entry in found:
        who = {name: getattr(entry, name) for name in _WHO}
        yield {**who, **_change(entry), "is_conflict": entry.is_conflict}


def _pending(found: Iterable[PendingChange]) -> Iterable[_Row]:
    for one in found:
        yield {"id": one.id, **{name: getattr(one, name) for name in _PENDING}, **_change(one)}


def _differences(found: Iterable[Difference]) -> Iterable[_Row]:
    return map(_change, found)


def _episodes(found: Iterable[Any]) -> Iterable[_Row]:
    return ({**asdict(each), "full_key": f"episodes/{each.id}"} for each in found)


def _matches(found: Iterable[Any]) -> Iterable[_Row]:
    return ({**asdict(each), "full_key": f"{each.category}/{each.id}"} for each in found)


def _records(found: Iterable[Any]) -> Iterable[_Row]:
    return map(asdict, found)


def _hits(found: Iterable[Hit]) -> Iterable[_Row]:
    return ({**asdict(hit), "full_key": hit.full_key} for hit in found)


def _facts(found: Iterable[Any]) -> Iterable[_Row]:
    for fact in found:
        data = fact.data.model_dump() if isinstance(fact.data, BaseModel) else {"data": fact.data}
        managed = {name: getattr(fact, name) for name in _FACT}
        yield _beside({**managed, "full_key": f"facts/{fact.id}"}, data)


def _items(found: Mapping[str, _Row]) -> Iterable[_Row]:
    return (
        _beside({"key": key, "full_key": f"items/{key}"}, value) for key, value in found.items()
    )


def _blocks(found: Mapping[str, Any]) -> Iterable[_Row]:
    return (
        {"name": name, **asdict(block), "full_key": f"blocks/{name}"}
        for name, block in found.items()
    )


def _conversations(found: Mapping[str, BaseModel]) -> Iterable[_Row]:
    return (
        {"name": name, **item.model_dump(), "full_key": f"conversations/{name}"}
        for name, item in found.items()
    )


_ENTRY = ("id", *PreferenceItem.model_fields)
_FACT = ("id", "type", "created", "updated", "created_by", "updated_by", "source", "valid_from", "valid_to", "confidence")  # fmt: skip
_PENDING = ("created", "session", "origin", "reason", "expires")
_CHANGED = ("change", "key", "old", "new", "before", "after")
_TABLES: dict[str, tuple[tuple[str, ...], Callable[[Any], Iterable[_Row]]]] = {
    "Changes": ((*_WHO, *_CHANGED, "is_conflict"), _changes),
    "ConversationItems": (
        ("name", "created", "updated", "turns", "summary", "keywords", "full_key"),
        _conversations,
    ),
    "Diary": (("user", "entries", *_KINDS, "transactions", "last_write"), _diary),
    "Differences": (_CHANGED, _differences),
    "Episodes": (
        ("id", "input", "output", "session_id", "created", "steps", "source", "full_key"),
        _episodes,
    ),
    "Findings": (("level", "place", "message", "remedy"), _records),
    "FactList": ((*_FACT, "full_key"), _facts),
    "Hits": (
        ("kind", "key", "text", "score", "reasons", "created", "updated", "source", "full_key"),
        _hits,
    ),
    "ItemValues": (("key", "full_key"), _items),
    "Matches": (("category", "id", "text", "score", "conflict", "full_key"), _matches),
    "PendingChanges": (("id", *_PENDING, *_CHANGED), _pending),
    "PreferenceItems": (_ENTRY, _preferences),
    "PreferenceTables": (("category", *_ENTRY, "full_key"), _tables),
    "TextBlocks": (
        ("name", "text", "is_pinned", "created", "updated", "created_by", "updated_by", "full_key"),
        _blocks,
    ),
    "Users": (("user",), _users),
}
