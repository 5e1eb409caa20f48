"""The four operations on items, their validation, which happens before a batch runs, and the owners of namespaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from tomldiary.errors import IdentifierError, InvalidValue, wrong_type, wrong_value
from tomldiary.identifiers.namespaces import SHARED, Namespace
from tomldiary.retrieval.filters import Predicate, compile_filter
from tomldiary.runtime.callables import refuse_async, refuse_misfit
from tomldiary.store.item import checked_key, checked_minutes
from tomldiary.toml.values import checked_count, checked_limit, checked_text, storable_copy

if TYPE_CHECKING:
    from datetime import datetime


MARK = "diary"
"""The second label of the namespaces of typed entries."""


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
    prefix: Namespace = ()
    """The labels that every listed namespace begins with, set by `checked`."""

    @property
    def further_conditions(self) -> list[Condition]:
        """The conditions that not every namespace with the prefix meets."""
        known = Condition("prefix", self.prefix)
        return [each for each in self.conditions if each != known]


def shortened(namespaces: Iterable[Namespace], depth: int | None) -> list[Namespace]:
    """Return the first labels of namespaces, each once, sorted; None for `depth` keeps all labels."""
    return sorted({labels[:depth] for labels in namespaces})


Operation = Get | Put | Search | List
Result = Item | list[Item] | list[tuple[str, ...]] | None


def checked(op: Operation) -> Operation:
    """Return a validated operation, with a copy of the value to store.

    Raises:
        InvalidValue: An argument has a wrong type or value; names the place.
    """
    if isinstance(op, Put):
        return _checked_put(op)
    if isinstance(op, Get):
        checked_key(op.key, is_new=False)
        return Get(_labels(op.namespace), op.key, op.refresh)
    checked_count(op.limit, "limit")
    checked_count(op.offset, "offset")
    if isinstance(op, Search):
        if op.query is not None:
            checked_text(op.query, "query")
        fits = compile_filter(op.filter) if op.filter is not None else None
        prefix = _labels(op.prefix, least=0)
        return Search(prefix, op.filter, op.limit, op.offset, op.query, op.refresh, fits)
    checked_limit(op.max_depth, "max_depth", least=1)
    for each in op.conditions:
        if each.where not in {"prefix", "suffix"}:
            raise InvalidValue(f"unknown match type {each.where!r}. Use prefix or suffix.")
    conditions = [Condition(each.where, _labels(each.labels, least=0)) for each in op.conditions]
    prefix: Namespace = ()
    for each in conditions:
        if each.where == "prefix":
            stars = [n for n, label in enumerate(each.labels) if label == "*"]
            prefix = max(prefix, each.labels[: stars[0] if stars else None], key=len)
    return List(tuple(conditions), op.max_depth, op.limit, op.offset, prefix)


def _checked_put(op: Put) -> Put:
    namespace = _labels(op.namespace)
    key = checked_key(op.key, is_new=op.value is not None)
    value = op.value
    if value is not None:
        value = storable_copy(value, f"{'/'.join(namespace)}/{key}")
    index: Any = op.index
    if index is not None and not isinstance(index, bool):
        if not isinstance(index, list | tuple) or not all(
            isinstance(each, str) for each in cast("Sequence[Any]", index)
        ):
            raise InvalidValue("expected False or a list of fields.", where="index")
        index = list(cast("Sequence[str]", index))
    return Put(namespace, key, value, index, checked_minutes(op.ttl, "ttl"), op.times)


def listed_labels(found: Any) -> tuple[Any, ...]:
    """Return the labels of a namespace as a tuple; a text is refused, as it would be read letter by letter.

    Raises:
        InvalidValue: The namespace is no tuple or list.
    """
    if not isinstance(found, (tuple, list)):
        hint = 'Give one, such as ("alice", "trips").'
        raise wrong_type(found, "a tuple of labels", "namespace", hint)
    return tuple(cast("Sequence[Any]", found))


def _labels(found: Any, *, least: int = 1) -> Namespace:
    labels = listed_labels(found)
    if len(labels) < least:
        raise InvalidValue("a namespace needs at least one label.", where="namespace")
    for label in labels:
        if not isinstance(label, str) or not label or label == SHARED:
            raise InvalidValue(
                f"a label is text that is not empty, found {label!r}.", where="namespace"
            )
    return tuple(map(str.__str__, labels))


# Owners of namespaces


def is_typed(namespace: Sequence[str]) -> bool:
    """Return whether a namespace is reserved for typed entries."""
    return len(namespace) > 1 and namespace[1] == MARK


def may_expire(namespace: object) -> bool:
    """Return whether items of a namespace may have a time to live; typed entries may not."""
    return not (isinstance(namespace, (tuple, list)) and is_typed(cast("Sequence[str]", namespace)))


UserLabel = int | Callable[[Namespace, str], str | None] | None
"""The position of the label that is the user; or a function of namespace and key that returns the user, or
None for shared items; or None if all items are shared. A namespace too short for the position is shared."""


class Owners:
    """Finds the user that a namespace belongs to.

    Raises:
        InvalidValue: `user_label` is not a number from 0, a plain function of namespace and key, or None.
    """

    def __init__(self, user_label: UserLabel) -> None:
        is_number = isinstance(user_label, int) and not isinstance(user_label, bool)
        if not (user_label is None or callable(user_label) or (is_number and user_label >= 0)):
            expected = "the position of a label, a function or None"
            raise wrong_value(user_label, expected, "user_label")
        refuse_async(user_label, "user_label")
        if callable(user_label):
            refuse_misfit(user_label, "namespace, key", "user_label", (), "")
        self._label = user_label

    def owner(self, namespace: Namespace, key: str, signed_in: str | None = None) -> str:
        """Return the user that an item or a typed entry belongs to.

        Args:
            namespace: The namespace of the item.
            key: The key of the item.
            signed_in: The user that a server authenticated; None allows every owner.

        Raises:
            InvalidValue: The `user_label` function did not return a user id or None.
            IdentifierError: The owner is not signed in.
        """
        found = namespace[0] if is_typed(namespace) else self._owner(namespace, key)
        if signed_in is not None and found not in (signed_in, SHARED):
            raise _foreign_namespace()
        return found

    def check_prefix(self, prefix: Namespace, signed_in: str | None) -> None:
        """Raise an error if all namespaces below a prefix belong to a user who is not signed in.

        Raises:
            IdentifierError: It is such a prefix.
        """
        if signed_in is None:
            return
        found = prefix[0] if is_typed(prefix) else self._named(prefix)
        if found not in (None, signed_in):
            raise _foreign_namespace()

    def _named(self, labels: Namespace) -> str | None:
        """Return the owner of all namespaces that begin with some labels; None if these do not show it."""
        if isinstance(self._label, int) and len(labels) > self._label:
            return labels[self._label]
        return None

    def _owner(self, namespace: Namespace, key: str) -> str:
        if isinstance(self._label, int):
            named = self._named(namespace)
            return SHARED if named is None else named
        found = None if self._label is None else self._label(namespace, key)
        if found is None:
            return SHARED
        if not isinstance(found, str) or not found.strip() or found == SHARED:  # pyright: ignore[reportUnnecessaryIsInstance] - a function of the caller's
            raise InvalidValue(
                f"user_label returned {found!r} for {namespace!r}. Return the user's id, or None.",
                where="user_label",
            )
        return found

    def known_owner(self, namespace: object) -> str | None:
        """Return the owner of a namespace that is not validated yet; None if its label does not show it."""
        if not isinstance(self._label, int) or type(namespace) is not tuple:
            return None
        labels = cast("tuple[object, ...]", namespace)
        label = labels[self._label] if len(labels) > self._label else None
        return label if type(label) is str and label else None

    @property
    def are_in_order(self) -> bool:
        """Whether sorted namespaces are in the order of their owners, because each begins with its owner."""
        return self._label == 0

    def below(self, prefix: Namespace) -> str | None:
        """Return the owner of all namespaces that begin with a prefix; None if any user may own some."""
        return SHARED if self._label is None else self._named(prefix)


def _foreign_namespace() -> IdentifierError:
    return IdentifierError(
        "the namespace belongs to another user than the one that the server signed in. Use a namespace of"
        " that user; user_label defines which label is the user, and which namespaces are shared."
    )
