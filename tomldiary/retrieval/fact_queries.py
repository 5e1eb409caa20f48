"""The filters of fact queries, and the order of their results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date, time
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.constraints import normal_form
from tomldiary.entries.facts import confidence_of
from tomldiary.entries.fields import entry_data, inner_value, plain
from tomldiary.errors import InvalidValue
from tomldiary.retrieval.filters import compile_filter, fields_of, is_condition
from tomldiary.toml.values import NULL_FIELD, decode_nulls

if TYPE_CHECKING:
    from tomldiary.entries.constraints import FactSchema
    from tomldiary.entries.facts import Held

_ORDERING = ("$gt", "$gte", "$lt", "$lte")
_EQUALITIES = ("$eq", "$ne", "$in", "$nin", "$not")
MANAGED = (
    "_created", "_updated", "_created_by", "_updated_by", "_source", "_confidence", "_valid_from",
)  # fmt: skip
"""The managed fields that a query can name."""


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
        normal = set(schema.constraint.normalised)
        self._is_compared = not normal.isdisjoint(self._asked)
        try:
            given = _normalised(where, normal) if self._is_compared else dict(where)
            conditions = {
                name: given.pop(name) for name in list(given) if is_condition(name, given[name])
            }
            self._meets = compile_filter(_operand(conditions, schema.name)) if conditions else None
            self._wanted = plain(given, schema.name)
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
        if not all(_equals(_value(entry, name), value) for name, value in self._wanted.items()):
            return False
        return self._meets is None or self._meets(_dates_as_text(_fields(entry)))


def single_key(schema: FactSchema, where: Mapping[str, Any]) -> str | None:
    """Return the singleton key that a query selects, to skip all other facts; None if the query is broader."""
    names = [*schema.constraint.keys, *(schema.constraint.multi_valued or {}).values()]
    # 1 equals 1.0, but as parts of a key they differ. Numbers in tables are not looked for.
    if any("." in name or type(where.get(name)) in {int, float} for name in names):
        return None
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

    def rank(each: tuple[FactSchema, Held]) -> tuple[str, Any]:
        schema, held = each
        value = _value(schema.as_read(held.entry, [name], held.read), name)
        if isinstance(value, bool | int | float):
            return ("number", value)
        return ("text", str(value)) if value is not None else ("", "")

    ranked = [(rank(each), each) for each in found]
    known = [each for each in ranked if each[0] != ("", "")]
    known.sort(key=itemgetter(0), reverse=order_by.startswith("-"))
    return [each for _, each in known] + [each for key, each in ranked if key == ("", "")]
