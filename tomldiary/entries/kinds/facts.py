"""Facts: typed entries under the constraint of their type."""

# ruff: noqa: ARG002, D102 - overrides: `EntryKind` documents them

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from tomldiary.entries.fact_rules import FactRules, Provenance
from tomldiary.entries.facts import (
    Facts,
    Held,
    chained,
    interval,
    same_data,
    stored_facts,
)
from tomldiary.entries.fields import Problem, columns_of, data_text, tables_at, wrong_fields
from tomldiary.entries.kind import Collected, EntryKind, EntryLine, Group, Rules, Tables, Writing
from tomldiary.errors import ImmutableEntry, InvalidValue, LimitReached
from tomldiary.toml.values import render_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tomldiary.entries.constraints import FactSchema
    from tomldiary.toml.document import Document, Path
    from tomldiary.toml.edit import Edit

__all__ = ["FactKind", "put_back"]


class FactKind(EntryKind):
    """`[facts.type.key]`: typed facts under the constraint of their type."""

    depth = 3
    is_split = True
    order = 0
    shape = "facts/type/key"
    has_times = True

    def resolved(
        self, path: Path, read: Callable[[str], Document], rules: Rules, at: datetime
    ) -> Path:
        if path[1] not in rules.fact_schemas:
            return path
        found = Facts(read(self.name), rules.fact_schemas).find("/".join(path[1:]), at)
        return path if found is None else (*path[:2], found[1].key)

    def entries(self, tables: Tables, rules: Rules) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, key, entry in stored_facts(tables):
            yield f"{name}/{key}", entry

    def line(self, name: str, entry: Mapping[str, Any], group: Group) -> EntryLine | None:
        key = name.partition("/")[2]
        if group.schema is not None and Facts.wrong(group.schema, key, entry) is not None:
            return None
        return EntryLine(group.name, data_text(entry))

    def current(
        self, document: Document, rules: Rules, at: datetime
    ) -> Callable[[str, Mapping[str, Any]], bool] | None:
        return _Current(Facts(document, rules.fact_schemas), at)

    def groups(self, tables: Tables, rules: Rules) -> list[Group]:
        found: list[Group] = []
        for name, table in tables_at(tables, self.name):
            schema = rules.fact_schemas.get(name)
            weight = 1.0 if schema is None else schema.weight
            found.append(Group(name, weight, partial(columns_of, table), schema))
        return found

    def holding(
        self, group: Group, entries: Iterable[tuple[str, Mapping[str, Any]]]
    ) -> Callable[[str, datetime], bool] | None:
        schema = group.schema
        if schema is not None and not schema.constraint.temporal:
            return None
        rows = [Held(name.partition("/")[2], entry, *interval(entry)) for name, entry in entries]
        if schema is not None:  # without a schema, it is unknown which facts end each other
            rows = chained(schema, rows)
        held = {f"{group.name}/{each.key}": each for each in rows}
        return lambda name, at: held[name].holds(at)

    def profile(self, documents: Mapping[str, Document], rules: Rules, at: datetime) -> Any:
        document = documents[self.name]
        counts: dict[str, int] = {}
        holds = _Current(Facts(document, rules.fact_schemas), at)
        for name, entry in self.entries(document, rules):
            if holds(name, entry):
                type_ = name.partition("/")[0]
                counts[type_] = counts.get(type_, 0) + 1
        return counts

    def problems(self, document: Document, rules: Rules) -> Iterator[Problem]:
        for problem in Facts(document, rules.fact_schemas).problems():
            message = str(problem).removeprefix(f"{problem.where}: ").removesuffix(".")
            yield Problem(problem.where, message, "Correct it; until then it is not read.")
        for name, entries in (document.table((self.name,)) or {}).items():
            if name not in rules.fact_schemas and not isinstance(entries, dict):
                yield Problem(render_path((self.name, name)), "expected a table of facts")
        for name, key, entry in stored_facts(document):
            yield from wrong_fields(render_path((self.name, name, key)), entry)

    def forbidden(
        self, document: Document, rules: Rules, states: Mapping[Path, Mapping[str, Any] | None]
    ) -> list[Path]:
        # A table above the facts has only values that a person wrote in place of tables.
        facts = {path: state for path, state in states.items() if len(path) == self.depth}
        return FactRules(document, rules.fact_schemas).forbidden(facts)

    def check_import(self, before: Document, after: Document, rules: Rules) -> None:
        old, new = Facts(before, rules.fact_schemas), Facts(after, rules.fact_schemas)
        known = {problem.where for problem in old.problems()}
        for problem in new.problems():
            if problem.where not in known:
                raise problem
        now = datetime.now(UTC)
        for name, schema in rules.fact_schemas.items():
            limit = schema.constraint.limit
            if limit is not None and new.count(name, now) > max(limit, old.count(name, now)):
                raise LimitReached(f"{self.name}/{name}", limit)
            if schema.constraint.immutable:
                for held in old.held(name):
                    if not same_data(held.entry, new.entry(name, held.key)):
                        raise ImmutableEntry(f"{self.name}/{name}/{held.key}")

    def undo_edits(
        self,
        edit: Edit,
        logged: Document,
        rules: Rules,
        others: Sequence[tuple[Document, Document]] = (),
    ) -> None:
        schemas = rules.fact_schemas
        before = Facts(logged, schemas)
        for name, schema in schemas.items():
            _undo_surplus(edit, logged, schema, others)
            if not schema.constraint.immutable:
                continue
            for key in [key for key, _ in tables_at(edit, self.name, name)] if others else ():
                path = (self.name, name, key)
                known = [was for _, base in others if (was := base.table(path)) is not None]
                if (
                    known
                    and logged.table(path) is None
                    and not same_data(known[0], edit.table(path))
                ):
                    edit.delete(path)  # another part has this fact, with other data
            for held in before.held(name):
                path = (self.name, name, held.key)
                if same_data(held.entry, edit.table(path)):
                    continue
                if edit.table(path) is None and any(
                    same_data(held.entry, now.table(path)) for now, _ in others
                ):
                    continue  # moved to another part
                put_back(edit, logged, path, held.entry)

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
        schema.check_fields(list(value))
        data = schema.checked(value)
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


class _Current:
    """Selects the facts that are current at a time: the valid ones, and of temporal types those that hold."""

    def __init__(self, book: Facts, at: datetime) -> None:
        self._book = book
        self._at = at
        self._held: dict[str, set[str]] = {}

    def __call__(self, name: str, entry: Mapping[str, Any]) -> bool:
        type_, _, key = name.partition("/")
        schema = self._book.registered(type_)
        if schema is None:  # its constraint is unknown, but its interval may be stored
            return Held(key, entry, *interval(entry)).holds(self._at)
        if not schema.constraint.temporal:
            return self._book.wrong(schema, key, entry) is None
        if type_ not in self._held:
            held = self._book.held(type_)
            self._held[type_] = {each.key for each in held if each.holds(self._at)}
        return key in self._held[type_]


def _undo_surplus(
    edit: Edit,
    logged: Document,
    schema: FactSchema,
    others: Sequence[tuple[Document, Document]],
) -> None:
    """Remove the last facts that a hand edit added to a full type."""
    limit = schema.constraint.limit
    if limit is None or schema.constraint.temporal:
        return
    table = ("facts", schema.name)
    known = {key for each in (logged, *(base for _, base in others)) for key in each.table(table) or ()}  # fmt: skip
    mine = list(edit.table(table) or ())
    total = len({*mine, *(key for now, _ in others for key in now.table(table) or ())})
    added = [key for key in mine if key not in known]
    surplus = max(0, total - max(limit, len(known)))
    for key in added[len(added) - min(surplus, len(added)) :]:
        edit.delete((*table, key))


def put_back(edit: Edit, logged: Document, path: Path, entry: Mapping[str, Any]) -> None:
    """Write an entry as it was before a hand edit."""
    block = logged.index.get(path)
    # A value in place of the table may prevent this, which `problems` reports.
    with suppress(InvalidValue):
        if block is not None and path not in logged.parents:
            edit.restore(path, block.text, entry, after=logged.before(path))
        else:
            edit.put(path, entry)
