"""The filters of fact queries, and the order of their results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from pydantic import AwareDatetime, FutureDatetime, NaiveDatetime, PastDatetime
from pydantic_core import SchemaValidator, core_schema

from tomldiary.entries.constraints import normal_form
from tomldiary.entries.facts import confidence_of
from tomldiary.entries.fields import entry_data, inner_value, plain
from tomldiary.errors import InvalidValue
from tomldiary.retrieval.filters import ExactNumber, compile_filter, fields_of, is_condition
from tomldiary.toml.values import NULL_FIELD, decode_nulls, moment

if TYPE_CHECKING:
    from tomldiary.entries.constraints import FactSchema
    from tomldiary.entries.facts import Held

_ORDERING = ("$gt", "$gte", "$lt", "$lte")
_EQUALITIES = ("$eq", "$ne", "$in", "$nin", "$not")
MANAGED = (
    "_created", "_updated", "_created_by", "_updated_by", "_source", "_confidence", "_valid_from",
)  # fmt: skip
"""The managed fields that a query can name."""
_Reader = Callable[[Any], Any]
_TIMES = ("_created", "_updated", "_valid_from")
_SCALARS = (str, int, float)
_DURATION = SchemaValidator(core_schema.timedelta_schema())
_STARTS = {0: "0001-01-01", 4: "-01-01", 7: "-01"}
"""What makes a date of a year or a month, by their lengths; "" is before all times."""


def _time(value: Any) -> Any:
    return moment(value + _STARTS.get(len(value), "")) if isinstance(value, str) else None


def _number(value: Any) -> Any:
    number = ExactNumber(str(value))  # of a float the digits that Python and files show
    return None if number.is_nan() else number


def _seconds(value: Any) -> Any:
    return _DURATION.validate_python(value).total_seconds() if isinstance(value, str) else None


_READERS: tuple[tuple[tuple[Any, ...], _Reader], ...] = (
    ((datetime, AwareDatetime, NaiveDatetime, PastDatetime, FutureDatetime), _time),
    ((Decimal,), _number),
    ((timedelta,), _seconds),
)
"""The types whose values are text in a file that does not compare as they do, and what reads it."""


def _reader(schema: FactSchema, name: str) -> _Reader | None:
    """Return what reads the stored values of a field; None if they compare as they are."""
    types = schema.types_at(name)
    # A field that may have text, too, such as "0041", compares as text. The keys of a table are always text.
    if str in types and dict not in types:
        return None
    return next((read for kinds, read in _READERS if any(each in kinds for each in types)), None)


def _converted(value: Any, read: _Reader) -> Any:
    """Return a value with the texts and numbers in it as read, or unchanged where that fails."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {key: _converted(each, read) for key, each in table.items()}
    if isinstance(value, list):
        return [_converted(each, read) for each in cast("list[Any]", value)]
    if type(value) in _SCALARS:
        with suppress(ArithmeticError, ValueError):
            found = read(value)
            return value if found is None else found
    return value


def _operand(condition: Any, where: str) -> Any:
    """Return a filter with values in the form that files store; operands of ordering operators stay dates."""
    if isinstance(condition, Mapping):
        table = cast("Mapping[Any, Any]", condition)
        return {
            key: value
            if key in _ORDERING and isinstance(value, date | time)
            else _operand(value, where)
            for key, value in table.items()
        }
    if isinstance(condition, list | tuple):
        return [_operand(each, where) for each in cast("list[Any]", condition)]
    return plain({"": condition}, where)[""]


def _with_read(condition: Any, readers: Mapping[str, _Reader], outer: str = "") -> Any:
    """Return a filter with the values for the fields of `readers` as read."""
    if isinstance(condition, list):
        return [_with_read(each, readers, outer) for each in cast("list[Any]", condition)]
    if not readers or not isinstance(condition, dict):
        return condition
    found: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", condition).items():
        name = outer if key.startswith("$") else f"{outer}.{key}" if outer else key
        found[key] = (
            _converted(value, readers[name])
            if name in readers
            else _with_read(value, readers, name)
        )
    return found


def _replace(fields: dict[str, Any], path: Sequence[str], read: _Reader) -> None:
    """Replace the value of a field, if the entry has it, by the value as read."""
    name, inner = path[0], path[1:]
    if isinstance(value := fields.get(name), dict) and inner:
        _replace(cast("dict[str, Any]", value), inner, read)
    elif name in fields and not inner:
        fields[name] = _converted(value, read)


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

    Raises:
        InvalidValue: An operator is unknown, or a value cannot be stored.
    """

    def __init__(self, schema: FactSchema, where: Mapping[str, Any], session: str | None) -> None:
        self._schema = schema
        self._session = session
        self._asked = set(fields_of(where))
        self._readers = {
            name: read
            for name in self._asked
            if (read := _time if name in _TIMES else _reader(schema, name))
        }
        normal = set(schema.constraint.normalised)
        self._is_compared = not normal.isdisjoint(self._asked)
        try:
            given = _normalised(where, normal) if self._is_compared else dict(where)
            conditions = {
                name: given.pop(name) for name in list(given) if is_condition(name, given[name])
            }
            conditions = _with_read(_operand(conditions, schema.name), self._readers)
            self._meets = compile_filter(conditions) if conditions else None
            self._wanted = _with_read(plain(given, schema.name), self._readers)
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
        for name, wanted in self._wanted.items():
            read, value = self._readers.get(name), _value(entry, name)
            if not _equals(value if read is None else _converted(value, read), wanted):
                return False
        if self._meets is None:
            return True
        fields = _dates_as_text(_fields(entry))
        for name, read in self._readers.items():
            _replace(fields, name.split("."), read)
        return self._meets(fields)

    def single_key(self, where: Mapping[str, Any]) -> str | None:
        """Return the singleton key that a query selects, to skip all other facts; None if the query is broader."""
        schema = self._schema
        names = [*schema.constraint.keys, *(schema.constraint.multi_valued or {}).values()]
        # 1 equals 1.0, and a time has several spellings, but as parts of a key they differ. Numbers in tables are not
        # looked for.
        if any(
            "." in name or name in self._readers or type(where.get(name)) in {int, float}
            for name in names
        ):
            return None
        try:
            return schema.singleton(
                plain(
                    {n: v for n, v in where.items() if "." not in n and n[:1] != "$"}, schema.name
                )
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
    readers = {each.name: _reader(each, name) for each in schemas.values()}

    def rank(each: tuple[FactSchema, Held]) -> tuple[str, Any]:
        schema, held = each
        value = _value(schema.as_read(held.entry, [name], held.read), name)
        read = readers[schema.name]
        found = value if read is None else _converted(value, read)
        if isinstance(found, bool | int | float | Decimal) and found == found:  # noqa: PLR0124 - NaN has no order
            return ("number", found)
        if isinstance(found, datetime):
            return ("text", found.isoformat())  # another type may have dates
        return ("text", str(value)) if value is not None else ("", "")

    ranked = [(rank(each), each) for each in found]
    known = [each for each in ranked if each[0] != ("", "")]
    known.sort(key=itemgetter(0), reverse=order_by.startswith("-"))
    return [each for _, each in known] + [each for key, each in ranked if key == ("", "")]
