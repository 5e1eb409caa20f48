"""The registry of entry kinds, and the keys of entries.

A kind says which documents hold it, what its keys, fields, text and line in a prompt are, and which rules
it obeys. To add a kind, write an `EntryKind` and `register` it; everything else asks the registry.
"""

# ruff: noqa: ARG002 - overrides: `EntryKind` documents them

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from pydantic import ValidationError

from tomldiary.entries.blocks import Blocks, is_pinned
from tomldiary.entries.conversations import Conversations, entry_to_conversation
from tomldiary.entries.episodes import (
    episode_entries,
    episode_kinds,
    happened,
    homes_of,
    new_episode,
)
from tomldiary.entries.fact_rules import FactRules, Provenance
from tomldiary.entries.facts import (
    Facts,
    Held,
    chained,
    interval,
    same_data,
    stored_facts,
    undo_edits,
)
from tomldiary.entries.kind import (
    Collected,
    EntryKind,
    EntryLine,
    Group,
    Problem,
    Rank,
    Rules,
    Tables,
    Writing,
    columns_of,
    data_text,
    last_used,
    part_of,
    toml_word,
    with_value,
    wrong_fields,
)
from tomldiary.entries.preferences import (
    Preferences,
    entry_count,
    entry_text,
    entry_to_item,
    number_of,
    reserve_ids,
)
from tomldiary.entries.schema import item_type
from tomldiary.errors import ImmutableEntry, InvalidValue, LimitReached, UnknownEntry
from tomldiary.toml.values import encode_nulls

if TYPE_CHECKING:
    from tomldiary.toml.document import Document, Overlay, Path
    from tomldiary.toml.edit import Edit

__all__ = [
    "BLOCKS",
    "CONVERSATIONS",
    "EPISODES",
    "FACTS",
    "ITEMS",
    "KINDS",
    "PREFERENCES",
    "entry_key",
    "entry_kind",
    "entry_path",
    "path_of",
    "recalled_kinds",
    "register",
    "shown_kinds",
    "typed_kinds",
]

KINDS: dict[str, EntryKind] = {}
"""The registered kinds by name; a document belongs to the kind that its name begins with."""


def register(kind: EntryKind) -> EntryKind:
    """Add a kind of entries, in place of one of the same name, and return it."""
    KINDS[kind.name] = kind
    return kind


def entry_kind(document: str) -> EntryKind:
    """Return the kind of the entries in a document; a plain one for a document of no registered kind."""
    name = document.partition("/")[0]
    return KINDS.get(name) or _Unregistered(name)


def recalled_kinds() -> list[EntryKind]:
    """Return the kinds that recall searches."""
    return [kind for kind in KINDS.values() if kind.is_recalled]


def shown_kinds() -> list[EntryKind]:
    """Return the kinds that `render` shows, in the order of their groups in a prompt."""
    return sorted((kind for kind in KINDS.values() if kind.is_shown), key=lambda kind: kind.order)


def typed_kinds() -> list[EntryKind]:
    """Return the kinds that obey the diary's rules: all but items."""
    return [kind for kind in KINDS.values() if kind is not ITEMS]


# Keys


def entry_path(document: str, path: Path) -> Path | None:
    """Return the entry that the table at `path` is or belongs to; None if it is above all entries."""
    if not path or path[0] == "_meta":
        return None
    kind = entry_kind(document)
    # The short layout leaves out the root table.
    depth = kind.depth if path[0] == kind.name else kind.depth - 1
    return path[:depth] if len(path) >= depth else None


def entry_key(path: Path, document: str = "") -> str:
    """Return the key of the entry at a path; a preference goes without its kind.

    An item is named by its document, which stands for its namespace: `items/memories/work/key`, with
    a slash in the key as `%2f`. A namespace's further documents count as the first one.
    """
    return entry_kind(path[0]).key(path, document)


def path_of(key: str, categories: Collection[str], types: Collection[str] = ()) -> Path:
    """Return the path of the entry that a key names; of an item with its document in place of `items`.

    Args:
        key: What `entry_key` returned; a category or a type of facts may stand in front alone.
        categories: The categories of preferences.
        types: The types of facts.

    Raises:
        UnknownEntry: It is no key.
    """
    first, _, rest = key.partition("/")
    named = KINDS.get(first)
    found = None
    if named is not None and (named.is_reserved or first not in categories):
        found = named.path(key)
    if found is None and rest and first in categories:
        found = (PREFERENCES.name, first, rest)
    if found is None and rest and first in types:
        found = (FACTS.name, first, rest)
    if found is None:
        shapes = [kind.shape for kind in KINDS.values() if kind.shape]
        raise UnknownEntry(
            key, f"A key is {', '.join(shapes[:-1])} or {shapes[-1]}; history() shows them."
        )
    return found


# The kinds of a diary


class _Unregistered(EntryKind):
    """Entries of a document that no kind claims: kept, exported and forgotten, not read."""

    is_recalled = is_shown = False


class PreferenceKind(EntryKind):
    """`[preferences.likes.pref001]`: text by category, counted, never twice the same."""

    depth = 3
    has_short_layout = True
    is_reserved = True
    order = 1
    shape = "category/id"

    def key(self, path: Path, document: str = "") -> str:
        return "/".join(path[1:])

    def entries(self, tables: Tables, rules: Rules) -> Iterator[tuple[str, Mapping[str, Any]]]:
        book = self._book(tables, rules)
        for category in rules.allowed:
            for key, entry in book.items(category):
                yield f"{category}/{key}", entry

    def text(self, entry: Mapping[str, Any]) -> str:
        return entry_text(entry)

    def body(self, name: str, entry: Mapping[str, Any]) -> str:
        return super().body(name.partition("/")[0], entry)

    def title(self, name: str, updated: str) -> str:
        return name

    def line(self, name: str, entry: Mapping[str, Any], group: Group) -> EntryLine:
        notes: list[str] = []
        contexts = entry.get("contexts")
        if isinstance(contexts, list) and contexts:
            notes.append(f"[{' '.join(map(str, cast('list[Any]', contexts)))}]")
        if (count := entry_count(entry)) > 1:
            notes.append(f"({count}×)")
        return EntryLine(group.name, entry_text(entry), " ".join(notes))

    def rank(self, entry: Mapping[str, Any]) -> Rank:
        return (entry.get("pinned") is True, entry_count(entry), last_used(entry))

    def groups(self, tables: Tables, rules: Rules) -> list[Group]:
        book = self._book(tables, rules)
        return [
            Group(name, weight, partial(book.columns, name))
            for name, weight in rules.weights.items()
        ]

    def profile(self, documents: Mapping[str, Document], rules: Rules, at: datetime) -> Any:
        book = self._book(documents[self.name], rules)
        counts = {category: book.count(category) for category in rules.allowed}
        return {category: count for category, count in counts.items() if count}

    def problems(self, document: Document, rules: Rules) -> Iterator[Problem]:
        everything = document.table(()) or {}
        short = {key: each for key, each in everything.items() if key not in {"_meta", self.name}}
        is_own = (document.table(("_meta",)) or {}).get("schema_name") == rules.schema_name
        for head, tables in ((f"{self.name}.", document.table((self.name,)) or {}), ("", short)):
            for category, entries in tables.items():
                where = f"{head}{category}"
                if not isinstance(entries, Mapping):
                    yield Problem(where, f"expected a category, found {toml_word(entries)}")
                    continue
                if is_own and category not in rules.allowed:
                    message = f"{rules.schema_name} has no such category, so nothing reads it"
                    yield Problem(where, message)
                for key, entry in cast("Mapping[str, Any]", entries).items():
                    place = f"{where}.{key}"
                    if isinstance(entry, Mapping):
                        known = cast("Mapping[str, Any]", entry)
                        yield from self._wrong_entry(rules, category, place, known)
                    else:
                        found = toml_word(entry)
                        yield Problem(place, f"expected an entry, found {found}; it is left out")

    def _wrong_entry(
        self, rules: Rules, category: str, where: str, entry: Mapping[str, Any]
    ) -> Iterator[Problem]:
        yield from wrong_fields(where, entry, self.texts, (self.labels,), ("_count",))
        if "text" not in entry:
            yield Problem(f"{where}.text", "expected text, found nothing")
        if category in rules.allowed:
            try:
                entry_to_item(entry, item_type(rules.pref_table_cls, category))
            except ValidationError as error:
                for problem in error.errors(include_url=False, include_input=False):
                    field = ".".join(map(str, (where, *problem["loc"])))
                    yield Problem(field, f"{problem['msg']}; the entry is left out")

    def remove(self, edit: Overlay, path: Path, rules: Rules) -> None:
        book = self._book(edit, rules)
        if book.has(path):
            book.forget(path[1], path[2])  # which also keeps its id from being given out again
        else:
            edit.delete(path)

    def check_import(self, before: Document, after: Document, rules: Rules) -> None:
        was, became = self._book(before, rules), self._book(after, rules)
        limit = rules.preference_rules.limit
        for category in rules.allowed:
            if became.count(category) > max(limit, was.count(category)):
                raise LimitReached(category, limit)

    def keep_ids(self, edit: Edit, removed: Collection[Path]) -> None:
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
        category, edit, rules = collection[1], writing.edit(self.name), writing.rules
        book = self._book(edit, rules)
        where = f"{category}.{key}"
        outcome = book.upsert(
            category, key, value["text"], (),
            now=writing.now, session=writing.session, count_up=False,
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
        path, entry = cast("tuple[Path, Mapping[str, Any]]", book.find(category, key))
        data = {**value, "text": entry["text"]}
        try:
            entry_to_item(data, item_type(rules.pref_table_cls, category))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, (where, *first["loc"])))
            raise InvalidValue(f"{first['msg']}.", where=place) from None
        fresh = with_value(data, entry, writing.now)
        edit.put(path, {**fresh, "_updated_by": writing.session})

    def delete(self, writing: Writing, collection: Collected, key: str) -> None:
        self._book(writing.edit(self.name), writing.rules).forget(collection[1], key)

    @staticmethod
    def _book(tables: Tables, rules: Rules) -> Preferences:
        return Preferences(tables, rules.preference_rules)


class ConversationKind(EntryKind):
    """`[conversations.session]`: one rolling summary for each session."""

    is_reserved = True
    order = 3
    shape = "conversations/session"
    shown_at_most = 3

    def entries(self, tables: Tables, rules: Rules) -> Iterator[tuple[str, Mapping[str, Any]]]:
        return Conversations(tables).entries()

    def body(self, name: str, entry: Mapping[str, Any]) -> str:
        return super().body("", entry)

    def title(self, name: str, updated: str) -> str:
        return f"conversation of {updated[:10]}"

    def line(self, name: str, entry: Mapping[str, Any], group: Group) -> EntryLine | None:
        summary = entry.get("summary")
        return super().line(name, entry, group) if isinstance(summary, str) and summary else None

    def rank(self, entry: Mapping[str, Any]) -> Rank:
        return (False, 0, last_used(entry))

    def session(self, name: str) -> str:
        return name

    def groups(self, tables: Tables, rules: Rules) -> list[Group]:
        return [Group("", 1.0, lambda: columns_of(dict(self.entries(tables, rules))))]

    def seen(self, document: Document, rules: Rules) -> Iterator[str]:
        for _, entry in self.entries(document, rules):
            yield entry_to_conversation(entry).updated

    def problems(self, document: Document, rules: Rules) -> Iterator[Problem]:
        for name, entry in self.entries(document, rules):
            where = f"{self.name}.{name}"
            yield from wrong_fields(where, entry, self.texts, (self.labels,), ("_turns",))

    def migrate(self, edit: Edit) -> None:
        Conversations(edit).migrate()

    def get(
        self,
        tables: Tables,
        rules: Rules,
        collection: Collected,
        key: str,
    ) -> Mapping[str, Any] | None:
        return Conversations(tables).find(key)

    def put(
        self, writing: Writing, collection: Collected, key: str, value: Mapping[str, Any]
    ) -> None:
        edit = writing.edit(self.name)
        book = Conversations(edit, writing.rules.max_conversations)
        book.ensure(key, now=writing.now)
        book.set_summary(key, value["summary"], None, now=writing.now)
        entry = cast("Mapping[str, Any]", book.find(key))
        fresh = with_value({**value, "summary": entry["summary"]}, entry, writing.now)
        edit.put((*collection, key), fresh)

    def delete(self, writing: Writing, collection: Collected, key: str) -> None:
        Conversations(writing.edit(self.name)).delete(key)


class FactKind(EntryKind):
    """`[facts.type.key]`: typed facts under the constraint of their type."""

    depth = 3
    order = 0
    shape = "facts/type/key"
    is_guarded = True
    unchanged_because = "a fact has fields of its own, which the application changes; it can be removed with forget."

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

    def body(self, name: str, entry: Mapping[str, Any]) -> str:
        return f"{name.partition('/')[0]} {data_text(entry)}"

    def line(self, name: str, entry: Mapping[str, Any], group: Group) -> EntryLine | None:
        key = name.partition("/")[2]
        if group.schema is not None and Facts.wrong(group.schema, key, entry) is not None:
            return None
        return EntryLine(group.name, data_text(entry))

    def is_timed(self, document: Document | None) -> bool:
        return document is not None and self.name in document.data

    def current(
        self, document: Document, rules: Rules, at: datetime
    ) -> Callable[[str, Mapping[str, Any]], bool] | None:
        return _Current(Facts(document, rules.fact_schemas), at)

    def groups(self, tables: Tables, rules: Rules) -> list[Group]:
        found: list[Group] = []
        for name, table in (tables.table((self.name,)) or {}).items():
            if isinstance(table, Mapping):
                schema = rules.fact_schemas.get(name)
                weight = 1.0 if schema is None else schema.weight
                known = cast("Mapping[str, Any]", table)
                found.append(Group(name, weight, partial(columns_of, known), schema))
        return found

    def holding(
        self, group: Group, entries: Iterable[tuple[str, Mapping[str, Any]]]
    ) -> Callable[[str, datetime], bool] | None:
        schema = group.schema
        if schema is not None and not schema.constraint.temporal:
            return None
        rows = [Held(name.partition("/")[2], entry, *interval(entry)) for name, entry in entries]
        if schema is not None:  # without one, it is unknown which of them end each other
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
            message = str(problem).removeprefix(f"{problem.where}: ")
            yield Problem(problem.where, message, "Correct it; until then it is not read.")

    def forbidden(
        self, document: Document, rules: Rules, states: Mapping[Path, Mapping[str, Any] | None]
    ) -> list[Path]:
        return FactRules(document, rules.fact_schemas).forbidden(states)

    def check_import(self, before: Document, after: Document, rules: Rules) -> None:
        old, new = Facts(before, rules.fact_schemas), Facts(after, rules.fact_schemas)
        known = {problem.where for problem in old.problems()}
        for problem in new.problems():
            if problem.where not in known:
                raise problem
        for name, schema in rules.fact_schemas.items():
            count, limit = len(new.held(name)), schema.constraint.limit
            if limit is not None and count > max(limit, len(old.held(name))):
                raise LimitReached(f"{self.name}/{name}", limit)
            if schema.constraint.immutable:
                for held in old.held(name):
                    if not same_data(held.entry, new.entry(name, held.key)):
                        raise ImmutableEntry(f"{self.name}/{name}/{held.key}")

    def undo_edits(self, edit: Overlay, logged: Document, rules: Rules) -> None:
        undo_edits(edit, logged, rules.fact_schemas)

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
        return FactRules(writing.edit(self.name), writing.rules.fact_schemas)


class _Current:
    """Tells which facts count at a time: those that can be read, and of temporal types those that hold."""

    def __init__(self, book: Facts, at: datetime) -> None:
        self._book = book
        self._at = at
        self._held: dict[str, set[str]] = {}

    def __call__(self, name: str, entry: Mapping[str, Any]) -> bool:
        type_, _, key = name.partition("/")
        schema = self._book.registered(type_)
        if schema is None:  # its rules are unknown; its time may still be written down
            return Held(key, entry, *interval(entry)).holds(self._at)
        if not schema.constraint.temporal:
            return self._book.wrong(schema, key, entry) is None
        if type_ not in self._held:
            held = self._book.held(type_)
            self._held[type_] = {each.key for each in held if each.holds(self._at)}
        return key in self._held[type_]


class BlockKind(EntryKind):
    """`[blocks.name]`: texts that an agent keeps whole."""

    is_long = True
    leads = True
    shape = "blocks/name"

    def text(self, entry: Mapping[str, Any]) -> str:
        return entry_text(entry)

    def body(self, name: str, entry: Mapping[str, Any]) -> str:
        return f"{name} {entry_text(entry)}"

    def line(self, name: str, entry: Mapping[str, Any], group: Group) -> EntryLine:
        return EntryLine(name, entry_text(entry), is_long=True)

    def rank(self, entry: Mapping[str, Any]) -> Rank:
        return (is_pinned(entry), 0, "")

    def profile(self, documents: Mapping[str, Document], rules: Rules, at: datetime) -> Any:
        blocks = Blocks(documents[self.name]).entries()
        return {name: len(entry_text(entry)) for name, entry in blocks}

    def put(
        self, writing: Writing, collection: Collected, key: str, value: Mapping[str, Any]
    ) -> None:
        edit = writing.edit(self.name)
        book = Blocks(edit)
        book.put(key, value["text"], now=writing.now, session=writing.session)
        entry = cast("Mapping[str, Any]", book.find(key))
        fresh = with_value(dict(value), entry, writing.now)
        if _data(fresh) != _data(entry):
            edit.put((*collection, key), fresh)


def _data(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if not key.startswith("_")}


class EpisodeKind(EntryKind):
    """`[episodes."2026-11-20T06:50:12Z"]`: turns word for word, one document a month or more."""

    is_long = True
    is_shown = False
    shape = "episodes/id"
    unchanged_because = (
        "an episode is what was said and is never changed; it can be removed with forget."
    )

    def documents(self, listed: Iterable[str]) -> list[str]:
        return episode_kinds(listed)

    def documents_of(self, name: str, listed: Iterable[str]) -> list[str]:
        return homes_of(listed, name)

    def entries(self, tables: Tables, rules: Rules) -> Iterator[tuple[str, Mapping[str, Any]]]:
        return episode_entries(tables)

    def body(self, name: str, entry: Mapping[str, Any]) -> str:
        return self.text(entry)

    def seen(self, document: Document, rules: Rules) -> Iterator[str]:
        return (happened(entry) for _, entry in self.entries(document, rules))

    def put(
        self,
        writing: Writing,
        collection: Collected,
        key: str,
        value: Mapping[str, Any],
    ) -> None:
        new_episode(writing, encode_nulls(value), datetime.fromisoformat(writing.now), key)


class ItemKind(EntryKind):
    """`[items.key]` in `items/<namespace>`: the values of LangGraph namespaces."""

    is_recalled = is_shown = False
    shape = "items/namespace/key"

    def documents(self, listed: Iterable[str]) -> list[str]:
        return [name for name in listed if name.startswith(f"{self.name}/")]

    def places(self, path: Path, listed: Iterable[str]) -> tuple[list[str], Path]:
        documents = [each for each in listed if part_of(each)[0] == path[0]]
        return documents, (self.name, *path[1:])

    def key(self, path: Path, document: str = "") -> str:
        if not document and "/" not in path[0]:
            return "/".join(path)
        base = part_of(document)[0] if document else path[0]
        return "/".join([base, *(key.replace("%", "%25").replace("/", "%2f") for key in path[1:])])

    def path(self, key: str) -> Path | None:
        base, _, name = key.rpartition("/")
        return (base, unquote(name)) if base.startswith(f"{self.name}/") else None

    def profile(self, documents: Mapping[str, Document], rules: Rules, at: datetime) -> Any:
        counts: dict[str, int] = {}
        for document, each in documents.items():
            name = part_of(document)[0].removeprefix(f"{self.name}/")
            counts[name] = counts.get(name, 0) + len(each.table((self.name,)) or {})
        return {name: count for name, count in counts.items() if count}

    def problems(self, document: Document, rules: Rules) -> Iterator[Problem]:
        yield from ()


PREFERENCES = register(PreferenceKind("preferences", texts=("text",), labels="contexts"))
CONVERSATIONS = register(ConversationKind("conversations", texts=("summary",), labels="keywords"))
FACTS = register(FactKind("facts"))
BLOCKS = register(BlockKind("blocks", texts=("text",)))
EPISODES = register(EpisodeKind("episodes", texts=("input", "output")))
ITEMS = register(ItemKind("items"))
