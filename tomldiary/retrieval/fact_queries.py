"""The filters of fact queries, and the order of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from pydantic import AwareDatetime, FutureDatetime, NaiveDatetime, PastDatetime
from pydantic_core import SchemaValidator, core_schema

from tomldiary.entries.constraints import normal_form
from tomldiary.entries.facts import confidence_of
from tomldiary.entries.fields import entry_data, plain
from tomldiary.errors import InvalidValue
from tomldiary.retrieval.filters import ExactNumber, compile_filter, fields_of, is_condition
from tomldiary.text.json_paths import inner_value
from tomldiary.toml.values import NULL_FIELD, decode_nulls, start_of

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


def _time(value: Any) -> Any:
    # "" is before all times.
    return start_of(value or "0001-01-01") if isinstance(value, str) else None


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


def _converted(
    value: Any,
    leaf: Callable[[Any, str, str], Any],
    readers: Mapping[str, _Reader],
    read: _Reader | None = None,
    *,
    name: str = "",
    operator: str = "$eq",
) -> Any:
    """Return a filter or a stored value in the form in which both are compared.

    Args:
        value: The filter or value, or a part of it.
        leaf: Converts what is no table and no list, given the field and the operator.
        readers: What reads the values of fields, by dotted path.
        read: What reads the values of this part; texts and numbers that it cannot read stay.
        name: The field of this part.
        operator: The operator that this part belongs to.
    """
    if isinstance(value, Mapping):
        found: dict[Any, Any] = {}
        for key, each in cast("Mapping[Any, Any]", value).items():
            is_operator = str(key).startswith("$")
            inner = name if is_operator else f"{name}.{key}" if name else key
            found[key] = _converted(
                each, leaf, readers, readers.get(inner, read),
                name=inner, operator=key if is_operator else "$eq",
            )  # fmt: skip
        return found
    if isinstance(value, list | tuple):
        return [
            _converted(each, leaf, readers, read, name=name, operator=operator)
            for each in cast("Sequence[Any]", value)
        ]
    value = leaf(value, name, operator)
    if isinstance(value, dict | list):  # it was a model, a set or another object
        return _converted(value, _stored, {}, read)
    if read is not None and type(value) in _SCALARS:
        with suppress(ArithmeticError, ValueError):
            made = read(value)
            return value if made is None else made
    return value


def _stored(value: Any, *_: str) -> Any:
    """Return a stored value; a date that a hand edit left unquoted as text, the form that pydantic models use."""
    return value.isoformat() if isinstance(value, date | time) else value


def _value(entry: Mapping[str, Any], name: str) -> Any:
    if name == "_confidence":
        return confidence_of(entry)
    fields = decode_nulls(entry) if NULL_FIELD in entry else entry
    return _stored(inner_value(fields, name))


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
        # A key may contain dots, so each beginning of a path may be one.
        splits = [name.split(".") for name in self._asked]
        self._used = {".".join(each[:end]) for each in splits for end in range(1, len(each) + 1)}
        self._readers = {
            name: read
            for name in self._asked
            if (read := _time if name in _TIMES else _reader(schema, name))
        }
        self._is_compared = not self._asked.isdisjoint(schema.constraint.normalised)
        try:
            given = _converted(where, self._operand, self._readers)
        except RecursionError:
            raise InvalidValue("nested too deep. Flatten it.", where="filter") from None
        conditions = {
            name: given.pop(name) for name, wanted in where.items() if is_condition(name, wanted)
        }
        self._meets = compile_filter(conditions) if conditions else None
        self._wanted: dict[str, Any] = given

    def _operand(self, value: Any, name: str, operator: str) -> Any:
        """Return a value of a filter in the form that files store; dates to order by stay dates."""
        if operator in _ORDERING and isinstance(value, date | time):
            return value
        place = f"{self._schema.name}.{name}" if operator == "$eq" and name else self._schema.name
        value = plain({"": value}, place)[""]
        is_normal = name in self._schema.constraint.normalised and operator in _EQUALITIES
        return normal_form(value) if is_normal and isinstance(value, str) else value

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
            if not _equals(value if read is None else _converted(value, _stored, {}, read), wanted):
                return False
        if self._meets is None:
            return True
        fields = _fields(entry)
        return self._meets(
            {
                name: _converted(
                    fields[name], _stored, self._readers, self._readers.get(name), name=name
                )
                for name in self._used
                if name in fields
            }
        )

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
        found = _converted(value, _stored, {}, read)
        if isinstance(found, bool | int | float | Decimal) and found == found:  # noqa: PLR0124 - NaN has no order
            return ("number", found)
        if isinstance(found, datetime):
            return ("text", found.isoformat())  # another type may have dates
        return ("text", str(value)) if value is not None else ("", "")

    ranked = [(rank(each), each) for each in found]
    known = [each for each in ranked if each[0] != ("", "")]
    known.sort(key=itemgetter(0), reverse=order_by.startswith("-"))
    return [each for _, each in known] + [each for key, each in ranked if key == ("", "")]
