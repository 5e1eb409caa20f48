"""Items: the values of LangGraph namespaces."""

# ruff: noqa: ARG002, D102 - overrides: `EntryKind` documents them

from __future__ import annotations

from contextlib import suppress
from copy import copy
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tomldiary.entries.fields import (
    data_text,
    entry_data,
    escaped_part,
    keeps_part,
    replaced,
    session_turn,
    signed,
    tables_at,
    with_value,
)
from tomldiary.entries.kind import EntryKind, EntryLine, Group, Rules
from tomldiary.entries.kinds.parts import part_of
from tomldiary.text.json_paths import searched_names, searched_text, texts_in
from tomldiary.toml.values import decode_nulls, moment, same_value, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from tomldiary.entries.fields import Problem
    from tomldiary.entries.kind import Collected, Tables, Until, Writing
    from tomldiary.toml.document import Document, Path

_ESCAPED = ("_", "\\")


class ItemKind(EntryKind):
    """`[items.key]` in `items/<namespace>`: the values of LangGraph namespaces."""

    shape = "items/namespace/key"
    longest_key = None
    order = 4
    has_times = True
    namespace = ""
    """The document of the entries, as a part of keys: `memories/work`; "" if it is unknown."""
    shown_namespace = ""
    """The namespace as prompts show it, without the percent-encoding of documents and keys."""
    until: Until | None = None

    def within(self, document: str, until: Until | None = None) -> ItemKind:
        bound = copy(self)
        bound.namespace = part_of(document)[0].removeprefix(f"{self.name}/")
        bound.shown_namespace = unquote(bound.namespace)
        bound.until = until
        return bound

    def is_unexpired(self, name: str, entry: Mapping[str, Any], at: datetime) -> bool:
        """Return whether an item has not expired by its file or by the later expiry time that reads set."""
        expires = moment(entry["_expires"]) if "_expires" in entry else None
        if expires is None or at < expires:
            return True
        put = moment(entry.get("_updated", entry.get("_created")))
        if self.until is None or put is None:
            return False
        key = unquote(name.rpartition("/")[2])
        return at < self.until(f"{self.name}/{self.namespace}", key, put)

    def documents(self, listed: Iterable[str]) -> list[str]:
        return [name for name in listed if name.startswith(f"{self.name}/")]

    def home(self, document: str) -> str:
        return part_of(document)[0]

    def places(self, path: Path, listed: Iterable[str]) -> tuple[list[str], Path]:
        documents = [each for each in listed if part_of(each)[0] == path[0]]
        return documents, (self.name, *path[1:])

    def key(self, path: Path, document: str = "") -> str:
        base = part_of(document)[0] if document else path[0]
        return "/".join([base, *map(escaped_part, path[1:])])

    def path(self, key: str) -> Path | None:
        base, _, name = key.rpartition("/")
        return (base, unquote(name)) if base.startswith(f"{self.name}/") else None

    def short_key(self, short: str) -> str:
        """Return the key of an item in listings: without `items/`, unless this names another item."""
        return short if self.path(short) is None else f"{self.name}/{short}"

    def full_key(self, shown: str) -> str:
        """Return the key with `items/` for a result of `short_key`."""
        return f"{self.name}/{shown}" if self.path(shown) is None else shown

    def title(self, name: str, updated: str) -> str:
        return self.full_key(name)

    def stated(self, path: Path, entry: Mapping[str, Any]) -> Iterator[str]:
        yield self.chosen_name(path[-1])
        # With the names of fields, because the writer chose them.
        yield from texts_in(entry_data(entry), numbers=True)

    def entries(self, tables: Tables, rules: Rules) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, entry in super().entries(tables, rules):
            yield f"{self.namespace}/{escaped_part(name)}" if self.namespace else name, entry

    def is_timed(self, document: Document) -> bool:
        return any("_expires" in entry for _, entry in tables_at(document, self.name))

    def current(
        self, document: Document, rules: Rules, at: datetime
    ) -> Callable[[str, Mapping[str, Any]], bool] | None:
        return lambda name, entry: self.is_unexpired(name, entry, at)

    def text(self, entry: Mapping[str, Any]) -> str:
        value = item_value(entry)
        only = next(iter(value.values())) if len(value) == 1 else None
        return only if isinstance(only, str) else data_text(value)

    def body(self, entry: Mapping[str, Any]) -> str:
        return searched_text(item_value(entry), entry.get("_index"))

    def names(self, name: str, entry: Mapping[str, Any]) -> str:
        return searched_names(item_value(entry), entry.get("_index"))

    def turn(self, name: str, entry: Mapping[str, Any]) -> tuple[str, str] | None:
        key = unquote(name.rpartition("/")[2])
        return session_turn(f"{entry.get('_created', '')} {key}", entry)

    def line(self, name: str, entry: Mapping[str, Any], group: Group) -> EntryLine | None:
        if entry.get("_index") is False:
            return None  # an item that is excluded from search is not shown either
        return EntryLine(self.shown_namespace, self.text(entry))

    def groups(self, tables: Tables, rules: Rules) -> list[Group]:
        def entries() -> dict[str, Any]:
            return {
                escaped_part(key): each for key, each in (tables.table((self.name,)) or {}).items()
            }

        return [Group(self.namespace, 1.0, entries)]

    def profile(self, documents: Mapping[str, Document], rules: Rules, at: datetime) -> Any:
        counts: dict[str, int] = {}
        for document, each in documents.items():
            bound = self.within(document, self.until)
            name = bound.namespace
            held = (bound.is_unexpired(*entry, at) for entry in bound.entries(each, rules))
            counts[name] = counts.get(name, 0) + sum(held)
        return {name: count for name, count in counts.items() if count}

    def wrong(
        self, where: str, path: Path, entry: Mapping[str, Any], rules: Rules
    ) -> Iterator[Problem]:
        yield from ()

    def put(
        self, writing: Writing, collection: Collected, key: str, value: Mapping[str, Any]
    ) -> None:
        documents, path = self.places((*collection, key), writing.documents)
        for edit in map(writing.edit, documents):
            old = edit.table(path)
            if old is None:
                continue
            fields = {f"\\{name}" if name[:1] in _ESCAPED else name: value[name] for name in value}
            before = item_value(old)
            if same_value(value, before):  # the session adds no words of its own
                edit.put(path, renewed(with_value(fields, old, writing.now)))
                continue
            is_part = keeps_part(before, value)
            fresh = with_value(fields, replaced(old, is_part=is_part), writing.now)
            edit.put(path, renewed(signed(fresh, old, writing.session, is_part=is_part)))


def renewed(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry; the time to live of an item begins with its last change."""
    ttl, since = entry.get("_ttl"), moment(entry.get("_updated"))
    if since is not None and isinstance(ttl, int | float) and ttl > 0 and "_expires" in entry:
        with suppress(OverflowError):  # a hand edit may contain any number
            return {**entry, "_expires": timestamp(since + timedelta(minutes=ttl))}
    return {**entry}


def item_value(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of an item; in the file, fields that begin with an underscore have a backslash before it."""
    fields = decode_nulls(entry_data(entry))
    return {name.removeprefix("\\"): value for name, value in fields.items()}
