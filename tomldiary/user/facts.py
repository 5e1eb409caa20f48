"""`alice.facts`: typed facts that are committed, changed and queried under the constraints of their type."""

from __future__ import annotations

from itertools import islice
from sys import maxsize
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from tomldiary.entries.fact_rules import FactRules, Provenance, unknown_fact
from tomldiary.entries.facts import Fact, FactList, Facts, Held, schema_named
from tomldiary.entries.fields import entry_data, plain
from tomldiary.errors import InvalidValue, SchemaError, printed, wrong_type
from tomldiary.history.record import Source
from tomldiary.retrieval.fact_queries import MANAGED, FactFilter, ordered
from tomldiary.retrieval.filters import fields_of
from tomldiary.runtime.async_bridge import async_twin
from tomldiary.toml.values import (
    checked_count,
    checked_flag,
    checked_limit,
    checked_table,
    checked_text,
    decode_nulls,
    timestamp,
)
from tomldiary.user.context import ListAccessor, session_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tomldiary.engine.transaction import Transaction
    from tomldiary.entries.constraints import FactSchema
    from tomldiary.errors import UnknownEntry
    from tomldiary.toml.values import When

_KIND = "facts"


class UserFacts(ListAccessor[Fact]):
    """The typed facts of one user, as `alice.facts`. `facts()` is short for `facts.query()`.

    Reads like the list of all valid facts: `for fact in facts`, `len(facts)`; and by id: `facts["diet/user"]`,
    `"diet/user" in facts`.
    """

    def __call__(
        self,
        type: str | None = None,  # noqa: A002 - see query
        where: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> FactList:
        """Return the valid facts of one type, or of all types; see `query`."""
        return self.query(type, where, limit)

    def commit(
        self,
        fact: BaseModel | str,
        data: Mapping[str, Any] | None = None,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        source: str = "",
        confidence: float = 1.0,
        force: bool = False,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        now: datetime | None = None,
        operation_id: str = "",
        ephemeral: bool = False,
    ) -> str:
        """Store a fact under the constraint of its type, and return its id, `type/key`.

        A type with a singleton key replaces the fact of that key, or ends its interval if the type is
        temporal. A type without one does not store an equal fact twice. The argument is not modified.

        Args:
            fact: An instance of a registered model, or the name of a type.
            data: The fields, if `fact` is a name.
            session_id: Stored in `_created_by` and `_updated_by`, and in history.
            actor: The author of the change, for history.
            reason: The reason for the change, for history.
            source: The turn that the fact was extracted from, `session#turn`, or the episode, `episodes/id`.
            confidence: The confidence of the source, from 0 to 1; stored in `_confidence`.
            force: Replace a fact even if its confidence is higher.
            valid_from: The start of the interval (UTC without a zone), for a temporal type; None is now.
            valid_to: The end of the interval; None lasts until another fact replaces it, and keeps the end
                of a stored fact that is confirmed or corrected.
            now: The time to store; None is the current time.
            operation_id: An idempotency key; a second call with the same key changes nothing.
            ephemeral: Whether the change becomes a draft of the session; see `UserDiary.draft`.

        Raises:
            SchemaError: The model or the name is not registered.
            InvalidValue, ImmutableEntry, LimitReached: A rule forbids it. Nothing was changed.
            WeakClaim: It would replace a fact with a higher confidence. Nothing was changed.
            Conflict: The operation id was used for a different change. Nothing was changed.
        """
        schema, stored = self._checked(fact, data)
        session_id = self._context.session(session_id)
        by = Provenance(
            timestamp(now), session_id, checked_text(source, "source"), confidence,
            checked_flag(force, "force"), valid_from, valid_to,
        )  # fmt: skip

        def change(tx: Transaction) -> str:
            return self._book(tx).commit(schema, stored, by)

        claim = [] if confidence == 1 and not force else [confidence, force]
        data = self._fingerprinted(operation_id, schema, stored)
        asked = (schema.name, data, str(valid_from), str(valid_to), source, *claim)
        why = Source("commit", session_id, actor, reason, operation_id, asked=asked)
        key = self._context.write(change, why, ephemeral=ephemeral, on_repeat=self._committed)
        return f"{schema.name}/{key}"

    acommit = async_twin(commit)

    def _fingerprinted(
        self, operation: str, schema: FactSchema, data: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the fields of a fact for a fingerprint; those of its key are names. See `UserContext.fingerprinted`."""
        texts = self._context.fingerprinted(operation, data)
        return {**texts, **{key: data[key] for key in schema.key_fields(data) if key in data}}

    def _committed(self, seq: int) -> str:
        """Return the key of the fact that a transaction committed."""
        return self._context.change_made(seq).key.split("/", 2)[2]

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
        ephemeral: bool = False,
    ) -> str:
        """Change fields of a fact, and return its id; for a temporal type, the id of the new interval.

        The new interval lasts until another fact replaces it, also if an end was given for the old one.

        Args:
            id: `type/key`, or `facts/type/key` as shown by `recall`.
            changes: New values by field; other fields are kept.
            session_id: Stored with the fact and in history.
            actor: The author of the change, for history.
            reason: The reason for the change, for history.
            valid_to: The end of a temporal fact's validity; `changes` must then be empty.
            now: The time to store, at which a temporal fact must hold; None is the current time.
            ephemeral: Whether the change becomes a draft of the session; see `UserDiary.draft`.

        Raises:
            UnknownEntry: There is no such fact.
            InvalidValue, ImmutableEntry, LimitReached: A rule forbids it. Nothing was changed.
        """
        session_id = self._context.session(session_id)
        by = Provenance(timestamp(now), session_id, end=valid_to)
        fact_id = self._fact_id(id)
        name = fact_id.partition("/")[0]
        fields = plain(checked_table(changes, "changes"), name)

        def change(tx: Transaction) -> str:
            return self._book(tx).update(fact_id, fields, by)

        asked = (fact_id, self._context.fingerprinted("", fields), str(valid_to))
        why = Source("update", session_id, actor, reason, asked=asked)
        return f"{name}/{self._context.write(change, why, ephemeral=ephemeral)}"

    aupdate = async_twin(update)

    def delete(
        self,
        id: str,  # noqa: A002 - see update
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        ephemeral: bool = False,
    ) -> dict[str, Any]:
        """Remove a fact from the file and return its fields. History keeps it.

        With `ephemeral` the removal becomes a draft of the session; see `UserDiary.draft`.

        Raises:
            UnknownEntry: There is no such fact.
            ImmutableEntry: Its type is immutable. Nothing was changed.
        """
        fact_id = self._fact_id(id)

        def change(tx: Transaction) -> Mapping[str, Any]:
            return self._book(tx).delete(fact_id)

        why = Source("delete", session_id, actor, reason, asked=(fact_id,))
        return decode_nulls(entry_data(self._context.write(change, why, ephemeral=ephemeral)))

    adelete = async_twin(delete)

    def get(self, id: str, *, valid_at: When | None = None) -> Fact | None:  # noqa: A002 - see update
        """Return a fact, or None; a singleton key names the temporal fact that was valid at `valid_at`.

        The id of an interval, as in `home/user@2020-01-01`, names it also after its end.

        Raises:
            SchemaError: The type is not registered.
        """
        fact_id = self._fact_id(id)
        book = self._facts()
        found = book.find(fact_id, self._context.moment(valid_at))
        if found is None or self._is_over(*found):
            return None
        return book.fact(*found)

    aget = async_twin(get)

    def query(
        self,
        type: str | None = None,  # noqa: A002 - what a fact's type is called everywhere
        where: Mapping[str, Any] | None = None,
        limit: int | None = None,
        offset: int = 0,
        order_by: str | None = None,
        *,
        session_id: str | None = None,
        valid_at: When | None = None,
        include_ended: bool = False,
    ) -> FactList:
        """Return the valid facts of one type, or of all types, that meet the conditions in `where`.

        Args:
            type: The registered name of the type; None is every type that has the fields in `where` and `order_by`.
            where: Values by field, including `_created _updated _created_by _updated_by _source _confidence _valid_from`.
                Inner fields are dotted paths. A field that the file lacks has the value with which the model reads the
                fact, such as its default; with None it stays missing. None matches an empty or missing field. A value
                can be a table of conditions, such as `{"$gt": 3}` or `{"$in": [1, 2]}`, and `$and`, `$or`, `$not` join
                filters, as in `DiaryStore.search`, where None matches no missing field.
            limit: The maximum number of facts; None is all.
            offset: The number of facts to skip.
            order_by: A field, or a managed field as in `where`; a minus before it sorts in descending
                order. Facts without the field come last. None is the order of the file.
            session_id: Return only facts that this session committed or last changed.
            valid_at: The time at which temporal facts must be valid, such as a date (its start); None is now.
            include_ended: Whether to include temporal facts of all times.

        Raises:
            SchemaError: The type is not registered.
            InvalidValue: The model has no such field, a number is negative, or an operator is unknown.
        """
        start = min(checked_count(offset, "offset"), maxsize)
        limit = checked_limit(limit)
        book = self._facts()
        found = self._matching(book, type, where, order_by, session_id, valid_at, include_ended)
        if order_by is not None:
            found = ordered(found, order_by)
        end = None if limit is None else min(start + limit, maxsize)
        return FactList(book.fact(*each) for each in islice(found, start, end))

    aquery = async_twin(query)

    def count(
        self,
        type: str | None = None,  # noqa: A002 - see query
        where: Mapping[str, Any] | None = None,
        *,
        session_id: str | None = None,
        valid_at: When | None = None,
        include_ended: bool = False,
    ) -> int:
        """Return the number of facts that `query` returns without a limit; conditions and errors are the same."""
        args = (where, None, session_id, valid_at, include_ended)
        return len(self._matching(self._facts(), type, *args))

    acount = async_twin(count)

    def __len__(self) -> int:
        # `list(facts)` asks for the length, too, and the query logs what is left out.
        return len(self._matching(self._facts(), is_told=False))

    def _unknown(self, id: str) -> UnknownEntry:  # noqa: A002 - see update
        return unknown_fact(self._fact_id(id))

    def _matching(
        self,
        book: Facts,
        name: str | None = None,
        where: Mapping[str, Any] | None = None,
        order_by: str | None = None,
        session_id: str | None = None,
        valid_at: When | None = None,
        include_ended: bool = False,  # noqa: FBT001, FBT002 - `query` has it by keyword
        *,
        is_told: bool = True,
    ) -> list[tuple[FactSchema, Held]]:
        """Return the facts that match a query, in the order of the file."""
        checked_text("" if name is None else name, "type", "Give the name of a registered type.")
        checked_text("" if order_by is None else order_by, "order_by")
        session_name(session_id)
        checked_flag(include_ended, "include_ended")
        given = dict(checked_table({} if where is None else where, "where"))
        at = self._context.moment(valid_at)
        asked = [*fields_of(given), *([order_by.removeprefix("-")] if order_by else ())]
        found: list[tuple[FactSchema, Held]] = []
        for schema in self._types(book, name, [each for each in asked if each not in MANAGED]):
            meets = FactFilter(schema, given, session_id)
            found += [
                (schema, held)
                for held in book.held(
                    schema.name, meets.single_key(given), matching=meets, is_told=is_told
                )
                if (include_ended or held.holds(at)) and not self._is_over(schema, held)
            ]
        return found

    def _is_over(self, schema: FactSchema, held: Held) -> bool:
        return self._context.is_over(f"{_KIND}/{schema.name}/{held.key}", held.entry)

    def _types(self, book: Facts, name: str | None, asked: Sequence[str]) -> list[FactSchema]:
        """Return the types that a query searches.

        Raises:
            SchemaError: The type is not registered.
            InvalidValue: The type, or without a name every type, lacks a field.
        """
        if name is not None:
            schema = book.schema(name)
            schema.check_fields(list(map(schema.field_of, asked)))
            return [schema]
        every = list(self._diary.fact_schemas.values())
        found = [
            each
            for each in every
            if each.is_open or each.fields.keys() >= set(map(each.field_of, asked))
        ]
        if every and not found:
            raise InvalidValue(
                f"no registered type of facts has the fields {', '.join(asked)}. The types are:"
                f" {', '.join(self._diary.fact_schemas)}.",
                where="query",
            )
        return found

    def _checked(
        self, fact: BaseModel | str, data: Mapping[str, Any] | None
    ) -> tuple[FactSchema, dict[str, Any]]:
        """Return the type of a fact, and its fields in the form that files store."""
        if not isinstance(fact, str):
            if data is not None:
                raise InvalidValue(
                    "fields can only be passed with the name of a type, not with a fact.",
                    where="data",
                )
            schema = self._schema_of(fact)
            return schema, schema.data(fact)
        schema = schema_named(self._diary.fact_schemas, fact)
        return schema, schema.checked_fields(plain({} if data is None else data, fact))

    def _schema_of(self, fact: BaseModel) -> FactSchema:
        if not isinstance(fact, BaseModel):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            named = next(iter(self._diary.fact_schemas), "name")
            hint = f'Fields need the name of their type: facts.commit("{named}", {{…}}).'
            raise wrong_type(fact, "an instance of a model", "fact", hint)
        model, schemas = type(fact), self._diary.fact_schemas.values()
        for each in model.__mro__:
            for schema in schemas:
                if schema.model is each:
                    return schema
        raise SchemaError(
            f"{model.__name__} is not registered. Call diary.register_schema(name,"
            f" {model.__name__}) first, and again after its class was defined again."
        )

    def _facts(self) -> Facts:
        return Facts(self._context.read(_KIND), self._diary.fact_schemas)

    def _book(self, tx: Transaction) -> FactRules:
        diary = self._diary
        redact = None if diary.redactor is None else diary.redacted_entry
        return FactRules(tx.entries(_KIND), diary.fact_schemas, redact)

    def _fact_id(self, written: str) -> str:
        """Return a fact's id, `type/key`; `recall` shows it as `facts/type/key`.

        Raises:
            InvalidValue: `written` is not text, or has no slash.
            SchemaError: It is the key of a preference.
        """
        is_shown = (
            checked_text(written, "id", "Give the `id` of the fact.").startswith(f"{_KIND}/")
            and _KIND not in self._diary.fact_schemas
        )
        found = written.removeprefix(f"{_KIND}/") if is_shown else written
        if "/" not in found:
            raise InvalidValue(
                f"expected type/key, found {printed(found)}. Give the `id` of the fact.", where="id"
            )
        name = found.partition("/")[0]
        if name in self._diary.allowed and name not in self._diary.fact_schemas:
            raise SchemaError(
                f"{printed(name)} is a category of preferences, no type of facts. Read it by"
                f" alice.preferences({name!r}), change it by alice.upsert_preference or alice.remove_preference."
            )
        return found
