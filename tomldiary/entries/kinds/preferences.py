"""Preferences: texts by category with a count and without duplicates."""

# ruff: noqa: ARG002, D102 - overrides: `EntryKind` documents them

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tomldiary.entries.fields import (
    Problem,
    entry_text,
    last_used,
    number_of,
    tables_at,
    text_list,
    with_value,
)
from tomldiary.entries.kind import EntryKind, EntryLine, Group
from tomldiary.entries.preferences import (
    MAX_TEXT,
    Preferences,
    entry_count,
    entry_to_item,
    reserve_ids,
)
from tomldiary.errors import InvalidValue, LimitReached
from tomldiary.text.visible import escape_for_model
from tomldiary.toml.values import render_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from datetime import datetime

    from tomldiary.entries.kind import Collected, EditedTables, Rank, Rules, Tables, Writing
    from tomldiary.toml.document import Document, Path


class PreferenceKind(EntryKind):
    """`[preferences.likes.pref001]`: texts by category with a count and without duplicates."""

    depth = 3
    is_split = True
    has_short_layout = True
    is_reserved = True
    order = 1
    longest = MAX_TEXT
    flags = ("pinned",)
    numbers = ("_count",)
    needed = ("text",)
    branch = "a category"
    shape = "category/id"

    def chosen_name(self, name: str) -> str:
        return super().chosen_name(name) if number_of(name) is None else ""

    def key(self, path: Path, document: str = "") -> str:
        return "/".join(path[1:])

    def entries(self, tables: Tables, rules: Rules) -> Iterator[tuple[str, Mapping[str, Any]]]:
        book = self._book(tables, rules)
        for category in rules.allowed:
            for key, entry in book.items(category):
                yield f"{category}/{key}", entry

    def title(self, name: str, updated: str) -> str:
        return name

    def line(self, name: str, entry: Mapping[str, Any], group: Group) -> EntryLine:
        notes: list[str] = []
        if contexts := text_list(entry.get("contexts")):
            notes.append(f"[{' '.join(contexts)}]")
        if (count := entry_count(entry)) > 1:
            notes.append(f"({count}×)")
        return EntryLine(group.name, entry_text(entry), " ".join(notes))

    def rank(self, entry: Mapping[str, Any]) -> Rank:
        return (entry.get("pinned") is True, entry_count(entry), last_used(entry))

    def groups(self, tables: Tables, rules: Rules) -> list[Group]:
        book = self._book(tables, rules)
        weights = rules.weights.items()
        return [Group(name, weight, partial(book.table, name)) for name, weight in weights]

    def profile(self, documents: Mapping[str, Document], rules: Rules, at: datetime) -> Any:
        book = self._book(documents[self.name], rules)
        counts = {category: book.count(category) for category in rules.allowed}
        return {category: count for category, count in counts.items() if count}

    def unlisted(self, document: Document, rules: Rules) -> Iterator[Path]:
        """Yield the paths of the categories that the preference table lacks, in both layouts."""
        for head in ((self.name,), ()):
            known = rules.allowed if head else ["_meta", self.name, *rules.allowed]
            for category, _ in tables_at(document, *head):
                if category not in known:
                    yield (*head, category)

    def problems(self, document: Document, rules: Rules) -> Iterator[Problem]:
        misspelled: list[str] = []
        if document.meta.get("schema_name") == rules.schema_name:
            message = f"{rules.schema_name} has no such category, so nothing reads it"
            for path in self.unlisted(document, rules):
                if len(path) == 1 and get_close_matches(path[0], [self.name], cutoff=0.9):
                    misspelled.append(f"{render_path(path)}.")
                    remedy = f"Rename it to [{self.name}.…], or remove it."
                    yield Problem(render_path(path), "nothing reads it", remedy)
                else:
                    yield Problem(render_path(path), message)
        for problem in super().problems(document, rules):
            if not problem.where.startswith(tuple(misspelled)):  # its tables are no entries
                yield problem

    def wrong(
        self, where: str, path: Path, entry: Mapping[str, Any], rules: Rules
    ) -> Iterator[Problem]:
        yield from super().wrong(where, path, entry, rules)
        if "text" in entry and not escape_for_model(entry_text(entry)):
            yield Problem(f"{where}.text", "the text is blank, so no model is shown the entry")
        if path[-2] in rules.allowed:
            try:
                entry_to_item(entry, rules.preference_rules.item_types[path[-2]])
            except ValidationError as error:
                for problem in error.errors(include_url=False, include_input=False):
                    field = ".".join(map(str, (where, *problem["loc"])))
                    message = f"{problem['msg']}; in preferences() the entry is left out"
                    yield Problem(field, message)

    def check_import(self, before: Document, after: Document, rules: Rules) -> None:
        was, became = self._book(before, rules), self._book(after, rules)
        limit = rules.preference_rules.limit
        for category in rules.allowed:
            if became.count(category) > max(limit, was.count(category)):
                raise LimitReached(category, limit, "max_prefs_per_category")

    def keep_ids(self, edit: EditedTables, removed: Collection[Path]) -> None:
        reserve_ids(edit, ((path[-2], number_of(path[-1]) or 0) for path in removed))

    def collections(self, rules: Rules) -> list[Collected]:
        return [(self.name, category) for category in rules.allowed]

    def get(
        self, tables: Tables, rules: Rules, collection: Collected, key: str
    ) -> Mapping[str, Any] | None:
        found = self._book(tables, rules).find(collection[1], key)
        return None if found is None else found[1]

    def listed(
        self, tables: Tables, rules: Rules, collection: Collected
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        yield from self._book(tables, rules).items(collection[1])

    def put(
        self, writing: Writing, collection: Collected, key: str, value: Mapping[str, Any]
    ) -> None:
        category, edit, rules = collection[1], writing.entries(self.name), writing.rules
        # The type is checked below, when the entry has the whole value.
        book = Preferences(edit, replace(rules.preference_rules, item_types={}))
        where = f"{category}.{key}"
        outcome = book.upsert(
            category, key, value["text"], (), now=writing.now, session=writing.session,
            count_up=False, may_repeat=True,  # a batch may exchange the texts of two keys
        )  # fmt: skip
        if outcome.action == "merged":
            raise InvalidValue(
                f"{category}/{outcome.id} holds the same text. Put to that key, or change the text.",
                where=where,
            )
        if outcome.id != key:
            raise InvalidValue(
                "the diary gives out ids of the form pref001, and this one may have belonged to a"
                " forgotten entry. Choose another key.",
                where=where,
            )
        data = {**value, "text": outcome.entry["text"]}
        self._book(edit, rules).check_fit(category, key, data)
        fresh = with_value(data, outcome.entry, writing.now)
        edit.put(outcome.path, {**fresh, "_updated_by": writing.session})

    def delete(self, writing: Writing, collection: Collected, key: str) -> None:
        self._book(writing.entries(self.name), writing.rules).forget(collection[1], key)

    @staticmethod
    def _book(tables: Tables, rules: Rules) -> Preferences:
        return Preferences(tables, rules.preference_rules)
