"""The registry of entry kinds, and the keys of entries.

A kind says which documents hold it, what its keys, fields, text and line in a prompt are, and which rules
it obeys. To add a kind, write an `EntryKind` and `register` it; everything else asks the registry.
The long kinds have a module here, the others one in `entries`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from tomldiary.entries.blocks import BlockKind
from tomldiary.entries.conversations import ConversationKind
from tomldiary.entries.episodes import EpisodeKind
from tomldiary.entries.fields import Problem, toml_word
from tomldiary.entries.kind import EntryKind
from tomldiary.entries.kinds.facts import FactKind
from tomldiary.entries.kinds.items import ItemKind
from tomldiary.entries.kinds.parts import part_of
from tomldiary.entries.kinds.pending import PendingKind
from tomldiary.entries.kinds.preferences import PreferenceKind
from tomldiary.errors import UnknownEntry
from tomldiary.toml.values import checked_text, render_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from tomldiary.entries.kind import Rules
    from tomldiary.toml.document import Document, Path, Table

__all__ = [
    "BLOCKS",
    "CONVERSATIONS",
    "DRAFTS",
    "EPISODES",
    "FACTS",
    "ITEMS",
    "KINDS",
    "PREFERENCES",
    "QUARANTINE",
    "Stored",
    "entries_in",
    "entry_key",
    "entry_kind",
    "entry_path",
    "own_tables",
    "own_values",
    "path_of",
    "problems_in",
    "recalled_kinds",
    "register",
    "shown_kinds",
    "typed_kinds",
]

_SHALLOW = 2
"""The depth of kinds without categories or types; the others look for values in place of tables themselves."""

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


def problems_in(name: str, document: Document, rules: Rules) -> Iterator[Problem]:
    """Yield what is wrong with a document by this name: values in place of tables, then what its kind finds."""
    kind = entry_kind(name)
    for root in ("_meta", kind.name):
        found = document.data.get(root, {})
        if not isinstance(found, dict):
            yield Problem(root, f"expected a table, found {toml_word(found)}; it is left out")
        elif root != "_meta" and kind.depth == _SHALLOW:
            for key, entry in cast("Table", found).items():
                if not isinstance(entry, dict):
                    message = f"expected an entry, found {toml_word(entry)}; it is left out"
                    yield Problem(render_path((root, key)), message)
    yield from kind.problems(document, rules)


def recalled_kinds() -> list[EntryKind]:
    """Return the kinds that recall searches."""
    return [kind for kind in KINDS.values() if kind.is_recalled]


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
    """Return the entry that the table at `path` is or belongs to; None if it is above all entries."""
    if not path or path[0] == "_meta":
        return None
    depth = entry_kind(document).depth_of(path)
    return path[:depth] if len(path) >= depth else None


def own_values(name: str, document: _HasTables, path: Path) -> Table | None:
    """Return the values of a table without those tables in it that are of their own; None if there is none.

    A table is of its own if it has a header. In tables above all entries, each table is, however it is written.

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
    """Return the values of all tables with a header, and of `_meta` and the entries however they are written.

    See `own_values`. A table without a header or values is none.
    """
    paths = dict.fromkeys([*document.index, ("_meta",), *entry_kind(name).tables(document)])
    found = ((path, own_values(name, document, path)) for path in paths)
    return {path: values or {} for path, values in found if values or path in document.index}


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
        InvalidValue: It is no text.
    """
    first, _, rest = checked_text(key, "key").partition("/")
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
            key,
            f"A key is {', '.join(shapes[:-1])} or {shapes[-1]}; history() shows them, and a hit of recall()"
            " has it as `full_key`.",
        )
    return found


class Stored(NamedTuple):
    """One entry as it is in a document."""

    kind: str
    path: Path
    key: str
    """As history shows it."""
    fields: Mapping[str, Any]


def entries_in(documents: Mapping[str, Document]) -> Iterator[Stored]:
    """Yield the entries of documents, valid or not, kind by kind; where two parts hold one key, the first counts."""
    order = [*KINDS, *{entry_kind(name).name for name in documents} - KINDS.keys()]
    names = sorted(documents, key=lambda name: (order.index(entry_kind(name).name), part_of(name)))
    seen: set[str] = set()
    for name in names:
        kind = entry_kind(name)
        for path, fields in kind.tables(documents[name]).items():
            key = entry_key(path, name)
            if key not in seen:
                seen.add(key)
                yield Stored(kind.name, path, key, fields)


class _Unregistered(EntryKind):
    """Entries of a document that no kind claims: kept, exported and forgotten, not read."""

    is_recalled = is_shown = False


PREFERENCES = register(PreferenceKind("preferences", texts=("text",), labels="contexts"))
CONVERSATIONS = register(ConversationKind("conversations", texts=("summary",), labels="keywords"))
FACTS = register(FactKind("facts"))
BLOCKS = register(BlockKind("blocks", texts=("text",)))
EPISODES = register(EpisodeKind("episodes", texts=("input", "output")))
ITEMS = register(ItemKind("items"))
DRAFTS = register(PendingKind("drafts"))
QUARANTINE = register(PendingKind("quarantine"))
"""Changes from sources without trust, which wait for a review."""
