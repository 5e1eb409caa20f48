"""The filters of fact queries, and the order of their results."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from operator import itemgetter
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, cast

from pydantic import AwareDatetime, FutureDatetime, NaiveDatetime, PastDatetime, TypeAdapter

from tomldiary.entries.constraints import normal_form
from tomldiary.entries.facts import confidence_of
from tomldiary.entries.fields import entry_data, inner_value, plain
from tomldiary.errors import InvalidValue, wrong_value
from tomldiary.retrieval.filters import compile_filter, fields_of, is_condition
from tomldiary.toml.values import NULL_FIELD, decode_nulls, moment

if TYPE_CHECKING:
    from pydantic import BaseModel

    from tomldiary.entries.constraints import FactSchema
    from tomldiary.entries.facts import Held

_ORDERING = ("$gt", "$gte", "$lt", "$lte")
_EQUALITIES = ("$eq", "$ne", "$in", "$nin", "$not")
MANAGED = (
    "_created", "_updated", "_created_by", "_updated_by", "_source", "_confidence", "_valid_from",
)  # fmt: skip
"""The managed fields that a query can name."""


_SCALED: dict[Any, tuple[Any, str]] = {
    datetime: (datetime(2026, 1, 1, tzinfo=UTC), "a time such as 2026-11-20T12:00"),
    Decimal: (Decimal(1), "a number"),
    timedelta: (timedelta(hours=1), "a duration such as PT1H30M"),
}
"""The types whose values are text in a file that does not sort as they do, with an example and its words for errors."""
_DATETIMES = (AwareDatetime, NaiveDatetime, PastDatetime, FutureDatetime)
_TIMES = ("_created", "_updated", "_valid_from")
_PERIOD = re.compile(r"(?:[0-9]{4}(?:-[0-9]{2})?)?")
_EXACT = 50
"""The most digits of whole numbers that compare exactly; one such as 1e999999999 would not fit into memory."""


class _Scale:
    """Converts the values of a field to times in UTC or numbers, so that they compare; durations are in seconds.

    Args:
        kind: One of `_SCALED`.
        where: The field, for errors.
        is_strict: Whether a text or number that is no value of the type is refused in a query.
    """

    def __init__(self, kind: Any, where: str, *, is_strict: bool) -> None:
        self._kind = kind
        self._where = where
        refused = (str, int, float) if kind is datetime else (str,)
        self._refused = refused if is_strict else ()

    def stored(self, value: Any) -> Any:
        """Return what a stored value compares as."""
        return self._converted(value, self._read)

    def asked(self, value: Any) -> Any:
        """Return what a value or a condition in a query compares as.

        Raises:
            InvalidValue: The field cannot have the value.
        """
        return self._converted(value, self._read_asked)

    def _converted(self, value: Any, read: Callable[[Any], Any]) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str | int | float):
            return read(value)
        if isinstance(value, Mapping):
            table = cast("Mapping[Any, Any]", value)
            return {name: self._converted(each, read) for name, each in table.items()}
        if isinstance(value, list | tuple):
            return [self._converted(each, read) for each in cast("Sequence[Any]", value)]
        return self._converted(plain({"": value}, self._where)[""], read)

    def _read_asked(self, value: Any) -> Any:
        found = self._read(value)
        if (
            found is value
            and self._kind is datetime
            and isinstance(value, str)
            and _PERIOD.fullmatch(value)
        ):
            # A year or a month means its start, and "" is before all times.
            found = moment(value + "0001-01-01"[len(value) :]) or value
        if found is value and isinstance(value, self._refused):
            raise wrong_value(value, _SCALED[self._kind][1], self._where)
        return found

    def _read(self, value: Any) -> Any:
        """Return a value of the type as a time or a number, and another one unchanged."""
        try:
            if self._kind is datetime:
                return moment(value) or value
            if not isinstance(value, str):
                return value
            if self._kind is timedelta:
                return _durations().validate_python(value).total_seconds()
            number = Decimal(value)
            if number.is_nan():
                return value
            is_short = number.is_finite() and number.adjusted() < _EXACT
            is_whole = is_short and number == number.to_integral_value()
            return int(number) if is_whole else float(number)
        except (ArithmeticError, ValueError):
            return value


@cache
def _durations() -> TypeAdapter[timedelta]:
    return TypeAdapter(timedelta)  # slow, and most queries need none


def _scale(schema: FactSchema, name: str, *, is_strict: bool = False) -> _Scale | None:
    """Return the scale of a field; None if its stored values compare as they are."""
    where = f"{schema.name}.{name}"
    if name in _TIMES:
        return _Scale(datetime, where, is_strict=is_strict)
    found = schema.field_at(name)
    if found is None:
        return None
    model, field, given = found
    types = [datetime if each in _DATETIMES else each for each in given]
    kind = next((kind for kind in _SCALED if kind in types), None)
    # A field that may have text, too, such as "0041", compares as text. The keys of a table are always text.
    if kind is None or (str in types and dict not in types):
        return None
    is_only = all(each in (kind, NoneType, Union, UnionType) for each in types)
    scale = _Scale(kind, where, is_strict=is_strict and is_only)
    return scale if _is_written(model, field, _SCALED[kind][0], scale) else None


def _is_written(model: type[BaseModel], field: str, example: Any, scale: _Scale) -> bool:
    """Return whether the scale reads what the model writes for a value, which a serializer of its own may decide."""
    with suppress(Exception):  # of a function of the model
        fact = model.model_construct(None, **{**dict.fromkeys(model.model_fields), field: example})
        dumped = fact.model_dump(mode="json", include={field}, round_trip=True, warnings=False)
        return [scale.stored(each) for each in dumped.values()] == [scale.stored(example)]
    return True


def _operand(condition: Any, where: str, scales: Mapping[str, _Scale], outer: str = "") -> Any:
    """Return a filter with values in the form that files store; operands of ordering operators stay dates."""
    if isinstance(condition, Mapping):
        changed: dict[Any, Any] = {}
        for key, value in cast("Mapping[Any, Any]", condition).items():
            is_field = isinstance(key, str) and not key.startswith("$")
            name = f"{outer}{key}" if is_field else outer
            if is_field and name in scales:
                changed[key] = scales[name].asked(value)
            elif key in _ORDERING and isinstance(value, date | time):
                changed[key] = value
            else:
                changed[key] = _operand(value, where, scales, f"{name}." if is_field else outer)
        return changed
    if isinstance(condition, list | tuple):
        return [_operand(each, where, scales, outer) for each in cast("list[Any]", condition)]
    return plain({"": condition}, where)[""]


def _replaced(entry: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return an entry with another value for a field; the path to it leads through tables."""
    name, inner = path[0], path[1:]
    return {**entry, name: _replaced(entry[name], inner, value) if inner else value}


def _dates_as_text(value: Any) -> Any:
    """Return a value with TOML dates converted to text, the form that pydantic models use."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {key: _dates_as_text(each) for key, each in table.items()}
    if isinstance(value, list):
        return [_dates_as_text(each) for each in cast("list[Any]", value)]
    return value.isoformat() if isinstance(value, date | time) else value


def _value(entry: Mapping[str, Any], name: str) -> Any:
    if name == "_confidence":
        return confidence_of(entry)
    value = inner_value(decode_nulls(entry) if NULL_FIELD in entry else entry, name)
    # a hand edit may have added an unquoted date
    return value.isoformat() if isinstance(value, date | time) else value


def _equals(left: Any, right: Any) -> bool:
    """Return whether two values are equal; 1 and true are different."""
    return isinstance(left, bool) is isinstance(right, bool) and bool(left == right)


class FactFilter:
    """A predicate: whether an entry of a type meets the conditions of a query.

    Args:
        schema: The type of the facts.
        where: Values and conditions by field.
        session: The session that committed or last changed the facts; None is any.
        is_strict: Whether a value that a field cannot have is refused. Another type may have it.

    Raises:
        InvalidValue: An operator is unknown, or a value cannot be stored, or is no value of its field.
    """

    def __init__(
        self,
        schema: FactSchema,
        where: Mapping[str, Any],
        session: str | None,
        *,
        is_strict: bool,
    ) -> None:
        self._schema = schema
        self._session = session
        self._asked = set(fields_of(where))
        scales = {name: _scale(schema, name, is_strict=is_strict) for name in self._asked}
        self._scales = {name: scale for name, scale in scales.items() if scale is not None}
        normal = set(schema.constraint.normalised)
        self._is_compared = not normal.isdisjoint(self._asked)
        try:
            given = _normalised(where, normal) if self._is_compared else dict(where)
            conditions = {
                name: given.pop(name) for name in list(given) if is_condition(name, given[name])
            }
            conditions = _operand(conditions, schema.name, self._scales)
            self._meets = compile_filter(conditions) if conditions else None
            self._wanted = {
                name: self._scales[name].asked(value)
                if name in self._scales
                else plain({name: value}, schema.name)[name]
                for name, value in given.items()
            }
        except RecursionError:
            raise InvalidValue("nested too deep. Flatten it.", where="filter") from None

    def __call__(self, held: Held) -> bool:
        """Return whether an entry meets the conditions."""
        entry = held.entry
        sessions = (entry.get("_created_by"), entry.get("_updated_by"))
        if self._session is not None and self._session not in sessions:
            return False
        entry = self._schema.as_read(entry, self._asked, held.read)
        if self._is_compared:
            entry = self._schema.compared(entry)
        scaled = {
            name: scale.stored(value)
            for name, scale in self._scales.items()
            if (value := _value(entry, name)) is not None
        }
        for name, value in self._wanted.items():
            if not _equals(scaled[name] if name in scaled else _value(entry, name), value):
                return False
        if self._meets is None:
            return True
        fields = _dates_as_text(_fields(entry))
        for name, value in scaled.items():
            fields = _replaced(fields, name.split("."), value)
        return self._meets(fields)


def single_key(schema: FactSchema, where: Mapping[str, Any]) -> str | None:
    """Return the singleton key that a query selects, to skip all other facts; None if the query is broader."""
    names = [*schema.constraint.keys, *(schema.constraint.multi_valued or {}).values()]
    # 1 equals 1.0, but as parts of a key they differ. Numbers in tables are not looked for.
    if any("." in name or type(where.get(name)) in {int, float} for name in names):
        return None
    if any(name in where and _scale(schema, name) for name in names):
        return None  # one time or number has several spellings
    try:
        return schema.singleton(
            plain({n: v for n, v in where.items() if "." not in n and n[:1] != "$"}, schema.name)
        )
    except InvalidValue:
        return None


def _normalised(where: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a filter in which the texts compared with the fields `names` are normalised."""

    def operand(value: Any, operator: str = "$eq") -> Any:
        if isinstance(value, str):
            return normal_form(value) if operator in _EQUALITIES else value
        if isinstance(value, Mapping):
            table = cast("Mapping[str, Any]", value)
            return {name: operand(each, name) for name, each in table.items()}
        if isinstance(value, list | tuple):
            return [operand(each, operator) for each in cast("Sequence[Any]", value)]
        return value

    def joined(value: Any) -> Any:
        """Return the normalised operand of `$and`, `$or` or `$not`."""
        if isinstance(value, Mapping):
            return _normalised(cast("Mapping[str, Any]", value), names)
        if isinstance(value, list | tuple):
            return [joined(each) for each in cast("Sequence[Any]", value)]
        return value

    found: dict[str, Any] = {}
    for name, value in where.items():
        if name in names:
            found[name] = operand(value)
        else:
            found[name] = joined(value) if name.startswith("$") else value
    return found


def _fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of an entry with the managed fields that a query can name."""
    managed = {name: entry[name] for name in MANAGED if name in entry}
    return {**decode_nulls(entry_data(entry)), **managed, "_confidence": confidence_of(entry)}


def ordered(found: list[tuple[FactSchema, Held]], order_by: str) -> list[tuple[FactSchema, Held]]:
    """Return facts sorted by a field; facts without the field come last."""
    name = order_by.removeprefix("-")
    schemas = {schema.name: schema for schema, _ in found}
    scales = {each.name: _scale(each, name) for each in schemas.values()}

    def rank(each: tuple[FactSchema, Held]) -> tuple[str, Any]:
        schema, held = each
        value = _value(schema.as_read(held.entry, [name], held.read), name)
        scale = scales[schema.name]
        found = value if scale is None else scale.stored(value)
        if isinstance(found, bool | int | float):
            return ("number", found)
        if isinstance(found, datetime):
            return ("text", found.isoformat())  # another type may have dates
        return ("text", str(value)) if value is not None else ("", "")

    ranked = [(rank(each), each) for each in found]
    known = [each for each in ranked if each[0] != ("", "")]
    known.sort(key=itemgetter(0), reverse=order_by.startswith("-"))
    return [each for _, each in known] + [each for key, each in ranked if key == ("", "")]
