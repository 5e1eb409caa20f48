"""Filters of a search: equality, and six comparisons, on the fields of a value.

A field that is missing counts as null. Numbers compare with numbers, text with text, dates with dates;
anything else is neither more nor less. True is not 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, cast

from tomldiary.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_filter", "matches"]

_DEPTH = 64  # levels of an operand; a filter that contains itself ends here too


def check_filter(condition: Any) -> None:
    """Check a filter before anything is read.

    Raises:
        InvalidValue: It is no mapping, uses an unknown operator, or compares with something that has no
            order or cannot be stored.
    """
    if not isinstance(condition, Mapping):
        raise InvalidValue(f"expected a mapping, found {type(condition).__name__}.", where="filter")
    for key, wanted in cast("Mapping[Any, Any]", condition).items():
        where = f"filter.{key}"
        if not isinstance(key, str):
            raise InvalidValue("expected text as a field's name.", where=where)
        if not _is_operation(wanted):
            _check_operand(wanted, where, 0)
            continue
        for operator, operand in wanted.items():
            if operator not in _OPERATORS:
                raise InvalidValue(
                    f"unknown operator {operator!r}. Use one of: {', '.join(_OPERATORS)}.",
                    where=where,
                )
            _check_operand(operand, where, 0)
            if operator not in {"$eq", "$ne"} and _order(operand) is None:
                raise InvalidValue(
                    f"{operator} compares numbers, text or dates, found {type(operand).__name__}.",
                    where=where,
                )


def matches(value: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    """Tell whether a value meets every condition of a checked filter."""
    return all(
        all(_OPERATORS[operator](value.get(key), operand) for operator, operand in wanted.items())
        if _is_operation(wanted)
        else _equal(value.get(key), wanted)
        for key, wanted in condition.items()
    )


def _is_operation(wanted: Any) -> bool:
    """Tell operators from a table to be compared: one key with a dollar sign is enough."""
    return isinstance(wanted, Mapping) and any(
        isinstance(key, str) and key.startswith("$") for key in cast("Mapping[Any, Any]", wanted)
    )


def _check_operand(operand: Any, where: str, depth: int) -> None:
    if depth > _DEPTH:
        raise InvalidValue(f"nested deeper than {_DEPTH}.", where=where)
    if isinstance(operand, Mapping):
        for key, item in cast("Mapping[Any, Any]", operand).items():
            if not isinstance(key, str):
                raise InvalidValue("expected text as a key.", where=where)
            _check_operand(item, where, depth + 1)
    elif isinstance(operand, list | tuple):
        for item in cast("Sequence[Any]", operand):
            _check_operand(item, where, depth + 1)
    elif operand is not None and not isinstance(operand, bool | int | float | str | date | time):
        raise InvalidValue(f"no stored value is a {type(operand).__name__}.", where=where)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        one, two = cast("Mapping[str, Any]", left), cast("Mapping[str, Any]", right)
        return one.keys() == two.keys() and all(_equal(one[key], two[key]) for key in one)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        first, second = cast("Sequence[Any]", left), cast("Sequence[Any]", right)
        return len(first) == len(second) and all(map(_equal, first, second))
    return bool(left == right)


def _order(value: Any) -> type[Any] | None:
    """Return what a value can be compared with, or None if it has no order."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float
    return next((kind for kind in (str, datetime, date, time) if isinstance(value, kind)), None)


def _compared(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def check(left: Any, right: Any) -> bool:
        if _order(left) is None or _order(left) is not _order(right):
            return False
        try:
            return compare(left, right)
        except TypeError:  # a time with a zone and one without
            return False

    return check


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": _equal,
    "$ne": lambda left, right: not _equal(left, right),
    "$gt": _compared(lambda left, right: left > right),
    "$gte": _compared(lambda left, right: left >= right),
    "$lt": _compared(lambda left, right: left < right),
    "$lte": _compared(lambda left, right: left <= right),
}
