"""Facts: typed entries under the constraint of their type."""

# ruff: noqa: ARG002, D102 - overrides: `EntryKind` documents them

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from tomldiary.entries.fact_rules import FactRules, Provenance
from tomldiary.entries.facts import (
    Facts,
    Held,
    chained,
    confidence_of,
    head_of,
    interval,
    is_generated,
    start_in,
    stored_facts,
)
from tomldiary.entries.fields import (
    MAX_KEY,
    Problem,
    data_text,
    same_data,
    tables_at,
    without_managed,
)
from tomldiary.entries.kind import Collected, EntryKind, EntryLine, Group, Rules, Tables, Writing
from tomldiary.errors import InvalidValue
from tomldiary.toml.values import render_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tomldiary.toml.document import Document, Path

_MISSPELLED = 0.75
"""The least similarity of a registered type, by `difflib`, for which another one counts as misspelled."""


class FactKind(EntryKind):
    """`[facts.type.key]`: typed facts under the constraint of their type."""

    depth = 3
    branch = "a table of facts"
    is_split = True
    order = 0
    shape = "facts/type/key"
    longest_key = MAX_KEY + len("@2026-01-01T00:00:00.000000Z")
    has_times = True

    def resolved(
        self, path: Path, read: Callable[[str], Document], rules: Rules, at: datetime
    ) -> Path:
        book, (type_, key) = Facts(read(self.name), rules.fact_schemas), path[1:]
        if type_ in rules.fact_schemas:
            found = book.find(f"{type_}/{key}", at)
            return path if found is None else (*path[:2], found[1].key)
        if book.entry(type_, key) is not None:
            return path
        holding = (each.key for each in book.unregistered(type_) if each.holds(at))
        return (*path[:2], next((each for each in holding if head_of(each) == key), key))

    def base_key(self, path: Path, rules: Rules) -> Callable[[str], str]:
        schema = rules.fact_schemas.get(path[1])
        return head_of if schema is None or schema.constraint.temporal else str

    def has_intervals(self, path: Path, read: Callable[[str], Document], rules: Rules) -> bool:
        book, (type_, key) = Facts(read(self.name), rules.fact_schemas), path[1:]
        schema = rules.fact_schemas.get(type_)
        if schema is not None and not (schema.constraint.temporal and schema.constraint.keys):
            return False
        is_stored = book.entry(type_, key) is not None
        if schema is not None:
            # What was a fact before its type was temporal may be stored under the singleton key.
            return not is_stored or head_of(key) == key
        # A value of the singleton key of another type may end with a time as well.
        found = [each for each in book.unregistered(type_) if key == head_of(each.key) != each.key]
        return any(each.start is not None for each in found) or not (found or is_stored)

    def entries(self, tables: Tables, rules: Rules) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, key, entry in stored_facts(tables):
            yield f"{name}/{key}", entry

    def chosen_name(self, name: str) -> str:
        return "" if is_generated(name) else super().chosen_name(head_of(name))

    def line(self, name: str, entry: Mapping[str, Any], group: Group) -> EntryLine | None:
        key = name.partition("/")[2]
        if group.schema is not None and Facts.wrong(group.schema, key, entry) is not None:
            return None
        return EntryLine(group.name, data_text(entry))

    def current(
        self, document: Document, rules: Rules, at: datetime
    ) -> Callable[[str, Mapping[str, Any]], bool] | None:
        return _current(document, rules, at)

    def groups(self, tables: Tables, rules: Rules) -> list[Group]:
        found: list[Group] = []
        for name, table in tables_at(tables, self.name):
            schema = rules.fact_schemas.get(name)
            weight = 1.0 if schema is None else schema.weight
            found.append(Group(name, weight, partial(dict, table), schema))
        return found

    def profile(self, documents: Mapping[str, Document], rules: Rules, at: datetime) -> Any:
        document = documents[self.name]
        holds = _current(document, rules, at)
        found = [name for name, entry in self.entries(document, rules) if holds(name, entry)]
        return dict(Counter(name.partition("/")[0] for name in found))

    def misnamed(self, document: Document, rules: Rules) -> Iterator[Problem]:
        # Programs that share a memory may register other types, so only a misspelled type is named that no program
        # stored.
        for name, _ in tables_at(document, self.name):
            facts = tables_at(document, self.name, name)
            if name in rules.fact_schemas or any("_created" in fact for _, fact in facts):
                continue
            for similar in get_close_matches(name, rules.fact_schemas, n=1, cutoff=_MISSPELLED):
                message = f"no such type is registered, but {similar!r} is, so no query finds it"
                yield Problem(render_path((self.name, name)), message)

    def wrong(
        self, where: str, path: Path, entry: Mapping[str, Any], rules: Rules
    ) -> Iterator[Problem]:
        schema = rules.fact_schemas.get(path[1])
        found = None if schema is None else Facts.wrong(schema, path[2], entry)
        if found is not None:
            message = str(found).removeprefix(f"{found.where}: ").removesuffix(".")
            yield Problem(found.where, message, "Correct it; until then it is not read.")
        yield from super().wrong(where, path, entry, rules)
        sure = confidence_of(entry)
        if entry.get("_confidence", sure) != sure:
            message = f"expected a number from 0 to 1; it counts as {sure:g}"
            yield Problem(f"{where}._confidence", message)
        start, end = interval(entry)
        is_temporal = schema is not None and schema.constraint.temporal and schema.constraint.keys
        is_time = start is not None or "_valid_from" not in entry
        if is_temporal and is_time and start_in(path[2]) not in {None, start}:
            message = "it is missing, and the start in the key is not read"
            if start is not None:
                message = "it differs from the start in the key, which is not read"
            yield Problem(f"{where}._valid_from", message)
        if start is not None and end is not None and end <= start:
            message = "it is not after `_valid_from`, so the fact never holds"
            yield Problem(f"{where}._valid_to", message)

    def check_import(self, before: Document, after: Document, rules: Rules) -> None:
        known = {problem.where for problem in self.problems(before, rules)}
        for problem in without_managed(self.problems(after, rules)):
            if problem.where not in known:
                raise problem

    def is_read(self, key: str, entry: Mapping[str, Any], rules: Rules) -> bool:
        _, name, own = key.split("/", 2)
        schema = rules.fact_schemas.get(name)
        return schema is None or Facts.wrong(schema, own, entry) is None

    def counted(
        self, place: str, entries: Mapping[str, Mapping[str, Any]], rules: Rules, at: datetime
    ) -> int:
        schema = rules.fact_schemas[place.partition("/")[2]]
        if not schema.constraint.temporal:
            return len(entries)
        rows = [
            Held(key.split("/", 2)[2], entry, *interval(entry))
            for key, entry in entries.items()
            if self.is_read(key, entry, rules)
        ]
        return sum(each.holds(at) for each in chained(schema, rows))

    def collections(self, rules: Rules) -> list[Collected]:
        return [(self.name, name) for name in rules.fact_schemas]

    def get(
        self, tables: Tables, rules: Rules, collection: Collected, key: str
    ) -> Mapping[str, Any] | None:
        found = Facts(tables, rules.fact_schemas).find(f"{collection[1]}/{key}")
        return None if found is None else found[1].entry

    def listed(
        self, tables: Tables, rules: Rules, collection: Collected
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        now = datetime.now(UTC)
        for held in Facts(tables, rules.fact_schemas).held(collection[1]):
            if held.holds(now):
                yield held.key, held.entry

    def put(
        self, writing: Writing, collection: Collected, key: str, value: Mapping[str, Any]
    ) -> None:
        name, book = collection[1], self._book(writing)
        schema = book.schema(name)
        data = schema.checked_fields(value)
        single = schema.singleton(value)
        if schema.constraint.temporal and key != single:
            known = book.entry(name, key)
            if known is not None and same_data(known, data):
                return
            if known is not None or single is not None:
                raise InvalidValue(
                    "a temporal fact is not overwritten. Put the new fact to the singleton key, or if"
                    " there is none, to a new key.",
                    where=f"{name}.{key}",
                )
        book.commit(schema, data, Provenance(writing.now, writing.session), key=key)

    def delete(self, writing: Writing, collection: Collected, key: str) -> None:
        self._book(writing).delete(f"{collection[1]}/{key}")

    def _book(self, writing: Writing) -> FactRules:
        return FactRules(writing.entries(self.name), writing.rules.fact_schemas)


def _current(
    document: Document, rules: Rules, at: datetime
) -> Callable[[str, Mapping[str, Any]], bool]:
    """Return whether a fact is current at a time: it is valid, and if its type is temporal, it holds."""
    book = Facts(document, rules.fact_schemas)

    @cache
    def keys_of(type_: str) -> set[str] | None:
        schema = rules.fact_schemas.get(type_)
        if schema is None:
            return None
        always = not schema.constraint.temporal
        return {each.key for each in book.held(type_) if always or each.holds(at)}

    @cache
    def ended_in(type_: str) -> set[str]:
        return {each.key for each in book.unregistered(type_) if not each.holds(at)}

    def is_current(name: str, entry: Mapping[str, Any]) -> bool:  # noqa: ARG001 - the kind's signature
        type_, _, key = name.partition("/")
        keys = keys_of(type_)
        return key not in ended_in(type_) if keys is None else key in keys

    return is_current
