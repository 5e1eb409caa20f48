"""`alice.facts`: typed facts, committed, changed and queried under the constraints of their type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from tomldiary.engine.transaction import Source, fingerprint
from tomldiary.entries.fact_rules import FactRules, Provenance
from tomldiary.entries.facts import Fact, Facts, Held
from tomldiary.entries.models import timestamp
from tomldiary.errors import InvalidValue, SchemaError
from tomldiary.retrieval.filters import compile_filter, fields_of, is_condition
from tomldiary.runtime.async_bridge import async_twin
from tomldiary.toml.values import NULL_FIELD, decode_nulls

if TYPE_CHECKING:
    from pydantic import BaseModel

    from tomldiary.engine.engine import Transaction
    from tomldiary.entries.constraints import FactSchema
    from tomldiary.user.context import UserContext

__all__ = ["UserFacts"]

_KIND = "facts"
_ORDERING = ("$gt", "$gte", "$lt", "$lte")
_MANAGED = ("_created", "_updated", "_created_by", "_updated_by", "_source")


class UserFacts:
    """The typed facts of one user, as `alice.facts`."""

    def __init__(self, context: UserContext) -> None:
        self._context = context
        self._diary = context.diary

    def __repr__(self) -> str:
        return f"UserFacts({self._context.user_id!r})"

    def commit(
        self,
        fact: BaseModel,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        source: str = "",
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        now: datetime | None = None,
        operation_id: str = "",
    ) -> str:
        """Store a fact under the constraint of its type, and return its id, `type/key`.

        With a singleton key, the fact of that key is replaced; of a temporal type, its interval ends. Without
        one, an equal fact is not stored twice. The object itself is not changed.

        Args:
            fact: An instance of a registered model.
            session_id: Stored in `_created_by` and `_updated_by`, and in history.
            actor: Who makes the change, for history.
            reason: Why, for history.
            source: The turn it was extracted from, `session#turn`.
            valid_from: Start of its interval (without a zone: UTC), for a temporal type; None is now.
            valid_to: End of its interval; None lasts until another fact replaces it.
            now: The time to write down; None is the current time.
            operation_id: Your idempotency key; the same one a second time changes nothing.

        Raises:
            SchemaError: The model is not registered.
            InvalidValue, ImmutableEntry, LimitReached: A rule forbids it. Nothing was changed.
            Conflict: The operation id was used for a different change. Nothing was changed.
        """
        self._context.refuse_nested(operation_id)
        schema = self._schema_of(fact)
        data = schema.data(fact)
        session_id = self._context.session(session_id)
        by = Provenance(timestamp(now), session_id, source)

        def change(tx: Transaction) -> str:
            book = FactRules(tx.entries(_KIND), self._diary.fact_schemas)
            return book.commit(schema, data, by, start=valid_from, end=valid_to)

        asked = fingerprint("commit", schema.name, data, str(valid_from), str(valid_to), source)
        why = Source("commit", session_id, actor, reason, operation_id, asked)
        key = self._context.write(
            change, why, on_repeat=lambda seq: self._context.change_made(seq).key.split("/", 2)[2]
        )
        return f"{schema.name}/{key}"

    acommit = async_twin(commit)

    def update(
        self,
        id: str,  # noqa: A002 - the word of MemState, from which this verb comes
        changes: Mapping[str, Any],
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        valid_to: datetime | None = None,
        now: datetime | None = None,
    ) -> str:
        """Change fields of a fact, and return its id; of a temporal type that of the new interval.

        Args:
            id: `type/key`, or `facts/type/key` as `recall` shows it.
            changes: New values by field; other fields stay.
            session_id: Stored with the fact and in history.
            actor: Who makes the change, for history.
            reason: Why, for history.
            valid_to: When a temporal fact ceased to hold; `changes` is then empty.
            now: The time to write down; None is the current time.

        Raises:
            UnknownEntry: There is no such fact.
            InvalidValue, ImmutableEntry: A rule forbids it. Nothing was changed.
        """
        session_id = self._context.session(session_id)
        by = Provenance(timestamp(now), session_id)
        fact_id = self._fact_id(id)
        name = fact_id.partition("/")[0]
        plain = _plain(changes, name)

        def change(tx: Transaction) -> str:
            return FactRules(tx.entries(_KIND), self._diary.fact_schemas).update(
                fact_id, plain, by, end=valid_to
            )

        asked = fingerprint("update", fact_id, plain, str(valid_to))
        why = Source("update", session_id, actor, reason, content=asked)
        return f"{name}/{self._context.write(change, why)}"

    aupdate = async_twin(update)

    def delete(
        self,
        id: str,  # noqa: A002 - see update
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
    ) -> dict[str, Any]:
        """Remove a fact from the file and return its fields; history keeps it.

        Raises:
            UnknownEntry: There is no such fact.
            ImmutableEntry: Its type is immutable. Nothing was changed.
        """
        fact_id = self._fact_id(id)

        def change(tx: Transaction) -> Mapping[str, Any]:
            return FactRules(tx.entries(_KIND), self._diary.fact_schemas).delete(fact_id)

        why = Source("delete", session_id, actor, reason, content=fingerprint("delete", fact_id))
        return _shown(self._context.write(change, why))

    adelete = async_twin(delete)

    def get(self, id: str, *, valid_at: datetime | None = None) -> Fact | None:  # noqa: A002 - see update
        """Return a fact, or None; a temporal one also by its singleton key, as it held at a time.

        Raises:
            SchemaError: The type is not registered.
        """
        fact_id = self._fact_id(id)
        book = self._facts()
        found = book.find(fact_id, self._context.moment(valid_at))
        return None if found is None else book.fact(*found)

    aget = async_twin(get)

    def query(
        self,
        type: str,  # noqa: A002 - what a fact's type is called everywhere
        where: Mapping[str, Any] | None = None,
        limit: int | None = None,
        offset: int = 0,
        order_by: str | None = None,
        *,
        session_id: str | None = None,
        valid_at: datetime | None = None,
        include_ended: bool = False,
    ) -> list[Fact]:
        """Return the facts of a type that hold, and that meet the conditions in `where`.

        Args:
            type: The name the type was registered under.
            where: Values by field; inner fields with dots. None is a field that is empty or missing. A
                value can be a table of conditions, such as `{"$gt": 3}` or `{"$in": [1, 2]}`, and `$and`,
                `$or`, `$not` join filters, as in `DiaryStore.search`.
            limit: Most facts returned.
            offset: How many to leave out before them.
            order_by: A field, or one of `_created _updated _created_by _updated_by _source`; with a
                minus in front descending. Facts without it come last. None is the order of the file.
            session_id: Only facts that this session committed or last changed.
            valid_at: When temporal facts have to hold; None is now.
            include_ended: Temporal facts of all times.

        Raises:
            SchemaError: The type is not registered.
            InvalidValue: The model has no such field, a number is negative, or an operator is unknown.
        """
        self._check_type(type)
        book = self._facts()
        schema = book.schema(type)
        given = dict(where or {})
        schema.check_fields([name.partition(".")[0] for name in fields_of(given)])
        conditions = {
            name: given.pop(name) for name in list(given) if is_condition(name, given[name])
        }
        meets = compile_filter(_operand(conditions, type)) if conditions else None
        wanted = _plain(given, type)
        if offset < 0 or (limit is not None and limit < 0):
            raise InvalidValue("limit and offset are not negative.", where="query")
        at = self._context.moment(valid_at)

        def matches(entry: Mapping[str, Any]) -> bool:
            return (
                (session_id is None or session_id in _sessions(entry))
                and all(_equals(_value(entry, name), value) for name, value in wanted.items())
                and (meets is None or meets(_dates_as_text(_shown(entry))))
            )

        found = [
            held for held in book.held(type, matching=matches) if include_ended or held.holds(at)
        ]
        if order_by is not None:
            found = _ordered(schema, found, order_by)
        end = None if limit is None else offset + limit
        return [book.fact(schema, held) for held in islice(found, offset, end)]

    aquery = async_twin(query)

    def _schema_of(self, fact: BaseModel) -> FactSchema:
        for kind in type(fact).__mro__:
            for schema in self._diary.fact_schemas.values():
                if schema.model is kind:
                    return schema
        raise SchemaError(
            f"{type(fact).__name__} is not registered. Call diary.register_schema(name,"
            f" {type(fact).__name__}) first."
        )

    def _facts(self) -> Facts:
        return Facts(self._context.read(_KIND), self._diary.fact_schemas)

    def _fact_id(self, written: str) -> str:
        """Return a fact's id, `type/key`, also from the form `facts/type/key` that `recall` shows.

        Raises:
            SchemaError: It names a preference.
        """
        is_shown = written.startswith(f"{_KIND}/") and _KIND not in self._diary.fact_schemas
        found = written.removeprefix(f"{_KIND}/") if is_shown else written
        self._check_type(found.partition("/")[0])
        return found

    def _check_type(self, name: str) -> None:
        """Refuse a category of preferences as a type of facts.

        Raises:
            SchemaError: `name` is a category.
        """
        if name in self._diary.allowed and name not in self._diary.fact_schemas:
            raise SchemaError(
                f"{name!r} is a category of preferences; alice.facts is about facts."
                f" Use preferences({name!r}), upsert_preference({name!r}, …) or"
                f" remove_preference({name!r}, …)."
            )


def _plain(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return values in the form in which files store them.

    Raises:
        InvalidValue: A value cannot be stored.
    """
    try:
        return {name: to_jsonable_python(value, by_alias=True) for name, value in values.items()}
    except PydanticSerializationError as error:
        raise InvalidValue(f"{error}.", where=where) from None


def _operand(condition: Any, where: str) -> Any:
    """Return a filter with values as files store them; operands of ordering operators stay dates."""
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
    return _plain({"": condition}, where)[""]


def _dates_as_text(value: Any) -> Any:
    """Return a value with unquoted TOML dates as text, as models have them."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {key: _dates_as_text(each) for key, each in table.items()}
    if isinstance(value, list):
        return [_dates_as_text(each) for each in cast("list[Any]", value)]
    return value.isoformat() if isinstance(value, date | time) else value


def _value(entry: Mapping[str, Any], name: str) -> Any:
    value: Any = decode_nulls(entry) if NULL_FIELD in entry else entry
    for part in name.split("."):
        value = cast("Mapping[str, Any]", value).get(part) if isinstance(value, Mapping) else None
    # a hand edit may have written a date without quotes
    return value.isoformat() if isinstance(value, date | time) else value


def _equals(left: Any, right: Any) -> bool:
    """Return whether two values are equal; 1 is not true."""
    return isinstance(left, bool) is isinstance(right, bool) and bool(left == right)


def _sessions(entry: Mapping[str, Any]) -> Iterable[Any]:
    return (entry.get("_created_by"), entry.get("_updated_by"))


def _ordered(schema: FactSchema, found: list[Held], order_by: str) -> list[Held]:
    name = order_by.removeprefix("-")
    if name not in _MANAGED:
        schema.check_fields([name.partition(".")[0]])

    def rank(held: Held) -> tuple[str, Any]:
        value = held.entry.get(name) if name in _MANAGED else _value(held.entry, name)
        if isinstance(value, bool | int | float):
            return ("number", value)
        return ("text", str(value)) if value is not None else ("", "")

    known = [held for held in found if rank(held) != ("", "")]
    empty = [held for held in found if rank(held) == ("", "")]
    return sorted(known, key=rank, reverse=order_by.startswith("-")) + empty


def _shown(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in decode_nulls(entry).items() if not key.startswith("_")}
