"""What one kind of entries is: its documents, keys, fields, text, rules and checks.

`EntryKind` is a complete kind for plain tables such as `[tasks.t1]`; a subclass overrides what differs.
`tomldiary.entries.kinds` holds the registered ones.
"""

# ruff: noqa: ARG002 - defaults leave out what only some kinds need

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from tomldiary.entries.fields import (
    columns_of,
    data_text,
    entry_data,
    last_used,
    tables_at,
    with_value,
    wrong_fields,
)
from tomldiary.text.json_paths import texts_in

if TYPE_CHECKING:
    from pydantic import BaseModel

    from tomldiary.entries.constraints import FactSchema
    from tomldiary.entries.fields import Problem
    from tomldiary.entries.preferences import PreferenceRules
    from tomldiary.toml.document import Document, Path
    from tomldiary.toml.edit import Edit

__all__ = [
    "Collected",
    "EditedTables",
    "EntryKind",
    "EntryLine",
    "Group",
    "Listed",
    "Rank",
    "Rules",
    "Tables",
    "Until",
    "Writing",
]


Collected = tuple[str, ...]
"""A collection of entries as stores name it: the kind, and a category or type if the kind has them."""
Until = Callable[[str, str, datetime], datetime]
"""Tells until when an entry lives that was read since it was written.

By the first document of its namespace, its key there, and when it was written.
"""
Rank = tuple[bool, int, str]
"""Whether an entry is pinned, how often it was confirmed, and when it was last used."""


class Tables(Protocol):
    """A document, or an edit of one."""

    @property
    def memo(self) -> dict[Any, Any]:
        """What was worked out from it; handed on from version to version."""
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
        """Make the table at `path` hold exactly `data`."""
        ...

    def delete(self, path: tuple[str, ...]) -> bool:
        """Remove the table at `path`; False if there is none."""
        ...


class Rules(Protocol):
    """The options of a diary that entries obey; `Diary` has them."""

    allowed: list[str]
    """The categories of preferences."""
    weights: dict[str, float]
    """The weight of each category in a prompt."""
    schema_name: str
    pref_table_cls: type[BaseModel]
    preference_rules: PreferenceRules
    fact_schemas: dict[str, FactSchema]
    max_conversations: int


class Writing(NamedTuple):
    """The transaction an entry is written in."""

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
    """The names of a user's documents, looked up each time they are iterated over."""

    def __init__(self, look_up: Callable[[], Iterable[str]]) -> None:
        self._look_up = look_up

    def __iter__(self) -> Iterator[str]:
        return iter(self._look_up())


class EntryLine(NamedTuple):
    """An entry as a prompt shows it, not yet escaped."""

    title: str
    text: str
    note: str = ""
    """Shown behind the text, such as how often the entry was confirmed."""
    is_long: bool = False
    """Whether the text stands below the title, line by line."""


class Group(NamedTuple):
    """The entries of a kind that share one place in a prompt: a category, or a type of facts."""

    name: str
    """Its category or type; "" if the kind has none."""
    weight: float
    columns: Callable[[], tuple[list[str], list[Any]]]
    """Returns keys and tables in the order of the file; a table may be something else in a bad file."""
    schema: FactSchema | None = None


class EntryKind:
    """One kind of entries. An instance is complete: a table `[name.key]` in a document called `name`.

    Args:
        name: The first part of keys, the root table, and the document.
        texts: Fields of a value that must be text.
        labels: The field of a value that is a list of text; "" for none.
    """

    shape = ""
    """What its keys look like, for messages; `name/key` if a subclass does not say."""
    depth = 2
    """The length of an entry's path, the kind's name included."""
    has_short_layout = False
    """Whether a file may leave out the root table."""
    is_recalled = True
    """Whether `recall` searches it."""
    is_shown = True
    """Whether `render` shows it."""
    is_long = False
    """Whether a prompt shows the text below its title, line by line."""
    order = 2
    """Of groups with equal weights in a prompt, those of the lowest order come first."""
    longest: int | None = None
    """Most characters of a text, and of all labels together; None is no limit, or one of its own."""
    is_private = False
    """Whether its entries are no memory yet, so that no index and no feed has them."""
    shown_at_most: int | None = None
    """Most entries in a prompt; None is no limit."""
    leads = False
    """Whether its pinned entries come before every other entry in a prompt."""
    is_reserved = False
    """Whether its name in front of a key goes before a category of the same name."""
    unchanged_because = ""
    """Why a model may not change an entry with the tool `update`; "" if it may."""
    is_split = False
    """Whether its entries are spread over parts; see `kinds.parts`."""
    has_times = False
    """Whether an entry may hold for a time only."""

    def __init__(self, name: str, *, texts: Sequence[str] = (), labels: str = "") -> None:
        self.name = name
        self.texts = tuple(texts)
        self.labels = labels
        self.shape = self.shape or f"{name}/key"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # Documents

    def documents(self, listed: Iterable[str]) -> list[str]:
        """Return the documents of the kind among a user's documents, oldest first; the first may not exist."""
        return [self.name]

    def documents_of(self, name: str, listed: Iterable[str]) -> list[str]:
        """Return the documents that may hold an entry by its key without the kind, newest first."""
        return self.documents(listed)[::-1]

    # Keys

    def key(self, path: Path, document: str = "") -> str:
        """Return the key of the entry at a path."""
        return "/".join(path)

    def path(self, key: str) -> Path | None:
        """Return the path of the entry that a key names; None if it is no key of this kind."""
        first, *rest = key.split("/", self.depth - 1)
        return (
            (first, *rest)
            if first == self.name and len(rest) == self.depth - 1 and rest[-1]
            else None
        )

    def resolved(
        self,
        path: Path,
        read: Callable[[str], Document],
        rules: Rules,
        at: datetime,
    ) -> Path:
        """Return the path of the entry that a path from `path` means at a time."""
        return path

    def places(self, path: Path, listed: Iterable[str]) -> tuple[list[str], Path]:
        """Return the documents that may hold the entry of a key's path, and its path in them."""
        return self.documents_of("/".join(path[1:]), listed), path

    def depth_of(self, path: Path) -> int:
        """Return the length of the path of the entry at or above a path; the short layout leaves out the root table."""
        return self.depth - (path[:1] != (self.name,))

    def within(self, document: str, until: Until | None = None) -> EntryKind:
        """Return the kind as it is in one document, whose name may be a part of keys.

        Args:
            document: Its name.
            until: Tells until when an entry lives that was read since it was written.
        """
        return self

    # What a document holds

    def home(self, document: str) -> str:
        """Return the name under which the entries of a document are known: that of the first part."""
        return self.name if self.is_split else document

    def tables(self, document: Document) -> dict[Path, dict[str, Any]]:
        """Return all entries of a document, or of a part of one, by path."""
        found: dict[Path, dict[str, Any]] = {}

        def walk(table: dict[str, Any], path: Path, left: int) -> None:
            for key, value in table.items():
                if isinstance(value, dict):
                    inner = cast("dict[str, Any]", value)
                    if left == 1:
                        found[(*path, key)] = inner
                    else:
                        walk(inner, (*path, key), left - 1)

        for key, value in document.data.items():
            if isinstance(value, dict) and key != "_meta":
                inner = cast("dict[str, Any]", value)
                if key == self.name:
                    walk(inner, (key,), self.depth - 1)
                elif self.has_short_layout:
                    walk(inner, (key,), self.depth - 2)
        return found

    def entries(self, tables: Tables, rules: Rules) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield key, without the kind, and table of the entries that recall searches."""
        return tables_at(tables, self.name)

    def is_timed(self, document: Document | None) -> bool:
        """Return whether some entries of a document may not hold now."""
        return self.has_times and document is not None and self.name in document.data

    @property
    def is_matched(self) -> bool:
        """Whether the entries that match a question come first in a prompt."""
        return self.is_shown and not self.is_long and self.shown_at_most is None

    def current(
        self,
        document: Document,
        rules: Rules,
        at: datetime,
    ) -> Callable[[str, Mapping[str, Any]], bool] | None:
        """Return what tells whether an entry counts at a time; None if all of them do."""
        return None

    # What an entry says

    def text(self, entry: Mapping[str, Any]) -> str:
        """Return what an entry says."""
        if self.texts:
            return "\n".join(str(entry.get(name, "")) for name in self.texts)
        return data_text(entry)

    def stated(self, path: Path, entry: Mapping[str, Any]) -> Iterator[str]:
        """Yield all texts that the writer of an entry gave, its name included if the writer chose it."""
        yield path[-1]
        for value in entry_data(entry).values():
            yield from texts_in(value)

    def body(self, entry: Mapping[str, Any]) -> str:
        """Return what a search compares of an entry: its text and its labels."""
        labels: Any = entry.get(self.labels) if self.labels else None
        if not isinstance(labels, list):
            return self.text(entry)
        return " ".join([self.text(entry), *map(str, cast("list[Any]", labels))])

    def names(self, name: str, entry: Mapping[str, Any]) -> str:
        """Return what else finds an entry, by its key without the kind."""
        return name

    def turn(self, name: str, entry: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the session that an entry is a turn of, and its place there as text; None if it is no turn."""
        return None

    def title(self, name: str, updated: str) -> str:
        """Return how an entry that recall found is called in front of a model."""
        return f"{self.name}/{name}"

    def line(
        self,
        name: str,
        entry: Mapping[str, Any],
        group: Group,
    ) -> EntryLine | None:
        """Return an entry as `render` shows it; None leaves it out."""
        return EntryLine(self.title(name, last_used(entry)), self.text(entry), "", self.is_long)

    def rank(self, entry: Mapping[str, Any]) -> Rank:
        """Return what decides which entries of a group come first."""
        return (entry.get("pinned") is True, 0, last_used(entry))

    def session(self, name: str) -> str:
        """Return the session that an entry is about, by the last part of its key; "" if none."""
        return ""

    def groups(self, tables: Tables, rules: Rules) -> list[Group]:
        """Return the groups in which a prompt shows the entries."""
        return [Group("", 1.0, lambda: columns_of(tables.table((self.name,)) or {}))]

    def holding(
        self,
        group: Group,
        entries: Iterable[tuple[str, Mapping[str, Any]]],
    ) -> Callable[[str, datetime], bool] | None:
        """Return what tells whether an entry of a group holds at a time; None if all do always."""
        return None

    def profile(self, documents: Mapping[str, Document], rules: Rules, at: datetime) -> Any:
        """Return in numbers what documents hold, as a JSON value without remembered text."""
        return sum(1 for each in documents.values() for _ in self.entries(each, rules))

    def seen(self, document: Document, rules: Rules) -> Iterator[str]:
        """Yield the times at which the user was there, as text that sorts by time."""
        yield from ()

    # Rules

    def problems(self, document: Document, rules: Rules) -> Iterator[Problem]:
        """Yield what is wrong with the entries of a document."""
        for name, entry in self.entries(document, rules):
            yield from wrong_fields(
                f"{self.name}.{name}", entry, self.texts, (self.labels,) if self.labels else ()
            )

    def remove(self, edit: Edit, path: Path, rules: Rules) -> None:
        """Remove an entry when its creation is undone."""
        edit.delete(path)

    def forbidden(
        self,
        document: Document,
        rules: Rules,
        states: Mapping[Path, Mapping[str, Any] | None],
    ) -> list[Path]:
        """Return the entries that the rules forbid to go back to earlier states."""
        return []

    def check_import(self, before: Document, after: Document, rules: Rules) -> None:
        """Raise if an import breaks a rule that held before; entries that were wrong before may stay."""

    def migrate(self, edit: Edit) -> None:
        """Bring a document of an older layout to the newest one."""

    def keep_ids(self, edit: Edit, removed: Collection[Path]) -> None:
        """Note which ids must not be given out again, since their entries were removed."""

    def undo_edits(
        self,
        edit: Edit,
        logged: Document,
        rules: Rules,
        others: Sequence[tuple[Document, Document]] = (),
    ) -> None:
        """Undo the hand edits of a document that the rules forbid.

        Args:
            edit: The document with them.
            logged: The document before them.
            rules: The rules.
            others: The other parts of the kind: as they are, and before hand edits. Moving an entry is allowed.
        """

    # Entries as values by collection and key

    def collections(self, rules: Rules) -> list[Collected]:
        """Return the collections that the kind has."""
        return [(self.name,)]

    def get(
        self,
        tables: Tables,
        rules: Rules,
        collection: Collected,
        key: str,
    ) -> Mapping[str, Any] | None:
        """Return an entry as it is in the file, or None."""
        return tables.table((*collection, key))

    def listed(
        self,
        tables: Tables,
        rules: Rules,
        collection: Collected,
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the entries of a collection by key, in the order of the file."""
        yield from self.entries(tables, rules)

    def put(
        self, writing: Writing, collection: Collected, key: str, value: Mapping[str, Any]
    ) -> None:
        """Make an entry hold exactly a checked value.

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
        for document in self.documents_of(key, writing.documents):
            writing.edit(document).delete((*collection, key))
