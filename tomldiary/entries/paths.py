"""How entries are named: by their path in a document, and by the key that people use."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from tomldiary.errors import UnknownEntry
from tomldiary.store.namespaces import part_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from tomldiary.toml.document import Path

__all__ = ["entry_depth", "entry_key", "entry_path", "path_of"]

_DEPTHS = {"preferences": 3, "conversations": 2, "facts": 3}
_USUAL_DEPTH = 2
_ITEMS = "items"


def entry_depth(kind: str) -> int:
    """Return how long the paths of a document's entries are, in the layout with the kind in front."""
    return _DEPTHS.get(kind.partition("/")[0], _USUAL_DEPTH)


def entry_path(kind: str, path: Path) -> Path | None:
    """Return the entry that the table at `path` is, or is part of; None if it is above all entries."""
    if not path or path[0] == "_meta":
        return None
    root = kind.partition("/")[0]
    depth = entry_depth(kind)
    if path[0] != root:
        depth -= 1  # the layout without the kind in front
    return path[:depth] if len(path) >= depth else None


def entry_key(path: Path, kind: str = "") -> str:
    """Return the key of the entry at a path; a preference goes without its document.

    An item is named by its document, which stands for its namespace: `items/memories/work/key`, with
    a slash in the key as `%2f`. A namespace's further documents count as the first one.
    """
    if path[0] == "preferences":
        return "/".join(path[1:])
    if path[0] == _ITEMS and kind:
        return "/".join([part_of(kind)[0], *map(_quoted, path[1:])])
    return "/".join(path)


def _quoted(key: str) -> str:
    return key.replace("%", "%25").replace("/", "%2f")


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
    if first == "preferences" and "/" in rest:
        category, _, name = rest.partition("/")
        return ("preferences", category, name)
    if first == "conversations" and rest:
        return ("conversations", rest)
    if first in categories and rest:
        return ("preferences", first, rest)
    if first in {"blocks", "episodes"} and rest:
        return (first, rest)
    if first == "facts" and "/" in rest:
        name, _, entry = rest.partition("/")
        return (first, name, entry)
    if first == _ITEMS and "/" in rest:
        base, _, name = key.rpartition("/")
        return (base, unquote(name))
    if first in types and rest:
        return ("facts", first, rest)
    raise UnknownEntry(
        key,
        "A key is category/id, conversations/session, facts/type/key, blocks/name, episodes/id or"
        " items/namespace/key; history() shows them.",
    )
