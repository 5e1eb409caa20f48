"""The facts document: one table for each fact, below the name of its type.

    [facts.diet.user]               # the key is made from the singleton key
    role = "user"
    food = "vegan"
    _created = "…"

The key of a fact of a temporal type contains the start of its interval. The fact is valid from `_valid_from` until the
next one with the same singleton key begins, or until `_valid_to` if that is set. The start of the next fact is not
stored as the end of an interval, so facts may arrive in any order and a removed fact leaves no gap.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tomldiary.entries.fields import entry_data, tables_at
from tomldiary.entries.incremental_index import Marked, ask
from tomldiary.errors import InvalidValue, SchemaError, printed
from tomldiary.logging import get_logger
from tomldiary.runtime.forgettable_cache import cleared_on_forget
from tomldiary.runtime.views import ListView, Viewed, counted
from tomldiary.toml.values import decode_nulls, moment, render_path, same_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tomldiary.entries.constraints import FactSchema
    from tomldiary.entries.kind import Tables

T = TypeVar("T")
_ROOT = "facts"
_RANDOM_KEY = re.compile(r"fact-[0-9a-f]{8}")
_HASHED = frozenset({str, int, bool})
"""The types of values whose equal values have equal hashes; not float, because NaN equals NaN here."""
_TEXTS = ("_created", "_updated", "_created_by", "_updated_by", "_source")
_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class Fact(Viewed):
    """A copy of one fact at the time of reading."""

    id: str
    """The id `type/key`, as returned by `commit`."""
    type: str
    data: Any
    """An instance of the type's model, which no type checker can derive from the name of the type."""
    created: str
    updated: str
    created_by: str
    """The session that first committed the fact."""
    updated_by: str
    source: str
    """The turn that it was extracted from, as `session#turn`, if known."""
    valid_from: datetime | None = None
    """The start of its validity; None if it has no start."""
    valid_to: datetime | None = None
    """The end of its validity; None if it has not ended."""
    confidence: float = 1.0
    """The confidence of its source, from 0 to 1."""


class FactList(ListView[Fact]):
    """The facts that a query found."""


class Facts:
    """Reads the facts document, or an edit of it.

    Args:
        tables: A document, or an edit of it.
        schemas: The registered types by name.
    """

    def __init__(self, tables: Tables, schemas: Mapping[str, FactSchema]) -> None:
        self._tables = tables
        self._schemas = schemas

    # Reading

    def schema(self, name: str) -> FactSchema:
        """Return the schema of a type.

        Raises:
            SchemaError: The type is not registered.
        """
        return schema_named(self._schemas, name)

    def entry(self, name: str, key: str) -> Mapping[str, Any] | None:
        """Return an entry unchanged, valid or not."""
        return self._tables.table((_ROOT, name, key))

    def find(self, fact_id: str, at: datetime | None = None) -> tuple[FactSchema, Held] | None:
        """Return a valid fact by id, or a temporal one by its singleton key, with its state at `at`.

        Raises:
            SchemaError: The type is not registered.
        """
        name, _, key = fact_id.partition("/")
        schema = self.schema(name)
        moment = at or datetime.now(UTC)
        entry = self.entry(name, key)
        if not schema.constraint.temporal:
            if entry is None or self.wrong(schema, key, entry) is not None:
                return None
            return schema, Held(key, entry, None, None)
        # A value of the singleton key may itself end with a time, like the key of an interval.
        head = key if entry is None else group_of(schema, key)
        group = self.held(name, head)
        exact = (held for held in group if held.key == key)
        now = (held for held in group if head == key and held.holds(moment))
        # An entry with the bare singleton key, written by hand or before its type was temporal, may have ended.
        found = next(now, None) or next(exact, None)
        return None if found is None else (schema, found)

    def alike(self, name: str, data: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the entries of a type with equal data, valid or not, in the order of the file."""
        schema = self.schema(name)
        wanted = schema.compared(data)
        found = self._ask(name, lambda index: index.alike(wanted))
        return [(key, entry) for key, entry in found if self.says(schema, entry, wanted)]

    @staticmethod
    def says(schema: FactSchema, entry: Mapping[str, Any], compared: Mapping[str, Any]) -> bool:
        """Return whether an entry has equal data, as it is stored or as its model reads it.

        The two differ if another version of the program, with other fields, stored the entry.

        Args:
            schema: The type.
            entry: The entry.
            compared: The data, from `FactSchema.compared`.
        """
        return any(same_value(data, compared) for data in _said(schema, entry))

    def count(self, name: str) -> int:
        """Return the number of entries of a type, valid or not."""
        return self._ask(name, lambda index: index.count)

    def holding(self, name: str, group: str, at: datetime) -> Held | None:
        """Return the temporal fact of a singleton key that holds at a time."""
        known = self._ask(name, lambda index: index.held(group))
        # Each fact ends when the next one begins; of several with the same start, the last one in the file counts.
        begun = [held for held in reversed(known) if held and (held.start or ALWAYS) <= at]
        last = max(begun, key=lambda held: held.start or ALWAYS, default=None)
        return last if last and last.holds(at) else None

    def _ask(self, name: str, question: Callable[[FactIndex], T]) -> T:
        schema = self.schema(name)
        key = (FactIndex, name, id(schema))  # the index keeps the schema alive
        return ask(
            self._tables,
            key,
            lambda: FactIndex(name, schema),
            lambda: self._tables.table((_ROOT, name)) or {},
            question,
        )

    def held(
        self,
        name: str,
        group: str | None = None,
        *,
        matching: Callable[[Held], bool] | None = None,
        is_told: bool = True,
    ) -> list[Held]:
        """Return the entries of a type that can be read, in the order of the file.

        Args:
            name: The type.
            group: A singleton key; if given, only its entries are returned.
            matching: A filter; if given, only entries for which it returns True are returned.
            is_told: Whether the number of entries that cannot be read is logged.
        """
        schema = self.schema(name)
        known = self._ask(name, lambda index: index.held(group))
        found = [held for held in known if held is not None]
        left_out = len(known) - len(found)
        if schema.constraint.temporal:  # before the filter, because each entry may end another
            found = chained(schema, found)
        found = [held for held in found if matching is None or matching(held)]
        if left_out and is_told:
            _logger.warning(
                "%s of type %s left out; problems() says why", counted(left_out, "fact"), name
            )
        return found

    def unregistered(self, name: str) -> list[Held]:
        """Return the entries of a type that is not registered, valid or not, with the intervals that their keys imply."""
        found = tables_at(self._tables, _ROOT, name)
        return chained(None, [Held(key, entry, *interval(entry)) for key, entry in found])

    def fact(self, schema: FactSchema, held: Held) -> Fact:
        """Return an entry as a typed fact."""
        entry = held.entry
        return Fact(
            f"{schema.name}/{held.key}",
            schema.name,
            schema.parse(entry),
            *(str(entry.get(name, "")) for name in _TEXTS),
            valid_from=held.start,
            valid_to=held.end,
            confidence=confidence_of(entry),
        )

    @staticmethod
    def wrong(
        schema: FactSchema, key: str, entry: Mapping[str, Any], where: str = ""
    ) -> InvalidValue | None:
        """Return the error of an invalid entry, or None; `where` is its place, which is derived if empty."""
        try:
            schema.parse(entry, where)
            derived = schema.singleton(decode_nulls(entry))
        except InvalidValue as error:
            place = render_path((_ROOT, schema.name, key))
            return error if where else Facts.wrong(schema, key, entry, place)
        except Exception as error:  # noqa: BLE001 - of a function of the model; other entries stay readable
            message = f"{schema.model.__name__} raised {error!r}. Correct the entry, or the function of the model."
            return InvalidValue(message, where=render_path((_ROOT, schema.name, key)))
        if derived is not None and group_of(schema, key) != derived:
            start = interval(entry)[0] if schema.constraint.temporal else None
            right = f", or {f'{derived}@{short(start)}'!r} with its start" if start else ""
            return InvalidValue(
                f"its fields say that its key is {derived!r}{right}. Rename the table, mend the fields,"
                " or register the type with the singleton key that it had.",
                where=render_path((_ROOT, schema.name, key)),
            )
        return None


def schema_named(schemas: Mapping[str, FactSchema], name: str) -> FactSchema:
    """Return the schema of a type.

    Raises:
        SchemaError: The type is not registered.
    """
    found = schemas.get(name)
    if found is None:
        known = f"Use one of: {', '.join(schemas)}. A program adds" if schemas else "Add"
        raise SchemaError(
            f"the fact type {printed(name)} is not registered. {known} types with diary.register_schema."
        )
    return found


def stored_facts(tables: Tables) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the type, key and fields of all tables that look like facts, whether their types are registered or not."""
    for name, _ in tables_at(tables, _ROOT):
        for key, entry in tables_at(tables, _ROOT, name):
            yield name, key, entry


def confidence_of(entry: Mapping[str, Any]) -> float:
    """Return the confidence of the source of an entry, from 0 to 1; 1 if none is stored."""
    found: Any = entry.get("_confidence", 1.0)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return min(1.0, max(0.0, float(found))) if is_number else 1.0


class FactIndex(Marked):
    """Indexes the facts of a type by singleton key and by data."""

    def __init__(self, category: str, schema: FactSchema) -> None:
        super().__init__(category)
        self._schema = schema

    def _clear(self) -> None:
        super()._clear()
        self._held: dict[int, Held | None] = {}

    def held(self, head: str | None) -> list[Held | None]:
        """Return the entries of a singleton key, or all entries, in the order of the file; None for an invalid entry."""
        places = range(len(self._marks)) if head is None else sorted(self._marked.get(head, ()))
        return [self._read(place) for place in places if self._marks[place]]

    def _read(self, place: int) -> Held | None:
        if place not in self._held:
            key, entry = self._keys[place], self._entries[place]
            wrong = Facts.wrong(self._schema, key, entry)
            self._held[place] = Held(key, entry, *interval(entry), {}) if wrong is None else None
        return self._held[place]

    def alike(self, data: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the entries that may have equal data, in the order of the file."""
        places = sorted(self._marked.get(_equality_hash(data), ()))
        return [(self._keys[place], self._entries[place]) for place in places]

    def _marks_of(self, key: str, entry: Mapping[str, Any]) -> tuple[str | int, ...]:
        hashes = {_equality_hash(data) for data in _said(self._schema, entry)}
        return (group_of(self._schema, key), *hashes)

    def _unmark(self, number: int) -> None:
        super()._unmark(number)
        self._held.pop(number, None)


def _said(schema: FactSchema, entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the data of an entry as stored, and if a field is missing or unknown, as its model reads them."""
    stored = entry_data(entry)
    yield schema.compared(stored)
    if not schema.always_stored <= stored.keys() <= schema.fields.keys():
        with suppress(InvalidValue):
            yield schema.compared(schema.checked(decode_nulls(stored)))


def _equality_hash(data: Mapping[str, Any]) -> int:
    """Return a hash of the names and the single values, which is the same for equal data."""
    return hash(
        tuple([(key, data[key] if type(data[key]) in _HASHED else None) for key in sorted(data)])
    )


# The time in which a fact holds


ALWAYS = datetime.min.replace(tzinfo=UTC)
"""The start of facts without a start."""


class Held(NamedTuple):
    """A valid entry, and the interval in which it holds."""

    key: str
    entry: Mapping[str, Any]
    start: datetime | None
    end: datetime | None
    read: dict[str, Any] | None = None
    """Keeps the fields as the model reads them for the next query; None keeps none."""

    def holds(self, at: datetime) -> bool:
        """Return whether the entry holds at a time."""
        return (self.start or ALWAYS) <= at and (self.end is None or at < self.end)


def group_of(schema: FactSchema, key: str) -> str:
    """Return the part of a key that is the singleton key."""
    return head_of(key) if schema.constraint.temporal else key


@cleared_on_forget
@lru_cache(maxsize=16384)
def head_of(key: str) -> str:
    """Return a key without the start time at its end."""
    head, at, tail = key.rpartition("@")
    return head if at and moment(tail) is not None else key


def random_key() -> str:
    """Return a key for a fact without a singleton key; the key of a removed fact is not assigned again."""
    return f"fact-{os.urandom(4).hex()}"


def is_generated(key: str) -> bool:
    """Return whether `random_key` may have made a key."""
    return _RANDOM_KEY.fullmatch(key) is not None


def start_in(key: str) -> datetime | None:
    """Return the start time at the end of a key, or None."""
    return moment(key.rpartition("@")[2]) if "@" in key else None


def interval(entry: Mapping[str, Any]) -> tuple[datetime | None, datetime | None]:
    """Return the start and the end of the validity of an entry, as stored."""
    return moment(entry.get("_valid_from")), moment(entry.get("_valid_to"))


def chained(schema: FactSchema | None, found: list[Held]) -> list[Held]:
    """Return entries whose intervals end when the next one with the same singleton key begins.

    Without a schema, an entry with a start is a temporal fact, because only these have one.
    """
    if schema is not None and not schema.constraint.keys:
        return found
    groups: dict[str, list[Held]] = {}
    for held in found:
        is_temporal = schema is not None or held.start is not None
        groups.setdefault(head_of(held.key) if is_temporal else held.key, []).append(held)
    ends: dict[str, datetime | None] = {}
    for group in groups.values():
        group.sort(key=lambda held: held.start or ALWAYS)
        for held, following in zip(group, [*group[1:], None], strict=True):
            cuts = [held.end, following.start or ALWAYS if following is not None else None]
            ends[held.key] = min((cut for cut in cuts if cut is not None), default=None)
    return [Held(*held[:3], ends[held.key], held.read) for held in found]


def short(given: datetime) -> str:
    """Return a time for a key, as a date if that is exact."""
    written = given.astimezone(UTC).replace(tzinfo=None).isoformat()
    return written.removesuffix("T00:00:00") if written.endswith("T00:00:00") else f"{written}Z"
