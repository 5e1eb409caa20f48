"""Defines a kind of entries: its documents, keys, fields, text, rules and checks.

`EntryKind` is a complete kind for plain tables such as `[tasks.t1]`; subclasses override what differs.
`tomldiary.entries.kinds` has the registered kinds.
"""

# ruff: noqa: ARG002 - defaults leave out what only some kinds need

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from tomldiary.entries.fields import (
    MAX_KEY,
    Problem,
    data_text,
    entry_data,
    last_used,
    tables_at,
    text_list,
    toml_word,
    with_value,
    wrong_fields,
)
from tomldiary.text.json_paths import texts_in
from tomldiary.toml.values import render_path

if TYPE_CHECKING:
    from tomldiary.entries.constraints import FactSchema
    from tomldiary.entries.preferences import PreferenceRules
    from tomldiary.toml.document import Document, Path
    from tomldiary.toml.edit import Edit

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-f]{32}")

Collected = tuple[str, ...]
"""The name of a collection of entries in stores: the kind, and a category or type if the kind has them."""
Until = Callable[[str, str, datetime], datetime]
"""Returns the expiry time of an entry whose lifetime was extended by reads.

The arguments are the first document of its namespace, its key in it, and the time when it was written.
"""
Rank = tuple[bool, int, str]
"""Whether an entry is pinned, how often it was confirmed, and when it was last used."""


class Tables(Protocol):
    """A document, or an edit of one."""

    @property
    def memo(self) -> dict[Any, Any]:
        """Data derived from the document, such as indexes; passed on from version to version."""
        ...

    @property
    def stamp(self) -> object:
        """The identity of this version of the entries."""
        ...

    def table(self, path: tuple[str, ...]) -> Mapping[str, Any] | None:
        """Return the table at a path, or None."""
        ...


class EditedTables(Tables, Protocol):
    """An edit of one document, or of all parts of a kind."""

    def put(self, path: tuple[str, ...], data: Mapping[str, Any]) -> None:
        """Set the table at `path` to `data`."""
        ...

    def delete(self, path: tuple[str, ...]) -> bool:
        """Remove the table at `path`; return False if there is none."""
        ...

    def is_last(self, path: tuple[str, ...]) -> bool:
        """Return whether the new table at `path` stands after those beside it."""
        ...


class Rules(Protocol):
    """The options of a diary that entries obey; `Diary` has them."""

    allowed: list[str]
    """The categories of preferences."""
    weights: dict[str, float]
    """The weight of each category in a prompt."""
    schema_name: str
    preference_rules: PreferenceRules
    fact_schemas: dict[str, FactSchema]
    max_conversations: int


class Writing(NamedTuple):
    """The context in which a transaction writes an entry."""

    rules: Rules
    edit: Callable[[str], Edit]
    """Returns the edit of a document by name."""
    entries: Callable[[str], EditedTables]
    """Returns the edit of all entries of a kind by name."""
    documents: Iterable[str]
    """The names of the user's documents; may be iterated over several times."""
    now: str
    session: str = ""


class Listed:
    """The names of a user's documents, looked up each time they are iterated over.

    Most kinds have fixed documents and need no names, which can take several requests to a remote storage.
    """

    def __init__(self, look_up: Callable[[], Iterable[str]]) -> None:
        self._look_up = look_up

    def __iter__(self) -> Iterator[str]:
        return iter(self._look_up())


class EntryLine(NamedTuple):
    """An entry as a prompt shows it, not yet escaped."""

    title: str
    text: str
    note: str = ""
    """Shown after the text, such as the number of confirmations."""
    is_long: bool = False
    """Whether the text is shown below the title, line by line."""


class Group(NamedTuple):
    """The entries of a kind that a prompt shows together: a category, or a type of facts."""

    name: str
    """The category or type; "" if the kind has none."""
    weight: float
    entries: Callable[[], Mapping[str, Any]]
    """Returns the tables by key, in the order of the file; in an invalid file, a table may be another value."""
    schema: FactSchema | None = None


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID, as programs generate ids."""
    return _UUID.fullmatch(text) is not None


class EntryKind:
    """One kind of entries; by default, tables `[name.key]` in the document `name`.

    A person may have edited the table of an entry: any field may be missing, or have another type.

    Args:
        name: The name of the document and its root table, and the first part of keys.
        texts: The fields of a value that must be text.
        labels: The field of a value that is a list of text; "" for none.
    """

    shape = ""
    """The form of its keys, for messages; the default is `name/key`."""
    depth = 2
    """The length of an entry's path, including the name of the kind."""
    has_short_layout = False
    """Whether a file may omit the root table."""
    is_recalled = True
    """Whether `recall` searches it."""
    is_shown = True
    """Whether `render` shows it."""
    is_long = False
    """Whether a prompt shows the text below its title, line by line."""
    order = 2
    """The order of groups with equal weights in a prompt, lowest first."""
    longest: int | None = None
    """The maximum number of characters of a text, and of all labels; None for no limit, or one that the kind checks."""
    longest_key: int | None = MAX_KEY
    """The maximum number of characters of a key, which is not empty; None if any text can be a key."""
    is_private = False
    """Whether its entries are not part of the memory yet, so that indexes and feeds omit them."""
    shown_at_most: int | None = None
    """The maximum number of entries in a prompt; None for no limit."""
    leads = False
    """Whether its pinned entries come before every other entry in a prompt."""
    is_reserved = False
    """Whether its name at the beginning of a key has precedence over a category of the same name.

    If the built-in table has such a category, `path` returns None for the keys of its preferences.
    """
    unchanged_because = ""
    """Why a model's tool cannot change an entry, for its answer; "" for a general reason."""
    is_split = False
    """Whether its entries are stored in several parts; see `kinds.parts`."""
    flags: tuple[str, ...] = ()
    """The optional fields of a value that are true or false."""
    numbers: tuple[str, ...] = ()
    """The managed fields that are whole numbers."""
    needed: tuple[str, ...] = ()
    """The texts that an entry in a file must have."""
    branch = "a table"
    """What a table between the root and the entries is, for messages."""
    has_times = False
    """Whether an entry may hold for a limited time."""

    def __init__(self, name: str, *, texts: Sequence[str] = (), labels: str = "") -> None:
        self.name = name
        self.texts = tuple(texts)
        self.labels = labels
        self.shape = self.shape or f"{name}/key"

    # Documents

    def documents(self, listed: Iterable[str]) -> list[str]:
        """Return those of a user's documents that have this kind, oldest first; the first may not exist."""
        return [self.name]

    # Keys

    def key(self, path: Path, document: str = "") -> str:
        """Return the key of the entry at a path."""
        return "/".join(path)

    def path(self, key: str) -> Path | None:
        """Return the path of the entry with a key; None if this is not a key of the kind."""
        first, *rest = key.split("/", self.depth - 1)
        return (
            (first, *rest)
            if first == self.name and len(rest) == self.depth - 1 and rest[-1]
            else None
        )

    def resolved(
        self, path: Path, read: Callable[[str], Document], rules: Rules, at: datetime
    ) -> Path:
        """Return the path of the entry that a result of `path` refers to at a time."""
        return path

    def base_key(self, path: Path, rules: Rules) -> Callable[[str], str]:
        """Return the function that turns a key of history into the one by which `path` names all versions of an entry."""
        return str

    def has_intervals(self, path: Path, read: Callable[[str], Document], rules: Rules) -> bool:
        """Return whether a path names an entry in all its intervals, each of which has a key of its own."""
        return False

    def places(self, path: Path, listed: Iterable[str]) -> tuple[list[str], Path]:
        """Return the documents that may contain the entry of a key's path, newest first, and its path in them."""
        return self.documents(listed)[::-1], path

    def within(self, document: str, until: Until | None = None) -> EntryKind:
        """Return the kind for one document, whose name may be a part of keys.

        Args:
            document: The name of the document.
            until: Returns the expiry time of an entry whose lifetime was extended by reads.
        """
        return self

    # What a document holds

    def home(self, document: str) -> str:
        """Return the document that represents all parts, which is the first one."""
        return self.name if self.is_split else document

    def tables(self, document: Document) -> dict[Path, dict[str, Any]]:
        """Return the entries of a document or a part by path."""
        values = self._values(document)
        return {path: each for path, each, left in values if not left and isinstance(each, dict)}

    def _values(self, document: Document) -> Iterator[tuple[Path, Any, int]]:
        """Yield the values of a document down to the entries: path, value, and the levels between it and entries."""

        def at(path: Path, value: Any, left: int) -> Iterator[tuple[Path, Any, int]]:
            yield path, value, left
            if left and isinstance(value, dict):
                for key, inner in cast("dict[str, Any]", value).items():
                    yield from at((*path, key), inner, left - 1)

        for root, depth in self._roots(document).items():
            if root in document.data:
                yield from at((root,), document.data[root], depth)

    def _roots(self, document: Document) -> dict[str, int]:
        """Return the root keys with entries, and the depth of the entries below them."""
        short = dict.fromkeys(self.short_roots(document), self.depth - 2)
        return {**short, self.name: self.depth - 1}

    def short_roots(self, document: Document) -> Iterable[str]:
        """Return the root keys with entries in a layout without the root table; "_meta" is none of them."""
        return (key for key in document.data if key != "_meta") if self.has_short_layout else ()

    def unread(self, document: Document) -> list[str]:
        """Return the root keys of a document that nothing reads, such as a misspelt name of the root table."""
        return [key for key in document.data if key not in {"_meta", *self._roots(document)}]

    def entries(self, tables: Tables, rules: Rules) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the key, without the kind, and the table of each entry that recall searches."""
        return tables_at(tables, self.name)

    def is_timed(self, document: Document) -> bool:
        """Return whether some entries of a document may not hold now."""
        return self.has_times and self.name in document.data

    @property
    def is_matched(self) -> bool:
        """Whether the entries that match a question come first in a prompt."""
        return self.is_shown and not self.is_long and self.shown_at_most is None

    def current(
        self, document: Document, rules: Rules, at: datetime
    ) -> Callable[[str, Mapping[str, Any]], bool] | None:
        """Return a function that returns whether an entry is valid at a time; None if all entries are."""
        return None

    # The text of an entry

    def text(self, entry: Mapping[str, Any]) -> str:
        """Return the text of an entry."""
        if self.texts:
            return "\n".join(str(entry.get(name, "")) for name in self.texts)
        return data_text(entry)

    def chosen_name(self, name: str) -> str:
        """Return what the writer of an entry chose of its name, the last part of its path; "" if it was generated."""
        return "" if is_uuid(name) else name

    def stated(self, path: Path, entry: Mapping[str, Any]) -> Iterator[str]:
        """Yield all texts and numbers from the writer of an entry, including its name if the writer chose it."""
        yield self.chosen_name(path[-1])
        for value in entry_data(entry).values():
            # The numbers of a kind that is not recalled are counters of the diary.
            yield from texts_in(value, numbers=self.is_recalled)

    def body(self, entry: Mapping[str, Any]) -> str:
        """Return the searchable text of an entry: its text and its labels."""
        return " ".join([self.text(entry), *text_list(entry.get(self.labels))])

    def names(self, name: str, entry: Mapping[str, Any]) -> str:
        """Return additional search terms for an entry, such as its category; `name` is its key without the kind."""
        return name.partition("/")[0] if self.depth > EntryKind.depth else name

    def turn(self, name: str, entry: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the session of an entry that is a turn, and its position in it as text; None if it is not a turn."""
        return None

    def title(self, name: str, updated: str) -> str:
        """Return the title of a recalled entry in a prompt."""
        return f"{self.name}/{name}"

    def line(self, name: str, entry: Mapping[str, Any], group: Group) -> EntryLine | None:
        """Return an entry as shown by `render`; None to omit it."""
        return EntryLine(self.title(name, last_used(entry)), self.text(entry), "", self.is_long)

    def rank(self, entry: Mapping[str, Any]) -> Rank:
        """Return the values that order the entries of a group."""
        return (entry.get("pinned") is True, 0, last_used(entry))

    def session(self, name: str) -> str:
        """Return the session that an entry describes, from the last part of its key; "" if none."""
        return ""

    def groups(self, tables: Tables, rules: Rules) -> list[Group]:
        """Return the groups in which a prompt shows the entries."""
        return [Group("", 1.0, lambda: dict(self.entries(tables, rules)))]

    def profile(self, documents: Mapping[str, Document], rules: Rules, at: datetime) -> Any:
        """Return statistics of documents as a JSON value without remembered text."""
        return sum(1 for each in documents.values() for _ in self.entries(each, rules))

    def seen(self, document: Document, rules: Rules) -> Iterator[str]:
        """Yield the times at which the user was active, as text that sorts by time."""
        yield from ()

    # Rules

    def problems(self, document: Document, rules: Rules) -> Iterator[Problem]:
        """Yield the problems of a document: values in place of tables, and those of its entries."""
        for path, value, left in self._values(document):
            where = render_path(path)
            if not isinstance(value, dict):
                root = "a table" if path == (self.name,) else self.branch
                expected = root if left else "an entry"
                message = f"expected {expected}, found {toml_word(value)}; it is left out"
                yield Problem(where, message)
            elif not left:
                yield from self.wrong(where, path, cast("dict[str, Any]", value), rules)

    def misnamed(self, document: Document, rules: Rules) -> Iterator[Problem]:
        """Yield the tables that a person may have misspelled; writes and imports accept them."""
        yield from ()

    def wrong(
        self, where: str, path: Path, entry: Mapping[str, Any], rules: Rules
    ) -> Iterator[Problem]:
        """Yield the problems of the fields of an entry in a file; `where` is its path as TOML. `put` checks writes."""
        labels = (self.labels,) if self.labels else ()
        yield from wrong_fields(where, entry, self.texts, labels, self.numbers, self.flags)
        for name in self.needed:
            if name not in entry:
                yield Problem(f"{where}.{name}", "expected text, found nothing")

    def remove(self, edit: EditedTables, paths: Iterable[Path]) -> None:
        """Remove entries without a check of their own; their ids are not assigned again."""
        self.keep_ids(edit, [path for path in paths if edit.delete(path)])

    def is_read(self, key: str, entry: Mapping[str, Any], rules: Rules) -> bool:
        """Return whether an entry fits its type; `key` includes the kind."""
        return True

    def counted(
        self, place: str, entries: Mapping[str, Mapping[str, Any]], rules: Rules, at: datetime
    ) -> int:
        """Return the number of entries of a collection that count for its limit; keys include the kind."""
        return len(entries)

    def check_import(self, before: Document, after: Document, rules: Rules) -> None:
        """Raise an error if an import breaks a rule; entries that broke it before the import are allowed."""

    def migrate(self, edit: Edit) -> None:
        """Convert a document of an older layout to the newest one."""

    def keep_ids(self, edit: EditedTables, removed: Collection[Path]) -> None:
        """Reserve the ids of removed entries, so that they are not assigned again."""

    # Entries as values by collection and key

    def collections(self, rules: Rules) -> list[Collected]:
        """Return the collections of the kind."""
        return [(self.name,)]

    def get(
        self, tables: Tables, rules: Rules, collection: Collected, key: str
    ) -> Mapping[str, Any] | None:
        """Return an entry unchanged, or None."""
        return tables.table((*collection, key))

    def listed(
        self, tables: Tables, rules: Rules, collection: Collected
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the entries of a collection by key, in the order of the file."""
        yield from self.entries(tables, rules)

    def put(
        self, writing: Writing, collection: Collected, key: str, value: Mapping[str, Any]
    ) -> None:
        """Set an entry to a checked value.

        Raises:
            DiaryError: A rule forbids it.
        """
        edit, path = writing.edit(self.name), (*collection, key)
        old = edit.table(path)
        said = {"_created_by": writing.session} if writing.session else {}
        known = {"_created": writing.now, **said} if old is None else old
        edit.put(path, with_value(dict(value), known, writing.now))

    def delete(self, writing: Writing, collection: Collected, key: str) -> None:
        """Remove an entry that exists.

        Raises:
            DiaryError: A rule forbids it.
        """
        documents, path = self.places((*collection, key), writing.documents)
        for document in documents:
            writing.edit(document).delete(path)
