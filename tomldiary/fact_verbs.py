"""The typed facts of one user: committed, changed and asked for under the constraints of their type."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from tomldiary.errors import InvalidValue, SchemaError
from tomldiary.fact_rules import FactRules, Provenance
from tomldiary.facts import Fact, Facts, facts_document
from tomldiary.intervals import in_utc
from tomldiary.models import timestamp
from tomldiary.toml.values import NULL_FIELD, decode_nulls
from tomldiary.transaction import Source, fingerprint
from tomldiary.twins import async_twin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import BaseModel

    from tomldiary.constraints import FactSchema
    from tomldiary.engine import Engine, Transaction
    from tomldiary.intervals import Held
    from tomldiary.toml.document import Document

__all__ = ["FactVerbs"]

_KIND = "facts"
_MANAGED = ("_created", "_updated", "_created_by", "_updated_by", "_source")


class FactVerbs:
    """The part of `UserDiary` that is about typed facts."""

    diary: Any
    user_id: str
    _engine: Engine

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
    ) -> str:
        """Store a fact under the constraint of its type, and return its id, `type/key`.

        With a singleton key the fact of that key is replaced, or of a temporal type ended; without one
        a fact that is there already is not stored twice. The object given is left as it is.

        Args:
            fact: An instance of a registered model.
            session_id: Kept in `_created_by` and `_updated_by`, and in history.
            actor: Who does it, for history.
            reason: Why, for history.
            source: The turn it is taken from, `session#turn`.
            valid_from: From when on it holds (without a zone: UTC), for a temporal type; None is now.
            valid_to: Until when; None is until another fact replaces it.
            now: The time to write down; None is the time now.

        Raises:
            SchemaError: The model is not registered.
            InvalidValue, ImmutableEntry, LimitReached: The rules say no. Nothing was changed.
        """
        schema = self._schema_of(fact)
        data = schema.data(fact)
        session_id = session_id or self._engine.session_here(self.user_id)
        by = Provenance(timestamp(now), session_id, source)

        def change(tx: Transaction) -> str:
            book = FactRules(tx.edit(_KIND), self.diary.fact_schemas)
            return book.commit(schema, data, by, start=valid_from, end=valid_to)

        asked = fingerprint("commit", schema.name, data, str(valid_from), str(valid_to), source)
        why = Source("commit", session_id, actor, reason, content=asked)
        return f"{schema.name}/{self._engine.write(self.user_id, change, why)}"

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
            id: `type/key`.
            changes: New values by field; a field that is not named stays.
            session_id: For history and the fact, like `actor` and `reason` for history alone.
            actor: Who does it.
            reason: Why.
            valid_to: When a temporal fact stopped to hold; `changes` is then empty.
            now: The time to write down; None is the time now.

        Raises:
            UnknownEntry: There is no such fact.
            InvalidValue, ImmutableEntry: The rules say no. Nothing was changed.
        """
        session_id = session_id or self._engine.session_here(self.user_id)
        by = Provenance(timestamp(now), session_id)
        name = id.partition("/")[0]
        plain = _plain(changes, name)

        def change(tx: Transaction) -> str:
            return FactRules(tx.edit(_KIND), self.diary.fact_schemas).update(
                id, plain, by, end=valid_to
            )

        asked = fingerprint("update", id, plain, str(valid_to))
        why = Source("update", session_id, actor, reason, content=asked)
        return f"{name}/{self._engine.write(self.user_id, change, why)}"

    aupdate = async_twin(update)

    def delete(
        self,
        id: str,  # noqa: A002 - see update
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
    ) -> dict[str, Any]:
        """Remove a fact from the file and return its fields; history keeps it, see `forget`.

        Raises:
            UnknownEntry: There is no such fact.
            ImmutableEntry: Its type is immutable. Nothing was changed.
        """

        def change(tx: Transaction) -> Mapping[str, Any]:
            return FactRules(tx.edit(_KIND), self.diary.fact_schemas).delete(id)

        why = Source("delete", session_id, actor, reason, content=fingerprint("delete", id))
        return _shown(self._engine.write(self.user_id, change, why))

    adelete = async_twin(delete)

    def get(self, id: str, *, valid_at: datetime | None = None) -> Fact | None:  # noqa: A002 - see update
        """Return a fact, or None; a temporal one also by its singleton key, as it held at a time.

        Raises:
            SchemaError: The type is not registered.
        """
        book = self._facts()
        found = book.find(id, _moment(valid_at))
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
        """Return the facts of a type that hold, and whose fields equal those in `where`.

        Args:
            type: The name the type was registered under.
            where: Values by field; inner fields with dots. None is a field that is empty or missing.
            limit: Most facts returned.
            offset: How many to leave out before them.
            order_by: A field, or one of `_created _updated _created_by _updated_by _source`; with a
                minus in front descending. Facts without it come last. None is the order of the file.
            session_id: Only facts that this session committed or last changed.
            valid_at: When temporal facts have to hold; None is now.
            include_ended: Temporal facts of all times.

        Raises:
            SchemaError: The type is not registered.
            InvalidValue: The model has no such field, or a number is negative.
        """
        book = self._facts()
        schema = book.schema(type)
        wanted = _plain(where or {}, type)
        schema.check_fields([name.partition(".")[0] for name in wanted])
        if offset < 0 or (limit is not None and limit < 0):
            raise InvalidValue("limit and offset are not negative.", where="query")
        at = _moment(valid_at)

        def matches(entry: Mapping[str, Any]) -> bool:
            return (session_id is None or session_id in _sessions(entry)) and all(
                _equals(_value(entry, name), value) for name, value in wanted.items()
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
        schemas = cast("Mapping[str, FactSchema]", self.diary.fact_schemas)
        for kind in type(fact).__mro__:
            for schema in schemas.values():
                if schema.model is kind:
                    return schema
        raise SchemaError(
            f"{type(fact).__name__} is not registered. Call diary.register_schema(name,"
            f" {type(fact).__name__}) first."
        )

    def _facts(self) -> Facts:
        return Facts(self._facts_document(), self.diary.fact_schemas)

    def _facts_document(self) -> Document:
        return facts_document(self._engine, self.user_id, self.diary.fact_schemas)

    def _fact_problems(self) -> Iterator[InvalidValue]:
        return self._facts().problems()


def _plain(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return values as the file holds them.

    Raises:
        InvalidValue: A value that no file can hold.
    """
    try:
        return {name: to_jsonable_python(value, by_alias=True) for name, value in values.items()}
    except PydanticSerializationError as error:
        raise InvalidValue(f"{error}.", where=where) from None


def _value(entry: Mapping[str, Any], name: str) -> Any:
    value: Any = decode_nulls(entry) if NULL_FIELD in entry else entry
    for part in name.split("."):
        value = cast("Mapping[str, Any]", value).get(part) if isinstance(value, Mapping) else None
    # A person may have written a date without quotes.
    return value.isoformat() if isinstance(value, date | time) else value


def _equals(left: Any, right: Any) -> bool:
    """Tell whether two values are equal; 1 is not true."""
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


def _moment(given: datetime | None) -> datetime:
    return datetime.now(UTC) if given is None else in_utc(given)


def _shown(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in decode_nulls(entry).items() if not key.startswith("_")}
