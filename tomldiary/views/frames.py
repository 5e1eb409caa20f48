"""Lists of entries, hits and changes as pandas DataFrames, one row each."""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any

from tomldiary.doctor.files import Finding
from tomldiary.entries.facts import Fact
from tomldiary.entries.kinds import ITEMS, KINDS
from tomldiary.entries.kinds.blocks import TextBlock
from tomldiary.entries.kinds.episodes import Episode
from tomldiary.entries.models import ConversationItem, PreferenceItem
from tomldiary.runtime.installation import optional
from tomldiary.text.similarity import Match
from tomldiary.user.recall import Hit
from tomldiary.views.entries import own_fields
from tomldiary.views.history import text_of, verb_of
from tomldiary.views.memory import summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tomldiary.diary import Diary
    from tomldiary.entries.kinds.pending import PendingChange
    from tomldiary.past.queries import Difference, HistoryEntry

_Row = dict[str, Any]
_Table = tuple[tuple[str, ...], "Callable[[Any], Iterable[_Row]]"]
"""The columns, and the function that returns the rows of an object."""
_TIMES = ("time", "created", "updated", "last_write", "valid_from", "valid_to", "expires")
_KINDS = tuple(kind.name for kind in KINDS.values() if not kind.is_private)
_NUMBERS = {
    **dict.fromkeys(("confidence", "score"), float),
    **dict.fromkeys(("count", "entries", *_KINDS, "seq", "transactions", "turns"), int),
    **dict.fromkeys(("is_conflict", "is_pinned"), bool),
}


def frame(shown: Any) -> Any:
    """Return a DataFrame of an object; an empty list has the same columns, with the same types of numbers and times.

    Raises:
        MissingExtra: pandas is not installed.
        TypeError: Objects of this class cannot be converted.
    """
    pandas = optional("pandas", "A DataFrame", "notebook")
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
                    times = pandas.to_datetime(
                        found[name], utc=True, errors="coerce", format="ISO8601"
                    )
                    found[name] = times.dt.as_unit("us")
            if rows:
                return found
            return found.astype({name: _NUMBERS[name] for name in columns if name in _NUMBERS})
    # A dict of counters: one row for each name.
    return pandas.DataFrame({"name": list(shown), "value": list(shown.values())})


def _names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def _list_of(kind: type, full_key: Callable[[Any], str]) -> _Table:
    """Return the table of a list of dataclass objects: their fields, and the key in history."""
    return (*_names(kind), "full_key"), lambda found: (
        {**asdict(each), "full_key": full_key(each)} for each in found
    )


def _dict_of(names: Iterable[str], kind: str) -> _Table:
    """Return the table of a dict of entries: the name, their fields, and the key in history."""
    columns = tuple(names)
    return ("name", *columns, "full_key"), lambda found: (
        {
            "name": name,
            **{each: getattr(entry, each) for each in columns},
            "full_key": f"{kind}/{name}",
        }
        for name, entry in found.items()
    )


def _beside(managed: _Row, own: _Row) -> _Row:
    """Return a row with the fields of the user's own class; if a name is taken, the column is `data.name`."""
    return {**managed, **{f"data.{name}" if name in managed else name: own[name] for name in own}}


def _diary(found: Diary) -> Iterable[_Row]:
    for each in found.engine.of_each(found.users(), partial(summary_of, found)):
        yield {
            "user": each.user,
            "entries": each.counts.total(),
            **{kind: each.counts[kind] for kind in _KINDS},
            "transactions": each.transactions,
            "last_write": each.last_write or None,
        }


def _preference(key: str, item: PreferenceItem, **place: str) -> _Row:
    named = {name: getattr(item, name) for name in PreferenceItem.model_fields}
    return _beside({**place, "id": key, **named}, own_fields(item))


def _preference_tables(found: Mapping[str, Mapping[str, PreferenceItem]]) -> Iterable[_Row]:
    for category, items in found.items():
        for key, item in items.items():
            yield _preference(key, item, category=category, full_key=f"{category}/{key}")


def _change(entry: HistoryEntry | Difference | PendingChange) -> _Row:
    return {
        "change": verb_of(entry.before, entry.after),
        "key": entry.key,
        "old": text_of(entry.key, entry.before) or None,
        "new": text_of(entry.key, entry.after) or None,
        "before": entry.before,
        "after": entry.after,
    }


def _changes(first: tuple[str, ...] = (), last: tuple[str, ...] = ()) -> _Table:
    """Return the table of changes, with some of their fields before and after the change itself."""

    def row(one: Any) -> _Row:
        before, after = ({name: getattr(one, name) for name in names} for names in (first, last))
        return {**before, **_change(one), **after}

    return (*first, *_CHANGED, *last), lambda found: map(row, found)


def _facts(found: Iterable[Fact]) -> Iterable[_Row]:
    for fact in found:
        managed = {name: getattr(fact, name) for name in _FACT}
        yield _beside({**managed, "full_key": f"facts/{fact.id}"}, fact.data.model_dump())


def _items(found: Mapping[str, _Row]) -> Iterable[_Row]:
    return (
        _beside({"key": key, "full_key": ITEMS.full_key(key)}, value)
        for key, value in found.items()
    )


_CHANGED = ("change", "key", "old", "new", "before", "after")
_WHO = ("seq", "time", "type", "session", "actor", "reason", "source")
_PREFERENCE = ("id", *PreferenceItem.model_fields)
_FACT = tuple(name for name in _names(Fact) if name != "data")
_TABLES: dict[str, _Table] = {
    "Changes": _changes(_WHO, ("is_conflict",)),
    "ConversationItems": _dict_of(ConversationItem.model_fields, "conversations"),
    "Diary": (("user", "entries", *_KINDS, "transactions", "last_write"), _diary),
    "Differences": _changes(),
    "Episodes": _list_of(Episode, lambda each: f"episodes/{each.id}"),
    "Findings": (_names(Finding), lambda found: map(asdict, found)),
    "FactList": ((*_FACT, "full_key"), _facts),
    "Hits": _list_of(Hit, lambda each: each.full_key),
    "ItemValues": (("key", "full_key"), _items),
    "Matches": _list_of(Match, lambda each: f"{each.category}/{each.id}"),
    "PendingChanges": _changes(("id", "created", "session", "origin", "reason", "expires")),
    "PreferenceItems": (_PREFERENCE, lambda found: starmap(_preference, found.items())),
    "PreferenceTables": (("category", *_PREFERENCE, "full_key"), _preference_tables),
    "TextBlocks": _dict_of(_names(TextBlock), "blocks"),
    "Users": (("user",), lambda found: ({"user": user} for user in found)),
}
