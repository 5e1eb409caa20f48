"""Filters of a search, compiled once and applied to values: `{"status": "open", "n": {"$gt": 3}}`.

A field is a key or a dotted path (`user.name`; a key that contains the dots has precedence). A missing field
meets only `$exists: False`. Order is defined for numbers, for text, and for dates and times, also against text with
one; a date means its start in UTC. Other comparisons are false. True is not 1, and NaN equals nothing. A table without operators is a filter
for the table in that field.

A filter is interpreted, and never converted to code, a regular expression or a query.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, cast

from tomldiary.errors import InvalidValue, wrong_type
from tomldiary.toml.values import in_utc, moment

Predicate = Callable[[Mapping[str, Any]], bool]
_Test = Callable[[Any], bool]


class ExactNumber(Decimal):
    """A number that a filter compares exactly. It was read from text: no file stores a Decimal, so a filter refuses another one."""


_DEPTH = 64  # the maximum depth of a filter, which also stops one that contains itself
_MISSING = object()
_NO_NAME = "expected text as a field's name."
_NUMBERS = (int, float)
_HASHED = (str, *_NUMBERS, ExactNumber, datetime)


def compile_filter(condition: Any) -> Predicate:
    """Return a predicate: whether a value meets every condition of a filter.

    Raises:
        InvalidValue: The filter is not a mapping, has an unknown operator, or compares with a value that
            has no order or cannot be stored.
    """
    return _compiled(condition, "filter", 0)


def is_condition(key: str, wanted: Any) -> bool:
    """Return whether a part of a filter is an operator or a table, and not only a value to equal."""
    return key.startswith("$") or isinstance(wanted, Mapping)


def fields_of(condition: Mapping[Any, Any], depth: int = 0) -> Iterator[str]:
    """Yield the fields in a filter; inner fields are dotted paths.

    Raises:
        InvalidValue: A field's name is no text, or the filter is nested too deep.
    """
    _check_depth(depth, "filter")
    for key, wanted in condition.items():
        if not isinstance(key, str):
            raise InvalidValue(_NO_NAME, where="filter")
        if key.startswith("$"):
            is_list = isinstance(wanted, list | tuple)
            for each in cast("Sequence[Any]", wanted if is_list else [wanted]):
                if isinstance(each, Mapping):
                    yield from fields_of(cast("Mapping[Any, Any]", each), depth + 1)
        else:
            is_table = isinstance(wanted, Mapping)
            table = cast("Mapping[Any, Any]", wanted if is_table else {})
            if not table or _has_operators(table):  # not a filter for the table in the field
                yield key
            else:
                yield from (f"{key}.{name}" for name in fields_of(table, depth + 1))


def _has_operators(table: Mapping[Any, Any]) -> bool:
    return any(isinstance(key, str) and key.startswith("$") for key in table)


def _compiled(condition: Any, where: str, depth: int) -> Predicate:
    if not isinstance(condition, Mapping):
        raise wrong_type(condition, "a mapping", where)
    _check_depth(depth, where)
    parts: list[Predicate] = []
    for key, wanted in cast("Mapping[Any, Any]", condition).items():
        if not isinstance(key, str):
            raise InvalidValue(_NO_NAME, where=where)
        place = f"{where}.{key}"
        if key.startswith("$"):
            parts.append(_logical(key, wanted, place, depth))
        else:
            parts.append(_field(key, _test(wanted, place, depth + 1)))
    if len(parts) == 1:
        return parts[0]
    return lambda value: all(part(value) for part in parts)


def _logical(name: str, wanted: Any, where: str, depth: int) -> Predicate:
    if name == "$not":
        inner = _compiled(wanted, where, depth + 1)
        return lambda value: not inner(value)
    if name not in {"$and", "$or"}:
        raise InvalidValue(
            f"unknown operator {name!r}. Use one of: $and, $or, $not, or a field's name with"
            f" {', '.join(_NAMES)}.",
            where=where,
        )
    if not isinstance(wanted, list | tuple) or not wanted:
        raise InvalidValue("expected a list of filters that is not empty.", where=where)
    several = [
        _compiled(each, f"{where}.{number}", depth + 1)
        for number, each in enumerate(cast("Sequence[Any]", wanted))
    ]
    if name == "$and":
        return lambda value: all(one(value) for one in several)
    return lambda value: any(one(value) for one in several)


def _field(key: str, test: _Test) -> Predicate:
    if "." not in key:
        return lambda value: test(value.get(key, _MISSING))
    path = key.split(".")

    def check(value: Mapping[str, Any]) -> bool:
        if key in value:
            return test(value[key])
        found: Any = value
        for part in path:
            if not isinstance(found, Mapping):
                return test(_MISSING)
            found = cast("Mapping[str, Any]", found).get(part, _MISSING)
        return test(found)

    return check


def _test(wanted: Any, where: str, depth: int) -> _Test:
    _check_depth(depth, where)
    if not isinstance(wanted, Mapping):
        _check_operand(wanted, where, depth)
        return _equals(wanted)
    table = cast("Mapping[Any, Any]", wanted)
    if not _has_operators(table):
        inner = _compiled(table, where, depth)
        return lambda found: isinstance(found, Mapping) and inner(cast("Mapping[str, Any]", found))
    tests = [_operation(name, operand, where, depth) for name, operand in table.items()]
    return tests[0] if len(tests) == 1 else lambda found: all(test(found) for test in tests)


def _operation(name: Any, operand: Any, where: str, depth: int) -> _Test:
    if name == "$not":
        inner = _test(operand, f"{where}.$not", depth + 1)
        return lambda found: not inner(found)
    if name == "$exists":
        if operand is not True and operand is not False:
            raise InvalidValue("expected True or False for $exists.", where=where)
        return lambda found: (found is not _MISSING) is operand
    if name not in _NAMES:
        raise InvalidValue(
            f"unknown operator {name!r}. Use one of: {', '.join(_NAMES)}.", where=where
        )
    _check_operand(operand, where, depth)
    if name == "$eq":
        return _equals(operand)
    if name == "$ne":
        return lambda found: found is not _MISSING and not _equal(found, operand)
    if name in {"$in", "$nin"}:
        return _membership(operand, where, is_in=name == "$in")
    if _order(operand) is None:
        raise wrong_type(operand, f"a number, text or a date for {name}", where)
    return _compared(_COMPARISONS[name], operand, where)


def _equals(wanted: Any) -> _Test:
    if type(wanted) is str:
        return lambda found: type(found) is str and found == wanted
    return lambda found: found is not _MISSING and _equal(found, wanted)


def _membership(operand: Any, where: str, *, is_in: bool) -> _Test:
    if not isinstance(operand, list | tuple):
        raise InvalidValue("expected a list of values.", where=where)
    values = [_zoned(one) for one in cast("Sequence[Any]", operand)]
    # A text, number or time is looked up, and not compared with each one of perhaps many.
    known = {one for one in values if type(one) in _HASHED and one == one}  # noqa: PLR0124 - NaN equals nothing
    others = [one for one in values if type(one) not in _HASHED]

    def check(found: Any) -> bool:
        found = _zoned(found)
        is_plain = type(found) in _HASHED
        compared = others if is_plain else values
        is_known = (is_plain and found in known) or any(_equal(found, one) for one in compared)
        return found is not _MISSING and is_known is is_in

    return check


def _compared(compare: Callable[[Any, Any], bool], wanted: Any, where: str) -> _Test:
    kind = _order(wanted)
    if kind is datetime:
        start = in_utc(wanted, where)

        def check_time(found: Any) -> bool:
            at = moment(found)
            return at is not None and compare(at, start)

        return check_time

    def check(found: Any) -> bool:
        try:
            if kind is float and type(found) in _NUMBERS:
                return compare(found, wanted)
            if kind is time and isinstance(found, str):
                return compare(time.fromisoformat(found), wanted)
            return _order(found) is kind and compare(found, wanted)
        # not a time of day, or only one has a zone, or only one is exact and the other NaN
        except (TypeError, ValueError, ArithmeticError):
            return False

    return check


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        one, two = cast("Mapping[str, Any]", left), cast("Mapping[str, Any]", right)
        return one.keys() == two.keys() and all(_equal(one[key], two[key]) for key in one)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        first, second = cast("Sequence[Any]", left), cast("Sequence[Any]", right)
        return len(first) == len(second) and all(map(_equal, first, second))
    if isinstance(left, datetime) and isinstance(right, datetime):
        left, right = _zoned(left), _zoned(right)
    return bool(left == right)


def _zoned(value: Any) -> Any:
    """Return a time without a zone in UTC, as everywhere in a diary, and another value unchanged."""
    is_naive = isinstance(value, datetime) and value.tzinfo is None
    return value.replace(tzinfo=UTC) if is_naive else value


def _order(value: Any) -> type[Any] | None:
    """Return the type that a value can be ordered with, or None if it has no order; dates count as times."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float | ExactNumber):
        return float
    if isinstance(value, date):
        return datetime
    return next((kind for kind in (str, time) if isinstance(value, kind)), None)


def _check_depth(depth: int, where: str) -> None:
    if depth > _DEPTH:
        raise InvalidValue(f"nested deeper than {_DEPTH}.", where=where)


def _check_operand(operand: Any, where: str, depth: int) -> None:
    _check_depth(depth, where)
    if isinstance(operand, Mapping):
        for key, item in cast("Mapping[Any, Any]", operand).items():
            if not isinstance(key, str):
                raise InvalidValue("expected text as a key.", where=where)
            _check_operand(item, where, depth + 1)
    elif isinstance(operand, list | tuple):
        for item in cast("Sequence[Any]", operand):
            _check_operand(item, where, depth + 1)
    elif operand is not None and not isinstance(
        operand, bool | int | float | ExactNumber | str | date | time
    ):
        raise InvalidValue(
            f"a value of type {type(operand).__name__} cannot be stored.", where=where
        )


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_NAMES = ("$eq", "$ne", *_COMPARISONS, "$in", "$nin", "$exists", "$not")
