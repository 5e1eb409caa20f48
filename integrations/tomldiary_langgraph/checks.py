"""Operations of a batch, checked before any of them is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph.store.base import (
    GetOp,
    ListNamespacesOp,
    PutOp,
    SearchOp,
    validate_op_namespace,
)

from tomldiary.errors import InvalidValue, NotSupported
from tomldiary_langgraph.filters import check_filter
from tomldiary_langgraph.namespaces import check_prefix, parse_namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.store.base import Op

__all__ = ["check_op"]


def check_op(op: Op, categories: Sequence[str]) -> None:
    """Let an operation pass only if the store can run it.

    Raises:
        ValueError: It names no namespace of the store, or an argument has a wrong type or value.
        NotSupported: It is a put with a TTL.
    """
    if not isinstance(op, GetOp | SearchOp | PutOp | ListNamespacesOp):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise InvalidValue(f"unknown operation: {type(op).__name__}.")
    _check_sequences(op)
    validate_op_namespace(op)
    if isinstance(op, GetOp | PutOp):
        parse_namespace(op.namespace, categories)
        if not isinstance(op.key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - see above
            raise InvalidValue(f"expected text as a key, found {type(op.key).__name__}.")
        if isinstance(op, PutOp) and op.ttl is not None:
            raise NotSupported("ttl: entries of a diary do not expire. Put without a ttl.")
        return
    _check_count("limit", op.limit)
    _check_count("offset", op.offset)
    if isinstance(op, SearchOp):
        check_prefix(op.namespace_prefix, categories)
        if op.filter is not None:
            check_filter(op.filter)
        if op.query is not None and not isinstance(op.query, str):  # pyright: ignore[reportUnnecessaryIsInstance] - see above
            raise InvalidValue(f"expected text, found {type(op.query).__name__}.", where="query")
        return
    if op.max_depth is not None:
        _check_count("max_depth", op.max_depth, least=1)
    for condition in op.match_conditions or ():
        if condition.match_type not in {"prefix", "suffix"}:
            raise InvalidValue(
                f"unknown match type {condition.match_type!r}. Use prefix or suffix."
            )


def _check_sequences(op: Op) -> None:
    """Refuse a text where labels belong: it would be read letter by letter."""
    if isinstance(op, ListNamespacesOp):
        labels: list[Any] = [condition.path for condition in op.match_conditions or ()]
    else:
        labels = [op.namespace_prefix if isinstance(op, SearchOp) else op.namespace]
    for found in labels:
        if not isinstance(found, tuple | list):
            raise InvalidValue(
                f"expected a tuple of labels, found {type(found).__name__}.", where="namespace"
            )


def _check_count(name: str, value: Any, *, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidValue(f"expected a whole number from {least} on, found {value!r}.", where=name)
