"""The registry of entry kinds, and the keys of entries.

A kind defines the documents of its entries, their keys, fields, text and line in a prompt, and their rules. To add a
kind, write an `EntryKind` in a module of this package and `register` it. Recall, prompts, stores, history, exports and
forgetting then cover it. An accessor in `user`, and the tools of a model in `agents.verbs`, are written for each kind.
The modules of blocks, conversations and episodes also have what reads and changes these entries; for facts and
preferences that is in `entries`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from tomldiary.entries.fields import Problem
from tomldiary.entries.kind import EntryKind
from tomldiary.entries.kinds.blocks import BlockKind
from tomldiary.entries.kinds.conversations import ConversationKind
from tomldiary.entries.kinds.episodes import EpisodeKind
from tomldiary.entries.kinds.facts import FactKind
from tomldiary.entries.kinds.items import ItemKind
from tomldiary.entries.kinds.parts import (
    duplicates,
    entry_at,
    further_part,
    join,
    part_of,
    parts_among,
)
from tomldiary.entries.kinds.pending import PendingKind
from tomldiary.entries.kinds.preferences import PreferenceKind
from tomldiary.errors import InvalidValue, UnknownEntry
from tomldiary.toml.values import checked_text, moment, render_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from tomldiary.entries.kind import Rules, Tables
    from tomldiary.toml.document import Document, Path, Table

KINDS: dict[str, EntryKind] = {}
"""The registered kinds by name; the name of a document begins with the name of its kind."""

K = TypeVar("K", bound=EntryKind)


def register(kind: K) -> K:
    """Register a kind of entries, replacing one of the same name, and return it.

    In keys, a category of the same name has precedence, as `goals` of the built-in table, unless `is_reserved` is set.
    """
    KINDS[kind.name] = kind
    return kind


def entry_kind(document: str) -> EntryKind:
    """Return the kind of the entries in a document; a default kind if none is registered for it."""
    name = document.partition("/")[0]
    return KINDS.get(name) or _Unregistered(name)


def home_of(document: str) -> str:
    """Return the document that represents all parts of the kind of a document, which is the first one."""
    return entry_kind(document).home(document)


def entries_of(name: str, listed: Iterable[str], read: Callable[[str], Document]) -> Document:
    """Return all entries of a kind or a document as one document.

    Args:
        name: The kind or the document.
        listed: The names of the documents.
        read: Returns a document by name.
    """
    kind = entry_kind(name)
    parts = parts_among(name, listed) if kind.is_split else [name]
    return join(kind, [read(part) for part in parts])


def problems_in(name: str, document: Document, rules: Rules) -> Iterator[Problem]:
    """Yield the problems of a document: unread roots, then those that its kind finds."""
    kind = entry_kind(name)
    blocking = unread_tables(name, document)
    for root in kind.unread(document):
        message, remedy = "nothing reads it", f"Rename it to [{kind.name}.…], or remove it."
        if root in blocking:
            message = f"nothing reads this table, and forget cannot finish while it is in {name!r}"
            remedy = "Remove it, or move it to the right document."
        yield Problem(render_path((root,)), message, remedy)
    if kind.longest_key is not None:
        for path in kind.tables(document):
            if not 0 < len(path[-1]) <= kind.longest_key:
                message = f"expected an id of 1 to {kind.longest_key} characters"
                yield Problem(render_path(path), message, "Rename the table, or remove it.")
    yield from kind.problems(document, rules)
    yield from kind.misnamed(document, rules)


def problems_of(documents: Mapping[str, Document], rules: Rules) -> Iterator[tuple[str, Problem]]:
    """Yield the problems of all documents of a user, each with the name of its document."""
    for name, document in documents.items():
        for problem in problems_in(name, document, rules):
            yield name, problem
    for kind in typed_kinds():
        for part, path, earlier in duplicates(kind, documents):
            other = f"{earlier}.toml" if earlier != part else render_path((kind.name, *path))
            message = f"{other} also has this key, so this entry is not read"
            remedy = "Remove one of the two, or give it another key."
            yield part, Problem(render_path(path), message, remedy)
    yield from _misnamed_documents(documents)


def _misnamed_documents(documents: Mapping[str, Document]) -> Iterator[tuple[str, Problem]]:
    """Yield the documents that are below the folder of a kind, and that nothing reads because of their names."""
    for name, document in documents.items():
        kind = KINDS.get(name.partition("/")[0])
        if kind is None or not document.data.keys() - {"_meta"}:
            continue
        read = parts_among(kind.name, documents) if kind.is_split else kind.documents(documents)
        if name not in read:
            remedy = (
                f"Move its tables to {kind.name}.toml."
                if read == [kind.name]
                else "Rename the file."
            )
            if kind.is_split:
                remedy = f"Rename the file to {further_part(kind.name, read)}.toml."
            yield name, Problem(kind.name, "nothing reads a document of this name", remedy)


def unread_tables(name: str, document: Document) -> list[str]:
    """Return the root tables that belong to no kind of entries, as in a copy `preferences-old` of a document."""
    kind = entry_kind(name)
    if kind.name in KINDS:
        return []
    return [key for key in kind.unread(document) if isinstance(document.data[key], dict)]


def shown_kinds() -> list[EntryKind]:
    """Return the kinds that `render` shows, in the order of their groups in a prompt."""
    return sorted((kind for kind in KINDS.values() if kind.is_shown), key=lambda kind: kind.order)


def typed_kinds() -> list[EntryKind]:
    """Return the kinds that obey the diary's rules: all but items and pending changes."""
    return [kind for kind in KINDS.values() if kind is not ITEMS and not kind.is_private]


# Keys


class _HasTables(Protocol):
    def own_values(self, path: Path) -> Table | None: ...


def entry_path(document: str, path: Path) -> Path | None:
    """Return the path of the entry that contains the table at `path`; None if the table is above all entries."""
    return entry_at(entry_kind(document), path)


def own_values(name: str, document: _HasTables, path: Path) -> Table | None:
    """Return the values of a table without its separate inner tables; None if there is no table.

    An inner table is separate if it has a header. Above all entries, each inner table is separate.

    Args:
        name: The name of the document.
        document: The document, a part of its text, or an edit of it.
        path: The table.
    """
    values = document.own_values(path)
    if not values or path[0] == "_meta" or entry_path(name, path) is not None:
        return values
    return {key: value for key, value in values.items() if not isinstance(value, dict)}


def own_tables(name: str, document: Document) -> dict[Path, Table]:
    """Return the values of all tables with a header, and of `_meta` and the entries in any notation.

    See `own_values`. Tables without a header and without values are omitted, and so are tables in a list, which are
    values of the table with the list.
    """
    # A table of an entry may have a list with headers, but no header of its own.
    lists = [block.path[:-1] for block in document.blocks if block.is_array]
    inner = [path for path in lists if entry_path(name, path) is not None]
    paths = dict.fromkeys([*document.index, ("_meta",), *entry_kind(name).tables(document), *inner])
    found = ((path, own_values(name, document, path)) for path in paths)
    return {
        path: values
        for path, values in found
        if values or (values is not None and path in document.index)
    }


def entry_key(path: Path, document: str = "") -> str:
    """Return the key of the entry at a path; the key of a preference omits its kind.

    The key of an item contains its document instead of its namespace: `items/memories/work/key`, with a slash in the
    key as `%2f`. For further documents of a namespace, the name of the first one is used.
    """
    kind = entry_kind(document or path[0])
    if kind.has_short_layout and path[0] != kind.name:
        path = (kind.name, *path)
    return entry_kind(path[0]).key(path, document)


def path_of(
    key: str,
    categories: Collection[str],
    types: Collection[str] = (),
    exists: Callable[[Path], bool] | None = None,
) -> Path:
    """Return the path of the entry with a key; for an item, the document replaces `items`.

    Args:
        key: A result of `entry_key`; it may also begin with a category or a type of facts without its kind.
        categories: The categories of preferences.
        types: The types of facts.
        exists: Returns whether there is an entry at a path. A key that begins with a category named like a kind, such
            as `blocks`, then names the entry that exists.

    Raises:
        UnknownEntry: The text is not a key.
        InvalidValue: The key is not a string, or two entries have it.
    """
    hint = "The key of a hit is its `full_key`, that of a fact its `id`."
    first, _, rest = checked_text(key, "key", hint).partition("/")
    named = KINDS.get(first)
    found = None
    # A category may have the name of a kind, such as `facts`.
    is_fact = named is FACTS and rest.partition("/")[0] in types
    if named is not None and (is_fact or first not in categories):
        found = named.path(key)
    elif named is not None:
        own = named.path(key)
        is_own = own is not None and exists is not None and exists(own)
        is_preference = exists is not None and exists((PREFERENCES.name, first, rest))
        if is_own and is_preference:
            raise InvalidValue(
                f"two entries have this key. The preference is also {PREFERENCES.name}/{key}; that of the kind"
                f" {first!r} has no other key. Nothing was changed.",
                where=key,
            )
        if is_own or (named.is_reserved and not is_preference):
            found = own
    if found is None and rest:
        if first in categories:
            found = (PREFERENCES.name, first, rest)
        elif first in types:
            found = (FACTS.name, first, rest)
        elif named is None:
            raise UnknownEntry(
                key,
                f"No category or type of facts is {first!r}. An item of a namespace is {ITEMS.name}/{key}, an entry"
                f" of a category that your table lacks is {PREFERENCES.name}/{key}, a fact of a type that is not"
                f" registered is {FACTS.name}/{key}.",
            )
    if found is None:
        shapes = [kind.shape for kind in KINDS.values() if kind.shape]
        raise UnknownEntry(
            key,
            f"A key is {', '.join(shapes[:-1])} or {shapes[-1]}; the history shows them, and a hit of a"
            " search has it as `full_key`.",
        )
    return found


def find_entry(
    path: Path, listed: Iterable[str], read: Callable[[str], Tables]
) -> tuple[str, Path, Mapping[str, Any]] | None:
    """Return the document, the path in it and the fields of the entry of a key's path, or None.

    Args:
        path: A result of `path_of`.
        listed: The names of the user's documents.
        read: Returns a document by name.
    """
    documents, place = entry_kind(path[0]).places(path, listed)
    for name in documents:
        entry = read(name).table(place)
        if entry is not None:
            return name, place, entry
    return None


class StoredEntry(NamedTuple):
    """One entry as it is in a document."""

    kind: str
    path: Path
    key: str
    """The key in history."""
    fields: Mapping[str, Any]


def entries_in(documents: Mapping[str, Document]) -> Iterator[StoredEntry]:
    """Yield the entries of documents, valid or not, by kind; if two parts have the same key, only the first one."""
    order = [*KINDS, *{entry_kind(name).name for name in documents} - KINDS.keys()]
    names = sorted(documents, key=lambda name: (order.index(entry_kind(name).name), part_of(name)))
    seen: set[str] = set()
    for name in names:
        kind = entry_kind(name)
        for path, fields in kind.tables(documents[name]).items():
            key = entry_key(path, name)
            if key not in seen:
                seen.add(key)
                yield StoredEntry(kind.name, path, key, fields)


class _Unregistered(EntryKind):
    """Entries of a document without a registered kind, which are kept, exported and forgotten, but not read."""

    is_recalled = is_shown = False
    longest_key = None

    def chosen_name(self, name: str) -> str:
        """Return what the writer of an entry chose of its name; the mark of an episode has the name of the episode."""
        return super().chosen_name(name) if moment(name) is None else ""


PREFERENCES = register(PreferenceKind("preferences", texts=("text",), labels="contexts"))
CONVERSATIONS = register(ConversationKind("conversations", texts=("summary",), labels="keywords"))
FACTS = register(FactKind("facts"))
BLOCKS = register(BlockKind("blocks", texts=("text",)))
EPISODES = register(EpisodeKind("episodes", texts=("input", "output")))
ITEMS = register(ItemKind("items"))
DRAFTS = register(
    PendingKind(
        "drafts",
        entry_kind,
        "it is a draft of a session, which the application promotes or discards.",
    )
)
QUARANTINE = register(
    PendingKind(
        "quarantine", entry_kind, "it waits for a decision of a person, with `tomldiary review`."
    )
)
"""Changes from untrusted sources that wait for a review."""
