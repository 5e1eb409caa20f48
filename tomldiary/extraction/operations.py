"""What an extractor wants done, as plain data.

Operations are recorded on a draft while a model works, and applied to fresh state when the turn is
committed: what others wrote meanwhile stays, and an id handed out twice becomes two ids.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from tomldiary.errors import InvalidValue

__all__ = [
    "ForgetPreference",
    "Operation",
    "SetFields",
    "SetSummary",
    "UpsertPreference",
    "from_dict",
    "to_dict",
    "to_table",
]


@dataclass(frozen=True, slots=True)
class UpsertPreference:
    """Create a preference, or change or confirm the one with `id`."""

    category: str
    id: str | None = None
    text: str | None = None
    contexts: tuple[str, ...] = ()
    count_up: bool = True
    """Whether the hit counter of an existing entry goes up by one."""
    created_as: str | None = None
    """The id a draft gave to the new entry; later operations of the same draft name it by this."""
    fields: tuple[tuple[str, Any], ...] = ()
    """Further fields of a new entry, such as where it came from."""


@dataclass(frozen=True, slots=True)
class ForgetPreference:
    """Remove the preference with `id`."""

    category: str
    id: str


@dataclass(frozen=True, slots=True)
class SetSummary:
    """Replace a conversation's summary, and its keywords unless they are None."""

    session_id: str
    summary: str
    keywords: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class SetFields:
    """Set and remove single fields of an entry: an extractor changed the draft's tables directly."""

    kind: str
    path: tuple[str, ...]
    values: tuple[tuple[str, Any], ...] = ()
    removed: tuple[str, ...] = ()
    delete: bool = False
    """Remove the whole entry."""
    existing: bool = False
    """Whether the draft had the entry: if it is gone meanwhile, it is not brought back by its parts."""


Operation = UpsertPreference | ForgetPreference | SetSummary | SetFields

_TYPES: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (UpsertPreference, ForgetPreference, SetSummary, SetFields)
}


_DEFAULTS: dict[type[Any], list[tuple[str, Any]]] = {
    kind: [(each.name, each.default) for each in fields(kind)] for kind in _TYPES.values()
}


def to_dict(operation: Operation) -> dict[str, Any]:
    """Return the operation as JSON values."""
    return {"op": type(operation).__name__, **asdict(operation)}


def to_table(operation: Operation) -> dict[str, Any]:
    """Return the operation for a TOML table: without the fields that are as `from_dict` takes them to be."""
    table: dict[str, Any] = {"op": type(operation).__name__}
    for name, default in _DEFAULTS[type(operation)]:
        value = getattr(operation, name)
        if value != default or type(value) is not type(default):
            table[name] = value
    return table


def from_dict(data: dict[str, Any]) -> Operation:
    """Undo `to_dict`, also after a round trip through JSON.

    Raises:
        InvalidValue: Not an operation.
    """
    kind = _TYPES.get(str(data.get("op")))
    if kind is None:
        raise InvalidValue(f"unknown operation {data.get('op')!r}.")
    arguments = {key: _tuples(value) for key, value in data.items() if key != "op"}
    try:
        return cast("Operation", kind(**arguments))
    except TypeError as error:
        raise InvalidValue(f"operation {kind.__name__}: {error}.") from None


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_pair(item) for item in cast("list[Any]", value))
    return value


def _pair(item: Any) -> Any:
    """Turn the pairs of `fields` and `values` back into tuples; values inside them stay as they are."""
    if isinstance(item, list):
        return tuple(cast("list[Any]", item))
    return item
