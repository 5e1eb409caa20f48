"""Converts LangGraph's operations to those of the core, and the core's items to those of LangGraph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    PutOp,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from tomldiary.errors import InvalidValue, wrong_type
from tomldiary.store.operations import Condition, Get, List, Operation, Put, Search
from tomldiary.store.operations import Item as Stored

if TYPE_CHECKING:
    from langgraph.store.base import Op, Result

    from tomldiary.store.store import Result as Answer

__all__ = ["check_written", "item", "operation", "result"]

_OPERATIONS = (GetOp, PutOp, SearchOp, ListNamespacesOp)


def operation(op: Op) -> Operation:
    """Return the core's operation for one of LangGraph's.

    Raises:
        ValueError: It is none, or a namespace has a label that LangGraph does not allow.
    """
    if not isinstance(op, _OPERATIONS):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise InvalidValue(f"unknown operation: {type(op).__name__}.")
    _check_sequences(op)
    validate_op_namespace(op)
    if isinstance(op, GetOp):
        return Get(tuple(op.namespace), op.key, op.refresh_ttl)
    if isinstance(op, PutOp):
        return Put(
            tuple(op.namespace), op.key, cast("Any", op.value), cast("Any", op.index), op.ttl
        )
    if isinstance(op, SearchOp):
        return Search(
            tuple(op.namespace_prefix), op.filter, op.limit, op.offset, op.query, op.refresh_ttl
        )
    conditions = [
        Condition(each.match_type, tuple(cast("tuple[str, ...]", each.path)))
        for each in op.match_conditions or ()
    ]
    return List(tuple(conditions), op.max_depth, op.limit, op.offset)


def result(answer: Answer) -> Result:
    """Return the result of an operation in LangGraph's types."""
    if answer is None:
        return None
    if isinstance(answer, Stored):
        return item(answer)
    if not answer or not isinstance(answer[0], Stored):
        return cast("list[tuple[str, ...]]", answer)
    return [SearchItem(**_fields(each), score=each.score) for each in cast("list[Stored]", answer)]


def item(found: Stored) -> Item:
    """Return an item in LangGraph's type."""
    return Item(**_fields(found))


def check_written(namespace: tuple[str, ...]) -> None:
    """Check a namespace with LangGraph's rules for writing, as `put` does.

    Raises:
        InvalidNamespaceError: It is empty, begins with "langgraph", or has a label that is not allowed.
    """
    _check_sequence(namespace)
    if not namespace:
        raise InvalidNamespaceError("Namespace cannot be empty.")
    validate_op_namespace(PutOp(namespace, "", None))
    if namespace[0] == "langgraph":
        raise InvalidNamespaceError('Root label for namespace cannot be "langgraph".')


def _fields(item: Stored) -> dict[str, Any]:
    return {
        "namespace": item.namespace,
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at,
        "updated_at": item.updated_at,
    }


def _check_sequences(op: Op) -> None:
    """Refuse a text where labels belong: it would be read letter by letter."""
    if isinstance(op, ListNamespacesOp):
        for condition in op.match_conditions or ():
            _check_sequence(condition.path)
    else:
        _check_sequence(op.namespace_prefix if isinstance(op, SearchOp) else op.namespace)


def _check_sequence(labels: Any) -> None:
    if not isinstance(labels, tuple | list):
        raise wrong_type(labels, "a tuple of labels", "namespace")
