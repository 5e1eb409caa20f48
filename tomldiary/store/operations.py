"""The four operations on items, and their validation, which happens before a batch runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from tomldiary.errors import InvalidValue, wrong_type
from tomldiary.identifiers.namespaces import SHARED, Namespace
from tomldiary.retrieval.filters import Predicate, compile_filter
from tomldiary.store.item import checked_key, checked_minutes, checked_value
from tomldiary.toml.values import checked_count, checked_limit, checked_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


__all__ = ["Condition", "Get", "Item", "List", "Operation", "Put", "Search", "checked"]


class Item(NamedTuple):
    """An item as returned to a caller; the value is a copy."""

    namespace: Namespace
    key: str
    value: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    score: float | None = None
    """The score of the match with the query, higher is better; None without a query."""


@dataclass(slots=True)
class Get:
    """Read one item; `refresh` restarts its time to live."""

    namespace: Namespace
    key: str
    refresh: bool = True


@dataclass(slots=True)
class Put:
    """Store a value, or remove the item if it is None."""

    namespace: Namespace
    key: str
    value: dict[str, Any] | None
    index: bool | list[str] | None = None
    """The fields to search; False excludes the item from queries, None is the store's default."""
    ttl: float | None = None
    """The time to live in minutes; None is unlimited."""
    times: tuple[datetime, datetime] | None = None
    """The times of creation and update, for an import; None is now. An existing key keeps its creation time."""


@dataclass(frozen=True, slots=True)
class Search:
    """Find items below a prefix: newest first, or best first with a query."""

    prefix: Namespace
    filter: Any = None
    limit: int = 10
    offset: int = 0
    query: str | None = None
    refresh: bool = True
    fits: Predicate | None = None
    """The compiled filter, set by `checked`."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A required prefix or suffix of a namespace; `*` matches any one label."""

    where: Literal["prefix", "suffix"]
    labels: Namespace

    def fits(self, namespace: Namespace) -> bool:
        """Return whether a namespace begins or ends with the labels."""
        size = len(self.labels)
        if size > len(namespace):
            return False
        part = namespace[:size] if self.where == "prefix" else namespace[len(namespace) - size :]
        return all(label in ("*", found) for label, found in zip(self.labels, part, strict=True))


@dataclass(frozen=True, slots=True)
class List:
    """List the non-empty namespaces, sorted."""

    conditions: tuple[Condition, ...] = ()
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


Operation = Get | Put | Search | List


def checked(op: Operation) -> Operation:
    """Return a validated operation, with a copy of the value to store.

    Raises:
        InvalidValue: An argument has a wrong type or value; names the place.
    """
    if isinstance(op, Get):
        checked_key(op.key, is_new=False)
        return op if _are_plain(op.namespace) else replace(op, namespace=_labels(op.namespace))
    if isinstance(op, Put):
        return _checked_put(op)
    checked_count(op.limit, "limit")
    checked_count(op.offset, "offset")
    if isinstance(op, Search):
        if op.query is not None:
            checked_text(op.query, "query")
        fits = compile_filter(op.filter) if op.filter is not None else None
        return replace(op, prefix=_labels(op.prefix, least=0), fits=fits)
    checked_limit(op.max_depth, "max_depth", least=1)
    if not op.conditions:
        return op
    for each in op.conditions:
        if each.where not in {"prefix", "suffix"}:
            raise InvalidValue(f"unknown match type {each.where!r}. Use prefix or suffix.")
    conditions = [replace(each, labels=_labels(each.labels, least=0)) for each in op.conditions]
    return replace(op, conditions=tuple(conditions))


def _checked_put(op: Put) -> Put:
    namespace = op.namespace if _are_plain(op.namespace) else _labels(op.namespace)
    key = checked_key(op.key, is_new=op.value is not None)
    value = op.value
    if value is not None:
        value = checked_value(value, f"{'/'.join(namespace)}/{key}")
    index: Any = op.index
    if index is not None and not isinstance(index, bool):
        if not isinstance(index, list | tuple) or not all(
            isinstance(each, str) for each in cast("Sequence[Any]", index)
        ):
            raise InvalidValue("expected False or a list of fields.", where="index")
        index = list(cast("Sequence[str]", index))
    return Put(namespace, key, value, index, checked_minutes(op.ttl, "ttl"), op.times)


def _are_plain(labels: Any) -> bool:
    """Return whether labels need no conversion by `_labels`; a fast path for reads."""
    if type(labels) is not tuple or not labels:
        return False
    for each in cast("Namespace", labels):
        if type(each) is not str or not each or each == SHARED:
            return False
    return True


def _labels(found: Any, *, least: int = 1) -> Namespace:
    if not isinstance(found, tuple | list):
        raise wrong_type(found, "a tuple of labels", "namespace")
    labels = tuple(cast("Sequence[Any]", found))
    if len(labels) < least:
        raise InvalidValue("a namespace needs at least one label.", where="namespace")
    for label in labels:
        if not isinstance(label, str) or not label or label == SHARED:
            raise InvalidValue(
                f"a label is text that is not empty, found {label!r}.", where="namespace"
            )
    return tuple(map(str.__str__, labels))
